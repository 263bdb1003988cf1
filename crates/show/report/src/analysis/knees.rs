// SPDX-License-Identifier: Apache-2.0
//! Knees over trials: their intervals, and those of their ratios, which contain the steps between levels.

use super::{Comparison, MetricSummary, ObjectiveSummary, TreatmentSummary};
use std::collections::BTreeMap;
use vtax_core::{counted, metric};
use vtax_results::numbers::estimate;
use vtax_results::stats::{self, Effect, FEWEST_PAIRS, Knee, KneeRatio, Tax, Verdict};
use vtax_results::{Trial, offered_load};

/// The knee of a trial by the offered loads of all of its levels; `None` where none was judged.
pub(super) fn knee_of(trial: &Trial) -> Option<(u32, Knee)> {
    let judged = trial.phases.iter().filter_map(|phase| {
        let (level, kept) = (phase.level?, phase.kept?);
        Some((level.value, offered_load(level, &phase.metrics), kept))
    });
    let judged: Vec<(f64, f64, bool)> = judged.collect();
    // A level without any result is no phase.
    let next = trial.objective.as_ref().and_then(|one| one.next);
    let next = next.map(|next| next.value).filter(|next| {
        let mut judged = judged.iter();
        !judged.any(|(level, load, _)| level == next || load == next)
    });
    let runs = judged.iter().map(|(_, load, kept)| (*load, *kept));
    let runs: Vec<(f64, bool)> = runs.chain(next.map(|next| (next, false))).collect();
    Some((trial.index, stats::knee(&runs)?))
}

/// Gives the knee of a treatment the interval that contains the steps between levels; none where an end is open.
pub(super) fn widen(metrics: &mut [MetricSummary], objective: Option<&ObjectiveSummary>) {
    let Some(objective) = objective.filter(|one| !one.knees.is_empty()) else {
        return;
    };
    for knee in metrics.iter_mut().filter(|one| metric::KNEE.is(&one.name)) {
        let ends = over_trials(objective);
        knee.interval = ends
            .and_then(|ends| ends.closed())
            .filter(|ends| ends.contains(knee.description.mean));
    }
}

/// The knee over the trials of a treatment: its ends are ratios to 1.
pub(super) fn over_trials(objective: &ObjectiveSummary) -> Option<KneeRatio> {
    let one = Knee {
        low: 1.0,
        high: Some(1.0),
    };
    let knees = objective.knees.iter().map(|(_, knee)| (*knee, one));
    stats::knee_ratio(&knees.collect::<Vec<_>>())
}

/// Replaces the ratio of a comparison of knees by one that contains the steps and drops no trial.
pub(super) fn compare(
    comparison: &mut Comparison,
    (own, other): (&TreatmentSummary, &TreatmentSummary),
    block_of: &BTreeMap<u32, u32>,
) {
    let (Some(mine), Some(base)) = (&own.objective, &other.objective) else {
        return;
    };
    let by_block: BTreeMap<u32, Knee> = (base.knees.iter())
        .filter_map(|(trial, knee)| Some((*block_of.get(trial)?, *knee)))
        .collect();
    let pairs = (mine.knees.iter())
        .filter_map(|(trial, knee)| Some((*knee, *by_block.get(block_of.get(trial)?)?)));
    let pairs: Vec<(Knee, Knee)> = pairs.collect();
    if pairs.is_empty() {
        return;
    }
    comparison.note = bounds(own, other);
    let Some(found) = stats::knee_ratio(&pairs) else {
        (comparison.ratio, comparison.tax) = (None, None);
        comparison.add_note("no ratio: the knees allow any".to_owned());
        return;
    };
    comparison.judgement.knee = Some(found);
    comparison.ratio = Some(found.ratio);
    if comparison.certainty.is_exact() {
        return;
    }
    comparison.tax = Some(Tax {
        ratio: found.ratio,
        interval: found.closed(),
        paired: true,
        n: found.n,
        effect: comparison.tax.map_or(0.0, |tax| tax.effect),
        p: found.p,
        few: found.n < FEWEST_PAIRS,
        sd: None,
        sequential: false,
        controlled: false,
        typical: false,
        means: None,
    });
}

