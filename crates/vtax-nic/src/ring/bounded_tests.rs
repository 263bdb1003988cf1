//! Every index and every chain of small rings: what is read and what comes of it, beside a model that follows
//! the standard's words.
//!
//! Small rings suffice: an index is only ever added to, subtracted and masked, modulo 65,536, so that a larger ring
//! differs in its mask alone; a walk knows nothing of descriptors but the one it is at and how many it has
//! read, so that whatever four can make it do (end, leave the table, come back to any earlier one, turn to an
//! indirect table) is all that there is.

use super::descriptor::{INDIRECT, NEXT, WRITE};
use super::*;
use crate::testing::{BUFFERS, Driver, MEMORY, PackedDriver, Ring, encode};

const RING: Ring = Ring(0);

/// Bytes of a buffer, and one that begins in memory and ends outside.
const LEN: u32 = 16;
const OUTSIDE: u64 = MEMORY - 8;

/// Where indirect tables lie.
const TABLE: u64 = BUFFERS + 0x1000;

#[test]
fn an_event_is_passed_only_by_who_stepped_over_it() {
    let stepped_over = |event: u16, new: u16, old: u16| {
        let steps = new.wrapping_sub(old);
        event.wrapping_sub(old) < steps
    };
    // All events for some steps, and all steps' starts for the events near them.
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

/// What a descriptor points at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Buffer {
    Nothing,
    Inside,
    Outside,
}

/// A descriptor that the walk comes to.
#[derive(Debug, Clone, Copy)]
struct Entry {
    buffer: Buffer,
    flags: u16,
    next: u16,
}

/// What a walk gives: the descriptors whose buffers it appended, or a fault.
type Outcome = Result<Vec<u16>, RingFault>;

/// A table of at most four descriptors, of which those are decided that the walk has come to.
struct Table {
    size: u16,
    /// Whether `next` counts, or they follow each other.
    chained: bool,
    /// Whether it is the ring's own, not an indirect one.
    outer: bool,
    direction: Direction,
    entries: [Option<Entry>; 4],
    walked: Vec<u16>,
}

impl Table {
    fn new(size: u16, chained: bool, outer: bool, direction: Direction) -> Self {
        Self {
            size,
            chained,
            outer,
            direction,
            entries: [None; 4],
            walked: Vec::new(),
        }
    }

    /// Gives the entry at `at` every value that it can have, follows each to its end, and has `check` compare. How
    /// many walks there are.
    fn explore(&mut self, at: u16, check: &mut impl FnMut(&Self, Outcome)) -> usize {
        let mut walks = 0;
        let nexts = if self.chained { self.size + 1 } else { 1 };
        for buffer in [Buffer::Nothing, Buffer::Inside, Buffer::Outside] {
            for flags in 0..8 {
                // Where nothing follows, `next` is not looked at.
                let nexts = if flags & NEXT == 0 { 1 } else { nexts };
                for next in 0..nexts {
                    // One past the end is as good as any other, the largest among them.
                    let next = if next == self.size {
                        u16::MAX - 1
                    } else {
                        next
                    };
                    let entry = Entry {
                        buffer,
                        flags,
                        next,
                    };
                    self.entries[usize::from(at)] = Some(entry);
                    walks += self.step(at, entry, check);
                }
            }
        }
        self.entries[usize::from(at)] = None;
        walks
    }

