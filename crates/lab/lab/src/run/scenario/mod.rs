// SPDX-License-Identifier: Apache-2.0
//! The scenarios of a plan, as an experiment: the guests of a trial in one cell, their loads, and the readings
//! of each guest.

mod absence;
mod charging;
mod dry;
mod findings;
mod guest;
mod idle;
mod images;
mod instruments;
mod knob_watch;
mod left;
mod live;
mod load;
mod measure;
mod measurement;
mod metering;
mod observation;
mod phases;
mod power_model;
mod programs;
mod remote;
mod requirements;
mod residency;

pub use charging::why_not_traced;
pub use dry::{DryRun, DryTreatment, DryTrial, SeenGuest, dry_run};
pub use residency::busy_mhz;

use super::{
    Assignment, Experiment, Knows, Log, NewRun, OwnInstruments, PlanTrials, Planned, Progress,
    RunOptions, RunSummary, run_experiment, stop,
};
use crate::LabError;
use crate::place::actor::RemoteActor;
use crate::plan::{Canary, Catalogue, Draw, Plan, PlannedTreatment};
use guest::{Guest, GuestSpec};
use idle::{IdleHost, IdlePhases};
use remote::ClientHost;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tracing::warn;
use vtax_charge::KeptPrograms;
use vtax_core::Source;
use vtax_guest::image::{self, GuestFiles};
use vtax_guest::platform::Platform;
use vtax_host::cell::{Cell, CellConfig, SeatConfig};
use vtax_host::journal::Journal;
use vtax_host::knobs;
use vtax_host::meters::Meters;
use vtax_host::rootless;
use vtax_host::roots::Roots;
use vtax_host::scratch;
use vtax_host::settings::Settings;
use vtax_host::signals::Signals;
use vtax_host::untrusted::shown_lines;
use vtax_load::workload::Workload;
use vtax_observe::clock::SystemClock;
use vtax_results::{ResultsDir, Treatment, Trial, TrialWriter};

/// Runs a plan. Call it on a thread that lives as long as the run, such as the main thread,
/// because a cell ends with the thread that created it.
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
    let mut scenarios = Scenarios::new(planned, options, &roots, signals);
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
    knows: Option<&'a dyn Knows>,
    roots: &'a Roots,
    signals: &'a Signals,
    cache_dir: PathBuf,
    /// The image of every recipe.
    files: BTreeMap<image::Recipe, GuestFiles>,
    /// The images above them.
    images: images::Images,
    /// The digests of the plan's files, after [`Experiment::prepare`].
    digests_of_files: String,
    meters: Meters,
    idle: IdlePhases,
    /// The programs that trace soft interrupts.
    programs: KeptPrograms,
    /// The host of the target's client, when that is another machine.
    client_host: Option<ClientHost>,
}

impl Scenarios<'_> {
    /// Returns what the expected time assumes, in words; `None` where it is known.
    fn assumption(&self) -> Option<String> {
        let mut planned = self.planned.iter();
        planned.find_map(|one| one.assumption(self.catalogue))
    }
}

