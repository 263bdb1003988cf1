// SPDX-License-Identifier: Apache-2.0
//! A run on another Linux machine. The binary and the plan are copied to it through ssh; events come back as JSON
//! lines, and the results as a tar stream. Only the image cache remains on the machine.

use super::remote::Remote;
use crate::run::{Event, FinishedTrial};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use tracing::{info, warn};
use vtax_files::Dir;
use vtax_host::HostError;
use vtax_host::signals::Signals;
use vtax_host::untrusted::archive::{self, Budget, Refusal};
use vtax_host::untrusted::{LONGEST_LINE, Lines, drain, first_line, shown};
use vtax_results::{Aside, ResultsDir, ResultsError, TrialOutcome, is_record};

/// The most bytes after the end of an archive, whose last record tar pads.
const MAX_PADDING: u64 = 1 << 20;

/// A run on another host.
#[derive(Debug, Clone)]
pub struct SshRun {
    /// The program to connect with, normally `ssh`; tests inject another.
    pub ssh: OsString,
    /// The host as ssh understands it.
    pub host: String,
    /// The binary of vtax, which must run on that host.
    pub binary: PathBuf,
    /// The text of the plan.
    pub plan: String,
    /// The results directory on this host.
    pub results: PathBuf,
    /// Further arguments of `vtax run`, such as `--quick`.
    pub arguments: Vec<String>,
}

/// Runs a line in another host's shell. Returns its trimmed output.
///
/// # Errors
/// When the host cannot be reached, or the line fails.
pub fn ask_over_ssh(ssh: &OsString, host: &str, line: &str) -> Result<String, HostError> {
    let remote = Remote {
        ssh: ssh.clone(),
        host: host.to_owned(),
        options: Vec::new(),
    };
    remote.ask(line)
}

/// Runs the plan on the host, streams its events, and fetches the results even when the run failed. Each trial is
/// fetched when it has ended, so that the loss of the host loses only the trial in progress.
///
/// # Errors
/// When the host cannot be reached or lacks a requirement of the plan, or when the run on it fails.
pub fn run_over_ssh(
    run: &SshRun,
    signals: &Signals,
    each: &mut dyn FnMut(Line),
) -> Result<(), HostError> {
    let remote = Remote {
        ssh: run.ssh.clone(),
        host: run.host.clone(),
        options: Vec::new(),
    };
    let directory = remote.ask("mktemp -d /var/tmp/vtax-run-XXXXXX")?;
    if !directory.starts_with("/var/tmp/vtax-run-") || directory.contains(['\'', '\n']) {
        return Err(HostError::Protocol {
            peer: run.host.clone(),
            detail: format!(
                "asked for a temporary directory, got `{}`",
                shown(&directory)
            ),
        });
    }
    info!(
        "vtax runs on {} in {directory}, into {}",
        run.host,
        run.results.display()
    );
    let outcome = run_in(run, &remote, &directory, signals, each);
    match &outcome {
        Ok(()) => info!("vtax has ended on {}", run.host),
        Err(cause) => warn!("vtax has failed on {}: {}", run.host, first_line(cause)),
    }
    let cleaned = remote.ask(&format!("rm -rf -- '{directory}'")).map(drop);
    outcome.and(cleaned)
}

/// An output line of the vtax on the other host, with printable text and numbers in bounds.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    /// An event of the run.
    Event(Event),
    /// Any other line, for the user.
    Text(String),
}

impl Line {
    /// Reads a line.
    #[must_use]
    pub fn read(line: &str) -> Self {
        match serde_json::from_str::<Event>(line) {
            Ok(event) => Self::Event(event.bounded()),
            Err(_) => Self::Text(shown(line)),
        }
    }
}

