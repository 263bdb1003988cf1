// SPDX-License-Identifier: Apache-2.0
//! Discovery of this host's guests without configuration: VMs by their monitors' command lines, containers by their
//! control groups, Xen's domains by the toolstack; each with its network devices and disks. Services that a user names
//! are guests too.
//!
//! A pass costs little when nothing changed: a process or control group that has been examined is identified by its
//! directory's inode, which changes when the number or the name is reused.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

mod cloud_hypervisor;
mod container;
mod device;
mod firecracker;
mod groups;
mod identity;
mod micro_vm;
pub mod name;
mod nic;
mod options;
mod platform;
mod pod;
mod qemu;
mod runtimes;
mod service;
mod xen;

pub use device::{Device, Disk};
pub use identity::Identity;
pub use platform::Platform;
pub use pod::pod_of;
pub use service::{Member, Service, ServiceError};
pub use xen::is_dom0;

use container::OciStates;
use device::HostLinks;
use groups::{Added, Groups};
pub use groups::{Ended, Family};
use rustix::fs::{Mode, OFlags, RawDir};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use vtax_core::Nanoseconds;
use vtax_kernel::Process;
pub use vtax_kernel::cgroup::Hierarchy;
use vtax_kernel::text;
use vtax_observe::Roots;

/// The identity of a guest across passes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GuestKey {
    /// A monitor's process, or the process that a service is named by. The process number alone may be reused.
    Process {
        /// Its number.
        pid: u32,
        /// When it started, in clock ticks since boot.
        started: u64,
    },
    /// A container's control group.
    Group {
        /// Relative to the hierarchy.
        path: PathBuf,
        /// Its inode, which is its id in the kernel.
        inode: u64,
    },
    /// A Xen domain, by UUID, or by its number where it has none.
    Domain(String),
}

/// A process outside a guest's own processes that works for that guest alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Helper {
    /// The process.
    pub pid: u32,
    /// The kind of its work.
    pub work: HelperWork,
}

/// The kind of work of a helper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HelperWork {
    /// A vhost worker that is a kernel thread.
    Vhost,
    /// A kernel thread of Xen's network or block backend.
    Backend,
    /// The device model of a Xen domain.
    Emulator,
    /// The vtax NIC, where it maps the memory of no other guest.
    Nic,
}

/// A guest of this host.
#[derive(Debug, Clone, PartialEq)]
pub struct Guest {
    /// The short handle of this guest, given in order of discovery and never reused.
    pub number: u32,
    /// Its identity.
    pub key: GuestKey,
    /// The platform that runs it.
    pub platform: Platform,
    /// The manager of the guest, where it can be recognised: libvirt, proxmox, kubevirt, openstack, kata.
    pub manager: Option<&'static str>,
    /// Its name, sanitised and unique among the present guests.
    pub name: String,
    /// The name that its creator gave it, sanitised. Other guests may have the same name.
    pub called: String,
    /// Its UUID, where one is known.
    pub uuid: Option<String>,
    /// The number of its assigned processors, where it is known.
    pub cpus: Option<u32>,
    /// The monitor's process, one process of the container, or the one that a service is named by.
    pub process: Option<u32>,
    /// A process outside the guest that sees a Xen domain's devices, where these are in a network namespace other than
    /// the host's.
    pub beside_devices: Option<u32>,
    /// For a VM, the control group that contains it; for a container, its own control group; relative to the hierarchy.
    pub group: Option<PathBuf>,
    /// Its number as a Xen domain, and the domain's CPU time.
    pub domain: Option<(u32, Nanoseconds)>,
    /// Its network devices.
    pub devices: Vec<Device>,
    /// Its disks.
    pub disks: Vec<Disk>,
    /// Processes outside its own that work for it alone.
    pub helpers: Vec<Helper>,
    /// The processes of a service, parents before their children.
    pub members: Vec<Member>,
    /// The number of the container that a service is in.
    pub inside: Option<u32>,
    /// Whether it was absent in the pass before its discovery: all of its use is then new.
    pub is_new: bool,
}

