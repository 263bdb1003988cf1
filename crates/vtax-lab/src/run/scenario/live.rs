//! Samples of a running trial for its watchers, once a second, of what is sampled anyway. An emulated host
//! has none: its clock counts every instruction, those of reporting too.

use std::time::{Duration, Instant};
use vtax_core::Source;
use vtax_observe::{ObserveError, Observer, Snapshot};

/// Between two samples.
const INTERVAL: Duration = Duration::from_secs(1);
/// No sample is taken when the present wait ends this soon.
const MARGIN: Duration = Duration::from_millis(50);

/// When the next sample is due, and the last one.
#[derive(Debug)]
pub(super) struct LiveSampler {
    due: Instant,
    last: Option<Snapshot>,
}

impl LiveSampler {
    /// For trials on this host; none where it is emulated.
    pub fn of(host: Source) -> Option<Self> {
        let due = Instant::now();
        (host != Source::Emulated).then_some(Self { due, last: None })
    }

    /// The last sample and a new one, where one is due.
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
