// SPDX-License-Identifier: Apache-2.0
//! The state of a run, read from its results directory and its events, whatever process runs it: its trials, the
//! present one, and those that are suspect. The run itself receives no request.

use crate::error::RequestError;
use crate::events::{EventReader, EventSink};
use crate::lab::{Lab, canonical};
use crate::meters;
use crate::process::Process;
use crate::records::{Record, Records, RunRequest};
use crate::run_manager::RunManager;
use crate::text;
use crate::trials::{TrialCache, TrialState, TrialSummary, read_new, remaining};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use vtax_lab::run::{RunState, RunningTrial, SampledLevel};
use vtax_results::{InFlight, ResultsDir, Scheduled};

/// The largest number of runs whose trials are cached.
const MAX_RUNS: usize = 256;
const MAX_LOG_LINES: usize = 8;

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Every trial is done.
    Complete,
    /// A vtax process runs it.
    Running,
    /// A vtax process runs it, and it is to end when a trial is over.
    Pausing,
    /// It received the signal to end, and restores the host.
    Stopping,
    /// The page paused it.
    Paused,
    /// The page cancelled it.
    Cancelled,
    /// Trials are missing, and no process is known that runs them.
    Unfinished,
}

/// The trial that a running vtax writes. The process ID alone may belong to a later process, so its name is checked.
fn in_flight(results: &ResultsDir) -> Option<InFlight> {
    let mut all = results.in_flight().into_iter();
    all.find(|one| Process::of_vtax(one.writer).is_some())
}

/// A run and its trials.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Progress {
    #[serde(flatten)]
    planned: RunPlan,
    state: State,
    /// Whether the page can end it.
    controlled: bool,
    /// Whether the page can resume it.
    resumable: bool,
    /// The trials in their scheduled order.
    trials: Vec<TrialState>,
    /// The number of attempts that were set aside and run again.
    again: usize,
    /// The time for the missing trials, in seconds, from the times of finished trials of the same treatment, or the
    /// run's own estimate.
    remaining_seconds: Option<f64>,
    /// The end of the last trial, in seconds since 1970.
    last: Option<f64>,
    running: Option<Running>,
    /// The last notes of the run.
    notes: VecDeque<String>,
    /// The end of its standard error, where it ended without being complete.
    messages: Vec<String>,
    /// Whether it has a report.
    report: bool,
    /// Whether its trials are climbs.
    density: bool,
}

/// The present trial.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Running {
    index: u32,
    treatment: String,
    /// Its start, in seconds since 1970.
    since: f64,
    /// Its phase; empty where it is not known.
    phase: String,
    /// Its objective; empty where it has none.
    objective: String,
    /// Its load levels so far.
    points: VecDeque<SampledLevel>,
    /// Its samples so far.
    meters: Option<Value>,
    /// The end of its log, where the log is on this host.
    log: Vec<String>,
}

/// The plan of a run, from its results directory, or from its record before that directory exists.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct RunPlan {
    name: String,
    description: String,
    place: String,
    profile: String,
    started: String,
    treatments: Vec<String>,
    #[serde(skip)]
    schedule: Vec<Scheduled>,
}

impl RunPlan {
    fn from_results(results: Option<&ResultsDir>, record: Option<&Record>) -> Option<Self> {
        if let Some(results) = results {
            let run = results.run();
            return Some(Self {
                name: run.name.clone(),
                description: run.description.clone(),
                place: run.place.clone(),
                profile: run.profile.clone(),
                started: run.started.clone(),
                treatments: run.treatments.iter().map(|one| one.label.clone()).collect(),
                schedule: run.schedule.clone(),
            });
        }
        let record = record?;
        let plan = record.plan.as_ref()?;
        Some(Self {
            name: plan.name.clone(),
            description: plan.description.clone(),
            place: record.place.clone(),
            profile: if record.quick { "quick" } else { "full" }.to_owned(),
            started: record.started.clone(),
            treatments: plan.treatments.clone(),
            schedule: plan.schedule.clone(),
        })
    }

