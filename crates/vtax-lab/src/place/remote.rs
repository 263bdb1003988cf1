// SPDX-License-Identifier: Apache-2.0
//! Commands on another host through ssh.

use std::ffi::OsString;
use std::io::{Seek, Write};
use std::process::{Command, Output, Stdio};
use vtax_host::HostError;
use vtax_host::untrusted::{self, LONGEST_LINE, shown};

/// Another host, which ssh connects to.
#[derive(Debug, Clone)]
pub(super) struct Remote {
    /// The program to connect with.
    pub ssh: OsString,
    /// The host as ssh understands it.
    pub host: String,
    /// Further options of ssh.
    pub options: Vec<String>,
}

impl Remote {
    /// Returns the ssh command that runs a shell line on the host.
    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(&self.ssh);
        command
            .args(["-o", "BatchMode=yes", "-T"])
            // These options end a connection to a machine that has vanished.
            .args(["-o", "ConnectTimeout=15"])
            .args(["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"])
            .args(&self.options)
            .arg("--")
            .arg(&self.host)
            .arg(line);
        command
    }

    /// Runs a line on the host. Returns its trimmed standard output of at most [`LONGEST_LINE`] bytes.
    pub fn ask(&self, line: &str) -> Result<String, HostError> {
        let output = self.run(line, Stdio::null())?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Runs a line on the host with `from` as its standard input.
    pub fn send(&self, from: Stdio, line: &str) -> Result<(), HostError> {
        self.run(line, from).map(drop)
    }

    fn run(&self, line: &str, input: Stdio) -> Result<Output, HostError> {
        let output = untrusted::output(self.command(line).stdin(input), LONGEST_LINE).map_err(
            HostError::process("run ssh and read what it prints from", shown(&self.host)),
        )?;
        if output.status.success() {
            return Ok(output);
        }
        let command = format!("ssh {} {line}", self.host);
        Err(HostError::program(command, &output))
    }

    /// As [`Remote::send`], with a text as standard input.
    pub fn send_text(&self, text: &str, line: &str) -> Result<(), HostError> {
        let mut file =
            tempfile::tempfile().map_err(HostError::file("create", "a temporary file"))?;
        file.write_all(text.as_bytes())
            .and_then(|()| file.rewind())
            .map_err(HostError::file("write", "a temporary file"))?;
        self.send(file.into(), line)
    }
}
