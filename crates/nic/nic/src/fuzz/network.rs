// SPDX-License-Identifier: Apache-2.0
//! Fuzz targets that send frames: guests, taps, a guest that migrates, and segmentation.

use super::{HostileSwitch, Input, MOST_STEPS, NOW};
use crate::control::Policy;
use crate::features::Features;
use crate::frame::{self, HEADER_LEN, NetHeader, Offloads};
use crate::hold::Nanos;
use crate::memory::LOG_PAGE;
use crate::network::{Port, Tap};
use crate::poller::{Poller, PortId};
use crate::protocol::Request;
use crate::testing::{BUFFERS, CONTROL, MEMORY, RX, TX, linux};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};
use std::os::fd::OwnedFd;

/// A driver that writes arbitrary bytes into its rings and buffers while the worker serves them.
pub fn guest(data: &[u8]) {
    let mut input = Input(data);
    let (own, neighbours) = (input.features(), input.features());
    let (mut switch, hostile) = HostileSwitch::new(Some(own), neighbours);
    let Some(mut hostile) = hostile else { return };
    for neighbour in &mut switch.neighbours {
        neighbour.refill();
    }
    // The control queue follows the port's two pairs, or its only pair without MQ.
    let mut control = 4;
    if own.has(Features::CTRL_VQ)
        && let Some(guest) = switch.network.guest_mut(0)
    {
        control = if own.has(Features::MQ) { 4 } else { 2 };
        hostile.start_control(guest, &switch.poller, control.into());
        switch.run(NOW);
    }
    let mut now = NOW;
    for _ in 0..MOST_STEPS {
        if !input.has_more() {
            break;
        }
        let step = input.u8();
        let (ring, queue) = match step >> 6 {
            0 | 1 => (TX, 1),
            2 => (RX, 0),
            _ => (CONTROL, control),
        };
        match step & 0x0f {
            0..=2 => {
                let index = u16::from(input.u8() % 16);
                ring.describe(&hostile.driver, index, input.descriptor());
            }
            3 | 4 => {
                let (position, head) = (input.u8(), u16::from(input.u8() % 17));
                ring.offer(&hostile.driver, position.into(), head);
            }
            5 => ring.set_available(&hostile.driver, input.u16()),
            6 => ring.set_used_event(&hostile.driver, input.u16()),
            7 | 8 => {
                let at = BUFFERS + u64::from(input.u16()) * 8;
                let len = input.u8();
                hostile.driver.write(at, input.bytes(len.into()));
            }
            9 | 10 => {
                let header = input.array();
                hostile.send(header, &frame_of(&mut input));
            }
            11 => hostile.refill(),
            12 => {
                now = now + Nanos::from_micros(input.u32());
                switch.run(now);
            }
            13 => {
                let (position, room) = (input.u8(), input.u8() % 32);
                let mut command = vec![input.u8() % 8, input.u8() % 8];
                let len = usize::from(input.u8());
                command.extend(input.bytes(len));
                hostile.command(u16::from(position % 16), &command, room.into());
                switch.kick(0, control, now);
            }
            _ => {
                switch.kick(0, queue, now);
                for neighbour in &mut switch.neighbours {
                    neighbour.received();
                    neighbour.refill();
                }
            }
        }
    }
    switch.kick(0, 1, now);
    if let Some(guest) = switch.network.guest_mut(0) {
        let in_force = guest.info("", true, now).in_force_us;
        assert!(in_force <= Policy::default().cap_us, "{in_force} µs");
    }
    switch.check(now);
}

