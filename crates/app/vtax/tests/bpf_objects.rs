// SPDX-License-Identifier: Apache-2.0
//! The committed BPF objects are equal to the output of the pinned compiler for their sources.

use std::fs;
use std::path::Path;
use std::process::Command;
use vtax_testkit::needs::{Need, brought_by_test_all};
use vtax_testkit::skip;

/// An object, and the script that builds it from the source beside it.
const OBJECTS: [(&str, &str); 6] = [
    (
        "ledger/charge/bpf/charge.bpf.o",
        "ledger/observe/bpf/build.sh",
    ),
    (
        "ledger/charge/bpf/waits.bpf.o",
        "ledger/observe/bpf/build.sh",
    ),
    (
        "ledger/observe/bpf/grants.bpf.o",
        "ledger/observe/bpf/build.sh",
    ),
    (
        "ledger/observe/bpf/idle.bpf.o",
        "ledger/observe/bpf/build.sh",
    ),
    (
        "ledger/charge/tests/containers/redirect.bpf.o",
        "ledger/observe/bpf/build.sh",
    ),
    ("lab/testbed/bpf/speed.bpf.o", "lab/testbed/bpf/build.sh"),
];

fn compiler() -> Need {
    Need::all(["clang", "llvm-strip", "/usr/include/bpf/bpf_helpers.h"].map(brought_by_test_all))
}

#[test(needs = [compiler()])]
fn committed_objects_are_built_from_their_sources() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = tempfile::tempdir().unwrap();
    let built = folder.path().join("built.bpf.o");
    for (object, script) in OBJECTS {
        let output = Command::new(crates.join(script))
            .arg(&built)
            .arg(crates.join(object).with_extension("c"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{object}: {output:?}");
        let version = Command::new("clang").arg("--version").output().unwrap();
        let version = String::from_utf8_lossy(&version.stdout).into_owned();
        if !version.contains("clang version 14.0.6") || !cfg!(target_arch = "x86_64") {
            skip!(
                "the objects were built by clang 14.0.6 for x86-64; here they were only compiled"
            );
        }
        let is_same = fs::read(&built).unwrap() == fs::read(crates.join(object)).unwrap();
        assert!(is_same, "run {script} and commit {object}");
    }
}
