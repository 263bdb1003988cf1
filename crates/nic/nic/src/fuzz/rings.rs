// SPDX-License-Identifier: Apache-2.0
//! Fuzz targets that read rings: chains of split and packed rings, and memory regions that change.

use super::{Input, MOST_STEPS, check_segment};
use crate::features::Features;
use crate::memory::{GuestMemory, RegionDescription, Segment};
use crate::ring::{Direction, PackedRing, SplitRing, Virtqueue};
use crate::testing::{BUFFERS, Driver, MEMORY, PackedDriver, Ring, SIZE, USER};

/// Chains of a split ring without a network: every segment must be guest memory.
pub fn chains(data: &[u8]) {
    const RING: Ring = Ring(0);
    let mut input = Input(data);
    let driver = Driver::new();
    let memory = driver.device_memory();
    let options = input.u8();
    let base = input.u16();
    let Some(mut ring) = SplitRing::new(
        &memory,
        &RING.addresses(),
        SIZE,
        base,
        options & 1 != 0,
        options & 2 != 0,
    ) else {
        return;
    };
    for _ in 0..MOST_STEPS {
        if !input.has_more() {
            break;
        }
        let step = input.u8();
        match step & 7 {
            0 | 1 => RING.describe(&driver, u16::from(input.u8() % 16), input.descriptor()),
            2 => {
                let slot = u64::from(input.u8() % 64);
                let entry = crate::testing::encode(input.descriptor());
                driver.write(BUFFERS + slot * 16 + u64::from(step >> 7), &entry);
            }
            3 => {
                let (ahead, head) = (input.u8(), u16::from(input.u8() % 17));
                RING.offer(&driver, base.wrapping_add(ahead.into()), head);
            }
            4 => RING.set_available(&driver, input.u16()),
            5 => RING.set_used_event(&driver, input.u16()),
            6 => {
                let _ = ring.arm(None);
            }
            _ => return_all(&mut ring, &memory, step),
        }
    }
}

/// The same ring read by rust-vmm's `virtio-queue`. Chains that this crate takes have the same descriptors there,
/// chains with a proper end there are not refused here, and both signal the driver at the same time.
pub fn compared(data: &[u8]) {
    const RING: Ring = Ring(0);
    let mut input = Input(data);
    let driver = Driver::new();
    let memory = driver.device_memory();
    let event_idx = input.u8() & 1 != 0;
    let base = input.u16();
    let addresses = RING.addresses();
    let Some(mut ours) = SplitRing::new(&memory, &addresses, SIZE, base, true, event_idx) else {
        return;
    };
    let (mapped, mut theirs) = another(&driver, RING, base, event_idx);
    for _ in 0..MOST_STEPS {
        if !input.has_more() {
            break;
        }
        match input.u8() & 7 {
            0 | 1 => {
                let (index, (address, len, flags, next)) = (input.u8() % 16, input.descriptor());
                // Only `virtio-queue` refuses tables with more entries than a `next` field can name.
                let len = match flags & crate::testing::INDIRECT {
                    0 => len,
                    _ => len & 0xf_ffff,
                };
                RING.describe(&driver, index.into(), (address, len, flags, next));
            }
            2 => {
                let slot = u64::from(input.u8() % 64);
                driver.write(
                    BUFFERS + slot * 16,
                    &crate::testing::encode(input.descriptor()),
                );
            }
            3 | 4 => {
                let (ahead, head) = (input.u8() % 8, u16::from(input.u8() % 17));
                RING.offer(&driver, base.wrapping_add(ahead.into()), head);
            }
            5 => RING.set_available(&driver, input.u16()),
            6 => RING.set_used_event(&driver, input.u16()),
            _ => {
                if !take_both(&mut ours, &memory, &mut theirs, &mapped) {
                    return;
                }
            }
        }
    }
}

type Mapped = vm_memory::GuestMemoryMmap<()>;

/// The view of a ring by `virtio-queue`.
fn another(
    driver: &Driver,
    ring: Ring,
    base: u16,
    event_idx: bool,
) -> (Mapped, virtio_queue::Queue) {
    use virtio_queue::QueueT;
    use vm_memory::{FileOffset, GuestAddress};
    let file = std::fs::File::from(driver.file.try_clone().unwrap());
    let range = (
        GuestAddress(0),
        usize::try_from(MEMORY).unwrap(),
        Some(FileOffset::new(file, 0)),
    );
    let mapped = Mapped::from_ranges_with_files([range]).unwrap();
    let mut queue = virtio_queue::Queue::new(SIZE).unwrap();
    let low = |address: u64| Some(u32::try_from(address).unwrap());
    queue.set_desc_table_address(low(ring.descriptors()), Some(0));
    queue.set_avail_ring_address(low(ring.available()), Some(0));
    queue.set_used_ring_address(low(ring.used()), Some(0));
    queue.set_event_idx(event_idx);
    queue.set_next_avail(base);
    queue.set_ready(true);
    assert!(queue.is_valid(&mapped));
    (mapped, queue)
}

