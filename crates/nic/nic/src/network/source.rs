// SPDX-License-Identifier: Apache-2.0
//! The queues that frames come from, their states and their order of turns. Idle queues cost nothing.

use crate::hold::{Nanos, WAKE_COST};
use std::collections::{BTreeSet, VecDeque};

/// A transmit queue of a guest, or a queue of a tap.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source {
    pub(super) port: u16,
    pub(super) pair: u8,
    state: State,
    /// Whether it is in the list of ready sources.
    queued: bool,
    /// Whether a kick began this round.
    pub(super) kicked: bool,
    /// Frames moved in this round.
    packets: u32,
    /// When the queue was first found empty after the last frames.
    empty_since: Option<Nanos>,
    /// When the last round ended.
    last_round: Nanos,
    /// The recent mean time between frames.
    gap: Nanos,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Idle until a kick, or until a tap is readable.
    Asleep,
    /// There may be frames.
    Active,
    /// There may be frames, which are taken when the hold ends.
    Held,
    /// There are frames, and the receiver has no buffers. Waits for them until this time.
    Blocked(Option<Nanos>),
    /// There are frames beyond its port's rate. Waits until this time.
    Limited(Nanos),
}

impl Source {
    fn new(port: u16, pair: usize) -> Self {
        Self {
            port,
            // The limits of ports keep this number below 256.
            pair: u8::try_from(pair).unwrap_or(u8::MAX),
            state: State::Asleep,
            queued: false,
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

    /// Whether to poll an empty queue, because the next frame is likely sooner than a wake-up. It polls no longer than
    /// a wake-up takes.
    pub(super) fn may_spin(&mut self, now: Nanos) -> bool {
        if self.gap.0 * 2 > WAKE_COST.0 {
            return false;
        }
        let since = *self.empty_since.get_or_insert(now);
        now.since(since) < WAKE_COST
    }

    /// Ends the round. Returns its frames and whether a kick began it.
    pub(super) fn round_ended(&mut self, now: Nanos) -> (u32, bool) {
        let took = now.since(self.last_round);
        let gap = took.0 / u64::from(self.packets.max(1));
        // An average over a few rounds, which adapts within milliseconds at relevant rates.
        self.gap = Nanos((self.gap.0 / 4).saturating_mul(3) + gap / 4);
        self.last_round = now;
        self.empty_since = None;
        let round = (self.packets, self.kicked);
        self.packets = 0;
        self.kicked = false;
        round
    }
}

/// All sources of a network.
#[derive(Debug)]
pub(super) struct Sources {
    /// The sources in the order of ports and their pairs.
    list: Vec<Source>,
    /// The index of each port's first source.
    starts: Vec<usize>,
    /// Sources that became active since their last turn.
    ready: VecDeque<usize>,
    /// Sources that wait for buffers, or for their port's rate, until a time.
    waiting: BTreeSet<(Nanos, usize)>,
    /// The number of sources that wait for buffers.
    blocked: usize,
}

impl Sources {
    /// The sources of ports with these numbers of pairs.
    pub(super) fn new(pairs: impl Iterator<Item = usize>) -> Self {
        let (mut list, mut starts) = (Vec::new(), Vec::new());
        for (pairs, port) in pairs.zip(0..) {
            starts.push(list.len());
            list.extend((0..pairs).map(|pair| Source::new(port, pair)));
        }
        Self {
            ready: VecDeque::with_capacity(list.len()),
            list,
            starts,
            waiting: BTreeSet::new(),
            blocked: 0,
        }
    }

    /// The index of a queue.
    #[inline]
    pub(super) fn find(&self, port: u16, pair: usize) -> Option<usize> {
        let index = self.starts.get(usize::from(port))?.checked_add(pair)?;
        let source = self.list.get(index)?;
        (source.port == port).then_some(index)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Source> {
        self.list.get_mut(index)
    }

    #[inline]
    pub(super) fn state(&self, index: usize) -> Option<State> {
        self.list.get(index).map(|source| source.state)
    }

    /// Sets the state of a source.
    #[inline]
    pub(super) fn set(&mut self, index: usize, state: State) {
        let Some(source) = self.list.get_mut(index) else {
            return;
        };
        match std::mem::replace(&mut source.state, state) {
            State::Blocked(until) => {
                self.blocked -= 1;
                until.map(|until| self.waiting.remove(&(until, index)));
            }
            State::Limited(until) => {
                self.waiting.remove(&(until, index));
            }
            _ => {}
        }
        match state {
            State::Active if !source.queued => {
                source.queued = true;
                self.ready.push_back(index);
            }
            State::Blocked(until) => {
                self.blocked += 1;
                until.map(|until| self.waiting.insert((until, index)));
            }
            State::Limited(until) => {
                self.waiting.insert((until, index));
            }
            _ => {}
        }
    }

    /// Makes the sources of a port active.
    pub(super) fn activate_port(&mut self, port: u16) {
        let start = self.starts.get(usize::from(port)).copied();
        let mut index = start.unwrap_or(self.list.len());
        while self
            .list
            .get(index)
            .is_some_and(|source| source.port == port)
        {
            self.set(index, State::Active);
            index += 1;
        }
    }

    /// Makes a source whose hold has ended active.
    pub(super) fn end_hold(&mut self, port: u16, pair: usize) {
        if let Some(index) = self.find(port, pair)
            && self.state(index) == Some(State::Held)
        {
            self.set(index, State::Active);
        }
    }

    /// Makes sources that wait for buffers active.
    pub(super) fn unblock(&mut self) {
        for index in 0..self.list.len() {
            if self.blocked == 0 {
                return;
            }
            if let Some(State::Blocked(_)) = self.state(index) {
                self.set(index, State::Active);
            }
        }
    }

    /// Begins a round of turns. Returns their number: the ready sources, and those whose wait has ended.
    #[inline]
    pub(super) fn begin(&mut self, now: Nanos) -> usize {
        while let Some((_, index)) = self.waiting.first().filter(|(until, _)| *until <= now) {
            self.set(*index, State::Active);
        }
        self.ready.len()
    }

    /// The next source of the round; `None` where it is no longer active.
    #[inline]
    pub(super) fn next(&mut self) -> Option<usize> {
        let index = self.ready.pop_front()?;
        let source = self.list.get_mut(index)?;
        source.queued = false;
        (source.state == State::Active).then_some(index)
    }

    /// The next end of a wait.
    #[inline]
    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.waiting.first().map(|(until, _)| *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn state() -> impl Strategy<Value = State> {
        prop_oneof![
            Just(State::Asleep),
            Just(State::Active),
            Just(State::Held),
            prop::option::of(0u64..40).prop_map(|until| State::Blocked(until.map(Nanos))),
            (0u64..40).prop_map(|until| State::Limited(Nanos(until))),
        ]
    }

    #[test]
    fn a_queue_is_found_by_its_port_and_pair() {
        let sources = Sources::new([2, 0, 1].into_iter());
        let places = [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1), (3, 0)];
        let found = places.map(|(port, pair)| sources.find(port, pair));
        assert_eq!(found, [Some(0), Some(1), None, None, Some(2), None, None]);
    }

    proptest! {
        #[test]
        fn it_gives_what_a_scan_of_all_would(
            steps in prop::collection::vec((0usize..4, state(), 0u64..40, prop::bool::ANY), 1..80)
        ) {
            let mut sources = Sources::new([2, 2].into_iter());
            for (index, state, now, unblock) in steps {
                sources.set(index, state);
                if unblock {
                    sources.unblock();
                }
                let states: Vec<State> = (0..4).map(|index| sources.state(index).unwrap()).collect();
                let until = states.iter().filter_map(|state| match state {
                    State::Blocked(until) => *until,
                    State::Limited(until) => Some(*until),
                    _ => None,
                });
                prop_assert_eq!(sources.deadline(), until.min());
                let scan = (0..4).filter(|index| match states[*index] {
                    State::Active => true,
                    State::Blocked(Some(until)) | State::Limited(until) => until.0 <= now,
                    _ => false,
                });
                let count = sources.begin(Nanos(now));
                let mut turns: Vec<usize> = (0..count).filter_map(|_| sources.next()).collect();
                turns.sort_unstable();
                prop_assert_eq!(&turns, &scan.collect::<Vec<_>>());
                // After a turn, the caller sets the source's next state.
                for index in turns {
                    sources.set(index, State::Active);
                }
            }
        }
    }
}
