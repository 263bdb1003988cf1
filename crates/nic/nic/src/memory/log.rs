// SPDX-License-Identifier: Apache-2.0
//! The dirty log of live migration: a bit for each 4 KiB page that this process writes.

use super::{GuestMemory, LOG_PAGE, Mapping, MemoryError};
use crate::features::Features;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, Ordering};

/// The longest log, in bytes. It covers 32 TiB, because guest memory has holes between its regions.
const LONGEST_LOG: u64 = 1 << 30;

/// The dirty log, where the driver accepted that writes to its memory are logged.
#[inline]
pub fn dirty_log(log: Option<&DirtyLog>, features: Features) -> Option<&DirtyLog> {
    if features.has(Features::LOG_ALL) {
        log
    } else {
        None
    }
}

/// A dirty log that the front end shares and reads.
#[derive(Debug)]
pub struct DirtyLog {
    mapping: Mapping,
    bits: *const AtomicU8,
    /// Bytes.
    len: u64,
}

// SAFETY: the pointer leads into the mapping that this value owns, and only atomics go through it.
unsafe impl Send for DirtyLog {}

impl DirtyLog {
    /// Maps a log of `len` bytes at `offset` of `file`, whose pages are taken off the account of `memory`.
    ///
    /// # Errors
    /// When it cannot be mapped.
    pub fn new(
        file: OwnedFd,
        offset: u64,
        len: u64,
        memory: &GuestMemory,
    ) -> Result<Self, MemoryError> {
        let (what, most) = ("dirty log", LONGEST_LOG);
        if len > most {
            return Err(MemoryError::TooMuch { what, len, most });
        }
        let mapping = Mapping::new(file, offset, len, what, memory.account())?;
        let bits = mapping.at(0, len).ok_or(MemoryError::Short {
            what,
            wanted: len,
            have: mapping.len(),
        })?;
        Ok(Self {
            bits: bits.cast_const().cast(),
            len,
            mapping,
        })
    }

    /// Refuses a log too small for this memory, which would miss writes and corrupt the migrated guest.
    ///
    /// # Errors
    /// The required length, where the log is shorter.
    pub fn must_cover(&self, memory: &GuestMemory) -> Result<(), MemoryError> {
        let end = memory.end();
        let need = end.div_ceil(LOG_PAGE).div_ceil(8);
        let have = self.len;
        if have < need {
            return Err(MemoryError::Log { have, need, end });
        }
        Ok(())
    }

    /// The address of the log in this process.
    pub fn address(&self) -> u64 {
        self.bits.addr() as u64
    }

    /// Whether its file was truncated while mapped.
    pub fn is_truncated(&self) -> bool {
        self.mapping.is_truncated()
    }

    /// Marks every page that `len` bytes at a guest-physical address touch. Pages past the log are not recorded;
    /// [`DirtyLog::must_cover`] excludes them.
    pub fn mark(&self, guest: u64, len: u64) {
        if len == 0 {
            return;
        }
        let first = guest / LOG_PAGE;
        let last = guest.saturating_add(len - 1) / LOG_PAGE;
        for page in first..=last {
            if page / 8 >= self.len {
                return;
            }
            let byte = self.bits.wrapping_add((page / 8) as usize);
            // SAFETY: inside the mapping, as just compared, and the mapping lives as long as this value.
            // Release: a reader that finds the bit also finds the earlier writes to the page.
            unsafe { &*byte }.fetch_or(1 << (page % 8), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::io::pread;

    #[test]
    fn a_write_marks_every_page_that_it_touches_and_no_other() {
        let file = memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 64).unwrap();
        let log = DirtyLog::new(file.try_clone().unwrap(), 8, 2, &GuestMemory::default()).unwrap();
        log.mark(0x0fff, 2);
        log.mark(0x9000, 1);
        log.mark(0x3000, 0);
        log.mark(0x10_0000, 4096);
        log.mark(u64::MAX, 4096);
        let mut bytes = [0; 64];
        pread(&file, &mut bytes, 0).unwrap();
        assert_eq!(&bytes[8..10], &[0b11, 0b10]);
        assert_eq!(bytes.iter().map(|byte| byte.count_ones()).sum::<u32>(), 3);
    }

    #[test]
    fn a_log_smaller_than_memory_is_refused() {
        let memory_file = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory_file, 0x10_0000).unwrap();
        let mut memory = GuestMemory::default();
        memory
            .add(
                super::super::RegionDescription {
                    guest: 0,
                    size: 0x10_0000,
                    user: 0,
                    offset: 0,
                },
                memory_file,
            )
            .unwrap();
        let log = |bytes| {
            let file = memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&file, 4096).unwrap();
            DirtyLog::new(file, 0, bytes, &GuestMemory::default()).unwrap()
        };
        assert!(log(31).must_cover(&memory).is_err());
        log(32).must_cover(&memory).unwrap();
    }
}
