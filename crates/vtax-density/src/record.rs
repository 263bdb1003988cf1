//! What a climb writes down (`workload.json` of its trial), and what reports read again.

use crate::limits::{Binding, Limits};
use crate::resources::{Memory, Resource, Shares};
use serde::{Deserialize, Serialize};

/// The version of this record.
pub const VERSION: u32 = 1;

/// Response or birth times, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// How many there were.
    pub answered: u32,
    /// Requests without an answer, or a wrong one.
    pub failed: u32,
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile; the largest below a hundred values.
    pub p99_us: f64,
    /// The largest.
    pub max_us: f64,
}

impl Latency {
    /// Of these times; `failed` had none.
    #[must_use]
    // Counts of requests.
    pub fn of(mut micros: Vec<f64>, failed: u32) -> Self {
        micros.sort_by(f64::total_cmp);
        let n = micros.len();
        let quantile = |q: f64| {
            let index = (q * n as f64).ceil() as usize;
            micros
                .get(index.saturating_sub(1))
                .copied()
                .unwrap_or_default()
        };
        Self {
            answered: u32::try_from(n).unwrap_or(u32::MAX),
            failed,
            mean_us: if n == 0 {
                0.0
            } else {
                micros.iter().sum::<f64>() / n as f64
            },
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            max_us: micros.last().copied().unwrap_or_default(),
        }
    }
}

/// What growing the population took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Births {
    /// Guests made.
    pub count: u32,
    /// Wall time for all of them, in seconds.
    pub seconds: f64,
    /// From asking for a guest to having it: a process started, an object made.
    pub create: Option<Latency>,
    /// From asking for a guest to one that has booted and sleeps.
    pub boot: Option<Latency>,
}

/// One look at the host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Since the climb began, in seconds.
    pub at: f64,
    /// Every resource, in percent.
    pub shares: Shares,
    /// Processor time of the population's control group, in percent of all processors.
    pub population_cpu: f64,
    /// Whether the population's control group moved any bytes to or from disks.
    #[serde(default)]
    pub population_disk: bool,
}

impl Sample {
    /// The share of a resource as far as the population can be the cause, in percent. Processors
    /// and disks serve others too; and no guest has a way to a network device of the host, since
    /// the cell's network namespace has none.
    #[must_use]
    pub fn own_share(&self, resource: Resource) -> Option<f64> {
        match resource {
            Resource::Cpu => Some(self.population_cpu),
            Resource::Disk if !self.population_disk => Some(0.0),
            Resource::Network => Some(0.0),
            other => self.shares.get(&other).copied(),
        }
    }
}

/// One interval of a climb or a descent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Guests, the probe not counted.
    pub population: u32,
    /// What bringing them up took.
    pub births: Option<Births>,
    /// The host while they sleep.
    pub samples: Vec<Sample>,
    /// How fast guests answer.
    pub probe: Option<Latency>,
    /// The host's memory, in bytes.
    pub memory: Memory,
    /// What the population's control group is charged for, in bytes: pages of its processes and
    /// what the kernel books on them. Less than the host's own difference, which has everything,
    /// but free of other programs' comings and goings.
    #[serde(default)]
    pub charged: Option<f64>,
    /// Energy of the host over the samples, in joules, and over how many seconds.
    pub joules: Option<(f64, f64)>,
    /// Why a guest could not be made.
    pub refused: Option<String>,
}

/// The whole population, left alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Idle {
    /// For how long.
    pub seconds: f64,
    /// Processor time of the population, in percent of one processor.
    pub core_percent: f64,
    /// Energy of the host, in joules.
    pub joules: Option<f64>,
}

