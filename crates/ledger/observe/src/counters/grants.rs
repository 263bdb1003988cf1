// SPDX-License-Identifier: Apache-2.0
//! Pages that this host's back ends exchange with Xen domains: BPF programs at the kernel functions through which the
//! back ends request grant operations (`bpf/grants.bpf.c`).
//!
//! An exchanged page is a page that an operation copies or maps, or a page of a blkback request that an earlier
//! operation mapped (a persistent grant), for which there is no operation.

use super::series::Column;
use crate::bpf::explain;
use crate::{Instrument, ObserveError, Readings, Subject};
use aya::maps::{Array, MapData};
use aya::programs::{KProbe, ProgramError};
use aya::{Ebpf, EbpfLoader};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use vtax_core::Nanoseconds;
use vtax_core::counter;
use vtax_core::owner::Owner;

/// Built by `bpf/build.sh`.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../bpf/grants.bpf.o");

const WHAT: &str = "pages exchanged with Xen domains (BPF)";

/// Functions of the kernel image.
const OF_KERNEL: [&str; 3] = [
    "gnttab_batch_copy",
    "gnttab_map_refs",
    "gnttab_page_cache_get",
];

/// The function of blkback, a module that may be loaded later, and the directory that shows the module.
const OF_BLKBACK: &str = "xen_blkbk_map";
const BLKBACK: &str = "module/xen_blkback";

/// The key for all domains together: `DOMAINS` of the BPF program.
const ALL: u32 = 0x7ff0;

/// `struct counts` of the BPF program.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    copied: u64,
    mapped: u64,
    used: u64,
    fresh: u64,
}

// SAFETY: `repr(C)`, integers only and no padding, so that any bytes are a value.
unsafe impl aya::Pod for Counts {}

/// Pages exchanged with a domain since the programs were attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pages {
    /// All of them.
    pub exchanged: u64,
    /// Pages that an operation copied.
    pub copied: u64,
    /// Pages that an operation mapped.
    pub mapped: u64,
}

impl Pages {
    /// Advances to a later reading. A page that is mapped for a request counts as the request's shortly before it
    /// counts as mapped: in between, the sum is too large, and it must not fall afterwards.
    fn advance(&mut self, counts: Counts) {
        let held = counts.used.saturating_sub(counts.fresh);
        let sum = counts.copied + counts.mapped + held;
        *self = Self {
            exchanged: self.exchanged.max(sum),
            copied: counts.copied,
            mapped: counts.mapped,
        };
    }
}

/// The programs, shared by all readers of their counts.
pub type SharedGrants = Arc<Mutex<GrantProbe>>;

/// The programs, attached for the lifetime of this value, and their map.
pub struct GrantProbe {
    domains: Array<MapData, Counts>,
    /// Keeps the programs attached.
    programs: Ebpf,
    blkback: PathBuf,
    sees_blkback: bool,
}

impl GrantProbe {
    /// Attaches the programs; `None` on a host without Xen.
    ///
    /// # Errors
    /// When this process may not use BPF, or the kernel has no probes at functions or lacks one of these functions.
    pub fn open(sys: &Path) -> Result<Option<SharedGrants>, ObserveError> {
        if !super::xen::is_xen(sys) {
            return Ok(None);
        }
        let unavailable = |reason: &str| ObserveError::unavailable(WHAT, reason);
        if !cfg!(target_arch = "x86_64") {
            let reason = "the programs read arguments from the registers of x86-64 alone";
            return Err(unavailable(reason));
        }
        let mut programs = EbpfLoader::new()
            .load(OBJECT)
            .map_err(|error| explain(WHAT, &error))?;
        for function in OF_KERNEL {
            attach(&mut programs, function)?;
        }
        let domains = programs
            .take_map("domains")
            .ok_or_else(|| unavailable("the BPF object has no map domains"))?
            .try_into()
            .map_err(|error: aya::maps::MapError| explain(WHAT, &error))?;
        let mut probe = Self {
            domains,
            programs,
            blkback: sys.join(BLKBACK),
            sees_blkback: false,
        };
        probe.look_for_blkback()?;
        Ok(Some(Arc::new(Mutex::new(probe))))
    }

    fn look_for_blkback(&mut self) -> Result<(), ObserveError> {
        if !self.sees_blkback && self.blkback.exists() {
            attach(&mut self.programs, OF_BLKBACK)?;
            self.sees_blkback = true;
        }
        Ok(())
    }

    /// Updates the counts of a domain, or of all domains where it is `None`.
    ///
    /// # Errors
    /// When blkback was loaded later and cannot be probed, or the map cannot be read.
    pub fn advance(&mut self, domain: Option<u32>, pages: &mut Pages) -> Result<(), ObserveError> {
        self.look_for_blkback()?;
        let index = domain.map_or(ALL, |domain| domain.min(ALL - 1));
        let counts = self.domains.get(&index, 0);
        pages.advance(counts.map_err(|error| explain(WHAT, &error))?);
        Ok(())
    }
}

fn attach(programs: &mut Ebpf, function: &str) -> Result<(), ObserveError> {
    let failed = |error: ProgramError| match explain(WHAT, &error) {
        ObserveError::Unavailable { what, reason } => ObserveError::unavailable(
            what,
            format!("cannot watch the kernel's function {function}: {reason}"),
        ),
        error => error,
    };
    let program = programs.program_mut(function);
    let program: &mut KProbe = program
        .ok_or_else(|| {
            ObserveError::unavailable(WHAT, format!("the BPF object has no program {function}"))
        })?
        .try_into()
        .map_err(failed)?;
    program.load().map_err(failed)?;
    program.attach(function, 0).map_err(failed)?;
    Ok(())
}

