// SPDX-License-Identifier: Apache-2.0
//! A guest's port: its parts, and how frames leave and enter its rings.

mod holds;
mod session;

use super::guard::{Guard, Limits};
use super::kernel::{DatapathError, Kernel, KernelPath};
use super::packet::{Batch, Frame};
use super::pair::QueuePair;
use super::queue::Queue;
use super::queue::{pair_and_half, ring_number};
use super::transfer::{self, Delivery};
use crate::config_space::{ConfigSpace, ConfigSpaceError};
use crate::control::{LeaseManager, Policy};
use crate::features::{Features, ProtocolFeatures};
use crate::frame::{Mac, Offloads};
use crate::hold::{HoldSettings, Nanos, NextDrain, PairHold, Release, TxRound};
use crate::memory::{
    self, Account, AccountWarning, DirtyLog, GuestMemory, MOST_MAPPED, Segment, dirty_log,
};
use crate::poller::{Poller, PortId};
use crate::protocol::ProtocolError;
use crate::ring::{Chain, RingFault, Virtqueue, for_ring};
use crate::telemetry::{DropReason, PortCounters, PortSnapshot};
use crate::vhost_net::Half;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The most queue pairs of a port.
pub const MAX_PAIRS: u8 = 8;

/// The state of a transmit queue after a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainOutcome {
    /// There are more frames.
    NotEmpty,
    /// It is empty, and the guest kicks for the next frame.
    AwaitsKick,
    /// It is drained again at the hold's deadline.
    Held,
}

/// Effects of a request outside of the port.
#[derive(Debug, Default)]
pub struct Outcome {
    /// A guest to announce to the network.
    pub announce: Option<Mac>,
    /// A ring that was kicked.
    pub kick: Option<u8>,
    /// Whether the kick started the ring.
    pub starts: bool,
    /// Why the request had no effect.
    pub refused: Option<ConfigSpaceError>,
}

/// What moves the frames of a port.
#[derive(Debug)]
enum ActiveDatapath {
    /// The worker, with the reason if the kernel was configured and does not move the frames.
    User(Option<DatapathError>),
    /// vhost-net, with a device for each pair.
    Kernel(KernelPath),
}

/// The text for operators.
impl std::fmt::Display for ActiveDatapath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::User(None) => f.write_str("user"),
            Self::User(Some(why)) => write!(f, "user: {why}"),
            Self::Kernel(kernel) => match kernel.control_error() {
                None => f.write_str("kernel"),
                Some(why) => write!(f, "kernel, which answers no control frames: {why}"),
            },
        }
    }
}

/// A guest's port.
#[derive(Debug)]
pub struct Guest {
    id: PortId,
    /// What moves its frames.
    path: ActiveDatapath,
    /// Declared before the memory, which must outlive the kernel's use of it.
    pairs: Vec<QueuePair>,
    pub(super) features: Features,
    offered: Features,
    protocol: ProtocolFeatures,
    pub(super) config_space: ConfigSpace,
    /// The address that the operator gives the guest, which the guest may change.
    given_mac: Option<Mac>,
    /// Whether front ends may read it.
    is_generic: bool,
    /// When a failed notification of its change is sent again.
    config_due: Option<Nanos>,
    /// The device's status, as the front end wrote it (virtio 1.3, 2.1).
    status: u8,
    pub(super) memory: GuestMemory,
    pub(super) log: Option<DirtyLog>,
    /// The channel for messages to the front end, such as calls. Some front ends log when it is closed.
    channel: Option<Arc<OwnedFd>>,
    pub(super) control: Queue,
    /// When commands are left in the control queue.
    pub(super) control_due: Option<Nanos>,
    /// The number of pairs that the guest set on the control queue.
    pub(super) asked_pairs: usize,
    settings: HoldSettings,
    pub(super) leases: LeaseManager,
    /// When bounds of coalescing commands take effect that came close together.
    pub(super) budget_due: Option<Nanos>,
    /// The limits of what it sends, if there are any.
    pub(super) guard: Option<Box<Guard>>,
    /// How many pairs, from the first on, have both rings running.
    running: usize,
    sender: Offloads,
    receiver: Offloads,
    /// The port's telemetry.
    pub counters: PortCounters,
    /// Chains and segments of the frame that is being delivered.
    chains: Vec<Chain>,
    pub(super) segments: Vec<Segment>,
}

