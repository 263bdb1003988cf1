// SPDX-License-Identifier: Apache-2.0
//! A virtqueue, split (virtio 1.2, 2.7) or packed (2.8), from the driver's side.

use std::sync::atomic::{Ordering, fence};

use crate::descriptor::{Descriptor, NEXT};
use crate::memory::GuestMemory;
use crate::packed::PackedRing;
use vtax_nic::ring::passed;

const NO_INTERRUPT: u16 = 1;
const NO_NOTIFY: u16 = 1;

/// A ring. It holds the driver's indexes; the caller manages the descriptors.
#[derive(Clone, Copy, Debug)]
pub struct DriverRing {
    /// The number of entries.
    pub size: u16,
    /// Guest-physical address of the descriptor table.
    pub descriptors: u64,
    /// Guest-physical address of the available ring.
    pub available: u64,
    /// Guest-physical address of the used ring.
    pub used: u64,
    event_idx: bool,
    next_available: u16,
    published: u16,
    seen: u16,
    /// The packed ring, if it is one. The descriptor table is then private.
    packed: Option<PackedRing>,
}

impl DriverRing {
    /// Allocates a new ring in `memory`.
    pub fn new(memory: &mut GuestMemory, size: u16, event_idx: bool) -> Self {
        let entries = usize::from(size);
        Self {
            size,
            descriptors: memory.allocate(16 * entries),
            available: memory.allocate(6 + 2 * entries),
            used: memory.allocate(6 + 8 * entries),
            event_idx,
            next_available: 0,
            published: 0,
            seen: 0,
            packed: None,
        }
    }

    /// Allocates a new packed ring in `memory`.
    pub fn packed(memory: &mut GuestMemory, size: u16, event_idx: bool) -> Self {
        let ring = PackedRing::new(memory, size, event_idx);
        Self {
            packed: Some(ring),
            ..Self::new(memory, size, event_idx)
        }
    }

    /// The argument of SET_VRING_BASE for the new ring.
    pub fn base(&self) -> u32 {
        self.packed.map_or(0, |_| PackedRing::START)
    }

    /// The guest-physical addresses of descriptors, device's part and driver's part.
    pub fn addresses(&self) -> [u64; 3] {
        self.packed
            .map_or([self.descriptors, self.used, self.available], |ring| {
                ring.addresses()
            })
    }

    /// The descriptors of the chain that starts at a head.
    fn chain(&self, memory: &GuestMemory, head: u16) -> impl Iterator<Item = Descriptor> {
        let described = |index: u16| {
            let mut bytes = [0; 16];
            memory.read(self.descriptors + 16 * u64::from(index), &mut bytes);
            Descriptor::from_bytes(bytes)
        };
        let next = move |descriptor: &Descriptor| {
            (descriptor.flags & NEXT != 0).then(|| described(descriptor.next))
        };
        std::iter::successors(Some(described(head)), next).take(self.size.into())
    }

    /// Writes a descriptor.
    pub fn describe(&self, memory: &GuestMemory, index: u16, descriptor: Descriptor) {
        let at = self.descriptors + 16 * u64::from(index);
        memory.write(at, &descriptor.to_bytes());
    }

    /// Adds a chain to the available ring, where it is not yet visible to the device.
    pub fn offer(&mut self, memory: &GuestMemory, head: u16) {
        if let Some(mut ring) = self.packed {
            for descriptor in self.chain(memory, head) {
                ring.offer(memory, head, descriptor);
            }
            self.packed = Some(ring);
        } else {
            let slot = u64::from(self.next_available % self.size);
            memory.store(self.available + 4 + 2 * slot, head, Ordering::Relaxed);
        }
        self.next_available = self.next_available.wrapping_add(1);
    }

    /// Makes all offered chains visible. Returns whether the device wants a kick.
    pub fn publish(&mut self, memory: &GuestMemory) -> bool {
        let new = self.next_available;
        let old = std::mem::replace(&mut self.published, new);
        if let Some(ring) = &mut self.packed {
            return ring.publish(memory);
        }
        memory.store(self.available + 2, new, Ordering::Release);
        // Orders the store above before the load below. Otherwise both sides may sleep.
        fence(Ordering::SeqCst);
        if self.event_idx {
            let event = memory.load(self.avail_event(), Ordering::Relaxed);
            passed(event, new, old)
        } else {
            memory.load(self.used, Ordering::Relaxed) & NO_NOTIFY == 0
        }
    }

    /// The next used entry: a head and the bytes written.
    pub fn take_used(&mut self, memory: &GuestMemory) -> Option<(u16, u32)> {
        if !self.has_used(memory) {
            return None;
        }
        let slot = u64::from(self.seen % self.size);
        self.seen = self.seen.wrapping_add(1);
        if let Some(mut ring) = self.packed {
            let (id, len) = ring.used(memory);
            #[expect(clippy::cast_possible_truncation, reason = "at most the ring's size")]
            ring.skip(self.chain(memory, id).count() as u16);
            self.packed = Some(ring);
            return Some((id, len));
        }
        let mut entry = [0; 8];
        memory.read(self.used + 4 + 8 * slot, &mut entry);
        let word = u64::from_le_bytes(entry);
        Some((word as u16, (word >> 32) as u32))
    }

    /// Whether there is a used entry that the driver has not taken.
    pub fn has_used(&self, memory: &GuestMemory) -> bool {
        if let Some(ring) = &self.packed {
            return ring.has_used(memory);
        }
        memory.load(self.used + 2, Ordering::Acquire) != self.seen
    }

    /// Requests a call at the next used entry. The caller checks the ring afterwards, because an entry may have come
    /// before.
    pub fn enable_calls(&self, memory: &GuestMemory) {
        if let Some(ring) = &self.packed {
            ring.enable_calls(memory);
        } else if self.event_idx {
            memory.store(self.used_event(), self.seen, Ordering::Release);
        } else {
            memory.store(self.available, 0, Ordering::Release);
        }
        fence(Ordering::SeqCst);
    }

    /// Suppresses calls as far as the ring can: with EVENT_IDX, for the next 2¹⁶ - 1 entries.
    pub fn disable_calls(&self, memory: &GuestMemory) {
        if let Some(ring) = &self.packed {
            ring.disable_calls(memory);
        } else if self.event_idx {
            let passed = self.seen.wrapping_sub(1);
            memory.store(self.used_event(), passed, Ordering::Release);
        } else {
            memory.store(self.available, NO_INTERRUPT, Ordering::Release);
        }
    }

    /// The available index that is visible to the device.
    pub fn published(&self) -> u16 {
        self.published
    }

    /// Offered entries that the device has not returned.
    pub fn outstanding(&self) -> u16 {
        self.next_available.wrapping_sub(self.seen)
    }

    /// Address of the driver's `used_event`.
    pub fn used_event(&self) -> u64 {
        self.available + 4 + 2 * u64::from(self.size)
    }

    /// Address of the device's `avail_event`.
    pub fn avail_event(&self) -> u64 {
        self.used + 4 + 8 * u64::from(self.size)
    }
}
