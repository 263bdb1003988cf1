// SPDX-License-Identifier: Apache-2.0
//! The system calls that look at files by path.

/// Where a system call has a path: the argument with the directory at which it starts, if it has one, and that with the
/// path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PathArgument {
    pub directory: Option<usize>,
    pub path: usize,
}

/// The calls with a path and no directory.
#[cfg(target_arch = "x86_64")]
const PLAIN: &[libc::c_long] = &[
    libc::SYS_access,
    libc::SYS_chdir,
    libc::SYS_chmod,
    libc::SYS_execve,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_link,
    libc::SYS_lstat,
    libc::SYS_open,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_stat,
    libc::SYS_statfs,
    libc::SYS_truncate,
];
/// Architectures that are newer have those with a directory alone.
#[cfg(not(target_arch = "x86_64"))]
const PLAIN: &[libc::c_long] = &[
    libc::SYS_chdir,
    libc::SYS_execve,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_statfs,
    libc::SYS_truncate,
];

/// The calls with a directory and a path.
const WITH_DIRECTORY: &[libc::c_long] = &[
    libc::SYS_execveat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fchmodat,
    libc::SYS_linkat,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_readlinkat,
    libc::SYS_renameat2,
    libc::SYS_statx,
];

/// The path argument of a call; `None` for calls that look at no file by path.
pub(super) fn path_argument(number: i64) -> Option<PathArgument> {
    if PLAIN.contains(&number) {
        Some(PathArgument {
            directory: None,
            path: 0,
        })
    } else if WITH_DIRECTORY.contains(&number) {
        Some(PathArgument {
            directory: Some(0),
            path: 1,
        })
    } else {
        None
    }
}
