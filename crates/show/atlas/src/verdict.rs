// SPDX-License-Identifier: Apache-2.0
//! The verdict on a claim of a paper: the same direction, not shown, or the reverse, and the size of the effect.

use crate::catalogue::{Effect, Published};
use crate::ours::Number;
use vtax_core::SplitMix64;
use vtax_results::stats::Interval;

/// The shares of the published effect, as logarithms of ratios, that are of the same size.
pub const SAME_SIZE: std::ops::RangeInclusive<f64> = 0.5..=2.0;

/// A ratio to the baseline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    /// The ratio.
    pub value: f64,
    /// The range of ratios within the intervals of both numbers.
    pub interval: Option<Interval>,
}

/// The published ratio of a number to the baseline.
pub fn published_ratio(number: Published, baseline: Published) -> Option<Ratio> {
    let ends = |one: Published| one.range.unwrap_or((one.value, one.value));
    let ((low, high), (from, to)) = (ends(number), ends(baseline));
    let interval = (low < high || from < to).then_some(Interval {
        low: low / to,
        high: high / from,
    });
    let value = f64::midpoint(low, high) / f64::midpoint(from, to);
    value.is_finite().then_some(Ratio { value, interval })
}

/// The measured ratio of a number to the baseline. Its interval covers the intervals of both numbers.
pub fn our_ratio(number: &Number, baseline: &Number) -> Option<Ratio> {
    let is_itself = std::ptr::eq(number, baseline);
    let ends = |one: &Number| {
        let interval = one.interval;
        interval.map_or((one.value, one.value), |i| (i.low, i.high))
    };
    let ((low, high), (from, to)) = (ends(number), ends(baseline));
    let has_interval = number.interval.is_some() || baseline.interval.is_some();
    let interval = (has_interval && !is_itself && from > 0.0).then_some(Interval {
        low: low / to,
        high: high / from,
    });
    let value = number.value / baseline.value;
    value.is_finite().then_some(Ratio { value, interval })
}

/// The interval by which a claim is judged. `None`: nothing is known about the error of one of the numbers.
///
/// A number that repeats exactly is one draw of the timing, whose error is `spread`, a factor: that of draws of the same
/// metric ([`crate::ours::Ours::spread`]). A number of one trial that does not repeat exactly has no interval.
pub fn judged_interval(
    number: &Number,
    baseline: &Number,
    spread: Option<f64>,
) -> Option<Interval> {
    let is_unknown = |one: &Number| one.interval.is_none() && !one.is_exact();
    if is_unknown(number) || is_unknown(baseline) {
        return None;
    }
    let ratio = our_ratio(number, baseline)?;
    if !number.is_exact() && !baseline.is_exact() {
        return ratio.interval;
    }
    let spread = spread?;
    let own = ratio.interval.unwrap_or(Interval {
        low: ratio.value,
        high: ratio.value,
    });
    Some(Interval {
        low: own.low.min(ratio.value / spread),
        high: own.high.max(ratio.value * spread),
    })
}

/// The verdict on a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// The published effect is shown, of whatever size.
    SameDirection,
    /// No effect is shown where the paper has none.
    NoEffect,
    /// The interval allows the published effect and its absence.
    NotShown,
    /// The opposite effect is shown.
    Reversed,
    /// An effect is shown where the paper has none.
    Unpublished,
    /// Nothing is measured, or its error is unknown.
    Unknown,
}

impl Outcome {
    /// All, in the order of the page's columns.
    pub const ALL: [Self; 6] = [
        Self::SameDirection,
        Self::NoEffect,
        Self::NotShown,
        Self::Reversed,
        Self::Unpublished,
        Self::Unknown,
    ];

    /// The outcome in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::SameDirection => "same direction",
            Self::NoEffect => "no effect, as published",
            Self::NotShown => "not shown",
            Self::Reversed => "reversed",
            Self::Unpublished => "effect where the paper has none",
            Self::Unknown => "unknown",
        }
    }

    /// Judges the interval of a measured ratio. A ratio of less than `minimum` in either direction is no effect.
    pub fn judge(effect: Effect, minimum: f64, interval: Option<Interval>) -> Self {
        let Some(Interval { low, high }) = interval.filter(|i| i.low > 0.0 && i.high.is_finite())
        else {
            return Self::Unknown;
        };
        let middle = (low * high).sqrt();
        let is_higher = low > 1.0 && middle >= minimum;
        let is_lower = high < 1.0 && middle <= 1.0 / minimum;
        match effect {
            Effect::Higher if is_higher => Self::SameDirection,
            Effect::Lower if is_lower => Self::SameDirection,
            Effect::Higher if is_lower => Self::Reversed,
            Effect::Lower if is_higher => Self::Reversed,
            Effect::None if low >= 1.0 / minimum && high <= minimum => Self::NoEffect,
            Effect::None if is_higher || is_lower => Self::Unpublished,
            Effect::Higher | Effect::Lower | Effect::None => Self::NotShown,
        }
    }
}

