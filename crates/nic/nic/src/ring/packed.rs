// SPDX-License-Identifier: Apache-2.0
//! The packed virtqueue (virtio 1.2, 2.8), over validated host pointers.
//!
//! Chains are taken in order and returned in order. Each used descriptor is written with one
//! atomic store, the first one of a batch last: the driver looks at none before it, so it sees a
//! batch at once.
//!
//! A packed ring has no index in memory from which a new back end could continue after a killed one, and front ends do
//! not know the position either. So the device's position is always in its event suppression structure, where drivers
//! read it only while it is also a valid event.

use super::descriptor::{Descriptor, NEXT, WRITE, Walk};
use super::shared::{AtomicU32, AtomicU64, fence};
use super::{Chain, Direction, MAX_SIZE, Place, RingAddresses, RingFault, Virtqueue};
use crate::features::Features;
use crate::memory::{DirtyLog, GuestMemory, Segment};
use std::sync::atomic::Ordering;

const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// Values of the flags of an event suppression structure.
const ENABLE: u16 = 0;
const DISABLE: u16 = 1;
const AT_DESCRIPTOR: u16 = 2;

/// Bytes of a descriptor, and of an event suppression structure.
const DESCRIPTOR: u64 = 16;
const EVENT: u64 = 4;

/// A place in the ring and the wrap counter there, as event suppression and vhost-user encode
/// both: the counter is bit 15.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Position {
    slot: u16,
    wrap: bool,
}

impl Position {
    /// `None` when it is past the end of a ring of `size` entries.
    fn from_bits(bits: u16, size: u16) -> Option<Self> {
        let slot = bits & (MAX_SIZE - 1);
        (slot < size).then_some(Self {
            slot,
            wrap: bits & MAX_SIZE != 0,
        })
    }

    #[inline]
    fn bits(self) -> u16 {
        self.slot | u16::from(self.wrap) << 15
    }

    /// `slots` further on, at most one lap.
    #[inline]
    fn after(self, slots: u16, size: u16) -> Self {
        let room = size - self.slot;
        if slots < room {
            Self {
                slot: self.slot + slots,
                wrap: self.wrap,
            }
        } else {
            Self {
                slot: slots - room,
                wrap: !self.wrap,
            }
        }
    }

    /// Slots from `earlier` to here, modulo two laps.
    #[inline]
    fn since(self, earlier: Self, size: u16) -> u32 {
        let number = |at: Self| u32::from(at.slot) + if at.wrap { u32::from(size) } else { 0 };
        let (late, early) = (number(self), number(earlier));
        if late >= early {
            late - early
        } else {
            late + 2 * u32::from(size) - early
        }
    }
}

/// The meaning of a descriptor's two bits for a side with a wrap counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// Not offered in this lap.
    Untouched,
    /// Offered by the driver.
    Available,
    /// Returned by the device.
    Returned,
    /// Offered for the next lap, or inside of a chain of the last one.
    Beyond,
}

impl Mark {
    #[inline]
    fn from_flags(flags: u16, wrap: bool) -> Self {
        match (
            (flags & AVAILABLE != 0) == wrap,
            (flags & USED != 0) == wrap,
        ) {
            (false, false) => Self::Untouched,
            (true, false) => Self::Available,
            (true, true) => Self::Returned,
            (false, true) => Self::Beyond,
        }
    }
}

/// A packed virtqueue that is started.
///
/// The pointers are valid while the [`GuestMemory`] that they were resolved in is unchanged: the
/// owner resolves anew, or drops the ring, before it changes memory.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub struct PackedRing {
    /// Two words each: the address; length, identifier and flags.
    descriptors: *const AtomicU64,
    /// Whether and when the driver wants to be signalled: position, then flags.
    driver_event: *const AtomicU32,
    /// Whether and when the device wants to be kicked.
    device_event: *const AtomicU32,
    size: u16,
    indirect: bool,
    event_idx: bool,
    in_order: bool,
    /// The next descriptor to take.
    taken: Position,
    /// The end of the chains that were seen to be available, and how many of them are not taken.
    seen: Position,
    waiting: u16,
    /// Where the next used descriptor goes.
    given: Position,
    /// The end of the descriptors that the driver sees.
    published: Position,
    /// Slots published since the last signal, or since last found that none was wanted; at most
    /// two laps.
    unsignalled: u32,
    /// Whether the driver was asked for a kick.
    armed: bool,
    /// The first used descriptor, with its slot, that the driver does not see yet.
    staged: Option<(u16, u64)>,
    /// The guest-physical addresses of ring and event, if writes there are logged.
    log: Option<(u64, u64)>,
}

