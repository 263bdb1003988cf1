// SPDX-License-Identifier: Apache-2.0
//! The notification handshake in every order of its steps, between this crate's rings, a driver as in Linux
//! (`virtqueue_enable_cb` and `virtqueue_kick_prepare`, of split and of packed rings) and vhost-net's `vhost_notify`.
//! In no order does a side sleep while buffers of the other side wait for it.
//!
//! A step is one access to shared memory, and steps follow each other. The order between a store and the load after it
//! is the purpose of the fences, which `order_tests` checks.

use super::*;
use crate::testing::{BUFFERS, Driver, PackedDriver, Ring, SIZE, encode};
use std::collections::HashSet;
use std::fmt::Debug;

const RING: Ring = Ring(0);

/// The number of frames.
const FRAMES: u16 = 3;

/// The state of all sides, and the memory that they share.
trait World: Clone + Debug {
    /// Writes the shared memory to the addresses that the rings read.
    fn load(&self, driver: &Driver);
    /// Reads the shared memory from there.
    fn save(&mut self, driver: &Driver);
    /// Whether all sides may sleep.
    fn rests(&self) -> bool;
}

/// One step of one side. Returns whether it had a step to take.
type Actor<W> = fn(&mut W, &Driver) -> bool;

/// Takes every step of every actor in every reachable state. Returns the number of states.
fn explore<W: World>(first: W, actors: &[Actor<W>], driver: &Driver) -> usize {
    let mut seen = HashSet::from([format!("{first:?}")]);
    let mut waiting = vec![first];
    while let Some(world) = waiting.pop() {
        let mut moved = false;
        for actor in actors {
            let mut next = world.clone();
            next.load(driver);
            if !actor(&mut next, driver) {
                continue;
            }
            moved = true;
            next.save(driver);
            if seen.insert(format!("{next:?}")) {
                waiting.push(next);
            }
        }
        assert!(moved || world.rests(), "all sleep: {world:?}");
    }
    seen.len()
}

/// A guest's NAPI: after a wake-up it takes all buffers, asks for the next signal, and checks the ring once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Poll {
    Sleeps,
    Takes,
    Arms,
    LooksAgain,
}

/// The state of the three sides of a receive ring.
#[derive(Debug, Clone)]
struct Receive<R> {
    ring: R,
    /// Shared memory: the used index, and the driver's event.
    used: u16,
    event: u16,
    interrupt: bool,
    guest: Poll,
    seen: u16,
    /// Frames that have not arrived yet.
    left: u16,
    /// The kernel's state, where it returns buffers: the used index at its last check, whether a check is due, and
    /// whether it has signalled.
    kernel: (u16, bool, bool),
    /// This crate's state: the next step of a release.
    release: u8,
}

impl<R> Receive<R> {
    fn new(ring: R) -> Self {
        Self {
            ring,
            used: 0,
            event: 0,
            interrupt: false,
            guest: Poll::Sleeps,
            seen: 0,
            left: FRAMES,
            kernel: (0, false, false),
            release: 0,
        }
    }

    /// One step of the guest.
    fn poll(&mut self, _driver: &Driver) -> bool {
        self.guest = match self.guest {
            Poll::Sleeps if self.interrupt => {
                self.interrupt = false;
                Poll::Takes
            }
            Poll::Sleeps => return false,
            Poll::Takes => {
                self.seen = self.used;
                Poll::Arms
            }
            Poll::Arms => {
                self.event = self.seen;
                Poll::LooksAgain
            }
            Poll::LooksAgain if self.used == self.seen => Poll::Sleeps,
            Poll::LooksAgain => Poll::Takes,
        };
        true
    }
}

impl<R: Clone + Debug> World for Receive<R> {
    fn load(&self, driver: &Driver) {
        driver.write(RING.used() + 2, &self.used.to_le_bytes());
        RING.set_used_event(driver, self.event);
    }

    fn save(&mut self, driver: &Driver) {
        self.used = RING.used_index(driver);
    }

    fn rests(&self) -> bool {
        self.seen == FRAMES
    }
}

