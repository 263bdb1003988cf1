// SPDX-License-Identifier: Apache-2.0
//! The way of a batch of frames: from its source, past the limits of its port, to its receivers.

use super::delivery::{deliver_to_guest, whole};
use super::guard::{Guard, Limit, Verdict};
use super::guest::DrainOutcome;
use super::packet::{Batch, Frame, Packet};
use super::queue::ring_number;
use super::source::{Source, State};
use super::switch::Route;
use super::transfer::Delivery;
use super::{Network, Port, QueueFault};
use crate::control::frame as control;
use crate::frame::{ETHERNET, Mac, NetHeader};
use crate::hold::Nanos;
use crate::memory::{Segment, own, peek};
use crate::telemetry::DropReason;
use crate::vhost_net::Half;

/// The result for one frame of a batch.
enum Step {
    Done,
    Refused(DropReason),
    /// It and those after it wait, in this state of their source.
    Waits(State),
}

impl Network {
    /// Moves one batch. Returns whether there may be more frames.
    pub(super) fn forward(&mut self, index: usize, now: Nanos, batch: &mut Batch) -> bool {
        let Some(&mut Source { port, pair, .. }) = self.sources.get_mut(index) else {
            return false;
        };
        batch.clear();
        self.deadlines.touch(port);
        match self.ports.get_mut(usize::from(port)) {
            Some(Port::Guest(guest)) => guest.pull(pair.into(), batch),
            Some(Port::Tap(tap)) => tap.pull(pair.into(), batch),
            None => return false,
        }
        let mut done = 0;
        let mut blocked = None;
        loop {
            done += self.forward_plain(port, pair, batch, done);
            let Some(packet) = batch.packets.get(done) else {
                break;
            };
            if packet.refused.is_none() {
                let packet = *packet;
                match self.dispatch(port, pair, &packet, batch, now) {
                    Step::Done => {}
                    Step::Refused(reason) => batch.packets[done].refused = Some(reason),
                    Step::Waits(state) => {
                        blocked = Some(state);
                        break;
                    }
                }
            }
            done += 1;
        }
        // The receiver's ring is published first: a back end that is killed in between repeats frames and loses none.
        self.publish(now);
        match self.ports.get_mut(usize::from(port)) {
            Some(Port::Guest(guest)) => {
                if !batch.packets.is_empty() {
                    guest.complete(pair.into(), batch, done);
                }
                if blocked.is_none()
                    && let Some(fault) = batch.fault
                {
                    let queue = ring_number(pair.into(), Half::Tx);
                    guest.fault(queue, fault);
                    self.stopped.push(QueueFault { port, queue, fault });
                }
            }
            Some(Port::Tap(tap)) => tap.complete(pair.into(), batch, done),
            None => {}
        }
        self.settle(index, done, blocked, now)
    }

    /// Moves the next frames of a batch over a link, as long as they need only a copy into a guest. Returns their
    /// number. [`Network::dispatch`] moves the others.
    #[inline]
    fn forward_plain(&mut self, port: u16, pair: u8, batch: &Batch, done: usize) -> usize {
        if self.table.is_some() || !batch.packets.get(done).is_some_and(|packet| packet.plain) {
            return 0;
        }
        let target = 1 - port;
        if matches!(self.ports.get(usize::from(port)), Some(Port::Guest(guest)) if guest.guard.is_some())
        {
            return 0;
        }
        let Some(Port::Guest(guest)) = self.ports.get_mut(usize::from(target)) else {
            return 0;
        };
        let Some(pair) = guest.receiving_pair(pair) else {
            return 0;
        };
        let count = guest.deliver_plain(pair.into(), batch, done);
        if count > 0 {
            self.touch(target, pair, count);
        }
        count
    }

