// SPDX-License-Identifier: Apache-2.0
//! A split ring with hostile drivers, and its effects that a valid driver sees.

use super::*;
use crate::testing::{BUFFERS, Driver, INDIRECT, MEMORY, NEXT, Ring, SIZE, WRITE, encode};
use proptest::prelude::*;

const RING: Ring = Ring(0);

fn ring(driver: &Driver) -> (crate::memory::GuestMemory, SplitRing) {
    let memory = driver.device_memory();
    let ring = SplitRing::new(&memory, &RING.addresses(), SIZE, 0, true, true).unwrap();
    (memory, ring)
}

fn take(descriptors: &[(u64, u32, u16, u16)]) -> Result<Option<Chain>, RingFault> {
    let driver = Driver::new();
    for (descriptor, index) in descriptors.iter().zip(0..) {
        RING.describe(&driver, index, *descriptor);
    }
    RING.offer(&driver, 0, 0);
    let (memory, mut ring) = ring(&driver);
    ring.take(&memory, Direction::Readable, &mut Vec::new())
}

#[test]
fn a_chain_is_taken_with_its_length() {
    let chain = take(&[(BUFFERS, 12, NEXT, 1), (BUFFERS + 100, 88, 0, 0)]);
    let chain = chain.unwrap().unwrap();
    assert_eq!((chain.place.id, chain.len, chain.count), (0, 100, 2));
}

#[test]
fn an_empty_descriptor_is_no_harm() {
    let chain = take(&[(u64::MAX, 0, NEXT, 1), (BUFFERS, 9, 0, 0)]);
    assert_eq!(chain.unwrap().unwrap().len, 9);
}

#[test]
fn whatever_is_wrong_with_a_chain_is_its_queues_fault() {
    for (descriptors, fault) in [
        (vec![(BUFFERS, 1, NEXT, SIZE)], RingFault::DescriptorIndex),
        (
            vec![(BUFFERS, 1, NEXT, u16::MAX)],
            RingFault::DescriptorIndex,
        ),
        (vec![(BUFFERS, 1, NEXT, 0)], RingFault::Loop),
        (
            vec![(BUFFERS, 1, NEXT, 1), (BUFFERS, 1, NEXT, 0)],
            RingFault::Loop,
        ),
        (vec![(BUFFERS, 1, WRITE, 0)], RingFault::Direction),
        (vec![(MEMORY, 1, 0, 0)], RingFault::Address),
        (vec![(MEMORY - 1, 2, 0, 0)], RingFault::Address),
        (vec![(u64::MAX, 2, 0, 0)], RingFault::Address),
        (vec![(u64::MAX - 1, u32::MAX, 0, 0)], RingFault::Address),
        (vec![(0, u32::MAX, 0, 0)], RingFault::Address),
        (vec![(BUFFERS, 0, INDIRECT, 0)], RingFault::IndirectSize),
        (vec![(BUFFERS, 17, INDIRECT, 0)], RingFault::IndirectSize),
        (
            vec![(BUFFERS, 16, INDIRECT | NEXT, 1)],
            RingFault::IndirectPlace,
        ),
        (vec![(MEMORY - 8, 16, INDIRECT, 0)], RingFault::Address),
        (vec![(u64::MAX - 7, 16, INDIRECT, 0)], RingFault::Address),
    ] {
        assert_eq!(take(&descriptors), Err(fault), "{descriptors:?}");
    }
}

#[test]
fn an_indirect_table_is_held_to_the_same_rules() {
    let take = |entries: &[(u64, u32, u16, u16)], len: u32| {
        let driver = Driver::new();
        for (entry, index) in entries.iter().zip(0..) {
            driver.write(BUFFERS + index * 16 + 4, &encode(*entry));
        }
        RING.describe(&driver, 0, (BUFFERS + 4, len, INDIRECT, 0));
        RING.offer(&driver, 0, 0);
        let (memory, mut ring) = ring(&driver);
        ring.take(&memory, Direction::Readable, &mut Vec::new())
    };
    let good = take(&[(0, 5, NEXT, 1), (9, 6, 0, 0)], 32).unwrap().unwrap();
    assert_eq!(good.len, 11);
    assert_eq!(
        take(&[(0, 5, NEXT, 2), (0, 6, 0, 0)], 32),
        Err(RingFault::DescriptorIndex)
    );
    assert_eq!(take(&[(0, 5, NEXT, 0)], 16), Err(RingFault::Loop));
    assert_eq!(
        take(&[(0, 16, INDIRECT, 0)], 16),
        Err(RingFault::IndirectPlace)
    );
    assert_eq!(take(&[(0, 5, WRITE, 0)], 16), Err(RingFault::Direction));
    // A table of more entries than the vectors that `writev` accepts.
    let many: Vec<_> = (1..=1100).map(|next| (0, 1, NEXT, next)).collect();
    assert_eq!(take(&many, 1100 * 16), Err(RingFault::TooManySegments));
}

