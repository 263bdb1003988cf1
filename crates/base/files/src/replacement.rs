// SPDX-License-Identifier: Apache-2.0
//! Atomic replacement of a file: a new file of a random name is renamed into place.

use crate::names::{partial, unguessed};
use crate::{Dir, FileError};
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::Path;

impl Dir {
    /// Writes a file below as a whole or not at all: into a new file of a random name, which is synced and renamed
    /// into place. An existing file is replaced; a link is replaced and not followed.
    ///
    /// # Errors
    /// When the file cannot be written or renamed.
    pub fn write(&self, below: impl AsRef<Path>, bytes: &[u8]) -> Result<(), FileError> {
        let below = below.as_ref();
        let mut replacement = self.replace(below)?;
        replacement
            .file()
            .write_all(bytes)
            .map_err(self.error("write", below))?;
        replacement.finish()
    }

    /// Creates a file that replaces a name below when it is finished.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn replace(&self, below: impl AsRef<Path>) -> Result<Replacement, FileError> {
        let below = below.as_ref();
        let (parent, name) = self.place(below).map_err(self.error("write", below))?;
        Replacement::new(parent, name)
    }
}

/// A file that is being written. Dropping it before `finish` removes it and leaves the existing
/// file.
#[derive(Debug)]
pub struct Replacement {
    dir: Dir,
    name: OsString,
    temporary: OsString,
    file: File,
    is_placed: bool,
}

impl Replacement {
    pub(crate) fn new(dir: Dir, name: OsString) -> Result<Self, FileError> {
        let place = dir.path().join(&name);
        let (temporary, file) = unguessed(|| {
            let temporary = partial(&name).map_err(FileError::of("write", &place))?;
            let file = dir
                .new_file(&temporary)
                .map_err(|error| FileError::of("write", &place)(error.cause))?;
            Ok((temporary, file))
        })?;
        Ok(Self {
            dir,
            name,
            temporary,
            file,
            is_placed: false,
        })
    }

    /// The file to write to.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Syncs the file, renames it into place and syncs the directory, so that it survives a power failure.
    ///
    /// # Errors
    /// When the file cannot be written or renamed; the existing file stays.
    pub fn finish(mut self) -> Result<(), FileError> {
        self.file
            .sync_all()
            .map_err(self.dir.error("write", Path::new(&self.name)))?;
        self.dir
            .rename(&self.temporary, &self.name)
            .map_err(|error| self.dir.error("write", Path::new(&self.name))(error.cause))?;
        self.is_placed = true;
        self.dir.sync()
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.is_placed {
            let _ = self.dir.remove_file(&self.temporary);
        }
    }
}
