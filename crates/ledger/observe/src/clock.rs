// SPDX-License-Identifier: Apache-2.0
//! The clock of a trial: CLOCK_MONOTONIC stamps every sample, mark and event, so that all series of a trial share one
//! time axis.

use rustix::time::{ClockId, clock_gettime};
use vtax_core::Nanoseconds;

/// A source of monotonic time, injected so that tests control it.
pub trait Clock: Send + Sync {
    /// Nanoseconds since an arbitrary zero that does not change while the host is up.
    fn now(&self) -> Nanoseconds;

    /// Wall-clock time in nanoseconds since 1970, to detect steps of the wall clock.
    fn wall(&self) -> Nanoseconds;
}

/// The kernel's CLOCK_MONOTONIC and CLOCK_REALTIME.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Nanoseconds {
        read(ClockId::Monotonic)
    }

    fn wall(&self) -> Nanoseconds {
        read(ClockId::Realtime)
    }
}

/// Processor time of the calling thread since its start.
pub fn thread_cpu() -> Nanoseconds {
    read(ClockId::ThreadCPUTime)
}

/// Processor time of all threads of this process since its start.
pub fn process_cpu() -> Nanoseconds {
    read(ClockId::ProcessCPUTime)
}

fn read(clock: ClockId) -> Nanoseconds {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or(0);
    Nanoseconds(
        seconds
            .saturating_mul(1_000_000_000)
            .saturating_add(nanoseconds),
    )
}
