// SPDX-License-Identifier: Apache-2.0
//! Events that a client can cause at will, or that go on: one of them in an interval is logged.

use std::fmt;
use std::time::{Duration, Instant};

/// Admits one event in an interval to the log, and counts the others.
#[derive(Debug)]
pub struct Spaced {
    interval: Duration,
    next: Option<Instant>,
    left_out: u64,
}

/// One event a second.
impl Default for Spaced {
    fn default() -> Self {
        Self::every(Duration::from_secs(1))
    }
}

/// The number of events that were left out since the last one in the log, for the end of its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct More(u64);

impl Spaced {
    /// One event in this interval.
    #[must_use]
    pub fn every(interval: Duration) -> Self {
        Self {
            interval,
            next: None,
            left_out: 0,
        }
    }

    /// Returns what the line ends with if the event is to be logged.
    pub fn admit(&mut self) -> Option<More> {
        self.admit_at(Instant::now(), 1).map(|sum| More(sum - 1))
    }

    /// As [`Spaced::admit`], for an event of some size, such as a number of lost samples. Returns the sum since the last
    /// event in the log, with this one.
    pub fn add(&mut self, size: u64) -> Option<u64> {
        self.admit_at(Instant::now(), size)
    }

    fn admit_at(&mut self, now: Instant, size: u64) -> Option<u64> {
        self.left_out = self.left_out.saturating_add(size);
        if self.next.is_some_and(|next| now < next) {
            return None;
        }
        self.next = now.checked_add(self.interval);
        Some(std::mem::take(&mut self.left_out))
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
        let admitted = [0, 1, 999, 1000, 1001, 5000].map(|millis| spaced.admit_at(at(millis), 1));
        assert_eq!(admitted, [Some(1), None, None, Some(3), None, Some(2)]);
        let mut lost = Spaced::every(Duration::from_secs(60));
        assert_eq!((lost.add(7), lost.add(5)), (Some(7), None));
        assert_eq!(lost.admit_at(at(70_000), 1), Some(6));
        assert_eq!(More(0).to_string(), "");
        assert_eq!(More(2).to_string(), " (and 2 more like it)");
    }
}
