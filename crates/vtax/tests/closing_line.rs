// SPDX-License-Identifier: Apache-2.0
//! The closing lines of `make test`, which counts no skipped or omitted test as passed, and of `make demo`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The output of cargo for three tests that passed, one of which skipped a part.
const LOG: &str = "     Running unittests src/lib.rs (target/debug/deps/a-0123)

running 3 tests
test one ... ok
test two ... ok
test inner::three ... ok

successes:

---- one stdout ----
it says that nothing is SKIPPED

---- inner::three stdout ----
SKIPPED: the program x is missing
SKIPPED: and y


successes:
    inner::three
    one
    two

test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
";

/// Runs the script with a cargo that prints `log` twice, for two programs with tests of the same names.
fn run(demand: Option<&str>) -> (Output, String) {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let other = LOG.replace("src/lib.rs", "src/main.rs");
    fs::write(&log, format!("{LOG}{other}")).unwrap();
    let cargo = directory.path().join("cargo");
    fs::write(&cargo, format!("#!/bin/sh\ncat '{}'\n", log.display())).unwrap();
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).unwrap();
    let mut script = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/test"));
    script.env("CARGO", &cargo).env_remove("VTAX_TESTS");
    if let Some(demand) = demand {
        script.env("VTAX_TESTS", demand);
    }
    let output = script.output().unwrap();
    let printed = String::from_utf8(output.stdout.clone()).unwrap();
    (output, printed)
}

#[test]
fn a_test_that_was_skipped_is_counted_as_skipped_with_its_reason() {
    let (output, printed) = run(None);
    assert!(output.status.success(), "{printed}");
    assert_eq!(
        printed.lines().last(),
        Some("4 passed, 0 failed, 2 skipped"),
        "{printed}"
    );
    let line = "  SKIPPED inner::three: the program x is missing";
    assert_eq!(printed.lines().filter(|found| *found == line).count(), 2);
}

/// A program in a directory whose script is this line of shell.
fn program(directory: &Path, line: &str) -> PathBuf {
    let path = directory.join("program");
    fs::write(&path, format!("#!/bin/sh\n{line}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Runs the script with a cargo whose script is this line of shell.
fn with_cargo(line: &str) -> (Output, String) {
    with_arguments(&[], line)
}

fn with_arguments(arguments: &[&str], line: &str) -> (Output, String) {
    let directory = tempfile::tempdir().unwrap();
    let cargo = program(directory.path(), line);
    let mut script = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/test"));
    script.env("CARGO", &cargo).env_remove("VTAX_TESTS");
    script.args(arguments);
    let output = script.output().unwrap();
    let printed = String::from_utf8(output.stdout.clone()).unwrap();
    (output, printed)
}

#[test]
fn what_fails_is_named_and_fails_the_whole_without_a_second_try() {
    let (output, printed) = with_cargo(
        "echo x >>$0.runs; test $(wc -l <$0.runs) = 1 || exit 0
         printf 'test one ... FAILED\\n\\ntest result: FAILED. 1 passed; 1 failed; 0 ignored\\n'
         printf 'error: test failed, to rerun pass `-p a --lib`\\nerror: 1 target failed:\\n'; exit 101",
    );
    assert_eq!(output.status.code(), Some(101), "{printed}");
    let closing: Vec<&str> = printed.lines().rev().take(2).collect();
    let counts = "1 passed, 1 failed, 0 skipped";
    assert_eq!(closing, [counts, "  FAILED: one"], "{printed}");
}

#[test]
fn what_a_test_leaves_running_holds_nothing_up() {
    let start = std::time::Instant::now();
    let (output, printed) =
        with_cargo("printf 'test result: ok. 1 passed; 0 failed; 0 ignored\\n'; sleep 60 &");
    assert!(output.status.success(), "{printed}");
    assert_eq!(
        printed.lines().last(),
        Some("1 passed, 0 failed, 0 skipped"),
        "{printed}"
    );
    assert!(start.elapsed().as_secs() < 30, "{printed}");
}

#[test]
fn what_is_ignored_is_skipped_with_its_reason_or_left_to_test_all_and_not_counted() {
    let (output, printed) = with_cargo(
        "printf '     Running tests/main.rs (target/debug/deps/integration-0f1e)\\n'
         printf 'test places::one   ... ignored (needs sshd: make test-all)\\ntest qemu::two ... ignored (needs /dev/kvm: no such file (2))\\n'
         printf 'test result: ok. 0 passed; 0 failed; 2 ignored; 0 measured\\n'
         printf '     Running unittests src/lib.rs (target/debug/deps/vtax_a-12ab)\\ntest a ... ignored, needs clang: make test-all\\n'
         printf 'test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured\\n'",
    );
    assert!(output.status.success(), "{printed}");
    let closing: Vec<&str> = printed.lines().rev().take(3).collect();
    let skipped = "  SKIPPED qemu::two: needs /dev/kvm: no such file (2)";
    let left = "  2 left to `make test-all`";
    assert_eq!(
        closing,
        ["3 passed, 0 failed, 1 skipped", left, skipped],
        "{printed}"
    );
}

#[test]
fn every_test_is_run_only_where_all_are_asked_for() {
    let asked = |arguments: &[&str]| {
        let line = "echo \"NOTE: $*\"; echo 'test result: ok. 1 passed; 0 failed; 0 ignored'";
        let (_, printed) = with_arguments(arguments, line);
        printed.contains("--include-ignored")
    };
    assert_eq!((asked(&[]), asked(&["all"])), (false, true));
    let (output, printed) = with_arguments(&["most"], "true");
    assert_eq!(output.status.code(), Some(2), "{printed}");
}

#[test(needs = [root()])]
fn a_demo_on_a_busy_host_says_so_in_one_line_and_ends_with_3() {
    let demo = |line: &str| {
        let directory = tempfile::tempdir().unwrap();
        let vtax = program(directory.path(), line);
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/demo");
        let output = Command::new(script).arg(vtax).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), printed)
    };
    let busy = "the host was busy: no trial counts; run it again on a quiet machine\n";
    assert_eq!(demo("exit 3"), (Some(3), busy.to_owned()));
    assert_eq!(demo("exit 1"), (Some(1), String::new()));
    assert_eq!(demo("exit 0"), (Some(0), String::new()));
}

#[test]
fn where_none_may_be_skipped_one_is_a_failure() {
    let (output, printed) = run(Some("all"));
    assert_eq!(output.status.code(), Some(1), "{printed}");
    let (output, _) = run(Some("most"));
    assert_eq!(output.status.code(), Some(2));
}
