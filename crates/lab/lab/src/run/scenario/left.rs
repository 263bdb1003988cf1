// SPDX-License-Identifier: Apache-2.0
//! What a command in a target leaves running after its end, and what its control groups did not count: both make a trial
//! suspect, since its costs are then lower than those of the work.

use super::load::{DrivenGuests, Role};
use crate::LabError;
use std::collections::BTreeMap;
use std::time::Duration;
use vtax_guest::platform::{TargetProcess, TargetProcesses};

/// The time in which a process that outlives its command may still end. It uses less than this for nothing.
const GRACE: Duration = Duration::from_millis(100);

/// How far the time of a command by its waiter may exceed that of its control groups. The waiter also counts the entry into
/// the groups, and counts in ticks.
const WAITED_FACTOR: f64 = 1.25;
/// As [`WAITED_FACTOR`], in seconds.
const WAITED_SECONDS: f64 = 0.1;

/// The processes of a target before and after a window in which a command ran in it to its end.
#[derive(Debug, Clone, Default)]
pub(super) struct Left {
    before: TargetProcesses,
    after: TargetProcesses,
}

impl Left {
    /// The processes of the guests that the window loads, before it.
    ///
    /// # Errors
    /// When a guest does not answer.
    pub fn before(guests: &mut DrivenGuests<'_, '_>) -> Result<BTreeMap<String, Self>, LabError> {
        let mut found = BTreeMap::new();
        for driven in guests.with_role_mut(Role::Window) {
            let before = driven.guest.target.processes();
            let left = Self {
                before: before.map_err(|cause| driven.guest.blame(cause))?,
                after: TargetProcesses::default(),
            };
            found.insert(driven.guest.spec.name.to_owned(), left);
        }
        Ok(found)
    }

    /// Adds the processes after the window. Keeps only guests in which the load itself ran.
    ///
    /// # Errors
    /// When a guest does not answer.
    pub fn after(
        mut before: BTreeMap<String, Self>,
        guests: &mut DrivenGuests<'_, '_>,
    ) -> Result<BTreeMap<String, Self>, LabError> {
        let mut found = BTreeMap::new();
        for driven in guests.with_role_mut(Role::Window) {
            if !driven.runs_in_target() {
                continue;
            }
            let Some(mut left) = before.remove(driven.guest.spec.name) else {
                continue;
            };
            let mut read = || {
                let read = driven.guest.target.processes();
                read.map_err(|cause| driven.guest.blame(cause))
            };
            left.after = read()?;
            if !left.after.left_since(&left.before).is_empty() {
                std::thread::sleep(GRACE);
                let remaining = read()?.counted;
                left.after
                    .counted
                    .retain(|id, _| remaining.contains_key(id));
            }
            found.insert(driven.guest.spec.name.to_owned(), left);
        }
        Ok(found)
    }

    /// The CPU time of the window's commands by their waiters, in seconds, where these are their ancestors.
    pub fn waited(&self) -> Option<f64> {
        if self.after.are_descendants {
            self.reported()
        } else {
            None
        }
    }

    fn reported(&self) -> Option<f64> {
        let waited = self.after.waited.zip(self.before.waited);
        waited.map(|(after, before)| after.saturating_since(before).as_secs_f64())
    }

    /// The reasons to suspect the window, in which the guest's control groups or virtual processors used `counted` seconds
    /// of CPU time.
    pub fn reasons(&self, counted: Option<f64>) -> Vec<String> {
        let mut reasons = Vec::new();
        let left = self.after.left_since(&self.before);
        if !left.is_empty() {
            reasons.push(format!(
                "the command left {} running{}: what it does later is in no cost",
                named(&left),
                share(&left, counted)
            ));
        }
        let escaped = |(id, process): (&(u32, u64), &TargetProcess)| {
            let is_new = !self.before.escaped.contains_key(id);
            is_new.then(|| process.clone())
        };
        let mut escaped: Vec<TargetProcess> =
            self.after.escaped.iter().filter_map(escaped).collect();
        escaped.sort_by_key(|process| std::cmp::Reverse(process.cpu));
        let waited = self.reported();
        let beyond = waited.zip(counted).filter(|(waited, counted)| {
            *waited > counted * WAITED_FACTOR && waited - counted > WAITED_SECONDS
        });
        if !escaped.is_empty() {
            reasons.push(format!(
                "{} left the target's control groups, which count its CPU time",
                named(&escaped)
            ));
        } else if let Some((waited, counted)) = beyond {
            reasons.push(format!(
                "a process left the target's control groups: its commands used {waited:.2} s of CPU time, and the groups \
                 counted {counted:.2} s"
            ));
        }
        let unwaited = waited.zip(counted).filter(|(waited, counted)| {
            *counted > waited * WAITED_FACTOR && counted - waited > WAITED_SECONDS
        });
        if self.after.are_descendants
            && let Some((waited, counted)) = unwaited
        {
            reasons.push(format!(
                "the command did not wait for processes that used {:.2} s of CPU time, {:.0} % of the window's: they are in no \
                 cost",
                counted - waited,
                (counted - waited) / counted * 100.0
            ));
        }
        reasons
    }
}

