// SPDX-License-Identifier: Apache-2.0
//! Descriptors, which both kinds of ring have, and the segments to which they point.

use super::{Direction, MAX_SEGMENTS, RingFault};
use crate::memory::{GuestMemory, Segment};

pub(super) const NEXT: u16 = 1;
pub(super) const WRITE: u16 = 2;
pub(super) const INDIRECT: u16 = 4;

/// Bytes of a descriptor.
const BYTES: u32 = 16;

/// A descriptor of a split ring, or of an indirect table. In a packed ring the last two fields
/// change places and `next` is the buffer's identifier.
#[derive(Clone, Copy)]
pub(super) struct Descriptor {
    pub address: u64,
    pub len: u32,
    pub flags: u16,
    pub next: u16,
}

impl Descriptor {
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
    pub fn split(address: u64, rest: u64) -> Self {
        Self {
            address: u64::from_le(address),
            len: u64::from_le(rest) as u32,
            flags: (u64::from_le(rest) >> 32) as u16,
            next: (u64::from_le(rest) >> 48) as u16,
        }
    }

    #[inline]
    pub fn packed(address: u64, rest: u64) -> Self {
        let split = Self::split(address, rest);
        Self {
            flags: split.next,
            next: split.flags,
            ..split
        }
    }

    /// Its buffer, if that is one segment for this direction and the only descriptor of its chain.
    #[inline]
    pub fn single(self, memory: &GuestMemory, direction: Direction) -> Option<Segment> {
        let wanted = match direction {
            Direction::Readable => 0,
            Direction::Writable => WRITE,
            Direction::Request => return None,
        };
        if self.flags & (NEXT | WRITE | INDIRECT) != wanted || self.len == 0 {
            return None;
        }
        memory
            .at(self.address, self.len)
            .filter(|segment| segment.len == self.len)
    }
}

/// A chain while it is walked: its length and its part of a list of segments.
pub(super) struct Walk<'a> {
    memory: &'a GuestMemory,
    direction: Direction,
    segments: &'a mut Vec<Segment>,
    limit: usize,
    len: u32,
}

impl<'a> Walk<'a> {
    #[inline]
    pub fn new(
        memory: &'a GuestMemory,
        direction: Direction,
        segments: &'a mut Vec<Segment>,
    ) -> Self {
        Self {
            memory,
            direction,
            limit: segments.len() + MAX_SEGMENTS,
            segments,
            len: 0,
        }
    }

    /// Bytes of the segments appended so far.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Appends a descriptor's buffer, as one segment for each region that it touches. A buffer of no bytes is a segment
    /// too: it takes as long to read, and a table may claim 2^28 of them.
    #[inline]
    fn append(&mut self, descriptor: Descriptor) -> Result<(), RingFault> {
        let writable = descriptor.flags & WRITE != 0;
        if self.direction != Direction::Request
            && writable != (self.direction == Direction::Writable)
        {
            return Err(RingFault::Direction);
        }
        self.len = self
            .len
            .checked_add(descriptor.len)
            .ok_or(RingFault::Length)?;
        let mut address = descriptor.address;
        let mut left = descriptor.len;
        loop {
            let segment = match left {
                0 => Segment::EMPTY,
                _ => self.memory.at(address, left).ok_or(RingFault::Address)?,
            };
            if self.segments.len() == self.limit {
                return Err(RingFault::TooManySegments);
            }
            self.segments.push(Segment {
                writable,
                ..segment
            });
            left -= segment.len;
            address = address.wrapping_add(u64::from(segment.len));
            if left == 0 {
                return Ok(());
            }
        }
    }

    /// Appends a descriptor of a ring that may have `indirect` ones: its buffer, or its table of entries that are
    /// `chained` or follow each other. Returns whether it is the last of its chain.
    #[inline]
    pub fn step(
        &mut self,
        descriptor: Descriptor,
        chained: bool,
        indirect: bool,
    ) -> Result<bool, RingFault> {
        if descriptor.flags & INDIRECT == 0 {
            self.append(descriptor)?;
            return Ok(descriptor.flags & NEXT == 0);
        }
        if !indirect || descriptor.flags & NEXT != 0 {
            return Err(RingFault::IndirectPlace);
        }
        self.append_table(descriptor, chained)?;
        Ok(true)
    }

    /// Appends an indirect table, whose entries are chained (split rings) or simply follow each
    /// other (packed rings).
    fn append_table(&mut self, table: Descriptor, chained: bool) -> Result<(), RingFault> {
        if table.len == 0 || !table.len.is_multiple_of(BYTES) {
            return Err(RingFault::IndirectSize);
        }
        let entries = table.len / BYTES;
        let mut index = 0;
        for _ in 0..entries {
            if index >= entries {
                return Err(RingFault::DescriptorIndex);
            }
            let address = table
                .address
                .checked_add(u64::from(index) * u64::from(BYTES))
                .ok_or(RingFault::Address)?;
            let place = self
                .memory
                .at(address, BYTES)
                .filter(|place| place.len == BYTES)
                .ok_or(RingFault::Address)?;
            let (address, rest) = read(place.host);
            let entry = if chained {
                Descriptor::split(address, rest)
            } else {
                Descriptor::packed(address, rest)
            };
            if entry.flags & INDIRECT != 0 {
                return Err(RingFault::IndirectPlace);
            }
            self.append(entry)?;
            let (last, next) = if chained {
                (entry.flags & NEXT == 0, u32::from(entry.next))
            } else {
                (index + 1 == entries, index + 1)
            };
            if last {
                return Ok(());
            }
            index = next;
        }
        Err(RingFault::Loop)
    }
}

/// Reads the two words of an entry of an indirect table, whose alignment is not guaranteed.
fn read(host: *const u8) -> (u64, u64) {
    let words = host.cast::<u64>();
    if words.is_aligned() {
        // SAFETY: the caller found 16 bytes of guest memory here, aligned as just seen. The guest
        // may write them meanwhile: volatile reads take whatever is there, once.
        return unsafe { (words.read_volatile(), words.wrapping_add(1).read_volatile()) };
    }
    // SAFETY: as above, for bytes, which need no alignment.
    let bytes = unsafe { host.cast::<[u8; 16]>().read_volatile() };
    let number = u128::from_ne_bytes(bytes);
    #[expect(clippy::cast_possible_truncation, reason = "takes the halves")]
    (number as u64, (number >> 64) as u64)
}
