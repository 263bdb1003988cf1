// SPDX-License-Identifier: Apache-2.0
//! A tap of the kernel. Its frames have virtio-net headers, and a batch of them takes one system call where the kernel
//! has io_uring.

use super::control_socket;
use super::kernel::TapHandles;
use super::packet::{BATCH, Batch, Frame, Packet};
use super::statistics::{LISTED, Statistics};
use super::transfer::Delivery;
use crate::frame::{
    ETHERNET, HEADER_LEN, MAX_FRAME, MAX_HEADERS, NetHeader, Offloads, Stream, TcpSegment,
};
use crate::ioctl::ioctl;
use crate::memory::{Segment, own, peek, peek_from};
use crate::poller::{Poller, PortId, Token};
use crate::ring::Place;
use crate::telemetry::{DropReason, PortCounters};
use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, types};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// The longest frame that is merged with others. Larger ones gain little.
const LONGEST_MERGED: usize = 9_216;

/// Why a tap cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// A name that no interface can have.
    #[error("tap {0:?}: an interface's name has 1 to 15 bytes")]
    Name(String),
    /// The kernel refused.
    #[error("tap {name}: cannot {what}: {cause}{}", advice(cause))]
    System {
        /// The interface.
        name: String,
        /// What was tried.
        what: &'static str,
        /// The kernel's reason.
        cause: io::Error,
    },
}

fn advice(cause: &io::Error) -> &'static str {
    match cause.raw_os_error() {
        Some(libc::EPERM) => " (CAP_NET_ADMIN, or a tap made for this user, is needed)",
        Some(libc::EBUSY) => " (another program holds it)",
        Some(libc::EINVAL) => {
            " (it exists with other settings: with or without multi_queue, or not as a tap)"
        }
        Some(libc::ENOENT) => " (load the kernel module tun)",
        _ => "",
    }
}

/// A tap and its queues.
#[derive(Debug)]
pub struct Tap {
    name: String,
    queues: Vec<TapQueue>,
    offloads: Offloads,
    /// Bytes of the headers before its frames.
    header_len: usize,
    /// The number of attached queues, which get frames.
    attached: usize,
    /// The port's telemetry.
    pub counters: PortCounters,
}

