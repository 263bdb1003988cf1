// SPDX-License-Identifier: Apache-2.0
//! Kubernetes pods: the guests of each pod as one, and the overhead of a sandboxed pod beyond its containers.

use crate::snapshot::{ChargedGuest, LedgerSnapshot};
use crate::{Ledger, Modelled, Row, Stage};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use vtax_core::Nanoseconds;
use vtax_inventory::Platform;

/// Returns the same interval with one guest for each pod, under the number of its first guest. Other guests stay.
#[must_use]
pub fn by_pod(mut snapshot: LedgerSnapshot) -> LedgerSnapshot {
    let mut first: HashMap<String, u32> = HashMap::new();
    let mut into: HashMap<u32, u32> = HashMap::new();
    let mut guests: BTreeMap<u32, ChargedGuest> = BTreeMap::new();
    for guest in std::mem::take(&mut snapshot.guests) {
        let Some(pod) = guest.pod.clone() else {
            guests.insert(guest.number, guest);
            continue;
        };
        let number = *first.entry(pod.clone()).or_insert(guest.number);
        into.insert(guest.number, number);
        match guests.get_mut(&number) {
            None => {
                let name = name(&guest.name).unwrap_or_else(|| pod.clone());
                let of_pod = ChargedGuest {
                    platform: Platform::Kubernetes,
                    uuid: Some(pod),
                    name,
                    ..guest
                };
                guests.insert(number, of_pod);
            }
            Some(of_pod) => {
                // Only containers have the names of their pods.
                if let (Some(name), Some(pod)) = (name(&guest.name), &of_pod.uuid)
                    && of_pod.name == *pod
                {
                    of_pod.name = name;
                }
                of_pod.used.merge(&guest.used);
                of_pod.total.merge(&guest.total);
            }
        }
    }
    let pass_on = |ledger: &mut Ledger| {
        let mut rows: BTreeMap<u32, Row> = BTreeMap::new();
        for row in std::mem::take(&mut ledger.rows) {
            let number = into.get(&row.number).copied().unwrap_or(row.number);
            let sum = rows.entry(number).or_insert_with(|| Row {
                number,
                ..Row::default()
            });
            sum.stages.merge(&row.stages);
            sum.booked += row.booked;
            sum.energy += row.energy;
            let errors = [sum.modelled, row.modelled].into_iter().flatten();
            sum.modelled = errors.reduce(Modelled::merge);
        }
        ledger.rows = rows.into_values().collect();
    };
    pass_on(&mut snapshot.ledger);
    for (_, ledger) in &mut snapshot.compared {
        pass_on(ledger);
    }
    snapshot.guests = guests.into_values().collect();
    snapshot
}

/// `namespace/pod` of `namespace/pod/container`.
fn name(of_container: &str) -> Option<String> {
    let mut parts = of_container.splitn(3, '/');
    let (namespace, pod) = (parts.next()?, parts.next()?);
    parts.next().map(|_| format!("{namespace}/{pod}"))
}

/// The overhead of a sandboxed pod beyond its containers: the work of its monitors outside of the guest's code, and
/// their memory besides the guest's own.
#[derive(Debug, Clone, PartialEq)]
pub struct Overhead {
    /// The pod's UID.
    pub pod: String,
    /// `namespace/pod` where that is known, else the UID.
    pub name: String,
    /// Processor time per second, in thousandths of a processor, rounded up for a reservation.
    pub cpu_millis: u64,
    /// Memory in MiB, rounded up; `None` where it cannot be read.
    pub memory_mib: Option<u64>,
}

/// Returns the overhead of each pod of this interval that has a VM. Pods of plain containers have none.
pub fn overheads(snapshot: &LedgerSnapshot, proc: &Path) -> Vec<Overhead> {
    let mut found: BTreeMap<&str, (Nanoseconds, Option<u64>, String)> = BTreeMap::new();
    for guest in snapshot
        .guests
        .iter()
        .filter(|guest| guest.platform.is_vm())
    {
        let Some(pod) = &guest.pod else { continue };
        let stages = &guest.used.stages;
        let outside = stages.total().saturating_since(stages.get(Stage::Vcpu));
        let bytes = guest
            .process
            .and_then(|pid| besides_guest_memory(proc, pid));
        let sum = found
            .entry(pod)
            .or_insert((Nanoseconds(0), Some(0), pod.clone()));
        sum.0 += outside;
        sum.1 = sum.1.zip(bytes).map(|(sum, bytes)| sum + bytes);
    }
    let named = snapshot.guests.iter();
    for (pod, name) in named.filter_map(|guest| Some((guest.pod.as_deref()?, name(&guest.name)?))) {
        if let Some(of_pod) = found.get_mut(pod) {
            of_pod.2 = name;
        }
    }
    let span = snapshot.ledger.span.0.max(1);
    found
        .into_iter()
        .map(|(pod, (outside, bytes, name))| Overhead {
            pod: pod.to_owned(),
            name,
            cpu_millis: outside.0.saturating_mul(1000).div_ceil(span),
            memory_mib: bytes.map(|bytes| bytes.div_ceil(1 << 20)),
        })
        .collect()
}

