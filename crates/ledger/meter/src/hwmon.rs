// SPDX-License-Identifier: Apache-2.0
//! Power and energy sensors of boards, power supplies and chips: `/sys/class/hwmon`.

use super::hwmon_chip::{Files, chips};
use super::sensors::{Read, Reading, Sensors};
use super::sysfs::NumberFile;
use super::{Absent, Domain, EnergyCounter, Meter, Part, host_domains};
use std::io;
use std::path::{Path, PathBuf};
use vtax_core::{Joules, Watts};
use vtax_observe::ObserveError;

pub(super) const NAME: &str = "hwmon";

/// Opens every readable `powerN` and `energyN` sensor below `sys`; for chips that have neither, volts times amperes of
/// every labelled rail (kernel: `Documentation/hwmon/sysfs-interface.rst`).
///
/// # Errors
/// The reason that there is none, or that a sensor that the host's energy needs cannot be read.
pub fn hwmon(sys: &Path) -> Result<Sensors, Absent> {
    let class = sys.join("class/hwmon");
    let mut meter = Sensors::new(NAME);
    let mut chips = chips(&class);
    let all = || chips.iter().flat_map(|chip| &chip.sensors);
    // The sensors are nested, or there is one for each supply; the driver does not distinguish the two, so no sum
    // is right.
    if all().filter(|sensor| sensor.part == Part::Machine).count() > 1 {
        let machines = chips.iter_mut().flat_map(|chip| &mut chip.sensors);
        for sensor in machines.filter(|sensor| sensor.part == Part::Machine) {
            sensor.part = Part::Unknown;
        }
        meter.caveats.push(
            "several ACPI power meters (power_meter) do not say what each covers, so they are \
                 recorded and not added"
                .to_owned(),
        );
    }
    let mut described = Vec::new();
    let mut failures = Vec::new();
    for chip in chips {
        if chip.has_unlabelled_rails {
            meter.caveats.push(format!(
                "{} has voltages and currents without a label, so it is not known which rails they \
                     are; they are not measured",
                chip.title
            ));
        }
        for sensor in chip.sensors {
            let name = unused(&described, sensor.name);
            let domain = Domain {
                name,
                part: sensor.part,
            };
            described.push(domain.clone());
            match open(domain.part, &sensor.files) {
                Ok((path, reading)) => meter.add(domain, path, reading),
                Err(error) => failures.push((domain, error)),
            }
        }
    }
    // A missing supply would make the host's energy too small without an error.
    let (host, _) = host_domains(&described);
    if let Some(at) = failures
        .iter()
        .position(|(domain, _)| host.contains(&domain))
    {
        return Err(unreadable(failures.swap_remove(at).1));
    }
    if meter.domains().is_empty() {
        return Err(match failures.pop() {
            Some((_, error)) => unreadable(error),
            None if meter.caveats.is_empty() => {
                let reason = format!("no chip in {} measures power or energy", class.display());
                Absent::because(NAME, reason)
            }
            None => Absent::because(NAME, meter.caveats.join("; ")),
        });
    }
    for (domain, error) in failures {
        meter
            .caveats
            .push(format!("{} is not recorded: {error}", domain.name));
    }
    Ok(meter)
}

/// Opens the files of a sensor; the path is the one that messages name.
fn open(part: Part, files: &Files) -> Result<(PathBuf, Reading), ObserveError> {
    let (path, power): (&PathBuf, Read<Watts>) = match files {
        Files::Energy(path) => {
            let counter = EnergyCounter::new(Joules(1e-6), None, part.most());
            let file = NumberFile::open(path.clone())?;
            let count = Box::new(move || file.read());
            return Ok((path.clone(), Reading::Counted(counter, count, None)));
        }
        Files::Power(path) => {
            let file = NumberFile::open(path.clone())?;
            (
                path,
                Box::new(move || Ok(Watts(file.read()? as f64 * 1e-6))),
            )
        }
        Files::Rail { volts, amperes } => {
            let millivolts = NumberFile::open(volts.clone())?;
            let milliamperes = NumberFile::open_signed(amperes.clone())?;
            let microwatts =
                move || Ok(millivolts.read()? as f64 * milliamperes.read_signed()? as f64);
            (
                amperes,
                Box::new(move || microwatts().map(|power| Watts(power * 1e-6))),
            )
        }
    };
    Ok((path.clone(), Reading::of_power(part, power)))
}

