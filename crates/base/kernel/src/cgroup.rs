// SPDX-License-Identifier: Apache-2.0
//! Control groups, v1 and v2: the groups of a process, and the values in a group's files.
//!
//! v1 has one hierarchy for each controller or set of controllers, v2 has one for all (cgroups(7),
//! `Documentation/admin-guide/cgroup-v2.rst`); a hybrid host has both.

use crate::{KernelError, KernelFile, of_ticks, read, text};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use vtax_core::{Bytes, Nanoseconds};

/// A line of `/proc/PID/cgroup`: the group of a process in one hierarchy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Membership<'a> {
    /// The hierarchy's controllers, or its name, as in `cpu,cpuacct` or `name=systemd`; empty on v2.
    pub controllers: &'a [u8],
    /// The group's path below the root of the hierarchy.
    pub path: &'a Path,
}

impl Membership<'_> {
    /// Whether this is the v2 hierarchy.
    pub fn is_v2(&self) -> bool {
        self.controllers.is_empty()
    }

    /// Whether this is the v1 hierarchy of a controller.
    pub fn has(&self, controller: &str) -> bool {
        let mut names = self.controllers.split(|byte| *byte == b',');
        names.any(|name| name == controller.as_bytes())
    }

    /// The directories of the group and of its ancestors, innermost first, where the hierarchy's root is mounted at
    /// `mounted`.
    pub fn directories(&self, mounted: &Path) -> Vec<PathBuf> {
        let below = self.path.strip_prefix("/").unwrap_or(self.path);
        below.ancestors().map(|group| mounted.join(group)).collect()
    }
}

/// The groups of a process, from the text of `/proc/PID/cgroup`; other lines are skipped.
pub fn memberships(text: &[u8]) -> impl Iterator<Item = Membership<'_>> {
    text::lines(text).filter_map(|line| {
        let mut fields = line.splitn(3, |byte| *byte == b':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        text::number(number)?;
        Some(Membership {
            controllers,
            path: Path::new(OsStr::from_bytes(path)),
        })
    })
}

/// The control group hierarchy that accounts CPU time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Its mount point.
    pub mounted: PathBuf,
    /// Whether it is v1's `cpuacct`; false for v2.
    pub v1: bool,
}

impl Hierarchy {
    /// v1's `cpuacct` where it is mounted (hybrid hosts included), else v2.
    pub fn find(sys: &Path) -> Option<Self> {
        let groups = sys.join("fs/cgroup");
        for name in ["cpuacct", "cpu,cpuacct"] {
            let mounted = groups.join(name);
            if mounted.join("cpuacct.usage").exists() {
                return Some(Self { mounted, v1: true });
            }
        }
        groups.join("cgroup.controllers").exists().then_some(Self {
            mounted: groups,
            v1: false,
        })
    }
}

/// The CPU time that a control group has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupTimes {
    /// The total.
    pub total: Nanoseconds,
    /// The time in user mode and in the kernel, by sampled ticks on v1; `None` where the kernel does not split it.
    pub split: Option<[Nanoseconds; 2]>,
}

/// The open files that account the CPU time of a control group.
#[derive(Debug)]
pub enum GroupClock {
    /// `cpuacct.usage`, and `cpuacct.stat`.
    V1 {
        /// The total, in nanoseconds.
        usage: KernelFile,
        /// The split, in ticks.
        split: Option<KernelFile>,
    },
    /// `cpu.stat`.
    V2(KernelFile),
}

