//! The programs that vtax runs on the host, and the Debian package that brings each.

use super::{Answer, Finding, Options, Topic};
use vtax_guest::platform::container::Runtime;
use vtax_host::Roots;
use vtax_host::facts::version;

/// A program that vtax runs on the host.
struct Program {
    name: &'static str,
    package: &'static str,
    /// The argument that prints its version.
    version: &'static str,
    /// What does not work without it.
    purpose: &'static str,
    /// Whether trials need it.
    needed: bool,
}

const fn needed(
    name: &'static str,
    package: &'static str,
    version: &'static str,
    purpose: &'static str,
) -> Program {
    Program {
        name,
        package,
        version,
        purpose,
        needed: true,
    }
}

const fn optional(
    name: &'static str,
    package: &'static str,
    version: &'static str,
    purpose: &'static str,
) -> Program {
    Program {
        name,
        package,
        version,
        purpose,
        needed: false,
    }
}

const PROGRAMS: [Program; 15] = [
    needed("qemu-system-x86_64", "qemu-system-x86", "--version", "VMs"),
    needed(
        "mmdebstrap",
        "mmdebstrap",
        "--version",
        "building the guests' root file system",
    ),
    needed(
        "mke2fs",
        "e2fsprogs",
        "-V",
        "building the guests' disk image",
    ),
    needed(
        "cpio",
        "cpio",
        "--version",
        "building the guests' initial RAM disk",
    ),
    needed("ip", "iproute2", "-V", "the networks of trials"),
    needed("tc", "iproute2", "-V", "link emulation"),
    needed("ethtool", "ethtool", "--version", "switching offloads"),
    needed("unshare", "util-linux", "--version", "sandboxes"),
    needed("nsenter", "util-linux", "--version", "sandboxes"),
    needed("setpriv", "util-linux", "--version", "sandboxes"),
    optional("runc", "runc", "--version", "containers"),
    optional("crun", "crun", "--version", "containers"),
    optional("iperf3", "iperf3", "--version", "network load by hand"),
    optional("sigrok-cli", "sigrok-cli", "--version", "wall meters"),
    optional("ipmitool", "ipmitool", "-V", "server power meters"),
];

pub(super) fn examine(roots: &Roots, _options: &Options) -> Vec<Finding> {
    let has_runtime = Runtime::ALL
        .iter()
        .any(|runtime| roots.program(runtime.name()).is_some());
    PROGRAMS
        .iter()
        .map(|program| {
            let finding = |answer, evidence: String| {
                Finding::new(Topic::Programs, program.name, answer, evidence)
            };
            let Some(path) = roots.program(program.name) else {
                // One runtime is enough, and runc works on every control group layout.
                let needed = program.needed || (program.name == "runc" && !has_runtime);
                let missing = finding(Answer::No, "not installed".to_owned());
                return if needed {
                    missing
                        .remedy(format!(
                            "apt-get install {} (for {})",
                            program.package, program.purpose
                        ))
                        .package(program.package)
                } else {
                    missing.remedy(format!(
                        "optional, for {}: apt-get install {}",
                        program.purpose, program.package
                    ))
                };
            };
            match version(roots, program.name, program.version) {
                Some(version) => finding(
                    Answer::Yes,
                    format!("{version} (package {})", program.package),
                ),
                None => finding(
                    Answer::Partly,
                    format!("{} tells no version", path.display()),
                )
                .remedy(format!("apt-get install --reinstall {}", program.package)),
            }
        })
        .collect()
}
