// SPDX-License-Identifier: Apache-2.0
//! Guest memory: the mapped regions that a front end shares, and the translation of guest and front-end addresses to
//! host pointers.
//!
//! Guests and front ends write these bytes at any time, so that no Rust reference to them exists: there are only raw
//! pointers, and every access is a copy or an atomic.

mod account;
mod log;
mod mapping;
mod pager;
mod room;
mod segment;
mod sigbus;
#[cfg(test)]
mod translation_tests;

pub use account::{Account, AccountWarning, any_half_used};
pub use log::{DirtyLog, dirty_log};
pub use mapping::{Mapping, MemoryError};
pub use pager::{REQUESTS as PAGER_REQUESTS, open_pager, pager_sees_kernel, start_pager};
pub use room::Room;
pub use segment::{Segment, copy, own, peek, peek_from};
pub use sigbus::{install as survive_truncation, seen as any_truncation};

use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The size of the pages of a dirty log (vhost-user specification, "Migration"), in bytes.
pub const LOG_PAGE: u64 = 4096;

/// The most regions that one guest may have. QEMU has up to 32 with memory slots in practice; each
/// costs one mapping.
pub const MAX_REGIONS: usize = 32;

/// The most bytes that one guest may share: 64 ports with as much take half of the 128 TiB that a process can address.
pub const MOST_MAPPED: u64 = 1 << 40;

/// A region as the front end describes it. All three are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionDescription {
    /// Guest-physical address.
    pub guest: u64,
    /// Length.
    pub size: u64,
    /// Address in the front end's own address space, which it uses for ring addresses.
    pub user: u64,
    /// Where the region starts in the file.
    pub offset: u64,
}

/// A mapped region of guest memory, as the kernel's vhost takes it (`linux/vhost_types.h`). All are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct MappedRegion {
    /// Guest-physical address.
    pub guest: u64,
    /// Length.
    pub size: u64,
    /// Where it is mapped in this process.
    pub host: u64,
    /// None are defined.
    pub flags: u64,
}

#[derive(Debug)]
struct Region {
    description: RegionDescription,
    /// The host address of the region's first byte.
    host: *mut u8,
    mapping: Mapping,
}

/// The memory of one guest.
#[derive(Debug)]
pub struct GuestMemory {
    /// The regions, the largest first: it contains nearly every address.
    regions: Vec<Region>,
    /// The most bytes of all regions.
    most: u64,
    /// The account of bytes that this program may populate; without one there is no limit.
    account: Option<Arc<Account>>,
}

impl Default for GuestMemory {
    fn default() -> Self {
        Self::at_most(MOST_MAPPED)
    }
}

// SAFETY: the pointers lead into mappings that this value owns and that are shared with other processes anyway; the
// thread that holds them makes no difference.
unsafe impl Send for GuestMemory {}

impl GuestMemory {
    /// Empty, for regions of `most` bytes together, and never more than [`MOST_MAPPED`].
    pub fn at_most(most: u64) -> Self {
        Self {
            regions: Vec::new(),
            most: most.min(MOST_MAPPED),
            account: None,
        }
    }

    /// The same with an account of the bytes that this program may populate.
    #[must_use]
    pub fn on_account(mut self, account: Option<Arc<Account>>) -> Self {
        self.account = account;
        self
    }

    /// The account of bytes that this program may populate.
    pub fn account(&self) -> Option<&Arc<Account>> {
        self.account.as_ref()
    }

    /// Empty memory with the same bounds.
    #[must_use]
    pub fn anew(&self) -> Self {
        Self::at_most(self.most).on_account(self.account.clone())
    }

    /// Maps a region and adds it.
    ///
    /// # Errors
    /// When it is empty, wraps around, overlaps another, is longer than its file, is one too many,
    /// or cannot be mapped.
    pub fn add(
        &mut self,
        description: RegionDescription,
        file: OwnedFd,
    ) -> Result<(), MemoryError> {
        let RegionDescription {
            guest,
            size,
            user,
            offset,
        } = description;
        let refuse = |why| MemoryError::Region { description, why };
        if size == 0 {
            return Err(refuse("it is empty"));
        }
        if [guest, user, offset]
            .iter()
            .any(|start| start.checked_add(size).is_none())
        {
            return Err(refuse("it wraps around the address space"));
        }
        let overlaps = |a: u64, other_start: u64, other_size: u64| {
            a < other_start + other_size && other_start < a + size
        };
        for other in &self.regions {
            let other = other.description;
            // QEMU before 8.0 announces each region once for every queue pair.
            if other == description {
                return Ok(());
            }
            if overlaps(guest, other.guest, other.size) || overlaps(user, other.user, other.size) {
                return Err(refuse("it overlaps another region"));
            }
        }
        if self.regions.len() == MAX_REGIONS {
            return Err(refuse("there are too many regions"));
        }
        let (what, most) = ("guest memory", self.most);
        let have = self.regions.iter().map(|region| region.description.size);
        let len = have.sum::<u64>().saturating_add(size);
        if len > most {
            return Err(MemoryError::TooMuch { what, len, most });
        }
        let mapping = Mapping::new(file, offset, size, what, self.account())?;
        let host = mapping
            .at(0, size)
            .ok_or_else(|| refuse("it leaves its file"))?;
        self.regions.push(Region {
            description,
            host,
            mapping,
        });
        self.regions
            .sort_by_key(|region| std::cmp::Reverse(region.description.size));
        Ok(())
    }

