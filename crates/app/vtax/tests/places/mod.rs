// SPDX-License-Identifier: Apache-2.0
//! The target's client on another machine.

mod machines;
mod pooled;
mod targets;

use crate::support::work::{kill, kill_after, start, wait_for, wait_in};
use crate::support::{can_run_trials, finish};
use machines::{AHEAD, Machines, finished, sh};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;
use vtax_core::owner::Owner;
use vtax_results::{ResultsDir, Role, TrialOutcome};

const PLAN: &str = r#"
name = "places"
repetitions = 1
idle = "0s"
warmup = "300ms"
duration = "1s"
sample_hz = 10
again = { share = 0 }
[places]
client = "ssh:root@10.93.0.2"
bridge = "lan"
target = "10.93.0.10/24"
[[platform]]
kind = "native"
[[platform]]
kind = "container"
[[workload]]
kind = "http-rate"
rate = 200
[[workload]]
kind = "iperf3-receive"
rate_mbit = 50
"#;

#[test(needs = [can_run_trials(), brought_by_test_all("sshd")])]
fn http_and_iperf3_are_driven_from_another_machine_and_its_samples_are_on_our_clock() {
    let machines = Machines::start(PLAN);
    machines.run_whole();

    let results = ResultsDir::open(&machines.results()).unwrap();
    let trials = machines.work.trials();
    assert_eq!(trials.len(), 4, "2 platforms x 2 workloads");
    for trial in trials {
        assert_eq!(trial.outcome, TrialOutcome::Complete);
        let label = &trial.treatment.label;
        let client = trial
            .actors
            .iter()
            .find(|actor| actor.role == Role::Client)
            .unwrap();
        assert_eq!(
            (client.name.as_str(), client.place.as_str()),
            ("client", "ssh:root@10.93.0.2")
        );
        let fact = |name: &str| {
            client
                .environment
                .get(name)
                .unwrap_or_else(|| panic!("{name}: {client:?}"))
        };
        assert!(!fact("kernel").is_empty());
        for when in ["before", "after"] {
            let ahead: f64 = fact(&format!("clock.{when}.ahead_ns")).parse().unwrap();
            let bound: f64 = fact(&format!("clock.{when}.bound_ns")).parse().unwrap();
            let truth = if machines.has_clock { AHEAD * 1e9 } else { 0.0 };
            assert!((ahead - truth).abs() <= bound, "{label}: {ahead} ± {bound}");
        }
        assert!(
            !trial
                .suspect
                .iter()
                .any(|reason| reason.contains("the other host's clock")),
            "{:?}",
            trial.suspect
        );

        let mut seen: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        let mut used: Vec<f64> = Vec::new();
        let samples = results.samples(trial.index).unwrap();
        for samples in samples.load(|_, _| true).unwrap() {
            let span = seen
                .entry(samples.series.owner.to_string())
                .or_insert((u64::MAX, 0));
            for (at, _) in &samples.points {
                *span = (span.0.min(at.0), span.1.max(at.0));
            }
            if samples.series.owner == Owner::Client && samples.series.metric == "cpu.total_ns" {
                used.extend(samples.points.iter().map(|(_, value)| *value));
            }
        }
        let (begin, end) = seen["host"];
        for owner in ["client", "client.host"] {
            let (first, last) = seen[owner];
            let slack = 2_000_000_000;
            assert!(
                first + slack >= begin && last <= end + slack,
                "{label}: {owner} {seen:?}"
            );
            // Ten samples a second: the samples cover the window, except for two at either end.
            let two = 200_000_000;
            assert!(
                first <= trial.window.0.0 + two && last + two >= trial.window.1.0,
                "{label}: {owner}"
            );
        }
        assert!(
            used.last() > used.first(),
            "{label}: the load cost the client nothing: {used:?}"
        );
        let work = trial.work.as_ref().unwrap().amount;
        assert!(work > 0.0, "{label}");
    }
}

