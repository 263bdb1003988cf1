// SPDX-License-Identifier: Apache-2.0
//! A cell on this host's real kernel: its contents, its isolation and its removal.

use crate::common::{Bench, config, journalled, line};
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;
use vtax_host::HostError;
use vtax_host::cell::cpus::CpuList;
use vtax_host::cell::{
    Cell, CellConfig, ClientProcess, LinkConfig, SeatConfig, Space, TapOptions, process,
    requirements,
};
use vtax_host::command::Finished;
use vtax_host::settings::{Level, Settings};
use vtax_testkit::skip_in_part;

fn run(cell: &Cell, space: Space, words: &[&str]) -> Output {
    let seat = cell.target().unwrap();
    seat.command(space, &line(words)).output().unwrap()
}

fn from_client(cell: &Cell, words: &[&str]) -> Finished {
    start_client(cell, words).wait().unwrap()
}

fn start_client(cell: &Cell, words: &[&str]) -> ClientProcess {
    let client = cell.target().unwrap().client();
    client.start(&line(words)).unwrap()
}

fn text(cell: &Cell, space: Space, words: &[&str]) -> String {
    let output = run(cell, space, words);
    assert!(
        output.status.success(),
        "{words:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_destroyed_cell_leaves_no_control_group_process_or_device() {
    let mut bench = Bench::new();
    let links_before = fs::read_to_string("/proc/net/dev").unwrap().lines().count();
    let cell = bench.cell(config("destroy"));
    let holder = cell.holder_pid();
    let groups = journalled(&bench.journal);
    assert!(!groups.is_empty() && groups.iter().all(|path| path.is_dir()));
    let child = start_client(&cell, &["sleep", "1000"]);
    let sleeper = cell.host_pid(child.id(), Duration::from_secs(5)).unwrap();
    cell.destroy().unwrap();
    child.wait().unwrap();
    for pid in [holder, sleeper] {
        assert!(
            !Path::new(&format!("/proc/{pid}")).exists(),
            "process {pid} is left"
        );
    }
    assert!(groups.iter().all(|path| !path.exists()));
    assert_eq!(
        fs::read_to_string("/proc/net/dev").unwrap().lines().count(),
        links_before
    );
}

#[test]
fn a_dropped_cell_leaves_no_control_group() {
    let mut bench = Bench::new();
    drop(bench.cell(config("drop")));
    assert!(journalled(&bench.journal).iter().all(|path| !path.exists()));
}

#[test]
fn every_control_group_is_in_the_journal_before_the_cell_is_there() {
    let mut bench = Bench::new();
    let cell = bench.cell(config("journal"));
    let journalled = journalled(&bench.journal);
    let seat = cell.target().unwrap();
    let of_client = seat.client().subject().cgroups;
    for folder in seat.cgroups().iter().chain(&of_client) {
        assert!(
            journalled.iter().any(|top| folder.starts_with(top)),
            "{} is not covered",
            folder.display()
        );
    }
    cell.destroy().unwrap();
}

#[test]
fn two_cells_at_once_have_the_same_addresses_and_do_not_meet() {
    let mut bench = Bench::new();
    let (one, two) = (bench.cell(config("twin")), bench.cell(config("twin")));
    one.target().unwrap().attach_veth().unwrap();
    assert!(from_client(&one, &["busybox", "ping", "-c1", "-W2", "10.91.0.2"]).code == 0);
    assert!(from_client(&two, &["busybox", "ping", "-c1", "-W1", "10.91.0.2"]).code != 0);
    one.destroy().unwrap();
    assert_eq!(
        text(&two, Space::Client, &["echo", "still here"]),
        "still here\n"
    );
    two.destroy().unwrap();
}

#[test]
fn client_and_target_reach_each_other_over_both_protocols() {
    let mut bench = Bench::new();
    let cell = bench.cell(config("reach"));
    let seat = cell.target().unwrap();
    assert_eq!(seat.attach_veth().unwrap(), "target0");
    for (space, address) in [
        (Space::Client, "10.91.0.2"),
        (Space::Target, "10.91.0.1"),
        (Space::Client, "fd91::2"),
    ] {
        if address.contains(':') && !Path::new("/proc/net/if_inet6").exists() {
            skip_in_part("this kernel has no IPv6");
            continue;
        }
        let output = run(&cell, space, &["busybox", "ping", "-c1", "-W2", address]);
        assert!(output.status.success(), "{address}: {output:?}");
    }
    let link = text(&cell, Space::Target, &["ip", "link", "show", "eth0"]);
    assert!(link.contains(&seat.mac()), "{link}");
    cell.destroy().unwrap();
}

#[test]
fn a_connection_succeeds_only_where_somebody_listens() {
    let mut bench = Bench::new();
    let cell = bench.cell(config("connect"));
    let seat = cell.target().unwrap();
    seat.attach_veth().unwrap();
    let address = IpAddr::from(seat.address().0);
    let client = seat.client();
    assert!(!client.can_connect(address, 8080).unwrap());
    let mut server = seat
        .command(
            Space::Target,
            &line(&["busybox", "nc", "-ll", "-p", "8080", "-e", "true"]),
        )
        .spawn()
        .unwrap();
    let connected = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        client.can_connect(address, 8080).unwrap()
    });
    assert!(connected);
    cell.destroy().unwrap();
    server.wait().unwrap();
    assert!(
        matches!(
            client.can_connect(address, 8080),
            Err(HostError::File { .. })
        ),
        "the client is gone"
    );
}

