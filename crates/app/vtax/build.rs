// SPDX-License-Identifier: Apache-2.0
//! Gives the program its version: that of the package, and the git revision of a release build.
//!
//! `VTAX_REVISION` overrides the revision, for builds from an archive. Without it, git or a clone there is none. Builds of
//! other profiles have none either, so that a commit does not rebuild the tests.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=VTAX_REVISION");
    let version = env!("CARGO_PKG_VERSION");
    let revision = match std::env::var("VTAX_REVISION") {
        Ok(given) => Some(given),
        Err(_) if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") => revision(),
        Err(_) => None,
    };
    let revision = revision.filter(|revision| !revision.is_empty());
    let version = revision.map_or(version.to_owned(), |revision| {
        format!("{version} ({revision})")
    });
    println!("cargo::rustc-env=VTAX_VERSION={version}");
    println!("cargo::rerun-if-changed=build.rs");
}

/// The revision of the repository that contains this crate, not of one around an unpacked archive of it.
fn revision() -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let root = root.canonicalize().ok()?;
    if Path::new(&git(&root, &["rev-parse", "--show-toplevel"])?) != root {
        return None;
    }
    // Each commit and checkout appends to the log of HEAD.
    for file in ["HEAD", "logs/HEAD"] {
        let path = root.join(git(&root, &["rev-parse", "--git-path", file])?);
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    git(&root, &["rev-parse", "--short=12", "HEAD"])
}

fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .arg("-C")
        .arg(root)
        .args(arguments)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_owned())
}
