//! Workers: identical threads that each serve connections and give guests their turns.
//!
//! A request is read, its guest woken, run and parked, and the answer written, by one thread
//! without a hand-over. A worker without work sleeps in the kernel, without a timer unless some
//! guest's own timer is due.

use super::{
    Active, Answer, Body, Guest, Held, Holding, MAX_ANSWER, Population, Refused, ReplyTo, lock,
};
use crate::error::{Error, Result};
use crate::front::http::{self, Parsed, Target};
use crate::machine::devices::Devices;
use crate::machine::kvm::{Arena, Slot, Tenancy};
use crate::machine::slice::SliceTimer;
use crate::machine::state::{pack, unpack};
use crate::machine::{Clock, Fault, Stop, run};
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::{Events, Interest, Poll, Token, Waker};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a guest may take for an answer.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Serial output of one slice beyond this is dropped: what a line cannot carry in a millisecond.
const MAX_SLICE_OUTPUT: usize = 64 << 10;

/// Bytes that wait for a slow reader; beyond, serial output for it is dropped.
const MAX_UNREAD: usize = 256 << 10;

const WAKE: Token = Token(0);
const TCP: Token = Token(1);
const UNIX: Token = Token(2);
const FIRST_CONNECTION: usize = 3;

/// Where a population can be reached.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// HTTP over TCP.
    pub http: Option<SocketAddr>,
    /// The multiplexed UNIX socket.
    pub unix: Option<PathBuf>,
}

/// Running workers. They stop when this is dropped.
#[derive(Debug)]
pub struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<()>>>,
    http: Option<SocketAddr>,
    unix: Option<PathBuf>,
}

#[derive(Debug)]
struct Shared {
    population: Arc<Population>,
    mailboxes: Vec<Mailbox>,
    stopping: AtomicBool,
    /// Workers that sleep in the kernel.
    asleep: AtomicUsize,
}

#[derive(Debug)]
struct Mailbox {
    answers: Mutex<Vec<(ReplyTo, Answer)>>,
    waker: Waker,
    asleep: AtomicBool,
}

impl Shared {
    /// Wakes a sleeping worker, if there is one.
    fn wake_one(&self) {
        if self.asleep.load(Ordering::SeqCst) == 0 {
            return;
        }
        for mailbox in &self.mailboxes {
            if mailbox.asleep.swap(false, Ordering::SeqCst) {
                let _ = mailbox.waker.wake();
                return;
            }
        }
    }
}