impl GroupClock {
    /// Opens the files of one group in the hierarchy that accounts CPU time. On v1 it reads the total only.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn in_directory(directory: &Path, v1: bool) -> Result<Self, KernelError> {
        let file = |name: &str| KernelFile::open_one_piece(directory.join(name));
        Ok(if v1 {
            Self::V1 {
                usage: file("cpuacct.usage")?,
                split: None,
            }
        } else {
            Self::V2(file("cpu.stat")?)
        })
    }

    /// Opens the files of the group with these directories, one for each hierarchy. Prefers nanoseconds of v1 to
    /// microseconds of v2. `None` where none of them accounts CPU time.
    pub fn find(directories: &[PathBuf]) -> Option<Self> {
        let open =
            |directory: &PathBuf, name: &str| KernelFile::open_one_piece(directory.join(name)).ok();
        let v1 = |directory| {
            Some(Self::V1 {
                usage: open(directory, "cpuacct.usage")?,
                split: open(directory, "cpuacct.stat"),
            })
        };
        // v1's `cpu` controller has a `cpu.stat` without CPU time.
        let v2 = |directory| {
            let mut file = open(directory, "cpu.stat")?;
            text::keyed(file.read().ok()?, "usage_usec")?;
            Some(Self::V2(file))
        };
        directories
            .iter()
            .find_map(v1)
            .or_else(|| directories.iter().find_map(v2))
    }

    /// Reads the CPU time.
    ///
    /// # Errors
    /// When the file cannot be read, as when the group is gone, or contains no time.
    pub fn times(&mut self) -> Result<GroupTimes, KernelError> {
        match self {
            Self::V1 { usage, split } => {
                let total = text::number(usage.read()?.trim_ascii())
                    .ok_or_else(|| usage.unexpected("expected one number of nanoseconds"))?;
                let mut times = GroupTimes {
                    total: Nanoseconds(total),
                    split: None,
                };
                if let Some(split) = split {
                    let text = split.read()?;
                    let time = |key| text::keyed(text, key).map(of_ticks);
                    times.split = time("user").zip(time("system")).map(|(a, b)| [a, b]);
                }
                Ok(times)
            }
            Self::V2(stat) => {
                let keys = ["usage_usec", "user_usec", "system_usec"];
                let text = stat.read()?;
                let times = keys.map(|key| (key, text::keyed(text, key)));
                let time = |(key, microseconds): (&str, Option<u64>)| {
                    let microseconds = microseconds.ok_or_else(|| {
                        stat.unexpected(format!("expected a line `{key} number`"))
                    })?;
                    Ok::<_, KernelError>(Nanoseconds(microseconds.saturating_mul(1000)))
                };
                let [total, user, system] = times.map(time);
                Ok(GroupTimes {
                    total: total?,
                    split: user
                        .ok()
                        .zip(system.ok())
                        .map(|(user, system)| [user, system]),
                })
            }
        }
    }

    /// The file that shows the total.
    pub fn path(&self) -> &Path {
        let (Self::V1 { usage: file, .. } | Self::V2(file)) = self;
        file.path()
    }
}

/// The files that show how much memory is charged to a group: v2's and v1's.
pub const MEMORY_USED: [&str; 2] = ["memory.current", "memory.usage_in_bytes"];

/// The memory that is charged to the group with these directories; `None` where no file reports it.
pub fn memory_used(directories: &[PathBuf]) -> Option<Bytes> {
    let number = |file: &PathBuf| text::number(read(file).ok()?.trim_ascii()).map(Bytes);
    let file = |name: &str| {
        directories
            .iter()
            .find_map(|group| number(&group.join(name)))
    };
    MEMORY_USED.into_iter().find_map(file)
}

/// The memory limit of a group of v1's `memory`, or of v2; `None` without a limit.
pub fn memory_limit(directory: &Path, v1: bool) -> Option<Bytes> {
    let file = if v1 {
        "memory.limit_in_bytes"
    } else {
        "memory.max"
    };
    text::number(read(directory.join(file)).ok()?.trim_ascii()).map(Bytes)
}

/// The bytes that a group read from and wrote to disks: `blkio.throttle.io_service_bytes_recursive` (v1) or `io.stat`
/// (v2).
pub fn disk_bytes(directory: &Path) -> Option<Bytes> {
    let v1 = "blkio.throttle.io_service_bytes_recursive";
    if let Ok(table) = read(directory.join(v1)) {
        return text::keyed(&table, "Total").map(Bytes);
    }
    let table = read(directory.join("io.stat")).ok()?;
    let bytes = text::fields(&table).filter_map(|field| {
        let number = field
            .strip_prefix(b"rbytes=")
            .or(field.strip_prefix(b"wbytes="));
        text::number(number?)
    });
    Some(Bytes(bytes.fold(0, u64::saturating_add)))
}

