//! The target's client on another machine, as a run sees it: one actor for all trials, and for each
//! trial its clock, its samples and its record.

use super::Log;
use super::instruments::SampleSink;
use crate::LabError;
use crate::place::actor::RemoteActor;
use crate::place::clocks::{Alignment, Offset};
use crate::plan::RemoteClient;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use vtax_host::HostError;
use vtax_observe::Subject;

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

/// The client's machine during one trial.
pub(super) struct Watch<'a> {
    actor: &'a RemoteActor,
    before: Offset,
    absent: Vec<String>,
}

/// What a trial's record says of the client's machine.
pub(super) struct Watched {
    pub environment: BTreeMap<String, String>,
    pub suspect: Option<String>,
}

impl<'a> Watch<'a> {
    /// Looks at the clock there and begins to sample.
    pub fn begin(actor: &'a RemoteActor, hz: f64) -> Result<Self, HostError> {
        let before = actor.offset()?;
        let absent = actor.observe(hz)?;
        Ok(Self {
            actor,
            before,
            absent,
        })
    }

    /// Looks again, and adds what was sampled to ours.
    pub fn end(self, samples: &SampleSink, log: &mut Log<'_>) -> Result<Watched, LabError> {
        let gathered = self.actor.collect()?;
        let clocks = Alignment {
            before: self.before,
            after: self.actor.offset()?,
        };
        samples.add(&gathered, CLIENT, &clocks)?;
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
        Ok(Watched {
            environment,
            suspect: clocks.suspicion(),
        })
    }
}
