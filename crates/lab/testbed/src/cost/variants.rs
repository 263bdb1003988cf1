// SPDX-License-Identifier: Apache-2.0
//! The modelled numbers of a trial under every shipped cost model, with its assumed prices as they are, halved and doubled.

use super::{CostModel, charge};
use std::collections::BTreeMap;
use vtax_core::{Nanoseconds, metric};
use vtax_results::{Trial, emulated};

/// The factors of assumed prices, and their names.
const FACTORS: [(f64, &str); 3] = [
    (1.0, ""),
    (0.5, ", assumed prices halved"),
    (2.0, ", assumed prices doubled"),
];

/// Returns the modelled metrics of a trial by model, the name of each first. The list is empty for a trial that no model
/// charges. A model with idle states is left out where the trial has no idle gaps.
pub fn modelled(trial: &Trial) -> Vec<(String, BTreeMap<String, f64>)> {
    let length = trial.environment.get(emulated::INSTRUCTION_NS);
    let Some(length) = length.and_then(|length| length.parse().ok()) else {
        return Vec::new();
    };
    let has_gaps = !trial.observation.idle_gaps.is_empty();
    let table = CostModel::table().unwrap_or_default();
    let usable = (table.iter()).filter(|model| model.sleep.is_none() || has_gaps);
    let variants = usable.flat_map(|model| FACTORS.map(|(factor, how)| (model, factor, how)));
    let all = variants.map(|(model, factor, how)| {
        let mut charged = trial.clone();
        let varied = model.with_assumed(factor);
        charge(&mut charged, &varied, Nanoseconds(length));
        let metrics = charged.metrics.into_iter();
        let metrics = metrics.filter(|(name, _)| metric::MODEL.part(name).is_some());
        let values = metrics.map(|(name, metric)| (name, metric.quantity.value));
        (format!("{}{how}", model.name), values.collect())
    });
    all.filter(|(_, values): &(_, BTreeMap<_, _>)| !values.is_empty())
        .collect()
}

impl CostModel {
    /// Returns the model with each number that has no source multiplied by `factor`.
    fn with_assumed(&self, factor: f64) -> Self {
        let mut model = self.clone();
        for (name, price) in model.numbers() {
            if self.is_assumed(name)
                && let Some(price) = price
            {
                *price *= factor;
            }
        }
        if let Some(sleep) = &mut model.sleep {
            sleep.scale(factor, |name| self.is_assumed(name));
        }
        model
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::tests::trial;

    #[test]
    fn a_trial_is_charged_by_every_model_and_with_half_and_twice_its_assumed_prices() {
        let mut one = trial(
            "vm",
            &[("cpu.cores", 0.5), ("kvm.exits.per_second", 1000.0)],
        );
        assert!(modelled(&one).is_empty(), "no instructions were counted");
        charge(&mut one, &CostModel::shipped().unwrap(), Nanoseconds(1));
        let all = modelled(&one);
        let sleepless = CostModel::table().unwrap();
        let sleepless = sleepless.iter().filter(|model| model.sleep.is_none());
        assert_eq!(all.len(), 3 * sleepless.count());
        let cycles = |name: &str| {
            let (_, values) = all.iter().find(|(model, _)| model == name).unwrap();
            values["model.cycles_per_second"]
        };
        let own = one.metrics["model.cycles_per_second"].quantity.value;
        assert_eq!(cycles("sandy-bridge"), own);
        // All prices of cycles of this model are assumed.
        let doubled = cycles("sandy-bridge, assumed prices doubled");
        assert!((doubled / own - 2.0).abs() < 1e-9, "{doubled} {own}");
        // The exits of this one have a source.
        let (sourced, halved) = (cycles("nehalem"), cycles("nehalem, assumed prices halved"));
        assert!(
            (sourced - halved - 0.25e9).abs() < 1.0,
            "{sourced} {halved}"
        );
    }
}
