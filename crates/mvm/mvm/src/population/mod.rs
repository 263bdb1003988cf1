// SPDX-License-Identifier: Apache-2.0
//! A population of guests: their states, their requests and their turns.
//!
//! An idle guest is a stored state (parked) or a slot with its devices (live): no thread, no timer, no descriptor of
//! its own beyond what KVM needs. Input makes it active; an active guest waits for its turn in one queue, ordered by
//! guests' processor time.

pub mod capacity;
pub(crate) mod memory;
mod queue;
pub mod share;
pub mod snapshot;
pub mod worker;

use crate::error::{Error, Result};
use crate::image::Image;
use crate::machine::devices::{Devices, MAX_WIRE};
use crate::machine::kvm::{Arena, Host, Slot, Tenancy};
use crate::machine::state::Reset;
use crate::machine::{Clock, Fault};
use memory::Reserve;
use queue::Queue;
use share::Share;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// The longest answer that the front passes on, in bytes.
pub const MAX_ANSWER: usize = 4096;

/// Requests that wait for one guest; more are refused.
const MAX_REQUESTS: usize = 16;

/// The way in which guests are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    /// Each keeps its KVM objects.
    Live,
    /// Halted guests are stored in compact form; each worker has one slot in which they take turns.
    Parked,
}

/// The destination of an answer: a worker, its connection, and the request's number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    worker: usize,
    connection: usize,
    request: u64,
}

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// A line that the guest sent.
    Line(Vec<u8>),
    /// Serial output for a connection that listens to the guest.
    Output(Vec<u8>),
    /// The guest sent more than [`MAX_ANSWER`] bytes without ending the line.
    TooLong,
    /// The guest has stopped for good.
    Dead(Fault),
}

/// The reason for which a request is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No guest has this number.
    #[error("there is no guest of this number")]
    NoSuchGuest,
    /// The guest has stopped for good.
    #[error("this guest has stopped: {0}")]
    Dead(Fault),
    /// Too many requests wait for this guest.
    #[error("too many requests wait for this guest")]
    Busy,
}

#[derive(Debug)]
struct QueuedRequest {
    request: Vec<u8>,
    /// `None` once the request has expired. The guest's answer to it must still be separated from the next one.
    reply: Option<ReplyTo>,
}

/// The storage of idle guests.
#[derive(Debug)]
enum Storage {
    /// A slot for each guest, with its memory in the arena.
    Live(Arc<Arena>),
    /// The difference from this state at reset.
    Parked(Box<Reset>),
}

/// A guest's state, stored or in a slot.
#[derive(Debug)]
enum GuestState {
    Stored(Box<[u8]>),
    LiveGuest(Box<LiveGuest>),
}

#[derive(Debug)]
struct LiveGuest {
    slot: Slot,
    devices: Devices,
}

#[derive(Debug)]
enum Guest {
    Idle(GuestState),
    Active(Box<Active>),
    Dead(Fault),
}

/// A guest with requests or work.
#[derive(Debug)]
struct Active {
    /// `None` while a worker runs the guest.
    body: Option<GuestState>,
    queued: bool,
    /// Input of the serial line.
    inbox: Vec<u8>,
    asks: VecDeque<QueuedRequest>,
    answer: Vec<u8>,
    /// Its processor time in ns, as the queue counts it.
    runtime: u64,
}

impl Active {
    fn new(body: GuestState) -> Self {
        Self {
            body: Some(body),
            queued: false,
            inbox: Vec::new(),
            asks: VecDeque::new(),
            answer: Vec::new(),
            runtime: 0,
        }
    }
}

/// The settings of a population.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The image of every guest.
    pub image: Image,
    /// The number of the first guest.
    pub first: u32,
    /// The number of guests.
    pub count: u32,
    /// Live or parked.
    pub holding: Holding,
}

/// Counts of guests by state, and of their work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// All guests.
    pub guests: u32,
    /// Guests whose boot sector has run until its first halt or slice end.
    pub booted: u32,
    /// Guests that have stopped for good.
    pub dead: u32,
    /// Turns that workers gave to guests.
    pub turns: u64,
    /// Bytes of all stored states, without allocator overhead.
    pub stored_bytes: u64,
    /// Serial output beyond what one slice may send; it was dropped.
    pub lost_output: u64,
}