impl Tap {
    /// Attaches to the interface `name`, or makes it, with `queues` queues.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn open(name: &str, queues: u8) -> Result<Self, TapError> {
        let queues = queues.max(1);
        if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
            return Err(TapError::Name(name.into()));
        }
        let queues = (0..queues)
            .map(|_| TapQueue::open(name, queues > 1))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self::new(name, queues))
    }

    fn new(name: &str, queues: Vec<TapQueue>) -> Self {
        Self {
            name: name.into(),
            header_len: HEADER_LEN,
            attached: queues.len(),
            queues,
            offloads: Offloads::default(),
            counters: PortCounters::default(),
        }
    }

    /// A tap for tests: the other end of a SEQPACKET socket is in the place of the kernel. Frames are moved one by
    /// one, or by a ring.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn over(socket: OwnedFd, by_ring: bool) -> Self {
        let ring = by_ring.then(restricted).and_then(Result::ok);
        Self::new("over", vec![TapQueue::new(socket, ring)])
    }

    /// The number of queues.
    pub fn pairs(&self) -> usize {
        self.queues.len()
    }

    /// Registers its queues with `poller`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn watch(&self, poller: &Poller, id: PortId) -> Result<(), rustix::io::Errno> {
        for (queue, number) in self.queues.iter().zip(0..) {
            poller.watch(&queue.file, Token::Tap(id, number))?;
        }
        Ok(())
    }

    /// Sets the offloads of frames that the kernel sends. A refusal costs only speed: the work is done in software.
    pub fn set_offloads(&mut self, offloads: Offloads) {
        if offloads == self.offloads {
            return;
        }
        self.offloads = offloads;
        let bit = |set, bit| if set { bit } else { 0 };
        let mut flags = 0;
        if offloads.checksum {
            flags = libc::TUN_F_CSUM
                | bit(offloads.tso4, libc::TUN_F_TSO4)
                | bit(offloads.tso6, libc::TUN_F_TSO6)
                | bit(offloads.ecn && offloads.tso4, libc::TUN_F_TSO_ECN)
                | bit(offloads.ufo, libc::TUN_F_UFO);
        }
        if let Some(queue) = self.queues.first() {
            let file = queue.file.as_raw_fd();
            // SAFETY: TUNSETOFFLOAD takes a number.
            unsafe { libc::ioctl(file, libc::TUNSETOFFLOAD as _, libc::c_ulong::from(flags)) };
        }
    }

    /// Duplicates of its descriptors for the kernel's data path.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn ends(&self) -> io::Result<TapHandles> {
        let files = self.queues.iter().map(|queue| queue.file.try_clone());
        Ok(TapHandles {
            queues: files.collect::<io::Result<_>>()?,
            control: control_socket::open(&self.name),
            statistics: Statistics::open(Path::new(LISTED), &self.name).ok(),
        })
    }

    /// Sets it up for the kernel's data path: headers as long as the guest's, and as many attached queues as the guest
    /// has running pairs.
    pub fn hand_over(&mut self, header_len: usize, pairs: usize) {
        if header_len != self.header_len {
            self.header_len = header_len;
            for queue in &self.queues {
                let _ = set_header_len(&queue.file, header_len);
            }
        }
        let wanted = pairs.clamp(1, self.queues.len());
        for (number, queue) in self.queues.iter().enumerate() {
            if (number < wanted) != (number < self.attached) {
                attach(&queue.file, number < wanted);
            }
        }
        self.attached = wanted;
    }

    /// Takes up to a batch of frames that the kernel sends.
    pub fn pull(&mut self, queue: usize, batch: &mut Batch) {
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.pull(batch);
        }
    }

    /// Removes the first `done` frames of the last batch. The others come again.
    pub fn complete(&mut self, queue: usize, batch: &Batch, done: usize) {
        if let Some(queue) = self.queues.get_mut(queue) {
            for _ in 0..done {
                queue.pending.pop_front();
            }
        }
        let packets = batch.packets.iter().take(done);
        self.counters.totals.tx_bytes += packets.map(|packet| u64::from(packet.len)).sum::<u64>();
        self.counters.totals.tx_packets += done as u64;
    }

    /// Queues a frame for the kernel, until the next [`Tap::publish`]. Its segments must be valid until then.
    pub fn deliver(&mut self, queue: usize, frame: &Frame) -> Delivery {
        let queues = self.queues.len();
        let Some(queue) = self.queues.get_mut(queue % queues) else {
            return Delivery::Dropped(DropReason::NotRunning);
        };
        if queue.outgoing.len() == BATCH {
            queue.flush(&mut self.counters);
        }
        queue.push(frame, self.header_len);
        self.counters.totals.rx_packets += 1;
        self.counters.totals.rx_bytes += frame.len as u64;
        Delivery::Delivered
    }

    /// Sends the delivered frames.
    pub fn publish(&mut self) {
        for queue in &mut self.queues {
            queue.flush(&mut self.counters);
        }
    }
}

/// One queue of a tap.
struct TapQueue {
    file: OwnedFd,
    ring: Option<IoUring>,
    /// Room for a batch of frames with their headers.
    buffers: Vec<Box<[u8]>>,
    /// Frames that were read and not removed: their buffers, and their bytes with the header.
    pending: VecDeque<(usize, usize)>,
    /// The number of reads to submit at once.
    ambition: usize,
    headers: Box<[[u8; HEADER_LEN]; BATCH]>,
    vectors: Vec<libc::iovec>,
    /// The index of each outgoing frame's first vector.
    outgoing: Vec<usize>,
    /// Buffers for merged frames of TCP segments, as many as there may be outgoing frames.
    rooms: Vec<Box<[u8]>>,
    /// The number of these buffers in use.
    taken: usize,
    /// The segments in the last of these buffers, which is the last outgoing frame, and its length in bytes.
    stream: Option<(Stream, usize)>,
}

// SAFETY: the vectors are used, and point to memory, only within one call of `forward`.
unsafe impl Send for TapQueue {}

impl std::fmt::Debug for TapQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TapQueue")
            .field("file", &self.file)
            .field("pending", &self.pending.len())
            .finish_non_exhaustive()
    }
}

