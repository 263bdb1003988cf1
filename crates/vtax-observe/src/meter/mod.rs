//! Sources of joules, one file each, and how they are found and added up.
//!
//! Every meter records, for the owner `host`, one counter `energy.<meter>.<domain>_joules` for
//! each of its domains, which only ever grows, and one gauge `power.<meter>.<domain>_watts` where
//! the device itself shows watts. [`discover`] opens every meter that the host has and says why
//! the others are absent; [`host_energy`] names the series whose sum is the energy of the host,
//! so that nothing is counted twice. `docs/energy.md` explains what each meter covers.

mod battery;
mod calibrate;
mod discovery;
mod energy;
mod hwmon;
mod ipmi;
mod load;
mod model;
mod nvml;
mod perf_power;
mod powercap;
mod probe;
mod program;
mod series;
mod sysfs;
mod wall;

pub use battery::Battery;
pub use calibrate::{
    CalibrateError, Calibration, CalibrationSettings, Observation, Progress, calibrate,
};
pub use discovery::{Found, NAMES, Options, discover};
pub use energy::{EnergyCounter, ImplausiblePower, PowerIntegral, Step};
pub use hwmon::Hwmon;
pub use ipmi::{Ipmi, IpmiConfig};
pub use load::{BusyLoad, Load};
pub use model::{DEFAULT_MODEL, Fit, Model, ModelMeter, POINTS};
pub use nvml::NvmlMeter;
pub use perf_power::{PerfPower, PowerEvent, ReadCount, open_event};
pub use powercap::Powercap;
pub use probe::{Bench, Probe, keep_moving, probe_under_load};
pub use wall::{Volts, WallConfig, WallMeter};

use crate::Instrument;
use vtax_units::{Source, Watts};

/// What part of a machine a domain covers; decides which domains may be added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// One processor package (socket or die): cores, caches, memory controller, built-in graphics.
    Package,
    /// The memory of one package.
    Memory,
    /// The cores, inside a package.
    Cores,
    /// Built-in graphics and the like, inside a package.
    Uncore,
    /// The whole platform as RAPL sees it (`psys`). Overlaps packages and memory.
    Platform,
    /// The whole machine, at its power supply or at the wall.
    Machine,
    /// An accelerator board of its own.
    Accelerator,
    /// What the machine would have used doing nothing; inside [`Part::Machine`].
    Idle,
    /// Something that the device does not explain. Recorded, never added up.
    Unknown,
}

impl Part {
    /// More than any such part draws; what lies above is a broken reading.
    pub fn most(self) -> Watts {
        match self {
            Self::Package | Self::Memory | Self::Cores | Self::Uncore => Watts(2_000.0),
            Self::Accelerator => Watts(5_000.0),
            Self::Platform | Self::Machine | Self::Idle | Self::Unknown => Watts(30_000.0),
        }
    }
}

/// One thing that a meter measures separately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domain {
    /// Its name within the meter, such as `package-0`.
    pub name: String,
    /// What it covers.
    pub part: Part,
}

/// A source of joules. [`Instrument::name`] is the meter's short name, such as `powercap`.
pub trait Meter: Instrument {
    /// What it measures, one counter series each.
    fn domains(&self) -> &[Domain];

    /// Whether its joules are measured or modelled.
    fn source(&self) -> Source {
        Source::Measured
    }

    /// What a reader of its numbers must know, each a sentence.
    fn caveats(&self) -> &[String] {
        &[]
    }
}

/// Why a host does not have a meter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{meter} is absent: {reason}")]
pub struct Absent {
    /// The meter's name.
    pub meter: &'static str,
    /// The evidence.
    pub reason: String,
    /// What would bring it, if anything would.
    pub remedy: Option<String>,
}

impl Absent {
    fn because(meter: &'static str, reason: impl Into<String>) -> Self {
        Self {
            meter,
            reason: reason.into(),
            remedy: None,
        }
    }

    fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}

/// The series whose sum is the host's energy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostEnergy {
    /// Owner and metric of each; every one is a counter in joules.
    pub series: Vec<(String, String)>,
    /// The flag that the sum must carry.
    pub source: Source,
    /// What the sum covers, in words.
    pub covers: String,
    /// The caveats of the meters used.
    pub caveats: Vec<String>,
}

/// The metric of a domain's joules.
pub fn joules_metric(meter: &str, domain: &str) -> String {
    format!("energy.{meter}.{domain}_joules")
}

/// The metric of a domain's watts.
pub fn watts_metric(meter: &str, domain: &str) -> String {
    format!("power.{meter}.{domain}_watts")
}

/// The domains of one meter that together cover the host once, and what they cover. Empty when
/// they do not cover a host: a graphics board alone is no host.
///
/// All packages and their memory where there are any: cores and uncore lie inside the package,
/// and `psys` overlaps all of them. Otherwise the whole machine, with every supply that it has.
/// Otherwise `psys`.
pub fn host_domains(domains: &[Domain]) -> (Vec<&Domain>, &'static str) {
    let of = |parts: &[Part]| -> Vec<&Domain> {
        domains
            .iter()
            .filter(|domain| parts.contains(&domain.part))
            .collect()
    };
    if domains.iter().any(|domain| domain.part == Part::Package) {
        let covered = of(&[Part::Package, Part::Memory]);
        let memory = covered.iter().any(|domain| domain.part == Part::Memory);
        return (
            covered,
            if memory {
                "processor packages and memory"
            } else {
                "processor packages"
            },
        );
    }
    let machine = of(&[Part::Machine]);
    if !machine.is_empty() {
        return (machine, "the whole machine");
    }
    // psys is one counter for the platform, however many packages repeat it.
    let platform = of(&[Part::Platform]);
    (platform.into_iter().take(1).collect(), "the platform")
}

