// SPDX-License-Identifier: Apache-2.0
//! The actor's side of the protocol: `vtax actor`.

use super::samples::{RemoteSamples, SampleBuffer};
use super::{
    GuestQuery, GuestView, Hello, LONGEST_LINE, PART_VALUES, REQUEST_TIMEOUT, Reply, Request,
    VERSION,
};
use crate::external::on_host::{self, LocalGuest};
use rustix::process::{
    Pid, Signal, getpid, getppid, kill_process_group, set_parent_process_death_signal,
};
use std::collections::BTreeMap;
use std::io::{self, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};
use vtax_charge::{self, KeptPrograms};
use vtax_core::Hertz;
use vtax_core::owner::Owner;
use vtax_host::cell::ClientProcess;
use vtax_host::command::{Finished, plain};
use vtax_host::untrusted::Lines;
use vtax_host::{HostError, Roots, facts};
use vtax_inventory::Identity;
use vtax_observe::clock::Clock;
use vtax_observe::counters::Children;
use vtax_observe::{Observer, ObserverConfig};

/// The interval between two checks whether commands have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The time limit of a TCP handshake, longer than any healthy one between two hosts of one site.
const CONNECT_LIMIT: Duration = Duration::from_millis(500);
/// The owner of the commands' series.
const CLIENT: &Owner = &Owner::Client;

/// Serves until `input` ends or sends no request for `REQUEST_TIMEOUT`, or `output` is closed, and then kills
/// its commands. Call it on the process's main thread, because commands end with the calling thread.
///
/// # Errors
/// When `output` cannot be written to.
pub fn serve(
    input: impl Read + Send + 'static,
    output: impl Write,
    clock: Arc<dyn Clock>,
) -> io::Result<()> {
    let (lines, inbox) = sync_channel(1);
    // The thread ends with its input, at the latest with this process.
    std::thread::spawn(move || {
        for line in Lines::new(BufReader::new(input), LONGEST_LINE) {
            let Ok(line) = line else { return };
            if lines.send(line).is_err() {
                return;
            }
        }
    });
    let mut actor = Actor {
        output,
        clock,
        jobs: BTreeMap::new(),
        observing: None,
    };
    actor.send(&Reply::Hello(hello()))?;
    actor.listen(&inbox)
}

fn hello() -> Hello {
    let found = facts::facts(&Roots::host(), None);
    let facts = [
        ("vtax", Some(found.vtax)),
        ("kernel", found.kernel),
        ("distribution", found.distribution),
        ("cpu", found.cpu.model),
        ("processors", Some(found.cpu.threads.to_string())),
        (
            "memory_bytes",
            found.memory_bytes.map(|bytes| bytes.to_string()),
        ),
        ("hypervisor", found.hypervisor),
        ("clock_source", found.clock_source),
    ];
    let facts = facts
        .into_iter()
        .filter_map(|(name, fact)| Some((name.to_owned(), fact?)));
    Hello {
        version: VERSION.to_owned(),
        is_root: rustix::process::geteuid().is_root(),
        facts: facts.collect(),
    }
}

struct Actor<W> {
    output: W,
    clock: Arc<dyn Clock>,
    jobs: BTreeMap<u64, Job>,
    observing: Option<(Observer, SampleBuffer)>,
}

