//! The thread that sees which lab runs, starts runs and tells them to end. It keeps the rights that the thread which answers
//! the network gives up, and does nothing but what that one asks for in the words below.
//!
//! A run is a `vtax run` in a session of its own: the end of the page is none of its business, and a page
//! that comes later finds it by its record. A pause is the signal that a terminal's Ctrl-C sends, in the
//! moment when a trial is over; what a run has finished is kept, and the same command goes on with it.

use crate::events::{Ended, Listener};
use crate::lab::Lab;
use crate::plans::{Checked, Kind};
use crate::records::{Asked, Record, Records};
use crate::testbed::Testbed;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use vtax_files::Dir;
use vtax_lab::place::Place;

/// Between two looks at a run that is to be paused: a tenth of how long that is wanted already, within these
/// bounds. Who waits for the end of a long trial does not disturb it, and of a short one misses little.
const SOONEST: Duration = Duration::from_millis(100);
const LATEST: Duration = Duration::from_secs(2);
/// Between two looks where none is.
const REST: Duration = Duration::from_secs(60);

/// What runs are started with, and where what is kept of them is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Starter {
    /// The `vtax` program.
    pub program: PathBuf,
    /// The directory of vtax's state.
    pub state: PathBuf,
}

/// A run to start, or to go on with.
#[derive(Debug)]
pub struct Start {
    /// The results directory, as [`crate::lab::same`] names it.
    pub results: PathBuf,
    /// The plan as it is written.
    pub text: String,
    /// What it comes to.
    pub plan: Checked,
    /// Where it runs.
    pub place: Place,
    /// Whether durations are shrunk.
    pub quick: bool,
    /// Of a place that is one.
    pub testbed: Testbed,
}

/// What can be asked.
#[derive(Debug)]
pub enum Order {
    /// Start a run, or go on with one that ended.
    Start(Box<Start>),
    /// End this run when the trial under way is over.
    Pause(PathBuf),
    /// Do not end it then.
    Proceed(PathBuf),
    /// End it now: the trial under way is lost.
    Cancel(PathBuf),
}

#[derive(Debug)]
enum Message {
    Do(Order, Sender<Result<(), String>>),
    Lab(Sender<Option<Lab>>),
}

/// Where orders go. The thread ends with the last of these.
#[derive(Debug, Clone)]
pub struct Keeper {
    orders: Sender<Message>,
}

impl Keeper {
    /// Starts the thread.
    ///
    /// # Errors
    /// When there can be no further thread.
    pub fn start(starter: Starter) -> io::Result<Self> {
        let (orders, asked) = channel();
        std::thread::Builder::new()
            .name("runs".to_owned())
            .spawn(move || Worker::of(starter).work(&asked))?;
        Ok(Self { orders })
    }

    /// Gives an order and waits until it is carried out.
    ///
    /// # Errors
    /// Why it is not; in words, with what to do.
    pub fn order(&self, order: Order) -> Result<(), String> {
        let (answer, answered) = channel();
        let ended = "the thread that starts runs has ended: start vtax web again";
        self.orders
            .send(Message::Do(order, answer))
            .map_err(|_| ended.to_owned())?;
        answered.recv().map_err(|_| ended.to_owned())?
    }

    /// Which lab runs on this host: where a process works, only who has its rights can see.
    pub fn lab(&self) -> Option<Lab> {
        let (answer, answered) = channel();
        self.orders.send(Message::Lab(answer)).ok()?;
        answered.recv().ok()?
    }
}

struct Worker {
    starter: Starter,
    records: Records,
    /// Runs that are to end when a trial is over.
    pausing: Vec<Pausing>,
}

/// A run that is to end when a trial is over.
struct Pausing {
    results: PathBuf,
    since: Instant,
    ended: Listener<Ended>,
}

impl Pausing {
    fn of(results: &Path) -> Self {
        Self {
            results: results.to_owned(),
            since: Instant::now(),
            ended: Listener::default(),
        }
    }

    /// Until the next look.
    fn patience(&self) -> Duration {
        (self.since.elapsed() / 10).clamp(SOONEST, LATEST)
    }

    /// Trials that are over, as the run says and as its directory shows: whichever comes first counts.
    fn over(&mut self, records: &Records) -> usize {
        let shown = fs::read_dir(self.results.join("trials"))
            .into_iter()
            .flatten()
            .flatten();
        let shown = shown.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
        let events = File::open(records.folder_of(&self.results).join("events"));
        shown.count() + self.ended.listen(events).0
    }
}

