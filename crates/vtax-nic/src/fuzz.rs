//! What the fuzzers run: one function for each way in that hostile bytes have. `fuzz/` holds the
//! fuzzers; the tests below replay their corpora.
//!
//! A function panics when a promise is broken: segments outside of guest memory, a budget over the
//! operator's cap, or a neighbour that no longer gets its frames.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};

use crate::control::lease::{Answer, LeaseManager};
use crate::control::{Policy, api, frame as control_frames};
use crate::features::Features;
use crate::frame::{self, HEADER_LEN, NetHeader, Offloads};
use crate::hold::{HoldSettings, Mode, Nanos};
use crate::memory::{GuestMemory, LOG_PAGE, MappedRegion, RegionDescription, Segment};
use crate::network::{Batch, Network, Port, Tap};
use crate::poller::{Poller, PortId};
use crate::protocol::{Connection, Request};
use crate::ring::{Direction, PackedRing, SplitRing, Virtqueue};
use crate::telemetry::{PortCounters, prometheus};
use crate::testing::{
    BUFFERS, CONTROL, Driver, MEMORY, PackedDriver, Peer, RX, Ring, SIZE, TX, USER, linux,
    memory_file, port,
};
use crate::worker::{Turn, answer};

/// A time far enough from 0 that nothing is mistaken for never.
const NOW: Nanos = Nanos(1_000_000_000_000);

/// Longer inputs find nothing that shorter ones do not, only later.
const MOST_STEPS: usize = 200;

/// Numbers off the front of an input; zeros past its end.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let bytes = self.bytes(N);
        array[..bytes.len()].copy_from_slice(bytes);
        array
    }

    fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// An address: mostly of a buffer, sometimes at the end of memory, sometimes anything.
    fn address(&mut self) -> u64 {
        match self.u8() {
            0..200 => BUFFERS + u64::from(self.u16()) * 16,
            200..230 => MEMORY - u64::from(self.u8()),
            230..245 => u64::from(self.u32()),
            245.. => self.u64(),
        }
    }

    /// A length: mostly short.
    fn len(&mut self) -> u32 {
        match self.u8() {
            0..230 => u32::from(self.u16()),
            230.. => self.u32(),
        }
    }

    fn descriptor(&mut self) -> (u64, u32, u16, u16) {
        let (address, len) = (self.address(), self.len());
        (
            address,
            len,
            u16::from(self.u8() & 7),
            u16::from(self.u8() % 18),
        )
    }

    fn features(&mut self) -> Features {
        // VERSION_1 is what every front end accepts; the fields of the header depend on the others.
        let kept = self.u64() | Features::VERSION_1.0 | Features::PROTOCOL.0;
        Features(linux().0 & kept)
    }

    fn has_more(&self) -> bool {
        !self.0.is_empty()
    }
}

/// A switch with a hostile port, number 0, and two friends.
struct Neighbourhood {
    network: Network,
    poller: Poller,
    batch: Batch,
    friends: [Peer; 2],
}

impl Neighbourhood {
    /// The hostile port's driver goes through its start with its features, or has no front end.
    fn new(hostile: Option<Features>, friends: Features) -> (Self, Option<Peer>) {
        let poller = Poller::new().unwrap();
        let mut zero = port(0, Mode::Adaptive);
        let enemy = hostile.map(|features| Peer::start(&mut zero, &poller, features));
        (
            Self::beside(Port::Guest(Box::new(zero)), poller, friends),
            enemy,
        )
    }

    /// Likewise, with any port for the hostile one.
    fn beside(zero: Port, poller: Poller, friends: Features) -> Self {
        let [mut one, mut two] = [1, 2].map(|number| port(number, Mode::Adaptive));
        let peers = [&mut one, &mut two].map(|guest| Peer::start(guest, &poller, friends));
        let [one, two] = [one, two].map(|guest| Port::Guest(Box::new(guest)));
        let ports = [zero, one, two];
        let mut neighbourhood = Self {
            network: Network::new(ports.into()),
            poller,
            batch: Batch::new(),
            friends: peers,
        };
        for port in 0..3 {
            neighbourhood.network.port_changed(port);
        }
        neighbourhood.run(NOW);
        neighbourhood
    }

