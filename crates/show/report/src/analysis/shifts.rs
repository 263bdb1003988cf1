// SPDX-License-Identifier: Apache-2.0
//! Shift functions of latencies: the ratio of each quantile of a treatment to its baseline's, over the blocks.

use super::summaries::common_level;
use super::{
    Certainty, Fleet, Read, Sentence, Shift, ShiftPoint, TreatmentSummary, distinct, scenario,
};
use hdrhistogram::Histogram;
use std::collections::{BTreeMap, BTreeSet};
use vtax_core::owner::CLIENT;
use vtax_core::{Source, counted, metric};
use vtax_results::Trial;
use vtax_results::numbers::{percent, ratio};
use vtax_results::stats::{
    FEWEST_PAIRS, Interval, SHIFT_QUANTILES, Unsupported, Verdict, confidence_of_each, mean,
    shift_ratio, supports,
};

/// Least ratio that is a difference: the resolution of a histogram with three digits, on both sides.
const RESOLUTION: f64 = 0.002;
/// The share within which quantiles are the same, where the plan's minimum effect is smaller.
const SAME_WITHIN: f64 = 0.05;

impl Shift {
    /// The finding as a sentence of the report.
    pub(super) fn sentence(&self, platform: &str) -> Sentence {
        Sentence {
            text: self.text.clone(),
            workload: self.workload.clone(),
            platform: platform.to_owned(),
            metric: self.distribution.clone(),
            verdict: self.verdict(),
            source: self.source,
        }
    }
}

/// A distribution of the target's client at a load level.
#[derive(Debug, Clone, Copy)]
struct Of<'a> {
    distribution: &'a str,
    level: Option<&'a str>,
    level_is_kept: bool,
}

/// The histograms of a treatment and of its baseline in one block.
type Pair<'a> = (u32, &'a Histogram<u64>, &'a Histogram<u64>);

/// A shift function without its intervals, whose level depends on the number of quantiles of the workload.
struct Paired<'a> {
    summary: &'a TreatmentSummary,
    baseline: &'a TreatmentSummary,
    pairs: Vec<Pair<'a>>,
    quantiles: Vec<f64>,
    unsupported: Vec<Unsupported>,
    certainty: Certainty,
}

/// The shift functions of all workloads with latencies. Exact distributions are no sample and have none.
pub(super) fn shifts(
    summaries: &[TreatmentSummary],
    trials: &[Read],
    fleet: &Fleet,
    minimum_effect: f64,
) -> Vec<Shift> {
    let mut found = Vec::new();
    for workload in distinct(summaries.iter().map(|of| of.treatment.workload.as_str())) {
        let mut own: Vec<&TreatmentSummary> = summaries.iter().collect();
        own.retain(|of| of.treatment.workload == workload);
        let names = own.iter().flat_map(|of| &of.distributions);
        for name in distinct(names.map(|one| one.name.as_str())) {
            // Neighbours' clients have other names.
            let Some(distribution) = name.strip_prefix("client.") else {
                continue;
            };
            let mut with = own.clone();
            with.retain(|of| of.distributions.iter().any(|one| one.name == name));
            let level = common_level(&with, name);
            let of = Of {
                distribution,
                level: level.map(|level| level.name),
                level_is_kept: level.is_some_and(|level| level.is_kept),
            };
            let paired = with.iter().filter_map(|summary| {
                let label = summary.treatment.baseline.as_ref()?;
                let mut others = with.iter();
                let baseline = others.find(|other| other.treatment.label == *label)?;
                Paired::new(summary, baseline, trials, of)
            });
            let paired: Vec<Paired<'_>> = paired.collect();
            let confidence = confidence_of_each(paired.iter().map(|one| one.quantiles.len()).sum());
            let shifts = paired.iter();
            found.extend(shifts.filter_map(|one| one.shift(of, fleet, confidence, minimum_effect)));
        }
    }
    found
}

