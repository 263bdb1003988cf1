// SPDX-License-Identifier: Apache-2.0
//! The `adaptive` controller: it holds only where a hold merges notifications, and never the first packet after idle.

use super::window::Window;
use super::{Controller, Nanos};

/// The part of the budget that a hold may use. The rest is for a worker that wakes up late.
const HOLD_SHARE: f64 = 15.0 / 16.0;

/// The default controller: a `Window` for both directions, which is always narrower than the budget.
#[derive(Clone, Copy, Debug, Default)]
pub struct Adaptive {
    window: Window,
    last_signal: Option<Nanos>,
    last_drain: Option<Nanos>,
}

impl Controller for Adaptive {
    fn set_budget(&mut self, budget: Nanos) {
        self.window.limit(budget.share(HOLD_SHARE));
    }

    fn received(&mut self, now: Nanos, packets: u32, ring_size: u16) {
        self.window.passed(now, packets, ring_size);
    }

    fn hold_rx(&mut self, now: Nanos) -> Nanos {
        self.window.end(now, self.last_signal)
    }

    fn signalled(&mut self, now: Nanos, _: u32) {
        self.last_signal = Some(now);
        self.window.called();
    }

    fn woken_for_nothing(&mut self) {
        self.window.woken();
    }

    fn may_hold_rx(&self) -> bool {
        self.window.holds_received()
    }

    fn may_hold_tx(&self) -> bool {
        self.window.holds_sent()
    }

    fn hold_tx(&mut self, now: Nanos) -> Nanos {
        if self.window.holds_sent() {
            self.window.end(now, self.last_drain)
        } else {
            now
        }
    }

    fn sent(&mut self, now: Nanos, packets: u32, ring_size: u16) -> Option<Nanos> {
        self.last_drain = Some(now);
        self.window.drained(now, packets, ring_size);
        let holds = self.window.holds_sent();
        holds.then(|| self.window.end(now, self.last_drain))
    }
}
