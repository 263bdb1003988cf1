// SPDX-License-Identifier: Apache-2.0
//! Live guests in several processes, because the descriptors and mappings of a process are limited, and many guests in
//! one process slow each other.
//!
//! Each shard is this program run again with the arguments of [`Shard::arguments`]. It serves its guests on a UNIX
//! socket, and ends with its parent.

use crate::error::{Error, Result};
use crate::front::router::ShardRoute;
use crate::image::{DiskFormat, Image, write_disk};
use crate::population::Holding;
use crate::population::memory::Reserve;
use crate::population::share::Share;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use tempfile::TempDir;

/// The most live guests of a shard. To make a VM, the kernel takes every lock of the process's address space and
/// notifies every VM in it: a VM in a process with a thousand takes three times as long as in one with a hundred.
pub const GUESTS_PER_PROCESS: u32 = 64;

/// A process that holds a range of guests.
#[derive(Debug)]
pub struct Shard {
    child: Child,
    /// The shard ends when this pipe closes.
    _lifeline: Option<ChildStdin>,
    /// First guest.
    pub first: u32,
    /// Number of guests.
    pub count: u32,
    /// The socket that it serves on.
    pub socket: PathBuf,
}

impl Shard {
    /// The arguments of a shard, after its subcommand.
    #[must_use]
    pub fn arguments(
        image: &Path,
        first: u32,
        count: u32,
        workers: usize,
        socket: &Path,
    ) -> Vec<OsString> {
        [
            ["--image".into(), image.into()],
            ["--first".into(), first.to_string().into()],
            ["--count".into(), count.to_string().into()],
            ["--workers".into(), workers.to_string().into()],
            ["--socket".into(), socket.into()],
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Starts a shard and waits until it serves. `command` are the words before its arguments.
    ///
    /// # Errors
    /// [`Error::Program`] when it cannot be started or ends early.
    pub fn start(
        command: &[String],
        image: &Path,
        first: u32,
        count: u32,
        workers: usize,
        socket: PathBuf,
    ) -> Result<Self> {
        let command = ShardCommand::of_this_program(command)?;
        let arguments = Self::arguments(image, first, count, workers, &socket);
        let mut shard = Self::spawn(&command, &arguments, first, count, socket)?;
        shard.await_ready()?;
        Ok(shard)
    }

    /// Starts a shard without waiting until it serves.
    fn spawn(
        command: &ShardCommand,
        arguments: &[OsString],
        first: u32,
        count: u32,
        socket: PathBuf,
    ) -> Result<Self> {
        let mut command_line = Command::new(&command.program);
        command_line
            .args(&command.words)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command_line.spawn().map_err(|e| match e.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOMEM | libc::EMFILE) => Error::of_limit("start a shard", e),
            _ => failed(first, count, e.to_string()),
        })?;
        Ok(Self {
            _lifeline: child.stdin.take(),
            child,
            first,
            count,
            socket,
        })
    }

    /// Waits until the shard serves.
    fn await_ready(&mut self) -> Result<()> {
        let mut line = String::new();
        if let Some(out) = self.child.stdout.take() {
            let _ = BufReader::new(out).read_line(&mut line);
        }
        if line.trim() == "ready" {
            return Ok(());
        }
        // Dropping the shard ends and reaps it.
        let problem = "it ended before it served".to_owned();
        Err(failed(self.first, self.count, problem))
    }

    /// The shard's process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn failed(first: u32, count: u32, problem: String) -> Error {
    Error::Program {
        program: format!(
            "shard for guests {first} to {}",
            first.saturating_add(count).saturating_sub(1)
        ),
        problem,
        remedy: "see its message above; fewer guests need fewer shards".to_owned(),
    }
}

/// The command line of a shard without its arguments.
#[derive(Clone, Debug)]
pub struct ShardCommand {
    /// The program: `vtax-mvm` or one that includes its command line.
    pub program: PathBuf,
    /// The words before the arguments: `shard` for `vtax-mvm`.
    pub words: Vec<String>,
}

impl ShardCommand {
    /// The running program.
    ///
    /// # Errors
    /// [`Error::Program`] when its path cannot be read.
    pub fn of_this_program(words: &[String]) -> Result<Self> {
        let program = std::env::current_exe().map_err(|cause| Error::Program {
            program: "this program".to_owned(),
            problem: cause.to_string(),
            remedy: "start it by its full path".to_owned(),
        })?;
        Ok(Self {
            program,
            words: words.to_vec(),
        })
    }
}

/// A live population over several processes. They end when this is dropped.
#[derive(Debug)]
pub struct Shards {
    command: ShardCommand,
    shards: Vec<Shard>,
    size: u32,
    share: Share,
    folder: TempDir,
}

impl Shards {
    /// A population without guests, in processes of at most `size` guests.
    ///
    /// # Errors
    /// [`Error::System`] or [`Error::File`] when the image cannot be stored for the shards.
    pub fn new(command: ShardCommand, image: &Image, size: u32) -> Result<Self> {
        let folder = tempfile::tempdir().map_err(Error::temporary_directory)?;
        write_disk(image, DiskFormat::Sector, &folder.path().join("image.img"))?;
        Ok(Self {
            command,
            shards: Vec::new(),
            size: size.max(1),
            share: Share::create(&folder.path().join("share"))?,
            folder,
        })
    }

    /// Guests, all booted.
    #[must_use]
    pub fn guests(&self) -> u32 {
        self.shards
            .last()
            .map_or(0, |shard| shard.first + shard.count)
    }

    /// Adds booted guests until there are `count`, or `go_on` returns false. Calls `progress` with their number at
    /// intervals.
    ///
    /// # Errors
    /// When a shard cannot be started. Earlier guests stay.
    pub fn grow(
        &mut self,
        count: u32,
        go_on: impl Fn() -> bool,
        mut progress: impl FnMut(u32),
    ) -> Result<()> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let missing = count.saturating_sub(self.guests());
        Reserve::of_this_host()?.admit(missing, Holding::Live)?;
        let image = self.folder.path().join("image.img");
        // Making a VM waits for the kernel half of the time, so two processes keep a core busy.
        let at_once = 2 * cores;
        let mut starting: VecDeque<Shard> = VecDeque::new();
        let mut first = self.guests();
        loop {
            while first < count && starting.len() < at_once && go_on() {
                let held = self.size.min(count - first);
                let socket = self.folder.path().join(format!("{first}.socket"));
                let place = (self.shards.len() + starting.len()) as u32;
                let mut arguments = Shard::arguments(&image, first, held, cores, &socket);
                let share = self.folder.path().join("share");
                arguments.extend([OsString::from("--share"), share.into()]);
                arguments.extend([OsString::from("--place"), place.to_string().into()]);
                let shard = Shard::spawn(&self.command, &arguments, first, held, socket)?;
                self.share.set_processes(place + 1);
                starting.push_back(shard);
                first += held;
            }
            let Some(mut shard) = starting.pop_front() else {
                return Ok(());
            };
            shard.await_ready()?;
            self.shards.push(shard);
            progress(self.guests());
        }
    }

    /// The route to the guests.
    #[must_use]
    pub fn route(&self) -> ShardRoute {
        ShardRoute {
            shards: self
                .shards
                .iter()
                .map(|shard| (shard.first, shard.count, shard.socket.clone()))
                .collect(),
        }
    }

    /// The processes.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.shards.iter().map(Shard::pid)
    }
}

impl Drop for Shards {
    fn drop(&mut self) {
        // All are killed before the first wait, because the end of each takes time.
        for shard in &mut self.shards {
            let _ = shard.child.kill();
        }
    }
}
