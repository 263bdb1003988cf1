//! Measures a population: boot rate, bytes a guest, idle processor time, response times.
//!
//! `cargo bench -p vtax-mvm --bench population -- [parked COUNT] [live COUNT]`; prints a table.

#![allow(clippy::expect_used)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vtax_mvm::Result;
use vtax_mvm::image::Image;
use vtax_mvm::machine::kvm::{Arena, Host, Slot, Tenancy};
use vtax_mvm::machine::{Clock, devices::Devices, run};
use vtax_mvm::measure::{HostMemory, load, processor_time};
use vtax_mvm::population::worker::{Addresses, Workers};
use vtax_mvm::population::{Holding, Plan, Population};

/// Memory that stays free for the rest of the host.
const RESERVE: u64 = 6 << 30;

fn main() {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with("--"))
        .collect();
    let outcome = if words.is_empty() {
        alone()
            .and_then(|()| population(Holding::Parked, 10_000, 10))
            .and_then(|()| population(Holding::Live, 1000, 10))
    } else {
        words.chunks(2).try_for_each(|pair| match pair {
            [kind, count] => {
                let count = count.parse().unwrap_or(1000);
                let idle = std::env::var("IDLE_SECONDS")
                    .ok()
                    .and_then(|s| s.parse().ok())
                    .unwrap_or(10);
                let holding = if kind == "live" {
                    Holding::Live
                } else {
                    Holding::Parked
                };
                population(holding, count, idle)
            }
            _ => alone(),
        })
    };
    if let Err(cause) = outcome {
        eprintln!("{cause}");
        std::process::exit(1);
    }
}

fn row(what: &str, value: String, target: &str) {
    println!("{what:<44} {value:>22}   {target}");
}

/// One live guest without any front: the cost of a serial request alone.
fn alone() -> Result<()> {
    println!("# one guest, no front ({})", Host::backend());
    let image = Image::shipped("web").expect("shipped");
    let host = Host::open()?;
    let arena = Arena::new(1)?;
    let mut slot = Slot::new(&host, &arena, 0, &image, Tenancy::Turns)?;
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

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn population(holding: Holding, count: u32, idle_seconds: u64) -> Result<()> {
    println!("# {count} guests, {holding:?} ({})", Host::backend());
    let before = HostMemory::read()?;
    let image = Image::shipped("web").expect("shipped");
    let start = Instant::now();
    let population = Arc::new(Population::new(Plan {
        image,
        first: 0,
        count,
        holding,
    })?);
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let addresses = Addresses {
        http: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        unix: None,
    };
    let workers = Workers::start(Arc::clone(&population), cores, &addresses)?;
    let mut marks = vec![(0u32, Duration::ZERO)];
    loop {
        std::thread::sleep(Duration::from_millis(50));
        let booted = population.census().booted;
        let memory = HostMemory::read()?;
        if memory.available < RESERVE {
            eprintln!("stopped at {booted}: less than 6 GiB of memory would stay available");
            std::process::exit(1);
        }
        if booted as usize >= marks.len() * (count as usize / 10).max(1) || booted >= count {
            marks.push((booted, start.elapsed()));
        }
        if booted >= count {
            break;
        }
        if workers.stopped() {
            return workers.stop();
        }
    }
    let booting = start.elapsed();
    std::thread::sleep(Duration::from_millis(200));
    let after = HostMemory::read()?;
    let census = population.full_census();
    assert_eq!(census.dead, 0);
    let each = |bytes: u64| format!("{:.0} B", bytes as f64 / f64::from(count));
    let rate = |(from, t0): (u32, Duration), (to, t1): (u32, Duration)| {
        f64::from(to - from) / (t1 - t0).as_secs_f64()
    };
    row(
        "booted, each by its own boot sector",
        format!("{:.1} s", booting.as_secs_f64()),
        "1,000,000 parked ≤ 600 s",
    );
    row(
        "boot rate, overall",
        format!("{:.0} /s", f64::from(count) / booting.as_secs_f64()),
        "live ≥ 5,000 /s",
    );
    if let [first, second, .., last_but_one, last] = marks[..] {
        row(
            "boot rate, first tenth",
            format!("{:.0} /s", rate(first, second)),
            "",
        );
        row(
            "boot rate, last tenth",
            format!("{:.0} /s", rate(last_but_one, last)),
            "live ≥ half of the first",
        );
    }
    row(
        "memory a guest, all in",
        each(before.available.saturating_sub(after.available)),
        "parked ≤ 2,048 B",
    );
    row(
        "  of which processes' pages",
        each(after.anonymous.saturating_sub(before.anonymous)),
        "",
    );
    row(
        "  of which kernel slab",
        each(after.slab.saturating_sub(before.slab)),
        "",
    );
    row(
        "  of which page tables",
        each(after.page_tables.saturating_sub(before.page_tables)),
        "",
    );
    row("  stored state, mean", each(census.stored_bytes), "");
    let used = processor_time(&[]);
    let idle = Duration::from_secs(idle_seconds);
    std::thread::sleep(idle);
    let share = (processor_time(&[]) - used).as_secs_f64() / idle.as_secs_f64() * 100.0;
    row(
        &format!("processor time, idle for {idle_seconds} s"),
        format!("{share:.3} % of a core"),
        "≤ 0.1 %",
    );
    let Some(address) = workers.http() else {
        return Ok(());
    };
    load(address, count, "/hi", 500, 4, Duration::from_secs(1))?;
    let latencies = load(address, count, "/hi", 1000, 4, Duration::from_secs(10))?;
    row(
        "HTTP, 1,000 requests/s open loop, answered",
        format!("{}", latencies.count() - latencies.failed),
        "10,000",
    );
    row(
        "  p50",
        format!("{:.0} µs", micros(latencies.quantile(0.5))),
        "≤ 300 µs",
    );
    row(
        "  p99",
        format!("{:.0} µs", micros(latencies.quantile(0.99))),
        "≤ 1,000 µs",
    );
    row(
        "  p99.9",
        format!("{:.0} µs", micros(latencies.quantile(0.999))),
        "",
    );
    workers.stop()
}
