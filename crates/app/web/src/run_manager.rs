// SPDX-License-Identifier: Apache-2.0
//! The thread that starts runs, asks them to end and finds the lab that runs. It keeps the privileges that the thread
//! which serves the network drops, and executes [`Order`]s only.
//!
//! A run is a `vtax run` in a session of its own. It survives the page, and a later page finds it by its record. A
//! pause is the signal of a terminal's Ctrl-C, sent when a trial is over. Finished trials stay, and the same command
//! runs the others.

use crate::events::{EventReader, TrialCount};
use crate::host_check::{self, HostCheck, HostCheckError};
use crate::lab::Lab;
use crate::plans::{Kind, PlanSummary};
use crate::records::{Record, Records, RunRequest};
use crate::testbed::Testbed;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use tracing::{info, warn};
use vtax_files::{Dir, FileError};
use vtax_lab::place::Place;

/// The time between two readings of a run that is to be paused: a tenth of the time since the request, within these
/// bounds. Long trials are rarely disturbed, and short ones lose little time.
const MIN_POLL: Duration = Duration::from_millis(100);
const MAX_POLL: Duration = Duration::from_secs(2);
/// The time between two readings where no run is to be paused.
const IDLE_POLL: Duration = Duration::from_secs(60);

/// How runs are started, and where their records are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Starter {
    /// The `vtax` program.
    pub program: PathBuf,
    /// The directory of vtax's state.
    pub state: PathBuf,
}

/// A run to start or to resume.
#[derive(Debug)]
pub struct Start {
    /// The results directory, as [`crate::lab::canonical`] names it.
    pub results: PathBuf,
    /// The text of the plan.
    pub text: String,
    /// The plan's trials and their time.
    pub plan: PlanSummary,
    /// The place where it runs.
    pub place: Place,
    /// Whether durations are shrunk.
    pub quick: bool,
    /// Settings where the place is a testbed.
    pub testbed: Testbed,
}

/// The requests that the thread executes.
#[derive(Debug)]
pub enum Order {
    /// Start a run, or resume one that ended.
    Start(Box<Start>),
    /// End this run when its present trial is over.
    Pause(PathBuf),
    /// Withdraw the pause.
    Proceed(PathBuf),
    /// End this run at once: the present trial is lost.
    Cancel(PathBuf),
}

/// The reason why a run was not started, paused or ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The thread has ended.
    #[error("the thread that starts runs has ended: start vtax web again")]
    ThreadEnded,
    /// This server has no such thread.
    #[error("this server starts nothing")]
    NoManager,
    /// The place cannot be parsed.
    #[error("{0}")]
    Place(String),
    /// The plan has mistakes.
    #[error("the plan has {0} mistakes")]
    Mistakes(usize),
    /// Another run is in progress on this host.
    #[error(
        "a run goes on on this host already, into {}: two would measure each other; wait for it, or cancel it",
        .0.display()
    )]
    HostBusy(PathBuf),
    /// The run is already in progress.
    #[error("this run goes on already, into {}", .0.display())]
    Running(PathBuf),
    /// Climbs on another machine.
    #[error("climbs run on this host or in a testbed: give `local` or `testbed:kvm` as the place")]
    ClimbsElsewhere,
    /// The record of the run cannot be written.
    #[error(
        "cannot keep a record of this run: {0}; the directory of vtax's state must be there and ours (VTAX_STATE_DIR)"
    )]
    Record(#[from] io::Error),
    /// The program cannot be started.
    #[error("cannot start {}: {cause}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The kernel's reason.
        cause: io::Error,
    },
    /// This host was not checked.
    #[error(transparent)]
    Check(#[from] HostCheckError),
    /// No process is known that runs it.
    #[error("no process of this host runs it: end it where it was started")]
    NotRunning,
    /// It has already received the signal to end.
    #[error("it was asked to end and does so now: it puts the host back first")]
    Ending,
    /// The record names no process.
    #[error("its process is not known")]
    NoProcess,
    /// The signal cannot be sent.
    #[error("cannot ask process {process} to end: {cause}{}", after.as_ref().map_or_else(String::new, |error| format!("; {error}")))]
    Signal {
        /// The process.
        process: u32,
        /// The kernel's reason.
        cause: io::Error,
        /// The reason why its record cannot be reset; none where it was.
        after: Option<Box<RunError>>,
    },
    /// The results belong to another user.
    #[error("{} belongs to another user: run its plan in a terminal as that one", .0.display())]
    OtherOwner(PathBuf),
    /// The plan in the results directory cannot be read.
    #[error("cannot read the plan of {dir:?}: {cause}")]
    Plan {
        /// The name of the run.
        dir: String,
        /// The reason.
        cause: FileError,
    },
    /// The page's copy of the plan cannot be read.
    #[error("its plan is gone: {0}")]
    PlanCopy(io::Error),
    /// The run was started in a terminal, with settings of a testbed that its directory does not hold.
    #[error(
        "it was begun in a terminal, perhaps with settings of the testbed, which its directory does not hold: go on there, with vtax run PLAN --place {place} --results {}",
        path.display()
    )]
    ForeignTestbed {
        /// The testbed.
        place: Place,
        /// The results directory.
        path: PathBuf,
    },
    /// The plan is of an earlier vtax, or names files that this server does not have.
    #[error("the plan of that run cannot be run from here: {0}")]
    OldPlan(String),
}

