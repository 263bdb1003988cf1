//! Hold only where a hold merges notifications, and never the first packet after idle.

use super::window::{Pace, Window};
use super::{Controller, Nanos};

/// How much of the budget a hold takes up: the rest is for a worker that wakes up late.
const WIDEST: f64 = 15.0 / 16.0;

/// The default controller: one learning [`Window`] a direction, each a little narrower than the
/// budget at most.
///
/// Where holding in one direction slows the packets down, both stop: a round trip does not tell
/// which half of it was too long.
#[derive(Clone, Copy, Debug, Default)]
pub struct Adaptive {
    rx: Window,
    tx: Window,
}

impl Controller for Adaptive {
    fn set_budget(&mut self, budget: Nanos) {
        let widest = budget.share(WIDEST);
        self.rx.limit(widest);
        self.tx.limit(widest);
    }

    fn received(&mut self, now: Nanos, packets: u32, ring_size: u16) {
        self.rx.passed(now, packets, ring_size);
    }

    fn hold_rx(&mut self, now: Nanos) -> Nanos {
        self.rx.end(now)
    }

    fn signalled(&mut self, now: Nanos, _: u32) {
        if self.rx.notified(now) == Pace::Fell {
            self.tx.give_up();
        }
    }

    fn may_hold_rx(&self) -> bool {
        self.rx.is_open()
    }

    fn may_hold_tx(&self) -> bool {
        self.tx.is_open()
    }

    fn hold_tx(&mut self, now: Nanos) -> Nanos {
        now
    }

    fn sent(&mut self, now: Nanos, packets: u32, ring_size: u16) -> Option<Nanos> {
        self.tx.passed(now, packets, ring_size);
        if self.tx.notified(now) == Pace::Fell {
            self.rx.give_up();
        }
        Some(self.tx.end(now))
    }
}
