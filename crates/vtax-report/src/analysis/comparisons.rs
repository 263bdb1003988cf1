//! Each treatment against its baseline: ratios, their certainty, and the verdicts.

use super::{Certainty, Disagreement, MetricSummary, Read, TreatmentSummary, checks, model, words};
use crate::numbers::{percent, ratio};
use crate::results::{Better, Treatment};
use crate::stats::{self, FEWEST_PAIRS, NoTax, Tax, Verdict, benjamini_hochberg, seed_of};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use vtax_core::{Source, counted, metric};

/// Comparisons by the treatment's label and the metric's name.
pub fn by_key(comparisons: &[Comparison]) -> HashMap<(&str, &str), &Comparison> {
    let keyed = comparisons.iter().map(|one| {
        let key = (one.treatment.as_str(), one.metric.as_str());
        (key, one)
    });
    keyed.collect()
}

/// One treatment against its baseline in one metric.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Label of the treatment.
    pub treatment: String,
    /// Label of its baseline.
    pub baseline: String,
    /// The workload.
    pub workload: String,
    /// The treatment's platform.
    pub platform: String,
    /// The metric's stable name.
    pub metric: String,
    /// Its name in tables.
    pub title: String,
    /// Which direction is better.
    pub better: Better,
    /// Whether a summary leads with it.
    pub headline: bool,
    /// The worse flag of the two.
    pub source: Source,
    /// Whether one of the two comes from a model, whatever else is true of it.
    pub modelled: bool,
    /// The ratio; `None` with a note where there is none.
    pub ratio: Option<f64>,
    /// What the repetitions of both vary; then the interval and the verdict speak of that.
    pub certainty: Certainty,
    /// What a sample says of the ratio; `None` where it is exact.
    pub tax: Option<Tax>,
    /// Student's p adjusted for the family of comparisons (Benjamini and Hochberg).
    pub adjusted_p: Option<f64>,
    /// How many comparisons that family has.
    pub family: usize,
    /// What so many pairs of identical treatments differ by, by chance: the noise floor, as a share. The interval is no
    /// narrower. `None` without four pairs.
    pub noise_floor: Option<f64>,
    /// Whether the interval excludes 1 but for the noise floor.
    pub is_below_floor: bool,
    /// What may be said.
    pub verdict: Verdict,
    /// How many repetitions would show how much, where neither a difference nor equality is shown.
    pub needed: Option<Needed>,
    /// The Hodges–Lehmann estimate of the ratio, where pairs are outliers by Tukey's fences.
    pub robust_ratio: Option<f64>,
    /// Whether the sample is of machines, each of which counts once, not of pairs.
    pub over_machines: bool,
    /// Why there is no ratio, or what else a reader must know.
    pub note: Option<String>,
    /// How much the machines that ran it disagree, where several did.
    pub machines: Option<Disagreement>,
}

/// How many repetitions show an effect with a chance of 80 %, by the scatter that was observed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Needed {
    /// The effect: the plan's minimum effect, 0.02 where it has none.
    pub effect: f64,
    /// Repetitions, in all.
    pub n: usize,
    /// Those beyond the ones that there are.
    pub more: usize,
}

impl Comparison {
    /// Of one metric, not yet judged. `other` is the baseline's, which may lack it; `sampled` is what
    /// their values say where these are a sample.
    pub(crate) fn of(
        treatment: &Treatment,
        baseline: &Treatment,
        metric: &MetricSummary,
        other: Option<&MetricSummary>,
        sampled: impl FnOnce(&MetricSummary) -> Result<Tax, NoTax>,
    ) -> Self {
        let certainty = other.map_or(metric.certainty, |other| {
            metric.certainty.with(other.certainty)
        });
        let found = match other {
            None => Err(NoTax::NoTrials),
            Some(other) if certainty.is_exact() => {
                let means = (metric.description.mean, other.description.mean);
                stats::exact_ratio(means.0, means.1).map(|ratio| (ratio, None))
            }
            Some(other) => sampled(other).map(|tax| (tax.ratio, Some(tax))),
        };
        Self {
            treatment: treatment.label.clone(),
            baseline: baseline.label.clone(),
            workload: treatment.workload.clone(),
            platform: treatment.platform.clone(),
            metric: metric.name.clone(),
            title: metric.title.clone(),
            better: metric.better,
            headline: metric.headline,
            source: other.map_or(metric.source, |other| metric.source.combine(other.source)),
            modelled: [Some(metric), other]
                .into_iter()
                .flatten()
                .any(|one| one.modelled),
            note: match &found {
                Err(none) => Some(none.to_string()),
                Ok(_) => other.and_then(|other| metric.certainty.apart(other.certainty)),
            },
            ratio: found.ok().map(|(ratio, _)| ratio),
            certainty,
            tax: found.ok().and_then(|(_, tax)| tax),
            adjusted_p: None,
            family: 0,
            noise_floor: None,
            is_below_floor: false,
            verdict: Verdict::NoRatio,
            needed: None,
            robust_ratio: None,
            over_machines: false,
            machines: None,
        }
    }

