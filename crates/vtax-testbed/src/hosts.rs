//! The trials of a plan, each in an emulated host of its own, all from the same moment: its numbers depend
//! on its treatment and the seed alone, whatever else the plan has and in which order it runs.

use crate::cost::{self, CostModel};
use crate::flight::{Flight, Landing, POLL, Ticket};
use crate::host::Host;
use crate::link::Link;
use crate::moment::Moment;
use crate::payload::Errand;
use crate::scratch::Scratch;
use crate::settings::Settings;
use crate::speed;
use sha2::{Digest, Sha256};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use vtax_files::Dir;
use vtax_host::HostError;
use vtax_host::journal::Journal;
use vtax_host::roots::Roots;
use vtax_host::signals::Signals;
use vtax_lab::LabError;
use vtax_lab::place::Hypervisor;
use vtax_lab::plan::Shard;
use vtax_lab::run::{
    Assignment, Attempt, Experiment, Log, NewRun, Planned, Progress, RunOptions, RunSummary,
    run_experiment,
};
use vtax_report::results::{
    ResultsDir, ResultsError, Treatment, Trial, TrialOutcome, TrialWriter, emulated,
};
use vtax_units::Source;

/// How often a trial whose host got stuck is begun anew, each time with another seed: with the same one
/// it would get stuck at the same instruction.
const ATTEMPTS: u32 = 3;

/// From the seed of an attempt to that of the next one: no other block's.
const NEXT_ATTEMPT: u32 = 1 << 20;

/// A host that has just booted comes to rest before its trials. Where idle time is skipped, it costs
/// little.
const REST: Duration = Duration::from_secs(10);

/// What a trial takes here, in the time that it takes on a real host, until one has ended and tells: 2 with hosts
/// that mostly idle, 7 with a guest at full speed.
const SLOWER: u32 = 5;

/// What QEMU itself needs beyond the memory of its host, in MiB.
const BESIDE_MEMORY_MIB: u64 = 512;

/// A plan to run in emulated hosts.
#[derive(Clone)]
pub struct PlanRun<'a> {
    /// The plan.
    pub planned: Planned<'a>,
    /// The hosts.
    pub host: &'a Host,
    /// How they run.
    pub settings: &'a Settings,
    /// What their counts would have cost.
    pub cost_model: &'a CostModel,
    /// Our own binary.
    pub binary: PathBuf,
    /// What of vtax runs the plan: `run`, `accuracy run`.
    pub command: &'a str,
    /// Where the results are to be; an unfinished run in it goes on.
    pub results: PathBuf,
    /// Where this user's locks are.
    pub state_dir: PathBuf,
    /// Run only these blocks.
    pub shard: Option<Shard>,
    /// Hosts at the same time; unset: as many as there are processors and memory for.
    pub jobs: Option<usize>,
}

