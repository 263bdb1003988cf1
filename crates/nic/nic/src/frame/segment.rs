// SPDX-License-Identifier: Apache-2.0
//! Segmentation in software, for a receiver that does not support large frames.

use super::layers::{IPV6_HEADER, Layers, TCP, UDP, Version, word};
use super::{GsoKind, NetHeader, Refusal, complete};
use std::sync::atomic::{AtomicU32, Ordering};

const IPV6_FRAGMENT: u8 = 44;
const TCP_FIN_PSH: u8 = 0x09;
const TCP_CWR: u8 = 0x80;

/// The next identification of a fragmented IPv6 packet (RFC 8200, section 4.5).
static NEXT_IDENTIFICATION: AtomicU32 = AtomicU32::new(1);

/// Splits `frame` as its header requires into frames of at most the segment size of payload, builds each in `scratch`
/// and passes it to `send` with its header.
///
/// With `partial_checksums` the receiver completes the checksums of TCP segments.
///
/// # Errors
/// When the frame contradicts its header. Then nothing was sent.
pub fn segment(
    frame: &[u8],
    header: NetHeader,
    partial_checksums: bool,
    scratch: &mut Vec<u8>,
    mut send: impl FnMut(&[u8], NetHeader),
) -> Result<(), Refusal> {
    let ((kind, size), (start, _)) = header
        .segmentation()
        .zip(header.checksum())
        .ok_or(Refusal::Segmentation)?;
    let layers = Layers::from_frame(frame, start).ok_or(Refusal::Malformed)?;
    match (kind, layers.version) {
        (GsoKind::Tcp4, Version::V4) | (GsoKind::Tcp6, Version::V6) => {
            tcp(frame, &layers, size, partial_checksums, scratch, send)
        }
        (GsoKind::Udp, _) => udp(frame, &layers, size, scratch, |frame| {
            send(frame, NetHeader::PLAIN);
        }),
        _ => Err(Refusal::Malformed),
    }
}

fn tcp(
    frame: &[u8],
    layers: &Layers,
    size: usize,
    partial_checksums: bool,
    scratch: &mut Vec<u8>,
    mut send: impl FnMut(&[u8], NetHeader),
) -> Result<(), Refusal> {
    let at = layers.transport;
    let offset = frame.get(at + 12).ok_or(Refusal::Malformed)?;
    let payload_at = at + usize::from(offset >> 4) * 4;
    if payload_at < at + 20 || payload_at >= frame.len() {
        return Err(Refusal::Malformed);
    }
    let (headers, payload) = frame.split_at(payload_at);
    let sequence = u32::from_be_bytes([
        headers[at + 4],
        headers[at + 5],
        headers[at + 6],
        headers[at + 7],
    ]);
    let flags = headers[at + 13];
    let identification = word(headers, layers.network + 4).unwrap_or(0);
    let last = payload.chunks(size).count() - 1;
    let mut sequence_now = sequence;
    let mut identification_now = identification;
    for (index, chunk) in payload.chunks(size).enumerate() {
        scratch.clear();
        scratch.extend_from_slice(headers);
        scratch.extend_from_slice(chunk);
        if layers.version == Version::V4 {
            let place = layers.network + 4;
            scratch[place..place + 2].copy_from_slice(&identification_now.to_be_bytes());
        }
        let network_len = scratch.len() - layers.network;
        layers.set_len(scratch, network_len);
        scratch[at + 4..at + 8].copy_from_slice(&sequence_now.to_be_bytes());
        let mut flags_now = flags;
        if index < last {
            flags_now &= !TCP_FIN_PSH;
        }
        if index > 0 {
            flags_now &= !TCP_CWR;
        }
        scratch[at + 13] = flags_now;
        let pseudo = layers.pseudo_header(headers, TCP, scratch.len() - at);
        scratch[at + 16..at + 18].copy_from_slice(&pseudo.to_be_bytes());
        let header = match u16::try_from(at) {
            Ok(start) if partial_checksums => NetHeader::partial_checksum(start, 16),
            _ => {
                let _inside = complete(scratch, at, 16);
                NetHeader::PLAIN
            }
        };
        send(scratch, header);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a chunk of one frame is shorter than 4 GiB"
        )]
        let step = chunk.len() as u32;
        sequence_now = sequence_now.wrapping_add(step);
        identification_now = identification_now.wrapping_add(1);
    }
    Ok(())
}