impl Worker {
    fn of(starter: Starter) -> Self {
        let records = Records::within(&starter.state);
        // An earlier page may have been asked to.
        let pausing = records.all().into_iter();
        let pausing = pausing.filter(|record| matches!(record.asked, Asked::Pause(_)));
        Self {
            pausing: pausing.map(|record| Pausing::of(&record.results)).collect(),
            starter,
            records,
        }
    }

    fn work(mut self, asked: &Receiver<Message>) {
        loop {
            let patience = self.pausing.iter().map(Pausing::patience).min();
            match asked.recv_timeout(patience.unwrap_or(REST)) {
                Ok(Message::Lab(answer)) => {
                    let _ = answer.send(Lab::of(&self.starter.state));
                }
                Ok(Message::Do(order, answer)) => {
                    let done = match order {
                        Order::Start(start) => self.start(&start),
                        Order::Pause(results) => self.pause(&results),
                        Order::Proceed(results) => self.proceed(&results),
                        Order::Cancel(results) => self.cancel(&results),
                    };
                    // Who asked may have gone.
                    let _ = answer.send(done);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.look();
        }
    }

    fn start(&self, start: &Start) -> Result<(), String> {
        if !matches!(start.place, Place::Ssh(_))
            && let Some(other) = self.running_here()
        {
            return Err(format!(
                "a run goes on on this host already, into {}: two would measure each other; wait for it, or cancel it",
                other.display()
            ));
        }
        let known = self.records.of(&start.results);
        if known.is_some_and(|record| record.is_alive()) {
            return Err(format!(
                "this run goes on already, into {}",
                start.results.display()
            ));
        }
        if start.plan.kind == Kind::Density && start.place != Place::Local {
            return Err("climbs run on this host only: give `local` as the place".to_owned());
        }
        let mut record = Record {
            results: start.results.clone(),
            place: start.place.to_string(),
            quick: start.quick,
            testbed: start.testbed.clone(),
            started: jiff::Timestamp::now().to_string(),
            plan: Some(start.plan.clone()),
            process: None,
            asked: Asked::Run,
        };
        let folder = self
            .records
            .make(&start.results)
            .map_err(|error| kept(&error.into()))?;
        let began = self
            .begin(start, &folder)
            .map_err(|cause| format!("cannot start {}: {cause}", self.starter.program.display()))?;
        record.process = crate::process::Process::of(began);
        self.records.keep(&record).map_err(|cause| kept(&cause))
    }

    /// Where the run of this host goes. One on a testbed does not lock the directory of this state: its
    /// record tells.
    fn running_here(&self) -> Option<PathBuf> {
        let lab = Lab::of(&self.starter.state).map(|lab| lab.results);
        lab.or_else(|| {
            let mut all = self.records.all().into_iter();
            let here = |place: &str| place == "local" || place.starts_with("testbed:");
            all.find(|record| record.is_alive() && here(&record.place))
                .map(|record| record.results)
        })
    }

    /// Starts the program; its number.
    fn begin(&self, start: &Start, folder: &Dir) -> io::Result<u32> {
        let plan = folder.path().join("plan.toml");
        folder.write("plan.toml", start.text.as_bytes())?;
        let output = |name: &str| {
            // The old one stays: a removed one's number may be given to the new one, and who follows
            // the run would take it for the old.
            match folder.rename(name, format!("{name}.before")) {
                Err(error) if !error.is_not_found() => Err(error),
                _ => folder.new_file(name),
            }
        };
        let mut command = Command::new(&self.starter.program);
        match start.plan.kind {
            Kind::Run => command
                .arg("run")
                .arg(&plan)
                .arg("--at")
                .arg(start.place.to_string()),
            Kind::Density => command.arg("density").arg(&plan),
        };
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
        // A child that is over stays until its parent has looked.
        std::thread::Builder::new()
            .name("run".to_owned())
            .spawn(move || child.wait())?;
        Ok(number)
    }

    /// The record of a run that goes on, whoever started it.
    fn going(&self, results: &Path) -> Result<Record, String> {
        let known = self.records.of(results);
        if let Some(record) = known.clone().filter(Record::is_alive) {
            return Ok(record);
        }
        let lab = Lab::of(&self.starter.state).filter(|lab| lab.results == results);
        let lab = lab.ok_or_else(|| {
            "nobody runs this here now, as far as can be seen: end it where it was started"
                .to_owned()
        })?;
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
            asked: Asked::Run,
        })
    }

