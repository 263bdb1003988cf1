//! Energy meters. A counter that is there but does not move while every CPU is busy counts as
//! absent: inside VMs, RAPL is often present and zero.

use super::counters::{Watched, watch};
use super::{Answer, CounterEvent, CounterScope, Finding, Options, Topic};
use std::path::Path;
use std::time::Duration;
use vtax_host::Roots;
use vtax_host::roots::{names, text};

pub(super) const RAPL_PERF: &str = "RAPL (perf)";
pub(super) const RAPL_POWERCAP: &str = "RAPL (powercap)";
pub(super) const HWMON: &str = "hwmon";
pub(super) const IPMI: &str = "IPMI DCMI";
pub(super) const WALL: &str = "wall meter";
pub(super) const NVML: &str = "NVML";

/// The findings that are meters.
pub(super) const METERS: [&str; 6] = [RAPL_PERF, RAPL_POWERCAP, HWMON, IPMI, WALL, NVML];

pub(super) fn examine(roots: &Roots, options: &Options) -> Vec<Finding> {
    vec![
        perf_power(roots, options),
        powercap(roots, options),
        hwmon(roots),
        ipmi(roots, options),
        wall(roots, options),
        nvidia(roots, options),
    ]
}

fn finding(name: &str, answer: Answer, evidence: impl Into<String>) -> Finding {
    Finding::new(Topic::Energy, name, answer, evidence)
}

fn perf_power(roots: &Roots, options: &Options) -> Finding {
    let pmu = roots.sys.join("bus/event_source/devices/power");
    let Some(kind) = text(&pmu.join("type")).and_then(|kind| kind.parse::<u32>().ok()) else {
        return finding(RAPL_PERF, Answer::No, "the kernel has no perf PMU `power`");
    };
    let events: Vec<(String, u64)> = names(&pmu.join("events"))
        .into_iter()
        .filter(|name| name.starts_with("energy-") && !name.contains('.'))
        .filter_map(|name| {
            // `event=0x02`
            let event = text(&pmu.join("events").join(&name))?;
            let config = u64::from_str_radix(event.strip_prefix("event=0x")?, 16).ok()?;
            Some((name, config))
        })
        .collect();
    if events.is_empty() {
        return finding(RAPL_PERF, Answer::No, "the perf PMU `power` has no events");
    }
    // One CPU for each package: `0` or `0,28`.
    let cpus = text(&pmu.join("cpumask")).unwrap_or_default();
    let cpu = cpus
        .split([',', '-'])
        .next()
        .and_then(|cpu| cpu.parse().ok())
        .unwrap_or(0);
    let mut refused = None;
    let mut watched = Vec::new();
    for (name, config) in events {
        let event = CounterEvent {
            pmu: kind,
            config,
            scope: CounterScope::Cpu(cpu),
        };
        match options.probes.open_counter(event) {
            Ok(read) => watched.push(Watched { name, read }),
            Err(cause) => refused = Some(cause),
        }
    }
    match refused {
        Some(cause) if watched.is_empty() => finding(
            RAPL_PERF,
            Answer::No,
            format!(
                "the perf PMU `power` does not open: {cause}",
                cause = super::reason(&cause)
            ),
        )
        .remedy("needs CAP_PERFMON, or kernel.perf_event_paranoid = -1"),
        _ => moving(RAPL_PERF, watched, options),
    }
}

fn powercap(roots: &Roots, options: &Options) -> Finding {
    let all = roots.sys.join("class/powercap");
    let zones: Vec<String> = names(&all)
        .into_iter()
        .filter(|zone| all.join(zone).join("energy_uj").exists())
        .collect();
    if zones.is_empty() {
        return finding(
            RAPL_POWERCAP,
            Answer::No,
            "no zone in /sys/class/powercap counts energy",
        )
        .remedy("on Intel and AMD hardware: modprobe intel_rapl_msr");
    }
    let watched: Vec<Watched> = zones
        .iter()
        .map(|zone| {
            let file = all.join(zone).join("energy_uj");
            let name = text(&all.join(zone).join("name")).unwrap_or_else(|| zone.clone());
            let read = Box::new(move || read_number(&file));
            Watched { name, read }
        })
        .collect();
    if !zones
        .iter()
        .any(|zone| read_number(&all.join(zone).join("energy_uj")).is_ok())
    {
        return finding(
            RAPL_POWERCAP,
            Answer::No,
            format!("{} zones, none readable", zones.len()),
        )
        .remedy("energy_uj is for root only since Linux 5.10 (CVE-2020-8694): run as root");
    }
    moving(RAPL_POWERCAP, watched, options)
}

fn read_number(file: &Path) -> std::io::Result<u64> {
    std::fs::read_to_string(file)?
        .trim()
        .parse()
        .map_err(|_| std::io::Error::new(std::io::ErrorKind::InvalidData, "not a number"))
}

fn moving(name: &str, watched: Vec<Watched>, options: &Options) -> Finding {
    let outcome = watch(watched, options.probes);
    let moved: Vec<&str> = outcome
        .iter()
        .filter(|seen| seen.moved)
        .map(|seen| seen.name.as_str())
        .collect();
    let stuck: Vec<&str> = outcome
        .iter()
        .filter(|seen| !seen.moved)
        .map(|seen| seen.name.as_str())
        .collect();
    if moved.is_empty() {
        return finding(
            name,
            Answer::No,
            format!(
                "{} did not move under load: as good as absent",
                stuck.join(", ")
            ),
        )
        .remedy("inside a VM the hypervisor hides it: measure on the hardware");
    }
    finding(
        name,
        Answer::Yes,
        format!("{} moved under load", moved.join(", ")),
    )
}

