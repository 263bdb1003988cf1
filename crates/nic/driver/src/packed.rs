// SPDX-License-Identifier: Apache-2.0
//! A packed virtqueue (virtio 1.2, 2.8), from the driver's side.

use std::sync::atomic::{Ordering, fence};

use crate::descriptor::Descriptor;
use crate::memory::GuestMemory;

const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// Flag values of an event suppression structure.
const ENABLE: u16 = 0;
const DISABLE: u16 = 1;
const AT_DESCRIPTOR: u16 = 2;

/// A slot, and the wrap counter at that slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    slot: u16,
    wrap: bool,
}

impl Position {
    const START: Self = Self {
        slot: 0,
        wrap: true,
    };

    fn after(self, slots: u16, size: u16) -> Self {
        let slot = u32::from(self.slot) + u32::from(slots);
        #[expect(clippy::cast_possible_truncation, reason = "less than the ring's size")]
        Self {
            slot: (slot % u32::from(size)) as u16,
            wrap: self.wrap == (slot < u32::from(size)),
        }
    }

    fn bits(self) -> u16 {
        self.slot | u16::from(self.wrap) << 15
    }
}

/// A packed ring.
#[derive(Clone, Copy, Debug)]
pub struct PackedRing {
    size: u16,
    ring: u64,
    driver_event: u64,
    device_event: u64,
    event_idx: bool,
    next: Position,
    seen: Position,
    /// The first descriptor that is not yet visible to the device, with its flags.
    hidden: Option<(Position, u16)>,
}

impl PackedRing {
    /// The argument of SET_VRING_BASE for a new ring: slot 0, wrap counter 1, for either side.
    pub const START: u32 = 0x8000_8000;

    /// Allocates a new ring in `memory`.
    pub fn new(memory: &mut GuestMemory, size: u16, event_idx: bool) -> Self {
        Self {
            size,
            ring: memory.allocate(16 * usize::from(size)),
            driver_event: memory.allocate(4),
            device_event: memory.allocate(4),
            event_idx,
            next: Position::START,
            seen: Position::START,
            hidden: None,
        }
    }

    /// The guest-physical addresses of ring, device's and driver's event suppression.
    pub fn addresses(&self) -> [u64; 3] {
        [self.ring, self.device_event, self.driver_event]
    }

    fn slot(&self, position: Position) -> u64 {
        self.ring + 16 * u64::from(position.slot)
    }

    /// Writes the next descriptor of the chain `id`. The first one after a publication stays invisible, and with it
    /// all later ones.
    pub fn offer(&mut self, memory: &GuestMemory, id: u16, descriptor: Descriptor) {
        let phase = if self.next.wrap { AVAILABLE } else { USED };
        let flags = descriptor.flags | phase;
        let at = self.slot(self.next);
        memory.write(at, &descriptor.address.to_le_bytes());
        memory.write(at + 8, &descriptor.len.to_le_bytes());
        memory.store(at + 12, id, Ordering::Relaxed);
        if self.hidden.is_none() {
            self.hidden = Some((self.next, flags));
        } else {
            memory.store(at + 14, flags, Ordering::Relaxed);
        }
        self.next = self.next.after(1, self.size);
    }

    /// Makes all offered descriptors visible. Returns whether the device wants a kick.
    pub fn publish(&mut self, memory: &GuestMemory) -> bool {
        let Some((first, flags)) = self.hidden.take() else {
            return false;
        };
        memory.store(self.slot(first) + 14, flags, Ordering::Release);
        // Orders the store above before the loads below. Otherwise both sides may sleep.
        fence(Ordering::SeqCst);
        match memory.load(self.device_event + 2, Ordering::Acquire) {
            DISABLE => false,
            AT_DESCRIPTOR if self.event_idx => {
                let event = memory.load(self.device_event, Ordering::Relaxed);
                let mut position = first;
                while position != self.next {
                    if position.bits() == event {
                        return true;
                    }
                    position = position.after(1, self.size);
                }
                false
            }
            _ => true,
        }
    }

    /// Whether the device has returned the next chain.
    pub fn has_used(&self, memory: &GuestMemory) -> bool {
        let flags = memory.load(self.slot(self.seen) + 14, Ordering::Acquire);
        (flags & AVAILABLE != 0) == self.seen.wrap && (flags & USED != 0) == self.seen.wrap
    }

    /// The identifier of the returned chain, and the bytes written.
    pub fn used(&self, memory: &GuestMemory) -> (u16, u32) {
        let mut len = [0; 4];
        let at = self.slot(self.seen);
        memory.read(at + 8, &mut len);
        let id = memory.load(at + 12, Ordering::Relaxed);
        (id, u32::from_le_bytes(len))
    }

    /// Skips a returned chain of `slots` descriptors.
    pub fn skip(&mut self, slots: u16) {
        self.seen = self.seen.after(slots, self.size);
    }

    /// Requests a call at the next returned chain.
    pub fn enable_calls(&self, memory: &GuestMemory) {
        let kind = if self.event_idx {
            AT_DESCRIPTOR
        } else {
            ENABLE
        };
        memory.store(self.driver_event, self.seen.bits(), Ordering::Relaxed);
        memory.store(self.driver_event + 2, kind, Ordering::Release);
    }

    /// Suppresses calls.
    pub fn disable_calls(&self, memory: &GuestMemory) {
        memory.store(self.driver_event + 2, DISABLE, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::NEXT;

    #[test]
    fn a_chain_is_hidden_until_published_and_comes_back_once() {
        let mut memory = GuestMemory::new(1 << 16).unwrap();
        let mut ring = PackedRing::new(&mut memory, 3, true);
        for lap in 0..5 {
            let at = ring.slot(ring.next);
            let before = memory.load(at + 14, Ordering::Relaxed);
            let descriptor = |flags| Descriptor {
                flags,
                ..Descriptor::default()
            };
            ring.offer(&memory, 7, descriptor(NEXT));
            ring.offer(&memory, 7, descriptor(0));
            assert_eq!(memory.load(at + 14, Ordering::Relaxed), before);
            assert!(ring.publish(&memory), "kicks are enabled");
            assert!(!ring.has_used(&memory), "lap {lap}");
            let phase = if ring.seen.wrap { AVAILABLE | USED } else { 0 };
            memory.store(at + 14, phase, Ordering::Relaxed);
            assert!(ring.has_used(&memory));
            assert_eq!(ring.used(&memory).0, 7);
            ring.skip(2);
            assert!(!ring.has_used(&memory));
        }
    }
}
