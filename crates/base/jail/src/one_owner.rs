// SPDX-License-Identifier: Apache-2.0
//! Programs that install files of several owners, in a user namespace with one.

use crate::{JailError, refused};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};
use std::env::consts::ARCH;
use std::io;

/// The system calls that change owners of files, or users and rights of a process.
const CALLS: &[libc::c_long] = &[
    libc::SYS_capset,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    libc::SYS_setfsgid,
    libc::SYS_setfsuid,
    libc::SYS_setgid,
    libc::SYS_setgroups,
    libc::SYS_setregid,
    libc::SYS_setresgid,
    libc::SYS_setresuid,
    libc::SYS_setreuid,
    libc::SYS_setuid,
];

/// A filter under which system calls that change owners and users succeed without effect. In a user namespace with one
/// user they would fail, and with them installers of packages (Charliecloud, `ch-image --force=seccomp`).
#[derive(Debug, Clone)]
pub struct OneOwner(BpfProgram);

impl OneOwner {
    /// The filter of this architecture.
    ///
    /// # Errors
    /// When it cannot be built.
    pub fn new() -> Result<Self, JailError> {
        let wrong = refused("build the filter of system calls that change owners");
        let calls = CALLS.iter().map(|call| (*call, Vec::new())).collect();
        let architecture = ARCH.try_into().map_err(&wrong)?;
        // An error of 0 is success.
        let succeeds = SeccompAction::Errno(0);
        let filter = SeccompFilter::new(calls, SeccompAction::Allow, succeeds, architecture);
        let program = filter.and_then(TryInto::try_into).map_err(wrong)?;
        Ok(Self(program))
    }

    /// Applies it to this thread and what it starts. It allocates nothing, so that a child can call it before it executes a
    /// program.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn apply(&self) -> io::Result<()> {
        apply_filter(&self.0).map_err(|_| io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_and_users_change_without_effect() {
        // The filter stays with its thread.
        let applied = std::thread::spawn(|| {
            let change = || std::os::unix::fs::chown("/no/such/file", Some(7), Some(7));
            assert!(change().is_err());
            OneOwner::new().unwrap().apply().unwrap();
            change().unwrap();
            assert!(std::fs::metadata("/no/such/file").is_err());
        });
        applied.join().unwrap();
    }
}
