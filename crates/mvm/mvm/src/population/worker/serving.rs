// SPDX-License-Identifier: Apache-2.0
//! Connections: accepting them, their requests to guests, and guests' answers.

use super::super::{Answer, Refusal, ReplyTo};
use super::ANSWER_TIMEOUT;
use super::connection::{Connection, PendingRequest, Protocol, Stream};
use super::event_loop::{TCP, Timer, UNIX, Worker};
use crate::front::http::{self, Target};
use mio::{Interest, Token};
use std::io;
use vtax_http::Parsed;

/// The time between two attempts to accept, in ns.
const ACCEPT_RETRY_NS: u64 = 20_000_000;

impl Worker {
    /// Passes an answer to the worker whose connection waits for it.
    pub fn deliver(&mut self, reply: ReplyTo, answer: Answer) {
        if reply.worker == self.index {
            self.answer(reply, answer);
        } else {
            self.shared.mailboxes.post(reply, answer);
        }
    }

    /// Accepts the connections that wait at a listener, up to half of the limit in one call, so that the newest clients
    /// have time to send input.
    pub fn accept(&mut self, listener: Token) {
        for _ in 0..self.most_connections.div_ceil(2) {
            let accepted = match (listener, &self.tcp, &self.unix) {
                (TCP, Some(tcp), _) => tcp.accept().map(|(stream, _)| {
                    // Answers are written as a whole, so delaying small segments only adds latency.
                    let _ = stream.set_nodelay(true);
                    (Stream::Tcp(stream), Protocol::Http)
                }),
                (UNIX, _, Some(unix)) => {
                    let accepted = unix.accept();
                    accepted.map(|(stream, _)| (Stream::Unix(stream), Protocol::Unknown))
                }
                _ => return,
            };
            match accepted {
                Ok((stream, protocol)) => self.connect(stream, protocol),
                Err(e) => match e.kind() {
                    io::ErrorKind::WouldBlock => return,
                    // One client has closed its connection; the next may wait behind it.
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => {
                        // Descriptors or memory are exhausted. There is no further event for waiting clients.
                        self.disconnect_silent();
                        let at = self.clock.now().saturating_add(ACCEPT_RETRY_NS);
                        self.timers.set(at, Timer::Accept(listener));
                        return;
                    }
                },
            }
        }
        let now = self.clock.now();
        self.timers.set(now, Timer::Accept(listener));
    }

    /// Disconnects the client that has been silent for the longest time. Clients that listen to a guest come last, and
    /// those that wait for an answer stay.
    fn disconnect_silent(&mut self) -> bool {
        let silent = self
            .connections
            .iter()
            .filter(|(_, client)| client.waiting.is_none())
            .min_by_key(|(_, client)| {
                (
                    matches!(client.protocol, Protocol::Guest(_)),
                    client.last_input,
                )
            });
        let Some(number) = silent.map(|(number, _)| *number) else {
            return false;
        };
        if let Some(client) = self.connections.remove(&number) {
            self.forget(number, &client);
        }
        true
    }

    fn connect(&mut self, mut stream: Stream, protocol: Protocol) {
        let now = self.clock.now();
        if self.connections.len() >= self.most_connections && !self.disconnect_silent() {
            let mut refused = Connection::new(stream, protocol, now);
            return refused.respond_line(503, "too many clients wait for guests", false);
        }
        let number = self.next_connection;
        self.next_connection += 1;
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registered = match &mut stream {
            Stream::Tcp(s) => self.poll.registry().register(s, Token(number), interest),
            Stream::Unix(s) => self.poll.registry().register(s, Token(number), interest),
        };
        if registered.is_ok() {
            // Input that has arrived already is the first event.
            self.connections
                .insert(number, Connection::new(stream, protocol, now));
        }
    }

    /// Reads and handles a connection's input and writes its output. `hung_up`: the client has closed its side.
    pub fn serve(&mut self, number: usize, hung_up: bool) {
        let Some(mut connection) = self.connections.remove(&number) else {
            return;
        };
        connection.hung_up |= hung_up;
        let known = connection.input.len();
        connection.read();
        if connection.input.len() > known {
            connection.last_input = self.clock.now();
        }
        self.act(number, &mut connection);
        self.settle(number, connection);
    }

    /// Keeps a connection until its next event, unless it has ended.
    fn settle(&mut self, number: usize, mut connection: Connection) {
        connection.flush();
        if !connection.open || connection.done() {
            return self.forget(number, &connection);
        }
        if connection.readable() || connection.held_back && connection.has_room() {
            self.unfinished.push(number);
        }
        self.connections.insert(number, connection);
    }

    /// The destination of an answer to a connection of this worker. Listeners to a guest have the request 0.
    fn reply_to(&self, connection: usize, request: u64) -> ReplyTo {
        ReplyTo {
            worker: self.index,
            connection,
            request,
        }
    }

    fn forget(&mut self, number: usize, connection: &Connection) {
        if let Protocol::Guest(guest) = connection.protocol {
            let listener = self.reply_to(number, 0);
            self.shared.population.unlisten(guest, listener);
        }
        if let Some(waiting) = &connection.waiting {
            self.timers.cancel(waiting.timer);
            self.shared.population.expire(waiting.guest, waiting.reply);
        }
    }

