// SPDX-License-Identifier: Apache-2.0
//! An existing target on another machine, reached by ssh.

use super::machines::{FOUND, Machines, finished, sh, shown};
use crate::support::work::{start, wait_for, wait_in};
use crate::support::{can_run_trials, in_order};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use vtax_results::TrialOutcome;

#[test(needs = [can_run_trials(), brought_by_test_all("sshd")])]
fn a_machine_that_one_can_log_into_is_measured_and_left_as_it_was() {
    let machines = Machines::start(FOUND);
    let there = || {
        let pid = Machines::inside(&machines.other);
        sh(&format!(
            "nsenter --target={pid} --mount --pid --net sh -ec 'ls -a /var/tmp; ls -d /tmp/vtax-http 2>/dev/null || true; ss -Hlnt'"
        ))
    };
    let (before, mounted) = (there(), machines.mounts_there());
    machines.run_whole();
    // Processes and files of a session there are removed shortly after it.
    let deadline = Instant::now() + Duration::from_secs(15);
    while there() != before && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(there(), before);
    machines.assert_nothing_is_mounted_beyond(&mounted);
    let trials = machines.work.trials();
    assert_eq!(trials.len(), 4);
    for trial in trials {
        assert_eq!(trial.outcome, TrialOutcome::Complete, "{trial:?}");
        assert!(trial.work.as_ref().unwrap().amount > 0.0);
        let fact = |name: &str| trial.environment[name].clone();
        assert_eq!(fact("ssh.address"), "10.93.0.2");
        assert!(
            fact("host.guest").starts_with("none:"),
            "{:?}",
            trial.environment
        );
        assert!(!fact("guest.kernel").is_empty());
        assert!(trial.metrics.contains_key("guest.cpu.cores"));
        // The target is not a guest of this host: measurements of this host say nothing about its costs.
        for metric in ["cpu.cores", "cpu.per_work", "energy.total", "power.mean"] {
            assert!(!trial.metrics.contains_key(metric), "{metric}");
        }
    }
}

#[test(needs = [can_run_trials(), brought_by_test_all("sshd")])]
fn a_target_that_goes_costs_one_trial_and_comes_again() {
    let plan = FOUND.replace("repetitions = 2", "repetitions = 20");
    let machines = Machines::start(&plan);
    let found = machines.found();
    let mut run = start(&mut machines.run());
    let count = || finished(&machines.results()).len();
    wait_in(&mut run, 120, || count() >= 2);
    // The target is killed in the middle of a trial, with its servers.
    let actor = machines
        .processes()
        .into_iter()
        .find(|(_, line)| line.starts_with("unshare"));
    let (victim, _) = actor.expect("the actor's namespaces");
    let whole = finished(&machines.results());
    kill_process(Pid::from_raw(victim).unwrap(), Signal::KILL).unwrap();
    wait_in(&mut run, 120, || count() >= whole.len() + 2);
    kill_process(Pid::from_child(&run), Signal::TERM).unwrap();
    run.wait().unwrap();
    machines.assert_as_found(&found, "a target that went");
    let kept = finished(&machines.results());
    assert!(
        whole
            .iter()
            .all(|(name, record)| kept.get(name) == Some(record))
    );
}

