// SPDX-License-Identifier: Apache-2.0
//! Networks of ports, which exchange frames.
//!
//! Two ports are a link; more are a learning switch. A network and all its ports belong to one worker, so that a frame
//! is copied straight from one guest's memory to another's, without a lock or a queue.

mod control_queue;
#[cfg(test)]
mod control_queue_tests;
#[allow(unsafe_code, reason = "an address that no library has")]
mod control_socket;
mod deadlines;
mod delivery;
#[cfg(test)]
mod fake_device;
mod forwarding;
mod guard;
#[cfg(test)]
mod guard_tests;
mod guest;
mod kernel;
mod kernel_pair;
#[cfg(test)]
mod kernel_tests;
mod packet;
mod pair;
mod queue;
#[cfg(test)]
mod session_tests;
mod source;
mod statistics;
mod switch;
#[allow(unsafe_code, reason = "ioctl and io_uring")]
mod tap;
#[cfg(test)]
mod tests;
mod transfer;

pub use control_socket::open as open_control_socket;
pub use guard::{Addresses, Limit, Limits, Rate, address};
pub use guest::{DrainOutcome, Guest, MAX_PAIRS, Outcome};
pub use kernel::{DatapathError, Kernel, TapHandles};
pub use kernel_pair::NEEDED;
pub use packet::{BATCH, Batch, Frame, Packet};
pub use switch::{MacTable, Route};
pub use tap::{Tap, TapError};
pub use transfer::Delivery;

use crate::control::api::Change;
use crate::frame::{self, MAX_FRAME, Mac, NetHeader, Offloads};
use crate::hold::Nanos;
use crate::memory::own;
use crate::poller::{Poller, PortId, Token};
use crate::ring::RingFault;
use crate::telemetry::{DropReason, PortCounters};
use crate::vhost_net::Half;
use deadlines::Deadlines;
use delivery::whole;
use queue::pair_and_half;
use source::{Sources, State};

/// One side of a network.
#[derive(Debug)]
pub enum Port {
    /// A guest behind a vhost-user socket.
    Guest(Box<Guest>),
    /// An interface of the host.
    Tap(Box<Tap>),
}

impl Port {
    /// Its counters.
    pub fn counters(&mut self) -> &mut PortCounters {
        match self {
            Self::Guest(guest) => &mut guest.counters,
            Self::Tap(tap) => &mut tap.counters,
        }
    }

    /// The counters of a guest's port. Work for taps is charged to guests.
    pub fn guest_counters(&mut self) -> Option<&mut PortCounters> {
        match self {
            Self::Guest(guest) => Some(&mut guest.counters),
            Self::Tap(_) => None,
        }
    }

    fn pairs(&self) -> usize {
        match self {
            Self::Guest(guest) => guest.pairs(),
            Self::Tap(tap) => tap.pairs(),
        }
    }
}

/// A queue that stopped because its guest made it invalid, to be logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueFault {
    /// The port.
    pub port: u16,
    /// The queue's number in the port.
    pub queue: usize,
    /// The fault of the ring.
    pub fault: RingFault,
}

/// Ports that exchange frames.
#[derive(Debug)]
pub struct Network {
    ports: Vec<Port>,
    /// The table, where there are not exactly two ports.
    table: Option<MacTable>,
    sources: Sources,
    /// The deadlines of guests.
    deadlines: Deadlines,
    /// Queues that frames of this batch were put into, with their numbers.
    touched: Vec<(u16, u8, u32)>,
    /// A buffer for a frame that is changed in software.
    linear: Vec<u8>,
    /// A buffer for one segment of it.
    scratch: Vec<u8>,
    /// Queues that stopped since the last report.
    stopped: Vec<QueueFault>,
    /// Ports that exceeded a limit for the first time since the last report.
    limited: Vec<(u16, Limit)>,
}

impl Network {
    /// Joins `ports`: two are a link, any other number a switch.
    pub fn new(ports: Vec<Port>) -> Self {
        let mut table = (ports.len() != 2).then(|| MacTable::new(ports.len()));
        for (port, number) in ports.iter().zip(0..) {
            if let (Port::Guest(guest), Some(table)) = (port, &mut table) {
                let own = guest.guard.as_deref().map(guard::Guard::own);
                own.into_iter()
                    .flatten()
                    .for_each(|address| table.pin(*address, number));
            }
        }
        Self {
            sources: Sources::new(ports.iter().map(Port::pairs)),
            deadlines: Deadlines::new(ports.len()),
            table,
            ports,
            touched: Vec::with_capacity(64),
            linear: Vec::with_capacity(MAX_FRAME),
            scratch: Vec::with_capacity(MAX_FRAME),
            stopped: Vec::new(),
            limited: Vec::new(),
        }
    }

