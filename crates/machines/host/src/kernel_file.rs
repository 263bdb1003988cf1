// SPDX-License-Identifier: Apache-2.0
//! A kernel setting: one value in one file of `/sys` or `/proc`, written, verified, restored.

use crate::HostError;
use crate::facts::chosen;
use crate::roots::text;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// The identity of a file, independent of its path: a control group that is created again at an old path has another
/// one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// The identity of an open file. `None` in `/proc`: its inodes get new numbers whenever they leave the cache
    /// (`proc_sys_make_inode`), and its files are the same ones from boot to boot.
    fn from_file(file: &File) -> io::Result<Option<Self>> {
        const PROC_SUPER_MAGIC: i64 = 0x9fa0;
        let found = file.metadata()?;
        #[allow(clippy::unnecessary_cast, reason = "its type is the architecture's")]
        let kind = rustix::fs::fstatfs(file)?.f_type as i64;
        Ok((kind != PROC_SUPER_MAGIC).then(|| Self {
            device: found.dev(),
            inode: found.ino(),
        }))
    }
}

/// The values of a setting that vtax wrote or found, and the identity of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// The last value and the one before it: whenever vtax ends, one of these is in force.
    pub values: Vec<String>,
    /// The file, where it has an identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<Identity>,
}

impl Written {
    /// A first value of the file at `path`.
    pub fn first(path: &Path, value: &str) -> Self {
        let file = File::open(path).and_then(|file| Identity::from_file(&file));
        Self {
            values: vec![value.to_owned()],
            file: file.ok().flatten(),
        }
    }

    /// Appends the next value and keeps the one before it.
    pub fn then(&mut self, value: &str) {
        let last = self.values.pop();
        self.values.clear();
        self.values.extend(last);
        self.values.push(value.to_owned());
    }

    /// Whether a value is the last one.
    pub fn ends_with(&self, value: &str) -> bool {
        self.values.last().is_some_and(|last| last == value)
    }

    /// Whether a value is one of these.
    pub fn has(&self, value: &str) -> bool {
        self.values.iter().any(|written| written == value)
    }
}

/// The outcome of restoring a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Restored {
    /// The old value is in force again.
    Done,
    /// The file is gone, and the changed state with it (a CPU or driver was removed).
    Gone,
    /// The value in force was not set by vtax and stays; the reason, in words.
    Left(String),
}

/// Writes an old value back and verifies it, where a value that vtax wrote is still in force. Without `written` the
/// values of vtax are unknown, and the old value is written back in any case.
///
/// # Errors
/// When it cannot be written or does not stay.
pub fn restore(path: &Path, old: &str, written: Option<&Written>) -> Result<Restored, HostError> {
    let Some(now) = text(path) else {
        return if path.exists() {
            Err(unreadable(path))
        } else {
            Ok(Restored::Gone)
        };
    };
    if chosen(&now) == old {
        return Ok(Restored::Done);
    }
    let replaced = match written {
        Some(written) => replace(path, old, written),
        None => store(path, old).map(|()| None),
    };
    match replaced {
        Ok(None) => verify(path, old).map(|()| Restored::Done),
        Ok(Some(why)) => Ok(Restored::Left(why)),
        // A CPU can disappear between reading and writing.
        Err(_) if !path.exists() => Ok(Restored::Gone),
        Err(cause) => Err(HostError::Setting(format!(
            "cannot restore {} to `{old}`: {cause}; as root: echo {old} > {}",
            path.display(),
            path.display()
        ))),
    }
}

/// Replaces a value that vtax wrote by another one. Where another value is in force, writes nothing and returns the
/// reason. The check and the write use one open file, so both apply to the same file.
///
/// # Errors
/// The kernel's error.
pub fn replace(path: &Path, value: &str, written: &Written) -> io::Result<Option<String>> {
    let mut file = existing().read(true).open(path)?;
    if written.file.is_some() && Identity::from_file(&file)? != written.file {
        return Ok(Some(
            "it was made anew since, with a value of its own".to_owned(),
        ));
    }
    let mut now = String::new();
    file.read_to_string(&mut now)?;
    let now = chosen(&now);
    if !written.has(now) {
        return Ok(Some(format!("another program has set it to `{now}` since")));
    }
    // Kernel files have no length; the files of tests have one.
    let _ = file.set_len(0);
    file.write_all_at(value.as_bytes(), 0)?;
    Ok(None)
}

pub(crate) fn unreadable(path: &Path) -> HostError {
    match std::fs::read(path) {
        Err(cause) => HostError::File {
            action: "read",
            path: path.to_owned(),
            cause,
        },
        Ok(_) => HostError::Busy {
            what: format!("{} changed while it was read", path.display()),
            remedy: "try again".to_owned(),
        },
    }
}

/// Opens a device of the kernel, to read and write it.
///
/// # Errors
/// The kernel's error.
pub fn device(path: &Path) -> io::Result<File> {
    existing().read(true).open(path)
}

/// Writes a value to an existing file in one write.
///
/// # Errors
/// The kernel's error.
pub fn store(path: &Path, value: &str) -> std::io::Result<()> {
    existing()
        .truncate(true)
        .open(path)?
        .write_all(value.as_bytes())
}

/// Options for writing files of `/sys`, `/proc`, `/dev` and control groups: a missing file is not created. Only root
/// can create names in these, so no link in a path is hostile, and the kernel's own links are followed.
#[expect(
    clippy::disallowed_methods,
    reason = "files of the kernel: its own links lead to them, and no other program makes names there"
)]
fn existing() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    options
}

pub(crate) fn verify(path: &Path, wanted: &str) -> Result<(), HostError> {
    let now = text(path).ok_or_else(|| unreadable(path))?;
    if chosen(&now) == wanted {
        return Ok(());
    }
    Err(HostError::Setting(format!(
        "{} was set to `{wanted}` but reads `{}`: the kernel, its firmware or another program \
         (tuned, thermald, power-profiles-daemon) overrides it; stop that program or leave the \
         setting out of the plan",
        path.display(),
        chosen(&now)
    )))
}
