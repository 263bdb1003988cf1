//! The split virtqueue (virtio 1.2, 2.7), over validated host pointers.
//!
//! Chains are taken in order and returned in order, so that the number of chains taken is always
//! the used index once a batch is published: a front end that reconnects starts again from there.

use super::{Chain, Direction, MAX_SEGMENTS, RingFault, passed};
use crate::memory::{DirtyLog, GuestMemory, Segment};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// The most entries of a split ring.
pub const MAX_SIZE: u16 = 32768;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const NO_INTERRUPT: u16 = 1;
const NO_NOTIFY: u16 = 1;

/// Bytes of a descriptor.
const DESCRIPTOR: u32 = 16;

/// The most descriptors of a chain that are read: one more than it may have segments. A table may
/// claim 2^28.
const MOST_DESCRIPTORS: u32 = MAX_SEGMENTS as u32 + 1;

/// Where a ring's three parts are, as addresses of the front end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RingAddresses {
    /// The descriptor table.
    pub descriptors: u64,
    /// The driver's part.
    pub available: u64,
    /// The device's part.
    pub used: u64,
    /// The guest-physical address under which writes to the used ring are logged.
    pub used_log: Option<u64>,
}

/// A split virtqueue that is started.
///
/// The pointers are valid while the [`GuestMemory`] that they were resolved in is unchanged: the
/// owner resolves anew, or drops the ring, before it changes memory.
#[derive(Debug)]
pub struct SplitRing {
    descriptors: *const AtomicU64,
    /// `flags`, `idx`, the ring, `used_event`: all 16 bits.
    available: *const AtomicU16,
    used: *mut u8,
    size: u16,
    indirect: bool,
    event_idx: bool,
    /// The available index up to which chains were taken.
    taken: u16,
    /// The available index as last read.
    offered: u16,
    /// The used index with what is staged.
    staged: u16,
    /// The used index that the driver sees.
    published: u16,
    /// The used index at the last signal, or when last found that none was wanted.
    signalled: u16,
    used_log: Option<u64>,
}

// SAFETY: the pointers lead into memory that is shared with other processes anyway; which thread
// of ours holds them makes no difference.
unsafe impl Send for SplitRing {}

#[derive(Clone, Copy)]
struct Descriptor {
    address: u64,
    len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
    fn from_words(address: u64, rest: u64) -> Self {
        Self {
            address: u64::from_le(address),
            len: u64::from_le(rest) as u32,
            flags: (u64::from_le(rest) >> 32) as u16,
            next: (u64::from_le(rest) >> 48) as u16,
        }
    }
}

impl SplitRing {
    /// Resolves the addresses in `memory`. `base` is the available index to begin with; the used
    /// index is taken from the ring. `None` when some part is not all in one region, is not
    /// aligned, or the size is not a power of two up to [`MAX_SIZE`].
    pub fn new(
        memory: &GuestMemory,
        addresses: &RingAddresses,
        size: u16,
        base: u16,
        indirect: bool,
        event_idx: bool,
    ) -> Option<Self> {
        if !size.is_power_of_two() || size > MAX_SIZE {
            return None;
        }
        let entries = u64::from(size);
        let (descriptors, _) = memory.at_user(addresses.descriptors, entries * 16, 16)?;
        let (available, _) = memory.at_user(addresses.available, 6 + entries * 2, 2)?;
        let (used, _) = memory.at_user(addresses.used, 6 + entries * 8, 4)?;
        let mut ring = Self {
            descriptors: descriptors.cast_const().cast(),
            available: available.cast_const().cast(),
            used,
            size,
            indirect,
            event_idx,
            taken: base,
            offered: base,
            staged: 0,
            published: 0,
            signalled: 0,
            used_log: addresses.used_log,
        };
        let index = u16::from_le(ring.used_u16(2).load(Ordering::Acquire));
        ring.staged = index;
        ring.published = index;
        ring.signalled = index;
        Some(ring)
    }