fn hwmon(roots: &Roots) -> Finding {
    let all = roots.sys.join("class/hwmon");
    let mut sensors = Vec::new();
    for chip in names(&all) {
        let directory = all.join(&chip);
        let label = text(&directory.join("name")).unwrap_or(chip);
        for file in names(&directory) {
            let is_power = file.starts_with("power")
                && (file.ends_with("_input") || file.ends_with("_average"));
            let is_energy = file.starts_with("energy") && file.ends_with("_input");
            if (is_power || is_energy) && read_number(&directory.join(&file)).is_ok() {
                sensors.push(format!("{label} {file}"));
            }
        }
    }
    if sensors.is_empty() {
        finding(HWMON, Answer::No, "no hwmon chip shows power or energy")
    } else {
        finding(HWMON, Answer::Yes, sensors.join(", "))
    }
}

fn ipmi(roots: &Roots, options: &Options) -> Finding {
    let devices = ["ipmi0", "ipmi/0", "ipmidev/0"];
    if !devices.iter().any(|device| roots.dev.join(device).exists()) {
        return finding(
            IPMI,
            Answer::No,
            "no /dev/ipmi0: this host has no BMC, or no driver for it",
        )
        .remedy("on a server: modprobe ipmi_si ipmi_devintf");
    }
    let Some(ipmitool) = roots.program("ipmitool") else {
        return finding(IPMI, Answer::No, "ipmitool is not installed")
            .remedy("apt-get install ipmitool")
            .package("ipmitool");
    };
    let read = options.probes.run(
        &ipmitool,
        &["dcmi", "power", "reading"],
        Duration::from_secs(10),
    );
    match read {
        Ok(output) if output.success => {
            let watts = output
                .stdout
                .lines()
                .find_map(|line| line.trim().strip_prefix("Instantaneous power reading:"))
                .map(str::trim);
            match watts {
                Some(watts) => finding(IPMI, Answer::Yes, format!("the BMC reads {watts}")),
                None => finding(
                    IPMI,
                    Answer::No,
                    format!("the BMC gives no power reading: {}", output.last_words()),
                ),
            }
        }
        Ok(output) => finding(
            IPMI,
            Answer::No,
            format!("ipmitool dcmi power reading: {}", output.last_words()),
        )
        .remedy("the BMC may lack DCMI, or switch it on in its settings"),
        Err(cause) => finding(IPMI, Answer::No, super::reason(&cause)),
    }
}

fn wall(roots: &Roots, options: &Options) -> Finding {
    let Some(sigrok) = roots.program("sigrok-cli") else {
        return finding(WALL, Answer::No, "sigrok-cli is not installed")
            .remedy("only with a wall meter at hand: apt-get install sigrok-cli");
    };
    let ports: Vec<String> = names(&roots.dev)
        .into_iter()
        .filter(|name| {
            ["ttyUSB", "ttyACM"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
        })
        .collect();
    if !options.scan_wall_meters {
        let answer = if ports.is_empty() {
            Answer::No
        } else {
            Answer::Partly
        };
        let seen = if ports.is_empty() {
            "no USB serial port".to_owned()
        } else {
            format!("USB serial ports: {}", ports.join(", "))
        };
        return finding(
            WALL,
            answer,
            format!("{seen}; not scanned, for a scan talks to every device on them"),
        )
        .remedy("with a wall meter at hand: vtax doctor --scan-wall-meters");
    }
    let output = options
        .probes
        .run(&sigrok, &["--scan"], Duration::from_secs(30));
    match output {
        Ok(output) => {
            // `demo - Demo device with …` is always there and no meter.
            let found: Vec<&str> = output
                .stdout
                .lines()
                .map(str::trim)
                .filter(|line| line.contains(" - ") && !line.starts_with("demo"))
                .collect();
            if found.is_empty() {
                finding(WALL, Answer::No, "sigrok-cli --scan found none")
                    .remedy("serial meters are not found by scanning: name the driver and port in the plan, such as mastech-mas345:conn=/dev/ttyUSB0")
            } else {
                finding(WALL, Answer::Yes, found.join("; "))
            }
        }
        Err(cause) => finding(WALL, Answer::No, super::reason(&cause))
            .remedy("unplug what hangs, and scan again"),
    }
}

fn nvidia(roots: &Roots, options: &Options) -> Finding {
    if !roots.dev.join("nvidiactl").exists() {
        return finding(NVML, Answer::No, "no NVIDIA GPU (/dev/nvidiactl)");
    }
    let Some(smi) = roots.program("nvidia-smi") else {
        return finding(
            NVML,
            Answer::Partly,
            "there is an NVIDIA GPU, but no nvidia-smi to ask it",
        )
        .remedy("install the driver's user-space part");
    };
    let query = ["--query-gpu=name,power.draw", "--format=csv,noheader"];
    match options.probes.run(&smi, &query, Duration::from_secs(10)) {
        Ok(output) if output.success && output.stdout.contains(" W") => {
            finding(NVML, Answer::Yes, output.last_words())
        }
        Ok(output) => finding(NVML, Answer::No, output.last_words())
            .remedy("this GPU does not tell its power"),
        Err(cause) => finding(NVML, Answer::No, super::reason(&cause)).remedy("reload the driver"),
    }
}
