// SPDX-License-Identifier: Apache-2.0
//! The open loop: requests are sent when they are due, independent of the server.

use super::arrivals::Arrivals;
use super::connection::Progress;
use super::pool::Pool;
use super::report::{Errors, Report, Times};
use super::{Arguments, nanoseconds, seconds, timer_resolution};
use std::collections::VecDeque;
use std::ops::Range;
use vtax_host::HostError;
use vtax_observe::clock::process_cpu;

/// Between two checks of the timeout, in nanoseconds.
const TIMEOUT_CHECK_INTERVAL: u64 = 50_000_000;

/// The counts of a run.
struct Count {
    /// The measured part, in nanoseconds since the start.
    window: Range<u64>,
    latency: Times,
    lag: Times,
    errors: Errors,
    requests: u64,
    bytes: u64,
    due: u64,
    last_answer: Option<u64>,
}

impl Count {
    fn new(window: Range<u64>) -> Self {
        Self {
            window,
            latency: Times::new(),
            lag: Times::new(),
            errors: Errors::default(),
            requests: 0,
            bytes: 0,
            due: 0,
            last_answer: None,
        }
    }

    /// Returns the counts if a time is in the window. A request counts by the time it was due.
    fn at(&mut self, time: u64) -> Option<&mut Self> {
        self.window.contains(&time).then_some(self)
    }

    fn received(&mut self, bytes: u64, now: u64) {
        if let Some(count) = self.at(now) {
            count.bytes += bytes;
        }
    }

    fn finished(&mut self, refused: bool, due: u64, now: u64) {
        // The rate is of answers within the window; the latency, of requests due within it.
        if let (false, Some(count)) = (refused, self.at(now)) {
            count.requests += 1;
        }
        match self.at(due) {
            Some(count) if refused => count.errors.status += 1,
            Some(count) => {
                count.latency.record(now.saturating_sub(due));
                count.last_answer = Some(now.saturating_sub(count.window.start));
            }
            None => {}
        }
    }

    fn failed(&mut self, due: u64) {
        if let Some(count) = self.at(due) {
            count.errors.connection += 1;
        }
    }

    fn timed_out(&mut self, due: u64, now: u64) {
        if let Some(count) = self.at(due) {
            count.errors.timeout += 1;
            count.latency.record(now.saturating_sub(due));
        }
    }

    /// Adds requests that were due and never sent: without them a saturated server would look better.
    fn unsent(&mut self, (due, first): (u64, bool), now: u64) {
        if let Some(count) = self.at(due) {
            count.due += u64::from(first);
            count.errors.unsent += 1;
            count.latency.record(now.saturating_sub(due));
        }
    }
}

/// Requests that are due and not sent.
struct Pending {
    arrivals: Arrivals,
    /// Requests whose connection was closed.
    again: VecDeque<u64>,
}

impl Pending {
    fn peek(&self) -> Option<u64> {
        let again = self.again.front().copied();
        again.or_else(|| self.arrivals.peek())
    }

    /// The next request, and whether this is its first attempt.
    fn take(&mut self) -> Option<(u64, bool)> {
        let again = self.again.pop_front().map(|due| (due, false));
        again.or_else(|| self.arrivals.next().map(|due| (due, true)))
    }
}

