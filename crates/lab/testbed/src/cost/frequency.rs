// SPDX-License-Identifier: Apache-2.0
//! The effect of lower frequencies on cycles and watts.
//!
//! A processor at a lower frequency is stalled for a part of its busy time (`speed.rs`), which is no work. A cycle
//! takes less energy there, since the voltage is lower as well. Both follow from the busy time at each frequency.

use serde::Deserialize;
use std::collections::BTreeMap;
use vtax_lab::run::busy_mhz;
use vtax_results::Trial;

/// The power of a processor at full load at a frequency; only ratios are used.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AtFrequency {
    pub mhz: u64,
    pub watts: f64,
}

/// The processors of a trial relative to processors at their highest frequency.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Slowdown {
    /// Work per second of busy time, relative to the highest frequency.
    pub pace: f64,
    /// Joules per cycle, relative to the highest frequency.
    pub price: f64,
    /// Frequencies that the model lacks; their cycles count like those of the highest.
    pub unknown: Vec<u64>,
}

impl Slowdown {
    /// The slowdown of a trial; one without frequencies or work is at the highest frequency.
    pub fn from_trial(trial: &Trial, watts: &[AtFrequency]) -> Self {
        let busy = trial.metrics.iter();
        let busy: BTreeMap<u64, f64> = busy
            .filter_map(|(name, metric)| Some((busy_mhz(name)?, metric.quantity.value)))
            .collect();
        let mut slowdown = Self {
            pace: 1.0,
            price: 1.0,
            unknown: Vec::new(),
        };
        let Some(highest) = busy.keys().next_back().copied() else {
            return slowdown;
        };
        // Joules per cycle.
        let each = |mhz: u64| {
            let known = watts.iter().find(|at| at.mhz == mhz)?;
            Some(known.watts / mhz as f64)
        };
        let (mut time, mut cycles, mut joules) = (0.0, 0.0, 0.0);
        for (mhz, busy) in busy.into_iter().filter(|(_, busy)| *busy > 0.0) {
            let done = busy * mhz as f64;
            let price = each(mhz).zip(each(highest)).map(|(one, most)| one / most);
            if price.is_none() {
                slowdown.unknown.push(mhz);
            }
            time += busy;
            cycles += done;
            joules += done * price.unwrap_or(1.0);
        }
        if cycles > 0.0 {
            slowdown.pace = cycles / (time * highest as f64);
            slowdown.price = joules / cycles;
        }
        slowdown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::tests::trial;

    const WATTS: [AtFrequency; 2] = [
        AtFrequency {
            mhz: 2000,
            watts: 80.0,
        },
        AtFrequency {
            mhz: 1000,
            watts: 20.0,
        },
    ];

    #[test]
    fn half_the_frequency_is_half_the_pace_at_the_price_that_the_model_says() {
        let trial = trial(
            "vm",
            &[
                ("frequency.2000_mhz.busy", 0.0),
                ("frequency.1000_mhz.busy", 0.4),
                ("frequency.1000_mhz", 1.0),
            ],
        );
        let slowdown = Slowdown::from_trial(&trial, &WATTS);
        assert_eq!((slowdown.pace, slowdown.price), (0.5, 0.5));
    }

    #[test]
    fn cycles_and_not_seconds_weigh_the_price() {
        let trial = trial(
            "vm",
            &[
                ("frequency.2000_mhz.busy", 0.1),
                ("frequency.1000_mhz.busy", 0.2),
            ],
        );
        // The cycles at both frequencies are equal. They take 0.3 s, and 0.2 s at the highest frequency.
        let slowdown = Slowdown::from_trial(&trial, &WATTS);
        assert!((slowdown.pace - 2.0 / 3.0).abs() < 1e-12);
        assert!((slowdown.price - 0.75).abs() < 1e-12);
    }

    #[test]
    fn a_trial_without_frequencies_or_work_is_as_it_was() {
        for metrics in [&[][..], &[("frequency.1000_mhz.busy", 0.0)]] {
            let slowdown = Slowdown::from_trial(&trial("vm", metrics), &WATTS);
            assert_eq!((slowdown.pace, slowdown.price), (1.0, 1.0));
        }
    }

    #[test]
    fn a_frequency_that_the_model_does_not_know_is_named() {
        let trial = trial(
            "vm",
            &[
                ("frequency.2000_mhz.busy", 0.1),
                ("frequency.1500_mhz.busy", 0.1),
            ],
        );
        let slowdown = Slowdown::from_trial(&trial, &WATTS);
        assert_eq!(slowdown.unknown, [1500]);
        assert_eq!(slowdown.price, 1.0);
    }
}
