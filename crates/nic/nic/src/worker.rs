// SPDX-License-Identifier: Apache-2.0
//! The worker: one thread that owns whole networks.

use crate::config_space::ConfigSpaceError;
use crate::control::api::{Mailbox, Report, Request as OperatorRequest};
use crate::front_end::FrontEnd;
use crate::hold::Nanos;
use crate::memory;
use crate::network::{Batch, Network, Port, QueueFault};
use crate::poller::{Poller, PortId, Token, cpu_time, now};
use crate::protocol::{Connection, ProtocolError, Reply, Request};
use crate::telemetry::CpuLedger;
use rustix::io::Errno;
use tracing::info;

/// Batches between two calls of epoll, each of which costs about as much as a few frames.
const BATCHES_A_LOOK: u32 = 8;

/// Messages of one front end that are answered in a turn.
const MESSAGES_A_LOOK: usize = 16;

/// The result of a front end's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// No whole message.
    Nothing,
    /// A message.
    Message,
    /// A message that took long, so that others have their turn first.
    Enough,
    /// A message that has no effect, for this reason. The session continues.
    Refused(ConfigSpaceError),
}

/// Answers one message on the connection of a port's front end, if there is a whole one.
///
/// # Errors
/// When the front end is to be disconnected.
pub fn answer(
    connection: &mut Connection,
    network: &mut Network,
    id: PortId,
    poller: &Poller,
    time: Nanos,
) -> Result<Turn, ProtocolError> {
    let Some(message) = connection.receive()? else {
        return Ok(Turn::Nothing);
    };
    let Some(guest) = network.guest_mut(id.port) else {
        return Ok(Turn::Nothing);
    };
    guest.counters.messages += 1;
    let (code, needs_ack) = (message.code, message.needs_ack);
    let request = match Request::read(message) {
        Ok(request) => request,
        Err(error) => {
            if needs_ack && guest.acknowledges() {
                connection.reply(code, Reply::Number(1))?;
            }
            return Err(error);
        }
    };
    let (asks, acknowledged) = (needs_ack && !request.has_reply(), guest.acknowledges());
    let changes = request.changes_rings();
    let turn = if request.changes_memory() {
        Turn::Enough
    } else {
        Turn::Message
    };
    let handled = guest.handle(request, poller, time);
    // The message itself may enable or disable acknowledgements.
    let acknowledge = asks && (acknowledged || guest.acknowledges());
    let (reply, outcome) = match handled {
        Ok(answer) => answer,
        Err(error) => {
            if acknowledge {
                connection.reply(code, Reply::Number(1))?;
            }
            return Err(error);
        }
    };
    let refused = outcome.refused;
    let status = u64::from(refused.is_some());
    connection.reply(
        code,
        if acknowledge {
            Reply::Number(status)
        } else {
            reply
        },
    )?;
    if changes || outcome.starts {
        network.port_changed(id.port);
    }
    if let Some(queue) = outcome.kick {
        network.kicked(id, queue, time);
    }
    if let Some(mac) = outcome.announce {
        network.announce(id.port, mac, time);
    }
    Ok(refused.map_or(turn, Turn::Refused))
}

/// A worker and everything that it owns.
#[derive(Debug)]
pub struct Worker {
    poller: Poller,
    networks: Vec<Network>,
    front_ends: Vec<(PortId, FrontEnd)>,
    /// The next retry of a front end's connection.
    retry: Option<Nanos>,
    batch: Batch,
    mailbox: Mailbox,
    ledger: CpuLedger,
}

impl Worker {
    /// A worker for these networks and the front ends of their ports.
    ///
    /// # Errors
    /// When the kernel refuses to wait for a descriptor.
    pub fn new(
        mut networks: Vec<Network>,
        front_ends: Vec<(PortId, FrontEnd)>,
        mailbox: Mailbox,
    ) -> Result<Self, Errno> {
        let poller = Poller::new()?;
        for (network, number) in networks.iter_mut().zip(0..) {
            network.watch(&poller, number)?;
        }
        poller.watch_level(&mailbox, Token::Control)?;
        for (_, front_end) in &front_ends {
            front_end.watch(&poller)?;
        }
        Ok(Self {
            poller,
            networks,
            retry: first_retry(&front_ends),
            front_ends,
            batch: Batch::new(),
            mailbox,
            ledger: CpuLedger::default(),
        })
    }