/// Runs to the end of the window, and until every request that was due is answered or timed out.
pub fn run(arguments: &Arguments, mut pool: Pool) -> Result<Report, HostError> {
    let cpu_before = process_cpu();
    let (rate, warmup) = (arguments.rate, nanoseconds(arguments.warmup));
    let end = warmup + nanoseconds(arguments.duration);
    let mut count = Count::new(warmup..end);
    let mut pending = Pending {
        arrivals: Arrivals::new(arguments.arrival, rate, arguments.seed, end),
        again: VecDeque::new(),
    };
    let timeout = nanoseconds(arguments.timeout);
    let mut idle: Vec<usize> = Vec::new();
    let mut ready = Vec::new();
    let mut next_check = TIMEOUT_CHECK_INTERVAL;
    let mut in_flight = 0_u64;
    loop {
        let mut now = pool.now();
        while pending.peek().is_some_and(|due| due <= now) {
            // The connection that was used last is used first, which keeps few connections open.
            let opened = match idle.pop() {
                Some(slot) => Ok(slot),
                None => match pool.open() {
                    None => break,
                    Some(opened) => opened,
                },
            };
            let Some((due, first)) = pending.take() else {
                break;
            };
            now = pool.now();
            if let (true, Some(count)) = (first, count.at(due)) {
                count.due += 1;
            }
            let Ok(slot) = opened else {
                count.failed(due);
                continue;
            };
            if let (true, Some(count)) = (first, count.at(due)) {
                let free_since = pool
                    .get(slot)
                    .map_or(due, |connection| connection.idle_since);
                count.lag.record(now.saturating_sub(due.max(free_since)));
            }
            match pool.begin(slot, due, now) {
                Ok(()) => in_flight += 1,
                Err(_) => {
                    let stale = pool
                        .get(slot)
                        .is_some_and(|connection| connection.may_be_stale());
                    pool.close(slot);
                    if stale {
                        pending.again.push_back(due)
                    } else {
                        count.failed(due)
                    }
                }
            }
        }
        if now >= next_check {
            next_check = now + TIMEOUT_CHECK_INTERVAL;
            let late: Vec<(usize, u64)> = pool
                .busy()
                .filter(|(_, connection)| now.saturating_sub(connection.sent) > timeout)
                .map(|(slot, connection)| (slot, connection.due))
                .collect();
            for (slot, due) in late {
                pool.close(slot);
                in_flight -= 1;
                count.timed_out(due, now);
            }
        }
        let waiting = pending.peek();
        let is_done = waiting.is_none() && in_flight == 0;
        if now >= end && (is_done || now >= end + timeout) {
            break;
        }
        // A request that is due without a free connection waits for an event.
        let wake = waiting
            .filter(|due| *due > now)
            .unwrap_or(u64::MAX)
            .min(next_check)
            .min(if now < end { end } else { end + timeout });
        pool.wait(wake, &mut ready)?;
        for &slot in &ready {
            let Some((progress, due)) = pool.advance(slot) else {
                continue;
            };
            let now = pool.now();
            match progress {
                Progress::Waiting(bytes) => count.received(bytes, now),
                Progress::Done {
                    bytes,
                    refused,
                    reusable,
                } => {
                    count.received(bytes, now);
                    count.finished(refused.is_some(), due, now);
                    in_flight -= 1;
                    if reusable && let Some(connection) = pool.get(slot) {
                        connection.idle_since = now;
                        idle.push(slot);
                    }
                }
                Progress::Closed => idle.retain(|free| *free != slot),
                Progress::Stale => {
                    pending.again.push_back(due);
                    in_flight -= 1;
                }
                Progress::Failed(_) => {
                    count.failed(due);
                    in_flight -= 1;
                }
            }
        }
    }
    let stopped = pool.now();
    for (_, connection) in pool.busy() {
        count.timed_out(connection.due, stopped);
    }
    while let Some(request) = pending.take() {
        count.unsent(request, stopped);
    }
    Ok(Report {
        mode: "open".to_owned(),
        rate: Some(rate),
        seconds: arguments.duration,
        requests: count.requests,
        bytes: count.bytes,
        due: Some(count.due),
        last_answer: count.last_answer.map(seconds),
        errors: count.errors,
        latency: count.latency.summary(),
        histogram: count.latency.encoded(),
        lag: Some(count.lag.summary()),
        timer: timer_resolution(),
        connections: pool.opened,
        cpu_seconds: process_cpu().saturating_since(cpu_before).as_secs_f64(),
        download_seconds: Vec::new(),
    })
}
