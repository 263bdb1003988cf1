// SPDX-License-Identifier: Apache-2.0
//! Detection of other programs that keep the host busy between trials.

use crate::LabError;
use crate::suspect::FOREIGN_LOAD_SHARE;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use vtax_core::Nanoseconds;
use vtax_host::Roots;
use vtax_host::signals::Signals;
use vtax_kernel::{Process, ProcessStat, numbered};

/// The interval over which the load of other programs is measured.
const INTERVAL: Duration = Duration::from_millis(300);
/// The least share of a processor for which a process counts and is named.
const NAMED_SHARE: f64 = 0.05;
/// The most processes that are named.
const MAX_NAMED: usize = 3;

/// Waits until the host is quiet, for `patience` at the most. Returns the disturbance and the wait as text;
/// `None` when the host was quiet at once.
///
/// # Errors
/// When the user interrupts.
pub(super) fn wait(
    roots: &Roots,
    patience: Duration,
    signals: &Signals,
) -> Result<Option<String>, LabError> {
    let began = Instant::now();
    let mut disturbers = None;
    loop {
        signals.check()?;
        let found = busy_processes(roots);
        if found.is_empty() {
            let waited = began.elapsed().as_secs();
            return Ok(disturbers
                .map(|disturbers| format!("waited {waited} s until {disturbers} was done")));
        }
        let named = named(&found);
        if began.elapsed() >= patience {
            let waited = match patience {
                Duration::ZERO => String::new(),
                _ => format!(", still after {} s", began.elapsed().as_secs()),
            };
            return Ok(Some(format!(
                "other programs keep this host busy{waited}: {named}"
            )));
        }
        disturbers = Some(named);
        std::thread::sleep(Duration::from_secs(1).min(patience));
    }
}

/// Returns the processes of other programs with their shares of a processor. The list is empty when they take at
/// most [`FOREIGN_LOAD_SHARE`] of all processors together.
fn busy_processes(roots: &Roots) -> Vec<(String, f64)> {
    let before = cpu_times(roots);
    std::thread::sleep(INTERVAL);
    let after = cpu_times(roots);
    let mut busy: Vec<(String, f64)> = after
        .into_iter()
        .filter_map(|(key, spent)| {
            let spent = spent.saturating_since(*before.get(&key)?);
            let share = spent.as_secs_f64() / INTERVAL.as_secs_f64();
            (share >= NAMED_SHARE).then(|| (format!("{} (PID {})", key.1, key.0), share))
        })
        .collect();
    busy.sort_by(|one, other| other.1.total_cmp(&one.1));
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    #[allow(clippy::cast_precision_loss, reason = "a processor count")]
    let limit = FOREIGN_LOAD_SHARE * processors as f64;
    if busy.iter().map(|(_, share)| share).sum::<f64>() > limit {
        busy
    } else {
        Vec::new()
    }
}

fn named(busy: &[(String, f64)]) -> String {
    let names: Vec<String> = busy
        .iter()
        .take(MAX_NAMED)
        .map(|(name, share)| format!("{name} with {:.0} % of a processor", share * 100.0))
        .collect();
    match busy.len().saturating_sub(MAX_NAMED) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

/// Returns the CPU time of every process except this one, by process ID and name.
fn cpu_times(roots: &Roots) -> BTreeMap<(u32, String), Nanoseconds> {
    let others = numbered(&roots.proc).into_iter().map(|(pid, _)| pid);
    let own = std::process::id();
    let time = |stat: ProcessStat<'_>| {
        let name = String::from_utf8_lossy(stat.name).into_owned();
        Some((name, stat.cpu_time()?))
    };
    others
        .filter(|pid| *pid != own)
        .filter_map(|pid| {
            let (name, time) = Process::new(&roots.proc, pid).stat(time)?;
            Some(((pid, name), time))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    struct Loop(Child);

    impl Drop for Loop {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_busy_loop_is_named_with_its_pid_and_its_share() {
        let busy = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn();
        let busy = Loop(busy.unwrap());
        let named = format!("sh (PID {})", busy.0.id());
        let found = busy_processes(&Roots::host());
        let share = found.iter().find(|(name, _)| *name == named).unwrap().1;
        assert!((NAMED_SHARE..1.5).contains(&share), "{found:?}");
        let words = super::named(&[("a (PID 1)".to_owned(), 0.5)]);
        assert_eq!(words, "a (PID 1) with 50 % of a processor");
    }

    #[test]
    fn a_host_without_processes_is_quiet() {
        let empty = tempfile::tempdir().unwrap();
        assert!(busy_processes(&Roots::below(empty.path())).is_empty());
    }
}