    fn label(&self, treatment: usize) -> String {
        self.treatments.get(treatment).cloned().unwrap_or_default()
    }
}

/// Runs, with caches of their trials and events.
#[derive(Debug)]
pub struct Runs {
    state: PathBuf,
    run_manager: Option<RunManager>,
    records: Records,
    trials: Mutex<HashMap<PathBuf, TrialCache>>,
    run_events: Mutex<HashMap<PathBuf, EventReader<RunState>>>,
    trial_events: Mutex<HashMap<PathBuf, EventReader<RunningTrial>>>,
}

impl Runs {
    /// The runs of the vtax whose state is in a directory. The run manager has the privileges to see the lab of another
    /// user.
    pub fn new(state: &Path, run_manager: Option<RunManager>) -> Self {
        Self {
            state: state.to_owned(),
            run_manager,
            records: Records::below(state),
            trials: Mutex::default(),
            run_events: Mutex::default(),
            trial_events: Mutex::default(),
        }
    }

    /// The lab that runs on this host.
    pub fn lab(&self) -> Option<Lab> {
        match &self.run_manager {
            Some(run_manager) => run_manager.lab(),
            None => Lab::in_state(&self.state),
        }
    }

    /// The results directories of the run in progress, and of those that the page started, the newest first.
    pub fn started(&self) -> Vec<PathBuf> {
        let mut all: Vec<PathBuf> = self.lab().map(|lab| lab.results).into_iter().collect();
        for record in self.records.all() {
            if !all.contains(&record.results) {
                all.push(record.results);
            }
        }
        all
    }

    /// The record of a run that the page started or stopped.
    pub fn record(&self, path: &Path) -> Option<Record> {
        self.records.of_results(path)
    }