    /// What comes after an entry.
    fn step(&mut self, at: u16, entry: Entry, check: &mut impl FnMut(&Self, Outcome)) -> usize {
        let mut ends = |outcome| {
            check(self, outcome);
            1
        };
        if entry.flags & INDIRECT != 0 {
            // Its table is empty, cut, or itself what is wrong: tables that are right are walked apart.
            let sole = self.outer && entry.flags & NEXT == 0;
            return ends(Err(match entry.buffer {
                Buffer::Nothing if sole => RingFault::IndirectSize,
                Buffer::Outside if sole => RingFault::Address,
                Buffer::Inside if sole => RingFault::IndirectPlace,
                _ => RingFault::IndirectPlace,
            }));
        }
        let writable = entry.flags & WRITE != 0;
        let wanted = match self.direction {
            Direction::Readable => !writable,
            Direction::Writable => writable,
            Direction::Request => true,
        };
        if !wanted {
            return ends(Err(RingFault::Direction));
        }
        if entry.buffer == Buffer::Outside {
            return ends(Err(RingFault::Address));
        }
        self.walked.push(at);
        let full = self.walked.len() == usize::from(self.size);
        let follows = self.outer || self.chained;
        let walks = if follows && entry.flags & NEXT == 0 {
            check(self, Ok(self.walked.clone()));
            1
        } else if !follows {
            if full {
                check(self, Ok(self.walked.clone()));
                1
            } else {
                self.explore(at + 1, check)
            }
        } else if self.chained && entry.next >= self.size {
            let fault = if full && !self.outer {
                RingFault::Loop
            } else {
                RingFault::DescriptorIndex
            };
            check(self, Err(fault));
            1
        } else if full || (self.chained && self.entries[usize::from(entry.next)].is_some()) {
            check(self, Err(RingFault::Loop));
            1
        } else {
            let next = if self.chained { entry.next } else { at + 1 };
            self.explore(next, check)
        };
        self.walked.pop();
        walks
    }

    /// Each entry as a descriptor's fields. Those that no walk may come to would be seen if one did.
    fn descriptors(&self) -> impl Iterator<Item = (u16, (u64, u32, u16, u16))> {
        (0..self.size).map(|index| {
            let descriptor = match self.entries[usize::from(index)] {
                None => (BUFFERS + 0x800, 1, 0, 0),
                Some(Entry {
                    buffer,
                    flags,
                    next,
                }) => {
                    let (address, len) = match buffer {
                        // An indirect table in an indirect table.
                        Buffer::Inside if flags & INDIRECT != 0 => (TABLE + 0x800, 16),
                        Buffer::Inside => (BUFFERS + u64::from(index) * 32, LEN),
                        Buffer::Nothing => (u64::MAX, 0),
                        Buffer::Outside => (OUTSIDE, LEN),
                    };
                    (address, len, flags, next)
                }
            };
            (index, descriptor)
        })
    }

    /// Compares what a ring gave with what was expected.
    fn compare(
        &self,
        taken: Result<Option<Chain>, RingFault>,
        segments: &[Segment],
        expected: &Outcome,
        slots: u16,
    ) {
        let entries = &self.entries;
        match (taken, expected) {
            (Ok(Some(chain)), Ok(walked)) => {
                assert_eq!(chain.place.slots, slots, "{entries:?}");
                assert_eq!(segments.len(), walked.len(), "{entries:?}");
                for (segment, index) in segments.iter().zip(walked) {
                    let entry = entries[usize::from(*index)].unwrap();
                    let expected = match entry.buffer {
                        Buffer::Inside => (BUFFERS + u64::from(*index) * 32, LEN),
                        _ => (0, 0),
                    };
                    assert_eq!((segment.guest, segment.len), expected, "{entries:?}");
                    assert_eq!(segment.writable, entry.flags & WRITE != 0, "{entries:?}");
                }
            }
            (taken, expected) => assert_eq!(taken.err(), expected.clone().err(), "{entries:?}"),
        }
    }
}

const DIRECTIONS: [Direction; 3] = [Direction::Readable, Direction::Writable, Direction::Request];

/// Memory with the nested table that an indirect entry may name: one entry that is indirect itself.
fn with_nested_table() -> Driver {
    let driver = Driver::new();
    driver.write(TABLE + 0x800, &encode((BUFFERS, LEN, INDIRECT, 0)));
    driver
}

#[test]
fn every_chain_of_a_split_ring_of_four_ends_where_it_should() {
    let driver = with_nested_table();
    let memory = driver.device_memory();
    RING.set_available(&driver, 1);
    let mut segments = Vec::new();
    for (size, direction) in [1, 2, 4]
        .into_iter()
        .flat_map(|size| DIRECTIONS.map(|way| (size, way)))
    {
        let mut table = Table::new(size, true, true, direction);
        let walks = table.explore(0, &mut |table, expected| {
            for (index, descriptor) in table.descriptors() {
                RING.describe(&driver, index, descriptor);
            }
            let ring = SplitRing::new(&memory, &RING.addresses(), size, 0, true, true);
            segments.clear();
            let taken = ring.unwrap().take(&memory, direction, &mut segments);
            table.compare(taken, &segments, &expected, 1);
        });
        assert!(size < 4 || walks > 3_000, "{walks}");
    }
}

