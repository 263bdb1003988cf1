// SPDX-License-Identifier: Apache-2.0
//! Events that a client can cause at will: one of them a second is logged.

use std::fmt;
use std::time::{Duration, Instant};

/// The time between two logged events.
const INTERVAL: Duration = Duration::from_secs(1);

/// Admits one event a second to the log, and counts the others.
#[derive(Debug, Default)]
pub struct Spaced {
    next: Option<Instant>,
    left_out: u64,
}

/// The number of events that were left out since the last one in the log, for the end of its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct More(u64);

impl Spaced {
    /// Returns what the line ends with if the event is to be logged.
    pub fn admit(&mut self) -> Option<More> {
        self.admit_at(Instant::now())
    }

    fn admit_at(&mut self, now: Instant) -> Option<More> {
        if self.next.is_some_and(|next| now < next) {
            self.left_out += 1;
            return None;
        }
        self.next = now.checked_add(INTERVAL);
        Some(More(std::mem::take(&mut self.left_out)))
    }
}

impl fmt::Display for More {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            more => write!(f, " (and {more} more like it)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_event_a_second_is_admitted_and_says_how_many_were_not() {
        let mut spaced = Spaced::default();
        let now = Instant::now();
        let at = |millis| now + Duration::from_millis(millis);
        let admitted = [0, 1, 999, 1000, 1001, 5000].map(|millis| spaced.admit_at(at(millis)));
        assert_eq!(
            admitted,
            [
                Some(More(0)),
                None,
                None,
                Some(More(2)),
                None,
                Some(More(1))
            ]
        );
        assert_eq!(More(0).to_string(), "");
        assert_eq!(More(2).to_string(), " (and 2 more like it)");
    }
}
