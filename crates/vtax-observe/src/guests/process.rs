//! What `/proc` tells of one process. Everything may vanish between two reads, so that every answer
//! is an `Option`: a process that is gone is no guest.

use crate::counters::text;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Longer command lines are cut: a VMM's name and identity stand well before this.
const LONGEST_COMMAND: u64 = 256 << 10;

/// More open files than any VMM has; those beyond are not looked at.
const MOST_FILES: usize = 4096;

/// One process below an injected `/proc`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process<'a> {
    proc: &'a Path,
    /// Its number.
    pub(crate) pid: u32,
}

impl<'a> Process<'a> {
    pub(crate) fn new(proc: &'a Path, pid: u32) -> Self {
        Self { proc, pid }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.proc.join(self.pid.to_string()).join(name)
    }

    /// Its arguments; empty for kernel threads, zombies and processes that are gone.
    pub(crate) fn arguments(&self) -> Vec<Vec<u8>> {
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

    /// The name that it gave itself, or the kernel gave its thread.
    pub(crate) fn command_name(&self) -> Option<Vec<u8>> {
        let name = std::fs::read(self.path("comm")).ok()?;
        Some(name.trim_ascii_end().to_vec())
    }

    /// The last part of its program's path.
    pub(crate) fn executable(&self) -> Option<Vec<u8>> {
        let path = std::fs::read_link(self.path("exe")).ok()?;
        let name = path.file_name()?.as_bytes();
        // A program that was replaced by an update while it ran.
        Some(name.strip_suffix(b" (deleted)").unwrap_or(name).to_vec())
    }

    /// When it started, in clock ticks since boot: with the number, its identity.
    pub(crate) fn started(&self) -> Option<u64> {
        self.stat(19)
    }

    /// The process that started it, or the one that took it over.
    pub(crate) fn parent(&self) -> Option<u32> {
        u32::try_from(self.stat(1)?).ok().filter(|pid| *pid != 0)
    }

    /// Whether it is one of the kernel's own threads: any process can take on their names, and have no
    /// arguments.
    pub(crate) fn is_kernel_thread(&self) -> bool {
        // PF_KTHREAD of the task's flags (`linux/sched.h`).
        self.stat(6).is_some_and(|flags| flags & 0x0020_0000 != 0)
    }

    /// The number at this place of `stat` after the name.
    fn stat(&self, place: usize) -> Option<u64> {
        let stat = std::fs::read(self.path("stat")).ok()?;
        // The command's name stands in parentheses and may itself hold any of them.
        let end = stat.iter().rposition(|byte| *byte == b')')?;
        text::fields(stat.get(end + 1..)?)
            .nth(place)
            .and_then(text::number)
    }

    /// Whether it holds a virtual machine of KVM's.
    pub(crate) fn holds_vm(&self) -> bool {
        let is_vm = |(_, target): &(u32, PathBuf)| target.as_os_str() == "anon_inode:kvm-vm";
        self.files().iter().any(is_vm)
    }

    /// The inode of its network namespace.
    pub(crate) fn net_namespace(&self) -> Option<u32> {
        let link = std::fs::read_link(self.path("ns/net")).ok()?;
        let inode = link
            .as_os_str()
            .as_bytes()
            .strip_prefix(b"net:[")?
            .strip_suffix(b"]")?;
        text::small(inode)
    }

    /// The devices of its network namespace that are up, by name, with their indices there. From
    /// `/proc/PID/net/igmp`, since `/sys` shows the namespace that it was mounted in.
    pub(crate) fn links(&self) -> Vec<(Vec<u8>, u32)> {
        let Ok(table) = std::fs::read(self.path("net/igmp")) else {
            return Vec::new();
        };
        let link = |line: &[u8]| {
            // `4\ttap0      :     1      V3`; groups of a device follow, indented.
            let (index, rest) = line.split_at_checked(line.iter().position(|b| *b == b'\t')?)?;
            let index = text::small(index)?;
            let name = rest.split(|byte| *byte == b':').next()?.trim_ascii();
            Some((name.to_vec(), index))
        };
        text::lines(&table).filter_map(link).collect()
    }

    /// Its group in the hierarchy that accounts CPU time: of v1 where that is `cpuacct`, else v2's.
    pub(crate) fn control_group(&self, v1: bool) -> Option<PathBuf> {
        let table = std::fs::read(self.path("cgroup")).ok()?;
        text::lines(&table).find_map(|line| {
            let mut parts = line.splitn(3, |byte| *byte == b':');
            let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            let wanted = if v1 {
                controllers
                    .split(|byte| *byte == b',')
                    .any(|controller| controller == b"cpuacct")
            } else {
                number == b"0"
            };
            wanted.then(|| PathBuf::from(std::ffi::OsStr::from_bytes(path)))
        })
    }

    /// Its open files: number and what the link says.
    pub(crate) fn files(&self) -> Vec<(u32, PathBuf)> {
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
    pub(crate) fn tun_interface(&self, file: u32) -> Option<String> {
        let info = std::fs::read(self.path(&format!("fdinfo/{file}"))).ok()?;
        let name = text::lines(&info).find_map(|line| line.strip_prefix(b"iff:"))?;
        let name = String::from_utf8_lossy(name.trim_ascii()).into_owned();
        (!name.is_empty()).then_some(name)
    }
}
