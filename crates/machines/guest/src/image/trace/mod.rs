// SPDX-License-Identifier: Apache-2.0
//! The files of this host that commands use, found by a dry run of them.
//!
//! ```text
//! vtax ── nsenter ── vtax trace ── unshare --root ── COMMAND ── …
//!    ^                   │   traces all below it by ptrace(2)
//!    └── paths, by a pipe
//! ```
//!
//! The commands run in a cell whose root is that of this host below a layer, so that they change nothing of it. The tracer
//! is in the namespaces of the cell and outside of that root.

mod calls;
mod ptrace;
mod tracer;

pub use tracer::trace;

use super::GuestFiles;
use crate::platform::native::Native;
use crate::platform::{CommandLine, Platform};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};
use vtax_host::HostError;
use vtax_host::cell::cgroup::{PROBE, sweep_probes};
use vtax_host::cell::{Cell, CellConfig, Seat, Space};
use vtax_host::settings::Settings;

/// The most paths of a dry run.
const MOST_PATHS: usize = 1_000_000;
/// The most bytes of its paths.
const MOST_BYTES: u64 = 256 << 20;

/// What commands used.
#[derive(Debug)]
pub struct Used {
    /// The absolute paths, as the commands see them, of files, links and directories that were there: executed, opened or
    /// looked at.
    pub files: BTreeSet<PathBuf>,
    /// How long the dry run took.
    pub took: Duration,
}

/// Runs command lines one after the other in a guest with the files of this host, and returns what they used. Each line is
/// ended after `limit`. `progress` receives a line for each that failed.
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
    let mut files = BTreeSet::new();
    for line in lines {
        one(&seat, line, limit, &mut files, progress)?;
    }
    target.stop()?;
    cell.destroy()?;
    Ok(Used {
        files,
        took: clock.elapsed(),
    })
}

/// Runs one command line, and adds what it used.
fn one(
    seat: &Seat<'_>,
    line: &CommandLine,
    limit: Duration,
    files: &mut BTreeSet<PathBuf>,
    progress: &mut dyn FnMut(&str),
) -> Result<(), HostError> {
    let program = std::env::current_exe().map_err(HostError::process(
        "find",
        "the vtax program, which traces the command",
    ))?;
    let root = seat.run_dir().join("root").display().to_string();
    let (program, limit_s) = (
        program.to_string_lossy(),
        limit.as_secs().max(1).to_string(),
    );
    let enter = format!("--root={root}");
    let tracer = [
        &program, "trace", "--limit", &limit_s, "--", "unshare", &enter, "--",
    ];
    let tracer = tracer.iter().map(|word| (*word).to_owned());
    let traced: CommandLine = tracer.chain(line.iter().cloned()).collect();
    let shown = line.join(" ");
    let wrong = |cause| HostError::process("start", format!("the dry run of `{shown}`"))(cause);
    let mut child = seat
        .entry()
        .command_in(Space::Target, seat.group(), &traced)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(wrong)?;
    let mut printed = Vec::new();
    if let Some(output) = child.stdout.take() {
        // The tracer ends itself at the limit, and all that it traces with it.
        let _ = output.take(MOST_BYTES).read_to_end(&mut printed);
    }
    child.wait().map_err(wrong)?;
    files.extend(paths(&printed));
    match status_of(&printed) {
        Some(0) => {}
        Some(code) => progress(&format!(
            "the dry run of `{shown}` ended with {code}: a VM has the files that it used until then"
        )),
        None => progress(&format!(
            "the dry run of `{shown}` was ended after {} s: a VM has the files that it used until then",
            limit.as_secs()
        )),
    }
    Ok(())
}

/// The status of the command in a tracer's output; `None` where the tracer was killed.
fn status_of(printed: &[u8]) -> Option<i32> {
    let last = printed
        .strip_suffix(&[0])?
        .rsplit(|byte| *byte == 0)
        .next()?;
    let text = std::str::from_utf8(last.strip_prefix(b"=")?);
    text.ok()?.parse().ok()
}

/// The paths of a tracer's output.
fn paths(printed: &[u8]) -> impl Iterator<Item = PathBuf> {
    let records = printed
        .split(|byte| *byte == 0)
        .filter(|one| one.starts_with(b"/"));
    records.map(|one| PathBuf::from(OsString::from_vec(one.to_vec())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tracer_prints_has_paths_and_a_status_at_its_end() {
        let read = |printed: &[u8]| (paths(printed).collect::<Vec<_>>(), status_of(printed));
        let found = ["/a", "/b c"].map(PathBuf::from).to_vec();
        assert_eq!(read(b"/a\0/b c\0=3\0"), (found.clone(), Some(3)));
        assert_eq!(read(b"/a\0/b c\0"), (found.clone(), None));
        assert_eq!(read(b"/a\0/b c\0="), (found, None));
        assert_eq!(read(b""), (Vec::new(), None));
        assert_eq!(read(b"=99999999999\0"), (Vec::new(), None));
    }
}
