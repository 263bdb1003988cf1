// SPDX-License-Identifier: Apache-2.0
//! The holds of a guest's notifications: their budget by the guest's lease and the operator's policy, and their ends.

use super::{ActiveDatapath, Guest};
use crate::control::api::{Change, Link, PortInfo, QueueInfo};
use crate::control::frame::{FRAME_LEN, Operation, Reply, Status};
use crate::control::{Answer, Policy};
use crate::hold::{Mode, Nanos, PairHold, Rest};
use crate::network::packet::BATCH;
use crate::network::queue::ring_number;
use crate::poller::PortId;
use crate::vhost_net::Half;
use tracing::{Level, debug};

/// Logs the answer to a guest. It gets at most ten a second.
fn log_answer(PortId { network, port }: PortId, answer: &[u8; FRAME_LEN]) {
    if !tracing::enabled!(Level::DEBUG) {
        return;
    }
    let Ok(reply) = Reply::from_frame(answer) else {
        return;
    };
    let status = match reply.status {
        Status::Granted => "granted",
        Status::Clamped => "cut to the cap",
        Status::Overridden => "refused, because the operator has fixed it",
    };
    let (hold_us, lease_s) = (reply.hold_us, reply.lease_s);
    let port = format_args!("port {port} of network {network}");
    match reply.operation {
        Operation::Ask => {
            debug!("{port}: the guest asks for a hold, {status}: {hold_us} us for {lease_s} s")
        }
        Operation::Release => debug!("{port}: the guest gives its lease back"),
        Operation::Query => {}
    }
}

impl Guest {
    /// Applies the budget of the lease and the policy.
    pub fn settle_budget(&mut self, now: Nanos) {
        if self.leases.lease_end().is_some_and(|end| end <= now) {
            let PortId { network, port } = self.id;
            debug!("port {port} of network {network}: the guest's lease has ended");
        }
        self.budget_due = self.budget_due.filter(|due| *due > now);
        for (number, pair) in self.pairs.iter_mut().enumerate() {
            let [rx, tx] =
                [Half::Rx, Half::Tx].map(|half| self.leases.bound(now, ring_number(number, half)));
            pair.hold.set_bounds(rx, tx);
        }
        self.update_passthrough();
    }

    /// Handles a control frame of the guest. Returns the answer for its receive queue.
    pub fn control_frame(&mut self, frame: &[u8], now: Nanos) -> Option<[u8; FRAME_LEN]> {
        let totals = &mut self.counters.totals;
        let answer = match self.leases.frame(now, frame) {
            Answer::Reply(reply) => {
                totals.control_frames += 1;
                Some(reply)
            }
            Answer::Limited => {
                totals.control_limited += 1;
                None
            }
            Answer::Malformed(_) => {
                totals.control_malformed += 1;
                None
            }
        };
        if let Some(answer) = &answer {
            log_answer(self.id, answer);
        }
        self.settle_budget(now);
        answer
    }

    /// Changes the operator's policy, and the controllers if their settings change.
    pub fn change_policy(&mut self, change: &Change, now: Nanos) {
        let mut policy = self.leases.policy();
        let mut settings = self.settings;
        change.apply(&mut policy, &mut settings);
        if let Some(link) = change.link {
            self.set_link(link == Link::Up, now);
        }
        self.leases.set_policy(policy);
        if settings != self.settings {
            self.settings = settings;
            for pair in &mut self.pairs {
                let release = pair.flush(now);
                pair.hold = PairHold::new(settings.controller(), pair.hold.budget());
                if let Some(kernel) = &mut pair.kernel {
                    kernel.rest = Rest::default();
                }
                if let Some(release) = release {
                    pair.release(release, &mut self.counters);
                }
            }
        }
        self.settle_budget(now);
    }

    /// Removes the operator's override.
    pub fn clear_override(&mut self, now: Nanos) {
        let policy = Policy {
            override_us: None,
            ..self.leases.policy()
        };
        self.leases.set_policy(policy);
        self.settle_budget(now);
    }

    /// The longest that any of its notifications may be held.
    pub(super) fn budget(&mut self, now: Nanos) -> Nanos {
        let bounds = (0..self.data_queues()).map(|queue| self.leases.bound(now, queue).budget);
        bounds.max().unwrap_or(Nanos::ZERO)
    }

