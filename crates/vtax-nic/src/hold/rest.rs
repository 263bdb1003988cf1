//! When to look away: a worker that must be woken for each notification, to decide that it is not to
//! be held, costs more than it saves.

use super::Nanos;

/// Packets watched before a rest: as many as a controller learns from.
const WATCHED: u32 = 64;

/// How many times as long as the watch a rest is, at least and at most.
const TIMES: u64 = 16;
const SHORTEST: Nanos = Nanos::from_micros(10_000);
const LONGEST: Nanos = Nanos::from_micros(1_000_000);

/// Whether the notifications of a queue pair are watched, or go their way unseen for a while,
/// because the controller holds none of them. So a port whose notifications are not held pays for one
/// in seventeen at most. An idle port has no timer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rest {
    /// When the first packet of this watch came.
    since: Option<Nanos>,
    packets: u32,
    until: Option<Nanos>,
}

impl Rest {
    /// Whether nothing is watched.
    pub fn is_resting(&self) -> bool {
        self.until.is_some()
    }

    /// When [`Rest::settle`] must be called.
    pub fn deadline(&self) -> Option<Nanos> {
        self.until
    }

    /// Packets passed while watched; `holds` tells whether the controller holds any. Begins a rest
    /// if it is time for one.
    pub fn passed(&mut self, now: Nanos, packets: u32, holds: bool) {
        let since = *self.since.get_or_insert(now);
        self.packets = self.packets.saturating_add(packets);
        if holds {
            *self = Self::default();
        } else if self.packets >= WATCHED {
            let rest = Nanos(now.since(since).0.saturating_mul(TIMES));
            self.until = Some(now + rest.max(SHORTEST).min(LONGEST));
        }
    }

    /// Ends a rest that is over.
    pub fn settle(&mut self, now: Nanos) {
        if self.until.is_some_and(|until| until <= now) {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = Nanos::from_micros(1_000);

    #[test]
    fn a_watch_without_holds_is_followed_by_a_rest_that_is_longer() {
        let mut rest = Rest::default();
        let time = |ms: u64| Nanos(ms * MS.0);
        rest.passed(time(1), 1, false);
        rest.passed(time(10), 62, false);
        assert!(!rest.is_resting());
        rest.passed(time(11), 1, false);
        assert_eq!(rest.deadline(), Some(time(171)));
        rest.settle(time(170));
        assert!(rest.is_resting());
        rest.settle(time(171));
        assert!(!rest.is_resting());
        assert_eq!(rest.deadline(), None, "an idle port has no timer");
    }

    #[test]
    fn who_holds_does_not_rest_and_nobody_rests_for_long() {
        let mut rest = Rest::default();
        rest.passed(MS, 1_000, true);
        assert!(!rest.is_resting());
        rest.passed(MS, 63, false);
        rest.passed(Nanos(1_000 * MS.0), 1, false);
        assert_eq!(rest.deadline(), Some(Nanos(2_000 * MS.0)));
    }
}
