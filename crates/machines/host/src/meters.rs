// SPDX-License-Identifier: Apache-2.0
//! The meters of a run: opened and probed once, and read in every trial.

use crate::HostError;
use crate::Roots;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use vtax_core::{Nanoseconds, Source};
use vtax_meter::{
    Absent, BusyLoad, Discovery, HostEnergy, Meter, WallConfig, host_energy, keep_moving,
};
use vtax_observe::clock::{Clock, SystemClock};
use vtax_observe::{Instrument, ObserveError, Readings};

/// The environment variable that names a wall meter, as sigrok-cli's `--driver` takes it.
pub const WALL_METER: &str = "VTAX_WALL_METER";
/// The environment variable with the mains voltage, for wall meters that show only a current.
pub const WALL_VOLTS: &str = "VTAX_WALL_VOLTS";
/// The environment variable that names a calibrated power model.
pub const POWER_MODEL: &str = "VTAX_POWER_MODEL";

/// The meters that a plan asked for and this host has.
#[derive(Default)]
pub struct Meters {
    open: Vec<Shared>,
    /// Series of owner `host` whose sum is the host's energy, with the flag of their meter.
    pub energy: Vec<(String, Source)>,
    /// What that energy is made of: domains, coverage, caveats, and the power model where it is modelled.
    pub host: Option<HostEnergy>,
}

/// The open meters, and notes about meters of this host that exist but cannot be used.
pub struct Opened {
    /// The open ones, in order of preference.
    pub meters: Vec<Box<dyn Meter>>,
    /// A sentence for each unusable meter.
    pub unreadable: Vec<String>,
}

impl Meters {
    /// Opens the meters that a plan requests. `auto` means every meter whose readings change under load, and the
    /// model where none of these covers the host.
    ///
    /// # Errors
    /// When a meter that the plan names is absent, with the reason and the remedy.
    pub fn choose(
        wanted: &[String],
        roots: &Roots,
        note: &mut dyn FnMut(String),
    ) -> Result<Self, HostError> {
        if wanted.iter().all(|name| name == "none") {
            return Ok(Self::default());
        }
        let is_auto = wanted.iter().any(|name| name == "auto");
        let names: Vec<&str> = if is_auto {
            vtax_meter::NAMES
                .into_iter()
                .filter(|name| *name != "model")
                .collect()
        } else {
            wanted.iter().map(String::as_str).collect()
        };
        let mut meters: Vec<Box<dyn Meter>> = Vec::new();
        for found in probed(discover(&names, roots)?)? {
            match found {
                Ok(meter) => meters.push(meter),
                Err(absent) if is_auto => unreadable(&absent).into_iter().for_each(&mut *note),
                Err(absent) => {
                    return Err(HostError::Missing {
                        what: format!("the meter that the plan asks for ({absent})"),
                        remedy: absent
                            .remedy
                            .unwrap_or_else(|| "use meters = [\"auto\"]".to_owned()),
                    });
                }
            }
        }
        let energy = host_energy(meters.iter().map(AsRef::as_ref));
        if energy.is_none() && is_auto {
            for meter in discover(&["model"], roots)?.into_iter().flatten() {
                note("no energy meter on this host: joules come from the power model and are marked `modelled`".to_owned());
                meters.push(meter);
            }
        }
        Ok(Self::from_meters(meters))
    }

    /// Meters that are open, in order of preference, without a probe of whether they move.
    pub fn from_meters(meters: Vec<Box<dyn Meter>>) -> Self {
        let energy = host_energy(meters.iter().map(AsRef::as_ref));
        Self {
            open: meters.into_iter().map(Shared::new).collect(),
            energy: series(energy.as_ref()),
            host: energy,
        }
    }

    /// Whether the host's energy is measured, not modelled.
    pub fn is_measured(&self) -> bool {
        let mut series = self.energy.iter();
        series.any(|(_, source)| *source == Source::Measured)
    }

    /// The meters as instruments of one trial.
    pub fn instruments(&self) -> Vec<Box<dyn Instrument>> {
        self.open
            .iter()
            .map(|meter| Box::new(meter.clone()) as Box<dyn Instrument>)
            .collect()
    }
}

fn series(energy: Option<&HostEnergy>) -> Vec<(String, Source)> {
    let flagged = energy.into_iter().flat_map(|energy| {
        let series = energy.series.iter();
        series.map(|metric| (metric.clone(), energy.source))
    });
    flagged.collect()
}

/// Every meter of this host with its state, for `vtax meter list`.
///
/// # Errors
/// When the environment variables for meters are wrong, or the load for the probe cannot start.
pub fn list(roots: &Roots) -> Result<Vec<Discovery>, HostError> {
    probed(discover(&vtax_meter::NAMES, roots)?)
}