#[test]
fn commands_are_in_their_control_group_and_killed_with_their_waiter() {
    let mut bench = Bench::new();
    let cell = bench.cell(config("groups"));
    let child = start_client(&cell, &["sleep", "1000"]);
    let sleeper = cell.host_pid(child.id(), Duration::from_secs(5)).unwrap();
    let seat = cell.target().unwrap();
    for folder in seat.client().subject().cgroups {
        let inside = fs::read_to_string(folder.join("cgroup.procs")).unwrap();
        assert!(
            inside.lines().any(|pid| pid == sleeper.to_string()),
            "{}: {inside}",
            folder.display()
        );
    }
    assert!(seat.cgroups().iter().all(|folder| {
        fs::read_to_string(folder.join("cgroup.procs"))
            .unwrap()
            .is_empty()
    }));
    drop(child);
    let gone = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        !process::is_alive(sleeper)
    });
    assert!(gone, "the command outlives its waiter");
    cell.destroy().unwrap();
}

#[test]
fn exit_codes_and_signals_come_through() {
    use std::os::unix::process::ExitStatusExt;
    let mut bench = Bench::new();
    let cell = bench.cell(config("codes"));
    assert_eq!(
        run(&cell, Space::Switch, &["sh", "-c", "exit 42"])
            .status
            .code(),
        Some(42)
    );
    assert_eq!(
        run(&cell, Space::Switch, &["sh", "-c", "kill -9 $$"])
            .status
            .signal(),
        Some(9)
    );
    assert_eq!(
        run(&cell, Space::Switch, &["no-such-program"])
            .status
            .code(),
        Some(127)
    );
    cell.destroy().unwrap();
}

#[test]
fn orphans_in_the_cell_are_reaped() {
    let mut bench = Bench::new();
    let cell = bench.cell(config("orphans"));
    text(
        &cell,
        Space::Switch,
        &["sh", "-c", "(sleep 0.05 &) ; exit 0"],
    );
    let zombies = || {
        text(
            &cell,
            Space::Switch,
            &[
                "sh",
                "-c",
                "grep -l '^State:.Z' /proc/[0-9]*/status || true",
            ],
        )
    };
    std::thread::sleep(Duration::from_millis(150));
    assert_eq!(zombies(), "");
    cell.destroy().unwrap();
}

#[test]
fn the_cell_has_its_own_run_directory_and_processes() {
    let mut bench = Bench::new();
    let cell = bench.cell(config("own"));
    let marker = cell.target().unwrap().run_dir().join("vtax-test-marker");
    text(
        &cell,
        Space::Switch,
        &["sh", "-c", &format!("echo inside > {}", marker.display())],
    );
    assert!(!marker.exists());
    assert_eq!(
        fs::read_to_string(cell.outside(&marker)).unwrap(),
        "inside\n"
    );
    let processes = text(&cell, Space::Switch, &["sh", "-c", "echo /proc/[0-9]*"]);
    assert!(processes.split_whitespace().count() < 6, "{processes}");
    cell.destroy().unwrap();
}

#[test]
fn threads_inside_are_found_by_their_numbers_there() {
    let mut bench = Bench::new();
    let cell = bench.cell(config("threads"));
    let seat = cell.target().unwrap();
    let mut child = seat
        .command(Space::Switch, &line(&["sleep", "1000"]))
        .spawn()
        .unwrap();
    let outside = cell.host_pid(child.id(), Duration::from_secs(5)).unwrap();
    let threads = process::threads(outside);
    assert_eq!(threads.len(), 1);
    let (inside, host) = threads.first_key_value().unwrap();
    assert_eq!(*host, outside);
    assert!(*inside < outside);
    cell.destroy().unwrap();
    child.wait().unwrap();
}

