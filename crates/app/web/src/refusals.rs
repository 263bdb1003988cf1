// SPDX-License-Identifier: Apache-2.0
//! The log of what clients can cause at will: at most one line a second.

use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};
use tracing::warn;
use vtax_log::Spaced;

/// Events of one kind, of all clients together.
#[derive(Debug, Clone, Default)]
pub struct Refusals(Arc<Mutex<Spaced>>);

impl Refusals {
    /// Logs one of the events.
    pub fn warn(&self, what: impl Display) {
        let mut spaced = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(more) = spaced.admit() {
            warn!("{what}{more}");
        }
    }
}
