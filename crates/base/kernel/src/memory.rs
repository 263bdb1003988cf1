// SPDX-License-Identifier: Apache-2.0
//! The host's memory, from `/proc/meminfo` (proc_meminfo(5)).

use crate::{KernelError, read, text};
use std::path::Path;
use vtax_core::Bytes;

/// The values of `/proc/meminfo`; `None` where the kernel has no such line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemInfo {
    /// `MemTotal`: all memory that the kernel manages.
    pub total: Option<Bytes>,
    /// `MemAvailable`: memory that programs can get without swapping.
    pub available: Option<Bytes>,
    /// `SwapTotal`.
    pub swap_total: Option<Bytes>,
    /// `SwapFree`.
    pub swap_free: Option<Bytes>,
    /// `AnonPages`: pages of processes that are not backed by a file.
    pub anonymous: Option<Bytes>,
    /// `Shmem`: shared memory and tmpfs.
    pub shared: Option<Bytes>,
    /// `Slab`: objects of the kernel.
    pub slab: Option<Bytes>,
    /// The sum of `PageTables` and `SecPageTables`: page tables of processes and of guests.
    pub page_tables: Option<Bytes>,
    /// `Percpu`.
    pub per_cpu: Option<Bytes>,
    /// `KernelStack`.
    pub kernel_stacks: Option<Bytes>,
    /// `VmallocUsed`.
    pub vmalloc: Option<Bytes>,
}

impl MemInfo {
    /// Reads `meminfo` below `proc`.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(proc: &Path) -> Result<Self, KernelError> {
        Ok(Self::parse(&read(proc.join("meminfo"))?))
    }

    /// Parses the text of `/proc/meminfo`.
    pub fn parse(text: &[u8]) -> Self {
        let mut found = Self::default();
        for line in text::lines(text) {
            let mut fields = text::fields(line);
            let place = match fields.next() {
                Some(b"MemTotal:") => &mut found.total,
                Some(b"MemAvailable:") => &mut found.available,
                Some(b"SwapTotal:") => &mut found.swap_total,
                Some(b"SwapFree:") => &mut found.swap_free,
                Some(b"AnonPages:") => &mut found.anonymous,
                Some(b"Shmem:") => &mut found.shared,
                Some(b"Slab:") => &mut found.slab,
                Some(b"PageTables:" | b"SecPageTables:") => &mut found.page_tables,
                Some(b"Percpu:") => &mut found.per_cpu,
                Some(b"KernelStack:") => &mut found.kernel_stacks,
                Some(b"VmallocUsed:") => &mut found.vmalloc,
                _ => continue,
            };
            if let Some(kib) = fields.next().and_then(text::number) {
                let before = place.map_or(0, |bytes| bytes.0);
                *place = Some(Bytes(before.saturating_add(kib.saturating_mul(1024))));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_are_in_bytes_and_a_missing_line_has_none() {
        let text =
            b"MemTotal:       16 kB\nMemAvailable:    4 kB\nMemFree: 3 kB\nPageTables: 2 kB\n\
            SecPageTables: 1 kB\nSwapTotal: 0 kB\nSlab: lots kB\n";
        let found = MemInfo::parse(text);
        assert_eq!(found.total, Some(Bytes(16 << 10)));
        assert_eq!(found.available, Some(Bytes(4 << 10)));
        assert_eq!(found.page_tables, Some(Bytes(3 << 10)));
        assert_eq!(found.swap_total, Some(Bytes(0)));
        assert_eq!((found.slab, found.swap_free), (None, None));
    }

    #[test]
    fn an_unreadable_file_is_named_with_what_to_do() {
        let error = MemInfo::read(Path::new("/nowhere"))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("/nowhere/meminfo") && error.contains("not mounted"),
            "{error}"
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "(Mem|Slab|Page|Secs|:| |kB|[0-9]{1,22}|\n){0,60}") {
            let _ = MemInfo::parse(text.as_bytes());
        }

        #[test]
        fn huge_numbers_saturate(kib: u64) {
            let text = format!("PageTables: {kib} kB\nSecPageTables: {kib} kB\n");
            let expected = kib.saturating_mul(1024).saturating_mul(2);
            prop_assert_eq!(MemInfo::parse(text.as_bytes()).page_tables, Some(Bytes(expected)));
        }
    }
}
