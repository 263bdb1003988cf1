// SPDX-License-Identifier: Apache-2.0
//! Commands that run for a fixed time and whose work is not known: of their costs for a run nothing can be claimed, since
//! a cheaper target does more work in the same time.

use super::TreatmentSummary;
use std::collections::BTreeMap;
use vtax_core::{Base, Quantity, Unit, counted, metric};
use vtax_results::stats::extremes;
use vtax_results::{Trial, Work};

/// The kinds of platforms whose guests run on the host's kernel.
const SHARE_KERNEL: [&str; 4] = ["native", "container", "systemd-nspawn", "bubblewrap"];
/// The mean times of treatments agree within this share.
const AGREES_WITHIN: f64 = 0.02;
/// Shorter commands are those that end with their work.
const SHORTEST_SECONDS: f64 = 0.5;
/// The time by which a run may outlast the whole number of seconds that it was given.
const OVERTIME_SECONDS: f64 = 0.12;
/// The time by which it may end earlier.
const EARLY_SECONDS: f64 = 0.01;

/// Marks the costs of treatments whose command seems to run for a fixed time in the trials that count, with a sentence for
/// each workload.
pub(super) fn mark<'a>(
    summaries: &mut [TreatmentSummary],
    trials: impl Iterator<Item = &'a Trial>,
) -> Vec<String> {
    let mut times: BTreeMap<&str, BTreeMap<&str, Vec<f64>>> = BTreeMap::new();
    for trial in trials {
        let work = trial.work.as_ref();
        if work.is_some_and(|work| work.phrase == Work::ONCE)
            && let Some(elapsed) = trial.metrics.get(metric::ELAPSED.name)
        {
            let of = times.entry(&trial.treatment.workload).or_default();
            let own = of.entry(&trial.treatment.label).or_default();
            own.push(elapsed.quantity.value);
        }
    }
    let mut lines = Vec::new();
    for (workload, of) in times {
        let mut own: Vec<&mut TreatmentSummary> = summaries.iter_mut().collect();
        own.retain(|summary| of.contains_key(summary.treatment.label.as_str()));
        let mut kinds = own.iter().map(|summary| summary.treatment.kind());
        let share_kernel = kinds.all(|kind| SHARE_KERNEL.contains(&kind));
        let times: Vec<&[f64]> = of.values().map(Vec::as_slice).collect();
        let Some((shortest, longest)) = fixed(&times, share_kernel) else {
            continue;
        };
        for metric in own.iter_mut().flat_map(|summary| &mut summary.metrics) {
            let declared = metric::lookup(&metric.name);
            metric.lacks_work = declared.is_some_and(metric::Metric::is_per_work);
        }
        let shown = |seconds| Quantity::new(seconds, Unit::from_base(Base::Second)).to_string();
        lines.push(format!(
            "Each run of {workload} took {} to {}, in {}: a command that runs for a fixed time does more work where it is \
             cheaper, so nothing is claimed about its CPU time or energy for a run. Give the number that it prints as its work \
             (--work 'REGEX' UNIT, or `work` in a plan), or --work 1 run where each run does the same work.",
            shown(shortest),
            shown(longest),
            counted(times.len(), "treatment"),
        ));
    }
    lines
}

/// The shortest and the longest mean time of treatments whose runs seem to end by the clock; `None` for others.
///
/// In guests with kernels of their own the same work takes another time, so means that agree are enough. On one kernel the
/// same work takes the same time, too: there each run must take a whole number of seconds.
fn fixed(treatments: &[&[f64]], share_kernel: bool) -> Option<(f64, f64)> {
    let mean = |values: &&[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let (low, high) = extremes(treatments.iter().map(mean));
    if !(low >= SHORTEST_SECONDS && high <= low * (1.0 + AGREES_WITHIN)) {
        return None;
    }
    let is_whole = || {
        let (shortest, longest) = extremes(treatments.iter().copied().flatten().copied());
        let whole = (shortest + EARLY_SECONDS).floor();
        whole >= 1.0 && longest <= whole + OVERTIME_SECONDS
    };
    let compares = treatments.len() > 1 && !share_kernel;
    (compares || is_whole()).then_some((low, high))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_end_by_the_clock_are_told_from_runs_that_end_with_their_work() {
        let is_fixed =
            |treatments: &[&[f64]], share_kernel| fixed(treatments, share_kernel).is_some();
        // wrk -d2s, natively and in a VM.
        assert!(is_fixed(&[&[2.006, 2.01], &[2.03, 2.02]], false));
        // A VM that takes longer for the same work.
        assert!(!is_fixed(&[&[2.0, 2.01], &[2.2, 2.21]], false));
        // The same work on one kernel, and a load of 10 s.
        assert!(!is_fixed(&[&[1.43, 1.44], &[1.44, 1.45]], true));
        assert!(is_fixed(&[&[10.002, 10.003], &[10.01, 10.005]], true));
        assert!(is_fixed(&[&[9.995, 10.003]], true));
        assert!(!is_fixed(&[&[1.0, 1.3]], true));
        // Commands of milliseconds.
        assert!(!is_fixed(&[&[0.002], &[0.002]], false));
        assert!(!is_fixed(&[&[0.01], &[0.01]], true));
    }
}