    /// Adds to what else a reader must know.
    pub(crate) fn add_note(&mut self, more: String) {
        match &mut self.note {
            Some(note) => *note = format!("{note}; {more}"),
            None => self.note = Some(more),
        }
    }

    /// What would show an effect, `5 more blocks would show 2 %`; `None` where that is not known.
    pub fn needed_in_words(&self) -> Option<String> {
        let Needed { effect, more, .. } = self.needed?;
        let effect = percent(effect);
        Some(match (more, self.over_machines, self.tax?.paired) {
            (0, ..) => format!("enough to show {effect}"),
            (more, true, _) => format!("{} would show {effect}", further(more, "machine")),
            (more, false, true) if self.certainty == Certainty::Seeds => {
                format!("{} would show {effect}", further(more, "seed"))
            }
            (more, false, true) => format!("{} would show {effect}", further(more, "block")),
            (more, false, false) => {
                format!("{} of each would show {effect}", further(more, "trial"))
            }
        })
    }

    /// Nothing is claimed of trials that are suspect.
    pub(crate) fn make_provisional(&mut self) {
        if self.ratio.is_none() {
            return;
        }
        self.verdict = Verdict::Suspect;
        self.needed = None;
        self.note = Some("the trials are suspect: run again on a quiet host".to_owned());
    }

    /// The ratio with its interval, `3.1× [2.9–3.3]`, or `exactly 3.1×`; `None` where there is none.
    pub fn ratio_in_words(&self) -> Option<String> {
        let interval = self.tax.and_then(|tax| tax.interval);
        let shown = ratio(self.ratio?, interval).line();
        Some(if self.certainty.is_exact() {
            format!("exactly {shown}")
        } else {
            shown
        })
    }

    /// How many repetitions the ratio comes from: `4 seeds`, `5 pairs`; `None` without a ratio.
    pub fn repetitions(&self) -> Option<String> {
        let (n, paired) = match self.tax {
            Some(tax) => (tax.n, tax.paired),
            None => (1, self.ratio.map(|_| true)?),
        };
        let repetition = match self.over_machines {
            true => "machine",
            false => self.certainty.repetition(paired),
        };
        Some(counted(n, repetition))
    }
}

/// `1 more block`, `2 more blocks`.
fn further(n: usize, noun: &str) -> String {
    counted(n, &format!("more {noun}"))
}

/// The block of each trial, by its index.
pub(super) fn blocks(trials: &[Read]) -> BTreeMap<u32, u32> {
    let trials = trials.iter().map(|read| &read.trial);
    trials.map(|trial| (trial.index, trial.block)).collect()
}

/// The place of each trial in its block, by the order of the schedule.
pub(super) fn places(block_of: &BTreeMap<u32, u32>) -> BTreeMap<u32, usize> {
    let mut lengths: BTreeMap<u32, usize> = BTreeMap::new();
    let trials = block_of.iter().map(|(index, block)| {
        let length = lengths.entry(*block).or_default();
        *length += 1;
        (*index, *length)
    });
    trials.collect()
}

pub(super) fn compare_with_baselines(
    summaries: &[TreatmentSummary],
    trials: &[Read],
) -> Vec<Comparison> {
    let block_of = blocks(trials);
    let labels = model::by_label(summaries);
    let mut comparisons = Vec::new();
    for summary in summaries {
        let Some(baseline_label) = &summary.treatment.baseline else {
            continue;
        };
        let Some(baseline) = labels.get(baseline_label.as_str()) else {
            continue;
        };
        for metric in summary
            .metrics
            .iter()
            .filter(|metric| metric.better != Better::Neither)
        {
            let other = baseline
                .metric(&metric.name)
                .filter(|other| other.unit == metric.unit);
            let seed = seed_of(&[
                "tax",
                &summary.treatment.label,
                baseline_label,
                &metric.name,
            ]);
            let mut dropped = 0;
            let sampled = |other: &MetricSummary| {
                let tax;
                (tax, dropped) = tax_of(metric, other, &block_of, seed);
                tax
            };
            let treatment = &summary.treatment;
            let mut comparison =
                Comparison::of(treatment, &baseline.treatment, metric, other, sampled);
            if comparison.ratio.is_some() && comparison.note.is_none() {
                comparison.note = if comparison.tax.is_some_and(|tax| !tax.paired) {
                    Some("blocks are incomplete: compared without pairing".to_owned())
                } else if dropped > 0 {
                    Some(format!(
                        "{} without a partner in its block left out",
                        counted(dropped, "trial")
                    ))
                } else if metric::KNEE.is(&metric.name) {
                    words::bounds(summary, baseline)
                } else {
                    None
                };
            }
            comparisons.push(comparison);
        }
    }
    comparisons
}