/// The guests.
#[derive(Debug)]
pub struct Population {
    plan: Plan,
    host: Host,
    storage: Storage,
    reserve: Reserve,
    clock: Clock,
    guests: Vec<Mutex<Guest>>,
    queue: Mutex<Queue>,
    /// The next guest to boot, as an offset from the first.
    next: AtomicU32,
    booted: AtomicU32,
    dead: AtomicU32,
    turns: AtomicU64,
    lost_output: AtomicU64,
    /// Guests with a running timer, and its deadline.
    ticking: Mutex<HashMap<u32, u64>>,
    listeners: Mutex<HashMap<u32, ReplyTo>>,
    listening: AtomicU32,
    /// Whether workers pause because a snapshot is written.
    held: AtomicBool,
    /// The number of guests that may boot. Sequentially consistent, as the workers' sleep is, so that no wake-up is
    /// lost.
    admitted: AtomicU32,
}

/// A poisoned lock means that a thread panicked, which is a bug. Its data is still consistent, because every change
/// under a lock here is a single assignment or push.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Population {
    /// Lays out a population whose guests boot as soon as workers run.
    ///
    /// # Errors
    /// [`Error::Kvm`] when the host has no usable KVM, [`Error::Configuration`] when the plan is
    /// larger than one process can hold, [`Error::Exhausted`] when memory is.
    pub fn new(plan: Plan) -> Result<Self> {
        let host = Host::open()?;
        check_capacity(&plan)?;
        Reserve::of_this_host()?.admit(plan.count, plan.holding)?;
        let storage = match plan.holding {
            Holding::Live => Storage::Live(Arena::new(plan.count as usize)?),
            Holding::Parked => Storage::Parked(Box::new(reset_state(&host, &plan.image)?)),
        };
        let mut guests = Vec::new();
        guests
            .try_reserve_exact(plan.count as usize)
            .map_err(|_| memory::exhausted(plan.count))?;
        guests.extend(
            (0..plan.count).map(|_| Mutex::new(Guest::Idle(GuestState::Stored(Box::default())))),
        );
        Self::assemble(plan, host, storage, guests, Clock::host(0), 0)
    }

    fn assemble(
        plan: Plan,
        host: Host,
        storage: Storage,
        guests: Vec<Mutex<Guest>>,
        clock: Clock,
        booted: u32,
    ) -> Result<Self> {
        let admitted = AtomicU32::new(plan.count);
        Ok(Self {
            plan,
            host,
            storage,
            reserve: Reserve::of_this_host()?,
            clock,
            guests,
            queue: Mutex::default(),
            next: AtomicU32::new(booted),
            booted: AtomicU32::new(booted),
            dead: AtomicU32::new(0),
            turns: AtomicU64::new(0),
            lost_output: AtomicU64::new(0),
            ticking: Mutex::default(),
            listeners: Mutex::default(),
            listening: AtomicU32::new(0),
            held: AtomicBool::new(false),
            admitted,
        })
    }

    /// Shares processor time with the guests of other processes from now on.
    pub fn join(&self, share: Share) {
        lock(&self.queue).join(share);
    }

    /// The settings of the population.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Limits boots to the first `count` guests. The default is all guests. A guest that gets input boots in any case.
    /// Call [`worker::Workers::admit`] once workers run.
    pub fn admit(&self, count: u32) {
        self.admitted
            .store(count.min(self.plan.count), Ordering::SeqCst);
    }

    /// Whether a guest waits to be booted.
    fn boots_wait(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.admitted.load(Ordering::SeqCst)
    }

    /// Takes the next guest to boot, as an offset from the first.
    fn next_boot(&self) -> Option<u32> {
        let admitted = self.admitted.load(Ordering::Acquire);
        self.next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
                (next < admitted).then_some(next + 1)
            })
            .ok()
    }

    /// Counts guests and work, without reading the guests.
    #[must_use]
    pub fn census(&self) -> Census {
        Census {
            guests: self.plan.count,
            booted: self.booted.load(Ordering::Relaxed),
            dead: self.dead.load(Ordering::Relaxed),
            turns: self.turns.load(Ordering::Relaxed),
            stored_bytes: 0,
            lost_output: self.lost_output.load(Ordering::Relaxed),
        }
    }

    /// As [`Population::census`], with the stored bytes, for which it reads every guest.
    #[must_use]
    pub fn full_census(&self) -> Census {
        let stored = self.guests.iter().map(|guest| match &*lock(guest) {
            Guest::Idle(GuestState::Stored(stored)) => stored.len() as u64,
            _ => 0,
        });
        Census {
            stored_bytes: stored.sum(),
            ..self.census()
        }
    }

    fn guest(&self, number: u32) -> Option<&Mutex<Guest>> {
        self.guests
            .get(number.checked_sub(self.plan.first)? as usize)
    }

    /// Sends `request` to a guest's serial port. The guest's next line goes to `reply`.
    fn ask(
        &self,
        number: u32,
        request: Vec<u8>,
        reply: ReplyTo,
    ) -> std::result::Result<(), Refusal> {
        let mut guest = lock(self.guest(number).ok_or(Refusal::NoSuchGuest)?);
        let active = activate(&mut guest)?;
        if active.asks.len() >= MAX_REQUESTS {
            return Err(Refusal::Busy);
        }
        let first = active.asks.is_empty();
        if first {
            active.inbox.extend(&request);
        }
        active.asks.push_back(QueuedRequest {
            request,
            reply: Some(reply),
        });
        if first {
            self.enqueue(number, active);
        }
        Ok(())
    }

    /// Sends bytes to a guest's serial port without a request for an answer.
    fn send(&self, number: u32, bytes: &[u8]) -> std::result::Result<(), Refusal> {
        let mut guest = lock(self.guest(number).ok_or(Refusal::NoSuchGuest)?);
        let active = activate(&mut guest)?;
        let room = MAX_WIRE.saturating_sub(active.inbox.len());
        active.inbox.extend(bytes.iter().take(room));
        self.enqueue(number, active);
        Ok(())
    }

    /// Sends all output of the guest to `reply` from now on. A guest has one listener, the last.
    fn listen(&self, number: u32, reply: ReplyTo) -> std::result::Result<(), Refusal> {
        match &*lock(self.guest(number).ok_or(Refusal::NoSuchGuest)?) {
            Guest::Dead(fault) => return Err(Refusal::Dead(*fault)),
            _ => lock(&self.listeners).insert(number, reply),
        };
        self.listening.store(1, Ordering::Release);
        Ok(())
    }

    fn unlisten(&self, number: u32, reply: ReplyTo) {
        let mut listeners = lock(&self.listeners);
        if listeners.get(&number) == Some(&reply) {
            listeners.remove(&number);
        }
        self.listening
            .store(u32::from(!listeners.is_empty()), Ordering::Release);
    }

    /// Removes `reply` from the guest's requests.
    fn expire(&self, number: u32, reply: ReplyTo) {
        let Some(guest) = self.guest(number) else {
            return;
        };
        if let Guest::Active(active) = &mut *lock(guest) {
            let asked = active.asks.iter().position(|ask| ask.reply == Some(reply));
            if let Some(later @ 1..) = asked {
                // The request was never sent, so no answer will come.
                active.asks.remove(later);
            } else if let (Some(_), Some(first)) = (asked, active.asks.front_mut()) {
                first.reply = None;
            }
        }
    }

    /// Activates and queues a guest whose timer is due.
    fn tick(&self, number: u32, deadline: u64) {
        {
            let mut ticking = lock(&self.ticking);
            if ticking.get(&number) != Some(&deadline) {
                return;
            }
            ticking.remove(&number);
        }
        if let Some(guest) = self.guest(number)
            && let Ok(active) = activate(&mut lock(guest))
        {
            self.enqueue(number, active);
        }
    }

    fn enqueue(&self, number: u32, active: &mut Active) {
        if active.body.is_some() && !active.queued {
            active.queued = true;
            active.runtime = lock(&self.queue).push(number, active.runtime);
        }
    }

    /// Whether a worker has a turn to give. `boots`: the worker boots guests.
    fn runnable(&self, boots: bool) -> bool {
        !self.held.load(Ordering::Acquire)
            && (boots && self.boots_wait() || !lock(&self.queue).is_empty())
    }

    fn now(&self) -> u64 {
        self.clock.clone().now()
    }
}

