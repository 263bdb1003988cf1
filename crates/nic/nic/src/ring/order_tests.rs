// SPDX-License-Identifier: Apache-2.0
//! The notification handshake where stores become visible late, between this crate's rings and a driver as in Linux, in
//! every order of their accesses that the memory model of C11 allows, as far as loom explores it (at most three
//! switches away from a side that could continue). `handshake_tests` takes the fences for granted. Here each fence of
//! the rings is removed in turn, and both sides are then found asleep.

use super::*;
use crate::testing::{Driver, PackedDriver, Ring, SIZE, USER};
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A word that both sides use: its address, and its length in bytes.
type Shared = (u64, usize);

/// Two sides of one handshake. Each returns whether it continues: it has found a buffer, or it signals the other side.
struct Sides {
    driver: Driver,
    memory: GuestMemory,
    ours: Box<dyn FnOnce() -> bool>,
    /// The word that the device writes and the one that the driver writes.
    shared: [Shared; 2],
    theirs: fn([Rc<AtomicU64>; 2]) -> bool,
}

/// Whether there is an order in which both sides sleep, with the fence of the rings or without it.
fn may_sleep(sides: fn() -> Sides, fenced: bool) -> bool {
    let slept = Arc::new(AtomicBool::new(false));
    let found = Arc::clone(&slept);
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let Sides {
            driver,
            memory,
            ours,
            shared,
            theirs,
        } = sides();
        let words = shared.map(|(at, bytes)| {
            let value = driver.read(at, bytes);
            let value = value
                .iter()
                .rev()
                .fold(0, |value, byte| value << 8 | u64::from(*byte));
            let (host, _) = memory.at_user(USER + at, bytes as u64, 2).unwrap();
            (host.addr(), Rc::new(AtomicU64::new(value)))
        });
        let seen = words.clone().map(|(_, word)| word);
        shared::MODEL.set(Some(shared::Model {
            words: words.into(),
            fenced,
        }));
        let driver = loom::thread::spawn(move || theirs(seen));
        let ours = ours();
        let theirs = driver.join().unwrap();
        shared::MODEL.set(None);
        found.fetch_or(!ours && !theirs, Ordering::Relaxed);
    });
    slept.load(Ordering::Relaxed)
}

const RING: Ring = Ring(0);

/// An event that no index passes.
const FAR: u16 = u16::MAX;

fn index_offered() -> Shared {
    (RING.available() + 2, 2)
}

fn index_used() -> Shared {
    (RING.used() + 2, 2)
}

/// The word in which the driver asks for signals.
fn driver_wants(events: bool) -> Shared {
    let event = RING.available() + 4 + u64::from(SIZE) * 2;
    (if events { event } else { RING.available() }, 2)
}

/// The word in which the device asks for kicks.
fn device_wants(events: bool) -> Shared {
    let event = RING.used() + 4 + u64::from(SIZE) * 8;
    (if events { event } else { RING.used() }, 2)
}

/// Sets the initial state: neither side wants notifications.
fn silent(driver: &Driver, events: bool) {
    for (at, _) in [driver_wants(events), device_wants(events)] {
        driver.write(at, &if events { FAR } else { 1 }.to_le_bytes());
    }
}

/// The device asks for a kick and checks the ring; the driver offers a buffer and checks whether a kick is wanted.
fn split_kick(events: bool) -> Sides {
    let driver = Driver::new();
    let memory = driver.device_memory();
    silent(&driver, events);
    let mut ring = SplitRing::new(&memory, &RING.addresses(), SIZE, 0, false, events).unwrap();
    let theirs: fn([Rc<AtomicU64>; 2]) -> bool = if events {
        |[event, offered]| {
            offered.store(1, Ordering::Release);
            fence(Ordering::SeqCst);
            passed(event.load(Ordering::Relaxed) as u16, 1, 0)
        }
    } else {
        |[flags, offered]| {
            offered.store(1, Ordering::Release);
            fence(Ordering::SeqCst);
            flags.load(Ordering::Relaxed) == 0
        }
    };
    Sides {
        driver,
        memory,
        ours: Box::new(move || ring.arm(None).unwrap()),
        shared: [device_wants(events), index_offered()],
        theirs,
    }
}

/// The driver asks for a signal at the first returned buffer, then checks the ring.
fn asks_for_a_signal([wants, used]: [Rc<AtomicU64>; 2]) -> bool {
    // The event is 0, and 0 is also the value of the flags that ask for signals.
    wants.store(0, Ordering::Release);
    fence(Ordering::SeqCst);
    used.load(Ordering::Acquire) == 1
}

/// The device returns a buffer and checks whether a signal is wanted.
fn split_call(events: bool) -> Sides {
    let driver = Driver::new();
    let memory = driver.device_memory();
    silent(&driver, events);
    let mut ring = SplitRing::new(&memory, &RING.addresses(), SIZE, 0, false, events).unwrap();
    Sides {
        driver,
        memory,
        ours: Box::new(move || {
            ring.give(Place::default(), 64);
            ring.publish(None);
            ring.wants_signal()
        }),
        shared: [driver_wants(events), index_used()],
        theirs: asks_for_a_signal,
    }
}

