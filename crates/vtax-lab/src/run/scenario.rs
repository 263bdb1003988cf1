//! The scenarios of a plan, as an experiment: guests in one cell, their loads, and what was observed of
//! each of them.

use super::charging::{self, Charging};
use super::elsewhere::{self, Elsewhere, Watch};
use super::findings::{self, Findings, InnerReadings, LOCAL};
use super::guest::Guest;
use super::observation::Party;
use super::phases::Drive;
use super::pool::PoolWatch;
use super::power_model;
use super::programs::{self, Whose};
use super::pulse::Pulse;
use super::{
    Assignment, Attempt, Experiment, Log, NewRun, OwnInstruments, Planned, Progress, RunOptions,
    RunSummary, instruments, run_experiment, stop,
};
use crate::LabError;
use crate::found;
use crate::place::actor::RemoteActor;
use crate::plan::{Catalogue, Plan, PlannedTreatment};
use crate::suspect::HostWatch;
use instruments::SampleSink;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vtax_core::{Hertz, Nanoseconds, Source};
use vtax_guest::image::{self, GuestFiles};
use vtax_guest::platform::{Platform, Target};
use vtax_host::cell::{Cell, CellConfig, LinkConfig, Seat, SeatConfig, Share, TARGET};
use vtax_host::host_settings;
use vtax_host::journal::Journal;
use vtax_host::meters::Meters;
use vtax_host::roots::Roots;
use vtax_host::scratch;
use vtax_host::settings::Settings;
use vtax_host::signals::Signals;
use vtax_host::untrusted::shown_lines;
use vtax_load::workload::{LOAD_SEED, LoadClient, Workload};
use vtax_observe::charge::MethodChoice;
use vtax_observe::clock::SystemClock;
use vtax_observe::{Observer, ObserverConfig, Subject};
use vtax_report::analysis::charge::metric::NOT_TRACED;
use vtax_report::results::{ResultsDir, Treatment, TrialWriter};

/// Runs a plan. Call it on a thread that lives as long as the run, such as the main thread: the
/// cells die with the thread that made them.
///
/// # Errors
/// As [`run_experiment`].
pub fn run(
    planned: Planned<'_>,
    options: &RunOptions,
    signals: &Signals,
    progress: &mut dyn Progress,
) -> Result<RunSummary, LabError> {
    let roots = Roots::host();
    let Planned {
        plan,
        treatments,
        catalogue,
        ..
    } = planned;
    let mut scenarios = Scenarios {
        of: planned,
        planned: treatments,
        plan,
        catalogue,
        place: &options.place,
        host: options.host,
        own: options.own.as_deref(),
        roots: &roots,
        signals,
        cache_dir: PathBuf::new(),
        files: BTreeMap::new(),
        meters: Meters::default(),
        elsewhere: plan.places.client.clone().map(Elsewhere::new),
    };
    let (_, summary) = run_experiment(&mut scenarios, options, signals, progress)?;
    Ok(summary)
}

struct Scenarios<'a> {
    of: Planned<'a>,
    plan: &'a Plan,
    catalogue: &'a Catalogue,
    planned: &'a [PlannedTreatment],
    place: &'a str,
    host: Source,
    own: Option<&'a dyn OwnInstruments>,
    roots: &'a Roots,
    signals: &'a Signals,
    cache_dir: PathBuf,
    /// The image of every set of packages beyond the base.
    files: BTreeMap<&'static [&'static str], GuestFiles>,
    meters: Meters,
    /// Where the target's client lives, if not here.
    elsewhere: Option<Elsewhere>,
}

/// A guest of a trial before it is there.
struct Cast<'a> {
    name: &'a str,
    platform: &'static dyn Platform,
    workload: &'static dyn Workload,
    settings: &'a Settings,
    is_twin: bool,
}

