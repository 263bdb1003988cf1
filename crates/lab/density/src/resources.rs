// SPDX-License-Identifier: Apache-2.0
//! The use of the host's resources, as 0 to 100 %, from the kernel's accounts.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::time::Instant;
use vtax_core::Bytes;
use vtax_host::{HostError, Roots};
use vtax_kernel::stat::{CpuState, CpuTimes, HostStat, tasks};
use vtax_kernel::{MemInfo, net_devices};

/// A resource that can be exhausted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// The processor time of all processors.
    Cpu,
    /// Memory that is not available to new work.
    Memory,
    /// Swap space in use; absent on a host without swap.
    Swap,
    /// File descriptors: of the host, or of the one process that holds the guests.
    Descriptors,
    /// Process and thread IDs.
    Pids,
    /// Memory mappings of the one process that holds the guests.
    Mappings,
    /// Time that the busiest disk spends on requests.
    Disk,
    /// Traffic of the busiest network device whose speed is known, in its busier direction.
    Network,
}

impl Resource {
    /// Every resource, in the order of legends.
    pub const ALL: [Self; 8] = [
        Self::Cpu,
        Self::Memory,
        Self::Swap,
        Self::Descriptors,
        Self::Pids,
        Self::Mappings,
        Self::Disk,
        Self::Network,
    ];

    /// Its name in figures and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::Memory => "memory",
            Self::Swap => "swap",
            Self::Descriptors => "file descriptors",
            Self::Pids => "PIDs",
            Self::Mappings => "mappings",
            Self::Disk => "disk",
            Self::Network => "network",
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The use of each resource, in percent of its limit. A resource is absent where the host does not have it or its limit
/// is not known.
pub type Shares = BTreeMap<Resource, f64>;

/// The host's memory by its use, in bytes (`/proc/meminfo`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// All memory.
    pub total: f64,
    /// Memory available to new work without swapping, by the kernel's estimate.
    pub available: f64,
    /// Pages of processes: anonymous and shared memory.
    pub user: f64,
    /// Kernel objects.
    pub slab: f64,
    /// Page tables, of processes and of guests.
    pub page_tables: f64,
    /// Per-CPU allocations.
    pub per_cpu: f64,
    /// Kernel stacks.
    pub stacks: f64,
    /// Other accounted pages of the kernel, such as `vmalloc`, of which KVM uses much.
    pub vmalloc: f64,
    /// Swap in use.
    pub swap: f64,
    /// All swap.
    pub swap_total: f64,
}

impl Memory {
    /// The values of `info`; 0 for those that the kernel does not report.
    #[must_use]
    pub fn from_info(info: &MemInfo) -> Self {
        let bytes = |value: Option<Bytes>| value.unwrap_or_default().0 as f64;
        let swap_total = bytes(info.swap_total);
        Self {
            total: bytes(info.total),
            available: bytes(info.available),
            user: bytes(info.anonymous) + bytes(info.shared),
            slab: bytes(info.slab),
            page_tables: bytes(info.page_tables),
            per_cpu: bytes(info.per_cpu),
            stacks: bytes(info.kernel_stacks),
            vmalloc: bytes(info.vmalloc),
            swap: swap_total - bytes(info.swap_free),
            swap_total,
        }
    }

    /// Memory of the kernel by its accounts. Kernel stacks are part of `vmalloc`.
    #[must_use]
    pub fn kernel(&self) -> f64 {
        self.slab + self.page_tables + self.per_cpu + self.vmalloc.max(self.stacks)
    }
}

/// The accounts of a host at one time.
#[derive(Debug, Clone, Default)]
pub struct Accounts {
    /// The time of reading, for rates.
    pub at: Option<Instant>,
    /// Memory.
    pub memory: Memory,
    /// Processor time of all processors since boot.
    cpu: CpuTimes,
    /// Open files and their limit.
    handles: (f64, f64),
    /// Tasks and their limit.
    tasks: (f64, f64),
    /// Milliseconds that each disk has been busy.
    disks: BTreeMap<String, f64>,
    /// Bytes in and out of each network device, and its speed in bytes a second.
    links: BTreeMap<String, (f64, f64, f64)>,
}

