//! The same plan on another Linux machine: our own binary and the plan travel there through the
//! system's ssh, progress streams back as JSON lines, and the results come home as a tar stream.
//! Nothing is left on the other machine but its image cache.

use super::remote::Remote;
use crate::run::Event;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use vtax_host::HostError;
use vtax_host::signals::Signals;
use vtax_report::results::{Aside, ResultsDir, ResultsError, TrialOutcome};

/// A run on another host.
#[derive(Debug, Clone)]
pub struct SshRun {
    /// The program to reach it with, normally `ssh`; injected so that tests reach this host.
    pub ssh: OsString,
    /// The host as ssh understands it.
    pub host: String,
    /// Our own binary, which must run there.
    pub binary: PathBuf,
    /// The text of the plan.
    pub plan: String,
    /// Where the results are to be on this host.
    pub results: PathBuf,
    /// Further arguments of `vtax run`, such as `--quick`.
    pub arguments: Vec<String>,
}

/// Asks another host's shell; what it printed, trimmed.
///
/// # Errors
/// When the host cannot be reached, or the line fails there.
pub fn ask_over_ssh(ssh: &OsString, host: &str, line: &str) -> Result<String, HostError> {
    let remote = Remote {
        ssh: ssh.clone(),
        host: host.to_owned(),
    };
    remote.ask(line)
}

/// Runs it, streams its events, and brings the results back even when the run failed: each trial when it
/// has ended, so that a host that is lost takes along only the one that it was at.
///
/// # Errors
/// When the host cannot be reached, lacks what the plan needs, or the run there fails.
pub fn run_over_ssh(
    run: &SshRun,
    signals: &Signals,
    each: &mut dyn FnMut(Line),
) -> Result<(), HostError> {
    let remote = Remote {
        ssh: run.ssh.clone(),
        host: run.host.clone(),
    };
    let directory = remote.ask("mktemp -d /var/tmp/vtax-run-XXXXXX")?;
    if !directory.starts_with("/var/tmp/vtax-run-") || directory.contains(['\'', '\n']) {
        return Err(HostError::Protocol {
            peer: run.host.clone(),
            detail: format!("asked for a temporary directory, got `{directory}`"),
        });
    }
    let outcome = run_in(run, &remote, &directory, signals, each);
    let cleaned = remote.ask(&format!("rm -rf -- '{directory}'")).map(drop);
    outcome.and(cleaned)
}

/// A line that the other vtax printed.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    /// An event of the run.
    Event(Event),
    /// Anything else, for people.
    Text(String),
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
    // An earlier, unfinished run goes on: what is here travels there first.
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
    // The remote shell passes a hang-up of the connection on, so an interrupted run restores its host.
    let command = format!(
        "cd '{directory}' && exec ./vtax run plan.toml --results results --json --place-name 'ssh:{}' {}",
        run.host.replace('\'', ""),
        arguments.join(" ")
    );
    let mut bring_home = |line: Line| {
        if let Line::Event(Event::TrialFinished { index, .. }) = &line {
            // What does not come now comes in the end, unless the host is lost.
            if let Err(cause) = bring(remote, directory, &run.results, *index) {
                let text = format!("trial {index:04} stays there until the end: {cause}");
                each(Line::Text(text));
            }
        }
        each(line);
    };
    let ran = follow(remote, &command, signals, &mut bring_home);
    let fetched = fetch(remote, directory, &run.results);
    ran.and(fetched)
}

/// Runs a line there and hands on what it prints, until it ends or the user interrupts.
fn follow(
    remote: &Remote,
    line: &str,
    signals: &Signals,
    each: &mut dyn FnMut(Line),
) -> Result<(), HostError> {
    let mut child = remote
        .command(line)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(HostError::file("run", "ssh"))?;
    let errors = child.stderr.take().map(|mut stderr| {
        std::thread::spawn(move || {
            let mut text = String::new();
            // What is not text is of no use in a message.
            let _ = stderr.read_to_string(&mut text);
            text
        })
    });
    if let Some(stdout) = child.stdout.take() {
        relay(stdout, each)?;
    }
    let status = child.wait().map_err(HostError::file("run", "ssh"))?;
    let said = errors
        .and_then(|thread| thread.join().ok())
        .unwrap_or_default();
    signals.check()?;
    if status.success() {
        return Ok(());
    }
    Err(HostError::Program {
        command: format!("vtax run, on {}", remote.host),
        status: status.to_string(),
        output: said,
    })
}

