// SPDX-License-Identifier: Apache-2.0
//! Live guests in several processes, because the descriptors and mappings of a process are limited, and many guests in
//! one process slow each other.
//!
//! Each shard is this program run again with the subcommand `shard`. It serves its guests on a UNIX
//! socket, and ends with its parent.

use crate::error::{Error, Result};
use crate::front::router::ShardRoute;
use crate::image::{DiskFormat, Image, write_disk};
use crate::population::Holding;
use crate::population::memory::Reserve;
use crate::population::share::Share;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use tempfile::TempDir;

/// The most live guests of a shard. To make a VM, the kernel takes every lock of the process's address space and
/// notifies every VM in it: a VM in a process with a thousand takes three times as long as in one with a hundred.
pub const GUESTS_PER_PROCESS: u32 = 64;

/// A process that holds a range of guests.
#[derive(Debug)]
struct Shard {
    child: Child,
    /// The shard ends when this pipe closes.
    _lifeline: Option<ChildStdin>,
    /// First guest.
    first: u32,
    /// Number of guests.
    count: u32,
    /// The socket that it serves on.
    socket: PathBuf,
}

impl Shard {
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
}

impl Drop for Shard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn failed(first: u32, count: u32, problem: String) -> Error {
    let last = first.saturating_add(count).saturating_sub(1);
    let remedy = "see its message above; fewer guests need fewer shards";
    Error::program(
        format!("shard for guests {first} to {last}"),
        problem,
        remedy,
    )
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
        let remedy = "start it by its full path";
        let program = std::env::current_exe()
            .map_err(|cause| Error::program("this program", cause.to_string(), remedy))?;
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
        // Making a VM waits for the kernel half of the time, so two processes keep a core busy.
        let at_once = 2 * cores;
        let mut starting: VecDeque<Shard> = VecDeque::new();
        let mut first = self.guests();
        loop {
            while first < count && starting.len() < at_once && go_on() {
                let held = self.size.min(count - first);
                let place = (self.shards.len() + starting.len()) as u32;
                starting.push_back(self.spawn(first, held, place, cores)?);
                self.share.set_processes(place + 1);
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

    /// Starts a shard without waiting until it serves.
    fn spawn(&self, first: u32, count: u32, place: u32, workers: usize) -> Result<Shard> {
        let file = |name: &str| self.folder.path().join(name);
        let socket = file(&format!("{first}.socket"));
        let mut command = Command::new(&self.command.program);
        command.args(&self.command.words);
        for (option, value) in [
            ("--image", file("image.img").into_os_string()),
            ("--first", first.to_string().into()),
            ("--count", count.to_string().into()),
            ("--workers", workers.to_string().into()),
            ("--socket", socket.clone().into()),
            ("--share", file("share").into()),
            ("--place", place.to_string().into()),
        ] {
            command.arg(option).arg(value);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| match e.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOMEM | libc::EMFILE) => Error::of_limit("start a shard", e),
            _ => failed(first, count, e.to_string()),
        })?;
        Ok(Shard {
            _lifeline: child.stdin.take(),
            child,
            first,
            count,
            socket,
        })
    }

    /// The route to the guests.
    #[must_use]
    pub fn route(&self) -> ShardRoute {
        let shards = self.shards.iter();
        let shards = shards.map(|shard| (shard.first, shard.count, shard.socket.clone()));
        ShardRoute {
            shards: shards.collect(),
        }
    }

    /// The processes.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.shards.iter().map(|shard| shard.child.id())
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
