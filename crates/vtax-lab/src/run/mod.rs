//! The run loop: a plan and a results directory in, finished trials out. Killed at any moment it
//! loses at most the trial in flight, and running the same plan on the same directory goes on.

mod directory;
mod instruments;
mod measure;
mod programs;
mod progress;
mod restore;
mod stop;
mod trial;

pub use progress::{Event, Progress};
pub use restore::{Restored, restore};

use crate::LabError;
use crate::plan::{Catalogue, Plan, PlannedTreatment, Shard, treatments};
pub use directory::NewRun;
use progress::Estimate;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use vtax_guest::image;
use vtax_guest::platform::xen;
use vtax_host::HostError;
use vtax_host::cell::requirements;
use vtax_host::host_settings;
use vtax_host::journal::Journal;
use vtax_host::lock::Lock;
use vtax_host::meters::Meters;
use vtax_host::roots::Roots;
use vtax_host::signals::Signals;
use vtax_report::results::{ResultsDir, Trial, TrialOutcome};
use vtax_units::{Source, counted};

/// Consecutive failures of one treatment after which the cause is taken to be systematic.
const FAILURES_TO_GIVE_UP: u32 = 2;

/// How to run a plan.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// The results directory; created, or resumed where it holds an unfinished run of this plan.
    pub results: PathBuf,
    /// Run only these blocks.
    pub shard: Option<Shard>,
    /// Where the journal and the lock are.
    pub state_dir: PathBuf,
    /// What `place` says in the results.
    pub place: String,
    /// `Emulated` where this host is an emulated one: no number can then be better than that.
    pub host: Source,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunSummary {
    /// Trials run now.
    pub ran: usize,
    /// Trials that were already there.
    pub already: usize,
    /// Trials that failed, now or earlier, and were not made good.
    pub failed: usize,
    /// Why it ended before the last block, if it did.
    pub stopped_early: Option<String>,
}

/// Runs a plan. Call it on a thread that lives as long as the run, such as the main thread: the
/// cells die with the thread that made them.
///
/// # Errors
/// When the plan cannot run on this host, another lab runs, the directory holds something else,
/// the same treatment keeps failing, or the user interrupts. Finished trials stay.
pub fn run(
    plan: &Plan,
    plan_text: &str,
    catalogue: &Catalogue,
    options: &RunOptions,
    signals: &Signals,
    progress: &mut dyn Progress,
) -> Result<RunSummary, LabError> {
    let _lock = Lock::acquire(
        &options.state_dir,
        &format!(
            "running plan {} into {}",
            plan.name,
            options.results.display()
        ),
    )?;
    let mut journal = Journal::open(&options.state_dir, xen::end)?;
    recover(&mut journal, progress)?;

    let roots = Roots::host();
    let treatments = treatments(plan, catalogue);
    check(&treatments, catalogue, &roots)?;
    let guest = image::ensure(&image::Recipe::standard(), &mut |line: &str| {
        progress.event(Event::Note {
            message: line.to_owned(),
        });
    })?;
    programs::check_image(&treatments, catalogue, &guest.root)?;
    signals.check()?;
    let cache_dir = image::cache_dir()?;
    let new = NewRun {
        plan_text,
        name: &plan.name,
        description: &plan.description,
        is_quick: plan.is_quick,
        place: &options.place,
        seed: plan.seed,
        repetitions: plan.repetitions,
        order: plan.order,
        minimum_effect: plan.minimum_effect,
    };
    let results = new.open(&options.results, &roots, || {
        treatments
            .iter()
            .map(|planned| planned.record.clone())
            .collect()
    })?;
    let meters = Meters::choose(&plan.meters, &roots, &mut |message| {
        progress.event(Event::Note { message });
    })?;
    let retried = set_failed_aside(&results)?;
    if retried > 0 {
        progress.event(Event::Note {
            message: format!(
                "run again, since earlier failed: {}",
                counted(retried, "trial")
            ),
        });
    }

    let runner = Runner {
        bench: trial::Bench {
            plan,
            catalogue,
            guest: &guest,
            roots: &roots,
            meters: &meters,
            signals,
            cache_dir: &cache_dir,
            host: options.host,
        },
        treatments: &treatments,
        results: &results,
        shard: options.shard,
    };
    runner.run(&mut journal, progress)
}

/// Undoes what an earlier process left behind.
fn recover(journal: &mut Journal, progress: &mut dyn Progress) -> Result<(), LabError> {
    let undone = journal.undo_all().map_err(|cause| {
        LabError::other(format!(
            "an earlier run was cut off and not everything could be restored: {cause}; mend it by hand, then run `vtax restore --forget`"
        ))
    })?;
    if undone > 0 {
        let message = format!(
            "an earlier run was cut off; undone on the host: {}",
            counted(undone, "change")
        );
        progress.event(Event::Note { message });
    }
    Ok(())
}

