//! Learns, by trying, how long to hold the notifications of a queue pair.

use super::Nanos;

/// Packets from which the pace is judged, without holding and at a width; at the widest width, where
/// there is nothing more to try, it takes more of them to judge again.
const LEARN: u32 = 64;
const LEARN_AT_WIDEST: u32 = 16 * LEARN;

/// Notifications from which the same is learnt and judged.
const TRIAL: u32 = 8;

/// A width is hopeless, and given up before it has been judged, if after this many notifications
/// hardly any has carried a second packet: a sender that waits for each answer must not wait long.
const HOPELESS: u32 = 6;
const HARDLY_ANY: f64 = 1.1;

/// A width is worth a trial if notifications without it are this many widths apart, or closer.
const WITHIN_REACH: f64 = 2.0;

/// A width pays if notifications carry this many times the packets that they carry without it. Each takes a
/// wake-up of the worker, which costs 0.7 to 0.8 of what a guest's interrupt does (`docs/nic-hold.md`): below this
/// holding saves interrupts and costs cycles.
const WORTHWHILE: f64 = 1.8;

/// A width harms if the packet rate falls below this part of the rate without it, or below less
/// where few packets were counted and chance alone explains that.
const HARMFUL: f64 = 0.85;

/// Failures in a row after which the pause between two trials grows no more: 4,096 packets.
const MOST_FAILURES: u32 = 6;

/// Shorter windows than this are not worth a timer.
const NARROWEST: Nanos = Nanos::from_micros(10);

/// A minimum gap between the notifications of one direction, the same for both, that widens while it pays.
///
/// A notification leaves at once when the last one is at least the gap's width ago; so the first
/// packet after idle never waits. Any other waits for a width. The width starts at zero. Where
/// notifications are close enough for a gap to merge them, a narrow one is tried, then doubled up to
/// the limit. It falls back when notifications carry hardly more packets than without it, or when the
/// packets come slower: then the sender waits for answers that wait for us (request/response
/// traffic). Each failure doubles the pause before the next trial, in which the pace without holding
/// is learnt anew.
///
/// Both directions are tried and judged as one. What comes in bursts is answered in bursts, and the other
/// way round: held in one direction alone, a stream of data and its acknowledgements merge hardly at all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Window {
    limit: Nanos,
    width: Nanos,
    /// The widest width that has proved itself.
    proven: Nanos,
    /// Without holding: packets per nanosecond, and packets per notification.
    free_rate: f64,
    free_merge: f64,
    /// Packets from which that was learnt.
    learnt_from: u32,
    failures: u32,
    /// Packets to let pass before the next trial.
    pause: u32,
    last_passed: Nanos,
    ring_size: u16,
    trial: Trial,
}

/// What has been seen at the present width.
#[derive(Clone, Copy, Debug, Default)]
struct Trial {
    busy: Nanos,
    packets: u32,
    notifications: u32,
}

impl Window {
    /// Sets the widest width allowed.
    pub fn limit(&mut self, limit: Nanos) {
        self.limit = limit;
        self.width = self.width.min(limit);
        self.proven = self.proven.min(limit);
    }

    /// Whether it is wider than nothing.
    pub fn is_open(&self) -> bool {
        self.width > Nanos::ZERO
    }

    /// Counts packets that passed. A pause of more than four limits before them is not counted: the
    /// sender had nothing to send, which says nothing about its pace.
    pub fn passed(&mut self, now: Nanos, packets: u32, ring_size: u16) {
        let gap = now.since(self.last_passed);
        if gap.0 / 4 <= self.limit.0 {
            self.trial.busy = self.trial.busy + gap;
        }
        self.trial.packets = self.trial.packets.saturating_add(packets);
        self.pause = self.pause.saturating_sub(packets);
        self.last_passed = now;
        self.ring_size = ring_size;
    }

    /// Until when to hold a packet that comes now, after the last notification in its direction; not after `now`
    /// if not at all.
    pub fn end(&self, now: Nanos, last_notified: Option<Nanos>) -> Nanos {
        match last_notified {
            Some(last) if now.since(last) < self.width => (now + self.width).on_grid(self.width),
            _ => now,
        }
    }

    /// A notification leaves.
    pub fn notified(&mut self) {
        self.trial.notifications += 1;
        if self.width > Nanos::ZERO {
            self.judge();
        } else if self.trial.notifications >= TRIAL
            && self.trial.packets >= LEARN
            && self.pause == 0
        {
            self.learn();
        }
    }

    fn learn(&mut self) {
        self.learnt_from = self.trial.packets;
        self.free_rate = self.trial.rate();
        self.free_merge = self.trial.merge();
        self.trial = Trial::default();
        let widest = self.widest();
        let apart = self.free_merge / self.free_rate;
        if apart <= WITHIN_REACH * widest.0 as f64 && widest >= NARROWEST {
            let narrow = Nanos((4.0 * apart) as u64);
            self.width = narrow.max(NARROWEST).min(widest);
        }
    }

    fn judge(&mut self) {
        let Trial {
            notifications,
            packets,
            ..
        } = self.trial;
        let enough = if self.width < self.widest() {
            LEARN
        } else {
            LEARN_AT_WIDEST
        };
        let merge = self.trial.merge();
        let judged = notifications >= TRIAL && packets >= LEARN;
        let hopeless = notifications >= HOPELESS && merge < HARDLY_ANY;
        if hopeless || judged && merge < WORTHWHILE * self.free_merge {
            self.fall_back();
        } else if notifications >= TRIAL && packets >= enough {
            // Three standard deviations of a memoryless process.
            let chance = 3.0 / f64::from(packets.min(self.learnt_from)).sqrt();
            if self.trial.rate() < HARMFUL.min(1.0 - chance) * self.free_rate {
                self.proven = Nanos::ZERO;
                self.fall_back();
            } else {
                self.widen();
            }
        }
    }

    fn widen(&mut self) {
        let widest = self.widest();
        self.proven = self.width;
        if self.width >= widest {
            self.failures = 0;
        }
        if self.pause == 0 {
            self.width = Nanos(self.width.0.saturating_mul(2)).min(widest);
        }
        self.trial = Trial::default();
    }

    fn fall_back(&mut self) {
        self.failures = (self.failures + 1).min(MOST_FAILURES);
        self.pause = LEARN << self.failures;
        if self.width <= self.proven {
            self.proven = Nanos::ZERO;
        }
        self.width = self.proven;
        self.trial = Trial::default();
    }

    /// The limit, or the time in which half the ring fills.
    fn widest(&self) -> Nanos {
        let half = f64::from(self.ring_size / 2);
        self.limit.min(Nanos((half / self.free_rate) as u64))
    }
}

impl Trial {
    fn rate(&self) -> f64 {
        f64::from(self.packets) / self.busy.0.max(1) as f64
    }

    fn merge(&self) -> f64 {
        f64::from(self.packets) / f64::from(self.notifications.max(1))
    }
}
