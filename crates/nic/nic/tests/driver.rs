// SPDX-License-Identifier: Apache-2.0
//! The driver of `vtax-nic-driver` against the real program: two ports, linked.

use std::path::Path;
use std::time::Duration;

use vtax_nic::control::api::{Change, Request};
use vtax_nic::control::frame;
use vtax_nic::features::Features;
use vtax_nic::hold::{Mode, Nanos};
use vtax_nic_driver::arrivals::Arrivals;
use vtax_nic_driver::backend::Backend;
use vtax_nic_driver::load::{ping_pong, stream};
use vtax_nic_driver::nic::{Layout, Nic, Options};

const PROGRAM: &str = env!("CARGO_BIN_EXE_vtax-nic");

struct Link {
    backend: Backend,
    a: Nic,
    b: Nic,
    _directory: tempfile::TempDir,
}

fn link(mode: Mode, options: Options) -> Link {
    let directory = tempfile::tempdir().unwrap();
    let backend =
        Backend::start(Path::new(PROGRAM), directory.path(), 1, (mode, 1_000), None).unwrap();
    let a = backend.connect("a0", options).unwrap();
    let b = backend.connect("b0", options).unwrap();
    Link {
        backend,
        a,
        b,
        _directory: directory,
    }
}

/// Packed rings with all optional features of rings.
fn packed() -> Features {
    Features::RING_PACKED
        .with(Features::EVENT_IDX)
        .with(Features::INDIRECT)
        .with(Features::MRG_RXBUF)
}

/// Receives at least `count` frames, or those that arrive within two seconds.
fn receive(nic: &mut Nic, count: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for _ in 0..200 {
        nic.receive(0, 64, |frame| frames.push(frame.to_vec()));
        if frames.len() >= count {
            break;
        }
        nic.wait(0, Duration::from_millis(10));
    }
    frames
}

fn frame_of(len: usize, byte: u8) -> Vec<u8> {
    let mut frame = vec![byte; len];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb6]);
    frame
}

#[test(needs = [test_all("takes 3 s")])]
fn frames_cross_unchanged_in_every_layout_mode_and_ring() {
    for mode in Mode::ALL {
        for layout in [Layout::Single, Layout::Chained, Layout::Indirect] {
            for features in [
                Features::INDIRECT,
                Features::EVENT_IDX.with(Features::INDIRECT),
                Features::EVENT_IDX
                    .with(Features::INDIRECT)
                    .with(Features::MRG_RXBUF),
                Features::RING_PACKED.with(Features::INDIRECT),
                packed(),
            ] {
                let options = Options {
                    features,
                    layout,
                    ..Options::default()
                };
                let mut link = link(mode, options);
                let lengths = [60, 64, 512, 1_514];
                for len in lengths {
                    assert!(link.a.send(0, &frame_of(len, len as u8)));
                }
                let frames = receive(&mut link.b, lengths.len());
                let expected: Vec<_> = lengths.map(|len| frame_of(len, len as u8)).into();
                assert!(
                    frames == expected,
                    "{mode} {layout:?} {features:?}: {} frames",
                    frames.len()
                );
            }
        }
    }
}

#[test(needs = [test_all("takes 6 s")])]
fn a_stream_arrives_complete_and_in_order_in_every_mode_and_ring() {
    let rings = [Options::default().features, packed()];
    for (mode, features) in Mode::ALL
        .iter()
        .flat_map(|mode| rings.map(|ring| (*mode, ring)))
    {
        let options = Options {
            features,
            ..Options::default()
        };
        let Link {
            mut a,
            mut b,
            backend,
            _directory,
        } = link(mode, options);
        let arrivals = Arrivals::Poisson { rate: 5e3 };
        let half = Nanos::from_micros(500_000);
        let (senders, receivers) = (std::slice::from_mut(&mut a), std::slice::from_mut(&mut b));
        let seen = stream(senders, receivers, &arrivals, (64, half), (0, 1));
        assert!(seen.due > 100);
        // A ring that is full after a stall of the machine refuses frames. All sent frames must arrive.
        assert_eq!(seen.received, seen.due - seen.refused, "{mode}");
        assert_eq!((seen.lost, seen.disordered), (0, 0), "{mode}");
        let stats = backend.stats("b0").unwrap();
        assert_eq!(stats.totals.rx_packets, seen.received, "{mode}");
        assert_eq!(
            stats.totals.rx_calls, seen.receiver.calls,
            "{mode}: calls counted on both sides"
        );
    }
}

#[test]
fn transactions_work_in_every_mode() {
    for mode in Mode::ALL {
        // A busy machine may run a transaction's three programs in turn.
        let mut time = Duration::from_millis(200);
        let done = loop {
            let Link {
                mut a,
                mut b,
                backend: _backend,
                _directory,
            } = link(mode, Options::default());
            let done = ping_pong(&mut a, &mut b, time, (0, 1));
            if done.round_trips.len() > 2 || time > Duration::from_secs(10) {
                break done;
            }
            time *= 2;
        };
        assert!(
            done.round_trips.len() > 2,
            "{mode}: {}",
            done.round_trips.len()
        );
        assert_eq!(done.lost, 0, "{mode}");
    }
}

