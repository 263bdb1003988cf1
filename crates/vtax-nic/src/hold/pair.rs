//! Runs a controller for one queue pair and keeps the promises that no controller may break.

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

/// A drain of the TX ring, until it was seen empty.
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

/// What to do after a kick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Kicked {
    /// The guest is awake anyway: a held RX signal is best sent now.
    pub rx: Option<Release>,
    /// Drain the TX ring now. Otherwise [`PairHold::deadline`] says when.
    pub drain: bool,
}

/// What is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Expired {
    /// The RX signal.
    pub rx: Option<Release>,
    /// Drain the TX ring.
    pub drain: bool,
}

/// How the TX ring is looked at next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum NextDrain {
    /// Ask for a kick: publish `avail_event`, fence, look once more.
    OnKick,
    /// Leave `avail_event` stale: [`PairHold::deadline`] says when to drain.
    AtDeadline,
}

/// The holds of one queue pair.
#[derive(Debug)]
pub struct PairHold {
    controller: Box<dyn Controller>,
    budget: Nanos,
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
            budget,
            rx: None,
            tx: None,
        }
    }

    /// Changes the budget; holds under way are shortened to it.
    pub fn set_budget(&mut self, budget: Nanos) {
        self.controller.set_budget(budget);
        self.budget = budget;
        if let Some(held) = &mut self.rx {
            held.due = held.due.min(held.since + budget);
        }
        if let Some(held) = &mut self.tx {
            held.due = held.due.min(held.since + budget);
        }
    }

    /// The budget in force.
    pub fn budget(&self) -> Nanos {
        self.budget
    }

    /// The worker published a batch in the RX used ring.
    #[must_use = "an RX signal that is released and not sent leaves the guest asleep"]
    pub fn received(&mut self, now: Nanos, batch: RxBatch) -> Option<Release> {
        self.controller
            .received(now, batch.packets, batch.ring_size);
        if !batch.wanted {
            self.rx = None;
            return None;
        }
        let held = match &mut self.rx {
            Some(held) => {
                held.packets = held.packets.saturating_add(batch.packets);
                *held
            }
            None => {
                let due = self.controller.hold_rx(now).min(now + self.budget);
                HeldSignal {
                    since: now,
                    packets: batch.packets,
                    due,
                }
            }
        };
        self.rx = Some(held);
        let low = u32::from(batch.free) * 4 < u32::from(batch.ring_size);
        let full = batch.free == 0 || (low && !self.controller.timers_only());
        if full || held.due <= now {
            self.release(now)
        } else {
            None
        }
    }

    /// The guest kicked its TX queue.
    pub fn kicked(&mut self, now: Nanos) -> Kicked {
        let rx = if self.controller.timers_only() {
            None
        } else {
            self.release(now)
        };
        if self.tx.is_none() {
            let due = self.controller.hold_tx(now).min(now + self.budget);
            if due <= now {
                return Kicked { rx, drain: true };
            }
            self.tx = Some(HeldDrain { since: now, due });
        }
        // A kick while a drain is due anyway (a guest that ignores suppression) changes nothing.
        Kicked { rx, drain: false }
    }

    /// The worker drained the TX ring until it was empty.
    pub fn drained(&mut self, now: Nanos, round: TxRound) -> NextDrain {
        self.tx = None;
        // Ask for a kick only after an empty round, but then always: an idle port has no timer.
        if round.packets > 0
            && let Some(due) = self.controller.sent(now, round.packets, round.ring_size)
        {
            let due = due.min(now + self.budget);
            if due > now {
                self.tx = Some(HeldDrain { since: now, due });
                return NextDrain::AtDeadline;
            }
        }
        NextDrain::OnKick
    }

    /// When [`PairHold::expired`] must be called; `None` where nothing is held.
    pub fn deadline(&self) -> Option<Nanos> {
        let rx = self.rx.map(|held| held.due);
        let tx = self.tx.map(|held| held.due);
        match (rx, tx) {
            (Some(rx), Some(tx)) => Some(rx.min(tx)),
            (rx, tx) => rx.or(tx),
        }
    }

    /// Ends the holds whose deadline has passed. A drain that is due stays due until
    /// [`PairHold::drained`] is called.
    pub fn expired(&mut self, now: Nanos) -> Expired {
        let rx_due = self.rx.is_some_and(|held| held.due <= now);
        Expired {
            rx: if rx_due { self.release(now) } else { None },
            drain: self.tx.is_some_and(|held| held.due <= now),
        }
    }

    /// Ends all holds: before a queue is stopped, disabled or given other memory.
    pub fn flush(&mut self, now: Nanos) -> Expired {
        Expired {
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
