// SPDX-License-Identifier: Apache-2.0
//! A real VM in a real cell: tap, bridge, client, scratch disk and cleanup.

use crate::common::{config, image, line, with_scratch};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use vtax_guest::platform::native::Native;
use vtax_guest::platform::qemu::Qemu;
use vtax_guest::platform::{Platform, Target};
use vtax_host::cell::{Cell, CellConfig, LinkConfig, Seat, SeatConfig, Space, Switch};
use vtax_host::journal::Journal;
use vtax_host::scratch;
use vtax_host::settings::{Level, Settings};

const LIMIT: Duration = Duration::from_secs(60);

fn settings(levels: &[(&str, Level)]) -> Settings {
    let mut settings = Settings(
        levels
            .iter()
            .map(|(key, level)| ((*key).into(), level.clone()))
            .collect(),
    );
    settings
        .0
        .insert("vm.accel".into(), Level::Text("tcg".into()));
    settings
}

/// The output of a load generator in the client.
fn from_client(seat: &Seat<'_>, words: &[&str]) -> String {
    let output = seat.client().start(&line(words)).unwrap().wait().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.code == 0,
        "{words:?}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// Checked in the guest, since iperf3 takes a connection attempt for its client and resets the next one.
fn serve_iperf(vm: &mut Box<dyn Target>) {
    vm.start(&line(&["iperf3", "--server"])).unwrap();
    let listens = "until ss -ltn | grep -q :5201; do sleep 0.1; done";
    let listening = vm.run(&line(&["sh", "-c", listens]), LIMIT).unwrap();
    assert_eq!(listening.code, 0);
}

#[test(needs = [test_all("takes 7 s"), program("qemu-system-x86_64")])]
fn a_vm_in_a_cell_is_reached_through_its_tap_and_leaves_nothing() {
    let guest = image();
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(&folder.path().join("state")).unwrap();
    let disk = scratch::image(&folder.path().join("disks, all"), 8).unwrap();
    let cell = Cell::create(
        CellConfig {
            link: LinkConfig {
                mtu: 9000,
                ..LinkConfig::default()
            },
            ..with_scratch("qemu", disk)
        },
        &mut journal,
    )
    .unwrap();
    let plan = settings(&[
        ("nic.queues", Level::Integer(2)),
        ("vm.vcpus", Level::Integer(2)),
        ("vm.iothread", Level::Bool(true)),
        ("vm.pin", Level::Text("0".into())),
    ]);
    Qemu.check(&plan).unwrap();
    let seat = cell.target().unwrap();
    let mut vm = Qemu.boot(&seat, &guest, &plan).unwrap();
    eprintln!("booted in {} s", vm.about().environment["vm.boot_seconds"]);

    // Thread ids are the host's, although QEMU reports those of the cell's PID namespace.
    let subject = vm.about().subject.clone();
    let vmm = subject.vmm.unwrap();
    let status = |thread: u32| fs::read_to_string(format!("/proc/{vmm}/task/{thread}/status"));
    assert!(status(vmm).unwrap().contains("Name:\tqemu-system"));
    for (index, thread) in subject.vcpu_threads.iter().enumerate() {
        let status = status(*thread).unwrap();
        assert!(status.contains(&format!("CPU {index}/TCG")), "{status}");
        assert!(status.contains("Cpus_allowed_list:\t0\n"), "{status}");
        let ids = status
            .lines()
            .find(|line| line.starts_with("NSpid:"))
            .unwrap();
        assert!(ids.split_whitespace().count() >= 3, "{ids}");
    }
    assert!(status(subject.iothreads[0]).unwrap().contains("IO io0"));
    let members = subject
        .cgroups
        .iter()
        .map(|group| fs::read_to_string(group.join("cgroup.procs")).unwrap());
    assert!(
        members
            .into_iter()
            .all(|pids| pids.lines().any(|pid| pid == vmm.to_string()))
    );

    // The scratch disk, raw and as a file system.
    let (device, directory) = vm.about().scratch.clone();
    let data = directory.join(scratch::DATA_FILE);
    let size = vm
        .run(&line(&["stat", "-c", "%s", data.to_str().unwrap()]), LIMIT)
        .unwrap();
    assert_eq!(String::from_utf8(size.stdout).unwrap(), "8388608\n");
    let raw = vm
        .run(
            &line(&["head", "-c", "4096", device.to_str().unwrap()]),
            LIMIT,
        )
        .unwrap();
    assert_eq!(raw.stdout.len(), 4096);

    // The link.
    let mtu = vm
        .run(&line(&["cat", "/sys/class/net/eth0/mtu"]), LIMIT)
        .unwrap();
    assert_eq!(mtu.stdout, b"9000\n");
    serve_iperf(&mut vm);
    let before = vm.inner_counters().unwrap();
    let address = vm.about().address.to_string();
    let report = from_client(
        &seat,
        &["iperf3", "--client", &address, "--time", "1", "--json"],
    );
    let after = vm.inner_counters().unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let received = report["end"]["sum_received"]["bytes"].as_f64().unwrap();
    eprintln!("{:.0} MB received in a second", received / 1e6);
    assert!(received > 1e6, "{received}");
    let input = |counters: &std::collections::BTreeMap<String, f64>| -> f64 {
        counters
            .iter()
            .filter(|(key, _)| key.contains("-input."))
            .map(|(_, count)| count)
            .sum()
    };
    assert!(input(&after) > input(&before) + 10.0);
    let tap = &subject.net_devices[0];
    let devices = fs::read_to_string(format!("/proc/{}/net/dev", tap.namespace_of)).unwrap();
    assert!(devices.contains(&tap.name), "{devices}");

    // The agent still answers after a gigabyte of output.
    let endless = line(&["head", "-c", "1000000000", "/dev/zero"]);
    let cut = vm.run(&endless, LIMIT).unwrap();
    assert_ne!(cut.code, 0, "the guest's memory is full");
    assert!(cut.stdout.len() < 33 << 20, "{}", cut.stdout.len());
    let full = "df --output=pcent / /run | grep -c 100%";
    let full = vm.run(&line(&["sh", "-c", full]), LIMIT).unwrap();
    assert_eq!(
        full.code, 1,
        "neither the disk nor the agent's directory is full"
    );

    let started = Instant::now();
    vm.stop().unwrap();
    eprintln!("stopped in {} ms", started.elapsed().as_millis());
    assert!(!Path::new(&format!("/proc/{vmm}")).exists());
    cell.destroy().unwrap();
}

#[test(needs = [program("qemu-system-x86_64")])]
fn a_vm_behind_qemus_own_network_stack_is_reached_at_the_targets_address() {
    let guest = image();
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(&folder.path().join("state")).unwrap();
    let cell = Cell::create(config("qemu-user"), &mut journal).unwrap();
    let plan = settings(&[("nic.backend", Level::Text("user".into()))]);
    let seat = cell.target().unwrap();
    let mut vm = Qemu.boot(&seat, &guest, &plan).unwrap();
    serve_iperf(&mut vm);
    let address = vm.about().address.to_string();
    from_client(&seat, &["iperf3", "--client", &address, "--bytes", "1M"]);
    let vmm = vm.about().subject.vmm.unwrap();
    // A failed trial does not call stop.
    drop(vm);
    let deadline = Instant::now() + LIMIT;
    while Path::new(&format!("/proc/{vmm}")).exists() {
        assert!(Instant::now() < deadline, "QEMU outlives its target");
        std::thread::sleep(Duration::from_millis(5));
    }
    cell.destroy().unwrap();
}

#[test(needs = [program("qemu-system-x86_64")])]
fn a_link_without_offloads_has_none_in_the_guest() {
    let guest = image();
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(&folder.path().join("state")).unwrap();
    let link = LinkConfig {
        offloads: false,
        ..LinkConfig::default()
    };
    let cell = Cell::create(
        CellConfig {
            link,
            ..config("qemu-plain")
        },
        &mut journal,
    )
    .unwrap();
    let seat = cell.target().unwrap();
    let mut vm = Qemu.boot(&seat, &guest, &settings(&[])).unwrap();
    let features = vm.run(&line(&["ethtool", "-k", "eth0"]), LIMIT).unwrap();
    let features = String::from_utf8(features.stdout).unwrap();
    for feature in ["tx-checksumming: off", "tcp-segmentation-offload: off"] {
        assert!(features.contains(feature), "{features}");
    }
    let tap = seat
        .command(Space::Switch, &line(&["ethtool", "-k", "tap0"]))
        .output()
        .unwrap();
    let tap = String::from_utf8(tap.stdout).unwrap();
    assert!(tap.contains("tcp-segmentation-offload: off"), "{tap}");
    vm.stop().unwrap();
    cell.destroy().unwrap();
}

#[test(needs = [test_all("takes 4 s"), program("qemu-system-x86_64")])]
fn without_a_switch_the_tap_of_a_vm_is_its_clients_device() {
    let guest = image();
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(&folder.path().join("state")).unwrap();
    let link = LinkConfig {
        switch: Switch::None,
        offloads: false,
        ..LinkConfig::default()
    };
    let cell = Cell::create(
        CellConfig {
            link,
            ..config("qemu-bare")
        },
        &mut journal,
    )
    .unwrap();
    let plan = settings(&[("link.switch", Level::Text("none".into()))]);
    Qemu.check(&plan).unwrap();
    let seat = cell.target().unwrap();
    let mut vm = Qemu.boot(&seat, &guest, &plan).unwrap();
    serve_iperf(&mut vm);
    let address = vm.about().address.to_string();
    from_client(&seat, &["iperf3", "--client", &address, "--bytes", "8M"]);
    let tap = from_client(&seat, &["ip", "-o", "address", "show", "tap0"]);
    assert!(tap.contains("10.91.0.1/24"), "{tap}");
    let switch = Space::Switch;
    let left = seat.command(switch, &line(&["ip", "-o", "link"])).output();
    let left = String::from_utf8(left.unwrap().stdout).unwrap();
    assert_eq!(left.lines().count(), 1, "only a loopback: {left}");
    // The tap sends the frames that the guest receives; not all of the 8 MB, since iperf3 ends when it has written
    // everything.
    let device = &vm.about().subject.net_devices[0];
    let seen = fs::read_to_string(format!("/proc/{}/net/dev", device.namespace_of)).unwrap();
    let seen = seen.lines().find(|line| line.contains("tap0:")).unwrap();
    let sent: Vec<&str> = seen.split_whitespace().collect();
    assert!(sent[9].parse::<u64>().unwrap() > 1_000_000, "{seen}");
    vm.stop().unwrap();
    cell.destroy().unwrap();

    let mut user = plan.clone();
    let backend = ("nic.backend".into(), Level::Text("user".into()));
    user.0.extend([backend]);
    for refused in [Qemu.check(&user), Native.check(&plan)] {
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("link.switch"), "{message}");
    }
}

