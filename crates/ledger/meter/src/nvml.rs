// SPDX-License-Identifier: Apache-2.0
//! NVIDIA boards, through the management library of their driver.

use super::sensors::{Read, Reading, Sensors};
use super::{Absent, Domain, EnergyCounter, Meter, Part};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use vtax_core::{Joules, Watts};
use vtax_observe::ObserveError;

pub(super) const NAME: &str = "nvml";

/// The file name that the driver installs; the name without a version belongs to development packages.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// Loads the library (`library` if given) and opens every board. A board's energy counter (Volta and later) counts
/// millijoules since the driver was loaded and is updated every 20 to 100 ms; older boards show only milliwatts, which
/// are integrated here.
///
/// # Errors
/// The reason that there is none.
pub fn nvml(library: Option<&Path>) -> Result<Sensors, Absent> {
    let path = library.map_or(OsStr::new(LIBRARY), Path::as_os_str);
    let loaded = Nvml::builder().lib_path(path).init();
    let nvml = loaded.map(Arc::new).map_err(|error| {
        let library = path.to_string_lossy();
        match error {
            NvmlError::LibloadingError(cause) => {
                Absent::because(NAME, format!("{library} cannot be loaded: {cause}"))
                    .remedy("on a host with an NVIDIA board: install its driver")
            }
            error => Absent::because(NAME, format!("{library}: {error}")),
        }
    })?;
    let count = nvml
        .device_count()
        .map_err(|error| Absent::because(NAME, error.to_string()))?;
    let mut meter = Sensors::new(NAME);
    let mut failure = None;
    for index in 0..count {
        let name = format!("gpu-{index}");
        match board(&nvml, index) {
            Ok(reading) => {
                let part = Part::Accelerator;
                meter.add(Domain { name, part }, title(index), reading);
            }
            Err(error) => {
                // Some boards never show it; the sum of the other boards then lacks this one.
                meter.caveats.push(format!(
                    "the sum lacks {name}, which shows neither energy nor power: {error}"
                ));
                failure = failure.or(Some(error));
            }
        }
    }
    if meter.domains().is_empty() {
        let reason = failure.map_or("the driver knows no board".to_owned(), |error| {
            format!("no board shows energy or power: {error}")
        });
        return Err(Absent::because(NAME, reason));
    }
    Ok(meter)
}

fn title(index: u32) -> String {
    format!("NVML board {index}")
}

fn board(nvml: &Arc<Nvml>, index: u32) -> Result<Reading, NvmlError> {
    let part = Part::Accelerator;
    let device = nvml.device_by_index(index)?;
    let power = reader(nvml, index, |device| {
        Ok(Watts(f64::from(device.power_usage()?) * 1e-3))
    });
    if device.total_energy_consumption().is_ok() {
        let counter = EnergyCounter::new(Joules(1e-3), None, part.most());
        let count = reader(nvml, index, |device| device.total_energy_consumption());
        return Ok(Reading::Counted(counter, count, Some(power)));
    }
    device.power_usage()?;
    Ok(Reading::of_power(part, power))
}

fn reader<T: 'static>(
    nvml: &Arc<Nvml>,
    index: u32,
    of: fn(&Device<'_>) -> Result<T, NvmlError>,
) -> Read<T> {
    let nvml = Arc::clone(nvml);
    Box::new(move || {
        let read = nvml.device_by_index(index).and_then(|device| of(&device));
        read.map_err(|error| ObserveError::unavailable(title(index), error.to_string()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;
    use std::process::Command;
    use tempfile::TempDir;
    use vtax_core::Nanoseconds;
    use vtax_core::owner::Owner;
    use vtax_observe::{Instrument, Readings, Snapshot};

    /// A library of three boards: the first counts energy, the second only shows power, the third shows
    /// neither. Energy grows on every call.
    const LIBRARY_OF_THREE_BOARDS: &str = r"
        static unsigned long long energy = 1000000;
        static int boards[3];
        int nvmlInit_v2(void) { return 0; }
        int nvmlShutdown(void) { return 0; }
        int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return 0; }
        int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
            if (index > 2) return 2;
            *device = &boards[index];
            return 0;
        }
        int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
            if (device != &boards[0]) return 3;
            *millijoules = energy += 250000;
            return 0;
        }
        int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
            if (device == &boards[2]) return 3;
            *milliwatts = 60500;
            return 0;
        }
    ";

    fn library(directory: &TempDir) -> Option<PathBuf> {
        let source = directory.path().join("nvml.c");
        let library = directory.path().join("libnvidia-ml.so.1");
        fs::write(&source, LIBRARY_OF_THREE_BOARDS).unwrap();
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .arg(&library)
            .arg(&source)
            .status();
        built
            .is_ok_and(|status| status.success())
            .then_some(library)
    }

    #[test]
    fn boards_that_count_and_boards_that_only_show_power_both_give_joules() {
        let directory = TempDir::new().unwrap();
        let Some(library) = library(&directory) else {
            eprintln!("SKIPPED: no C compiler to build a stand-in for NVML");
            return;
        };
        let mut meter = nvml(Some(&library)).unwrap();
        let mut readings = Readings::default();
        for second in 0..3 {
            meter
                .read(Nanoseconds(second * 1_000_000_000), &mut readings)
                .unwrap();
        }
        let snapshot = Snapshot::from_readings(Nanoseconds(2_000_000_000), &readings);
        let value = |metric| snapshot.get(&Owner::Host, metric).unwrap().value;
        assert_eq!(value("energy.nvml.gpu-0_joules"), 500.0);
        assert_eq!(value("energy.nvml.gpu-1_joules"), 121.0);
        assert_eq!(value("power.nvml.gpu-1_watts"), 60.5);
        assert_eq!(meter.domains().len(), 2);
        assert!(
            meter.caveats()[0].contains("lacks gpu-2"),
            "{:?}",
            meter.caveats()
        );
    }

    #[test]
    fn a_host_without_the_library_says_which_one_was_tried() {
        let absent = nvml(Some(Path::new("/nowhere/libnvidia-ml.so.1"))).unwrap_err();
        assert!(
            absent.reason.contains("/nowhere/libnvidia-ml.so.1"),
            "{absent}"
        );
        assert!(absent.reason.contains("cannot be loaded"), "{absent}");
        assert!(!absent.reason.contains("libloading"), "{absent}");
        assert!(absent.remedy.is_some());
    }
}
