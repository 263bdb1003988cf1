// SPDX-License-Identifier: Apache-2.0
//! The sandbox of the running program: another user, no capabilities, no files, TCP ports and other processes
//! (Landlock), and only the system calls that serving ports needs (seccomp).

use crate::{memory, vhost_net};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
use std::path::Path;
use vtax_jail::{Argument, Calls, JailError, drop_capabilities, refused};

/// A part of the sandbox that cannot be entered. The program ends rather than serve without it.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// There is no such user.
    #[error("there is no user {0:?} in /etc/passwd")]
    User(String),
    /// Something that the kernel refused.
    #[error("{0} (--no-sandbox does without, for debugging)")]
    Refused(#[from] JailError),
}

/// Becomes `user`, if one is named, and drops every capability. Must be called while there is one
/// thread.
///
/// # Errors
/// When the user does not exist, or this process may not become it.
pub fn drop_privileges(user: Option<&str>) -> Result<(), SandboxError> {
    if let Some(name) = user {
        let passwd = std::fs::read_to_string("/etc/passwd").map_err(refused("read /etc/passwd"))?;
        let (uid, gid) = find_user(&passwd, name).ok_or_else(|| SandboxError::User(name.into()))?;
        set_thread_groups(&[]).map_err(refused("leave all groups"))?;
        set_thread_gid(gid).map_err(refused("change the group"))?;
        set_thread_uid(uid).map_err(refused("change the user"))?;
    }
    Ok(drop_capabilities()?)
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

/// Restricts the process to open descriptors and the system calls that serving needs. Threads that are started later
/// inherit it.
///
/// `connects` are the sockets that ports connect to as clients; `in_kernel` is whether vhost-net
/// is used.
///
/// # Errors
/// When seccomp cannot be set up. A kernel without Landlock is only logged.
pub fn enter(connects: &[&Path], in_kernel: bool) -> Result<(), SandboxError> {
    if !vtax_jail::restrict_access(&[], &[])? {
        tracing::warn!("this kernel has no Landlock: files are protected by seccomp alone");
    }
    Ok(calls(!connects.is_empty(), in_kernel)?.enforce()?)
}

/// The system calls of workers and the operator's thread, and those that start threads.
fn calls(connects: bool, in_kernel: bool) -> Result<Calls, JailError> {
    let mut calls = Calls::of_a_server()?;
    calls.allow(&[
        // Frames and events.
        libc::SYS_io_uring_enter,
        libc::SYS_io_submit,
        libc::SYS_io_getevents,
        libc::SYS_epoll_pwait2,
        // Front ends.
        libc::SYS_recvmsg,
        libc::SYS_sendmsg,
        libc::SYS_fstatfs,
    ]);
    if in_kernel {
        // A tap's counters.
        calls.allow(&[libc::SYS_pread64]);
    }
    if connects {
        calls.allow(&[libc::SYS_connect]);
        calls.allow_where(libc::SYS_socket, &[Argument::is(0, libc::AF_UNIX)])?;
    }
    // fcntl reads and sets flags only; ioctl sets a tap's offloads and a descriptor's blocking mode, populates missing
    // pages, and makes the requests of vhost-net and its tap.
    for command in [libc::F_GETFL, libc::F_SETFL, libc::F_GETFD, libc::F_SETFD] {
        calls.allow_where(libc::SYS_fcntl, &[Argument::is(1, command)])?;
    }
    let mut requests = vec![libc::TUNSETOFFLOAD, libc::FIONBIO];
    requests.extend(memory::PAGER_REQUESTS.map(|request| request as libc::Ioctl));
    if in_kernel {
        requests.extend([libc::TUNSETVNETHDRSZ, libc::TUNSETQUEUE]);
        requests.extend(vhost_net::REQUESTS.map(|request| request as libc::Ioctl));
    }
    for request in requests {
        #[expect(clippy::cast_possible_truncation, reason = "a request has 32 bits")]
        let request = (request as u32).cast_signed();
        calls.allow_where(libc::SYS_ioctl, &[Argument::is(1, request)])?;
    }
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use super::*;
    use landlock::{
        ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, Scope,
    };
    use rustix::thread::set_no_new_privs;
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

    /// Runs `run` in a thread of its own, because the sandbox applies to the thread.
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
            assert!(vtax_jail::restrict_access(&[], &[]).unwrap());
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
            calls(true, false).unwrap().enforce().unwrap();
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
            assert!(vtax_jail::restrict_access(&[], &[]).unwrap());
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
            calls(false, true).unwrap().enforce().unwrap();
            assert!(rustix::io::pread(&file, &mut [0; 32], 0).unwrap() > 0);
        });
    }
}