impl Experiment for Scenarios<'_> {
    fn new_run(&self) -> NewRun<'_> {
        self.of.new_run(self.place)
    }

    fn treatments(&self) -> Vec<Treatment> {
        self.of.records()
    }

    fn again(&self) -> f64 {
        self.plan.again
    }

    fn prepare(&mut self, note: &mut dyn FnMut(String)) -> Result<(), LabError> {
        let actor = self.elsewhere.as_mut().map(Elsewhere::actor).transpose()?;
        self.check(actor.as_ref())?;
        for planned in self.planned {
            for packages in self.of.packages(planned) {
                if self.files.contains_key(packages) {
                    continue;
                }
                let recipe = image::Recipe::for_packages(packages);
                let files = image::ensure(&recipe, &mut |line: &str| note(line.to_owned()))?;
                programs::check_image(self.planned, self.catalogue, packages, &files.root)?;
                self.files.insert(packages, files);
            }
        }
        self.cache_dir = image::cache_dir()?;
        self.meters = Meters::choose(&self.plan.meters, self.roots, note)?;
        Ok(())
    }

    fn expected(&self, treatment: usize) -> Duration {
        self.of.expected(treatment)
    }

    fn satisfied(
        &self,
        results: &ResultsDir,
        next_block: u32,
        elapsed: Duration,
    ) -> Option<String> {
        stop::satisfied(self.plan, results, next_block, elapsed)
    }

    fn perform(
        &mut self,
        assignment: Assignment,
        journal: &mut Journal,
        writer: &TrialWriter,
        log: &mut Log<'_>,
        attempt: &mut Attempt,
    ) -> Result<(), LabError> {
        let planned = self.planned.get(assignment.treatment).ok_or_else(|| {
            LabError::Plan(format!(
                "the plan has no treatment {}",
                assignment.treatment
            ))
        })?;
        let elsewhere = self.elsewhere.as_mut();
        let elsewhere = elsewhere.filter(|_| planned.client_is_elsewhere);
        let actor = elsewhere.map(Elsewhere::actor).transpose()?;
        let casts = self.casts(planned)?;
        self.signals.check()?;
        log.phase("boot");
        let clock = Instant::now();
        host_settings::apply(&planned.settings, &self.roots.sys, journal)?;
        let cell = Cell::create(self.cell(assignment, planned, &casts)?, journal)?;
        let mut guests = Vec::new();
        let booted = self.boot(&casts, &cell, actor.as_ref(), journal, &mut guests);
        attempt.times.boot = clock.elapsed().into();
        let done = booted.and_then(|()| {
            if let Some(target) = guests.first() {
                attempt.environment = target.target.environment();
            }
            let block = assignment.block;
            self.measure(
                (planned, block),
                &mut guests,
                actor.as_ref(),
                writer,
                log,
                attempt,
            )
        });
        for guest in &guests {
            let console = guest.target.console_tail();
            if !console.trim().is_empty() {
                let console = shown_lines(&console);
                log.line(&format!("console of {}:\n{console}", guest.name));
            }
        }
        log.phase("stop");
        // Every step is taken even when one before it failed; the first failure is the one to tell.
        let stopped: Vec<_> = guests
            .into_iter()
            .map(|guest| guest.target.stop())
            .collect();
        let destroyed = cell.destroy();
        done?;
        stopped.into_iter().collect::<Result<(), _>>()?;
        Ok(destroyed?)
    }
}

