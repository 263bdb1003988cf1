// SPDX-License-Identifier: Apache-2.0
//! Control groups of a seat, on cgroup v1, v2 and hybrid hosts.
//!
//! A seat's group is `vtax-NAME`, with a group for its guest and one for its client below it, in every hierarchy.
//! Groups that an OCI runtime creates are below these everywhere. The place of the seat's group:
//!
//! - v1: below the group of this process, in each hierarchy, so that its limits hold.
//! - v2: below the nearest ancestor of this process's group that delegates its controllers to its children. A group
//!   with processes of its own cannot do that (the "no internal process" rule,
//!   `Documentation/admin-guide/cgroup-v2.rst`), and vtax changes no existing group of the host. Controllers that are
//!   not delegated are unavailable. CPU time needs no controller; pinning falls back to `sched_setaffinity`.

use super::cpus::CpuList;
use super::namespace::Namespace;
use super::remove::{
    PREFIX, folders_in, kill_below, remove_folders, remove_tree, stuck, until_done,
};
use crate::HostError;
use crate::facts::CgroupVersion;
use crate::journal::{Change, Journal};
use crate::kernel_file;
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tracing::info;
use vtax_kernel::cgroup::memberships;
use vtax_kernel::mounts::{self, Mount};
use vtax_observe::NamespaceAccount;

/// Controllers of v2 whose counters or limits a trial uses.
const WANTED: &[&str] = &["cpu", "cpuset", "io", "memory", "pids"];
/// The name of short-lived cells that are in no journal.
pub const PROBE: &str = "probe";
/// The interface of a hierarchy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// One mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    version: Version,
    /// The topmost group that can be seen.
    mount: PathBuf,
    /// The group of this process.
    own: PathBuf,
    /// The controllers as in `/proc/self/cgroup`; empty on v2, which lists its controllers in `cgroup.controllers`.
    controllers: String,
}

/// The hierarchies of a host that a cell uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchies(Vec<Hierarchy>);

impl Hierarchies {
    /// Finds the hierarchies of this host.
    ///
    /// # Errors
    /// When none is mounted.
    pub fn detect() -> Result<Self, HostError> {
        Self::read(
            Path::new("/proc/self/mountinfo"),
            Path::new("/proc/self/cgroup"),
        )
    }

    /// Whether this process may create control groups in one of them.
    pub fn is_usable(&self) -> bool {
        let mut all = self.0.iter();
        all.any(|hierarchy| hierarchy.usable_parent().is_some())
    }

    fn read(mountinfo: &Path, cgroup: &Path) -> Result<Self, HostError> {
        let read = |path: &Path| fs::read(path).map_err(HostError::file("read", path));
        let found = Self::parse(&read(mountinfo)?, &read(cgroup)?);
        if found.0.is_empty() {
            return Err(HostError::Missing {
                what: "a control group hierarchy with a CPU controller".to_owned(),
                remedy: "mount one: `mount -t cgroup2 cgroup2 /sys/fs/cgroup`; in a container, start it with the \
                         host's control groups mounted"
                    .to_owned(),
            });
        }
        Ok(found)
    }

    fn parse(mountinfo: &[u8], cgroup: &[u8]) -> Self {
        let mut found: Vec<Hierarchy> = Vec::new();
        for hierarchy in mounts::parse(mountinfo).filter_map(|mount| hierarchy(mount, cgroup)) {
            // A hierarchy may be mounted more than once.
            if !found.iter().any(|other| {
                other.version == hierarchy.version && other.controllers == hierarchy.controllers
            }) {
                found.push(hierarchy);
            }
        }
        Self(found)
    }

    /// The mount point of the v2 hierarchy.
    pub fn v2_mount(&self) -> Option<&Path> {
        self.0
            .iter()
            .find(|hierarchy| hierarchy.version == Version::V2)
            .map(|hierarchy| hierarchy.mount.as_path())
    }

    /// The path of a group relative to the mount point of its hierarchy, as in `/proc/PID/cgroup`.
    pub fn path_below_mount(&self, folder: &Path) -> Option<PathBuf> {
        let below = self
            .0
            .iter()
            .find_map(|hierarchy| folder.strip_prefix(&hierarchy.mount).ok())?;
        Some(Path::new("/").join(below))
    }

