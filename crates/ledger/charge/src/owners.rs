// SPDX-License-Identifier: Apache-2.0
//! Attribution of the work that the programs of [`super::probe`] found: by the devices, disks, processes and control
//! groups of owners, which are identified by number.

use super::ledger::IoCharge;
use super::probe::{DeviceKey, Holder, Interrupted, SoftirqTimes, Worked};
use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use vtax_core::Nanoseconds;

/// The devices, disks and control groups of the owners.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// The owners that are charged; work for any other owner is unattributed.
    pub(super) present: HashSet<u32>,
    /// Their network devices.
    pub(super) devices: HashMap<DeviceKey, Holder>,
    /// Their disks (major << 20 | minor).
    pub(super) disks: HashMap<u32, u32>,
    /// Their control groups in the hierarchy that accounts CPU time.
    pub(super) tasks: Groups,
    /// Their control groups in the hierarchy that accounts block requests.
    pub(super) requests: Groups,
}

/// Control groups by kernel id, including groups within an owner's group; `None`: the group has no owner.
#[derive(Debug, Default)]
pub(super) struct Groups(HashMap<u64, Option<u32>>);

/// The number of entries above which all are cleared and learnt again.
const MOST_GROUPS: usize = 1 << 15;

impl Groups {
    /// Records that a group, with all groups within it, belongs to an owner.
    pub(super) fn learn(&mut self, group: &Path, owner: u32) {
        self.learn_down_to(group, owner, 4);
    }

    fn learn_down_to(&mut self, group: &Path, owner: u32, deepest: u32) {
        let Ok(metadata) = std::fs::metadata(group) else {
            return;
        };
        self.0.insert(metadata.ino(), Some(owner));
        if metadata.nlink() == 2 || deepest == 0 {
            return;
        }
        for entry in std::fs::read_dir(group).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.learn_down_to(&entry.path(), owner, deepest - 1);
            }
        }
    }

    /// Clears the entries where there are too many; returns whether it did.
    pub(super) fn forget(&mut self) -> bool {
        let are_many = self.0.len() > MOST_GROUPS;
        if are_many {
            self.0.clear();
        }
        are_many
    }

    /// Whether a group has been looked up.
    pub(super) fn knows(&self, group: u64) -> bool {
        self.0.contains_key(&group)
    }

    /// Records that a group that is still unknown has no owner: ids of control groups are never reused.
    pub(super) fn close(&mut self, group: u64) {
        self.0.entry(group).or_insert(None);
    }

    /// The owner of a group, where it has one.
    pub(super) fn owner(&self, group: u64) -> Option<u32> {
        self.0.get(&group).copied().flatten()
    }
}

impl Owners {
    /// Whether the results contain a group that has not been looked up yet.
    pub(super) fn lack_a_group_of(&self, found: &SoftirqTimes) -> bool {
        let (tasks, requests) = groups_of(found);
        tasks.into_iter().any(|group| !self.tasks.knows(group))
            || (requests.into_iter()).any(|group| !self.requests.knows(group))
    }

    /// Records that the groups that are still unknown have no owner.
    pub(super) fn close_groups_of(&mut self, found: &SoftirqTimes) {
        let (tasks, requests) = groups_of(found);
        for group in tasks {
            self.tasks.close(group);
        }
        for group in requests {
            self.requests.close(group);
        }
    }

    /// Computes the charge of the results.
    pub(super) fn charge(&self, found: &SoftirqTimes) -> IoCharge {
        let mut charge = IoCharge {
            is_by_clock: true,
            unknown: Nanoseconds(found.lost),
            ..IoCharge::default()
        };
        let add = |to: &mut Nanoseconds, ns: u64| *to = Nanoseconds(to.0.saturating_add(ns));
        for (worked, ns) in &found.worked {
            match self.of_work(*worked) {
                Some(owner) if self.present.contains(&owner) => {
                    add(&mut charge.guests.entry(owner).or_default().softirq, *ns);
                }
                // The guest ended in this interval and has no row.
                Some(_) => add(&mut charge.unknown, *ns),
                None => add(&mut charge.host_softirq, *ns),
            }
        }
        for (interrupted, ns) in &found.interrupted {
            let owner = match interrupted {
                Interrupted::Idle => continue,
                Interrupted::Ksoftirqd => {
                    add(&mut charge.ksoftirqd, *ns);
                    continue;
                }
                Interrupted::Owner(owner) => Some(*owner),
                Interrupted::Group(group) => self.tasks.owner(*group),
                Interrupted::Other => None,
            };
            match owner.filter(|owner| self.present.contains(owner)) {
                Some(owner) => add(&mut charge.guests.entry(owner).or_default().context, *ns),
                None => add(&mut charge.host_context, *ns),
            }
        }
        charge
    }

