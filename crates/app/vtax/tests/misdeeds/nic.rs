// SPDX-License-Identifier: Apache-2.0
//! Misbehaving front ends and drivers of the virtual NIC.

use super::{Subject, any, bytes, commit};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use vtax_nic::features::Features;
use vtax_nic::hold::Mode;
use vtax_nic_driver::backend::Backend;
use vtax_nic_driver::descriptor::Descriptor;
use vtax_nic_driver::hostile::{BadMessage, DriverFault};
use vtax_nic_driver::nic::{Layout, Nic, Options};
use vtax_nic_driver::session::{Session, message};
use vtax_results::stats::Random;

/// The frames of the well-behaved port in a second.
const RATE: u32 = 500;

fn frame(number: u32) -> Vec<u8> {
    let mut frame = vec![7; 64];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb6]);
    frame[14..18].copy_from_slice(&number.to_ne_bytes());
    frame
}

fn options(random: &mut Random) -> Options {
    let mut options = Options {
        ring_size: any(random, &[64, 256, 1024]),
        queue_pairs: any(random, &[1, 1, 1, 1, 1, 1, 1, 2]),
        layout: any(random, &[Layout::Single, Layout::Chained, Layout::Indirect]),
        ..Options::default()
    };
    if random.below(2) == 0 {
        options.features = options.features.with(Features::RING_PACKED);
    }
    options
}

/// Commits a misdeed of a driver or a front end, on a port that is set up.
fn misbehave(random: &mut Random, nic: &mut Nic, peer: Option<&mut Nic>) {
    let kind = random.below(6);
    if let Some(peer) = peer {
        peer.send(0, &frame(0));
    }
    match kind {
        0 | 1 => any(random, &DriverFault::ALL).inject(nic),
        2 => {
            // The session may have ended.
            let _ = any(random, &BadMessage::ALL).send(nic);
        }
        3 => {
            // A ring with random descriptors.
            let memory = &nic.memory;
            for pair in &mut nic.pairs {
                for queue in [&mut pair.tx, &mut pair.rx] {
                    for index in 0..queue.ring.size {
                        let near = queue.buffer(index).wrapping_add(random.bits() % 8192);
                        let bits = random.below(33);
                        let len = u32::try_from(random.below(1 << bits)).unwrap_or(u32::MAX);
                        let descriptor = Descriptor {
                            address: any(random, &[near, near, near, u64::MAX, 0]),
                            len,
                            flags: u16::try_from(random.below(8)).unwrap(),
                            next: u16::try_from(random.below(usize::from(queue.ring.size) + 4))
                                .unwrap(),
                        };
                        queue.ring.describe(memory, index, descriptor);
                    }
                    for _ in 0..random.below(usize::from(queue.ring.size)) {
                        let head =
                            u16::try_from(random.below(usize::from(queue.ring.size) + 1)).unwrap();
                        queue.ring.offer(memory, head);
                    }
                    queue.ring.publish(memory);
                    queue.kick();
                }
            }
        }
        4 => {
            for _ in 0..random.below(20_000) {
                nic.pairs[0].tx.kick();
                nic.pairs[0].rx.kick();
            }
        }
        _ => {
            for _ in 0..random.below(30) {
                let _ = nic.share_memory();
                nic.send(0, &frame(0));
            }
        }
    }
}

/// Sends nonsense on the socket of a port.
fn speak(random: &mut Random, socket: &Path) {
    let Ok(session) = Session::connect(socket) else {
        return;
    };
    for _ in 0..1 + random.below(20) {
        let request = match random.below(4) {
            0 => u32::try_from(random.below(1 << 32)).unwrap_or(u32::MAX),
            _ => u32::try_from(random.below(48)).unwrap(),
        };
        let mut sent = message(
            request,
            u32::try_from(random.below(16)).unwrap(),
            &bytes(random, 300),
        );
        if random.below(4) == 0 {
            let place = random.below(sent.len());
            sent[place] = u8::try_from(random.below(256)).unwrap();
        }
        let files: Vec<OwnedFd> = (0..random.below(9))
            .map(|_| match random.below(2) {
                0 => eventfd(0, EventfdFlags::CLOEXEC).unwrap(),
                _ => memfd_create("misdeed", MemfdFlags::CLOEXEC).unwrap(),
            })
            .collect();
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        if session.send(&sent, &files).is_err() {
            return;
        }
    }
}

#[test(needs = [test_all("takes 9 s")])]
fn a_thousand_misdeeds_lose_no_frame_of_another_link() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("vtax-nic");
    let script = format!(
        "#!/bin/sh\nexec '{}' nic \"$@\"\n",
        env!("CARGO_BIN_EXE_vtax")
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let backend =
        Backend::start(&program, directory.path(), 2, (Mode::Adaptive, 1_000), None).unwrap();
    let process = backend.id();
    let [mut from, mut to] =
        ["a1", "b1"].map(|port| backend.connect(port, Options::default()).unwrap());

    let mut number = 0;
    let asks = move || {
        number += 1;
        from.send(0, &frame(number));
        let sent = Instant::now();
        let mut arrived = false;
        while !arrived && sent.elapsed() < Duration::from_secs(2) {
            to.receive(0, 64, |received| arrived |= received == frame(number));
            if !arrived {
                to.wait(0, Duration::from_millis(20));
            }
        }
        if arrived {
            Ok(())
        } else {
            Err(format!("frame {number}"))
        }
    };
    let api = directory.path().join("api");
    let mut held = Vec::new();
    let (mut tried, mut connected) = (0, 0);
    let subject = Subject {
        process,
        control: None,
    };
    commit(subject, RATE, asks, |random| {
        let Some(random) = random else {
            held.clear();
            return;
        };
        match random.below(10) {
            0 => {
                if let Ok(mut stream) = UnixStream::connect(&api) {
                    stream
                        .set_write_timeout(Some(Duration::from_millis(50)))
                        .unwrap();
                    let _ = stream.write_all(&bytes(random, 4096));
                    if random.below(2) == 0 {
                        held.push(stream);
                    }
                }
            }
            1 | 2 => {
                let port = any(random, &["a0", "b0"]);
                speak(random, &directory.path().join(port));
            }
            _ => {
                let peer = options(random);
                let mut peer = backend.connect("b0", peer).ok();
                // A port that still releases its earlier session accepts the next one shortly afterwards.
                tried += 1;
                if let Ok(mut nic) = backend.connect("a0", options(random)) {
                    connected += 1;
                    misbehave(random, &mut nic, peer.as_mut());
                }
            }
        }
        if held.len() > 40 || random.below(100) == 0 {
            held.clear();
        }
    });
    // Most connections must succeed, or the test shows nothing.
    assert!(connected * 2 > tried, "{connected} of {tried} got in");
}
