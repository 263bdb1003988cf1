// SPDX-License-Identifier: Apache-2.0
//! Commands that are measured without a plan file.

use crate::support::work::{executable, run_in_order, text, trials as trials_of};
use crate::support::{can_run_trials, finish, the_host, vtax};
use std::fs;
use std::path::{Path, PathBuf};
use vtax_results::Trial;

/// Runs a command line after `vtax run`.
fn trials(arguments: &[&str]) -> Vec<Trial> {
    let work = tempfile::tempdir().unwrap();
    let _host = the_host();
    let results = work.path().join("results");
    let mut command = vtax(&work.path().join("state"));
    command.args(["run", "--results"]).arg(&results);
    run_in_order(command.args(arguments));
    trials_of(&results)
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

/// Runs `vtax run` and returns its exit status and standard error.
fn refused(arguments: &[&str], folder: &Path) -> (Option<i32>, String) {
    let mut command = vtax(&folder.join("state"));
    let output = command
        .arg("run")
        .args(arguments)
        .current_dir(folder)
        .output();
    let output = output.unwrap();
    let text = text(&output.stderr);
    (output.status.code(), text)
}

#[test]
fn a_wrong_command_line_ends_with_2_and_is_quoted_as_it_was_typed() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("slow.py"),
        "#!/usr/bin/python3\nprint(1)\n",
    )
    .unwrap();
    let platform = ["--platform", "native,container"];
    let cases: &[(&[&str], &str)] = &[
        (
            &["--load", "true", "--", "./a"],
            "a service goes into --serve './a'",
        ),
        (&[], "no command is given"),
        (&["--load", "wrk http://{targt}/"], "did you mean {target}?"),
        (&["--load", "wrk http://{target}/"], "there is no service"),
        (
            &["--serve", "a", "--ready", "8080", "--load", "b"],
            "--ready \"8080\"",
        ),
        (
            &["--serve", "a", "--ready", "tcp:99999", "--load", "b"],
            "--ready \"tcp:99999\"",
        ),
        (&["--work", "no group", "request", "--", "true"], "--work "),
        (&["--work", "1", "two words", "--", "true"], "is not a unit"),
        (&["--metric", "p99", "ms", "--", "true"], "--metric p99"),
    ];
    for (arguments, told) in cases {
        let (status, text) = refused(&[&platform, *arguments].concat(), folder.path());
        assert_eq!(status, Some(2), "{arguments:?}: {text}");
        assert!(text.contains(told), "{arguments:?}: {text}");
        assert!(!text.contains("command line:"), "{arguments:?}: {text}");
    }
    for (arguments, told) in [
        (
            ["--platform", "native,qmu", "--", "true"],
            "did you mean `qemu`?",
        ),
        (["--platform", "native,native", "--", "true"], "--platform"),
        (
            ["--image", "docker:nginx", "--load", "true"],
            "docker save -o nginx.tar nginx",
        ),
        (
            ["--image", "nginx.tar", "--load", "true"],
            "write oci:nginx.tar",
        ),
    ] {
        let (status, text) = refused(&arguments, folder.path());
        assert_eq!(status, Some(2), "{arguments:?}: {text}");
        assert!(text.contains(told), "{arguments:?}: {text}");
    }
    let (_, text) = refused(&["slow.py"], folder.path());
    assert!(
        text.contains("is a program, no plan") && text.contains("-- ./slow.py"),
        "{text}"
    );
}

#[test(needs = [can_run_trials()])]
fn a_dry_run_finds_what_a_run_finds() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("app"), "#!/bin/sh\n").unwrap();
    let _host = the_host();
    // The image of guests is built once, by the first run.
    finish(
        vtax(&folder.path().join("state")).args(["image", "build"]),
        true,
    );
    let platform = ["--platform", "native", "--dry-run"];
    for (arguments, told) in [
        (&["--", "no-such-program"][..], "no-such-program"),
        (&["--", "./not-here"][..], "./not-here"),
        (
            &[
                "--serve",
                "./not-here",
                "--ready",
                "tcp:80",
                "--load",
                "true",
            ][..],
            "./not-here",
        ),
    ] {
        let (status, text) = refused(&[&platform, arguments].concat(), folder.path());
        assert_eq!(status, Some(5), "{arguments:?}: {text}");
        let with = [&platform[..2], arguments].concat();
        let (status, text) = refused(&with, folder.path());
        assert_eq!(status, Some(5), "{arguments:?}: {text}");
        assert!(
            text.contains(told) && text.contains("--packages"),
            "{arguments:?}: {text}"
        );
    }
    for arguments in [
        &["--", "./app"][..],
        &["--", "sha256sum", "/etc/passwd"][..],
    ] {
        let (status, text) = refused(&[&platform, arguments].concat(), folder.path());
        assert_eq!(status, Some(0), "{arguments:?}: {text}");
    }
}

