// SPDX-License-Identifier: Apache-2.0
//! The virtio-net header (virtio 1.2, 5.1.6): its validation, and whether a receiver supports it.

use crate::features::Features;

/// Bytes of the header with `num_buffers`.
pub const HEADER_LEN: usize = 12;

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_UDP: u8 = 3;
const GSO_TCPV6: u8 = 4;
const GSO_ECN: u8 = 0x80;

/// The smallest segment that a frame may be cut into, in bytes: Linux's `tcp_min_snd_mss`. Cutting costs
/// a copy of the headers and a buffer for each.
pub(super) const SMALLEST_SEGMENT: u16 = 48;

/// Work that a sender leaves to others, or that a receiver does not need done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offloads {
    /// Partial checksums.
    pub checksum: bool,
    /// TCP over IPv4, unsegmented.
    pub tso4: bool,
    /// TCP over IPv6, unsegmented.
    pub tso6: bool,
    /// Unsegmented TCP with the CWR flag set.
    pub ecn: bool,
    /// UDP, unfragmented.
    pub ufo: bool,
}

impl Offloads {
    /// All offloads, as the kernel behind a tap has them.
    pub const ALL: Self = Self {
        checksum: true,
        tso4: true,
        tso6: true,
        ecn: true,
        ufo: true,
    };

    /// The work that a guest with these features may leave to others.
    pub fn of_sender(features: Features) -> Self {
        Self {
            checksum: features.has(Features::CSUM),
            tso4: features.has(Features::HOST_TSO4),
            tso6: features.has(Features::HOST_TSO6),
            ecn: features.has(Features::HOST_ECN),
            ufo: features.has(Features::HOST_UFO),
        }
    }

    /// The work that a guest with these features does not need done.
    pub fn of_receiver(features: Features) -> Self {
        Self {
            checksum: features.has(Features::GUEST_CSUM),
            tso4: features.has(Features::GUEST_TSO4),
            tso6: features.has(Features::GUEST_TSO6),
            ecn: features.has(Features::GUEST_ECN),
            ufo: features.has(Features::GUEST_UFO),
        }
    }
}

/// Why a frame is dropped because of its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The checksum's field is outside the frame (as in CVE-2024-11614).
    #[error("the checksum to fill in is outside the frame")]
    Checksum,
    /// A segmentation that is unknown, was not negotiated or is into segments of a few bytes.
    #[error("the segmentation asked for is not possible")]
    Segmentation,
    /// The frame contradicts its header.
    #[error("the frame contradicts its virtio-net header")]
    Malformed,
}

/// The kind of segmentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GsoKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over either, by IP fragmentation.
    Udp,
}

/// The header, without `num_buffers`, which belongs to the receiver's ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NetHeader {
    flags: u8,
    gso_type: u8,
    header_len: u16,
    gso_size: u16,
    csum_start: u16,
    csum_offset: u16,
}

impl NetHeader {
    /// The header of a frame that needs no work.
    pub const PLAIN: Self = Self {
        flags: 0,
        gso_type: GSO_NONE,
        header_len: 0,
        gso_size: 0,
        csum_start: 0,
        csum_offset: 0,
    };

    /// A partial checksum at `start + offset`, all in bytes from the frame's start.
    pub const fn partial_checksum(start: u16, offset: u16) -> Self {
        Self {
            flags: NEEDS_CSUM,
            csum_start: start,
            csum_offset: offset,
            ..Self::PLAIN
        }
    }

    /// The header of a TCP frame to be cut into segments of `size` bytes of payload, whose headers are `header_len`
    /// bytes, with TCP's from `transport` on. `None` for sizes that no frame has.
    pub fn segments(
        kind: GsoKind,
        size: usize,
        header_len: usize,
        transport: usize,
    ) -> Option<Self> {
        let gso_type = match kind {
            GsoKind::Tcp4 => GSO_TCPV4,
            GsoKind::Tcp6 => GSO_TCPV6,
            GsoKind::Udp => return None,
        };
        Some(Self {
            gso_type,
            header_len: header_len.try_into().ok()?,
            gso_size: size.try_into().ok()?,
            ..Self::partial_checksum(transport.try_into().ok()?, 16)
        })
    }

    /// Reads the first ten bytes of the wire format.
    pub fn from_bytes(bytes: &[u8; HEADER_LEN]) -> Self {
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Self {
            flags: bytes[0],
            gso_type: bytes[1],
            header_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
        }
    }

