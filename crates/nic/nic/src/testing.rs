// SPDX-License-Identifier: Apache-2.0
//! A driver for unit tests: guest memory, rings in it, and valid and invalid writes to them.

use crate::features::Features;
use crate::frame::HEADER_LEN;
use crate::hold::{HoldSettings, Mode, Nanos};
use crate::memory::{GuestMemory, Mapping, RegionDescription};
use crate::network::Guest;
use crate::poller::{Poller, PortId};
use crate::protocol::{Request, VringAddress};
use crate::ring::RingAddresses;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::OwnedFd;

/// Entries of every ring here.
pub const SIZE: u16 = 16;

/// Bytes of guest memory.
pub const MEMORY: u64 = 0x20_0000;

/// The front end's address of guest address 0.
pub const USER: u64 = 0x7f00_0000_0000;

/// The address of frames to send and of receive buffers.
pub const BUFFERS: u64 = 0x10_0000;

/// Bytes of a descriptor, and its flags.
pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;

pub fn memory_file() -> OwnedFd {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, MEMORY).unwrap();
    file
}

pub fn description() -> RegionDescription {
    RegionDescription {
        guest: 0,
        size: MEMORY,
        user: USER,
        offset: 0,
    }
}

/// Guest memory as the guest writes it.
pub struct Driver {
    mapping: Mapping,
    pub file: OwnedFd,
}

impl Driver {
    pub fn new() -> Self {
        let file = memory_file();
        let mapping = Mapping::new(file.try_clone().unwrap(), 0, MEMORY, "test", None).unwrap();
        Self { mapping, file }
    }

    /// The same memory as the device maps it.
    pub fn device_memory(&self) -> GuestMemory {
        let mut memory = GuestMemory::default();
        memory
            .add(description(), self.file.try_clone().unwrap())
            .unwrap();
        memory
    }

    pub fn write(&self, at: u64, bytes: &[u8]) {
        let host = self.mapping.at(at, bytes.len() as u64).unwrap();
        // SAFETY: `at` checked the range, and the memory is a mapping of this test.
        unsafe { std::ptr::copy(bytes.as_ptr(), host, bytes.len()) };
    }

    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let host = self.mapping.at(at, len as u64).unwrap();
        // SAFETY: `at` checked the range, and the memory is a mapping of this test.
        unsafe { std::ptr::copy(host, bytes.as_mut_ptr(), len) };
        bytes
    }

    pub fn u16_at(&self, at: u64) -> u16 {
        u16::from_le_bytes(self.read(at, 2).try_into().unwrap())
    }

    pub fn u32_at(&self, at: u64) -> u32 {
        u32::from_le_bytes(self.read(at, 4).try_into().unwrap())
    }
}

/// One ring in a driver's memory. Ring `n` has a page of its own.
#[derive(Clone, Copy)]
pub struct Ring(pub u64);

impl Ring {
    pub fn addresses(self) -> RingAddresses {
        let base = USER + self.descriptors();
        RingAddresses {
            descriptors: base,
            available: base + 0x400,
            used: base + 0x800,
            used_log: Some(self.descriptors() + 0x800),
        }
    }

    pub fn descriptors(self) -> u64 {
        0x1000 + self.0 * 0x1000
    }

    pub fn available(self) -> u64 {
        self.descriptors() + 0x400
    }

    pub fn used(self) -> u64 {
        self.descriptors() + 0x800
    }

    pub fn describe(self, driver: &Driver, index: u16, descriptor: (u64, u32, u16, u16)) {
        let at = self.descriptors() + u64::from(index) * 16;
        driver.write(at, &encode(descriptor));
    }

    /// Offers a head at `position`, counted from the ring's start.
    pub fn offer(self, driver: &Driver, position: u16, head: u16) {
        let entry = self.available() + 4 + u64::from(position % SIZE) * 2;
        driver.write(entry, &head.to_le_bytes());
        self.set_available(driver, position.wrapping_add(1));
    }

    pub fn set_available(self, driver: &Driver, index: u16) {
        driver.write(self.available() + 2, &index.to_le_bytes());
    }

    pub fn set_used_event(self, driver: &Driver, event: u16) {
        let at = self.available() + 4 + u64::from(SIZE) * 2;
        driver.write(at, &event.to_le_bytes());
    }

    pub fn available_event(self, driver: &Driver) -> u16 {
        driver.u16_at(self.used() + 4 + u64::from(SIZE) * 8)
    }

    pub fn used_index(self, driver: &Driver) -> u16 {
        driver.u16_at(self.used() + 2)
    }

