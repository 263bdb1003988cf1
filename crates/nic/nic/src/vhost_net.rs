// SPDX-License-Identifier: Apache-2.0
//! `/dev/vhost-net`: the kernel's data path between the two rings of a pair and a queue of a tap
//! (`linux/vhost.h`).

use crate::ioctl::ioctl;
use crate::memory::{MAX_REGIONS, MappedRegion};
use crate::ring::RingAddresses;
use rustix::fs::{Mode, OFlags, open};
use rustix::ioctl::opcode::{none, read, read_write, write};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// The path of the device.
pub const PATH: &str = "/dev/vhost-net";

const GROUP: u8 = 0xaf;
const GET_FEATURES: u32 = read::<u64>(GROUP, 0x00);
const SET_FEATURES: u32 = write::<u64>(GROUP, 0x00);
const SET_OWNER: u32 = none(GROUP, 0x01);
const RESET_OWNER: u32 = none(GROUP, 0x02);
/// The size in its number is that of a table without regions.
const SET_MEM_TABLE: u32 = write::<u64>(GROUP, 0x03);
const SET_LOG_BASE: u32 = write::<u64>(GROUP, 0x04);
const SET_VRING_NUM: u32 = write::<VringState>(GROUP, 0x10);
const SET_VRING_ADDR: u32 = write::<VringAddr>(GROUP, 0x11);
const SET_VRING_BASE: u32 = write::<VringState>(GROUP, 0x12);
const GET_VRING_BASE: u32 = read_write::<VringState>(GROUP, 0x12);
const SET_VRING_KICK: u32 = write::<VringFile>(GROUP, 0x20);
const SET_VRING_CALL: u32 = write::<VringFile>(GROUP, 0x21);
const SET_VRING_ERR: u32 = write::<VringFile>(GROUP, 0x22);
const NET_SET_BACKEND: u32 = write::<VringFile>(GROUP, 0x30);

/// The ioctl requests of a worker in its sandbox.
pub const REQUESTS: [u32; 13] = [
    SET_FEATURES,
    SET_OWNER,
    RESET_OWNER,
    SET_MEM_TABLE,
    SET_LOG_BASE,
    SET_VRING_NUM,
    SET_VRING_ADDR,
    SET_VRING_BASE,
    GET_VRING_BASE,
    SET_VRING_KICK,
    SET_VRING_CALL,
    SET_VRING_ERR,
    NET_SET_BACKEND,
];

/// The flag of a ring's addresses that asks for a log of writes to the used ring.
const LOG_USED: u32 = 1;

/// A request that the kernel refused.
#[derive(Debug, thiserror::Error)]
#[error("vhost-net: cannot {what}: {cause}")]
pub struct VhostError {
    what: &'static str,
    cause: io::Error,
}

impl VhostError {
    /// The error of `what` was tried, with the kernel's reason.
    pub fn new(what: &'static str, cause: io::Error) -> Self {
        Self { what, cause }
    }
}

/// A ring of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// The receive ring.
    Rx,
    /// The transmit ring.
    Tx,
}

/// The events of a ring with a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The driver has offered buffers.
    Kick,
    /// Buffers were returned.
    Call,
    /// The ring is invalid.
    Error,
}

