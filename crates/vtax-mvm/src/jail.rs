//! What a monitor can still reach once it serves: its guests and clients, no file but its snapshot's, no
//! other process, no network beyond the connections that come to it, nothing by a capability.
//!
//! A guest that broke out of its vCPU, or a client that broke the parser, is in here.

use crate::error::{Error, Result};
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::process::getpid;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Shuts this thread in, and all that it starts. `snapshot` is what it may write, `socket` what it removes
/// at its end.
///
/// # Errors
/// [`Error::System`]: nothing runs without. A kernel without Landlock is only reported.
/// [`Error::Configuration`] for a folder in which this user may write by a capability alone.
pub fn enter(snapshot: Option<&Path>, socket: Option<&Path>) -> Result<()> {
    drop_capabilities()?;
    // Said now, not when the guests are to be saved.
    for path in [snapshot, socket].into_iter().flatten() {
        check_writable(folder(path))?;
    }
    set_no_new_privs(true).map_err(failed("rule out new privileges"))?;
    keep_predictions_apart();
    shut_doors(snapshot, socket)?;
    let filter = filter().map_err(failed("make a seccomp filter"))?;
    seccompiler::apply_filter(&filter).map_err(failed("install a seccomp filter"))
}

fn failed<E: ToString>(tried: &'static str) -> impl Fn(E) -> Error {
    move |cause| Error::System {
        tried: tried.to_owned(),
        cause: io::Error::other(cause.to_string()),
    }
}

/// Has the kernel flush the branch predictor between this process and others: guests of one population have
/// one owner, those of another process may have another. Nobody can take it back.
#[allow(unsafe_code, reason = "a request that no library has")]
pub fn keep_predictions_apart() {
    // SAFETY: the request takes numbers only.
    let result = unsafe {
        libc::prctl(
            libc::PR_SET_SPECULATION_CTRL,
            libc::PR_SPEC_INDIRECT_BRANCH,
            libc::PR_SPEC_FORCE_DISABLE,
            0,
            0,
        )
    };
    if result != 0 {
        let cause = io::Error::last_os_error();
        eprintln!(
            "vtax-mvm: this kernel does not flush branch predictions between processes when asked ({cause}): \
             what others run here can be guessed at, and guesses steered"
        );
    }
}

fn drop_capabilities() -> Result<()> {
    let none = CapabilitySet::empty();
    let sets = CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    set_capabilities(None, sets).map_err(failed("drop capabilities"))
}

fn check_writable(folder: &Path) -> Result<()> {
    use rustix::fs::Access;
    rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK).map_err(|cause| {
        Error::Configuration {
            asked: format!("write in {}", folder.display()),
            problem: format!(
                "{cause}, without capabilities, which the monitor drops; name a folder that its user may write in"
            ),
        }
    })
}

fn shut_doors(snapshot: Option<&Path>, socket: Option<&Path>) -> Result<()> {
    let all = AccessFs::from_all(ABI::V5);
    let mut open: Vec<(&Path, BitFlags<AccessFs>)> = Vec::new();
    open.extend(snapshot.map(|path| (folder(path), all)));
    open.extend(socket.map(|path| (folder(path), AccessFs::RemoveFile.into())));
    let shut = || -> std::result::Result<_, Box<dyn std::error::Error>> {
        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(all)?
            .handle_access(AccessNet::from_all(ABI::V4))?
            .scope(Scope::from_all(ABI::V6))?
            .create()?;
        for (path, access) in open {
            rules = rules.add_rule(PathBeneath::new(PathFd::new(path)?, access))?;
        }
        Ok(rules.restrict_self()?)
    };
    let status = shut().map_err(failed("shut files away with Landlock"))?;
    if status.ruleset == RulesetStatus::NotEnforced {
        eprintln!("vtax-mvm: this kernel has no Landlock: files are not shut away");
    }
    Ok(())
}

