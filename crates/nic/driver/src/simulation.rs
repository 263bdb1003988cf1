// SPDX-License-Identifier: Apache-2.0
//! A deterministic discrete-event simulation of hold policies: ports, their guests, one worker.
//!
//! It computes the notifications that a policy saves and the time that packets wait for it, without a machine's noise.
//! Its numbers are modelled. The guest behaves like Linux: a call wakes it after a delay, it polls until its ring is
//! empty, and then enables calls again.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

use vtax_nic::hold::{Controller, Nanos, NextDrain, PairHold, Release, RxBatch, TxRound};

use crate::arrivals::Arrivals;
use crate::stream::{Flow, Processor, Stage, Stream};

/// The delay of wake-ups of guests and the worker.
const WAKE_DELAY: Nanos = Nanos::from_micros(5);

/// The time that a guest needs for a packet.
const HANDLE_TIME: Nanos = Nanos(500);

const RING_SIZE: u16 = 256;

/// The traffic of the guests.
#[derive(Clone, Debug, PartialEq)]
pub enum Traffic {
    /// Guests receive.
    Receive(Arrivals),
    /// Guests receive, and acknowledge every second packet, as TCP does.
    ReceiveWithAcks(Arrivals),
    /// Guests send.
    Send(Arrivals),
    /// Peers send a request and guests answer. Each peer sends its next request when it has the answer.
    Transactions {
        /// Outstanding requests of each guest.
        outstanding: u32,
        /// The time from an answer to the next request.
        think: Nanos,
    },
    /// A TCP stream to or from the guest, with one processor for all its stages.
    Stream(Stream),
}

/// The settings of a simulation.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The traffic of the guests.
    pub traffic: Traffic,
    /// The number of guests, which differ only in their random numbers.
    pub ports: u32,
    /// Each port's budget.
    pub budget: Nanos,
    /// Simulated time.
    pub duration: Nanos,
}

/// The results of a simulation, for all ports together.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Packets that guests received.
    pub received: u64,
    /// Packets that guests sent.
    pub sent: u64,
    /// Bytes of a stream that were acknowledged.
    pub bytes: u64,
    /// RX calls.
    pub calls: u64,
    /// TX kicks.
    pub kicks: u64,
    /// Wake-ups of the worker by a deadline.
    pub timer_wakeups: u64,
    /// The wait of each received packet for its call, in ns, sorted.
    pub rx_holds: Vec<u64>,
    /// The wait of each sent packet for its drain, in ns, sorted.
    pub tx_waits: Vec<u64>,
}

impl Outcome {
    /// Calls and kicks.
    pub fn notifications(&self) -> u64 {
        self.calls + self.kicks
    }

    /// Calls and kicks for each packet.
    pub fn per_packet(&self) -> f64 {
        self.notifications() as f64 / (self.received + self.sent).max(1) as f64
    }
}

/// The value below which the given part of sorted values lies.
pub fn quantile(sorted: &[u64], part: f64) -> Nanos {
    let index = (sorted.len() as f64 * part) as usize;
    let found = sorted.get(index).or(sorted.last());
    Nanos(found.copied().unwrap_or(0))
}