    /// The plan of a run that the page started.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn plan_of(&self, path: &Path) -> std::io::Result<String> {
        fs::read_to_string(self.records.folder_of(path).join("plan.toml"))
    }

    /// The state of a run, where `lab` is the lab that runs on this host.
    pub fn state(&self, path: &Path, results: &ResultsDir, lab: Option<&Lab>) -> State {
        let done = results.trial_indexes().len() >= results.run().schedule.len();
        let path = canonical(path);
        let record = self.records.of_results(&path);
        let lab = lab.filter(|lab| lab.results == path);
        state_of(record.as_ref(), lab, in_flight(results).is_some(), done).0
    }

    /// The progress of a run. Each trial is read once. `open` opens its directory, and returns none where it does not
    /// exist yet.
    ///
    /// # Errors
    /// When there is neither a directory nor a record.
    pub fn progress(
        &self,
        path: &Path,
        open: impl FnOnce() -> Option<ResultsDir>,
    ) -> Result<Progress, RequestError> {
        let path = canonical(path);
        let record = self.records.of_results(&path);
        // Events are read before the directory: a trial whose event was read is then in the directory.
        let events = record.as_ref().map(|_| self.read_events(&path));
        let results = open();
        let results = results.as_ref();
        let planned = RunPlan::from_results(results, record.as_ref())
            .ok_or_else(|| RequestError::Unknown(path.clone()))?;
        let lab = self.lab().filter(|lab| lab.results == path);
        let written = results.and_then(in_flight);
        let others = lab.is_some() || written.is_some();
        let events = record
            .as_ref()
            // The events of the run that the page started do not describe a run of another process.
            .filter(|record| record.plan.is_some() && record.is_alive() || !others)
            .and(events)
            .unwrap_or_default();
        let mut all = lock(&self.trials);
        if all.len() >= MAX_RUNS && !all.contains_key(&path) {
            all.clear();
        }
        let trials = all.entry(path.clone()).or_default();
        let last = results.and_then(|results| read_new(results, trials));
        let mut found: BTreeMap<u32, TrialSummary> = trials
            .iter()
            .map(|(index, (_, found))| (*index, found.clone()))
            .collect();
        // Trials whose results arrive only when the run ends, as over ssh.
        for (index, over) in &events.finished {
            let over = || TrialSummary::announced(over);
            found.entry(*index).or_insert_with(over);
        }
        let done = found.len() >= planned.schedule.len();
        let (state, controlled) = state_of(record.as_ref(), lab.as_ref(), written.is_some(), done);
        let goes_on = matches!(state, State::Running | State::Pausing | State::Stopping);
        let under_way: Vec<u32> = match &written {
            _ if !goes_on => Vec::new(),
            Some(one) => events.started.keys().copied().chain([one.index]).collect(),
            None => events.started.keys().copied().collect(),
        };
        let states: Vec<TrialState> = (0..)
            .zip(&planned.schedule)
            .map(|(index, scheduled)| {
                let own = found.get(&index).cloned();
                let waiting = if under_way.contains(&index) {
                    "running"
                } else {
                    "waiting"
                };
                TrialState {
                    block: scheduled.block,
                    treatment: scheduled.treatment,
                    state: own.as_ref().map_or(waiting, |own| own.state),
                    found: own,
                }
            })
            .collect();
        let is_density = record
            .as_ref()
            .and_then(|record| record.plan.as_ref())
            .is_some_and(|plan| plan.kind == crate::plans::Kind::Density)
            || results.is_some_and(vtax_density::run::is_density);
        let started_here = record.as_ref().is_some_and(|record| record.plan.is_some());
        // The testbed settings of a run from a terminal are not known.
        let is_testbed = planned.place.starts_with("testbed:");
        let ended = !goes_on && state != State::Complete && record.is_some();
        let announced = if goes_on { events.remaining } else { None };
        Ok(Progress {
            running: if goes_on {
                self.running(&planned, results, written, &events)
            } else {
                None
            },
            remaining_seconds: remaining(&states).or(announced),
            trials: states,
            state,
            controlled,
            resumable: !goes_on && state != State::Complete && (started_here || !is_testbed),
            again: results.map_or(0, |results| results.attempts().len()),
            last: last.map(seconds),
            notes: events.notes,
            messages: if ended {
                self.records.messages(&path)
            } else {
                Vec::new()
            },
            report: path.join("report.html").is_file(),
            density: is_density,
            planned,
        })
    }

    fn read_events(&self, path: &Path) -> RunState {
        let events = fs::File::open(self.records.folder_of(path).join("events"));
        read_on(&self.run_events, path, events)
    }

    /// The present trial: from its directory on this host, else from the run's events.
    fn running(
        &self,
        planned: &RunPlan,
        results: Option<&ResultsDir>,
        written: Option<InFlight>,
        run_events: &RunState,
    ) -> Option<Running> {
        let (index, treatment, since, events, log) = match written.zip(results) {
            Some((one, results)) => {
                let scheduled = planned.schedule.get(usize::try_from(one.index).ok()?)?;
                let events = results.dir().sole_file(one.events());
                let log = results.dir().sole_file(one.below.join("log"));
                let path = results.path().join(&one.below);
                (
                    one.index,
                    planned.label(scheduled.treatment),
                    began(results, &one).map_or(0.0, seconds),
                    read_on(&self.trial_events, &path, events.map_err(Into::into)),
                    text::last_lines(log.map_err(Into::into), MAX_LOG_LINES),
                )
            }
            None => {
                let (index, begun) = run_events.started.iter().next()?;
                let treatment = begun.treatment.clone();
                (
                    *index,
                    treatment,
                    begun.since,
                    run_events.trial.clone(),
                    Vec::new(),
                )
            }
        };
        Some(Running {
            index,
            treatment,
            since,
            phase: events.phase,
            objective: events.objective,
            meters: meters::curves(&events.samples),
            points: events.levels,
            log,
        })
    }
}

/// Reads the new events in a file, and returns all of its events.
fn read_on<T: EventSink + Clone>(
    all: &Mutex<HashMap<PathBuf, EventReader<T>>>,
    of: &Path,
    events: std::io::Result<fs::File>,
) -> T {
    let mut all = lock(all);
    if all.len() >= MAX_RUNS && !all.contains_key(of) {
        all.clear();
    }
    let listener = all.entry(of.to_owned()).or_default();
    listener.read(events).clone()
}

