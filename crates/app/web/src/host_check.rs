// SPDX-License-Identifier: Apache-2.0
//! The check whether this host can run a plan: `vtax run --dry-run`, which makes the checks of a run before its first
//! trial and changes nothing.

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// What the host lacks for a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostCheck {
    /// The missing requirements, each with its remedy; empty where the run can start, none where nothing was checked.
    pub missing: Option<Vec<String>>,
    /// What may disturb the run or make it longer.
    pub notes: Vec<String>,
}

impl HostCheck {
    /// A check that was not made, with the reason.
    pub fn not_made(reason: &str) -> Self {
        Self {
            missing: None,
            notes: vec![reason.to_owned()],
        }
    }
}

/// Why this host was not checked.
#[derive(Debug, thiserror::Error)]
pub enum HostCheckError {
    /// The program cannot be started.
    #[error("cannot start {}: {cause}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The kernel's reason.
        cause: io::Error,
    },
    /// It did not end in time.
    #[error(
        "the check of this host for the plan did not end within {0:?}: does the plan name a file that cannot be read to its end?"
    )]
    TooLong(Duration),
    /// It printed no result; its last message.
    #[error("cannot check this host for the plan: {0}")]
    NoResult(String),
}

/// The longest check. The page answers within 30 s.
const LIMIT: Duration = Duration::from_secs(20);
/// The time between two looks whether the check has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Checks this host for a plan, by `program`, which is ended when it takes too long.
///
/// # Errors
/// When the program cannot be started, does not end in time, or prints no result.
pub fn check(program: &Path, text: &str, quick: bool) -> Result<HostCheck, HostCheckError> {
    check_within(program, text, quick, LIMIT)
}

/// A file in memory with a text, from its begin.
fn memory(text: &str) -> io::Result<File> {
    let mut file = File::from(memfd_create("check", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// What a program has written into a file in memory.
fn written(mut file: File) -> String {
    let mut bytes = Vec::new();
    let _ = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

fn check_within(
    program: &Path,
    text: &str,
    quick: bool,
    limit: Duration,
) -> Result<HostCheck, HostCheckError> {
    let failed = |cause| HostCheckError::Start {
        program: program.to_owned(),
        cause,
    };
    let run = || -> io::Result<Option<(String, String)>> {
        let (printed, errors) = (memory("")?, memory("")?);
        let began = Instant::now();
        let mut child = Command::new(program)
            .args(["run", "/dev/stdin", "--dry-run", "--json"])
            .args(quick.then_some("--quick"))
            .stdin(memory(text)?)
            .stdout(printed.try_clone()?)
            .stderr(errors.try_clone()?)
            .process_group(0)
            .spawn()?;
        while child.try_wait()?.is_none() {
            if began.elapsed() >= limit {
                // The number is still the child's, which is not reaped yet.
                let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
                child.wait()?;
                return Ok(None);
            }
            sleep(POLL_INTERVAL);
        }
        Ok(Some((written(printed), written(errors))))
    };
    let (printed, errors) = run()
        .map_err(failed)?
        .ok_or(HostCheckError::TooLong(limit))?;
    serde_json::from_str(&printed)
        .map_err(|_| HostCheckError::NoResult(errors.lines().last().unwrap_or_default().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    /// A program that runs this shell script.
    fn program(folder: &tempfile::TempDir, script: &str) -> std::path::PathBuf {
        let path = folder.path().join("vtax");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn the_plan_goes_to_a_dry_run_and_what_is_missing_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let script = "[ \"$*\" = 'run /dev/stdin --dry-run --json --quick' ] && read plan && \
                      echo '{\"plan\":\"p\",\"missing\":[\"'$plan'\"],\"notes\":[\"busy\"]}'; exit 5";
        let found = check(&program(&folder, script), "governors\n", true).unwrap();
        let expected = HostCheck {
            missing: Some(vec!["governors".to_owned()]),
            notes: vec!["busy".to_owned()],
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn a_dry_run_that_does_not_end_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        // A process that holds its outputs is ended, too.
        let script = format!("sleep 600 & echo $! >{}; wait", pid.display());
        let limit = Duration::from_millis(300);
        // A plan that does not fit into the pipe is not waited for either.
        let plan = "x".repeat(1 << 20);
        let failed = check_within(&program(&folder, &script), &plan, false, limit);
        assert!(
            failed
                .unwrap_err()
                .to_string()
                .contains("did not end within 300ms")
        );
        let pid = fs::read_to_string(pid).unwrap();
        let pid = pid.trim().parse().unwrap();
        // The signal has been sent; the process ends when it next runs.
        let process = vtax_kernel::Process::of_host(pid);
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while process.is_alive() {
            assert!(std::time::Instant::now() < deadline, "{pid} goes on");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_dry_run_without_a_result_fails_with_its_last_message() {
        let folder = tempfile::tempdir().unwrap();
        let script = "cat > /dev/null; echo first >&2; echo 'no such plan' >&2; exit 1";
        let failed = check(&program(&folder, script), "x", false).unwrap_err();
        assert!(failed.to_string().ends_with("no such plan"), "{failed}");
        let absent = check(&folder.path().join("absent"), "x", false).unwrap_err();
        assert!(absent.to_string().contains("cannot start"), "{absent}");
    }
}
