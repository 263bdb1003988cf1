// SPDX-License-Identifier: Apache-2.0
//! Cost of the metrics of many hosts for a server: `-- PROGRAM HOSTS GUESTS ROUNDS [scrape]`, where the program is
//! `prometheus` or `victoria-metrics`. With `scrape` the server scrapes each host every 15 s, and a round is 15 s.
//!
//! Every host has a ledger of its own, replayed in memory. The pushes are those of `vtax exporter`. Rounds follow each
//! other as fast as the server accepts them. The cost of a push is the server's own processor time, so that no other
//! load is included.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a benchmark that cannot be set up should stop"
)]

use jiff::Timestamp;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use ureq::Agent;
use vtax_charge::fake::Host;
use vtax_http::unix::Users;
use vtax_http::{Limits, Listeners, Request, Response, Server};
use vtax_inventory::Platform;
use vtax_serve::exporter::Shared;
use vtax_serve::push::{self, Protocol, PushOptions, Pusher};
use vtax_serve::roster::Roster;
use vtax_serve::{Address, Own};

/// The queries of a dashboard of a fleet: of every guest's series, and of the records of
/// `contrib/prometheus/vtax-fleet.rules.yml`.
const QUERIES: [(&str, &str, &str); 4] = [
    (
        "processors by stage",
        "sum by (stage) (rate(vtax_guest_cpu_seconds_total[5m]))",
        "sum by (stage) (vtax:fleet_cpu:rate5m)",
    ),
    (
        "the 20 hosts whose guests are most hidden",
        "topk(20, sum by (instance) (rate(vtax_guest_cpu_seconds_total{stage!=\"vcpu\"}[5m])) / sum by (instance) (rate(vtax_guest_cpu_seconds_total[5m])))",
        "topk(20, vtax:instance_hidden_cpu:rate5m / vtax:instance_cpu:rate5m)",
    ),
    (
        "the 20 guests that cost most",
        "topk(20, sum by (instance, guest) (rate(vtax_guest_cpu_seconds_total[5m])))",
        "vtax:fleet_guest_cpu:top20",
    ),
    (
        "watts of all guests",
        "sum(rate(vtax_guest_energy_joules_total[5m]))",
        "sum(vtax:instance_guest_power_watts:rate5m)",
    ),
];

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Self(child.unwrap_or_else(|cause| panic!("{command:?}: {cause}")))
    }

    /// Returns the processor time so far, in seconds.
    fn cpu(&self) -> f64 {
        cpu_of(&format!("/proc/{}/stat", self.0.id()))
    }

    /// Returns the peak resident memory, in MiB.
    fn most_memory(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM"));
        let kib: f64 = line
            .unwrap()
            .split_whitespace()
            .nth(1)
            .unwrap()
            .parse()
            .unwrap();
        kib / 1024.0
    }
}

fn cpu_of(stat: &str) -> f64 {
    let stat = std::fs::read_to_string(stat).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split(' ').collect();
    let ticks = |field: usize| fields[field].parse::<f64>().unwrap();
    // User and system time, in hundredths of a second.
    (ticks(12) + ticks(13)) / 100.0
}

fn disk(path: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(path) else {
        return std::fs::metadata(path).map_or(0, |found| found.len());
    };
    entries.flatten().map(|entry| disk(&entry.path())).sum()
}

