// SPDX-License-Identifier: Apache-2.0
//! Exchanges of the guests and their host in an interval: packets, block requests, VM exits, and Xen pages.
//!
//! Packets are counted at the host's end of a guest's device where there is one: a single file contains all such
//! devices.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use vtax_inventory::{Guest, Guests};
use vtax_kernel::text;
use vtax_kernel::{KernelFile, net_devices};
use vtax_observe::Roots;
use vtax_observe::counters::{Change, Counter, GrantProbe, Pages, Rule, SharedGrants};

/// The number of guests whose block requests are read in each pass; the others follow in the next passes.
const GROUPS_A_PASS: usize = 64;

/// The exchanges of one guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GuestExchanges {
    /// Packets that it received.
    pub received: u64,
    /// Packets that it sent.
    pub sent: u64,
    /// Bytes in both directions.
    pub bytes: u64,
    /// Block requests that completed.
    pub block_requests: u64,
    /// VM exits; `None` where the kernel does not show them (debugfs is not mounted).
    pub exits: Option<u64>,
    /// Pages that back ends exchanged with a Xen domain; `None` for other guests and where BPF does not work.
    pub pages: Option<u64>,
}

impl GuestExchanges {
    /// Adds the exchanges of another interval or guest. A number that only one of the two has is the sum.
    pub fn merge(&mut self, other: &Self) {
        *self = self.with(other, u64::saturating_add);
    }

    /// The exchanges beyond those of a part.
    #[must_use]
    pub fn without(&self, part: &Self) -> Self {
        self.with(part, u64::saturating_sub)
    }

    fn with(&self, other: &Self, of: fn(u64, u64) -> u64) -> Self {
        let known = |own: Option<u64>, other: Option<u64>| match own {
            Some(own) => Some(of(own, other.unwrap_or(0))),
            None => other,
        };
        Self {
            received: of(self.received, other.received),
            sent: of(self.sent, other.sent),
            bytes: of(self.bytes, other.bytes),
            block_requests: of(self.block_requests, other.block_requests),
            exits: known(self.exits, other.exits),
            pages: known(self.pages, other.pages),
        }
    }
}

/// All exchanges in an interval.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IntervalExchanges {
    /// By guest.
    pub guests: HashMap<u32, GuestExchanges>,
    /// Packets of the host itself: those of the loopback device, and those of physical ports that did not pass a
    /// guest's device.
    pub host_packets: u64,
    /// Packets that the kernel received in network namespaces that are neither the host's nor a guest's, or on
    /// loopback devices within guests.
    pub unseen_packets: u64,
    /// Block requests of the host itself: runs of soft interrupts that complete block requests, less the guests'
    /// requests.
    pub host_block_requests: u64,
    /// Runs of soft interrupts that do no I/O for any guest: timers, scheduler, RCU.
    pub other_softirqs: u64,
}

/// Reads the counts, and returns the difference from the last reading.
pub struct Exchanges {
    roots: Roots,
    table: Option<KernelFile>,
    softirqs: Option<KernelFile>,
    diskstats: Option<KernelFile>,
    classes: HashMap<Vec<u8>, Class>,
    devices: HashMap<Vec<u8>, [Count; 3]>,
    others: Count,
    completions: Count,
    softnet: Option<KernelFile>,
    processed: Count,
    disks: HashMap<(u32, u32), Count>,
    guests: HashMap<u32, Reader>,
    grants: Option<SharedGrants>,
    note: Option<String>,
    passes: usize,
}

/// Packets of the host's devices.
#[derive(Debug, Clone, Copy, Default)]
struct HostPackets {
    /// Packets of ports, received and sent.
    ports: u64,
    /// The received part of them.
    received: u64,
    loopback: u64,
}

#[derive(Default)]
struct Reader {
    /// The table of its own network namespace, where its devices have no end on the host.
    table: Option<KernelFile>,
    own: [Count; 3],
    block: Option<(KernelFile, Count)>,
    /// Xen: blkback's counts for each of the domain's disks, reads and writes.
    rings: Vec<(KernelFile, Count)>,
    pages: (Pages, Count),
    /// Opened for each reading: the kernel keeps a VM, with all its memory, as long as this file is open.
    exits: Option<(PathBuf, Count)>,
    looked: bool,
}

/// The role of a device on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Loopback,
    /// A physical port of the machine: it has a bus device.
    Port,
    /// Bridges, tunnels, guests' devices: their traffic is counted elsewhere.
    Virtual,
}

#[derive(Debug, Clone)]
struct Count(Counter);

impl Default for Count {
    fn default() -> Self {
        Self(Counter::new(Rule::FROM_ZERO))
    }
}

