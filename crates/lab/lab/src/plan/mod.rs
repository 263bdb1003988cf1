// SPDX-License-Identifier: Apache-2.0
//! A plan: the treatments, their repetitions and order, and the rule to stop.
//!
//! [`Plan::read`] turns TOML into a validated plan, or into [`Diagnostics`] that point at line
//! and column; `treatments` expands it; `schedule` puts the trials into their seeded order.

mod catalogue;
mod diagnostic;
mod draw;
pub mod keys;
pub mod new;
mod paths;
mod profile;
pub mod read;
mod same;
mod schedule;
pub mod shipped;
mod study;
mod support;
#[cfg(test)]
mod tests;
mod treatments;
pub mod write;

pub use catalogue::{CHARGE, Catalogue};
pub use diagnostic::{Diagnostic, Diagnostics};
pub use draw::{Draw, Variation};
pub use paths::PlanPath;
pub use profile::{Objective, ObjectiveError, Profile, Step};
pub use schedule::{Shard, ShardError, load_seed, schedule};
pub use study::charge_study;
pub use support::{settling, unsupported_objectives};
pub use treatments::{GuestRole, PlannedGuest, PlannedTreatment, combinations, treatments};

use std::collections::BTreeMap;
use std::time::Duration;
use vtax_host::cell::OuterNetwork;
use vtax_host::settings::{Level, Settings};
use vtax_load::workload::command::KIND;
use vtax_results::limit::{PlannedGate, Until};

/// A validated plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Its name, also the default name of its results directory.
    pub name: String,
    /// Its purpose, in a sentence.
    pub description: String,
    /// Seed of the trial order.
    pub seed: u64,
    /// Blocks to run: repetitions of every treatment, or the most that the stop rule may take.
    pub repetitions: u32,
    /// The variation between blocks in a testbed.
    pub variation: Variation,
    /// The warm-up before each window.
    pub warmup: Duration,
    /// The window of fixed-duration workloads.
    pub duration: Duration,
    /// The order of trials.
    pub order: Order,
    /// The rule to stop.
    pub stop: StopRule,
    /// Sampling passes per second.
    pub sample_hz: f64,
    /// The length of the idle phase before each block of a run with a meter; zero turns it off.
    pub idle: Duration,
    /// Meters to read, by name. `auto` selects the host's meters, or the power model when the host has none.
    pub meters: Vec<String>,
    /// Whether the canary runs beside trials.
    pub canary: Canary,
    /// The smallest relative difference that is reported as a difference.
    pub minimum_effect: f64,
    /// The baseline of every treatment.
    pub baseline: Baseline,
    /// Settings of every trial.
    pub settings: Settings,
    /// Factors with their levels, by key.
    pub factors: BTreeMap<String, Vec<Level>>,
    /// Platforms, in the order of tables.
    pub platforms: Vec<Entry>,
    /// Workloads, in the order of tables.
    pub workloads: Vec<Entry>,
    /// The variants of what is measured, the one that the others are compared with first; empty without variants.
    pub variants: Vec<Variant>,
    /// The neighbours that a trial can have.
    pub neighbours: Vec<Neighbour>,
    /// The largest share of all trials that may run again because they do not count.
    pub again: f64,
    /// The places of actors on other hosts.
    pub places: Places,
    /// The limits that its runs are judged by.
    pub gates: Vec<PlannedGate>,
    /// True after [`Plan::quick`].
    pub is_quick: bool,
    quick: Quick,
}

/// A variant of what is measured, such as a version of a program.
#[derive(Debug, Clone, PartialEq)]
pub struct Variant {
    /// Its name, which is its level of the factor [`VARIANT`].
    pub name: String,
    /// Its settings of platforms, by full key.
    pub settings: Settings,
}

/// A platform or workload of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Its name in this plan's tables; the kind unless the plan gives a name.
    pub name: String,
    /// The kind of platform or workload.
    pub kind: String,
    /// Its own settings, by full key; where variants change them, those of the first.
    pub settings: Settings,
    /// Of a workload that variants change: its settings in each of them.
    pub variants: Vec<Settings>,
    /// Of a workload: the profile of its load.
    pub profile: Profile,
    /// Of a workload: the objective that it must keep.
    pub objective: Option<Objective>,
}

impl Variant {
    /// Its level of the factor [`VARIANT`].
    pub fn level(&self) -> Level {
        Level::Text(self.name.clone())
    }
}

impl Entry {
    /// The settings of a workload in each of the plan's variants, with the variant's name; without a name where the
    /// variants do not change it.
    pub fn in_variants<'a>(
        &'a self,
        variants: &'a [Variant],
    ) -> Vec<(Option<&'a str>, &'a Settings)> {
        match self.variants.as_slice() {
            [] => vec![(None, &self.settings)],
            own => {
                let names = variants.iter().map(|variant| Some(variant.name.as_str()));
                names.zip(own).collect()
            }
        }
    }
}

/// The factor that chooses neighbours by name.
pub use vtax_results::NEIGHBOURS;
/// The factor of variants.
pub use vtax_results::VARIANT;

/// Settings of each single guest: the key in a neighbour's table, and the full key.
const SETTINGS_OF_A_GUEST: [(&str, &str); 4] = [
    ("pin", "target.pin"),
    ("cpu_weight", "target.cpu_weight"),
    ("cpu_cap", "target.cpu_cap"),
    ("client_pin", "client.pin"),
];

/// The level of [`NEIGHBOURS`] without a neighbour.
pub const ALONE: &str = "none";

