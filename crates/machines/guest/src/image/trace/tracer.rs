// SPDX-License-Identifier: Apache-2.0
//! The tracer: runs a command, and prints the paths of all files that it and what it starts look at with success.

use super::calls::{numbers, path_argument};
use super::ptrace::{self, Stop};
use super::{MOST_BYTES, MOST_PATHS};
use crate::platform::jobs::code_of;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use vtax_host::HostError;

/// The directories whose files are of the system that runs, and not of its root file system.
const LEFT_OUT: [&str; 4] = ["/dev", "/proc", "/run", "/sys"];

/// The longest path (Linux, `include/uapi/linux/limits.h`, `PATH_MAX`).
const PATH_MAX: usize = 4096;

/// The record of the command's status begins with it.
pub(super) const STATUS: u8 = b'=';
/// The record of a program of another architecture, whose files are not seen.
pub(super) const FOREIGN: &[u8] = b"!";

/// Runs a command and writes records to `output`, each ended by a zero byte, when they are first known: the paths of files,
/// `FOREIGN`, and `STATUS` with the command's status as a shell has it. Only what is seen from `root` and from roots
/// below it is written, as `root` shows it: the command enters it itself. Returns when all that the command started has
/// ended, and what runs when this process ends is killed.
///
/// # Errors
/// When the root is missing, the command cannot be started or traced, or `output` not be written.
pub fn trace(line: &[String], root: &Path, output: &mut dyn Write) -> Result<(), HostError> {
    let (program, arguments) = line.split_first().ok_or_else(|| HostError::Invalid {
        what: "an empty command line".to_owned(),
        problem: "it names no program to trace".to_owned(),
    })?;
    let root = root.canonicalize().map_err(HostError::file("read", root))?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let filter = ptrace::filter(numbers());
    // SAFETY: the functions make one system call each, which is safe between fork and exec. The execution itself is no call
    // of the filter: no process stops before its tracer follows it.
    unsafe { command.pre_exec(move || ptrace::trace_me().and_then(|()| ptrace::obey(&filter))) };
    let wrong = |cause| HostError::process("trace", format!("`{program}`"))(cause);
    let child = command.spawn().map_err(wrong)?;
    Tracer {
        first: i32::try_from(child.id()).unwrap_or(i32::MAX),
        root,
        seen: HashSet::new(),
        bytes: 0,
        entered: HashMap::new(),
        output,
    }
    .run()
    .map_err(wrong)
}

struct Tracer<'a> {
    /// The command's process.
    first: i32,
    /// The root that the command enters, as this process sees it.
    root: PathBuf,
    /// The records that were written.
    seen: HashSet<Vec<u8>>,
    bytes: u64,
    /// The known processes and threads, with the path of the system call that each is in.
    entered: HashMap<i32, Option<PathBuf>>,
    output: &'a mut dyn Write,
}

