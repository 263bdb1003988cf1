// SPDX-License-Identifier: Apache-2.0
//! A layer of an image: unpacked into a tree of its own in the form of an upper layer of overlayfs, then merged into the
//! layers below as the kernel's overlay shows them (image-spec 1.1, "Image Layer Filesystem Changeset"; Linux,
//! `Documentation/filesystems/overlayfs.rst`).
//!
//! A directory above a directory is merged with it. Everything else above hides what is below, so that a directory takes
//! the place of a file or of a link to a directory. A whiteout applies to the layers below only, wherever it is in the archive.

use super::tree::{DIRECTORY, Tree, is_whiteout, opaque, parent_of, remove};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, ResolveFlags, Stat, Uid, XattrFlags, fchmod, fchown, fgetxattr,
    fremovexattr, fsetxattr, fstat, mkdirat, mknodat, openat2, renameat, statat,
};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use vtax_host::untrusted::tar::{Entry, Kind};
use vtax_host::{HostError, rootless};

/// The prefix of a whiteout, which removes the name that follows it (image-spec 1.1, "Whiteouts").
const WHITEOUT: &[u8] = b".wh.";
/// The whiteout of everything that lower layers have in a directory.
const WHITEOUT_OF_ALL: &[u8] = b".wh..wh..opq";
/// Names with this prefix are of a file system that images once used.
const META: &[u8] = b".wh..wh.";
/// The mark of a directory that the layer has no entry for. It keeps the owner and permissions of the directory below.
fn implied_mark() -> &'static str {
    if rootless::user().is_some() {
        "user.vtax.implied"
    } else {
        "trusted.vtax.implied"
    }
}

/// Whether an entry is a whiteout.
pub(super) fn is_whiteout_entry(entry: &Entry) -> bool {
    let name = entry.name.file_name().unwrap_or_default();
    name.as_bytes().starts_with(WHITEOUT)
}

/// A layer that is being unpacked.
pub(super) struct Layer<'a> {
    own: Tree,
    below: &'a Tree,
}

impl<'a> Layer<'a> {
    /// A layer above the tree `below`, unpacked into the empty directory `own` of the same file system.
    ///
    /// # Errors
    /// When `own` cannot be opened, or has a file system without the attributes that mark directories.
    pub fn new(own: &Path, below: &'a Tree) -> Result<Self, HostError> {
        let own = Tree::open(own)?;
        // The root of a layer has the entry that the layer has for it, or none.
        fsetxattr(&own.root, implied_mark(), b"y", XattrFlags::empty())
            .map_err(|cause| HostError::file("mark", &own.path)(cause.into()))?;
        Ok(Self { own, below })
    }

