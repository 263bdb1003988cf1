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

/// Runs it, streams its events, and brings the results back even when the run failed.
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
    let ran = follow(remote, &command, signals, each);
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

fn fetch(remote: &Remote, directory: &str, results: &Path) -> Result<(), HostError> {
    // A run that ended before its first line has no results to bring.
    if remote.ask(&format!(
        "test -d '{directory}/results' && echo yes || echo no"
    ))? == "no"
    {
        return Ok(());
    }
    fs::create_dir_all(results).map_err(HostError::file("create", results))?;
    let line = format!("tar -C '{directory}/results' -cf - .");
    let mut sender = remote
        .command(&line)
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