    fn pause(&mut self, results: &Path) -> Result<(), String> {
        let mut record = self.going(results)?;
        match record.asked {
            Asked::Paused | Asked::Cancelled => return Err(ENDING.to_owned()),
            Asked::Pause(_) => return Ok(()),
            Asked::Run => {}
        }
        let mut pausing = Pausing::of(results);
        record.asked = Asked::Pause(pausing.over(&self.records));
        self.records.keep(&record).map_err(|cause| kept(&cause))?;
        self.pausing.push(pausing);
        Ok(())
    }

    fn proceed(&mut self, results: &Path) -> Result<(), String> {
        let mut record = self.going(results)?;
        match record.asked {
            Asked::Paused | Asked::Cancelled => return Err(ENDING.to_owned()),
            Asked::Run => return Ok(()),
            Asked::Pause(_) => {}
        }
        self.pausing.retain(|other| other.results != results);
        record.asked = Asked::Run;
        self.records.keep(&record).map_err(|cause| kept(&cause))
    }

    fn cancel(&mut self, results: &Path) -> Result<(), String> {
        let record = self.going(results)?;
        // A second signal would end it without putting the host back.
        if matches!(record.asked, Asked::Paused | Asked::Cancelled) {
            return Err(ENDING.to_owned());
        }
        self.pausing.retain(|other| other.results != results);
        self.end(&record, Asked::Cancelled)
    }

    /// Tells a run to end. Where it cannot be told, its record stays what it was.
    fn end(&self, record: &Record, asked: Asked) -> Result<(), String> {
        let process = record.process.ok_or("its process is not known")?;
        let told = Record {
            asked,
            ..record.clone()
        };
        self.records.keep(&told).map_err(|cause| kept(&cause))?;
        process.interrupt().map_err(|cause| {
            let back = self.records.keep(record).err();
            let back = back.map_or_else(String::new, |cause| format!("; {}", kept(&cause)));
            format!("cannot tell process {} to end: {cause}{back}", process.id)
        })
    }

    /// Ends the runs that are to pause and have finished a trial since.
    fn look(&mut self) {
        for mut pausing in std::mem::take(&mut self.pausing) {
            let record = self.records.of(&pausing.results);
            let Some(record) = record.filter(Record::is_alive) else {
                continue;
            };
            let Asked::Pause(over) = record.asked else {
                continue;
            };
            let is_over = pausing.over(&self.records) != over;
            let is_told = is_over && self.end(&record, Asked::Paused).is_ok();
            // One that ended by itself needs no word; any other is told again.
            if !is_told && record.is_alive() {
                self.pausing.push(pausing);
            }
        }
    }
}

const ENDING: &str = "it was told to end and does so now: it puts the host back first";

fn kept(cause: &io::Error) -> String {
    format!(
        "cannot keep a record of this run: {cause}; the directory of vtax's state must be there and ours (VTAX_STATE_DIR)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Process;
    use std::os::unix::fs::MetadataExt;

    fn worker(state: &Path) -> Worker {
        Worker::of(Starter {
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
            asked: Asked::Run,
        }
    }

    #[test]
    fn a_run_that_cannot_be_told_to_end_is_not_said_to_end() {
        let state = tempfile::tempdir().unwrap();
        let worker = worker(state.path());
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let record = record("local", Process::of(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        worker.records.keep(&record).unwrap();
        assert!(worker.end(&record, Asked::Cancelled).is_err());
        let kept = worker.records.of(&record.results).unwrap();
        assert_eq!(kept.asked, Asked::Run);
    }

    #[test]
    fn who_waits_for_a_long_trial_looks_seldom() {
        let mut pausing = Pausing::of(Path::new("/results/one"));
        assert_eq!(pausing.patience(), SOONEST);
        pausing.since -= Duration::from_secs(10);
        assert!((Duration::from_secs(1)..LATEST).contains(&pausing.patience()));
        pausing.since -= Duration::from_secs(600);
        assert_eq!(pausing.patience(), LATEST);
    }

    #[test]
    fn a_run_on_a_testbed_is_a_run_of_this_host() {
        let state = tempfile::tempdir().unwrap();
        let worker = worker(state.path());
        let own = Process::of(std::process::id());
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
        let text = include_str!("../../../plans/every-workload.toml");
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