#[derive(Debug)]
enum Message {
    Do(Order, Sender<Result<(), RunError>>),
    Lab(Sender<Option<Lab>>),
    Check {
        text: String,
        quick: bool,
        reply: Sender<Result<HostCheck, HostCheckError>>,
    },
}

/// A handle to the thread, which ends when the last handle is dropped.
#[derive(Debug, Clone)]
pub struct RunManager {
    messages: Sender<Message>,
}

impl RunManager {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the kernel cannot start a thread.
    pub fn start(starter: Starter) -> io::Result<Self> {
        let (messages, received) = channel();
        std::thread::Builder::new()
            .name("runs".to_owned())
            .spawn(move || Worker::new(starter).work(&received))?;
        Ok(Self { messages })
    }

    /// Sends an order and waits until it is executed.
    ///
    /// # Errors
    /// When it is not executed.
    pub fn order(&self, order: Order) -> Result<(), RunError> {
        let done = self.ask(|reply| Message::Do(order, reply));
        done.ok_or(RunError::ThreadEnded)?
    }

    /// Checks that this host can run a plan, with the privileges that a run would have.
    ///
    /// # Errors
    /// When the check cannot be made.
    pub fn check_host(&self, text: String, quick: bool) -> Result<HostCheck, RunError> {
        let checked = self.ask(|reply| Message::Check { text, quick, reply });
        Ok(checked.ok_or(RunError::ThreadEnded)??)
    }

    /// The lab that runs on this host. Only the privileges of this thread make the working directory of its process
    /// visible.
    pub fn lab(&self) -> Option<Lab> {
        self.ask(Message::Lab)?
    }

    /// Sends a message and waits for the reply; `None` where the thread has ended.
    fn ask<T>(&self, message: impl FnOnce(Sender<T>) -> Message) -> Option<T> {
        let (reply, replied) = channel();
        self.messages.send(message(reply)).ok()?;
        replied.recv().ok()
    }
}

struct Worker {
    starter: Starter,
    records: Records,
    pauses: Vec<Pause>,
}

/// A run that is to end when a trial is over.
struct Pause {
    results: PathBuf,
    since: Instant,
    finished: EventReader<TrialCount>,
}

impl Pause {
    fn new(results: &Path) -> Self {
        Self {
            results: results.to_owned(),
            since: Instant::now(),
            finished: EventReader::default(),
        }
    }

    /// The time until the next reading.
    fn poll(&self) -> Duration {
        (self.since.elapsed() / 10).clamp(MIN_POLL, MAX_POLL)
    }

    /// The number of finished trials in the run's events plus the number in its directory. A change of either counts.
    fn finished(&mut self, records: &Records) -> usize {
        let shown = fs::read_dir(self.results.join("trials"))
            .into_iter()
            .flatten()
            .flatten();
        let shown = shown.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
        let events = File::open(records.folder_of(&self.results).join("events"));
        shown.count() + self.finished.read(events).0
    }
}

