// SPDX-License-Identifier: Apache-2.0
//! `kill -9` of the process that owns a cell leaves only control groups, which are in the journal.

use crate::common::{Bench, config, journalled, line};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use vtax_guest::platform::bubblewrap::Bubblewrap;
use vtax_guest::platform::container::Container;
use vtax_guest::platform::native::Native;
use vtax_guest::platform::{GuestFiles, Platform};
use vtax_host::HostError;
use vtax_host::cell::{Cell, CellConfig, SeatConfig, Space, TapOptions, cgroup, process};
use vtax_host::journal::Journal;
use vtax_host::settings::Settings;
use vtax_host::{loop_device, scratch};
use vtax_testkit::skip;

const STATE: &str = "VTAX_TEST_STATE";

/// The process to kill. The tests below run this test alone, in a process of its own.
#[test(needs = [by_name_only()])]
fn hold_cells() {
    let folder = PathBuf::from(std::env::var(STATE).expect("set by the test that runs this one"));
    let mut journal = Journal::open(&folder.join("state")).unwrap();
    let guest = GuestFiles {
        root: folder.join("root, with: odd\\name"),
        image: PathBuf::new(),
        kernel: PathBuf::new(),
        initrd: PathBuf::new(),
        recipe: String::new(),
        directory: None,
        files: None,
    };
    let mut disks = disks(&folder).unwrap().into_iter();
    let here: Vec<&dyn Platform> = [&Native as &dyn Platform, &Container, &Bubblewrap]
        .into_iter()
        .filter(|platform| platform.check(&Settings::default()).is_ok())
        .collect();
    // Each platform alone, then all in one cell.
    let cells = here.iter().map(|platform| vec![*platform]);
    let mut held = Vec::new();
    for platforms in cells.chain([here.clone()]) {
        let seats = platforms.iter().map(|platform| SeatConfig {
            name: platform.kind().to_owned(),
            scratch: disks.next(),
            ..SeatConfig::default()
        });
        let config = CellConfig {
            seats: seats.collect(),
            ..config("victim")
        };
        let cell = Cell::create(config, &mut journal).unwrap();
        let mut guests = Vec::new();
        for (seat, platform) in cell.seats().zip(platforms) {
            let mut target = platform.boot(&seat, &guest, &Settings::default()).unwrap();
            seat.attach_tap(&seat.tap_name(), TapOptions::default())
                .unwrap();
            let stubborn = "trap '' HUP INT TERM; sleep 1000 & sleep 1000";
            target.start(&line(&["sh", "-c", stubborn])).unwrap();
            let sleep = line(&["sleep", "1000"]);
            let client = seat.client().start(&sleep).unwrap();
            let switch = seat.command(Space::Switch, &sleep).spawn().unwrap();
            guests.push((target, client, switch));
        }
        println!("holder {}", cell.holder_pid());
        held.push((cell, guests));
    }
    println!("ready");
    std::thread::sleep(Duration::from_secs(1000));
}

/// A scratch disk for each seat of the victim, created where missing.
fn disks(folder: &Path) -> Result<Vec<PathBuf>, HostError> {
    let first = scratch::image(&folder.join("cache"), 1)?;
    let mut disks = vec![first];
    for number in 1..6 {
        let disk = folder.join(format!("cache/scratch-of-{number}.ext4"));
        if !disk.exists() {
            fs::copy(&disks[0], &disk).map_err(HostError::file("copy to", &disk))?;
        }
        disks.push(disk);
    }
    Ok(disks)
}

fn loop_devices(disks: &[PathBuf]) -> Vec<String> {
    disks
        .iter()
        .flat_map(|disk| loop_device::attached_to(disk))
        .collect()
}

fn processes_in(groups: &[PathBuf]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for group in groups {
        found.extend(
            fs::read_to_string(group.join("cgroup.procs"))
                .unwrap_or_default()
                .lines()
                .map(str::to_owned),
        );
        let below: Vec<PathBuf> = fs::read_dir(group)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.is_dir())
            .collect();
        found.extend(processes_in(&below));
    }
    found
}

/// Inode numbers of the network and PID namespaces of all processes. A process in a cell's mount namespace is also
/// in its PID namespace.
fn namespaces() -> BTreeSet<u64> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let links =
        processes.flat_map(|entry| ["net", "pid"].map(|kind| entry.path().join("ns").join(kind)));
    links
        .filter_map(|link| Some(fs::metadata(link).ok()?.ino()))
        .collect()
}

/// Kills the victim even if an assertion fails.
struct KillOnDrop(Child);

fn victim(folder: &Path) -> KillOnDrop {
    let mut command = vtax_testkit::child_of_a_test("kill::hold_cells");
    let command = command.env(STATE, folder).stdout(Stdio::piped());
    KillOnDrop(command.spawn().unwrap())
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The processes outside of the cells whose command line names a cell.
fn waiters(holders: &[u32]) -> Vec<u32> {
    let names: Vec<String> = holders
        .iter()
        .map(|holder| format!("--target={holder}\0"))
        .collect();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            names
                .iter()
                .any(|name| String::from_utf8_lossy(&line).contains(name))
        })
        .collect()
}

