// SPDX-License-Identifier: Apache-2.0
//! The emulated machine: QEMU's command line.

use crate::host::Host;
use crate::link::End;
use crate::payload::PAYLOAD_BYTES;
use crate::settings::{Settings, Timers};
use std::path::Path;
use vtax_guest::platform::qemu::{Options, Q35, value};
use vtax_lab::place::Hypervisor;

/// A memory device occupies whole GiB of addresses.
const GIB: u64 = 1 << 30;

/// The virtual time by which a processor may be ahead of another running one: the latency of a cache line between them.
/// From 100 to 1000 ns, only processors that spin on a shared line differ; 5000 ns distort pipes and locks.
const SLACK_NS: u32 = 200;

/// The address of the first disk of a Dom0 in the machine's memory, above all other addresses in use.
const DOM0_DISKS: u64 = 64 * GIB;

/// The files of one machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Files<'a> {
    /// The initial RAM disk: kernel modules and boot scripts.
    pub initrd: &'a Path,
    /// The payload: [`PAYLOAD_BYTES`] of memory.
    pub payload: &'a Path,
    /// The output of the console; `None`: this terminal is the console.
    pub console: Option<&'a Path>,
    /// The outputs of the ports, if there are any: events, results.
    pub ports: Option<(&'a Path, &'a Path)>,
    /// The link to a second host, and this machine's end of it.
    pub link: Option<(End, &'a Path)>,
    /// The table of its processors' frequencies, if they have any.
    pub pstates: Option<&'a Path>,
    /// The seed and the arguments of its trial.
    pub trial: Option<&'a str>,
    /// The snapshot that it creates or starts from, if any.
    pub snapshot: Option<SnapshotFiles<'a>>,
}

impl<'a> Files<'a> {
    /// The files of a machine on this terminal, without anything else.
    pub fn from_initrd(initrd: &'a Path, payload: &'a Path) -> Self {
        Self {
            initrd,
            payload,
            console: None,
            ports: None,
            link: None,
            pstates: None,
            trial: None,
            snapshot: None,
        }
    }
}

/// The files of a snapshot and of a machine that creates it or starts from it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SnapshotFiles<'a> {
    /// The machine's memory.
    pub memory: &'a Path,
    /// Its root disk.
    pub root: &'a Path,
    /// The socket of its monitor.
    pub monitor: &'a Path,
    /// Whether the machine creates the snapshot; otherwise it starts from it.
    pub creates: bool,
}

/// The position of the root disk. The host does not write to the other two: guests' images and payload.
const ROOT: usize = 0;

/// The firmware configuration key of [`Files::trial`]: see `guest/start.sh`.
const TRIAL_KEY: &str = "opt/vtax/trial";

/// The effect of writes to a file that is mapped into the memory of a machine.
#[derive(Debug, Clone, Copy)]
enum WriteMode {
    /// The machine cannot write.
    ReadOnly,
    /// Writes stay in the memory of the machine.
    Private,
    /// Writes change the file.
    Shared,
}

impl WriteMode {
    /// The mode of the memory and the root disk of a snapshot.
    fn from_snapshot(snapshot: SnapshotFiles<'_>) -> Self {
        if snapshot.creates {
            Self::Shared
        } else {
            Self::Private
        }
    }

    /// The object of QEMU for the file.
    fn memory(self, id: &str, path: &Path, bytes: u64) -> String {
        let (share, readonly) = match self {
            Self::ReadOnly => ("on", "on"),
            Self::Private => ("off", "off"),
            Self::Shared => ("on", "off"),
        };
        let path = value(path);
        format!(
            "memory-backend-file,id={id},share={share},readonly={readonly},mem-path={path},size={bytes}"
        )
    }
}