fn folder(path: &Path) -> &Path {
    let folder = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// What workers, snapshots and the end of the program call. Anything else fails with EPERM.
fn filter() -> std::result::Result<BpfProgram, BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    let calls = [
        // Clients, events and time.
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_readv,
        libc::SYS_pread64,
        libc::SYS_writev,
        libc::SYS_accept4,
        libc::SYS_recvfrom,
        libc::SYS_sendto,
        libc::SYS_shutdown,
        libc::SYS_getsockopt,
        libc::SYS_setsockopt,
        libc::SYS_getsockname,
        libc::SYS_getpeername,
        libc::SYS_close,
        libc::SYS_eventfd2,
        libc::SYS_epoll_create1,
        libc::SYS_epoll_ctl,
        libc::SYS_epoll_wait,
        libc::SYS_epoll_pwait,
        libc::SYS_poll,
        libc::SYS_ppoll,
        libc::SYS_timer_create,
        libc::SYS_timer_settime,
        libc::SYS_timer_delete,
        libc::SYS_clock_gettime,
        libc::SYS_clock_nanosleep,
        libc::SYS_nanosleep,
        libc::SYS_restart_syscall,
        // Memory.
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_madvise,
        libc::SYS_brk,
        // Files, which Landlock guards.
        libc::SYS_openat,
        libc::SYS_stat,
        libc::SYS_lstat,
        libc::SYS_fstat,
        libc::SYS_newfstatat,
        libc::SYS_statx,
        libc::SYS_lseek,
        libc::SYS_fsync,
        libc::SYS_rename,
        libc::SYS_renameat,
        libc::SYS_renameat2,
        libc::SYS_unlink,
        libc::SYS_unlinkat,
        // Threads and their ends.
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
    ];
    rules.extend(calls.map(|call| (call, Vec::new())));
    let equals = |index, value: i32| {
        let value = u64::from(value.cast_unsigned());
        let is = SeccompCmpOp::Eq;
        rule(index, is, value)
    };
    // Memory is never executable, and a panic ends this process and no other.
    let executable = u64::from(libc::PROT_EXEC.unsigned_abs());
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, vec![rule(2, SeccompCmpOp::MaskedEq(executable), 0)?]);
    }
    rules.insert(libc::SYS_tgkill, vec![equals(0, getpid().as_raw_pid())?]);
    rules.insert(libc::SYS_prctl, vec![equals(0, libc::PR_SET_NAME)?]);
    // Nobody's limits but its own: that of processor time ends a process.
    rules.insert(libc::SYS_prlimit64, vec![equals(0, 0)?]);
    // Flags and copies of descriptors, but no signals about them, which could go to anybody.
    let signals = u64::from(libc::O_ASYNC.unsigned_abs());
    let mut fcntl = [
        libc::F_GETFL,
        libc::F_GETFD,
        libc::F_SETFD,
        libc::F_DUPFD_CLOEXEC,
    ]
    .into_iter()
    .map(|command| equals(1, command))
    .collect::<std::result::Result<Vec<_>, _>>()?;
    fcntl.push(SeccompRule::new(vec![
        condition(1, SeccompCmpOp::Eq, libc::F_SETFL.unsigned_abs().into())?,
        condition(2, SeccompCmpOp::MaskedEq(signals), 0)?,
    ])?);
    rules.insert(libc::SYS_fcntl, fcntl);
    // KVM's own requests (KVMIO), and whether to wait.
    #[expect(clippy::cast_possible_truncation, reason = "a request has 32 bits")]
    let nonblocking = (libc::FIONBIO as u32).cast_signed();
    rules.insert(
        libc::SYS_ioctl,
        vec![
            rule(1, SeccompCmpOp::MaskedEq(0xFF00), 0xAE00)?,
            equals(1, nonblocking)?,
        ],
    );
    SeccompFilter::new(
        rules,
        SeccompAction::Errno(libc::EPERM.unsigned_abs()),
        SeccompAction::Allow,
        std::env::consts::ARCH.try_into()?,
    )?
    .try_into()
}

fn rule(
    argument: u8,
    how: SeccompCmpOp,
    value: u64,
) -> std::result::Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![condition(argument, how, value)?])
}