    /// The cgroup versions that this host mounts.
    pub fn layout(&self) -> CgroupVersion {
        let has = |version| self.0.iter().any(|hierarchy| hierarchy.version == version);
        match (has(Version::V1), has(Version::V2)) {
            (true, true) => CgroupVersion::Hybrid,
            (true, false) => CgroupVersion::V1,
            _ => CgroupVersion::V2,
        }
    }
}

/// A mount as a hierarchy; `None` for a mount that cells do not use.
fn hierarchy(mount: Mount, cgroup: &[u8]) -> Option<Hierarchy> {
    let version = match mount.kind.as_str() {
        "cgroup" => Version::V1,
        "cgroup2" => Version::V2,
        _ => return None,
    };
    let has = |name: &[u8]| mount.options.iter().any(|option| option.as_bytes() == name);
    let group = memberships(cgroup).find(|group| match version {
        Version::V2 => group.is_v2(),
        Version::V1 => !group.is_v2() && group.controllers.split(|byte| *byte == b',').all(has),
    })?;
    let controllers = String::from_utf8_lossy(group.controllers).into_owned();
    // A path outside the mount's root (another cgroup namespace) has no name here; the top is used.
    let below = group
        .path
        .strip_prefix(&mount.root)
        .unwrap_or(Path::new(""));
    let below = if below.components().any(|part| part.as_os_str() == "..") {
        Path::new("")
    } else {
        below
    };
    let own = if below.as_os_str().is_empty() {
        mount.point.clone()
    } else {
        mount.point.join(below)
    };
    Some(Hierarchy {
        version,
        mount: mount.point,
        own,
        controllers,
    })
}

impl Hierarchy {
    /// The group below which the seat's group is created; `None` where this process may create none.
    fn usable_parent(&self) -> Option<PathBuf> {
        if crate::rootless::is_root() {
            return Some(self.parent());
        }
        let may = |folder: &Path| {
            let enters = folder.join("cgroup.procs");
            [folder, &enters]
                .into_iter()
                .all(|path| rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok())
        };
        let parent = self.parent();
        // A process is moved between two groups of a delegated tree, its own included.
        [parent.as_path(), &self.own]
            .into_iter()
            .find(|folder| may(folder) && may(&self.own))
            .map(Path::to_owned)
    }

    /// As root would choose it.
    fn parent(&self) -> PathBuf {
        if self.version == Version::V1 {
            return self.own.clone();
        }
        let handed_on = |folder: &Path| {
            let handed = words(&folder.join("cgroup.subtree_control"));
            WANTED
                .iter()
                .filter(|wanted| handed.contains(**wanted))
                .count()
        };
        let mut best = (0, self.mount.clone());
        for folder in self
            .own
            .ancestors()
            .take_while(|folder| folder.starts_with(&self.mount))
        {
            let count = handed_on(folder);
            if count > best.0 {
                best = (count, folder.to_owned());
            }
        }
        best.1
    }
}

