// SPDX-License-Identifier: Apache-2.0
//! The samples of the present trial as curves: processor time by stage, and the traffic of the target's devices.

use serde_json::{Value, json};
use std::collections::VecDeque;
use vtax_lab::run::LiveSample;
use vtax_results::Stage;

/// The largest number of actors, and of devices, that are shown.
const MAX_SHOWN: usize = 32;

/// The samples of a trial, by column; `None` without one.
pub fn curves(samples: &VecDeque<LiveSample>) -> Option<Value> {
    let last = samples.back()?;
    // The guests other than the target and their clients are one stage.
    let stages = Stage::ALL.into_iter().filter_map(|stage| {
        let values = samples.iter().map(|sample| round(of_stage(sample, stage)));
        let values: Vec<f64> = values.collect();
        values.iter().any(|value| *value > 0.0).then(|| {
            json!({
                "name": stage.name(),
                "words": stage.words(),
                "color": stage.color(),
                "values": values,
            })
        })
    });
    let actors = last.cpu.iter().take(MAX_SHOWN).flat_map(|(actor, stages)| {
        Stage::ALL.into_iter().filter_map(move |stage| {
            let value = stages.get(stage.name())?;
            Some(json!([actor, stage.name(), round(*value)]))
        })
    });
    let carried = last.carried.iter().take(MAX_SHOWN).map(|(name, quantity)| {
        let values = samples.iter().map(|sample| {
            let one = sample.carried.get(name)?;
            Some(one.value.round())
        });
        let values: Vec<Option<f64>> = values.collect();
        json!({ "name": name, "unit": quantity.unit.to_string(), "values": values })
    });
    Some(json!({
        // In seconds since the trial began.
        "at": samples.iter().map(|sample| round(sample.at)).collect::<Vec<_>>(),
        // The number of busy processors.
        "stages": stages.collect::<Vec<_>>(),
        // The last sample by actor and stage.
        "actors": actors.collect::<Vec<_>>(),
        // The traffic in a second.
        "carried": carried.collect::<Vec<_>>(),
        "source": last.source,
    }))
}

/// The busy processors of a stage in a reading. The host, the target and its client keep their stages; all stages of
/// other actors count as neighbours.
fn of_stage(meter: &LiveSample, stage: Stage) -> f64 {
    let all = meter.cpu.iter().flat_map(|(actor, stages)| {
        let is_neighbour = !["target", "client", "host", "vtax"].contains(&actor.as_str());
        let own = stages.iter().filter(move |(name, _)| {
            if is_neighbour {
                stage == Stage::Neighbours
            } else {
                name.as_str() == stage.name()
            }
        });
        own.map(|(_, value)| value)
    });
    all.sum()
}

/// Rounds to the digits that a graph shows.
fn round(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use vtax_core::{Quantity, Source};

    #[test]
    fn readings_become_curves_by_stage_and_a_row_for_each_actor() {
        let stages = |pairs: &[(&str, f64)]| {
            pairs
                .iter()
                .map(|(stage, value)| ((*stage).to_owned(), *value))
                .collect::<BTreeMap<_, _>>()
        };
        let cpu = [
            ("target", stages(&[("vcpu", 0.5), ("vhost", 0.25)])),
            ("client", stages(&[("client", 0.125)])),
            ("pi", stages(&[("service", 0.5)])),
            ("pi.client", stages(&[("client", 0.25)])),
            ("host", stages(&[("rest", 0.0), ("<no stage>", 9.0)])),
        ];
        let meter = |at| LiveSample {
            at,
            seconds: 1.0,
            source: Source::Emulated,
            cpu: cpu
                .clone()
                .into_iter()
                .map(|(actor, stages)| (actor.to_owned(), stages))
                .collect(),
            carried: [(
                "to it".to_owned(),
                Quantity::new(1e6, "B/s".parse().unwrap()),
            )]
            .into(),
        };
        assert_eq!(curves(&VecDeque::new()), None);
        let curves = curves(&[meter(1.0), meter(2.0)].into()).unwrap();
        let stages = curves["stages"].as_array().unwrap().iter();
        let found: Vec<Value> = stages
            .map(|curve| json!([curve["name"], curve["values"][1]]))
            .collect();
        let expected = [
            ("vcpu", 0.5),
            ("vhost", 0.25),
            ("client", 0.125),
            ("neighbours", 0.75),
        ];
        assert_eq!(found, expected.map(|(name, value)| json!([name, value])));
        assert_eq!(curves["actors"].as_array().unwrap().len(), 6);
        assert_eq!(curves["carried"][0]["values"], json!([1e6, 1e6]));
        assert_eq!(curves["at"], json!([1.0, 2.0]));
        assert_eq!(curves["source"], "emulated");
    }
}