/// A command. Its drop kills its process group.
struct Job {
    group: Option<Pid>,
    process: ClientProcess,
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            // A group that has ended already is no error.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl<W: Write> Actor<W> {
    fn listen(&mut self, inbox: &Receiver<String>) -> io::Result<()> {
        let mut heard = Instant::now();
        loop {
            let limit = if self.jobs.is_empty() {
                REQUEST_TIMEOUT
            } else {
                POLL_INTERVAL
            };
            match inbox.recv_timeout(limit) {
                Ok(line) => {
                    heard = Instant::now();
                    let reply = match serde_json::from_str(&line) {
                        Ok(request) => self.answer(request),
                        Err(cause) => Some(Reply::Refused {
                            cause: format!("not understood: {cause}"),
                        }),
                    };
                    match reply {
                        Some(Reply::Collected(samples)) => {
                            let (parts, last) = samples.parts(PART_VALUES);
                            for part in parts {
                                self.send(&Reply::Part(part))?;
                            }
                            self.send(&Reply::Collected(last))?;
                        }
                        Some(reply) => self.send(&reply)?,
                        None => {}
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            if heard.elapsed() >= REQUEST_TIMEOUT {
                return Ok(());
            }
            self.send_ends()?;
        }
    }

    fn send(&mut self, reply: &Reply) -> io::Result<()> {
        let mut line = serde_json::to_vec(reply)?;
        line.push(b'\n');
        self.output.write_all(&line)?;
        self.output.flush()
    }

    fn send_ends(&mut self) -> io::Result<()> {
        let mut ended = Vec::new();
        for (number, job) in &mut self.jobs {
            match job.process.poll() {
                Ok(None) => {}
                Ok(Some(finished)) => ended.push((*number, finished)),
                Err(cause) => ended.push((
                    *number,
                    Finished {
                        code: 126,
                        stderr: cause.to_string().into_bytes(),
                        ..Default::default()
                    },
                )),
            }
        }
        for (job, finished) in ended {
            if let Some(mut ended) = self.jobs.remove(&job) {
                // The process was reaped, so that its PID may belong to another process.
                ended.group = None;
            }
            self.send(&Reply::Ended {
                job,
                finished: finished.into(),
            })?;
        }
        Ok(())
    }

    fn answer(&mut self, request: Request) -> Option<Reply> {
        let refused = |cause: HostError| Reply::Refused {
            cause: cause.to_string(),
        };
        Some(match request {
            Request::Alive => return None,
            Request::Clock => Reply::Clock {
                at: self.clock.now(),
            },
            Request::Lacks { programs } => Reply::Lacks {
                programs: programs
                    .into_iter()
                    .filter(|name| Roots::host().program(name).is_none())
                    .collect(),
            },
            Request::Start { job, own, line } => match start(own, &line) {
                Ok(started) => {
                    self.jobs.insert(job, started);
                    Reply::Done
                }
                Err(cause) => refused(cause),
            },
            Request::Kill { job } => {
                self.jobs.remove(&job);
                Reply::Done
            }
            Request::Connect { address, port } => Reply::Connected {
                yes: can_connect(address, port),
            },
            Request::Observe { hz, guest } => match self.observe(hz, guest.as_ref()) {
                Ok((absent, guest)) => Reply::Observing { absent, guest },
                Err(cause) => refused(cause),
            },
            Request::Collect => match self.collect() {
                Ok(samples) => Reply::Collected(samples),
                Err(cause) => refused(cause),
            },
        })
    }

    /// Samples this host, and a guest or the commands. Returns the counters that are absent, and the guest.
    fn observe(
        &mut self,
        hz: f64,
        guest: Option<&GuestQuery>,
    ) -> Result<(Vec<String>, Option<GuestView>), HostError> {
        let roots = Roots::host();
        let found = guest.map(find).transpose()?;
        let subject = found
            .as_ref()
            .map(|found| std::slice::from_ref(&found.subject));
        let subject = subject.unwrap_or_default();
        let (mut instruments, mut absent) =
            vtax_charge::instruments(subject, None, &KeptPrograms::default(), &roots);
        if found.is_none() {
            match Children::open(CLIENT, &roots.proc) {
                Ok(children) => instruments.push(Box::new(children)),
                Err(cause) => absent.push(cause),
            }
        }
        let absent = absent.iter().map(ToString::to_string).collect();
        let view = found.map(|found| GuestView {
            is_vm: found.subject.vmm.is_some(),
            source: found.source,
            facts: found.facts,
        });
        let buffer = SampleBuffer::default();
        let rate = ObserverConfig { rate: Hertz(hz) };
        let sink = Box::new(buffer.clone());
        let observer = Observer::start(rate, Arc::clone(&self.clock), instruments, sink)?;
        self.observing = Some((observer, buffer));
        Ok((absent, view))
    }

    fn collect(&mut self) -> Result<RemoteSamples, HostError> {
        let (observer, buffer) = self.observing.take().ok_or_else(|| HostError::Invalid {
            what: "a request for samples".to_owned(),
            problem: "nothing is being sampled".to_owned(),
        })?;
        // The last sample is later than every mark before it.
        observer.mark()?;
        let report = observer.stop()?;
        Ok(RemoteSamples {
            columns: buffer.take(),
            failures: report.failures,
        })
    }
}

/// Returns the guest of this host that the query names.
fn find(query: &GuestQuery) -> Result<LocalGuest, HostError> {
    let identity = Identity::parse(&query.says);
    let found = on_host::find(query.name.as_deref(), &identity, &query.owner)?;
    if found.subject.is_here() {
        return Ok(found);
    }
    Err(HostError::Missing {
        what: "a VM with the target's UUID or the address of one of its devices".to_owned(),
        remedy: "`vtax top` there shows its guests: set ssh.guest = \"NAME\"".to_owned(),
    })
}

fn start(own: bool, line: &[String]) -> Result<Job, HostError> {
    let (program, arguments) = line.split_first().ok_or_else(|| HostError::Invalid {
        what: "an empty command line".to_owned(),
        problem: "it names no program to start as the client".to_owned(),
    })?;
    let mut command = plain(if own { "/proc/self/exe" } else { program });
    command
        .args(arguments)
        .env("HOME", "/")
        .current_dir("/")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let actor = getpid();
    let die_with_the_actor = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The actor may have ended before the signal was set.
        if getppid() == Some(actor) {
            Ok(())
        } else {
            Err(io::Error::from(io::ErrorKind::BrokenPipe))
        }
    };
    // SAFETY: the closure makes two system calls and allocates nothing.
    unsafe { command.pre_exec(die_with_the_actor) };
    let child = command
        .spawn()
        .map_err(HostError::process("start", format!("`{}`", line.join(" "))))?;
    Ok(Job {
        group: Some(Pid::from_child(&child)),
        process: ClientProcess::new(child),
    })
}

fn can_connect(address: IpAddr, port: u16) -> bool {
    TcpStream::connect_timeout(&SocketAddr::new(address, port), CONNECT_LIMIT).is_ok()
}
