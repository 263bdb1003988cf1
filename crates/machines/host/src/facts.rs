// SPDX-License-Identifier: Apache-2.0
//! Facts about the host for readers of results: `host.json`. No fact names the machine or its owner: no host name, no machine
//! id, no address. Digests show whether two results are of one machine.

use crate::Roots;
use crate::roots::{names, numbered, text};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use vtax_kernel::cgroup::{CpuLimit, memberships};
use vtax_kernel::{MemInfo, mounts};

/// The contents of `host.json`. A fact that the host does not provide is absent, never guessed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostFacts {
    /// The version of vtax that wrote this.
    pub vtax: String,
    /// The processor.
    pub cpu: CpuFacts,
    /// Usable memory in bytes (`MemTotal`).
    pub memory_bytes: Option<u64>,
    /// Swap space in bytes (`SwapTotal`).
    pub swap_bytes: Option<u64>,
    /// Kernel release, as `uname -r`.
    pub kernel: Option<String>,
    /// Kernel command line.
    pub kernel_command_line: Option<String>,
    /// Distribution with its version.
    pub distribution: Option<String>,
    /// The virtualization that VMs use on this host.
    pub virtualization: Virtualization,
    /// The loaded or built-in KVM backend, whether or not it can boot a kernel.
    pub kvm_backend: Option<KvmBackend>,
    /// The hypervisor that this host itself runs under; `None` on bare metal.
    pub hypervisor: Option<String>,
    /// `/sys/devices/system/cpu/vulnerabilities`, by name.
    pub mitigations: BTreeMap<String, String>,
    /// The clock source in use.
    pub clock_source: Option<String>,
    /// The cpufreq driver of the processor; `None` without cpufreq.
    #[serde(default)]
    pub frequency_driver: Option<String>,
    /// The frequency governors in use, one entry where all CPUs agree; empty without cpufreq.
    pub governors: Vec<String>,
    /// Frequency boost above the nominal frequency; `None` where it is unknown.
    pub turbo: Option<bool>,
    /// The state of simultaneous multithreading: `on`, `off`, `notsupported`, …
    pub smt: Option<String>,
    /// The transparent hugepage policy in use.
    pub transparent_hugepages: Option<String>,
    /// Whether kernel same-page merging scans.
    pub ksm: Option<bool>,
    /// The layout of control groups.
    pub cgroups: CgroupLayout,
    /// The CPU time limit of this process's control groups, in CPUs; `None`: no limit.
    pub cpu_quota: Option<f64>,
    /// Versions of the programs that trials use, by program.
    pub programs: BTreeMap<String, String>,
    /// The kernel's id of this boot: two results with the same one ran without a reboot between.
    pub boot_id: Option<String>,
    /// What boots of one machine have in common.
    #[serde(default)]
    pub machine: MachineIdentity,
}

/// Digests that boots of one machine have in common, and other machines have not. What they are of is never stored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineIdentity {
    /// Of `/etc/machine-id`, which an installation has.
    pub installation: Option<String>,
    /// Of the board's UUID (DMI), which root can read.
    pub product: Option<String>,
}

impl MachineIdentity {
    /// Reads what this host knows.
    fn detect(roots: &Roots) -> Self {
        let digest = |kind: &str, id: String| {
            let digest = Sha256::digest(format!("vtax machine identity\0{kind}\0{id}"));
            format!("{digest:x}").chars().take(32).collect()
        };
        let installation = text(&roots.etc.join("machine-id"));
        let product = roots.sys_text("class/dmi/id/product_uuid");
        Self {
            installation: installation
                .and_then(|id| unique(&id))
                .map(|id| digest("installation", id)),
            product: product
                .and_then(|id| unique(&id))
                .map(|id| digest("product", id)),
        }
    }
}

/// UUIDs that makers of boards left in many of them.
const LEFT: [&str; 2] = [
    "03000200040005000006000700080009",
    "12345678123412341234123456789abc",
];

