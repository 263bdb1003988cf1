// SPDX-License-Identifier: Apache-2.0
//! The `off` controller: it never holds. EVENT_IDX alone suppresses notifications.

use super::{Controller, Nanos};

/// Signals every batch and asks for a kick after every drain.
#[derive(Clone, Copy, Debug, Default)]
pub struct Off;

impl Controller for Off {
    fn set_budget(&mut self, _: Nanos) {}

    fn hold_rx(&mut self, now: Nanos) -> Nanos {
        now
    }

    fn hold_tx(&mut self, now: Nanos) -> Nanos {
        now
    }

    fn sent(&mut self, _: Nanos, _: u32, _: u16) -> Option<Nanos> {
        None
    }
}
