// SPDX-License-Identifier: Apache-2.0
//! Description of one series of readings.

use crate::owner::Owner;
use crate::{Source, Unit};
use serde::{Deserialize, Serialize};

/// The meaning of the values of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SeriesKind {
    /// Never decreases (after wraps and resets are undone); differences are meaningful.
    Counter,
    /// An instantaneous value; means are meaningful.
    Gauge,
}

impl SeriesKind {
    /// The name of the kind in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }

    /// Returns the kind with this name.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Counter, Self::Gauge]
            .into_iter()
            .find(|kind| kind.name() == name)
    }
}

/// Description of the values of one series. Owner and metric identify it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Series {
    /// The owner: `host`, `target`, `client`, `vtax`.
    pub owner: Owner,
    /// The dotted name of the metric: `cpu.total_ns`, `interrupts.virtio0`, as in [`crate::counter`].
    pub metric: String,
    /// The unit of its values.
    pub unit: Unit,
    /// Counter or gauge.
    pub kind: SeriesKind,
    /// Measured, modelled, emulated or simulated.
    pub source: Source,
}
