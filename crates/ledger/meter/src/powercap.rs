// SPDX-License-Identifier: Apache-2.0
//! RAPL through the powercap framework: `/sys/class/powercap/intel-rapl:*`, on Intel and AMD.

use super::sensors::{Reading, Sensors};
use super::sysfs::{NumberFile, entries, slug, text};
use super::{Absent, Domain, EnergyCounter, Meter, Part};
use std::io;
use std::path::Path;
use vtax_core::Joules;
use vtax_observe::ObserveError;

pub(super) const NAME: &str = "powercap";

/// Opens every RAPL zone of every package below `sys` (kernel: `Documentation/power/powercap/powercap.rst`); `proc`
/// distinguishes AMD from Intel.
///
/// # Errors
/// The reason that there is none, or that it cannot be read, with the remedy.
pub fn powercap(sys: &Path, proc: &Path) -> Result<Sensors, Absent> {
    let class = sys.join("class/powercap");
    // The number after the colon is hexadecimal. `intel-rapl-mmio:0` is a second interface to the package that
    // `intel-rapl:0` already counts.
    let mut found: Vec<_> = entries(&class)
        .into_iter()
        .filter_map(|(name, path)| Some((zone_number(name.strip_prefix("intel-rapl:")?)?, path)))
        .collect();
    found.sort();
    if found.is_empty() {
        return Err(
            Absent::because(NAME, format!("{} has no intel-rapl zone", class.display())).remedy(
                "on hardware with RAPL: modprobe intel_rapl_msr; inside a VM there is none",
            ),
        );
    }
    let amd = text(&proc.join("cpuinfo")).is_ok_and(|info| info.contains("AuthenticAMD"));
    let mut meter = Sensors::new(NAME);
    let mut failure = None;
    for ((package, zone), path) in found {
        let Ok(name) = text(&path.join("name")) else {
            continue;
        };
        let part = part_of(&name);
        // AMD has package and core counters only; other zones on it are bogus (before 5.17).
        if amd && !matches!(part, Part::Package | Part::Cores) {
            continue;
        }
        let mut name = match zone {
            Some(_) => format!("{}-{package}", slug(&name)),
            None => slug(&name),
        };
        if meter.domains().iter().any(|domain| domain.name == name) {
            name = format!("{name}-zone-{package}-{}", zone.unwrap_or(0));
        }
        let opened = NumberFile::open(path.join("energy_uj"));
        let range = text(&path.join("max_energy_range_uj"))
            .ok()
            .and_then(|text| text.parse().ok());
        match opened {
            Ok(energy) => {
                let counter = EnergyCounter::new(Joules(1e-6), range, part.most());
                let path = energy.path().to_owned();
                let count = Box::new(move || energy.read());
                let reading = Reading::Counted(counter, count, None);
                meter.add(Domain { name, part }, path, reading);
            }
            Err(error) => {
                failure.get_or_insert(error);
            }
        }
    }
    // A missing socket would make the host's energy too small without an error.
    match failure {
        Some(ObserveError::Read { path, cause })
            if cause.kind() == io::ErrorKind::PermissionDenied =>
        {
            Err(
                Absent::because(NAME, format!("no permission to read {}", path.display()))
                    .unreadable()
                    .remedy(
                        "energy_uj is for root only since CVE-2020-8694: run as root, or as root \
                         once: chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj (any local \
                         user may then watch the processor's power)",
                    ),
            )
        }
        Some(error) => Err(Absent::because(NAME, error.to_string()).unreadable()),
        None if meter.domains().is_empty() => Err(Absent::because(
            NAME,
            format!("no zone in {} has a name", class.display()),
        )),
        None => Ok(meter),
    }
}

/// `1` → package 1; `a:2` → package 10, zone 2.
fn zone_number(text: &str) -> Option<(u32, Option<u32>)> {
    let hexadecimal = |text: &str| u32::from_str_radix(text, 16).ok();
    match text.split_once(':') {
        Some((package, zone)) => Some((hexadecimal(package)?, Some(hexadecimal(zone)?))),
        None => Some((hexadecimal(text)?, None)),
    }
}