impl Workers {
    /// Binds the addresses and starts `count` workers.
    ///
    /// # Errors
    /// [`Error::System`] when an address cannot be bound or a thread not started; then none runs.
    pub fn start(population: Arc<Population>, count: usize, addresses: &Addresses) -> Result<Self> {
        let count = count.max(1);
        let system = |tried: String| move |cause| Error::System { tried, cause };
        let tcp = match addresses.http {
            Some(address) => {
                let listener = std::net::TcpListener::bind(address)
                    .map_err(system(format!("listen on {address}")))?;
                listener
                    .set_nonblocking(true)
                    .map_err(system(format!("listen on {address}")))?;
                Some(listener)
            }
            None => None,
        };
        let http = tcp.as_ref().and_then(|l| l.local_addr().ok());
        let unix = match &addresses.unix {
            Some(path) => Some(bind_unix(path)?),
            None => None,
        };
        let mut polls = Vec::new();
        let mut mailboxes = Vec::new();
        for _ in 0..count {
            let poll = Poll::new().map_err(system("make an event queue".into()))?;
            let waker = Waker::new(poll.registry(), WAKE).map_err(system("make a waker".into()))?;
            mailboxes.push(Mailbox {
                answers: Mutex::default(),
                waker,
                asleep: AtomicBool::new(false),
            });
            polls.push(poll);
        }
        let shared = Arc::new(Shared {
            population,
            mailboxes,
            stopping: AtomicBool::new(false),
            asleep: AtomicUsize::new(0),
        });
        let mut workers = Self {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
            http,
            unix: addresses.unix.clone(),
        };
        for (index, poll) in polls.into_iter().enumerate() {
            let clone = |e| Error::System {
                tried: "share a listener".into(),
                cause: e,
            };
            let tcp = tcp
                .as_ref()
                .map(std::net::TcpListener::try_clone)
                .transpose()
                .map_err(clone)?;
            let unix = unix
                .as_ref()
                .map(std::os::unix::net::UnixListener::try_clone)
                .transpose()
                .map_err(clone)?;
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new()
                .name(format!("worker-{index}"))
                .spawn(move || {
                    let outcome = Worker::new(Arc::clone(&shared), index, poll, tcp, unix)
                        .and_then(Worker::work);
                    if outcome.is_err() {
                        // One worker that cannot go on must not leave guests waiting for it.
                        shared.stopping.store(true, Ordering::SeqCst);
                        shared.mailboxes.iter().for_each(|m| drop(m.waker.wake()));
                    }
                    outcome
                });
            let thread =
                thread.map_err(|cause| Error::of_limit(format!("start worker {index}"), cause))?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    /// As [`Population::admit`], and wakes whoever is to boot the guests.
    pub fn admit(&self, count: u32) {
        self.shared.population.admit(count);
        for mailbox in &self.shared.mailboxes {
            // A worker that cannot be woken finds the guests when it wakes by itself.
            let _ = mailbox.waker.wake();
        }
    }

    /// Where HTTP is served, with the port that the kernel chose if 0 was asked for.
    #[must_use]
    pub fn http(&self) -> Option<SocketAddr> {
        self.http
    }

    /// Whether a worker has stopped by itself, which only an error makes it do.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.shared.stopping.load(Ordering::SeqCst)
    }

    /// Stops and says what went wrong, if anything did.
    ///
    /// # Errors
    /// The first worker's error.
    pub fn stop(mut self) -> Result<()> {
        self.halt()
    }

    fn halt(&mut self) -> Result<()> {
        self.shared.stopping.store(true, Ordering::SeqCst);
        for mailbox in &self.shared.mailboxes {
            let _ = mailbox.waker.wake();
        }
        let mut outcome = Ok(());
        for thread in self.threads.drain(..) {
            let ended = thread.join().unwrap_or_else(|_| {
                Err(Error::System {
                    tried: "run a worker".into(),
                    cause: io::Error::other("it panicked"),
                })
            });
            outcome = outcome.and(ended);
        }
        if let Some(path) = self.unix.take() {
            let _ = std::fs::remove_file(path);
        }
        outcome
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let _ = self.halt();
    }
}

/// Binds a UNIX socket, in the place of one that nobody listens on any more.
fn bind_unix(path: &Path) -> Result<std::os::unix::net::UnixListener> {
    use std::os::unix::net::{UnixListener, UnixStream};
    let failed = |cause| Error::File {
        action: "listen on",
        path: path.to_owned(),
        cause,
    };
    let listener = match UnixListener::bind(path) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse && UnixStream::connect(path).is_err() => {
            std::fs::remove_file(path).map_err(failed)?;
            UnixListener::bind(path)
        }
        other => other,
    }
    .map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

enum Timer {
    Guest(u32),
    Request(ReplyTo),
}

struct Worker {
    shared: Arc<Shared>,
    index: usize,
    poll: Poll,
    tcp: Option<TcpListener>,
    unix: Option<UnixListener>,
    connections: HashMap<usize, Connection>,
    next_connection: usize,
    next_request: u64,
    slice: SliceTimer,
    clock: Clock,
    /// The slot that parked guests take turns in, and its arena.
    slot: Option<(Slot, Arc<Arena>)>,
    timers: BinaryHeap<Reverse<(u64, u64)>>,
    timed: HashMap<u64, Timer>,
    next_timer: u64,
    output: Vec<u8>,
    /// Whether the next turn is a boot rather than the queue's.
    boot_next: bool,
}

impl Worker {
    fn new(
        shared: Arc<Shared>,
        index: usize,
        poll: Poll,
        tcp: Option<std::net::TcpListener>,
        unix: Option<std::os::unix::net::UnixListener>,
    ) -> Result<Self> {
        let population = &shared.population;
        let slot = match population.plan.holding {
            Holding::Parked => {
                let arena = Arena::new(1)?;
                Some((
                    Slot::new(
                        &population.host,
                        &arena,
                        0,
                        &population.plan.image,
                        Tenancy::Turns,
                    )?,
                    arena,
                ))
            }
            Holding::Live => None,
        };
        let register = |cause| Error::System {
            tried: "watch a listener".into(),
            cause,
        };
        let mut tcp = tcp.map(TcpListener::from_std);
        let mut unix = unix.map(UnixListener::from_std);
        if let Some(listener) = &mut tcp {
            poll.registry()
                .register(listener, TCP, Interest::READABLE)
                .map_err(register)?;
        }
        if let Some(listener) = &mut unix {
            poll.registry()
                .register(listener, UNIX, Interest::READABLE)
                .map_err(register)?;
        }
        let clock = population.clock.clone();
        Ok(Self {
            shared,
            index,
            poll,
            tcp,
            unix,
            connections: HashMap::new(),
            next_connection: FIRST_CONNECTION,
            next_request: 0,
            slice: SliceTimer::new()?,
            clock,
            slot,
            timers: BinaryHeap::new(),
            timed: HashMap::new(),
            next_timer: 0,
            output: Vec::new(),
            boot_next: false,
        })
    }

