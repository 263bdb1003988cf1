// SPDX-License-Identifier: Apache-2.0
//! Plans with guests of Firecracker and Cloud Hypervisor, where a stand-in for the VMM lets QEMU boot these: whole runs
//! with `kill -9` in between.

use crate::support::work::{Work, kill_after};
use crate::support::{HostState, can_run_trials, finish};
use std::fs;
use std::path::Path;
use std::time::Duration;
use vtax_testkit::stand_in::{STAND_IN, name_threads, program};

fn plan(firecracker: &Path, cloud_hypervisor: &Path) -> String {
    format!(
        r#"
name = "vmm"
repetitions = 1
idle = "0s"
warmup = "100ms"
duration = "1s"
sample_hz = 10
[settings]
observe.charge = "counted"

# Trials beside other work are suspect, and this test counts them.
[again]
share = 0

[[platform]]
kind = "firecracker"
vm.binary = "{}/firecracker"
vm.vcpus = 2
vm.memory_mib = 256
vm.pin = "0"
[[platform]]
kind = "cloud-hypervisor"
vm.binary = "{}/cloud-hypervisor"
[[workload]]
kind = "idle"
[[workload]]
kind = "iperf3-receive"
rate_mbit = 10
[[workload]]
kind = "disk-read"
"#,
        firecracker.display(),
        cloud_hypervisor.display()
    )
}

#[test(needs = [can_run_trials(), kvm(), test_all("a minute: guests of two VMMs, emulated")])]
fn a_plan_is_run_killed_and_finished_and_leaves_nothing() {
    let programs = ["firecracker", "cloud-hypervisor"].map(|name| program(name, STAND_IN));
    for folder in &programs {
        name_threads(folder.path());
    }
    let work = Work::alone(&plan(programs[0].path(), programs[1].path()));
    let mut check = work.vtax();
    finish(check.args(["plan", "check"]).arg(work.plan()), true);
    finish(work.vtax().args(["image", "build"]), true);
    let before = HostState::read();

    // During the creation of a cell, the boot of a guest, and a measurement.
    for delay_ms in [700, 3000, 9000] {
        kill_after(Duration::from_millis(delay_ms), &mut work.run());
    }
    work.finish();

    let info = work.record("run.json");
    for (number, entry) in info["schedule"].as_array().unwrap().iter().enumerate() {
        let treatment = &info["treatments"][entry["treatment"].as_u64().unwrap() as usize];
        let trial = work.record(&format!("trials/{number:04}/trial.json"));
        let metric = |name: &str| trial["metrics"][name]["value"].as_f64();
        let workload = treatment["workload"].as_str().unwrap();
        let label = &treatment["label"];
        assert!(metric("cpu.stage.vcpu") > Some(0.0), "{label}: {trial:#}");
        assert!(metric("cpu.stage.emulator").is_some(), "{label}");
        let line = trial["environment"]["vm.command_line"].as_str().unwrap();
        assert!(
            line.contains(treatment["platform"].as_str().unwrap()),
            "{line}"
        );
        let measured = match workload {
            "iperf3-receive" => metric("throughput"),
            "disk-read" => metric("cpu.per_work"),
            _ => metric("cpu.cores"),
        };
        assert!(measured > Some(0.0), "{label}: {trial:#}");
    }
    let journal = fs::read(work.at("state/journal.jsonl")).unwrap();
    assert!(journal.is_empty(), "{}", String::from_utf8_lossy(&journal));
    before.assert_nothing_new("after the run");
}