fn unreadable(error: ObserveError) -> Absent {
    let is_refused = matches!(
        &error,
        ObserveError::Read { cause, .. } if cause.kind() == io::ErrorKind::PermissionDenied
    );
    let reason = format!("a sensor that the host's energy needs cannot be read: {error}");
    let absent = Absent::because(NAME, reason).unreadable();
    absent.remedy(if is_refused {
        "run as root"
    } else {
        "plug in or remove the supply, or use another meter"
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_domains;
    use std::fs;
    use tempfile::TempDir;
    use vtax_core::Nanoseconds;
    use vtax_core::owner::Owner;
    use vtax_observe::{Instrument, Readings, Snapshot};

    fn chip(root: &TempDir, number: u32, files: &[(&str, &str)]) {
        let path = root.path().join(format!("class/hwmon/hwmon{number}"));
        fs::create_dir_all(&path).unwrap();
        for (file, content) in files {
            fs::write(path.join(file), format!("{content}\n")).unwrap();
        }
    }

    fn read(meter: &mut Sensors, seconds: f64) -> Snapshot {
        let mut readings = Readings::default();
        let now = Nanoseconds((seconds * 1e9) as u64);
        meter.read(now, &mut readings).unwrap();
        Snapshot::from_readings(now, &readings)
    }

    fn value(snapshot: &Snapshot, metric: &str) -> f64 {
        snapshot
            .get(&Owner::Host, metric)
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
        let mut meter = hwmon(root.path()).unwrap();
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
        let mut meter = hwmon(root.path()).unwrap();
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
        let meter = hwmon(root.path()).unwrap();
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
        let mut meter = hwmon(root.path()).unwrap();
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
        let mut meter = hwmon(root.path()).unwrap();
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

    /// The maximum of 32 bits of milliwatts, as users of lm-sensors have seen it.
    #[test]
    fn four_megawatts_of_a_sensor_are_not_counted() {
        let root = TempDir::new().unwrap();
        let shows = |microwatts: &str| {
            let files = [("name", "power_meter"), ("power1_average", microwatts)];
            chip(&root, 0, &files);
        };
        shows("100000000");
        let mut meter = hwmon(root.path()).unwrap();
        read(&mut meter, 0.0);
        shows("4294967295000");
        let mut readings = Readings::default();
        let error = meter.read(Nanoseconds(1_000_000_000), &mut readings);
        assert!(error.unwrap_err().to_string().contains("4294967 W"));
        let snapshot = Snapshot::from_readings(Nanoseconds(0), &readings);
        assert_eq!(
            value(&snapshot, "energy.hwmon.power_meter-power1_joules"),
            100.0
        );
    }

    #[test]
    fn a_host_without_power_sensors_says_so() {
        let root = TempDir::new().unwrap();
        chip(&root, 0, &[("name", "coretemp"), ("temp1_input", "40000")]);
        assert!(
            hwmon(root.path())
                .unwrap_err()
                .reason
                .contains("measures power or energy")
        );
    }

    /// The host's domains with their watts, and the phrase for their coverage.
    fn host_watts(root: &TempDir) -> (Vec<(String, f64)>, &'static str) {
        let mut meter = hwmon(root.path()).unwrap();
        let snapshot = read(&mut meter, 0.0);
        let (host, covers) = host_domains(meter.domains());
        let watts = |domain: &&Domain| {
            let metric = format!("power.hwmon.{}_watts", domain.name);
            (domain.name.clone(), value(&snapshot, &metric))
        };
        (host.iter().map(watts).collect(), covers)
    }

    #[test]
    fn a_chip_whose_attributes_are_only_in_its_device_directory_is_read_there() {
        let root = TempDir::new().unwrap();
        let device = root.path().join("class/hwmon/hwmon2/device");
        fs::create_dir_all(&device).unwrap();
        fs::write(device.join("name"), "power_meter\n").unwrap();
        fs::write(device.join("power1_average"), "214000000\n").unwrap();
        let (host, covers) = host_watts(&root);
        assert_eq!(host, [("power_meter-power1".to_owned(), 214.0)]);
        assert_eq!(covers, "the whole machine");
        // The case in which only the name is in the parent directory.
        fs::write(device.parent().unwrap().join("name"), "power_meter\n").unwrap();
        assert_eq!(host_watts(&root).0, host);
    }

    fn supply(root: &TempDir, number: u32, pin: &str) {
        let files = [
            ("name", "dps920ab"),
            ("power1_input", pin),
            ("power1_label", "pin"),
        ];
        chip(root, number, &files);
    }

    #[test]
    fn a_supply_that_cannot_be_read_refuses_the_meter_and_names_the_file() {
        let root = TempDir::new().unwrap();
        supply(&root, 0, "150000000");
        supply(&root, 1, "");
        let absent = hwmon(root.path()).unwrap_err();
        assert!(absent.reason.contains("hwmon1/power1_input"), "{absent}");
        supply(&root, 1, "150000000");
        let (host, _) = host_watts(&root);
        let watts: Vec<f64> = host.into_iter().map(|(_, watts)| watts).collect();
        assert_eq!(watts, [150.0, 150.0]);
    }

    #[test]
    fn a_sensor_outside_the_hosts_sum_that_cannot_be_read_refuses_nothing_and_is_named() {
        let root = TempDir::new().unwrap();
        supply(&root, 0, "150000000");
        chip(&root, 1, &[("name", "nvme"), ("power1_input", "")]);
        let meter = hwmon(root.path()).unwrap();
        assert_eq!(meter.domains().len(), 1);
        assert!(meter.caveats()[0].contains("hwmon1/power1_input"));
    }

    #[test]
    fn the_input_of_a_voltage_regulator_is_not_the_machine() {
        let root = TempDir::new().unwrap();
        let regulator = [
            ("name", "tps53679"),
            ("power1_input", "60000000"),
            ("power1_label", "pin"),
        ];
        chip(&root, 0, &regulator);
        let meter = hwmon(root.path()).unwrap();
        assert_eq!(meter.domains()[0].part, Part::Unknown);
        assert!(host_domains(meter.domains()).0.is_empty());
    }

    #[test]
    fn a_rail_that_is_labelled_is_volts_times_amperes() {
        let root = TempDir::new().unwrap();
        let rails = [
            ("name", "ina3221"),
            ("in1_label", "VDD_IN"),
            ("in1_input", "19520"),
            ("curr1_input", "412"),
            ("in2_label", "VDD_CPU_GPU_CV"),
            ("in2_input", "19520"),
            ("curr2_input", "100"),
        ];
        chip(&root, 4, &rails);
        let (host, covers) = host_watts(&root);
        assert_eq!(host.len(), 1);
        assert_eq!(host[0].0, "ina3221-vdd_in");
        assert!((host[0].1 - 19.52 * 0.412).abs() < 1e-9, "{host:?}");
        assert_eq!(covers, "boards at their input");
        let mut meter = hwmon(root.path()).unwrap();
        assert_eq!(meter.domains()[1].part, Part::Unknown);
        let snapshot = read(&mut meter, 0.0);
        let inner = value(&snapshot, "power.hwmon.ina3221-vdd_cpu_gpu_cv_watts");
        assert!((inner - 1.952).abs() < 1e-9, "{inner}");
    }

    #[test]
    fn rails_without_a_label_are_not_measured_and_the_reason_names_the_chip() {
        let root = TempDir::new().unwrap();
        let rails = [
            ("name", "ina3221"),
            ("in1_input", "5000"),
            ("curr1_input", "412"),
        ];
        chip(&root, 4, &rails);
        let absent = hwmon(root.path()).unwrap_err();
        assert!(absent.reason.contains("ina3221 (hwmon4)"), "{absent}");
        assert!(absent.reason.contains("label"), "{absent}");
        supply(&root, 5, "150000000");
        let meter = hwmon(root.path()).unwrap();
        assert!(meter.caveats()[0].contains("ina3221 (hwmon4)"));
    }

    #[test]
    fn a_voltage_and_a_current_of_different_rails_make_no_power() {
        let root = TempDir::new().unwrap();
        let regulator = [
            ("name", "tps53679"),
            ("in1_label", "vin"),
            ("in1_input", "12000"),
            ("curr1_label", "iout1"),
            ("curr1_input", "60000"),
        ];
        chip(&root, 0, &regulator);
        assert!(hwmon(root.path()).is_err());
    }

    /// For each socket, an NVIDIA Grace shows a module, the processor in it, and rails in the processor.
    #[test]
    fn nested_acpi_power_meters_are_not_added() {
        let root = TempDir::new().unwrap();
        let meters = [
            ("Module Power Socket", "300000000"),
            ("Grace Power Socket", "200000000"),
            ("CPU Power Socket", "100000000"),
            ("SysIO Power Socket", "50000000"),
        ];
        for socket in [0, 1] {
            for ((label, watts), number) in meters.iter().zip(0..) {
                let files = [
                    ("name", "power_meter"),
                    ("power1_average", *watts),
                    ("power1_oem_info", &format!("{label} {socket}")),
                ];
                chip(&root, socket * 4 + number, &files);
            }
        }
        let (host, covers) = host_watts(&root);
        let watts: Vec<f64> = host.iter().map(|(_, watts)| *watts).collect();
        assert_eq!(watts, [300.0, 300.0], "{host:?}");
        assert_eq!(covers, "boards at their input");
    }

    #[test]
    fn several_acpi_power_meters_that_do_not_explain_themselves_are_no_host() {
        let root = TempDir::new().unwrap();
        for number in [0, 1] {
            let files = [("name", "power_meter"), ("power1_average", "200000000")];
            chip(&root, number, &files);
        }
        let meter = hwmon(root.path()).unwrap();
        assert!(host_domains(meter.domains()).0.is_empty());
        assert_eq!(meter.domains().len(), 2);
        assert!(meter.caveats()[0].contains("power_meter"));
    }
}
