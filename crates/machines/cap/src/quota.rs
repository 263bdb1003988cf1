// SPDX-License-Identifier: Apache-2.0
//! The quota of a guest's control group: `cpu.max` of v2, `cpu.cfs_quota_us` of v1
//! (`Documentation/scheduler/sched-bwc.rst`).

use super::error::LimitError;
use std::io;
use std::path::{Path, PathBuf};
use vtax_charge::ChargedGuest;
use vtax_core::Nanoseconds;
use vtax_host::HostError;
use vtax_host::journal::{Journal, Recorded};
use vtax_host::kernel_file::{self, Written};
use vtax_host::roots;
use vtax_inventory::Hierarchy;
use vtax_kernel::Process;
use vtax_kernel::cgroup::{CpuLimit, GroupClock};
use vtax_observe::counters::{Counter, Rule};

/// The kernel's lower bound of a quota, in microseconds a period.
const MIN_QUOTA_US: f64 = 1_000.0;

/// A control group's quota.
#[derive(Debug)]
pub struct Quota {
    file: PathBuf,
    /// Its content when it was found.
    old: String,
    /// `old` in processors; `None` without a limit.
    before: Option<f64>,
    period_us: u64,
    v1: bool,
    /// Its directory in the hierarchy that accounts its time.
    group: PathBuf,
    used: Counter,
    /// Its entry in the journal, once a quota was set.
    recorded: Option<Recorded>,
    /// The values that may be replaced: the first one, and those that were set since.
    written: Written,
}

impl Quota {
    /// The quota of a guest's group.
    ///
    /// # Errors
    /// When the guest has no group of its own, or that has no quota.
    pub fn from_guest(guest: &ChargedGuest, hierarchy: &Hierarchy) -> Result<Self, LimitError> {
        let group = guest.group.as_ref().ok_or(LimitError::NoGroup)?;
        let group = if guest.platform.is_vm() {
            own_group(&hierarchy.mounted, group, guest.process)?
        } else {
            group.clone()
        };
        // v1's `cpu` may be mounted apart from the `cpuacct` that accounts.
        let cpu = if hierarchy.v1 {
            let beside = hierarchy.mounted.with_file_name("cpu");
            if hierarchy.mounted.join("cpu.cfs_quota_us").exists() || !beside.exists() {
                hierarchy.mounted.clone()
            } else {
                beside
            }
        } else {
            hierarchy.mounted.clone()
        };
        let directory = cpu.join(&group);
        let file = directory.join(CpuLimit::file(hierarchy.v1));
        let old = vtax_kernel::read(&file)?;
        let limit = CpuLimit::read(&directory, hierarchy.v1)?;
        let old = String::from_utf8_lossy(&old).trim().to_owned();
        let written = Written::first(&file, &old);
        Ok(Self {
            before: limit.processors(),
            file,
            old,
            period_us: limit.period_us,
            v1: hierarchy.v1,
            group: hierarchy.mounted.join(&group),
            used: Counter::new(Rule::TIME),
            recorded: None,
            written,
        })
    }

    /// The first value, in processors.
    pub fn before(&self) -> Option<f64> {
        self.before
    }

    /// The group's CPU time since the last call, in seconds, 0 in the first; `None` when the group is gone.
    pub fn accounted(&mut self) -> Option<f64> {
        let times = GroupClock::in_directory(&self.group, self.v1)
            .ok()?
            .times()
            .ok()?;
        Some(Nanoseconds(self.used.advance(times.total.0).gain()).as_secs_f64())
    }

    /// Sets the quota, in processors, after a journal entry. A group that has ended is not an error. A value that
    /// another program has set stays, and is returned in words.
    ///
    /// # Errors
    /// When it cannot be journalled, or the kernel refuses it.
    pub fn set(&mut self, quota: f64, journal: &mut Journal) -> Result<Option<String>, HostError> {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at least 1,000, and saturates"
        )]
        let quota_us = (quota * self.period_us as f64).max(MIN_QUOTA_US) as u64;
        let limit = CpuLimit {
            quota_us: Some(quota_us),
            period_us: self.period_us,
        };
        let value = limit.setting(self.v1);
        let is_in_force = || roots::text(&self.file).is_some_and(|now| now == value);
        match self.recorded {
            Some(_) if self.written.ends_with(&value) && is_in_force() => return Ok(None),
            Some(recorded) => journal.rewrite(recorded, &value)?,
            None => {
                self.recorded = Some(journal.record_setting(&self.file, &self.old, &value)?);
            }
        }
        match kernel_file::replace(&self.file, &value, &self.written) {
            Ok(None) => {
                self.written.then(&value);
                Ok(None)
            }
            Ok(left) => Ok(left),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(HostError::File {
                action: "write",
                path: self.file.clone(),
                cause,
            }),
        }
    }

    /// After the journal was undone: the group has its first quota again.
    pub fn forget(&mut self) {
        self.recorded = None;
        self.written.values = vec![self.old.clone()];
    }
}

