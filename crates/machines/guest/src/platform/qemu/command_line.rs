// SPDX-License-Identifier: Apache-2.0
//! QEMU's command line for a machine.

use super::machine::{Accel, Backend, Kind, Machine};
use super::options::{Options, Q35, value};
use crate::platform::GuestFiles;
use crate::platform::vm::surroundings::Network;
use std::fmt::Write;
use std::path::Path;

/// The address of a guest behind QEMU's own network stack (its default, `docs/system/devices/net.rst`).
const USER_ADDRESS: &str = "10.0.2.15/24";

/// The id of a NIC whose properties are read back.
pub(super) const NIC_ID: &str = "nic0";

/// The gateway of that network. Forwarded connections keep their client's address, so that replies need a route.
const USER_GATEWAY: &str = "10.0.2.2";

/// The paths of one QEMU's sockets and files, as QEMU sees them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Files<'a> {
    /// The socket of the vtax backend.
    pub(super) nic: &'a Path,
    pub(super) monitor: &'a Path,
    pub(super) agent: &'a Path,
    pub(super) console: &'a Path,
    pub(super) scratch: Option<Scratch<'a>>,
}

/// The image of the scratch disk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scratch<'a> {
    pub(super) image: &'a Path,
    /// Whether reads and writes bypass the host's page cache, as on other platforms.
    pub(super) direct: bool,
}

/// The command line of `machine`, whose accelerator is decided.
pub(super) fn command_line(
    machine: &Machine,
    guest: &GuestFiles,
    network: &Network,
    files: Files,
) -> Options {
    let mut line = Options::bare(&machine.binary);
    let kvm = machine.accel == Accel::Kvm;
    let accel = if kvm { "kvm" } else { "tcg,thread=multi" };
    let memory = format!("{}M", machine.memory_mib);
    let shared = machine.backend.is_vhost_user();
    let own_memory = shared || machine.huge_pages;
    line.option("-name", "guest=target,debug-threads=on")
        .option("-accel", accel)
        .option(
            "-cpu",
            machine.cpu.as_deref().unwrap_or(machine.accel.cpu()),
        )
        .option("-smp", machine.vcpus.to_string())
        .option("-m", memory.as_str())
        .option("-machine", machine_option(machine.kind, own_memory));
    if own_memory {
        // A vhost-user backend reads and writes guest memory itself.
        let share = if shared { "on" } else { "off" };
        // Without huge pages at its start QEMU fails, instead of the guest later.
        let pages = if machine.huge_pages {
            ",hugetlb=on,hugetlbsize=2M,prealloc=on"
        } else {
            ""
        };
        line.option(
            "-object",
            format!("memory-backend-memfd,id=memory,size={memory},share={share}{pages}"),
        );
    }
    line.kernel(
        &guest.kernel,
        &guest.initrd,
        kernel_command_line(machine, network, files.scratch.is_some()),
    )
    .file("console", files.console)
    .option("-serial", "chardev:console")
    .socket("monitor", files.monitor)
    .option("-mon", "chardev=monitor,mode=control")
    .socket("agent", files.agent)
    .option("-device", "virtio-serial-pci,disable-legacy=on")
    .port("agent", "org.qemu.guest_agent.0");

    let iothread = if machine.iothread {
        ",iothread=io0"
    } else {
        ""
    };
    if machine.iothread {
        line.option("-object", "iothread,id=io0");
    }
    // A snapshot: the guest sees an ordinary writable disk, the shared image is only read, and writes go to an
    // unlinked file that ends with QEMU.
    line.option(
        "-drive",
        format!(
            "id=root,if=none,format=raw,snapshot=on,file={}",
            value(&guest.image)
        ),
    );
    line.option(
        "-device",
        format!("virtio-blk-pci,disable-legacy=on,drive=root{iothread}"),
    );
    if let Some(scratch) = files.scratch {
        let direct = if scratch.direct { "on" } else { "off" };
        line.option(
            "-drive",
            format!(
                "id=scratch,if=none,format=raw,cache.direct={direct},file={}",
                value(scratch.image)
            ),
        );
        line.option(
            "-device",
            format!("virtio-blk-pci,disable-legacy=on,drive=scratch{iothread}"),
        );
    }

    for (name, value) in nic(machine, network, files.nic) {
        line.option(name, value);
    }
    line
}

