// SPDX-License-Identifier: Apache-2.0
//! A NIC's driver as in a guest's kernel: with EVENT_IDX, it polls until the ring is empty, then asks for calls again.
//! It counts every call and kick.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use vtax_nic::features::Features;

use crate::descriptor::{Descriptor, INDIRECT, WRITE};
use crate::memory::{GUEST_BASE, GuestMemory};
use crate::ring::DriverRing;
use crate::session::{Session, SessionError, failed, request, state};

/// The virtio-net header's length with VERSION_1.
pub const HEADER_LEN: usize = 12;

/// Room for a header and a frame of 2,036 bytes, or for a part of a longer one.
pub const BUFFER_LEN: u32 = 2_048;

/// The layout of sent frames in descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Header and frame in one buffer.
    #[default]
    Single,
    /// Header and frame in a chain of two.
    Chained,
    /// The chain of two in an indirect table.
    Indirect,
}

/// The settings of a driver.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Features to negotiate beyond the required ones.
    pub features: Features,
    /// Ring entries, a power of two.
    pub ring_size: u16,
    /// Queue pairs.
    pub queue_pairs: u16,
    /// See [`Layout`].
    pub layout: Layout,
    /// Whether to forward the control queue, as QEMU does not.
    pub control: bool,
    /// Bytes of untouched guest memory behind the memory that the driver uses.
    pub untouched: usize,
}

impl Default for Options {
    fn default() -> Self {
        let features = Features::EVENT_IDX
            .with(Features::INDIRECT)
            .with(Features::MRG_RXBUF);
        Self {
            features,
            ring_size: 256,
            queue_pairs: 1,
            layout: Layout::Single,
            control: false,
            untouched: 0,
        }
    }
}

/// Counts of a driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames received.
    pub received: u64,
    /// Frames sent.
    pub sent: u64,
    /// RX calls. The count is exact, since an eventfd adds calls up.
    pub calls: u64,
    /// TX calls.
    pub tx_calls: u64,
    /// TX kicks.
    pub kicks: u64,
    /// RX kicks, for buffers given back.
    pub rx_kicks: u64,
    /// Sleeps of the driver until an event.
    pub sleeps: u64,
}

impl Counts {
    /// Each count combined with the same one of `other`.
    pub(crate) fn with(self, other: Self, combine: fn(u64, u64) -> u64) -> Self {
        Self {
            received: combine(self.received, other.received),
            sent: combine(self.sent, other.sent),
            calls: combine(self.calls, other.calls),
            tx_calls: combine(self.tx_calls, other.tx_calls),
            kicks: combine(self.kicks, other.kicks),
            rx_kicks: combine(self.rx_kicks, other.rx_kicks),
            sleeps: combine(self.sleeps, other.sleeps),
        }
    }
}

/// One direction of a queue pair.
#[derive(Debug)]
pub struct Queue {
    /// The ring.
    pub ring: DriverRing,
    buffers: u64,
    tables: u64,
    free: Vec<u16>,
    kick: OwnedFd,
    call: OwnedFd,
}

/// A queue pair.
#[derive(Debug)]
pub struct Pair {
    /// The receive queue.
    pub rx: Queue,
    /// The transmit queue.
    pub tx: Queue,
}

/// A connected NIC.
#[derive(Debug)]
pub struct Nic {
    /// The vhost-user session.
    pub session: Session,
    /// Guest memory.
    pub memory: GuestMemory,
    /// The queue pairs.
    pub pairs: Vec<Pair>,
    /// The control queue, where it is forwarded.
    pub control: Option<Queue>,
    /// The negotiated features.
    pub features: Features,
    counts: Counts,
    layout: Layout,
    frame: Vec<u8>,
}

impl Nic {
    /// Connects to a back end that listens at `path`.
    ///
    /// # Errors
    /// When no process listens, or the back end refuses.
    pub fn connect(path: &Path, options: Options) -> Result<Self, SessionError> {
        Self::start(Session::connect(path)?, options)
    }

    /// Uses a connected socket to a back end.
    ///
    /// # Errors
    /// When the back end refuses.
    pub fn from_socket(socket: UnixStream, options: Options) -> Result<Self, SessionError> {
        Self::start(Session::from_socket(socket)?, options)
    }

