// SPDX-License-Identifier: Apache-2.0
//! The power of a laptop's batteries while no other source supplies it: `/sys/class/power_supply`.

use super::sensors::{Reading, Sensors};
use super::sysfs::{entries, text};
use super::{Absent, Domain, Part};
use std::path::{Path, PathBuf};
use vtax_core::Watts;
use vtax_observe::ObserveError;

pub(super) const NAME: &str = "battery";

/// Opens the batteries below `sys` that power the machine, of which one must be discharging (kernel:
/// `Documentation/ABI/testing/sysfs-class-power`). On mains power a battery does not see the machine's draw: the meter is
/// then absent, and plugging in during a trial is an error.
///
/// # Errors
/// The reason that there is no such meter.
pub fn battery(sys: &Path) -> Result<Sensors, Absent> {
    let class = sys.join("class/power_supply");
    let is = |supply: &Path, file: &str, word: &str| {
        text(&supply.join(file)).is_ok_and(|found| found == word)
    };
    // A battery of a peripheral, such as a mouse, has the scope `Device`.
    let batteries: Vec<PathBuf> = entries(&class)
        .into_iter()
        .map(|(_, supply)| supply)
        .filter(|supply| is(supply, "type", "Battery") && !is(supply, "scope", "Device"))
        .collect();
    let Some(first) = batteries.first().cloned() else {
        let reason = format!("no battery in {} powers this machine", class.display());
        return Err(Absent::because(NAME, reason));
    };
    if let Err(error) = power(&batteries) {
        return Err(Absent::because(NAME, error.to_string())
            .remedy("unplug the machine; a battery measures what it delivers alone"));
    }
    let mut meter = Sensors::new(NAME);
    meter.stops_on_failure = true;
    meter.caveats.push(
        "a battery's chip reports a mean over some seconds: use trials of a minute or longer"
            .to_owned(),
    );
    let power = Box::new(move || power(&batteries));
    meter.add(
        Domain::machine(),
        first,
        Reading::of_power(Part::Machine, power),
    );
    Ok(meter)
}

/// The power that all batteries deliver.
fn power(batteries: &[PathBuf]) -> Result<Watts, ObserveError> {
    let mut total = None;
    for battery in batteries {
        // `uevent` holds all properties, read at one time.
        let path = battery.join("uevent");
        let properties = text(&path).map_err(|cause| ObserveError::read(&path, cause))?;
        match property(&properties, "STATUS") {
            Some("Discharging") => {
                let watts = discharge(&properties).ok_or_else(|| {
                    ObserveError::format(
                        &path,
                        "it has neither a power nor a current and a voltage",
                    )
                })?;
                total = Some(total.unwrap_or(Watts(0.0)) + watts);
            }
            Some("Charging") => return Err(unseen("a battery is charging")),
            // The battery is idle while another one discharges.
            _ => {}
        }
    }
    total.ok_or_else(|| unseen("no battery discharges"))
}

fn unseen(why: &str) -> ObserveError {
    let reason = format!("{why}, so the mains supply it");
    ObserveError::unavailable("what this machine draws", reason)
}

fn property<'a>(properties: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = properties.lines();
    lines.find_map(|line| {
        let (key, value) = line.strip_prefix("POWER_SUPPLY_")?.split_once('=')?;
        (key == name).then_some(value)
    })
}

