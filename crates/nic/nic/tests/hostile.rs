// SPDX-License-Identifier: Apache-2.0
//! Drivers and front ends that misbehave on purpose, against the real program: each may lose its own port, and has no
//! other effect.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use vtax_nic::control::api::Request;
use vtax_nic::features::Features;
use vtax_nic::hold::Mode;
use vtax_nic_driver::backend::Backend;
use vtax_nic_driver::descriptor::Descriptor;
use vtax_nic_driver::hostile::{BadMessage, DriverFault};
use vtax_nic_driver::load::ping_pong;
use vtax_nic_driver::nic::{Nic, Options};
use vtax_nic_driver::session::{Session, message, request};

const PROGRAM: &str = env!("CARGO_BIN_EXE_vtax-nic");

/// A back end with a link for hostile drivers, `a0` to `b0`, and one for well-behaved drivers.
struct Bench {
    backend: Backend,
    friends: (Nic, Nic),
    directory: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let backend = Backend::start(
            Path::new(PROGRAM),
            directory.path(),
            2,
            (Mode::Adaptive, 1_000),
            None,
        )
        .unwrap();
        let friends = ["a1", "b1"].map(|port| backend.connect(port, Options::default()).unwrap());
        let [a, b] = friends;
        Self {
            backend,
            friends: (a, b),
            directory,
        }
    }

    /// Connects as `port`, and retries while the back end still disconnects the previous front end.
    fn connect(&self, port: &str, options: Options) -> Nic {
        let start = Instant::now();
        loop {
            match self.backend.connect(port, options) {
                Ok(nic) => return nic,
                Err(error) => assert!(start.elapsed() < Duration::from_secs(10), "{error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Checks that the process lives, and that the other link carries frames both ways.
    fn check(&mut self, after: &str) {
        assert!(self.backend.is_running(), "{after} ended the process");
        let (a, b) = &mut self.friends;
        pass(a, b, after);
        pass(b, a, after);
    }

    fn faults(&self, port: &str) -> u64 {
        self.backend.stats(port).unwrap().totals.faults
    }
}

fn frame() -> Vec<u8> {
    let mut frame = vec![7; 64];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb6]);
    frame
}

/// Sends frames until one arrives.
fn pass(from: &mut Nic, to: &mut Nic, after: &str) {
    let start = Instant::now();
    loop {
        from.send(0, &frame());
        let mut arrived = false;
        to.wait(0, Duration::from_millis(20));
        to.receive(0, 64, |received| arrived |= received == frame());
        if arrived {
            return;
        }
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "no frames any more after {after}"
        );
    }
}

/// The consequence of a fault for the port that commits it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cost {
    /// Its queue or port is stopped.
    Queue,
    /// The frame is dropped as malformed, and the queue continues.
    Frame,
    /// The behaviour is unusual and allowed.
    Nothing,
    /// The consequence depends on the order of reads.
    Chance,
}

fn cost(fault: DriverFault) -> Cost {
    match fault {
        DriverFault::ZeroLength
        | DriverFault::ShorterThanHeader
        | DriverFault::HeaderOnly
        | DriverFault::ChecksumStartPastEnd
        | DriverFault::ChecksumOffsetPastEnd
        | DriverFault::SegmentsOfZeroBytes
        | DriverFault::UnnegotiatedSegmentation
        | DriverFault::UnknownSegmentation => Cost::Frame,
        DriverFault::HeaderInTwelveParts | DriverFault::EventIndexOscillates => Cost::Nothing,
        DriverFault::DescriptorsRewritten => Cost::Chance,
        _ => Cost::Queue,
    }
}