    fn work(mut self) -> Result<()> {
        let mut events = Events::with_capacity(256);
        let shared = Arc::clone(&self.shared);
        let mut turns_before_poll = 0u32;
        while !shared.stopping.load(Ordering::SeqCst) {
            if turns_before_poll == 0 {
                self.wait(&mut events)?;
                for event in &events {
                    match event.token() {
                        WAKE => {}
                        TCP => self.accept_tcp(),
                        UNIX => self.accept_unix(),
                        Token(connection) => self.serve(connection),
                    }
                }
                self.mail();
                self.due();
                turns_before_poll = 8;
            }
            turns_before_poll = if self.turn()? {
                turns_before_poll - 1
            } else {
                0
            };
        }
        Ok(())
    }

    /// Looks at the connections; sleeps if there is nothing else to do.
    fn wait(&mut self, events: &mut Events) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let Some(mailbox) = shared.mailboxes.get(self.index) else {
            return Ok(());
        };
        let mut timeout = Some(Duration::ZERO);
        let idle = !shared.population.runnable();
        if idle {
            self.slice.disarm();
            timeout = self
                .timers
                .peek()
                .map(|Reverse((at, _))| Duration::from_nanos(at.saturating_sub(self.clock.now())));
            if shared.population.held.load(Ordering::Acquire) {
                timeout = Some(Duration::from_millis(1));
            }
            mailbox.asleep.store(true, Ordering::SeqCst);
            shared.asleep.fetch_add(1, Ordering::SeqCst);
            // Whoever adds work from now on wakes a sleeper; what came just before is seen here.
            let pending =
                !lock(&mailbox.answers).is_empty() || shared.stopping.load(Ordering::SeqCst);
            if pending || shared.population.runnable() {
                timeout = Some(Duration::ZERO);
            }
        }
        let outcome = self.poll.poll(events, timeout);
        if idle {
            shared.asleep.fetch_sub(1, Ordering::SeqCst);
            mailbox.asleep.store(false, Ordering::SeqCst);
        }
        match outcome {
            Err(cause) if cause.kind() != io::ErrorKind::Interrupted => Err(Error::System {
                tried: "wait for events".into(),
                cause,
            }),
            _ => Ok(()),
        }
    }

    fn mail(&mut self) {
        let shared = Arc::clone(&self.shared);
        let Some(mailbox) = shared.mailboxes.get(self.index) else {
            return;
        };
        let answers = std::mem::take(&mut *lock(&mailbox.answers));
        for (reply, answer) in answers {
            self.answer(reply, answer);
        }
    }

    fn timer(&mut self, at: u64, timer: Timer) {
        self.next_timer += 1;
        self.timers.push(Reverse((at, self.next_timer)));
        self.timed.insert(self.next_timer, timer);
    }

    /// Fires the timers that are due.
    fn due(&mut self) {
        while let Some(Reverse((at, number))) = self.timers.peek().copied() {
            if at > self.clock.now() {
                return;
            }
            self.timers.pop();
            match self.timed.remove(&number) {
                Some(Timer::Guest(guest)) => self.shared.population.tick(guest, at),
                Some(Timer::Request(reply)) => self.expire(reply),
                None => {}
            }
        }
    }