fn run_in(
    run: &SshRun,
    remote: &Remote,
    directory: &str,
    signals: &Signals,
    each: &mut dyn FnMut(Line),
) -> Result<(), HostError> {
    let binary = File::open(&run.binary).map_err(HostError::file("read", &run.binary))?;
    remote.send(
        binary.into(),
        &format!("cat > '{directory}/vtax' && chmod 0755 '{directory}/vtax'"),
    )?;
    remote.send_text(&run.plan, &format!("cat > '{directory}/plan.toml'"))?;
    // To resume an unfinished run, its results are copied there first.
    if run.results.join("run.json").exists() {
        let pack = Command::new("tar")
            .arg("-C")
            .arg(&run.results)
            .args(["-cf", "-", "."])
            .stdout(Stdio::piped())
            .spawn();
        let mut pack = pack.map_err(HostError::file("run", "tar"))?;
        let stream = pack.stdout.take().map_or_else(Stdio::null, Stdio::from);
        remote.send(
            stream,
            &format!("mkdir -p '{directory}/results' && tar -C '{directory}/results' -xf -"),
        )?;
        pack.wait().map_err(HostError::file("run", "tar"))?;
    }
    let arguments: Vec<String> = run
        .arguments
        .iter()
        .map(|argument| format!("'{}'", argument.replace('\'', "'\\''")))
        .collect();
    // The remote shell forwards a hang-up, so that an interrupted run restores its host.
    let command = format!(
        "cd '{directory}' && exec ./vtax run plan.toml --results results --json --place-name 'ssh:{}' {}",
        run.host.replace('\'', ""),
        arguments.join(" ")
    );
    let mut budget = Budget::RUN;
    let mut bring_home = |line: Line| {
        if let Line::Event(Event::TrialFinished(FinishedTrial { index, .. })) = &line {
            // A trial that cannot be fetched now is fetched at the end.
            if let Err(cause) = bring(remote, directory, &run.results, *index, &mut budget) {
                warn!(
                    "trial {index:04} stays on {} until the end: {cause}",
                    run.host
                );
                let text = format!("trial {index:04} stays there until the end: {cause}");
                each(Line::Text(text));
            }
        }
        each(line);
    };
    let ran = follow(remote, &command, signals, &mut bring_home);
    let fetched = fetch(remote, directory, &run.results, &mut budget);
    ran.and(fetched)
}

/// Runs a line on the host and forwards its output, until it ends or the user interrupts.
fn follow(
    remote: &Remote,
    line: &str,
    signals: &Signals,
    each: &mut dyn FnMut(Line),
) -> Result<(), HostError> {
    let (relayed, status, complaint) = read_from(remote, line, |stdout| relay(stdout, each))?;
    relayed?;
    signals.check()?;
    if status.success() {
        return Ok(());
    }
    Err(HostError::Program {
        command: format!("vtax run, on {}", remote.host),
        status: status.to_string(),
        output: complaint,
    })
}

/// Runs a line on the host while `read` reads its output. Returns the result of `read`, the exit status and the error
/// output. After a failure of `read` the connection is ended. A run there ends with it, and restores its host.
fn read_from<E>(
    remote: &Remote,
    line: &str,
    read: impl FnOnce(ChildStdout) -> Result<(), E>,
) -> Result<(Result<(), E>, ExitStatus, String), HostError> {
    let mut child = remote
        .command(line)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(HostError::file("run", "ssh"))?;
    // Read on its own thread, so that a full pipe stops neither end.
    let errors = child.stderr.take();
    let errors = errors.map(|stderr| thread::spawn(move || drain(stderr, LONGEST_LINE)));
    let outcome = child.stdout.take().map_or(Ok(()), read);
    if outcome.is_err() {
        let _ = child.kill();
    }
    let status = child.wait().map_err(HostError::file("run", "ssh"))?;
    let complaint = errors.and_then(|thread| thread.join().ok());
    let complaint = String::from_utf8_lossy(&complaint.unwrap_or_default()).into_owned();
    Ok((outcome, status, complaint))
}

