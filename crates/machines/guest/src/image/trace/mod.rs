// SPDX-License-Identifier: Apache-2.0
//! The files of this host that commands use, found by a dry run of them.
//!
//! ```text
//! vtax ── nsenter ── vtax trace ── unshare --root ── COMMAND ── …
//!    ^                   │   traces all below it by ptrace(2)
//!    └── paths, by a file
//! ```
//!
//! The commands run in a cell whose root is that of this host below a layer, so that they change nothing of it. The tracer
//! is in the namespaces of the cell and outside of that root.

mod calls;
mod ptrace;
mod tracer;

pub use tracer::trace;

use super::GuestFiles;
use crate::platform::jobs::code_of;
use crate::platform::native::Native;
use crate::platform::spool::Spool;
use crate::platform::{CommandLine, Platform};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};
use vtax_host::HostError;
use vtax_host::cell::cgroup::{PROBE, sweep_probes};
use vtax_host::cell::{Cell, CellConfig, Seat, Space};
use vtax_host::settings::Settings;
use vtax_host::untrusted::first_line;
use vtax_host::wait::within;

/// The most paths of a dry run.
const MOST_PATHS: usize = 1_000_000;
/// The most bytes of its paths.
const MOST_BYTES: u64 = 256 << 20;

/// The pause between two looks at a command that runs.
const PAUSE: Duration = Duration::from_millis(10);

/// What commands used.
#[derive(Debug)]
pub struct Used {
    /// The absolute paths, as the commands see them, of files, links and directories of this host: executed, opened or
    /// looked at. They may lead over links.
    pub files: BTreeSet<PathBuf>,
    /// How each dry run ended.
    pub ended: Vec<Outcome>,
    /// How long the dry runs took.
    pub took: Duration,
}

/// How a dry run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The command ended with status 0.
    Succeeded,
    /// The command failed.
    Failed {
        /// Its status, as a shell has it.
        code: i32,
        /// The last line of its standard error.
        message: String,
    },
    /// The command ran until it was killed after this time.
    Stopped(Duration),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Succeeded => f.write_str("succeeded"),
            Self::Failed { code, message } if message.is_empty() => {
                write!(f, "ended with {code}")
            }
            Self::Failed { code, message } => write!(f, "ended with {code} ({message})"),
            Self::Stopped(limit) => write!(f, "was ended after {} s", limit.as_secs_f64()),
        }
    }
}

/// Runs command lines one after the other in a guest with the files of this host, and returns what they used. Each line is
/// ended after `limit`, with all that it started. `progress` receives a line for each that failed or was ended.
///
/// # Errors
/// When the guest cannot be made or a tracer not be started.
pub fn files_used(
    on_host: &GuestFiles,
    lines: &[CommandLine],
    limit: Duration,
    progress: &mut dyn FnMut(&str),
) -> Result<Used, HostError> {
    let clock = Instant::now();
    sweep_probes();
    let cell = Cell::create_unrecorded(CellConfig {
        name: PROBE.to_owned(),
        ..CellConfig::default()
    })?;
    let seat = cell.target()?;
    let target = Native.boot(&seat, on_host, &Settings::default())?;
    let (mut files, mut ended) = (BTreeSet::new(), Vec::new());
    for line in lines {
        let shown = line.join(" ");
        let traced = one(&seat, line, limit)?;
        // What the commands made is in their layer.
        let on_this_host = paths(&traced.records).filter(|path| fs::symlink_metadata(path).is_ok());
        files.extend(on_this_host);
        if traced.outcome != Outcome::Succeeded {
            progress(&format!(
                "the dry run of `{shown}` {}: a VM has the files that it used until then",
                traced.outcome
            ));
        }
        if complete(&traced.records).any(|record| record == tracer::FOREIGN) {
            progress(&format!(
                "the dry run of `{shown}` ran a program of another architecture, such as one of 32 bits: a VM lacks the \
                 files that it opened, so name them in a command of another program"
            ));
        }
        ended.push(traced.outcome);
    }
    target.stop()?;
    cell.destroy()?;
    Ok(Used {
        files,
        ended,
        took: clock.elapsed(),
    })
}

/// A dry run.
struct Traced {
    /// What its tracer wrote.
    records: Vec<u8>,
    outcome: Outcome,
}