impl Count {
    fn step(&mut self, raw: u64, is_new: bool) -> u64 {
        match self.0.advance(raw) {
            Change::First if is_new => raw,
            change => change.gain(),
        }
    }
}

fn steps(counts: &mut [Count; 3], mut raw: [u64; 3], is_new: bool) -> [u64; 3] {
    for (count, raw) in counts.iter_mut().zip(&mut raw) {
        *raw = count.step(*raw, is_new);
    }
    raw
}

impl Exchanges {
    /// Opens the host's tables; a table that cannot be read counts nothing.
    pub fn open(roots: &Roots) -> Self {
        let file = |path: PathBuf| KernelFile::open(path).ok();
        // The table of init's network namespace, which is the host's even when vtax runs in another one.
        let table = file(roots.proc.join("1/net/dev"));
        let (grants, note) = match GrantProbe::open(&roots.sys) {
            Ok(grants) => (grants, None),
            Err(error) => (None, Some(error.to_string())),
        };
        Self {
            table: table.or_else(|| file(roots.proc.join("net/dev"))),
            softirqs: file(roots.proc.join("softirqs")),
            diskstats: file(roots.proc.join("diskstats")),
            roots: roots.clone(),
            classes: HashMap::new(),
            devices: HashMap::new(),
            others: Count(Counter::new(Rule::FROM_ZERO_IN_32_BITS)),
            completions: Count(Counter::new(Rule::FROM_ZERO_IN_32_BITS)),
            softnet: file(roots.proc.join("net/softnet_stat")),
            processed: Count(Counter::new(Rule::FROM_ZERO_IN_32_BITS)),
            disks: HashMap::new(),
            guests: HashMap::new(),
            grants,
            note,
            passes: 0,
        }
    }

    /// The counts that are unavailable on this host, and the reason.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// The programs that count pages exchanged with Xen's domains, where they run.
    pub(super) fn grants(&self) -> Option<SharedGrants> {
        self.grants.clone()
    }

    /// The exchanges since the last call.
    pub fn read(&mut self, guests: &Guests) -> IntervalExchanges {
        let host = guests.host_namespace();
        // If both counts are equal, one entry may still be of a guest that is gone; it is removed with the next new
        // guest.
        if self.guests.len() > guests.len() {
            let present = guests.numbers();
            self.guests.retain(|number, _| present.contains(number));
        }
        let is_first = self.passes == 0;
        let [other_softirqs, completions] = self.softirqs();
        let mut interval = IntervalExchanges {
            other_softirqs,
            ..IntervalExchanges::default()
        };

        let mut owners: HashMap<&[u8], &Guest> = HashMap::new();
        for guest in guests.iter() {
            for device in &guest.devices {
                if device.namespace == host && !device.name.is_empty() {
                    owners.insert(device.name.as_bytes(), guest);
                }
            }
        }
        let HostPackets {
            ports,
            received,
            loopback,
        } = self.read_table(&owners, is_first, &mut interval);

        let disks = self.read_disks();
        let turns = guests.len().div_ceil(GROUPS_A_PASS).max(1);
        for guest in guests.iter() {
            let reader = self.guests.entry(guest.number).or_default();
            let counts = interval.guests.entry(guest.number).or_default();
            let at_host = guest
                .devices
                .iter()
                .any(|device| device.namespace == host && !device.name.is_empty());
            if !at_host && !guest.devices.is_empty() {
                reader.read_own(guest, &self.roots.proc, counts);
            }
            for disk in &guest.disks {
                counts.block_requests += disks.get(&(disk.major, disk.minor)).copied().unwrap_or(0);
            }
            if !reader.looked {
                reader.look(guest, &self.roots.sys);
            }
            if guest.is_new || (self.passes + guest.number as usize).is_multiple_of(turns) {
                counts.block_requests += reader.block_requests(guest.is_new);
            }
            counts.exits = reader.exits.as_mut().and_then(|(path, count)| {
                let raw = text::number(std::fs::read(path).ok()?.trim_ascii())?;
                Some(count.step(raw, guest.is_new))
            });
            if let (Some(grants), Some((domain, _))) = (&self.grants, guest.domain) {
                let mut grants = grants.lock().unwrap_or_else(PoisonError::into_inner);
                let (pages, count) = &mut reader.pages;
                let read = grants.advance(Some(domain), pages);
                counts.pages = (read.ok()).map(|()| count.step(pages.exchanged, guest.is_new));
            }
        }
        let of_guests: u64 = interval.guests.values().map(|g| g.received + g.sent).sum();
        interval.host_packets = loopback + ports.saturating_sub(of_guests);
        // A port's driver may merge many packets into one; the count is then too low, and no packet counts as unseen.
        let seen = of_guests + loopback + received;
        interval.unseen_packets = self.processed().saturating_sub(seen);
        let of_guests: u64 = interval.guests.values().map(|g| g.block_requests).sum();
        interval.host_block_requests = completions.saturating_sub(of_guests);
        self.passes += 1;
        interval
    }

