//! A floor: a process that sleeps until it is asked. The program is `cat` of a static busybox,
//! the same as in a container.

use super::singly::{Echo, Singly};
use super::work::Work;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The static busybox of this host.
pub(super) fn busybox() -> Result<PathBuf, String> {
    vtax_host::Roots::host()
        .program("busybox")
        .ok_or_else(|| "busybox is missing: install the Debian package busybox-static".to_owned())
}

/// Processes below this one.
#[derive(Debug)]
pub(super) struct Processes {
    busybox: PathBuf,
    work: Option<Work>,
}

impl Processes {
    pub(super) fn new(work: Option<Work>) -> Result<Self, String> {
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

    fn working(&self, work: Work, number: u32) -> io::Result<Guest> {
        let child = Command::new(&self.busybox)
            .args(work.arguments(&self.busybox.display().to_string(), number))
            .stdin(Stdio::null())
            .stdout(work.output().map_err(io::Error::other)?)
            .stderr(Stdio::null())
            // With what it has started it is ended at once.
            .process_group(0)
            .spawn()?;
        Ok((child, None))
    }
}

/// One that works has no line to ask it by.
type Guest = (Child, Option<Echo>);

impl Singly for Processes {
    type Guest = Guest;

    fn start(&mut self, number: u32) -> Result<Guest, String> {
        let started = match self.work {
            Some(work) => self.working(work, number),
            None => self.echoing(),
        };
        started.map_err(|cause| {
            format!(
                "cannot start a process: {cause}; see `ulimit -n`, `ulimit -u` and kernel.pid_max"
            )
        })
    }

    fn await_boot(&mut self, guest: &mut Guest) -> Result<(), String> {
        match guest.1 {
            Some(_) => self.ask(guest).map(drop),
            None => Ok(()),
        }
    }

    fn ask(&mut self, (_, echo): &mut Guest) -> Result<Duration, String> {
        match echo {
            Some(echo) => echo.ask(),
            None => Err("a guest that works is not asked".to_owned()),
        }
    }

    fn end(&mut self, (mut child, echo): Guest, _number: u32) -> Result<(), String> {
        // Its input ends, and `cat` with it.
        if echo.is_none() {
            let group = Pid::from_child(&child);
            let _ = kill_process_group(group, Signal::KILL);
        }
        drop(echo);
        child
            .wait()
            .map(drop)
            .map_err(|cause| format!("cannot wait for a process: {cause}"))
    }
}
