//! Hold only where a hold merges notifications, and never the first packet after idle.

use super::window::{Pace, Window};
use super::{Controller, Nanos};

/// Packets after which the older half of the traffic counts half.
const MEMORY: u32 = 1_024;

/// The default controller: one learning [`Window`] a direction, which share the budget.
///
/// The budget bounds what a round trip may be longer, so the directions split it, as in the
/// paper, by their share of the packets; but the split follows the traffic within about a
/// thousand packets. Where holding in one direction slows the packets down, both stop: a round trip
/// does not tell which half of it was too long.
#[derive(Clone, Copy, Debug, Default)]
pub struct Adaptive {
    budget: Nanos,
    rx: Window,
    tx: Window,
    received: u32,
    sent: u32,
}

impl Adaptive {
    fn count(&mut self, received: u32, sent: u32) {
        self.received = self.received.saturating_add(received);
        self.sent = self.sent.saturating_add(sent);
        while self.received.saturating_add(self.sent) > MEMORY {
            self.received /= 2;
            self.sent /= 2;
        }
        let received = f64::from(self.received) / f64::from((self.received + self.sent).max(1));
        self.rx.limit(self.budget.share(received));
        self.tx.limit(self.budget.share(1.0 - received));
    }
}

impl Controller for Adaptive {
    fn set_budget(&mut self, budget: Nanos) {
        self.budget = budget;
        self.count(0, 0);
    }

    fn received(&mut self, now: Nanos, packets: u32, ring_size: u16) {
        self.count(packets, 0);
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

    fn hold_tx(&mut self, now: Nanos) -> Nanos {
        now
    }

    fn sent(&mut self, now: Nanos, packets: u32, ring_size: u16) -> Option<Nanos> {
        self.count(0, packets);
        self.tx.passed(now, packets, ring_size);
        if self.tx.notified(now) == Pace::Fell {
            self.rx.give_up();
        }
        Some(self.tx.end(now))
    }
}
