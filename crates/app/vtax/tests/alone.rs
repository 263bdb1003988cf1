// SPDX-License-Identifier: Apache-2.0
//! `vtax-nic` and `vtax-mvm` build outside the workspace, from their packages and those of the base crates that they need.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use vtax_testkit::workspace::{crates, named, root};

/// The crate and all crates of the workspace that it is built from.
fn with_dependencies(of: &str) -> BTreeSet<String> {
    let folders = crates();
    let mut found = BTreeSet::new();
    let mut left = vec![of.to_owned()];
    while let Some(name) = left.pop() {
        let used = named(&folders[&name], "dependencies");
        left.extend(used.into_iter().filter(|used| folders.contains_key(used)));
        found.insert(name);
    }
    found
}

fn cargo(folder: &Path, arguments: &[&str], target: &Path) {
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .args(["--quiet", "--offline", "--target-dir"])
        .arg(target)
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "cargo {arguments:?}: {output:?}");
}

/// Builds the programs of a package in a folder that has only the packages that it needs.
fn builds_alone(of: &str, below: &str) {
    let folder = tempfile::tempdir().unwrap();
    let (packed, unpacked) = (folder.path().join("packed"), folder.path().join("unpacked"));
    fs::create_dir(&unpacked).unwrap();
    let names = with_dependencies(of);
    let mut package = vec!["package", "--no-verify", "--allow-dirty"];
    for name in &names {
        package.extend(["--package", name]);
    }
    cargo(&root(), &package, &packed);

    let mut patches = BTreeMap::new();
    for name in &names {
        let archive = format!("{name}-{}.crate", env!("CARGO_PKG_VERSION"));
        let status = Command::new("tar")
            .arg("--extract")
            .arg("--file")
            .arg(packed.join("package").join(archive))
            .current_dir(&unpacked)
            .status()
            .unwrap();
        assert!(status.success());
        let folder = format!("{name}-{}", env!("CARGO_PKG_VERSION"));
        patches.insert(name.clone(), folder);
    }
    let mut manifest = format!(
        "[workspace]\nresolver = \"3\"\nmembers = [{:?}]\n\n[patch.crates-io]\n",
        patches[of]
    );
    for (name, folder) in &patches {
        manifest.push_str(&format!("{name} = {{ path = {folder:?} }}\n"));
    }
    fs::write(unpacked.join("Cargo.toml"), manifest).unwrap();
    // The same versions as in the workspace.
    fs::copy(root().join("Cargo.lock"), unpacked.join("Cargo.lock")).unwrap();
    cargo(
        &unpacked,
        &["build", "--bins"],
        &folder.path().join("built"),
    );
    assert!(folder.path().join("built/debug").join(of).exists(), "{of}");

    let rooms: BTreeSet<String> = names
        .iter()
        .filter(|name| *name != of)
        .map(|name| {
            let folder = crates()[name].clone();
            let room = folder.parent().unwrap().file_name().unwrap();
            room.to_string_lossy().into_owned()
        })
        .collect();
    assert_eq!(rooms, BTreeSet::from([below.to_owned()]));
}

#[test(needs = [test_all("it builds vtax-nic from packages"), program("tar")])]
fn the_package_of_the_nic_builds_outside_the_workspace() {
    builds_alone("vtax-nic", "base");
}

#[test(needs = [test_all("it builds vtax-mvm from packages"), program("tar")])]
fn the_package_of_micro_vms_builds_outside_the_workspace() {
    builds_alone("vtax-mvm", "base");
}