/// Runs it: each finished trial is in the results at once.
///
/// # Errors
/// When QEMU is missing, the same treatment keeps failing, or the user interrupts.
pub fn run_plan(
    run: &PlanRun<'_>,
    signals: &Signals,
    progress: &mut dyn Progress,
) -> Result<RunSummary, LabError> {
    let client = run.planned.plan.places.client.as_ref();
    if client.is_some() && run.settings.deterministic {
        return Err(LabError::Host(HostError::Setting(
            "two hosts share no clock of instructions, and the plan has its client on a second one: --testbed FILE with deterministic = false".to_owned(),
        )));
    }
    if governors(run) && run.host.hypervisor == Hypervisor::Xen {
        return Err(LabError::Host(HostError::Setting(
            "a Dom0 has no cpufreq driver, because Xen sets the frequency: leave host.governor out, or --at testbed:kvm".to_owned(),
        )));
    }
    if governors(run) && !run.host.emulator.is_ours() {
        return Err(LabError::Host(HostError::Missing {
            what: "a QEMU whose processors have a clock that is the same at every frequency, which a plan with host.governor wants".to_owned(),
            remedy: "vtax testbed build qemu".to_owned(),
        }));
    }
    let options = RunOptions {
        results: run.results.clone(),
        shard: run.shard.clone(),
        waits: false,
        state_dir: state_dir(run),
        place: format!("testbed:{}", run.host.hypervisor),
        // Whoever else works here does not move what is counted there.
        host: if run.settings.deterministic {
            Source::Emulated
        } else {
            Source::Measured
        },
        own: None,
    };
    let directory = Scratch::create(&std::env::temp_dir())?;
    let brought = errand(run).bring(directory.path(), run.host.hypervisor)?;
    let mut hosts = Hosts {
        run,
        place: &options.place,
        link: client.map(Link::of).transpose()?,
        jobs: jobs(run)?,
        hosts: BTreeMap::new(),
        signals,
        brought,
        moments: BTreeMap::new(),
        flying: BTreeMap::new(),
        has_facts: false,
        emulator: run.host.emulator.describe()?,
    };
    let ended = run_experiment(&mut hosts, &options, signals, progress);
    // Nothing of this host was changed: only the lock is there, and another's stays.
    if !matches!(ended, Err(LabError::Host(HostError::Busy { .. }))) {
        let _ = fs::remove_dir_all(&options.state_dir);
    }
    ended.map(|(_, summary)| summary)
}

/// Emulated hosts do not measure each other: the lock is that of the results.
fn state_dir(run: &PlanRun<'_>) -> PathBuf {
    let path = std::path::absolute(&run.results).unwrap_or_else(|_| run.results.clone());
    let digest = Sha256::digest(path.as_os_str().as_encoded_bytes());
    let name = format!("testbed-{digest:x}");
    run.state_dir.join(name.get(..24).unwrap_or_default())
}

/// Whether any treatment sets the governor: then all hosts of the plan have frequencies, so that
/// they can be compared. Those of other plans stay as they are.
fn governors(run: &PlanRun<'_>) -> bool {
    let mut treatments = run.planned.treatments.iter();
    treatments.any(|planned| planned.settings.0.contains_key("host.governor"))
}

/// Hosts that run at the same time.
fn jobs(run: &PlanRun<'_>) -> Result<usize, LabError> {
    let meminfo = Roots::host().proc_text("meminfo").unwrap_or_default();
    let free = vtax_host::facts::kib_of(&meminfo, "MemAvailable").map(|kib| kib / 1024);
    let each = u64::from(run.settings.memory_mib) + BESIDE_MEMORY_MIB;
    let room = free.map_or(1, |free| free / each);
    let room = usize::try_from(room).unwrap_or(usize::MAX);
    if room == 0 {
        return Err(LabError::Host(HostError::Setting(format!(
            "an emulated host has {} MiB of memory, and {} MiB are available here: a smaller memory_mib in the testbed's settings, or more memory",
            run.settings.memory_mib,
            free.unwrap_or_default()
        ))));
    }
    // Where the clock is this machine's, hosts must not be in each other's way.
    let processors = match run.settings.deterministic {
        true => std::thread::available_parallelism().map_or(1, usize::from),
        false => 1,
    };
    Ok(run.jobs.unwrap_or(processors).min(room))
}

struct Hosts<'a> {
    run: &'a PlanRun<'a>,
    place: &'a str,
    link: Option<Link>,
    jobs: usize,
    /// The host with the images of each set of packages beyond the shared image's.
    hosts: BTreeMap<BTreeSet<&'static [&'static str]>, Host>,
    signals: &'a Signals,
    /// What each host is brought: vtax and the plan.
    brought: PathBuf,
    /// What trials begin at.
    moments: BTreeMap<Key, Moment>,
    /// By the index of the trial.
    flying: BTreeMap<u32, Flying>,
    /// Whether the results say already what the hosts are.
    has_facts: bool,
    /// What emulates the hosts.
    emulator: String,
}

/// What hosts that begin at the same moment have in common: the sizes of their disks, in bytes.
type Key = [u64; 2];

