//! The `adaptive` controller: it holds only where a hold merges notifications, and never the first packet after idle.

use super::window::Window;
use super::{Controller, Nanos};

/// How much of the budget a hold takes up: the rest is for a worker that wakes up late.
const WIDEST: f64 = 15.0 / 16.0;

/// The default controller: a learning [`Window`] for both directions, a little narrower than the budget
/// at most.
#[derive(Clone, Copy, Debug, Default)]
pub struct Adaptive {
    window: Window,
    last_signal: Option<Nanos>,
    last_drain: Option<Nanos>,
}

impl Controller for Adaptive {
    fn set_budget(&mut self, budget: Nanos) {
        self.window.limit(budget.share(WIDEST));
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
