//! Virtqueues, as the device sees them.

mod split;
#[cfg(test)]
mod tests;

pub use split::{MAX_SIZE, RingAddresses, SplitRing};

use crate::memory::Segment;

/// The most segments of one chain: with the header one more, it is what `writev` takes.
pub const MAX_SEGMENTS: usize = 1023;

/// What a guest did that its ring does not allow. Its queue stops; nothing else does.
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
    /// The file under guest memory was cut.
    #[error("the memory under the ring was truncated")]
    Truncated,
}

/// Which way the buffers of a queue go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The device reads them: transmit queues.
    Readable,
    /// The device writes them: receive queues.
    Writable,
    /// The device reads the first ones and writes the others: control queues. Each segment says
    /// which it is.
    Request,
}

/// A chain taken from a ring. Its segments are in the list that it was read into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chain {
    /// The head's index, by which it is returned.
    pub head: u16,
    /// Bytes in all.
    pub len: u32,
    /// Its first segment in the list.
    pub first: u32,
    /// How many segments.
    pub count: u32,
}

impl Chain {
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
