// SPDX-License-Identifier: Apache-2.0
//! A connection: connect, send a request, receive the answer, repeat. It never blocks.

use super::Protocol;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with, sockopt};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// The most bytes of an answer's head.
const HEAD_LIMIT: usize = 16 * 1024;

/// The state of a connection.
#[derive(Debug)]
enum Phase {
    Idle,
    /// Connecting or sending: the number of bytes that were sent.
    Sending(usize),
    /// Receiving the head: the bytes so far.
    Head(Vec<u8>),
    /// Receiving the body: the bytes to come.
    Body(u64),
}

/// A connection and the request that it carries.
#[derive(Debug)]
pub struct Connection {
    socket: TcpStream,
    phase: Phase,
    request: Vec<u8>,
    refused: Option<String>,
    closes: bool,
    /// When the request was due, in nanoseconds since the start.
    pub due: u64,
    /// When this connection took it.
    pub sent: u64,
    /// When the connection became free.
    pub idle_since: u64,
    /// Requests answered so far.
    pub answered: u64,
    /// Whether epoll reports when the socket becomes writable.
    pub writability_watched: bool,
}

/// The outcome of an event.
#[derive(Debug)]
pub enum Progress {
    /// The answer is incomplete; this many bytes of body were received.
    Waiting(u64),
    /// The answer is complete.
    Done {
        /// Bytes of body received by this event.
        bytes: u64,
        /// The error that the server answered, such as `status 503`.
        refused: Option<String>,
        /// Whether another request can be sent.
        reusable: bool,
    },
    /// The server closed an idle connection.
    Closed,
    /// The server closed a kept connection while the request was sent; another connection can send it.
    Stale,
    /// The exchange failed.
    Failed(io::Error),
}

impl Connection {
    /// Begins to connect; the socket becomes writable with the outcome. The slot has been free since
    /// `idle_since`.
    pub fn open(address: SocketAddr, idle_since: u64) -> io::Result<Self> {
        let family = if address.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        match connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(cause) => return Err(cause.into()),
        }
        let socket = TcpStream::from(socket);
        Ok(Self {
            socket,
            phase: Phase::Idle,
            request: Vec::new(),
            refused: None,
            closes: false,
            due: idle_since,
            sent: idle_since,
            idle_since,
            answered: 0,
            writability_watched: true,
        })
    }

    /// The socket, to register for events.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Whether a request is in progress.
    pub fn is_busy(&self) -> bool {
        !matches!(self.phase, Phase::Idle)
    }

    /// Whether the server closes it next: its last answer announced that.
    pub fn is_closing(&self) -> bool {
        self.closes && !self.is_busy()
    }

    /// Whether progress needs a writable socket.
    pub fn is_sending(&self) -> bool {
        matches!(self.phase, Phase::Sending(_))
    }

    /// Returns whether the server may have closed the connection before it saw the present request. A server may close
    /// it at any time between two requests, and the present request can be sent again (RFC 9112, 9.3.1).
    pub fn may_be_stale(&self) -> bool {
        let untouched = match &self.phase {
            Phase::Sending(_) => true,
            Phase::Head(pieces) => pieces.is_empty(),
            Phase::Idle | Phase::Body(_) => false,
        };
        untouched && self.answered > 0
    }

    /// Takes the next request and sends as much of it as the socket accepts.
    pub fn begin(&mut self, protocol: &mut dyn Protocol, due: u64, now: u64) -> io::Result<()> {
        self.request.clear();
        protocol.request(&mut self.request);
        self.due = due;
        self.sent = now;
        self.phase = Phase::Sending(0);
        self.send()
    }

    fn send(&mut self) -> io::Result<()> {
        let Phase::Sending(mut out) = self.phase else {
            return Ok(());
        };
        while let Some(rest) = self.request.get(out..).filter(|rest| !rest.is_empty()) {
            match self.socket.write(rest) {
                Ok(count) => out += count,
                // A socket that is not connected yet returns EAGAIN too, and an event when it is.
                Err(cause) if cause.kind() == ErrorKind::WouldBlock => {
                    self.phase = Phase::Sending(out);
                    return Ok(());
                }
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                Err(cause) => return Err(cause),
            }
        }
        self.phase = Phase::Head(Vec::new());
        Ok(())
    }

    /// Handles an event on the socket: one send, or one receive into `buffer`.
    pub fn advance(&mut self, protocol: &dyn Protocol, buffer: &mut [u8]) -> Progress {
        if self.is_sending() {
            return match self.send() {
                Ok(()) => Progress::Waiting(0),
                Err(_) if self.may_be_stale() => Progress::Stale,
                Err(cause) => Progress::Failed(cause),
            };
        }
        let count = match self.socket.read(buffer) {
            Err(cause)
                if matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                return Progress::Waiting(0);
            }
            // Without a request this is an end, a reset, or a notice that the server will close.
            _ if !self.is_busy() => return Progress::Closed,
            Ok(0) | Err(_) if self.may_be_stale() => return Progress::Stale,
            Ok(0) => {
                return failed("the server closed the connection before the answer was complete");
            }
            Ok(count) => count,
            Err(cause) => return Progress::Failed(cause),
        };
        self.take(protocol, buffer.get(..count).unwrap_or_default())
    }

    fn take(&mut self, protocol: &dyn Protocol, bytes: &[u8]) -> Progress {
        let (body, left) = match &mut self.phase {
            Phase::Idle | Phase::Sending(_) => {
                return failed("the server sent what was not asked for");
            }
            Phase::Body(left) => (bytes.len() as u64, *left),
            Phase::Head(pieces) => {
                let in_pieces = !pieces.is_empty();
                if in_pieces {
                    pieces.extend_from_slice(bytes);
                }
                let whole = if in_pieces { pieces.as_slice() } else { bytes };
                match protocol.head(whole) {
                    Ok(Some(head)) => {
                        self.refused = head.refused;
                        self.closes = head.closes;
                        (whole.len().saturating_sub(head.length) as u64, head.body)
                    }
                    Ok(None) if whole.len() > HEAD_LIMIT => {
                        return failed("the head of the answer is longer than 16 KiB");
                    }
                    Ok(None) => {
                        if !in_pieces {
                            pieces.extend_from_slice(bytes);
                        }
                        return Progress::Waiting(0);
                    }
                    Err(cause) => return Progress::Failed(cause),
                }
            }
        };
        match left.checked_sub(body) {
            None => failed("the answer is longer than it says"),
            Some(0) => {
                self.phase = Phase::Idle;
                self.answered += 1;
                Progress::Done {
                    bytes: body,
                    refused: self.refused.take(),
                    reusable: !self.closes,
                }
            }
            Some(left) => {
                self.phase = Phase::Body(left);
                Progress::Waiting(body)
            }
        }
    }
}

