// SPDX-License-Identifier: Apache-2.0
//! Runs a controller for one queue pair within the budget and the limits of a ring.

use super::{Controller, Nanos};

/// Packets that the worker has just published in the RX used ring.
#[derive(Clone, Copy, Debug)]
pub struct RxBatch {
    /// Packets published now.
    pub packets: u32,
    /// RX buffers that the guest offers and that are still unused.
    pub free: u16,
    /// Ring size.
    pub ring_size: u16,
    /// Whether the guest wants a signal for anything published since the last one: EVENT_IDX
    /// compared from the used index of the last signal, not of the last batch.
    pub wanted: bool,
}

/// A drain of the TX ring until it was empty.
#[derive(Clone, Copy, Debug)]
pub struct TxRound {
    /// Packets taken.
    pub packets: u32,
    /// Ring size.
    pub ring_size: u16,
}

/// A held (or never held) RX signal may leave: read `used_event` again, and signal if the guest
/// still wants it. A guest that polls may have cancelled the need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an RX signal that is released and not sent leaves the guest asleep"]
pub struct Release {
    /// How long the oldest packet waited for it.
    pub held_for: Nanos,
    /// Packets that share the signal.
    pub packets: u32,
}

/// The actions after a kick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct KickOutcome {
    /// The guest is awake anyway: a held RX signal is best sent now.
    pub rx: Option<Release>,
    /// Drain the TX ring now. Otherwise [`PairHold::deadline`] is when.
    pub drain: bool,
}

/// The holds that end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct DueHolds {
    /// The RX signal.
    pub rx: Option<Release>,
    /// Drain the TX ring.
    pub drain: bool,
}

/// The event that begins the next drain of the TX ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum NextDrain {
    /// Ask for a kick: publish `avail_event`, fence, look once more.
    OnKick,
    /// Leave `avail_event` stale: [`PairHold::deadline`] is when to drain.
    AtDeadline,
}

/// The bound of holds of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The longest wait of a notification.
    pub budget: Nanos,
    /// The number of waiting packets that ends the hold.
    pub packets: u32,
}

impl Bound {
    /// A bound of time alone, without a number of packets.
    pub fn from_budget(budget: Nanos) -> Self {
        Self {
            budget,
            packets: u32::MAX,
        }
    }
}

/// The holds of one queue pair.
#[derive(Debug)]
pub struct PairHold {
    controller: Box<dyn Controller>,
    rx_bound: Bound,
    tx_bound: Bound,
    rx: Option<HeldSignal>,
    tx: Option<HeldDrain>,
}

#[derive(Clone, Copy, Debug)]
struct HeldSignal {
    since: Nanos,
    packets: u32,
    due: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct HeldDrain {
    since: Nanos,
    due: Nanos,
}

impl PairHold {
    /// Runs `controller` within `budget`.
    pub fn new(mut controller: Box<dyn Controller>, budget: Nanos) -> Self {
        controller.set_budget(budget);
        Self {
            controller,
            rx_bound: Bound::from_budget(budget),
            tx_bound: Bound::from_budget(budget),
            rx: None,
            tx: None,
        }
    }

    /// Changes the bounds of each direction. Current holds are shortened to them.
    pub fn set_bounds(&mut self, rx: Bound, tx: Bound) {
        if (rx, tx) == (self.rx_bound, self.tx_bound) {
            return;
        }
        (self.rx_bound, self.tx_bound) = (rx, tx);
        self.controller.set_budget(self.budget());
        if let Some(held) = &mut self.rx {
            held.due = held.due.min(held.since + rx.budget);
        }
        if let Some(held) = &mut self.tx {
            held.due = held.due.min(held.since + tx.budget);
        }
    }

    /// The bounds of received and of sent frames.
    #[cfg(test)]
    pub fn bounds(&self) -> (Bound, Bound) {
        (self.rx_bound, self.tx_bound)
    }

    /// The budget in force: that of the direction that may be held longer.
    pub fn budget(&self) -> Nanos {
        self.rx_bound.budget.max(self.tx_bound.budget)
    }

