// SPDX-License-Identifier: Apache-2.0
//! Commands on the host, in targets and in clients, and their outcomes.

use crate::roots::PATH;
use crate::{HostError, Roots};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A command to run in a target or a client: program and arguments, no shell.
pub type CommandLine = Vec<String>;

/// The bytes that are kept of the end of each output of a command: 32 MiB. A guest decides how much its commands print.
pub const MOST_OUTPUT: usize = 32 << 20;

/// The bytes that are kept of the begin of an output that is longer than this and [`MOST_OUTPUT`] together.
pub const HEAD_OUTPUT: usize = 64 << 10;

/// The line between the begin and the end of an output of which `bytes` are not kept.
#[must_use]
pub fn left_out(bytes: u64) -> String {
    format!("\n[vtax: {bytes} bytes are left out here]\n")
}

/// Whether a text is a host for ssh: `user@host`, an address, or a name of `~/.ssh/config`. An option, white space and what a
/// shell interprets is none.
#[must_use]
pub fn is_ssh_host(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.@:[]%+".contains(c);
    !text.is_empty() && !text.starts_with('-') && text.chars().all(plain)
}

/// The outcome of a finished command.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Finished {
    /// Exit code; 128 + signal where it was killed.
    pub code: i32,
    /// Standard output, untouched.
    pub stdout: Vec<u8>,
    /// Standard error, untouched.
    pub stderr: Vec<u8>,
}

/// The number of a command that runs in a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Job(pub u64);

impl Job {
    /// The error for a job that the target never started or that has been collected.
    #[must_use]
    pub fn unknown(self) -> HostError {
        HostError::Invalid {
            what: format!("command number {}", self.0),
            problem: "none of that number runs in the target".to_owned(),
        }
    }
}

/// A program of this host in an environment that is the same on every host and for every user: [`PATH`] and
/// `LC_ALL=C` alone, with empty input.
pub fn plain(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", PATH)
        .env("LC_ALL", "C")
        .stdin(Stdio::null());
    command
}

/// A text as one word of the POSIX shell.
pub fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The first line of a program's `--version` output; empty where it prints nothing.
pub fn version_line(program: impl AsRef<OsStr>) -> String {
    let output = plain(program).arg("--version").output();
    let shown = output.map(|output| output.stdout).unwrap_or_default();
    let shown = String::from_utf8_lossy(&shown);
    shown.lines().next().unwrap_or_default().to_owned()
}

/// Checks that a program is installed.
///
/// # Errors
/// The program is missing; the error names the Debian package that contains it.
pub fn need_program(name: &str, package: &str) -> Result<PathBuf, HostError> {
    Roots::host()
        .program(name)
        .ok_or_else(|| HostError::Missing {
            what: format!("the program `{name}`"),
            remedy: format!("install the Debian package {package}"),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_of_ssh_is_no_option_and_no_syntax_of_a_shell() {
        for host in ["h2", "root@192.0.2.7", "[fe80::1%eth0]", "a-b_c.example"] {
            assert!(is_ssh_host(host), "{host}");
        }
        for other in [
            "",
            "-oProxyCommand=x",
            "a b",
            "x\ny",
            "$(id)",
            "a;b",
            "\u{1b}[2J",
            "a`b`",
        ] {
            assert!(!is_ssh_host(other), "{other:?}");
        }
    }

    #[test]
    fn a_missing_program_comes_with_its_package() {
        let message = need_program("no-such-program", "no-such-package")
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("`no-such-program` is missing"),
            "{message}"
        );
        assert!(
            message.contains("Debian package no-such-package"),
            "{message}"
        );
    }
}