impl Accounts {
    /// Reads the accounts that change fast and cost little: memory, descriptors and PIDs.
    ///
    /// # Errors
    /// When `/proc/meminfo` cannot be read.
    pub fn levels(roots: &Roots) -> Result<Self, HostError> {
        let memory = MemInfo::read(&roots.proc)?;
        let text = |file: &str| roots.proc_text(file).unwrap_or_default();
        let number = |text: String| text.parse::<f64>().unwrap_or(f64::INFINITY);
        let most_tasks =
            number(text("sys/kernel/pid_max")).min(number(text("sys/kernel/threads-max")));
        Ok(Self {
            at: Some(Instant::now()),
            memory: Memory::from_info(&memory),
            handles: handles(&text("sys/fs/file-nr")),
            tasks: (
                tasks(text("loadavg").as_bytes()).unwrap_or(0) as f64,
                most_tasks,
            ),
            ..Self::default()
        })
    }

    /// Reads all accounts.
    ///
    /// # Errors
    /// When `/proc/meminfo` cannot be read.
    pub fn read(roots: &Roots) -> Result<Self, HostError> {
        let text = |file: &str| roots.proc_text(file).unwrap_or_default();
        let speed = |device: &str| {
            roots
                .sys_text(&format!("class/net/{device}/speed"))
                .and_then(|text| text.parse::<f64>().ok())
                .filter(|megabits| *megabits > 0.0)
                .map(|megabits| megabits * 1e6 / 8.0)
        };
        Ok(Self {
            cpu: HostStat::read(&roots.proc).unwrap_or_default().times,
            disks: disks(&text("diskstats")),
            links: links(&text("net/dev"), speed),
            ..Self::levels(roots)?
        })
    }

    /// The levels, in percent. `process` has the descriptors and mappings of the one process that holds all guests,
    /// where one process does.
    #[must_use]
    pub fn level_shares(&self, process: Option<&ProcessLevels>) -> Shares {
        let mut shares = Shares::new();
        let memory = &self.memory;
        let mut put = |resource, used: f64, all: f64| {
            if all.is_finite() && all > 0.0 {
                shares.insert(resource, used / all * 100.0);
            }
        };
        put(
            Resource::Memory,
            memory.total - memory.available,
            memory.total,
        );
        put(Resource::Swap, memory.swap, memory.swap_total);
        put(Resource::Pids, self.tasks.0, self.tasks.1);
        put(Resource::Descriptors, self.handles.0, self.handles.1);
        if let Some(process) = process {
            let of_process = process.descriptors.0 / process.descriptors.1.max(1.0) * 100.0;
            let of_host = shares.get(&Resource::Descriptors).copied().unwrap_or(0.0);
            shares.insert(Resource::Descriptors, of_host.max(of_process));
            shares.insert(
                Resource::Mappings,
                process.mappings.0 / process.mappings.1.max(1.0) * 100.0,
            );
        }
        shares
    }

    /// Levels of `self`, and rates since `earlier`, in percent.
    #[must_use]
    pub fn shares_since(&self, earlier: &Self, process: Option<&ProcessLevels>) -> Shares {
        let mut shares = self.level_shares(process);
        if let Some(share) = self.cpu.since(&earlier.cpu).as_ref().and_then(busy_share) {
            shares.insert(Resource::Cpu, share * 100.0);
        }
        let seconds = match (self.at, earlier.at) {
            (Some(now), Some(then)) => now.saturating_duration_since(then).as_secs_f64(),
            _ => 0.0,
        };
        if seconds > 0.0 {
            let busiest = |shares: &mut dyn Iterator<Item = f64>| shares.reduce(f64::max);
            let disk = busiest(&mut self.disks.iter().filter_map(|(name, busy)| {
                Some((busy - earlier.disks.get(name)?) / (seconds * 1000.0) * 100.0)
            }));
            let link = busiest(
                &mut self.links.iter().filter_map(|(name, (rx, tx, speed))| {
                    let (rx0, tx0, _) = earlier.links.get(name)?;
                    Some((rx - rx0).max(tx - tx0) / (seconds * speed) * 100.0)
                }),
            );
            for (resource, share) in [(Resource::Disk, disk), (Resource::Network, link)] {
                if let Some(share) = share {
                    shares.insert(resource, share.clamp(0.0, 100.0));
                }
            }
        }
        shares
    }
}

