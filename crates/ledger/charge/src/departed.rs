// SPDX-License-Identifier: Apache-2.0
//! The time of containers that ended since the last pass, from the control groups that contained them.
//!
//! The kernel adds the time of a group to all groups above it, where it stays when the group is removed (cpuacct of v1;
//! `cpu.stat` of v2). So a group's gain, less the gains of the groups that are still in it, is the time of those that
//! ended: their whole time, or the time since they were last read.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use vtax_core::Nanoseconds;
use vtax_inventory::{Ended, Family, Guests, Hierarchy, first_process};
use vtax_kernel::cgroup::GroupClock;
use vtax_observe::counters::{Counter, Rule};

/// The difference that two groups may show because they are read one after the other; the account of a group that runs
/// is updated at a tick.
const SKEW: i128 = 10_000_000;

/// Reads the groups that contain guests.
#[derive(Default)]
pub(super) struct DepartedReader {
    groups: HashMap<u64, GroupReader>,
    /// By inode of a family: the time that was counted and not yet charged, less what was charged too early.
    pending: HashMap<u64, i128>,
    /// Totals that were noted in this pass, by inode.
    noted: HashMap<u64, Nanoseconds>,
    /// Gains that were read in this pass, by inode: a group with guests may be in another one.
    gains: HashMap<u64, u64>,
}

struct GroupReader {
    /// `None` for a group whose totals are noted.
    clock: Option<GroupClock>,
    counter: Counter,
}

impl DepartedReader {
    /// Begins a pass.
    pub(super) fn begin(&mut self) {
        self.noted.clear();
        self.gains.clear();
    }

    /// Takes the total of a group that was read in this pass: what a guest is charged for and what is subtracted here
    /// must be the same.
    pub(super) fn note(&mut self, inode: u64, total: Nanoseconds) {
        self.noted.insert(inode, total);
    }

    /// The time of containers that ended since the last call. More than `most` is not charged.
    pub(super) fn read(&mut self, guests: &Guests, most: Option<u64>) -> Nanoseconds {
        let Some(hierarchy) = guests.hierarchy() else {
            return Nanoseconds(0);
        };
        let families = guests.families();
        let mut present: HashSet<u64> = HashSet::new();
        let mut departed = 0_i128;
        for family in families {
            present.insert(family.inode);
            present.extend(family.members.iter().map(|member| member.inode));
            departed += self.of_family(family, hierarchy);
        }
        self.groups.retain(|inode, _| present.contains(inode));
        self.pending.retain(|inode, _| present.contains(inode));
        let departed = u64::try_from(departed).unwrap_or(0);
        Nanoseconds(match most {
            Some(most) if departed <= most => departed,
            _ => 0,
        })
    }

    fn of_family(&mut self, family: &Family, hierarchy: &Hierarchy) -> i128 {
        let mut ended = family.ended;
        let mut gained = 0_i128;
        for member in &family.members {
            match self.gain(member.inode, &member.path, member.is_new, hierarchy) {
                Some(gain) => gained += i128::from(gain),
                // It ended after the directories were read.
                None if !member.is_engines => ended = Ended::Others,
                None => {}
            }
        }
        // Read last, so that it includes the members' gains.
        let is_known = family.is_new || self.groups.contains_key(&family.inode);
        let of_all = self.gain(family.inode, &family.path, family.is_new, hierarchy);
        let (true, Some(of_all)) = (is_known, of_all) else {
            return 0;
        };
        let pending = self.pending.entry(family.inode).or_default();
        *pending += i128::from(of_all) - gained;
        // Processes of the group itself are no guest's, and their time cannot be separated.
        let has_own = || first_process(&hierarchy.mounted.join(&family.path), 0).is_some();
        if ended == Ended::Others || (*pending > SKEW && has_own()) {
            *pending = 0;
        }
        *pending = (*pending).max(-SKEW);
        if ended == Ended::Guests && *pending > SKEW {
            return std::mem::take(pending);
        }
        0
    }

    /// The gain of a group since its last reading, and of a new group since its start.
    fn gain(
        &mut self,
        inode: u64,
        path: &Path,
        is_new: bool,
        hierarchy: &Hierarchy,
    ) -> Option<u64> {
        if let Some(gain) = self.gains.get(&inode) {
            return Some(*gain);
        }
        let noted = self.noted.get(&inode).copied();
        let reader = self.groups.entry(inode).or_insert_with(|| GroupReader {
            clock: None,
            counter: Counter::new(Rule::TIME),
        });
        let total = match noted {
            Some(total) => total,
            None => {
                if reader.clock.is_none() {
                    let directory = hierarchy.mounted.join(path);
                    reader.clock = GroupClock::in_directory(&directory, hierarchy.v1).ok();
                }
                reader.clock.as_mut()?.times().ok()?.total
            }
        };
        let is_first = !reader.counter.has_begun();
        let change = reader.counter.advance(total.0);
        let gain = if is_first && is_new {
            total.0
        } else {
            change.gain()
        };
        self.gains.insert(inode, gain);
        Some(gain)
    }
}

