//! A split ring that the kernel serves: where it is, and how far both sides are.

use super::split::NO_INTERRUPT;
use super::{RingAddresses, passed};
use crate::features::Features;
use crate::memory::GuestMemory;
use std::sync::atomic::{AtomicU16, Ordering, fence};

/// Looks at a ring and changes nothing in it.
///
/// As with [`SplitRing`](super::SplitRing), the owner drops it before it changes memory.
#[derive(Debug)]
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
        if !size.is_power_of_two() || size > super::MAX_SIZE {
            return None;
        }
        let entries = u64::from(size);
        let (descriptors, _) = memory.at_user(addresses.descriptors, entries * 16, 16)?;
        let (available, _) = memory.at_user(addresses.available, 6 + entries * 2, 2)?;
        let (used, _) = memory.at_user(addresses.used, 6 + entries * 8, 4)?;
        let mut view = Self {
            available: available.cast_const().cast(),
            used: used.cast_const().cast(),
            descriptors: descriptors.addr() as u64,
            size,
            event_idx: features.has(Features::EVENT_IDX),
            signalled: 0,
        };
        view.signalled = view.used();
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

    /// Whether the driver wants a signal for what was returned since the last. If it does not, that
    /// is settled.
    pub fn wants_signal(&mut self) -> bool {
        let used = self.used();
        // Against the driver's order, which writes its event and then reads the index.
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

    /// Notes that the driver was signalled for all that is returned.
    pub fn signalled(&mut self) {
        self.signalled = self.used();
    }
}
