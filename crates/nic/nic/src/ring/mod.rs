// SPDX-License-Identifier: Apache-2.0
//! The device's side of virtqueues.

#[cfg(test)]
mod bounded_tests;
mod descriptor;
#[cfg(test)]
mod handshake_tests;
#[cfg(test)]
mod order_tests;
mod packed;
#[cfg(test)]
mod packed_tests;
mod shared;
mod split;
#[cfg(test)]
mod tests;
mod view;
#[cfg(test)]
mod walk_tests;

pub use packed::PackedRing;
pub use split::SplitRing;
pub use view::RingView;

use crate::features::Features;
use crate::memory::{DirtyLog, GuestMemory, Segment};
use std::sync::atomic::Ordering;

/// The most entries of a ring.
pub const MAX_SIZE: u16 = 32768;

/// The most segments of one chain: with one more for the header, the most that `writev` accepts.
pub const MAX_SEGMENTS: usize = 1023;

/// The faults that make a guest's ring invalid. Only its queue stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RingFault {
    /// More chains than the ring has entries.
    #[error("the available index jumped by more than the ring's size")]
    AvailableIndex,
    /// A head or a `next` past the descriptor table.
    #[error("a descriptor index is past the end of its table")]
    DescriptorIndex,
    /// More descriptors than the table has, or than any chain needs: a loop.
    #[error("a descriptor chain loops")]
    Loop,
    /// More segments than [`MAX_SEGMENTS`].
    #[error("a descriptor chain has more than {MAX_SEGMENTS} segments")]
    TooManySegments,
    /// An address range that is not all guest memory.
    #[error("a descriptor points outside of guest memory")]
    Address,
    /// A chain of more than 4 GiB.
    #[error("a descriptor chain is longer than 4 GiB")]
    Length,
    /// An indirect table that is empty or not a multiple of 16 bytes.
    #[error("an indirect table has a wrong size")]
    IndirectSize,
    /// An indirect table in an indirect table, beside a `next`, or not negotiated.
    #[error("an indirect table where none may be")]
    IndirectPlace,
    /// A buffer to write in a transmit queue, or one to read in a receive queue.
    #[error("a descriptor has the wrong direction")]
    Direction,
    /// A receive buffer that cannot hold the virtio-net header.
    #[error("a receive buffer is smaller than the virtio-net header")]
    SmallBuffer,
}

/// The direction of a queue's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The device reads them: transmit queues.
    Readable,
    /// The device writes them: receive queues.
    Writable,
    /// The device reads the first ones and writes the others: control queues. Each segment has its direction.
    Request,
}

/// The front end's addresses of a ring's three parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RingAddresses {
    /// The descriptor table; all of a packed ring.
    pub descriptors: u64,
    /// The driver's part; its event suppression in a packed ring.
    pub available: u64,
    /// The device's part; its event suppression in a packed ring.
    pub used: u64,
    /// The guest-physical address under which writes to the used ring are logged.
    pub used_log: Option<u64>,
}

/// The position of a chain, by which it is returned or taken again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// Its position in the ring.
    pub at: u16,
    /// The driver's identifier of it: the index of its head, or the buffer ID.
    pub id: u16,
    /// Entries that it takes up in the ring.
    pub slots: u16,
}

/// A chain taken from a ring. Its segments are in the list that it was read into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Chain {
    /// Its position, by which it is returned.
    pub place: Place,
    /// Bytes in all.
    pub len: u32,
    /// Its first segment in the list.
    pub first: u32,
    /// The number of its segments.
    pub count: u32,
}

impl Chain {
    /// A chain whose segments are `first..end` of a list.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a list holds at most MAX_SEGMENTS times the chains of a batch"
    )]
    fn new(place: Place, len: u32, first: usize, end: usize) -> Self {
        Self {
            place,
            len,
            first: first as u32,
            count: (end - first) as u32,
        }
    }

    /// Its part of the list that it was read into.
    pub fn segments<'a>(&self, list: &'a [Segment]) -> &'a [Segment] {
        let first = self.first as usize;
        list.get(first..first + self.count as usize).unwrap_or(&[])
    }
}

/// Whether an index that moved from `old` to `new` passed `event` (virtio 1.2, 2.7.10). All count
/// modulo 65536.
#[inline]
pub fn passed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// The operations of the data path on a ring. Code is generic over this trait, so that it checks the ring's kind only
/// once a batch.
pub trait Virtqueue {
    /// Entries.
    fn size(&self) -> u16;

    /// The number of offered chains that were not taken, at the last [`Virtqueue::look`].
    fn waiting(&self) -> u16;

    /// Reads the number of chains that wait to be taken.
    ///
    /// # Errors
    /// When the driver offers more than the ring holds.
    fn look(&mut self) -> Result<u16, RingFault>;

    /// Takes the next chain and appends its segments to `segments`. Looks for new ones if all known ones are taken.
    ///
    /// # Errors
    /// The fault of the chain; `segments` may have grown.
    fn take(
        &mut self,
        memory: &GuestMemory,
        direction: Direction,
        segments: &mut Vec<Segment>,
    ) -> Result<Option<Chain>, RingFault>;

    /// Takes the next chain if it is a single segment, as nearly all are. Other chains and faults are left to
    /// [`Virtqueue::take`].
    fn take_single(
        &mut self,
        memory: &GuestMemory,
        direction: Direction,
    ) -> Option<(Place, Segment)>;

    /// Puts the last `chains` taken back, of which `first` is the first, so that they are taken
    /// again. Only for chains that were not returned.
    fn put_back(&mut self, first: Place, chains: u16);

