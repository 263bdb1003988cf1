//! A guest's port: its front end's session, its rings and its notifications.

use super::guard::{Guard, Limits};
use super::kernel::{Kernel, Session};
use super::packet::{BATCH, Batch, Frame};
use super::queue::{Call, Queue};
use super::transfer::{self, Delivery};
use crate::control::api::{Change, PortInfo};
use crate::control::frame::FRAME_LEN;
use crate::control::{Answer, LeaseManager, Policy};
use crate::features::{Features, ProtocolFeatures};
use crate::frame::{Mac, Offloads};
use crate::hold::{
    HoldSettings, Mode, Nanos, NextDrain, Notification, PairHold, Release, Rest, TxRound,
};
use crate::memory::{
    self, Account, AccountWarning, DirtyLog, GuestMemory, MAX_REGIONS, MOST_MAPPED, Segment,
};
use crate::poller::{Poller, PortId, Token};
use crate::protocol::{ProtocolError, Reply, Request};
use crate::ring::{Chain, RingFault, Virtqueue, for_ring};
use crate::telemetry::{DropReason, PortCounters, PortSnapshot};
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The most queue pairs of a port.
pub const MAX_PAIRS: u8 = 8;

/// How a transmit queue that was seen empty goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainOutcome {
    /// There are frames after all.
    NotEmpty,
    /// The guest kicks when there are.
    AwaitsKick,
    /// It is looked at again at the hold's deadline.
    Held,
}

/// What a request wants done beyond the port itself.
#[derive(Debug, Default)]
pub struct Outcome {
    /// A guest to announce to the network.
    pub announce: Option<Mac>,
    /// A ring that was kicked.
    pub kick: Option<u8>,
    /// Whether that started it.
    pub starts: bool,
}

/// A guest's port.
#[derive(Debug)]
pub struct Guest {
    id: PortId,
    /// What moves its frames, if it is the kernel. Before the memory, which must outlive it.
    kernel: Option<Kernel>,
    /// Who moves them, for the operator.
    datapath: String,
    pub(super) features: Features,
    offered: Features,
    protocol: ProtocolFeatures,
    pub(super) memory: GuestMemory,
    pub(super) log: Option<DirtyLog>,
    /// Where the front end takes messages of ours: calls, where it wants them so. It may complain when it is closed.
    channel: Option<Arc<OwnedFd>>,
    /// RX of pair 0, TX of pair 0, RX of pair 1, and so on.
    queues: Vec<Queue>,
    pub(super) control: Queue,
    /// When commands are left in the control queue.
    pub(super) control_due: Option<Nanos>,
    /// How many pairs the guest asked for on the control queue.
    pub(super) asked_pairs: usize,
    holds: Vec<PairHold>,
    /// When the calls and kicks of each pair are left alone, where the kernel moves frames.
    rests: Vec<Rest>,
    settings: HoldSettings,
    pub(super) leases: LeaseManager,
    /// What it may send, where that is limited.
    pub(super) guard: Option<Box<Guard>>,
    /// How many pairs, from the first on, have both rings running.
    running: usize,
    sender: Offloads,
    receiver: Offloads,
    /// Since when each pair lacks receive buffers.
    lacking: [Option<Nanos>; MAX_PAIRS as usize],
    /// What the port did.
    pub counters: PortCounters,
    /// Chains and segments of the frame that is being delivered.
    chains: Vec<Chain>,
    pub(super) segments: Vec<Segment>,
}

impl Guest {
    /// A port with `pairs` queue pairs and no front end.
    pub fn new(
        id: PortId,
        pairs: u8,
        offered: Features,
        settings: HoldSettings,
        policy: Policy,
    ) -> Self {
        let mut leases = LeaseManager::new(policy);
        let budget = leases.budget(Nanos::ZERO);
        let pairs = pairs.clamp(1, MAX_PAIRS);
        Self {
            id,
            kernel: None,
            datapath: "user".into(),
            features: Features::default(),
            offered,
            protocol: ProtocolFeatures::default(),
            memory: GuestMemory::default(),
            log: None,
            channel: None,
            queues: (0..pairs * 2).map(|_| Queue::default()).collect(),
            control: Queue::default(),
            control_due: None,
            asked_pairs: 1,
            holds: (0..pairs)
                .map(|_| PairHold::new(settings.controller(), budget))
                .collect(),
            rests: vec![Rest::default(); pairs.into()],
            settings,
            leases,
            guard: None,
            running: 0,
            sender: Offloads::default(),
            receiver: Offloads::default(),
            lacking: [None; MAX_PAIRS as usize],
            counters: PortCounters::default(),
            chains: Vec::with_capacity(64),
            segments: Vec::with_capacity(64),
        }
    }

