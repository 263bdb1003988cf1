// SPDX-License-Identifier: Apache-2.0
//! A cell with Open vSwitch as its switch, where this host's kernel supports it.

use crate::common::{Bench, config, cpu_micros, line, shell};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use vtax_guest::platform::Platform;
use vtax_guest::platform::native::Native;
use vtax_host::cell::{
    Cell, CellConfig, LinkConfig, SeatConfig, Space, Switch, TapOptions, process, requirements,
};
use vtax_host::settings::Settings;
use vtax_testkit::skip;

/// Two seats on Open vSwitch with a slow link; skips the test where Open vSwitch does not run.
fn cell(bench: &mut Bench, name: &str) -> Cell {
    let link = LinkConfig {
        mtu: 9000,
        rate_mbit: Some(50.0),
        idle_ports: 1,
        switch: Switch::OpenVswitch,
        ..LinkConfig::default()
    };
    if let Err(missing) = requirements::check(&link) {
        let printed = missing.to_string();
        let remedies = ["openvswitch-switch", "--place testbed:kvm"];
        assert!(
            remedies.iter().any(|word| printed.contains(word)),
            "{printed}"
        );
        skip!("{printed}");
    }
    let neighbour = SeatConfig {
        name: "neighbour".to_owned(),
        ..SeatConfig::default()
    };
    bench.cell(CellConfig {
        link,
        seats: vec![SeatConfig::default(), neighbour],
        ..config(name)
    })
}

/// The output of a command in the switch's namespace.
fn in_switch(cell: &Cell, words: &[&str]) -> String {
    let seat = cell.target().unwrap();
    let output = seat.command(Space::Switch, &line(words)).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {printed}");
    String::from_utf8(output.stdout).unwrap()
}

/// The processes of the switch, with their names.
fn daemons(cell: &Cell) -> BTreeSet<(String, u32)> {
    let groups: Vec<PathBuf> = cell.switch().unwrap().cgroups;
    let listed = groups
        .iter()
        .map(|group| fs::read_to_string(group.join("cgroup.procs")).unwrap());
    let listed: Vec<String> = listed.collect();
    let pids = listed.iter().flat_map(|text| text.lines());
    pids.map(|pid| pid.parse().unwrap())
        .map(|pid| (process::name(pid), pid))
        .collect()
}

#[test(needs = [brought_by_test_all("ovs-vswitchd")])]
fn guests_reach_each_other_over_open_vswitch_and_its_work_is_counted_apart() {
    let mut bench = Bench::new();
    let cell = cell(&mut bench, "ovs");
    let seats: Vec<_> = cell.seats().collect();
    let boot = |at: usize| {
        let guest = &bench.guest;
        Native
            .boot(&seats[at], guest, &Settings::default())
            .unwrap()
    };
    let (mut target, mut neighbour) = (boot(0), boot(1));
    seats[0].attach_tap("tap0", TapOptions::default()).unwrap();
    neighbour.start(&line(&["nc", "-l", "-p", "7000"])).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while !seats[0]
        .client()
        .can_connect(neighbour.about().address, 7000)
        .unwrap()
    {
        assert!(Instant::now() < deadline, "nobody listens");
        std::thread::sleep(Duration::from_millis(20));
    }
    let other = neighbour.about().address;
    shell(target.as_mut(), &format!("ping -c 3 -s 8000 {other}"));

    let ports = in_switch(&cell, &["ip", "-o", "link", "show", "master", "ovs-system"]);
    for port in ["client0", "client1", "target0", "target1", "tap0", "idle0"] {
        assert!(ports.contains(port), "{port}: {ports}");
    }
    let bridge = in_switch(&cell, &["ip", "-o", "link", "show", "br0"]);
    assert!(bridge.contains("mtu 9000"), "{bridge}");
    assert!(bridge.contains("02:76:74:61:78:00"), "{bridge}");
    // Open vSwitch removes queueing disciplines that are not in its configuration.
    let shaping = in_switch(&cell, &["tc", "qdisc", "show", "dev", "client0"]);
    assert!(shaping.contains("rate 50Mbit"), "{shaping}");
    let paths = in_switch(
        &cell,
        &[
            "ovs-appctl",
            "-t",
            "/run/openvswitch/switch.ctl",
            "dpctl/show",
        ],
    );
    assert!(paths.contains("system@ovs-system"), "{paths}");

    let daemons = daemons(&cell);
    for name in ["ovsdb-server", "ovs-vswitchd"] {
        assert!(
            daemons.iter().any(|(found, _)| found == name),
            "{daemons:?}"
        );
    }
    assert!(cpu_micros(&cell.switch().unwrap()) > 0);
    let holder = fs::read_link(format!("/proc/{}/ns/pid", cell.holder_pid())).unwrap();
    for (name, pid) in &daemons {
        let inside = fs::read_link(format!("/proc/{pid}/ns/pid")).unwrap();
        assert_eq!(inside, holder, "{name} ends with the cell");
    }
    drop((target, neighbour));
    cell.destroy().unwrap();
}

#[test(needs = [brought_by_test_all("ovs-vswitchd")])]
fn open_vswitch_ends_with_its_cell_however_that_ends() {
    let mut bench = Bench::new();
    let hosts_own = || fs::read_dir("/run/openvswitch").map(Iterator::count).ok();
    let before = hosts_own();
    for is_killed in [false, true] {
        let cell = cell(&mut bench, "ovs-end");
        let daemons = daemons(&cell);
        assert!(daemons.len() >= 2, "{daemons:?}");
        if is_killed {
            let holder = i32::try_from(cell.holder_pid()).unwrap();
            let holder = rustix::process::Pid::from_raw(holder).unwrap();
            rustix::process::kill_process(holder, rustix::process::Signal::KILL).unwrap();
            drop(cell);
        } else {
            cell.destroy().unwrap();
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        for (name, pid) in daemons {
            while Path::new(&format!("/proc/{pid}")).exists() {
                assert!(Instant::now() < deadline, "{name} outlives its cell");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        assert_eq!(hosts_own(), before, "the host's own are as they were");
    }
}
