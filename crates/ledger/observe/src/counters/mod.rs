// SPDX-License-Identifier: Apache-2.0
//! Counter sources, one file each. Every constructor takes the root of the tree that it reads
//! (`/proc`, `/sys`), so that tests run on fake trees.

mod block;
mod cgroup;
mod children;
pub mod clock_samples;
mod counter;
pub mod cpu_time;
mod emulated_caches;
pub mod event_group;
mod frequency;
mod grants;
mod hardware;
mod host_cpu;
mod idle_gaps;
mod idle_sleep;
mod idle_states;
mod interrupts;
mod kvm_exits;
mod net;
mod pid_namespace;
pub mod series;
mod softirqs;
mod table;
mod threads;
mod xen;
mod xen_trace;

pub use block::BlockDevices;
pub use cgroup::ControlGroup;
pub use children::{Children, cpu_time_of};
pub use counter::Findings;
pub use counter::{Change, Counter, Rule, most_cpu_time};
pub use emulated_caches::EmulatedCaches;
pub use frequency::Frequencies;
pub use grants::Grants;
pub use grants::{GrantProbe, Pages, SharedGrants};
pub use hardware::HardwareCounters;
pub use host_cpu::HostCpu;
pub use host_cpu::HostTimes;
pub use idle_gaps::IdleGaps;
pub use idle_states::IdleStates;
pub use interrupts::interrupts;
pub use kvm_exits::{KvmBackend, KvmExits};
pub use net::NetDevices;
pub use pid_namespace::{CUT, PidNamespace};
pub use softirqs::softirqs;
pub use table::CpuTable;
pub use threads::{ProcessClock, process_clock};
pub use threads::{ThreadTimes, VmmThreads};
pub use xen::{DomainTimes, XenClock, XenDomain, XenRings};
pub use xen_trace::{ENDING as XENTRACE_ENDING, XenTrace, is_traced, xentrace};

use crate::{Instrument, ObserveError, Readings, Roots, Subject};
use std::path::Path;
use vtax_core::Nanoseconds;

/// Opens the instruments of the whole host; also returns those that this host does not offer, with the reasons.
pub fn for_host(proc: &Path, sys: &Path) -> (Vec<Box<dyn Instrument>>, Vec<ObserveError>) {
    let mut instruments: Vec<Box<dyn Instrument>> = Vec::new();
    let mut unavailable = Vec::new();
    let mut add = |instrument: Result<Box<dyn Instrument>, ObserveError>| match instrument {
        Ok(instrument) => instruments.push(instrument),
        Err(error) => unavailable.push(error),
    };
    add(HostCpu::open(proc, sys).map(boxed));
    add(interrupts(proc).map(boxed));
    add(softirqs(proc).map(boxed));
    // An emulated processor has no counters of its own.
    add(match EmulatedCaches::host() {
        Some(caches) => Ok(boxed(caches)),
        None => HardwareCounters::host(sys).map(boxed),
    });
    add(KvmExits::host(sys).map(boxed));
    if let Some(frequencies) = Frequencies::open(sys).transpose() {
        add(frequencies.map(boxed));
    }
    if let Some(states) = IdleStates::open(sys).transpose() {
        add(states.map(boxed));
    }
    add(IdleGaps::open().map(boxed));
    if let Some(host) = XenDomain::host(sys).transpose() {
        add(host.map(boxed));
    }
    (instruments, unavailable)
}

