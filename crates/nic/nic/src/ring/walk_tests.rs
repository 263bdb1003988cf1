// SPDX-License-Identifier: Apache-2.0
//! Every chain over tables of up to four descriptors in memory of several regions, in split and in packed rings,
//! compared with a model that follows the specification: the result is the same segments or the same fault, all
//! segments are in memory, and there are no more than the tables have entries. `bounded_tests.rs` covers the indexes.
//!
//! These sizes suffice: a walk compares an index with the table's size, counts to that size, and reads three flags; an
//! address goes to [`GuestMemory::at`], whose tests walk every layout. Nothing depends on the magnitude of the size.
//! Four entries have every place of the next one: none, itself, an earlier one, a new one, one past the end; and every
//! way to an indirect table: at once, after others, with more after it. Buffers are of every kind of place in memory:
//! of no bytes, inside, across two regions, at the very end, past it, around the end of the address space, and longer
//! than all memory.
//!
//! Only entries that a walk reads are varied, because others cannot change its result.

use super::*;
use crate::memory::RegionDescription;
use crate::testing::{BUFFERS, Driver, INDIRECT, MEMORY, NEXT, PackedDriver, USER, WRITE, encode};

/// Entries of the longest ring and the longest table.
const ENTRIES: u16 = 4;

const RING: crate::testing::Ring = crate::testing::Ring(0);

/// The end of one region and the start of the next.
const BORDER: u64 = BUFFERS;

/// The address of an indirect table that is all in one region.
const TABLE: u64 = 0x8_0000;

/// The buffers of descriptors. The first four may have descriptors after them.
const BUFFER: [(u64, u32); 7] = [
    (u64::MAX, 0),
    (TABLE + 0x100, 8),
    (BORDER - 4, 8),
    (MEMORY - 4, 8),
    (MEMORY - 4, 4),
    (u64::MAX - 3, 8),
    (BORDER, u32::MAX),
];

/// The tables of indirect descriptors.
const TABLES: [(u64, u32); 9] = [
    (TABLE, 16),
    (TABLE, 32),
    (TABLE, 48),
    (TABLE, 64),
    (TABLE, 0),
    (TABLE, 17),
    (BORDER - 8, 16),
    (MEMORY - 16, 32),
    (u64::MAX - 7, 32),
];

/// Address, length, flags, next.
type Entry = (u64, u32, u16, u16);

/// Entries of a table. Those that no walk has read yet are undecided.
type Table = [Option<Entry>; ENTRIES as usize];

/// Guest address and length of a segment, and whether the guest marked it as writable.
type Piece = (u64, u32, bool);

/// The model's result for a chain.
enum WalkResult {
    /// The walk would read an undecided entry: whether it is of the indirect table, and its index.
    Asks(bool, usize),
    /// The segments, or the fault.
    Is(Result<Vec<Piece>, RingFault>),
}

/// One walk of the model.
struct Model {
    packed: bool,
    /// Entries of the ring.
    size: u16,
    direction: Direction,
    pieces: Vec<Piece>,
    len: u32,
}

impl Model {
    /// Bytes up to the end of the region that an address is in.
    fn room(address: u64) -> Option<u64> {
        match address {
            0..BORDER => Some(BORDER - address),
            BORDER..MEMORY => Some(MEMORY - address),
            _ => None,
        }
    }

    fn push(&mut self, (mut address, mut len, flags, _): Entry) -> Result<(), RingFault> {
        let writable = flags & WRITE != 0;
        let wrong = match self.direction {
            Direction::Readable => writable,
            Direction::Writable => !writable,
            Direction::Request => false,
        };
        if wrong {
            return Err(RingFault::Direction);
        }
        self.len = self.len.checked_add(len).ok_or(RingFault::Length)?;
        if len == 0 {
            self.pieces.push((0, 0, writable));
        }
        while len > 0 {
            let room = Self::room(address).ok_or(RingFault::Address)?;
            let part = u32::try_from(room.min(len.into())).unwrap();
            self.pieces.push((address, part, writable));
            (address, len) = (address + u64::from(part), len - part);
        }
        Ok(())
    }

