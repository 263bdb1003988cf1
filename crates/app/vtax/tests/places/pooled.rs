// SPDX-License-Identifier: Apache-2.0
//! An existing VM and a clone of a template in a pool, reached by the pool's API and ssh.

use super::machines::{FOUND, Machines, sh};
use crate::pool;
use crate::support::work::{kill, start, wait_in};
use crate::support::{can_run_trials, finish};
use std::fs;
use vtax_core::Source;
use vtax_results::TrialOutcome;

/// The other machine as a VM of a pool. The pool is a stand-in with the address of this host.
fn pooled(machines: &Machines, which: &str) -> pool::Pool {
    let network = format!("/proc/{}/ns/net", Machines::inside(&machines.host));
    let namespace = fs::File::open(network).unwrap();
    let pool = pool::Pool::start(machines.work.path(), "10.93.0.1", Some(namespace));
    pool.inside().step = 1;
    pool.inside().tell("10.93.0.2");
    let (head, _) = FOUND.split_once("kind = \"ssh\"").unwrap();
    let plan = format!(
        "{head}{}\n{which}\n[[workload]]\nkind = \"http-rate\"\nrate = 200\n",
        pool.lines()
    );
    let plan = plan
        .replace("duration = \"1s\"", "duration = \"3s\"")
        .replace("repetitions = 2", "repetitions = 1");
    fs::write(machines.work.plan(), plan).unwrap();
    pool
}

/// The permitted calls for a VM that vtax did not create: none of these changes the pool.
const LOOKS: [&str; 12] = [
    "session.login_with_password",
    "session.logout",
    "VM.get_by_name_label",
    "VM.get_by_uuid",
    "VM.get_record",
    "VM.get_resident_on",
    "VM.get_uuid",
    "VM_guest_metrics.get_networks",
    "host.get_all",
    "host.get_record",
    "host.get_servertime",
    "GET /rrd_updates",
];

#[test(needs = [can_run_trials(), brought_by_test_all("sshd")])]
fn a_vm_of_a_pool_is_measured_with_what_its_host_counts_and_never_changed() {
    let machines = Machines::start(FOUND);
    let pool = pooled(&machines, "xenapi.vm = \"web\"");
    let before = pool.objects();
    machines.run_whole();
    assert_eq!(pool.objects(), before);
    for call in &pool.inside().calls {
        assert!(LOOKS.contains(&call.as_str()), "{call}");
    }
    let trials = machines.work.trials();
    assert_eq!(trials.len(), 1);
    let trial = &trials[0];
    assert_eq!(trial.outcome, TrialOutcome::Complete, "{trial:?}");
    let fact = |name: &str| trial.environment[name].as_str();
    assert_eq!((fact("xenapi.vm"), fact("xenapi.member")), ("web", "xcp"));
    assert_eq!(fact("xenapi.version"), "XCP-ng 8.3.0, Xen 4.17.5");
    assert_eq!(fact("host.counted"), "by the pool: averages of 1 s");
    // The VM exchanged 0.3 of the 1.2 MB/s between Domain 0 and all VMs: a quarter of Domain 0's 0.4 processors is its
    // share.
    for (name, expected, source) in [
        ("cpu.stage.vcpu", 0.75, Source::Measured),
        ("cpu.stage.backend", 0.1, Source::Modelled),
        ("cpu.cores", 0.85, Source::Modelled),
        ("cpu.dom0", 0.4, Source::Measured),
        ("cpu.machine", 1.25, Source::Modelled),
        ("net.rx_bytes_per_second", 2e5, Source::Measured),
    ] {
        let metric = &trial.metrics[name];
        // Each of the two readings of the pool's clock may be off by milliseconds on a busy machine, in a window of
        // some seconds.
        let off = (metric.quantity.value / expected - 1.0).abs();
        assert!(off < 0.02, "{name}: {:?}", metric.quantity);
        assert_eq!(metric.source, source, "{name}");
    }
    assert!(trial.metrics.contains_key("guest.cpu.cores"));
    assert!(!trial.metrics.contains_key("power.mean"));
    let leaks = sh(&format!(
        "grep -rl {} {} || true",
        pool::LOGIN.1,
        machines.results().display()
    ));
    assert_eq!(leaks, "", "the password is in a record");
    let is_of_pool = |why: &String| why.contains("clock moved") || why.contains("the VM moved");
    assert!(!trial.suspect.iter().any(is_of_pool), "{:?}", trial.suspect);
    // A window with less than two of the pool's samples gives no processor time, and the log reports it.
    fs::remove_dir_all(machines.results()).unwrap();
    pool.inside().step = 5;
    machines.run_whole();
    let trial = &machines.work.trials()[0];
    assert_eq!(trial.outcome, TrialOutcome::Complete);
    assert!(
        !trial.metrics.contains_key("cpu.cores"),
        "{:?}",
        trial.metrics
    );
    assert!(trial.metrics.contains_key("guest.cpu.cores"));
}

#[test(needs = [can_run_trials(), brought_by_test_all("sshd")])]
fn a_clone_of_a_template_is_measured_and_removed_and_so_it_is_after_a_kill() {
    let machines = Machines::start(FOUND);
    let pool = pooled(&machines, "xenapi.template = \"debian\"");
    let before = pool.objects();
    let found = machines.found();
    machines.run_whole();
    assert_eq!(pool.objects(), before);
    let called = |method: &str| pool.inside().calls.iter().any(|call| call == method);
    assert!(called("VM.clone") && called("VM.start") && called("VM.destroy"));
    let trial = &machines.work.trials()[0];
    assert_eq!(trial.outcome, TrialOutcome::Complete, "{trial:?}");
    assert!(trial.environment["xenapi.vm"].starts_with("vtax-"));
    let vcpu = trial.metrics["cpu.stage.vcpu"].quantity.value;
    assert!((vcpu - 0.2).abs() < 1e-3, "{vcpu}");
    // The run is killed while the VM runs. No kernel here ends the VM; the journal does.
    fs::remove_dir_all(machines.results()).unwrap();
    let mut run = start(&mut machines.run());
    let is_ours = |name: &String| name.starts_with("vtax-");
    wait_in(&mut run, 120, || pool.vms().iter().any(is_ours));
    kill(&mut run);
    assert_ne!(pool.objects(), before);
    finish(machines.vtax().arg("restore"), true);
    assert_eq!(pool.objects(), before);
    machines.assert_as_found(&found, "after a kill");
}