#[test(needs = [test_all("takes 3 s")])]
fn an_idle_back_end_sleeps() {
    for mode in Mode::ALL {
        let Link {
            mut a,
            mut b,
            backend,
            _directory,
        } = link(mode, Options::default());
        assert!(a.send(0, &frame_of(64, 1)));
        assert_eq!(receive(&mut b, 1).len(), 1);
        std::thread::sleep(Duration::from_millis(100));
        let before = backend.usage().unwrap();
        std::thread::sleep(Duration::from_millis(700));
        let after = backend.usage().unwrap();
        assert_eq!(
            after.sleeps, before.sleeps,
            "{mode}: it woke up while nothing happened"
        );
    }
}

#[test]
fn the_ports_together_pay_for_the_workers_processor_time() {
    let Link {
        mut a,
        mut b,
        backend,
        _directory,
    } = link(Mode::Adaptive, Options::default());
    let paid = || {
        let ports = ["a0", "b0"].map(|port| backend.stats(port).unwrap().totals.cpu_ns);
        (ports, backend.usage().unwrap().cpu)
    };
    let (before, used_before) = paid();
    let arrivals = Arrivals::Poisson { rate: 20e3 };
    let half = Nanos::from_micros(500_000);
    let (senders, receivers) = (std::slice::from_mut(&mut a), std::slice::from_mut(&mut b));
    let seen = stream(senders, receivers, &arrivals, (64, half), (0, 1));
    assert!(seen.received > 100, "{}", seen.received);
    let (after, used_after) = paid();
    let [sender, receiver] = [0, 1].map(|port| after[port] - before[port]);
    let used = u64::try_from((used_after - used_before).as_nanos()).unwrap();
    // Each port moved the same frames.
    assert!(
        sender > used / 4 && receiver > used / 4,
        "{sender} {receiver} {used}"
    );
    // The worker answers two requests between the readings of ports and process.
    let off = used.abs_diff(sender + receiver);
    assert!(
        off < used / 20 + 2_000_000,
        "{sender} + {receiver} ns of ports, {used} ns of the thread"
    );
}

#[test]
fn a_guest_asks_in_band_and_is_answered_within_the_cap() {
    let mut link = link(Mode::Adaptive, Options::default());
    let request = frame::Request {
        source: [2, 0, 0, 0, 0, 2],
        operation: frame::Operation::Ask,
        enable: true,
        hold_us: 300,
        lease_s: 60,
        nonce: 77,
    };
    assert!(link.b.send(0, &request.to_frame()));
    let answers = receive(&mut link.b, 1);
    let reply = frame::Reply::from_frame(answers.first().expect("an answer")).unwrap();
    assert_eq!(
        (reply.status, reply.hold_us, reply.nonce),
        (frame::Status::Granted, 300, 77)
    );

    let greedy = frame::Request {
        hold_us: 9_999,
        ..request
    };
    assert!(link.b.send(0, &greedy.to_frame()));
    let answers = receive(&mut link.b, 1);
    let reply = frame::Reply::from_frame(answers.first().expect("an answer")).unwrap();
    assert_eq!(
        (reply.status, reply.hold_us),
        (frame::Status::Clamped, 1_000)
    );

    let ports = link
        .backend
        .ask(&Request::List { port: None })
        .unwrap()
        .ports;
    let in_force = |name| {
        ports
            .iter()
            .find(|port| port.port == name)
            .unwrap()
            .in_force_us
    };
    assert_eq!(
        (in_force("a0"), in_force("b0")),
        (0, 1_000),
        "another port is not affected"
    );
    assert!(
        receive(&mut link.a, 1).is_empty(),
        "control frames are never forwarded"
    );
}

#[test]
fn a_flood_of_control_frames_is_limited_and_malformed_ones_are_counted() {
    let mut link = link(Mode::Adaptive, Options::default());
    let request = frame::Request {
        source: [2, 0, 0, 0, 0, 2],
        operation: frame::Operation::Query,
        enable: false,
        hold_us: 0,
        lease_s: 0,
        nonce: 1,
    };
    for _ in 0..100 {
        assert!(link.b.send(0, &request.to_frame()));
    }
    let mut malformed = request.to_frame();
    malformed[18] = 99;
    assert!(link.b.send(0, &malformed));
    assert!(link.b.drained_within(Duration::from_secs(2)));
    let totals = link.backend.stats("b0").unwrap().totals;
    assert_eq!(totals.control_malformed, 1);
    assert_eq!(totals.control_frames + totals.control_limited, 100);
    assert!(
        (8..20).contains(&totals.control_frames),
        "{}",
        totals.control_frames
    );
}

#[test]
fn an_operator_changes_the_mode_of_a_running_port() {
    let Link {
        mut a,
        mut b,
        backend,
        _directory,
    } = link(Mode::Off, Options::default());
    let change = Change {
        mode: Some(Mode::Fixed),
        ..Change::default()
    };
    let set = backend
        .ask(&Request::Set {
            port: Some("b0".into()),
            change,
        })
        .unwrap();
    assert_eq!(set.ports[0].settings.mode, Mode::Fixed);
    // A guest that polls needs no call, hence no hold. This one sleeps.
    assert!(!b.wait(0, Duration::ZERO));
    assert!(a.send(0, &frame_of(64, 1)));
    while backend.stats("b0").unwrap().hold_ns.count == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(receive(&mut b, 1).len(), 1);
    let hold = backend.stats("b0").unwrap().hold_ns;
    assert!(
        hold.quantiles.p50 >= 990_000,
        "held for {} ns",
        hold.quantiles.p50
    );
}
