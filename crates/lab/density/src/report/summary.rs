// SPDX-License-Identifier: Apache-2.0
//! The summary of a run: its climbs by treatment, the lines through them, and their extrapolation.

use super::{about, bytes, count, time};
use crate::fit::Line;
use crate::limits::Binding;
use crate::record::median;
use crate::record::{Climb, Interval};
use crate::resources::Resource;
use crate::stop::nearest;
use serde_json::{Value, json};
use std::fmt;
use vtax_core::noun;
use vtax_host::HostError;
use vtax_lab::LabError;
use vtax_results::text::Table;
use vtax_results::{ResultsDir, ResultsError, Treatment, Trial, TrialOutcome};

/// All climbs of one treatment.
#[derive(Debug, Clone)]
pub struct TreatmentClimbs {
    /// The treatment.
    pub treatment: Treatment,
    /// The finished trials with their records.
    pub climbs: Vec<(Trial, Climb)>,
    /// The reasons of the failed ones.
    pub failures: Vec<String>,
}

/// The end of a treatment and its reason.
#[derive(Debug, Clone, PartialEq)]
pub struct Bound {
    /// The resource; `None`: the probe, or the platform itself.
    pub resource: Option<Resource>,
    /// The reason in words.
    pub words: String,
    /// Guests at that point.
    pub guests: f64,
    /// Whether the end is extrapolated by a straight line.
    pub modelled: bool,
}

/// Memory of a guest in bytes, by the account that it is read from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Each {
    /// The host's available memory: everything.
    ByHost(f64),
    /// The charge of the control group, without memory that the kernel charges to no group.
    Charged(f64),
}

/// A run's findings.
#[derive(Debug, Clone)]
pub struct Summary {
    /// The climbs by treatment, in the plan's order.
    pub seen: Vec<TreatmentClimbs>,
    /// Climbs that failed.
    pub failed: usize,
    /// Climbs that are not run yet.
    pub pending: usize,
}

impl Summary {
    /// Reads a run.
    ///
    /// # Errors
    /// When a climb's record is damaged.
    pub fn from_results(results: &ResultsDir) -> Result<Self, LabError> {
        let treatments = results.run().treatments.iter();
        let empty = |treatment: &Treatment| TreatmentClimbs {
            treatment: treatment.clone(),
            climbs: Vec::new(),
            failures: Vec::new(),
        };
        let mut seen: Vec<TreatmentClimbs> = treatments.map(empty).collect();
        let mut failed = 0;
        for trial in results.trials() {
            let trial = trial?;
            let of = seen
                .iter_mut()
                .find(|seen| seen.treatment.label == trial.treatment.label);
            let Some(of) = of else { continue };
            if let TrialOutcome::Failed(why) = &trial.outcome {
                of.failures.push(why.clone());
                failed += 1;
                continue;
            }
            let path = results.trial_path(trial.index).join("workload.json");
            let text = results
                .trial_dir(trial.index)?
                .read("workload.json", MOST_BYTES)
                .map_err(ResultsError::from)?;
            let climb: Climb =
                serde_json::from_slice(&text).map_err(|cause| HostError::Protocol {
                    peer: path.display().to_string(),
                    detail: format!(
                        "it is no record of a climb ({cause}); move the trial away and run the plan again"
                    ),
                })?;
            of.climbs.push((trial, climb));
        }
        Ok(Self {
            seen,
            failed,
            pending: results.pending().len(),
        })
    }
}

/// The largest size of a climb's record; that of a full climb has some hundred kilobytes.
const MOST_BYTES: u64 = 64 << 20;

/// The least share of the variance that a line has to explain to be used.
const STRAIGHT: f64 = 0.9;

/// The median of several climbs.
fn middle(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    median(values.flatten())
}

impl TreatmentClimbs {
    /// The records.
    pub fn records(&self) -> impl Iterator<Item = &Climb> {
        self.climbs.iter().map(|(_, climb)| climb)
    }