    /// Stages the return of a chain into which `len` bytes were written. Chains are returned in the
    /// order in which they were taken.
    fn give(&mut self, place: Place, len: u32);

    /// Stages the return of chains that were only read. With VIRTIO_F_IN_ORDER only the last one is written.
    fn give_read(&mut self, places: impl ExactSizeIterator<Item = Place>);

    /// Publishes all staged entries at once.
    fn publish(&mut self, log: Option<&DirtyLog>);

    /// Whether the driver wants to be signalled for the entries published since the last signal. If it does, the signal
    /// is due until [`Virtqueue::signalled`].
    fn wants_signal(&mut self) -> bool;

    /// Notes that the driver was signalled for all that is published.
    fn signalled(&mut self);

    /// Asks for a kick at the next chain that is offered: the first half of [`Virtqueue::arm`].
    fn ask(&mut self, log: Option<&DirtyLog>);

    /// Whether chains came since the last look: the second half of [`Virtqueue::arm`].
    ///
    /// # Errors
    /// When the driver offers more than the ring holds.
    fn finds_more(&mut self) -> Result<bool, RingFault>;

    /// Asks the driver for a kick at the next chain that it offers. Returns whether one came since
    /// the last look, for which there may be no kick.
    ///
    /// # Errors
    /// When the driver offers more than the ring holds.
    fn arm(&mut self, log: Option<&DirtyLog>) -> Result<bool, RingFault> {
        self.ask(log);
        // The driver writes what it offers and then reads the device's event; the device does the reverse.
        shared::fence(Ordering::SeqCst);
        self.finds_more()
    }

    /// Asks the driver for one kick, when `chains` chains wait. Returns whether so many wait already, for which there
    /// may be no kick. A driver with a packed ring, or without event indexes, is asked for none.
    ///
    /// # Errors
    /// When the driver offers more than the ring holds.
    fn arm_at(&mut self, chains: u32, log: Option<&DirtyLog>) -> Result<bool, RingFault>;

    /// Asks the driver for no kicks, or for no more than one.
    fn disarm(&mut self, log: Option<&DirtyLog>);
}

/// A ring of either kind.
#[derive(Debug)]
pub enum Ring {
    /// Virtio 1.2, 2.7.
    Split(SplitRing),
    /// Virtio 1.2, 2.8.
    Packed(PackedRing),
}

/// Runs the same code for either kind of ring, compiled for each.
macro_rules! for_ring {
    ($ring:expr, $inner:ident => $code:expr) => {
        match $ring {
            $crate::ring::Ring::Split($inner) => $code,
            $crate::ring::Ring::Packed($inner) => $code,
        }
    };
}

pub(crate) use for_ring;

impl Ring {
    /// The negotiated kind of ring, with its addresses resolved in `memory`. `base` is the value from SET_VRING_BASE.
    /// `None` when a part is not all in one region or not aligned, or the size is invalid.
    pub fn new(
        memory: &GuestMemory,
        addresses: &RingAddresses,
        size: u16,
        base: u16,
        features: Features,
    ) -> Option<Self> {
        if features.has(Features::RING_PACKED) {
            return PackedRing::new(memory, addresses, size, base, features).map(Self::Packed);
        }
        let (indirect, event_idx) = (
            features.has(Features::INDIRECT),
            features.has(Features::EVENT_IDX),
        );
        SplitRing::new(memory, addresses, size, base, indirect, event_idx)
            .map(|ring| Self::Split(ring.with_in_order(features.has(Features::IN_ORDER))))
    }

    /// Whether a ring may have this size with these features: a packed one need not be a power of
    /// two.
    pub fn may_have_size(size: u16, features: Features) -> bool {
        (1..=MAX_SIZE).contains(&size)
            && (size.is_power_of_two() || features.has(Features::RING_PACKED))
    }

    /// The base for GET_VRING_BASE.
    pub fn base(&self) -> u16 {
        for_ring!(self, ring => ring.base())
    }

    /// See [`Virtqueue::size`].
    pub fn size(&self) -> u16 {
        for_ring!(self, ring => ring.size())
    }

    /// See [`Virtqueue::look`].
    ///
    /// # Errors
    /// When the driver offers more than the ring holds.
    pub fn look(&mut self) -> Result<u16, RingFault> {
        for_ring!(self, ring => ring.look())
    }

    /// See [`Virtqueue::wants_signal`].
    pub fn wants_signal(&mut self) -> bool {
        for_ring!(self, ring => ring.wants_signal())
    }

    /// See [`Virtqueue::signalled`].
    pub fn signalled(&mut self) {
        for_ring!(self, ring => ring.signalled());
    }

    /// See [`Virtqueue::arm`].
    ///
    /// # Errors
    /// When the driver offers more than the ring holds.
    pub fn arm(&mut self, log: Option<&DirtyLog>) -> Result<bool, RingFault> {
        for_ring!(self, ring => ring.arm(log))
    }

    /// See [`Virtqueue::arm_at`].
    ///
    /// # Errors
    /// When the driver offers more than the ring holds.
    pub fn arm_at(&mut self, chains: u32, log: Option<&DirtyLog>) -> Result<bool, RingFault> {
        for_ring!(self, ring => ring.arm_at(chains, log))
    }

    /// See [`Virtqueue::disarm`].
    pub fn disarm(&mut self, log: Option<&DirtyLog>) {
        for_ring!(self, ring => ring.disarm(log));
    }
}