// SAFETY: the pointers lead into memory that is shared with other processes anyway; the thread that holds them makes no
// difference.
unsafe impl Send for PackedRing {}

impl PackedRing {
    /// Resolves the addresses in `memory`. `base` is the start, in the encoding of SET_VRING_BASE, unless the ring
    /// itself has a valid position. `None` when a part is not all in one region or is not aligned, or the size or the
    /// base is invalid.
    pub fn new(
        memory: &GuestMemory,
        addresses: &RingAddresses,
        size: u16,
        base: u16,
        features: Features,
    ) -> Option<Self> {
        if !(1..=MAX_SIZE).contains(&size) {
            return None;
        }
        let bytes = u64::from(size) * DESCRIPTOR;
        let (descriptors, ring_log) = memory.at_user(addresses.descriptors, bytes, 16)?;
        let (driver_event, _) = memory.at_user(addresses.available, EVENT, 4)?;
        let (device_event, event_log) = memory.at_user(addresses.used, EVENT, 4)?;
        let base = Position::from_bits(base, size)?;
        let mut ring = Self {
            descriptors: descriptors.cast_const().cast(),
            driver_event: driver_event.cast_const().cast(),
            device_event: device_event.cast_const().cast(),
            size,
            indirect: features.has(Features::INDIRECT),
            event_idx: features.has(Features::EVENT_IDX),
            in_order: features.has(Features::IN_ORDER),
            taken: base,
            seen: base,
            waiting: 0,
            given: base,
            published: base,
            unsignalled: 0,
            armed: false,
            staged: None,
            log: addresses.used_log.map(|_| (ring_log, event_log)),
        };
        ring.move_to(ring.resume(base));
        Some(ring)
    }

    fn move_to(&mut self, position: Position) {
        self.taken = position;
        self.seen = position;
        self.waiting = 0;
        self.given = position;
        self.published = position;
    }

    /// The position from which to continue: the one noted in the ring if it is valid, else `base`. The note lags behind
    /// when a back end was killed between a publication and its note.
    fn resume(&self, base: Position) -> Position {
        #[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
        let noted = u32::from_le(self.device_event().load(Ordering::Acquire)) as u16;
        let Some(mut position) = Position::from_bits(noted, self.size) else {
            return base;
        };
        // The slot before a valid position was offered. Otherwise the note is older than the ring.
        let before = Position {
            slot: position.slot.checked_sub(1).unwrap_or(self.size - 1),
            wrap: position.wrap == (position.slot > 0),
        };
        if self.mark(before) == Mark::Untouched {
            return base;
        }
        // Later descriptors were already returned. Descriptors of another lap also count as returned if the driver has
        // offered the whole ring again; else they are remains of the last lap.
        let mut end = position;
        for _ in 0..=self.size {
            match self.mark(position) {
                Mark::Available => return position,
                Mark::Untouched => break,
                Mark::Returned => end = position.after(1, self.size),
                Mark::Beyond => {}
            }
            position = position.after(1, self.size);
        }
        end
    }

    /// The position up to which chains were returned: the base for GET_VRING_BASE.
    pub fn base(&self) -> u16 {
        self.published.bits()
    }

    /// Whether `slots` more are within a lap of the last returned descriptor. A driver that exceeds the lap offers a
    /// descriptor twice, which is a fault.
    #[inline]
    fn has_room(&self, slots: u16) -> bool {
        let open = self.taken.since(self.published, self.size);
        open + u32::from(slots) <= u32::from(self.size)
    }

    /// The words of a slot.
    #[inline]
    fn words(&self, slot: u16) -> (&AtomicU64, &AtomicU64) {
        let word = self.descriptors.wrapping_add(usize::from(slot) * 2);
        // SAFETY: `new` found 16 * size bytes here, aligned to 16, and every slot used is below
        // `size`, because `Position` is only made and moved within it. Atomics may be shared with
        // the guest.
        unsafe { (&*word, &*word.wrapping_add(1)) }
    }