    /// The same ring after memory or features changed.
    pub fn resolve_again(
        &self,
        memory: &GuestMemory,
        addresses: &RingAddresses,
        indirect: bool,
        event_idx: bool,
    ) -> Option<Self> {
        let mut ring = Self::new(
            memory, addresses, self.size, self.taken, indirect, event_idx,
        )?;
        ring.signalled = self.signalled;
        Some(ring)
    }

    /// Entries.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// The available index up to which chains were taken: what GET_VRING_BASE asks for.
    pub fn base(&self) -> u16 {
        self.taken
    }

    /// How many chains the driver has offered that were not taken, as of the last look.
    pub fn waiting(&self) -> u16 {
        self.offered.wrapping_sub(self.taken)
    }

    fn mask(&self, index: u16) -> usize {
        usize::from(index & (self.size - 1))
    }

    /// A 16-bit field of the available ring, in units of two bytes.
    #[inline]
    fn available_u16(&self, index: usize) -> &AtomicU16 {
        // SAFETY: `new` found 6 + 2 * size bytes here, aligned to 2, and every index used is below
        // 3 + size. An atomic may be shared with the guest.
        unsafe { &*self.available.wrapping_add(index) }
    }

    /// A 16-bit field of the used ring, at an even offset in bytes.
    #[inline]
    fn used_u16(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: `new` found 6 + 8 * size bytes here, aligned to 4; the offsets used are 0, 2 and
        // 4 + 8 * size. An atomic may be shared with the guest.
        unsafe { &*self.used.wrapping_add(offset).cast_const().cast() }
    }

    /// A half of a used element, in units of four bytes after `flags` and `idx`.
    #[inline]
    fn used_u32(&self, index: usize) -> &AtomicU32 {
        // SAFETY: `new` found 6 + 8 * size bytes here, aligned to 4, and `index` is below 2 * size.
        // An atomic may be shared with the guest.
        unsafe { &*self.used.wrapping_add(4 + index * 4).cast_const().cast() }
    }

    #[inline]
    fn descriptor(&self, index: u16) -> Result<Descriptor, RingFault> {
        if index >= self.size {
            return Err(RingFault::DescriptorIndex);
        }
        let word = self.descriptors.wrapping_add(usize::from(index) * 2);
        // SAFETY: `new` found 16 * size bytes here, aligned to 16, and index < size. An atomic may
        // be shared with the guest. Each word is read once.
        let (address, rest) = unsafe { (&*word, &*word.wrapping_add(1)) };
        Ok(Descriptor::from_words(
            address.load(Ordering::Relaxed),
            rest.load(Ordering::Relaxed),
        ))
    }

    /// How many chains wait to be taken.
    ///
    /// # Errors
    /// When the driver offers more than the ring holds.
    #[inline]
    pub fn look(&mut self) -> Result<u16, RingFault> {
        // Acquire: the ring's entries and descriptors are read after the index that covers them.
        self.offered = u16::from_le(self.available_u16(1).load(Ordering::Acquire));
        let waiting = self.waiting();
        if waiting > self.size {
            return Err(RingFault::AvailableIndex);
        }
        Ok(waiting)
    }

