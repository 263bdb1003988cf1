//! The traced method: BPF programs at the kernel's tracepoints measure each soft interrupt and key
//! it by the network device, and so by the guest, that it worked for (`bpf/charge.bpf.c`).
//!
//! Keyed by device and not by control group: a soft interrupt runs in the context of whatever it
//! interrupted, and that task's group says nothing about whose packet it was.
//!
//! Not seen: hard interrupts (part of whatever they interrupt), NAPI in threads of its own and busy
//! polling (time of tasks), and transmit completions of a port, which are the host's. Where soft interrupts
//! come by the thousand a second, a part of them is looked into, drawn by lot, and counts for all.

use super::Method;
use super::exchanges::IntervalExchanges;
use super::ledger::{IoCharge, IoWork, Usage};
use crate::ObserveError;
use crate::bpf::chain;
use crate::guests::{Guest, Guests, Hierarchy};
use aya::maps::{Array, MapData, PerCpuArray, PerCpuHashMap};
use aya::programs::{BtfTracePoint, FExit, ProgramError};
use aya::{Btf, Ebpf, EbpfLoader};
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use vtax_core::Nanoseconds;

/// Built by `bpf/build.sh`.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../bpf/charge.bpf.o");

/// Tracepoints that every kernel with BTF has.
const PROGRAMS: [&str; 6] = [
    "softirq_entry",
    "softirq_exit",
    "napi_poll",
    "netif_receive_skb",
    "net_dev_start_xmit",
    "block_rq_complete",
];

/// Where BPF programs of others redirect packets: a tracepoint, and a function whose return is looked at. What a kernel
/// that lacks one of them redirects there is the host's.
const XDP_REDIRECT: &str = "xdp_redirect";
const REDIRECT: &str = "skb_do_redirect";

const WHAT: &str = "tracing of soft interrupts (BPF)";

/// Room in each map where nothing else is said.
pub(super) const ENTRIES: u32 = 16_384;

/// Bytes of the values of both maps of time, of which each processor has its own.
const VALUES: usize = 32 << 20;

/// Room in each map for each processor of a small host: the kernel takes a second to allocate more, where it is
/// emulated.
const ENTRIES_EACH: usize = 4096;

/// Room in each map of time on a host of so many processors: what finds none there is unattributed.
fn entries_on(processors: usize) -> u32 {
    let processors = processors.max(1);
    let each = size_of::<Charge>() + size_of::<u64>();
    let fit = (VALUES / (each * processors)).min(ENTRIES_EACH * processors);
    u32::try_from(fit).map_or(ENTRIES, |fit| fit.clamp(1024, ENTRIES))
}

/// For each soft interrupt for the network that is looked into, so many are not, where they come fast.
const MOST_OTHERS: u32 = 15;

/// Of `asm-generic/socket.h`, since Linux 5.14.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// An entry that did not move for so many passes is removed when its map is half full.
const FORGET_AFTER: u32 = 30;

/// Whose a segment is: `struct owner` of the BPF program.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Owner {
    kind: u32,
    a: u32,
    b: u64,
}

/// `struct charge` of the BPF program.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Charge {
    ns: u64,
    events: u64,
}

/// `struct device` of the BPF program.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct DeviceKey {
    pub(super) namespace: u32,
    pub(super) index: u32,
}

/// `struct holder` of the BPF program.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Holder {
    /// Of the network namespace; 0 where it is not known.
    cookie: u64,
    pub(super) guest: u32,
    padding: u32,
}

impl Holder {
    /// A guest's, in the namespace with this cookie.
    pub(super) fn new(guest: u32, cookie: Option<u64>) -> Self {
        Self {
            cookie: cookie.unwrap_or(0),
            guest,
            padding: 0,
        }
    }
}

/// `struct told` of the BPF program.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Told {
    generation: u32,
    monitors: u32,
}

// SAFETY: `repr(C)`, integers only and no padding, so that any bytes are a value.
unsafe impl aya::Pod for Owner {}
// SAFETY: as above.
unsafe impl aya::Pod for Told {}
// SAFETY: as above.
unsafe impl aya::Pod for Holder {}
// SAFETY: as above.
unsafe impl aya::Pod for Charge {}
// SAFETY: as above.
unsafe impl aya::Pod for DeviceKey {}

// `enum kind` of the BPF program.
const SOFTIRQ: u32 = 0;
const GUEST: u32 = 1;
const DEVICE: u32 = 2;
const BLOCK: u32 = 3;