    fn walk(mut self, ring: &Table, first: u16, indirect: &Table) -> WalkResult {
        let mut at = first;
        for _ in 0..self.size {
            let Some(entry) = ring[usize::from(at)] else {
                return WalkResult::Asks(false, at.into());
            };
            let (address, len, flags, next) = entry;
            if flags & INDIRECT != 0 {
                return match (flags & NEXT == 0, len > 0 && len.is_multiple_of(16)) {
                    (true, true) => self.table(address, len / 16, indirect),
                    (true, false) => WalkResult::Is(Err(RingFault::IndirectSize)),
                    (false, _) => WalkResult::Is(Err(RingFault::IndirectPlace)),
                };
            }
            if let Err(fault) = self.push(entry) {
                return WalkResult::Is(Err(fault));
            }
            if flags & NEXT == 0 {
                return WalkResult::Is(Ok(self.pieces));
            }
            at = if self.packed {
                (at + 1) % self.size
            } else {
                next
            };
            if at >= self.size {
                return WalkResult::Is(Err(RingFault::DescriptorIndex));
            }
        }
        WalkResult::Is(Err(RingFault::Loop))
    }

    fn table(mut self, address: u64, entries: u32, table: &Table) -> WalkResult {
        let mut at = 0;
        for _ in 0..entries {
            if at >= entries {
                return WalkResult::Is(Err(RingFault::DescriptorIndex));
            }
            let place = address.checked_add(u64::from(at) * 16);
            let room = place.and_then(Self::room);
            if room.is_none_or(|room| room < 16) {
                return WalkResult::Is(Err(RingFault::Address));
            }
            // The memory outside of the table is zero.
            let decided = if address == TABLE {
                table[at as usize]
            } else {
                Some((0, 0, 0, 0))
            };
            let Some(entry) = decided else {
                return WalkResult::Asks(true, at as usize);
            };
            if entry.2 & INDIRECT != 0 {
                return WalkResult::Is(Err(RingFault::IndirectPlace));
            }
            if let Err(fault) = self.push(entry) {
                return WalkResult::Is(Err(fault));
            }
            let last = if self.packed {
                at + 1 == entries
            } else {
                entry.2 & NEXT == 0
            };
            if last {
                return WalkResult::Is(Ok(self.pieces));
            }
            at = if self.packed { at + 1 } else { entry.3.into() };
        }
        WalkResult::Is(Err(RingFault::Loop))
    }
}

/// All values of an entry, in the ring or in an indirect table. In packed rings the next entry is the following one.
fn entries(inside: bool, packed: bool) -> Vec<Entry> {
    let mut all = Vec::new();
    let nexts = if packed { 0..=0 } else { 0..=ENTRIES };
    for write in [0, WRITE] {
        all.extend(BUFFER.map(|(address, len)| (address, len, write, 0)));
        for (address, len) in &BUFFER[..4] {
            all.extend(
                nexts
                    .clone()
                    .map(|next| (*address, *len, NEXT | write, next)),
            );
        }
        all.push((TABLE, 16, INDIRECT | NEXT | write, 0));
        let tables = if inside { &TABLES[..1] } else { &TABLES };
        all.extend(
            tables
                .iter()
                .map(|(at, len)| (*at, *len, INDIRECT | write, 0)),
        );
    }
    all
}

/// Memory of two regions that are adjacent for the guest only.
fn memory(driver: &Driver) -> GuestMemory {
    let mut memory = GuestMemory::default();
    for (guest, size) in [(0, BORDER), (BORDER, MEMORY - BORDER)] {
        let region = RegionDescription {
            guest,
            size,
            user: USER + guest,
            offset: guest,
        };
        memory
            .add(region, driver.file.try_clone().unwrap())
            .unwrap();
    }
    memory
}

