// SPDX-License-Identifier: Apache-2.0
//! Frames for tests.

/// An IPv4 packet with its checksum left out, in an Ethernet frame.
pub fn ipv4(protocol: u8, transport: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([8, 0, 0x45, 0]);
    let len = u16::try_from(20 + transport.len()).unwrap_or(0);
    frame.extend(len.to_be_bytes());
    frame.extend([
        0xff, 0xff, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ]);
    frame.extend(transport);
    frame
}

/// An IPv6 packet in an Ethernet frame.
pub fn ipv6(protocol: u8, transport: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    frame.extend(u16::try_from(transport.len()).unwrap_or(0).to_be_bytes());
    frame.extend([protocol, 64]);
    frame.extend([0xfd; 15]);
    frame.push(1);
    frame.extend([0xfd; 15]);
    frame.push(2);
    frame.extend(transport);
    frame
}

/// A TCP segment from port 0x1234 to 80 with its checksum left out.
pub fn tcp(sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x12, 0x34, 0, 80];
    bytes.extend(sequence.to_be_bytes());
    bytes.extend([0, 0, 0, 1, 0x50, flags, 1, 0, 0xab, 0xcd, 0, 0]);
    bytes.extend(payload);
    bytes
}