    /// Works until every port has lost a front end that cannot come back.
    ///
    /// # Errors
    /// When the kernel refuses to wait.
    pub fn run(&mut self) -> Result<(), Errno> {
        let mut tokens = Vec::with_capacity(64);
        let mut batches = 0;
        // Processor time before serving is charged to no port.
        let _ = self.ledger.settle(now(), cpu_time(), 0);
        while !self.front_ends.is_empty() {
            let time = now();
            let mut busy = false;
            for network in &mut self.networks {
                busy |= network.poll(time, &mut self.batch);
            }
            batches += 1;
            if busy && batches < BATCHES_A_LOOK {
                continue;
            }
            batches = 0;
            self.report();
            if self.ledger.is_due(time) {
                self.charge(time);
            }
            let deadline = if busy {
                Some(Nanos::ZERO)
            } else {
                self.deadline()
            };
            self.poller.wait(deadline, &mut tokens)?;
            let time = now();
            for token in &tokens {
                self.handle_event(*token, time);
            }
            if self.retry.is_some_and(|retry| retry <= time) {
                self.reconnect(time);
            }
        }
        Ok(())
    }

    fn deadline(&mut self) -> Option<Nanos> {
        let networks = self.networks.iter_mut().filter_map(Network::deadline);
        networks.chain(self.retry).min()
    }

    fn handle_event(&mut self, token: Token, time: Nanos) {
        match token {
            Token::Listener(id) => {
                if let Some(front_end) = of_port(&mut self.front_ends, id) {
                    front_end.accept(time, &self.poller);
                }
                self.retry = first_retry(&self.front_ends);
            }
            Token::FrontEnd(id) => self.answer_messages(id, time),
            Token::Kick(id, _)
            | Token::Tap(id, _)
            | Token::Call(id, _)
            | Token::ControlFrame(id) => {
                if let Some(network) = self.networks.get_mut(usize::from(id.network)) {
                    network.handle_event(token, time);
                }
            }
            Token::Control => self.serve(time),
        }
    }

    /// Charges the processor time since the last reading to the guests.
    fn charge(&mut self, time: Nanos) {
        let ports = self.networks.iter_mut().flat_map(Network::ports_mut);
        let work = ports.map(|port| port.guest_counters().map_or(0, |port| port.uncharged()));
        let mut share = self.ledger.settle(time, cpu_time(), work.sum());
        let ports = self.networks.iter_mut().flat_map(Network::ports_mut);
        for counters in ports.filter_map(Port::guest_counters) {
            share.charge(counters);
        }
    }

    /// Carries out operators' jobs.
    fn serve(&mut self, time: Nanos) {
        self.charge(time);
        for job in self.mailbox.take().collect::<Vec<_>>() {
            let mut reports = Vec::new();
            for (id, front_end) in &self.front_ends {
                if !job.concerns(&front_end.name) {
                    continue;
                }
                let Some(network) = self.networks.get_mut(usize::from(id.network)) else {
                    continue;
                };
                if let OperatorRequest::Set { change, .. } = &job.request {
                    let set = serde_json::to_string(change).unwrap_or_default();
                    info!("port {}: the operator sets {set}", front_end.name);
                    network.change_policy(id.port, change, time);
                }
                let Some(guest) = network.guest_mut(id.port) else {
                    continue;
                };
                if matches!(job.request, OperatorRequest::ClearOverride { .. }) {
                    info!("port {}: the operator removes the override", front_end.name);
                    guest.clear_override(time);
                }
                let name = &front_end.name;
                reports.push(if job.request.is_for_telemetry() {
                    Report::Stats(Box::new(guest.snapshot(name, time)))
                } else {
                    Report::Info(guest.info(name, front_end.connection.is_some(), time))
                });
            }
            job.answer(reports);
        }
    }