/// The 32 digits of an id; `None` for one that many machines have: not set, one digit over and over, or a maker's.
fn unique(id: &str) -> Option<String> {
    let digits: String = id.trim().to_lowercase().replace('-', "");
    let is_id = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let first = digits.chars().next()?;
    let is_set = digits.chars().any(|digit| digit != first) && !LEFT.contains(&digits.as_str());
    (is_id && is_set).then_some(digits)
}

/// The processor.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuFacts {
    /// The model as named by the vendor.
    pub model: Option<String>,
    /// `GenuineIntel`, `AuthenticAMD`.
    pub vendor: Option<String>,
    /// Microcode revision.
    pub microcode: Option<String>,
    /// Physical packages.
    pub sockets: usize,
    /// Physical cores.
    pub cores: usize,
    /// Online logical CPUs.
    pub threads: usize,
}

/// The virtualization that VMs use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Virtualization {
    /// KVM on Intel VT-x.
    KvmVmx,
    /// KVM on AMD-V.
    KvmSvm,
    /// KVM in software (pagetable-based virtual machine).
    KvmPvm,
    /// QEMU's emulation: results are flagged `emulated`.
    Tcg,
    /// No VMs.
    None,
}

/// The module that implements KVM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvmBackend {
    /// Intel VT-x.
    KvmIntel,
    /// AMD-V.
    KvmAmd,
    /// Software: no hardware support needed, no stock 64-bit guest kernels.
    KvmPvm,
}

impl KvmBackend {
    const ALL: [Self; 3] = [Self::KvmIntel, Self::KvmAmd, Self::KvmPvm];

    /// The backend of the running kernel: a loaded module, else a built-in one, which may only be visible in the
    /// kernel's symbols or its configuration in `/boot`.
    pub fn detect(roots: &Roots) -> Option<Self> {
        let modules = roots.sys.join("module");
        let loaded = Self::ALL
            .into_iter()
            .find(|backend| modules.join(backend.name()).is_dir());
        if loaded.is_some() || !roots.dev.join("kvm").exists() {
            return loaded;
        }
        let symbols = roots.proc_text("kallsyms").unwrap_or_default();
        // `ffffffff81000000 T vmx_vcpu_run`
        let names: BTreeSet<&str> = symbols
            .lines()
            .filter_map(|line| line.split_whitespace().nth(2))
            .collect();
        let built_in = Self::ALL
            .into_iter()
            .find(|backend| names.contains(backend.symbol()));
        if built_in.is_some() {
            return built_in;
        }
        let release = roots.proc_text("sys/kernel/osrelease")?;
        let config = text(&roots.boot.join(format!("config-{release}")))?;
        let mut configured = Self::ALL.into_iter().filter(|backend| {
            let wanted = format!("CONFIG_{}=y", backend.name().to_uppercase());
            config.lines().any(|line| line == wanted)
        });
        match (configured.next(), configured.next()) {
            // With two built in, the configuration does not show which one matches the processor.
            (Some(backend), None) => Some(backend),
            _ => None,
        }
    }

    /// A kernel function that only this backend has.
    fn symbol(self) -> &'static str {
        match self {
            Self::KvmIntel => "vmx_vcpu_run",
            Self::KvmAmd => "svm_vcpu_run",
            Self::KvmPvm => "pvm_vcpu_run",
        }
    }

    /// The module's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::KvmIntel => "kvm_intel",
            Self::KvmAmd => "kvm_amd",
            Self::KvmPvm => "kvm_pvm",
        }
    }
}

impl fmt::Display for KvmBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The mounts of control groups.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CgroupLayout {
    /// v1, v2 or both.
    pub version: CgroupVersion,
    /// The mount point of every v1 controller, by controller (`cpu`, `memory`, `name=systemd`).
    pub v1: BTreeMap<String, PathBuf>,
    /// The mount point of the v2 tree.
    pub v2: Option<PathBuf>,
    /// The controllers of the v2 tree.
    pub v2_controllers: Vec<String>,
}

