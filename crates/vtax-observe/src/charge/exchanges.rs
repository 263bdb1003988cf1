// SPDX-License-Identifier: Apache-2.0
//! Exchanges of the guests and their host in an interval: packets, block requests, VM exits, and Xen pages.
//!
//! Packets are counted at the host's end of a guest's device where there is one: a single file contains all such
//! devices.

use crate::Roots;
use crate::counters::{Change, Counter, GrantProbe, Pages, Rule, SharedGrants};
use crate::guests::{Guest, Guests};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use vtax_kernel::text;
use vtax_kernel::{KernelFile, net_devices};

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
            let present: HashSet<u32> = guests.iter().map(|guest| guest.number).collect();
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
        let mut sums = [0u64; 2];
        for line in text::lines(table) {
            let mut fields = text::fields(line);
            let [others, completions] = &mut sums;
            let sum = match fields.next() {
                Some(b"TIMER:" | b"SCHED:" | b"RCU:" | b"HRTIMER:" | b"TASKLET:" | b"HI:") => {
                    others
                }
                Some(b"BLOCK:" | b"IRQ_POLL:") => completions,
                _ => continue,
            };
            *sum = fields
                .filter_map(text::number)
                .fold(*sum, u64::saturating_add);
        }
        let [others, completions] = sums;
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
mod tests {
    use super::*;
    use std::fs;

    const HEAD: &str = "Inter-| Receive | Transmit\n face |bytes packets\n";
    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    struct Host(tempfile::TempDir);

    impl Host {
        fn new() -> Self {
            let host = Self(tempfile::tempdir().unwrap());
            host.put("sys/fs/cgroup/cgroup.controllers", "cpu");
            host.put("sys/class/net/eth0/device/x", "");
            host.put(&format!("sys/fs/cgroup/docker/{ID}/cgroup.procs"), "20\n");
            host.put("proc/20/cmdline", "nginx");
            for (pid, namespace) in [(1, 100), (20, 200)] {
                let ns = host.path(&format!("proc/{pid}/ns"));
                fs::create_dir_all(&ns).unwrap();
                std::os::unix::fs::symlink(format!("net:[{namespace}]"), ns.join("net")).unwrap();
            }
            host
        }

        fn path(&self, path: &str) -> PathBuf {
            self.0.path().join(path)
        }

        fn put(&self, path: &str, content: &str) {
            let path = self.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }

        fn pair(&self) {
            for (below, name, index, peer) in
                [("sys", "veth1", 17, 2), ("proc/20/root/sys", "eth0", 2, 17)]
            {
                self.put(
                    &format!("{below}/class/net/{name}/ifindex"),
                    &index.to_string(),
                );
                self.put(
                    &format!("{below}/class/net/{name}/iflink"),
                    &peer.to_string(),
                );
            }
        }

        fn table(&self, pid: u32, lines: &[(&str, u64, u64)]) {
            let lines: String = lines
                .iter()
                .map(|(name, rx, tx)| format!("{name}: 10 {rx} 0 0 0 0 0 0 20 {tx} 0 0 0 0 0 0\n"))
                .collect();
            self.put(&format!("proc/{pid}/net/dev"), &format!("{HEAD}{lines}"));
        }

        fn roots(&self) -> Roots {
            Roots::below(&self.path(""))
        }
    }

    #[test]
    fn packets_at_the_hosts_end_are_the_guests_with_directions_turned() {
        let host = Host::new();
        host.pair();
        host.table(
            1,
            &[
                ("lo", 5, 5),
                ("eth0", 100, 100),
                ("br0", 100, 100),
                ("veth1", 10, 20),
            ],
        );
        let mut guests = Guests::new(host.roots());
        guests.scan();
        let mut exchanges = Exchanges::open(&host.roots());
        assert_eq!(
            exchanges.read(&guests).host_packets,
            0,
            "nothing at first sight"
        );
        host.table(
            1,
            &[
                ("lo", 8, 8),
                ("eth0", 150, 100),
                ("br0", 150, 100),
                ("veth1", 13, 27),
            ],
        );
        let interval = exchanges.read(&guests);
        let guest = interval.guests.values().next().unwrap();
        assert_eq!((guest.sent, guest.received), (3, 7));
        assert_eq!(interval.host_packets, 3 + 50 - 10);
    }

