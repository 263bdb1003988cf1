// SPDX-License-Identifier: Apache-2.0
//! Lines of JSON over a UNIX socket with deadlines: the common part of QMP and the guest agent's protocol.

use rustix::net::sockopt::socket_peercred;
use serde_json::Value;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use vtax_host::HostError;

/// The most bytes of a line; the longest valid one is 1 MiB of a guest's file in base64.
const LONGEST_LINE: usize = 32 << 20;

/// A connection to a peer that sends one JSON value per line.
#[derive(Debug)]
pub(in crate::platform) struct Wire {
    peer: &'static str,
    stream: UnixStream,
    /// The received bytes that are not consumed; may end in the middle of a line.
    pending: Vec<u8>,
    /// The length of the part of `pending` without an end of line.
    scanned: usize,
}

/// The outcome of a wait.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::platform) enum Received {
    /// A line without its end.
    Line(Vec<u8>),
    /// The deadline passed. The received part of a line is kept.
    Nothing,
}

impl Wire {
    /// Connects to a peer, which errors call `peer`.
    pub(in crate::platform) fn connect(peer: &'static str, path: &Path) -> std::io::Result<Self> {
        Ok(Self::new(peer, UnixStream::connect(path)?))
    }

    /// A wire over a socket that is connected.
    pub(in crate::platform) fn new(peer: &'static str, stream: UnixStream) -> Self {
        Self {
            peer,
            stream,
            pending: Vec::new(),
            scanned: 0,
        }
    }

    /// The process number of the listening peer, in this process's PID namespace.
    pub(in crate::platform) fn peer_process(&self) -> Result<u32, HostError> {
        let credentials = socket_peercred(&self.stream)
            .map_err(|cause| self.protocol(format!("its process is unknown: {cause}")))?;
        u32::try_from(credentials.pid.as_raw_nonzero().get()).map_err(|_| {
            self.protocol("it is in a PID namespace that this process cannot see".into())
        })
    }

    /// Sends one value, preceded by `prefix`.
    pub(in crate::platform) fn send(
        &mut self,
        prefix: &[u8],
        value: &Value,
        deadline: Instant,
    ) -> Result<(), HostError> {
        let mut bytes = prefix.to_vec();
        bytes.extend_from_slice(value.to_string().as_bytes());
        bytes.push(b'\n');
        let limit = remaining(deadline).max(Duration::from_millis(1));
        self.stream
            .set_write_timeout(Some(limit))
            .and_then(|()| self.stream.write_all(&bytes))
            .map_err(|cause| match cause.kind() {
                ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
                    self.closed(format!(" before it took `{value}`"))
                }
                _ => self.protocol(format!("it does not take `{value}`: {cause}")),
            })
    }

    /// Waits for the next line.
    pub(in crate::platform) fn receive(
        &mut self,
        deadline: Instant,
    ) -> Result<Received, HostError> {
        let mut buffer = [0u8; 64 << 10];
        loop {
            if let Some(line) = self.take_line() {
                return Ok(Received::Line(line));
            }
            if self.pending.len() > LONGEST_LINE {
                return Err(self.protocol(format!("a line of more than {LONGEST_LINE} bytes")));
            }
            let limit = remaining(deadline);
            if limit.is_zero() {
                return Ok(Received::Nothing);
            }
            let read = self
                .stream
                .set_read_timeout(Some(limit))
                .and_then(|()| self.stream.read(&mut buffer));
            match read {
                Ok(0) => {
                    return Err(self.closed(after(&self.pending)));
                }
                Ok(length) => self
                    .pending
                    .extend_from_slice(buffer.get(..length).unwrap_or_default()),
                Err(cause)
                    if matches!(
                        cause.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) => {}
                Err(cause) => return Err(self.closed(format!(": {cause}"))),
            }
        }
    }

    /// An error that names the peer.
    pub(in crate::platform) fn protocol(&self, detail: String) -> HostError {
        HostError::Protocol {
            peer: self.peer.into(),
            detail,
        }
    }

    /// An error that names the peer and the received value; `what` introduces the value.
    pub(in crate::platform) fn unexpected(&self, what: &str, value: &Value) -> HostError {
        self.protocol(format!("{what} {}", excerpt(value.to_string().as_bytes())))
    }

    fn closed(&self, detail: String) -> HostError {
        HostError::Closed {
            peer: self.peer.into(),
            detail,
        }
    }

    fn take_line(&mut self) -> Option<Vec<u8>> {
        let Some(end) = self
            .pending
            .iter()
            .skip(self.scanned)
            .position(|byte| *byte == b'\n')
        else {
            self.scanned = self.pending.len();
            return None;
        };
        let rest = self.pending.split_off(self.scanned + end + 1);
        let mut line = std::mem::replace(&mut self.pending, rest);
        self.scanned = 0;
        while line
            .last()
            .is_some_and(|last| matches!(last, b'\n' | b'\r'))
        {
            line.pop();
        }
        Some(line)
    }
}