    fn start(mut session: Session, options: Options) -> Result<Self, SessionError> {
        let needed = Features::VERSION_1.with(Features::PROTOCOL);
        let mut wanted = needed.with(options.features);
        if options.queue_pairs > 1 {
            wanted = wanted.with(Features::MQ);
        }
        if options.control {
            wanted = wanted.with(Features::CTRL_VQ);
        }
        let agreed = Features(session.negotiate(wanted.0, needed.0)?);
        let queues = 2 * usize::from(options.queue_pairs) + usize::from(options.control);
        let each = usize::from(options.ring_size) * (BUFFER_LEN as usize + 80) + (64 << 10);
        let no_memory = failed("make memory for");
        let mut memory = GuestMemory::new(queues * each + options.untouched).map_err(&no_memory)?;
        let mut queue = || Queue::new(&mut memory, options.ring_size, agreed).map_err(&no_memory);
        let mut pairs = Vec::new();
        for _ in 0..options.queue_pairs {
            let (rx, tx) = (queue()?, queue()?);
            pairs.push(Pair { rx, tx });
        }
        let control = options.control.then(queue).transpose()?;
        let mut nic = Self {
            session,
            memory,
            pairs,
            control,
            features: agreed,
            counts: Counts::default(),
            layout: options.layout,
            frame: Vec::new(),
        };
        nic.share_memory()?;
        nic.start_rings()?;
        Ok(nic)
    }

    /// Shares guest memory with the back end.
    ///
    /// # Errors
    /// When the back end refuses.
    pub fn share_memory(&self) -> Result<(), SessionError> {
        let mut table = Vec::from(1u64.to_ne_bytes());
        for field in [GUEST_BASE, self.memory.size(), self.memory.user_base(), 0] {
            table.extend_from_slice(&field.to_ne_bytes());
        }
        self.session
            .request(request::SET_MEM_TABLE, &table, &[self.memory.as_fd()])
    }

    fn start_rings(&mut self) -> Result<(), SessionError> {
        let user = self.memory.user_base().wrapping_sub(GUEST_BASE);
        let queues = self.pairs.iter().flat_map(|pair| [&pair.rx, &pair.tx]);
        let control = self.control_number()?;
        let queues = (0u32..)
            .zip(queues)
            .chain(self.control.as_ref().map(|queue| (control, queue)));
        for (index, queue) in queues {
            let send = |request, payload: &[u8], files: &[_]| {
                self.session.request(request, payload, files)
            };
            let ring = &queue.ring;
            send(request::SET_VRING_NUM, &state(index, ring.size.into()), &[])?;
            send(request::SET_VRING_BASE, &state(index, ring.base()), &[])?;
            let mut addresses = state(index, 0);
            for address in ring.addresses() {
                addresses.extend_from_slice(&address.wrapping_add(user).to_ne_bytes());
            }
            addresses.extend_from_slice(&0u64.to_ne_bytes());
            send(request::SET_VRING_ADDR, &addresses, &[])?;
            let number = u64::from(index).to_ne_bytes();
            send(request::SET_VRING_CALL, &number, &[queue.call.as_fd()])?;
            send(request::SET_VRING_KICK, &number, &[queue.kick.as_fd()])?;
        }
        for pair in &mut self.pairs {
            pair.rx.fill(&self.memory);
            pair.tx.ring.disable_calls(&self.memory);
            signal(&pair.rx.kick);
        }
        let data = (0u32..).take(2 * self.pairs.len());
        for index in data.chain(self.control.as_ref().map(|_| control)) {
            self.session
                .request(request::SET_VRING_ENABLE, &state(index, 1), &[])?;
        }
        Ok(())
    }

    /// The number of the control queue: after all queues of the device, or after the only pair without MQ (virtio 1.3,
    /// 5.1.2).
    fn control_number(&self) -> Result<u32, SessionError> {
        if self.control.is_none() || !self.features.has(Features::MQ) {
            return Ok(2);
        }
        let queues = self.session.get(request::GET_QUEUE_NUM)?;
        Ok(u32::try_from(queues).unwrap_or(u32::MAX).saturating_sub(1))
    }

    /// Sends a command on the control queue and waits for the answer, up to `limit`: the
    /// acknowledgement, then the command's result in at most `room` bytes.
    pub fn command(&mut self, command: &[u8], room: u32, limit: Duration) -> Option<Vec<u8>> {
        let queue = self.control.as_mut()?;
        let (data, answer) = (queue.buffer(0), queue.buffer(1));
        self.memory.write(data, command);
        let parts = [
            Descriptor::from_address(data, command.len() as u32).before(1),
            Descriptor::from_address(answer, 1 + room).flagged(WRITE),
        ];
        for (index, part) in (0u16..).zip(parts) {
            queue.ring.describe(&self.memory, index, part);
        }
        queue.ring.offer(&self.memory, 0);
        if queue.ring.publish(&self.memory) {
            queue.kick();
        }
        let until = std::time::Instant::now() + limit;
        let len = loop {
            if let Some((_, len)) = queue.ring.take_used(&self.memory) {
                break len;
            }
            if std::time::Instant::now() > until {
                return None;
            }
            std::thread::sleep(Duration::from_micros(50));
        };
        let mut bytes = vec![0; len.min(BUFFER_LEN) as usize];
        self.memory.read(answer, &mut bytes);
        Some(bytes)
    }

