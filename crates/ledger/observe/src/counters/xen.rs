// SPDX-License-Identifier: Apache-2.0
//! Counters of a Xen domain: CPU time by domain and vCPU from the hypervisor, through Xen's libxenstat, and ring
//! requests of its block devices from blkback's sysfs files.
//!
//! Xen's control interface changes with every release, while libxenstat's functions do not: the library of the running
//! hypervisor's version is loaded when there is a domain to observe. The kernel of Dom0 does not see this time: its
//! `/proc/stat` covers only its own vCPUs.

use super::counter::{Findings, Rule};
use super::series::GuardedColumn;
use crate::{Instrument, ObserveError, Readings};
use std::ffi::{CStr, CString, c_char, c_uint, c_ulonglong, c_void};
use std::fs;
use std::path::Path;
use std::ptr::NonNull;
use vtax_core::Nanoseconds;
use vtax_core::counter;
use vtax_core::owner::Owner;
use vtax_kernel::KernelFile;
use vtax_kernel::text;

/// The source of CPU time in findings.
const LIBXENSTAT: &str = "libxenstat";

/// CPU time of one domain, in nanoseconds, as Xen's scheduler counts it.
#[derive(Debug)]
pub struct XenDomain {
    name: String,
    domain: u32,
    library: Library,
    total: GuardedColumn,
    /// `None`: the virtual processors are not recorded.
    vcpus: Option<Vec<GuardedColumn>>,
    owner: Owner,
}

impl XenDomain {
    /// Opens the counter of a domain.
    ///
    /// # Errors
    /// When this host is not a Dom0, or libxenstat of its hypervisor's version cannot be loaded.
    pub fn open(owner: &Owner, sys: &Path, domain: u32) -> Result<Self, ObserveError> {
        Ok(Self {
            name: format!("xen {owner}"),
            domain,
            library: Library::load(&library_name(sys)?)?,
            total: GuardedColumn::new(owner, counter::CPU_DOMAIN, Rule::TIME),
            vcpus: Some(Vec::new()),
            owner: owner.clone(),
        })
    }

    /// Opens the counter of this host itself, where it is the Dom0 of a hypervisor; `None` on a host without Xen. The
    /// time excludes what the Dom0 kernel accounts as idle or stolen.
    ///
    /// # Errors
    /// When this host is a guest of Xen, or libxenstat cannot be loaded.
    pub fn host(sys: &Path) -> Result<Option<Self>, ObserveError> {
        if !is_xen(sys) {
            return Ok(None);
        }
        Ok(Some(Self {
            total: GuardedColumn::new(&Owner::Host, counter::CPU_DOM0, Rule::TIME),
            vcpus: None,
            ..Self::open(&Owner::Host, sys, 0)?
        }))
    }
}

/// Whether a Xen hypervisor runs this host.
pub(super) fn is_xen(sys: &Path) -> bool {
    let kind = fs::read_to_string(sys.join("hypervisor/type"));
    kind.is_ok_and(|kind| kind.trim() == "xen")
}

impl Instrument for XenDomain {
    fn name(&self) -> &str {
        &self.name
    }

    fn read(&mut self, _now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        let times = self.library.times(self.domain)?;
        let mut findings = Findings::default();
        let change = self.total.record(times.total.0, into);
        findings.note(Path::new(LIBXENSTAT), self.total.metric(), change);
        let Some(vcpus) = &mut self.vcpus else {
            return findings.end();
        };
        for number in vcpus.len()..times.vcpus.len() {
            let metric = counter::CPU_DOMAIN_VCPU.fill(number);
            vcpus.push(GuardedColumn::new(&self.owner, metric, Rule::TIME));
        }
        for (column, time) in vcpus.iter_mut().zip(&times.vcpus) {
            let change = column.record(time.0, into);
            findings.note(Path::new(LIBXENSTAT), column.metric(), change);
        }
        findings.end()
    }
}

