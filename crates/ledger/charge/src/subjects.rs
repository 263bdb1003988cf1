// SPDX-License-Identifier: Apache-2.0
//! The traced method for the subjects of a trial, as an instrument: soft interrupts that worked for each subject, and
//! those that ran in its context.

use super::irq_accounting::IrqAccounting;
use super::owners::Owners;
use super::probe::{DeviceKey, Holder, MOST_OTHERS, Programs, Reader};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use vtax_core::Nanoseconds;
use vtax_core::counter;
use vtax_inventory::first_process;
use vtax_kernel::Process;
use vtax_observe::counters::Grants;
use vtax_observe::counters::series::Column;
use vtax_observe::{Instrument, NetDevice, ObserveError, Readings, Roots, Subject};

type Opened<T> = Result<T, ObserveError>;

/// The instruments for soft interrupts and for grants, boxed.
pub(super) fn boxed(
    softirqs: Option<Opened<SubjectSoftirqs>>,
    grants: Option<Opened<Grants>>,
) -> Vec<Opened<Box<dyn Instrument>>> {
    let softirqs = softirqs.map(|opened| opened.map(|found| Box::new(found) as _));
    let grants = grants.map(|opened| opened.map(|found| Box::new(found) as _));
    softirqs.into_iter().chain(grants).collect()
}

/// Soft interrupts by the subject that they worked for.
pub(super) struct SubjectSoftirqs {
    programs: Programs,
    reader: Reader,
    proc: PathBuf,
    subjects: Vec<Watched>,
    owners: Owners,
    /// Whether this instrument registers the subjects with the programs; otherwise a charger does.
    registers: bool,
    /// Whether this kernel accounts soft interrupts separately, so that none are in a task's time.
    apart: bool,
}

struct Watched {
    number: u32,
    subject: Subject,
    /// The control group that accounts its CPU time.
    group: PathBuf,
    /// Whether its own network namespace is known, or it has none.
    is_settled: bool,
    /// Namespaces of the devices that the subject names.
    named: Vec<u32>,
    work: (u64, Column),
    context: (u64, Column),
}

/// Programs that stay attached from one trial of a run to the next. The kernel takes a quarter of a second to verify
/// them.
#[derive(Default)]
pub struct KeptPrograms(Mutex<Option<(bool, Programs)>>);

