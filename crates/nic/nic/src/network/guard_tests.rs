// SPDX-License-Identifier: Apache-2.0
//! Ports with limits, and neighbours that the limited ports do not disturb.

use super::tests::{Bench, NOW, PLAIN, frame};
use super::*;
use crate::hold::Mode;
use crate::memory::MemoryError;
use crate::poller::Poller;
use crate::protocol::{ProtocolError, Request};
use crate::testing::{Peer, description, linux, memory_file, port};

const EVERYBODY: [u8; 6] = [0xff; 6];

fn limits(text: &str) -> Limits {
    toml::from_str(text).unwrap()
}

/// A switch of three ports with receive buffers, whose first ports have these limits.
fn switch(of: &[&str]) -> Bench {
    let limits: Vec<Limits> = of.iter().map(|text| limits(text)).collect();
    let mut bench = Bench::with(Mode::Off, &[linux(); 3], &limits);
    for peer in &mut bench.peers {
        peer.offer_buffers(8, 0x800);
    }
    bench
}

impl Bench {
    /// Sends a frame of 60 bytes.
    fn send(&mut self, port: u16, to: u8, from: u8, now: Nanos) {
        self.peers[usize::from(port)].send(PLAIN, &frame(to, from, 60));
        self.kick(port, 1, now);
    }

    fn flood(&mut self, port: u16, from: u8, now: Nanos) {
        let mut bytes = frame(0, from, 60);
        bytes[..6].copy_from_slice(&EVERYBODY);
        self.peers[usize::from(port)].send(PLAIN, &bytes);
        self.kick(port, 1, now);
    }

    /// The number of frames that each port received since the last call.
    fn arrived(&mut self) -> Vec<usize> {
        self.peers
            .iter_mut()
            .map(|peer| peer.received().len())
            .collect()
    }
}

#[test]
fn no_port_sends_from_another_address_than_its_own() {
    let mut bench = switch(&["addresses = '02:00:00:00:00:00'"]);
    bench.send(0, 1, 7, NOW);
    bench.flood(0, 7, NOW);
    assert_eq!(bench.arrived(), [0, 0, 0]);
    assert_eq!(bench.drops(0).foreign_address, 2);
    bench.send(0, 1, 0, NOW);
    assert_eq!(bench.arrived(), [0, 1, 1], "not known yet where 1 is");
    let reported: Vec<_> = bench.network.take_limited().collect();
    assert_eq!(
        reported,
        [(0, Limit::Addresses)],
        "one line for all of them"
    );
}

#[test]
fn no_port_takes_the_traffic_of_an_address_that_is_anothers() {
    let mut bench = switch(&["addresses = '02:00:00:00:00:00'"]);
    // Port 2 has no limits, and sends from the address of port 0's guest.
    bench.send(2, 1, 0, NOW);
    assert_eq!(bench.arrived(), [0, 0, 0]);
    assert_eq!(bench.drops(2).foreign_address, 1);
    bench.send(1, 0, 1, NOW);
    assert_eq!(bench.arrived(), [1, 0, 0], "known although it never sent");
    bench.network.announce(2, [2, 0, 0, 0, 0, 0], NOW);
    assert_eq!(bench.arrived(), [0, 0, 0], "nor by an announcement");
    assert_eq!(bench.drops(2).foreign_address, 2);
}

#[test]
fn an_address_that_was_learnt_is_the_only_one_and_nobody_elses() {
    let learn = "addresses = 'learn'";
    let mut bench = switch(&[learn, learn]);
    bench.flood(0, 0, NOW);
    assert_eq!(bench.arrived(), [0, 1, 1]);
    // The second port cannot learn the first port's address, and then learns its own. Before that, its front end may
    // announce a migrated guest.
    bench.network.announce(1, [2, 0, 0, 0, 0, 1], NOW);
    assert_eq!(bench.arrived(), [1, 0, 1]);
    bench.flood(1, 0, NOW);
    assert_eq!(bench.arrived(), [0, 0, 0]);
    bench.flood(1, 1, NOW);
    assert_eq!(bench.arrived(), [1, 0, 1]);
    bench.flood(0, 5, NOW);
    assert_eq!(bench.arrived(), [0, 0, 0]);
    // A new front end connects to the port: the address stays.
    bench.network.port_left(0);
    bench.flood(0, 5, NOW);
    bench.flood(2, 0, NOW);
    assert_eq!(bench.arrived(), [0, 0, 0]);
}