    /// The counts so far.
    pub fn counts(&mut self) -> Counts {
        for pair in &self.pairs {
            self.counts.calls += drain_event(&pair.rx.call);
            self.counts.tx_calls += drain_event(&pair.tx.call);
        }
        self.counts
    }

    /// Sends a frame; `false` if the ring is full. The device can read the frame at once.
    pub fn send(&mut self, pair: usize, frame: &[u8]) -> bool {
        self.send_with_header(pair, &[0; HEADER_LEN], frame)
    }

    /// Sends a frame with a virtio-net header of the caller's choice.
    pub fn send_with_header(&mut self, pair: usize, header: &[u8], frame: &[u8]) -> bool {
        let Some(queue) = self.pairs.get_mut(pair).map(|pair| &mut pair.tx) else {
            return false;
        };
        while let Some((head, _)) = queue.ring.take_used(&self.memory) {
            queue.free.push(head);
        }
        queue.ring.disable_calls(&self.memory);
        let step = if self.layout == Layout::Chained { 2 } else { 1 };
        // A chain of two takes an even descriptor and the odd one after it.
        let head = loop {
            match queue.free.pop() {
                Some(head) if head % step == 0 => break head,
                Some(_) => {}
                None => return false,
            }
        };
        let buffer = queue.buffers + u64::from(BUFFER_LEN) * u64::from(head);
        self.memory.write(buffer, header);
        self.memory.write(buffer + header.len() as u64, frame);
        let (head_len, len) = (header.len() as u32, frame.len() as u32);
        let first = Descriptor::from_address(buffer, head_len);
        let second = Descriptor::from_address(buffer + u64::from(head_len), len);
        let described = match self.layout {
            Layout::Single => Descriptor::from_address(buffer, head_len + len),
            Layout::Chained => {
                queue.ring.describe(&self.memory, head + 1, second);
                first.before(head + 1)
            }
            Layout::Indirect => {
                let table = queue.tables + 32 * u64::from(head);
                self.memory.write(table, &first.before(1).to_bytes());
                self.memory.write(table + 16, &second.to_bytes());
                Descriptor::from_address(table, 32).flagged(INDIRECT)
            }
        };
        queue.ring.describe(&self.memory, head, described);
        queue.ring.offer(&self.memory, head);
        if queue.ring.publish(&self.memory) {
            self.counts.kicks += 1;
            signal(&queue.kick);
        }
        self.counts.sent += 1;
        true
    }

    /// Takes up to `budget` received frames and returns their buffers. As in NAPI, fewer than the budget means that
    /// the ring is empty.
    pub fn receive(&mut self, pair: usize, budget: usize, mut each: impl FnMut(&[u8])) -> usize {
        let Some(queue) = self.pairs.get_mut(pair).map(|pair| &mut pair.rx) else {
            return 0;
        };
        let mut frames = 0;
        while frames < budget
            && let Some((head, len)) = queue.ring.take_used(&self.memory)
        {
            self.frame.clear();
            queue.take_back(&self.memory, (head, len), &mut self.frame);
            // With MRG_RXBUF the header holds the number of buffers of the frame.
            let buffers = self.frame.get(10..).and_then(|rest| rest.first_chunk());
            let buffers = buffers.map_or(1, |count| u16::from_le_bytes(*count));
            for _ in 1..buffers {
                // The device publishes all of a frame's buffers at once.
                let Some(used) = queue.ring.take_used(&self.memory) else {
                    break;
                };
                queue.take_back(&self.memory, used, &mut self.frame);
            }
            frames += 1;
            each(self.frame.get(HEADER_LEN..).unwrap_or_default());
        }
        if frames > 0 && queue.ring.publish(&self.memory) {
            self.counts.rx_kicks += 1;
            signal(&queue.kick);
        }
        self.counts.received += frames as u64;
        frames
    }

