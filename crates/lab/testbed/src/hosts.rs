// SPDX-License-Identifier: Apache-2.0
//! The trials of a plan, each in an emulated host of its own, all from the same snapshot. The numbers of a trial depend
//! only on its treatment and the seed, not on other trials of the plan or their order.

use crate::cost::{self, CostModel};
use crate::emulator::REMEDY;
use crate::host::Host;
use crate::job::{Job, JobOutcome, JobSpec, POLL};
use crate::link::Link;
use crate::payload::Payload;
use crate::scratch::Scratch;
use crate::settings::Settings;
use crate::snapshot::Snapshot;
use crate::speed;
use sha2::{Digest, Sha256};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;
use tracing::{debug, info, warn};
use vtax_core::{Bytes, Source, counted};
use vtax_files::Dir;
use vtax_guest::image::Recipe;
use vtax_host::HostError;
use vtax_host::journal::Journal;
use vtax_host::roots::Roots;
use vtax_host::signals::Signals;
use vtax_host::untrusted::first_line;
use vtax_kernel::MemInfo;
use vtax_lab::LabError;
use vtax_lab::place::Hypervisor;
use vtax_lab::plan::{Shard, Variation};
use vtax_lab::run::{
    Assignment, Experiment, Log, NewRun, PlanTrials, Progress, RunOptions, RunSummary,
    run_experiment,
};
use vtax_results::{
    ResultsDir, ResultsError, Treatment, Trial, TrialOutcome, TrialWriter, emulated,
};

/// The attempts of a trial whose host hangs. Each has another seed, since the same seed hangs at the same instruction.
const ATTEMPTS: u32 = 3;

/// The difference between the seeds of two attempts, so large that no other block has the seed.
const NEXT_ATTEMPT: u32 = 1 << 20;

/// Idle time of a host between its boot and the snapshot. It costs little where idle time is skipped.
const REST: Duration = Duration::from_secs(10);

/// The expected time of a trial relative to a real host, until the first has ended: 2 where hosts are mostly idle, 7
/// with a guest at full speed.
const SLOWER: u32 = 5;

/// Memory of QEMU beyond that of its host, in MiB.
const BESIDE_MEMORY_MIB: u64 = 512;

/// A plan to run in emulated hosts.
#[derive(Clone)]
pub struct PlanRun<'a> {
    /// The trials of the plan.
    pub trials: &'a dyn PlanTrials,
    /// The emulated host.
    pub host: &'a Host,
    /// Its settings.
    pub settings: &'a Settings,
    /// The cost model of its counts.
    pub cost_model: &'a CostModel,
    /// The binary of vtax.
    pub binary: PathBuf,
    /// The subcommand of vtax: `run`, `accuracy run`, `density`.
    pub command: &'a str,
    /// The results directory; an unfinished run in it is continued.
    pub results: PathBuf,
    /// The directory of this user's locks.
    pub state_dir: PathBuf,
    /// Run only these blocks.
    pub shard: Option<Shard>,
    /// Hosts at the same time; unset: as many as there are processors and memory for.
    pub jobs: Option<usize>,
}