/// The walks through one kind of ring: its start, and the counts of its chains.
struct Walks<'a> {
    driver: &'a PackedDriver,
    memory: &'a GuestMemory,
    /// Slot and wrap counter where a packed ring begins.
    packed: Option<(u16, bool)>,
    size: u16,
    direction: Direction,
    chains: u64,
    good: u64,
}

impl Walks<'_> {
    /// Walks every chain that begins with the decided entries.
    fn explore(&mut self, ring: Table, indirect: Table) {
        let first = self.packed.map_or(0, |(slot, _)| slot);
        let model = Model {
            packed: self.packed.is_some(),
            size: self.size,
            direction: self.direction,
            pieces: Vec::new(),
            len: 0,
        };
        match model.walk(&ring, first, &indirect) {
            WalkResult::Asks(inside, index) => {
                for entry in entries(inside, self.packed.is_some()) {
                    let (mut ring, mut indirect) = (ring, indirect);
                    let table = if inside { &mut indirect } else { &mut ring };
                    table[index] = Some(entry);
                    self.explore(ring, indirect);
                }
            }
            WalkResult::Is(pieces) => self.compare(&ring, &indirect, &pieces),
        }
    }

    fn compare(&mut self, ring: &Table, indirect: &Table, printed: &Result<Vec<Piece>, RingFault>) {
        let mut segments = Vec::new();
        for (entry, index) in indirect.iter().zip(0..) {
            let bytes = entry.map_or([0; 16], |entry| self.encode(entry));
            self.driver.memory.write(TABLE + index * 16, &bytes);
        }
        let taken = match self.packed {
            Some(start) => self.packed(start, ring, &mut segments),
            None => self.split(ring, &mut segments),
        };
        // Two segments for each entry, if it crosses the border.
        let most = 2 * (ring.iter().flatten().count() + indirect.iter().flatten().count()).max(4);
        assert!(segments.len() <= most, "{ring:?} {indirect:?}");
        let pieces: Vec<Piece> = segments
            .iter()
            .map(|part| (part.guest, part.len, part.writable))
            .collect();
        let found = taken.map(|chain| {
            let chain = chain.unwrap();
            let bytes = pieces.iter().map(|piece| u64::from(piece.1)).sum::<u64>();
            assert_eq!(u64::from(chain.len), bytes);
            let slots = match self.packed {
                Some(_) => ring.iter().flatten().count(),
                None => 1,
            };
            assert_eq!(usize::from(chain.place.slots), slots, "{ring:?}");
            pieces
        });
        assert_eq!(
            &found, printed,
            "{ring:?} {indirect:?} {:?} of {}",
            self.packed, self.size
        );
        let mapped = self.memory.mapped();
        for segment in segments.iter().filter(|segment| segment.len > 0) {
            let inside = |region: &&crate::memory::MappedRegion| {
                let host = segment.host.addr() as u64;
                host.checked_sub(region.host).is_some_and(|offset| {
                    offset + u64::from(segment.len) <= region.size
                        && segment.guest == region.guest + offset
                })
            };
            assert!(mapped.iter().any(|region| inside(&region)), "{segment:?}");
        }
        self.chains += 1;
        self.good += u64::from(printed.is_ok());
    }

    /// Encodes an entry. A packed ring has its last two fields in reverse order.
    fn encode(&self, (address, len, flags, next): Entry) -> [u8; 16] {
        match self.packed {
            Some(_) => encode((address, len, next, flags)),
            None => encode((address, len, flags, next)),
        }
    }

    fn split(
        &self,
        table: &Table,
        segments: &mut Vec<Segment>,
    ) -> Result<Option<Chain>, RingFault> {
        let driver = &self.driver.memory;
        for (entry, index) in table.iter().zip(0..) {
            let entry = entry.unwrap_or((u64::MAX, u32::MAX, 0, 0));
            RING.describe(driver, index, entry);
        }
        RING.offer(driver, 0, 0);
        let mut ring =
            SplitRing::new(self.memory, &RING.addresses(), self.size, 0, true, true).unwrap();
        ring.take(self.memory, self.direction, segments)
    }

    fn packed(
        &self,
        (slot, wrap): (u16, bool),
        table: &Table,
        segments: &mut Vec<Segment>,
    ) -> Result<Option<Chain>, RingFault> {
        for (entry, index) in table.iter().zip(0..) {
            let (address, len, flags, id) = entry.unwrap_or((u64::MAX, u32::MAX, 0, 0));
            let phase = match (index == u64::from(slot), wrap) {
                (false, _) => 0,
                (true, true) => 1 << 7,
                (true, false) => 1 << 15,
            };
            self.driver
                .write_slot(index, (address, len, id, flags | phase));
        }
        let base = slot | u16::from(wrap) << 15;
        let driver = &self.driver.memory;
        driver.write(PackedDriver::DEVICE_EVENT, &u32::from(base).to_le_bytes());
        let features = Features::RING_PACKED
            .with(Features::INDIRECT)
            .with(Features::EVENT_IDX);
        let addresses = self.driver.addresses();
        let mut ring = PackedRing::new(self.memory, &addresses, self.size, base, features).unwrap();
        ring.take(self.memory, self.direction, segments)
    }
}

