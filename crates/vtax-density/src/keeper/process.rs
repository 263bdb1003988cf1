//! A floor: a process that sleeps until it is asked. The program is `cat` of a static busybox,
//! the same as in a container.

use super::singly::{Echo, Singly};
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
}

impl Processes {
    pub(super) fn new() -> Result<Self, String> {
        Ok(Self {
            busybox: busybox()?,
        })
    }
}

impl Singly for Processes {
    type Guest = (Child, Echo);

    fn start(&mut self, _number: u32) -> Result<(Child, Echo), String> {
        let start = || {
            let (echo, theirs) = Echo::pair()?;
            let child = Command::new(&self.busybox)
                .arg("cat")
                .stdin(Stdio::from(theirs.try_clone()?))
                .stdout(Stdio::from(theirs))
                .stderr(Stdio::null())
                .spawn()?;
            Ok((child, echo))
        };
        start().map_err(|cause: std::io::Error| {
            format!(
                "cannot start a process: {cause}; see `ulimit -n`, `ulimit -u` and kernel.pid_max"
            )
        })
    }

    fn ask(&mut self, (_, echo): &mut (Child, Echo)) -> Result<Duration, String> {
        echo.ask()
    }

    fn end(&mut self, (mut child, echo): (Child, Echo), _number: u32) -> Result<(), String> {
        // Its input ends, and `cat` with it.
        drop(echo);
        child
            .wait()
            .map(drop)
            .map_err(|cause| format!("cannot wait for a process: {cause}"))
    }
}
