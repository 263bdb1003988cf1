// SPDX-License-Identifier: Apache-2.0
//! Commands on the control queue of a guest, where its front end forwards it.

use super::tests::{Bench, NOW, PLAIN, frame};
use super::*;
use crate::features::Features;
use crate::hold::Mode;
use crate::testing::{ANSWER, CONTROL, NEXT, TX, WRITE, linux};

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
        // A query for one queue returns the parameters in force.
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
        // The parameters hold until the guest disconnects, without a deadline.
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
        // The same applies to the hold that follows a drain at the deadline.
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

/// Linux's adaptive moderation (`ethtool -C eth0 adaptive-rx on`) sends a command for each change of its mind.
#[test]
fn ten_thousand_coalescing_commands_a_second_are_carried_out_while_frames_pass() {
    let (mut bench, queue) = with_control_in(Mode::Fixed, linux());
    let mut passed = 0;
    for number in 0..10_000_u16 {
        let now = NOW + Nanos(u64::from(number) * 100_000);
        let us = u32::from(number % 800);
        let set = [
            &[6, 2, 0, 0, 0, 0][..],
            &64_u32.to_le_bytes(),
            &us.to_le_bytes(),
        ]
        .concat();
        bench.peers[0].command(number, &set, 1);
        bench.kick(0, queue, now);
        assert_eq!(answer(&bench, number), [0]);
        if number % 100 == 0 {
            bench.peers[1].refill();
            bench.peers[0].send(PLAIN, &frame(1, 0, 60));
            bench.kick(0, 1, now);
        }
        bench.run(now + Nanos(50_000));
        passed += bench.peers[1].received().len();
    }
    assert!(passed > 95, "{passed} of 100 frames");
    assert_eq!(bench.guest(0).counters.totals.control_limited, 0);
    // What was asked for last is in force.
    let end = NOW + Nanos::from_secs(2);
    bench.run(end);
    let asked = Nanos::from_micros(9_999 % 800);
    assert_eq!(bench.guest(0).hold_mut(0).unwrap().bounds().0.budget, asked);
}

#[test]
fn an_address_that_a_guest_sets_is_in_the_configuration_space_until_the_guest_goes() {
    let (mut bench, queue) = with_control(linux());
    let before = bench.guest(0).config_space.mac;
    bench.peers[0].command(0, &[1, 1, 2, 0, 0, 0, 0, 9], 1);
    bench.kick(0, queue, NOW);
    assert_eq!(answer(&bench, 0), [0]);
    assert_eq!(bench.guest(0).config_space.mac, Some([2, 0, 0, 0, 0, 9]));
    let poller = bench.poller.clone();
    bench.guest(0).disconnect(&poller, NOW);
    assert_eq!(bench.guest(0).config_space.mac, before);
}

#[test]
fn a_queue_that_is_not_enabled_has_no_coalescing_parameters() {
    let (mut bench, queue) = with_control(linux());
    let get = |number: u8| vec![6, 3, number, 0, 0, 0];
    let set = |number: u8| [&[6, 2, number, 0, 0, 0][..], &[8, 0, 0, 0, 9, 0, 0, 0]].concat();
    // The first pair runs, the second does not; 4 is the control queue.
    let commands = [0, 1, 2, 3, 4, 5].map(|number| (number, u8::from(number > 1)));
    for (position, (number, ack)) in (0..).zip(commands) {
        for (step, command) in (0..).zip([get(number), set(number)]) {
            bench.peers[0].command(position * 2 + step, &command, 9);
            bench.kick(0, queue, NOW);
            assert_eq!(answer(&bench, position * 2 + step)[0], ack, "{number}");
        }
    }
}

#[test]
fn a_reset_of_the_device_ends_what_its_driver_asked_for() {
    let (mut bench, queue) = with_control(linux());
    let set = [&[6, 1][..], &64_u32.to_le_bytes(), &700_u32.to_le_bytes()].concat();
    bench.peers[0].command(0, &set, 1);
    bench.kick(0, queue, NOW);
    assert_eq!(bench.guest(0).info("a", true, NOW).in_force_us, 700);
    let poller = bench.poller.clone();
    let reset = crate::protocol::Request::ResetDevice;
    bench.guest(0).handle(reset, &poller, NOW).unwrap();
    assert_eq!(bench.guest(0).info("a", true, NOW).in_force_us, 200);
}

#[test]
fn a_bad_control_queue_stops_alone() {
    let (mut bench, queue) = with_control(linux());
    bench.peers[1].offer_buffers(8, 0x800);
    let driver = &bench.peers[0].driver;
    // The readable part of the command follows the writable one.
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
