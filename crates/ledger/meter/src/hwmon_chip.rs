// SPDX-License-Identifier: Apache-2.0
//! The sensors of the hwmon chips and the coverage of each, as their drivers describe them.

use super::Part;
use super::sysfs::{entries, slug, text};
use std::path::{Path, PathBuf};

/// One sensor as its files describe it; nothing is opened.
#[derive(Debug)]
pub(super) struct Sensor {
    /// Chip and label, valid in a metric's name.
    pub name: String,
    /// The part of the machine that it covers.
    pub part: Part,
    /// The files that hold its readings.
    pub files: Files,
}

#[derive(Debug)]
pub(super) enum Files {
    /// Microjoules.
    Energy(PathBuf),
    /// Microwatts.
    Power(PathBuf),
    /// Millivolts and milliamperes of one rail.
    Rail {
        /// Millivolts.
        volts: PathBuf,
        /// Milliamperes.
        amperes: PathBuf,
    },
}

/// One chip.
#[derive(Debug, Default)]
pub(super) struct Chip {
    /// Its name and place, for messages: `ina3221 (hwmon4)`.
    pub title: String,
    /// The sensors for power or energy.
    pub sensors: Vec<Sensor>,
    /// Whether it has a voltage and a current of one rail, without a label.
    pub has_unlabelled_rails: bool,
}

/// Every chip below `class`.
pub(super) fn chips(class: &Path) -> Vec<Chip> {
    let chips = entries(class).into_iter();
    chips
        .filter_map(|(place, path)| chip(&place, &path))
        .collect()
}

/// Drivers of older kernels keep the attributes, and often the name, in the parent device's directory.
fn chip(place: &str, path: &Path) -> Option<Chip> {
    let device = path.join("device");
    let name = text(&path.join("name")).or_else(|_| text(&device.join("name")));
    let name = name.ok()?;
    let mut found = [path, &device].map(|directory| Chip {
        title: format!("{name} ({place})"),
        ..describe(&name, directory)
    });
    let with_sensors = found
        .iter()
        .position(|chip| !chip.sensors.is_empty() || chip.has_unlabelled_rails)?;
    found.get_mut(with_sensors).map(std::mem::take)
}