#[test(needs = [program("ethtool")])]
fn the_link_has_the_mtu_rate_and_offloads_that_were_asked_for() {
    let mut bench = Bench::new();
    let link = LinkConfig {
        mtu: 9000,
        rate_mbit: Some(50.0),
        delay_us: 0,
        offloads: false,
        idle_ports: 2,
        ..LinkConfig::default()
    };
    let cell = bench.cell(CellConfig {
        link,
        ..config("link")
    });
    let seat = cell.target().unwrap();
    seat.attach_veth().unwrap();
    let idle = text(
        &cell,
        Space::Switch,
        &["ip", "-o", "link", "show", "master", "br0"],
    );
    for port in ["idle0", "idle1"] {
        let is_up = |line: &str| line.contains(port) && line.contains("state UP");
        assert!(idle.lines().any(is_up), "{idle}");
    }
    seat.attach_tap(
        "tap0",
        TapOptions {
            multi_queue: true,
            vnet_header: true,
        },
    )
    .unwrap();
    for (space, device) in [
        (Space::Switch, "br0"),
        (Space::Switch, "client0"),
        (Space::Switch, "target0"),
        (Space::Switch, "tap0"),
        (Space::Client, "eth0"),
        (Space::Target, "eth0"),
    ] {
        let shown = text(&cell, space, &["ip", "-d", "link", "show", device]);
        assert!(shown.contains("mtu 9000"), "{shown}");
        if device == "tap0" {
            assert!(
                shown.contains("multi_queue") && shown.contains("vnet_hdr on"),
                "{shown}"
            );
        }
        if device != "br0" {
            let features = text(&cell, space, &["ethtool", "-k", device]);
            for feature in [
                "tx-checksumming: off",
                "tcp-segmentation-offload: off",
                "generic-segmentation-offload: off",
            ] {
                assert!(features.contains(feature), "{device}: {features}");
            }
        }
    }
    for (space, device) in [(Space::Switch, "client0"), (Space::Client, "eth0")] {
        let shaping = text(&cell, space, &["tc", "qdisc", "show", "dev", device]);
        assert!(
            shaping.contains("tbf") && shaping.contains("rate 50Mbit"),
            "{shaping}"
        );
    }
    cell.destroy().unwrap();
}

#[test(needs = [program("ethtool")])]
fn offloads_stay_on_unless_asked_for() {
    let mut bench = Bench::new();
    let cell = bench.cell(config("offloads"));
    let features = text(&cell, Space::Client, &["ethtool", "-k", "eth0"]);
    assert!(
        features.contains("tcp-segmentation-offload: on"),
        "{features}"
    );
    cell.destroy().unwrap();
}

#[test]
fn a_delay_works_or_names_what_the_kernel_lacks() {
    let mut bench = Bench::new();
    let link = LinkConfig {
        delay_us: 20_000,
        ..LinkConfig::default()
    };
    let made = Cell::create(
        CellConfig {
            link: link.clone(),
            ..config("delay")
        },
        &mut bench.journal,
    );
    if requirements::has_netem() {
        let cell = made.unwrap();
        let shaping = text(
            &cell,
            Space::Client,
            &["tc", "qdisc", "show", "dev", "eth0"],
        );
        assert!(shaping.contains("delay 20ms"), "{shaping}");
        cell.destroy().unwrap();
    } else {
        for message in [
            made.unwrap_err().to_string(),
            requirements::check(&link).unwrap_err().to_string(),
        ] {
            assert!(
                message.contains("CONFIG_NET_SCH_NETEM") && message.contains("modprobe sch_netem"),
                "{message}"
            );
        }
        assert!(
            journalled(&bench.journal).iter().all(|path| !path.exists()),
            "a failed cell leaves control groups"
        );
    }
}

#[test]
fn a_tap_with_an_impossible_name_is_refused() {
    let mut bench = Bench::new();
    let cell = bench.cell(config("tap"));
    let seat = cell.target().unwrap();
    for name in ["", "a name", "-x", "sixteen-letters-", "a\nlink del br0"] {
        assert!(
            seat.attach_tap(name, TapOptions::default()).is_err(),
            "{name:?}"
        );
    }
    seat.attach_tap("tap0", TapOptions::default()).unwrap();
    let message = seat
        .attach_tap("tap0", TapOptions::default())
        .unwrap_err()
        .to_string();
    assert!(message.contains("busy"), "{message}");
    cell.destroy().unwrap();
}

