// SPDX-License-Identifier: Apache-2.0
//! The sandbox of a monitor that serves, for a guest that breaks out of its vCPU or a client that breaks the parser.
//!
//! It contains the monitor's guests and clients and its snapshot's directory, and no other file, process, network
//! connection or capability.

use crate::error::{Error, Result};
use crate::folder;
use std::io;
use std::path::Path;
use tracing::warn;
use vtax_jail::{AccessFs, Argument, BitFlags, Calls, JailError, drop_capabilities, full_access};

/// Puts this thread, and all threads and processes that it starts, into the sandbox. In it, the thread may write
/// `snapshot` and remove `socket`.
///
/// # Errors
/// [`Error::System`] when the sandbox cannot be entered. A kernel without Landlock is only logged.
/// [`Error::Configuration`] for a directory in which this user may write only by a capability.
pub fn enter(snapshot: Option<&Path>, socket: Option<&Path>) -> Result<()> {
    drop_capabilities().map_err(system)?;
    // Checked here, because the guests are saved much later.
    for path in [snapshot, socket].into_iter().flatten() {
        check_writable(folder(path))?;
    }
    isolate_branch_predictor();
    restrict_files(snapshot, socket)?;
    calls().and_then(Calls::enforce).map_err(system)
}

fn system(error: JailError) -> Error {
    Error::System {
        tried: error.tried.to_owned(),
        cause: io::Error::other(error.cause),
    }
}

/// Makes the kernel flush the branch predictor between this process and others, whose guests may have other owners. It
/// cannot be undone.
#[allow(unsafe_code, reason = "a request that no library has")]
pub fn isolate_branch_predictor() {
    // linux/prctl.h; libc has them for glibc alone.
    const SET_SPECULATION_CTRL: libc::c_int = 53;
    const INDIRECT_BRANCH: libc::c_ulong = 1;
    const FORCE_DISABLE: libc::c_ulong = 1 << 3;
    // SAFETY: the request takes numbers only.
    let result = unsafe { libc::prctl(SET_SPECULATION_CTRL, INDIRECT_BRANCH, FORCE_DISABLE, 0, 0) };
    if result != 0 {
        let cause = io::Error::last_os_error();
        warn!(
            "this kernel does not flush the branch predictor between processes ({cause}): other processes of this host \
             can influence and observe predictions"
        );
    }
}

fn check_writable(folder: &Path) -> Result<()> {
    use rustix::fs::Access;
    rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK).map_err(|cause| {
        let problem = format!(
            "{cause}, without capabilities, which the monitor drops; name a folder that its user may write in"
        );
        Error::configuration(format!("write in {}", folder.display()), problem)
    })
}

fn restrict_files(snapshot: Option<&Path>, socket: Option<&Path>) -> Result<()> {
    let mut files: Vec<(&Path, BitFlags<AccessFs>)> = Vec::new();
    files.extend(snapshot.map(|path| (folder(path), full_access())));
    files.extend(socket.map(|path| (folder(path), AccessFs::RemoveFile.into())));
    if !vtax_jail::restrict_access(&files, &[]).map_err(system)? {
        warn!("this kernel has no Landlock: access to files is not restricted");
    }
    Ok(())
}

/// The system calls of workers, snapshots and the end of the program.
fn calls() -> std::result::Result<Calls, JailError> {
    let mut calls = Calls::of_a_server()?;
    calls.allow(&[
        // Clients, events and time.
        libc::SYS_pread64,
        libc::SYS_getsockname,
        libc::SYS_getpeername,
        libc::SYS_eventfd2,
        libc::SYS_epoll_create1,
        libc::SYS_timer_create,
        libc::SYS_timer_settime,
        libc::SYS_timer_delete,
        libc::SYS_nanosleep,
        // Files, which Landlock restricts.
        libc::SYS_openat,
        libc::SYS_stat,
        libc::SYS_lstat,
        libc::SYS_newfstatat,
        libc::SYS_statx,
        libc::SYS_lseek,
        libc::SYS_fsync,
        libc::SYS_rename,
        libc::SYS_renameat,
        libc::SYS_renameat2,
        libc::SYS_unlink,
        libc::SYS_unlinkat,
    ]);
    // Only its own resource limits, because the limit of processor time can end another process.
    calls.allow_where(libc::SYS_prlimit64, &[Argument::is(0, 0)])?;
    // Flags and copies of descriptors, but no signals about them, which could go to other processes.
    for command in [
        libc::F_GETFL,
        libc::F_GETFD,
        libc::F_SETFD,
        libc::F_DUPFD_CLOEXEC,
    ] {
        calls.allow_where(libc::SYS_fcntl, &[Argument::is(1, command)])?;
    }
    let no_signals = Argument::has(2, libc::O_ASYNC.unsigned_abs(), 0);
    let set_flags = [Argument::is(1, libc::F_SETFL), no_signals];
    calls.allow_where(libc::SYS_fcntl, &set_flags)?;
    // KVM's own requests (KVMIO), and FIONBIO.
    #[expect(clippy::cast_possible_truncation, reason = "a request has 32 bits")]
    let nonblocking = (libc::FIONBIO as u32).cast_signed();
    calls.allow_where(libc::SYS_ioctl, &[Argument::has(1, 0xFF00, 0xAE00)])?;
    calls.allow_where(libc::SYS_ioctl, &[Argument::is(1, nonblocking)])?;
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::population::Holding;
    use crate::population::memory::Reserve;
    use landlock::{ABI, Access, CompatLevel, Compatible, Ruleset, RulesetAttr};
    use rustix::thread::set_no_new_privs;
    use std::io::ErrorKind;
    use std::os::fd::AsRawFd;

    /// Runs in a thread of its own, so that the sandbox covers no other test.
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
            restrict_files(Some(&snapshot), Some(&socket)).unwrap();
            std::fs::write(&snapshot, "guests").unwrap();
            reserve.check(0, Holding::Live).unwrap();
            // Some kernels lack this file.
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
        if !rustix::process::geteuid().is_root() {
            return eprintln!("SKIPPED: only root has capabilities to drop");
        }
        std::os::unix::fs::chown(folder.path(), Some(65534), None).unwrap();
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
            calls().unwrap().enforce().unwrap();
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
