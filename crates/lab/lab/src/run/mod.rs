// SPDX-License-Identifier: Apache-2.0
//! The run loop, which performs the trials of an experiment into a results directory. A kill loses at most the
//! trials in progress; the same plan on the same directory resumes the run.
//!
//! There is one loop for every kind of trial. An [`Experiment`] defines the trial: the scenarios of a plan
//! ([`run`]), or an experiment of another crate.

mod busy;
mod canary;
mod directory;
mod planned;
mod progress;
mod queue;
mod restore;
mod scenario;
mod state;
mod stop;
#[cfg(test)]
mod tests;
mod trial;

pub use directory::NewRun;
pub use planned::{PlanTrials, Planned};
pub use progress::{Event, FinishedTrial, LiveSample, Progress, SampledLevel};
pub use restore::{RestoredChange, restore};
pub use scenario::{
    DryRun, DryTreatment, DryTrial, SeenGuest, busy_mhz, dry_run, run, why_not_traced,
};
pub use state::{MAX_LEVELS, MAX_SAMPLES, RunState, RunningTrial, StartedTrial};
pub use trial::Log;

use crate::LabError;
use crate::plan::Shard;
use canary::Canary;
use progress::Estimate;
use queue::Queue;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{debug, error, info, warn};
use vtax_core::{Source, counted};
use vtax_host::journal::Journal;
use vtax_host::lock::Lock;
use vtax_host::roots::Roots;
use vtax_host::signals::Signals;
use vtax_host::untrusted::first_line;
use vtax_host::{HostError, rootless};
use vtax_observe::Instrument;
use vtax_results::limit::Until;
use vtax_results::{ResultsDir, Treatment, Trial, TrialOutcome, TrialWriter};

/// Consecutive failures of one treatment after which the cause is taken to be systematic.
const FAILURES_TO_GIVE_UP: u32 = 2;
/// The longest wait for other programs to become quiet before a trial.
const QUIET_WAIT: Duration = Duration::from_secs(30);
/// The longest sum of such waits in a run.
const QUIET_WAIT_OF_RUN: Duration = Duration::from_secs(90);

/// The interval between two attempts to take the host's lock.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// The options of a run.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// The results directory; created, or resumed where it holds an unfinished run of this plan.
    pub results: PathBuf,
    /// The blocks to run; unset: all.
    pub shard: Option<Shard>,
    /// Whether to wait while another run is on this host. Otherwise the run ends with an error.
    pub waits: bool,
    /// The directory of the journal and the lock.
    pub state_dir: PathBuf,
    /// The place, as the results record it.
    pub place: String,
    /// `Simulated` when this host is an emulated one: no number of it has a better flag.
    pub host: Source,
    /// Instruments of an emulated host that its emulator supplies.
    pub own: Option<Arc<dyn OwnInstruments>>,
    /// What looks at a run that ends when it knows enough.
    pub knows: Option<Arc<dyn Knows>>,
    /// Blocks to add after the planned ones.
    pub more: u32,
}

/// What a run knows after a look at its results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Whether it is enough to end the run.
    pub is_enough: bool,
    /// The ratios with their intervals, in words.
    pub in_words: String,
}

/// Looks at the results of a run, as its report will show them.
pub trait Knows: Debug + Send + Sync {
    /// Looks at the trials that have ended.
    fn look(&self, results: &ResultsDir, until: &Until) -> Known;
}

/// Instruments that a host has in addition to those of every host.
pub trait OwnInstruments: Debug + Send + Sync {
    /// Opens the instruments for a trial.
    fn open(&self) -> Vec<Box<dyn Instrument>>;
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunSummary {
    /// The number of trials that this call ran.
    pub ran: usize,
    /// The number of trials that were finished before.
    pub already: usize,
    /// The number of trials that failed, in this call or earlier, and have no later success.
    pub failed: usize,
    /// The reason why it ended before the last block, if it did.
    pub stopped_early: Option<String>,
}

impl fmt::Display for RunSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ran, {} were finished, {} failed",
            counted(self.ran, "trial"),
            self.already,
            self.failed
        )?;
        match &self.stopped_early {
            Some(reason) => write!(f, "; it stopped before the last block: {reason}"),
            None => Ok(()),
        }
    }
}

/// The position of a trial in its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assignment {
    /// Index of its treatment.
    pub treatment: usize,
    /// Its position in the schedule.
    pub index: u32,
    /// The block it belongs to.
    pub block: u32,
}

/// A kind of trial that a run repeats.
pub trait Experiment {
    /// Returns the run as results record it, without its treatments.
    fn new_run(&self) -> NewRun<'_>;

    /// Returns the treatments, in the order of tables.
    fn treatments(&self) -> Vec<Treatment>;

    /// Returns the largest share of all trials that may run again because they do not count.
    fn again(&self) -> f64;