#[cfg(test)]
mod tests {
    use super::super::irq_accounting::IrqAccounting;
    use super::super::usage::UsageReader;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::path::{Path, PathBuf};
    use vtax_core::Nanoseconds;
    use vtax_inventory::Guests;
    use vtax_observe::Roots;
    use vtax_observe::clock::Clock;

    const MS: u64 = 1_000_000;

    struct At(u64);

    impl Clock for At {
        fn now(&self) -> Nanoseconds {
            Nanoseconds(self.0 * 1000 * MS)
        }
        fn wall(&self) -> Nanoseconds {
            self.now()
        }
    }

    /// A fake host with control groups whose times include those of the groups below them, as the kernel's do.
    struct Host {
        root: tempfile::TempDir,
        v1: bool,
        times: BTreeMap<PathBuf, u64>,
        guests: Guests,
        reader: UsageReader,
        passes: u64,
        /// Charged to guests, and to those that ended.
        charged: (u64, u64),
    }

    impl Host {
        /// A host with these groups, after its first pass.
        fn new(v1: bool, groups: &[&str]) -> Self {
            let root = tempfile::tempdir().unwrap();
            let mounted = Self::mounted(root.path(), v1);
            fs::create_dir_all(&mounted).unwrap();
            fs::create_dir_all(root.path().join("proc")).unwrap();
            let stat = "cpu 0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n";
            fs::write(root.path().join("proc/stat"), stat).unwrap();
            if v1 {
                fs::write(mounted.join("cpuacct.usage"), "0").unwrap()
            } else {
                fs::write(mounted.join("cgroup.controllers"), "cpu").unwrap()
            }
            let roots = Roots::below(root.path());
            let mut host = Self {
                guests: Guests::new(roots.clone()),
                reader: UsageReader::open(&roots, IrqAccounting::Sampled).unwrap(),
                root,
                v1,
                times: BTreeMap::new(),
                passes: 0,
                charged: (0, 0),
            };
            for group in groups {
                host.run(group, 0);
            }
            host.pass();
            host
        }

        fn mounted(root: &Path, v1: bool) -> PathBuf {
            let mounted = root.join("sys/fs/cgroup");
            if v1 { mounted.join("cpuacct") } else { mounted }
        }

        /// Lets a group run, which is created where it is absent.
        fn run(&mut self, group: &str, ms: u64) {
            for path in Path::new(group).ancestors() {
                let time = self.times.entry(path.to_owned()).or_default();
                *time += ms * MS;
                let directory = Self::mounted(self.root.path(), self.v1).join(path);
                fs::create_dir_all(&directory).unwrap();
                let (file, text) = if self.v1 {
                    ("cpuacct.usage", format!("{time}\n"))
                } else {
                    ("cpu.stat", format!("usage_usec {}\n", *time / 1000))
                };
                fs::write(directory.join(file), text).unwrap();
            }
        }

        fn end(&mut self, group: &str) {
            let directory = Self::mounted(self.root.path(), self.v1).join(group);
            let _ = fs::remove_dir_all(directory);
            self.times
                .retain(|path, _| !path.starts_with(Path::new(group)));
        }

        /// The milliseconds charged in a pass: to guests, and to those that ended.
        fn pass(&mut self) -> (u64, u64) {
            self.passes += 1;
            self.guests.scan();
            let usage = self.reader.read(&At(self.passes), &self.guests).unwrap();
            let Some(usage) = usage else { return (0, 0) };
            let own = usage.guests.iter().map(|guest| guest.own.total().0);
            let charged = (own.sum::<u64>() / MS, usage.departed.0 / MS);
            self.charged.0 += charged.0;
            self.charged.1 += charged.1;
            charged
        }
    }

    fn id(number: usize) -> String {
        format!("{number:064x}")
    }

    fn of_docker(number: usize) -> String {
        format!("docker/{}", id(number))
    }

    fn of_systemd(number: usize) -> String {
        format!("system.slice/docker-{}.scope", id(number))
    }

    #[test]
    fn a_container_that_lives_within_one_interval_is_charged_with_both_versions_of_control_groups()
    {
        for v1 in [true, false] {
            let mut host = Host::new(v1, &["docker"]);
            for number in 0..5 {
                host.run(&of_docker(number), 200);
                host.end(&of_docker(number));
            }
            assert_eq!(host.pass(), (0, 1000), "v1: {v1}");
            assert_eq!(host.pass(), (0, 0));
        }
    }

