// SPDX-License-Identifier: Apache-2.0
//! A PID namespace in a cell as the group of a guest or client, where this process may create no control groups. With it
//! goes a mount namespace, whose `/proc` shows the processes by their own numbers.

use super::process;
use crate::HostError;
use crate::command::plain;
use rustix::process::{Pid, Signal, kill_process};
use std::io::Read;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use vtax_observe::NamespaceAccount;

/// The first process: reaps orphans while it waits for the second, which prints a line and then reads until the cell ends.
/// Control groups of version 1 that nobody here may write are hidden, because runtimes of containers fail at them. Those of
/// version 2 stay: without a mount of them runc fails.
const INIT: &str = r#"(
[ "$(stat --file-system --format %T /sys/fs/cgroup)" = cgroup2fs ] || mount -t tmpfs none /sys/fs/cgroup
echo ready
exec cat >/dev/null 2>&1
)
exit 0"#;

/// The namespace. It ends with its last clone, or with the cell.
#[derive(Debug, Clone)]
pub struct Namespace {
    account: Arc<NamespaceAccount>,
    _init: Arc<Init>,
}

/// The process that waits outside for the first process of a namespace.
#[derive(Debug)]
struct Init(Child);

impl Drop for Init {
    fn drop(&mut self) {
        // Its input ends, and with it the first process.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

impl Namespace {
    /// Starts the first process of a namespace in the cell of `holder`.
    ///
    /// # Errors
    /// When the namespace cannot be created.
    pub fn start(holder: u32) -> Result<Self, HostError> {
        let what = "the first process of a guest's PID namespace";
        let mut waiter = plain("nsenter")
            .arg(format!("--target={holder}"))
            .args(["--mount", "--pid", "--"])
            .args(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["--", "sh", "-c", INIT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(HostError::process("start", what))?;
        let mut ready = [0];
        let begun = waiter
            .stdout
            .take()
            .is_some_and(|mut output| output.read_exact(&mut ready).is_ok());
        let child = |pid: u32| process::children(pid).first().copied();
        let init = child(waiter.id()).and_then(child);
        match init {
            Some(init) if begun => Ok(Self {
                account: Arc::new(NamespaceAccount::new(init)),
                _init: Arc::new(Init(waiter)),
            }),
            _ => {
                let _ = waiter.kill();
                let output = waiter.wait_with_output();
                Err(
                    output.map_or_else(HostError::process("wait for", what), |output| {
                        HostError::program(what, &output)
                    }),
                )
            }
        }
    }

    /// The account of its processes.
    pub fn account(&self) -> &Arc<NamespaceAccount> {
        &self.account
    }

    /// Kills its processes once. Returns those that live.
    pub(super) fn kill(&self) -> Vec<u32> {
        let all = self.account.processes(Path::new("/proc")).into_iter();
        let living = all.filter(|pid| process::is_alive(*pid));
        living
            .inspect(|pid| {
                let number = i32::try_from(*pid).ok().and_then(Pid::from_raw);
                // It may have ended in between.
                let _ = number.map(|pid| kill_process(pid, Signal::KILL));
            })
            .collect()
    }
}
