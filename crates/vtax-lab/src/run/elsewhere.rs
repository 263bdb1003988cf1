//! Other machines, as a run sees them: the client's, which has one actor for all trials, and the one that
//! runs the target; for each trial their clock, their samples and their record.

use super::Log;
use super::instruments::SampleSink;
use crate::LabError;
use crate::place::actor::{Gathered, RemoteActor, Seen, Whom};
use crate::place::clocks::{Alignment, Offset};
use crate::plan::RemoteClient;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use vtax_core::Nanoseconds;
use vtax_host::HostError;
use vtax_host::cell::TARGET;
use vtax_observe::{Kind, Readings, Series, Snapshot, Subject};

/// The owner of what the target's client does.
const CLIENT: &str = "client";

/// The client's machine.
pub(super) struct Elsewhere {
    pub client: RemoteClient,
    actor: Option<RemoteActor>,
}

impl Elsewhere {
    pub fn new(client: RemoteClient) -> Self {
        Self {
            client,
            actor: None,
        }
    }

    /// The place's name in records.
    pub fn place(&self) -> String {
        format!("ssh:{}", self.client.host)
    }

    /// The actor there: a new one where there is none yet, or none any more.
    pub fn actor(&mut self) -> Result<RemoteActor, HostError> {
        if let Some(actor) = self.actor.as_ref().filter(|actor| !actor.is_lost()) {
            return Ok(actor.clone());
        }
        let this = Path::new("/proc/self/exe");
        let actor = RemoteActor::start(OsStr::new("ssh"), &self.client.host, this)?;
        Ok(self.actor.insert(actor).clone())
    }
}

/// The client by its name alone: there is nothing of it on this host to watch.
pub(super) fn subject() -> Subject {
    Subject {
        owner: CLIENT.to_owned(),
        ..Subject::default()
    }
}

/// Another machine during one trial: the client's, or the one that runs the target.
pub(super) struct Watch<'a> {
    actor: &'a RemoteActor,
    owner: &'static str,
    before: Offset,
    absent: Vec<String>,
    seen: Option<Seen>,
}

/// What a trial's record says of it.
pub(super) struct Watched {
    pub environment: BTreeMap<String, String>,
    pub suspect: Option<String>,
    pub hosted: Option<Hosted>,
}

/// What the host of the target counted, wherever that is.
pub(super) struct Hosted {
    /// The target, as that host sees it.
    pub seen: Seen,
    /// Its processors.
    pub processors: usize,
    pub gathered: Gathered,
    pub clocks: Alignment,
    /// A window that is shorter than this has too few samples to say anything.
    pub shortest: Nanoseconds,
}

impl Hosted {
    /// Its counters at a moment of ours, between two samples in proportion. What was not sampled around
    /// that moment is absent.
    pub fn at(&self, at: Nanoseconds) -> Snapshot {
        let mut readings = Readings::default();
        for column in &self.gathered.columns {
            let times: Vec<Nanoseconds> =
                column.at.iter().map(|at| self.clocks.ours(*at)).collect();
            if let Some(value) = between(&times, &column.values, at) {
                let id = readings.register(Series {
                    owner: column.owner.clone(),
                    metric: column.metric.clone(),
                    unit: column.unit,
                    kind: match column.is_counter {
                        true => Kind::Counter,
                        false => Kind::Gauge,
                    },
                    source: column.source,
                });
                readings.record(id, value);
            }
        }
        Snapshot::of(at, &readings)
    }
}

/// The value at a moment, of samples in order of time.
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

impl<'a> Watch<'a> {
    /// Looks at the clock there and begins to sample: the client, or a guest of that host.
    pub fn begin(actor: &'a RemoteActor, hz: f64, guest: Option<Whom>) -> Result<Self, HostError> {
        let owner = match &guest {
            Some(_) => TARGET,
            None => CLIENT,
        };
        let before = actor.offset()?;
        let (absent, seen) = actor.observe(hz, guest)?;
        Ok(Self {
            actor,
            owner,
            before,
            absent,
            seen,
        })
    }

    /// Looks again, and adds what was sampled to ours.
    pub fn end(self, samples: &SampleSink, log: &mut Log<'_>) -> Result<Watched, LabError> {
        let gathered = self.actor.collect()?;
        let clocks = Alignment {
            before: self.before,
            after: self.actor.offset()?,
        };
        samples.add(&gathered, self.owner, &clocks)?;
        let host = self.actor.host();
        for (instrument, count, first) in &gathered.failures {
            log.line(&format!(
                "{instrument} on {host} could not be read {count} times: {first}"
            ));
        }
        for reason in &self.absent {
            log.line(&format!("not observed on {host}: {reason}"));
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
        Ok(Watched {
            environment,
            suspect: clocks.suspicion(),
            hosted: self.seen.map(|seen| Hosted {
                seen,
                processors,
                gathered,
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