    #[inline]
    fn driver_event(&self) -> &AtomicU32 {
        // SAFETY: `new` found 4 bytes here, aligned to 4. An atomic may be shared with the guest.
        unsafe { &*self.driver_event }
    }

    #[inline]
    fn device_event(&self) -> &AtomicU32 {
        // SAFETY: `new` found 4 bytes here, aligned to 4. An atomic may be shared with the guest.
        unsafe { &*self.device_event }
    }

    /// Length, identifier and flags of a slot, read once. Acquire: the data that these flags cover is read after them.
    #[inline]
    fn rest(&self, at: Position) -> u64 {
        self.words(at.slot).1.load(Ordering::Acquire)
    }

    #[inline]
    fn mark(&self, at: Position) -> Mark {
        Mark::from_flags(flags(self.rest(at)), at.wrap)
    }

    #[inline]
    fn descriptor(&self, at: Position, rest: u64) -> Descriptor {
        Descriptor::packed(self.words(at.slot).0.load(Ordering::Relaxed), rest)
    }

    /// The second word of the next descriptor, if it is available.
    #[inline]
    fn next(&mut self) -> Option<u64> {
        let rest = self.rest(self.taken);
        match Mark::from_flags(flags(rest), self.taken.wrap) {
            Mark::Available => Some(rest),
            Mark::Returned => self.next_not_returned(),
            Mark::Untouched | Mark::Beyond => None,
        }
    }

    /// Goes past descriptors that a back end returned before it was killed, while the first one of
    /// their batch was not yet.
    #[cold]
    fn next_not_returned(&mut self) -> Option<u64> {
        if self.taken != self.given || self.staged.is_some() {
            return None;
        }
        for _ in 0..self.size {
            let rest = self.rest(self.taken);
            match Mark::from_flags(flags(rest), self.taken.wrap) {
                Mark::Returned => self.move_to(self.taken.after(1, self.size)),
                Mark::Available => return Some(rest),
                Mark::Untouched | Mark::Beyond => return None,
            }
        }
        None
    }

    /// Notes that a chain of `slots` is taken.
    #[inline]
    fn advance(&mut self, slots: u16) {
        self.taken = self.taken.after(slots, self.size);
        if self.waiting > 0 {
            self.waiting -= 1;
        } else {
            self.seen = self.taken;
        }
    }

    /// Appends a chain from `rest` on, the second word of its first descriptor. Returns identifier and slots.
    #[inline]
    fn walk(&self, mut rest: u64, walk: &mut Walk<'_>) -> Result<(u16, u16), RingFault> {
        let mut at = self.taken;
        for slots in 1..=self.size {
            let descriptor = self.descriptor(at, rest);
            if walk.step(descriptor, false, self.indirect)? {
                return Ok((descriptor.next, slots));
            }
            at = at.after(1, self.size);
            rest = self.rest(at);
        }
        Err(RingFault::Loop)
    }

    /// The slots of the chain that begins at an available descriptor. A loop counts as the whole ring; taking the chain
    /// reports it.
    fn chain_slots(&self, at: Position) -> u16 {
        let mut end = at;
        for slots in 1..self.size {
            if flags(self.rest(end)) & NEXT == 0 {
                return slots;
            }
            end = end.after(1, self.size);
        }
        self.size
    }

    /// The flags of a note that asks for a kick at the next chain that is offered.
    fn kick(&self) -> u16 {
        // An event is the next descriptor to be offered, a note the next to be returned. They are
        // the same only when every chain that was offered is returned and published.
        if self.event_idx && self.seen == self.published {
            AT_DESCRIPTOR
        } else {
            ENABLE
        }
    }

    /// Writes the device's event suppression structure: whether to be kicked, and the position.
    fn note(&mut self, flags: u16, log: Option<&DirtyLog>) {
        let word = u32::from(self.published.bits()) | u32::from(flags) << 16;
        // Release: a note never runs ahead of the ring.
        self.device_event().store(word.to_le(), Ordering::Release);
        self.armed = flags != DISABLE;
        if let (Some(log), Some((_, event))) = (log, self.log) {
            log.mark(event, EVENT);
        }
    }

