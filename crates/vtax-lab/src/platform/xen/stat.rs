//! A domain's CPU time as Xen counts it, through Xen's own library for statistics.
//!
//! `xentop` and `xl list` print whole or tenth seconds; libxenstat has nanoseconds. It is loaded
//! when a domain is booted, so that vtax needs no Xen to be built or to run elsewhere.

use crate::LabError;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr::NonNull;
use vtax_observe::{Instrument, Kind, ObserveError, Readings, Series, SeriesId, metric};
use vtax_units::{Base, Nanoseconds, Source, Unit};

/// The library's names: each version of Xen has its own. The functions below have not changed
/// since it exists (tools/xenstat/libxenstat/include/xenstat.h).
const NAMES: [&CStr; 5] = [
    c"libxenstat.so",
    c"libxenstat.so.4.20",
    c"libxenstat.so.4.19",
    c"libxenstat.so.4.18",
    c"libxenstat.so.4.17",
];

type Opaque = *mut c_void;

/// CPU time of one domain, all of its vCPUs together.
#[derive(Debug)]
pub(super) struct DomainCpu {
    library: Library,
    handle: NonNull<c_void>,
    domain: c_uint,
    series: Option<SeriesId>,
}

#[derive(Debug, Clone, Copy)]
struct Library {
    uninit: unsafe extern "C" fn(Opaque),
    get_node: unsafe extern "C" fn(Opaque, c_uint) -> Opaque,
    free_node: unsafe extern "C" fn(Opaque),
    domain: unsafe extern "C" fn(Opaque, c_uint) -> Opaque,
    cpu_ns: unsafe extern "C" fn(Opaque) -> c_ulonglong,
}

// SAFETY: the handle belongs to this value alone, and libxenstat keeps no thread-local state: it
// may be used by one thread after another.
unsafe impl Send for DomainCpu {}

impl DomainCpu {
    /// # Errors
    /// When the library is missing or cannot talk to Xen.
    pub(super) fn open(domain: u32) -> Result<Self, LabError> {
        let missing = |what: String| LabError::Missing {
            what,
            remedy: "install Xen's utilities (on Debian libxenmisc), and run as root in Dom0"
                .into(),
        };
        let loaded = NAMES.iter().find_map(|name| {
            // SAFETY: a null-terminated name; loading runs only the library's own constructors.
            NonNull::new(unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW as c_int) })
        });
        let loaded = loaded.ok_or_else(|| missing("the library libxenstat".into()))?;
        let find = |name: &str| -> Result<Opaque, LabError> {
            let symbol = CString::new(name).unwrap_or_default();
            // SAFETY: the library is loaded and never unloaded; the name is null-terminated.
            let address = unsafe { libc::dlsym(loaded.as_ptr(), symbol.as_ptr().cast::<c_char>()) };
            if address.is_null() {
                return Err(missing(format!("{name} in libxenstat")));
            }
            Ok(address)
        };
        let (init, uninit) = (find("xenstat_init")?, find("xenstat_uninit")?);
        let (get_node, free_node) = (find("xenstat_get_node")?, find("xenstat_free_node")?);
        let (of_node, cpu_ns) = (find("xenstat_node_domain")?, find("xenstat_domain_cpu_ns")?);
        // SAFETY: the addresses are of functions of these types, as xenstat.h declares them.
        let (init, library) = unsafe {
            (
                std::mem::transmute::<Opaque, unsafe extern "C" fn() -> Opaque>(init),
                Library {
                    uninit: std::mem::transmute::<Opaque, unsafe extern "C" fn(Opaque)>(uninit),
                    get_node: std::mem::transmute::<
                        Opaque,
                        unsafe extern "C" fn(Opaque, c_uint) -> Opaque,
                    >(get_node),
                    free_node: std::mem::transmute::<Opaque, unsafe extern "C" fn(Opaque)>(
                        free_node,
                    ),
                    domain: std::mem::transmute::<
                        Opaque,
                        unsafe extern "C" fn(Opaque, c_uint) -> Opaque,
                    >(of_node),
                    cpu_ns: std::mem::transmute::<
                        Opaque,
                        unsafe extern "C" fn(Opaque) -> c_ulonglong,
                    >(cpu_ns),
                },
            )
        };
        // SAFETY: takes nothing; null when Xen cannot be talked to.
        let handle = NonNull::new(unsafe { init() })
            .ok_or_else(|| missing("Xen's control interface".into()))?;
        Ok(Self {
            library,
            handle,
            domain,
            series: None,
        })
    }

    /// `None` when the domain is gone.
    fn nanoseconds(&self) -> Option<u64> {
        // SAFETY: the handle is open. Flag 0: the domains only, without devices and vCPUs.
        let node = unsafe { (self.library.get_node)(self.handle.as_ptr(), 0) };
        if node.is_null() {
            return None;
        }
        // SAFETY: the node is alive; the answer points into it, or is null.
        let domain = unsafe { (self.library.domain)(node, self.domain) };
        let time = if domain.is_null() {
            None
        } else {
            // SAFETY: the domain is of the node, which is still alive.
            Some(unsafe { (self.library.cpu_ns)(domain) })
        };
        // SAFETY: the node came from get_node and is not used after this.
        unsafe { (self.library.free_node)(node) };
        time
    }
}

impl Drop for DomainCpu {
    fn drop(&mut self) {
        // SAFETY: the handle is open and not used after this.
        unsafe { (self.library.uninit)(self.handle.as_ptr()) };
    }
}

impl Instrument for DomainCpu {
    fn name(&self) -> &str {
        "xenstat"
    }

    #[allow(clippy::cast_precision_loss, reason = "nanoseconds of hours")]
    fn read(&mut self, _now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        // A domain that ended shows in the trial itself; its counter stands still.
        let Some(time) = self.nanoseconds() else {
            return Ok(());
        };
        let id = *self.series.get_or_insert_with(|| {
            into.register(Series {
                owner: "target".into(),
                metric: metric::CPU_DOMAIN.into(),
                unit: Unit::of(Base::Nanosecond),
                kind: Kind::Counter,
                source: Source::Measured,
            })
        });
        into.record(id, time as f64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_xen_it_says_what_to_install() {
        if std::path::Path::new("/proc/xen/capabilities").exists() {
            eprintln!("SKIPPED: this host runs under Xen");
            return;
        }
        let said = DomainCpu::open(1).unwrap_err().to_string();
        assert!(said.contains("missing"), "{said}");
    }
}
