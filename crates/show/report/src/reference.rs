// SPDX-License-Identifier: Apache-2.0
//! The runs by which a gate judges the last run of a series.
//!
//! A worse level does not become the reference by lasting: the reference is the best level since the last run that a person
//! accepted, without the runs that missed the gate themselves. The scatter from run to run is that within all levels.

use crate::history::{Point, Series, geometric_mean};
use vtax_results::limit::Gate;
use vtax_results::stats::{Interval, RunValue, ratio_to_window};

/// The last run of a series and the runs that it is judged by.
pub(crate) struct Reference<'a> {
    /// The runs of the reference level; of an exact series the best one alone.
    pub(crate) window: Vec<&'a Point>,
    /// Runs of each other level, for the scatter from run to run.
    others: Vec<Vec<&'a Point>>,
    /// The last run.
    pub(crate) new: &'a Point,
    /// Runs after the reference level that are worse and not accepted.
    pub(crate) left_out: usize,
    /// The first of them.
    pub(crate) worse_since: Option<usize>,
}

impl<'a> Reference<'a> {
    /// The reference of run `last`. `accepted` is the last run that was accepted; intervals have the level `confidence`. `None`
    /// where run `last` has no value.
    pub(crate) fn find(
        series: &'a Series,
        gate: &Gate,
        last: usize,
        accepted: Option<usize>,
        confidence: f64,
    ) -> Option<Self> {
        let (new, before) = series.points.split_last()?;
        if new.run != last {
            return None;
        }
        let start = accepted.unwrap_or(0);
        let (earlier, since): (Vec<&Point>, Vec<&Point>) =
            before.iter().partition(|point| point.run < start);
        let mut found = Self {
            window: Vec::new(),
            others: levels(series, &earlier),
            new,
            left_out: 0,
            worse_since: None,
        };
        if series.exact {
            let is_better = |a: &Point, b: &Point| gate.is_better(a.value, b.value);
            let best = since
                .into_iter()
                .reduce(|best, one| if is_better(best, one) { best } else { one });
            found.window.extend(best);
            return Some(found);
        }
        let mut all = levels(series, &since);
        let centre = |level: &[&Point]| {
            geometric_mean(&level.iter().map(|point| point.value).collect::<Vec<_>>())
        };
        let centres = all.iter().map(|level| centre(level)).enumerate();
        let best = centres.reduce(|best, one| {
            if gate.is_better(one.1, best.1) {
                one
            } else {
                best
            }
        });
        let worse = all.split_off(best.map_or(0, |(best, _)| best + 1));
        let best = all.pop().unwrap_or_default();
        found.others.extend(all);
        for one in worse.iter().flatten() {
            found.leave_out(one);
        }
        found.others.extend(worse);
        for point in best {
            let judged = found.interval(point, confidence);
            let is_missed = judged.is_some_and(|(_, ends)| {
                !gate.allows(ends.low) && !gate.allows(ends.high) && Some(point.run) != accepted
            });
            if is_missed {
                found.leave_out(point);
            } else {
                found.window.push(point);
            }
        }
        Some(found)
    }

    fn leave_out(&mut self, point: &Point) {
        self.left_out += 1;
        let since = self.worse_since.map_or(point.run, |run| run.min(point.run));
        self.worse_since = Some(since);
    }

    fn interval(&self, of: &Point, confidence: f64) -> Option<(f64, Interval)> {
        let values = |level: &[&Point]| level.iter().map(|point| point.with_error()).collect();
        let window: Vec<RunValue> = values(&self.window);
        let others: Vec<Vec<RunValue>> = self.others.iter().map(|level| values(level)).collect();
        ratio_to_window(&window, &others, of.with_error(), confidence)
    }

    /// The ratio of the last run to the reference, with its interval; `None` where the runs are too few.
    pub(crate) fn ratio(&self, confidence: f64) -> Option<(f64, Interval)> {
        self.interval(self.new, confidence)
    }
}

