//! Plans in an emulated host, as a user runs them: the same numbers twice, and the same as those
//! that are committed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "in a test, a failure is a panic"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use vtax_report::results::ResultsDir;
use vtax_testbed::guard::Counts;
use vtax_units::Source;

fn vtax(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vtax"))
        .args(arguments)
        .output()
        .unwrap()
}

/// A file of the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

fn has_testbed() -> bool {
    let built = vtax(&["testbed", "build", "kvm"]);
    if !built.status.success() {
        let why = String::from_utf8_lossy(&built.stderr).into_owned();
        let last = why.lines().last().unwrap_or_default();
        eprintln!("SKIPPED: no testbed:kvm could be built on this machine: {last}");
    }
    built.status.success()
}

fn run(plan: &Path, into: &Path) -> ResultsDir {
    let output = vtax(&[
        "run",
        plan.to_str().unwrap(),
        "--at",
        "testbed:kvm",
        "--results",
        into.to_str().unwrap(),
    ]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    ResultsDir::open(into).unwrap()
}

#[test]
fn a_run_gives_the_same_numbers_twice_and_the_committed_counts() {
    if !has_testbed() {
        return;
    }
    let plan = repository("plans/guard.toml");
    let work = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| run(&plan, &work.path().join(name)));

    assert_eq!(first.run().place, "testbed:kvm");
    assert_eq!(
        first.plan_text().unwrap(),
        fs::read_to_string(&plan).unwrap()
    );
    let mut compared = 0;
    for index in first.trial_indexes() {
        let (one, other) = (first.trial(index).unwrap(), second.trial(index).unwrap());
        for (name, metric) in &one.metrics {
            assert_eq!(metric.source, Source::Emulated, "{name}");
            let (a, b) = (metric.quantity.value, other.metrics[name].quantity.value);
            assert!(
                (a - b).abs() <= 0.001 * a.abs(),
                "{name} of {}: {a} and {b}",
                one.treatment.label
            );
            compared += 1;
        }
        assert!(one.environment["cost.model"].starts_with("sandy-bridge"));
        if one.treatment.platform == "vm" {
            assert_eq!(one.environment["accel"], "kvm");
            let value = |name: &str| one.metrics[name].quantity.value;
            assert!(value("kvm.exits.per_second") > 100.0);
            assert!(value("cpu.stage.vhost") > 0.0);
        }
    }
    assert!(compared > 30, "only {compared} metrics");

    let committed = Counts::read(&repository("plans/guard.counts.toml")).unwrap();
    let moved: Vec<String> = Counts::of(&first)
        .unwrap()
        .moved(&committed)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert!(
        moved.is_empty(),
        "counts moved too far:\n  {}\nif that is wanted: `vtax testbed guard --accept`, and commit plans/guard.counts.toml",
        moved.join("\n  ")
    );
}

#[test]
fn a_run_that_cannot_start_inside_says_why() {
    if !has_testbed() {
        return;
    }
    let work = tempfile::tempdir().unwrap();
    let plan = work.path().join("plan.toml");
    let text = "name = \"fails\"\nrepetitions = 2\nwarmup = \"100ms\"\nduration = \"200ms\"\n[[platform]]\nkind = \"qemu\"\nvm.binary = \"/no/such/qemu\"\n[[workload]]\nkind = \"idle\"\n";
    fs::write(&plan, text).unwrap();
    let results = work.path().join("results");
    let output = vtax(&[
        "run",
        plan.to_str().unwrap(),
        "--at",
        "testbed:kvm",
        "--results",
        results.to_str().unwrap(),
    ]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains("/no/such/qemu"), "{said}");
}
