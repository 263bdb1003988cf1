// SPDX-License-Identifier: Apache-2.0
//! Measures the hold modes over a running vtax-nic, with drivers for guests, and prints Markdown.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use vtax_files::FileError;
use vtax_kernel::stat::{CpuState, HostStat};
use vtax_nic::hold::{Mode, Nanos};
use vtax_nic_driver::arrivals::Arrivals;
use vtax_nic_driver::backend::{Backend, BackendError, Usage};
use vtax_nic_driver::load::{Stream, ping_pong, stream};
use vtax_nic_driver::nic::{Nic, Options};
use vtax_nic_driver::simulation::quantile;

/// Measure the hold modes of vtax-nic
#[derive(Parser)]
struct Cli {
    /// The vtax-nic to measure
    #[arg(long, value_name = "PATH")]
    program: PathBuf,
    /// T_buf in µs
    #[arg(long, default_value_t = 1_000)]
    budget_us: u32,
    /// Seconds for each measurement
    #[arg(long, default_value_t = 2)]
    seconds: u32,
    /// Only these parts: receive, send, ten-megabits, idle, transactions, ports
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// The processor of the sender, which spins. The guest and the back end share the other processor.
const SENDER_CPU: usize = 0;
const OTHER_CPU: usize = 1;

/// The rounds in which compared modes take turns, so that a slow drift of the machine affects all modes alike.
const ROUNDS: u32 = 3;

/// The largest steal time, as a part of a processor, at which delays of wake-ups are attributed to the program.
const MOST_STEAL: f64 = 0.005;

/// The modes that tables of streams compare, the first with the others.
const MODES: [Mode; 3] = [Mode::Off, Mode::Fixed, Mode::Adaptive];

const SMALL_FRAME: usize = 64;
const LARGE_FRAME: usize = 1_514;

fn main() -> ExitCode {
    let bench = Bench {
        cli: Cli::parse(),
        aims: RefCell::default(),
    };
    match bench.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hold-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Counts of many ports, and the processor time of their back end.
#[derive(Default)]
struct Ports {
    cpu: Duration,
    received: u64,
    calls: u64,
    lost: u64,
}

/// Measurements of a link without traffic, and of packets that come alone.
#[derive(Default)]
struct Idle {
    sleeps: u64,
    cpu: Duration,
    delays: Vec<u64>,
}

struct Bench {
    cli: Cli,
    aims: RefCell<Vec<Aim>>,
}

/// A target of the NIC and the measured value.
struct Aim {
    what: String,
    bound: Bound,
    seen: f64,
    unit: &'static str,
}

#[derive(Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Aim {
    fn row(&self) -> String {
        let (bound, met) = match self.bound {
            Bound::AtLeast(bound) => (format!("≥ {bound}"), self.seen >= bound),
            Bound::AtMost(bound) => (format!("≤ {bound}"), self.seen <= bound),
        };
        let digits = if self.seen >= 100.0 { 0 } else { 2 };
        format!(
            "| {} | {bound}{unit} | {:.digits$}{unit} | {} |",
            self.what,
            self.seen,
            if met { "met" } else { "missed" },
            unit = self.unit
        )
    }
}

/// A back end with links, and drivers at both ends of each link.
struct Links {
    a: Vec<Nic>,
    b: Vec<Nic>,
    backend: Backend,
    _directory: PathGuard,
}

/// A directory that is removed when this is dropped.
struct PathGuard(PathBuf);

impl Drop for PathGuard {
    fn drop(&mut self) {
        // A directory that cannot be removed is no failure.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Bench {
    fn run(&self) -> Result<(), BackendError> {
        println!(
            "Measured. T_buf {} µs, {} s each; drivers instead of guests; the sender spins on a\n\
             processor of its own, back end and receiver share another.",
            self.cli.budget_us, self.cli.seconds
        );
        type Part = fn(&Bench) -> Result<(), BackendError>;
        let parts: [(&str, Part); 6] = [
            ("receive", Self::receive),
            ("send", Self::send),
            ("ten-megabits", Self::ten_megabits),
            ("idle", Self::idle),
            ("transactions", Self::transactions),
            ("ports", Self::ports),
        ];
        for (name, part) in parts {
            if self.cli.only.is_empty() || self.cli.only.iter().any(|only| only == name) {
                part(self)?;
            }
        }
        println!("\n### Against the aims\n");
        println!("| what | aim | measured | |\n|---|---|---|---|");
        for aim in self.aims.borrow().iter() {
            println!("{}", aim.row());
        }
        Ok(())
    }

    fn aim(&self, what: impl Into<String>, bound: Bound, (seen, unit): (f64, &'static str)) {
        self.aims.borrow_mut().push(Aim {
            what: what.into(),
            bound,
            seen,
            unit,
        });
    }

    fn budget_seconds(&self) -> f64 {
        f64::from(self.cli.budget_us) / 1e6
    }

    fn links(&self, count: usize, mode: Mode) -> Result<Links, BackendError> {
        let directory =
            PathGuard(std::env::temp_dir().join(format!("hold-bench-{}", std::process::id())));
        std::fs::create_dir_all(&directory.0).map_err(FileError::of("make", &directory.0))?;
        let settings = (mode, self.cli.budget_us);
        let path: &Path = &directory.0;
        let backend = Backend::start(&self.cli.program, path, count, settings, Some(OTHER_CPU))?;
        let connect = |side: &str| {
            (0..count)
                .map(|n| backend.connect(&format!("{side}{n}"), Options::default()))
                .collect::<Result<Vec<Nic>, _>>()
        };
        Ok(Links {
            a: connect("a")?,
            b: connect("b")?,
            backend,
            _directory: directory,
        })
    }

    fn duration(&self) -> Nanos {
        Nanos::from_secs(self.cli.seconds)
    }

    /// Sends frames from A to B. The notifications of B are held.
    fn to_b(&self, links: &mut Links, arrivals: &Arrivals, len: usize) -> Stream {
        let (shape, cpus) = ((len, self.duration()), (SENDER_CPU, OTHER_CPU));
        stream(&mut links.a, &mut links.b, arrivals, shape, cpus)
    }

    fn receive(&self) -> Result<(), BackendError> {
        println!("\n### Receiving 64-byte frames, Poisson\n");
        let traffic = [20, 50, 100, 200].map(|kpps| (format!("{kpps} kpps"), poisson(kpps)));
        self.table_of_streams(&traffic, SMALL_FRAME)
    }

    fn ten_megabits(&self) -> Result<(), BackendError> {
        println!("\n### 10 Mb/s in 1500-byte frames\n");
        let traffic = [
            ("evenly spaced", Arrivals::TEN_MEGABITS),
            ("in iperf's bursts", Arrivals::TEN_MEGABITS_IN_BURSTS),
        ];
        let traffic = traffic.map(|(name, arrivals)| (name.to_owned(), arrivals));
        self.table_of_streams(&traffic, LARGE_FRAME)
    }

    fn table_of_streams(
        &self,
        traffic: &[(String, Arrivals)],
        len: usize,
    ) -> Result<(), BackendError> {
        println!(
            "| traffic | mode | calls/s | calls/packet | against off | hold p50 | hold p99 | delay p50 | delay p99 | lost | back end CPU |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|---|");
        for (name, arrivals) in traffic {
            let mut off = None;
            for mode in MODES {
                let mut links = self.links(1, mode)?;
                let (before, stolen) = (links.backend.usage()?, stolen());
                let seen = self.to_b(&mut links, arrivals, len);
                let stolen = self.part(self::stolen().saturating_sub(stolen));
                let after = links.backend.usage()?;
                let hold = links.backend.stats("b0")?.hold_ns.quantiles;
                let per_packet = seen.receiver.calls as f64 / seen.received.max(1) as f64;
                println!(
                    "| {name} | {mode} | {:.0} | {per_packet:.3} | {:.2} | {} | {} | {} | {} | {} | {} |",
                    seen.receiver.calls as f64 / f64::from(self.cli.seconds),
                    per_packet / *off.get_or_insert(per_packet),
                    micros(hold.p50),
                    micros(hold.p99),
                    micros(quantile(&seen.delays, 0.5).0),
                    micros(quantile(&seen.delays, 0.99).0),
                    seen.lost + seen.refused,
                    self.cpu(before, after),
                );
                if mode == Mode::Adaptive {
                    let calls = seen.receiver.calls as f64 / f64::from(self.cli.seconds);
                    let most = Bound::AtMost(1.1 / self.budget_seconds());
                    self.aim(format!("calls, {name}"), most, (calls, "/s"));
                    let beyond = (hold.p99 as f64 / 1e3 - self.budget_seconds() * 1e6).max(0.0);
                    let what = format!("p99 of holds beyond the budget, {name}");
                    let what = match stolen {
                        ..MOST_STEAL => what,
                        _ => format!("{what} ({:.1} % stolen: says nothing)", stolen * 100.0),
                    };
                    self.aim(what, Bound::AtMost(50.0), (beyond, " µs"));
                }
            }
        }
        Ok(())
    }

    fn send(&self) -> Result<(), BackendError> {
        println!("\n### Sending 64-byte frames, Poisson\n");
        println!(
            "| traffic | mode | kicks/s | kicks/packet | against off | delay p50 | delay p99 | lost | back end CPU |"
        );
        println!("|---|---|---|---|---|---|---|---|---|");
        for kpps in [20, 100] {
            let arrivals = poisson(kpps);
            let mut off = None;
            for mode in MODES {
                let mut links = self.links(1, mode)?;
                let before = links.backend.usage()?;
                let (shape, cpus) = ((SMALL_FRAME, self.duration()), (SENDER_CPU, OTHER_CPU));
                let seen = stream(&mut links.b, &mut links.a, &arrivals, shape, cpus);
                let after = links.backend.usage()?;
                let per_packet = seen.sender.kicks as f64 / seen.due.max(1) as f64;
                println!(
                    "| {kpps} kpps | {mode} | {:.0} | {per_packet:.3} | {:.2} | {} | {} | {} | {} |",
                    seen.sender.kicks as f64 / f64::from(self.cli.seconds),
                    per_packet / *off.get_or_insert(per_packet),
                    micros(quantile(&seen.delays, 0.5).0),
                    micros(quantile(&seen.delays, 0.99).0),
                    seen.lost + seen.refused,
                    self.cpu(before, after),
                );
            }
        }
        Ok(())
    }

    fn idle(&self) -> Result<(), BackendError> {
        println!("\n### Idle, and the first packet after idle\n");
        println!(
            "| mode | wake-ups/s while idle | CPU while idle | delay of a packet every 20 ms, p50 | p99 | against off, p50 |"
        );
        println!("|---|---|---|---|---|---|");
        let mut off = None;
        let mut seen = Mode::ALL.map(|mode| (mode, Idle::default()));
        let part = Duration::from_secs(self.cli.seconds.into()) / ROUNDS;
        for _ in 0..ROUNDS {
            for (mode, idle) in &mut seen {
                let mut links = self.links(1, *mode)?;
                self.to_b(&mut links, &poisson(50), SMALL_FRAME);
                std::thread::sleep(Duration::from_millis(100));
                let before = links.backend.usage()?;
                std::thread::sleep(part);
                let after = links.backend.usage()?;
                idle.sleeps += after.sleeps - before.sleeps;
                idle.cpu += after.cpu.saturating_sub(before.cpu);
                let sparse = self.to_b(&mut links, &Arrivals::Constant { rate: 50.0 }, SMALL_FRAME);
                idle.delays.extend(sparse.delays);
            }
        }
        for (mode, mut idle) in seen {
            idle.delays.sort_unstable();
            let median = quantile(&idle.delays, 0.5).0;
            println!(
                "| {mode} | {:.1} | {:.1} % | {} | {} | {:.2} |",
                idle.sleeps as f64 / f64::from(self.cli.seconds),
                100.0 * self.part(idle.cpu),
                micros(median),
                micros(quantile(&idle.delays, 0.99).0),
                median as f64 / *off.get_or_insert(median as f64),
            );
            if mode == Mode::Adaptive {
                let over = median as f64 / off.unwrap_or(f64::NAN);
                let what = "first packet after idle over `off`";
                self.aim(what, Bound::AtMost(1.05), (over, "×"));
            }
        }
        Ok(())
    }

    fn transactions(&self) -> Result<(), BackendError> {
        println!("\n### One transaction at a time (as TCP_RR)\n");
        println!("| mode | transactions/s | against off | round trip p50 | p99 |");
        println!("|---|---|---|---|---|");
        let mut off = None;
        let mut seen: Vec<(Mode, Vec<u64>)> = Mode::ALL.map(|mode| (mode, Vec::new())).into();
        let part = Duration::from_secs(self.cli.seconds.into()) / ROUNDS;
        for _ in 0..ROUNDS {
            for (mode, round_trips) in &mut seen {
                let mut links = self.links(1, *mode)?;
                let (Some(a), Some(b)) = (links.a.first_mut(), links.b.first_mut()) else {
                    continue;
                };
                round_trips.extend(ping_pong(a, b, part, (SENDER_CPU, OTHER_CPU)).round_trips);
            }
        }
        for (mode, mut round_trips) in seen {
            round_trips.sort_unstable();
            let rate = round_trips.len() as f64 / f64::from(self.cli.seconds);
            println!(
                "| {mode} | {rate:.0} | {:.3} | {} | {} |",
                rate / *off.get_or_insert(rate),
                micros(quantile(&round_trips, 0.5).0),
                micros(quantile(&round_trips, 0.99).0),
            );
            if mode == Mode::Adaptive {
                let over = rate / off.unwrap_or(f64::NAN);
                let what = "one transaction at a time over `off`";
                self.aim(what, Bound::AtLeast(0.98), (over, "×"));
            }
        }
        Ok(())
    }

    /// The back end has a processor of its own. If it shared one with the receivers, frequent calls would delay its
    /// wake-ups and so enlarge its batches.
    fn ports(&self) -> Result<(), BackendError> {
        println!("\n### Many ports, each receiving 1 kpps, Poisson\n");
        println!(
            "| ports | mode | packets/s | calls/packet | back end CPU | CPU a packet | lost |"
        );
        println!("|---|---|---|---|---|---|---|");
        for links in [4, 8, 16, 32] {
            let mut off = None;
            let mut seen = [Mode::Off, Mode::Adaptive].map(|mode| (mode, Ports::default()));
            for _ in 0..ROUNDS {
                for (mode, ports) in &mut seen {
                    let mut all = self.links(links, *mode)?;
                    let before = all.backend.usage()?;
                    let (shape, arrivals) = ((SMALL_FRAME, self.duration()), poisson(1));
                    let cpus = (SENDER_CPU, SENDER_CPU);
                    let stream = stream(&mut all.a, &mut all.b, &arrivals, shape, cpus);
                    let after = all.backend.usage()?;
                    ports.cpu += after.cpu.saturating_sub(before.cpu);
                    ports.received += stream.received;
                    ports.calls += stream.receiver.calls;
                    ports.lost += stream.lost + stream.refused;
                }
            }
            let seconds = f64::from(self.cli.seconds * ROUNDS);
            for (mode, ports) in seen {
                let received = ports.received.max(1) as f64;
                let each = ports.cpu.as_secs_f64() * 1e6 / received;
                println!(
                    "| {} | {mode} | {:.0} | {:.3} | {:.1} % | {each:.2} µs | {} |",
                    2 * links,
                    received / seconds,
                    ports.calls as f64 / received,
                    100.0 * ports.cpu.as_secs_f64() / seconds,
                    ports.lost,
                );
                let over = each / *off.get_or_insert(each);
                if mode == Mode::Adaptive && links == 32 {
                    let what = "64 ports at 1 kpps: CPU for a packet over `off`";
                    self.aim(what, Bound::AtMost(1.0), (over, "×"));
                }
            }
        }
        println!(
            "\nTwo ports a link; one of them sends. Senders and receivers share a processor, the back end has the other."
        );
        Ok(())
    }

    /// Processor time as a part of the measured time.
    fn cpu(&self, before: Usage, after: Usage) -> String {
        let used = after.cpu.saturating_sub(before.cpu);
        format!("{:.1} %", 100.0 * self.part(used))
    }

    fn part(&self, time: Duration) -> f64 {
        time.as_secs_f64() / f64::from(self.cli.seconds)
    }
}

/// The steal time of all processors so far; zero where the kernel does not report it.
fn stolen() -> Duration {
    let stat = HostStat::read(Path::new("/proc")).unwrap_or_default();
    Duration::from_nanos(stat.times.in_state(CpuState::Steal).0)
}

fn poisson(kpps: u32) -> Arrivals {
    Arrivals::Poisson {
        rate: f64::from(kpps) * 1e3,
    }
}

fn micros(nanos: u64) -> String {
    format!("{:.0} µs", nanos as f64 / 1e3)
}
