// SPDX-License-Identifier: Apache-2.0
//! The sandbox of a program that serves: no capabilities, only the files, TCP ports and processes that it needs
//! (Landlock), and only the system calls that it needs (seccomp). Threads that are started later inherit it.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

#[cfg(all(feature = "testing", target_arch = "x86_64"))]
pub mod taken_over;

mod one_owner;

pub use landlock::{AccessFs, BitFlags};
pub use one_owner::OneOwner;
pub use rustix::thread::CapabilitySet;

use landlock::{
    ABI, Access, AccessNet, CompatLevel, Compatible, NetPort, PathBeneath, PathFd, PathFdError,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use rustix::process::getpid;
use rustix::thread::{CapabilitySets, capabilities, set_capabilities, set_no_new_privs};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;
use std::path::Path;

/// A part of the sandbox that cannot be entered. A program ends rather than serve without it.
#[derive(Debug, thiserror::Error)]
#[error("cannot {tried}: {cause}")]
pub struct JailError {
    /// The failed operation.
    pub tried: &'static str,
    /// The reason.
    pub cause: String,
}

/// Returns a function that creates the error of the operation `tried` from its cause.
pub fn refused<E: ToString>(tried: &'static str) -> impl Fn(E) -> JailError {
    move |cause| JailError {
        tried,
        cause: cause.to_string(),
    }
}

/// Drops every capability and prevents new ones.
///
/// # Errors
/// When the kernel refuses.
pub fn drop_capabilities() -> Result<(), JailError> {
    keep_capabilities(CapabilitySet::empty())
}

/// Drops every capability except those of `kept` that this thread has, and prevents new ones.
///
/// # Errors
/// When the kernel refuses.
pub fn keep_capabilities(kept: CapabilitySet) -> Result<(), JailError> {
    let held = capabilities(None).map_err(refused("read capabilities"))?;
    let sets = CapabilitySets {
        effective: held.permitted & kept,
        permitted: held.permitted & kept,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets).map_err(refused("drop capabilities"))?;
    set_no_new_privs(true).map_err(refused("rule out new privileges"))
}

/// Every access to a file or a directory.
pub fn full_access() -> BitFlags<AccessFs> {
    AccessFs::from_all(ABI::V5)
}

/// Restricts this thread with Landlock: to the given accesses to `files` and everything below them, and to TCP
/// connections to `ports`. It can signal no other process and connect to no abstract UNIX socket of another process. An
/// old kernel enforces only a part of these limits. Returns whether the kernel has Landlock at all.
///
/// # Errors
/// When the kernel refuses, or one of `files` does not exist.
pub fn restrict_access(
    files: &[(&Path, BitFlags<AccessFs>)],
    ports: &[u16],
) -> Result<bool, JailError> {
    let files = files
        .iter()
        .map(|(path, access)| Ok(PathBeneath::new(PathFd::new(path)?, *access)))
        .collect::<Result<Vec<_>, PathFdError>>()
        .map_err(refused("open a file for Landlock"))?;
    let restrict = || -> Result<_, RulesetError> {
        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(full_access())?
            .handle_access(AccessNet::from_all(ABI::V4))?
            .scope(Scope::from_all(ABI::V6))?
            .create()?;
        for file in files {
            rules = rules.add_rule(file)?;
        }
        for port in ports {
            rules = rules.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
        }
        rules.restrict_self()
    };
    let status = restrict().map_err(refused("restrict access to files with Landlock"))?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

/// The allowed system calls. Any other call fails with EPERM. It does not end the program, because other clients use
/// the program too.
#[derive(Debug)]
pub struct Calls(BTreeMap<i64, Vec<SeccompRule>>);

impl Calls {
    /// The system calls of every server: accepted connections, time, memory that is never executable, threads, and
    /// signals to itself.
    ///
    /// # Errors
    /// When no filter can be built from these calls.
    pub fn of_a_server() -> Result<Self, JailError> {
        let mut calls = Self(BTreeMap::new());
        // Clients, events and time.
        calls.allow(&[
            libc::SYS_read,
            libc::SYS_write,
            libc::SYS_readv,
            libc::SYS_writev,
            libc::SYS_accept4,
            libc::SYS_recvfrom,
            libc::SYS_sendto,
            libc::SYS_shutdown,
            libc::SYS_getsockopt,
            libc::SYS_setsockopt,
            libc::SYS_close,
            libc::SYS_fstat,
            libc::SYS_epoll_ctl,
            libc::SYS_epoll_pwait,
            libc::SYS_ppoll,
            libc::SYS_clock_gettime,
            libc::SYS_clock_nanosleep,
            libc::SYS_restart_syscall,
        ]);
        #[cfg(target_arch = "x86_64")]
        calls.allow(&[libc::SYS_poll, libc::SYS_epoll_wait]);
        // Memory.
        calls.allow(&[
            libc::SYS_munmap,
            libc::SYS_mremap,
            libc::SYS_madvise,
            libc::SYS_brk,
        ]);
        // musl makes threads by clone(2), and so does glibc where a filter above this one (systemd's RestrictNamespaces=,
        // those of container engines) answers clone3(2) with ENOSYS. Other uses of clone(2) make processes.
        let thread = libc::CLONE_THREAD.unsigned_abs();
        calls.allow_where(libc::SYS_clone, &[Argument::has(0, thread, thread)])?;
        // The creation and the end of threads.
        calls.allow(&[
            libc::SYS_clone3,
            libc::SYS_set_robust_list,
            libc::SYS_rseq,
            libc::SYS_futex,
            libc::SYS_sched_getaffinity,
            libc::SYS_sched_yield,
            libc::SYS_sigaltstack,
            libc::SYS_rt_sigaction,
            libc::SYS_rt_sigprocmask,
            libc::SYS_rt_sigreturn,
            libc::SYS_gettid,
            libc::SYS_getpid,
            libc::SYS_getrandom,
            libc::SYS_exit,
            libc::SYS_exit_group,
        ]);
        let executable = libc::PROT_EXEC.unsigned_abs();
        for call in [libc::SYS_mmap, libc::SYS_mprotect] {
            calls.allow_where(call, &[Argument::has(2, executable, 0)])?;
        }
        // A panic ends this process by a signal to itself; threads have names.
        let own = getpid().as_raw_pid();
        calls.allow_where(libc::SYS_tgkill, &[Argument::is(0, own)])?;
        calls.allow_where(libc::SYS_prctl, &[Argument::is(0, libc::PR_SET_NAME)])?;
        Ok(calls)
    }

    /// Allows calls with any arguments.
    pub fn allow(&mut self, calls: &[libc::c_long]) {
        self.0.extend(calls.iter().map(|call| (*call, Vec::new())));
    }

    /// Allows a call whose arguments match all of `arguments`. Several rules for one call are alternatives.
    ///
    /// # Errors
    /// When no filter can be built from these calls.
    pub fn allow_where(
        &mut self,
        call: libc::c_long,
        arguments: &[Argument],
    ) -> Result<(), JailError> {
        let conditions = arguments.iter().map(Argument::condition);
        let rule = conditions
            .collect::<Result<Vec<_>, _>>()
            .and_then(SeccompRule::new)
            .map_err(refused("make a seccomp filter"))?;
        self.0.entry(call).or_default().push(rule);
        Ok(())
    }

    /// Restricts this thread, and the threads that it starts later, to these calls.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn enforce(self) -> Result<(), JailError> {
        let make = || -> Result<BpfProgram, BackendError> {
            SeccompFilter::new(
                self.0,
                SeccompAction::Errno(libc::EPERM.unsigned_abs()),
                SeccompAction::Allow,
                std::env::consts::ARCH.try_into()?,
            )?
            .try_into()
        };
        let filter = make().map_err(refused("make a seccomp filter"))?;
        seccompiler::apply_filter(&filter).map_err(refused("install a seccomp filter"))
    }
}

/// A condition on an argument of 32 bits.
#[derive(Debug, Clone, Copy)]
pub struct Argument {
    index: u8,
    mask: Option<u32>,
    value: u32,
}

impl Argument {
    /// The argument is `value`.
    pub fn is(index: u8, value: i32) -> Self {
        Self {
            index,
            mask: None,
            value: value.cast_unsigned(),
        }
    }

    /// The bits of `mask` are `value`; others may be anything.
    pub fn has(index: u8, mask: u32, value: u32) -> Self {
        Self {
            index,
            mask: Some(mask),
            value,
        }
    }

    fn condition(&self) -> Result<SeccompCondition, BackendError> {
        let how = match self.mask {
            Some(mask) => SeccompCmpOp::MaskedEq(mask.into()),
            None => SeccompCmpOp::Eq,
        };
        let value = self.value.into();
        SeccompCondition::new(self.index, SeccompCmpArgLen::Dword, how, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// systemd's RestrictNamespaces= and the filters of container engines answer clone3(2) with ENOSYS; libc then calls
    /// clone(2). Each filter is of the thread that installs it.
    #[test]
    fn a_server_creates_threads_also_where_clone3_is_missing() {
        let confined = std::thread::spawn(|| {
            set_no_new_privs(true).unwrap();
            let missing = SeccompFilter::new(
                BTreeMap::from([(libc::SYS_clone3, Vec::new())]),
                SeccompAction::Allow,
                SeccompAction::Errno(libc::ENOSYS.unsigned_abs()),
                std::env::consts::ARCH.try_into().unwrap(),
            );
            let missing: BpfProgram = missing.unwrap().try_into().unwrap();
            seccompiler::apply_filter(&missing).unwrap();
            Calls::of_a_server().unwrap().enforce().unwrap();
            let thread = std::thread::Builder::new().spawn(|| 7);
            let answer = thread.map(|thread| thread.join().unwrap());
            // SAFETY: the call has no arguments in memory; it makes no process where the filter holds.
            let process = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
            if process == 0 {
                // SAFETY: ends the process that the filter should have prevented.
                unsafe { libc::_exit(0) };
            }
            (answer.map_err(|error| error.to_string()), process)
        });
        assert_eq!(confined.join().unwrap(), (Ok(7), -1));
    }
}
