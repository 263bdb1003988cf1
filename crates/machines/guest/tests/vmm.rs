// SPDX-License-Identifier: Apache-2.0
//! Guests of Firecracker and Cloud Hypervisor in a real cell, with a stand-in for the VMM. The tests check the
//! documented arguments and the cell; they do not show that the real programs boot the guests.

use crate::common;
use crate::common::{image, line, with_scratch};
use std::fs;
use std::path::Path;
use std::time::Duration;
use vtax_guest::platform::vmm::Vmm;
use vtax_guest::platform::{GuestFiles, Platform};
use vtax_host::HostError;
use vtax_host::cell::{Cell, CellConfig, LinkConfig, Space};
use vtax_host::journal::Journal;
use vtax_host::scratch;
use vtax_host::settings::{Level, Settings};
use vtax_testkit::stand_in::{FAILS, STAND_IN, name_threads, program};

const LIMIT: Duration = Duration::from_secs(60);
const VMMS: [Vmm; 2] = [Vmm::Firecracker, Vmm::CloudHypervisor];

fn settings(vmm: Vmm, programs: &Path) -> Settings {
    let binary = programs.join(vmm.program()).display().to_string();
    [
        ("vm.binary", Level::Text(binary)),
        ("vm.vcpus", Level::Integer(2)),
        ("vm.pin", Level::Text("0".to_owned())),
    ]
    .into_iter()
    .collect()
}

#[test(needs = [test_all("takes 20 s"), program("qemu-system-x86_64"), kvm()])]
fn a_guest_in_a_cell_is_as_its_link_and_its_settings_say() {
    let guest = image();
    let image_before = fs::metadata(&guest.image).unwrap().modified().unwrap();
    for vmm in VMMS {
        let programs = program(vmm.program(), STAND_IN);
        name_threads(programs.path());
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(&folder.path().join("state")).unwrap();
        let disk = scratch::image(&folder.path().join("disks, all"), 8).unwrap();
        let link = LinkConfig {
            mtu: 9000,
            offloads: false,
            ..LinkConfig::default()
        };
        let config = CellConfig {
            link,
            ..with_scratch("vmm", disk)
        };
        let cell = Cell::create(config, &mut journal).unwrap();
        let plan = settings(vmm, programs.path());
        vmm.check(&plan).unwrap();
        let seat = cell.target().unwrap();
        let mut vm = vmm.boot(&seat, &guest, &plan).unwrap();
        let facts = &vm.about().environment;
        eprintln!(
            "{}: booted in {} s",
            vmm.program(),
            facts["vm.boot_seconds"]
        );
        assert!(facts["vmm.version"].starts_with(['F', 'c']), "{facts:?}");

        let subject = vm.about().subject.clone();
        let process = subject.vmm.unwrap();
        let names = ["fc_vcpu 0\n", "fc_vcpu 1\n", "vcpu0\n", "vcpu1\n"];
        assert_eq!(subject.vcpu_threads.len(), 2);
        for thread in &subject.vcpu_threads {
            let task = format!("/proc/{process}/task/{thread}");
            let comm = fs::read_to_string(format!("{task}/comm")).unwrap();
            assert!(names.contains(&comm.as_str()), "{comm}");
            let status = fs::read_to_string(format!("{task}/status")).unwrap();
            assert!(status.contains("Cpus_allowed_list:\t0\n"), "{status}");
        }

        // The agent's line carries every byte, although the kernel shares it.
        let mut output = |words: &[&str]| {
            let ended = vm.run(&line(words), LIMIT).unwrap();
            let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
            assert_eq!(ended.code, 0, "{words:?}: {errors}");
            ended.stdout
        };
        let release = String::from_utf8(output(&["uname", "-r"])).unwrap();
        let kernel = format!("/boot/vmlinuz-{}", release.trim_end());
        let expected = fs::read(&guest.kernel).unwrap();
        assert!(output(&["head", "-c", "200000", &kernel]) == expected[..200_000]);
        assert_eq!(output(&["nproc"]), b"2\n");
        output(&["sh", "-c", "echo mine >/etc/hostname"]);

        let features = String::from_utf8(output(&["ethtool", "-k", "eth0"])).unwrap();
        let tap = seat
            .command(Space::Switch, &line(&["ethtool", "-k", "tap0"]))
            .output()
            .unwrap();
        let tap = String::from_utf8(tap.stdout).unwrap();
        for features in [features, tap] {
            assert!(
                features.contains("tcp-segmentation-offload: off"),
                "{features}"
            );
        }
        assert_eq!(output(&["cat", "/sys/class/net/eth0/mtu"]), b"9000\n");
        let data = "/scratch/".to_owned() + scratch::DATA_FILE;
        assert_eq!(output(&["stat", "-c", "%s", &data]), b"8388608\n");
        assert_eq!(output(&["head", "-c", "4096", "/dev/vdb"]).len(), 4096);

        vm.start(&line(&["iperf3", "--server"])).unwrap();
        let listens = "until ss -ltn | grep -q :5201; do sleep 0.1; done";
        vm.run(&line(&["sh", "-c", listens]), LIMIT).unwrap();
        let before = vm.inner_counters().unwrap();
        let address = vm.about().address.to_string();
        let sent = line(&["iperf3", "--client", &address, "--bytes", "8M"]);
        assert_eq!(seat.client().start(&sent).unwrap().wait().unwrap().code, 0);
        let after = vm.inner_counters().unwrap();
        // The data that the client still held after its last write is not sent.
        let received = after["net.bytes"] - before["net.bytes"];
        assert!(received > 1e6, "{received}");

        vm.stop().unwrap();
        assert!(!Path::new(&format!("/proc/{process}")).exists());
        cell.destroy().unwrap();
    }
    let image_after = fs::metadata(&guest.image).unwrap().modified().unwrap();
    assert_eq!(image_after, image_before);
}