impl Guest {
    /// A port with `pairs` queue pairs and no front end.
    pub fn new(
        id: PortId,
        pairs: u8,
        offered: Features,
        settings: HoldSettings,
        policy: Policy,
    ) -> Self {
        let mut leases = LeaseManager::new(policy);
        let budget = leases.budget(Nanos::ZERO);
        let pairs = pairs.clamp(1, MAX_PAIRS);
        Self {
            id,
            path: ActiveDatapath::User(None),
            pairs: (0..pairs)
                .map(|_| QueuePair::new(PairHold::new(settings.controller(), budget)))
                .collect(),
            features: Features::default(),
            offered,
            protocol: ProtocolFeatures::default(),
            config_space: ConfigSpace {
                mac: None,
                mtu: None,
                link_up: true,
                pairs,
            },
            given_mac: None,
            is_generic: false,
            config_due: None,
            status: 0,
            memory: GuestMemory::default(),
            log: None,
            channel: None,
            control: Queue::default(),
            control_due: None,
            asked_pairs: 1,
            settings,
            leases,
            budget_due: None,
            guard: None,
            running: 0,
            sender: Offloads::default(),
            receiver: Offloads::default(),
            counters: PortCounters::default(),
            chains: Vec::with_capacity(64),
            segments: Vec::with_capacity(64),
        }
    }

    /// The same port with limits.
    #[must_use]
    pub fn with_limits(mut self, limits: &Limits) -> Self {
        self.guard = Guard::from_limits(limits).map(Box::new);
        let most = limits.memory.map_or(MOST_MAPPED, NonZeroU64::get);
        let account = limits
            .populate
            .map(|most| Arc::new(Account::with_limit(most.get())));
        self.memory = GuestMemory::at_most(most).on_account(account);
        self
    }

    /// The same port for a front end that reads the device's configuration space from it: its address and its MTU.
    #[must_use]
    pub fn with_config_space(mut self, mac: Option<Mac>, mtu: Option<u16>) -> Self {
        self.config_space.mac = mac;
        self.given_mac = mac;
        self.config_space.mtu = mtu;
        self.is_generic = true;
        let others = self.offered.without(Features::OF_CONFIGURATION);
        // Front ends that are not specific to NICs start packed rings with a wrong wrap counter.
        self.offered = others
            .without(Features::RING_PACKED)
            .with(self.config_space.features());
        self
    }

    /// The same port with the kernel's data path, or with the worker's for a reason.
    #[must_use]
    pub fn with_datapath(mut self, kernel: Result<Kernel, DatapathError>) -> Self {
        match kernel {
            Ok(Kernel { pairs, path }) => {
                if !memory::pager_sees_kernel() {
                    self.memory = self.memory.anew().on_account(None);
                }
                self.offered = Kernel::offers(self.offered);
                for (pair, kernel) in self.pairs.iter_mut().zip(pairs) {
                    pair.kernel = Some(Box::new(kernel));
                }
                self.path = ActiveDatapath::Kernel(path);
                self.update_passthrough();
            }
            Err(why) => self.path = ActiveDatapath::User(Some(why)),
        }
        self
    }

    /// The data path: `kernel`, or `user` with the reason.
    pub fn datapath(&self) -> String {
        self.path.to_string()
    }

    /// Whether the kernel moves its frames.
    pub fn is_in_kernel(&self) -> bool {
        matches!(self.path, ActiveDatapath::Kernel(_))
    }

    /// Bytes of the header before each frame.
    pub fn header_len(&self) -> usize {
        self.features.header_len()
    }

