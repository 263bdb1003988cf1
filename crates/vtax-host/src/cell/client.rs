// SPDX-License-Identifier: Apache-2.0
//! The client emulator of a cell, in which load generators run.

use super::Space;
use super::entry::Entry;
use super::link;
use crate::HostError;
use crate::command::{CommandLine, Finished, MOST_OUTPUT, printed_too_much};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
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
            .map(ClientProcess::new)
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
            // The client's share of the host's network is unknown, and a guest's tap belongs to the guest.
            net_devices: match self.has_veth {
                false => Vec::new(),
                true => vec![NetDevice {
                    namespace_of: self.entry.holder,
                    name: link::veth(&link::numbered("client", self.entry.seat)),
                }],
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
    child: Child,
    stdout: Option<Lines>,
    stderr: Option<Lines>,
}

impl ClientProcess {
    /// Takes over a child process and the output of its pipes.
    pub fn new(mut child: Child) -> Self {
        Self {
            stdout: child.stdout.take().map(drain),
            stderr: child.stderr.take().map(drain),
            child,
        }
    }

    /// Returns the next line of standard output and its time of arrival, once; `None` where there is none yet.
    /// [`ClientProcess::poll`] returns the lines that were not read this way.
    pub fn line(&mut self) -> Option<(Instant, Vec<u8>)> {
        self.stdout.as_ref()?.try_recv().ok()
    }

    /// Returns the outcome of the command, once; `None` while it runs.
    ///
    /// # Errors
    /// When it cannot be waited for, or printed more than [`MOST_OUTPUT`].
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
            stdout: collected(&mut self.stdout)?,
            stderr: collected(&mut self.stderr)?,
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

/// The most lines of an output. A line takes more memory than its bytes.
const MOST_LINES: usize = 2_000_000;

/// Lines with their times of arrival; the last one may lack its newline. Where the output exceeds a limit, an empty
/// line replaces the rest.
type Lines = Receiver<(Instant, Vec<u8>)>;

/// Reads a pipe to its end on a separate thread, because a command blocks when its pipe is full.
fn drain(pipe: impl Read + Send + 'static) -> Lines {
    let (sender, lines) = channel();
    thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let (mut bytes, mut lines) = (0, 0);
        loop {
            let mut line = Vec::new();
            let left = u64::try_from(MOST_OUTPUT - bytes).unwrap_or(u64::MAX);
            // Bytes before a failed read are kept.
            let read = (&mut pipe).take(left + 1).read_until(b'\n', &mut line);
            bytes += line.len();
            lines += 1;
            if bytes > MOST_OUTPUT || lines > MOST_LINES {
                let _ = sender.send((Instant::now(), Vec::new()));
                // The command may go on; its further output is discarded.
                let _ = io::copy(&mut pipe, &mut io::sink());
                return;
            }
            if line.is_empty() || sender.send((Instant::now(), line)).is_err() || read.is_err() {
                return;
            }
        }
    });
    lines
}

fn collected(lines: &mut Option<Lines>) -> Result<Vec<u8>, HostError> {
    let mut bytes = Vec::new();
    for (_, line) in lines.take().into_iter().flatten() {
        if line.is_empty() {
            return Err(printed_too_much("a command of the client"));
        }
        bytes.extend(line);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn printed(script: &str) -> Result<Finished, HostError> {
        let child = Command::new("sh")
            .args(["-c", script])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        ClientProcess::new(child).wait()
    }

    #[test]
    fn a_command_that_prints_too_much_fails_and_is_not_kept() {
        let long = format!("head -c {} /dev/zero", MOST_OUTPUT + 1);
        for script in [
            long.clone(),
            format!("{long} >&2"),
            format!("{long} | tr '\\0' '\\n'"),
        ] {
            let refused = printed(&script).unwrap_err().to_string();
            assert!(refused.contains("more than 32 MiB"), "{refused}");
        }
        let most = printed(&format!("head -c {MOST_OUTPUT} /dev/zero; echo x >&2")).unwrap();
        assert_eq!(
            (most.stdout.len(), most.stderr.as_slice()),
            (MOST_OUTPUT, &b"x\n"[..])
        );
    }
}