/// Runs the plan; each finished trial is in the results at once.
///
/// # Errors
/// When QEMU is missing, the same treatment keeps failing, or the user interrupts.
pub fn run_plan(
    run: &PlanRun<'_>,
    signals: &Signals,
    progress: &mut dyn Progress,
) -> Result<RunSummary, LabError> {
    let client = run.trials.client();
    if client.is_some() && run.settings.deterministic {
        return Err(LabError::Host(HostError::Setting(
            "the plan has its client on a second host, and two hosts share no clock of instructions: use --testbed FILE with deterministic = false".to_owned(),
        )));
    }
    if run.trials.sets_governor() && run.host.hypervisor == Hypervisor::Xen {
        return Err(LabError::Host(HostError::Setting(
            "a Dom0 has no cpufreq driver, because Xen sets the frequency: remove host.governor from the plan, or use --place testbed:kvm".to_owned(),
        )));
    }
    if run.trials.sets_governor() && !run.host.emulator.is_ours() {
        return Err(LabError::Host(HostError::Missing {
            what: "a QEMU whose processors have a clock that is the same at every frequency, which a plan with host.governor needs".to_owned(),
            remedy: REMEDY.to_owned(),
        }));
    }
    run.host.emulator.supports(run.settings)?;
    let options = RunOptions {
        results: run.results.clone(),
        shard: run.shard.clone(),
        waits: false,
        state_dir: state_dir(run),
        place: format!("testbed:{}", run.host.hypervisor),
        // Other programs on this machine do not change the counts in the emulated host.
        host: if run.settings.deterministic {
            Source::Simulated
        } else {
            Source::Measured
        },
        own: None,
        knows: None,
        more: 0,
    };
    let directory = Scratch::create(&std::env::temp_dir())?;
    let payload = payload(run).pack(directory.path(), run.host.hypervisor)?;
    let mut hosts = Hosts {
        run,
        place: &options.place,
        link: client.map(Link::from_client).transpose()?,
        jobs: jobs(run)?,
        hosts: BTreeMap::new(),
        signals,
        payload,
        snapshots: BTreeMap::new(),
        trial_jobs: BTreeMap::new(),
        has_facts: false,
        emulator: run.host.emulator.describe()?,
    };
    info!(
        "trials run in {} at a time, by {}",
        counted(hosts.jobs, "emulated host"),
        hosts.emulator
    );
    let ended = run_experiment(&mut hosts, &options, signals, progress);
    // This host is unchanged, so the state has only the lock; the lock of another run stays.
    if !matches!(ended, Err(LabError::Host(HostError::Busy { .. }))) {
        let _ = vtax_files::remove_all(&options.state_dir);
    }
    ended.map(|(_, summary)| summary)
}

/// The state directory of a run. Emulated hosts do not disturb each other, so only the results are locked.
fn state_dir(run: &PlanRun<'_>) -> PathBuf {
    let path = std::path::absolute(&run.results).unwrap_or_else(|_| run.results.clone());
    let digest = Sha256::digest(path.as_os_str().as_encoded_bytes());
    let name = format!("testbed-{digest:x}");
    run.state_dir.join(name.get(..24).unwrap_or_default())
}

/// The number of hosts that run at the same time.
fn jobs(run: &PlanRun<'_>) -> Result<usize, LabError> {
    let memory = MemInfo::read(&Roots::host().proc).unwrap_or_default();
    let room = room(memory.available, run.settings.memory_mib);
    if room == 0 {
        return Err(LabError::Host(HostError::Setting(format!(
            "an emulated host has {} MiB of memory, and {} MiB are available here: set a smaller memory_mib in the settings of the testbed, or free memory",
            run.settings.memory_mib,
            memory.available.unwrap_or_default().0 >> 20
        ))));
    }
    // Hosts with this machine's clock run one at a time, since they would disturb each other.
    let processors = if run.settings.deterministic {
        std::thread::available_parallelism().map_or(1, usize::from)
    } else {
        1
    };
    Ok(run.jobs.unwrap_or(processors).min(room))
}

/// The number of hosts with this memory that fit into `free`; 1 where that is unknown.
fn room(free: Option<Bytes>, memory_mib: u32) -> usize {
    let each = u64::from(memory_mib) + BESIDE_MEMORY_MIB;
    let room = free.map_or(1, |free| (free.0 >> 20) / each);
    usize::try_from(room).unwrap_or(usize::MAX)
}

struct Hosts<'a> {
    run: &'a PlanRun<'a>,
    place: &'a str,
    link: Option<Link>,
    jobs: usize,
    /// The hosts by the recipes of their guests' images.
    hosts: BTreeMap<BTreeSet<Recipe>, Host>,
    signals: &'a Signals,
    /// The file of the payload: vtax and the plan.
    payload: PathBuf,
    /// The snapshots that trials start from.
    snapshots: BTreeMap<Key, Snapshot>,
    /// The jobs of trials, by the index of the trial.
    trial_jobs: BTreeMap<u32, TrialJob>,
    /// Whether the results have the facts about the host.
    has_facts: bool,
    /// The description of the emulator.
    emulator: String,
}

