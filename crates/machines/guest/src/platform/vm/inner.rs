// SPDX-License-Identifier: Apache-2.0
//! The guest's own counters, from its `/proc/interrupts`, `/proc/stat` and `/proc/net/dev`.

use super::agent::Agent;
use std::collections::BTreeMap;
use vtax_core::counter;
use vtax_host::HostError;
use vtax_kernel::stat::{self, CpuState, Line};
use vtax_kernel::{cpu_columns, cpu_rows, net_devices, text};

/// Reads the guest's own counters by its agent.
pub(in crate::platform) fn of_agent(agent: &mut Agent) -> Result<BTreeMap<String, f64>, HostError> {
    let mut read = |path: &str| -> Result<String, HostError> {
        let bytes = agent.read_file(path)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let (interrupts, stat) = (read("/proc/interrupts")?, read("/proc/stat")?);
    Ok(counters(&interrupts, &stat, &read("/proc/net/dev")?))
}

/// The bytes of frames that the guest's network devices received and sent, without its loopback; `None` if the text
/// has no device.
fn network_bytes(net_dev: &str) -> Option<f64> {
    net_devices(net_dev.as_bytes())
        .filter(|device| !device.is_loopback())
        .filter_map(|device| device.traffic())
        .map(|(received, sent)| received.bytes as f64 + sent.bytes as f64)
        .reduce(|a, b| a + b)
}

/// Returns `interrupts.<source>`, `interrupts.paravirtual` (of all virtio devices, or all that Xen's back ends
/// serve), `interrupts.total`, `cpu.busy_ns`, `cpu.steal_ns`, `context_switches` and `net.bytes`. Unknown lines are
/// left out.
pub fn counters(interrupts: &str, stat: &str, net_dev: &str) -> BTreeMap<String, f64> {
    let mut counters = BTreeMap::new();
    counters.extend(network_bytes(net_dev).map(|bytes| (counter::NET_BYTES.to_owned(), bytes)));
    for source in interrupt_sources(interrupts) {
        let mut add = |name: String| *counters.entry(name).or_insert(0.0) += source.count;
        add(counter::INTERRUPTS.fill(&source.name));
        if source.is_paravirtual {
            add(counter::INTERRUPTS_PARAVIRTUAL.to_owned());
        }
    }
    for line in stat::lines(stat.as_bytes()) {
        let mut put = |name: &str, value: f64| counters.insert(name.to_owned(), value);
        match line {
            Line::All(times) => {
                // User time includes guest time; in stolen time the processor works for others.
                let busy = CpuState::BUSY.map(|state| times.in_state(state).0 as f64);
                put(counter::CPU_BUSY, busy.iter().sum());
                put(counter::CPU_STEAL, times.in_state(CpuState::Steal).0 as f64);
            }
            Line::Interrupts(total) => drop(put(counter::INTERRUPTS_TOTAL, total as f64)),
            Line::ContextSwitches(count) => drop(put(counter::CONTEXT_SWITCHES, count as f64)),
            Line::Processor(..) => {}
        }
    }
    counters
}

/// One line of `/proc/interrupts`.
struct InterruptSource {
    /// The device of a numbered line (`virtio1-input.0`), else the kernel's label (`LOC`, `RES`).
    name: String,
    /// The sum over all CPUs.
    count: f64,
    is_paravirtual: bool,
}

fn interrupt_sources(table: &str) -> impl Iterator<Item = InterruptSource> {
    let table = table.as_bytes();
    cpu_rows(table, cpu_columns(table).unwrap_or(0)).map(|row| {
        let is_numbered = row.label.iter().all(u8::is_ascii_digit);
        let words = || text::fields(row.description);
        let is_xens = words().next() == Some(b"xen-dyn");
        let name = match words().last() {
            Some(device) if is_numbered => device,
            _ => row.label,
        };
        let name = String::from_utf8_lossy(name);
        let name = name.replace(char::is_whitespace, "-");
        InterruptSource {
            // The store (`xenbus`) is not a device.
            is_paravirtual: name.starts_with("virtio") || is_xens && name != "xenbus",
            count: row.sum as f64,
            name,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const INTERRUPTS: &str = "\
           CPU0       CPU1
  1:          9          0   IO-APIC   1-edge      i8042
 24:          0          3   PCI-MSI 16384-edge      virtio0-config
 25:        100        200   PCI-MSI 16385-edge      virtio1-input.0
LOC:       1000       2000   Local timer interrupts
ERR:          7
";

    #[test]
    fn counts_are_added_over_cpus_and_named_by_their_source() {
        let counters = counters(INTERRUPTS, "", "");
        assert_eq!(counters["interrupts.i8042"], 9.0);
        assert_eq!(counters["interrupts.virtio0-config"], 3.0);
        assert_eq!(counters["interrupts.virtio1-input.0"], 300.0);
        assert_eq!(counters["interrupts.paravirtual"], 303.0);
        assert_eq!(counters["interrupts.LOC"], 3000.0);
        assert_eq!(counters["interrupts.ERR"], 7.0);
    }

    #[test]
    fn devices_of_xens_back_ends_are_paravirtual_and_its_store_and_timers_are_not() {
        let text = "           CPU0\n  1:       5000  xen-percpu    -virq      timer0\n 17:         40   xen-dyn    -event     xenbus\n 20:         60   xen-dyn    -event     blkif\n 21:        900   xen-dyn    -event     eth0-q0-rx\n";
        let counters = counters(text, "", "");
        assert_eq!(counters["interrupts.paravirtual"], 960.0);
        assert_eq!(counters["interrupts.eth0-q0-rx"], 900.0);
        assert_eq!(counters["interrupts.timer0"], 5000.0);
    }

    #[test]
    fn busy_time_is_neither_idle_nor_waiting_nor_stolen() {
        let stat = "cpu  10 1 20 5000 300 2 3 99 4 0\ncpu0 1 1 1 1 1 1 1 1 1 1\nintr 4242 0 9\nctxt 777\nbtime 1\n";
        let counters = counters("", stat, "");
        assert_eq!(counters["cpu.busy_ns"], 360_000_000.0);
        assert_eq!(counters["cpu.steal_ns"], 990_000_000.0);
        assert_eq!(counters["interrupts.total"], 4242.0);
        assert_eq!(counters["context_switches"], 777.0);
    }

    #[test]
    fn bytes_of_a_guest_are_those_of_its_devices_both_ways_without_loopback() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes packets\n    lo: 9 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n  eth0:1000 2 0 0 0 0 0 0 234 3 0 0 0 0 0 0\n";
        assert_eq!(counters("", "", text)["net.bytes"], 1234.0);
        assert!(counters("", "", "no devices").is_empty());
    }

    proptest! {
        #[test]
        fn no_text_of_a_guest_makes_it_panic(interrupts in ".{0,200}", stat in "(cpu|intr|ctxt)?[ 0-9a-z\\n:]{0,100}") {
            counters(&interrupts, &stat, &stat);
        }
    }
}
