//! A run as its results directory and its own words tell it, whoever runs it and where: what is done,
//! what is being done, what is not to be trusted. Nothing is asked of the run itself.

use crate::events::{Heard, Hears, Listener, Point, Told};
use crate::keeper::Keeper;
use crate::lab::{Lab, same};
use crate::meters::Meters;
use crate::process::Process;
use crate::records::{Asked, Record, Records};
use crate::text;
use crate::trials::{Found, Known, TrialState, read_new, remaining};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use vtax_report::results::{InFlight, ResultsDir, Scheduled};

/// Runs whose trials are remembered.
const MOST_RUNS: usize = 256;
/// The end of a log that is shown.
const LOG_BYTES: u64 = 4096;
const LOG_LINES: usize = 8;

/// How a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Every trial is there.
    Complete,
    /// A living vtax runs it.
    Running,
    /// The same, and it is to end when a trial is over.
    Pausing,
    /// It was told to end, and puts the host back.
    Stopping,
    /// It ended because the page was asked to pause it.
    Paused,
    /// It ended because the page was asked to cancel it.
    Cancelled,
    /// Trials are missing, and nobody is seen to run them.
    Unfinished,
}

/// The trial that is being written by a process that lives and is a vtax: a number alone may be
/// another's by now.
fn in_flight(results: &ResultsDir) -> Option<InFlight> {
    let mut all = results.in_flight().into_iter();
    all.find(|one| Process::of_vtax(one.writer).is_some())
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
    /// Whether the page can tell it to end.
    controlled: bool,
    /// Whether the page can go on with it.
    resumable: bool,
    treatments: Vec<String>,
    /// As scheduled.
    trials: Vec<TrialState>,
    /// Attempts that were set aside and run again.
    again: usize,
    /// For what is missing, from what trials of the same treatment took, or what the run expects:
    /// seconds.
    remaining_seconds: Option<f64>,
    /// When the last trial was finished, in seconds since 1970.
    last: Option<f64>,
    running: Option<Running>,
    /// What the run said lately, for people.
    notes: VecDeque<String>,
    /// The end of what it said when it ended without being complete.
    messages: Vec<String>,
    /// Whether there is a report of it.
    report: bool,
    /// Whether its trials are climbs.
    density: bool,
}

/// The trial of now.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Running {
    index: u32,
    treatment: String,
    /// When it began, in seconds since 1970.
    since: f64,
    /// What it does, in a word; empty where that is not known.
    phase: String,
    /// What it is judged by; empty where that is nothing.
    objective: String,
    /// What it saw so far, where it raises something step by step.
    points: VecDeque<Point>,
    /// What was sampled of it so far.
    meters: Option<Meters>,
    /// The end of its log, where it is written here.
    log: Vec<String>,
}

/// What is planned, before or after there is a directory.
struct Planned {
    name: String,
    description: String,
    place: String,
    profile: String,
    started: String,
    treatments: Vec<String>,
    schedule: Vec<Scheduled>,
}

