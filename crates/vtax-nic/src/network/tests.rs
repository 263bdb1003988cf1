//! Frames between ports, with drivers that do what they should and drivers that do not.

use super::*;
use crate::features::Features;
use crate::hold::Mode;
use crate::poller::Poller;
use crate::protocol::{ProtocolError, Request};
use crate::testing::{
    ANSWER, BUFFERS, CONTROL, INDIRECT, NEXT, Peer, RX, SIZE, TX, USER, WRITE, description, encode,
    linux, memory_file, port,
};

/// Where an indirect table lies, beyond all else.
const TABLE: u64 = 0x8_0000;

/// A time far enough from 0 that nothing is mistaken for never.
pub(super) const NOW: Nanos = Nanos(1_000_000_000_000);

pub(super) struct Bench {
    pub(super) network: Network,
    pub(super) peers: Vec<Peer>,
    poller: Poller,
    batch: Batch,
}

impl Bench {
    fn new(mode: Mode, features: &[Features]) -> Self {
        Self::with(mode, features, &[])
    }

    /// Limits of the first ports; the others have none.
    pub(super) fn with(mode: Mode, features: &[Features], limits: &[Limits]) -> Self {
        let poller = Poller::new().unwrap();
        let mut ports = Vec::new();
        let mut peers = Vec::new();
        let limits = limits
            .iter()
            .cloned()
            .chain(std::iter::repeat(Limits::default()));
        for ((features, limits), number) in features.iter().zip(limits).zip(0..) {
            let mut guest = port(number, mode).with_limits(&limits);
            peers.push(Peer::start(&mut guest, &poller, *features));
            ports.push(Port::Guest(Box::new(guest)));
        }
        let mut network = Network::new(ports);
        for number in 0..u16::try_from(peers.len()).unwrap() {
            network.port_changed(number);
        }
        let mut bench = Self {
            network,
            peers,
            poller,
            batch: Batch::new(),
        };
        bench.run(NOW);
        bench
    }

    fn link() -> Self {
        Self::new(Mode::Off, &[linux(), linux()])
    }

    /// Works until there is nothing to do at `now`.
    pub(super) fn run(&mut self, now: Nanos) {
        while self.network.poll(now, &mut self.batch) {}
    }

    pub(super) fn kick(&mut self, port: u16, queue: u8, now: Nanos) {
        let id = PortId { network: 0, port };
        self.network.kicked(id, queue, now);
        self.run(now);
    }

    pub(super) fn guest(&mut self, port: u16) -> &mut Guest {
        self.network.guest_mut(port).unwrap()
    }

    pub(super) fn drops(&mut self, port: u16) -> crate::telemetry::Drops {
        self.guest(port).counters.totals.drops
    }
}

pub(super) fn frame(to: u8, from: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x08, 0x00];
    bytes.extend((0..len - 14).map(|index| u8::try_from(index % 251).unwrap()));
    bytes
}

pub(super) const PLAIN: [u8; 12] = [0; 12];

#[test]
fn another_controller_takes_what_the_one_before_held() {
    let mut bench = Bench::new(Mode::Fixed, &[linux(), linux()]);
    bench.peers[1].offer_buffers(8, 0x800);
    bench.peers[0].send(PLAIN, &frame(1, 0, 60));
    bench.kick(0, 1, NOW);
    assert_eq!(bench.peers[1].received().len(), 0, "held");
    let off = Change {
        mode: Some(Mode::Off),
        ..Change::default()
    };
    bench.network.change_policy(0, &off, NOW);
    bench.run(NOW);
    assert_eq!(bench.peers[1].received().len(), 1);
}

#[test]
fn a_frame_crosses_a_link_whole_and_both_sides_are_told() {
    let mut bench = Bench::link();
    bench.peers[1].offer_buffers(4, 0x800);
    let sent = [frame(1, 0, 60), frame(1, 0, 1514)];
    for bytes in &sent {
        bench.peers[0].send(PLAIN, bytes);
    }
    bench.kick(0, 1, NOW);
    let received: Vec<_> = bench.peers[1]
        .received()
        .into_iter()
        .map(|(_, frame)| frame)
        .collect();
    assert_eq!(received, sent);
    assert_eq!(TX.used_index(&bench.peers[0].driver), 2);
    assert_eq!(bench.peers[1].calls(0), 1, "one signal for the batch");
    assert_eq!(bench.peers[0].calls(1), 1);
    let totals = bench.guest(1).counters.totals;
    assert_eq!((totals.rx_packets, totals.rx_bytes), (2, 1574));
}