    // Guests

    /// Gives one guest its turn. False when none waits.
    fn turn(&mut self) -> Result<bool> {
        let shared = Arc::clone(&self.shared);
        let population = &shared.population;
        if population.held.load(Ordering::Acquire) {
            return Ok(false);
        }
        // Boots and turns alternate, so that neither guests that spin nor a million boots keep the
        // other waiting.
        self.boot_next = !self.boot_next && population.boots_wait();
        let offset = if self.boot_next || lock(&population.queue).is_empty() {
            population.next_boot()
        } else {
            None
        };
        let booting = offset.is_some();
        let number = match offset {
            Some(offset) => population.plan.first + offset,
            None => match lock(&population.queue).pop() {
                Some(number) => number,
                None => return Ok(false),
            },
        };
        if population.runnable() {
            shared.wake_one();
        }
        let Some(cell) = population.guest(number) else {
            return Ok(true);
        };
        let (body, inbox) = {
            let mut guest = lock(cell);
            let taken = match super::activate(&mut guest) {
                // Somebody wrote to it before its boot: it waits in the queue and boots from there.
                Ok(active) if booting && active.queued => None,
                Ok(active) => {
                    active.queued = false;
                    active
                        .body
                        .take()
                        .map(|body| (body, std::mem::take(&mut active.inbox)))
                }
                Err(_) => None,
            };
            let Some(taken) = taken else {
                population
                    .booted
                    .fetch_add(u32::from(booting), Ordering::Relaxed);
                return Ok(true);
            };
            taken
        };
        self.slice.arm();
        let started = thread_time();
        let (stop, body, deadline) = self.run(number, body, &inbox)?;
        let ran = thread_time().saturating_sub(started);
        population.turns.fetch_add(1, Ordering::Relaxed);
        if booting {
            population.booted.fetch_add(1, Ordering::Relaxed);
        }
        let output = std::mem::take(&mut self.output);
        let mut answers = Vec::new();
        if population.listening.load(Ordering::Acquire) != 0
            && !output.is_empty()
            && let Some(reply) = lock(&population.listeners).get(&number)
        {
            answers.push((*reply, Answer::Output(output.clone())));
        }
        {
            let mut guest = lock(cell);
            if let Guest::Active(active) = &mut *guest {
                active.runtime = active.runtime.saturating_add(ran);
                heard(active, &output, &mut answers);
                active.body = Some(body);
                match stop {
                    Stop::Dead(fault) => {
                        let replies = active.asks.drain(..).filter_map(|ask| ask.reply);
                        answers.extend(replies.map(|reply| (reply, Answer::Dead(fault))));
                        *guest = Guest::Dead(fault);
                        population.dead.fetch_add(1, Ordering::Relaxed);
                    }
                    Stop::Preempted => population.enqueue(number, active),
                    Stop::Halted if !active.inbox.is_empty() => population.enqueue(number, active),
                    Stop::Halted if active.asks.is_empty() => {
                        if let Some(body) = active.body.take() {
                            *guest = Guest::Idle(body);
                        }
                    }
                    Stop::Halted => {}
                }
            }
        }
        self.output = output;
        self.output.clear();
        if let (Some(deadline), Stop::Halted) = (deadline, stop)
            && lock(&population.ticking).insert(number, deadline) != Some(deadline)
        {
            self.timer(deadline, Timer::Guest(number));
        }
        for (reply, answer) in answers {
            self.deliver(reply, answer);
        }
        Ok(true)
    }

