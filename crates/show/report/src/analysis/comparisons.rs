// SPDX-License-Identifier: Apache-2.0
//! Each treatment against its baseline: ratios, their certainty, and the verdicts.

use super::checks::Pairs;
use super::comparison::bounds_in_words;
use super::energy::{IdlePower, is_above_idle};
use super::{
    Comparison, Judgement, MetricSummary, Needed, Read, TreatmentSummary, by_label, checks, knees,
};
use std::collections::BTreeMap;
use vtax_core::{counted, metric};
use vtax_results::numbers::{level, percent};
use vtax_results::stats::{
    self, Bounds, Effect, FEWEST_PAIRS, Interval, Judged, NoTax, Tax, Verdict,
};

/// The block of each trial, by its index.
pub(super) fn blocks(trials: &[Read]) -> BTreeMap<u32, u32> {
    let trials = trials.iter().map(|read| &read.trial);
    trials.map(|trial| (trial.index, trial.block)).collect()
}

/// The place of each trial in its block, in the order of the schedule.
pub(super) fn places(block_of: &BTreeMap<u32, u32>) -> BTreeMap<u32, usize> {
    let mut lengths: BTreeMap<u32, usize> = BTreeMap::new();
    let trials = block_of.iter().map(|(index, block)| {
        let length = lengths.entry(*block).or_default();
        *length += 1;
        (*index, *length)
    });
    trials.collect()
}

/// Every treatment against its baseline. With `idle`, energy above idle is compared by the ratio of means.
pub(super) fn compare_with_baselines(
    summaries: &[TreatmentSummary],
    block_of: &BTreeMap<u32, u32>,
    idle: Option<&IdlePower>,
) -> Vec<Comparison> {
    let labels = by_label(summaries);
    let mut comparisons = Vec::new();
    for summary in summaries {
        let baseline = summary.treatment.baseline.as_deref();
        let Some(baseline) = baseline.and_then(|label| labels.get(label)) else {
            continue;
        };
        let (own, base) = (&summary.treatment, &baseline.treatment);
        for (metric, other) in summary.beside(baseline) {
            let sampled = |other: &MetricSummary| {
                let pairs = checks::pairs(metric, other, block_of);
                let are_differences = is_above_idle(metric) && is_above_idle(other);
                if let Some(idle) = idle
                    && are_differences
                    && are_enough(&pairs, [metric, other])
                {
                    let common = idle.common([summary, baseline], metric, &pairs, block_of);
                    let (own, other) = values(&pairs);
                    return stats::ratio_of_means(&own, &other, common);
                }
                tax_of(metric, other, &pairs)
            };
            let mut comparison = Comparison::new(own, base, metric, other, sampled);
            if let (None, Some(tax), Some(other)) = (&comparison.note, comparison.tax, other) {
                let dropped = metric.values.len() + other.values.len() - 2 * tax.n;
                if !tax.paired {
                    let unpaired = "blocks are incomplete: compared without pairing";
                    comparison.add_note(unpaired.to_owned());
                } else if dropped > 0 {
                    let trials = counted(dropped, "trial");
                    comparison
                        .add_note(format!("{trials} without a partner in its block left out"));
                }
            }
            if metric::KNEE.is(&metric.name) {
                knees::compare(&mut comparison, (summary, baseline), block_of);
            }
            comparisons.push(comparison);
        }
    }
    comparisons
}

/// The tax, from pairs by block where every trial has a partner or at least four pairs exist, otherwise from unpaired
/// trials.
fn tax_of(metric: &MetricSummary, baseline: &MetricSummary, pairs: &Pairs) -> Result<Tax, NoTax> {
    if !are_enough(pairs, [metric, baseline]) {
        return unpaired(metric, baseline);
    }
    let (own, other) = values(pairs);
    stats::paired_tax(&own, &other)
}

/// Whether every trial has a partner, or at least four pairs exist.
fn are_enough(pairs: &Pairs, both: [&MetricSummary; 2]) -> bool {
    pairs.len() >= FEWEST_PAIRS || both.iter().all(|of| of.values.len() == pairs.len())
}

fn values(pairs: &Pairs) -> (Vec<f64>, Vec<f64>) {
    pairs.iter().map(|(_, own, other)| (*own, *other)).unzip()
}

/// The tax from unpaired trials.
pub(crate) fn unpaired(metric: &MetricSummary, baseline: &MetricSummary) -> Result<Tax, NoTax> {
    let [own, other] = [metric, baseline]
        .map(|of| -> Vec<f64> { of.values.iter().map(|(_, value)| *value).collect() });
    stats::unpaired_tax(&own, &other)
}

