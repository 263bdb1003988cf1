// SPDX-License-Identifier: Apache-2.0
//! The positions of a frame's headers, and the header fields that depend on its length.

use super::{ETHERNET, GsoKind, sum};

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// Bytes of an IPv6 header without extensions.
pub(super) const IPV6_HEADER: usize = 40;
/// TCP's number as a protocol.
pub(super) const TCP: u8 = 6;
/// UDP's number as a protocol.
pub(super) const UDP: u8 = 17;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    V4,
    V6,
}

impl Version {
    /// The kind of TCP segmentation over this IP version.
    pub(super) fn tcp(self) -> GsoKind {
        match self {
            Self::V4 => GsoKind::Tcp4,
            Self::V6 => GsoKind::Tcp6,
        }
    }
}

/// The positions of a frame's headers, in bytes from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layers {
    pub(super) version: Version,
    pub(super) network: usize,
    pub(super) transport: usize,
}

impl Layers {
    /// The positions in a frame whose transport header is at `transport`, according to its virtio-net header.
    pub(super) fn from_frame(frame: &[u8], transport: usize) -> Option<Self> {
        let (version, network, least) = Self::network(frame)?;
        let fits = match version {
            Version::V4 => transport == network + least,
            Version::V6 => transport >= network + least,
        };
        (fits && transport < frame.len()).then_some(Self {
            version,
            network,
            transport,
        })
    }

    /// The positions in a frame in which TCP follows IP without options or extensions.
    pub(super) fn of_tcp(frame: &[u8]) -> Option<Self> {
        let (version, network, least) = Self::network(frame)?;
        let (is_plain, protocol) = match version {
            Version::V4 => (*frame.get(network)? == 0x45, network + 9),
            Version::V6 => (frame.get(network)? >> 4 == 6, network + 6),
        };
        (is_plain && *frame.get(protocol)? == TCP).then_some(Self {
            version,
            network,
            transport: network + least,
        })
    }

    /// The IP version, the position of its header, and the header's least length.
    fn network(frame: &[u8]) -> Option<(Version, usize, usize)> {
        let mut network = ETHERNET;
        let mut kind = word(frame, 12)?;
        // A VLAN tag, or two of them.
        while matches!(kind, 0x8100 | 0x88a8) && network <= ETHERNET + 4 {
            kind = word(frame, network + 2)?;
            network += 4;
        }
        match kind {
            IPV4 => {
                let words = usize::from(frame.get(network)? & 0x0f);
                Some((Version::V4, network, words.max(5) * 4))
            }
            IPV6 => Some((Version::V6, network, IPV6_HEADER)),
            _ => None,
        }
    }

    /// The sum of the pseudo-header, for `len` bytes from the transport header on.
    pub(super) fn pseudo_header(&self, headers: &[u8], protocol: u8, len: usize) -> u16 {
        let addresses = match self.version {
            Version::V4 => self.network + 12..self.network + 20,
            Version::V6 => self.network + 8..self.network + 40,
        };
        let len = u32::try_from(len).unwrap_or(0).to_be_bytes();
        let addresses = headers.get(addresses).unwrap_or(&[]);
        sum(
            &[len[0], len[1], len[2], len[3], 0, protocol],
            sum(addresses, 0),
        )
    }

    /// Sets the length of an IP packet, for `len` bytes from the network header on, and the
    /// header's checksum.
    pub(super) fn set_len(&self, frame: &mut [u8], len: usize) {
        let at = self.network;
        // The caller refuses packets longer than 64 KiB.
        let number = |len: usize| u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes();
        match self.version {
            Version::V4 => {
                frame[at + 2..at + 4].copy_from_slice(&number(len));
                frame[at + 10..at + 12].fill(0);
                let end = self.transport.min(frame.len());
                let check = !sum(&frame[at..end], 0);
                frame[at + 10..at + 12].copy_from_slice(&check.to_be_bytes());
            }
            Version::V6 => {
                frame[at + 4..at + 6].copy_from_slice(&number(len - IPV6_HEADER));
            }
        }
    }
}

pub(super) fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}