    /// Adds an entry of the layer's archive. `implied` is called for each directory that has no entry of its own. A device
    /// is left out: returns whether the entry was added.
    ///
    /// # Errors
    /// When it cannot be created, such as for a full disk, or a hard link without a target.
    pub fn add(
        &self,
        entry: &Entry,
        content: &mut dyn Read,
        implied: &mut dyn FnMut() -> io::Result<()>,
    ) -> Result<bool, HostError> {
        let path = self.below.path.join(&entry.name);
        let mut mark = |folder: std::os::fd::BorrowedFd<'_>| {
            implied()?;
            Ok(fsetxattr(
                folder,
                implied_mark(),
                b"y",
                XattrFlags::empty(),
            )?)
        };
        if is_whiteout_entry(entry) {
            self.white_out(&entry.name, &mut mark)
                .map(|()| true)
                .map_err(HostError::file("remove", path))
        } else {
            self.added(entry, content, &mut mark)
                .map_err(HostError::file("create", path))
        }
    }

    fn added(
        &self,
        entry: &Entry,
        content: &mut dyn Read,
        mark: super::tree::Implied<'_>,
    ) -> io::Result<bool> {
        let is_directory = entry.kind == Kind::Directory;
        let hidden = is_directory && self.has_whiteout(&entry.name);
        let added = self.own.added(entry, content, Some(self.below), mark)?;
        if is_directory {
            let folder = self.own.folder(&entry.name, mark)?;
            let folder = rustix::fs::openat(&folder, ".", DIRECTORY, Mode::empty())?;
            match fremovexattr(&folder, implied_mark()) {
                Ok(()) | Err(Errno::NODATA) => {}
                Err(cause) => return Err(cause.into()),
            }
            if hidden {
                fsetxattr(&folder, opaque(), b"y", XattrFlags::empty())?;
            }
        }
        Ok(added)
    }

    fn has_whiteout(&self, name: &Path) -> bool {
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
        let parent = openat2(
            &self.own.root,
            parent_of(name),
            flags,
            Mode::empty(),
            super::tree::RESOLVE,
        );
        parent.is_ok_and(|parent| {
            let name = name.file_name().unwrap_or_default();
            statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| is_whiteout(&stat))
        })
    }

    fn white_out(&self, whiteout: &Path, mark: super::tree::Implied<'_>) -> io::Result<()> {
        let name = whiteout.file_name().unwrap_or_default().as_bytes();
        if name.starts_with(META) && name != WHITEOUT_OF_ALL {
            return Ok(());
        }
        let hidden = match name.strip_prefix(WHITEOUT) {
            _ if name == WHITEOUT_OF_ALL => None,
            None | Some(b"" | b"." | b"..") => return Err(io::ErrorKind::InvalidFilename.into()),
            Some(name) => Some(OsStr::from_bytes(name)),
        };
        let parent = self.own.folder(parent_of(whiteout), mark)?;
        let folder = |name: &OsStr| rustix::fs::openat(&parent, name, DIRECTORY, Mode::empty());
        let Some(hidden) = hidden else {
            fsetxattr(
                folder(OsStr::new("."))?,
                opaque(),
                b"y",
                XattrFlags::empty(),
            )?;
            return Ok(());
        };
        match statat(&parent, hidden, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {
                mknodat(&parent, hidden, FileType::CharacterDevice, Mode::empty(), 0)?
            }
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                fsetxattr(folder(hidden)?, opaque(), b"y", XattrFlags::empty())?;
            }
            // The layer's own entry hides what is below.
            Ok(_) => {}
            Err(cause) => return Err(cause.into()),
        }
        Ok(())
    }

    /// Merges the layer into the tree below.
    ///
    /// # Errors
    /// When something cannot be moved or removed.
    pub fn merge(self) -> Result<(), HostError> {
        let mut folders = vec![(PathBuf::from("."), false)];
        let mut attributes = Vec::new();
        while let Some((path, is_new)) = folders.pop() {
            self.merge_folder(&path, is_new, &mut folders, &mut attributes)
                .map_err(HostError::file("merge", self.below.path.join(&path)))?;
        }
        for (path, stat) in attributes.into_iter().rev() {
            self.set(&path, &stat)
                .map_err(HostError::file("write", self.below.path.join(&path)))?;
        }
        Ok(())
    }

    fn merge_folder(
        &self,
        path: &Path,
        is_new: bool,
        folders: &mut Vec<(PathBuf, bool)>,
        attributes: &mut Vec<(PathBuf, Stat)>,
    ) -> io::Result<()> {
        let (upper, lower) = (exact(&self.own, path)?, exact(self.below, path)?);
        if has(&upper, opaque())? {
            for name in names(&lower)? {
                remove(&lower, &name)?;
            }
        }
        for name in names(&upper)? {
            let stat = statat(&upper, &name, AtFlags::SYMLINK_NOFOLLOW)?;
            let is_directory =
                |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            let there = statat(&lower, &name, AtFlags::SYMLINK_NOFOLLOW).ok();
            let is_there = there.as_ref().is_some_and(is_directory);
            if is_whiteout(&stat) {
                remove(&lower, &name)?;
            } else if is_directory(&stat) {
                if !is_there {
                    remove(&lower, &name)?;
                    mkdirat(&lower, &name, Mode::from_raw_mode(0o700))?;
                }
                folders.push((path.join(&name), !is_there));
            } else {
                if is_there {
                    remove(&lower, &name)?;
                }
                renameat(&upper, &name, &lower, &name)?;
            }
        }
        if is_new || !has(&upper, implied_mark())? {
            attributes.push((path.to_owned(), fstat(&upper)?));
        }
        Ok(())
    }

    /// Gives a directory the owner and permissions of that of the layer.
    fn set(&self, path: &Path, stat: &Stat) -> io::Result<()> {
        let folder = exact(self.below, path)?;
        let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        fchown(&folder, Some(uid), Some(gid))?;
        fchmod(&folder, Mode::from_raw_mode(stat.st_mode))?;
        Ok(())
    }
}

/// A directory of a tree, by a path without links.
fn exact(tree: &Tree, path: &Path) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    Ok(openat2(
        &tree.root,
        path,
        DIRECTORY,
        Mode::empty(),
        resolve,
    )?)
}

fn has(folder: &OwnedFd, mark: &str) -> io::Result<bool> {
    let mut value = [0u8; 1];
    match fgetxattr(folder.as_fd(), mark, &mut value[..]) {
        Ok(_) => Ok(true),
        Err(Errno::NODATA) => Ok(false),
        Err(cause) => Err(cause.into()),
    }
}

fn names(folder: &OwnedFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(folder)? {
        let name = OsString::from_vec(entry?.file_name().to_bytes().to_vec());
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests;