    pub fn used_element(self, driver: &Driver, position: u16) -> (u32, u32) {
        let at = self.used() + 4 + u64::from(position % SIZE) * 8;
        (driver.u32_at(at), driver.u32_at(at + 4))
    }
}

/// A descriptor's bytes.
pub fn encode((address, len, flags, next): (u64, u32, u16, u16)) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    bytes
}

/// A guest with one running queue pair, and the port that it is on.
pub struct Peer {
    pub driver: Driver,
    pub calls: [OwnedFd; 2],
    pub kicks: [OwnedFd; 2],
    offered: u16,
    sent: u16,
    received: u16,
}

pub const RX: Ring = Ring(0);
pub const TX: Ring = Ring(1);
pub const CONTROL: Ring = Ring(2);

/// The address of the control queue's answers.
pub const ANSWER: u64 = BUFFERS + 0xf_0000;

/// Features of a modern Linux guest with split rings.
pub fn linux() -> Features {
    Features::OFFERED
        .without(Features::LOG_ALL)
        .without(Features::RING_PACKED)
}

pub fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// A port for tests.
pub fn port(number: u16, mode: Mode) -> Guest {
    let id = PortId {
        network: 0,
        port: number,
    };
    let settings = HoldSettings {
        mode,
        ..HoldSettings::default()
    };
    Guest::new(
        id,
        2,
        Features::OFFERED,
        settings,
        crate::control::Policy::default(),
    )
}

impl Peer {
    /// A guest before its front end's handshake.
    pub fn new() -> Self {
        Self {
            driver: Driver::new(),
            calls: [event(), event()],
            kicks: [event(), event()],
            offered: 0,
            sent: 0,
            received: 0,
        }
    }

    /// Completes the front end's handshake with a port.
    pub fn start(guest: &mut Guest, poller: &Poller, features: Features) -> Self {
        let peer = Self::new();
        peer.connect(guest, poller, features);
        peer
    }

    /// Repeats the handshake, as after a restart of the back end: the used indexes are the rings' bases.
    pub fn connect(&self, guest: &mut Guest, poller: &Poller, features: Features) {
        let used = |ring: Ring| ring.used_index(&self.driver);
        self.connect_from(guest, poller, features, used);
    }

    /// The same with other bases.
    pub fn connect_from(
        &self,
        guest: &mut Guest,
        poller: &Poller,
        features: Features,
        base: impl Fn(Ring) -> u16,
    ) {
        let mut ask = |request| guest.handle(request, poller, Nanos(1)).unwrap();
        ask(Request::SetOwner);
        ask(Request::SetFeatures(features));
        ask(Request::SetMemTable(vec![(
            description(),
            self.driver.file.try_clone().unwrap(),
        )]));
        for (ring, queue) in [(RX, 0), (TX, 1)] {
            ask(Request::SetVringNum {
                queue,
                size: SIZE.into(),
            });
            ask(Request::SetVringBase {
                queue,
                base: base(ring).into(),
            });
            ask(Request::SetVringAddr(VringAddress {
                queue,
                addresses: ring.addresses(),
            }));
            let index = queue as usize;
            let file = |file: &OwnedFd| Some(file.try_clone().unwrap());
            ask(Request::SetVringKick {
                queue,
                file: file(&self.kicks[index]),
            });
            ask(Request::SetVringCall {
                queue,
                file: file(&self.calls[index]),
            });
            ask(Request::SetVringEnable {
                queue,
                enable: true,
            });
        }
        for call in &self.calls {
            drain(call);
        }
    }

    /// Starts a control queue as number `queue`. Tests kick it themselves.
    pub fn start_control(&self, guest: &mut Guest, poller: &Poller, queue: u32) {
        let mut ask = |request| guest.handle(request, poller, Nanos(1)).unwrap();
        ask(Request::SetVringNum {
            queue,
            size: SIZE.into(),
        });
        ask(Request::SetVringAddr(VringAddress {
            queue,
            addresses: CONTROL.addresses(),
        }));
        ask(Request::SetVringKick {
            queue,
            file: Some(event()),
        });
        ask(Request::SetVringEnable {
            queue,
            enable: true,
        });
    }

    /// Puts a command into the control queue, with room for an answer of `room` bytes.
    pub fn command(&self, position: u16, request: &[u8], room: u32) {
        let at = ANSWER + 0x1000;
        self.driver.write(at, request);
        let len = u32::try_from(request.len()).unwrap();
        let head = position * 2 % SIZE;
        CONTROL.describe(&self.driver, head, (at, len, NEXT, head + 1));
        CONTROL.describe(&self.driver, head + 1, (ANSWER, room, WRITE, 0));
        CONTROL.offer(&self.driver, position, head);
    }