    /// Guests at the top, the median of the climbs.
    #[must_use]
    pub fn guests(&self) -> Option<f64> {
        middle(self.records().map(|climb| Some(f64::from(climb.guests()))))
    }

    /// The median over climbs of a value at the top.
    pub fn at_top(&self, of: impl Fn(&Climb, &Interval) -> Option<f64>) -> Option<f64> {
        middle(self.records().map(|climb| of(climb, climb.top()?)))
    }

    /// The median share of a resource in the last interval, in percent.
    #[must_use]
    pub fn share_at_top(&self, resource: Resource) -> Option<f64> {
        self.at_top(|_, top| top.median(|sample| sample.shares.get(&resource).copied()))
    }

    /// The points of a quantity over population, from the growth of every climb.
    pub fn points(&self, of: impl Fn(&Interval) -> Option<f64>) -> Vec<(f64, f64)> {
        self.records()
            .flat_map(|climb| &climb.climb)
            .filter_map(|interval| Some((f64::from(interval.population), of(interval)?)))
            .collect()
    }

    /// The line through the population's own share of a resource, in percent. Where other programs change the host's
    /// memory so much that it follows no line, it is the line through the control group's charge plus the earlier use.
    #[must_use]
    pub fn line(&self, resource: Resource) -> Option<Line> {
        if resource != Resource::Memory || self.host_is_calm() {
            let share = |interval: &Interval| interval.median(|sample| sample.own_share(resource));
            return Line::through(&self.points(share));
        }
        let charged = self.charged_slope()?;
        let (_, climb) = self.climbs.first()?;
        let percent = 100.0 / climb.before.total.max(1.0);
        Some(Line {
            intercept: (climb.before.total - climb.before.available) * percent,
            slope: charged.slope * percent,
            slope_error: charged.slope_error.map(|error| error * percent),
            worst_residual: charged.worst_residual * percent,
            ..charged
        })
    }

    /// The line through the decrease of the host's available memory since the start of each climb, in bytes.
    #[must_use]
    pub fn memory_line(&self) -> Option<Line> {
        let missing = |climb: &Climb, interval: &Interval| {
            let (before, memory) = (&climb.before, &interval.memory);
            before.available - memory.available + memory.swap - before.swap
        };
        let points = self.records().flat_map(|climb| {
            let intervals = climb.climb.iter();
            intervals
                .map(move |interval| (f64::from(interval.population), missing(climb, interval)))
        });
        Line::through(&points.collect::<Vec<_>>())
    }

    /// The line through the memory charged to the population's control group, in bytes.
    #[must_use]
    pub fn charged_line(&self) -> Option<Line> {
        Line::through(&self.points(|interval| interval.charged))
    }

    /// Whether the host's memory follows the population alone, so that its differences can be used.
    #[must_use]
    pub fn host_is_calm(&self) -> bool {
        let mut climbs = self.climbs.iter();
        let straight = |line: Line| line.r_squared > STRAIGHT && line.slope > 0.0;
        climbs.all(|(trial, _)| trial.suspect.is_empty())
            && self.memory_line().is_some_and(straight)
    }

    /// Charged bytes per guest, with its share of the memory allocated for all at the start.
    fn charged_slope(&self) -> Option<Line> {
        let line = self.charged_line()?;
        let each = self.at_top(|climb, _| climb.charged_each())?;
        Some(Line {
            slope: line.slope.max(each),
            ..line
        })
    }

    /// Memory of a guest, by the difference of the host's memory or, where other programs hide that, by the charge of
    /// its control group.
    #[must_use]
    pub fn memory_each(&self) -> Option<Each> {
        let by_host = if self.host_is_calm() {
            self.at_top(|climb, _| climb.bytes_each())
        } else {
            None
        };
        let charged = || self.at_top(|climb, _| climb.charged_each());
        (by_host.map(Each::ByHost)).or_else(|| charged().map(Each::Charged))
    }

