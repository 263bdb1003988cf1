// SPDX-License-Identifier: Apache-2.0
//! The lab's side of the protocol: a connection to an actor on another host.

mod connection;
mod login;

pub use login::Login;
pub(crate) use login::this_system;

use super::super::clocks::Offset;
use super::samples::MAX_VALUES;
use super::{
    GuestQuery, GuestView, HEARTBEAT_INTERVAL, Hello, LONGEST_LINE, RemoteSamples, Reply, Request,
    VERSION,
};
use connection::{Connection, Inbox, Input};
use login::{BOOT_ID, boot, unreachable};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tracing::info;
use vtax_host::HostError;
use vtax_host::command::{CommandLine, Finished};
use vtax_host::untrusted::{self, Lines, drain};
use vtax_load::workload::{LoadClient, Outcome, Running};
use vtax_observe::clock::{Clock, SystemClock};

/// The time limit of an actor's greeting, its transfer included.
const HELLO_LIMIT: Duration = Duration::from_secs(180);
/// The time limit of the transfer of a trial's samples.
const COLLECT_LIMIT: Duration = Duration::from_secs(300);
/// The most series of one host.
const MAX_SERIES_OF_HOST: f64 = 8192.0;

/// An actor on another host, such as the target's client. Clones share the actor, which ends when the last clone
/// is dropped.
#[derive(Debug, Clone)]
pub struct RemoteActor {
    connection: Arc<Connection>,
    hello: Arc<Hello>,
    /// The kernel's id of its host's boot.
    boot: Arc<str>,
}

impl RemoteActor {
    /// Starts this program as an actor on `host`, which `ssh` reaches.
    ///
    /// # Errors
    /// When the host cannot be reached, has another architecture, or cannot run it.
    pub fn start(ssh: &OsStr, host: &str, binary: &Path) -> Result<Self, HostError> {
        Self::log_in(ssh, &Login::to(host), binary)
    }

    /// As [`RemoteActor::start`], with any login.
    ///
    /// # Errors
    /// As there, and when the login needs root and lacks it.
    pub fn log_in(ssh: &OsStr, login: &Login, binary: &Path) -> Result<Self, HostError> {
        let host = login.host.as_str();
        let answer = login.ask(ssh, &format!("uname -s -m; id -u; {BOOT_ID}"))?;
        let mut lines = answer.lines();
        let mut line = || lines.next().unwrap_or_default();
        let (there, user, boot_id) = (line(), line(), line());
        if login.is_target && !login.sudo && user != "0" {
            return Err(HostError::Missing {
                what: format!("root on {host}, which starts servers there,"),
                remedy: "log in as root@…, or set ssh.sudo = true where sudo asks no password"
                    .to_owned(),
            });
        }
        let here = this_system();
        if there != here {
            return Err(HostError::Missing {
                what: format!("a vtax for the host {host} ({there}; this one is for {here})"),
                remedy: "name a host of this kind".to_owned(),
            });
        }
        let mut file = File::open(binary).map_err(HostError::file("read", binary))?;
        let size = file
            .metadata()
            .map_err(HostError::file("read", binary))?
            .len();
        let mut child = login
            .remote(ssh)
            .command(&boot(size, login))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C on the terminal must reach only vtax, which ends its actors in its own order.
            .process_group(0)
            .spawn()
            .map_err(HostError::file("run", "ssh"))?;
        let errors = child.stderr.take().map(collect);
        let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(HostError::Closed {
                peer: format!("ssh to {host}"),
                detail: " before it began".to_owned(),
            });
        };
        // If this fails, the error output of ssh has the reason.
        let sent = io::copy(&mut file, &mut input);
        let mut actor = Self::over(host, output, Box::new(input), Some(child), errors)?;
        sent.map_err(|cause| unreachable(host, &cause.to_string()))?;
        actor.boot = boot_id.into();
        info!("an actor runs on {host} ({there})");
        Ok(actor)
    }

    /// Greets an actor at the other end of a pipe.
    fn over(
        host: &str,
        output: impl Read + Send + 'static,
        input: Input,
        ssh: Option<Child>,
        errors: Option<JoinHandle<String>>,
    ) -> Result<Self, HostError> {
        let inbox = Arc::new(Inbox::for_host(host));
        // The greeting comes without a request.
        inbox.state().is_due = true;
        let listener = Arc::clone(&inbox);
        std::thread::spawn(move || {
            for line in Lines::new(BufReader::new(output), LONGEST_LINE) {
                match line {
                    Ok(line) => listener.take(&line),
                    // The error output of ssh has the reason for a broken connection.
                    Err(cause) if cause.kind() != io::ErrorKind::InvalidData => break,
                    Err(cause) => {
                        listener.lose(cause.to_string());
                        return;
                    }
                }
            }
            let printed = errors
                .and_then(|thread| thread.join().ok())
                .unwrap_or_default();
            listener.lose(match printed.trim() {
                "" => "its connection ended".to_owned(),
                printed => format!("its connection ended: {printed}"),
            });
        });
        let connection = Connection {
            host: host.to_owned(),
            input: Mutex::new(Some(input)),
            inbox,
            jobs: AtomicU64::new(0),
            sampling: Mutex::new(None),
            ssh: Mutex::new(ssh),
        };
        let hello = match connection.next(HELLO_LIMIT)? {
            Reply::Hello(hello) => hello,
            other => return Err(connection.unexpected(&other)),
        };
        if hello.version != VERSION {
            return Err(HostError::Protocol {
                peer: format!("the actor on {host}"),
                detail: format!(
                    "it is vtax {}, and this is vtax {VERSION}: both must be the same",
                    hello.version
                ),
            });
        }
        let actor = Self {
            connection: Arc::new(connection),
            hello: Arc::new(hello),
            boot: "".into(),
        };
        let heartbeat = Arc::downgrade(&actor.connection);
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(HEARTBEAT_INTERVAL);
                let Some(connection) = heartbeat.upgrade() else {
                    return;
                };
                if connection.send(&Request::Alive).is_err() {
                    return;
                }
            }
        });
        Ok(actor)
    }

    /// Returns the actor's greeting.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Returns the host as ssh understands it.
    pub fn host(&self) -> &str {
        &self.connection.host
    }

    /// Returns the kernel's id of its host's boot, as of the login.
    pub fn boot(&self) -> &str {
        &self.boot
    }

    /// Whether the connection is lost.
    pub fn is_lost(&self) -> bool {
        self.connection.inbox.state().lost.is_some()
    }

    /// Returns the programs in `programs` that the actor's host lacks.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn lacks(&self, programs: &[&str]) -> Result<Vec<String>, HostError> {
        let programs = programs.iter().map(|name| (*name).to_owned()).collect();
        match self.connection.ask(&Request::Lacks { programs })? {
            Reply::Lacks { programs } => Ok(programs),
            other => Err(self.connection.unexpected(&other)),
        }
    }

    /// Returns the offset of the actor's clock.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn offset(&self) -> Result<Offset, HostError> {
        Offset::probe(|| {
            let before = SystemClock.now();
            match self.connection.ask(&Request::Clock)? {
                Reply::Clock { at } => Ok((before, at, SystemClock.now())),
                other => Err(self.connection.unexpected(&other)),
            }
        })
    }

    /// Starts to sample the actor's host, and a guest there or the actor's commands, `hz` times a second. Returns
    /// the counters that are absent, with the reasons, and the guest as its host sees it.
    ///
    /// # Errors
    /// When the connection is lost, the actor cannot sample, or its host has no such guest.
    pub fn observe(
        &self,
        hz: f64,
        guest: Option<GuestQuery>,
    ) -> Result<(Vec<String>, Option<GuestView>), HostError> {
        match self.connection.ask(&Request::Observe { hz, guest })? {
            Reply::Observing { absent, guest } => {
                let sampling = (Instant::now(), hz);
                *self.connection.sampling() = Some(sampling);
                Ok((absent, guest))
            }
            other => Err(self.connection.unexpected(&other)),
        }
    }

    /// Stops sampling, and returns the samples.
    ///
    /// # Errors
    /// When the connection is lost, or the actor does not sample.
    pub fn collect(&self) -> Result<RemoteSamples, HostError> {
        let sampling = self.connection.sampling().take();
        let most = sampling.map_or(0, |(since, hz)| most_values(since.elapsed(), hz));
        self.connection.inbox.state().most = most;
        let collected = self.connection.ask_within(&Request::Collect, COLLECT_LIMIT);
        match collected? {
            Reply::Collected(gathered) => Ok(gathered),
            other => Err(self.connection.unexpected(&other)),
        }
    }
}

