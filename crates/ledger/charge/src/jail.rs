// SPDX-License-Identifier: Apache-2.0
//! The sandboxes of the exporter's threads. The threads that communicate with clients and servers have no capability,
//! and access to the files that they need (Landlock). The thread that reads the host keeps the capabilities for that,
//! without Landlock, which would hide other processes from it. Each thread has the system calls that it makes, and no
//! others (seccomp).

use std::path::Path;
use vtax_jail::{
    AccessFs, Argument, BitFlags, Calls, CapabilitySet, JailError, drop_capabilities, full_access,
    keep_capabilities, restrict_access,
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

/// The accesses of a thread that reads the host, beyond reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReaderAccess {
    /// To write the queues of pushes.
    pub queues: bool,
    /// To connect to sockets of any user, which guests read their shares from.
    pub shares: bool,
    /// To cut files that are open for writing.
    pub grown: bool,
}

/// Sandboxes the thread that reads the host.
///
/// # Errors
/// When the kernel refuses.
pub fn enter_reader(access: ReaderAccess) -> Result<(), JailError> {
    let ReaderAccess {
        queues,
        shares,
        grown,
    } = access;
    // Namespaces of guests, other users' processes, their directories, BPF maps, performance counters.
    let mut kept = CapabilitySet::SYS_ADMIN
        | CapabilitySet::SYS_PTRACE
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::BPF
        | CapabilitySet::PERFMON;
    if queues || shares {
        kept |= CapabilitySet::DAC_OVERRIDE;
    }
    keep_capabilities(kept)?;
    let mut calls = Calls::of_a_server()?;
    calls.allow(&FILES);
    let writes = (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC).unsigned_abs();
    // Directories are opened by open(2) where the kernel has it.
    #[cfg(target_arch = "x86_64")]
    calls.allow_where(libc::SYS_open, &[Argument::has(1, writes, 0)])?;
    #[cfg(target_arch = "x86_64")]
    calls.allow(&[libc::SYS_readlink, libc::SYS_stat, libc::SYS_lstat]);
    if queues {
        calls.allow(&REMOVES);
        calls.allow(&[
            libc::SYS_openat,
            libc::SYS_ftruncate,
            libc::SYS_fsync,
            libc::SYS_fdatasync,
        ]);
    } else {
        calls.allow_where(libc::SYS_openat, &[Argument::has(2, writes, 0)])?;
    }
    // Loaded maps are read; nothing new is loaded.
    for command in [
        BPF_MAP_LOOKUP_ELEM,
        BPF_MAP_UPDATE_ELEM,
        BPF_MAP_DELETE_ELEM,
        BPF_MAP_GET_NEXT_KEY,
    ] {
        calls.allow_where(libc::SYS_bpf, &[Argument::is(0, command)])?;
    }
    // The C library calls clock_getres(2) to check whether a process has a clock.
    calls.allow(&[libc::SYS_clock_getres]);
    // The cookie of a network namespace is read from inside it.
    calls.allow_where(libc::SYS_setns, &[Argument::is(1, libc::CLONE_NEWNET)])?;
    calls.allow_where(libc::SYS_socket, &[Argument::is(0, libc::AF_UNIX)])?;
    if grown {
        calls.allow(&[libc::SYS_ftruncate]);
    }
    if shares {
        calls.allow(&[libc::SYS_connect]);
    }
    for command in [libc::F_GETFD, libc::F_SETFD, libc::F_DUPFD_CLOEXEC] {
        calls.allow_where(libc::SYS_fcntl, &[Argument::is(1, command)])?;
    }
    // NVML reads meters by ioctl(2).
    calls.allow_where(libc::SYS_ioctl, &[Argument::has(1, 0xFF00, 0x4600)])?;
    calls.enforce()
}

/// Reading files and directories that are open.
const FILES: [libc::c_long; 11] = [
    libc::SYS_pread64,
    libc::SYS_lseek,
    libc::SYS_statx,
    libc::SYS_newfstatat,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_pwrite64,
];

/// Removing files.
#[cfg(target_arch = "x86_64")]
const REMOVES: [libc::c_long; 2] = [libc::SYS_unlinkat, libc::SYS_unlink];
#[cfg(not(target_arch = "x86_64"))]
const REMOVES: [libc::c_long; 1] = [libc::SYS_unlinkat];

// Commands of bpf(2).
const BPF_MAP_LOOKUP_ELEM: i32 = 1;
const BPF_MAP_UPDATE_ELEM: i32 = 2;
const BPF_MAP_DELETE_ELEM: i32 = 3;
const BPF_MAP_GET_NEXT_KEY: i32 = 4;

fn here(folder: &Path) -> &Path {
    if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    }
}
