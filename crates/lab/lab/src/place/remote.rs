// SPDX-License-Identifier: Apache-2.0
//! Commands on another host through ssh.

use std::ffi::OsString;
use std::io::{Seek, Write};
use std::process::{Command, Output, Stdio};
use vtax_host::HostError;
use vtax_host::command::quoted;
use vtax_host::untrusted::{self, LONGEST_LINE, shown};

/// The line before the output of a script.
const MARK: &str = "vtax: the output of the script";

/// A text as standard input.
fn text_file(text: &str) -> Result<Stdio, HostError> {
    let mut file = tempfile::tempfile().map_err(HostError::file("create", "a temporary file"))?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.rewind())
        .map_err(HostError::file("write", "a temporary file"))?;
    Ok(file.into())
}

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
    /// Returns the ssh command that runs one line of sh on the host, whatever the login shell is there.
    pub fn command(&self, line: &str) -> Command {
        self.connect(&format!("exec sh -c {}", quoted(line)))
    }

    fn connect(&self, line: &str) -> Command {
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

    /// Runs a script of sh on the host. Returns its trimmed standard output of at most [`LONGEST_LINE`] bytes. The script is
    /// the standard input of a shell there: other login shells take no lines in quotes, and print texts of their own first.
    pub fn ask(&self, script: &str) -> Result<String, HostError> {
        let input = text_file(&format!("echo '{MARK}'\n{script}\n"))?;
        let output = self.run(&mut self.connect("exec sh -s"), script, input)?;
        let printed = String::from_utf8_lossy(&output.stdout);
        let mut lines = printed.split_inclusive('\n');
        if lines.by_ref().any(|line| line.trim_end() == MARK) {
            return Ok(lines.collect::<String>().trim().to_owned());
        }
        let said = printed.lines().next().unwrap_or("nothing");
        Err(HostError::Protocol {
            peer: self.host.clone(),
            detail: format!(
                "its login shell did not run sh and printed `{}`: `ssh {} exec sh -s` must run a shell",
                shown(said),
                shown(&self.host)
            ),
        })
    }

    /// Runs a line on the host with `from` as its standard input.
    pub fn send(&self, from: Stdio, line: &str) -> Result<(), HostError> {
        self.run(&mut self.command(line), line, from).map(drop)
    }

    fn run(&self, ssh: &mut Command, script: &str, input: Stdio) -> Result<Output, HostError> {
        let output = untrusted::output(ssh.stdin(input), LONGEST_LINE).map_err(
            HostError::process("run ssh and read what it prints from", shown(&self.host)),
        )?;
        if output.status.success() {
            return Ok(output);
        }
        let line = script.lines().next().unwrap_or_default();
        let more = if script.lines().nth(1).is_some() {
            " …"
        } else {
            ""
        };
        let command = format!("ssh {} {line}{more}", self.host);
        Err(HostError::program(command, &output))
    }

    /// As [`Remote::send`], with a text as standard input.
    pub fn send_text(&self, text: &str, line: &str) -> Result<(), HostError> {
        self.send(text_file(text)?, line)
    }
}
