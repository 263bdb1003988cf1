// SPDX-License-Identifier: Apache-2.0
//! Tests of the kernel's data path, on a fake device.

use super::fake_device::FakeDevice;
use super::*;
use crate::control::api::Change;
use crate::control::frame as control;
use crate::datapath::Datapath;
use crate::features::Features;
use crate::hold::Mode;
use crate::poller::Token;
use crate::protocol::{ProtocolError, Request};
use crate::testing::{self, Peer, RX, TX, description, event, linux, memory_file};
use crate::vhost_net::{Device, Event, Half, VhostError};
use std::os::fd::OwnedFd;

const NOW: Nanos = Nanos(1_000_000_000_000);
const BUDGET: Nanos = Nanos::from_micros(200);

/// A guest on a tap whose frames the kernel moves.
struct Bench {
    network: Network,
    peer: Peer,
    poller: Poller,
    device: FakeDevice,
    /// The device of the second pair.
    second: FakeDevice,
    /// The other side of the tap.
    host: OwnedFd,
    /// Frames that the kernel has delivered.
    delivered: u16,
}

fn in_kernel(mode: Mode) -> (Guest, [FakeDevice; 2], OwnedFd) {
    let devices = [FakeDevice::default(), FakeDevice::default()];
    let boxed = devices
        .clone()
        .map(|device| Box::new(device) as Box<dyn Device>);
    let (tap, host) = tap();
    let kernel = Kernel::new(boxed.into(), tap).unwrap();
    (
        testing::port(0, mode).with_datapath(Ok(kernel)),
        devices,
        host,
    )
}

/// A stand-in for a tap, which the fake device does not use, and the peer of its control socket.
fn tap() -> (TapHandles, OwnedFd) {
    let (control, host) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::NONBLOCK,
        None,
    )
    .unwrap();
    let ends = TapHandles {
        queues: vec![event()],
        control: Ok(control),
        statistics: None,
    };
    (ends, host)
}

impl Bench {
    fn new(mode: Mode) -> Self {
        let (mut guest, [device, second], host) = in_kernel(mode);
        let poller = Poller::new().unwrap();
        guest.watch(&poller).unwrap();
        let features = Kernel::offers(linux());
        let peer = Peer::start(&mut guest, &poller, features);
        let other = testing::port(1, mode);
        let network = Network::new(vec![
            Port::Guest(Box::new(guest)),
            Port::Guest(Box::new(other)),
        ]);
        let mut bench = Self {
            network,
            peer,
            poller,
            device,
            second,
            host,
            delivered: 0,
        };
        bench.work(NOW);
        bench.peer.calls(0);
        bench.device.kicks();
        bench
    }

    fn guest(&mut self) -> &mut Guest {
        self.network.guest_mut(0).unwrap()
    }

    fn ask(&mut self, request: Request) -> Result<crate::protocol::Reply, ProtocolError> {
        let poller = self.poller.clone();
        let (reply, _) = self.guest().handle(request, &poller, NOW)?;
        Ok(reply)
    }

    /// Handles the events up to `now` as the worker does. Returns their number.
    fn work(&mut self, now: Nanos) -> usize {
        let mut tokens = Vec::new();
        self.poller.wait(Some(Nanos::ZERO), &mut tokens).unwrap();
        for token in &tokens {
            let is_for_kernel = matches!(
                token,
                Token::Call(..) | Token::Kick(..) | Token::ControlFrame(_)
            );
            assert!(is_for_kernel, "{token:?}");
            self.network.handle_event(*token, now);
        }
        self.network.poll(now, &mut Batch::new());
        tokens.len()
    }

    /// The kernel puts frames into the receive ring, and signals for them.
    fn deliver(&mut self, frames: u16) {
        self.delivered += frames;
        let at = RX.used() + 2;
        self.peer.driver.write(at, &self.delivered.to_le_bytes());
        self.device.signal(Half::Rx, Event::Call);
    }

    fn kick(&self) {
        rustix::io::write(&self.peer.kicks[1], &1_u64.to_ne_bytes()).unwrap();
    }
}

