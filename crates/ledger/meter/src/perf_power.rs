// SPDX-License-Identifier: Apache-2.0
//! RAPL through perf: the `power` PMU, whose 64-bit counters never wrap in practice.

use super::sensors::{Reading, Sensors};
use super::sysfs::{entries, text};
use super::{Absent, Domain, EnergyCounter, Part};
use std::io;
use std::path::Path;
use vtax_core::Joules;
use vtax_kernel::text::cpu_list;
use vtax_observe::ObserveError;
use vtax_observe::counters::event_group::{Event as PerfEvent, EventGroup, Scope};

pub(super) const NAME: &str = "perf";

/// An energy event of the `power` PMU as the kernel describes it below
/// `/sys/bus/event_source/devices/power`.
#[derive(Debug, Clone, PartialEq)]
pub struct PowerEvent {
    /// Its name, such as `energy-pkg`.
    pub name: String,
    /// `perf_event_attr.type`: the PMU's number.
    pub pmu_type: u32,
    /// `perf_event_attr.config`.
    pub config: u64,
    /// The energy of one count.
    pub count: Joules,
    /// The processor to open it on: one of the PMU's `cpumask`.
    pub cpu: u32,
}

/// Reads one opened event's count.
pub type ReadCount = Box<dyn FnMut() -> io::Result<u64> + Send>;

/// Opens an event through `perf_event_open(2)`, for all processes on its processor.
///
/// # Errors
/// The kernel's: `EACCES` without `CAP_PERFMON` where `perf_event_paranoid` is above 0.
pub fn open_event(event: &PowerEvent) -> io::Result<ReadCount> {
    let described = PerfEvent {
        kind: event.pmu_type,
        config: event.config,
        filter: None,
    };
    let mut opened = EventGroup::open(Scope::Cpu(event.cpu), &[described])?;
    let nothing = || io::Error::other("the event gave no count");
    Ok(Box::new(move || {
        opened.read()?.values().next().ok_or_else(nothing)
    }))
}

/// Opens every energy event on every package that the tree `sys` describes, each with `open` (which is [`open_event`]
/// except in tests).
///
/// # Errors
/// The reason that there is none, or that it cannot be opened, with the remedy.
pub fn perf_power(
    sys: &Path,
    proc: &Path,
    open: &mut dyn FnMut(&PowerEvent) -> io::Result<ReadCount>,
) -> Result<Sensors, Absent> {
    let pmu = sys.join("bus/event_source/devices/power");
    let Ok(pmu_type) = text(&pmu.join("type")) else {
        return Err(
            Absent::because(NAME, format!("there is no {}", pmu.display()))
                .remedy("on hardware with RAPL: modprobe rapl; inside a VM there is none"),
        );
    };
    let garbled = |file: &str, found: &str| {
        Absent::because(
            NAME,
            format!("{} holds `{found}`", pmu.join(file).display()),
        )
    };
    let pmu_type = pmu_type.parse().map_err(|_| garbled("type", &pmu_type))?;
    let mask = text(&pmu.join("cpumask")).unwrap_or_default();
    let cpus = cpu_list(mask.as_bytes()).ok_or_else(|| garbled("cpumask", &mask))?;
    let events = describe(&pmu, pmu_type)?;
    if events.is_empty() {
        return Err(Absent::because(
            NAME,
            format!(
                "{} lists no energy event, as inside most VMs",
                pmu.join("events").display()
            ),
        ));
    }
    let packages = package_names(sys, &cpus);
    let mut meter = Sensors::new(NAME);
    for (cpu, package) in cpus.iter().zip(&packages) {
        for event in &events {
            let (part, stem) = domain(&event.name);
            // psys is one counter for the platform; every package repeats it.
            if part == Part::Platform && cpus.first() != Some(cpu) {
                continue;
            }
            let event = PowerEvent {
                cpu: *cpu,
                ..event.clone()
            };
            let mut read = open(&event).map_err(|error| refused(proc, &event, &error))?;
            let name = match part {
                Part::Platform => stem.to_owned(),
                _ => format!("{stem}-{package}"),
            };
            let path = pmu.join("events").join(&event.name);
            let counter = EnergyCounter::new(event.count, None, part.most());
            let source = path.clone();
            let count = move || read().map_err(|cause| ObserveError::read(&source, cause));
            let reading = Reading::Counted(counter, Box::new(count), None);
            meter.add(Domain { name, part }, path, reading);
        }
    }
    Ok(meter)
}

fn refused(proc: &Path, event: &PowerEvent, error: &io::Error) -> Absent {
    let reason = format!(
        "cannot open {} on processor {}: {error}",
        event.name, event.cpu
    );
    let absent = Absent::because(NAME, reason);
    if error.kind() != io::ErrorKind::PermissionDenied {
        return absent;
    }
    let paranoid = text(&proc.join("sys/kernel/perf_event_paranoid"))
        .map(|level| format!(" (kernel.perf_event_paranoid is {level})"))
        .unwrap_or_default();
    absent.remedy(format!(
        "run as root, or grant CAP_PERFMON: setcap cap_perfmon+ep vtax{paranoid}"
    ))
}

