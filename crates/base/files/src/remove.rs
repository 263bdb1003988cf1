// SPDX-License-Identifier: Apache-2.0
//! Removal of a directory tree of any depth with three descriptors: trees can come from untrusted images and archives.

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, openat, statat, unlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// The device and inode of a directory, by which it is recognized.
type Identity = (u64, u64);

/// Removes a file, a link, or a directory with its content. A missing one is not an error. No link is followed, and no
/// other file system is entered.
pub(crate) fn remove(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(cause) => return Err(cause.into()),
    }
    let mut current = openat(parent, name, DIRECTORY, Mode::empty())?;
    let device = identity(&current)?.0;
    // The names of the directories from the second one down to the current one, each with the identity of its parent.
    let mut above: Vec<(OsString, Identity)> = Vec::new();
    loop {
        if let Some(below) = first_full_directory(&current)? {
            let parent = identity(&current)?;
            let next = openat(&current, &below, DIRECTORY, Mode::empty())?;
            if identity(&next)?.0 != device {
                return Err(Errno::BUSY.into());
            }
            current = next;
            above.push((below, parent));
            continue;
        }
        let Some((name_of_current, parent_of_current)) = above.pop() else {
            break;
        };
        // Held descriptors would be as many as levels. The way up is checked, since another process can move a directory.
        let up = openat(&current, "..", DIRECTORY, Mode::empty())?;
        if identity(&up)? != parent_of_current {
            return Err(io::Error::other(
                "a directory in it was moved meanwhile, so that the rest is left: remove it again",
            ));
        }
        gone(unlinkat(&up, &name_of_current, AtFlags::REMOVEDIR))?;
        current = up;
    }
    Ok(gone(unlinkat(parent, name, AtFlags::REMOVEDIR))?)
}

/// Removes files, links and empty directories up to the first directory that is not empty, whose name is returned.
fn first_full_directory(folder: &OwnedFd) -> io::Result<Option<OsString>> {
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
        if name == "." || name == ".." {
            continue;
        }
        let is_directory = match entry.file_type() {
            FileType::Unknown => statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory),
            known => known == FileType::Directory,
        };
        let flags = if is_directory {
            AtFlags::REMOVEDIR
        } else {
            AtFlags::empty()
        };
        match gone(unlinkat(folder, &name, flags)) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => return Ok(Some(name)),
            other => other?,
        }
    }
    Ok(None)
}

fn identity(folder: impl AsFd) -> io::Result<Identity> {
    let stat = fstat(folder)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// What another process has removed meanwhile is removed.
fn gone(removed: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match removed {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, mkdirat};
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::fs;
    use std::os::unix::fs::symlink;

    /// A directory below others, each with a file, a link and an empty directory.
    fn deep(top: &std::path::Path, levels: usize) {
        fs::create_dir(top).unwrap();
        let mut current = openat(CWD, top, DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..levels {
            mkdirat(&current, "deep", Mode::from_raw_mode(0o700)).unwrap();
            mkdirat(&current, "empty", Mode::from_raw_mode(0o700)).unwrap();
            current = openat(&current, "deep", DIRECTORY, Mode::empty()).unwrap();
        }
    }

    #[test]
    fn a_tree_of_ten_thousand_levels_is_removed_with_few_descriptors() {
        let folder = tempfile::tempdir().unwrap();
        let outside = folder.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("precious"), "").unwrap();
        let top = folder.path().join("top");
        deep(&top, 10_000);
        symlink(&outside, top.join("link")).unwrap();
        symlink(&outside, top.join("deep/link")).unwrap();
        fs::write(top.join("deep/deep/file"), "").unwrap();
        let before = getrlimit(Resource::Nofile);
        // Other tests of this process have few files open.
        let few = Rlimit {
            current: Some(200),
            ..before
        };
        setrlimit(Resource::Nofile, few).unwrap();
        let handle = fs::File::open(folder.path()).unwrap();
        let removed = remove(handle.as_fd(), OsStr::new("top"));
        setrlimit(Resource::Nofile, before).unwrap();
        removed.unwrap();
        assert!(!top.exists());
        assert!(outside.join("precious").exists());
        remove(handle.as_fd(), OsStr::new("top")).unwrap();
    }

    #[test]
    fn a_link_is_removed_and_what_it_leads_to_stays() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        fs::create_dir(&target).unwrap();
        symlink(&target, folder.path().join("link")).unwrap();
        let handle = fs::File::open(folder.path()).unwrap();
        remove(handle.as_fd(), OsStr::new("link")).unwrap();
        assert!(target.exists() && !folder.path().join("link").exists());
    }
}
