// SPDX-License-Identifier: Apache-2.0
//! Commands in a target that shares the host's kernel. Their output goes to files of limited size in the cell, so that no
//! command blocks on a reader, and a poll costs one `waitpid`.

use super::spool::Spool;
use super::{CommandLine, Finished, Job};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;
use vtax_core::Nanoseconds;
use vtax_host::HostError;
use vtax_host::cell::{Waiter, entry};
use vtax_host::untrusted;
use vtax_observe::NamespaceAccount;

/// The time limit for a command to enter the cell, which takes a few milliseconds.
const START_LIMIT: Duration = Duration::from_secs(5);
/// The most lines of each command's standard error that an error message includes.
const TAIL_LINES: usize = 12;
/// The most bytes of each command's standard error that are read for an error message.
const TAIL_BYTES: u64 = 64 << 10;
/// The number of last commands that an error message includes.
const TAIL_COMMANDS: usize = 3;

/// The commands of one target, in the order of their start.
#[derive(Debug)]
pub struct Jobs {
    folder: PathBuf,
    /// The account of the target's PID namespace, where it has one.
    account: Option<Arc<NamespaceAccount>>,
    started: Vec<Started>,
    /// The CPU time of those that have ended, with all processes that were waited for.
    waited: Nanoseconds,
}

#[derive(Debug)]
struct Started {
    line: String,
    child: Waiter,
    has_ended: bool,
    outputs: [Spool; 2],
}

impl Jobs {
    /// Creates an empty list of commands, whose time goes to `account`, and `folder` for their output.
    ///
    /// # Errors
    /// When `folder` cannot be created.
    pub fn new(folder: PathBuf, account: Option<Arc<NamespaceAccount>>) -> Result<Self, HostError> {
        fs::create_dir(&folder).map_err(HostError::file("create", &folder))?;
        Ok(Self {
            folder,
            account,
            started: Vec::new(),
            waited: Nanoseconds::default(),
        })
    }

    /// Starts `command`, which runs `line` in the target.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(&mut self, mut command: Command, line: &CommandLine) -> Result<Job, HostError> {
        let line = line.join(" ");
        if line.is_empty() {
            return Err(HostError::Invalid {
                what: "an empty command line".to_owned(),
                problem: "it names no program to start in the target".to_owned(),
            });
        }
        let number = self.started.len();
        let (out, stdout) = Spool::start(vtax_files::create(&self.stdout(number))?)?;
        let (err, stderr) = Spool::start(vtax_files::create(&self.stderr(number))?)?;
        let child = command
            .stdout(stdout)
            .stderr(stderr)
            .spawn()
            .map_err(HostError::process(
                "start",
                format!("`{line}` in the target"),
            ))?;
        let outputs = [out, err];
        self.started.push(Started {
            line,
            child: Waiter::of(child, self.account.clone()),
            has_ended: false,
            outputs,
        });
        Ok(Job(number as u64))
    }

    /// Returns the result of a command; `None` while it runs.
    ///
    /// # Errors
    /// When there is no such command, or its output cannot be read.
    pub fn poll(&mut self, job: Job) -> Result<Option<Finished>, HostError> {
        let started = usize::try_from(job.0)
            .ok()
            .and_then(|number| self.started.get_mut(number))
            .ok_or_else(|| job.unknown());
        let started = started?;
        if !started.has_ended {
            // A process that has ended keeps its times until it is waited for.
            match started.child.children_time() {
                Some(None) => return Ok(None),
                Some(Some(time)) => {
                    self.waited = Nanoseconds(self.waited.0.saturating_add(time.0));
                }
                None => {}
            }
        }
        let status = started.child.try_wait().map_err(HostError::process(
            "wait for",
            format!("`{}`", started.line),
        ))?;
        let Some(status) = status else {
            return Ok(None);
        };
        started.has_ended = true;
        started.outputs.iter().for_each(Spool::settle);
        let [stdout, stderr] = &started.outputs;
        let line = started.line.clone();
        let read = |output: &Spool| {
            let what = format!(
                "the output of `{}`",
                line.lines().next().unwrap_or_default()
            );
            output.read().map_err(HostError::file("read", what))
        };
        Ok(Some(Finished {
            code: code_of(status),
            stdout: read(stdout)?,
            stderr: read(stderr)?,
        }))
    }

    /// The CPU time of the commands whose end [`Jobs::poll`] has found, with all processes that they waited for.
    pub fn waited(&self) -> Nanoseconds {
        self.waited
    }

    /// Waits until every running command is in its control groups, so that a kill finds it. A command that has just
    /// been started may not be there yet.
    pub fn settle(&mut self) {
        for started in &mut self.started {
            if matches!(started.child.try_wait(), Ok(None)) {
                // A command that has ended needs no wait.
                let _ = entry::host_pid(started.child.id(), START_LIMIT);
            }
        }
    }

    /// Waits for commands that have been killed.
    pub fn reap(&mut self) {
        for started in &mut self.started {
            // Killing the outer process is harmless if the inner command is dead.
            let _ = started.child.kill();
            let _ = started.child.wait();
        }
    }

    /// The end of the standard error of the last commands.
    pub fn tail(&self) -> String {
        let mut text = String::new();
        for (number, started) in self
            .started
            .iter()
            .enumerate()
            .rev()
            .take(TAIL_COMMANDS)
            .rev()
        {
            let printed = untrusted::end_of(&self.stderr(number), TAIL_BYTES);
            let printed = String::from_utf8_lossy(&printed);
            let lines: Vec<&str> = printed.trim_end().lines().collect();
            let end = lines.iter().skip(lines.len().saturating_sub(TAIL_LINES));
            for line in std::iter::once(format!("$ {}", started.line))
                .chain(end.map(|line| (*line).to_owned()))
            {
                text.push_str(&line);
                text.push('\n');
            }
        }
        text
    }

    fn stdout(&self, number: usize) -> PathBuf {
        self.folder.join(format!("{number}.out"))
    }

    fn stderr(&self, number: usize) -> PathBuf {
        self.folder.join(format!("{number}.err"))
    }
}