    /// Works until there is nothing to do, or for 200 rounds: a driver whose rings overlap can feed
    /// itself for ever. A round takes a microsecond, so that nothing is spun for without end.
    fn run(&mut self, now: Nanos) {
        for round in 0..200 {
            let now = now + Nanos::from_micros(round);
            if !self.network.poll(now, &mut self.batch) {
                return;
            }
        }
    }

    fn kick(&mut self, port: u16, queue: u8, now: Nanos) {
        let id = PortId { network: 0, port };
        self.network.kicked(id, queue, now);
        self.run(now);
    }

    /// Whatever the hostile port did, its neighbours reach each other.
    fn check(mut self, now: Nanos) {
        self.network.take_stopped();
        let now = now + Nanos::from_secs(10);
        self.run(now);
        for friend in &mut self.friends {
            friend.received();
            friend.refill();
        }
        let mut bytes = [0x5a; 60];
        bytes[..14].copy_from_slice(&[255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1, 8, 0]);
        self.friends[0].send([0; HEADER_LEN], &bytes);
        self.kick(1, 1, now);
        let later = now + Nanos::from_secs(10);
        self.run(later);
        let received = self.friends[1].received();
        assert!(
            received.iter().any(|(_, frame)| frame == &bytes),
            "the neighbour got {} frames, and not its own",
            received.len()
        );
    }
}

/// A driver that writes what it likes into its rings and buffers, while it is served.
pub fn guest(data: &[u8]) {
    let mut input = Input(data);
    let (own, friends) = (input.features(), input.features());
    let (mut neighbourhood, enemy) = Neighbourhood::new(Some(own), friends);
    let Some(mut enemy) = enemy else { return };
    for friend in &mut neighbourhood.friends {
        friend.refill();
    }
    // After the port's two pairs, or after the only one that there is without MQ.
    let mut control = 4;
    if own.has(Features::CTRL_VQ)
        && let Some(guest) = neighbourhood.network.guest_mut(0)
    {
        control = if own.has(Features::MQ) { 4 } else { 2 };
        enemy.start_control(guest, &neighbourhood.poller, control.into());
        neighbourhood.run(NOW);
    }
    let mut now = NOW;
    for _ in 0..MOST_STEPS {
        if !input.has_more() {
            break;
        }
        let step = input.u8();
        let (ring, queue) = match step >> 6 {
            0 | 1 => (TX, 1),
            2 => (RX, 0),
            _ => (CONTROL, control),
        };
        match step & 0x0f {
            0..=2 => {
                let index = u16::from(input.u8() % 16);
                ring.describe(&enemy.driver, index, input.descriptor());
            }
            3 | 4 => {
                let (position, head) = (input.u8(), u16::from(input.u8() % 17));
                ring.offer(&enemy.driver, position.into(), head);
            }
            5 => ring.set_available(&enemy.driver, input.u16()),
            6 => ring.set_used_event(&enemy.driver, input.u16()),
            7 | 8 => {
                let at = BUFFERS + u64::from(input.u16()) * 8;
                let len = input.u8();
                enemy.driver.write(at, input.bytes(len.into()));
            }
            9 | 10 => {
                let header = input.array();
                enemy.send(header, &frame_of(&mut input));
            }
            11 => enemy.refill(),
            12 => {
                now = now + Nanos::from_micros(input.u32());
                neighbourhood.run(now);
            }
            13 => {
                let (position, room) = (input.u8(), input.u8() % 32);
                let mut command = vec![input.u8() % 8, input.u8() % 8];
                let len = usize::from(input.u8());
                command.extend(input.bytes(len));
                enemy.command(u16::from(position % 16), &command, room.into());
                neighbourhood.kick(0, control, now);
            }
            _ => {
                neighbourhood.kick(0, queue, now);
                for friend in &mut neighbourhood.friends {
                    friend.received();
                    friend.refill();
                }
            }
        }
    }
    neighbourhood.kick(0, 1, now);
    if let Some(guest) = neighbourhood.network.guest_mut(0) {
        let in_force = guest.info("", true, now).in_force_us;
        assert!(in_force <= Policy::default().cap_us, "{in_force} µs");
    }
    neighbourhood.check(now);
}

