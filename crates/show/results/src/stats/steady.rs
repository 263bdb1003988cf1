// SPDX-License-Identifier: Apache-2.0
//! Classifies whether a trial ran steadily, after Barrett, Bolz-Tereick, Killick, Mount and Tratt (2017, "Virtual
//! machine warmup blows hot and cold"): find changepoints, then compare the segments.

use super::describe::{mean, median, quantile};
use super::trend::trend;
use crate::Better;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt;
use vtax_core::{Nanoseconds, SeriesKind};

/// Steadiness class of one series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SteadyState {
    /// One level throughout.
    Flat,
    /// The last level is the best one.
    WarmUp,
    /// An earlier level was better than the last one.
    Slowdown,
    /// The level changes in the last quarter or, in a short series, throughout.
    NoSteadyState,
    /// Trials of one treatment have different classes (never the class of a single series).
    Inconsistent,
    /// Fewer than `SHORTEST` seconds: no class.
    TooShort,
}

impl fmt::Display for SteadyState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Flat => "flat",
            Self::WarmUp => "warm-up",
            Self::Slowdown => "slowdown",
            Self::NoSteadyState => "no steady state",
            Self::Inconsistent => "inconsistent",
            Self::TooShort => "too short",
        })
    }
}

/// The shortest series that is classified, in points.
pub const SHORTEST: usize = 8;

/// Below this many points no changepoint is found in a straight line, however steep: a cut in the middle gains n ln 4,
/// and the penalty is 15 ln n. A trend test decides there.
const SHORTEST_WITH_CHANGEPOINTS: usize = 45;
/// Significance level of the trend test.
const TREND: f64 = 0.01;
/// Fewest points of a segment.
const SHORTEST_SEGMENT: usize = 3;
/// Relative difference below which two levels are the same.
const ONE_LEVEL: f64 = 0.03;

/// Classifies a series of rates taken at even intervals.
///
/// As in the paper, outliers are replaced, changepoints in mean and variance are found by PELT with a penalty of 15 log
/// n, segments that do not differ from the last are joined to it, and the last quarter must be one level. Simpler than
/// the paper: two segments are the same where their means differ by less than the larger of their standard deviations
/// or 3 % of the last level (the paper uses a variance and an absolute time, which have no meaning for rates). A series
/// of fewer than 45 points that would be flat by these rules has no steady state with a trend (Mann and Kendall, p <
/// 0.01) of more than 3 %.
pub fn classify(rates: &[f64], better: Better) -> SteadyState {
    let mut finite = rates.to_vec();
    finite.retain(|rate| rate.is_finite());
    if finite.len() < SHORTEST {
        return SteadyState::TooShort;
    }
    let series = without_outliers(&finite);
    let starts = changepoints(&series);
    let ends = starts.iter().copied().skip(1).chain([series.len()]);
    let bounds = starts.iter().zip(ends);
    let segments: Vec<Segment> = bounds
        .filter_map(|(start, end)| Segment::from_series(&series, *start, end))
        .collect();
    let Some(last) = segments.last() else {
        return SteadyState::TooShort;
    };
    let is_steady = |segment: &&Segment| segment.same_level(last);
    let steady = segments.iter().rev().take_while(is_steady).last();
    let steady_from = steady.map_or(last.start, |first| first.start);
    let mut others = segments.iter().filter(|segment| !is_steady(segment));
    let was_better = |segment: &Segment| match better {
        Better::Higher => segment.mean > last.mean,
        Better::Lower | Better::Neither => segment.mean < last.mean,
    };
    match others.clone().next() {
        None if has_trend(&finite) => SteadyState::NoSteadyState,
        None => SteadyState::Flat,
        Some(_) if steady_from > series.len() * 3 / 4 => SteadyState::NoSteadyState,
        Some(_) if others.any(was_better) => SteadyState::Slowdown,
        Some(_) => SteadyState::WarmUp,
    }
}

