// SPDX-License-Identifier: Apache-2.0
//! Fuzz targets that send messages: of front ends, guests and operators.

use super::{HostileSwitch, Input, MOST_STEPS, NOW};
use crate::control::lease::{Answer, LeaseManager};
use crate::control::{Policy, api, frame as control_frames};
use crate::features::ProtocolFeatures;
use crate::hold::{HoldSettings, Mode, Nanos};
use crate::poller::PortId;
use crate::protocol::Connection;
use crate::telemetry::{PortCounters, prometheus};
use crate::testing::{MEMORY, Ring, SIZE, TX, USER, linux, memory_file};
use crate::worker::{Turn, answer};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

/// A front end that sends arbitrary messages with arbitrary descriptors, before the handshake or with running rings.
pub fn messages(data: &[u8]) {
    let mut input = Input(data);
    let running = input.u8() & 1 == 1;
    let (mut switch, hostile) = HostileSwitch::new(running.then(linux), linux());
    let (front_end, back_end) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let mut connection = Connection::new(back_end);
    let mut now = NOW;
    let mut alive = true;
    while alive && input.has_more() {
        let step = input.u8();
        let files = files(step);
        let message = if step & 0x80 != 0 {
            let len = input.u8();
            input.bytes(usize::from(len)).to_vec()
        } else {
            well_formed(&mut input)
        };
        if message.is_empty() {
            continue;
        }
        alive = send(&front_end, &message, &files);
        now = now + Nanos::from_micros(50);
        loop {
            let network = &mut switch.network;
            let id = PortId {
                network: 0,
                port: 0,
            };
            match answer(&mut connection, network, id, &switch.poller, now) {
                Ok(Turn::Message | Turn::Enough | Turn::Refused(_)) => {}
                Ok(Turn::Nothing) => break,
                Err(_) => {
                    alive = false;
                    break;
                }
            }
        }
        if let Some(hostile) = &hostile {
            // The guest's driver keeps offering frames.
            let head = u16::from(step % 16);
            TX.offer(&hostile.driver, TX.used_index(&hostile.driver), head);
        }
        switch.kick(0, 1, now);
    }
    let network = &mut switch.network;
    if let Some(guest) = network.guest_mut(0) {
        guest.disconnect(&switch.poller, now);
    }
    network.port_left(0);
    switch.check(now);
}

/// The descriptors that a step sends along.
fn files(step: u8) -> Vec<OwnedFd> {
    let make = || match step >> 3 & 3 {
        0 => memory_file(),
        1 => eventfd(0, EventfdFlags::CLOEXEC).unwrap(),
        2 => {
            let file = memfd_create("short", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&file, 4096).unwrap();
            file
        }
        _ => rustix::pipe::pipe().unwrap().1,
    };
    let count = match step & 7 {
        7 => 12,
        count => usize::from(count),
    };
    (0..count).map(|_| make()).collect()
}

/// A message with a correct header. Its payload is one that an honest front end could send, with bits changed by the
/// input.
fn well_formed(input: &mut Input) -> Vec<u8> {
    let code = u32::from(input.u8() % 48);
    let ring = Ring(u64::from(input.u8() % 2));
    let addresses = ring.addresses();
    let region = [0, MEMORY, USER, 0];
    let words: Vec<u64> = match code {
        2 => vec![linux().0],
        5 => [&[1], &region[..]].concat(),
        6 => vec![MEMORY / 8, 0],
        8 => vec![ring.0 | u64::from(SIZE) << 32],
        9 => vec![
            ring.0,
            addresses.descriptors,
            addresses.used,
            addresses.available,
            0,
        ],
        10..=14 => vec![ring.0],
        16 => vec![ProtocolFeatures::OFFERED.with(ProtocolFeatures::CONFIG).0],
        18 => vec![ring.0 | 1 << 32],
        19 | 20 => vec![1500],
        24 | 25 => vec![12 << 32, 0, 0],
        39 => vec![15],
        37 | 38 => vec![0, 1 << 32, MEMORY, USER + (1 << 32), 0],
        _ => Vec::new(),
    };
    let mut payload: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let flags = if input.u8() & 1 == 0 { 1_u32 } else { 9 };
    let len = usize::from(input.u8() % 64);
    let changes = input.bytes(len);
    if len > payload.len() && len % 2 == 1 {
        payload.resize(len, 0);
    }
    for (byte, change) in payload.iter_mut().zip(changes) {
        *byte ^= change;
    }
    let size = u32::try_from(payload.len()).unwrap_or(0);
    let header = [code, flags, size].map(u32::to_ne_bytes).concat();
    [header, payload].concat()
}

/// Returns whether the back end still takes messages.
fn send(socket: &OwnedFd, bytes: &[u8], files: &[OwnedFd]) -> bool {
    let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).is_ok()
}

/// Control frames of a guest, one after the other.
pub fn control_frame(data: &[u8]) {
    let mut input = Input(data);
    let policy = Policy {
        cap_us: input.u16().into(),
        lease_cap_s: input.u16().into(),
        ..Policy::default()
    };
    let mut leases = LeaseManager::new(policy);
    let mut now = NOW;
    for _ in 0..MOST_STEPS {
        if !input.has_more() {
            break;
        }
        now = now + Nanos::from_micros(input.u32());
        let step = input.u8();
        let mut frame = control_frames::Request {
            source: [2; 6],
            operation: control_frames::Operation::Ask,
            enable: step & 1 == 1,
            hold_us: input.u32(),
            lease_s: input.u32(),
            nonce: 7,
        }
        .to_frame()
        .to_vec();
        let changed = usize::from(input.u8() % 64);
        frame.truncate(64 - usize::from(step >> 2));
        for (byte, change) in frame.iter_mut().zip(input.bytes(changed)) {
            *byte ^= change;
        }
        if let Answer::Reply(reply) = leases.frame(now, &frame) {
            let reply = control_frames::Reply::from_frame(&reply).unwrap();
            assert!(reply.hold_us <= policy.cap_us, "{reply:?}");
            assert!(reply.lease_s <= policy.lease_cap_s, "{reply:?}");
        }
        assert!(leases.budget(now) <= Nanos::from_micros(policy.cap_us));
        let _ = control_frames::Reply::from_frame(&frame);
    }
}

/// Input from an operator, or from an attacker with access to the socket: lines of JSON, or HTTP.
pub fn operator(data: &[u8]) {
    for line in data.split(|byte| *byte == b'\n') {
        let Ok(request) = api::parse(line) else {
            continue;
        };
        let text = serde_json::to_vec(&request).unwrap();
        assert_eq!(api::parse(&text).ok().as_ref(), Some(&request));
        if let api::Request::Set { change, .. } = request {
            let (mut policy, mut settings) = (Policy::default(), HoldSettings::default());
            change.apply(&mut policy, &mut settings);
            let _ = LeaseManager::new(policy).budget(NOW);
        }
    }
    let name = String::from_utf8_lossy(data);
    let snapshot = PortCounters::default().snapshot(&name, Mode::Off, Nanos::ZERO);
    let _ = prometheus::text(&[snapshot]);
    let _ = vtax_http::parse(data);
}
