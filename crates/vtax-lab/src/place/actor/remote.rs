// SPDX-License-Identifier: Apache-2.0
//! The lab's side of the protocol: a connection to an actor on another host.

use super::super::clocks::Offset;
use super::super::remote::Remote;
use super::samples::{MAX_VALUES, TooMuch};
use super::{
    GuestQuery, GuestView, HEARTBEAT_INTERVAL, Hello, LONGEST_LINE, RemoteSamples, Reply, Request,
    VERSION,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vtax_host::HostError;
use vtax_host::command::{CommandLine, Finished};
use vtax_host::untrusted::{self, Lines, drain, shown};
use vtax_load::workload::{LoadClient, Outcome, Running};
use vtax_observe::clock::{Clock, SystemClock};

/// The time limit of an actor's greeting, its transfer included.
const HELLO_LIMIT: Duration = Duration::from_secs(180);
/// The time limit of a reply.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// The time limit of the transfer of a trial's samples.
const COLLECT_LIMIT: Duration = Duration::from_secs(300);
/// The most series of one host.
const MAX_SERIES_OF_HOST: f64 = 8192.0;
/// The time limit of the end of an actor and its ssh.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Options of ssh that end a connection 15 s after its host has vanished.
const OPTIONS: &[&str] = &[
    "-o",
    "ConnectTimeout=15",
    "-o",
    "ServerAliveInterval=5",
    "-o",
    "ServerAliveCountMax=3",
];

/// Prints the kernel's id of the present boot.
const BOOT_ID: &str = "cat /proc/sys/kernel/random/boot_id 2>/dev/null || true";

/// An actor on another host, such as the target's client. Clones share the actor, which ends when the last clone
/// is dropped.
#[derive(Debug, Clone)]
pub struct RemoteActor {
    connection: Arc<Connection>,
    hello: Arc<Hello>,
    /// The kernel's id of its host's boot.
    boot: Arc<str>,
}

/// A connection through ssh, which closes on drop.
struct Connection {
    host: String,
    /// Locked for one request at a time; `None` once closed.
    input: Mutex<Option<Input>>,
    inbox: Arc<Inbox>,
    jobs: AtomicU64,
    /// The start of sampling, and its rate in Hz.
    sampling: Mutex<Option<(Instant, f64)>>,
    ssh: Mutex<Option<Child>>,
}

type Input = Box<dyn Write + Send>;

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

/// The messages of an actor.
#[derive(Default)]
struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Whether a reply is due: to a request, or the greeting.
    is_due: bool,
    reply: Option<Reply>,
    /// The samples before the last part.
    gathered: RemoteSamples,
    /// The most values that are accepted.
    most: usize,
    /// Commands that have not ended.
    running: BTreeSet<u64>,
    ended: BTreeMap<u64, Finished>,
    /// The reason why the connection is lost.
    lost: Option<String>,
}

/// A reply that breaks the protocol.
#[derive(Debug, thiserror::Error)]
enum ReplyError {
    #[error("it answered what it was not asked")]
    Unasked,
    #[error(transparent)]
    TooMuch(#[from] TooMuch),
    #[error("it sent `{start}`, which is not understood: {cause}")]
    Unknown {
        /// The start of the line.
        start: String,
        cause: serde_json::Error,
    },
}

impl State {
    /// Processes a message.
    ///
    /// # Errors
    /// The violation of the protocol.
    fn take(&mut self, reply: Reply) -> Result<(), ReplyError> {
        match reply {
            Reply::Ended { job, finished } => {
                // A killed command may have ended before.
                if self.running.remove(&job) {
                    self.ended.insert(job, finished.into());
                }
            }
            _ if !self.is_due => return Err(ReplyError::Unasked),
            Reply::Part(part) => self.gathered.append(part, self.most)?,
            Reply::Collected(last) => {
                self.gathered.append(last, self.most)?;
                self.is_due = false;
                self.reply = Some(Reply::Collected(std::mem::take(&mut self.gathered)));
            }
            other => {
                self.is_due = false;
                self.reply = Some(other);
            }
        }
        Ok(())
    }
}

impl Inbox {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, line: &str) {
        let mut state = self.state();
        if state.lost.is_some() {
            return;
        }
        let taken = match serde_json::from_str::<Reply>(line) {
            Ok(reply) => state.take(reply.bounded()),
            Err(cause) => {
                let start: String = line.chars().take(200).collect();
                let start = shown(&start);
                Err(ReplyError::Unknown { start, cause })
            }
        };
        if let Err(why) = taken {
            state.lost = Some(why.to_string());
        }
        self.changed.notify_all();
    }