impl TapQueue {
    fn open(name: &str, several: bool) -> Result<Self, TapError> {
        let failed = |what, cause: io::Error| TapError::System {
            name: name.into(),
            what,
            cause,
        };
        let mode = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = open("/dev/net/tun", mode, Mode::empty())
            .map_err(|cause| failed("open /dev/net/tun", cause.into()))?;
        let mut flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        if several {
            flags |= libc::IFF_MULTI_QUEUE;
        }
        let mut request = interface(flags);
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = libc::c_char::from_ne_bytes([from]);
        }
        // SAFETY: TUNSETIFF reads and writes an `ifreq`.
        unsafe { ioctl(&file, libc::TUNSETIFF as u32, &mut request) }
            .map_err(|cause| failed("attach to it", cause.into()))?;
        set_header_len(&file, HEADER_LEN)
            .map_err(|cause| failed("set the size of its headers", cause.into()))?;
        // A kernel or a sandbox without it costs a system call a frame.
        let ring = restricted()
            .ok()
            .and_then(|ring| without_waiting(ring, &file));
        Ok(Self::new(file, ring))
    }

    fn new(file: OwnedFd, ring: Option<IoUring>) -> Self {
        Self {
            ring,
            file,
            buffers: (0..BATCH)
                .map(|_| vec![0; HEADER_LEN + MAX_FRAME].into_boxed_slice())
                .collect(),
            pending: VecDeque::with_capacity(BATCH),
            ambition: 2,
            headers: Box::new([[0; HEADER_LEN]; BATCH]),
            vectors: Vec::with_capacity(BATCH * 4),
            outgoing: Vec::with_capacity(BATCH),
            rooms: Vec::new(),
            taken: 0,
            stream: None,
        }
    }

    fn pull(&mut self, batch: &mut Batch) {
        if self.pending.is_empty() {
            self.read();
        }
        for (buffer, bytes) in &self.pending {
            let Some(buffer) = self.buffers.get(*buffer) else {
                continue;
            };
            let mut header = [0; HEADER_LEN];
            header.copy_from_slice(&buffer[..HEADER_LEN]);
            let frame = buffer.get(HEADER_LEN..*bytes).unwrap_or(&[]);
            // The header may come unchecked from the sender on another tap.
            let header = NetHeader::from_bytes(&header);
            let is_sound =
                frame.len() >= ETHERNET && header.checked(frame.len(), Offloads::ALL).is_ok();
            #[expect(
                clippy::cast_possible_truncation,
                reason = "both are below 2^32: a batch has 64 frames of at most MAX_FRAME"
            )]
            batch.packets.push(Packet {
                header,
                first: batch.segments.len() as u32,
                count: 1,
                len: frame.len() as u32,
                place: Place::default(),
                plain: false,
                refused: (!is_sound).then_some(DropReason::Malformed),
            });
            batch.segments.push(own(frame));
        }
    }

    /// Reads the available frames, up to a batch. Fewer than the submitted reads means that no more are available.
    fn read(&mut self) {
        let tried = self.ambition;
        let buffers = &mut self.buffers[..tried];
        let read = match &mut self.ring {
            Some(ring) => read_batch(ring, &self.file, buffers, &mut self.pending, |_| {}),
            None => read_one_by_one(&self.file, buffers, &mut self.pending),
        };
        if read == tried {
            self.ambition = (tried * 4).min(BATCH);
        } else if read < tried / 4 {
            self.ambition = (tried / 2).max(2);
        }
    }

    fn push(&mut self, frame: &Frame, header_len: usize) {
        if !self.merge(frame, header_len) {
            self.end_stream();
            self.append(frame.header, header_len, frame.segments);
        }
    }

    /// Appends an outgoing frame.
    fn append(&mut self, header: NetHeader, header_len: usize, segments: &[Segment]) {
        let Some(room) = self.headers.get_mut(self.outgoing.len()) else {
            return;
        };
        *room = header.to_bytes(0);
        self.outgoing.push(self.vectors.len());
        self.vectors.push(libc::iovec {
            iov_base: room.as_mut_ptr().cast(),
            iov_len: header_len,
        });
        let vector = |segment: &Segment| libc::iovec {
            iov_base: segment.host.cast(),
            iov_len: segment.len as usize,
        };
        self.vectors.extend(segments.iter().map(vector));
    }

    /// Copies a TCP segment, and adds those of its stream that follow, so that the kernel gets the segments of a guest
    /// without TSO as one frame. Returns whether the frame was copied.
    fn merge(&mut self, frame: &Frame, header_len: usize) -> bool {
        if frame.len > LONGEST_MERGED || frame.header.segmentation().is_some() {
            return false;
        }
        let mut start = [0; MAX_HEADERS];
        let known = peek(frame.segments, &mut start).min(frame.len);
        let start = &start[..known];
        let Some(next) = TcpSegment::starting_with(start, frame.len, frame.header) else {
            return false;
        };
        let headers = &start[..next.header_len()];
        #[expect(clippy::cast_possible_truncation, reason = "at most MAX_HEADERS")]
        let skipped = headers.len() as u32;
        if let Some((stream, end)) = &mut self.stream
            && let Some(room) = self.rooms.get_mut(self.taken.wrapping_sub(1))
            && stream.goes_on(room, &next, headers)
            && let Some(payload) = room.get_mut(*end..*end + frame.len - headers.len())
        {
            peek_from(frame.segments, skipped, payload);
            if next.is_sound(headers, payload) {
                stream.add(&next);
                *end += payload.len();
                return true;
            }
            return false;
        }
        self.end_stream();
        if self.rooms.len() == self.taken {
            self.rooms.push(vec![0; MAX_FRAME].into_boxed_slice());
        }
        let Some(whole) = self.rooms[self.taken].get_mut(..frame.len) else {
            return false;
        };
        whole[..headers.len()].copy_from_slice(headers);
        peek_from(frame.segments, skipped, &mut whole[headers.len()..]);
        if !next.is_sound(headers, &whole[headers.len()..]) {
            return false;
        }
        let segments = [own(whole)];
        self.append(frame.header, header_len, &segments);
        self.taken += 1;
        self.stream = Some((Stream::new(next), frame.len));
        true
    }

    /// Finishes the last outgoing frame.
    fn end_stream(&mut self) {
        let Some((stream, end)) = self.stream.take() else {
            return;
        };
        let room = self.rooms.get_mut(self.taken.wrapping_sub(1));
        let header = self.headers.get_mut(self.outgoing.len().wrapping_sub(1));
        if let (Some(room), Some(header), Some(vector)) = (room, header, self.vectors.last_mut())
            && let Some(frame) = room.get_mut(..end)
        {
            if let Some(whole) = stream.finish(frame) {
                *header = whole.to_bytes(0);
            }
            vector.iov_base = frame.as_mut_ptr().cast();
            vector.iov_len = end;
        }
    }

    fn flush(&mut self, counters: &mut PortCounters) {
        if self.outgoing.is_empty() {
            return;
        }
        self.end_stream();
        self.taken = 0;
        let vectors = &self.vectors;
        let frames = self.outgoing.iter().enumerate().map(|(index, start)| {
            let end = self.outgoing.get(index + 1).copied();
            vectors
                .get(*start..end.unwrap_or(vectors.len()))
                .unwrap_or(&[])
        });
        let failed = match &mut self.ring {
            // One write is as cheap as one submission.
            Some(ring) if self.outgoing.len() > 1 => write_batch(ring, &self.file, frames),
            _ => write_one_by_one(&self.file, frames),
        };
        counters.totals.drops.add(DropReason::Tap, failed);
        self.vectors.clear();
        self.outgoing.clear();
    }
}