    /// The same port with limits.
    #[must_use]
    pub fn limited(mut self, limits: &Limits) -> Self {
        self.guard = Guard::of(limits).map(Box::new);
        let most = limits.memory.map_or(MOST_MAPPED, NonZeroU64::get);
        let account = limits
            .populate
            .map(|most| Arc::new(Account::of(most.get())));
        self.memory = GuestMemory::at_most(most).on_account(account);
        self
    }

    /// The same port, whose frames the kernel moves, or the worker for a reason.
    #[must_use]
    pub fn moved_by(mut self, kernel: Result<Kernel, String>) -> Self {
        match kernel {
            Ok(kernel) => {
                if !memory::pager_sees_kernel() {
                    self.memory = self.memory.anew().on_account(None);
                }
                let deaf = |why| format!("kernel, which answers no control frames: {why}");
                self.datapath = kernel.is_deaf().map_or("kernel".into(), deaf);
                self.offered = Kernel::offers(self.offered);
                self.kernel = Some(kernel);
                self.settle_through();
            }
            Err(why) => self.datapath = format!("user: {why}"),
        }
        self
    }

    /// Who moves its frames: `kernel`, or `user` and why not the kernel.
    pub fn datapath(&self) -> &str {
        &self.datapath
    }

    /// Whether the kernel moves its frames.
    pub fn is_in_kernel(&self) -> bool {
        self.kernel.is_some()
    }

    /// Bytes of the header before each frame.
    pub fn header_len(&self) -> usize {
        self.features.header_len()
    }

    /// Waits for what the kernel tells.
    ///
    /// # Errors
    /// When that cannot be waited for.
    pub fn watch(&mut self, poller: &Poller) -> Result<(), rustix::io::Errno> {
        match &mut self.kernel {
            Some(kernel) => kernel.watch(poller, self.id),
            None => Ok(()),
        }
    }

    /// Queue pairs that it has.
    pub fn pairs(&self) -> usize {
        self.holds.len()
    }

    /// Queue pairs, from the first on, that run.
    #[inline]
    pub fn running_pairs(&self) -> usize {
        self.running
    }

    /// The pair that receives what another port sends on its pair of this number.
    #[inline]
    pub fn receiving_pair(&self, pair: u8) -> Option<u8> {
        #[expect(clippy::cast_possible_truncation, reason = "fewer than MAX_PAIRS")]
        let running = self.running as u8;
        if pair < running {
            return Some(pair);
        }
        pair.checked_rem(running)
    }

    /// What the guest can take undone.
    #[inline]
    pub fn receiver(&self) -> Offloads {
        self.receiver
    }

    /// The holds of its pairs.
    pub fn holds_mut(&mut self) -> &mut [PairHold] {
        &mut self.holds
    }

    /// Why its memory is not what its front end shares any more, if it is not.
    pub fn lost_memory(&self) -> Option<ProtocolError> {
        let cut =
            self.memory.is_truncated() || self.log.as_ref().is_some_and(DirtyLog::is_truncated);
        let account = self
            .memory
            .account()
            .filter(|account| account.is_overdrawn());
        cut.then(|| match account {
            Some(account) => ProtocolError::Populated(account.most()),
            None => ProtocolError::Refused("the memory that it shares was truncated"),
        })
    }

    /// A warning that half of what may be populated for it is used, once.
    pub fn memory_warning(&self) -> Option<AccountWarning> {
        self.memory.account()?.take_warning()
    }

    // The session.