    #[test]
    fn soft_interrupts_that_complete_no_guests_requests_are_the_hosts() {
        let host = Host::new();
        let table = |timers: u64, completions: u64| {
            let lines =
                format!("CPU0 CPU1\nTIMER: {timers} 1\nNET_RX: 9 9\nBLOCK: {completions} 2\n");
            host.put("proc/softirqs", &lines);
        };
        let requests = |count: u64| {
            let path = format!("sys/fs/cgroup/docker/{ID}/io.stat");
            host.put(&path, &format!("8:0 rios={count} wios=0\n"));
        };
        table(10, 10);
        requests(1);
        let mut guests = Guests::new(host.roots());
        guests.scan();
        let mut exchanges = Exchanges::open(&host.roots());
        exchanges.read(&guests);
        table(15, 40);
        requests(11);
        let interval = exchanges.read(&guests);
        assert_eq!(
            (interval.other_softirqs, interval.host_block_requests),
            (5, 20)
        );
    }

    #[test]
    fn packets_that_no_device_of_the_host_or_a_guest_had_are_unseen() {
        let host = Host::new();
        host.pair();
        let processed = |first: u64, second: u64| {
            let lines = format!("{first:08x} 00000000\n{second:08x} 00000000\n");
            host.put("proc/net/softnet_stat", &lines);
        };
        host.table(1, &[("lo", 0, 0), ("eth0", 0, 0), ("veth1", 0, 0)]);
        processed(0xffff_fff0, 5);
        let mut guests = Guests::new(host.roots());
        guests.scan();
        let mut exchanges = Exchanges::open(&host.roots());
        assert_eq!(exchanges.read(&guests).unseen_packets, 0);
        // The devices saw 10 packets of the loopback device, 20 that a port received, and 30 and 40 of the guest's.
        host.table(1, &[("lo", 10, 10), ("eth0", 20, 99), ("veth1", 30, 40)]);
        processed(0xffff_fff0, 5 + 107);
        assert_eq!(exchanges.read(&guests).unseen_packets, 7);
        processed(0xffff_fff0, 5 + 107);
        assert_eq!(exchanges.read(&guests).unseen_packets, 0);
    }

    #[test]
    fn without_an_end_at_the_host_the_guests_own_table_is_read() {
        let host = Host::new();
        host.table(1, &[]);
        host.table(20, &[("lo", 50, 50), ("eth0", 1, 2)]);
        let mut guests = Guests::new(host.roots());
        guests.scan();
        let mut exchanges = Exchanges::open(&host.roots());
        exchanges.read(&guests);
        host.table(20, &[("lo", 90, 90), ("eth0", 4, 9)]);
        let interval = exchanges.read(&guests);
        let guest = interval.guests.values().next().unwrap();
        assert_eq!((guest.sent, guest.received), (7, 3));
    }

    #[test]
    fn a_device_made_anew_under_its_old_name_makes_no_negative_count() {
        let host = Host::new();
        host.pair();
        host.table(1, &[("veth1", 1000, 1000)]);
        let mut guests = Guests::new(host.roots());
        guests.scan();
        let mut exchanges = Exchanges::open(&host.roots());
        exchanges.read(&guests);
        host.table(1, &[("veth1", 4, 5)]);
        let interval = exchanges.read(&guests);
        let guest = interval.guests.values().next().unwrap();
        assert_eq!((guest.sent, guest.received), (4, 5));
    }