    /// Prepares the resources that all trials share, before the results directory is created.
    ///
    /// # Errors
    /// When this host cannot run the experiment: all missing requirements, in one message.
    fn prepare(&mut self, note: &mut dyn FnMut(String)) -> Result<(), LabError>;

    /// Returns a rough estimate of the time of one trial.
    fn expected(&self, treatment: usize) -> Duration;

    /// Performs one trial. After a success or a failure, `journal` holds the changes to the host, and `trial` the
    /// record so far. An experiment that takes the trial of another process takes its start and its times, too.
    ///
    /// # Errors
    /// When the trial failed. A failed trial has a record as well.
    fn perform(
        &mut self,
        assignment: Assignment,
        journal: &mut Journal,
        writer: &TrialWriter,
        log: &mut Log<'_>,
        trial: &mut Trial,
    ) -> Result<(), LabError>;

    /// Returns the number of trials that may be in progress at once.
    fn jobs(&self) -> usize {
        1
    }

    /// Selects the next trial to perform among those in progress. Where several may be in progress, this starts
    /// their background work and waits for the first that is ready.
    ///
    /// # Errors
    /// When the run cannot continue, or is interrupted.
    fn next(&mut self, _under_way: &[Assignment]) -> Result<usize, LabError> {
        Ok(0)
    }

    /// Whether the canary runs beside its trials.
    fn has_canary(&self) -> bool {
        false
    }

    /// Returns the reason to end the run before `next_block`, if there is one.
    fn satisfied(
        &self,
        _results: &ResultsDir,
        _next_block: u32,
        _elapsed: Duration,
        _progress: &mut dyn Progress,
    ) -> Option<String> {
        None
    }
}

/// Runs an experiment. Call it on a thread that lives as long as the run, such as the main thread,
/// because a cell ends with the thread that created it.
///
/// # Errors
/// When the experiment cannot run on this host, another run is under way, the directory does not belong to this run,
/// the same treatment fails repeatedly, or the user interrupts. Finished trials remain.
pub fn run_experiment(
    experiment: &mut dyn Experiment,
    options: &RunOptions,
    signals: &Signals,
    progress: &mut dyn Progress,
) -> Result<(ResultsDir, RunSummary), LabError> {
    let name = experiment.new_run().name.to_owned();
    let ready = Ready::new(&name, experiment, options, signals, progress).inspect_err(|cause| {
        if !cause.is_interrupt() {
            warn!("the run of {name} is refused: {cause}");
        }
    });
    let Ready {
        _lock,
        mut journal,
        roots,
        results,
    } = ready?;
    let mut queue = Queue::from_results(&results, options.shard.as_ref(), experiment.again());
    info!(
        "the run of {name} begins at {} into {}: {} to run, {} finished",
        options.place,
        results.path().display(),
        counted(queue.len(), "trial"),
        queue.already()
    );
    let runner = Runner {
        results: &results,
        roots: (options.host != Source::Simulated).then_some(&roots),
        signals,
        quiet_wait: Cell::new(QUIET_WAIT_OF_RUN),
    };
    let ended = runner.run(&name, experiment, &mut queue, &mut journal, progress);
    match &ended {
        Ok(summary) => info!("the run of {name} has ended: {summary}"),
        Err(cause) if cause.is_interrupt() => info!("the run of {name} is interrupted"),
        Err(cause) => error!("the run of {name} ends early: {cause}"),
    }
    Ok((results, ended?))
}

/// What a run has before its first trial.
struct Ready {
    _lock: Lock,
    journal: Journal,
    roots: Roots,
    results: ResultsDir,
}

impl Ready {
    fn new(
        name: &str,
        experiment: &mut dyn Experiment,
        options: &RunOptions,
        signals: &Signals,
        progress: &mut dyn Progress,
    ) -> Result<Self, LabError> {
        let lock = lock(name, options, signals, progress)?;
        let mut journal = Journal::open(&options.state_dir)?;
        recover(&mut journal, progress)?;
        let roots = Roots::host();
        let mut note = |message: String| progress.event(Event::Note { message });
        // An emulated host has no other programs, and a wait would change results that repeat exactly.
        if options.host != Source::Simulated
            && let Some(disturbance) = busy::wait(&roots, Duration::ZERO, signals)?
        {
            info!("{disturbance}");
            note(disturbance);
        }
        experiment.prepare(&mut note)?;
        signals.check()?;
        let new = experiment.new_run();
        let mut results = new.open(&options.results, &roots, experiment.treatments())?;
        if options.more > 0 {
            results.extend(&new.after(&results, options.more)?)?;
        }
        Ok(Self {
            _lock: lock,
            journal,
            roots,
            results,
        })
    }
}

