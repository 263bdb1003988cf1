//! Each treatment against its baseline: ratios, their certainty, and the verdicts.

use super::{Certainty, Disagreement, MetricSummary, Read, TreatmentSummary, checks, knees, model};
use crate::numbers::{percent, ratio};
use crate::results::{Better, Treatment};
use crate::stats::{self, FEWEST_PAIRS, Interval, Judged, KneeRatio, NoTax, Tax, Verdict, seed_of};
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
    /// The interval that is printed: adjusted for that family, so that it agrees with `adjusted_p`. The 95 %
    /// interval of this comparison alone is in `tax`.
    pub adjusted_interval: Option<Interval>,
    /// Level of `adjusted_interval`, 0.95 or more.
    pub confidence: Option<f64>,
    /// The ratio of knees, whose ends may be open, where it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub knee: Option<KneeRatio>,
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
            adjusted_interval: None,
            confidence: None,
            knee: None,
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

    /// The interval that is printed: adjusted for the family of comparisons once that is known.
    pub fn interval(&self) -> Option<Interval> {
        self.adjusted_interval.or(self.tax?.interval)
    }

    /// The ratio with its interval, `3.1× [2.9–3.3]`, or `exactly 3.1×`; `None` where there is none.
    pub fn ratio_in_words(&self) -> Option<String> {
        let interval = self
            .interval()
            .or_else(|| knees::closed(self.knee.as_ref()?));
        let shown = ratio(self.ratio?, interval).line();
        if let Some(knee) = self.knee {
            return Some(match (knee.low, knee.high) {
                (Some(_), None) => format!("at least {shown}"),
                (None, Some(_)) => format!("at most {shown}"),
                _ => shown,
            });
        }
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
                } else {
                    None
                };
            }
            if metric::KNEE.is(&metric.name) {
                knees::compare(&mut comparison, (summary, baseline), &block_of);
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
        let taxes: Vec<Tax> = family.iter().filter_map(|one| one.tax).collect();
        let judged = stats::judge_family(&taxes, minimum_effect);
        for ((comparison, tax), judged) in family.into_iter().zip(&taxes).zip(judged) {
            comparison.adjusted_p = Some(judged.adjusted_p);
            comparison.family = taxes.len();
            comparison.adjusted_interval = judged.interval;
            comparison.confidence = Some(judged.confidence);
            comparison.verdict = judged.verdict;
            if let Some(why) = why_not_shown(tax, judged, taxes.len(), minimum_effect) {
                comparison.add_note(why);
            }
            if comparison.verdict == Verdict::NoDifferenceShown {
                comparison.needed = needed(tax, minimum_effect);
            }
        }
    }
}

/// Why neither a difference nor equality is shown though the comparison alone, or its interval, would; `None` where
/// they would not.
fn why_not_shown(tax: &Tax, judged: Judged, size: usize, minimum_effect: f64) -> Option<String> {
    if judged.verdict != Verdict::NoDifferenceShown {
        return None;
    }
    let excludes = judged.interval.is_some_and(|found| !found.contains(1.0));
    match stats::verdict(tax, tax.student_p, minimum_effect) {
        Verdict::Different => Some(format!(
            "on its own p = {:.3}; among {size} comparisons {:.3}: more repetitions would decide",
            tax.student_p, judged.adjusted_p
        )),
        Verdict::Same => Some(format!(
            "on its own the 95 % interval lies within {}; the one for {size} comparisons does not: more repetitions \
             would decide",
            percent(minimum_effect)
        )),
        _ if excludes && tax.p < 0.05 => Some(format!(
            "the interval excludes 1, but the ratio is nearer to 1 than the minimum effect of {}",
            percent(minimum_effect)
        )),
        _ if excludes => Some(format!(
            "the interval excludes 1, but the permutation test does not (p = {:.3}): more repetitions would decide",
            tax.p
        )),
        _ => None,
    }
}

/// How the printed intervals of the headline comparisons are adjusted; `None` where each is the 95 % interval
/// of its comparison alone.
pub(crate) fn adjusted_in_words(comparisons: &[Comparison]) -> Option<String> {
    let mut headlines = comparisons.iter().filter(|one| one.headline);
    let (family, confidence) = headlines.find_map(|one| Some((one.family, one.confidence?)))?;
    (family > 1 && confidence > 0.95).then(|| {
        format!(
            "Intervals of ratios are adjusted for {}: each is at {:.4} %, so that they agree with the adjusted p. The \
             95 % interval of each alone is in analysis.json.",
            counted(family, "headline comparison"),
            100.0 * confidence
        )
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
