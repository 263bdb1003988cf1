// SPDX-License-Identifier: Apache-2.0
//! The loads of a trial: each guest with the load generator that drives it.

use super::guest::Guest;
use crate::LabError;
use crate::plan::{Plan, PlannedTreatment, Profile, load_seed};
use std::time::{Duration, Instant};
use vtax_core::Source;
use vtax_host::HostError;
use vtax_host::command::CommandLine;
use vtax_host::settings::{Domain, Level, Parameter, Settings};
use vtax_load::workload::{
    Extent, LOAD_SEED, Load, LoadSpec, Scratch, Timing, Workload, WorkloadResult,
};

/// The most characters of a generator's output that an error quotes.
const QUOTED_CHARACTERS: usize = 400;

/// The trial that loads run in.
#[derive(Clone, Copy)]
pub(super) struct TrialContext<'a> {
    pub plan: &'a Plan,
    pub planned: &'a PlannedTreatment,
    /// The trial's block.
    pub block: u32,
    /// `Simulated` when this host is an emulated one.
    pub host: Source,
}

impl TrialContext<'_> {
    /// Returns the seed of the load of the guest at `index`, if each block has its own seed.
    pub fn load_seed(&self, index: usize, guest: &Guest<'_>) -> Option<i64> {
        is_seeded_by_block(guest.spec.workload, guest.spec.settings, self.host)
            .then(|| load_seed(self.plan.seed, self.block, index))
    }

    pub fn is_steady(&self) -> bool {
        self.planned.profile == Profile::Steady
    }
}

/// Whether each block has its own seed for a load. It has none when the load draws no random numbers, when the plan
/// sets the seed, and in an emulated host, in which repetitions differ only by the host's seed.
pub(super) fn is_seeded_by_block(
    workload: &dyn Workload,
    settings: &Settings,
    host: Source,
) -> bool {
    parameter(workload, LOAD_SEED.key).is_some()
        && !settings.0.contains_key(LOAD_SEED.key)
        && host != Source::Simulated
}

fn parameter(workload: &dyn Workload, key: &str) -> Option<&'static Parameter> {
    let mut parameters = workload.about().parameters.iter();
    parameters.find(|parameter| parameter.key == key)
}

/// The time in which a guest is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// In the present window.
    Window,
    /// From before the first warm-up until after the last window.
    Throughout,
    /// Not in the present window.
    Idle,
}

/// A guest and the load that drives it.
pub(super) struct DrivenGuest<'a, 'b> {
    pub guest: &'a mut Guest<'b>,
    pub role: Role,
    /// Its number among the guests of the trial.
    index: usize,
    load: Option<RunningLoad>,
}

/// A started load.
struct RunningLoad {
    load: Box<dyn Load>,
    settings: Settings,
    timing: Timing,
    /// The generator's output, after the generator or its level has ended.
    output: Option<Vec<u8>>,
    /// Whether it is an error when the load ends by itself.
    must_last: bool,
}

/// The result of a load, and its generator's output.
pub(super) struct LoadReport {
    pub result: WorkloadResult,
    pub output: Vec<u8>,
}

impl<'a, 'b> DrivenGuest<'a, 'b> {
    fn new(index: usize, guest: &'a mut Guest<'b>) -> Self {
        Self {
            guest,
            role: Role::Idle,
            index,
            load: None,
        }
    }

    pub fn is_loaded(&self) -> bool {
        self.load.is_some()
    }

    pub fn runs_to_completion(&self) -> bool {
        let spec = &self.guest.spec;
        spec.workload.extent(spec.settings) == Extent::ToCompletion
    }

    /// Whether the guest's load runs in the guest itself.
    pub fn runs_in_target(&self) -> bool {
        let running = self.load.as_ref();
        running.is_some_and(|running| running.load.runs_in_target())
    }

    /// Returns the command line that starts a command that does nothing as the load is started, if it has one.
    ///
    /// # Errors
    /// When the plan's command cannot be read.
    pub fn launch(
        &self,
        trial: &TrialContext<'_>,
        timing: Timing,
    ) -> Result<Option<CommandLine>, LabError> {
        let settings = self.settings(trial, None);
        let guest = &*self.guest;
        let spec = LoadSpec {
            address: guest.target.about().address,
            scratch: &Scratch::from_target(guest.target.as_ref()),
            settings: &settings,
            timing,
        };
        Ok(guest.spec.workload.launch(spec)?)
    }

    /// Returns the time at which a generator that changes levels by itself began the present level.
    pub fn level_began(&self) -> Option<Instant> {
        self.load.as_ref()?.load.level_began()
    }