#[test]
fn a_large_frame_spans_buffers_where_they_may_be_merged() {
    let mut bench = Bench::link();
    bench.peers[1].offer_buffers(6, 0x800);
    let sent = frame(1, 0, 9014);
    bench.peers[0].send(PLAIN, &sent);
    bench.kick(0, 1, NOW);
    let received = bench.peers[1].received();
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].1, sent);
    assert_eq!(received[0].0[10], 5, "num_buffers");

    let mut bench = Bench::new(Mode::Off, &[linux(), linux().without(Features::MRG_RXBUF)]);
    bench.peers[1].offer_buffers(6, 0x800);
    bench.peers[0].send(PLAIN, &sent);
    bench.peers[0].send(PLAIN, &frame(1, 0, 60));
    bench.kick(0, 1, NOW);
    assert_eq!(bench.peers[1].received().len(), 1, "only the one that fits");
    assert_eq!(bench.drops(1).too_long, 1);
}

#[test]
fn a_link_waits_for_buffers_and_loses_nothing() {
    let mut bench = Bench::link();
    bench.peers[1].offer_buffers(1, 0x800);
    for _ in 0..3 {
        bench.peers[0].send(PLAIN, &frame(1, 0, 60));
    }
    bench.kick(0, 1, NOW);
    assert_eq!(bench.peers[1].received().len(), 1);
    assert_eq!(
        TX.used_index(&bench.peers[0].driver),
        1,
        "the others are still the sender's"
    );
    let until = bench.network.deadline().unwrap();
    assert_eq!(until, NOW + BUFFER_TIMEOUT);
    bench.peers[1].offer_buffers(4, 0x800);
    bench.kick(1, 0, NOW + Nanos(5));
    assert_eq!(bench.peers[1].received().len(), 2);
    assert_eq!(
        bench.network.deadline(),
        None,
        "an idle network has no timer"
    );
}

#[test]
fn a_guest_that_offers_no_buffers_does_not_stop_its_peer_for_long() {
    let mut bench = Bench::link();
    bench.peers[0].send(PLAIN, &frame(1, 0, 60));
    bench.kick(0, 1, NOW);
    assert_eq!(TX.used_index(&bench.peers[0].driver), 0);
    bench.run(NOW + BUFFER_TIMEOUT);
    assert_eq!(TX.used_index(&bench.peers[0].driver), 1);
    assert_eq!(bench.drops(1).no_buffer, 1);
}

#[test]
fn a_switch_learns_and_floods_only_what_it_does_not_know() {
    let mut bench = Bench::new(Mode::Off, &[linux(); 3]);
    for peer in &mut bench.peers {
        peer.offer_buffers(8, 0x800);
    }
    bench.peers[0].send(PLAIN, &frame(1, 0, 60));
    bench.kick(0, 1, NOW);
    bench.peers[1].send(PLAIN, &frame(0, 1, 60));
    bench.kick(1, 1, NOW);
    let received: Vec<_> = bench
        .peers
        .iter_mut()
        .map(|peer| peer.received().len())
        .collect();
    assert_eq!(received, [1, 1, 1]);
    bench.peers[0].send(PLAIN, &frame(1, 0, 60));
    bench.kick(0, 1, NOW);
    let received: Vec<_> = bench
        .peers
        .iter_mut()
        .map(|peer| peer.received().len())
        .collect();
    assert_eq!(received, [0, 1, 0]);
}

#[test]
fn a_port_of_a_switch_without_buffers_holds_nobody_up() {
    let mut bench = Bench::new(Mode::Off, &[linux(); 3]);
    bench.peers[2].offer_buffers(8, 0x800);
    bench.peers[0].send(PLAIN, &frame(9, 0, 60));
    bench.kick(0, 1, NOW);
    assert_eq!(bench.peers[2].received().len(), 1);
    assert_eq!(bench.drops(1).no_buffer, 1);
    assert_eq!(TX.used_index(&bench.peers[0].driver), 1);
}

