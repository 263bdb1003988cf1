//! The trials of a run, from their records or the run's events: whether each counts, why not, and its headline numbers.

use crate::events::FinishedTrial;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::time::SystemTime;
use vtax_core::Source;
use vtax_report::results::{ResultsDir, Trial, TrialOutcome};

/// Headline numbers of a trial that are shown.
const MAX_NUMBERS: usize = 3;

/// One trial.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrialState {
    /// The pass over all treatments that it belongs to.
    pub block: u32,
    /// Which treatment.
    pub treatment: usize,
    /// `counts`, `suspect`, `failed`, `damaged`, `running` or `waiting`.
    pub state: &'static str,
    /// Once it is over.
    #[serde(flatten)]
    pub found: Option<TrialSummary>,
}

/// The result of a trial that is over.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct TrialSummary {
    /// Of [`TrialState::state`].
    #[serde(skip)]
    pub state: &'static str,
    /// Its duration.
    pub seconds: f64,
    /// Why it is suspect, or why it failed.
    pub reasons: Vec<String>,
    /// Its headline numbers from the run's event, where its record is not on this host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub said: String,
    /// Title, value with its unit, source flag.
    pub numbers: Vec<(String, String, Source)>,
}

/// Trials that were read, by index, with the times of their records.
pub type TrialCache = BTreeMap<u32, (SystemTime, TrialSummary)>;

/// Reads the trials that are new. Returns the time of the newest record.
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
                Ok(trial) => TrialSummary::of(&trial),
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
    /// From the run's event.
    pub fn of_event(over: &FinishedTrial) -> Self {
        let (state, reasons) = match &over.failed {
            Some(why) => ("failed", vec![why.clone()]),
            None if over.suspect.is_empty() => ("counts", Vec::new()),
            None => ("suspect", over.suspect.clone()),
        };
        Self {
            state,
            seconds: over.seconds,
            reasons,
            said: over.headline.clone(),
            numbers: Vec::new(),
        }
    }

    /// From its record.
    pub fn of(trial: &Trial) -> Self {
        let (state, reasons) = match &trial.outcome {
            TrialOutcome::Failed(why) => ("failed", vec![why.clone()]),
            TrialOutcome::Complete if trial.suspect.is_empty() => ("counts", Vec::new()),
            TrialOutcome::Complete => ("suspect", trial.suspect.clone()),
        };
        let metrics = trial.metrics.values().filter(|metric| metric.headline);
        Self {
            state,
            seconds: trial.times.total.as_secs_f64(),
            reasons,
            said: String::new(),
            numbers: metrics
                .take(MAX_NUMBERS)
                .map(|metric| {
                    let value = metric.quantity.to_string();
                    (metric.title.clone(), value, metric.source)
                })
                .collect(),
        }
    }
}

/// The time for the missing trials: the mean of the finished ones of the same treatment, else of all.
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