/// Contexts: see the BPF program.
const IDLE: u64 = 0;
const KSOFTIRQD: u64 = 1 << 62;
const PROCESS: u64 = 1 << 63;

/// The programs, attached while this lives, and their maps.
pub(super) struct Probe {
    charges: PerCpuHashMap<MapData, Owner, Charge>,
    contexts: PerCpuHashMap<MapData, u64, u64>,
    lost: PerCpuArray<MapData, u64>,
    devices: Wanted<DeviceKey, Holder>,
    monitors: Wanted<u32, u32>,
    told: Array<MapData, Told>,
    generation: u32,
    seen_charges: HashMap<Owner, Seen>,
    seen_contexts: HashMap<u64, Seen>,
    seen_lost: u64,
    entries: u32,
    /// Why redirected packets are not seen.
    unseen: Option<String>,
    /// Keeps the programs attached.
    _programs: Ebpf,
}

/// What the programs found since the last reading.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Soft interrupt time by whom it worked for.
    charges: Vec<(Owner, u64)>,
    /// And by whose context it ran in.
    contexts: Vec<(u64, u64)>,
    /// Time that found no room in the maps.
    lost: u64,
}

/// The traced method.
pub struct Traced {
    probe: Probe,
    groups: Groups,
    cookies: Cookies,
}

/// What the kernel calls network namespaces, and never another one later, as it does with their inodes' numbers.
#[derive(Debug, Default)]
struct Cookies {
    /// By guest and inode.
    known: HashMap<(u32, u32), Option<u64>>,
    passes: u32,
}

/// A guest's cookies are asked for again this often, in passes: it may have got another namespace.
const ASK_AGAIN: u32 = 64;

#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    ns: u64,
    idle_passes: u32,
}

/// A map that user space fills: what is in it, to change only differences.
struct Wanted<K: aya::Pod, V: aya::Pod> {
    map: aya::maps::HashMap<MapData, K, V>,
    present: HashMap<K, V>,
}

impl<K: aya::Pod + std::hash::Hash + Eq, V: aya::Pod + PartialEq> Wanted<K, V> {
    fn set(&mut self, wanted: &HashMap<K, V>) {
        let map = &mut self.map;
        self.present.retain(|key, _| {
            let keep = wanted.contains_key(key);
            if !keep {
                // It may be gone already; then that is what was wanted.
                let _ = map.remove(key);
            }
            keep
        });
        for (key, value) in wanted {
            // A full map: the device's work stays keyed by the device, which is looked up below.
            if self.present.get(key) != Some(value) && map.insert(key, value, 0).is_ok() {
                self.present.insert(*key, *value);
            }
        }
    }
}

/// Control groups by their id in the kernel, the groups within a container included.
#[derive(Debug, Default)]
struct Groups {
    cpu: HashMap<u64, Option<u32>>,
    io: HashMap<u64, Option<u32>>,
    learnt: HashSet<u32>,
}

impl Traced {
    /// Loads and attaches the programs.
    ///
    /// # Errors
    /// When the kernel does not describe its types (BTF), or this process may not use BPF.
    pub fn open(sys: &Path, hierarchy: Option<&Hierarchy>) -> Result<Self, ObserveError> {
        Self::sampling(sys, hierarchy, MOST_OTHERS)
    }

    /// Likewise; looks into every soft interrupt, however fast they come. Those that are looked into take longer, so
    /// that this costs more, and is off by less.
    ///
    /// # Errors
    /// As [`Traced::open`].
    pub fn open_for_all(sys: &Path, hierarchy: Option<&Hierarchy>) -> Result<Self, ObserveError> {
        Self::sampling(sys, hierarchy, 0)
    }

    fn sampling(
        sys: &Path,
        hierarchy: Option<&Hierarchy>,
        others: u32,
    ) -> Result<Self, ObserveError> {
        let v1 = hierarchy.is_some_and(|hierarchy| hierarchy.v1);
        Ok(Self {
            probe: Probe::sampling(sys, v1, ENTRIES, others)?,
            groups: Groups::default(),
            cookies: Cookies::default(),
        })
    }
}