    /// Takes the next chain and appends its segments to `segments`. Looks for new ones if those
    /// seen before are all taken.
    ///
    /// # Errors
    /// Whatever is wrong with the chain; `segments` may have grown.
    #[inline]
    pub fn take(
        &mut self,
        memory: &GuestMemory,
        direction: Direction,
        segments: &mut Vec<Segment>,
    ) -> Result<Option<Chain>, RingFault> {
        if self.offered == self.taken && self.look()? == 0 {
            return Ok(None);
        }
        let entry = self.available_u16(2 + self.mask(self.taken));
        let head = u16::from_le(entry.load(Ordering::Relaxed));
        let first = segments.len();
        let len = self.walk(memory, direction, head, segments)?;
        self.taken = self.taken.wrapping_add(1);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "both are below MAX_SEGMENTS times the chains of a batch"
        )]
        Ok(Some(Chain {
            head,
            len,
            first: first as u32,
            count: (segments.len() - first) as u32,
        }))
    }

    #[inline]
    fn walk(
        &self,
        memory: &GuestMemory,
        direction: Direction,
        head: u16,
        segments: &mut Vec<Segment>,
    ) -> Result<u32, RingFault> {
        let limit = segments.len() + MAX_SEGMENTS;
        let mut descriptor = self.descriptor(head)?;
        let mut len = 0;
        // A chain longer than its table loops; empty descriptors make a long one without segments.
        for _ in 0..u32::from(self.size).min(MOST_DESCRIPTORS) {
            if descriptor.flags & INDIRECT != 0 {
                if !self.indirect || descriptor.flags & NEXT != 0 {
                    return Err(RingFault::IndirectPlace);
                }
                return walk_indirect(memory, direction, descriptor, len, segments, limit);
            }
            append(memory, direction, descriptor, &mut len, segments, limit)?;
            if descriptor.flags & NEXT == 0 {
                return Ok(len);
            }
            descriptor = self.descriptor(descriptor.next)?;
        }
        Err(RingFault::Loop)
    }

    /// Puts the last `chains` taken back, so that they are taken again. Only for chains that were
    /// not returned.
    pub fn put_back(&mut self, chains: u16) {
        self.taken = self.taken.wrapping_sub(chains);
    }

    /// Stages the return of a chain into which `len` bytes were written.
    #[inline]
    pub fn give(&mut self, head: u16, len: u32) {
        let element = self.mask(self.staged) * 2;
        self.used_u32(element)
            .store(u32::from(head).to_le(), Ordering::Relaxed);
        self.used_u32(element + 1)
            .store(len.to_le(), Ordering::Relaxed);
        self.staged = self.staged.wrapping_add(1);
    }

    /// Shows the driver everything staged, with one store.
    #[inline]
    pub fn publish(&mut self, log: Option<&DirtyLog>) {
        if self.staged == self.published {
            return;
        }
        if let (Some(log), Some(base)) = (log, self.used_log) {
            let mut index = self.published;
            while index != self.staged {
                log.mark(base.wrapping_add(4 + self.mask(index) as u64 * 8), 8);
                index = index.wrapping_add(1);
            }
        }
        // Release: the elements and what was copied come before the index that covers them.
        self.used_u16(2)
            .store(self.staged.to_le(), Ordering::Release);
        self.published = self.staged;
        self.mark(log, 2);
    }

    fn mark(&self, log: Option<&DirtyLog>, offset: u64) {
        if let (Some(log), Some(base)) = (log, self.used_log) {
            log.mark(base.wrapping_add(offset), 2);
        }
    }

    /// Whether the driver wants to be signalled for what was published since the last signal. If it
    /// does not, that is settled; if it does, the need stays until [`SplitRing::signalled`].
    #[inline]
    pub fn wants_signal(&mut self) -> bool {
        if self.published == self.signalled {
            return false;
        }
        // The driver writes its event and then reads our index; we the other way round.
        fence(Ordering::SeqCst);
        let wants = if self.event_idx {
            let event = self.available_u16(2 + usize::from(self.size));
            let event = u16::from_le(event.load(Ordering::Relaxed));
            passed(event, self.published, self.signalled)
        } else {
            u16::from_le(self.available_u16(0).load(Ordering::Relaxed)) & NO_INTERRUPT == 0
        };
        if !wants {
            self.signalled = self.published;
        }
        wants
    }

    /// Notes that the driver was signalled for all that is published.
    pub fn signalled(&mut self) {
        self.signalled = self.published;
    }

    /// Asks the driver for a kick at the next chain that it offers. Tells whether one came in the
    /// meantime, for which there may be no kick.
    ///
    /// # Errors
    /// When the driver offers more than the ring holds.
    pub fn arm(&mut self, log: Option<&DirtyLog>) -> Result<bool, RingFault> {
        if self.event_idx {
            let offset = 4 + usize::from(self.size) * 8;
            self.used_u16(offset)
                .store(self.offered.to_le(), Ordering::Relaxed);
            self.mark(log, offset as u64);
        } else {
            self.used_u16(0).store(0, Ordering::Relaxed);
            self.mark(log, 0);
        }
        // The driver writes its index and then reads our event; we the other way round.
        fence(Ordering::SeqCst);
        let before = self.offered;
        self.look()?;
        Ok(self.offered != before)
    }

    /// Asks the driver for no kicks. With event indexes nothing is written: the old event is behind,
    /// and stays behind for 65,536 chains.
    pub fn disarm(&mut self, log: Option<&DirtyLog>) {
        if !self.event_idx {
            self.used_u16(0).store(NO_NOTIFY.to_le(), Ordering::Relaxed);
            self.mark(log, 0);
        }
    }
}