/// CPU time of all domains at once, as Xen's scheduler counts it.
#[derive(Debug)]
pub struct XenClock {
    library: Library,
}

impl XenClock {
    /// # Errors
    /// When this host is not a Dom0, or libxenstat of its hypervisor's version cannot be loaded.
    pub fn open(sys: &Path) -> Result<Self, ObserveError> {
        Ok(Self {
            library: Library::load(&library_name(sys)?)?,
        })
    }

    /// The time of each of `domains`, from one reading; `None` for a domain that is gone.
    ///
    /// # Errors
    /// When the hypervisor does not answer.
    pub fn read(&self, domains: &[u32]) -> Result<Vec<Option<Nanoseconds>>, ObserveError> {
        self.library.totals(domains)
    }
}

/// The version of the running hypervisor.
///
/// # Errors
/// When this host is not on Xen.
pub(super) fn version(sys: &Path) -> Result<(u16, u16), ObserveError> {
    let part = |name: &str| {
        let path = sys.join("hypervisor/version").join(name);
        let text = fs::read_to_string(&path).map_err(|cause| ObserveError::read(&path, cause))?;
        // It becomes part of the name of a file to load or to run.
        text.trim()
            .parse::<u16>()
            .map_err(|_| ObserveError::format(path, "expected a number"))
    };
    Ok((part("major")?, part("minor")?))
}

/// `libxenstat.so.4.17` on Xen 4.17.
fn library_name(sys: &Path) -> Result<String, ObserveError> {
    let (major, minor) = version(sys)?;
    Ok(format!("libxenstat.so.{major}.{minor}"))
}

/// CPU time of a domain, as the hypervisor counts it at the time of the reading.
#[derive(Debug, PartialEq, Eq)]
pub struct DomainTimes {
    /// All of it.
    pub total: Nanoseconds,
    /// By virtual processor.
    pub vcpus: Vec<Nanoseconds>,
}

type Handle = NonNull<c_void>;
type Pointer = *mut c_void;
type Init = unsafe extern "C" fn() -> Pointer;
type Release = unsafe extern "C" fn(Pointer);
type Indexed = unsafe extern "C" fn(Pointer, c_uint) -> Pointer;
type Count = unsafe extern "C" fn(Pointer) -> c_uint;
type Time = unsafe extern "C" fn(Pointer) -> c_ulonglong;

/// The functions of libxenstat that are used here (`tools/libs/stat/include/xenstat.h`), which
/// have been the same since Xen 3.
#[derive(Debug)]
struct Library {
    handle: Handle,
    uninit: Release,
    get_node: Indexed,
    free_node: Release,
    node_domain: Indexed,
    domain_cpu_ns: Time,
    domain_num_vcpus: Count,
    domain_vcpu: Indexed,
    vcpu_ns: Time,
}

// SAFETY: libxenstat keeps its state behind the handle, which only this value has, and is not
// tied to the thread that made it.
unsafe impl Send for Library {}

/// `XENSTAT_VCPU`: collect the vCPUs of every domain, and nothing else beyond the domains.
const WITH_VCPUS: c_uint = 1;

/// Collect the domains alone.
const DOMAINS: c_uint = 0;

/// More than Xen allows a domain; a larger number is not a number of vCPUs.
const MOST_VCPUS: c_uint = 1 << 15;