impl Cookies {
    /// Asks for those that are not known; one thread enters all their namespaces.
    fn update(&mut self, guests: &Guests) {
        self.passes = self.passes.wrapping_add(1);
        let mut before = std::mem::take(&mut self.known);
        let mut unknown = Vec::new();
        for guest in guests.iter() {
            let is_due = self.passes % ASK_AGAIN == guest.number % ASK_AGAIN;
            for device in &guest.devices {
                let key = (guest.number, device.namespace);
                let process = guest.beside_devices.or(guest.process);
                if device.namespace == guests.host_namespace() || self.known.contains_key(&key) {
                    continue;
                }
                let known = before.remove(&key).filter(|_| !is_due);
                self.known.insert(key, known.flatten());
                if let (None, Some(process)) = (known, process) {
                    unknown.push((key, guests.process(process).path("ns/net")));
                }
            }
        }
        if unknown.is_empty() {
            return;
        }
        let known = &mut self.known;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for (key, path) in unknown {
                    known.insert(key, cookie(&path, key.1).ok());
                }
            });
        });
    }

    fn of(&self, guest: u32, namespace: u32) -> Option<u64> {
        self.known.get(&(guest, namespace)).copied().flatten()
    }
}

/// The cookie of a network namespace if it still has that number. The thread stays in it.
fn cookie(path: &Path, inode: u32) -> std::io::Result<u64> {
    let file = std::fs::File::open(path)?;
    if file.metadata()?.ino() != u64::from(inode) {
        return Err(std::io::ErrorKind::NotFound.into());
    }
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
    // Of any family: this one reaches no network.
    let socket = socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
    let mut cookie = 0u64;
    let mut len = libc::socklen_t::try_from(size_of_val(&cookie)).unwrap_or(8);
    // SAFETY: the kernel writes at most `len` bytes into `cookie`, which lives.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    match result {
        0 => Ok(cookie),
        _ => Err(std::io::Error::last_os_error()),
    }
}

impl Probe {
    /// Loads and attaches the programs. `by_cpuacct` says that control groups are v1's `cpuacct`,
    /// not v2's.
    pub(super) fn open(sys: &Path, by_cpuacct: bool, entries: u32) -> Result<Self, ObserveError> {
        Self::sampling(sys, by_cpuacct, entries, MOST_OTHERS)
    }

    /// Likewise; at most `others` soft interrupts for the network are not looked into for each that is, a power of two
    /// less one.
    fn sampling(
        sys: &Path,
        by_cpuacct: bool,
        entries: u32,
        others: u32,
    ) -> Result<Self, ObserveError> {
        let unavailable = |reason: String| ObserveError::Unavailable {
            what: WHAT.to_owned(),
            reason,
        };
        let types = sys.join("kernel/btf/vmlinux");
        if !types.exists() {
            return Err(unavailable(format!(
                "{} does not exist: this kernel was built without CONFIG_DEBUG_INFO_BTF",
                types.display()
            )));
        }
        let btf = Btf::parse_file(&types, aya::Endianness::default()).map_err(|error| {
            unavailable(format!(
                "cannot read {}: {}",
                types.display(),
                chain(&error)
            ))
        })?;
        let by_cpuacct = u32::from(by_cpuacct);
        let processors = aya::util::nr_cpus().map_err(|(what, cause)| {
            unavailable(format!("cannot count processors in {what}: {cause}"))
        })?;
        let entries = entries.min(entries_on(processors));
        let mut programs = EbpfLoader::new()
            .btf(Some(&btf))
            .set_global("accounted_by_cpuacct", &by_cpuacct, true)
            .set_global("most_others", &others, true)
            .set_max_entries("charges", entries)
            .set_max_entries("contexts", entries)
            .load(OBJECT)
            .map_err(|error| explain(&error))?;
        for name in PROGRAMS {
            let program: &mut BtfTracePoint = programs
                .program_mut(name)
                .ok_or_else(|| unavailable(format!("the BPF object has no program {name}")))?
                .try_into()
                .map_err(|error: ProgramError| explain(&error))?;
            program.load(name, &btf).map_err(|error| explain(&error))?;
            program.attach().map_err(|error| explain(&error))?;
        }
        let unseen = attach_to_redirects(&mut programs, &btf);
        let mut take = |name: &str| {
            programs
                .take_map(name)
                .ok_or_else(|| unavailable(format!("the BPF object has no map {name}")))
        };
        let wrong = |error: aya::maps::MapError| explain(&error);
        Ok(Self {
            charges: take("charges")?.try_into().map_err(wrong)?,
            contexts: take("contexts")?.try_into().map_err(wrong)?,
            lost: take("lost")?.try_into().map_err(wrong)?,
            devices: Wanted {
                map: take("devices")?.try_into().map_err(wrong)?,
                present: HashMap::new(),
            },
            monitors: Wanted {
                map: take("vmms")?.try_into().map_err(wrong)?,
                present: HashMap::new(),
            },
            told: take("told")?.try_into().map_err(wrong)?,
            generation: 0,
            seen_charges: HashMap::new(),
            seen_contexts: HashMap::new(),
            seen_lost: 0,
            entries,
            unseen,
            _programs: programs,
        })
    }

