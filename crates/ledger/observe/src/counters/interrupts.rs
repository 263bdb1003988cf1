// SPDX-License-Identifier: Apache-2.0
//! Hardware interrupts by source, from `/proc/interrupts`.
//!
//! A device's interrupt has the driver's name for it (`virtio0-input.0` becomes `virtio0-input_0`); any other interrupt
//! has the kernel's label (`LOC`: local timer, `RES`: rescheduling, `CAL`: function calls, `TLB`: shootdowns). The
//! counts are exact, not sampled.

use super::table::{CpuTable, metric_part};
use crate::ObserveError;
use std::path::Path;
use vtax_core::counter;
use vtax_kernel::{CpuRow, text};

/// Opens `interrupts` below `proc`, the interrupts of the host by source.
///
/// # Errors
/// When it cannot be opened.
pub fn interrupts(proc: &Path) -> Result<CpuTable, ObserveError> {
    CpuTable::open(
        proc,
        "interrupts",
        counter::INTERRUPTS_TOTAL,
        |part| counter::INTERRUPTS.fill(part),
        source,
        is_interrupt,
    )
}

/// Rows of `/proc/interrupts` that count errors and polls, not interrupts.
fn is_interrupt(row: &CpuRow<'_>) -> bool {
    !matches!(row.label, b"ERR" | b"Err" | b"MIS" | b"RTR" | b"MCP")
}