/// The kernel returns a buffer and wakes the worker, which checks whether a signal is wanted.
fn kernels_call(events: bool) -> Sides {
    let driver = Driver::new();
    let memory = driver.device_memory();
    silent(&driver, events);
    let features = features(events);
    let mut view = RingView::new(&memory, &RING.addresses(), SIZE, features).unwrap();
    let (used, _) = memory.at_user(USER + index_used().0, 2, 2).unwrap();
    Sides {
        driver,
        memory,
        ours: Box::new(move || {
            // SAFETY: the memory lives until both sides are done, and `at_user` found two bytes, aligned.
            let used = unsafe { &*used.cast_const().cast::<shared::AtomicU16>() };
            used.store(1, Ordering::Release);
            view.wants_signal()
        }),
        shared: [driver_wants(events), index_used()],
        theirs: asks_for_a_signal,
    }
}

fn features(events: bool) -> Features {
    if events {
        Features::RING_PACKED.with(Features::EVENT_IDX)
    } else {
        Features::RING_PACKED
    }
}

/// Flags of a packed ring's slot in its first lap, and of an event.
const AVAILABLE: u64 = 1 << 7;
const USED: u64 = 1 << 15;
const DISABLE: u64 = 1;

/// The word of the first slot that has its flags.
const SLOT: Shared = (PackedDriver::RING + 8, 8);

fn packed(events: bool) -> (PackedDriver, GuestMemory, PackedRing) {
    let driver = PackedDriver::new(SIZE);
    driver.set_event(DISABLE as u16, 0);
    let memory = driver.memory.device_memory();
    let first = 1 << 15;
    let ring = PackedRing::new(&memory, &driver.addresses(), SIZE, first, features(events));
    (driver, memory, ring.unwrap())
}

fn packed_kick(events: bool) -> Sides {
    let (driver, memory, mut ring) = packed(events);
    ring.disarm(None);
    Sides {
        driver: driver.memory,
        memory,
        ours: Box::new(move || ring.arm(None).unwrap()),
        shared: [(PackedDriver::DEVICE_EVENT, 4), SLOT],
        theirs: |[event, slot]| {
            slot.store(AVAILABLE << 48, Ordering::Release);
            fence(Ordering::SeqCst);
            // At this slot, where events are in use.
            event.load(Ordering::Relaxed) >> 16 != DISABLE
        },
    }
}

/// The driver asks for a signal, then checks whether the first slot was returned.
fn asks_for_the_slot(wanted: u64, [event, slot]: [Rc<AtomicU64>; 2]) -> bool {
    event.store(wanted, Ordering::Release);
    fence(Ordering::SeqCst);
    slot.load(Ordering::Acquire) >> 48 & USED != 0
}

fn packed_call(events: bool) -> Sides {
    let (mut driver, memory, mut ring) = packed(events);
    driver.offer(0, &[(crate::testing::BUFFERS, 64, crate::testing::WRITE)]);
    let (place, _) = ring.take_single(&memory, Direction::Writable).unwrap();
    Sides {
        driver: driver.memory,
        memory,
        ours: Box::new(move || {
            ring.give(place, 64);
            ring.publish(None);
            ring.wants_signal()
        }),
        shared: [(PackedDriver::DRIVER_EVENT, 4), SLOT],
        theirs: if events {
            |shared| asks_for_the_slot(2 << 16 | 1 << 15, shared)
        } else {
            |shared| asks_for_the_slot(0, shared)
        },
    }
}

/// A handshake: its name, and its initial state.
type Handshake = (&'static str, fn() -> Sides);

const HANDSHAKES: [Handshake; 10] = [
    ("kick of a split ring, by flags", || split_kick(false)),
    ("kick of a split ring, by events", || split_kick(true)),
    ("call of a split ring, by flags", || split_call(false)),
    ("call of a split ring, by events", || split_call(true)),
    ("call of the kernel's ring, by flags", || {
        kernels_call(false)
    }),
    ("call of the kernel's ring, by events", || {
        kernels_call(true)
    }),
    ("kick of a packed ring, by flags", || packed_kick(false)),
    ("kick of a packed ring, by events", || packed_kick(true)),
    ("call of a packed ring, by flags", || packed_call(false)),
    ("call of a packed ring, by events", || packed_call(true)),
];

#[test]
fn no_order_that_memory_allows_puts_both_sides_to_sleep() {
    for (what, sides) in HANDSHAKES {
        assert!(!may_sleep(sides, true), "{what}");
    }
}

#[test]
fn without_its_fence_each_handshake_loses_a_wake_up() {
    for (what, sides) in HANDSHAKES {
        assert!(may_sleep(sides, false), "{what}: the model finds nothing");
    }
}
