// SPDX-License-Identifier: Apache-2.0
//! Logins to hosts by ssh, and the shell command that starts an actor there.

use crate::place::remote::Remote;
use std::ffi::OsStr;
use vtax_host::HostError;

/// Prints the kernel's id of the present boot.
pub(super) const BOOT_ID: &str = "cat /proc/sys/kernel/random/boot_id 2>/dev/null || true";

/// The command that runs a target's actor in its own namespaces. The processes that its servers leave, and its
/// `/tmp`, end with it.
const ISOLATION: &str = "unshare --mount --pid --fork --kill-child --mount-proc \
    sh -c \"mount -t tmpfs -o mode=1777 vtax /tmp && exec \\\"\\$@\\\"\" vtax-alone ";

/// A login to a host, and its purpose.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Login {
    /// The host as ssh understands it.
    pub host: String,
    /// Further options of ssh.
    pub options: Vec<String>,
    /// Whether to become root by sudo.
    pub sudo: bool,
    /// Whether the host is the target. Its servers run as root and in their own namespaces.
    pub is_target: bool,
    /// Whether the host exists for one trial only.
    pub is_temporary: bool,
}

impl Login {
    /// Returns a login with no further options.
    pub fn to(host: &str) -> Self {
        Self {
            host: host.to_owned(),
            ..Self::default()
        }
    }

    pub(super) fn remote(&self, ssh: &OsStr) -> Remote {
        Remote {
            ssh: ssh.to_owned(),
            host: self.host.clone(),
            options: self.options.clone(),
        }
    }

    /// Runs a line in the shell there. Returns its trimmed output.
    ///
    /// # Errors
    /// When the host cannot be reached, or the line fails.
    pub fn ask(&self, ssh: &OsStr, line: &str) -> Result<String, HostError> {
        let asked = self.remote(ssh).ask(line);
        asked.map_err(|cause| unreachable(&self.host, &cause.to_string()))
    }

    /// Returns the kernel's id of the host's present boot.
    ///
    /// # Errors
    /// When the host cannot be reached.
    pub fn boot(&self, ssh: &OsStr) -> Result<String, HostError> {
        self.ask(ssh, BOOT_ID)
    }
}

/// Returns the shell command that starts the actor. It copies the program, the first `size` bytes of its input,
/// into an unlinked file.
pub(super) fn boot(size: u64, login: &Login) -> String {
    let sudo = if login.sudo { "sudo -n " } else { "" };
    let isolation = if login.is_target { ISOLATION } else { "" };
    format!(
        "exec {sudo}sh -c 'set -e; umask 077; f=$(mktemp /var/tmp/vtax-actor-XXXXXX); chmod 700 \"$f\"; \
         exec 3>\"$f\" 4<\"$f\"; rm -f \"$f\"; head -c {size} >&3; exec 3>&-; \
         test \"$(wc -c <&4)\" -eq {size}; exec {isolation}/proc/self/fd/4 actor'"
    )
}

/// The system and architecture of this host, as `uname -s -m`.
pub(crate) fn this_system() -> String {
    let here = rustix::system::uname();
    let (system, machine) = (here.sysname(), here.machine());
    format!("{} {}", system.to_string_lossy(), machine.to_string_lossy())
}

pub(super) fn unreachable(host: &str, why: &str) -> HostError {
    let has = |words: &str| why.contains(words);
    let remedy = if has("IDENTIFICATION HAS CHANGED") || has("Host key verification failed") {
        "it is another machine than the one that ssh knows by this name, or ssh knows none yet: find out \
         which, then set ssh's known_hosts right"
    } else if has("Permission denied") {
        "ssh has no key that it accepts: `ssh-copy-id` brings it one"
    } else {
        "it must work without a question"
    };
    HostError::Other(format!(
        "the host {host} is not to be reached: {why}; {remedy}; try `ssh -o BatchMode=yes {host} true`"
    ))
}
