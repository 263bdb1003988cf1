//! A split virtqueue (virtio 1.2, 2.7), from the driver's side.

use std::sync::atomic::{Ordering, fence};

use crate::memory::GuestMemory;

/// VIRTQ_DESC_F_NEXT.
pub const NEXT: u16 = 1;
/// VIRTQ_DESC_F_WRITE.
pub const WRITE: u16 = 2;
/// VIRTQ_DESC_F_INDIRECT.
pub const INDIRECT: u16 = 4;

const NO_INTERRUPT: u16 = 1;
const NO_NOTIFY: u16 = 1;

/// A descriptor as it lies in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Guest-physical address.
    pub address: u64,
    /// Bytes.
    pub len: u32,
    /// [`NEXT`], [`WRITE`], [`INDIRECT`].
    pub flags: u16,
    /// The next descriptor's index.
    pub next: u16,
}

impl Descriptor {
    /// The 16 bytes of it.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.flags.to_le_bytes());
        bytes[14..].copy_from_slice(&self.next.to_le_bytes());
        bytes
    }
}

/// A ring. It keeps the driver's indexes; descriptors are the caller's to manage.
#[derive(Clone, Copy, Debug)]
pub struct DriverRing {
    /// Entries.
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
}

impl DriverRing {
    /// A new ring in `memory`.
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
        }
    }

    /// Writes a descriptor.
    pub fn describe(&self, memory: &GuestMemory, index: u16, descriptor: Descriptor) {
        memory.write(
            self.descriptors + 16 * u64::from(index),
            &descriptor.to_bytes(),
        );
    }

    /// Puts a chain into the available ring, not yet visible to the device.
    pub fn offer(&mut self, memory: &GuestMemory, head: u16) {
        let slot = u64::from(self.next_available % self.size);
        memory.store(self.available + 4 + 2 * slot, head, Ordering::Relaxed);
        self.next_available = self.next_available.wrapping_add(1);
    }

    /// Makes everything offered visible. Tells whether the device wants a kick.
    pub fn publish(&mut self, memory: &GuestMemory) -> bool {
        let (old, new) = (self.published, self.next_available);
        memory.store(self.available + 2, new, Ordering::Release);
        self.published = new;
        // The store above before the load below, or both sides may sleep.
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
        let mut entry = [0; 8];
        memory.read(self.used + 4 + 8 * slot, &mut entry);
        self.seen = self.seen.wrapping_add(1);
        let [i0, i1, _, _, l0, l1, l2, l3] = entry;
        Some((
            u16::from_le_bytes([i0, i1]),
            u32::from_le_bytes([l0, l1, l2, l3]),
        ))
    }

    /// Whether there is a used entry that was not taken.
    pub fn has_used(&self, memory: &GuestMemory) -> bool {
        memory.load(self.used + 2, Ordering::Acquire) != self.seen
    }

    /// Asks for a call at the next used entry. Look once more afterwards: one may have come before.
    pub fn enable_calls(&self, memory: &GuestMemory) {
        if self.event_idx {
            memory.store(self.used_event(), self.seen, Ordering::Release);
        } else {
            memory.store(self.available, 0, Ordering::Release);
        }
        fence(Ordering::SeqCst);
    }

    /// Asks for no calls, as well as the ring allows: with EVENT_IDX, not before 2¹⁶ - 1 entries.
    pub fn disable_calls(&self, memory: &GuestMemory) {
        if self.event_idx {
            memory.store(
                self.used_event(),
                self.seen.wrapping_sub(1),
                Ordering::Release,
            );
        } else {
            memory.store(self.available, NO_INTERRUPT, Ordering::Release);
        }
    }

    /// The available index that is visible to the device.
    pub fn published(&self) -> u16 {
        self.published
    }

    /// Entries offered that have not come back.
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

/// Whether an index that went from `old` to `new` has passed `event` (virtio 1.2, 2.7.7.2).
fn passed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