    /// Soft interrupt time by guest since the last call, for subjects that are known by number:
    /// what worked for each, and what ran in the context of each one's control groups.
    pub(super) fn of_subjects(
        &mut self,
        devices: &HashMap<DeviceKey, Holder>,
        groups: &HashMap<u64, Option<u32>>,
    ) -> HashMap<u32, IoWork> {
        let found = self.read();
        let mut work: HashMap<u32, IoWork> = HashMap::new();
        let add = |to: &mut Nanoseconds, ns: u64| *to = Nanoseconds(to.0.saturating_add(ns));
        for (owner, ns) in found.charges {
            let subject = match owner.kind {
                GUEST => Some(owner.a),
                DEVICE => device_owner(owner, devices),
                _ => None,
            };
            if let Some(subject) = subject {
                add(&mut work.entry(subject).or_default().softirq, ns);
            }
        }
        for (context, ns) in found.contexts {
            if let Some(Some(subject)) = groups.get(&context) {
                add(&mut work.entry(*subject).or_default().context, ns);
            }
        }
        self.tell(devices, &HashMap::new());
        work
    }

    /// Tells the programs whose the devices are, and which thread groups are VMs'.
    fn tell(&mut self, devices: &HashMap<DeviceKey, Holder>, monitors: &HashMap<u32, u32>) {
        self.devices.set(devices);
        self.monitors.set(monitors);
        // Each time: a device may have been made anew where one was that the programs know.
        self.generation = self.generation.wrapping_add(1);
        let told = Told {
            generation: self.generation,
            monitors: u32::try_from(monitors.len()).unwrap_or(u32::MAX),
        };
        // An element of an array is always there.
        let _ = self.told.set(0, told, 0);
    }

    /// What was found since the last call.
    fn read(&mut self) -> Found {
        Found {
            charges: advances(
                &mut self.charges,
                &mut self.seen_charges,
                self.entries,
                |charge| charge.ns,
            ),
            contexts: advances(
                &mut self.contexts,
                &mut self.seen_contexts,
                self.entries,
                |ns| *ns,
            ),
            lost: self.lost(),
        }
    }

    /// Time that found no room in the maps since the last call.
    fn lost(&mut self) -> u64 {
        let sum = (0..2)
            .filter_map(|which| self.lost.get(&which, 0).ok())
            .flat_map(|values| values.iter().copied().collect::<Vec<_>>())
            .fold(0u64, u64::saturating_add);
        let new = sum.saturating_sub(self.seen_lost);
        self.seen_lost = sum;
        new
    }
}

/// A kernel that lacks what is wanted here goes on without; says what is not seen then, and why.
fn attach_to_redirects(programs: &mut Ebpf, btf: &Btf) -> Option<String> {
    let xdp = programs.program_mut(XDP_REDIRECT).map(|program| {
        let program = <&mut BtfTracePoint>::try_from(program)?;
        program.load(XDP_REDIRECT, btf)?;
        program.attach()
    });
    let xdp = xdp.and_then(Result::err);
    let other = programs.program_mut(REDIRECT).map(|program| {
        let program = <&mut FExit>::try_from(program)?;
        program.load(REDIRECT, btf)?;
        program.attach()
    });
    let other = other.and_then(Result::err);
    let unseen = [("XDP redirects", xdp), ("BPF programs hand over", other)];
    let unseen: Vec<String> = unseen
        .into_iter()
        .filter_map(|(what, error)| {
            let why = chain(&error?);
            Some(format!(
                "what {what} to guests is the host's: {}",
                why.trim()
            ))
        })
        .collect();
    (!unseen.is_empty()).then(|| unseen.join("; "))
}

