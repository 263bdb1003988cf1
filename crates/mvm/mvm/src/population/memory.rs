// SPDX-License-Identifier: Apache-2.0
//! The memory reserve of the host, so that the kernel never has to kill a process.

use super::Holding;
use crate::error::{Error, Result};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use vtax_core::Bytes;
use vtax_kernel::MemInfo;

/// The reserve is one part in this many of the host's memory.
const RESERVED_PART: u64 = 32;

/// The smallest memory of a guest in bytes, as measured.
fn least(holding: Holding) -> u64 {
    match holding {
        Holding::Live => 128 << 10,
        Holding::Parked => 128,
    }
}

/// Boots between two checks of the host's memory, which take 50 µs.
fn boots_between_checks(holding: Holding) -> u32 {
    match holding {
        Holding::Live => 64,
        Holding::Parked => 8192,
    }
}

/// Makes the allocator return large allocations to the host when they are freed.
///
/// A guest that has written much is stored again after each turn, by any worker. By default glibc takes allocations of
/// a size that was freed once from the workers' heaps, where freed memory between others is not returned.
#[cfg_attr(
    target_env = "gnu",
    allow(unsafe_code, reason = "a setting of the C library")
)]
pub fn return_large_allocations() {
    /// The threshold in bytes. A guest that has written little is stored in a hundredth of it.
    #[cfg(target_env = "gnu")]
    const LARGE: i32 = 32 << 10;
    // SAFETY: takes numbers only, and locks the allocator itself.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}

/// The open file /proc/meminfo, which the sandbox does not affect.
#[derive(Debug)]
struct MemoryFile(File);

impl MemoryFile {
    const PATH: &str = "/proc/meminfo";

    fn open() -> Result<Self> {
        let file = File::open(Self::PATH).map(Self);
        file.map_err(Error::file("open", Path::new(Self::PATH)))
    }

    /// All memory of the host, and the memory that can be allocated, in bytes.
    fn read(&self) -> Result<(u64, u64)> {
        // The kernel writes the whole text, less than 2 KiB, in one read from the start.
        let mut text = [0; 8192];
        let length = self.0.read_at(&mut text, 0);
        let length = length.map_err(Error::file("read", Path::new(Self::PATH)))?;
        let info = MemInfo::parse(text.get(..length).unwrap_or_default());
        let bytes = |value: Option<Bytes>| value.unwrap_or_default().0;
        Ok((bytes(info.total), bytes(info.available)))
    }
}

/// The memory reserve.
#[derive(Debug)]
pub struct Reserve {
    meminfo: MemoryFile,
    /// The reserve in bytes.
    kept: u64,
}

impl Reserve {
    /// The reserve of this host.
    ///
    /// # Errors
    /// [`Error::File`] when the host's memory cannot be read.
    pub fn of_this_host() -> Result<Self> {
        let meminfo = MemoryFile::open()?;
        let (total, _) = meminfo.read()?;
        let kept = total / RESERVED_PART;
        Ok(Self { meminfo, kept })
    }

    /// Refuses a population that cannot fit.
    ///
    /// # Errors
    /// [`Error::Exhausted`]; [`Error::File`] when the host's memory cannot be read.
    pub fn admit(&self, count: u32, holding: Holding) -> Result<()> {
        let (_, available) = self.meminfo.read()?;
        self.admit_with(count, holding, available)
    }

    fn admit_with(&self, count: u32, holding: Holding, available: u64) -> Result<()> {
        let needed = u64::from(count).saturating_mul(least(holding));
        if needed.saturating_add(self.kept) <= available {
            return Ok(());
        }
        Err(exhausted(count))
    }

    /// Refuses a boot that would use the reserve. Guest `offset` is next.
    ///
    /// # Errors
    /// [`Error::Exhausted`]; [`Error::File`] when the host's memory cannot be read.
    pub fn check(&self, offset: u32, holding: Holding) -> Result<()> {
        if !offset.is_multiple_of(boots_between_checks(holding)) {
            return Ok(());
        }
        let (_, available) = self.meminfo.read()?;
        self.check_with(offset, available)
    }

    fn check_with(&self, offset: u32, available: u64) -> Result<()> {
        if available >= self.kept {
            return Ok(());
        }
        Err(exhausted(offset.saturating_add(1)))
    }
}

/// The error of a population that needs more memory than there is.
pub fn exhausted(count: u32) -> Error {
    Error::Exhausted {
        tried: format!("hold {count} guests"),
        limit: "memory",
        cause: io::Error::from_raw_os_error(libc::ENOMEM),
        remedy: "ask for fewer guests, park them, free memory, or raise `ulimit -v`".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reserve(kept: u64) -> Reserve {
        let meminfo = MemoryFile::open().unwrap();
        Reserve { meminfo, kept }
    }

    #[test]
    fn a_population_that_would_eat_the_reserve_is_refused() {
        let reserve = reserve(1 << 30);
        let live = |count, available| reserve.admit_with(count, Holding::Live, available);
        assert!(live(8192, 2 << 30).is_ok());
        let error = live(8193, 2 << 30).unwrap_err().to_string();
        assert!(
            error.contains("8193 guests") && error.contains("memory is exhausted"),
            "{error}"
        );
        assert!(
            reserve
                .admit_with(1_000_000, Holding::Parked, 2 << 30)
                .is_ok()
        );
    }

    #[test]
    fn a_boot_ends_before_the_reserve_is_touched() {
        let reserve = reserve(1000);
        assert!(reserve.check_with(64, 1000).is_ok());
        assert!(reserve.check_with(64, 999).is_err());
    }
}