/// A load generator of a name that is known, which runs for a second.
fn generator(folder: &Path) -> PathBuf {
    let script = "#!/bin/sh\nsleep 1\necho '  1234 requests in 1.00s, 1MB read'\n";
    executable(&folder.join("wrk"), script)
}

#[test(needs = [can_run_trials()])]
fn the_work_of_a_known_generator_and_of_an_expression_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let program = generator(folder.path());
    let files = [
        "--platform",
        "native",
        "--runs",
        "1",
        "--files",
        program.to_str().unwrap(),
    ];
    let metrics = [
        "--work",
        "in ([0-9.]+)s",
        "second",
        "--metric",
        "asked=([0-9]+) requests",
        "request",
    ];
    let known = [&files[..], &["--", "./wrk"]].concat();
    let given = [&files[..], &metrics, &["--name", "mine", "--", "./wrk"]].concat();
    for (line, unit, amount) in [(known, "request", 1234.0), (given, "second", 1.0)] {
        for trial in trials(&line) {
            let work = trial.work.as_ref().unwrap();
            assert_eq!(
                (work.unit.to_string().as_str(), work.amount),
                (unit, amount)
            );
            if unit == "second" {
                assert_eq!(trial.metrics["own.asked"].quantity.value, 1234.0);
                assert_eq!(trial.treatment.workload, "mine");
            }
        }
    }
}

#[test(needs = [can_run_trials()])]
fn nothing_is_claimed_about_the_cost_of_a_run_of_a_fixed_time() {
    let work = tempfile::tempdir().unwrap();
    let _host = the_host();
    let results = work.path().join("results");
    let run = |more: &[&str], name: &str| {
        let mut command = vtax(&work.path().join("state"));
        command.args([
            "run",
            "--platform",
            "native,container",
            "--runs",
            "4",
            "--results",
        ]);
        let output = command.arg(results.join(name)).args(more).output().unwrap();
        text(&output.stdout)
    };
    let load = "timeout 1 sh -c 'while :; do :; done'; true";
    // On a busy host a run may outlast its time by more than a clock explains.
    let is_told = |text: &String| text.contains("nothing is claimed, since each run took the same");
    let mut texts = ["b", "c", "d", "e"].into_iter().map(|name| {
        let text = run(&["--", "sh", "-c", load], name);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    });
    let told = texts
        .find(is_told)
        .expect("no run of four supports no claim");
    assert!(told.contains("Each run of sh took"), "{told}");
    let known = run(&["--work", "1", "run", "--", "sh", "-c", load], "f");
    assert!(!known.contains("work is not known"), "{known}");
}

#[test(needs = [can_run_trials()])]
fn versions_of_other_names_are_compared_and_nothing_in_common_is_an_error() {
    let work = tempfile::tempdir().unwrap();
    let _host = the_host();
    let state = work.path().join("state");
    for (name, platform) in [("one", "native"), ("two", "native"), ("other", "container")] {
        let mut command = vtax(&state);
        command.args([
            "run",
            "--platform",
            platform,
            "--runs",
            "4",
            "--name",
            name,
            "--results",
        ]);
        let line = ["--", "sha256sum", "/etc/passwd"];
        finish(command.arg(work.path().join(name)).args(line), true);
    }
    let compare = |new: &str, more: &[&str]| {
        let mut command = vtax(&state);
        command
            .current_dir(work.path())
            .args(["compare", "one", new])
            .args(more);
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.code(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    };
    let gate = ["--of", "cost", "--fail-on", "cpu.per_work > +900%"];
    let (status, text) = compare("two", &gate);
    assert!(
        text.contains("native · two: ") && status != Some(2),
        "{text}"
    );
    for more in [&[][..], &gate] {
        let (status, text) = compare("other", more);
        assert_eq!(status, Some(2), "{text}");
        let text = text.replace("\n", " ");
        let told = "share no treatment: A has native · one, B has container · other";
        assert!(text.contains(told), "{text}");
    }
    let (status, text) = compare("two", &["--of", "tax"]);
    assert_eq!(status, Some(2), "{text}");
    assert!(text.contains("--of cost"), "{text}");
}
