// SPDX-License-Identifier: Apache-2.0
//! The tax: the ratio of a treatment's cost to its baseline's, with an interval and a verdict.

use super::between::Groups;
use super::bootstrap::{Interval, student_interval};
use super::describe::{cliffs_delta, mean, standard_deviation};
use super::distribution::{degrees, student_beyond, student_quantile};
use super::fieller::{Bounds, Covariances, Means};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Significance level of every test and complement of every interval's confidence level.
pub(super) const ALPHA: f64 = 0.05;

/// Level of the interval of one comparison alone.
pub const CONFIDENCE: f64 = 1.0 - ALPHA;

/// A ratio of treatment to baseline.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Tax {
    /// Geometric mean of the pairs' ratios; for unpaired trials, ratio of geometric means; of differences that may be
    /// negative, ratio of means.
    pub ratio: f64,
    /// Its 95 % confidence interval; `None` for a single pair, and with an open end.
    pub interval: Option<Interval>,
    /// Whether trials of one block were compared with each other.
    pub paired: bool,
    /// Number of pairs; for unpaired trials, the smaller number of trials.
    pub n: usize,
    /// Cliff's delta of the values, −1 to 1.
    pub effect: f64,
    /// Two-sided p of Student's t on log ratios, or on differences. The noise floor is not in it.
    pub p: f64,
    /// Whether so few pairs, or trials of one side, decide nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub few: bool,
    /// Standard deviation of the logarithm of a pair's ratio; for unpaired trials, of the ratio of one trial to
    /// another. `None` for a single pair.
    #[serde(default)]
    pub sd: Option<f64>,
    /// Whether interval and p hold at every look at a growing run, not at one number of pairs alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sequential: bool,
    /// Whether it holds at equal controls of both sides, whose coefficient took a degree of freedom.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub controlled: bool,
    /// Whether it is of the typical pair, which rare slow trials do not move, in place of the mean of all.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub typical: bool,
    /// Of a ratio of means: these, from which its interval is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub means: Option<Means>,
}

impl Tax {
    /// The tax of `n` pairs with the mean logarithm `centre`, by Student's t alone and without scatter; see [`finish`].
    pub(super) fn by_student(centre: f64, interval: Option<Interval>, n: usize, p: f64) -> Self {
        Self {
            ratio: centre,
            interval,
            paired: true,
            n,
            effect: f64::NAN,
            p,
            few: n < FEWEST_PAIRS,
            sd: None,
            sequential: false,
            controlled: false,
            typical: false,
            means: None,
        }
    }

    /// The tax of two runs with what is known of the difference between them: `shift` is added to the logarithm, and
    /// `variance` to its variance. Interval and p are Student's with the degrees of freedom of the trials.
    ///
    /// # Errors
    /// When the ratio is not a finite number.
    pub fn between_runs(self, shift: f64, variance: f64) -> Result<Self, NoTax> {
        let centre = self.ratio.ln();
        let more = student_quantile(1.0 - ALPHA, self.degrees()).powi(2) * variance;
        let end = |end: f64| (end.ln() - centre).hypot(more.sqrt());
        let interval = self.interval.and_then(|of| {
            let (low, high) = (end(of.low), end(of.high));
            Interval::finite(centre + shift - low, centre + shift + high)
        });
        let n = self.n as f64;
        let sd = self.sd.map(|sd| (sd.powi(2) + variance * n).sqrt());
        let p = sd.map_or(self.p, |sd| {
            student_p_of(centre + shift, sd.powi(2) / n, self.degrees())
        });
        finish(Self {
            ratio: centre + shift,
            interval,
            sd,
            p,
            ..self
        })
    }

    /// The ratios that the data allow at this confidence, where an end is open; `None` for an interval.
    pub fn open(&self, confidence: f64) -> Option<Bounds> {
        let bounds = self.means?.bounds(confidence, self.degrees());
        bounds.interval().is_none().then_some(bounds)
    }

