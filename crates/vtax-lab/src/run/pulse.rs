//! What a trial says of itself while its load runs: once a second, of what is sampled anyway. In an
//! emulated host it says nothing: its clock counts every instruction, those of telling too.

use std::time::{Duration, Instant};
use vtax_core::Source;
use vtax_observe::{ObserveError, Observer, Snapshot};

/// Between two readings.
const EVERY: Duration = Duration::from_secs(1);
/// Where a wait ends this soon, what comes after it comes first.
const MARGIN: Duration = Duration::from_millis(50);

/// When the next reading is due, and what the last one was.
#[derive(Debug)]
pub(super) struct Pulse {
    due: Instant,
    last: Option<Snapshot>,
}

impl Pulse {
    /// Of trials on this host; none where it is emulated.
    pub fn of(host: Source) -> Option<Self> {
        let due = Instant::now();
        (host != Source::Emulated).then_some(Self { due, last: None })
    }

    /// What was sampled at the last reading and now, where one is due and something was sampled since.
    ///
    /// # Errors
    /// When the observer has stopped.
    pub fn beat(
        &mut self,
        observer: &Observer,
        left: Duration,
    ) -> Result<Option<(Snapshot, Snapshot)>, ObserveError> {
        let now = Instant::now();
        if now < self.due || left < MARGIN {
            return Ok(None);
        }
        self.due = now + EVERY;
        let Some(latest) = observer.latest()? else {
            return Ok(None);
        };
        let last = self.last.replace(latest.clone());
        Ok(last
            .filter(|last| last.at < latest.at)
            .map(|last| (last, latest)))
    }
}
