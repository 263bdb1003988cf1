// SPDX-License-Identifier: Apache-2.0
//! CPU time of a service: of its living processes by their clocks, and of those that ended between two readings by the
//! children's times of the processes that waited for them.
//!
//! The children's times of a process gain the whole time of each child that it waits for. So their gain, less the last
//! readings of the children that ended, is the time that no reading of a child has. All processes of a service are taken
//! together, since a child may be adopted by any of them before it ends.
//!
//! What is lost only makes the time smaller: up to [`CUT`] for each living process that has waited for children (ticks);
//! at most an interval of each process that ended and that no other of the service waited for, and of each child of a
//! process that ignores the end of its children (SIGCHLD).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use vtax_core::Nanoseconds;
use vtax_inventory::Member;
use vtax_kernel::{Process, text};
use vtax_observe::counters::{CUT, ProcessClock, process_clock};

/// The number of times that a reading is repeated because a process ended in it.
const READINGS: usize = 4;

/// SIGCHLD in the masks of `/proc/PID/status`.
const SIGCHLD: u64 = 1 << 16;

/// A process, by number and start.
type Id = (u32, u64);

/// The time of one service since its first reading.
pub(super) struct ServiceTime {
    proc: PathBuf,
    open: Box<dyn Fn(u32) -> ProcessClock + Send>,
    clocks: BTreeMap<Id, ProcessClock>,
    /// The last reading.
    last: Option<BTreeMap<Id, Times>>,
    /// Children's time that no reading of a child has, less what was charged too early. In nanoseconds.
    pending: i128,
    /// The living processes of which a child ended. Their children's time may be below a tick, which reads as none.
    waiters: BTreeSet<u32>,
    total: u64,
    /// What the last reading left out, as the ends of sentences that begin with the service's name.
    pub(super) omissions: Vec<&'static str>,
}

/// A reading of one process, in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Times {
    own: u64,
    children: u64,
    parent: u32,
    is_others: bool,
}

impl Times {
    fn whole(&self) -> i128 {
        i128::from(self.own) + i128::from(self.children)
    }
}

const UNWAITED: &str = "a process ended that no other of the service waited for; its time since the reading before is \
                        not charged to it";
const IGNORING: &str = "a process ignores the end of its children (SIGCHLD); their time since the reading before is not \
                        charged to it";
const OF_OTHERS: &str = "a process ended that is another guest's; the children's time of this interval is not charged to it";

impl ServiceTime {
    pub(super) fn new(proc: &Path) -> Self {
        Self::with_clocks(proc, Box::new(process_clock))
    }

    fn with_clocks(proc: &Path, open: Box<dyn Fn(u32) -> ProcessClock + Send>) -> Self {
        Self {
            proc: proc.to_owned(),
            open,
            clocks: BTreeMap::new(),
            last: None,
            pending: 0,
            waiters: BTreeSet::new(),
            total: 0,
            omissions: Vec::new(),
        }
    }