    /// Returns the settings of the guest's load.
    fn settings(&self, trial: &TrialContext<'_>, level: Option<f64>) -> Settings {
        let spec = &self.guest.spec;
        let mut settings = spec.settings.clone();
        let mut set = |key: &str, level| settings.0.insert(key.to_owned(), level);
        let is_timed = !trial.is_steady() || self.role == Role::Throughout;
        if is_timed && parameter(spec.workload, "load.extent").is_some() {
            set("load.extent", Level::Text("duration".to_owned()));
        }
        if let Some((level, of)) = level.zip(spec.workload.about().level) {
            let is_whole = parameter(spec.workload, of.key)
                .is_some_and(|parameter| matches!(parameter.domain, Domain::Integer(..)));
            #[allow(
                clippy::cast_possible_truncation,
                reason = "levels are bounded by the plan"
            )]
            let level = if is_whole {
                Level::Integer(level.round() as i64)
            } else {
                Level::Number(level)
            };
            set(of.key, level);
        }
        if let Some(seed) = trial.load_seed(self.index, self.guest) {
            set(LOAD_SEED.key, Level::Integer(seed));
        }
        settings
    }

    /// Starts the guest's load. A generator that has changed to this level by itself continues.
    ///
    /// # Errors
    /// When the load cannot be started.
    pub fn start(
        &mut self,
        trial: &TrialContext<'_>,
        level: Option<f64>,
        timing: Timing,
    ) -> Result<(), LabError> {
        let settings = self.settings(trial, level);
        if let Some(running) = &mut self.load {
            running.settings = settings;
            running.timing = timing;
            return Ok(());
        }
        let guest = &mut *self.guest;
        let started = guest.spec.workload.drive(
            guest.target.as_mut(),
            guest.client.as_ref(),
            guest.service,
            &settings,
            timing,
        );
        let load = started.map_err(|cause| guest.blame(cause))?;
        self.load = Some(RunningLoad {
            load,
            settings,
            timing,
            output: None,
            must_last: self.role == Role::Throughout,
        });
        Ok(())
    }

    /// Starts a generator that goes through these levels by itself, if its workload has one and no load
    /// runs yet.
    ///
    /// # Errors
    /// When the load cannot be started.
    fn start_ramp(
        &mut self,
        trial: &TrialContext<'_>,
        levels: &[f64],
        first: Timing,
        settle: Duration,
    ) -> Result<(), LabError> {
        if self.is_loaded() {
            return Ok(());
        }
        let levels = levels
            .iter()
            .map(|level| self.settings(trial, Some(*level)));
        let levels: Vec<Settings> = levels.collect();
        let [settings, _, ..] = levels.as_slice() else {
            return Ok(());
        };
        let guest = &mut *self.guest;
        let started = guest.spec.workload.drive_ramp(
            guest.target.as_mut(),
            guest.client.as_ref(),
            guest.service,
            &levels,
            first,
            settle,
        );
        let started = started.map_err(|cause| guest.blame(cause))?;
        self.load = started.map(|load| RunningLoad {
            load,
            settings: settings.clone(),
            timing: first,
            output: None,
            must_last: false,
        });
        Ok(())
    }

    fn poll(&mut self) -> Result<(), LabError> {
        let Some(running) = &mut self.load else {
            return Ok(());
        };
        if running.output.is_some() {
            return Ok(());
        }
        let polled = running.load.poll(self.guest.target.as_mut());
        running.output = polled.map_err(|cause| self.guest.blame(cause))?;
        if running.must_last {
            self.refuse_early_end("measured part")
        } else {
            Ok(())
        }
    }

    /// Whether the guest has no running load.
    fn has_ended(&self) -> bool {
        let running = self.load.as_ref();
        running.is_none_or(|running| running.output.is_some())
    }

    fn refuse_early_end(&self, place: &str) -> Result<(), LabError> {
        let output = self.load.as_ref().and_then(|load| load.output.as_deref());
        let Some(output) = output else { return Ok(()) };
        let text = String::from_utf8_lossy(output);
        let skipped = text.chars().count().saturating_sub(QUOTED_CHARACTERS);
        let end: String = text.chars().skip(skipped).collect();
        let who = if self.guest.spec.is_target() {
            "the load".to_owned()
        } else {
            format!("the load of the neighbour {}", self.guest.spec.name)
        };
        Err(LabError::other(format!(
            "{who} ended in its {place}; the end of what it printed: {end}"
        )))
    }

    fn need_end(&self, limit: Duration) -> Result<(), LabError> {
        if self.has_ended() {
            return Ok(());
        }
        Err(LabError::Host(HostError::Timeout {
            what: format!("the end of the load of {}", self.guest.spec.name),
            seconds: limit.as_secs(),
            evidence: self.guest.target.console_tail(),
        }))
    }

    /// Takes the report of the guest's load, if the load has ended. With `goes_on` the generator continues
    /// with its next level by itself; any other load is removed.
    ///
    /// # Errors
    /// When the workload cannot read the output.
    pub fn take_report(&mut self, goes_on: bool) -> Result<Option<LoadReport>, LabError> {
        let Some(mut running) = self.load.take() else {
            return Ok(None);
        };
        let Some(output) = running.output.take() else {
            return Ok(None);
        };
        let workload = self.guest.spec.workload;
        let parsed = workload.parse(&output, &running.settings, running.timing);
        let result = parsed.map_err(|cause| self.guest.blame(cause))?;
        if goes_on {
            self.load = Some(running);
        }
        Ok(Some(LoadReport { result, output }))
    }
}