/// Returns the highest group around a VM's that holds no process but its monitor: libvirt divides a machine's group,
/// and a shell's group holds other programs too.
fn own_group(mounted: &Path, group: &Path, monitor: Option<u32>) -> Result<PathBuf, LimitError> {
    let monitor = monitor.ok_or(LimitError::NoMonitor)?;
    let is_own = |group: &&Path| {
        !group.as_os_str().is_empty() && !has_others(&mounted.join(group), monitor, MAX_NESTING)
    };
    let highest = group.ancestors().take_while(is_own).last();
    highest
        .map(Path::to_owned)
        .ok_or_else(|| LimitError::SharedGroup(group.to_owned()))
}

/// Levels of groups below a VM's that an engine makes.
const MAX_NESTING: u32 = 4;

/// Whether a process other than `monitor`, kernel threads aside, is in the group or in one below.
fn has_others(group: &Path, monitor: u32, deepest: u32) -> bool {
    let listed = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let is_other = |pid: &u32| {
        // A vhost worker in the kernel is in its group too, and has no command line.
        *pid != monitor && !Process::of_host(*pid).arguments().is_empty()
    };
    if listed
        .lines()
        .filter_map(|line| line.trim().parse().ok())
        .any(|pid| is_other(&pid))
    {
        return true;
    }
    let Ok(entries) = std::fs::read_dir(group) else {
        return false;
    };
    let is_group = |entry: &std::fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    let mut below = entries.flatten().filter(is_group);
    // Deeper groups are not an engine's.
    below.any(|entry| deepest == 0 || has_others(&entry.path(), monitor, deepest - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_version_is_read_set_and_given_back() {
        use vtax_charge::fake::Host;
        use vtax_inventory::Platform;
        let mut host = Host::default();
        host.start_named(1, "web", Platform::Containerd);
        let mut guest = host.pass(1).guests.remove(0);
        guest.group = Some("pod/web".into());
        let v1 = [
            ("cpu.cfs_quota_us", "50000\n"),
            ("cpu.cfs_period_us", "100000\n"),
            ("cpuacct.usage", "2000000000\n"),
        ];
        let v2 = [
            ("cpu.max", "50000 100000\n"),
            ("cpu.stat", "usage_usec 2000000\nuser_usec 1\n"),
        ];
        for (is_v1, files, expected) in [(true, &v1[..], "30000"), (false, &v2, "30000 100000")] {
            let sys = tempfile::tempdir().unwrap();
            let group = sys.path().join("pod/web");
            std::fs::create_dir_all(&group).unwrap();
            for (name, text) in files {
                std::fs::write(group.join(name), text).unwrap();
            }
            let hierarchy = Hierarchy {
                mounted: sys.path().to_owned(),
                v1: is_v1,
            };
            let mut quota = Quota::from_guest(&guest, &hierarchy).unwrap();
            assert_eq!((quota.before(), quota.accounted()), (Some(0.5), Some(0.0)));
            let shows =
                |usage: &str| std::fs::write(group.join(files[files.len() - 1].0), usage).unwrap();
            let (more, reset) = if is_v1 {
                ("4000000000\n", "0\n")
            } else {
                ("usage_usec 4000000\n", "usage_usec 0\n")
            };
            shows(more);
            assert_eq!(quota.accounted(), Some(2.0));
            // A v1 account can be set to zero.
            shows(reset);
            assert_eq!(quota.accounted(), Some(0.0));
            let state = tempfile::tempdir().unwrap();
            let mut journal = Journal::open(state.path()).unwrap();
            let limit = || std::fs::read_to_string(group.join(files[0].0)).unwrap();
            quota.set(0.3, &mut journal).unwrap();
            assert_eq!(limit(), expected);
            // No guest gets less than the kernel's lower bound.
            quota.set(0.0, &mut journal).unwrap();
            assert!(limit().starts_with("1000"), "{}", limit());
            assert_eq!(journal.undo_all().unwrap(), 1);
            assert_eq!(limit().trim(), files[0].1.trim());
            assert_eq!(journal.take_left(), []);
            // No limit, in the notation of v1 and v2.
            std::fs::write(
                group.join(files[0].0),
                if is_v1 { "-1" } else { "max 100000" },
            )
            .unwrap();
            assert_eq!(
                Quota::from_guest(&guest, &hierarchy).unwrap().before(),
                None
            );
            std::fs::remove_file(group.join(files[0].0)).unwrap();
            let error = Quota::from_guest(&guest, &hierarchy)
                .unwrap_err()
                .to_string();
            assert!(error.contains("controller `cpu`"), "{error}");
        }
    }
}
