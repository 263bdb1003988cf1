//! Where a number comes from. Every number that is shown carries one of these.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Where a number comes from, from the most to the least trustworthy.
///
/// Ordered so that `max` over the inputs of a derived number is the flag that it must carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Read from real hardware or a real kernel counter.
    Measured,
    /// Computed by a model from measured inputs (for example power from utilization).
    Modelled,
    /// Seen in an emulated machine (for example a guest under TCG): real counts, no real time.
    Emulated,
}

impl Source {
    /// The flag of this name.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Measured, Self::Modelled, Self::Emulated]
            .into_iter()
            .find(|source| source.to_string() == name)
    }

    /// The flag of a number that was derived from numbers flagged `self` and `other`.
    pub fn combine(self, other: Self) -> Self {
        self.max(other)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Measured => "measured",
            Self::Modelled => "modelled",
            Self::Emulated => "emulated",
        })
    }
}