/// The error of a guest that does not boot.
fn refused(vmm: Vmm, guest: &GuestFiles, programs: &Path) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(&folder.path().join("state")).unwrap();
    let cell = Cell::create(common::config("vmm-refused"), &mut journal).unwrap();
    let seat = cell.target().unwrap();
    let booted = vmm.boot(&seat, guest, &settings(vmm, programs));
    let error = booted.err().expect("it boots").to_string();
    cell.destroy().unwrap();
    error
}

#[test(needs = [program("qemu-system-x86_64"), kvm()])]
fn a_vmm_that_ends_is_quoted_and_kvm_named() {
    let guest = image();
    for vmm in VMMS {
        let programs = program(vmm.program(), FAILS);
        let error = refused(vmm, &guest, programs.path());
        for part in [
            vmm.program(),
            "exit status: 2",
            "not on this KVM",
            "KVM is ",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}

#[test(needs = [test_all("takes 12 s"), program("qemu-system-x86_64"), kvm()])]
fn a_kernel_that_panics_and_an_init_that_gives_up_are_named_by_their_console() {
    let guest = image();
    let folder = tempfile::tempdir().unwrap();
    let broken = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        path
    };
    let panics = GuestFiles {
        initrd: broken("initrd", b"no archive"),
        ..guest.clone()
    };
    let gives_up = GuestFiles {
        image: broken("image", &[0; 1 << 20]),
        ..guest
    };
    for (vmm, guest, parts) in [
        (
            Vmm::Firecracker,
            panics,
            ["panicked", "Unable to mount root fs"],
        ),
        (Vmm::CloudHypervisor, gives_up, ["init", "cannot mount vda"]),
    ] {
        let programs = program(vmm.program(), STAND_IN);
        name_threads(programs.path());
        let error = refused(vmm, &guest, programs.path());
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
}

#[test]
fn a_setting_beyond_what_the_vmm_has_is_refused_before_anything_starts() {
    let refused = |vmm: Vmm, key: &str, level: Level| {
        let settings = [(key, level)].into_iter().collect();
        match vmm.check(&settings) {
            Err(HostError::Setting(text)) => assert!(text.contains(key), "{text}"),
            other => panic!("{key}: {other:?}"),
        }
    };
    refused(Vmm::Firecracker, "vm.vcpus", Level::Integer(33));
    refused(Vmm::CloudHypervisor, "vm.vcpus", Level::Integer(255));
    refused(Vmm::CloudHypervisor, "vm.memory_mib", Level::Integer(1));
}
