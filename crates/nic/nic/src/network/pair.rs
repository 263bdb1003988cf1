// SPDX-License-Identifier: Apache-2.0
//! A queue pair of a guest's port: its rings, their holds, and the part that the kernel serves.

use super::kernel_pair::KernelPair;
use super::queue::Queue;
use crate::hold::{Nanos, Notification, PairHold, Release};
use crate::ring::Ring;
use crate::telemetry::PortCounters;
use crate::vhost_net::Half;

/// A queue pair.
#[derive(Debug)]
pub(super) struct QueuePair {
    /// The vhost device that serves the rings, where the kernel moves the frames.
    pub(super) kernel: Option<Box<KernelPair>>,
    pub(super) rx: Queue,
    pub(super) tx: Queue,
    pub(super) hold: PairHold,
    /// Since when the receive queue lacks buffers. Unused on the kernel's data path.
    pub(super) lacks_buffers_since: Option<Nanos>,
}

impl QueuePair {
    /// A pair that no front end has set up.
    pub(super) fn new(hold: PairHold) -> Self {
        Self {
            kernel: None,
            rx: Queue::default(),
            tx: Queue::default(),
            hold,
            lacks_buffers_since: None,
        }
    }

    pub(super) fn queue_mut(&mut self, half: Half) -> &mut Queue {
        match half {
            Half::Rx => &mut self.rx,
            Half::Tx => &mut self.tx,
        }
    }

    pub(super) fn queues_mut(&mut self) -> [&mut Queue; 2] {
        [&mut self.rx, &mut self.tx]
    }

    /// The receive ring, if the worker serves it and frames go through it.
    #[inline]
    pub(super) fn rx_ring(&mut self) -> Option<&mut Ring> {
        self.rx.running_ring()
    }

    /// The transmit ring, likewise.
    #[inline]
    pub(super) fn tx_ring(&mut self) -> Option<&mut Ring> {
        self.tx.running_ring()
    }

    /// Whether frames go through both rings.
    pub(super) fn is_running(&self) -> bool {
        self.rx.is_running() && self.tx.is_running()
    }

    /// The device and the queue of a half, where the kernel moves the frames.
    pub(super) fn kernel_half(&mut self, half: Half) -> Option<(&mut KernelPair, &mut Queue)> {
        let queue = match half {
            Half::Rx => &mut self.rx,
            Half::Tx => &mut self.tx,
        };
        Some((self.kernel.as_mut()?, queue))
    }

    /// Signals the guest for its receive queue, unless it has processed the packets already.
    pub(super) fn release(&mut self, release: Release, counters: &mut PortCounters) {
        if let Some(kernel) = &mut self.kernel {
            let Some(ring) = kernel.rx_view() else {
                return;
            };
            if !ring.wants_signal() {
                counters.totals.calls_cancelled += 1;
            } else if self.rx.call() {
                ring.signalled();
                counters.rx_call(release.held_for, release.packets);
            }
            return;
        }
        let Some(ring) = self.rx.running_ring() else {
            return;
        };
        if !ring.wants_signal() {
            counters.totals.calls_cancelled += 1;
        } else if self.rx.signal() {
            counters.rx_call(release.held_for, release.packets);
        }
    }
}

// The worker's part for a pair on the kernel's data path.
impl QueuePair {
    /// Passes the controller the frames that the guest has received.
    pub(super) fn look_at_received(&mut self, now: Nanos) -> Option<Release> {
        let kernel = self.kernel.as_mut()?;
        let batch = kernel.received()?;
        let release = self.hold.received(now, batch);
        let holds = (self.hold.may_hold().0, self.hold.budget());
        kernel
            .rest
            .passed(now, (Notification::Call, batch.packets), holds);
        release
    }

    /// The kernel wants the guest to be signalled for received frames.
    pub(super) fn called(&mut self, now: Nanos, counters: &mut PortCounters) {
        match self.look_at_received(now) {
            Some(release) => self.release(release, counters),
            None => self.hold.woken_to_hold(),
        }
    }

    /// The guest kicked the transmit queue.
    pub(super) fn kicked(&mut self, now: Nanos, counters: &mut PortCounters) {
        let waiting = self.kernel.as_ref().map_or(0, |kernel| kernel.offered());
        if waiting == 0 {
            return;
        }
        let kicked = self.hold.kicked(now, waiting.into());
        if !kicked.drain {
            self.hold.woken_to_hold();
        }
        if let Some(release) = kicked.rx {
            self.release(release, counters);
        }
        if kicked.drain {
            self.drain(now, true, counters);
        }
    }

    /// Ends the holds that are due.
    pub(super) fn end_holds(&mut self, now: Nanos, counters: &mut PortCounters) {
        if let Some(kernel) = &mut self.kernel {
            kernel.rest.settle(now);
        }
        if self.hold.deadline().is_none_or(|due| due > now) {
            return;
        }
        // Later frames share the signal, unless the guest has already processed all of them.
        let looked = if self.hold.holds_call() {
            self.look_at_received(now)
        } else {
            None
        };
        let due = self.hold.expired(now);
        if let Some(release) = looked.or(due.rx) {
            self.release(release, counters);
            if release.packets > 1 {
                self.hold.anticipate(now);
            }
        }
        if due.drain {
            self.drain(now, false, counters);
        }
    }

    fn drain(&mut self, now: Nanos, kicked: bool, counters: &mut PortCounters) {
        let Some(kernel) = &mut self.kernel else {
            return;
        };
        if let Some(round) = kernel.drain() {
            counters.tx_drain(round.packets, kicked);
            // The kernel asks for kicks by itself.
            let _ = self.hold.drained(now, round);
            let holds = (self.hold.may_hold().0, self.hold.budget());
            kernel
                .rest
                .passed(now, (Notification::Kick, round.packets), holds);
        }
    }

    /// Ends all holds, before a ring stops or its controller changes.
    pub(super) fn flush(&mut self, now: Nanos) -> Option<Release> {
        let ended = self.hold.flush(now);
        if ended.drain
            && let Some(kernel) = &mut self.kernel
        {
            let _ = kernel.drain();
        }
        ended.rx
    }
}
