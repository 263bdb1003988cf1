// SPDX-License-Identifier: Apache-2.0
//! Ethernet frames and their virtio-net headers, and the offloads that a sender uses and a receiver does not support.

mod checksum;
mod header;
mod layers;
mod merge;
mod segment;
#[cfg(test)]
pub(crate) mod testing;

pub use checksum::{complete, sum};
pub use header::{GsoKind, HEADER_LEN, NetHeader, Offloads, Refusal};
pub use merge::{MAX_HEADERS, Stream, TcpSegment};
pub use segment::segment;

/// The longest frame: a TSO frame of 64 KiB with Ethernet header and tags.
pub const MAX_FRAME: usize = 65_536 + 32;

/// Bytes of an Ethernet header.
pub const ETHERNET: usize = 14;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// The RARP request that announces a migrated guest to switches (RFC 903 with the guest's own address in every place),
/// in 60 bytes.
pub fn rarp(mac: Mac) -> [u8; 60] {
    let mut frame = [0; 60];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&mac);
    frame[12..22].copy_from_slice(&[0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
    frame[22..28].copy_from_slice(&mac);
    frame[32..38].copy_from_slice(&mac);
    frame
}