#[test(needs = [test_all("takes 12 s"), program("qemu-system-x86_64")])]
fn vms_and_a_guest_of_the_hosts_kernel_share_a_cell() {
    let guest = image();
    let folder = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(&folder.path().join("state")).unwrap();
    let disk = scratch::image(&folder.path().join("disks"), 8).unwrap();
    let mut config = config("qemu-beside");
    config.seats.extend([
        SeatConfig {
            name: "tap".to_owned(),
            scratch: Some(disk),
            ..SeatConfig::default()
        },
        SeatConfig {
            name: "user".to_owned(),
            ..SeatConfig::default()
        },
    ]);
    let cell = Cell::create(config, &mut journal).unwrap();
    let user = settings(&[("nic.backend", Level::Text("user".into()))]);
    let plans: [(&dyn Platform, Settings); 3] = [
        (&Native, settings(&[])),
        (&Qemu, settings(&[])),
        (&Qemu, user),
    ];
    let mut guests: Vec<Box<dyn Target>> = cell
        .seats()
        .zip(&plans)
        .map(|(seat, (platform, plan))| platform.boot(&seat, &guest, plan).unwrap())
        .collect();

    let subjects: Vec<_> = guests
        .iter()
        .map(|guest| guest.about().subject.clone())
        .collect();
    assert_eq!(subjects[1].net_devices[0].name, "tap1");
    assert_ne!(subjects[1].vmm, subjects[2].vmm);
    for (seat, subject) in cell.seats().zip(&subjects) {
        assert_eq!(subject.owner, seat.owner());
        assert_eq!(subject.cgroups, seat.cgroups());
        if let Some(vmm) = subject.vmm {
            for group in &subject.cgroups {
                let inside = fs::read_to_string(group.join("cgroup.procs")).unwrap();
                assert!(inside.lines().any(|pid| pid == vmm.to_string()), "{inside}");
            }
        }
    }
    let data = guests[1].about().scratch.1.join(scratch::DATA_FILE);
    let size = line(&["stat", "-c", "%s", data.to_str().unwrap()]);
    assert_eq!(guests[1].run(&size, LIMIT).unwrap().stdout, b"8388608\n");
    assert_ne!(guests[2].run(&size, LIMIT).unwrap().code, 0);

    for guest in &mut guests {
        serve_iperf(guest);
    }
    let addresses: Vec<String> = guests
        .iter()
        .map(|guest| guest.about().address.to_string())
        .collect();
    assert_eq!(addresses, ["10.91.0.2", "10.91.0.4", "10.91.0.6"]);
    let send = |address: &str| line(&["iperf3", "--client", address, "--bytes", "64K"]);
    for (from, guest) in guests.iter_mut().enumerate() {
        for (to, address) in addresses.iter().enumerate() {
            let sent = guest.run(&send(address), LIMIT).unwrap();
            let printed = String::from_utf8_lossy(&sent.stderr).into_owned();
            assert_eq!(sent.code, 0, "{from} to {to}: {printed}");
        }
    }

    // Guests stop one by one, and the remaining ones serve their clients.
    let mut left: Vec<_> = cell.seats().zip(guests).collect();
    while !left.is_empty() {
        left.remove(0).1.stop().unwrap();
        for (seat, guest) in &left {
            let address = guest.about().address.to_string();
            from_client(seat, &["iperf3", "--client", &address, "--bytes", "64K"]);
        }
    }
    cell.destroy().unwrap();
}