/// Takes this host's lock, and waits for it when the options ask for it.
fn lock(
    name: &str,
    options: &RunOptions,
    signals: &Signals,
    progress: &mut dyn Progress,
) -> Result<Lock, LabError> {
    let purpose = format!("running plan {name} into {}", options.results.display());
    let mut is_reported = false;
    loop {
        signals.check()?;
        match Lock::acquire(&options.state_dir, &purpose) {
            Err(HostError::Busy { what, .. }) if options.waits => {
                if !is_reported {
                    let message = format!("{what}: waiting for it to end");
                    info!("the run of {name} waits: {what}");
                    progress.event(Event::Note { message });
                    is_reported = true;
                }
                std::thread::sleep(LOCK_RETRY_INTERVAL);
            }
            other => return Ok(other?),
        }
    }
}

/// Undoes the changes that an earlier process left on the host.
fn recover(journal: &mut Journal, progress: &mut dyn Progress) -> Result<(), LabError> {
    let undone = journal.undo_all().map_err(|cause| {
        LabError::other(format!(
            "an earlier run was cut off and not everything could be restored: {cause}; restore it by hand, then run `vtax restore --forget`"
        ))
    })?;
    let left = journal.take_left();
    let undone = undone - left.len();
    for left in left {
        let message = left.to_string();
        progress.event(Event::Note { message });
    }
    if undone > 0 {
        let message = format!(
            "an earlier run was cut off; undone on the host: {}",
            counted(undone, "change")
        );
        progress.event(Event::Note { message });
    }
    Ok(())
}

struct Runner<'a> {
    results: &'a ResultsDir,
    /// The file systems in which other programs are found; `None`: the host has no other programs.
    roots: Option<&'a Roots>,
    signals: &'a Signals,
    /// The remaining time to wait for other programs.
    quiet_wait: Cell<Duration>,
}

impl Runner<'_> {
    fn run(
        &self,
        name: &str,
        experiment: &mut dyn Experiment,
        queue: &mut Queue,
        journal: &mut Journal,
        progress: &mut dyn Progress,
    ) -> Result<RunSummary, LabError> {
        let began = Instant::now();
        let treatments = self.results.run().treatments.iter();
        let mut estimate = Estimate::new(treatments.map(|one| one.platform.clone()).collect());
        let rest = |queue: &Queue, estimate: &Estimate, experiment: &dyn Experiment| {
            let expected = |treatment| experiment.expected(treatment);
            let rest = estimate.remaining(queue.treatments(), &expected);
            rest.as_secs_f64() / experiment.jobs().max(1) as f64
        };
        progress.event(Event::Started {
            plan: name.to_owned(),
            results: self.results.path().display().to_string(),
            trials: queue.len(),
            finished: queue.already(),
            expected_seconds: rest(queue, &estimate, experiment),
        });
        let mut summary = RunSummary {
            ran: 0,
            already: queue.already(),
            failed: 0,
            stopped_early: None,
        };
        let trials = queue.len();
        let mut failures: BTreeMap<usize, u32> = BTreeMap::new();
        let mut last_block = None;
        let mut under_way: Vec<Assignment> = Vec::new();
        let mut began_at: BTreeMap<u32, Instant> = BTreeMap::new();
        let mut canary = Canary::new(experiment.has_canary() && experiment.jobs() <= 1);
        loop {
            while summary.stopped_early.is_none() && under_way.len() < experiment.jobs().max(1) {
                let Some(assignment) = queue.next() else {
                    break;
                };
                if last_block != Some(assignment.block) {
                    last_block = Some(assignment.block);
                    let elapsed = began.elapsed();
                    summary.stopped_early =
                        experiment.satisfied(self.results, assignment.block, elapsed, progress);
                }
                if summary.stopped_early.is_none() {
                    self.begin(assignment, queue, progress)?;
                    began_at.insert(assignment.index, Instant::now());
                    under_way.push(assignment);
                }
            }
            if under_way.is_empty() {
                break;
            }
            self.signals.check()?;
            let next = experiment.next(&under_way)?;
            let assignment = under_way.remove(next.min(under_way.len() - 1));
            let Some(treatment) = self.results.run().treatments.get(assignment.treatment) else {
                continue;
            };
            let writer = self.results.trial_writer(assignment.index)?;
            let events = self.roots.is_some().then(|| writer.events()).transpose()?;
            let watchers = trial::Watchers { events, progress };
            let beside = (&mut *journal, &mut canary);
            let trial = trial::run(experiment, assignment, treatment, beside, writer, watchers)?;
            let clock = began_at.remove(&assignment.index);
            let took = clock.map_or(Duration::ZERO, |clock| clock.elapsed());
            let expected = experiment.expected(assignment.treatment);
            estimate.saw(assignment.treatment, took, expected);
            summary.ran += 1;
            log_end(&trial, took);
            let failed = match &trial.outcome {
                TrialOutcome::Complete => None,
                TrialOutcome::Failed(reason) => Some(reason.clone()),
            };
            queue.judge(assignment, &trial);
            progress.event(Event::TrialFinished(FinishedTrial {
                index: assignment.index,
                treatment: treatment.label.clone(),
                seconds: took.as_secs_f64(),
                // A trial that runs again is not finished.
                done: trials.saturating_sub(under_way.len() + queue.len()),
                of: trials,
                remaining_seconds: rest(queue, &estimate, experiment),
                headline: headline(&trial),
                suspect: trial.suspect.clone(),
                disturbed: trial.disturbed.clone(),
                failed: failed.clone(),
            }));
            match failed {
                None => {
                    failures.remove(&assignment.treatment);
                }
                Some(reason) => {
                    let count = failures.entry(assignment.treatment).or_default();
                    *count += 1;
                    if *count >= FAILURES_TO_GIVE_UP {
                        return Err(LabError::other(format!(
                            "{} failed {count} times in a row, so the run stops: {reason}\nfinished trials are kept in {}; remove the cause and run the same command again",
                            treatment.label,
                            self.results.path().display()
                        )));
                    }
                }
            }
        }
        let trials = self.results.trials().filter_map(Result::ok);
        summary.failed = trials
            .filter(|trial| trial.outcome != TrialOutcome::Complete)
            .count();
        Ok(summary)
    }

    /// Waits until other programs are quiet. Returns the disturbance as text, if there was one.
    fn wait(&self, roots: &Roots) -> Result<Option<String>, LabError> {
        let began = Instant::now();
        let disturbance = busy::wait(roots, QUIET_WAIT.min(self.quiet_wait.get()), self.signals)?;
        let left = self.quiet_wait.get().saturating_sub(began.elapsed());
        self.quiet_wait.set(left);
        Ok(disturbance)
    }

    /// Reports that a trial begins, and sets aside its earlier record.
    fn begin(
        &self,
        assignment: Assignment,
        queue: &mut Queue,
        progress: &mut dyn Progress,
    ) -> Result<(), LabError> {
        if let Some(reason) = queue.set_aside(self.results, assignment.index)? {
            let mut message = format!("trial {:04} runs again: {reason}", assignment.index);
            if let Some(roots) = self.roots
                && let Some(disturbance) = self.wait(roots)?
            {
                message = format!("{message}; {disturbance}");
            }
            info!("{message}");
            progress.event(Event::Note { message });
        }
        if let Some(treatment) = self.results.run().treatments.get(assignment.treatment) {
            let Assignment { index, block, .. } = assignment;
            debug!(
                "trial {index:04} of block {block} begins: {}",
                treatment.label
            );
            progress.event(Event::TrialStarted {
                index: assignment.index,
                treatment: treatment.label.clone(),
            });
        }
        Ok(())
    }
}