/// The guests of a trial, the target first.
pub(super) struct DrivenGuests<'a, 'b> {
    pub target: DrivenGuest<'a, 'b>,
    neighbours: Vec<DrivenGuest<'a, 'b>>,
}

impl<'a, 'b> DrivenGuests<'a, 'b> {
    /// # Errors
    /// When there is no guest.
    pub fn from_guests(guests: &'a mut [Guest<'b>]) -> Result<Self, LabError> {
        let Some((target, neighbours)) = guests.split_first_mut() else {
            return Err(LabError::other("the trial has no guest to measure"));
        };
        let neighbours = (1..).zip(neighbours);
        Ok(Self {
            target: DrivenGuest::new(0, target),
            neighbours: neighbours
                .map(|(index, guest)| DrivenGuest::new(index, guest))
                .collect(),
        })
    }

    pub fn iter(&self) -> impl Iterator<Item = &DrivenGuest<'a, 'b>> {
        std::iter::once(&self.target).chain(&self.neighbours)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut DrivenGuest<'a, 'b>> {
        std::iter::once(&mut self.target).chain(&mut self.neighbours)
    }

    pub fn with_role(&self, role: Role) -> impl Iterator<Item = &DrivenGuest<'a, 'b>> {
        self.iter().filter(move |guest| guest.role == role)
    }

    pub fn with_role_mut(&mut self, role: Role) -> impl Iterator<Item = &mut DrivenGuest<'a, 'b>> {
        self.iter_mut().filter(move |guest| guest.role == role)
    }

    /// Starts a generator that goes through these levels by itself, if only the target follows the profile.
    /// Generators of several guests would diverge, because each continues when its own level has ended.
    ///
    /// # Errors
    /// When the generator cannot be started.
    pub fn start_ramp(
        &mut self,
        trial: &TrialContext<'_>,
        levels: &[f64],
        first: Timing,
        settle: Duration,
    ) -> Result<(), LabError> {
        match self.with_role(Role::Window).count() {
            1 => self.target.start_ramp(trial, levels, first, settle),
            _ => Ok(()),
        }
    }

    /// Checks whether running loads have ended.
    ///
    /// # Errors
    /// When a load failed, or when a load that must last has ended.
    pub fn poll(&mut self) -> Result<(), LabError> {
        self.iter_mut().try_for_each(DrivenGuest::poll)
    }

    /// Whether there are guests with this role, and all of their loads have ended.
    pub fn have_ended(&self, role: Role) -> bool {
        let mut guests = self.with_role(role).peekable();
        guests.peek().is_some() && guests.all(DrivenGuest::has_ended)
    }

    /// # Errors
    /// When a load of the window has ended already.
    pub fn refuse_early_ends(&self, place: &str) -> Result<(), LabError> {
        let mut guests = self.with_role(Role::Window);
        guests.try_for_each(|guest| guest.refuse_early_end(place))
    }

    /// # Errors
    /// When a load of this role has not ended after `limit`.
    pub fn need_ends(&self, role: Role, limit: Duration) -> Result<(), LabError> {
        let mut guests = self.with_role(role);
        guests.try_for_each(|guest| guest.need_end(limit))
    }

    /// Allows all loads to end.
    pub fn let_end(&mut self) {
        for running in self.iter_mut().filter_map(|guest| guest.load.as_mut()) {
            running.must_last = false;
        }
    }

    /// Kills the loads of the window.
    pub fn stop(&mut self) {
        for guest in self.with_role_mut(Role::Window) {
            guest.load = None;
        }
    }
}
