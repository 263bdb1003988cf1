// SPDX-License-Identifier: Apache-2.0
//! The power of the whole machine as another thread obtains it: from a BMC, or from an instrument at the wall socket.

use super::series::MeterSeries;
use super::{Domain, Meter, Part, PowerIntegral};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vtax_core::{Nanoseconds, Source, Watts};
use vtax_observe::{Instrument, ObserveError, Readings};

/// A device whose power another thread obtains. [`Instrument::read`] uses the latest one, so that a slow device delays
/// no other instrument.
pub struct Polled {
    name: &'static str,
    /// The device, for messages.
    what: String,
    domains: [Domain; 1],
    pub(super) caveats: Vec<String>,
    latest: Latest,
    joules: MeterSeries,
    watts: MeterSeries,
    /// Ends the thread when it is dropped.
    _thread: Box<dyn Send>,
}

/// What the thread obtained, shared with it.
#[derive(Debug, Clone)]
pub(super) struct Latest(Arc<Mutex<State>>);

#[derive(Debug)]
pub(super) struct State {
    integral: PowerIntegral,
    /// The last problem that was not reported.
    pub(super) failure: Option<String>,
    /// The reason that no power will come any more.
    pub(super) ended: Option<String>,
}

impl Latest {
    /// Each power is valid for at most `stands`.
    pub(super) fn new(stands: Nanoseconds) -> Self {
        Self(Arc::new(Mutex::new(State {
            integral: PowerIntegral::new(stands, Part::Machine.most()),
            failure: None,
            ended: None,
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a power; returns whether it is one of a machine.
    pub(super) fn take(&self, at: Nanoseconds, power: Watts) -> bool {
        self.lock().integral.reading(at, power).is_ok()
    }
}

impl fmt::Debug for Polled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(self.name)
            .field("latest", &self.latest)
            .finish_non_exhaustive()
    }
}

impl Polled {
    pub(super) fn new(
        name: &'static str,
        what: String,
        latest: Latest,
        thread: impl Send + 'static,
    ) -> Self {
        let domain = Domain::machine();
        Self {
            name,
            what,
            caveats: Vec::new(),
            latest,
            joules: MeterSeries::joules(name, &domain.name, Source::Measured),
            watts: MeterSeries::watts(name, &domain.name, Source::Measured),
            domains: [domain],
            _thread: Box::new(thread),
        }
    }
}

impl Instrument for Polled {
    fn name(&self) -> &str {
        self.name
    }

    fn read(&mut self, now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        let mut state = self.latest.lock();
        let total = state.integral.total_at(now);
        let standing = state.integral.standing(now);
        // Without a power the joules are unknown, not zero.
        if let Some(power) = standing {
            self.joules.record_joules(into, total);
            self.watts.record_watts(into, power);
        }
        let failure = state.failure.take();
        let problem = state.ended.clone().or(failure);
        let silent = || "no answer for too long; no joules are counted".to_owned();
        match problem.or_else(|| standing.is_none().then(silent)) {
            Some(reason) => Err(ObserveError::unavailable(&self.what, reason)),
            None => Ok(()),
        }
    }
}

impl Meter for Polled {
    fn domains(&self) -> &[Domain] {
        &self.domains
    }

    fn caveats(&self) -> &[String] {
        &self.caveats
    }
}
