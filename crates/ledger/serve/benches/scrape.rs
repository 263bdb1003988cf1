// SPDX-License-Identifier: Apache-2.0
//! Duration of a scrape of 1,000 guests with every stage of a VM, over loopback, from the connection to the last byte.
//! The guests exist in memory only. The benchmarks of charging measure the discovery and reading of real guests.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a benchmark that cannot be set up should stop"
)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vtax_charge::fake::Host;
use vtax_inventory::Platform;
use vtax_serve::exporter::Shared;
use vtax_serve::roster::Roster;
use vtax_serve::{Address, Own};

const GUESTS: u32 = 1000;
const SCRAPES: usize = 200;
const TARGET: Duration = Duration::from_millis(50);

fn scrape(address: &Address, accept: &str) -> (Duration, String) {
    let Address::Tcp(address) = address else {
        panic!("listens on TCP");
    };
    let began = Instant::now();
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET /metrics HTTP/1.1\r\nHost: bench\r\nAccept: {accept}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    (began.elapsed(), answer)
}

fn main() {
    let mut host = Host::default();
    for number in 1..=GUESTS {
        host.start_named(number, &format!("tenant-{number:04}-web"), Platform::Qemu);
    }
    let mut roster = Roster::new(2 * GUESTS as usize);
    let snapshot = host.pass(1_234_567);
    let began = Instant::now();
    let listing = roster.update(&snapshot);
    let shared = Arc::new(Shared::default());
    shared.show(snapshot, listing, Own::default(), Duration::from_secs(3600));
    let listed = began.elapsed();
    let server = shared
        .serve(&[Address::Tcp(([127, 0, 0, 1], 0).into())], None)
        .unwrap();
    let address = server.addresses().first().unwrap();
    println!(
        "listing {GUESTS} guests after a pass: {:.2} ms",
        listed.as_secs_f64() * 1e3
    );
    let mut met = true;
    for (name, accept) in [
        ("OpenMetrics", "application/openmetrics-text;version=1.0.0"),
        ("text 0.0.4", "text/plain"),
    ] {
        let mut times = Vec::with_capacity(SCRAPES);
        let mut last = String::new();
        for _ in 0..SCRAPES {
            let (time, answer) = scrape(address, accept);
            times.push(time);
            last = answer;
        }
        assert_eq!(last.matches("vtax_guest_info{").count(), GUESTS as usize);
        times.sort_unstable();
        let (median, p99) = (times[SCRAPES / 2], times[SCRAPES * 99 / 100]);
        met &= p99 <= TARGET;
        let samples = last
            .lines()
            .filter(|line| line.starts_with("vtax_"))
            .count();
        println!(
            "{name}: {samples} samples, {:.2} MB: median {:.2} ms, 99 % {:.2} ms, worst {:.2} ms (n = {SCRAPES})",
            last.len() as f64 / 1e6,
            median.as_secs_f64() * 1e3,
            p99.as_secs_f64() * 1e3,
            times[SCRAPES - 1].as_secs_f64() * 1e3,
        );
    }
    let verdict = if met { "met" } else { "MISSED" };
    println!(
        "target: 99 % of scrapes within {} ms: {verdict}",
        TARGET.as_millis()
    );
}
