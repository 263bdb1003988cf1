// SPDX-License-Identifier: Apache-2.0
//! The samples of the present trial as curves: processor time by stage, and the traffic of the target's devices.

use serde::Serialize;
use std::collections::VecDeque;
use vtax_core::Source;
use vtax_lab::run::LiveSample;
use vtax_results::Stage;

/// The largest number of actors, and of devices, that are shown.
const MAX_SHOWN: usize = 32;

/// The readings of a trial, by column.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Meters {
    /// The time, in seconds since the trial began.
    at: Vec<f64>,
    /// The number of busy processors by stage. The guests other than the target and their clients are one stage.
    stages: Vec<Curve>,
    /// The last reading by actor and stage.
    actors: Vec<(String, &'static str, f64)>,
    /// The traffic in a second.
    carried: Vec<Carried>,
    source: Source,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Curve {
    name: &'static str,
    words: &'static str,
    color: &'static str,
    values: Vec<f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Carried {
    name: String,
    unit: String,
    values: Vec<Option<f64>>,
}

impl Meters {
    /// The curves of readings; `None` without a reading.
    pub fn of(meters: &VecDeque<LiveSample>) -> Option<Self> {
        let last = meters.back()?;
        let stages = Stage::ALL.into_iter().filter_map(|stage| {
            let values: Vec<f64> = meters
                .iter()
                .map(|meter| round(of_stage(meter, stage)))
                .collect();
            values.iter().any(|value| *value > 0.0).then(|| Curve {
                name: stage.name(),
                words: stage.words(),
                color: stage.color(),
                values,
            })
        });
        let actors = last.cpu.iter().take(MAX_SHOWN).flat_map(|(actor, stages)| {
            Stage::ALL.into_iter().filter_map(|stage| {
                let value = stages.get(stage.name())?;
                Some((actor.clone(), stage.name(), round(*value)))
            })
        });
        let carried = last.carried.iter().take(MAX_SHOWN).map(|(name, quantity)| {
            let values = meters.iter().map(|meter| {
                let one = meter.carried.get(name)?;
                Some(one.value.round())
            });
            Carried {
                name: name.clone(),
                unit: quantity.unit.to_string(),
                values: values.collect(),
            }
        });
        Some(Self {
            at: meters.iter().map(|meter| round(meter.at)).collect(),
            stages: stages.collect(),
            actors: actors.collect(),
            carried: carried.collect(),
            source: last.source,
        })
    }
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
    use vtax_core::Quantity;

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
        assert_eq!(Meters::of(&VecDeque::new()), None);
        let meters = Meters::of(&[meter(1.0), meter(2.0)].into()).unwrap();
        let found: Vec<(&str, f64)> = meters
            .stages
            .iter()
            .map(|curve| (curve.name, curve.values[1]))
            .collect();
        let expected = [
            ("vcpu", 0.5),
            ("vhost", 0.25),
            ("client", 0.125),
            ("neighbours", 0.75),
        ];
        assert_eq!(found, expected);
        assert_eq!(meters.actors.len(), 6);
        assert_eq!(meters.carried[0].values, [Some(1e6), Some(1e6)]);
        assert_eq!(meters.at, [1.0, 2.0]);
        assert_eq!(meters.source, Source::Emulated);
    }
}
