// SPDX-License-Identifier: Apache-2.0
//! Stand-ins for a VMM's program, for tests of every crate that starts one.

#![allow(clippy::disallowed_methods, reason = "files in a folder of the test")]

use crate::skip;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// A script that accepts only the documented options of Firecracker and Cloud Hypervisor, and boots the guest by
/// QEMU's emulation.
pub const STAND_IN: &str = include_str!("stand-in.sh");

/// A script that fails at once.
pub const FAILS: &str = "#!/bin/sh\n[ \"$*\" != --version ] || { echo 'a stand-in'; exit; }\n\
    echo 'Cannot create VM: not on this KVM' >&2\nexit 2\n";

/// Creates a folder with a program of this name.
#[must_use]
pub fn program(name: &str, script: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// Makes the stand-in of a folder name its vCPU threads as the VMM does. Skips the test where there is no C compiler.
pub fn name_threads(folder: &Path) {
    let source = folder.join("names.c");
    fs::write(&source, include_str!("names.c")).unwrap();
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&folder.join("names.so"), &source])
        .status();
    if !compiled.is_ok_and(|status| status.success()) {
        skip!("needs a C compiler (Debian package gcc)");
    }
}