/// The `energy-*` events with their scale; events that do not count joules are left out.
fn describe(pmu: &Path, pmu_type: u32) -> Result<Vec<PowerEvent>, Absent> {
    let mut events = Vec::new();
    for (name, path) in entries(&pmu.join("events")) {
        if !name.starts_with("energy-") || name.contains('.') {
            continue;
        }
        let beside = |suffix: &str| text(&path.with_file_name(format!("{name}.{suffix}")));
        if beside("unit").is_ok_and(|unit| unit != "Joules") {
            continue;
        }
        let terms = text(&path).unwrap_or_default();
        let scale = beside("scale").unwrap_or_default();
        let (Some(config), Ok(scale)) = (config(&terms), scale.parse::<f64>()) else {
            let reason = format!("{} holds `{terms}` with scale `{scale}`", path.display());
            return Err(Absent::because(NAME, reason));
        };
        events.push(PowerEvent {
            name,
            pmu_type,
            config,
            count: Joules(scale),
            cpu: 0,
        });
    }
    Ok(events)
}

/// `event=0x02` → 2: the PMU's format puts `event` into the low byte of `config`.
fn config(terms: &str) -> Option<u64> {
    let value = terms
        .split(',')
        .find_map(|term| term.trim().strip_prefix("event="))?;
    match value.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => value.parse().ok(),
    }
}

/// For each event its part, and the name that powercap gives the same domain, so that both meters use one name.
const EVENTS: [(&str, Part, &str); 5] = [
    ("energy-pkg", Part::Package, "package"),
    ("energy-ram", Part::Memory, "dram"),
    ("energy-cores", Part::Cores, "core"),
    ("energy-gpu", Part::Uncore, "uncore"),
    ("energy-psys", Part::Platform, "psys"),
];

fn domain(event: &str) -> (Part, &str) {
    let known = EVENTS.into_iter().find(|(name, ..)| *name == event);
    let other = event.strip_prefix("energy-").unwrap_or(event);
    known.map_or((Part::Unknown, other), |(_, part, stem)| (part, stem))
}

