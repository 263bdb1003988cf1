// SPDX-License-Identifier: Apache-2.0
//! The inputs of every window's judgement: the trial's guests by name, and this host's processors and meters.

use super::guest::Guest;
use super::observation::{Observation, ObservedGuest};
use vtax_core::Source;
use vtax_load::workload::Lateness;
use vtax_observe::Snapshot;

/// The guests and meters of a trial.
pub(super) struct Metering<'a> {
    /// The guests, the target first.
    pub guests: Vec<ObservedGuest>,
    /// The number of this host's processors.
    pub processors: usize,
    /// Series whose sum is this host's energy, with the flag of the meter.
    pub energy: &'a [(String, Source)],
    /// The power of the idle host, in watts, by the idle phases of the run.
    pub idle: Option<f64>,
    /// `Simulated` when this host is an emulated one.
    pub host: Source,
    /// Whether latencies are a result of the trial. They are not where guests are charged.
    pub claims_latency: bool,
}

/// Returns the guests with their names in samples.
pub(super) fn observed(guests: &[Guest<'_>]) -> Vec<ObservedGuest> {
    let observed = guests.iter().map(|guest| {
        let about = guest.target.about();
        let subject = &about.subject;
        ObservedGuest {
            owner: subject.owner.clone(),
            client: guest.client_subject.owner.clone(),
            is_vm: subject.vmm.is_some(),
            is_here: subject.is_here(),
            source: about.source,
            is_paced: guest.spec.workload.is_paced(guest.spec.settings),
            is_own: vtax_host::rootless::user().is_some(),
        }
    });
    observed.collect()
}

impl Metering<'_> {
    /// Whether a load generator's lateness makes this trial, or a level of it, suspect.
    pub fn is_late(&self, late: &Lateness) -> bool {
        late.is_suspect(self.host, self.claims_latency)
    }

    /// Returns the observation of a guest between two snapshots.
    pub fn observation<'s>(
        &'s self,
        (begin, end): (&'s Snapshot, &'s Snapshot),
        guest: usize,
    ) -> Observation<'s> {
        Observation {
            begin,
            end,
            processors: self.processors,
            guests: &self.guests,
            guest,
            energy: self.energy,
            idle: self.idle,
            inner: None,
            host: self.host,
        }
    }
}
