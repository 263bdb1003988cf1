// SPDX-License-Identifier: Apache-2.0
//! One client's connection: its input and output.
//!
//! Events report only changes, so that the connection records whether there is more to read.

use super::super::ReplyTo;
use crate::front::http::PLAIN;
use mio::net::{TcpStream, UnixStream};
use std::fmt::Display;
use std::io::{self, Read, Write};

/// The most bytes of a client's input; the rest waits in the kernel's buffers.
const MAX_INPUT: usize = 4 * vtax_http::LONGEST_HEAD;

/// The most bytes that wait for a slow reader. Above the limit, serial output is dropped and requests wait.
const MAX_UNREAD: usize = 256 << 10;

#[derive(Debug)]
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// A connection to the UNIX socket before its first line.
    Unknown,
    Http,
    /// Raw bytes from and to a guest's serial port.
    Guest(u32),
}

/// A request that a guest has not answered.
#[derive(Debug)]
pub struct PendingRequest {
    pub guest: u32,
    pub reply: ReplyTo,
    pub timer: u64,
    pub keep_alive: bool,
}

#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    pub protocol: Protocol,
    pub input: Vec<u8>,
    output: Vec<u8>,
    /// The request that has not been answered. The next request is read after its answer.
    pub waiting: Option<PendingRequest>,
    /// Whether requests wait until the client reads its answers.
    pub held_back: bool,
    /// Whether the client has closed its side. The next read finds the end.
    pub hung_up: bool,
    /// The time of its last input, by the worker's clock.
    pub last_input: u64,
    /// Whether the client has closed its side and `input` has the rest.
    ended: bool,
    /// Whether there may be more to read without an event.
    unread: bool,
    pub open: bool,
}

impl Connection {
    pub fn new(stream: Stream, protocol: Protocol, now: u64) -> Self {
        Self {
            stream,
            protocol,
            input: Vec::new(),
            output: Vec::new(),
            waiting: None,
            held_back: false,
            hung_up: false,
            last_input: now,
            ended: false,
            unread: false,
            open: true,
        }
    }

    /// Reads the available input, up to the limit.
    pub fn read(&mut self) {
        let mut buffer = [0u8; 4096];
        self.unread = false;
        while self.open && !self.ended {
            if self.input.len() >= MAX_INPUT {
                self.unread = true;
                return;
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => self.ended = true,
                Ok(count) => {
                    self.input.extend(buffer.iter().take(count));
                    // A short read empties the socket: more input is a new event. Only the end may follow without one.
                    if count < buffer.len() && !self.hung_up {
                        return;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.open = false,
            }
        }
    }

    /// Whether there may be more to read without an event, and room for it.
    pub fn readable(&self) -> bool {
        self.unread && self.input.len() < MAX_INPUT
    }

    /// Whether the client has read enough of its answers to get one more.
    pub fn has_room(&mut self) -> bool {
        if self.output.len() > MAX_UNREAD {
            self.flush();
        }
        self.output.len() <= MAX_UNREAD
    }

    /// Adds serial output, unless the unread output would exceed its limit.
    pub fn forward(&mut self, bytes: &[u8]) {
        if self.output.len() + bytes.len() <= MAX_UNREAD {
            self.output.extend(bytes);
        }
    }

    pub fn say(&mut self, text: &str) {
        self.output.extend(text.bytes());
    }

    /// Sends a text and ends the connection.
    pub fn refuse(&mut self, text: &str) {
        self.say(text);
        self.flush();
        self.open = false;
    }

    pub fn respond(&mut self, status: u16, body: &[u8], keep_alive: bool) {
        vtax_http::write_head(&mut self.output, status, PLAIN, body.len(), keep_alive);
        self.output.extend(body);
        if !keep_alive {
            self.flush();
            self.open = false;
        }
    }

    /// Responds with a line of text.
    pub fn respond_line(&mut self, status: u16, line: impl Display, keep_alive: bool) {
        self.respond(status, format!("{line}\n").as_bytes(), keep_alive);
    }

    pub fn flush(&mut self) {
        let mut written = 0;
        while let Some(rest) = self.output.get(written..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest) {
                Ok(count) if count > 0 => written += count,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => {
                    self.open = false;
                    break;
                }
            }
        }
        self.output.drain(..written);
    }

    /// Whether the client has sent all requests and received all answers.
    pub fn done(&self) -> bool {
        self.ended && self.waiting.is_none() && !self.held_back && self.output.is_empty()
    }
}