    /// Waits for the kernel's events.
    ///
    /// # Errors
    /// When that cannot be waited for.
    pub fn watch(&mut self, poller: &Poller) -> Result<(), rustix::io::Errno> {
        match &mut self.path {
            ActiveDatapath::Kernel(kernel) => kernel.watch(&self.pairs, poller, self.id),
            ActiveDatapath::User(_) => Ok(()),
        }
    }

    /// The number of queue pairs.
    pub fn pairs(&self) -> usize {
        self.pairs.len()
    }

    /// The number of data queues, which is the control queue's number with MQ.
    pub(super) fn data_queues(&self) -> usize {
        ring_number(self.pairs(), Half::Rx)
    }

    /// Whether a data queue is started and enabled.
    pub(super) fn is_enabled(&mut self, queue: usize) -> bool {
        let (pair, half) = pair_and_half(queue);
        let pair = self.pairs.get_mut(pair);
        pair.is_some_and(|pair| pair.queue_mut(half).is_to_run())
    }

    /// The number of running pairs, which are the first ones.
    #[inline]
    pub fn running_pairs(&self) -> usize {
        self.running
    }

    /// The pair that receives what another port sends on its pair of this number.
    #[inline]
    pub fn receiving_pair(&self, pair: u8) -> Option<u8> {
        #[expect(clippy::cast_possible_truncation, reason = "fewer than MAX_PAIRS")]
        let running = self.running as u8;
        if pair < running {
            return Some(pair);
        }
        pair.checked_rem(running)
    }

    /// The offloads that the guest supports in received frames.
    #[inline]
    pub fn receiver(&self) -> Offloads {
        self.receiver
    }

    /// The holds of a pair.
    pub fn hold_mut(&mut self, pair: usize) -> Option<&mut PairHold> {
        self.pairs.get_mut(pair).map(|pair| &mut pair.hold)
    }

    /// The error, if its memory is no longer the memory that its front end shares.
    pub fn lost_memory(&self) -> Option<ProtocolError> {
        let cut =
            self.memory.is_truncated() || self.log.as_ref().is_some_and(DirtyLog::is_truncated);
        let account = self
            .memory
            .account()
            .filter(|account| account.is_overdrawn());
        cut.then(|| match account {
            Some(account) => ProtocolError::Populated(account.most()),
            None => ProtocolError::Refused("the memory that it shares was truncated"),
        })
    }

    /// A warning that half of the memory that may be populated for it is used. It is returned once.
    pub fn memory_warning(&self) -> Option<AccountWarning> {
        self.memory.account()?.take_warning()
    }

    /// Its telemetry.
    pub fn snapshot(&mut self, name: &str, now: Nanos) -> PortSnapshot {
        let budget = self.budget(now);
        let mode = self.settings.mode;
        let mut snapshot = self.counters.snapshot(name, mode, budget);
        if let ActiveDatapath::Kernel(kernel) = &mut self.path {
            snapshot.frames_counted_by = kernel.count(&mut snapshot.totals);
        }
        snapshot
    }

    // Transmission: from the guest.

    /// Takes up to a batch of frames from a transmit queue.
    #[inline]
    pub fn pull(&mut self, pair: usize, batch: &mut Batch) {
        let header_len = self.features.header_len();
        let sender = self.sender;
        let Some(ring) = self.pairs.get_mut(pair).and_then(QueuePair::tx_ring) else {
            return;
        };
        let memory = &self.memory;
        for_ring!(ring, ring => transfer::pull(ring, memory, batch, (header_len, sender)));
        if !self.config_space.link_up {
            batch.refuse(DropReason::NotRunning);
        }
    }

