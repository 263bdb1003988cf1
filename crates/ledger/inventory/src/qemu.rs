// SPDX-License-Identifier: Apache-2.0
//! QEMU's command line, in all its spellings.

use super::{Description, Platform, options};

/// Recognises a QEMU by its `arguments`. `executable` is the name of the program file, for processes that were started
/// under another name.
pub(super) fn recognise(arguments: &[Vec<u8>], executable: Option<&[u8]>) -> Option<Description> {
    let program = super::base_name(arguments.first()?);
    if !is_qemu(program) && !executable.is_some_and(is_qemu) {
        return None;
    }
    let value = |flag| options::value(arguments, flag);
    let uuid = value("uuid").and_then(super::uuid);
    let uuid = uuid.or_else(|| firmware_uuid(arguments));
    let name = value("name").and_then(|name| options::named(name, "guest"));
    // Proxmox gives each VM a number besides the name, and users know VMs by it.
    let number = value("id").filter(|id| !id.is_empty() && id.iter().all(u8::is_ascii_digit));
    let cpus = value("smp")
        .and_then(|smp| options::named(smp, "cpus"))
        .and_then(|cpus| std::str::from_utf8(&cpus).ok()?.parse().ok());
    Some(Description {
        platform: Platform::Qemu,
        manager: manager(arguments, number.is_some()),
        name: name.or_else(|| number.map(<[u8]>::to_vec)),
        number: number.map(<[u8]>::to_vec),
        uuid,
        cpus,
    })
}

/// The UUID in the firmware's system table (SMBIOS type 1), which Proxmox sets instead of `-uuid`.
fn firmware_uuid(arguments: &[Vec<u8>]) -> Option<String> {
    let tables = options::values(arguments, "smbios");
    let of_system =
        tables.filter(|table| options::named(table, "type").is_some_and(|kind| kind == b"1"));
    let uuids = of_system.filter_map(|table| super::uuid(&options::named(table, "uuid")?));
    uuids.last()
}

fn is_qemu(program: &[u8]) -> bool {
    // QEMU helper programs that run no guest.
    const NO_GUEST: [&[u8]; 6] = [
        b"qemu-img",
        b"qemu-io",
        b"qemu-nbd",
        b"qemu-ga",
        b"qemu-storage-daemon",
        b"qemu-pr-helper",
    ];
    let is_system =
        program.starts_with(b"qemu-system-") || matches!(program, b"qemu-kvm" | b"qemu" | b"kvm");
    is_system && !NO_GUEST.contains(&program)
}

