// SPDX-License-Identifier: Apache-2.0
//! The trials of a run, from their records or the run's events: whether each counts, the reasons where it does not, and
//! its headline numbers.

use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::time::SystemTime;
use vtax_lab::run::FinishedTrial;
use vtax_results::{ResultsDir, Trial, TrialOutcome};

/// The largest number of headline numbers of a trial that are shown.
const MAX_NUMBERS: usize = 3;

/// One trial.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrialState {
    /// The pass over all treatments that it belongs to.
    pub block: u32,
    /// The index of its treatment.
    pub treatment: usize,
    /// `counts`, `suspect`, `failed`, `damaged`, `running` or `waiting`.
    pub state: &'static str,
    /// Its result, where it is finished.
    #[serde(flatten)]
    pub found: Option<TrialSummary>,
}

/// The result of a finished trial.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct TrialSummary {
    /// Of [`TrialState::state`].
    #[serde(skip)]
    pub state: &'static str,
    /// Its duration, in seconds.
    pub seconds: f64,
    /// The reasons why it is suspect, or the reason why it failed.
    pub reasons: Vec<String>,
    /// The disturbances of a trial, with which it counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disturbed: Vec<String>,
    /// Its headline numbers from the run's event, where its record is not on this host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub headline: String,
    /// The title, the value with its unit, and the source flags of each.
    pub numbers: Vec<(String, String, String)>,
}

/// The trials that were read, by index, with the times of their records.
pub type TrialCache = BTreeMap<u32, (SystemTime, TrialSummary)>;

/// Reads the new and changed trials. Returns the time of the newest record.
pub fn read_new(results: &ResultsDir, trials: &mut TrialCache) -> Option<SystemTime> {
    let mut last = None;
    let there = results.trial_indexes();
    trials.retain(|index, _| there.binary_search(index).is_ok());
    for index in there {
        let Ok(at) = written(&results.trial_path(index)) else {
            continue;
        };
        last = last.max(Some(at));
        if trials.get(&index).is_none_or(|(known, _)| *known != at) {
            let found = match results.trial(index) {
                Ok(trial) => TrialSummary::from_trial(&trial),
                Err(error) => TrialSummary {
                    state: "damaged",
                    reasons: vec![error.to_string()],
                    ..TrialSummary::default()
                },
            };
            trials.insert(index, (at, found));
        }
    }
    last
}

impl TrialSummary {
    /// The state of a trial that failed for this reason, or is suspect for these; it counts without any.
    fn judged(failed: Option<String>, suspect: Vec<String>) -> Self {
        let (state, reasons) = match failed {
            Some(why) => ("failed", vec![why]),
            None if suspect.is_empty() => ("counts", suspect),
            None => ("suspect", suspect),
        };
        Self {
            state,
            reasons,
            ..Self::default()
        }
    }

    /// The summary of a trial by the run's event of its end.
    pub fn announced(over: &FinishedTrial) -> Self {
        Self {
            seconds: over.seconds,
            headline: over.headline.clone(),
            disturbed: over.disturbed.clone(),
            ..Self::judged(over.failed.clone(), over.suspect.clone())
        }
    }

    /// Builds the summary from the trial's record.
    pub fn from_trial(trial: &Trial) -> Self {
        let failed = match &trial.outcome {
            TrialOutcome::Failed(why) => Some(why.clone()),
            TrialOutcome::Complete => None,
        };
        let metrics = trial.metrics.values().filter(|metric| metric.headline);
        Self {
            seconds: trial.times.total.as_secs_f64(),
            disturbed: trial.disturbed.clone(),
            numbers: metrics
                .take(MAX_NUMBERS)
                .map(|metric| {
                    let value = metric.quantity.to_string();
                    (
                        metric.title.clone(),
                        value,
                        metric.source.words(metric.is_modelled()),
                    )
                })
                .collect(),
            ..Self::judged(failed, trial.suspect.clone())
        }
    }
}

/// The time for the missing trials, in seconds: for each the mean of the finished trials of its treatment, else of all
/// trials.
pub fn remaining(trials: &[TrialState]) -> Option<f64> {
    let mut took: HashMap<usize, (f64, f64)> = HashMap::new();
    let mut all = (0.0, 0.0);
    for trial in trials {
        if let Some(found) = trial.found.as_ref().filter(|found| found.seconds > 0.0) {
            let own = took.entry(trial.treatment).or_default();
            *own = (own.0 + found.seconds, own.1 + 1.0);
            all = (all.0 + found.seconds, all.1 + 1.0);
        }
    }
    (all.1 > 0.0).then(|| {
        let missing = trials.iter().filter(|trial| trial.found.is_none());
        let times = missing.map(|trial| {
            let (sum, count) = took.get(&trial.treatment).unwrap_or(&all);
            sum / count
        });
        times.sum()
    })
}

fn written(path: &Path) -> std::io::Result<SystemTime> {
    fs::metadata(path.join("trial.json"))
        .or_else(|_| fs::metadata(path))?
        .modified()
}