#[test]
fn where_nothing_is_held_guest_and_kernel_signal_each_other() {
    let mut bench = Bench::new(Mode::Off);
    let state = bench.device.state();
    assert_eq!((state.owned, state.running), (true, [true; 2]));
    assert!(Features(state.features).has(NEEDED.without(Features::LOG_ALL)));
    assert_eq!(
        state.features & Features::ANY_LAYOUT.0,
        0,
        "no header of the tap"
    );
    drop(state);
    bench.deliver(1);
    bench.device.signal(Half::Tx, Event::Call);
    bench.kick();
    assert_eq!(bench.work(NOW), 0, "the worker is not woken");
    assert_eq!((bench.peer.calls(0), bench.peer.calls(1)), (1, 1));
    assert_eq!(bench.device.kicks(), 1);
    assert_eq!(bench.network.deadline(), None);
}

#[test]
fn a_held_call_reaches_the_guest_once_when_the_budget_is_over() {
    let mut bench = Bench::new(Mode::Fixed);
    bench.peer.offer_buffers(16, 0x800);
    bench.deliver(1);
    bench.work(NOW);
    bench.deliver(2);
    bench.work(Nanos(NOW.0 + 1));
    assert_eq!(bench.peer.calls(0), 0);
    assert_eq!(bench.network.deadline(), Some(NOW + BUDGET));
    // The kernel publishes frames without another call, because the guest did not ask for one.
    bench.delivered += 3;
    let used = bench.delivered.to_le_bytes();
    bench.peer.driver.write(RX.used() + 2, &used);
    bench.work(NOW + BUDGET);
    assert_eq!(bench.peer.calls(0), 1);
    // The next hold has begun ahead of its first frame. No frame comes, and the guest is not called.
    RX.set_used_event(&bench.peer.driver, bench.delivered);
    bench.work(NOW + BUDGET + BUDGET);
    assert_eq!(bench.peer.calls(0), 0);
    assert_eq!(bench.network.deadline(), None);
    let snapshot = bench.guest().snapshot("a", NOW);
    assert_eq!(
        (snapshot.totals.rx_calls, snapshot.rx_batch.quantiles.max),
        (1, 6)
    );
    assert_eq!(snapshot.hold_ns.quantiles.max / 10_000, BUDGET.0 / 10_000);
}

#[test]
fn a_guest_that_found_the_frames_by_itself_is_not_called() {
    let mut bench = Bench::new(Mode::Fixed);
    bench.peer.offer_buffers(16, 0x800);
    bench.deliver(2);
    bench.work(NOW);
    RX.set_used_event(&bench.peer.driver, 2);
    bench.work(NOW + BUDGET);
    assert_eq!(bench.peer.calls(0), 0);
    assert_eq!(bench.guest().counters.totals.rx_calls, 0);
    // The guest is called for the next frame.
    bench.deliver(1);
    bench.work(NOW + BUDGET);
    bench.work(NOW + BUDGET + BUDGET);
    assert_eq!(bench.peer.calls(0), 1);
}

#[test]
fn few_free_buffers_end_a_hold() {
    let mut bench = Bench::new(Mode::Fixed);
    bench.peer.offer_buffers(2, 0x800);
    bench.deliver(1);
    bench.work(NOW);
    assert_eq!(bench.peer.calls(0), 1);
}

#[test]
fn held_kicks_reach_the_kernel_once_a_budget_and_none_is_lost() {
    let mut bench = Bench::new(Mode::Fixed);
    bench.peer.send([0; 12], &[0; 60]);
    bench.kick();
    bench.work(NOW);
    bench.peer.send([0; 12], &[0; 60]);
    bench.kick();
    bench.work(Nanos(NOW.0 + 1));
    assert_eq!(bench.device.kicks(), 0);
    bench.work(NOW + BUDGET);
    assert_eq!(bench.device.kicks(), 1);
    // The drain offers no more. A frame offered after it is drained one budget later, with or without a kick.
    bench.peer.send([0; 12], &[0; 60]);
    bench.work(NOW + BUDGET + BUDGET);
    assert_eq!(bench.device.kicks(), 1);
    // A drain that finds no frames ends the timer, and the next kick is handled again.
    bench.work(Nanos(NOW.0 + 3 * BUDGET.0));
    assert_eq!(bench.device.kicks(), 0);
    assert_eq!(bench.network.deadline(), None);
    assert_eq!(bench.work(NOW), 1, "heard again, though for nothing new");
    bench.peer.send([0; 12], &[0; 60]);
    bench.kick();
    bench.work(Nanos(NOW.0 + 4 * BUDGET.0));
    bench.work(Nanos(NOW.0 + 5 * BUDGET.0));
    assert_eq!(bench.device.kicks(), 1);
}