/// The mounted versions of the control group interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CgroupVersion {
    /// One tree for each controller.
    V1,
    /// One unified tree.
    V2,
    /// Controllers on v1 trees beside a v2 tree.
    Hybrid,
    /// None is mounted.
    #[default]
    None,
}

impl fmt::Display for CgroupVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::V1 => "v1",
            Self::V2 => "v2",
            Self::Hybrid => "hybrid",
            Self::None => "none",
        })
    }
}

impl CgroupLayout {
    /// The layout in this process's mount namespace (`/proc/self/mountinfo`).
    pub fn detect(roots: &Roots) -> Self {
        let mut layout = Self::default();
        let table = fs::read(roots.proc.join("self/mountinfo")).unwrap_or_default();
        for mount in mounts::parse(&table) {
            match mount.kind.as_str() {
                "cgroup" => {
                    for option in mount.options {
                        if !matches!(
                            option.as_str(),
                            "rw" | "ro" | "xattr" | "clone_children" | "noprefix"
                        ) && !option.starts_with("release_agent")
                        {
                            layout
                                .v1
                                .entry(option)
                                .or_insert_with(|| mount.point.clone());
                        }
                    }
                }
                "cgroup2" if layout.v2.is_none() => layout.v2 = Some(mount.point),
                _ => {}
            }
        }
        if let Some(point) = &layout.v2 {
            layout.v2_controllers = text(&roots.resolve(point).join("cgroup.controllers"))
                .map(|list| list.split_whitespace().map(str::to_owned).collect())
                .unwrap_or_default();
        }
        layout.version = match (layout.v1.is_empty(), &layout.v2) {
            (true, None) => CgroupVersion::None,
            (true, Some(_)) => CgroupVersion::V2,
            (false, None) => CgroupVersion::V1,
            (false, Some(_)) => CgroupVersion::Hybrid,
        };
        layout
    }

    /// Whether either version offers `controller`.
    pub fn has(&self, controller: &str) -> bool {
        self.v1.contains_key(controller)
            || self.v2_controllers.iter().any(|name| name == controller)
    }
}

/// The programs whose versions are recorded, with the argument that prints the version.
const PROGRAMS: [(&str, &str); 9] = [
    ("qemu-system-x86_64", "--version"),
    ("runc", "--version"),
    ("crun", "--version"),
    ("iperf3", "--version"),
    ("mmdebstrap", "--version"),
    ("mke2fs", "-V"),
    ("ip", "-V"),
    ("ethtool", "--version"),
    ("sigrok-cli", "--version"),
];

