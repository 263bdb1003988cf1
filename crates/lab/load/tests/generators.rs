// SPDX-License-Identifier: Apache-2.0
//! The load generators, against servers that stall, refuse and close.

use crate::host::TIMING;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use vtax_host::settings::Settings;
use vtax_load::workload::by_kind;
use vtax_load::{generator, http};

// The HTTP load generator against servers that misbehave.

/// Serves `answer(n, socket)` for the n-th request, a thread for each connection; false closes.
pub fn server(answer: impl Fn(u64, &mut TcpStream) -> bool + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    let count = Arc::new(AtomicU64::new(0));
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            socket.set_nodelay(true).unwrap();
            let (answer, count) = (Arc::clone(&answer), Arc::clone(&count));
            std::thread::spawn(move || {
                let mut seen = Vec::new();
                let mut buffer = [0; 4096];
                while let Ok(got @ 1..) = socket.read(&mut buffer) {
                    seen.extend_from_slice(&buffer[..got]);
                    if seen.ends_with(b"\r\n\r\n") {
                        seen.clear();
                        if !answer(count.fetch_add(1, Ordering::Relaxed), &mut socket) {
                            return;
                        }
                    }
                }
            });
        }
    });
    address
}

pub fn ok(socket: &mut TcpStream) -> bool {
    socket
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        .is_ok()
}

pub fn open_loop(address: SocketAddr) -> http::Arguments {
    http::Arguments {
        common: generator::Arguments {
            address,
            connections: 4,
            warmup: 0.0,
            duration: 1.0,
            rate: 100.0,
            ramp: Vec::new(),
            settle: None,
            arrival: generator::Arrival::Constant,
            seed: 1,
            timeout: 5.0,
        },
        path: "/".to_owned(),
        closed: false,
        downloads: None,
        close: false,
    }
}

fn closed_loop(address: SocketAddr, downloads: u64) -> http::Arguments {
    http::Arguments {
        closed: true,
        downloads: Some(downloads),
        ..open_loop(address)
    }
}

/// The words after `vtax load http` of an open loop with constant arrivals.
pub fn words(arguments: &http::Arguments) -> Vec<String> {
    let generator::Arguments {
        address,
        connections,
        warmup,
        duration,
        timeout,
        rate,
        ramp,
        ..
    } = &arguments.common;
    let rates: Vec<String> = ramp.iter().map(f64::to_string).collect();
    let rate = if rates.is_empty() {
        format!("--rate {rate}")
    } else {
        format!("--ramp {}", rates.join(","))
    };
    let line = format!(
        "--address {address} --connections {connections} --warmup {warmup}s --duration {duration}s --timeout {timeout}s \
         {rate} --arrival constant --path {}",
        arguments.path
    );
    line.split(' ').map(str::to_owned).collect()
}

/// Returns the arguments with some of the common ones changed.
pub fn with(
    mut arguments: http::Arguments,
    change: impl Fn(&mut generator::Arguments),
) -> http::Arguments {
    change(&mut arguments.common);
    arguments
}

#[test(needs = [root()])]
fn a_stall_of_the_server_shows_in_every_request_that_was_due_meanwhile() {
    // Regression: coordinated omission. With one thread per connection and four connections, latencies from the time of
    // sending show the stall four times in 2000 requests.
    let begun = OnceLock::new();
    let stalled = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&stalled);
    let address = server(move |_, socket| {
        let begun = begun.get_or_init(Instant::now);
        let (from, to) = (Duration::from_millis(600), Duration::from_millis(1100));
        if (from..to).contains(&begun.elapsed()) {
            count.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(to.saturating_sub(begun.elapsed()));
        }
        ok(socket)
    });
    let arguments = with(open_loop(address), |it| {
        it.rate = 1000.0;
        it.duration = 2.0;
    });
    let report = http::run(&arguments).unwrap();
    assert!(stalled.load(Ordering::Relaxed) <= 4);
    assert_eq!(report.due, Some(2000));
    assert_eq!(report.latency.count, 2000);
    // A hundred requests were due in the first 100 ms of the stall: 5 % waited over 400 ms.
    assert!(report.latency.p99 >= 0.4, "{report:?}");
    assert!(report.latency.p90 >= 0.2, "{report:?}");
}

