// SPDX-License-Identifier: Apache-2.0
//! The shipped images boot unchanged in stock QEMU and give the same answers there.

use crate::guests::micro_vms;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use vtax_mvm::front::router::Route;
use vtax_mvm::image::{Image, Profile, assemble_source};
use vtax_mvm::tcg::{Accelerator, Qemus};
use vtax_testkit::needs::{Need, program};
use vtax_testkit::{alone, skip};

fn qemu() -> Need {
    program("qemu-system-x86_64")
}

fn start(image: &Image) -> Qemus {
    start_by(Accelerator::Tcg, image)
}

fn start_by(accelerator: Accelerator, image: &Image) -> Qemus {
    Qemus::start(image, 1, accelerator).unwrap_or_else(|error| panic!("{error}"))
}

fn talk(qemus: &Qemus, request: &[u8], expected: &[u8]) {
    let received = ask(qemus, request, expected, Duration::from_secs(60));
    assert!(
        received.ends_with(expected),
        "received {:?}",
        String::from_utf8_lossy(&received)
    );
}

/// Sends `request` until the guest has booted far enough to answer it, or `patience` ends. Each attempt opens a new
/// connection: where a byte came before the guest set up its serial port, QEMU may not read that connection again.
fn ask(qemus: &Qemus, request: &[u8], expected: &[u8], patience: Duration) -> Vec<u8> {
    let deadline = Instant::now() + patience;
    loop {
        let mut received = Vec::new();
        let Some(mut stream) = connect(qemus) else {
            return received;
        };
        // A QEMU that ends because of its KVM closes the connection.
        let is_sent = stream.write_all(request).is_ok();
        // For a guest that never pauses, the amount of output or the clock ends the loop, since a silence never comes.
        let mut buffer = [0; 256];
        while is_sent && let Ok(count @ 1..) = stream.read(&mut buffer) {
            received.extend(&buffer[..count]);
            if received.len() > 1 << 16 || Instant::now() > deadline + Duration::from_secs(1) {
                break;
            }
        }
        if received.ends_with(expected) || !is_sent || Instant::now() > deadline {
            return received;
        }
    }
}

/// A connection to the guest; `None` where its QEMU has ended. The socket exists shortly before QEMU listens on it.
fn connect(qemus: &Qemus) -> Option<UnixStream> {
    let socket = qemus.route().socket(0).unwrap();
    let connected = (0..500).find_map(|_| {
        let stream = UnixStream::connect(&socket);
        if stream.is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
        stream.ok()
    });
    let stream = connected?;
    let silence = Duration::from_millis(500);
    stream.set_read_timeout(Some(silence)).unwrap();
    Some(stream)
}

#[test(needs = [test_all("takes 8 s"), micro_vms(), qemu()])]
fn web_answers_in_qemu_under_kvm() {
    let Some(took) = boots_anything() else {
        skip!("QEMU under this KVM boots no boot sector at all, one of 10 bytes neither");
    };
    let image = Image::shipped("web").unwrap();
    let qemus = start_by(Accelerator::Kvm, &image);
    let expected = b"200 hello from micro VM\r\n";
    let patience = Duration::from_secs(30) + 10 * took;
    let received = ask(&qemus, b"/hi\n", expected, patience);
    assert!(
        received.ends_with(expected),
        "a sector of 10 bytes was up after {took:?}; received {:?}",
        String::from_utf8_lossy(&received)
    );
}

/// The time that QEMU under this host's KVM needs to boot a sector that only writes letters. `None`: it does not boot,
/// and then no other sector can be tested.
fn boots_anything() -> Option<Duration> {
    // mov dx, 0x3f8; mov al, 'x'; again: out dx, al; pause; jmp again
    let mut sector = [0; 512];
    sector[..10].copy_from_slice(&[0xba, 0xf8, 0x03, 0xb0, b'x', 0xee, 0xf3, 0x90, 0xeb, 0xfb]);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    let image = Image::from_bytes("letters", &sector).unwrap();
    let qemus = start_by(Accelerator::Kvm, &image);
    let began = Instant::now();
    let letters = ask(&qemus, b"", b"x", Duration::from_secs(60));
    (!letters.is_empty()).then(|| began.elapsed())
}