#[test]
fn the_operator_plugs_the_guest_through_and_back_at_run_time() {
    let mut bench = Bench::new(Mode::Fixed);
    bench.peer.offer_buffers(16, 0x800);
    bench.deliver(1);
    bench.work(NOW);
    assert_eq!(bench.peer.calls(0), 0);
    let set = |mode| Change {
        mode: Some(mode),
        ..Change::default()
    };
    bench.guest().change_policy(&set(Mode::Off), NOW);
    assert!(bench.peer.calls(0) > 0, "what was held is told");
    bench.work(NOW);
    bench.deliver(1);
    bench.kick();
    assert_eq!(bench.work(NOW), 0);
    assert_eq!((bench.peer.calls(0), bench.device.kicks()), (1, 1));
    assert_eq!(bench.device.state().stops, 0, "no ring stopped for it");

    bench.guest().change_policy(&set(Mode::Fixed), NOW);
    bench.peer.calls(0);
    // An earlier kick is reported again rather than lost.
    bench.work(NOW);
    bench.work(NOW + BUDGET);
    bench.device.kicks();
    RX.set_used_event(&bench.peer.driver, bench.delivered);
    bench.deliver(1);
    bench.work(NOW + BUDGET);
    assert_eq!(bench.peer.calls(0), 0);
    bench.work(NOW + BUDGET + BUDGET);
    assert_eq!(bench.peer.calls(0), 1);
    let nothing = Change {
        override_us: Some(0),
        ..Change::default()
    };
    bench.guest().change_policy(&nothing, NOW + BUDGET + BUDGET);
    bench.peer.calls(0);
    bench.deliver(1);
    assert_eq!(bench.peer.calls(0), 1, "a budget of nothing holds nothing");
}

#[test]
fn a_flood_of_coalescing_commands_moves_descriptors_at_most_a_thousand_times_a_second() {
    let mut bench = Bench::new(Mode::Fixed);
    let poller = bench.poller.clone();
    bench
        .peer
        .start_control(bench.network.guest_mut(0).unwrap(), &poller, 4);
    let id = PortId {
        network: 0,
        port: 0,
    };
    for number in 0..10_000_u16 {
        let now = NOW + Nanos(u64::from(number) * 100_000);
        // Transmit queues are not held; receive queues are, and are not, in turns.
        let (direction, us) = match number {
            0 => (0, 0_u32),
            _ => (1, u32::from(number / 7 % 2) * 700),
        };
        let set = [
            &[6, direction][..],
            &64_u32.to_le_bytes(),
            &us.to_le_bytes(),
        ];
        bench.peer.command(number, &set.concat(), 1);
        bench.network.kicked(id, 4, now);
        bench.work(now);
    }
    assert_eq!(
        testing::CONTROL.used_index(&bench.peer.driver),
        10_000,
        "all are answered"
    );
    let plugs = bench.device.state().plugs;
    assert!((1_000..5_000).contains(&plugs), "{plugs}");
}

#[test]
fn the_kernel_goes_on_where_the_used_index_is_whatever_the_base() {
    let mut bench = Bench::new(Mode::Off);
    bench.peer.offer_buffers(8, 0x800);
    bench.deliver(3);
    let poller = bench.poller.clone();
    let guest = bench.network.guest_mut(0).unwrap();
    guest.disconnect(&poller, NOW);
    let features = Kernel::offers(linux());
    bench.peer.connect_from(guest, &poller, features, |_| 8);
    assert_eq!(bench.device.state().rings[&Half::Rx.index()].1, 3);
}