    /// Marks the slots since the last publication, in one or two pieces.
    #[cold]
    fn mark_returned(&self, log: &DirtyLog, ring: u64) {
        let slots = self.given.since(self.published, self.size);
        let room = u32::from(self.size - self.published.slot);
        let (here, around) = (slots.min(room), slots.saturating_sub(room));
        let first = ring + u64::from(self.published.slot) * DESCRIPTOR;
        log.mark(first, u64::from(here) * DESCRIPTOR);
        if around > 0 {
            log.mark(ring, u64::from(around) * DESCRIPTOR);
        }
    }

    /// Stages a used descriptor for `slots` slots.
    #[inline]
    fn stage(&mut self, id: u16, len: u32, slots: u16) {
        let phase = if self.given.wrap { AVAILABLE | USED } else { 0 };
        let flags = phase | if len > 0 { WRITE } else { 0 };
        let rest = u64::from(len) | u64::from(id) << 32 | u64::from(flags) << 48;
        let (slot, rest) = (self.given.slot, rest.to_le());
        if self.staged.is_none() {
            self.staged = Some((slot, rest));
        } else {
            self.words(slot).1.store(rest, Ordering::Relaxed);
        }
        self.given = self.given.after(slots, self.size);
    }
}

/// The flags in a descriptor's second word.
#[inline]
fn flags(rest: u64) -> u16 {
    (u64::from_le(rest) >> 48) as u16
}

impl Virtqueue for PackedRing {
    #[inline]
    fn size(&self) -> u16 {
        self.size
    }

    #[inline]
    fn waiting(&self) -> u16 {
        self.waiting
    }

    fn look(&mut self) -> Result<u16, RingFault> {
        // Known descriptors are not read again, so that each is read once.
        let mut ahead = self.seen.since(self.taken, self.size);
        while ahead < u32::from(self.size) {
            let flags = flags(self.rest(self.seen));
            if Mark::from_flags(flags, self.seen.wrap) != Mark::Available {
                break;
            }
            let slots = if flags & NEXT == 0 {
                1
            } else {
                self.chain_slots(self.seen)
            };
            ahead += u32::from(slots);
            self.seen = self.seen.after(slots, self.size);
            self.waiting = self.waiting.saturating_add(1);
        }
        Ok(self.waiting)
    }

    #[inline]
    fn take(
        &mut self,
        memory: &GuestMemory,
        direction: Direction,
        segments: &mut Vec<Segment>,
    ) -> Result<Option<Chain>, RingFault> {
        let Some(rest) = self.next() else {
            return Ok(None);
        };
        let at = self.taken.bits();
        let first = segments.len();
        let mut walk = Walk::new(memory, direction, segments);
        let (id, slots) = self.walk(rest, &mut walk)?;
        if !self.has_room(slots) {
            return Err(RingFault::AvailableIndex);
        }
        let len = walk.len();
        self.advance(slots);
        let place = Place { at, id, slots };
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
        let rest = self.next()?;
        if !self.has_room(1) {
            return None;
        }
        let descriptor = self.descriptor(self.taken, rest);
        let segment = descriptor.single(memory, direction)?;
        let place = Place {
            at: self.taken.bits(),
            id: descriptor.next,
            slots: 1,
        };
        self.advance(1);
        Some((place, segment))
    }

    fn put_back(&mut self, first: Place, chains: u16) {
        if let Some(position) = Position::from_bits(first.at, self.size)
            && chains > 0
        {
            self.taken = position;
            self.waiting = self.waiting.saturating_add(chains);
        }
    }

    #[inline]
    fn give(&mut self, place: Place, len: u32) {
        self.stage(place.id, len, place.slots);
    }

    #[inline]
    fn give_read(&mut self, places: impl ExactSizeIterator<Item = Place>) {
        if !self.in_order {
            places.for_each(|place| self.give(place, 0));
            return;
        }
        let batch = places.fold(None, |sum: Option<(u16, u16)>, place| {
            Some((place.id, sum.map_or(0, |(_, slots)| slots) + place.slots))
        });
        if let Some((id, slots)) = batch {
            self.stage(id, 0, slots);
        }
    }

