// SPDX-License-Identifier: Apache-2.0
//! A directory that is opened once, and the files below it.

use crate::error::opening;
use crate::names::{random, unguessed};
use crate::{FileError, Refusal};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, ResolveFlags, fchmod, fstat, linkat,
    mkdirat, open, openat, openat2, readlinkat, renameat, renameat_with, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

/// The permissions of the files and directories that are created in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Files 0664, directories 0775, reduced by the umask.
    Shared,
    /// Files 0600, directories 0700: for the effective user only.
    Private,
}

impl Access {
    fn of_files(self) -> Mode {
        Mode::from_raw_mode(match self {
            Self::Shared => 0o664,
            Self::Private => 0o600,
        })
    }

    fn of_directories(self) -> Mode {
        Mode::from_raw_mode(match self {
            Self::Shared => 0o775,
            Self::Private => 0o700,
        })
    }
}

/// An open directory. Clones share its descriptor.
#[derive(Debug, Clone)]
pub struct Dir {
    handle: Arc<OwnedFd>,
    /// The path at which it was opened, for messages.
    path: PathBuf,
    access: Access,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: OsString,
    /// Whether it is a directory; false for a link to one.
    pub is_dir: bool,
    /// Whether it is a regular file; false for a link to one.
    pub is_file: bool,
}

