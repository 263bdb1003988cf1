//! The guest's own view of its work, from its `/proc/interrupts`, `/proc/stat` and
//! `/proc/net/dev`.

use super::agent::Agent;
use std::collections::BTreeMap;
use vtax_host::HostError;

/// Nanoseconds of one tick of `/proc/stat`: `USER_HZ` is 100 on every x86 kernel.
const TICK_NS: f64 = 1e7;

/// What the guest's own files say, read by its agent.
pub(in crate::platform) fn of_agent(agent: &mut Agent) -> Result<BTreeMap<String, f64>, HostError> {
    let mut read = |path: &str| -> Result<String, HostError> {
        let bytes = agent.read_file(path)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let (interrupts, stat) = (read("/proc/interrupts")?, read("/proc/stat")?);
    let mut counters = counters(&interrupts, &stat);
    let bytes = network_bytes(&read("/proc/net/dev")?);
    counters.extend(bytes.map(|bytes| ("net.bytes".to_owned(), bytes)));
    Ok(counters)
}

/// Bytes that the guest's network devices received and sent, in frames, without its loopback;
/// `None` if the text has no device.
pub fn network_bytes(net_dev: &str) -> Option<f64> {
    net_dev
        .lines()
        .filter_map(|line| {
            let (device, counts) = line.split_once(':')?;
            let mut counts = counts.split_whitespace();
            let received: f64 = counts.next()?.parse().ok()?;
            // Seven more columns of what was received come before what was sent.
            let sent: f64 = counts.nth(7)?.parse().ok()?;
            (device.trim() != "lo").then_some(received + sent)
        })
        .reduce(|a, b| a + b)
}

/// `interrupts.<source>`, `interrupts.virtio` (of all virtio devices), `interrupts.total`,
/// `cpu.busy_ns`, `cpu.steal_ns`, `context_switches`. Lines that are not understood are left out.
pub fn counters(interrupts: &str, stat: &str) -> BTreeMap<String, f64> {
    let mut counters = BTreeMap::new();
    for (source, count) in interrupt_sources(interrupts) {
        if source.starts_with("virtio") {
            *counters
                .entry("interrupts.virtio".to_owned())
                .or_insert(0.0) += count;
        }
        *counters
            .entry(format!("interrupts.{source}"))
            .or_insert(0.0) += count;
    }
    for line in stat.lines() {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or_default();
        let numbers: Vec<f64> = words.map_while(|word| word.parse().ok()).collect();
        match (name, numbers.as_slice()) {
            ("cpu", [user, nice, system, _idle, _iowait, irq, softirq, steal, ..]) => {
                // Guest time is part of user time; stolen time is work of others.
                counters.insert(
                    "cpu.busy_ns".into(),
                    (user + nice + system + irq + softirq) * TICK_NS,
                );
                counters.insert("cpu.steal_ns".into(), steal * TICK_NS);
            }
            ("intr", [total, ..]) => {
                counters.insert("interrupts.total".into(), *total);
            }
            ("ctxt", [total]) => {
                counters.insert("context_switches".into(), *total);
            }
            _ => {}
        }
    }
    counters
}

/// Each line's source and its count over all CPUs. Numbered lines are named by their device
/// (`virtio1-input.0`), others by the kernel's label (`LOC`, `RES`).
fn interrupt_sources(text: &str) -> Vec<(String, f64)> {
    let mut lines = text.lines();
    let cpus = lines
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .filter(|word| word.starts_with("CPU"))
        .count();
    lines
        .filter_map(|line| {
            let (label, rest) = line.split_once(':')?;
            let label = label.trim();
            let mut words = rest.split_whitespace();
            // ERR and MIS have one number, whatever the number of CPUs.
            let counts: Vec<f64> = words
                .by_ref()
                .take(cpus)
                .map_while(|word| word.parse().ok())
                .collect();
            if counts.is_empty() {
                return None;
            }
            let numbered = label.chars().all(|c| c.is_ascii_digit());
            let device = if numbered { words.next_back() } else { None };
            Some((
                device.unwrap_or(label).replace(char::is_whitespace, "-"),
                counts.iter().sum(),
            ))
        })
        .collect()
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
        let counters = counters(INTERRUPTS, "");
        assert_eq!(counters["interrupts.i8042"], 9.0);
        assert_eq!(counters["interrupts.virtio0-config"], 3.0);
        assert_eq!(counters["interrupts.virtio1-input.0"], 300.0);
        assert_eq!(counters["interrupts.virtio"], 303.0);
        assert_eq!(counters["interrupts.LOC"], 3000.0);
        assert_eq!(counters["interrupts.ERR"], 7.0);
    }

    #[test]
    fn busy_time_is_neither_idle_nor_waiting_nor_stolen() {
        let stat = "cpu  10 1 20 5000 300 2 3 99 4 0\ncpu0 1 1 1 1 1 1 1 1 1 1\nintr 4242 0 9\nctxt 777\nbtime 1\n";
        let counters = counters("", stat);
        assert_eq!(counters["cpu.busy_ns"], 360_000_000.0);
        assert_eq!(counters["cpu.steal_ns"], 990_000_000.0);
        assert_eq!(counters["interrupts.total"], 4242.0);
        assert_eq!(counters["context_switches"], 777.0);
    }

    #[test]
    fn bytes_of_a_guest_are_those_of_its_devices_both_ways_without_loopback() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes packets\n    lo: 9 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n  eth0:1000 2 0 0 0 0 0 0 234 3 0 0 0 0 0 0\n";
        assert_eq!(network_bytes(text), Some(1234.0));
        assert_eq!(network_bytes("no devices"), None);
    }

    proptest! {
        #[test]
        fn no_text_of_a_guest_makes_it_panic(interrupts in ".{0,200}", stat in "(cpu|intr|ctxt)?[ 0-9a-z\\n:]{0,100}") {
            network_bytes(&stat);
            counters(&interrupts, &stat);
        }
    }
}
