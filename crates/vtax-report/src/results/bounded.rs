//! Reading files of results, which others may have written, without taking more memory than they deserve,
//! and without following a link to what is not theirs.

use super::ResultsError;
use rustix::fs::{Mode, OFlags, ResolveFlags, open as open_path, openat2};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Opens a regular file by its path below a directory, without waiting for what is no file.
///
/// # Errors
/// When a link leads out of the directory, it is no regular file, or cannot be opened.
pub(super) fn open(directory: &Path, below: &Path) -> Result<File, ResultsError> {
    let opened = || -> io::Result<File> {
        let directory = open_path(
            directory,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let file = openat2(
            directory,
            below,
            OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK,
            Mode::empty(),
            ResolveFlags::BENEATH,
        );
        let file = file.map_err(|cause| match cause {
            Errno::XDEV => io::Error::other(
                "a link on the way leads out of the results directory: put what it leads to in its place",
            ),
            other => other.into(),
        })?;
        let file = File::from(file);
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        Ok(file)
    };
    opened().map_err(ResultsError::io("read", &directory.join(below)))
}

/// Reads a regular file of at most `most` bytes, by its path below a directory.
///
/// # Errors
/// As [`open`], and when it cannot be read or is longer.
pub(super) fn read(directory: &Path, below: &Path, most: u64) -> Result<Vec<u8>, ResultsError> {
    let file = open(directory, below)?;
    let path = directory.join(below);
    let mut bytes = Vec::new();
    file.take(most + 1)
        .read_to_end(&mut bytes)
        .map_err(ResultsError::io("read", &path))?;
    // `most` bounds what was read, whatever the file's length says.
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > most {
        return Err(ResultsError::TooLong { path, most });
    }
    Ok(bytes)
}