/// The names of processes, the longest CPU time first.
fn named(processes: &[TargetProcess]) -> String {
    match processes {
        [] => String::new(),
        [one] => format!("`{}`", one.name),
        [first, rest @ ..] => format!("`{}` and {} more", first.name, rest.len()),
    }
}

/// The share of processes in the CPU time of the window.
fn share(processes: &[TargetProcess], counted: Option<f64>) -> String {
    let used = processes.iter().map(|process| Duration::from(process.cpu));
    let used = used.sum::<Duration>().as_secs_f64();
    match counted {
        Some(counted) if counted > 0.0 => format!(
            ", with {:.0} % of the CPU time of the window",
            (used / counted).min(1.0) * 100.0
        ),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_core::Nanoseconds;

    fn processes(names: &[(&str, u64)]) -> BTreeMap<(u32, u64), TargetProcess> {
        let of = |(pid, (name, ms)): (u32, &(&str, u64))| {
            let process = TargetProcess {
                name: (*name).to_owned(),
                cpu: Nanoseconds(ms * 1_000_000),
            };
            ((pid, u64::from(pid)), process)
        };
        (10..).zip(names).map(of).collect()
    }

    fn left(counted: &[(&str, u64)], escaped: &[(&str, u64)], waited_ms: u64) -> Left {
        Left {
            before: TargetProcesses {
                counted: processes(&counted[..1]),
                escaped: BTreeMap::new(),
                waited: Some(Nanoseconds(1_000_000_000)),
                are_descendants: true,
            },
            after: TargetProcesses {
                counted: processes(counted),
                escaped: processes(escaped),
                waited: Some(Nanoseconds(1_000_000_000 + waited_ms * 1_000_000)),
                are_descendants: true,
            },
        }
    }

    fn known(reasons: Vec<String>) -> Vec<String> {
        for reason in &reasons {
            let found = crate::reasons::find(reason);
            assert!(
                found.iter().any(|reason| reason.is_suspect),
                "the catalogue of reasons lacks: {reason}"
            );
        }
        reasons
    }

    #[test]
    fn a_command_that_leaves_nothing_gives_no_reason() {
        let of = left(&[("init", 10)], &[], 1040);
        assert_eq!(known(of.reasons(Some(1.0))), Vec::<String>::new());
        assert_eq!(known(of.reasons(None)), Vec::<String>::new());
    }

    #[test]
    fn a_process_that_still_runs_is_named_with_its_share() {
        let of = left(&[("init", 10), ("work", 300)], &[], 300);
        assert_eq!(
            known(of.reasons(Some(0.33))),
            [
                "the command left `work` running, with 91 % of the CPU time of the window: what it does later is in no cost"
            ]
        );
        let of = left(&[("init", 10), ("sleep", 0), ("work", 300)], &[], 30);
        let reasons = known(of.reasons(None));
        assert!(
            reasons[0].contains("left `work` and 1 more running:"),
            "{reasons:?}"
        );
    }

    #[test]
    fn a_process_outside_of_the_groups_is_named_and_one_that_has_ended_is_found_by_its_time() {
        let of = left(&[("init", 10)], &[("burn", 300)], 30);
        assert!(
            known(of.reasons(Some(0.02)))[0].starts_with("`burn` left the target's control groups")
        );
        let of = left(&[("init", 10)], &[], 350);
        assert_eq!(
            known(of.reasons(Some(0.02))),
            [
                "a process left the target's control groups: its commands used 0.35 s of CPU time, and the groups counted 0.02 s"
            ]
        );
    }

    #[test]
    fn processes_that_ended_and_were_not_waited_for_are_found_by_their_time() {
        let of = left(&[("init", 10)], &[], 30);
        assert_eq!(
            known(of.reasons(Some(1.03))),
            [
                "the command did not wait for processes that used 1.00 s of CPU time, 97 % of the window's: they are in no cost"
            ]
        );
        let mut elsewhere = of;
        elsewhere.after.are_descendants = false;
        assert_eq!(known(elsewhere.reasons(Some(1.03))), Vec::<String>::new());
    }
}