impl KeptPrograms {
    fn open(&self, sys: &Path, by_cpuacct: bool) -> Result<Programs, ObserveError> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, programs)) = kept.as_ref().filter(|(by, _)| *by == by_cpuacct) {
            return Ok(programs.clone());
        }
        // Two sets of programs would trace everything twice.
        *kept = None;
        let programs = Programs::open(sys, by_cpuacct, MOST_OTHERS)?;
        *kept = Some((by_cpuacct, programs.clone()));
        Ok(programs)
    }

    /// Detaches the programs, unless an instrument uses them.
    pub(super) fn release(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

fn is_cpuacct(group: &Path) -> bool {
    group.join("cpuacct.usage").exists()
}

fn have_cpuacct(subjects: &[Subject]) -> bool {
    let mut groups = subjects.iter().flat_map(|subject| &subject.cgroups);
    groups.any(|group| is_cpuacct(group))
}

impl SubjectSoftirqs {
    /// Starts tracing for `subjects`.
    ///
    /// # Errors
    /// When BPF does not work here (the reason says why), or a subject's device cannot be found.
    pub(super) fn open(
        subjects: &[Subject],
        kept: &KeptPrograms,
        roots: &Roots,
    ) -> Result<Self, ObserveError> {
        let programs = kept.open(&roots.sys, have_cpuacct(subjects))?;
        let mut opened = Self::reading(programs, &|_| None, subjects, roots)?;
        opened.registers = true;
        // Registers the devices in the kernel before the first interval.
        let devices = &opened.owners.devices;
        opened.programs.register(devices, &HashMap::new());
        Ok(opened)
    }

    /// Reads the results of a charger's programs. Subjects that are the charger's guests keep its numbers. Only those
    /// are registered with the programs, so that traffic of a load generator is charged to the guest from its entry on,
    /// as traffic from any port is.
    pub(super) fn reading(
        programs: Programs,
        number: &dyn Fn(&Subject) -> Option<u32>,
        subjects: &[Subject],
        roots: &Roots,
    ) -> Result<Self, ObserveError> {
        let by_cpuacct = have_cpuacct(subjects);
        let mut owners = Owners::default();
        let mut watched = Vec::new();
        // Chargers number guests upwards, so other subjects are numbered downwards from the largest number.
        for (subject, other) in subjects.iter().zip((0..=u32::MAX).rev()) {
            let number = number(subject).unwrap_or(other);
            owners.present.insert(number);
            let mut named = Vec::new();
            for device in &subject.net_devices {
                let key = find(device, &roots.proc)?;
                named.push(key.namespace);
                owners.devices.insert(key, Holder::new(number, None));
            }
            let mut groups = subject.cgroups.iter();
            let group = groups.find(|group| is_cpuacct(group) == by_cpuacct);
            let column = |metric: &str| (0, Column::counter(&subject.owner, metric));
            watched.push(Watched {
                number,
                subject: subject.clone(),
                group: group.cloned().unwrap_or_default(),
                is_settled: false,
                named,
                work: column(counter::CPU_SOFTIRQ),
                context: column(counter::CPU_SOFTIRQ_CONTEXT),
            });
        }
        let mut opened = Self {
            reader: programs.reader(),
            programs,
            proc: roots.proc.clone(),
            subjects: watched,
            owners,
            registers: false,
            apart: IrqAccounting::detect(roots).is_apart(),
        };
        opened.settle();
        Ok(opened)
    }

    /// Finds the network namespace of a subject's processes; a subject owns every device in a namespace of its own. The
    /// client's processes may start later than this instrument.
    fn settle(&mut self) {
        for watched in &mut self.subjects {
            self.owners.tasks.learn(&watched.group, watched.number);
            if watched.is_settled {
                continue;
            }
            let Some(process) = first_process(&watched.group, 4) else {
                continue;
            };
            let Some(namespace) = Process::new(&self.proc, process).net_namespace() else {
                continue;
            };
            watched.is_settled = true;
            // A monitor's namespace holds its tap and the devices of other guests, and so has no single owner.
            if watched.subject.vmm.is_none() && !watched.named.contains(&namespace) {
                let whole = DeviceKey {
                    namespace,
                    index: 0,
                };
                let holder = Holder::new(watched.number, None);
                self.owners.devices.insert(whole, holder);
            }
        }
    }
}

/// The kernel's numbers of a device. A device name is valid only in its network namespace, so a dedicated thread enters
/// that namespace and ends in it.
fn find(device: &NetDevice, proc: &Path) -> Result<DeviceKey, ObserveError> {
    let unavailable = |reason: String| {
        ObserveError::unavailable(format!("network device {}", device.name), reason)
    };
    let process = Process::new(proc, device.namespace_of);
    let path = process.path("ns/net");
    let namespace = process
        .net_namespace()
        .ok_or_else(|| unavailable(format!("cannot read {}", path.display())))?;
    let enter = || -> std::io::Result<u32> {
        let file = File::open(&path)?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
        let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        Ok(name_to_index(socket, &device.name)?)
    };
    let index = std::thread::scope(|scope| {
        let thread = scope.spawn(enter);
        thread
            .join()
            .unwrap_or_else(|_| Err(std::io::Error::other("the thread ended")))
    });
    Ok(DeviceKey {
        namespace,
        index: index.map_err(|cause| unavailable(cause.to_string()))?,
    })
}

impl Drop for SubjectSoftirqs {
    fn drop(&mut self) {
        // The numbers of these subjects are those of the next trial's subjects too.
        if self.registers {
            self.programs.register(&HashMap::new(), &HashMap::new());
        }
    }
}

impl Instrument for SubjectSoftirqs {
    fn name(&self) -> &'static str {
        "soft interrupts by subject"
    }

    fn read(&mut self, _: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        self.settle();
        let found = self.owners.charge(&self.reader.read());
        for watched in &mut self.subjects {
            let work = found.guests.get(&watched.number).copied();
            let work = work.unwrap_or_default();
            let context = if self.apart {
                Nanoseconds(0)
            } else {
                work.context
            };
            for ((sum, column), new) in [
                (&mut watched.work, work.softirq),
                (&mut watched.context, context),
            ] {
                *sum = sum.saturating_add(new.0);
                column.record_count(*sum, into);
            }
        }
        if self.registers {
            self.programs
                .register(&self.owners.devices, &HashMap::new());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_stay_attached_until_they_are_released_or_other_groups_account() {
        let kept = KeptPrograms::default();
        let sys = Path::new("/sys");
        let first = match kept.open(sys, false) {
            Ok(first) => first,
            Err(error) => {
                eprintln!("SKIPPED: {error}");
                return;
            }
        };
        assert!(kept.open(sys, false).unwrap().is(&first));
        let by_cpuacct = kept.open(sys, true).unwrap();
        assert!(!by_cpuacct.is(&first));
        kept.release();
        assert!(!kept.open(sys, true).unwrap().is(&by_cpuacct));
    }
}
