//! When notifications are not watched: a worker that is woken for each of them, only to decide that it is
//! not to be held, costs more than it saves.

use super::Nanos;

/// Packets watched before a rest: as many as a controller learns from.
const WATCHED: u32 = 64;

/// Notifications after which it is decided whether they come close enough to be merged at all, and how many must.
const DECISIVE: u32 = 8;
const CLOSE: u32 = 2;

/// How many times as long as the watch a rest is, at least and at most.
const TIMES: u64 = 16;
const SHORTEST: Nanos = Nanos::from_micros(10_000);
const LONGEST: Nanos = Nanos::from_micros(1_000_000);

/// Whether the notifications of a queue pair are watched, or go their way unseen for a while,
/// because the controller holds none of them. So a port whose notifications are not held pays for one
/// in seventeen at most, and where they come further apart than a hold may last, for a few in a second. An idle
/// port has no timer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rest {
    /// When the first packet of this watch came.
    since: Option<Nanos>,
    packets: u32,
    notifications: u32,
    /// Those that came within a budget of the last of their kind.
    close: u32,
    last_call: Option<Nanos>,
    last_kick: Option<Nanos>,
    until: Option<Nanos>,
}

/// What is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notification {
    /// The guest is called for what it received.
    Call,
    /// The guest has kicked for what it sends.
    Kick,
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

    /// Packets passed while watched, with a notification; `holds` is whether the controller holds any, for up to
    /// `budget`. Begins a rest if it is time for one.
    pub fn passed(
        &mut self,
        now: Nanos,
        (notification, packets): (Notification, u32),
        (holds, budget): (bool, Nanos),
    ) {
        if holds {
            *self = Self::default();
            return;
        }
        let since = *self.since.get_or_insert(now);
        self.packets = self.packets.saturating_add(packets);
        self.notifications += 1;
        let last = match notification {
            Notification::Call => &mut self.last_call,
            Notification::Kick => &mut self.last_kick,
        };
        let before = last.replace(now);
        self.close += u32::from(before.is_some_and(|before| now.since(before) <= budget));
        if self.notifications >= DECISIVE && self.close < CLOSE {
            self.until = Some(now + LONGEST);
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
    use Notification::{Call, Kick};

    const MS: Nanos = Nanos::from_micros(1_000);

    fn time(ms: u64) -> Nanos {
        Nanos(ms * MS.0)
    }

    #[test]
    fn a_watch_without_holds_is_followed_by_a_rest_that_is_longer() {
        let mut rest = Rest::default();
        rest.passed(time(1), (Call, 1), (false, MS));
        rest.passed(time(10), (Call, 62), (false, MS));
        assert!(!rest.is_resting());
        rest.passed(time(11), (Call, 1), (false, MS));
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
        rest.passed(MS, (Call, 1_000), (true, MS));
        assert!(!rest.is_resting());
        rest.passed(MS, (Call, 63), (false, MS));
        rest.passed(time(1_000), (Call, 1), (false, MS));
        assert_eq!(rest.deadline(), Some(time(2_000)));
    }

    #[test]
    fn what_comes_too_far_apart_to_be_merged_is_left_alone_soon() {
        let mut rest = Rest::default();
        // A call every 3 ms, and the acknowledgement's kick right after it: neither comes close to its like.
        for number in 0..4 {
            assert!(!rest.is_resting());
            rest.passed(time(3 * number), (Call, 1), (false, MS));
            rest.passed(Nanos(time(3 * number).0 + 50_000), (Kick, 1), (false, MS));
        }
        assert_eq!(rest.deadline(), Some(Nanos(time(1_009).0 + 50_000)));
    }

    #[test]
    fn bursts_are_watched_however_seldom_they_come() {
        let mut rest = Rest::default();
        for burst in 0..7 {
            for frame in 0..8 {
                let at = Nanos(time(20 * burst).0 + frame * 100_000);
                rest.passed(at, (Call, 1), (false, MS));
                assert!(!rest.is_resting());
            }
        }
    }
}
