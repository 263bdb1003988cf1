// SPDX-License-Identifier: Apache-2.0
//! A front end's session: its requests, and the start and stop of its rings.

use super::{ActiveDatapath, Guest, Outcome, dirty_log};
use crate::features::{Features, ProtocolFeatures};
use crate::frame::Offloads;
use crate::hold::Nanos;
use crate::memory::{DirtyLog, GuestMemory, MAX_REGIONS, MemoryError};
use crate::network::kernel_pair::Session;
use crate::network::pair::QueuePair;
use crate::network::queue::pair_and_half;
use crate::network::queue::{Call, Queue};
use crate::poller::{Poller, PortId, Token};
use crate::protocol::{self, ProtocolError, Reply, Request, refuse};
use crate::ring::RingFault;
use crate::vhost_net::Half;
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// DEVICE_NEEDS_RESET in the device's status.
const NEEDS_RESET: u8 = 64;

/// The time after which a notification of a changed configuration is sent again.
const CONFIG_RETRY: Nanos = Nanos::from_micros(10_000);

impl Guest {
    /// Handles a request of the front end.
    ///
    /// # Errors
    /// When the request is invalid. The front end must be disconnected then.
    pub fn handle(
        &mut self,
        request: Request,
        poller: &Poller,
        now: Nanos,
    ) -> Result<(Reply, Outcome), ProtocolError> {
        let mut outcome = Outcome::default();
        // A new log concerns the kernel as well, because the kernel writes to the mapping of the old one.
        let stops = self.is_in_kernel()
            && (request.changes_rings() || matches!(request, Request::SetLogBase { .. }));
        if stops {
            self.pause(request.ring(), now);
        }
        let mut result = self.answer(request, poller, now, &mut outcome);
        if stops && result.is_ok() {
            result = self.resume().and(result);
        }
        self.counters.totals.faults += u64::from(outcome.refused.is_some());
        self.count_running();
        if self.is_controlled() {
            // The queue may hold commands without a kick, and asks for kicks only once empty.
            self.control_due = Some(now);
        }
        Ok((result?, outcome))
    }

