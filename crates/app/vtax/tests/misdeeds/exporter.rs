// SPDX-License-Identifier: Apache-2.0
//! Misbehaving clients of the exporter.

use super::{Subject, any, bytes, commit};
use crate::guest::{self, Guest, eventually, get};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};
use vtax_results::stats::Random;

/// The requests of misbehaving clients.
pub const REQUESTS: [&str; 16] = [
    "GET /metrics HTTP/1.1\r\n",
    "GET /metrics HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "GET /metrics HTTP/9.9\r\n\r\n",
    "GET  HTTP/1.1\r\n\r\n",
    "GET /../../etc/shadow HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET /%2e%2e/%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n",
    "POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\nx",
    "GET /metrics HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    "GET /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "\x16\x03\x01\x02\x00\x01\x00\x01",
    "\r\n\r\n\r\n\r\n",
    "GET /metrics HTTP/1.1\nHost: localhost\n\n",
    "OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET /metrics\r\n\r\n",
];

/// Misbehaves as an HTTP client; some connections stay open in `held`.
pub fn speak(random: &mut Random, address: &str, held: &mut Vec<TcpStream>) {
    let Ok(mut stream) = TcpStream::connect(address) else {
        return;
    };
    stream
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    stream
        .set_write_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    let wrote = match random.below(8) {
        0 => stream.write_all(&bytes(random, 2048)),
        1 => {
            // A request whose head has no end.
            let line = format!(
                "X-{}: {}\r\n",
                random.below(1000),
                "x".repeat(random.below(500))
            );
            let whole = format!(
                "GET /metrics HTTP/1.1\r\n{}",
                line.repeat(random.below(500))
            );
            stream.write_all(whole.as_bytes())
        }
        2 => stream.write_all(
            "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
                .repeat(random.below(100))
                .as_bytes(),
        ),
        3 => {
            let whole = any(random, &REQUESTS);
            let cut = random.below(whole.len());
            stream.write_all(whole.as_bytes().get(..cut).unwrap())
        }
        4 => {
            let mut whole =
                b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n".to_vec();
            for _ in 0..random.below(8) {
                let place = random.below(whole.len());
                whole[place] = u8::try_from(random.below(256)).unwrap();
            }
            stream.write_all(&whole)
        }
        _ => stream.write_all(any(random, &REQUESTS).as_bytes()),
    };
    if wrote.is_err() {
        return;
    }
    match random.below(4) {
        // The client closes without reading, half closes, closes after a part of the response, or stays.
        0 => {}
        1 => {
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.read(&mut [0; 512]);
        }
        2 => {
            let _ = stream.read(&mut [0; 16]);
        }
        _ => held.push(stream),
    }
    if held.len() > 40 {
        held.clear();
    }
}

/// The time that a process poses as a guest: at least two intervals contain it.
const PRETENDED: Duration = Duration::from_millis(1200);

#[test(needs = [test_all("takes 21 s")])]
fn a_thousand_misdeeds_keep_no_scrape_out() {
    let name = guest::unique("misdeeds");
    let _guest = Guest::start(&name);
    let start = || guest::exporter(&["--interval", "500ms", "--method", "counted"]);
    let ((child, address), (control, beside)) = (start(), start());
    for address in [&address, &beside] {
        eventually("the first scrape", || get(address, "/metrics", ""));
    }
    let scraped = address.clone();
    let scrape = move || match get(&scraped, "/metrics", "")? {
        text if text.contains("vtax_") => Ok(()),
        text => Err(text),
    };
    let mut held = Vec::new();
    let mut pretenders: Vec<(Instant, Guest)> = Vec::new();
    let subject = Subject {
        process: child.0.id(),
        control: Some(control.0.id()),
    };
    commit(subject, 50, scrape, |random| {
        let Some(random) = random else {
            held.clear();
            pretenders.clear();
            return;
        };
        if random.below(50) == 0 {
            // A process that poses as a guest, with a random name.
            let name = String::from_utf8_lossy(&bytes(random, 300)).replace('\0', "");
            pretenders.push((Instant::now(), Guest::start(&name)));
        }
        pretenders.retain(|(since, _)| since.elapsed() < PRETENDED);
        speak(random, &address, &mut held);
        if random.below(100) == 0 {
            held.clear();
            // The control's responses grow with the guests, too. Whether one comes in time is not judged.
            let _ = get(&beside, "/metrics", "");
        }
    });
}