/// Processes that inherited the victim's environment: its holders and the processes that set up cells.
fn heirs(folder: &Path) -> Vec<u32> {
    let mark = format!("{STATE}={}\0", folder.display());
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            String::from_utf8_lossy(&environment).contains(&mark) && process::is_alive(*pid)
        })
        .collect()
}

/// The control groups of a process's cells, in all hierarchies.
fn groups_of(owner: u32) -> Vec<PathBuf> {
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("vtax-") && name.contains(&format!("-{owner}-"))
    };
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        let (ours, others): (Vec<_>, Vec<_>) = entries
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| entry.path())
            .partition(is_ours);
        found.extend(ours);
        folders.extend(others);
    }
    found
}

#[test]
fn kill_9_leaves_only_what_the_journal_removes() {
    let bench = Bench::new();
    let disks = disks(bench.folder.path()).unwrap_or_else(|error| skip!("{error}"));
    // Spread over the time in which the victim starts, and a little beyond.
    for delay_ms in [3, 11, 19, 31, 47, 67, 101, 149, 233, 401, 617] {
        let victim = victim(bench.folder.path());
        std::thread::sleep(Duration::from_millis(delay_ms));
        let owner = victim.0.id();
        drop(victim);
        let deadline = Instant::now() + Duration::from_secs(10);
        let left = || (heirs(bench.folder.path()), loop_devices(&disks));
        while left() != (Vec::new(), Vec::new()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(
            left(),
            (Vec::new(), Vec::new()),
            "after {delay_ms} ms: processes, loop devices"
        );
        let journal = Journal::open(&bench.folder.path().join("state")).unwrap();
        for path in journalled(&journal) {
            vtax_host::cell::remove::remove_stale(&path).unwrap();
        }
        cgroup::sweep_probes();
        assert_eq!(
            groups_of(owner),
            Vec::<PathBuf>::new(),
            "after {delay_ms} ms"
        );
    }
}

#[test]
fn kill_9_leaves_nothing_but_journalled_control_groups() {
    let bench = Bench::new();
    let disks = disks(bench.folder.path()).unwrap_or_else(|error| skip!("{error}"));
    let mut victim = victim(bench.folder.path());
    let mut holders = Vec::new();
    for printed in BufReader::new(victim.0.stdout.take().unwrap()).lines() {
        let printed = printed.unwrap();
        if let Some(holder) = printed.split("holder ").nth(1) {
            holders.push(holder.parse::<u32>().unwrap());
        }
        if printed.ends_with("ready") {
            break;
        }
    }
    assert!(!holders.is_empty(), "the victim made no cell");
    let journal = Journal::open(&bench.folder.path().join("state")).unwrap();
    let groups = journalled(&journal);
    let spaces: Vec<PathBuf> = holders
        .iter()
        .flat_map(|holder| fs::read_dir(format!("/proc/{holder}/root/run/netns")).unwrap())
        .map(|space| space.unwrap().path())
        .collect();
    // A client's and a guest's namespace for each seat; one cell has a seat for each of the others.
    let seats = spaces.len() / 2;
    assert_eq!(seats, 2 * (holders.len() - 1));
    // The victim's commands start asynchronously.
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut inside = processes_in(&groups);
    while inside.len() < 4 * seats && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
        inside = processes_in(&groups);
    }
    assert!(inside.len() >= 4 * seats, "{inside:?}");
    // The files stay open, so that no other namespace of this machine gets the same number.
    let opened: Vec<fs::File> = holders
        .iter()
        .flat_map(|holder| ["net", "pid"].map(|kind| format!("/proc/{holder}/ns/{kind}").into()))
        .chain(spaces)
        .map(|space: PathBuf| fs::File::open(space).unwrap())
        .collect();
    let of_cells: BTreeSet<u64> = opened
        .iter()
        .map(|space| space.metadata().unwrap().ino())
        .collect();
    assert_eq!(of_cells.len(), 2 * holders.len() + 2 * seats);
    assert_eq!(loop_devices(&disks).len(), seats);

    victim.0.kill().unwrap();
    victim.0.wait().unwrap();

    let deadline = Instant::now() + Duration::from_secs(10);
    let left = loop {
        let mut processes: Vec<u32> = inside
            .iter()
            .filter_map(|pid| pid.parse().ok())
            .filter(|pid| process::is_alive(*pid))
            .collect();
        processes.extend(waiters(&holders));
        let namespaces: Vec<u64> = namespaces().intersection(&of_cells).copied().collect();
        let devices = loop_devices(&disks);
        if processes.is_empty() && namespaces.is_empty() && devices.is_empty() {
            break None;
        }
        if Instant::now() > deadline {
            break Some((processes, namespaces, devices));
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(left, None, "left: processes, namespaces, loop devices");
    let links = fs::read_to_string("/proc/net/dev").unwrap();
    let ports: Vec<String> = holders
        .iter()
        .map(|holder| format!("vtax{holder}:"))
        .collect();
    assert!(!ports.iter().any(|port| links.contains(port)), "{links}");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(
        !mounts.contains(&bench.folder.path().display().to_string()),
        "{mounts}"
    );

    assert!(
        groups.iter().all(|path| path.exists()),
        "only the journal knows of the control groups now"
    );
    for path in &groups {
        vtax_host::cell::remove::remove_stale(path).unwrap();
        assert!(!path.exists());
    }
}
