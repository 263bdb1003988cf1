// SPDX-License-Identifier: Apache-2.0
//! A split ring that the kernel serves, with the positions of both sides.

use super::shared::{AtomicU16, fence};
use super::split::{NO_INTERRUPT, parts};
use super::{RingAddresses, passed};
use crate::features::Features;
use crate::memory::GuestMemory;
use std::sync::atomic::Ordering;

/// A read-only view of a ring.
///
/// As with [`SplitRing`](super::SplitRing), the owner drops it before it changes memory.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub struct RingView {
    /// `flags`, `idx`, the ring, `used_event`: all 16 bits.
    available: *const AtomicU16,
    /// `flags`, `idx`.
    used: *const AtomicU16,
    descriptors: u64,
    size: u16,
    event_idx: bool,
    /// The used index at the last signal, or when last found that none was wanted.
    signalled: u16,
    /// The used index when last asked whether a signal was wanted.
    asked: u16,
}

// SAFETY: as for `SplitRing`: the memory is shared with other processes anyway.
unsafe impl Send for RingView {}

impl RingView {
    /// Resolves the addresses in `memory`; `None` where `SplitRing::new` gives none.
    pub fn new(
        memory: &GuestMemory,
        addresses: &RingAddresses,
        size: u16,
        features: Features,
    ) -> Option<Self> {
        let [descriptors, available, used] = parts(memory, addresses, size)?;
        let mut view = Self {
            available: available.cast_const().cast(),
            used: used.cast_const().cast(),
            descriptors: descriptors.addr() as u64,
            size,
            event_idx: features.has(Features::EVENT_IDX),
            signalled: 0,
            asked: 0,
        };
        view.leave_to_others();
        Some(view)
    }

    /// The same parts, as addresses of this process.
    pub fn addresses(&self, used_log: Option<u64>) -> RingAddresses {
        RingAddresses {
            descriptors: self.descriptors,
            available: self.available.addr() as u64,
            used: self.used.addr() as u64,
            used_log,
        }
    }

    /// Entries.
    pub fn size(&self) -> u16 {
        self.size
    }

    fn available_u16(&self, index: usize) -> u16 {
        // SAFETY: `new` found 6 + 2 * size bytes here, aligned to 2; the indexes used are 0, 1 and
        // 2 + size. An atomic may be shared with the guest.
        let field = unsafe { &*self.available.wrapping_add(index) };
        u16::from_le(field.load(Ordering::Acquire))
    }

    /// The available index: how many buffers the driver has offered.
    pub fn offered(&self) -> u16 {
        self.available_u16(1)
    }

    /// The used index: how many of them were returned.
    pub fn used(&self) -> u16 {
        // SAFETY: `new` found more than 4 bytes here, aligned to 4. An atomic may be shared.
        let field = unsafe { &*self.used.wrapping_add(1) };
        u16::from_le(field.load(Ordering::Acquire))
    }

    /// Whether the driver wants a signal for the buffers returned since the last one. If not, these buffers need no
    /// later signal.
    pub fn wants_signal(&mut self) -> bool {
        let used = self.used();
        self.asked = used;
        // The driver writes its event and then reads the index; this side does the reverse.
        fence(Ordering::SeqCst);
        let wants = if used == self.signalled {
            false
        } else if self.event_idx {
            let event = self.available_u16(2 + usize::from(self.size));
            passed(event, used, self.signalled)
        } else {
            self.available_u16(0) & NO_INTERRUPT == 0
        };
        if !wants {
            self.signalled = used;
        }
        wants
    }

    /// Notes that the driver was signalled for the buffers returned up to the last `wants_signal`. Buffers
    /// returned since then may have missed that signal: the driver may have checked the ring before, and wait again.
    pub fn signalled(&mut self) {
        self.signalled = self.asked;
    }

    /// Notes that the kernel signals the driver for all returned buffers.
    pub fn leave_to_others(&mut self) {
        self.signalled = self.used();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Driver, Ring, SIZE};

    #[test]
    fn what_is_returned_while_the_driver_is_being_signalled_is_signalled_as_well() {
        const RING: Ring = Ring(0);
        let driver = Driver::new();
        let memory = driver.device_memory();
        let mut view =
            RingView::new(&memory, &RING.addresses(), SIZE, Features::EVENT_IDX).unwrap();
        let returned = |index: u16| driver.write(RING.used() + 2, &index.to_le_bytes());
        returned(1);
        assert!(view.wants_signal());
        // The signal was sent: the driver has checked the ring already, and waits for the next signal.
        RING.set_used_event(&driver, 1);
        returned(2);
        view.signalled();
        assert!(view.wants_signal());
        view.signalled();
        assert!(!view.wants_signal());
    }
}