/// The measured effect as a share of the published one, as logarithms of ratios. `None` without a published effect.
pub fn share_of_effect(ours: f64, published: f64) -> Option<f64> {
    let share = ours.ln() / published.ln();
    share.is_finite().then_some(share)
}

/// The verdict on a figure, from those on its claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FigureVerdict {
    /// Each effect has the published direction, and there is at least one. No claim of no effect fails.
    SameDirection,
    /// Some claims are shown, one of an effect among them; the others are not shown or unknown.
    Partly,
    /// A claim is reversed, or has an effect where the paper has none.
    Contradicts,
    /// No effect is shown.
    NotShown,
    /// No claim is measured.
    Unknown,
}

impl FigureVerdict {
    /// All, in the order of the page's columns.
    pub const ALL: [Self; 5] = [
        Self::SameDirection,
        Self::Partly,
        Self::NotShown,
        Self::Contradicts,
        Self::Unknown,
    ];

    /// The verdict in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::SameDirection => "same direction",
            Self::Partly => "same direction in part",
            Self::Contradicts => "contradicts",
            Self::NotShown => "not shown",
            Self::Unknown => "unknown",
        }
    }

    /// Judges a figure by the outcomes of its claims.
    ///
    /// A claim of no effect is a condition: alone it shows nothing of a figure, since an instrument that always answers 1
    /// fulfils it.
    pub fn from_claims(claims: &[Outcome]) -> Self {
        let any = |wanted: Outcome| claims.contains(&wanted);
        let is_shown = |one: &Outcome| matches!(one, Outcome::SameDirection | Outcome::NoEffect);
        if any(Outcome::Reversed) || any(Outcome::Unpublished) {
            Self::Contradicts
        } else if claims.iter().all(|one| *one == Outcome::Unknown) {
            Self::Unknown
        } else if !any(Outcome::SameDirection) {
            Self::NotShown
        } else if claims.iter().all(is_shown) {
            Self::SameDirection
        } else {
            Self::Partly
        }
    }
}