impl Receive<RingView> {
    /// One step of vhost-net: it returns a buffer, then checks whether a signal is wanted.
    fn vhost(&mut self, driver: &Driver) -> bool {
        let (signalled, looks, _) = self.kernel;
        if looks {
            if passed(self.event, self.used, signalled) {
                self.kernel.2 = true;
            }
            (self.kernel.0, self.kernel.1) = (self.used, false);
        } else if self.left > 0 {
            self.left -= 1;
            driver.write(RING.used() + 2, &(self.used + 1).to_le_bytes());
            self.kernel.1 = true;
        } else {
            return false;
        }
        true
    }

    /// One step of this crate, between vhost-net and the guest: see `Guest::release`.
    fn pass_on(&mut self, _driver: &Driver) -> bool {
        self.release = match self.release {
            0 if self.kernel.2 => {
                self.kernel.2 = false;
                1
            }
            0 => return false,
            1 => u8::from(self.ring.wants_signal()) * 2,
            2 => {
                self.interrupt = true;
                3
            }
            _ => {
                self.ring.signalled();
                0
            }
        };
        true
    }
}

impl Receive<SplitRing> {
    /// One step of this crate where it moves the frames.
    fn serve(&mut self, _driver: &Driver) -> bool {
        self.release = match self.release {
            0 if self.left > 0 => {
                self.left -= 1;
                self.ring.give(Place::default(), 64);
                self.ring.publish(None);
                1
            }
            0 => return false,
            1 => u8::from(self.ring.wants_signal()) * 2,
            2 => {
                self.interrupt = true;
                3
            }
            _ => {
                self.ring.signalled();
                0
            }
        };
        true
    }
}

#[test]
fn no_order_loses_a_call_between_vhost_net_and_the_guest() {
    let driver = Driver::new();
    let memory = driver.device_memory();
    let view = RingView::new(&memory, &RING.addresses(), SIZE, Features::EVENT_IDX).unwrap();
    let states = explore(
        Receive::new(view),
        &[Receive::vhost, Receive::pass_on, Receive::poll],
        &driver,
    );
    assert!(states > 500, "{states}");
}

#[test]
fn no_order_loses_a_call_of_ours() {
    let driver = Driver::new();
    let memory = driver.device_memory();
    let ring = SplitRing::new(&memory, &RING.addresses(), SIZE, 0, true, true).unwrap();
    let states = explore(
        Receive::new(ring),
        &[Receive::serve, Receive::poll],
        &driver,
    );
    assert!(states > 50, "{states}");
}

/// The state of the two sides of a transmit ring.
#[derive(Debug, Clone)]
struct Transmit {
    ring: SplitRing,
    /// Shared memory: the available index, and the device's event.
    available: u16,
    event: u16,
    kick: bool,
    /// The driver's state: frames to send, and whether a check for a kick is due.
    left: u16,
    looks: bool,
    /// The worker's state.
    worker: Poll,
    taken: u16,
}

impl Transmit {
    /// One step of the guest: it offers a frame, then checks whether a kick is wanted.
    fn send(&mut self, _driver: &Driver) -> bool {
        if self.looks {
            self.looks = false;
            self.kick |= passed(self.event, self.available, self.available - 1);
        } else if self.left > 0 {
            self.left -= 1;
            self.available += 1;
            self.looks = true;
        } else {
            return false;
        }
        true
    }

    /// One step of the worker.
    fn drain(&mut self, driver: &Driver) -> bool {
        self.worker = match self.worker {
            Poll::Sleeps if self.kick => {
                self.kick = false;
                self.ring.disarm(None);
                Poll::Takes
            }
            Poll::Sleeps => return false,
            Poll::Takes => {
                let memory = driver.device_memory();
                while let Ok(Some(_)) =
                    self.ring
                        .take(&memory, Direction::Readable, &mut Vec::new())
                {
                    self.taken += 1;
                }
                Poll::Arms
            }
            // The two halves of `arm`: a store, and the load after it.
            Poll::Arms => {
                self.ring.ask(None);
                Poll::LooksAgain
            }
            Poll::LooksAgain => match self.ring.finds_more() {
                Ok(false) => Poll::Sleeps,
                _ => Poll::Takes,
            },
        };
        true
    }
}