fn set_header_len(file: &OwnedFd, len: usize) -> Result<(), Errno> {
    let mut len = libc::c_int::try_from(len).unwrap_or(0);
    // SAFETY: TUNSETVNETHDRSZ reads an int.
    unsafe { ioctl(file, libc::TUNSETVNETHDRSZ as u32, &mut len) }
}

/// A request about an interface.
fn interface(flags: libc::c_int) -> libc::ifreq {
    // SAFETY: all-zero is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_ifru.ifru_flags = flags.try_into().unwrap_or(0);
    request
}

/// Attaches or detaches one queue of several. On failure a detached queue keeps frames that are not read.
fn attach(file: &OwnedFd, attach: bool) {
    let flag = if attach {
        libc::IFF_ATTACH_QUEUE
    } else {
        libc::IFF_DETACH_QUEUE
    };
    // SAFETY: TUNSETQUEUE reads an `ifreq`.
    let _ = unsafe { ioctl(file, libc::TUNSETQUEUE as u32, &mut interface(flag)) };
}

/// A ring restricted to reads and writes, because seccomp does not see its operations.
fn restricted() -> io::Result<IoUring> {
    let ring = IoUring::builder().setup_r_disabled().build(128)?;
    let mut allowed = [opcode::Read::CODE, opcode::Writev::CODE].map(Restriction::sqe_op);
    ring.submitter().register_restrictions(&mut allowed)?;
    ring.submitter().register_enable_rings()?;
    Ok(ring)
}

/// Returns the ring if its operations on a tap never wait, as since Linux 6.4.
fn without_waiting(mut ring: IoUring, file: &OwnedFd) -> Option<IoUring> {
    let (mut buffer, mut pending) = ([vec![0].into_boxed_slice()], VecDeque::new());
    let mut supported = true;
    let failed = |result| supported = result != -libc::EOPNOTSUPP;
    read_batch(&mut ring, file, &mut buffer, &mut pending, failed);
    supported.then_some(ring)
}