impl Dir {
    /// Opens a directory by a path that the user named; links in this path are followed.
    ///
    /// # Errors
    /// When it does not exist or cannot be opened.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let named = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        let handle = open(named, DIRECTORY, Mode::empty())
            .map_err(|cause| FileError::of("open", path)(worded(cause, named)))?;
        Ok(Self {
            handle: Arc::new(handle),
            path: path.to_owned(),
            access: Access::Shared,
        })
    }

    /// Opens a directory by a path that the user named, and creates it and its missing parents. Other users cannot
    /// write to the created directories, whatever the umask is.
    ///
    /// # Errors
    /// When it can be neither opened nor created.
    pub fn create(path: &Path) -> Result<Self, FileError> {
        make_all(path, Access::Shared)?;
        Self::open(path)
    }

    /// Opens a directory for the effective user only, and creates it where it is missing. It has mode 0700 and its
    /// files 0600, whatever the umask is; wider modes of existing ones are narrowed.
    ///
    /// # Errors
    /// When the directory, or the link at its path, belongs to another user, or it can be neither opened nor
    /// created.
    pub fn private(path: &Path) -> Result<Self, FileError> {
        make_all(path, Access::Private)?;
        // In a shared directory, such as /tmp, every user can create a link.
        if let Ok(link) = std::fs::symlink_metadata(path)
            && link.is_symlink()
            && ![0, geteuid().as_raw()].contains(&link.uid())
        {
            return Err(FileError::of("use", path)(io::Error::from(Refusal::Link)));
        }
        let mut dir = Self::open(path)?;
        dir.access = Access::Private;
        narrow(dir.handle.as_fd(), Access::Private.of_directories())
            .map_err(FileError::of("use", path))?;
        Ok(dir)
    }

    /// The path at which it was opened, for messages and for programs that need a path. The path may lead to
    /// another directory later.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a directory below.
    ///
    /// # Errors
    /// When it does not exist, a link is on the path, or it cannot be opened.
    pub fn dir(&self, below: impl AsRef<Path>) -> Result<Self, FileError> {
        let below = below.as_ref();
        let opened = self.at(below).and_then(|(parent, name)| {
            openat(parent, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()).map_err(opening)
        });
        self.sub(below, opened.map_err(self.error("open", below))?)
    }

    /// Opens a directory below, and creates it and its missing parents.
    ///
    /// # Errors
    /// As [`Dir::dir`].
    pub fn create_dir(&self, below: impl AsRef<Path>) -> Result<Self, FileError> {
        let below = below.as_ref();
        let mut dir = self.clone();
        for name in names(below).map_err(self.error("create", below))? {
            match mkdirat(&dir.handle, name, self.access.of_directories()) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(cause) => return Err(self.error("create", below)(cause)),
            }
            dir = dir.dir(name)?;
        }
        Ok(dir)
    }

    /// Creates a directory below. Its parent must exist.
    ///
    /// # Errors
    /// When the name exists, or the directory cannot be created.
    pub fn new_dir(&self, below: impl AsRef<Path>) -> Result<Self, FileError> {
        let below = below.as_ref();
        self.at(below)
            .and_then(|(parent, name)| Ok(mkdirat(parent, name, self.access.of_directories())?))
            .map_err(self.error("create", below))?;
        self.dir(below)
    }

    /// Creates a directory in this one, whose name is `prefix` and an unpredictable end.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn new_dir_named(&self, prefix: &str) -> Result<Self, FileError> {
        let below = Path::new(prefix);
        unguessed(|| {
            let end = random().map_err(self.error("create", below))?;
            self.new_dir(format!("{prefix}{end}"))
        })
    }

    /// Opens a regular file below for reading.
    ///
    /// # Errors
    /// When a link is on the path, or it is not a regular file or cannot be opened.
    pub fn file(&self, below: impl AsRef<Path>) -> Result<File, FileError> {
        let below = below.as_ref();
        self.regular(below, OFlags::RDONLY)
            .map_err(self.error("read", below))
    }

    /// Opens a regular file below that has no second name, to pass its content to another user: a hard link may be
    /// another name of a file that only this process can read.
    ///
    /// # Errors
    /// As [`Dir::file`], and when it has a second name.
    pub fn sole_file(&self, below: impl AsRef<Path>) -> Result<File, FileError> {
        let below = below.as_ref();
        self.regular(below, OFlags::RDONLY)
            .and_then(sole)
            .map_err(self.error("read", below))
    }

    /// Reads a regular file below, of at most `most` bytes, whatever its metadata reports.
    ///
    /// # Errors
    /// As [`Dir::file`], and when it is longer ([`Refusal::TooLong`]).
    pub fn read(&self, below: impl AsRef<Path>, most: u64) -> Result<Vec<u8>, FileError> {
        let below = below.as_ref();
        let file = self.file(below)?;
        bounded(&file, most).map_err(self.error("read", below))
    }

    /// As [`Dir::read`], of a file that must be UTF-8.
    ///
    /// # Errors
    /// As [`Dir::read`], and when it is not UTF-8.
    pub fn read_text(&self, below: impl AsRef<Path>, most: u64) -> Result<String, FileError> {
        let below = below.as_ref();
        String::from_utf8(self.read(below, most)?)
            .map_err(|cause| self.error("read", below)(io::Error::other(cause)))
    }

    /// Creates a file below for reading and writing.
    ///
    /// # Errors
    /// When the name exists, a link included, or the file cannot be created.
    pub fn new_file(&self, below: impl AsRef<Path>) -> Result<File, FileError> {
        let below = below.as_ref();
        self.regular(below, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
            .map_err(self.error("create", below))
    }

    /// Opens a file below for appending, and creates it where it is missing.
    ///
    /// # Errors
    /// As [`Dir::edit`].
    pub fn append(&self, below: impl AsRef<Path>) -> Result<File, FileError> {
        self.writable(below.as_ref(), OFlags::WRONLY | OFlags::APPEND)
    }

    /// Opens a file below, such as a lock, for reading and writing in place, and creates it where it is missing. In
    /// a private directory it must belong to this user.
    ///
    /// # Errors
    /// When a link is on the path, it is not a regular file, it has a second name, or it cannot be opened.
    pub fn edit(&self, below: impl AsRef<Path>) -> Result<File, FileError> {
        self.writable(below.as_ref(), OFlags::RDWR)
    }

    /// The entries of the directory, sorted by name.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn list(&self) -> Result<Vec<Entry>, FileError> {
        let mut found = Vec::new();
        let mut read = || -> Result<(), Errno> {
            for entry in rustix::fs::Dir::read_from(&self.handle)? {
                let entry = entry?;
                let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
                if name == "." || name == ".." {
                    continue;
                }
                let kind = match entry.file_type() {
                    FileType::Unknown => {
                        let kind =
                            rustix::fs::statat(&self.handle, &name, AtFlags::SYMLINK_NOFOLLOW);
                        // The entry may have been removed since.
                        kind.map_or(FileType::Unknown, |stat| {
                            FileType::from_raw_mode(stat.st_mode)
                        })
                    }
                    known => known,
                };
                found.push(Entry {
                    name,
                    is_dir: kind == FileType::Directory,
                    is_file: kind == FileType::RegularFile,
                });
            }
            Ok(())
        };
        read().map_err(FileError::of("list", &self.path))?;
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// The metadata of a file, directory or link below. A link as the last name is not followed.
    ///
    /// # Errors
    /// When it does not exist, or a link is on the path.
    pub fn metadata(&self, below: impl AsRef<Path>) -> Result<Metadata, FileError> {
        let below = below.as_ref();
        self.at(below)
            .and_then(|(parent, name)| {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                File::from(openat(parent, name, flags, Mode::empty())?).metadata()
            })
            .map_err(self.error("look at", below))
    }

    /// The target of a symbolic link below.
    ///
    /// # Errors
    /// When it is no link, or a link is on the path to it.
    pub fn link_target(&self, below: impl AsRef<Path>) -> Result<PathBuf, FileError> {
        let below = below.as_ref();
        let target = self
            .at(below)
            .and_then(|(parent, name)| Ok(readlinkat(parent, name, Vec::new())?))
            .map_err(self.error("read", below))?;
        Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
    }

    /// The user id of the directory's owner.
    ///
    /// # Errors
    /// When the kernel does not report it.
    pub fn owner(&self) -> Result<u32, FileError> {
        let stat = fstat(&self.handle).map_err(FileError::of("look at", &self.path))?;
        Ok(stat.st_uid)
    }

    /// Whether the name exists below, a link included.
    pub fn contains(&self, below: impl AsRef<Path>) -> bool {
        self.metadata(below).is_ok()
    }

    /// Removes a file or link below.
    ///
    /// # Errors
    /// When it does not exist or cannot be removed.
    pub fn remove_file(&self, below: impl AsRef<Path>) -> Result<(), FileError> {
        let below = below.as_ref();
        self.at(below)
            .and_then(|(parent, name)| Ok(unlinkat(parent, name, AtFlags::empty())?))
            .map_err(self.error("remove", below))
    }

    /// Removes a file, a link, or a directory with its content. A missing one is not an error.
    ///
    /// # Errors
    /// When something cannot be removed.
    pub fn remove_all(&self, below: impl AsRef<Path>) -> Result<(), FileError> {
        let below = below.as_ref();
        match self
            .at(below)
            .and_then(|(parent, name)| crate::remove::remove(parent.as_fd(), name))
        {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map_err(self.error("remove", below)),
        }
    }

    /// Renames within this directory, and replaces the new name as rename(2) does.
    ///
    /// # Errors
    /// When the old name does not exist or cannot be renamed.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), FileError> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let rename = || -> io::Result<()> {
            let ((old, name), (new, new_name)) = (self.at(from)?, self.at(to)?);
            Ok(renameat(old, name, new, new_name)?)
        };
        rename().map_err(self.error("rename", from))
    }

    /// Renames within this directory to a name that does not exist.
    ///
    /// # Errors
    /// As [`Dir::rename`], and when the new name exists.
    pub fn rename_new(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
    ) -> Result<(), FileError> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let rename = || -> io::Result<()> {
            let ((old, name), (new, new_name)) = (self.at(from)?, self.at(to)?);
            match renameat_with(&old, name, &new, new_name, RenameFlags::NOREPLACE) {
                // A file system without this flag, such as NFS. A non-empty directory is never replaced.
                Err(Errno::INVAL) if !self.contains(to) => Ok(renameat(old, name, new, new_name)?),
                other => Ok(other?),
            }
        };
        rename().map_err(self.error("rename", from))
    }

    /// Links a file of this directory into `into` by the same name if this user owns it; the file then has two
    /// names. Copies it otherwise, and where it cannot be linked, so that the owner cannot change it later and no
    /// special mode is kept.
    ///
    /// # Errors
    /// When it is not a regular file, cannot be read, or the name exists in `into`.
    pub fn link_or_copy(&self, name: impl AsRef<Path>, into: &Self) -> Result<(), FileError> {
        let name = name.as_ref();
        let file = self.file(name)?;
        let link = || -> io::Result<()> {
            if file.metadata()?.uid() != geteuid().as_raw() {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            let ((from, name), (to, new)) = (self.at(name)?, into.at(name)?);
            // `linkat` without following: a link that replaced the file is linked itself, and readers refuse it.
            Ok(linkat(from, name, to, new, AtFlags::empty())?)
        };
        if link().is_ok() {
            return Ok(());
        }
        if into.contains(name) {
            return Err(into.error("create", name)(io::ErrorKind::AlreadyExists));
        }
        self.copy(name, into, name)
    }

    /// Copies the content of a regular file of this directory into another directory, as a whole or not at all. An
    /// existing file of the new name is replaced.
    ///
    /// # Errors
    /// When it is not a regular file, cannot be read, or the copy cannot be written.
    pub fn copy(
        &self,
        name: impl AsRef<Path>,
        into: &Self,
        new: impl AsRef<Path>,
    ) -> Result<(), FileError> {
        let name = name.as_ref();
        let mut copy = into.replace(new)?;
        io::copy(&mut self.file(name)?, copy.file()).map_err(self.error("copy", name))?;
        copy.finish()
    }

    /// Syncs the directory, which makes its entries durable.
    ///
    /// # Errors
    /// When fsync(2) fails.
    pub fn sync(&self) -> Result<(), FileError> {
        rustix::fs::fsync(&self.handle).map_err(FileError::of("sync", &self.path))
    }

    pub(crate) fn error<E: Into<io::Error>>(
        &self,
        action: &'static str,
        below: &Path,
    ) -> impl FnOnce(E) -> FileError + use<E> {
        FileError::of(action, self.path.join(below))
    }

    /// The open directory of a path's last name, and that name.
    pub(crate) fn place(&self, below: &Path) -> io::Result<(Self, OsString)> {
        let names = names(below)?;
        let name = names.last().ok_or(Refusal::Outside)?;
        let parent = match below.parent() {
            Some(parent) if names.len() > 1 => self.dir(parent)?,
            _ => self.clone(),
        };
        Ok((parent, (*name).to_owned()))
    }

    fn sub(&self, below: &Path, handle: OwnedFd) -> Result<Self, FileError> {
        if self.access == Access::Private {
            narrow(handle.as_fd(), Access::Private.of_directories())
                .map_err(self.error("use", below))?;
        }
        Ok(Self {
            handle: Arc::new(handle),
            path: self.path.join(below),
            access: self.access,
        })
    }

    /// The directory of a path's last name, and that name.
    fn at<'a>(&'a self, below: &'a Path) -> io::Result<(Parent<'a>, &'a OsStr)> {
        let mut names = names(below)?;
        let last = names.pop().ok_or(Refusal::Outside)?;
        if names.is_empty() {
            return Ok((Parent::Itself(self.handle.as_fd()), last));
        }
        let parent: PathBuf = names.into_iter().collect();
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent =
            openat2(&self.handle, &parent, flags, Mode::empty(), resolve).map_err(opening)?;
        Ok((Parent::Opened(parent), last))
    }

    fn writable(&self, below: &Path, flags: OFlags) -> Result<File, FileError> {
        self.regular(below, flags | OFlags::CREATE)
            .and_then(sole)
            .map_err(self.error("open", below))
    }

    /// Opens a regular file; in a private directory, one that belongs to this user and that no other user can
    /// access.
    fn regular(&self, below: &Path, flags: OFlags) -> io::Result<File> {
        let (parent, name) = self.at(below)?;
        // The path has one name, so that O_NOFOLLOW excludes every link.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let mode = if flags.contains(OFlags::CREATE) {
            self.access.of_files()
        } else {
            Mode::empty()
        };
        let file = File::from(openat(parent, name, flags, mode).map_err(opening)?);
        if !file.metadata()?.is_file() {
            return Err(Refusal::NoFile.into());
        }
        // A file that this call created has its mode and owner already.
        if self.access == Access::Private && !flags.contains(OFlags::EXCL) {
            narrow(file.as_fd(), Access::Private.of_files())?;
        }
        Ok(file)
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

