// SPDX-License-Identifier: Apache-2.0
//! NVIDIA boards, through the management library of their driver.

use super::series::MeterSeries;
use super::{Absent, Domain, EnergyCounter, Meter, Part, PowerIntegral};
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use std::ffi::OsStr;
use std::fmt;
use std::path::Path;
use vtax_core::{Joules, Nanoseconds, Source, Watts};
use vtax_observe::{Instrument, ObserveError, Readings};

pub(super) const NAME: &str = "nvml";

/// The file name that the driver installs; the name without a version belongs to development packages.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// The longest time that a power reading is valid, for a board that only shows watts.
const VALID_FOR: Nanoseconds = Nanoseconds(60_000_000_000);

/// All boards. A board's energy counter (Volta and later) counts millijoules since the driver was loaded and is updated
/// every 20 to 100 ms; older boards show only milliwatts, which are integrated here.
pub struct NvmlMeter {
    nvml: Nvml,
    domains: Vec<Domain>,
    boards: Vec<Board>,
    caveats: Vec<String>,
}

struct Board {
    index: u32,
    energy: Energy,
    joules: MeterSeries,
    watts: MeterSeries,
}

enum Energy {
    Counted(EnergyCounter),
    Integrated(PowerIntegral),
}

impl fmt::Debug for NvmlMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NvmlMeter")
            .field("domains", &self.domains)
            .finish_non_exhaustive()
    }
}

impl NvmlMeter {
    /// Loads the library (`library` if given) and opens every board.
    ///
    /// # Errors
    /// The reason that there is none.
    pub fn open(library: Option<&Path>) -> Result<Self, Absent> {
        let path = library.map_or(OsStr::new(LIBRARY), Path::as_os_str);
        let nvml = Nvml::builder().lib_path(path).init().map_err(|error| {
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
        let mut meter = Self {
            nvml,
            domains: Vec::new(),
            boards: Vec::new(),
            caveats: Vec::new(),
        };
        let mut failure = None;
        for index in 0..count {
            match Board::open(&meter.nvml, index) {
                Ok(board) => {
                    meter.boards.push(board);
                    meter.domains.push(Domain {
                        name: domain(index),
                        part: Part::Accelerator,
                    });
                }
                Err(error) => {
                    // Some boards never show it; the sum of the other boards then lacks this one.
                    let board = domain(index);
                    meter.caveats.push(format!(
                        "the sum lacks {board}, which shows neither energy nor power: {error}"
                    ));
                    failure = failure.or(Some(error));
                }
            }
        }
        if meter.boards.is_empty() {
            let reason = failure.map_or("the driver knows no board".to_owned(), |error| {
                format!("no board shows energy or power: {error}")
            });
            return Err(Absent::because(NAME, reason));
        }
        Ok(meter)
    }
}

fn domain(index: u32) -> String {
    format!("gpu-{index}")
}

impl Board {
    fn open(nvml: &Nvml, index: u32) -> Result<Self, NvmlError> {
        let device = nvml.device_by_index(index)?;
        let most = Part::Accelerator.most();
        let energy = match device.total_energy_consumption() {
            Ok(_) => Energy::Counted(EnergyCounter::new(Joules(1e-3), None, most)),
            Err(_) => {
                device.power_usage()?;
                Energy::Integrated(PowerIntegral::new(VALID_FOR, most))
            }
        };
        Ok(Self {
            index,
            energy,
            joules: MeterSeries::joules(NAME, &domain(index), Source::Measured),
            watts: MeterSeries::watts(NAME, &domain(index), Source::Measured),
        })
    }

    fn read(
        &mut self,
        nvml: &Nvml,
        now: Nanoseconds,
        into: &mut Readings,
    ) -> Result<(), ObserveError> {
        let what = format!("NVML board {}", self.index);
        let failed = |error: NvmlError| ObserveError::Unavailable {
            what: what.clone(),
            reason: error.to_string(),
        };
        let device = nvml.device_by_index(self.index).map_err(failed)?;
        let power = device
            .power_usage()
            .map(|milliwatts| Watts(f64::from(milliwatts) * 1e-3));
        if let Ok(power) = power {
            self.watts.record_watts(into, power);
        }
        match &mut self.energy {
            Energy::Counted(counter) => {
                let step = counter.update(now, device.total_energy_consumption().map_err(failed)?);
                self.joules.record_joules(into, counter.total());
                counter
                    .complaint(Path::new(&what), step)
                    .map_or(Ok(()), Err)
            }
            Energy::Integrated(integral) => {
                let power = power.map_err(failed)?;
                let taken = integral.reading(now, power);
                self.joules.record_joules(into, integral.total_at(now));
                taken.map_err(|_| ObserveError::Unavailable {
                    what,
                    reason: format!("{:.0} W is more than a board draws; not counted", power.0),
                })
            }
        }
    }
}

impl Instrument for NvmlMeter {
    fn name(&self) -> &str {
        NAME
    }

    fn read(&mut self, now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        let mut first = None;
        for board in &mut self.boards {
            let problem = board.read(&self.nvml, now, into).err();
            first = first.or(problem);
        }
        first.map_or(Ok(()), Err)
    }
}

impl Meter for NvmlMeter {
    fn domains(&self) -> &[Domain] {
        &self.domains
    }

    fn caveats(&self) -> &[String] {
        &self.caveats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;
    use std::process::Command;
    use tempfile::TempDir;
    use vtax_core::owner::Owner;
    use vtax_observe::Snapshot;

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
        let mut meter = NvmlMeter::open(Some(&library)).unwrap();
        let mut readings = Readings::default();
        for second in 0..3 {
            meter
                .read(Nanoseconds(second * 1_000_000_000), &mut readings)
                .unwrap();
        }
        let snapshot = Snapshot::of(Nanoseconds(2_000_000_000), &readings);
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
        let absent = NvmlMeter::open(Some(Path::new("/nowhere/libnvidia-ml.so.1"))).unwrap_err();
        assert!(
            absent.reason.contains("/nowhere/libnvidia-ml.so.1"),
            "{absent}"
        );
        assert!(absent.reason.contains("cannot be loaded"), "{absent}");
        assert!(!absent.reason.contains("libloading"), "{absent}");
        assert!(absent.remedy.is_some());
    }
}
