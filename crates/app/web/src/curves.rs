// SPDX-License-Identifier: Apache-2.0
//! Curves of runs over the load levels of ramps and the populations of climbs, several runs in one panel.

use serde::Serialize;
use std::collections::BTreeMap;
use vtax_core::Source;
use vtax_core::metric::{self, Metric};
use vtax_density::report::{Summary, TreatmentClimbs};
use vtax_density::resources::Resource;
use vtax_report::analysis::{Analysis, TreatmentSummary};
use vtax_results::ResultsDir;
use vtax_results::stats::describe;

/// The metrics of load levels that are drawn besides the headline metrics.
const DRAWN: [&Metric; 5] = [
    metric::LATENCY_P50,
    metric::LATENCY_P99,
    metric::ERRORS,
    metric::CPU_CORES,
    metric::POWER_MEAN,
];

/// One metric of one treatment over the load level or population.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Panel {
    /// The treatment's label.
    pub treatment: String,
    /// The metric's name and title.
    pub metric: String,
    title: String,
    /// The quantity of the horizontal axis, and the metric's unit.
    across: String,
    unit: String,
    /// One for each run that has the metric.
    pub lines: Vec<Line>,
}

/// The curve of one run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    /// The number of the run.
    pub run: usize,
    source: String,
    /// Level, mean, and the bounds of the interval where there is one.
    pub points: Vec<(f64, f64, Option<f64>, Option<f64>)>,
}

/// Curves of runs, added one run after the other.
#[derive(Debug, Default)]
pub struct Curves {
    panels: Vec<Panel>,
}

impl Curves {
    /// The panels of the runs that were added.
    pub fn panels(self) -> Vec<Panel> {
        self.panels
    }

    /// Adds the load levels of a run.
    pub fn add_levels(&mut self, run: usize, analysis: &Analysis) {
        for summary in &analysis.treatments {
            // One level is a point.
            if summary.levels.len() > 1 {
                self.add_treatment(run, summary);
            }
        }
    }

    fn add_treatment(&mut self, run: usize, summary: &TreatmentSummary) {
        let of_levels = summary.levels.iter().flat_map(|level| &level.metrics);
        let drawn =
            of_levels.filter(|one| one.headline || DRAWN.iter().any(|drawn| drawn.is(&one.name)));
        let mut names: Vec<&str> = drawn.map(|one| one.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let found = summary.levels.iter().filter_map(|level| {
                let metric = level.metric(name)?;
                Some((level.level, metric))
            });
            let found: Vec<_> = found.collect();
            let Some((level, metric)) = found.first() else {
                continue;
            };
            let points = found.iter().map(|(level, metric)| {
                let ends = metric.interval.map(|ends| (ends.low, ends.high));
                let (low, high) = ends.unzip();
                (level.value, metric.description.mean, low, high)
            });
            let line = Line {
                run,
                source: metric.flags(),
                points: points.collect(),
            };
            let panel = Panel {
                treatment: summary.treatment.label.clone(),
                metric: name.to_owned(),
                title: metric.title.clone(),
                across: format!("load asked for, {}", level.unit),
                unit: metric.unit.to_string(),
                lines: Vec::new(),
            };
            self.add(panel, line);
        }
    }

    /// Adds the climbs of a density run.
    pub fn add_climbs(&mut self, run: usize, results: &ResultsDir) {
        let Ok(summary) = Summary::from_results(results) else {
            return;
        };
        for seen in &summary.seen {
            for resource in Resource::ALL {
                let share = |interval: &vtax_density::record::Interval| {
                    let own = interval
                        .samples
                        .iter()
                        .filter_map(|one| one.own_share(resource));
                    median(&own.collect::<Vec<_>>())
                };
                let title = format!("{resource}, the guests’ share");
                self.add_climb(run, seen, resource.name(), &title, "%", seen.points(share));
            }
            let answers = seen.points(|interval| Some(interval.probe?.p99_us / 1e6));
            let title = "99th percentile of a guest’s answer";
            self.add_climb(run, seen, metric::PROBE_P99.name, title, "s", answers);
        }
    }

    fn add_climb(
        &mut self,
        run: usize,
        seen: &TreatmentClimbs,
        metric: &str,
        title: &str,
        unit: &str,
        points: Vec<(f64, f64)>,
    ) {
        // A metric that is always 0 is not drawn.
        if !points.iter().any(|(_, value)| *value > 0.0) {
            return;
        }
        // All climbs have the same steps: the median of the values at each step.
        let mut steps: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for (population, value) in points {
            steps.entry(population.to_bits()).or_default().push(value);
        }
        let points = steps.into_iter().filter_map(|(population, values)| {
            Some((f64::from_bits(population), median(&values)?, None, None))
        });
        let sources = seen
            .climbs
            .iter()
            .flat_map(|(trial, _)| trial.metrics.values());
        let line = Line {
            run,
            source: sources
                .map(|metric| metric.source)
                .max()
                .unwrap_or(Source::Measured)
                .to_string(),
            points: points.collect(),
        };
        let panel = Panel {
            treatment: seen.treatment.label.clone(),
            metric: metric.to_owned(),
            title: title.to_owned(),
            across: "guests".to_owned(),
            unit: unit.to_owned(),
            lines: Vec::new(),
        };
        self.add(panel, line);
    }

    fn add(&mut self, panel: Panel, line: Line) {
        let same = |one: &&mut Panel| {
            one.treatment == panel.treatment
                && one.metric == panel.metric
                && one.unit == panel.unit
                && one.across == panel.across
        };
        match self.panels.iter_mut().find(same) {
            Some(known) => known.lines.push(line),
            None => self.panels.push(Panel {
                lines: vec![line],
                ..panel
            }),
        }
    }
}

fn median(values: &[f64]) -> Option<f64> {
    describe(values).map(|found| found.median)
}
