// SPDX-License-Identifier: Apache-2.0
//! `/proc` of one process. A process may end between two reads, so that every method returns an `Option` or an
//! empty value.

use crate::cgroup::{Membership, memberships};
use crate::{of_ticks, text};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use vtax_core::{Bytes, Nanoseconds};

/// The longest command line that is read, in bytes; a VMM's name and identity come earlier.
const LONGEST_COMMAND: u64 = 256 << 10;

/// The most open files that are read; a VMM has fewer.
const MOST_FILES: usize = 4096;

/// PF_KTHREAD of a task's flags (`linux/sched.h`).
const IS_KERNEL_THREAD: u64 = 0x0020_0000;

/// CPU time in user mode and in the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuSplit {
    /// In user mode.
    pub user: Nanoseconds,
    /// In the kernel.
    pub system: Nanoseconds,
}

impl CpuSplit {
    /// Both.
    pub fn total(self) -> Nanoseconds {
        Nanoseconds(self.user.0.saturating_add(self.system.0))
    }
}

impl std::ops::AddAssign for CpuSplit {
    fn add_assign(&mut self, other: Self) {
        for (own, other) in [
            (&mut self.user, other.user),
            (&mut self.system, other.system),
        ] {
            own.0 = own.0.saturating_add(other.0);
        }
    }
}

/// A line of `/proc/PID/stat`, or of a thread's `stat` (proc_pid_stat(5)).
#[derive(Debug, Clone, Copy)]
pub struct ProcessStat<'a> {
    /// The name: any bytes, cut at 15.
    pub name: &'a [u8],
    /// The fields after the name.
    fields: &'a [u8],
}

impl<'a> ProcessStat<'a> {
    /// Splits the line into its parts.
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        // The name is in brackets and may contain brackets.
        let begin = text.iter().position(|byte| *byte == b'(')?;
        let end = text.iter().rposition(|byte| *byte == b')')?;
        Some(Self {
            name: text.get(begin + 1..end)?,
            fields: text.get(end + 1..)?,
        })
    }

    /// The number in a column, counted as in the manual: the name is the second.
    fn number(&self, column: usize) -> Option<u64> {
        text::fields(self.fields)
            .nth(column.checked_sub(3)?)
            .and_then(text::number)
    }

    /// Whether it has ended but has not been waited for by its parent.
    pub fn is_over(&self) -> bool {
        matches!(text::fields(self.fields).next(), None | Some(b"Z" | b"X"))
    }

    /// The process that started it, or the one that adopted it; `None` for the first process.
    pub fn parent(&self) -> Option<u32> {
        let parent = u32::try_from(self.number(4)?).ok()?;
        (parent != 0).then_some(parent)
    }

    /// Whether it is a thread of the kernel. A process can take the name of one, and have no arguments.
    pub fn is_kernel_thread(&self) -> bool {
        self.number(9)
            .is_some_and(|flags| flags & IS_KERNEL_THREAD != 0)
    }

    /// CPU time of all its threads, without its children.
    pub fn cpu_time(&self) -> Option<Nanoseconds> {
        self.cpu_times().map(CpuSplit::total)
    }

    /// CPU time of the children that it has waited for.
    pub fn cpu_time_of_children(&self) -> Option<Nanoseconds> {
        self.cpu_times_of_children().map(CpuSplit::total)
    }

    /// As [`Self::cpu_time`], in its two parts.
    pub fn cpu_times(&self) -> Option<CpuSplit> {
        self.split_at(14)
    }

    /// As [`Self::cpu_time_of_children`], in its two parts.
    pub fn cpu_times_of_children(&self) -> Option<CpuSplit> {
        self.split_at(16)
    }

    fn split_at(&self, column: usize) -> Option<CpuSplit> {
        Some(CpuSplit {
            user: of_ticks(self.number(column)?),
            system: of_ticks(self.number(column + 1)?),
        })
    }

    /// The pages that it has in memory, with those that it shares.
    pub fn resident_pages(&self) -> Option<u64> {
        self.number(24)
    }

    /// The start time, in clock ticks since boot. Process number and start time identify a process.
    pub fn started(&self) -> Option<u64> {
        self.number(22)
    }
}

