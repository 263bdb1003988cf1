// SPDX-License-Identifier: Apache-2.0
//! The lines about commands that are short beside their start, whose CPU time is known less precisely than their intervals say.

use std::collections::BTreeMap;
use vtax_core::{Base, Quantity, Unit, metric};
use vtax_results::Trial;
use vtax_results::stats::mean;

/// The starts below which the CPU time of a command is called short.
const FEW_STARTS: f64 = 10.0;

/// A sentence for each treatment whose command takes less CPU time than [`FEW_STARTS`] starts in the trials that count.
pub(super) fn lines<'a>(trials: impl Iterator<Item = &'a Trial>) -> Vec<String> {
    let mut found: BTreeMap<&str, Vec<[f64; 3]>> = BTreeMap::new();
    for trial in trials {
        let value = |name: &str| Some(trial.metrics.get(name)?.quantity.value);
        let start = value(metric::LAUNCH_CPU.name);
        let each = value(metric::CPU_PER_WORK.name);
        let own = each.zip(trial.work.as_ref());
        let own = own.map(|(each, work)| each * work.amount);
        let spread = value(metric::LAUNCH_SPREAD.name);
        if let (Some(start), Some(own), Some(spread)) = (start, own, spread) {
            let of = found.entry(&trial.treatment.label).or_default();
            of.push([start, own, spread]);
        }
    }
    let lines = found.into_iter().filter_map(|(label, times)| {
        let mean = |of: fn(&[f64; 3]) -> f64| mean(&times.iter().map(of).collect::<Vec<_>>());
        let start = mean(|[start, ..]| *start)?;
        let (own, spread) = (mean(|[_, own, _]| *own)?, mean(|[.., spread]| *spread)?);
        let shown = |seconds| Quantity::new(seconds, Unit::from_base(Base::Second)).to_string();
        (own < start * FEW_STARTS).then(|| {
            format!(
                "{label}: starting the command takes {} of CPU time, which is no part of its {}; so short a command is known \
                 to {}, {:.0} % of it.",
                shown(start),
                shown(own),
                shown(spread),
                spread / own * 100.0
            )
        })
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_core::Source;
    use vtax_results::{Metric, Work};

    fn trial(start: f64, own: f64) -> Trial {
        let text = include_str!("../../tests/data/format-1/trials/0000/trial.json");
        let mut trial: Trial = serde_json::from_str(text).unwrap();
        trial.suspect.clear();
        let unit = Unit::from_base(Base::One);
        for (metric, value) in [
            (metric::LAUNCH_CPU, start),
            (metric::LAUNCH_SPREAD, 2e-3),
            (metric::CPU_PER_WORK, own / 2.0),
        ] {
            let metric_ = Metric::new(metric, "", unit, value, Source::Measured);
            trial.metrics.insert(metric.name.to_owned(), metric_);
        }
        trial.work = Some(Work {
            amount: 2.0,
            unit: Unit::from_base(Base::Operation),
            phrase: "do 1 op".to_owned(),
        });
        trial
    }

    #[test]
    fn a_command_that_is_short_beside_its_start_is_named_with_its_uncertainty() {
        let short = [trial(0.018, 0.001), trial(0.020, 0.003)];
        let lines = lines(short.iter());
        assert_eq!(lines.len(), 1);
        let line = &lines[0];
        assert!(
            line.contains("takes 19.0 ms of CPU time, which is no part of its 2.00 ms")
                && line.contains("100 % of it"),
            "{line}"
        );
        assert!(super::lines([trial(0.018, 0.2)].iter()).is_empty());
    }
}