fn part_of(name: &str) -> Part {
    match name {
        "core" => Part::Cores,
        "uncore" => Part::Uncore,
        "dram" => Part::Memory,
        "psys" => Part::Platform,
        name if name.starts_with("package") => Part::Package,
        _ => Part::Unknown,
    }
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

    const RANGE: u64 = 262_143_328_850;
    const SECOND: u64 = 1_000_000_000;

    fn zone(root: &TempDir, zone: &str, name: &str, energy: u64) {
        let path = root.path().join("sys/class/powercap").join(zone);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("name"), format!("{name}\n")).unwrap();
        fs::write(path.join("energy_uj"), format!("{energy}\n")).unwrap();
        fs::write(path.join("max_energy_range_uj"), format!("{RANGE}\n")).unwrap();
    }

    fn open(root: &TempDir) -> Result<Sensors, Absent> {
        powercap(&root.path().join("sys"), &root.path().join("proc"))
    }

    fn read(meter: &mut Sensors, second: u64) -> (Snapshot, Option<String>) {
        let mut readings = Readings::default();
        let now = Nanoseconds(second * SECOND);
        let error = meter
            .read(now, &mut readings)
            .err()
            .map(|error| error.to_string());
        (Snapshot::from_readings(now, &readings), error)
    }

    fn joules(snapshot: &Snapshot, domain: &str) -> f64 {
        snapshot
            .get(&Owner::Host, &format!("energy.powercap.{domain}_joules"))
            .unwrap()
            .value
    }

    fn two_sockets() -> TempDir {
        let root = TempDir::new().unwrap();
        zone(&root, "intel-rapl:0", "package-0", 0);
        zone(&root, "intel-rapl:0:0", "core", 0);
        zone(&root, "intel-rapl:0:1", "dram", 0);
        zone(&root, "intel-rapl:1", "package-1", RANGE - 10_000_000);
        zone(&root, "intel-rapl:1:0", "core", 0);
        zone(&root, "intel-rapl:1:1", "dram", 0);
        zone(&root, "intel-rapl:a", "psys", 0);
        zone(&root, "intel-rapl-mmio:0", "package-0", 0);
        root
    }

    /// PowerJoular ignored the second socket; EnergiBridge read core 0 only.
    #[test]
    fn every_socket_and_every_zone_is_read_once() {
        let meter = open(&two_sockets()).unwrap();
        let names: Vec<_> = meter
            .domains()
            .iter()
            .map(|domain| domain.name.as_str())
            .collect();
        assert_eq!(
            names,
            [
                "package-0",
                "core-0",
                "dram-0",
                "package-1",
                "core-1",
                "dram-1",
                "psys"
            ]
        );
    }

    /// EnergiBridge had no wrap handling; Scaphandre dropped the sample; Kepler exported it raw.
    #[test]
    fn a_wrap_of_the_second_socket_is_counted_there() {
        let root = two_sockets();
        let mut meter = open(&root).unwrap();
        read(&mut meter, 0);
        zone(&root, "intel-rapl:0", "package-0", 80_000_000);
        zone(&root, "intel-rapl:1", "package-1", 90_000_000);
        let (snapshot, error) = read(&mut meter, 1);
        assert_eq!(error, None);
        assert!((joules(&snapshot, "package-0") - 80.0).abs() < 1e-9);
        assert!((joules(&snapshot, "package-1") - 100.0).abs() < 1e-9);
    }

    #[test]
    fn two_sockets_with_a_psys_each_are_the_sum_of_their_packages_and_memory() {
        let root = two_sockets();
        zone(&root, "intel-rapl:b", "psys", 0);
        let meter = open(&root).unwrap();
        let (host, _) = host_domains(meter.domains());
        let names: Vec<&str> = host.iter().map(|domain| domain.name.as_str()).collect();
        assert_eq!(names, ["package-0", "dram-0", "package-1", "dram-1"]);
    }

    #[test]
    fn a_reset_is_reported_and_the_counter_goes_on() {
        let root = two_sockets();
        let mut meter = open(&root).unwrap();
        zone(&root, "intel-rapl:0", "package-0", 100_000_000_000);
        read(&mut meter, 0);
        zone(&root, "intel-rapl:0", "package-0", 1_000_000);
        let (snapshot, error) = read(&mut meter, 1);
        assert!(error.unwrap().contains("started anew"));
        assert_eq!(joules(&snapshot, "package-0"), 0.0);
        zone(&root, "intel-rapl:0", "package-0", 51_000_000);
        let (snapshot, error) = read(&mut meter, 2);
        assert_eq!((joules(&snapshot, "package-0"), error), (50.0, None));
    }

    #[test]
    fn amd_has_packages_and_cores_and_its_bogus_zones_are_left_out() {
        let root = two_sockets();
        fs::create_dir_all(root.path().join("proc")).unwrap();
        fs::write(
            root.path().join("proc/cpuinfo"),
            "vendor_id\t: AuthenticAMD\n",
        )
        .unwrap();
        let meter = open(&root).unwrap();
        let names: Vec<_> = meter
            .domains()
            .iter()
            .map(|domain| domain.name.as_str())
            .collect();
        assert_eq!(names, ["package-0", "core-0", "package-1", "core-1"]);
    }

    #[test]
    fn zone_numbers_are_hexadecimal() {
        assert_eq!(zone_number("a"), Some((10, None)));
        assert_eq!(zone_number("1f:b"), Some((31, Some(11))));
        assert_eq!(zone_number("x"), None);
        let root = TempDir::new().unwrap();
        for package in 0..12u32 {
            zone(
                &root,
                &format!("intel-rapl:{package:x}"),
                &format!("package-{package}"),
                0,
            );
        }
        let last = open(&root).unwrap().domains().last().unwrap().name.clone();
        assert_eq!(last, "package-11");
    }

    #[test]
    fn two_zones_of_one_name_stay_two_series() {
        let root = TempDir::new().unwrap();
        zone(&root, "intel-rapl:0", "package-0", 0);
        zone(&root, "intel-rapl:1", "package-0", 0);
        let meter = open(&root).unwrap();
        assert_eq!(meter.domains().len(), 2);
        assert_ne!(meter.domains()[0].name, meter.domains()[1].name);
    }

    #[test]
    fn no_permission_names_the_file_the_cve_and_the_remedy() {
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
        use std::os::unix::fs::PermissionsExt;
        let root = two_sockets();
        let energy = root
            .path()
            .join("sys/class/powercap/intel-rapl:1/energy_uj");
        fs::set_permissions(&energy, fs::Permissions::from_mode(0o000)).unwrap();
        // Root bypasses permission checks, so one thread drops that privilege.
        let absent = std::thread::scope(|scope| {
            let refused = scope.spawn(|| {
                let mut sets = capabilities(None).unwrap();
                sets.effective
                    .remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
                set_capabilities(None, sets).unwrap();
                open(&root).unwrap_err()
            });
            refused.join().unwrap()
        });
        assert!(absent.reason.contains("intel-rapl:1/energy_uj"), "{absent}");
        assert!(absent.remedy.unwrap().contains("CVE-2020-8694"));
    }

    #[test]
    fn a_host_without_rapl_says_so() {
        let absent = open(&TempDir::new().unwrap()).unwrap_err();
        assert!(absent.reason.contains("no intel-rapl zone"));
    }
}