/// Whose a device is that the kernel met before this side had told it.
fn device_owner(owner: Owner, devices: &HashMap<DeviceKey, Holder>) -> Option<u32> {
    // An interface's index, and half of a cookie.
    let (index, cookie) = (owner.b as u32, (owner.b >> 32) as u32);
    [index, 0].into_iter().find_map(|index| {
        let key = DeviceKey {
            namespace: owner.a,
            index,
        };
        let holder = devices.get(&key)?;
        let is_same = holder.cookie == 0 || cookie == 0 || holder.cookie as u32 == cookie;
        is_same.then_some(holder.guest)
    })
}

/// Reads a map whole, and gives what each entry advanced by. Entries that stand still are removed
/// when room is short; one that comes back begins at zero.
fn advances<K, V>(
    map: &mut PerCpuHashMap<MapData, K, V>,
    seen: &mut HashMap<K, Seen>,
    entries: u32,
    time: fn(&V) -> u64,
) -> Vec<(K, u64)>
where
    K: aya::Pod + std::hash::Hash + Eq,
    V: aya::Pod,
{
    let mut advances = Vec::with_capacity(seen.len());
    let mut idle = Vec::new();
    // An entry that vanishes between two steps ends the iteration early; the next pass has it.
    for (key, values) in map.iter().flatten() {
        let ns = values.iter().map(time).fold(0u64, u64::saturating_add);
        let before = seen.entry(key).or_default();
        let new = ns.saturating_sub(before.ns);
        before.ns = ns;
        before.idle_passes = if new == 0 { before.idle_passes + 1 } else { 0 };
        if before.idle_passes > FORGET_AFTER {
            idle.push(key);
        }
        if new > 0 {
            advances.push((key, new));
        }
    }
    if seen.len() > entries as usize / 2 {
        for key in idle {
            let _ = map.remove(&key);
            seen.remove(&key);
        }
    }
    advances
}

impl Method for Traced {
    fn name(&self) -> &'static str {
        "traced"
    }

    fn note(&self) -> Option<&str> {
        self.probe.unseen.as_deref()
    }

    fn charge(
        &mut self,
        guests: &Guests,
        _: &Usage,
        _: &IntervalExchanges,
    ) -> Result<IoCharge, ObserveError> {
        self.cookies.update(guests);
        let cookies = &self.cookies;
        let devices: HashMap<DeviceKey, Holder> = guests
            .iter()
            .flat_map(|guest| {
                guest.devices.iter().map(|device| {
                    let key = DeviceKey {
                        namespace: device.namespace,
                        index: device.index,
                    };
                    let cookie = cookies.of(guest.number, device.namespace);
                    (key, Holder::new(guest.number, cookie))
                })
            })
            .collect();
        let monitors = guests.monitors();
        let alive: HashSet<u32> = guests.iter().map(|guest| guest.number).collect();
        let disks: HashMap<u32, u32> = guests
            .iter()
            .flat_map(|guest| {
                guest
                    .disks
                    .iter()
                    .map(|disk| (disk.major << 20 | disk.minor, guest.number))
            })
            .collect();

        self.groups.update(guests, &alive);
        let mut charge = IoCharge {
            is_by_clock: true,
            ..IoCharge::default()
        };
        let add = |to: &mut Nanoseconds, ns: u64| *to = Nanoseconds(to.0.saturating_add(ns));
        let found = self.probe.read();
        for (owner, ns) in found.charges {
            let guest = match owner.kind {
                SOFTIRQ => None,
                GUEST => Some(owner.a),
                DEVICE => device_owner(owner, &devices),
                BLOCK => disks
                    .get(&owner.a)
                    .copied()
                    .or_else(|| self.groups.io(owner.b, guests)),
                _ => None,
            };
            match guest {
                Some(guest) if alive.contains(&guest) => {
                    add(&mut charge.guests.entry(guest).or_default().softirq, ns);
                }
                // It ended in this interval and has no row.
                Some(_) => add(&mut charge.unknown, ns),
                None => add(&mut charge.host_softirq, ns),
            }
        }
        for (context, ns) in found.contexts {
            let guest = match context {
                IDLE => continue,
                KSOFTIRQD => {
                    add(&mut charge.ksoftirqd, ns);
                    continue;
                }
                _ if context & PROCESS != 0 => {
                    // A process's number.
                    let pid = context as u32;
                    monitors.get(&pid).copied()
                }
                group => self.groups.cpu(group, guests),
            };
            match guest.filter(|guest| alive.contains(guest)) {
                Some(guest) => add(&mut charge.guests.entry(guest).or_default().context, ns),
                None => add(&mut charge.host_context, ns),
            }
        }
        add(&mut charge.unknown, found.lost);

        // For the next interval.
        self.probe.tell(&devices, &monitors);
        Ok(charge)
    }
}

