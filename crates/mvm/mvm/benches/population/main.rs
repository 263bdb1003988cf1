// SPDX-License-Identifier: Apache-2.0
//! Measures populations: boot rate, bytes per guest, idle processor time and response times, beside bare KVM and QEMU.
//!
//! `cargo bench -p vtax-mvm --bench population -- PART...`, where a part is `alone`,
//! `parked COUNT`, `live COUNT`, `bare COUNT`, `qemu COUNT` or `barrier`; each prints a table. Without parts:
//! a small run of all. `IDLE_SECONDS` (10) is the duration of the measurement of idle processor time, `PER_PROCESS` the
//! number of live guests in a process, and `BOOT_ONLY=1` leaves out all but boots.

#![allow(clippy::expect_used, reason = "a bench that cannot be set up ends")]

mod bare;
mod barrier;
mod crowd;
mod load;
mod qemu;
mod table;

use std::time::{Duration, Instant};
use table::{micros, row};
use vtax_mvm::Result;
use vtax_mvm::image::Image;
use vtax_mvm::machine::kvm::{Arena, Host, Slot, Tenancy};
use vtax_mvm::machine::{Clock, devices::Devices, run};

const SMALL_RUN: [&str; 9] = [
    "alone", "parked", "10000", "live", "2000", "bare", "2000", "qemu", "4",
];

fn main() {
    let given: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with("--"))
        .collect();
    let words: Vec<&str> = if given.is_empty() {
        SMALL_RUN.to_vec()
    } else {
        given.iter().map(String::as_str).collect()
    };
    let mut words = words.into_iter();
    let mut ours = None;
    while let Some(part) = words.next() {
        let mut count = || words.next().and_then(|n| n.parse().ok()).unwrap_or(1000);
        let outcome = match part {
            "alone" => alone(),
            "parked" => crowd::parked(count()).map(|cost| ours = ours.or(Some(cost))),
            "live" => crowd::live(count()).map(|cost| ours = Some(cost)),
            "bare" => bare::measure(count(), ours),
            // A child process of `bare`.
            "bare-shard" => bare::hold(count()),
            "barrier" => barrier::measure(),
            // The second process of `barrier`.
            "barrier-with" => barrier::other(true),
            "barrier-without" => barrier::other(false),
            "qemu" => qemu::measure(count(), ours),
            other => {
                eprintln!("unknown part {other}: alone, parked N, live N, bare N, qemu N, barrier");
                std::process::exit(2);
            }
        };
        if let Err(cause) = outcome {
            eprintln!("{cause}");
            std::process::exit(1);
        }
    }
}

/// One guest without any front: the cost of a serial request alone.
fn alone() -> Result<()> {
    println!("# one guest, no front ({})", Host::backend());
    let image = Image::shipped("web").expect("shipped");
    let host = Host::open()?;
    let arena = Arena::new(1)?;
    let mut slot = Slot::new(&host, &arena, 0, &image, Tenancy::One)?;
    let (mut devices, mut clock) = (Devices::default(), Clock::host(0));
    let mut output = Vec::new();
    run(&mut slot, &mut devices, &mut clock, None, &mut output, 4096)?;
    let mut times: Vec<Duration> = (0..5000)
        .map(|_| {
            output.clear();
            let start = Instant::now();
            devices.receive(b"/hi\n");
            let _ = run(&mut slot, &mut devices, &mut clock, None, &mut output, 4096);
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    assert_eq!(output, b"200 hello from micro VM\r\n");
    row(
        "serial request, 4 bytes in, 25 out, p50",
        format!("{:.1} µs", micros(times[2500])),
        "≤ 130 µs",
    );
    row(
        "serial request, p99",
        format!("{:.1} µs", micros(times[4950])),
        "",
    );
    Ok(())
}
