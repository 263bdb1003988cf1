// SPDX-License-Identifier: Apache-2.0
//! The processes of a target at one time, by which a trial finds what a command leaves running and what its control
//! groups do not count.

use super::{CommandLine, Finished};
use std::collections::BTreeMap;
use std::time::Duration;
use vtax_core::Nanoseconds;
use vtax_host::HostError;
use vtax_kernel::ProcessStat;

/// A process in a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetProcess {
    /// Its command name, at most 15 bytes. The process itself can change it.
    pub name: String,
    /// Its CPU time and that of the children that it has waited for.
    pub cpu: Nanoseconds,
}

impl TargetProcess {
    /// A process by its `stat`, with its start time in ticks; `None` for a thread of the kernel and for one that has ended.
    pub(super) fn from_stat(stat: ProcessStat<'_>) -> Option<(u64, Self)> {
        if stat.is_kernel_thread() || stat.is_over() {
            return None;
        }
        let children = stat.cpu_time_of_children().unwrap_or_default();
        let process = Self {
            name: String::from_utf8_lossy(stat.name).into_owned(),
            cpu: Nanoseconds(stat.cpu_time()?.0.saturating_add(children.0)),
        };
        Some((stat.started()?, process))
    }
}

/// The processes of a target at one time. A process is identified by its number and start time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TargetProcesses {
    /// Those that the target's counters include.
    pub counted: BTreeMap<(u32, u64), TargetProcess>,
    /// Those that have left the target's control groups.
    pub escaped: BTreeMap<(u32, u64), TargetProcess>,
    /// The CPU time of the commands that have ended, with all processes that were waited for, as the kernel reported it to
    /// their waiters on this host; `None` for commands in another kernel.
    pub waited: Option<Nanoseconds>,
    /// Whether the commands are descendants of those waiters, so that what the groups count beyond is of processes that
    /// nobody waited for.
    pub are_descendants: bool,
}

impl TargetProcesses {
    /// Those that have come since `before` and still run, the longest CPU time first.
    #[must_use]
    pub fn left_since(&self, before: &Self) -> Vec<TargetProcess> {
        let new = |(id, _): &(&(u32, u64), &TargetProcess)| !before.counted.contains_key(*id);
        let left = self.counted.iter().filter(new);
        let mut left: Vec<TargetProcess> = left.map(|(_, process)| process.clone()).collect();
        left.sort_by_key(|process| std::cmp::Reverse(process.cpu));
        left
    }

    /// The processes of another kernel, from the output of [`LIST`].
    fn of_list(printed: &[u8]) -> Self {
        let mut lines = printed.split(|byte| *byte == b'\n');
        let number = |text: &[u8]| std::str::from_utf8(text).ok()?.trim().parse::<u32>().ok();
        let own = lines.next().and_then(number);
        let process = |line: &[u8]| {
            let pid = number(line.split(|byte| *byte == b' ').next()?)?;
            let (started, process) = TargetProcess::from_stat(ProcessStat::parse(line)?)?;
            (Some(pid) != own).then_some(((pid, started), process))
        };
        Self {
            counted: lines.filter_map(process).collect(),
            ..Self::default()
        }
    }
}

/// The processes of a target with a kernel of its own, which `run` runs a command in.
///
/// # Errors
/// When the target does not answer.
pub(super) fn listed(
    run: impl FnOnce(&CommandLine, Duration) -> Result<Finished, HostError>,
) -> Result<TargetProcesses, HostError> {
    let words = ["sh", "-c", LIST].map(str::to_owned).to_vec();
    Ok(TargetProcesses::of_list(&run(&words, LIMIT)?.stdout))
}

/// The time limit of a list.
const LIMIT: Duration = Duration::from_secs(30);

/// Prints the number of its own process, and a line of `stat` for each process.
const LIST: &str = "echo $$; exec cat /proc/[0-9]*/stat 2>/dev/null";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(pid: u32, name: &str, ticks: u64, started: u64) -> String {
        format!(
            "{pid} ({name}) S 1 1 1 0 -1 4194304 0 0 0 0 {ticks} 0 5 0 20 0 1 0 {started} 0 0\n"
        )
    }

    #[test]
    fn a_process_that_came_and_still_runs_was_left_and_one_that_took_a_number_over_is_new() {
        let before = format!("7\n{}{}", line(1, "init", 100, 5), line(40, "old", 1, 900));
        let after = format!(
            "9\n{}{}{}{}",
            line(1, "init", 200, 5),
            line(9, "cat", 0, 990),
            line(40, "a) b", 30, 950),
            line(50, "work", 300, 960)
        );
        let [before, after] = [before, after].map(|text| TargetProcesses::of_list(text.as_bytes()));
        let left = after.left_since(&before);
        let left: Vec<(&str, u64)> = left
            .iter()
            .map(|process| (process.name.as_str(), process.cpu.0 / 1_000_000))
            .collect();
        assert_eq!(left, [("work", 3050), ("a) b", 350)]);
    }

    #[test]
    fn threads_of_the_kernel_and_ended_processes_are_left_out() {
        let text = "3\n4 (kworker/0:1) I 2 0 0 0 -1 69238880 0 0 0 0 9 9 0 0 20 0 1 0 70 0 0\n\
                    5 (gone) Z 1 1 1 0 -1 4194304 0 0 0 0 9 9 0 0 20 0 1 0 71 0 0\n";
        assert_eq!(
            TargetProcesses::of_list(text.as_bytes()),
            TargetProcesses::default()
        );
    }

    proptest! {
        #[test]
        fn no_output_panics(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = TargetProcesses::of_list(&text);
        }
    }
}
