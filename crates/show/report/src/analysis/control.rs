// SPDX-License-Identifier: Apache-2.0
//! The canary beside trials, as the control of comparisons: within a run, and the ratio of the hosts' speeds between two.
//!
//! The speed beside a trial is the mean of the readings before and after it, and the median of the parts: one of them can be as slow as
//! the placement of its threads. Costs in processor time have the speed
//! for a second of processor time as their control, all others that for a second of time, in which a canary also waits for a
//! processor.

use super::checks::Pairs;
use super::{BetweenRuns, Comparison, Control, MetricSummary, Read};
use serde::Serialize;
use std::collections::BTreeMap;
use vtax_core::{Base, Unit, counted, metric};
use vtax_results::numbers::percent;
use vtax_results::stats::{Interval, controlled_tax, mean, median};
use vtax_results::{Canary, Speed};

/// The speed beside a trial, as the median over the parts of the logarithm over the mean of the run.
#[derive(Debug, Clone, Copy)]
struct Beside {
    wall: f64,
    cpu: f64,
}

impl Beside {
    /// The control of a metric.
    fn of(self, metric: &str) -> f64 {
        if is_processor_time(metric) {
            self.cpu
        } else {
            self.wall
        }
    }
}

/// Whether the metric is a cost in processor time.
fn is_processor_time(name: &str) -> bool {
    name.split('.').next() == Some("cpu")
}

/// The speed of the host beside each trial of a run.
#[derive(Debug, Default)]
pub(super) struct Controls {
    beside: BTreeMap<u32, Beside>,
    /// The share of the canary's time in which it waited for a processor.
    waited: f64,
    speed: Option<HostSpeed>,
}

/// The speed of the host of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HostSpeed {
    /// SHA-256 of the canary's instructions.
    pub code: String,
    /// The mean of each part over the trials.
    pub parts: BTreeMap<String, PartSpeed>,
    /// How the speed for a second of time varied.
    pub wall: Variation,
    /// How the speed for a second of processor time varied.
    pub cpu: Variation,
}

/// The speed of a part of the canary: means of the logarithm of its rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PartSpeed {
    /// In a second of time.
    pub wall: f64,
    /// In a second of processor time.
    pub cpu: f64,
}

/// The variation of logarithms of speeds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Variation {
    /// The variance of the mean over blocks; `None` for a single block.
    pub of_mean: Option<f64>,
    /// The standard deviation of a trial's; `None` for a single trial.
    pub sd: Option<f64>,
}

/// A part that never waits for another thread, so that what it waited for is a processor.
const NEVER_WAITS: &str = "integer";

impl Controls {
    /// The speeds beside the trials that the statistics use. Without a canary, and where trials of one run had canaries with
    /// other instructions, there are none.
    pub fn from_trials(trials: &[Read]) -> Self {
        let with = trials.iter().filter(|read| read.counts).filter_map(|read| {
            let canary = read.trial.observation.canary.as_ref()?;
            Some((&read.trial, canary, speeds(canary)))
        });
        let with: Vec<_> = with.collect();
        let Some((_, first, first_parts)) = with.first() else {
            return Self::default();
        };
        if with.iter().any(|(_, canary, _)| canary.code != first.code) {
            return Self::default();
        }
        // A part that one trial lacks would be a difference between trials.
        let is_whole = |part: &&&str| with.iter().all(|(_, _, parts)| parts.contains_key(*part));
        let means = first_parts.keys().filter(is_whole).filter_map(|part| {
            let own = || with.iter().filter_map(|(_, _, parts)| parts.get(part));
            let mean_of = |of: fn(&PartSpeed) -> f64| mean(&own().map(of).collect::<Vec<_>>());
            let (wall, cpu) = mean_of(|of| of.wall).zip(mean_of(|of| of.cpu))?;
            Some(((*part).to_owned(), PartSpeed { wall, cpu }))
        });
        let means: BTreeMap<String, PartSpeed> = means.collect();
        let beside = with.iter().filter_map(|(trial, _, parts)| {
            let over_mean = |of: fn(&PartSpeed) -> f64| {
                let each = means.iter();
                let each = each.filter_map(|(part, mean)| Some(of(parts.get(&**part)?) - of(mean)));
                median(&each.collect::<Vec<f64>>())
            };
            let (wall, cpu) = over_mean(|of| of.wall).zip(over_mean(|of| of.cpu))?;
            Some((trial.index, trial.block, Beside { wall, cpu }))
        });
        let beside: Vec<(u32, u32, Beside)> = beside.collect();
        let waits = with.iter().filter_map(|(_, canary, _)| {
            let speed = canary.after.get(NEVER_WAITS)?;
            Some(1.0 - speed.per_second / speed.per_cpu_second)
        });
        let waited = mean(&waits.collect::<Vec<f64>>()).unwrap_or(0.0).max(0.0);
        let variation = |of: fn(&Beside) -> f64| {
            let all = beside.iter().map(|(_, block, beside)| (*block, of(beside)));
            Variation::over_blocks(&all.collect::<Vec<_>>())
        };
        Self {
            speed: (!means.is_empty()).then(|| HostSpeed {
                code: first.code.clone(),
                parts: means.clone(),
                wall: variation(|beside| beside.wall),
                cpu: variation(|beside| beside.cpu),
            }),
            waited,
            beside: beside
                .iter()
                .map(|(index, _, beside)| (*index, *beside))
                .collect(),
        }
    }