    fn publish(&mut self, log: Option<&DirtyLog>) {
        let Some((slot, rest)) = self.staged.take() else {
            return;
        };
        // Release: the other descriptors and all copies come before the first descriptor, without which the driver
        // reads none of them.
        self.words(slot).1.store(rest, Ordering::Release);
        if let (Some(log), Some((ring, _))) = (log, self.log) {
            self.mark_returned(log, ring);
        }
        let slots = self.given.since(self.published, self.size);
        self.published = self.given;
        self.unsignalled = (self.unsignalled + slots).min(2 * u32::from(self.size));
        // An armed ring stays armed: chains offered since the last note have caused a kick.
        self.note(if self.armed { self.kick() } else { DISABLE }, log);
    }

    #[inline]
    fn wants_signal(&mut self) -> bool {
        if self.unsignalled == 0 {
            return false;
        }
        // The driver writes its event and then reads descriptors; the device does the reverse.
        fence(Ordering::SeqCst);
        let event = u32::from_le(self.driver_event().load(Ordering::Relaxed));
        #[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
        let (position, flags) = (event as u16, (event >> 16) as u16);
        let wants = match flags {
            DISABLE => false,
            AT_DESCRIPTOR if self.event_idx => {
                // One past the ring is never reached.
                Position::from_bits(position, self.size).is_some_and(|event| {
                    let passed = self.published.since(event, self.size);
                    (1..=self.unsignalled).contains(&passed)
                })
            }
            _ => true,
        };
        if !wants {
            self.unsignalled = 0;
        }
        wants
    }

    fn signalled(&mut self) {
        self.unsignalled = 0;
    }

    fn ask(&mut self, log: Option<&DirtyLog>) {
        self.note(self.kick(), log);
    }

    fn finds_more(&mut self) -> Result<bool, RingFault> {
        let before = self.waiting;
        Ok(self.look()? != before)
    }

    fn arm_at(&mut self, _chains: u32, log: Option<&DirtyLog>) -> Result<bool, RingFault> {
        // Its events refer to descriptors, and a chain has any number of them.
        self.disarm(log);
        Ok(false)
    }

    fn disarm(&mut self, log: Option<&DirtyLog>) {
        self.note(DISABLE, log);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All positions of a ring.
    fn positions(size: u16) -> impl Iterator<Item = Position> {
        (0..size).flat_map(|slot| [false, true].map(|wrap| Position { slot, wrap }))
    }

    #[test]
    fn no_step_from_any_position_leaves_a_small_ring_or_loses_its_lap() {
        for size in 1..=17 {
            for from in positions(size) {
                assert_eq!(Position::from_bits(from.bits(), size), Some(from));
                let mut by_ones = from;
                for steps in 0..=size {
                    let to = from.after(steps, size);
                    assert!(
                        to == by_ones && to.slot < size,
                        "{from:?} + {steps} of {size}"
                    );
                    assert_eq!(to.since(from, size), u32::from(steps));
                    by_ones = by_ones.after(1, size);
                }
                // Two laps are one turn of slot and wrap counter together.
                assert_eq!(from.after(size, size).after(size, size), from);
            }
        }
    }

    #[test]
    fn no_step_leaves_a_ring_of_the_largest_sizes() {
        for size in [MAX_SIZE - 1, MAX_SIZE] {
            for slot in [0, 1, size / 2, size - 2, size - 1] {
                for steps in [0, 1, 2, size / 2, size - 2, size - 1, size] {
                    let from = Position { slot, wrap: true };
                    let to = from.after(steps, size);
                    assert!(to.slot < size);
                    assert_eq!(to.since(from, size), u32::from(steps));
                }
            }
        }
    }

    #[test]
    fn no_bits_are_a_position_past_the_end() {
        for size in (1..=17).chain([MAX_SIZE - 1, MAX_SIZE]) {
            for bits in 0..=u16::MAX {
                let slot = bits & 0x7fff;
                let position = Position::from_bits(bits, size);
                assert_eq!(position.is_some(), slot < size, "{bits:#x} of {size}");
                assert!(position.is_none_or(|position| position.bits() == bits));
            }
        }
    }
}
