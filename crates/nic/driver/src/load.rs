// SPDX-License-Identifier: Apache-2.0
//! Traffic between drivers over a real back end.

use std::ops::{Add, Sub};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use vtax_nic::hold::Nanos;

use crate::arrivals::Arrivals;
use crate::nic::{Counts, Nic, wait_for_any};
use crate::probe::{self, Reception, Stamp};

/// Time limit of the wait for the last frames.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);

/// The most frames that a receiver takes before it polls another NIC, as in NAPI.
const RECEIVE_BUDGET: usize = 64;

const A: [u8; 6] = [2, 0, 0, 0, 0, 1];
const B: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// The result of a stream, for all links together.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    /// Frames that were due to be sent.
    pub due: u64,
    /// Frames that found the sender's ring full.
    pub refused: u64,
    /// The senders' counts.
    pub sender: Counts,
    /// The receivers' counts.
    pub receiver: Counts,
    /// Frames received.
    pub received: u64,
    /// Frames lost on the way.
    pub lost: u64,
    /// Frames repeated or out of order.
    pub disordered: u64,
    /// Delays from the due time to reception, in ns, sorted.
    pub delays: Vec<u64>,
}

/// Restricts this thread to one processor, if the machine has it.
pub fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    // On failure any other processor is used.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// Sends open-loop from each sender to the receiver of the same index. The sending thread spins on processor
/// `sender_cpu`, and the receiving thread sleeps between calls on `receiver_cpu`. With one processor for both, the
/// sender yields.
pub fn stream(
    senders: &mut [Nic],
    receivers: &mut [Nic],
    arrivals: &Arrivals,
    (frame_len, duration): (usize, Nanos),
    (sender_cpu, receiver_cpu): (usize, usize),
) -> Stream {
    let before = (sum(senders), sum(receivers));
    let stop = AtomicBool::new(false);
    let mut outcome = Stream::default();
    let seen = std::thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            pin(receiver_cpu);
            receive(receivers, &stop)
        });
        let sending = scope.spawn(|| {
            pin(sender_cpu);
            let pause = if sender_cpu == receiver_cpu {
                std::thread::yield_now
            } else {
                std::hint::spin_loop
            };
            send(senders, arrivals, (frame_len, duration), pause)
        });
        (outcome.due, outcome.refused) = sending.join().unwrap_or_default();
        std::thread::sleep(DRAIN_TIMEOUT);
        stop.store(true, Ordering::Release);
        receiving.join().unwrap_or_default()
    });
    for seen in seen {
        outcome.received += seen.frames;
        outcome.lost += seen.lost;
        outcome.disordered += seen.disordered;
        outcome.delays.extend(seen.delays);
    }
    outcome.delays.sort_unstable();
    outcome.sender = sum(senders).with(before.0, u64::sub);
    outcome.receiver = sum(receivers).with(before.1, u64::sub);
    outcome
}

fn send(
    nics: &mut [Nic],
    arrivals: &Arrivals,
    (frame_len, duration): (usize, Nanos),
    pause: fn(),
) -> (u64, u64) {
    let mut times: Vec<_> = (0u64..)
        .zip(nics)
        .map(|(seed, nic)| (arrivals.times(seed).peekable(), nic, 0))
        .collect();
    let (mut due, mut refused) = (0, 0);
    let mut frame = Vec::new();
    let start = probe::now();
    loop {
        let next = (0..times.len())
            .filter_map(|index| Some((times.get_mut(index)?.0.peek().copied()?, index)))
            .min();
        let Some((at, index)) = next.filter(|(at, _)| *at < duration) else {
            break;
        };
        let at = start + at;
        while probe::now() < at {
            pause();
        }
        let Some((times, nic, number)) = times.get_mut(index) else {
            break;
        };
        times.next();
        let stamp = Stamp {
            number: *number,
            sent: at,
        };
        probe::write(&mut frame, B, A, frame_len, stamp);
        due += 1;
        if nic.send(0, &frame) {
            *number += 1;
        } else {
            refused += 1;
        }
    }
    (due, refused)
}

fn receive(nics: &mut [Nic], stop: &AtomicBool) -> Vec<Reception> {
    let mut seen = vec![Reception::default(); nics.len()];
    while !stop.load(Ordering::Acquire) {
        let mut busy = false;
        for (nic, seen) in nics.iter_mut().zip(&mut seen) {
            let frames = nic.receive(0, RECEIVE_BUDGET, |frame| seen.frame(frame, probe::now()));
            busy |= frames > 0;
        }
        if !busy {
            wait_for_any(nics, Duration::from_millis(5));
        }
    }
    seen
}

/// The result of transactions.
#[derive(Clone, Debug, Default)]
pub struct Transactions {
    /// Round trips, in ns, sorted.
    pub round_trips: Vec<u64>,
    /// Round trips that took longer than a second.
    pub lost: u64,
    /// The server's counts.
    pub server: Counts,
}

/// Measures transactions one after the other: a spinning client sends a request and waits for the answer, and the
/// server sleeps between requests, as a guest does.
pub fn ping_pong(
    client: &mut Nic,
    server: &mut Nic,
    duration: Duration,
    (client_cpu, server_cpu): (usize, usize),
) -> Transactions {
    let before = sum(std::slice::from_mut(server));
    let stop = AtomicBool::new(false);
    let mut outcome = Transactions::default();
    std::thread::scope(|scope| {
        let serving = &mut *server;
        scope.spawn(|| {
            pin(server_cpu);
            answer(serving, &stop);
        });
        let asking = scope.spawn(|| {
            pin(client_cpu);
            ask(client, duration)
        });
        (outcome.round_trips, outcome.lost) = asking.join().unwrap_or_default();
        stop.store(true, Ordering::Release);
    });
    outcome.round_trips.sort_unstable();
    outcome.server = sum(std::slice::from_mut(server)).with(before, u64::sub);
    outcome
}

fn ask(client: &mut Nic, duration: Duration) -> (Vec<u64>, u64) {
    let (mut round_trips, mut lost) = (Vec::new(), 0);
    let mut frame = Vec::new();
    let start = std::time::Instant::now();
    for number in 0.. {
        if start.elapsed() > duration {
            break;
        }
        let sent = probe::now();
        probe::write(&mut frame, B, A, 64, Stamp { number, sent });
        client.send(0, &frame);
        let mut back = false;
        while !back && probe::now().since(sent) < Nanos::from_secs(1) {
            client.receive(0, RECEIVE_BUDGET, |frame| {
                back |= probe::read(frame).is_some_and(|stamp| stamp.number == number);
            });
        }
        if back {
            round_trips.push(probe::now().since(sent).0);
        } else {
            lost += 1;
        }
    }
    (round_trips, lost)
}

fn answer(server: &mut Nic, stop: &AtomicBool) {
    let (mut requests, mut frame) = (Vec::new(), Vec::new());
    while !stop.load(Ordering::Acquire) {
        let frames = server.receive(0, RECEIVE_BUDGET, |frame| {
            requests.extend(probe::read(frame))
        });
        for stamp in requests.drain(..) {
            probe::write(&mut frame, A, B, 64, stamp);
            server.send(0, &frame);
        }
        if frames == 0 {
            server.wait(0, Duration::from_millis(5));
        }
    }
}

fn sum(nics: &mut [Nic]) -> Counts {
    let each = nics.iter_mut().map(Nic::counts);
    each.fold(Counts::default(), |sum, one| sum.with(one, u64::add))
}