impl Guest {
    /// Whether it is a control group, of a container or a job.
    pub fn is_container(&self) -> bool {
        matches!(self.key, GuestKey::Group { .. })
    }

    /// Creates a guest without further properties.
    fn new(key: GuestKey, platform: Platform, name: String) -> Self {
        Self {
            number: 0,
            key,
            platform,
            manager: None,
            called: name.clone(),
            name,
            uuid: None,
            cpus: None,
            process: None,
            beside_devices: None,
            group: None,
            domain: None,
            devices: Vec::new(),
            disks: Vec::new(),
            helpers: Vec::new(),
            members: Vec::new(),
            inside: None,
            is_new: false,
        }
    }
}

/// The description of a guest by one source.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Description {
    platform: Platform,
    manager: Option<&'static str>,
    name: Option<Vec<u8>>,
    /// An additional identifier from its manager, which distinguishes it from other guests with the same name.
    number: Option<Vec<u8>>,
    uuid: Option<String>,
    cpus: Option<u32>,
}

/// The interval in passes at which a guest's devices and disks are read again, since devices are plugged in and out.
const LOOK_AGAIN: u64 = 16;

/// The interval in passes for a container's devices, as long as the host's own devices stay the same, and for a process
/// that was not a monitor.
const LOOK_AGAIN_LATER: u64 = 64;

/// The number of first passes in which a process is examined each time, since a shell becomes a monitor by executing
/// it; later it is examined at intervals.
const YOUNG: u8 = 4;

/// The guests of this host.
#[derive(Debug)]
pub struct Guests {
    roots: Roots,
    hierarchy: Option<Hierarchy>,
    host_namespace: u32,
    passes: u64,
    next_number: u32,
    processes: HashMap<u32, KnownProcess>,
    /// The NICs that work for one guest, and the guest of each.
    nics: HashMap<u32, GuestKey>,
    groups: Groups,
    services: Vec<service::Members>,
    oci: OciStates,
    links: HostLinks,
    /// The last pass in which one of the devices came or went.
    links_changed_in: u64,
    xen: Option<xen::Toolstack>,
    guests: BTreeMap<GuestKey, Guest>,
    /// The pass that found each guest: devices appear shortly after their guest.
    found_in: HashMap<u32, u64>,
    entries: Vec<MaybeUninit<u8>>,
    problems: Vec<String>,
}

#[derive(Debug, Clone)]
struct KnownProcess {
    inode: u64,
    looks: u8,
    present: bool,
    is: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Other,
    /// A monitor, with its guest's key.
    Monitor(GuestKey),
    /// A kernel thread that works for one of the threads of a VM's monitor, or of its NIC.
    Vhost {
        of: u32,
    },
    /// A NIC.
    Nic,
    /// A process that works for a Xen domain.
    ForDomain {
        domain: u32,
        work: HelperWork,
    },
}

impl Guests {
    /// The processes that are a guest's by their number, each with the guest's number: those that run VMs, including
    /// helpers such as a virtual NIC, and those of services.
    pub fn by_process(&self) -> HashMap<u32, u32> {
        let vms = self.iter().filter(|guest| guest.platform.is_vm());
        let of_vms = vms.flat_map(|guest| {
            let helpers = guest.helpers.iter().map(|helper| helper.pid);
            helpers.chain(guest.process).map(|pid| (pid, guest.number))
        });
        let of_services = self.iter().flat_map(|guest| {
            let own = guest.members.iter().filter(|member| !member.is_others);
            own.map(|member| (member.pid, guest.number))
        });
        of_services.chain(of_vms).collect()
    }

