// SPDX-License-Identifier: Apache-2.0
//! What a VM has beside the files of this host: the init and the agent of vtax's image, in a directory of their own.

use crate::image::build::put;
use crate::image::tree::Tree;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use vtax_host::HostError;

/// The directory of vtax's own files in the image.
pub(super) const PARTS: &str = "/usr/lib/vtax/guest";

/// The init of vtax's image, which starts the agent.
const INIT: &str = include_str!("../guest/init.sh");

/// The changes to [`INIT`] for a root that has neither its shell nor its agent at their usual places: a line, and what
/// takes its place. The guest's `/tmp` and `/run` are memory, so that files of this host below them are copied there.
const INIT_CHANGES: [(&str, &str); 3] = [
    (
        "#!/bin/sh\n",
        "#!/usr/lib/vtax/guest/busybox sh\nparts=/usr/lib/vtax/guest\n[ ! -d $parts/over ] || $parts/busybox cp -a $parts/over/. /\n",
    ),
    (
        "\nqemu-ga ",
        "\n$parts/ld.so --library-path $parts/lib $parts/qemu-ga ",
    ),
    ("exec busybox ", "exec $parts/busybox "),
];

/// Adds what every guest has: the directories that it mounts on, its init, and the agent with its libraries from the
/// tree `base` of vtax's image.
pub(super) fn add(root: &Path, base: &Path) -> Result<(), HostError> {
    let tree = Tree::open(root)?;
    for name in ["dev", "proc", "root", "run", "sys", "tmp"] {
        tree.mount_point(name)?;
    }
    put(root, "/usr/lib/vtax/init", 0o755, init().as_bytes())?;
    let add = |name: &str, mode: u32, from: &Path| {
        let content = fs::read(from).map_err(HostError::file("read", from))?;
        put(root, &format!("{PARTS}/{name}"), mode, &content)
    };
    add("busybox", 0o755, &base.join("bin/busybox"))?;
    let agent = base.join("usr/sbin/qemu-ga");
    add("qemu-ga", 0o755, &agent)?;
    let loader = Loader::of(base)?;
    add("ld.so", 0o755, &loader.path)?;
    for (name, path) in loader.libraries(&agent)? {
        add(&format!("lib/{name}"), 0o644, &path)?;
    }
    for (path, text) in [
        ("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"),
        ("etc/hostname", "target\n"),
    ] {
        if root.join(path).symlink_metadata().is_err() {
            put(root, &format!("/{path}"), 0o644, text.as_bytes())?;
        }
    }
    Ok(())
}

/// The init of the image.
fn init() -> String {
    let change = |text: String, (line, other): &(&str, &str)| text.replacen(line, other, 1);
    INIT_CHANGES.iter().fold(INIT.to_owned(), change)
}

/// The dynamic loader of a tree.
struct Loader {
    path: PathBuf,
    /// The directories of the tree's libraries.
    folders: Vec<PathBuf>,
}

impl Loader {
    /// Finds the loader of Debian's layout, `/lib/TRIPLET/ld-linux-*.so.*`.
    fn of(tree: &Path) -> Result<Self, HostError> {
        let entries = |folder: &Path| -> Vec<PathBuf> {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect()
        };
        let is_loader = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("ld-linux")
        };
        let lib = tree.join("usr/lib");
        let lib = if lib.is_dir() { lib } else { tree.join("lib") };
        let folders = [tree.join("lib"), lib];
        let triplets = folders.iter().flat_map(|folder| entries(folder));
        let path = triplets.flat_map(|folder| entries(&folder)).find(is_loader);
        let path = path.ok_or_else(|| HostError::Missing {
            what: format!("the dynamic loader in {}", tree.display()),
            remedy: "build the image again: `vtax image build --force`".to_owned(),
        })?;
        let triplet = path.parent().and_then(Path::file_name).unwrap_or_default();
        let folders = ["lib", "usr/lib"]
            .map(|lib| tree.join(lib).join(triplet))
            .to_vec();
        Ok(Self { path, folders })
    }

    /// The libraries of a program of the tree, by the names that it looks for.
    fn libraries(&self, program: &Path) -> Result<BTreeMap<String, PathBuf>, HostError> {
        let folders = std::env::join_paths(&self.folders).unwrap_or_default();
        let output = Command::new(&self.path)
            .args(["--inhibit-cache", "--library-path"])
            .arg(folders)
            .arg("--list")
            .arg(program)
            .output()
            .map_err(HostError::process("start", self.path.display().to_string()))?;
        if !output.status.success() {
            let line = format!("{} --list {}", self.path.display(), program.display());
            return Err(HostError::program(line, &output));
        }
        Ok(listed(&String::from_utf8_lossy(&output.stdout)))
    }
}

/// The libraries of a loader's list, whose lines are `NAME => PATH (0xADDRESS)`.
fn listed(text: &str) -> BTreeMap<String, PathBuf> {
    let library = |line: &str| {
        let (name, rest) = line.trim().split_once(" => ")?;
        let (path, _) = rest.rsplit_once(" (")?;
        let is_plain = !name.contains('/') && Path::new(path).is_absolute();
        is_plain.then(|| (name.to_owned(), PathBuf::from(path)))
    };
    text.lines().filter_map(library).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_init_differs_from_that_of_the_image_in_what_is_elsewhere() {
        for (line, _) in INIT_CHANGES {
            assert_eq!(INIT.matches(line).count(), 1, "{line:?}");
        }
        assert!(init().contains("$parts/qemu-ga --method"));
    }

    #[test]
    fn a_loader_s_list_has_the_libraries_with_a_path() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /t/lib/libc.so.6 (0x00007f)\n\t/lib64/ld.so (0x7)\n\
                    \tlibx.so => not found\n\t../up => /a/b (0x1)\n";
        let found = listed(text);
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            [("libc.so.6".to_owned(), PathBuf::from("/t/lib/libc.so.6"))]
        );
    }
}