    /// The speed of the run's host.
    pub fn speed(&self) -> Option<&HostSpeed> {
        self.speed.as_ref()
    }

    /// Compares at equal speeds of the host, where the pairs correlate with the speed.
    pub fn apply(
        &self,
        comparison: &mut Comparison,
        pairs: &mut Pairs,
        [own, other]: [&MetricSummary; 2],
        block_of: &BTreeMap<u32, u32>,
    ) {
        let Some(tax) = comparison.tax else { return };
        // The coefficient is of logarithms, which a difference may not have.
        if tax.means.is_some()
            || metric::KNEE.is(&comparison.metric)
            || comparison.certainty.is_exact()
        {
            return;
        }
        let by_block = |of: &MetricSummary| -> BTreeMap<u32, f64> {
            let trials = of.values.iter().filter_map(|(index, _)| {
                let beside = self.beside.get(index)?;
                Some((*block_of.get(index)?, beside.of(&of.name)))
            });
            trials.collect()
        };
        let (own, other) = (by_block(own), by_block(other));
        let controls = pairs
            .iter()
            .filter_map(|(block, ..)| Some((*own.get(block)?, *other.get(block)?)));
        let controls: Vec<(f64, f64)> = controls.collect();
        let values: Vec<(f64, f64)> = pairs.iter().map(|(_, a, b)| (*a, *b)).collect();
        let Some(found) = controlled_tax(&tax, &values, &controls) else {
            return;
        };
        let width = |interval: Option<Interval>| interval.map(|ends| (ends.high / ends.low).ln());
        let Some((with, without)) = width(found.tax.interval).zip(width(tax.interval)) else {
            return;
        };
        for ((_, a, b), at_equal) in pairs.iter_mut().zip(found.pairs) {
            (*a, *b) = at_equal;
        }
        comparison.judgement.control = Some(Control {
            coefficient: found.coefficient,
            width: with / without,
        });
        (comparison.tax, comparison.ratio) = (Some(found.tax), Some(found.tax.ratio));
    }

    /// What the canary showed of the host, and which intervals it narrowed, in lines.
    pub fn lines(&self, comparisons: &[Comparison]) -> Vec<String> {
        let Some(speed) = &self.speed else {
            return Vec::new();
        };
        let mut lines = Vec::new();
        if let Some(sd) = speed.wall.sd {
            let waited = if self.waited >= WORTH_A_WORD {
                let share = percent(self.waited);
                format!(", and waited for a processor for {share} of its time")
            } else {
                String::new()
            };
            lines.push(format!(
                "Canary: the speed of this host beside the {} scatters by {}{waited}.",
                counted(self.beside.len(), "trial"),
                percent(sd.exp_m1()),
            ));
        }
        let headlines = || {
            let all = comparisons.iter().filter(|one| one.headline);
            all.filter(|one| one.tax.is_some_and(|tax| tax.paired))
        };
        let used = headlines().filter_map(|one| one.judgement.control);
        let widths: Vec<f64> = used.map(|control| control.width).collect();
        let all = headlines().count();
        if all > 0 {
            lines.push(match median(&widths) {
                Some(width) => format!(
                    "Ratios at equal speeds of this host: {} of {}, whose intervals are {:.2} times as wide as without the \
                     canary (median). The others do not correlate with its speed, or have fewer than 6 pairs.",
                    widths.len(),
                    counted(all, "headline comparison"),
                    width
                ),
                None => format!(
                    "The canary is left out of the {}: they do not correlate with this host's speed, or have fewer than 6 pairs.",
                    counted(all, "headline comparison")
                ),
            });
        }
        lines
    }
}