/// Collects the facts. `kvm_boots`: whether a VM booted a kernel on KVM. `None` means that no VM was tried: the
/// existence of `/dev/kvm` then decides.
pub fn facts(roots: &Roots, kvm_boots: Option<bool>) -> HostFacts {
    let memory = MemInfo::read(&roots.proc).unwrap_or_default();
    let kvm_backend = KvmBackend::detect(roots);
    let emulator = roots.program("qemu-system-x86_64").is_some();
    let kvm_usable = kvm_boots.unwrap_or_else(|| roots.dev.join("kvm").exists());
    let usable_backend = if kvm_usable { kvm_backend } else { None };
    HostFacts {
        vtax: env!("CARGO_PKG_VERSION").to_owned(),
        cpu: cpu(roots),
        memory_bytes: memory.total.map(|bytes| bytes.0),
        swap_bytes: memory.swap_total.map(|bytes| bytes.0),
        kernel: roots.proc_text("sys/kernel/osrelease"),
        kernel_command_line: roots.proc_text("cmdline"),
        distribution: distribution(roots),
        virtualization: match usable_backend {
            Some(KvmBackend::KvmIntel) => Virtualization::KvmVmx,
            Some(KvmBackend::KvmAmd) => Virtualization::KvmSvm,
            Some(KvmBackend::KvmPvm) => Virtualization::KvmPvm,
            None if emulator => Virtualization::Tcg,
            None => Virtualization::None,
        },
        kvm_backend,
        hypervisor: hypervisor(roots),
        mitigations: mitigations(roots),
        clock_source: roots.sys_text("devices/system/clocksource/clocksource0/current_clocksource"),
        frequency_driver: frequency_policies(roots)
            .iter()
            .find_map(|policy| text(&policy.join("scaling_driver"))),
        governors: governors(roots),
        turbo: turbo(roots),
        smt: roots.sys_text("devices/system/cpu/smt/control"),
        transparent_hugepages: roots
            .sys_text("kernel/mm/transparent_hugepage/enabled")
            .map(|value| chosen(&value).to_owned()),
        ksm: roots
            .sys_text("kernel/mm/ksm/run")
            .map(|value| value == "1"),
        cgroups: CgroupLayout::detect(roots),
        cpu_quota: cpu_quota(roots),
        programs: PROGRAMS
            .iter()
            .filter_map(|(program, argument)| {
                Some(((*program).to_owned(), version(roots, program, argument)?))
            })
            .collect(),
        boot_id: roots.proc_text("sys/kernel/random/boot_id"),
        machine: MachineIdentity::detect(roots),
    }
}

fn cpu(roots: &Roots) -> CpuFacts {
    let cpuinfo = roots.proc_text("cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        cpuinfo
            .lines()
            .find_map(|line| value_of(line, name))
            .map(str::to_owned)
    };
    let threads = cpuinfo
        .lines()
        .filter(|line| value_of(line, "processor").is_some())
        .count();
    let mut sockets = BTreeSet::new();
    let mut cores = BTreeSet::new();
    for cpu in cpu_directories(roots) {
        let topology = cpu.join("topology");
        // Offline CPUs have no topology.
        if let (Some(socket), Some(core)) = (
            text(&topology.join("physical_package_id")),
            text(&topology.join("core_id")),
        ) {
            sockets.insert(socket.clone());
            cores.insert((socket, core));
        }
    }
    CpuFacts {
        model: field("model name"),
        vendor: field("vendor_id"),
        microcode: field("microcode"),
        sockets: sockets.len(),
        cores: cores.len(),
        threads,
    }
}

/// The value of a `name : value` line of `/proc/cpuinfo`.
fn value_of<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (key, value) = line.split_once(':')?;
    (key.trim() == name).then(|| value.trim())
}

/// Whether `/proc/cpuinfo` lists a processor flag such as `vmx` or `hypervisor`.
pub fn has_cpu_flag(roots: &Roots, flag: &str) -> bool {
    roots
        .proc_text("cpuinfo")
        .unwrap_or_default()
        .lines()
        .find_map(|line| value_of(line, "flags"))
        .is_some_and(|flags| flags.split_whitespace().any(|word| word == flag))
}

/// The directories of all CPUs that the kernel lists, online or not, in order.
pub fn cpu_directories(roots: &Roots) -> Vec<PathBuf> {
    let all = roots.sys.join("devices/system/cpu");
    names(&all)
        .into_iter()
        .filter(|name| numbered(name, "cpu").is_some())
        .map(|name| all.join(name))
        .collect()
}

/// The cpufreq directories: one for each frequency domain.
pub fn frequency_policies(roots: &Roots) -> Vec<PathBuf> {
    let all = roots.sys.join("devices/system/cpu/cpufreq");
    let policies: Vec<PathBuf> = names(&all)
        .into_iter()
        .filter(|name| numbered(name, "policy").is_some())
        .map(|name| all.join(name))
        .collect();
    if !policies.is_empty() {
        return policies;
    }
    cpu_directories(roots)
        .into_iter()
        .map(|cpu| cpu.join("cpufreq"))
        .filter(|policy| policy.is_dir())
        .collect()
}