    fn reconnect(&mut self, time: Nanos) {
        for (_, front_end) in &mut self.front_ends {
            if front_end.retry().is_some_and(|retry| retry <= time) {
                front_end.try_again(time, &self.poller);
            }
        }
        self.retry = first_retry(&self.front_ends);
    }

    /// Answers a front end's messages.
    fn answer_messages(&mut self, id: PortId, time: Nanos) {
        for _ in 0..MESSAGES_A_LOOK {
            match self.answer(id, time) {
                Ok(Turn::Message) => {}
                Ok(Turn::Nothing | Turn::Enough) => return,
                Ok(Turn::Refused(reason)) => {
                    if let Some(front_end) = of_port(&mut self.front_ends, id) {
                        front_end.warn(reason);
                    }
                }
                Err(error) => return self.disconnect(id, &error, time),
            }
        }
    }

    /// Answers one message of a port's front end, if there is a whole one.
    fn answer(&mut self, id: PortId, time: Nanos) -> Result<Turn, ProtocolError> {
        let front_end = of_port(&mut self.front_ends, id);
        let connection = front_end.and_then(|front_end| front_end.connection.as_mut());
        let network = self.networks.get_mut(usize::from(id.network));
        match (connection, network) {
            (Some(connection), Some(network)) => {
                answer(connection, network, id, &self.poller, time)
            }
            _ => Ok(Turn::Nothing),
        }
    }

    /// Disconnects a front end that has gone or broke the protocol.
    fn disconnect(&mut self, id: PortId, error: &ProtocolError, time: Nanos) {
        let Some(index) = self.front_ends.iter().position(|(at, _)| *at == id) else {
            return;
        };
        let (_, front_end) = &mut self.front_ends[index];
        match error {
            ProtocolError::Closed => front_end.left(),
            error => front_end.warn(format_args!("front end disconnected: {error}")),
        }
        let stays = front_end.disconnect(time, &self.poller);
        if !stays {
            self.front_ends.remove(index);
        }
        self.retry = first_retry(&self.front_ends);
        if let Some(network) = self.networks.get_mut(usize::from(id.network)) {
            if let Some(guest) = network.guest_mut(id.port) {
                if !matches!(error, ProtocolError::Closed) {
                    guest.counters.totals.faults += 1;
                }
                guest.disconnect(&self.poller, time);
            }
            network.port_left(id.port);
        }
    }

    /// Logs which queues stopped, and stops ports whose memory was lost.
    fn report(&mut self) {
        // Lost memory is handled first, because queues in it stop with misleading faults.
        if memory::any_truncation() {
            self.lose_memory();
        }
        if memory::any_half_used() {
            self.warn_of_half_used();
        }
        for (network, number) in self.networks.iter_mut().zip(0..) {
            let mut warn = |port, what: std::fmt::Arguments<'_>| {
                let network = number;
                let id = PortId { network, port };
                if let Some(front_end) = of_port(&mut self.front_ends, id) {
                    front_end.warn(what);
                }
            };
            for QueueFault { port, queue, fault } in network.take_stopped() {
                warn(port, format_args!("queue {queue} stopped: {fault}"));
            }
            for (port, limit) in network.take_limited() {
                warn(port, format_args!("{limit}"));
            }
        }
    }

    /// Warns of ports that have used half of the memory that may be populated for them.
    fn warn_of_half_used(&mut self) {
        for (id, front_end) in &self.front_ends {
            let network = self.networks.get_mut(usize::from(id.network));
            let port = network.and_then(|network| network.ports_mut().get(usize::from(id.port)));
            if let Some(Port::Guest(guest)) = port
                && let Some(warning) = guest.memory_warning()
            {
                // Without the limit of other warnings: it is due a few times an hour at most.
                tracing::warn!("port {}: {warning}", front_end.name);
            }
        }
    }

    fn lose_memory(&mut self) {
        let mut cut = Vec::new();
        for (network, number) in self.networks.iter_mut().zip(0..) {
            for (port, index) in network.ports_mut().iter().zip(0..) {
                if let Port::Guest(guest) = port
                    && let Some(error) = guest.lost_memory()
                {
                    let (network, port) = (number, index);
                    cut.push((PortId { network, port }, error));
                }
            }
        }
        for (id, error) in cut {
            self.disconnect(id, &error, now());
        }
    }
}