fn condition(
    argument: u8,
    how: SeccompCmpOp,
    value: u64,
) -> std::result::Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, how, value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::population::Holding;
    use crate::population::memory::Reserve;
    use std::io::ErrorKind;
    use std::os::fd::AsRawFd;

    /// Runs in a thread of its own, for which alone the jail is.
    fn in_a_thread(run: impl FnOnce() + Send + 'static) {
        std::thread::spawn(move || {
            set_no_new_privs(true).unwrap();
            run();
        })
        .join()
        .unwrap();
    }

    #[test]
    fn no_file_is_within_reach_but_the_snapshots_folder() {
        let created = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(ABI::V1))
            .and_then(Ruleset::create);
        if created.is_err() {
            return eprintln!("SKIPPED: this kernel has no Landlock");
        }
        let (own, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(other.path().join("file"), "secret").unwrap();
        in_a_thread(move || {
            let snapshot = own.path().join("snapshot");
            let socket = other.path().join("socket");
            let reserve = Reserve::of_this_host().unwrap();
            shut_doors(Some(&snapshot), Some(&socket)).unwrap();
            std::fs::write(&snapshot, "guests").unwrap();
            reserve.check(0, Holding::Live).unwrap();
            // Not every kernel has it.
            let kernel = Path::new("/proc/kcore");
            assert!(!kernel.exists() || std::fs::File::open(kernel).is_err());
            for result in [
                std::fs::read("/etc/passwd").map(drop),
                std::fs::read("/proc/1/cmdline").map(drop),
                std::fs::read("/proc/self/environ").map(drop),
                std::fs::read("/proc/meminfo").map(drop),
                std::fs::read(other.path().join("file")).map(drop),
                std::fs::write(other.path().join("new"), ""),
                std::fs::write("/proc/sys/kernel/core_pattern", "x"),
                std::fs::read_dir("/").map(drop),
            ] {
                assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied);
            }
        });
    }

    #[test]
    fn a_folder_that_only_a_capability_opens_is_refused_before_a_guest_boots() {
        let folder = tempfile::tempdir().unwrap();
        if std::os::unix::fs::chown(folder.path(), Some(65534), None).is_err() {
            return eprintln!("SKIPPED: only root has capabilities to drop");
        }
        let path = folder.path().to_owned();
        in_a_thread(move || {
            check_writable(&path).unwrap();
            let snapshot = path.join("snapshot");
            let error = enter(Some(&snapshot), None).unwrap_err().to_string();
            let asked = format!("write in {}", path.display());
            assert!(error.starts_with(&asked), "{error}");
        });
    }

    #[test]
    fn no_socket_is_opened_no_program_started_and_no_process_signalled() {
        let sleeper = std::process::Command::new("sleep").arg("100").spawn();
        let mut sleeper = sleeper.unwrap();
        let other = i32::try_from(sleeper.id()).unwrap();
        let (stream, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        in_a_thread(move || {
            seccompiler::apply_filter(&filter().unwrap()).unwrap();
            let refused = |what: &str, result: io::Result<()>| {
                let error = result.unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{what}");
            };
            refused("bind", std::net::TcpListener::bind("127.0.0.1:0").map(drop));
            refused(
                "connect",
                std::net::TcpStream::connect("127.0.0.1:9").map(drop),
            );
            refused(
                "unix",
                std::os::unix::net::UnixStream::connect("/run/x").map(drop),
            );
            refused(
                "start",
                std::process::Command::new("true").status().map(drop),
            );
            let killed = rustix::process::Pid::from_raw(other)
                .map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL));
            refused("kill", killed.unwrap().map_err(io::Error::from));
            let limited = rustix::process::prlimit(
                rustix::process::Pid::from_raw(other),
                rustix::process::Resource::Cpu,
                rustix::process::Rlimit {
                    current: Some(1),
                    maximum: Some(1),
                },
            );
            refused("limit", limited.map(drop).map_err(io::Error::from));
            let control = |command, value: i32| {
                // SAFETY: none of these commands takes a pointer.
                match unsafe { libc::fcntl(stream.as_raw_fd(), command, value) } {
                    -1 => Err(io::Error::last_os_error()),
                    _ => Ok(()),
                }
            };
            refused("own", control(libc::F_SETOWN, other));
            refused("signal input", control(libc::F_SETFL, libc::O_ASYNC));
            control(libc::F_SETFL, libc::O_NONBLOCK).unwrap();
            control(libc::F_GETFL, 0).unwrap();
            stream.try_clone().unwrap();
        });
        assert!(sleeper.try_wait().unwrap().is_none());
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }
}