    fn lose(&self, why: String) {
        self.state().lost.get_or_insert(why);
        self.changed.notify_all();
    }
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
        let (remote, options) = (login.remote(ssh), login.options());
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
        let here = rustix::system::uname();
        let here = format!(
            "{} {}",
            here.sysname().to_string_lossy(),
            here.machine().to_string_lossy()
        );
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
        let mut child = remote
            .command_with(&options, &boot(size, login))
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
        let inbox = Arc::new(Inbox::default());
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

impl Connection {
    fn sampling(&self) -> MutexGuard<'_, Option<(Instant, f64)>> {
        self.sampling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, request: &Request) -> Result<Reply, HostError> {
        self.ask_within(request, ANSWER_LIMIT)
    }

    fn ask_within(&self, request: &Request, limit: Duration) -> Result<Reply, HostError> {
        // The lock is held until the reply comes, because replies come in the order of requests.
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        self.inbox.state().is_due = true;
        self.write(&mut input, request)?;
        let reply = self.next(limit);
        if reply.is_err() {
            // A late reply would count as the reply to the next request.
            self.inbox.lose("it did not answer in time".to_owned());
        }
        match reply? {
            Reply::Refused { cause } => {
                Err(HostError::Other(format!("the host {}: {cause}", self.host)))
            }
            reply => Ok(reply),
        }
    }

    fn send(&self, request: &Request) -> Result<(), HostError> {
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        self.write(&mut input, request)
    }

    fn write(&self, input: &mut Option<Input>, request: &Request) -> Result<(), HostError> {
        if let Some(why) = &self.inbox.state().lost {
            return Err(self.gone(why));
        }
        let mut line = serde_json::to_vec(request).map_err(|cause| {
            HostError::process("ask", format!("the actor on {}", self.host))(cause.into())
        })?;
        line.push(b'\n');
        let input = input.as_mut().ok_or_else(|| self.gone("it was ended"))?;
        let sent = input.write_all(&line).and_then(|()| input.flush());
        sent.map_err(|cause| {
            // The error output of ssh, which comes within a second, is more useful than "broken pipe".
            let why = self.await_loss().unwrap_or_else(|| cause.to_string());
            self.gone(&why)
        })
    }

    fn await_loss(&self) -> Option<String> {
        let state = self.inbox.state();
        let limit = Duration::from_secs(1);
        let waited = self
            .inbox
            .changed
            .wait_timeout_while(state, limit, |state| state.lost.is_none());
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.lost.clone()
    }

    fn next(&self, limit: Duration) -> Result<Reply, HostError> {
        let state = self.inbox.state();
        let waited = self
            .inbox
            .changed
            .wait_timeout_while(state, limit, |state| {
                state.reply.is_none() && state.lost.is_none()
            });
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match (state.reply.take(), &state.lost) {
            (Some(reply), _) => Ok(reply),
            (None, Some(why)) => Err(self.gone(why)),
            (None, None) => Err(HostError::Timeout {
                what: format!("an answer of the actor on {}", self.host),
                seconds: limit.as_secs(),
                evidence: String::new(),
            }),
        }
    }

    fn gone(&self, why: &str) -> HostError {
        unreachable(&self.host, why)
    }

