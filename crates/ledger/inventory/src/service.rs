// SPDX-License-Identifier: Apache-2.0
//! Services that run already, each given by the number of a process: that process, its descendants, and those that it
//! starts later.
//!
//! A process stays in its service when its parent ends. A process that starts and whose parent ends between two passes
//! has the first process of the host as parent when it is first seen, and is in no service.

use super::{Guest, GuestKey, Guests, Platform, name};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use vtax_kernel::{Process, text};

/// The most parents that are looked at.
const DEPTH: usize = 1000;

/// A process of this host that a user names as a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since boot: a number may be used again.
    pub started: u64,
    /// Its command name, sanitised.
    pub name: String,
}

/// The reason that a process is no service.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// There is none.
    #[error(
        "no process {pid} runs here, or this user does not see it: `pgrep NAME` prints the numbers of processes"
    )]
    Absent {
        /// The number.
        pid: u32,
    },
    /// Another user runs it.
    #[error("process {pid} ({name}) is another user's: its time is read as root or as that user")]
    AnotherUsers {
        /// The number.
        pid: u32,
        /// Its name.
        name: String,
    },
    /// The kernel runs it.
    #[error(
        "process {pid} ({name}) is a thread of the kernel, whose time is the host's: give a process of a program"
    )]
    OfKernel {
        /// The number.
        pid: u32,
        /// Its name.
        name: String,
    },
    /// It is a thread.
    #[error("{pid} is a thread of process {of}: give {of}, whose threads are all counted")]
    Thread {
        /// The number.
        pid: u32,
        /// Its process.
        of: u32,
    },
    /// It is this process.
    #[error("process {pid} is this vtax, whose own time is shown apart: give another process")]
    Itself {
        /// The number.
        pid: u32,
    },
}

impl Service {
    /// Looks at a process for `user`, who may name only processes of their own unless they are root (0).
    ///
    /// # Errors
    /// When there is no such process, or it cannot be a service.
    pub fn find(proc: &Path, pid: u32, user: u32) -> Result<Self, ServiceError> {
        let process = Process::new(proc, pid);
        let absent = || ServiceError::Absent { pid };
        let status = std::fs::read(process.path("status")).map_err(|_| absent())?;
        let found = process.stat(|stat| {
            let name = name::sanitised(stat.name);
            Some((
                stat.started()?,
                name,
                stat.is_kernel_thread(),
                stat.is_over(),
            ))
        });
        let (started, name, is_kernels, is_over) = found.ok_or_else(absent)?;
        if is_kernels {
            return Err(ServiceError::OfKernel { pid, name });
        }
        if is_over {
            return Err(absent());
        }
        let number = |key: &str| text::keyed(&status, key).and_then(|id| u32::try_from(id).ok());
        // The kernel serves threads below their numbers too, although it does not list them.
        if let Some(of) = number("Tgid:").filter(|of| *of != pid) {
            return Err(ServiceError::Thread { pid, of });
        }
        if pid == std::process::id() {
            return Err(ServiceError::Itself { pid });
        }
        // The owner of the directory is root where a process hides its memory; its status has its user.
        if user != 0 && number("Uid:") != Some(user) {
            return Err(ServiceError::AnotherUsers { pid, name });
        }
        Ok(Self { pid, started, name })
    }
}

/// A process of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub started: u64,
    /// Whether its time is charged elsewhere: to a VM whose monitor it is, to a container that it is in, or to another
    /// service that is named. A parent of the service that waits for it has its time too.
    pub is_others: bool,
}

/// The processes of one service, by number.
#[derive(Debug)]
pub(super) struct Members {
    pub(super) service: Service,
    known: BTreeMap<u32, u64>,
    /// Processes that are not in it, each with the inode of its directory.
    others: HashMap<u32, u64>,
    /// Whether none of its processes runs any more.
    pub(super) is_over: bool,
}

impl Members {
    pub(super) fn new(service: Service) -> Self {
        Self {
            known: BTreeMap::from([(service.pid, service.started)]),
            service,
            others: HashMap::new(),
            is_over: false,
        }
    }

    pub(super) fn contains(&self, pid: u32) -> bool {
        self.known.contains_key(&pid)
    }

    /// Its processes, parents before their children, not yet marked as others'.
    pub(super) fn list(&self) -> Vec<Member> {
        let member = |(pid, started): (&u32, &u64)| Member {
            pid: *pid,
            started: *started,
            is_others: false,
        };
        let mut members: Vec<Member> = self.known.iter().map(member).collect();
        members.sort_by_key(|member| (member.started, member.pid));
        members
    }