impl Planned {
    fn of(results: Option<&ResultsDir>, record: Option<&Record>) -> Option<Self> {
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

/// The runs that were looked at.
#[derive(Debug)]
pub struct Runs {
    state: PathBuf,
    keeper: Option<Keeper>,
    records: Records,
    known: Mutex<HashMap<PathBuf, Known>>,
    heard: Mutex<HashMap<PathBuf, Listener<Heard>>>,
    told: Mutex<HashMap<PathBuf, Listener<Told>>>,
}

impl Runs {
    /// Those that keep their state in a directory; the keeper sees more of the lab that runs.
    pub fn of(state: &Path, keeper: Option<Keeper>) -> Self {
        Self {
            state: state.to_owned(),
            keeper,
            records: Records::within(state),
            known: Mutex::default(),
            heard: Mutex::default(),
            told: Mutex::default(),
        }
    }

    /// The lab that runs on this host.
    pub fn lab(&self) -> Option<Lab> {
        match &self.keeper {
            Some(keeper) => keeper.lab(),
            None => Lab::of(&self.state),
        }
    }

    /// The results directories of runs that go on, and of those that the page started, the last first.
    pub fn started(&self) -> Vec<PathBuf> {
        let mut all: Vec<PathBuf> = self.lab().map(|lab| lab.results).into_iter().collect();
        for record in self.records.all() {
            if !all.contains(&record.results) {
                all.push(record.results);
            }
        }
        all
    }

    /// What is kept of a run that the page started or stopped.
    pub fn record(&self, path: &Path) -> Option<Record> {
        self.records.of(path)
    }

    /// The plan of a run that the page started.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn plan_of(&self, path: &Path) -> std::io::Result<String> {
        fs::read_to_string(self.records.folder_of(path).join("plan.toml"))
    }

    /// How a run is, where this lab runs.
    pub fn state(&self, path: &Path, results: &ResultsDir, lab: Option<&Lab>) -> State {
        let done = results.trial_indexes().len() >= results.run().schedule.len();
        let path = same(path);
        let record = self.records.of(&path);
        let lab = lab.filter(|lab| lab.results == path);
        judged(record.as_ref(), lab, in_flight(results).is_some(), done).0
    }

    /// A run as it is now. A trial is read once. `open` opens its directory, and gives none where there is none yet.
    ///
    /// # Errors
    /// When nothing at all is known of it.
    pub fn progress(
        &self,
        path: &Path,
        open: impl FnOnce() -> Option<ResultsDir>,
    ) -> Result<Progress, String> {
        let path = same(path);
        let record = self.records.of(&path);
        // Before the directory: what the run reports is in its directory by then.
        let heard = record.as_ref().map(|_| self.listen(&path));
        let results = open();
        let results = results.as_ref();
        let planned = Planned::of(results, record.as_ref())
            .ok_or_else(|| format!("there is no run in {}", path.display()))?;
        let lab = self.lab().filter(|lab| lab.results == path);
        let written = results.and_then(in_flight);
        let others = lab.is_some() || written.is_some();
        let heard = record
            .as_ref()
            // What this page's run said says nothing of one that somebody else runs now.
            .filter(|record| record.plan.is_some() && record.is_alive() || !others)
            .and(heard)
            .unwrap_or_default();
        let mut all = lock(&self.known);
        if all.len() >= MOST_RUNS && !all.contains_key(&path) {
            all.clear();
        }
        let trials = all.entry(path.clone()).or_default();
        let last = results.and_then(|results| read_new(results, trials));
        let mut found: BTreeMap<u32, Found> = trials
            .iter()
            .map(|(index, (_, found))| (*index, found.clone()))
            .collect();
        // What is not written here before the run ends, as over ssh.
        for (index, over) in &heard.over {
            found.entry(*index).or_insert_with(|| Found::heard(over));
        }
        let done = found.len() >= planned.schedule.len();
        let (state, controlled) = judged(record.as_ref(), lab.as_ref(), written.is_some(), done);
        let goes_on = matches!(state, State::Running | State::Pausing | State::Stopping);
        let under_way: Vec<u32> = match &written {
            _ if !goes_on => Vec::new(),
            Some(one) => heard.under_way.keys().copied().chain([one.index]).collect(),
            None => heard.under_way.keys().copied().collect(),
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
        // Of one that a terminal began, the testbed's settings are not known.
        let is_testbed = planned.place.starts_with("testbed:");
        let ended = !goes_on && state != State::Complete && record.is_some();
        Ok(Progress {
            running: goes_on
                .then(|| self.running(&planned, results, written, &heard))
                .flatten(),
            remaining_seconds: remaining(&states).or(heard.remaining.filter(|_| goes_on)),
            trials: states,
            state,
            controlled,
            resumable: !goes_on && state != State::Complete && (started_here || !is_testbed),
            again: results.map_or(0, |results| results.attempts().len()),
            last: last.map(seconds),
            notes: heard.notes,
            messages: if ended {
                self.records.messages(&path)
            } else {
                Vec::new()
            },
            report: path.join("report.html").is_file(),
            density: is_density,
            name: planned.name,
            description: planned.description,
            place: planned.place,
            profile: planned.profile,
            started: planned.started,
            treatments: planned.treatments,
        })
    }

    fn listen(&self, path: &Path) -> Heard {
        let events = fs::File::open(self.records.folder_of(path).join("events"));
        listened(&self.heard, path, events)
    }

    /// The trial of now: as it is written here, else as the run says.
    fn running(
        &self,
        planned: &Planned,
        results: Option<&ResultsDir>,
        written: Option<InFlight>,
        heard: &Heard,
    ) -> Option<Running> {
        let (index, treatment, since, told, log) = match written.zip(results) {
            Some((one, results)) => {
                let scheduled = planned.schedule.get(usize::try_from(one.index).ok()?)?;
                let events = results.dir().sole_file(one.events());
                let path = results.path().join(&one.below);
                (
                    one.index,
                    planned.label(scheduled.treatment),
                    began(results, &one).map_or(0.0, seconds),
                    listened(&self.told, &path, events.map_err(Into::into)),
                    tail(
                        results
                            .dir()
                            .sole_file(one.below.join("log"))
                            .map_err(Into::into),
                    ),
                )
            }
            None => {
                let (index, begun) = heard.under_way.iter().next()?;
                let treatment = begun.treatment.clone();
                (
                    *index,
                    treatment,
                    begun.since,
                    heard.told.clone(),
                    Vec::new(),
                )
            }
        };
        Some(Running {
            index,
            treatment,
            since,
            phase: told.phase,
            objective: told.objective,
            meters: Meters::of(&told.meters),
            points: told.points,
            log,
        })
    }
}

/// What was heard in a file of events so far.
fn listened<T: Hears + Clone>(
    all: &Mutex<HashMap<PathBuf, Listener<T>>>,
    of: &Path,
    events: std::io::Result<fs::File>,
) -> T {
    let mut all = lock(all);
    if all.len() >= MOST_RUNS && !all.contains_key(of) {
        all.clear();
    }
    let listener = all.entry(of.to_owned()).or_default();
    listener.listen(events).clone()
}

impl Progress {
    /// A run in the list of those that were started.
    pub fn brief(&self, dir: &str) -> serde_json::Value {
        let of = |state: &str| self.trials.iter().filter(|one| one.state == state).count();
        let running = self.running.as_ref();
        serde_json::json!({
            "dir": dir,
            "name": self.name,
            "place": self.place,
            "profile": self.profile,
            "started": self.started,
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

/// How a run is, and whether the page can tell it to end. `lab` is the one that runs it.
fn judged(record: Option<&Record>, lab: Option<&Lab>, written: bool, done: bool) -> (State, bool) {
    let started = record.is_some_and(Record::is_alive);
    let goes_on = started || written || lab.is_some();
    // What an earlier process was asked, a later one was not.
    let asked = record
        .filter(|_| started || !goes_on)
        .map(|record| record.asked);
    let state = match (done, goes_on, asked.unwrap_or_default()) {
        (true, ..) => State::Complete,
        (_, true, Asked::Run) => State::Running,
        (_, true, Asked::Pause(_)) => State::Pausing,
        (_, true, Asked::Paused | Asked::Cancelled) => State::Stopping,
        (_, false, Asked::Run) => State::Unfinished,
        (_, false, Asked::Pause(_) | Asked::Paused) => State::Paused,
        (_, false, Asked::Cancelled) => State::Cancelled,
    };
    (state, started || lab.is_some())
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// When a directory was made, where the file system keeps that; else when it changed last.
fn began(results: &ResultsDir, trial: &InFlight) -> Option<SystemTime> {
    let known = results.dir().metadata(&trial.below).ok()?;
    known.created().or_else(|_| known.modified()).ok()
}

fn seconds(time: SystemTime) -> f64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

/// The last lines of a log, as text.
fn tail(log: std::io::Result<fs::File>) -> Vec<String> {
    let read = |mut file: fs::File| -> std::io::Result<Vec<u8>> {
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(LOG_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    text::last_lines(&log.and_then(read).unwrap_or_default(), LOG_LINES)
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
        let path = same(&state.path().join("results"));
        let text = include_str!("../../../plans/every-workload.toml");
        let records = Records::within(state.path());
        let folder = records.make(&path).unwrap();
        let record = Record {
            results: path.clone(),
            place: "local".to_owned(),
            quick: true,
            testbed: Testbed::default(),
            started: String::new(),
            plan: Some(check(text, true, &Place::Local).unwrap()),
            process: Process::of(std::process::id()),
            asked: Asked::Run,
        };
        records.keep(&record).unwrap();
        let runs = Runs::of(state.path(), None);
        // The run goes on right after its directory was looked for.
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