fn words(path: &Path) -> BTreeSet<String> {
    fs::read_to_string(path)
        .unwrap_or_default()
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

/// One group below the cell's. Where this process may create no control groups, it is a PID namespace.
#[derive(Debug, Clone)]
pub struct Group {
    folders: Vec<(Version, PathBuf)>,
    namespace: Option<Namespace>,
    /// Processors that no `cpuset` could be set to, so that each process must be pinned itself.
    pub pin_each: Option<CpuList>,
}

impl Group {
    /// A group of one of these directories, on v2.
    #[cfg(test)]
    pub(super) fn at(folders: Vec<PathBuf>) -> Self {
        let folders = folders.into_iter().map(|folder| (Version::V2, folder));
        Self {
            folders: folders.collect(),
            namespace: None,
            pin_each: None,
        }
    }

    /// This group as a PID namespace, where it has no directories.
    pub fn namespace(&self) -> Option<&Namespace> {
        self.namespace.as_ref()
    }

    /// The account of its processes, where it has no directories.
    pub fn account(&self) -> Option<Arc<NamespaceAccount>> {
        let namespace = self.namespace.as_ref()?;
        Some(Arc::clone(namespace.account()))
    }

    /// The directories: one for each v1 hierarchy, one for v2; none where the group is a PID namespace.
    pub fn folders(&self) -> Vec<PathBuf> {
        self.folders
            .iter()
            .map(|(_, folder)| folder.clone())
            .collect()
    }

    /// The files to which a process writes `0` to join.
    ///
    /// On v1 the file is `tasks`: moving a single thread does not take the kernel's lock for moving a whole process,
    /// and so avoids an RCU grace period (15 ms and more).
    pub fn entrances(&self) -> Vec<PathBuf> {
        self.folders
            .iter()
            .map(|(version, folder)| {
                folder.join(if *version == Version::V1 {
                    "tasks"
                } else {
                    "cgroup.procs"
                })
            })
            .collect()
    }

    /// The directory on the v2 hierarchy, where there is one.
    pub fn v2_folder(&self) -> Option<&Path> {
        self.folders
            .iter()
            .find(|(version, _)| *version == Version::V2)
            .map(|(_, folder)| folder.as_path())
    }

    /// Kills every process in the group and waits until all are gone.
    ///
    /// # Errors
    /// The processes that do not die.
    pub fn kill(&self) -> Result<(), HostError> {
        until_done(|| {
            let mut left = BTreeSet::new();
            left.extend(self.namespace.iter().flat_map(Namespace::kill));
            for (_, folder) in &self.folders {
                left.extend(kill_below(folder));
            }
            if left.is_empty() {
                Ok(())
            } else {
                let folder = self.folders.first().map(|(_, folder)| folder.as_path());
                Err(stuck("end", folder.unwrap_or(Path::new("")), &left))
            }
        })
    }

    /// A further group below this one, for processes that must not be in this one.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn below(&self, name: &str) -> Result<Self, HostError> {
        let mut folders = Vec::new();
        for (version, folder) in &self.folders {
            if *version == Version::V2 {
                hand_on_controllers(folder);
            }
            let new = folder.join(name);
            make(&new)?;
            if *version == Version::V1 {
                inherit_cpuset(&new)?;
            }
            folders.push((*version, new));
        }
        Ok(Self {
            folders,
            namespace: self.namespace.clone(),
            pin_each: self.pin_each.clone(),
        })
    }
}

/// The groups of a seat. Dropping the value removes the groups and ignores errors; [`Groups::remove`] reports errors.
#[derive(Debug)]
pub struct Groups {
    tops: Vec<(Version, PathBuf)>,
}

impl Groups {
    /// Creates the groups of the seat `name`, after writing these to the journal.
    ///
    /// # Errors
    /// When the journal cannot be written or this process may not create groups; nothing is left behind.
    pub fn create(
        hierarchies: &Hierarchies,
        name: &str,
        journal: Option<&mut Journal>,
    ) -> Result<Self, HostError> {
        let tops: Vec<(Version, PathBuf)> = hierarchies
            .0
            .iter()
            .filter_map(|hierarchy| {
                let parent = hierarchy.usable_parent()?;
                Some((hierarchy.version, parent.join(format!("{PREFIX}{name}"))))
            })
            .collect();
        if let Some(journal) = journal {
            journal.record_all(
                tops.iter()
                    .map(|(_, path)| Change::Cgroup { path: path.clone() })
                    .collect(),
            )?;
        }
        // From here on, dropping `groups` removes the created groups.
        let mut groups = Self { tops: Vec::new() };
        for (version, top) in tops {
            make(&top)?;
            groups.tops.push((version, top.clone()));
            match version {
                Version::V1 => inherit_cpuset(&top)?,
                Version::V2 => hand_on_controllers(&top),
            }
        }
        Ok(groups)
    }

    /// The directories of the seat itself.
    pub(super) fn folders(&self) -> Vec<PathBuf> {
        self.tops.iter().map(|(_, top)| top.clone()).collect()
    }