#[test(needs = [test_all("takes 13 s"), qemu()])]
fn web_answers_by_path_in_qemu() {
    let qemus = start(&Image::shipped("web").unwrap());
    talk(&qemus, b"/hi\n", b"200 hello from micro VM\r\n");
    talk(&qemus, b"/about\n", b"200 one boot sector of 512 bytes\r\n");
    talk(&qemus, b"/other\n", b"404 no such page\r\n");
    // A single request is answered correctly: a spurious interrupt adds nothing to the path.
    let expected = b"200 one boot sector of 512 bytes\r\n";
    for _ in 0..20 {
        let received = ask(&qemus, b"/about\n", expected, Duration::ZERO);
        assert_eq!(
            String::from_utf8_lossy(&received),
            String::from_utf8_lossy(expected)
        );
    }
}

#[test(needs = [qemu()])]
fn echo_echoes_in_qemu() {
    let qemus = start(&Image::shipped("echo").unwrap());
    talk(&qemus, b"hello, guest", b"hello, guest");
}

fn processor_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1;
    fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|f| f.parse::<u64>().unwrap())
        .sum()
}

/// Processor ticks that QEMU takes in two seconds once each guest is up, all at the same time, so that other load on
/// the host affects all of them.
fn costs<const N: usize>(images: [&Image; N]) -> [u64; N] {
    // Tests that use much processor time at the same time would disturb each other's measurements.
    let _alone = alone("processors");
    let qemus = images.map(start);
    std::thread::sleep(Duration::from_secs(5));
    let ticks = || {
        let each = qemus
            .iter()
            .map(|q| processor_ticks(q.pids().next().unwrap()));
        each.collect::<Vec<u64>>()
    };
    let before = ticks();
    std::thread::sleep(Duration::from_secs(2));
    let after = ticks();
    std::array::from_fn(|i| after[i] - before[i])
}

/// Repeats a check up to four times, because a busy host may starve a guest that needs much processor time.
fn once(mut holds: impl FnMut() -> Result<(), String>) {
    let mut last = String::new();
    for _ in 0..4 {
        match holds() {
            Ok(()) => return,
            Err(what) => last = what,
        }
    }
    panic!("{last}");
}

#[test(needs = [test_all("takes 9 s"), qemu()])]
fn idle_guests_sleep_and_spin_spins_in_qemu() {
    let image = |name| Image::shipped(name).unwrap();
    once(|| {
        let images = [&image("idle"), &image("idle-pit"), &image("spin")];
        let [idle, ticking, spinning] = costs(images);
        (2 * idle < spinning && 2 * ticking < spinning)
            .then_some(())
            .ok_or(format!(
                "ticks: idle {idle}, idle-pit {ticking}, spin {spinning}"
            ))
    });
}

#[test(needs = [test_all("takes 7 s"), qemu()])]
fn a_duty_profile_is_busier_than_idle_and_less_than_spin_in_qemu() {
    let profile = Profile::parse("half", "profile = 'duty'\nshare = 0.5\nperiod_ms = 100").unwrap();
    let image =
        assemble_source("half", &profile.to_assembly()).unwrap_or_else(|reason| skip!("{reason}"));
    let (idle, spin) = (
        Image::shipped("idle").unwrap(),
        Image::shipped("spin").unwrap(),
    );
    once(|| {
        let [idle, half, spinning] = costs([&idle, &image, &spin]);
        (idle < half && half < spinning)
            .then_some(())
            .ok_or(format!("ticks: idle {idle}, half {half}, spin {spinning}"))
    });
}
