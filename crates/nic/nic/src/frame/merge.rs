// SPDX-License-Identifier: Apache-2.0
//! Merges consecutive TCP segments of a stream into one large frame, which costs the receiver as much as one of them.
//! It is the reverse of [`segment`](super::segment) by the rules of Linux's GRO: the large frame can be cut into the
//! same frames again.

use super::header::SMALLEST_SEGMENT;
use super::layers::{IPV6_HEADER, Layers, TCP, Version, word};
use super::{ETHERNET, MAX_FRAME, NetHeader, sum};

/// The most bytes of headers that are read: Ethernet, two VLAN tags, IPv6, TCP with all its options.
pub const MAX_HEADERS: usize = ETHERNET + 8 + IPV6_HEADER + 60;

/// The longest IP packet.
const LONGEST_PACKET: usize = 65_535;
const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
/// The offset of TCP's checksum.
const CHECKSUM: usize = 16;
const DONT_FRAGMENT: u16 = 0x4000;
/// A reserved bit, more fragments, and the fragment's offset.
const FRAGMENTED: u16 = 0xbfff;

/// A TCP segment that can be merged: it has payload, and headers that may hold for several segments.
#[derive(Debug)]
pub struct TcpSegment {
    layers: Layers,
    /// Bytes of all headers.
    header_len: usize,
    /// Bytes of payload.
    payload: usize,
    sequence: u32,
    is_pushed: bool,
    /// Whether the checksum is left to the receiver.
    is_partial: bool,
}

impl TcpSegment {
    /// The segment of a frame of `len` bytes. `start` is the frame, or its first [`MAX_HEADERS`] bytes.
    pub fn starting_with(start: &[u8], len: usize, header: NetHeader) -> Option<Self> {
        let layers = Layers::of_tcp(start)?;
        let (at, network) = (layers.transport, layers.network);
        let packet = len.checked_sub(network)?;
        let is_whole = match layers.version {
            Version::V4 => {
                usize::from(word(start, network + 2)?) == packet
                    && word(start, network + 6)? & FRAGMENTED == 0
                    && sum(start.get(network..at)?, 0) == 0xffff
            }
            Version::V6 => usize::from(word(start, network + 4)?) + IPV6_HEADER == packet,
        };
        let header_len = at + usize::from(start.get(at + 12)? >> 4) * 4;
        let flags = *start.get(at + 13)?;
        let is_partial = header != NetHeader::PLAIN;
        let is_expected = !is_partial || header.checksum() == Some((at, CHECKSUM));
        let is_simple = header_len >= at + 20 && header_len <= start.len().min(MAX_HEADERS);
        let is_data = flags & !PSH == ACK && header_len < len;
        if !is_whole || !is_expected || !is_simple || !is_data || header.segmentation().is_some() {
            return None;
        }
        Some(Self {
            layers,
            header_len,
            payload: len - header_len,
            sequence: sequence(start, at)?,
            is_pushed: flags & PSH != 0,
            is_partial,
        })
    }

    /// Bytes of its headers.
    pub fn header_len(&self) -> usize {
        self.header_len
    }

    /// Whether its checksum is right or partial. `headers` and `payload` are private copies.
    pub fn is_sound(&self, headers: &[u8], payload: &[u8]) -> bool {
        let at = self.layers.transport;
        let Some(own) = headers.get(at..self.header_len) else {
            return false;
        };
        let len = own.len() + payload.len();
        let pseudo = || self.layers.pseudo_header(headers, TCP, len);
        // TCP headers are multiples of four bytes long, so that the payload's sum continues that of the headers.
        self.is_partial || sum(payload, sum(own, pseudo())) == 0xffff
    }
}