    fn of_work(&self, worked: Worked) -> Option<u32> {
        match worked {
            Worked::Owner(owner) => Some(owner),
            Worked::Device { key, cookie } => self.of_device(key, cookie),
            Worked::Block { disk, group } => {
                let of_disk = self.disks.get(&disk).copied();
                of_disk.or_else(|| self.requests.owner(group))
            }
            Worked::Other => None,
        }
    }

    /// The owner of a device that was not registered with the programs.
    fn of_device(&self, key: DeviceKey, cookie: u32) -> Option<u32> {
        [key.index, 0].into_iter().find_map(|index| {
            let holder = self.devices.get(&DeviceKey { index, ..key })?;
            let is_same = holder.cookie == 0 || cookie == 0 || holder.cookie as u32 == cookie;
            is_same.then_some(holder.guest)
        })
    }
}

/// The groups of interrupted tasks, and the groups of block requests.
fn groups_of(found: &SoftirqTimes) -> (Vec<u64>, Vec<u64>) {
    let of_tasks = found.interrupted.keys().filter_map(|key| match key {
        Interrupted::Group(group) => Some(*group),
        _ => None,
    });
    let of_requests = found.worked.keys().filter_map(|key| match key {
        Worked::Block { group, .. } => Some(*group),
        _ => None,
    });
    (of_tasks.collect(), of_requests.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: u32 = 1;
    const CLIENT: u32 = 2;

    fn device(namespace: u32, index: u32) -> DeviceKey {
        DeviceKey { namespace, index }
    }

    fn owners() -> Owners {
        Owners {
            present: HashSet::from([GUEST, CLIENT]),
            devices: HashMap::from([
                (device(7, 3), Holder::new(GUEST, None)),
                (device(8, 0), Holder::new(CLIENT, Some(5))),
            ]),
            disks: HashMap::from([(70, GUEST)]),
            tasks: Groups(HashMap::from([(100, Some(CLIENT)), (101, None)])),
            requests: Groups(HashMap::from([(100, Some(GUEST))])),
        }
    }

    fn work(worked: Worked) -> IoCharge {
        owners().charge(&SoftirqTimes {
            worked: HashMap::from([(worked, 9)]),
            ..SoftirqTimes::default()
        })
    }

    #[test]
    fn work_is_whose_device_disk_or_group_it_was_for_and_else_the_hosts() {
        let of_device = |key, cookie| work(Worked::Device { key, cookie });
        let of_disk = |disk, group| work(Worked::Block { disk, group });
        for (charge, owner) in [
            (work(Worked::Owner(GUEST)), Some(GUEST)),
            (of_device(device(7, 3), 0), Some(GUEST)),
            (of_device(device(7, 4), 0), None),
            // Every device of a namespace, as long as the namespace's number has not been reused.
            (of_device(device(8, 4), 5), Some(CLIENT)),
            (of_device(device(8, 4), 6), None),
            (of_disk(70, 0), Some(GUEST)),
            (of_disk(71, 100), Some(GUEST)),
            (of_disk(71, 101), None),
            (work(Worked::Other), None),
        ] {
            let softirq = |owner: u32| charge.guests.get(&owner).map(|work| work.softirq.0);
            assert_eq!(owner.and_then(softirq), owner.map(|_| 9), "{charge:?}");
            assert_eq!(charge.host_softirq.0, if owner.is_none() { 9 } else { 0 });
        }
        let ended = work(Worked::Owner(77));
        assert_eq!((ended.unknown.0, ended.host_softirq.0), (9, 0));
    }

    #[test]
    fn time_is_taken_off_whom_it_interrupted() {
        let interrupted = [
            (Interrupted::Idle, 1000),
            (Interrupted::Ksoftirqd, 1),
            (Interrupted::Owner(GUEST), 2),
            (Interrupted::Owner(77), 4),
            (Interrupted::Group(100), 8),
            (Interrupted::Group(500), 16),
            (Interrupted::Other, 32),
        ];
        let charge = owners().charge(&SoftirqTimes {
            interrupted: interrupted.into(),
            lost: 64,
            ..SoftirqTimes::default()
        });
        let context = |owner: u32| charge.guests[&owner].context.0;
        assert_eq!((context(GUEST), context(CLIENT)), (2, 8));
        assert_eq!(
            (charge.ksoftirqd.0, charge.host_context.0),
            (1, 4 + 16 + 32)
        );
        assert_eq!(charge.unknown.0, 64);
    }

    #[test]
    fn a_group_that_nobody_has_is_looked_for_once() {
        let mut owners = owners();
        let found = SoftirqTimes {
            interrupted: HashMap::from([(Interrupted::Group(500), 1)]),
            ..SoftirqTimes::default()
        };
        assert!(owners.lack_a_group_of(&found));
        owners.close_groups_of(&found);
        assert!(!owners.lack_a_group_of(&found));
    }
}
