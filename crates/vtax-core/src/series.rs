//! What one series of readings is.

use crate::{Source, Unit};
use serde::{Deserialize, Serialize};

/// How the values of a series are to be understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SeriesKind {
    /// Only ever grows (after wraps and resets are undone); differences are meaningful.
    Counter,
    /// A momentary value; means are meaningful.
    Gauge,
}

impl SeriesKind {
    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Counter, Self::Gauge]
            .into_iter()
            .find(|kind| kind.name() == name)
    }
}

/// What the values of one series are. Owner and metric identify it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Series {
    /// Whose it is: `host`, `target`, `client`, `vtax`.
    pub owner: String,
    /// What it is, dotted: `cpu.total_ns`, `interrupts.virtio0`, as in [`crate::counter`].
    pub metric: String,
    /// The unit of its values.
    pub unit: Unit,
    /// Counter or gauge.
    pub kind: SeriesKind,
    /// Measured, modelled or emulated.
    pub source: Source,
}
