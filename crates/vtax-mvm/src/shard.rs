//! Live guests over several processes, because a process may hold only so many descriptors and
//! mappings.
//!
//! Each shard is this program run again with the arguments of [`Shard::arguments`]. It serves its
//! guests on a UNIX socket, and dies with its parent.

use crate::error::{Error, Result};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

/// Descriptors and mappings of one live guest: its VM and vCPU; the run page and the ring.
const PER_GUEST: u64 = 2;
/// What the process needs for itself.
const RESERVE: u64 = 512;

/// How many live guests one process can hold, and which limit says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Guests.
    pub guests: u32,
    /// The limit that binds.
    pub limit: Limit,
}

/// A limit on live guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// `ulimit -n`, the hard one.
    Descriptors(u64),
    /// `vm.max_map_count`.
    Mappings(u64),
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Descriptors(n) => write!(f, "{n} file descriptors a process"),
            Self::Mappings(n) => write!(f, "{n} mappings a process (vm.max_map_count)"),
        }
    }
}

impl Capacity {
    /// What this host allows; raises the soft descriptor limit to the hard one.
    #[must_use]
    pub fn of_this_process() -> Self {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limit = getrlimit(Resource::Nofile);
        let hard = limit.maximum.unwrap_or(1 << 20);
        let _ = setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(hard),
                maximum: limit.maximum,
            },
        );
        let mappings = std::fs::read_to_string("/proc/sys/vm/max_map_count");
        let mappings = mappings
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(65_530);
        Self::of(hard, mappings)
    }

    fn of(descriptors: u64, mappings: u64) -> Self {
        let fit = |limit: u64| limit.saturating_sub(RESERVE) / PER_GUEST;
        let (guests, limit) = if fit(descriptors) <= fit(mappings) {
            (fit(descriptors), Limit::Descriptors(descriptors))
        } else {
            (fit(mappings), Limit::Mappings(mappings))
        };
        Self {
            guests: u32::try_from(guests).unwrap_or(u32::MAX),
            limit,
        }
    }
}

/// A process that holds a range of guests.
#[derive(Debug)]
pub struct Shard {
    child: Child,
    /// The shard ends when this closes.
    _lifeline: Option<ChildStdin>,
    /// First guest.
    pub first: u32,
    /// Number of guests.
    pub count: u32,
    /// Where it serves.
    pub socket: PathBuf,
}

impl Shard {
    /// The arguments that make this program a shard, behind its subcommand's name.
    #[must_use]
    pub fn arguments(
        image: &Path,
        first: u32,
        count: u32,
        workers: usize,
        socket: &Path,
    ) -> Vec<std::ffi::OsString> {
        let mut arguments: Vec<std::ffi::OsString> = vec!["--image".into(), image.into()];
        for (name, value) in [
            ("--first", first.to_string()),
            ("--count", count.to_string()),
            ("--workers", workers.to_string()),
        ] {
            arguments.push(name.into());
            arguments.push(value.into());
        }
        arguments.push("--socket".into());
        arguments.push(socket.into());
        arguments
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
        let failed = |problem: String| Error::Program {
            program: format!(
                "shard for guests {first} to {}",
                first.saturating_add(count)
            ),
            problem,
            remedy: "see its message above; fewer guests need fewer shards".to_owned(),
        };
        let program = std::env::current_exe().map_err(|e| failed(e.to_string()))?;
        let mut command_line = Command::new(program);
        command_line
            .args(command)
            .args(Self::arguments(image, first, count, workers, &socket))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        // SAFETY: between fork and exec only one async-signal-safe system call is made.
        unsafe {
            command_line.pre_exec(|| {
                rustix::process::set_parent_process_death_signal(Some(
                    rustix::process::Signal::KILL,
                ))?;
                Ok(())
            });
        }
        let mut child = command_line.spawn().map_err(|e| match e.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOMEM | libc::EMFILE) => Error::of_limit("start a shard", e),
            _ => failed(e.to_string()),
        })?;
        let lifeline = child.stdin.take();
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            let _ = BufReader::new(out).read_line(&mut line);
        }
        let shard = Self {
            child,
            _lifeline: lifeline,
            first,
            count,
            socket,
        };
        if line.trim() != "ready" {
            // Dropping it ends and reaps it.
            return Err(failed("it ended before it served".to_owned()));
        }
        Ok(shard)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_that_binds_is_named() {
        assert_eq!(
            Capacity::of(20_000, 65_530),
            Capacity {
                guests: 9744,
                limit: Limit::Descriptors(20_000)
            }
        );
        assert_eq!(Capacity::of(1 << 20, 65_530).limit, Limit::Mappings(65_530));
        assert_eq!(Capacity::of(100, 65_530).guests, 0);
    }
}
