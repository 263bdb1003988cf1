// SPDX-License-Identifier: Apache-2.0
//! Why nothing is claimed of a comparison although it has an interval: its trials dropped out by treatment, or the number is
//! the host's and other programs had a part of it.

use super::checks::Pairs;
use super::{Comparison, ErrorOf, MetricSummary, TreatmentSummary};
use vtax_core::metric::{self, Metric};
use vtax_results::stats::{Verdict, fisher_p, sign_test_p};

/// Energy and power of the whole host, in which the work of other programs is.
const OF_THE_HOST: [&Metric; 5] = [
    metric::POWER_MEAN,
    metric::ENERGY_TOTAL,
    metric::ENERGY_PER_WORK,
    metric::ENERGY_ABOVE_IDLE,
    metric::ENERGY_ABOVE_IDLE_PER_WORK,
];
/// Probability of a loss that unequal below which it is no chance.
const UNEQUAL: f64 = 0.1;
/// Share of the trials of one side, as its inverse, above which a loss counts however equal it is.
const FIFTH: usize = 5;
/// Level of the sign test in which lost trials contradict the difference.
const ALPHA: f64 = 0.05;

/// The trials of one side: how many ended, and how many of those have no value that counts.
#[derive(Debug, Clone, Copy)]
struct Side {
    ended: usize,
    lost: usize,
}

impl Side {
    fn new(summary: &TreatmentSummary, metric: &MetricSummary) -> Self {
        let ended = summary.counts.ended();
        // A trial without a knee counts: the knee is beyond its levels, and the ratio a bound.
        let counts = if metric::KNEE.is(&metric.name) {
            summary.counts.counted
        } else {
            metric.values.len()
        };
        Self {
            ended,
            lost: ended.saturating_sub(counts),
        }
    }

    fn in_words(self, label: &str) -> String {
        format!("{} of {} trials of {label}", self.lost, self.ended)
    }
}

/// Withholds the verdict where there is a reason.
///
/// - More than a fifth of the trials of one side are lost, or one side lost so many more that it is no chance (Fisher's exact
///   test). The lost trials may be the slow ones, so neither equality nor the lack of a difference is claimed. A difference is,
///   where a sign test shows it although every lost pair counts against it.
/// - Trials of several blocks share the run's only idle phase, so that the error of idle power is not known.
/// - Other programs disturbed more than a fifth of the trials of one side, and the number is the whole host's.
pub(crate) fn judge(
    comparison: &mut Comparison,
    own: &TreatmentSummary,
    other: &TreatmentSummary,
    pairs: Option<&Pairs>,
) {
    if !is_claim(comparison) {
        return;
    }
    let metrics = [own, other].map(|of| of.metric(&comparison.metric));
    let [Some(mine), Some(theirs)] = metrics else {
        return;
    };
    let disturbed = |of: &TreatmentSummary| of.counts.disturbed * FIFTH > of.counts.counted;
    let is_of_host = OF_THE_HOST.iter().any(|one| one.is(&comparison.metric));
    if is_of_host && (disturbed(own) || disturbed(other)) {
        let why = "it is the whole host's, and other programs ran beside the trials: energy charged to the target, and CPU, are its own";
        withhold(comparison, why.to_owned());
        return;
    }
    if [mine, theirs].into_iter().any(has_unknown_idle) {
        let why = "the trials of several blocks share the only idle phase in which the host was idle, and nothing is known of its error";
        withhold(comparison, why.to_owned());
        return;
    }
    let (a, b) = (Side::new(own, mine), Side::new(other, theirs));
    let many = |side: Side| side.lost * FIFTH > side.ended;
    let is_unequal = fisher_p((a.lost, a.ended), (b.lost, b.ended)) < UNEQUAL;
    if !many(a) && !many(b) && !is_unequal {
        return;
    }
    let most = a.ended.max(b.ended);
    let holds_anyway = || {
        let is_upwards = comparison.ratio > Some(1.0);
        let agree = match pairs {
            Some(pairs) => agreeing(
                pairs.iter().map(|(_, one, other)| (*one, *other)),
                is_upwards,
            ),
            // Trials of different runs have no partner: the median stands for the other side.
            None => {
                let values = mine.values.iter().map(|(_, value)| *value);
                agreeing(
                    values.map(|one| (one, theirs.description.median)),
                    is_upwards,
                )
            }
        };
        agree <= most && sign_test_p(agree, most) < ALPHA
    };
    if comparison.judgement.verdict == Verdict::Different && holds_anyway() {
        return;
    }
    let (a, b) = (
        a.in_words(&own.treatment.label),
        b.in_words(&other.treatment.label),
    );
    withhold(
        comparison,
        format!("{a} and {b} have no value that counts, and these may be the slow ones"),
    );
}

/// Whether trials share idle power whose error is not known.
fn has_unknown_idle(metric: &MetricSummary) -> bool {
    let error = metric.common_error;
    error.is_some_and(|error| error.of == ErrorOf::IdlePower && error.half.is_none())
}

/// How many pairs have the direction of the difference.
fn agreeing(pairs: impl Iterator<Item = (f64, f64)>, is_upwards: bool) -> usize {
    let agree = pairs.filter(|(one, other)| if is_upwards { one > other } else { one < other });
    agree.count()
}

/// Whether a comparison has a ratio with an interval by its scatter, from a meter or a model.
fn is_claim(comparison: &Comparison) -> bool {
    let verdict = comparison.judgement.verdict;
    let is_on_difference = matches!(
        verdict,
        Verdict::Different | Verdict::NoDifferenceShown | Verdict::Same | Verdict::Modelled
    );
    is_on_difference && !comparison.certainty.is_exact()
}

/// Withholds the verdict on the ratio of two taxes of which one was withheld.
pub(crate) fn keep(comparison: &mut Comparison) {
    if let Some(why) = comparison.withheld.clone()
        && is_claim(comparison)
    {
        withhold(comparison, why);
    }
}

fn withhold(comparison: &mut Comparison, why: String) {
    comparison.judgement.claim_nothing(Verdict::Withheld);
    comparison.judgement.is_below_floor = false;
    comparison.add_note(format!("nothing is claimed: {why}"));
    comparison.withheld = Some(why);
}