    fn act(&mut self, number: usize, connection: &mut Connection) {
        connection.held_back = false;
        if connection.protocol == Protocol::Unknown {
            self.first_line(number, connection);
        }
        match connection.protocol {
            Protocol::Unknown => {}
            Protocol::Guest(guest) => {
                let bytes = std::mem::take(&mut connection.input);
                if let Err(refused) = self.shared.population.send(guest, &bytes) {
                    connection.refuse(&format!("\n{refused}\n"));
                }
            }
            Protocol::Http => {
                while connection.waiting.is_none()
                    && connection.open
                    && !connection.input.is_empty()
                {
                    connection.held_back = !connection.has_room();
                    if connection.held_back {
                        break;
                    }
                    match vtax_http::parse(&connection.input) {
                        Parsed::Incomplete => break,
                        Parsed::Refused(status, why) => {
                            connection.respond_line(status, why, false);
                            connection.input.clear();
                        }
                        Parsed::Request(request) => {
                            let (length, keep_alive) = (request.length, request.keep_alive);
                            let target = Target::from_request(&request);
                            connection.input.drain(..length);
                            self.request(number, connection, target, keep_alive);
                        }
                    }
                }
            }
        }
    }

    /// Detects the protocol on the UNIX socket by its first bytes: `CONNECT N`, or HTTP.
    fn first_line(&mut self, number: usize, connection: &mut Connection) {
        if connection.input.starts_with(b"GET ") {
            connection.protocol = Protocol::Http;
            return;
        }
        let Some(end) = connection.input.iter().position(|b| *b == b'\n') else {
            if connection.input.len() > 64 {
                connection.open = false;
            }
            return;
        };
        let line: Vec<u8> = connection.input.drain(..=end).collect();
        let line = String::from_utf8_lossy(&line);
        let guest = line
            .trim_end()
            .strip_prefix("CONNECT ")
            .and_then(|n| n.parse::<u32>().ok());
        let reply = self.reply_to(number, 0);
        let refused = match guest {
            None => "say CONNECT and a guest's number, or speak HTTP".to_owned(),
            Some(guest) => match self.shared.population.listen(guest, reply) {
                Ok(()) => {
                    connection.protocol = Protocol::Guest(guest);
                    connection.say(&format!("OK {guest}\n"));
                    return;
                }
                Err(refused) => refused.to_string(),
            },
        };
        connection.refuse(&format!("ERROR {refused}\n"));
    }

    fn request(
        &mut self,
        number: usize,
        connection: &mut Connection,
        target: Target,
        keep_alive: bool,
    ) {
        match target {
            Target::Refused(status, why) => connection.respond_line(status, why, keep_alive),
            Target::Status => {
                let c = self.shared.census();
                let body = format!(
                    "{{\"guests\":{},\"booted\":{},\"dead\":{},\"turns\":{},\"stored_bytes\":{},\"lost_output\":{}}}",
                    c.guests, c.booted, c.dead, c.turns, c.stored_bytes, c.lost_output
                );
                connection.respond_line(200, body, keep_alive);
            }
            Target::Guest(guest, line) => {
                self.next_request += 1;
                let reply = self.reply_to(number, self.next_request);
                match self.shared.population.ask(guest, line, reply) {
                    Ok(()) => {
                        let at = self.request_deadline();
                        let timer = self.timers.set(at, Timer::Request(reply));
                        connection.waiting = Some(PendingRequest {
                            guest,
                            reply,
                            timer,
                            keep_alive,
                        });
                    }
                    Err(refused) => {
                        let status = match refused {
                            Refusal::NoSuchGuest => 404,
                            Refusal::Dead(_) => 410,
                            Refusal::Busy => 503,
                        };
                        connection.respond_line(status, refused, keep_alive);
                    }
                }
            }
        }
    }

    /// Writes an answer to the connection that waits for it.
    pub fn answer(&mut self, reply: ReplyTo, answer: Answer) {
        let Some(mut connection) = self.connections.remove(&reply.connection) else {
            return;
        };
        if let Answer::Output(bytes) = &answer {
            connection.forward(bytes);
        } else if let Some(waiting) = connection.waiting.take_if(|w| w.reply == reply) {
            self.timers.cancel(waiting.timer);
            match answer {
                Answer::Line(line) => {
                    let (status, body) = http::line_as_answer(&line);
                    connection.respond(status, body, waiting.keep_alive);
                }
                Answer::TooLong => {
                    let why = "the guest sent too much without ending its line";
                    connection.respond_line(502, why, waiting.keep_alive);
                }
                Answer::Dead(fault) => {
                    connection.respond_line(410, Refusal::Dead(fault), waiting.keep_alive);
                }
                Answer::Output(_) => {}
            }
            // Another request may have arrived already.
            self.act(reply.connection, &mut connection);
        }
        self.settle(reply.connection, connection);
    }

    /// Answers a request whose time limit is over.
    pub fn expire(&mut self, reply: ReplyTo) {
        let Some(connection) = self.connections.get_mut(&reply.connection) else {
            return;
        };
        if let Some(waiting) = connection.waiting.take_if(|w| w.reply == reply) {
            self.shared.population.expire(waiting.guest, reply);
            let seconds = ANSWER_TIMEOUT.as_secs();
            let why = format!("the guest did not answer within {seconds} s");
            connection.respond_line(504, why, waiting.keep_alive);
            self.serve(reply.connection, false);
        }
    }
}
