// SPDX-License-Identifier: Apache-2.0
//! The Software Carbon Intensity (ISO/IEC 21031:2024): (E × I + M) / R.
//!
//! E × I are the emissions of electricity, M the embodied ones, and R is the number of functional units.

use super::currency::{Decimal, DecimalError};
use super::tariff::Tariff;
use super::{Bill, Charge, Party};
use serde::Serialize;
use vtax_core::Source;

/// How many functional units the recorded work was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Per {
    /// The number, in thousandths.
    count: u64,
    /// The unit, such as `request`.
    unit: String,
}

/// A text that is no number of units.
#[derive(Debug, thiserror::Error)]
pub enum PerError {
    /// Not a number.
    #[error("--per: {0}; give a number and a unit, such as: --per 120000 request")]
    Number(#[from] DecimalError),
    /// No units.
    #[error("--per: there is no emission per unit of no units: give a number above 0")]
    Zero,
    /// No unit.
    #[error("--per: the unit is empty: give one, such as: --per 120000 request")]
    Unit,
}

impl Per {
    /// Reads a number and a unit.
    ///
    /// # Errors
    /// When the number is none above 0, or the unit is empty.
    pub fn parse(number: &str, unit: &str) -> Result<Self, PerError> {
        let Decimal(count) = number.parse::<Decimal<3, 1_000_000_000_000_000>>()?;
        if count == 0 {
            return Err(PerError::Zero);
        }
        if unit.trim().is_empty() {
            return Err(PerError::Unit);
        }
        Ok(Self {
            count,
            unit: unit.to_owned(),
        })
    }
}

/// The carbon intensity of a guest, or of the host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sci {
    /// The guest; `None` for the whole host.
    pub guest: Option<String>,
    /// Grams of CO₂e for a functional unit.
    pub grams_per_unit: f64,
    /// The number of functional units, R.
    pub units: f64,
    /// The functional unit.
    pub unit: String,
    /// Grams of electricity, E × I.
    pub operational_grams: f64,
    /// Embodied grams, M.
    pub embodied_grams: f64,
    /// Whether it was measured or modelled.
    pub source: Source,
}

/// The reason that there is no carbon intensity.
#[derive(Debug, thiserror::Error)]
pub enum SciError {
    /// The tariff lacks one of its parts.
    #[error("the Software Carbon Intensity needs [carbon] and [embodied] in the tariff")]
    Tariff,
    /// The recording has no energy.
    #[error("the Software Carbon Intensity needs energy, and the recording's host had no meter")]
    NoEnergy,
    /// No guest has the name.
    #[error("the recording has no guest {0}")]
    NoGuest(String),
}

impl Sci {
    /// The intensity of the guests of a name, or of the whole host without one.
    ///
    /// # Errors
    /// When the tariff or the recording lacks a part of it, or no guest has the name.
    pub fn of(
        bill: &Bill,
        tariff: &Tariff,
        guest: Option<&str>,
        per: &Per,
    ) -> Result<Self, SciError> {
        if tariff.carbon.is_none() || tariff.embodied.is_none() {
            return Err(SciError::Tariff);
        }
        let charge = match guest {
            None => bill.whole,
            Some(name) => {
                let is_meant = |party: &Party| match party {
                    Party::Guest(number) => bill
                        .guests
                        .get(*number)
                        .is_some_and(|named| named.name == name),
                    _ => false,
                };
                let mut meant = bill
                    .charges
                    .iter()
                    .filter(|(party, _)| is_meant(party))
                    .peekable();
                if meant.peek().is_none() {
                    return Err(SciError::NoGuest(name.to_owned()));
                }
                meant.fold(Charge::default(), |mut sum, (_, charge)| {
                    sum.add(charge);
                    sum
                })
            }
        };
        let source = charge.energy_source.ok_or(SciError::NoEnergy)?;
        let grams = |micrograms: u128| micrograms as f64 / 1e6;
        let units = per.count as f64 / 1e3;
        Ok(Self {
            guest: guest.map(str::to_owned),
            grams_per_unit: grams(charge.operational.saturating_add(charge.embodied)) / units,
            units,
            unit: per.unit.clone(),
            operational_grams: grams(charge.operational),
            embodied_grams: grams(charge.embodied),
            source: source.max(charge.cpu_source()),
        })
    }
}
