// SPDX-License-Identifier: Apache-2.0
//! Counters that an actor samples on its own host during a trial.

use super::{Ending, RemoteCounters};
use crate::LabError;
use crate::place::actor::{GuestQuery, GuestView, RemoteActor, RemoteSamples};
use crate::place::clocks::{Alignment, Offset};
use std::collections::BTreeMap;
use vtax_core::Nanoseconds;
use vtax_core::owner::Owner;
use vtax_host::HostError;
use vtax_observe::{Readings, Snapshot};

/// The counters that an actor samples on its host: of a guest there, or of its own commands.
pub(super) struct ActorCounters {
    actor: RemoteActor,
    /// The owner of the samples in the trial.
    owner: Owner,
    clock_before: Offset,
    /// Counters that the host lacks, with the reasons.
    absent: Vec<String>,
    guest: Option<GuestView>,
}

/// The part of a trial's record that another machine supplies.
pub(in super::super) struct RemoteReport {
    pub environment: BTreeMap<String, String>,
    pub suspect: Option<String>,
    /// The counters of the target's host.
    pub counters: Option<HostCounters>,
}

/// The counters of the target's host, when that is another machine.
pub(in super::super) struct HostCounters {
    /// The target as that host sees it.
    pub target: GuestView,
    /// The number of its processors.
    pub processors: usize,
    pub samples: RemoteSamples,
    pub clocks: Alignment,
    /// The shortest window that has enough samples.
    pub shortest: Nanoseconds,
}

impl HostCounters {
    /// Returns the counters at a time of this host's clock, interpolated linearly between two samples. A counter
    /// without samples around that time is absent.
    pub fn at(&self, at: Nanoseconds) -> Snapshot {
        let mut readings = Readings::default();
        for column in &self.samples.columns {
            let times = column.at.iter().map(|at| self.clocks.ours(*at));
            let times: Vec<Nanoseconds> = times.collect();
            if let Some(value) = between(&times, &column.values, at) {
                let id = readings.register(column.series.clone());
                readings.record(id, value);
            }
        }
        Snapshot::from_readings(at, &readings)
    }
}

/// Returns the value at a time, by linear interpolation of samples in order of time.
fn between(times: &[Nanoseconds], values: &[f64], at: Nanoseconds) -> Option<f64> {
    let after = times.partition_point(|time| *time < at);
    let (later, value) = (times.get(after)?, values.get(after)?);
    if *later == at {
        return Some(*value);
    }
    let before = after.checked_sub(1)?;
    let (earlier, from) = (times.get(before)?, values.get(before)?);
    let span = later.saturating_since(*earlier).as_secs_f64();
    let share = at.saturating_since(*earlier).as_secs_f64() / span;
    Some(from + (value - from) * share)
}

impl ActorCounters {
    /// Reads the actor's clock and starts its sampling: of `guest`, or of the actor's own commands.
    ///
    /// # Errors
    /// When the actor does not answer, or its host has no such guest.
    pub fn begin(
        actor: RemoteActor,
        owner: Owner,
        hz: f64,
        guest: Option<GuestQuery>,
    ) -> Result<Self, HostError> {
        let clock_before = actor.offset()?;
        let (absent, guest) = actor.observe(hz, guest)?;
        Ok(Self {
            actor,
            owner,
            clock_before,
            absent,
            guest,
        })
    }
}

impl RemoteCounters for ActorCounters {
    fn end(&self, ending: &mut Ending<'_, '_>) -> Result<RemoteReport, LabError> {
        let samples = self.actor.collect()?;
        let clocks = Alignment {
            before: self.clock_before,
            after: self.actor.offset()?,
        };
        ending.samples.add(&samples, &self.owner, &clocks)?;
        let host = self.actor.host();
        for (instrument, count, first) in &samples.failures {
            ending.log.line(&format!(
                "{instrument} on {host} could not be read {count} times: {first}"
            ));
        }
        for reason in &self.absent {
            ending
                .log
                .line(&format!("not observed on {host}: {reason}"));
        }
        let hello = self.actor.hello();
        let mut environment = hello.facts.clone();
        environment.insert("root".to_owned(), hello.is_root.to_string());
        if !self.absent.is_empty() {
            environment.insert("not_observed".to_owned(), self.absent.join("; "));
        }
        for (when, offset) in [("before", clocks.before), ("after", clocks.after)] {
            let ahead = offset.ahead.to_string();
            environment.insert(format!("clock.{when}.ahead_ns"), ahead);
            let bound = offset.bound.0.to_string();
            environment.insert(format!("clock.{when}.bound_ns"), bound);
        }
        let processors = hello.facts.get("processors");
        let processors = processors.and_then(|count| count.parse().ok()).unwrap_or(1);
        Ok(RemoteReport {
            environment,
            suspect: clocks.suspicion(),
            counters: self.guest.clone().map(|target| HostCounters {
                target,
                processors,
                samples,
                clocks,
                shortest: Nanoseconds(0),
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_between_two_samples_is_taken_in_proportion_and_none_is_invented() {
        let times = [10, 20, 40].map(Nanoseconds);
        let values = [1.0, 3.0, 4.0];
        let at = |at| between(&times, &values, Nanoseconds(at));
        assert_eq!((at(10), at(15), at(35)), (Some(1.0), Some(2.0), Some(3.75)));
        assert_eq!((at(9), at(41)), (None, None));
        assert_eq!(between(&[], &[], Nanoseconds(1)), None);
    }
}