/// The histogram of each block of a treatment's trials that count, and their certainty; `None` where they are exact.
fn by_block<'a>(
    summary: &TreatmentSummary,
    trials: &'a [Read],
    of: Of<'_>,
) -> Option<(BTreeMap<u32, &'a Histogram<u64>>, Certainty)> {
    let label = &summary.treatment.label;
    let own = trials.iter().filter(|read| read.counts);
    let own: Vec<&Read> = own
        .filter(|read| read.trial.treatment.label == *label)
        .collect();
    let all: Vec<&Trial> = own.iter().map(|read| &read.trial).collect();
    let certainty = Certainty::from_trials(&all);
    if certainty.is_exact() {
        return None;
    }
    let histograms = own.iter().filter_map(|read| {
        let mut records = read.histograms.iter();
        let record = records.find(|record| {
            record.actor == CLIENT
                && record.metric == of.distribution
                && scenario::level_of(&read.trial, record).as_deref() == of.level
        })?;
        Some((read.trial.block, &record.histogram))
    });
    Some((histograms.collect(), certainty))
}

impl<'a> Paired<'a> {
    /// The pairs, and the quantiles that each of their histograms supports; `None` for too few pairs.
    fn new(
        summary: &'a TreatmentSummary,
        baseline: &'a TreatmentSummary,
        trials: &'a [Read],
        of: Of<'_>,
    ) -> Option<Self> {
        let (others, of_others) = by_block(baseline, trials, of)?;
        let (own, certainty) = by_block(summary, trials, of)?;
        let pair = |(block, own)| Some((block, own, *others.get(&block)?));
        let pairs: Vec<Pair<'a>> = own.into_iter().filter_map(pair).collect();
        if pairs.len() < FEWEST_PAIRS {
            return None;
        }
        let sizes = pairs.iter().map(|(_, one, two)| one.len().min(two.len()));
        let fewest = sizes.min()?;
        let (mut quantiles, mut unsupported) = (Vec::new(), Vec::new());
        for quantile in SHIFT_QUANTILES {
            match supports(fewest, quantile) {
                Ok(()) => quantiles.push(quantile),
                Err(why) => unsupported.push(why),
            }
        }
        Some(Self {
            summary,
            baseline,
            pairs,
            quantiles,
            unsupported,
            certainty: certainty.with(of_others),
        })
    }

    /// The shift function; `None` where no quantile has a ratio.
    fn shift(
        &self,
        of: Of<'_>,
        fleet: &Fleet,
        confidence: f64,
        minimum_effect: f64,
    ) -> Option<Shift> {
        let blocks = self.pairs.iter().map(|(block, ..)| *block);
        let machines: BTreeSet<usize> = blocks.map(|block| fleet.machine_of(block)).collect();
        let over_machines = machines.len() > 1;
        let units = over_machines.then_some(fleet);
        let point = |of: &f64| self.point(*of, units, confidence, minimum_effect);
        let points: Vec<ShiftPoint> = self.quantiles.iter().filter_map(point).collect();
        let metrics = [self.summary, self.baseline].into_iter().flat_map(|one| {
            let levels = one.levels.iter().flat_map(|level| &level.metrics);
            one.metrics.iter().chain(levels)
        });
        let is_one =
            |name: &str| metric::quantile(name).is_some_and(|(is, _)| is == of.distribution);
        let sources = metrics.filter(|of| is_one(&of.name)).map(|of| of.source);
        let mut shift = Shift {
            treatment: self.summary.treatment.label.clone(),
            baseline: self.baseline.treatment.label.clone(),
            workload: self.summary.treatment.workload.clone(),
            distribution: of.distribution.to_owned(),
            level: of.level.map(str::to_owned),
            level_is_kept: of.level_is_kept,
            n: if over_machines {
                machines.len()
            } else {
                self.pairs.len()
            },
            over_machines,
            certainty: self.certainty,
            confidence,
            source: sources.max().unwrap_or(Source::Measured),
            points,
            unsupported: self.unsupported.clone(),
            text: String::new(),
        };
        shift.text = self.text(&shift, minimum_effect)?;
        Some(shift)
    }

