//! The traced method for the subjects of a trial: soft interrupts that worked for the target and the
//! client, and those that ran in their context, as an instrument.

use super::irq_accounting::IrqAccounting;
use super::traced::{DeviceKey, ENTRIES, Holder, Probe, learn};
use crate::counters::series::Column;
use crate::guests::first_process;
use crate::guests::process::Process;
use crate::{Instrument, NetDevice, ObserveError, Readings, Roots, Subject, metric};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use vtax_core::Nanoseconds;

/// Soft interrupts by the subject that they worked for.
pub struct SubjectSoftirqs {
    probe: Probe,
    proc: PathBuf,
    subjects: Vec<Watched>,
    devices: HashMap<DeviceKey, Holder>,
    groups: HashMap<u64, Option<u32>>,
    /// This kernel books soft interrupts apart, so that none are in a task's time.
    apart: bool,
}

struct Watched {
    subject: Subject,
    /// The control group that accounts its CPU time.
    group: PathBuf,
    /// Its own network namespace is known, or it has none.
    is_settled: bool,
    /// Namespaces of the devices that are named in it.
    named: Vec<u32>,
    work: (u64, Column),
    context: (u64, Column),
}

impl SubjectSoftirqs {
    /// Starts tracing for `subjects`.
    ///
    /// # Errors
    /// When BPF does not work here (the reason says why), or a subject's device cannot be found.
    pub fn open(subjects: &[&Subject], proc: &Path, sys: &Path) -> Result<Self, ObserveError> {
        let accounts = |group: &PathBuf| group.join("cpuacct.usage").exists();
        let by_cpuacct = subjects
            .iter()
            .any(|subject| subject.cgroups.iter().any(accounts));
        let mut devices = HashMap::new();
        let mut watched = Vec::new();
        for (subject, number) in subjects.iter().zip(1..) {
            let mut named = Vec::new();
            for device in &subject.net_devices {
                let key = find(device, proc)?;
                named.push(key.namespace);
                devices.insert(key, Holder::new(number, None));
            }
            let group = subject
                .cgroups
                .iter()
                .find(|group| accounts(group) == by_cpuacct)
                .cloned()
                .unwrap_or_default();
            let column = |metric: &str| (0, Column::counter(&subject.owner, metric));
            watched.push(Watched {
                subject: (*subject).clone(),
                group,
                is_settled: false,
                named,
                work: column(metric::CPU_SOFTIRQ),
                context: column(metric::CPU_SOFTIRQ_CONTEXT),
            });
        }
        let roots = Roots {
            proc: proc.to_owned(),
            sys: sys.to_owned(),
            ..Roots::host()
        };
        let mut opened = Self {
            probe: Probe::open(sys, by_cpuacct, ENTRIES)?,
            proc: proc.to_owned(),
            subjects: watched,
            devices,
            groups: HashMap::new(),
            apart: IrqAccounting::detect(&roots).is_apart(),
        };
        opened.settle();
        // Hands the devices to the kernel before the first interval.
        opened.probe.of_subjects(&opened.devices, &opened.groups);
        Ok(opened)
    }

    /// A subject whose processes have a network namespace of their own owns every device in it. The
    /// client's processes may start later than this instrument.
    fn settle(&mut self) {
        for (watched, number) in self.subjects.iter_mut().zip(1..) {
            learn(&watched.group, number, &mut self.groups, 4);
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
            // A monitor lives where its tap and the others' devices are, which is nobody's own.
            if watched.subject.vmm.is_none() && !watched.named.contains(&namespace) {
                let whole = DeviceKey {
                    namespace,
                    index: 0,
                };
                self.devices.insert(whole, Holder::new(number, None));
            }
        }
    }
}

/// The kernel's numbers of a device. A name means something only in its namespace, which a thread
/// of its own enters and ends in.
fn find(device: &NetDevice, proc: &Path) -> Result<DeviceKey, ObserveError> {
    let unavailable = |reason: String| ObserveError::Unavailable {
        what: format!("network device {}", device.name),
        reason,
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

impl Instrument for SubjectSoftirqs {
    fn name(&self) -> &'static str {
        "soft interrupts by subject"
    }

    fn read(&mut self, _: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        self.settle();
        let mut found = self.probe.of_subjects(&self.devices, &self.groups);
        for (watched, number) in self.subjects.iter_mut().zip(1..) {
            let work = found.remove(&number).unwrap_or_default();
            for ((sum, column), new) in [
                (&mut watched.work, work.softirq),
                (
                    &mut watched.context,
                    if self.apart {
                        Nanoseconds(0)
                    } else {
                        work.context
                    },
                ),
            ] {
                *sum = sum.saturating_add(new.0);
                column.record_count(*sum, into);
            }
        }
        Ok(())
    }
}