/// Fetches one finished trial, as a whole or not at all.
fn bring(
    remote: &Remote,
    directory: &str,
    results: &Path,
    index: u32,
    budget: &mut Budget,
) -> Result<(), HostError> {
    let other = |cause: ResultsError| HostError::Other(cause.to_string());
    let trials = results.join("trials");
    fs::create_dir_all(&trials).map_err(HostError::file("create", &trials))?;
    if !results.join("run.json").exists() {
        let head = IncomingDir::create(&trials, "head")?;
        let names = ["SHA256SUMS", "plan.toml", "host.json", "run.json"];
        let is_head = |below: &Path| names.iter().any(|name| below == Path::new(name));
        let line = format!("tar -C '{directory}/results' -cf - {}", names.join(" "));
        unpack(remote, &line, &head.path, &is_head, budget)?;
        // `run.json`, which marks the directory as a run, is moved last.
        for name in names {
            let (from, to) = (head.path.join(name), results.join(name));
            fs::rename(&from, &to).map_err(HostError::file("move", &from))?;
        }
    }
    let here = ResultsDir::open(results).map_err(other)?;
    if here.block_of(index).is_none() {
        return Err(HostError::Protocol {
            peer: remote.host.clone(),
            detail: format!("the plan has no trial {index}"),
        });
    }
    let name = format!("{index:04}");
    let trial = IncomingDir::create(&trials, &name)?;
    let below = Path::new("trials").join(&name);
    let line = format!("tar -C '{directory}/results/trials/{name}' -cf - .");
    let is_of_trial = |file: &Path| is_record(&below.join(file));
    unpack(remote, &line, &trial.path, &is_of_trial, budget)?;
    // After another attempt on the host, the earlier attempt gets the same name here as there.
    if here.trial_path(index).exists() {
        let failed = |outcome: &TrialOutcome| *outcome != TrialOutcome::Complete;
        let aside = match here.trial(index) {
            Ok(trial) if failed(&trial.outcome) => Aside::Failed,
            _ => Aside::Again,
        };
        here.set_aside(index, aside).map_err(other)?;
    }
    let destination = here.trial_path(index);
    fs::rename(&trial.path, &destination).map_err(HostError::file("move", &trial.path))
}

/// A temporary directory for incoming files, removed on drop.
struct IncomingDir {
    path: PathBuf,
}

impl IncomingDir {
    fn create(beside: &Path, name: &str) -> Result<Self, HostError> {
        let path = beside.join(format!(".{name}.partial-{}", std::process::id()));
        fs::create_dir(&path).map_err(HostError::file("create", &path))?;
        Ok(Self { path })
    }
}

impl Drop for IncomingDir {
    fn drop(&mut self) {
        // After a rename there is nothing to remove; the next run removes any rest.
        let _ = vtax_files::remove_all(&self.path);
    }
}

fn fetch(
    remote: &Remote,
    directory: &str,
    results: &Path,
    budget: &mut Budget,
) -> Result<(), HostError> {
    // A run that ended before its first line has no results.
    if remote.ask(&format!(
        "test -d '{directory}/results' && echo yes || echo no"
    ))? == "no"
    {
        return Ok(());
    }
    fs::create_dir_all(results).map_err(HostError::file("create", results))?;
    let line = format!("tar -C '{directory}/results' -cf - .");
    unpack(remote, &line, results, &is_record, budget)
}

/// Unpacks the tar stream that a line on the host prints into a local directory.
fn unpack(
    remote: &Remote,
    line: &str,
    into: &Path,
    wanted: &dyn Fn(&Path) -> bool,
    budget: &mut Budget,
) -> Result<(), HostError> {
    let into = Dir::open(into).map_err(|cause| HostError::Other(cause.to_string()))?;
    let (unpacked, sent, complaint) = read_from(remote, line, |stdout| {
        let mut stdout = BufReader::new(stdout);
        archive::unpack(&mut stdout, &into, wanted, budget)?;
        // The sender fails when its reader stops early.
        let _ = io::copy(&mut stdout.take(MAX_PADDING), &mut io::sink());
        Ok(())
    })?;
    match unpacked {
        Ok(()) if sent.success() => Ok(()),
        Err(Refusal::Store(cause)) => Err(HostError::Other(cause.to_string())),
        Err(Refusal::Malformed(why)) => Err(HostError::Protocol {
            peer: remote.host.clone(),
            detail: match complaint.trim() {
                "" => format!("its results are not taken: {why}"),
                // The sender has the reason for a truncated archive.
                complaint => format!("its results are not taken: {why}; it printed: {complaint}"),
            },
        }),
        Ok(()) => Err(HostError::Program {
            command: format!("ssh {} \"{line}\"", remote.host),
            status: sent.to_string(),
            output: complaint,
        }),
    }
}

fn relay(stdout: ChildStdout, each: &mut dyn FnMut(Line)) -> Result<(), HostError> {
    for line in Lines::new(BufReader::new(stdout), LONGEST_LINE) {
        let line = line.map_err(HostError::file("read", "the other host's output"))?;
        each(Line::read(&line));
    }
    Ok(())
}