/// Returns the resident memory of a monitor without its largest mapping, which is the guest's memory.
fn besides_guest_memory(proc: &Path, pid: u32) -> Option<u64> {
    let maps = std::fs::read_to_string(proc.join(pid.to_string()).join("smaps")).ok()?;
    let kib = |line: &str, name: &str| -> Option<u64> {
        let rest = line.strip_prefix(name)?.trim();
        rest.strip_suffix("kB")?.trim().parse().ok()
    };
    let (mut total, mut size) = (0u64, 0u64);
    let (mut largest, mut of_largest) = (0u64, 0u64);
    for line in maps.lines() {
        if let Some(found) = kib(line, "Size:") {
            size = found;
        } else if let Some(resident) = kib(line, "Rss:") {
            total = total.saturating_add(resident);
            if size > largest {
                (largest, of_largest) = (size, resident);
            }
        }
    }
    (largest > 0).then(|| total.saturating_sub(of_largest).saturating_mul(1024))
}

/// A pod's overhead in the syntax of a RuntimeClass.
impl std::fmt::Display for Overhead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "overhead: {{podFixed: {{cpu: \"{}m\"", self.cpu_millis)?;
        if let Some(memory) = self.memory_mib {
            write!(f, ", memory: \"{memory}Mi\"")?;
        }
        write!(f, "}}}}  # {}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Host;
    use crate::records::records;

    const POD: &str = "1b4e28ba-2fa1-11d2-883f-0016d3cca427";

    fn snapshot() -> LedgerSnapshot {
        let mut host = Host::default();
        host.start_named(1, "kata", Platform::Qemu);
        host.start_named(2, "shop/web/nginx", Platform::Kubernetes);
        host.start_named(3, "other", Platform::Docker);
        let mut snapshot = host.pass(10_000_000);
        for guest in &mut snapshot.guests {
            guest.pod = (guest.number < 3).then(|| POD.to_owned());
        }
        snapshot
    }

    #[test]
    fn the_guests_of_a_pod_are_one_and_nothing_is_lost() {
        let before = snapshot();
        let sum = |snapshot: &LedgerSnapshot| -> f64 {
            records(snapshot)
                .iter()
                .map(|record| record.cpu_seconds)
                .sum()
        };
        let after = by_pod(before.clone());
        assert!((sum(&before) - sum(&after)).abs() < 1e-12);
        let names: Vec<&str> = after
            .guests
            .iter()
            .map(|guest| guest.name.as_str())
            .collect();
        assert_eq!(names, ["shop/web", "other"]);
        assert_eq!(after.guests[0].uuid.as_deref(), Some(POD));
        assert_eq!(after.ledger.row(1).unwrap().stages.total().0, 20_000_000);
        assert_eq!(after.ledger.row(3), before.ledger.row(3));
    }

    #[test]
    fn the_overhead_of_a_sandbox_is_what_its_monitor_does_and_keeps_besides_its_guest() {
        let proc = tempfile::tempdir().unwrap();
        std::fs::create_dir(proc.path().join("77")).unwrap();
        let maps = "7f00-7f80 rw-p 00000000 00:00 0\nSize: 524288 kB\nRss: 300000 kB\nPss: 1 kB\n\
                    5500-5600 r-xp 00000000 08:01 1 /usr/bin/qemu\nSize: 9000 kB\nRss: 5000 kB\n";
        std::fs::write(proc.path().join("77/smaps"), maps).unwrap();
        let mut snapshot = snapshot();
        snapshot.guests[0].process = Some(77);
        // A tenth of 10 ms in a second, and 5000 KiB.
        let found = overheads(&snapshot, proc.path());
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].to_string(),
            "overhead: {podFixed: {cpu: \"1m\", memory: \"5Mi\"}}  # shop/web"
        );
        snapshot.guests[0].process = None;
        assert_eq!(overheads(&snapshot, proc.path())[0].memory_mib, None);
    }
}