/// Descriptors and mappings of one process: used, and the limit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ProcessLevels {
    /// File descriptors.
    pub descriptors: (f64, f64),
    /// Mappings.
    pub mappings: (f64, f64),
}

impl ProcessLevels {
    /// The descriptors and mappings of this process.
    #[must_use]
    pub fn own() -> Self {
        let descriptors = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        let mappings = fs::read("/proc/self/maps")
            .map_or(0, |maps| maps.iter().filter(|byte| **byte == b'\n').count());
        let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        Self {
            descriptors: (descriptors as f64, most.map_or(f64::INFINITY, |n| n as f64)),
            mappings: (mappings as f64, most_mappings()),
        }
    }
}

/// `vm.max_map_count`.
#[must_use]
pub fn most_mappings() -> f64 {
    fs::read_to_string("/proc/sys/vm/max_map_count")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(65_530.0)
}

/// The busy share of processor time. Waiting for a disk is idle. Stolen time did not belong to this host: it is neither
/// busy nor part of the total. `None` without any time.
fn busy_share(gain: &CpuTimes) -> Option<f64> {
    let busy = gain.sum(&CpuState::BUSY).as_secs_f64();
    let idle = gain.sum(&[CpuState::Idle, CpuState::Iowait]).as_secs_f64();
    (busy + idle > 0.0).then(|| busy / (busy + idle))
}

fn handles(file_nr: &str) -> (f64, f64) {
    let fields: Vec<f64> = file_nr
        .split_whitespace()
        .filter_map(|field| field.parse().ok())
        .collect();
    match fields[..] {
        [open, free, most] => (open - free, most),
        _ => (0.0, f64::INFINITY),
    }
}

/// Busy milliseconds of whole disks; partitions and memory disks are left out.
fn disks(diskstats: &str) -> BTreeMap<String, f64> {
    let disk = |line: &str| {
        let mut fields = line.split_whitespace();
        let name = fields.nth(2)?;
        let busy = fields.nth(9)?.parse().ok()?;
        let is_whole = !name.starts_with("loop") && !name.starts_with("ram");
        is_whole.then(|| (name.to_owned(), busy))
    };
    diskstats.lines().filter_map(disk).collect()
}

