// SPDX-License-Identifier: Apache-2.0
//! Frames between ports, with valid and invalid drivers.

use super::delivery::BUFFER_TIMEOUT;
use super::*;
use crate::features::Features;
use crate::hold::Mode;
use crate::poller::Poller;
use crate::testing::{BUFFERS, INDIRECT, NEXT, Peer, RX, TX, WRITE, encode, linux, port};

/// The address of an indirect table, apart from rings and buffers.
const TABLE: u64 = 0x8_0000;

/// The start time. It is far from 0, so that no earlier time counts as never.
pub(super) const NOW: Nanos = Nanos(1_000_000_000_000);

pub(super) struct Bench {
    pub(super) network: Network,
    pub(super) peers: Vec<Peer>,
    pub(super) poller: Poller,
    batch: Batch,
}

impl Bench {
    pub(super) fn new(mode: Mode, features: &[Features]) -> Self {
        Self::with(mode, features, &[])
    }

    /// A bench with limits for the first ports. The others have none.
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

    pub(super) fn link() -> Self {
        Self::new(Mode::Off, &[linux(), linux()])
    }

    /// Works until there are no more frames to move at `now`.
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
fn a_frame_crosses_a_link_whole_and_both_sides_are_notified() {
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
    // Three invalid frames: shorter than the virtio-net header (CVE-2022-2132), shorter than an Ethernet header, and
    // empty.
    TX.describe(driver, 0, (BUFFERS, 5, 0, 0));
    TX.describe(driver, 1, (BUFFERS, 12 + 13, 0, 0));
    TX.describe(driver, 2, (BUFFERS, 0, 0, 0));
    // A valid frame: its header in twelve descriptors of one byte, its bytes in the thirteenth.
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
    // The other ports continue, and send nothing to the stopped one.
    bench.peers[1].send(PLAIN, &frame(9, 1, 60));
    bench.kick(1, 1, NOW);
    assert_eq!(bench.peers[2].received().len(), 2);
    assert_eq!(bench.drops(0).not_running, 1);
    // More kicks have no effect.
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
