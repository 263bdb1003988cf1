// SPDX-License-Identifier: Apache-2.0
//! Commands that are measured without a plan file.

use crate::support::{can_run_trials, in_order, the_host, vtax};
use std::fs;
use vtax_report::results::{ResultsDir, Trial};

/// Runs a command line after `vtax run`.
fn trials(arguments: &[&str]) -> Vec<Trial> {
    let work = tempfile::tempdir().unwrap();
    let _host = the_host();
    let results = work.path().join("results");
    let output = vtax(&work.path().join("state"))
        .args(["run", "--results"])
        .arg(&results)
        .args(arguments)
        .output()
        .unwrap();
    assert!(in_order(output.status), "{output:?}");
    let results = ResultsDir::open(&results).unwrap();
    results.trials().map(Result::unwrap).collect()
}

#[test(needs = [can_run_trials()])]
fn the_start_of_a_command_is_no_part_of_its_cost() {
    let line = [
        "--platform",
        "native,container",
        "--runs",
        "3",
        "--",
        "sha256sum",
        "/etc/passwd",
    ];
    let trials = trials(&line);
    let value = |trial: &Trial, name: &str| trial.metrics[name].quantity.value;
    let mean = |kind: &str, name: &str| {
        let of: Vec<f64> = (trials
            .iter()
            .filter(|trial| trial.treatment.platform == kind))
        .map(|trial| value(trial, name))
        .collect();
        assert_eq!(of.len(), 3, "{kind}");
        of.iter().sum::<f64>() / 3.0
    };
    // Starting it in a container takes a runtime; the command itself is the same.
    let (native, container) = (
        mean("native", "launch.cpu"),
        mean("container", "launch.cpu"),
    );
    assert!(container > native, "{container} {native}");
    let (native, own) = (
        mean("native", "cpu.per_work"),
        mean("container", "cpu.per_work"),
    );
    assert!(own < container, "{own} {container}");
    assert!((0.33..3.0).contains(&(own / native)), "{own} {native}");
}

#[test(needs = [can_run_trials()])]
fn a_command_may_print_more_than_is_kept_and_read_a_file_as_its_input() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("numbers");
    fs::write(&input, "1\n2\n3\n").unwrap();
    let input = input.to_str().unwrap();
    let script = "cat; yes | head -c 100000000";
    let line = [
        "--platform",
        "native,container",
        "--runs",
        "1",
        "--input",
        input,
    ];
    let line = [&line[..], &["--", "sh", "-c", script]].concat();
    for trial in trials(&line) {
        assert_eq!(
            trial.suspect,
            Vec::<String>::new(),
            "{}",
            trial.treatment.label
        );
        assert!(trial.metrics.contains_key("cpu.per_work"));
    }
}