/// One system call for all of `buffers`. Every read ends at once.
fn read_batch(
    ring: &mut IoUring,
    file: &OwnedFd,
    buffers: &mut [Box<[u8]>],
    pending: &mut VecDeque<(usize, usize)>,
    mut failed: impl FnMut(i32),
) -> usize {
    let file = types::Fd(file.as_raw_fd());
    let mut pushed = 0;
    for (index, buffer) in buffers.iter_mut().enumerate() {
        let len = u32::try_from(buffer.len()).unwrap_or(0);
        let entry = opcode::Read::new(file, buffer.as_mut_ptr(), len)
            .rw_flags(libc::RWF_NOWAIT)
            .build()
            .user_data(index as u64);
        // SAFETY: the buffer lives and nothing accesses it until the read has ended, for which `finish` waits.
        pushed += usize::from(unsafe { ring.submission().push(&entry) }.is_ok());
    }
    let mut read = 0;
    finish(ring, pushed, |index, result| {
        if let (Ok(index), Ok(bytes)) = (usize::try_from(index), usize::try_from(result))
            && bytes > 0
        {
            pending.push_back((index, bytes));
            read += 1;
        } else {
            failed(result);
        }
    });
    read
}

/// Submits `pushed` operations and waits for all of them. Until then their memory must not be accessed.
fn finish(ring: &mut IoUring, pushed: usize, mut completed: impl FnMut(u64, i32)) {
    let mut left = pushed;
    while left > 0 {
        match ring.submit_and_wait(left) {
            Ok(_) => {}
            Err(cause) => match cause.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => {}
                // The ring itself is broken, which no input can cause.
                _ => return,
            },
        }
        for entry in ring.completion() {
            left = left.saturating_sub(1);
            completed(entry.user_data(), entry.result());
        }
    }
}

fn read_one_by_one(
    file: &OwnedFd,
    buffers: &mut [Box<[u8]>],
    pending: &mut VecDeque<(usize, usize)>,
) -> usize {
    let mut read = 0;
    for (index, buffer) in buffers.iter_mut().enumerate() {
        match rustix::io::read(file, &mut buffer[..]) {
            Ok(bytes) if bytes > 0 => pending.push_back((index, bytes)),
            _ => break,
        }
        read += 1;
    }
    read
}

/// One system call for all of `frames`. Returns how many failed.
fn write_batch<'a>(
    ring: &mut IoUring,
    file: &OwnedFd,
    frames: impl Iterator<Item = &'a [libc::iovec]>,
) -> u64 {
    let file = types::Fd(file.as_raw_fd());
    let (mut pushed, mut failed) = (0, 0);
    for frame in frames {
        let len = u32::try_from(frame.len()).unwrap_or(0);
        let entry = opcode::Writev::new(file, frame.as_ptr(), len)
            .rw_flags(libc::RWF_NOWAIT)
            .build();
        // SAFETY: the vectors and the memory that they point to live until the write has ended, for which `finish`
        // waits.
        match unsafe { ring.submission().push(&entry) } {
            Ok(()) => pushed += 1,
            Err(_) => failed += 1,
        }
    }
    finish(ring, pushed, |_, result| failed += u64::from(result < 0));
    failed
}