fn manager(arguments: &[Vec<u8>], has_number: bool) -> Option<&'static str> {
    let says = |flag, text: &[u8]| {
        options::values(arguments, flag).any(|value| options::contains(value, text))
    };
    let openstack = [&b"manufacturer=OpenStack"[..], b"product=OpenStack"];
    if openstack.into_iter().any(|text| says("smbios", text)) {
        return Some("openstack");
    }
    if says("smbios", b"manufacturer=KubeVirt") || says("smbios", b"product=KubeVirt") {
        return Some("kubevirt");
    }
    if has_number && says("chardev", b"/var/run/qemu-server/")
        || says("pidfile", b"/var/run/qemu-server/")
    {
        return Some("proxmox");
    }
    let libvirt = says("object", b"/lib/libvirt/")
        || says("chardev", b"id=charmonitor")
        || says("object", b"masterKey0");
    libvirt.then_some("libvirt")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Vec<Vec<u8>> {
        text.split(' ')
            .map(|part| part.as_bytes().to_vec())
            .collect()
    }

    fn found(text: &str) -> Description {
        recognise(&line(text), None).unwrap()
    }

    fn name(text: &str) -> String {
        String::from_utf8(found(text).name.unwrap()).unwrap()
    }

    /// Scaphandre #222, Kepler #1152 and #2276: each recognised only one form of the name.
    #[test]
    fn every_way_of_writing_a_name_is_understood() {
        for (text, expected) in [
            ("qemu-system-x86_64 -name web -m 512", "web"),
            ("qemu-system-x86_64 --name web -m 512", "web"),
            ("qemu-kvm -name guest=web,debug-threads=on", "web"),
            (
                "/usr/libexec/qemu-kvm -name guest=ns_web,debug-threads=on -S",
                "ns_web",
            ),
            ("/usr/bin/kvm -id 100 -name web,debug-threads=on", "web"),
            (
                "qemu-system-aarch64 -name debug-threads=on,guest=web",
                "web",
            ),
            ("qemu-system-x86_64 -name web,process=qemu-web", "web"),
            (
                "qemu-system-x86_64 -name guest=a,,b,debug-threads=on",
                "a,b",
            ),
            ("qemu -name a=b", "?"),
        ] {
            let name = found(text).name;
            let shown = name.map_or("?".to_owned(), |name| String::from_utf8(name).unwrap());
            assert_eq!(shown, expected, "{text}");
        }
    }

    #[test]
    fn managers_are_recognised_by_what_they_write() {
        for (text, expected) in [
            ("qemu-system-x86_64 -name x", None),
            (
                "/usr/bin/qemu-system-x86_64 -name guest=x -object {\"qom-type\":\"secret\",\"id\":\"masterKey0\"}",
                Some("libvirt"),
            ),
            (
                "/usr/bin/kvm -id 100 -name x -chardev socket,id=qmp,path=/var/run/qemu-server/100.qmp",
                Some("proxmox"),
            ),
            (
                "/usr/libexec/qemu-kvm -name guest=ns_x -smbios type=1,manufacturer=KubeVirt,product=None",
                Some("kubevirt"),
            ),
            (
                "/usr/bin/qemu-system-x86_64 -name guest=instance-0000001a -chardev socket,id=charmonitor -smbios type=1,manufacturer=OpenStack",
                Some("openstack"),
            ),
        ] {
            assert_eq!(found(text).manager, expected, "{text}");
        }
    }

    #[test]
    fn identity_and_size_are_read_where_they_are_given() {
        let vm = found(
            "qemu-kvm -name x -uuid 1B4E28BA-2fa1-11d2-883f-0016d3cca427 -smp 4,sockets=4 -m 512",
        );
        assert_eq!(vm.uuid.unwrap(), "1b4e28ba-2fa1-11d2-883f-0016d3cca427");
        assert_eq!(vm.cpus, Some(4));
        assert_eq!(found("qemu-kvm -smp sockets=2,cpus=8").cpus, Some(8));
        assert_eq!(found("qemu-kvm -uuid garbage -smp x").uuid, None);
        assert_eq!(name("kvm -id 104 -smp 2"), "104");
        assert_eq!(found("qemu-kvm -name").name, None);
        let proxmox = "/usr/bin/kvm -id 108 -name guest=web,debug-threads=on -smbios \
            type=1,uuid=1b4e28ba-2fa1-11d2-883f-0016d3cca427";
        let vm = found(proxmox);
        assert_eq!(vm.uuid.unwrap(), "1b4e28ba-2fa1-11d2-883f-0016d3cca427");
        assert_eq!(vm.number.unwrap(), b"108");
        let other = found("kvm -smbios type=2,uuid=1b4e28ba-2fa1-11d2-883f-0016d3cca427");
        assert_eq!(other.uuid, None, "the board's is not the system's");
    }

    #[test]
    fn programs_that_run_no_guest_are_none() {
        for text in [
            "qemu-img create x",
            "qemu-ga --daemon",
            "qemu-nbd -c /dev/nbd0",
            "bash -c qemu-kvm",
            "vim qemu-system-x86_64",
        ] {
            assert!(recognise(&line(text), None).is_none(), "{text}");
        }
        assert!(recognise(&[], None).is_none());
        let renamed = recognise(&line("guest-7 -name x"), Some(b"qemu-system-x86_64"));
        assert!(
            renamed.is_some(),
            "the program counts, not what it is called"
        );
    }
}
