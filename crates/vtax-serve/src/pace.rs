//! Waiting for the next interval, and ending early when asked.

use rustix::event::{Timespec, poll};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest wait between two looks at the flag: a signal ends a wait at once, but one that
/// arrives just before it begins does not.
const LOOK: Duration = Duration::from_millis(500);

/// Moments an interval apart, without drift.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    interval: Duration,
    next: Instant,
}

impl Pace {
    /// The first moment is one interval from now.
    pub fn new(interval: Duration) -> Self {
        Self {
            interval,
            next: Instant::now() + interval,
        }
    }

    /// How long until the next moment; zero when it is past.
    pub fn left(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Goes on to the next moment that is not past yet.
    pub fn advance(&mut self) {
        self.next += self.interval;
        let now = Instant::now();
        if self.next <= now {
            self.next = now + self.interval;
        }
    }

    /// Waits for the next moment; false when `stop` was set meanwhile.
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
            // Interrupted or not: the loop looks at the clock and at the flag.
            let _ = poll(&mut [], Some(&timespec(left.min(LOOK))));
        }
    }
}

/// For the kernel.
pub(crate) fn timespec(time: Duration) -> Timespec {
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