/// The key of a snapshot: the sizes of the disks in bytes, which differ between the hosts of a run.
type Key = [u64; 2];

fn key(host: &Host) -> Key {
    host.disks.each_ref().map(|disk| disk.bytes)
}

/// The payload of the hosts of a run.
fn payload<'a>(run: &'a PlanRun<'a>) -> Payload<'a> {
    Payload::Trial {
        binary: &run.binary,
        command: run.command,
        plan: run.trials.new_run("").plan_text,
        rest: if run.settings.deterministic {
            REST
        } else {
            Duration::ZERO
        },
        // All hosts of a plan have frequencies if any needs them, so that they can be compared.
        governors: run.trials.sets_governor(),
    }
}

/// The job of a trial.
struct TrialJob {
    /// `None` while the snapshot is created.
    job: Option<Job>,
    seed: u32,
    /// The evidence of each earlier attempt that hung.
    stuck: Vec<String>,
    outcome: Option<Result<i32, LabError>>,
}

impl TrialJob {
    /// Takes another seed after the host of trial `index` has hung. Returns the failure of the trial after the last
    /// attempt.
    fn hung(&mut self, index: u32, how: String) -> Option<LabError> {
        let seed = self.seed;
        if self.stuck.len() + 1 >= ATTEMPTS as usize {
            warn!("the host of trial {index:04} hung with seed {seed}, the last one: {how}");
            let failure = format!(
                "the emulated host hung with each of {ATTEMPTS} seeds, the last time because {how}: change the plan slightly, or `seed` in the settings of the testbed"
            );
            self.stuck.push(how);
            return Some(LabError::other(failure));
        }
        self.job = None;
        self.seed = seed.wrapping_add(NEXT_ATTEMPT);
        warn!(
            "the host of trial {index:04} hung with seed {seed}, and the trial begins again with seed {}: {how}",
            self.seed
        );
        self.stuck.push(how);
        None
    }
}

impl Experiment for Hosts<'_> {
    fn new_run(&self) -> NewRun<'_> {
        self.run.trials.new_run(self.place)
    }

    fn treatments(&self) -> Vec<Treatment> {
        self.run.trials.records()
    }

    fn again(&self) -> f64 {
        if self.run.settings.deterministic {
            0.0
        } else {
            self.run.trials.again()
        }
    }

    fn prepare(&mut self, note: &mut dyn FnMut(String)) -> Result<(), LabError> {
        let PlanRun { trials, host, .. } = self.run;
        for treatment in 0..trials.records().len() {
            let recipes = trials.recipes(treatment);
            // The shared image is already in the host.
            if recipes.iter().all(|recipe| *recipe == Recipe::standard()) {
                continue;
            }
            if let Entry::Vacant(host_of) = self.hosts.entry(recipes) {
                let tell = &mut |line: &str| note(line.to_owned());
                let with = host.with_images(host_of.key(), tell)?;
                host_of.insert(with);
            }
        }
        Ok(())
    }

    fn expected(&self, treatment: usize) -> Duration {
        self.run.trials.expected(treatment) * SLOWER
    }

    fn jobs(&self) -> usize {
        self.jobs
    }

    fn next(&mut self, under_way: &[Assignment]) -> Result<usize, LabError> {
        loop {
            for (position, assignment) in under_way.iter().enumerate() {
                self.signals.check()?;
                if self.is_finished(*assignment)? {
                    return Ok(position);
                }
            }
            std::thread::sleep(POLL);
        }
    }

    fn perform(
        &mut self,
        assignment: Assignment,
        _journal: &mut Journal,
        writer: &TrialWriter,
        log: &mut Log<'_>,
        record: &mut Trial,
    ) -> Result<(), LabError> {
        let Some(trial_job) = self.trial_jobs.remove(&assignment.index) else {
            return Err(LabError::other("the trial has no job"));
        };
        let job = trial_job
            .job
            .ok_or_else(|| LabError::other("the trial's job was not started"));
        for line in job.iter().flat_map(Job::lines) {
            log.line(line);
        }
        for how in &trial_job.stuck {
            log.line(&format!("with an earlier seed: {how}"));
        }
        let code = trial_job.outcome.unwrap_or(Ok(0))?;
        let job = job?;
        let results = job.results();
        if !results.join("run.json").exists() {
            return Err(LabError::Host(HostError::Program {
                command: format!("vtax {}, at {}", self.run.command, self.place),
                status: format!("exit status: {code}"),
                output: job.lines().join("\n"),
            }));
        }
        let inside = ResultsDir::open(&results)?;
        let mut trial = inside.trial(0)?;
        self.keep_facts(&inside)?;
        keep_files(&inside.trial_dir(0)?, writer.dir())?;
        if self.run.settings.deterministic && trial.outcome == TrialOutcome::Complete {
            let instruction = self.run.settings.frequency.instruction();
            cost::charge(&mut trial, self.run.cost_model, instruction);
        }
        if self.run.trials.sets_governor() {
            cost::keep(&mut trial, emulated::FREQUENCY, speed::FACT.to_owned());
        }
        if !trial_job.stuck.is_empty() {
            let times = trial_job.stuck.len().to_string();
            cost::keep(&mut trial, emulated::STUCK, times);
        }
        cost::keep(&mut trial, emulated::SEED, trial_job.seed.to_string());
        cost::keep(&mut trial, emulated::QEMU, self.emulator.clone());
        *record = Trial {
            format: record.format,
            index: record.index,
            block: record.block,
            treatment: record.treatment.clone(),
            ..trial
        };
        match &record.outcome {
            TrialOutcome::Complete => Ok(()),
            TrialOutcome::Failed(reason) => Err(LabError::other(reason)),
        }
    }
}

