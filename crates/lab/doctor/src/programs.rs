// SPDX-License-Identifier: Apache-2.0
//! The programs that vtax runs on the host, and their Debian packages.

use super::{Answer, Finding, Options, Topic};
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
            let finding =
                |answer, evidence: String| Finding::new(Topic::Programs, name, answer, evidence);
            let Some(path) = roots.program(name) else {
                // One runtime is enough, and runc works on every control group layout.
                let needed = is_needed || (name == "runc" && !has_runtime);
                let missing = finding(Answer::No, "not installed".to_owned());
                return if needed {
                    missing
                        .remedy(format!("apt-get install {package} (for {purpose})"))
                        .package(package)
                } else {
                    missing.remedy(format!(
                        "optional, for {purpose}: apt-get install {package}"
                    ))
                };
            };
            match version(roots, name, argument) {
                Some(version) => finding(Answer::Yes, format!("{version} (package {package})")),
                None => finding(
                    Answer::Partly,
                    format!("{} prints no version", path.display()),
                )
                .remedy(format!("apt-get install --reinstall {package}")),
            }
        })
        .collect()
}