#[test]
fn every_chain_of_an_indirect_table_of_four_ends_where_it_should() {
    let driver = with_nested_table();
    let memory = driver.device_memory();
    RING.set_available(&driver, 1);
    let mut segments = Vec::new();
    for (size, direction) in (1..=4).flat_map(|size| DIRECTIONS.map(|way| (size, way))) {
        RING.describe(&driver, 0, (TABLE, u32::from(size) * 16, INDIRECT, 0));
        let mut table = Table::new(size, true, false, direction);
        let walks = table.explore(0, &mut |table, expected| {
            for (index, descriptor) in table.descriptors() {
                driver.write(TABLE + u64::from(index) * 16, &encode(descriptor));
            }
            let ring = SplitRing::new(&memory, &RING.addresses(), 1, 0, true, true);
            segments.clear();
            let taken = ring.unwrap().take(&memory, direction, &mut segments);
            table.compare(taken, &segments, &expected, 1);
        });
        assert!(size < 4 || walks > 3_000, "{walks}");
    }
}

#[test]
fn every_chain_of_a_packed_ring_of_four_ends_where_it_should() {
    let features = Features::RING_PACKED.with(Features::INDIRECT);
    for size in 1..=4_u16 {
        let driver = PackedDriver::new(size);
        driver
            .memory
            .write(TABLE + 0x800, &encode((BUFFERS, LEN, 0, INDIRECT)));
        let memory = driver.memory.device_memory();
        let mut segments = Vec::new();
        let mut walks = 0;
        for (direction, base) in DIRECTIONS.into_iter().flat_map(|way| {
            (0..size).flat_map(move |slot| [0, 0x8000].map(|wrap| (way, slot | wrap)))
        }) {
            driver
                .memory
                .write(PackedDriver::DEVICE_EVENT, &u32::from(base).to_le_bytes());
            let mut table = Table::new(size, false, true, direction);
            walks += table.explore(0, &mut |table, expected| {
                for (index, (address, len, flags, _)) in table.descriptors() {
                    let ahead = (base & 0x7fff) + index;
                    let wrap = (base & 0x8000 != 0) == (ahead < size);
                    let phase = if wrap { 1 << 7 } else { 1 << 15 };
                    driver.write_slot((ahead % size).into(), (address, len, 9, flags | phase));
                }
                let ring = PackedRing::new(&memory, &driver.addresses(), size, base, features);
                segments.clear();
                let taken = ring.unwrap().take(&memory, direction, &mut segments);
                let slots = table.walked.len() as u16;
                table.compare(taken, &segments, &expected, slots);
            });
        }
        assert!(size < 4 || walks > 3_000, "{walks}");
    }
}

#[test]
fn every_indirect_table_of_four_of_a_packed_ring_ends_where_it_should() {
    let features = Features::RING_PACKED.with(Features::INDIRECT);
    let mut driver = PackedDriver::new(1);
    let memory = driver.memory.device_memory();
    driver
        .memory
        .write(PackedDriver::DEVICE_EVENT, &0x8000_u32.to_le_bytes());
    let mut segments = Vec::new();
    for (size, direction) in (1..=4).flat_map(|size| DIRECTIONS.map(|way| (size, way))) {
        driver.write_slot(0, (TABLE, u32::from(size) * 16, 9, INDIRECT | 1 << 7));
        let mut table = Table::new(size, false, false, direction);
        let walks = table.explore(0, &mut |table, expected| {
            for (index, (address, len, flags, _)) in table.descriptors() {
                driver.write_table(TABLE, index.into(), (address, len, flags));
            }
            let ring = PackedRing::new(&memory, &driver.addresses(), 1, 0x8000, features);
            segments.clear();
            let taken = ring.unwrap().take(&memory, direction, &mut segments);
            table.compare(taken, &segments, &expected, 1);
        });
        assert!(size < 4 || walks > 100, "{walks}");
    }
    assert_eq!(driver.take_used(), None);
}