    /// The degrees of freedom of its scatter.
    pub(super) fn degrees(&self) -> u32 {
        degrees(self.n) - u32::from(self.controlled)
    }
}

/// The reason for a missing ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoTax {
    /// One side has no counted trial.
    NoTrials,
    /// The baseline is zero in some trial.
    ZeroBaseline,
    /// The treatment is zero in some trial.
    ZeroTreatment,
    /// The requests of some trial are too few for the quantile.
    TooFewRequests,
    /// The mean of one side is not above zero.
    MeanNotPositive,
    /// A value is negative.
    Negative,
    /// A value, or the ratio, is not a finite number.
    NotFinite,
}

impl fmt::Display for NoTax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoTrials => "no ratio: one side has no trial that counts",
            Self::ZeroBaseline => "no ratio: the baseline is zero in at least one trial",
            Self::ZeroTreatment => "no ratio: it is zero in at least one trial",
            Self::TooFewRequests => "no ratio: a trial has too few requests for the quantile",
            Self::MeanNotPositive => "no ratio: the mean of one side is not above zero",
            Self::Negative => "no ratio: a value is negative",
            Self::NotFinite => "no ratio: a value is not a finite number",
        })
    }
}

/// Verdict on a difference.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The interval excludes 1 and does not lie within the plan's minimum effect; an exact ratio reaches that effect.
    Different,
    /// Neither a difference nor equality is shown.
    NoDifferenceShown,
    /// The whole interval, or the exact ratio, is nearer to 1 than the plan's minimum effect, whether it excludes 1 or not.
    Same,
    /// No outcome of so few trials could show a difference.
    TooFewTrials,
    /// A trial has too few requests for the quantile, so nothing is claimed about it.
    Unsupported,
    /// The trials ran for a fixed time and their work is not known, so nothing is claimed about its cost.
    NoWork,
    /// The trials are suspect, so nothing is claimed about them.
    Suspect,
    /// A model computed the joules, so nothing is claimed as of a meter.
    Modelled,
    /// Trials are missing by treatment, or the number is not the target's, so nothing is claimed.
    Withheld,
    /// There is no ratio.
    #[default]
    NoRatio,
}

impl Verdict {
    /// The verdict in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Different => "different",
            Self::NoDifferenceShown => "no difference shown",
            Self::Same => "the same",
            Self::TooFewTrials => "too few trials",
            Self::Unsupported => "too few requests",
            Self::NoWork => "work unknown",
            Self::Suspect => "suspect trials",
            Self::Modelled => "by the model",
            Self::Withheld => "nothing claimed",
            Self::NoRatio => "no ratio",
        }
    }
}

/// Whether an effect of the plan's minimum or more is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// The whole interval is at the minimum effect or beyond it.
    Shown,
    /// The whole interval is nearer to 1.
    Excluded,
    /// The interval contains both.
    Open,
}

impl Effect {
    /// Judges the interval of a ratio; `None` where the plan has no minimum effect.
    pub fn from_interval(interval: Interval, minimum_effect: f64) -> Option<Self> {
        let is_beyond = (interval.low > 1.0 && reaches(interval.low, minimum_effect))
            || (interval.high < 1.0 && reaches(interval.high, minimum_effect));
        (minimum_effect > 0.0).then_some(if is_within(interval, minimum_effect) {
            Self::Excluded
        } else if is_beyond {
            Self::Shown
        } else {
            Self::Open
        })
    }
}

fn logarithms(treatment: &[f64], baseline: &[f64]) -> Result<(Vec<f64>, Vec<f64>), NoTax> {
    if treatment.is_empty() || baseline.is_empty() {
        return Err(NoTax::NoTrials);
    }
    let mut all = treatment.iter().chain(baseline);
    if all.clone().any(|value| !value.is_finite()) {
        return Err(NoTax::NotFinite);
    }
    if all.any(|value| *value < 0.0) {
        return Err(NoTax::Negative);
    }
    if baseline.contains(&0.0) {
        return Err(NoTax::ZeroBaseline);
    }
    if treatment.contains(&0.0) {
        return Err(NoTax::ZeroTreatment);
    }
    let logs = |values: &[f64]| values.iter().map(|value| value.ln()).collect();
    Ok((logs(treatment), logs(baseline)))
}

