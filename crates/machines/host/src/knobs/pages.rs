// SPDX-License-Identifier: Apache-2.0
//! Huge pages of 2 MiB for the memory of guests, reserved under the journal.

use crate::journal::Journal;
use crate::kernel_file::store;
use crate::roots::text;
use crate::{HostError, Roots};

/// The bytes of one page.
const PAGE_MIB: u64 = 2;

/// Reserves free huge pages for a guest of that size. Pages that are free already are used.
///
/// # Errors
/// When the kernel has no huge pages, or not enough contiguous memory for them. The journal undoes the reservation.
pub fn reserve(mib: u64, roots: &Roots, journal: &mut Journal) -> Result<(), HostError> {
    let pool = roots.sys.join("kernel/mm/hugepages/hugepages-2048kB");
    let path = pool.join("nr_hugepages");
    let count = |name: &str| text(&pool.join(name)).and_then(|text| text.parse::<u64>().ok());
    let (Some(all), Some(free)) = (count("nr_hugepages"), count("free_hugepages")) else {
        return Err(HostError::Missing {
            what: format!("{} (for vm.hugepages)", path.display()),
            remedy: "this kernel has no huge pages of 2 MiB; leave vm.hugepages out of the plan"
                .to_owned(),
        });
    };
    let wanted = mib.div_ceil(PAGE_MIB);
    let reserved = count("resv_hugepages").unwrap_or(0);
    let lacking = wanted.saturating_sub(free.saturating_sub(reserved));
    if lacking == 0 {
        return Ok(());
    }
    let value = all + lacking;
    let recorded = journal.record_setting(&path, &all.to_string(), &value.to_string())?;
    store(&path, &value.to_string()).map_err(HostError::file("write", &path))?;
    // The kernel reserves as many as it finds room for, and shows that number.
    let got = count("nr_hugepages").unwrap_or(0);
    if got >= value {
        return Ok(());
    }
    journal.rewrite(recorded, &got.to_string())?;
    Err(HostError::Setting(format!(
        "vm.hugepages = on needs {lacking} more pages of {PAGE_MIB} MiB and the kernel found room for {}; \
         free memory, reserve them at boot (hugepages={value}), or leave vm.hugepages out of the plan",
        got.saturating_sub(all)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_host::FakeHost;

    const POOL: &str = "sys/kernel/mm/hugepages/hugepages-2048kB";

    fn host(all: u64, free: u64, reserved: u64) -> FakeHost {
        let host = FakeHost::empty();
        for (name, value) in [
            ("nr_hugepages", all),
            ("free_hugepages", free),
            ("resv_hugepages", reserved),
        ] {
            host.file(&format!("{POOL}/{name}"), &format!("{value}\n"));
        }
        host
    }

    #[test]
    fn only_the_pages_that_lack_are_reserved_and_given_back() {
        let host = host(10, 10, 4);
        let mut journal = Journal::open(&host.path("state")).unwrap();
        reserve(12, &host.roots, &mut journal).unwrap();
        assert!(journal.pending().is_empty(), "six are free for six");
        reserve(32, &host.roots, &mut journal).unwrap();
        assert_eq!(host.read(&format!("{POOL}/nr_hugepages")), "20");
        journal.undo_all().unwrap();
        assert_eq!(host.read(&format!("{POOL}/nr_hugepages")).trim(), "10");
    }

    #[test]
    fn a_kernel_that_finds_no_room_is_reported_with_both_numbers() {
        let host = host(0, 0, 0);
        // Accepts every write and keeps none.
        host.link(
            &format!("{POOL}/nr_hugepages"),
            std::path::Path::new("/dev/null"),
        );
        let mut journal = Journal::open(&host.path("state")).unwrap();
        let error = reserve(256, &host.roots, &mut journal);
        assert!(error.unwrap_err().to_string().contains("vm.hugepages"));
        let error = reserve(256, &FakeHost::empty().roots, &mut journal);
        assert!(error.unwrap_err().to_string().contains("no huge pages"));
    }
}
