// SPDX-License-Identifier: Apache-2.0
//! Packs a tree into a raw ext4 image.

use super::logged::run_logged;
use std::fs;
use std::path::Path;
use std::process::Command;
use vtax_host::HostError;
use vtax_host::roots::PATH;

/// Room for writes in the image beyond the tree itself. The file is sparse.
const HEADROOM_MIB: u64 = 256;

/// The bytes for each inode of a file system of this size, mke2fs's default.
const BYTES_OF_INODE: u64 = 16384;

/// Packs the tree into a raw ext4 image.
pub(super) fn pack(root: &Path, image: &Path, log: &Path) -> Result<(), HostError> {
    let tree = Extent::in_directory(root)?;
    let size = tree.bytes + (HEADROOM_MIB << 20);
    // An eighth more for the file system's own structures.
    let mib = (size + size / 8).div_ceil(1 << 20);
    let mut command = Command::new("setpriv");
    command.args([
        "--pdeathsig",
        "KILL",
        "mke2fs",
        "-q",
        "-t",
        "ext4",
        "-L",
        "vtax",
    ]);
    // No journal: every VM discards its writes. No lazy initialisation: the guest's kernel would finish it during a
    // trial.
    command.args(["-O", "^has_journal", "-E", "lazy_itable_init=0", "-m", "0"]);
    // Of a tree of small files the inodes of a usual file system of its size are too few.
    let usual = size / BYTES_OF_INODE;
    if tree.entries > usual / 2 {
        command.args(["-N", &(tree.entries + usual).to_string()]);
    }
    command
        .arg("-d")
        .arg(root)
        .arg(image)
        .arg(format!("{mib}M"));
    command.env("PATH", PATH);
    run_logged(command, log, &mut |_| {})
}

/// What a tree takes in a file system.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Extent {
    /// Bytes in blocks of 4 KiB, with inodes and names.
    bytes: u64,
    /// Files, directories and links.
    entries: u64,
}

impl Extent {
    fn in_directory(dir: &Path) -> Result<Self, HostError> {
        let mut total = Self {
            bytes: 4096,
            entries: 1,
        };
        for entry in fs::read_dir(dir).map_err(HostError::file("read", dir))? {
            let entry = entry.map_err(HostError::file("read", dir))?;
            let path = entry.path();
            let metadata = path
                .symlink_metadata()
                .map_err(HostError::file("read", &path))?;
            let inside = if metadata.is_dir() {
                Self::in_directory(&path)?
            } else {
                Self {
                    bytes: metadata.len().next_multiple_of(4096),
                    entries: 1,
                }
            };
            // An inode has 256 bytes, and an entry of a directory 8 beside its name.
            let name = entry.file_name().len() as u64;
            total.bytes += inside.bytes + 256 + (8 + name).next_multiple_of(4);
            total.entries += inside.entries;
        }
        Ok(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "takes 6 s: make test-all"]
    fn a_tree_of_many_small_files_is_packed_with_an_inode_for_each() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        for directory in 0..100 {
            let directory = root.join(directory.to_string());
            fs::create_dir_all(&directory).unwrap();
            for file in 0..1000 {
                fs::write(directory.join(file.to_string()), "").unwrap();
            }
        }
        assert_eq!(Extent::in_directory(&root).unwrap().entries, 100 * 1001 + 1);
        let log = folder.path().join("log");
        let packed = pack(&root, &folder.path().join("root.ext4"), &log);
        packed.unwrap_or_else(|cause| panic!("{cause}: {}", fs::read_to_string(log).unwrap()));
    }
}