/// The series whose sum is the host's energy: those of the first of `meters` (which [`discover`]
/// returns in order of preference) that covers a host, and accelerator boards beside it where
/// that meter covers processors only. `None` when no meter covers a host.
pub fn host_energy<'a>(meters: impl IntoIterator<Item = &'a dyn Meter>) -> Option<HostEnergy> {
    let meters: Vec<&dyn Meter> = meters.into_iter().collect();
    let base = meters
        .iter()
        .find(|meter| !host_domains(meter.domains()).0.is_empty())?;
    let (domains, covers) = host_domains(base.domains());
    let series_of = |meter: &dyn Meter, domain: &Domain| {
        ("host".to_owned(), joules_metric(meter.name(), &domain.name))
    };
    let mut energy = HostEnergy {
        series: domains
            .iter()
            .map(|domain| series_of(*base, domain))
            .collect(),
        source: base.source(),
        covers: covers.to_owned(),
        caveats: base.caveats().to_vec(),
    };
    if domains.iter().any(|domain| domain.part == Part::Package)
        && let Some(boards) = meters.iter().find(|meter| meter.name() == nvml::NAME)
    {
        energy.series.extend(
            boards
                .domains()
                .iter()
                .map(|domain| series_of(*boards, domain)),
        );
        energy.source = energy.source.combine(boards.source());
        energy.covers.push_str(" and graphics boards");
        energy.caveats.extend_from_slice(boards.caveats());
    }
    Some(energy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ObserveError, Readings};
    use vtax_units::Nanoseconds;

    struct Fake {
        name: &'static str,
        domains: Vec<Domain>,
        source: Source,
    }

    impl Instrument for Fake {
        fn name(&self) -> &str {
            self.name
        }
        fn read(&mut self, _: Nanoseconds, _: &mut Readings) -> Result<(), ObserveError> {
            Ok(())
        }
    }

    impl Meter for Fake {
        fn domains(&self) -> &[Domain] {
            &self.domains
        }
        fn source(&self) -> Source {
            self.source
        }
    }

    fn fake(name: &'static str, domains: &[(&str, Part)]) -> Fake {
        let domains = domains.iter().map(|(name, part)| Domain {
            name: (*name).to_owned(),
            part: *part,
        });
        Fake {
            name,
            domains: domains.collect(),
            source: Source::Measured,
        }
    }

    fn metrics(meters: &[Fake]) -> Vec<String> {
        host_energy(meters.iter().map(|meter| meter as &dyn Meter))
            .map(|energy| {
                energy
                    .series
                    .into_iter()
                    .map(|(_, metric)| metric)
                    .collect()
            })
            .unwrap_or_default()
    }

    /// PowerJoular ignored the second socket.
    #[test]
    fn the_host_is_every_socket_and_its_memory_and_nothing_twice() {
        let rapl = fake(
            "powercap",
            &[
                ("package-0", Part::Package),
                ("core-0", Part::Cores),
                ("uncore-0", Part::Uncore),
                ("dram-0", Part::Memory),
                ("package-1", Part::Package),
                ("dram-1", Part::Memory),
                ("psys", Part::Platform),
            ],
        );
        assert_eq!(
            metrics(&[rapl]),
            [
                "energy.powercap.package-0_joules",
                "energy.powercap.dram-0_joules",
                "energy.powercap.package-1_joules",
                "energy.powercap.dram-1_joules",
            ]
        );
    }

    #[test]
    fn the_first_meter_that_covers_a_host_is_the_only_one_summed() {
        let meters = [
            fake("hwmon", &[("nvme-power1", Part::Unknown)]),
            fake("ipmi", &[("host", Part::Machine)]),
            fake("wall", &[("host", Part::Machine)]),
        ];
        assert_eq!(metrics(&meters), ["energy.ipmi.host_joules"]);
    }

    #[test]
    fn graphics_boards_are_added_to_packages_but_not_to_a_whole_machine() {
        let gpu = || fake("nvml", &[("gpu-0", Part::Accelerator)]);
        let packages = fake("perf", &[("package-0", Part::Package)]);
        assert_eq!(
            metrics(&[packages, gpu()]),
            ["energy.perf.package-0_joules", "energy.nvml.gpu-0_joules"]
        );
        assert_eq!(
            metrics(&[gpu(), fake("wall", &[("host", Part::Machine)])]),
            ["energy.wall.host_joules"]
        );
        assert!(metrics(&[gpu()]).is_empty());
    }

    #[test]
    fn psys_stands_in_only_where_there_is_no_package() {
        let meter = fake(
            "powercap",
            &[("psys", Part::Platform), ("psys-1", Part::Platform)],
        );
        assert_eq!(metrics(&[meter]), ["energy.powercap.psys_joules"]);
    }

    #[test]
    fn the_idle_share_of_a_model_lies_inside_the_host() {
        let meter = fake("model", &[("host", Part::Machine), ("idle", Part::Idle)]);
        assert_eq!(metrics(&[meter]), ["energy.model.host_joules"]);
    }

    #[test]
    fn a_modelled_meter_makes_a_modelled_sum() {
        let mut model = fake("model", &[("host", Part::Machine)]);
        model.source = Source::Modelled;
        let energy = host_energy([&model as &dyn Meter]).unwrap();
        assert_eq!(energy.source, Source::Modelled);
    }
}
