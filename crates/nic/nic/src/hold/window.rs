// SPDX-License-Identifier: Apache-2.0
//! A hold time for a queue pair that is learnt by trials.

use super::Nanos;

/// Packets after which a width, or not holding, is judged. At the widest width, where there is nothing more to try,
/// judgements need more packets.
const LEARN_PACKETS: u32 = 64;
const LEARN_PACKETS_AT_WIDEST: u32 = 16 * LEARN_PACKETS;

/// Wake-ups of the worker after which a width, or not holding, is judged. While nothing is held each is a
/// notification.
const TRIAL_WAKEUPS: u32 = 8;

/// A width is abandoned before it is judged if after this many wake-ups hardly any was for a second packet: a sender
/// that waits for each answer must not wait long. The second constant is the mean number of packets that counts as
/// hardly any.
const HOPELESS_WAKEUPS: u32 = 6;
const HOPELESS_MERGE: f64 = 1.1;

/// The approximate costs of notifications for guest and host, in thousands of cycles (`docs/components/nic-hold.md`, modelled): a
/// call is an interrupt of the guest; a drain is an exit of the guest, a wake-up of the thread that serves the ring,
/// and a call when the frames were sent; and a wake-up of the worker.
const CALL_CYCLES: f64 = 12.0;
const DRAIN_CYCLES: f64 = 40.0;
const WAKE_CYCLES: f64 = 17.0;

/// A width pays if a packet costs at most this part of its cost without holding.
const PAYING_COST: f64 = 0.9;

/// Widths without a notification after which the direction counts as idle. A stream that pauses briefly continues
/// with a batch.
const IDLE_WIDTHS: u64 = 4;

/// A width harms if the packet rate falls below this part of the rate without it, or below less
/// where few packets were counted and chance alone explains that.
const HARMFUL_RATE: f64 = 0.85;

/// Failures in a row after which the pause between two trials stays at 4,096 packets.
const MOST_FAILURES: u32 = 6;

/// The most judgements at the widest width before all is learnt again, because the traffic may have changed. The first
/// time it is one judgement, because a stream's start was learnt; the number doubles each time up to this.
const MOST_JUDGEMENTS: u32 = 64;

/// Shorter windows than this are not worth a timer.
const NARROWEST_WIDTH: Nanos = Nanos::from_micros(10);

/// A minimum gap between the notifications of one direction, the same for both, that widens while it pays.
///
/// A notification leaves at once when the last one is at least four widths ago; so the first packet after idle never
/// waits. Any other waits for a width. The width starts at zero. Where notifications are close enough for a gap to
/// merge them, a narrow one is tried, then doubled up to the limit. It falls back when a packet costs hardly less than
/// without it, or when the packets come slower: then the sender waits for answers that are held (request/response
/// traffic). Each failure doubles the pause before the next trial, in which the pace without holding is learnt anew.
///
/// Where the guest sends more packets than it receives, both directions are held, tried and judged as one: frames and
/// their acknowledgements come in the same bursts. Where it receives more, what it sends is not held: a stream waits
/// for its acknowledgements (receiving at full speed in the testbed, holding both took 0.23 of the throughput).
#[derive(Clone, Copy, Debug, Default)]
pub struct Window {
    limit: Nanos,
    width: Nanos,
    /// The widest width that has paid.
    proven: Nanos,
    /// Without holding: packets per nanosecond, and the cost of a packet.
    free_rate: f64,
    free_cost: f64,
    /// Whether the guest sends more than it receives.
    sends: bool,
    /// The number of packets behind these values.
    learnt_from: u32,
    failures: u32,
    /// Consecutive judgements at the widest width, and the number after which all is learnt again.
    judgements: u32,
    anew_after: u32,
    /// Packets to let pass before the next trial.
    pause: u32,
    last_passed: Nanos,
    ring_size: u16,
    trial: Trial,
}

/// Counts at the present width.
#[derive(Clone, Copy, Debug, Default)]
struct Trial {
    busy: Nanos,
    /// Received and sent; only received, where what is sent is not held.
    packets: u32,
    sent: u32,
    calls: u32,
    drains: u32,
    /// Wake-ups of the worker. While nothing is held, each is for a notification that would not need it.
    wakes: u32,
}

impl Window {
    /// Sets the widest width allowed.
    pub fn limit(&mut self, limit: Nanos) {
        self.limit = limit;
        self.width = self.width.min(limit);
        self.proven = self.proven.min(limit);
    }

    /// Whether what the guest receives may be held.
    pub fn holds_received(&self) -> bool {
        self.width > Nanos::ZERO
    }

