//! Power and energy sensors of boards, supplies and boards' chips: `/sys/class/hwmon`.

use super::series::MeterSeries;
use super::sysfs::{NumberFile, entries, slug, text};
use super::{Absent, Domain, EnergyCounter, Meter, Part, PowerIntegral};
use crate::{Instrument, ObserveError, Readings};
use std::path::Path;
use vtax_units::{Joules, Nanoseconds, Source, Watts};

pub(super) const NAME: &str = "hwmon";

/// Between two readings of one sensor; a host that stalls for longer has used unknown energy.
const STANDS: Nanoseconds = Nanoseconds(60_000_000_000);

/// Every `powerN` and `energyN` sensor (kernel: `Documentation/hwmon/sysfs-interface.rst`).
#[derive(Debug)]
pub struct Hwmon {
    domains: Vec<Domain>,
    sensors: Vec<Sensor>,
}

#[derive(Debug)]
struct Sensor {
    file: NumberFile,
    reading: Reading,
    joules: MeterSeries,
}

#[derive(Debug)]
enum Reading {
    /// Microjoules that the chip itself counts.
    Energy(EnergyCounter),
    /// Microwatts, integrated here.
    Power {
        integral: PowerIntegral,
        watts: MeterSeries,
    },
}

impl Hwmon {
    /// Opens every readable sensor below `sys`.
    ///
    /// # Errors
    /// The reason that there is none.
    pub fn open(sys: &Path) -> Result<Self, Absent> {
        let class = sys.join("class/hwmon");
        let mut meter = Self {
            domains: Vec::new(),
            sensors: Vec::new(),
        };
        let mut failure = None;
        for (_, chip) in entries(&class) {
            let Ok(chip_name) = text(&chip.join("name")) else {
                continue;
            };
            for (file, path) in entries(&chip) {
                let Some((channel, kind)) = channel(&file) else {
                    continue;
                };
                // Where a chip has both, the running average misses nothing between two readings.
                if kind == Kind::PowerInput && chip.join(format!("{channel}_average")).exists() {
                    continue;
                }
                let label = text(&chip.join(format!("{channel}_label"))).ok();
                let part = part_of(&chip_name, label.as_deref());
                let name = slug(&format!(
                    "{chip_name}-{}",
                    label.as_deref().unwrap_or(channel)
                ));
                let name = unused(&meter.domains, name);
                match NumberFile::open(path) {
                    Ok(file) => meter.add(name, part, kind, file),
                    Err(error) => failure = failure.or(Some(error)),
                }
            }
        }
        if meter.sensors.is_empty() {
            let reason = match failure {
                Some(error) => format!("its sensors cannot be read: {error}"),
                None => format!("no chip in {} measures power or energy", class.display()),
            };
            return Err(Absent::because(NAME, reason));
        }
        Ok(meter)
    }