impl Worker {
    fn new(starter: Starter) -> Self {
        let records = Records::below(&starter.state);
        // The pauses that an earlier page received.
        let pauses = records.all().into_iter();
        let pauses = pauses.filter(|record| matches!(record.asked, RunRequest::Pause(_)));
        Self {
            pauses: pauses.map(|record| Pause::new(&record.results)).collect(),
            starter,
            records,
        }
    }

    fn work(mut self, messages: &Receiver<Message>) {
        loop {
            let poll = self.pauses.iter().map(Pause::poll).min();
            match messages.recv_timeout(poll.unwrap_or(IDLE_POLL)) {
                Ok(Message::Lab(reply)) => {
                    let _ = reply.send(Lab::in_state(&self.starter.state));
                }
                Ok(Message::Check { text, quick, reply }) => {
                    let program = self.starter.program.clone();
                    // The check takes seconds. Its thread has the privileges of this one.
                    let started = std::thread::Builder::new()
                        .name("check".to_owned())
                        .spawn(move || reply.send(host_check::check(&program, &text, quick)));
                    if let Err(error) = started {
                        warn!("{error}");
                    }
                }
                Ok(Message::Do(order, reply)) => {
                    let done = match order {
                        Order::Start(start) => self.start(&start),
                        Order::Pause(results) => self.pause(&results),
                        Order::Proceed(results) => self.proceed(&results),
                        Order::Cancel(results) => self.cancel(&results),
                    };
                    if let Err(error) = &done {
                        warn!("{error}");
                    }
                    // The client may have disconnected.
                    let _ = reply.send(done);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.end_paused();
        }
    }

    fn start(&self, start: &Start) -> Result<(), RunError> {
        let results = &start.results;
        if !matches!(start.place, Place::Ssh(_))
            && let Some(other) = self.running_here()
        {
            return Err(RunError::HostBusy(other));
        }
        let known = self.records.of_results(results);
        if known.is_some_and(|record| record.is_alive()) {
            return Err(RunError::Running(results.clone()));
        }
        if start.plan.kind == Kind::Density && matches!(start.place, Place::Ssh(_)) {
            return Err(RunError::ClimbsElsewhere);
        }
        let folder = self.records.make(results).map_err(io::Error::from)?;
        let began = self.begin(start, &folder);
        let process = began.map_err(|cause| RunError::Start {
            program: self.starter.program.clone(),
            cause,
        })?;
        info!(
            "process {process} runs {} into {}",
            start.plan.name,
            results.display()
        );
        self.records.keep(&Record {
            results: results.clone(),
            place: start.place.to_string(),
            quick: start.quick,
            testbed: start.testbed.clone(),
            started: jiff::Timestamp::now().to_string(),
            plan: Some(start.plan.clone()),
            process: crate::process::Process::from_id(process),
            asked: RunRequest::Run,
        })?;
        Ok(())
    }

    /// The results directory of the run on this host. A run in a testbed does not lock the directory of this state, so
    /// its record is read.
    fn running_here(&self) -> Option<PathBuf> {
        let lab = Lab::in_state(&self.starter.state).map(|lab| lab.results);
        lab.or_else(|| {
            let mut all = self.records.all().into_iter();
            let here = |place: &str| place == "local" || place.starts_with("testbed:");
            all.find(|record| record.is_alive() && here(&record.place))
                .map(|record| record.results)
        })
    }

    /// Starts the program, and returns its process ID.
    fn begin(&self, start: &Start, folder: &Dir) -> io::Result<u32> {
        let plan = folder.path().join("plan.toml");
        folder.write("plan.toml", start.text.as_bytes())?;
        let output = |name: &str| {
            // The old file stays: the inode number of a removed file could be reused for the new one, and readers that
            // follow the run would take it for the old one.
            match folder.rename(name, format!("{name}.before")) {
                Err(error) if !error.is_not_found() => Err(error),
                _ => folder.new_file(name),
            }
        };
        let mut command = Command::new(&self.starter.program);
        command.arg(match start.plan.kind {
            Kind::Run => "run",
            Kind::Density => "density",
        });
        command.arg(&plan);
        command.arg("--place").arg(start.place.to_string());
        command.arg("--results").arg(&start.results).arg("--json");
        if start.quick {
            command.arg("--quick");
        }
        if !start.testbed.settings.trim().is_empty() {
            folder.write("testbed.toml", start.testbed.settings.as_bytes())?;
            let settings = folder.path().join("testbed.toml");
            command.arg("--testbed").arg(settings);
        }
        if let Some(jobs) = start.testbed.jobs {
            command.arg("--jobs").arg(jobs.to_string());
        }
        command
            .stdin(Stdio::null())
            .stdout(output("events")?)
            .stderr(output("messages")?);
        // SAFETY: between fork and exec this does one system call, which touches no memory.
        unsafe { command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?)) };
        let mut child = command.spawn()?;
        let number = child.id();
        let results = start.results.display().to_string();
        // A child that has ended stays a zombie until its parent waits for it.
        std::thread::Builder::new()
            .name("run".to_owned())
            .spawn(move || log_end(number, &results, child.wait()))?;
        Ok(number)
    }

