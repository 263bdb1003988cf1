// SPDX-License-Identifier: Apache-2.0
//! Accuracy and cost of charge-back on this machine: `make bench-charge`.
//!
//! Accuracy: two containers receive at fixed rates, one small packets, one large packets. The charge per packet of each
//! container beside the other is compared with its charge alone. Division by the CPU time of processes is reported for
//! the same load.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a benchmark that cannot be set up should fail"
)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vtax_charge::Watch;
use vtax_charge::{Charger, ChargerOptions, Ledger, MethodChoice, Traced};
use vtax_inventory::Hierarchy;
use vtax_observe::clock::SystemClock;
use vtax_serve::exporter::Shared;
use vtax_serve::roster::Roster;
use vtax_serve::{Address, Own};
use vtax_testkit::containers::{self, Namespace, Setting};

/// Bytes of a datagram and datagrams a second, for the two loads.
const LOADS: [(usize, u64); 2] = [(64, 60_000), (1400, 15_000)];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize| {
        arguments
            .get(index)
            .and_then(|text| text.parse().ok())
            .unwrap_or(0)
    };
    match arguments.first().map(String::as_str) {
        Some("receive") => return receive(),
        Some("send") => return send(number(1), number(2), number(3), number(4)),
        _ => {}
    }
    let only: Vec<&String> = arguments
        .iter()
        .filter(|text| !text.starts_with('-'))
        .collect();
    let runs = |name: &str| only.is_empty() || only.iter().any(|only| *only == name);
    if runs("accuracy") {
        accuracy();
    }
    if runs("stress") {
        stress();
    }
    if runs("cost") {
        cost();
    }
    if runs("overhead") {
        overhead();
    }
}

fn seconds(name: &str, default: u64) -> u64 {
    let given = std::env::var(name).ok().and_then(|text| text.parse().ok());
    given.unwrap_or(default)
}

struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Receives datagrams until it is killed.
fn receive() {
    let socket = UdpSocket::bind("0.0.0.0:9999").unwrap();
    let mut into = [0; 2048];
    loop {
        let _ = socket.recv(&mut into);
    }
}

/// Sends at a fixed rate, in bursts of a millisecond, and prints the number of datagrams.
fn send(to: u64, size: u64, rate: u64, milliseconds: u64) {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect(format!("10.9.{to}.2:9999")).unwrap();
    let payload = vec![0; usize::try_from(size).unwrap()];
    let (started, mut sent) = (Instant::now(), 0u64);
    for millisecond in 1..=milliseconds {
        while sent < millisecond * rate / 1000 {
            let _ = socket.send(&payload);
            sent += 1;
        }
        let due = Duration::from_millis(millisecond);
        std::thread::sleep(due.saturating_sub(started.elapsed()));
    }
    println!("{sent}");
}