/// A guest beside the target, loaded from before the warm-up until after the end.
#[derive(Debug, Clone, PartialEq)]
pub struct Neighbour {
    /// Its name, which is the owner of its series.
    pub name: String,
    /// Its kind.
    pub kind: NeighbourKind,
}

/// The kind of a neighbour.
#[derive(Debug, Clone, PartialEq)]
pub enum NeighbourKind {
    /// A copy of the target: the same platform, workload, settings and load.
    Twin,
    /// A guest with its own workload.
    Guest {
        /// The kind of its workload.
        workload: String,
        /// The name of its platform in the plan; unset: the target's.
        platform: Option<String>,
        /// Its own settings, by full key.
        settings: Settings,
    },
}

/// The places of actors on other hosts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Places {
    /// The target's client; unset: this host.
    pub client: Option<RemoteClient>,
}

/// A client on another machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteClient {
    /// The host, as ssh takes it.
    pub host: String,
    /// The network to that host, and the target's address on it.
    pub network: OuterNetwork,
}

/// Whether the canary runs beside trials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Canary {
    /// On a host that is not emulated.
    Auto,
    /// On every host.
    On,
    /// Never.
    Off,
}

/// The order of trials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Every block in an order of its own, drawn from the seed.
    Interleaved,
    /// Every block in the plan's order: for debugging a plan, not for conclusions.
    Sequential,
}

/// The rule to end a run. None ends it at the significance of one look, which would bias the result.
#[derive(Debug, Clone, PartialEq)]
pub enum StopRule {
    /// After `repetitions` blocks.
    Fixed,
    /// When the confidence interval of a metric is narrow enough for every treatment.
    Precision {
        /// The metric, such as `cpu.per_work`.
        metric: String,
        /// Wanted half width, relative to the mean.
        width: f64,
        /// Blocks to run in any case.
        minimum: u32,
        /// The time after which no new block starts.
        time_cap: Duration,
    },
    /// When the report knows enough, by intervals that hold at every look.
    Until {
        /// What it must know.
        until: Until,
        /// Blocks to run in any case.
        minimum: u32,
        /// The time after which no new block starts.
        time_cap: Duration,
    },
}

/// The baseline of comparisons: a platform, levels, or both.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Baseline {
    /// The platform's name; unset: each treatment's own.
    pub platform: Option<String>,
    /// Factor levels; factors not named here: each treatment's own.
    pub levels: BTreeMap<String, Level>,
}

/// The values that the quick profile overrides.
#[derive(Debug, Clone, PartialEq, Default)]
struct Quick {
    repetitions: Option<u32>,
    warmup: Option<Duration>,
    duration: Option<Duration>,
    sample_hz: Option<f64>,
    settings: Settings,
}

impl Plan {
    /// Reads and validates a plan. `file` only names it in messages.
    ///
    /// # Errors
    /// All faults of the plan, each with line, column and, where one is near, the valid spelling.
    pub fn read(file: &str, text: &str, catalogue: &Catalogue) -> Result<Self, Diagnostics> {
        read::read(file, text, catalogue)
    }

    /// Returns the commands that the plan itself defines, in the order in which a trial runs them.
    pub fn commands(&self) -> Vec<String> {
        let mut commands = Vec::new();
        for workload in self.workloads.iter().filter(|entry| entry.kind == KIND) {
            for (variant, settings) in workload.in_variants(&self.variants) {
                for key in ["prepare", "serve", "load"] {
                    let text = settings.text(&format!("load.{key}"));
                    let name = variant.map_or_else(String::new, |name| format!(" of {name}"));
                    commands
                        .extend(text.map(|text| format!("{}, {key}{name}: {text}", workload.name)));
                }
            }
        }
        commands
    }

    /// Removes repetitions for a place where they give the same numbers: each treatment runs once, unless blocks
    /// vary. Returns the number of repetitions that it removed.
    pub fn without_repetitions(&mut self) -> u32 {
        if self.variation != Variation::None {
            return 0;
        }
        self.stop = StopRule::Fixed;
        std::mem::replace(&mut self.repetitions, 1) - 1
    }

    /// Returns the plan with the durations and repetitions of the quick profile.
    #[must_use]
    pub fn quick(mut self) -> Self {
        let quick = self.quick.clone();
        self.repetitions = quick.repetitions.unwrap_or(self.repetitions.min(3));
        self.warmup = quick
            .warmup
            .unwrap_or(self.warmup.min(Duration::from_secs(1)));
        self.duration = quick
            .duration
            .unwrap_or(self.duration.min(Duration::from_secs(3)));
        self.sample_hz = quick.sample_hz.unwrap_or(self.sample_hz);
        self.idle = self.idle.min(Duration::from_secs(2));
        // The quick profile also overrides the settings of entries.
        for (key, level) in quick.settings.0 {
            for entry in self.workloads.iter_mut().chain(&mut self.platforms) {
                for settings in std::iter::once(&mut entry.settings).chain(&mut entry.variants) {
                    if let Some(own) = settings.0.get_mut(&key) {
                        *own = level.clone();
                    }
                }
            }
            self.settings.0.insert(key, level);
        }
        for workload in &mut self.workloads {
            workload.profile = workload.profile.clone().with_levels_of(self.duration);
        }
        if let StopRule::Precision { minimum, .. } | StopRule::Until { minimum, .. } =
            &mut self.stop
        {
            *minimum = (*minimum).min(self.repetitions);
        }
        self.is_quick = true;
        self
    }
}
