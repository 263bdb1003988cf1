//! Commands, and what became of them.

use crate::HostError;
use crate::roots::PATH;
use std::ffi::OsStr;
use std::process::{Command, Stdio};

/// A command to run in a target or a client: program and arguments, no shell.
pub type CommandLine = Vec<String>;

/// What a finished command left.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Finished {
    /// Exit code; 128 + signal where it was killed.
    pub code: i32,
    /// Standard output, untouched.
    pub stdout: Vec<u8>,
    /// Standard error, untouched.
    pub stderr: Vec<u8>,
}

/// A command that runs in a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Job(pub u64);

impl Job {
    /// The error of one who is asked for a job that it never started, or that has been collected.
    #[must_use]
    pub fn unknown(self) -> HostError {
        HostError::Invalid {
            what: format!("command number {}", self.0),
            problem: "none of that number runs in the target".to_owned(),
        }
    }
}

/// A program of this host in the same surroundings on every host and for every user: the
/// environment is [`PATH`] and `LC_ALL=C` alone, the input is empty.
pub fn plain(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", PATH)
        .env("LC_ALL", "C")
        .stdin(Stdio::null());
    command
}

/// The first line of what a program says of its version; empty where it says nothing.
pub fn version_line(program: impl AsRef<OsStr>) -> String {
    let output = plain(program).arg("--version").output();
    let said = output.map(|output| output.stdout).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    said.lines().next().unwrap_or_default().to_owned()
}