fn failed(what: &str) -> Progress {
    Progress::Failed(io::Error::new(ErrorKind::InvalidData, what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Get;
    use proptest::prelude::*;

    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nServer: Apache\r\ncontent-length: 5\r\n\r\nhello";

    /// Feeds `pieces` of an answer to a connection that has sent its request.
    fn feed(pieces: &[&[u8]]) -> (u64, Progress) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut connection = Connection::open(address, 0).unwrap();
        let get = Get::new(address, "/", true);
        connection.phase = Phase::Head(Vec::new());
        let mut total = 0;
        for piece in pieces {
            match connection.take(&get, piece) {
                Progress::Waiting(bytes) => total += bytes,
                Progress::Done {
                    bytes,
                    refused,
                    reusable,
                } => {
                    return (
                        total + bytes,
                        Progress::Done {
                            bytes,
                            refused,
                            reusable,
                        },
                    );
                }
                other => return (total, other),
            }
        }
        (total, Progress::Waiting(0))
    }

    #[test]
    fn an_answer_longer_than_it_says_is_an_error() {
        let (_, progress) = feed(&[ANSWER, b"x"]);
        assert!(matches!(progress, Progress::Done { .. }));
        let (_, progress) = feed(&[&[ANSWER, b"x"].concat()]);
        assert!(matches!(progress, Progress::Failed(_)), "{progress:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn an_answer_cut_anywhere_is_the_same_answer(mut cuts in prop::collection::vec(0..ANSWER.len(), 0..6)) {
            cuts.extend([0, ANSWER.len()]);
            cuts.sort_unstable();
            cuts.dedup();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &ANSWER[pair[0]..pair[1]]).collect();
            let (bytes, progress) = feed(&pieces);
            prop_assert_eq!(bytes, 5);
            let done = matches!(progress, Progress::Done { refused: None, reusable: true, .. });
            prop_assert!(done);
        }

        #[test]
        fn no_answer_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0..ANSWER.len(), byte: u8) {
            let _ = feed(&[&bytes]);
            let mut mutated = ANSWER.to_vec();
            mutated[at] = byte;
            let _ = feed(&[&mutated, &bytes]);
        }
    }
}
