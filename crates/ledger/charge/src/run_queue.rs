// SPDX-License-Identifier: Apache-2.0
//! The BPF programs at the kernel's scheduler tracepoints that time how long tasks wait for a processor, and what runs
//! there meanwhile (`bpf/waits.bpf.c`).
//!
//! A task belongs to the guest whose monitor or service it is a thread of, else to the container whose control group it
//! is in, as in [`super::probe`]. A guest is known to the programs, or its groups to this module, from the pass that
//! finds it on: tasks of guests that are not known yet are the host's.

use super::bpf::{LastValue, Wanted, advances, attach, entries_on, kernel_types, processors, take};
use super::owners::Groups;
use super::waits::{Runner, Waits};
use aya::maps::{Array, MapData, PerCpuArray, PerCpuHashMap};
use aya::{Ebpf, EbpfLoader};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use vtax_core::Nanoseconds;
use vtax_inventory::{Guest, Guests, Hierarchy};
use vtax_observe::ObserveError;
use vtax_observe::bpf::explain;

/// Built by `build.sh` of vtax-observe.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/waits.bpf.o");

/// In the order in which they are attached: what ends a wait before what begins one.
const PROGRAMS: [&str; 4] = [
    "sched_switch",
    "sched_migrate_task",
    "sched_wakeup",
    "sched_wakeup_new",
];

const WHAT: &str = "tracing of waits for processors (BPF)";

/// `struct pair` of the BPF program.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Pair {
    waiter: u64,
    runner: u64,
}

// SAFETY: `repr(C)`, integers only and no padding, so that any bytes are a value.
unsafe impl aya::Pod for Pair {}

// Owners, as defined in the BPF program; every other value is a control group.
const IDLE: u64 = 0;
const PROCESS: u64 = 1 << 63;
const INTERRUPTS: u64 = 1 << 62 | 1;
const STOLEN: u64 = 1 << 62 | 2;
const OTHERS: u64 = 1 << 62 | 3;

/// The programs, attached for the lifetime of this value, and their results.
pub(super) struct RunQueue {
    waits: PerCpuHashMap<MapData, Pair, u64>,
    seen: HashMap<Pair, LastValue>,
    entries: u32,
    lost: PerCpuArray<MapData, u64>,
    seen_lost: [u64; 2],
    processes: Wanted<u32, u32>,
    registered: Array<MapData, u32>,
    groups: Groups,
    /// Guests whose control groups have been learnt.
    learnt: HashSet<u32>,
    /// Keeps the programs attached.
    _programs: Ebpf,
}

/// The waits of an interval.
#[derive(Debug, Default)]
pub(super) struct IntervalWaits {
    /// Of each guest that waited, by number.
    pub(super) guests: HashMap<u32, Waits>,
    /// What was not followed, as a sentence.
    pub(super) problem: Option<String>,
}

impl RunQueue {
    /// Loads and attaches the programs.
    ///
    /// # Errors
    /// When the kernel does not describe its types (BTF), or this process may not use BPF.
    pub(super) fn open(sys: &Path, hierarchy: Option<&Hierarchy>) -> Result<Self, ObserveError> {
        let btf = kernel_types(WHAT, sys)?;
        let processors = processors(WHAT)?;
        let entries = entries_on(processors);
        let by_cpuacct = u32::from(hierarchy.is_some_and(|hierarchy| hierarchy.v1));
        let mut programs = EbpfLoader::new()
            .btf(Some(&btf))
            .set_global("accounted_by_cpuacct", &by_cpuacct, true)
            .set_max_entries("processors", u32::try_from(processors).unwrap_or(u32::MAX))
            .set_max_entries("waits", entries)
            .load(OBJECT)
            .map_err(|error| explain(WHAT, &error))?;
        attach(WHAT, &mut programs, &PROGRAMS, &btf)?;
        Ok(Self {
            waits: take(WHAT, &mut programs, "waits")?,
            seen: HashMap::new(),
            entries,
            lost: take(WHAT, &mut programs, "lost")?,
            seen_lost: [0; 2],
            processes: Wanted::new(take(WHAT, &mut programs, "processes")?),
            registered: take(WHAT, &mut programs, "registered")?,
            groups: Groups::default(),
            learnt: HashSet::new(),
            _programs: programs,
        })
    }