/// The driver's name for the interrupt, or the kernel's label.
fn source(row: &CpuRow<'_>) -> String {
    if text::number(row.label).is_none() {
        return metric_part(row.label);
    }
    let irq = || format!("irq{}", metric_part(row.label));
    // `PCI-MSIX-0000:00:04.0   1-edge      virtio3-rx` or `GICv3  27 Level     arch_timer`: the
    // name follows the trigger. Without a trigger it is the last word.
    let is_trigger = |field: &[u8]| {
        let field = field.to_ascii_lowercase();
        ["edge", "level", "fasteoi"].iter().any(|trigger| {
            field == trigger.as_bytes() || field.ends_with(format!("-{trigger}").as_bytes())
        })
    };
    let mut rest = row.description;
    let mut last: &[u8] = b"";
    loop {
        rest = rest.trim_ascii_start();
        let end = rest
            .iter()
            .position(u8::is_ascii_whitespace)
            .unwrap_or(rest.len());
        let (field, after) = rest.split_at_checked(end).unwrap_or((rest, b""));
        if field.is_empty() {
            break;
        }
        if is_trigger(field) {
            let name = metric_part(after);
            return if name.is_empty() { irq() } else { name };
        }
        last = field;
        rest = after;
    }
    let name = metric_part(last);
    if name.is_empty() { irq() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Instrument, Readings, Snapshot};
    use std::fs;
    use vtax_core::Nanoseconds;
    use vtax_core::owner::Owner;

    const TABLE: &str = "           CPU0       CPU1       \n\
         24:          1          0  IO-APIC   5-edge      ACPI:Ged\n\
         41:       1060          0 PCI-MSIX-0000:00:04.0   1-edge      virtio3-input.0\n\
         42:          0       3363 PCI-MSIX-0000:00:05.0   2-edge      virtio3-input.0\n\
         43:          5          5 GICv3  27 Level     arch_timer\n\
         44:          2          2 dummy\n\
         45:          0          9 PCI-MSI 1-edge\n\
        LOC:     100     200   Local timer interrupts\n\
        ERR:          7\n";

    fn open(text: &str) -> (tempfile::TempDir, CpuTable) {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("interrupts"), text).unwrap();
        let interrupts = interrupts(root.path()).unwrap();
        (root, interrupts)
    }

    fn snapshot(interrupts: &mut CpuTable, readings: &mut Readings) -> Snapshot {
        readings.clear_values();
        interrupts.read(Nanoseconds(0), readings).unwrap();
        Snapshot::from_readings(Nanoseconds(0), readings)
    }

    fn value(snapshot: &Snapshot, source: &str) -> Option<f64> {
        Some(
            snapshot
                .get(&Owner::Host, &counter::INTERRUPTS.fill(source))?
                .value,
        )
    }

    #[test]
    fn interrupts_are_named_after_their_device_and_summed_over_cpus() {
        let (_root, mut interrupts) = open(TABLE);
        let snapshot = snapshot(&mut interrupts, &mut Readings::default());
        assert_eq!(value(&snapshot, "ACPI:Ged"), Some(1.0));
        assert_eq!(value(&snapshot, "arch_timer"), Some(10.0));
        assert_eq!(value(&snapshot, "dummy"), Some(4.0));
        assert_eq!(value(&snapshot, "irq45"), Some(9.0));
        assert_eq!(value(&snapshot, "LOC"), Some(300.0));
        let total = 1.0 + 1060.0 + 3363.0 + 10.0 + 4.0 + 9.0 + 300.0;
        assert_eq!(
            value(&snapshot, "total"),
            Some(total),
            "ERR is no interrupt"
        );
    }

    #[test]
    fn two_interrupts_with_one_name_are_kept_apart() {
        let (_root, mut interrupts) = open(TABLE);
        let snapshot = snapshot(&mut interrupts, &mut Readings::default());
        assert_eq!(value(&snapshot, "virtio3-input_0"), Some(1060.0));
        assert_eq!(value(&snapshot, "virtio3-input_0.42"), Some(3363.0));
    }

    #[test]
    fn an_interrupt_that_is_freed_or_restarted_never_makes_a_total_fall() {
        let (root, mut interrupts) = open(TABLE);
        let mut readings = Readings::default();
        let before = snapshot(&mut interrupts, &mut readings);
        let without = TABLE.replace("3363", "   3");
        let without: String = without
            .lines()
            .filter(|line| !line.contains("ACPI"))
            .map(|line| format!("{line}\n"))
            .collect();
        fs::write(root.path().join("interrupts"), without).unwrap();
        readings.clear_values();
        let error = interrupts.read(Nanoseconds(0), &mut readings).unwrap_err();
        assert!(error.to_string().contains("started anew"), "{error}");
        let after = Snapshot::from_readings(Nanoseconds(0), &readings);
        let step = |metric: &str| after.since(&before, &Owner::Host, metric).unwrap().value;
        assert_eq!(step("interrupts.virtio3-input_0.42"), 3.0);
        assert_eq!(step("interrupts.ACPI:Ged"), 0.0);
        assert_eq!(step("interrupts.total"), 3.0);
    }

    /// The kernel counts each source on each CPU in 32 bits.
    #[test]
    fn a_count_of_one_cpu_that_wraps_is_counted_on() {
        let (root, mut interrupts) = open("  CPU0 CPU1\nLOC: 4294967290 4000000000 timer\n");
        let mut readings = Readings::default();
        let before = snapshot(&mut interrupts, &mut readings);
        let wrapped = "  CPU0 CPU1\nLOC: 4 4000000090 timer\n";
        fs::write(root.path().join("interrupts"), wrapped).unwrap();
        let after = snapshot(&mut interrupts, &mut readings);
        for metric in ["interrupts.LOC", "interrupts.total"] {
            assert_eq!(
                after.since(&before, &Owner::Host, metric).unwrap().value,
                100.0
            );
        }
    }

    #[test]
    fn one_cpu_in_the_place_of_another_makes_no_step() {
        let (root, mut interrupts) = open("  CPU0 CPU1\nLOC: 100 200 timer\n");
        let mut readings = Readings::default();
        let before = snapshot(&mut interrupts, &mut readings);
        let other = "  CPU0 CPU2\nLOC: 101 90000 timer\n";
        fs::write(root.path().join("interrupts"), other).unwrap();
        let after = snapshot(&mut interrupts, &mut readings);
        let step = after
            .since(&before, &Owner::Host, "interrupts.LOC")
            .unwrap();
        assert_eq!(step.value, 0.0);
    }

    #[test]
    fn a_cpu_that_goes_offline_makes_no_step() {
        let (root, mut interrupts) = open("  CPU0 CPU1\nLOC: 100 200 timer\n");
        let mut readings = Readings::default();
        let before = snapshot(&mut interrupts, &mut readings);
        fs::write(root.path().join("interrupts"), "  CPU0\nLOC: 101 timer\n").unwrap();
        let after = snapshot(&mut interrupts, &mut readings);
        assert_eq!(
            after
                .since(&before, &Owner::Host, "interrupts.LOC")
                .unwrap()
                .value,
            0.0
        );
        assert_eq!(
            after
                .since(&before, &Owner::Host, "interrupts.total")
                .unwrap()
                .value,
            0.0
        );
    }

    #[test]
    fn this_hosts_interrupts_grow() {
        let mut interrupts = super::interrupts(Path::new("/proc")).unwrap();
        let mut readings = Readings::default();
        let before = snapshot(&mut interrupts, &mut readings);
        std::thread::sleep(std::time::Duration::from_millis(300));
        let after = snapshot(&mut interrupts, &mut readings);
        assert!(
            after
                .since(&before, &Owner::Host, "interrupts.total")
                .unwrap()
                .value
                > 0.0
        );
    }
}