    /// One quantile. Each machine counts once where `machines` are given. `None` where a quantile is zero.
    fn point(
        &self,
        quantile: f64,
        machines: Option<&Fleet>,
        confidence: f64,
        minimum_effect: f64,
    ) -> Option<ShiftPoint> {
        let mut units: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        let (mut own, mut others) = (Vec::new(), Vec::new());
        for (place, (block, histogram, other)) in (0..).zip(&self.pairs) {
            let at = |of: &Histogram<u64>| {
                let value = of.value_at_quantile(quantile);
                (value > 0).then(|| (value as f64 / 1e9).ln())
            };
            let (value, other) = (at(histogram)?, at(other)?);
            own.push(value);
            others.push(other);
            let machine = machines.map(|fleet| fleet.machine_of(*block));
            let unit = machine.map_or(Some(place), |machine| u32::try_from(machine).ok())?;
            units.entry(unit).or_default().push(value - other);
        }
        let units: Vec<f64> = units.values().filter_map(|all| mean(all)).collect();
        let (ratio, interval) = shift_ratio(&units, confidence)?;
        let apart = widest(interval);
        let is_different = !interval.contains(1.0) && apart > minimum_effect.max(RESOLUTION);
        Some(ShiftPoint {
            quantile,
            treatment_seconds: mean(&own)?.exp(),
            baseline_seconds: mean(&others)?.exp(),
            ratio,
            interval,
            verdict: if is_different {
                Verdict::Different
            } else if apart <= same_within(minimum_effect) {
                Verdict::Same
            } else {
                Verdict::NoDifferenceShown
            },
        })
    }

    /// The sentence: the median, and the tail that differs or, without one, the last that is supported.
    fn text(&self, shift: &Shift, minimum_effect: f64) -> Option<String> {
        let at = |quantile: f64| {
            let mut points = shift.points.iter();
            points.find(|point| point.quantile == quantile)
        };
        let tails: Vec<&ShiftPoint> = TAILS.iter().filter_map(|(tail, _)| at(*tail)).collect();
        let is_different = |point: &&&ShiftPoint| point.verdict == Verdict::Different;
        let tail = tails.iter().find(is_different).or(tails.last()).copied();
        let clause = |point: &ShiftPoint| {
            let name = TAILS.iter().find(|(tail, _)| *tail == point.quantile);
            let name = name.map_or("the median", |(_, name)| *name);
            let shown = ratio(point.ratio, Some(point.interval)).line();
            match point.verdict {
                Verdict::Different => format!("{name} takes {shown} as long"),
                Verdict::Same => {
                    let share = percent(same_within(minimum_effect));
                    format!("{name} is the same within {share}")
                }
                _ => format!("no difference is shown in {name} ({shown})"),
            }
        };
        let named = [tail, at(0.5)].into_iter().flatten();
        let clauses: Vec<String> = named.map(clause).collect();
        if clauses.is_empty() {
            return None;
        }
        let level = shift.level.as_ref();
        let level = level.map_or_else(String::new, |level| format!(" at {level}"));
        let unit = if shift.over_machines {
            "machine"
        } else {
            shift.certainty.repetition(true)
        };
        let is_one_noun = self.summary.noun == self.baseline.noun;
        let name = |of: &'a TreatmentSummary| {
            if is_one_noun {
                &of.treatment.label
            } else {
                &of.noun
            }
        };
        let (own, other) = (name(self.summary), name(self.baseline));
        Some(format!(
            "Of the {} of {own} against {other} in {}{level}, {} (n = {}; intervals of all quantiles hold together).",
            shift.distribution,
            shift.workload,
            clauses.join(", and "),
            counted(shift.n, unit)
        ))
    }
}

/// The tails in sentences.
const TAILS: [(f64, &str); 3] = [
    (0.9, "the slowest tenth"),
    (0.95, "the slowest twentieth"),
    (0.99, "the slowest hundredth"),
];

/// The share within which quantiles are called the same.
fn same_within(minimum_effect: f64) -> f64 {
    minimum_effect.max(SAME_WITHIN)
}

/// The larger distance of an interval's ends from 1, as a share by which one side exceeds the other.
fn widest(interval: Interval) -> f64 {
    interval.high.max(1.0 / interval.low) - 1.0
}
