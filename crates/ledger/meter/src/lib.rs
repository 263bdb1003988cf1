// SPDX-License-Identifier: Apache-2.0
//! Sources of joules, one file each, with their discovery and the sum of their domains.
//!
//! Every meter records, for the owner `host`, one counter `energy.<meter>.<domain>_joules`, which never decreases, for
//! each of its domains, and one gauge `power.<meter>.<domain>_watts` where the device itself shows watts. [`discover`]
//! opens every meter of the host and gives the reason for each absent one; [`host_energy`] names the series whose sum
//! is the energy of the host, so that nothing is counted twice. `docs/howto/energy.md` explains the coverage of each meter.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

mod battery;
mod calibrate;
mod coverage;
mod discovery;
mod energy;
mod hwmon;
mod hwmon_chip;
mod ipmi;
mod load;
mod model;
mod nvml;
mod perf_power;
mod polled;
mod power_model;
mod powercap;
mod probe;
mod program;
mod sensors;
mod series;
mod sysfs;
mod wall;

pub use calibrate::{
    CalibrateError, Calibration, CalibrationSettings, Observation, Progress, calibrate,
};
pub use coverage::{Domain, HostEnergy, Part, host_domains, host_energy};
pub use discovery::{Discovery, NAMES, Options, discover};
pub use energy::{EnergyCounter, ImplausiblePower, PowerIntegral};
pub use ipmi::IpmiConfig;
pub use load::{BusyLoad, Load};
pub use model::{DEFAULT_MODEL, Model, ModelError, ModelMeter, POINTS};
pub use polled::Polled;
pub use power_model::{Fit, PowerModel};
pub use powercap::powercap;
pub use probe::{Bench, Probe, keep_moving, probe_under_load};
pub use sensors::Sensors;
pub use wall::{Volts, WallConfig, wall};

use vtax_core::{Source, counter};
use vtax_observe::Instrument;

/// A source of joules. [`Instrument::name`] is the meter's short name, such as `powercap`.
pub trait Meter: Instrument {
    /// The domains that it measures, one counter series each.
    fn domains(&self) -> &[Domain];

    /// Whether its joules are measured or modelled.
    fn source(&self) -> Source {
        Source::Measured
    }

    /// The model that computed its joules, where they are modelled.
    fn model(&self) -> Option<PowerModel> {
        None
    }

    /// Limitations of its numbers, each a sentence.
    fn caveats(&self) -> &[String] {
        &[]
    }
}

/// The reason that a host does not have a meter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{meter} is absent: {reason}")]
pub struct Absent {
    /// The meter's name.
    pub meter: &'static str,
    /// The evidence.
    pub reason: String,
    /// The change that would make the meter available, if any.
    pub remedy: Option<String>,
    /// The host has the meter, but it cannot be read or trusted: reported where the meter would be used.
    pub is_unreadable: bool,
}

impl Absent {
    fn because(meter: &'static str, reason: impl Into<String>) -> Self {
        Self {
            meter,
            reason: reason.into(),
            remedy: None,
            is_unreadable: false,
        }
    }

    fn unreadable(self) -> Self {
        Self {
            is_unreadable: true,
            ..self
        }
    }

    fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}

/// The metric of a domain's joules.
pub fn joules_metric(meter: &str, domain: &str) -> String {
    counter::ENERGY.name(&[meter, domain])
}

/// The metric of a domain's watts.
pub fn watts_metric(meter: &str, domain: &str) -> String {
    counter::POWER.name(&[meter, domain])
}
