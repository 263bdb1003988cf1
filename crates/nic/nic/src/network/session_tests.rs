// SPDX-License-Identifier: Apache-2.0
//! Sessions of front ends: rings and memory that start, stop and change.

use super::delivery::BUFFER_TIMEOUT;
use super::tests::{Bench, NOW, PLAIN, frame};
use crate::features::Features;
use crate::hold::Mode;
use crate::poller::Poller;
use crate::protocol::{ProtocolError, Request};
use crate::testing::{
    BUFFERS, Driver, RX, Ring, SIZE, TX, USER, description, linux, memory_file, port,
};

/// QEMU gives a new back end the used indexes, Cloud Hypervisor the available ones unless buffers are returned in order
/// by agreement.
#[test]
fn a_back_end_that_comes_again_goes_on_where_the_rings_are() {
    type Base = fn(&Driver, Ring) -> u16;
    let used: Base = |driver, ring| ring.used_index(driver);
    let available: Base = |driver, ring| driver.u16_at(ring.available() + 2);
    for base in [used, available] {
        let mut bench = Bench::link();
        bench.peers[1].offer_buffers(8, 0x800);
        for number in 0..3 {
            bench.peers[0].send(PLAIN, &frame(1, number, 60));
        }
        bench.kick(0, 1, NOW);
        // Two more frames are offered while no back end runs.
        for number in 3..5 {
            bench.peers[0].send(PLAIN, &frame(1, number, 60));
        }
        let poller = Poller::new().unwrap();
        for number in 0..2 {
            let guest = bench.network.guest_mut(number).unwrap();
            guest.disconnect(&bench.poller, NOW);
            let peer = &bench.peers[usize::from(number)];
            peer.connect_from(guest, &poller, linux(), |ring| base(&peer.driver, ring));
            bench.network.port_changed(number);
        }
        bench.poller = poller;
        assert!(bench.peers[1].calls(0) <= 1);
        bench.run(NOW);
        let received = bench.peers[1].received();
        let numbers: Vec<_> = received.iter().map(|(_, frame)| frame[11]).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4]);
        let guest = bench.network.guest_mut(1).unwrap();
        let stop = Request::GetVringBase { queue: 0 };
        let (reply, _) = guest.handle(stop, &bench.poller, NOW).unwrap();
        assert_eq!(
            reply,
            crate::protocol::Reply::VringState { queue: 0, base: 5 }
        );
    }
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
    // An event descriptor in blocking mode, with a full counter.
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
    // The worker would disconnect it. Until then it counts as a guest without buffers.
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
    // No pair runs without the memory of its rings.
    assert!(
        guest
            .handle(Request::RemMemReg(description()), poller, NOW)
            .is_err()
    );
    assert_eq!(guest.running_pairs(), 0);
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

/// QEMU sets the call descriptors of all queues when the device is made, before the guest accepts features.
#[test]
fn the_control_queue_may_be_set_up_before_the_features_that_give_it_its_number() {
    for (pairs, features) in [
        (1, linux()),
        (1, linux().without(Features::MQ)),
        (2, linux()),
        (2, linux().without(Features::MQ)),
    ] {
        let poller = Poller::new().unwrap();
        let policy = crate::control::Policy::default();
        let settings = crate::hold::HoldSettings::default();
        let id = crate::poller::PortId {
            network: 0,
            port: 0,
        };
        let mut guest = super::Guest::new(id, pairs, Features::OFFERED, settings, policy);
        let driver = crate::testing::Driver::new();
        let mut ask = |request| guest.handle(request, &poller, NOW).unwrap();
        let queue = if features.has(Features::MQ) {
            u32::from(pairs) * 2
        } else {
            2
        };
        let call = crate::testing::event();
        ask(Request::SetVringCall {
            queue,
            file: Some(call.try_clone().unwrap()),
        });
        ask(Request::SetVringNum {
            queue,
            size: SIZE.into(),
        });
        ask(Request::SetFeatures(features));
        let file = driver.file.try_clone().unwrap();
        ask(Request::SetMemTable(vec![(description(), file)]));
        ask(Request::SetVringAddr(crate::protocol::VringAddress {
            queue,
            addresses: crate::testing::CONTROL.addresses(),
        }));
        ask(Request::SetVringKick {
            queue,
            file: Some(crate::testing::event()),
        });
        assert_eq!(crate::testing::drain(&call), 1, "signalled at its start");
        ask(Request::SetVringEnable {
            queue,
            enable: true,
        });
        let number = u8::try_from(queue).unwrap();
        assert!(guest.is_control(number), "{pairs} pairs");
        assert!(guest.control.running_ring().is_some(), "{pairs} pairs");
    }
}