/// Computes power from µW, or from µA and µV. By the kernel's documentation a current that flows out is negative;
/// ACPI's driver reports it without a sign.
fn discharge(properties: &str) -> Option<Watts> {
    let number = |name| property(properties, name)?.parse::<f64>().ok();
    let of_current = || Some(number("CURRENT_NOW")? * 1e-6 * number("VOLTAGE_NOW")?);
    let microwatts = number("POWER_NOW").or_else(of_current)?;
    Some(Watts(microwatts.abs() * 1e-6))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tempfile::TempDir;
    use vtax_core::Nanoseconds;
    use vtax_core::owner::Owner;
    use vtax_observe::{Instrument, Readings, Snapshot};

    fn supply(root: &TempDir, name: &str, kind: &str, properties: &[&str]) {
        let path = root.path().join("class/power_supply").join(name);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("type"), format!("{kind}\n")).unwrap();
        let lines = properties
            .iter()
            .map(|property| format!("POWER_SUPPLY_{property}\n"));
        fs::write(path.join("uevent"), lines.collect::<String>()).unwrap();
    }

    fn read(meter: &mut Sensors, seconds: u64) -> Result<Snapshot, ObserveError> {
        let mut readings = Readings::default();
        let now = Nanoseconds(seconds * 1_000_000_000);
        meter.read(now, &mut readings)?;
        Ok(Snapshot::from_readings(now, &readings))
    }

    #[test]
    fn what_every_discharging_battery_delivers_is_added_up_over_time() {
        let root = TempDir::new().unwrap();
        supply(&root, "AC", "Mains", &["ONLINE=0"]);
        supply(
            &root,
            "BAT0",
            "Battery",
            &["STATUS=Discharging", "POWER_NOW=12000000"],
        );
        // 0.5 A out of 8 V, with the kernel's sign.
        let second = ["CURRENT_NOW=-500000", "VOLTAGE_NOW=8000000"];
        let both = [&["STATUS=Discharging"], second.as_slice()].concat();
        supply(&root, "BAT1", "Battery", &both);
        let mut meter = battery(root.path()).unwrap();
        read(&mut meter, 0).unwrap();
        supply(&root, "BAT1", "Battery", &["STATUS=Not charging"]);
        let after = read(&mut meter, 10).unwrap();
        let value = |metric: &str| after.get(&Owner::Host, metric).unwrap().value;
        assert!((value("energy.battery.host_joules") - 160.0).abs() < 1e-6);
        assert!((value("power.battery.host_watts") - 12.0).abs() < 1e-6);
    }

    #[test]
    fn a_machine_on_the_mains_has_no_such_meter_and_says_what_to_do() {
        let root = TempDir::new().unwrap();
        let absent = battery(root.path()).unwrap_err();
        assert!(absent.reason.contains("no battery in"), "{absent}");
        supply(
            &root,
            "hid-mouse",
            "Battery",
            &["STATUS=Discharging", "POWER_NOW=1"],
        );
        let scope = root.path().join("class/power_supply/hid-mouse/scope");
        fs::write(scope, "Device\n").unwrap();
        let absent = battery(root.path()).unwrap_err();
        assert!(absent.reason.contains("no battery in"), "{absent}");
        for (status, reason) in [
            ("Full", "no battery discharges"),
            ("Charging", "is charging"),
        ] {
            let status = format!("STATUS={status}");
            supply(&root, "BAT0", "Battery", &[&status, "POWER_NOW=9000000"]);
            let absent = battery(root.path()).unwrap_err();
            assert!(absent.reason.contains(reason), "{absent}");
            assert!(absent.remedy.unwrap().contains("unplug"));
        }
    }

    #[test]
    fn a_plug_put_in_under_way_is_an_error_and_nothing_is_counted_from_then() {
        let root = TempDir::new().unwrap();
        let draws = |status: &str| {
            supply(&root, "BAT0", "Battery", &[status, "POWER_NOW=10000000"]);
        };
        draws("STATUS=Discharging");
        let mut meter = battery(root.path()).unwrap();
        read(&mut meter, 0).unwrap();
        draws("STATUS=Charging");
        let error = read(&mut meter, 5).unwrap_err().to_string();
        assert!(error.contains("a battery is charging"), "{error}");
        draws("STATUS=Discharging");
        let after = read(&mut meter, 20).unwrap();
        let joules = after
            .get(&Owner::Host, "energy.battery.host_joules")
            .unwrap();
        assert!((joules.value - 50.0).abs() < 1e-6, "{joules:?}");
        supply(&root, "BAT0", "Battery", &["STATUS=Discharging"]);
        let error = read(&mut meter, 21).unwrap_err().to_string();
        assert!(
            error.contains("BAT0/uevent") && error.contains("neither a power"),
            "{error}"
        );
    }
}