impl Progress {
    /// The entry of a run in the list of started runs.
    pub fn brief(&self, dir: &str) -> serde_json::Value {
        let of = |state: &str| self.trials.iter().filter(|one| one.state == state).count();
        let running = self.running.as_ref();
        serde_json::json!({
            "dir": dir,
            "name": self.planned.name,
            "place": self.planned.place,
            "profile": self.planned.profile,
            "started": self.planned.started,
            "state": self.state,
            "planned": self.trials.len(),
            "done": self.trials.iter().filter(|one| one.found.is_some()).count(),
            "suspect": of("suspect"),
            "failed": of("failed"),
            "running": running.map(|one| &one.treatment),
            "remaining_seconds": self.remaining_seconds,
        })
    }
}

/// The state of a run, and whether the page can end it. `lab` is the lab that runs it.
fn state_of(
    record: Option<&Record>,
    lab: Option<&Lab>,
    written: bool,
    done: bool,
) -> (State, bool) {
    let started = record.is_some_and(Record::is_alive);
    let goes_on = started || written || lab.is_some();
    // A request to an earlier process does not apply to a later one.
    let asked = match record {
        Some(record) if started || !goes_on => record.asked,
        _ => RunRequest::default(),
    };
    let state = match (done, goes_on, asked) {
        (true, ..) => State::Complete,
        (_, true, RunRequest::Run) => State::Running,
        (_, true, RunRequest::Pause(_)) => State::Pausing,
        (_, true, RunRequest::Paused | RunRequest::Cancelled) => State::Stopping,
        (_, false, RunRequest::Run) => State::Unfinished,
        (_, false, RunRequest::Pause(_) | RunRequest::Paused) => State::Paused,
        (_, false, RunRequest::Cancelled) => State::Cancelled,
    };
    (state, started || lab.is_some())
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time when a directory was created, where the file system records it; else the time of its last change.
fn began(results: &ResultsDir, trial: &InFlight) -> Option<SystemTime> {
    let known = results.dir().metadata(&trial.below).ok()?;
    known.created().or_else(|_| known.modified()).ok()
}

fn seconds(time: SystemTime) -> f64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plans::check;
    use crate::testbed::Testbed;
    use std::io::Write as _;
    use vtax_lab::place::Place;
    use vtax_lab::run::Event;

    #[test]
    fn no_phase_is_shown_of_a_trial_whose_directory_was_not_looked_for_after_it() {
        let state = tempfile::tempdir().unwrap();
        let path = canonical(&state.path().join("results"));
        let text = include_str!("../../../../plans/every-workload.toml");
        let records = Records::below(state.path());
        let folder = records.make(&path).unwrap();
        let record = Record {
            results: path.clone(),
            place: "local".to_owned(),
            quick: true,
            testbed: Testbed::default(),
            started: String::new(),
            plan: Some(check(text, true, &Place::Local).unwrap()),
            process: Process::from_id(std::process::id()),
            asked: RunRequest::Run,
        };
        records.keep(&record).unwrap();
        let runs = Runs::new(state.path(), None);
        // The run starts right after the look-up of its directory.
        let goes_on = || {
            let mut events = folder.new_file("events").unwrap();
            let started = Event::TrialStarted {
                index: 0,
                treatment: "a".to_owned(),
            };
            let phase = "measure".to_owned();
            for event in [started, Event::Phase { phase }] {
                writeln!(events, "{}", serde_json::to_string(&event).unwrap()).unwrap();
            }
            None
        };
        let shown = runs.progress(&path, goes_on).unwrap();
        assert_eq!((shown.state, shown.running), (State::Running, None));
        let shown = runs.progress(&path, || None).unwrap();
        assert_eq!(shown.running.unwrap().phase, "measure");
    }
}