/// Makes a guest active.
fn activate(guest: &mut Guest) -> std::result::Result<&mut Active, Refusal> {
    match guest {
        Guest::Dead(fault) => Err(Refusal::Dead(*fault)),
        Guest::Active(active) => Ok(active),
        Guest::Idle(body) => {
            let body = std::mem::replace(body, GuestState::Stored(Box::default()));
            *guest = Guest::Active(Box::new(Active::new(body)));
            match guest {
                Guest::Active(active) => Ok(active),
                _ => Err(Refusal::NoSuchGuest),
            }
        }
    }
}

/// Refuses a live plan that this process cannot hold.
fn check_capacity(plan: &Plan) -> Result<()> {
    if plan.holding == Holding::Parked {
        return Ok(());
    }
    let capacity = capacity::Capacity::of_this_process();
    if plan.count <= capacity.guests {
        return Ok(());
    }
    let capacity::Capacity { guests, limit } = capacity;
    Err(Error::configuration(
        format!("{} live guests in one process", plan.count),
        format!("{limit} allow {guests}; use more shards"),
    ))
}

fn reset_state(host: &Host, image: &Image) -> Result<Reset> {
    let arena = Arena::new(1)?;
    Slot::new(host, &arena, 0, image, Tenancy::Turns)?.reset_state(image)
}
