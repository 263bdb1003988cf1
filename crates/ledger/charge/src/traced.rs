// SPDX-License-Identifier: Apache-2.0
//! The traced method: BPF programs ([`super::probe`]) time each soft interrupt and key it by the network device, and so
//! by the guest, that it worked for.
//!
//! The key is the device and not the control group: a soft interrupt runs in the context of the task that it
//! interrupted, and that task's group is unrelated to the owner of the packet.
//!
//! Not seen: hard interrupts (part of the time of the interrupted task), NAPI in its own threads and busy polling (time
//! of tasks), and transmit completions of a port, which are the host's. Where soft interrupts come by the thousand a
//! second, a random sample of them is examined and scaled up.

use super::Method;
use super::exchanges::IntervalExchanges;
use super::ledger::{IoCharge, Usage};
use super::owners::Owners;
use super::probe::{DeviceKey, Holder, MOST_OTHERS, Programs, Reader};
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use vtax_inventory::{Guest, Guests, Hierarchy};
use vtax_observe::ObserveError;

/// Of `asm-generic/socket.h`, since Linux 5.14.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// The traced method.
pub struct Traced {
    programs: Programs,
    reader: Reader,
    note: Option<String>,
    owners: Owners,
    /// Guests whose control groups have been learnt.
    learnt: HashSet<u32>,
    cookies: Cookies,
}

/// The kernel's cookies of network namespaces, which are never reused, unlike their inode numbers.
#[derive(Debug, Default)]
struct Cookies {
    /// By guest and inode.
    known: HashMap<(u32, u32), Option<u64>>,
    passes: u32,
}

/// A guest's cookies are read again after this many passes: the guest may have a new namespace.
const ASK_AGAIN: u32 = 64;

impl Traced {
    /// Loads and attaches the programs.
    ///
    /// # Errors
    /// When the kernel does not describe its types (BTF), or this process may not use BPF.
    pub fn open(sys: &Path, hierarchy: Option<&Hierarchy>) -> Result<Self, ObserveError> {
        Self::sampling(sys, hierarchy, MOST_OTHERS)
    }

    /// Like [`Traced::open`], but examines every soft interrupt, whatever the rate. Examination makes a soft interrupt
    /// take longer, so that this costs more and is more accurate.
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
        let programs = Programs::open(sys, v1, others)?;
        Ok(Self {
            note: programs.unseen(),
            reader: programs.reader(),
            programs,
            owners: Owners::default(),
            learnt: HashSet::new(),
            cookies: Cookies::default(),
        })
    }

    /// The programs, for other readers of their results.
    pub(super) fn programs(&self) -> Programs {
        self.programs.clone()
    }

    /// Records the current devices and groups of the guests.
    fn update(&mut self, guests: &Guests) {
        self.cookies.update(guests);
        let cookies = &self.cookies;
        let devices = guests.iter().flat_map(|guest| {
            guest.devices.iter().map(|device| {
                let key = DeviceKey {
                    namespace: device.namespace,
                    index: device.index,
                };
                let cookie = cookies.of_guest(guest.number, device.namespace);
                (key, Holder::new(guest.number, cookie))
            })
        });
        self.owners.devices = devices.collect();
        let disks = guests.iter().flat_map(|guest| {
            let disks = guest.disks.iter();
            disks.map(|disk| (disk.major << 20 | disk.minor, guest.number))
        });
        self.owners.disks = disks.collect();
        self.owners.present = guests.numbers();
        self.learnt
            .retain(|number| self.owners.present.contains(number));
        if self.owners.tasks.forget() | self.owners.requests.forget() {
            self.learnt.clear();
        }
        for guest in guests.iter() {
            if self.learnt.insert(guest.number) {
                learn(&mut self.owners, guests, guest);
            }
        }
    }
}

/// Records the control groups of a container.
fn learn(owners: &mut Owners, guests: &Guests, guest: &Guest) {
    let (Some(hierarchy), Some(group)) = (guests.hierarchy(), &guest.group) else {
        return;
    };
    if guest.platform.is_vm() {
        return;
    }
    let mounted = &hierarchy.mounted;
    owners.tasks.learn(&mounted.join(group), guest.number);
    let of_requests = if hierarchy.v1 {
        mounted.with_file_name("blkio")
    } else {
        mounted.clone()
    };
    let group = of_requests.join(group);
    owners.requests.learn(&group, guest.number);
}

impl Cookies {
    /// Reads the cookies that are not known; one thread enters all their namespaces.
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
                let known = if is_due { None } else { before.remove(&key) };
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

    fn of_guest(&self, guest: u32, namespace: u32) -> Option<u64> {
        self.known.get(&(guest, namespace)).copied().flatten()
    }
}

/// The cookie of a network namespace if it still has that inode. The thread stays in the namespace.
fn cookie(path: &Path, inode: u32) -> std::io::Result<u64> {
    let file = std::fs::File::open(path)?;
    if file.metadata()?.ino() != u64::from(inode) {
        return Err(std::io::ErrorKind::NotFound.into());
    }
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
    // Any address family serves; this socket reaches no network.
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

impl Method for Traced {
    fn name(&self) -> &'static str {
        "traced"
    }

    fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    fn charge(
        &mut self,
        guests: &Guests,
        _: &Usage,
        _: &IntervalExchanges,
    ) -> Result<IoCharge, ObserveError> {
        self.update(guests);
        let found = self.reader.read();
        if self.owners.lack_a_group_of(&found) {
            // A group within a container, created after the container was learnt, or a group without an owner.
            for guest in guests.iter() {
                learn(&mut self.owners, guests, guest);
            }
            self.owners.close_groups_of(&found);
        }
        // For the next interval.
        self.programs
            .register(&self.owners.devices, &guests.by_process());
        Ok(self.owners.charge(&found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use vtax_observe::Roots;

    #[test]
    fn the_hosts_own_soft_interrupts_are_the_hosts() {
        let mut traced = match Traced::open(Path::new("/sys"), None) {
            Ok(traced) => traced,
            Err(error) => {
                eprintln!("SKIPPED: {error}");
                return;
            }
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
}