/// Guests that came and went, at the top.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Cloud {
    /// For how long, in seconds.
    pub seconds: f64,
    /// Guests that there was room for.
    pub places: u32,
    /// Guests that came, those that were turned away included.
    pub arrivals: u32,
    /// Of these, guests that came when all places were taken.
    pub turned_away: u32,
    /// Guests that went.
    pub departures: u32,
    /// Guests that were there, on average over the time that was planned.
    pub mean_population: f64,
    /// From asking for a guest to one that has booted.
    pub boot: Option<Latency>,
    /// How fast those that were there answered.
    pub probe: Latency,
    /// How much later than planned a guest came or went, at most, in seconds: a platform that needs longer to make or end
    /// guests than there is time between two falls behind.
    pub late: f64,
    /// Processor time of the population and of its making, in percent of one processor.
    pub core_percent: f64,
    /// What ended it early.
    pub refused: Option<String>,
}

/// One climb.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Climb {
    /// [`VERSION`].
    pub version: u32,
    /// The platform's kind.
    pub platform: String,
    /// What was expected.
    pub maximum: u32,
    /// What it might use up.
    pub limits: Limits,
    /// Processors of the host.
    pub processors: u32,
    /// The host before anything was started.
    pub before: Memory,
    /// The way up, the empty platform first.
    pub climb: Vec<Interval>,
    /// The top, left alone.
    pub idle: Option<Idle>,
    /// Guests that came and went, before the way down.
    #[serde(default)]
    pub cloud: Option<Cloud>,
    /// The way down.
    pub descent: Vec<Interval>,
    /// The host after everything was ended.
    pub after: Memory,
    /// How long the memory took to come back, in seconds.
    pub returned_after: f64,
    /// What ended the climb.
    pub binding: Binding,
    /// Processor time of the climb itself, in seconds: this process, and guarding in the supervisor.
    pub own_cpu: f64,
    /// Wall time from the first guest to the end of the climb, in seconds.
    pub seconds: f64,
}

impl Climb {
    /// The highest interval.
    #[must_use]
    pub fn top(&self) -> Option<&Interval> {
        self.climb.last()
    }

    /// Guests at the top.
    #[must_use]
    pub fn guests(&self) -> u32 {
        self.top().map_or(0, |top| top.population)
    }

    /// Memory of one guest in bytes, everything that the platform brought along included.
    #[must_use]
    pub fn bytes_each(&self) -> Option<f64> {
        let top = self.top().filter(|top| top.population > 0)?;
        let used =
            self.before.available - top.memory.available + (top.memory.swap - self.before.swap);
        Some(used / f64::from(top.population))
    }

    /// Memory of one guest in bytes that its control group is charged for.
    #[must_use]
    pub fn charged_each(&self) -> Option<f64> {
        let top = self.top().filter(|top| top.population > 0)?;
        Some(top.charged? / f64::from(top.population))
    }

    /// The share of the memory that the population took and that came back, in percent.
    #[must_use]
    pub fn returned_percent(&self) -> Option<f64> {
        let taken = self.before.available - self.top()?.memory.available;
        let missing = (self.before.available - self.after.available).max(0.0);
        (taken > 0.0).then(|| ((1.0 - missing / taken) * 100.0).clamp(0.0, 100.0))
    }

    /// Processor time of the climb itself, in percent of one processor.
    #[must_use]
    pub fn overhead_percent(&self) -> f64 {
        if self.seconds > 0.0 {
            self.own_cpu / self.seconds * 100.0
        } else {
            0.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_99th_percentile_of_few_values_is_the_largest() {
        let latency = Latency::of(vec![3.0, 1.0, 2.0], 1);
        assert_eq!((latency.p50_us, latency.p99_us), (2.0, 3.0));
        assert_eq!((latency.answered, latency.failed), (3, 1));
        assert_eq!(Latency::of(Vec::new(), 0), Latency::default());
    }

    #[test]
    fn of_a_hundred_values_the_99th_percentile_leaves_one_out() {
        let latency = Latency::of((1..=100).map(f64::from).collect(), 0);
        assert_eq!((latency.p99_us, latency.max_us), (99.0, 100.0));
    }
}
