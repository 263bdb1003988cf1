// SPDX-License-Identifier: Apache-2.0
//! Identification of the power model that computed joules, recorded beside modelled numbers.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// How well a calibrated curve fits the meter's readings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fit {
    /// The meter that was read.
    pub meter: String,
    /// The part of the machine that the meter covers.
    pub covers: String,
    /// Pairs of utilization and power that the curve was fitted to.
    pub observations: usize,
    /// Root of the mean squared difference between curve and meter, in watts.
    pub residual_rms_watts: f64,
    /// The largest difference, in watts.
    pub residual_worst_watts: f64,
}

/// The model that computed joules, for the record beside them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PowerModel {
    /// The machine, and how the curve was obtained.
    pub name: String,
    /// The day on which it was measured or fitted, such as 2026-03-01; unknown in older files.
    pub date: Option<String>,
    /// The file that it was read from; `None` for the model that vtax ships.
    pub file: Option<PathBuf>,
    /// How it was fitted; `None` for a published curve, whose distance from this machine is unknown.
    pub fit: Option<Fit>,
}

impl fmt::Display for PowerModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(date) = &self.date {
            write!(f, ", of {date}")?;
        }
        match &self.fit {
            Some(fit) => write!(
                f,
                ", fitted to {} (off by {:.1} W typically, {:.1} W at worst)",
                fit.meter, fit.residual_rms_watts, fit.residual_worst_watts
            ),
            None => f.write_str(", a published curve of another machine"),
        }
    }
}
