//! Directories for a while. Whoever has one holds its lock, so that what a killed vtax left is told from what is
//! in use, whatever space of processes, user or machine it belongs to.

use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use vtax_host::HostError;

/// What they are called, before what is random.
const PREFIX: &str = "vtax-scratch-";

/// A directory that goes when dropped.
#[derive(Debug)]
pub(crate) struct Scratch {
    directory: TempDir,
    _lock: File,
}

impl Scratch {
    /// A new one; what others left behind there goes now.
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
            // Another's sweep may have come before the lock.
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

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Removes what is there in one step: what is removed by half under its name would be taken for the whole.
///
/// # Errors
/// When it cannot be moved away. What can be moved and not removed stays in a directory that is swept.
pub(crate) fn remove(path: &Path) -> Result<(), HostError> {
    let away = Scratch::create(path.parent().unwrap_or(path))?;
    fs::rename(path, away.path().join("away")).map_err(HostError::file("remove", path))
}

fn lock(path: &Path) -> Option<File> {
    let directory = File::open(path).ok()?;
    flock(&directory, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(directory)
}

/// Removes those whose vtax was killed before it could.
fn sweep(below: &Path) {
    let entries = fs::read_dir(below).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    let left: Vec<(PathBuf, File)> = ours
        .filter_map(|entry| Some((entry.path(), lock(&entry.path())?)))
        .collect();
    for (path, _lock) in left {
        // What cannot be removed is in the directory for such files.
        let _ = fs::remove_dir_all(path);
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
        // A child that another test starts has a lock for an instant, too.
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