    /// Creates an empty list; the first [`Guests::scan`] fills it.
    pub fn new(roots: Roots) -> Self {
        let hierarchy = Hierarchy::find(&roots.sys);
        let host = Process::new(&roots.proc, 1)
            .net_namespace()
            .or_else(|| Process::new(&roots.proc, std::process::id()).net_namespace());
        Self {
            hierarchy,
            // Without permission to inspect init, no process's namespace can be compared either.
            host_namespace: host.unwrap_or(0),
            passes: 0,
            next_number: 1,
            processes: HashMap::new(),
            nics: HashMap::new(),
            groups: Groups::new(),
            services: Vec::new(),
            oci: OciStates::default(),
            links: HostLinks::default(),
            links_changed_in: 0,
            xen: xen::Toolstack::open(&roots),
            guests: BTreeMap::new(),
            found_in: HashMap::new(),
            entries: vec![MaybeUninit::uninit(); 32 << 10],
            problems: Vec::new(),
            roots,
        }
    }

    /// The numbers of the present guests.
    pub fn numbers(&self) -> HashSet<u32> {
        self.iter().map(|guest| guest.number).collect()
    }

    /// The hierarchy that accounts CPU time.
    pub fn hierarchy(&self) -> Option<&Hierarchy> {
        self.hierarchy.as_ref()
    }

    /// The control groups that contain guests, the innermost first.
    pub fn families(&self) -> &[Family] {
        self.groups.families()
    }

    /// The inode of the host's network namespace.
    pub fn host_namespace(&self) -> u32 {
        self.host_namespace
    }

