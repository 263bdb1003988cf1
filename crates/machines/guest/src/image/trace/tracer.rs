// SPDX-License-Identifier: Apache-2.0
//! The tracer: runs a command, and prints the paths of all files that it and what it starts look at with success.

use super::calls::path_argument;
use super::ptrace::{self, Stop};
use super::{MOST_BYTES, MOST_PATHS};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};
use vtax_host::HostError;

/// The directories whose files are of the system that runs, and not of its root file system.
const LEFT_OUT: [&str; 4] = ["/dev", "/proc", "/run", "/sys"];

/// The longest path (Linux, `include/uapi/linux/limits.h`, `PATH_MAX`).
const PATH_MAX: usize = 4096;

/// Runs a command and writes the paths to `output`, each ended by a zero byte, when they are first seen. Only what is seen
/// from another root than this process's is written, as that root shows it: the command enters its root itself. The last
/// record is `=` with the command's status, as a shell has it. It is missing where this process and all that it traces were
/// killed, as they are after `seconds`.
///
/// # Errors
/// When the command cannot be started or traced, or `output` not be written.
pub fn trace(line: &[String], seconds: u32, output: &mut dyn Write) -> Result<(), HostError> {
    let (program, arguments) = line.split_first().ok_or_else(|| HostError::Invalid {
        what: "an empty command line".to_owned(),
        problem: "it names no program to trace".to_owned(),
    })?;
    ptrace::end_after(seconds);
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    // SAFETY: the function calls ptrace(2) alone, which is safe between fork and exec.
    unsafe { command.pre_exec(ptrace::trace_me) };
    let wrong = |cause| HostError::process("trace", format!("`{program}`"))(cause);
    let child = command.spawn().map_err(wrong)?;
    let first = i32::try_from(child.id()).unwrap_or(i32::MAX);
    Tracer {
        first,
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
    seen: HashSet<Vec<u8>>,
    bytes: u64,
    /// The known processes and threads, with the path of the system call that each is in.
    entered: HashMap<i32, Option<PathBuf>>,
    output: &'a mut dyn Write,
}

impl Tracer<'_> {
    fn run(mut self) -> io::Result<()> {
        let mut code = 0;
        while let Some((pid, status)) = ptrace::wait()? {
            if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
                self.entered.remove(&pid);
                if pid == self.first {
                    code = if libc::WIFEXITED(status) {
                        libc::WEXITSTATUS(status)
                    } else {
                        128 + libc::WTERMSIG(status)
                    };
                }
            } else if libc::WIFSTOPPED(status) {
                let signal = self.stopped(pid, status)?;
                ptrace::resume(pid, signal)?;
            }
        }
        write!(self.output, "={code}\0")?;
        self.output.flush()
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
        if signal == libc::SIGTRAP | 0x80 {
            // A process that was killed meanwhile is at nothing.
            match ptrace::stop(pid).unwrap_or(Stop::Other) {
                Stop::Entry { number, arguments } => {
                    let path = entry(pid, number, arguments);
                    self.entered.insert(pid, path);
                }
                Stop::Exit { succeeded } => {
                    let path = self.entered.insert(pid, None).flatten();
                    if let (Some(path), true) = (path, succeeded) {
                        self.add(&path)?;
                    }
                }
                Stop::Other => {}
            }
            return Ok(0);
        }
        match status >> 16 {
            0 => Ok(signal),
            libc::PTRACE_EVENT_EXEC => {
                let program = self.entered.get(&pid).cloned().flatten();
                for path in executed(pid, program) {
                    self.add(&path)?;
                }
                Ok(0)
            }
            _ => Ok(0),
        }
    }

    /// Writes a path that was not seen before.
    fn add(&mut self, path: &Path) -> io::Result<()> {
        let bytes = path.as_os_str().as_bytes();
        let is_left_out = LEFT_OUT.iter().any(|left| path.starts_with(left));
        let length = bytes.len() as u64 + 1;
        if is_left_out || self.seen.len() >= MOST_PATHS || self.bytes + length > MOST_BYTES {
            return Ok(());
        }
        if self.seen.insert(bytes.to_vec()) {
            self.bytes += length;
            self.output.write_all(&[bytes, &[0]].concat())?;
            self.output.flush()?;
        }
        Ok(())
    }
}