    /// Sleeps until a pair's RX queue has a used buffer, up to `limit`. Returns whether it has one.
    pub fn wait(&mut self, pair: usize, limit: Duration) -> bool {
        let Some(queue) = self.pairs.get(pair).map(|pair| &pair.rx) else {
            return false;
        };
        queue.ring.enable_calls(&self.memory);
        if queue.ring.has_used(&self.memory) {
            return true;
        }
        self.counts.sleeps += 1;
        sleep(&mut [PollFd::new(&queue.call, PollFlags::IN)], limit);
        self.counts.calls += drain_event(&queue.call);
        queue.ring.has_used(&self.memory)
    }

    /// Waits until the device has taken all sent frames, up to `limit`.
    pub fn drained_within(&mut self, limit: Duration) -> bool {
        let until = std::time::Instant::now() + limit;
        loop {
            for pair in &mut self.pairs {
                while let Some((head, _)) = pair.tx.ring.take_used(&self.memory) {
                    pair.tx.free.push(head);
                }
            }
            let mut rings = self.pairs.iter().map(|pair| &pair.tx.ring);
            if rings.all(|ring| ring.outstanding() == 0) {
                return true;
            }
            if std::time::Instant::now() > until {
                return false;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

impl Queue {
    fn new(memory: &mut GuestMemory, size: u16, agreed: Features) -> std::io::Result<Self> {
        let event_idx = agreed.has(Features::EVENT_IDX);
        let ring = if agreed.has(Features::RING_PACKED) {
            DriverRing::packed(memory, size, event_idx)
        } else {
            DriverRing::new(memory, size, event_idx)
        };
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            ring,
            buffers: memory.allocate(usize::from(size) * BUFFER_LEN as usize),
            tables: memory.allocate(usize::from(size) * 32),
            free: (0..size).rev().collect(),
            kick: rustix::event::eventfd(0, flags)?,
            call: rustix::event::eventfd(0, flags)?,
        })
    }

    /// Kicks without regard to the device's suppression of kicks.
    pub fn kick(&self) {
        signal(&self.kick);
    }

    /// The address of a descriptor's buffer.
    pub fn buffer(&self, index: u16) -> u64 {
        self.buffers + u64::from(BUFFER_LEN) * u64::from(index)
    }

    /// Room for indirect tables: 32 bytes for each ring entry.
    pub fn tables(&self) -> u64 {
        self.tables
    }

    fn fill(&mut self, memory: &GuestMemory) {
        for index in 0..self.ring.size {
            let buffer = Descriptor::from_address(self.buffer(index), BUFFER_LEN).flagged(WRITE);
            self.ring.describe(memory, index, buffer);
            self.ring.offer(memory, index);
        }
        self.ring.publish(memory);
        self.ring.disable_calls(memory);
    }

    /// Appends the bytes of a used buffer to `frame` and offers the buffer again.
    fn take_back(&mut self, memory: &GuestMemory, (head, len): (u16, u32), frame: &mut Vec<u8>) {
        let start = frame.len();
        frame.resize(start + len.min(BUFFER_LEN) as usize, 0);
        let bytes = frame.get_mut(start..).unwrap_or_default();
        memory.read(self.buffer(head), bytes);
        self.ring.offer(memory, head);
    }
}

/// Sleeps until an event, up to `limit`. The rings are read after an interruption or expiry as well.
fn sleep(events: &mut [PollFd<'_>], limit: Duration) {
    let _ = rustix::event::poll(events, Timespec::try_from(limit).ok().as_ref());
}

fn signal(event: &OwnedFd) {
    // Fails only when the counter is full, and then the event is set.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

fn drain_event(event: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(event, &mut count) {
        Ok(8) => u64::from_ne_bytes(count),
        _ => 0,
    }
}

/// Sleeps until the RX queue of any NIC's first pair has a used buffer, up to `limit`.
pub fn wait_for_any(nics: &mut [Nic], limit: Duration) {
    let queues = || {
        nics.iter()
            .filter_map(|nic| Some((nic, &nic.pairs.first()?.rx)))
    };
    for (nic, queue) in queues() {
        queue.ring.enable_calls(&nic.memory);
    }
    if queues().any(|(nic, queue)| queue.ring.has_used(&nic.memory)) {
        return;
    }
    let mut fds: Vec<_> = queues()
        .map(|(_, queue)| PollFd::new(&queue.call, PollFlags::IN))
        .collect();
    sleep(&mut fds, limit);
    for nic in nics {
        nic.counts.sleeps += 1;
        if let Some(pair) = nic.pairs.first() {
            nic.counts.calls += drain_event(&pair.rx.call);
        }
    }
}