    /// Offers `count` receive buffers of `len` bytes.
    pub fn offer_buffers(&mut self, count: u16, len: u32) {
        for _ in 0..count {
            let head = self.offered % SIZE;
            let address = BUFFERS + u64::from(head) * 0x1000;
            RX.describe(&self.driver, head, (address, len, WRITE, 0));
            RX.offer(&self.driver, self.offered, head);
            self.offered = self.offered.wrapping_add(1);
        }
    }

    /// Offers buffers until there are eight.
    pub fn refill(&mut self) {
        let used = RX.used_index(&self.driver);
        while self.offered.wrapping_sub(used) < 8 {
            self.offer_buffers(1, 0x800);
        }
    }

    /// Sends a frame with a header, in one descriptor.
    pub fn send(&mut self, header: [u8; HEADER_LEN], frame: &[u8]) {
        let head = self.sent % SIZE;
        let address = BUFFERS + 0x8_0000 + u64::from(head) * 0x4000;
        let bytes = [&header, frame].concat();
        self.driver.write(address, &bytes);
        let len = u32::try_from(bytes.len()).unwrap();
        TX.describe(&self.driver, head, (address, len, 0, 0));
        TX.offer(&self.driver, self.sent, head);
        self.sent = self.sent.wrapping_add(1);
    }

    /// Sends a chain that was described already.
    pub fn send_chain(&mut self, head: u16) {
        TX.offer(&self.driver, self.sent, head);
        self.sent = self.sent.wrapping_add(1);
    }

    /// The frames received since the last call, with their headers. A frame that spans buffers is joined.
    pub fn received(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut frames = Vec::new();
        while self.received != RX.used_index(&self.driver) {
            let mut bytes = self.next_buffer();
            let header = bytes.drain(..HEADER_LEN).collect::<Vec<_>>();
            for _ in 1..u16::from_le_bytes([header[10], header[11]]) {
                bytes.extend(self.next_buffer());
            }
            frames.push((header, bytes));
        }
        frames
    }

    fn next_buffer(&mut self) -> Vec<u8> {
        let (head, len) = RX.used_element(&self.driver, self.received);
        self.received = self.received.wrapping_add(1);
        self.driver
            .read(BUFFERS + u64::from(head) * 0x1000, len as usize)
    }

    /// The number of calls for a ring since the last call of this function.
    pub fn calls(&self, ring: usize) -> u64 {
        drain(&self.calls[ring])
    }
}

/// Reads an event descriptor. Returns the number of signals since the last reading.
pub fn drain(event: &OwnedFd) -> u64 {
    let mut bytes = [0; 8];
    match rustix::io::read(event, &mut bytes) {
        Ok(_) => u64::from_ne_bytes(bytes),
        Err(_) => 0,
    }
}

/// The driver's side of one packed ring, and memory of its own.
pub struct PackedDriver {
    pub memory: Driver,
    pub size: u16,
    next: (u16, bool),
    seen: (u16, bool),
    /// Identifiers of offered chains that were not returned, with their slots, in order.
    open: std::collections::VecDeque<(u16, u16)>,
}

impl PackedDriver {
    pub const RING: u64 = 0x1_0000;
    pub const DRIVER_EVENT: u64 = 0x2000;
    pub const DEVICE_EVENT: u64 = 0x3_0000;

    pub fn new(size: u16) -> Self {
        Self {
            memory: Driver::new(),
            size,
            next: (0, true),
            seen: (0, true),
            open: std::collections::VecDeque::new(),
        }
    }

    pub fn addresses(&self) -> RingAddresses {
        RingAddresses {
            descriptors: USER + Self::RING,
            available: USER + Self::DRIVER_EVENT,
            used: USER + Self::DEVICE_EVENT,
            used_log: Some(Self::DEVICE_EVENT),
        }
    }

    fn after(&self, (slot, wrap): (u16, bool), slots: u16) -> (u16, bool) {
        if slot + slots < self.size {
            (slot + slots, wrap)
        } else {
            (slot + slots - self.size, !wrap)
        }
    }

    /// The number of free slots.
    pub fn free(&self) -> u16 {
        self.size - self.open.iter().map(|(_, slots)| slots).sum::<u16>()
    }

    pub fn write_slot(&self, slot: u64, (address, len, id, flags): (u64, u32, u16, u16)) {
        // Identifier and flags are in the place of a split ring's flags and next.
        self.memory
            .write(Self::RING + slot * 16, &encode((address, len, id, flags)));
    }

    pub fn write_table(&self, at: u64, index: u64, (address, len, flags): (u64, u32, u16)) {
        self.memory
            .write(at + index * 16, &encode((address, len, 0, flags)));
    }

