// SPDX-License-Identifier: Apache-2.0
//! Trials whose command leaves processes running, or leaves its control groups: costs that nobody counts.

use crate::support::can_run_trials;
use crate::support::work::Work;
use std::fs;
use vtax_results::Trial;

/// Runs a shell script once on each platform.
fn trials(script: &str, platforms: &[&str]) -> Vec<Trial> {
    let platforms = platforms
        .iter()
        .map(|kind| format!("[[platform]]\nkind = \"{kind}\"\n"));
    let plan = format!(
        "name = \"left\"\nrepetitions = 1\nmeters = [\"none\"]\n[again]\nshare = 0\n{}\
         [[workload]]\nkind = \"command\"\nload = \"sh ./script\"\nfiles = [\"script\"]\n",
        platforms.collect::<String>()
    );
    let work = Work::alone(&plan);
    fs::write(work.at("script"), script).unwrap();
    // A run without a trial that counts ends with an error.
    let output = work.run().output().unwrap();
    assert!(work.results().join("run.json").exists(), "{output:?}");
    work.trials()
}

/// Asserts how many reasons to doubt a trial begin like this.
fn doubts(trial: &Trial, begin: &str, count: usize) {
    let found = trial.suspect.iter();
    let found = found.filter(|reason| reason.starts_with(begin));
    let label = &trial.treatment.label;
    assert_eq!(found.count(), count, "{label}: {:?}", trial.suspect);
}

const WORK: &str = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";

#[test(needs = [can_run_trials(), program("qemu-system-x86_64")])]
fn a_command_that_leaves_work_running_makes_its_trial_suspect() {
    let platforms = ["native", "container", "qemu"];
    let left = format!("while :; do {WORK}; done & sleep 0.3");
    for trial in trials(&left, &platforms) {
        doubts(&trial, "the command left `sh` running", 1);
    }
    let waited = format!("({WORK}) & wait");
    for trial in trials(&waited, &platforms) {
        let found = trial.suspect.iter();
        let found = found.filter(|reason| reason.contains("left"));
        assert_eq!(
            found.count(),
            0,
            "{}: {:?}",
            trial.treatment.label,
            trial.suspect
        );
    }
}

#[test(needs = [can_run_trials()])]
fn a_command_that_does_not_wait_for_a_process_that_ends_makes_its_trial_suspect() {
    // The process has no parent in the command, and ends before it, however busy the host is.
    let script = format!(
        "going=$(mktemp); (setsid sh -c '{WORK}; rm '$going &); while [ -e $going ]; do sleep 0.1; done; sleep 0.3"
    );
    for trial in trials(&script, &["native", "container"]) {
        doubts(&trial, "the command did not wait for", 1);
    }
}

/// Root of bare metal can write the control groups of the host, by the root of the cell's first process.
const ESCAPE: &str = r#"
for list in /proc/1/root/sys/fs/cgroup/*/cgroup.procs /proc/1/root/sys/fs/cgroup/cgroup.procs; do
    [ ! -e "$list" ] || echo $$ >"$list"
done
"#;

#[test(needs = [can_run_trials()])]
fn a_command_that_leaves_its_control_groups_makes_its_trial_suspect() {
    let of_groups = |trial: &Trial| {
        let mut found = trial.suspect.iter();
        found.any(|reason| reason.contains("left the target's control groups"))
    };
    // It is found by its CPU time, after its end, and while it still runs.
    for script in [
        format!("{ESCAPE}\n{WORK}"),
        format!("{ESCAPE}\n(while :; do :; done) & sleep 0.1"),
    ] {
        for trial in trials(&script, &["native"]) {
            assert!(of_groups(&trial), "{script}: {:?}", trial.suspect);
        }
    }
}

/// Mounted in the target, the hierarchies begin at the target's own groups.
#[test(needs = [can_run_trials()])]
fn a_mount_of_control_groups_on_bare_metal_shows_no_group_of_the_host() {
    let mount = r#"
mkdir -p /tmp/groups
for kind in cpu,cpuacct cpuacct cpuset; do
    mkdir -p /tmp/groups/$kind
    mount -t cgroup -o $kind none /tmp/groups/$kind 2>/dev/null && echo $$ >/tmp/groups/$kind/cgroup.procs
done
mkdir -p /tmp/groups/unified
mount -t cgroup2 none /tmp/groups/unified && echo $$ >/tmp/groups/unified/cgroup.procs
"#;
    for trial in trials(&format!("{mount}\n{WORK}"), &["native"]) {
        let cost = trial.metrics["cpu.per_work"].quantity.value;
        assert!(
            cost > 0.05,
            "only {cost} s are charged: {:?}",
            trial.suspect
        );
        let found = trial.suspect.iter();
        let found = found.filter(|reason| reason.contains("left"));
        assert_eq!(found.count(), 0, "{:?}", trial.suspect);
    }
}

#[test(needs = [can_run_trials(), brought_by_test_all("runsc")])]
fn the_processes_of_a_sandbox_with_a_kernel_of_its_own_are_not_the_commands() {
    let platform = "container\"\ncontainer.runtime = \"runsc";
    let waited = format!("({WORK}) & wait; head -c 50000000 /dev/zero | sha256sum");
    for trial in trials(&waited, &[platform]) {
        // Other reasons depend on the other load of this host.
        doubts(&trial, "the command", 0);
        let value = |name: &str| trial.metrics[name].quantity.value;
        // On a busy host the sandbox's clock counts waiting as the command's own time, and no start remains.
        assert!(value("launch.cpu") >= 0.0 && value("launch.spread") >= 0.0);
        assert!(value("cpu.per_work") > 0.0);
    }
    let left = format!("while :; do {WORK}; done & sleep 0.3");
    for trial in trials(&left, &[platform]) {
        let found = trial.suspect.iter();
        let mut found = found.filter(|reason| reason.starts_with("the command left `sh` running"));
        assert!(found.next().is_some(), "{:?}", trial.suspect);
    }
}