/// A frame with the headers that `kind` asks for and `len` bytes of payload.
fn packet(kind: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![255; 6];
    bytes.extend([2, 0, 0, 0, 0, 9]);
    if kind & 4 != 0 {
        bytes.extend([0x81, 0, 0, 1]);
    }
    let protocol = if kind & 2 == 0 { 6 } else { 17 };
    let header = if protocol == 6 { 20 } else { 8 };
    // Longer packets than 64 KiB are not sent.
    let number = |len: usize| u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes();
    if kind & 1 == 0 {
        bytes.extend([8, 0, 0x45, 0]);
        bytes.extend(number(20 + header + len));
        bytes.extend([0, 1, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    } else {
        bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        bytes.extend(number(header + len));
        bytes.extend([protocol, 64]);
        bytes.extend([0xfd; 32]);
    }
    let mut transport = vec![0; header];
    if protocol == 6 {
        transport[12] = 0x50;
    }
    bytes.extend(transport);
    bytes.resize(bytes.len() + len, 7);
    bytes
}

/// Chains of a split ring, taken with no network around: every segment must be guest memory.
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

/// The same ring read by rust-vmm's `virtio-queue`: chains that we take have the descriptors that it sees, what it
/// reads to a proper end we do not refuse, and both signal the driver at the same time.
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
                // Tables of more entries than their links can name are refused by the other side only.
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

/// Somebody else's view of a ring.
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

/// Takes and returns all that waits, on both sides; returns whether the ring goes on.
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
        let told = descriptors
            .iter()
            .map(|part| (part.addr().0, part.len(), part.is_write_only()));
        let filled = |part: &(u64, u32, bool)| part.1 > 0;
        assert!(
            seen.filter(filled).eq(told.filter(filled)),
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
    // The same elements and the same index once more.
    for head in returned {
        theirs.add_used(mapped, head, 0).unwrap();
    }
    if theirs.event_idx_enabled() {
        assert_eq!(wanted, theirs.needs_notification(mapped).unwrap());
    }
    true
}

/// Whether nothing is wrong with a chain: it ends, lies in memory, and what is written comes last. Where an indirect
/// table may be, the other side is more lenient.
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

/// Chains of a packed ring, likewise: its slots, its events, and our own note in it are all the
/// driver's to write, and the back end may be killed and come back.
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
                // Mostly what is available in one lap or the other.
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

/// Takes and returns what a ring offers, at most a ring of chains at a time, as the data path does
/// it, to be read or to be written as the step says. Every segment must be guest memory.
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

/// A front end that sends any messages with any descriptors, from the start on or once all runs.
pub fn messages(data: &[u8]) {
    let mut input = Input(data);
    let running = input.u8() & 1 == 1;
    let (mut neighbourhood, enemy) = Neighbourhood::new(running.then(linux), linux());
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
            let network = &mut neighbourhood.network;
            let id = PortId {
                network: 0,
                port: 0,
            };
            match answer(&mut connection, network, id, &neighbourhood.poller, now) {
                Ok(Turn::Message | Turn::Enough) => {}
                Ok(Turn::Nothing) => break,
                Err(_) => {
                    alive = false;
                    break;
                }
            }
        }
        if let Some(enemy) = &enemy {
            // The guest behind it goes on as it was.
            let head = u16::from(step % 16);
            TX.offer(&enemy.driver, TX.used_index(&enemy.driver), head);
        }
        neighbourhood.kick(0, 1, now);
    }
    let network = &mut neighbourhood.network;
    if let Some(guest) = network.guest_mut(0) {
        guest.disconnect(&neighbourhood.poller, now);
    }
    network.port_left(0);
    neighbourhood.check(now);
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

/// A message with a correct header. Its payload is what an honest front end could send, changed
/// bit by bit as the input says.
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
        16 => vec![crate::features::ProtocolFeatures::OFFERED.0],
        18 => vec![ring.0 | 1 << 32],
        19 | 20 => vec![1500],
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

/// What an operator, or who got hold of its socket, sends: lines of JSON, or HTTP.
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

/// Frames that a tap has for two guests, with any header and of any length, and theirs for it: what goes
/// to the kernel is whole and its header true, and nobody is harmed by what comes.
pub fn taps(data: &[u8]) {
    let mut input = Input(data);
    let options = input.u8();
    let (kernel, own) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .unwrap();
    let tap = Port::Tap(Box::new(Tap::over(own, options & 1 != 0)));
    let poller = Poller::new().unwrap();
    let mut neighbourhood = Neighbourhood::beside(tap, poller, input.features());
    for friend in &mut neighbourhood.friends {
        friend.refill();
    }
    let mut now = NOW;
    for _ in 0..MOST_STEPS {
        if !input.has_more() {
            break;
        }
        let step = input.u8();
        match step & 3 {
            0 | 1 => {
                let mut message = input.array::<HEADER_LEN>().to_vec();
                message.extend(frame_of(&mut input));
                message.truncate(message.len() - usize::from(step >> 6).min(2) * 13);
                // A socket that is full loses it.
                let _ = rustix::net::send(&kernel, &message, SendFlags::DONTWAIT);
                let id = PortId {
                    network: 0,
                    port: 0,
                };
                neighbourhood.network.tap_ready(id, 0);
            }
            2 => {
                let header = input.array();
                let frame = frame_of(&mut input);
                neighbourhood.friends[usize::from(step >> 7)].send(header, &frame);
                neighbourhood.kick(1 + u16::from(step >> 7), 1, now);
            }
            _ => now = now + Nanos::from_micros(input.u32()),
        }
        neighbourhood.run(now);
        for friend in &mut neighbourhood.friends {
            for (header, frame) in friend.received() {
                check_header(&header, &frame);
            }
            friend.refill();
        }
        taken_by_kernel(&kernel);
    }
    taken_by_kernel(&kernel);
    neighbourhood.check(now);
    assert!(taken_by_kernel(&kernel) > 0, "the neighbour's broadcast");
}

/// A frame with bits of it changed.
fn frame_of(input: &mut Input) -> Vec<u8> {
    let (kind, len) = (input.u8(), input.u16() % 0x3f00);
    let mut bytes = packet(kind, len.into());
    let changed = input.u8();
    for (byte, change) in bytes.iter_mut().zip(input.bytes(changed.into())) {
        *byte ^= change;
    }
    bytes
}

/// Reads all that a tap gave its kernel; returns how many frames. Each is whole, and what its header says lies in it.
fn taken_by_kernel(kernel: &OwnedFd) -> usize {
    let mut message = vec![0; HEADER_LEN + frame::MAX_FRAME];
    let mut count = 0;
    while let Ok(len @ 1..) = rustix::io::read(kernel, &mut message[..]) {
        let (header, frame) = message[..len].split_at(HEADER_LEN.min(len));
        check_header(header, frame);
        count += 1;
    }
    count
}

/// A frame is one, and what its header wants done lies in it.
fn check_header(header: &[u8], frame: &[u8]) {
    assert!(frame.len() >= frame::ETHERNET, "{} bytes", frame.len());
    let header = NetHeader::from_bytes(header.try_into().unwrap());
    assert!(
        header.checked(frame.len(), Offloads::ALL).is_ok(),
        "{header:?}"
    );
}

/// Chains over several memory regions, which come and go: every segment must be of one region, where that is
/// mapped.
pub fn regions(data: &[u8]) {
    const RING: Ring = Ring(0);
    // The ring's own, which stays.
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
        // A few places, so that regions meet and overlap, some at the end of all addresses.
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

/// A segment lies in one region, and where that is mapped.
fn check_segment(memory: &GuestMemory, segment: &Segment) {
    let (host, len) = (segment.host.addr() as u64, u64::from(segment.len));
    let holds = |region: &MappedRegion| {
        let inside = segment.guest.wrapping_sub(region.guest);
        inside < region.size && len <= region.size - inside && host == region.host + inside
    };
    assert!(memory.mapped().iter().any(holds), "{segment:?}");
}

/// A guest that migrates: whatever we write into its memory, its page is in the dirty log.
pub fn logged(data: &[u8]) {
    const PAGES: usize = (MEMORY / LOG_PAGE) as usize;
    let mut input = Input(data);
    let features = input.features();
    let (mut neighbourhood, enemy) = Neighbourhood::new(Some(features), linux());
    let Some(mut enemy) = enemy else { return };
    let log = memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&log, (PAGES / 8) as u64).unwrap();
    let Some(guest) = neighbourhood.network.guest_mut(0) else {
        return;
    };
    for request in [
        Request::SetLogBase {
            size: (PAGES / 8) as u64,
            offset: 0,
            file: log.try_clone().unwrap(),
        },
        Request::SetFeatures(features.with(Features::LOG_ALL)),
    ] {
        guest.handle(request, &neighbourhood.poller, NOW).unwrap();
    }
    neighbourhood.network.port_changed(0);
    neighbourhood.run(NOW);
    let mut now = NOW;
    for _ in 0..MOST_STEPS / 10 {
        if !input.has_more() {
            break;
        }
        let step = input.u8();
        let ring = if step & 0x80 == 0 { RX } else { TX };
        match step & 3 {
            0 => enemy.refill(),
            1 => {
                let index = u16::from(input.u8() % 16);
                ring.describe(&enemy.driver, index, input.descriptor());
                ring.offer(&enemy.driver, input.u8().into(), index);
            }
            2 => enemy.send([0; HEADER_LEN], &packet(step, usize::from(step))),
            _ => ring.set_used_event(&enemy.driver, input.u16()),
        }
        // What the guest wrote is its own to know.
        let before = enemy.driver.read(0, PAGES * LOG_PAGE as usize);
        rustix::io::pwrite(&log, &[0; PAGES / 8], 0).unwrap();
        now = now + Nanos::from_micros(50);
        let len = 14 + usize::from(input.u16() % 0x2000);
        let mut bytes = vec![step; len];
        bytes[..14].copy_from_slice(&[255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1, 8, 0]);
        neighbourhood.friends[0].send([0; HEADER_LEN], &bytes);
        neighbourhood.kick(1, 1, now);
        neighbourhood.kick(0, 1, now);
        let mut bits = [0; PAGES / 8];
        rustix::io::pread(&log, &mut bits, 0).unwrap();
        let after = enemy.driver.read(0, before.len());
        let pages = before
            .chunks(LOG_PAGE as usize)
            .zip(after.chunks(LOG_PAGE as usize));
        for (page, (before, after)) in pages.enumerate() {
            let marked = bits[page / 8] & 1 << (page % 8) != 0;
            assert!(
                marked || before == after,
                "page {page} was written and is not logged"
            );
        }
    }
    neighbourhood.check(now);
}

/// A frame with a header that passed the checks, split or checksummed for a receiver that cannot
/// take it as it is.
pub fn segmentation(data: &[u8]) {
    let mut input = Input(data);
    let header = NetHeader::from_bytes(&input.array());
    let kind = input.u8();
    let mut frame = packet(kind, usize::from(input.u16()) % 0x4000);
    let (changed, cut) = (input.u8(), input.u8());
    for (byte, change) in frame.iter_mut().zip(input.bytes(changed.into())) {
        *byte ^= change;
    }
    frame.truncate(frame.len() - usize::from(cut).min(frame.len()));
    let Ok(header) = header.checked(frame.len(), Offloads::ALL) else {
        return;
    };
    if let Some((_, size)) = header.segmentation() {
        let mut carried = 0;
        let mut scratch = Vec::new();
        let result = frame::segment(
            &frame,
            header,
            kind & 8 != 0,
            &mut scratch,
            |part, header| {
                assert!(part.len() <= frame.len().max(frame::ETHERNET) + 8);
                carried += part.len();
                if let Some((start, offset)) = header.checksum() {
                    assert!(start + offset + 2 <= part.len());
                }
            },
        );
        assert!(size > 0);
        assert!(
            result.is_err() == (carried == 0),
            "an error after something was sent, or nothing sent without one"
        );
    } else if let Some((start, offset)) = header.checksum() {
        assert!(frame::complete(&mut frame, start, offset));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Its name, and what runs an input.
    type Target = (&'static str, fn(&[u8]));

    const TARGETS: [Target; 11] = [
        ("guest", super::guest),
        ("chains", super::chains),
        ("compared", super::compared),
        ("packed", super::packed),
        ("messages", super::messages),
        ("control_frame", super::control_frame),
        ("operator", super::operator),
        ("regions", super::regions),
        ("logged", super::logged),
        ("segmentation", super::segmentation),
        ("taps", super::taps),
    ];

    #[test]
    fn every_kept_input_of_every_target_passes() {
        for (target, run) in TARGETS {
            let corpus = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("fuzz/corpus")
                .join(target);
            let entries: Vec<_> = std::fs::read_dir(&corpus)
                .unwrap_or_else(|error| panic!("{}: {error}", corpus.display()))
                .collect();
            assert!(entries.len() > 3, "{} is empty", corpus.display());
            for entry in entries {
                let path = entry.unwrap().path();
                let input = std::fs::read(&path).unwrap();
                eprintln!("{}", path.display());
                run(&input);
            }
        }
    }
}