fn key(host: &Host) -> Key {
    host.disks.each_ref().map(|disk| disk.bytes)
}

/// What the hosts of a run are for.
fn errand<'a>(run: &'a PlanRun<'a>) -> Errand<'a> {
    Errand::Trial {
        binary: &run.binary,
        command: run.command,
        plan: run.planned.text,
        rest: match run.settings.deterministic {
            true => REST,
            false => Duration::ZERO,
        },
        governors: governors(run),
    }
}

/// A trial under way.
struct Flying {
    /// Unset while it waits for its moment.
    flight: Option<Flight>,
    seed: u32,
    /// How each earlier attempt was found to be stuck.
    stuck: Vec<String>,
    landed: Option<Result<i32, LabError>>,
}

impl Experiment for Hosts<'_> {
    fn new_run(&self) -> NewRun<'_> {
        self.run.planned.new_run(self.place)
    }

    fn treatments(&self) -> Vec<Treatment> {
        self.run.planned.records()
    }

    fn again(&self) -> f64 {
        self.run.planned.plan.again
    }

    fn prepare(&mut self, note: &mut dyn FnMut(String)) -> Result<(), LabError> {
        let PlanRun { planned, host, .. } = self.run;
        for treatment in planned.treatments {
            let packages = planned.packages(treatment);
            // The shared image alone is there.
            if packages.iter().all(|set| set.is_empty()) {
                continue;
            }
            if let Entry::Vacant(host_of) = self.hosts.entry(packages) {
                let tell = &mut |line: &str| note(line.to_owned());
                let with = host.with_packages(host_of.key(), tell)?;
                host_of.insert(with);
            }
        }
        Ok(())
    }

    fn expected(&self, treatment: usize) -> Duration {
        self.run.planned.expected(treatment) * SLOWER
    }

    fn jobs(&self) -> usize {
        self.jobs
    }

    fn next(&mut self, under_way: &[Assignment]) -> Result<usize, LabError> {
        loop {
            for (position, assignment) in under_way.iter().enumerate() {
                self.signals.check()?;
                if self.has_landed(*assignment)? {
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
        attempt: &mut Attempt,
    ) -> Result<(), LabError> {
        let Some(flying) = self.flying.remove(&assignment.index) else {
            return Err(LabError::other("the trial's host was never booted"));
        };
        let flight = flying
            .flight
            .ok_or_else(|| LabError::other("the trial's host never began"));
        for word in flight.iter().flat_map(Flight::words) {
            log.line(word);
        }
        for how in &flying.stuck {
            log.line(&format!("with an earlier seed: {how}"));
        }
        let code = flying.landed.unwrap_or(Ok(0))?;
        let flight = flight?;
        let results = flight.results();
        let found = results
            .join("run.json")
            .exists()
            .then(|| -> Result<_, LabError> {
                let inside = ResultsDir::open(&results)?;
                Ok((inside.trial(0)?, inside))
            });
        let Some((mut trial, inside)) = found.transpose()? else {
            return Err(LabError::Host(HostError::Program {
                command: format!("vtax {}, at {}", self.run.command, self.place),
                status: format!("exit status: {code}"),
                output: flight.words().join("\n"),
            }));
        };
        self.keep_facts(&inside)?;
        keep_files(&inside.trial_dir(0)?, writer.dir())?;
        if self.run.settings.deterministic && trial.outcome == TrialOutcome::Complete {
            let instruction = self.run.settings.frequency.instruction();
            cost::charge(&mut trial, self.run.cost_model, instruction);
        }
        if governors(self.run) {
            let speed = speed::FACT.to_owned();
            trial
                .environment
                .insert(emulated::FREQUENCY.to_owned(), speed);
        }
        if !flying.stuck.is_empty() {
            let times = flying.stuck.len().to_string();
            trial.environment.insert(emulated::STUCK.to_owned(), times);
        }
        let seed = flying.seed.to_string();
        for (key, value) in [
            (emulated::SEED, seed),
            (emulated::QEMU, self.emulator.clone()),
        ] {
            trial.environment.insert(key.to_owned(), value);
        }
        take(trial, attempt)
    }
}

impl Hosts<'_> {
    /// Whether a trial's host has done its errand or failed for good; boots it where it is not there.
    fn has_landed(&mut self, assignment: Assignment) -> Result<bool, LabError> {
        let seed = self.seed(assignment.block);
        let flying = self.flying.entry(assignment.index).or_insert(Flying {
            flight: None,
            seed,
            stuck: Vec::new(),
            landed: None,
        });
        if flying.landed.is_some() {
            return Ok(true);
        }
        let (seed, ended) = match &mut flying.flight {
            Some(flight) => (flying.seed, flight.poll()),
            None => {
                let seed = flying.seed;
                let departed = self.depart(assignment.treatment, seed);
                let Some(flying) = self.flying.get_mut(&assignment.index) else {
                    return Ok(false);
                };
                match departed {
                    Ok(flight) => flying.flight = flight,
                    Err(cause) => flying.landed = Some(Err(cause)),
                }
                return Ok(flying.landed.is_some());
            }
        };
        let how = match ended {
            Ok(None) => return Ok(false),
            Ok(Some(Landing::Stuck(how))) => how,
            Ok(Some(Landing::Ended(code))) => {
                flying.landed = Some(Ok(code));
                return Ok(true);
            }
            Err(cause) => {
                flying.landed = Some(Err(cause));
                return Ok(true);
            }
        };
        flying.stuck.push(how.clone());
        if flying.stuck.len() >= ATTEMPTS as usize {
            flying.landed = Some(Err(LabError::other(format!(
                "the emulated host got stuck with each of {ATTEMPTS} seeds, at last so: {how}: change the plan a little, or `seed` in the testbed's settings"
            ))));
            return Ok(true);
        }
        flying.flight = None;
        flying.seed = seed.wrapping_add(NEXT_ATTEMPT);
        Ok(false)
    }

    /// The seed of a block, which counts from 1.
    fn seed(&self, block: u32) -> u32 {
        let varied = match self.run.planned.plan.varies_seed {
            true => block.saturating_sub(1),
            false => 0,
        };
        self.run.settings.seed.wrapping_add(varied)
    }

    /// The host with the images that a treatment's guests run.
    fn host(&self, treatment: usize) -> &Host {
        let PlanRun { planned, host, .. } = self.run;
        let found = planned.treatments.get(treatment);
        found
            .and_then(|treatment| self.hosts.get(&planned.packages(treatment)))
            .unwrap_or(host)
    }

    /// The host of a trial, once the moment that it begins at is there.
    fn depart(&mut self, treatment: usize, seed: u32) -> Result<Option<Flight>, LabError> {
        let planned = &self.run.planned;
        let settings = Settings {
            seed,
            ..self.run.settings.clone()
        };
        let quick = if planned.plan.is_quick {
            " --quick"
        } else {
            ""
        };
        let told = format!("{seed} --treatment={treatment}{quick}");
        // Two hosts, or a clock that is this machine's, have no moment that could be kept.
        if settings.deterministic {
            match self.moment(treatment)?.is_kept() {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(cause) => {
                    // The next trial begins anew.
                    let key = key(self.host(treatment));
                    self.moments.remove(&key);
                    return Err(cause);
                }
            }
        }
        let host = self.host(treatment);
        let ticket = Ticket {
            host,
            settings: &settings,
            link: self.link.as_ref(),
            silence: planned.longest_silence(treatment),
            told: &told,
            errand: &self.brought,
        };
        let key = key(host);
        let flight = match self.moments.get(&key) {
            Some(moment) => Flight::resume(ticket, moment),
            None => Flight::boot(ticket, &errand(self.run)),
        };
        if flight.is_err()
            && let Some(moment) = self.moments.remove(&key)
        {
            // It may be what is wrong: the next trial boots a host for another.
            moment.discard();
        }
        flight.map(Some)
    }

    /// The moment that a treatment begins at; its host boots where there is none.
    fn moment(&mut self, treatment: usize) -> Result<&mut Moment, LabError> {
        let key = key(self.host(treatment));
        let moment = match self.moments.remove(&key) {
            Some(moment) => moment,
            None => Moment::of(self.host(treatment), self.run.settings, &errand(self.run))?,
        };
        Ok(self.moments.entry(key).or_insert(moment))
    }

    /// The facts about the host are those of the emulated one, as the first that landed found them.
    fn keep_facts(&mut self, inside: &ResultsDir) -> Result<(), LabError> {
        if !std::mem::replace(&mut self.has_facts, true) {
            let facts = inside.host()?.to_string();
            let results = Dir::open(&self.run.results).map_err(ResultsError::from)?;
            let kept = results.write("host.json", facts.as_bytes());
            kept.map_err(ResultsError::from)?;
        }
        Ok(())
    }
}

/// The files of a trial, but for its record, which is written anew, and its log, which goes on in ours.
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

fn take(trial: Trial, attempt: &mut Attempt) -> Result<(), LabError> {
    *attempt = Attempt {
        started: Some(trial.started),
        times: trial.times,
        window: trial.window,
        suspect: trial.suspect,
        environment: trial.environment,
        observation: trial.observation,
        work: trial.work,
        metrics: trial.metrics,
        actors: trial.actors,
        phases: trial.phases,
        objective: trial.objective,
    };
    match trial.outcome {
        TrialOutcome::Complete => Ok(()),
        TrialOutcome::Failed(reason) => Err(LabError::other(reason)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulator::tests::pretended;
    use crate::host::tests::fake_host;
    use tempfile::TempDir;
    use vtax_lab::plan::{Catalogue, Plan, treatments};

    struct Silent;

    impl Progress for Silent {
        fn event(&mut self, _event: vtax_lab::run::Event) {}
    }

    /// What is said of a plan with so much more that cannot run, and where its results are.
    fn said(
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
            planned: Planned {
                plan: &plan,
                text: &text,
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
        let said = match run_plan(&run, &signals, &mut Silent) {
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
        (said, folder)
    }

    fn refused(more: &str, settings: &Settings) -> String {
        refused_at(Hypervisor::Kvm, more, settings)
    }

    fn refused_at(hypervisor: Hypervisor, more: &str, settings: &Settings) -> String {
        let (said, folder) = said(hypervisor, more, settings, None);
        assert!(!folder.path().join("results").exists(), "{said}");
        said
    }

    #[test]
    fn a_qemu_that_crashes_is_a_failed_trial_that_says_so() {
        let (said, _folder) = said(
            Hypervisor::Kvm,
            "",
            &Settings::default(),
            Some("echo oops >&2; kill -SEGV $$"),
        );
        assert!(
            said.contains("signal: 11") && said.contains("oops"),
            "{said}"
        );
    }

    #[test]
    fn two_hosts_with_one_clock_of_instructions_are_refused_before_anything_boots() {
        let places = "[places]\nclient = \"ssh:c\"\nbridge = \"lan\"\ntarget = \"192.0.2.10/24\"\n";
        let said = refused(places, &Settings::default());
        assert!(said.contains("deterministic = false"), "{said}");
    }

    #[test]
    fn a_governor_under_xen_is_refused_before_anything_boots() {
        let said = refused_at(
            Hypervisor::Xen,
            "[settings]\nhost.governor = \"powersave\"\n",
            &Settings::default(),
        );
        assert!(said.contains("Dom0 has no cpufreq driver"), "{said}");
    }

    #[test]
    fn a_host_that_does_not_fit_into_memory_is_refused_before_anything_boots() {
        let settings = Settings {
            memory_mib: 1 << 30,
            ..Settings::default()
        };
        let said = refused("", &settings);
        assert!(said.contains("memory_mib"), "{said}");
    }
}
