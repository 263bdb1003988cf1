// SPDX-License-Identifier: Apache-2.0
//! A root directory into which the layers of an image from an untrusted source are applied. Every path is resolved
//! with this directory as the root (openat2(2), `RESOLVE_IN_ROOT`), so that no link of a layer leads out of it.

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags,
    chownat, fchmod, fchown, fsetxattr, futimens, linkat, mkdirat, openat, openat2, statat,
    symlinkat, unlinkat,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use vtax_host::HostError;
use vtax_host::untrusted::tar::{Entry, Kind};

/// The prefix of a whiteout, which removes the name that follows it (image-spec 1.1, "Whiteouts").
const WHITEOUT: &[u8] = b".wh.";
/// The whiteout of everything that lower layers have in a directory.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Names with this prefix are of a file system that images once used.
const META: &[u8] = b".wh..wh.";

/// A root directory.
#[derive(Debug)]
pub(super) struct Tree {
    root: OwnedFd,
    path: PathBuf,
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

    /// Whether an entry of a layer is a whiteout.
    pub fn is_whiteout(entry: &Entry) -> bool {
        let name = entry.name.file_name().unwrap_or_default();
        name.as_bytes().starts_with(WHITEOUT)
    }

    /// Applies a whiteout to the lower layers.
    ///
    /// # Errors
    /// When something cannot be removed.
    pub fn white_out(&self, entry: &Entry) -> Result<(), HostError> {
        self.removed(&entry.name)
            .map_err(HostError::file("remove", self.path.join(&entry.name)))
    }

    fn removed(&self, whiteout: &Path) -> io::Result<()> {
        let name = whiteout.file_name().unwrap_or_default().as_bytes();
        let Some(parent) = self.parent(whiteout, false)? else {
            return Ok(());
        };
        if name == OPAQUE {
            let folder = openat(&parent, ".", DIRECTORY, Mode::empty())?;
            for entry in std::fs::read_dir(descriptor(&folder))? {
                remove(&folder, &entry?.file_name())?;
            }
            return Ok(());
        }
        match name.strip_prefix(WHITEOUT) {
            _ if name.starts_with(META) => Ok(()),
            None | Some(b"" | b"." | b"..") => Err(io::ErrorKind::InvalidFilename.into()),
            Some(name) => remove(&parent, OsStr::from_bytes(name)),
        }
    }

    /// Adds an entry of a layer, in the place of an entry of its name. A device is left out: returns whether the entry
    /// was added.
    ///
    /// # Errors
    /// When it cannot be created, such as for a full disk, or a hard link without a target.
    pub fn add(&self, entry: &Entry, content: &mut dyn Read) -> Result<bool, HostError> {
        let wrong = HostError::file("create", self.path.join(&entry.name));
        self.added(entry, content).map_err(wrong)
    }

    fn added(&self, entry: &Entry, content: &mut dyn Read) -> io::Result<bool> {
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
        let Some(parent) = self.parent(&entry.name, true)? else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let there = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).ok();
        let is_directory =
            there.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
        if let Kind::HardLink(target) = &entry.kind {
            let from = self.parent(target, false)?;
            let target = target.file_name().unwrap_or_default();
            let from = from.ok_or(io::ErrorKind::NotFound)?;
            let source = statat(&from, target, AtFlags::SYMLINK_NOFOLLOW)?;
            if there
                .is_some_and(|there| (there.st_dev, there.st_ino) == (source.st_dev, source.st_ino))
            {
                return Ok(true);
            }
            remove(&parent, name)?;
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

    /// The directory of a path's last name, which is created with its parents where `make` is set; `None` where it does
    /// not exist.
    fn parent(&self, path: &Path, make: bool) -> io::Result<Option<OwnedFd>> {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let open = || {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            openat2(&self.root, folder, flags, Mode::empty(), RESOLVE)
        };
        match open() {
            Ok(folder) => Ok(Some(folder)),
            Err(Errno::NOENT | Errno::NOTDIR) if !make => Ok(None),
            Err(Errno::NOENT) => {
                let above = self.parent(folder, true)?;
                let above = above.ok_or(io::ErrorKind::NotFound)?;
                let name = folder.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
                match mkdirat(&above, name, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(cause) => return Err(cause.into()),
                }
                Ok(Some(open()?))
            }
            Err(cause) => Err(cause.into()),
        }
    }

    /// Creates a directory with its parents where it is missing.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn make(&self, path: &Path) -> Result<(), HostError> {
        let made = self.parent(&path.join("name"), true);
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

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

const RESOLVE: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);

fn descriptor(folder: &OwnedFd) -> PathBuf {
    Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string())
}

/// Removes a file, a link, or a directory with its content. A missing one is not an error.
fn remove(folder: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        // A path of one name below a descriptor is the directory itself, which is opened without following links.
        Err(Errno::ISDIR) => std::fs::remove_dir_all(descriptor(folder).join(name)),
        Err(cause) => Err(cause.into()),
    }
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
