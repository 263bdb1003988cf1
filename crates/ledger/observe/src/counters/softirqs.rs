// SPDX-License-Identifier: Apache-2.0
//! Software interrupts by kind (`NET_RX`, `TIMER`, …), from `/proc/softirqs`. The counts are exact numbers of handler
//! runs; one run may handle many packets.

use super::table::{CpuTable, metric_part};
use crate::ObserveError;
use std::path::Path;
use vtax_core::counter;

/// Opens `softirqs` below `proc`, the software interrupts of the host by kind.
///
/// # Errors
/// When it cannot be opened.
pub fn softirqs(proc: &Path) -> Result<CpuTable, ObserveError> {
    CpuTable::open(
        proc,
        "softirqs",
        counter::SOFTIRQS_TOTAL,
        |part| counter::SOFTIRQS.fill(part),
        |row| metric_part(row.label),
        |_| true,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Instrument, Readings, Snapshot};
    use vtax_core::Nanoseconds;
    use vtax_core::owner::Owner;

    #[test]
    fn softirqs_are_summed_over_cpus_by_kind() {
        let root = tempfile::tempdir().unwrap();
        let table = "       CPU0  CPU1\n  NET_RX: 30 12\n   TIMER: 1 2\n";
        std::fs::write(root.path().join("softirqs"), table).unwrap();
        let mut softirqs = softirqs(root.path()).unwrap();
        let mut readings = Readings::default();
        softirqs.read(Nanoseconds(0), &mut readings).unwrap();
        let snapshot = Snapshot::from_readings(Nanoseconds(0), &readings);
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
        let mut softirqs = softirqs(Path::new("/proc")).unwrap();
        let mut readings = Readings::default();
        softirqs.read(Nanoseconds(0), &mut readings).unwrap();
        let snapshot = Snapshot::from_readings(Nanoseconds(0), &readings);
        assert!(snapshot.get(&Owner::Host, "softirqs.TIMER").is_some());
    }
}
