// SPDX-License-Identifier: Apache-2.0
//! A packed ring with hostile drivers, and its effects that a valid driver sees.

use super::*;
use crate::testing::{BUFFERS, INDIRECT, MEMORY, NEXT, PackedDriver, SIZE, WRITE};
use proptest::prelude::*;
use std::collections::VecDeque;

const FEATURES: Features = Features::RING_PACKED
    .with(Features::INDIRECT)
    .with(Features::EVENT_IDX);

/// The base of a new ring: slot 0, wrap counter 1.
const START: u16 = 1 << 15;

fn start(driver: &PackedDriver, base: u16, features: Features) -> (GuestMemory, PackedRing) {
    let memory = driver.memory.device_memory();
    let ring = PackedRing::new(&memory, &driver.addresses(), driver.size, base, features);
    (memory, ring.unwrap())
}

fn take(
    ring: &mut PackedRing,
    memory: &GuestMemory,
    direction: Direction,
) -> Result<Option<Chain>, RingFault> {
    ring.take(memory, direction, &mut Vec::new())
}

fn take_first(descriptors: &[(u64, u32, u16)]) -> Result<Option<Chain>, RingFault> {
    let mut driver = PackedDriver::new(SIZE);
    driver.offer(7, descriptors);
    let (memory, mut ring) = start(&driver, START, FEATURES);
    take(&mut ring, &memory, Direction::Readable)
}

#[test]
fn a_chain_is_taken_with_its_length_and_identifier() {
    let chain = take_first(&[(BUFFERS, 12, 0), (u64::MAX, 0, 0), (BUFFERS + 100, 88, 0)]);
    let chain = chain.unwrap().unwrap();
    let place = Place {
        at: START,
        id: 7,
        slots: 3,
    };
    assert_eq!((chain.place, chain.len, chain.count), (place, 100, 3));
}

#[test]
fn whatever_is_wrong_with_a_chain_is_its_queues_fault() {
    for (descriptors, fault) in [
        (vec![(BUFFERS, 1, WRITE)], RingFault::Direction),
        (vec![(MEMORY, 1, 0)], RingFault::Address),
        (vec![(MEMORY - 1, 2, 0)], RingFault::Address),
        (vec![(u64::MAX - 1, u32::MAX, 0)], RingFault::Address),
        (vec![(BUFFERS, 0, INDIRECT)], RingFault::IndirectSize),
        (vec![(BUFFERS, 17, INDIRECT)], RingFault::IndirectSize),
        (
            vec![(BUFFERS, 16, INDIRECT), (BUFFERS, 1, 0)],
            RingFault::IndirectPlace,
        ),
        (vec![(MEMORY - 8, 16, INDIRECT)], RingFault::Address),
        (vec![(u64::MAX - 7, 16, INDIRECT)], RingFault::Address),
        // The last descriptor has NEXT too, so that the chain is a loop.
        (vec![(BUFFERS, 0, NEXT); usize::from(SIZE)], RingFault::Loop),
    ] {
        assert_eq!(take_first(&descriptors), Err(fault), "{descriptors:?}");
    }
}

#[test]
fn entries_of_an_indirect_table_follow_each_other_whatever_they_say_of_next() {
    let mut driver = PackedDriver::new(SIZE);
    for (index, flags) in [(0, 0), (1, NEXT), (2, 0)] {
        driver.write_table(BUFFERS + 4, index, (BUFFERS, 5, flags));
    }
    driver.offer(3, &[(BUFFERS + 4, 48, INDIRECT)]);
    driver.write_table(BUFFERS + 100, 0, (BUFFERS, 16, INDIRECT));
    driver.offer(4, &[(BUFFERS + 100, 16, INDIRECT)]);
    let (memory, mut ring) = start(&driver, START, FEATURES);
    let chain = take(&mut ring, &memory, Direction::Readable).unwrap();
    let chain = chain.unwrap();
    assert_eq!((chain.place.id, chain.len, chain.count), (3, 15, 3));
    let nested = take(&mut ring, &memory, Direction::Readable);
    assert_eq!(nested, Err(RingFault::IndirectPlace));

    let plain = FEATURES.without(Features::INDIRECT);
    let (memory, mut ring) = start(&driver, START, plain);
    let result = take(&mut ring, &memory, Direction::Readable);
    assert_eq!(result, Err(RingFault::IndirectPlace), "not negotiated");
}