    /// The record of a run in progress, whatever process started it.
    fn running(&self, results: &Path) -> Result<Record, RunError> {
        let known = self.records.of_results(results);
        if let Some(record) = known.clone().filter(Record::is_alive) {
            return Ok(record);
        }
        let lab = Lab::in_state(&self.starter.state).filter(|lab| lab.results == results);
        let lab = lab.ok_or(RunError::NotRunning)?;
        Ok(Record {
            results: results.to_owned(),
            place: known
                .as_ref()
                .map_or_else(String::new, |known| known.place.clone()),
            quick: known.as_ref().is_some_and(|known| known.quick),
            testbed: known.map(|known| known.testbed).unwrap_or_default(),
            started: jiff::Timestamp::now().to_string(),
            plan: None,
            process: Some(lab.process),
            asked: RunRequest::Run,
        })
    }

    fn pause(&mut self, results: &Path) -> Result<(), RunError> {
        let mut record = self.running(results)?;
        match record.asked {
            RunRequest::Paused | RunRequest::Cancelled => return Err(RunError::Ending),
            RunRequest::Pause(_) => return Ok(()),
            RunRequest::Run => {}
        }
        let mut pause = Pause::new(results);
        record.asked = RunRequest::Pause(pause.finished(&self.records));
        self.records.keep(&record)?;
        info!("the run into {} pauses after its trial", results.display());
        self.pauses.push(pause);
        Ok(())
    }

    fn proceed(&mut self, results: &Path) -> Result<(), RunError> {
        let mut record = self.running(results)?;
        match record.asked {
            RunRequest::Paused | RunRequest::Cancelled => return Err(RunError::Ending),
            RunRequest::Run => return Ok(()),
            RunRequest::Pause(_) => {}
        }
        info!("the run into {} goes on without a pause", results.display());
        self.pauses.retain(|other| other.results != results);
        record.asked = RunRequest::Run;
        Ok(self.records.keep(&record)?)
    }

    fn cancel(&mut self, results: &Path) -> Result<(), RunError> {
        let record = self.running(results)?;
        // A second signal would end it without restoring the host.
        if matches!(record.asked, RunRequest::Paused | RunRequest::Cancelled) {
            return Err(RunError::Ending);
        }
        self.pauses.retain(|other| other.results != results);
        self.end(&record, RunRequest::Cancelled)
    }

    /// Sends the signal to end to a run. Where the signal cannot be sent, its record stays as it was.
    fn end(&self, record: &Record, asked: RunRequest) -> Result<(), RunError> {
        let process = record.process.ok_or(RunError::NoProcess)?;
        self.records.keep(&Record {
            asked,
            ..record.clone()
        })?;
        info!("process {} is asked to end: {asked:?}", process.id);
        process.interrupt().map_err(|cause| RunError::Signal {
            process: process.id,
            cause,
            after: self
                .records
                .keep(record)
                .err()
                .map(|error| Box::new(error.into())),
        })
    }

    /// Ends the runs that are to pause and have finished a trial since the request.
    fn end_paused(&mut self) {
        for mut pause in std::mem::take(&mut self.pauses) {
            let record = self.records.of_results(&pause.results);
            let Some(record) = record.filter(Record::is_alive) else {
                continue;
            };
            let RunRequest::Pause(before) = record.asked else {
                continue;
            };
            let is_due = pause.finished(&self.records) != before;
            let is_asked = is_due
                && self
                    .end(&record, RunRequest::Paused)
                    .inspect_err(|error| warn!("{error}"))
                    .is_ok();
            // A run that has ended needs no signal. For any other the signal is sent again later.
            if !is_asked && record.is_alive() {
                self.pauses.push(pause);
            }
        }
    }
}

