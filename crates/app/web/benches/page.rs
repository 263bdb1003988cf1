// SPDX-License-Identifier: Apache-2.0
//! The costs of the page's server with 1,000 invented guests: processor time and memory with 3 watchers, and the delay
//! until the last of 100 watchers has an update. The host's own reading is not included.

#![allow(
    clippy::expect_used,
    reason = "a benchmark that cannot run should say so and stop"
)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use vtax_charge::fake::Host;
use vtax_web::{AppState, ListenerSettings, Live, Server};

const GUESTS: u32 = 1000;
const SECONDS: u64 = 30;

fn main() {
    let mut host = Host::default();
    for number in 0..GUESTS {
        host.start(number);
    }
    let live = Arc::new(Live::default());
    let nowhere = Path::new("/nonexistent");
    let app = AppState::new(Arc::clone(&live), nowhere, nowhere);
    let listen = "127.0.0.1:0".parse().expect("an address");
    let server = Server::start(app, &ListenerSettings::open(listen)).expect("a server");
    // A history whose fine points reach their limit.
    for _ in 0..600 {
        live.show(host.pass(1_000_000));
    }
    for watchers in [3, 100] {
        let reported: Vec<Receiver<(u64, Instant)>> =
            (0..watchers).map(|_| watch(server.address())).collect();
        let mut last: Vec<u64> = reported.iter().map(|reported| next(reported).0).collect();
        let (mut missed, mut latest, mut own) = (0, Duration::ZERO, Duration::ZERO);
        let (began, before) = (Instant::now(), ticks("web"));
        for second in 1..=SECONDS {
            let snapshot = host.pass(1_000_000);
            let (shown, spent) = (Instant::now(), ticks(""));
            live.show(snapshot);
            own += ticks("").saturating_sub(spent);
            for (reported, last) in reported.iter().zip(&mut last) {
                let (tick, at) = next(reported);
                missed += tick - *last - 1;
                *last = tick;
                latest = latest.max(at.saturating_duration_since(shown));
            }
            std::thread::sleep(Duration::from_secs(second).saturating_sub(began.elapsed()));
        }
        let spent = ticks("web").saturating_sub(before) + own;
        println!(
            "{watchers:>3} watchers: {:>5.2} % of a core, the last has an update after {} ms, {missed} missed",
            spent.as_secs_f64() / began.elapsed().as_secs_f64() * 100.0,
            latest.as_millis(),
        );
    }
    println!("memory with a full history: {} MiB", resident() >> 20);
    let files = [
        "/",
        "/app.js",
        "/app.css",
        "/palette.css",
        "/uplot.js",
        "/uplot.css",
    ];
    let modules = [
        "chart",
        "compare",
        "comparison",
        "curves",
        "dom",
        "enter",
        "host",
        "machines",
        "meters",
        "results",
        "run",
        "start",
        "theme",
    ];
    let modules = modules.map(|name| format!("/{name}.js"));
    let all = files.into_iter().chain(modules.iter().map(String::as_str));
    let bytes: usize = all.map(|path| file(server.address(), path)).sum();
    println!("the page with all its files: {} kB", bytes / 1000);
}

/// Updates of a watcher as they arrive: their numbers, and their times of arrival.
fn watch(address: SocketAddr) -> Receiver<(u64, Instant)> {
    let mut stream = TcpStream::connect(address).expect("a connection");
    write!(
        stream,
        "GET /api/live?sort=cpu HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    .expect("a request");
    let (tell, reported) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let at = Instant::now();
            let update = line.strip_prefix("data: ").map(serde_json::from_str);
            let Some(Ok(update)) = update else { continue };
            let update: serde_json::Value = update;
            let tick = update["tick"].as_u64().unwrap_or(0);
            if tell.send((tick, at)).is_err() {
                return;
            }
        }
    });
    reported
}

fn next(reported: &Receiver<(u64, Instant)>) -> (u64, Instant) {
    reported
        .recv_timeout(Duration::from_secs(60))
        .expect("an update")
}

/// The processor time of the threads of this name, or of this thread.
fn ticks(name: &str) -> Duration {
    if name.is_empty() {
        let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        return Duration::try_from(spent).unwrap_or_default();
    }
    let tasks = fs::read_dir("/proc/self/task").expect("the threads");
    let own = tasks.flatten().filter(|task| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
    });
    let nanoseconds = own.filter_map(|task| {
        let spent = fs::read_to_string(task.path().join("schedstat")).ok()?;
        spent.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanoseconds.sum())
}

fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("the status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) << 10
}

fn file(address: SocketAddr, path: &str) -> usize {
    let mut stream = TcpStream::connect(address).expect("a connection");
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    .expect("a request");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{path}");
    answer.len()
}