#[test]
fn every_misdeed_of_a_running_driver_stays_with_its_port() {
    let mut bench = Bench::new();
    for fault in DriverFault::ALL {
        let name = format!("{fault:?}");
        let mut peer = bench.connect("b0", Options::default());
        let mut hostile = bench.connect("a0", Options::default());
        pass(&mut peer, &mut hostile, &name);
        pass(&mut hostile, &mut peer, &name);
        let before = bench.backend.stats("a0").unwrap().totals;
        fault.inject(&mut hostile);
        // A fault of receive buffers shows when a frame arrives.
        let start = Instant::now();
        loop {
            let now = bench.backend.stats("a0").unwrap().totals;
            let (faults, taken) = (
                now.faults - before.faults,
                now.tx_packets > before.tx_packets,
            );
            let is_paid = match cost(fault) {
                Cost::Queue => faults > 0,
                Cost::Frame => now.drops.malformed > before.drops.malformed,
                Cost::Nothing => taken && now.drops == before.drops,
                Cost::Chance => true,
            };
            let stops = matches!(cost(fault), Cost::Queue | Cost::Chance);
            assert!(faults == 0 || stops, "{name}: it stopped");
            if is_paid {
                break;
            }
            peer.send(0, &frame());
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "{name}: {before:?}, then {now:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        bench.check(&name);
        drop((hostile, peer));
        // The port accepts the next front end.
        let mut peer = bench.connect("b0", Options::default());
        let mut next = bench.connect("a0", Options::default());
        pass(&mut peer, &mut next, &name);
        pass(&mut next, &mut peer, &name);
    }
}

#[test]
fn every_message_that_cannot_be_loses_its_sender_its_port_and_nothing_else() {
    let mut bench = Bench::new();
    for bad in BadMessage::ALL {
        let name = format!("{bad:?}");
        let nic = bench.connect("a0", Options::default());
        if bad == BadMessage::RingAddressesBeforeMemory {
            // The message goes to a session without any setup; its files and addresses belong to another session.
            let directory = bench.directory.path().join("b0");
            let session = Session::connect(&directory).unwrap();
            bad.send_on(&session, &nic).unwrap();
            bench.check(&name);
            continue;
        }
        bad.send(&nic).unwrap();
        if bad == BadMessage::Truncated {
            // The rest of the message may still arrive.
            bench.check(&name);
            continue;
        }
        let refused = bad != BadMessage::BlockingEventfdWithSaturatedCounter;
        if refused {
            assert!(nic.session.closed_within(Duration::from_secs(5)), "{name}");
        }
        bench.check(&name);
    }
}

#[test]
fn a_call_descriptor_that_blocks_after_it_was_handed_over_stops_nobody() {
    let mut bench = Bench::new();
    let mut peer = bench.connect("b0", Options::default());
    let hostile = bench.connect("a0", Options::default());
    let call = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    for queue in [0_u64, 1] {
        hostile
            .session
            .request(
                request::SET_VRING_CALL,
                &queue.to_ne_bytes(),
                &[call.as_fd()],
            )
            .unwrap();
    }
    // The back end holds the same open file, which is put into blocking mode and filled.
    let mut count = [0; 8];
    let _ = rustix::io::read(&call, &mut count);
    let flags = rustix::fs::fcntl_getfl(&call).unwrap();
    rustix::fs::fcntl_setfl(&call, flags - rustix::fs::OFlags::NONBLOCK).unwrap();
    rustix::io::write(&call, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    hostile.pairs[0].rx.ring.enable_calls(&hostile.memory);
    for _ in 0..20 {
        peer.send(0, &frame());
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(bench.backend.stats("a0").unwrap().totals.rx_calls > 0);
    bench.check("a blocking call descriptor");
}

#[test]
fn memory_that_is_replaced_under_traffic_costs_no_one_else_anything() {
    let mut bench = Bench::new();
    let mut peer = bench.connect("b0", Options::default());
    let mut hostile = bench.connect("a0", Options::default());
    for round in 0..200 {
        hostile.send(0, &frame());
        peer.send(0, &frame());
        if round % 2 == 0 {
            hostile.share_memory().unwrap();
        }
        hostile.receive(0, 64, |_| {});
        peer.receive(0, 64, |_| {});
    }
    pass(&mut hostile, &mut peer, "new memory tables");
    bench.check("new memory tables");
    // A table without the rings' memory, while frames are in flight.
    let elsewhere = [1_u64, 1 << 40, 4096, 1 << 41, 0];
    let table: Vec<u8> = elsewhere
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .collect();
    peer.send(0, &frame());
    let file = hostile.memory.as_fd();
    let sent = message(request::SET_MEM_TABLE, 1, &table);
    hostile.session.send(&sent, &[file]).unwrap();
    assert!(hostile.session.closed_within(Duration::from_secs(5)));
    bench.check("a memory table without the rings");
}

#[test]
fn memory_that_shrinks_under_traffic_costs_its_owner_its_port() {
    let mut bench = Bench::new();
    for cut in ["receive buffers", "transmit buffers"] {
        let mut peer = bench.connect("b0", Options::default());
        let mut hostile = bench.connect("a0", Options::default());
        pass(&mut peer, &mut hostile, cut);
        let pair = &mut hostile.pairs[0];
        let kept = match cut {
            // The rings of the transmit queue lie behind it, and are cut off too.
            "receive buffers" => pair.rx.buffer(0),
            _ => pair.tx.buffer(0),
        };
        if cut == "transmit buffers" {
            // The descriptor is written before the truncation, because this process may not touch that memory
            // afterwards.
            let buffer = Descriptor {
                address: pair.tx.buffer(9),
                len: 200,
                flags: 0,
                next: 0,
            };
            pair.tx.ring.describe(&hostile.memory, 9, buffer);
        }
        hostile.memory.truncate(kept).unwrap();
        if cut == "transmit buffers" {
            pair.tx.ring.offer(&hostile.memory, 9);
            pair.tx.ring.publish(&hostile.memory);
            pair.tx.kick();
        }
        let start = Instant::now();
        while !hostile.session.closed_within(Duration::from_millis(20)) {
            peer.send(0, &frame());
            assert!(start.elapsed() < Duration::from_secs(10), "{cut}");
        }
        bench.check(cut);
    }
}

#[test]
fn a_flood_of_kicks_leaves_time_for_the_neighbours() {
    let mut bench = Bench::new();
    let _peer = bench.connect("b0", Options::default());
    let hostile = bench.connect("a0", Options::default());
    let stop = AtomicBool::new(false);
    let done = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                hostile.pairs[0].tx.kick();
                hostile.pairs[0].rx.kick();
            }
        });
        let (a, b) = &mut bench.friends;
        let done = ping_pong(a, b, Duration::from_millis(500), (0, 1));
        stop.store(true, Ordering::Relaxed);
        done
    });
    assert_eq!(done.lost, 0);
    assert!(done.round_trips.len() > 10, "{}", done.round_trips.len());
    let kicks = bench.backend.stats("a0").unwrap().totals.kicks;
    assert!(kicks > 100, "{kicks} kicks are no flood");
    bench.check("a flood of kicks");
}

