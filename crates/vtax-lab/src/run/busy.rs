//! Whether other programs keep the host busy, and which: asked between trials, when nothing of ours
//! works.

use crate::LabError;
use crate::suspect::FOREIGN_LOAD_SHARE;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use vtax_host::Roots;
use vtax_host::roots::names;
use vtax_host::signals::Signals;

/// How long the host is watched for one answer.
const GLANCE: Duration = Duration::from_millis(300);
/// A process that takes less of a processor is not worth naming.
const WORTH_NAMING: f64 = 0.05;
/// How many are named.
const NAMED: usize = 3;
/// USER_HZ: what `/proc/PID/stat` counts in (proc(5)).
const TICKS_A_SECOND: f64 = 100.0;

/// Waits until the host is quiet, for `patience` at the most. What disturbs it, and how long was
/// waited, in words; `None` where it was quiet at once.
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
        let found = glance(roots);
        if found.is_empty() {
            let waited = began.elapsed().as_secs();
            return Ok(disturbers
                .map(|disturbers| format!("waited {waited} s until {disturbers} was done")));
        }
        let named = said(&found);
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

/// The processes that take more of the machine than trials can bear, with the share of a processor
/// that each takes; empty where all of them together take less.
fn glance(roots: &Roots) -> Vec<(String, f64)> {
    let before = ticks(roots);
    std::thread::sleep(GLANCE);
    let after = ticks(roots);
    let mut busy: Vec<(String, f64)> = after
        .into_iter()
        .filter_map(|(key, spent)| {
            let spent = spent.saturating_sub(*before.get(&key)?);
            #[allow(clippy::cast_precision_loss, reason = "ticks of a moment")]
            let share = spent as f64 / TICKS_A_SECOND / GLANCE.as_secs_f64();
            (share >= WORTH_NAMING).then(|| (format!("{} (PID {})", key.1, key.0), share))
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

fn said(busy: &[(String, f64)]) -> String {
    let named: Vec<String> = busy
        .iter()
        .take(NAMED)
        .map(|(name, share)| format!("{name} with {:.0} % of a processor", share * 100.0))
        .collect();
    match busy.len().saturating_sub(NAMED) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// User and system time of every process but this one, in ticks (proc(5), fields 14 and 15).
fn ticks(roots: &Roots) -> BTreeMap<(u32, String), u64> {
    let own = std::process::id();
    names(&roots.proc)
        .into_iter()
        .filter_map(|name| name.parse::<u32>().ok())
        .filter(|pid| *pid != own)
        .filter_map(|pid| {
            let stat = roots.proc_text(&format!("{pid}/stat"))?;
            let (head, fields) = stat.rsplit_once(')')?;
            let name = head.split_once('(')?.1.to_owned();
            let fields: Vec<&str> = fields.split_whitespace().collect();
            let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
            Some(((pid, name), number(11)? + number(12)?))
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
        let found = glance(&Roots::host());
        let share = found.iter().find(|(name, _)| *name == named).unwrap().1;
        assert!((WORTH_NAMING..1.5).contains(&share), "{found:?}");
        let words = said(&[("a (PID 1)".to_owned(), 0.5)]);
        assert_eq!(words, "a (PID 1) with 50 % of a processor");
    }

    #[test]
    fn a_host_without_processes_is_quiet() {
        let empty = tempfile::tempdir().unwrap();
        assert!(glance(&Roots::below(empty.path())).is_empty());
    }
}
