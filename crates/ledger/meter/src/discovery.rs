// SPDX-License-Identifier: Apache-2.0
//! Discovery of the meters of this host, with the reason for each absent one.

use super::{
    Absent, IpmiConfig, Meter, ModelMeter, WallConfig, battery, hwmon, ipmi, model, nvml,
    perf_power, powercap, wall,
};
use std::path::PathBuf;
use std::sync::Arc;
use vtax_observe::Roots;
use vtax_observe::clock::Clock;

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

/// A meter that was opened, or the reason for its absence.
pub type Discovery = Result<Box<dyn Meter>, Absent>;

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
    Ok(match name {
        perf_power::NAME => {
            let open = &mut perf_power::open_event;
            Box::new(perf_power::perf_power(&roots.sys, &roots.proc, open)?)
        }
        powercap::NAME => Box::new(powercap::powercap(&roots.sys, &roots.proc)?),
        hwmon::NAME => Box::new(hwmon::hwmon(&roots.sys)?),
        nvml::NAME => Box::new(nvml::nvml(options.nvml_library.as_deref())?),
        battery::NAME => Box::new(battery::battery(&roots.sys)?),
        ipmi::NAME => {
            let config = options.ipmi.clone();
            Box::new(ipmi::ipmi(&roots.dev, config, Arc::clone(clock))?)
        }
        wall::NAME => {
            let config = options.wall.as_ref().ok_or_else(|| {
                let reason = "none is configured, and a serial port cannot be guessed";
                Absent::because(wall::NAME, reason).remedy(
                    "name sigrok's driver and port, such as mastech-mas345:conn=/dev/ttyUSB0",
                )
            })?;
            Box::new(wall::wall(config, Arc::clone(clock))?)
        }
        _ => Box::new(ModelMeter::open(&roots.proc, options.model.as_deref())?),
    })
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
    use crate::host_energy;
    use std::fs;
    use tempfile::TempDir;
    use vtax_observe::clock::SystemClock;

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
            let Err(absent) = found else {
                panic!("{name} is there")
            };
            assert_eq!(absent.meter, name);
            assert!(!absent.reason.is_empty());
        }
        let energy = host_energy(found.iter().flatten().map(AsRef::as_ref)).unwrap();
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
            eprintln!("{:?}", found.map(|meter| meter.name().to_owned()));
        }
    }
}