    fn answer(
        &mut self,
        request: Request,
        poller: &Poller,
        now: Nanos,
        outcome: &mut Outcome,
    ) -> Result<Reply, ProtocolError> {
        let mut reply = Reply::None;
        match request {
            Request::GetFeatures => reply = Reply::Number(self.offered.0),
            Request::SetFeatures(features) => self.set_features(features)?,
            Request::SetOwner | Request::NetSetMtu(_) => {}
            Request::ResetOwner | Request::ResetDevice | Request::SetStatus(0) => {
                self.reset(poller, now);
            }
            Request::SetStatus(status) => self.status = status & !NEEDS_RESET,
            Request::GetStatus => {
                let needs_reset = if self.has_fault() { NEEDS_RESET } else { 0 };
                reply = Reply::Number(u64::from(self.status | needs_reset));
            }
            Request::GetConfig {
                offset,
                size,
                flags,
            } => {
                self.must_serve_config()?;
                reply = match self.config_space.read(offset, size) {
                    Ok(bytes) => Reply::Config {
                        offset,
                        flags,
                        bytes,
                    },
                    Err(reason) => {
                        outcome.refused = Some(reason);
                        Reply::NoConfig
                    }
                };
            }
            Request::SetConfig { offset, bytes } => {
                self.must_serve_config()?;
                let written = self.config_space.write(offset, &bytes, self.features);
                outcome.refused = written.err();
            }
            Request::SetMemTable(regions) => {
                // The rings point into the old memory: none runs until they are resolved again.
                let mut memory = self.memory.anew();
                for (description, file) in regions {
                    memory.add(description, file)?;
                }
                self.change_memory(|have| {
                    *have = memory;
                    Ok(())
                })?;
            }
            Request::AddMemReg(description, file) => {
                self.change_memory(|memory| memory.add(description, file))?;
            }
            Request::RemMemReg(description) => {
                self.change_memory(|memory| {
                    memory.remove(description);
                    Ok(())
                })?;
            }
            Request::GetMaxMemSlots => reply = Reply::Number(MAX_REGIONS as u64),
            Request::SetLogBase { size, offset, file } => {
                let log = DirtyLog::new(file, offset, size, &self.memory)?;
                log.must_cover(&self.memory)?;
                self.log = Some(log);
                reply = Reply::Number(0);
            }
            // It is signalled when the log's address changes, which never happens here.
            Request::SetLogFd(_) => {}
            Request::SetVringNum { queue, size } => {
                let features = self.features;
                self.queue(queue)?.set_size(size, features)?;
            }
            Request::SetVringAddr(address) => {
                self.queue(address.queue)?.set_addresses(address.addresses);
                self.resolve()?;
            }
            Request::SetVringBase { queue, base } => {
                // The upper half is the position of a packed ring's used descriptors. It equals the lower half here,
                // because no chains are kept back, and some front ends leave it empty.
                let packed = self.features.has(Features::RING_PACKED);
                let base = u16::try_from(if packed { base & 0xffff } else { base })
                    .map_err(|_| ProtocolError::Refused("a ring's base is below 65,536"))?;
                self.queue(queue)?.set_base(base)?;
            }
            Request::GetVringBase { queue } => {
                let base = u32::from(self.stop(queue, poller, now)?);
                let packed = self.features.has(Features::RING_PACKED);
                let base = if packed { base | base << 16 } else { base };
                reply = Reply::VringState { queue, base };
            }
            Request::SetVringKick { queue, file } => {
                if file.is_none() && !self.calls_in_band() {
                    return refuse("a ring that is polled instead of kicked is not supported");
                }
                self.start(queue, file, poller)?;
            }
            Request::VringKick { queue } => {
                if !self.calls_in_band() {
                    return refuse("a ring is kicked by a message, which was not negotiated");
                }
                outcome.starts = self.start_in_band(queue, poller)?;
                outcome.kick = u8::try_from(queue).ok();
            }
            Request::SetVringCall { queue, file } => {
                let call = if let Some(file) = file {
                    Some(Call::Event(file))
                } else if self.calls_in_band()
                    && let Some(channel) = &self.channel
                {
                    Some(Call::Message(channel.clone(), queue))
                } else {
                    None
                };
                self.queue(queue)?.set_call(call)?;
                self.replug(queue)?;
            }
            Request::SetVringErr { queue, file } => {
                self.queue(queue)?.set_error(file)?;
                self.replug(queue)?;
            }
            Request::GetProtocolFeatures => reply = Reply::Number(self.offers().0),
            Request::SetProtocolFeatures(features) => {
                if !self.offers().has(features) {
                    return refuse("a protocol feature was accepted that was not offered");
                }
                self.protocol = features;
            }
            // Front ends that count pairs accept twice as many; Cloud Hypervisor counts rings.
            Request::GetQueueNum => reply = Reply::Number(self.data_queues() as u64 + 1),
            Request::SetVringEnable { queue, enable } => {
                if !enable {
                    // A queue that does not run sends no signals.
                    self.flush(queue, now);
                }
                self.queue(queue)?.enable(enable);
                // A guest that waits for frames kicks no transmit ring, and receives no frames without this start.
                if enable && self.calls_in_band() {
                    self.start_in_band(queue, poller)?;
                }
            }
            Request::SetBackendReqFd(channel) => {
                // Sends on other sockets can be made to block by a process that shares them.
                if sockopt::socket_domain(&channel) != Ok(AddressFamily::UNIX)
                    || sockopt::socket_type(&channel) != Ok(SocketType::STREAM)
                {
                    return refuse(
                        "the channel for messages to the front end is no stream socket of UNIX's",
                    );
                }
                self.channel = Some(Arc::new(channel));
            }
            Request::SendRarp(mac) => outcome.announce = Some(mac),
        }
        Ok(reply)
    }

