// SPDX-License-Identifier: Apache-2.0
//! Guest memory: a memfd that the back end maps too, and a bump allocator in it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

/// The guest-physical address of guest memory. It is not zero, so that confused addresses fail.
pub const GUEST_BASE: u64 = 1 << 30;

/// Memory of a simulated guest. It is never unmapped, since tests and benchmarks are short.
#[derive(Debug)]
pub struct GuestMemory {
    file: OwnedFd,
    base: NonNull<u8>,
    size: usize,
    used: usize,
}

// SAFETY: the pointer is to a shared mapping that lives as long as the process, and all access
// goes through volatile copies and atomics.
unsafe impl Send for GuestMemory {}

impl GuestMemory {
    /// Allocates memory of `size` bytes.
    ///
    /// # Errors
    /// When the kernel has no memory or file descriptors left.
    pub fn new(size: usize) -> std::io::Result<Self> {
        let file = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, size as u64)?;
        let (access, sharing) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), size, access, sharing, &file, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            file,
            base,
            size,
            used: 0,
        })
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size as u64
    }

    /// The address of its first byte in this process: the "user address" of vhost-user.
    pub fn user_base(&self) -> u64 {
        self.base.as_ptr().addr() as u64
    }

    /// Allocates `size` bytes, aligned to 4096, and returns their guest-physical address. Bytes past the end cannot be
    /// written or read.
    pub fn allocate(&mut self, size: usize) -> u64 {
        let start = self.used;
        self.used = (start + size).next_multiple_of(4096);
        GUEST_BASE + start as u64
    }

    /// Truncates the file at a guest-physical address while the back end has it mapped. No byte past it may be
    /// accessed afterwards.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn truncate(&self, address: u64) -> std::io::Result<()> {
        let len = address.saturating_sub(GUEST_BASE);
        Ok(rustix::fs::ftruncate(&self.file, len)?)
    }

    /// Writes bytes; nothing if any of them is outside of the memory.
    pub fn write(&self, address: u64, bytes: &[u8]) {
        if let Some(to) = self.pointer(address, bytes.len()) {
            // SAFETY: `pointer` has checked the range; the other side may read while we write,
            // which is its concern: it sees bytes, and we make no reference into the mapping.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) }
        }
    }

    /// Reads bytes; zeros if any of them is outside of the memory.
    pub fn read(&self, address: u64, bytes: &mut [u8]) {
        match self.pointer(address, bytes.len()) {
            // SAFETY: as in `write`.
            Some(from) => unsafe {
                std::ptr::copy_nonoverlapping(from.as_ptr(), bytes.as_mut_ptr(), bytes.len());
            },
            None => bytes.fill(0),
        }
    }

    /// Reads a ring index.
    pub fn load(&self, address: u64, order: Ordering) -> u16 {
        self.index(address)
            .map_or(0, |index| u16::from_le(index.load(order)))
    }

    /// Writes a ring index.
    pub fn store(&self, address: u64, value: u16, order: Ordering) {
        if let Some(index) = self.index(address) {
            index.store(value.to_le(), order);
        }
    }

    fn index(&self, address: u64) -> Option<&AtomicU16> {
        let pointer = self.pointer(address, 2)?.cast::<u16>();
        // SAFETY: in range, aligned, alive as long as `self`, and only ever used atomically.
        pointer
            .is_aligned()
            .then(|| unsafe { AtomicU16::from_ptr(pointer.as_ptr()) })
    }

    fn pointer(&self, address: u64, len: usize) -> Option<NonNull<u8>> {
        let offset = usize::try_from(address.checked_sub(GUEST_BASE)?).ok()?;
        let inside = offset.checked_add(len)? <= self.size;
        // SAFETY: the offset is within the mapping.
        inside.then(|| unsafe { self.base.add(offset) })
    }
}

impl AsFd for GuestMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_outside_is_touched() {
        let mut memory = GuestMemory::new(8192).unwrap();
        let start = memory.allocate(100);
        memory.write(start, b"hello");
        let mut bytes = [0; 5];
        memory.read(start, &mut bytes);
        assert_eq!(&bytes, b"hello");
        for outside in [0, GUEST_BASE - 1, GUEST_BASE + 8190, u64::MAX] {
            memory.write(outside, b"hello");
            memory.read(outside, &mut bytes);
            assert_eq!(bytes, [0; 5]);
        }
        assert_eq!(memory.allocate(1), GUEST_BASE + 4096);
    }
}
