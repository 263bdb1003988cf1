// SPDX-License-Identifier: Apache-2.0
//! The knee of a real server with a known capacity, with a load generator that has its time and with one that has not.

use crate::generators::{ok, open_loop, server, with, words};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use vtax_core::Source;
use vtax_host::settings::Settings;
use vtax_load::workload::{Timing, WorkloadResult, by_kind};
use vtax_results::stats::{Knee, knee};

/// The number of requests that the server answers in a second.
const CAPACITY: f64 = 500.0;
/// The longest 99th percentile of latency that keeps the objective, in seconds. At 508 requests/s the requests of six
/// seconds queue for up to 96 ms.
const LONGEST: f64 = 0.06;

/// A server with one slot every 2 ms. A request is answered at its slot. Slots are given in advance, so a thread that
/// wakes late delays its own answer only.
fn paced_server() -> SocketAddr {
    let slot = Duration::from_secs_f64(1.0 / CAPACITY);
    let next = Mutex::new(Instant::now());
    server(move |_, socket| {
        let own = {
            let mut next = next.lock().unwrap();
            *next = (*next + slot).max(Instant::now() + slot);
            *next
        };
        std::thread::sleep(own.saturating_duration_since(Instant::now()));
        ok(socket)
    })
}

/// Drives a level in a process of its own, which `disturb` has meanwhile.
fn level(
    address: SocketAddr,
    rate: f64,
    seconds: f64,
    disturb: impl Fn(&mut Child),
) -> WorkloadResult {
    let arguments = with(open_loop(address), |it| {
        it.connections = 100;
        it.rate = rate;
        it.duration = seconds;
    });
    let mut load = Command::new(std::env::current_exe().unwrap())
        .args(["load", "http"])
        .args(words(&arguments))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    disturb(&mut load);
    let output = load.wait_with_output().unwrap();
    let timing = Timing {
        warmup: Duration::ZERO,
        duration: Duration::from_secs_f64(seconds),
    };
    let workload = by_kind("http-rate").unwrap();
    let parsed = workload.parse(&output.stdout, &Settings::default(), timing);
    parsed.unwrap()
}

/// The verdict on a level by its record; `None` where the load generator was late.
fn judged(result: &WorkloadResult) -> Option<(f64, bool)> {
    let is_late = |late: &vtax_load::workload::Lateness| late.is_suspect(Source::Measured, true);
    if result.late.as_ref().is_some_and(is_late) {
        return None;
    }
    let value = |name: &str| result.metrics[name].quantity.value;
    let is_kept = value("latency.p99") <= LONGEST && result.unreached.is_none();
    Some((value("offered"), is_kept))
}

#[test(needs = [test_all("takes 20 s")])]
fn the_knee_of_a_server_of_500_a_second_is_500_unless_the_generator_was_late() {
    let address = paced_server();
    let mut is_late = false;
    let mut runs = Vec::new();
    for rate in [492.0, 508.0] {
        // As in a ramp, a level that broke the objective is repeated.
        for _ in 0..2 {
            let run = judged(&level(address, rate, 6.0, |_| {}));
            is_late |= run.is_none();
            runs.extend(run);
            if run.is_some_and(|(_, is_kept)| is_kept) {
                break;
            }
        }
    }
    let found = knee(&runs);
    let close = |end: f64| (end / CAPACITY - 1.0).abs() <= 0.02;
    let is_right = |found: Knee| close(found.low) && found.high.is_some_and(close);
    assert!(
        found.is_some_and(is_right) || is_late,
        "{found:?} of {runs:?}"
    );
}

#[test(needs = [test_all("takes 3 s")])]
fn a_load_generator_that_is_stopped_half_of_the_time_was_late_at_every_level_and_no_knee_is_named()
{
    let address = paced_server();
    let half = Duration::from_millis(150);
    let mut runs = Vec::new();
    for rate in [100.0, 300.0] {
        let result = level(address, rate, 1.0, |load| {
            let signal = |name: &str| {
                let pid = load.id().to_string();
                // A process that has ended takes no signal.
                let kill = format!("kill {name} {pid}");
                let _ = Command::new("sh").args(["-c", &kill]).status();
                std::thread::sleep(half);
            };
            for _ in 0..5 {
                signal("-STOP");
                signal("-CONT");
            }
        });
        let late = result.late.as_ref().unwrap();
        assert!(
            late.text.contains("the load generator itself sent late"),
            "{}",
            late.text
        );
        runs.extend(judged(&result));
    }
    assert_eq!(knee(&runs), None);
}