/// Takes and returns all offered chains on both sides. Returns whether the ring is still valid.
fn take_both(
    ours: &mut SplitRing,
    memory: &GuestMemory,
    theirs: &mut virtio_queue::Queue,
    mapped: &Mapped,
) -> bool {
    use virtio_queue::{QueueOwnedT, QueueT};
    let mut returned = Vec::new();
    for _ in 0..SIZE {
        let mut segments = Vec::new();
        let taken = ours.take(memory, Direction::Request, &mut segments);
        let Ok(mut chains) = theirs.iter(mapped) else {
            assert_eq!(taken, Err(crate::ring::RingFault::AvailableIndex));
            return false;
        };
        let Some(chain) = chains.next() else {
            assert_eq!(taken, Ok(None));
            break;
        };
        let head = chain.head_index();
        let descriptors: Vec<_> = chain.collect();
        let chain = match taken {
            Ok(Some(chain)) => chain,
            Ok(None) => panic!("a chain from {head} is not found"),
            Err(fault) => {
                assert!(
                    !is_proper(&descriptors, fault),
                    "{fault:?}: {descriptors:?}"
                );
                return false;
            }
        };
        assert_eq!(chain.place.id, head);
        let seen = segments
            .iter()
            .map(|part| (part.guest, part.len, part.writable));
        let reported = descriptors
            .iter()
            .map(|part| (part.addr().0, part.len(), part.is_write_only()));
        let filled = |part: &(u64, u32, bool)| part.1 > 0;
        assert!(
            seen.filter(filled).eq(reported.filter(filled)),
            "{segments:?} and {descriptors:?}"
        );
        ours.give(chain.place, 0);
        returned.push(head);
    }
    if returned.is_empty() {
        return true;
    }
    ours.publish(None);
    let wanted = ours.wants_signal();
    if wanted {
        ours.signalled();
    }
    // `virtio-queue` writes the same elements and the same index again.
    for head in returned {
        theirs.add_used(mapped, head, 0).unwrap();
    }
    if theirs.event_idx_enabled() {
        assert_eq!(wanted, theirs.needs_notification(mapped).unwrap());
    }
    true
}

/// Whether a chain is valid: it ends, lies in memory, and its writable descriptors come last. `virtio-queue` is more
/// lenient about the place of an indirect table.
fn is_proper(
    descriptors: &[virtio_queue::desc::split::Descriptor],
    fault: crate::ring::RingFault,
) -> bool {
    let ends = descriptors.last().is_some_and(|last| !last.has_next());
    let in_memory = descriptors.iter().all(|part| {
        let end = part.addr().0.checked_add(u64::from(part.len()));
        end.is_some_and(|end| end <= MEMORY)
    });
    let in_order = descriptors.is_sorted_by_key(|part| part.is_write_only());
    ends && in_memory && in_order && fault != crate::ring::RingFault::IndirectPlace
}

/// Chains of a packed ring: every segment must be guest memory. The driver can write its slots, its events and the
/// device's own note in it, and the back end may be killed and restarted.
pub fn packed(data: &[u8]) {
    let mut input = Input(data);
    let driver = PackedDriver::new(1 + u16::from(input.u8() % 40));
    let memory = driver.memory.device_memory();
    let options = input.u8();
    let mut features = Features::RING_PACKED;
    for (bit, feature) in [Features::INDIRECT, Features::EVENT_IDX, Features::IN_ORDER]
        .into_iter()
        .enumerate()
    {
        if options & 1 << bit != 0 {
            features = features.with(feature);
        }
    }
    let start = |base| PackedRing::new(&memory, &driver.addresses(), driver.size, base, features);
    let Some(mut ring) = start(input.u16()) else {
        return;
    };
    for _ in 0..MOST_STEPS {
        if !input.has_more() {
            break;
        }
        let step = input.u8();
        match step & 7 {
            0..=2 => {
                let slot = u16::from(input.u8()) % driver.size;
                let (address, len, flags, id) = input.descriptor();
                // The flags mostly mark a descriptor as available in one of the two laps.
                let phase = match step >> 3 & 7 {
                    0..=2 => 1 << 7,
                    3..=5 => 1 << 15,
                    6 => 1 << 7 | 1 << 15,
                    _ => 0,
                };
                driver.write_slot(slot.into(), (address, len, id, flags | phase));
            }
            3 => {
                let slot = u64::from(input.u8() % 64);
                let (address, len, flags, _) = input.descriptor();
                driver.write_table(BUFFERS, slot, (address, len, flags));
            }
            4 => driver.set_event(u16::from(step >> 3 & 3), input.u16()),
            5 => driver
                .memory
                .write(PackedDriver::DEVICE_EVENT, &input.u32().to_le_bytes()),
            6 => match step >> 3 & 3 {
                0 => {
                    let _ = (ring.look(), ring.arm(None));
                }
                1 => ring.disarm(None),
                2 => {
                    let mut segments = Vec::new();
                    if let Ok(Some(chain)) = ring.take(&memory, Direction::Readable, &mut segments)
                    {
                        ring.put_back(chain.place, 1);
                    }
                }
                _ => {
                    if let Some(next) = start(ring.base()) {
                        ring = next;
                    }
                }
            },
            _ => return_all(&mut ring, &memory, step),
        }
    }
}