impl Library {
    fn load(name: &str) -> Result<Self, ObserveError> {
        let unavailable = |reason: String| {
            ObserveError::unavailable(format!("CPU time of Xen domains ({name})"), reason)
        };
        let file = CString::new(name).map_err(|cause| unavailable(cause.to_string()))?;
        // SAFETY: a name that ends with a zero. What runs on loading is the constructor of Xen's
        // own library. It stays loaded for good, so that its functions stay valid.
        let library = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return Err(unavailable(format!(
                "{}; it belongs to the Debian package libxenmisc of this Xen",
                last_error()
            )));
        }
        macro_rules! function {
            ($name:literal as $signature:ty) => {{
                // SAFETY: `library` was opened and the name is a C string.
                let address = unsafe { libc::dlsym(library, $name.as_ptr()) };
                if address.is_null() {
                    return Err(unavailable(last_error()));
                }
                // SAFETY: xenstat.h declares the function with this very signature.
                unsafe { std::mem::transmute::<Pointer, $signature>(address) }
            }};
        }
        let init = function!(c"xenstat_init" as Init);
        let uninit = function!(c"xenstat_uninit" as Release);
        let get_node = function!(c"xenstat_get_node" as Indexed);
        let free_node = function!(c"xenstat_free_node" as Release);
        let node_domain = function!(c"xenstat_node_domain" as Indexed);
        let domain_cpu_ns = function!(c"xenstat_domain_cpu_ns" as Time);
        let domain_num_vcpus = function!(c"xenstat_domain_num_vcpus" as Count);
        let domain_vcpu = function!(c"xenstat_domain_vcpu" as Indexed);
        let vcpu_ns = function!(c"xenstat_vcpu_ns" as Time);
        // SAFETY: it takes nothing and returns a handle or null.
        let handle = NonNull::new(unsafe { init() }).ok_or_else(|| {
            unavailable("it cannot reach the hypervisor; is this root in Dom0?".to_owned())
        })?;
        Ok(Self {
            handle,
            uninit,
            get_node,
            free_node,
            node_domain,
            domain_cpu_ns,
            domain_num_vcpus,
            domain_vcpu,
            vcpu_ns,
        })
    }

    fn times(&self, domain: u32) -> Result<DomainTimes, ObserveError> {
        let gone = |what: &str| {
            ObserveError::unavailable(format!("CPU time of Xen domain {domain}"), what)
        };
        let times = self.with_node(WITH_VCPUS, |node| {
            // SAFETY: the node is valid in here; a domain that is not in it is null.
            let this = unsafe { (self.node_domain)(node, domain) };
            (!this.is_null()).then(|| {
                // SAFETY: it is not null, and belongs to the node.
                let (total, vcpus) = unsafe { ((self.domain_cpu_ns)(this), self.vcpus(this)) };
                let total = Nanoseconds(total);
                DomainTimes { total, vcpus }
            })
        })?;
        times.ok_or_else(|| gone("there is no such domain"))
    }

    fn totals(&self, domains: &[u32]) -> Result<Vec<Option<Nanoseconds>>, ObserveError> {
        self.with_node(DOMAINS, |node| {
            let total = |domain: &u32| {
                // SAFETY: the node is valid in here; a domain that is not in it is null.
                let this = unsafe { (self.node_domain)(node, *domain) };
                // SAFETY: it is not null, and belongs to the node.
                (!this.is_null()).then(|| Nanoseconds(unsafe { (self.domain_cpu_ns)(this) }))
            };
            domains.iter().map(total).collect()
        })
    }

    /// Queries the hypervisor and passes the result to `f`.
    fn with_node<T>(&self, flags: c_uint, f: impl FnOnce(Pointer) -> T) -> Result<T, ObserveError> {
        // SAFETY: the handle is this library's and still open.
        let node = unsafe { (self.get_node)(self.handle.as_ptr(), flags) };
        if node.is_null() {
            return Err(ObserveError::unavailable(
                "CPU time of Xen domains",
                "the hypervisor does not answer",
            ));
        }
        let printed = f(node);
        // SAFETY: it is freed once, and nothing of it is used from here on.
        unsafe { (self.free_node)(node) };
        Ok(printed)
    }

    /// # Safety
    /// `domain` is a domain of a node that has not been freed.
    unsafe fn vcpus(&self, domain: Pointer) -> Vec<Nanoseconds> {
        // SAFETY: as the caller promises.
        let number = unsafe { (self.domain_num_vcpus)(domain) }.min(MOST_VCPUS);
        (0..number)
            .map_while(|index| {
                // SAFETY: as the caller promises; the index is below the number of vCPUs.
                let vcpu = unsafe { (self.domain_vcpu)(domain, index) };
                // SAFETY: it is not null, and belongs to the domain.
                (!vcpu.is_null()).then(|| Nanoseconds(unsafe { (self.vcpu_ns)(vcpu) }))
            })
            .collect()
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: the handle came from `xenstat_init` and is used no more.
        unsafe { (self.uninit)(self.handle.as_ptr()) };
    }
}

