// SPDX-License-Identifier: Apache-2.0
//! A root directory into which files from an untrusted source are written. Every path is resolved with this directory as the
//! root (openat2(2), `RESOLVE_IN_ROOT`), so that no link leads out of it.

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps, Uid,
    XattrFlags, chownat, fchmod, fchown, fsetxattr, futimens, linkat, mkdirat, openat, openat2,
    statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use vtax_host::untrusted::tar::{Entry, Kind};
use vtax_host::{HostError, rootless};

/// Called with each directory that is created for a path without an entry of its own.
pub(super) type Implied<'a> = &'a mut dyn FnMut(BorrowedFd<'_>) -> io::Result<()>;

/// A root directory.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) root: OwnedFd,
    pub(super) path: PathBuf,
}

impl Tree {
    /// Opens an existing directory as a root.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path) -> Result<Self, HostError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, path, flags, Mode::empty())
            .map_err(|cause| HostError::file("read", path)(cause.into()))?;
        Ok(Self {
            root,
            path: path.to_owned(),
        })
    }

    /// Adds an entry, in the place of an entry of its name. A device is left out: returns whether the entry was added.
    ///
    /// # Errors
    /// When it cannot be created, such as for a full disk, or a hard link without a target.
    pub fn add(&self, entry: &Entry, content: &mut dyn Read) -> Result<bool, HostError> {
        let wrong = HostError::file("create", self.path.join(&entry.name));
        self.added(entry, content, None, &mut |_| Ok(()))
            .map_err(wrong)
    }

    /// As [`Tree::add`]. A hard link may lead to a file of `below` that this tree lacks.
    pub(super) fn added(
        &self,
        entry: &Entry,
        content: &mut dyn Read,
        below: Option<&Self>,
        implied: Implied<'_>,
    ) -> io::Result<bool> {
        let Some(name) = entry.name.file_name() else {
            // The root itself.
            if entry.kind == Kind::Directory {
                set(self.root.as_fd(), entry)?;
            }
            return Ok(true);
        };
        if entry.kind == Kind::Device {
            return Ok(false);
        }
        let parent = self.folder(parent_of(&entry.name), implied)?;
        let there = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).ok();
        let is_directory =
            there.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
        if let Kind::HardLink(target) = &entry.kind {
            let (from, source) = match self.source_of_link(target)? {
                Some(found) => found,
                None => {
                    let found = below.map(|below| below.source_of_link(target));
                    found.transpose()?.flatten().ok_or_else(|| {
                        io::Error::other(format!(
                            "the file {} that it links to is not in the image",
                            target.display()
                        ))
                    })?
                }
            };
            if there
                .is_some_and(|there| (there.st_dev, there.st_ino) == (source.st_dev, source.st_ino))
            {
                return Ok(true);
            }
            remove(&parent, name)?;
            let target = target.file_name().unwrap_or_default();
            linkat(&from, target, &parent, name, AtFlags::empty())?;
            return Ok(true);
        }
        if !(is_directory && entry.kind == Kind::Directory) {
            remove(&parent, name)?;
        }
        match &entry.kind {
            Kind::Directory => {
                if !is_directory {
                    mkdirat(&parent, name, Mode::from_raw_mode(0o700))?;
                }
                let folder = openat(&parent, name, DIRECTORY, Mode::empty())?;
                set(folder.as_fd(), entry)?;
            }
            Kind::Link(target) => {
                symlinkat(target, &parent, name)?;
                let (uid, gid) = owner(entry);
                chownat(&parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            Kind::Fifo => {
                let mode = Mode::from_raw_mode(0o600);
                rustix::fs::mknodat(&parent, name, FileType::Fifo, mode, 0)?;
                let (uid, gid) = owner(entry);
                chownat(&parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            Kind::File => {
                let flags = OFlags::WRONLY
                    | OFlags::CREATE
                    | OFlags::EXCL
                    | OFlags::NOFOLLOW
                    | OFlags::CLOEXEC;
                let file = openat(&parent, name, flags, Mode::from_raw_mode(0o600))?;
                let mut file = File::from(file);
                io::copy(content, &mut file)?;
                set(file.as_fd(), entry)?;
            }
            Kind::HardLink(_) | Kind::Device => {}
        }
        Ok(true)
    }

    /// The directory and status of the file that a hard link names; `None` where it is missing, or is a whiteout.
    fn source_of_link(&self, target: &Path) -> io::Result<Option<(OwnedFd, Stat)>> {
        let Some(name) = target.file_name() else {
            return Ok(None);
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let from = match openat2(&self.root, parent_of(target), flags, Mode::empty(), RESOLVE) {
            Ok(from) => from,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            Err(cause) => return Err(cause.into()),
        };
        match statat(&from, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if !is_whiteout(&stat) => Ok(Some((from, stat))),
            Ok(_) | Err(Errno::NOENT) => Ok(None),
            Err(cause) => Err(cause.into()),
        }
    }

    /// A directory, which is created with its parents where it is missing.
    pub(super) fn folder(&self, folder: &Path, implied: Implied<'_>) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match openat2(&self.root, folder, flags, Mode::empty(), RESOLVE) {
            Ok(folder) => return Ok(folder),
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(cause) => return Err(cause.into()),
        }
        let mut at = openat(&self.root, ".", flags, Mode::empty())?;
        let mut so_far = PathBuf::new();
        for part in folder.components() {
            let Component::Normal(part) = part else {
                continue;
            };
            so_far.push(part);
            let straight = RESOLVE | ResolveFlags::NO_SYMLINKS;
            at = match openat2(&at, Path::new(part), flags, Mode::empty(), straight) {
                Ok(next) => next,
                Err(Errno::NOENT) => imply(&at, part, implied)?,
                Err(_) if is_whiteout_at(&at, part) => {
                    unlinkat(&at, part, AtFlags::empty())?;
                    let next = imply(&at, part, implied)?;
                    fsetxattr(&next, opaque(), b"y", XattrFlags::empty())?;
                    next
                }
                // A link is resolved from the root.
                Err(_) => openat2(&self.root, &so_far, flags, Mode::empty(), RESOLVE).map_err(
                    |cause| {
                        io::Error::other(format!(
                            "{} on its path is no directory in the image and no link to one ({})",
                            so_far.display(),
                            io::Error::from(cause)
                        ))
                    },
                )?,
            };
        }
        Ok(at)
    }

    /// Creates a directory with its parents where it is missing.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn make(&self, path: &Path) -> Result<(), HostError> {
        let made = self.folder(path, &mut |_| Ok(()));
        made.map(drop)
            .map_err(HostError::file("create", self.path.join(path)))
    }

    /// Creates a mount point in the root: a directory, in the place of a link or file of its name.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn mount_point(&self, name: &str) -> Result<(), HostError> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let is_directory = statat(&self.root, name, flags)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
        if is_directory {
            return Ok(());
        }
        remove(&self.root, OsStr::new(name))
            .and_then(|()| Ok(mkdirat(&self.root, name, Mode::from_raw_mode(0o755))?))
            .map_err(HostError::file("create", self.path.join(name)))
    }

    /// The content of a regular file, of at most `most` bytes; empty where there is none.
    pub fn read(&self, path: &str, most: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        if let Ok(file) = openat2(&self.root, path, flags, Mode::empty(), RESOLVE) {
            let file = File::from(file);
            if file.metadata().is_ok_and(|about| about.is_file()) {
                let _ = file.take(most).read_to_end(&mut bytes);
            }
        }
        bytes
    }
}