    /// The protocol's features that it offers. The kernel's data path takes nothing but descriptors.
    fn offers(&self) -> ProtocolFeatures {
        let mut offered = ProtocolFeatures::OFFERED;
        if self.is_generic {
            offered = offered
                .with(ProtocolFeatures::CONFIG)
                .with(ProtocolFeatures::STATUS);
        }
        if self.is_in_kernel() {
            offered.without(ProtocolFeatures::INBAND_NOTIFICATIONS)
        } else {
            offered
        }
    }

    fn must_serve_config(&self) -> Result<(), ProtocolError> {
        if self.protocol.has(ProtocolFeatures::CONFIG) {
            return Ok(());
        }
        refuse(
            "the device's configuration is asked for by a message that was not negotiated (generic = true)",
        )
    }

    /// Connects or disconnects the port's link, and notifies the front end.
    pub fn set_link(&mut self, up: bool, now: Nanos) {
        if self.config_space.link_up == up {
            return;
        }
        self.pause(None, now);
        self.config_space.link_up = up;
        // A ring that ran before the pause fails to start only with a fault of its own.
        if let Err(cause) = self.resume() {
            let PortId { network, port } = self.id;
            tracing::warn!("port {port} of network {network}: {cause}");
        }
        self.count_running();
        self.notify_config_change(now);
    }

    fn notify_config_change(&mut self, now: Nanos) {
        let channel = self.channel.as_ref();
        let failed = self.protocol.has(ProtocolFeatures::CONFIG)
            && channel.is_some_and(|channel| !protocol::config_changed(channel));
        self.config_due = failed.then(|| now + CONFIG_RETRY);
    }

    /// Sends a notification of a changed configuration again, if the channel was full.
    pub(in crate::network) fn retry_config_change(&mut self, now: Nanos) {
        if self.config_due.is_some_and(|due| due <= now) {
            self.notify_config_change(now);
        }
    }

    /// Whether a queue has stopped because its guest made it invalid.
    fn has_fault(&mut self) -> bool {
        self.queues_mut().any(|queue| queue.has_fault())
    }

    /// Whether kicks and calls may be messages.
    fn calls_in_band(&self) -> bool {
        self.protocol.has(ProtocolFeatures::INBAND_NOTIFICATIONS)
    }

    /// Whether requests with the flag are acknowledged.
    pub fn acknowledges(&self) -> bool {
        self.protocol.has(ProtocolFeatures::REPLY_ACK)
    }

    /// Resets the port after its front end has gone or failed.
    pub fn disconnect(&mut self, poller: &Poller, now: Nanos) {
        self.leases.disconnected();
        self.reset(poller, now);
        self.protocol = ProtocolFeatures::default();
        self.memory = self.memory.anew();
        self.log = None;
        self.channel = None;
        if let Some(account) = self.memory.account() {
            account.front_end_left(now);
        }
        if let Some(guard) = &mut self.guard {
            guard.front_end_left();
        }
    }

    fn reset(&mut self, poller: &Poller, now: Nanos) {
        self.pause(None, now);
        for pair in &mut self.pairs {
            if let Some(kernel) = &mut pair.kernel {
                kernel.release();
            }
            let _ = pair.hold.flush(now);
        }
        for queue in self.queues_mut() {
            if let Some(kick) = queue.reset() {
                poller.forget(kick);
            }
        }
        self.control_due = None;
        self.config_due = None;
        self.status = 0;
        self.config_space.mac = self.given_mac;
        self.leases.reset();
        self.settle_budget(now);
        self.asked_pairs = 1;
        self.features = Features::default();
        self.sender = Offloads::default();
        self.receiver = Offloads::default();
        self.count_running();
    }