    /// Looks at its processes and at those of `listed` that are new, each with the inode of its directory. `skipped` is
    /// vtax itself.
    pub(super) fn update(&mut self, proc: &Path, listed: &[(u32, u64)], skipped: u32) {
        let mut is_over = true;
        self.known.retain(|pid, started| {
            let seen =
                Process::new(proc, *pid).stat(|stat| Some((stat.started()?, stat.is_over())));
            let is_it = seen.is_some_and(|(begin, _)| begin == *started);
            is_over &= !is_it || seen.is_none_or(|(_, over)| over);
            is_it
        });
        let mut before = std::mem::take(&mut self.others);
        let mut new: HashMap<u32, (u32, u64, u64)> = HashMap::new();
        for (pid, inode) in listed {
            if self.known.contains_key(pid) {
                continue;
            }
            let is_known = *pid == skipped || before.remove(pid) == Some(*inode);
            let seen =
                || Process::new(proc, *pid).stat(|stat| Some((stat.parent(), stat.started()?)));
            match if is_known { None } else { seen() } {
                Some((Some(parent), started)) => {
                    new.insert(*pid, (parent, started, *inode));
                }
                _ => {
                    self.others.insert(*pid, *inode);
                }
            }
        }
        for (pid, (_, started, inode)) in &new {
            let mut next = *pid;
            let mut is_member = false;
            for _ in 0..DEPTH {
                let Some((parent, ..)) = new.get(&next) else {
                    break;
                };
                next = *parent;
                if self.known.contains_key(&next) {
                    is_member = true;
                    break;
                }
            }
            if is_member {
                self.known.insert(*pid, *started);
                is_over = false;
            } else {
                self.others.insert(*pid, *inode);
            }
        }
        self.is_over = is_over;
    }
}

impl Guests {
    /// Adds services that a user names; one that is named twice is one.
    pub fn attach(&mut self, services: impl IntoIterator<Item = Service>) {
        for service in services {
            if self.services.iter().all(|known| known.service != service) {
                self.services.push(Members::new(service));
            }
        }
    }

    pub(super) fn scan_services(&mut self) {
        if self.services.is_empty() {
            return;
        }
        let listed = self.processes.iter();
        let listed: Vec<(u32, u64)> = listed.map(|(pid, known)| (*pid, known.inode)).collect();
        let mut services = std::mem::take(&mut self.services);
        for members in &mut services {
            members.update(&self.roots.proc, &listed, std::process::id());
        }
        for members in &services {
            self.scan_service(members, &services);
        }
        self.services = services;
    }