    fn unexpected(&self, reply: &Reply) -> HostError {
        let shown: String = format!("{reply:?}").chars().take(200).collect();
        HostError::Protocol {
            peer: format!("the actor on {}", self.host),
            detail: shown,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The actor ends with its input, and ssh with the actor.
        drop(self.input.get_mut().map(Option::take));
        let Ok(Some(ssh)) = self.ssh.get_mut() else {
            return;
        };
        let deadline = Instant::now() + END_LIMIT;
        while matches!(ssh.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        // The actor ends with its ssh.
        let _ = ssh.kill();
        let _ = ssh.wait();
    }
}

fn unreachable(host: &str, why: &str) -> HostError {
    let has = |words: &str| why.contains(words);
    let remedy = if has("IDENTIFICATION HAS CHANGED") || has("Host key verification failed") {
        "it is another machine than the one that ssh knows by this name, or ssh knows none yet: find out \
         which, then set ssh's known_hosts right"
    } else if has("Permission denied") {
        "ssh has no key that it accepts: `ssh-copy-id` brings it one"
    } else {
        "it must work without a question"
    };
    HostError::Other(format!(
        "the host {host} is not to be reached: {why}; {remedy}; try `ssh -o BatchMode=yes {host} true`"
    ))
}

/// Returns the shell command that starts the actor. It copies the program, the first `size` bytes of its input,
/// into an unlinked file.
fn boot(size: u64, login: &Login) -> String {
    let sudo = if login.sudo { "sudo -n " } else { "" };
    let isolation = if login.is_target { ISOLATION } else { "" };
    format!(
        "exec {sudo}sh -c 'set -e; umask 077; f=$(mktemp /var/tmp/vtax-actor-XXXXXX); chmod 700 \"$f\"; \
         exec 3>\"$f\" 4<\"$f\"; rm -f \"$f\"; head -c {size} >&3; exec 3>&-; \
         test \"$(wc -c <&4)\" -eq {size}; exec {isolation}/proc/self/fd/4 actor'"
    )
}

/// The command that runs a target's actor in its own namespaces. The processes that its servers leave, and its
/// `/tmp`, end with it.
const ISOLATION: &str = "unshare --mount --pid --fork --kill-child --mount-proc \
    sh -c \"mount -t tmpfs -o mode=1777 vtax /tmp && exec \\\"\\$@\\\"\" vtax-alone ";

/// A login to a host, and its purpose.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Login {
    /// The host as ssh understands it.
    pub host: String,
    /// Further options of ssh.
    pub options: Vec<String>,
    /// Whether to become root by sudo.
    pub sudo: bool,
    /// Whether the host is the target. Its servers run as root and in their own namespaces.
    pub is_target: bool,
    /// Whether the host exists for one trial only.
    pub is_temporary: bool,
}

impl Login {
    /// Returns a login with no further options.
    pub fn to(host: &str) -> Self {
        Self {
            host: host.to_owned(),
            ..Self::default()
        }
    }

    fn remote(&self, ssh: &OsStr) -> Remote {
        Remote {
            ssh: ssh.to_owned(),
            host: self.host.clone(),
        }
    }

    fn options(&self) -> Vec<&str> {
        let own = self.options.iter().map(String::as_str);
        OPTIONS.iter().copied().chain(own).collect()
    }

    /// Runs a line in the shell there. Returns its trimmed output.
    ///
    /// # Errors
    /// When the host cannot be reached, or the line fails.
    pub fn ask(&self, ssh: &OsStr, line: &str) -> Result<String, HostError> {
        let asked = self.remote(ssh).ask_with(&self.options(), line);
        asked.map_err(|cause| unreachable(&self.host, &cause.to_string()))
    }

