// SPDX-License-Identifier: Apache-2.0
//! Pauses in which a queue pair's notifications bypass the worker, because being woken for notifications that are not
//! held costs more than holding saves.

use super::Nanos;

/// Packets before a rest, as many as a controller learns from.
const WATCH_PACKETS: u32 = 64;

/// The number of notifications after which a rest may begin early, and how many of them must be close enough to be
/// merged to prevent that.
const WATCH_NOTIFICATIONS: u32 = 8;
const CLOSE_NOTIFICATIONS: u32 = 2;

/// The length of a rest in multiples of the time before it, and its bounds.
const REST_FACTOR: u64 = 16;
const SHORTEST_REST: Nanos = Nanos::from_micros(10_000);
const LONGEST_REST: Nanos = Nanos::from_micros(1_000_000);

/// The watching and resting of a queue pair. While the controller holds none of the pair's notifications, the worker
/// rests: they bypass it for a while. So the worker is woken for one in seventeen of them at most, or for a few a
/// second where they are further apart than a hold may last. An idle port has no timer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rest {
    /// The time of the first packet of this watch.
    since: Option<Nanos>,
    packets: u32,
    notifications: u32,
    /// Notifications that came within a budget of the last of their kind.
    close: u32,
    last_call: Option<Nanos>,
    last_kick: Option<Nanos>,
    until: Option<Nanos>,
}

/// The kinds of notifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notification {
    /// The guest is called for received packets.
    Call,
    /// The guest has kicked for packets to send.
    Kick,
}

impl Rest {
    /// Whether notifications bypass the worker.
    pub fn is_resting(&self) -> bool {
        self.until.is_some()
    }

    /// When [`Rest::settle`] must be called.
    pub fn deadline(&self) -> Option<Nanos> {
        self.until
    }

    /// Counts packets with a notification that were watched. `holds` is whether the controller holds any, for up to
    /// `budget`. Begins a rest when it is time.
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
        if self.notifications >= WATCH_NOTIFICATIONS && self.close < CLOSE_NOTIFICATIONS {
            self.until = Some(now + LONGEST_REST);
        } else if self.packets >= WATCH_PACKETS {
            let rest = Nanos(now.since(since).0.saturating_mul(REST_FACTOR));
            self.until = Some(now + rest.max(SHORTEST_REST).min(LONGEST_REST));
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
