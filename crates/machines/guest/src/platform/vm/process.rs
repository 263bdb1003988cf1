// SPDX-License-Identifier: Apache-2.0
//! A VMM's process in a cell: its start, its errors with their causes, and its end.

use super::agent::Agent;
use crate::image;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};
use tracing::debug;
use vtax_host::HostError;
use vtax_host::untrusted::shown_lines;
use vtax_host::wait::{holds_within, within};

/// The time limit of a boot; emulated boots take 3 to 15 s.
const BOOT_LIMIT: Duration = Duration::from_secs(90);

/// The time limit for a VMM to exit.
pub(in crate::platform) const QUIT_LIMIT: Duration = Duration::from_secs(2);

/// The message of the guest's init when it gives up.
pub(in crate::platform) const INIT_FAILED: &str = "vtax-init: FAILED";

/// A VMM's process. Dropping this value ends it.
pub(in crate::platform) struct Process {
    name: &'static str,
    child: Child,
    /// A pidfd of the VMM where `child` only waits for it, so that no signal reaches another process of the same
    /// number.
    vmm: Option<OwnedFd>,
    messages: PathBuf,
    console: PathBuf,
}

/// Pins each thread to one processor, in turn.
pub(in crate::platform) fn pin_each(threads: &[u32], cpus: &[u32]) -> Result<(), HostError> {
    for (thread, cpu) in threads.iter().zip(cpus.iter().cycle()) {
        let mut set = CpuSet::new();
        let cpu_index = usize::try_from(*cpu).unwrap_or(usize::MAX);
        if cpu_index >= CpuSet::MAX_CPU {
            return Err(HostError::Setting(format!(
                "vm.pin: processor {cpu} is beyond what can be pinned to"
            )));
        }
        set.set(cpu_index);
        let pid = i32::try_from(*thread).ok().and_then(Pid::from_raw);
        sched_setaffinity(pid, &set).map_err(|cause| {
            HostError::Setting(format!(
                "cannot pin vCPU thread {thread} to processor {cpu} (vm.pin): {cause}"
            ))
        })?;
    }
    Ok(())
}

impl Process {
    /// The process of a VMM that errors call `name`. The VMM writes `messages`, its guest writes `console`.
    pub(in crate::platform) fn new(
        name: &'static str,
        child: Child,
        messages: PathBuf,
        console: PathBuf,
    ) -> Self {
        debug!("{name} is started: process {}", child.id());
        Self {
            name,
            child,
            vmm: None,
            messages,
            console,
        }
    }

    /// Opens a descriptor of the VMM where the child only waits for it. On kernels without pidfds (before Linux
    /// 5.3), only the child and the cell are killed.
    pub(in crate::platform) fn hold(&mut self, vmm: u32) {
        let pid = i32::try_from(vmm).ok().and_then(Pid::from_raw);
        self.vmm = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    }

