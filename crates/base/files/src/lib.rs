// SPDX-License-Identifier: Apache-2.0
//! Safe access to files in directories that other users may write to.
//!
//! A [`Dir`] is a directory that is opened once, by a path that the user named. Paths below it are resolved from
//! its descriptor: no symbolic link is followed, `..` is refused, and renaming or exchanging the directory has no
//! effect. Reading accepts regular files only and never blocks. Writing replaces a name as a whole by a new file of
//! a random name, and never writes into an existing one.
//!
//! ```
//! # fn main() -> Result<(), vtax_files::FileError> {
//! # let folder = std::env::temp_dir();
//! # let folder = folder.join(format!("vtax-files-doc-{}", std::process::id()));
//! let results = vtax_files::Dir::create(&folder)?;
//! results.write("report.html", b"<!doctype html>")?;
//! assert_eq!(results.read("report.html", 1 << 20)?, b"<!doctype html>");
//! # let _ = std::fs::remove_dir_all(folder);
//! # Ok(())
//! # }
//! ```
#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

mod dir;
mod error;
pub mod log;
mod names;
mod output;
mod remove;
mod replacement;
#[cfg(test)]
mod tests;

pub use dir::{Dir, Entry};
pub use error::{FileError, Refusal};
pub use output::{Output, append, create, edit, output, write, write_scratch};
pub use replacement::Replacement;

/// As [`remove_all`], of a name in an open directory.
///
/// # Errors
/// As [`remove_all`].
pub fn remove_at(
    folder: std::os::fd::BorrowedFd<'_>,
    name: &std::ffi::OsStr,
) -> std::io::Result<()> {
    remove::remove(folder, name)
}

/// Removes a file, a link, or a directory with its content, of any depth, at a path that the user named or that this process
/// has made. A missing one is not an error. No link below the path's parent is followed.
///
/// # Errors
/// When something cannot be removed, or another file system is mounted in it.
pub fn remove_all(path: &std::path::Path) -> Result<(), FileError> {
    let name = path.file_name().ok_or(Refusal::Outside);
    let name = name.map_err(FileError::of("remove", path))?;
    match Dir::open(path.parent().unwrap_or(std::path::Path::new(""))) {
        Ok(parent) => parent.remove_all(name),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}