/// The directories below `directory` whose names are numbers, with the numbers: processes or threads.
pub fn numbered(directory: &Path) -> Vec<(u32, PathBuf)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let numbered = |entry: std::fs::DirEntry| {
        let number = text::small(entry.file_name().as_bytes())?;
        Some((number, entry.path()))
    };
    entries.filter_map(numbered).collect()
}

/// A process below a given `/proc`.
#[derive(Debug, Clone, Copy)]
pub struct Process<'a> {
    proc: &'a Path,
    /// Its process number.
    pub pid: u32,
}

impl Process<'static> {
    /// A process of this host.
    pub fn of_host(pid: u32) -> Self {
        Self::new(Path::new("/proc"), pid)
    }
}

impl<'a> Process<'a> {
    /// The process `pid` below `proc`, which need not exist.
    pub fn new(proc: &'a Path, pid: u32) -> Self {
        Self { proc, pid }
    }

    /// The path of a file in its directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.proc.join(self.pid.to_string()).join(name)
    }

    /// Its arguments; empty for kernel threads, zombies and processes that have ended.
    pub fn arguments(&self) -> Vec<Vec<u8>> {
        let mut content = Vec::new();
        let read = File::open(self.path("cmdline"))
            .and_then(|file| file.take(LONGEST_COMMAND).read_to_end(&mut content));
        if read.is_err() || content.is_empty() {
            return Vec::new();
        }
        let content = content.strip_suffix(&[0]).unwrap_or(&content);
        content
            .split(|byte| *byte == 0)
            .map(<[u8]>::to_vec)
            .collect()
    }

    /// Its command name, set by itself or, for a thread of the kernel, by the kernel.
    pub fn command_name(&self) -> Option<Vec<u8>> {
        let name = std::fs::read(self.path("comm")).ok()?;
        Some(name.trim_ascii_end().to_vec())
    }

    /// The file name of its executable.
    pub fn executable(&self) -> Option<Vec<u8>> {
        let path = std::fs::read_link(self.path("exe")).ok()?;
        let name = path.file_name()?.as_bytes();
        // The kernel appends this to an executable that was replaced while it ran.
        Some(name.strip_suffix(b" (deleted)").unwrap_or(name).to_vec())
    }

    /// Reads its `stat` and applies `look`.
    pub fn stat<T>(&self, look: impl FnOnce(ProcessStat<'_>) -> Option<T>) -> Option<T> {
        let text = std::fs::read(self.path("stat")).ok()?;
        look(ProcessStat::parse(&text)?)
    }

    /// See [`ProcessStat::started`].
    pub fn started(&self) -> Option<u64> {
        self.stat(|stat| stat.started())
    }

    /// See [`ProcessStat::parent`].
    pub fn parent(&self) -> Option<u32> {
        self.stat(|stat| stat.parent())
    }

    /// See [`ProcessStat::cpu_time`].
    pub fn cpu_time(&self) -> Option<Nanoseconds> {
        self.stat(|stat| stat.cpu_time())
    }

    /// See [`ProcessStat::is_kernel_thread`].
    pub fn is_kernel_thread(&self) -> bool {
        self.stat(|stat| Some(stat.is_kernel_thread())) == Some(true)
    }

    /// Whether it exists and has not ended.
    pub fn is_alive(&self) -> bool {
        self.stat(|stat| Some(!stat.is_over())) == Some(true)
    }

    /// The numbers of its children.
    pub fn children(&self) -> Vec<u32> {
        // Needs CONFIG_PROC_CHILDREN, which every distribution sets. Without it, every process is examined.
        if let Ok(list) = std::fs::read(self.path(&format!("task/{}/children", self.pid))) {
            return text::fields(&list).filter_map(text::small).collect();
        }
        let is_child =
            |(pid, _): &(u32, PathBuf)| Process::new(self.proc, *pid).parent() == Some(self.pid);
        let all = numbered(self.proc).into_iter().filter(is_child);
        all.map(|(pid, _)| pid).collect()
    }

    /// The numbers and directories of its threads.
    pub fn threads(&self) -> Vec<(u32, PathBuf)> {
        numbered(&self.path("task"))
    }

    /// Its numbers in its PID namespaces, innermost last; empty when it has ended.
    pub fn namespace_numbers(&self) -> Vec<u32> {
        namespace_numbers(&self.path(""))
    }

    /// Whether it has a virtual machine of KVM open.
    pub fn holds_vm(&self) -> bool {
        let is_vm = |(_, target): &(u32, PathBuf)| target.as_os_str() == "anon_inode:kvm-vm";
        self.files().iter().any(is_vm)
    }

    /// Its memory in huge pages of hugetlbfs.
    pub fn huge_pages(&self) -> Option<Bytes> {
        let status = std::fs::read(self.path("status")).ok()?;
        let kib = text::keyed(&status, "HugetlbPages:")?;
        Some(Bytes(kib.saturating_mul(1024)))
    }

    /// The inode of its network namespace.
    pub fn net_namespace(&self) -> Option<u32> {
        let link = std::fs::read_link(self.path("ns/net")).ok()?;
        let inode = link
            .as_os_str()
            .as_bytes()
            .strip_prefix(b"net:[")?
            .strip_suffix(b"]")?;
        text::small(inode)
    }

    /// The names and indices of the devices in its network namespace that are up. Reads `/proc/PID/net/igmp`, since
    /// `/sys` shows the namespace in which it was mounted.
    pub fn links(&self) -> Vec<(Vec<u8>, u32)> {
        let Ok(table) = std::fs::read(self.path("net/igmp")) else {
            return Vec::new();
        };
        let link = |line: &[u8]| {
            // `4\ttap0      :     1      V3`; the groups of the device follow, indented.
            let (index, rest) = line.split_at_checked(line.iter().position(|b| *b == b'\t')?)?;
            let index = text::small(index)?;
            let name = rest.split(|byte| *byte == b':').next()?.trim_ascii();
            Some((name.to_vec(), index))
        };
        text::lines(&table).filter_map(link).collect()
    }

    /// Its group in the hierarchy that accounts CPU time: v1's `cpuacct`, else v2.
    pub fn control_group(&self, v1: bool) -> Option<PathBuf> {
        let table = std::fs::read(self.path("cgroup")).ok()?;
        let accounts = |group: &Membership<'_>| {
            if v1 {
                group.has("cpuacct")
            } else {
                group.is_v2()
            }
        };
        memberships(&table)
            .find(accounts)
            .map(|group| group.path.to_owned())
    }

    /// The numbers of its open files and the targets of their links.
    pub fn files(&self) -> Vec<(u32, PathBuf)> {
        let Ok(entries) = std::fs::read_dir(self.path("fd")) else {
            return Vec::new();
        };
        entries
            .take(MOST_FILES)
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let number = text::small(entry.file_name().as_bytes())?;
                let target = std::fs::read_link(entry.path()).ok()?;
                Some((number, target))
            })
            .collect()
    }

    /// The interface that a file of `/dev/net/tun` belongs to.
    pub fn tun_interface(&self, file: u32) -> Option<String> {
        let info = std::fs::read(self.path(&format!("fdinfo/{file}"))).ok()?;
        let name = text::lines(&info).find_map(|line| line.strip_prefix(b"iff:"))?;
        let name = String::from_utf8_lossy(name.trim_ascii()).into_owned();
        (!name.is_empty()).then_some(name)
    }
}