/// UDP over IPv4 (RFC 791, section 3.2) or IPv6 (RFC 8200, section 4.5), in fragments.
fn udp(
    frame: &[u8],
    layers: &Layers,
    size: usize,
    scratch: &mut Vec<u8>,
    mut send: impl FnMut(&[u8]),
) -> Result<(), Refusal> {
    let at = layers.transport;
    // Offsets are in units of eight bytes.
    let size = size & !7;
    let protocol_at = match layers.version {
        Version::V4 => layers.network + 9,
        Version::V6 => layers.network + 6,
    };
    let direct = layers.version == Version::V4 || at == layers.network + IPV6_HEADER;
    let payload = frame.len() - at;
    if size == 0
        || !direct
        || frame.get(protocol_at) != Some(&UDP)
        || !(8..65_536).contains(&payload)
    {
        return Err(Refusal::Malformed);
    }
    // One checksum covers the whole datagram.
    let mut datagram = frame[at..].to_vec();
    let pseudo = layers.pseudo_header(frame, UDP, payload);
    datagram[6..8].copy_from_slice(&pseudo.to_be_bytes());
    if !complete(&mut datagram, 0, 6) {
        return Err(Refusal::Malformed);
    }
    let identification = NEXT_IDENTIFICATION.fetch_add(1, Ordering::Relaxed);
    let chunks = datagram.chunks(size);
    let last = chunks.len() - 1;
    for (index, chunk) in chunks.enumerate() {
        #[expect(clippy::cast_possible_truncation, reason = "below 65,536")]
        let offset = (index * size) as u16;
        scratch.clear();
        scratch.extend_from_slice(&frame[..at]);
        match layers.version {
            Version::V4 => {
                let more = if index < last { 0x2000 } else { 0 };
                let place = layers.network + 6;
                scratch[place..place + 2].copy_from_slice(&(more | (offset / 8)).to_be_bytes());
            }
            Version::V6 => {
                scratch[protocol_at] = IPV6_FRAGMENT;
                scratch.extend_from_slice(&[UDP, 0]);
                let more = u16::from(index < last);
                scratch.extend_from_slice(&(offset | more).to_be_bytes());
                scratch.extend_from_slice(&identification.to_be_bytes());
            }
        }
        scratch.extend_from_slice(chunk);
        let network_len = scratch.len() - layers.network;
        layers.set_len(scratch, network_len);
        send(scratch);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::testing::{ipv4, ipv6, tcp};
    use crate::frame::{HEADER_LEN, MAX_FRAME, sum};
    use proptest::prelude::*;

    fn header(gso_type: u8, size: u16, start: u16, offset: u16) -> NetHeader {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = 1;
        bytes[1] = gso_type;
        bytes[4..6].copy_from_slice(&size.to_le_bytes());
        bytes[6..8].copy_from_slice(&start.to_le_bytes());
        bytes[8..10].copy_from_slice(&offset.to_le_bytes());
        NetHeader::from_bytes(&bytes)
    }

    fn tcp_segment(payload: &[u8]) -> Vec<u8> {
        // Sequence number near its end; CWR, PSH, ACK and FIN set.
        tcp(0xffff_fff0, 0x99, payload)
    }

    fn run(frame: &[u8], header: NetHeader, partial: bool) -> Vec<(Vec<u8>, NetHeader)> {
        let mut sent = Vec::new();
        segment(frame, header, partial, &mut Vec::new(), |frame, header| {
            sent.push((frame.to_vec(), header));
        })
        .unwrap();
        sent
    }

    /// Whether the transport checksum of a whole packet is right, by its definition.
    fn verifies(frame: &[u8], v4: bool, protocol: u8) -> bool {
        let (start, addresses) = if v4 {
            (34, &frame[26..34])
        } else {
            (54, &frame[22..54])
        };
        let len = u16::try_from(frame.len() - start).unwrap().to_be_bytes();
        let pseudo = sum(&[0, protocol, len[0], len[1]], sum(addresses, 0));
        sum(&frame[start..], pseudo) == 0xffff
    }

    proptest! {
        #[test]
        fn tcp_segments_carry_the_same_bytes_with_right_checksums(
            payload in proptest::collection::vec(any::<u8>(), 1..9000),
            size in 1_u16..3000,
            v4: bool,
        ) {
            let segment = tcp_segment(&payload);
            let (frame, header) = if v4 {
                (ipv4(TCP, &segment), header(1, size, 34, 16))
            } else {
                (ipv6(TCP, &segment), header(4, size, 54, 16))
            };
            let headers = frame.len() - payload.len();
            let sent = run(&frame, header, false);
            prop_assert_eq!(sent.len(), payload.len().div_ceil(size.into()));
            let mut joined = Vec::new();
            let mut sequence = 0xffff_fff0_u32;
            for (index, (frame, header)) in sent.iter().enumerate() {
                prop_assert_eq!(*header, NetHeader::PLAIN);
                prop_assert!(verifies(frame, v4, TCP));
                if v4 {
                    prop_assert_eq!(sum(&frame[14..34], 0), 0xffff);
                    prop_assert_eq!(usize::from(word(frame, 16).unwrap()), frame.len() - 14);
                    let identification = 0xffff_u16.wrapping_add(u16::try_from(index).unwrap());
                    prop_assert_eq!(word(frame, 18).unwrap(), identification);
                } else {
                    prop_assert_eq!(usize::from(word(frame, 18).unwrap()), frame.len() - 54);
                }
                let tcp = &frame[headers - 20..];
                prop_assert_eq!(&tcp[4..8], &sequence.to_be_bytes());
                let last = index + 1 == sent.len();
                prop_assert_eq!(tcp[13] & TCP_FIN_PSH, if last { TCP_FIN_PSH } else { 0 });
                prop_assert_eq!(tcp[13] & TCP_CWR, if index == 0 { TCP_CWR } else { 0 });
                let chunk = &frame[headers..];
                sequence = sequence.wrapping_add(u32::try_from(chunk.len()).unwrap());
                joined.extend_from_slice(chunk);
            }
            prop_assert_eq!(joined, payload);
        }

        #[test]
        fn udp_fragments_join_to_a_datagram_with_a_right_checksum(
            payload in proptest::collection::vec(any::<u8>(), 0..9000),
            size in 8_u16..3000,
            v4: bool,
        ) {
            let mut datagram = vec![0, 53, 0, 53];
            datagram.extend(u16::try_from(8 + payload.len()).unwrap().to_be_bytes());
            datagram.extend([0, 0]);
            datagram.extend(&payload);
            let (frame, header) = if v4 {
                (ipv4(UDP, &datagram), header(3, size, 34, 6))
            } else {
                (ipv6(UDP, &datagram), header(3, size, 54, 6))
            };
            let mut joined = frame[..if v4 { 34 } else { 54 }].to_vec();
            let sent = run(&frame, header, false);
            for (index, (frame, _)) in sent.iter().enumerate() {
                let more = index + 1 < sent.len();
                let offset = joined.len() - if v4 { 34 } else { 54 };
                if v4 {
                    prop_assert_eq!(sum(&frame[14..34], 0), 0xffff);
                    let field = word(frame, 20).unwrap();
                    prop_assert_eq!(usize::from(field & 0x1fff) * 8, offset);
                    prop_assert_eq!(field & 0x2000 != 0, more);
                    joined.extend_from_slice(&frame[34..]);
                } else {
                    prop_assert_eq!((frame[20], frame[54]), (IPV6_FRAGMENT, UDP));
                    let field = word(frame, 56).unwrap();
                    prop_assert_eq!(usize::from(field & 0xfff8), offset);
                    prop_assert_eq!(field & 1 != 0, more);
                    joined.extend_from_slice(&frame[62..]);
                }
            }
            prop_assert!(verifies(&joined, v4, UDP));
            prop_assert_eq!(&joined[joined.len() - payload.len()..], &payload[..]);
        }

        #[test]
        fn no_frame_whatever_is_too_strange(
            mut frame in proptest::collection::vec(any::<u8>(), 0..200),
            kind in prop_oneof![Just([8_u8, 0]), Just([0x86, 0xdd]), Just([0x81, 0]), any::<[u8; 2]>()],
            bytes: [u8; HEADER_LEN],
        ) {
            if frame.len() >= 14 {
                frame[12..14].copy_from_slice(&kind);
            }
            let header = NetHeader::from_bytes(&bytes);
            if let Ok(header) = header.checked(frame.len(), super::super::Offloads::ALL) {
                let mut scratch = Vec::new();
                let _ = segment(&frame, header, false, &mut scratch, |frame, _| {
                    assert!(frame.len() <= MAX_FRAME);
                });
            }
        }
    }

    #[test]
    fn a_receiver_of_partial_checksums_gets_the_pseudo_headers_sum() {
        let frame = ipv4(TCP, &tcp_segment(&[7; 100]));
        for (mut frame, header) in run(&frame, header(1, 60, 34, 16), true) {
            assert_eq!(header.checksum(), Some((34, 16)));
            assert!(!verifies(&frame, true, TCP));
            assert!(complete(&mut frame, 34, 16));
            assert!(verifies(&frame, true, TCP));
        }
    }

    #[test]
    fn a_frame_with_a_vlan_tag_is_segmented_too() {
        let mut frame = ipv4(TCP, &tcp_segment(&[7; 100]));
        frame.splice(12..12, [0x81, 0, 0, 5]);
        let sent = run(&frame, header(1, 60, 38, 16), false);
        assert_eq!(sent.len(), 2);
        let untagged = [&sent[0].0[..12], &sent[0].0[16..]].concat();
        assert!(verifies(&untagged, true, TCP));
    }
}
