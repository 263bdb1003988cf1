// SPDX-License-Identifier: Apache-2.0
//! The hold-time lease of one port: from the guest's requests and the operator's policy to the budget in force.
//!
//! The manager is a state machine without clock or I/O, as the controllers are. The port's worker owns it.

use super::coalesce::{Coalesce, Parameters};
use super::frame::{FRAME_LEN, FrameError, Operation, Reply, Request, Status};
use super::policy::Policy;
use crate::hold::{Bound, Nanos};
use crate::vhost_net::Half;
use serde::{Deserialize, Serialize};

/// The mean interval between the control frames that a guest is answered.
const FRAME_INTERVAL: Nanos = Nanos::from_micros(100_000);

/// The mean interval between the coalescing commands that take effect at once. Those in between take effect together.
const COMMAND_INTERVAL: Nanos = Nanos::from_micros(1_000);

/// The number of requests in a burst.
const BURST: u64 = 8;

/// The most data queues of a port.
const MAX_DATA_QUEUES: usize = 16;

/// The result of a control frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Put this frame into the guest's RX ring. The budget may have changed.
    Reply([u8; FRAME_LEN]),
    /// Nothing: the guest exceeds its rate of requests.
    Limited,
    /// Nothing: the frame is malformed.
    Malformed(FrameError),
}

/// The lease of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lease {
    /// The requested T_buf in µs, before the cap; 0 is no hold.
    hold_us: u32,
    ends: Nanos,
}

/// A limit of a rate, as the time up to which requests have been paid for.
#[derive(Clone, Copy, Debug, Default)]
struct Limiter {
    paid_until: Nanos,
}

impl Limiter {
    /// Admits a request, or returns when one will be admitted.
    fn admit(&mut self, now: Nanos, interval: Nanos) -> Result<(), Nanos> {
        let paid_until = self.paid_until.max(now) + interval;
        let burst = Nanos(interval.0 * BURST);
        if paid_until.since(now) <= burst {
            self.paid_until = paid_until;
            return Ok(());
        }
        Err(now + Nanos(paid_until.since(now).0 - burst.0))
    }
}

/// The request that decides the hold of a queue, within the operator's cap and override.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AskedBy {
    /// None of the guest: the operator's default.
    Default,
    /// A control frame with a lease.
    Lease,
    /// A coalescing command of the virtio standard.
    Coalescing,
}

/// The lease and the coalescing parameters of one port.
#[derive(Clone, Copy, Debug)]
pub struct LeaseManager {
    policy: Policy,
    lease: Option<Lease>,
    /// The parameters of each queue that coalescing commands set since the last control frame.
    coalesced: [Option<Parameters>; MAX_DATA_QUEUES],
    frames: Limiter,
    commands: Limiter,
}

