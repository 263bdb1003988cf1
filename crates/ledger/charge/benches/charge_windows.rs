// SPDX-License-Identifier: Apache-2.0
//! Both methods of charge-back side by side on this machine's kernel, over the same windows:
//! `make bench-charge`, or `cargo bench -p vtax-charge --bench charge_windows`.
//!
//! Containers (a control group and a network namespace each) receive datagrams of 64 bytes at fixed
//! rates from a client in another namespace. One process charges them by both methods at once, so that
//! both see the same interval, and prints what each charged in windows of 6 s and over a minute. Every soft
//! interrupt is traced; with `BY_LOT=1`, as many as charge-back traces by itself. `WINDOWS` is their number.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a benchmark that cannot be set up should fail"
)]

use std::net::UdpSocket;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use vtax_charge::{Charger, ChargerOptions, Ledger, MethodChoice, Stage};
use vtax_observe::clock::SystemClock;
use vtax_testkit::containers::Setting;

/// Datagrams a second for each container, in each of the loads.
const LOADS: [&[u64]; 3] = [&[31_000], &[31_000, 8_000], &[31_000, 8_000, 2_000]];

/// Bytes of a datagram.
const SIZE: usize = 64;

/// A window, in passes of one second.
const WINDOW: u64 = 6;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize| {
        let text = arguments.get(index);
        text.and_then(|text| text.parse().ok()).unwrap_or(0)
    };
    match arguments.first().map(String::as_str) {
        Some("receive") => return receive(),
        Some("send") => return send(number(1), number(2), number(3)),
        _ => {}
    }
    let windows = std::env::var("WINDOWS").ok();
    let windows = windows.and_then(|text| text.parse().ok()).unwrap_or(10);
    for load in LOADS {
        compare(load, windows);
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

/// Sends at a fixed rate, in bursts of a millisecond.
fn send(to: u64, rate: u64, milliseconds: u64) {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect(format!("10.9.{to}.2:9999")).unwrap();
    let (started, mut sent) = (Instant::now(), 0u64);
    for millisecond in 1..=milliseconds {
        while sent < millisecond * rate / 1000 {
            let _ = socket.send(&[0; SIZE]);
            sent += 1;
        }
        let due = Duration::from_millis(millisecond);
        std::thread::sleep(due.saturating_sub(started.elapsed()));
    }
}

struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Seconds that a method charged a container.
#[derive(Debug, Clone, Copy, Default)]
struct Charged {
    softirq: f64,
    softirq_error: f64,
    own: f64,
    own_error: f64,
}

impl Charged {
    /// Of a container, or of the host.
    fn add(&mut self, ledger: &Ledger, number: Option<u32>) {
        let Some(number) = number else {
            self.softirq += ledger.host_softirq.as_secs_f64();
            self.own += ledger.host.as_secs_f64();
            if let Some(modelled) = ledger.modelled {
                self.softirq_error += modelled.softirq.as_secs_f64();
                self.own_error += modelled.own.unwrap_or_default().as_secs_f64();
            }
            return;
        };
        let Some(row) = ledger.row(number) else {
            return;
        };
        self.softirq += row.stages.get(Stage::Softirq).as_secs_f64();
        self.own += row.stages.get(Stage::Vcpu).as_secs_f64();
        if let Some(modelled) = row.modelled {
            self.softirq_error += modelled.softirq.as_secs_f64();
            self.own_error += modelled.own.unwrap_or_default().as_secs_f64();
        }
    }
}

fn compare(rates: &[u64], windows: usize) {
    let setting = Setting::new(rates.len());
    let options = ChargerOptions {
        method: MethodChoice::Both,
        traces_all: std::env::var_os("BY_LOT").is_none(),
        ..ChargerOptions::default()
    };
    let mut charger = match Charger::open(options) {
        Ok(charger) => charger,
        Err(error) => return println!("SKIPPED: {error}"),
    };
    let program = std::env::current_exe().unwrap();
    let _receivers: Vec<Ends> = setting
        .containers
        .iter()
        .map(|container| {
            let mut command = container.namespace.command(&program);
            let child = command.arg("receive").spawn().unwrap();
            container.adopt(&child);
            Ends(child)
        })
        .collect();
    charger.pass(&SystemClock).unwrap();
    let containers = setting.numbers(&charger).into_iter().map(Some);
    let numbers: Vec<Option<u32>> = containers.chain([None]).collect();
    let send = || {
        let time = (WINDOW + 1) * 1000;
        let of = |(to, rate): (usize, &u64)| {
            let mut command = setting.client.command(&program);
            command
                .arg("send")
                .args([to as u64, *rate, time].map(|n| n.to_string()));
            Ends(command.stdout(Stdio::null()).spawn().unwrap())
        };
        rates.iter().enumerate().map(of).collect::<Vec<Ends>>()
    };
    println!("\n### {rates:?} datagrams of {SIZE} bytes a second\n");
    println!("| window | | soft interrupts, traced | counted | own, traced | counted |");
    println!("|---|---|---:|---:|---:|---:|");
    let mut minute = vec![[Charged::default(); 2]; numbers.len()];
    for window in 1..=windows {
        // A new sender in each window begins at another moment of the kernel's tick.
        let _senders = send();
        std::thread::sleep(Duration::from_millis(300));
        charger.pass(&SystemClock).unwrap();
        let mut sums = vec![[Charged::default(); 2]; numbers.len()];
        for _ in 0..WINDOW {
            std::thread::sleep(Duration::from_secs(1));
            let pass = charger.pass(&SystemClock).unwrap();
            for (number, sums) in numbers.iter().zip(&mut sums) {
                for ((_, ledger), sum) in pass.ledgers.iter().zip(sums) {
                    sum.add(ledger, *number);
                }
            }
        }
        for ((index, sums), minute) in sums.iter().enumerate().zip(&mut minute) {
            print(&window.to_string(), rates.get(index), sums);
            for (total, sum) in minute.iter_mut().zip(sums) {
                total.softirq += sum.softirq;
                total.own += sum.own;
                total.softirq_error += sum.softirq_error;
                total.own_error += sum.own_error;
            }
        }
    }
    for (index, sums) in minute.iter().enumerate() {
        print("**all**", rates.get(index), sums);
    }
}

fn print(window: &str, rate: Option<&u64>, [traced, counted]: &[Charged; 2]) {
    let whose = rate.map_or("host".to_owned(), |rate| format!("{rate} /s"));
    println!(
        "| {window} | {whose} | {:.2} | {:.2} ± {:.2} | {:.2} | {:.2} ± {:.2} |",
        traced.softirq,
        counted.softirq,
        counted.softirq_error,
        traced.own,
        counted.own,
        counted.own_error
    );
}
