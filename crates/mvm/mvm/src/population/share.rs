// SPDX-License-Identifier: Apache-2.0
//! Fair shares of processor time among the guests of several processes.
//!
//! A process gives its next turn to the guest that has had the least processor time. Without sharing, a guest that is
//! alone in its process would get as much as all guests of another process together. So each process publishes the
//! processor time of its next guest in shared memory, and a process whose next guest is ahead of all others leaves the
//! processor to them for a short time.

use crate::error::{Error, Result};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use vm_memory::{FileOffset, MmapRegion};

/// The most processes that share.
const PROCESSES: usize = 65_536;

/// Entries before those of the processes: the floor, and the number of processes.
const HEAD: usize = 2;

const BYTES: usize = (HEAD + PROCESSES) * size_of::<AtomicU64>();

/// One process's entry among those that share. An entry is 0 while no guest of its process waits, else one more than
/// the processor time of the next, in ns.
#[derive(Debug)]
pub struct Share {
    region: MmapRegion,
    own: usize,
}

impl Share {
    /// Lays out the shared memory in a new file, for no process yet.
    ///
    /// # Errors
    /// [`Error::File`] when it cannot be written.
    pub fn create(path: &Path) -> Result<Self> {
        let file = vtax_files::create(path).map_err(std::io::Error::from);
        let file = file.and_then(|file| file.set_len(BYTES as u64).map(|()| file));
        Self::map(path, file, 0)
    }

    /// Opens the shared memory for the process with index `own`.
    ///
    /// # Errors
    /// [`Error::File`] when `path` was not made by [`Share::create`].
    pub fn join(path: &Path, own: u32) -> Result<Self> {
        let file = vtax_files::edit(path).map_err(std::io::Error::from);
        let file = file.and_then(|file| match file.metadata()?.len() {
            length if length == BYTES as u64 => Ok(file),
            other => Err(std::io::Error::other(format!("{other} bytes long"))),
        });
        Self::map(path, file, own as usize)
    }

    fn map(path: &Path, file: std::io::Result<File>, own: usize) -> Result<Self> {
        let failed = Error::file("share processor time by", path);
        let region = MmapRegion::build(
            Some(FileOffset::new(file.map_err(failed)?, 0)),
            BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
        );
        Ok(Self {
            region: region.map_err(|e| failed(std::io::Error::other(e.to_string())))?,
            own: own.min(PROCESSES - 1),
        })
    }

    fn entry(&self, index: usize) -> &AtomicU64 {
        let index = index.min(HEAD + PROCESSES - 1);
        // SAFETY: the index is within the mapping, which is page aligned and lives as long as the
        // borrow; other processes, too, use it only by atomic operations.
        unsafe { &*self.region.as_ptr().cast::<AtomicU64>().add(index) }
    }

    /// Sets the number of processes.
    pub fn set_processes(&self, count: u32) {
        self.entry(1).store(u64::from(count), Ordering::Release);
    }

    /// Publishes the processor time of the own next guest, in ns; `None` when no guest waits.
    pub fn publish(&self, next: Option<u64>) {
        let entry = self.entry(HEAD + self.own);
        let value = next.map_or(0, |runtime| runtime.saturating_add(1));
        if entry.load(Ordering::Relaxed) != value {
            entry.store(value, Ordering::Release);
        }
    }

    /// The processor time of the least served guest of all processes, in ns. Guests that wake start from it.
    pub fn floor(&self) -> u64 {
        self.entry(0).load(Ordering::Acquire)
    }

    /// Raises the processor time of the least served guest to `runtime` ns.
    pub fn raise_floor(&self, runtime: u64) {
        if runtime > self.floor() {
            self.entry(0).fetch_max(runtime, Ordering::AcqRel);
        }
    }

    /// The other process whose next guest has the least processor time, and that time, in ns.
    pub fn least_of_others(&self) -> Option<(usize, u64)> {
        let count = (self.entry(1).load(Ordering::Acquire) as usize).min(PROCESSES);
        (0..count)
            .filter(|process| *process != self.own)
            .filter_map(|process| {
                let value = self.entry(HEAD + process).load(Ordering::Relaxed);
                Some((process, value.checked_sub(1)?))
            })
            .min_by_key(|(_, runtime)| *runtime)
    }

    /// Removes the entry of a process that has published `runtime` for too long, because it is stopped or has ended.
    pub fn forget(&self, process: usize, runtime: u64) {
        let value = runtime.saturating_add(1);
        let entry = self.entry(HEAD + process);
        // If this fails, the process has published another time.
        let _ = entry.compare_exchange(value, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_see_each_others_next_guest_and_the_floor() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("share");
        let parent = Share::create(&path).unwrap();
        let shares: Vec<Share> = (0..3).map(|i| Share::join(&path, i).unwrap()).collect();
        parent.set_processes(3);
        assert_eq!(shares[0].least_of_others(), None);
        shares[0].publish(Some(5));
        shares[1].publish(Some(0));
        shares[2].publish(Some(7));
        assert_eq!(shares[0].least_of_others(), Some((1, 0)));
        assert_eq!(shares[1].least_of_others(), Some((0, 5)));
        shares[1].publish(None);
        assert_eq!(shares[0].least_of_others(), Some((2, 7)));
        shares[0].forget(2, 6);
        assert_eq!(shares[0].least_of_others(), Some((2, 7)));
        shares[0].forget(2, 7);
        assert_eq!(shares[0].least_of_others(), None);
        shares[2].raise_floor(9);
        shares[1].raise_floor(8);
        assert_eq!(shares[0].floor(), 9);
    }

    #[test]
    fn a_file_of_another_size_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("share");
        std::fs::write(&path, [0; 100]).unwrap();
        let error = Share::join(&path, 0).unwrap_err().to_string();
        assert!(error.contains("100 bytes"), "{error}");
    }
}