    /// Returns the first `done` frames of a batch to their guest and puts the others back.
    pub fn complete(&mut self, pair: usize, batch: &Batch, done: usize) {
        let Some(queue) = self.pairs.get_mut(pair).map(|pair| &mut pair.tx) else {
            return;
        };
        let Some(ring) = queue.running_ring() else {
            return;
        };
        let Some((returned, left)) = batch.packets.split_at_checked(done) else {
            return;
        };
        let mut bytes = 0;
        for packet in returned {
            bytes += u64::from(packet.len);
            if let Some(reason) = packet.refused {
                self.counters.totals.drops.add(reason, 1);
            }
        }
        for_ring!(ring, ring => {
            ring.give_read(returned.iter().map(|packet| packet.place));
            if let Some(first) = left.first() {
                #[expect(clippy::cast_possible_truncation, reason = "at most a batch")]
                ring.put_back(first.place, left.len() as u16);
            }
            ring.publish(dirty_log(self.log.as_ref(), self.features));
        });
        self.counters.totals.tx_packets += done as u64;
        self.counters.totals.tx_bytes += bytes;
        if done > 0 && ring.wants_signal() && queue.signal() {
            self.counters.totals.tx_calls += 1;
        }
    }

    /// The transmit queue is empty after `packets` frames: asks for a kick, or waits for the hold's deadline.
    pub fn drained(&mut self, pair: usize, packets: u32, kicked: bool, now: Nanos) -> DrainOutcome {
        let Some(pair) = self.pairs.get_mut(pair) else {
            return DrainOutcome::AwaitsKick;
        };
        let Some(ring) = pair.tx.running_ring() else {
            return DrainOutcome::AwaitsKick;
        };
        self.counters.tx_drain(packets, kicked);
        let round = TxRound {
            packets,
            ring_size: ring.size(),
        };
        let next = pair.hold.drained(now, round);
        let log = dirty_log(self.log.as_ref(), self.features);
        if next == NextDrain::AtDeadline {
            return match ring.arm_at(pair.hold.most_to_hold(), log) {
                Ok(false) => DrainOutcome::Held,
                // The next read of the ring finds a fault.
                Ok(true) | Err(_) => DrainOutcome::NotEmpty,
            };
        }
        match ring.arm(log) {
            Ok(false) => DrainOutcome::AwaitsKick,
            // The next read of the ring finds a fault.
            Ok(true) | Err(_) => {
                ring.disarm(log);
                DrainOutcome::NotEmpty
            }
        }
    }

    /// Asks for no kicks of a transmit queue while it is polled.
    pub fn quiet(&mut self, pair: usize) {
        if let Some(ring) = self.pairs.get_mut(pair).and_then(QueuePair::tx_ring) {
            ring.disarm(dirty_log(self.log.as_ref(), self.features));
        }
    }

    /// Asks for a kick of a transmit queue only when the number of frames that ends a hold waits. Returns whether it
    /// does already.
    pub fn arm_for_hold(&mut self, pair: usize) -> bool {
        let Some(pair) = self.pairs.get_mut(pair) else {
            return false;
        };
        let most = pair.hold.most_to_hold();
        let log = dirty_log(self.log.as_ref(), self.features);
        // The next read of the ring finds a fault.
        pair.tx_ring()
            .is_some_and(|ring| ring.arm_at(most, log) != Ok(false))
    }

    // Reception: to the guest.

    /// Puts a frame into a receive queue, without publishing it.
    #[inline]
    pub fn deliver(&mut self, pair: usize, frame: &Frame) -> Result<Delivery, RingFault> {
        let header_len = self.features.header_len();
        let mergeable = self.features.has(Features::MRG_RXBUF);
        let Some(ring) = self.pairs.get_mut(pair).and_then(QueuePair::rx_ring) else {
            return Ok(Delivery::Dropped(DropReason::NotRunning));
        };
        let lists = (&mut self.chains, &mut self.segments);
        let delivery = for_ring!(ring, ring => {
            transfer::deliver(ring, &self.memory, frame, (header_len, mergeable), lists)
        })?;
        if delivery == Delivery::Delivered {
            if let Some(log) = dirty_log(self.log.as_ref(), self.features) {
                transfer::mark(log, &self.segments, header_len + frame.len);
            }
            self.counters.totals.rx_packets += 1;
            self.counters.totals.rx_bytes += frame.len as u64;
        }
        Ok(delivery)
    }

