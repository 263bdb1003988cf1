//! A kernel setting: one value in one file of `/sys` or `/proc`, written, verified, restored.

use crate::HostError;
use crate::facts::chosen;
use crate::roots::text;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

/// What became of the undoing of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restored {
    /// The old value is in force again.
    Done,
    /// The file is gone, and with it what was changed (a CPU or driver was removed).
    Gone,
}

/// Writes an old value back and verifies it.
///
/// # Errors
/// When it cannot be written or does not stay.
pub fn restore(path: &Path, old: &str) -> Result<Restored, HostError> {
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
    match store(path, old) {
        Ok(()) => verify(path, old).map(|()| Restored::Done),
        // A CPU can go between reading and writing.
        Err(_) if !path.exists() => Ok(Restored::Gone),
        Err(cause) => Err(HostError::Setting(format!(
            "cannot restore {} to `{old}`: {cause}; as root: echo {old} > {}",
            path.display(),
            path.display()
        ))),
    }
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

/// Writes a value, in one write, to a file that is there.
///
/// # Errors
/// What the kernel says of it.
pub fn store(path: &Path, value: &str) -> std::io::Result<()> {
    OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(path)?
        .write_all(value.as_bytes())
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
