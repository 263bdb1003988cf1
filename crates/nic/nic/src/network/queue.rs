// SPDX-License-Identifier: Apache-2.0
//! One virtqueue as the front end sets it up, and its ring while it runs.

use crate::features::Features;
use crate::memory::GuestMemory;
use crate::poller::{Poller, Token};
use crate::protocol::{self, ProtocolError, refuse};
use crate::ring::{Ring, RingAddresses, RingFault, RingView};
use crate::signal;
use crate::vhost_net::Half;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The number of a pair's ring, as vhost-user and virtio count them: RX of pair 0, TX of pair 0, RX of pair 1, and so
/// on (virtio 1.3, 5.1.2).
#[inline]
pub(super) fn ring_number(pair: usize, half: Half) -> usize {
    pair * 2 + half.index() as usize
}

/// The pair and the half of a ring with this number.
#[inline]
pub(super) fn pair_and_half(number: usize) -> (usize, Half) {
    (number / 2, Half::of_queue(number))
}

/// The way to signal a driver.
#[derive(Debug)]
pub(super) enum Call {
    /// By its eventfd.
    Event(OwnedFd),
    /// By a message about the ring of this number on its front end's channel.
    Message(Arc<OwnedFd>, u32),
}

/// A virtqueue.
#[derive(Debug, Default)]
pub struct Queue {
    size: u16,
    addresses: RingAddresses,
    base: u16,
    kick: Option<OwnedFd>,
    call: Option<Call>,
    error: Option<OwnedFd>,
    /// Whether it was started, with a descriptor for kicks or without.
    has_kicks: bool,
    enabled: bool,
    ring: Option<Ring>,
    /// Whether the kernel serves it.
    in_kernel: bool,
    fault: Option<RingFault>,
}

impl Queue {
    pub(super) fn set_size(&mut self, size: u32, features: Features) -> Result<(), ProtocolError> {
        match u16::try_from(size) {
            Ok(size) if Ring::may_have_size(size, features) && !self.is_started() => {
                self.size = size;
                Ok(())
            }
            _ => refuse(
                "a ring's size is up to 32,768, a power of two unless packed, set before it starts",
            ),
        }
    }

    pub(super) fn set_addresses(&mut self, addresses: RingAddresses) {
        self.addresses = addresses;
    }

    pub(super) fn set_base(&mut self, base: u16) -> Result<(), ProtocolError> {
        if self.is_started() {
            return refuse("a ring's base is set before it starts");
        }
        self.base = base;
        Ok(())
    }

    /// Sets the way to signal the driver and signals at once: a back end that was killed may have published entries
    /// without a signal.
    pub(super) fn set_call(&mut self, call: Option<Call>) -> Result<(), ProtocolError> {
        self.call = match call {
            Some(Call::Event(file)) => Some(Call::Event(event(file)?)),
            other => other,
        };
        if self.is_started() {
            self.call();
        }
        Ok(())
    }

    pub(super) fn set_error(&mut self, file: Option<OwnedFd>) -> Result<(), ProtocolError> {
        self.error = file.map(event).transpose()?;
        Ok(())
    }

    pub(super) fn enable(&mut self, enable: bool) {
        self.enabled = enable;
    }

    /// Starts it. From the next [`Queue::resolve`] on there is a ring, unless the kernel serves it.
    pub(super) fn start(
        &mut self,
        kick: Option<OwnedFd>,
        poller: &Poller,
        token: Option<Token>,
    ) -> Result<(), ProtocolError> {
        let kick = kick.map(event).transpose()?;
        if let (Some(kick), Some(token)) = (&kick, token) {
            poller
                .watch(kick, token)
                .map_err(|cause| ProtocolError::Socket {
                    what: "wait for kicks beside",
                    cause,
                })?;
        }
        if let Some(old) = std::mem::replace(&mut self.kick, kick) {
            poller.forget(old);
        }
        self.has_kicks = true;
        self.fault = None;
        Ok(())
    }

    /// Whether its guest made it invalid.
    pub(super) fn has_fault(&self) -> bool {
        self.fault.is_some()
    }

    // For the kernel's data path.

    /// Whether it should run.
    pub(super) fn is_to_run(&self) -> bool {
        self.enabled && self.has_kicks && self.fault.is_none()
    }

    /// Its addresses and its size.
    pub(super) fn settings(&self) -> (RingAddresses, u16) {
        (self.addresses, self.size)
    }

    pub(super) fn kick_file(&self) -> Option<&OwnedFd> {
        self.kick.as_ref()
    }

    pub(super) fn call_file(&self) -> Option<&OwnedFd> {
        match &self.call {
            Some(Call::Event(file)) => Some(file),
            _ => None,
        }
    }

    pub(super) fn error_file(&self) -> Option<&OwnedFd> {
        self.error.as_ref()
    }

    /// Notes that the kernel serves it. Earlier entries may need a signal.
    pub(super) fn kernel_started(&mut self) {
        self.in_kernel = true;
        self.call();
    }