/// Draws a ratio whose logarithm has a normal distribution of mean 0 and this standard deviation.
pub fn random_ratio(random: &mut SplitMix64, deviation: f64) -> f64 {
    // Box and Muller; 1 - u is above 0.
    let radius = (-2.0 * (1.0 - random.uniform()).ln()).sqrt();
    let normal = radius * (std::f64::consts::TAU * random.uniform()).cos();
    (normal * deviation).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(low: f64, high: f64) -> Option<Interval> {
        Some(Interval { low, high })
    }

    fn number(value: f64, interval: Option<Interval>, varies: &str) -> Number {
        Number {
            value,
            interval,
            n: 1,
            unit: "W".parse().unwrap(),
            source: vtax_core::Source::Measured,
            varies: varies.to_owned(),
        }
    }

    fn exact(value: f64) -> Number {
        number(value, None, "exact, seed 1")
    }

    #[test]
    fn an_effect_has_the_same_direction_is_not_shown_or_reversed() {
        let judge = |effect, interval| Outcome::judge(effect, 1.1, interval);
        assert_eq!(judge(Effect::Higher, of(1.2, 1.6)), Outcome::SameDirection);
        assert_eq!(judge(Effect::Lower, of(0.6, 0.8)), Outcome::SameDirection);
        assert_eq!(judge(Effect::Higher, of(0.6, 0.8)), Outcome::Reversed);
        assert_eq!(judge(Effect::Lower, of(1.2, 1.6)), Outcome::Reversed);
        // The interval contains 1, or the effect is below the minimum.
        assert_eq!(judge(Effect::Higher, of(0.9, 1.9)), Outcome::NotShown);
        assert_eq!(judge(Effect::Higher, of(1.01, 1.02)), Outcome::NotShown);
        assert_eq!(judge(Effect::Lower, of(0.98, 0.99)), Outcome::NotShown);
        assert_eq!(judge(Effect::Higher, None), Outcome::Unknown);
        assert_eq!(judge(Effect::Higher, of(0.0, 2.0)), Outcome::Unknown);
    }

    #[test]
    fn no_effect_is_shown_only_by_an_interval_within_the_minimum() {
        let judge = |interval| Outcome::judge(Effect::None, 1.1, interval);
        assert_eq!(judge(of(0.95, 1.05)), Outcome::NoEffect);
        assert_eq!(judge(of(0.8, 1.05)), Outcome::NotShown);
        assert_eq!(judge(of(1.3, 1.5)), Outcome::Unpublished);
        assert_eq!(judge(of(0.5, 0.7)), Outcome::Unpublished);
        assert_eq!(judge(of(1.01, 1.15)), Outcome::NotShown);
    }

    #[test]
    fn a_single_trial_is_unknown_and_an_exact_one_has_the_spread_of_draws() {
        let spread = Some(1.14);
        let single = number(2.0, None, "trial");
        assert_eq!(judged_interval(&single, &exact(1.0), spread), None);
        assert_eq!(judged_interval(&exact(1.0), &single, spread), None);
        let (point, base) = (exact(1.1), exact(1.0));
        assert_eq!(judged_interval(&point, &base, None), None);
        let interval = judged_interval(&point, &base, spread).unwrap();
        assert!(interval.low < 1.0 && interval.high > 1.25);
        // Draws have an interval of their own.
        let drawn = |value: f64| number(value, of(value * 0.99, value * 1.01), "seed");
        let interval = judged_interval(&drawn(1.1), &drawn(1.0), None).unwrap();
        assert!(interval.low > 1.07 && interval.high < 1.13);
        let mixed = judged_interval(&drawn(1.1), &exact(1.0), spread).unwrap();
        assert!(mixed.low < 1.0);
    }

    #[test]
    fn the_size_is_a_share_of_the_published_logarithm() {
        assert!((share_of_effect(2.0, 4.0).unwrap() - 0.5).abs() < 1e-12);
        assert!(share_of_effect(0.5, 2.0).unwrap() < 0.0);
        assert_eq!(share_of_effect(2.0, 1.0), None);
    }

    #[test]
    fn a_figure_has_the_same_direction_by_all_of_its_claims_and_by_an_effect() {
        use Outcome::{NoEffect, NotShown, Reversed, SameDirection, Unknown, Unpublished};
        for (claims, verdict) in [
            ([SameDirection, NoEffect], FigureVerdict::SameDirection),
            ([SameDirection, SameDirection], FigureVerdict::SameDirection),
            ([NoEffect, NoEffect], FigureVerdict::NotShown),
            ([SameDirection, NotShown], FigureVerdict::Partly),
            ([SameDirection, Unknown], FigureVerdict::Partly),
            ([SameDirection, Reversed], FigureVerdict::Contradicts),
            ([SameDirection, Unpublished], FigureVerdict::Contradicts),
            ([Unknown, Unknown], FigureVerdict::Unknown),
            ([NotShown, Unknown], FigureVerdict::NotShown),
        ] {
            assert_eq!(FigureVerdict::from_claims(&claims), verdict, "{claims:?}");
        }
    }

    #[test]
    fn words_of_verdicts_speak_of_the_direction_and_never_of_agreement() {
        let outcomes = Outcome::ALL.map(Outcome::name);
        let verdicts = FigureVerdict::ALL.map(FigureVerdict::name);
        for name in outcomes.iter().chain(&verdicts) {
            assert!(!name.contains("agree") && *name != "as published", "{name}");
        }
        assert_eq!(outcomes[..2], ["same direction", "no effect, as published"]);
        assert_eq!(verdicts[..2], ["same direction", "same direction in part"]);
    }

    #[test]
    fn our_ratio_is_as_wide_as_both_intervals() {
        let point = |value: f64, half: f64| number(value, of(value - half, value + half), "trial");
        let (base, two) = (point(10.0, 1.0), point(20.0, 2.0));
        let interval = our_ratio(&two, &base).unwrap().interval.unwrap();
        assert!((interval.low - 18.0 / 11.0).abs() < 1e-9);
        assert!((interval.high - 22.0 / 9.0).abs() < 1e-9);
        assert_eq!(our_ratio(&base, &base).unwrap().interval, None);
    }

    #[test]
    fn random_ratios_lie_on_both_sides_of_1_and_have_the_deviation() {
        let mut random = SplitMix64::new(7);
        let all: Vec<f64> = (0..20_000)
            .map(|_| random_ratio(&mut random, 0.5).ln())
            .collect();
        let mean = all.iter().sum::<f64>() / 20_000.0;
        let square = all.iter().map(|x| x * x).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.02, "{mean}");
        assert!((square.sqrt() - 0.5).abs() < 0.02, "{square}");
    }
}