fn log_end(trial: &Trial, took: Duration) {
    let label = &trial.treatment.label;
    let what = format!("trial {:04}, {label},", trial.index);
    match &trial.outcome {
        // The trial's own log has what the guests printed.
        TrialOutcome::Failed(reason) => warn!("{what} failed: {}", first_line(reason)),
        TrialOutcome::Complete if !trial.suspect.is_empty() => {
            info!("{what} is suspect: {}", trial.suspect.join("; "));
        }
        TrialOutcome::Complete => debug!("{what} has ended after {:.1} s", took.as_secs_f64()),
    }
}

fn headline(trial: &Trial) -> String {
    let mut parts: Vec<String> = trial
        .metrics
        .values()
        .filter(|metric| metric.headline)
        .map(|metric| format!("{} {}", metric.title, metric.quantity))
        .collect();
    parts.truncate(3);
    if let Some(first) = trial.disturbed.first() {
        parts.push(format!("disturbed: {first}"));
    }
    parts.join(", ")
}

/// Returns the state directory of this user, which holds the journal and the lock.
pub fn default_state_dir() -> PathBuf {
    if let Some(directory) = std::env::var_os("VTAX_STATE_DIR") {
        return PathBuf::from(directory);
    }
    if rootless::is_root() {
        return PathBuf::from("/var/lib/vtax");
    }
    if let Some(directory) = std::env::var_os("XDG_STATE_HOME").filter(|text| !text.is_empty()) {
        return Path::new(&directory).join("vtax");
    }
    std::env::var_os("HOME").map_or_else(
        // `vtax_files::Dir::private` refuses a directory of another user.
        || {
            PathBuf::from(format!(
                "/tmp/vtax-state-{}",
                rootless::user().unwrap_or_else(|| rustix::process::geteuid().as_raw())
            ))
        },
        |home| Path::new(&home).join(".local/state/vtax"),
    )
}