/// Takes and returns the chains that a ring offers, at most as many as the ring has entries, as the data path does. The
/// step selects the direction. Every segment must be guest memory.
fn return_all(ring: &mut impl Virtqueue, memory: &GuestMemory, step: u8) {
    let direction = if step & 8 == 0 {
        Direction::Readable
    } else {
        Direction::Writable
    };
    let mut segments = Vec::new();
    for _ in 0..ring.size() {
        let Ok(Some(chain)) = ring.take(memory, direction, &mut segments) else {
            break;
        };
        let mut len = 0;
        for segment in chain.segments(&segments) {
            let end = segment.guest + u64::from(segment.len);
            assert!(end <= MEMORY, "{segment:?}");
            len += u64::from(segment.len);
        }
        assert_eq!(len, u64::from(chain.len));
        ring.give(chain.place, chain.len);
    }
    ring.publish(None);
    if ring.wants_signal() {
        ring.signalled();
    }
}

/// Chains over several memory regions that are added and removed: every segment must lie in one region, at the host
/// address where the region is mapped.
pub fn regions(data: &[u8]) {
    const RING: Ring = Ring(0);
    // The end of the region that holds the ring and is never removed.
    const FIRST: u64 = 0x1_0000;
    let mut input = Input(data);
    let driver = Driver::new();
    let part = |guest, size, user, offset| RegionDescription {
        guest,
        size,
        user,
        offset,
    };
    let mut memory = GuestMemory::default();
    let file = || driver.file.try_clone().unwrap();
    memory.add(part(0, FIRST, USER, 0), file()).unwrap();
    let Some(mut ring) = SplitRing::new(&memory, &RING.addresses(), SIZE, 0, true, true) else {
        return;
    };
    let (mut position, mut added) = (0, Vec::new());
    for _ in 0..MOST_STEPS {
        if !input.has_more() {
            break;
        }
        let step = input.u8();
        // The number of places is small, so that regions touch and overlap. Some are at the end of the address space.
        let mut place = || {
            let number = u64::from(input.u16() % 64) * 0x400;
            match step >> 7 {
                0 => FIRST + number,
                _ => u64::MAX - number,
            }
        };
        match step & 3 {
            0 => {
                let (guest, user, size) = (place(), place(), place() & 0xffff);
                let region = part(guest, size, user, size & 0x1c00);
                if memory.add(region, file()).is_ok() {
                    added.push(region);
                }
            }
            1 => {
                if !added.is_empty() {
                    memory.remove(added.swap_remove(usize::from(step >> 2) % added.len()));
                }
            }
            2 => {
                let (guest, user, len) = (place(), place(), 1 + u32::from(step) * 40);
                if let Some(segment) = memory.at(guest, len) {
                    check_segment(&memory, &segment);
                }
                if let Some((host, guest)) = memory.at_user(user, len.into(), 1) {
                    let whole = Segment {
                        host,
                        len,
                        guest,
                        writable: false,
                    };
                    check_segment(&memory, &whole);
                }
            }
            _ => {
                let mut index = 0;
                while index < 3 {
                    let flags = if index < 2 { crate::testing::NEXT } else { 0 };
                    let address = place();
                    RING.describe(
                        &driver,
                        index,
                        (address, 0x200 << (step >> 4 & 3), flags, index + 1),
                    );
                    index += 1;
                }
                RING.offer(&driver, position, 0);
                let mut segments = Vec::new();
                if let Ok(Some(chain)) = ring.take(&memory, Direction::Readable, &mut segments) {
                    position = position.wrapping_add(1);
                    for segment in &segments {
                        check_segment(&memory, segment);
                    }
                    ring.give(chain.place, 0);
                    ring.publish(None);
                }
            }
        }
    }
}