    /// The time since the first reading, given the processes, parents before their children.
    pub(super) fn read(&mut self, members: &[Member]) -> Nanoseconds {
        self.omissions.clear();
        let (now, in_doubt) = self.read_all(members);
        let Some(last) = self.last.replace(BTreeMap::new()) else {
            let is_deaf = |((pid, _), times): (&Id, &Times)| !times.is_others && self.ignores(*pid);
            if now.iter().any(is_deaf) {
                self.omissions.push(IGNORING);
            }
            self.last = Some(now);
            return Nanoseconds(0);
        };
        let mut own = 0u64;
        let mut unseen = 0_i128;
        for (id, times) in now.iter().filter(|(_, times)| !times.is_others) {
            let before = last.get(id);
            own = own.saturating_add(times.own.saturating_sub(before.map_or(0, |last| last.own)));
            unseen +=
                i128::from(times.children) - i128::from(before.map_or(0, |last| last.children));
            if before.is_none() && self.ignores(id.0) {
                self.omissions.push(IGNORING);
            }
        }
        let mut has_lost_sight = false;
        for (_, ended) in last.iter().filter(|(id, _)| !now.contains_key(id)) {
            match waited_by(ended.parent, &now, &last) {
                Some((_, waiter)) if waiter.is_others => {}
                Some((pid, _)) if self.ignores(pid) => self.omissions.push(IGNORING),
                Some((pid, _)) => {
                    self.waiters.insert(pid);
                    unseen -= ended.whole();
                    has_lost_sight |= ended.is_others;
                }
                None if !ended.is_others => self.omissions.push(UNWAITED),
                None => {}
            }
        }
        self.pending += unseen;
        if has_lost_sight && self.pending > 0 {
            self.pending = 0;
            self.omissions.push(OF_OTHERS);
        }
        let has_waited = now.iter().filter(|(_, times)| times.children > 0);
        self.waiters.extend(has_waited.map(|((pid, _), _)| *pid));
        self.waiters
            .retain(|pid| now.range((*pid, 0)..=(*pid, u64::MAX)).next().is_some());
        let least = i128::from(CUT.0) * self.waiters.len() as i128 + in_doubt;
        self.pending = self.pending.max(-least);
        let waited = u64::try_from(self.pending).unwrap_or(0);
        self.pending -= i128::from(waited);
        self.total = self.total.saturating_add(own).saturating_add(waited);
        self.last = Some(now);
        Nanoseconds(self.total)
    }

    /// One reading of every process that has not been waited for, and the last readings of those of which it is not
    /// known whether a parent had waited for them when it was read.
    fn read_all(&mut self, members: &[Member]) -> (BTreeMap<Id, Times>, i128) {
        let mut left: Vec<&Member> = members.iter().collect();
        let ids: Vec<Id> = left
            .iter()
            .map(|member| (member.pid, member.started))
            .collect();
        self.clocks.retain(|id, _| ids.contains(id));
        for id in ids {
            self.clocks.entry(id).or_insert_with(|| (self.open)(id.0));
        }
        let mut now = BTreeMap::new();
        let mut in_doubt = 0;
        for _ in 0..READINGS {
            now.clear();
            in_doubt = 0;
            let before = left.len();
            let (proc, clocks) = (&self.proc, &mut self.clocks);
            left.retain(|member| match read_one(proc, clocks, member) {
                Some(times) => {
                    now.insert((member.pid, member.started), times);
                    true
                }
                None => {
                    let last = self.last.as_ref();
                    let last = last.and_then(|last| last.get(&(member.pid, member.started)));
                    in_doubt += last.map_or(0, Times::whole);
                    false
                }
            });
            if left.len() == before {
                break;
            }
        }
        (now, in_doubt)
    }

    /// Whether the kernel adds nothing to the children's times of a process, because it ignores their end.
    fn ignores(&self, pid: u32) -> bool {
        let status = std::fs::read(Process::new(&self.proc, pid).path("status"));
        let status = status.unwrap_or_default();
        let mask = text::lines(&status).find_map(|line| line.strip_prefix(b"SigIgn:"));
        let mask = mask.and_then(|mask| std::str::from_utf8(mask.trim_ascii()).ok());
        let mask = mask.and_then(|mask| u64::from_str_radix(mask, 16).ok());
        mask.is_some_and(|mask| mask & SIGCHLD != 0)
    }
}

/// A reading of a process; `None` once it was waited for.
fn read_one(
    proc: &Path,
    clocks: &mut BTreeMap<Id, ProcessClock>,
    member: &Member,
) -> Option<Times> {
    let process = Process::new(proc, member.pid);
    let (started, children, parent) = process.stat(|stat| {
        let children = stat.cpu_time_of_children()?;
        Some((stat.started()?, children.0, stat.parent().unwrap_or(0)))
    })?;
    let clock = clocks.get_mut(&(member.pid, member.started))?;
    let own = clock().ok()?;
    (started == member.started).then_some(Times {
        own,
        children,
        parent,
        is_others: member.is_others,
    })
}

