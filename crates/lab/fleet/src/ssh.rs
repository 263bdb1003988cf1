// SPDX-License-Identifier: Apache-2.0
//! Shards on machines through ssh, one at a time on each. Here vtax is the engine: a machine that is lost or cannot run
//! the plan is not used again, and its shard goes to the next free one.

use crate::workdir::checked_boot;
use crate::{FleetRun, WorkDir};
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tracing::{debug, error, info, warn};
use vtax_core::counted;
use vtax_host::HostError;
use vtax_host::command::is_ssh_host;
use vtax_host::signals::Signals;
use vtax_host::untrusted::first_line;
use vtax_lab::LabError;
use vtax_lab::place::{Line, SshRun, ask_over_ssh, run_over_ssh};
use vtax_lab::run::Event;

/// Attempts after which an unfinished shard is given up, since the machine is not the cause.
const ATTEMPTS: u32 = 5;
/// Consecutive failures after which a machine is not used again.
const MOST_FAILURES: u32 = 2;
/// Time between two checks for work.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// A list of machines that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HostListError {
    /// Lines that are no destination, or repeat one: a message for each.
    #[error("{}", .0.join("\n"))]
    Lines(Vec<String>),
    /// No line names a machine.
    #[error("it names no machine: write one a line")]
    Empty,
}

/// The machines of a file: one a line, as an ssh destination; `#` starts a comment.
///
/// # Errors
/// When a line is no destination or is repeated, with all such lines, or the file has none.
pub fn hosts(text: &str) -> Result<Vec<String>, HostListError> {
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut hosts, mut wrong) = (Vec::new(), Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        let name = line.split('#').next().unwrap_or_default().trim();
        if name.is_empty() {
            continue;
        }
        if !is_ssh_host(name) {
            wrong.push(format!(
                "line {number}: `{}` is no host, user@host or name of ~/.ssh/config",
                name.escape_debug()
            ));
        } else if let Some(first) = known.insert(name, number) {
            wrong.push(format!(
                "line {number}: {name} stands in line {first} already"
            ));
        } else {
            hosts.push(name.to_owned());
        }
    }
    match (wrong.is_empty(), hosts.is_empty()) {
        (false, _) => Err(HostListError::Lines(wrong)),
        (true, true) => Err(HostListError::Empty),
        (true, false) => Ok(hosts),
    }
}

/// The state that the machines' threads share.
struct Work<'a> {
    run: &'a FleetRun,
    workdir: &'a WorkDir,
    signals: &'a Signals,
    state: Mutex<State>,
}

struct State {
    waiting: VecDeque<u32>,
    /// Shards that a machine works on.
    under_way: usize,
    attempts: BTreeMap<u32, u32>,
    /// The reasons why machines are not used.
    lost: Vec<String>,
}

/// Runs the unfinished shards.
///
/// # Errors
/// When the file names no machines, every machine is lost, or the user interrupts.
pub fn run(
    run: &FleetRun,
    workdir: &WorkDir,
    file: &Path,
    signals: &Signals,
    note: &mut dyn FnMut(String),
) -> Result<(), LabError> {
    let text = fs::read_to_string(file).map_err(HostError::file("read", file))?;
    let hosts = hosts(&text).map_err(|problem| HostError::Invalid {
        what: file.display().to_string(),
        problem: problem.to_string(),
    })?;
    let work = Work {
        run,
        workdir,
        signals,
        state: Mutex::new(State {
            waiting: workdir.unfinished()?.into(),
            under_way: 0,
            attempts: BTreeMap::new(),
            lost: Vec::new(),
        }),
    };
    let (printed, hears) = mpsc::channel();
    std::thread::scope(|scope| {
        for host in &hosts {
            let (work, printed) = (&work, printed.clone());
            scope.spawn(move || work.on(host, &printed));
        }
        drop(printed);
        for line in hears {
            note(line);
        }
    });
    signals.check()?;
    let state = work
        .state
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    if state.lost.len() == hosts.len() {
        return Err(LabError::other(format!(
            "every machine is lost; finished trials are kept, and the same command goes on with them:\n{}",
            state.lost.join("\n")
        )));
    }
    Ok(())
}

