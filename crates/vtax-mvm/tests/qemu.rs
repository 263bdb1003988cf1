//! The shipped images boot unchanged in stock QEMU and say there what they say here.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use vtax_mvm::Error;
use vtax_mvm::front::router::Route;
use vtax_mvm::image::{Image, Profile, assemble_source};
use vtax_mvm::tcg::{Accelerator, Qemus};

fn start(image: &Image) -> Option<Qemus> {
    match Qemus::start(image, 1, Accelerator::Tcg) {
        Ok(qemus) => Some(qemus),
        Err(reason @ Error::Program { .. }) => {
            eprintln!("SKIPPED: {reason}");
            None
        }
        Err(other) => panic!("{other}"),
    }
}

/// Sends `request` until the guest has booted far enough to answer it.
fn talk(qemus: &Qemus, request: &[u8], expected: &[u8]) {
    let mut stream = UnixStream::connect(qemus.route().socket(0).unwrap()).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut received = Vec::new();
    while !received.ends_with(expected) {
        assert!(
            Instant::now() < deadline,
            "received {:?}",
            String::from_utf8_lossy(&received)
        );
        stream.write_all(request).unwrap();
        let mut buffer = [0; 256];
        while let Ok(count) = stream.read(&mut buffer) {
            if count == 0 {
                break;
            }
            received.extend(&buffer[..count]);
        }
    }
}

#[test]
fn web_answers_by_path_in_qemu() {
    let Some(qemus) = start(&Image::shipped("web").unwrap()) else {
        return;
    };
    talk(&qemus, b"/hi\n", b"200 hello from micro VM\r\n");
    talk(&qemus, b"/about\n", b"200 one boot sector of 512 bytes\r\n");
    talk(&qemus, b"/other\n", b"404 no such page\r\n");
}

#[test]
fn echo_echoes_in_qemu() {
    let Some(qemus) = start(&Image::shipped("echo").unwrap()) else {
        return;
    };
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

/// Processor ticks that QEMU takes in two seconds once the guest is up.
fn cost(image: &Image) -> Option<u64> {
    let qemus = start(image)?;
    std::thread::sleep(Duration::from_secs(5));
    let pid = qemus.pids().next().unwrap();
    let before = processor_ticks(pid);
    std::thread::sleep(Duration::from_secs(2));
    Some(processor_ticks(pid) - before)
}

#[test]
fn idle_guests_sleep_and_spin_spins_in_qemu() {
    let Some(idle) = cost(&Image::shipped("idle").unwrap()) else {
        return;
    };
    let Some(ticking) = cost(&Image::shipped("idle-pit").unwrap()) else {
        return;
    };
    let Some(spinning) = cost(&Image::shipped("spin").unwrap()) else {
        return;
    };
    assert!(
        idle < spinning && ticking < spinning,
        "ticks: idle {idle}, idle-pit {ticking}, spin {spinning}"
    );
}

#[test]
fn a_duty_profile_is_busier_than_idle_and_less_than_spin_in_qemu() {
    let profile = Profile::parse("half", "profile = 'duty'\nshare = 0.5\nperiod_ms = 100").unwrap();
    let image = match assemble_source("half", &profile.to_assembly()) {
        Ok(image) => image,
        Err(reason) => {
            eprintln!("SKIPPED: {reason}");
            return;
        }
    };
    let Some(half) = cost(&image) else { return };
    let Some(idle) = cost(&Image::shipped("idle").unwrap()) else {
        return;
    };
    let Some(spinning) = cost(&Image::shipped("spin").unwrap()) else {
        return;
    };
    assert!(
        idle < half && half < spinning,
        "ticks: idle {idle}, half {half}, spin {spinning}"
    );
}
