// SPDX-License-Identifier: Apache-2.0
//! Live samples of a running trial, once a second, taken from the samples that the trial records. An emulated host
//! has no live samples: its clock counts every instruction, including those of reporting.

use std::time::{Duration, Instant};
use vtax_core::Source;
use vtax_observe::{ObserveError, Observer, Snapshot};

/// The interval between two live samples.
const INTERVAL: Duration = Duration::from_secs(1);
/// The time left in a wait below which no live sample is taken.
const MARGIN: Duration = Duration::from_millis(50);

/// The due time of the next live sample, and the last sample.
#[derive(Debug)]
pub(super) struct LiveSampler {
    due: Instant,
    last: Option<Snapshot>,
}

impl LiveSampler {
    /// Creates a sampler for trials on this host. Returns `None` when the host is emulated.
    pub fn for_host(host: Source) -> Option<Self> {
        let due = Instant::now();
        (host != Source::Simulated).then_some(Self { due, last: None })
    }

    /// Returns the last sample and a new one when a sample is due.
    ///
    /// # Errors
    /// When the observer has stopped.
    pub fn sample(
        &mut self,
        observer: &Observer,
        left: Duration,
    ) -> Result<Option<(Snapshot, Snapshot)>, ObserveError> {
        let now = Instant::now();
        if now < self.due || left < MARGIN {
            return Ok(None);
        }
        self.due = now + INTERVAL;
        let Some(latest) = observer.latest()? else {
            return Ok(None);
        };
        let last = self.last.replace(latest.clone());
        Ok(last
            .filter(|last| last.at < latest.at)
            .map(|last| (last, latest)))
    }
}
