// SPDX-License-Identifier: Apache-2.0
//! The kernel of this host, for guests.

use crate::image::modules;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The modules of this host's kernel that a guest needs, and those that it needs where the kernel has them: ext4 asks for
/// `crc32c` by a name that no table of dependencies has.
const MODULES: [&str; 5] = [
    "ext4",
    "virtio_pci",
    "virtio_blk",
    "virtio_net",
    "virtio_console",
];
const FURTHER_MODULES: [&str; 2] = ["crc32c_generic", "virtio_mmio"];

/// The kernel of this host, for guests.
#[derive(Debug, PartialEq)]
pub(super) struct HostKernel {
    pub(super) release: String,
    pub(super) file: PathBuf,
    /// Its `/lib/modules/RELEASE`.
    pub(super) directory: PathBuf,
    /// The modules that a guest loads.
    pub(super) modules: Vec<&'static str>,
    /// What identifies it.
    pub(super) identity: String,
}

impl HostKernel {
    /// Finds the kernel of a release below `root`, with the modules of a guest; `None` where it or they cannot be read.
    pub(super) fn find(root: &Path, release: &str) -> Option<Self> {
        let directory = root.join("lib/modules").join(release);
        let boot = root.join("boot").join(format!("vmlinuz-{release}"));
        let file = [boot, directory.join("vmlinuz")]
            .into_iter()
            .find(|file| File::open(file).is_ok())?;
        let has = |name: &str| modules::in_load_order(&directory, &[name]).is_ok();
        if !MODULES.iter().all(|name| has(name)) {
            return None;
        }
        let further = FURTHER_MODULES.iter().filter(|name| has(name));
        let about = file.metadata().ok()?;
        Some(Self {
            modules: further.chain(&MODULES).copied().collect(),
            identity: format!("{release} {} {}", about.len(), about.mtime()),
            release: release.to_owned(),
            directory,
            file,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_kernel_without_the_modules_of_a_guest_is_not_that_of_guests() {
        let host = tempfile::tempdir().unwrap();
        fs::create_dir(host.path().join("boot")).unwrap();
        fs::write(host.path().join("boot/vmlinuz-6.1"), "").unwrap();
        assert_eq!(HostKernel::find(host.path(), "6.1"), None);
        let modules = host.path().join("lib/modules/6.1");
        fs::create_dir_all(&modules).unwrap();
        fs::write(modules.join("modules.dep"), "").unwrap();
        let builtin: String = MODULES
            .iter()
            .map(|name| format!("kernel/{name}.ko\n"))
            .collect();
        fs::write(modules.join("modules.builtin"), builtin).unwrap();
        let found = HostKernel::find(host.path(), "6.1").unwrap();
        assert_eq!(found.modules, MODULES);
        assert_eq!(HostKernel::find(host.path(), "6.2"), None);
    }
}