    /// The number of the control queue: after all pairs, or after the only one that there is
    /// without MQ (virtio 1.3, 5.1.2).
    fn control_number(&self) -> usize {
        if self.features.has(Features::CTRL_VQ) && !self.features.has(Features::MQ) {
            2
        } else {
            self.data_queues()
        }
    }

    /// Whether a queue's number is the control queue's. Some front ends set it up before the guest has accepted it.
    pub fn is_control(&self, queue: u8) -> bool {
        usize::from(queue) == self.control_number()
    }

    /// Whether the guest uses the control queue.
    pub(in crate::network) fn is_controlled(&mut self) -> bool {
        self.features.has(Features::CTRL_VQ) && self.control.ring_mut().is_some()
    }

    /// Whether commands were left in the control queue.
    pub fn control_is_due(&self, now: Nanos) -> bool {
        self.control_due.is_some_and(|due| due <= now)
    }

    /// Stops the control queue that its guest made invalid. Returns its number.
    pub(in crate::network) fn control_fault(&mut self, fault: RingFault) -> usize {
        self.control.fault(fault);
        self.counters.totals.faults += 1;
        self.control_number()
    }

    fn queue(&mut self, number: u32) -> Result<&mut Queue, ProtocolError> {
        let is_control = u8::try_from(number).is_ok_and(|number| self.is_control(number));
        if is_control {
            return Ok(&mut self.control);
        }
        let (pair, half) = pair_and_half(number as usize);
        match self.pairs.get_mut(pair) {
            Some(pair) => Ok(pair.queue_mut(half)),
            None => Err(ProtocolError::Queue(number)),
        }
    }

    /// The queues of all pairs and the control queue.
    fn queues_mut(&mut self) -> impl Iterator<Item = &mut Queue> {
        let of_pairs = self.pairs.iter_mut().flat_map(QueuePair::queues_mut);
        of_pairs.chain([&mut self.control])
    }

    pub(in crate::network) fn count_running(&mut self) {
        // A guest with a control queue sets the number of its pairs there, initially one. Other guests enable rings.
        let most = if !self.config_space.link_up {
            0
        } else if self.is_controlled() {
            self.asked_pairs
        } else {
            self.pairs.len()
        };
        let pairs = self.pairs.iter().take(most);
        self.running = pairs.take_while(|pair| pair.is_running()).count();
    }

    fn set_features(&mut self, features: Features) -> Result<(), ProtocolError> {
        if !self.offered.has(features) {
            return refuse("a feature was accepted that was not offered");
        }
        let control = self.control_number();
        self.features = features;
        // Queues that were set up before keep their numbers.
        if self.control_number() != control
            && let Some(pair) = self.pairs.get_mut(1)
        {
            std::mem::swap(&mut pair.rx, &mut self.control);
        }
        self.sender = Offloads::of_sender(features);
        self.receiver = Offloads::of_receiver(features);
        self.resolve()
    }

    /// Changes memory while no ring points into it, then resolves the rings again.
    fn change_memory(
        &mut self,
        change: impl FnOnce(&mut GuestMemory) -> Result<(), MemoryError>,
    ) -> Result<(), ProtocolError> {
        self.queues_mut().for_each(Queue::suspend);
        change(&mut self.memory)?;
        if let Some(log) = dirty_log(self.log.as_ref(), self.features) {
            log.must_cover(&self.memory)?;
        }
        self.resolve()
    }

    fn resolve(&mut self) -> Result<(), ProtocolError> {
        if let ActiveDatapath::User(_) = self.path {
            for queue in self.pairs.iter_mut().flat_map(QueuePair::queues_mut) {
                queue.resolve(&self.memory, self.features)?;
            }
        }
        self.control.resolve(&self.memory, self.features)
    }