/// The numbers of a process or thread in its PID namespaces, innermost last, from the `status` in its directory
/// (proc_pid_status(5)); empty when it has ended.
pub fn namespace_numbers(directory: &Path) -> Vec<u32> {
    let status = std::fs::read(directory.join("status")).unwrap_or_default();
    let line = text::lines(&status).find_map(|line| line.strip_prefix(b"NSpid:"));
    text::fields(line.unwrap_or_default())
        .filter_map(text::small)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    const STAT: &[u8] = b"7 (a) (b)) S 2 7 7 0 -1 2129984 0 0 0 0 30 12 5 6 20 0 1 0 4321 0\n";

    #[test]
    fn a_name_may_hold_brackets_and_blanks() {
        let stat = ProcessStat::parse(STAT).unwrap();
        assert_eq!(stat.name, b"a) (b)");
        assert_eq!(stat.parent(), Some(2));
        assert!(stat.is_kernel_thread() && !stat.is_over());
        assert_eq!(stat.cpu_time(), Some(Nanoseconds(420_000_000)));
        assert_eq!(stat.cpu_time_of_children(), Some(Nanoseconds(110_000_000)));
        assert_eq!(stat.started(), Some(4321));
        let children = stat.cpu_times_of_children().unwrap();
        assert_eq!(
            (children.user, children.system),
            (Nanoseconds(50_000_000), Nanoseconds(60_000_000))
        );
        assert_eq!(stat.resident_pages(), None);
        let longer = [STAT.trim_ascii_end(), b" 9 1"].concat();
        assert_eq!(
            ProcessStat::parse(&longer).unwrap().resident_pages(),
            Some(9)
        );
    }

    #[test]
    fn a_truncated_line_has_only_what_it_holds() {
        let stat = ProcessStat::parse(b"7 (a) Z 2").unwrap();
        assert_eq!(
            (stat.parent(), stat.cpu_time(), stat.started()),
            (Some(2), None, None)
        );
        assert!(stat.is_over() && !stat.is_kernel_thread());
        assert!(ProcessStat::parse(b"7 (a").is_none());
        assert!(ProcessStat::parse(b") 7 (").is_none());
    }

    #[test]
    fn huge_pages_are_those_of_the_status_in_bytes() {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir(proc.path().join("7")).unwrap();
        let status = "Name:\tqemu\nHugetlbPages:\t  524288 kB\nThreads:\t3\n";
        fs::write(proc.path().join("7/status"), status).unwrap();
        let process = Process::new(proc.path(), 7);
        assert_eq!(process.huge_pages(), Some(Bytes(512 << 20)));
        assert_eq!(Process::new(proc.path(), 8).huge_pages(), None);
    }

    #[test]
    fn children_are_found_with_and_without_the_kernels_list() {
        let proc = tempfile::tempdir().unwrap();
        for (pid, parent) in [(7, 1), (8, 7), (9, 7), (10, 8)] {
            let folder = proc.path().join(pid.to_string());
            fs::create_dir_all(folder.join("task/7")).unwrap();
            fs::write(folder.join("stat"), format!("{pid} (x) S {parent} 0\n")).unwrap();
        }
        let mut children = Process::new(proc.path(), 7).children();
        children.sort_unstable();
        assert_eq!(children, [8, 9]);
        fs::write(proc.path().join("7/task/7/children"), "9 ").unwrap();
        assert_eq!(Process::new(proc.path(), 7).children(), [9]);
        assert!(Process::new(proc.path(), 7).is_alive());
        assert!(!Process::new(proc.path(), 99).is_alive());
    }

    #[test]
    fn numbers_in_namespaces_end_with_the_innermost() {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir(proc.path().join("7")).unwrap();
        fs::write(
            proc.path().join("7/status"),
            "Name:\tx\nNSpid:\t7\t3\nUid:\t0\n",
        )
        .unwrap();
        assert_eq!(Process::new(proc.path(), 7).namespace_numbers(), [7, 3]);
        assert!(Process::new(proc.path(), 8).namespace_numbers().is_empty());
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "([()]|Z| |[0-9]{1,22}|\n){0,60}") {
            if let Some(stat) = ProcessStat::parse(text.as_bytes()) {
                let _ = (stat.parent(), stat.cpu_time(), stat.started(), stat.cpu_time_of_children());
                let _ = (stat.is_over(), stat.is_kernel_thread());
            }
        }
    }
}
