// SPDX-License-Identifier: Apache-2.0
//! The process that waits outside for a command in a cell, with the time that the command's processes used.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use vtax_core::Nanoseconds;
use vtax_kernel::{CpuSplit, Process};
use vtax_observe::NamespaceAccount;
use vtax_observe::counters::{cpu_time_of, process_clock};

/// A child process. Its time goes into an account when it is reaped.
#[derive(Debug)]
pub struct Waiter {
    child: Child,
    account: Option<Arc<NamespaceAccount>>,
    ended: Option<ExitStatus>,
}

impl Waiter {
    /// The waiter of a command, whose time belongs to `account`.
    pub fn of(child: Child, account: Option<Arc<NamespaceAccount>>) -> Self {
        if let Some(account) = &account {
            account.enter(child.id());
        }
        Self {
            child,
            account,
            ended: None,
        }
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The CPU time of the processes that it has waited for, once it has ended; `None` inside while it runs, and outside
    /// where it has been reaped.
    pub fn children_time(&self) -> Option<Option<Nanoseconds>> {
        let process = Process::of_host(self.id());
        process.stat(|stat| {
            Some(
                stat.is_over()
                    .then(|| stat.cpu_time_of_children().unwrap_or_default()),
            )
        })
    }

    /// As [`Child::try_wait`].
    ///
    /// # Errors
    /// As [`Child::try_wait`].
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.reap(libc::WNOHANG)
    }

    /// As [`Child::wait`].
    ///
    /// # Errors
    /// As [`Child::wait`].
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.reap(0)? {
                return Ok(status);
            }
        }
    }

    /// As [`Child::kill`].
    ///
    /// # Errors
    /// As [`Child::kill`].
    pub fn kill(&mut self) -> io::Result<()> {
        if self.ended.is_some() {
            return Ok(());
        }
        self.child.kill()
    }

    fn reap(&mut self, flags: i32) -> io::Result<Option<ExitStatus>> {
        if self.ended.is_some() {
            return Ok(self.ended);
        }
        let Some(account) = self.account.clone() else {
            return if flags == 0 {
                self.child.wait().map(Some)
            } else {
                self.child.try_wait()
            };
        };
        if flags == 0 {
            // The account must not be held while the command runs.
            wait_for_end(self.id())?;
        }
        let pid = self.id();
        let reaped = account.leave(pid, || match wait4(pid) {
            Ok(Some((status, time))) => (Ok(Some(status)), Some(time)),
            Ok(None) => (Ok(None), None),
            Err(cause) => (Err(cause), None),
        })?;
        self.ended = reaped;
        Ok(reaped)
    }
}

/// Waits until a child has ended, and does not reap it.
fn wait_for_end(pid: u32) -> io::Result<()> {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    rustix::io::retry_on_intr(|| waitid(WaitId::Pid(pid), options))?;
    Ok(())
}

/// Reaps a child that has ended. Returns its status, and the time of the processes that it has waited for: its own is
/// that of a program of vtax.
fn wait4(pid: u32) -> io::Result<Option<(ExitStatus, CpuSplit)>> {
    let own = process_clock(pid)().unwrap_or(0);
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    let mut status = 0;
    // SAFETY: rusage is plain integers, for which all bits zero are a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both are live and writable; the call stores into nothing else.
    match unsafe { libc::wait4(pid, &raw mut status, libc::WNOHANG, &raw mut usage) } {
        0 => return Ok(None),
        found if found == pid => {}
        _ => return Err(io::Error::last_os_error()),
    }
    let mut time = cpu_time_of(&usage);
    // A program that enters a namespace works in the kernel.
    let of_kernel = own.min(time.system.0);
    time.system.0 -= of_kernel;
    time.user.0 = time.user.0.saturating_sub(own - of_kernel);
    Ok(Some((ExitStatus::from_raw(status), time)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_status_comes_back_once_and_again_and_the_time_is_in_the_account() {
        let account = Arc::new(NamespaceAccount::new(std::process::id()));
        let script = "sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; exit 7";
        let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let mut waiter = Waiter::of(child, Some(Arc::clone(&account)));
        assert_eq!(waiter.wait().unwrap().code(), Some(7));
        assert_eq!(waiter.try_wait().unwrap().unwrap().code(), Some(7));
        waiter.kill().unwrap();
        assert!(
            account.ended().total() > Nanoseconds(10_000_000),
            "{account:?}"
        );
    }

    #[test]
    fn a_child_without_an_account_is_one_of_std() {
        let child = Command::new("sh").args(["-c", "exit 3"]).spawn().unwrap();
        let mut waiter = Waiter::of(child, None);
        assert_eq!(waiter.wait().unwrap().code(), Some(3));
    }
}