impl Tracer<'_> {
    fn run(mut self) -> io::Result<()> {
        while let Some((pid, status)) = ptrace::wait()? {
            if libc::WIFSTOPPED(status) {
                let signal = self.stopped(pid, status)?;
                let is_in_call = matches!(self.entered.get(&pid), Some(Some(_)));
                ptrace::resume(pid, signal, is_in_call)?;
                continue;
            }
            self.entered.remove(&pid);
            if pid == self.first {
                let code = code_of(ExitStatus::from_raw(status));
                self.write(&[&[STATUS], code.to_string().as_bytes()].concat())?;
            }
        }
        Ok(())
    }

    /// Handles a stop, and returns the signal to go on with.
    fn stopped(&mut self, pid: i32, status: i32) -> io::Result<i32> {
        let signal = libc::WSTOPSIG(status);
        let is_new = !self.entered.contains_key(&pid);
        if is_new {
            self.entered.insert(pid, None);
            // The command stops when it is executed, and what it starts is traced from the beginning.
            if pid == self.first {
                ptrace::follow(pid)?;
                return Ok(0);
            }
            if signal == libc::SIGSTOP {
                return Ok(0);
            }
        }
        let event = status >> 16;
        if event == libc::PTRACE_EVENT_SECCOMP || signal == libc::SIGTRAP | 0x80 {
            // A process that was killed meanwhile is at nothing.
            match ptrace::stop(pid).unwrap_or(Stop::Other) {
                Stop::Entry { number, arguments } => {
                    let path = self.entry(pid, number, arguments);
                    self.entered.insert(pid, path);
                }
                Stop::Exit { succeeded } => {
                    let path = self.entered.insert(pid, None).flatten();
                    if let (Some(path), true) = (path, succeeded) {
                        self.add(&path)?;
                    }
                }
                Stop::Foreign => self.write(FOREIGN)?,
                Stop::Other => {}
            }
        } else if event == libc::PTRACE_EVENT_EXEC {
            // Where another thread than the first executed the program, the first has ended in its call.
            self.entered.insert(pid, None);
            for path in self.executed(pid) {
                self.add(&path)?;
            }
        } else if event == 0 {
            return Ok(signal);
        }
        Ok(0)
    }

    /// Writes a path.
    fn add(&mut self, path: &Path) -> io::Result<()> {
        if LEFT_OUT.iter().any(|left| path.starts_with(left)) {
            return Ok(());
        }
        self.write(path.as_os_str().as_bytes())
    }

    /// Writes a record that was not seen before.
    fn write(&mut self, record: &[u8]) -> io::Result<()> {
        let length = record.len() as u64 + 1;
        let is_beyond = self.seen.len() >= MOST_PATHS || self.bytes + length > MOST_BYTES;
        if is_beyond && record.first() == Some(&b'/') {
            return Ok(());
        }
        if self.seen.insert(record.to_vec()) {
            self.bytes += length;
            self.output.write_all(&[record, &[0]].concat())?;
            self.output.flush()?;
        }
        Ok(())
    }

    /// The root of a process, as the root that the command enters shows it; `None` before a process has entered it.
    fn root_of(&self, pid: i32) -> Option<PathBuf> {
        inside(&link(pid, "root")?, &self.root)
    }

    /// The path of a system call that begins, as the root that the command enters shows it.
    fn entry(&self, pid: i32, number: i64, arguments: [u64; 6]) -> Option<PathBuf> {
        let argument = path_argument(number)?;
        let descriptor = argument.directory.and_then(|at| arguments.get(at));
        // The kernel takes the lower half of the register.
        let descriptor = descriptor.map(|at| (*at as u32).cast_signed());
        self.named(pid, descriptor, *arguments.get(argument.path)?)
    }

    /// The path at an address of a process, from its working directory or another on.
    fn named(&self, pid: i32, directory: Option<i32>, address: u64) -> Option<PathBuf> {
        let root = self.root_of(pid)?;
        let given = text(pid, address)?;
        if given.as_os_str().is_empty() {
            // A call on the descriptor itself, whose opening was seen.
            return None;
        }
        if given.is_absolute() {
            return Some(below(&root, &given));
        }
        let directory = match directory {
            None | Some(libc::AT_FDCWD) => link(pid, "cwd")?,
            Some(descriptor) => link(pid, &format!("fd/{descriptor}"))?,
        };
        Some(below(&inside(&directory, &self.root)?, &given))
    }

    /// The files that the kernel opened to execute a program: the program, and the interpreters and the loader that it
    /// names.
    fn executed(&self, pid: i32) -> Vec<PathBuf> {
        let Some(root) = self.root_of(pid) else {
            return Vec::new();
        };
        // As the command named it, and the last interpreter.
        let given = name_address(pid).and_then(|address| self.named(pid, None, address));
        let real = link(pid, "exe").and_then(|exe| inside(&exe, &self.root));
        let mut all: Vec<PathBuf> = given.into_iter().chain(real).collect();
        // Each names the next one by a path that may lead over links, which no other place shows.
        for at in 0..MOST_INTERPRETERS {
            let file = all.get(at).and_then(|path| open(&self.root, path).ok());
            let named = file.and_then(|file| interpreter(&file));
            all.extend(named.map(|path| below(&root, &path)));
        }
        all
    }
}