#[test(needs = [can_run_trials(), brought_by_test_all("sshd")])]
fn a_target_that_restarts_makes_its_trial_invalid_and_the_run_goes_on_when_it_is_back() {
    let plan = FOUND.replace("repetitions = 2", "repetitions = 40");
    let mut machines = Machines::start(&plan);
    let events = machines.work.at("events");
    let mut run = machines
        .run()
        .arg("--json")
        .stdout(fs::File::create(&events).unwrap())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The second trial is measured.
    let is_measured = |text: String| text.matches(r#""phase":"measure"#).count() == 2;
    wait_in(&mut run, 180, || {
        fs::read_to_string(&events).is_ok_and(is_measured)
    });
    machines.restart_other(Duration::from_secs(3));
    let before = finished(&machines.results()).len();
    wait_in(&mut run, 180, || {
        finished(&machines.results()).len() >= before + 2
    });
    kill_process(Pid::from_child(&run), Signal::TERM).unwrap();
    run.wait().unwrap();
    let records = fs::read_dir(machines.results().join("trials"))
        .unwrap()
        .flatten();
    let records =
        records.filter_map(|entry| fs::read_to_string(entry.path().join("trial.json")).ok());
    let invalid = records.filter(|record| record.contains("root@10.93.0.2 has restarted"));
    assert_eq!(invalid.count(), 1);
}

#[test(needs = [can_run_trials(), brought_by_test_all("sshd")])]
fn a_dry_run_looks_at_the_target_and_neither_side_changes() {
    let machines = Machines::start(FOUND);
    let there = || {
        let pid = Machines::inside(&machines.other);
        sh(&format!(
            "nsenter --target={pid} --mount --pid --net sh -ec '
                 find /var/tmp /run /root/.ssh /var/log/lastlog /var/log/wtmp -printf \"%p %s %T@ %C@\n\" 2>/dev/null || true
                 ss -Hlnt'"
        ))
    };
    let dry = |plan: &str| {
        fs::write(machines.work.plan(), plan).unwrap();
        machines.run().arg("--dry-run").output().unwrap()
    };
    let (found, before, mounted) = (machines.found(), there(), machines.mounts_there());
    let output = dry(FOUND);
    let printed = shown(&output);
    assert_eq!(output.status.code(), Some(0), "{printed}");
    for part in [
        "found: can run; nothing was changed",
        "The guest root@10.93.0.2 (ssh), by one login",
        "has           apache2 /",
        "1. take the lock",
        "4. run 4 trials",
        "copy vtax",
        "http-rate",
        "after          0 s  0000  block 1",
    ] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    machines.assert_as_found(&found, "after a dry run");
    assert_eq!(there(), before);
    machines.assert_nothing_is_mounted_beyond(&mounted);
    assert!(!machines.results().exists());
    // Status 5: a guest that cannot be logged into, one without root, and a workload that it cannot have.
    for (from, to, part) in [
        ("root@10.93.0.2", "root@10.93.0.77", "is not to be reached"),
        (
            "root@10.93.0.2",
            "loader@10.93.0.2",
            "root on loader@10.93.0.2",
        ),
        ("http-rate\"\nrate = 200", "sysbench-oltp\"", "scratch disk"),
    ] {
        let output = dry(&FOUND.replace(from, to));
        let printed = shown(&output);
        assert_eq!(output.status.code(), Some(5), "{printed}");
        assert!(
            printed.contains("cannot run") && printed.contains(part),
            "{part}: {printed}"
        );
    }
    machines.assert_as_found(&found, "after refused dry runs");
    assert_eq!(there(), before);
}

#[test(needs = [can_run_trials(), brought_by_test_all("sshd")])]
fn a_new_plan_for_a_target_has_its_facts_and_can_run_as_it_is() {
    let machines = Machines::start(FOUND);
    let (found, file) = (machines.found(), machines.work.at("new.toml"));
    let new = || {
        let mut command = machines.vtax();
        command.args(["plan", "new", "--for", "ssh:root@10.93.0.2", "-o"]);
        command.arg(&file).output().unwrap()
    };
    let output = new();
    assert_eq!(output.status.code(), Some(0), "{}", shown(&output));
    let text = fs::read_to_string(&file).unwrap();
    let processors = sh("nproc");
    for part in [
        "ssh.to = \"root@10.93.0.2\"",
        "address: 10.93.0.2",
        "What a run does to the guest: 10 trials",
        "How to undo it",
        &format!("processors: {} (", processors.trim()),
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(
        new().status.code(),
        Some(1),
        "a file that exists is not replaced"
    );
    fs::copy(&file, machines.work.plan()).unwrap();
    let output = machines.run().arg("--dry-run").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", shown(&output));
    machines.assert_as_found(&found, "after a new plan");
}

#[test(needs = [can_run_trials(), brought_by_test_all("sshd")])]
fn what_is_wrong_with_a_target_is_reported_before_anything_starts() {
    let machines = Machines::start(FOUND);
    let refused = |plan: String, parts: &[&str]| machines.assert_refused(&plan, parts);
    let to = |line: &str| FOUND.replace("ssh.to = \"root@10.93.0.2\"", line);
    refused(to(""), &["ssh.to", "names no machine"]);
    refused(to("ssh.to = \"-oProxyCommand=x\""), &["names no machine"]);
    refused(
        to("ssh.to = \"root@10.93.0.77\""),
        &["10.93.0.77", "is not to be reached"],
    );
    refused(
        to("ssh.to = \"nobody@10.93.0.2\""),
        &["Permission denied", "ssh-copy-id"],
    );
    refused(
        to("ssh.to = \"loader@10.93.0.2\""),
        &["root on loader@10.93.0.2", "ssh.sudo"],
    );
    refused(
        to("ssh.to = \"root@10.93.0.2\"\nssh.guest = \"no-such-guest\""),
        &["a guest of this host called `no-such-guest`", "vtax top"],
    );
    refused(
        format!("{FOUND}[settings]\nlink.delay_us = 100\n"),
        &["link.delay_us", "leave them out"],
    );
    refused(
        FOUND.replace("http-rate\"\nrate = 200", "sysbench-oltp\""),
        &["scratch disk"],
    );
    // The machine has another key than at the last login.
    let path = machines.work.path();
    let bin = path.join("bin/ssh");
    let strict = fs::read_to_string(&bin).unwrap();
    let known = path.join("known");
    fs::write(
        &known,
        format!(
            "10.93.0.2 {}",
            fs::read_to_string(path.join("user.pub")).unwrap()
        ),
    )
    .unwrap();
    let strict = strict.replace(
        "UserKnownHostsFile=/dev/null",
        &format!("UserKnownHostsFile={}", known.display()),
    );
    fs::write(
        &bin,
        strict.replace("StrictHostKeyChecking=no", "StrictHostKeyChecking=yes"),
    )
    .unwrap();
    refused(
        FOUND.to_owned(),
        &["10.93.0.2 has changed", "another machine"],
    );
}

#[test(needs = [can_run_trials(), brought_by_test_all("sshd")])]
fn a_server_that_the_target_has_already_is_neither_loaded_nor_stopped() {
    let machines = Machines::start(FOUND);
    let pid = Machines::inside(&machines.other);
    let server =
        "import http.server as h; h.test(h.BaseHTTPRequestHandler, port=80, bind=\"10.93.0.2\")";
    let network = format!("--net=/proc/{pid}/ns/net");
    let line = [network.as_str(), "python3", "-c", server];
    let mut own = start(Command::new("nsenter").args(line));
    let sockets = || sh(&format!("nsenter {network} ss -Hlnt"));
    wait_for(30, sockets, || sockets().contains(":80 ").then_some(()));
    let output = machines.run().output().unwrap();
    let is_alive = own.try_wait().unwrap().is_none();
    own.kill().unwrap();
    own.wait().unwrap();
    assert!(is_alive && !in_order(output.status));
    assert!(
        shown(&output).contains("has a server already"),
        "{}",
        shown(&output)
    );
}