    /// A process of this host.
    pub fn process(&self, pid: u32) -> Process<'_> {
        Process::new(&self.roots.proc, pid)
    }

    /// The guests of the last pass.
    pub fn iter(&self) -> impl Iterator<Item = &Guest> {
        self.guests.values()
    }

    /// The number of guests.
    pub fn len(&self) -> usize {
        self.guests.len()
    }

    /// Whether there are no guests.
    pub fn is_empty(&self) -> bool {
        self.guests.is_empty()
    }

    /// The items that could not be inspected in the last pass, and the reasons.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Updates the list.
    pub fn scan(&mut self) {
        self.problems.clear();
        for guest in self.guests.values_mut() {
            guest.is_new = false;
        }
        if self.links.update(&self.roots.sys) {
            self.links_changed_in = self.passes;
        }
        // Groups are scanned before processes: the treatment of a process depends on whether it is in a container.
        self.scan_groups();
        self.scan_processes();
        self.scan_domains();
        self.gather_helpers();
        self.scan_services();
        self.look_at_devices();
        self.passes += 1;
    }

    fn scan_processes(&mut self) {
        for looked in self.processes.values_mut() {
            looked.present = false;
        }
        let listed = match list_processes(&self.roots.proc, &mut self.entries) {
            Ok(listed) => listed,
            Err(cause) => {
                let proc = self.roots.proc.display();
                self.problems.push(format!("cannot list {proc}: {cause}"));
                return;
            }
        };
        for (pid, inode) in listed {
            let before = self
                .processes
                .get(&pid)
                .filter(|looked| looked.inode == inode);
            let is_due = match before {
                None => true,
                Some(looked) => {
                    looked.looks < YOUNG
                        || (self.passes + u64::from(pid)).is_multiple_of(LOOK_AGAIN_LATER)
                }
            };
            let is_new = before.is_none() && self.passes > 0;
            let looks = before.map_or(0, |looked| looked.looks);
            if let (false, Some(looked)) = (is_due, self.processes.get_mut(&pid)) {
                looked.present = true;
                continue;
            }
            let is = self.look_at(pid, is_new);
            let looked = KnownProcess {
                inode,
                looks: looks.saturating_add(1),
                present: true,
                is,
            };
            self.processes.insert(pid, looked);
        }
        self.processes.retain(|_, looked| looked.present);
        let monitors: HashSet<&GuestKey> = self
            .processes
            .values()
            .filter_map(|looked| match &looked.is {
                Kind::Monitor(key) => Some(key),
                _ => None,
            })
            .collect();
        self.guests.retain(|key, guest| {
            let is_monitor =
                matches!(key, GuestKey::Process { .. }) && guest.platform != Platform::Native;
            !is_monitor || monitors.contains(key)
        });
    }

    fn look_at(&mut self, pid: u32, is_new: bool) -> Kind {
        let process = Process::new(&self.roots.proc, pid);
        let arguments = process.arguments();
        if arguments.is_empty() {
            return match process.command_name() {
                Some(name) if process.is_kernel_thread() => kernel_thread(&name),
                _ => Kind::Other,
            };
        }
        let executable = process.executable();
        let executable = executable.as_deref();
        let Some(found) = [
            qemu::recognise,
            cloud_hypervisor::recognise,
            firecracker::recognise,
            micro_vm::recognise,
        ]
        .into_iter()
        .find_map(|recognise| recognise(&arguments, executable)) else {
            let is_nic = nic::is_nic(&arguments);
            return if is_nic { Kind::Nic } else { Kind::Other };
        };
        let group = self.group_of(process);
        let is_in_container = group
            .as_deref()
            .is_some_and(|group| self.groups.is_in_container(group));
        // A container chooses its command lines, and could use one to avoid the charge for its time.
        if is_in_container && !process.holds_vm() {
            return Kind::Other;
        }
        // A Xen domain's device model is a QEMU, but not a separate guest.
        let domain = options::value(&arguments, "xen-domid").and_then(text::small);
        if !is_in_container && let Some(domain) = domain {
            return Kind::ForDomain {
                domain,
                work: HelperWork::Emulator,
            };
        }
        let Some(started) = process.started() else {
            return Kind::Other;
        };
        let key = GuestKey::Process { pid, started };
        if !self.guests.contains_key(&key) {
            let name = found.name.as_deref().map_or_else(
                || format!("{}-{pid}", found.platform.name()),
                name::sanitised,
            );
            let guest = Guest {
                manager: found.manager,
                uuid: found.uuid,
                cpus: found.cpus,
                process: Some(pid),
                group,
                is_new,
                ..Guest::new(key.clone(), found.platform, name)
            };
            self.add(guest, found.number.as_deref().map(name::sanitised));
        }
        Kind::Monitor(key)
    }

    /// A process's control group, relative to the hierarchy.
    fn group_of(&self, process: Process<'_>) -> Option<PathBuf> {
        let v1 = self
            .hierarchy
            .as_ref()
            .is_some_and(|hierarchy| hierarchy.v1);
        let group = process.control_group(v1)?;
        Some(group.strip_prefix("/").map(Path::to_owned).unwrap_or(group))
    }

    /// `number` distinguishes this guest from others with the same name, where there is one.
    fn add(&mut self, mut guest: Guest, number: Option<String>) {
        let key = match &guest.key {
            GuestKey::Process { pid, .. } => format!("pid {pid}"),
            GuestKey::Group { inode, .. } => format!("group {inode}"),
            GuestKey::Domain(id) => id.clone(),
        };
        let others = self.guests.values();
        let others = others.filter(|other| other.platform == guest.platform);
        let is_taken = |name: &str| others.clone().any(|other| other.name == name);
        guest.name = name::distinct(&guest.name, number.into_iter().chain([key]), is_taken);
        guest.number = self.next_number;
        self.next_number = self.next_number.wrapping_add(1).max(1);
        self.found_in.insert(guest.number, self.passes);
        self.guests.insert(guest.key.clone(), guest);
    }

    fn scan_groups(&mut self) {
        let Some(hierarchy) = self.hierarchy.clone() else {
            self.problems.push(
                "no control group hierarchy accounts CPU time (neither v1's cpuacct nor v2 is \
                 mounted): containers are not seen"
                    .to_owned(),
            );
            return;
        };
        let states = self.oci.update(&self.roots.run);
        let added = self.groups.update(&hierarchy.mounted, &states);
        let groups = &self.groups;
        self.guests.retain(|key, _| match key {
            GuestKey::Group { path, inode } => groups.is_container(*inode, path),
            _ => true,
        });
        for added in added {
            let (guest, id) = self.container(added, &hierarchy.mounted);
            self.add(guest, Some(id));
        }
    }

    /// Returns the guest, and an identifier that distinguishes it from others with the same name.
    fn container(&self, added: Added, mounted: &Path) -> (Guest, String) {
        let Added { path, inode, is } = added;
        let stores = container::Stores::new(&self.roots);
        let group = mounted.join(&path);
        let (platform, stored) = stores.look_up(&is, || first_process(&group, 3));
        let id: String = is.id.chars().take(12).collect();
        let name = stored.unwrap_or_else(|| id.clone());
        let key = GuestKey::Group {
            path: path.clone(),
            inode,
        };
        let guest = Guest {
            cpus: quota(&group),
            group: Some(path),
            is_new: self.passes > 0,
            ..Guest::new(key, platform, name::sanitised(name.as_bytes()))
        };
        (guest, name::sanitised(id.as_bytes()))
    }

    fn scan_domains(&mut self) {
        let Some(toolstack) = &mut self.xen else {
            return;
        };
        let domains = match toolstack.domains() {
            Ok(domains) => domains,
            Err(error) => {
                self.problems.push(error.to_string());
                return;
            }
        };
        let key = |domain: &xen::Domain| {
            let id = || format!("domain {}", domain.id);
            GuestKey::Domain(domain.uuid.clone().unwrap_or_else(id))
        };
        let present: HashSet<GuestKey> = domains.iter().map(key).collect();
        self.guests
            .retain(|key, _| !matches!(key, GuestKey::Domain(_)) || present.contains(key));
        for domain in domains {
            let key = key(&domain);
            if let Some(guest) = self.guests.get_mut(&key) {
                // A domain that migrated or rebooted keeps its UUID and has a new number.
                guest.domain = Some((domain.id, domain.time));
                continue;
            }
            let guest = Guest {
                uuid: domain.uuid,
                cpus: Some(domain.cpus),
                domain: Some((domain.id, domain.time)),
                is_new: self.passes > 0,
                ..Guest::new(key, Platform::Xen, domain.name)
            };
            self.add(guest, None);
        }
    }

    fn gather_helpers(&mut self) {
        for guest in self.guests.values_mut() {
            guest.helpers.clear();
        }
        self.match_nics();
        for (pid, key) in &self.nics {
            if let Some(guest) = self.guests.get_mut(key) {
                guest.helpers.push(Helper {
                    pid: *pid,
                    work: HelperWork::Nic,
                });
            }
        }
        for (pid, looked) in &self.processes {
            let mut guests = self.guests.values_mut();
            let (work, guest) = match looked.is {
                Kind::Vhost { of } => {
                    let nic = Helper {
                        pid: of,
                        work: HelperWork::Nic,
                    };
                    let is_its = |guest: &&mut Guest| {
                        guest.process == Some(of) || guest.helpers.contains(&nic)
                    };
                    let mut vms = guests.filter(|guest| guest.platform.is_vm());
                    (HelperWork::Vhost, vms.find(is_its))
                }
                Kind::ForDomain { domain, work } => (
                    work,
                    guests.find(|guest| guest.domain.is_some_and(|(id, _)| id == domain)),
                ),
                _ => continue,
            };
            if let Some(guest) = guest {
                guest.helpers.push(Helper { pid: *pid, work });
            }
        }
        for guest in self.guests.values_mut() {
            guest.helpers.sort();
        }
    }

    /// Finds the guests of NICs by the memory that the NICs map, at intervals and while a VM is young: a guest connects
    /// to its NIC shortly after its start. A NIC of several guests belongs to none.
    fn match_nics(&mut self) {
        let processes = &self.processes;
        let is_nic = |pid: &u32| {
            processes
                .get(pid)
                .is_some_and(|looked| looked.is == Kind::Nic)
        };
        self.nics.retain(|pid, _| is_nic(pid));
        let nics: Vec<u32> = processes.keys().copied().filter(is_nic).collect();
        let is_young = |pass: &u64| self.passes.saturating_sub(*pass) < u64::from(YOUNG);
        let is_due = self.passes.is_multiple_of(LOOK_AGAIN) || self.found_in.values().any(is_young);
        if nics.is_empty() || !is_due {
            return;
        }
        let containers = self.guests.values().filter(|guest| !guest.platform.is_vm());
        let containers: Vec<&PathBuf> = containers
            .filter_map(|guest| guest.group.as_ref())
            .collect();
        let container = |group: &Option<PathBuf>| {
            let inside = |container: &&&PathBuf| {
                group
                    .as_ref()
                    .is_some_and(|group| group.starts_with(container))
            };
            containers.iter().find(inside).copied()
        };
        let process = |pid| Process::new(&self.roots.proc, pid);
        let mut owners: HashMap<nic::File, &Guest> = HashMap::new();
        for guest in self.guests.values().filter(|guest| guest.platform.is_vm()) {
            let files = guest.process.map(|pid| nic::shared_files(process(pid)));
            owners.extend(files.into_iter().flatten().map(|file| (file, guest)));
        }
        let guest_of = |pid: u32| {
            let files = nic::shared_files(process(pid));
            let mut guests = files.iter().filter_map(|file| owners.get(file));
            let guest = guests.next()?;
            // A monitor's time is subtracted from its container's, and the time of a NIC inside a container is the
            // container's.
            let is_beside = container(&self.group_of(process(pid))) == container(&guest.group);
            let is_its_alone = guests.all(|other| other.key == guest.key);
            (is_beside && is_its_alone).then(|| (pid, guest.key.clone()))
        };
        self.nics = nics.into_iter().filter_map(guest_of).collect();
    }

    fn look_at_devices(&mut self) {
        let host = self.host_namespace;
        let since = |pass: u64| self.passes.saturating_sub(pass);
        let of_containers = if since(self.links_changed_in) <= LOOK_AGAIN {
            LOOK_AGAIN
        } else {
            LOOK_AGAIN_LATER
        };
        let mut looked = false;
        for guest in self.guests.values_mut() {
            let found_in = self.found_in.get(&guest.number).copied().unwrap_or(0);
            let turns = if guest.group.is_some() && !guest.platform.is_vm() {
                of_containers
            } else {
                LOOK_AGAIN
            };
            let is_due = since(found_in) < u64::from(YOUNG)
                || (self.passes + u64::from(guest.number)).is_multiple_of(turns);
            if !is_due {
                continue;
            }
            looked = true;
            if let Some((domain, _)) = guest.domain {
                guest.devices = self.links.of_domain(domain, host);
                guest.beside_devices = None;
                if guest.devices.is_empty()
                    && let Some((process, devices)) =
                        device::of_domain_elsewhere(domain, host, &self.roots.proc)
                {
                    guest.beside_devices = Some(process);
                    guest.devices = devices;
                }
            } else if guest.platform.is_vm() {
                if let Some(pid) = guest.process {
                    let of = |pid| {
                        let process = Process::new(&self.roots.proc, pid);
                        device::of_vmm(process, host, &self.links, &self.roots.dev)
                    };
                    (guest.devices, guest.disks) = of(pid);
                    let nics = guest.helpers.iter();
                    for nic in nics.filter(|helper| helper.work == HelperWork::Nic) {
                        guest.devices.extend(of(nic.pid).0);
                    }
                }
            } else if let (Some(hierarchy), Some(group)) = (&self.hierarchy, &guest.group) {
                guest.process = first_process(&hierarchy.mounted.join(group), 3);
                if let Some(pid) = guest.process {
                    let process = Process::new(&self.roots.proc, pid);
                    guest.devices = device::of_namespace(process, host, &self.links);
                }
            }
        }
        if self.found_in.len() > 2 * self.guests.len() + 64 {
            let present = self.numbers();
            self.found_in.retain(|number, _| present.contains(number));
        }
        if !looked {
            return;
        }
        // Containers of one pod share a namespace: its devices belong to the first container.
        let mut owned = HashSet::new();
        let mut guests: Vec<&mut Guest> = self.guests.values_mut().collect();
        guests.sort_by_key(|guest| guest.number);
        for guest in guests {
            guest
                .devices
                .retain(|device| owned.insert((device.namespace, device.index)));
        }
    }
}

