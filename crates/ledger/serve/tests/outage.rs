// SPDX-License-Identifier: Apache-2.0
//! Pushes to real servers that stop, lose their answers and return: every sample arrives exactly once. The ledger is a
//! fake, whose 600 intervals of a second take no time. The queue, the sender and the servers are real. The tests need
//! Debian's packages `prometheus` and `victoria-metrics`; OTLP needs those of Debian 13, since those of Debian 12 do
//! not accept it.

use crate::common::{eventually, request};
use jiff::Timestamp;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vtax_charge::fake::Host;
use vtax_serve::Own;
use vtax_serve::push::{PushOptions, PushState, Pusher};
use vtax_serve::roster::Roster;
use vtax_testkit::skip;

/// Passes of ten minutes at one a second.
const MISSED: usize = 600;
const BEFORE: usize = 60;
const AFTER: usize = 60;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Prometheus,
    VictoriaMetrics,
}

impl Kind {
    fn program(self) -> &'static str {
        match self {
            Self::Prometheus => "prometheus",
            Self::VictoriaMetrics => "victoria-metrics",
        }
    }

    fn start(self, data: &Path, port: u16) -> Running {
        let mut command = Command::new(self.program());
        match self {
            Self::Prometheus => {
                let config = data.with_file_name("prometheus.yml");
                std::fs::write(&config, "{}").unwrap();
                command
                    .arg(format!("--config.file={}", config.display()))
                    .arg(format!("--storage.tsdb.path={}", data.display()))
                    .arg(format!("--web.listen-address=127.0.0.1:{port}"))
                    .arg("--web.enable-remote-write-receiver")
            }
            Self::VictoriaMetrics => command
                .arg(format!("-storageDataPath={}", data.display()))
                .arg(format!("-httpListenAddr=127.0.0.1:{port}"))
                // One of several samples with the same time counts, which removes repeats.
                .args(["-dedup.minScrapeInterval=1ms", "-search.latencyOffset=0s"]),
        };
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut running = Running(child);
        let health = match self {
            Self::Prometheus => "/-/ready",
            Self::VictoriaMetrics => "/health",
        };
        eventually("the server", || {
            if let Some(status) = running.0.try_wait().unwrap() {
                panic!("{} ended: {status}", self.program());
            }
            get(port, health).map(drop)
        });
        running
    }

    /// Prometheus is killed: its log holds every sample that it accepted. VictoriaMetrics has no log and would lose the
    /// samples of the last seconds, so it is terminated.
    fn stop(self, mut server: Running) {
        let signal = match self {
            Self::Prometheus => rustix::process::Signal::KILL,
            Self::VictoriaMetrics => rustix::process::Signal::TERM,
        };
        rustix::process::kill_process(rustix::process::Pid::from_child(&server.0), signal).unwrap();
        server.0.wait().unwrap();
    }
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn get(port: u16, path: &str) -> Result<String, String> {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = ask().map_err(|cause| cause.to_string())?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
    if head.contains(" 200 ") {
        Ok(body.to_owned())
    } else {
        Err(answer)
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// A proxy to the server that loses every third answer to accepted data, and the number of lost answers.
fn lossy(port: u16) -> (u16, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let way = listener.local_addr().unwrap().port();
    let lost = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&lost);
    std::thread::spawn(move || {
        for (number, mut client) in listener.incoming().flatten().enumerate() {
            let Some((head, body)) = request(&mut client) else {
                continue;
            };
            let mut answer = Vec::new();
            let ask = |answer: &mut Vec<u8>| {
                let mut server = TcpStream::connect(("127.0.0.1", port))?;
                // One request per connection.
                write!(server, "{head}\r\nConnection: close\r\n\r\n")?;
                server.write_all(&body)?;
                server.read_to_end(answer)
            };
            if ask(&mut answer).is_err() {
                continue;
            }
            if number % 3 == 2 && answer.starts_with(b"HTTP/1.1 20") {
                counted.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            let _ = client.write_all(&answer);
            let _ = client.shutdown(Shutdown::Write);
        }
    });
    (way, lost)
}

fn samples(port: u16, query: &str, time: i64) -> Result<Vec<Value>, String> {
    let query: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let body = get(port, &format!("/api/v1/query?query={query}&time={time}"))?;
    let answer: Value = serde_json::from_str(&body).map_err(|cause| cause.to_string())?;
    Ok(answer["data"]["result"].as_array().unwrap().clone())
}

struct Passes {
    host: Host,
    roster: Roster,
}

impl Passes {
    fn push(&mut self, pusher: &mut Pusher, passes: usize) {
        for _ in 0..passes {
            let snapshot = self.host.pass(1_000_000);
            let listing = self.roster.update(&snapshot);
            pusher.push(&snapshot, &listing, &Own::default());
        }
    }
}

fn drained(pusher: &Pusher) -> PushState {
    eventually("the queue", || match pusher.states().remove(0) {
        state if state.queue_samples == 0 => Ok(state),
        state => Err(format!("{state:?}")),
    })
}

/// Pushes to a server of this kind, by this protocol at this path, through an outage.
fn outage(kind: Kind, (protocol, path): (&str, &str)) {
    let program = kind.program();
    let directory = tempfile::tempdir().unwrap();
    let (data, port) = (directory.path().join("data"), free_port());
    let (way, lost) = lossy(port);
    let to = format!("{protocol}:http://127.0.0.1:{way}{path}");
    let labels = [("job", "vtax"), ("instance", "here")];
    let options = PushOptions {
        to: vec![to.parse().unwrap()],
        labels: labels
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
        queue: directory.path().join("queue"),
        queue_bytes: 64 << 20,
        ..PushOptions::default()
    };
    let all = BEFORE + MISSED + AFTER;
    let began = Timestamp::now().as_second() - i64::try_from(all).unwrap() - 60;
    let mut passes = Passes {
        host: Host::since(Timestamp::from_second(began).unwrap()),
        roster: Roster::new(100),
    };
    for number in 1..=40 {
        passes.host.start(number);
    }
    let server = kind.start(&data, port);
    let mut pusher = Pusher::start(&options).unwrap();
    for _ in 0..BEFORE / 10 {
        passes.push(&mut pusher, 10);
        drained(&pusher);
    }
    kind.stop(server);
    passes.push(&mut pusher, MISSED / 2);
    // The exporter ends too, and the next one sends its queue.
    drop(pusher);
    let mut pusher = Pusher::start(&options).unwrap();
    passes.push(&mut pusher, MISSED / 2);
    let waiting = pusher.states().remove(0).queue_samples;
    let series = waiting / MISSED as u64;
    assert!(series > 300 && waiting == series * MISSED as u64);
    let server = kind.start(&data, port);
    let state = drained(&pusher);
    assert_eq!(state.sent + state.repeated, waiting, "{state:?}");
    for _ in 0..AFTER / 10 {
        passes.push(&mut pusher, 10);
        drained(&pusher);
    }
    let state = pusher.states().remove(0);
    let dropped = state.dropped_full + state.dropped_refused + state.dropped_disk;
    assert_eq!(dropped, 0, "{state:?}");
    assert!(lost.load(Ordering::SeqCst) > 3);
    println!("{program}: {waiting} samples of {series} series waited; {state:?}");

    let end = began + i64::try_from(all).unwrap();
    let expected: Vec<i64> = (began + 1..=end).collect();
    eventually("every sample, once", || {
        let found = samples(port, &format!("{{job=\"vtax\"}}[{}s]", 2 * all), end)?;
        if found.len() as u64 != series {
            return Err(format!("{} of {series} series", found.len()));
        }
        for one in found {
            let says_its_time =
                one["metric"]["__name__"] == "vtax_exporter_snapshot_timestamp_seconds";
            let values = one["values"].as_array().unwrap().iter();
            let times = values.filter_map(|value| {
                let printed: f64 = value[1].as_str()?.parse().ok()?;
                let time = value[0].as_f64()?;
                (!says_its_time || time == printed).then_some(time as i64)
            });
            let times: Vec<i64> = times.collect();
            if times != expected {
                let (found, all) = (times.len(), expected.len());
                return Err(format!("{}: {found} of {all}: {times:?}", one["metric"]));
            }
        }
        Ok(())
    });
    drop(server);
}

const REMOTE_WRITE: (&str, &str) = ("remote-write", "/api/v1/write");

#[test(needs = [brought_by_test_all("prometheus")])]
fn an_outage_of_prometheus_loses_nothing_and_repeats_nothing() {
    outage(Kind::Prometheus, REMOTE_WRITE);
}

#[test(needs = [brought_by_test_all("victoria-metrics")])]
fn an_outage_of_victoria_metrics_loses_nothing_and_repeats_nothing() {
    outage(Kind::VictoriaMetrics, REMOTE_WRITE);
}

#[test(needs = [brought_by_test_all("victoria-metrics")])]
fn an_outage_of_victoria_metrics_by_otlp_loses_nothing_and_repeats_nothing() {
    if !takes_otlp() {
        skip!("this victoria-metrics takes no OTLP: from version 1.92 on it does");
    }
    outage(Kind::VictoriaMetrics, ("otlp", "/opentelemetry/v1/metrics"));
}

/// Returns whether this machine's VictoriaMetrics accepts OTLP.
fn takes_otlp() -> bool {
    let directory = tempfile::tempdir().unwrap();
    let port = free_port();
    let server = Kind::VictoriaMetrics.start(&directory.path().join("data"), port);
    let knows = get(port, "/opentelemetry/v1/metrics").is_ok();
    drop(server);
    knows
}
