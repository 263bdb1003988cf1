// SPDX-License-Identifier: Apache-2.0
//! Temporary directories with a lock. The lock distinguishes a directory in use from one that a killed vtax left
//! behind, across process namespaces, users and machines.

use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use vtax_host::HostError;

/// The prefix of their names.
const PREFIX: &str = "vtax-scratch-";

/// A temporary directory, removed on drop.
#[derive(Debug)]
pub(crate) struct Scratch {
    directory: TempDir,
    _lock: File,
}

impl Scratch {
    /// Creates a directory and removes those that killed processes left in `below`.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn create(below: &Path) -> Result<Self, HostError> {
        sweep(below);
        loop {
            let directory = tempfile::Builder::new()
                .prefix(PREFIX)
                .tempdir_in(below)
                .map_err(HostError::file("create a directory in", below))?;
            // Another process may have removed it before the lock.
            if let Some(lock) = lock(directory.path())
                && directory.path().exists()
            {
                return Ok(Self {
                    directory,
                    _lock: lock,
                });
            }
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Removes a file or directory in one step, so that no half-removed directory keeps its name.
///
/// # Errors
/// When it cannot be renamed. Renamed files that cannot be removed stay in a temporary directory.
pub(crate) fn remove(path: &Path) -> Result<(), HostError> {
    let away = Scratch::create(path.parent().unwrap_or(path))?;
    fs::rename(path, away.path().join("away")).map_err(HostError::file("remove", path))
}

fn lock(path: &Path) -> Option<File> {
    let directory = File::open(path).ok()?;
    flock(&directory, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(directory)
}

/// Removes the directories of killed processes.
fn sweep(below: &Path) {
    let entries = fs::read_dir(below).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    let left: Vec<(PathBuf, File)> = ours
        .filter_map(|entry| Some((entry.path(), lock(&entry.path())?)))
        .collect();
    for (path, _lock) in left {
        // A failure leaves the directory to the next sweep.
        let _ = vtax_files::remove_all(&path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn what_a_killed_vtax_left_is_swept_and_what_others_have_stays() {
        let below = tempfile::tempdir().unwrap();
        let own = Scratch::create(below.path()).unwrap();
        let left = below.path().join(format!("{PREFIX}left"));
        for path in [left.as_path(), &below.path().join("somebody's")] {
            fs::create_dir(path).unwrap();
            fs::write(path.join("initrd"), "x").unwrap();
        }
        // A child process of another test may briefly have a lock, too.
        let deadline = Instant::now() + Duration::from_secs(10);
        while left.exists() && Instant::now() < deadline {
            sweep(below.path());
        }
        assert!(!left.exists());
        assert!(own.path().exists());
        assert_eq!(fs::read_dir(below.path()).unwrap().count(), 2);
        drop(own);
        assert_eq!(fs::read_dir(below.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_removed_leaves_nothing_behind() {
        let below = tempfile::tempdir().unwrap();
        let path = below.path().join("a");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("b"), "").unwrap();
        remove(&path).unwrap();
        assert_eq!(fs::read_dir(below.path()).unwrap().count(), 0);
        assert!(remove(&path).is_err());
    }
}