/// Appends what a descriptor points at, in as many segments as regions make it.
#[inline]
fn append(
    memory: &GuestMemory,
    direction: Direction,
    descriptor: Descriptor,
    total: &mut u32,
    segments: &mut Vec<Segment>,
    limit: usize,
) -> Result<(), RingFault> {
    let writable = descriptor.flags & WRITE != 0;
    if direction != Direction::Request && writable != (direction == Direction::Writable) {
        return Err(RingFault::Direction);
    }
    *total = total.checked_add(descriptor.len).ok_or(RingFault::Length)?;
    let mut address = descriptor.address;
    let mut left = descriptor.len;
    while left > 0 {
        let segment = memory.at(address, left).ok_or(RingFault::Address)?;
        if segments.len() == limit {
            return Err(RingFault::TooManySegments);
        }
        segments.push(Segment {
            writable,
            ..segment
        });
        left -= segment.len;
        address = address.wrapping_add(u64::from(segment.len));
    }
    Ok(())
}

fn walk_indirect(
    memory: &GuestMemory,
    direction: Direction,
    table: Descriptor,
    mut len: u32,
    segments: &mut Vec<Segment>,
    limit: usize,
) -> Result<u32, RingFault> {
    if table.len == 0 || !table.len.is_multiple_of(DESCRIPTOR) {
        return Err(RingFault::IndirectSize);
    }
    let entries = table.len / DESCRIPTOR;
    let mut index = 0;
    for _ in 0..entries.min(MOST_DESCRIPTORS) {
        if index >= entries {
            return Err(RingFault::DescriptorIndex);
        }
        let address = table
            .address
            .checked_add(u64::from(index) * u64::from(DESCRIPTOR))
            .ok_or(RingFault::Address)?;
        let place = memory
            .at(address, DESCRIPTOR)
            .filter(|place| place.len == DESCRIPTOR)
            .ok_or(RingFault::Address)?;
        let descriptor = read_descriptor(place.host);
        if descriptor.flags & INDIRECT != 0 {
            return Err(RingFault::IndirectPlace);
        }
        append(memory, direction, descriptor, &mut len, segments, limit)?;
        if descriptor.flags & NEXT == 0 {
            return Ok(len);
        }
        index = u32::from(descriptor.next);
    }
    Err(RingFault::Loop)
}

/// Reads a descriptor of an indirect table, whose alignment nothing promises.
fn read_descriptor(host: *const u8) -> Descriptor {
    let words = host.cast::<u64>();
    if words.is_aligned() {
        // SAFETY: the caller found 16 bytes of guest memory here, aligned as just seen. The guest
        // may write them meanwhile: volatile reads take whatever is there, once.
        let (address, rest) =
            unsafe { (words.read_volatile(), words.wrapping_add(1).read_volatile()) };
        return Descriptor::from_words(address, rest);
    }
    // SAFETY: the same, of bytes.
    let bytes = unsafe { host.cast::<[u8; 16]>().read_volatile() };
    let number = u128::from_ne_bytes(bytes);
    #[expect(clippy::cast_possible_truncation, reason = "takes the halves")]
    Descriptor::from_words(number as u64, (number >> 64) as u64)
}