    /// The waits since the last call, and the guests of the next interval.
    pub(super) fn read(&mut self, guests: &Guests) -> IntervalWaits {
        let present = guests.numbers();
        self.learnt.retain(|number| present.contains(number));
        if self.groups.forget() {
            self.learnt.clear();
        }
        for guest in guests.iter() {
            if self.learnt.insert(guest.number) {
                learn(&mut self.groups, guests, guest);
            }
        }
        let found = advances(&mut self.waits, &mut self.seen, self.entries, |ns| *ns);
        let are_unknown = found.iter().any(|(pair, _)| {
            [pair.waiter, pair.runner]
                .into_iter()
                .any(|owner| is_group(owner) && !self.groups.knows(owner))
        });
        if are_unknown {
            // A group within a container, created after the container was learnt, or a group without an owner.
            for guest in guests.iter() {
                learn(&mut self.groups, guests, guest);
            }
        }
        let mut waits = IntervalWaits {
            problem: self.lost(),
            ..IntervalWaits::default()
        };
        for (pair, ns) in found {
            let waiter = self.runner(pair.waiter, &present);
            let runner = self.runner(pair.runner, &present);
            if let Runner::Guest(number) = waiter {
                let of = waits.guests.entry(number).or_default();
                of.add(runner, Nanoseconds(ns));
            }
        }
        let processes = guests.by_process();
        self.processes.set(&processes);
        let count = u32::try_from(processes.len()).unwrap_or(u32::MAX);
        // An element of an array map always exists.
        let _ = self.registered.set(0, count, 0);
        waits
    }

    /// Decodes an owner of the programs.
    fn runner(&mut self, owner: u64, present: &HashSet<u32>) -> Runner {
        let guest = match owner {
            IDLE => return Runner::Idle,
            INTERRUPTS => return Runner::Interrupts,
            STOLEN => return Runner::Stolen,
            OTHERS => return Runner::Others,
            // A process number.
            process if process & PROCESS != 0 => {
                self.processes.present.get(&(process as u32)).copied()
            }
            group => {
                self.groups.close(group);
                self.groups.owner(group)
            }
        };
        match guest {
            Some(number) if present.contains(&number) => Runner::Guest(number),
            Some(_) => Runner::Departed,
            // A process that is no longer a monitor.
            None if owner & PROCESS != 0 => Runner::Departed,
            None => Runner::Host,
        }
    }

    /// What found no room in the maps since the last call.
    fn lost(&mut self) -> Option<String> {
        let mut lost = [0; 2];
        for (which, (new, seen)) in (0..).zip(lost.iter_mut().zip(&mut self.seen_lost)) {
            let values = self.lost.get(&which, 0).ok()?;
            let sum = values
                .iter()
                .fold(0u64, |sum, value| sum.saturating_add(*value));
            *new = sum.saturating_sub(*seen);
            *seen = sum;
        }
        let [time, tasks] = lost;
        (time > 0 || tasks > 0).then(|| {
            "waits for processors found no room in the maps of the BPF programs; they are in no \
             guest's wait"
                .to_owned()
        })
    }
}

fn is_group(owner: u64) -> bool {
    owner & PROCESS == 0 && ![IDLE, INTERRUPTS, STOLEN, OTHERS].contains(&owner)
}

/// Records the control groups of a container. Those of a VM may be shared with other processes.
fn learn(groups: &mut Groups, guests: &Guests, guest: &Guest) {
    let (Some(hierarchy), Some(group)) = (guests.hierarchy(), &guest.group) else {
        return;
    };
    if !guest.platform.is_vm() {
        groups.learn(&hierarchy.mounted.join(group), guest.number);
    }
}