/// Whether a series too short for changepoints has a trend.
fn has_trend(series: &[f64]) -> bool {
    if series.len() >= SHORTEST_WITH_CHANGEPOINTS {
        return false;
    }
    let moves = trend(series).filter(|trend| trend.p < TREND);
    moves
        .zip(median(series))
        .is_some_and(|(trend, level)| trend.change.abs() > ONE_LEVEL * level.abs())
}

#[derive(Debug)]
struct Segment {
    start: usize,
    mean: f64,
    sd: f64,
}

impl Segment {
    fn from_series(series: &[f64], start: usize, end: usize) -> Option<Self> {
        let values = series.get(start..end)?;
        let mean = mean(values)?;
        let sd = super::describe::standard_deviation(values, mean).unwrap_or(0.0);
        Some(Self { start, mean, sd })
    }

    fn same_level(&self, last: &Self) -> bool {
        (self.mean - last.mean).abs() <= self.sd.max(last.sd).max(ONE_LEVEL * last.mean.abs())
    }
}

/// Replaces each outlier by the median, which keeps the time axis. An outlier is further than three times the 10-90 %
/// range from the median, in a window of 200 points, as in the paper. As many in a row on one side as a segment has are a
/// level, and stay.
fn without_outliers(series: &[f64]) -> Vec<f64> {
    // Each value with its replacement and the side on which it is an outlier.
    let mut found: Vec<(f64, f64, Ordering)> = Vec::with_capacity(series.len());
    for window in series.chunks(200) {
        let (Some(centre), Some(low), Some(high)) =
            (median(window), quantile(window, 0.1), quantile(window, 0.9))
        else {
            continue;
        };
        let fence = 3.0 * (high - low);
        found.extend(window.iter().map(|value| {
            let is_outlier = (value - centre).abs() > fence && fence > 0.0;
            let side = if is_outlier {
                value.total_cmp(&centre)
            } else {
                Ordering::Equal
            };
            (*value, centre, side)
        }));
    }
    let runs = found.chunk_by(|one, next| one.2 == next.2);
    let kept = runs.flat_map(|run| {
        run.iter().map(|(value, centre, side)| {
            if *side == Ordering::Equal || run.len() >= SHORTEST_SEGMENT {
                *value
            } else {
                *centre
            }
        })
    });
    kept.collect()
}

/// The starts of the segments, the first of which is 0, by PELT (Killick, Fearnhead and Eckley
/// 2012) with the cost of a normal model whose mean and variance both change.
fn changepoints(series: &[f64]) -> Vec<usize> {
    let n = series.len();
    // Centred and scaled, so that sums of squares keep their precision and the floor is relative.
    let centre = mean(series).unwrap_or(0.0);
    let distances = series.iter().map(|value| (value - centre).abs());
    let scale = distances.fold(1e-9 * centre.abs(), f64::max);
    if scale == 0.0 {
        return vec![0];
    }
    let mut sums = vec![(0.0, 0.0)];
    let mut running = (0.0, 0.0);
    for value in series {
        let value = (value - centre) / scale;
        running = (running.0 + value, running.1 + value * value);
        sums.push(running);
    }
    // Equal values have no variance; differences below 1 % of the level are ignored.
    let floor = (0.01 * (centre.abs() / scale).min(1.0)).powi(2).max(1e-6);
    let cost = |start: usize, end: usize| -> f64 {
        let (Some(from), Some(to)) = (sums.get(start), sums.get(end)) else {
            return f64::INFINITY;
        };
        let length = (end - start) as f64;
        let mean = (to.0 - from.0) / length;
        let variance = ((to.1 - from.1) / length - mean * mean).max(floor);
        length * (variance.ln() + 1.0)
    };
    let penalty = 15.0 * (n as f64).ln();
    let mut best = vec![f64::INFINITY; n + 1];
    let mut previous = vec![0usize; n + 1];
    if let Some(first) = best.first_mut() {
        *first = -penalty;
    }
    let mut candidates = vec![0usize];
    for end in SHORTEST_SEGMENT..=n {
        let total = |start: &usize| {
            best.get(*start).copied().unwrap_or(f64::INFINITY) + cost(*start, end) + penalty
        };
        let reachable = candidates
            .iter()
            .filter(|start| end - **start >= SHORTEST_SEGMENT);
        let Some((start, value)) = reachable
            .map(|start| (*start, total(start)))
            .min_by(|a, b| a.1.total_cmp(&b.1))
        else {
            continue;
        };
        candidates
            .retain(|start| end - start < SHORTEST_SEGMENT || total(start) - penalty <= value);
        candidates.push(end);
        if let (Some(best), Some(previous)) = (best.get_mut(end), previous.get_mut(end)) {
            (*best, *previous) = (value, start);
        }
    }
    let mut starts = Vec::new();
    let mut end = n;
    while end > 0 {
        end = previous.get(end).copied().unwrap_or(0);
        starts.push(end);
    }
    starts.reverse();
    starts
}