/// A TCP segment over IPv4 of 3,000 bytes of payload with its header for segmentation.
fn large_tcp() -> ([u8; 12], Vec<u8>) {
    let mut bytes = frame(1, 0, 14);
    let len = 20 + 20 + 3000_u16;
    bytes.extend([0x45, 0]);
    bytes.extend(len.to_be_bytes());
    bytes.extend([0, 1, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend([
        0, 80, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0,
    ]);
    bytes.extend(vec![7; 3000]);
    let mut header = [0; 12];
    header[0] = 1;
    header[1] = 1;
    header[2..4].copy_from_slice(&54_u16.to_le_bytes());
    header[4..6].copy_from_slice(&1448_u16.to_le_bytes());
    header[6..8].copy_from_slice(&34_u16.to_le_bytes());
    header[8..10].copy_from_slice(&16_u16.to_le_bytes());
    (header, bytes)
}

#[test]
fn a_large_segment_is_passed_on_or_split_as_the_receiver_can_take_it() {
    let (header, bytes) = large_tcp();
    let mut bench = Bench::link();
    bench.peers[1].offer_buffers(8, 0x1000);
    bench.peers[0].send(header, &bytes);
    bench.kick(0, 1, NOW);
    let received = bench.peers[1].received();
    assert_eq!((received.len(), &received[0].1), (1, &bytes));
    assert_eq!(received[0].0[..10], header[..10]);

    let plain = linux().without(Features::OFFLOADS);
    let mut bench = Bench::new(Mode::Off, &[linux(), plain]);
    bench.peers[1].offer_buffers(8, 0x1000);
    bench.peers[0].send(header, &bytes);
    bench.kick(0, 1, NOW);
    let received = bench.peers[1].received();
    assert_eq!(received.len(), 3);
    for (header, frame) in &received {
        assert_eq!(header[..10], [0; 10]);
        assert!(frame.len() <= 54 + 1448);
    }

    let checksum = plain.with(Features::GUEST_CSUM);
    let mut bench = Bench::new(Mode::Off, &[linux(), checksum]);
    bench.peers[1].offer_buffers(8, 0x1000);
    bench.peers[0].send(header, &bytes);
    bench.kick(0, 1, NOW);
    let received = bench.peers[1].received();
    assert!(
        received
            .iter()
            .all(|(header, _)| header[0] == 1 && header[1] == 0)
    );
}

#[test]
fn an_offload_that_was_not_negotiated_is_dropped() {
    let (header, bytes) = large_tcp();
    let plain = linux().without(Features::OFFLOADS);
    let mut bench = Bench::new(Mode::Off, &[plain, linux()]);
    bench.peers[1].offer_buffers(8, 0x1000);
    bench.peers[0].send(header, &bytes);
    bench.peers[0].send(PLAIN, &frame(1, 0, 60));
    bench.kick(0, 1, NOW);
    assert_eq!(bench.peers[1].received().len(), 1);
    assert_eq!(bench.drops(0).malformed, 1);
}

#[test]
fn frames_that_cannot_be_are_dropped_and_returned() {
    let mut bench = Bench::link();
    bench.peers[1].offer_buffers(8, 0x1000);
    let driver = &bench.peers[0].driver;
    // Shorter than the header (CVE-2022-2132), shorter than Ethernet's, empty.
    TX.describe(driver, 0, (BUFFERS, 5, 0, 0));
    TX.describe(driver, 1, (BUFFERS, 12 + 13, 0, 0));
    TX.describe(driver, 2, (BUFFERS, 0, 0, 0));
    // A header in twelve descriptors of a byte, and its frame in the thirteenth: all right.
    for index in 3..15 {
        TX.describe(driver, index, (BUFFERS + 0x8000, 1, NEXT, index + 1));
    }
    TX.describe(driver, 15, (BUFFERS + 0x9000, 60, 0, 0));
    for head in 0..4 {
        bench.peers[0].send_chain(head);
    }
    bench.kick(0, 1, NOW);
    assert_eq!(bench.peers[1].received().len(), 1);
    assert_eq!(bench.drops(0).malformed, 3);
    assert_eq!(TX.used_index(&bench.peers[0].driver), 4);
}

#[test]
fn a_bad_queue_stops_alone_and_starts_again_when_asked() {
    let mut bench = Bench::new(Mode::Off, &[linux(); 3]);
    for peer in &mut bench.peers {
        peer.offer_buffers(8, 0x800);
    }
    bench.peers[0].send(PLAIN, &frame(9, 0, 60));
    TX.describe(&bench.peers[0].driver, 1, (BUFFERS, 60, WRITE, 0));
    bench.peers[0].send_chain(1);
    bench.kick(0, 1, NOW);
    let stopped: Vec<_> = bench.network.take_stopped().collect();
    assert_eq!(stopped.len(), 1);
    assert_eq!(
        (stopped[0].port, stopped[0].queue, stopped[0].fault),
        (0, 1, RingFault::Direction)
    );
    assert_eq!(bench.guest(0).counters.totals.faults, 1);
    assert_eq!(
        bench.peers[1].received().len(),
        1,
        "what came before went out"
    );
    // The others go on, and do not send to it.
    bench.peers[1].send(PLAIN, &frame(9, 1, 60));
    bench.kick(1, 1, NOW);
    assert_eq!(bench.peers[2].received().len(), 2);
    assert_eq!(bench.drops(0).not_running, 1);
    // More kicks change nothing.
    bench.kick(0, 1, NOW);
    assert_eq!(bench.network.take_stopped().count(), 0);
}

#[test]
fn a_receive_buffer_smaller_than_the_header_stops_its_queue_only() {
    let mut bench = Bench::link();
    bench.peers[1].offer_buffers(1, 11);
    bench.peers[0].send(PLAIN, &frame(1, 0, 60));
    bench.kick(0, 1, NOW);
    let fault = bench.network.take_stopped().next().unwrap();
    assert_eq!(
        (fault.port, fault.queue, fault.fault),
        (1, 0, RingFault::SmallBuffer)
    );
    assert_eq!(
        TX.used_index(&bench.peers[0].driver),
        1,
        "the sender goes on"
    );
}

#[test]
fn a_back_end_that_comes_again_goes_on_where_the_rings_are() {
    let mut bench = Bench::link();
    bench.peers[1].offer_buffers(8, 0x800);
    for number in 0..3 {
        bench.peers[0].send(PLAIN, &frame(1, number, 60));
    }
    bench.kick(0, 1, NOW);
    // Two more are offered, and nobody is there to take them.
    for number in 3..5 {
        bench.peers[0].send(PLAIN, &frame(1, number, 60));
    }
    let poller = Poller::new().unwrap();
    for number in 0..2 {
        let guest = bench.network.guest_mut(number).unwrap();
        guest.disconnect(&bench.poller, NOW);
        bench.peers[usize::from(number)].connect(guest, &poller, linux());
        bench.network.port_changed(number);
    }
    bench.poller = poller;
    assert!(bench.peers[1].calls(0) <= 1);
    bench.run(NOW);
    let senders: Vec<_> = bench.peers[1]
        .received()
        .iter()
        .map(|(_, frame)| frame[11])
        .collect();
    assert_eq!(senders, [0, 1, 2, 3, 4]);
}

#[test]
fn a_ring_that_starts_is_signalled_once_for_what_it_may_have_missed() {
    let mut bench = Bench::link();
    let _ = bench.peers[1].calls(0);
    let file = Some(bench.peers[1].calls[0].try_clone().unwrap());
    let poller = &bench.poller;
    let guest = bench.network.guest_mut(1).unwrap();
    guest
        .handle(Request::SetVringCall { queue: 0, file }, poller, NOW)
        .unwrap();
    assert_eq!(bench.peers[1].calls(0), 1);
}

#[test]
fn a_held_signal_leaves_before_its_ring_stops() {
    let mut bench = Bench::new(Mode::Fixed, &[linux(), linux()]);
    bench.peers[1].offer_buffers(8, 0x800);
    bench.peers[0].send(PLAIN, &frame(1, 0, 60));
    bench.kick(0, 1, NOW);
    let drain = bench.network.deadline().unwrap();
    bench.run(drain);
    assert_eq!(bench.peers[1].received().len(), 1, "published at once");
    assert_eq!(bench.peers[1].calls(0), 0, "only the signal is held");
    let poller = &bench.poller;
    let guest = bench.network.guest_mut(1).unwrap();
    let (reply, _) = guest
        .handle(Request::GetVringBase { queue: 0 }, poller, NOW)
        .unwrap();
    assert_eq!(
        reply,
        crate::protocol::Reply::VringState { queue: 0, base: 1 }
    );
    assert_eq!(bench.peers[1].calls(0), 1);
}

#[test]
fn a_held_signal_leaves_before_its_ring_is_disabled() {
    let mut bench = Bench::new(Mode::Fixed, &[linux(), linux()]);
    bench.peers[1].offer_buffers(8, 0x800);
    bench.peers[0].send(PLAIN, &frame(1, 0, 60));
    bench.kick(0, 1, NOW);
    let deadline = bench.network.deadline().unwrap();
    bench.run(deadline);
    assert_eq!(bench.peers[1].calls(0), 0, "held");
    let poller = &bench.poller;
    let guest = bench.network.guest_mut(1).unwrap();
    let disable = Request::SetVringEnable {
        queue: 0,
        enable: false,
    };
    guest.handle(disable, poller, NOW).unwrap();
    assert_eq!(bench.peers[1].calls(0), 1);
}

#[test]
fn a_hold_survives_a_new_memory_table() {
    let mut bench = Bench::new(Mode::Fixed, &[linux(), linux()]);
    bench.peers[1].offer_buffers(8, 0x800);
    bench.peers[0].send(PLAIN, &frame(1, 0, 60));
    bench.kick(0, 1, NOW);
    let deadline = bench.network.deadline().unwrap();
    bench.run(deadline);
    let file = bench.peers[1].driver.file.try_clone().unwrap();
    let poller = &bench.poller;
    let guest = bench.network.guest_mut(1).unwrap();
    guest
        .handle(
            Request::SetMemTable(vec![(description(), file)]),
            poller,
            NOW,
        )
        .unwrap();
    assert_eq!(
        bench.peers[1].calls(0),
        1,
        "told when the rings were resolved again"
    );
    while let Some(deadline) = bench.network.deadline() {
        bench.run(deadline);
    }
    bench.peers[0].send(PLAIN, &frame(1, 0, 60));
    bench.kick(0, 1, NOW + BUFFER_TIMEOUT);
    let deadline = bench.network.deadline().unwrap();
    bench.run(deadline);
    assert_eq!(bench.peers[1].received().len(), 2);
}

#[test]
fn every_page_that_is_written_is_logged_while_migrating() {
    let mut bench = Bench::new(Mode::Off, &[linux(), linux()]);
    let log = rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&log, 64).unwrap();
    let poller = &bench.poller;
    let guest = bench.network.guest_mut(1).unwrap();
    let small = Request::SetLogBase {
        size: 63,
        offset: 0,
        file: log.try_clone().unwrap(),
    };
    assert!(
        guest.handle(small, poller, NOW).is_err(),
        "too small for 512 pages"
    );
    let base = Request::SetLogBase {
        size: 64,
        offset: 0,
        file: log.try_clone().unwrap(),
    };
    guest.handle(base, poller, NOW).unwrap();
    let features = linux().with(Features::LOG_ALL);
    guest
        .handle(Request::SetFeatures(features), poller, NOW)
        .unwrap();
    bench.network.port_changed(1);
    bench.run(NOW);
    let clear = [0; 64];
    rustix::io::pwrite(&log, &clear, 0).unwrap();
    bench.peers[1].offer_buffers(4, 0x800);
    bench.peers[0].send(PLAIN, &frame(1, 0, 3000));
    bench.kick(0, 1, NOW);
    assert_eq!(bench.peers[1].received().len(), 1);
    let mut bits = [0; 64];
    rustix::io::pread(&log, &mut bits, 0).unwrap();
    let pages: Vec<usize> = (0..512)
        .filter(|page| bits[page / 8] & 1 << (page % 8) != 0)
        .collect();
    let buffers = usize::try_from(BUFFERS / 4096).unwrap();
    let used = usize::try_from(RX.used() / 4096).unwrap();
    assert_eq!(pages, [used, buffers, buffers + 1]);
}

#[test]
fn only_the_guests_own_control_frames_are_heard() {
    use crate::control::frame::{Operation, Request};
    let mut bench = Bench::link();
    for peer in &mut bench.peers {
        peer.offer_buffers(8, 0x800);
    }
    let ask = Request {
        source: [2, 0, 0, 0, 0, 7],
        operation: Operation::Ask,
        enable: true,
        hold_us: 700,
        lease_s: 10,
        nonce: 9,
    };
    bench.peers[0].send(PLAIN, &ask.to_frame());
    bench.kick(0, 1, NOW);
    assert_eq!(bench.peers[1].received().len(), 0, "never forwarded");
    assert_eq!(bench.peers[0].received().len(), 1, "acknowledged");
    assert_eq!(bench.guest(0).info("a", true, NOW).in_force_us, 700);
    assert_eq!(bench.guest(1).info("b", true, NOW).in_force_us, 200);
    let lease_end = bench.network.deadline().unwrap();
    assert_eq!(lease_end, NOW + Nanos::from_secs(10));
    bench.run(lease_end);
    assert_eq!(bench.guest(0).info("a", true, lease_end).in_force_us, 200);
    assert_eq!(bench.network.deadline(), None);
}

#[test]
fn a_migrated_guest_is_announced_to_the_others() {
    let mut bench = Bench::link();
    bench.peers[1].offer_buffers(8, 0x800);
    bench.network.announce(0, [2, 0, 0, 0, 0, 5], NOW);
    let received = bench.peers[1].received();
    assert_eq!(
        &received[0].1[..14],
        &[255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 5, 0x80, 0x35]
    );
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    type Make = fn() -> Request;
    let poller = Poller::new().unwrap();
    let requests: Vec<(&str, Make)> = vec![
        ("not offered", || Request::SetFeatures(Features(1 << 60))),
        ("queue 9 does not exist", || Request::SetVringNum {
            queue: 9,
            size: 16,
        }),
        ("power of two", || Request::SetVringNum {
            queue: 0,
            size: 17,
        }),
        ("power of two", || Request::SetVringNum {
            queue: 0,
            size: 65536,
        }),
        ("below 65,536", || Request::SetVringBase {
            queue: 0,
            base: 65536,
        }),
        ("polled", || Request::SetVringKick {
            queue: 0,
            file: None,
        }),
        ("not an eventfd", || Request::SetVringKick {
            queue: 0,
            file: Some(memory_file()),
        }),
        ("not an eventfd", || Request::SetVringCall {
            queue: 0,
            file: Some(memory_file()),
        }),
        ("does not exist", || Request::GetVringBase {
            queue: u32::MAX,
        }),
    ];
    for (reason, request) in requests {
        let error = port(0, Mode::Off)
            .handle(request(), &poller, NOW)
            .unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[test]
fn what_is_no_eventfd_cannot_make_the_worker_wait() {
    let mut bench = Bench::link();
    let poller = bench.poller.clone();
    let epoll =
        || Some(rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap());
    for request in [
        Request::SetVringKick {
            queue: 0,
            file: epoll(),
        },
        Request::SetVringCall {
            queue: 0,
            file: epoll(),
        },
        Request::SetVringErr {
            queue: 0,
            file: epoll(),
        },
    ] {
        assert!(bench.guest(0).handle(request, &poller, NOW).is_err());
    }
}

#[test]
fn buffers_without_bytes_are_not_walked_for_ever_for_a_large_frame() {
    let mut bench = Bench::link();
    let [sender, receiver] = &mut bench.peers[..] else {
        unreachable!()
    };
    // A table of 1,022 empty descriptors and one of 12 bytes.
    for entry in 0..1_023_u64 {
        let len = if entry == 1_022 { 12 } else { 0 };
        let next = u16::try_from(entry + 1).unwrap();
        let flags = WRITE | if entry == 1_022 { 0 } else { NEXT };
        let bytes = encode((BUFFERS, len, flags, next));
        receiver.driver.write(TABLE + entry * 16, &bytes);
    }
    for position in 0..8 {
        RX.describe(&receiver.driver, position, (TABLE, 1_023 * 16, INDIRECT, 0));
        RX.offer(&receiver.driver, position, position);
    }
    sender.send(PLAIN, &frame(1, 0, 1_000));
    bench.kick(0, 1, NOW);
    assert_eq!(bench.drops(1).too_long, 1);
    assert_eq!(bench.peers[0].calls(1), 1, "the sender has its buffer back");
}

#[test]
fn a_ring_started_before_its_memory_is_refused() {
    let poller = Poller::new().unwrap();
    let mut guest = port(0, Mode::Off);
    let mut ask = |request| guest.handle(request, &poller, NOW);
    ask(Request::SetVringNum {
        queue: 0,
        size: SIZE.into(),
    })
    .unwrap();
    let event = || rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    let kick = Request::SetVringKick {
        queue: 0,
        file: Some(event()),
    };
    assert!(matches!(ask(kick), Err(ProtocolError::Refused(_))));
    assert_eq!(guest.running_pairs(), 0);
}

#[test]
fn a_call_descriptor_with_a_full_counter_blocks_nobody() {
    let mut bench = Bench::link();
    bench.peers[1].offer_buffers(8, 0x800);
    // In blocking mode, and as full as it gets.
    let full = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let poller = &bench.poller;
    let guest = bench.network.guest_mut(1).unwrap();
    let call = Request::SetVringCall {
        queue: 0,
        file: Some(full),
    };
    guest.handle(call, poller, NOW).unwrap();
    bench.peers[0].send(PLAIN, &frame(1, 0, 60));
    bench.kick(0, 1, NOW);
    assert_eq!(bench.peers[1].received().len(), 1);
}

#[test]
fn memory_that_is_cut_under_a_running_ring_is_survived() {
    crate::memory::survive_truncation().unwrap();
    let mut bench = Bench::link();
    bench.peers[1].offer_buffers(8, 0x800);
    bench.peers[0].send(PLAIN, &frame(1, 0, 60));
    rustix::fs::ftruncate(&bench.peers[1].driver.file, 0).unwrap();
    bench.kick(0, 1, NOW);
    assert!(bench.guest(1).lost_memory().is_some());
    assert!(bench.guest(0).lost_memory().is_none());
    // The worker disconnects it; until then it is a guest without buffers.
    bench.run(NOW + BUFFER_TIMEOUT);
    assert_eq!(TX.used_index(&bench.peers[0].driver), 1);
}

#[test]
fn memory_can_come_and_go_region_by_region() {
    let mut bench = Bench::link();
    let poller = &bench.poller;
    let guest = bench.network.guest_mut(1).unwrap();
    let more = crate::memory::RegionDescription {
        guest: 0x1_0000_0000,
        user: USER + 0x1_0000_0000,
        ..description()
    };
    guest
        .handle(Request::AddMemReg(more, memory_file()), poller, NOW)
        .unwrap();
    guest.handle(Request::RemMemReg(more), poller, NOW).unwrap();
    assert_eq!(guest.running_pairs(), 1);
    // Without the memory of its rings nothing runs.
    assert!(
        guest
            .handle(Request::RemMemReg(description()), poller, NOW)
            .is_err()
    );
    assert_eq!(guest.running_pairs(), 0);
}

/// The acknowledgement and result of the control queue's last command.
fn answer(bench: &Bench, position: u16) -> Vec<u8> {
    let driver = &bench.peers[0].driver;
    assert_eq!(CONTROL.used_index(driver), position + 1, "no answer");
    let (_, len) = CONTROL.used_element(driver, position);
    driver.read(ANSWER, len as usize)
}

/// A link whose first guest's control queue is forwarded, with its number.
fn with_control(features: Features) -> (Bench, u8) {
    with_control_in(Mode::Adaptive, features)
}

fn with_control_in(mode: Mode, features: Features) -> (Bench, u8) {
    let mut bench = Bench::new(mode, &[features, linux()]);
    let number = if features.has(Features::MQ) { 4 } else { 2 };
    let guest = bench.network.guest_mut(0).unwrap();
    bench.peers[0].start_control(guest, &bench.poller, number.into());
    bench.run(NOW);
    (bench, number)
}

#[test]
fn a_guest_coalesces_by_the_standards_commands_within_the_operators_cap() {
    for features in [linux(), linux().without(Features::MQ)] {
        let (mut bench, queue) = with_control(features);
        let set = |us: u32| [&[6, 1][..], &64_u32.to_le_bytes(), &us.to_le_bytes()].concat();
        bench.peers[0].command(0, &set(700), 1);
        bench.kick(0, queue, NOW);
        assert_eq!(answer(&bench, 0), [0]);
        assert_eq!(bench.guest(0).info("a", true, NOW).in_force_us, 700);
        assert_eq!(bench.guest(1).info("b", true, NOW).in_force_us, 200);
        bench.peers[0].command(1, &set(50_000), 1);
        bench.kick(0, queue, NOW);
        assert_eq!(bench.guest(0).info("a", true, NOW).in_force_us, 1_000);
        // What is in force is the result of a question about one queue.
        for (position, asked, packets, micros) in [(2, 0, 64, 1_000), (3, 1, u32::MAX, 200)] {
            bench.peers[0].command(position, &[6, 3, asked, 0, 0, 0], 9);
            bench.kick(0, queue, NOW);
            let expected = [&[0][..], &packets.to_le_bytes(), &u32::to_le_bytes(micros)].concat();
            assert_eq!(answer(&bench, position), expected);
        }
        // `ethtool -C eth0 rx-usecs 0 rx-frames 0 tx-usecs 400 tx-frames 32`.
        for (position, direction, packets, micros) in [(4, 0, 32_u32, 400_u32), (5, 1, 0, 0)] {
            let set = [
                &[6, direction][..],
                &packets.to_le_bytes(),
                &micros.to_le_bytes(),
            ]
            .concat();
            bench.peers[0].command(position, &set, 1);
            bench.kick(0, queue, NOW);
            assert_eq!(answer(&bench, position), [0]);
        }
        assert_eq!(bench.guest(0).info("a", true, NOW).in_force_us, 400);
        // It holds until the guest goes, with no deadline of its own.
        assert_eq!(bench.network.deadline(), None);
        assert_eq!(bench.guest(0).counters.totals.control_frames, 6);
    }
}

#[test]
fn frames_of_a_guest_that_set_max_packets_are_sent_as_soon_as_that_many_wait() {
    for features in [linux(), linux().without(Features::EVENT_IDX)] {
        let (mut bench, queue) = with_control_in(Mode::Fixed, features);
        // `ethtool -C eth0 tx-usecs 400 tx-frames 4`.
        let set = [&[6, 0][..], &4_u32.to_le_bytes(), &400_u32.to_le_bytes()].concat();
        bench.peers[0].command(0, &set, 1);
        bench.kick(0, queue, NOW);
        assert_eq!(answer(&bench, 0), [0]);
        bench.peers[1].offer_buffers(8, 0x800);
        let send = |bench: &mut Bench, count: u16| {
            (0..count).for_each(|_| bench.peers[0].send(PLAIN, &frame(1, 0, 60)));
        };
        let asks_for = |bench: &Bench, event: u16| {
            let asked = TX.available_event(&bench.peers[0].driver);
            assert!(
                !features.has(Features::EVENT_IDX) || asked == event,
                "{asked} {event}"
            );
        };
        send(&mut bench, 1);
        bench.kick(0, 1, NOW);
        assert_eq!(bench.peers[1].received().len(), 0, "held");
        asks_for(&bench, 3);
        send(&mut bench, 3);
        bench.kick(0, 1, NOW);
        assert_eq!(bench.peers[1].received().len(), 4);
        asks_for(&bench, 4);
        bench.peers[1].refill();
        // The same in the hold that follows a drain at the deadline.
        send(&mut bench, 1);
        bench.kick(0, 1, NOW);
        asks_for(&bench, 7);
        let due = NOW + Nanos::from_micros(400);
        bench.run(due);
        assert_eq!(bench.peers[1].received().len(), 1);
        asks_for(&bench, 8);
        send(&mut bench, 3);
        bench.run(due);
        assert_eq!(bench.peers[1].received().len(), 0, "held");
        send(&mut bench, 1);
        bench.kick(0, 1, due);
        assert_eq!(bench.peers[1].received().len(), 4);
    }
}

#[test]
fn the_control_queue_says_how_many_pairs_are_in_use() {
    let (mut bench, queue) = with_control(linux());
    assert_eq!(bench.guest(0).running_pairs(), 1);
    for (position, (pairs, ack)) in (0..).zip([(2_u16, 0), (0, 1), (3, 1), (1, 0)]) {
        let command = [&[4, 0][..], &pairs.to_le_bytes()].concat();
        bench.peers[0].command(position, &command, 1);
        bench.kick(0, queue, NOW);
        assert_eq!(answer(&bench, position), [ack], "{pairs} pairs");
    }
}

#[test]
fn filters_are_acknowledged_and_unknown_commands_refused() {
    let (mut bench, queue) = with_control(linux());
    let commands: [(&[u8], u8); 7] = [
        (&[0, 0, 1], 0),
        (&[1, 1, 2, 0, 0, 0, 0, 1], 0),
        (&[2, 0, 5, 0], 0),
        (&[5, 0, 0, 0, 0, 0, 0, 0, 0, 0], 1),
        (&[99, 99], 1),
        (&[6, 2, 9, 0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0], 1),
        (&[], 1),
    ];
    for (position, (command, ack)) in (0..).zip(commands) {
        bench.peers[0].command(position, command, 1);
        bench.kick(0, queue, NOW);
        assert_eq!(answer(&bench, position), [ack], "{command:?}");
    }
    assert_eq!(bench.guest(0).counters.totals.control_malformed, 3);
}

#[test]
fn a_flood_of_coalescing_commands_is_limited() {
    let (mut bench, queue) = with_control(linux());
    let mut refused = 0;
    for position in 0..100 {
        bench.peers[0].command(position, &[6, 3, 0, 0, 0, 0], 9);
        bench.kick(0, queue, NOW);
        refused += u64::from(answer(&bench, position)[0]);
    }
    assert_eq!(refused, 92, "all but a burst of eight");
    assert_eq!(bench.guest(0).counters.totals.control_limited, refused);
}

#[test]
fn a_bad_control_queue_stops_alone() {
    let (mut bench, queue) = with_control(linux());
    bench.peers[1].offer_buffers(8, 0x800);
    let driver = &bench.peers[0].driver;
    // What is to be read comes after what is to be written.
    CONTROL.describe(driver, 0, (ANSWER, 1, NEXT | WRITE, 1));
    CONTROL.describe(driver, 1, (ANSWER, 2, 0, 0));
    CONTROL.offer(driver, 0, 0);
    bench.kick(0, queue, NOW);
    let stopped = bench.network.take_stopped().next().unwrap();
    assert_eq!((stopped.queue, stopped.fault), (4, RingFault::Direction));
    bench.peers[0].send(PLAIN, &frame(1, 0, 60));
    bench.kick(0, 1, NOW);
    assert_eq!(bench.peers[1].received().len(), 1, "frames go on");
    bench.peers[0].command(1, &[0, 0, 1], 1);
    bench.kick(0, queue, NOW);
    assert_eq!(CONTROL.used_index(&bench.peers[0].driver), 0);
}

#[test]
fn a_command_without_room_for_an_answer_is_returned() {
    let (mut bench, queue) = with_control(linux());
    bench.peers[0].command(0, &[0, 0, 1], 0);
    bench.kick(0, queue, NOW);
    assert!(answer(&bench, 0).is_empty());
    bench.peers[0].command(1, &[6, 3, 0, 0, 0, 0], 3);
    bench.kick(0, queue, NOW);
    assert_eq!(answer(&bench, 1).len(), 3);
}

#[test]
fn a_call_descriptor_filled_and_put_back_into_blocking_mode_blocks_nobody() {
    let mut bench = Bench::link();
    bench.peers[1].offer_buffers(8, 0x800);
    let call = &bench.peers[1].calls[0];
    let flags = rustix::fs::fcntl_getfl(call).unwrap();
    rustix::fs::fcntl_setfl(call, flags - rustix::fs::OFlags::NONBLOCK).unwrap();
    rustix::io::write(call, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    bench.peers[0].send(PLAIN, &frame(1, 0, 60));
    bench.kick(0, 1, NOW);
    assert_eq!(bench.peers[1].received().len(), 1);
}