impl World for Transmit {
    fn load(&self, driver: &Driver) {
        RING.set_available(driver, self.available);
        let at = RING.used() + 4 + u64::from(SIZE) * 8;
        driver.write(at, &self.event.to_le_bytes());
    }

    fn save(&mut self, driver: &Driver) {
        self.event = RING.available_event(driver);
    }

    fn rests(&self) -> bool {
        self.taken == FRAMES
    }
}

#[test]
fn no_order_loses_a_kick() {
    let driver = Driver::new();
    let memory = driver.device_memory();
    RING.describe(&driver, 0, (BUFFERS, 64, 0, 0));
    let ring = SplitRing::new(&memory, &RING.addresses(), SIZE, 0, true, true).unwrap();
    let first = Transmit {
        ring,
        available: 0,
        event: 0,
        kick: false,
        left: FRAMES,
        looks: false,
        worker: Poll::Sleeps,
        taken: 0,
    };
    let states = explore(first, &[Transmit::send, Transmit::drain], &driver);
    assert!(states > 20, "{states}");
}

const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// Flags of a packed ring's event suppression: signals are wanted, not wanted, or wanted only past an event.
const ENABLE: u16 = 0;
const DISABLE: u16 = 1;
const AT_DESCRIPTOR: u16 = 2;

/// A packed ring's shared memory, and the driver's position in it.
#[derive(Debug, Clone)]
struct Packed {
    size: u16,
    /// Flags of each slot.
    slots: Vec<u16>,
    /// Position and flags: the driver's event, and the device's.
    driver_event: (u16, u16),
    device_event: (u16, u16),
    /// The driver's counts from the first slot of lap 0, whose wrap counter is 1: the buffers that it offered, and
    /// those that it found returned.
    offered: u16,
    seen: u16,
}

impl Packed {
    /// Starts at a slot of the first lap, with no buffer offered.
    fn new(size: u16, slot: u16) -> Self {
        let base = slot | 1 << 15;
        Self {
            size,
            // The slots before it were returned.
            slots: (0..size)
                .map(|before| if before < slot { AVAILABLE | USED } else { 0 })
                .collect(),
            driver_event: (0, ENABLE),
            device_event: (base, ENABLE),
            offered: slot,
            seen: slot,
        }
    }

    fn ring(&self, driver: &PackedDriver, memory: &GuestMemory, event_idx: bool) -> PackedRing {
        self.load(&driver.memory);
        let mut features = Features::RING_PACKED;
        if event_idx {
            features = features.with(Features::EVENT_IDX);
        }
        let base = self.device_event.0;
        PackedRing::new(memory, &driver.addresses(), self.size, base, features).unwrap()
    }

    /// A count's slot and wrap counter.
    fn at(&self, count: u16) -> (usize, bool) {
        let wrap = (count / self.size).is_multiple_of(2);
        (usize::from(count % self.size), wrap)
    }

    /// The same position in the encoding of an event.
    fn position(&self, count: u16) -> u16 {
        let (slot, wrap) = self.at(count);
        slot as u16 | u16::from(wrap) << 15
    }

    /// The driver offers a buffer, if it has a slot for it.
    fn offer(&mut self) -> bool {
        let (slot, wrap) = self.at(self.offered);
        let room = self.offered - self.seen < self.size;
        if room {
            self.slots[slot] = if wrap { AVAILABLE } else { USED };
            self.offered += 1;
        }
        room
    }

    /// Whether a buffer was returned that the driver has not seen.
    fn is_returned(&self) -> bool {
        let (slot, wrap) = self.at(self.seen);
        let flags = self.slots[slot];
        self.seen < self.offered
            && [AVAILABLE, USED]
                .iter()
                .all(|bit| (flags & bit != 0) == wrap)
    }