fn own_program() -> PathBuf {
    std::env::current_exe().unwrap()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Nanoseconds per packet, by container: traced, counted, by the CPU time of processes.
type Costs = [[f64; 3]; 2];

fn accuracy() {
    println!("\n## Accuracy: two containers, one small packets, one large\n");
    let setting = Setting::new(2);
    let options = ChargerOptions {
        method: MethodChoice::Both,
        ..ChargerOptions::default()
    };
    let mut charger = match Charger::open(options) {
        Ok(charger) => charger,
        Err(error) => {
            println!("SKIPPED: {error}");
            return;
        }
    };
    let _receivers: Vec<Ends> = setting
        .containers
        .iter()
        .map(|container| {
            let child = container
                .namespace
                .command(&own_program())
                .arg("receive")
                .spawn()
                .unwrap();
            container.adopt(&child);
            Ends(child)
        })
        .collect();
    let time = seconds("ROUND_SECONDS", 8) * 1000;
    let rounds = seconds("ROUNDS", 5);
    for _ in 0..2 {
        charger.pass(&SystemClock).unwrap();
        std::thread::sleep(Duration::from_millis(300));
    }
    let numbers = setting.numbers(&charger);
    let mut measure = |loads: &[usize]| -> Costs {
        charger.pass(&SystemClock).unwrap();
        let senders: Vec<(usize, Child)> = loads
            .iter()
            .map(|load| {
                let (size, rate) = LOADS[*load];
                let child = setting
                    .client
                    .command(&own_program())
                    .arg("send")
                    .args([*load as u64, size as u64, rate, time].map(|n| n.to_string()))
                    .stdout(Stdio::piped())
                    .spawn()
                    .unwrap();
                (*load, child)
            })
            .collect();
        let sent: Vec<(usize, f64)> = senders
            .into_iter()
            .map(|(load, child)| {
                let output = child.wait_with_output().unwrap().stdout;
                (
                    load,
                    String::from_utf8_lossy(&output).trim().parse().unwrap(),
                )
            })
            .collect();
        let pass = charger.pass(&SystemClock).unwrap();
        let mut costs = [[f64::NAN; 3]; 2];
        for (load, sent) in sent {
            let of = |ledger: &Ledger| {
                let row = ledger.row(numbers[load]).unwrap();
                row.stages.total().0 as f64 / sent
            };
            // The method of common exporters: the time that the kernel accounts to the container's processes.
            let row = pass.ledgers[0].1.row(numbers[load]).unwrap();
            let processes = row.booked.0 as f64 / sent;
            costs[load] = [of(&pass.ledgers[0].1), of(&pass.ledgers[1].1), processes];
        }
        costs
    };
    let mut ratios: [[Vec<f64>; 3]; 2] = Default::default();
    let mut shares: [[Vec<f64>; 3]; 2] = Default::default();
    for _ in 0..rounds {
        let alone = [measure(&[0])[0], measure(&[1])[1]];
        let together = measure(&[0, 1]);
        for load in 0..2 {
            for method in 0..3 {
                ratios[load][method].push(together[load][method] / alone[load][0]);
                shares[load][method].push(together[load][method]);
            }
        }
    }
    println!(
        "| container | charged alone (traced) = 1 | traced | counted | by processes' CPU time |"
    );
    println!("|---|---|---|---|---|");
    for (load, name) in ["small packets", "large packets"].iter().enumerate() {
        let cell = |method: usize| {
            let values = &ratios[load][method];
            let low = values.iter().copied().fold(f64::INFINITY, f64::min);
            let high = values.iter().copied().fold(0.0, f64::max);
            format!("{:.3} [{low:.3}–{high:.3}]", median(values.clone()))
        };
        let alone = median(shares[load][0].clone()) / median(ratios[load][0].clone());
        println!(
            "| {name} ({} B, {} /s) | {alone:.0} ns a packet | {} | {} | {} |",
            LOADS[load].0,
            LOADS[load].1,
            cell(0),
            cell(1),
            cell(2)
        );
    }
    println!(
        "\n{rounds} rounds of {} s; medians, lowest and highest",
        time / 1000
    );
}

fn stress() {
    let time = Duration::from_secs(seconds("STRESS_SECONDS", 60));
    println!(
        "\n## Stress: 40 guests start and stop every second, for {} s\n",
        time.as_secs()
    );
    let Some(hierarchy) = Hierarchy::find(Path::new("/sys")) else {
        println!("SKIPPED: no control group hierarchy accounts CPU time");
        return;
    };
    let mut charger = Charger::open(ChargerOptions::default()).unwrap();
    charger.pass(&SystemClock).unwrap();
    let started = Instant::now();
    let (mut guests, mut spikes, mut worst, mut rows) = (0u64, 0, 0.0f64, 0);
    let mut excess = 0u64;
    let mut round = 0u64;
    while started.elapsed() < time {
        round += 1;
        let second = Instant::now();
        let mut live = Vec::new();
        for index in 0..40u64 {
            let child = if index % 2 == 0 {
                // A monitor by its command line.
                use std::os::unix::process::CommandExt;
                Command::new("sh")
                    .arg0("firecracker")
                    .args([
                        "-c",
                        "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 9",
                        &format!("--id=vm{index}"),
                    ])
                    .spawn()
            } else {
                Command::new("sh")
                    .args([
                        "-c",
                        "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 9",
                    ])
                    .spawn()
            };
            let child = Ends(child.unwrap());
            let id = format!("{:0<64}", format!("{:x}", (round << 8) + index));
            let group = (index % 2 == 1)
                .then(|| containers::Group::new(&hierarchy.mounted, &id, child.0.id()).unwrap());
            live.push((child, group));
            guests += 1;
        }
        std::thread::sleep(Duration::from_millis(700).saturating_sub(second.elapsed()));
        let pass = charger.pass(&SystemClock).unwrap();
        let ledger = pass.ledger().unwrap();
        rows += ledger.rows.len();
        excess += ledger.excess.0.saturating_sub(ledger.made_good.0);
        let off =
            (ledger.sum().0 as f64 - ledger.total.0 as f64).abs() / ledger.total.0.max(1) as f64;
        worst = worst.max(off);
        let capacity =
            ledger.span.as_secs_f64() * std::thread::available_parallelism().unwrap().get() as f64;
        spikes += ledger
            .rows
            .iter()
            .filter(|row| row.stages.total().as_secs_f64() > capacity + 0.2)
            .count();
        drop(live);
        std::thread::sleep(Duration::from_millis(1000).saturating_sub(second.elapsed()));
    }
    let totals = charger.totals();
    let guests_time: u64 = totals
        .guests
        .values()
        .map(|guest| guest.stages.total().0)
        .sum();
    let sum = guests_time
        + totals.gone.stages.total().0
        + totals.host.0
        + totals.host_softirq.0
        + totals.unattributed.0;
    let off = sum as f64 / totals.total.0 as f64 - 1.0;
    let share = |time: u64| time as f64 / totals.total.0 as f64 * 100.0;
    println!(
        "- {guests} guests started, {rows} rows charged in {round} intervals, method {}",
        charger.method()
    );
    println!(
        "- the ledger is off by {:+.3} % over the whole run, {:.2} % in the worst interval",
        off * 100.0,
        worst * 100.0
    );
    println!(
        "- spikes: {spikes}; unattributed: {:.2} %; open excess {:.3} s",
        share(totals.unattributed.0),
        excess as f64 / 1e9
    );
    println!(
        "- guests {:.1} %, host {:.1} %",
        share(guests_time + totals.gone.stages.total().0),
        share(totals.host.0 + totals.host_softirq.0)
    );
}

fn cost() {
    println!("\n## Cost: 1,000 containers at 1 Hz\n");
    let Some(hierarchy) = Hierarchy::find(Path::new("/sys")) else {
        println!("SKIPPED: no control group hierarchy accounts CPU time");
        return;
    };
    let mut live = Vec::new();
    for index in 0..1000u64 {
        let child = Ends(Command::new("sleep").arg("600").spawn().unwrap());
        let id = format!("{:0<64}", format!("{:x}", 0x1000 + index));
        let Some(group) = containers::Group::new(&hierarchy.mounted, &id, child.0.id()) else {
            println!("SKIPPED: cannot make control groups; this needs root");
            return;
        };
        live.push((child, group));
    }
    for method in [MethodChoice::Counted, MethodChoice::Traced] {
        let options = ChargerOptions {
            method,
            ..ChargerOptions::default()
        };
        let mut charger = match Charger::open(options) {
            Ok(charger) => charger,
            Err(error) => {
                println!("- {method:?}: SKIPPED: {error}");
                continue;
            }
        };
        for _ in 0..6 {
            charger.pass(&SystemClock).unwrap();
        }
        let (before, passes) = (charger.cost(), seconds("PASSES", 20));
        for _ in 0..passes {
            std::thread::sleep(Duration::from_secs(1));
            charger.pass(&SystemClock).unwrap();
        }
        let spent = charger.cost().saturating_since(before).as_secs_f64() / passes as f64;
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let resident = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .unwrap_or("?");
        println!(
            "- {}: {:.2} ms a pass = {:.2} % of one processor (target 1 %), most memory {} (target 64 MiB), {} guests",
            charger.method(),
            spent * 1e3,
            spent * 100.0,
            resident.trim(),
            charger.guests().count()
        );
    }
    let mut watch = Watch::new(Charger::open(ChargerOptions::default()).unwrap());
    watch.pass().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let snapshot = watch.pass().unwrap();
    let listing = Roster::new(2000).update(&snapshot);
    let shared = Arc::new(Shared::default());
    shared.show(snapshot, listing, Own::default(), Duration::from_secs(600));
    let any_port = Address::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
    let server = shared.serve(&[any_port], None).unwrap();
    let Some(Address::Tcp(address)) = server.addresses().first() else {
        return;
    };
    let mut times = Vec::new();
    let mut size = 0;
    for _ in 0..50 {
        let started = Instant::now();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut text = Vec::new();
        stream.read_to_end(&mut text).unwrap();
        size = text.len();
        times.push(started.elapsed().as_secs_f64() * 1e3);
        std::thread::sleep(Duration::from_millis(40));
    }
    let worst = times.iter().copied().fold(0.0, f64::max);
    println!(
        "- scrape of 1,000 guests: median {:.2} ms, worst of 50 {worst:.2} ms (target 50 ms), {} KiB",
        median(times),
        size / 1024
    );
    // Processes end first: a group can only be removed afterwards.
    let (children, groups): (Vec<_>, Vec<_>) = live.into_iter().unzip();
    drop(children);
    drop(groups);
}

/// Returns the median and its 95 % interval, by ranks.
fn within(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let count = values.len();
    // The number of values left out at each end is the largest for which all of them are on one side of the median in
    // at most 2.5 % of cases.
    let (mut cut, mut below, mut ways) = (0, 0.0, 0.5f64.powi(i32::try_from(count).unwrap_or(0)));
    while cut + 1 < count {
        below += ways;
        if below > 0.025 {
            break;
        }
        ways *= (count - cut) as f64 / (cut + 1) as f64;
        cut += 1;
    }
    let (low, high) = (values[cut.saturating_sub(1)], values[count - cut.max(1)]);
    format!("× {:.4} [{low:.4}, {high:.4}]", median(values))
}

/// Returns the processor time in use since the host started, in seconds.
fn busy() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    let ticks: Vec<f64> = stat
        .split_whitespace()
        .skip(1)
        .take(8)
        .map(|number| number.parse().unwrap())
        .collect();
    let idle = ticks[3] + ticks[4] + ticks[7];
    (ticks.iter().sum::<f64>() - idle) / 100.0
}

