//! The emulated machine: QEMU's command line.

use crate::host::Host;
use crate::settings::{Settings, Timers};
use std::path::Path;
use vtax_lab::place::Hypervisor;

/// A memory device occupies whole GiB of addresses.
const GIB: u64 = 1 << 30;

/// Where the first disk of a Dom0 is in the machine's memory: above all else that is there.
const DOM0_DISKS: u64 = 64 * GIB;

/// The files of one machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Files<'a> {
    /// Kernel modules and payload.
    pub initrd: &'a Path,
    /// What the console prints goes here; `None`: this terminal is the console.
    pub console: Option<&'a Path>,
    /// What the ports carry goes here, if they are wanted: events, results.
    pub ports: Option<(&'a Path, &'a Path)>,
}

/// A path as the value of a QEMU option, where `,,` is a comma.
fn value(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

/// The command line of a host's machine.
pub(crate) fn command_line(host: &Host, settings: &Settings, files: Files<'_>) -> Vec<String> {
    let mut line: Vec<String> = [
        "qemu-system-x86_64",
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-no-reboot",
    ]
    .map(str::to_owned)
    .to_vec();
    let mut option = |name: &str, value: String| line.extend([name.to_owned(), value]);

    if settings.deterministic {
        // One thread runs all, the clock is what it has executed and jumps where it would idle.
        option("-accel", "tcg,thread=single".into());
        let shift = settings.frequency.shift();
        option("-icount", format!("shift={shift},sleep=off"));
        option("-smp", "1".into());
        option("-rtc", "base=2026-01-01T00:00:00,clock=vm".into());
        option("-seed", settings.seed.to_string());
    } else {
        option("-accel", "tcg,thread=multi".into());
        option("-smp", "2".into());
        option("-rtc", "base=utc".into());
    }
    let nested = host.hypervisor == Hypervisor::Kvm;
    // Under Xen, Dom0 crashes at its entry with richer models; nested SVM has no XSAVES.
    let cpu = if nested {
        "EPYC,+svm,-xsaves"
    } else {
        "qemu64"
    };
    option("-cpu", cpu.into());
    let machine = "q35,usb=off,vmport=off,smm=off,sata=off,smbus=off";
    option("-machine", format!("{machine},nvdimm=on"));
    let ends = host.disks.iter().scan(DOM0_DISKS, |end, disk| {
        let start = *end;
        *end += disk.bytes.next_multiple_of(GIB) + GIB;
        Some((start, *end))
    });
    let places: Vec<(u64, u64)> = ends.collect();
    let most = if nested {
        let disks = places.iter().map(|(start, end)| end - start);
        (u64::from(settings.memory_mib) << 20) + disks.sum::<u64>()
    } else {
        places.last().map_or(0, |(_, end)| *end)
    };
    option(
        "-m",
        format!(
            "{}M,slots={},maxmem={}M",
            settings.memory_mib,
            host.disks.len(),
            most >> 20
        ),
    );
    for (position, (disk, (start, _))) in host.disks.iter().zip(&places).enumerate() {
        // Private: what the host writes stays in memory and goes with it.
        option(
            "-object",
            format!(
                "memory-backend-file,id=disk{position},share=off,readonly=off,mem-path={},size={}",
                value(&disk.path),
                disk.bytes
            ),
        );
        let address = if nested {
            String::new()
        } else {
            format!(",addr={start:#x}")
        };
        option(
            "-device",
            format!("nvdimm,id=nvdimm{position},memdev=disk{position}{address}"),
        );
    }

    // Xen keeps persistent memory to itself, but lets its Dom0 map what it does not know as memory:
    // there a driver for flash memory is told where the disks are.
    let disks = if nested {
        "testbed.root=pmem0 testbed.guests=pmem1".to_owned()
    } else {
        let memory = host.disks.iter().zip(&places);
        let memory = memory
            .map(|(disk, (start, _))| format!(" testbed.memory={start:#x}:{:#x}", disk.bytes));
        format!(
            "testbed.root=mtdblock0 testbed.guests=mtdblock1{}",
            memory.collect::<String>()
        )
    };
    let timers = match settings.timers {
        Timers::Fine => "",
        Timers::Coarse => " highres=off",
    };
    let console = if nested { "ttyS0" } else { "hvc0" };
    let kernel = format!(
        "console={console} quiet panic=-1 cryptomgr.notests tsc=reliable no_timer_check nokaslr mitigations=off{timers} \
         {disks} testbed.image={}",
        host.guest.recipe
    );
    match &host.xen {
        None => {
            option("-kernel", host.files.kernel.to_string_lossy().into_owned());
            option("-initrd", files.initrd.to_string_lossy().into_owned());
            option("-append", kernel);
        }
        Some(xen) => {
            option("-kernel", xen.to_string_lossy().into_owned());
            // Multiboot modules: the file and its command line, then the next after a comma.
            option(
                "-initrd",
                format!(
                    "{} {kernel},{}",
                    value(&host.files.kernel),
                    value(files.initrd)
                ),
            );
            let dom0 = settings.memory_mib / 2;
            option(
                "-append",
                format!(
                    "dom0_mem={dom0}M,max:{dom0}M console=com1 com1=115200,8n1 loglvl=warning noreboot=1"
                ),
            );
        }
    }

    match files.console {
        Some(path) => option("-chardev", format!("file,id=console,path={}", value(path))),
        None => option("-chardev", "stdio,id=console,signal=off".into()),
    }
    option("-serial", "chardev:console".into());
    if let Some((events, results)) = files.ports {
        for (name, path) in [("events", events), ("results", results)] {
            option("-chardev", format!("file,id={name},path={}", value(path)));
        }
        // Without an event file descriptor what is written leaves at that very instruction.
        option(
            "-device",
            "virtio-serial-pci,disable-legacy=on,ioeventfd=off".into(),
        );
        for name in ["events", "results"] {
            option(
                "-device",
                format!("virtserialport,chardev={name},name=vtax.{name}"),
            );
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tests::fake_host;
    use crate::settings::Frequency;

    fn line(hypervisor: Hypervisor, settings: &Settings) -> String {
        let host = fake_host(Path::new("/cache"), hypervisor);
        let files = Files {
            initrd: Path::new("/tmp/a,b/initrd"),
            console: Some(Path::new("/tmp/console")),
            ports: Some((Path::new("/tmp/events"), Path::new("/tmp/results"))),
        };
        command_line(&host, settings, files).join(" ")
    }

    #[test]
    fn coarse_timers_are_the_kernels_and_fine_ones_change_nothing() {
        for hypervisor in Hypervisor::ALL {
            let coarse = Settings {
                timers: Timers::Coarse,
                ..Settings::default()
            };
            assert!(
                line(hypervisor, &coarse).contains("mitigations=off highres=off testbed.root=")
            );
            assert!(
                line(hypervisor, &Settings::default()).contains("mitigations=off testbed.root=")
            );
        }
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
    fn the_images_are_never_written() {
        let kvm = line(Hypervisor::Kvm, &Settings::default());
        assert_eq!(kvm.matches("share=off").count(), 2, "{kvm}");
        assert!(kvm.contains("-device nvdimm") && kvm.contains("testbed.root=pmem0"));
        let xen = line(Hypervisor::Xen, &Settings::default());
        assert_eq!(xen.matches("share=off").count(), 2, "{xen}");
    }

    #[test]
    fn a_dom0_is_told_where_its_disks_are_in_memory() {
        let xen = line(Hypervisor::Xen, &Settings::default());
        for part in [
            "memdev=disk0,addr=0x1000000000",
            "memdev=disk1,addr=0x1080000000",
            "testbed.memory=0x1000000000:0x30000000 testbed.memory=0x1080000000:0x30000000",
            "testbed.root=mtdblock0",
        ] {
            assert!(xen.contains(part), "{part}: {xen}");
        }
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
