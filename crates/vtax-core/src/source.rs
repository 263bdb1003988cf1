//! The source of a number: measured, modelled or emulated. Every number that vtax shows carries one.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The source of a number, from the most to the least trustworthy.
///
/// Ordered so that the flag of a derived number is the `max` over its inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Read from real hardware or a real kernel counter.
    Measured,
    /// Computed by a model from measured inputs (for example, power from utilization).
    Modelled,
    /// Counted in an emulated machine (for example, a guest under TCG): the counts are real, the times are not.
    Emulated,
}

impl Source {
    /// Returns the flag with this name.
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