/// Logs the end of a run that this page started.
fn log_end(process: u32, results: &str, ended: io::Result<ExitStatus>) {
    match ended {
        Ok(status) if status.success() => {
            info!("process {process} has ended the run into {results}");
        }
        // A run that was asked to end has such a status, too.
        Ok(status) => warn!("process {process} has left the run into {results}: {status}"),
        Err(cause) => warn!("the end of process {process} is not known: {cause}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Process;
    use std::os::unix::fs::MetadataExt;

    fn worker(state: &Path) -> Worker {
        Worker::new(Starter {
            program: PathBuf::from("true"),
            state: state.to_owned(),
        })
    }

    fn record(place: &str, process: Option<Process>) -> Record {
        Record {
            results: PathBuf::from("/results/one"),
            place: place.to_owned(),
            quick: false,
            testbed: Testbed::default(),
            started: String::new(),
            plan: None,
            process,
            asked: RunRequest::Run,
        }
    }

    #[test]
    fn a_run_that_cannot_be_signalled_keeps_its_record() {
        let state = tempfile::tempdir().unwrap();
        let worker = worker(state.path());
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let record = record("local", Process::from_id(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        worker.records.keep(&record).unwrap();
        assert!(worker.end(&record, RunRequest::Cancelled).is_err());
        let kept = worker.records.of_results(&record.results).unwrap();
        assert_eq!(kept.asked, RunRequest::Run);
    }

    #[test]
    fn the_log_has_the_status_with_which_a_run_ended() {
        use std::os::unix::process::ExitStatusExt;
        let logged = vtax_log::testing::logged(|| {
            log_end(7, "/results/one", Ok(ExitStatus::from_raw(0)));
            log_end(8, "/results/two", Ok(ExitStatus::from_raw(1 << 8)));
        });
        let of = "vtax_web::run_manager: process";
        let expected = format!(
            "<6>{of} 7 has ended the run into /results/one\n<4>{of} 8 has left the run into /results/two: exit status: 1\n"
        );
        assert_eq!(logged, expected);
    }

    #[test]
    fn a_long_trial_is_read_seldom_while_it_is_to_pause() {
        let mut pause = Pause::new(Path::new("/results/one"));
        assert_eq!(pause.poll(), MIN_POLL);
        pause.since -= Duration::from_secs(10);
        assert!((Duration::from_secs(1)..MAX_POLL).contains(&pause.poll()));
        pause.since -= Duration::from_secs(600);
        assert_eq!(pause.poll(), MAX_POLL);
    }

    #[test]
    fn a_run_on_a_testbed_is_a_run_of_this_host() {
        let state = tempfile::tempdir().unwrap();
        let worker = worker(state.path());
        let own = Process::from_id(std::process::id());
        for (place, is_here) in [("ssh:other", false), ("testbed:kvm", true), ("local", true)] {
            let record = record(place, own);
            worker.records.keep(&record).unwrap();
            let here = worker.running_here();
            assert_eq!(here, is_here.then_some(record.results), "{place}");
        }
    }

    #[test]
    fn the_events_of_a_run_that_goes_on_are_never_in_the_file_of_before() {
        let state = tempfile::tempdir().unwrap();
        let worker = worker(state.path());
        let text = include_str!("../../../../plans/every-workload.toml");
        let plan = crate::plans::check(text, true, &Place::Local).unwrap();
        let start = Start {
            results: state.path().join("results"),
            text: text.to_owned(),
            plan,
            place: Place::Local,
            quick: true,
            testbed: Testbed::default(),
        };
        let number = |name| fs::metadata(state.path().join(name)).unwrap().ino();
        worker
            .begin(&start, &Dir::open(state.path()).unwrap())
            .unwrap();
        let before = number("events");
        worker
            .begin(&start, &Dir::open(state.path()).unwrap())
            .unwrap();
        assert_eq!(number("events.before"), before, "it stays, with its number");
        assert_ne!(number("events"), before);
    }
}