    /// The worker published a batch in the RX used ring.
    #[must_use = "an RX signal that is released and not sent leaves the guest asleep"]
    pub fn received(&mut self, now: Nanos, batch: RxBatch) -> Option<Release> {
        // A ring that the kernel serves may have no new packets.
        if batch.packets > 0 {
            self.controller
                .received(now, batch.packets, batch.ring_size);
        }
        if !batch.wanted {
            if self.rx.take().is_some_and(|held| held.due <= now) {
                self.controller.woken_for_nothing();
            }
            return None;
        }
        let held = match &mut self.rx {
            Some(held) => {
                held.packets = held.packets.saturating_add(batch.packets);
                *held
            }
            None => self.new_signal(now, batch.packets),
        };
        self.rx = Some(held);
        let low = u32::from(batch.free) * 4 < u32::from(batch.ring_size);
        let full = batch.free == 0
            || held.packets >= self.rx_bound.packets
            || (low && !self.controller.timers_only());
        if full || held.due <= now {
            self.release(now)
        } else {
            None
        }
    }

    /// The guest kicked its TX queue, in which `waiting` packets are.
    pub fn kicked(&mut self, now: Nanos, waiting: u32) -> KickOutcome {
        let rx = if self.controller.timers_only() {
            None
        } else {
            self.release(now)
        };
        if waiting >= self.tx_bound.packets {
            self.tx = None;
            return KickOutcome { rx, drain: true };
        }
        if self.tx.is_none() {
            let due = self.controller.hold_tx(now).min(now + self.tx_bound.budget);
            if due <= now {
                return KickOutcome { rx, drain: true };
            }
            self.tx = Some(HeldDrain { since: now, due });
        }
        // A kick while a drain is due anyway (a guest that ignores suppression) changes nothing.
        KickOutcome { rx, drain: false }
    }

    /// The worker drained the TX ring until it was empty.
    pub fn drained(&mut self, now: Nanos, round: TxRound) -> NextDrain {
        let held = self.tx.take();
        if round.packets == 0 && held.is_some_and(|held| held.due <= now) {
            self.controller.woken_for_nothing();
        }
        // Ask for a kick only after an empty round, but then always: an idle port has no timer.
        if round.packets > 0
            && let Some(due) = self.controller.sent(now, round.packets, round.ring_size)
        {
            let due = due.min(now + self.tx_bound.budget);
            // Where more packets come in a hold than may wait, the guest's kicks begin the drains.
            if due > now && round.packets < self.tx_bound.packets {
                self.tx = Some(HeldDrain { since: now, due });
                return NextDrain::AtDeadline;
            }
        }
        NextDrain::OnKick
    }

    /// The number of waiting packets that ends a held drain.
    pub fn most_to_hold(&self) -> u32 {
        self.tx_bound.packets
    }

    /// Whether an RX signal is held.
    pub fn holds_call(&self) -> bool {
        self.rx.is_some()
    }

    /// Whether a drain of the TX ring is held.
    pub fn holds_drain(&self) -> bool {
        self.tx.is_some()
    }

    /// The worker was woken for a notification that waits now.
    pub fn woken_to_hold(&mut self) {
        self.controller.woken_for_nothing();
    }

    /// Whether the controller may hold RX signals, and drains of the TX ring.
    pub fn may_hold(&self) -> (bool, bool) {
        let controller = &self.controller;
        (controller.may_hold_rx(), controller.may_hold_tx())
    }

    /// Begins the hold that would follow a signal before its first packet, so that the packet need not wake the
    /// worker. The hold's age counts from now on, so that it is never understated.
    pub fn anticipate(&mut self, now: Nanos) {
        let held = self.new_signal(now, 0);
        if self.rx.is_none() && held.due > now {
            self.rx = Some(held);
        }
    }

    fn new_signal(&mut self, now: Nanos, packets: u32) -> HeldSignal {
        HeldSignal {
            since: now,
            packets,
            due: self.controller.hold_rx(now).min(now + self.rx_bound.budget),
        }
    }