#[test]
fn a_link_that_is_down_stops_the_kernels_rings_until_it_is_up() {
    let mut bench = Bench::new(Mode::Off);
    for (up, running) in [(false, [false; 2]), (true, [true; 2])] {
        bench.guest().set_link(up, NOW);
        assert_eq!(bench.device.state().running, running);
        // Another change of the rings does not start them while the link is down.
        let enable = Request::SetVringEnable {
            queue: 0,
            enable: true,
        };
        bench.ask(enable).unwrap();
        assert_eq!(bench.device.state().running, running);
    }
    bench.kick();
    assert_eq!(bench.work(NOW), 0, "the kernel has the kicks again");
    assert_eq!(bench.device.kicks(), 1);
}

#[test]
fn another_call_descriptor_takes_effect_at_once() {
    let mut bench = Bench::new(Mode::Off);
    let call = event();
    let file = Some(call.try_clone().unwrap());
    bench.ask(Request::SetVringCall { queue: 0, file }).unwrap();
    testing::drain(&call);
    bench.deliver(1);
    assert_eq!((testing::drain(&call), bench.peer.calls(0)), (1, 0));
}

#[test]
fn a_ring_that_stops_reports_where_the_kernel_was_and_goes_on_from_there() {
    let mut bench = Bench::new(Mode::Fixed);
    bench.peer.offer_buffers(16, 0x800);
    bench.deliver(5);
    bench.work(NOW);
    bench.device.state().rings.get_mut(&0).unwrap().1 = 5;
    let reply = bench.ask(Request::GetVringBase { queue: 0 }).unwrap();
    let base = crate::protocol::Reply::VringState { queue: 0, base: 5 };
    assert_eq!(reply, base);
    assert_eq!(bench.device.state().running, [false, true]);
    assert_eq!(bench.peer.calls(0), 1, "what was held is told");
    let features = Kernel::offers(linux());
    let (peer, poller) = (&bench.peer, &bench.poller);
    let guest = bench.network.guest_mut(0).unwrap();
    let kick = peer.kicks[0].try_clone().unwrap();
    for request in [
        Request::SetVringBase { queue: 0, base: 5 },
        Request::SetVringKick {
            queue: 0,
            file: Some(kick),
        },
    ] {
        guest.handle(request, poller, NOW).unwrap();
    }
    let state = bench.device.state();
    assert_eq!((state.running, state.rings[&0].1), ([true; 2], 5));
    assert_eq!(state.features & features.0, state.features);
}

#[test]
fn new_memory_is_reported_while_no_ring_runs() {
    let mut bench = Bench::new(Mode::Off);
    let before = bench.device.state().regions.clone();
    // The same guest memory in a new mapping.
    let file = bench.peer.driver.file.try_clone().unwrap();
    bench
        .ask(Request::SetMemTable(vec![(description(), file)]))
        .unwrap();
    {
        let state = bench.device.state();
        assert_eq!((state.stops, state.running), (2, [true; 2]));
        assert_eq!((state.regions.len(), before.len()), (1, 1));
    }
    // A table without the memory of the rings: none runs, and the front end is disconnected.
    let elsewhere = crate::memory::RegionDescription {
        user: 0x10_0000_0000,
        ..description()
    };
    let refused = bench.ask(Request::SetMemTable(vec![(elsewhere, memory_file())]));
    assert!(refused.is_err());
    assert_eq!(bench.device.state().running, [false; 2]);
}

#[test]
fn migration_logs_into_the_front_ends_log() {
    let mut bench = Bench::new(Mode::Off);
    let (file, _) = testing::log();
    let size = testing::MEMORY / 4096 / 8;
    let log = Request::SetLogBase {
        size,
        offset: 0,
        file: file.try_clone().unwrap(),
    };
    bench.ask(log).unwrap();
    assert_eq!(bench.device.state().log, None, "nothing is logged yet");
    let features = Kernel::offers(linux()).with(Features::LOG_ALL);
    bench.ask(Request::SetFeatures(features)).unwrap();
    let state = bench.device.state();
    assert!(state.log.is_some() && Features(state.features).has(Features::LOG_ALL));
    let logged = state
        .rings
        .values()
        .map(|(_, _, addresses)| addresses.used_log);
    assert_eq!(
        logged.collect::<Vec<_>>(),
        [Some(RX.used()), Some(TX.used())]
    );
    drop(state);
    // With another log, the kernel no longer writes to the first one.
    let (file, _) = testing::log();
    let before = bench.device.state().stops;
    let offset = 0;
    bench
        .ask(Request::SetLogBase { size, offset, file })
        .unwrap();
    let state = bench.device.state();
    assert_eq!((state.stops - before, state.running), (2, [true; 2]));
}

