// SPDX-License-Identifier: Apache-2.0
//! The files that a guest is booted from.

use std::path::PathBuf;

/// The files that all platforms run: one root file system in two forms, and a kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GuestFiles {
    /// The unpacked tree, read-only; platforms put a writable layer above it.
    pub root: PathBuf,
    /// The same tree as a raw ext4 image.
    pub image: PathBuf,
    /// The kernel of the same tree.
    pub kernel: PathBuf,
    /// The small initial RAM disk that mounts the image.
    pub initrd: PathBuf,
    /// SHA-256 of the recipe, which identifies the image.
    pub recipe: String,
    /// The working directory of commands, where the root is that of this host.
    pub directory: Option<PathBuf>,
    /// The tree of the plan's files, where the root is that of this host.
    pub files: Option<PathBuf>,
}

impl GuestFiles {
    /// The root of this host, for platforms that share its kernel.
    pub fn of_this_host(directory: Option<PathBuf>, files: Option<PathBuf>) -> Self {
        Self {
            root: "/".into(),
            directory,
            files,
            ..Self::default()
        }
    }
}
