// SPDX-License-Identifier: Apache-2.0
//! Two recordings of one host: each subject's costs for its work in successive minutes, before and after a change.

use crate::analysis::{Certainty, Comparison, Judgement, judge};
use vtax_core::Source;
use vtax_core::metric::Metric;
use vtax_results::stats;

/// One metric of one subject in two recordings.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The subject: a guest's name with its platform.
    pub subject: String,
    /// The platform.
    pub platform: String,
    /// The metric.
    pub metric: &'static Metric,
    /// The worse source of the two recordings.
    pub source: Source,
    /// Minutes in a window.
    pub minutes: f64,
    /// Cost and work of each window before the change.
    pub before: Vec<(f64, f64)>,
    /// Cost and work of each window after it.
    pub after: Vec<(f64, f64)>,
}

/// The comparisons of two recordings, which are one family.
pub fn compare(pairs: &[Pair], minimum_effect: f64) -> Vec<Comparison> {
    let mut comparisons: Vec<Comparison> = pairs.iter().map(comparison).collect();
    judge(&mut comparisons, minimum_effect);
    comparisons
}

/// A comparison of a subject in two recordings, not yet judged.
fn comparison(pair: &Pair) -> Comparison {
    let metric = pair.metric;
    let seed = stats::seed_of(&["over time", &pair.subject, metric.name]);
    let found = stats::ratio_over_time(&pair.after, &pair.before, seed);
    let block = found.map_or(1, |found| found.block);
    let minutes = (block as f64 * pair.minutes).ceil() as usize;
    Comparison {
        treatment: pair.subject.clone(),
        baseline: pair.subject.clone(),
        workload: String::new(),
        platform: pair.platform.clone(),
        metric: metric.name.to_owned(),
        title: metric.title.to_owned(),
        better: metric.better,
        headline: metric.headline,
        source: pair.source,
        modelled: pair.source == Source::Modelled,
        ratio: found.ok().map(|found| found.tax.ratio),
        certainty: Certainty::Minutes { block: minutes },
        tax: found.ok().map(|found| found.tax),
        judgement: Judgement::default(),
        note: found.err().map(|none| none.to_string()),
        machines: None,
    }
}
