// SPDX-License-Identifier: Apache-2.0
//! The client emulator of a cell, in which load generators run.

use super::entry::Entry;
use super::{Namespace, Space, Waiter, link};
use crate::HostError;
use crate::command::{CommandLine, Finished, HEAD_OUTPUT, MOST_OUTPUT, left_out};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use vtax_core::owner::Owner;
use vtax_observe::{NetDevice, Subject};

/// Time limit of a connection, longer than any healthy handshake within one machine, emulated guests included.
const CONNECT_LIMIT: Duration = Duration::from_millis(500);

/// The client emulator of a cell: a network namespace and control group of its own.
#[derive(Debug, Clone)]
pub struct Client {
    entry: Arc<Entry>,
    owner: Owner,
    /// The network namespace from which the guest is reachable.
    space: Space,
    /// Whether the client has a device of its own in the switch.
    has_veth: bool,
}

impl Client {
    pub(super) fn new(entry: Arc<Entry>, owner: Owner, space: Space, has_veth: bool) -> Self {
        Self {
            entry,
            owner,
            space,
            has_veth,
        }
    }

    /// Starts a command as the client.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(&self, line: &CommandLine) -> Result<ClientProcess, HostError> {
        self.entry
            .command_in(self.space, &self.entry.client, line)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map(|child| ClientProcess::of(child, self.entry.client.namespace()))
            .map_err(HostError::process(
                "start",
                format!("`{}` as the client", line.join(" ")),
            ))
    }

    /// The client as a subject of the counters.
    pub fn subject(&self) -> Subject {
        Subject {
            owner: self.owner.clone(),
            cgroups: self.entry.client.folders(),
            namespace: self.entry.client.account(),
            // The client's share of the host's network is unknown, and a guest's tap belongs to the guest.
            net_devices: if !self.has_veth {
                Vec::new()
            } else {
                vec![NetDevice {
                    namespace_of: self.entry.holder,
                    name: link::veth(&link::numbered("client", self.entry.seat)),
                }]
            },
            ..Subject::default()
        }
    }

    /// Whether a TCP connection from the client to `port` succeeds.
    ///
    /// # Errors
    /// When the client itself is gone.
    pub fn can_connect(&self, address: IpAddr, port: u16) -> Result<bool, HostError> {
        let path = self.entry.network(self.space);
        let namespace = File::open(&path).map_err(HostError::file("open", &path))?;
        // A network namespace belongs to one thread: this thread joins the client's and ends there.
        thread::scope(|scope| {
            scope
                .spawn(|| {
                    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                    Ok(
                        TcpStream::connect_timeout(&SocketAddr::new(address, port), CONNECT_LIMIT)
                            .is_ok(),
                    )
                })
                .join()
                .unwrap_or(Err(std::io::Error::other("the connecting thread died")))
        })
        .map_err(|cause| HostError::File {
            action: "enter",
            path,
            cause,
        })
    }
}

/// A command that runs as the client. Dropping the value kills the command.
#[derive(Debug)]
pub struct ClientProcess {
    child: Waiter,
    stdout: Option<Output>,
    stderr: Option<Output>,
}

impl ClientProcess {
    /// Takes over a child process and the output of its pipes.
    pub fn new(child: Child) -> Self {
        Self::of(child, None)
    }

    /// As [`ClientProcess::new`], for a command in a PID namespace.
    fn of(mut child: Child, namespace: Option<&Namespace>) -> Self {
        Self {
            stdout: child.stdout.take().map(Output::drain),
            stderr: child.stderr.take().map(Output::drain),
            child: Waiter::of(child, namespace.map(|of| Arc::clone(of.account()))),
        }
    }

    /// Returns the next line of standard output and its time of arrival, once; `None` where there is none yet.
    /// [`ClientProcess::poll`] returns the lines that were not read this way.
    pub fn line(&mut self) -> Option<(Instant, Vec<u8>)> {
        self.stdout.as_ref()?.kept().next()
    }

    /// Returns the outcome of the command, once; `None` while it runs.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn poll(&mut self) -> Result<Option<Finished>, HostError> {
        let ended = self.child.try_wait().map_err(unwaitable)?;
        ended.map(|status| self.finished(status)).transpose()
    }

    /// The PID, on the host, of the process that waits outside the cell.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the command ends.
    ///
    /// # Errors
    /// As [`ClientProcess::poll`].
    pub fn wait(mut self) -> Result<Finished, HostError> {
        let status = self.child.wait().map_err(unwaitable)?;
        self.finished(status)
    }

    fn finished(&mut self, status: ExitStatus) -> Result<Finished, HostError> {
        let signal = || 128 + status.signal().unwrap_or(0);
        Ok(Finished {
            code: status.code().unwrap_or_else(signal),
            stdout: self.stdout.take().map(Output::rest).unwrap_or_default(),
            stderr: self.stderr.take().map(Output::rest).unwrap_or_default(),
        })
    }
}

fn unwaitable(cause: std::io::Error) -> HostError {
    HostError::Other(format!("cannot wait for a command of the client: {cause}"))
}

