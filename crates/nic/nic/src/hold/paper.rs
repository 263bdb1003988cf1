// SPDX-License-Identifier: Apache-2.0
//! The `paper` controller: the adaptive buffering of Shea, Wang and Liu (INFOCOM 2014), to the letter.
//!
//! It is a reference for measurements. `docs/components/nic-hold.md` lists its weaknesses.

use super::{Controller, Nanos};

/// Weight of the previous slot's share in the estimate.
const ALPHA: f64 = 0.75;

/// Time between two updates of the hold times in the paper.
const SLOT: Nanos = Nanos::from_secs(5);

/// Splits the budget T_buf between sending and receiving by the share of packets in each
/// direction, every 5 s or another time: b_s = p*_s · T_buf and b_r = p*_r · T_buf, with
/// p*(t_i) = α · p(t_{i-1}) + (1 - α) · p(t_i).
///
/// There is no estimate, hence no hold, before the first update.
#[derive(Clone, Copy, Debug)]
pub struct Paper {
    slot: Nanos,
    budget: Nanos,
    slot_start: Option<Nanos>,
    sent: u64,
    received: u64,
    previous: Shares,
    estimate: Shares,
}

#[derive(Clone, Copy, Debug, Default)]
struct Shares {
    sent: f64,
    received: f64,
}

impl Shares {
    /// The paper's implementation adds one, so that an idle slot has a share of zero.
    fn new(sent: u64, received: u64) -> Self {
        let all = (sent + received + 1) as f64;
        Self {
            sent: sent as f64 / all,
            received: received as f64 / all,
        }
    }

    fn smoothed(previous: Self, current: Self) -> Self {
        let mix = |previous, current| ALPHA * previous + (1.0 - ALPHA) * current;
        Self {
            sent: mix(previous.sent, current.sent),
            received: mix(previous.received, current.received),
        }
    }
}

impl Default for Paper {
    fn default() -> Self {
        Self::with_slot(SLOT)
    }
}

impl Paper {
    /// A controller that updates its hold times after this time instead of the paper's 5 s; at least 1 µs.
    pub fn with_slot(slot: Nanos) -> Self {
        Self {
            slot: slot.max(Nanos::from_micros(1)),
            budget: Nanos::ZERO,
            slot_start: None,
            sent: 0,
            received: 0,
            previous: Shares::default(),
            estimate: Shares::default(),
        }
    }

    /// Updates the hold times if a slot has ended. It runs on events, so that an idle port needs no timer.
    fn update(&mut self, now: Nanos) {
        let start = *self.slot_start.get_or_insert(now);
        let slots = now.since(start).0 / self.slot.0;
        // From the third slot on, all are empty and alike.
        for _ in 0..slots.min(3) {
            let current = Shares::new(self.sent, self.received);
            self.estimate = Shares::smoothed(self.previous, current);
            self.previous = current;
            (self.sent, self.received) = (0, 0);
        }
        self.slot_start = Some(start + Nanos(slots * self.slot.0));
    }
}

impl Controller for Paper {
    fn set_budget(&mut self, budget: Nanos) {
        self.budget = budget;
    }

    fn received(&mut self, now: Nanos, packets: u32, _: u16) {
        self.update(now);
        self.received += u64::from(packets);
    }

    fn hold_rx(&mut self, now: Nanos) -> Nanos {
        now + self.budget.share(self.estimate.received)
    }

    fn hold_tx(&mut self, now: Nanos) -> Nanos {
        self.update(now);
        now + self.budget.share(self.estimate.sent)
    }

    fn sent(&mut self, now: Nanos, packets: u32, _: u16) -> Option<Nanos> {
        self.update(now);
        self.sent += u64::from(packets);
        // One kick a hold, as when the guest itself runs the timer.
        None
    }

    fn timers_only(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = Nanos::from_micros(1_000);

    fn second(seconds: u32) -> Nanos {
        Nanos::from_secs(seconds)
    }

    fn hold(paper: &mut Paper, now: Nanos) -> Nanos {
        paper.hold_rx(now).since(now)
    }

    #[test]
    fn holds_follow_the_papers_equations() {
        let mut paper = Paper::default();
        paper.set_budget(MS);
        paper.received(second(0), 899, 256);
        paper.sent(second(1), 300, 256);
        assert_eq!(hold(&mut paper, second(4)), Nanos::ZERO, "no estimate yet");

        // Slot 1 closes: p_r(t_0) = 0, p_r(t_1) = 899/1200.
        paper.received(second(5), 0, 256);
        let first = 0.25 * 899.0 / 1200.0;
        assert_eq!(hold(&mut paper, second(5)), MS.share(first));

        // Slot 2: nothing received, 999 sent. The raw share of slot 1 carries over, not its estimate.
        paper.sent(second(6), 999, 256);
        paper.received(second(10), 0, 256);
        assert_eq!(
            hold(&mut paper, second(10)),
            MS.share(0.75 * 899.0 / 1200.0)
        );
        let sent = 0.75 * 300.0 / 1200.0 + 0.25 * 999.0 / 1000.0;
        assert_eq!(paper.hold_tx(second(10)).since(second(10)), MS.share(sent));
    }

    #[test]
    fn another_time_between_updates_gives_the_same_holds_sooner() {
        let holds = |slot: Nanos| {
            let mut paper = Paper::with_slot(slot);
            paper.set_budget(MS);
            for slots in 0..4 {
                paper.received(Nanos(slots * slot.0), 899, 256);
            }
            paper.hold_rx(Nanos(4 * slot.0)).since(Nanos(4 * slot.0))
        };
        assert!(holds(SLOT) > Nanos::ZERO);
        assert_eq!(holds(SLOT), holds(Nanos::from_micros(500_000)));
    }

    #[test]
    fn an_idle_port_forgets() {
        let mut paper = Paper::default();
        paper.set_budget(MS);
        paper.received(second(0), 1_000, 256);
        paper.received(second(6), 1_000, 256);
        assert!(hold(&mut paper, second(6)) > Nanos::ZERO);
        paper.received(second(60), 1, 256);
        assert_eq!(hold(&mut paper, second(60)), Nanos::ZERO);
    }
}
