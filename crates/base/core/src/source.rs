// SPDX-License-Identifier: Apache-2.0
//! The source of a number: measured, modelled, emulated or simulated. Every number that vtax shows carries one.

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
    /// Of a guest whose instructions software emulates (TCG), on a real host: its times and costs are real, and are
    /// those of an emulator.
    Emulated,
    /// Of an emulated host (a testbed): its instructions and events are counted, and its times are not those of
    /// hardware.
    Simulated,
}

impl Source {
    /// Returns the flag with this name.
    pub fn named(name: &str) -> Option<Self> {
        [
            Self::Measured,
            Self::Modelled,
            Self::Emulated,
            Self::Simulated,
        ]
        .into_iter()
        .find(|source| source.to_string() == name)
    }

    /// The flag of a number that a record holds as `self`, of a run at `place`. Records of an earlier vtax flag the
    /// numbers of an emulated host as emulated.
    pub fn recorded_at(self, place: &str) -> Self {
        match self {
            Self::Emulated if place.starts_with("testbed:") => Self::Simulated,
            other => other,
        }
    }

    /// The flag of a number that was derived from numbers flagged `self` and `other`.
    pub fn combine(self, other: Self) -> Self {
        self.max(other)
    }

    /// The flags of a number with this source, the worst first: none where it is measured, two where a model computed
    /// it from counters of an emulated guest or host.
    pub fn flags(self, is_modelled: bool) -> impl Iterator<Item = Self> {
        let model = (is_modelled && self != Self::Modelled).then_some(Self::Modelled);
        let all = [Some(self), model].into_iter().flatten();
        all.filter(|flag| *flag != Self::Measured)
    }

    /// The flags in words: `measured`, `modelled`, `emulated`, `simulated`, `simulated, modelled`.
    pub fn words(self, is_modelled: bool) -> String {
        let flags: Vec<String> = self
            .flags(is_modelled)
            .map(|flag| flag.to_string())
            .collect();
        match flags.as_slice() {
            [] => Self::Measured.to_string(),
            flags => flags.join(", "),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Measured => "measured",
            Self::Modelled => "modelled",
            Self::Emulated => "emulated",
            Self::Simulated => "simulated",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_flag_hides_that_a_model_computed_a_number() {
        let words = |source: Source| [source.words(false), source.words(true)];
        assert_eq!(words(Source::Measured), ["measured", "modelled"]);
        assert_eq!(words(Source::Modelled), ["modelled", "modelled"]);
        assert_eq!(words(Source::Emulated), ["emulated", "emulated, modelled"]);
        assert_eq!(
            words(Source::Simulated),
            ["simulated", "simulated, modelled"]
        );
    }

    #[test]
    fn a_guest_under_tcg_in_an_emulated_host_is_simulated() {
        assert_eq!(
            Source::Emulated.combine(Source::Simulated),
            Source::Simulated
        );
        assert_eq!(Source::named("simulated"), Some(Source::Simulated));
    }

    #[test]
    fn an_old_record_of_an_emulated_host_is_simulated_and_a_guest_under_tcg_stays_emulated() {
        for place in ["testbed:kvm", "testbed:xen"] {
            assert_eq!(Source::Emulated.recorded_at(place), Source::Simulated);
            assert_eq!(Source::Simulated.recorded_at(place), Source::Simulated);
            assert_eq!(Source::Measured.recorded_at(place), Source::Measured);
        }
        for place in ["local", "ssh:testbed"] {
            assert_eq!(Source::Emulated.recorded_at(place), Source::Emulated);
        }
    }
}
