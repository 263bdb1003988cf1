//! A run as its results directory tells it, whoever runs it and where: what is done, what is being done,
//! what is not to be trusted. Nothing is asked of the run itself.

use crate::within;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use vtax_report::results::{InFlight, ResultsDir, Trial, TrialOutcome};
use vtax_units::Source;

/// Runs whose trials are remembered.
const MOST_RUNS: usize = 64;
/// Headline numbers of a trial.
const MOST_NUMBERS: usize = 3;
/// The end of a log that is shown.
const LOG_BYTES: u64 = 4096;
const LOG_LINES: usize = 8;

/// How a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Every trial is there.
    Complete,
    /// A living vtax writes a trial of it.
    Running,
    /// Trials are missing, and nobody is seen to write one.
    Unfinished,
}

impl State {
    /// Of a run. One whose trials are not written here before they are over, as in a testbed, is
    /// unfinished until it is complete.
    pub fn of(results: &ResultsDir) -> Self {
        if results.trial_indexes().len() >= results.run().schedule.len() {
            Self::Complete
        } else if running(results).is_some() {
            Self::Running
        } else {
            Self::Unfinished
        }
    }
}

/// The trial that is being written by a process that lives and is a vtax: a number alone may be
/// another's by now.
fn running(results: &ResultsDir) -> Option<InFlight> {
    results.in_flight().into_iter().find(|one| {
        let name = fs::read(format!("/proc/{}/comm", one.writer));
        name.is_ok_and(|name| name.starts_with(b"vtax"))
    })
}

/// A run and its trials.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Progress {
    name: String,
    description: String,
    place: String,
    profile: String,
    started: String,
    state: State,
    treatments: Vec<String>,
    /// As scheduled.
    trials: Vec<TrialState>,
    /// Attempts that were set aside and run again.
    again: usize,
    /// For what is missing, from what trials of the same treatment took: seconds.
    remaining_seconds: Option<f64>,
    /// When the last trial was finished, in seconds since 1970.
    last: Option<f64>,
    running: Option<Running>,
    /// Whether there is a report of it.
    report: bool,
}

/// The trial of now.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Running {
    index: u32,
    treatment: String,
    /// When it began, in seconds since 1970.
    since: f64,
    /// The end of its log.
    log: Vec<String>,
}

/// One trial.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct TrialState {
    block: u32,
    treatment: usize,
    /// `counts`, `suspect`, `failed`, `damaged`, `running` or `waiting`.
    state: &'static str,
    #[serde(flatten)]
    found: Option<Found>,
}

/// What a trial that is over says.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
struct Found {
    #[serde(skip)]
    state: &'static str,
    seconds: f64,
    /// Why not to trust it, or why there is nothing of it.
    reasons: Vec<String>,
    /// Title, value with its unit, source flag.
    numbers: Vec<(String, String, Source)>,
}

/// Trials that were read, by index, with when they were written.
type Known = BTreeMap<u32, (SystemTime, Found)>;

/// The runs that were looked at.
#[derive(Debug, Default)]
pub struct Runs {
    known: Mutex<HashMap<PathBuf, Known>>,
}

impl Runs {
    /// A run as it is now. A trial is read once.
    pub fn progress(&self, results: &ResultsDir) -> Progress {
        let run = results.run();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_RUNS && !known.contains_key(results.path()) {
            known.clear();
        }
        let trials = known.entry(results.path().to_owned()).or_default();
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
                    Ok(trial) => Found::of(&trial),
                    Err(error) => Found {
                        state: "damaged",
                        reasons: vec![error.to_string()],
                        ..Found::default()
                    },
                };
                trials.insert(index, (at, found));
            }
        }
        let in_flight = running(results);
        let state = match (&in_flight, trials.len() >= run.schedule.len()) {
            (_, true) => State::Complete,
            (Some(_), false) => State::Running,
            (None, false) => State::Unfinished,
        };
        let label = |treatment: usize| {
            let found = run.treatments.get(treatment);
            found.map_or_else(String::new, |found| found.label.clone())
        };
        let running = in_flight.and_then(|one| {
            let scheduled = run.schedule.get(usize::try_from(one.index).ok()?)?;
            Some(Running {
                index: one.index,
                treatment: label(scheduled.treatment),
                since: began(&one.path).map_or(0.0, seconds),
                log: tail(results.path(), &one.path.join("log")),
            })
        });
        let states: Vec<TrialState> = (0..)
            .zip(&run.schedule)
            .map(|(index, scheduled)| {
                let found = trials.get(&index).map(|(_, found)| found.clone());
                let is_running = running.as_ref().is_some_and(|one| one.index == index);
                let waiting = if is_running { "running" } else { "waiting" };
                TrialState {
                    block: scheduled.block,
                    treatment: scheduled.treatment,
                    state: found.as_ref().map_or(waiting, |found| found.state),
                    found,
                }
            })
            .collect();
        Progress {
            name: run.name.clone(),
            description: run.description.clone(),
            place: run.place.clone(),
            profile: run.profile.clone(),
            started: run.started.clone(),
            state,
            treatments: run.treatments.iter().map(|one| one.label.clone()).collect(),
            remaining_seconds: remaining(&states),
            trials: states,
            again: results.attempts().len(),
            last: last.map(seconds),
            running,
            report: results.path().join("report.html").is_file(),
        }
    }
}

impl Found {
    fn of(trial: &Trial) -> Self {
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
            numbers: metrics
                .take(MOST_NUMBERS)
                .map(|metric| {
                    let value = metric.quantity.to_string();
                    (metric.title.clone(), value, metric.source)
                })
                .collect(),
        }
    }
}

/// What is missing takes as long as trials of its treatment did, else as any did.
fn remaining(trials: &[TrialState]) -> Option<f64> {
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

/// When a directory was made, where the file system keeps that; else when it changed last.
fn began(path: &Path) -> Option<SystemTime> {
    let known = fs::metadata(path).ok()?;
    known.created().or_else(|_| known.modified()).ok()
}

fn seconds(time: SystemTime) -> f64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

/// The last lines of a log below a directory, as text.
fn tail(directory: &Path, path: &Path) -> Vec<String> {
    let read = || -> std::io::Result<Vec<u8>> {
        let below = path.strip_prefix(directory).unwrap_or(path);
        let mut file = within::file(directory, below)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(LOG_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let from = lines.len().saturating_sub(LOG_LINES);
    lines
        .iter()
        .skip(from)
        .map(|line| {
            let line = line.chars().take(300);
            line.map(|c| if c.is_control() { ' ' } else { c }).collect()
        })
        .collect()
}
