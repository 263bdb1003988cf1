// SPDX-License-Identifier: Apache-2.0
//! The numbers of a finished run: the verdict on each platform, and the headline metrics of each workload with their
//! taxes.

use serde::Serialize;
use vtax_report::analysis::{Analysis, Comparison, MetricSummary, PlatformVerdict, distinct};
use vtax_results::numbers::estimate;
use vtax_results::stats::Verdict;

/// The numbers of a run.
#[derive(Debug, Serialize)]
pub struct Findings {
    verdicts: Vec<PlatformVerdict>,
    workloads: Vec<WorkloadTable>,
}

/// The headline metrics of one workload.
#[derive(Debug, Serialize)]
struct WorkloadTable {
    name: String,
    /// The short names of its treatments.
    treatments: Vec<String>,
    rows: Vec<MetricRow>,
}

#[derive(Debug, Serialize)]
struct MetricRow {
    title: String,
    /// One for each treatment; none where it lacks the metric.
    cells: Vec<Option<MetricCell>>,
}

#[derive(Debug, Serialize)]
struct MetricCell {
    value: String,
    source: String,
    /// The ratio to the baseline; none of a baseline.
    tax: Option<String>,
    different: bool,
}

impl MetricCell {
    fn of(metric: &MetricSummary, compared: Option<&Comparison>) -> Self {
        let is_different = |of: &Comparison| of.judgement.verdict == Verdict::Different;
        Self {
            value: estimate(metric.description.mean, metric.interval, metric.unit).line(),
            source: metric.flags(),
            tax: compared.and_then(Comparison::ratio_in_words),
            different: compared.is_some_and(is_different),
        }
    }
}

impl Findings {
    /// The numbers of an analysis.
    pub fn of(analysis: &Analysis) -> Self {
        let compared = analysis.compared();
        let workloads = analysis.by_workload().into_iter();
        let workloads = workloads.map(|(name, treatments)| {
            let metrics = treatments.iter().flat_map(|of| &of.metrics);
            let headlines = metrics.filter(|metric| metric.headline);
            let names = distinct(headlines.map(|of| (of.name.as_str(), of.title.as_str())));
            let rows = names.into_iter().map(|(metric, title)| MetricRow {
                title: title.to_owned(),
                cells: (treatments.iter())
                    .map(|of| {
                        let key = (of.treatment.label.as_str(), metric);
                        let own = of.metric(metric)?;
                        Some(MetricCell::of(own, compared.get(&key).copied()))
                    })
                    .collect(),
            });
            WorkloadTable {
                name: name.to_owned(),
                treatments: treatments.iter().map(|of| of.short.clone()).collect(),
                rows: rows.collect(),
            }
        });
        Self {
            verdicts: analysis.platform_verdicts(),
            workloads: workloads.filter(|of| !of.rows.is_empty()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_report::analysis::analyse;
    use vtax_testkit::results::Fake;

    #[test]
    fn a_finished_run_has_the_verdict_of_each_platform_and_its_headline_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let results = Fake::default().write(&folder.path().join("run"));
        let found = Findings::of(&analyse(&results).unwrap());
        let titles: Vec<&str> = found.verdicts.iter().map(|of| of.title.as_str()).collect();
        assert_eq!(titles, ["A container", "A VM (QEMU, TCG emulation)"]);
        let first = &found.workloads[0];
        assert_eq!(first.treatments, ["native", "container", "qemu"]);
        let cells: Vec<&MetricCell> = first.rows[0].cells.iter().flatten().collect();
        let taxes: Vec<(bool, bool)> = cells
            .iter()
            .map(|of| (of.tax.is_some(), of.different))
            .collect();
        assert_eq!(taxes, [(false, false), (true, false), (true, true)]);
    }
}