/// The verdict on a comparison of knees, which no step between levels may give.
pub(super) fn judge(comparison: &mut Comparison, minimum_effect: f64) {
    let Some(knee) = comparison.judgement.knee else {
        return;
    };
    if let (Some(tax), Some(ends)) = (&mut comparison.tax, knee.closed()) {
        let adjusted = &mut comparison.judgement.adjusted_interval;
        for interval in [&mut tax.interval, adjusted] {
            *interval = interval.map(|own| own.hull(ends));
        }
    }
    let ends = knee.closed();
    let effect = ends.and_then(|ends| Effect::from_interval(ends, minimum_effect));
    let shown = if knee.contains_one() {
        Verdict::NoDifferenceShown
    } else if comparison.certainty.is_exact() {
        stats::exact_verdict(knee.ratio, minimum_effect)
    } else if effect == Some(Effect::Excluded) {
        Verdict::Same
    } else {
        Verdict::Different
    };
    let is_significant = comparison.judgement.adjusted_p.is_none_or(|p| p < 0.05);
    // The end that is closed counts pairs, and nothing is known of the other: machines may disagree.
    let is_open_over_machines = comparison.judgement.over_machines && knee.closed().is_none();
    comparison.judgement.verdict = match comparison.judgement.verdict {
        Verdict::Different if is_open_over_machines => Verdict::NoDifferenceShown,
        Verdict::Different if knee.contains_one() => Verdict::NoDifferenceShown,
        _ if comparison.certainty.is_exact() => shown,
        Verdict::TooFewTrials if knee.n >= FEWEST_PAIRS => {
            if is_significant {
                shown
            } else {
                Verdict::NoDifferenceShown
            }
        }
        other => other,
    };
    comparison.judgement.effect = match comparison.judgement.verdict {
        Verdict::Different | Verdict::Same | Verdict::NoDifferenceShown => effect,
        _ => None,
    };
}

/// The knee of a treatment in words, with what broke the objective; `None` where it has no objective:
/// `qemu: 310 [290–330] request/s kept latency.p99 <= 20ms (n = 4); broken by p99 31 ms at …`.
pub fn knee_in_words(summary: &TreatmentSummary) -> Option<String> {
    let objective = summary.objective.as_ref()?;
    let text = &objective.text;
    let short = &summary.short;
    let of = |times: usize| format!("{times} of {}", counted(objective.trials, "trial"));
    let is_bound = objective.late + objective.unsupported > 0;
    let is_steady = summary.levels.is_empty();
    let mut line = match summary.metric(metric::KNEE.name) {
        Some(knee) => {
            let low = over_trials(objective).and_then(|ends| ends.low);
            let mean = knee.description.mean;
            let (bound, value) = if is_bound || objective.held_to_last > 0 {
                ("at least ", low.unwrap_or(mean))
            } else {
                ("", mean)
            };
            let shown = estimate(value, knee.interval, knee.unit).line();
            let n = knee.description.n;
            format!("{short}: {bound}{shown} kept {text} (n = {n})")
        }
        None if is_steady => {
            let limited = text.split_whitespace().next().unwrap_or_default();
            let limited = summary.metric(limited);
            if let Some(why) = limited.and_then(MetricSummary::unsupported) {
                return Some(format!("{short}: nothing is claimed of {text}: {why}"));
            }
            format!("{short}: {text} held in {}", of(objective.held_to_last))
        }
        None if is_bound => format!("{short}: no load is shown to keep {text}"),
        None => format!("{short}: no load kept {text}"),
    };
    let late = objective.late_from.as_ref();
    let late = late.map(|from| format!("the load generator was late from {from} on"));
    let few = objective.unsupported_from.as_ref();
    let few = few.map(|from| format!("requests are too few for its quantile from {from} on"));
    let of_ramp = |times: usize, what: &str| (times > 0 && !is_steady).then(|| what.to_owned());
    let (held, broken) = (objective.held_to_last, objective.broken_at_first);
    for (times, what) in [
        (held, of_ramp(held, "the highest load kept it")),
        (objective.late, late),
        (objective.unsupported, few),
        (broken, of_ramp(broken, "the lowest judged load broke it")),
    ] {
        line.extend(what.map(|what| format!("; in {} {what}", of(times))));
    }
    if let Some((first, others)) = objective.broke.split_first() {
        line.push_str(&format!("; broken by {first}"));
        if !others.is_empty() {
            line.push_str(", for instance");
        }
    }
    Some(line)
}

/// What a ratio of knees leaves out; `None` where every trial of both has its knee.
pub(crate) fn bounds(summary: &TreatmentSummary, baseline: &TreatmentSummary) -> Option<String> {
    let mut parts = Vec::new();
    for one in [summary, baseline] {
        let Some(objective) = &one.objective else {
            continue;
        };
        let late = "is a lower bound: the load generator was late";
        let few = "is a lower bound: requests are too few for its quantile";
        let broken = "is missing: the lowest judged load broke it";
        for (times, what) in [
            (objective.held_to_last, "is a lower bound"),
            (objective.late, late),
            (objective.unsupported, few),
            (objective.broken_at_first, broken),
        ] {
            if times > 0 {
                let trials = counted(times, "trial");
                parts.push(format!("in {trials} of {} the knee {what}", one.short));
            }
        }
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}