/// The command line of a host's machine.
pub(crate) fn command_line(host: &Host, settings: &Settings, files: Files<'_>) -> Options {
    let mut line = Options::bare(&host.emulator.binary);
    if let Some(firmware) = &host.emulator.firmware {
        line.option("-L", firmware.to_string_lossy());
    }
    if settings.deterministic {
        // One thread executes all. The clock is the instruction count and skips idle time.
        let shift = settings.frequency.shift();
        // One processor keeps the loop of an unmodified QEMU.
        let slack = match settings.processors() {
            1 => String::new(),
            _ => format!(",slack={SLACK_NS}"),
        };
        line.option("-accel", "tcg,thread=single")
            .option("-icount", format!("shift={shift},sleep=off{slack}"))
            .option("-smp", settings.processors().to_string())
            .option("-rtc", "base=2026-01-01T00:00:00,clock=vm")
            .option("-seed", settings.seed.to_string());
    } else {
        line.option("-accel", "tcg,thread=multi")
            .option("-smp", settings.processors().to_string())
            .option("-rtc", "base=utc");
    }
    let nested = host.hypervisor == Hypervisor::Kvm;
    // Under Xen, Dom0 crashes at its entry with richer models; nested SVM has no XSAVES.
    let cpu = match (nested, files.pstates) {
        (false, _) if settings.hvm => "qemu64,+svm,+npt",
        (false, _) => "qemu64",
        (true, None) => "EPYC,+svm,-xsaves",
        // An invariant clock, since KVM would give guests a clock that follows the frequency.
        (true, Some(_)) => "EPYC,+svm,-xsaves,+invtsc",
    };
    // With several processors MWAIT does not wait in QEMU.
    let cpu = if settings.processors() > 1 && settings.deterministic {
        format!("{cpu},-monitor")
    } else {
        cpu.to_owned()
    };
    if let Some(mib) = settings.llc_mib {
        line.option("-plugin", format!("llc,mib={mib}"));
    }
    let memory = files.snapshot.map_or("", |_| ",memory-backend=memory");
    line.option("-cpu", cpu)
        .option("-machine", format!("{Q35},nvdimm=on{memory}"));
    let [root, guests] = &host.disks;
    let disks = [
        (root.path.as_path(), root.bytes),
        (guests.path.as_path(), guests.bytes),
        (files.payload, PAYLOAD_BYTES),
    ];
    let ends = disks.iter().scan(DOM0_DISKS, |end, (_, bytes)| {
        let start = *end;
        *end += bytes.next_multiple_of(GIB) + GIB;
        Some((start, *end))
    });
    let places: Vec<(u64, u64)> = ends.collect();
    let most = if nested {
        let sizes = places.iter().map(|(start, end)| end - start);
        (u64::from(settings.memory_mib) << 20) + sizes.sum::<u64>()
    } else {
        places.last().map_or(0, |(_, end)| *end)
    };
    let (mib, slots, most) = (settings.memory_mib, disks.len(), most >> 20);
    line.option("-m", format!("{mib}M,slots={slots},maxmem={most}M"));
    for (position, ((path, bytes), (start, _))) in disks.iter().zip(&places).enumerate() {
        let (kept, path) = match (position, files.snapshot) {
            (ROOT, None) => (WriteMode::Private, *path),
            (ROOT, Some(snapshot)) => (WriteMode::from_snapshot(snapshot), snapshot.root),
            _ => (WriteMode::ReadOnly, *path),
        };
        let id = format!("disk{position}");
        line.option("-object", kept.memory(&id, path, *bytes));
        let mut device = format!("nvdimm,id=nvdimm{position},memdev={id}");
        if !nested {
            device += &format!(",addr={start:#x}");
        }
        if matches!(kept, WriteMode::ReadOnly) {
            device += ",unarmed=on";
        }
        line.option("-device", device);
    }
    if let Some(snapshot) = files.snapshot {
        let bytes = u64::from(settings.memory_mib) << 20;
        let memory = WriteMode::from_snapshot(snapshot).memory("memory", snapshot.memory, bytes);
        let monitor = value(snapshot.monitor);
        line.option("-object", memory)
            .option("-qmp", format!("unix:{monitor},server=on,wait=off"))
            // A write to this device pauses the machine.
            .option("-device", "pvpanic-pci")
            .option("-action", "panic=pause");
        if !snapshot.creates {
            line.option("-incoming", "defer");
        }
    }
    if let Some(trial) = files.trial {
        let trial = trial.replace(',', ",,");
        line.option("-fw_cfg", format!("name={TRIAL_KEY},string={trial}"));
    }

    // Xen hides persistent memory from its Dom0, but lets it map addresses that are not memory. The Dom0 gets the
    // addresses of the disks for its driver of flash memory. On other hosts disks are ordered by address.
    let memory: String = if nested {
        String::new()
    } else {
        disks
            .iter()
            .zip(&places)
            .map(|((_, bytes), (start, _))| format!(" testbed.memory={start:#x}:{bytes:#x}"))
            .collect()
    };
    let timers = match settings.timers {
        Timers::Fine => "",
        Timers::Coarse => " highres=off",
    };
    let console = if nested { "ttyS0" } else { "hvc0" };
    let kernel = format!(
        "console={console} quiet panic=-1 cryptomgr.notests tsc=reliable no_timer_check nokaslr mitigations=off{timers}{memory}",
    );
    match &host.xen {
        None => {
            line.kernel(&host.files.kernel, files.initrd, kernel);
        }
        Some(xen) => {
            line.option("-kernel", xen.to_string_lossy());
            // Multiboot modules: each is a file and its command line, separated by commas.
            let [image, initrd] = [host.files.kernel.as_path(), files.initrd].map(value);
            line.option("-initrd", format!("{image} {kernel},{initrd}"));
            let dom0 = settings.memory_mib / 2;
            let scheduler = settings
                .scheduler
                .map_or(String::new(), |one| format!(" sched={}", one.name()));
            line.option(
                "-append",
                format!(
                    "dom0_mem={dom0}M,max:{dom0}M console=com1 com1=115200,8n1 loglvl=warning noreboot=1{scheduler}"
                ),
            );
        }
    }

    match files.console {
        Some(path) => line.file("console", path),
        None => line.option("-chardev", "stdio,id=console,signal=off"),
    };
    line.option("-serial", "chardev:console");
    if let Some((events, results)) = files.ports {
        for (name, path) in [("events", events), ("results", results)] {
            line.file(name, path);
        }
        // Without an event file descriptor a write is handled at its instruction.
        let device = "virtio-serial-pci,disable-legacy=on,ioeventfd=off";
        line.option("-device", device);
        for name in ["events", "results"] {
            line.port(name, &format!("vtax.{name}"));
        }
    }
    if let Some((end, wire)) = files.link {
        end.plug(&mut line, wire);
    }
    if let Some(table) = files.pstates {
        line.option("-acpitable", format!("file={}", value(table)))
            .option("-device", "pc-testdev");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tests::fake_host;
    use crate::settings::{Frequency, Scheduler};

    const KVM: &str = "qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot -accel \
        tcg,thread=single -icount shift=0,sleep=off -smp 1 -rtc base=2026-01-01T00:00:00,clock=vm \
        -seed 1 -cpu EPYC,+svm,-xsaves -machine \
        q35,usb=off,vmport=off,smm=off,sata=off,smbus=off,nvdimm=on -m 3072M,slots=3,maxmem=9216M \
        -object \
        memory-backend-file,id=disk0,share=off,readonly=off,mem-path=/cache/root.ext4,size=805306368 \
        -device nvdimm,id=nvdimm0,memdev=disk0 -object \
        memory-backend-file,id=disk1,share=on,readonly=on,mem-path=/cache/guests.ext4,size=805306368 \
        -device nvdimm,id=nvdimm1,memdev=disk1,unarmed=on \
        -object \
        memory-backend-file,id=disk2,share=on,readonly=on,mem-path=/tmp/payload,size=1073741824 \
        -device nvdimm,id=nvdimm2,memdev=disk2,unarmed=on -kernel /cache/vmlinuz -initrd /tmp/a,b/initrd \
        -append console=ttyS0 quiet panic=-1 cryptomgr.notests tsc=reliable no_timer_check nokaslr \
        mitigations=off -chardev \
        file,id=console,path=/tmp/console -serial chardev:console -chardev \
        file,id=events,path=/tmp/events -chardev file,id=results,path=/tmp/results -device \
        virtio-serial-pci,disable-legacy=on,ioeventfd=off -device \
        virtserialport,chardev=events,name=vtax.events -device \
        virtserialport,chardev=results,name=vtax.results";
    const XEN: &str = "qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot -accel \
        tcg,thread=single -icount shift=0,sleep=off -smp 1 -rtc base=2026-01-01T00:00:00,clock=vm \
        -seed 1 -cpu qemu64 -machine q35,usb=off,vmport=off,smm=off,sata=off,smbus=off,nvdimm=on -m \
        3072M,slots=3,maxmem=71680M -object \
        memory-backend-file,id=disk0,share=off,readonly=off,mem-path=/cache/root.ext4,size=805306368 \
        -device nvdimm,id=nvdimm0,memdev=disk0,addr=0x1000000000 -object \
        memory-backend-file,id=disk1,share=on,readonly=on,mem-path=/cache/guests.ext4,size=805306368 \
        -device nvdimm,id=nvdimm1,memdev=disk1,addr=0x1080000000,unarmed=on \
        -object \
        memory-backend-file,id=disk2,share=on,readonly=on,mem-path=/tmp/payload,size=1073741824 \
        -device nvdimm,id=nvdimm2,memdev=disk2,addr=0x1100000000,unarmed=on -kernel /cache/xen -initrd \
        /cache/vmlinuz console=hvc0 quiet panic=-1 cryptomgr.notests tsc=reliable no_timer_check \
        nokaslr mitigations=off \
        testbed.memory=0x1000000000:0x30000000 testbed.memory=0x1080000000:0x30000000 \
        testbed.memory=0x1100000000:0x40000000,/tmp/a,,b/initrd \
        -append dom0_mem=1536M,max:1536M console=com1 \
        com1=115200,8n1 loglvl=warning noreboot=1 -chardev file,id=console,path=/tmp/console -serial \
        chardev:console -chardev file,id=events,path=/tmp/events -chardev \
        file,id=results,path=/tmp/results -device virtio-serial-pci,disable-legacy=on,ioeventfd=off \
        -device virtserialport,chardev=events,name=vtax.events -device \
        virtserialport,chardev=results,name=vtax.results";
    const FREE: &str = "qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot -accel \
        tcg,thread=multi -smp 2 -rtc base=utc -cpu EPYC,+svm,-xsaves -machine \
        q35,usb=off,vmport=off,smm=off,sata=off,smbus=off,nvdimm=on -m 3072M,slots=3,maxmem=9216M \
        -object \
        memory-backend-file,id=disk0,share=off,readonly=off,mem-path=/cache/root.ext4,size=805306368 \
        -device nvdimm,id=nvdimm0,memdev=disk0 -object \
        memory-backend-file,id=disk1,share=on,readonly=on,mem-path=/cache/guests.ext4,size=805306368 \
        -device nvdimm,id=nvdimm1,memdev=disk1,unarmed=on \
        -object \
        memory-backend-file,id=disk2,share=on,readonly=on,mem-path=/tmp/payload,size=1073741824 \
        -device nvdimm,id=nvdimm2,memdev=disk2,unarmed=on -kernel /cache/vmlinuz -initrd /tmp/a,b/initrd \
        -append console=ttyS0 quiet panic=-1 cryptomgr.notests tsc=reliable no_timer_check nokaslr \
        mitigations=off -chardev \
        file,id=console,path=/tmp/console -serial chardev:console -chardev \
        file,id=events,path=/tmp/events -chardev file,id=results,path=/tmp/results -device \
        virtio-serial-pci,disable-legacy=on,ioeventfd=off -device \
        virtserialport,chardev=events,name=vtax.events -device \
        virtserialport,chardev=results,name=vtax.results";

    fn line(hypervisor: Hypervisor, settings: &Settings) -> String {
        let host = fake_host(Path::new("/cache"), hypervisor);
        let files = Files {
            initrd: Path::new("/tmp/a,b/initrd"),
            payload: Path::new("/tmp/payload"),
            console: Some(Path::new("/tmp/console")),
            ports: Some((Path::new("/tmp/events"), Path::new("/tmp/results"))),
            link: None,
            pstates: None,
            trial: None,
            snapshot: None,
        };
        command_line(&host, settings, files).words().join(" ")
    }

    #[test]
    fn the_whole_line_is_as_it_was() {
        // The guard's counts are valid for exactly these machines.
        assert_eq!(line(Hypervisor::Kvm, &Settings::default()), KVM);
        assert_eq!(line(Hypervisor::Xen, &Settings::default()), XEN);
        let free = Settings {
            deterministic: false,
            ..Settings::default()
        };
        assert_eq!(line(Hypervisor::Kvm, &free), FREE);
    }

    #[test]
    fn several_processors_share_one_thread_and_have_clocks_of_their_own() {
        for processors in [2, 4] {
            let several = Settings {
                processors: Some(processors),
                ..Settings::default()
            };
            let expected = KVM
                .replace(
                    "sleep=off -smp 1",
                    &format!("sleep=off,slack=200 -smp {processors}"),
                )
                .replace("-xsaves", "-xsaves,-monitor");
            assert_eq!(line(Hypervisor::Kvm, &several), expected);
            let xen = line(Hypervisor::Xen, &several);
            assert!(xen.contains("-cpu qemu64,-monitor "), "{xen}");
        }
        let one = Settings {
            processors: Some(1),
            ..Settings::default()
        };
        assert_eq!(line(Hypervisor::Kvm, &one), KVM);
    }

    #[test]
    fn a_cache_is_counted_where_it_is_asked_for_and_changes_nothing_else() {
        let counted = Settings {
            llc_mib: Some(8),
            ..Settings::default()
        };
        let line = line(Hypervisor::Kvm, &counted);
        assert_eq!(line.replace("-plugin llc,mib=8 ", ""), KVM);
    }

    #[test]
    fn coarse_timers_are_the_kernels_and_fine_ones_change_nothing() {
        for hypervisor in Hypervisor::ALL {
            let coarse = Settings {
                timers: Timers::Coarse,
                ..Settings::default()
            };
            assert!(line(hypervisor, &coarse).contains("mitigations=off highres=off"));
            assert!(!line(hypervisor, &Settings::default()).contains("highres"));
        }
    }

    #[test]
    fn virtualization_is_given_to_xen_alone_and_where_it_is_asked_for() {
        let hvm = Settings {
            hvm: true,
            ..Settings::default()
        };
        assert!(line(Hypervisor::Xen, &hvm).contains("-cpu qemu64,+svm,+npt "));
        assert_eq!(line(Hypervisor::Kvm, &hvm), KVM);
    }

    #[test]
    fn a_deterministic_machine_takes_nothing_from_this_one() {
        for hypervisor in Hypervisor::ALL {
            let line = line(hypervisor, &Settings::default());
            for part in [
                "-accel tcg,thread=single",
                "-icount shift=0,sleep=off",
                "-smp 1",
                "clock=vm",
                "-seed 1",
                "ioeventfd=off",
            ] {
                assert!(line.contains(part), "{part}: {line}");
            }
            for part in ["-netdev", "-nic", "rng", "-accel kvm"] {
                assert!(!line.contains(part), "{part}: {line}");
            }
        }
    }

    #[test]
    fn two_machines_are_the_ends_of_one_wire() {
        let host = fake_host(Path::new("/cache"), Hypervisor::Kvm);
        let line = |end| {
            let files = Files {
                initrd: Path::new("/tmp/initrd"),
                payload: Path::new("/tmp/payload"),
                console: None,
                ports: None,
                link: Some((end, Path::new("/tmp/a,b"))),
                pstates: None,
                trial: None,
                snapshot: None,
            };
            command_line(&host, &Settings::default(), files)
                .words()
                .join(" ")
        };
        let wire = "addr.type=unix,addr.path=/tmp/a,,b";
        let (client, host) = (line(End::Client), line(End::Host));
        assert!(
            client.contains(&format!("stream,id=link,server=on,{wire} ")),
            "{client}"
        );
        assert!(
            host.contains(&format!("stream,id=link,server=off,{wire} ")),
            "{host}"
        );
        let mac = |line: &str| line.split_once("mac=").map(|(_, mac)| mac.to_owned());
        assert!(mac(&client).is_some() && mac(&client) != mac(&host));
    }

    #[test]
    fn half_the_frequency_is_a_shift_of_the_instruction_clock() {
        let half = Settings {
            frequency: Frequency::Half,
            ..Settings::default()
        };
        assert!(line(Hypervisor::Kvm, &half).contains("-icount shift=1,sleep=off"));
        let free = Settings {
            deterministic: false,
            ..Settings::default()
        };
        assert!(!line(Hypervisor::Kvm, &free).contains("-icount"));
    }

    #[test]
    fn frequencies_are_a_table_more_and_the_port_that_it_names() {
        let host = fake_host(Path::new("/cache"), Hypervisor::Kvm);
        let files = Files {
            initrd: Path::new("/tmp/initrd"),
            payload: Path::new("/tmp/payload"),
            console: None,
            ports: None,
            link: None,
            pstates: Some(Path::new("/tmp/a,b")),
            trial: None,
            snapshot: None,
        };
        let line = command_line(&host, &Settings::default(), files);
        let line = line.words().join(" ");
        assert!(
            line.ends_with(" -acpitable file=/tmp/a,,b -device pc-testdev"),
            "{line}"
        );
        assert!(line.contains("-xsaves,+invtsc "), "{line}");
    }

    #[test]
    fn the_images_are_never_written() {
        for hypervisor in Hypervisor::ALL {
            let line = line(hypervisor, &Settings::default());
            for kept in [
                "share=off,readonly=off,mem-path=/cache/root.ext4",
                "share=on,readonly=on,mem-path=/cache/guests.ext4",
            ] {
                assert!(line.contains(kept), "{kept}: {line}");
            }
        }
    }

    #[test]
    fn a_host_that_is_saved_writes_its_disks_and_one_from_a_snapshot_does_not() {
        let host = fake_host(Path::new("/cache"), Hypervisor::Kvm);
        let line = |creates| {
            let files = Files {
                initrd: Path::new("/m/initrd"),
                payload: Path::new("/tmp/payload"),
                console: None,
                ports: None,
                link: None,
                pstates: None,
                trial: Some("--treatment=2,3"),
                snapshot: Some(SnapshotFiles {
                    memory: Path::new("/m/memory"),
                    root: Path::new("/m/root"),
                    monitor: Path::new("/t/monitor"),
                    creates,
                }),
            };
            command_line(&host, &Settings::default(), files)
                .words()
                .join(" ")
        };
        let (creates, begins) = (line(true), line(false));
        for (kept, path) in [
            ("memory", "/m/memory,size=3221225472"),
            ("disk0", "/m/root,size="),
        ] {
            let written = format!("id={kept},share=on,readonly=off,mem-path={path}");
            let private = format!("id={kept},share=off,readonly=off,mem-path={path}");
            assert!(
                creates.contains(&written) && !creates.contains(&private),
                "{creates}"
            );
            assert!(
                begins.contains(&private) && !begins.contains(&written),
                "{begins}"
            );
        }
        // Otherwise both are the same machine, so that one can load the state of the other.
        let rest = |line: &str| {
            line.replace("share=on", "share=off")
                .replace(" -incoming defer", "")
        };
        assert_eq!(rest(&creates), rest(&begins));
        assert!(begins.contains(" -incoming defer") && begins.contains("memory-backend=memory"));
        assert!(
            begins.contains("name=opt/vtax/trial,string=--treatment=2,,3"),
            "{begins}"
        );
        assert!(!begins.contains("root.ext4"), "{begins}");
    }

    #[test]
    fn a_dom0_is_reported_where_its_disks_are_in_memory() {
        let xen = line(Hypervisor::Xen, &Settings::default());
        for part in [
            "memdev=disk0,addr=0x1000000000",
            "memdev=disk1,addr=0x1080000000",
            "testbed.memory=0x1000000000:0x30000000 testbed.memory=0x1080000000:0x30000000",
        ] {
            assert!(xen.contains(part), "{part}: {xen}");
        }
    }

    #[test]
    fn xen_has_the_scheduler_of_the_settings_and_otherwise_its_own() {
        let settings = Settings {
            scheduler: Some(Scheduler::Credit),
            ..Settings::default()
        };
        assert!(line(Hypervisor::Xen, &settings).contains(" noreboot=1 sched=credit "));
        assert!(!line(Hypervisor::Xen, &Settings::default()).contains("sched="));
        assert!(!line(Hypervisor::Kvm, &settings).contains("sched="));
    }

    #[test]
    fn xen_is_the_kernel_and_linux_its_first_module() {
        let line = line(Hypervisor::Xen, &Settings::default());
        assert!(line.contains("-kernel /cache/xen "), "{line}");
        assert!(
            line.contains("-initrd /cache/vmlinuz console=hvc0"),
            "{line}"
        );
        assert!(
            line.contains(",/tmp/a,,b/initrd -append dom0_mem="),
            "{line}"
        );
    }
}
