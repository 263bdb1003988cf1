// SPDX-License-Identifier: Apache-2.0
//! The system calls that look at files by path. The execution of a program is none of them: it is a stop of its own.

/// Where a system call has a path: the argument with the directory at which it starts, if it has one, and that with the
/// path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PathArgument {
    pub directory: Option<usize>,
    pub path: usize,
}

/// The calls with a path and no directory, of which newer architectures have none.
#[cfg(target_arch = "x86_64")]
const OLD: &[libc::c_long] = &[
    libc::SYS_access,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_creat,
    libc::SYS_lchown,
    libc::SYS_link,
    libc::SYS_lstat,
    libc::SYS_open,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_rmdir,
    libc::SYS_stat,
    libc::SYS_unlink,
    libc::SYS_utime,
    libc::SYS_utimes,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[libc::c_long] = &[];

/// The calls with a path and no directory that all architectures have.
const PLAIN: &[libc::c_long] = &[
    libc::SYS_chdir,
    libc::SYS_chroot,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_lremovexattr,
    libc::SYS_lsetxattr,
    libc::SYS_removexattr,
    libc::SYS_setxattr,
    libc::SYS_statfs,
    libc::SYS_truncate,
];

/// The calls with a directory and a path.
const WITH_DIRECTORY: &[libc::c_long] = &[
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fchmodat,
    libc::SYS_fchownat,
    libc::SYS_linkat,
    libc::SYS_name_to_handle_at,
    libc::SYS_newfstatat,
    libc::SYS_open_tree,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_readlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_statx,
    libc::SYS_unlinkat,
    libc::SYS_utimensat,
];

/// The numbers of all calls with a path argument.
pub(super) fn numbers() -> impl Iterator<Item = libc::c_long> {
    let all = [OLD, PLAIN, WITH_DIRECTORY, &[libc::SYS_inotify_add_watch]];
    all.into_iter().flatten().copied()
}

/// The path argument of a call; `None` for calls that look at no file by path.
pub(super) fn path_argument(number: i64) -> Option<PathArgument> {
    let (directory, path) = if OLD.contains(&number) || PLAIN.contains(&number) {
        (None, 0)
    } else if number == libc::SYS_inotify_add_watch {
        (None, 1)
    } else if WITH_DIRECTORY.contains(&number) {
        (Some(0), 1)
    } else {
        return None;
    };
    Some(PathArgument { directory, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_that_a_process_stops_at_has_a_path() {
        let mut seen = std::collections::BTreeSet::new();
        for number in numbers() {
            assert!(path_argument(number).is_some(), "{number}");
            assert!(seen.insert(number), "{number} is there twice");
        }
        assert_eq!(path_argument(libc::SYS_read), None);
        assert_eq!(path_argument(libc::SYS_execve), None);
        assert_eq!(path_argument(-1), None);
    }
}