    /// Creates a group of that name in the cell of `holder`, whose processes may use the processors of `pin`.
    ///
    /// # Errors
    /// When this process may not create it.
    pub fn leaf(
        &self,
        name: &str,
        pin: Option<&CpuList>,
        holder: Option<u32>,
    ) -> Result<Group, HostError> {
        let namespace = match holder {
            Some(holder) if self.tops.is_empty() => Some(Namespace::start(holder)?),
            _ => None,
        };
        let mut folders = Vec::new();
        let mut pinned = false;
        for (version, top) in &self.tops {
            let folder = top.join(name);
            make(&folder)?;
            if *version == Version::V1 {
                inherit_cpuset(&folder)?;
            }
            let cpus = folder.join("cpuset.cpus");
            if let Some(pin) = pin
                && cpus.exists()
            {
                kernel_file::store(&cpus, &pin.to_string()).map_err(|cause| {
                    HostError::Setting(format!(
                        "cannot pin the {name} to processors {pin} through {}: {cause}; the group above may have \
                         other processors: see cpuset.cpus there",
                        cpus.display()
                    ))
                })?;
                pinned = true;
            }
            folders.push((*version, folder));
        }
        Ok(Group {
            folders,
            namespace,
            pin_each: if pinned { None } else { pin.cloned() },
        })
    }

    /// Kills every process in the groups and removes the groups.
    ///
    /// # Errors
    /// The processes that do not die, or the directory that cannot be removed.
    pub fn remove(&mut self) -> Result<(), HostError> {
        let mut result = Ok(());
        for (_, top) in &self.tops {
            let removed = remove_tree(top);
            if result.is_ok() {
                result = removed;
            }
        }
        result
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        // Groups that remain are in the journal and are removed at the next start.
        let _ = self.remove();
    }
}

fn make(folder: &Path) -> Result<(), HostError> {
    fs::create_dir(folder).map_err(|cause| {
        let what = format!("permission to make the control group {} ({cause})", folder.display());
        match cause.kind() {
            ErrorKind::PermissionDenied => HostError::Missing {
                what,
                remedy: "run as root (CAP_DAC_OVERRIDE), or in a group that is delegated to you: \
                         `systemd-run --user --scope -p Delegate=yes …`"
                    .to_owned(),
            },
            ErrorKind::ReadOnlyFilesystem => HostError::Missing {
                what,
                remedy: "control groups are mounted read-only, as in most containers: start this one with \
                         writable control groups, or run on the host"
                    .to_owned(),
            },
            _ => HostError::File { action: "create", path: folder.to_owned(), cause },
        }
    })
}

/// Copies the parent's cpuset on v1: a new one is empty, and no process can join an empty one (cpuset(7)).
fn inherit_cpuset(folder: &Path) -> Result<(), HostError> {
    let Some(above) = folder.parent() else {
        return Ok(());
    };
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let path = folder.join(file);
        if path.exists() {
            let value = fs::read_to_string(above.join(file))
                .map_err(HostError::file("read", above.join(file)))?;
            kernel_file::store(&path, value.trim()).map_err(HostError::file("write", &path))?;
        }
    }
    Ok(())
}

/// Delegates every wanted controller of a v2 group to its children, as far as the group has it.
fn hand_on_controllers(folder: &Path) {
    let there = words(&folder.join("cgroup.controllers"));
    for controller in WANTED.iter().filter(|wanted| there.contains(**wanted)) {
        // A controller that the kernel refuses counts as unavailable.
        let _ = kernel_file::store(
            &folder.join("cgroup.subtree_control"),
            &format!("+{controller}"),
        );
    }
}

