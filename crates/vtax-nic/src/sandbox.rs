//! Gives up everything that serving ports does not need: another user, capabilities, files, TCP ports
//! and other processes (Landlock), and system calls (seccomp).

use crate::vhost_net;
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetStatus,
    Scope,
};
use rustix::process::{Gid, Uid, getpid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs, set_thread_gid,
    set_thread_groups, set_thread_uid,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use std::collections::BTreeMap;
use std::path::Path;

/// Why privileges could not be given up. Then the program ends rather than run with them.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// There is no such user.
    #[error("there is no user {0:?} in /etc/passwd")]
    User(String),
    /// Something that the kernel refused.
    #[error("cannot {what}: {cause} (--no-sandbox does without, for debugging)")]
    Refused {
        /// What was tried.
        what: &'static str,
        /// Why not.
        cause: String,
    },
}

fn refused<E: ToString>(what: &'static str) -> impl Fn(E) -> SandboxError {
    move |cause| SandboxError::Refused {
        what,
        cause: cause.to_string(),
    }
}

/// Becomes `user`, if one is named, and drops every capability. Must be called while there is one
/// thread.
///
/// # Errors
/// When the user does not exist, or we may not become it.
pub fn drop_privileges(user: Option<&str>) -> Result<(), SandboxError> {
    if let Some(name) = user {
        let passwd = std::fs::read_to_string("/etc/passwd").map_err(refused("read /etc/passwd"))?;
        let (uid, gid) = find_user(&passwd, name).ok_or_else(|| SandboxError::User(name.into()))?;
        set_thread_groups(&[]).map_err(refused("leave all groups"))?;
        set_thread_gid(gid).map_err(refused("change the group"))?;
        set_thread_uid(uid).map_err(refused("change the user"))?;
    }
    let none = CapabilitySet::empty();
    let sets = CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    set_capabilities(None, sets).map_err(refused("drop capabilities"))?;
    set_no_new_privs(true).map_err(refused("rule out new privileges"))
}

fn find_user(passwd: &str, name: &str) -> Option<(Uid, Gid)> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next()? != name {
            return None;
        }
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some((Uid::from_raw(uid), Gid::from_raw(gid)))
    })
}

/// Leaves no file within reach and no system call but those that serving needs. Threads that are
/// started later inherit it.
///
/// `connects` are the sockets that ports connect to as clients; `in_kernel` tells whether vhost-net
/// is used.
///
/// # Errors
/// When seccomp cannot be set up. A kernel without Landlock is only reported.
pub fn shut(connects: &[&Path], in_kernel: bool) -> Result<(), SandboxError> {
    shut_doors()?;
    let filter =
        filter(!connects.is_empty(), in_kernel).map_err(refused("make a seccomp filter"))?;
    seccompiler::apply_filter(&filter).map_err(refused("install a seccomp filter"))
}

/// No file, no TCP port, no signal to others and no socket of theirs without a path: as much of it as
/// this kernel's Landlock has.
fn shut_doors() -> Result<(), SandboxError> {
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V5))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(ABI::V4)))
        .and_then(|rules| rules.scope(Scope::from_all(ABI::V6)))
        .and_then(Ruleset::create)
        .and_then(landlock::RulesetCreated::restrict_self)
        .map_err(refused("shut files away with Landlock"))?;
    if status.ruleset == RulesetStatus::NotEnforced {
        eprintln!("vtax-nic: this kernel has no Landlock: files are shut away by seccomp alone");
    }
    Ok(())
}

/// What the worker, the operator's thread and the start of more threads call. Anything else fails
/// with EPERM: one port's surprise must not end the process for all.
fn filter(connects: bool, in_kernel: bool) -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    let mut allow = |calls: &[libc::c_long]| {
        rules.extend(calls.iter().map(|call| (*call, Vec::new())));
    };
    // Frames, events and time.
    allow(&[
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_readv,
        libc::SYS_writev,
        libc::SYS_io_uring_enter,
        libc::SYS_io_submit,
        libc::SYS_io_getevents,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
        libc::SYS_epoll_ctl,
        libc::SYS_ppoll,
        libc::SYS_clock_gettime,
        libc::SYS_clock_nanosleep,
        libc::SYS_restart_syscall,
    ]);
    // Front ends and operators.
    allow(&[
        libc::SYS_accept4,
        libc::SYS_recvmsg,
        libc::SYS_recvfrom,
        libc::SYS_sendmsg,
        libc::SYS_sendto,
        libc::SYS_shutdown,
        libc::SYS_getsockopt,
        libc::SYS_setsockopt,
        libc::SYS_close,
        libc::SYS_fstat,
        libc::SYS_fstatfs,
    ]);
    // Memory.
    allow(&[
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_madvise,
        libc::SYS_brk,
    ]);
    // Threads and their ends.
    allow(&[
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
    #[cfg(target_arch = "x86_64")]
    allow(&[libc::SYS_poll, libc::SYS_epoll_wait]);
    if in_kernel {
        // A tap's counters.
        allow(&[libc::SYS_pread64]);
    }
    if connects {
        allow(&[libc::SYS_connect]);
        rules.insert(libc::SYS_socket, vec![argument(0, libc::AF_UNIX)?]);
    }
    // A panic ends this process by a signal, and no other.
    let own = getpid().as_raw_pid();
    rules.insert(libc::SYS_tgkill, vec![argument(0, own)?]);
    // Memory is never executable.
    let executable = |call| -> Result<_, seccompiler::BackendError> {
        let bits = libc::PROT_EXEC.unsigned_abs().into();
        let condition =
            SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(bits), 0)?;
        Ok((call, vec![SeccompRule::new(vec![condition])?]))
    };
    rules.extend([executable(libc::SYS_mmap)?, executable(libc::SYS_mprotect)?]);
    // fcntl takes and gives flags only; prctl names threads only; ioctl sets a tap's offloads only,
    // and what vhost-net and its tap need.
    let fcntl = [libc::F_GETFL, libc::F_SETFL, libc::F_GETFD, libc::F_SETFD]
        .into_iter()
        .map(|command| argument(1, command))
        .collect::<Result<Vec<_>, _>>()?;
    rules.insert(libc::SYS_fcntl, fcntl);
    let mut requests = vec![libc::TUNSETOFFLOAD, libc::FIONBIO];
    if in_kernel {
        requests.extend([libc::TUNSETVNETHDRSZ, libc::TUNSETQUEUE]);
        requests.extend(vhost_net::REQUESTS.map(libc::Ioctl::from));
    }
    let requests = requests.into_iter().map(|request| {
        #[expect(clippy::cast_possible_truncation, reason = "a request has 32 bits")]
        let request = (request as u32).cast_signed();
        argument(1, request)
    });
    rules.insert(libc::SYS_ioctl, requests.collect::<Result<_, _>>()?);
    rules.insert(libc::SYS_prctl, vec![argument(0, libc::PR_SET_NAME)?]);
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Errno(libc::EPERM.unsigned_abs()),
        SeccompAction::Allow,
        std::env::consts::ARCH.try_into()?,
    )?;
    filter.try_into()
}