/// Checks all chains of one kind of ring: those that end in the ring or in a fixed table, and those through every
/// table, directly or after another descriptor. The longest rings must have many of them.
fn all(size: u16, packed: Option<(u16, bool)>, direction: Direction) {
    let driver = PackedDriver::new(size);
    let memory = memory(&driver.memory);
    let mut walks = Walks {
        driver: &driver,
        memory: &memory,
        packed,
        size,
        direction,
        chains: 0,
        good: 0,
    };
    let write = match direction {
        Direction::Writable => WRITE,
        Direction::Readable | Direction::Request => 0,
    };
    let good = |next| Some((TABLE + 0x100, 8, NEXT | write, next));
    let last = Some((TABLE + 0x100, 8, write, 0));
    walks.explore([None; 4], [good(2), last, last, last]);
    let first = usize::from(packed.map_or(0, |(slot, _)| slot));
    for (address, len) in TABLES {
        let mut ring = [None; 4];
        ring[first] = Some((address, len, INDIRECT, 0));
        walks.explore(ring, [None; 4]);
    }
    if size > 1 {
        let mut ring = [None; 4];
        let second = (first + 1) % usize::from(size);
        ring[first] = good(u16::try_from(second).unwrap());
        ring[second] = Some((TABLE, 48, INDIRECT, 0));
        walks.explore(ring, [None; 4]);
    }
    let (chains, good) = (walks.chains, walks.good);
    let many = if packed.is_some() {
        (1000, 100)
    } else {
        (20_000, 500)
    };
    assert!(
        size < ENTRIES || (chains > many.0 && good > many.1),
        "{chains} {good}"
    );
}

#[test]
fn no_chain_of_a_split_ring_leaves_memory_or_its_table() {
    for direction in [Direction::Readable, Direction::Writable, Direction::Request] {
        for size in [1, 2, ENTRIES] {
            all(size, None, direction);
        }
    }
}

#[test]
fn no_chain_of_a_packed_ring_leaves_memory_or_its_table() {
    for size in 1..=ENTRIES {
        for start in (0..size).flat_map(|slot| [(slot, false), (slot, true)]) {
            all(size, Some(start), Direction::Readable);
        }
        // The start of a ring and the kinds of its buffers are independent: both vary together only at the end of a
        // lap.
        for direction in [Direction::Writable, Direction::Request] {
            all(size, Some((size - 1, true)), direction);
        }
    }
}