#[test]
fn no_port_sends_more_than_its_packets_a_second_and_the_others_go_on() {
    let mut bench = switch(&["packets = { rate = 1000, burst = 2 }"]);
    bench.send(1, 9, 1, NOW);
    bench.arrived();
    for _ in 0..4 {
        bench.peers[0].send(PLAIN, &frame(1, 0, 60));
    }
    bench.kick(0, 1, NOW);
    assert_eq!(bench.arrived(), [0, 2, 0]);
    assert!(bench.guest(0).counters.totals.throttled > 0);
    bench.send(2, 1, 2, NOW);
    assert_eq!(bench.arrived(), [0, 1, 0], "who sends less does not wait");
    let due = bench.network.deadline().unwrap();
    assert_eq!(due, NOW + Nanos::from_micros(1000));
    bench.run(due);
    assert_eq!(bench.arrived(), [0, 1, 0]);
    bench.run(NOW + Nanos::from_secs(1));
    assert_eq!(bench.arrived(), [0, 1, 0]);
    assert_eq!(
        bench.drops(0),
        crate::telemetry::Drops::default(),
        "they wait"
    );
}

#[test]
fn no_neighbours_kicks_make_a_port_that_waits_work() {
    let mut bench = switch(&["packets = { rate = 1000, burst = 1 }"]);
    bench.send(0, 1, 0, NOW);
    bench.send(0, 1, 0, NOW);
    let before = bench.guest(0).counters.work();
    for _ in 0..50 {
        bench.kick(1, 0, NOW);
    }
    assert_eq!(bench.guest(0).counters.work(), before);
    assert_eq!(bench.guest(0).counters.totals.throttled, 1);
}

#[test]
fn no_port_of_a_link_sends_more_than_its_bytes_a_second() {
    let rate = limits("bytes = { rate = 60000, burst = 60 }");
    let mut bench = Bench::with(Mode::Off, &[linux(); 2], &[rate]);
    bench.peers[1].offer_buffers(8, 0x800);
    for _ in 0..3 {
        bench.peers[0].send(PLAIN, &frame(1, 0, 60));
    }
    bench.kick(0, 1, NOW);
    let mut arrived = bench.peers[1].received().len();
    // The first 60 bytes pass, then 60 more a millisecond.
    assert_eq!(arrived, 1);
    for ms in 1..=2 {
        bench.run(NOW + Nanos::from_micros(ms * 1000));
        arrived += bench.peers[1].received().len();
    }
    assert_eq!(arrived, 3);
}

#[test]
fn a_frame_that_waits_for_buffers_is_counted_once() {
    let rate = limits("packets = { rate = 1000, burst = 1 }");
    let mut bench = Bench::with(Mode::Off, &[linux(); 2], &[rate]);
    bench.peers[0].send(PLAIN, &frame(1, 0, 60));
    bench.kick(0, 1, NOW);
    // The receiver has no buffers, and the queue is checked repeatedly.
    for us in 1..=9 {
        bench.kick(1, 0, NOW + Nanos::from_micros(us));
    }
    bench.peers[1].offer_buffers(1, 0x800);
    bench.kick(1, 0, NOW + Nanos::from_micros(1000));
    assert_eq!(bench.peers[1].received().len(), 1);
}

#[test]
fn no_port_floods_more_than_its_rate_of_floods() {
    let mut bench = switch(&["floods = { rate = 10, burst = 1 }"]);
    bench.send(1, 9, 1, NOW);
    bench.arrived();
    for _ in 0..3 {
        bench.flood(0, 0, NOW);
        // The destination is an unknown address.
        bench.send(0, 200, 0, NOW);
    }
    assert_eq!(bench.arrived(), [0, 1, 1]);
    assert_eq!(bench.drops(0).storm, 5);
    bench.send(0, 1, 0, NOW);
    assert_eq!(bench.arrived(), [0, 1, 0], "what goes to one goes on");
    bench.flood(0, 0, NOW + Nanos::from_secs(1));
    assert_eq!(bench.arrived(), [0, 1, 1]);
}

#[test]
fn no_front_end_maps_more_than_its_port_may() {
    let poller = Poller::new().unwrap();
    let size = description().size;
    let table = || Request::SetMemTable(vec![(description(), memory_file())]);
    let mut guest = port(0, Mode::Off).with_limits(&limits(&format!("memory = {}", size - 1)));
    for _ in 0..2 {
        let refused = guest.handle(table(), &poller, NOW).unwrap_err();
        assert!(
            matches!(refused, ProtocolError::Memory(MemoryError::TooMuch { most, .. }) if most == size - 1),
            "{refused}"
        );
        guest.disconnect(&poller, NOW);
    }
    let mut guest = port(0, Mode::Off).with_limits(&limits(&format!("memory = {size}")));
    Peer::start(&mut guest, &poller, linux());
}
