// SPDX-License-Identifier: Apache-2.0
//! Errors of file operations: the action, the path and the cause.

use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};

/// A file operation that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {cause}", path.display())]
pub struct FileError {
    /// The attempted action, as a verb.
    pub action: &'static str,
    /// The path of the file or directory.
    pub path: PathBuf,
    /// The kernel's error, or a [`Refusal`].
    #[source]
    pub cause: io::Error,
}

/// The reason why this crate refused a path, or a more precise reason than the kernel's error code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A symbolic link is on the path.
    #[error(
        "a symbolic link is on the path, and links are not followed here: put what it leads to in its place"
    )]
    Link,
    /// A FIFO, device, socket or directory.
    #[error("it is no regular file")]
    NoFile,
    /// Something other than a directory, or a link to one.
    #[error("it is no directory (links to directories are not followed)")]
    NoDirectory,
    /// Another hard link to the file exists, perhaps in a directory that only this user can read or write.
    #[error("the file has a second name (a hard link): copy it in its place")]
    SecondName,
    /// `..`, an absolute path, or no name at all.
    #[error("it is no path below its directory: no `..`, and no slash in front")]
    Outside,
    /// A NUL byte, which no file name can contain.
    #[error("the name contains a NUL byte")]
    Nul,
    /// The file is longer than the limit, in bytes.
    #[error("it is longer than {0} bytes")]
    TooLong(u64),
    /// A private directory or file of another user.
    #[error(
        "user {owner} owns it, and this process runs as user {user}: remove it, or name another directory"
    )]
    Owner {
        /// The user id of its owner.
        owner: u32,
        /// The effective user of this process.
        user: u32,
    },
}

impl FileError {
    /// For `map_err`: an error of `action` on `path`.
    pub fn of<E: Into<io::Error>>(
        action: &'static str,
        path: impl AsRef<Path>,
    ) -> impl FnOnce(E) -> Self {
        let path = path.as_ref().to_owned();
        move |cause| Self {
            action,
            path,
            cause: cause.into(),
        }
    }

    /// The refusal; `None` for an error of the kernel.
    pub fn refusal(&self) -> Option<&Refusal> {
        self.cause.get_ref()?.downcast_ref()
    }

    /// Whether the file or directory does not exist.
    pub fn is_not_found(&self) -> bool {
        self.cause.kind() == io::ErrorKind::NotFound
    }

    /// Whether the name that was to be created exists.
    pub fn already_exists(&self) -> bool {
        self.cause.kind() == io::ErrorKind::AlreadyExists
    }
}

/// Keeps the kind of the cause; the text includes the path.
impl From<FileError> for io::Error {
    fn from(error: FileError) -> Self {
        Self::new(error.cause.kind(), error)
    }
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        Self::other(refusal)
    }
}

/// The kernel's error code of an open call, as a refusal where a link or a file type is the cause.
pub(crate) fn opening(cause: Errno) -> io::Error {
    match cause {
        Errno::LOOP | Errno::XDEV => Refusal::Link.into(),
        Errno::NOTDIR => Refusal::NoDirectory.into(),
        // A FIFO without a reader, a socket, or a directory that was opened for writing.
        Errno::NXIO | Errno::ISDIR => Refusal::NoFile.into(),
        other => other.into(),
    }
}