impl Hosts<'_> {
    /// Whether the job of a trial has finished or failed; starts it if it is not running.
    fn is_finished(&mut self, assignment: Assignment) -> Result<bool, LabError> {
        let index = assignment.index;
        let mut trial_job = self.trial_jobs.remove(&index).unwrap_or_else(|| TrialJob {
            job: None,
            seed: self.seed(assignment.block),
            stuck: Vec::new(),
            outcome: None,
        });
        if trial_job.outcome.is_none() {
            trial_job.outcome = match &mut trial_job.job {
                None => match self.start(assignment, trial_job.seed) {
                    Ok(job) => {
                        trial_job.job = job;
                        None
                    }
                    Err(cause) => Some(Err(cause)),
                },
                Some(job) => match job.poll() {
                    Ok(None) => None,
                    Ok(Some(JobOutcome::Finished(code))) => Some(Ok(code)),
                    Err(cause) => Some(Err(cause)),
                    Ok(Some(JobOutcome::Stuck(how))) => trial_job.hung(index, how).map(Err),
                },
            };
        }
        let is_finished = trial_job.outcome.is_some();
        self.trial_jobs.insert(index, trial_job);
        Ok(is_finished)
    }

    /// The seed of a block, which counts from 1.
    fn seed(&self, block: u32) -> u32 {
        let varied = match self.run.trials.variation() {
            Variation::None => 0,
            Variation::Seeds | Variation::Draws { .. } => block.saturating_sub(1),
        };
        self.run.settings.seed.wrapping_add(varied)
    }

    /// The host with the images of a treatment's guests.
    fn host(&self, treatment: usize) -> &Host {
        let PlanRun { trials, host, .. } = self.run;
        self.hosts.get(&trials.recipes(treatment)).unwrap_or(host)
    }

    /// Starts the job of a trial, once its snapshot is ready.
    fn start(
        &mut self,
        Assignment {
            treatment, block, ..
        }: Assignment,
        seed: u32,
    ) -> Result<Option<Job>, LabError> {
        let trials = self.run.trials;
        let plan = trials.new_run(self.place);
        let settings = Settings {
            seed,
            ..self.run.settings.clone()
        };
        let quick = if plan.is_quick { " --quick" } else { "" };
        let draw = trials.variation().draw(plan.seed, block);
        let draw = draw.map_or(String::new(), |draw| format!(" --draw={}", draw.number));
        let number = trials.number(treatment);
        let trial = format!("{seed} --treatment={number}{quick}{draw}");
        // Linked hosts and hosts with this machine's clock have no snapshot.
        if settings.deterministic {
            match self.snapshot(treatment)?.is_ready() {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(cause) => {
                    warn!("no snapshot is made: {}", first_line(&cause));
                    // The next trial creates another snapshot.
                    let key = key(self.host(treatment));
                    self.snapshots.remove(&key);
                    return Err(cause);
                }
            }
        }
        let host = self.host(treatment);
        let spec = JobSpec {
            host,
            settings: &settings,
            link: self.link.as_ref(),
            silence: trials.longest_silence(treatment),
            trial: &trial,
            payload: &self.payload,
        };
        let key = key(host);
        debug!("an emulated host starts with {trial}");
        let job = match self.snapshots.get(&key) {
            Some(snapshot) => Job::resume(spec, snapshot),
            None => Job::boot(spec, &payload(self.run)),
        };
        if job.is_err()
            && let Some(snapshot) = self.snapshots.remove(&key)
        {
            // The snapshot may be damaged, so the next trial creates another one.
            snapshot.discard();
        }
        job.map(Some)
    }

    /// The snapshot of a treatment; its host boots where there is none.
    fn snapshot(&mut self, treatment: usize) -> Result<&mut Snapshot, LabError> {
        let key = key(self.host(treatment));
        let snapshot = match self.snapshots.remove(&key) {
            Some(snapshot) => snapshot,
            None => {
                Snapshot::for_host(self.host(treatment), self.run.settings, &payload(self.run))?
            }
        };
        Ok(self.snapshots.entry(key).or_insert(snapshot))
    }

    /// Stores the facts about the emulated host, from the first finished trial.
    fn keep_facts(&mut self, inside: &ResultsDir) -> Result<(), LabError> {
        if !std::mem::replace(&mut self.has_facts, true) {
            ResultsDir::open(&self.run.results)?.replace_host(&inside.host()?)?;
        }
        Ok(())
    }
}