    /// Adds the guests' packets; returns those of the host's devices.
    fn read_table(
        &mut self,
        owners: &HashMap<&[u8], &Guest>,
        is_first: bool,
        interval: &mut IntervalExchanges,
    ) -> HostPackets {
        let mut host = HostPackets::default();
        let Some(Ok(table)) = self.table.as_mut().map(KernelFile::read) else {
            return host;
        };
        let mut seen = 0;
        for (name, now) in devices(table) {
            seen += 1;
            let owner = owners.get(name);
            let is_new = !is_first && owner.is_none_or(|guest| guest.is_new);
            if !self.devices.contains_key(name) {
                self.devices.insert(name.to_vec(), <[Count; 3]>::default());
            }
            let Some(counts) = self.devices.get_mut(name) else {
                continue;
            };
            let [received, sent, bytes] = steps(counts, now, is_new);
            if let Some(guest) = owner {
                let counts = interval.guests.entry(guest.number).or_default();
                // Packets that the host's end receives were sent by the guest.
                counts.sent += received;
                counts.received += sent;
                counts.bytes += bytes;
                continue;
            }
            let class = match self.classes.get(name) {
                Some(class) => *class,
                None => {
                    let class = classify(name, &self.roots.sys);
                    self.classes.insert(name.to_vec(), class);
                    class
                }
            };
            match class {
                Class::Loopback => host.loopback += received,
                Class::Port => {
                    host.ports += received + sent;
                    host.received += received;
                }
                Class::Virtual => {}
            }
        }
        // Removes devices that are gone once there are many.
        if self.devices.len() > 2 * seen + 64 {
            let table = self.table.as_mut().and_then(|table| table.read().ok());
            let present: HashSet<&[u8]> = devices(table.unwrap_or_default())
                .map(|(name, _)| name)
                .collect();
            self.devices
                .retain(|name, _| present.contains(name.as_slice()));
            self.classes
                .retain(|name, _| present.contains(name.as_slice()));
        }
        host
    }

    /// Packets that the kernel received, in all network namespaces.
    fn processed(&mut self) -> u64 {
        let Some(Ok(table)) = self.softnet.as_mut().map(KernelFile::read) else {
            return 0;
        };
        // The first column of each processor's line, a hexadecimal number.
        let packets = |line| {
            let text = std::str::from_utf8(text::fields(line).next()?).ok()?;
            u64::from_str_radix(text, 16).ok()
        };
        let sum = text::lines(table)
            .filter_map(packets)
            .fold(0, u64::saturating_add);
        self.processed.step(sum, false)
    }

    fn read_disks(&mut self) -> HashMap<(u32, u32), u64> {
        let Some(Ok(table)) = self.diskstats.as_mut().map(KernelFile::read) else {
            return HashMap::new();
        };
        let mut steps = HashMap::new();
        for line in text::lines(table) {
            let mut fields = text::fields(line);
            let mut number = |skip: usize| fields.nth(skip).and_then(text::number);
            let (Some(major), Some(minor), Some(reads), Some(writes)) =
                (number(0), number(0), number(1), number(3))
            else {
                continue;
            };
            let (Ok(major), Ok(minor)) = (u32::try_from(major), u32::try_from(minor)) else {
                continue;
            };
            let count = self.disks.entry((major, minor)).or_default();
            steps.insert((major, minor), count.step(reads + writes, false));
        }
        steps
    }

    /// Runs of soft interrupts that do no I/O for any guest, and runs that complete block requests.
    fn softirqs(&mut self) -> [u64; 2] {
        let Some(Ok(table)) = self.softirqs.as_mut().map(KernelFile::read) else {
            return [0; 2];
        };
        let (mut others, mut completions) = (0u64, 0u64);
        for line in text::lines(table) {
            let mut fields = text::fields(line);
            let sum = match fields.next() {
                Some(b"TIMER:" | b"SCHED:" | b"RCU:" | b"HRTIMER:" | b"TASKLET:" | b"HI:") => {
                    &mut others
                }
                Some(b"BLOCK:" | b"IRQ_POLL:") => &mut completions,
                _ => continue,
            };
            let runs = fields.filter_map(text::number);
            *sum = runs.fold(*sum, u64::saturating_add);
        }
        [
            self.others.step(others, false),
            self.completions.step(completions, false),
        ]
    }
}