impl Drop for Jobs {
    fn drop(&mut self) {
        self.reap();
    }
}

/// The code of a command that has ended, as a shell has it: 128 and its number for a signal.
pub(crate) fn code_of(status: ExitStatus) -> i32 {
    let signal = status.signal().map(|signal| 128 + signal);
    // A status has either a code or a signal.
    status.code().or(signal).unwrap_or(-1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use vtax_host::command::{HEAD_OUTPUT, MOST_OUTPUT, left_out};

    fn shell(jobs: &mut Jobs, script: &str) -> Job {
        let line: CommandLine = ["sh", "-c", script].map(str::to_owned).to_vec();
        let mut command = Command::new("sh");
        command.args(&line[1..]);
        jobs.start(command, &line).unwrap()
    }

    fn wait(jobs: &mut Jobs, job: Job) -> Finished {
        loop {
            if let Some(finished) = jobs.poll(job).unwrap() {
                return finished;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn jobs() -> (tempfile::TempDir, Jobs) {
        let folder = tempfile::tempdir().unwrap();
        let jobs = Jobs::new(folder.path().join("jobs"), None).unwrap();
        (folder, jobs)
    }

    #[test]
    fn both_outputs_and_the_code_come_back_as_they_were() {
        let (_folder, mut jobs) = jobs();
        let job = shell(&mut jobs, r"printf '\0\377out'; printf err >&2; exit 7");
        let expected = Finished {
            code: 7,
            stdout: b"\0\xffout".to_vec(),
            stderr: b"err".to_vec(),
        };
        assert_eq!(wait(&mut jobs, job), expected);
        assert_eq!(
            wait(&mut jobs, job),
            expected,
            "a second poll says the same"
        );
    }

    #[test]
    fn a_killed_command_has_128_and_its_signal() {
        let (_folder, mut jobs) = jobs();
        let job = shell(&mut jobs, "kill -9 $$");
        assert_eq!(wait(&mut jobs, job).code, 137);
    }

    #[test]
    fn ten_megabytes_of_output_block_nobody() {
        let (_folder, mut jobs) = jobs();
        let job = shell(
            &mut jobs,
            "head -c 10000000 /dev/zero; head -c 10000000 /dev/zero >&2",
        );
        let finished = wait(&mut jobs, job);
        assert_eq!(
            (finished.stdout.len(), finished.stderr.len()),
            (10_000_000, 10_000_000)
        );
    }

    #[test]
    fn of_a_gigabyte_the_begin_and_the_end_are_kept_and_the_rest_is_counted() {
        let (_folder, mut jobs) = jobs();
        let job = shell(
            &mut jobs,
            "echo begin; head -c 1000000000 /dev/zero; echo end",
        );
        let finished = wait(&mut jobs, job);
        assert_eq!(finished.code, 0);
        let printed = finished.stdout;
        assert!(printed.starts_with(b"begin\n\0") && printed.ends_with(b"\0end\n"));
        let kept = HEAD_OUTPUT + MOST_OUTPUT;
        let note = left_out(1_000_000_010 - kept as u64);
        assert_eq!(printed.len(), kept + note.len());
        let at = printed.windows(6).position(|bytes| bytes == b"[vtax:");
        let at = at.unwrap() - 1;
        assert_eq!(&printed[at..at + note.len()], note.as_bytes());
        let size = fs::metadata(jobs.stdout(0)).unwrap().len();
        assert_eq!(size, kept as u64, "the rest fills no disk");
    }

    #[test]
    fn a_command_ends_though_a_process_that_it_left_holds_its_output() {
        let (_folder, mut jobs) = jobs();
        let job = shell(&mut jobs, "sleep 5 & echo $!");
        let began = std::time::Instant::now();
        let finished = wait(&mut jobs, job);
        assert!(began.elapsed() < Duration::from_secs(4));
        let left = String::from_utf8(finished.stdout).unwrap();
        let left = left.trim();
        assert!(!left.is_empty());
        let end = ["-c", "kill \"$0\"", left];
        assert!(Command::new("sh").args(end).status().unwrap().success());
    }

    #[test]
    fn an_unknown_job_is_an_error() {
        let (_folder, mut jobs) = jobs();
        assert!(jobs.poll(Job(0)).is_err());
        assert!(jobs.poll(Job(u64::MAX)).is_err());
    }

    #[test]
    fn the_tail_names_the_command_and_ends_with_its_last_words() {
        let (_folder, mut jobs) = jobs();
        let job = shell(&mut jobs, "seq 1 100 >&2");
        wait(&mut jobs, job);
        let tail = jobs.tail();
        assert!(tail.starts_with("$ sh -c seq"), "{tail}");
        assert!(
            tail.ends_with("\n99\n100\n") && !tail.contains("\n50\n"),
            "{tail}"
        );
    }
}