    /// Runs a guest for a slice. Its output is in `self.output`; the last result is its timer.
    fn run(&mut self, number: u32, body: Body, inbox: &[u8]) -> Result<(Stop, Body, Option<u64>)> {
        let shared = Arc::clone(&self.shared);
        let population = &shared.population;
        let mut held = match body {
            Body::Held(held) => held,
            Body::Stored(stored) => {
                if let Some((slot, arena)) = &mut self.slot {
                    let mut devices = unpack(&stored, slot, &population.reset)?;
                    devices.receive(inbox);
                    let (mut stop, lost) = run(
                        slot,
                        &mut devices,
                        &mut self.clock,
                        None,
                        &mut self.output,
                        MAX_SLICE_OUTPUT,
                    )?;
                    population.lost_output.fetch_add(lost, Ordering::Relaxed);
                    if slot.paging() {
                        stop = Stop::Dead(Fault::Paging);
                    }
                    if let Stop::Dead(_) = stop {
                        // What a dead guest left in the vCPU is not worth reasoning about.
                        slot.memory_mut().fill(0);
                        self.slice.disarm();
                        let fresh = Slot::new(
                            &population.host,
                            arena,
                            0,
                            &population.plan.image,
                            Tenancy::Turns,
                        )?;
                        *slot = fresh;
                        return Ok((stop, Body::Stored(Box::default()), None));
                    }
                    let deadline = devices.deadline();
                    let stored = pack(slot, &devices, &population.reset)?;
                    return Ok((stop, Body::Stored(stored), deadline));
                }
                let Some(arena) = &population.arena else {
                    return Err(Error::State("a live population has no memory"));
                };
                let index = (number - population.plan.first) as usize;
                // The kernel gives up making a VM when a signal comes.
                self.slice.disarm();
                let slot = Slot::new(
                    &population.host,
                    arena,
                    index,
                    &population.plan.image,
                    Tenancy::One,
                )?;
                self.slice.arm();
                Box::new(Held {
                    slot,
                    devices: Devices::default(),
                })
            }
        };
        let Held { slot, devices } = &mut *held;
        devices.receive(inbox);
        let (stop, lost) = run(
            slot,
            devices,
            &mut self.clock,
            None,
            &mut self.output,
            MAX_SLICE_OUTPUT,
        )?;
        population.lost_output.fetch_add(lost, Ordering::Relaxed);
        let deadline = devices.deadline();
        Ok((stop, Body::Held(held), deadline))
    }

    // Connections

    /// Gives an answer to the worker whose connection waits for it.
    fn deliver(&mut self, reply: ReplyTo, answer: Answer) {
        if reply.worker == self.index {
            return self.answer(reply, answer);
        }
        if let Some(mailbox) = self.shared.mailboxes.get(reply.worker) {
            lock(&mailbox.answers).push((reply, answer));
            let _ = mailbox.waker.wake();
        }
    }

    fn accept_tcp(&mut self) {
        while let Some(Ok((stream, _))) = self.tcp.as_ref().map(TcpListener::accept) {
            // Answers are small and complete: waiting to fill a segment only costs time.
            let _ = stream.set_nodelay(true);
            self.connect(Stream::Tcp(stream), Protocol::Http);
        }
    }

    fn accept_unix(&mut self) {
        while let Some(Ok((stream, _))) = self.unix.as_ref().map(UnixListener::accept) {
            self.connect(Stream::Unix(stream), Protocol::Unknown);
        }
    }

    fn connect(&mut self, mut stream: Stream, protocol: Protocol) {
        let number = self.next_connection;
        self.next_connection += 1;
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registered = match &mut stream {
            Stream::Tcp(s) => self.poll.registry().register(s, Token(number), interest),
            Stream::Unix(s) => self.poll.registry().register(s, Token(number), interest),
        };
        if registered.is_ok() {
            let connection = Connection {
                stream,
                protocol,
                input: Vec::new(),
                output: Vec::new(),
                waiting: None,
                open: true,
            };
            self.connections.insert(number, connection);
            self.serve(number);
        }
    }

    /// Reads, writes and acts on what a connection has.
    fn serve(&mut self, number: usize) {
        let Some(mut connection) = self.connections.remove(&number) else {
            return;
        };
        connection.read();
        self.act(number, &mut connection);
        connection.flush();
        if connection.open {
            self.connections.insert(number, connection);
        } else {
            self.forget(number, &connection);
        }
    }

    fn forget(&mut self, number: usize, connection: &Connection) {
        if let Protocol::Guest(guest) = connection.protocol {
            self.shared.population.unlisten(
                guest,
                ReplyTo {
                    worker: self.index,
                    connection: number,
                    request: 0,
                },
            );
        }
        if let Some(waiting) = &connection.waiting {
            self.shared.population.expire(waiting.guest, waiting.reply);
        }
    }

