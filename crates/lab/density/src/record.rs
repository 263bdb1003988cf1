// SPDX-License-Identifier: Apache-2.0
//! The record of a climb (`workload.json` of its trial), which reports read.

use crate::limits::{Binding, Limits};
use crate::resources::{Memory, Resource, Shares};
use serde::{Deserialize, Serialize};

/// The version of this record.
pub const VERSION: u32 = 1;

/// Response times, or times to make or boot a guest, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Number of times.
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
    /// The statistics of these times. `failed` requests have no time.
    #[must_use]
    pub fn from_micros(mut micros: Vec<f64>, failed: u32) -> Self {
        micros.sort_by(f64::total_cmp);
        let n = micros.len() as f64;
        let quantile = |q: f64| {
            let index = ((q * n).ceil() as usize).saturating_sub(1);
            micros.get(index).copied().unwrap_or_default()
        };
        Self {
            answered: u32::try_from(micros.len()).unwrap_or(u32::MAX),
            failed,
            mean_us: micros.iter().sum::<f64>() / n.max(1.0),
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            max_us: quantile(1.0),
        }
    }

    /// The statistics of these times; `None` without any.
    #[must_use]
    pub fn of_any(micros: Vec<f64>) -> Option<Self> {
        (!micros.is_empty()).then(|| Self::from_micros(micros, 0))
    }
}

/// The cost of growing the population.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Births {
    /// Guests made.
    pub count: u32,
    /// Wall time for all of them, in seconds.
    pub seconds: f64,
    /// From the request to the started process or the created object.
    pub create: Option<Latency>,
    /// From the request to the guest that has booted and sleeps.
    pub boot: Option<Latency>,
}

impl Births {
    /// Guests made per second; `None` where no time passed.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| f64::from(self.count) / self.seconds)
    }
}

/// One sample of the host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Time since the start of the climb, in seconds.
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
    /// The share of a resource that the population can have caused, in percent. Processors and disks serve other
    /// programs as well. No guest reaches a network device of the host: the cell's network namespace has none.
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
    /// Number of guests, without the probe.
    pub population: u32,
    /// The cost of making the guests.
    pub births: Option<Births>,
    /// The host while they sleep.
    pub samples: Vec<Sample>,
    /// Response times of guests.
    pub probe: Option<Latency>,
    /// The host's memory, in bytes.
    pub memory: Memory,
    /// Memory charged to the population's control group, in bytes: pages of its processes and of the kernel on their
    /// behalf. It is less than the difference of the host's memory, but independent of other programs.
    #[serde(default)]
    pub charged: Option<f64>,
    /// Energy of the host during the samples, in joules, and their duration in seconds.
    pub joules: Option<(f64, f64)>,
    /// The reason why a guest could not be made.
    pub refused: Option<String>,
}

impl Interval {
    /// The median of a value over the samples.
    pub fn median(&self, of: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        median(self.samples.iter().filter_map(of))
    }
}

/// The whole population without probes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Idle {
    /// Duration in seconds.
    pub seconds: f64,
    /// Processor time of the population, in percent of one processor.
    pub core_percent: f64,
    /// Energy of the host, in joules.
    pub joules: Option<f64>,
}

/// Churn at the top: guests that started and ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Cloud {
    /// Duration in seconds.
    pub seconds: f64,
    /// The largest population.
    pub places: u32,
    /// Arrivals, including those turned away.
    pub arrivals: u32,
    /// Arrivals turned away because all places were taken.
    pub turned_away: u32,
    /// Departures.
    pub departures: u32,
    /// Mean population over the planned time.
    pub mean_population: f64,
    /// From the request to the booted guest.
    pub boot: Option<Latency>,
    /// Response times of running guests.
    pub probe: Latency,
    /// The largest delay of an arrival or departure, in seconds. It grows where a platform needs longer to make or end
    /// a guest than the time between two changes.
    pub late: f64,
    /// Processor time of the population and of its making, in percent of one processor.
    pub core_percent: f64,
    /// The reason of an early end.
    pub refused: Option<String>,
}

/// One climb.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Climb {
    /// [`VERSION`].
    pub version: u32,
    /// The platform's kind.
    pub platform: String,
    /// The expected maximum.
    pub maximum: u32,
    /// The limits of its use of resources.
    pub limits: Limits,
    /// Processors of the host.
    pub processors: u32,
    /// The memory of the host before the climb.
    pub before: Memory,
    /// The intervals of the growth; the first is the empty platform.
    pub climb: Vec<Interval>,
    /// The top without probes.
    pub idle: Option<Idle>,
    /// Churn before the descent.
    #[serde(default)]
    pub cloud: Option<Cloud>,
    /// The intervals of the descent.
    pub descent: Vec<Interval>,
    /// The memory of the host after the end of the cell.
    pub after: Memory,
    /// Time until the memory had returned, in seconds.
    pub returned_after: f64,
    /// The reason for the end of the climb.
    pub binding: Binding,
    /// Processor time of the climb itself, in seconds: this process and the guard of the supervisor.
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

    /// The highest interval and its guests, where it has any.
    fn top_with_guests(&self) -> Option<(&Interval, f64)> {
        let top = self.top().filter(|top| top.population > 0)?;
        Some((top, top.population.into()))
    }

    /// Memory of one guest in bytes, with its share of the platform.
    #[must_use]
    pub fn bytes_each(&self) -> Option<f64> {
        let (top, guests) = self.top_with_guests()?;
        let used =
            self.before.available - top.memory.available + (top.memory.swap - self.before.swap);
        Some(used / guests)
    }

    /// Memory of one guest in bytes, as charged to the control group.
    #[must_use]
    pub fn charged_each(&self) -> Option<f64> {
        let (top, guests) = self.top_with_guests()?;
        Some(top.charged? / guests)
    }

    /// A part of the memory of one guest in bytes, by the host's account of it.
    #[must_use]
    pub fn part_each(&self, account: impl Fn(&Memory) -> f64) -> Option<f64> {
        let (top, guests) = self.top_with_guests()?;
        Some((account(&top.memory) - account(&self.before)) / guests)
    }

    /// The share of the population's memory that returned, in percent.
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

/// The middle value.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = *values.get((values.len() - 1) / 2)?;
    Some(f64::midpoint(lower, upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_99th_percentile_of_few_values_is_the_largest() {
        let latency = Latency::from_micros(vec![3.0, 1.0, 2.0], 1);
        assert_eq!((latency.p50_us, latency.p99_us), (2.0, 3.0));
        assert_eq!((latency.answered, latency.failed), (3, 1));
        assert_eq!(Latency::from_micros(Vec::new(), 0), Latency::default());
    }

    #[test]
    fn of_a_hundred_values_the_99th_percentile_leaves_one_out() {
        let latency = Latency::from_micros((1..=100).map(f64::from).collect(), 0);
        assert_eq!((latency.p99_us, latency.max_us), (99.0, 100.0));
    }
}