/// Whether readings are frequent enough for each rate of a `step` to be a sample of its own. With fewer, neighbouring rates
/// are interpolated from the same two readings. A period may be 5 % longer than the step, for the jitter of sampling.
pub fn has_reading_each(points: &[(Nanoseconds, f64)], step: Nanoseconds) -> bool {
    let (Some((first, _)), Some((last, _))) = (points.first(), points.last()) else {
        return false;
    };
    let periods = points.len() as f64 - 1.0;
    last.saturating_since(*first).as_secs_f64() <= 1.05 * periods * step.as_secs_f64()
}

/// Rates per `step` within `window`, from samples: a counter's increase per second, linearly interpolated between
/// samples; a gauge's mean. Whole steps only.
pub fn rates(
    points: &[(Nanoseconds, f64)],
    kind: SeriesKind,
    window: (Nanoseconds, Nanoseconds),
    step: Nanoseconds,
) -> Vec<f64> {
    const MOST: u64 = 100_000;
    let span = window.1.saturating_since(window.0).0;
    let steps = span.checked_div(step.0).unwrap_or(0).min(MOST);
    let edge = |number: u64| window.0.0.saturating_add(number * step.0);
    let value_at = |edge: u64| {
        let next = points.partition_point(|(at, _)| at.0 <= edge);
        let (at, value) = points.get(next.checked_sub(1)?)?;
        let passed = edge.checked_sub(at.0)?;
        match points.get(next) {
            Some((next_at, next)) if next_at.0 > at.0 => {
                Some(value + (next - value) * (passed as f64 / (next_at.0 - at.0) as f64))
            }
            // Values beyond the last sample are unknown.
            _ => (passed == 0).then_some(*value),
        }
    };
    match kind {
        SeriesKind::Counter => {
            let values: Vec<Option<f64>> = (0..=steps).map(|at| value_at(edge(at))).collect();
            let pairs = values.iter().zip(values.iter().skip(1));
            let rises = pairs.filter_map(|(before, here)| Some((*here)? - (*before)?));
            rises.map(|rise| rise / step.as_secs_f64()).collect()
        }
        SeriesKind::Gauge => {
            let mean_from = |edge: u64| {
                let from = points.partition_point(|(at, _)| at.0 < edge);
                let later = points.iter().skip(from);
                let within = later.take_while(|(at, _)| at.0 < edge.saturating_add(step.0));
                mean(&within.map(|(_, value)| *value).collect::<Vec<f64>>())
            };
            (0..steps).filter_map(|at| mean_from(edge(at))).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_samples_only_where_each_has_a_reading() {
        let second = Nanoseconds(1_000_000_000);
        let every = |milliseconds: u64| -> Vec<(Nanoseconds, f64)> {
            let times = (0..30).map(|tick| Nanoseconds(tick * milliseconds * 1_000_000));
            times.map(|at| (at, 0.0)).collect()
        };
        let periods = [
            (500, true),
            (1000, true),
            (1020, true),
            (1250, false),
            (2000, false),
        ];
        for (milliseconds, has) in periods {
            assert_eq!(
                has_reading_each(&every(milliseconds), second),
                has,
                "{milliseconds}"
            );
        }
        assert!(!has_reading_each(&[], second));
    }
}
