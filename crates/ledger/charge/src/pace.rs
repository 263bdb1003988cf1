// SPDX-License-Identifier: Apache-2.0
//! Waits for the next interval, with an early end on request.

use rustix::event::{Timespec, poll};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest wait between two checks of the flag. A signal ends a wait at once, but a signal just before a wait does
/// not.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Points in time that are one interval apart, without drift.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    interval: Duration,
    next: Instant,
}

impl Pace {
    /// The first point is one interval from now.
    pub fn new(interval: Duration) -> Self {
        Self {
            interval,
            next: Instant::now() + interval,
        }
    }

    /// Returns the time until the next point; zero when it is past.
    pub fn left(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Advances to the next point that is not past.
    pub fn advance(&mut self) {
        self.next += self.interval;
        let now = Instant::now();
        if self.next <= now {
            self.next = now + self.interval;
        }
    }

    /// Waits for the next point. Returns false when `stop` is set.
    pub fn wait(&mut self, stop: &AtomicBool) -> bool {
        loop {
            if stop.load(Ordering::SeqCst) {
                return false;
            }
            let left = self.left();
            if left.is_zero() {
                self.advance();
                return true;
            }
            // Interrupted or not, the loop checks the clock and the flag.
            let _ = poll(&mut [], Some(&timespec(left.min(POLL_INTERVAL))));
        }
    }
}

/// Converts a duration for the kernel.
pub fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_that_were_missed_are_not_made_up_for() {
        let stop = AtomicBool::new(false);
        let mut pace = Pace::new(Duration::from_millis(20));
        std::thread::sleep(Duration::from_millis(100));
        assert!(pace.wait(&stop));
        assert!(
            pace.left() > Duration::ZERO,
            "the next one is a whole interval away"
        );
    }

    #[test]
    fn a_wait_ends_when_asked() {
        let mut pace = Pace::new(Duration::from_secs(3600));
        assert!(!pace.wait(&AtomicBool::new(true)));
    }
}