    /// The reason of the climbs' end. For climbs that reached the expected maximum it is extrapolated by straight
    /// lines.
    #[must_use]
    pub fn bound(&self) -> Option<Bound> {
        let (_, climb) = self
            .climbs
            .iter()
            .find(|(_, climb)| climb.binding != Binding::Maximum)
            .or_else(|| self.climbs.first())?;
        let guests = f64::from(climb.guests());
        let mut bound = Bound {
            resource: None,
            words: String::new(),
            guests,
            modelled: false,
        };
        bound.words = match &climb.binding {
            Binding::Resource { resource, .. } => {
                bound.resource = Some(*resource);
                resource.to_string()
            }
            Binding::Probe { .. } => "response time".to_owned(),
            Binding::Refused { .. } => "the platform".to_owned(),
            Binding::Maximum => {
                let reached = |resource| {
                    let line = self.line(resource)?;
                    // Only a slope that clearly differs from 0 is extrapolated.
                    let rises = line.slope > 3.0 * line.slope_error? && line.r_squared > 0.5;
                    let at = line.reaches(climb.limits.of_resource(resource))?;
                    rises.then(|| (resource, at.max(guests)))
                };
                let all = Resource::ALL.into_iter().filter_map(reached);
                if let Some((resource, at)) = all.min_by(|(_, a), (_, b)| a.total_cmp(b)) {
                    (bound.resource, bound.guests, bound.modelled) = (Some(resource), at, true);
                    resource.to_string()
                } else {
                    let nearest = climb.top().and_then(|top| nearest(&climb.limits, top));
                    bound.resource = nearest.map(|(resource, _)| resource);
                    "nothing yet".to_owned()
                }
            }
        };
        Some(bound)
    }

    /// The number of guests of another host with these processors and bytes of memory, by the lines of memory and
    /// processor time.
    #[must_use]
    pub fn on_host(&self, processors: f64, memory: f64) -> Option<(f64, &'static str)> {
        let (_, climb) = self.climbs.first()?;
        let stop = |resource| climb.limits.of_resource(resource) / 100.0;
        let by_host = if self.host_is_calm() {
            self.memory_line()
        } else {
            None
        };
        let line = by_host.or_else(|| self.charged_slope());
        let line = line.filter(|line| line.slope > 0.0)?;
        let by_memory = memory * stop(Resource::Memory) / line.slope;
        let rises = |line: &Line| (line.slope_error).is_some_and(|e| line.slope > 3.0 * e);
        let by_cpu = self.line(Resource::Cpu).filter(rises).map(|line| {
            let each = line.slope / 100.0 * f64::from(climb.processors);
            processors * stop(Resource::Cpu) / each
        });
        Some(match by_cpu {
            Some(by_cpu) if by_cpu < by_memory => (by_cpu, "CPU"),
            _ => (by_memory, "memory"),
        })
    }

    /// What `of` selects at the first and at the last interval that has it, of the first climb.
    pub fn first_and_last<T: Copy>(&self, of: impl Fn(&Interval) -> Option<T>) -> Option<(T, T)> {
        let (_, climb) = self.climbs.first()?;
        let mut all = climb.climb.iter().filter_map(of);
        let first = all.next()?;
        Some((first, all.next_back().unwrap_or(first)))
    }
}

impl Bound {
    /// `memory at 43,200,000 guests (modelled)`.
    #[must_use]
    pub fn line(&self) -> String {
        let (about, guests, flag) = if self.modelled {
            ("about ", about(self.guests), " (modelled)")
        } else {
            ("", count(self.guests), "")
        };
        let noun = noun(self.guests, "guest");
        format!("{} at {about}{guests} {noun}{flag}", self.words)
    }
}

