//! The quota of a guest's control group: `cpu.max` of v2, `cpu.cfs_quota_us` of v1
//! (`Documentation/scheduler/sched-bwc.rst`).

use crate::snapshot::GuestUse;
use std::io;
use std::path::{Path, PathBuf};
use vtax_core::Nanoseconds;
use vtax_host::HostError;
use vtax_host::journal::{Journal, Recorded};
use vtax_host::kernel_file::{self, Written};
use vtax_host::roots;
use vtax_observe::counters::{Counter, Rule};
use vtax_observe::guests::Hierarchy;

/// The kernel's own period, in microseconds, where a group's cannot be read.
const PERIOD_US: f64 = 100_000.0;

/// The least that the kernel takes, in microseconds a period.
const LEAST_US: f64 = 1_000.0;

/// A control group's quota.
#[derive(Debug)]
pub struct Quota {
    file: PathBuf,
    /// Its content when it was found.
    old: String,
    /// That in processors; `None` without a limit.
    before: Option<f64>,
    period_us: f64,
    v1: bool,
    /// What accounts the group's time.
    usage: PathBuf,
    used: Counter,
    /// Its entry in the journal, once a quota was set.
    recorded: Option<Recorded>,
    /// What may be replaced: what was found, and what was set since.
    written: Written,
}

impl Quota {
    /// That of a guest's group; in words why it has none.
    pub fn of(guest: &GuestUse, hierarchy: &Hierarchy) -> Result<Self, String> {
        let Some(group) = &guest.group else {
            return Err("it has no control group that is known".to_owned());
        };
        let group = if guest.platform.is_vm() {
            alone(&hierarchy.mounted, group, guest.process)?
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
        let (name, usage) = if hierarchy.v1 {
            ("cpu.cfs_quota_us", "cpuacct.usage")
        } else {
            ("cpu.max", "cpu.stat")
        };
        let file = cpu.join(&group).join(name);
        let read = |path: &Path| {
            std::fs::read_to_string(path)
                .map(|text| text.trim().to_owned())
                .map_err(|cause| format!("{}: {cause}", path.display()))
        };
        let old = read(&file).map_err(|cause| {
            format!(
                "its control group has no quota: {cause}; is the controller `cpu` enabled for it?"
            )
        })?;
        let (quota_us, period_us) = if hierarchy.v1 {
            let period = read(&file.with_file_name("cpu.cfs_period_us"))?;
            (old.parse().ok(), period.parse().ok())
        } else {
            let mut parts = old.split(' ').map(|part| part.parse::<f64>().ok());
            (parts.next().flatten(), parts.next().flatten())
        };
        let period_us = period_us
            .filter(|period: &f64| *period >= LEAST_US)
            .unwrap_or(PERIOD_US);
        let written = Written::first(&file, &old);
        Ok(Self {
            before: quota_us
                .filter(|quota: &f64| *quota > 0.0)
                .map(|quota| quota / period_us),
            file,
            old,
            period_us,
            v1: hierarchy.v1,
            usage: hierarchy.mounted.join(&group).join(usage),
            used: Counter::new(Rule::TIME),
            recorded: None,
            written,
        })
    }

    /// What it was when it was found, in processors.
    pub fn before(&self) -> Option<f64> {
        self.before
    }

    /// The seconds that the kernel accounted to the group since the last call, none in the first; `None` when the
    /// group is gone.
    pub fn accounted(&mut self) -> Option<f64> {
        let text = std::fs::read_to_string(&self.usage).ok()?;
        let nanoseconds = if self.v1 {
            text.trim().parse::<u64>().ok()?
        } else {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("usage_usec "))?;
            line.trim().parse::<u64>().ok()?.saturating_mul(1000)
        };
        Some(Nanoseconds(self.used.advance(nanoseconds).gain()).as_secs_f64())
    }

    /// Sets it, in processors; journalled before. A group that went meanwhile needs none. Where another program changed
    /// it meanwhile it stays as that set it, in words.
    ///
    /// # Errors
    /// When it cannot be journalled, or the kernel does not take it.
    pub fn set(&mut self, quota: f64, journal: &mut Journal) -> Result<Option<String>, HostError> {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at least 1,000, and saturates"
        )]
        let quota_us = (quota * self.period_us).max(LEAST_US) as u64;
        let value = if self.v1 {
            quota_us.to_string()
        } else {
            format!("{quota_us} {}", self.period_us)
        };
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

    /// The journal was undone: the limit is what it was, and the next one is journalled anew.
    pub fn forget(&mut self) {
        self.recorded = None;
        self.written.values = vec![self.old.clone()];
    }
}

/// The highest group around a VM's that holds nobody but its monitor: libvirt divides a machine's group, and a shell's
/// group is that of others too.
fn alone(mounted: &Path, group: &Path, monitor: Option<u32>) -> Result<PathBuf, String> {
    let Some(monitor) = monitor else {
        return Err("its monitor is not known".to_owned());
    };
    let is_alone = |group: &&Path| {
        let others = others(&mounted.join(group), monitor, 4);
        !group.as_os_str().is_empty() && !others
    };
    let highest = group.ancestors().take_while(is_alone).last();
    highest.map(Path::to_owned).ok_or_else(|| {
        format!(
            "its control group `{}` is that of other processes too, which the quota would hold as well; start it in one of \
             its own (`systemd-run --scope`, libvirt)",
            group.display()
        )
    })
}

/// Whether a process other than `monitor`, kernel threads aside, is in the group or in one below.
fn others(group: &Path, monitor: u32, deepest: u32) -> bool {
    let listed = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let is_other = |pid: &u32| {
        // What works for it in the kernel, a vhost worker, is in its group too, and has no command line.
        *pid != monitor
            && std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
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
    // Deeper than any engine nests: somebody's own.
    below.any(|entry| deepest == 0 || others(&entry.path(), monitor, deepest - 1))
}

#[cfg(test)]
#[test]
fn either_version_is_read_set_and_given_back() {
    use crate::fake::Host;
    use vtax_observe::guests::Platform;
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
        let mut quota = Quota::of(&guest, &hierarchy).unwrap();
        assert_eq!((quota.before(), quota.accounted()), (Some(0.5), Some(0.0)));
        let shows =
            |usage: &str| std::fs::write(group.join(files[files.len() - 1].0), usage).unwrap();
        let (more, reset) = match is_v1 {
            true => ("4000000000\n", "0\n"),
            false => ("usage_usec 4000000\n", "usage_usec 0\n"),
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
        // No guest is held below what the kernel takes.
        quota.set(0.0, &mut journal).unwrap();
        assert!(limit().starts_with("1000"), "{}", limit());
        assert_eq!(journal.undo_all().unwrap(), 1);
        assert_eq!(limit().trim(), files[0].1.trim());
        assert_eq!(journal.take_left(), []);
        // v2's word for none.
        std::fs::write(
            group.join(files[0].0),
            if is_v1 { "-1" } else { "max 100000" },
        )
        .unwrap();
        assert_eq!(Quota::of(&guest, &hierarchy).unwrap().before(), None);
        std::fs::remove_file(group.join(files[0].0)).unwrap();
        let said = Quota::of(&guest, &hierarchy).unwrap_err();
        assert!(said.contains("controller `cpu`"), "{said}");
    }
}