    /// Unmaps the region with this description, whose offset does not count. There may be none:
    /// QEMU before 8.0 takes each region back once for every queue pair.
    pub fn remove(&mut self, description: RegionDescription) {
        self.regions.retain(|region| {
            let have = region.description;
            (have.guest, have.size, have.user)
                != (description.guest, description.size, description.user)
        });
    }

    /// The end of the highest region, as a guest-physical address. A dirty log must reach it.
    pub fn end(&self) -> u64 {
        self.regions
            .iter()
            .map(|region| region.description.guest + region.description.size)
            .max()
            .unwrap_or(0)
    }

    /// The regions with their addresses in this process, for vhost.
    pub fn mapped(&self) -> Vec<MappedRegion> {
        let region = |region: &Region| MappedRegion {
            guest: region.description.guest,
            size: region.description.size,
            host: region.host.addr() as u64,
            flags: 0,
        };
        self.regions.iter().map(region).collect()
    }

    /// Whether the file of some region was truncated while it was mapped. From then on the guest and this process have
    /// different memory there.
    pub fn is_truncated(&self) -> bool {
        self.regions
            .iter()
            .any(|region| region.mapping.is_truncated())
    }

    /// The longest contiguous piece at a guest-physical address, at most `len` bytes.
    #[inline]
    pub fn at(&self, guest: u64, len: u32) -> Option<Segment> {
        for region in &self.regions {
            let inside = guest.wrapping_sub(region.description.guest);
            if inside < region.description.size {
                let room = region.description.size - inside;
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "a u64 that is at most `len` fits a u32, and `inside` is inside the mapping"
                )]
                return Some(Segment {
                    host: region.host.wrapping_add(inside as usize),
                    len: room.min(u64::from(len)) as u32,
                    guest,
                    writable: false,
                });
            }
        }
        None
    }

    /// `len` bytes at an address of the front end, all in one region, aligned to `align` bytes. Returns the host
    /// address and the guest-physical one.
    pub fn at_user(&self, user: u64, len: u64, align: u64) -> Option<(*mut u8, u64)> {
        let region = self.regions.iter().find(|region| {
            let inside = user.wrapping_sub(region.description.user);
            inside < region.description.size && len <= region.description.size - inside
        })?;
        let inside = user - region.description.user;
        let host = region.host.wrapping_add(usize::try_from(inside).ok()?);
        (host.addr() as u64)
            .is_multiple_of(align)
            .then_some((host, region.description.guest + inside))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    fn file(size: u64) -> OwnedFd {
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, size).unwrap();
        file
    }

    fn region(guest: u64, size: u64, user: u64, offset: u64) -> RegionDescription {
        RegionDescription {
            guest,
            size,
            user,
            offset,
        }
    }

    #[test]
    fn an_address_is_found_in_its_region_and_no_further_than_its_end() {
        let mut memory = GuestMemory::default();
        memory
            .add(region(0, 0x2000, 0x7000_0000, 0), file(0x2000))
            .unwrap();
        memory
            .add(region(0x10_0000, 0x1000, 0x8000_0000, 0x1000), file(0x2000))
            .unwrap();
        assert_eq!(memory.at(0x1ff0, 64).unwrap().len, 16);
        assert_eq!(memory.at(0x10_0000, 64).unwrap().len, 64);
        assert!(memory.at(0x2000, 1).is_none());
        assert!(memory.at(u64::MAX, 1).is_none());
        assert_eq!(memory.end(), 0x10_1000);
        let (_, guest) = memory.at_user(0x8000_0010, 16, 16).unwrap();
        assert_eq!(guest, 0x10_0010);
        assert!(memory.at_user(0x8000_0010, 0x1000, 1).is_none());
        assert!(memory.at_user(0x8000_0011, 16, 16).is_none());
    }

    #[test]
    fn regions_that_cannot_be_are_refused() {
        let mut memory = GuestMemory::default();
        memory
            .add(region(0x1000, 0x1000, 0x1000, 0), file(0x1000))
            .unwrap();
        for bad in [
            region(0x9000, 0, 0x9000, 0),
            region(0x1800, 0x1000, 0x9000, 0),
            region(0x9000, 0x1000, 0x1fff, 0),
            region(u64::MAX, 0x1000, 0x9000, 0),
            region(0x9000, 0x1000, u64::MAX, 0),
            region(0x9000, 0x1000, 0x9000, u64::MAX),
            region(0x9000, 0x1000, 0x9000, 0x1),
            region(0x9000, 0x4000, 0x9000, 0),
        ] {
            assert!(memory.add(bad, file(0x1000)).is_err(), "{bad:?}");
        }
        memory.remove(region(0x1000, 0x1000, 0x1001, 0));
        assert_eq!(memory.regions.len(), 1);
        memory
            .add(region(0x1000, 0x1000, 0x1000, 0), file(0x1000))
            .unwrap();
        assert_eq!(memory.regions.len(), 1, "the same once more is no other");
        memory.remove(region(0x1000, 0x1000, 0x1000, 7));
        assert!(memory.regions.is_empty());
    }

    /// A file of huge pages. The host may have none free: an access then raises SIGBUS as well.
    fn huge(name: &str, size: u64) -> Option<OwnedFd> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let file = memfd_create(name, flags)
            .inspect_err(|cause| eprintln!("SKIPPED: no huge pages: {cause}"))
            .ok()?;
        ftruncate(&file, size).unwrap();
        Some(file)
    }

    #[test]
    fn huge_pages_cut_under_a_region_of_an_odd_size_end_nobody() {
        survive_truncation().unwrap();
        let Some(file) = huge("odd", 0x40_0000) else {
            return;
        };
        let mut memory = GuestMemory::default();
        memory
            .add(region(0, 0x20_1000, 0, 0), file.try_clone().unwrap())
            .unwrap();
        ftruncate(&file, 0).unwrap();
        let segment = memory.at(0, 1).unwrap();
        // SAFETY: the segment is one byte of a mapping that lives.
        let byte = unsafe { segment.host.read_volatile() };
        assert_eq!((byte, memory.is_truncated()), (0, true));
    }

    #[test]
    fn huge_pages_of_an_odd_size_are_unmapped_whole() {
        let Some(file) = huge("leaves nothing behind", 0x40_0000) else {
            return;
        };
        let mut memory = GuestMemory::default();
        memory.add(region(0, 0x20_1000, 0, 0x1000), file).unwrap();
        drop(memory);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.contains("leaves nothing behind"), "{maps}");
    }

    #[test]
    fn no_port_takes_more_than_its_share_of_the_address_space() {
        let mut memory = GuestMemory::default();
        let half = MOST_MAPPED / 2;
        memory.add(region(0, half, 0, 0), file(half)).unwrap();
        let more = region(1 << 50, half + LOG_PAGE, 1 << 50, 0);
        let refused = memory.add(more, file(2 * half)).unwrap_err();
        assert!(refused.to_string().contains("may share"), "{refused}");
        // A mapped part of a large file counts by the length of the part.
        let part = region(1 << 50, LOG_PAGE, 1 << 50, 60 << 40);
        memory.add(part, file(61 << 40)).unwrap();
    }

    #[test]
    fn a_file_cut_under_its_mapping_is_noticed_and_survived() {
        survive_truncation().unwrap();
        let mut memory = GuestMemory::default();
        let file = file(0x4000);
        memory
            .add(region(0, 0x4000, 0, 0), file.try_clone().unwrap())
            .unwrap();
        let segment = memory.at(0x3000, 1).unwrap();
        ftruncate(&file, 0x1000).unwrap();
        assert!(!memory.is_truncated());
        // SAFETY: the segment is one byte of a mapping that lives.
        let byte = unsafe { segment.host.read_volatile() };
        assert_eq!(byte, 0);
        assert!(memory.is_truncated() && any_truncation());
    }

    #[test]
    fn pages_that_nobody_touched_are_populated_as_far_as_the_account_goes() {
        if let Err(cause) = open_pager() {
            return eprintln!("SKIPPED: no userfaultfd: {cause}");
        }
        start_pager().unwrap();
        let account = Arc::new(Account::with_limit(2 * LOG_PAGE));
        let mut memory = GuestMemory::default().on_account(Some(account.clone()));
        let file = file(8 * LOG_PAGE);
        // A page that the file's owner touched first takes nothing off the account.
        rustix::io::pwrite(&file, &[7], 0).unwrap();
        memory
            .add(region(0, 8 * LOG_PAGE, 0, 0), file.try_clone().unwrap())
            .unwrap();
        let page = |number: u64| memory.at(number * LOG_PAGE, 1).unwrap().host;
        // SAFETY: each is one byte of a mapping that lives.
        let touch = |number| unsafe { page(number).read_volatile() };
        assert_eq!([touch(0), touch(0), touch(1), touch(1)], [7, 7, 0, 0]);
        let (_reader, pipe) = rustix::pipe::pipe().unwrap();
        // SAFETY: one byte of a mapping that lives and that no other code writes.
        let byte = unsafe { std::slice::from_raw_parts(page(2), 1) };
        let by_kernel = rustix::io::write(&pipe, byte);
        if !pager_sees_kernel() {
            assert_eq!(by_kernel, Err(rustix::io::Errno::FAULT));
            touch(2);
        }
        assert!(!memory.is_truncated() && !account.is_overdrawn());
        assert_eq!(touch(3), 0);
        assert!(memory.is_truncated() && account.is_overdrawn());
        assert_eq!(touch(0), 0, "it is the front end's memory no more");
        let stat = rustix::fs::fstat(&file).unwrap();
        assert_eq!(
            stat.st_blocks * 512,
            3 * 4096,
            "and no page was added to that"
        );
        drop(memory);
        account.front_end_left(crate::poller::now());
        assert!(!account.is_overdrawn());
    }
}
