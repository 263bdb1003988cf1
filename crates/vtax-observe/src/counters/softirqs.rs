// SPDX-License-Identifier: Apache-2.0
//! Software interrupts by kind (`NET_RX`, `TIMER`, …), from `/proc/softirqs`. The counts are exact numbers of handler
//! runs; one run may handle many packets.

use super::table::{CpuTable, metric_part};
use crate::{Instrument, ObserveError, Readings};
use std::path::Path;
use vtax_core::Nanoseconds;
use vtax_core::counter;
use vtax_core::owner::Owner;
use vtax_kernel::CpuRow;

/// Software interrupts of the host, by kind.
#[derive(Debug)]
pub struct Softirqs(CpuTable);

impl Softirqs {
    /// Opens `softirqs` below `proc`.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(proc: &Path) -> Result<Self, ObserveError> {
        fn kind(row: &CpuRow<'_>) -> String {
            metric_part(row.label)
        }
        CpuTable::open(
            proc.join("softirqs"),
            &Owner::Host,
            counter::SOFTIRQS_TOTAL,
            |part| counter::SOFTIRQS.of(part),
            kind,
            |_| true,
        )
        .map(Self)
    }
}

impl Instrument for Softirqs {
    fn name(&self) -> &str {
        "softirqs"
    }

    fn read(&mut self, now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        self.0.read(now, into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Snapshot;

    #[test]
    fn softirqs_are_summed_over_cpus_by_kind() {
        let root = tempfile::tempdir().unwrap();
        let table = "       CPU0  CPU1\n  NET_RX: 30 12\n   TIMER: 1 2\n";
        std::fs::write(root.path().join("softirqs"), table).unwrap();
        let mut softirqs = Softirqs::open(root.path()).unwrap();
        let mut readings = Readings::default();
        softirqs.read(Nanoseconds(0), &mut readings).unwrap();
        let snapshot = Snapshot::of(Nanoseconds(0), &readings);
        assert_eq!(
            snapshot.get(&Owner::Host, "softirqs.NET_RX").unwrap().value,
            42.0
        );
        assert_eq!(
            snapshot
                .get(&Owner::Host, counter::SOFTIRQS_TOTAL)
                .unwrap()
                .value,
            45.0
        );
    }

    #[test]
    fn this_hosts_softirqs_can_be_read() {
        let mut softirqs = Softirqs::open(Path::new("/proc")).unwrap();
        let mut readings = Readings::default();
        softirqs.read(Nanoseconds(0), &mut readings).unwrap();
        let snapshot = Snapshot::of(Nanoseconds(0), &readings);
        assert!(snapshot.get(&Owner::Host, "softirqs.TIMER").is_some());
    }
}
