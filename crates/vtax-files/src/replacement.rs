//! A new file of a random name that takes its place as a whole.

use crate::{Dir, FileError};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::Path;

/// A random name is taken once in 2^64 times; more often is somebody else's doing.
const TRIES: u32 = 16;

/// A file that is being written. Dropping it unfinished removes it, and what has its name stays.
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
        let mut tries = 0;
        loop {
            let temporary = partial_name(&name).map_err(dir.error("write", Path::new(&name)))?;
            match dir.new_file(&temporary) {
                Ok(file) => {
                    return Ok(Self {
                        dir,
                        name,
                        temporary,
                        file,
                        is_placed: false,
                    });
                }
                Err(error) if error.already_exists() && tries < TRIES => tries += 1,
                Err(error) => return Err(dir.error("write", Path::new(&name))(error.cause)),
            }
        }
    }

    /// Where to write.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Syncs it, renames it into place and syncs the directory: from here on it survives a power cut.
    ///
    /// # Errors
    /// When the disk does not take it; then what has the name stays.
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

/// `.NAME.partial-RANDOM`, within the 255 bytes that a name may have.
pub(crate) fn partial_name(name: &OsStr) -> io::Result<OsString> {
    let mut hidden = OsString::from(".");
    // A name that is cut is still unique by its random end.
    if name.len() <= 200 {
        hidden.push(name);
    }
    hidden.push(format!(".partial-{}", random()?));
    Ok(hidden)
}

/// 16 hexadecimal digits that nobody can guess.
fn random() -> Result<String, Errno> {
    let mut bytes = [0_u8; 8];
    // So few bytes come whole.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}