/// A data path of the kernel for one queue pair; a trait so that tests can see its requests.
///
/// Each function fails when the kernel refuses.
#[expect(
    clippy::missing_errors_doc,
    reason = "documented above, for all methods"
)]
pub trait Device: std::fmt::Debug + Send {
    /// Makes this process its owner, whose addresses it uses, and starts its thread.
    fn own(&self) -> Result<(), VhostError>;
    /// Ends its thread and forgets its settings.
    fn disown(&self) -> Result<(), VhostError>;
    /// Sets the features that were negotiated.
    fn set_features(&self, features: u64) -> Result<(), VhostError>;
    /// Replaces the regions of guest memory.
    fn set_memory(&self, regions: &[MappedRegion]) -> Result<(), VhostError>;
    /// Sets the address of the dirty log in this process.
    fn set_log(&self, log: u64) -> Result<(), VhostError>;
    /// Sets the addresses in this process, the size and the available index of a ring that does not run.
    fn set_ring(
        &self,
        half: Half,
        size: u16,
        base: u16,
        addresses: RingAddresses,
    ) -> Result<(), VhostError>;
    /// Sets the descriptor of an event of a ring, or none.
    fn set_event(
        &self,
        half: Half,
        event: Event,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(), VhostError>;
    /// Starts a ring by joining it to a queue of a tap, or stops it and waits for its operations.
    fn set_backend(&self, half: Half, tap: Option<BorrowedFd<'_>>) -> Result<(), VhostError>;
    /// The available index from which a stopped ring continues.
    fn base(&self, half: Half) -> Result<u16, VhostError>;
}

/// The device itself.
#[derive(Debug)]
pub struct VhostNet(OwnedFd);

#[repr(C)]
struct VringState {
    index: u32,
    number: u32,
}

#[repr(C)]
struct VringFile {
    index: u32,
    file: i32,
}

#[repr(C)]
struct VringAddr {
    index: u32,
    flags: u32,
    descriptors: u64,
    used: u64,
    available: u64,
    log: u64,
}

#[repr(C)]
struct MemoryTable {
    count: u32,
    padding: u32,
    regions: [MappedRegion; MAX_REGIONS],
}

impl VhostNet {
    /// Opens it.
    ///
    /// # Errors
    /// When there is none, or the kernel refuses.
    pub fn open(path: &Path) -> Result<Self, VhostError> {
        open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map(Self)
            .map_err(|cause| VhostError::new("open /dev/vhost-net", cause.into()))
    }

    /// The features that the device offers.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn features(&self) -> Result<u64, VhostError> {
        let mut features = 0;
        self.ask(GET_FEATURES, "ask for its features", &mut features)?;
        Ok(features)
    }

    /// `argument` is of the type that the request's number names.
    fn ask<T>(&self, request: u32, what: &'static str, argument: &mut T) -> Result<(), VhostError> {
        // SAFETY: each request above reads, or writes, a `T` of its own; a memory table has as many regions as it says.
        let result = unsafe { ioctl(&self.0, request, argument) };
        result.map_err(|cause| VhostError::new(what, cause.into()))
    }

    fn set_file(
        &self,
        request: u32,
        what: &'static str,
        half: Half,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(), VhostError> {
        let mut file = VringFile {
            index: half.index(),
            file: file.map_or(-1, |file| file.as_raw_fd()),
        };
        self.ask(request, what, &mut file)
    }
}

impl Half {
    /// The half of a queue. Receive queues have even numbers (virtio 1.3, 5.1.2).
    #[inline]
    pub fn of_queue(number: usize) -> Self {
        if number.is_multiple_of(2) {
            Self::Rx
        } else {
            Self::Tx
        }
    }

    /// Its number in the device.
    pub fn index(self) -> u32 {
        match self {
            Self::Rx => 0,
            Self::Tx => 1,
        }
    }
}

impl Device for VhostNet {
    fn own(&self) -> Result<(), VhostError> {
        self.ask(SET_OWNER, "start its thread", &mut ())
    }

    fn disown(&self) -> Result<(), VhostError> {
        self.ask(RESET_OWNER, "end its thread", &mut ())
    }

    fn set_features(&self, mut features: u64) -> Result<(), VhostError> {
        self.ask(SET_FEATURES, "set features", &mut features)
    }

    fn set_memory(&self, regions: &[MappedRegion]) -> Result<(), VhostError> {
        let mut table = MemoryTable {
            count: 0,
            padding: 0,
            regions: [MappedRegion::default(); MAX_REGIONS],
        };
        for (to, from) in table.regions.iter_mut().zip(regions) {
            *to = *from;
            table.count += 1;
        }
        self.ask(SET_MEM_TABLE, "set guest memory", &mut table)
    }

    fn set_log(&self, mut log: u64) -> Result<(), VhostError> {
        self.ask(SET_LOG_BASE, "set the dirty log", &mut log)
    }

    fn set_ring(
        &self,
        half: Half,
        size: u16,
        base: u16,
        addresses: RingAddresses,
    ) -> Result<(), VhostError> {
        let state = |number: u16| VringState {
            index: half.index(),
            number: number.into(),
        };
        self.ask(SET_VRING_NUM, "set a ring's size", &mut state(size))?;
        self.ask(SET_VRING_BASE, "set a ring's base", &mut state(base))?;
        let mut addresses = VringAddr {
            index: half.index(),
            flags: addresses.used_log.map_or(0, |_| LOG_USED),
            descriptors: addresses.descriptors,
            used: addresses.used,
            available: addresses.available,
            log: addresses.used_log.unwrap_or(0),
        };
        self.ask(SET_VRING_ADDR, "set a ring's addresses", &mut addresses)
    }

    fn set_event(
        &self,
        half: Half,
        event: Event,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(), VhostError> {
        let request = match event {
            Event::Kick => SET_VRING_KICK,
            Event::Call => SET_VRING_CALL,
            Event::Error => SET_VRING_ERR,
        };
        self.set_file(request, "set an event descriptor", half, file)
    }

    fn set_backend(&self, half: Half, tap: Option<BorrowedFd<'_>>) -> Result<(), VhostError> {
        self.set_file(NET_SET_BACKEND, "join a ring to its tap", half, tap)
    }

    fn base(&self, half: Half) -> Result<u16, VhostError> {
        let mut state = VringState {
            index: half.index(),
            number: 0,
        };
        self.ask(GET_VRING_BASE, "ask for a ring's base", &mut state)?;
        #[expect(clippy::cast_possible_truncation, reason = "a split ring's index")]
        Ok(state.number as u16)
    }
}