    /// Returns the kernel's id of the host's present boot.
    ///
    /// # Errors
    /// When the host cannot be reached.
    pub fn boot(&self, ssh: &OsStr) -> Result<String, HostError> {
        self.ask(ssh, BOOT_ID)
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
mod tests {
    use super::super::serve::serve;
    use super::*;
    use crate::place::clocks::Alignment;
    use std::net::{Shutdown, TcpListener};
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicI64;
    use vtax_core::Nanoseconds;
    use vtax_core::owner::Owner;

    /// A clock that a test moves.
    #[derive(Default)]
    struct Steppable(AtomicI64);

    impl Clock for Steppable {
        fn now(&self) -> Nanoseconds {
            let step = self.0.load(Ordering::SeqCst);
            Nanoseconds(SystemClock.now().0.checked_add_signed(step).unwrap())
        }
        fn wall(&self) -> Nanoseconds {
            SystemClock.wall()
        }
    }

    /// Starts an actor on a thread, with a socket to it.
    fn actor(clock: Arc<dyn Clock>) -> (RemoteActor, UnixStream, JoinHandle<()>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let input = theirs.try_clone().unwrap();
        let thread = std::thread::spawn(move || {
            // The actor ends with an error when its socket is shut down.
            let _ = serve(input, theirs, clock);
        });
        let (output, wire) = (ours.try_clone().unwrap(), ours.try_clone().unwrap());
        let actor = RemoteActor::over("there", output, Box::new(ours), None, None).unwrap();
        (actor, wire, thread)
    }

    fn line(words: &[&str]) -> CommandLine {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn wait(running: &mut dyn Running) -> Outcome<Finished> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(finished) = running.poll()? {
                return Ok(finished);
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn is_alive(pid: i32) -> bool {
        vtax_host::cell::process::is_alive(u32::try_from(pid).unwrap())
    }

    /// Starts a command that writes its PID into a file and then waits.
    fn sleeper(actor: &RemoteActor, folder: &Path) -> (Box<dyn Running>, i32) {
        let file = folder.join("pid");
        let script = format!(
            "echo $$ > {0}.new; mv {0}.new {0}; sleep 1000 & wait",
            file.display()
        );
        let running = actor.start(&line(&["sh", "-c", &script])).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Ok(text) = std::fs::read_to_string(&file) {
                return (running, text.trim().parse().unwrap());
            }
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn eventually_gone(pid: i32) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while is_alive(pid) {
            assert!(Instant::now() < deadline, "{pid} lives on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn commands_run_there_with_their_code_and_output_and_several_at_once() {
        let (actor, _wire, _thread) = actor(Arc::new(SystemClock));
        let mut one = actor
            .start(&line(&["sh", "-c", "printf a\\\\0b; echo no >&2; exit 3"]))
            .unwrap();
        let mut two = actor.start(&line(&["true"])).unwrap();
        let finished = wait(one.as_mut()).unwrap();
        assert_eq!(finished.code, 3);
        assert_eq!(finished.stdout, b"a\0b");
        assert_eq!(finished.stderr, b"no\n");
        assert_eq!(wait(two.as_mut()).unwrap().code, 0);
        let missing = actor.start(&line(&["/no/such/program"]));
        let message = missing.err().unwrap().to_string();
        assert!(
            message.contains("there") && message.contains("/no/such/program"),
            "{message}"
        );
        assert_eq!(
            actor.lacks(&["sh", "no-such-program"]).unwrap(),
            ["no-such-program"]
        );
    }

    #[test]
    fn it_connects_as_the_client_would() {
        let (actor, _wire, _thread) = actor(Arc::new(SystemClock));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(actor.can_connect(address.ip(), address.port()).unwrap());
        drop(listener);
        assert!(!actor.can_connect(address.ip(), address.port()).unwrap());
    }

    #[test]
    fn a_load_that_is_dropped_is_killed_with_all_that_it_started() {
        let (actor, _wire, _thread) = actor(Arc::new(SystemClock));
        let folder = tempfile::tempdir().unwrap();
        let (running, pid) = sleeper(&actor, folder.path());
        let children = vtax_host::cell::process::children(u32::try_from(pid).unwrap());
        drop(running);
        eventually_gone(pid);
        for child in children {
            eventually_gone(i32::try_from(child).unwrap());
        }
    }

    #[test]
    fn a_cut_wire_fails_the_load_and_ends_the_actor_and_what_it_started() {
        let (actor, wire, thread) = actor(Arc::new(SystemClock));
        let folder = tempfile::tempdir().unwrap();
        let (mut running, pid) = sleeper(&actor, folder.path());
        wire.shutdown(Shutdown::Both).unwrap();
        let message = wait(running.as_mut()).unwrap_err().to_string();
        assert!(
            message.contains("the host there is not to be reached"),
            "{message}"
        );
        thread.join().unwrap();
        eventually_gone(pid);
        assert!(actor.is_lost());
        assert!(actor.offset().is_err());
    }

    #[test]
    fn what_is_sampled_there_comes_with_its_owners_and_times() {
        let clock = Arc::new(Steppable::default());
        clock.0.store(5_000_000_000, Ordering::SeqCst);
        let (actor, _wire, _thread) = actor(clock);
        let before = actor.offset().unwrap();
        assert!(
            before.ahead.abs_diff(5_000_000_000) <= before.bound.0.into(),
            "{before:?}"
        );
        let began = SystemClock.now();
        actor.observe(50.0, None).unwrap();
        let mut busy = actor
            .start(&line(&[
                "sh",
                "-c",
                "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done",
            ]))
            .unwrap();
        wait(busy.as_mut()).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let gathered = actor.collect().unwrap();
        let clocks = Alignment {
            before,
            after: actor.offset().unwrap(),
        };
        assert_eq!(clocks.suspicion(), None);
        let owners: std::collections::BTreeSet<String> = gathered
            .columns
            .iter()
            .map(|column| column.series(&Owner::Client).owner.to_string())
            .collect();
        assert_eq!(
            owners.into_iter().collect::<Vec<_>>(),
            ["client", "client.host", "client.vtax"]
        );
        let used = gathered
            .columns
            .iter()
            .find(|column| column.series.owner == Owner::Client)
            .unwrap();
        assert!(
            used.values.last().unwrap() - used.values[0] > 1e6,
            "{:?}",
            used.values
        );
        for at in gathered.columns.iter().flat_map(|column| &column.at) {
            let ours = clocks.ours(*at);
            let slack = 1_000_000 + clocks.before.bound.0;
            assert!(ours.0 + slack >= began.0 && ours.0 <= SystemClock.now().0 + slack);
        }
        assert!(actor.collect().is_err(), "nothing is sampled any more");
    }

    #[test]
    fn a_clock_that_steps_during_a_trial_is_a_suspicion() {
        let clock = Arc::new(Steppable::default());
        let (actor, _wire, _thread) = actor(clock.clone());
        let before = actor.offset().unwrap();
        clock.0.store(2_000_000_000, Ordering::SeqCst);
        let after = actor.offset().unwrap();
        let reason = Alignment { before, after }.suspicion().unwrap();
        // 2 s, with the error of a round trip.
        let moved = ["moved by 1999.9", "moved by 2000.0"];
        assert!(moved.iter().any(|moved| reason.contains(moved)), "{reason}");
    }

    /// Returns the error for a peer that sends `hello`.
    fn greeted_with(hello: &'static [u8]) -> String {
        let greeted = RemoteActor::over("there", hello, Box::new(io::sink()), None, None);
        greeted.unwrap_err().to_string()
    }

    #[test]
    fn another_version_and_no_vtax_at_all_are_refused() {
        let other = greeted_with(b"{\"tell\":\"hello\",\"version\":\"9.9.9\",\"more\":[]}\n");
        assert!(
            other.contains("vtax 9.9.9") && other.contains(VERSION),
            "{other}"
        );
        let motd = greeted_with(b"Welcome to Linux!\n");
        assert!(motd.contains("Welcome to Linux!"), "{motd}");
        let nothing = greeted_with(b"");
        assert!(nothing.contains("its connection ended"), "{nothing}");
    }

    #[test]
    fn a_host_that_ssh_cannot_reach_is_named_with_the_words_of_ssh() {
        let folder = tempfile::tempdir().unwrap();
        let ssh = folder.path().join("ssh");
        let script = "#!/bin/sh\necho 'Could not resolve hostname moon' >&2\nexit 255\n";
        std::fs::write(&ssh, script).unwrap();
        std::fs::set_permissions(&ssh, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        let refused = RemoteActor::start(ssh.as_os_str(), "moon", Path::new("/proc/self/exe"));
        let message = refused.unwrap_err().to_string();
        assert!(
            message.contains("host moon") && message.contains("Could not resolve"),
            "{message}"
        );
    }

    #[test]
    fn a_host_of_another_kind_is_refused_before_anything_is_sent() {
        let folder = tempfile::tempdir().unwrap();
        let ssh = folder.path().join("ssh");
        std::fs::write(&ssh, "#!/bin/sh\necho Linux m68k\n").unwrap();
        std::fs::set_permissions(&ssh, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        let refused = RemoteActor::start(ssh.as_os_str(), "amiga", Path::new("/no/such/binary"));
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("Linux m68k"), "{message}");
    }
}