    /// When [`PairHold::expired`] must be called, if anything is held.
    pub fn deadline(&self) -> Option<Nanos> {
        let rx = self.rx.iter().map(|held| held.due);
        rx.chain(self.tx.iter().map(|held| held.due)).min()
    }

    /// Ends the holds whose deadline has passed. A drain that is due stays due until
    /// [`PairHold::drained`] is called.
    pub fn expired(&mut self, now: Nanos) -> DueHolds {
        let rx_due = self.rx.is_some_and(|held| held.due <= now);
        DueHolds {
            rx: if rx_due { self.release(now) } else { None },
            drain: self.tx.is_some_and(|held| held.due <= now),
        }
    }

    /// Ends all holds: before a queue is stopped, disabled or given other memory.
    pub fn flush(&mut self, now: Nanos) -> DueHolds {
        DueHolds {
            rx: self.release(now),
            drain: self.tx.take().is_some(),
        }
    }

    fn release(&mut self, now: Nanos) -> Option<Release> {
        let held = self.rx.take()?;
        self.controller.signalled(now, held.packets);
        Some(Release {
            held_for: now.since(held.since),
            packets: held.packets,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hold::{HoldSettings, Mode};

    impl PairHold {
        /// Changes the budget of both directions.
        fn set_budget(&mut self, budget: Nanos) {
            self.set_bounds(Bound::from_budget(budget), Bound::from_budget(budget));
        }
    }

    const BUDGET: Nanos = Nanos::from_micros(1_000);
    const RING: u16 = 256;

    fn pair(mode: Mode) -> PairHold {
        let settings = HoldSettings {
            mode,
            ..HoldSettings::default()
        };
        PairHold::new(settings.controller(), BUDGET)
    }

    fn batch(packets: u32, free: u16) -> RxBatch {
        RxBatch {
            packets,
            free,
            ring_size: RING,
            wanted: true,
        }
    }

    fn round(packets: u32) -> TxRound {
        TxRound {
            packets,
            ring_size: RING,
        }
    }

    fn micros(micros: u32) -> Nanos {
        Nanos::from_micros(micros)
    }

    /// An adaptive pair that has learnt from 100,000 packets/s, and the time.
    fn learnt() -> (PairHold, Nanos) {
        let mut pair = pair(Mode::Adaptive);
        let mut now = Nanos::from_secs(1);
        for _ in 0..4_000 {
            now = now + micros(10);
            let _ = pair.expired(now);
            let _ = pair.received(now, batch(1, 200));
        }
        assert!(pair.deadline().is_some(), "steady traffic is held");
        (pair, now)
    }

    #[test]
    fn each_direction_is_held_for_its_own_time_and_count() {
        let many = |micros: u32, packets| Bound {
            budget: Nanos::from_micros(micros),
            packets,
        };
        let now = Nanos::from_secs(1);
        let mut pair = pair(Mode::Fixed);
        pair.set_bounds(many(0, 1), many(400, 32));
        assert!(pair.received(now, batch(1, 200)).is_some(), "no hold of RX");
        assert!(!pair.kicked(now, 1).drain);
        assert_eq!(pair.deadline(), Some(now + micros(400)));
        assert!(pair.kicked(now, 32).drain, "32 do not wait");
        assert_eq!(pair.drained(now, round(32)), NextDrain::OnKick);
        assert_eq!(pair.drained(now, round(31)), NextDrain::AtDeadline);

        pair.set_bounds(many(300, 4), many(0, 1));
        let _ = pair.flush(now);
        assert!(pair.kicked(now, 1).drain, "no hold of TX");
        assert_eq!(pair.drained(now, round(1)), NextDrain::OnKick);
        assert!(pair.received(now, batch(3, 200)).is_none());
        assert_eq!(pair.deadline(), Some(now + micros(300)));
        let release = pair.received(now, batch(1, 200)).unwrap();
        assert_eq!((release.packets, pair.deadline()), (4, None));
    }

    #[test]
    fn off_signals_every_batch_and_asks_for_every_kick() {
        let mut pair = pair(Mode::Off);
        for at in 1..1_000 {
            assert!(pair.received(micros(at), batch(1, 200)).is_some());
            assert_eq!(
                pair.kicked(micros(at), 1),
                KickOutcome {
                    rx: None,
                    drain: true
                }
            );
            assert_eq!(pair.drained(micros(at), round(9)), NextDrain::OnKick);
            assert_eq!(pair.deadline(), None);
        }
    }

    #[test]
    fn fixed_starts_a_timer_at_the_first_packet() {
        let mut pair = pair(Mode::Fixed);
        assert_eq!(pair.received(micros(10), batch(1, 200)), None);
        assert_eq!(pair.received(micros(500), batch(2, 200)), None);
        assert_eq!(pair.deadline(), Some(micros(1_010)));
        assert_eq!(pair.expired(micros(1_009)), DueHolds::default());
        let release = Release {
            held_for: BUDGET,
            packets: 3,
        };
        assert_eq!(pair.expired(micros(1_010)).rx, Some(release));
        assert_eq!(pair.deadline(), None);
    }

    #[test]
    fn a_drain_waits_and_repeats_until_a_round_is_empty() {
        let mut pair = pair(Mode::Fixed);
        assert!(!pair.kicked(micros(0), 1).drain);
        assert!(pair.expired(micros(1_000)).drain);
        assert_eq!(pair.drained(micros(1_000), round(5)), NextDrain::AtDeadline);
        assert!(pair.expired(micros(2_000)).drain);
        assert_eq!(pair.drained(micros(2_000), round(0)), NextDrain::OnKick);
        assert_eq!(pair.deadline(), None);
    }

    #[test]
    fn a_filling_ring_ends_a_hold() {
        let (mut pair, now) = learnt();
        let _ = pair.flush(now);
        assert_eq!(pair.received(now, batch(1, 65)), None);
        assert!(pair.received(now, batch(1, 63)).is_some());
    }

    #[test]
    fn a_kick_takes_the_held_signal_along() {
        let (mut pair, now) = learnt();
        let kicked = pair.kicked(now, 1);
        assert!(kicked.rx.is_some() && kicked.drain);
    }

    #[test]
    fn the_papers_timers_alone_end_its_holds() {
        let mut pair = pair(Mode::Paper);
        let _ = pair.received(Nanos::from_secs(1), batch(1_000, 200));
        let now = Nanos::from_secs(7);
        assert_eq!(pair.received(now, batch(1, 1)), None);
        assert_eq!(pair.kicked(now, 1).rx, None);
        assert!(
            pair.received(now, batch(1, 0)).is_some(),
            "a full ring can merge no more"
        );
    }

    #[test]
    fn the_first_packet_after_idle_is_never_delayed() {
        let (mut pair, now) = learnt();
        let _ = pair.expired(now + BUDGET);
        assert_eq!(pair.deadline(), None, "an idle port has no timer");
        let idle = now + BUDGET + micros(4_000);
        assert!(pair.received(idle, batch(1, 200)).is_some());
        assert!(pair.kicked(idle, 1).drain);
    }

    #[test]
    fn a_guest_that_polls_is_not_signalled() {
        let (mut pair, now) = learnt();
        assert_eq!(
            pair.received(
                now,
                RxBatch {
                    wanted: false,
                    ..batch(1, 200)
                }
            ),
            None
        );
        assert_eq!(pair.deadline(), None);
    }

    #[test]
    fn a_smaller_budget_shortens_holds_under_way() {
        let mut pair = pair(Mode::Fixed);
        assert_eq!(pair.received(micros(0), batch(1, 200)), None);
        pair.set_budget(micros(100));
        assert_eq!(pair.deadline(), Some(micros(100)));
        pair.set_budget(Nanos::ZERO);
        assert!(pair.expired(micros(1)).rx.is_some());
        assert!(pair.received(micros(2), batch(1, 200)).is_some());
    }

    #[test]
    fn nothing_is_held_after_a_flush() {
        let (mut pair, now) = learnt();
        assert!(pair.flush(now).rx.is_some());
        assert_eq!(pair.deadline(), None);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Receive {
            packets: u32,
            free: u16,
            wanted: bool,
        },
        Kick {
            packets: u32,
        },
        Budget(u32),
        Wait(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (1..300u32, 0..=RING, prop::bool::weighted(0.9))
                .prop_map(|(packets, free, wanted)| Step::Receive { packets, free, wanted }),
            3 => (0..300u32).prop_map(|packets| Step::Kick { packets }),
            1 => (0..5_000u32).prop_map(Step::Budget),
            6 => prop_oneof![0..20_000u64, 0..2_000_000u64, Just(6_000_000_000u64), Just(u64::MAX / 1_000)]
                .prop_map(Step::Wait),
        ]
    }

    proptest! {
        #[test]
        fn nothing_waits_longer_than_the_budget_in_any_mode(
            mode in prop::sample::select(Mode::ALL.to_vec()),
            steps in prop::collection::vec(step(), 1..400),
        ) {
            let mut pair = pair(mode);
            let mut now = Nanos(1);
            let (mut rx_since, mut tx_since): (Option<Nanos>, Option<Nanos>) = (None, None);
            for step in steps {
                match step {
                    Step::Wait(wait) => {
                        // The worker meets every deadline in between.
                        let end = now + Nanos(wait);
                        for _ in 0..10 {
                            let Some(due) = pair.deadline().filter(|due| *due <= end) else { break };
                            now = now.max(due);
                            let expired = pair.expired(now);
                            prop_assert!(expired.rx.is_some() || expired.drain);
                            if expired.rx.is_some() {
                                rx_since = None;
                            }
                            if expired.drain {
                                tx_since = None;
                                prop_assert_eq!(pair.drained(now, round(0)), NextDrain::OnKick);
                            }
                        }
                        now = end;
                    }
                    Step::Receive { packets, free, wanted } => {
                        let release = pair.received(now, RxBatch { packets, free, ring_size: RING, wanted });
                        let held = wanted && release.is_none();
                        prop_assert!(!held || (mode != Mode::Off && free > 0));
                        rx_since = held.then(|| rx_since.unwrap_or(now));
                    }
                    Step::Kick { packets } => {
                        let kicked = pair.kicked(now, 1);
                        if kicked.rx.is_some() {
                            rx_since = None;
                        }
                        if kicked.drain {
                            let next = pair.drained(now, round(packets));
                            tx_since = (next == NextDrain::AtDeadline).then_some(now);
                            prop_assert!(packets > 0 || next == NextDrain::OnKick);
                        } else {
                            tx_since = tx_since.or(Some(now));
                        }
                    }
                    Step::Budget(budget) => pair.set_budget(micros(budget)),
                }
                let since = [rx_since, tx_since].into_iter().flatten().min();
                prop_assert_eq!(since.is_some(), pair.deadline().is_some(), "a timer without a hold, or a hold without a timer");
                if let Some(since) = since {
                    prop_assert!(pair.deadline().unwrap().since(since) <= pair.budget());
                }
                if pair.budget() == Nanos::ZERO {
                    prop_assert!(pair.deadline().is_none_or(|due| due <= now));
                }
            }
        }

        #[test]
        fn after_idle_nothing_is_delayed_whatever_was_before(
            steps in prop::collection::vec((1..100u32, 0..200_000u64), 1..600),
        ) {
            let mut pair = pair(Mode::Adaptive);
            let mut now = Nanos::from_secs(1);
            for (packets, wait) in steps {
                if let Some(due) = pair.deadline().filter(|due| *due <= now) {
                    let _ = pair.expired(due);
                }
                let _ = pair.received(now, batch(packets, 200));
                now = now + Nanos(wait);
            }
            if let Some(due) = pair.deadline() {
                now = now.max(due);
                let _ = pair.expired(now);
            }
            now = now + Nanos(4 * BUDGET.0);
            prop_assert!(pair.received(now, batch(1, 200)).is_some());
            prop_assert!(pair.kicked(now, 1).drain);
        }
    }
}