#[test(needs = [root()])]
fn a_saturated_server_shows_as_unanswered_requests_and_growing_latency() {
    let address = server(|_, socket| {
        std::thread::sleep(Duration::from_millis(20));
        ok(socket)
    });
    // Four connections at 20 ms each can answer 200 a second.
    let arguments = with(open_loop(address), |it| {
        it.rate = 2000.0;
        it.timeout = 0.5;
    });
    let report = http::run(&arguments).unwrap();
    assert_eq!(report.due, Some(2000));
    assert!(report.requests <= 250, "{report:?}");
    assert!(report.errors.unsent > 1000, "{report:?}");
    assert_eq!(report.latency.count, 2000, "what was never sent waited too");
    assert!(report.latency.p90 > 0.4, "{report:?}");
    let raw = serde_json::to_vec(&report).unwrap();
    let result = by_kind("http-rate")
        .unwrap()
        .parse(&raw, &Settings::default(), TIMING)
        .unwrap();
    let unreached = result.unreached.unwrap();
    assert!(unreached.contains("saturated"), "{unreached}");
}

#[test(needs = [test_all("takes 5 s")])]
fn a_ramp_gives_each_rate_a_window_and_keeps_their_backlogs_apart() {
    // Four connections at 20 ms each can answer 200 a second; the middle rate is ten times that.
    let address = server(|_, socket| {
        std::thread::sleep(Duration::from_millis(20));
        ok(socket)
    });
    let arguments = with(open_loop(address), |it| {
        it.ramp = vec![50.0, 2000.0, 50.0];
        it.warmup = 0.5;
        it.timeout = 0.2;
    });
    let load = Command::new(std::env::current_exe().unwrap())
        .args(["load", "http"])
        .args(words(&arguments))
        .output()
        .unwrap();
    let lines = load.stdout.split_inclusive(|byte| *byte == b'\n');
    let levels: Vec<generator::Report> = lines
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    let due: Vec<_> = levels.iter().map(|level| level.due).collect();
    assert_eq!(due, [Some(50), Some(2000), Some(50)]);
    let counts: Vec<_> = levels.iter().map(|level| level.latency.count).collect();
    assert_eq!(counts, [50, 2000, 50]);
    assert!(levels[1].errors.total() > 1000, "{:?}", levels[1]);
    for calm in [&levels[0], &levels[2]] {
        assert!(
            calm.errors.total() == 0 && calm.latency.p90 < 0.2,
            "{calm:?}"
        );
    }
}

#[test(needs = [root()])]
fn constant_load_sends_exactly_what_was_due() {
    let count = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&count);
    let address = server(move |_, socket| {
        counter.fetch_add(1, Ordering::Relaxed);
        ok(socket)
    });
    let report = http::run(&with(open_loop(address), |it| it.warmup = 0.5)).unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 150);
    assert_eq!(report.due, Some(100));
    assert_eq!(report.latency.count, 100);
    assert_eq!(report.errors.total(), 0);
    assert!(report.connections <= 4);
}

/// An address at which nothing listens.
fn nowhere() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

#[test(needs = [root()])]
fn a_refusing_server_is_errors_in_open_loop_and_an_error_in_closed_loop() {
    let report = http::run(&open_loop(nowhere())).unwrap();
    assert_eq!((report.requests, report.errors.connection), (0, 100));
    let raw = serde_json::to_vec(&report).unwrap();
    let cause = by_kind("http-rate")
        .unwrap()
        .parse(&raw, &Settings::default(), TIMING)
        .unwrap_err()
        .to_string();
    assert!(cause.contains("100 connections failed"), "{cause}");
    let cause = http::run(&closed_loop(nowhere(), 3))
        .unwrap_err()
        .to_string();
    assert!(
        cause.contains("refused") && cause.contains("127.0.0.1"),
        "{cause}"
    );
}

#[test(needs = [test_all("takes 3 s")])]
fn a_load_generator_without_one_answer_exits_with_1_and_one_line() {
    let address = nowhere().to_string();
    let answering = server(|_, socket| {
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        socket.write_all(head).is_ok()
    });
    let answering = answering.to_string();
    let short = "--rate 100 --duration 200ms --timeout 1s";
    let ramp = "--ramp 100,200 --duration 200ms --timeout 1s";
    for (flags, address, code) in [
        (format!("http {short}"), &address, 1),
        (format!("http {ramp}"), &address, 1),
        ("http --closed --duration 200ms".to_owned(), &address, 1),
        ("http --closed --downloads 3".to_owned(), &address, 1),
        (format!("memcached {short}"), &address, 1),
        (format!("memcached {ramp}"), &address, 1),
        ("memcached --fill".to_owned(), &address, 1),
        // The server speaks another protocol, so its data are no answer.
        (format!("memcached {short}"), &answering, 1),
        (format!("http {short}"), &answering, 0),
        (format!("http {ramp}"), &answering, 0),
    ] {
        let mut load = Command::new(std::env::current_exe().unwrap());
        load.arg("load").args(flags.split(' '));
        let run = load.args(["--address", address]).output().unwrap();
        let printed = String::from_utf8(run.stderr).unwrap();
        assert_eq!(run.status.code(), Some(code), "{flags}: {printed}");
        assert_eq!(
            printed.lines().count(),
            usize::from(code != 0),
            "{flags}: {printed}"
        );
        assert!(code == 0 || printed.contains(address), "{flags}: {printed}");
        // The output is JSON in either case.
        let report = String::from_utf8(run.stdout).unwrap();
        assert!(
            report.lines().all(|line| line.starts_with('{')),
            "{flags}: {report}"
        );
        assert!(!report.is_empty(), "{flags}");
    }
}

