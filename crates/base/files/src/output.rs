// SPDX-License-Identifier: Apache-2.0
//! Access to files by their whole path: outputs that the user named, such as `-o FILE`, and files in directories
//! that this process created.

use crate::{Dir, FileError, Refusal, Replacement};
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// An output at a path that the user named.
#[derive(Debug)]
pub enum Output {
    /// A file, which replaces its name when it is finished.
    File(Replacement),
    /// `/dev/stdout`, `/dev/null` or a pipe of the shell, written directly.
    Stream(File),
}

impl Output {
    /// The file to write to.
    pub fn file(&mut self) -> &mut File {
        match self {
            Self::File(replacement) => replacement.file(),
            Self::Stream(file) => file,
        }
    }

    /// Moves a file into place.
    ///
    /// # Errors
    /// When it cannot be written or renamed.
    pub fn finish(self) -> Result<(), FileError> {
        match self {
            Self::File(replacement) => replacement.finish(),
            Self::Stream(_) => Ok(()),
        }
    }
}

/// Opens an output at a path that the user named. Links on the path to its directory are followed. The last name
/// must be free or a regular file, which is replaced as a whole. Below `/dev` and `/proc`, where only root creates
/// names, the path is opened directly.
///
/// # Errors
/// When the directory does not exist, the last name is a link or not a regular file, or a file cannot be created.
pub fn output(path: &Path) -> Result<Output, FileError> {
    if path.starts_with("/dev") && !path.starts_with("/dev/shm") || path.starts_with("/proc") {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = openat(CWD, path, flags, Mode::empty()).map_err(FileError::of("write", path))?;
        return Ok(Output::Stream(file.into()));
    }
    let (dir, name) = at(path)?;
    // Replacing a link or a special file is safe, but never intended.
    let refusal = match dir.metadata(name) {
        Ok(there) if there.is_symlink() => Some(Refusal::Link),
        Ok(there) if !there.is_file() => Some(Refusal::NoFile),
        Err(error) if !error.is_not_found() => return Err(error),
        _ => None,
    };
    if let Some(refusal) = refusal {
        return Err(FileError::of("write", path)(io::Error::from(refusal)));
    }
    Ok(Output::File(dir.replace(name)?))
}

/// Writes a file whose path the user named, as a whole or not at all: see [`output`].
///
/// # Errors
/// As [`output`], and when the file cannot be written.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let mut output = output(path)?;
    output
        .file()
        .write_all(bytes)
        .map_err(FileError::of("write", path))?;
    output.finish()
}

/// Creates or truncates a file, in a directory that this process created and whose files need not survive a crash.
/// Links on the path to the directory are followed; the last name may be neither a link nor a second name of a
/// file.
///
/// # Errors
/// When the directory does not exist, or the last name is a link, is not a regular file, or cannot be opened.
pub fn create(path: &Path) -> Result<File, FileError> {
    let file = edit(path)?;
    file.set_len(0).map_err(FileError::of("empty", path))?;
    Ok(file)
}

/// Opens a file for reading and writing in place, and creates it where it is missing. Treats the path as [`create`]
/// does.
///
/// # Errors
/// As [`create`].
pub fn edit(path: &Path) -> Result<File, FileError> {
    let (dir, name) = at(path)?;
    dir.edit(name)
}

/// Opens a file for appending, and creates it where it is missing. Treats the path as [`create`] does.
///
/// # Errors
/// As [`create`].
pub fn append(path: &Path) -> Result<File, FileError> {
    let (dir, name) = at(path)?;
    dir.append(name)
}

/// Writes a file in a directory that this process created, without syncing it: see [`create`].
///
/// # Errors
/// As [`create`], and when the file cannot be written.
pub fn write_scratch(path: &Path, bytes: impl AsRef<[u8]>) -> Result<(), FileError> {
    create(path)?
        .write_all(bytes.as_ref())
        .map_err(FileError::of("write", path))
}

/// The directory of a path, with links followed, and the last name.
fn at(path: &Path) -> Result<(Dir, &OsStr), FileError> {
    let name = path.file_name().unwrap_or(OsStr::new(""));
    Ok((Dir::open(path.parent().unwrap_or(Path::new("")))?, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn an_output_replaces_a_file_and_neither_follows_nor_replaces_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        fs::write(&victim, "kept").unwrap();
        let link = folder.path().join("out");
        symlink(&victim, &link).unwrap();
        assert_eq!(
            write(&link, b"x").unwrap_err().refusal(),
            Some(&Refusal::Link)
        );
        assert_eq!(fs::read(&victim).unwrap(), b"kept");
        write(&victim, b"new").unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn devices_that_the_user_names_are_written_and_stay_devices() {
        write(Path::new("/dev/null"), b"x").unwrap();
        let null = fs::symlink_metadata("/dev/null").unwrap();
        assert!(!null.is_file() && !null.is_symlink());
    }

    #[test]
    fn a_scratch_file_is_emptied_and_no_link_or_second_name_is_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let (victim, file) = (folder.path().join("victim"), folder.path().join("file"));
        fs::write(&victim, "kept").unwrap();
        write_scratch(&file, "long").unwrap();
        write_scratch(&file, "new").unwrap();
        append(&file).unwrap().write_all(b"er").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"newer");
        symlink(&victim, folder.path().join("link")).unwrap();
        fs::hard_link(&victim, folder.path().join("second")).unwrap();
        for name in ["link", "second"] {
            let path = folder.path().join(name);
            assert!(write_scratch(&path, "x").unwrap_err().refusal().is_some());
            assert!(append(&path).unwrap_err().refusal().is_some());
        }
        assert_eq!(fs::read(&victim).unwrap(), b"kept");
    }

    #[test]
    fn a_directory_is_no_output() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(
            write(folder.path(), b"x").unwrap_err().refusal(),
            Some(&Refusal::NoFile)
        );
    }
}
