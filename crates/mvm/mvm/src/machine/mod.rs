// SPDX-License-Identifier: Apache-2.0
//! One guest: its state, its clock, and its run on a slot.

pub mod devices;
pub mod kvm;
pub mod pack;
pub mod slice;
pub mod state;

use crate::error::Result;
use devices::Devices;
use kvm::{Exit, Slot};
use state::{Processor, Reset};
use std::time::Instant;

/// Guest memory in bytes: the first 64 KiB of conventional memory. Addresses above read as ones.
pub const MEMORY: usize = 64 << 10;

/// The clock of a guest, in ns.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The host's monotonic clock, since an instant, plus an offset.
    Host {
        /// The time at which the clock read `offset`.
        since: Instant,
        /// The reading at that time, in ns.
        offset: u64,
    },
    /// A microsecond for each reading, so that time depends only on the guest's actions.
    Counted(u64),
}

impl Clock {
    /// A host clock that reads `offset` ns now.
    #[must_use]
    pub fn host(offset: u64) -> Self {
        Self::Host {
            since: Instant::now(),
            offset,
        }
    }

    /// The time, in ns.
    pub fn now(&mut self) -> u64 {
        match self {
            Self::Host { since, offset } => {
                offset.saturating_add(u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX))
            }
            Self::Counted(ns) => {
                *ns += 1000;
                *ns
            }
        }
    }
}

/// The reason why a guest stopped for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Three faults in a row: the processor shut down.
    TripleFault,
    /// The guest requested a reset. A boot sector that resets once would reset for ever.
    Reset,
    /// KVM could not continue; the exit reason of KVM.
    Unsupported(u32),
    /// The guest turned on paging, whose state this monitor does not store.
    Paging,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TripleFault => write!(f, "triple fault"),
            Self::Reset => write!(f, "reset by the guest"),
            Self::Unsupported(exit) => {
                write!(f, "KVM cannot run its next instruction (exit {exit})")
            }
            Self::Paging => write!(f, "paging turned on, which is not supported while parked"),
        }
    }
}

/// The reason why [`run`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Halted, and no interrupt is pending.
    Halted,
    /// The time slice is over.
    Preempted,
    /// The guest has stopped for good.
    Dead(Fault),
}

/// Runs the guest in `slot` until it halts with nothing pending, dies, or is preempted: by the slice timer, or before
/// entering the guest more than `entries` times. Serial output is appended to `output`, up to `output_limit` bytes;
/// further bytes are counted in the second result.
///
/// # Errors
/// [`crate::Error::System`] when KVM itself fails.
pub fn run(
    slot: &mut Slot,
    devices: &mut Devices,
    clock: &mut Clock,
    entries: Option<u32>,
    output: &mut Vec<u8>,
    output_limit: usize,
) -> Result<(Stop, u64)> {
    let mut lost = 0;
    let mut left = entries;
    let mut halted = slot.halted();
    let mut now = clock.now();
    loop {
        devices.advance(now);
        let mut window = false;
        if devices.pic.pending() {
            if slot.interruptible() {
                let vector = devices.pic.acknowledge();
                slot.interrupt(vector);
                halted = false;
            } else {
                window = true;
            }
        }
        if halted {
            return Ok((Stop::Halted, lost));
        }
        if left == Some(0) {
            slot.stop_at_entry();
        }
        let exit = slot.enter(window, |port, value| {
            devices.write(port, value, now, output);
        })?;
        now = clock.now();
        let stop = match exit {
            Exit::Halt => {
                halted = true;
                None
            }
            Exit::Write { port, size, data } => {
                for (i, value) in data.iter().enumerate() {
                    devices.write(port.wrapping_add((i % size) as u16), *value, now, output);
                }
                None
            }
            Exit::Read { port, size, data } => {
                for (i, value) in data.iter_mut().enumerate() {
                    *value = devices.read(port.wrapping_add((i % size) as u16), now);
                }
                None
            }
            Exit::Window => None,
            Exit::Preempted => Some(Stop::Preempted),
            Exit::Shutdown => Some(Stop::Dead(Fault::TripleFault)),
            Exit::Unsupported(reason) => Some(Stop::Dead(Fault::Unsupported(reason))),
        };
        if output.len() > output_limit {
            lost += (output.len() - output_limit) as u64;
            output.truncate(output_limit);
        }
        if devices.reset {
            return Ok((Stop::Dead(Fault::Reset), lost));
        }
        if let Some(stop) = stop {
            return Ok((stop, lost));
        }
        if let Some(left) = &mut left {
            *left = left.saturating_sub(1);
        }
    }
}

/// The whole state of a guest that is in no slot.
#[derive(Clone, Debug, PartialEq)]
pub struct Guest {
    /// The processor.
    pub processor: Processor,
    /// The devices.
    pub devices: Devices,
}

impl Guest {
    /// A guest that has just been reset.
    #[must_use]
    pub fn at_reset(reset: &Reset) -> Self {
        Self {
            processor: reset.processor,
            devices: Devices::default(),
        }
    }
}
