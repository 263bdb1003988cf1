// SPDX-License-Identifier: Apache-2.0
//! One worker, which alternates between events and turns, and sleeps when there is neither.

use super::super::{Holding, ReplyTo};
use super::connection::Connection;
use super::mailbox::{WAKE, look};
use super::timers::Timers;
use super::{ANSWER_TIMEOUT, Shared};
use crate::error::{Error, Result};
use crate::machine::Clock;
use crate::machine::kvm::{Arena, Slot, Tenancy};
use crate::machine::slice::SliceTimer;
use mio::net::{TcpListener, UnixListener};
use mio::{Events, Interest, Poll, Token};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub const TCP: Token = Token(1);
pub const UNIX: Token = Token(2);
const FIRST_CONNECTION: usize = 3;

/// Processor time of turns, in ns, after which a worker polls its connections although more guests wait for a turn.
const POLL_INTERVAL_NS: u64 = 100_000;

/// The timers of a worker.
#[derive(Debug)]
pub enum Timer {
    /// A guest's own timer is due.
    Guest(u32),
    /// The time limit of a request is over.
    Request(ReplyTo),
    /// Connections can be accepted again.
    Accept(Token),
}

pub struct Worker {
    pub shared: Arc<Shared>,
    pub index: usize,
    pub poll: Poll,
    pub tcp: Option<TcpListener>,
    pub unix: Option<UnixListener>,
    pub connections: HashMap<usize, Connection>,
    /// The most connections.
    pub most_connections: usize,
    pub next_connection: usize,
    pub next_request: u64,
    /// Connections to continue with, for which there is no event.
    pub unfinished: Vec<usize>,
    pub slice: SliceTimer,
    pub clock: Clock,
    /// The slot in which parked guests take turns, and its arena.
    pub slot: Option<(Slot, Arc<Arena>)>,
    pub timers: Timers<Timer>,
    pub output: Vec<u8>,
    /// Whether this worker boots guests. One worker boots all live guests, because the kernel makes one VM at a time
    /// for a process.
    pub boots: bool,
    /// Whether the next turn is that of guests in other processes.
    pub ahead: bool,
    /// Whether the next turn is a boot rather than the queue's.
    pub boot_next: bool,
}

impl Worker {
    /// Creates a worker on the thread that runs it.
    ///
    /// # Errors
    /// When its slot cannot be made or its listeners cannot be registered.
    pub fn new(
        shared: Arc<Shared>,
        index: usize,
        poll: Poll,
        tcp: Option<std::net::TcpListener>,
        unix: Option<std::os::unix::net::UnixListener>,
        most_connections: usize,
    ) -> Result<Self> {
        let population = &shared.population;
        let slot = match population.plan.holding {
            Holding::Parked => {
                let arena = Arena::new(1)?;
                let image = &population.plan.image;
                let slot = Slot::new(&population.host, &arena, 0, image, Tenancy::Turns)?;
                Some((slot, arena))
            }
            Holding::Live => None,
        };
        let register = |cause| Error::of_limit("watch a listener", cause);
        let mut tcp = tcp.map(TcpListener::from_std);
        let mut unix = unix.map(UnixListener::from_std);
        let (events, interest) = (poll.registry(), Interest::READABLE);
        if let Some(listener) = &mut tcp {
            events.register(listener, TCP, interest).map_err(register)?;
        }
        if let Some(listener) = &mut unix {
            events
                .register(listener, UNIX, interest)
                .map_err(register)?;
        }
        let clock = population.clock.clone();
        let boots = index == 0 || population.plan.holding == Holding::Parked;
        Ok(Self {
            shared,
            index,
            poll,
            tcp,
            unix,
            connections: HashMap::new(),
            most_connections,
            next_connection: FIRST_CONNECTION,
            next_request: 0,
            unfinished: Vec::new(),
            slice: SliceTimer::new()?,
            clock,
            slot,
            timers: Timers::default(),
            output: Vec::new(),
            boots,
            ahead: false,
            boot_next: false,
        })
    }

    /// Runs until the workers are stopped.
    ///
    /// # Errors
    /// When KVM or the event queue fails.
    pub fn work(mut self) -> Result<()> {
        let mut events = Events::with_capacity(256);
        let shared = Arc::clone(&self.shared);
        while !shared.stopping.load(Ordering::SeqCst) {
            self.wait(&mut events)?;
            for event in &events {
                match event.token() {
                    WAKE => {}
                    token @ (TCP | UNIX) => self.accept(token),
                    Token(connection) => self.serve(connection, event.is_read_closed()),
                }
            }
            for connection in std::mem::take(&mut self.unfinished) {
                self.serve(connection, false);
            }
            for (reply, answer) in shared.mailboxes.take(self.index) {
                self.answer(reply, answer);
            }
            self.due();
            let mut ran = 0;
            while let Some(time) = self.turn()? {
                ran += time;
                if ran > POLL_INTERVAL_NS {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Polls the connections. Sleeps if there is no other work.
    fn wait(&mut self, events: &mut Events) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let population = &shared.population;
        let ahead = std::mem::take(&mut self.ahead);
        let outcome = if !self.unfinished.is_empty() || (!ahead && population.runnable(self.boots))
        {
            look(&mut self.poll, events, Some(Duration::ZERO))
        } else {
            self.slice.disarm();
            let timeout = if ahead || population.held.load(Ordering::Acquire) {
                // No event comes when other processes have caught up, or when a snapshot is complete.
                Some(Duration::from_millis(1))
            } else {
                let now = self.clock.now();
                let due = self.timers.next();
                due.map(|at| Duration::from_nanos(at.saturating_sub(now)))
            };
            let (poll, boots) = (&mut self.poll, self.boots);
            shared
                .mailboxes
                .sleep(self.index, poll, events, timeout, || {
                    (!ahead && population.runnable(boots)) || shared.stopping.load(Ordering::SeqCst)
                })
        };
        outcome.map_err(|cause| Error::System {
            tried: "wait for events".into(),
            cause,
        })
    }

    /// The deadline of a request that arrives now.
    pub fn request_deadline(&mut self) -> u64 {
        let patience = u64::try_from(ANSWER_TIMEOUT.as_nanos()).unwrap_or(u64::MAX);
        self.clock.now().saturating_add(patience)
    }

    /// Fires the timers that are due.
    fn due(&mut self) {
        if self.timers.next().is_none() {
            return;
        }
        let now = self.clock.now();
        while let Some((at, timer)) = self.timers.due(now) {
            match timer {
                Timer::Guest(guest) => self.shared.population.tick(guest, at),
                Timer::Request(reply) => self.expire(reply),
                Timer::Accept(listener) => self.accept(listener),
            }
        }
    }
}