#[test]
fn who_uses_up_all_descriptors_stops_nobody() {
    let mut bench = Bench::new();
    let process = Pid::from_raw(i32::try_from(bench.backend.id()).unwrap()).unwrap();
    let open = || {
        std::fs::read_dir(format!("/proc/{}/fd", bench.backend.id()))
            .unwrap()
            .count() as u64
    };
    let hostile = bench.connect("a0", Options::default());
    let before = prlimit(Some(process), Resource::Nofile, limit(open() + 2)).unwrap();
    // No other front end can be accepted, and the wait for a descriptor costs hardly any wake-ups.
    let waiting: Vec<_> = (0..2)
        .map(|_| std::os::unix::net::UnixStream::connect(bench.directory.path().join("b0")))
        .collect();
    let used = bench.backend.usage().unwrap();
    std::thread::sleep(Duration::from_millis(600));
    let sleeps = bench.backend.usage().unwrap().sleeps - used.sleeps;
    assert!(sleeps < 100, "{sleeps} wake-ups to find no descriptor");
    // The message has more descriptors than the process may open, so that it is incomplete.
    let file = hostile.memory.as_fd();
    let sent = message(request::SET_MEM_TABLE, 1, &[0; 8]);
    hostile.session.send(&sent, &[file; 8]).unwrap();
    assert!(hostile.session.closed_within(Duration::from_secs(5)));
    drop(waiting);
    prlimit(Some(process), Resource::Nofile, before).unwrap();
    bench.check("running out of descriptors");
    let mut peer = bench.connect("b0", Options::default());
    let mut next = bench.connect("a0", Options::default());
    pass(&mut next, &mut peer, "running out of descriptors");
}