impl LoadClient for RemoteActor {
    fn start(&self, line: &CommandLine) -> Outcome<Box<dyn Running>> {
        let job = self.connection.jobs.fetch_add(1, Ordering::Relaxed);
        let this = std::env::current_exe().ok();
        let own = this.as_deref() == line.first().map(Path::new);
        let line = line.clone();
        // The command may end before the reply to its start comes.
        self.connection.inbox.state().running.insert(job);
        let started = self.connection.ask(&Request::Start { job, own, line });
        if started.is_err() {
            self.connection.inbox.state().running.remove(&job);
        }
        match started? {
            Reply::Done => Ok(Box::new(RemoteJob {
                connection: Arc::clone(&self.connection),
                job,
                has_ended: false,
            })),
            other => Err(self.connection.unexpected(&other)),
        }
    }

    fn can_connect(&self, address: IpAddr, port: u16) -> Outcome<bool> {
        match self.connection.ask(&Request::Connect { address, port })? {
            Reply::Connected { yes } => Ok(yes),
            other => Err(self.connection.unexpected(&other)),
        }
    }
}

/// A command on the actor's host. The actor reports its end without a request, so that a poll causes no network
/// traffic.
struct RemoteJob {
    connection: Arc<Connection>,
    job: u64,
    has_ended: bool,
}

impl Running for RemoteJob {
    fn poll(&mut self) -> Outcome<Option<Finished>> {
        let mut state = self.connection.inbox.state();
        if let Some(finished) = state.ended.remove(&self.job) {
            self.has_ended = true;
            return Ok(Some(finished));
        }
        match &state.lost {
            Some(why) if !self.has_ended => Err(self.connection.gone(why)),
            _ => Ok(None),
        }
    }
}

impl Drop for RemoteJob {
    fn drop(&mut self) {
        if !self.has_ended {
            // An actor without a connection has killed its commands.
            let _ = self.connection.ask(&Request::Kill { job: self.job });
            let mut state = self.connection.inbox.state();
            state.running.remove(&self.job);
            state.ended.remove(&self.job);
        }
    }
}

fn collect(pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let bytes = drain(pipe, untrusted::LONGEST_LINE);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Returns the most values that a host can have sampled in a time.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the conversion saturates, and MAX_VALUES bounds it"
)]
fn most_values(during: Duration, hz: f64) -> usize {
    // Marks add a few readings, and the host's clock may run a little faster.
    let readings = during.as_secs_f64() * hz * 1.01 + 100.0;
    ((readings * MAX_SERIES_OF_HOST) as usize).min(MAX_VALUES)
}

#[cfg(test)]
mod tests;
