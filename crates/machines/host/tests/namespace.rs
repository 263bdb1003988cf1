// SPDX-License-Identifier: Apache-2.0
//! The account of a PID namespace, beside the control group that holds the same processes.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};
use vtax_core::Nanoseconds;
use vtax_core::counter;
use vtax_core::owner::Owner;
use vtax_host::cell::{Cell, CellConfig, Namespace, Waiter};
use vtax_observe::counters::{ControlGroup, PidNamespace};
use vtax_observe::{Instrument, Readings, Snapshot};

/// A loop of about 0.3 s.
const WORK: &str = "work() { i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done; }\n";

/// CPU time: all of it, in user mode, and in the kernel.
const TIMES: [&str; 3] = [counter::CPU_TOTAL, counter::CPU_USER, counter::CPU_SYSTEM];

/// Values of an instrument, whose series are in `readings` since its first reading.
fn values<const N: usize>(
    instrument: &mut dyn Instrument,
    readings: &mut Readings,
    metrics: [&str; N],
) -> [f64; N] {
    instrument.read(Nanoseconds(0), readings).unwrap();
    let snapshot = Snapshot::from_readings(Nanoseconds(0), readings);
    metrics.map(|metric| snapshot.get(&Owner::Target, metric).unwrap().value)
}

/// The CPU time of a script by the account and by the control group, in seconds.
fn both(script: &str) -> [f64; 2] {
    times(script).map(|[total, ..]| total)
}

/// The times of a script by the account and by the control group, in seconds.
fn times(script: &str) -> [[f64; 3]; 2] {
    let cell = Cell::create_unrecorded(CellConfig {
        name: "account".to_owned(),
        ..CellConfig::default()
    })
    .unwrap();
    let namespace = Namespace::start(cell.holder_pid()).unwrap();
    let account = namespace.account();
    let seat = cell.target().unwrap();
    let mut group = ControlGroup::open(&Owner::Target, &seat.cgroups()).unwrap();
    let mut processes = PidNamespace::open(&Owner::Target, account, Path::new("/proc")).unwrap();
    let mut readings = [Readings::default(), Readings::default()];
    let mut totals = || {
        let [of_processes, of_group] = &mut readings;
        [
            values(&mut processes, of_processes, TIMES),
            values(&mut group, of_group, TIMES),
        ]
    };
    let before = totals();
    let line = format!(
        "while [ \"$1\" != -- ]; do echo 0 > \"$1\"; shift; done\nshift\nexec nsenter --target={} --mount --pid -- \"$@\"",
        account.init()
    );
    let child = Command::new("sh")
        .args(["-ec", &line, "sh"])
        .args(seat.group().entrances())
        .args(["--", "sh", "-c", &format!("{WORK}{script}")])
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut waiter = Waiter::of(child, Some(Arc::clone(account)));
    assert!(waiter.wait().unwrap().success());
    let after = totals();
    drop(namespace);
    cell.destroy().unwrap();
    [0, 1].map(|of| [0, 1, 2].map(|at| (after[of][at] - before[of][at]) / 1e9))
}

#[test(needs = [root(), program("nsenter")])]
fn a_second_of_work_is_the_same_in_both_within_one_percent() {
    for (script, what) in [
        ("work; work; work", "one process"),
        ("(work) & (work) & (work) & wait", "children at once"),
        (
            "n=0; while [ $n -lt 400 ]; do n=$((n + 1)); /bin/true; done; work; work",
            "short processes",
        ),
    ] {
        let [account, group] = both(script);
        assert!(group > 0.3, "{what}: {group} s");
        let allowed = (group * 0.01).max(0.005);
        assert!(
            (account - group).abs() <= allowed,
            "{what}: {account} s by the account, {group} s by the control group"
        );
    }
}

/// What is left of orphans is in the two columns of the process that adopted them, which are cut to ticks.
#[test(needs = [root(), program("nsenter")])]
fn orphans_that_live_and_that_ended_are_in_the_account_but_for_two_ticks() {
    let script = "(sh -c \"$0\" & ) ; work; sleep 1";
    let script = script.replace("\"$0\"", &format!("'{WORK}work; sleep 0.1'"));
    let [account, group] = both(&script);
    assert!(group > 0.3, "{group} s");
    let difference = group - account;
    assert!(
        (-0.005..=0.025).contains(&difference),
        "{account} s by the account, {group} s by the control group"
    );
}

#[test(needs = [root(), program("nsenter")])]
fn the_parts_in_user_mode_and_in_the_kernel_are_those_of_the_control_group() {
    let script = "work; work; (dd if=/dev/zero of=/dev/null bs=64k count=200000 2>/dev/null)";
    let [account, group] = times(script);
    assert!(group[1] > 0.2 && group[2] > 0.1, "{group:?}");
    for at in [1, 2] {
        let difference = (account[at] - group[at]).abs();
        let allowed = group[0] * 0.1 + 0.02;
        assert!(difference <= allowed, "{account:?} {group:?}");
    }
    let parts = account[1] + account[2];
    assert!((parts - account[0]).abs() <= 0.025, "{account:?}");
}

#[test(needs = [root(), program("nsenter")])]
fn the_memory_of_the_processes_is_what_they_hold_now() {
    let cell = Cell::create_unrecorded(CellConfig {
        name: "memory".to_owned(),
        ..CellConfig::default()
    })
    .unwrap();
    let namespace = Namespace::start(cell.holder_pid()).unwrap();
    let account = namespace.account();
    let mut processes = PidNamespace::open(&Owner::Target, account, Path::new("/proc")).unwrap();
    let mut readings = Readings::default();
    let mut memory = || values(&mut processes, &mut readings, [counter::MEMORY_RESIDENT])[0];
    let empty = memory();
    assert!(empty < 20e6, "{empty}");
    let script = "x=$(head -c 40000000 /dev/zero | tr '\\0' a); cat; echo ${#x}";
    let mut child = Command::new("nsenter")
        .arg(format!("--target={}", account.init()))
        .args(["--mount", "--pid", "--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while memory() < 40e6 && Instant::now() < deadline {
        sleep(Duration::from_millis(50));
    }
    let held = memory();
    assert!((40e6..400e6).contains(&held), "{held}");
    // Its input ends, and with it the command: the namespace ends once each process has been reaped.
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    drop(namespace);
    cell.destroy().unwrap();
}