    /// Notes that the kernel has stopped at this position.
    pub(super) fn kernel_stopped(&mut self, base: Option<u16>) {
        self.in_kernel = false;
        self.base = base.unwrap_or(self.base);
    }

    fn is_started(&self) -> bool {
        self.ring.is_some() || self.in_kernel
    }

    /// Whether it was started.
    pub(super) fn has_kicks(&self) -> bool {
        self.has_kicks
    }

    /// Whether there is a way to signal its driver.
    pub(super) fn has_call(&self) -> bool {
        self.call.is_some()
    }

    /// Stops it. Returns its base and the kick descriptor, which must be removed from the poller.
    pub(super) fn stop(&mut self) -> (u16, Option<OwnedFd>) {
        self.suspend();
        self.has_kicks = false;
        (self.base, self.kick.take())
    }

    /// Resets it to its state before any front end.
    pub(super) fn reset(&mut self) -> Option<OwnedFd> {
        std::mem::take(self).kick
    }

    /// Drops the ring and keeps its position.
    pub(super) fn suspend(&mut self) {
        if let Some(ring) = self.ring.take() {
            self.base = ring.base();
        }
    }

    /// Resolves the ring's pointers again, if it is started.
    pub(super) fn resolve(
        &mut self,
        memory: &GuestMemory,
        features: Features,
    ) -> Result<(), ProtocolError> {
        if !self.has_kicks {
            return Ok(());
        }
        self.suspend();
        // All chains up to the used index were returned in order, and none behind it. Some front ends give a new back
        // end the available index, so that the chains in between would never be returned. A packed ring has a position
        // of its own.
        if !features.has(Features::RING_PACKED)
            && let Some(view) = RingView::new(memory, &self.addresses, self.size, features)
        {
            self.base = view.used();
        }
        let ring = Ring::new(memory, &self.addresses, self.size, self.base, features);
        if ring.is_none() {
            return refuse(
                "a ring is started that is not all in guest memory, aligned, with a size",
            );
        }
        self.ring = ring;
        // Entries of an earlier ring may need a signal.
        self.call();
        Ok(())
    }

    /// Whether frames go through it.
    #[inline]
    pub(super) fn is_running(&self) -> bool {
        self.enabled && self.is_started() && self.fault.is_none()
    }

    pub(super) fn ring_mut(&mut self) -> Option<&mut Ring> {
        self.ring.as_mut()
    }

    #[inline]
    pub(super) fn running_ring(&mut self) -> Option<&mut Ring> {
        if self.enabled && self.fault.is_none() {
            self.ring.as_mut()
        } else {
            None
        }
    }

    /// Signals the driver, if it has set a way to. Returns whether that succeeded.
    pub(super) fn call(&self) -> bool {
        match &self.call {
            None => true,
            Some(Call::Event(file)) => signal::raise(file),
            Some(Call::Message(channel, queue)) => protocol::call(channel, *queue),
        }
    }

    /// Signals the driver for all published entries. Returns whether that succeeded; if not, the next publication
    /// signals for both.
    pub(super) fn signal(&mut self) -> bool {
        let called = self.call();
        if called && let Some(ring) = &mut self.ring {
            ring.signalled();
        }
        called
    }

    pub(super) fn fault(&mut self, fault: RingFault) {
        self.fault = Some(fault);
        if let Some(error) = &self.error {
            signal::raise(error);
        }
    }
}

/// Checks that a descriptor of a front end is an eventfd. Its mode and counter stay the front end's: [`signal::raise`]
/// does not depend on them.
fn event(file: OwnedFd) -> Result<OwnedFd, ProtocolError> {
    if !signal::is_event(&file) {
        return refuse("a kick, call or error descriptor is not an eventfd");
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::{Direction, Virtqueue, for_ring};
    use crate::testing::{Peer, RX, SIZE, drain, event, linux, port};
    use rustix::fs::{MemfdFlags, memfd_create};

    #[test]
    fn a_signal_that_failed_is_sent_with_the_next() {
        let poller = Poller::new().unwrap();
        let mode = crate::hold::Mode::Off;
        let mut peer = Peer::start(&mut port(0, mode), &poller, linux());
        peer.offer_buffers(1, 0x800);
        let memory = peer.driver.device_memory();
        let mut ring = Ring::new(&memory, &RX.addresses(), SIZE, 0, linux()).unwrap();
        for_ring!(&mut ring, ring => {
            let (place, _) = ring.take_single(&memory, Direction::Writable).unwrap();
            ring.give(place, 1);
            ring.publish(None);
        });
        let mut queue = Queue {
            ring: Some(ring),
            call: Some(Call::Event(
                memfd_create("no eventfd", MemfdFlags::CLOEXEC).unwrap(),
            )),
            ..Queue::default()
        };
        let wants = |queue: &mut Queue| queue.ring_mut().unwrap().wants_signal();
        assert!(wants(&mut queue) && !queue.signal());
        let call = event();
        queue.call = Some(Call::Event(call.try_clone().unwrap()));
        assert!(wants(&mut queue) && queue.signal() && !wants(&mut queue));
        assert_eq!(drain(&call), 1);
    }
}
