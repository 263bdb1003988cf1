// SPDX-License-Identifier: Apache-2.0
//! libvirt, through its command `virsh`: a stable interface that every installation of libvirt has.

use crate::HostError;
use crate::command::{MOST_OUTPUT, plain};
use crate::untrusted;

/// The prefix of the names of vtax's domains; no other domain is ever stopped.
pub const PREFIX: &str = "vtax-";

/// Time limit of a call in seconds, longer than any takes, the start of an emulated domain on a busy host included.
const LIMIT_SECONDS: &str = "120";

/// A libvirt connection, as `virsh -c` names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Virsh {
    /// The connection's URI, such as `qemu:///system`.
    pub uri: String,
    /// Whether the connection itself refuses every change.
    pub reads_only: bool,
}

impl Virsh {
    /// Runs a command of virsh and returns its output.
    ///
    /// # Errors
    /// When virsh is missing, or its error output with the remedy.
    pub fn run(&self, arguments: &[&str]) -> Result<String, HostError> {
        let mut command = plain("timeout");
        command.args(["--kill-after=5", LIMIT_SECONDS, "virsh", "--quiet"]);
        if self.reads_only {
            command.arg("--readonly");
        }
        // These variables locate the socket of a session connection and the keys of ssh connections.
        for name in ["HOME", "XDG_RUNTIME_DIR", "SSH_AUTH_SOCK"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.arg("--connect").arg(&self.uri).args(arguments);
        let output = untrusted::output(&mut command, MOST_OUTPUT)
            .map_err(HostError::process("run", "virsh"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() {
            return Ok(text(&output.stdout));
        }
        let printed = text(&output.stderr);
        // `timeout` exits with 127 where there is no such program.
        if output.status.code() == Some(127) {
            return Err(HostError::Missing {
                what: "the program `virsh`, by which vtax talks to libvirt,".to_owned(),
                remedy: "install the Debian package libvirt-clients".to_owned(),
            });
        }
        if printed.contains("failed to connect") || printed.contains("Failed to connect socket") {
            return Err(HostError::Missing {
                what: format!("a libvirt that answers at {} ({printed})", self.uri),
                remedy: format!(
                    "start libvirtd (Debian package libvirt-daemon-system), or set libvirt.uri; `virsh -c {} list` must work",
                    self.uri
                ),
            });
        }
        Err(HostError::Program {
            command: format!("virsh -c {} {}", self.uri, arguments.join(" ")),
            status: output.status.to_string(),
            output: printed,
        })
    }

    /// The state of a domain (`running`, `shut off`); `None` where there is no such domain.
    ///
    /// # Errors
    /// When libvirt does not answer.
    pub fn state(&self, domain: &str) -> Result<Option<String>, HostError> {
        match self.run(&["domstate", "--domain", domain]) {
            Ok(state) => Ok(Some(state)),
            Err(HostError::Program { output, .. }) if output.contains("failed to get domain") => {
                Ok(None)
            }
            Err(cause) => Err(cause),
        }
    }

    /// Ends a domain that vtax created; a missing one counts as ended.
    ///
    /// # Errors
    /// When it is not a domain of vtax, or does not end.
    pub fn end(&self, domain: &str) -> Result<(), HostError> {
        if !domain.starts_with(PREFIX) {
            return Err(HostError::Invalid {
                what: format!("the domain {domain} of {}", self.uri),
                problem: "it is not named like one of ours and is never stopped; if the journal names it, the journal is damaged: run `vtax restore --forget`".to_owned(),
            });
        }
        if self.state(domain)?.is_none() {
            return Ok(());
        }
        let ended = self.run(&["destroy", "--domain", domain]);
        match self.state(domain)? {
            None => Ok(()),
            // The domain may have ended by itself in between.
            Some(_) => ended.map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_of_others_is_never_stopped() {
        let virsh = Virsh {
            uri: "qemu:///system".to_owned(),
            reads_only: false,
        };
        for name in ["web", "", "vtax", "xvtax-1", "production"] {
            let refused = virsh.end(name).unwrap_err().to_string();
            assert!(refused.contains("never stopped"), "{name}: {refused}");
        }
    }
}