/// Pages exchanged with the domains of a trial, and with all of them.
pub struct Grants {
    probe: SharedGrants,
    watched: Vec<Watched>,
}

struct Watched {
    domain: Option<u32>,
    pages: Pages,
    columns: [Column; 3],
}

impl Watched {
    fn new(owner: &Owner, domain: Option<u32>) -> Self {
        Self {
            domain,
            pages: Pages::default(),
            columns: [
                counter::XEN_PAGES_EXCHANGED,
                counter::XEN_PAGES_COPIED,
                counter::XEN_PAGES_MAPPED,
            ]
            .map(|metric| Column::counter(owner, metric)),
        }
    }
}

impl Grants {
    /// Observes the subjects that are domains; `None` where none is.
    ///
    /// # Errors
    /// When this process may not use BPF, or the kernel has no probes at functions.
    pub fn open(subjects: &[Subject], sys: &Path) -> Result<Option<Self>, ObserveError> {
        if subjects.iter().all(|subject| subject.domain.is_none()) {
            return Ok(None);
        }
        let probe = GrantProbe::open(sys)?;
        Ok(probe.and_then(|probe| Self::reading(probe, subjects)))
    }

    /// Reads the counts of programs that have other readers as well.
    pub fn reading(probe: SharedGrants, subjects: &[Subject]) -> Option<Self> {
        let domains = subjects.iter().filter_map(|subject| {
            let domain = subject.domain?;
            Some(Watched::new(&subject.owner, Some(domain)))
        });
        let mut watched: Vec<Watched> = domains.collect();
        (!watched.is_empty()).then(|| {
            watched.push(Watched::new(&Owner::Host, None));
            Self { probe, watched }
        })
    }
}

impl Instrument for Grants {
    fn name(&self) -> &'static str {
        "xen pages exchanged"
    }

    fn read(&mut self, _now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        let mut probe = self.probe.lock().unwrap_or_else(PoisonError::into_inner);
        for Watched {
            domain,
            pages,
            columns,
        } in &mut self.watched
        {
            probe.advance(*domain, pages)?;
            let Pages {
                exchanged,
                copied,
                mapped,
            } = *pages;
            for (column, count) in columns.iter_mut().zip([exchanged, copied, mapped]) {
                column.record_count(count, into);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xen() -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        std::fs::create_dir(sys.path().join("hypervisor")).unwrap();
        std::fs::write(sys.path().join("hypervisor/type"), "xen\n").unwrap();
        sys
    }

    #[test]
    fn a_page_that_blkback_holds_mapped_is_exchanged_without_an_operation() {
        let counts = |copied, mapped, used, fresh| Counts {
            copied,
            mapped,
            used,
            fresh,
        };
        let mut pages = Pages::default();
        // The head of a frame was copied and the rest mapped; 8 of the 11 pages of a request were already mapped.
        pages.advance(counts(1, 1 + 3, 11, 3));
        let expected = Pages {
            exchanged: 1 + 1 + 11,
            copied: 1,
            mapped: 4,
        };
        assert_eq!(pages, expected);
        // In the middle of the next request, all 11 pages of which are mapped by an operation.
        pages.advance(counts(1, 4, 22, 3));
        assert_eq!(pages.exchanged, 24);
        pages.advance(counts(1, 4, 22, 14));
        assert_eq!(pages.exchanged, 24, "it never goes back");
        pages.advance(counts(1, 15, 22, 14));
        assert_eq!((pages.exchanged, pages.mapped), (24, 15));
        pages.advance(counts(2, 15, 22, 14));
        assert_eq!(pages.exchanged, 25);
    }

    #[test]
    fn only_domains_of_a_host_with_xen_are_watched() {
        let none = tempfile::tempdir().unwrap();
        assert!(GrantProbe::open(none.path()).unwrap().is_none());
        let mut subject = Subject::default();
        // A host without Xen, and a Xen host without the domain.
        assert!(
            Grants::open(std::slice::from_ref(&subject), xen().path())
                .unwrap()
                .is_none()
        );
        subject.domain = Some(3);
        assert!(
            Grants::open(std::slice::from_ref(&subject), none.path())
                .unwrap()
                .is_none()
        );
    }

    /// The kernel's verifier accepts every program; the functions exist only under Xen.
    #[test]
    fn the_programs_load_and_a_kernel_without_the_functions_says_which() {
        let mut programs = match EbpfLoader::new().load(OBJECT) {
            Ok(programs) => programs,
            Err(error) => {
                eprintln!("SKIPPED: {}", explain(WHAT, &error));
                return;
            }
        };
        for function in OF_KERNEL.into_iter().chain([OF_BLKBACK]) {
            let program: &mut KProbe = programs.program_mut(function).unwrap().try_into().unwrap();
            if let Err(error) = program.load() {
                let text = explain(WHAT, &error).to_string();
                // Without CONFIG_BPF_EVENTS the kernel does not support this program type.
                assert!(text.contains("Invalid argument"), "{text}");
                eprintln!("SKIPPED: {text}");
                return;
            }
        }
        if crate::Roots::host().sys.join("hypervisor/type").exists() {
            eprintln!("SKIPPED: under a hypervisor the kernel may have the functions");
            return;
        }
        let text = GrantProbe::open(xen().path()).err().unwrap().to_string();
        assert!(text.contains("gnttab_batch_copy"), "{text}");
    }
}