fn remaining(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

fn after(pending: &[u8]) -> String {
    if pending.is_empty() {
        String::new()
    } else {
        format!(" after {}", excerpt(pending))
    }
}

/// The beginning of received bytes, as printable text for an error message.
pub(in crate::platform) fn excerpt(bytes: &[u8]) -> String {
    let shown = bytes.get(..120).unwrap_or(bytes);
    let dots = if shown.len() < bytes.len() { "…" } else { "" };
    format!("`{}{dots}`", String::from_utf8_lossy(shown).escape_debug())
}

/// A peer for tests: a thread that accepts one connection and runs a script.
#[cfg(test)]
pub(in crate::platform) mod fake {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::PathBuf;
    use std::thread::JoinHandle;

    pub(crate) struct Peer {
        pub(crate) path: PathBuf,
        _dir: tempfile::TempDir,
        thread: Option<JoinHandle<()>>,
    }

    impl Peer {
        pub(crate) fn start(script: impl FnOnce(Side) + Send + 'static) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("peer.sock");
            let listener = UnixListener::bind(&path).unwrap();
            let thread = std::thread::spawn(move || {
                let (stream, _) = listener.accept().unwrap();
                script(Side {
                    reader: BufReader::new(stream.try_clone().unwrap()),
                    stream,
                });
            });
            Self {
                path,
                _dir: dir,
                thread: Some(thread),
            }
        }

        /// Fails the test if the script has failed.
        pub(crate) fn finish(mut self) {
            self.thread.take().unwrap().join().unwrap();
        }
    }

    pub(crate) struct Side {
        reader: BufReader<UnixStream>,
        stream: UnixStream,
    }

    impl Side {
        pub(crate) fn say(&mut self, bytes: impl AsRef<[u8]>) {
            // The peer may have closed the connection on purpose.
            let _ = self.stream.write_all(bytes.as_ref());
        }

        pub(crate) fn hear(&mut self) -> serde_json::Value {
            let mut line = Vec::new();
            self.reader.read_until(b'\n', &mut line).unwrap();
            let start = line
                .iter()
                .position(|byte| *byte == b'{')
                .unwrap_or(line.len());
            serde_json::from_slice(&line[start..]).unwrap_or_default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fake::Peer;
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[test]
    fn lines_are_distinguished_however_they_are_cut() {
        let peer = Peer::start(|mut side| {
            for piece in ["{\"a\"", ":1}", "\r\n{\"b\":2}\n{\"c", "\":3}\n"] {
                side.say(piece);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let mut wire = Wire::connect("peer", &peer.path).unwrap();
        for expected in ["{\"a\":1}", "{\"b\":2}", "{\"c\":3}"] {
            assert_eq!(
                wire.receive(soon()).unwrap(),
                Received::Line(expected.into())
            );
        }
        peer.finish();
    }

    #[test]
    fn a_line_that_is_late_is_received_whole_by_the_next_wait() {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let peer = Peer::start(move |mut side| {
            side.say("{\"half\"");
            wait.recv().unwrap();
            side.say(":1}\n");
        });
        let mut wire = Wire::connect("peer", &peer.path).unwrap();
        let early = wire
            .receive(Instant::now() + Duration::from_millis(30))
            .unwrap();
        assert_eq!(early, Received::Nothing);
        go.send(()).unwrap();
        assert_eq!(
            wire.receive(soon()).unwrap(),
            Received::Line("{\"half\":1}".into())
        );
        peer.finish();
    }

    #[test]
    fn a_closed_connection_is_an_error_that_quotes_what_came() {
        let peer = Peer::start(|mut side| side.say("half a li"));
        let mut wire = Wire::connect("peer", &peer.path).unwrap();
        let text = wire.receive(soon()).unwrap_err().to_string();
        assert!(
            text.contains("closed the connection") && text.contains("half a li"),
            "{text}"
        );
        peer.finish();
    }

    #[test]
    fn a_line_without_end_is_refused_before_it_fills_the_memory() {
        let peer = Peer::start(|mut side| {
            let chunk = vec![b'x'; 1 << 20];
            for _ in 0..40 {
                side.say(&chunk);
            }
        });
        let mut wire = Wire::connect("peer", &peer.path).unwrap();
        assert!(
            wire.receive(soon())
                .unwrap_err()
                .to_string()
                .contains("a line of more than")
        );
        drop(wire);
        peer.finish();
    }

    #[test]
    fn the_listening_process_is_known() {
        let peer = Peer::start(|_| {});
        let wire = Wire::connect("peer", &peer.path).unwrap();
        assert_eq!(wire.peer_process().unwrap(), std::process::id());
        peer.finish();
    }
}