/// Copies the files of a trial. Its record is written by this run, and its log is stored as `testbed.log`.
fn keep_files(from: &Dir, into: &Dir) -> Result<(), ResultsError> {
    for vtax_files::Entry { name, .. } in from.list()? {
        let kept = match name.to_str() {
            Some("trial.json") => continue,
            Some("log") => OsStr::new("testbed.log"),
            _ => &name,
        };
        from.copy(&name, into, kept)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulator::tests::pretended;
    use crate::host::tests::fake_host;
    use tempfile::TempDir;
    use vtax_lab::plan::{Catalogue, Plan, treatments};
    use vtax_lab::run::Planned;

    #[test]
    fn no_more_hosts_run_at_once_than_fit_into_free_memory() {
        let each = Bytes((2000 + BESIDE_MEMORY_MIB) << 20);
        assert_eq!(room(Some(Bytes(each.0 * 3)), 2000), 3);
        assert_eq!(room(Some(Bytes(each.0 - 1)), 2000), 0);
        assert_eq!(room(None, 2000), 1);
    }

    #[test]
    fn a_trial_whose_host_hangs_begins_again_with_another_seed_and_a_warning() {
        let mut job = TrialJob {
            job: None,
            seed: 7,
            stuck: Vec::new(),
            outcome: None,
        };
        let logged = vtax_log::testing::logged(|| {
            let mut hangs = || job.hung(3, "it printed nothing".to_owned());
            assert!(hangs().is_none() && hangs().is_none() && hangs().is_some());
        });
        let of = "<4>vtax_testbed::hosts: the host of trial 0003 hung with seed";
        let seeds = [7, 7 + NEXT_ATTEMPT, 7 + 2 * NEXT_ATTEMPT];
        let lines: Vec<&str> = logged.lines().collect();
        assert_eq!(lines.len(), 3, "{logged}");
        for (line, seed) in lines.iter().zip(seeds) {
            assert!(line.starts_with(&format!("{of} {seed}, ")), "{line}");
        }
        assert_eq!(job.stuck.len(), 3);
    }

    struct Silent;

    impl Progress for Silent {
        fn event(&mut self, _event: vtax_lab::run::Event) {}
    }

    /// The error of a plan with these further lines, and the directory of its results.
    fn printed(
        hypervisor: Hypervisor,
        more: &str,
        settings: &Settings,
        emulator: Option<&str>,
    ) -> (String, TempDir) {
        let catalogue = Catalogue::standard();
        let text = format!(
            "name = \"x\"\nrepetitions = 1\n{more}[[platform]]\nkind = \"native\"\n[[workload]]\nkind = \"idle\"\n"
        );
        let plan = Plan::read("plan.toml", &text, &catalogue).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut host = fake_host(folder.path(), hypervisor);
        if let Some(does) = emulator {
            host.emulator = pretended(folder.path(), "7.2.22", does);
        }
        let run = PlanRun {
            trials: &Planned {
                plan: &plan,
                text: &text,
                folder: folder.path(),
                treatments: &treatments(&plan, &catalogue),
                catalogue: &catalogue,
            },
            host: &host,
            settings,
            cost_model: &CostModel::shipped().unwrap(),
            binary: PathBuf::from("/proc/self/exe"),
            command: "run",
            results: folder.path().join("results"),
            state_dir: folder.path().join("state"),
            shard: None,
            jobs: None,
        };
        let signals = Signals::install().unwrap();
        let printed = match run_plan(&run, &signals, &mut Silent) {
            Err(cause) => cause.to_string(),
            Ok(_) => match ResultsDir::open(&run.results)
                .unwrap()
                .trial(0)
                .unwrap()
                .outcome
            {
                TrialOutcome::Failed(reason) => reason,
                TrialOutcome::Complete => panic!("it ran"),
            },
        };
        (printed, folder)
    }

    fn refused(more: &str, settings: &Settings) -> String {
        refused_at(Hypervisor::Kvm, more, settings)
    }

    fn refused_at(hypervisor: Hypervisor, more: &str, settings: &Settings) -> String {
        let (printed, folder) = printed(hypervisor, more, settings, None);
        assert!(!folder.path().join("results").exists(), "{printed}");
        printed
    }

    #[test]
    fn a_qemu_that_crashes_is_a_failed_trial_that_says_so() {
        let (printed, _folder) = printed(
            Hypervisor::Kvm,
            "",
            &Settings::default(),
            Some("echo oops >&2; kill -SEGV $$"),
        );
        assert!(
            printed.contains("signal: 11") && printed.contains("oops"),
            "{printed}"
        );
    }

    #[test]
    fn a_trial_of_a_deterministic_host_does_not_run_again() {
        let (_, folder) = printed(
            Hypervisor::Kvm,
            "again = { share = 2.0 }\n",
            &Settings::default(),
            Some("exit 1"),
        );
        let results = ResultsDir::open(&folder.path().join("results")).unwrap();
        assert!(results.attempts().is_empty());
    }

    #[test]
    fn two_hosts_with_one_clock_of_instructions_are_refused_before_anything_boots() {
        let places = "[places]\nclient = \"ssh:c\"\nbridge = \"lan\"\ntarget = \"192.0.2.10/24\"\n";
        let printed = refused(places, &Settings::default());
        assert!(printed.contains("deterministic = false"), "{printed}");
    }

    #[test]
    fn a_governor_under_xen_is_refused_before_anything_boots() {
        let printed = refused_at(
            Hypervisor::Xen,
            "[settings]\nhost.governor = \"powersave\"\n",
            &Settings::default(),
        );
        assert!(printed.contains("Dom0 has no cpufreq driver"), "{printed}");
    }

    #[test]
    fn a_host_that_does_not_fit_into_memory_is_refused_before_anything_boots() {
        let settings = Settings {
            memory_mib: 1 << 30,
            ..Settings::default()
        };
        let printed = refused("", &settings);
        assert!(printed.contains("memory_mib"), "{printed}");
    }
}