#[test]
fn a_ring_that_is_not_all_in_memory_or_has_a_wrong_size_or_base_is_refused() {
    let driver = PackedDriver::new(SIZE);
    let memory = driver.memory.device_memory();
    let good = driver.addresses();
    let make = |addresses: &RingAddresses, size, base| {
        PackedRing::new(&memory, addresses, size, base, FEATURES).is_some()
    };
    assert!(make(&good, SIZE, START));
    assert!(make(&good, 13, START | 12), "no power of two is needed");
    assert!(!make(&good, 13, START | 13));
    for size in [0, MAX_SIZE + 1, u16::MAX] {
        assert!(!make(&good, size, START), "{size}");
    }
    let wrong = |change: fn(&mut RingAddresses)| {
        let mut addresses = good;
        change(&mut addresses);
        make(&addresses, SIZE, START)
    };
    assert!(!wrong(|addresses| addresses.descriptors += 8));
    assert!(!wrong(|addresses| addresses.available += 2));
    assert!(!wrong(|addresses| addresses.used += 2));
    assert!(!wrong(|addresses| addresses.descriptors += MEMORY - 0x1080));
    assert!(!wrong(|addresses| addresses.used = 0));
    assert!(!wrong(|addresses| addresses.available = u64::MAX - 3));
}

#[test]
fn no_event_of_another_back_end_moves_a_packed_ring() {
    for size in 1..=5_u16 {
        let driver = PackedDriver::new(size);
        // The number of returned descriptors, the number offered beyond them, and the lag of the event.
        for returned in size..4 * size {
            let position =
                |count: u16| (count % size) | u16::from((count / size).is_multiple_of(2)) << 15;
            for offered in returned..=returned + size {
                for count in offered - size..offered {
                    let wrap = (count / size).is_multiple_of(2);
                    let flags = match (count < returned, wrap) {
                        (true, true) => 1 << 7 | 1 << 15,
                        (true, false) => 0,
                        (false, true) => 1 << 7,
                        (false, false) => 1 << 15,
                    };
                    driver.write_slot((count % size).into(), (BUFFERS, 64, 3, flags));
                }
                for behind in 0..=size {
                    let event = u32::from(position(returned - behind));
                    driver
                        .memory
                        .write(PackedDriver::DEVICE_EVENT, &event.to_le_bytes());
                    let base = position(returned);
                    let (_memory, ring) = start(&driver, base, FEATURES);
                    assert_eq!(
                        ring.base(),
                        base,
                        "{returned}, {offered}, {behind} of {size}"
                    );
                }
            }
        }
    }
}

#[test]
fn the_driver_sees_a_batch_at_once_and_in_order() {
    let mut driver = PackedDriver::new(SIZE);
    for id in 0..4 {
        driver.offer(id, &[(BUFFERS, 64, 0)]);
    }
    let (memory, mut ring) = start(&driver, START, FEATURES);
    for _ in 0..4 {
        let chain = take(&mut ring, &memory, Direction::Readable).unwrap();
        ring.give(chain.unwrap().place, 7);
        assert_eq!(driver.take_used(), None);
    }
    ring.publish(None);
    let seen: Vec<_> = std::iter::from_fn(|| driver.take_used()).collect();
    assert_eq!(seen, [(0, 7), (1, 7), (2, 7), (3, 7)]);
    assert_eq!(ring.base(), START | 4);
}

#[test]
fn with_agreed_order_the_last_of_a_batch_stands_for_all() {
    let mut driver = PackedDriver::new(SIZE);
    for id in 0..5 {
        driver.offer(id, &[(BUFFERS, 64, 0), (BUFFERS, 64, 0)]);
    }
    let (memory, mut ring) = start(&driver, START, FEATURES.with(Features::IN_ORDER));
    for batch in [3, 2] {
        let places: Vec<_> = (0..batch)
            .map(|_| take(&mut ring, &memory, Direction::Readable))
            .map(|chain| chain.unwrap().unwrap().place)
            .collect();
        ring.give_read(places.into_iter());
        ring.publish(None);
    }
    assert_eq!(driver.take_used_in_order(), [0, 1, 2]);
    assert_eq!(driver.take_used_in_order(), [3, 4]);
    assert_eq!(ring.base(), START | 10);
}