#[test(needs = [root()])]
fn an_error_status_is_counted_in_open_loop_and_ends_closed_loop() {
    let answer = |_, socket: &mut TcpStream| {
        socket
            .write_all(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
            .is_ok()
    };
    let report = http::run(&open_loop(server(answer))).unwrap();
    assert_eq!(
        (report.requests, report.errors.status, report.latency.count),
        (0, 100, 0)
    );
    let cause = http::run(&closed_loop(server(answer), 3))
        .unwrap_err()
        .to_string();
    assert!(cause.contains("status 503"), "{cause}");
}

#[test(needs = [root()])]
fn a_body_that_ends_early_is_a_failed_download() {
    let address = server(|_, socket| {
        socket
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhello")
            .unwrap();
        false
    });
    let cause = http::run(&closed_loop(address, 3)).unwrap_err().to_string();
    assert!(cause.contains("before the answer was complete"), "{cause}");
}

#[test(needs = [root()])]
fn a_server_that_speaks_something_else_is_reported() {
    let address = server(|_, socket| socket.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").is_ok());
    let cause = http::run(&closed_loop(address, 3)).unwrap_err().to_string();
    assert!(cause.contains("not HTTP"), "{cause}");
}

#[test(needs = [root()])]
fn a_server_that_goes_silent_is_given_up() {
    let address = server(|_, _| true);
    let cause = http::run(&with(closed_loop(address, 3), |it| it.timeout = 0.2))
        .unwrap_err()
        .to_string();
    assert!(cause.contains("sent nothing for 0.2 s"), "{cause}");
    let address = server(|_, _| true);
    let report = http::run(&with(open_loop(address), |it| it.timeout = 0.2)).unwrap();
    assert_eq!(report.requests, 0);
    assert_eq!(report.errors.timeout + report.errors.unsent, 100);
    assert_eq!(report.latency.count, 100);
}

#[test(needs = [root()])]
fn a_server_that_closes_after_each_answer_is_connected_to_again() {
    let closing = |_, socket: &mut TcpStream| {
        let _ = socket
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi");
        false
    };
    let report = http::run(&open_loop(server(closing))).unwrap();
    assert_eq!(
        (report.requests + report.errors.total(), report.connections),
        (100, 100),
        "{report:?}"
    );
    let report = http::run(&closed_loop(server(closing), 20)).unwrap();
    assert_eq!(
        (report.requests, report.bytes, report.connections),
        (20, 40, 20)
    );
    assert_eq!(report.download_seconds.len(), 20);
}

#[test(needs = [root()])]
fn a_connection_that_the_server_will_close_is_left_to_it_unless_places_are_short() {
    let early = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&early);
    let address = server(move |_, socket| {
        let _ = socket
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi");
        let pause = Some(Duration::from_millis(100));
        socket.set_read_timeout(pause).unwrap();
        let ended = matches!(socket.read(&mut [0]), Ok(0));
        count.fetch_add(u64::from(ended), Ordering::Relaxed);
        false
    });
    let load = |connections| {
        let arguments = with(open_loop(address), |it| it.connections = connections);
        let report = http::run(&http::Arguments {
            close: true,
            ..arguments
        })
        .unwrap();
        assert_eq!((report.errors.total(), report.connections), (0, 100));
    };
    load(100);
    // The end of the load closes the last ten or so.
    let of_end = early.load(Ordering::Relaxed);
    assert!(of_end < 90, "{of_end} of 100");
    load(1);
    assert!(early.load(Ordering::Relaxed) > of_end);
}

#[test(needs = [root()])]
fn a_kept_connection_that_the_server_closes_is_replaced_without_an_error() {
    // Closes without notice after the second answer on each connection, as a server may.
    let counts = std::sync::Mutex::new(HashMap::new());
    let address = server(move |_, socket| {
        let mut counts = counts.lock().unwrap();
        let count: &mut u32 = counts.entry(socket.peer_addr().unwrap()).or_default();
        *count += 1;
        // The third request is read and dropped: the client has sent it on a dying connection.
        *count < 3 && ok(socket)
    });
    let report = http::run(&with(open_loop(address), |it| it.warmup = 0.2)).unwrap();
    assert_eq!(report.errors.total(), 0, "{report:?}");
    assert_eq!(report.latency.count, 100);
    let report = http::run(&closed_loop(address, 20)).unwrap();
    assert_eq!(report.requests, 20);
}
