// SPDX-License-Identifier: Apache-2.0
//! A descriptor of a split virtqueue (virtio 1.2, 2.7.5).

/// VIRTQ_DESC_F_NEXT.
pub const NEXT: u16 = 1;
/// VIRTQ_DESC_F_WRITE.
pub const WRITE: u16 = 2;
/// VIRTQ_DESC_F_INDIRECT.
pub const INDIRECT: u16 = 4;

/// A descriptor in its layout in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// The guest-physical address of the buffer.
    pub address: u64,
    /// The length of the buffer in bytes.
    pub len: u32,
    /// [`NEXT`], [`WRITE`], [`INDIRECT`].
    pub flags: u16,
    /// The next descriptor's index.
    pub next: u16,
}

impl Descriptor {
    /// A descriptor of a buffer that is a whole chain.
    pub const fn from_address(address: u64, len: u32) -> Self {
        Self {
            address,
            len,
            flags: 0,
            next: 0,
        }
    }

    /// The same with these flags.
    #[must_use]
    pub const fn flagged(self, flags: u16) -> Self {
        Self { flags, ..self }
    }

    /// The same with another descriptor after it in the chain.
    #[must_use]
    pub const fn before(self, next: u16) -> Self {
        Self { next, ..self }.flagged(self.flags | NEXT)
    }

    /// The descriptor as 16 bytes.
    pub fn to_bytes(self) -> [u8; 16] {
        let rest = u64::from(self.len) | u64::from(self.flags) << 32 | u64::from(self.next) << 48;
        (u128::from(self.address) | u128::from(rest) << 64).to_le_bytes()
    }

    /// The inverse of [`Descriptor::to_bytes`].
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let word = u128::from_le_bytes(bytes);
        Self {
            address: word as u64,
            len: (word >> 64) as u32,
            flags: (word >> 96) as u16,
            next: (word >> 112) as u16,
        }
    }
}