impl Summary {
    /// The summary as JSON: the table of [`Summary`] with the units in the names, and every climb.
    #[must_use]
    pub fn document(&self) -> Value {
        let platform = |seen: &TreatmentClimbs| {
            let (by, each) = match seen.memory_each() {
                Some(Each::ByHost(each)) => (Some("host"), Some(each)),
                Some(Each::Charged(each)) => (Some("control group"), Some(each)),
                None => (None, None),
            };
            let climbs = seen.climbs.iter().map(|(trial, climb)| {
                json!({
                    "trial": trial.index,
                    "guests": climb.guests(),
                    "ended_by": climb.binding,
                    "suspect": trial.suspect,
                })
            });
            json!({
                "treatment": seen.treatment,
                "guests": seen.guests(),
                "memory_each_bytes": each,
                "memory_each_by": by,
                "boot_p50_us": seen.at_top(|_, top| Some(top.births?.boot?.p50_us)),
                "answer_p99_us": seen.at_top(|_, top| Some(top.probe?.p99_us)),
                "idle_core_percent": seen.at_top(|climb, _| Some(climb.idle?.core_percent)),
                "cloud": seen.records().find_map(|climb| climb.cloud.as_ref()),
                "bound": seen.bound().map(|bound| json!({
                    "by": bound.words,
                    "guests": bound.guests,
                    "source": if bound.modelled { "modelled" } else { "measured" },
                })),
                "climbs": climbs.collect::<Vec<_>>(),
                "failures": seen.failures,
            })
        };
        json!({
            "platforms": self.seen.iter().map(platform).collect::<Vec<_>>(),
            "failed": self.failed,
            "pending": self.pending,
        })
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headings = "platform;guests;memory;boot, p50;answer, p99;idle CPU;bound by";
        let mut table = Table::new(headings.split(';'), 1..6);
        let mut charged = false;
        for seen in &self.seen {
            let Some(guests) = seen.guests() else {
                let why = seen.failures.first().map_or("not run yet", String::as_str);
                table.row([&seen.treatment.label, "", "", "", "", "", why]);
                continue;
            };
            let dash = || "–".to_owned();
            let each = match seen.memory_each() {
                Some(Each::ByHost(each)) => bytes(each),
                Some(Each::Charged(each)) => {
                    charged = true;
                    format!("{}*", bytes(each))
                }
                None => dash(),
            };
            let boot = seen.at_top(|_, top| Some(top.births?.boot?.p50_us));
            let answer = seen.at_top(|_, top| Some(top.probe?.p99_us));
            let idle = seen.at_top(|climb, _| Some(climb.idle?.core_percent));
            table.row([
                seen.treatment.label.clone(),
                count(guests),
                each,
                boot.map_or_else(dash, time),
                answer.map_or_else(dash, time),
                idle.map_or_else(dash, |percent| format!("{percent:.2} %")),
                seen.bound().map_or_else(dash, |bound| bound.line()),
            ]);
        }
        for line in table.lines(usize::MAX) {
            writeln!(f, "{line}")?;
        }
        if charged {
            writeln!(
                f,
                "* the charge of its control group: other programs hide the difference of the host's memory"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use crate::record::Sample;
    use crate::resources::Memory;
    use std::collections::BTreeMap;

    /// A climb whose guests each take `each` bytes of 100 GB, and `cpu` percent of 4 processors.
    pub(crate) fn climb(each: f64, cpu: f64, maximum: u32, binding: Binding) -> Climb {
        let before = Memory {
            total: 100e9,
            available: 95e9,
            ..Memory::default()
        };
        let interval = |population: u32| {
            let used = f64::from(population) * each;
            Interval {
                population,
                samples: vec![
                    Sample {
                        shares: [
                            (Resource::Memory, 5.0 + used / 1e9),
                            (Resource::Cpu, f64::from(population) * cpu + 3.0),
                        ]
                        .into(),
                        population_cpu: f64::from(population) * cpu,
                        ..Sample::default()
                    };
                    3
                ],
                memory: Memory {
                    available: 95e9 - used,
                    ..before
                },
                charged: Some(used),
                ..Interval::default()
            }
        };
        Climb {
            version: 1,
            platform: "x".to_owned(),
            maximum,
            limits: Limits {
                stop_percent: 90.0,
                reserve_percent: 10.0,
                probe_p99_ms: 100.0,
            },
            processors: 4,
            before,
            climb: (0..=20).map(|step| interval(maximum / 20 * step)).collect(),
            idle: None,
            cloud: None,
            descent: Vec::new(),
            after: before,
            returned_after: 0.0,
            binding,
            own_cpu: 0.0,
            seconds: 1.0,
        }
    }

    pub(crate) fn seen(climb: Climb) -> TreatmentClimbs {
        let treatment = Treatment {
            label: "x".to_owned(),
            platform: "x".to_owned(),
            workload: crate::plan::WORKLOAD.to_owned(),
            factors: BTreeMap::new(),
            baseline: None,
            platform_kind: String::new(),
            workload_kind: String::new(),
        };
        let trial = Trial {
            format: 1,
            index: 0,
            block: 1,
            treatment: treatment.clone(),
            started: String::new(),
            outcome: TrialOutcome::Complete,
            suspect: Vec::new(),
            disturbed: Vec::new(),
            times: vtax_results::PhaseTimes::default(),
            window: (vtax_core::Nanoseconds(0), vtax_core::Nanoseconds(0)),
            work: None,
            metrics: BTreeMap::new(),
            environment: BTreeMap::new(),
            actors: Vec::new(),
            phases: Vec::new(),
            objective: None,
            observation: vtax_results::ObservationCost::default(),
        };
        TreatmentClimbs {
            treatment,
            climbs: vec![(trial, climb)],
            failures: Vec::new(),
        }
    }

    #[test]
    fn what_ended_a_climb_is_named_as_measured() {
        let pids = Binding::Resource {
            resource: Resource::Pids,
            percent: 91.0,
        };
        let bound = seen(climb(1e6, 0.0, 1000, pids)).bound().unwrap();
        assert_eq!((bound.words.as_str(), bound.modelled), ("PIDs", false));
    }

    #[test]
    fn a_climb_that_ended_early_is_led_on_by_its_lines_and_says_so() {
        let bound = seen(climb(1e6, 0.0, 1000, Binding::Maximum))
            .bound()
            .unwrap();
        assert_eq!((bound.words.as_str(), bound.modelled), ("memory", true));
        assert!((bound.guests - 85_000.0).abs() < 1.0, "{bound:?}");
        let bound = seen(climb(1e6, 0.01, 1000, Binding::Maximum))
            .bound()
            .unwrap();
        assert_eq!(bound.words, "CPU");
        assert!((bound.guests - 9_000.0).abs() < 1.0, "{bound:?}");
    }

    #[test]
    fn a_restless_host_leaves_the_word_to_the_control_group() {
        let mut restless = climb(1e6, 0.0, 1000, Binding::Maximum);
        assert_eq!(
            seen(restless.clone()).memory_each(),
            Some(Each::ByHost(1e6))
        );
        for (step, interval) in restless.climb.iter_mut().enumerate() {
            interval.memory.available += if step % 2 == 0 { 5e9 } else { -5e9 };
        }
        let seen = seen(restless);
        assert_eq!(seen.memory_each(), Some(Each::Charged(1e6)));
        let (guests, by) = seen.on_host(48.0, 128e9).unwrap();
        assert!(
            by == "memory" && (guests - 115_200.0).abs() < 1.0,
            "{guests}"
        );
    }

    #[test]
    fn another_host_has_its_own_memory_and_processors() {
        let light = seen(climb(1e6, 0.0, 1000, Binding::Maximum));
        let (guests, by) = light.on_host(48.0, 128e9).unwrap();
        assert_eq!(by, "memory");
        assert!((guests - 115_200.0).abs() < 1.0, "{guests}");
        // 0.01 % of 4 processors is 0.0004 of one.
        let busy = seen(climb(1e3, 0.01, 1000, Binding::Maximum));
        let (guests, by) = busy.on_host(48.0, 128e9).unwrap();
        assert_eq!(by, "CPU");
        assert!((guests - 108_000.0).abs() < 1.0, "{guests}");
    }
}