/// Opens every meter of this host without probing it, for observers of a working host, which a probe's load would
/// disturb.
///
/// # Errors
/// When the environment variables for meters are wrong.
pub fn open(roots: &Roots) -> Result<Opened, HostError> {
    let mut opened = Opened {
        meters: Vec::new(),
        unreadable: Vec::new(),
    };
    for found in discover(&vtax_meter::NAMES, roots)? {
        match found {
            Ok(meter) => opened.meters.push(meter),
            Err(absent) => opened.unreadable.extend(unreadable(&absent)),
        }
    }
    Ok(opened)
}

/// A note about a meter that exists and cannot be used; the host's energy lacks its part.
fn unreadable(absent: &Absent) -> Option<String> {
    absent.is_unreadable.then(|| {
        let remedy = absent.remedy.as_deref();
        let remedy = remedy.map_or(String::new(), |remedy| format!("; {remedy}"));
        format!(
            "the meter {} is not used: {}{remedy}",
            absent.meter, absent.reason
        )
    })
}

fn discover(names: &[&str], roots: &Roots) -> Result<Vec<Discovery>, HostError> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let options = vtax_meter::Options {
        only: names.iter().map(|name| (*name).to_owned()).collect(),
        wall: wall()?,
        model: model(),
        ..vtax_meter::Options::default()
    };
    Ok(vtax_meter::discover(roots, &options, &clock))
}

/// Marks meters whose readings never change as absent; only measured meters need the load.
fn probed(found: Vec<Discovery>) -> Result<Vec<Discovery>, HostError> {
    let mut there = found.iter().flatten();
    if !there.any(|meter| meter.source() == Source::Measured) {
        return Ok(found);
    }
    let mut load = BusyLoad::start().map_err(HostError::file("start", "the probe's load"))?;
    let mut bench = vtax_meter::Bench {
        load: &mut load,
        clock: &SystemClock,
        wait: &mut std::thread::sleep,
    };
    Ok(keep_moving(found, &mut bench))
}

fn wall() -> Result<Option<WallConfig>, HostError> {
    let Ok(driver) = std::env::var(WALL_METER) else {
        return Ok(None);
    };
    let volts = match std::env::var(WALL_VOLTS) {
        Err(_) => None,
        Ok(text) => match text.parse::<f64>() {
            Ok(volts) if volts.is_finite() && volts > 0.0 => Some(vtax_meter::Volts(volts)),
            _ => {
                return Err(HostError::Invalid {
                    what: format!("{WALL_VOLTS}={text}"),
                    problem: "give a voltage, such as 230".to_owned(),
                });
            }
        },
    };
    Ok(Some(WallConfig {
        volts,
        ..WallConfig::new(driver)
    }))
}

/// The calibrated model: the one that the environment names, or the one in the current directory.
fn model() -> Option<PathBuf> {
    let here = Path::new("power-model.toml");
    std::env::var_os(POWER_MODEL)
        .map(PathBuf::from)
        .or_else(|| here.exists().then(|| here.to_owned()))
}

/// A meter that outlives the trials that read it.
#[derive(Clone)]
struct Shared {
    name: String,
    meter: Arc<Mutex<Box<dyn Meter>>>,
}

impl Shared {
    fn new(meter: Box<dyn Meter>) -> Self {
        Self {
            name: meter.name().to_owned(),
            meter: Arc::new(Mutex::new(meter)),
        }
    }
}

impl Instrument for Shared {
    fn name(&self) -> &str {
        &self.name
    }

    fn read(&mut self, now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        // Trials run one after another, so the lock is free; a panic does not invalidate a meter.
        self.meter
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .read(now, into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A host with two power supplies, of which one cannot be read.
    fn half_a_machine() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (number, watts) in [(0, "150000000\n"), (1, "")] {
            let supply = format!("sys/class/hwmon/hwmon{number}");
            put(&format!("{supply}/name"), "dps920ab\n");
            put(&format!("{supply}/power1_label"), "pin\n");
            put(&format!("{supply}/power1_input"), watts);
        }
        put("proc/stat", "cpu 1 0 0 1 0\ncpu0 1 0 0 1 0\n");
        root
    }

    #[test]
    fn an_existing_meter_that_cannot_be_read_is_named() {
        let root = half_a_machine();
        let opened = open(&Roots::below(root.path())).unwrap();
        assert!(opened.meters.iter().all(|meter| meter.name() != "hwmon"));
        let line = opened.unreadable.first().unwrap();
        assert!(line.contains("hwmon1/power1_input"), "{line}");
    }

    #[test]
    fn a_run_says_which_meter_it_does_not_use_and_keeps_the_model_that_it_uses() {
        let root = half_a_machine();
        let mut notes = Vec::new();
        let auto = ["auto".to_owned()];
        let roots = Roots::below(root.path());
        let meters = Meters::choose(&auto, &roots, &mut |line| notes.push(line)).unwrap();
        assert!(notes[0].contains("hwmon1/power1_input"), "{notes:?}");
        let of_all = meters.energy.iter().map(|(_, source)| *source);
        assert!(of_all.eq([Source::Modelled]));
        let host = meters.host.unwrap();
        assert!(host.model.is_some());
        assert_eq!(host.to_string(), "model host: the whole machine");
    }
}
