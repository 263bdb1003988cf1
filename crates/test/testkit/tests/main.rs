// SPDX-License-Identifier: Apache-2.0
//! Tests the harness's reports of passed, skipped and failed tests: it runs this program with example tests.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "in a test, a failure is a panic"
)]

#[macro_use]
extern crate vtax_testkit;

use std::process::Command;
use vtax_testkit::{skip, skip_in_part};

/// The example tests; they pass where `VTAX_TESTKIT_EXAMPLES` is not set.
mod examples {
    use super::*;

    fn wanted() -> bool {
        std::env::var_os("VTAX_TESTKIT_EXAMPLES").is_some()
    }

    #[test]
    fn passes() {
        println!("a line of a test that passes");
    }

    #[test]
    fn fails() {
        println!("what was printed before");
        assert!(!wanted(), "it was wanted");
    }

    #[test]
    fn crashes() {
        if wanted() {
            std::process::abort();
        }
    }

    #[test(needs = [program("no-such-program")])]
    fn lacks_a_program() {
        unreachable!();
    }

    #[test(needs = [test_all("takes an hour")])]
    fn is_left_to_test_all() {}

    #[test(needs = [brought_by_test_all("no-such-server")])]
    fn lacks_a_server() {
        unreachable!();
    }

    #[test(needs = [by_name_only()])]
    fn removes_its_program() {
        std::fs::remove_file(std::env::current_exe().unwrap()).unwrap();
        // In a process of its own, as in the harness.
        let child = vtax_testkit::child_of_a_test("examples::passes").status();
        assert!(child.unwrap().success());
    }

    #[test(needs = [by_name_only()])]
    fn is_a_child() {
        print!("of a test");
    }

    #[test]
    fn skips_in_its_course() {
        if wanted() {
            skip!("there is no {}", "tap");
        }
    }

    #[test]
    fn skips_in_part() {
        if wanted() {
            skip_in_part("no IPv6");
        }
    }
}

/// The output of this program for its examples.
fn printed(arguments: &[&str]) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(arguments)
        .env("VTAX_TESTKIT_EXAMPLES", "1")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    // The names are padded to one width.
    let lines = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<_>>().join("\n")
}

fn has(text: &str, line: &str) {
    assert!(
        text.lines().any(|it| it == line),
        "no line `{line}` in:\n{text}"
    );
}

#[test]
fn each_test_is_reported_with_its_outcome_and_reason() {
    let text = printed(&["examples::"]);
    has(&text, "test examples::passes ... ok");
    has(&text, "test examples::fails ... FAILED");
    has(&text, "test examples::crashes ... FAILED");
    has(
        &text,
        "test examples::lacks_a_program ... ignored (needs the program no-such-program)",
    );
    has(
        &text,
        "test examples::is_left_to_test_all ... ignored (takes an hour: make test-all)",
    );
    has(
        &text,
        "test examples::lacks_a_server ... ignored (needs no-such-server: make test-all)",
    );
    has(
        &text,
        "test examples::skips_in_its_course ... ignored (there is no tap)",
    );
    has(
        &text,
        "test examples::skips_in_part ... ignored (in part: no IPv6)",
    );
    assert!(
        text.contains("FAILED. 1 passed; 2 failed; 5 ignored;"),
        "{text}"
    );
}

#[test]
fn only_what_failed_is_shown_with_all_that_it_printed() {
    let text = printed(&["examples::"]);
    has(&text, "what was printed before");
    has(&text, "it was wanted");
    assert!(text.contains("SIGABRT"), "{text}");
    assert!(!text.contains("a line of a test that passes"), "{text}");
    let text = printed(&["examples::passes", "--exact", "--show-output"]);
    has(&text, "a line of a test that passes");
}

#[test]
fn include_ignored_runs_what_is_left_to_test_all_where_nothing_is_missing() {
    for argument in ["--include-ignored", "--ignored"] {
        let text = printed(&["examples::", argument]);
        has(&text, "test examples::is_left_to_test_all ... ok");
        has(
            &text,
            "test examples::lacks_a_server ... ignored (needs no-such-server)",
        );
    }
    assert!(!printed(&["examples::", "--ignored"]).contains("examples::passes"));
}

#[test]
fn tests_are_listed_and_chosen_by_name() {
    has(&printed(&["--list"]), "examples::passes: test");
    let text = printed(&["--exact", "examples::passes", "--test-threads", "1"]);
    assert!(text.contains("1 passed; 0 failed; 0 ignored"), "{text}");
}

#[test]
fn a_test_may_run_another_as_a_child_and_nobody_else_sees_that_one() {
    let output = vtax_testkit::child_of_a_test("examples::is_a_child").output();
    assert_eq!(output.unwrap().stdout, b"of a test");
    assert!(!printed(&["--list"]).contains("is_a_child"));
}

#[test]
fn tests_go_on_where_their_program_is_built_anew_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    let mut program = Command::new(&copy);
    program.args(["examples::removes_its_program", "--exact"]);
    let output = program.env("VTAX_TESTKIT_EXAMPLES", "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("1 passed"), "{text}");
}

fn main() {
    vtax_testkit::main();
}