/// The standard deviation of how much of a change of the host's speed, or of the waiting on it, is in a cost.
const SHARE_OF_CHANGE: f64 = 0.5;
/// The standard error of the median of five values, in their standard deviations: √(π/2)/√5.
const ERROR_OF_MEDIAN: f64 = 0.56;
/// The standard deviation of normal values over the median of their absolute deviations.
const NORMAL_SCATTER: f64 = 1.4826;

/// Compares a metric of two runs at equal speeds of their hosts: times are multiplied by the ratio of the speeds for a second
/// of processor time, rates are divided by it, and all others keep their ratio. The ratio is the median over the canary's
/// parts. Its error widens the interval: the scatter over blocks, the disagreement of the parts, and what is not known of the
/// share of the change that is in the metric. Except for costs in processor time, the same share of the change of
/// how long the canary waited for a processor does, too.
pub(crate) fn between_runs(
    row: &mut Comparison,
    unit: Unit,
    [first, other]: [Option<&HostSpeed>; 2],
) {
    let Some(tax) = row.tax else { return };
    row.judgement.between_runs = Some(BetweenRuns::Unknown);
    let same = first
        .zip(other)
        .filter(|(first, other)| first.code == other.code);
    let change = |of: fn(&PartSpeed) -> f64, variation: fn(&HostSpeed) -> Variation| {
        let (before, after) = same?;
        let parts = before.parts.iter();
        let parts =
            parts.filter_map(|(name, before)| Some(of(after.parts.get(name)?) - of(before)));
        let parts: Vec<f64> = parts.collect();
        let change = median(&parts)?;
        let apart: Vec<f64> = parts.iter().map(|part| (part - change).abs()).collect();
        let disagreement = ERROR_OF_MEDIAN * NORMAL_SCATTER * median(&apart)?;
        let scatter = variation(before).of_mean? + variation(after).of_mean?;
        Some((change, scatter + disagreement.powi(2)))
    };
    let Some(((speed, of_speed), (wall, of_wall))) =
        change(|of| of.cpu, |host| host.cpu).zip(change(|of| of.wall, |host| host.wall))
    else {
        return;
    };
    let mut error = of_speed + (SHARE_OF_CHANGE * speed).powi(2);
    if !is_processor_time(&row.metric) {
        error += of_wall + (SHARE_OF_CHANGE * (wall - speed)).powi(2);
    }
    let shift = match (unit.base, unit.per) {
        (Base::Second | Base::Nanosecond, per) if per != Some(Base::Second) => speed,
        (_, Some(Base::Second)) => -speed,
        _ => 0.0,
    };
    if let Ok(at_equal) = tax.between_runs(shift, error) {
        (row.tax, row.ratio) = (Some(at_equal), Some(at_equal.ratio));
        let speed = speed.exp();
        row.judgement.between_runs = Some(BetweenRuns::ByCanary { speed });
    }
}

/// The least share of waiting that is reported.
const WORTH_A_WORD: f64 = 0.02;

/// The speed of each part beside a trial: the mean of the readings before and after it.
fn speeds(canary: &Canary) -> BTreeMap<&str, PartSpeed> {
    let both = canary.before.iter().filter_map(|(part, before)| {
        let after = canary.after.get(part)?;
        let mean = |of: fn(&Speed) -> f64| of(before).ln().midpoint(of(after).ln());
        let (wall, cpu) = (mean(|of| of.per_second), mean(|of| of.per_cpu_second));
        let is_known = wall.is_finite() && cpu.is_finite();
        is_known.then_some((part.as_str(), PartSpeed { wall, cpu }))
    });
    both.collect()
}

impl Variation {
    /// The variation over blocks, whose trials lie close together in time. `speeds` has the block of each.
    fn over_blocks(speeds: &[(u32, f64)]) -> Self {
        let mut blocks: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for (block, speed) in speeds {
            blocks.entry(*block).or_default().push(*speed);
        }
        let all: Vec<f64> = speeds.iter().map(|(_, speed)| *speed).collect();
        let means: Vec<f64> = blocks.values().filter_map(|of| mean(of)).collect();
        Self {
            of_mean: variance(&means).map(|of| of / means.len() as f64),
            sd: variance(&all).map(f64::sqrt),
        }
    }
}

/// The variance of values; `None` for fewer than two.
fn variance(values: &[f64]) -> Option<f64> {
    let centre = mean(values)?;
    let squares: f64 = values.iter().map(|value| (value - centre).powi(2)).sum();
    (values.len() > 1).then(|| squares / (values.len() - 1) as f64)
}