#[test]
fn a_front_end_that_goes_leaves_nothing_in_the_kernel_and_the_next_starts_afresh() {
    let mut bench = Bench::new(Mode::Off);
    let poller = bench.poller.clone();
    bench.guest().disconnect(&poller, NOW);
    assert!(!bench.device.state().owned);
    let peer = &bench.peer;
    let guest = bench.network.guest_mut(0).unwrap();
    peer.connect(guest, &poller, Kernel::offers(linux()));
    assert_eq!(bench.device.state().running, [true; 2]);
}

#[test]
fn a_ring_that_runs_keeps_its_size_and_what_the_kernel_refuses_ends_the_session() {
    let mut bench = Bench::new(Mode::Off);
    let size = Request::SetVringNum { queue: 0, size: 64 };
    assert!(bench.ask(size).is_err());
    bench.device.state().refuses = true;
    let features = Request::SetFeatures(Kernel::offers(linux()));
    let error = bench.ask(features).unwrap_err().to_string();
    assert!(error.contains("vhost-net: cannot"), "{error}");
}

#[test]
fn packed_rings_are_not_offered() {
    let (mut guest, ..) = in_kernel(Mode::Off);
    let poller = Poller::new().unwrap();
    let (reply, _) = guest.handle(Request::GetFeatures, &poller, NOW).unwrap();
    let crate::protocol::Reply::Number(offered) = reply else {
        panic!("{reply:?}");
    };
    assert!(Features(offered).has(NEEDED.with(Features::CSUM)));
    assert_eq!(
        offered & (Features::RING_PACKED.0 | Features::IN_ORDER.0),
        0
    );
}

#[test]
fn who_moves_the_frames_is_chosen_with_a_reason() {
    let full = || Ok((Box::new(FakeDevice::default()) as Box<dyn Device>, NEEDED));
    let none = || {
        Err(VhostError::new(
            "open it",
            std::io::ErrorKind::NotFound.into(),
        ))
    };
    let poor = || {
        let device = Box::new(FakeDevice::default()) as Box<dyn Device>;
        Ok((device, NEEDED.without(Features::EVENT_IDX)))
    };
    let taps = || Some(tap().0);
    assert!(Datapath::Auto.choose(taps(), 2, full).is_ok());
    assert!(Datapath::Kernel.choose(taps(), 2, full).is_ok());
    let why = |chosen: Result<Kernel, DatapathError>| chosen.unwrap_err().to_string();
    assert_eq!(why(Datapath::User.choose(taps(), 2, full)), "so configured");
    let missing = why(Datapath::Auto.choose(taps(), 2, none));
    assert!(missing.contains("vhost-net: cannot open it"), "{missing}");
    let alone = why(Datapath::Auto.choose(None, 2, full));
    assert!(alone.contains("not alone with a tap"), "{alone}");
    let lacks = why(Datapath::Auto.choose(taps(), 2, poor));
    assert!(lacks.contains("0x20000000"), "{lacks}");
    assert!(Datapath::Kernel.choose(taps(), 2, none).is_err());
    let deaf = || {
        let control = Err(std::io::ErrorKind::PermissionDenied.into());
        Some(TapHandles { control, ..tap().0 })
    };
    let answers = why(Datapath::Auto.choose(deaf(), 2, full));
    assert!(
        answers.contains("control frames: permission denied"),
        "{answers}"
    );
    let kernel = Datapath::Kernel.choose(deaf(), 2, full);
    let guest = testing::port(0, Mode::Off).with_datapath(kernel);
    assert!(guest.datapath().contains("answers no control frames"));
}