pub(super) const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

pub(super) const RESOLVE: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);

/// The mark of a directory that hides all of what is below it, as overlayfs reads it (Linux,
/// `Documentation/filesystems/overlayfs.rst`, "whiteouts and opaque directories").
pub(super) fn opaque() -> &'static str {
    if rootless::user().is_some() {
        // A user namespace gives no right to the others.
        "user.overlay.opaque"
    } else {
        "trusted.overlay.opaque"
    }
}

/// Whether it is a whiteout in the form of overlayfs, a character device of the number 0. Archives add no device.
pub(super) fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

fn is_whiteout_at(folder: &OwnedFd, name: &OsStr) -> bool {
    statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| is_whiteout(&stat))
}

/// The directory of a path's last name.
pub(super) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Creates a directory that has no entry of its own.
fn imply(at: &OwnedFd, name: &OsStr, implied: Implied<'_>) -> io::Result<OwnedFd> {
    mkdirat(at, name, Mode::from_raw_mode(0o755))?;
    let folder = openat(at, name, DIRECTORY, Mode::empty())?;
    fchmod(&folder, Mode::from_raw_mode(0o755))?;
    implied(folder.as_fd())?;
    Ok(folder)
}

/// Removes a file, a link, or a directory with its content. A missing one is not an error.
pub(super) fn remove(folder: &OwnedFd, name: &OsStr) -> io::Result<()> {
    vtax_files::remove_at(folder.as_fd(), name)
}

fn owner(entry: &Entry) -> (Option<Uid>, Option<Gid>) {
    (
        Some(Uid::from_raw(entry.uid)),
        Some(Gid::from_raw(entry.gid)),
    )
}

/// Sets the owner, permissions, capability and time of an open file or directory.
fn set(file: impl AsFd, entry: &Entry) -> io::Result<()> {
    let (uid, gid) = owner(entry);
    fchown(&file, uid, gid)?;
    // A change of the owner clears set-user-ID, so that the mode comes after it.
    fchmod(&file, Mode::from_raw_mode(entry.mode))?;
    if let Some(capability) = &entry.capability {
        fsetxattr(
            &file,
            "security.capability",
            capability,
            XattrFlags::empty(),
        )?;
    }
    let time = Timespec {
        tv_sec: entry.mtime,
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    Ok(futimens(&file, &times)?)
}
