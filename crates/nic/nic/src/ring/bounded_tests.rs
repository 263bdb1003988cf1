// SPDX-License-Identifier: Apache-2.0
//! Every index of small rings: reads and publications are compared with a model that follows the standard's text.
//! Chains are walked in `walk_tests.rs`.
//!
//! Small rings suffice: an index is only added to, subtracted from and masked, modulo 65,536, so that a larger ring
//! differs in its mask alone.

use super::*;
use crate::testing::{BUFFERS, Driver, Ring};

const RING: Ring = Ring(0);

#[test]
fn an_event_is_passed_only_by_who_stepped_over_it() {
    let stepped_over = |event: u16, new: u16, old: u16| {
        let steps = new.wrapping_sub(old);
        event.wrapping_sub(old) < steps
    };
    // All events at one start for each number of steps, and all starts for the events near them.
    for steps in 0..=17 {
        for event in 0..=u16::MAX {
            let (old, new) = (65_530, 65_530_u16.wrapping_add(steps));
            assert_eq!(passed(event, new, old), stepped_over(event, new, old));
        }
        for old in 0..=u16::MAX {
            for near in 0..=steps + 1 {
                let (event, new) = (
                    old.wrapping_add(near).wrapping_sub(1),
                    old.wrapping_add(steps),
                );
                assert_eq!(passed(event, new, old), stepped_over(event, new, old));
            }
        }
    }
}

#[test]
fn no_available_index_of_any_small_ring_is_more_than_its_size_ahead() {
    let driver = Driver::new();
    let memory = driver.device_memory();
    for size in [1, 2, 4, 8, 16] {
        for base in [0, 1, size - 1, 0x7fff, 0xffff - size, 0xffff] {
            let mut ring =
                SplitRing::new(&memory, &RING.addresses(), size, base, true, true).unwrap();
            for ahead in 0..=u16::MAX {
                RING.set_available(&driver, base.wrapping_add(ahead));
                let expected = if ahead <= size {
                    Ok(ahead)
                } else {
                    Err(RingFault::AvailableIndex)
                };
                assert_eq!(ring.look(), expected, "{base} + {ahead} of {size}");
            }
        }
    }
}

#[test]
fn no_chain_of_a_small_ring_is_lost_or_doubled_when_its_indexes_wrap() {
    let driver = Driver::new();
    let memory = driver.device_memory();
    for size in [1_u16, 2, 4, 8] {
        for index in 0..size {
            RING.describe(&driver, index, (BUFFERS + u64::from(index), 1, 0, 0));
        }
        driver.write(RING.used() + 2, &[0, 0]);
        RING.set_available(&driver, 0);
        let mut ring = SplitRing::new(&memory, &RING.addresses(), size, 0, true, true).unwrap();
        let mut segments = Vec::new();
        for step in 0..u32::from(u16::MAX) + 3 * u32::from(size) {
            let position = step as u16;
            let (head, slot) = (position.wrapping_mul(3) % size, u64::from(position % size));
            driver.write(RING.available() + 4 + slot * 2, &head.to_le_bytes());
            RING.set_available(&driver, position.wrapping_add(1));
            segments.clear();
            let chain = ring.take(&memory, Direction::Readable, &mut segments);
            let chain = chain.unwrap().unwrap();
            assert_eq!((chain.place.at, chain.place.id), (position, head));
            assert_eq!(segments[0].guest, BUFFERS + u64::from(head));
            assert_eq!(
                ring.take(&memory, Direction::Readable, &mut segments),
                Ok(None)
            );
            ring.give(chain.place, 7);
            ring.publish(None);
            assert_eq!(RING.used_index(&driver), position.wrapping_add(1));
            let at = RING.used() + 4 + slot * 8;
            assert_eq!(driver.u32_at(at), u32::from(head));
        }
    }
}
