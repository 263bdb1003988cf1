// SPDX-License-Identifier: Apache-2.0
//! The split virtqueue (virtio 1.2, 2.7), over validated host pointers.
//!
//! Chains are taken in order and returned in order, so that the number of chains taken equals the used index once a
//! batch is published: a front end that reconnects continues from there.

use super::descriptor::{Descriptor, Walk};
use super::shared::{AtomicU16, AtomicU32, AtomicU64, fence};
use super::{Chain, Direction, MAX_SIZE, Place, RingAddresses, RingFault, Virtqueue, passed};
use crate::memory::{DirtyLog, GuestMemory, Segment};
use std::sync::atomic::Ordering;

pub(super) const NO_INTERRUPT: u16 = 1;
const NO_NOTIFY: u16 = 1;

/// A split virtqueue that is started.
///
/// The pointers are valid while the [`GuestMemory`] that they were resolved in is unchanged: the
/// owner resolves anew, or drops the ring, before it changes memory.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub struct SplitRing {
    descriptors: *const AtomicU64,
    /// `flags`, `idx`, the ring, `used_event`: all 16 bits.
    available: *const AtomicU16,
    used: *mut u8,
    size: u16,
    /// The mask from an index to its slot. It is a word of its own: a load of `size` that spans its neighbour waits for
    /// the store to that.
    mask: usize,
    indirect: bool,
    event_idx: bool,
    in_order: bool,
    /// The available index up to which chains were taken.
    taken: u16,
    /// The available index as last read.
    offered: u16,
    /// The used index with the staged entries.
    staged: u16,
    /// The used index that the driver sees.
    published: u16,
    /// The used index at the last signal, or when last found that none was wanted.
    signalled: u16,
    used_log: Option<u64>,
}

// SAFETY: the pointers lead into memory that is shared with other processes anyway; the thread that holds them makes no
// difference.
unsafe impl Send for SplitRing {}

/// The host addresses of a split ring's descriptors, its available ring and its used ring. `None` when a part is not
/// all in one region or is not aligned, or the size is not a power of two up to [`MAX_SIZE`].
pub(super) fn parts(
    memory: &GuestMemory,
    addresses: &RingAddresses,
    size: u16,
) -> Option<[*mut u8; 3]> {
    if !size.is_power_of_two() || size > MAX_SIZE {
        return None;
    }
    let entries = u64::from(size);
    let (descriptors, _) = memory.at_user(addresses.descriptors, entries * 16, 16)?;
    let (available, _) = memory.at_user(addresses.available, 6 + entries * 2, 2)?;
    let (used, _) = memory.at_user(addresses.used, 6 + entries * 8, 4)?;
    Some([descriptors, available, used])
}

