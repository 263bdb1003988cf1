// SPDX-License-Identifier: Apache-2.0
//! The command by which mmdebstrap installs Debian packages, as root or in the user namespace of another user.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use vtax_host::{HostError, rootless};
use vtax_jail::{JailError, OneOwner};

/// Paths that no trial reads; they make up a third of the download's unpacked size.
const EXCLUDED: [&str; 6] = [
    "/usr/share/doc/*",
    "/usr/share/info/*",
    "/usr/share/lintian/*",
    "/usr/share/locale/*",
    "/usr/share/man/*",
    "/var/cache/apt/*.bin",
];

/// The mmdebstrap command that installs these packages, without the suite, the destination and the sources. Its own files
/// are in the directory `building`.
///
/// Where the user namespace of this process has one owner, calls that change owners succeed without effect.
///
/// # Errors
/// When the filter of these calls cannot be built.
pub(super) fn mmdebstrap(packages: &[String], building: &Path) -> Result<Command, HostError> {
    // mmdebstrap mounts the host's /sys and /dev/shm in the tree. In namespaces of its own these mounts are
    // invisible outside, and end with all of its processes when it is killed.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare", "--mount", "--propagation"]);
    command.args(["private", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.args(["mmdebstrap", "--variant=minbase", "--verbose"]);
    if rootless::user().is_some() {
        // apt downloads as another user where there is one.
        command.args(["--mode=root", "--aptopt=APT::Sandbox::User \"root\""]);
        command.env("TMPDIR", building);
    } else {
        command.arg("--mode=auto");
    }
    if rootless::has_one_owner() {
        let wrong =
            |cause: JailError| HostError::process("start", "mmdebstrap")(io::Error::other(cause));
        let filter = OneOwner::new().map_err(wrong)?;
        // SAFETY: the function makes system calls alone, and allocates nothing.
        unsafe { command.pre_exec(move || filter.apply()) };
    }
    command.args(EXCLUDED.map(|pattern| format!("--dpkgopt=path-exclude={pattern}")));
    // Copyright files stay, as licences require.
    command.arg("--dpkgopt=path-include=/usr/share/doc/*/copyright");
    command.args(proxies().iter().map(|option| format!("--aptopt={option}")));
    command.arg(format!("--include={}", packages.join(",")));
    command.env("LC_ALL", "C.UTF-8");
    Ok(command)
}

/// The options of mmdebstrap for a system in which programs run, where a user without root makes it: no user namespace
/// makes devices, so that those of this host are shown. The first options come before the hooks of a caller, which see them,
/// and the others after these.
pub(super) fn devices() -> [Vec<String>; 2] {
    if rootless::is_root() {
        return [Vec::new(), Vec::new()];
    }
    let names = "null zero full random urandom tty";
    let each = |what: &str| format!("for name in {names}; do {what}; done");
    let show = each("touch \"$1/dev/$name\"; mount --bind /dev/$name \"$1/dev/$name\"");
    let hide = each("umount \"$1/dev/$name\"");
    [
        vec![
            "--skip=chroot/mount/dev".to_owned(),
            format!("--setup-hook=mkdir -p \"$1/dev\"; {show}"),
        ],
        vec![format!("--customize-hook={hide}")],
    ]
}

/// Proxy settings of this machine's apt, which mmdebstrap does not read.
fn proxies() -> Vec<String> {
    lines_of(
        "apt-config",
        &[
            "dump",
            "--format",
            "%f \"%v\";%n",
            "Acquire::http::Proxy",
            "Acquire::https::Proxy",
        ],
    )
    .into_iter()
    .filter(|line| !line.contains("\"\""))
    .collect()
}

/// The apt sources of this machine that provide `suite`, so that its own mirror is used.
pub(super) fn sources(suite: &str) -> Vec<String> {
    let targets = lines_of(
        "apt-get",
        &[
            "indextargets",
            "--format",
            "$(REPO_URI) $(RELEASE) $(COMPONENT)",
            "Created-By: Packages",
        ],
    );
    sources_from(&targets, suite)
}

/// The sources for `suite`; empty where the machine has no Debian mirror, and mmdebstrap uses its default.
fn sources_from(targets: &[String], suite: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut mirror = None;
    for target in targets {
        let mut words = target.split_whitespace();
        let (Some(uri), Some(release), Some("main")) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let archive = uri.trim_end_matches('/').rsplit('/').next();
        if archive == Some("debian") {
            mirror.get_or_insert(uri);
        }
        let ours = release
            .strip_prefix(suite)
            .is_some_and(|rest| matches!(rest, "" | "-updates" | "-security"));
        if ours && matches!(archive, Some("debian" | "debian-security")) {
            let line = format!("deb {uri} {release} main");
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
    }
    match mirror {
        // A mirror of another release also has this suite.
        Some(mirror)
            if !lines
                .iter()
                .any(|line| line.ends_with(&format!(" {suite} main"))) =>
        {
            lines.insert(0, format!("deb {mirror} {suite} main"));
            lines
        }
        Some(_) => lines,
        None => Vec::new(),
    }
}

/// The output lines of a program; none if it fails, since the caller has a default.
fn lines_of(program: &str, arguments: &[&str]) -> Vec<String> {
    let output = Command::new(program)
        .args(arguments)
        .stderr(Stdio::null())
        .output();
    output
        .ok()
        .filter(|output| output.status.success())
        .map(|output| {
            String::from_utf8_lossy(&output.stdout)
                .lines()
                .map(str::to_owned)
                .collect()
        })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn the_mirror_of_this_machine_is_used() {
        let targets = targets(&[
            "http://mirror.test/debian/ bookworm main",
            "http://mirror.test/debian/ bookworm main",
            "http://mirror.test/debian/ bookworm-updates main",
            "http://mirror.test/debian-security/ bookworm-security main",
            "http://mirror.test/debian/ bookworm contrib",
            "http://mirror.test/debian/ bookworm-backports main",
            "http://other.test/apt nodistro main",
        ]);
        assert_eq!(
            sources_from(&targets, "bookworm"),
            [
                "deb http://mirror.test/debian/ bookworm main",
                "deb http://mirror.test/debian/ bookworm-updates main",
                "deb http://mirror.test/debian-security/ bookworm-security main",
            ]
        );
    }

    #[test]
    fn a_machine_of_another_release_gets_the_suite_from_its_own_mirror() {
        let targets = targets(&["http://mirror.test/debian trixie main"]);
        assert_eq!(
            sources_from(&targets, "bookworm"),
            ["deb http://mirror.test/debian bookworm main"]
        );
    }

    #[test]
    fn a_machine_without_a_debian_mirror_leaves_the_choice_to_mmdebstrap() {
        let targets = targets(&["http://other.test/ubuntu jammy main", "garbage", ""]);
        assert!(sources_from(&targets, "bookworm").is_empty());
    }
}