fn limit(descriptors: u64) -> Rlimit {
    Rlimit {
        current: Some(descriptors),
        // The limit that the program inherited from the test process and may not exceed.
        maximum: getrlimit(Resource::Nofile).maximum,
    }
}

#[test]
fn a_control_queue_that_is_forwarded_is_served_and_survives_nonsense() {
    let mut bench = Bench::new();
    let options = Options {
        features: Options::default()
            .features
            .with(Features::NOTF_COAL)
            .with(Features::VQ_NOTF_COAL)
            .with(Features::CTRL_RX),
        control: true,
        ..Options::default()
    };
    let mut peer = bench.connect("a0", Options::default());
    let mut nic = bench.connect("b0", options);
    pass(&mut peer, &mut nic, "the start of a control queue");
    let wait = Duration::from_secs(5);
    // Promiscuous mode; then 64 frames or 300 µs; then a query of the parameters; then far more than the cap.
    assert_eq!(nic.command(&[0, 0, 1], 0, wait).unwrap(), [0]);
    let set = |us: u32| [&[6, 1][..], &64_u32.to_le_bytes(), &us.to_le_bytes()].concat();
    assert_eq!(nic.command(&set(300), 0, wait).unwrap(), [0]);
    let answer = nic.command(&[6, 3, 0, 0, 0, 0], 8, wait).unwrap();
    assert_eq!((answer[0], &answer[5..]), (0, &300_u32.to_le_bytes()[..]));
    assert_eq!(nic.command(&set(u32::MAX), 0, wait).unwrap(), [0]);
    let ports = bench.backend.ask(&Request::List { port: None }).unwrap();
    let in_force = |name: &str| {
        let port = ports.ports.iter().find(|port| port.port == name);
        port.unwrap().in_force_us
    };
    assert_eq!((in_force("b0"), in_force("b1")), (1_000, 1_000));
    for class in 0..=255 {
        let nonsense = [class, 0xff, 1, 2, 3];
        assert_eq!(nic.command(&nonsense, 3, wait).unwrap()[0], 1, "{class}");
    }
    assert_eq!(bench.faults("b0"), 0);
    pass(&mut peer, &mut nic, "nonsense on the control queue");
    bench.check("nonsense on the control queue");
}

/// Random numbers that are the same in each run (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, most: u64) -> u64 {
        self.next() % most.max(1)
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        let length = self.below(most + 1);
        (0..length).map(|_| self.next() as u8).collect()
    }
}