    fn act(&mut self, number: usize, connection: &mut Connection) {
        if connection.protocol == Protocol::Unknown {
            self.first_line(number, connection);
        }
        match connection.protocol {
            Protocol::Unknown => {}
            Protocol::Guest(guest) => {
                let bytes = std::mem::take(&mut connection.input);
                if let Err(refused) = self.shared.population.send(guest, &bytes) {
                    connection
                        .output
                        .extend(format!("\n{}\n", say(&refused)).bytes());
                    connection.flush();
                    connection.open = false;
                }
            }
            Protocol::Http => {
                while connection.waiting.is_none()
                    && connection.open
                    && !connection.input.is_empty()
                {
                    match http::parse(&connection.input) {
                        Parsed::Incomplete => break,
                        Parsed::Bad(status, why) => {
                            connection.respond(status, format!("{why}\n").as_bytes(), false);
                            connection.input.clear();
                        }
                        Parsed::Request(request) => {
                            connection.input.drain(..request.length);
                            self.request(number, connection, request);
                        }
                    }
                }
            }
        }
    }

    /// The first bytes on the UNIX socket say what is spoken: `CONNECT N`, or HTTP.
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
        let reply = ReplyTo {
            worker: self.index,
            connection: number,
            request: 0,
        };
        let refused = match guest {
            None => "say CONNECT and a guest's number, or speak HTTP".to_owned(),
            Some(guest) => match self.shared.population.listen(guest, reply) {
                Ok(()) => {
                    connection.protocol = Protocol::Guest(guest);
                    connection.output.extend(format!("OK {guest}\n").bytes());
                    return;
                }
                Err(refused) => say(&refused),
            },
        };
        connection
            .output
            .extend(format!("ERROR {refused}\n").bytes());
        connection.flush();
        connection.open = false;
    }

    fn request(&mut self, number: usize, connection: &mut Connection, request: http::Request) {
        match request.target {
            Target::Unknown => {
                connection.respond(404, b"try /vm/N/path or /status\n", request.keep_alive)
            }
            Target::Status => {
                let c = self.shared.population.full_census();
                let body = format!(
                    "{{\"guests\":{},\"booted\":{},\"dead\":{},\"turns\":{},\"stored_bytes\":{},\"lost_output\":{}}}\n",
                    c.guests, c.booted, c.dead, c.turns, c.stored_bytes, c.lost_output
                );
                connection.respond(200, body.as_bytes(), request.keep_alive);
            }
            Target::Guest(guest, line) => {
                self.next_request += 1;
                let reply = ReplyTo {
                    worker: self.index,
                    connection: number,
                    request: self.next_request,
                };
                match self.shared.population.ask(guest, line, reply) {
                    Ok(()) => {
                        let patience = u64::try_from(PATIENCE.as_nanos()).unwrap_or(u64::MAX);
                        let at = self.clock.now().saturating_add(patience);
                        self.next_timer += 1;
                        let timer = self.next_timer;
                        self.timers.push(Reverse((at, timer)));
                        self.timed.insert(timer, Timer::Request(reply));
                        connection.waiting = Some(Waiting {
                            guest,
                            reply,
                            timer,
                            keep_alive: request.keep_alive,
                        });
                    }
                    Err(refused) => {
                        let status = match refused {
                            Refused::NoSuchGuest => 404,
                            Refused::Dead(_) => 410,
                            Refused::Busy => 503,
                        };
                        connection.respond(
                            status,
                            format!("{}\n", say(&refused)).as_bytes(),
                            request.keep_alive,
                        );
                    }
                }
            }
        }
    }

    fn answer(&mut self, reply: ReplyTo, answer: Answer) {
        let Some(mut connection) = self.connections.remove(&reply.connection) else {
            return;
        };
        if let Answer::Output(bytes) = &answer {
            if connection.output.len() + bytes.len() <= MAX_UNREAD {
                connection.output.extend(bytes);
            }
        } else if let Some(waiting) = connection.waiting.take_if(|w| w.reply == reply) {
            self.timed.remove(&waiting.timer);
            match answer {
                Answer::Line(line) => {
                    let (status, body) = http::line_as_answer(&line);
                    connection.respond(status, body, waiting.keep_alive);
                }
                Answer::TooLong => {
                    connection.respond(
                        502,
                        b"the guest sent too much without ending its line\n",
                        waiting.keep_alive,
                    );
                }
                Answer::Dead(fault) => {
                    let why = say(&Refused::Dead(fault));
                    connection.respond(410, format!("{why}\n").as_bytes(), waiting.keep_alive);
                }
                Answer::Output(_) => {}
            }
            // Another request may have come behind this one.
            self.act(reply.connection, &mut connection);
        }
        connection.flush();
        if connection.open {
            self.connections.insert(reply.connection, connection);
        } else {
            self.forget(reply.connection, &connection);
        }
    }

    fn expire(&mut self, reply: ReplyTo) {
        let Some(connection) = self.connections.get_mut(&reply.connection) else {
            return;
        };
        if let Some(waiting) = connection.waiting.take_if(|w| w.reply == reply) {
            self.shared.population.expire(waiting.guest, reply);
            let text = format!("the guest did not answer within {} s\n", PATIENCE.as_secs());
            connection.respond(504, text.as_bytes(), waiting.keep_alive);
            self.serve(reply.connection);
        }
    }
}

