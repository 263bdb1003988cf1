// SPDX-License-Identifier: Apache-2.0
//! Shards as the tasks of one Slurm array job. Slurm requeues the tasks of a dead node.

use crate::WorkDir;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tracing::{info, warn};
use vtax_core::counted;
use vtax_host::HostError;
use vtax_host::command::MOST_OUTPUT;
use vtax_host::signals::Signals;
use vtax_host::untrusted::{self, first_line, shown};
use vtax_lab::LabError;

/// Time between two queries of the queue.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Time limit of an unreachable controller.
const CONTROLLER_TIMEOUT: Duration = Duration::from_secs(600);
/// Time limit of the orderly end of cancelled tasks.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(120);

/// The state of a task of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Task {
    state: String,
    node: String,
    reason: String,
}

impl Task {
    /// Whether it has lost the machine that it ran on.
    fn has_moved(&self, before: Option<&Self>) -> bool {
        before.is_some_and(|before| {
            before.state == "RUNNING"
                && (self.state == "PENDING" || self.state == "RUNNING" && self.node != before.node)
        })
    }

    /// Whether it waits for action by an administrator or the user.
    fn is_stuck(&self) -> bool {
        let reason = self.reason.to_ascii_lowercase();
        let for_ever = [
            "held",
            "badconstraints",
            "partitionnodelimit",
            "partitiontimelimit",
            "invalid",
        ];
        self.state == "PENDING" && for_ever.iter().any(|word| reason.contains(word))
    }
}

/// Submits the unfinished shards, unless the job of an earlier call still runs, and follows it to its end.
///
/// # Errors
/// When Slurm is missing, or refuses or holds the job. When the user interrupts, which also cancels the job.
pub fn run(
    workdir: &WorkDir,
    partition: Option<&str>,
    signals: &Signals,
    note: &mut dyn FnMut(String),
) -> Result<(), LabError> {
    let how = if queue(workdir)?.is_empty() {
        let job = submit(workdir, partition)?;
        format!(
            "Slurm's job {job} ({}): {}",
            workdir.name(),
            counted(workdir.unfinished()?.len(), "shard")
        )
    } else {
        format!(
            "the job {} of an earlier call still runs: following it",
            workdir.name()
        )
    };
    info!("{how}");
    note(how);
    let ended = follow(workdir, signals, note);
    if ended.as_ref().is_err_and(LabError::is_interrupt) {
        info!("the job {} is cancelled", workdir.name());
        note("cancelling the job; its machines end their trials in order".to_owned());
        asked(Command::new("scancel").arg("--name").arg(workdir.name()))?;
        let since = Instant::now();
        while since.elapsed() < CANCEL_TIMEOUT
            && queue(workdir).is_ok_and(|tasks| !tasks.is_empty())
        {
            std::thread::sleep(POLL_INTERVAL);
        }
    }
    ended
}

fn submit(workdir: &WorkDir, partition: Option<&str>) -> Result<String, LabError> {
    let script = "#!/bin/sh\nexec ./vtax shard . \"$SLURM_ARRAY_TASK_ID\"\n";
    workdir.write("job.sh", script.as_bytes(), 0o755)?;
    let shards: Vec<String> = workdir.unfinished()?.iter().map(u32::to_string).collect();
    let mut sbatch = Command::new("sbatch");
    sbatch
        .current_dir(workdir.path())
        .args([
            "--parsable",
            "--requeue",
            "--exclusive",
            "--open-mode=append",
        ])
        .arg(format!("--job-name={}", workdir.name()))
        .arg(format!("--array={}", shards.join(",")))
        .arg("--output=log/%a.log")
        .args(partition.map(|partition| format!("--partition={partition}")))
        .arg("job.sh");
    let answer = asked(&mut sbatch)?;
    Ok(answer.trim().to_owned())
}

