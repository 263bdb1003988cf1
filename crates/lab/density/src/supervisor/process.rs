// SPDX-License-Identifier: Apache-2.0
//! Guests that are processes, a lower bound of the cost of isolation: each sleeps until a probe. The program is `cat`
//! of a static busybox, the same as in a container.

use super::error::{GuestError, Result};
use super::individual::{Echo, GuestDriver};
use super::installed;
use super::work::Work;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use vtax_host::{HostError, Roots};

/// The static busybox of this host.
pub(super) fn busybox() -> Result<PathBuf> {
    let remedy = "install the Debian package busybox-static";
    Ok(installed(&Roots::host(), "busybox", remedy)?)
}

/// The processes of one supervisor.
#[derive(Debug)]
pub(super) struct Processes {
    busybox: PathBuf,
    work: Option<Work>,
}

impl Processes {
    pub(super) fn new(work: Option<Work>) -> Result<Self> {
        let busybox = busybox()?;
        Ok(Self { busybox, work })
    }
}

/// The process and the connection for probes; a guest with work has none.
type Guest = (Child, Option<Echo>);

impl GuestDriver for Processes {
    type Guest = Guest;

    fn start(&mut self, number: u32) -> Result<Guest> {
        let failed = |cause: io::Error| GuestError::Start {
            what: "a process".to_owned(),
            cause,
            remedy: "check `ulimit -n`, `ulimit -u` and kernel.pid_max",
        };
        let mut command = Command::new(&self.busybox);
        command.stderr(Stdio::null());
        let echo = if let Some(work) = self.work {
            command
                .args(work.arguments(&self.busybox.display().to_string(), number))
                .stdin(Stdio::null())
                .stdout(work.output()?)
                // A group of its own, so that its children end with it.
                .process_group(0);
            None
        } else {
            let (echo, theirs) = Echo::pair().map_err(failed)?;
            let input = theirs.try_clone().map_err(failed)?;
            command.arg("cat").stdin(input).stdout(theirs);
            Some(echo)
        };
        Ok((command.spawn().map_err(failed)?, echo))
    }

    fn line((_, echo): &mut Guest) -> Option<&mut Echo> {
        echo.as_mut()
    }

    fn end(&mut self, (mut child, echo): Guest, _number: u32) -> Result<()> {
        // The end of its input ends `cat`; a guest with work has to be killed.
        if echo.is_none() {
            let group = Pid::from_child(&child);
            let _ = kill_process_group(group, Signal::KILL);
        }
        drop(echo);
        let ended = child.wait().map(drop);
        Ok(ended.map_err(HostError::process("wait for", "the process of a guest"))?)
    }
}
