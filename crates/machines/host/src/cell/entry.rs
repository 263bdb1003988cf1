// SPDX-License-Identifier: Apache-2.0
//! The entry into a cell: commands that run in its namespaces and control groups.

use super::cgroup::Group;
use super::link::numbered;
use super::{Space, process};
use crate::HostError;
use crate::command::{CommandLine, plain};
use crate::wait::within;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use vtax_kernel::cgroup::memberships;

/// Joins the control groups listed up to `--`, then executes the command after it. A process that writes 0 moves
/// itself, whatever its PID in the namespace.
const JOIN: &str =
    r#"while [ "$1" != -- ]; do echo 0 > "$1" || exit 126; shift; done; shift; exec "$@""#;

/// Marks the command lines of the wrappers that precede the command itself.
const MARK: &str = "vtax-join";

/// Whether a process that was started by [`Entry::command`] has executed the command itself.
fn has_become_the_command(pid: u32) -> bool {
    let mut line = [0; 4096];
    // One read, so that the bytes are one program's arguments: between two reads the process may execute another
    // program, and the beginning of the earlier line has no mark. The mark is among the first arguments.
    let read = File::open(format!("/proc/{pid}/cmdline")).and_then(|mut file| file.read(&mut line));
    let line = read.ok().and_then(|len| line.get(..len));
    line.is_some_and(|line| {
        !line.is_empty()
            && !line
                .split(|byte| *byte == 0)
                .any(|argument| argument == MARK.as_bytes())
    })
}

/// As [`super::Cell::host_pid`].
///
/// # Errors
/// As [`super::Cell::host_pid`].
pub fn host_pid(spawned: u32, limit: Duration) -> Result<u32, HostError> {
    let late = || HostError::Timeout {
        what: "the start of a command in the cell".to_owned(),
        seconds: limit.as_secs(),
        evidence: format!("its waiter is {} (PID {})", process::name(spawned), spawned),
    };
    let found = within(limit, Duration::from_millis(1), || {
        let inside = process::children(spawned).first().copied();
        match inside.filter(|pid| has_become_the_command(*pid)) {
            None if !process::is_alive(spawned) => Err(late()),
            found => Ok(found),
        }
    })?;
    found.ok_or_else(late)
}

/// The place of a process of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the guest's group of every hierarchy.
    Guest,
    /// In a hierarchy in none of the cell's groups. What it uses there is counted for nobody of the trial.
    Escaped,
}

impl Place {
    /// The place of a process with these groups (`/proc/PID/cgroup`), where the cell `names.0` has groups in `hierarchies`
    /// hierarchies, those of the guest by the name `names.1`. `None` for a process of another part of the cell.
    fn from_groups(
        groups: &[u8],
        hierarchies: usize,
        names: &(OsString, OsString),
    ) -> Option<Self> {
        let (mut in_cell, mut in_guest) = (0, 0);
        for group in memberships(groups) {
            let mut parts = group.path.iter().skip_while(|part| *part != names.0);
            in_cell += usize::from(parts.next().is_some());
            in_guest += usize::from(parts.next() == Some(names.1.as_os_str()));
        }
        match (in_guest >= hierarchies, in_cell < hierarchies) {
            (true, _) => Some(Self::Guest),
            (false, true) => Some(Self::Escaped),
            (false, false) => None,
        }
    }
}

/// The data needed to enter a seat of a cell.
#[derive(Debug)]
pub struct Entry {
    /// The process that holds the cell's namespaces.
    pub holder: u32,
    /// The control group of the guest.
    pub guest: Group,
    /// The control group of its client.
    pub client: Group,
    /// The seat's number.
    pub seat: u8,
}

impl Entry {
    /// The processes of the cell by their numbers in it, with their places: those of the guest's control groups, and those
    /// that are in no group of the cell. Others, such as clients, are left out.
    pub fn processes(&self) -> Vec<(u32, Place)> {
        if self.guest.namespace().is_some() {
            let all = vtax_kernel::numbered(&self.proc()).into_iter();
            // No process leaves it. The first two are its own.
            let others = all.filter(|(pid, _)| *pid > 2);
            return others.map(|(pid, _)| (pid, Place::Guest)).collect();
        }
        let folders = self.guest.folders();
        let Some(place) = folders.first().and_then(|folder| {
            let name = |path: &Path| Some(path.file_name()?.to_owned());
            Some((name(folder.parent()?)?, name(folder)?))
        }) else {
            return Vec::new();
        };
        let proc = self.proc();
        let all = vtax_kernel::numbered(&proc).into_iter();
        // The first process holds the cell, and vtax started it outside of its groups.
        let others = all.map(|(pid, _)| pid).filter(|pid| *pid != 1);
        let placed = others.filter_map(|pid| {
            let groups = vtax_kernel::read(proc.join(pid.to_string()).join("cgroup")).ok()?;
            Some((pid, Place::from_groups(&groups, folders.len(), &place)?))
        });
        placed.collect()
    }

