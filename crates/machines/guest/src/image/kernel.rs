// SPDX-License-Identifier: Apache-2.0
//! The cloud kernel of another Debian release in an image, which gets no other package of that release.

use std::fs;
use std::path::{Path, PathBuf};
use vtax_host::HostError;

/// The meta-package of the kernel.
pub(super) const PACKAGE: &str = "linux-image-cloud-amd64";

/// The mirror where the machine has none.
const MIRROR: &str = "http://deb.debian.org/debian";

/// The sources of a suite with another release on its mirror.
pub(super) fn with_release(mut sources: Vec<String>, suite: &str, release: &str) -> Vec<String> {
    let mirror = sources
        .iter()
        .find_map(|line| line.strip_suffix(&format!(" {suite} main")))
        .map_or_else(|| format!("deb {MIRROR}"), str::to_owned);
    if sources.is_empty() {
        sources.push(format!("{mirror} {suite} main"));
    }
    let line = format!("{mirror} {release} main");
    if !sources.contains(&line) {
        sources.push(line);
    }
    sources
}

/// Moves the kernel and its modules from the packages' tree to the image's; returns the kernel's version.
pub(super) fn exchange(tree: &Path, root: &Path) -> Result<String, HostError> {
    let (version, modules) = modules(tree)?;
    // Newer packages have the kernel in the directory of its modules.
    let kernels = [
        tree.join("boot").join(format!("vmlinuz-{version}")),
        modules.join("vmlinuz"),
    ];
    let kernel = kernels.iter().find(|kernel| kernel.is_file());
    let kernel = kernel.ok_or_else(|| HostError::Missing {
        what: format!("the file of the kernel {version} in its packages"),
        remedy: "use the kernel of another release (`vm.kernel`)".to_owned(),
    })?;
    let boot = root.join("boot");
    let all = root.join("usr/lib/modules");
    for directory in [&boot, &all] {
        // A link could lead out of the tree.
        let is_directory = directory
            .symlink_metadata()
            .is_ok_and(|about| about.is_dir());
        if is_directory {
            vtax_files::remove_all(directory)?;
        }
        fs::create_dir(directory).map_err(HostError::file("create", directory))?;
    }
    let to = boot.join(format!("vmlinuz-{version}"));
    fs::copy(kernel, &to).map_err(HostError::file("create", &to))?;
    let to = all.join(&version);
    fs::rename(&modules, &to).map_err(HostError::file("create", &to))?;
    Ok(version)
}

/// The version of the one kernel in a tree, and the directory of its modules.
fn modules(tree: &Path) -> Result<(String, PathBuf), HostError> {
    let entries = ["usr/lib/modules", "lib/modules"].map(|path| fs::read_dir(tree.join(path)));
    let mut found = (entries.into_iter().flatten().flatten().flatten()).map(|entry| {
        (
            entry.file_name().to_string_lossy().into_owned(),
            entry.path(),
        )
    });
    found.next().ok_or_else(|| HostError::Missing {
        what: format!("the modules of a kernel in the package {PACKAGE}"),
        remedy: "use the kernel of another release (`vm.kernel`)".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: PathBuf) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x").unwrap();
    }

    #[test]
    fn the_kernel_of_a_release_replaces_all_others_wherever_its_package_has_it() {
        for (kernel, modules) in [
            ("boot/vmlinuz-6.12", "lib/modules/6.12"),
            ("usr/lib/modules/7.3/vmlinuz", "usr/lib/modules/7.3"),
        ] {
            let [tree, root] = [(); 2].map(|()| tempfile::tempdir().unwrap());
            let (tree, root) = (tree.path(), root.path());
            file(tree.join(kernel));
            file(tree.join(modules).join("kernel/net.ko"));
            file(root.join("boot/vmlinuz-6.1"));
            file(root.join("usr/lib/modules/6.1/modules.dep"));
            let version = exchange(tree, root).unwrap();
            assert_eq!(modules.rsplit('/').next(), Some(version.as_str()));
            let names = |path: &str| -> Vec<_> {
                let entries = fs::read_dir(root.join(path)).unwrap();
                entries.map(|entry| entry.unwrap().file_name()).collect()
            };
            assert_eq!(names("boot"), [format!("vmlinuz-{version}").as_str()]);
            assert_eq!(names("usr/lib/modules"), [version.as_str()]);
            let module = root.join("usr/lib/modules").join(&version);
            assert!(module.join("kernel/net.ko").is_file());
        }
    }

    #[test]
    fn a_package_without_a_kernel_is_an_error_that_leaves_the_image_as_it_is() {
        let [tree, root] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        file(root.path().join("boot/vmlinuz-6.1"));
        assert!(exchange(tree.path(), root.path()).is_err());
        file(tree.path().join("usr/lib/modules/7.3/modules.dep"));
        let error = exchange(tree.path(), root.path()).unwrap_err().to_string();
        assert!(error.contains("the kernel 7.3"), "{error}");
        assert!(root.path().join("boot/vmlinuz-6.1").is_file());
    }

    #[test]
    fn a_release_is_read_from_the_mirror_of_its_suite() {
        let own = vec!["deb http://mirror.test/debian trixie main".to_owned()];
        assert_eq!(
            with_release(own, "trixie", "trixie-backports"),
            [
                "deb http://mirror.test/debian trixie main",
                "deb http://mirror.test/debian trixie-backports main",
            ]
        );
        assert_eq!(
            with_release(Vec::new(), "trixie", "trixie-backports").len(),
            2
        );
    }
}