/// Kernel threads that work for one guest, by the names that the kernel gives them.
fn kernel_thread(name: &[u8]) -> Kind {
    if let Some(of) = name.strip_prefix(b"vhost-").and_then(text::small) {
        return Kind::Vhost { of };
    }
    // `vif1.0-q0-guest-rx` of netback; `1.xvda-0` or `blkback.1.xvda` of blkback.
    let domain = ["vif", "blkback.", ""].iter().find_map(|prefix| {
        let rest = name.strip_prefix(prefix.as_bytes())?;
        let dot = rest.iter().position(|byte| *byte == b'.')?;
        let device = rest.get(dot + 1..)?;
        let is_disk =
            device.starts_with(b"xvd") || device.starts_with(b"hd") || device.starts_with(b"sd");
        (*prefix == "vif" || is_disk).then(|| text::small(rest.get(..dot)?))?
    });
    domain.map_or(Kind::Other, |domain| Kind::ForDomain {
        domain,
        work: HelperWork::Backend,
    })
}

/// Lists every process's number with its directory's inode.
fn list_processes(
    proc: &Path,
    buffer: &mut [MaybeUninit<u8>],
) -> rustix::io::Result<Vec<(u32, u64)>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(proc, flags, Mode::empty())?;
    let mut entries = RawDir::new(&directory, buffer);
    let mut listed = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry?;
        if let Some(pid) = text::small(entry.file_name().to_bytes()) {
            listed.push((pid, entry.ino()));
        }
    }
    Ok(listed)
}

