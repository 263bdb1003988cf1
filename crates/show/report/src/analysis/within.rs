// SPDX-License-Identifier: Apache-2.0
//! Quantiles within a trial: the interval of each by order statistics, and whether the trial has enough values for it.

use serde::Serialize;
use std::collections::BTreeMap;
use vtax_core::metric;
use vtax_core::owner::{CLIENT, TARGET};
use vtax_results::stats::{Interval, Unsupported, quantile_interval, supports};
use vtax_results::{HistogramRecord, Metric, Trial};

/// Nanoseconds in a second.
const SECOND: f64 = 1e9;

/// One quantile of one trial, from a histogram of the trial.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrialQuantile {
    /// The guest whose requests these are.
    pub guest: String,
    /// The load level; `None` for the whole measured window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// The metric, such as `latency.p99`.
    pub metric: String,
    /// The quantile, between 0 and 1.
    pub quantile: f64,
    /// Number of values in the histogram.
    pub values: u64,
    /// The 95 % interval by order statistics, in seconds; `None` where the values are too few for it.
    pub interval: Option<Interval>,
}

impl TrialQuantile {
    /// The reason for a missing interval.
    pub(crate) fn unsupported(&self) -> Option<Unsupported> {
        supports(self.values, self.quantile).err()
    }
}

/// The quantiles of a trial that have a histogram.
pub(crate) fn of_trial(trial: &Trial, histograms: &[HistogramRecord]) -> Vec<TrialQuantile> {
    let mut found = Vec::new();
    for record in histograms {
        let actor = |name: &str| trial.actors.iter().find(|actor| actor.name == name);
        let guest = match actor(&record.actor).and_then(|of| of.drives.as_deref()) {
            Some(guest) => guest,
            None if record.actor == CLIENT => TARGET,
            None => continue,
        };
        let mut phases = trial.phases.iter();
        let phase = phases.find(|phase| record.is_of(phase.window));
        let metrics: Option<&BTreeMap<String, Metric>> = match (phase, guest == TARGET) {
            (Some(phase), true) => Some(&phase.metrics),
            (Some(phase), false) => phase.others.get(guest),
            (None, true) => Some(&trial.metrics),
            (None, false) => actor(guest).map(|actor| &actor.metrics),
        };
        for name in metrics.into_iter().flat_map(BTreeMap::keys) {
            let Some((of, quantile)) = metric::quantile(name) else {
                continue;
            };
            if of != record.metric {
                continue;
            }
            let interval = quantile_interval(&record.histogram, quantile).ok();
            found.push(TrialQuantile {
                guest: guest.to_owned(),
                level: phase.map(|phase| phase.name.clone()),
                metric: name.clone(),
                quantile,
                values: record.histogram.len(),
                interval: interval.map(|ends| Interval {
                    low: ends.low / SECOND,
                    high: ends.high / SECOND,
                }),
            });
        }
    }
    found
}

/// A quantile within the trials of a treatment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Within {
    /// The quantile, between 0 and 1.
    pub quantile: f64,
    /// Number of values of the trial with the fewest.
    pub fewest_values: u64,
    /// Median over the trials of the interval's half width within a trial, as a share of the value; `None` where a trial
    /// has no interval.
    pub half_width: Option<f64>,
}
