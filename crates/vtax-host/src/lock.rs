//! One lab at a time on a host: two would measure each other.

use crate::HostError;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;

/// Held while a lab runs; the kernel releases it however the process ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the host's lock; `purpose` tells others what runs.
    ///
    /// # Errors
    /// When another lab holds it, naming that lab.
    pub fn acquire(state_dir: &Path, purpose: &str) -> Result<Self, HostError> {
        fs::create_dir_all(state_dir).map_err(HostError::file("create", state_dir))?;
        let path = state_dir.join("lock");
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(HostError::file("write", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                file.read_to_string(&mut holder)
                    .map_err(HostError::file("read", &path))?;
                return Err(HostError::Busy {
                    what: format!("another lab runs on this host ({})", holder.trim()),
                    remedy: "two labs would measure each other; wait for it to end, or stop it"
                        .to_owned(),
                });
            }
            Err(TryLockError::Error(cause)) => {
                return Err(HostError::File {
                    action: "lock",
                    path,
                    cause,
                });
            }
        }
        let text = format!("process {}, {purpose}\n", std::process::id());
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(text.as_bytes()))
            .map_err(HostError::file("write", &path))?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_lab_is_told_who_holds_the_lock() {
        let state = tempfile::tempdir().unwrap();
        let first = Lock::acquire(state.path(), "running plan a").unwrap();
        let refused = Lock::acquire(state.path(), "running plan b")
            .unwrap_err()
            .to_string();
        assert!(refused.contains("running plan a"), "{refused}");
        assert!(
            refused.contains(&std::process::id().to_string()),
            "{refused}"
        );
        drop(first);
        Lock::acquire(state.path(), "running plan b").unwrap();
    }
}