impl LeaseManager {
    /// A manager without a lease.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            lease: None,
            coalesced: [None; MAX_DATA_QUEUES],
            frames: Limiter::default(),
            commands: Limiter::default(),
        }
    }

    /// The operator's policy.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Replaces the operator's policy. A lease stays, within the new one.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// The hold budget in force at `now`. Compare after every call that may change it, and when
    /// [`LeaseManager::lease_end`] has come.
    pub fn budget(&mut self, now: Nanos) -> Nanos {
        let [rx, tx] = self.directions_us(now);
        Nanos::from_micros(rx.max(tx))
    }

    /// The T_buf of each direction by the lease, in µs.
    fn directions_us(&mut self, now: Nanos) -> [u32; 2] {
        self.lease = self.lease.filter(|lease| lease.ends > now);
        let asked = self.lease.map(|lease| lease.hold_us);
        [Half::Rx, Half::Tx].map(|half| self.policy.in_force(asked, half))
    }

    /// What was asked for a queue at `now`, and by which request. Receive queues have even numbers.
    pub fn asked(&mut self, now: Nanos, queue: usize) -> (AskedBy, Bound) {
        if let Some(asked) = self.coalesced.get(queue).copied().flatten() {
            let bound = Bound {
                budget: Nanos::from_micros(asked.hold_us()),
                packets: asked.max_packets.max(1),
            };
            return (AskedBy::Coalescing, bound);
        }
        self.lease = self.lease.filter(|lease| lease.ends > now);
        let (by, us) = match self.lease {
            Some(lease) => (AskedBy::Lease, lease.hold_us),
            None => (AskedBy::Default, self.policy.default_us),
        };
        (by, Bound::from_budget(Nanos::from_micros(us)))
    }

    /// The bound of a queue's holds at `now`. Receive queues have even numbers.
    pub fn bound(&mut self, now: Nanos, queue: usize) -> Bound {
        let (_, asked) = self.asked(now, queue);
        if let Some(fixed) = self.policy.override_us {
            return Bound::from_budget(Nanos::from_micros(fixed));
        }
        let half = Half::of_queue(queue);
        Bound {
            budget: asked.budget.min(Nanos::from_micros(self.policy.cap(half))),
            ..asked
        }
    }

    /// When the lease ends, if there is one.
    pub fn lease_end(&self) -> Option<Nanos> {
        self.lease.map(|lease| lease.ends)
    }

    /// The remaining time of the lease, if there is one.
    pub fn lease_left(&self, now: Nanos) -> Option<Nanos> {
        self.lease.map(|lease| lease.ends.since(now))
    }

    /// Forgets the guest: another may connect.
    pub fn disconnected(&mut self) {
        *self = Self::new(self.policy);
    }

    /// Forgets the coalescing parameters, which end with a reset of the device (virtio 1.3, 5.1.6.5.10).
    pub fn reset(&mut self) {
        self.coalesced = [None; MAX_DATA_QUEUES];
    }

    /// Handles a frame from the port's own guest for which
    /// [`is_control`](super::frame::is_control) holds.
    pub fn frame(&mut self, now: Nanos, frame: &[u8]) -> Answer {
        // Malformed frames are cheap to drop and get no answer, so they need no limit.
        let request = match Request::from_frame(frame) {
            Ok(request) => request,
            Err(error) => return Answer::Malformed(error),
        };
        if self.frames.admit(now, FRAME_INTERVAL).is_err() {
            return Answer::Limited;
        }
        Answer::Reply(self.handle(now, request).to_frame(request.source))
    }

    /// Handles a coalescing command of the virtio standard. Returns when the bounds must be applied: at once, or later
    /// together with those of the commands until then. Such a command has no lease: it holds until the next one, or
    /// until the guest disconnects.
    pub fn coalesce(&mut self, now: Nanos, command: Coalesce) -> Nanos {
        for (queue, coalesced) in self.coalesced.iter_mut().enumerate() {
            *coalesced = command.of_queue(queue).or(*coalesced);
        }
        self.commands
            .admit(now, COMMAND_INTERVAL)
            .err()
            .unwrap_or(now)
    }

    fn handle(&mut self, now: Nanos, request: Request) -> Reply {
        let (operation, lease_s) = (request.operation, request.lease_s);
        let hold_us = if request.enable { request.hold_us } else { 0 };
        let granted_s = lease_s.min(self.policy.lease_cap_s);
        if operation != Operation::Query {
            // The latest request counts, and a frame is about all queues.
            self.coalesced = [None; MAX_DATA_QUEUES];
        }
        match operation {
            Operation::Ask => {
                self.lease = Some(Lease {
                    hold_us,
                    ends: now + Nanos::from_secs(granted_s),
                });
            }
            Operation::Release => self.lease = None,
            Operation::Query => {}
        }
        let [rx, tx] = self.directions_us(now);
        let in_force_us = rx.max(tx);
        let asks = operation == Operation::Ask;
        let status = if asks && self.policy.override_us.is_some() {
            Status::Overridden
        } else if asks && (rx.min(tx) < hold_us || granted_s < lease_s) {
            Status::Clamped
        } else {
            Status::Granted
        };
        Reply {
            operation,
            status,
            enable: in_force_us > 0,
            hold_us: in_force_us,
            lease_s: self.lease_left(now).map_or(0, Nanos::whole_seconds),
            nonce: request.nonce,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const US: fn(u32) -> Nanos = Nanos::from_micros;

    fn ask(hold_us: u32, lease_s: u32) -> Request {
        Request {
            source: [2; 6],
            operation: Operation::Ask,
            enable: true,
            hold_us,
            lease_s,
            nonce: 42,
        }
    }

    fn reply(leases: &mut LeaseManager, now: Nanos, request: Request) -> Reply {
        match leases.frame(now, &request.to_frame()) {
            Answer::Reply(frame) => Reply::from_frame(&frame).unwrap(),
            other => panic!("no answer: {other:?}"),
        }
    }

    #[test]
    fn a_guest_gets_what_it_asks_until_its_lease_ends() {
        let mut leases = LeaseManager::new(Policy::default());
        assert_eq!(leases.budget(Nanos(0)), US(200));
        let answer = reply(&mut leases, Nanos(0), ask(500, 10));
        assert_eq!(
            (answer.status, answer.hold_us, answer.lease_s, answer.nonce),
            (Status::Granted, 500, 10, 42)
        );
        assert_eq!(leases.budget(Nanos::from_secs(9)), US(500));
        assert_eq!(leases.lease_end(), Some(Nanos::from_secs(10)));
        assert_eq!(leases.budget(Nanos::from_secs(10)), US(200));
        assert_eq!(leases.lease_end(), None);
    }

    #[test]
    fn a_guest_learns_that_it_was_clamped() {
        let mut leases = LeaseManager::new(Policy {
            lease_cap_s: 60,
            ..Policy::default()
        });
        let answer = reply(&mut leases, Nanos(0), ask(5_000, 10));
        assert_eq!((answer.status, answer.hold_us), (Status::Clamped, 1_000));
        let answer = reply(&mut leases, Nanos(0), ask(100, u32::MAX));
        assert_eq!(
            (answer.status, answer.hold_us, answer.lease_s),
            (Status::Clamped, 100, 60)
        );
    }

    #[test]
    fn a_guest_may_ask_for_no_hold_at_all() {
        let mut leases = LeaseManager::new(Policy::default());
        let answer = reply(
            &mut leases,
            Nanos(0),
            Request {
                enable: false,
                ..ask(500, 10)
            },
        );
        assert_eq!(
            (answer.status, answer.enable, answer.hold_us),
            (Status::Granted, false, 0)
        );
        assert_eq!(leases.budget(Nanos(1)), Nanos::ZERO);
    }

    #[test]
    fn an_override_wins_and_is_admitted_to() {
        let mut leases = LeaseManager::new(Policy {
            override_us: Some(0),
            ..Policy::default()
        });
        let answer = reply(&mut leases, Nanos(0), ask(500, 10));
        assert_eq!(
            (answer.status, answer.enable, answer.hold_us),
            (Status::Overridden, false, 0)
        );
        // The lease is kept for the time after the override.
        leases.set_policy(Policy::default());
        assert_eq!(leases.budget(Nanos(1)), US(500));
    }

    #[test]
    fn a_lease_given_back_or_lost_with_the_guest_is_over() {
        let mut leases = LeaseManager::new(Policy::default());
        reply(&mut leases, Nanos(0), ask(500, 10));
        let answer = reply(
            &mut leases,
            Nanos(1),
            Request {
                operation: Operation::Release,
                ..ask(0, 0)
            },
        );
        assert_eq!((answer.hold_us, answer.lease_s), (200, 0));
        reply(&mut leases, Nanos(2), ask(500, 10));
        leases.disconnected();
        assert_eq!(leases.budget(Nanos(3)), US(200));
    }

    #[test]
    fn a_query_changes_nothing() {
        let mut leases = LeaseManager::new(Policy::default());
        reply(&mut leases, Nanos(0), ask(500, 10));
        let answer = reply(
            &mut leases,
            Nanos(1),
            Request {
                operation: Operation::Query,
                ..ask(1, 1)
            },
        );
        assert_eq!(
            (answer.status, answer.hold_us, answer.lease_s),
            (Status::Granted, 500, 10)
        );
    }

    #[test]
    fn a_flood_gets_few_answers() {
        let mut leases = LeaseManager::new(Policy::default());
        let frame = ask(1, 1).to_frame();
        let answered = |leases: &mut LeaseManager, from: Nanos, step: Nanos, count: u64| {
            (0..count)
                .filter(|n| {
                    matches!(
                        leases.frame(Nanos(from.0 + n * step.0), &frame),
                        Answer::Reply(_)
                    )
                })
                .count()
        };
        // A million requests in a second: the burst passes, then ten a second.
        assert_eq!(answered(&mut leases, Nanos(0), US(1), 1_000_000), 8 + 9);
        assert_eq!(
            answered(&mut leases, Nanos::from_secs(10), US(100_000), 100),
            100
        );
    }

    #[test]
    fn malformed_frames_change_nothing() {
        let mut leases = LeaseManager::new(Policy::default());
        let mut frame = ask(500, 10).to_frame();
        frame[18] = 9;
        let answer = leases.frame(Nanos(0), &frame);
        assert_eq!(
            answer,
            Answer::Malformed(FrameError::Field {
                field: "version",
                value: 9
            })
        );
        assert_eq!(leases.budget(Nanos(0)), US(200));
    }

    proptest! {
        #[test]
        fn no_sequence_of_requests_gets_past_the_cap(
            cap_us in 0..2_000u32, requests in proptest::collection::vec((any::<bool>(), any::<u32>(), any::<u32>(), 0..u64::MAX / 100), 1..50)
        ) {
            let mut leases = LeaseManager::new(Policy { cap_us, ..Policy::default() });
            let mut now = Nanos(0);
            for (enable, hold_us, lease_s, step) in requests {
                let _ = leases.frame(now, &Request { enable, ..ask(hold_us, lease_s) }.to_frame());
                prop_assert!(leases.budget(now) <= US(cap_us));
                now = now + Nanos(step);
            }
        }
    }
}