/// The reason that the last `dlopen` or `dlsym` of this thread failed.
fn last_error() -> String {
    // SAFETY: it takes nothing and returns null or a C string.
    let message: *const c_char = unsafe { libc::dlerror() };
    if message.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: not null, and valid until the next call of its kind on this thread.
    unsafe { CStr::from_ptr(message) }
        .to_string_lossy()
        .into_owned()
}

/// Files of `/sys/bus/xen-backend/devices/vbd-*/statistics`, the metric of each, and the unit.
const RING_FILES: [(&str, &str, u64); 5] = [
    ("rd_req", counter::VBD_READ_REQUESTS, 1),
    ("wr_req", counter::VBD_WRITE_REQUESTS, 1),
    ("rd_sect", counter::VBD_READ_BYTES, 512),
    ("wr_sect", counter::VBD_WRITE_BYTES, 512),
    ("oo_req", counter::VBD_STALLS, 1),
];

/// The source of ring requests in findings.
const RINGS: &str = "/sys/bus/xen-backend/devices";

/// Requests that a domain put into the rings of its block devices; summed over the devices that
/// blkback serves.
#[derive(Debug)]
pub struct XenRings {
    name: String,
    devices: Vec<[KernelFile; RING_FILES.len()]>,
    columns: [GuardedColumn; RING_FILES.len()],
}

impl XenRings {
    /// The devices of a domain; `None` where blkback serves none.
    ///
    /// # Errors
    /// When a device lacks one of its files.
    pub fn open(owner: &Owner, sys: &Path, domain: u32) -> Result<Option<Self>, ObserveError> {
        let folder = sys.join("bus/xen-backend/devices");
        let prefix = format!("vbd-{domain}-");
        let Ok(entries) = fs::read_dir(&folder) else {
            return Ok(None);
        };
        let mut names: Vec<String> = entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.starts_with(&prefix))
            .filter(|name| folder.join(name).join("statistics").is_dir())
            .collect();
        if names.is_empty() {
            return Ok(None);
        }
        names.sort();
        let mut devices = Vec::new();
        for name in names {
            let statistics = folder.join(name).join("statistics");
            let open = |file| KernelFile::open_one_piece(statistics.join(file));
            let [reads, writes, read, written, stalls] = RING_FILES.map(|(file, _, _)| open(file));
            devices.push([reads?, writes?, read?, written?, stalls?]);
        }
        Ok(Some(Self {
            name: format!("xen rings {owner}"),
            devices,
            columns: RING_FILES
                .map(|(_, metric, _)| GuardedColumn::new(owner, metric, Rule::FROM_ZERO)),
        }))
    }
}

impl Instrument for XenRings {
    fn name(&self) -> &str {
        &self.name
    }

    fn read(&mut self, _now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        let mut sums = [0u64; RING_FILES.len()];
        for files in &mut self.devices {
            for ((file, (_, _, scale)), sum) in files.iter_mut().zip(RING_FILES).zip(&mut sums) {
                let number = text::fields(file.read()?).next().and_then(text::number);
                let number = number.ok_or_else(|| file.unexpected("expected a number"))?;
                *sum = sum.saturating_add(number.saturating_mul(scale));
            }
        }
        let mut findings = Findings::default();
        for (column, sum) in self.columns.iter_mut().zip(sums) {
            let change = column.record(sum, into);
            findings.note(Path::new(RINGS), column.metric(), change);
        }
        findings.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Snapshot;

    fn hypervisor(major: &str, minor: &str) -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        let version = sys.path().join("hypervisor/version");
        fs::create_dir_all(&version).unwrap();
        fs::write(version.join("major"), major).unwrap();
        fs::write(version.join("minor"), minor).unwrap();
        sys
    }