#[test]
fn a_signal_is_wanted_only_past_the_drivers_event() {
    let mut driver = PackedDriver::new(4);
    let (memory, mut ring) = start(&driver, START, FEATURES);
    let publish = |driver: &mut PackedDriver, ring: &mut PackedRing, count| {
        for _ in 0..count {
            driver.offer(0, &[(BUFFERS, 64, 0)]);
            let chain = take(ring, &memory, Direction::Readable).unwrap();
            ring.give(chain.unwrap().place, 0);
        }
        ring.publish(None);
        while driver.take_used().is_some() {}
    };
    driver.set_event(2, START | 2);
    publish(&mut driver, &mut ring, 2);
    assert!(!ring.wants_signal());
    publish(&mut driver, &mut ring, 1);
    assert!(ring.wants_signal(), "slot 2 is there");
    assert!(ring.wants_signal(), "and stays unsignalled");
    // Slot 3 of this lap, then slot 3 of the next.
    driver.set_event(2, START | 3);
    assert!(!ring.wants_signal(), "the driver found slot 2 by itself");
    driver.set_event(2, 3);
    publish(&mut driver, &mut ring, 4);
    assert!(!ring.wants_signal(), "slot 3 of the other lap");
    publish(&mut driver, &mut ring, 1);
    assert!(ring.wants_signal());
    ring.signalled();
    assert!(!ring.wants_signal());
    for (flags, wanted) in [(1, false), (0, true), (2, false), (3, true)] {
        driver.set_event(flags, u16::MAX);
        publish(&mut driver, &mut ring, 1);
        assert_eq!(ring.wants_signal(), wanted, "flags {flags}");
    }
}

#[test]
fn arming_reports_what_came_before_the_event_was_seen() {
    let mut driver = PackedDriver::new(SIZE);
    let (memory, mut ring) = start(&driver, START, FEATURES);
    ring.disarm(None);
    assert!(!driver.offer(0, &[(BUFFERS, 64, 0)]), "no kick is wanted");
    let chain = take(&mut ring, &memory, Direction::Readable).unwrap();
    ring.give(chain.unwrap().place, 0);
    ring.publish(None);
    assert_eq!(ring.arm(None), Ok(false));
    assert_eq!(driver.device_event(), (START | 1, 2));
    assert!(driver.offer(1, &[(BUFFERS, 64, 0)]), "a kick is wanted");
    assert!(!driver.offer(2, &[(BUFFERS, 64, 0)]), "and only one");
    assert_eq!(ring.arm(None), Ok(true));
}

#[test]
fn arming_for_more_buffers_than_there_are_counts_only_new_ones() {
    let mut driver = PackedDriver::new(SIZE);
    driver.offer(0, &[(BUFFERS, 64, WRITE)]);
    let (memory, mut ring) = start(&driver, START, FEATURES);
    let chain = take(&mut ring, &memory, Direction::Writable).unwrap();
    assert_eq!(take(&mut ring, &memory, Direction::Writable), Ok(None));
    ring.put_back(chain.unwrap().place, 1);
    assert_eq!(ring.arm(None), Ok(false));
    assert_eq!(
        driver.device_event().0,
        START,
        "the position, not the event"
    );
    assert!(driver.offer(1, &[(BUFFERS, 64, WRITE)]), "a kick is wanted");
    assert_eq!(ring.arm(None), Ok(true));
    assert_eq!(ring.look(), Ok(2));
}

#[test]
fn every_write_to_the_ring_is_logged() {
    let mut driver = PackedDriver::new(SIZE);
    driver.offer(0, &[(BUFFERS, 64, 0)]);
    let (memory, mut ring) = start(&driver, START, FEATURES);
    let (file, log) = crate::testing::log();
    let chain = take(&mut ring, &memory, Direction::Readable).unwrap();
    ring.give(chain.unwrap().place, 0);
    ring.publish(Some(&log));
    assert_eq!(
        crate::testing::dirty_pages(&file),
        [PackedDriver::RING / 4096, PackedDriver::DEVICE_EVENT / 4096]
    );
}

/// A receiver that runs out of buffers asks for more before it publishes the filled ones.
#[test]
fn a_request_for_a_kick_with_staged_chains_gets_one() {
    let mut driver = PackedDriver::new(SIZE);
    driver.offer(0, &[(BUFFERS, 64, WRITE)]);
    let (memory, mut ring) = start(&driver, START, FEATURES);
    let chain = take(&mut ring, &memory, Direction::Writable).unwrap();
    ring.give(chain.unwrap().place, 64);
    assert_eq!(ring.arm(None), Ok(false));
    ring.publish(None);
    assert!(driver.offer(1, &[(BUFFERS, 64, WRITE)]));
}