    /// The `/proc` of the guest's processes, as seen from outside.
    pub fn proc(&self) -> PathBuf {
        self.outside(Path::new("/proc"))
    }

    /// The path outside the cell (`/proc/PID/root/…`) of a path in the mount namespace of the guest.
    pub fn outside(&self, inside: &Path) -> PathBuf {
        let below: PathBuf = inside
            .components()
            .filter(|part| matches!(part, std::path::Component::Normal(_)))
            .collect();
        PathBuf::from(format!("/proc/{}/root", self.first())).join(below)
    }

    /// The first process of the namespaces of the guest, by its number outside.
    fn first(&self) -> u32 {
        self.first_of(&self.guest)
    }

    fn first_of(&self, group: &Group) -> u32 {
        let account = group.account();
        account.map_or(self.holder, |account| account.init())
    }

    /// The network namespace of a space, as a file under `/proc`.
    pub fn network(&self, space: Space) -> PathBuf {
        let holder = self.holder;
        let name = match space {
            Space::Switch => return PathBuf::from(format!("/proc/{holder}/ns/net")),
            Space::Outside => return PathBuf::from(format!("/proc/{}/ns/net", std::process::id())),
            Space::Client => numbered("client", self.seat),
            Space::Target => numbered("target", self.seat),
        };
        self.outside(&Path::new("/run/netns").join(name))
    }

    /// The directory of the seat's sockets and files, as a path inside the cell.
    pub fn run_dir(&self) -> PathBuf {
        match self.seat {
            0 => PathBuf::from("/run"),
            seat => PathBuf::from(format!("/run/seat{seat}")),
        }
    }

    /// As [`super::Seat::command`], in a given group of the seat.
    pub fn command_in(&self, space: Space, group: &Group, line: &CommandLine) -> Command {
        let mut command = plain("nsenter");
        command
            .arg(format!("--target={}", self.first_of(group)))
            .args(["--mount", "--pid"])
            .arg(format!("--net={}", self.network(space).display()))
            // nsenter waits outside for the command inside; killing one must kill both.
            .args(["--", "setpriv", "--pdeathsig", "KILL", "--"])
            // Set inside, so that killing the group does not kill the waiter, which reaps the command.
            .args(["sh", "-c", JOIN, MARK])
            .args(group.entrances())
            .arg("--");
        if let Some(pin) = &group.pin_each {
            command.args(["taskset", "-c", &pin.to_string()]);
        }
        command
            .args(line)
            .env("HOME", "/root")
            // Ctrl-C on the terminal goes to vtax alone, which ends the cell in order.
            .process_group(0);
        command
    }

    /// A command in a control group of the cell but in the namespaces of this process, for programs that use the
    /// host's own daemons. It does not end with the cell.
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

    /// Runs shell lines in the cell's mount namespace and a network namespace, outside its control groups, since
    /// set-up work is not measured. A guest that is a PID namespace has a mount namespace of its own. `$SEAT` is the seat's directory there.
    pub fn script(
        &self,
        space: Space,
        what: &str,
        script: &str,
        arguments: &[&Path],
    ) -> Result<String, HostError> {
        let output = plain("nsenter")
            .arg(format!("--target={}", self.first()))
            .args(["--mount", "--pid"])
            .arg(format!("--net={}", self.network(space).display()))
            .args(["--", "sh", "-ec", script, "vtax-setup"])
            .args(arguments)
            .env("SEAT", self.run_dir())
            .process_group(0)
            .output()
            .map_err(HostError::process("start", format!("`nsenter` for {what}")))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(HostError::program(what, &output))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_has_left_the_group_of_one_hierarchy_has_escaped() {
        let names = ("vtax-a-1-0".into(), "target".into());
        let place = |text: &str| Place::from_groups(text.as_bytes(), 2, &names);
        let inside = "9:cpu,cpuacct:/x/vtax-a-1-0/target\n3:name=systemd:/y\n0::/vtax-a-1-0/target/runtime\n";
        assert_eq!(place(inside), Some(Place::Guest));
        let client = "9:cpu,cpuacct:/x/vtax-a-1-0/client\n0::/vtax-a-1-0/client\n";
        assert_eq!(place(client), None);
        for escaped in [
            "9:cpu,cpuacct:/\n0::/vtax-a-1-0/target\n",
            "9:cpu,cpuacct:/x/vtax-a-1-1/target\n0::/\n",
            "",
        ] {
            assert_eq!(place(escaped), Some(Place::Escaped), "{escaped}");
        }
        let between = "9:cpu,cpuacct:/x/vtax-a-1-0/target\n0::/vtax-a-1-0/client\n";
        assert_eq!(place(between), None);
    }
}