    /// Does what a front end asks.
    ///
    /// # Errors
    /// When it asks for what cannot be. It is to be disconnected then.
    pub fn handle(
        &mut self,
        request: Request,
        poller: &Poller,
        now: Nanos,
    ) -> Result<(Reply, Outcome), ProtocolError> {
        let mut outcome = Outcome::default();
        // The kernel is told of a new log as well: it writes to where the old one is mapped.
        let stops = self.kernel.is_some()
            && (request.changes_rings() || matches!(request, Request::SetLogBase { .. }));
        if stops {
            self.pause(request.ring(), now);
        }
        let mut result = self.answer(request, poller, now, &mut outcome);
        if stops && result.is_ok() {
            result = self.resume().and(result);
        }
        self.count_running();
        if self.control.ring_mut().is_some() {
            // It may hold commands that were not kicked for, and asks for kicks only once empty.
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
            Request::ResetOwner | Request::ResetDevice => self.reset(poller, now),
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
            // It would be written to when the log's address changes, which it never does here.
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
                // The upper half is where a packed ring's used descriptors go on: for us, who keep
                // none back, at the same place, and some front ends leave it empty.
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
                    return Err(ProtocolError::Refused(
                        "a ring that is polled instead of kicked is not supported",
                    ));
                }
                self.start(queue, file, poller)?;
            }
            Request::VringKick { queue } => {
                if !self.calls_in_band() {
                    return Err(ProtocolError::Refused(
                        "a ring is kicked by a message, which was not negotiated",
                    ));
                }
                outcome.starts = self.start_in_band(queue, poller)?;
                outcome.kick = u8::try_from(queue).ok();
            }
            Request::SetVringCall { queue, file } => {
                let channel = self.channel.as_ref().filter(|_| self.calls_in_band());
                let call = match file {
                    Some(file) => Some(Call::Event(file)),
                    None => channel.map(|channel| Call::Message(channel.clone(), queue)),
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
                    return Err(ProtocolError::Refused(
                        "a protocol feature was accepted that was not offered",
                    ));
                }
                self.protocol = features;
            }
            // Front ends that count pairs are content with twice as many; Cloud Hypervisor counts rings.
            Request::GetQueueNum => reply = Reply::Number(self.queues.len() as u64 + 1),
            Request::SetVringEnable { queue, enable } => {
                if !enable {
                    // Nobody is signalled for a queue that does not run.
                    self.flush(queue, now);
                }
                self.queue(queue)?.enable(enable);
                // A guest that waits for frames kicks no transmit ring, and no frames come without.
                if enable && self.calls_in_band() {
                    self.start_in_band(queue, poller)?;
                }
            }
            Request::SetBackendReqFd(channel) => {
                // Others' sends can be made to wait, by whoever shares them.
                if sockopt::socket_domain(&channel) != Ok(AddressFamily::UNIX)
                    || sockopt::socket_type(&channel) != Ok(SocketType::STREAM)
                {
                    return Err(ProtocolError::Refused(
                        "the channel for messages to the front end is no stream socket of UNIX's",
                    ));
                }
                self.channel = Some(Arc::new(channel));
            }
            Request::SendRarp(mac) => outcome.announce = Some(mac),
        }
        Ok(reply)
    }

    /// The protocol's features that it offers. The kernel's data path takes nothing but descriptors.
    fn offers(&self) -> ProtocolFeatures {
        let offered = ProtocolFeatures::OFFERED;
        if self.kernel.is_some() {
            offered.without(ProtocolFeatures::INBAND_NOTIFICATIONS)
        } else {
            offered
        }
    }

    /// Whether kicks and calls may be messages.
    fn calls_in_band(&self) -> bool {
        self.protocol.has(ProtocolFeatures::INBAND_NOTIFICATIONS)
    }

    /// Whether requests that ask for it are acknowledged.
    pub fn acknowledges(&self) -> bool {
        self.protocol.has(ProtocolFeatures::REPLY_ACK)
    }

    /// Forgets the front end, after it went away or failed.
    pub fn disconnect(&mut self, poller: &Poller, now: Nanos) {
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
        self.leases.disconnected();
        self.settle_budget(now);
    }

    fn reset(&mut self, poller: &Poller, now: Nanos) {
        self.pause(None, now);
        if let Some(kernel) = &mut self.kernel {
            kernel.release();
        }
        for hold in &mut self.holds {
            let _ = hold.flush(now);
        }
        for queue in self.queues.iter_mut().chain([&mut self.control]) {
            if let Some(kick) = queue.reset() {
                poller.forget(kick);
            }
        }
        self.control_due = None;
        self.asked_pairs = 1;
        self.features = Features::default();
        self.sender = Offloads::default();
        self.receiver = Offloads::default();
        self.count_running();
    }

    /// The number of the control queue: after all pairs, or after the only one that there is
    /// without MQ (virtio 1.3, 5.1.2).
    fn control_number(&self) -> usize {
        if self.features.has(Features::MQ) {
            self.queues.len()
        } else {
            2
        }
    }

    /// Whether a queue's number is the control queue's.
    pub fn is_control(&self, queue: u8) -> bool {
        self.features.has(Features::CTRL_VQ) && usize::from(queue) == self.control_number()
    }

    /// Whether commands were left in the control queue.
    pub fn control_is_due(&self, now: Nanos) -> bool {
        self.control_due.is_some_and(|due| due <= now)
    }

    /// Stops the control queue for what its guest did; tells its number.
    pub fn control_fault(&mut self, fault: RingFault) -> usize {
        self.control.fault(fault);
        self.counters.totals.faults += 1;
        self.control_number()
    }

    fn queue(&mut self, number: u32) -> Result<&mut Queue, ProtocolError> {
        let is_control = u8::try_from(number).is_ok_and(|number| self.is_control(number));
        if is_control {
            return Ok(&mut self.control);
        }
        self.queues
            .get_mut(number as usize)
            .ok_or(ProtocolError::Queue(number))
    }

    pub(super) fn count_running(&mut self) {
        // Who has our control queue says on it how many pairs it uses, one to begin with. Others
        // enable rings.
        let most = if self.control.ring_mut().is_some() {
            self.asked_pairs
        } else {
            self.queues.len()
        };
        self.running = self
            .queues
            .chunks(2)
            .take(most)
            .take_while(|pair| pair.iter().all(Queue::is_running))
            .count();
    }

    fn set_features(&mut self, features: Features) -> Result<(), ProtocolError> {
        if !self.offered.has(features) {
            return Err(ProtocolError::Refused(
                "a feature was accepted that was not offered",
            ));
        }
        self.features = features;
        self.sender = Offloads::of_sender(features);
        self.receiver = Offloads::of_receiver(features);
        self.resolve()
    }

    /// Changes memory while no ring points into it, then resolves the rings again.
    fn change_memory(
        &mut self,
        change: impl FnOnce(&mut GuestMemory) -> Result<(), crate::memory::MemoryError>,
    ) -> Result<(), ProtocolError> {
        for queue in self.queues.iter_mut().chain([&mut self.control]) {
            queue.suspend();
        }
        change(&mut self.memory)?;
        if let Some(log) = &self.log
            && self.features.has(Features::LOG_ALL)
        {
            log.must_cover(&self.memory)?;
        }
        self.resolve()
    }

    fn resolve(&mut self) -> Result<(), ProtocolError> {
        let ours = if self.kernel.is_some() {
            &mut [][..]
        } else {
            &mut self.queues[..]
        };
        for queue in ours.iter_mut().chain([&mut self.control]) {
            queue.resolve(&self.memory, self.features)?;
        }
        Ok(())
    }

    // The kernel's data path.

    /// Stops a ring that the kernel serves, or all, after the holds of its pair.
    fn pause(&mut self, ring: Option<u32>, now: Nanos) {
        let Some(kernel) = &mut self.kernel else {
            return;
        };
        let ring = ring.map(|ring| ring as usize);
        for (pair, hold) in self.holds.iter_mut().enumerate() {
            if ring.is_some_and(|ring| ring / 2 != pair) {
                continue;
            }
            let ended = hold.flush(now);
            if let (Some(_), Some(rx)) = (ended.rx, self.queues.get(pair * 2)) {
                rx.call();
            }
            if ended.drain {
                let _ = kernel.drain(pair);
            }
        }
        // Nothing is held, so that everything is listened to when it goes on.
        self.settle_through();
        if let Some(kernel) = &mut self.kernel {
            kernel.pause(&mut self.queues, ring);
        }
    }

    /// Starts the rings that the kernel is to serve.
    fn resume(&mut self) -> Result<(), ProtocolError> {
        let Some(kernel) = &mut self.kernel else {
            return Ok(());
        };
        let session = Session {
            memory: &self.memory,
            log: self.log.as_ref(),
            features: self.features,
        };
        kernel.resume(&mut self.queues, session)
    }

    fn replug(&mut self, queue: u32) -> Result<(), ProtocolError> {
        match &mut self.kernel {
            Some(kernel) => kernel.replug(&mut self.queues, queue as usize),
            None => Ok(()),
        }
    }

    /// Leaves the kernel the guest's own descriptors where nothing is held.
    fn settle_through(&mut self) {
        let Some(kernel) = &mut self.kernel else {
            return;
        };
        for (pair, hold) in self.holds.iter().enumerate() {
            let holds = self.settings.mode != Mode::Off && hold.budget() > Nanos::ZERO;
            let through = !holds || self.rests[pair].is_resting();
            // Where calls are held and kicks are not, nobody watches kicks.
            let kicks_alone = hold.may_hold() == (true, false);
            for (number, through) in [(pair * 2, through), (pair * 2 + 1, through || kicks_alone)] {
                if let Err(cause) = kernel.set_through(&mut self.queues, number, through) {
                    eprintln!("vtax-nic: {cause}");
                }
            }
            let held = (hold.holds_call(), hold.holds_drain());
            kernel.mute(&self.queues, pair, held);
        }
    }

    /// The kernel wants the guest to be signalled for what a pair received.
    pub fn called(&mut self, pair: usize, now: Nanos) {
        match self.look_at_received(pair, now) {
            Some(release) => self.release(pair, release),
            None => {
                if let Some(hold) = self.holds.get_mut(pair) {
                    hold.woken_to_hold();
                }
            }
        }
        self.settle_through();
    }

    /// Tells the controller what a pair received by now.
    fn look_at_received(&mut self, pair: usize, now: Nanos) -> Option<Release> {
        let batch = self.kernel.as_mut()?.received(pair)?;
        let hold = self.holds.get_mut(pair)?;
        let release = hold.received(now, batch);
        let holds = (hold.may_hold().0, hold.budget());
        self.rests[pair].passed(now, (Notification::Call, batch.packets), holds);
        release
    }

    /// The guest kicked a transmit queue that the kernel serves.
    pub fn kicked_for_kernel(&mut self, pair: usize, now: Nanos) {
        let (Some(kernel), Some(hold)) = (&self.kernel, self.holds.get_mut(pair)) else {
            return;
        };
        let waiting = kernel.offered(pair);
        if waiting == 0 {
            return;
        }
        let kicked = hold.kicked(now, waiting.into());
        if !kicked.drain {
            hold.woken_to_hold();
        }
        if let Some(release) = kicked.rx {
            self.release(pair, release);
        }
        if kicked.drain {
            self.drain_by_kernel(pair, now, true);
        }
        self.settle_through();
    }

    fn drain_by_kernel(&mut self, pair: usize, now: Nanos, kicked: bool) {
        let round = self.kernel.as_mut().and_then(|kernel| kernel.drain(pair));
        if let (Some(round), Some(hold)) = (round, self.holds.get_mut(pair)) {
            self.counters.tx_drain(round.packets, kicked);
            // The kernel asks for kicks by itself.
            let _ = hold.drained(now, round);
            let holds = (hold.may_hold().0, hold.budget());
            self.rests[pair].passed(now, (Notification::Kick, round.packets), holds);
        }
    }

    /// Ends what is due, where the kernel moves the frames.
    pub fn end_holds_by_kernel(&mut self, now: Nanos) {
        for pair in 0..self.holds.len() {
            self.rests[pair].settle(now);
            self.end_holds_of(pair, now);
        }
        self.settle_through();
    }

    fn end_holds_of(&mut self, pair: usize, now: Nanos) {
        let hold = &self.holds[pair];
        if hold.deadline().is_none_or(|due| due > now) {
            return;
        }
        // What came since shares the signal, if the guest has not found all by itself.
        let looked = hold
            .holds_call()
            .then(|| self.look_at_received(pair, now))
            .flatten();
        let expired = self.holds[pair].expired(now);
        if let Some(release) = looked.or(expired.rx) {
            self.release(pair, release);
            if release.packets > 1 {
                self.holds[pair].anticipate(now);
            }
        }
        if expired.drain {
            self.drain_by_kernel(pair, now, false);
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
        let token = (is_control || self.kernel.is_none()).then_some(token);
        let queue = if is_control {
            &mut self.control
        } else {
            self.queues
                .get_mut(number as usize)
                .ok_or(ProtocolError::Queue(number))?
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

    /// Starts a ring for which no descriptor comes, unless it is started; tells whether it did.
    fn start_in_band(&mut self, number: u32, poller: &Poller) -> Result<bool, ProtocolError> {
        let channel = self.channel.clone();
        let queue = self.queue(number)?;
        let (_, size, _) = queue.settings();
        if queue.has_kicks() || size == 0 {
            return Ok(false);
        }
        // Linux up to 6.5 does not say how it wants to be called.
        if let Some(channel) = channel.filter(|_| !queue.has_call()) {
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
        let pair = number as usize / 2;
        if let Some(hold) = self.holds.get_mut(pair)
            && let Some(release) = hold.flush(now).rx
        {
            self.release(pair, release);
        }
    }

    // Who decides how long to hold.

    /// Puts into force what guest and operator agreed on by now.
    pub fn settle_budget(&mut self, now: Nanos) {
        for (pair, hold) in self.holds.iter_mut().enumerate() {
            let [rx, tx] = [2 * pair, 2 * pair + 1].map(|queue| self.leases.bound(now, queue));
            hold.set_bounds(rx, tx);
        }
        self.settle_through();
    }

    /// Handles a control frame of the guest; gives the answer to put into its receive queue.
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
        self.settle_budget(now);
        answer
    }

    /// Answers control frames that the kernel brings, up to a batch of them.
    pub fn asked(&mut self, now: Nanos) {
        let mut bytes = [0; FRAME_LEN];
        for _ in 0..BATCH {
            let kernel = self.kernel.as_ref();
            let Some(frame) = kernel.and_then(|kernel| kernel.control_frame(&mut bytes)) else {
                return;
            };
            self.counters.messages += 1;
            let reply = self.control_frame(frame, now);
            if let (Some(kernel), Some(reply)) = (&self.kernel, reply) {
                kernel.answer(&reply);
            }
        }
    }

    /// Changes what the operator allows, and the controllers if that changes them.
    pub fn change_policy(&mut self, change: &Change, now: Nanos) {
        let mut policy = self.leases.policy();
        let mut settings = self.settings;
        change.apply(&mut policy, &mut settings);
        self.leases.set_policy(policy);
        if settings != self.settings {
            self.settings = settings;
            for pair in 0..self.holds.len() {
                let hold = &mut self.holds[pair];
                let expired = hold.flush(now);
                *hold = PairHold::new(settings.controller(), hold.budget());
                self.rests[pair] = Rest::default();
                if expired.drain
                    && let Some(kernel) = &mut self.kernel
                {
                    let _ = kernel.drain(pair);
                }
                if let Some(release) = expired.rx {
                    self.release(pair, release);
                }
            }
        }
        self.settle_budget(now);
    }

    /// Lets cap, default and guest decide again.
    pub fn clear_override(&mut self, now: Nanos) {
        let policy = Policy {
            override_us: None,
            ..self.leases.policy()
        };
        self.leases.set_policy(policy);
        self.settle_budget(now);
    }

    /// The longest that any of its notifications may be held.
    fn budget(&mut self, now: Nanos) -> Nanos {
        let bounds = (0..2 * self.pairs()).map(|queue| self.leases.bound(now, queue).budget);
        bounds.max().unwrap_or(Nanos::ZERO)
    }

    /// What is in force, for the operator.
    pub fn info(&mut self, name: &str, connected: bool, now: Nanos) -> PortInfo {
        let budget = self.budget(now);
        let left = self.leases.lease_end().map(|end| end.since(now).0);
        let seconds = |nanos: u64| u32::try_from(nanos.div_ceil(1_000_000_000)).unwrap_or(u32::MAX);
        PortInfo {
            port: name.to_owned(),
            connected,
            settings: self.settings,
            policy: self.leases.policy(),
            in_force_us: u32::try_from(budget.0 / 1_000).unwrap_or(u32::MAX),
            datapath: self.datapath.clone(),
            lease_left_s: left.map(seconds),
        }
    }

    /// Its telemetry.
    pub fn snapshot(&mut self, name: &str, now: Nanos) -> PortSnapshot {
        let budget = self.budget(now);
        let mode = self.settings.mode;
        let mut snapshot = self.counters.snapshot(name, mode, budget);
        if let Some(kernel) = &mut self.kernel {
            snapshot.frames_counted_by = kernel.count(&mut snapshot.totals);
        }
        snapshot
    }

    /// When something must be looked at: a hold or the guest's lease ends.
    pub fn deadline(&self) -> Option<Nanos> {
        let holds = self.holds.iter().filter_map(PairHold::deadline);
        let rests = self.rests.iter().filter_map(Rest::deadline);
        holds
            .chain(rests)
            .chain(self.leases.lease_end())
            .chain(self.control_due)
            .min()
    }

    // Transmission: from the guest.

    fn rx(&mut self, pair: usize) -> Option<&mut Queue> {
        self.queues
            .get_mut(pair * 2)
            .filter(|queue| queue.is_running())
    }

    /// Takes up to a batch of frames from a transmit queue.
    #[inline]
    pub fn pull(&mut self, pair: usize, batch: &mut Batch) {
        let header_len = self.features.header_len();
        let sender = self.sender;
        let Some(ring) = self
            .queues
            .get_mut(pair * 2 + 1)
            .and_then(Queue::running_ring)
        else {
            return;
        };
        let memory = &self.memory;
        for_ring!(ring, ring => transfer::pull(ring, memory, batch, (header_len, sender)));
    }

    /// Returns the first `done` frames of a batch to their guest and puts the others back. Tells
    /// what came to pass, as counters want it.
    pub fn complete(&mut self, pair: usize, batch: &Batch, done: usize) {
        let logs = self.features.has(Features::LOG_ALL);
        let Some(queue) = self
            .queues
            .get_mut(pair * 2 + 1)
            .filter(|queue| queue.is_running())
        else {
            return;
        };
        let Some(ring) = queue.ring_mut() else { return };
        let Some((returned, left)) = batch.packets.split_at_checked(done) else {
            return;
        };
        let mut bytes = 0;
        for packet in returned {
            bytes += u64::from(packet.len);
            if let Some(reason) = packet.refused {
                self.counters.totals.drops.add(reason, 1);
            }
        }
        for_ring!(ring, ring => {
            ring.give_read(returned.iter().map(|packet| packet.place));
            if let Some(first) = left.first() {
                #[expect(clippy::cast_possible_truncation, reason = "at most a batch")]
                ring.put_back(first.place, left.len() as u16);
            }
            ring.publish(self.log.as_ref().filter(|_| logs));
        });
        self.counters.totals.tx_packets += done as u64;
        self.counters.totals.tx_bytes += bytes;
        if done > 0 && ring.wants_signal() && queue.signal() {
            self.counters.totals.tx_calls += 1;
        }
    }

    /// The transmit queue was seen empty after `packets` frames: asks for a kick, or leaves it to
    /// the hold's deadline.
    pub fn drained(&mut self, pair: usize, packets: u32, kicked: bool, now: Nanos) -> DrainOutcome {
        let logs = self.features.has(Features::LOG_ALL);
        let Some(ring) = self
            .queues
            .get_mut(pair * 2 + 1)
            .and_then(Queue::running_ring)
        else {
            return DrainOutcome::AwaitsKick;
        };
        self.counters.tx_drain(packets, kicked);
        let round = TxRound {
            packets,
            ring_size: ring.size(),
        };
        let next = self
            .holds
            .get_mut(pair)
            .map(|hold| hold.drained(now, round));
        let log = self.log.as_ref().filter(|_| logs);
        if next == Some(NextDrain::AtDeadline) {
            ring.disarm(log);
            return DrainOutcome::Held;
        }
        match ring.arm(log) {
            Ok(false) => DrainOutcome::AwaitsKick,
            // A fault is found by the next look.
            Ok(true) | Err(_) => {
                ring.disarm(log);
                DrainOutcome::NotEmpty
            }
        }
    }

    /// Whether frames wait in a transmit queue.
    #[inline]
    pub fn has_work(&mut self, pair: usize) -> bool {
        self.queues
            .get_mut(pair * 2 + 1)
            .and_then(Queue::running_ring)
            .is_some_and(|ring| ring.has_work())
    }

    /// Asks for no kicks of a transmit queue while it is polled.
    pub fn quiet(&mut self, pair: usize) {
        let logs = self.features.has(Features::LOG_ALL);
        if let Some(ring) = self
            .queues
            .get_mut(pair * 2 + 1)
            .and_then(Queue::running_ring)
        {
            ring.disarm(self.log.as_ref().filter(|_| logs));
        }
    }

    // Reception: to the guest.

    /// Puts a frame into a receive queue, without publishing it.
    #[inline]
    pub fn deliver(&mut self, pair: usize, frame: &Frame) -> Result<Delivery, RingFault> {
        let header_len = self.features.header_len();
        let mergeable = self.features.has(Features::MRG_RXBUF);
        let logs = self.features.has(Features::LOG_ALL);
        let Some(ring) = self.queues.get_mut(pair * 2).and_then(Queue::running_ring) else {
            return Ok(Delivery::Dropped(DropReason::NotRunning));
        };
        let lists = (&mut self.chains, &mut self.segments);
        let delivery = for_ring!(ring, ring => {
            transfer::deliver(ring, &self.memory, frame, (header_len, mergeable), lists)
        })?;
        if delivery == Delivery::Delivered {
            if logs && let Some(log) = &self.log {
                transfer::mark(log, &self.segments, header_len + frame.len);
            }
            self.counters.totals.rx_packets += 1;
            self.counters.totals.rx_bytes += frame.len as u64;
        }
        Ok(delivery)
    }

    /// Puts as many frames of a batch into a receive queue, from the `done`th on, as are plain and
    /// fit into one buffer each, without publishing them; tells how many.
    #[inline]
    pub fn deliver_plain(&mut self, pair: usize, batch: &Batch, done: usize) -> usize {
        let header_len = self.features.header_len();
        let log = self.log.as_ref();
        let log = log.filter(|_| self.features.has(Features::LOG_ALL));
        let Some(ring) = self.queues.get_mut(pair * 2).and_then(Queue::running_ring) else {
            return 0;
        };
        let (packets, bytes) = for_ring!(ring, ring => {
            transfer::deliver_plain(ring, &self.memory, log, header_len, batch, done)
        });
        if packets > 0 {
            self.has_buffers(pair);
        }
        self.counters.totals.rx_packets += packets as u64;
        self.counters.totals.rx_bytes += bytes;
        packets
    }

    /// Shows the guest `packets` frames and signals it, now or when the hold ends.
    pub fn publish(&mut self, pair: usize, packets: u32, now: Nanos) {
        let logs = self.features.has(Features::LOG_ALL);
        let Some(ring) = self.queues.get_mut(pair * 2).and_then(Queue::running_ring) else {
            return;
        };
        let log = self.log.as_ref().filter(|_| logs);
        let batch = for_ring!(ring, ring => transfer::publish(ring, log, packets));
        let release = self
            .holds
            .get_mut(pair)
            .and_then(|hold| hold.received(now, batch));
        match release {
            Some(release) => self.release(pair, release),
            None => self.counters.totals.calls_suppressed += 1,
        }
    }

    /// Signals a guest for its receive queue, unless it has found by itself what it was to know.
    pub fn release(&mut self, pair: usize, release: Release) {
        if let Some(kernel) = &mut self.kernel {
            let Some(ring) = kernel.rx_view(pair) else {
                return;
            };
            if !ring.wants_signal() {
                self.counters.totals.calls_cancelled += 1;
            } else if self.queues.get(pair * 2).is_some_and(Queue::call) {
                ring.signalled();
                self.counters.rx_call(release.held_for, release.packets);
            }
            return;
        }
        let Some(queue) = self.rx(pair) else { return };
        let Some(ring) = queue.ring_mut() else { return };
        if !ring.wants_signal() {
            self.counters.totals.calls_cancelled += 1;
        } else if queue.signal() {
            self.counters.rx_call(release.held_for, release.packets);
        }
    }

    /// Asks for a kick when there are buffers again. Tells whether more came meanwhile.
    pub fn await_buffers(&mut self, pair: usize) -> bool {
        let logs = self.features.has(Features::LOG_ALL);
        self.queues
            .get_mut(pair * 2)
            .and_then(Queue::running_ring)
            .is_some_and(|ring| ring.arm(self.log.as_ref().filter(|_| logs)) != Ok(false))
    }

    /// The guest kicked a receive queue: there are buffers again, and no more kicks are wanted.
    pub fn buffers_came(&mut self, pair: usize) {
        let logs = self.features.has(Features::LOG_ALL);
        if let Some(ring) = self.queues.get_mut(pair * 2).and_then(Queue::running_ring) {
            ring.disarm(self.log.as_ref().filter(|_| logs));
        }
    }

    /// Since when a receive queue lacks buffers: since now, if it did not before.
    pub fn lacks_buffers_since(&mut self, pair: usize, now: Nanos) -> Nanos {
        match self.lacking.get_mut(pair) {
            Some(since) => *since.get_or_insert(now),
            None => now,
        }
    }

    /// Notes that a receive queue has buffers.
    #[inline]
    pub fn has_buffers(&mut self, pair: usize) {
        if let Some(since) = self.lacking.get_mut(pair) {
            *since = None;
        }
    }

    /// How many frames wait to be sent.
    pub fn waiting(&mut self, pair: usize) -> u32 {
        self.queues
            .get_mut(pair * 2 + 1)
            .and_then(Queue::running_ring)
            .map_or(0, |ring| ring.look().map_or(0, u32::from))
    }

    /// How many receive buffers there are.
    pub fn free_buffers(&mut self, pair: usize) -> usize {
        self.queues
            .get_mut(pair * 2)
            .and_then(Queue::running_ring)
            .map_or(0, |ring| ring.look().map_or(0, usize::from))
    }

    /// Stops a queue for what its guest did. Everything else goes on.
    pub fn fault(&mut self, queue: usize, fault: RingFault) {
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.fault(fault);
        }
        self.counters.totals.faults += 1;
        self.count_running();
    }
}