    fn add(&mut self, name: String, part: Part, kind: Kind, file: NumberFile) {
        let reading = match kind {
            Kind::Energy => Reading::Energy(EnergyCounter::new(Joules(1e-6), None, part.most())),
            Kind::PowerInput | Kind::PowerAverage => Reading::Power {
                integral: PowerIntegral::new(STANDS, part.most()),
                watts: MeterSeries::watts(NAME, &name, Source::Measured),
            },
        };
        let joules = MeterSeries::joules(NAME, &name, Source::Measured);
        self.sensors.push(Sensor {
            file,
            reading,
            joules,
        });
        self.domains.push(Domain { name, part });
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Energy,
    PowerAverage,
    PowerInput,
}

/// `power1_average` → `power1`, a power average.
fn channel(file: &str) -> Option<(&str, Kind)> {
    let (channel, suffix) = file.split_once('_')?;
    let numbered = |prefix: &str| {
        channel
            .strip_prefix(prefix)
            .is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let kind = match suffix {
        "input" if numbered("energy") => Kind::Energy,
        "average" if numbered("power") => Kind::PowerAverage,
        "input" if numbered("power") => Kind::PowerInput,
        _ => return None,
    };
    Some((channel, kind))
}

/// What a sensor covers, as far as its driver says. What it does not say is never added up.
fn part_of(chip: &str, label: Option<&str>) -> Part {
    let label = label.unwrap_or_default().to_ascii_lowercase();
    match chip {
        // ACPI power meter: the input of the system's supply.
        "power_meter" => Part::Machine,
        "amd_energy" if label.starts_with("esocket") => Part::Package,
        "amd_energy" if label.starts_with("ecore") => Part::Cores,
        "amdgpu" | "nouveau" | "xe" | "i915" => Part::Accelerator,
        // PMBus supplies: what they draw is the machine; what they deliver lies inside it.
        _ if label == "pin" || label == "pin1" => Part::Machine,
        _ => Part::Unknown,
    }
}

fn unused(domains: &[Domain], name: String) -> String {
    let taken = |name: &str| domains.iter().any(|domain| domain.name == name);
    if !taken(&name) {
        return name;
    }
    (2u32..)
        .map(|number| format!("{name}-{number}"))
        .find(|name| !taken(name))
        .unwrap_or(name)
}

impl Instrument for Hwmon {
    fn name(&self) -> &str {
        NAME
    }

    fn read(&mut self, now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        let mut first = None;
        for sensor in &mut self.sensors {
            let raw = sensor.file.read();
            let problem = match (raw, &mut sensor.reading) {
                (Ok(raw), Reading::Energy(counter)) => {
                    let step = counter.update(now, raw);
                    sensor.joules.record_joules(into, counter.total());
                    sensor.file.complaint(step)
                }
                (Ok(raw), Reading::Power { integral, watts }) => {
                    let power = Watts(raw as f64 * 1e-6);
                    let problem =
                        integral
                            .reading(now, power)
                            .err()
                            .map(|_| ObserveError::Format {
                                path: sensor.file.path().to_owned(),
                                detail: format!(
                                    "{:.0} W is more than any such device draws; not counted",
                                    power.0
                                ),
                            });
                    if problem.is_none() {
                        watts.record_watts(into, power);
                    }
                    sensor.joules.record_joules(into, integral.total_at(now));
                    problem
                }
                (Err(error), _) => Some(error),
            };
            first = first.or(problem);
        }
        first.map_or(Ok(()), Err)
    }
}

impl Meter for Hwmon {
    fn domains(&self) -> &[Domain] {
        &self.domains
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Snapshot;
    use crate::meter::host_domains;
    use std::fs;
    use tempfile::TempDir;

    fn chip(root: &TempDir, number: u32, files: &[(&str, &str)]) {
        let path = root.path().join(format!("class/hwmon/hwmon{number}"));
        fs::create_dir_all(&path).unwrap();
        for (file, content) in files {
            fs::write(path.join(file), format!("{content}\n")).unwrap();
        }
    }

    fn read(meter: &mut Hwmon, seconds: f64) -> Snapshot {
        let mut readings = Readings::default();
        let now = Nanoseconds((seconds * 1e9) as u64);
        meter.read(now, &mut readings).unwrap();
        Snapshot::of(now, &readings)
    }

    fn value(snapshot: &Snapshot, metric: &str) -> f64 {
        snapshot
            .get("host", metric)
            .unwrap_or_else(|| panic!("no {metric}"))
            .value
    }

    /// Scaphandre #428: power was added as energy, whatever the time between two readings.
    #[test]
    fn power_sensors_are_integrated_over_real_time() {
        let root = TempDir::new().unwrap();
        chip(
            &root,
            0,
            &[("name", "power_meter"), ("power1_average", "100000000")],
        );
        let mut meter = Hwmon::open(root.path()).unwrap();
        read(&mut meter, 0.0);
        chip(&root, 0, &[("power1_average", "40000000")]);
        let snapshot = read(&mut meter, 5.0);
        assert_eq!(
            value(&snapshot, "energy.hwmon.power_meter-power1_joules"),
            500.0
        );
        assert_eq!(
            value(&snapshot, "power.hwmon.power_meter-power1_watts"),
            40.0
        );
        let snapshot = read(&mut meter, 5.5);
        assert_eq!(
            value(&snapshot, "energy.hwmon.power_meter-power1_joules"),
            520.0
        );
    }

    #[test]
    fn energy_sensors_count_for_themselves() {
        let root = TempDir::new().unwrap();
        let label = |micro: &str| {
            chip(
                &root,
                3,
                &[
                    ("name", "amd_energy"),
                    ("energy1_input", micro),
                    ("energy1_label", "Esocket0"),
                    ("temp1_input", "40000"),
                ],
            );
        };
        label("7000000");
        let mut meter = Hwmon::open(root.path()).unwrap();
        assert_eq!(
            meter.domains(),
            [Domain {
                name: "amd_energy-esocket0".into(),
                part: Part::Package
            }]
        );
        read(&mut meter, 0.0);
        label("19500000");
        let snapshot = read(&mut meter, 1.0);
        assert_eq!(
            value(&snapshot, "energy.hwmon.amd_energy-esocket0_joules"),
            12.5
        );
    }

    #[test]
    fn a_supply_counts_by_its_input_and_both_supplies_make_the_host() {
        let root = TempDir::new().unwrap();
        for number in [0, 1] {
            chip(
                &root,
                number,
                &[
                    ("name", "dps920ab"),
                    ("power1_input", "50000000"),
                    ("power1_label", "pin"),
                    ("power2_input", "45000000"),
                    ("power2_label", "pout1"),
                ],
            );
        }
        let meter = Hwmon::open(root.path()).unwrap();
        let (host, _) = host_domains(meter.domains());
        let names: Vec<_> = host.iter().map(|domain| domain.name.as_str()).collect();
        assert_eq!(names, ["dps920ab-pin", "dps920ab-pin-2"]);
        assert_eq!(meter.domains().len(), 4);
    }

    #[test]
    fn the_average_of_a_sensor_is_taken_instead_of_its_momentary_value() {
        let root = TempDir::new().unwrap();
        chip(
            &root,
            0,
            &[
                ("name", "x"),
                ("power1_input", "1"),
                ("power1_average", "2000000"),
            ],
        );
        let mut meter = Hwmon::open(root.path()).unwrap();
        assert_eq!(meter.domains().len(), 1);
        assert_eq!(
            value(&read(&mut meter, 0.0), "power.hwmon.x-power1_watts"),
            2.0
        );
    }

    #[test]
    fn an_impossible_power_is_reported_and_not_counted() {
        let root = TempDir::new().unwrap();
        chip(
            &root,
            0,
            &[("name", "x"), ("power1_input", "18446744073709551615")],
        );
        let mut meter = Hwmon::open(root.path()).unwrap();
        let mut readings = Readings::default();
        let error = meter
            .read(Nanoseconds(0), &mut readings)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("power1_input") && error.contains("not counted"),
            "{error}"
        );
    }

    #[test]
    fn a_host_without_power_sensors_says_so() {
        let root = TempDir::new().unwrap();
        chip(&root, 0, &[("name", "coretemp"), ("temp1_input", "40000")]);
        assert!(
            Hwmon::open(root.path())
                .unwrap_err()
                .reason
                .contains("measures power or energy")
        );
    }
}