/// The parent of a path's last name: the directory itself, or one that was opened for one operation.
enum Parent<'a> {
    Itself(BorrowedFd<'a>),
    Opened(OwnedFd),
}

impl AsFd for Parent<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Itself(handle) => *handle,
            Self::Opened(handle) => handle.as_fd(),
        }
    }
}

/// Reads a file of at most `most` bytes. The length in its metadata is not trusted.
pub(crate) fn bounded(file: &File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(Refusal::TooLong(most).into());
    }
    Ok(bytes)
}

fn sole(file: File) -> io::Result<File> {
    if file.metadata()?.nlink() > 1 {
        return Err(Refusal::SecondName.into());
    }
    Ok(file)
}

/// The components of a path below a directory.
fn names(below: &Path) -> io::Result<Vec<&OsStr>> {
    if below.as_os_str().as_bytes().contains(&0) {
        return Err(Refusal::Nul.into());
    }
    let names = below.components().filter_map(|component| match component {
        Component::Normal(name) => Some(Ok(name)),
        Component::CurDir => None,
        _ => Some(Err(Refusal::Outside.into())),
    });
    names.collect()
}

/// Creates a directory and its missing parents, by a path that the user named.
fn make_all(path: &Path, access: Access) -> Result<(), FileError> {
    let mut missing: Vec<&Path> = Vec::new();
    for above in path.ancestors() {
        if above.as_os_str().is_empty() || above.exists() {
            break;
        }
        missing.push(above);
    }
    while let Some(next) = missing.pop() {
        match mkdirat(CWD, next, access.of_directories()) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(cause) => return Err(FileError::of("create", next)(cause)),
        }
    }
    Ok(())
}

/// Removes the rights of other users from a file or directory. Fails if another user owns it.
fn narrow(handle: BorrowedFd<'_>, mode: Mode) -> io::Result<()> {
    let stat = fstat(handle)?;
    let user = geteuid().as_raw();
    if stat.st_uid != user {
        return Err(Refusal::Owner {
            owner: stat.st_uid,
            user,
        }
        .into());
    }
    if Mode::from_raw_mode(stat.st_mode).intersects(mode.complement() & Mode::from_raw_mode(0o077))
    {
        fchmod(handle, mode)?;
    }
    Ok(())
}

fn worded(cause: Errno, path: &Path) -> io::Error {
    if path.as_os_str().as_bytes().contains(&0) {
        Refusal::Nul.into()
    } else if cause == Errno::NOTDIR {
        io::Error::from(io::ErrorKind::NotADirectory)
    } else {
        cause.into()
    }
}
