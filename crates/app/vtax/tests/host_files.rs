// SPDX-License-Identifier: Apache-2.0
//! VMs with the files of this host.

use crate::support::work::{executable, text, trials};
use crate::support::{HostState, can_run_trials, in_order, the_host, vtax};
use std::fs;
use std::os::unix::fs::symlink;

/// The program of the test: a script whose interpreter is found by `env`, with a program that it starts and data behind a
/// link. It prints how many of its conditions hold.
const SCRIPT: &str = r#"#!/usr/bin/env sh
number=0
holds() { "$@" >/dev/null 2>&1 && number=$((number + 1)); }
lacks() { "$@" >/dev/null 2>&1 || number=$((number + 1)); }
holds grep -q 'of this host' data
holds sh -c 'awk "BEGIN { exit 0 }"'
lacks test -s /etc/shadow
lacks grep -q 'of another home' home
lacks sh -c 'ls | grep -q unused'
echo x >written
holds test -s written
echo "$number hold"
"#;

#[test(needs = [test_all("takes 30 s"), can_run_trials(), program("qemu-system-x86_64")])]
fn a_vm_gets_the_files_that_a_command_uses_and_no_secret() {
    let _host = the_host();
    let before = HostState::read();
    let [folder, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let at = |name: &str| folder.path().join(name);
    executable(&at("my"), SCRIPT);
    fs::write(at("real"), "of this host").unwrap();
    symlink("real", at("data")).unwrap();
    fs::write(at("unused"), "").unwrap();
    fs::write(other.path().join("file"), "of another home").unwrap();
    symlink(other.path().join("file"), at("home")).unwrap();
    let run = || {
        let state = folder.path().join("state");
        let mut run = vtax(&state);
        run.current_dir(folder.path())
            .args(["run", "--image", "host", "--platform", "native,qemu"])
            .args(["--runs", "1", "--metric", "held=([0-9]+) hold", "1"])
            .args(["--", "./my"]);
        let output = run.output().unwrap();
        assert!(in_order(output.status), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    let first = run();
    assert!(first.contains("a VM has "), "{first}");
    let found = trials(&at("results/my"));
    let held = |platform: &str| {
        let trial = found
            .iter()
            .find(|trial| trial.treatment.platform == platform);
        let trial = trial.unwrap();
        let closure = trial.environment.get("image.closure");
        assert_eq!(closure.is_some(), platform == "qemu", "{closure:?}");
        trial.metrics["own.held"].quantity.value
    };
    // Natively, the whole directory is there.
    assert_eq!([held("native"), held("qemu")], [5.0, 6.0], "{first}");
    assert!(!at("written").exists());
    // The same files are the same image, and changed ones are not.
    assert!(!run().contains("copying"));
    fs::write(at("real"), "of this host, changed").unwrap();
    assert!(run().contains("copying"));
    before.assert_nothing_new("after three runs");
}