    /// The port's state, for the operator.
    pub fn info(&mut self, name: &str, connected: bool, now: Nanos) -> PortInfo {
        // A lease that has ended is forgotten first.
        let budget = self.budget(now);
        let left = self.leases.lease_left(now);
        PortInfo {
            port: name.to_owned(),
            connected,
            link: if self.config_space.link_up {
                Link::Up
            } else {
                Link::Down
            },
            settings: self.settings,
            policy: self.leases.policy(),
            in_force_us: budget.whole_micros(),
            datapath: self.path.to_string(),
            lease_left_s: left.map(Nanos::whole_seconds),
            queues: self.queue_infos(now),
        }
    }

    /// The holds of the queues of running pairs.
    fn queue_infos(&mut self, now: Nanos) -> Vec<QueueInfo> {
        let queues = 0..ring_number(self.running_pairs(), Half::Rx);
        let limit = |packets: u32| (packets < u32::MAX).then_some(packets);
        let infos = queues.map(|queue| {
            let (asked_by, asked) = self.leases.asked(now, queue);
            let bound = self.leases.bound(now, queue);
            QueueInfo {
                queue,
                asked_by,
                asked_us: asked.budget.whole_micros(),
                asked_packets: limit(asked.packets),
                in_force_us: bound.budget.whole_micros(),
                in_force_packets: limit(bound.packets),
            }
        });
        infos.collect()
    }

    /// The next deadline: the end of a hold or of the guest's lease.
    pub fn deadline(&self) -> Option<Nanos> {
        let holds = self.pairs.iter().filter_map(|pair| pair.hold.deadline());
        let kernels = self.pairs.iter().filter_map(|pair| pair.kernel.as_ref());
        let rests = kernels.filter_map(|kernel| kernel.rest.deadline());
        holds
            .chain(rests)
            .chain(self.leases.lease_end())
            .chain(self.control_due)
            .chain(self.config_due)
            .chain(self.budget_due)
            .min()
    }

    // Events of the kernel's data path.

    /// Gives the kernel the guest's own event descriptors where nothing is held, and this process's elsewhere.
    pub(super) fn update_passthrough(&mut self) {
        let ActiveDatapath::Kernel(kernel) = &self.path else {
            return;
        };
        for pair in &mut self.pairs {
            let holds = self.settings.mode != Mode::Off && pair.hold.budget() > Nanos::ZERO;
            let rests = pair
                .kernel
                .as_ref()
                .is_some_and(|kernel| kernel.rest.is_resting());
            let through = !holds || rests;
            // Where calls are held and kicks are not, kicks bypass the worker.
            let kicks_alone = pair.hold.may_hold() == (true, false);
            for (half, through) in [(Half::Rx, through), (Half::Tx, through || kicks_alone)] {
                if let Err(cause) = kernel.set_passthrough(pair, half, through) {
                    let PortId { network, port } = self.id;
                    tracing::warn!("port {port} of network {network}: {cause}");
                }
            }
            kernel.mute(pair);
        }
    }

    /// The kernel wants the guest to be signalled for frames that a pair received.
    pub fn called(&mut self, pair: usize, now: Nanos) {
        if let Some(pair) = self.pairs.get_mut(pair) {
            pair.called(now, &mut self.counters);
        }
        self.update_passthrough();
    }

    /// The guest kicked a transmit queue that the kernel serves.
    pub fn kicked_for_kernel(&mut self, pair: usize, now: Nanos) {
        if let Some(pair) = self.pairs.get_mut(pair) {
            pair.kicked(now, &mut self.counters);
        }
        self.update_passthrough();
    }

    /// Ends the holds that are due, where the kernel moves the frames.
    pub fn end_holds_by_kernel(&mut self, now: Nanos) {
        for pair in &mut self.pairs {
            pair.end_holds(now, &mut self.counters);
        }
        self.update_passthrough();
    }

    /// Answers up to a batch of control frames that come by the kernel.
    pub fn asked(&mut self, now: Nanos) {
        let mut bytes = [0; FRAME_LEN];
        for _ in 0..BATCH {
            let ActiveDatapath::Kernel(kernel) = &self.path else {
                return;
            };
            let Some(frame) = kernel.control_frame(&mut bytes) else {
                return;
            };
            self.counters.messages += 1;
            let reply = self.control_frame(frame, now);
            if let (ActiveDatapath::Kernel(kernel), Some(reply)) = (&self.path, reply) {
                kernel.answer(&reply);
            }
        }
    }
}