    /// The driver takes back all returned buffers. Returns their number.
    fn reclaim(&mut self) -> u16 {
        let before = self.seen;
        while self.is_returned() {
            self.seen += 1;
        }
        self.seen - before
    }

    /// Linux's `virtqueue_kick_prepare_packed`, after `count` buffers were offered.
    fn wants_kick(&self, count: u16) -> bool {
        let (event, flags) = self.device_event;
        if flags != AT_DESCRIPTOR {
            return flags != DISABLE;
        }
        let (slot, wrap) = self.at(self.offered);
        let new = slot as u16;
        let mut event_slot = event & !(1 << 15);
        if (event & 1 << 15 != 0) != wrap {
            event_slot = event_slot.wrapping_sub(self.size);
        }
        passed(event_slot, new, new.wrapping_sub(count))
    }

    fn load(&self, driver: &Driver) {
        for (slot, flags) in (0_u64..).zip(&self.slots) {
            let at = PackedDriver::RING + slot * 16;
            driver.write(at, &encode((BUFFERS, 64, 0, *flags)));
        }
        for (at, (position, flags)) in [
            (PackedDriver::DRIVER_EVENT, self.driver_event),
            (PackedDriver::DEVICE_EVENT, self.device_event),
        ] {
            driver.write(at, &position.to_le_bytes());
            driver.write(at + 2, &flags.to_le_bytes());
        }
    }

    /// Reads the device's writes.
    fn save(&mut self, driver: &Driver) {
        for (slot, flags) in (0_u64..).zip(&mut self.slots) {
            *flags = driver.u16_at(PackedDriver::RING + slot * 16 + 14) & (AVAILABLE | USED);
        }
        let at = PackedDriver::DEVICE_EVENT;
        self.device_event = (driver.u16_at(at), driver.u16_at(at + 2));
    }
}

/// The state of both sides of a packed receive ring.
#[derive(Debug, Clone)]
struct PackedReceive {
    ring: PackedRing,
    shared: Packed,
    event_idx: bool,
    interrupt: bool,
    /// The guest's step: 0 sleeps; the others are those of its poll.
    guest: u8,
    received: u16,
    left: u16,
    release: u8,
}

impl PackedReceive {
    /// One step of the guest's NAPI: it disables signals, takes all buffers, offers new ones, asks for a signal (first
    /// the event's position, then its flags), and checks the ring once more.
    fn poll(&mut self, driver: &Driver) -> bool {
        self.guest = match self.guest {
            0 if self.interrupt => {
                self.interrupt = false;
                1
            }
            0 => return false,
            1 => {
                self.shared.driver_event.1 = DISABLE;
                2
            }
            2 => {
                self.received += self.shared.reclaim();
                3
            }
            3 => {
                while self.shared.offer() {}
                4
            }
            4 if self.event_idx => {
                self.shared.driver_event.0 = self.shared.position(self.shared.seen);
                5
            }
            4 | 5 => {
                let flags = if self.event_idx {
                    AT_DESCRIPTOR
                } else {
                    ENABLE
                };
                self.shared.driver_event.1 = flags;
                6
            }
            _ if self.shared.is_returned() => 1,
            _ => 0,
        };
        self.shared.load(driver);
        true
    }

    /// One step of the worker.
    fn serve(&mut self, driver: &Driver) -> bool {
        self.release = match self.release {
            0 if self.left > 0 => {
                let memory = driver.device_memory();
                let chain = self
                    .ring
                    .take(&memory, Direction::Readable, &mut Vec::new());
                let Some(chain) = chain.unwrap() else {
                    return false;
                };
                self.left -= 1;
                self.ring.give(chain.place, 0);
                self.ring.publish(None);
                1
            }
            0 => return false,
            1 => u8::from(self.ring.wants_signal()) * 2,
            2 => {
                self.interrupt = true;
                3
            }
            _ => {
                self.ring.signalled();
                0
            }
        };
        true
    }
}

impl World for PackedReceive {
    fn load(&self, driver: &Driver) {
        self.shared.load(driver);
    }

    fn save(&mut self, driver: &Driver) {
        self.shared.save(driver);
    }