/// Returns a process of a group, or of a group below it.
pub fn first_process(group: &Path, deepest: u32) -> Option<u32> {
    let listed = std::fs::read(group.join("cgroup.procs")).ok()?;
    let first = text::lines(&listed)
        .find_map(text::small)
        .filter(|pid| *pid != 0);
    if first.is_some() || deepest == 0 {
        return first;
    }
    let entries = std::fs::read_dir(group).ok()?;
    entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .find_map(|entry| first_process(&entry.path(), deepest - 1))
}

/// The number of processors that a group may use, rounded up; `None` without a limit.
fn quota(group: &Path) -> Option<u32> {
    let (quota, period) = match std::fs::read(group.join("cpu.max")) {
        Ok(limit) => {
            let mut numbers = text::fields(&limit).map(text::number);
            (numbers.next()??, numbers.next()??)
        }
        Err(_) => {
            let number = |file: &str| {
                let content = std::fs::read(group.join(file)).ok()?;
                text::number(content.trim_ascii())
            };
            (number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?)
        }
    };
    u32::try_from(quota.div_ceil(period.max(1))).ok()
}

/// The last part of a path.
fn base_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

/// A UUID in its canonical form; `None` for any other text.
fn uuid(text: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(text).ok()?.to_ascii_lowercase();
    let parts: Vec<usize> = text.split('-').map(str::len).collect();
    let is_uuid = parts == [8, 4, 4, 4, 12]
        && text
            .bytes()
            .all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
    is_uuid.then_some(text)
}

#[cfg(test)]
mod tests;
