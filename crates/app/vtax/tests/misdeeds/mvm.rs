// SPDX-License-Identifier: Apache-2.0
//! Misbehaving clients of micro VMs, and guests that execute code of untrusted senders.

use super::exporter::speak;
use super::{Subject, bytes, commit};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use vtax_mvm::image::assemble_source;
use vtax_mvm::machine::kvm::Host;
use vtax_testkit::skip;

const GUESTS: usize = 40;

/// 255, then code that fills all memory but its own and the echo's: `rep stosw` to 0x1000 and to 0x7e00; the
/// registers that the interrupt handler has pushed; `iret`.
const FILL: [u8; 65] = {
    let mut fill = [0; 65];
    let code = [
        0xFF, 0xFC, 0xB8, 0x5A, 0xA5, 0xBF, 0x00, 0x10, 0xB9, 0x80, 0x35, 0xF3, 0xAB, 0xBF, 0x00,
        0x7E, 0xB9, 0x00, 0x41, 0xF3, 0xAB, 0x5F, 0x5A, 0x58, 0xCF,
    ];
    let mut place = 0;
    while place < code.len() {
        fill[place] = code[place];
        place += 1;
    }
    fill
};

/// Connects to a guest's serial port.
fn serial(socket: &Path, guest: usize) -> std::io::Result<UnixStream> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.set_write_timeout(Some(Duration::from_millis(50)))?;
    stream.write_all(format!("CONNECT {guest}\n").as_bytes())?;
    let mut ok = vec![0; format!("OK {guest}\n").len()];
    stream.read_exact(&mut ok)?;
    Ok(stream)
}

#[test(needs = [test_all("takes 14 s"), Need::from(Host::open().map(drop).map_err(|reason| reason.to_string()))])]
fn a_thousand_misdeeds_keep_no_guest_from_its_answers() {
    let source = include_str!("stranger.asm");
    if let Err(reason) = assemble_source("stranger.asm", source) {
        skip!("{reason}");
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("stranger.asm");
    let socket = directory.path().join("serial");
    std::fs::write(&image, source).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_vtax"))
        .args(["mvm", "run", "--listen", "127.0.0.1:0", "--image"])
        .arg(&image)
        .args(["--guests", &GUESTS.to_string(), "--socket"])
        .arg(&socket)
        .stdout(Stdio::piped())
        .spawn()
        .map(crate::guest::Running)
        .unwrap();
    let mut printed = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let line = printed
        .by_ref()
        .map(Result::unwrap)
        .find(|line| line.contains("http://"));
    let line = line.unwrap();
    let address = line
        .split("http://")
        .nth(1)
        .unwrap()
        .split('/')
        .next()
        .unwrap()
        .to_owned();
    std::thread::spawn(move || printed.for_each(drop));

    // Writes of a guest reach its own memory only: each guest fills all of its memory.
    for guest in 1..GUESTS {
        let mut stream = serial(&socket, guest).unwrap();
        stream.write_all(&FILL).unwrap();
        let mut answer = [0];
        stream
            .write_all(b"x")
            .and_then(|()| stream.read_exact(&mut answer))
            .unwrap();
        assert_eq!(answer, *b"x", "guest {guest} filled its memory and goes on");
    }

    let mut neighbour = serial(&socket, 0).unwrap();
    let mut turn = 0_u8;
    let asks = move || {
        turn = (turn + 1) % 100;
        let mut answer = [255];
        neighbour
            .write_all(&[turn])
            .and_then(|()| neighbour.read_exact(&mut answer))
            .map_err(|cause| cause.to_string())?;
        if answer == [turn] {
            Ok(())
        } else {
            Err(format!("{answer:?} for {turn}"))
        }
    };
    let (mut held, mut lines): (Vec<TcpStream>, Vec<UnixStream>) = (Vec::new(), Vec::new());
    let subject = Subject {
        process: child.0.id(),
        control: None,
    };
    commit(subject, 50, asks, |random| {
        let Some(random) = random else {
            lines.clear();
            held.clear();
            return;
        };
        let other = 1 + random.below(GUESTS - 1);
        match random.below(8) {
            0 => {
                // The guest executes it.
                let code: Vec<u8> = (0..64)
                    .map(|_| u8::try_from(random.below(256)).unwrap())
                    .collect();
                if let Ok(mut stream) = serial(&socket, other) {
                    let _ = stream.write_all(&[&[255], &code[..]].concat());
                    lines.push(stream);
                }
            }
            1 => {
                // The output is not read.
                if let Ok(mut stream) = serial(&socket, other) {
                    let _ = stream.write_all(&vec![b'x'; random.below(1 << 16)]);
                    lines.push(stream);
                }
            }
            2 => {
                if let Ok(mut stream) = UnixStream::connect(&socket) {
                    stream
                        .set_write_timeout(Some(Duration::from_millis(50)))
                        .unwrap();
                    let _ = stream.write_all(&bytes(random, 4096));
                    lines.push(stream);
                }
            }
            3 => {
                if let Ok(mut stream) = UnixStream::connect(&socket) {
                    let guest = 1 + (random.bits() >> (1 + random.below(63)));
                    let _ =
                        stream.write_all(format!("CONNECT {guest}\nGET / HTTP/1.1\n").as_bytes());
                }
            }
            4 => {
                let path = format!("/vm/{}/", 1 + (random.bits() >> (1 + random.below(63))));
                if let Ok(mut stream) = TcpStream::connect(&address) {
                    let _ = stream.write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes());
                    held.push(stream);
                }
            }
            _ => speak(random, &address, &mut held),
        }
        if lines.len() > 40 || random.below(100) == 0 {
            lines.clear();
            held.clear();
        }
    });
}
