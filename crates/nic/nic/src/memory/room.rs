// SPDX-License-Identifier: Apache-2.0
//! The memory that this program may use, and the default limits that follow for a port.

use std::path::Path;
use vtax_kernel::cgroup::{memberships, memory_limit};

/// Bytes of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// The host's memory and swap space: no guest has more.
    host: u64,
    /// The limit of this process's control groups, or the host's memory.
    own: u64,
}

impl Room {
    /// Reads both of this host.
    pub fn read() -> Self {
        let host = rustix::system::sysinfo();
        let unit = u64::from(host.mem_unit.max(1));
        let [ram, swap] = [host.totalram, host.totalswap].map(|units| units.saturating_mul(unit));
        let groups = vtax_kernel::read("/proc/self/cgroup").unwrap_or_default();
        let limit = limit_of(&groups, Path::new("/sys/fs/cgroup"));
        Self {
            host: ram.saturating_add(swap),
            own: limit.unwrap_or(ram).min(ram),
        }
    }

    /// The default limit of memory that a front end may share.
    pub fn memory(&self) -> u64 {
        self.host
    }

    /// The default limit of populated memory for each of `ports` ports, which share a quarter of the memory.
    pub fn populate(&self, ports: usize) -> u64 {
        self.own / 4 / ports.max(1) as u64
    }
}

/// The lowest limit of the groups in `/proc/self/cgroup` and their parents.
fn limit_of(groups: &[u8], root: &Path) -> Option<u64> {
    let limits = memberships(groups).flat_map(|group| {
        let hierarchies: &[&str] = match group.is_v2() {
            true => &["", "unified"],
            false if group.has("memory") => &["memory"],
            false => &[],
        };
        let directories = hierarchies
            .iter()
            .flat_map(move |at| group.directories(&root.join(at)));
        directories.filter_map(move |directory| memory_limit(&directory, !group.is_v2()))
    });
    limits.min().map(|limit| limit.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_share_a_quarter_of_the_memory_however_much_that_is() {
        let room = |own| Room {
            host: 64 << 30,
            own,
        };
        assert_eq!(room(400 << 20).populate(2), 50 << 20);
        assert_eq!(room(64 << 30).populate(2), 8 << 30);
        assert_eq!(room(64 << 30).populate(64), 256 << 20);
        assert_eq!(room(64 << 30).memory(), 64 << 30);
    }

    #[test]
    fn this_host_has_room() {
        let room = Room::read();
        assert!(room.memory() > 64 << 20 && room.populate(1) > 0, "{room:?}");
    }

    #[test]
    fn the_lowest_limit_of_the_groups_around_counts_in_both_versions() {
        let root = tempfile::tempdir().unwrap();
        for (file, limit) in [
            ("memory/a/b/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/a/memory.limit_in_bytes", "500\n"),
            ("c/d/memory.max", "max\n"),
            ("c/memory.max", "700\n"),
            ("unified/e/memory.max", "300\n"),
        ] {
            let file = root.path().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, limit).unwrap();
        }
        let limit = |groups: &str| limit_of(groups.as_bytes(), root.path());
        assert_eq!(limit("5:cpu,memory:/a/b\n1:name=systemd:/a/b\n"), Some(500));
        assert_eq!(limit("0::/c/d\n"), Some(700));
        assert_eq!(limit("0::/e\n"), Some(300));
        assert_eq!(limit("0::/nowhere\nnonsense\n"), None);
    }
}