fn write_one_by_one<'a>(file: &OwnedFd, frames: impl Iterator<Item = &'a [libc::iovec]>) -> u64 {
    let mut failed = 0;
    for frame in frames {
        let len = libc::c_int::try_from(frame.len()).unwrap_or(0);
        // SAFETY: the vectors and the memory that they point to live until the call returns.
        let written = unsafe { libc::writev(file.as_raw_fd(), frame.as_ptr(), len) };
        failed += u64::from(written < 0);
    }
    failed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::testing::{ipv4, tcp};
    use crate::frame::{GsoKind, segment as segment_into};
    use io_uring::squeue::Entry;

    /// The kernel's result of one operation.
    fn result(ring: &mut IoUring, entry: &Entry) -> i32 {
        // SAFETY: the memory that the test's entries point to outlives the ring.
        unsafe { ring.submission().push(entry) }.unwrap();
        let mut reported = 0;
        finish(ring, 1, |_, result| reported = result);
        reported
    }

    /// Segments of one stream, as a guest without offloads sends them, cut from `payload` bytes.
    fn segments_of(payload: usize) -> Vec<(Vec<u8>, NetHeader)> {
        let segment = tcp(7, 0x18, &vec![5; payload]);
        let header = NetHeader::segments(GsoKind::Tcp4, 1_448, 54, 34).unwrap();
        let (mut frames, whole) = (Vec::new(), ipv4(6, &segment));
        segment_into(&whole, header, false, &mut Vec::new(), |frame, header| {
            frames.push((frame.to_vec(), header));
        })
        .unwrap();
        frames
    }

    fn sent(tap: &mut Tap, frames: &[(Vec<u8>, NetHeader)], kernel: &OwnedFd) -> Vec<Vec<u8>> {
        for (bytes, header) in frames {
            // A guest may place the headers in one segment and the rest in another.
            let (head, rest) = bytes.split_at(40);
            let frame = Frame {
                header: *header,
                segments: &[own(head), own(rest)],
                len: bytes.len(),
            };
            assert_eq!(tap.deliver(0, &frame), Delivery::Delivered);
        }
        tap.publish();
        let mut message = vec![0; HEADER_LEN + MAX_FRAME];
        let mut came = Vec::new();
        while let Ok(len @ 1..) = rustix::io::read(kernel, &mut message[..]) {
            came.push(message[..len].to_vec());
        }
        came
    }

    #[test]
    fn the_kernel_gets_segments_of_a_stream_in_one_and_can_cut_them_again() {
        for by_ring in [false, true] {
            let (kernel, own) = rustix::net::socketpair(
                rustix::net::AddressFamily::UNIX,
                rustix::net::SocketType::SEQPACKET,
                rustix::net::SocketFlags::NONBLOCK,
                None,
            )
            .unwrap();
            let mut tap = Tap::over(own, by_ring);
            let frames = segments_of(20_000);
            // The stream is sent twice: its segments fill one frame, and the second pass uses the first buffer again.
            for _ in 0..2 {
                let came = sent(&mut tap, &frames, &kernel);
                let (header, frame) = came[0].split_at(HEADER_LEN);
                let header = NetHeader::from_bytes(header.try_into().unwrap());
                assert_eq!(header.segmentation(), Some((GsoKind::Tcp4, 1_448)));
                let mut again = Vec::new();
                segment_into(frame, header, false, &mut Vec::new(), |frame, header| {
                    again.push((frame.to_vec(), header));
                })
                .unwrap();
                assert_eq!(again, frames);
                assert_eq!(came.len(), 1);
            }
            // A frame outside the stream is sent unchanged and in order.
            let mut mixed = frames[..3].to_vec();
            mixed[1].0[60] ^= 1;
            let came = sent(&mut tap, &mixed, &kernel);
            let plain: Vec<_> = came.iter().map(|frame| &frame[HEADER_LEN..]).collect();
            assert_eq!(plain, [&mixed[0].0, &mixed[1].0, &mixed[2].0]);
            assert_eq!(tap.counters.totals.rx_packets, frames.len() as u64 * 2 + 3);
        }
    }

    #[test]
    fn a_taps_ring_opens_no_file_and_no_socket_and_changes_no_restriction() {
        let mut ring = match restricted() {
            Ok(ring) => ring,
            Err(cause) => return eprintln!("SKIPPED: no restricted io_uring here: {cause}"),
        };
        let path = c"/etc/passwd".as_ptr();
        let here = types::Fd(libc::AT_FDCWD);
        let null = std::fs::File::open("/dev/null").unwrap();
        let file = types::Fd(null.as_raw_fd());
        for (what, entry) in [
            ("open", opcode::OpenAt::new(here, path).build()),
            ("unlink", opcode::UnlinkAt::new(here, path).build()),
            ("socket", opcode::Socket::new(libc::AF_INET, 1, 0).build()),
            (
                "connect",
                opcode::Connect::new(file, path.cast(), 16).build(),
            ),
            ("send", opcode::Send::new(file, path.cast(), 1).build()),
            (
                "ring message",
                opcode::MsgRingData::new(file, 0, 0, None).build(),
            ),
            ("read, linked", {
                let read = opcode::Read::new(file, std::ptr::null_mut(), 0).build();
                read.flags(io_uring::squeue::Flags::IO_LINK)
            }),
        ] {
            assert_eq!(result(&mut ring, &entry), -libc::EACCES, "{what}");
        }
        let read = opcode::Read::new(file, std::ptr::null_mut(), 0).build();
        assert_eq!(result(&mut ring, &read), 0);
        let files = [null.as_raw_fd()];
        assert!(ring.submitter().register_files(&files).is_err());
    }
}