/// The front end of a port.
fn of_port(front_ends: &mut [(PortId, FrontEnd)], id: PortId) -> Option<&mut FrontEnd> {
    let found = front_ends.iter_mut().find(|(at, _)| *at == id);
    found.map(|(_, front_end)| front_end)
}

fn first_retry(front_ends: &[(PortId, FrontEnd)]) -> Option<Nanos> {
    let retries = front_ends.iter().filter_map(|(_, end)| end.retry());
    retries.min()
}

#[cfg(test)]
mod conversation_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::api::{self, Change, MailboxSender, mailbox};
    use crate::control::frame::{Operation, Request as HoldRequest};
    use crate::features::{Features, ProtocolFeatures};
    use crate::hold::Mode;
    use crate::testing::port;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::os::fd::OwnedFd;

    /// A worker with one port, and the front end's side of its connection.
    fn worker() -> (Worker, PortId, OwnedFd) {
        let (worker, id, front, _) = worker_with_operator();
        (worker, id, front)
    }

    fn worker_with_operator() -> (Worker, PortId, OwnedFd, MailboxSender) {
        let (front, back) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let id = PortId {
            network: 0,
            port: 0,
        };
        let network = Network::new(vec![Port::Guest(Box::new(port(0, Mode::Off)))]);
        let front_end = FrontEnd::given(id, "a", back);
        let (operator, mailbox) = mailbox().unwrap();
        let worker = Worker::new(vec![network], vec![(id, front_end)], mailbox).unwrap();
        (worker, id, front, operator)
    }

    #[test]
    fn the_log_has_the_end_of_a_session_and_a_warning_where_it_broke_the_protocol() {
        let logged = |message: &[u8]| {
            let (mut worker, id, front) = worker();
            rustix::io::write(&front, message).unwrap();
            drop(front);
            vtax_log::testing::logged(|| worker.handle_event(Token::FrontEnd(id), now()))
        };
        assert_eq!(
            logged(&[]),
            "<6>vtax_nic::front_end: port a: its front end has disconnected\n"
        );
        let refused = logged(&[0xff; 12]);
        let start = "<4>vtax_nic::front_end: port a: front end disconnected: ";
        assert!(refused.starts_with(start), "{refused}");
    }

    #[test]
    fn the_log_has_what_the_operator_sets_and_each_lease_of_the_guest() {
        let (mut worker, _, _front, operator) = worker_with_operator();
        let ask = |request| {
            let operator = operator.clone();
            std::thread::spawn(move || api::ask(&[operator], &request).unwrap())
        };
        let change = Change {
            override_us: Some(50),
            ..Change::default()
        };
        let logged = vtax_log::testing::logged(|| {
            for request in [
                OperatorRequest::Set { port: None, change },
                OperatorRequest::ClearOverride { port: None },
            ] {
                let asked = ask(request);
                while !asked.is_finished() {
                    worker.serve(now());
                }
            }
            let request = HoldRequest {
                source: [2; 6],
                operation: Operation::Ask,
                enable: true,
                hold_us: 500,
                lease_s: 10,
                nonce: 1,
            };
            let guest = worker.networks[0].guest_mut(0).unwrap();
            let time = now();
            guest.control_frame(&request.to_frame(), time);
            guest.settle_budget(time + Nanos::from_secs(11));
        });
        let holds = "<7>vtax_nic::network::guest::holds: port 0 of network 0";
        assert_eq!(
            logged.lines().collect::<Vec<_>>(),
            [
                "<6>vtax_nic::worker: port a: the operator sets {\"override_us\":50}",
                "<6>vtax_nic::worker: port a: the operator removes the override",
                &format!("{holds}: the guest asks for a hold, granted: 500 us for 10 s"),
                &format!("{holds}: the guest's lease has ended"),
            ]
        );
    }

    /// The first messages of User-mode Linux 6.1, each with the answer for which it waits. The message that negotiates
    /// acknowledgements is itself acknowledged.
    #[test]
    fn the_message_that_negotiates_acknowledgements_is_acknowledged() {
        const ASKS: u32 = 9;
        const REPLY_ACK: u64 = 8;
        let (mut worker, id, front) = worker();
        let offered = ProtocolFeatures::OFFERED.0;
        for (code, flags, payload, answer) in [
            (3, 1, None, None),
            (15, 1, None, Some(offered)),
            // Acknowledgements are not negotiated yet, so that the flag has no effect.
            (3, ASKS, None, None),
            (16, ASKS, Some(REPLY_ACK), Some(0)),
            (2, ASKS, Some(Features::PROTOCOL.0), Some(0)),
            (16, 1, Some(REPLY_ACK), None),
            // A front end that asks for an acknowledgement in the message that disables them may wait for it.
            (16, ASKS, Some(0), Some(0)),
            (16, ASKS, Some(0), None),
            (16, ASKS, Some(1 << 63), None),
        ] {
            let payload = payload.map_or(Vec::new(), |bits: u64| bits.to_ne_bytes().to_vec());
            let size = u32::try_from(payload.len()).unwrap();
            let header = [code, flags, size].map(u32::to_ne_bytes).concat();
            rustix::io::write(&front, &[header, payload].concat()).unwrap();
            worker.handle_event(Token::FrontEnd(id), now());
            let mut reply = [0; 64];
            let flags = rustix::net::RecvFlags::DONTWAIT;
            let len = rustix::net::recv(&front, &mut reply, flags).map_or(0, |(len, _)| len);
            let number = reply[12..20].try_into().map(u64::from_ne_bytes).unwrap();
            assert_eq!((len > 0).then_some(number), answer, "{code} {size}");
            assert!(len == 0 || len == 20, "{code}: {len} bytes");
        }
    }

    /// The answer to a message of a front end that has negotiated acknowledgements.
    fn answer_to(message: &[u8]) -> Option<u64> {
        let (mut worker, id, front) = worker();
        let negotiate = [16_u32, 1, 8, 8, 0].map(u32::to_ne_bytes).concat();
        rustix::io::write(&front, &[&negotiate, message].concat()).unwrap();
        worker.handle_event(Token::FrontEnd(id), now());
        let mut reply = [0; 64];
        let flags = rustix::net::RecvFlags::DONTWAIT;
        let (len, _) = rustix::net::recv(&front, &mut reply, flags).ok()?;
        (len == 20).then(|| u64::from_ne_bytes(reply[12..20].try_into().unwrap()))
    }

    #[test]
    fn a_message_that_cannot_be_read_is_refused_before_the_front_end_is_disconnected() {
        let ask = |words: &[u32]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_ne_bytes()).collect()
        };
        // Postcopy, an unknown message, a payload of a wrong size, a missing descriptor.
        for refused in [
            ask(&[28, 9, 0]),
            ask(&[99, 9, 0]),
            ask(&[8, 9, 4, 0]),
            ask(&[21, 9, 0]),
        ] {
            assert_eq!(answer_to(&refused), Some(1), "{refused:?}");
        }
        assert_eq!(
            answer_to(&ask(&[99, 1, 0])),
            None,
            "no acknowledgement asked for"
        );
    }

    #[test]
    fn a_flood_of_memory_tables_leaves_the_others_their_turns() {
        let (mut worker, id, front) = worker();
        // SET_MEM_TABLE without regions.
        let table = [5_u32, 1, 8, 0, 0].map(u32::to_ne_bytes).concat();
        for _ in 0..4 {
            rustix::io::write(&front, &table).unwrap();
        }
        for turn in 1..=4 {
            worker.handle_event(Token::FrontEnd(id), now());
            let guest = worker.networks[0].guest_mut(0).unwrap();
            assert_eq!(guest.counters.messages, turn);
        }
    }
}