/// Runs one command line.
fn one(seat: &Seat<'_>, line: &CommandLine, limit: Duration) -> Result<Traced, HostError> {
    let program = std::env::current_exe().map_err(HostError::process(
        "find",
        "the vtax program, which traces the command",
    ))?;
    let enter = format!("--root={}", seat.run_dir().join("root").display());
    let tracer = [
        &program.to_string_lossy(),
        "trace",
        &enter,
        "--",
        "unshare",
        &enter,
        "--",
    ];
    let tracer = tracer.iter().map(|word| (*word).to_owned());
    let traced: CommandLine = tracer.chain(line.iter().cloned()).collect();
    let what = format!("the dry run of `{}`", line.join(" "));
    let temporary =
        || tempfile::tempfile().map_err(HostError::file("create", "a file for a dry run"));
    let mut output = temporary()?;
    let (printed, stderr) = Spool::start(temporary()?)?;
    let mut child = seat
        .entry()
        .command_in(Space::Target, seat.group(), &traced)
        .stdin(Stdio::null())
        .stdout(
            output
                .try_clone()
                .map_err(HostError::process("start", &*what))?,
        )
        .stderr(stderr)
        .spawn()
        .map_err(HostError::process("start", &*what))?;
    let ended = within(limit, PAUSE, || child.try_wait());
    // The kernel kills the tracer with the process that waits for it outside, and all that is traced with the tracer.
    let _ = child.kill();
    let status = child.wait().and(ended);
    let status = status.map_err(HostError::process("wait for", &*what))?;
    printed.settle();
    let printed = printed.read().unwrap_or_default();
    let records = read(&mut output).map_err(HostError::process("read the files of", &*what))?;
    let outcome = match (status_of(&records), status) {
        (Some(0), _) => Outcome::Succeeded,
        (Some(code), _) => Outcome::failed(code, &printed),
        (None, None) => Outcome::Stopped(limit),
        // The tracer itself was killed, by the command.
        (None, Some(status)) if status.signal().is_some() => {
            Outcome::failed(code_of(status), &printed)
        }
        (None, Some(status)) => {
            return Err(HostError::Program {
                command: what,
                status: status.to_string(),
                output: String::from_utf8_lossy(&printed).into_owned(),
            });
        }
    };
    Ok(Traced { records, outcome })
}

impl Outcome {
    fn failed(code: i32, printed: &[u8]) -> Self {
        let text = String::from_utf8_lossy(printed);
        let last = text.trim_end().lines().next_back();
        Self::Failed {
            code,
            message: first_line(&last.unwrap_or_default()),
        }
    }
}

/// What a tracer wrote into a file.
fn read(file: &mut File) -> io::Result<Vec<u8>> {
    file.rewind()?;
    let mut bytes = Vec::new();
    // One more than the paths, for the other records.
    file.take(MOST_BYTES + 1024).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The records that a tracer wrote. One without its end is left out: the tracer may have been killed.
fn complete(records: &[u8]) -> impl Iterator<Item = &[u8]> {
    let all = records.split_inclusive(|byte| *byte == 0);
    all.filter_map(|record| record.strip_suffix(&[0]))
}

/// The status of the command; `None` where it has not ended.
fn status_of(records: &[u8]) -> Option<i32> {
    let mut statuses =
        complete(records).filter_map(|record| record.strip_prefix(&[tracer::STATUS]));
    std::str::from_utf8(statuses.next()?).ok()?.parse().ok()
}

/// The paths of files.
fn paths(records: &[u8]) -> impl Iterator<Item = PathBuf> {
    let paths = complete(records).filter(|record| record.starts_with(b"/"));
    paths.map(|path| PathBuf::from(OsString::from_vec(path.to_vec())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tracer_writes_has_paths_and_a_status_and_may_break_off() {
        let read = |records: &[u8]| (paths(records).collect::<Vec<_>>(), status_of(records));
        let found = ["/a", "/b c"].map(PathBuf::from).to_vec();
        assert_eq!(read(b"/a\0=3\0/b c\0"), (found.clone(), Some(3)));
        assert_eq!(read(b"/a\0/b c\0!\0"), (found.clone(), None));
        assert_eq!(read(b"/a\0/b c\0="), (found.clone(), None));
        assert_eq!(read(b"/a\0/b c\0/usr/li"), (found, None));
        assert_eq!(read(b""), (Vec::new(), None));
        assert_eq!(read(b"=99999999999\0"), (Vec::new(), None));
    }

    #[test]
    fn a_failure_is_shown_with_the_last_line_that_was_printed() {
        let shown = |printed: &[u8]| Outcome::failed(3, printed).to_string();
        assert_eq!(shown(b""), "ended with 3");
        assert_eq!(shown(b"one\ntwo\n\n"), "ended with 3 (two)");
        assert!(!shown(b"\x1b[31mred\xff").contains('\x1b'));
    }
}
