// SPDX-License-Identifier: Apache-2.0
//! The stop rule, checked before each new block. A run stops on precision, never on statistical significance.

use super::{Event, Knows, Progress};
use crate::plan::{Plan, StopRule};
use std::collections::BTreeMap;
use std::time::Duration;
use vtax_results::stats;
use vtax_results::{ResultsDir, TrialOutcome};

/// Returns the reason to stop the run before `next_block`, if there is one.
pub(super) fn satisfied(
    plan: &Plan,
    results: &ResultsDir,
    next_block: u32,
    elapsed: Duration,
    watch: (Option<&dyn Knows>, &mut dyn Progress),
) -> Option<String> {
    if let StopRule::Until {
        until,
        minimum,
        time_cap,
    } = &plan.stop
    {
        if elapsed >= *time_cap {
            return Some(capped(*time_cap));
        }
        let (knows, progress) = watch;
        let known = knows?.look(results, until);
        progress.event(Event::Note {
            message: known.in_words.clone(),
        });
        let is_enough = known.is_enough && next_block > *minimum;
        return is_enough.then_some(known.in_words);
    }
    let StopRule::Precision {
        metric,
        width,
        minimum,
        time_cap,
    } = &plan.stop
    else {
        return None;
    };
    if elapsed >= *time_cap {
        return Some(capped(*time_cap));
    }
    if next_block <= *minimum {
        return None;
    }
    // A treatment without a trial that counts prevents the stop.
    let mut values: BTreeMap<&str, Vec<f64>> = results
        .run()
        .treatments
        .iter()
        .map(|treatment| (treatment.label.as_str(), Vec::new()))
        .collect();
    for trial in results.trials().filter_map(Result::ok) {
        if trial.outcome == TrialOutcome::Complete
            && trial.suspect.is_empty()
            && let Some(series) = values.get_mut(trial.treatment.label.as_str())
            && let Some(metric) = trial.metrics.get(metric)
        {
            series.push(metric.quantity.value);
        }
    }
    let widest = values
        .values()
        .map(|series| relative_half_width(series))
        .fold(0.0, f64::max);
    (widest <= *width).then(|| {
        format!(
            "every treatment's {metric} is known to ±{:.1} % (wanted ±{:.1} %)",
            widest * 100.0,
            width * 100.0
        )
    })
}

fn capped(time_cap: Duration) -> String {
    format!("the time cap of {} s is reached", time_cap.as_secs())
}

