// SPDX-License-Identifier: Apache-2.0
//! `kill -9` of runs at random times: no trial is lost or run twice, and the host is restored.

use crate::support::work::{Work, kill_after, wait_for};
use crate::support::{HostState, can_run_trials, finish, note, record, recorded};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Every platform, and a host setting that must be restored.
const PLAN: &str = r#"
name = "kill"
repetitions = 2
warmup = "100ms"
duration = "300ms"
sample_hz = 10
[settings]
host.thp = "never"

# Trials beside other work are suspect, and these tests count them.
[again]
share = 0

[[platform]]
kind = "native"
[[platform]]
kind = "container"
[[platform]]
kind = "qemu"
[[workload]]
kind = "idle"
[[workload]]
kind = "iperf3-receive"
rate_mbit = 10
"#;

/// The finished trials that count, each with the bytes of its record. Trials that were set aside have a dot in their
/// names, and are left out.
fn finished(results: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(results.join("trials"))
        .into_iter()
        .flatten()
        .flatten();
    entries
        .filter(|entry| !entry.file_name().to_string_lossy().contains('.'))
        .map(|entry| {
            let record =
                fs::read(entry.path().join("trial.json")).expect("a trial in place is whole");
            (entry.file_name().to_string_lossy().into_owned(), record)
        })
        .collect()
}

#[test(needs = [root()])]
fn a_process_and_a_control_group_that_a_run_leaves_are_seen() {
    let before = HostState::read();
    // The parent of the process ends before the process.
    let script = "setsid unshare --net sleep 61.7 > /dev/null 2>&1 & echo $$";
    let left = recorded(Command::new("sh").args(["-c", script]))
        .output()
        .unwrap();
    let left = String::from_utf8(left.stdout).unwrap();
    let own = fs::read_to_string("/proc/self/mounts").unwrap();
    let hierarchy = own.lines().find(|line| line.contains(" cgroup"));
    let hierarchy = hierarchy.unwrap().split(' ').nth(1).unwrap().to_owned();
    let group = format!("{hierarchy}/vtax-trial-{}-0", left.trim());
    fs::create_dir(&group).unwrap();
    let why = || format!("{:?}", before.news());
    let seen = wait_for(10, why, || {
        let seen = before.news();
        let process = seen.iter().find(|one| one.contains("sleep 61.7"))?;
        let pid: i32 = process.split(' ').nth(1).unwrap().parse().unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        Some(seen)
    });
    fs::remove_dir(&group).unwrap();
    assert!(seen.contains(&group), "{seen:?}");
    before.assert_nothing_new("after both have gone");
}

#[test]
fn what_was_there_before_is_not_taken_for_a_runs_though_a_run_gets_the_pid_in_its_name() {
    let pid = rustix::process::getpid();
    let left = format!("/var/tmp/vtax-trial-{}-left", pid.as_raw_nonzero());
    fs::create_dir(&left).unwrap();
    let before = HostState::read();
    note(record(), pid).unwrap();
    let news = before.news();
    fs::remove_dir(&left).unwrap();
    assert_eq!(news, [""; 0]);
}

/// The present value of the setting that the plan changes.
fn huge_pages() -> Option<String> {
    fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()
}

#[test(needs = [test_all("takes 38 s"), can_run_trials()])]
fn killed_twice_a_run_loses_nothing_and_leaves_nothing() {
    killed_a_run_loses_nothing(&[1100, 4100]);
}

#[test(needs = [can_run_trials(), test_all("a minute: ten runs that are killed")])]
fn killed_ten_times_a_run_loses_nothing_and_leaves_nothing() {
    // Fixed times of kills, spread over boot, measurement and teardown of every platform.
    killed_a_run_loses_nothing(&[150, 700, 1100, 1900, 2600, 3300, 4100, 5200, 6400, 7700]);
}

/// Kills a run after each time, in milliseconds, and then finishes it.
fn killed_a_run_loses_nothing(delays_ms: &[u64]) {
    // Runs of other tests change the settings that this one compares.
    let work = Work::alone(PLAN);
    let results = work.results();
    finish(work.vtax().args(["image", "build"]), true);
    let (before, pages) = (HostState::read(), huge_pages());

    let mut seen = BTreeMap::new();
    let kept = |now: &BTreeMap<String, Vec<u8>>, seen: &BTreeMap<String, Vec<u8>>| {
        for (name, record) in seen {
            assert_eq!(
                now.get(name),
                Some(record),
                "trial {name} was lost or run again"
            );
        }
    };
    for &delay_ms in delays_ms {
        kill_after(Duration::from_millis(delay_ms), &mut work.run());
        let now = finished(&results);
        kept(&now, &seen);
        seen = now;
    }

    work.finish();
    let all = finished(&results);
    kept(&all, &seen);
    assert_eq!(all.len(), 12, "3 platforms x 2 workloads x 2 repetitions");
    let journal = fs::read(work.at("state/journal.jsonl")).unwrap();
    assert!(
        journal.is_empty(),
        "the journal still holds {}",
        String::from_utf8_lossy(&journal)
    );
    before.assert_nothing_new("after the runs");
    assert_eq!(huge_pages(), pages, "the host is not as it was found");
}
