// SPDX-License-Identifier: Apache-2.0
//! One file descriptor of a front end, mapped shared.

use super::{Account, RegionDescription, pager, sigbus};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::OwnedFd;
use std::sync::Arc;

const HUGETLBFS: u64 = 0x9584_58f6;
const TMPFS: u64 = 0x0102_1994;

/// Magic numbers of tmpfs, hugetlbfs, ext4 and xfs. On others (FUSE, NFS) the file's server determines when a page
/// fault ends, and a worker would wait for it.
const FILE_SYSTEMS: [u64; 4] = [TMPFS, HUGETLBFS, 0xef53, 0x5846_5342];

/// Why memory of a front end was refused.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// An invalid description.
    #[error(
        "memory region at guest address {:#x}, {:#x} bytes: {why}",
        description.guest, description.size
    )]
    Region {
        /// The description from the front end.
        description: RegionDescription,
        /// The reason why it is invalid.
        why: &'static str,
    },
    /// The file is shorter than the mapping.
    #[error("{what}: {wanted:#x} bytes were announced and the file has {have:#x}")]
    Short {
        /// The purpose of the mapping.
        what: &'static str,
        /// Bytes announced.
        wanted: u64,
        /// Bytes there are.
        have: u64,
    },
    /// The mapping would leave too little of the address space for other ports.
    #[error("{what}: {len:#x} bytes in all are more than the {most:#x} that a port may share")]
    TooMuch {
        /// The purpose of the mapping.
        what: &'static str,
        /// Bytes announced.
        len: u64,
        /// The limit in bytes.
        most: u64,
    },
    /// The kernel refused.
    #[error("{what}: cannot map {len:#x} bytes: {cause}")]
    Map {
        /// The purpose of the mapping.
        what: &'static str,
        /// Bytes.
        len: u64,
        /// The kernel's reason.
        cause: rustix::io::Errno,
    },
    /// A file on a file system whose server can withhold pages.
    #[error(
        "{what}: its file is on a file system of type {kind:#x}; memory is shared on tmpfs \
         (memfd), hugetlbfs, ext4 or xfs"
    )]
    FileSystem {
        /// The purpose of the mapping.
        what: &'static str,
        /// The file system's magic number (`linux/magic.h`).
        kind: u64,
    },
    /// A dirty log that does not cover the guest's memory.
    #[error("dirty log of {have:#x} bytes: {need:#x} are needed for memory up to {end:#x}")]
    Log {
        /// Bytes of the log.
        have: u64,
        /// Bytes needed.
        need: u64,
        /// The end of guest memory.
        end: u64,
    },
}

/// A shared, readable and writable mapping of a file of a front end. Unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    /// The first page, and the bytes of all pages: the kernel maps whole ones, huge ones on hugetlbfs.
    pages: *mut u8,
    extent: usize,
    /// The offset of its start in the first page.
    inside: usize,
    /// Bytes.
    len: u64,
    /// Present until dropped.
    guard: Option<sigbus::TruncationWatch>,
    /// The registration of its missing pages, where they are on an account.
    watched: Option<pager::Watch>,
}

// SAFETY: the mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `file` from `offset` on. The file itself is closed: the mapping keeps it. Pages of tmpfs
    /// that this process populates are taken off `account`. Those of other file systems can be reclaimed, or come from
    /// a pool.
    ///
    /// # Errors
    /// When the file is shorter, or the kernel refuses.
    pub fn new(
        file: OwnedFd,
        offset: u64,
        len: u64,
        what: &'static str,
        account: Option<&Arc<Account>>,
    ) -> Result<Self, MemoryError> {
        let failed = |cause| MemoryError::Map { what, len, cause };
        let stat = rustix::fs::fstat(&file).map_err(failed)?;
        let have = u64::try_from(stat.st_size).unwrap_or(0);
        let system = rustix::fs::fstatfs(&file).map_err(failed)?;
        let kind = u64::try_from(system.f_type).unwrap_or(0);
        if !FILE_SYSTEMS.contains(&kind) {
            return Err(MemoryError::FileSystem { what, kind });
        }
        if len == 0 {
            return Err(failed(rustix::io::Errno::INVAL));
        }
        let wanted = offset
            .checked_add(len)
            .ok_or_else(|| failed(rustix::io::Errno::INVAL))?;
        if have < wanted {
            return Err(MemoryError::Short { what, wanted, have });
        }
        let page = if kind == HUGETLBFS {
            system.f_bsize
        } else {
            // SAFETY: asks for a constant. `rustix` would ask the kernel, out of the sandbox.
            unsafe { libc::sysconf(libc::_SC_PAGESIZE) }
        };
        let page = u64::try_from(page).unwrap_or(0).max(1);
        let inside = offset % page;
        let extent = (inside + len).checked_next_multiple_of(page);
        let size = |bytes: u64| usize::try_from(bytes).ok();
        let (Some(extent), Some(inside)) = (extent.and_then(size), size(inside)) else {
            return Err(failed(rustix::io::Errno::NOMEM));
        };
        // SAFETY: a new mapping at an address of the kernel's choice; it aliases no memory of this process.
        let pages = unsafe {
            mmap(
                std::ptr::null_mut(),
                extent,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                &file,
                offset - offset % page,
            )
        }
        .map_err(failed)?
        .cast::<u8>();
        let mut mapping = Self {
            pages,
            extent,
            inside,
            len,
            guard: sigbus::TruncationWatch::new(pages.addr(), extent),
            watched: None,
        };
        if mapping.guard.is_none() {
            return Err(failed(rustix::io::Errno::NOSPC));
        }
        if kind == TMPFS
            && let Some(account) = account
        {
            mapping.watched = pager::Watch::new(pages.addr(), extent, account).map_err(failed)?;
        }
        Ok(mapping)
    }

    /// The host address of `len` bytes at `offset` of the mapping, if it has all of them.
    pub fn at(&self, offset: u64, len: u64) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        let start = usize::try_from(offset).ok()?;
        (end <= self.len).then(|| self.pages.wrapping_add(self.inside + start))
    }

    /// Length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Whether the file was found shorter than the mapping.
    pub fn is_truncated(&self) -> bool {
        self.guard
            .as_ref()
            .is_some_and(sigbus::TruncationWatch::was_hit)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // First, so that another mapping at this address is never taken for this one.
        self.watched = None;
        self.guard = None;
        // SAFETY: it was mapped by `new` with this extent, and pointers to it live no longer than
        // the memory they came from.
        let _ = unsafe { munmap(self.pages.cast(), self.extent) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_whose_pages_others_serve_is_refused() {
        // A file of sysfs. It is not empty, and sysfs is none of the accepted file systems.
        let path = "/sys/kernel/mm/transparent_hugepage/enabled";
        let file = match std::fs::File::open(path) {
            Ok(file) => OwnedFd::from(file),
            Err(error) => {
                eprintln!("SKIPPED: {path}: {error}");
                return;
            }
        };
        let error = Mapping::new(file, 0, 16, "guest memory", None).unwrap_err();
        assert!(error.to_string().contains("0x62656572"), "{error}");
    }
}
