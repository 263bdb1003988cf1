// SPDX-License-Identifier: Apache-2.0
//! Runs a program of a build: its output goes to the build's log, and its steps are progress.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use vtax_host::HostError;

/// Runs a program with both its outputs appended to the log; its `I: …` lines are progress, and each tenth of what ninja
/// builds.
pub(super) fn run_logged(
    mut command: Command,
    log: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), HostError> {
    let line = shown(&command);
    let mut file = vtax_files::append(log)?;
    writeln!(file, "$ {line}").map_err(HostError::file("write", log))?;
    // One pipe for both outputs keeps their order.
    let (reader, writer) = std::io::pipe().map_err(HostError::file("create", "a pipe"))?;
    let second = writer
        .try_clone()
        .map_err(HostError::file("create", "a pipe"))?;
    command.stdin(Stdio::null()).stdout(writer).stderr(second);
    let child = command.spawn();
    // The command holds the writing ends; the reading below ends only if no process but the program has them.
    drop(command);
    let mut child = child.map_err(HostError::process("start", format!("`{line}`")))?;
    let mut reader = BufReader::new(reader);
    let mut bytes = Vec::new();
    let mut copied = Ok(());
    let mut tenths = 0;
    loop {
        bytes.clear();
        match reader.read_until(b'\n', &mut bytes) {
            Ok(0) => break,
            Ok(_) => {
                // A full disk must not stop the reading, or the program would block.
                if copied.is_ok() {
                    copied = file.write_all(&bytes);
                }
                if let Some(step) = step(&String::from_utf8_lossy(&bytes), &mut tenths) {
                    progress(&step);
                }
            }
            Err(cause) if cause.kind() == std::io::ErrorKind::Interrupted => {}
            Err(cause) => {
                copied = Err(cause);
                break;
            }
        }
    }
    let status = child
        .wait()
        .map_err(HostError::process("wait for", format!("`{line}`")))?;
    copied.map_err(HostError::file("write", log))?;
    if status.success() {
        return Ok(());
    }
    Err(HostError::Program {
        command: line,
        status: status.to_string(),
        output: super::tail(log),
    })
}

/// The message about a line of a program's output, if it has one. `tenths` is the last reported tenth of the steps of ninja.
fn step(line: &str, tenths: &mut u64) -> Option<String> {
    let line = line.trim_end();
    if let Some(step) = line.strip_prefix("I: ") {
        // What mmdebstrap does with its own options.
        let is_own = ["running --", "skipping "]
            .iter()
            .any(|own| step.starts_with(own));
        return (!is_own).then(|| step.to_owned());
    }
    // Such as `[12/1043] Compiling C object …`.
    let (count, _) = line.strip_prefix('[')?.split_once("] ")?;
    let (done, of) = count.split_once('/')?;
    let (done, of): (u64, u64) = (done.trim().parse().ok()?, of.parse().ok()?);
    let before = std::mem::replace(tenths, done.saturating_mul(10).checked_div(of)?);
    (*tenths > before).then(|| format!("  {done} of {of} parts"))
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_program_shows_the_end_of_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "echo I: one step; echo E: no such package >&2; exit 3",
        ]);
        let mut steps = Vec::new();
        let error = run_logged(command, &dir.path().join("log"), &mut |step| {
            steps.push(step.to_owned())
        })
        .unwrap_err();
        assert_eq!(steps, ["one step"]);
        let text = error.to_string();
        assert!(
            text.contains("exit status: 3") && text.contains("no such package"),
            "{text}"
        );
    }

    #[test]
    fn each_tenth_of_what_ninja_builds_is_progress() {
        let mut tenths = 0;
        let mut steps = |of: u64| -> Vec<String> {
            let lines = (1..=of).map(|done| format!("[{done}/{of}] Compiling C object a.c.o\n"));
            lines.filter_map(|line| step(&line, &mut tenths)).collect()
        };
        let printed = steps(1043);
        assert_eq!(printed.len(), 10);
        assert_eq!(printed.first().unwrap(), "  105 of 1043 parts");
        assert_eq!(printed.last().unwrap(), "  1043 of 1043 parts");
        // A second ninja.
        assert_eq!(steps(20).len(), 10);
        for line in [
            "[1/0] ",
            "[a/b] ",
            "[8/9]",
            "[",
            "I:",
            "9/9] ",
            "[18446744073709551615/1] ",
        ] {
            step(line, &mut tenths);
        }
    }
}
