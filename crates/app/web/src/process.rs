// SPDX-License-Identifier: Apache-2.0
//! Processes of vtax, identified by process ID and start time: the ID alone may belong to a later process.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::io;

/// A process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its process ID.
    pub id: u32,
    /// Its start, in ticks of the kernel since boot.
    started: u64,
}

impl Process {
    /// The process with a process ID; `None` where it has ended.
    pub fn from_id(id: u32) -> Option<Self> {
        let kernel = vtax_kernel::Process::of_host(id);
        let (is_over, started) = kernel.stat(|stat| Some((stat.is_over(), stat.started()?)))?;
        (!is_over).then_some(Self { id, started })
    }

    /// The same, if its name begins with `vtax`.
    pub fn of_vtax(id: u32) -> Option<Self> {
        let name = vtax_kernel::Process::of_host(id).command_name()?;
        name.starts_with(b"vtax").then(|| Self::from_id(id))?
    }

    /// Whether it still runs.
    pub fn is_alive(self) -> bool {
        Self::from_id(self.id) == Some(self)
    }

    /// Sends SIGINT to the process, so that it ends in order.
    ///
    /// # Errors
    /// When the process has ended, or belongs to another user.
    pub fn interrupt(self) -> io::Result<()> {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let number = i32::try_from(self.id).ok().and_then(Pid::from_raw);
        let file = pidfd_open(number.ok_or_else(gone)?, PidfdFlags::empty())?;
        // A process that is alive after the descriptor was opened is the one that the descriptor refers to.
        if !self.is_alive() {
            return Err(gone());
        }
        Ok(pidfd_send_signal(file, Signal::INT)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    #[test]
    fn a_process_is_known_by_its_start_and_asked_to_end() {
        let own = Process::from_id(std::process::id()).unwrap();
        assert!(own.is_alive());
        let other = Process {
            started: own.started + 1,
            ..own
        };
        assert!(!other.is_alive(), "the number alone is not enough");
        assert!(other.interrupt().is_err());
        // The program that runs the tests in the background may set SIGINT to be ignored for all its children.
        let sleep = ["--default-signal=INT", "sleep", "60"];
        let mut child = Command::new("env").args(sleep).spawn().unwrap();
        let process = Process::from_id(child.id()).unwrap();
        assert_eq!(Process::of_vtax(child.id()), None, "sleep is no vtax");
        let ended = loop {
            // The process may have just ended.
            let _ = process.interrupt();
            std::thread::sleep(std::time::Duration::from_millis(20));
            if let Some(ended) = child.try_wait().unwrap() {
                break ended;
            }
        };
        assert_eq!(ended.signal(), Some(2));
        assert!(!process.is_alive());
    }
}
