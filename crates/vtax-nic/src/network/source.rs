//! What the worker knows of a queue that frames come from.

use crate::hold::{Nanos, WAKE_COST};

/// A transmit queue of a guest, or a queue of a tap.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source {
    pub(super) port: u16,
    pub(super) pair: u8,
    pub(super) state: State,
    /// Whether a kick began this round.
    pub(super) kicked: bool,
    /// Frames moved in this round.
    packets: u32,
    /// When the queue was first found empty after the last frames.
    empty_since: Option<Nanos>,
    /// When the last round ended.
    last_round: Nanos,
    /// Time between frames, as lately seen.
    gap: Nanos,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing to do until a kick, or until a tap is readable.
    Asleep,
    /// There may be frames.
    Active,
    /// There may be frames, to be looked for when the hold ends.
    Held,
    /// There are frames and the receiver has no buffers: until this time, or until it has.
    Blocked(Option<Nanos>),
}

impl Source {
    pub(super) fn new(port: u16, pair: usize) -> Self {
        Self {
            port,
            // Fewer than 256 pairs, as the ports' own limits say.
            pair: u8::try_from(pair).unwrap_or(u8::MAX),
            state: State::Asleep,
            kicked: false,
            packets: 0,
            empty_since: None,
            last_round: Nanos::ZERO,
            gap: Nanos(u64::MAX / 8),
        }
    }

    pub(super) fn moved(&mut self, packets: usize) {
        #[expect(clippy::cast_possible_truncation, reason = "at most a batch")]
        let packets = packets as u32;
        self.packets = self.packets.saturating_add(packets);
        self.empty_since = None;
    }

    /// Whether to look again at once at an empty queue, because the next frame is likely to come
    /// sooner than a wake-up takes: no longer than one wake-up costs.
    pub(super) fn may_spin(&mut self, now: Nanos) -> bool {
        if self.gap.0 * 2 > WAKE_COST.0 {
            return false;
        }
        let since = *self.empty_since.get_or_insert(now);
        now.since(since) < WAKE_COST
    }

    /// Ends the round: its frames, and whether a kick began it.
    pub(super) fn round_ended(&mut self, now: Nanos) -> (u32, bool) {
        let took = now.since(self.last_round);
        let gap = took.0 / u64::from(self.packets.max(1));
        // An average over a few rounds, which follows within milliseconds at any rate that matters.
        self.gap = Nanos((self.gap.0 / 4).saturating_mul(3) + gap / 4);
        self.last_round = now;
        self.empty_since = None;
        let round = (self.packets, self.kicked);
        self.packets = 0;
        self.kicked = false;
        round
    }
}