    /// Offers a chain; returns whether the device wants a kick for it.
    pub fn offer(&mut self, id: u16, descriptors: &[(u64, u32, u16)]) -> bool {
        let first = self.next;
        let mut slots: Vec<_> = Vec::new();
        for (index, (address, len, flags)) in descriptors.iter().enumerate() {
            let (slot, wrap) = self.next;
            let more = if index + 1 < descriptors.len() {
                NEXT
            } else {
                0
            };
            let phase = if wrap { 1 << 7 } else { 1 << 15 };
            slots.push((slot, (*address, *len, id, flags | more | phase)));
            self.next = self.after(self.next, 1);
        }
        // The head is written last.
        for (slot, words) in slots.into_iter().rev() {
            self.write_slot(slot.into(), words);
        }
        let count = u16::try_from(descriptors.len()).unwrap();
        self.open.push_back((id, count));
        match self.device_event() {
            (_, 0) => true,
            (event, 2) => (0..count).any(|slot| {
                let (slot, wrap) = self.after(first, slot);
                event == slot | u16::from(wrap) << 15
            }),
            _ => false,
        }
    }

    fn used(&self) -> Option<(u16, u32)> {
        let (slot, wrap) = self.seen;
        let at = Self::RING + u64::from(slot) * 16;
        let flags = self.memory.u16_at(at + 14);
        let returned = (flags & 1 << 7 != 0) == wrap && (flags & 1 << 15 != 0) == wrap;
        returned.then(|| (self.memory.u16_at(at + 12), self.memory.u32_at(at + 8)))
    }

    fn reap(&mut self) -> Option<u16> {
        let (id, slots) = self.open.pop_front()?;
        self.seen = self.after(self.seen, slots);
        Some(id)
    }

    /// The next returned chain, and the number of bytes written into it.
    pub fn take_used(&mut self) -> Option<(u16, u32)> {
        let (id, len) = self.used()?;
        assert_eq!(self.reap(), Some(id), "chains come back in order");
        Some((id, len))
    }

    /// The chains of the next batch, for which only the last one was returned.
    pub fn take_used_in_order(&mut self) -> Vec<u16> {
        let Some((last, _)) = self.used() else {
            return Vec::new();
        };
        let mut ids = Vec::new();
        while let Some(id) = self.reap() {
            ids.push(id);
            if id == last {
                break;
            }
        }
        assert_eq!(ids.last(), Some(&last), "it was on its way");
        ids
    }

    pub fn set_event(&self, flags: u16, position: u16) {
        let word = u32::from(flags) << 16 | u32::from(position);
        self.memory.write(Self::DRIVER_EVENT, &word.to_le_bytes());
    }

    /// Position and flags.
    pub fn device_event(&self) -> (u16, u16) {
        (
            self.memory.u16_at(Self::DEVICE_EVENT),
            self.memory.u16_at(Self::DEVICE_EVENT + 2),
        )
    }

    fn position(&self, base: u16, slots: u16) -> (u16, bool) {
        self.after((base & 0x7fff, base & 0x8000 != 0), slots)
    }

    /// Returns the descriptor `slots` after a position, as a device does.
    pub fn return_by_force(&self, base: u16, slots: u16, id: u16) {
        let (slot, wrap) = self.position(base, slots);
        let flags = if wrap { 1 << 15 | 1 << 7 } else { 0 };
        self.write_slot(slot.into(), (BUFFERS, 0, id, flags));
    }

    /// Notes the position `slots` after another, as the device does.
    pub fn note(&self, base: u16, slots: u16) {
        let (slot, wrap) = self.position(base, slots);
        let bits = slot | u16::from(wrap) << 15;
        self.memory.write(Self::DEVICE_EVENT, &bits.to_le_bytes());
    }
}

/// A dirty log that covers the memory here, and its file.
pub fn log() -> (OwnedFd, crate::memory::DirtyLog) {
    let file = memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
    let bytes = MEMORY / 4096 / 8;
    ftruncate(&file, bytes).unwrap();
    let log = crate::memory::DirtyLog::new(
        file.try_clone().unwrap(),
        0,
        bytes,
        &crate::memory::GuestMemory::default(),
    )
    .unwrap();
    (file, log)
}

/// The pages that a log marks as dirty.
pub fn dirty_pages(file: &OwnedFd) -> Vec<u64> {
    let mut bytes = vec![0; usize::try_from(MEMORY / 4096 / 8).unwrap()];
    rustix::io::pread(file, &mut bytes, 0).unwrap();
    (0..MEMORY / 4096)
        .filter(|page| bytes[usize::try_from(page / 8).unwrap()] & 1 << (page % 8) != 0)
        .collect()
}