impl Drop for ClientProcess {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            // The command may have ended in between.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The most lines that are kept of an output's end. A line takes more memory than its bytes.
const MOST_LINES: usize = 2_000_000;
/// The most bytes of a line. A longer one comes in parts.
const LONGEST_LINE: u64 = 1 << 20;

/// A line with its time of arrival; the last one may lack its newline.
type Line = (Instant, Vec<u8>);

/// An output of a command, which a thread of its own reads: a command blocks when its pipe is full.
#[derive(Debug)]
struct Output {
    kept: Arc<Mutex<Kept>>,
    reader: JoinHandle<()>,
}

/// An output of which nobody has taken the lines: the last [`MOST_OUTPUT`] bytes, and what was before them up to
/// [`HEAD_OUTPUT`] bytes.
#[derive(Debug, Default)]
struct Kept {
    head: Vec<u8>,
    lines: VecDeque<Line>,
    bytes: usize,
    /// The bytes between them that were dropped.
    dropped: u64,
}

impl Kept {
    fn add(&mut self, line: Line) {
        self.bytes += line.1.len();
        self.lines.push_back(line);
        while self.bytes > MOST_OUTPUT || self.lines.len() > MOST_LINES {
            let Some((_, oldest)) = self.lines.pop_front() else {
                return;
            };
            self.bytes -= oldest.len();
            let room = HEAD_OUTPUT.saturating_sub(self.head.len());
            let (first, rest) = oldest.split_at(room.min(oldest.len()));
            self.head.extend(first);
            self.dropped += rest.len() as u64;
        }
    }

    fn next(&mut self) -> Option<Line> {
        let line = self.lines.pop_front()?;
        self.bytes -= line.1.len();
        Some(line)
    }
}

impl Output {
    fn drain(pipe: impl Read + Send + 'static) -> Self {
        let kept = Arc::new(Mutex::new(Kept::default()));
        let shared = Arc::clone(&kept);
        let reader = thread::spawn(move || {
            let mut pipe = BufReader::new(pipe);
            loop {
                let mut line = Vec::new();
                // Bytes before a failed read are kept.
                let read = (&mut pipe).take(LONGEST_LINE).read_until(b'\n', &mut line);
                if line.is_empty() {
                    return;
                }
                let mut kept = shared.lock().unwrap_or_else(PoisonError::into_inner);
                kept.add((Instant::now(), line));
                if read.is_err() {
                    return;
                }
            }
        });
        Self { kept, reader }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has not been taken, once no process holds the pipe. A line gives what was left out.
    fn rest(self) -> Vec<u8> {
        // A reader that panicked has kept what it read.
        let _ = self.reader.join();
        let kept = std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        let note = (kept.dropped > 0).then(|| left_out(kept.dropped));
        let lines = kept.lines.into_iter().flat_map(|(_, line)| line);
        let head = kept.head.into_iter();
        head.chain(note.unwrap_or_default().into_bytes())
            .chain(lines)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn printed(script: &str) -> Finished {
        let child = Command::new("sh")
            .args(["-c", script])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        ClientProcess::new(child).wait().unwrap()
    }

    #[test]
    fn of_a_command_that_prints_much_the_begin_and_the_end_are_kept_and_the_rest_is_counted() {
        let zeros = 300_000_000;
        let script = format!("echo begin; head -c {zeros} /dev/zero; echo; echo end");
        for (script, is_error) in [
            (script.clone(), false),
            (format!("{{ {script}; }} >&2"), true),
        ] {
            let finished = printed(&script);
            let output = if is_error {
                finished.stderr
            } else {
                finished.stdout
            };
            assert!(output.starts_with(b"begin\n") && output.ends_with(b"\0\nend\n"));
            let note = output.windows(7).position(|bytes| bytes == b"\n[vtax:");
            let after = &output[note.unwrap() + 1..];
            let note = after.split(|byte| *byte == b'\n').next().unwrap();
            let left = String::from_utf8_lossy(note).into_owned();
            let left: usize = left.split(' ').nth(1).unwrap().parse().unwrap();
            let kept = output.len() - left_out(left as u64).len();
            assert_eq!(left + kept, zeros + b"begin\n\nend\n".len());
            // Lines are kept whole.
            let least = MOST_OUTPUT - LONGEST_LINE as usize;
            let most = HEAD_OUTPUT + MOST_OUTPUT;
            assert!((least..=most).contains(&kept), "{kept}");
            let head = output.windows(7).position(|bytes| bytes == b"\n[vtax:");
            assert_eq!(head, Some(HEAD_OUTPUT));
        }
    }

    #[test]
    fn lines_without_number_take_bounded_memory_and_an_output_within_the_limit_is_whole() {
        let lines = printed("yes '' | head -c 33000000").stdout;
        assert!(lines.len() < 2 * MOST_LINES, "{}", lines.len());
        let most = printed(&format!("head -c {MOST_OUTPUT} /dev/zero; echo x >&2"));
        assert_eq!(
            (most.stdout.len(), most.stderr.as_slice()),
            (MOST_OUTPUT, &b"x\n"[..])
        );
    }
}