/// Fewest pairs that can show a difference.
pub const FEWEST_PAIRS: usize = 4;

/// The tax from pairs: `treatment[i]` and `baseline[i]` ran in the same block.
///
/// The interval and p are Student's of the mean log ratio. They use differences within pairs only, so a drift of the host
/// between blocks hides nothing.
///
/// # Errors
/// The reason for a missing ratio.
pub fn paired_tax(treatment: &[f64], baseline: &[f64]) -> Result<Tax, NoTax> {
    let n = treatment.len().min(baseline.len());
    let (treatment, baseline) = (
        treatment.get(..n).unwrap_or(&[]),
        baseline.get(..n).unwrap_or(&[]),
    );
    let (log_treatment, log_baseline) = logarithms(treatment, baseline)?;
    let differences: Vec<f64> = log_treatment
        .iter()
        .zip(&log_baseline)
        .map(|(t, b)| t - b)
        .collect();
    let centre = mean(&differences).ok_or(NoTax::NotFinite)?;
    let p = student_p(centre, variance_of_mean(&differences), n);
    finish(Tax {
        effect: cliffs_delta(treatment, baseline).unwrap_or(0.0),
        sd: standard_deviation(&differences, centre),
        ..Tax::by_student(centre, student_interval(&differences), n, p)
    })
}

/// The ratio of the means of pairs, with Fieller's interval. p is Student's of the difference of the means.
///
/// `common` is what errors that trials share add to the (co)variances of the means, as squares of halves of 95 % intervals
/// ([`common_half`](super::common_half), [`lacking`](super::lacking)): where there is no other error, the interval has the
/// degrees of freedom of the common one.
///
/// # Errors
/// The reason for a missing ratio.
pub fn ratio_of_means(
    treatment: &[f64],
    baseline: &[f64],
    common: Covariances,
) -> Result<Tax, NoTax> {
    let n = treatment.len().min(baseline.len());
    let (own, other) = (
        treatment.get(..n).unwrap_or(&[]),
        baseline.get(..n).unwrap_or(&[]),
    );
    if n == 0 {
        return Err(NoTax::NoTrials);
    }
    let (Some(mean_own), Some(mean_other)) = (mean(own), mean(other)) else {
        return Err(NoTax::NotFinite);
    };
    if mean_own <= 0.0 || mean_other <= 0.0 {
        return Err(NoTax::MeanNotPositive);
    }
    let ratio = mean_own / mean_other;
    if !ratio.is_finite() || ratio == 0.0 {
        return Err(NoTax::NotFinite);
    }
    let effect = cliffs_delta(own, other).unwrap_or(0.0);
    if n < 2 {
        let alone = Tax::by_student(ratio, None, n, 1.0);
        return Ok(Tax { effect, ..alone });
    }
    let of_means = |a: &[f64], mean_a: f64, b: &[f64], mean_b: f64| {
        let products = a.iter().zip(b).map(|(a, b)| (a - mean_a) * (b - mean_b));
        products.sum::<f64>() / ((n - 1) * n) as f64
    };
    let square = student_quantile(CONFIDENCE, degrees(n)).powi(2);
    let errors = Covariances {
        treatment: of_means(own, mean_own, own, mean_own) + common.treatment / square,
        baseline: of_means(other, mean_other, other, mean_other) + common.baseline / square,
        both: of_means(own, mean_own, other, mean_other) + common.both / square,
    };
    let means = Means {
        treatment: mean_own,
        baseline: mean_other,
        errors,
    };
    let interval = means.bounds(CONFIDENCE, degrees(n)).interval();
    let apart = (errors.treatment + errors.baseline - 2.0 * errors.both).max(0.0);
    // To first order, the variance of the logarithm of the ratio.
    let relative = errors.treatment / mean_own.powi(2) + errors.baseline / mean_other.powi(2)
        - 2.0 * errors.both / (mean_own * mean_other);
    let p = student_p(mean_own - mean_other, Some(apart), n);
    Ok(Tax {
        effect,
        sd: Some((relative.max(0.0) * n as f64).sqrt()),
        means: Some(means),
        ..Tax::by_student(ratio, interval, n, p)
    })
}

