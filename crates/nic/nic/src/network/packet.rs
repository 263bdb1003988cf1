// SPDX-License-Identifier: Apache-2.0
//! Frames between two ports, as references to their memory.

use crate::control::frame as control;
use crate::frame::{ETHERNET, HEADER_LEN, MAX_FRAME, NetHeader, Offloads};
use crate::memory::Segment;
use crate::ring::{Chain, Place, RingFault};
use crate::telemetry::DropReason;

/// The most frames of a batch: enough to share a publication and a signal, few enough to stay in the first-level
/// cache.
pub const BATCH: usize = 64;

/// The offset of a frame's EtherType.
const TYPE: u32 = 12;

/// A frame in the memory of its sender.
#[derive(Debug, Clone, Copy)]
pub struct Packet {
    /// The header, with the work that the sender left.
    pub header: NetHeader,
    /// Its first segment in the batch.
    pub first: u32,
    /// The number of its segments.
    pub count: u32,
    /// Bytes.
    pub len: u32,
    /// The chain of the sender's ring.
    pub place: Place,
    /// Why it is dropped, if it is.
    pub refused: Option<DropReason>,
    /// Whether delivery needs only a copy: the frame has one segment, needs no work and is no control frame.
    pub plain: bool,
}

/// Up to [`BATCH`] frames of one sender. Its segments are valid until the sender's memory changes, which does not
/// happen while a batch is moved.
#[derive(Debug, Default)]
pub struct Batch {
    /// The frames, in order.
    pub packets: Vec<Packet>,
    /// Their segments.
    pub segments: Vec<Segment>,
    /// The fault in the sender's ring after these frames.
    pub fault: Option<RingFault>,
}

impl Batch {
    /// An empty batch with room for common batches.
    pub fn new() -> Self {
        Self {
            packets: Vec::with_capacity(BATCH),
            segments: Vec::with_capacity(BATCH * 20),
            fault: None,
        }
    }

    /// Removes all frames.
    pub fn clear(&mut self) {
        self.packets.clear();
        self.segments.clear();
        self.fault = None;
    }

    /// Adds a chain of a guest, whose first bytes are its virtio-net header.
    #[inline]
    pub fn add_chain(&mut self, chain: Chain, header_len: usize, sender: Offloads) {
        let mut packet = Packet {
            header: NetHeader::PLAIN,
            first: chain.first,
            count: chain.count,
            len: 0,
            place: chain.place,
            refused: None,
            plain: false,
        };
        let frame = (chain.len as usize).checked_sub(header_len);
        match frame {
            None => packet.refused = Some(DropReason::Malformed),
            Some(len) if !(ETHERNET..=MAX_FRAME).contains(&len) => {
                packet.refused = Some(DropReason::Malformed);
            }
            Some(len) => {
                let mut bytes = [0; HEADER_LEN];
                self.strip(&mut packet, &mut bytes[..header_len]);
                #[expect(clippy::cast_possible_truncation, reason = "at most MAX_FRAME")]
                {
                    packet.len = len as u32;
                }
                if bytes[..10] == [0; 10] {
                    packet.plain = packet.count == 1 && !self.is_control(&packet);
                } else {
                    match NetHeader::from_bytes(&bytes).checked(len, sender) {
                        Ok(header) => packet.header = header,
                        Err(_) => packet.refused = Some(DropReason::Malformed),
                    }
                }
            }
        }
        self.packets.push(packet);
    }

    /// Refuses all packets.
    pub fn refuse(&mut self, reason: DropReason) {
        for packet in &mut self.packets {
            packet.refused = Some(reason);
            packet.plain = false;
        }
    }

    /// Lists the segment of a chain that has only one.
    #[inline]
    pub fn push_single(&mut self, place: Place, segment: Segment) -> Chain {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "fewer than MAX_SEGMENTS times a batch"
        )]
        let first = self.segments.len() as u32;
        self.segments.push(segment);
        Chain {
            place,
            len: segment.len,
            first,
            count: 1,
        }
    }

    /// Takes the first bytes off a packet that has at least as many.
    #[inline]
    fn strip(&mut self, packet: &mut Packet, mut header: &mut [u8]) {
        // Nearly always all of it is in the first segment, and the frame too.
        if let Some(segment) = self.segments.get_mut(packet.first as usize)
            && segment.len as usize > HEADER_LEN
            && let Ok(header) = <&mut [u8; HEADER_LEN]>::try_from(&mut *header)
        {
            segment.take(header);
            return;
        }
        while !header.is_empty()
            && packet.count > 0
            && let Some(segment) = self.segments.get_mut(packet.first as usize)
        {
            let bytes = segment.take(header);
            if segment.len == 0 {
                packet.first += 1;
                packet.count -= 1;
            }
            header = &mut header[bytes..];
        }
    }

    /// Whether a packet of one segment is a control frame.
    #[inline]
    fn is_control(&self, packet: &Packet) -> bool {
        let mut kind = [0; 2];
        if let Some(segment) = self.segments.get(packet.first as usize) {
            segment.peek_at(TYPE, &mut kind);
        }
        kind == control::ETHER_TYPE.to_be_bytes()
    }

    /// The segments of a packet.
    #[inline]
    pub fn segments(&self, packet: &Packet) -> &[Segment] {
        let first = packet.first as usize;
        self.segments
            .get(first..first + packet.count as usize)
            .unwrap_or(&[])
    }
}

/// A frame to deliver.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// The header, with the work that is left.
    pub header: NetHeader,
    /// The segments.
    pub segments: &'a [Segment],
    /// Bytes.
    pub len: usize,
}
