// SPDX-License-Identifier: Apache-2.0
//! Simulates the hold modes on standard traffic and prints the saved notifications and the delays of each (modelled).

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use clap::Parser;
use vtax_nic::hold::{HoldSettings, Mode, Nanos};
use vtax_nic_driver::arrivals::Arrivals;
use vtax_nic_driver::simulation::{Outcome, Setup, Traffic, quantile, run};
use vtax_nic_driver::stream::Stream;

/// Simulate the hold modes on standard traffic
#[derive(Parser)]
struct Cli {
    /// T_buf in µs
    #[arg(long, default_value_t = 1_000)]
    budget_us: u32,
    /// Simulated seconds; mode paper needs more than its first 5
    #[arg(long, default_value_t = 20)]
    seconds: u32,
    /// Receive this trace instead: a file with one arrival time a line, in µs
    #[arg(long, value_name = "FILE")]
    trace: Option<std::path::PathBuf>,
}

fn main() {
    let cli = Cli::parse();
    let scenarios = match cli.trace.as_deref().map(Arrivals::from_file) {
        Some(Ok(trace)) => vec![("the trace".to_owned(), 1, Traffic::Receive(trace))],
        Some(Err(error)) => {
            eprintln!("hold-sim: {error}");
            std::process::exit(1);
        }
        None => standard(),
    };
    println!(
        "Modelled. T_buf {} µs, {} s of simulated time. Ratios are to mode off.\n",
        cli.budget_us, cli.seconds
    );
    println!(
        "| traffic | mode | calls/packet | kicks/packet | notifications ratio | hold p50 | hold p99 | TX wait p99 | packets ratio | timer wake-ups/s | calls/GB | Gb/s |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    for (name, ports, traffic) in scenarios {
        let setup = Setup {
            traffic,
            ports,
            budget: Nanos::from_micros(cli.budget_us),
            duration: Nanos::from_secs(cli.seconds),
        };
        let mut off = None;
        for mode in Mode::ALL {
            let settings = HoldSettings {
                mode,
                ..HoldSettings::default()
            };
            let outcome = run(&setup, || settings.controller());
            let off = off.get_or_insert_with(|| outcome.clone());
            println!("| {name} | {mode} | {} |", row(&outcome, off, cli.seconds));
        }
    }
}

fn row(outcome: &Outcome, off: &Outcome, seconds: u32) -> String {
    let packets = |outcome: &Outcome| (outcome.received + outcome.sent).max(1) as f64;
    let each = |count: u64, of: u64| match of {
        0 => "-".to_owned(),
        _ => format!("{:.3}", count as f64 / of as f64),
    };
    let of_stream = |value: f64, digits| match outcome.bytes {
        0 => "-".to_owned(),
        _ => format!("{value:.digits$}"),
    };
    let micros = |values: &[u64], part| match values {
        [] => "-".to_owned(),
        _ => format!("{:.0} µs", quantile(values, part).as_micros()),
    };
    [
        each(outcome.calls, outcome.received),
        each(outcome.kicks, outcome.sent),
        format!("{:.2}", outcome.per_packet() / off.per_packet()),
        micros(&outcome.rx_holds, 0.5),
        micros(&outcome.rx_holds, 0.99),
        micros(&outcome.tx_waits, 0.99),
        format!("{:.3}", packets(outcome) / packets(off)),
        format!("{:.0}", outcome.timer_wakeups as f64 / f64::from(seconds)),
        of_stream(outcome.calls as f64 * 1e9 / outcome.bytes as f64, 0),
        of_stream(outcome.bytes as f64 * 8e-9 / f64::from(seconds), 2),
    ]
    .join(" | ")
}

fn standard() -> Vec<(String, u32, Traffic)> {
    let poisson = |kpps: u32| Arrivals::Poisson {
        rate: f64::from(kpps) * 1e3,
    };
    let mut scenarios = Vec::new();
    let mut add = |name: String, traffic| scenarios.push((name, 1, traffic));
    for kpps in [1, 5, 20, 50, 100, 200, 500] {
        let arrivals = Traffic::Receive(poisson(kpps));
        add(format!("receive {kpps} kpps"), arrivals);
    }
    for kpps in [20, 200] {
        add(format!("send {kpps} kpps"), Traffic::Send(poisson(kpps)));
    }
    let acks = Traffic::ReceiveWithAcks(poisson(80));
    add("receive 80 kpps with acks".to_owned(), acks);
    let on_off = Arrivals::OnOff {
        rate: 100e3,
        on: Nanos::from_micros(10_000),
        off: Nanos::from_micros(90_000),
    };
    for (name, arrivals) in [
        ("100 kpps for 10 of 100 ms", on_off),
        ("10 Mb/s evenly spaced", Arrivals::TEN_MEGABITS),
        (
            "10 Mb/s in iperf's bursts",
            Arrivals::TEN_MEGABITS_IN_BURSTS,
        ),
    ] {
        add(name.to_owned(), Traffic::Receive(arrivals));
    }
    for outstanding in [1, 4, 32] {
        let think = Nanos::from_micros(50);
        let traffic = Traffic::Transactions { outstanding, think };
        add(format!("{outstanding} outstanding transactions"), traffic);
    }
    for (direction, guest_sends) in [("receive", false), ("send", true)] {
        for (rate, speed) in [(None, "at full speed"), (Some(100_000_000), "at 100 Mb/s")] {
            let traffic = Traffic::Stream(Stream::of_testbed(guest_sends, rate));
            add(format!("{direction} a TCP stream {speed}"), traffic);
        }
    }
    for kpps in [1, 5] {
        let name = format!("64 ports receive {kpps} kpps");
        scenarios.push((name, 64, Traffic::Receive(poisson(kpps))));
    }
    scenarios
}