/// The link `name` of a process in `/proc`.
fn link(pid: i32, name: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/{name}")).ok()
}

/// A path of this process's root as it is below another root.
fn inside(path: &Path, root: &Path) -> Option<PathBuf> {
    Some(Path::new("/").join(path.strip_prefix(root).ok()?))
}

/// A path from a directory on, without `.`. `..` is kept, since what is before it may be a link.
fn below(directory: &Path, path: &Path) -> PathBuf {
    let parts = path.components();
    let parts = parts.filter(|part| !matches!(part, Component::RootDir | Component::CurDir));
    directory.components().chain(parts).collect()
}

/// The most files that name the next one. The kernel follows four scripts (Linux, `fs/exec.c`).
const MOST_INTERPRETERS: usize = 8;

fn open(root: &Path, path: &Path) -> io::Result<File> {
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, root, directory, Mode::empty())?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(&root, path, flags, Mode::empty(), resolve)?.into())
}

/// The interpreter of a script, or the loader of a program (ELF, "Program Header", `PT_INTERP`).
fn interpreter(file: &File) -> Option<PathBuf> {
    let read = |at: u64, length: usize| -> Option<Vec<u8>> {
        let mut bytes = vec![0; length.min(PATH_MAX)];
        let read = file.read_at(&mut bytes, at).ok()?;
        bytes.truncate(read);
        Some(bytes)
    };
    let path = |bytes: &[u8]| Some(PathBuf::from(OsString::from_vec(bytes.to_vec())));
    let head = read(0, 256)?;
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next()?.trim_ascii();
        let name = line.split(u8::is_ascii_whitespace).next()?;
        return path(name);
    }
    let number = |bytes: &[u8], at: usize, length: usize| -> Option<u64> {
        let mut all = [0; 8];
        // Programs of this host have its byte order, which is little-endian on all architectures of vtax.
        all.get_mut(..length)?
            .copy_from_slice(bytes.get(at..at.checked_add(length)?)?);
        Some(u64::from_le_bytes(all))
    };
    // The length of addresses; where the file has the place, size and number of headers; where one has place and length.
    let (word, table, offset, length) = match head.strip_prefix(b"\x7fELF")?.first()? {
        1 => (4, [28, 42, 44], 4, 16),
        2 => (8, [32, 54, 56], 8, 32),
        _ => return None,
    };
    let [place, size, count] = table;
    let (place, size) = (number(&head, place, word)?, number(&head, size, 2)?);
    for entry in 0..number(&head, count, 2)?.min(64) {
        let at = place.checked_add(entry.checked_mul(size)?)?;
        let header = read(at, 56)?;
        if number(&header, 0, 4)? == u64::from(libc::PT_INTERP) {
            let length = usize::try_from(number(&header, length, word)?).ok()?;
            let name = read(number(&header, offset, word)?, length)?;
            return path(name.split(|byte| *byte == 0).next()?);
        }
    }
    None
}

/// Where a process that executed a program has its name, in the auxiliary vector of 64 bits.
fn name_address(pid: i32) -> Option<u64> {
    let vector = fs::read(format!("/proc/{pid}/auxv")).ok()?;
    let (entries, _) = vector.as_chunks::<16>();
    entries.iter().find_map(|entry| {
        let number = |half: &[u8]| Some(u64::from_ne_bytes(half.try_into().ok()?));
        let (key, value) = entry.split_at(8);
        let is_name = number(key)? == libc::AT_EXECFN;
        is_name.then_some(number(value)?)
    })
}

