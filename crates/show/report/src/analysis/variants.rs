// SPDX-License-Identifier: Apache-2.0
//! What a run of variants shows beside the change on each platform: whether the tax of a platform differs between them,
//! and whether they do different amounts of work. The change of a tax is the ratio of a variant to the first one on a
//! platform, over the same ratio on the platform that taxes refer to (the interaction of platform and variant).

use super::{Comparison, Judgement, MetricSummary, TreatmentSummary, by_label, checks};
use std::collections::BTreeMap;
use vtax_core::{Quantity, Unit, metric};
use vtax_results::Trial;
use vtax_results::stats;

/// Amounts of work that differ by more than this share are reported.
const OTHER_WORK: f64 = 0.02;

/// The kind of the platform that taxes refer to, where a plan has one; otherwise its first platform.
const REFERENCE: &str = "native";

/// The comparisons of taxes between variants in the headline metrics, not yet judged, each with its values by block.
pub(super) fn compare(
    summaries: &[TreatmentSummary],
    block_of: &BTreeMap<u32, u32>,
) -> Vec<(Comparison, checks::Pairs)> {
    let is_native = |of: &&TreatmentSummary| of.treatment.kind() == REFERENCE;
    let reference = summaries.iter().find(is_native).or(summaries.first());
    let Some(reference) = reference.map(|of| of.treatment.platform.as_str()) else {
        return Vec::new();
    };
    let labels = by_label(summaries);
    let mut found = Vec::new();
    for new in summaries {
        let baseline = new.treatment.baseline.as_deref();
        let Some(old) = baseline.and_then(|label| labels.get(label).copied()) else {
            continue;
        };
        if !is_across_variants(new, old) || new.treatment.platform == reference {
            continue;
        }
        let beside = [new, old].map(|of| on(reference, of, summaries));
        let [Some(new_there), Some(old_there)] = beside else {
            continue;
        };
        for metric in new.metrics.iter().filter(|metric| metric.headline) {
            let others = [old, new_there, old_there].map(|of| of.metric(&metric.name));
            if let [Some(a), Some(b), Some(c)] = others {
                found.extend(change((new, new_there), [metric, a, b, c], block_of));
            }
        }
    }
    found
}

/// Whether two treatments are of one platform and of two variants.
pub(crate) fn is_across_variants(new: &TreatmentSummary, old: &TreatmentSummary) -> bool {
    let (new, old) = (&new.treatment, &old.treatment);
    new.platform == old.platform && new.variant() != old.variant()
}

/// A sentence for each variant whose command does another amount of work in a trial than the first one's, before it ends.
pub(super) fn other_work<'a>(
    summaries: &[TreatmentSummary],
    trials: impl Iterator<Item = &'a Trial>,
) -> Vec<String> {
    let mut amounts: BTreeMap<&str, (f64, f64, Unit)> = BTreeMap::new();
    for trial in trials {
        let ends_itself = trial.metrics.contains_key(metric::ELAPSED.name);
        if let Some(work) = &trial.work
            && ends_itself
        {
            let label = trial.treatment.label.as_str();
            let own = amounts.entry(label).or_insert((0.0, 0.0, work.unit));
            *own = (own.0 + work.amount, own.1 + 1.0, own.2);
        }
    }
    let labels = by_label(summaries);
    let lines = summaries.iter().filter_map(|new| {
        let old = labels.get(new.treatment.baseline.as_deref()?).copied()?;
        let both = [new, old].map(|of| amounts.get(of.treatment.label.as_str()));
        let [Some((new_sum, new_n, unit)), Some((old_sum, old_n, other))] = both else {
            return None;
        };
        let (new_mean, old_mean) = (new_sum / new_n, old_sum / old_n);
        let is_same = (new_mean / old_mean).ln().abs() <= OTHER_WORK.ln_1p();
        if !is_across_variants(new, old) || unit != other || is_same {
            return None;
        }
        let shown = |amount| Quantity::new(amount, *unit).to_string();
        Some(format!(
            "{}: a trial does {}, and {} with variant {}: costs for a unit of work compare, the time until the command ended \
             does not.",
            new.treatment.label,
            shown(new_mean),
            shown(old_mean),
            old.treatment.variant().unwrap_or_default(),
        ))
    });
    lines.collect()
}

/// The same treatment on another platform, which may lack some of its factors.
fn on<'a>(
    platform: &str,
    treatment: &TreatmentSummary,
    summaries: &'a [TreatmentSummary],
) -> Option<&'a TreatmentSummary> {
    let own = &treatment.treatment;
    let is_same = |other: &&TreatmentSummary| {
        let other = &other.treatment;
        let mut levels = other.factors.iter();
        other.platform == platform
            && other.workload == own.workload
            && other.variant() == own.variant()
            && levels.all(|(factor, level)| own.factors.get(factor) == Some(level))
    };
    summaries.iter().find(is_same)
}

/// The ratio of two ratios, new over old on the platform and on the reference.
fn change(
    (new, reference): (&TreatmentSummary, &TreatmentSummary),
    [new_here, old_here, new_there, old_there]: [&MetricSummary; 4],
    block_of: &BTreeMap<u32, u32>,
) -> Option<(Comparison, checks::Pairs)> {
    let here = checks::pairs(new_here, old_here, block_of);
    let there = checks::pairs(new_there, old_there, block_of);
    let there: BTreeMap<u32, f64> = there
        .into_iter()
        .map(|(block, a, b)| (block, a / b))
        .collect();
    let pairs = here.into_iter().filter_map(|(block, new, old)| {
        let (one, other) = (new / old, *there.get(&block)?);
        (one.is_normal() && other.is_normal()).then_some((block, one, other))
    });
    let pairs: checks::Pairs = pairs.collect();
    let all = [new_here, old_here, new_there, old_there];
    let certainty = all
        .iter()
        .fold(new_here.certainty, |one, other| one.with(other.certainty));
    let (ratio, tax) = if certainty.is_exact() {
        let [a, b, c, d] = all.map(|of| of.description.mean);
        (stats::exact_ratio(a / b, c / d).ok()?, None)
    } else {
        let (own, other): (Vec<f64>, Vec<f64>) =
            pairs.iter().map(|(_, own, other)| (*own, *other)).unzip();
        let tax = stats::paired_tax(&own, &other).ok()?;
        (tax.ratio, Some(tax))
    };
    let sources = all.iter().map(|of| of.source);
    let comparison = Comparison {
        treatment: new.treatment.label.clone(),
        baseline: reference.treatment.label.clone(),
        workload: new.treatment.workload.clone(),
        platform: new.treatment.platform.clone(),
        variant: new.treatment.variant().map(str::to_owned),
        metric: new_here.name.clone(),
        title: new_here.title.clone(),
        better: new_here.better,
        headline: true,
        source: sources
            .reduce(|one, other| one.combine(other))
            .unwrap_or(new_here.source),
        modelled: all.iter().any(|of| of.modelled),
        ratio: Some(ratio),
        certainty,
        tax,
        judgement: Judgement {
            unsupported: (all.iter().filter_map(|of| of.unsupported()))
                .min_by_key(|one| one.values),
            lacks_work: all.iter().any(|of| of.lacks_work),
            by_model: all.iter().any(|of| of.is_by_model()),
            model_error: (all.iter().map(|of| of.model_error()))
                .try_fold(0.0_f64, |sum, one| Some(sum.hypot(one?))),
            ..Judgement::default()
        },
        note: None,
        withheld: None,
        machines: None,
    };
    Some((comparison, pairs))
}
