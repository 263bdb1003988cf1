// SPDX-License-Identifier: Apache-2.0
//! Guests that are processes, a lower bound of the cost of isolation: each sleeps until a probe. The program is `cat`
//! of a static busybox, the same as in a container.

use super::error::{GuestError, Result};
use super::individual::{Echo, GuestDriver};
use super::work::Work;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use vtax_host::HostError;

/// The static busybox of this host.
pub(super) fn busybox() -> Result<PathBuf> {
    vtax_host::Roots::host().program("busybox").ok_or_else(|| {
        GuestError::Host(HostError::Missing {
            what: "busybox".to_owned(),
            remedy: "install the Debian package busybox-static".to_owned(),
        })
    })
}

/// The processes of one supervisor.
#[derive(Debug)]
pub(super) struct Processes {
    busybox: PathBuf,
    work: Option<Work>,
}

impl Processes {
    pub(super) fn new(work: Option<Work>) -> Result<Self> {
        Ok(Self {
            busybox: busybox()?,
            work,
        })
    }
}

impl Processes {
    fn echoing(&self) -> io::Result<Guest> {
        let (echo, theirs) = Echo::pair()?;
        let child = Command::new(&self.busybox)
            .arg("cat")
            .stdin(Stdio::from(theirs.try_clone()?))
            .stdout(Stdio::from(theirs))
            .stderr(Stdio::null())
            .spawn()?;
        Ok((child, Some(echo)))
    }

    fn working(&self, work: Work, output: Stdio, number: u32) -> io::Result<Guest> {
        let child = Command::new(&self.busybox)
            .args(work.arguments(&self.busybox.display().to_string(), number))
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(Stdio::null())
            // A group of its own, so that its children end with it.
            .process_group(0)
            .spawn()?;
        Ok((child, None))
    }
}

/// The process and the connection for probes; a guest with work has none.
type Guest = (Child, Option<Echo>);

impl GuestDriver for Processes {
    type Guest = Guest;

    fn start(&mut self, number: u32) -> Result<Guest> {
        let started = match self.work {
            Some(work) => self.working(work, work.output()?, number),
            None => self.echoing(),
        };
        started.map_err(|cause| GuestError::Start {
            what: "a process".to_owned(),
            cause,
            remedy: "check `ulimit -n`, `ulimit -u` and kernel.pid_max",
        })
    }

    fn await_boot(&mut self, guest: &mut Guest) -> Result<()> {
        match guest.1 {
            Some(_) => self.ask(guest).map(drop),
            None => Ok(()),
        }
    }

    fn ask(&mut self, (_, echo): &mut Guest) -> Result<Duration> {
        match echo {
            Some(echo) => echo.ask(),
            None => Err(GuestError::NotProbed),
        }
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