/// The text at an address of a process.
fn text(pid: i32, address: u64) -> Option<PathBuf> {
    let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    let mut bytes = Vec::new();
    let mut page = [0; PATH_MAX];
    while bytes.len() < PATH_MAX {
        let at = address.checked_add(bytes.len() as u64)?;
        // A page at most, since the next one may not be there.
        let left = PATH_MAX - usize::try_from(at % PATH_MAX as u64).ok()?;
        let read = memory
            .read_at(page.get_mut(..left)?, at)
            .ok()
            .filter(|read| *read > 0)?;
        let new = page.get(..read)?;
        if let Some(end) = new.iter().position(|byte| *byte == 0) {
            bytes.extend_from_slice(new.get(..end)?);
            return Some(PathBuf::from(OsString::from_vec(bytes)));
        }
        bytes.extend_from_slice(new);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_as_the_root_of_the_process_shows_it() {
        let root = Path::new("/run/root");
        assert_eq!(
            inside(Path::new("/run/root/etc/x"), root),
            Some("/etc/x".into())
        );
        assert_eq!(inside(root, root), Some("/".into()));
        assert_eq!(inside(Path::new("/run/other"), root), None);
        let joined = |directory: &str, path: &str| below(Path::new(directory), Path::new(path));
        assert_eq!(joined("/", "/a/./b/../c"), Path::new("/a/b/../c"));
        assert_eq!(joined("/a", "../c/"), Path::new("/a/../c"));
        assert_eq!(joined("/sub", "/a"), Path::new("/sub/a"));
    }

    #[test]
    fn scripts_and_programs_name_their_interpreters() {
        let own = File::open("/proc/self/exe").unwrap();
        assert!(interpreter(&own).is_some_and(|path| path.is_absolute()));
        let of = |content: &[u8]| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(content).unwrap();
            interpreter(&file)
        };
        assert_eq!(of(b"#! /usr/bin/env sh\n"), Some("/usr/bin/env".into()));
        assert_eq!(of(b"#!/bin/sh"), Some("/bin/sh".into()));
        let mut of_32_bits = vec![0; 84];
        for (at, bytes) in [
            (0, &b"\x7fELF\x01"[..]),
            (28, &[52]),
            (42, &[32]),
            (44, &[1]),
            // The header: its kind, and the place and length of the name behind it.
            (52, &[3, 0, 0, 0, 84]),
            (68, &[11]),
        ] {
            of_32_bits.splice(at..at + bytes.len(), bytes.iter().copied());
        }
        of_32_bits.extend_from_slice(b"/lib/ld.so\0and more");
        assert_eq!(of(&of_32_bits), Some("/lib/ld.so".into()));
        for class in [1, 2] {
            let mut header = b"\x7fELF".to_vec();
            header.push(class);
            assert_eq!(of(&header), None);
            header.resize(64, 0xff);
            assert_eq!(of(&header), None);
        }
        for other in [&b""[..], b"\x7fELF", b"\x7fELF\x03", b"text"] {
            assert_eq!(of(other), None);
        }
    }

    #[test]
    fn the_name_of_a_program_is_in_its_process() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let name = super::text(pid, name_address(pid).unwrap()).unwrap();
        let own = std::env::current_exe().unwrap();
        assert_eq!(name.file_name(), own.file_name());
        assert_eq!(name_address(i32::MAX), None);
    }

    #[test]
    fn a_text_of_a_process_is_read_to_its_end_and_no_further() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let read = |text: &std::ffi::CStr| super::text(pid, text.as_ptr() as u64);
        assert_eq!(read(c"/etc/x"), Some("/etc/x".into()));
        let long = std::ffi::CString::new("a".repeat(3 * PATH_MAX)).unwrap();
        assert_eq!(read(&long), None);
        assert_eq!(super::text(pid, 8), None);
        assert_eq!(super::text(pid, u64::MAX), None);
        assert_eq!(super::text(i32::MAX, 8), None);
    }
}