    /// Stops a ring that the kernel serves, or all of them, after it ends the holds of its pair.
    fn pause(&mut self, ring: Option<u32>, now: Nanos) {
        if !self.is_in_kernel() {
            return;
        }
        let ring = ring.map(|ring| pair_and_half(ring as usize));
        let concerns = |number: usize| ring.is_none_or(|(pair, _)| pair == number);
        for (number, pair) in self.pairs.iter_mut().enumerate() {
            if concerns(number) && pair.flush(now).is_some() {
                pair.rx.call();
            }
        }
        // Nothing is held, so that all events are watched after the pause.
        self.update_passthrough();
        let ActiveDatapath::Kernel(kernel) = &self.path else {
            return;
        };
        for (number, pair) in self.pairs.iter_mut().enumerate() {
            for half in [Half::Rx, Half::Tx] {
                if ring.is_none_or(|ring| ring == (number, half)) {
                    kernel.pause(pair, half);
                }
            }
        }
    }

    /// Starts the rings of the kernel's data path.
    fn resume(&mut self) -> Result<(), ProtocolError> {
        let ActiveDatapath::Kernel(kernel) = &self.path else {
            return Ok(());
        };
        if !self.config_space.link_up {
            return Ok(());
        }
        let session = Session {
            memory: &self.memory,
            log: self.log.as_ref(),
            features: self.features,
        };
        kernel.resume(&mut self.pairs, session)
    }

    fn replug(&mut self, queue: u32) -> Result<(), ProtocolError> {
        let (pair, half) = pair_and_half(queue as usize);
        match (&self.path, self.pairs.get_mut(pair)) {
            (ActiveDatapath::Kernel(kernel), Some(pair)) => kernel.replug(pair, half),
            _ => Ok(()),
        }
    }

    fn start(
        &mut self,
        number: u32,
        kick: Option<OwnedFd>,
        poller: &Poller,
    ) -> Result<(), ProtocolError> {
        let id = self.id;
        // Without protocol features there is no message that enables a ring.
        let enable = !self.features.has(Features::PROTOCOL);
        let token = Token::Kick(id, u8::try_from(number).unwrap_or(u8::MAX));
        let is_control = u8::try_from(number).is_ok_and(|number| self.is_control(number));
        let token = (is_control || !self.is_in_kernel()).then_some(token);
        let (pair, half) = pair_and_half(number as usize);
        let queue = match self.pairs.get_mut(pair) {
            _ if is_control => &mut self.control,
            Some(pair) => pair.queue_mut(half),
            None => return Err(ProtocolError::Queue(number)),
        };
        queue.start(kick, poller, token)?;
        if token.is_some() {
            queue.resolve(&self.memory, self.features)?;
        }
        if enable {
            queue.enable(true);
        }
        if let Some(ring) = queue.ring_mut() {
            ring.disarm(self.log.as_ref());
        }
        Ok(())
    }

    /// Starts a ring without an event descriptor, unless it is started. Returns whether it did.
    fn start_in_band(&mut self, number: u32, poller: &Poller) -> Result<bool, ProtocolError> {
        let channel = self.channel.clone();
        let queue = self.queue(number)?;
        let (_, size) = queue.settings();
        if queue.has_kicks() || size == 0 {
            return Ok(false);
        }
        // Linux up to 6.5 gives no descriptor for calls.
        if !queue.has_call()
            && let Some(channel) = channel
        {
            queue.set_call(Some(Call::Message(channel, number)))?;
        }
        self.start(number, None, poller)?;
        Ok(true)
    }

    fn stop(&mut self, number: u32, poller: &Poller, now: Nanos) -> Result<u16, ProtocolError> {
        self.flush(number, now);
        let queue = self.queue(number)?;
        let (base, kick) = queue.stop();
        if let Some(kick) = kick {
            poller.forget(kick);
        }
        Ok(base)
    }

    /// Sends the signals that are held for a queue's pair.
    fn flush(&mut self, number: u32, now: Nanos) {
        let (pair, _) = pair_and_half(number as usize);
        if let Some(pair) = self.pairs.get_mut(pair)
            && let Some(release) = pair.hold.flush(now).rx
        {
            pair.release(release, &mut self.counters);
        }
    }
}