impl Work<'_> {
    fn state<T>(&self, then: impl FnOnce(&mut State) -> T) -> T {
        then(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs shards on one machine until none is left.
    fn on(&self, host: &str, printed: &Sender<String>) {
        let note = |line: String| {
            // The receiver is closed only at the end of the run.
            let _ = printed.send(format!("{host}: {line}"));
        };
        let mut strikes = 0;
        while !self.signals.interrupted() {
            let next = self.state(|state| {
                let next = state.waiting.pop_front();
                state.under_way += usize::from(next.is_some());
                next.ok_or(state.under_way)
            });
            let shard = match next {
                Ok(shard) => shard,
                Err(0) => return,
                // The shard of a lost machine goes back to the queue.
                Err(_) => {
                    std::thread::sleep(POLL_INTERVAL);
                    continue;
                }
            };
            let ended = self.shard(host, shard, &note);
            let finished = self.workdir.is_finished(shard).unwrap_or(false);
            strikes = if ended.is_ok() { 0 } else { strikes + 1 };
            let is_out = ended.is_err()
                && (strikes >= MOST_FAILURES || ask_over_ssh(&"ssh".into(), host, "true").is_err());
            self.state(|state| {
                state.under_way -= 1;
                let attempts = state.attempts.entry(shard).or_default();
                *attempts += 1;
                if !finished {
                    log_next(shard, *attempts);
                    if *attempts < ATTEMPTS {
                        state.waiting.push_back(shard);
                    }
                }
                if let (Err(cause), true) = (&ended, is_out) {
                    state.lost.push(format!("{host}: {cause}"));
                }
            });
            let text = match &ended {
                Ok(()) if finished => format!("shard {shard} is finished"),
                Ok(()) => format!(
                    "shard {shard} has ended and is not finished: {}",
                    self.workdir.last_words(shard)
                ),
                Err(cause) if is_out => format!("left out from now on: {cause}"),
                Err(cause) => format!("shard {shard} failed: {cause}"),
            };
            log_end(host, &text, finished);
            note(text);
            if is_out {
                return;
            }
        }
    }

    fn shard(&self, host: &str, shard: u32, note: &dyn Fn(String)) -> Result<(), LabError> {
        let ssh = "ssh".into();
        let boot = ask_over_ssh(&ssh, host, "cat /proc/sys/kernel/random/boot_id")?;
        let boot = checked_boot(&boot)?;
        let rest = self.workdir.rest(shard, &boot)?;
        let results = self.workdir.directory(shard, &boot);
        let path = self.workdir.log(shard);
        let mut log = vtax_files::append(&path).map_err(HostError::from)?;
        let mut arguments = self.run.arguments.clone();
        arguments.extend(["--part".to_owned(), format!("--shard={rest}")]);
        debug!("{host}: shard {shard} begins, of blocks {rest}");
        note(format!("shard {shard}"));
        let elsewhere = SshRun {
            ssh,
            host: host.to_owned(),
            binary: self.workdir.path().join("vtax"),
            plan: self.run.plan.clone(),
            results: results.clone(),
            arguments,
        };
        let mut trials = 0;
        let ended = run_over_ssh(&elsewhere, self.signals, &mut |line| {
            let text = match &line {
                Line::Text(text) => text.clone(),
                Line::Event(event) => serde_json::to_string(event).unwrap_or_default(),
            };
            // A failed write to the log loses no trial.
            let _ = writeln!(log, "{host}: {text}");
            if let Line::Event(Event::TrialFinished(over)) = line
                && over.failed.is_none()
            {
                trials += 1;
            }
        });
        if trials > 0 {
            note(format!("shard {shard}: {}", counted(trials, "trial")));
        }
        if let Err(cause) = &ended {
            let _ = writeln!(log, "{host}: {cause}");
        }
        Ok(ended?)
    }
}

/// Logs what a machine's turn with a shard has come to.
fn log_end(host: &str, text: &str, finished: bool) {
    if finished {
        info!("{host}: {text}");
    } else {
        warn!("{host}: {}", first_line(&text));
    }
}

/// Logs what becomes of an unfinished shard.
fn log_next(shard: u32, attempts: u32) {
    if attempts < ATTEMPTS {
        warn!("shard {shard} goes to the next free machine: {attempts} of {ATTEMPTS} attempts");
    } else {
        error!("shard {shard} is given up after {attempts} attempts");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_warns_of_a_machine_that_is_lost_and_says_where_its_shard_goes() {
        let logged = vtax_log::testing::logged(|| {
            log_end("n1", "shard 1 is finished", true);
            log_end(
                "n2",
                "left out from now on: it does not answer:\n    no route",
                false,
            );
            log_next(2, 1);
            log_next(2, ATTEMPTS);
        });
        let of = "vtax_fleet::ssh";
        let lines: Vec<&str> = logged.lines().collect();
        assert_eq!(
            lines,
            [
                format!("<6>{of}: n1: shard 1 is finished"),
                format!("<4>{of}: n2: left out from now on: it does not answer"),
                format!("<4>{of}: shard 2 goes to the next free machine: 1 of 5 attempts"),
                format!("<3>{of}: shard 2 is given up after 5 attempts"),
            ]
        );
    }

    #[test]
    fn a_file_of_hosts_is_read_and_nonsense_is_reported_line_by_line() {
        let good = "# rack 1\nn1\nroot@n2 # fast\n\nn3.example:22\n";
        assert_eq!(hosts(good).unwrap(), ["n1", "root@n2", "n3.example:22"]);
        let wrong = hosts("n1\n-oProxyCommand=x\nn 2\nn1\n\u{1}\n")
            .unwrap_err()
            .to_string();
        for part in [
            "line 2: `-oProxyCommand",
            "line 3: `n 2`",
            "line 4: n1 stands in line 1",
            "line 5",
        ] {
            assert!(wrong.contains(part), "{part}: {wrong}");
        }
        assert!(matches!(hosts("# none\n"), Err(HostListError::Empty)));
    }
}