fn describe(chip: &str, directory: &Path) -> Chip {
    let mut described = Chip::default();
    let files = entries(directory);
    for (file, path) in &files {
        let Some((channel, kind)) = channel(file) else {
            continue;
        };
        // Where a chip has both, the running average covers the time between two readings.
        if kind == Kind::PowerInput && directory.join(format!("{channel}_average")).exists() {
            continue;
        }
        let beside = |what: &str| text(&directory.join(format!("{channel}_{what}"))).ok();
        let label = beside("label").or_else(|| beside("oem_info"));
        described.sensors.push(Sensor {
            name: slug(&format!("{chip}-{}", label.as_deref().unwrap_or(channel))),
            part: part_of(chip, label.as_deref()),
            files: match kind {
                Kind::Energy => Files::Energy(path.clone()),
                Kind::PowerAverage | Kind::PowerInput => Files::Power(path.clone()),
            },
        });
    }
    // A chip that shows power itself has multiplied voltage and current already.
    if described.sensors.is_empty() {
        for (file, volts) in &files {
            let Some(rail) = file
                .strip_prefix("in")
                .and_then(|file| file.strip_suffix("_input"))
            else {
                continue;
            };
            let amperes = directory.join(format!("curr{rail}_input"));
            if rail.parse::<u32>().is_err() || !amperes.exists() {
                continue;
            }
            let label = |kind: &str| text(&directory.join(format!("{kind}{rail}_label"))).ok();
            let label = match rail_label(label("in"), label("curr")) {
                Label::Same(label) => label,
                Label::Different => continue,
                Label::Missing => {
                    described.has_unlabelled_rails = true;
                    continue;
                }
            };
            described.sensors.push(Sensor {
                name: slug(&format!("{chip}-{label}")),
                part: part_of(chip, Some(&label)),
                files: Files::Rail {
                    volts: volts.clone(),
                    amperes,
                },
            });
        }
    }
    described
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

#[derive(Debug, PartialEq, Eq)]
enum Label {
    Same(String),
    /// PMBus numbers voltages and currents independently of each other.
    Different,
    Missing,
}

/// The label of a rail whose voltage and current have these labels: an INA3221's driver labels only the voltage, PMBus
/// calls one rail `vout1` and `iout1`.
fn rail_label(volts: Option<String>, amperes: Option<String>) -> Label {
    match (volts, amperes) {
        (None, None) => Label::Missing,
        (Some(label), None) | (None, Some(label)) => Label::Same(label),
        (Some(volts), Some(amperes)) => {
            let of_pmbus = volts.strip_prefix('v').zip(amperes.strip_prefix('i'));
            match of_pmbus {
                _ if volts == amperes => Label::Same(volts),
                Some((rail, same)) if rail == same => Label::Same(rail.to_owned()),
                _ => Label::Different,
            }
        }
    }
}

/// The names that the kernel's power supply drivers give their chips. Voltage regulators on a board also label their
/// input `pin`.
const SUPPLIES: [&str; 12] = [
    "acbel_fsg032",
    "cffps",
    "cffps1",
    "cffps2",
    "dps920ab",
    "fsg032",
    "intel_crps185",
    "ipsps1",
    "pfe1100",
    "pfe3000",
    "yh5151e",
    "ym2151e",
];

/// The part that a sensor covers, as far as its driver describes it. A sensor without a description is never added up.
fn part_of(chip: &str, label: Option<&str>) -> Part {
    let label = label.unwrap_or_default().to_ascii_lowercase();
    let starts = |start: &str| label.starts_with(start);
    match chip {
        // NVIDIA Grace has one ACPI power meter for each of these (its `oem_info`).
        "power_meter" if starts("module power") => Part::Module,
        "power_meter" if starts("grace power") => Part::Socket,
        "power_meter" if starts("cpu power") => Part::Cores,
        "power_meter" if starts("sysio power") => Part::Uncore,
        // ACPI power meter: the input of the system's supply.
        "power_meter" => Part::Machine,
        "amd_energy" if starts("esocket") => Part::Package,
        "amd_energy" if starts("ecore") => Part::Cores,
        // These drivers register sensors for discrete boards only; amdgpu also does for built-in graphics.
        "nouveau" | "xe" | "i915" => Part::Accelerator,
        // The rail that feeds a whole NVIDIA Jetson module or board.
        "ina3221" if matches!(label.as_str(), "vdd_in" | "pom_5v_in") => Part::Module,
        _ if SUPPLIES.contains(&chip) && matches!(label.as_str(), "pin" | "pin1") => Part::Supply,
        _ if SUPPLIES.contains(&chip) && starts("pout") => Part::SupplyOutput,
        _ => Part::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rail_has_one_label_or_its_voltage_and_current_are_of_different_rails() {
        let label = |volts: Option<&str>, amperes: Option<&str>| {
            rail_label(volts.map(str::to_owned), amperes.map(str::to_owned))
        };
        let same = |label: &str| Label::Same(label.to_owned());
        assert_eq!(label(Some("VDD_IN"), None), same("VDD_IN"));
        assert_eq!(label(None, Some("VDD_IN")), same("VDD_IN"));
        assert_eq!(label(Some("12V"), Some("12V")), same("12V"));
        assert_eq!(label(Some("vout1"), Some("iout1")), same("out1"));
        assert_eq!(label(Some("vin"), Some("iout1")), Label::Different);
        assert_eq!(label(None, None), Label::Missing);
    }

    #[test]
    fn built_in_graphics_and_unknown_chips_are_not_explained() {
        assert_eq!(part_of("amdgpu", Some("PPT")), Part::Unknown);
        assert_eq!(part_of("nvme", None), Part::Unknown);
        assert_eq!(part_of("xe", Some("card")), Part::Accelerator);
        assert_eq!(part_of("cffps2", Some("pout1")), Part::SupplyOutput);
    }
}