#[test(needs = [can_run_trials(), brought_by_test_all("sshd")])]
fn either_side_killed_at_any_time_costs_one_trial_and_leaves_nothing() {
    let plan = PLAN.replace("repetitions = 1", "repetitions = 30");
    let machines = Machines::start(&plan);
    // A change that no process owns is undone at the next start.
    let restore = || finish(machines.work.vtax().arg("restore"), true);
    // A probe may be left by a killed run of another test.
    restore();
    let found = machines.found();
    let mut seen = BTreeMap::new();
    let mut check = |when: &str| {
        machines.assert_as_found(&found, when);
        let now = finished(&machines.results());
        for (name, record) in &seen {
            assert_eq!(
                now.get(name),
                Some(record),
                "{when}: trial {name} was lost or run again"
            );
        }
        seen = now;
    };
    // Fixed times of kills, spread over the start of the actor, boot, load and teardown.
    let delays = [100, 400, 700, 1000, 1300, 1700, 2200, 2900, 3700, 4600_u64];
    // One trial is finished first, and must be kept.
    let mut run = start(&mut machines.run());
    wait_in(&mut run, 120, || !finished(&machines.results()).is_empty());
    kill(&mut run);
    restore();
    check("vtax killed after a trial");
    for delay in delays {
        // nsenter has executed vtax in its place.
        kill_after(Duration::from_millis(delay), &mut machines.run());
        restore();
        check(&format!("vtax killed after {delay} ms"));
    }
    for (number, delay) in (0..).zip(delays) {
        let mut run = start(&mut machines.run());
        wait_in(&mut run, 60, || machines.actor().is_some());
        let actor = machines.actor().unwrap();
        std::thread::sleep(Duration::from_millis(delay / 2));
        // In turn the actor itself, and the ssh that leads to it.
        let victim = match number % 2 {
            0 => actor,
            _ => ssh_of(run.id()),
        };
        kill_process(Pid::from_raw(victim).unwrap(), Signal::KILL).unwrap();
        // The run continues with another actor.
        let why = || "no other actor was started".to_owned();
        wait_for(60, why, || {
            let is_another = machines.actor().is_some_and(|another| another != actor);
            (is_another || run.try_wait().unwrap().is_some()).then_some(())
        });
        let pid = Pid::from_child(&run);
        kill_process(pid, Signal::TERM).unwrap_or_default();
        run.wait().unwrap();
        check(&format!("the client killed {} ms after it came", delay / 2));
    }
    let failed = fs::read_dir(machines.results().join("trials"))
        .unwrap()
        .flatten();
    let reported =
        failed.filter_map(|entry| fs::read_to_string(entry.path().join("trial.json")).ok());
    assert!(
        reported
            .into_iter()
            .any(|record| record.contains("is not to be reached")),
        "no failed trial says that the client's host was lost"
    );
}

/// The ssh through which a vtax reaches its actor.
fn ssh_of(vtax: u32) -> i32 {
    let children = sh(&format!("cat /proc/{vtax}/task/*/children"));
    children
        .split_whitespace()
        .find(|pid| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "ssh")
        })
        .expect("an ssh")
        .parse()
        .unwrap()
}

#[test(needs = [can_run_trials(), brought_by_test_all("sshd")])]
fn without_root_there_the_load_runs_all_the_same_and_the_record_says_what_is_missing() {
    let plan = PLAN.replace("root@", "loader@");
    let machines = Machines::start(&plan);
    machines.run_whole();
    for trial in machines.work.trials() {
        let client = trial
            .actors
            .iter()
            .find(|actor| actor.role == Role::Client)
            .unwrap();
        assert_eq!(client.environment["root"], "false");
    }
}

#[test(needs = [can_run_trials(), brought_by_test_all("sshd")])]
fn what_is_wrong_with_the_places_is_reported_before_anything_boots() {
    let machines = Machines::start(PLAN);
    let refused = |plan: String, parts: &[&str]| machines.assert_refused(&plan, parts);
    refused(
        PLAN.replace("root@10.93.0.2", "10.93.0.77"),
        &["10.93.0.77", "is not to be reached"],
    );
    refused(
        PLAN.replace("\"lan\"", "\"wan\""),
        &["the bridge `wan`", "ip -brief link"],
    );
    refused(
        PLAN.replace("bridge = \"lan\"", "device = \"nic\""),
        &["`nic` is a port of `lan`"],
    );
    refused(
        format!("{PLAN}[settings]\nlink.delay_us = 100\n"),
        &["link.delay_us"],
    );
}