impl SplitRing {
    /// Resolves the addresses in `memory`. `base` is the first available index; the used index is read from the ring.
    /// `None` when a part of the ring is not all in one region or is not aligned, or the size is not a power of two up to
    /// [`MAX_SIZE`].
    pub fn new(
        memory: &GuestMemory,
        addresses: &RingAddresses,
        size: u16,
        base: u16,
        indirect: bool,
        event_idx: bool,
    ) -> Option<Self> {
        let [descriptors, available, used] = parts(memory, addresses, size)?;
        let mut ring = Self {
            descriptors: descriptors.cast_const().cast(),
            available: available.cast_const().cast(),
            used,
            size,
            mask: usize::from(size - 1),
            indirect,
            event_idx,
            in_order: false,
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

    /// Whether buffers that were only read may be returned by naming the last of a batch
    /// (VIRTIO_F_IN_ORDER).
    #[must_use]
    pub fn with_in_order(self, in_order: bool) -> Self {
        Self { in_order, ..self }
    }

    /// The available index up to which chains were taken: the base for GET_VRING_BASE.
    pub fn base(&self) -> u16 {
        self.taken
    }

    fn mask(&self, index: u16) -> usize {
        usize::from(index) & self.mask
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
        Ok(Descriptor::split(
            address.load(Ordering::Relaxed),
            rest.load(Ordering::Relaxed),
        ))
    }

    #[inline]
    fn walk(&self, head: u16, walk: &mut Walk<'_>) -> Result<(), RingFault> {
        let mut descriptor = self.descriptor(head)?;
        // A chain longer than its table loops.
        for _ in 0..self.size {
            if walk.step(descriptor, true, self.indirect)? {
                return Ok(());
            }
            descriptor = self.descriptor(descriptor.next)?;
        }
        Err(RingFault::Loop)
    }

    fn mark(&self, log: Option<&DirtyLog>, offset: u64) {
        if let (Some(log), Some(base)) = (log, self.used_log) {
            log.mark(base.wrapping_add(offset), 2);
        }
    }

    /// The next head that was offered.
    #[inline]
    fn next(&mut self) -> Result<Option<u16>, RingFault> {
        if self.offered == self.taken && self.look()? == 0 {
            return Ok(None);
        }
        let entry = self.available_u16(2 + self.mask(self.taken));
        Ok(Some(u16::from_le(entry.load(Ordering::Relaxed))))
    }

    /// Notes that the next chain is taken; returns its place.
    #[inline]
    fn advance(&mut self, id: u16) -> Place {
        let at = self.taken;
        self.taken = at.wrapping_add(1);
        Place { at, id, slots: 1 }
    }

    /// Asks for a kick at the chain with this available index, by event index.
    fn ask_at(&self, index: u16, log: Option<&DirtyLog>) {
        let offset = 4 + usize::from(self.size) * 8;
        self.used_u16(offset)
            .store(index.to_le(), Ordering::Relaxed);
        self.mark(log, offset as u64);
    }

    /// Writes the used element that is staged next.
    #[inline]
    fn stage(&mut self, id: u16, len: u32) {
        let element = self.mask(self.staged) * 2;
        self.used_u32(element)
            .store(u32::from(id).to_le(), Ordering::Relaxed);
        self.used_u32(element + 1)
            .store(len.to_le(), Ordering::Relaxed);
    }
}

impl Virtqueue for SplitRing {
    #[inline]
    fn size(&self) -> u16 {
        self.size
    }

    #[inline]
    fn waiting(&self) -> u16 {
        self.offered.wrapping_sub(self.taken)
    }

    #[inline]
    fn look(&mut self) -> Result<u16, RingFault> {
        // Acquire: the ring's entries and descriptors are read after the index that covers them.
        let offered = u16::from_le(self.available_u16(1).load(Ordering::Acquire));
        let waiting = offered.wrapping_sub(self.taken);
        if waiting > self.size {
            return Err(RingFault::AvailableIndex);
        }
        self.offered = offered;
        Ok(waiting)
    }

    #[inline]
    fn take(
        &mut self,
        memory: &GuestMemory,
        direction: Direction,
        segments: &mut Vec<Segment>,
    ) -> Result<Option<Chain>, RingFault> {
        let Some(head) = self.next()? else {
            return Ok(None);
        };
        let first = segments.len();
        let mut walk = Walk::new(memory, direction, segments);
        self.walk(head, &mut walk)?;
        let len = walk.len();
        let place = self.advance(head);
        Ok(Some(Chain::new(place, len, first, segments.len())))
    }

    // Always: a result that goes through memory is written in parts and read whole, and the read waits until all
    // earlier copies have left the store buffer.
    #[inline(always)]
    fn take_single(
        &mut self,
        memory: &GuestMemory,
        direction: Direction,
    ) -> Option<(Place, Segment)> {
        let head = self.next().ok()??;
        let segment = self.descriptor(head).ok()?.single(memory, direction)?;
        Some((self.advance(head), segment))
    }

    fn put_back(&mut self, _first: Place, chains: u16) {
        self.taken = self.taken.wrapping_sub(chains);
    }

    #[inline]
    fn give(&mut self, place: Place, len: u32) {
        self.stage(place.id, len);
        self.staged = self.staged.wrapping_add(1);
    }

    #[inline]
    fn give_read(&mut self, places: impl ExactSizeIterator<Item = Place>) {
        if !self.in_order {
            places.for_each(|place| self.give(place, 0));
            return;
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most the ring's size")]
        let count = places.len() as u16;
        if let Some(last) = places.last() {
            self.stage(last.id, 0);
            self.staged = self.staged.wrapping_add(count);
        }
    }

    #[inline]
    fn publish(&mut self, log: Option<&DirtyLog>) {
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
        // Release: the elements and all copies come before the index that covers them.
        self.used_u16(2)
            .store(self.staged.to_le(), Ordering::Release);
        self.published = self.staged;
        self.mark(log, 2);
    }

    #[inline]
    fn wants_signal(&mut self) -> bool {
        if self.published == self.signalled {
            return false;
        }
        // The driver writes its event and then reads the used index; the device does the reverse.
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

    fn signalled(&mut self) {
        self.signalled = self.published;
    }

    fn ask(&mut self, log: Option<&DirtyLog>) {
        if self.event_idx {
            self.ask_at(self.offered, log);
        } else {
            self.used_u16(0).store(0, Ordering::Relaxed);
            self.mark(log, 0);
        }
    }

    fn finds_more(&mut self) -> Result<bool, RingFault> {
        let before = self.offered;
        self.look()?;
        Ok(self.offered != before)
    }

    fn arm_at(&mut self, chains: u32, log: Option<&DirtyLog>) -> Result<bool, RingFault> {
        let chains = u16::try_from(chains).unwrap_or(u16::MAX);
        if !self.event_idx || !(1..=self.size).contains(&chains) {
            self.disarm(log);
            return Ok(false);
        }
        self.ask_at(self.taken.wrapping_add(chains - 1), log);
        // As in `arm`.
        fence(Ordering::SeqCst);
        Ok(self.look()? >= chains)
    }

    fn disarm(&mut self, log: Option<&DirtyLog>) {
        // With event indexes nothing is written: the old event was passed, and is not reached again for 65,536 chains;
        // or it is that of `arm_at`, which leads to one kick.
        if !self.event_idx {
            self.used_u16(0).store(NO_NOTIFY.to_le(), Ordering::Relaxed);
            self.mark(log, 0);
        }
    }
}