/// Runs a simulation. `controller` makes each port's controller.
pub fn run(setup: &Setup, controller: impl Fn() -> Box<dyn Controller>) -> Outcome {
    let mut world = Simulation::default();
    for index in 0..setup.ports {
        let port = world.ports.len();
        let hold = PairHold::new(controller(), setup.budget);
        world.ports.push(Port::new(hold));
        let mut arrive = |arrivals: &Arrivals, what| {
            let times = arrivals.times(u64::from(index));
            let times = times.take_while(|at| *at < setup.duration);
            times.for_each(|at| world.plan(at, port, what));
        };
        match &setup.traffic {
            Traffic::Receive(arrivals) | Traffic::ReceiveWithAcks(arrivals) => {
                arrive(arrivals, EventKind::Arrive);
            }
            Traffic::Send(arrivals) => arrive(arrivals, EventKind::Submit),
            Traffic::Transactions { outstanding, think } => {
                let starts = (0..*outstanding).map(|n| Nanos(think.0 * u64::from(n + 1)));
                starts.for_each(|at| world.plan(at, port, EventKind::Arrive));
            }
            Traffic::Stream(_) => world.plan(Nanos::ZERO, port, EventKind::Write),
        }
    }
    while let Some(Reverse(event)) = world.events.pop() {
        if event.at >= setup.duration {
            break;
        }
        world.handle(event, &setup.traffic);
    }
    world.outcome.timer_wakeups = world.wakeups.len() as u64;
    world.outcome.rx_holds.sort_unstable();
    world.outcome.tx_waits.sort_unstable();
    world.outcome
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at: Nanos,
    /// Simultaneous events have the order in which they were scheduled.
    order: u64,
    port: usize,
    what: EventKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EventKind {
    /// A packet arrives for the guest.
    Arrive,
    /// The guest polls its RX ring.
    Poll,
    /// The guest submits a packet for sending.
    Submit,
    /// The worker sees a kick.
    Kick,
    /// The worker's deadline.
    Deadline,
    /// A stream's application writes.
    Write,
    /// A guest that was called wakes and handles its stream.
    Wake,
    /// A stage has handled bytes of a stream.
    End(Stage, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guest {
    Asleep,
    /// The guest was called, or polls.
    Awake,
}

struct Port {
    hold: PairHold,
    guest: Guest,
    /// Packets in the used ring that the guest has not seen.
    unseen: u32,
    handled: u64,
    /// The times at which the packets whose call is held were published.
    held: Vec<Nanos>,
    /// The times at which the packets in the available ring were put there.
    waiting: VecDeque<Nanos>,
    /// Whether the worker wants a kick.
    armed: bool,
    planned: Option<Nanos>,
    flow: Flow,
}

impl Port {
    fn new(hold: PairHold) -> Self {
        Self {
            hold,
            guest: Guest::Asleep,
            unseen: 0,
            handled: 0,
            held: Vec::new(),
            waiting: VecDeque::new(),
            armed: true,
            planned: None,
            flow: Flow::default(),
        }
    }
}

#[derive(Default)]
struct Simulation {
    ports: Vec<Port>,
    events: BinaryHeap<Reverse<Event>>,
    planned: u64,
    wakeups: BTreeSet<Nanos>,
    /// The processor that all stages of a stream share.
    processor: Processor,
    outcome: Outcome,
}

impl Simulation {
    fn plan(&mut self, at: Nanos, port: usize, what: EventKind) {
        self.planned += 1;
        self.events.push(Reverse(Event {
            at,
            order: self.planned,
            port,
            what,
        }));
    }

    fn handle(&mut self, event: Event, traffic: &Traffic) {
        let (at, index, what) = (event.at, event.port, event.what);
        if matches!(what, EventKind::Kick | EventKind::Deadline)
            && let Some(until) = self.processor.is_taken_until(at)
        {
            self.plan(until, index, what);
            return;
        }
        match what {
            EventKind::Arrive => self.arrive(at, index),
            EventKind::Poll => self.poll(at, index, traffic),
            EventKind::Submit => self.submit(at, index),
            EventKind::Kick => {
                let kicked = self.ports[index].hold.kicked(at, 1);
                self.call(at, index, kicked.rx);
                if kicked.drain {
                    self.drain(at, index, traffic);
                }
            }
            EventKind::Deadline => {
                let port = &mut self.ports[index];
                port.planned = None;
                let expired = port.hold.expired(at);
                if expired.rx.is_some() || expired.drain {
                    self.wakeups.insert(at);
                }
                self.call(at, index, expired.rx);
                if expired.drain {
                    self.drain(at, index, traffic);
                }
            }
            EventKind::Write | EventKind::Wake | EventKind::End(..) => {
                if let Traffic::Stream(stream) = traffic {
                    self.handle_stream(event, stream);
                }
            }
        }
        self.plan_deadline(index);
    }

    /// Handles an event of a stream.
    fn handle_stream(&mut self, event: Event, stream: &Stream) {
        let (at, index) = (event.at, event.port);
        let port = &mut self.ports[index];
        match event.what {
            EventKind::Write => {
                port.flow.write(stream);
                if let Some(every) = stream.every {
                    self.plan(at + every, index, EventKind::Write);
                }
            }
            EventKind::Wake => self.processor.wake(Stage::Guest),
            EventKind::End(stage, bytes) => {
                self.processor.ended(stage, bytes);
                let done = port.flow.end(stage, stream, at);
                if stage == Stage::Guest {
                    port.unseen = port.unseen.saturating_sub(1);
                }
                self.outcome.bytes += done.acknowledged;
                if let Some(next) = done.next {
                    self.processor.wake_next(next);
                }
                if done.to_guest {
                    self.arrive(at, index);
                }
                if done.from_guest {
                    self.submit(at, index);
                }
            }
            _ => {}
        }
        self.take_turn(at, index, stream);
    }

    /// Gives the processor to the stage that has the next turn.
    fn take_turn(&mut self, at: Nanos, index: usize, stream: &Stream) {
        let port = &mut self.ports[index];
        if port.flow.begins_to_send(stream) {
            self.processor.wake(Stage::Send);
        }
        while let Some(stage) = self.processor.next() {
            if let Some((cost, bytes)) = port.flow.start(stage, stream, at) {
                self.processor.starts(stage, at + cost);
                self.plan(at + cost, index, EventKind::End(stage, bytes));
                return;
            }
            self.processor.has_nothing(stage);
            if stage == Stage::Guest {
                port.guest = Guest::Asleep;
            }
        }
    }

    fn plan_deadline(&mut self, index: usize) {
        let port = &mut self.ports[index];
        if let Some(deadline) = port.hold.deadline()
            && port.planned.is_none_or(|planned| planned > deadline)
        {
            port.planned = Some(deadline);
            self.plan(deadline, index, EventKind::Deadline);
        }
    }

    fn arrive(&mut self, at: Nanos, index: usize) {
        let port = &mut self.ports[index];
        if port.unseen >= RING_SIZE.into() {
            return;
        }
        port.unseen += 1;
        self.outcome.received += 1;
        let wanted = port.guest == Guest::Asleep;
        if wanted {
            port.held.push(at);
        } else {
            self.outcome.rx_holds.push(0);
        }
        let free = RING_SIZE - u16::try_from(port.unseen).unwrap_or(RING_SIZE);
        let batch = RxBatch {
            packets: 1,
            free,
            ring_size: RING_SIZE,
            wanted,
        };
        let release = port.hold.received(at, batch);
        self.call(at, index, release);
    }

    fn call(&mut self, at: Nanos, index: usize, release: Option<Release>) {
        let port = &mut self.ports[index];
        if release.is_some() && port.guest == Guest::Asleep {
            port.guest = Guest::Awake;
            self.outcome.calls += 1;
            let holds = port.held.drain(..).map(|since| at.since(since).0);
            self.outcome.rx_holds.extend(holds);
            let looks = if port.flow.is_used() {
                EventKind::Wake
            } else {
                EventKind::Poll
            };
            self.plan(at + WAKE_DELAY, index, looks);
        }
    }

    fn poll(&mut self, at: Nanos, index: usize, traffic: &Traffic) {
        let port = &mut self.ports[index];
        if port.unseen == 0 {
            port.guest = Guest::Asleep;
            return;
        }
        port.unseen -= 1;
        port.handled += 1;
        let answers = match traffic {
            Traffic::Transactions { .. } => true,
            Traffic::ReceiveWithAcks(_) => port.handled.is_multiple_of(2),
            Traffic::Receive(_) | Traffic::Send(_) | Traffic::Stream(_) => false,
        };
        if answers {
            self.plan(at + HANDLE_TIME, index, EventKind::Submit);
        }
        self.plan(at + HANDLE_TIME, index, EventKind::Poll);
    }

    fn submit(&mut self, at: Nanos, index: usize) {
        let port = &mut self.ports[index];
        if port.waiting.len() >= RING_SIZE.into() {
            return;
        }
        self.outcome.sent += 1;
        port.waiting.push_back(at);
        if port.armed {
            port.armed = false;
            self.outcome.kicks += 1;
            self.plan(at + WAKE_DELAY, index, EventKind::Kick);
        }
    }

    fn drain(&mut self, at: Nanos, index: usize, traffic: &Traffic) {
        let port = &mut self.ports[index];
        let packets = u32::try_from(port.waiting.len()).unwrap_or(u32::MAX);
        let waits = port.waiting.drain(..).map(|since| at.since(since).0);
        self.outcome.tx_waits.extend(waits);
        let round = TxRound {
            packets,
            ring_size: RING_SIZE,
        };
        port.armed = port.hold.drained(at, round) == NextDrain::OnKick;
        match traffic {
            Traffic::Transactions { think, .. } => {
                for _ in 0..packets {
                    self.plan(at + *think, index, EventKind::Arrive);
                }
            }
            Traffic::Stream(stream) => {
                if packets > 0 {
                    self.processor.wake_next(Stage::of_drained(stream));
                    self.take_turn(at, index, stream);
                }
            }
            Traffic::Receive(_) | Traffic::ReceiveWithAcks(_) | Traffic::Send(_) => {}
        }
    }
}
