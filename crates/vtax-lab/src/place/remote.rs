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
}

impl Remote {
    /// Returns the ssh command that runs a shell line on the host.
    pub fn command(&self, line: &str) -> Command {
        self.command_with(&[], line)
    }

    /// As [`Remote::command`], with further options of ssh.
    pub fn command_with(&self, options: &[&str], line: &str) -> Command {
        let mut command = Command::new(&self.ssh);
        command
            .args(["-o", "BatchMode=yes", "-T"])
            // These options end a connection to a machine that has vanished.
            .args(["-o", "ConnectTimeout=15"])
            .args(["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"])
            .args(options)
            .arg("--")
            .arg(&self.host)
            .arg(line);
        command
    }

    pub fn failed(&self, line: &str, output: &Output) -> HostError {
        HostError::program(format!("ssh {} {line}", self.host), output)
    }

    /// Runs a line on the host. Returns its trimmed standard output of at most [`LONGEST_LINE`] bytes.
    pub fn ask(&self, line: &str) -> Result<String, HostError> {
        self.ask_with(&[], line)
    }

    /// As [`Remote::ask`], with further options of ssh.
    pub fn ask_with(&self, options: &[&str], line: &str) -> Result<String, HostError> {
        let output = self.run(self.command_with(options, line).stdin(Stdio::null()))?;
        if !output.status.success() {
            return Err(self.failed(line, &output));
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Runs a line on the host with `from` as its standard input.
    pub fn send(&self, from: Stdio, line: &str) -> Result<(), HostError> {
        let output = self.run(self.command(line).stdin(from))?;
        if output.status.success() {
            Ok(())
        } else {
            Err(self.failed(line, &output))
        }
    }

    fn run(&self, command: &mut Command) -> Result<Output, HostError> {
        untrusted::output(command, LONGEST_LINE).map_err(HostError::process(
            "run ssh and read what it prints from",
            shown(&self.host),
        ))
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