#[test(needs = [test_all("takes 4 s")])]
fn a_capped_guest_uses_no_more_and_its_client_as_much_as_it_likes() {
    let mut bench = Bench::new();
    let share = [
        ("target.cpu_cap".to_owned(), Level::Number(0.2)),
        ("target.cpu_weight".to_owned(), Level::Integer(50)),
    ];
    let settings = Settings(share.into());
    let cell = bench.cell(CellConfig {
        seats: vec![SeatConfig::from_settings("target", &settings).unwrap()],
        ..config("cap")
    });
    let held = cell.target().unwrap().group().folders();
    let quota = held.iter().find_map(|folder| {
        let v1 = fs::read_to_string(folder.join("cpu.cfs_quota_us"));
        v1.or_else(|_| fs::read_to_string(folder.join("cpu.max")))
            .ok()
    });
    assert!(quota.unwrap().starts_with("20000"));
    // Two seconds of a loop, as CPU time of the shell and of its children.
    let burn = "timeout 2 sh -c 'while :; do :; done'; times";
    let used = |printed: &[u8]| -> f64 {
        let text = String::from_utf8_lossy(printed).into_owned();
        let times = text.split_whitespace().filter_map(|time| {
            let (minutes, seconds) = time.trim_end_matches('s').split_once('m')?;
            Some(60.0 * minutes.parse::<f64>().ok()? + seconds.parse::<f64>().ok()?)
        });
        times.sum()
    };
    let capped = used(&run(&cell, Space::Switch, &["sh", "-c", burn]).stdout);
    let free = used(&from_client(&cell, &["sh", "-c", burn]).stdout);
    assert!((0.05..0.55).contains(&capped), "0.4 s at most: {capped}");
    assert!(free > 2.0 * capped, "{free} s are not held, {capped} are");
    cell.destroy().unwrap();
}

#[test]
fn a_pinned_target_runs_on_its_processors_alone() {
    let mut bench = Bench::new();
    let cell = bench.cell(CellConfig {
        seats: vec![SeatConfig {
            pin: Some(CpuList::parse("0").unwrap()),
            ..SeatConfig::default()
        }],
        ..config("pin")
    });
    let ask = ["grep", "Cpus_allowed_list", "/proc/self/status"];
    let allowed = |printed: Vec<u8>| {
        String::from_utf8(printed)
            .unwrap()
            .split_whitespace()
            .nth(1)
            .map(str::to_owned)
    };
    assert_eq!(
        allowed(run(&cell, Space::Switch, &ask).stdout).as_deref(),
        Some("0")
    );
    let everyone = fs::read_to_string("/proc/self/status").unwrap();
    let everyone = everyone
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .unwrap()
        .trim()
        .to_owned();
    assert_eq!(allowed(from_client(&cell, &ask).stdout), Some(everyone));
    cell.destroy().unwrap();
}

#[test]
fn a_stale_control_group_is_emptied_and_removed() {
    let mut bench = Bench::new();
    let cell = bench.cell(config("stale"));
    let child = start_client(&cell, &["sleep", "1000"]);
    cell.host_pid(child.id(), Duration::from_secs(5)).unwrap();
    for path in journalled(&bench.journal) {
        vtax_host::cell::remove::remove_stale(&path).unwrap();
        assert!(!path.exists());
        vtax_host::cell::remove::remove_stale(&path).unwrap();
    }
    let ended = child.wait().unwrap();
    assert!(ended.code > 128, "the sleeper was killed: {ended:?}");
    cell.destroy().unwrap();
}

#[test]
fn a_cell_ends_when_its_holder_is_killed() {
    let mut bench = Bench::new();
    let cell = bench.cell(config("holder"));
    let child = start_client(&cell, &["sleep", "1000"]);
    cell.host_pid(child.id(), Duration::from_secs(5)).unwrap();
    let kill = format!("kill -9 {}", cell.holder_pid());
    let killed = Command::new("sh").args(["-c", &kill]).status().unwrap();
    assert!(killed.success());
    assert_ne!(child.wait().unwrap().code, 0);
    cell.destroy().unwrap();
    assert!(journalled(&bench.journal).iter().all(|path| !path.exists()));
}