#[test]
fn a_loop_of_empty_descriptors_in_a_table_of_any_claimed_size_is_short() {
    let driver = Driver::new();
    driver.write(BUFFERS, &encode((0, 0, NEXT, 0)));
    let claimed = u32::MAX - 15;
    for head in 0..SIZE {
        RING.describe(&driver, head, (BUFFERS, claimed, INDIRECT, 0));
    }
    RING.offer(&driver, 0, 0);
    let (memory, mut ring) = ring(&driver);
    // 2^28 steps each would take minutes.
    for _ in 0..100 {
        let result = ring.take(&memory, Direction::Readable, &mut Vec::new());
        assert_eq!(result, Err(RingFault::TooManySegments));
    }
}

#[test]
fn indirect_tables_need_to_be_negotiated() {
    let driver = Driver::new();
    RING.describe(&driver, 0, (BUFFERS, 16, INDIRECT, 0));
    RING.offer(&driver, 0, 0);
    let memory = driver.device_memory();
    let mut ring = SplitRing::new(&memory, &RING.addresses(), SIZE, 0, false, true).unwrap();
    let result = ring.take(&memory, Direction::Readable, &mut Vec::new());
    assert_eq!(result, Err(RingFault::IndirectPlace));
}

#[test]
fn an_available_index_that_jumps_is_a_fault() {
    let driver = Driver::new();
    let (_memory, mut ring) = ring(&driver);
    RING.set_available(&driver, SIZE);
    assert_eq!(ring.look(), Ok(SIZE));
    RING.set_available(&driver, SIZE + 1);
    assert_eq!(ring.look(), Err(RingFault::AvailableIndex));
    RING.set_available(&driver, u16::MAX);
    assert_eq!(ring.look(), Err(RingFault::AvailableIndex));
}

#[test]
fn an_available_index_that_jumped_stays_a_fault_at_every_later_check() {
    let driver = Driver::new();
    let (memory, mut ring) = ring(&driver);
    RING.set_available(&driver, SIZE + 1);
    assert!(ring.take_single(&memory, Direction::Readable).is_none());
    let result = ring.take(&memory, Direction::Readable, &mut Vec::new());
    assert_eq!(result, Err(RingFault::AvailableIndex));
}

#[test]
fn a_head_past_the_table_is_a_fault() {
    let driver = Driver::new();
    RING.offer(&driver, 0, SIZE);
    let (memory, mut ring) = ring(&driver);
    let result = ring.take(&memory, Direction::Readable, &mut Vec::new());
    assert_eq!(result, Err(RingFault::DescriptorIndex));
}

#[test]
fn a_ring_that_is_not_all_in_memory_or_has_a_wrong_size_is_refused() {
    let driver = Driver::new();
    let memory = driver.device_memory();
    let good = RING.addresses();
    let make = |addresses: &RingAddresses, size| {
        SplitRing::new(&memory, addresses, size, 0, true, true).is_some()
    };
    assert!(make(&good, SIZE));
    for size in [0, 3, 100, 32769, u16::MAX] {
        assert!(!make(&good, size), "{size}");
    }
    let wrong = |change: fn(&mut RingAddresses)| {
        let mut addresses = good;
        change(&mut addresses);
        make(&addresses, SIZE)
    };
    assert!(!wrong(|addresses| addresses.descriptors += 8));
    assert!(!wrong(|addresses| addresses.available += 1));
    assert!(!wrong(|addresses| addresses.used += 2));
    assert!(!wrong(|addresses| addresses.descriptors += MEMORY - 0x1080));
    assert!(!wrong(|addresses| addresses.used = 0));
    assert!(!wrong(|addresses| addresses.available = u64::MAX - 1));
}

#[test]
fn the_driver_sees_a_batch_at_once_and_in_order() {
    let driver = Driver::new();
    for head in 0..4 {
        RING.describe(&driver, head, (BUFFERS, 64, 0, 0));
        RING.offer(&driver, head, head);
    }
    let (memory, mut ring) = ring(&driver);
    let mut segments = Vec::new();
    for _ in 0..4 {
        let chain = ring.take(&memory, Direction::Readable, &mut segments);
        ring.give(chain.unwrap().unwrap().place, 7);
        assert_eq!(RING.used_index(&driver), 0);
    }
    ring.publish(None);
    assert_eq!(RING.used_index(&driver), 4);
    assert_eq!(RING.used_element(&driver, 3), (3, 7));
    assert_eq!(ring.base(), 4);
}