    #[test]
    fn the_library_is_that_of_the_running_hypervisor() {
        let sys = hypervisor("4\n", "17\n");
        assert_eq!(library_name(sys.path()).unwrap(), "libxenstat.so.4.17");
        let hostile = hypervisor("4", "../../tmp/x");
        let message = library_name(hostile.path()).unwrap_err().to_string();
        assert!(message.contains("expected a number"), "{message}");
        let none = tempfile::tempdir().unwrap();
        let message = XenDomain::open(&Owner::Target, none.path(), 1)
            .unwrap_err()
            .to_string();
        assert!(message.contains("hypervisor/version/major"), "{message}");
    }

    #[test]
    fn a_host_without_xen_has_no_dom0_and_one_that_lacks_the_library_says_so() {
        let none = tempfile::tempdir().unwrap();
        assert!(XenDomain::host(none.path()).unwrap().is_none());
        let xen = hypervisor("0", "0");
        fs::write(xen.path().join("hypervisor/type"), "xen\n").unwrap();
        let message = XenDomain::host(xen.path()).unwrap_err().to_string();
        assert!(message.contains("libxenstat.so.0.0"), "{message}");
    }

    #[test]
    fn a_library_that_is_not_there_is_named_with_its_package() {
        let message = Library::load("libxenstat.so.0.0").unwrap_err().to_string();
        assert!(
            message.contains("libxenstat.so.0.0") && message.contains("libxenmisc"),
            "{message}"
        );
        assert!(Library::load("a\0b").is_err());
    }

    fn device(sys: &Path, name: &str, values: [&str; 5]) {
        let statistics = sys
            .join("bus/xen-backend/devices")
            .join(name)
            .join("statistics");
        fs::create_dir_all(&statistics).unwrap();
        for ((file, _, _), value) in RING_FILES.iter().zip(values) {
            fs::write(statistics.join(file), format!("{value}\n")).unwrap();
        }
    }

    #[test]
    fn requests_of_all_the_domains_devices_are_added_and_no_others() {
        let sys = tempfile::tempdir().unwrap();
        device(sys.path(), "vbd-3-51712", ["10", "1", "80", "8", "0"]);
        device(sys.path(), "vbd-3-51728", ["5", "0", "8", "0", "2"]);
        device(
            sys.path(),
            "vbd-31-51712",
            ["1000", "1000", "1000", "1000", "1000"],
        );
        let mut rings = XenRings::open(&Owner::Target, sys.path(), 3)
            .unwrap()
            .unwrap();
        let mut readings = Readings::default();
        rings.read(Nanoseconds(0), &mut readings).unwrap();
        let snapshot = Snapshot::from_readings(Nanoseconds(0), &readings);
        let value = |metric| snapshot.get(&Owner::Target, metric).unwrap().value;
        assert_eq!(value(counter::VBD_READ_REQUESTS), 15.0);
        assert_eq!(value(counter::VBD_READ_BYTES), 88.0 * 512.0);
        assert_eq!(value(counter::VBD_WRITE_BYTES), 4096.0);
        assert_eq!(value(counter::VBD_STALLS), 2.0);
    }

    #[test]
    fn a_domain_without_blkback_has_no_rings_and_garbage_is_an_error() {
        let sys = tempfile::tempdir().unwrap();
        assert!(
            XenRings::open(&Owner::Target, sys.path(), 3)
                .unwrap()
                .is_none()
        );
        device(sys.path(), "vbd-3-51712", ["many", "", "-1", "8", "0"]);
        let mut rings = XenRings::open(&Owner::Target, sys.path(), 3)
            .unwrap()
            .unwrap();
        assert!(
            rings
                .read(Nanoseconds(0), &mut Readings::default())
                .is_err()
        );
    }
}