/// The descriptors and the resident memory, in KiB, of the back end.
fn held(backend: &Backend) -> (usize, u64) {
    let process = format!("/proc/{}", backend.id());
    let descriptors = std::fs::read_dir(format!("{process}/fd")).unwrap().count();
    let status = std::fs::read_to_string(format!("{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let memory = line.unwrap().split_whitespace().nth(1).unwrap();
    (descriptors, memory.parse().unwrap())
}

#[test]
fn coalescing_commands_of_a_live_driver_with_any_numbers_stop_neither_it_nor_others() {
    let mut bench = Bench::new();
    let options = Options {
        features: Options::default()
            .features
            .with(Features::NOTF_COAL)
            .with(Features::VQ_NOTF_COAL),
        control: true,
        ..Options::default()
    };
    let mut peer = bench.connect("a0", Options::default());
    let mut nic = bench.connect("b0", options);
    pass(&mut peer, &mut nic, "the start of a control queue");
    let before = held(&bench.backend);
    let (mut random, mut taken, mut refused) = (Random(20_261_127), 0, 0);
    for round in 0..3000 {
        let extreme = [0, 1, 2, 64, 1_000_000, u32::MAX - 1, u32::MAX];
        let mut number = || match random.below(3) {
            0 => random.next() as u32,
            _ => extreme[random.below(7) as usize],
        };
        let mut data: Vec<u8> = [number(), number(), number()]
            .into_iter()
            .flat_map(u32::to_le_bytes)
            .collect();
        if random.below(3) == 0 {
            data = random.bytes(24);
        }
        let command = [&[6, random.below(6) as u8][..], &data].concat();
        let room = random.below(40) as u32;
        let answer = nic.command(&command, room, Duration::from_secs(10));
        let answer = answer.unwrap_or_else(|| panic!("no answer to {command:?}"));
        match answer[0] {
            0 => taken += 1,
            1 => refused += 1,
            other => panic!("{other} to {command:?}"),
        }
        nic.send(0, &frame());
        peer.send(0, &frame());
        nic.receive(0, 64, |_| {});
        peer.receive(0, 64, |_| {});
        if round % 1000 == 999 {
            bench.check("coalescing commands");
        }
    }
    eprintln!("{taken} commands taken, {refused} refused");
    assert!(taken > 300 && refused > 300, "{taken} and {refused}");
    pass(&mut peer, &mut nic, "coalescing commands");
    pass(&mut nic, &mut peer, "coalescing commands");
    // Before the back end is asked for its counters, which takes a connection of its own.
    let after = held(&bench.backend);
    assert!(
        after.0 <= before.0 && after.1 < before.1 + 8192,
        "{before:?}, {after:?}"
    );
    assert_eq!(bench.faults("b0"), 0);
}

/// Sequences of messages under traffic, those of live migration after copying (POSTCOPY_ADVISE, LISTEN, END, with
/// userfaultfd or other descriptors) among them. The front end asks for acknowledgements, and does not read them, or reads
/// them late.
#[test]
fn random_sequences_of_messages_with_late_acknowledgements_stop_nobody() {
    const REPLY: u32 = 1 << 3;
    let mut bench = Bench::new();
    let (mut random, mut messages, mut sessions, mut ended) = (Random(43), 0_u64, 0, 0);
    let mut before = None;
    // How many messages a session takes before the back end has read one that ends it depends on how busy the host is.
    while sessions < 150 || messages < 1_000 {
        sessions += 1;
        assert!(sessions < 3_000, "{messages} messages were taken");
        let mut peer = bench.connect("b0", Options::default());
        let mut hostile = bench.connect("a0", Options::default());
        // The kernel's userfaultfd, where it is allowed; any other descriptor as well.
        let flags = rustix::mm::UserfaultfdFlags::CLOEXEC | rustix::mm::UserfaultfdFlags::NONBLOCK;
        // SAFETY: nothing is registered with the descriptor.
        let faults = unsafe { rustix::mm::userfaultfd(flags) };
        let counter = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let faults = faults.unwrap_or_else(|_| counter());
        let call = counter();
        for _ in 0..random.below(60) {
            let code = match random.below(3) {
                0 => 28 + random.below(3) as u32,
                _ => random.below(64) as u32,
            };
            // The ends of a session are left to the other messages now and then.
            let is_end = [request::SET_MEM_TABLE, request::SET_FEATURES].contains(&code);
            if is_end && random.below(4) > 0 {
                continue;
            }
            let mut flags = 1 | if random.below(2) == 0 { REPLY } else { 0 };
            if random.below(20) == 0 {
                flags = random.next() as u32;
            }
            let payload = match random.below(3) {
                0 => vec![],
                1 => [random.below(3), random.below(300)]
                    .into_iter()
                    .flat_map(|number| (number as u32).to_ne_bytes())
                    .collect(),
                _ => random.bytes(64),
            };
            let all = [faults.as_fd(), call.as_fd(), hostile.memory.as_fd()];
            let first = random.below(3) as usize;
            let count = random.below(3) as usize;
            let files: Vec<_> = all.into_iter().cycle().skip(first).take(count).collect();
            if hostile
                .session
                .send(&message(code, flags, &payload), &files)
                .is_err()
            {
                break;
            }
            messages += 1;
            hostile.send(0, &frame());
            peer.send(0, &frame());
            peer.receive(0, 64, |_| {});
        }
        if random.below(2) == 0 {
            ended += u32::from(hostile.session.closed_within(Duration::from_millis(20)));
        }
        drop((hostile, peer));
        if sessions % 30 == 0 {
            bench.check("random messages");
            before = before.or_else(|| Some(held(&bench.backend)));
        }
    }
    bench.check("random messages");
    let (before, after) = (before.unwrap(), held(&bench.backend));
    eprintln!(
        "{messages} messages in {sessions} sessions, {ended} ended early; {before:?}, {after:?}"
    );
    assert!(
        after.0 <= before.0 + 8 && after.1 < before.1 + 8192,
        "{before:?}, {after:?}"
    );
}