#[test]
fn a_guests_control_frames_are_answered_though_the_kernel_moves_its_frames() {
    let mut bench = Bench::new(Mode::Fixed);
    let ask = control::Request {
        source: [2, 0, 0, 0, 0, 1],
        operation: control::Operation::Ask,
        enable: true,
        hold_us: 70,
        lease_s: 10,
        nonce: 7,
    };
    for _ in 0..20 {
        rustix::io::write(&bench.host, &ask.to_frame()).unwrap();
    }
    bench.work(NOW);
    let mut answers = 0;
    let mut bytes = [0; 100];
    while let Ok(len) = rustix::io::read(&bench.host, &mut bytes) {
        let reply = control::Reply::from_frame(&bytes[..len]).unwrap();
        assert_eq!((reply.status, reply.nonce), (control::Status::Granted, 7));
        answers += 1;
    }
    assert_eq!(answers, 8, "and no more than elsewhere");
    let totals = bench.guest().counters.totals;
    assert_eq!((totals.control_frames, totals.control_limited), (8, 12));
    bench.peer.offer_buffers(16, 0x800);
    bench.deliver(1);
    bench.work(NOW);
    assert_eq!(
        bench.network.deadline(),
        Some(NOW + Nanos::from_micros(70)),
        "the lease is in force"
    );
}

#[test]
fn the_devices_numbers_are_those_of_linux() {
    // The numbers in `linux/vhost.h` on most processors.
    let expected = [
        0x4008_af00,
        0xaf01,
        0xaf02,
        0x4008_af03,
        0x4008_af04,
        0x4008_af10,
        0x4028_af11,
        0x4008_af12,
        0xc008_af12,
        0x4008_af20,
        0x4008_af21,
        0x4008_af22,
        0x4008_af30,
    ];
    assert_eq!(crate::vhost_net::REQUESTS, expected);
}

#[test]
fn while_a_call_is_held_nobody_is_woken_for_others() {
    let mut bench = Bench::new(Mode::Fixed);
    bench.peer.offer_buffers(16, 0x800);
    bench.deliver(1);
    assert_eq!(bench.work(NOW), 1);
    for _ in 0..3 {
        bench.deliver(1);
        bench.kick();
    }
    assert_eq!(bench.work(NOW), 1, "the kick alone");
    bench.work(NOW + BUDGET);
    assert_eq!(bench.peer.calls(0), 1);
}

#[test]
fn a_controller_that_holds_nothing_looks_away_and_looks_again() {
    let mut bench = Bench::new(Mode::Adaptive);
    bench.peer.offer_buffers(16, 0x800);
    // The frames are too far apart to be merged: 1 ms, with a budget of 200 µs.
    let mut now = NOW;
    for _ in 0..200 {
        now = now + Nanos::from_micros(1_000);
        RX.set_used_event(&bench.peer.driver, bench.delivered);
        bench.peer.offer_buffers(1, 0x800);
        bench.deliver(1);
        bench.work(now);
    }
    assert_eq!(bench.peer.calls(0), 200, "none held, none lost");
    let watched = bench.guest().counters.totals.rx_calls;
    assert_eq!(watched, 8, "those from which that is told");
    assert!(bench.network.deadline().is_some());
    now = now + Nanos::from_micros(2_000_000);
    bench.work(now);
    assert_eq!(bench.network.deadline(), None, "and has no timer when idle");
    bench.deliver(1);
    assert_eq!(bench.work(now), 1);
}

#[test]
fn another_controller_sends_what_was_held() {
    let mut bench = Bench::new(Mode::Fixed);
    bench.peer.send([0; 12], &[0; 60]);
    bench.kick();
    bench.work(NOW);
    assert_eq!(bench.device.kicks(), 0);
    let adaptive = Change {
        mode: Some(Mode::Adaptive),
        ..Change::default()
    };
    bench.guest().change_policy(&adaptive, NOW);
    assert_eq!(bench.device.kicks(), 1);
}

#[test]
fn a_back_end_that_comes_again_goes_on_where_the_rings_are() {
    let mut bench = Bench::new(Mode::Fixed);
    bench.peer.offer_buffers(16, 0x800);
    bench.deliver(5);
    let (mut guest, [device, _], _host) = in_kernel(Mode::Fixed);
    let poller = Poller::new().unwrap();
    guest.watch(&poller).unwrap();
    bench
        .peer
        .connect(&mut guest, &poller, Kernel::offers(linux()));
    let state = device.state();
    assert_eq!((state.running, state.rings[&0].1), ([true; 2], 5));
}