    /// The wire format, for a frame in `buffers` receive buffers.
    #[inline]
    pub fn to_bytes(self, buffers: u16) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = self.flags;
        bytes[1] = self.gso_type;
        bytes[2..4].copy_from_slice(&self.header_len.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.gso_size.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.csum_start.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.csum_offset.to_le_bytes());
        bytes[10..12].copy_from_slice(&buffers.to_le_bytes());
        bytes
    }

    /// Validates the header that a sender with these offloads gave a frame of `len` bytes. Removes fields that only a
    /// host may set.
    ///
    /// # Errors
    /// Why the frame is dropped.
    #[inline]
    pub fn checked(self, len: usize, sender: Offloads) -> Result<Self, Refusal> {
        // Nearly all small frames.
        if self.flags & NEEDS_CSUM == 0 && self.gso_type == GSO_NONE {
            return Ok(Self::PLAIN);
        }
        self.checked_offloads(len, sender)
    }

    fn checked_offloads(self, len: usize, sender: Offloads) -> Result<Self, Refusal> {
        let partial = self.flags & NEEDS_CSUM != 0;
        let field = usize::from(self.csum_start) + usize::from(self.csum_offset);
        if partial && (!sender.checksum || field + 2 > len) {
            return Err(Refusal::Checksum);
        }
        if self.gso_type == GSO_NONE {
            return Ok(Self::partial_checksum(self.csum_start, self.csum_offset));
        }
        let negotiated = match self.gso()? {
            GsoKind::Tcp4 => sender.tso4,
            GsoKind::Tcp6 => sender.tso6,
            GsoKind::Udp => sender.ufo,
        } && (self.gso_type & GSO_ECN == 0 || sender.ecn);
        let small = self.gso_size < SMALLEST_SEGMENT;
        if !negotiated || !partial || small || usize::from(self.header_len) > len {
            return Err(Refusal::Segmentation);
        }
        Ok(Self {
            flags: NEEDS_CSUM,
            ..self
        })
    }

    fn gso(self) -> Result<GsoKind, Refusal> {
        match self.gso_type & !GSO_ECN {
            GSO_TCPV4 => Ok(GsoKind::Tcp4),
            GSO_TCPV6 => Ok(GsoKind::Tcp6),
            GSO_UDP if self.gso_type == GSO_UDP => Ok(GsoKind::Udp),
            _ => Err(Refusal::Segmentation),
        }
    }

    /// The kind of segmentation and the bytes of payload in each segment.
    pub fn segmentation(self) -> Option<(GsoKind, usize)> {
        let kind = self.gso().ok()?;
        (self.gso_size > 0).then_some((kind, usize::from(self.gso_size)))
    }

    /// The start of a partial checksum, and the offset of its field from there.
    pub fn checksum(self) -> Option<(usize, usize)> {
        (self.flags & NEEDS_CSUM != 0).then_some((self.csum_start.into(), self.csum_offset.into()))
    }

    /// Whether a receiver with these offloads supports the frame as it is.
    #[inline]
    pub fn suits(self, receiver: Offloads) -> bool {
        if self.flags & NEEDS_CSUM == 0 && self.gso_type == GSO_NONE {
            return true;
        }
        let segmented = match self.gso() {
            _ if self.gso_type == GSO_NONE => true,
            Ok(GsoKind::Tcp4) => receiver.tso4,
            Ok(GsoKind::Tcp6) => receiver.tso6,
            Ok(GsoKind::Udp) => receiver.ufo,
            Err(_) => false,
        };
        segmented && receiver.checksum && (self.gso_type & GSO_ECN == 0 || receiver.ecn)
    }

    /// Removes the flag of a verified checksum, where the receiver did not negotiate it.
    #[inline]
    pub fn for_receiver(self, receiver: Offloads) -> Self {
        if receiver.checksum || self.flags & DATA_VALID == 0 {
            return self;
        }
        Self {
            flags: self.flags & !DATA_VALID,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_header() -> impl Strategy<Value = NetHeader> {
        any::<[u8; HEADER_LEN]>().prop_map(|bytes| NetHeader::from_bytes(&bytes))
    }

    fn any_offloads() -> impl Strategy<Value = Offloads> {
        any::<[bool; 5]>().prop_map(|[checksum, tso4, tso6, ecn, ufo]| Offloads {
            checksum,
            tso4,
            tso6,
            ecn,
            ufo,
        })
    }

    #[test]
    fn segments_of_a_byte_are_refused() {
        let header = |size| NetHeader {
            flags: NEEDS_CSUM,
            gso_type: GSO_TCPV4,
            gso_size: size,
            ..NetHeader::PLAIN
        };
        for (size, is_fine) in [
            (0, false),
            (1, false),
            (47, false),
            (48, true),
            (1_448, true),
        ] {
            let checked = header(size).checked(60_000, Offloads::ALL);
            assert_eq!(checked.is_ok(), is_fine, "{size}");
        }
    }

    proptest! {
        #[test]
        fn what_passes_the_check_is_inside_the_frame_and_was_negotiated(
            header in any_header(), offloads in any_offloads(), len in 0_usize..70_000,
        ) {
            if let Ok(header) = header.checked(len, offloads) {
                if let Some((start, offset)) = header.checksum() {
                    prop_assert!(offloads.checksum && start + offset + 2 <= len);
                }
                prop_assert!(header.suits(offloads));
                prop_assert_eq!(header.flags & DATA_VALID, 0);
            }
        }

        #[test]
        fn the_wire_format_is_read_as_it_was_written(header in any_header(), buffers: u16) {
            let bytes = header.to_bytes(buffers);
            prop_assert_eq!(NetHeader::from_bytes(&bytes), header);
            prop_assert_eq!(&bytes[10..], &buffers.to_le_bytes());
        }
    }

    #[test]
    fn unusable_promises_are_refused() {
        let header = |flags, gso_type, gso_size, csum_start, csum_offset| NetHeader {
            flags,
            gso_type,
            header_len: 54,
            gso_size,
            csum_start,
            csum_offset,
        };
        let all = Offloads::ALL;
        let none = Offloads::default();
        assert!(header(0, 0, 0, 9, 9).checked(20, none).is_ok());
        for (bad, offloads) in [
            (header(1, 0, 0, 34, 65535), all),
            (header(1, 0, 0, 99, 0), all),
            (header(1, 0, 0, 34, 16), none),
            (header(1, 1, 0, 34, 16), all),
            (header(1, 2, 1448, 34, 16), all),
            (header(1, 0x83, 1448, 34, 16), all),
            (header(1, 4, 1448, 34, 16), Offloads { tso6: false, ..all }),
            (
                header(1, 0x81, 1448, 34, 16),
                Offloads { ecn: false, ..all },
            ),
            (header(0, 1, 1448, 34, 16), all),
        ] {
            assert!(bad.checked(100, offloads).is_err(), "{bad:?}");
        }
        assert!(header(1, 1, 1448, 34, 16).checked(100, all).is_ok());
    }
}