/// Removes the empty groups of probes that were killed before they could remove their own. Groups of a running probe
/// contain processes and stay.
pub fn sweep_probes() {
    let Ok(hierarchies) = Hierarchies::detect() else {
        return;
    };
    for hierarchy in &hierarchies.0 {
        for folder in folders_in(&hierarchy.parent()) {
            let name = folder
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let owner = name
                .strip_prefix(PREFIX)
                .and_then(|rest| rest.strip_prefix(PROBE)?.split('-').nth(1));
            if owner.is_some_and(|owner| !Path::new("/proc").join(owner).exists()) {
                // A busy group belongs to a running probe.
                if remove_folders(&folder).is_ok() {
                    info!("removed: {}, of a probe that was killed", folder.display());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::remove::remove_stale;

    const HYBRID_MOUNTS: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/net_cls rw,relatime - cgroup cgroup rw,net_cls
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const HYBRID_OWN: &str = "\
9:name=systemd:/
5:net_cls:/
4:memory:/jobs/7
3:cpuset:/
2:cpu,cpuacct:/jobs
0::/user.slice
";

    fn own(found: &Hierarchies) -> Vec<String> {
        found
            .0
            .iter()
            .map(|hierarchy| hierarchy.own.display().to_string())
            .collect()
    }

    #[test]
    fn a_hybrid_host_gives_each_controller_its_own_path() {
        let found = Hierarchies::parse(HYBRID_MOUNTS.as_bytes(), HYBRID_OWN.as_bytes());
        assert_eq!(found.layout(), CgroupVersion::Hybrid);
        assert_eq!(
            own(&found),
            [
                "/sys/fs/cgroup/cpu,cpuacct/jobs",
                "/sys/fs/cgroup/cpuset",
                "/sys/fs/cgroup/memory/jobs/7",
                "/sys/fs/cgroup/net_cls",
                "/sys/fs/cgroup/systemd",
                "/sys/fs/cgroup/unified/user.slice"
            ]
        );
    }

    #[test]
    fn a_host_without_the_unified_mount_is_v1() {
        let mounts: String = HYBRID_MOUNTS
            .lines()
            .filter(|line| !line.contains("cgroup2"))
            .map(|line| format!("{line}\n"))
            .collect();
        assert_eq!(
            Hierarchies::parse(mounts.as_bytes(), HYBRID_OWN.as_bytes()).layout(),
            CgroupVersion::V1
        );
    }

    #[test]
    fn a_v2_host_is_one_hierarchy() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        let found = Hierarchies::parse(
            mounts.as_bytes(),
            b"0::/user.slice/user-0.slice/session-1.scope\n",
        );
        assert_eq!(found.layout(), CgroupVersion::V2);
        assert_eq!(
            own(&found),
            ["/sys/fs/cgroup/user.slice/user-0.slice/session-1.scope"]
        );
    }

    #[test]
    fn a_mount_of_a_part_of_the_hierarchy_is_named_from_that_part() {
        let mounts = "30 23 0:26 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(
            own(&Hierarchies::parse(
                mounts.as_bytes(),
                b"0::/docker/abc/shell\n"
            )),
            ["/sys/fs/cgroup/shell"]
        );
        assert_eq!(
            own(&Hierarchies::parse(mounts.as_bytes(), b"0::/docker/abc\n")),
            ["/sys/fs/cgroup"]
        );
        assert_eq!(
            own(&Hierarchies::parse(mounts.as_bytes(), b"0::/../other\n")),
            ["/sys/fs/cgroup"]
        );
    }

    #[test]
    fn a_mount_point_with_a_space_is_unescaped() {
        let mounts = "30 23 0:26 / /mnt/control\\040groups rw - cgroup2 cgroup2 rw\n";
        assert_eq!(
            own(&Hierarchies::parse(mounts.as_bytes(), b"0::/\n")),
            ["/mnt/control groups"]
        );
    }

    #[test]
    fn a_host_without_hierarchies_is_an_error_with_a_remedy() {
        let empty = tempfile::NamedTempFile::new().unwrap();
        let message = Hierarchies::read(empty.path(), empty.path())
            .unwrap_err()
            .to_string();
        assert!(message.contains("mount -t cgroup2"), "{message}");
    }

    /// A v2 tree as systemd creates it, with the test's shell in a session scope.
    fn v2_tree(handing_on: &[(&str, &str)]) -> (tempfile::TempDir, Hierarchies) {
        let mount = tempfile::tempdir().unwrap();
        fs::create_dir_all(mount.path().join("user.slice/session.scope")).unwrap();
        for folder in ["", "user.slice", "user.slice/session.scope"] {
            fs::write(mount.path().join(folder).join("cgroup.procs"), "").unwrap();
        }
        for (folder, controllers) in handing_on {
            fs::write(
                mount.path().join(folder).join("cgroup.subtree_control"),
                controllers,
            )
            .unwrap();
        }
        let mountinfo = format!(
            "30 23 0:26 / {} rw - cgroup2 cgroup2 rw\n",
            mount.path().display()
        );
        let found = Hierarchies::parse(mountinfo.as_bytes(), b"0::/user.slice/session.scope\n");
        (mount, found)
    }

    #[test]
    fn on_v2_the_nearest_ancestor_that_hands_on_the_most_is_the_parent() {
        let (mount, found) = v2_tree(&[
            ("", "cpuset cpu io memory pids\n"),
            ("user.slice", "memory pids\n"),
            ("user.slice/session.scope", "\n"),
        ]);
        assert_eq!(found.0[0].parent(), mount.path());
        let (mount, found) = v2_tree(&[
            ("", "cpu memory pids\n"),
            ("user.slice", "cpu memory pids\n"),
        ]);
        assert_eq!(found.0[0].parent(), mount.path().join("user.slice"));
    }

    #[test]
    fn on_v2_where_nothing_is_handed_on_the_top_is_the_parent_and_stays_as_it_is() {
        let (mount, found) = v2_tree(&[("", "\n")]);
        assert_eq!(found.0[0].parent(), mount.path());
        let groups = Groups::create(&found, "x", None).unwrap();
        let target = groups.leaf("target", None, None).unwrap();
        assert_eq!(
            target.v2_folder(),
            Some(mount.path().join("vtax-x/target").as_path())
        );
        assert_eq!(
            fs::read_to_string(mount.path().join("cgroup.subtree_control")).unwrap(),
            "\n"
        );
        drop(groups);
        assert!(!mount.path().join("vtax-x").exists());
    }

    #[test]
    fn without_a_cpuset_each_process_is_to_be_pinned() {
        let (_mount, found) = v2_tree(&[("", "cpu\n")]);
        let pin = CpuList::parse("0").unwrap();
        let groups = Groups::create(&found, "x", None).unwrap();
        let target = groups.leaf("target", Some(&pin), None).unwrap();
        assert_eq!(target.pin_each, Some(pin));
        assert_eq!(groups.leaf("client", None, None).unwrap().pin_each, None);
    }

    #[test]
    fn groups_are_in_the_journal_before_they_are_made() {
        let (mount, found) = v2_tree(&[("", "cpu\n")]);
        let state = tempfile::tempdir().unwrap();
        let mut journal = crate::journal::Journal::open(state.path()).unwrap();
        let taken = mount.path().join("vtax-x");
        fs::create_dir(&taken).unwrap();
        let refused = Groups::create(&found, "x", Some(&mut journal));
        assert!(refused.is_err());
        assert!(
            taken.exists(),
            "a group that somebody else made is left alone"
        );
        let reopened = crate::journal::Journal::open(state.path()).unwrap();
        assert_eq!(reopened.pending(), [Change::Cgroup { path: taken }]);
    }

    #[test]
    fn a_stale_path_that_is_no_control_group_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vtax-x");
        fs::create_dir(&path).unwrap();
        let message = remove_stale(&path).unwrap_err().to_string();
        assert!(message.contains("not a control group of vtax"), "{message}");
        assert!(path.exists());
    }

    #[test]
    fn a_stale_group_that_is_already_gone_counts_as_removed() {
        assert!(remove_stale(Path::new("/sys/fs/cgroup/vtax-never-was")).is_ok());
    }

    #[test]
    fn a_group_that_may_not_be_made_says_which_permission_is_missing() {
        // No process can create directories there, as root either.
        let message = make(Path::new("/sys/vtax-x")).unwrap_err().to_string();
        assert!(
            message.contains("/sys/vtax-x") && message.contains("CAP_DAC_OVERRIDE"),
            "{message}"
        );
    }

    #[test]
    fn a_real_v2_group_is_killed_with_the_groups_below_it() {
        let found = Hierarchies::detect().map(|found| {
            Hierarchies(
                found
                    .0
                    .into_iter()
                    .filter(|hierarchy| hierarchy.version == Version::V2)
                    .collect(),
            )
        });
        let Ok(found) = found else {
            return eprintln!("SKIPPED: no control groups are mounted");
        };
        let name = format!("unit-{}", std::process::id());
        let mut groups = match Groups::create(&found, &name, None) {
            Ok(groups) => groups,
            Err(error) => return eprintln!("SKIPPED: {error}"),
        };
        let target = groups.leaf("target", None, None).unwrap();
        if target.v2_folder().is_none() {
            return eprintln!("SKIPPED: no v2 hierarchy is mounted");
        }
        let below = target.below("runtime").unwrap();
        let mut sleeper = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        fs::write(&below.entrances()[0], sleeper.id().to_string()).unwrap();
        target.kill().unwrap();
        assert!(!sleeper.wait().unwrap().success());
        let top = target.folders()[0].parent().unwrap().to_owned();
        groups.remove().unwrap();
        assert!(!top.exists());
    }
}