/// The tax over machines: the groups are logarithms of the ratios of each machine's pairs. Each machine counts once,
/// and the interval and p are Student's over machines, because pairs of one machine share its particularities and are
/// not independent. `None` with fewer than two machines. `effect` is Cliff's delta.
pub fn tax_over(machines: &Groups, effect: f64) -> Option<Tax> {
    let means = machines.means();
    let centre = mean(means)?;
    let n = means.len();
    let p = student_p(centre, variance_of_mean(means), n);
    let tax = Tax {
        effect,
        few: false,
        sd: standard_deviation(means, centre),
        ..Tax::by_student(centre, Some(student_interval(means)?), n, p)
    };
    finish(tax).ok()
}

/// The tax from unpaired trials. The interval is Student's with the degrees of freedom of the smaller sample, the
/// conservative end of Welch's.
///
/// # Errors
/// The reason for a missing ratio.
pub fn unpaired_tax(treatment: &[f64], baseline: &[f64]) -> Result<Tax, NoTax> {
    let (log_treatment, log_baseline) = logarithms(treatment, baseline)?;
    let n = treatment.len().min(baseline.len());
    let centre = mean(&log_treatment).ok_or(NoTax::NotFinite)?
        - mean(&log_baseline).ok_or(NoTax::NotFinite)?;
    let variance = variance_of_mean(&log_treatment)
        .zip(variance_of_mean(&log_baseline))
        .map(|(t, b)| t + b);
    let interval = student_interval_of(centre, variance, n);
    finish(Tax {
        paired: false,
        effect: cliffs_delta(treatment, baseline).unwrap_or(0.0),
        sd: variance.map(|variance| (variance * n as f64).sqrt()),
        ..Tax::by_student(centre, interval, n, student_p(centre, variance, n))
    })
}

/// The ratio of two taxes of different runs, which are independent. The variance of its logarithm is the sum of both, each
/// no less than the tax's printed interval implies. Interval and p are Student's with the smaller sample's degrees of
/// freedom, the conservative end of Welch's. `effect` is not a number, because values of different runs are not compared.
///
/// # Errors
/// When the ratio is not a finite number.
pub fn ratio_of_taxes(after: &Tax, before: &Tax) -> Result<Tax, NoTax> {
    let n = after.n.min(before.n);
    let variance = (log_variance(after).zip(log_variance(before))).map(|(new, old)| new + old);
    let centre = after.ratio.ln() - before.ratio.ln();
    let interval = student_interval_of(centre, variance, n);
    finish(Tax {
        paired: after.paired && before.paired,
        sd: variance.map(|variance| (variance * n as f64).sqrt()),
        ..Tax::by_student(centre, interval, n, student_p(centre, variance, n))
    })
}

/// The variance of the logarithm of a tax, by its scatter or, where that is more, by its interval, which may be widened
/// to the noise floor. `None` for a single pair.
fn log_variance(tax: &Tax) -> Option<f64> {
    let scatter = tax.sd?.powi(2) / tax.n as f64;
    let interval = tax.interval?;
    let half = (interval.high / interval.low).ln() / 2.0;
    let t = student_quantile(1.0 - ALPHA, tax.degrees());
    (tax.n > 1).then(|| scatter.max((half / t).powi(2)))
}

/// The ratio of two exact values.
///
/// # Errors
/// The reason for a missing ratio.
pub fn exact_ratio(treatment: f64, baseline: f64) -> Result<f64, NoTax> {
    logarithms(&[treatment], &[baseline])?;
    let ratio = treatment / baseline;
    if ratio.is_finite() && ratio > 0.0 {
        Ok(ratio)
    } else {
        Err(NoTax::NotFinite)
    }
}

