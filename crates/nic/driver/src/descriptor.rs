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
    /// The descriptor as 16 bytes.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.flags.to_le_bytes());
        bytes[14..].copy_from_slice(&self.next.to_le_bytes());
        bytes
    }

    /// The inverse of [`Descriptor::to_bytes`].
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let [
            a0,
            a1,
            a2,
            a3,
            a4,
            a5,
            a6,
            a7,
            l0,
            l1,
            l2,
            l3,
            f0,
            f1,
            n0,
            n1,
        ] = bytes;
        Self {
            address: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            len: u32::from_le_bytes([l0, l1, l2, l3]),
            flags: u16::from_le_bytes([f0, f1]),
            next: u16::from_le_bytes([n0, n1]),
        }
    }
}