impl Groups {
    /// Learns the groups of containers that are new.
    fn update(&mut self, guests: &Guests, alive: &HashSet<u32>) {
        self.learnt.retain(|number| alive.contains(number));
        if self.cpu.len() + self.io.len() > 1 << 16 {
            *self = Self::default();
        }
        for guest in guests.iter() {
            if self.learnt.insert(guest.number) {
                self.learn(guests, guest);
            }
        }
    }

    fn cpu(&mut self, id: u64, guests: &Guests) -> Option<u32> {
        if let Some(known) = self.cpu.get(&id) {
            return *known;
        }
        // A group within a container, made after the container was learnt; or nobody's, and then
        // it stays so: ids are not given away again.
        guests.iter().for_each(|guest| self.learn(guests, guest));
        *self.cpu.entry(id).or_insert(None)
    }

    fn io(&mut self, id: u64, guests: &Guests) -> Option<u32> {
        if let Some(known) = self.io.get(&id) {
            return *known;
        }
        guests.iter().for_each(|guest| self.learn(guests, guest));
        *self.io.entry(id).or_insert(None)
    }

    fn learn(&mut self, guests: &Guests, guest: &Guest) {
        let (Some(hierarchy), Some(group)) = (guests.hierarchy(), &guest.group) else {
            return;
        };
        if guest.platform.is_vm() {
            return;
        }
        learn(
            &hierarchy.mounted.join(group),
            guest.number,
            &mut self.cpu,
            4,
        );
        let io = if hierarchy.v1 {
            hierarchy.mounted.with_file_name("blkio")
        } else {
            hierarchy.mounted.clone()
        };
        learn(&io.join(group), guest.number, &mut self.io, 4);
    }
}

pub(super) fn learn(group: &Path, guest: u32, ids: &mut HashMap<u64, Option<u32>>, deepest: u32) {
    let Ok(metadata) = std::fs::metadata(group) else {
        return;
    };
    ids.insert(metadata.ino(), Some(guest));
    if metadata.nlink() == 2 || deepest == 0 {
        return;
    }
    for entry in std::fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            learn(&entry.path(), guest, ids, deepest - 1);
        }
    }
}