/// Adjusts p within each family (the headlines, and the rest) and sets the verdicts. Exact ratios need no test. A quantile
/// that the trials do not support, and joules of a model, are in no family.
pub fn judge<'a>(comparisons: impl IntoIterator<Item = &'a mut Comparison>, minimum_effect: f64) {
    let mut comparisons: Vec<&mut Comparison> = comparisons.into_iter().collect();
    for one in &mut comparisons {
        let Some(ratio) = one.ratio else { continue };
        if let Some(unsupported) = one.judgement.unsupported {
            one.judgement.verdict = Verdict::Unsupported;
            one.add_note(unsupported.to_string());
        } else if one.judgement.lacks_work {
            one.judgement.verdict = Verdict::NoWork;
        } else if one.certainty.is_exact() {
            one.judgement.verdict = stats::exact_verdict(ratio, minimum_effect);
            let point = Interval {
                low: ratio,
                high: ratio,
            };
            one.judgement.effect = Effect::from_interval(point, minimum_effect);
        } else if one.judgement.by_model
            && let Some(tax) = one.tax
        {
            one.judgement.verdict = match stats::verdict(&tax, minimum_effect) {
                few @ Verdict::TooFewTrials => few,
                _ => Verdict::Modelled,
            };
            one.judgement.confidence = Some(stats::CONFIDENCE);
        }
    }
    for headline in [true, false] {
        let mut family: Vec<_> = comparisons.iter_mut().collect();
        family.retain(|one| {
            let is_judged = one.judgement.verdict == Verdict::NoRatio;
            one.headline == headline && one.tax.is_some() && is_judged
        });
        let taxes: Vec<Tax> = family.iter().filter_map(|one| one.tax).collect();
        let judged = stats::judge_family(&taxes, minimum_effect);
        for ((comparison, tax), judged) in family.into_iter().zip(&taxes).zip(judged) {
            let effect = if judged.verdict == Verdict::TooFewTrials {
                None
            } else {
                let printed = judged.interval.or(judged.open.map(Bounds::hull));
                printed.and_then(|ends| Effect::from_interval(ends, minimum_effect))
            };
            comparison.judgement = Judgement {
                adjusted_p: Some(judged.adjusted_p),
                family: taxes.len(),
                adjusted_interval: judged.interval,
                confidence: Some(judged.confidence),
                open: judged.open,
                verdict: judged.verdict,
                effect,
                ..comparison.judgement
            };
            if judged.verdict == Verdict::NoDifferenceShown {
                comparison.judgement.needed = needed(comparison, minimum_effect);
            }
            if let Some(open) = judged.open {
                comparison.add_note(format!(
                    "the ratio is not bounded: {}",
                    bounds_in_words(open)
                ));
            }
            if let Some(why) = why_not_shown(tax, judged, taxes.len(), minimum_effect) {
                comparison.add_note(why);
            }
        }
    }
}

/// The reason why a comparison shows neither a difference nor equality although its own interval would; `None` where it would
/// not.
fn why_not_shown(tax: &Tax, judged: Judged, size: usize, minimum_effect: f64) -> Option<String> {
    if judged.verdict != Verdict::NoDifferenceShown {
        return None;
    }
    match stats::verdict(tax, minimum_effect) {
        Verdict::Different => Some(format!(
            "on its own Student’s p = {:.3}; adjusted for {size} comparisons {:.3}: more repetitions would decide",
            tax.p, judged.adjusted_p
        )),
        Verdict::Same => Some(format!(
            "on its own the 95 % interval lies within {}; the one for {size} comparisons does not: more repetitions \
             would decide",
            percent(minimum_effect)
        )),
        _ => None,
    }
}

/// The adjustment of the printed intervals of the headline comparisons, in words; `None` where each is the 95 %
/// interval of its comparison alone.
pub(crate) fn adjusted_in_words(comparisons: &[Comparison]) -> Option<String> {
    let mut headlines = comparisons.iter().filter(|one| one.headline);
    let (family, confidence) =
        headlines.find_map(|one| Some((one.judgement.family, one.judgement.confidence?)))?;
    (family > 1 && confidence > 0.95).then(|| {
        format!(
            "Intervals of ratios are adjusted for {}: each is at {}, so that they agree with Student’s adjusted p. The \
             95 % interval of each alone is in analysis.json.",
            counted(family, "headline comparison"),
            level(confidence)
        )
    })
}

/// Effect for the estimate of repetitions where the plan has no minimum effect.
const ASKED_EFFECT: f64 = 0.02;

/// The effect for the estimate of repetitions: the plan's minimum effect, or the default without one.
pub(crate) fn asked_effect(minimum_effect: f64) -> f64 {
    if minimum_effect > 0.0 {
        minimum_effect
    } else {
        ASKED_EFFECT
    }
}

fn needed(comparison: &Comparison, minimum_effect: f64) -> Option<Needed> {
    let (effect, had) = (asked_effect(minimum_effect), comparison.tax?.n);
    let n = comparison.pairs_to_show(effect)?;
    Some(Needed {
        effect,
        n,
        more: n.saturating_sub(had),
    })
}
