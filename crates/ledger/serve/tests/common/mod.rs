// SPDX-License-Identifier: Apache-2.0
//! Helpers of the tests of pushing.

use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Repeats an attempt until it succeeds; panics with the last failure after a minute.
pub fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(cause) => assert!(Instant::now() < deadline, "{what}: {cause}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Reads a request: its head without the last empty line, and its body.
pub fn request(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut part = vec![0; 65536];
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let lower = head.to_ascii_lowercase();
            let length = lower.split("content-length: ").nth(1)?;
            let length: usize = length.lines().next()?.trim().parse().ok()?;
            if bytes.len() >= end + 4 + length {
                return Some((head, bytes.split_off(end + 4)));
            }
        }
        match stream.read(&mut part).ok()? {
            0 => return None,
            read => bytes.extend_from_slice(&part[..read]),
        }
    }
}