/// Processor time of this thread, in ns: a guest is not charged for what the host gave to others.
fn thread_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

fn say(refused: &Refused) -> String {
    match refused {
        Refused::NoSuchGuest => "there is no guest of this number".to_owned(),
        Refused::Dead(fault) => format!("this guest has stopped: {fault}"),
        Refused::Busy => "too many requests wait for this guest".to_owned(),
    }
}

/// Takes a guest's output to the requests that wait for it.
fn heard(active: &mut Active, output: &[u8], answers: &mut Vec<(ReplyTo, Answer)>) {
    let mut rest = output;
    while !active.asks.is_empty() && !rest.is_empty() {
        let end = rest.iter().position(|b| *b == b'\n').map(|i| i + 1);
        let (part, behind) = rest.split_at(end.unwrap_or(rest.len()));
        rest = behind;
        active.answer.extend(
            part.iter()
                .take(MAX_ANSWER + 1 - active.answer.len().min(MAX_ANSWER + 1)),
        );
        let too_long = active.answer.len() > MAX_ANSWER;
        if end.is_none() && !too_long {
            return;
        }
        let line = std::mem::take(&mut active.answer);
        if let Some(ask) = active.asks.pop_front() {
            let answer = if too_long {
                Answer::TooLong
            } else {
                Answer::Line(line)
            };
            answers.extend(ask.reply.map(|reply| (reply, answer)));
        }
        if let Some(next) = active.asks.front() {
            active.inbox.extend(&next.request);
        }
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    /// On the UNIX socket, until the first line.
    Unknown,
    Http,
    /// Raw bytes from and to a guest's serial port.
    Guest(u32),
}

struct Waiting {
    guest: u32,
    reply: ReplyTo,
    timer: u64,
    keep_alive: bool,
}

struct Connection {
    stream: Stream,
    protocol: Protocol,
    input: Vec<u8>,
    output: Vec<u8>,
    /// The request that has not been answered. The next is read only after it.
    waiting: Option<Waiting>,
    open: bool,
}

impl Connection {
    fn read(&mut self) {
        let mut buffer = [0u8; 4096];
        // What is not read stays in the kernel and holds the sender back.
        while self.open && self.input.len() < 4 * http::MAX_HEAD {
            let outcome = match &mut self.stream {
                Stream::Tcp(s) => s.read(&mut buffer),
                Stream::Unix(s) => s.read(&mut buffer),
            };
            match outcome {
                Ok(0) => self.open = false,
                Ok(count) => {
                    self.input.extend(buffer.iter().take(count));
                    if count < buffer.len() && self.protocol == Protocol::Http {
                        return;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.open = false,
            }
        }
    }

    fn respond(&mut self, status: u16, body: &[u8], keep_alive: bool) {
        self.output.extend(http::response(status, body, keep_alive));
        if !keep_alive {
            self.flush();
            self.open = false;
        }
    }

    fn flush(&mut self) {
        while !self.output.is_empty() {
            let outcome = match &mut self.stream {
                Stream::Tcp(s) => s.write(&self.output),
                Stream::Unix(s) => s.write(&self.output),
            };
            match outcome {
                Ok(count) => drop(self.output.drain(..count)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.open = false;
                    return;
                }
            }
        }
    }
}
