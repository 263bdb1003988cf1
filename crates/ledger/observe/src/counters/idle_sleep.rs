// SPDX-License-Identifier: Apache-2.0
//! Idle time in nanoseconds, from `/proc/timer_list` (root only).
//!
//! `/proc/stat` prints the same counters in ticks of 10 ms, which is too coarse for a window in which a host is busy
//! for a few ticks. The counter of an idle processor does not include its current idle period, so the reading is exact
//! only on a host with one processor, which the reader itself keeps busy: an emulated host or a small guest.

use crate::ObserveError;
use std::path::Path;
use vtax_kernel::stat::HostStat;
use vtax_kernel::{KernelFile, text};

#[derive(Debug)]
pub(super) struct IdleSleep {
    file: KernelFile,
}

/// Nanoseconds since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IdleTime {
    pub(super) idle: u64,
    pub(super) iowait: u64,
}

impl IdleSleep {
    /// Returns `None` where the host has several processors or the file is unavailable.
    pub(super) fn open(proc: &Path) -> Option<Self> {
        let processors = HostStat::read(proc).ok()?.processors;
        let mut sleep = Self {
            file: KernelFile::open(proc.join("timer_list")).ok()?,
        };
        (processors == 1 && sleep.read().ok()?.is_some()).then_some(sleep)
    }

    /// Returns `None` where the kernel does not stop its tick, and therefore does not count.
    pub(super) fn read(&mut self) -> Result<Option<IdleTime>, ObserveError> {
        let (mut idle, mut iowait) = (None, None);
        for line in text::lines(self.file.read()?) {
            let mut fields = text::fields(line);
            let which = match fields.next() {
                Some(b".idle_sleeptime") => &mut idle,
                Some(b".iowait_sleeptime") => &mut iowait,
                // The name may touch the colon.
                Some(b".iowait_sleeptime:") => {
                    iowait = fields.next().and_then(text::number);
                    continue;
                }
                _ => continue,
            };
            *which = fields.nth(1).and_then(text::number);
        }
        Ok(idle
            .zip(iowait)
            .map(|(idle, iowait)| IdleTime { idle, iowait }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const TIMERS: &str = "cpu: 0\n  .nohz_mode      : 2\n  .idle_entrytime : 9 nsecs\n  \
        .idle_sleeptime : 1234567891 nsecs\n  .iowait_sleeptime: 77 nsecs\n";

    fn tree(stat: &str, timers: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("stat"), stat).unwrap();
        fs::write(root.path().join("timer_list"), timers).unwrap();
        root
    }

    #[test]
    fn one_processor_has_its_idle_time_in_nanoseconds() {
        let root = tree("cpu 1 2 3 4\ncpu0 1 2 3 4\nctxt 1\n", TIMERS);
        let mut sleep = IdleSleep::open(root.path()).unwrap();
        let read = sleep.read().unwrap().unwrap();
        assert_eq!((read.idle, read.iowait), (1_234_567_891, 77));
    }

    #[test]
    fn several_processors_or_a_kernel_that_does_not_count_have_none() {
        let several = tree("cpu 1 2 3 4\ncpu0 1 2 3 4\ncpu1 1 2 3 4\n", TIMERS);
        assert!(IdleSleep::open(several.path()).is_none());
        let silent = tree("cpu 1 2 3 4\ncpu0 1 2 3 4\n", "cpu: 0\n");
        assert!(IdleSleep::open(silent.path()).is_none());
    }
}
