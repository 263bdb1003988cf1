// SPDX-License-Identifier: Apache-2.0
//! Discovery of the meters of this host, with the reason for each absent one.

use super::{
    Absent, Battery, Hwmon, Ipmi, IpmiConfig, Meter, ModelMeter, NvmlMeter, PerfPower, Powercap,
    WallConfig, WallMeter, battery, hwmon, ipmi, model, nvml, open_event, perf_power, powercap,
    wall,
};
use crate::Roots;
use crate::clock::Clock;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Settings that discovery cannot find by itself.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Only these meters are opened, by name; all of them if empty.
    pub only: Vec<String>,
    /// Settings for reading the BMC.
    pub ipmi: IpmiConfig,
    /// The wall meter, if there is one; its serial port cannot be discovered.
    pub wall: Option<WallConfig>,
    /// NVIDIA's management library, where it is not in the usual place.
    pub nvml_library: Option<PathBuf>,
    /// A calibrated power model; the default one if `None`.
    pub model: Option<PathBuf>,
}

/// A meter, or the reason for its absence.
pub enum Discovery {
    /// A meter that was opened.
    Meter(Box<dyn Meter>),
    /// An absent meter.
    Absent(Absent),
}

impl Discovery {
    /// The meter, if present.
    pub fn meter(&self) -> Option<&dyn Meter> {
        match self {
            Self::Meter(meter) => Some(meter.as_ref()),
            Self::Absent(_) => None,
        }
    }

    fn of<M: Meter + 'static>(opened: Result<M, Absent>) -> Self {
        match opened {
            Ok(meter) => Self::Meter(Box::new(meter)),
            Err(absent) => Self::Absent(absent),
        }
    }
}

impl fmt::Debug for Discovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Meter(meter) => f.debug_tuple("Meter").field(&meter.name()).finish(),
            Self::Absent(absent) => f.debug_tuple("Absent").field(absent).finish(),
        }
    }
}

/// Every meter's name, in order of preference: the processor's own counters first (exact and
/// fast), then boards and supplies, then slow and averaged ones, and the model last.
pub const NAMES: [&str; 8] = [
    perf_power::NAME,
    powercap::NAME,
    hwmon::NAME,
    nvml::NAME,
    battery::NAME,
    ipmi::NAME,
    wall::NAME,
    model::NAME,
];

/// Opens every meter of the host, in order of preference ([`NAMES`]), and returns the reason for each absent one.
///
/// A meter that is found may still not move: see [`super::keep_moving`].
pub fn discover(roots: &Roots, options: &Options, clock: &Arc<dyn Clock>) -> Vec<Discovery> {
    let wanted =
        |name: &&str| options.only.is_empty() || options.only.iter().any(|only| only == name);
    NAMES
        .into_iter()
        .filter(wanted)
        .map(|name| open(name, roots, options, clock))
        .collect()
}

fn open(name: &'static str, roots: &Roots, options: &Options, clock: &Arc<dyn Clock>) -> Discovery {
    match name {
        perf_power::NAME => {
            Discovery::of(PerfPower::open(&roots.sys, &roots.proc, &mut open_event))
        }
        powercap::NAME => Discovery::of(Powercap::open(&roots.sys, &roots.proc)),
        hwmon::NAME => Discovery::of(Hwmon::open(&roots.sys)),
        nvml::NAME => Discovery::of(NvmlMeter::open(options.nvml_library.as_deref())),
        battery::NAME => Discovery::of(Battery::open(&roots.sys)),
        ipmi::NAME => Discovery::of(Ipmi::open(
            &roots.dev,
            options.ipmi.clone(),
            Arc::clone(clock),
        )),
        wall::NAME => match &options.wall {
            Some(config) => Discovery::of(WallMeter::open(config, Arc::clone(clock))),
            None => Discovery::Absent(
                Absent::because(
                    wall::NAME,
                    "none is configured, and a serial port cannot be guessed",
                )
                .remedy("name sigrok's driver and port, such as mastech-mas345:conn=/dev/ttyUSB0"),
            ),
        },
        _ => Discovery::of(ModelMeter::open(&roots.proc, options.model.as_deref())),
    }
}

/// The constant that is a meter's name.
pub(super) fn static_name(name: &str) -> &'static str {
    NAMES
        .into_iter()
        .find(|known| *known == name)
        .unwrap_or("meter")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::meter::host_energy;
    use std::fs;
    use tempfile::TempDir;

    #[test]
    fn every_meter_of_a_bare_host_is_absent_with_a_reason_and_the_model_steps_in() {
        let root = TempDir::new().unwrap();
        let roots = Roots::below(root.path());
        fs::create_dir(&roots.proc).unwrap();
        fs::write(roots.proc.join("stat"), "cpu 1 0 0 1 0\ncpu0 1 0 0 1 0\n").unwrap();
        let options = Options {
            nvml_library: Some(root.path().join("libnvidia-ml.so.1")),
            ..Options::default()
        };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let found = discover(&roots, &options, &clock);
        assert_eq!(found.len(), NAMES.len());
        for (found, name) in found.iter().zip(NAMES).take(NAMES.len() - 1) {
            let Discovery::Absent(absent) = found else {
                panic!("{name} is there")
            };
            assert_eq!(absent.meter, name);
            assert!(!absent.reason.is_empty());
        }
        let energy = host_energy(found.iter().filter_map(Discovery::meter)).unwrap();
        assert_eq!(energy.series, ["energy.model.host_joules"]);
        assert_eq!(energy.source, vtax_core::Source::Modelled);
    }

    #[test]
    fn only_the_wanted_meters_are_opened() {
        let options = Options {
            only: vec!["model".into()],
            ..Options::default()
        };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let found = discover(&Roots::host(), &options, &clock);
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn the_meters_of_this_machine_can_be_listed() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        for found in discover(&Roots::host(), &Options::default(), &clock) {
            eprintln!("{found:?}");
        }
    }
}