#[test]
fn a_signal_is_wanted_only_past_the_drivers_event() {
    let driver = Driver::new();
    let (_memory, mut ring) = ring(&driver);
    let publish = |ring: &mut SplitRing, count| {
        for _ in 0..count {
            ring.give(Place::default(), 0);
        }
        ring.publish(None);
    };
    RING.set_used_event(&driver, 2);
    publish(&mut ring, 2);
    assert!(!ring.wants_signal());
    publish(&mut ring, 1);
    assert!(ring.wants_signal(), "entry 2 is there");
    assert!(ring.wants_signal(), "and stays unsignalled");
    // The driver has polled and waits for the next entry.
    RING.set_used_event(&driver, 3);
    assert!(!ring.wants_signal());
    publish(&mut ring, 1);
    assert!(ring.wants_signal());
    ring.signalled();
    assert!(!ring.wants_signal());
}

#[test]
fn arming_reports_what_came_before_the_event_was_seen() {
    let driver = Driver::new();
    let (memory, mut ring) = ring(&driver);
    assert_eq!(ring.arm(None), Ok(false));
    RING.describe(&driver, 0, (BUFFERS, 64, 0, 0));
    RING.offer(&driver, 0, 0);
    let chain = ring.take(&memory, Direction::Readable, &mut Vec::new());
    assert!(chain.unwrap().is_some());
    assert_eq!(RING.available_event(&driver), 0, "stale while draining");
    assert_eq!(ring.arm(None), Ok(false));
    assert_eq!(RING.available_event(&driver), 1);
    RING.offer(&driver, 1, 0);
    assert_eq!(ring.arm(None), Ok(true));
}

#[test]
fn a_kick_is_asked_for_at_the_chain_with_which_enough_wait() {
    let driver = Driver::new();
    let (memory, mut ring) = ring(&driver);
    RING.describe(&driver, 0, (BUFFERS, 64, 0, 0));
    RING.offer(&driver, 0, 0);
    assert_eq!(ring.arm_at(3, None), Ok(false));
    assert_eq!(RING.available_event(&driver), 2);
    let chain = ring.take(&memory, Direction::Readable, &mut Vec::new());
    assert!(chain.unwrap().is_some());
    RING.offer(&driver, 1, 0);
    RING.offer(&driver, 2, 0);
    assert_eq!(ring.arm_at(3, None), Ok(false));
    assert_eq!(RING.available_event(&driver), 3);
    assert_eq!(ring.arm_at(2, None), Ok(true), "two wait already");
    // More chains than the ring holds never wait.
    let most = u32::from(SIZE);
    for chains in [0, most + 1, u32::MAX] {
        assert_eq!(ring.arm_at(chains, None), Ok(false));
        assert_eq!(RING.available_event(&driver), 2);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Any content of memory: no panic, and segments that are all inside of it.
    #[test]
    fn any_memory_is_survived(
        descriptors in proptest::collection::vec(
            (
                prop_oneof![0..MEMORY + 0x1000, any::<u64>()],
                prop_oneof![0..0x2000_u32, any::<u32>()],
                0..8_u16,
                0..SIZE + 2,
            ),
            usize::from(SIZE),
        ),
        table in proptest::collection::vec(any::<u8>(), 256),
        heads in proptest::collection::vec(0..SIZE + 1, 1..usize::from(SIZE)),
        writable: bool,
    ) {
        let driver = Driver::new();
        driver.write(BUFFERS, &table);
        for (descriptor, index) in descriptors.iter().zip(0..) {
            RING.describe(&driver, index, *descriptor);
        }
        for (head, position) in heads.iter().zip(0..) {
            RING.offer(&driver, position, *head);
        }
        let (memory, mut ring) = ring(&driver);
        let direction = if writable { Direction::Writable } else { Direction::Readable };
        let mut segments = Vec::new();
        while let Ok(Some(chain)) = ring.take(&memory, direction, &mut segments) {
            let sum: u64 = chain.segments(&segments).iter().map(|segment| {
                assert!(segment.guest + u64::from(segment.len) <= MEMORY);
                u64::from(segment.len)
            }).sum();
            prop_assert_eq!(sum, u64::from(chain.len));
            ring.give(chain.place, 0);
        }
        ring.publish(None);
    }

    #[test]
    fn an_event_is_passed_once_whatever_the_wrap(start: u16, ahead in 0..1000_u16, steps in 1..1000_u16) {
        let event = start.wrapping_add(ahead);
        let new = start.wrapping_add(steps);
        prop_assert_eq!(passed(event, new, start), ahead < steps);
    }
}