fn follow(
    workdir: &WorkDir,
    signals: &Signals,
    note: &mut dyn FnMut(String),
) -> Result<(), LabError> {
    let mut known: BTreeMap<u32, Task> = BTreeMap::new();
    let mut heard = Instant::now();
    let mut trials = workdir.trials();
    let mut away = false;
    loop {
        signals.check()?;
        let tasks = match queue(workdir) {
            Ok(tasks) => tasks,
            Err(cause) if heard.elapsed() < CONTROLLER_TIMEOUT => {
                if !away {
                    warn!("Slurm does not answer: {}", first_line(&cause));
                    note(format!("Slurm does not answer ({cause}); asking again"));
                }
                away = true;
                std::thread::sleep(POLL_INTERVAL);
                continue;
            }
            Err(cause) => {
                return Err(LabError::other(format!(
                    "Slurm has not answered for {} s; the job goes on without us, and the same command follows it again: {cause}",
                    CONTROLLER_TIMEOUT.as_secs()
                )));
            }
        };
        if away {
            info!("Slurm answers again after {} s", heard.elapsed().as_secs());
        }
        (heard, away) = (Instant::now(), false);
        for (shard, task) in &tasks {
            let before = known.get(shard);
            if before != Some(task) {
                let line = printed(*shard, before, task);
                if task.has_moved(before) {
                    warn!("{line}");
                } else {
                    info!("{line}");
                }
                note(line);
            }
        }
        for shard in known.keys().filter(|shard| !tasks.contains_key(shard)) {
            let ended = if workdir.is_finished(*shard)? {
                "is finished".to_owned()
            } else {
                format!(
                    "has ended and is not finished: {}",
                    workdir.last_words(*shard)
                )
            };
            info!("shard {shard} {ended}");
            note(format!("shard {shard} {ended}"));
        }
        let now = workdir.trials();
        if now != trials {
            trials = now;
            note(format!("{} on all machines", counted(trials, "trial")));
        }
        if tasks.is_empty() {
            return Ok(());
        }
        if tasks.values().all(Task::is_stuck) {
            let reasons: Vec<&str> = tasks.values().map(|task| task.reason.as_str()).collect();
            return Err(LabError::other(format!(
                "Slurm holds what is left of the job {} ({}): release it (scontrol release {0}) or cancel it (scancel --name {0}), then run the same command",
                workdir.name(),
                reasons.join(", ")
            )));
        }
        known = tasks;
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn printed(shard: u32, before: Option<&Task>, now: &Task) -> String {
    let state = now.state.to_ascii_lowercase();
    match (state.as_str(), before) {
        ("running", Some(before)) if before.state == "RUNNING" && before.node != now.node => {
            format!(
                "shard {shard} lost its machine {} and runs on {}",
                before.node, now.node
            )
        }
        ("running", _) => format!("shard {shard} runs on {}", now.node),
        ("pending", Some(before)) if before.state == "RUNNING" => format!(
            "shard {shard} lost its machine {} and waits for another one ({})",
            before.node, now.reason
        ),
        ("pending", _) => format!("shard {shard} waits ({})", now.reason),
        _ => format!("shard {shard}: {state} {} {}", now.node, now.reason),
    }
}

/// The job's tasks that have not ended, by shard.
fn queue(workdir: &WorkDir) -> Result<BTreeMap<u32, Task>, LabError> {
    let mut squeue = Command::new("squeue");
    squeue
        .args(["--noheader", "--array", "--format=%K|%T|%N|%r"])
        .arg(format!("--name={}", workdir.name()));
    Ok(asked(&mut squeue)?.lines().filter_map(task).collect())
}

fn task(line: &str) -> Option<(u32, Task)> {
    let mut fields = line.split('|').map(|field| shown(field.trim()));
    let shard = fields.next()?.parse().ok()?;
    let mut next = || fields.next();
    Some((
        shard,
        Task {
            state: next()?,
            node: next()?,
            reason: next().unwrap_or_default(),
        },
    ))
}

/// The output of a program of Slurm.
fn asked(command: &mut Command) -> Result<String, LabError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = untrusted::output(command.stdin(Stdio::null()), MOST_OUTPUT).map_err(|cause| {
        if cause.kind() == std::io::ErrorKind::NotFound {
            return HostError::Missing {
                what: format!("{program}, Slurm's"),
                remedy: "run this on a machine that submits jobs to the cluster, or install slurm-client there".to_owned(),
            };
        }
        HostError::process("start", program.clone())(cause)
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(HostError::program(program, &output).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_read_as_squeue_prints_them() {
        let (shard, running) = task("3|RUNNING|n2|None").unwrap();
        assert_eq!((shard, running.node.as_str()), (3, "n2"));
        let (_, waiting) = task("3|PENDING||BeginTime").unwrap();
        assert!(printed(3, Some(&running), &waiting).contains("lost its machine n2"));
        assert!(waiting.has_moved(Some(&running)) && !running.has_moved(Some(&waiting)));
        let (_, elsewhere) = task("3|RUNNING|n4|None").unwrap();
        assert!(elsewhere.has_moved(Some(&running)) && !running.has_moved(Some(&running)));
        assert!(!running.has_moved(None));
        assert!(!waiting.is_stuck());
        let (_, held) = task("3|PENDING||launch failed requeued held").unwrap();
        assert!(held.is_stuck());
        for nonsense in ["", "x|RUNNING|n|r", "3", "slurm_load_jobs error"] {
            assert!(task(nonsense).is_none(), "{nonsense}");
        }
    }
}