fn governors(roots: &Roots) -> Vec<String> {
    let all: BTreeSet<String> = frequency_policies(roots)
        .iter()
        .filter_map(|policy| text(&policy.join("scaling_governor")))
        .collect();
    all.into_iter().collect()
}

/// Whether frequency boost is on, from any driver that reports it; `None` where none does.
pub fn turbo(roots: &Roots) -> Option<bool> {
    if let Some(value) = roots.sys_text("devices/system/cpu/intel_pstate/no_turbo") {
        return Some(value == "0");
    }
    roots
        .sys_text("devices/system/cpu/cpufreq/boost")
        .map(|value| value == "1")
}

/// The value in force in a file that lists all values with one in brackets (`always [madvise] never`); the whole text
/// of any other file.
pub fn chosen(text: &str) -> &str {
    text.split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or(text.trim(), |(value, _)| value)
}

/// `/sys/devices/system/cpu/vulnerabilities`, by name.
pub fn mitigations(roots: &Roots) -> BTreeMap<String, String> {
    let directory = roots.sys.join("devices/system/cpu/vulnerabilities");
    names(&directory)
        .into_iter()
        .filter_map(|name| Some((name.clone(), text(&directory.join(name))?)))
        .collect()
}

/// The hypervisor that the host itself runs under: `None` on bare metal, else its name, or `unknown` where no
/// evidence shows it.
pub fn hypervisor(roots: &Roots) -> Option<String> {
    if let Some(kind) = roots.sys_text("hypervisor/type") {
        return Some(kind);
    }
    if !has_cpu_flag(roots, "hypervisor") {
        return None;
    }
    let product = roots
        .sys_text("class/dmi/id/product_name")
        .unwrap_or_default();
    let vendor = roots
        .sys_text("class/dmi/id/sys_vendor")
        .unwrap_or_default();
    let clocks = roots
        .sys_text("devices/system/clocksource/clocksource0/available_clocksource")
        .unwrap_or_default();
    let evidence = format!("{vendor} {product} {clocks}");
    let known = [
        ("VMware", "vmware"),
        ("VirtualBox", "virtualbox"),
        ("Xen", "xen"),
        ("hyperv_clocksource", "hyper-v"),
        ("Microsoft Corporation", "hyper-v"),
        ("kvm-clock", "kvm"),
        ("QEMU", "qemu"),
        ("xen", "xen"),
    ];
    let name = known
        .iter()
        .find(|(sign, _)| evidence.contains(sign))
        .map_or("unknown", |(_, name)| *name);
    Some(name.to_owned())
}

fn distribution(roots: &Roots) -> Option<String> {
    let release = text(&roots.etc.join("os-release"))?;
    let value = release
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(value.trim_matches('"').to_owned())
}

/// The tightest CPU limit of this process's control groups and their parents, in CPUs.
pub fn cpu_quota(roots: &Roots) -> Option<f64> {
    let layout = CgroupLayout::detect(roots);
    let membership = vtax_kernel::read(roots.proc.join("self/cgroup")).unwrap_or_default();
    let quotas = memberships(&membership).flat_map(|group| {
        let v1 = !group.is_v2();
        let mount = match v1 {
            false => layout.v2.as_ref(),
            true if group.has("cpu") => layout.v1.get("cpu"),
            true => None,
        };
        let mount = mount.map(|mount| roots.resolve(mount));
        let directories = mount
            .into_iter()
            .flat_map(move |mount| group.directories(&mount));
        directories.filter_map(move |directory| CpuLimit::read(&directory, v1).ok()?.processors())
    });
    quotas.reduce(f64::min)
}

/// The version that a program prints: the first word of its output that looks like a version.
pub fn version(roots: &Roots, program: &str, argument: &str) -> Option<String> {
    let output = Command::new(roots.program(program)?)
        .arg(argument)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .ok()?;
    // mke2fs prints its version on standard error.
    [output.stdout, output.stderr]
        .iter()
        .find_map(|text| version_in(&String::from_utf8_lossy(text)))
}

