//! The closing lines of `make test`, where nothing that was skipped or left out is counted as passed, and of `make demo`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What cargo prints of three tests that passed, one of them without having done all.
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
    let said = String::from_utf8(output.stdout.clone()).unwrap();
    (output, said)
}

#[test]
fn a_test_that_was_skipped_is_counted_as_skipped_with_its_reason() {
    let (output, said) = run(None);
    assert!(output.status.success(), "{said}");
    assert_eq!(
        said.lines().last(),
        Some("4 passed, 0 failed, 2 skipped"),
        "{said}"
    );
    let line = "  SKIPPED inner::three: the program x is missing";
    assert_eq!(said.lines().filter(|found| *found == line).count(), 2);
}

/// A program in a directory that is this line of shell.
fn program(directory: &Path, line: &str) -> PathBuf {
    let path = directory.join("program");
    fs::write(&path, format!("#!/bin/sh\n{line}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Runs the script with a cargo that is this line of shell.
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
    let said = String::from_utf8(output.stdout.clone()).unwrap();
    (output, said)
}

/// What cargo prints of a program whose test fails; `$again` is what it prints when asked for that one alone.
fn flaky(again: &str) -> (Output, String) {
    let failed = "test one ... FAILED\n\ntest result: FAILED. 1 passed; 1 failed; 0 ignored\n";
    with_cargo(
        &format!(
            "case \"$*\" in\n*'-p a --lib'*--exact*one) {again} ;;\n*) printf '{failed}error: test failed, to rerun pass `-p a --lib`\nerror: 1 target failed:\n'; exit 101 ;;\nesac"
        )
        .replace("\n\ntest result", "\\n\\ntest result"),
    )
}

#[test]
fn what_passes_alone_is_named_and_what_fails_again_is_a_failure() {
    let (output, said) = flaky("exit 0");
    assert!(output.status.success(), "{said}");
    let closing = "2 passed, 0 failed, 0 skipped (1 passed at the second try)";
    assert_eq!(said.lines().last(), Some(closing), "{said}");
    assert!(said.contains("FAILED at first: one"), "{said}");
    let (output, said) = flaky("exit 101");
    assert!(!output.status.success(), "{said}");
    assert_eq!(
        said.lines().last(),
        Some("1 passed, 1 failed, 0 skipped"),
        "{said}"
    );
}

#[test]
fn what_a_test_leaves_running_holds_nothing_up() {
    let start = std::time::Instant::now();
    let (output, said) =
        with_cargo("printf 'test result: ok. 1 passed; 0 failed; 0 ignored\\n'; sleep 60 &");
    assert!(output.status.success(), "{said}");
    assert_eq!(
        said.lines().last(),
        Some("1 passed, 0 failed, 0 skipped"),
        "{said}"
    );
    assert!(start.elapsed().as_secs() < 30, "{said}");
}

#[test]
fn a_test_that_needs_more_is_left_out_named_by_its_program_and_not_counted() {
    let (output, said) = with_cargo(
        "printf '     Running tests/places.rs (target/debug/deps/places-0f1e)\\ntest result: ok. 0 passed; 0 failed; 10 ignored; 0 measured\\n'
         printf '     Running unittests src/lib.rs (target/debug/deps/vtax_a-12ab)\\ntest result: ok. 3 passed; 0 failed; 1 ignored; 0 measured\\n'
         printf '   Doc-tests vtax_a\\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured\\n'",
    );
    assert!(output.status.success(), "{said}");
    let closing: Vec<&str> = said.lines().rev().take(2).collect();
    let left = "  11 left to `make test-all`: places 10, vtax_a 1";
    assert_eq!(closing, ["4 passed, 0 failed, 0 skipped", left], "{said}");
}

#[test]
fn every_test_is_run_only_where_all_are_asked_for() {
    let asked = |arguments: &[&str]| {
        let line = "echo \"NOTE: $*\"; echo 'test result: ok. 1 passed; 0 failed; 0 ignored'";
        let (_, said) = with_arguments(arguments, line);
        said.contains("--include-ignored")
    };
    assert_eq!((asked(&[]), asked(&["all"])), (false, true));
    let (output, said) = with_arguments(&["most"], "true");
    assert_eq!(output.status.code(), Some(2), "{said}");
}

#[test]
fn a_demo_on_a_busy_host_says_so_in_one_line_and_ends_with_3() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: the demo needs root");
        return;
    }
    let demo = |line: &str| {
        let directory = tempfile::tempdir().unwrap();
        let vtax = program(directory.path(), line);
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/demo");
        let output = Command::new(script).arg(vtax).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    let busy = "the host was busy: no trial counts; run it again on a quiet machine\n";
    assert_eq!(demo("exit 3"), (Some(3), busy.to_owned()));
    assert_eq!(demo("exit 1"), (Some(1), String::new()));
    assert_eq!(demo("exit 0"), (Some(0), String::new()));
}

#[test]
fn where_none_may_be_skipped_one_is_a_failure() {
    let (output, said) = run(Some("all"));
    assert_eq!(output.status.code(), Some(1), "{said}");
    let (output, _) = run(Some("most"));
    assert_eq!(output.status.code(), Some(2));
}