/// The link `name` of a process in `/proc`.
fn link(pid: i32, name: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/{name}")).ok()
}

/// The path of a system call that begins, as the process's root shows it.
fn entry(pid: i32, number: i64, arguments: [u64; 6]) -> Option<PathBuf> {
    let argument = path_argument(number)?;
    let root = link(pid, "root").filter(|root| root != Path::new("/"))?;
    let given = text(pid, *arguments.get(argument.path)?)?;
    let base = || {
        let descriptor = argument.directory.and_then(|at| arguments.get(at));
        // The kernel takes the lower half of the register.
        let descriptor = descriptor.map(|at| (*at as u32).cast_signed());
        let directory = match descriptor {
            None | Some(libc::AT_FDCWD) => link(pid, "cwd")?,
            Some(descriptor) => link(pid, &format!("fd/{descriptor}"))?,
        };
        inside(&directory, &root)
    };
    if given.is_absolute() {
        Some(tidy(&given))
    } else if given.as_os_str().is_empty() {
        // A call on the descriptor itself, whose opening was seen.
        None
    } else {
        Some(tidy(&base()?.join(given)))
    }
}

/// A path of this process's root as it is below another root.
fn inside(path: &Path, root: &Path) -> Option<PathBuf> {
    Some(Path::new("/").join(path.strip_prefix(root).ok()?))
}

/// A path without `.`. One with `..` keeps it, since what is before it may be a link.
fn tidy(path: &Path) -> PathBuf {
    path.components()
        .filter(|part| *part != Component::CurDir)
        .collect()
}

/// The files that the kernel opened to execute a program: the program, and the interpreters and the loader that it names.
fn executed(pid: i32, program: Option<PathBuf>) -> Vec<PathBuf> {
    let Some(root) = link(pid, "root").filter(|root| root != Path::new("/")) else {
        return Vec::new();
    };
    let real = link(pid, "exe").and_then(|exe| inside(&exe, &root));
    let mut all: Vec<PathBuf> = program.into_iter().chain(real).collect();
    // Each names the next one by a path that may lead over links, which no other place shows.
    for at in 0..MOST_INTERPRETERS {
        let Some(file) = all.get(at).and_then(|path| open(&root, path).ok()) else {
            break;
        };
        all.extend(interpreter(&file));
    }
    all
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

/// The interpreter of a script, or the loader of a program of 64 bits (ELF, "Program Header", `PT_INTERP`).
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
    let is_64_bits = head.starts_with(b"\x7fELF\x02");
    let number = |bytes: &[u8], at: usize, length: usize| -> Option<u64> {
        let mut all = [0; 8];
        // Programs of this host have its byte order, which is little-endian on all architectures of vtax.
        all.get_mut(..length)?
            .copy_from_slice(bytes.get(at..at.checked_add(length)?)?);
        Some(u64::from_le_bytes(all))
    };
    let (table, size, count) = (
        number(&head, 32, 8)?,
        number(&head, 54, 2)?,
        number(&head, 56, 2)?,
    );
    for entry in 0..count.min(64) {
        let at = table.checked_add(entry.checked_mul(size)?)?;
        let header = read(at, 56)?;
        if is_64_bits && number(&header, 0, 4)? == 3 {
            let length = usize::try_from(number(&header, 32, 8)?).ok()?;
            let name = read(number(&header, 8, 8)?, length)?;
            return path(name.split(|byte| *byte == 0).next()?);
        }
    }
    None
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
        assert_eq!(tidy(Path::new("/a/./b/../c")), Path::new("/a/b/../c"));
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
        let mut header = b"\x7fELF\x02".to_vec();
        header.resize(64, 0xff);
        for hostile in [&b""[..], b"\x7fELF\x02", &header, b"text"] {
            assert_eq!(of(hostile), None);
        }
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
