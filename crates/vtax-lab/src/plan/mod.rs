//! A plan: what to try, how often, in which order, and when to stop.
//!
//! [`Plan::read`] turns TOML into a validated plan, or into [`Diagnostics`] that point at line
//! and column; `treatments` expands it; `schedule` puts the trials into their seeded order.

mod catalogue;
mod diagnostic;
mod read;
mod schedule;
#[cfg(test)]
mod tests;
mod treatments;

pub use catalogue::Catalogue;
pub use diagnostic::{Diagnostic, Diagnostics};
pub use schedule::{Shard, schedule};
pub use treatments::{PlannedTreatment, treatments};

use std::collections::BTreeMap;
use std::time::Duration;
use vtax_host::settings::{Level, Settings};

/// A validated plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Its name, also the default name of its results directory.
    pub name: String,
    /// What it wants to find out.
    pub description: String,
    /// Seed of the trial order.
    pub seed: u64,
    /// Blocks to run: repetitions of every treatment, or the most that the stop rule may take.
    pub repetitions: u32,
    /// Load runs this long before it is measured.
    pub warmup: Duration,
    /// How long fixed-duration workloads are measured.
    pub duration: Duration,
    /// The order of trials.
    pub order: Order,
    /// When to stop.
    pub stop: StopRule,
    /// Sampling passes per second.
    pub sample_hz: f64,
    /// Meters to read, by name; `auto` is whatever the host has, the model where it has none.
    pub meters: Vec<String>,
    /// Smallest relative difference worth calling one.
    pub minimum_effect: f64,
    /// What every treatment is compared against.
    pub baseline: Baseline,
    /// Settings of every trial.
    pub settings: Settings,
    /// Factors with their levels, by key.
    pub factors: BTreeMap<String, Vec<Level>>,
    /// Platforms, in the order of tables.
    pub platforms: Vec<Entry>,
    /// Workloads, in the order of tables.
    pub workloads: Vec<Entry>,
    /// True after [`Plan::quick`].
    pub is_quick: bool,
    quick: Quick,
}

/// A platform or workload of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Its name in this plan's tables; the kind unless the plan says otherwise.
    pub name: String,
    /// Which platform or workload it is.
    pub kind: String,
    /// Its own settings, by full key.
    pub settings: Settings,
}

/// The order of trials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Every block in an order of its own, drawn from the seed.
    Interleaved,
    /// Every block in the plan's order: for debugging a plan, not for conclusions.
    Sequential,
}

/// When a run has seen enough. Never on significance: that would bias the result.
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
        /// No new block starts after this long.
        time_cap: Duration,
    },
}

/// What treatments are compared against: a platform, levels, or both.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Baseline {
    /// The platform's name; unset: each treatment's own.
    pub platform: Option<String>,
    /// Factor levels; factors not named here: each treatment's own.
    pub levels: BTreeMap<String, Level>,
}

/// What the quick profile changes.
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
    /// Everything that is wrong with it, each with line, column and, where one is near, the
    /// valid spelling.
    pub fn read(file: &str, text: &str, catalogue: &Catalogue) -> Result<Self, Diagnostics> {
        read::read(file, text, catalogue)
    }

    /// The same plan with the durations and repetitions of a first look.
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
        // A quick look sets what it names everywhere, also where an entry says otherwise.
        for (key, level) in quick.settings.0 {
            for entry in self.workloads.iter_mut().chain(&mut self.platforms) {
                if let Some(own) = entry.settings.0.get_mut(&key) {
                    *own = level.clone();
                }
            }
            self.settings.0.insert(key, level);
        }
        if let StopRule::Precision { minimum, .. } = &mut self.stop {
            *minimum = (*minimum).min(self.repetitions);
        }
        self.is_quick = true;
        self
    }
}