/// A step: the driver offers a chain of some length or takes back chains, or the device moves a batch, after which it
/// may ask for a kick, or is killed.
#[derive(Clone, Copy, Debug)]
enum Step {
    Offer(u16),
    Reap,
    Work { batch: u16, lost: bool, arm: bool },
    Die { base: bool },
}

fn step(longest: u16) -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1..=longest).prop_map(Step::Offer),
        2 => Just(Step::Reap),
        3 => (1..20_u16, prop::bool::weighted(0.2), any::<bool>())
            .prop_map(|(batch, lost, arm)| Step::Work { batch, lost, arm }),
        1 => any::<bool>().prop_map(|base| Step::Die { base }),
    ]
}

/// Runs steps. Every chain must be returned exactly once, in order, and every kick that was asked for must come.
fn run(size: u16, steps: &[Step], features: Features) -> Result<(), TestCaseError> {
    let mut driver = PackedDriver::new(size);
    let (memory, mut ring) = start(&driver, START, features);
    ring.disarm(None);
    let (mut offered, mut next_id) = (VecDeque::new(), 0_u16);
    let mut awaits_kick = false;
    for step in steps {
        match *step {
            Step::Offer(slots) if driver.free() >= slots => {
                let kicked = driver.offer(next_id, &vec![(BUFFERS, 9, 0); usize::from(slots)]);
                prop_assert!(kicked || !awaits_kick);
                if awaits_kick {
                    awaits_kick = false;
                    ring.disarm(None);
                }
                offered.push_back((next_id, slots));
                next_id = (next_id + 1) % size;
            }
            Step::Offer(_) => {}
            Step::Reap => {
                let seen = if features.has(Features::IN_ORDER) {
                    std::iter::from_fn(|| Some(driver.take_used_in_order()))
                        .take_while(|batch| !batch.is_empty())
                        .flatten()
                        .collect::<Vec<_>>()
                } else {
                    std::iter::from_fn(|| driver.take_used())
                        .map(|(id, _)| id)
                        .collect()
                };
                for id in seen {
                    prop_assert_eq!(offered.pop_front().map(|(id, _)| id), Some(id));
                }
            }
            Step::Work { batch, lost, arm } => {
                let mut places = Vec::new();
                for _ in 0..batch {
                    match take(&mut ring, &memory, Direction::Readable) {
                        Ok(Some(chain)) => places.push(chain.place),
                        other => {
                            prop_assert_eq!(other, Ok(None));
                            break;
                        }
                    }
                }
                if let (true, Some(first)) = (lost, places.first()) {
                    ring.put_back(*first, u16::try_from(places.len()).unwrap());
                } else {
                    ring.give_read(places.into_iter());
                }
                awaits_kick = arm && ring.arm(None) == Ok(false);
                if !awaits_kick {
                    ring.disarm(None);
                }
                ring.publish(None);
            }
            // The front end has the position only if the back end reported it.
            Step::Die { base } => {
                let base = if base { ring.base() } else { START };
                let noted = ring.base();
                let addresses = driver.addresses();
                ring = PackedRing::new(&memory, &addresses, size, base, features).unwrap();
                prop_assert_eq!(ring.base(), noted);
                ring.disarm(None);
                awaits_kick = false;
            }
        }
        let slots = ring.look().map(usize::from);
        prop_assert!(slots.is_ok_and(|slots| slots <= offered.len()));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_chain_comes_back_once_and_in_order_whichever_side_dies(
        size in 1..40_u16, steps in prop::collection::vec(step(1), 1..300), in_order: bool,
    ) {
        let features = if in_order { FEATURES.with(Features::IN_ORDER) } else { FEATURES };
        run(size, &steps, features)?;
    }

    #[test]
    fn chains_of_any_length_come_back_too(
        size in 4..40_u16, steps in prop::collection::vec(step(4), 1..300), in_order: bool,
    ) {
        let features = if in_order { FEATURES.with(Features::IN_ORDER) } else { FEATURES };
        let lives: Vec<_> = steps.into_iter().filter(|step| !matches!(step, Step::Die { .. })).collect();
        run(size, &lives, features)?;
    }

    /// A back end that is killed anywhere in a batch: the first descriptor is not returned yet, some later ones are.
    #[test]
    fn a_batch_that_was_cut_short_is_returned_whole(
        lap in 0..70_u16, batch in 1..16_u16, visible in 0..16_u16, noted: bool, reaped: bool,
    ) {
        let mut driver = PackedDriver::new(SIZE);
        let (memory, mut ring) = start(&driver, START, FEATURES);
        ring.disarm(None);
        for id in 0..lap {
            driver.offer(id % SIZE, &[(BUFFERS, 9, 0)]);
            let chain = take(&mut ring, &memory, Direction::Readable).unwrap();
            ring.give(chain.unwrap().place, 0);
            ring.publish(None);
            prop_assert_eq!(driver.take_used(), Some((id % SIZE, 0)));
        }
        let before = ring.base();
        for id in 0..batch {
            driver.offer(id, &[(BUFFERS, 9, 0)]);
        }
        let whole = visible >= batch;
        for slot in if whole { 0..batch } else { 1..visible + 1 } {
            driver.return_by_force(before, slot, slot);
        }
        if whole && noted {
            driver.note(before, batch);
        }
        let mut seen = Vec::new();
        if whole && reaped {
            seen.extend(std::iter::from_fn(|| driver.take_used()).map(|(id, _)| id));
        }
        let (memory, mut ring) = start(&driver, START, FEATURES);
        for _ in 0..2 {
            while let Ok(Some(chain)) = take(&mut ring, &memory, Direction::Readable) {
                ring.give(chain.place, 0);
            }
            ring.publish(None);
        }
        seen.extend(std::iter::from_fn(|| driver.take_used()).map(|(id, _)| id));
        prop_assert_eq!(seen, (0..batch).collect::<Vec<_>>());
        // The ring still works.
        driver.offer(1, &[(BUFFERS, 9, 0)]);
        prop_assert!(take(&mut ring, &memory, Direction::Readable).unwrap().is_some());
    }

    /// Any content of memory: no panic, no endless loop, and segments that are all inside of it.
    #[test]
    fn any_memory_is_survived(
        size in prop_oneof![1..40_u16, Just(64), Just(1000)],
        words in prop::collection::vec(
            (
                prop_oneof![0..MEMORY + 0x1000, any::<u64>()],
                prop_oneof![0..0x2000_u32, any::<u32>()],
                any::<u16>(),
                prop_oneof![
                    (0..8_u16).prop_map(|flags| flags | 1 << 7),
                    (0..8_u16).prop_map(|flags| flags | 1 << 15),
                    any::<u16>(),
                ],
            ),
            1..64,
        ),
        table in prop::collection::vec(any::<u8>(), 256),
        event: u32, note: u32,
        base: u16,
        writable: bool,
    ) {
        let driver = PackedDriver::new(size);
        driver.memory.write(BUFFERS, &table);
        let fill = |turn: usize| {
            for (slot, index) in (0..u64::from(size)).zip(turn..) {
                driver.write_slot(slot, words[index % words.len()]);
            }
        };
        fill(0);
        driver.memory.write(PackedDriver::DRIVER_EVENT, &event.to_le_bytes());
        driver.memory.write(PackedDriver::DEVICE_EVENT, &note.to_le_bytes());
        let memory = driver.memory.device_memory();
        let Some(mut ring) = PackedRing::new(&memory, &driver.addresses(), size, base, FEATURES) else {
            prop_assert!(base & (MAX_SIZE - 1) >= size);
            return Ok(());
        };
        let direction = if writable { Direction::Writable } else { Direction::Readable };
        let mut segments = Vec::new();
        for turn in 0..40 {
            segments.clear();
            let _ = ring.look();
            match ring.take(&memory, direction, &mut segments) {
                Ok(Some(chain)) => {
                    let sum: u64 = chain.segments(&segments).iter().map(|segment| {
                        assert!(segment.guest + u64::from(segment.len) <= MEMORY);
                        u64::from(segment.len)
                    }).sum();
                    prop_assert_eq!(sum, u64::from(chain.len));
                    if turn % 3 == 0 {
                        ring.put_back(chain.place, 1);
                    } else {
                        ring.give(chain.place, 1);
                    }
                }
                _ => ring.publish(None),
            }
            if let Some((place, segment)) = ring.take_single(&memory, direction) {
                prop_assert!(segment.guest + u64::from(segment.len) <= MEMORY);
                ring.give(place, 0);
            }
            let _ = (ring.wants_signal(), ring.arm(None));
            if turn % 7 == 0 {
                ring.publish(None);
                ring.disarm(None);
                fill(turn);
            }
        }
    }
}