/// The living process of a service that has waited for a child of `parent`: that one, or the nearest one above it.
fn waited_by<'a>(
    parent: u32,
    now: &'a BTreeMap<Id, Times>,
    last: &BTreeMap<Id, Times>,
) -> Option<(u32, &'a Times)> {
    let mut next = parent;
    for _ in 0..=last.len() {
        if let Some(((pid, _), times)) = now.range((next, 0)..=(next, u64::MAX)).next() {
            return Some((*pid, times));
        }
        let (_, ended) = last.range((next, 0)..=(next, u64::MAX)).next()?;
        next = ended.parent;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    const TICK: u64 = 10_000_000;

    /// Processes as files: their own times in nanoseconds, their children's in ticks.
    struct Proc {
        root: tempfile::TempDir,
        members: Vec<Member>,
        time: ServiceTime,
    }

    impl Proc {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let proc = root.path().to_owned();
            let open = move |pid: u32| -> ProcessClock {
                let path = proc.join(format!("{pid}/clock"));
                Box::new(move || {
                    let text = fs::read_to_string(&path)?;
                    text.parse().map_err(std::io::Error::other)
                })
            };
            let time = ServiceTime::with_clocks(root.path(), Box::new(open));
            Self {
                root,
                members: Vec::new(),
                time,
            }
        }

        fn set(&self, pid: u32, parent: u32, own: u64, children: u64) {
            let directory = self.root.path().join(pid.to_string());
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("clock"), own.to_string()).unwrap();
            let ticks = children / TICK;
            let stat =
                format!("{pid} (x) S {parent} 1 1 0 -1 0 0 0 0 0 0 0 {ticks} 0 20 0 1 0 {pid} 0\n");
            fs::write(directory.join("stat"), stat).unwrap();
        }

        fn start(&mut self, pid: u32, parent: u32, own: u64) {
            self.set(pid, parent, own, 0);
            self.members.push(Member {
                pid,
                started: pid.into(),
                is_others: false,
            });
        }

        /// Ends a process; the list still has it when it ended after the list was made.
        fn end(&mut self, pid: u32, is_listed: bool) {
            fs::remove_dir_all(self.root.path().join(pid.to_string())).unwrap();
            if !is_listed {
                self.members.retain(|member| member.pid != pid);
            }
        }

        fn read(&mut self) -> u64 {
            self.time.read(&self.members).0
        }
    }

    #[test]
    fn what_processes_used_before_the_first_reading_is_not_counted() {
        let mut proc = Proc::new();
        proc.start(8, 1, 5000);
        proc.start(9, 8, 700);
        proc.set(8, 1, 5000, 40 * TICK);
        assert_eq!(proc.read(), 0);
        proc.set(8, 1, 5010, 40 * TICK);
        proc.set(9, 8, 703, 0);
        assert_eq!(proc.read(), 13);
        // A child that is new, with all that it used, and one that nobody saw.
        proc.start(10, 8, 20);
        proc.set(8, 1, 5010, 43 * TICK);
        assert_eq!(proc.read(), 33 + 3 * TICK);
    }

    #[test]
    fn a_child_that_was_waited_for_counts_once_with_what_it_used_at_its_end() {
        for is_listed in [false, true] {
            let mut proc = Proc::new();
            proc.start(8, 1, 0);
            proc.start(9, 8, 100 * TICK);
            proc.read();
            proc.set(9, 8, 110 * TICK, 0);
            assert_eq!(proc.read(), 10 * TICK);
            proc.end(9, is_listed);
            proc.set(8, 1, 1, 113 * TICK);
            assert_eq!(proc.read(), 13 * TICK + 1);
            assert!(proc.time.omissions.is_empty());
        }
    }

    #[test]
    fn children_of_children_that_ended_are_in_the_times_of_the_first_that_lives() {
        let mut proc = Proc::new();
        proc.start(8, 1, 0);
        proc.start(9, 8, 10 * TICK);
        proc.start(10, 9, 20 * TICK);
        proc.read();
        proc.end(9, false);
        proc.end(10, false);
        proc.set(8, 1, 0, 35 * TICK);
        assert_eq!(proc.read(), 5 * TICK);
    }

    #[test]
    fn a_process_that_nobody_of_the_service_waited_for_loses_an_interval_and_is_told() {
        let mut proc = Proc::new();
        proc.start(8, 1, 0);
        proc.start(9, 1, 10 * TICK);
        proc.read();
        proc.set(9, 1, 12 * TICK, 0);
        assert_eq!(proc.read(), 2 * TICK);
        proc.end(9, false);
        proc.set(8, 1, 3, 0);
        assert_eq!(proc.read(), 2 * TICK + 3);
        assert_eq!(proc.time.omissions, [UNWAITED]);
        // The first process itself ends.
        proc.end(8, false);
        assert_eq!(proc.read(), 2 * TICK + 3);
    }

    #[test]
    fn a_parent_that_ignores_the_end_of_its_children_hides_no_later_time() {
        let mut proc = Proc::new();
        proc.start(8, 1, 0);
        proc.start(9, 8, 100 * TICK);
        proc.read();
        let status = proc.root.path().join("8/status");
        fs::write(status, "SigIgn:\t0000000000010000\n").unwrap();
        proc.end(9, false);
        proc.read();
        assert_eq!(proc.time.omissions, [IGNORING]);
        proc.set(8, 1, 5, 7 * TICK);
        assert_eq!(proc.read(), 7 * TICK + 5);
    }

    #[test]
    fn the_time_of_another_guests_process_is_in_no_ones_children() {
        let mut proc = Proc::new();
        proc.start(8, 1, 0);
        proc.start(9, 8, 10 * TICK);
        proc.members[1].is_others = true;
        proc.read();
        proc.set(9, 8, 90 * TICK, 0);
        proc.set(8, 1, 4, 0);
        assert_eq!(proc.read(), 4);
        proc.end(9, false);
        proc.set(8, 1, 4, 95 * TICK);
        assert_eq!(proc.read(), 4);
        assert_eq!(proc.time.omissions, [OF_OTHERS]);
    }

    #[test]
    fn a_child_of_less_than_a_tick_is_charged_once() {
        let mut proc = Proc::new();
        proc.start(8, 1, 0);
        proc.read();
        proc.start(9, 8, 1_000_000);
        assert_eq!(proc.read(), 1_000_000);
        // Its parent has waited for 5 ms, which reads as none.
        fs::remove_dir_all(proc.root.path().join("9")).unwrap();
        proc.members.retain(|member| member.pid != 9);
        proc.set(8, 1, 0, 5_000_000);
        proc.read();
        proc.set(8, 1, 0, 4 * TICK);
        assert_eq!(proc.read(), 4 * TICK);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Children that work and end at any time: no more is counted than was used, and no less but for the cut.
        #[test]
        fn the_time_is_what_was_used(steps in prop::collection::vec((0u8..4, 0u64..30_000_000), 1..60)) {
            let mut proc = Proc::new();
            proc.start(8, 1, 0);
            let (mut used, mut waited, mut next) = (0u64, 0u64, 9u32);
            let mut children: Vec<(u32, u64, bool)> = Vec::new();
            proc.read();
            for (step, time) in steps {
                used += time;
                match (step, children.last_mut()) {
                    // It may end before any reading.
                    (0, _) | (_, None) => {
                        proc.set(next, 8, time, 0);
                        children.push((next, time, false));
                        next += 1;
                    }
                    (1, Some((pid, own, is_seen))) => {
                        *own += time;
                        waited += *own;
                        fs::remove_dir_all(proc.root.path().join(pid.to_string())).unwrap();
                        if *is_seen {
                            let pid = *pid;
                            proc.members.retain(|member| member.pid != pid);
                        }
                        children.pop();
                        proc.set(8, 1, 0, waited);
                    }
                    (_, Some((pid, own, _))) => {
                        *own += time;
                        proc.set(*pid, 8, *own, 0);
                    }
                }
                if step == 3 {
                    for (pid, own, is_seen) in &mut children {
                        if !*is_seen {
                            proc.start(*pid, 8, *own);
                            *is_seen = true;
                        }
                    }
                    let counted = proc.read();
                    prop_assert!(counted <= used, "{counted} of {used}");
                    prop_assert!(counted + CUT.0 >= used, "{counted} of {used}");
                }
            }
        }
    }
}