/// A rule for calls whose argument `index` is `value`.
fn argument(index: u8, value: i32) -> Result<SeccompRule, seccompiler::BackendError> {
    let value = u64::from(value.cast_unsigned());
    let condition = SeccompCondition::new(index, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)?;
    SeccompRule::new(vec![condition])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nnic:x:973:974::/:/bin/false\n";
        let (uid, gid) = find_user(passwd, "nic").unwrap();
        assert_eq!((uid.as_raw(), gid.as_raw()), (973, 974));
        assert!(find_user(passwd, "ni").is_none());
        assert!(find_user(passwd, "0").is_none());
    }

    /// Runs in a thread of its own, for which alone the sandbox is.
    fn in_a_thread<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
        std::thread::spawn(move || {
            set_no_new_privs(true).unwrap();
            run()
        })
        .join()
        .unwrap()
    }

    #[test]
    fn landlock_alone_leaves_no_file_within_reach() {
        let status = Ruleset::default()
            .handle_access(AccessFs::from_all(ABI::V1))
            .and_then(Ruleset::create);
        if status.is_err() {
            eprintln!("SKIPPED: this kernel has no Landlock");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "before").unwrap();
        in_a_thread(move || {
            shut_doors().unwrap();
            for result in [
                std::fs::read("/etc/passwd").map(drop),
                std::fs::read(&path).map(drop),
                std::fs::write(&path, "after"),
                std::fs::read_dir("/").map(drop),
            ] {
                let error = result.unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::EACCES), "{error}");
            }
        });
    }

    #[test]
    fn seccomp_alone_opens_no_file_and_no_network_socket() {
        in_a_thread(|| {
            seccompiler::apply_filter(&filter(true, false).unwrap()).unwrap();
            let opened = std::fs::read("/etc/passwd").unwrap_err();
            assert_eq!(opened.raw_os_error(), Some(libc::EPERM));
            let bound = std::net::TcpListener::bind("127.0.0.1:0").unwrap_err();
            assert_eq!(bound.raw_os_error(), Some(libc::EPERM));
            UnixStream::connect("/nowhere").unwrap_err();
        });
    }

    #[test]
    fn landlock_alone_connects_to_no_tcp_port_and_no_socket_without_a_path() {
        let status = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .scope(Scope::from_all(ABI::V6))
            .and_then(|rules| rules.handle_access(AccessNet::from_all(ABI::V4)))
            .and_then(Ruleset::create);
        if let Err(cause) = status {
            return eprintln!("SKIPPED: this kernel's Landlock knows no networks: {cause}");
        }
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = tcp.local_addr().unwrap();
        let name = format!("vtax-nic {}", std::process::id());
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let _listener = UnixListener::bind_addr(&address).unwrap();
        in_a_thread(move || {
            shut_doors().unwrap();
            for (what, result) in [
                ("connect", std::net::TcpStream::connect(tcp).map(drop)),
                ("bind", std::net::TcpListener::bind("127.0.0.1:0").map(drop)),
                ("abstract", UnixStream::connect_addr(&address).map(drop)),
            ] {
                let kind = result.unwrap_err().kind();
                assert_eq!(kind, std::io::ErrorKind::PermissionDenied, "{what}");
            }
        });
    }

    #[test]
    fn a_taps_counters_can_be_read_where_the_kernel_moves_its_frames() {
        let file = std::fs::File::open("/sys/class/net/lo/statistics/rx_packets").unwrap();
        in_a_thread(move || {
            seccompiler::apply_filter(&filter(false, true).unwrap()).unwrap();
            assert!(rustix::io::pread(&file, &mut [0; 32], 0).unwrap() > 0);
        });
    }

    #[test]
    fn the_filter_can_be_made() {
        filter(false, true).unwrap();
        filter(true, false).unwrap();
    }
}