impl Reader {
    fn read_own(&mut self, guest: &Guest, proc: &Path, counts: &mut GuestExchanges) {
        if self.table.is_none() {
            let process = guest.process.or(guest.beside_devices);
            let path = process.map(|pid| proc.join(format!("{pid}/net/dev")));
            self.table = path.and_then(|path| KernelFile::open(path).ok());
        }
        let Some(table) = &mut self.table else {
            return;
        };
        let Ok(text) = table.read() else {
            self.table = None;
            return;
        };
        let whole = guest.devices.iter().any(|device| device.index == 0);
        let mut sums = [0u64; 3];
        for (name, now) in devices(text) {
            let counts = if whole {
                name != b"lo"
            } else {
                guest
                    .devices
                    .iter()
                    .any(|device| device.name.as_bytes() == name)
            };
            if counts {
                for (sum, raw) in sums.iter_mut().zip(now) {
                    *sum = sum.saturating_add(raw);
                }
            }
        }
        let [received, sent, bytes] = steps(&mut self.own, sums, guest.is_new);
        // In a container's own namespace, directions are the guest's; for a tap they are the host's.
        if whole {
            counts.received += received;
            counts.sent += sent;
        } else {
            counts.received += sent;
            counts.sent += received;
        }
        counts.bytes += bytes;
    }

    /// Finds the files that only some guests have.
    fn look(&mut self, guest: &Guest, sys: &Path) {
        self.looked = true;
        if let Some((domain, _)) = guest.domain {
            self.rings = rings(domain, sys);
        } else if guest.platform.is_vm() {
            let prefix = guest.process.map(|pid| format!("{pid}-"));
            let directory = sys.join("kernel/debug/kvm");
            let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
            self.exits = prefix.and_then(|prefix| {
                let mut of_guest = entries.filter(|entry| {
                    entry
                        .file_name()
                        .as_encoded_bytes()
                        .starts_with(prefix.as_bytes())
                });
                let path = of_guest.next()?.path().join("exits");
                Some((path, Count::default()))
            });
        } else if let Some(group) = &guest.group {
            let groups = sys.join("fs/cgroup");
            let file = [
                groups
                    .join("blkio")
                    .join(group)
                    .join("blkio.throttle.io_serviced"),
                groups.join(group).join("io.stat"),
            ];
            self.block = file
                .into_iter()
                .find_map(|path| KernelFile::open_one_piece(path).ok())
                .map(|file| (file, Count::default()));
        }
    }

    fn block_requests(&mut self, is_new: bool) -> u64 {
        let of_rings = self.rings.iter_mut().filter_map(|(file, count)| {
            let raw = text::number(file.read().ok()?.trim_ascii())?;
            Some(count.step(raw, is_new))
        });
        let of_rings: u64 = of_rings.sum();
        if of_rings > 0 {
            return of_rings;
        }
        let Some((file, count)) = &mut self.block else {
            return 0;
        };
        let Ok(content) = file.read() else {
            return 0;
        };
        // v1 ends with `Total N`; v2 has `rios=N wios=N` for each disk.
        let total = text::keyed(content, "Total").unwrap_or_else(|| {
            text::fields(content)
                .filter_map(|field| {
                    let value = field
                        .strip_prefix(b"rios=")
                        .or(field.strip_prefix(b"wios="));
                    value.and_then(text::number)
                })
                .sum()
        });
        count.step(total, is_new)
    }
}

/// The request counters of a Xen domain's disks, where blkback serves them.
fn rings(domain: u32, sys: &Path) -> Vec<(KernelFile, Count)> {
    let prefix = format!("vbd-{domain}-");
    let devices = std::fs::read_dir(sys.join("bus/xen-backend/devices"));
    let of_domain = devices.into_iter().flatten().flatten().filter(|entry| {
        let name = entry.file_name();
        name.as_encoded_bytes().starts_with(prefix.as_bytes())
    });
    of_domain
        .flat_map(|entry| {
            ["rd_req", "wr_req"].map(|file| entry.path().join("statistics").join(file))
        })
        .filter_map(|path| Some((KernelFile::open_one_piece(path).ok()?, Count::default())))
        .collect()
}

/// Each device's name, and its packets received, packets sent and bytes.
fn devices(table: &[u8]) -> impl Iterator<Item = (&[u8], [u64; 3])> {
    net_devices(table).filter_map(|device| {
        let (received, sent) = device.traffic()?;
        let bytes = received.bytes.saturating_add(sent.bytes);
        Some((device.name, [received.packets, sent.packets, bytes]))
    })
}

fn classify(name: &[u8], sys: &Path) -> Class {
    use std::os::unix::ffi::OsStrExt;
    if name == b"lo" {
        return Class::Loopback;
    }
    let directory = sys
        .join("class/net")
        .join(std::ffi::OsStr::from_bytes(name));
    if directory.join("device").exists() {
        Class::Port
    } else {
        Class::Virtual
    }
}

#[cfg(test)]
mod tests;