    /// Notes that a queue is to be published.
    #[inline]
    fn touch(&mut self, port: u16, pair: u8, packets: usize) {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "at most a batch, or a frame's segments"
        )]
        let packets = packets as u32;
        match self.touched.last_mut() {
            Some((last, queue, count)) if (*last, *queue) == (port, pair) => *count += packets,
            _ => self.touched.push((port, pair, packets)),
        }
    }

    /// Sets the state of a source after a batch.
    fn settle(&mut self, index: usize, done: usize, blocked: Option<State>, now: Nanos) -> bool {
        let Some(source) = self.sources.get_mut(index) else {
            return false;
        };
        let (state, busy) = if let Some(state) = blocked {
            (state, done > 0)
        } else if done > 0 {
            source.moved(done);
            (State::Active, true)
        } else if let Some(Port::Guest(guest)) = self.ports.get_mut(usize::from(source.port)) {
            if source.may_spin(now) {
                (State::Active, true)
            } else {
                let (packets, kicked) = source.round_ended(now);
                match guest.drained(source.pair.into(), packets, kicked, now) {
                    DrainOutcome::NotEmpty => (State::Active, true),
                    DrainOutcome::AwaitsKick => (State::Asleep, false),
                    DrainOutcome::Held => (State::Held, false),
                }
            }
        } else {
            (State::Asleep, false)
        };
        self.sources.set(index, state);
        busy
    }

    /// Delivers one frame of a batch.
    #[inline]
    fn dispatch(
        &mut self,
        port: u16,
        pair: u8,
        packet: &Packet,
        batch: &Batch,
        now: Nanos,
    ) -> Step {
        let segments = batch.segments(packet);
        let mut ethernet = [0; ETHERNET];
        peek(segments, &mut ethernet);
        let (addresses, kind) = ethernet.as_chunks();
        let [target, source] = *addresses else {
            return Step::Refused(DropReason::Malformed);
        };
        let frame = whole(segments, packet.header, packet.len as usize);
        if *kind == control::ETHER_TYPE.to_be_bytes() {
            return self.control_frame(port, pair, segments, now);
        }
        if let Some(step) = self.admit(port, source, packet.len.into(), now) {
            return step;
        }
        let Some(table) = &mut self.table else {
            return match self.deliver(1 - port, pair, &frame, Some(now)) {
                (Delivery::Delivered, _) => Step::Done,
                (Delivery::Dropped(reason), _) => Step::Refused(reason),
                (Delivery::Full, until) => {
                    if let Some(guard) = self.guard_mut(port) {
                        guard.give_back(packet.len.into());
                    }
                    // A tap has a queue of its own for frames.
                    let tap = matches!(self.ports.get(usize::from(port)), Some(Port::Tap(_)));
                    Step::Waits(State::Blocked(until.filter(|until| !tap || *until <= now)))
                }
            };
        };
        match table.route(source, target, port, now) {
            Route::Port(target) => {
                let _ = self.deliver(target, pair, &frame, None);
            }
            Route::Flood => {
                let guard = self.guard_mut(port);
                if guard.is_some_and(|guard| !guard.may_flood(now)) {
                    self.note(port, Limit::Floods);
                    return Step::Refused(DropReason::Storm);
                }
                self.deliver_to_others(port, pair, &frame);
            }
            Route::Nowhere => {}
            Route::Forged => {
                self.note(port, Limit::Addresses);
                return Step::Refused(DropReason::ForeignAddress);
            }
        }
        Step::Done
    }

    /// Puts a frame into the queues of all other ports.
    pub(super) fn deliver_to_others(&mut self, port: u16, pair: u8, frame: &Frame) {
        for target in (0..).take(self.ports.len()) {
            if target != port {
                let _ = self.deliver(target, pair, frame, None);
            }
        }
    }

    /// The result for a frame that its port's limits refuse.
    #[inline]
    fn admit(&mut self, port: u16, source: Mac, bytes: u64, now: Nanos) -> Option<Step> {
        let Some(Port::Guest(guest)) = self.ports.get_mut(usize::from(port)) else {
            return None;
        };
        let guard = guest.guard.as_deref_mut()?;
        if guard.has_to_learn()
            && self
                .table
                .as_ref()
                .is_none_or(|table| !table.is_anothers(source, port))
            && guard.learn(source)
            && let Some(table) = &mut self.table
        {
            table.pin(source, port);
        }
        match guard.check(source, bytes, now) {
            Verdict::Pass => None,
            Verdict::Wait(until) => {
                guest.counters.totals.throttled += 1;
                self.note(port, Limit::Rate);
                Some(Step::Waits(State::Limited(until)))
            }
            Verdict::Foreign => {
                self.note(port, Limit::Addresses);
                Some(Step::Refused(DropReason::ForeignAddress))
            }
        }
    }

    /// The limits of a guest's port, if it has any.
    fn guard_mut(&mut self, port: u16) -> Option<&mut Guard> {
        self.guest_mut(port)?.guard.as_deref_mut()
    }

    /// Notes that a port exceeded a limit, to be logged once.
    pub(super) fn note(&mut self, port: u16, limit: Limit) {
        let Some(Port::Guest(guest)) = self.ports.get_mut(usize::from(port)) else {
            return;
        };
        // A port without limits of its own is logged each time. The log is rate-limited.
        let mark_logged = guest
            .guard
            .as_mut()
            .is_none_or(|guard| guard.mark_logged(limit));
        if mark_logged && self.limited.len() < self.ports.len() {
            self.limited.push((port, limit));
        }
    }

    /// Answers a control frame of a guest. Those of taps are dropped.
    fn control_frame(&mut self, port: u16, pair: u8, segments: &[Segment], now: Nanos) -> Step {
        let Some(guest) = self.guest_mut(port) else {
            return Step::Refused(DropReason::ForeignControl);
        };
        let mut bytes = [0; control::FRAME_LEN];
        let len = peek(segments, &mut bytes);
        if let Some(reply) = guest.control_frame(&bytes[..len], now) {
            let segments = [own(&reply)];
            let frame = whole(&segments, NetHeader::PLAIN, reply.len());
            let _ = self.deliver(port, pair, &frame, None);
        }
        Step::Done
    }

    /// Puts a frame into a port's queue. `waiting` is the time, if the frame can wait for buffers; then the result has
    /// the end of the wait.
    pub(super) fn deliver(
        &mut self,
        port: u16,
        pair: u8,
        frame: &Frame,
        waiting: Option<Nanos>,
    ) -> (Delivery, Option<Nanos>) {
        let not_running = Delivery::Dropped(DropReason::NotRunning);
        let (delivery, pair) = match self.ports.get_mut(usize::from(port)) {
            Some(Port::Tap(tap)) => (tap.deliver(pair.into(), frame), pair),
            Some(Port::Guest(guest)) => match guest.receiving_pair(pair) {
                None => (not_running, pair),
                Some(pair) => {
                    let software = (&mut self.linear, &mut self.scratch);
                    let result = deliver_to_guest(guest, pair, frame, software, waiting);
                    let (delivery, until) = result.unwrap_or_else(|fault| {
                        let queue = ring_number(pair.into(), Half::Rx);
                        guest.fault(queue, fault);
                        self.stopped.push(QueueFault { port, queue, fault });
                        (not_running, None)
                    });
                    if delivery == Delivery::Full {
                        return (delivery, until);
                    }
                    (delivery, pair)
                }
            },
            None => (not_running, pair),
        };
        match delivery {
            Delivery::Delivered => self.touch(port, pair, 1),
            Delivery::Dropped(reason) => {
                if let Some(port) = self.ports.get_mut(usize::from(port)) {
                    port.counters().totals.drops.add(reason, 1);
                }
            }
            Delivery::Full => {}
        }
        (delivery, None)
    }

    /// Publishes the frames of every receiver.
    pub(super) fn publish(&mut self, now: Nanos) {
        for (port, pair, count) in self.touched.drain(..) {
            self.deadlines.touch(port);
            match self.ports.get_mut(usize::from(port)) {
                Some(Port::Guest(guest)) => guest.publish(pair.into(), count, now),
                Some(Port::Tap(tap)) => tap.publish(),
                None => {}
            }
        }
    }
}