impl Experiment for Scenarios<'_> {
    fn new_run(&self) -> NewRun<'_> {
        NewRun {
            files: &self.digests_of_files,
            ..self.of.new_run(self.place)
        }
    }

    fn treatments(&self) -> Vec<Treatment> {
        self.of.records()
    }

    fn again(&self) -> f64 {
        self.plan.again
    }

    fn prepare(&mut self, note: &mut dyn FnMut(String)) -> Result<(), LabError> {
        let actor = self
            .client_host
            .as_mut()
            .map(ClientHost::actor)
            .transpose()?;
        self.check(actor.as_ref())?;
        for planned in self.planned {
            for recipe in self.of.recipes_of(planned) {
                if self.files.contains_key(&recipe) {
                    continue;
                }
                let files = image::ensure(&recipe, &mut |line: &str| note(line.to_owned()))?;
                programs::check_image(self.planned, self.catalogue, &recipe, &files.root)?;
                self.files.insert(recipe, files);
            }
            for guest in planned.guests() {
                self.images
                    .prepare(&guest, self.catalogue, &self.files, note)?;
            }
        }
        self.digests_of_files = self.images.digests_of_files();
        programs::check_commands(self.planned, self.catalogue, &|guest| {
            let platform = self.catalogue.platform(guest.platform_kind)?;
            let workload = self.catalogue.workload(guest.workload_kind)?;
            let files = self.files_of(platform, workload, guest.settings)?;
            Some(files.root.as_path())
        })?;
        self.cache_dir = image::cache_dir()?;
        self.meters = Meters::choose(&self.plan.meters, self.roots, note)?;
        // The vtax that started the emulated host prints it.
        if self.host != Source::Simulated
            && let Some(assumption) = self.assumption()
        {
            note(assumption);
        }
        Ok(())
    }

    fn expected(&self, treatment: usize) -> Duration {
        let per_block = if self.meters.is_measured() && self.host != Source::Simulated {
            self.plan.idle
        } else {
            Duration::ZERO
        };
        let treatments = u32::try_from(self.planned.len()).unwrap_or(u32::MAX);
        self.of.expected(treatment) + per_block / treatments.max(1)
    }

    fn has_canary(&self) -> bool {
        match self.plan.canary {
            Canary::On => true,
            Canary::Off => false,
            // An emulated host has no noise.
            Canary::Auto => self.host != Source::Simulated,
        }
    }

    fn satisfied(
        &self,
        results: &ResultsDir,
        next_block: u32,
        elapsed: Duration,
        progress: &mut dyn Progress,
    ) -> Option<String> {
        let watch = (self.knows, progress);
        stop::satisfied(self.plan, results, next_block, elapsed, watch)
    }

    fn perform(
        &mut self,
        assignment: Assignment,
        journal: &mut Journal,
        writer: &TrialWriter,
        log: &mut Log<'_>,
        trial: &mut Trial,
    ) -> Result<(), LabError> {
        let planned = self.planned.get(assignment.treatment).ok_or_else(|| {
            LabError::Plan(format!(
                "the plan has no treatment {}",
                assignment.treatment
            ))
        })?;
        let draw = self.plan.variation.draw(self.plan.seed, assignment.block);
        let drawn = draw.map(|draw| draw.applied(planned, self.catalogue));
        let planned = drawn.as_ref().unwrap_or(planned);
        let host = IdleHost {
            meters: &self.meters,
            roots: self.roots,
            signals: self.signals,
            length: self.plan.idle,
            source: self.host,
            clock: &SystemClock,
            wait: &std::thread::sleep,
        };
        if self.idle.are_due(assignment.block, &host) {
            log.phase("idle");
            let clock = Instant::now();
            self.idle.measure(assignment.block, &host)?;
            trial.times.idle = clock.elapsed().into();
        }
        trial.observation.idle = self.idle.last().cloned();
        let actor = match &mut self.client_host {
            Some(host) if planned.client_is_remote => Some(host.actor()?),
            _ => None,
        };
        let specs = self.specs(planned)?;
        self.signals.check()?;
        if let Some(draw) = draw {
            std::thread::sleep(draw.start);
        }
        log.phase("boot");
        let clock = Instant::now();
        knobs::host::apply(&planned.settings, &self.roots.sys, journal)?;
        let cell = Cell::create(self.cell(assignment, planned, &specs)?, journal)?;
        let mut guests = Vec::new();
        let booted = self.boot(&specs, &cell, actor.as_ref(), journal, &mut guests);
        trial.times.boot = clock.elapsed().into();
        let done = booted.and_then(|()| {
            if let Some(target) = guests.first() {
                trial.environment = target.target.about().environment.clone();
                trial.environment.extend(draw.iter().flat_map(Draw::facts));
                if rootless::user().is_some() {
                    let scope = rootless::SCOPE.to_owned();
                    trial.environment.insert(rootless::FACT.to_owned(), scope);
                }
                let spec = target.spec;
                trial.environment.extend(self.images.facts(
                    spec.platform,
                    spec.workload,
                    spec.settings,
                ));
            }
            let measurement = measurement::Measuring {
                scenarios: self,
                planned,
                block: assignment.block,
                actor: actor.as_ref(),
                writer,
            };
            measurement.run(&mut guests, log, trial)
        });
        for guest in &guests {
            let console = guest.target.console_tail();
            if !console.trim().is_empty() {
                let console = shown_lines(&console);
                log.line(&format!("console of {}:\n{console}", guest.spec.name));
            }
        }
        log.phase("stop");
        // Every step runs even when an earlier one failed. The first failure is reported.
        let stopped: Vec<_> = guests
            .into_iter()
            .map(|guest| {
                let name = guest.spec.name;
                let stopped = guest.target.stop();
                stopped.inspect_err(|cause| warn!("the guest {name} does not stop: {cause}"))
            })
            .collect();
        let destroyed = cell.destroy();
        done.map_err(|cause| absence::explained(cause, self.signals, log))?;
        stopped.into_iter().collect::<Result<(), _>>()?;
        Ok(destroyed?)
    }
}