fn machine_option(kind: Kind, own_memory: bool) -> String {
    let mut text = match kind {
        Kind::Q35 => Q35,
        Kind::Pc => "pc,usb=off,vmport=off,smm=off",
    }
    .to_owned();
    if own_memory {
        text.push_str(",memory-backend=memory");
    }
    text
}

pub(super) fn kernel_command_line(machine: &Machine, network: &Network, scratch: bool) -> String {
    // The kernel panics into a reboot, at which QEMU exits. Self-tests of cryptographic code take 0.4 s of every
    // emulated boot and have no effect after it.
    let mut text = "console=ttyS0 quiet panic=-1 cryptomgr.notests vtax.root=vda".to_owned();
    if machine.accel != Accel::Kvm {
        // On a busy host, late ticks of an emulated timer make the kernel distrust good clocks.
        text.push_str(" tsc=reliable no_timer_check");
    }
    if matches!(machine.backend, Backend::User(_)) {
        let _ = write!(text, " vtax.ip={USER_ADDRESS} vtax.gateway={USER_GATEWAY}");
    } else {
        text.push_str(&network.addresses());
    }
    text + &network.link_and_scratch(scratch.then_some("vdb"))
}

fn nic(machine: &Machine, network: &Network, own_socket: &Path) -> Vec<(&'static str, String)> {
    let mut options = Vec::new();
    let queues = if machine.queues > 1 {
        format!(",queues={}", machine.queues)
    } else {
        String::new()
    };
    match &machine.backend {
        Backend::Tap | Backend::TapVhost => {
            let mut vhost = String::new();
            if machine.backend == Backend::TapVhost {
                vhost.push_str(",vhost=on");
                if let Some(microseconds) = machine.busyloop_us {
                    let _ = write!(vhost, ",poll-us={microseconds}");
                }
            }
            options.push((
                "-netdev",
                format!(
                    "tap,id=net0,ifname={},script=no,downscript=no{vhost}{queues}",
                    network.tap
                ),
            ));
        }
        Backend::User(ports) => {
            let mut text = "user,id=net0".to_owned();
            for port in ports {
                for protocol in ["tcp", "udp"] {
                    let _ = write!(
                        text,
                        ",hostfwd={protocol}:{}:{port}-:{port}",
                        network.address
                    );
                }
            }
            options.push(("-netdev", text));
        }
        Backend::VhostUser(_) | Backend::Vtax(_) => {
            let socket = match &machine.backend {
                Backend::VhostUser(socket) => socket,
                _ => own_socket,
            };
            options.push(("-chardev", format!("socket,id=nic,path={}", value(socket))));
            options.push(("-netdev", format!("vhost-user,id=net0,chardev=nic{queues}")));
        }
    }
    // No boot ROM: nothing boots from the network.
    let mut device = format!(
        "virtio-net-pci,disable-legacy=on,netdev=net0,mac={},romfile=",
        network.mac
    );
    if machine.queues > 1 {
        device.push_str(",mq=on");
    }
    if let Some(nanoseconds) = machine.tx_timer_ns {
        let _ = write!(device, ",id={NIC_ID},tx=timer,x-txtimer={nanoseconds}");
    }
    if !machine.msix {
        device.push_str(",vectors=0");
    } else if machine.queues > 1 {
        // One vector for each queue, one for configuration changes, one for control.
        let _ = write!(device, ",vectors={}", 2 * machine.queues + 2);
    }
    if network.mtu != 1500 && machine.backend.has_tap() {
        let _ = write!(device, ",host_mtu={}", network.mtu);
    }
    if !network.offloads {
        device.push_str(",csum=off,gso=off,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off");
        device.push_str(",host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off");
    }
    options.push(("-device", device));
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use vtax_host::settings::{Level, Settings};

    fn build(levels: &[(&str, Level)], network: &Network, scratch: Option<&Path>) -> String {
        let settings: Settings = levels.iter().cloned().collect();
        let mut machine = Machine::from_settings(&settings).unwrap();
        machine.accel = Accel::Tcg;
        let guest = GuestFiles {
            root: "/i/root".into(),
            image: "/i/a,b/root.ext4".into(),
            kernel: "/i/vmlinuz".into(),
            initrd: "/i/initrd".into(),
            recipe: String::new(),
            directory: None,
            files: None,
        };
        let files = Files {
            nic: Path::new("/run/nic.sock"),
            monitor: Path::new("/run/qmp.sock"),
            agent: Path::new("/run/agent.sock"),
            console: Path::new("/run/console.log"),
            scratch: scratch.map(|image| Scratch {
                image,
                direct: true,
            }),
        };
        command_line(&machine, &guest, network, files)
            .words()
            .join(" ")
    }

    const WIDE: &str = "qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot -name \
        guest=target,debug-threads=on -accel tcg,thread=multi -cpu max,la57=off,erms=off,fsrm=off -smp 1 -m 512M -machine \
        pc,usb=off,vmport=off,smm=off,memory-backend=memory -object \
        memory-backend-memfd,id=memory,size=512M,share=on -kernel /i/vmlinuz -initrd /i/initrd \
        -append console=ttyS0 quiet panic=-1 cryptomgr.notests vtax.root=vda tsc=reliable \
        no_timer_check vtax.ip=10.91.0.2/24 vtax.scratch=vdb:/scratch -chardev \
        file,id=console,path=/run/console.log -serial chardev:console -chardev \
        socket,id=monitor,path=/run/qmp.sock,server=on,wait=off -mon chardev=monitor,mode=control \
        -chardev socket,id=agent,path=/run/agent.sock,server=on,wait=off -device \
        virtio-serial-pci,disable-legacy=on -device \
        virtserialport,chardev=agent,name=org.qemu.guest_agent.0 -object iothread,id=io0 -drive \
        id=root,if=none,format=raw,snapshot=on,file=/i/a,,b/root.ext4 -device \
        virtio-blk-pci,disable-legacy=on,drive=root,iothread=io0 -drive \
        id=scratch,if=none,format=raw,cache.direct=on,file=/s,,1 -device \
        virtio-blk-pci,disable-legacy=on,drive=scratch,iothread=io0 -chardev \
        socket,id=nic,path=/run/nic.sock -netdev vhost-user,id=net0,chardev=nic,queues=2 -device \
        virtio-net-pci,disable-legacy=on,netdev=net0,mac=02:76:74:61:78:02,romfile=,mq=on,vectors=6";
    const PLAIN: &str = "qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot -name \
        guest=target,debug-threads=on -accel tcg,thread=multi -cpu max,la57=off,erms=off,fsrm=off -smp 1 -m 512M -machine \
        q35,usb=off,vmport=off,smm=off,sata=off,smbus=off -kernel /i/vmlinuz -initrd /i/initrd \
        -append console=ttyS0 quiet panic=-1 cryptomgr.notests vtax.root=vda tsc=reliable \
        no_timer_check vtax.ip=10.91.0.2/24 -chardev file,id=console,path=/run/console.log -serial \
        chardev:console -chardev socket,id=monitor,path=/run/qmp.sock,server=on,wait=off -mon \
        chardev=monitor,mode=control -chardev \
        socket,id=agent,path=/run/agent.sock,server=on,wait=off -device \
        virtio-serial-pci,disable-legacy=on -device \
        virtserialport,chardev=agent,name=org.qemu.guest_agent.0 -drive \
        id=root,if=none,format=raw,snapshot=on,file=/i/a,,b/root.ext4 -device \
        virtio-blk-pci,disable-legacy=on,drive=root -netdev \
        tap,id=net0,ifname=tap0,script=no,downscript=no -device \
        virtio-net-pci,disable-legacy=on,netdev=net0,mac=02:76:74:61:78:02,romfile=";

    fn text(value: &str) -> Level {
        Level::Text(value.into())
    }

    #[test]
    fn the_whole_line_is_as_it_was() {
        let wide = [
            ("nic.backend", text("vtax")),
            ("nic.queues", Level::Integer(2)),
            ("vm.iothread", Level::Bool(true)),
            ("vm.machine", text("pc")),
        ];
        let scratch = Some(Path::new("/s,1"));
        assert_eq!(build(&wide, &Network::default(), scratch), WIDE);
        assert_eq!(build(&[], &Network::default(), None), PLAIN);
    }

    #[test]
    fn a_comma_in_a_path_does_not_end_the_option() {
        assert_eq!(value(&PathBuf::from("/a,b,,c")), "/a,,b,,,,c");
        let line = build(&[], &Network::default(), Some(Path::new("/s,1")));
        assert!(line.contains("file=/i/a,,b/root.ext4"), "{line}");
        assert!(line.contains("file=/s,,1"), "{line}");
        let socket = [
            ("nic.backend", text("vhost-user")),
            ("nic.socket", text("/x,server=on")),
        ];
        assert!(build(&socket, &Network::default(), None).contains("path=/x,,server=on "));
    }

    #[test]
    fn the_shared_image_is_never_opened_for_writing() {
        let line = build(&[], &Network::default(), None);
        assert!(
            line.contains("id=root,if=none,format=raw,snapshot=on,"),
            "{line}"
        );
    }

    #[test]
    fn a_link_without_offloads_is_one_in_the_guest_too() {
        let network = Network {
            offloads: false,
            mtu: 9000,
            ..Network::default()
        };
        let line = build(&[], &network, None);
        for part in [
            "csum=off",
            "guest_tso4=off",
            "host_tso4=off",
            "host_mtu=9000",
            "vtax.mtu=9000",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
        assert!(!build(&[], &Network::default(), None).contains("off,gso=off"));
    }

    #[test]
    fn knobs_of_the_nic_and_of_memory_are_options() {
        let timer = [("vm.tx_timer", Level::Integer(150_000))];
        let line = build(&timer, &Network::default(), None);
        assert!(
            line.contains(",id=nic0,tx=timer,x-txtimer=150000"),
            "{line}"
        );
        let busy = [
            ("nic.backend", text("tap+vhost")),
            ("host.vhost_busyloop", Level::Integer(50)),
        ];
        let line = build(&busy, &Network::default(), None);
        assert!(line.contains("vhost=on,poll-us=50"), "{line}");
        let line = build(
            &[("vm.hugepages", Level::Bool(true))],
            &Network::default(),
            None,
        );
        assert!(
            line.contains("size=512M,share=off,hugetlb=on,hugetlbsize=2M,prealloc=on")
                && line.contains("memory-backend=memory"),
            "{line}"
        );
    }

    #[test]
    fn each_backend_has_its_options() {
        let vhost = build(
            &[
                ("nic.backend", text("tap+vhost")),
                ("nic.queues", Level::Integer(2)),
            ],
            &Network::default(),
            None,
        );
        assert!(
            vhost.contains("vhost=on,queues=2") && vhost.contains("mq=on,vectors=6"),
            "{vhost}"
        );
        let user = build(
            &[("nic.backend", text("user")), ("nic.ports", text("80"))],
            &Network::default(),
            None,
        );
        assert!(
            user.contains("hostfwd=tcp:10.91.0.2:80-:80") && user.contains("vtax.ip=10.0.2.15/24"),
            "{user}"
        );
        let socket = [
            ("nic.backend", text("vhost-user")),
            ("nic.socket", text("/x")),
        ];
        let shared = build(&socket, &Network::default(), None);
        assert!(
            shared.contains("share=on") && shared.contains("memory-backend=memory"),
            "{shared}"
        );
        let own = build(&[("nic.backend", text("vtax"))], &Network::default(), None);
        for part in ["share=on", "path=/run/nic.sock", "vtax.ip=10.91.0.2/24"] {
            assert!(own.contains(part), "{part}: {own}");
        }
        assert!(!own.contains("vectors=0"), "{own}");
    }
}
