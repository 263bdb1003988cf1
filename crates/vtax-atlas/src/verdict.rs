//! The comparison of measured numbers with published ones: the same order, and ratios near the published ones.

use vtax_report::stats::Interval;

/// The largest factor between two ratios to the baseline that agree.
pub const NEAR: f64 = 1.5;

/// The published and the measured number of one system or level. Each may be missing.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Point {
    /// The published number: its lowest and highest value.
    pub published: Option<(f64, f64)>,
    /// Its position in the order that a chart without numbers shows.
    pub rank: Option<u32>,
    /// The measured mean and its interval.
    pub ours: Option<(f64, Option<Interval>)>,
}

/// A ratio to the baseline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    /// The ratio.
    pub value: f64,
    /// The range of ratios within the intervals of both numbers.
    pub interval: Option<Interval>,
}

/// The result of a comparison. `None`: there is nothing to compare.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the order of every pair of points is the same in both. A tie agrees with either order.
    pub order: Option<bool>,
    /// Whether every measured ratio to the baseline is within [`NEAR`] of the published one.
    pub ratio: Option<bool>,
}

impl Verdict {
    /// The verdict over several series: all compared ones must agree.
    pub fn of_all(verdicts: impl IntoIterator<Item = Self>) -> Self {
        let both = |one: Option<bool>, other: Option<bool>| match (one, other) {
            (Some(one), Some(other)) => Some(one && other),
            (one, other) => one.or(other),
        };
        let mut all = verdicts.into_iter();
        let first = all.next().unwrap_or_default();
        all.fold(first, |sum, one| Self {
            order: both(sum.order, one.order),
            ratio: both(sum.ratio, one.ratio),
        })
    }

    /// Whether anything was compared.
    pub fn is_compared(&self) -> bool {
        self.order.is_some() || self.ratio.is_some()
    }
}

/// The published ratio of a point to the baseline.
pub fn published_ratio(point: &Point, baseline: &Point) -> Option<Ratio> {
    let ((low, high), (from, to)) = (point.published?, baseline.published?);
    let interval = (low < high || from < to).then_some(Interval {
        low: low / to,
        high: high / from,
    });
    let value = f64::midpoint(low, high) / f64::midpoint(from, to);
    value.is_finite().then_some(Ratio { value, interval })
}

/// The measured ratio of a point to the baseline. Its interval covers the intervals of both numbers.
pub fn our_ratio(point: &Point, baseline: &Point) -> Option<Ratio> {
    let ((ours, mine), (base, theirs)) = (point.ours?, baseline.ours?);
    let is_itself = std::ptr::eq(point, baseline);
    let ends =
        |value, interval: Option<Interval>| interval.map_or((value, value), |i| (i.low, i.high));
    let ((low, high), (from, to)) = (ends(ours, mine), ends(base, theirs));
    let interval =
        ((mine.is_some() || theirs.is_some()) && !is_itself && from > 0.0).then_some(Interval {
            low: low / to,
            high: high / from,
        });
    let value = ours / base;
    value.is_finite().then_some(Ratio { value, interval })
}

/// 1 where the first range is above the second, -1 where it is below, 0 where they overlap.
fn larger((low, high): (f64, f64), (from, to): (f64, f64)) -> i8 {
    if low > to {
        1
    } else if high < from {
        -1
    } else {
        0
    }
}

