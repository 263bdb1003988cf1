// SPDX-License-Identifier: Apache-2.0
//! A guest of the shared image under Firecracker or Cloud Hypervisor. Its agent is on the serial port, which both
//! VMMs have and which needs neither a network nor a driver.

use super::{Disk, Machine, Nic, Place, Vmm};
use crate::image::vmlinux;
use crate::platform::vm::agent::Agent;
use crate::platform::vm::host::{backend, takes_direct_io};
use crate::platform::vm::inner;
use crate::platform::vm::process::{Process, pin_each};
use crate::platform::vm::size;
use crate::platform::vm::surroundings::Surroundings;
use crate::platform::{
    About, CommandLine, Finished, GuestFiles, Job, Target, backing, switch_offloads_off,
};
use rustix::fs::{SeekFrom, seek};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use vtax_core::Source;
use vtax_host::HostError;
use vtax_host::cell::{Seat, Space, link};
use vtax_host::settings::Settings;
use vtax_host::wait::within;
use vtax_observe::{NetDevice, Subject};

/// The time limit for the VMM to create its threads, which precedes the boot.
const THREADS_LIMIT: Duration = Duration::from_secs(15);

/// The kernel's arguments, without its network. The kernel prints only the reason of a panic, since it shares the
/// line with the agent.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet loglevel=1 reboot=k panic=-1 \
     cryptomgr.notests vtax.root=vda vtax.agent=ttyS0";

/// A booted VM. Dropping this value ends it.
pub(super) struct Guest {
    process: Process,
    agent: Agent,
    about: About,
}

impl Guest {
    /// Boots a guest until its agent answers.
    pub(super) fn boot(
        vmm: Vmm,
        seat: &Seat<'_>,
        guest: &GuestFiles,
        settings: &Settings,
    ) -> Result<Self, HostError> {
        let binary = vmm.binary(settings);
        let version = vmm.version(&binary)?;
        let pin = size::pin(settings)?;
        let network = Surroundings::network(seat);
        let run = Surroundings::run_dir(seat);
        let place = Place {
            outside: seat.outside(&run),
            inside: run,
            stem: "vmm".to_owned(),
        };
        let (machine, scratch) = machine(vmm, seat, guest, settings, &place)?;
        Surroundings::attach_tap(seat, &network.tap, false)?;

        let console = place.outside.join("console.log");
        let log = vtax_files::create(&console)?;

        let began = Instant::now();
        let started = vmm
            .start(&binary, &machine, &place, |line| {
                seat.command(Space::Switch, line)
            })
            .map_err(HostError::process("start", binary))?;
        let mut process = Process::new(vmm.program(), started.child, started.log, console);
        let (pid, vcpu_threads) = threads(vmm, machine.vcpus, &mut process, seat)?;
        process.hold(pid);
        if let Some(pin) = pin {
            pin_each(&vcpu_threads, &pin.iter().collect::<Vec<_>>())?;
        }
        let mut agent = Agent::on_console(started.line, log);
        process.wait_for_agent(&mut agent, true).map_err(with_kvm)?;
        let facts = [
            ("accel", "kvm".to_owned()),
            ("kvm", backend()),
            ("vmm.version", version),
            ("vm.command_line", started.description),
            (
                "vm.boot_seconds",
                format!("{:.3}", began.elapsed().as_secs_f64()),
            ),
        ];
        let facts = facts.map(|(key, value)| (key.to_owned(), value));
        let mut booted = Self {
            process,
            agent,
            about: About::of_vm(
                network.address,
                Subject {
                    owner: seat.owner(),
                    cgroups: seat.cgroups(),
                    namespace: seat.group().account(),
                    vmm: Some(pid),
                    vcpu_threads,
                    net_devices: vec![NetDevice {
                        namespace_of: pid,
                        name: network.tap.clone(),
                    }],
                    ..Subject::default()
                },
                Source::Measured,
                facts.into_iter().chain(scratch).collect(),
                "/dev/vdb",
            ),
        };
        if !network.offloads {
            switch_offloads_off(&mut booted)?;
            // A VMM that attaches to a tap enables all offloads that it supports.
            let script = link::offloads_off(&network.tap);
            seat.script(Space::Switch, "the offloads of a tap", &script, &[])?;
        }
        Ok(booted)
    }
}

/// The machine, and the fact for the record on how its scratch disk is read.
fn machine(
    vmm: Vmm,
    seat: &Seat<'_>,
    guest: &GuestFiles,
    settings: &Settings,
    place: &Place,
) -> Result<(Machine, Option<(String, String)>), HostError> {
    let network = Surroundings::network(seat);
    let (vcpus, memory_mib) = vmm.size(settings)?;
    let name = "root.ext4";
    layer(&guest.image, &place.outside.join(name))?;
    let mut disks = vec![Disk {
        path: place.inside.join(name),
        direct: false,
    }];
    let scratch = Seat::scratch(seat).map(|image| Disk {
        path: image.to_owned(),
        direct: vmm == Vmm::CloudHypervisor && takes_direct_io(image),
    });
    let fact = scratch
        .as_ref()
        .map(|scratch| backing(scratch.direct, "the host's"));
    let words = network.link_and_scratch(scratch.as_ref().map(|_| "vdb"));
    disks.extend(scratch);
    let machine = Machine {
        kernel: vmlinux(guest)?,
        initrd: guest.initrd.clone(),
        arguments: format!("{KERNEL_ARGUMENTS}{}{words}", network.addresses()),
        vcpus,
        memory_mib,
        disks,
        nic: Some(Nic {
            tap: network.tap,
            mac: network.mac,
        }),
    };
    Ok((machine, fact))
}

