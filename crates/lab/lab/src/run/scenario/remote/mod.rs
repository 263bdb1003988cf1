// SPDX-License-Identifier: Apache-2.0
//! The counters of other machines in a trial: the client's machine, the target's host and the target's pool.

mod client;
mod counters;
mod pool;

pub(super) use client::ClientHost;
pub(super) use counters::RemoteReport;

use super::guest::Guest;
use super::instruments::SampleSink;
use crate::LabError;
use crate::external;
use crate::place::actor::RemoteActor;
use crate::run::Log;
use counters::ActorCounters;
use pool::PoolCounters;
use vtax_core::Nanoseconds;
use vtax_core::owner::Owner;
use vtax_host::signals::Signals;

/// Counters of another machine, sampled until the end of the trial.
trait RemoteCounters {
    /// Ends the sampling, adds the samples to the trial's own, and reports on the machine.
    ///
    /// # Errors
    /// When the machine does not answer, or the samples cannot be stored.
    fn end(&self, ending: &mut Ending<'_, '_>) -> Result<RemoteReport, LabError>;
}

/// The end of a measurement, as [`RemoteCounters::end`] needs it.
pub(super) struct Ending<'a, 'b> {
    /// The first and the last mark.
    pub marks: (Nanoseconds, Nanoseconds),
    pub signals: &'a Signals,
    pub samples: &'a SampleSink,
    pub log: &'a mut Log<'b>,
}

/// The counters of the machines other than this host.
pub(super) struct Remotes {
    client: Option<Box<dyn RemoteCounters>>,
    host: Option<Box<dyn RemoteCounters>>,
}

impl Remotes {
    /// Starts the counters of the client's machine, and of the target's host when that is another host.
    ///
    /// # Errors
    /// When one of them does not answer.
    pub fn begin(
        client: Option<&RemoteActor>,
        target: Option<&Guest<'_>>,
        hz: f64,
    ) -> Result<Self, LabError> {
        let client =
            client.map(|actor| ActorCounters::begin(actor.clone(), Owner::Client, hz, None));
        let host = target.map(|target| Self::of_host(target, hz)).transpose()?;
        Ok(Self {
            client: client.transpose()?.map(boxed),
            host: host.flatten(),
        })
    }

    fn of_host(target: &Guest<'_>, hz: f64) -> Result<Option<Box<dyn RemoteCounters>>, LabError> {
        if let Some(there) = external::ssh::host(target.spec.settings, &Owner::Target)? {
            let counters = ActorCounters::begin(there.actor, Owner::Target, hz, Some(there.guest))?;
            return Ok(Some(boxed(counters)));
        }
        let facts = &target.target.about().environment;
        let pool = external::xenapi::HostStatistics::begin(target.spec.settings, facts)?;
        let counters = pool.map(PoolCounters::begin).transpose()?;
        Ok(counters.map(boxed))
    }

    /// Ends all counters. Returns the reports on the client's machine and on the target's host.
    pub fn end(
        self,
        ending: &mut Ending<'_, '_>,
    ) -> Result<(Option<RemoteReport>, Option<RemoteReport>), LabError> {
        let mut end = |counters: Option<Box<dyn RemoteCounters>>| {
            counters.map(|counters| counters.end(ending)).transpose()
        };
        let (client, host) = (end(self.client), end(self.host));
        Ok((client?, host?))
    }
}

fn boxed(counters: impl RemoteCounters + 'static) -> Box<dyn RemoteCounters> {
    Box::new(counters)
}