    /// Whether what it sends may be held.
    pub fn holds_sent(&self) -> bool {
        self.width > Nanos::ZERO && self.sends
    }

    /// Counts packets that passed. A pause of more than four limits before them is not counted: the sender had no
    /// packets to send, so that the pause is no sign of its pace.
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
            Some(last) if now.since(last).0 / IDLE_WIDTHS < self.width.0 => {
                (now + self.width).on_grid(self.width)
            }
            _ => now,
        }
    }

    /// The guest is called.
    pub fn called(&mut self) {
        self.trial.calls += 1;
        self.woken();
    }

    /// `packets` that the guest offered were taken.
    pub fn drained(&mut self, now: Nanos, packets: u32, ring_size: u16) {
        if self.width > Nanos::ZERO && !self.sends {
            return;
        }
        self.passed(now, packets, ring_size);
        self.trial.sent = self.trial.sent.saturating_add(packets);
        self.trial.drains += 1;
        self.woken();
    }

    /// The worker was woken.
    pub fn woken(&mut self) {
        self.trial.wakes += 1;
        if self.width > Nanos::ZERO {
            self.judge();
        } else if self.trial.wakes >= TRIAL_WAKEUPS
            && self.trial.packets >= LEARN_PACKETS
            && self.pause == 0
        {
            self.learn();
        }
    }

    fn learn(&mut self) {
        self.learnt_from = self.trial.packets;
        self.sends = self.trial.sent >= self.trial.packets / 2;
        if !self.sends {
            self.trial.packets -= self.trial.sent;
            self.trial.wakes -= self.trial.drains;
            self.trial.drains = 0;
        }
        self.free_rate = self.trial.rate();
        self.free_cost = self.trial.cost_of_notifications();
        let merge = self.trial.merge();
        let apart = merge / self.free_rate;
        self.trial = Trial::default();
        let widest = self.widest();
        let close = apart <= widest.0 as f64 && widest >= NARROWEST_WIDTH;
        if close && self.may_pay(merge, widest) {
            let narrow = Nanos((4.0 * apart) as u64);
            self.width = narrow.max(NARROWEST_WIDTH).min(widest);
        }
    }

    /// Whether the widest hold would pay if packets went on as they came, `merge` to a notification: those of a hold
    /// then share one, and a wake-up of the worker.
    fn may_pay(&self, merge: f64, widest: Nanos) -> bool {
        let shared = merge + self.free_rate * widest.0 as f64;
        self.free_cost * merge + WAKE_CYCLES <= PAYING_COST * self.free_cost * shared
    }

    fn judge(&mut self) {
        let Trial { wakes, packets, .. } = self.trial;
        let enough = if self.width < self.widest() {
            LEARN_PACKETS
        } else {
            LEARN_PACKETS_AT_WIDEST
        };
        let judged = wakes >= TRIAL_WAKEUPS && packets >= LEARN_PACKETS;
        let hopeless = wakes >= HOPELESS_WAKEUPS && self.trial.merge() < HOPELESS_MERGE;
        if hopeless || judged && self.trial.cost() > PAYING_COST * self.free_cost {
            self.fall_back();
        } else if wakes >= TRIAL_WAKEUPS && packets >= enough {
            // Three standard deviations of a memoryless process.
            let chance = 3.0 / f64::from(packets.min(self.learnt_from)).sqrt();
            if self.trial.rate() < HARMFUL_RATE.min(1.0 - chance) * self.free_rate {
                self.proven = Nanos::ZERO;
                self.anew_after = 1;
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
            self.judgements += 1;
        }
        if self.judgements >= self.anew_after.max(1) {
            self.judgements = 0;
            self.anew_after = (self.anew_after.max(1) * 2).min(MOST_JUDGEMENTS);
            self.width = Nanos::ZERO;
        } else if self.pause == 0 {
            self.width = Nanos(self.width.0.saturating_mul(2)).min(widest);
        }
        self.trial = Trial::default();
    }

    fn fall_back(&mut self) {
        self.failures = (self.failures + 1).min(MOST_FAILURES);
        self.pause = LEARN_PACKETS << self.failures;
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
        f64::from(self.packets) / f64::from(self.wakes.max(1))
    }

    /// The cost of notifications for each packet.
    fn cost_of_notifications(&self) -> f64 {
        let cost = f64::from(self.calls) * CALL_CYCLES + f64::from(self.drains) * DRAIN_CYCLES;
        cost / f64::from(self.packets.max(1))
    }

    /// The cost for each packet, with the worker's wake-ups.
    fn cost(&self) -> f64 {
        let wakes = f64::from(self.wakes) * WAKE_CYCLES / f64::from(self.packets.max(1));
        self.cost_of_notifications() + wakes
    }
}
