// SPDX-License-Identifier: Apache-2.0
//! The programs that vtax runs on the host, and their Debian packages.

use super::{Finding, Options, Subject, Topic};
use vtax_guest::platform::container::Runtime;
use vtax_host::Roots;
use vtax_host::facts::version;

/// The programs that trials need: program, Debian package, argument that prints the version, and purpose.
const NEEDED: [[&str; 4]; 10] = [
    ["qemu-system-x86_64", "qemu-system-x86", "--version", "VMs"],
    [
        "mmdebstrap",
        "mmdebstrap",
        "--version",
        "building the guests' root file system",
    ],
    [
        "mke2fs",
        "e2fsprogs",
        "-V",
        "building the guests' disk image",
    ],
    [
        "cpio",
        "cpio",
        "--version",
        "building the guests' initial RAM disk",
    ],
    ["ip", "iproute2", "-V", "the networks of trials"],
    ["tc", "iproute2", "-V", "link emulation"],
    ["ethtool", "ethtool", "--version", "switching offloads"],
    ["unshare", "util-linux", "--version", "sandboxes"],
    ["nsenter", "util-linux", "--version", "sandboxes"],
    ["setpriv", "util-linux", "--version", "sandboxes"],
];

/// Optional programs, in the same form.
const OPTIONAL: [[&str; 4]; 5] = [
    ["runc", "runc", "--version", "containers"],
    ["crun", "crun", "--version", "containers"],
    ["iperf3", "iperf3", "--version", "network load by hand"],
    ["sigrok-cli", "sigrok-cli", "--version", "wall meters"],
    ["ipmitool", "ipmitool", "-V", "server power meters"],
];

pub(super) fn examine(roots: &Roots, _options: &Options) -> Vec<Finding> {
    let has_runtime = Runtime::ALL
        .iter()
        .any(|runtime| roots.program(runtime.name()).is_some());
    let needed = NEEDED.into_iter().map(|program| (program, true));
    let optional = OPTIONAL.into_iter().map(|program| (program, false));
    needed
        .chain(optional)
        .map(|([name, package, argument, purpose], is_needed)| {
            let subject = Subject(Topic::Programs, name);
            let Some(path) = roots.program(name) else {
                // One runtime is enough, and runc works on every control group layout.
                if is_needed || (name == "runc" && !has_runtime) {
                    let remedy = format!("apt-get install {package} (for {purpose})");
                    return subject.no("not installed", remedy).package(package);
                }
                let remedy = format!("optional, for {purpose}: apt-get install {package}");
                return subject.no("not installed", remedy);
            };
            match version(roots, name, argument) {
                Some(version) => subject.yes(format!("{version} (package {package})")),
                None => subject.partly(
                    format!("{} prints no version", path.display()),
                    format!("apt-get install --reinstall {package}"),
                ),
            }
        })
        .collect()
}