fn explain(error: &dyn std::error::Error) -> ObserveError {
    crate::bpf::explain(WHAT, error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Roots;
    use std::process::Command;
    use std::time::Duration;

    fn probe(entries: u32) -> Option<Probe> {
        match Probe::open(Path::new("/sys"), false, entries) {
            Ok(probe) => Some(probe),
            Err(error) => {
                // Programs that this kernel refuses are a fault of ours.
                let text = error.to_string();
                let lacks = ["CAP_BPF", "CONFIG_DEBUG_INFO_BTF", "not implemented"];
                assert!(lacks.iter().any(|lack| text.contains(lack)), "{text}");
                eprintln!("SKIPPED: {text}");
                None
            }
        }
    }

    #[test]
    fn no_number_of_processors_makes_tracing_take_more_memory() {
        assert_eq!(entries_on(1), 4096);
        assert_eq!(entries_on(4), ENTRIES);
        for processors in [64, 128, 256, 1024] {
            let bytes = entries_on(processors) as usize * processors * 24;
            assert!(bytes <= VALUES, "{processors}: {bytes}");
        }
        assert!(
            entries_on(256) > 2 * 2000,
            "guests, their devices and the host's"
        );
    }

    #[test]
    fn a_kernel_without_types_says_so_and_what_is_missing() {
        let root = tempfile::tempdir().unwrap();
        let error = Probe::open(root.path(), false, ENTRIES).err().unwrap();
        assert!(
            error.to_string().contains("CONFIG_DEBUG_INFO_BTF"),
            "{error}"
        );
        let types = root.path().join("kernel/btf/vmlinux");
        std::fs::create_dir_all(types.parent().unwrap()).unwrap();
        std::fs::write(&types, b"no types at all").unwrap();
        let error = Probe::open(root.path(), false, ENTRIES).err().unwrap();
        assert!(error.to_string().contains("vmlinux"), "{error}");
    }

    #[test]
    fn time_that_finds_no_room_in_a_full_map_is_nobodys_and_not_lost() {
        let Some(mut probe) = probe(1) else {
            return;
        };
        probe.read();
        // Timers, RCU and the scheduler are kinds enough for more than one entry.
        std::thread::sleep(Duration::from_millis(500));
        let found = probe.read();
        assert!(found.charges.len() <= 1);
        assert!(found.lost > 0, "{found:?}");
        assert_eq!(probe.lost(), 0, "counted once");
    }

    #[test]
    fn the_hosts_own_soft_interrupts_are_the_hosts() {
        let Some(probe) = probe(ENTRIES) else {
            return;
        };
        let mut traced = Traced {
            probe,
            groups: Groups::default(),
            cookies: Cookies::default(),
        };
        let guests = Guests::new(Roots::host());
        let mut charge = || {
            let exchanges = IntervalExchanges::default();
            traced
                .charge(&guests, &Usage::default(), &exchanges)
                .unwrap()
        };
        charge();
        std::thread::sleep(Duration::from_millis(300));
        let charge = charge();
        assert!(charge.host_softirq.0 > 0);
        assert_eq!(charge.unknown.0, 0);
        assert!(charge.guests.is_empty());
    }

    /// What worked for whom on the loopback device, as two probes see it at the same time: all of it, and a part drawn
    /// by lot.
    #[test]
    fn what_is_drawn_by_lot_counts_for_all() {
        let opened = [0, MOST_OTHERS]
            .map(|others| Probe::sampling(Path::new("/sys"), false, ENTRIES, others));
        let [Ok(mut all), Ok(mut drawn)] = opened else {
            drop(probe(ENTRIES));
            return;
        };
        let receiver = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        receiver.set_nonblocking(true).unwrap();
        let send = |packets: u32| {
            for _ in 0..packets {
                sender.send(&[0; 64]).unwrap();
                while receiver.recv(&mut [0; 64]).is_ok() {}
            }
        };
        // Until the part is as small as it gets.
        send(20_000);
        let devices = |probe: &mut Probe| {
            let of_devices = |(owner, ns): (Owner, u64)| (owner.kind == DEVICE).then_some(ns);
            let charges = probe.read().charges.into_iter();
            charges.filter_map(of_devices).sum::<u64>()
        };
        devices(&mut all);
        devices(&mut drawn);
        send(200_000);
        let (all, drawn) = (devices(&mut all) as f64, devices(&mut drawn) as f64);
        eprintln!("{all} ns, by lot {drawn} ns");
        assert!(all > 0.0);
        assert!((0.85..1.15).contains(&(drawn / all)), "{drawn} of {all} ns");
    }

    /// The committed object is what the source says, where the compiler that made it is at hand.
    #[test]
    #[ignore = "needs clang: make test-all"]
    fn the_objects_are_built_from_their_sources() {
        let crate_ = Path::new(env!("CARGO_MANIFEST_DIR"));
        for object in [
            "bpf/charge.bpf.o",
            "bpf/grants.bpf.o",
            "tests/containers/redirect.bpf.o",
        ] {
            is_built_from_its_source(&crate_.join(object));
        }
    }

    fn is_built_from_its_source(committed: &Path) {
        let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("bpf/build.sh");
        let version = Command::new("clang").arg("--version").output();
        let Ok(version) = version else {
            eprintln!("SKIPPED: clang is not installed, so the BPF object cannot be built again");
            return;
        };
        let output = tempfile::tempdir().unwrap();
        let object = output.path().join("charge.bpf.o");
        let built = Command::new(build)
            .arg(&object)
            .arg(committed.with_extension("c"))
            .output()
            .unwrap();
        if !built.status.success() {
            let said = String::from_utf8_lossy(&built.stderr);
            let incomplete = said.contains("bpf_helpers.h' file not found")
                || said.contains("llvm-strip: not found");
            assert!(incomplete, "{said}");
            eprintln!("SKIPPED: libbpf's headers or llvm-strip are not installed: {said}");
            return;
        }
        let rebuilt = std::fs::read(&object).unwrap();
        let is_same_compiler =
            String::from_utf8_lossy(&version.stdout).contains("clang version 14.0.6");
        if is_same_compiler && cfg!(target_arch = "x86_64") {
            assert!(
                rebuilt == std::fs::read(committed).unwrap(),
                "run bpf/build.sh and commit {}",
                committed.display()
            );
        } else {
            eprintln!("SKIPPED: another compiler than the committed object's; it was only built");
        }
    }
}
