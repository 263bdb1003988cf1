// SPDX-License-Identifier: Apache-2.0
//! The crates of the repository: their folders, and what their manifests name.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The root directory of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// The folder of each crate of the workspace, by the name of its package.
pub fn crates() -> BTreeMap<String, PathBuf> {
    let below = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.is_dir()).collect()
    };
    let rooms = below(&root().join("crates"));
    let folders = rooms.iter().flat_map(|room| below(room));
    let named = folders.map(|folder| {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let name = manifest.split('"').nth(1).unwrap().to_owned();
        (name, folder)
    });
    named.collect()
}

/// The packages that a section of a crate's manifest names, such as `dependencies`.
pub fn named(folder: &Path, section: &str) -> Vec<String> {
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    let title = format!("\n[{section}]");
    let (_, section) = manifest.split_once(&title).unwrap_or_default();
    let lines = section.lines().take_while(|line| !line.starts_with('['));
    let names = lines.filter_map(|line| line.split_whitespace().next());
    names
        .filter(|name| *name != "#")
        .map(str::to_owned)
        .collect()
}