fn links(dev: &str, speed: impl Fn(&str) -> Option<f64>) -> BTreeMap<String, (f64, f64, f64)> {
    net_devices(dev.as_bytes())
        .filter_map(|device| {
            let (received, sent) = device.traffic()?;
            let name = String::from_utf8_lossy(device.name).into_owned();
            let speed = speed(&name)?;
            Some((name, (received.bytes as f64, sent.bytes as f64, speed)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::Path;
    use std::time::Duration;

    fn host(directory: &Path, files: &[(&str, &str)]) -> Roots {
        for (file, text) in files {
            let path = directory.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Roots::below(directory)
    }

    fn cpu_of(stat: &str) -> CpuTimes {
        HostStat::parse(stat.as_bytes()).unwrap().times
    }

    #[test]
    fn levels_are_shares_of_what_the_host_says_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let roots = host(
            folder.path(),
            &[
                (
                    "proc/meminfo",
                    "MemTotal: 1000 kB\nMemAvailable: 250 kB\nSwapTotal: 100 kB\nSwapFree: 90 kB\n",
                ),
                ("proc/loadavg", "0.20 0.18 0.12 1/80 11206"),
                ("proc/sys/kernel/pid_max", "160"),
                ("proc/sys/kernel/threads-max", "4000"),
                ("proc/sys/fs/file-nr", "300\t100\t1000"),
            ],
        );
        let shares = Accounts::levels(&roots).unwrap().level_shares(None);
        let wanted = [
            (Resource::Memory, 75.0),
            (Resource::Swap, 10.0),
            (Resource::Descriptors, 20.0),
            (Resource::Pids, 50.0),
        ];
        assert_eq!(shares, wanted.into_iter().collect::<Shares>());
    }

    #[test]
    fn a_single_process_can_run_out_before_the_host_does() {
        let accounts = Accounts {
            handles: (10.0, 100.0),
            ..Accounts::default()
        };
        let process = ProcessLevels {
            descriptors: (19.0, 20.0),
            mappings: (1.0, 4.0),
        };
        let shares = accounts.level_shares(Some(&process));
        assert_eq!(shares.get(&Resource::Descriptors), Some(&95.0));
        assert_eq!(shares.get(&Resource::Mappings), Some(&25.0));
        let shares = accounts.level_shares(None);
        assert_eq!(shares.get(&Resource::Descriptors), Some(&10.0));
        assert_eq!(shares.get(&Resource::Mappings), None, "nobody's limit");
    }

    #[test]
    fn rates_are_shares_of_the_time_between_two_readings() {
        let then = Instant::now();
        let stat = |busy: u32, idle: u32| cpu_of(&format!("cpu  {busy} 0 0 {idle} 0 0 0 50 0 0"));
        let earlier = Accounts {
            at: Some(then),
            cpu: stat(100, 100),
            disks: disks("8 0 sda 1 2 3 4 5 6 7 8 9 100 11\n7 0 loop0 1 2 3 4 5 6 7 8 9 0 11"),
            links: links(
                "eth0: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\nlo: 5 0 0 0 0 0 0 0 5 0 0 0 0 0 0 0",
                |name| (name == "eth0").then_some(1000.0),
            ),
            ..Accounts::default()
        };
        let later = Accounts {
            at: Some(then + Duration::from_secs(2)),
            cpu: stat(130, 170),
            disks: disks("8 0 sda 1 2 3 4 5 6 7 8 9 600 11\n7 0 loop0 1 2 3 4 5 6 7 8 9 999 11"),
            links: links("eth0: 100 0 0 0 0 0 0 0 800 0 0 0 0 0 0 0", |_| {
                Some(1000.0)
            }),
            ..Accounts::default()
        };
        let shares = later.shares_since(&earlier, None);
        assert_eq!(shares.get(&Resource::Cpu), Some(&30.0));
        assert_eq!(shares.get(&Resource::Disk), Some(&25.0));
        assert_eq!(shares.get(&Resource::Network), Some(&40.0));
    }

    proptest! {
        #[test]
        fn no_text_of_the_kernel_is_too_odd(text in "[ -~\n]{0,300}") {
            let _ = (handles(&text), disks(&text));
            let _ = links(&text, |_| Some(1.0));
        }

        #[test]
        fn rates_stay_within_bounds(busy in 0u32..1000, idle in 0u32..1000, io in 0.0..1e6f64) {
            let then = Instant::now();
            let earlier = Accounts { at: Some(then), disks: [("sda".to_owned(), 0.0)].into(), ..Accounts::default() };
            let later = Accounts {
                at: Some(then + Duration::from_millis(10)),
                cpu: cpu_of(&format!("cpu {busy} 0 0 {idle} 0 0 0 0")),
                disks: [("sda".to_owned(), io)].into(),
                ..Accounts::default()
            };
            for share in later.shares_since(&earlier, None).values() {
                prop_assert!((0.0..=100.0).contains(share));
            }
        }
    }
}