/// A name for each processor of the mask: its package, and its die where a package has several.
fn package_names(sys: &Path, cpus: &[u32]) -> Vec<String> {
    let topology = |cpu: u32, file: &str| {
        text(&sys.join(format!("devices/system/cpu/cpu{cpu}/topology/{file}"))).ok()
    };
    let packages: Vec<String> = cpus
        .iter()
        .zip(0u32..)
        .map(|(cpu, index)| {
            topology(*cpu, "physical_package_id").unwrap_or_else(|| index.to_string())
        })
        .collect();
    let several = |package: &String| packages.iter().filter(|other| *other == package).count() > 1;
    packages
        .iter()
        .zip(cpus)
        .map(|(package, cpu)| {
            if !several(package) {
                package.clone()
            } else {
                let die = topology(*cpu, "die_id").unwrap_or_else(|| format!("cpu-{cpu}"));
                format!("{package}-die-{die}")
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Meter;
    use crate::host_domains;
    use std::fs;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use tempfile::TempDir;
    use vtax_core::Nanoseconds;
    use vtax_core::owner::Owner;
    use vtax_observe::{Instrument, Readings, Snapshot};

    fn write(root: &TempDir, path: &str, content: &str) {
        let path = root.path().join("sys").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{content}\n")).unwrap();
    }

    fn two_sockets() -> TempDir {
        let root = TempDir::new().unwrap();
        let pmu = "bus/event_source/devices/power";
        write(&root, &format!("{pmu}/type"), "9");
        write(&root, &format!("{pmu}/cpumask"), "0,18");
        for (event, number) in [("cores", 1), ("pkg", 2), ("ram", 3), ("psys", 5)] {
            write(
                &root,
                &format!("{pmu}/events/energy-{event}"),
                &format!("event=0x0{number}"),
            );
            write(
                &root,
                &format!("{pmu}/events/energy-{event}.scale"),
                "2.3283064365386962890625e-10",
            );
            write(
                &root,
                &format!("{pmu}/events/energy-{event}.unit"),
                "Joules",
            );
        }
        for (cpu, package) in [(0, 0), (18, 1)] {
            let path = format!("devices/system/cpu/cpu{cpu}/topology");
            write(
                &root,
                &format!("{path}/physical_package_id"),
                &package.to_string(),
            );
            write(&root, &format!("{path}/die_id"), "0");
        }
        root
    }

    /// EnergiBridge read core 0 only; PowerJoular ignored the second socket.
    #[test]
    fn every_event_is_opened_on_every_package_and_psys_once() {
        let root = two_sockets();
        let mut opened = Vec::new();
        let meter = open(&root, &mut |event| {
            opened.push((event.name.clone(), event.pmu_type, event.config, event.cpu));
            Ok(Box::new(|| Ok(0)))
        })
        .unwrap();
        let pkg: Vec<_> = opened
            .iter()
            .filter(|event| event.0 == "energy-pkg")
            .collect();
        assert_eq!(
            pkg,
            [
                &("energy-pkg".into(), 9, 2, 0),
                &("energy-pkg".into(), 9, 2, 18)
            ]
        );
        let (host, covers) = host_domains(meter.domains());
        let names: Vec<_> = host.iter().map(|domain| domain.name.as_str()).collect();
        assert_eq!(names, ["package-0", "dram-0", "package-1", "dram-1"]);
        assert_eq!(covers, "processor packages and memory");
        assert_eq!(
            meter
                .domains()
                .iter()
                .filter(|domain| domain.name == "psys")
                .count(),
            1
        );
    }

    fn open(
        root: &TempDir,
        opener: &mut dyn FnMut(&PowerEvent) -> io::Result<ReadCount>,
    ) -> Result<Sensors, Absent> {
        perf_power(&root.path().join("sys"), &root.path().join("proc"), opener)
    }

    #[test]
    fn counts_become_joules_by_the_kernels_scale() {
        let root = two_sockets();
        let count = Arc::new(AtomicU64::new(1 << 40));
        let mut meter = open(&root, &mut |_| {
            let count = Arc::clone(&count);
            Ok(Box::new(move || Ok(count.load(Ordering::Relaxed))))
        })
        .unwrap();
        let mut readings = Readings::default();
        meter.read(Nanoseconds(0), &mut readings).unwrap();
        // 2^32 counts of 2^-32 J are one joule.
        count.fetch_add(75 << 32, Ordering::Relaxed);
        meter
            .read(Nanoseconds(1_000_000_000), &mut readings)
            .unwrap();
        let snapshot = Snapshot::from_readings(Nanoseconds(1_000_000_000), &readings);
        assert_eq!(
            snapshot
                .get(&Owner::Host, "energy.perf.package-1_joules")
                .unwrap()
                .value,
            75.0
        );
    }

    #[test]
    fn dies_of_one_package_keep_their_own_names() {
        let root = two_sockets();
        let path = "devices/system/cpu/cpu18/topology";
        write(&root, &format!("{path}/physical_package_id"), "0");
        write(&root, &format!("{path}/die_id"), "1");
        assert_eq!(
            package_names(&root.path().join("sys"), &[0, 18]),
            ["0-die-0", "0-die-1"]
        );
    }

    #[test]
    fn a_pmu_without_energy_events_is_absent() {
        let root = TempDir::new().unwrap();
        write(&root, "bus/event_source/devices/power/type", "9");
        write(&root, "bus/event_source/devices/power/cpumask", "0");
        let absent = open(&root, &mut open_event).unwrap_err();
        assert!(absent.reason.contains("lists no energy event"), "{absent}");
    }

    #[test]
    fn a_refused_event_names_the_capability() {
        let root = two_sockets();
        fs::create_dir_all(root.path().join("proc/sys/kernel")).unwrap();
        fs::write(
            root.path().join("proc/sys/kernel/perf_event_paranoid"),
            "2\n",
        )
        .unwrap();
        let absent = open(&root, &mut |_| {
            Err(io::Error::from(io::ErrorKind::PermissionDenied))
        })
        .unwrap_err();
        let remedy = absent.remedy.unwrap();
        assert!(remedy.contains("CAP_PERFMON") && remedy.contains("perf_event_paranoid is 2"));
    }

    #[test]
    fn a_garbled_description_is_an_absence_and_no_panic() {
        for (file, content) in [("type", "x"), ("cpumask", "-"), ("events/energy-pkg", "?")] {
            let root = two_sockets();
            write(
                &root,
                &format!("bus/event_source/devices/power/{file}"),
                content,
            );
            let absent = open(&root, &mut |_| Ok(Box::new(|| Ok(0))));
            assert!(absent.unwrap_err().reason.contains(content), "{file}");
        }
    }

    /// A software event of the same system call, which tests the opening where RAPL is missing.
    #[test]
    fn an_event_opened_on_a_processor_counts() {
        let clock = PowerEvent {
            name: "cpu-clock".into(),
            pmu_type: 1,
            config: 0,
            count: Joules(1.0),
            cpu: 0,
        };
        match open_event(&clock) {
            Ok(mut read) => {
                let before = read().unwrap();
                let mut after = before;
                while after == before {
                    after = read().unwrap();
                }
            }
            Err(error) => eprintln!("SKIPPED: perf_event_open is refused here: {error}"),
        }
    }
}