    fn rests(&self) -> bool {
        self.received == FRAMES
    }
}

/// Sizes of packed rings and their first slots. Every slot is a start, so that every step also occurs at the end of a
/// lap.
fn packed_starts() -> impl Iterator<Item = (u16, u16, bool)> {
    [1, 2, 3, 4].into_iter().flat_map(|size| {
        (0..size).flat_map(move |slot| [false, true].map(|event_idx| (size, slot, event_idx)))
    })
}

#[test]
fn no_order_loses_a_call_of_ours_on_a_packed_ring() {
    for (size, slot, event_idx) in packed_starts() {
        let driver = PackedDriver::new(size);
        let memory = driver.memory.device_memory();
        let mut shared = Packed::new(size, slot);
        let ring = shared.ring(&driver, &memory, event_idx);
        while shared.offer() {}
        shared.driver_event = (
            shared.position(slot),
            if event_idx { AT_DESCRIPTOR } else { ENABLE },
        );
        let first = PackedReceive {
            ring,
            shared,
            event_idx,
            interrupt: false,
            guest: 0,
            received: 0,
            left: FRAMES,
            release: 0,
        };
        let states = explore(
            first,
            &[PackedReceive::serve, PackedReceive::poll],
            &driver.memory,
        );
        assert!(states > 20, "{size}, {slot}, {event_idx}: {states}");
    }
}

/// The state of both sides of a packed transmit ring.
#[derive(Debug, Clone)]
struct PackedTransmit {
    ring: PackedRing,
    shared: Packed,
    kick: bool,
    left: u16,
    looks: bool,
    /// The worker's state: 0 sleeps; then it takes, publishes and arms.
    worker: u8,
    taken: u16,
}

impl PackedTransmit {
    /// One step of the guest: it offers a frame where there is room, then checks whether a kick is wanted.
    fn send(&mut self, driver: &Driver) -> bool {
        if self.looks {
            self.looks = false;
            self.kick |= self.shared.wants_kick(1);
        } else if self.left > 0 {
            self.shared.reclaim();
            if !self.shared.offer() {
                return false;
            }
            self.left -= 1;
            self.looks = true;
        } else {
            return false;
        }
        self.shared.load(driver);
        true
    }

    /// One step of the worker.
    fn drain(&mut self, driver: &Driver) -> bool {
        self.worker = match self.worker {
            0 if self.kick => {
                self.kick = false;
                self.ring.disarm(None);
                1
            }
            0 => return false,
            1 => {
                let memory = driver.device_memory();
                while let Some(chain) = self
                    .ring
                    .take(&memory, Direction::Readable, &mut Vec::new())
                    .unwrap()
                {
                    self.taken += 1;
                    self.ring.give(chain.place, 0);
                }
                2
            }
            2 => {
                self.ring.publish(None);
                3
            }
            3 => {
                self.ring.ask(None);
                4
            }
            _ => u8::from(self.ring.finds_more().unwrap()),
        };
        true
    }
}

impl World for PackedTransmit {
    fn load(&self, driver: &Driver) {
        self.shared.load(driver);
    }

    fn save(&mut self, driver: &Driver) {
        self.shared.save(driver);
    }

    fn rests(&self) -> bool {
        self.taken == FRAMES
    }
}

#[test]
fn no_order_loses_a_kick_on_a_packed_ring() {
    for (size, slot, event_idx) in packed_starts() {
        let driver = PackedDriver::new(size);
        let memory = driver.memory.device_memory();
        let shared = Packed::new(size, slot);
        let mut ring = shared.ring(&driver, &memory, event_idx);
        ring.arm(None).unwrap();
        let mut first = PackedTransmit {
            ring,
            shared,
            kick: false,
            left: FRAMES,
            looks: false,
            worker: 0,
            taken: 0,
        };
        first.save(&driver.memory);
        let states = explore(
            first,
            &[PackedTransmit::send, PackedTransmit::drain],
            &driver.memory,
        );
        assert!(states > 15, "{size}, {slot}, {event_idx}: {states}");
    }
}