/// The first version number in a program's output.
pub fn version_in(text: &str) -> Option<String> {
    text.lines()
        .take(3)
        .flat_map(str::split_whitespace)
        .find_map(|word| {
            // Handles `iproute2-6.1.0,`, `OpenSSH_9.2p1` and `6.2.0`.
            let word = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
            let word = word.rsplit_once(['-', '_']).map_or(word, |(_, rest)| rest);
            let (major, rest) = word.split_once('.')?;
            let numeric = !major.is_empty() && major.bytes().all(|byte| byte.is_ascii_digit());
            (numeric && rest.starts_with(|c: char| c.is_ascii_digit())).then(|| word.to_owned())
        })
}

/// The file's name in a results directory.
const FILE: &str = "host.json";

/// Writes `host.json` into `directory`.
///
/// # Errors
/// When the file cannot be written.
pub fn write(facts: &HostFacts, directory: &Path) -> Result<(), crate::HostError> {
    let path = directory.join(FILE);
    let mut json = serde_json::to_string_pretty(facts)
        .map_err(|cause| crate::HostError::file("write", &path)(cause.into()))?;
    json.push('\n');
    Ok(vtax_files::Dir::open(directory)?.write(FILE, json.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_host::FakeHost;

    #[test]
    fn facts_of_an_intel_server_name_its_processor_kernel_and_layout() {
        let host = FakeHost::intel_server();
        host.program("runc", "runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1");
        host.file("proc/sys/kernel/random/boot_id", "2b1c\n");
        let facts = facts(&host.roots, Some(true));
        assert_eq!(
            facts.cpu.model.as_deref(),
            Some("Intel(R) Xeon(R) Gold 6230")
        );
        assert_eq!(
            (facts.cpu.sockets, facts.cpu.cores, facts.cpu.threads),
            (2, 4, 8)
        );
        assert_eq!(facts.cpu.microcode.as_deref(), Some("0x5003901"));
        assert_eq!(facts.memory_bytes, Some(16_384_000 * 1024));
        assert_eq!(facts.kernel.as_deref(), Some("6.1.0-30-amd64"));
        assert_eq!(
            facts.distribution.as_deref(),
            Some("Debian GNU/Linux 12 (bookworm)")
        );
        assert_eq!(facts.virtualization, Virtualization::KvmVmx);
        assert_eq!(facts.hypervisor, None);
        assert_eq!(facts.governors, ["powersave"]);
        assert_eq!(facts.turbo, Some(true));
        assert_eq!(facts.transparent_hugepages.as_deref(), Some("madvise"));
        assert_eq!(facts.cgroups.version, CgroupVersion::V2);
        assert_eq!(
            facts.programs.get("runc").map(String::as_str),
            Some("1.1.5+ds1")
        );
        assert_eq!(
            facts.mitigations.get("meltdown").map(String::as_str),
            Some("Mitigation: PTI")
        );
        assert_eq!(facts.boot_id.as_deref(), Some("2b1c"));
    }

    #[test]
    fn facts_survive_a_round_trip_through_host_json() {
        let host = FakeHost::amd_desktop();
        let written = facts(&host.roots, None);
        write(&written, &host.path("")).unwrap();
        let read: HostFacts = serde_json::from_str(&host.read("host.json")).unwrap();
        assert_eq!(read, written);
        assert_eq!(read.virtualization, Virtualization::KvmSvm);
    }

    #[test]
    fn an_empty_host_has_no_facts_and_no_failure() {
        let facts = facts(&FakeHost::empty().roots, None);
        assert_eq!(facts.cpu, CpuFacts::default());
        assert_eq!(facts.virtualization, Virtualization::None);
        assert_eq!(facts.cgroups.version, CgroupVersion::None);
        assert_eq!(facts.memory_bytes, None);
    }

    #[test]
    fn kvm_that_boots_nothing_makes_it_an_emulating_host() {
        let host = FakeHost::cloud_vm();
        host.directory("sys/module/kvm_pvm");
        host.file("dev/kvm", "");
        host.program(
            "qemu-system-x86_64",
            "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)",
        );
        let failed = facts(&host.roots, Some(false));
        assert_eq!(failed.virtualization, Virtualization::Tcg);
        assert_eq!(failed.kvm_backend, Some(KvmBackend::KvmPvm));
        assert_eq!(
            facts(&host.roots, Some(true)).virtualization,
            Virtualization::KvmPvm
        );
    }

    #[test]
    fn a_built_in_backend_is_found_by_its_symbols_or_the_configuration() {
        let host = FakeHost::cloud_vm();
        assert_eq!(KvmBackend::detect(&host.roots), None);
        host.file("proc/kallsyms", "0000000000000000 t svm_vcpu_run\n");
        assert_eq!(
            KvmBackend::detect(&host.roots),
            None,
            "without the device there is no KVM"
        );
        host.file("dev/kvm", "");
        assert_eq!(KvmBackend::detect(&host.roots), Some(KvmBackend::KvmAmd));
        host.remove("proc/kallsyms");
        host.file(
            "boot/config-6.1.0-30-amd64",
            "CONFIG_KVM=y\nCONFIG_KVM_INTEL=y\n# CONFIG_KVM_AMD is not set\n",
        );
        assert_eq!(KvmBackend::detect(&host.roots), Some(KvmBackend::KvmIntel));
        host.file(
            "boot/config-6.1.0-30-amd64",
            "CONFIG_KVM_INTEL=y\nCONFIG_KVM_AMD=y\n",
        );
        assert_eq!(
            KvmBackend::detect(&host.roots),
            None,
            "two built in: undecided"
        );
    }

    #[test]
    fn control_group_layouts_are_distinguished() {
        let host = FakeHost::empty();
        host.cgroups_v1();
        let v1 = CgroupLayout::detect(&host.roots);
        assert_eq!(v1.version, CgroupVersion::V1);
        assert_eq!(
            v1.v1.get("cpuacct"),
            Some(&PathBuf::from("/sys/fs/cgroup/cpu,cpuacct"))
        );
        assert!(v1.has("name=systemd") && !v1.has("xattr") && !v1.has("rw"));

        host.cgroups_hybrid();
        let hybrid = CgroupLayout::detect(&host.roots);
        assert_eq!(hybrid.version, CgroupVersion::Hybrid);
        assert_eq!(hybrid.v2, Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert!(hybrid.v2_controllers.is_empty());

        host.cgroups_v2("cpuset cpu memory");
        let v2 = CgroupLayout::detect(&host.roots);
        assert_eq!(v2.version, CgroupVersion::V2);
        assert!(v2.has("cpu") && v2.v1.is_empty());
    }

    #[test]
    fn the_tightest_cpu_quota_up_the_tree_counts() {
        let host = FakeHost::empty();
        host.cgroups_v2("cpu");
        host.file("proc/self/cgroup", "0::/user.slice/vtax\n");
        assert_eq!(cpu_quota(&host.roots), None);
        host.file("sys/fs/cgroup/user.slice/vtax/cpu.max", "max 100000\n");
        host.file("sys/fs/cgroup/user.slice/cpu.max", "150000 100000\n");
        assert_eq!(cpu_quota(&host.roots), Some(1.5));
    }

    #[test]
    fn cpu_quota_of_control_groups_v1() {
        let host = FakeHost::empty();
        host.cgroups_v1();
        host.file(
            "proc/self/cgroup",
            "2:cpu,cpuacct:/docker/1\n1:name=systemd:/\n",
        );
        host.file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
        host.file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
        assert_eq!(cpu_quota(&host.roots), None);
        host.file(
            "sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_quota_us",
            "50000\n",
        );
        host.file(
            "sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_period_us",
            "100000\n",
        );
        assert_eq!(cpu_quota(&host.roots), Some(0.5));
    }

    #[test]
    fn versions_are_found_in_what_programs_really_print() {
        for (printed, version) in [
            (
                "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)",
                "7.2.22",
            ),
            ("iperf 3.12 (cJSON 1.7.15)", "3.12"),
            ("ip utility, iproute2-6.1.0, libbpf 1.1.2", "6.1.0"),
            ("OpenSSH_9.2p1 Debian-2+deb12u7, OpenSSL 3.0.17", "9.2p1"),
            (
                "mke2fs 1.47.0 (5-Feb-2023)\n\tUsing EXT2FS Library version 1.47.0",
                "1.47.0",
            ),
            ("setpriv from util-linux 2.38.1", "2.38.1"),
            ("cpio (GNU cpio) 2.13", "2.13"),
            ("crun version 1.8.1\ncommit: f8a096be", "1.8.1"),
        ] {
            assert_eq!(version_in(printed).as_deref(), Some(version), "{printed}");
        }
        assert_eq!(version_in("no version here. none"), None);
        assert_eq!(version_in(""), None);
    }

    #[test]
    fn hypervisors_are_named_where_something_shows_them() {
        let host = FakeHost::cloud_vm();
        assert_eq!(hypervisor(&host.roots).as_deref(), Some("kvm"));
        host.file(
            "sys/devices/system/clocksource/clocksource0/available_clocksource",
            "tsc\n",
        );
        assert_eq!(hypervisor(&host.roots).as_deref(), Some("unknown"));
        host.file("sys/class/dmi/id/sys_vendor", "VMware, Inc.\n");
        assert_eq!(hypervisor(&host.roots).as_deref(), Some("vmware"));
        // A Xen Dom0 may lack the processor's flag.
        let dom0 = FakeHost::intel_server();
        dom0.file("sys/hypervisor/type", "xen\n");
        assert_eq!(hypervisor(&dom0.roots).as_deref(), Some("xen"));
    }

    #[test]
    fn boots_of_one_machine_have_its_digests_and_ids_that_many_have_are_none() {
        let (one, other) = (
            "2b1c5f0a9d3e4c7f8a6b1d2e3f405162",
            "11111111-2222-3333-4444-555566667777",
        );
        let of = |id: &str, uuid: &str| {
            let host = FakeHost::intel_server();
            host.file("etc/machine-id", &format!("{id}\n"));
            host.file("sys/class/dmi/id/product_uuid", &format!("{uuid}\n"));
            facts(&host.roots, None).machine
        };
        let known = of(one, other);
        assert_eq!(of(one, &other.to_uppercase()), known);
        assert_ne!(known.installation, known.product);
        assert!(!serde_json::to_string(&known).unwrap().contains(one));
        for none in [
            "",
            "uninitialized",
            &"0".repeat(32),
            "03000200-0400-0500-0006-000700080009",
        ] {
            assert_eq!(of(none, none), MachineIdentity::default(), "{none}");
        }
    }

    #[test]
    fn this_host_gives_its_facts_without_naming_itself() {
        let facts = facts(&Roots::host(), None);
        assert!(facts.cpu.threads > 0, "{facts:?}");
        assert!(facts.kernel.is_some() && facts.boot_id.is_some());
        let json = serde_json::to_string(&facts).unwrap();
        if let Ok(id) = fs::read_to_string("/etc/machine-id") {
            assert!(id.trim().is_empty() || !json.contains(id.trim()));
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

        #[test]
        fn no_text_in_the_hosts_files_makes_the_facts_fail(text in "\\PC{0,200}") {
            let host = FakeHost::empty();
            for file in ["proc/cpuinfo", "proc/meminfo", "proc/self/mountinfo", "proc/self/cgroup", "etc/os-release"] {
                host.file(file, &text);
            }
            facts(&host.roots, None);
            version_in(&text);
            chosen(&text);
        }
    }
}
