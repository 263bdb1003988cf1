// SPDX-License-Identifier: Apache-2.0
//! The kernel modules to load and their order, from `modules.dep` without modprobe.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use vtax_host::HostError;

/// The files of the named modules and of all their dependencies, in load order. `directory` is the tree's
/// `/lib/modules/VERSION`.
pub(super) fn in_load_order<S: AsRef<str>>(
    directory: &Path,
    names: &[S],
) -> Result<Vec<PathBuf>, HostError> {
    let read = |file: &str| {
        let path = directory.join(file);
        fs::read_to_string(&path).map_err(HostError::file("read", path))
    };
    let order = resolve(&read("modules.dep")?, &read("modules.builtin")?, names).map_err(
        |NoModule(name)| HostError::Missing {
            what: format!("the module {name} of the kernel in {}", directory.display()),
            remedy: "use a kernel that has it".to_owned(),
        },
    )?;
    Ok(order.into_iter().map(|path| directory.join(path)).collect())
}

/// The name of a module that the kernel neither has nor has built in.
#[derive(Debug, PartialEq)]
struct NoModule(String);

/// The relative paths in load order.
fn resolve<S: AsRef<str>>(
    dependencies: &str,
    builtin: &str,
    names: &[S],
) -> Result<Vec<String>, NoModule> {
    // A line lists all dependencies of a module, direct or not, the deepest last (depmod, modules.dep(5)).
    let lines: BTreeMap<String, (&str, Vec<&str>)> = dependencies
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(path, needs)| {
            (
                module_name(path),
                (path, needs.split_whitespace().collect()),
            )
        })
        .collect();
    let builtin: HashSet<String> = builtin.lines().map(module_name).collect();
    let mut order: Vec<String> = Vec::new();
    for name in names.iter().map(S::as_ref) {
        let wanted = module_name(name);
        let Some((path, needs)) = lines.get(&wanted) else {
            if builtin.contains(&wanted) {
                continue;
            }
            return Err(NoModule(name.to_owned()));
        };
        for file in needs.iter().rev().chain([path]) {
            if !order.iter().any(|present| present == file) {
                order.push((*file).to_owned());
            }
        }
    }
    Ok(order)
}

/// The name of a module: `kernel/drivers/net/virtio_net.ko.xz` is `virtio_net`; the kernel takes `-` for `_`.
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPENDENCIES: &str = "\
kernel/drivers/virtio/virtio.ko: kernel/drivers/virtio/virtio_ring.ko
kernel/drivers/virtio/virtio_ring.ko:
kernel/net/core/failover.ko.xz:
kernel/drivers/net/net_failover.ko: kernel/net/core/failover.ko.xz
kernel/drivers/net/virtio-net.ko: kernel/drivers/net/net_failover.ko kernel/net/core/failover.ko.xz kernel/drivers/virtio/virtio.ko kernel/drivers/virtio/virtio_ring.ko
";

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn every_module_comes_after_what_it_needs_and_only_once() {
        let order = resolve(DEPENDENCIES, "", &names(&["virtio_net", "virtio"])).unwrap();
        assert_eq!(
            order,
            [
                "kernel/drivers/virtio/virtio_ring.ko",
                "kernel/drivers/virtio/virtio.ko",
                "kernel/net/core/failover.ko.xz",
                "kernel/drivers/net/net_failover.ko",
                "kernel/drivers/net/virtio-net.ko",
            ]
        );
    }

    #[test]
    fn what_is_built_in_needs_no_file() {
        let order = resolve(
            DEPENDENCIES,
            "kernel/fs/ext4/ext4.ko\n",
            &names(&["ext4", "failover"]),
        )
        .unwrap();
        assert_eq!(order, ["kernel/net/core/failover.ko.xz"]);
    }

    #[test]
    fn a_module_that_does_not_exist_is_named() {
        assert_eq!(
            resolve(DEPENDENCIES, "", &names(&["virtio_moon"])),
            Err(NoModule("virtio_moon".into()))
        );
    }
}