    /// The child's PID.
    pub(in crate::platform) fn child(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the agent's first reply. On a port that loses unread bytes, repeats the request.
    pub(in crate::platform) fn wait_for_agent(
        &mut self,
        agent: &mut Agent,
        port_loses: bool,
    ) -> Result<(), HostError> {
        let deadline = Instant::now() + BOOT_LIMIT;
        // Unread requests fill the line's buffer, which has room for some 250.
        let slice = Duration::from_millis(if port_loses { 500 } else { 100 });
        let mut answered = agent.synchronise(slice);
        loop {
            match answered {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                // The VMM's exit explains a closed port better than the port's error.
                Err(error) => return Err(self.explain(error)),
            }
            if self.check_alive().is_err() {
                // The guest's last output may still be in transit.
                let _ = agent.still_synchronising(slice);
            }
            self.check_alive()?;
            if self.console_tail().contains(INIT_FAILED) {
                return Err(HostError::Program {
                    command: "the guest's init".to_owned(),
                    status: "it gave up".to_owned(),
                    output: self.evidence(),
                });
            }
            if port_loses && self.has_panicked() {
                return Err(self.ended("it does not end by itself".to_owned()));
            }
            if Instant::now() >= deadline {
                return Err(self.timeout("the guest agent's first answer".into(), BOOT_LIMIT));
            }
            answered = if port_loses {
                agent.synchronise(slice)
            } else {
                agent.still_synchronising(slice)
            };
        }
    }

    /// Fails if the VMM has ended.
    pub(in crate::platform) fn check_alive(&mut self) -> Result<(), HostError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.ended(status.to_string())),
            Err(cause) => Err(HostError::process("wait for", self.name)(cause)),
        }
    }

    /// Replaces an error by its cause, if there is one: the VMM's exit or its guest's panic.
    pub(in crate::platform) fn explain(&mut self, error: HostError) -> HostError {
        let soon = Duration::from_millis(500);
        let ended = within(soon, Duration::from_millis(5), || {
            Ok::<_, Infallible>(self.check_alive().err())
        });
        if let Ok(Some(end)) = ended {
            return end;
        }
        if self.has_panicked() {
            return self.ended(error.to_string());
        }
        error
    }

    fn has_panicked(&self) -> bool {
        self.console_tail().contains("Kernel panic")
    }

    fn ended(&self, status: String) -> HostError {
        let what = if self.has_panicked() {
            format!("the guest's kernel panicked; {status}")
        } else {
            status
        };
        HostError::Program {
            command: self.name.to_owned(),
            status: what,
            output: self.evidence(),
        }
    }

    /// The error of a timeout, with the last output.
    pub(in crate::platform) fn timeout(&self, what: String, limit: Duration) -> HostError {
        HostError::Timeout {
            what,
            seconds: limit.as_secs(),
            evidence: self.evidence(),
        }
    }

    /// The end of the guest's console.
    pub(in crate::platform) fn console_tail(&self) -> String {
        console_text(&self.console)
    }

    /// The end of the console, with the reason of a panic before it, and the VMM's messages.
    fn evidence(&self) -> String {
        let console = self.console_tail();
        let lines: Vec<&str> = console
            .lines()
            .map(str::trim_end)
            .filter(|line| !line.is_empty())
            .collect();
        let mut shown: Vec<String> = Vec::new();
        // The reason of a panic is far above the end of its trace.
        let tail = lines.len().saturating_sub(7);
        shown.extend(
            lines
                .iter()
                .take(tail)
                .find(|line| line.contains("Kernel panic"))
                .map(|line| format!("console: {line}")),
        );
        shown.extend(
            lines
                .iter()
                .skip(tail)
                .map(|line| format!("console: {line}")),
        );
        if shown.is_empty() {
            shown.push("console: (nothing)".into());
        }
        let messages = console_text(&self.messages);
        let last = last_lines(&messages, 3).into_iter();
        shown.extend(last.map(|line| format!("{}: {line}", self.name)));
        format!("\n{}", shown.join("\n"))
    }

    /// Waits for the process to end, and reaps it. False if it does not end within `limit`.
    pub(in crate::platform) fn ends_within(&mut self, limit: Duration) -> bool {
        let has_ended = || matches!(self.child.try_wait(), Ok(Some(_)));
        holds_within(limit, Duration::from_millis(2), has_ended)
    }

    /// Kills the process.
    pub(in crate::platform) fn kill(&mut self) {
        if let Some(vmm) = &self.vmm {
            let _ = pidfd_send_signal(vmm, Signal::KILL);
            // In a cell the child waits for the VMM. If it were killed first, the VMM would remain as a zombie.
            if self.ends_within(QUIT_LIMIT) {
                return;
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            self.kill();
        }
        debug!("{} has ended: process {}", self.name, self.child.id());
    }
}

/// The last lines of a text, at most that many, without empty ones.
pub(in crate::platform) fn last_lines(text: &str, most: usize) -> Vec<&str> {
    let lines = text.lines().map(str::trim_end);
    let mut lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    lines.split_off(lines.len().saturating_sub(most))
}

/// The text of a serial console, without the control codes of firmware.
pub(in crate::platform) fn console_text(path: &Path) -> String {
    shown_lines(&image::tail(path).replace('\r', ""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_log_has_the_start_and_the_end_of_a_vmm() {
        let logged = vtax_log::testing::logged(|| {
            let child = Command::new("sleep").arg("60").spawn().unwrap();
            let nowhere = PathBuf::new();
            drop(Process::new("QEMU", child, nowhere.clone(), nowhere));
        });
        let lines: Vec<&str> = logged.lines().collect();
        let of =
            |text: &str| format!("<7>vtax_guest::platform::vm::process: QEMU {text}: process ");
        assert_eq!(lines.len(), 2, "{logged}");
        assert!(lines[0].starts_with(&of("is started")), "{logged}");
        assert!(lines[1].starts_with(&of("has ended")), "{logged}");
    }
}
