//! Open loop: requests go out when they are due, whatever the server does.

use super::arrivals::Arrivals;
use super::connection::Progress;
use super::pool::Pool;
use super::report::{Errors, Report, Times};
use super::{Arguments, nanoseconds};
use std::collections::VecDeque;
use vtax_host::HostError;
use vtax_observe::clock::process_cpu;

/// How often requests are checked against the timeout, in nanoseconds.
const TIMEOUT_CHECK: u64 = 50_000_000;

/// Requests of one run, as far as they count.
struct Count {
    /// The measured part, in nanoseconds since the start.
    window: std::ops::Range<u64>,
    latency: Times,
    lag: Times,
    errors: Errors,
    requests: u64,
    bytes: u64,
    due: u64,
}

impl Count {
    /// Whether a request that was due then counts.
    fn counts(&self, due: u64) -> bool {
        self.window.contains(&due)
    }

    fn finished(&mut self, status: u16, due: u64, now: u64) {
        if status == 200 {
            // The rate is of answers within the window; the latency, of requests due within it.
            if self.window.contains(&now) {
                self.requests += 1;
            }
            if self.counts(due) {
                self.latency.record(now.saturating_sub(due));
            }
        } else if self.counts(due) {
            self.errors.status += 1;
        }
    }

    fn failed(&mut self, due: u64) {
        if self.counts(due) {
            self.errors.connection += 1;
        }
    }
}

/// Requests that are due and not sent.
struct Pending {
    arrivals: Arrivals,
    /// Those whose connection turned out to be closed.
    again: VecDeque<u64>,
}

impl Pending {
    fn peek(&self) -> Option<u64> {
        self.again.front().copied().or_else(|| self.arrivals.peek())
    }

    /// The next one, and whether it is taken for the first time.
    fn take(&mut self) -> Option<(u64, bool)> {
        let again = self.again.pop_front().map(|due| (due, false));
        again.or_else(|| self.arrivals.next().map(|due| (due, true)))
    }
}

/// Runs until the last request that was due is answered or given up.
pub fn run(arguments: &Arguments) -> Result<Report, HostError> {
    let begin = nanoseconds(arguments.warmup);
    let end = begin + nanoseconds(arguments.duration);
    let timeout = nanoseconds(arguments.timeout);
    let arrivals = Arrivals::new(arguments.arrival, arguments.rate, arguments.seed, end);
    let mut pending = Pending {
        arrivals,
        again: VecDeque::new(),
    };
    let mut pool = Pool::new(
        arguments.address,
        arguments.request(),
        arguments.connections,
    )?;
    let mut count = Count {
        window: begin..end,
        latency: Times::new(),
        lag: Times::new(),
        errors: Errors::default(),
        requests: 0,
        bytes: 0,
        due: 0,
    };
    let mut idle: Vec<usize> = Vec::new();
    let mut ready = Vec::new();
    let mut next_check = TIMEOUT_CHECK;
    let mut in_flight = 0_u64;
    loop {
        let mut now = pool.now();
        while pending.peek().is_some_and(|due| due <= now) {
            // The connection used last is taken first: few are open where few are needed.
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
            count.due += u64::from(first && count.counts(due));
            let Ok(slot) = opened else {
                count.failed(due);
                continue;
            };
            if first && count.counts(due) {
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
            next_check = now + TIMEOUT_CHECK;
            let late: Vec<(usize, u64)> = pool
                .busy()
                .filter(|(_, connection)| now.saturating_sub(connection.sent) > timeout)
                .map(|(slot, connection)| (slot, connection.due))
                .collect();
            for (slot, due) in late {
                pool.close(slot);
                in_flight -= 1;
                if count.counts(due) {
                    count.errors.timeout += 1;
                    count.latency.record(now.saturating_sub(due));
                }
            }
        }
        let waiting = pending.peek();
        if (waiting.is_none() && in_flight == 0) || now >= end + timeout {
            break;
        }
        // A request that is due but finds no connection waits for an event, not for its moment.
        let wake = waiting
            .filter(|due| *due > now)
            .unwrap_or(u64::MAX)
            .min(next_check)
            .min(end + timeout);
        pool.wait(wake, &mut ready)?;
        for &slot in &ready {
            let Some((progress, due)) = pool.advance(slot) else {
                continue;
            };
            let now = pool.now();
            match progress {
                Progress::Waiting(bytes) => {
                    count.bytes += if count.window.contains(&now) {
                        bytes
                    } else {
                        0
                    }
                }
                Progress::Done {
                    bytes,
                    status,
                    reusable,
                } => {
                    count.bytes += if count.window.contains(&now) {
                        bytes
                    } else {
                        0
                    };
                    count.finished(status, due, now);
                    in_flight -= 1;
                    if let Some(connection) = pool.get(slot).filter(|_| reusable) {
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
    for (_, connection) in pool
        .busy()
        .filter(|(_, connection)| count.window.contains(&connection.due))
    {
        count.errors.timeout += 1;
        count.latency.record(stopped.saturating_sub(connection.due));
    }
    // What was due and never sent waited too: leaving it out would flatter a saturated server.
    while let Some((due, first)) = pending.take() {
        if (begin..end).contains(&due) {
            count.due += u64::from(first);
            count.errors.unsent += 1;
            count.latency.record(stopped.saturating_sub(due));
        }
    }
    Ok(Report {
        mode: "open".to_owned(),
        seconds: arguments.duration,
        requests: count.requests,
        bytes: count.bytes,
        due: Some(count.due),
        errors: count.errors,
        latency: count.latency.summary(),
        lag: Some(count.lag.summary()),
        connections: pool.opened,
        cpu_seconds: process_cpu().as_secs_f64(),
        download_seconds: Vec::new(),
    })
}
