// SPDX-License-Identifier: Apache-2.0
//! The sandboxes of the exporter's threads that communicate with clients and servers. They have no capability, access to
//! the files that they need (Landlock), and the system calls that they make, and no others (seccomp).

use std::path::Path;
use vtax_charge::jail::{FILES, REMOVES};
use vtax_jail::{
    AccessFs, Argument, BitFlags, Calls, JailError, drop_capabilities, full_access, restrict_access,
};

/// Runs `start` on a thread that has entered a sandbox. The threads that `start` spawns inherit it.
///
/// # Errors
/// When the sandbox cannot be entered; the result of `start` is inside.
pub fn spawn_sandboxed<T: Send>(
    enter: impl FnOnce() -> Result<(), JailError> + Send,
    start: impl FnOnce() -> T + Send,
) -> Result<T, JailError> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| enter().map(|()| start()));
        thread.join().unwrap_or_else(|_| {
            Err(JailError {
                tried: "sandbox a thread",
                cause: "it ended".to_owned(),
            })
        })
    })
}

/// Sandboxes a thread that answers clients. At its end it removes `sockets`.
///
/// # Errors
/// When the kernel refuses. Without Landlock in the kernel, seccomp alone denies to open files.
pub fn enter_server(sockets: &[&Path]) -> Result<(), JailError> {
    drop_capabilities()?;
    let folders = sockets.iter().filter_map(|path| path.parent());
    let open: Vec<_> = folders
        .map(|folder| (here(folder), AccessFs::RemoveFile.into()))
        .collect();
    restrict_access(&open, &[])?;
    let mut calls = Calls::of_a_server()?;
    calls.allow_where(libc::SYS_fcntl, &[Argument::is(1, libc::F_GETFD)])?;
    if !sockets.is_empty() {
        calls.allow(&[libc::SYS_statx, libc::SYS_newfstatat]);
        calls.allow(&REMOVES);
    }
    calls.enforce()
}

/// Sandboxes a thread that pushes from `queue` to a server at `port`.
///
/// # Errors
/// When the kernel refuses.
pub fn enter_pusher(queue: &Path, port: u16) -> Result<(), JailError> {
    /// The directories of the resolver's configuration, whose files are replaced at any time.
    const RESOLVER: [&str; 2] = ["/etc", "/run"];
    /// DNS over TCP, for long answers.
    const DNS: u16 = 53;
    drop_capabilities()?;
    let read: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::ReadDir;
    let names = RESOLVER.map(Path::new);
    let mut open: Vec<_> = names
        .into_iter()
        .filter(|path| path.exists())
        .map(|path| (path, read))
        .collect();
    open.push((queue, full_access()));
    restrict_access(&open, &[port, DNS])?;
    let mut calls = Calls::of_a_server()?;
    calls.allow(&FILES);
    calls.allow(&REMOVES);
    calls.allow(&[
        libc::SYS_openat,
        libc::SYS_connect,
        libc::SYS_bind,
        libc::SYS_getsockname,
        libc::SYS_getpeername,
        libc::SYS_recvmsg,
        libc::SYS_sendmsg,
        libc::SYS_sendmmsg,
        libc::SYS_uname,
        libc::SYS_fcntl,
        libc::SYS_ioctl,
        libc::SYS_ftruncate,
        libc::SYS_fsync,
        libc::SYS_fdatasync,
    ]);
    let families = [
        libc::AF_UNIX,
        libc::AF_INET,
        libc::AF_INET6,
        libc::AF_NETLINK,
    ];
    for family in families {
        calls.allow_where(libc::SYS_socket, &[Argument::is(0, family)])?;
    }
    calls.enforce()
}

fn here(folder: &Path) -> &Path {
    if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    }
}