impl Scenarios<'_> {
    /// Whether this host can run every treatment: all that is missing, in one message.
    fn check(&self, actor: Option<&RemoteActor>) -> Result<(), LabError> {
        let is_installed = |name: &str| self.roots.program(name).is_some();
        let mut missing =
            programs::missing_on_host(self.planned, self.catalogue, Whose::Here, &is_installed);
        if let (Some(actor), Some(elsewhere)) = (actor, &self.elsewhere) {
            missing.extend(self.missing_elsewhere(actor, elsewhere)?);
        }
        let free = self
            .roots
            .proc_text("meminfo")
            .and_then(|text| vtax_host::facts::kib_of(&text, "MemAvailable").map(|kib| kib / 1024));
        for planned in self.planned {
            let casts = self.casts(planned)?;
            for cast in &casts {
                let who = match cast.name {
                    TARGET => planned.record.platform.clone(),
                    name => format!("{name} on {}", cast.platform.kind()),
                };
                let checked = cast.platform.check(cast.settings);
                let lacking = checked.and_then(|()| {
                    programs::missing_in_found(cast.platform, cast.workload, cast.settings)
                });
                match lacking {
                    Ok(lacking) => {
                        missing.extend(lacking.into_iter().map(|what| format!("{who}: {what}")))
                    }
                    Err(cause) => {
                        missing.insert(format!("{who}: {cause}"));
                    }
                }
            }
            let wanted: u64 = casts
                .iter()
                .map(|cast| cast.platform.memory_mib(cast.settings))
                .sum();
            if let Some(free) = free.filter(|free| wanted > *free) {
                missing.insert(format!(
                    "{}: its guests want {wanted} MiB of memory, and {free} MiB are available: give them less (vm.memory_mib), or take fewer neighbours",
                    planned.record.label
                ));
            }
            if let Err(cause) = host_settings::check(&planned.settings, &self.roots.sys) {
                missing.insert(cause.to_string());
            }
        }
        let is_traced = |planned: &&PlannedTreatment| {
            charging::chosen(&planned.settings) == Some(MethodChoice::Traced)
        };
        if let Some(planned) = self.planned.iter().find(is_traced)
            && let Some(cause) = charging::why_not_traced()
        {
            missing.insert(format!("{}: {cause}", planned.record.label));
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

    /// What the client's machine and the way there lack.
    fn missing_elsewhere(
        &self,
        actor: &RemoteActor,
        elsewhere: &Elsewhere,
    ) -> Result<BTreeSet<String>, LabError> {
        let (planned, catalogue) = (self.planned, self.catalogue);
        let programs = programs::client_programs(planned, catalogue, Whose::Elsewhere);
        let programs: Vec<&str> = programs.iter().map(|(_, program)| program.name).collect();
        let lacks = actor.lacks(&programs)?;
        let is_installed = |name: &str| !lacks.iter().any(|lacking| lacking == name);
        let missing =
            programs::missing_on_host(planned, catalogue, Whose::Elsewhere, &is_installed);
        let place = elsewhere.place();
        let missing = missing.into_iter().map(|what| format!("{place}: {what}"));
        let mut missing: BTreeSet<String> = missing.collect();
        for planned in planned.iter().filter(|planned| planned.client_is_elsewhere) {
            let link = LinkConfig::from_settings(&planned.settings)?;
            if let Err(cause) = elsewhere.client.network.check(&link) {
                missing.insert(cause.to_string());
            }
        }
        Ok(missing)
    }

    /// The guests of a treatment, the target first.
    fn casts<'a>(&self, planned: &'a PlannedTreatment) -> Result<Vec<Cast<'a>>, LabError> {
        let target = (
            TARGET,
            planned.record.platform_kind.as_str(),
            planned.record.workload_kind.as_str(),
            &planned.settings,
            false,
        );
        let neighbours = planned.neighbours.iter().map(|guest| {
            (
                guest.name.as_str(),
                guest.platform_kind.as_str(),
                guest.workload_kind.as_str(),
                &guest.settings,
                guest.is_twin,
            )
        });
        std::iter::once(target)
            .chain(neighbours)
            .map(|(name, platform, workload, settings, is_twin)| {
                let found = self
                    .catalogue
                    .platform(platform)
                    .zip(self.catalogue.workload(workload));
                let (platform, workload) = found.ok_or_else(|| {
                    LabError::Plan(format!(
                        "{} names a platform or workload that does not exist",
                        planned.record.label
                    ))
                })?;
                Ok(Cast {
                    name,
                    platform,
                    workload,
                    settings,
                    is_twin,
                })
            })
            .collect()
    }

    fn cell(
        &self,
        assignment: Assignment,
        planned: &PlannedTreatment,
        casts: &[Cast<'_>],
    ) -> Result<CellConfig, LabError> {
        let name = format!("trial-{}-{}", std::process::id(), assignment.index);
        let mut config = CellConfig::from_settings(&name, &planned.settings)?;
        let elsewhere = self.elsewhere.as_ref();
        let elsewhere = elsewhere.filter(|_| planned.client_is_elsewhere);
        config.outer = elsewhere.map(|elsewhere| elsewhere.client.network.clone());
        config.seats.clear();
        for (number, cast) in casts.iter().enumerate() {
            let mut seat = SeatConfig::from_settings(cast.name, cast.settings)?;
            seat.is_outside = cast.platform.is_found(cast.settings);
            let mib = cast.workload.scratch_mib(cast.settings);
            if mib > 0 && !seat.is_outside {
                // An image for each guest: only one may write to it.
                let folder = match number {
                    0 => self.cache_dir.clone(),
                    number => self.cache_dir.join(format!("guest-{number}")),
                };
                seat.scratch = Some(scratch::image(&folder, mib)?);
            }
            config.seats.push(seat);
        }
        Ok(config)
    }

    /// Boots the guests one after the other; those that are up are in `guests`, whatever comes.
    fn boot<'a>(
        &self,
        casts: &'a [Cast<'_>],
        cell: &Cell,
        actor: Option<&RemoteActor>,
        journal: &mut Journal,
        guests: &mut Vec<Guest<'a>>,
    ) -> Result<(), LabError> {
        for (cast, seat) in casts.iter().zip(cell.seats()) {
            self.signals.check()?;
            // One that is found needs none.
            let nothing = GuestFiles::default();
            let files = match self.files.get(cast.workload.packages()) {
                _ if cast.platform.is_found(cast.settings) => &nothing,
                Some(files) => files,
                None => return Err(LabError::other("the guest's image was not made ready")),
            };
            let target = boot_one(cast, &seat, files, journal).map_err(|cause| {
                if cast.name == TARGET || cause.is_interrupt() {
                    cause
                } else {
                    LabError::other(format!(
                        "the neighbour {} does not boot: {cause}",
                        cast.name
                    ))
                }
            })?;
            let place = self.elsewhere.as_ref().map(Elsewhere::place);
            let (client, client_subject, place): (Box<dyn LoadClient>, _, _) =
                match actor.zip(place).filter(|_| seat.outer_network().is_some()) {
                    Some((actor, place)) => (Box::new(actor.clone()), elsewhere::subject(), place),
                    None => {
                        let client = seat.client();
                        let subject = client.subject();
                        (Box::new(client), subject, LOCAL.to_owned())
                    }
                };
            guests.push(Guest {
                name: cast.name,
                platform: cast.platform.kind(),
                workload: cast.workload,
                settings: cast.settings,
                is_twin: cast.is_twin,
                client,
                client_subject,
                client_place: place,
                switch: cell.switch().filter(|_| guests.is_empty()),
                client_environment: BTreeMap::new(),
                target,
                service: Default::default(),
            });
        }
        Ok(())
    }

    fn measure(
        &self,
        (planned, block): (&PlannedTreatment, u32),
        guests: &mut [Guest<'_>],
        actor: Option<&RemoteActor>,
        writer: &TrialWriter,
        log: &mut Log<'_>,
        attempt: &mut Attempt,
    ) -> Result<(), LabError> {
        log.phase("service");
        let clock = Instant::now();
        for guest in guests.iter_mut() {
            self.signals.check()?;
            guest.serve()?;
        }
        attempt.times.service = clock.elapsed().into();

        let charging = Charging::begin(&planned.settings, guests)?;
        if let Some(why) = charging
            .as_ref()
            .and_then(|charging| charging.not_traced.clone())
        {
            attempt.environment.insert(NOT_TRACED.to_owned(), why);
        }
        let inner_before = InnerReadings::of(guests)?;
        let watch = HostWatch::new(self.roots, writer.path());
        let subjects: Vec<_> = guests
            .iter()
            .flat_map(|guest| {
                let is_here = guest.client_place == LOCAL;
                let client = is_here.then(|| guest.client_subject.clone());
                let switch = guest.switch.clone();
                std::iter::once(guest.target.subject())
                    .chain(client)
                    .chain(switch)
            })
            .filter(Subject::is_here)
            .collect();
        let (mut watched, absent) = instruments::all(self.roots, &subjects, charging.is_some());
        watched.extend(self.meters.instruments());
        watched.extend(self.own.into_iter().flat_map(OwnInstruments::open));
        for reason in absent {
            log.line(&format!("not observed: {reason}"));
        }
        let hz = self.plan.sample_hz;
        let watch_there = actor.map(|actor| Watch::begin(actor, hz, None));
        let watch_there = watch_there.transpose()?;
        let hosts = guests
            .first()
            .map(|target| found::ssh::host(target.settings, TARGET));
        let host_there = hosts.transpose()?.flatten();
        let watch_host = host_there
            .as_ref()
            .map(|there| Watch::begin(&there.actor, hz, Some(there.whom.clone())));
        let watch_host = watch_host.transpose()?;
        let counting = guests.first().map(|target| {
            let facts = target.target.environment();
            found::xenapi::Counting::begin(target.settings, &facts)
        });
        let watch_pool = PoolWatch::begin(counting.transpose()?.flatten())?;
        let samples = SampleSink::new(writer.samples()?);
        let rate = ObserverConfig {
            rate: Hertz(self.plan.sample_hz),
        };
        let observer = Observer::start(
            rate,
            Arc::new(SystemClock),
            watched,
            Box::new(samples.clone()),
        )?;

        let (mut parties, unseen) = (parties(guests), parties(guests));
        let processors = online_processors(self.roots);
        let drive = Drive {
            plan: self.plan,
            planned,
            block,
            signals: self.signals,
            observer: &observer,
            watch: &watch,
            guests: &mut *guests,
            parties: &parties,
            processors,
            energy: &self.meters.energy,
            host: self.host,
            charging,
            pulse: Pulse::of(self.host),
            log,
        };
        if let Some(seed) = drive.load_seed(0) {
            let fact = (LOAD_SEED.key.to_owned(), seed.to_string());
            attempt.environment.extend([fact]);
        }
        let driven = drive.run(&mut attempt.times);
        let report = observer.stop();
        let there = watch_there.filter(|_| driven.is_ok());
        let there = there.map(|watch| watch.end(&samples, log)).transpose();
        let host = watch_host.filter(|_| driven.is_ok());
        let host = host.map(|watch| watch.end(&samples, log)).transpose();
        let marks = driven.as_ref().ok().and_then(|driven| {
            let (first, last) = (driven.stretches.first()?, driven.stretches.last()?);
            Some((first.begin.at, last.end.at))
        });
        let pool = watch_pool.zip(marks);
        let pool = pool.map(|(watch, marks)| watch.end(marks, self.signals, &samples, log));
        let pool = pool.transpose();
        // Also after a failure: what is stored already should be readable.
        let closed = samples.close();
        let driven = driven?;
        let report = report?;
        let (there, host, pool) = (there?, host?, pool?);
        closed?;
        if let (Some(there), Some(target)) = (there, guests.first_mut()) {
            target.client_environment = there.environment;
            attempt.suspect.extend(there.suspect);
        }
        let mut hosted = BTreeMap::new();
        let mut processors_there = processors;
        let mut shortest = Nanoseconds(0);
        if let (Some(found), Some(target)) = (host.or(pool), parties.first_mut()) {
            let facts = found.environment.into_iter();
            let facts = facts.map(|(name, fact)| (format!("host.{name}"), fact));
            attempt.environment.extend(facts);
            attempt.suspect.extend(found.suspect);
            if let Some(host) = found.hosted {
                (target.is_here, target.is_vm) = (true, host.seen.is_vm);
                target.source = target.source.combine(host.seen.source);
                processors_there = host.processors;
                shortest = host.shortest;
                let ends = driven.stretches.iter();
                let ends = ends.flat_map(|stretch| [stretch.begin.at, stretch.end.at]);
                hosted = ends.map(|at| (at, host.at(at))).collect();
                attempt.environment.extend(host.seen.facts);
            }
        }
        writer.write_workload_json(&driven.raw)?;
        writer.write_histograms(&findings::histograms(&driven, &parties))?;
        let inner_after = InnerReadings::of(guests)?;
        for (instrument, count, first) in &report.failures {
            log.line(&format!(
                "{instrument} could not be read {count} times: {first}"
            ));
        }
        let found = Findings {
            host: self.host,
            energy: &self.meters.energy,
            period: Nanoseconds::from(Duration::from_secs_f64(1.0 / self.plan.sample_hz)),
            guests,
            parties: &parties,
            unseen: &unseen,
            processors,
            report: &report,
            inner: (&inner_before, &inner_after),
            hosted,
            processors_there,
            shortest,
        };
        found.conclude(driven, attempt);
        if let Some(model) = &self.meters.model {
            power_model::record(model, attempt);
        }
        Ok(())
    }
}

fn boot_one(
    cast: &Cast<'_>,
    seat: &Seat<'_>,
    files: &GuestFiles,
    journal: &mut Journal,
) -> Result<Box<dyn Target>, LabError> {
    let outlives = cast.platform.outlives(seat, cast.settings);
    if !outlives.is_empty() {
        journal.record_all(outlives)?;
    }
    let booted = cast.platform.boot(seat, files, cast.settings);
    Ok(booted.map_err(|cause| Share::from_settings(cast.settings).explain(cause))?)
}

fn parties(guests: &[Guest<'_>]) -> Vec<Party> {
    guests
        .iter()
        .map(|guest| {
            let subject = guest.target.subject();
            Party {
                is_here: subject.is_here(),
                guest: subject.owner,
                client: guest.client_subject.owner.clone(),
                is_vm: subject.vmm.is_some(),
                source: guest.target.source(),
            }
        })
        .collect()
}

/// Processors that `/proc/stat` counts; an affinity of our own must not lower the number.
fn online_processors(roots: &Roots) -> usize {
    let stat = roots.proc_text("stat").unwrap_or_default();
    let is_processor = |line: &&str| {
        line.strip_prefix("cpu")
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    stat.lines().filter(is_processor).count().max(1)
}