    #[test]
    fn what_a_container_used_after_it_was_read_for_the_last_time_is_charged_once() {
        for v1 in [true, false] {
            let mut host = Host::new(v1, &["docker"]);
            host.run(&of_docker(1), 300);
            assert_eq!(host.pass(), (300, 0));
            host.run(&of_docker(1), 200);
            host.run(&of_docker(2), 70);
            host.end(&of_docker(1));
            assert_eq!(host.pass(), (70, 200), "v1: {v1}");
        }
    }

    #[test]
    fn pods_come_and_go_with_their_containers() {
        for v1 in [true, false] {
            let mut host = Host::new(v1, &["kubepods/burstable"]);
            let pod = "kubepods/burstable/pod1b4e28ba-2fa1-11d2-883f-0016d3cca427";
            let container = |number| format!("{pod}/{}", id(number));
            host.run(&container(1), 100);
            host.run(&container(2), 100);
            host.end(&container(2));
            assert_eq!(host.pass(), (100, 100));
            host.run(&container(1), 50);
            host.end(pod);
            assert_eq!(host.pass(), (0, 50), "v1: {v1}");
        }
    }

    #[test]
    fn time_of_services_beside_containers_is_not_charged() {
        for v1 in [true, false] {
            let mut host = Host::new(v1, &["system.slice/ssh.service", &of_systemd(1)]);
            let service = "system.slice/logrotate.service";
            host.run(&of_systemd(2), 100);
            host.run("system.slice/ssh.service", 40);
            host.end(&of_systemd(2));
            assert_eq!(host.pass(), (0, 100), "v1: {v1}");
            host.run(service, 100);
            host.end(service);
            assert_eq!(host.pass(), (0, 0));
            // The two cannot be separated.
            host.run(&of_systemd(2), 100);
            host.run(service, 100);
            host.end(&of_systemd(2));
            host.end(service);
            assert_eq!(host.pass(), (0, 0));
            // A service that was seen, and ends with a container.
            host.run(service, 100);
            host.pass();
            host.run(service, 100);
            host.run(&of_systemd(1), 100);
            host.end(service);
            host.end(&of_systemd(1));
            assert_eq!(host.pass(), (0, 0));
            host.run(&of_systemd(3), 100);
            host.end(&of_systemd(3));
            assert_eq!(host.pass(), (0, 100));
        }
    }

    #[test]
    fn time_of_a_groups_own_processes_is_not_charged() {
        let mut host = Host::new(true, &["docker"]);
        let processes = "sys/fs/cgroup/cpuacct/docker/cgroup.procs";
        fs::write(host.root.path().join(processes), "1\n").unwrap();
        host.run("docker", 100);
        assert_eq!(host.pass(), (0, 0));
        fs::write(host.root.path().join(processes), "").unwrap();
        host.run(&of_docker(1), 100);
        host.end(&of_docker(1));
        assert_eq!(host.pass(), (0, 100));
    }

    #[test]
    fn more_than_the_processors_had_is_not_charged() {
        let mut host = Host::new(true, &["docker"]);
        host.run(&of_docker(1), 100_000);
        host.end(&of_docker(1));
        assert_eq!(host.pass(), (0, 0));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Containers, pods and services that come and go at any time: what is charged is at most what containers used,
        /// and all of it where nothing else ended beside them.
        #[test]
        fn the_time_of_containers_is_charged_once(
            v1 in any::<bool>(),
            steps in prop::collection::vec((0usize..14, 0u8..4), 1..60),
        ) {
            let pod = |number: usize| format!("kubepods/pod{number}");
            let group = |number: usize| match number {
                0..4 => of_docker(number),
                4..8 => format!("{}/{}", pod(number / 2), id(number)),
                8..12 => of_systemd(number),
                _ => format!("system.slice/{number}.service"),
            };
            let mut host = Host::new(v1, &["docker", "kubepods", "system.slice/keeps.service", &of_systemd(99)]);
            let (mut certain, mut possible) = (0, 0);
            let mut live: BTreeSet<usize> = BTreeSet::new();
            for (number, step) in steps {
                match step {
                    0 => { host.pass(); }
                    1 if (4..8).contains(&number) => {
                        host.end(&pod(number / 2));
                        live.retain(|other| !(4..8).contains(other) || other / 2 != number / 2);
                    }
                    1 => {
                        host.end(&group(number));
                        live.remove(&number);
                    }
                    _ => {
                        host.run(&group(number), 15);
                        live.insert(number);
                        certain += if number < 8 { 15 } else { 0 };
                        possible += if number < 12 { 15 } else { 0 };
                    }
                }
            }
            host.pass();
            let (guests, departed) = host.charged;
            prop_assert!(guests + departed <= possible, "{guests} + {departed} > {possible}");
            prop_assert!(guests + departed >= certain, "{guests} + {departed} < {certain}");
        }
    }
}