/// Whether this host can run every treatment: all that is missing, in one message.
fn check(
    treatments: &[PlannedTreatment],
    catalogue: &Catalogue,
    roots: &Roots,
) -> Result<(), LabError> {
    let is_installed = |name: &str| requirements::find_program(name).is_some();
    let mut missing = programs::missing_on_host(treatments, catalogue, &is_installed);
    for planned in treatments {
        if let Some(platform) = catalogue.platform(&planned.record.platform_kind)
            && let Err(cause) = platform.check(&planned.settings)
        {
            missing.insert(format!("{}: {cause}", planned.record.platform));
        }
        if let Err(cause) = host_settings::check(&planned.settings, &roots.sys) {
            missing.insert(cause.to_string());
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let list: Vec<String> = missing.into_iter().collect();
    Err(LabError::Plan(format!(
        "this host cannot run the plan:\n  {}\n`vtax doctor` shows what it can",
        list.join("\n  ")
    )))
}

/// Moves the records of failed trials aside, where they stay as evidence, so that they run again.
fn set_failed_aside(results: &ResultsDir) -> Result<usize, LabError> {
    let mut moved = 0;
    for trial in results.trials().filter_map(Result::ok) {
        if let TrialOutcome::Failed(_) = trial.outcome {
            let from = results.trial_path(trial.index);
            let to = (1u32..)
                .map(|attempt| from.with_extension(format!("failed-{attempt}")))
                .find(|candidate| !candidate.exists());
            if let Some(to) = to {
                std::fs::rename(&from, &to).map_err(HostError::file("move", &from))?;
                moved += 1;
            }
        }
    }
    Ok(moved)
}

struct Runner<'a> {
    bench: trial::Bench<'a>,
    treatments: &'a [PlannedTreatment],
    results: &'a ResultsDir,
    shard: Option<Shard>,
}

impl Runner<'_> {
    fn run(
        &self,
        journal: &mut Journal,
        progress: &mut dyn Progress,
    ) -> Result<RunSummary, LabError> {
        let began = Instant::now();
        let plan = self.bench.plan;
        let scheduled = &self.results.run().schedule;
        let ours = |block: u32| self.shard.is_none_or(|shard| shard.holds(block));
        let entry = |index: u32| scheduled.get(index as usize);
        let pending: Vec<u32> = self
            .results
            .pending()
            .into_iter()
            .filter(|index| entry(*index).is_some_and(|s| ours(s.block)))
            .collect();
        let in_all = scheduled.iter().filter(|entry| ours(entry.block)).count();
        let already = in_all - pending.len();
        let expected = |treatment: usize| self.expected(treatment);
        let treatment_of = |index: u32| entry(index).map_or(0, |scheduled| scheduled.treatment);
        let mut estimate = Estimate::default();
        progress.event(Event::Started {
            plan: plan.name.clone(),
            results: self.results.path().display().to_string(),
            trials: pending.len(),
            finished: already,
            expected_seconds: estimate
                .remaining(pending.iter().map(|index| treatment_of(*index)), &expected)
                .as_secs_f64(),
        });

        let mut summary = RunSummary {
            ran: 0,
            already,
            failed: 0,
            stopped_early: None,
        };
        let mut failures: BTreeMap<usize, u32> = BTreeMap::new();
        let mut last_block = None;
        for (position, index) in pending.iter().enumerate() {
            let Some(scheduled) = entry(*index) else {
                continue;
            };
            let Some(treatment) = self.treatments.get(scheduled.treatment) else {
                continue;
            };
            if last_block != Some(scheduled.block) {
                last_block = Some(scheduled.block);
                if let Some(reason) =
                    stop::satisfied(plan, self.results, scheduled.block, began.elapsed())
                {
                    summary.stopped_early = Some(reason);
                    break;
                }
            }
            self.bench.signals.check()?;
            progress.event(Event::TrialStarted {
                index: *index,
                treatment: treatment.record.label.clone(),
            });
            let clock = Instant::now();
            let assignment = trial::Assignment {
                treatment,
                index: *index,
                block: scheduled.block,
            };
            let writer = self.results.trial_writer(*index)?;
            let trial = trial::run(&self.bench, &assignment, journal, writer, progress)?;
            let took = clock.elapsed();
            estimate.saw(scheduled.treatment, took);
            summary.ran += 1;
            let failed = match &trial.outcome {
                TrialOutcome::Complete => None,
                TrialOutcome::Failed(reason) => Some(reason.clone()),
            };
            let rest = pending
                .iter()
                .skip(position + 1)
                .map(|index| treatment_of(*index));
            progress.event(Event::TrialFinished {
                index: *index,
                treatment: treatment.record.label.clone(),
                seconds: took.as_secs_f64(),
                done: position + 1,
                of: pending.len(),
                remaining_seconds: estimate.remaining(rest, &expected).as_secs_f64(),
                headline: headline(&trial),
                suspect: trial.suspect.clone(),
                failed: failed.clone(),
            });
            match failed {
                None => {
                    failures.remove(&scheduled.treatment);
                }
                Some(reason) => {
                    summary.failed += 1;
                    let count = failures.entry(scheduled.treatment).or_default();
                    *count += 1;
                    if *count >= FAILURES_TO_GIVE_UP {
                        return Err(LabError::other(format!(
                            "{} failed {count} times in a row, so the run stops: {reason}\nfinished trials are kept in {}; mend the cause and run the same command again",
                            treatment.record.label,
                            self.results.path().display()
                        )));
                    }
                }
            }
        }
        Ok(summary)
    }

    fn expected(&self, treatment: usize) -> Duration {
        let overhead = self
            .treatments
            .get(treatment)
            .and_then(|planned| self.bench.catalogue.platform(&planned.record.platform_kind))
            .map_or(Duration::ZERO, |platform| platform.expected_overhead());
        overhead + self.bench.plan.warmup + self.bench.plan.duration
    }
}

/// A trial's leading numbers, for one line of progress.
fn headline(trial: &Trial) -> String {
    let mut parts: Vec<String> = trial
        .metrics
        .values()
        .filter(|metric| metric.headline)
        .map(|metric| format!("{} {}", metric.title, metric.quantity))
        .collect();
    parts.truncate(3);
    parts.join(", ")
}

/// The state directory of this user: where the journal and the lock are.
pub fn default_state_dir() -> PathBuf {
    if let Some(directory) = std::env::var_os("VTAX_STATE_DIR") {
        return PathBuf::from(directory);
    }
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/lib/vtax");
    }
    std::env::var_os("HOME").map_or_else(
        || PathBuf::from("/tmp/vtax-state"),
        |home| Path::new(&home).join(".local/state/vtax"),
    )
}
