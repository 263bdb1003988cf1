//! Files of directories that others may write to: opened without following any link, so that whoever puts
//! one there does not read or write with this process's rights, and without waiting for what is no file.

use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Opens a regular file by its path below a directory, to read it.
///
/// # Errors
/// When a link or `..` is on the way, it is no regular file, or cannot be opened.
pub fn file(directory: &Path, below: &Path) -> io::Result<File> {
    opened(directory, below, OFlags::RDONLY, Mode::empty())
}

/// Opens a regular file to write at its end; one that is not there is made.
///
/// # Errors
/// As [`file`].
pub fn end_of(directory: &Path, below: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
    opened(directory, below, flags, Mode::from_raw_mode(0o644))
}

fn opened(directory: &Path, below: &Path, how: OFlags, mode: Mode) -> io::Result<File> {
    let directory = open(
        directory,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let file = openat2(
        directory,
        below,
        how | OFlags::CLOEXEC | OFlags::NONBLOCK,
        mode,
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
    )?;
    let file = File::from(file);
    let known = file.metadata()?;
    if !known.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    // Another name of it may be a file that only this process's rights open.
    if known.nlink() > 1 {
        return Err(io::Error::other("it has a second name"));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::CWD;
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_files_below_are_opened_and_nothing_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs::create_dir_all(root.join("inner")).unwrap();
        fs::write(root.join("inner/text"), "text").unwrap();
        fs::write(folder.path().join("outside"), "secret").unwrap();
        symlink("../outside", root.join("link")).unwrap();
        symlink("inner", root.join("folder")).unwrap();
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, root.join("pipe"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let mut text = String::new();
        let mut opened = file(&root, Path::new("inner/text")).unwrap();
        opened.read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        fs::hard_link(folder.path().join("outside"), root.join("second")).unwrap();
        for below in [
            "link",
            "folder/text",
            "../outside",
            "pipe",
            "inner",
            "none",
            "second",
        ] {
            assert!(file(&root, Path::new(below)).is_err(), "{below}");
        }
        assert!(file(&root, &folder.path().join("outside")).is_err());
    }
}
