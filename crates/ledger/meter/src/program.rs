// SPDX-License-Identifier: Apache-2.0
//! Execution of a program that may be slow or hang, with a limit on the time it takes.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, PipeReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vtax_observe::ObserveError;

/// The interval at which a waiting caller checks whether to stop.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// More output than any program used here prints; the rest is dropped.
const MOST_OUTPUT: usize = 64 * 1024;

/// Runs `command` and returns its standard output and standard error together.
///
/// # Errors
/// When it cannot be started, fails, takes longer than `limit` (it is killed), or `stop` was set.
pub(super) fn run(
    command: &mut Command,
    limit: Duration,
    stop: &AtomicBool,
) -> Result<String, ObserveError> {
    let line = command_line(command);
    let failed = |detail: String| ObserveError::Program {
        command: line.clone(),
        detail,
    };
    let wrong = |error: io::Error| failed(error.to_string());
    let (mut output, writer) = io::pipe().map_err(wrong)?;
    let second = writer.try_clone().map_err(wrong)?;
    let started = command
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(second)
        .spawn();
    // The command holds copies of the pipe's ends; while they are open, the output does not end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = Reaped(started.map_err(|error| failed(not_started(&error)))?);
    let deadline = Instant::now() + limit;
    let in_time = || !stop.load(Ordering::Relaxed) && Instant::now() < deadline;
    let mut shown = Vec::new();
    while in_time() && !read_some(&mut output, &mut shown).map_err(wrong)? {}
    let status = loop {
        match child.0.try_wait().map_err(wrong)? {
            Some(status) => break status,
            None if in_time() => std::thread::sleep(Duration::from_millis(2)),
            None if stop.load(Ordering::Relaxed) => {
                return Err(failed("it was stopped".to_owned()));
            }
            None => {
                let limit = limit.as_secs_f64();
                return Err(failed(format!("no answer in {limit} s; it was killed")));
            }
        }
    };
    let shown = String::from_utf8_lossy(&shown).into_owned();
    if status.success() {
        Ok(shown)
    } else {
        Err(failed(format!("{status}: {}", ending(&shown))))
    }
}

/// Waits briefly for output and takes what is available; returns true at the end of the output.
fn read_some(output: &mut PipeReader, shown: &mut Vec<u8>) -> io::Result<bool> {
    let mut fds = [PollFd::new(&*output, PollFlags::IN)];
    let wait = Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(POLL_INTERVAL.subsec_nanos()),
    };
    if poll(&mut fds, Some(&wait))? == 0 {
        return Ok(false);
    }
    let mut chunk = [0u8; 4096];
    let length = output.read(&mut chunk)?;
    let room = MOST_OUTPUT.saturating_sub(shown.len());
    shown.extend(chunk.iter().take(length.min(room)));
    Ok(length == 0)
}

/// A child that is killed and waited for on drop, so that no error path leaves it running.
#[derive(Debug)]
pub(super) struct Reaped(pub Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        // Both fail only for a child that has already been waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The command as typed in a shell.
pub(super) fn command_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

pub(super) fn not_started(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "the program is not installed".to_owned(),
        _ => error.to_string(),
    }
}

/// The end of a program's output on one line: usually the reason of a failure.
pub(super) fn ending(shown: &str) -> String {
    let lines = shown.lines().map(str::trim).rev();
    let mut last: Vec<&str> = lines.filter(|line| !line.is_empty()).take(3).collect();
    last.reverse();
    if last.is_empty() {
        "it printed nothing".to_owned()
    } else {
        last.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Result<String, ObserveError> {
        run(
            Command::new("sh").args(["-c", script]),
            limit,
            &AtomicBool::new(false),
        )
    }

    #[test]
    fn both_outputs_are_returned() {
        let shown = shell("echo out; echo err >&2", Duration::from_secs(10)).unwrap();
        assert!(shown.contains("out") && shown.contains("err"));
    }

    #[test]
    fn a_failure_quotes_the_end_of_its_output() {
        let error = shell("echo first; echo no BMC; exit 3", Duration::from_secs(10)).unwrap_err();
        assert!(
            error.to_string().contains("exit status: 3: first; no BMC"),
            "{error}"
        );
    }

    #[test]
    fn a_program_that_hangs_is_killed() {
        let error = shell("exec sleep 1000", Duration::from_millis(100)).unwrap_err();
        assert!(error.to_string().contains("it was killed"), "{error}");
    }

    #[test]
    fn a_program_that_babbles_forever_is_killed_and_fills_no_memory() {
        let error = shell("exec yes", Duration::from_millis(200)).unwrap_err();
        assert!(error.to_string().contains("it was killed"), "{error}");
    }

    #[test]
    fn a_missing_program_says_that_it_is_not_installed() {
        let mut command = Command::new("/nowhere/ipmitool");
        let error = run(
            &mut command,
            Duration::from_secs(1),
            &AtomicBool::new(false),
        )
        .unwrap_err();
        assert!(error.to_string().contains("not installed"), "{error}");
    }
}
