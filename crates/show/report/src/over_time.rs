// SPDX-License-Identifier: Apache-2.0
//! Two recordings of one host: each subject's costs for its work in successive minutes, before and after a change.

use crate::analysis::{Certainty, Comparison, Judgement};
use vtax_core::metric::Metric;
use vtax_core::{Base, Source, Unit};
use vtax_results::stats;

/// A comparison of a subject, a guest's name and its platform, in two recordings, not yet judged. `source` is the worse
/// one of the two; `after` and `before` are the cost and the work of each window of so many minutes.
pub fn comparison(
    (subject, platform): (&str, &str),
    metric: &Metric,
    source: Source,
    minutes: f64,
    after: &[(f64, f64)],
    before: &[(f64, f64)],
) -> Comparison {
    let seed = stats::seed_of(&["over time", subject, metric.name]);
    let found = stats::ratio_over_time(after, before, seed);
    let block = found.map_or(1, |found| found.block);
    let tax = found.ok().map(|found| found.tax);
    let base = metric.unit(Unit::from_base(Base::Joule)).base;
    let is_energy = matches!(base, Base::Joule | Base::Watt);
    Comparison {
        treatment: subject.to_owned(),
        baseline: subject.to_owned(),
        workload: String::new(),
        platform: platform.to_owned(),
        variant: None,
        metric: metric.name.to_owned(),
        title: metric.title.to_owned(),
        better: metric.better,
        headline: metric.headline,
        source,
        modelled: source == Source::Modelled,
        ratio: tax.map(|tax| tax.ratio),
        certainty: Certainty::Minutes {
            block: (block as f64 * minutes).ceil() as usize,
        },
        tax,
        judgement: Judgement {
            by_model: source == Source::Modelled && is_energy,
            ..Judgement::default()
        },
        note: found.err().map(|none| none.to_string()),
        withheld: None,
        machines: None,
    }
}