/// Pairs by block where blocks allow it: every trial has a partner, or at least four pairs exist.
/// Also says how many trials were left out for want of a partner.
fn tax_of(
    metric: &MetricSummary,
    baseline: &MetricSummary,
    block_of: &BTreeMap<u32, u32>,
    seed: u64,
) -> (Result<Tax, NoTax>, usize) {
    let pairs = checks::pairs(metric, baseline, block_of);
    let complete = pairs.len() == metric.values.len() && pairs.len() == baseline.values.len();
    if complete || pairs.len() >= FEWEST_PAIRS {
        let values = pairs.iter().map(|(_, value, other)| (*value, *other));
        let (treatment, baseline_values): (Vec<f64>, Vec<f64>) = values.unzip();
        let dropped = metric.values.len() + baseline.values.len() - 2 * pairs.len();
        return (
            stats::paired_tax(&treatment, &baseline_values, seed),
            dropped,
        );
    }
    let values = |metric: &MetricSummary| -> Vec<f64> {
        metric.values.iter().map(|(_, value)| *value).collect()
    };
    (
        stats::unpaired_tax(&values(metric), &values(baseline), seed),
        0,
    )
}

/// Adjusts p within each family (the headlines, and the rest) and gives the verdicts. What is exact
/// needs no test.
pub(crate) fn judge(comparisons: &mut [Comparison], minimum_effect: f64) {
    for comparison in comparisons.iter_mut() {
        if let (true, Some(ratio)) = (comparison.certainty.is_exact(), comparison.ratio) {
            comparison.verdict = stats::exact_verdict(ratio, minimum_effect);
        }
    }
    for headline in [true, false] {
        let family: Vec<&mut Comparison> = comparisons
            .iter_mut()
            .filter(|comparison| comparison.headline == headline && comparison.tax.is_some())
            .collect();
        let p: Vec<f64> = family
            .iter()
            .filter_map(|comparison| Some(comparison.tax?.student_p))
            .collect();
        let size = p.len();
        for (comparison, adjusted) in family.into_iter().zip(benjamini_hochberg(&p)) {
            let Some(tax) = comparison.tax else { continue };
            comparison.adjusted_p = Some(adjusted);
            comparison.family = size;
            comparison.verdict = stats::verdict(&tax, adjusted, minimum_effect);
            let alone = stats::verdict(&tax, tax.student_p, minimum_effect);
            if comparison.verdict != alone {
                comparison.add_note(format!(
                    "on its own p = {:.3}; among {size} comparisons {adjusted:.3}: more repetitions would decide",
                    tax.student_p
                ));
            } else if let Some(why) = why_not_shown(&tax, comparison.verdict, minimum_effect) {
                comparison.add_note(why);
            }
            if comparison.verdict == Verdict::NoDifferenceShown {
                comparison.needed = needed(&tax, minimum_effect);
            }
        }
    }
}

/// Why no difference is shown though the interval excludes 1; `None` where it does not.
fn why_not_shown(tax: &Tax, verdict: Verdict, minimum_effect: f64) -> Option<String> {
    let excludes = tax.interval.is_some_and(|interval| !interval.contains(1.0));
    if verdict != Verdict::NoDifferenceShown || !excludes {
        return None;
    }
    Some(match tax.p < 0.05 {
        true => format!(
            "the interval excludes 1, but the ratio is nearer to 1 than the minimum effect of {}",
            percent(minimum_effect)
        ),
        false => format!(
            "the interval excludes 1, but the permutation test does not (p = {:.3}): more repetitions would decide",
            tax.p
        ),
    })
}

/// Effect that is asked for where the plan has no smallest one.
const ASKED_EFFECT: f64 = 0.02;

/// The effect that more repetitions would show.
pub(crate) fn asked_effect(minimum_effect: f64) -> f64 {
    match minimum_effect > 0.0 {
        true => minimum_effect,
        false => ASKED_EFFECT,
    }
}

fn needed(tax: &Tax, minimum_effect: f64) -> Option<Needed> {
    let effect = asked_effect(minimum_effect);
    let n = stats::pairs_to_show(effect, tax.sd?)?;
    Some(Needed {
        effect,
        n,
        more: n.saturating_sub(tax.n),
    })
}