    /// Its ports, for changes that do not affect deadlines.
    pub fn ports_mut(&mut self) -> &mut [Port] {
        &mut self.ports
    }

    /// A guest's port.
    pub fn guest_mut(&mut self, port: u16) -> Option<&mut Guest> {
        self.deadlines.touch(port);
        match self.ports.get_mut(usize::from(port)) {
            Some(Port::Guest(guest)) => Some(guest),
            _ => None,
        }
    }

    /// Queues that stopped since this was last called.
    pub fn take_stopped(&mut self) -> std::vec::Drain<'_, QueueFault> {
        self.stopped.drain(..)
    }

    /// Ports that exceeded a limit for the first time since this was last called.
    pub fn take_limited(&mut self) -> std::vec::Drain<'_, (u16, Limit)> {
        self.limited.drain(..)
    }

    /// A guest kicked one of its rings.
    pub fn kicked(&mut self, id: PortId, queue: u8, now: Nanos) {
        let (pair, half) = pair_and_half(queue.into());
        self.deadlines.touch(id.port);
        let Some(Port::Guest(guest)) = self.ports.get_mut(usize::from(id.port)) else {
            return;
        };
        guest.counters.totals.kicks += 1;
        if guest.is_control(queue) {
            self.serve_control(id.port, now);
            return;
        }
        if guest.is_in_kernel() {
            guest.kicked_for_kernel(pair, now);
            return;
        }
        if half == Half::Rx {
            guest.buffers_came(pair);
            self.sources.unblock();
            return;
        }
        let waiting = guest.waiting(pair);
        let Some(hold) = guest.hold_mut(pair) else {
            return;
        };
        let kicked = hold.kicked(now, waiting);
        if let Some(release) = kicked.rx {
            guest.release(pair, release);
        }
        let Some(index) = self.sources.find(id.port, pair) else {
            return;
        };
        if let Some(source) = self.sources.get_mut(index) {
            source.kicked = true;
        }
        match self.sources.state(index) {
            Some(State::Asleep) if !kicked.drain => {
                let state = if guest.arm_for_hold(pair) {
                    State::Active
                } else {
                    State::Held
                };
                self.sources.set(index, state);
            }
            Some(State::Asleep | State::Held) if kicked.drain => {
                guest.quiet(pair);
                self.sources.set(index, State::Active);
            }
            _ => {}
        }
    }

    /// An event of one of its ports: a kick or frames; or where the kernel moves the frames, a call or control frames.
    pub fn handle_event(&mut self, event: Token, now: Nanos) {
        match event {
            Token::Kick(id, queue) => self.kicked(id, queue, now),
            Token::Tap(id, queue) => self.tap_ready(id, queue),
            Token::Call(id, pair) => {
                if let Some(guest) = self.guest_mut(id.port) {
                    guest.called(pair.into(), now);
                }
            }
            Token::ControlFrame(id) => {
                if let Some(guest) = self.guest_mut(id.port) {
                    guest.asked(now);
                }
            }
            Token::Listener(_) | Token::FrontEnd(_) | Token::Control => {}
        }
    }

    /// Registers the taps, and the kernel's events where it moves frames. `number` is the network's.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn watch(&mut self, poller: &Poller, number: u16) -> Result<(), rustix::io::Errno> {
        let in_kernel = self
            .ports
            .iter()
            .any(|port| matches!(port, Port::Guest(guest) if guest.is_in_kernel()));
        for (port, index) in self.ports.iter_mut().zip(0..) {
            let id = PortId {
                network: number,
                port: index,
            };
            match port {
                Port::Guest(guest) => guest.watch(poller)?,
                Port::Tap(tap) if !in_kernel => tap.watch(poller, id)?,
                Port::Tap(_) => {}
            }
        }
        Ok(())
    }

    /// Answers a guest's control queue.
    fn serve_control(&mut self, port: u16, now: Nanos) {
        if let Some(guest) = self.guest_mut(port)
            && let Err((queue, fault)) = guest.serve_control(now)
        {
            self.stopped.push(QueueFault { port, queue, fault });
        }
    }

    /// A tap has frames to read.
    pub fn tap_ready(&mut self, id: PortId, queue: u8) {
        if let Some(index) = self.sources.find(id.port, queue.into())
            && self.sources.state(index) == Some(State::Asleep)
        {
            self.sources.set(index, State::Active);
        }
    }

    /// Rings of a port started, stopped or changed. Sources that wait for them become active.
    pub fn port_changed(&mut self, port: u16) {
        self.deadlines.touch(port);
        self.sources.activate_port(port);
        self.sources.unblock();
        self.set_tap_offloads();
    }

    /// Changes the operator's policy for a port. Held notifications are sent.
    pub fn change_policy(&mut self, port: u16, change: &Change, now: Nanos) {
        if let Some(guest) = self.guest_mut(port) {
            guest.change_policy(change, now);
            let pairs = guest.pairs();
            for pair in 0..pairs {
                self.sources.end_hold(port, pair);
            }
        }
        if change.link.is_some() {
            self.port_changed(port);
        }
    }

    /// A front end went away.
    pub fn port_left(&mut self, port: u16) {
        if let Some(table) = &mut self.table {
            table.forget_port(port);
        }
        self.port_changed(port);
    }

    /// Where the kernel moves the frames, a tap has the offloads that the guest supports. Elsewhere it has all: a
    /// large frame costs a tap as much as a small one, and it is segmented in software for a guest that does not
    /// support it.
    fn set_tap_offloads(&mut self) {
        let served = match self.ports.as_slice() {
            [Port::Guest(guest), Port::Tap(_)] | [Port::Tap(_), Port::Guest(guest)]
                if guest.is_in_kernel() =>
            {
                let rings = (guest.header_len(), guest.running_pairs());
                Some((guest.receiver(), rings))
            }
            _ => None,
        };
        for port in &mut self.ports {
            let Port::Tap(tap) = port else {
                continue;
            };
            match served {
                Some((receiver, (header_len, pairs))) => {
                    tap.set_offloads(receiver);
                    tap.hand_over(header_len, pairs);
                }
                None => tap.set_offloads(Offloads::ALL),
            }
        }
    }

    /// Sends an announcement of a guest behind `port` to all others.
    pub fn announce(&mut self, port: u16, mac: Mac, now: Nanos) {
        let table = self.table.as_ref();
        let is_anothers = table.is_some_and(|table| table.is_anothers(mac, port));
        let Some(guest) = self.guest_mut(port) else {
            return;
        };
        let guard = &mut guest.guard;
        let is_foreign = |guard: &guard::Guard| !guard.has_to_learn() && !guard.allows(mac);
        let beyond = if is_anothers || guard.as_deref().is_some_and(is_foreign) {
            Some((Limit::Addresses, DropReason::ForeignAddress))
        } else if guard.as_mut().is_some_and(|guard| !guard.may_flood(now)) {
            Some((Limit::Floods, DropReason::Storm))
        } else {
            None
        };
        if let Some((limit, reason)) = beyond {
            guest.counters.totals.drops.add(reason, 1);
            return self.note(port, limit);
        }
        let bytes = frame::rarp(mac);
        let segments = [own(&bytes)];
        let frame = whole(&segments, NetHeader::PLAIN, bytes.len());
        self.deliver_to_others(port, 0, &frame);
        self.publish(now);
    }

    /// Moves a batch from each queue that has frames and ends holds that are due. Returns whether there may be more
    /// work.
    pub fn poll(&mut self, now: Nanos, batch: &mut Batch) -> bool {
        self.end_holds(now);
        let mut busy = false;
        for _ in 0..self.sources.begin(now) {
            if let Some(index) = self.sources.next() {
                busy |= self.forward(index, now, batch);
            }
        }
        busy
    }

    /// Updates the deadlines of guests with events.
    fn settle_deadlines(&mut self) {
        let ports = &self.ports;
        self.deadlines
            .settle(|port| match ports.get(usize::from(port)) {
                Some(Port::Guest(guest)) => guest.deadline(),
                _ => None,
            });
    }

    fn end_holds(&mut self, now: Nanos) {
        self.settle_deadlines();
        while let Some(number) = self.deadlines.take(now) {
            let Some(Port::Guest(guest)) = self.ports.get_mut(usize::from(number)) else {
                continue;
            };
            guest.counters.totals.timer_wakeups += 1;
            guest.settle_budget(now);
            guest.retry_config_change(now);
            if guest.control_is_due(now)
                && let Err((queue, fault)) = guest.serve_control(now)
            {
                let port = number;
                self.stopped.push(QueueFault { port, queue, fault });
            }
            if guest.is_in_kernel() {
                guest.end_holds_by_kernel(now);
                continue;
            }
            for pair in 0..guest.pairs() {
                let Some(hold) = guest.hold_mut(pair) else {
                    continue;
                };
                let expired = hold.expired(now);
                if let Some(release) = expired.rx {
                    guest.release(pair, release);
                }
                if expired.drain {
                    self.sources.end_hold(number, pair);
                }
            }
        }
    }

    /// When [`Network::poll`] must be called even without an event.
    pub fn deadline(&mut self) -> Option<Nanos> {
        self.settle_deadlines();
        let deadlines = [self.deadlines.first(), self.sources.deadline()];
        deadlines.into_iter().flatten().min()
    }
}