/// Returns how often the kernel ran the programs, and for how long.
fn program_runs() -> (f64, f64) {
    const NAMES: [&str; 6] = [
        "softirq_entry",
        "softirq_exit",
        "napi_poll",
        "netif_receive_s",
        "net_dev_start_x",
        "block_rq_comple",
    ];
    aya::programs::loaded_programs()
        .flatten()
        .filter(|program| {
            let name = program.name_as_str();
            name.is_some_and(|name| NAMES.iter().any(|ours| name.starts_with(ours)))
        })
        .fold((0.0, 0.0), |(runs, time), program| {
            let new = (program.run_count() as f64, program.run_time().as_secs_f64());
            (runs + new.0, time + new.1)
        })
}

fn overhead() {
    println!("\n## Overhead of tracing: iperf3 over a veth pair, with and without\n");
    let setting = Setting::new(1);
    let container: &Namespace = &setting.containers[0].namespace;
    let iperf3 = Path::new("iperf3");
    let server = container
        .command(iperf3)
        .arg("-s")
        .stdout(Stdio::null())
        .spawn();
    let Ok(server) = server else {
        println!("SKIPPED: iperf3 is not installed");
        return;
    };
    let _server = Ends(server);
    std::thread::sleep(Duration::from_millis(300));
    let time = seconds("IPERF_SECONDS", 4).to_string();
    // Bits per second, and processor time per bit.
    let send = |limit: &str| -> Option<(f64, f64)> {
        let before = busy();
        let output = setting
            .client
            .command(iperf3)
            .args(["-c", "10.9.0.2", "-J", "-t", &time, "-b", limit])
            .output()
            .ok()?;
        let spent = busy() - before;
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
        let rate = json
            .pointer("/end/sum_received/bits_per_second")?
            .as_f64()?;
        let bits = json.pointer("/end/sum_received/bytes")?.as_f64()? * 8.0;
        Some((rate, spent / bits))
    };
    let trace = || {
        let hierarchy = Hierarchy::find(Path::new("/sys"));
        Traced::open(Path::new("/sys"), hierarchy.as_ref()).ok()
    };
    for (load, limit) in [("at 1 Gbit/s", "1G"), ("as fast as it goes", "0")] {
        let (mut rates, mut costs, mut plain) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..seconds("PAIRS", 10) {
            let with = || {
                let _traced = trace()?;
                send(limit)
            };
            let pair = if round % 2 == 0 {
                let without = send(limit);
                (with(), without)
            } else {
                (with(), send(limit))
            };
            let (Some(with), Some(without)) = pair else {
                println!("SKIPPED: iperf3 or BPF does not work here");
                return;
            };
            plain.push(without.0 / 1e9);
            rates.push(with.0 / without.0);
            costs.push(with.1 / without.1);
        }
        println!(
            "- {load}: {:.2} Gbit/s without tracing; with it throughput {}, processor time a bit {} (medians of {} pairs of {time} s, 95 %)",
            median(plain),
            within(rates.clone()),
            within(costs),
            rates.len(),
        );
        // The kernel's own statistics of the programs, which slow the programs slightly.
        let (Some(_traced), Ok(_counting)) =
            (trace(), aya::sys::enable_stats(aya::sys::Stats::RunTime))
        else {
            continue;
        };
        let (before, at) = (program_runs(), busy());
        if send(limit).is_none() {
            continue;
        }
        let (after, spent) = (program_runs(), busy() - at);
        let (runs, time) = (after.0 - before.0, after.1 - before.1);
        println!(
            "  the programs ran {runs:.0} times, {:.0} ns each: {:.2} % of the processor time used",
            time / runs * 1e9,
            time / spent * 100.0
        );
    }
}