/// The points of each level of a series.
fn levels<'a>(series: &Series, points: &[&'a Point]) -> Vec<Vec<&'a Point>> {
    let level_of = |run: usize| {
        let changes = series.changes.iter();
        changes.filter(|change| change.since <= run).count()
    };
    let apart = |a: &&Point, b: &&Point| level_of(a.run) == level_of(b.run);
    points.chunk_by(apart).map(<[&Point]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_core::Source;
    use vtax_results::Better;
    use vtax_results::stats::{OwnError, Random, mean};
    use vtax_testkit::results::normal;

    /// Runs of five pairs. A run scatters by `between` around its level, its pairs by 5 %; the last run's by `within`.
    fn series(random: &mut Random, levels: &[f64], between: f64, within: f64) -> Series {
        let last = levels.len() - 1;
        let points = levels.iter().enumerate().map(|(run, level)| {
            let scatter = if run == last { within } else { 0.05 };
            let centre = level.ln() + between * normal(random);
            let pairs: Vec<f64> = (0..5).map(|_| centre + scatter * normal(random)).collect();
            let middle = mean(&pairs).unwrap();
            let squares = pairs
                .iter()
                .map(|pair| (pair - middle).powi(2))
                .sum::<f64>();
            Point {
                run,
                value: middle.exp(),
                interval: None,
                own: Some(OwnError {
                    variance: squares / 4.0 / 5.0,
                    degrees: 4.0,
                }),
            }
        });
        Series {
            treatment: "vm".to_owned(),
            platform: "vm".to_owned(),
            variant: None,
            baseline: Some("native".to_owned()),
            metric: "cpu.per_work".to_owned(),
            title: "CPU".to_owned(),
            unit: None,
            better: Better::Lower,
            source: Source::Measured,
            modelled: false,
            exact: false,
            points: points.collect(),
            changes: Vec::new(),
        }
    }

    /// How often of `sets` histories the last run misses a gate of +5 %, and how often it passes.
    fn judged(sets: u32, levels: &[f64], between: f64, within: f64) -> (u32, u32) {
        let gate: Gate = "cpu.per_work > +5%".parse().unwrap();
        let (mut missed, mut passed) = (0, 0);
        for seed in 0..sets {
            let mut random = Random::new(u64::from(seed) + 17);
            let mut series = series(&mut random, levels, between, within);
            series.find_changes(0.02);
            let found = Reference::find(&series, &gate, levels.len() - 1, None, 0.95).unwrap();
            if let Some((_, ends)) = found.ratio(0.95) {
                missed += u32::from(!gate.allows(ends.low));
                passed += u32::from(gate.allows(ends.high));
            }
        }
        (missed, passed)
    }

    fn step(nights: usize, at: usize, size: f64) -> Vec<f64> {
        (0..nights)
            .map(|night| if night < at { 1.0 } else { size })
            .collect()
    }

    #[test]
    fn at_the_limit_a_gate_is_missed_as_seldom_as_its_level_promises() {
        for (runs, between, within) in [
            (5, 0.02, 0.05),
            (9, 0.02, 0.05),
            (21, 0.02, 0.05),
            (9, 0.0, 0.05),
            (9, 0.05, 0.05),
            (9, 0.02, 0.4),
            (9, 0.0, 0.4),
        ] {
            let (missed, passed) = judged(400, &step(runs, runs - 1, 1.05), between, within);
            println!(
                "{runs} runs, between {between}, last {within}: {missed} missed, {passed} passed of 400"
            );
            // 2.5 % on each side; 5 % is four standard deviations of 400 beyond.
            assert!(
                missed <= 20 && passed <= 20,
                "{runs} {between} {within}: {missed} {passed}"
            );
        }
    }

    #[test]
    fn identical_runs_miss_nothing_and_a_regression_is_missed_on_its_first_night_and_ever_after() {
        let (missed, passed) = judged(200, &step(12, 12, 1.0), 0.02, 0.05);
        println!("identical: {missed} missed, {passed} passed of 200");
        assert!(missed <= 2, "{missed}");
        for after in [1, 2, 3, 5, 8, 12] {
            let (missed, passed) = judged(100, &step(10 + after, 10, 1.2), 0.02, 0.05);
            println!("+20 %, night {after} after it: {missed} missed, {passed} passed of 100");
            assert!(missed >= 75 && passed <= 1, "{after}: {missed} {passed}");
        }
        for after in [1, 4, 8] {
            let (missed, passed) = judged(100, &step(10 + after, 10, 1.1), 0.02, 0.05);
            println!("+10 %, night {after} after it: {missed} missed, {passed} passed of 100");
        }
    }

    #[test]
    fn a_creep_of_one_percent_a_night_is_missed_in_the_end() {
        let levels: Vec<f64> = (0..20).map(|night| 1.01f64.powi(night)).collect();
        let (missed, passed) = judged(50, &levels, 0.01, 0.02);
        println!("creep to 1.21: {missed} missed, {passed} passed of 50");
        assert!(missed >= 40 && passed == 0, "{missed} {passed}");
    }

    #[test]
    fn an_accepted_run_is_the_reference_from_its_night_on() {
        let gate: Gate = "cpu.per_work > +5%".parse().unwrap();
        let mut random = Random::new(3);
        let mut series = series(&mut random, &step(16, 10, 1.2), 0.01, 0.02);
        series.find_changes(0.02);
        let of = |accepted| Reference::find(&series, &gate, 15, accepted, 0.95).unwrap();
        let before = of(None);
        assert_eq!((before.worse_since, before.left_out), (Some(10), 5));
        assert_eq!(before.window.len(), 10);
        let since = of(Some(10));
        assert_eq!((since.worse_since, since.window.len()), (None, 5));
        let (ratio, _) = since.ratio(0.95).unwrap();
        assert!((0.9..1.1).contains(&ratio), "{ratio}");
        // The first run after an accepted one is judged by the scatter of the earlier level.
        let (first, _) = of(Some(14)).ratio(0.95).unwrap();
        assert!((0.9..1.1).contains(&first), "{first}");
        // A level that is better is the reference without a word.
        let up: Gate = "cpu.per_work < -5%".parse().unwrap();
        let better = Reference::find(&series, &up, 15, None, 0.95).unwrap();
        assert_eq!((better.worse_since, better.window.len()), (None, 5));
    }
}
