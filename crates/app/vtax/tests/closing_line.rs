// SPDX-License-Identifier: Apache-2.0
//! The closing lines of `make test`, which counts no skipped, omitted or unfinished test as passed, and of `make demo`.

use crate::support::work::executable;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Runs `scripts/test` on the tests of a crate of its own: `library` is its only file of code.
fn run(library: &str, arguments: &[&str], environment: &[(&str, &str)]) -> (Output, String) {
    let directory = tempfile::tempdir().unwrap();
    let package =
        "[package]\nname = \"sample\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n";
    let lock = "version = 4\n\n[[package]]\nname = \"sample\"\nversion = \"0.0.0\"\n";
    fs::create_dir(directory.path().join("src")).unwrap();
    fs::write(directory.path().join("Cargo.toml"), package).unwrap();
    fs::write(directory.path().join("Cargo.lock"), lock).unwrap();
    fs::write(directory.path().join("src/lib.rs"), library).unwrap();
    let mut script = Command::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../scripts/test"
    ));
    script.args(arguments).current_dir(&directory);
    for name in ["VTAX_TESTS", "VERBOSE", "RUSTFLAGS"] {
        script.env_remove(name);
    }
    // With one thread the tests run in the order of their names. A test can end its group.
    script.env("TEST_THREADS", "1").process_group(0);
    script.env("CARGO_TARGET_DIR", directory.path().join("target"));
    let output = script.envs(environment.iter().copied()).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, printed)
}

/// The last lines of a text.
fn last(printed: &str, count: usize) -> Vec<&str> {
    let lines: Vec<&str> = printed.lines().collect();
    lines[lines.len().saturating_sub(count)..].to_vec()
}

#[test]
fn a_skipped_test_is_counted_with_its_reason_and_a_process_left_behind_holds_nothing_up() {
    let library = r#"
        #[test] fn passes() { print!("it prints that nothing is SKIPPED") }
        #[test] fn leaves_a_process() { std::process::Command::new("sleep").arg("60").spawn().unwrap(); }
        #[test] fn skips() { println!("SKIPPED: the program x is missing\nSKIPPED: and y") }
        #[test] #[ignore = "needs /dev/kvm: no such file (2)"] fn lacks() {}
        #[test] #[ignore = "takes 6 s: make test-all"] fn long() { println!("long ran") }
    "#;
    let start = Instant::now();
    let (output, printed) = run(library, &[], &[]);
    assert!(start.elapsed() < Duration::from_secs(50), "{printed}");
    assert!(output.status.success(), "{output:?}");
    let lines = [
        "  SKIPPED lacks: needs /dev/kvm: no such file (2)",
        "  SKIPPED skips: the program x is missing",
        "  1 left to `make test-all`",
        "2 passed, 0 failed, 2 skipped",
    ];
    assert_eq!(last(&printed, 4), lines, "{printed}");

    let short = library.replace("sleep", "true");
    let (output, printed) = run(&short, &["all"], &[("VTAX_TESTS", "all"), ("VERBOSE", "1")]);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("long ran"), "{printed}");
    assert_eq!(last(&printed, 1), ["4 passed, 0 failed, 1 skipped"]);
}

#[test]
fn what_fails_is_shown_and_what_ran_before_a_program_was_ended_is_counted() {
    let library = r#"
        #[test] fn a_passes() {}
        #[test] fn b_fails() { panic!("its reason") }
        #[test] fn c_passes() {}
    "#;
    let (output, printed) = run(library, &[], &[]);
    assert_eq!(output.status.code(), Some(101), "{printed}");
    assert!(printed.contains("its reason"), "{printed}");
    let closing = ["  FAILED: b_fails", "2 passed, 1 failed, 0 skipped"];
    assert_eq!(last(&printed, 2), closing, "{printed}");

    // A time limit ends a whole process group.
    let ended = library.replace(
        r#"panic!("its reason")"#,
        r#"drop(std::process::Command::new("sh").args(["-c", "kill -TERM 0"]).status())"#,
    );
    let (output, printed) = run(&ended, &[], &[]);
    assert!(!output.status.success(), "{printed}");
    let closing = last(&printed, 2);
    assert!(closing[0].starts_with("  FAILED: sample-"), "{printed}");
    assert_eq!(closing[1], "1 passed, 1 failed, 0 skipped", "{printed}");
}

#[test]
fn an_unknown_argument_or_demand_is_refused() {
    for (argument, demand) in [("most", ""), ("all", "most")] {
        let (output, printed) = run("", &[argument], &[("VTAX_TESTS", demand)]);
        assert_eq!(output.status.code(), Some(2), "{printed}");
    }
}

#[test(needs = [root()])]
fn a_demo_on_a_busy_host_says_so_in_one_line_and_ends_with_3() {
    let demo = |line: &str| {
        let directory = tempfile::tempdir().unwrap();
        let vtax = directory.path().join("vtax");
        executable(&vtax, &format!("#!/bin/sh\n{line}\n"));
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../scripts/demo");
        let output = Command::new(script).arg(vtax).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), printed)
    };
    let busy = "the host was busy: no trial counts; run it again on a quiet machine\n";
    assert_eq!(demo("exit 3"), (Some(3), busy.to_owned()));
    assert_eq!(demo("exit 1"), (Some(1), String::new()));
    assert_eq!(demo("exit 0"), (Some(0), String::new()));
}