/// Returns half the width of the mean's 95 % confidence interval, relative to the mean.
fn relative_half_width(series: &[f64]) -> f64 {
    let Some(interval) = stats::mean_interval(series, 1) else {
        return f64::INFINITY;
    };
    let mean = series.iter().sum::<f64>() / series.len().max(1) as f64;
    if mean == 0.0 {
        f64::INFINITY
    } else {
        (interval.high - interval.low) / 2.0 / mean.abs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Catalogue, Order, schedule};
    use std::path::Path;
    use vtax_core::{Base, Nanoseconds, Quantity, Source, Unit};
    use vtax_results::{
        Better, FORMAT, Metric, ObservationCost, PhaseTimes, RunInfo, Treatment, Trial,
    };

    const METRIC: &str = "throughput";

    fn treatment(label: &str) -> Treatment {
        Treatment {
            label: label.to_owned(),
            platform: label.to_owned(),
            workload: "idle".to_owned(),
            factors: BTreeMap::new(),
            baseline: None,
            platform_kind: String::new(),
            workload_kind: String::new(),
        }
    }

    /// Creates results with four blocks of two treatments. `record` returns the value, the outcome and the suspicions
    /// of a trial, by label and block.
    fn results(
        path: &Path,
        record: impl Fn(&str, u32) -> (Option<f64>, TrialOutcome, Vec<String>),
    ) -> ResultsDir {
        let treatments = vec![treatment("vm"), treatment("bare")];
        let run = RunInfo {
            format: FORMAT,
            name: "stop".to_owned(),
            description: String::new(),
            seed: 1,
            profile: "full".to_owned(),
            place: "local".to_owned(),
            started: String::new(),
            plan_sha256: String::new(),
            schedule: schedule(2, 5, Order::Sequential, 1),
            treatments,
            minimum_effect: 0.01,
            extended: false,
        };
        let results = ResultsDir::create(path, &run, "", &serde_json::json!({})).unwrap();
        for (index, scheduled) in (0u32..).zip(&run.schedule) {
            if scheduled.block == 4 {
                continue;
            }
            let treatment = run.treatments[scheduled.treatment].clone();
            let (value, outcome, suspect) = record(&treatment.label, scheduled.block);
            let metric = value.map(|value| Metric {
                quantity: Quantity::new(value, Unit::from_base(Base::One)),
                source: Source::Measured,
                model: None,
                meter: None,
                better: Better::Higher,
                headline: false,
                title: String::new(),
            });
            let trial = Trial {
                format: FORMAT,
                index,
                block: scheduled.block,
                treatment,
                started: String::new(),
                outcome,
                suspect,
                disturbed: Vec::new(),
                times: PhaseTimes::default(),
                window: (Nanoseconds(0), Nanoseconds(1)),
                work: None,
                metrics: metric.map(|m| (METRIC.to_owned(), m)).into_iter().collect(),
                environment: BTreeMap::new(),
                observation: ObservationCost::default(),
                actors: Vec::new(),
                phases: Vec::new(),
                objective: None,
            };
            results.trial_writer(index).unwrap().finish(trial).unwrap();
        }
        results
    }

    struct Unheard;

    impl Progress for Unheard {
        fn event(&mut self, _: Event) {}
    }

    fn plan() -> Plan {
        let text = format!(
            "name = \"stop\"\nrepetitions = 5\n[stop]\nrule = \"precision\"\nmetric = \"{METRIC}\"\n\
             width = 0.05\nminimum = 2\ntime_cap = \"1h\"\n\
             [[platform]]\nkind = \"native\"\n[[workload]]\nkind = \"idle\"\n"
        );
        Plan::read("stop.toml", &text, &Catalogue::standard()).unwrap()
    }

    /// Whether a run stops when `vm` has these trials and `bare` is known to 1 %.
    fn stops(vm: impl Fn(u32) -> (Option<f64>, TrialOutcome, Vec<String>)) -> bool {
        let directory = tempfile::tempdir().unwrap();
        let close = |block| 100.0 + f64::from(block % 2);
        let found = results(&directory.path().join("results"), |label, block| {
            if label == "vm" {
                vm(block)
            } else {
                (Some(close(block)), TrialOutcome::Complete, Vec::new())
            }
        });
        let mut progress = Unheard;
        satisfied(&plan(), &found, 4, Duration::ZERO, (None, &mut progress)).is_some()
    }

    #[test]
    fn a_run_stops_when_every_treatment_is_known_well_enough() {
        let complete = |value: f64| (Some(value), TrialOutcome::Complete, Vec::new());
        assert!(stops(|block| complete(50.0 + f64::from(block % 2) / 2.0)));
        assert!(!stops(|block| complete(50.0 + f64::from(block) * 10.0)));
    }

    #[test]
    fn a_treatment_without_one_trial_that_counts_keeps_the_run_going() {
        let failed = || TrialOutcome::Failed("the guest did not come up".to_owned());
        assert!(!stops(|_| (None, failed(), Vec::new())));
        assert!(!stops(|_| (
            Some(50.0),
            TrialOutcome::Complete,
            vec!["swapped".to_owned()]
        )));
        assert!(!stops(|_| (None, TrialOutcome::Complete, Vec::new())));
    }

    #[test]
    fn one_trial_that_counts_is_not_enough() {
        assert!(!stops(|block| match block {
            1 => (Some(50.0), TrialOutcome::Complete, Vec::new()),
            _ => (
                None,
                TrialOutcome::Failed("no answer".to_owned()),
                Vec::new()
            ),
        }));
    }
}
