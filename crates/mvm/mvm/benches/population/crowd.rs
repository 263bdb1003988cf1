// SPDX-License-Identifier: Apache-2.0
//! Many guests in this monitor, parked in one process or live in many.

use crate::load::{load, processor_time};
use crate::table::{Cost, Marks, micros, row};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vtax_core::Bytes;
use vtax_kernel::MemInfo;
use vtax_kernel::stat::{CpuState, HostStat};
use vtax_mvm::Result;
use vtax_mvm::front::router::Router;
use vtax_mvm::image::Image;
use vtax_mvm::machine::kvm::Host;
use vtax_mvm::population::worker::{Addresses, Workers};
use vtax_mvm::population::{Holding, Plan, Population};
use vtax_mvm::shard::{GUESTS_PER_PROCESS, ShardCommand, Shards};

const ANYWHERE: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// Time for the kernel to free memory and update its counts.
const SETTLE: Duration = Duration::from_secs(1);

pub fn parked(count: u32) -> Result<Cost> {
    println!("# {count} guests, parked ({})", Host::backend());
    let before = host_memory();
    let start = Instant::now();
    let population = Arc::new(Population::new(Plan {
        image: Image::shipped("web").expect("shipped"),
        first: 0,
        count,
        holding: Holding::Parked,
    })?);
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let addresses = Addresses {
        http: Some(ANYWHERE),
        unix: None,
    };
    let workers = Workers::start(Arc::clone(&population), cores, &addresses)?;
    let mut marks = Marks::new(count);
    while !workers.stopped() {
        std::thread::sleep(Duration::from_millis(20));
        let booted = population.census().booted;
        marks.note(booted, start.elapsed());
        if booted >= count {
            break;
        }
    }
    if workers.stopped() {
        workers.stop()?;
        unreachable!("workers stop by themselves only with an error");
    }
    let (rate, first_rate) = marks.print("1,000,000 within 600 s");
    std::thread::sleep(SETTLE);
    let bytes = memory(before, count, "≤ 2,048 B")?;
    let census = population.full_census();
    assert_eq!(census.dead, 0);
    row(
        "  stored state, mean",
        format!("{:.0} B", census.stored_bytes as f64 / f64::from(count)),
        "",
    );
    idle(&[]);
    if let Some(address) = workers.http() {
        requests(address, count)?;
    }
    workers.stop()?;
    Ok(Cost {
        bytes,
        rate,
        first_rate,
    })
}

pub fn live(count: u32) -> Result<Cost> {
    let size = per_process();
    println!(
        "# {count} guests, live, {size} a process ({})",
        Host::backend()
    );
    let before = host_memory();
    let start = Instant::now();
    let command = ShardCommand {
        program: PathBuf::from(env!("CARGO_BIN_EXE_vtax-mvm")),
        words: vec!["shard".to_owned()],
    };
    let image = Image::shipped("web").expect("shipped");
    let mut shards = Shards::new(command, &image, size)?;
    let mut marks = Marks::new(count);
    shards.grow(count, || true, |booted| marks.note(booted, start.elapsed()))?;
    let (rate, first_rate) = marks.print("≥ 5,000 /s");
    std::thread::sleep(SETTLE);
    let bytes = memory(before, count, "")?;
    if std::env::var_os("BOOT_ONLY").is_none() {
        idle(&shards.pids().collect::<Vec<_>>());
        let router = Router::start(ANYWHERE, Arc::new(shards.route()))?;
        requests(router.address(), count)?;
    }
    let start = Instant::now();
    drop(shards);
    row(
        "ended and freed",
        format!("{:.1} s", start.elapsed().as_secs_f64()),
        "",
    );
    Ok(Cost {
        bytes,
        rate,
        first_rate,
    })
}

/// Live guests in one process, of this monitor or of bare KVM.
pub fn per_process() -> u32 {
    let asked = std::env::var("PER_PROCESS").ok();
    let asked = asked.and_then(|size| size.parse().ok());
    asked.unwrap_or(GUESTS_PER_PROCESS)
}

/// The host's memory; nothing where it cannot be read.
pub fn host_memory() -> MemInfo {
    MemInfo::read(Path::new("/proc")).unwrap_or_default()
}

/// Prints the host's memory per guest since `before` and its parts; returns the total per guest, in bytes.
pub fn memory(before: MemInfo, count: u32, target: &str) -> Result<f64> {
    let after = host_memory();
    let each = |more: Option<Bytes>, less: Option<Bytes>| {
        let [more, less] = [more, less].map(|bytes| bytes.unwrap_or_default().0);
        more.saturating_sub(less) as f64 / f64::from(count)
    };
    let bytes = each(before.available, after.available);
    row("memory a guest, all in", format!("{bytes:.0} B"), target);
    for (what, more) in [
        (
            "  of which processes' pages",
            each(after.anonymous, before.anonymous),
        ),
        ("  of which kernel slab", each(after.slab, before.slab)),
        (
            "  of which page tables",
            each(after.page_tables, before.page_tables),
        ),
    ] {
        row(what, format!("{more:.0} B"), "");
    }
    Ok(bytes)
}

fn idle(children: &[u32]) {
    let seconds = std::env::var("IDLE_SECONDS");
    let seconds: u64 = seconds.ok().and_then(|s| s.parse().ok()).unwrap_or(10);
    let used = processor_time(children);
    let time = Duration::from_secs(seconds);
    std::thread::sleep(time);
    let share = (processor_time(children) - used).as_secs_f64() / time.as_secs_f64() * 100.0;
    row(
        &format!("processor time, idle for {seconds} s"),
        format!("{share:.3} % of a core"),
        "≤ 0.1 %",
    );
}

/// Rounds of the load, so that a short disturbance of the host does not affect all of them.
const ROUNDS: usize = 3;

fn requests(address: SocketAddr, count: u32) -> Result<()> {
    load(address, count, "/hi", 500, 4, Duration::from_secs(1))?;
    let mut rounds = Vec::new();
    let mut answered = 0;
    let mut stolen = Vec::new();
    for _ in 0..ROUNDS {
        let before = stolen_time();
        let round = load(address, count, "/hi", 1000, 4, Duration::from_secs(10))?;
        stolen.push(format!("{:.1}", (stolen_time() - before) / 10.0 * 100.0));
        answered += round.count() - round.failed;
        rounds.push(round);
    }
    row(
        "HTTP, 1,000 requests/s open loop, answered",
        format!("{answered}"),
        &format!("{} in {ROUNDS} rounds", ROUNDS * 10_000),
    );
    for (name, quantile, target) in [
        ("  p50", 0.5, "≤ 300 µs"),
        ("  p99", 0.99, "≤ 1,000 µs"),
        ("  p99.9", 0.999, ""),
        ("  longest", 1.0, ""),
    ] {
        let times: Vec<String> = rounds
            .iter()
            .map(|round| format!("{:.0}", micros(round.quantile(quantile))))
            .collect();
        row(name, format!("{} µs", times.join(", ")), target);
    }
    row(
        "  time that the outer host took",
        format!("{} %", stolen.join(", ")),
        "of a core",
    );
    Ok(())
}

/// Steal time of this machine's processors, in seconds.
fn stolen_time() -> f64 {
    let stat = HostStat::read(Path::new("/proc")).unwrap_or_default();
    stat.times.in_state(CpuState::Steal).as_secs_f64()
}