    fn scan_service(&mut self, members: &Members, all: &[Members]) {
        let Service { pid, started, name } = &members.service;
        let key = GuestKey::Process {
            pid: *pid,
            started: *started,
        };
        if members.is_over {
            self.problems.push(format!(
                "process {pid} ({name}) and those that it started have ended"
            ));
        }
        if let Some(guest) = self.guests.get(&key)
            && guest.platform != Platform::Native
        {
            self.problems.push(format!(
                "process {pid} ({name}) is charged as the guest {} ({}), without being named",
                guest.name,
                guest.platform.name()
            ));
            return;
        }
        let mut list = members.list();
        if list.is_empty() {
            self.guests.remove(&key);
            return;
        }
        let has_containers = self.guests.values().any(Guest::is_container);
        let container = |pid: u32| {
            let group = has_containers.then(|| self.group_of(self.process(pid)))??;
            let of = |group: &Path| {
                let mut guests = self.guests.values().filter(|guest| guest.is_container());
                guests.find(|guest| guest.group.as_deref() == Some(group))
            };
            group.ancestors().find_map(of)
        };
        let inside = |pid: u32| container(pid).map(|guest| guest.number);
        let guests = self.guests.values();
        let of_vms: HashSet<u32> = guests
            .filter(|guest| guest.platform.is_vm())
            .flat_map(|guest| {
                let helpers = guest.helpers.iter().map(|helper| helper.pid);
                helpers.chain(guest.process)
            })
            .collect();
        let is_inner = |other: &&Members| {
            other.service != members.service && members.contains(other.service.pid)
        };
        let inner: Vec<&Members> = all.iter().filter(is_inner).collect();
        let around = inside(*pid);
        for member in &mut list {
            member.is_others = of_vms.contains(&member.pid)
                || inner.iter().any(|other| other.contains(member.pid))
                || (has_containers && inside(member.pid) != around);
        }
        if !self.guests.contains_key(&key) {
            let guest = Guest::new(key.clone(), Platform::Native, name.clone());
            let process = Some(*pid);
            self.add(Guest { process, ..guest }, None);
        }
        if let Some(guest) = self.guests.get_mut(&key) {
            guest.members = list;
            guest.inside = around;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    struct Proc(tempfile::TempDir);

    impl Proc {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn put(&self, pid: u32, parent: u32, started: u64, state: char, flags: u64) {
            let directory = self.0.path().join(pid.to_string());
            fs::create_dir_all(&directory).unwrap();
            let stat = format!(
                "{pid} (a b) {state} {parent} 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 {started} 0\n"
            );
            fs::write(directory.join("stat"), stat).unwrap();
            let status = format!("Name:\ta b\nTgid:\t{pid}\nUid:\t7\t0\t0\t0\n");
            fs::write(directory.join("status"), status).unwrap();
        }

        fn run(&self, pid: u32, parent: u32, started: u64) {
            self.put(pid, parent, started, 'S', 0);
        }

        fn end(&self, pid: u32) {
            fs::remove_dir_all(self.0.path().join(pid.to_string())).unwrap();
        }

        fn find(&self, pid: u32, user: u32) -> Result<Service, ServiceError> {
            Service::find(self.0.path(), pid, user)
        }

        fn update(&self, members: &mut Members) -> Vec<u32> {
            let listed: Vec<(u32, u64)> = vtax_kernel::numbered(self.0.path())
                .into_iter()
                .map(|(pid, _)| {
                    let started = Process::new(self.0.path(), pid).started();
                    (pid, started.unwrap())
                })
                .collect();
            members.update(self.0.path(), &listed, 99);
            members.list().iter().map(|member| member.pid).collect()
        }
    }

    #[test]
    fn what_is_no_service_is_refused_with_the_reason() {
        let proc = Proc::new();
        proc.run(8, 1, 50);
        let found = proc.find(8, 7).unwrap();
        assert_eq!(
            (found.pid, found.started, found.name.as_str()),
            (8, 50, "a b")
        );
        assert_eq!(proc.find(8, 0), Ok(found));
        let name = "a b".to_owned();
        let another = ServiceError::AnotherUsers {
            pid: 8,
            name: name.clone(),
        };
        assert_eq!(proc.find(8, 6), Err(another));
        assert_eq!(proc.find(9, 0), Err(ServiceError::Absent { pid: 9 }));
        proc.put(10, 1, 50, 'Z', 0);
        assert_eq!(proc.find(10, 0), Err(ServiceError::Absent { pid: 10 }));
        proc.put(11, 2, 50, 'S', 0x0020_0000);
        assert_eq!(
            proc.find(11, 0),
            Err(ServiceError::OfKernel { pid: 11, name })
        );
        proc.run(12, 1, 50);
        let status = proc.0.path().join("12/status");
        fs::write(status, "Tgid:\t8\nUid:\t7\n").unwrap();
        assert_eq!(
            proc.find(12, 7),
            Err(ServiceError::Thread { pid: 12, of: 8 })
        );
        let own = std::process::id();
        proc.run(own, 1, 50);
        assert_eq!(proc.find(own, 0), Err(ServiceError::Itself { pid: own }));
    }

    #[test]
    fn a_service_has_its_descendants_and_keeps_them_when_a_parent_ends() {
        let proc = Proc::new();
        for (pid, parent) in [
            (1, 0),
            (8, 1),
            (9, 8),
            (5, 9),
            (20, 1),
            (21, 20),
            (99, 8),
            (30, 99),
        ] {
            // A number of a child may be smaller than its parent's.
            proc.run(pid, parent, if pid == 5 { 77 } else { u64::from(pid) });
        }
        let mut members = Members::new(proc.find(8, 0).unwrap());
        assert_eq!(
            proc.update(&mut members),
            [8, 9, 5],
            "vtax and its children are not in it"
        );
        // 9 ends, and its child is adopted.
        proc.end(9);
        proc.run(5, 1, 77);
        proc.run(40, 5, 90);
        proc.run(41, 40, 91);
        assert_eq!(proc.update(&mut members), [8, 5, 40, 41]);
        assert!(!members.is_over);
    }

    #[test]
    fn a_number_that_is_used_again_is_another_process() {
        let proc = Proc::new();
        proc.run(1, 0, 1);
        proc.run(8, 1, 50);
        proc.run(20, 1, 51);
        let mut members = Members::new(proc.find(8, 0).unwrap());
        assert_eq!(proc.update(&mut members), [8]);
        // One that was in no service ends, and a child of the service gets its number.
        proc.run(20, 8, 60);
        assert_eq!(proc.update(&mut members), [8, 20]);
        proc.end(20);
        proc.run(8, 1, 70);
        assert_eq!(proc.update(&mut members), Vec::<u32>::new());
        assert!(members.is_over);
    }

    #[test]
    fn a_service_is_over_when_no_process_of_it_runs() {
        let proc = Proc::new();
        proc.run(8, 1, 50);
        proc.run(9, 8, 51);
        let mut members = Members::new(proc.find(8, 0).unwrap());
        proc.update(&mut members);
        proc.put(8, 1, 50, 'Z', 0);
        proc.update(&mut members);
        assert!(!members.is_over, "its child runs on");
        proc.end(9);
        assert_eq!(proc.update(&mut members), [8], "nobody has waited for it");
        assert!(members.is_over);
    }
}