/// Opens the instruments of one subject. A source that cannot be opened becomes an instrument that fails, so that the
/// trial's report names it. Hardware counters are an exception: where they are unavailable, [`for_host`] has already
/// reported it.
pub fn for_subject(subject: &Subject, proc: &Path, sys: &Path) -> Vec<Box<dyn Instrument>> {
    let owner = &subject.owner;
    let mut instruments: Vec<Box<dyn Instrument>> = Vec::new();
    let mut add = |name: &str, instrument: Result<Box<dyn Instrument>, ObserveError>| {
        instruments.push(instrument.unwrap_or_else(|error| {
            Box::new(Broken {
                name: format!("{name} {owner}"),
                message: error.to_string(),
            })
        }));
    };
    // Before the control group: reading a process's clock updates the accounting of its group.
    if subject.vmm.is_some() {
        add("threads", VmmThreads::open(subject, proc).map(boxed));
    }
    if !subject.cgroups.is_empty() {
        add(
            "cgroup",
            ControlGroup::open(owner, &subject.cgroups).map(boxed),
        );
    }
    if let Some(account) = &subject.namespace {
        add(
            "processes",
            PidNamespace::open(owner, account, proc).map(boxed),
        );
    }
    if !subject.net_devices.is_empty() {
        let devices = NetDevices::open(owner, proc, &subject.net_devices);
        add("network", devices.map(boxed));
    }
    if !subject.block_devices.is_empty() {
        let devices = BlockDevices::open(owner, sys, &subject.block_devices);
        add("block", devices.map(boxed));
    }
    if let Some(domain) = subject.domain {
        add("xen", XenDomain::open(owner, sys, domain).map(boxed));
        if let Some(rings) = XenRings::open(owner, sys, domain).transpose() {
            add("xen rings", rings.map(boxed));
        }
    }
    if let Some(Ok(counters)) =
        cgroup::unified(&subject.cgroups).map(|group| HardwareCounters::cgroup(owner, group, sys))
    {
        instruments.push(Box::new(counters));
    }
    instruments
}

/// Opens what the plan of a trial asks for beyond that, for all subjects together. One that cannot be opened becomes an
/// instrument that fails.
pub fn asked_for(subjects: &[Subject], roots: &Roots) -> Option<Box<dyn Instrument>> {
    let opened = XenTrace::open(subjects, roots).transpose()?;
    Some(opened.map_or_else(
        |error| {
            boxed(Broken {
                name: "xentrace".to_owned(),
                message: error.to_string(),
            })
        },
        boxed,
    ))
}

fn boxed<I: Instrument + 'static>(instrument: I) -> Box<dyn Instrument> {
    Box::new(instrument)
}

/// Replaces an instrument that could not be opened.
struct Broken {
    name: String,
    message: String,
}

impl Instrument for Broken {
    fn name(&self) -> &str {
        &self.name
    }

    fn read(&mut self, _now: Nanoseconds, _into: &mut Readings) -> Result<(), ObserveError> {
        Err(ObserveError::unavailable(
            self.name.clone(),
            self.message.clone(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_core::owner::Owner;

    #[test]
    fn a_source_that_cannot_be_opened_fails_by_name_and_leaves_the_others_alone() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("group");
        std::fs::create_dir(&group).unwrap();
        std::fs::write(group.join("cpuacct.usage"), "5\n").unwrap();
        let subject = Subject {
            owner: Owner::Target,
            cgroups: vec![group],
            block_devices: vec!["vdz".to_owned()],
            ..Subject::default()
        };
        let mut instruments = for_subject(&subject, root.path(), root.path());
        let results: Vec<(String, bool)> = instruments
            .iter_mut()
            .map(|instrument| {
                let result = instrument.read(Nanoseconds(0), &mut Readings::default());
                (instrument.name().to_owned(), result.is_ok())
            })
            .collect();
        let expected = [
            ("cgroup target".to_owned(), true),
            ("block target".to_owned(), false),
        ];
        assert_eq!(results, expected);
    }

    #[test]
    fn every_instrument_of_this_host_reads_and_what_is_missing_says_why() {
        let (mut instruments, unavailable) = for_host(Path::new("/proc"), Path::new("/sys"));
        let mut readings = Readings::default();
        for instrument in &mut instruments {
            instrument.read(Nanoseconds(0), &mut readings).unwrap();
        }
        assert!(
            readings
                .series()
                .iter()
                .any(|series| series.metric == vtax_core::counter::CPU_BUSY)
        );
        for error in unavailable {
            eprintln!("SKIPPED: {error}");
        }
    }
}
