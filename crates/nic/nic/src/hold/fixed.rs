// SPDX-License-Identifier: Apache-2.0
//! The `fixed` controller: it holds for a fixed time, as other virtual switches do.

use super::{Controller, Nanos};

/// The first packet starts a timer, and packets until it expires share a signal.
///
/// TX waits between a kick and its drain, then drains at the same pace until a round is empty.
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    rx: Nanos,
    tx: Nanos,
    budget: Nanos,
}

impl Fixed {
    /// Holds of `rx` and `tx`; zero takes the whole budget.
    pub fn new(rx: Nanos, tx: Nanos) -> Self {
        Self {
            rx,
            tx,
            budget: Nanos::ZERO,
        }
    }

    fn of_budget(&self, hold: Nanos) -> Nanos {
        if hold == Nanos::ZERO {
            self.budget
        } else {
            hold
        }
    }
}

impl Controller for Fixed {
    fn set_budget(&mut self, budget: Nanos) {
        self.budget = budget;
    }

    fn hold_rx(&mut self, now: Nanos) -> Nanos {
        now + self.of_budget(self.rx)
    }

    fn hold_tx(&mut self, now: Nanos) -> Nanos {
        now + self.of_budget(self.tx)
    }

    fn sent(&mut self, now: Nanos, _: u32, _: u16) -> Option<Nanos> {
        Some(now + self.of_budget(self.tx))
    }
}