#[test]
fn a_guest_that_was_reset_begins_anew_and_is_called() {
    let mut bench = Bench::new(Mode::Fixed);
    bench.peer.offer_buffers(16, 0x800);
    bench.deliver(3);
    bench.work(NOW);
    for queue in 0..2 {
        bench.ask(Request::GetVringBase { queue }).unwrap();
    }
    assert_eq!(bench.device.state().running, [false; 2]);
    assert_eq!(bench.network.deadline(), None, "nothing is held any more");
    // The guest restarts with empty rings, whose indexes are 0.
    bench.delivered = 0;
    RX.set_available(&bench.peer.driver, 0);
    bench.peer.driver.write(RX.used() + 2, &[0; 2]);
    let poller = bench.poller.clone();
    let guest = bench.network.guest_mut(0).unwrap();
    bench.peer.connect(guest, &poller, Kernel::offers(linux()));
    assert_eq!(bench.device.state().rings[&0].1, 0);
    RX.set_available(&bench.peer.driver, 16);
    bench.deliver(1);
    bench.work(NOW);
    bench.work(NOW + BUDGET);
    assert_eq!(bench.peer.calls(0), 1);
}

#[test]
fn features_that_change_reach_the_kernel_while_no_ring_runs_and_change_who_is_called() {
    let mut bench = Bench::new(Mode::Fixed);
    bench.peer.offer_buffers(16, 0x800);
    let features = Kernel::offers(linux()).without(Features::EVENT_IDX);
    bench.ask(Request::SetFeatures(features)).unwrap();
    {
        let state = bench.device.state();
        assert_eq!(state.features & Features::EVENT_IDX.0, 0);
        assert_eq!((state.stops, state.running), (2, [true; 2]));
    }
    bench.peer.calls(0);
    // Without event indexes, a flag of the driver asks for no calls.
    bench.peer.driver.write(RX.available(), &[1, 0]);
    bench.deliver(1);
    bench.work(NOW);
    bench.work(NOW + BUDGET);
    assert_eq!(bench.peer.calls(0), 0);
    bench.peer.driver.write(RX.available(), &[0, 0]);
    bench.deliver(1);
    bench.work(NOW + BUDGET + BUDGET);
    bench.work(Nanos(NOW.0 + 4 * BUDGET.0));
    assert_eq!(bench.peer.calls(0), 1);
}

#[test]
fn each_pair_has_a_device_and_stops_alone() {
    let mut bench = Bench::new(Mode::Off);
    assert_eq!(bench.second.state().running, [false; 2]);
    let [rx, tx] = [testing::Ring(3), testing::Ring(4)];
    for (ring, queue) in [(rx, 2), (tx, 3)] {
        let size = testing::SIZE.into();
        let addresses = ring.addresses();
        let file = || Some(event());
        for request in [
            Request::SetVringNum { queue, size },
            Request::SetVringAddr(crate::protocol::VringAddress { queue, addresses }),
            Request::SetVringKick {
                queue,
                file: file(),
            },
            Request::SetVringCall {
                queue,
                file: file(),
            },
            Request::SetVringEnable {
                queue,
                enable: true,
            },
        ] {
            bench.ask(request).unwrap();
        }
    }
    let running = |bench: &Bench| (bench.device.state().running, bench.second.state().running);
    // The tap has one queue: the second pair sends only.
    assert_eq!(running(&bench), ([true; 2], [false, true]));
    assert_eq!(bench.device.state().stops, 0, "the first went on meanwhile");
    let log = Request::SetLogBase {
        size: testing::MEMORY / 4096 / 8,
        offset: 0,
        file: testing::log().0,
    };
    bench.ask(log).unwrap();
    let features = Kernel::offers(linux()).with(Features::LOG_ALL);
    bench.ask(Request::SetFeatures(features)).unwrap();
    let logs = |device: &FakeDevice| Features(device.state().features).has(Features::LOG_ALL);
    assert!(logs(&bench.device) && logs(&bench.second));
    for queue in 2..4 {
        let enable = false;
        bench
            .ask(Request::SetVringEnable { queue, enable })
            .unwrap();
    }
    assert_eq!(running(&bench), ([true; 2], [false; 2]));
    bench.peer.calls(0);
    bench.deliver(1);
    assert_eq!(bench.peer.calls(0), 1);
}