fn encode(query: &str) -> String {
    query.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn labels(host: usize) -> Vec<(String, String)> {
    vec![
        ("job".to_owned(), "vtax".to_owned()),
        ("instance".to_owned(), format!("host-{host:05}")),
    ]
}

fn host(number: usize, guests: u32) -> (Host, Roster) {
    let mut host = Host::default();
    for guest in 1..=guests {
        host.start_named(
            guest,
            &format!("tenant-{number:05}-{guest:02}"),
            Platform::Qemu,
        );
    }
    (host, Roster::new(2000))
}

/// Prints the cost of pushes for the exporter of one host, without the server: processor time per push.
fn own_cost(address: &str, guests: u32, directory: &Path) {
    const PUSHES: u32 = 500;
    let options = PushOptions {
        to: vec![
            format!("remote-write:http://{address}/api/v1/write")
                .parse()
                .unwrap(),
        ],
        labels: labels(99_999),
        queue: directory.join("queue"),
        queue_bytes: 64 << 20,
        ..PushOptions::default()
    };
    let (mut host, mut roster) = host(99_999, guests);
    let mut pusher = Pusher::start(&options).unwrap();
    let began = Timestamp::now();
    let mut used = 0.0;
    for number in 0..PUSHES {
        let mut snapshot = host.pass(1_000_000);
        snapshot.ended = began + Duration::from_millis(u64::from(number));
        let listing = roster.update(&snapshot);
        let before = cpu_of("/proc/self/stat");
        pusher.push(&snapshot, &listing, &Own::default());
        while pusher.states()[0].queue_samples > 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        used += cpu_of("/proc/self/stat") - before;
    }
    let state = pusher.states().remove(0);
    println!(
        "an exporter with {guests} guests: {} series, {:.2} ms of a processor a push, {:.0} bytes a push",
        state.sent / u64::from(PUSHES),
        used / f64::from(PUSHES) * 1e3,
        state.sent_bytes as f64 / state.requests as f64,
    );
}

fn main() {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with("--"))
        .collect();
    let [program, hosts, guests, rounds, how @ ..] = words.as_slice() else {
        println!("fleet: give PROGRAM HOSTS GUESTS ROUNDS [scrape], such as prometheus 100 40 5");
        return;
    };
    let scrapes = how.first().is_some_and(|word| word == "scrape");
    let (hosts, rounds): (usize, usize) = (hosts.parse().unwrap(), rounds.parse().unwrap());
    let guests: u32 = guests.parse().unwrap();
    let directory = tempfile::tempdir_in(std::env::var("FLEET_DIR").unwrap_or("/var/tmp".into()));
    let directory = directory.unwrap();
    let (data, address) = (directory.path().join("data"), "127.0.0.1:18428");
    let rules = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../contrib/prometheus/vtax-fleet.rules.yml");
    let is_prometheus = program.ends_with("prometheus");
    let exporters = scrapes.then(|| Exporters::serve(hosts, guests, directory.path()));
    let scrape_config = exporters.as_ref().map(|exporters| &*exporters.config);
    let server = if is_prometheus {
        prometheus(program, &rules, scrape_config, directory.path(), address)
    } else {
        Running::start(
            Command::new(program)
                .arg(format!("-storageDataPath={}", data.display()))
                .arg(format!("-httpListenAddr={address}"))
                .args(["-search.latencyOffset=0s", "-search.maxQueryDuration=10m"])
                .args([
                    "-search.maxUniqueTimeseries=20000000",
                    "-search.disableCache",
                ])
                .args(
                    scrape_config.map(|config| format!("-promscrape.config={}", config.display())),
                )
                .arg("-promscrape.maxScrapeSize=1GB"),
        )
    };
    let agent = Agent::new_with_defaults();
    let health = if is_prometheus { "-/ready" } else { "health" };
    let health = format!("http://{address}/{health}");
    let deadline = Instant::now() + Duration::from_secs(30);
    while agent.get(&health).call().is_err() {
        assert!(Instant::now() < deadline, "{program} does not answer");
        std::thread::sleep(Duration::from_millis(100));
    }
    println!("{program}, {hosts} hosts of {guests} guests, {rounds} rounds");
    if let Some(exporters) = exporters {
        exporters.watch(&server, rounds);
        return;
    }
    own_cost(address, guests, directory.path());

    let mut fleet: Vec<(Host, Roster)> = (0..hosts).map(|number| host(number, guests)).collect();
    let url = format!("http://{address}/api/v1/write");
    let (mut samples, mut bytes, mut pushes) = (0, 0, 0);
    let mut making = Duration::ZERO;
    for round in 0..rounds {
        let (began, cpu) = (Instant::now(), server.cpu());
        for (number, (host, roster)) in fleet.iter_mut().enumerate() {
            let started = Instant::now();
            let mut snapshot = host.pass(1_000_000 + number as u64);
            snapshot.ended = Timestamp::now();
            let listing = roster.update(&snapshot);
            let body = push::body(Protocol::RemoteWrite, &snapshot, &listing, &labels(number));
            let (body, count) = body.unwrap();
            making += started.elapsed();
            (samples, bytes, pushes) = (samples + count, bytes + body.len(), pushes + 1);
            let request = agent
                .post(&url)
                .header("Content-Type", "application/x-protobuf")
                .header("Content-Encoding", "snappy");
            request.send(&body[..]).unwrap();
        }
        let used = server.cpu() - cpu;
        println!(
            "round {round}: {:.1} s; the server used {used:.1} s, {:.2} ms a push; {:.0} MiB at most",
            began.elapsed().as_secs_f64(),
            used / hosts as f64 * 1e3,
            server.most_memory(),
        );
        std::thread::sleep(Duration::from_secs(1));
    }
    println!(
        "{} series a host, {} in all; {:.0} bytes a push, {:.2} a sample; making one took {:.2} ms",
        samples / pushes,
        samples / rounds,
        bytes as f64 / pushes as f64,
        bytes as f64 / samples as f64,
        making.as_secs_f64() / pushes as f64 * 1e3,
    );
    let stored = disk(&data);
    println!(
        "{:.0} MiB on disk, {:.2} bytes a sample",
        stored as f64 / 1048576.0,
        stored as f64 / samples as f64
    );

    // Rules of VictoriaMetrics run in a separate program.
    let _alert = (!is_prometheus).then(|| {
        let vmalert = Path::new(program).with_file_name("vmalert");
        Running::start(
            Command::new(vmalert)
                .arg(format!("-rule={}", rules.display()))
                .arg(format!("-datasource.url=http://{address}"))
                .arg(format!("-remoteWrite.url=http://{address}"))
                .args(["-httpListenAddr=127.0.0.1:18880", "-evaluationInterval=15s"])
                // Its alerts go to an address without a server.
                .args([
                    "-datasource.queryStep=5m",
                    "-notifier.url=http://127.0.0.1:1",
                ]),
        )
    });
    let ask = |query: &str| {
        let started = Instant::now();
        let url = format!("http://{address}/api/v1/query?query={}", encode(query));
        let answer = agent.get(&url).call();
        let text = answer.map(|mut answer| answer.body_mut().read_to_string().unwrap_or_default());
        (
            started.elapsed(),
            text.unwrap_or_else(|cause| cause.to_string()),
        )
    };
    for (title, raw, recorded) in QUERIES {
        // The record of single guests is written every five minutes.
        let deadline = Instant::now() + Duration::from_secs(420);
        while ask(recorded).1.contains("\"result\":[]") && Instant::now() < deadline {
            std::thread::sleep(Duration::from_secs(1));
        }
        let median = |query: &str| {
            let first = ask(query);
            // A slow query varies little, so it runs once.
            let more = if first.0 > Duration::from_secs(3) {
                0
            } else {
                4
            };
            let mut answers: Vec<_> = std::iter::once(first)
                .chain((0..more).map(|_| ask(query)))
                .collect();
            answers.sort_unstable();
            let (time, text) = answers.swap_remove(answers.len() / 2);
            let found = text.matches("\"value\":").count();
            format!("{:.0} ms ({found} series)", time.as_secs_f64() * 1e3)
        };
        println!(
            "{title}: {} by series, {} by rules",
            median(raw),
            median(recorded)
        );
    }
    println!("{:.0} MiB at most, queries included", server.most_memory());
    // The duration of the rules, by the program that runs them.
    let (metrics, of_rules) = if is_prometheus {
        (
            format!("http://{address}/metrics"),
            "prometheus_rule_group_last_duration_seconds{",
        )
    } else {
        let own = "http://127.0.0.1:18880/metrics".to_owned();
        (own, "vmalert_iteration_duration_seconds{")
    };
    let mut answer = agent.get(&metrics).call().unwrap();
    let text = answer.body_mut().read_to_string().unwrap();
    for line in text.lines().filter(|line| line.starts_with(of_rules)) {
        println!("{line}");
    }
}