impl<'a> Scenarios<'a> {
    fn new(
        planned: Planned<'a>,
        options: &'a RunOptions,
        roots: &'a Roots,
        signals: &'a Signals,
    ) -> Self {
        Self {
            of: planned,
            planned: planned.treatments,
            plan: planned.plan,
            catalogue: planned.catalogue,
            place: &options.place,
            host: options.host,
            own: options.own.as_deref(),
            knows: options.knows.as_deref(),
            roots,
            signals,
            cache_dir: PathBuf::new(),
            files: BTreeMap::new(),
            images: images::Images::new(planned.folder),
            digests_of_files: String::new(),
            meters: Meters::default(),
            idle: IdlePhases::default(),
            programs: KeptPrograms::default(),
            client_host: planned.plan.places.client.clone().map(ClientHost::new),
        }
    }
}

impl Scenarios<'_> {
    /// Returns the guests of a treatment, the target first.
    fn specs<'a>(&self, planned: &'a PlannedTreatment) -> Result<Vec<GuestSpec<'a>>, LabError> {
        let guests = planned.guests().map(|guest| {
            let platform = self.catalogue.platform(guest.platform_kind);
            let found = platform.zip(self.catalogue.workload(guest.workload_kind));
            let (platform, workload) = found.ok_or_else(|| {
                LabError::Plan(format!(
                    "{} names a platform or workload that does not exist",
                    planned.record.label
                ))
            })?;
            Ok(GuestSpec {
                name: guest.name,
                platform,
                workload,
                settings: guest.settings,
                is_twin: guest.is_twin,
            })
        });
        guests.collect()
    }

    fn cell(
        &self,
        assignment: Assignment,
        planned: &PlannedTreatment,
        specs: &[GuestSpec<'_>],
    ) -> Result<CellConfig, LabError> {
        let name = format!("trial-{}-{}", std::process::id(), assignment.index);
        let mut config = CellConfig::from_settings(&name, &planned.settings)?;
        config.outer = match &self.client_host {
            Some(host) if planned.client_is_remote => Some(host.client.network.clone()),
            _ => None,
        };
        config.seats.clear();
        for (number, spec) in specs.iter().enumerate() {
            let mut seat = SeatConfig::from_settings(spec.name, spec.settings)?;
            seat.is_outside = spec.platform.is_external(spec.settings);
            let mib = spec.workload.scratch_mib(spec.settings);
            if mib > 0 && !seat.is_outside {
                // Each guest has its own image, because only one guest may write to an image.
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

    /// The files of a guest that is not external, after [`Experiment::prepare`].
    fn files_of(
        &self,
        platform: &dyn Platform,
        workload: &dyn Workload,
        settings: &Settings,
    ) -> Option<&GuestFiles> {
        let recipe = image::Recipe::of_guest(&workload.packages(settings), settings);
        let shared = || self.files.get(&recipe);
        self.images
            .for_guest(platform, workload, settings)
            .or_else(shared)
    }

    /// Boots the guests one after the other. After an error, `guests` holds the guests that have booted.
    fn boot<'a>(
        &self,
        specs: &[GuestSpec<'a>],
        cell: &Cell,
        actor: Option<&RemoteActor>,
        journal: &mut Journal,
        guests: &mut Vec<Guest<'a>>,
    ) -> Result<(), LabError> {
        let no_image = GuestFiles::default();
        for (spec, seat) in specs.iter().zip(cell.seats()) {
            self.signals.check()?;
            let files = if spec.platform.is_external(spec.settings) {
                &no_image
            } else {
                self.files_of(spec.platform, spec.workload, spec.settings)
                    .ok_or_else(|| LabError::other("the guest's image was not prepared"))?
            };
            let place = self.client_host.as_ref().map(ClientHost::place);
            let switch = if guests.is_empty() {
                cell.switch()
            } else {
                None
            };
            guests.push(spec.boot(&seat, files, actor.zip(place), switch, journal)?);
        }
        Ok(())
    }
}