fn sequence(headers: &[u8], transport: usize) -> Option<u32> {
    let bytes = headers.get(transport + 4..transport + 8)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

/// Consecutive segments.
#[derive(Debug)]
pub struct Stream {
    first: TcpSegment,
    /// The number of segments.
    count: u16,
    /// Bytes of payload in all.
    payload: usize,
    /// Whether the last segment has PSH or is shorter than the first: none may follow it.
    is_ended: bool,
}

impl Stream {
    /// A stream of one segment.
    pub fn new(first: TcpSegment) -> Self {
        Self {
            count: 1,
            payload: first.payload,
            is_ended: first.is_pushed || first.payload < SMALLEST_SEGMENT.into(),
            first,
        }
    }

    /// Whether `next` continues the stream. `headers` are its headers, and `frame` begins with those of the first
    /// segment.
    pub fn goes_on(&self, frame: &[u8], next: &TcpSegment, headers: &[u8]) -> bool {
        let (first, at) = (&self.first, self.first.layers.transport);
        let network = first.layers.network;
        let packet = first.header_len - network + self.payload + next.payload;
        let equal = |from: usize, to: usize| {
            let range = from..to;
            frame.get(range.clone()).is_some() && frame.get(range.clone()) == headers.get(range)
        };
        let numbers_are_right = || {
            let number = |bytes| word(bytes, network + 4);
            word(frame, network + 6) == Some(DONT_FRAGMENT)
                || number(headers) == number(frame).map(|number| number.wrapping_add(self.count))
        };
        let is_of_the_same_way = match first.layers.version {
            Version::V4 => {
                equal(0, network + 2)
                    && equal(network + 6, network + 10)
                    && equal(network + 12, at)
                    && numbers_are_right()
            }
            Version::V6 => equal(0, network + 4) && equal(network + 6, at),
        };
        #[expect(clippy::cast_possible_truncation, reason = "less than a frame")]
        let expected = first.sequence.wrapping_add(self.payload as u32);
        !self.is_ended
            && packet <= LONGEST_PACKET
            && first.header_len + self.payload + next.payload <= MAX_FRAME
            && next.header_len == first.header_len
            && next.layers == first.layers
            && next.payload <= first.payload
            && next.sequence == expected
            && is_of_the_same_way
            // Ports; acknowledged and the header's length; window; urgent pointer and options.
            && equal(at, at + 4)
            && equal(at + 8, at + 13)
            && equal(at + 14, at + CHECKSUM)
            && equal(at + CHECKSUM + 2, first.header_len)
    }

    /// Adds a segment that continues the stream.
    pub fn add(&mut self, next: &TcpSegment) {
        self.count = self.count.saturating_add(1);
        self.payload += next.payload;
        self.is_ended = next.is_pushed || next.payload < self.first.payload;
        self.first.is_pushed |= next.is_pushed;
    }

    /// Updates the headers in `frame` and returns the virtio-net header. `None` for a single segment, whose headers
    /// stay.
    pub fn finish(&self, frame: &mut [u8]) -> Option<NetHeader> {
        let TcpSegment {
            layers, header_len, ..
        } = &self.first;
        let at = layers.transport;
        if self.count < 2 || frame.len() < *header_len {
            return None;
        }
        let len = header_len + self.payload;
        layers.set_len(frame, len - layers.network);
        if self.first.is_pushed {
            frame[at + 13] |= PSH;
        }
        let pseudo = layers.pseudo_header(frame, TCP, len - at);
        frame[at + CHECKSUM..at + CHECKSUM + 2].copy_from_slice(&pseudo.to_be_bytes());
        let kind = layers.version.tcp();
        NetHeader::segments(kind, self.first.payload, *header_len, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::segment::segment;
    use crate::frame::testing::{ipv4, ipv6, tcp};
    use crate::frame::{GsoKind, HEADER_LEN};
    use proptest::prelude::*;

    /// Merges frames as far as possible. Returns each result with its header and its number of frames.
    fn merged(frames: &[(Vec<u8>, NetHeader)]) -> Vec<(Vec<u8>, NetHeader, u16)> {
        let mut out: Vec<(Vec<u8>, NetHeader, u16)> = Vec::new();
        let mut stream: Option<Stream> = None;
        let finish = |stream: Option<Stream>, out: &mut Vec<(Vec<u8>, NetHeader, u16)>| {
            if let (Some(stream), Some(last)) = (stream, out.last_mut())
                && let Some(header) = stream.finish(&mut last.0)
            {
                (last.1, last.2) = (header, stream.count);
            }
        };
        for (frame, header) in frames {
            let start = &frame[..frame.len().min(MAX_HEADERS)];
            let found = TcpSegment::starting_with(start, frame.len(), *header)
                .filter(|found| found.is_sound(frame, &frame[found.header_len()..]));
            if let (Some(next), Some(stream), Some(last)) = (&found, &mut stream, out.last_mut())
                && stream.goes_on(&last.0, next, frame)
            {
                last.0.extend_from_slice(&frame[next.header_len()..]);
                stream.add(next);
                continue;
            }
            finish(stream.take(), &mut out);
            out.push((frame.clone(), *header, 1));
            stream = found.map(Stream::new);
        }
        finish(stream, &mut out);
        out
    }

    fn large(payload: &[u8], size: usize, v4: bool) -> (Vec<u8>, NetHeader) {
        let segment = tcp(0xffff_fff0, 0x18, payload);
        if v4 {
            let header = NetHeader::segments(GsoKind::Tcp4, size, 54, 34);
            (ipv4(TCP, &segment), header.unwrap())
        } else {
            let header = NetHeader::segments(GsoKind::Tcp6, size, 74, 54);
            (ipv6(TCP, &segment), header.unwrap())
        }
    }

    fn cut(frame: &[u8], header: NetHeader, partial: bool) -> Vec<(Vec<u8>, NetHeader)> {
        let mut frames = Vec::new();
        segment(frame, header, partial, &mut Vec::new(), |frame, header| {
            frames.push((frame.to_vec(), header));
        })
        .unwrap();
        frames
    }

    proptest! {
        #[test]
        fn what_was_merged_is_cut_into_the_very_same_frames(
            payload in proptest::collection::vec(any::<u8>(), 200..20_000),
            size in 48_usize..3000, v4: bool, partial: bool,
        ) {
            let (frame, header) = large(&payload, size, v4);
            let frames = cut(&frame, header, partial);
            let whole = merged(&frames);
            prop_assert_eq!(whole.len(), 1);
            let (frame, header, count) = &whole[0];
            prop_assert_eq!(usize::from(*count), frames.len());
            if frames.len() > 1 {
                prop_assert_eq!(header.checked(frame.len(), crate::frame::Offloads::ALL), Ok(*header));
                prop_assert_eq!(cut(frame, *header, partial), frames);
            }
        }

        #[test]
        fn a_stream_with_one_bit_changed_is_not_merged_over_it(
            at in 0_usize..74, bit in 0_u8..8, v4: bool,
        ) {
            let (frame, header) = large(&[7; 1000], 100, v4);
            let mut frames = cut(&frame, header, false);
            frames[5].0[at.min(if v4 { 53 } else { 73 })] ^= 1 << bit;
            let whole = merged(&frames);
            // The segments after the changed one may form another stream. No change loses a frame.
            prop_assert!(whole.len() > 1);
            let mut again = Vec::new();
            for (frame, header, count) in whole {
                if count > 1 {
                    again.extend(cut(&frame, header, false));
                } else {
                    again.push((frame, header));
                }
            }
            prop_assert_eq!(again, frames);
        }

        #[test]
        fn no_frame_is_too_strange_to_be_looked_at(
            mut frame in proptest::collection::vec(any::<u8>(), 14..200),
            kind in prop_oneof![Just([8_u8, 0]), Just([0x86, 0xdd]), Just([0x81, 0]), any::<[u8; 2]>()],
            bytes: [u8; HEADER_LEN], more in 0_usize..60_000,
        ) {
            frame[12..14].copy_from_slice(&kind);
            let start = &frame[..frame.len().min(MAX_HEADERS)];
            if let Some(found) = TcpSegment::starting_with(start, frame.len() + more, NetHeader::from_bytes(&bytes)) {
                prop_assert!(found.header_len() <= start.len());
                let _ = found.is_sound(start, &frame);
            }
        }
    }

    #[test]
    fn other_streams_gaps_and_wrong_checksums_are_not_joined() {
        let (frame, header) = large(&[7; 1000], 100, true);
        let frames = cut(&frame, header, false);
        let count = |frames: &[(Vec<u8>, NetHeader)]| merged(frames).len();
        assert_eq!(count(&frames), 1);
        let without_one: Vec<_> = [&frames[..4], &frames[5..]].concat();
        assert_eq!(count(&without_one), 2, "a gap");
        let mut swapped = frames.clone();
        swapped.swap(4, 5);
        assert_eq!(count(&swapped), 4, "in another order");
        let mut broken = frames.clone();
        broken[3].0[80] ^= 1;
        assert_eq!(
            count(&broken),
            3,
            "a payload that was damaged stays damaged"
        );
        let mut pushed = frames;
        pushed[3].0[34 + 13] |= PSH;
        let at = 34;
        pushed[3].0[at + CHECKSUM..at + CHECKSUM + 2].fill(0);
        let layers = Layers::of_tcp(&pushed[3].0).unwrap();
        let pseudo = layers.pseudo_header(&pushed[3].0, TCP, 120);
        pushed[3].0[at + CHECKSUM..at + CHECKSUM + 2].copy_from_slice(&pseudo.to_be_bytes());
        assert!(crate::frame::complete(&mut pushed[3].0, at, CHECKSUM));
        assert_eq!(count(&pushed), 2, "nothing follows what is to be passed on");
    }

    #[test]
    fn a_frame_never_grows_beyond_the_longest_packet() {
        let payload = vec![7; 65_000];
        let (frame, header) = large(&payload, 1000, true);
        let mut frames = cut(&frame, header, false);
        // A second stream of the same length continues the first.
        let mut next = frame;
        next[34 + 4..34 + 8].copy_from_slice(&(0xffff_fff0_u32.wrapping_add(65_000)).to_be_bytes());
        next[18..20].copy_from_slice(&(0xffff_u16.wrapping_add(65)).to_be_bytes());
        let last = frames.len() - 1;
        frames[last].0[34 + 13] &= !PSH;
        frames.truncate(last);
        frames.extend(cut(&next, header, false));
        for (frame, ..) in merged(&frames) {
            assert!(frame.len() <= LONGEST_PACKET + ETHERNET);
        }
    }
}
