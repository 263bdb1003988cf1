//! The way into a cell: commands that run in its namespaces and control groups.

use super::Space;
use super::cgroup::Group;
use crate::HostError;
use crate::command::{CommandLine, plain};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Joins the control groups named up to `--`, then becomes the command that follows. A process
/// that writes 0 moves itself, whatever its PID is called.
const JOIN: &str =
    r#"while [ "$1" != -- ]; do echo 0 > "$1" || exit 126; shift; done; shift; exec "$@""#;

/// Marks the command lines of all that comes before the command itself.
const MARK: &str = "vtax-join";

/// Whether a process that was started by [`Entry::command`] is past all preparation.
pub fn has_become_the_command(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| {
        !line.is_empty()
            && !line
                .split(|byte| *byte == 0)
                .any(|argument| argument == MARK.as_bytes())
    })
}

/// What is needed to enter a cell.
#[derive(Debug)]
pub struct Entry {
    /// The process that holds its namespaces.
    pub holder: u32,
    /// The control group of the target.
    pub target: Group,
    /// The control group of the client.
    pub client: Group,
}

impl Entry {
    /// The group of a name; everything that is not the client's is the target's.
    pub fn group(&self, name: &str) -> &Group {
        if name == "client" {
            &self.client
        } else {
            &self.target
        }
    }

    /// The network namespace of a space, as a file.
    pub fn network(&self, space: Space) -> PathBuf {
        let holder = self.holder;
        PathBuf::from(match space {
            Space::Switch => format!("/proc/{holder}/ns/net"),
            Space::Client => format!("/proc/{holder}/root/run/netns/client"),
            Space::Target => format!("/proc/{holder}/root/run/netns/target"),
        })
    }

    /// As [`super::Cell::command`].
    pub fn command(&self, space: Space, group: &str, line: &CommandLine) -> Command {
        self.command_in(space, self.group(group), line)
    }

    /// As [`Entry::command`], in a group that was made by [`Group::below`].
    pub fn command_in(&self, space: Space, group: &Group, line: &CommandLine) -> Command {
        let mut command = plain("nsenter");
        command
            .arg(format!("--target={}", self.holder))
            .args(["--mount", "--pid"])
            .arg(format!("--net={}", self.network(space).display()))
            // nsenter waits outside for the command inside; killing one must kill both.
            .args(["--", "setpriv", "--pdeathsig", "KILL", "--"])
            // Inside, so that killing the group spares the waiter, which then reaps the command.
            .args(["sh", "-c", JOIN, MARK])
            .args(group.entrances())
            .arg("--");
        if let Some(pin) = &group.pin_each {
            command.args(["taskset", "-c", &pin.to_string()]);
        }
        command
            .args(line)
            .env("HOME", "/root")
            // Ctrl-C on the terminal is for vtax, which ends the cell in its own order.
            .process_group(0);
        command
    }

    /// A command in a control group of the cell but in the namespaces of this process, for
    /// programs that talk to the host's own daemons. It does not end with the cell.
    pub fn outside_command(&self, group: &Group, line: &CommandLine) -> Command {
        let mut command = plain("sh");
        command
            .args(["-c", JOIN, MARK])
            .args(group.entrances())
            .arg("--");
        if let Some(pin) = &group.pin_each {
            command.args(["taskset", "-c", &pin.to_string()]);
        }
        command.args(line).process_group(0);
        command
    }

    /// Runs shell lines in the cell's mount namespace and a network namespace, outside its
    /// control groups: this is building, not part of what is measured.
    pub fn script(
        &self,
        space: Space,
        what: &str,
        script: &str,
        arguments: &[&Path],
    ) -> Result<String, HostError> {
        let output = plain("nsenter")
            .arg(format!("--target={}", self.holder))
            .args(["--mount", "--pid"])
            .arg(format!("--net={}", self.network(space).display()))
            .args(["--", "sh", "-ec", script, "vtax-setup"])
            .args(arguments)
            .process_group(0)
            .output()
            .map_err(|cause| {
                HostError::Other(format!("cannot run `nsenter` for {what}: {cause}"))
            })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(HostError::Program {
            command: what.to_owned(),
            status: output.status.to_string(),
            output: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }
}