/// Largest difference, relative to the largest value, between values of one seed that are the same value.
/// `docs/why/testbed.md` has the observed differences.
pub const REPEATS_WITHIN: f64 = 2e-4;

/// Whether a ratio is as far from 1 as `minimum_effect`, upwards or, by the same factor, downwards, so that the choice
/// of the baseline does not matter.
fn reaches(ratio: f64, minimum_effect: f64) -> bool {
    // The inverse of 1.05 must reach 0.05 in spite of rounding.
    ratio.ln().abs() >= minimum_effect.ln_1p() * (1.0 - 1e-12)
}

/// The verdict on an exact ratio. A ratio within the spread of repetitions is no difference.
pub fn exact_verdict(ratio: f64, minimum_effect: f64) -> Verdict {
    if reaches(ratio, minimum_effect.max(REPEATS_WITHIN)) {
        Verdict::Different
    } else {
        Verdict::Same
    }
}

/// Student's interval around a centre with this variance, of n values; `None` for fewer than two.
pub(super) fn student_interval_of(
    centre: f64,
    variance: Option<f64>,
    n: usize,
) -> Option<Interval> {
    let half = student_quantile(1.0 - ALPHA, degrees(n)) * variance?.sqrt();
    if n < 2 {
        return None;
    }
    Interval::finite(centre - half, centre + half)
}

pub(super) fn variance_of_mean(values: &[f64]) -> Option<f64> {
    Some(standard_deviation(values, mean(values)?)?.powi(2) / values.len() as f64)
}

/// Two-sided p of Student's t with n − 1 degrees of freedom.
pub(super) fn student_p(centre: f64, variance: Option<f64>, n: usize) -> f64 {
    match variance {
        Some(variance) if n > 1 => student_p_of(centre, variance, degrees(n)),
        _ => 1.0,
    }
}

/// Two-sided p of Student's t of a centre with this variance.
pub(super) fn student_p_of(centre: f64, variance: f64, degrees: u32) -> f64 {
    if variance > 0.0 {
        student_beyond(centre.abs() / variance.sqrt(), degrees)
    } else if centre == 0.0 {
        1.0
    } else {
        0.0
    }
}

/// Converts a tax of logarithms to one of ratios.
pub(super) fn finish(tax: Tax) -> Result<Tax, NoTax> {
    let ratio = tax.ratio.exp();
    if !ratio.is_finite() || ratio == 0.0 {
        return Err(NoTax::NotFinite);
    }
    let interval = tax
        .interval
        .and_then(|log| Interval::finite(log.low.exp(), log.high.exp()));
    Ok(Tax {
        ratio,
        interval,
        ..tax
    })
}

/// Whether the whole interval is nearer to 1 than `minimum_effect`: two one-sided tests at 2.5 % each (Schuirmann
/// 1987).
fn is_within(interval: Interval, minimum_effect: f64) -> bool {
    let most = 1.0 + minimum_effect;
    minimum_effect > 0.0 && interval.low >= 1.0 / most && interval.high <= most
}

/// The verdict by the interval of the tax, which is the printed one: `Same` where it lies within the minimum effect,
/// otherwise `Different` where it excludes 1. The estimate has no part in it: half of all estimates of an effect of just
/// that size are smaller.
pub fn verdict(tax: &Tax, minimum_effect: f64) -> Verdict {
    verdict_by(tax, tax.interval, tax.open(CONFIDENCE), minimum_effect)
}

/// The same by another interval of the tax, or by its set with an open end.
pub(super) fn verdict_by(
    tax: &Tax,
    interval: Option<Interval>,
    open: Option<Bounds>,
    minimum_effect: f64,
) -> Verdict {
    match interval.or(open.map(Bounds::hull)) {
        Some(interval) if !tax.few => {
            if is_within(interval, minimum_effect) {
                Verdict::Same
            } else if interval.contains(1.0) {
                Verdict::NoDifferenceShown
            } else {
                Verdict::Different
            }
        }
        _ => Verdict::TooFewTrials,
    }
}
