// SPDX-License-Identifier: Apache-2.0
//! `vtax advise` on lines of `vtax top --json`: the table, the JSON and the plan that it writes.

use crate::support::{finish, vtax};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Ten seconds thrice of a guest with 20,000 frames a second and of a container.
pub fn lines() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ledger/record/tests/data/top.jsonl")
}

#[test]
fn knobs_are_advised_with_estimates_and_reasons_and_the_plan_of_the_advised_ones_is_valid() {
    let work = tempfile::tempdir().unwrap();
    let plan = work.path().join("proof.toml");
    let mut command = vtax(work.path());
    command.arg("advise").arg(lines()).arg("-o").arg(&plan);
    let output = finish(&mut command, true);
    let text = String::from_utf8_lossy(&output.stdout);
    let line = |words: &str| {
        let found = text.lines().find(|line| line.contains(words));
        found
            .unwrap_or_else(|| panic!("{words}: {text}"))
            .to_owned()
    };
    assert!(line("vtax-nic, adaptive").starts_with("  + "), "{text}");
    assert!(
        line("vtax-nic, adaptive").contains("estimate: saves"),
        "{text}"
    );
    assert!(
        line("QEMU's timer").contains("vhost moves its frames"),
        "{text}"
    );
    assert!(line("batch (runc)").contains("exits not counted"), "{text}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("vtax run"));
    let mut command = vtax(work.path());
    let output = finish(command.args(["plan", "check", "--json"]).arg(&plan), true);
    let checked: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = checked.to_string();
    assert!(text.contains("adaptive") && text.contains("off"), "{text}");
    assert!(
        !text.contains("tap-timer") && !text.contains("vhost-busyloop"),
        "{text}"
    );
}

#[test]
fn without_an_advised_knob_no_plan_is_written_and_a_guest_that_is_not_there_is_an_error() {
    let work = tempfile::tempdir().unwrap();
    let plan = work.path().join("proof.toml");
    let mut command = vtax(work.path());
    command
        .arg("advise")
        .arg(lines())
        .args(["batch", "--json", "-o"]);
    let output = finish(command.arg(&plan), true);
    assert!(!plan.exists());
    assert!(String::from_utf8_lossy(&output.stderr).contains("no knob is advised"));
    let advice: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(advice.as_array().unwrap().len(), 1);
    assert!(advice[0]["knobs"][0]["saved_processors"].is_null());
    let mut command = vtax(work.path());
    command.arg("advise").arg(lines()).arg("nobody");
    let output = finish(&mut command, false);
    assert!(String::from_utf8_lossy(&output.stderr).contains("has no guest nobody"));
    fs::write(&plan, "text\n").unwrap();
    let output = finish(vtax(work.path()).arg("advise").arg(&plan), false);
    assert!(String::from_utf8_lossy(&output.stderr).contains("line 1"));
}