/// The exporters of all hosts behind one address. The query names the host.
struct Exporters {
    config: PathBuf,
    asked: Arc<AtomicUsize>,
    _server: Server,
}

/// Time between two scrapes of a host.
const SCRAPE_EVERY: Duration = Duration::from_secs(15);

impl Exporters {
    fn serve(hosts: usize, guests: u32, directory: &Path) -> Self {
        let fleet: Vec<Mutex<(Host, Roster)>> = (0..hosts)
            .map(|number| Mutex::new(host(number, guests)))
            .collect();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let answer = move |request: &Request<'_>| -> Response {
            count.fetch_add(1, Ordering::Relaxed);
            let (_, number) = request.target.rsplit_once("host-").unwrap();
            let number: usize = number.parse().unwrap();
            let mut host = fleet[number].lock().unwrap();
            // Every scrape gets a new pass.
            let snapshot = host.0.pass(1_000_000 + number as u64);
            let listing = host.1.update(&snapshot);
            let shared = Shared::default();
            shared.show(snapshot, listing, Own::default(), SCRAPE_EVERY * 2);
            shared.answer(request)
        };
        let limits = Limits {
            connections: hosts + 16,
            patience: Duration::from_secs(10),
            idle: Some(SCRAPE_EVERY * 2),
        };
        let any = Address::Tcp(([127, 0, 0, 1], 0).into());
        let listeners = Listeners::bind(&[any], Users::Owner).unwrap();
        let server = listeners.serve(limits, Arc::new(answer)).unwrap();
        let names: Vec<String> = (0..hosts).map(|host| format!("host-{host:05}")).collect();
        let mut text = format!(
            "scrape_configs:\n- job_name: vtax\n  scrape_interval: {}s\n  static_configs: [{{targets: [{}]}}]\n  relabel_configs:\n",
            SCRAPE_EVERY.as_secs(),
            names.join(", ")
        );
        for label in ["__param_host", "instance"] {
            let _ = writeln!(
                text,
                "  - {{source_labels: [__address__], target_label: {label}}}"
            );
        }
        let address = server.addresses()[0].to_string();
        let address = address.trim_start_matches("http://");
        let _ = writeln!(
            text,
            "  - {{target_label: __address__, replacement: '{address}'}}"
        );
        let config = directory.join("scrape.yml");
        std::fs::write(&config, text).unwrap();
        Self {
            config,
            asked,
            _server: server,
        }
    }

    /// Prints the cost of each round for the server.
    fn watch(&self, server: &Running, rounds: usize) {
        for round in 0..rounds {
            let (cpu, asked) = (server.cpu(), self.asked.load(Ordering::Relaxed));
            std::thread::sleep(SCRAPE_EVERY);
            let used = server.cpu() - cpu;
            let asked = self.asked.load(Ordering::Relaxed) - asked;
            println!(
                "round {round}: {asked} scrapes; the server used {used:.1} s, {:.2} ms a scrape; {:.0} MiB at most",
                used / asked.max(1) as f64 * 1e3,
                server.most_memory(),
            );
        }
    }
}

fn prometheus(
    program: &str,
    rules: &Path,
    scrape_config: Option<&Path>,
    directory: &Path,
    address: &str,
) -> Running {
    let config: PathBuf = directory.join("prometheus.yml");
    let rules = rules.canonicalize().unwrap();
    let mut text = format!(
        "global: {{ evaluation_interval: 15s }}\nrule_files: [\"{}\"]\n",
        rules.display()
    );
    if let Some(scrapes) = scrape_config {
        text += &std::fs::read_to_string(scrapes).unwrap();
    }
    std::fs::write(&config, text).unwrap();
    Running::start(
        Command::new(program)
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                directory.join("data").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .arg("--web.enable-remote-write-receiver"),
    )
}