/// Compares a series. `baseline` is the position of the row that is the denominator of the ratios.
pub fn judge(points: &[Point], baseline: usize) -> Verdict {
    let mut verdict = Verdict::default();
    let range = |point: &Point| {
        let (value, interval) = point.ours?;
        Some(interval.map_or((value, value), |i| (i.low, i.high)))
    };
    let printed = |point: &Point| {
        let rank = point.rank.map(|rank| (f64::from(rank), f64::from(rank)));
        point.published.or(rank)
    };
    for (position, one) in points.iter().enumerate() {
        for other in points.iter().skip(position + 1) {
            let of = |find: &dyn Fn(&Point) -> Option<(f64, f64)>| {
                Some(larger(find(one)?, find(other)?))
            };
            if let (Some(published), Some(ours)) = (of(&printed), of(&range)) {
                let same = published * ours >= 0;
                verdict.order = Some(same && verdict.order.unwrap_or(true));
            }
        }
    }
    let Some(base) = points.get(baseline) else {
        return verdict;
    };
    for (position, point) in points.iter().enumerate() {
        if position == baseline {
            continue;
        }
        if let (Some(published), Some(ours)) =
            (published_ratio(point, base), our_ratio(point, base))
        {
            let apart = ours.value / published.value;
            let near = (1.0 / NEAR..=NEAR).contains(&apart);
            verdict.ratio = Some(near && verdict.ratio.unwrap_or(true));
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(published: f64, ours: f64, half: f64) -> Point {
        let interval = Interval {
            low: ours - half,
            high: ours + half,
        };
        Point {
            published: Some((published, published)),
            rank: None,
            ours: Some((ours, (half > 0.0).then_some(interval))),
        }
    }

    fn said(points: &[Point]) -> (Option<bool>, Option<bool>) {
        let Verdict { order, ratio } = judge(points, 0);
        (order, ratio)
    }

    #[test]
    fn the_same_order_and_near_ratios_agree() {
        let points = [
            point(10.0, 1.0, 0.0),
            point(20.0, 2.6, 0.0),
            point(30.0, 4.4, 0.0),
        ];
        assert_eq!(said(&points), (Some(true), Some(true)));
    }

    #[test]
    fn a_swapped_order_is_told_though_ratios_are_near() {
        let points = [
            point(10.0, 1.0, 0.0),
            point(20.0, 2.0, 0.0),
            point(21.0, 1.9, 0.0),
        ];
        assert_eq!(said(&points), (Some(false), Some(true)));
    }

    #[test]
    fn what_lies_within_the_intervals_is_a_tie_and_counts_as_either() {
        let points = [
            point(10.0, 1.0, 0.0),
            point(20.0, 2.0, 0.1),
            point(21.0, 1.9, 0.1),
        ];
        assert_eq!(said(&points), (Some(true), Some(true)));
        // A published tie agrees with any order.
        let points = [point(30.0, 6.0, 0.0), point(30.0, 5.0, 0.0)];
        assert_eq!(said(&points), (Some(true), Some(true)));
    }

    #[test]
    fn a_ratio_beyond_the_factor_is_off_in_either_direction() {
        assert_eq!(
            said(&[point(10.0, 1.0, 0.0), point(20.0, 3.1, 0.0)]),
            (Some(true), Some(false))
        );
        assert_eq!(
            said(&[point(10.0, 1.0, 0.0), point(20.0, 1.3, 0.0)]),
            (Some(true), Some(false))
        );
        assert_eq!(
            said(&[point(10.0, 1.0, 0.0), point(20.0, 3.0, 0.0)]),
            (Some(true), Some(true))
        );
    }

    #[test]
    fn where_nothing_is_printed_only_the_order_is_judged() {
        let rank = |rank, ours| Point {
            published: None,
            rank: Some(rank),
            ours: Some((ours, None)),
        };
        assert_eq!(said(&[rank(1, 1.0), rank(2, 40.0)]), (Some(true), None));
        assert_eq!(said(&[rank(2, 1.0), rank(1, 40.0)]), (Some(false), None));
    }

    #[test]
    fn what_is_missing_says_nothing() {
        let missing = Point {
            ours: None,
            ..point(20.0, 0.0, 0.0)
        };
        assert_eq!(said(&[point(10.0, 1.0, 0.0), missing]), (None, None));
        assert_eq!(said(&[]), (None, None));
        assert_eq!(judge(&[missing], 7), Verdict::default());
        // Without the baseline the order is compared, but no ratio.
        let points = [missing, point(30.0, 3.0, 0.0), point(40.0, 4.0, 0.0)];
        assert_eq!(said(&points), (Some(true), None));
        assert_eq!(
            said(&[point(0.0, 0.0, 0.0), point(1.0, 1.0, 0.0)]),
            (Some(true), None)
        );
    }

    #[test]
    fn figures_agree_where_each_series_does() {
        let of = |order, ratio| Verdict { order, ratio };
        let all = Verdict::of_all([
            of(Some(true), None),
            of(Some(false), Some(true)),
            of(None, None),
        ]);
        assert_eq!(all, of(Some(false), Some(true)));
        assert!(!Verdict::of_all([]).is_compared());
    }

    #[test]
    fn our_ratio_is_as_wide_as_both_intervals() {
        let (base, two) = (point(1.0, 10.0, 1.0), point(1.0, 20.0, 2.0));
        let ratio = our_ratio(&two, &base).unwrap();
        let interval = ratio.interval.unwrap();
        assert!((interval.low - 18.0 / 11.0).abs() < 1e-9);
        assert!((interval.high - 22.0 / 9.0).abs() < 1e-9);
        assert_eq!(our_ratio(&base, &base).unwrap().interval, None);
    }
}