    #[test]
    fn a_port_that_is_plugged_in_counts_from_zero_and_one_that_is_pulled_out_counts_nothing() {
        let host = Host::new();
        host.table(1, &[("eth0", 100, 100)]);
        let mut guests = Guests::new(host.roots());
        guests.scan();
        let mut exchanges = Exchanges::open(&host.roots());
        exchanges.read(&guests);
        host.put("sys/class/net/eth1/device/x", "");
        host.table(1, &[("eth0", 100, 101), ("eth1", 20, 10)]);
        assert_eq!(exchanges.read(&guests).host_packets, 31);
        host.table(1, &[("eth1", 20, 10)]);
        assert_eq!(exchanges.read(&guests).host_packets, 0);
        // The device was plugged in again: its driver counts from zero.
        host.table(1, &[("eth0", 3, 0), ("eth1", 20, 10)]);
        assert_eq!(exchanges.read(&guests).host_packets, 3);
    }

    /// The kernel keeps a VM as long as its file of exits is open.
    #[test]
    fn the_file_of_a_vms_exits_is_not_kept_open() {
        let host = Host::new();
        host.put("proc/70/cmdline", "qemu-system-x86_64\0-enable-kvm\0");
        host.put("proc/70/comm", "qemu-system-x86\n");
        host.put(
            "proc/70/stat",
            "70 (qemu-system-x86) S 1 70 70 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 500 1 1",
        );
        let exits = |count: u64| host.put("sys/kernel/debug/kvm/70-9/exits", &format!("{count}\n"));
        exits(100);
        let mut guests = Guests::new(host.roots());
        guests.scan();
        let number = guests
            .iter()
            .find(|guest| guest.process == Some(70))
            .map(|guest| guest.number);
        let number = number.unwrap();
        let mut exchanges = Exchanges::open(&host.roots());
        exchanges.read(&guests);
        // An open file would still be the previous one.
        fs::remove_file(host.path("sys/kernel/debug/kvm/70-9/exits")).unwrap();
        exits(107);
        assert_eq!(exchanges.read(&guests).guests[&number].exits, Some(7));
    }

    #[test]
    fn requests_of_a_domains_disks_are_those_of_its_rings_alone() {
        let host = Host::new();
        let disk = |name: &str, reads: u64, writes: u64| {
            let statistics = format!("sys/bus/xen-backend/devices/{name}/statistics");
            host.put(&format!("{statistics}/rd_req"), &format!("{reads}\n"));
            host.put(&format!("{statistics}/wr_req"), &format!("{writes}\n"));
        };
        disk("vbd-3-51712", 10, 1);
        disk("vbd-3-51728", 5, 0);
        disk("vbd-30-51712", 700, 700);
        let read = |reader: &mut Reader| reader.block_requests(false);
        let mut reader = Reader {
            rings: rings(3, &host.path("sys")),
            ..Reader::default()
        };
        assert_eq!(read(&mut reader), 0, "nothing at first sight");
        disk("vbd-3-51728", 9, 2);
        disk("vbd-30-51712", 900, 900);
        assert_eq!(read(&mut reader), 4 + 2);
    }

    #[test]
    fn block_requests_are_read_on_v1_and_v2() {
        for (path, first, second) in [
            (
                format!("sys/fs/cgroup/blkio/docker/{ID}/blkio.throttle.io_serviced"),
                "8:0 Read 1\n8:0 Total 1\nTotal 1\n",
                "8:0 Read 5\n8:0 Total 5\nTotal 5\n",
            ),
            (
                format!("sys/fs/cgroup/docker/{ID}/io.stat"),
                "8:0 rbytes=1 wbytes=1 rios=1 wios=0\n",
                "8:0 rbytes=9 wbytes=9 rios=2 wios=1\n8:16 rios=2\n",
            ),
        ] {
            let host = Host::new();
            host.put(&path, first);
            let mut guests = Guests::new(host.roots());
            guests.scan();
            let mut exchanges = Exchanges::open(&host.roots());
            exchanges.read(&guests);
            host.put(&path, second);
            let interval = exchanges.read(&guests);
            // On a fake v2 host the directory of v1's controller looks like a separate group.
            let requests: u64 = interval
                .guests
                .values()
                .map(|guest| guest.block_requests)
                .sum();
            assert_eq!(requests, 4, "{path}");
        }
    }
}
