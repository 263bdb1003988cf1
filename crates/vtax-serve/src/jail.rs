//! What the exporter's threads can still do once it runs. Those that speak with clients and servers have no
//! capability, and of files what they need (Landlock); who reads the host keeps what reading takes, for Landlock would
//! hide other processes from it. Each has the system calls that it makes, and no others (seccomp).

use std::path::Path;
use vtax_jail::{
    AccessFs, Argument, BitFlags, Calls, CapabilitySet, JailError, drop_capabilities, full_access,
    keep_capabilities, restrict_access,
};

/// What makes something with the rights of the thread that calls it, and of those that it starts, in one that has
/// fewer.
///
/// # Errors
/// Why the jail cannot be entered; what `make` gives is inside.
pub fn within<T: Send>(
    enter: impl FnOnce() -> Result<(), JailError> + Send,
    make: impl FnOnce() -> T + Send,
) -> Result<T, JailError> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| enter().map(|()| make()));
        thread.join().unwrap_or_else(|_| {
            Err(JailError {
                tried: "shut a thread in",
                cause: "it ended".to_owned(),
            })
        })
    })
}

/// Shuts in a thread that answers clients. At its end it removes `sockets`.
///
/// # Errors
/// When the kernel refuses. A kernel without Landlock shuts no files away, which seccomp does besides.
pub fn of_answers(sockets: &[&Path]) -> Result<(), JailError> {
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

/// Shuts in a thread that pushes from `queue` to a server at `port`.
///
/// # Errors
/// When the kernel refuses.
pub fn of_pushes(queue: &Path, port: u16) -> Result<(), JailError> {
    /// Where it is written how the names of hosts are looked up. The files there are replaced at any time.
    const NAMES: [&str; 2] = ["/etc", "/run"];
    /// By TCP, where an answer is long.
    const DOMAIN: u16 = 53;
    drop_capabilities()?;
    let read: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::ReadDir;
    let names = NAMES.map(Path::new);
    let mut open: Vec<_> = names
        .into_iter()
        .filter(|path| path.exists())
        .map(|path| (path, read))
        .collect();
    open.push((queue, full_access()));
    restrict_access(&open, &[port, DOMAIN])?;
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

/// Shuts in the thread that reads the host. `queues` says that it queues what is pushed, `shares` that it tells guests
/// their share: it may write files then, and connect to sockets of any user.
///
/// # Errors
/// When the kernel refuses.
pub fn of_passes(queues: bool, shares: bool) -> Result<(), JailError> {
    // Namespaces of guests; other users' processes; their folders; what the kernel counts.
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
    // Where the kernel has it, folders are opened so.
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
    // What was loaded is read, and nothing loaded anew.
    for command in [
        BPF_MAP_LOOKUP_ELEM,
        BPF_MAP_UPDATE_ELEM,
        BPF_MAP_DELETE_ELEM,
        BPF_MAP_GET_NEXT_KEY,
    ] {
        calls.allow_where(libc::SYS_bpf, &[Argument::is(0, command)])?;
    }
    // The C library asks it whether there is a process's clock.
    calls.allow(&[libc::SYS_clock_getres]);
    // A namespace's cookie is asked for in it.
    calls.allow_where(libc::SYS_setns, &[Argument::is(1, libc::CLONE_NEWNET)])?;
    calls.allow_where(libc::SYS_socket, &[Argument::is(0, libc::AF_UNIX)])?;
    if shares {
        calls.allow(&[libc::SYS_connect]);
    }
    for command in [libc::F_GETFD, libc::F_SETFD, libc::F_DUPFD_CLOEXEC] {
        calls.allow_where(libc::SYS_fcntl, &[Argument::is(1, command)])?;
    }
    // Nvidia's library reads its meters so.
    calls.allow_where(libc::SYS_ioctl, &[Argument::has(1, 0xFF00, 0x4600)])?;
    calls.enforce()
}

/// What looking at files takes, but opening them.
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
    match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    }
}