/// Brings one finished trial home, whole or not at all.
fn bring(remote: &Remote, directory: &str, results: &Path, index: u32) -> Result<(), HostError> {
    let other = |cause: ResultsError| HostError::Other(cause.to_string());
    let trials = results.join("trials");
    fs::create_dir_all(&trials).map_err(HostError::file("create", &trials))?;
    if !results.join("run.json").exists() {
        let head = trials.join(format!(".head.partial-{}", std::process::id()));
        let names = ["plan.toml", "host.json", "run.json"];
        unpack(
            remote,
            &format!("{directory}/results"),
            &names.join(" "),
            &head,
        )?;
        // The one that makes it a run comes last.
        for name in names {
            let (from, to) = (head.join(name), results.join(name));
            fs::rename(&from, &to).map_err(HostError::file("move", &from))?;
        }
        fs::remove_dir_all(&head).map_err(HostError::file("remove", &head))?;
    }
    let name = format!("{index:04}");
    let temporary = trials.join(format!(".{name}.partial-{}", std::process::id()));
    unpack(
        remote,
        &format!("{directory}/results/trials/{name}"),
        ".",
        &temporary,
    )?;
    let here = ResultsDir::open(results).map_err(other)?;
    // It ran again there: the attempt before it gets the name that it has there.
    if here.trial_path(index).exists() {
        let failed = |outcome: &TrialOutcome| *outcome != TrialOutcome::Complete;
        let aside = match here.trial(index) {
            Ok(trial) if failed(&trial.outcome) => Aside::Failed,
            _ => Aside::Again,
        };
        here.set_aside(index, aside).map_err(other)?;
    }
    let destination = here.trial_path(index);
    fs::rename(&temporary, &destination).map_err(HostError::file("move", &temporary))
}

/// Unpacks these files of a directory there into a new one here.
fn unpack(remote: &Remote, from: &str, names: &str, into: &Path) -> Result<(), HostError> {
    fs::create_dir_all(into).map_err(HostError::file("create", into))?;
    stream(remote, &format!("tar -C '{from}' -cf - {names}"), into)
}

fn fetch(remote: &Remote, directory: &str, results: &Path) -> Result<(), HostError> {
    // A run that ended before its first line has no results to bring.
    if remote.ask(&format!(
        "test -d '{directory}/results' && echo yes || echo no"
    ))? == "no"
    {
        return Ok(());
    }
    fs::create_dir_all(results).map_err(HostError::file("create", results))?;
    stream(
        remote,
        &format!("tar -C '{directory}/results' -cf - ."),
        results,
    )
}

/// What a line there packs, unpacked here.
fn stream(remote: &Remote, line: &str, results: &Path) -> Result<(), HostError> {
    let mut sender = remote
        .command(line)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(HostError::file("run", "ssh"))?;
    let stream = sender.stdout.take().map_or_else(Stdio::null, Stdio::from);
    let unpacked = Command::new("tar")
        .args(["--no-same-owner", "-C"])
        .arg(results)
        .args(["-xf", "-"])
        .stdin(stream)
        .output()
        .map_err(HostError::file("run", "tar"))?;
    let sent = sender.wait().map_err(HostError::file("run", "ssh"))?;
    if sent.success() && unpacked.status.success() {
        return Ok(());
    }
    Err(HostError::Program {
        command: format!(
            "ssh {} \"{line}\" | tar -C {} -xf -",
            remote.host,
            results.display()
        ),
        status: format!("{sent}, {}", unpacked.status),
        output: String::from_utf8_lossy(&unpacked.stderr).into_owned(),
    })
}

fn relay(stdout: ChildStdout, each: &mut dyn FnMut(Line)) -> Result<(), HostError> {
    for line in BufReader::new(stdout).lines() {
        let line = line.map_err(HostError::file("read", "the other host's output"))?;
        each(serde_json::from_str(&line).map_or(Line::Text(line), Line::Event));
    }
    Ok(())
}