/// A group's limit of CPU time: a quota in each period (`cpu.max`; `cpu.cfs_quota_us` and `cpu.cfs_period_us`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuLimit {
    /// The quota in microseconds per period; `None` without a limit.
    pub quota_us: Option<u64>,
    /// The period in microseconds; never 0.
    pub period_us: u64,
}

impl CpuLimit {
    /// The kernel's default period, used where a group's period cannot be read.
    pub const PERIOD_US: u64 = 100_000;

    /// The file that holds the limit.
    pub const fn file(v1: bool) -> &'static str {
        if v1 { "cpu.cfs_quota_us" } else { "cpu.max" }
    }

    /// Reads the limit of a group.
    ///
    /// # Errors
    /// When a file cannot be read, as where the controller is not enabled for the group.
    pub fn read(directory: &Path, v1: bool) -> Result<Self, KernelError> {
        let mut limit = read(directory.join(Self::file(v1)))?;
        if v1 {
            limit.push(b' ');
            limit.extend(read(directory.join("cpu.cfs_period_us"))?);
        }
        Ok(Self::parse(&limit))
    }

    /// Parses `QUOTA PERIOD`, the format of v2. `max` (v2) and `-1` (v1) mean no limit.
    pub fn parse(text: &[u8]) -> Self {
        let mut fields = text::fields(text);
        let mut number = || {
            fields
                .next()
                .and_then(text::number)
                .filter(|number| *number > 0)
        };
        Self {
            quota_us: number(),
            period_us: number().unwrap_or(Self::PERIOD_US),
        }
    }

    /// The limit in processors; `None` without a limit.
    #[allow(
        clippy::cast_precision_loss,
        reason = "beyond 2^53 µs the last bits carry no meaning"
    )]
    pub fn processors(&self) -> Option<f64> {
        Some(self.quota_us? as f64 / self.period_us.max(1) as f64)
    }

    /// The text to write to [`CpuLimit::file`] for this limit. On v1 the period stays.
    pub fn setting(&self, v1: bool) -> String {
        match (self.quota_us, v1) {
            (Some(quota), true) => quota.to_string(),
            (None, true) => "-1".to_owned(),
            (Some(quota), false) => format!("{quota} {}", self.period_us),
            (None, false) => format!("max {}", self.period_us),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    fn group(files: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(root.path().join(name), text).unwrap();
        }
        let path = root.path().to_owned();
        (root, path)
    }

    #[test]
    fn a_process_is_in_a_group_of_each_hierarchy() {
        let text = b"5:cpu,cpuacct:/a/b\n1:name=systemd:/x:y\n0::/c d\nnonsense\n::\n";
        let found: Vec<Membership<'_>> = memberships(text).collect();
        assert_eq!(found.len(), 3);
        assert!(found[0].has("cpu") && found[0].has("cpuacct") && !found[0].has("cp"));
        assert_eq!(found[1].path, Path::new("/x:y"));
        assert!(found[2].is_v2() && !found[0].is_v2());
        let around = found[0].directories(Path::new("/m"));
        assert_eq!(around, ["/m/a/b", "/m/a", "/m/"].map(PathBuf::from));
    }

    #[test]
    fn cpu_time_is_read_of_both_versions_and_v1s_nanoseconds_come_first() {
        let (_v1, v1) = group(&[
            ("cpuacct.usage", "1500\n"),
            ("cpuacct.stat", "user 2\nsystem 1\n"),
        ]);
        let v2_stat = "usage_usec 9\nuser_usec 8\nsystem_usec 1\n";
        let (_v2, v2) = group(&[("cpu.stat", v2_stat)]);
        let times = |groups: &[&PathBuf]| {
            let groups: Vec<PathBuf> = groups.iter().map(|group| (*group).clone()).collect();
            GroupClock::find(&groups).unwrap().times().unwrap()
        };
        let of_v1 = times(&[&v2, &v1]);
        assert_eq!(of_v1.total, Nanoseconds(1500));
        assert_eq!(
            of_v1.split,
            Some([Nanoseconds(20_000_000), Nanoseconds(10_000_000)])
        );
        let of_v2 = times(&[&v2]);
        assert_eq!(of_v2.total, Nanoseconds(9000));
        assert_eq!(of_v2.split, Some([Nanoseconds(8000), Nanoseconds(1000)]));
        let (_throttled, throttled) = group(&[("cpu.stat", "nr_periods 0\n")]);
        assert!(GroupClock::find(std::slice::from_ref(&throttled)).is_none());
        let error = GroupClock::in_directory(&throttled, false)
            .unwrap()
            .times()
            .unwrap_err();
        assert!(error.to_string().contains("usage_usec"), "{error}");
        assert!(GroupClock::in_directory(&throttled, true).is_err());
    }

    #[test]
    fn memory_and_disk_bytes_are_read_of_both_versions() {
        let blkio = "8:0 Read 1\n8:0 Total 1\nTotal 700\n";
        let (_v1, v1) = group(&[
            ("memory.usage_in_bytes", "8192\n"),
            ("memory.limit_in_bytes", "9000\n"),
            ("blkio.throttle.io_service_bytes_recursive", blkio),
        ]);
        let io = "8:0 rbytes=100 wbytes=20 rios=1\n8:16 rbytes=3 wbytes=x\n";
        let (_v2, v2) = group(&[
            ("memory.current", "4096\n"),
            ("memory.max", "max\n"),
            ("io.stat", io),
        ]);
        assert_eq!(memory_used(std::slice::from_ref(&v1)), Some(Bytes(8192)));
        assert_eq!(memory_used(&[v1.clone(), v2.clone()]), Some(Bytes(4096)));
        assert_eq!(memory_used(&[]), None);
        assert_eq!(memory_limit(&v1, true), Some(Bytes(9000)));
        assert_eq!(memory_limit(&v2, false), None);
        assert_eq!(disk_bytes(&v1), Some(Bytes(700)));
        assert_eq!(disk_bytes(&v2), Some(Bytes(123)));
    }

    #[test]
    fn a_cpu_limit_is_read_and_written_of_both_versions() {
        let files = [
            ("cpu.max", "50000 100000\n"),
            ("cpu.cfs_quota_us", "-1\n"),
            ("cpu.cfs_period_us", "50000\n"),
        ];
        let (_root, path) = group(&files);
        let v2 = CpuLimit::read(&path, false).unwrap();
        assert_eq!(
            (v2.processors(), v2.setting(false)),
            (Some(0.5), "50000 100000".to_owned())
        );
        let v1 = CpuLimit::read(&path, true).unwrap();
        assert_eq!(
            (v1.processors(), v1.period_us, v1.setting(true)),
            (None, 50_000, "-1".to_owned())
        );
        assert_eq!(CpuLimit::parse(b"max 100000").processors(), None);
        assert!(CpuLimit::read(Path::new("/nowhere"), false).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "([a-z:,/. =-]|max|[0-9]{1,22}|\n){0,60}") {
            let text = text.as_bytes();
            memberships(text).for_each(|group| assert!(!group.directories(Path::new("/")).is_empty()));
            let limit = CpuLimit::parse(text);
            prop_assert!(limit.processors().is_none_or(|processors| processors > 0.0));
        }

        #[test]
        fn a_limit_that_is_written_is_read_back(quota in 1u64.., period in 1u64..) {
            let limit = CpuLimit { quota_us: Some(quota), period_us: period };
            prop_assert_eq!(CpuLimit::parse(limit.setting(false).as_bytes()), limit);
        }
    }
}