    /// Puts frames of a batch into a receive queue, from the `done`th on, as long as they are plain and fit into one
    /// buffer each, without publishing them. Returns their number.
    #[inline]
    pub fn deliver_plain(&mut self, pair: usize, batch: &Batch, done: usize) -> usize {
        let header_len = self.features.header_len();
        let log = dirty_log(self.log.as_ref(), self.features);
        let Some(ring) = self.pairs.get_mut(pair).and_then(QueuePair::rx_ring) else {
            return 0;
        };
        let (packets, bytes) = for_ring!(ring, ring => {
            transfer::deliver_plain(ring, &self.memory, log, header_len, batch, done)
        });
        if packets > 0 {
            self.has_buffers(pair);
        }
        self.counters.totals.rx_packets += packets as u64;
        self.counters.totals.rx_bytes += bytes;
        packets
    }

    /// Publishes `packets` frames to the guest and signals it, now or when the hold ends.
    pub fn publish(&mut self, pair: usize, packets: u32, now: Nanos) {
        let Some(pair) = self.pairs.get_mut(pair) else {
            return;
        };
        let Some(ring) = pair.rx.running_ring() else {
            return;
        };
        let log = dirty_log(self.log.as_ref(), self.features);
        let batch = for_ring!(ring, ring => transfer::publish(ring, log, packets));
        match pair.hold.received(now, batch) {
            Some(release) => pair.release(release, &mut self.counters),
            None => self.counters.totals.calls_suppressed += 1,
        }
    }

    /// Signals a guest for its receive queue, unless it has processed the packets already.
    pub fn release(&mut self, pair: usize, release: Release) {
        if let Some(pair) = self.pairs.get_mut(pair) {
            pair.release(release, &mut self.counters);
        }
    }

    /// Asks for a kick when there are buffers again. Returns whether there are some already.
    pub fn await_buffers(&mut self, pair: usize) -> bool {
        self.pairs
            .get_mut(pair)
            .and_then(QueuePair::rx_ring)
            .is_some_and(|ring| ring.arm(dirty_log(self.log.as_ref(), self.features)) != Ok(false))
    }

    /// The guest kicked a receive queue: there are buffers again, and kicks are disabled.
    pub fn buffers_came(&mut self, pair: usize) {
        if let Some(ring) = self.pairs.get_mut(pair).and_then(QueuePair::rx_ring) {
            ring.disarm(dirty_log(self.log.as_ref(), self.features));
        }
    }

    /// The time since which a receive queue lacks buffers: `now`, if it did not lack any before.
    pub fn lacks_buffers_since(&mut self, pair: usize, now: Nanos) -> Nanos {
        match self.pairs.get_mut(pair) {
            Some(pair) => *pair.lacks_buffers_since.get_or_insert(now),
            None => now,
        }
    }

    /// Notes that a receive queue has buffers.
    #[inline]
    pub fn has_buffers(&mut self, pair: usize) {
        if let Some(pair) = self.pairs.get_mut(pair) {
            pair.lacks_buffers_since = None;
        }
    }

    /// How many frames wait to be sent.
    pub fn waiting(&mut self, pair: usize) -> u32 {
        self.pairs
            .get_mut(pair)
            .and_then(QueuePair::tx_ring)
            .map_or(0, |ring| ring.look().map_or(0, u32::from))
    }

    /// How many receive buffers there are.
    pub fn free_buffers(&mut self, pair: usize) -> usize {
        self.pairs
            .get_mut(pair)
            .and_then(QueuePair::rx_ring)
            .map_or(0, |ring| ring.look().map_or(0, usize::from))
    }

    /// Stops a queue that its guest made invalid. Others continue.
    pub fn fault(&mut self, queue: usize, fault: RingFault) {
        let (pair, half) = pair_and_half(queue);
        if let Some(pair) = self.pairs.get_mut(pair) {
            pair.queue_mut(half).fault(fault);
        }
        self.counters.totals.faults += 1;
        self.count_running();
    }
}
