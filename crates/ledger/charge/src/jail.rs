// SPDX-License-Identifier: Apache-2.0
//! The sandbox of the thread that reads the host. It keeps the capabilities for that, without Landlock, which would hide
//! other processes from it, and has the system calls that it makes, and no others (seccomp).

use vtax_jail::{Argument, Calls, CapabilitySet, JailError, keep_capabilities};

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
pub const FILES: [libc::c_long; 11] = [
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
pub const REMOVES: [libc::c_long; 2] = [libc::SYS_unlinkat, libc::SYS_unlink];
#[cfg(not(target_arch = "x86_64"))]
pub const REMOVES: [libc::c_long; 1] = [libc::SYS_unlinkat];

// Commands of bpf(2).
const BPF_MAP_LOOKUP_ELEM: i32 = 1;
const BPF_MAP_UPDATE_ELEM: i32 = 2;
const BPF_MAP_DELETE_ELEM: i32 = 3;
const BPF_MAP_GET_NEXT_KEY: i32 = 4;
