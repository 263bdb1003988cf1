//! What a program gives up once it serves: capabilities, files, TCP ports and other processes (Landlock), and
//! system calls (seccomp). Threads that are started later inherit it.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

#[cfg(all(feature = "testing", target_arch = "x86_64"))]
pub mod taken_over;

pub use landlock::{AccessFs, BitFlags};
pub use rustix::thread::CapabilitySet;

use landlock::{
    ABI, Access, AccessNet, CompatLevel, Compatible, NetPort, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::process::getpid;
use rustix::thread::{CapabilitySets, capabilities, set_capabilities, set_no_new_privs};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;
use std::path::Path;

/// Why something could not be given up. Then a program ends rather than run with it.
#[derive(Debug, thiserror::Error)]
#[error("cannot {tried}: {cause}")]
pub struct JailError {
    /// What was tried.
    pub tried: &'static str,
    /// Why not.
    pub cause: String,
}

/// An error of what was tried, from its cause.
pub fn refused<E: ToString>(tried: &'static str) -> impl Fn(E) -> JailError {
    move |cause| JailError {
        tried,
        cause: cause.to_string(),
    }
}

/// Drops every capability, and rules out new ones.
///
/// # Errors
/// When the kernel refuses.
pub fn drop_capabilities() -> Result<(), JailError> {
    keep_capabilities(CapabilitySet::empty())
}

/// Drops every capability but those of `kept` that this thread has, and rules out new ones.
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

/// All that can be done with a file or a folder.
pub fn anything() -> BitFlags<AccessFs> {
    AccessFs::from_all(ABI::V5)
}

/// As [`shut_doors_but`], with no TCP port at all.
///
/// # Errors
/// When the kernel refuses, or a path in `open` is not there.
pub fn shut_doors(open: &[(&Path, BitFlags<AccessFs>)]) -> Result<bool, JailError> {
    shut_doors_but(open, &[])
}

/// No file but below `open`, no TCP port but connections to `ports`, no signal to others and no socket of theirs without a path: as much of it as
/// this kernel's Landlock has. Whether it has any.
///
/// # Errors
/// When the kernel refuses, or a path in `open` is not there.
pub fn shut_doors_but(
    open: &[(&Path, BitFlags<AccessFs>)],
    ports: &[u16],
) -> Result<bool, JailError> {
    let shut = || -> Result<_, Box<dyn std::error::Error>> {
        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(anything())?
            .handle_access(AccessNet::from_all(ABI::V4))?
            .scope(Scope::from_all(ABI::V6))?
            .create()?;
        for (path, access) in open {
            rules = rules.add_rule(PathBeneath::new(PathFd::new(path)?, *access))?;
        }
        for port in ports {
            rules = rules.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
        }
        Ok(rules.restrict_self()?)
    };
    let status = shut().map_err(refused("shut files away with Landlock"))?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

/// System calls that are allowed. Any other fails with EPERM: what one client does to a program must not end it
/// for all.
#[derive(Debug)]
pub struct Calls(BTreeMap<i64, Vec<SeccompRule>>);

impl Calls {
    /// What every program of ours calls that serves: connections that come, time, memory that is never executable,
    /// threads, and signals to itself.
    ///
    /// # Errors
    /// When no filter can be made of it.
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
        // Threads and their ends.
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
        // A panic ends this process by a signal, and no other; threads have names.
        let own = getpid().as_raw_pid();
        calls.allow_where(libc::SYS_tgkill, &[Argument::is(0, own)])?;
        calls.allow_where(libc::SYS_prctl, &[Argument::is(0, libc::PR_SET_NAME)])?;
        Ok(calls)
    }

    /// Allows calls with whatever arguments.
    pub fn allow(&mut self, calls: &[libc::c_long]) {
        self.0.extend(calls.iter().map(|call| (*call, Vec::new())));
    }

    /// Allows a call whose arguments are all as told, also where another rule allows others.
    ///
    /// # Errors
    /// When no filter can be made of it.
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

    /// Allows nothing else to this thread and those that it starts.
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

/// What an argument of 32 bits must be.
#[derive(Debug, Clone, Copy)]
pub struct Argument {
    index: u8,
    mask: Option<u32>,
    value: u32,
}

impl Argument {
    /// This.
    pub fn is(index: u8, value: i32) -> Self {
        Self {
            index,
            mask: None,
            value: value.cast_unsigned(),
        }
    }

    /// Anything that is `value` in the bits of `mask`.
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