/// Copies an image without its holes into the cell's memory, since these VMMs support no writable layer above a
/// shared image. The copy ends with the cell.
fn layer(image: &Path, copy: &Path) -> Result<(), HostError> {
    let from = File::open(image).map_err(HostError::file("open", image))?;
    let to = vtax_files::create(copy)?;
    let copied = || -> io::Result<()> {
        let length = from.metadata()?.len();
        to.set_len(length)?;
        let mut end = 0;
        // `seek` fails where no data follows `end`.
        while let Ok(start) = seek(&from, SeekFrom::Data(end)) {
            end = seek(&from, SeekFrom::Hole(start))?;
            seek(&from, SeekFrom::Start(start))?;
            seek(&to, SeekFrom::Start(start))?;
            io::copy(&mut (&from).take(end - start), &mut &to)?;
        }
        Ok(())
    };
    copied().map_err(HostError::file("copy the image to", copy))
}

/// Finds the VMM, which is a child of the started process, and its vCPU threads by their names.
fn threads(
    vmm: Vmm,
    vcpus: u32,
    process: &mut Process,
    seat: &Seat<'_>,
) -> Result<(u32, Vec<u32>), HostError> {
    let pause = Duration::from_millis(5);
    let found = within(THREADS_LIMIT, pause, || {
        let below = seat.cgroups().into_iter().find_map(|group| {
            let members = fs::read_to_string(group.join("cgroup.procs")).ok()?;
            let mut members = members.lines().filter_map(|pid| pid.parse().ok());
            members
                .find(|pid| vtax_kernel::Process::of_host(*pid).parent() == Some(process.child()))
        });
        if let Some(pid) = below {
            let threads = vtax_kernel::Process::of_host(pid).threads();
            let found: Vec<u32> = (0..vcpus)
                .filter_map(|number| named_thread(&threads, &vmm.vcpu_thread(number)))
                .collect();
            if u32::try_from(found.len()) == Ok(vcpus) {
                return Ok(Some((pid, found)));
            }
        }
        process.check_alive().map_err(with_kvm).map(|()| None)
    })?;
    found.ok_or_else(|| {
        let what = format!("{} and its {vcpus} vCPU threads", vmm.program());
        process.timeout(format!("the start of {what}"), THREADS_LIMIT)
    })
}

fn named_thread(threads: &[(u32, PathBuf)], name: &str) -> Option<u32> {
    let mut threads = threads.iter();
    let named = threads.find(|(_, directory)| {
        let comm = fs::read_to_string(directory.join("comm"));
        comm.is_ok_and(|comm| comm.trim_end() == name)
    });
    named.map(|(thread, _)| *thread)
}

/// Adds the KVM module to the error of a guest that does not boot.
fn with_kvm(error: HostError) -> HostError {
    let kvm = format!(
        "KVM is {} here, and `vtax doctor` shows whether it boots a stock kernel",
        backend()
    );
    match error {
        HostError::Program {
            command,
            status,
            output,
        } => HostError::Program {
            command,
            status: format!("{status}; {kvm}"),
            output,
        },
        HostError::Timeout {
            what,
            seconds,
            evidence,
        } => HostError::Timeout {
            what,
            seconds,
            evidence: format!("{evidence}\n{kvm}"),
        },
        other => other,
    }
}

impl Target for Guest {
    fn about(&self) -> &About {
        &self.about
    }

    fn start(&mut self, command: &CommandLine) -> Result<Job, HostError> {
        let job = self.agent.start(command);
        job.map_err(|error| self.process.explain(error))
    }

    fn poll(&mut self, job: Job) -> Result<Option<Finished>, HostError> {
        let finished = self.agent.poll(job);
        finished.map_err(|error| self.process.explain(error))
    }

    fn inner_counters(&mut self) -> Result<BTreeMap<String, f64>, HostError> {
        let counters = inner::of_agent(&mut self.agent);
        counters.map_err(|error| self.process.explain(error))
    }

    fn console_tail(&self) -> String {
        self.process.console_tail()
    }

    fn stop(mut self: Box<Self>) -> Result<(), HostError> {
        // The guest needs no shutdown: its disks are discarded.
        self.process.kill();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt, MetadataExt};

    #[test]
    fn a_layer_has_the_images_bytes_and_its_holes() {
        let folder = tempfile::tempdir().unwrap();
        let (image, copy) = (folder.path().join("image"), folder.path().join("copy"));
        let file = File::create(&image).unwrap();
        file.set_len(64 << 20).unwrap();
        file.write_all_at(b"first", 0).unwrap();
        file.write_all_at(b"last", (32 << 20) + 77).unwrap();
        layer(&image, &copy).unwrap();
        assert!(fs::read(&image).unwrap() == fs::read(&copy).unwrap());
        let blocks = fs::metadata(&copy).unwrap().blocks();
        assert!(blocks < 2048, "{blocks} blocks of 512 bytes");
    }
}
