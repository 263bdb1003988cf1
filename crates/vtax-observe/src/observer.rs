//! The sampling thread: reads every instrument each period, hands the readings to the sink,
//! answers marks, and accounts for its own cost.

use crate::clock::Clock;
use crate::{Instrument, ObserveError, Sink, Snapshot};
use std::sync::Arc;
use vtax_units::{Hertz, Nanoseconds};

/// How to sample.
#[derive(Debug, Clone, Copy)]
pub struct ObserverConfig {
    /// Passes per second; clamped to 0.1-50.
    pub rate: Hertz,
}

/// What sampling itself did and cost.
#[derive(Debug, Clone, Default)]
pub struct ObserverReport {
    /// CPU time of the sampling thread.
    pub cpu: Nanoseconds,
    /// Passes taken, marks included.
    pub passes: u64,
    /// Passes that were due but skipped because an earlier one took too long or the host stalled.
    pub missed: u64,
    /// The longest time between two passes.
    pub longest_gap: Nanoseconds,
    /// How far the wall clock moved against the monotonic clock: a step if over a millisecond.
    pub wall_clock_step: Nanoseconds,
    /// Failures by instrument: name, count, first message.
    pub failures: Vec<(String, u64, String)>,
}

/// A running sampling thread.
#[derive(Debug)]
pub struct Observer {}

impl Observer {
    /// Starts sampling.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(
        _config: ObserverConfig,
        _clock: Arc<dyn Clock>,
        _instruments: Vec<Box<dyn Instrument>>,
        _sink: Box<dyn Sink>,
    ) -> Result<Self, ObserveError> {
        Err(ObserveError::Stopped("not built yet".to_owned()))
    }

    /// Takes a pass right now and returns it; it is also recorded.
    ///
    /// # Errors
    /// When the thread has stopped.
    pub fn mark(&self) -> Result<Snapshot, ObserveError> {
        Err(ObserveError::Stopped("not built yet".to_owned()))
    }

    /// Ends sampling, finishes the sink and says what it cost.
    ///
    /// # Errors
    /// When the sink failed at any time.
    pub fn stop(self) -> Result<ObserverReport, ObserveError> {
        Err(ObserveError::Stopped("not built yet".to_owned()))
    }
}