/// A frame with the headers that `kind` asks for and `len` bytes of payload.
fn packet(kind: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![255; 6];
    bytes.extend([2, 0, 0, 0, 0, 9]);
    if kind & 4 != 0 {
        bytes.extend([0x81, 0, 0, 1]);
    }
    let protocol = if kind & 2 == 0 { 6 } else { 17 };
    let header = if protocol == 6 { 20 } else { 8 };
    // Packets longer than 64 KiB are not sent.
    let number = |len: usize| u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes();
    if kind & 1 == 0 {
        bytes.extend([8, 0, 0x45, 0]);
        bytes.extend(number(20 + header + len));
        bytes.extend([0, 1, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    } else {
        bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        bytes.extend(number(header + len));
        bytes.extend([protocol, 64]);
        bytes.extend([0xfd; 32]);
    }
    let mut transport = vec![0; header];
    if protocol == 6 {
        transport[12] = 0x50;
    }
    bytes.extend(transport);
    bytes.resize(bytes.len() + len, 7);
    bytes
}

/// Frames between a tap and two guests, with arbitrary headers and lengths in both directions. Frames to the kernel are
/// whole and their headers valid, and the guests still reach each other.
pub fn taps(data: &[u8]) {
    let mut input = Input(data);
    let options = input.u8();
    let (kernel, own) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .unwrap();
    let tap = Port::Tap(Box::new(Tap::over(own, options & 1 != 0)));
    let poller = Poller::new().unwrap();
    let mut switch = HostileSwitch::beside(tap, poller, input.features());
    for neighbour in &mut switch.neighbours {
        neighbour.refill();
    }
    let mut now = NOW;
    for _ in 0..MOST_STEPS {
        if !input.has_more() {
            break;
        }
        let step = input.u8();
        match step & 3 {
            0 | 1 => {
                let mut message = input.array::<HEADER_LEN>().to_vec();
                message.extend(frame_of(&mut input));
                message.truncate(message.len() - usize::from(step >> 6).min(2) * 13);
                // A full socket loses the message.
                let _ = rustix::net::send(&kernel, &message, SendFlags::DONTWAIT);
                let id = PortId {
                    network: 0,
                    port: 0,
                };
                switch.network.tap_ready(id, 0);
            }
            2 => {
                let header = input.array();
                let frame = frame_of(&mut input);
                switch.neighbours[usize::from(step >> 7)].send(header, &frame);
                switch.kick(1 + u16::from(step >> 7), 1, now);
            }
            _ => now = now + Nanos::from_micros(input.u32()),
        }
        switch.run(now);
        for neighbour in &mut switch.neighbours {
            for (header, frame) in neighbour.received() {
                check_header(&header, &frame);
            }
            neighbour.refill();
        }
        taken_by_kernel(&kernel);
    }
    taken_by_kernel(&kernel);
    switch.check(now);
    assert!(taken_by_kernel(&kernel) > 0, "the neighbour's broadcast");
}

/// A frame with bits of it changed.
fn frame_of(input: &mut Input) -> Vec<u8> {
    let (kind, len) = (input.u8(), input.u16() % 0x3f00);
    let mut bytes = packet(kind, len.into());
    let changed = input.u8();
    for (byte, change) in bytes.iter_mut().zip(input.bytes(changed.into())) {
        *byte ^= change;
    }
    bytes
}

/// Reads all frames that a tap gave its kernel and returns their number. Checks that each frame is whole and that its
/// header refers to bytes inside it.
fn taken_by_kernel(kernel: &OwnedFd) -> usize {
    let mut message = vec![0; HEADER_LEN + frame::MAX_FRAME];
    let mut count = 0;
    while let Ok(len @ 1..) = rustix::io::read(kernel, &mut message[..]) {
        let (header, frame) = message[..len].split_at(HEADER_LEN.min(len));
        check_header(header, frame);
        count += 1;
    }
    count
}

/// Checks that a frame has an Ethernet header, and that its virtio-net header refers to bytes inside it.
fn check_header(header: &[u8], frame: &[u8]) {
    assert!(frame.len() >= frame::ETHERNET, "{} bytes", frame.len());
    let header = NetHeader::from_bytes(header.try_into().unwrap());
    assert!(
        header.checked(frame.len(), Offloads::ALL).is_ok(),
        "{header:?}"
    );
}

/// A guest that migrates: every page of its memory that this process writes is in the dirty log.
pub fn logged(data: &[u8]) {
    const PAGES: usize = (MEMORY / LOG_PAGE) as usize;
    let mut input = Input(data);
    let features = input.features();
    let (mut switch, hostile) = HostileSwitch::new(Some(features), linux());
    let Some(mut hostile) = hostile else { return };
    let log = memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&log, (PAGES / 8) as u64).unwrap();
    let Some(guest) = switch.network.guest_mut(0) else {
        return;
    };
    for request in [
        Request::SetLogBase {
            size: (PAGES / 8) as u64,
            offset: 0,
            file: log.try_clone().unwrap(),
        },
        Request::SetFeatures(features.with(Features::LOG_ALL)),
    ] {
        guest.handle(request, &switch.poller, NOW).unwrap();
    }
    switch.network.port_changed(0);
    switch.run(NOW);
    let mut now = NOW;
    for _ in 0..MOST_STEPS / 10 {
        if !input.has_more() {
            break;
        }
        let step = input.u8();
        let ring = if step & 0x80 == 0 { RX } else { TX };
        match step & 3 {
            0 => hostile.refill(),
            1 => {
                let index = u16::from(input.u8() % 16);
                ring.describe(&hostile.driver, index, input.descriptor());
                ring.offer(&hostile.driver, input.u8().into(), index);
            }
            2 => hostile.send([0; HEADER_LEN], &packet(step, usize::from(step))),
            _ => ring.set_used_event(&hostile.driver, input.u16()),
        }
        // The comparison excludes the guest's own writes.
        let before = hostile.driver.read(0, PAGES * LOG_PAGE as usize);
        rustix::io::pwrite(&log, &[0; PAGES / 8], 0).unwrap();
        now = now + Nanos::from_micros(50);
        let len = 14 + usize::from(input.u16() % 0x2000);
        let mut bytes = vec![step; len];
        bytes[..14].copy_from_slice(&[255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1, 8, 0]);
        switch.neighbours[0].send([0; HEADER_LEN], &bytes);
        switch.kick(1, 1, now);
        switch.kick(0, 1, now);
        let mut bits = [0; PAGES / 8];
        rustix::io::pread(&log, &mut bits, 0).unwrap();
        let after = hostile.driver.read(0, before.len());
        let pages = before
            .chunks(LOG_PAGE as usize)
            .zip(after.chunks(LOG_PAGE as usize));
        for (page, (before, after)) in pages.enumerate() {
            let marked = bits[page / 8] & 1 << (page % 8) != 0;
            assert!(
                marked || before == after,
                "page {page} was written and is not logged"
            );
        }
    }
    switch.check(now);
}

/// A frame with a header that passed the checks, split or checksummed for a receiver that cannot
/// take it as it is.
pub fn segmentation(data: &[u8]) {
    let mut input = Input(data);
    let header = NetHeader::from_bytes(&input.array());
    let kind = input.u8();
    let mut frame = packet(kind, usize::from(input.u16()) % 0x4000);
    let (changed, cut) = (input.u8(), input.u8());
    for (byte, change) in frame.iter_mut().zip(input.bytes(changed.into())) {
        *byte ^= change;
    }
    frame.truncate(frame.len() - usize::from(cut).min(frame.len()));
    let Ok(header) = header.checked(frame.len(), Offloads::ALL) else {
        return;
    };
    if let Some((_, size)) = header.segmentation() {
        let mut carried = 0;
        let mut scratch = Vec::new();
        let result = frame::segment(
            &frame,
            header,
            kind & 8 != 0,
            &mut scratch,
            |part, header| {
                assert!(part.len() <= frame.len().max(frame::ETHERNET) + 8);
                carried += part.len();
                if let Some((start, offset)) = header.checksum() {
                    assert!(start + offset + 2 <= part.len());
                }
            },
        );
        assert!(size > 0);
        assert!(
            result.is_err() == (carried == 0),
            "an error after something was sent, or nothing sent without one"
        );
    } else if let Some((start, offset)) = header.checksum() {
        assert!(frame::complete(&mut frame, start, offset));
    }
}
