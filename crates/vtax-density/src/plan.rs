//! A density plan: a TOML file that names platforms, what to vary of them, and how to climb.

use crate::keeper::{Devices, QemuOptions, Vmm};
use crate::limits::Limits;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;
use toml::{Table, Value};
use vtax_host::settings::{Level, Settings};
use vtax_host::{HostError, Roots};
use vtax_report::results::Treatment;

/// What every trial of a density run says of its workload.
pub const WORKLOAD: &str = "density";

/// How a climb is made.
#[derive(Debug, Clone, PartialEq)]
pub struct Method {
    /// Steps to the expected maximum.
    pub intervals: u32,
    /// When it ends.
    pub limits: Limits,
    /// Samples in each interval.
    pub samples: u32,
    /// The time of one sample.
    pub sample: Duration,
    /// Requests in each interval.
    pub probes: u32,
    /// How long the population is left alone at the top.
    pub idle: Duration,
    /// All guests in one process, where the platform puts them into ours.
    pub one_process: bool,
}

/// A platform with one level of each of its factors.
#[derive(Debug, Clone, PartialEq)]
pub struct Variant {
    /// As trials and tables name it.
    pub treatment: Treatment,
    /// What its guests are.
    pub kind: Kind,
    /// The expected maximum.
    pub maximum: u32,
    /// The host's state while it is climbed.
    pub host: Settings,
    /// Left out, rather than a mistake, where its program is not installed.
    pub if_present: bool,
}

/// A platform and how its guests are made.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// Threads.
    Thread,
    /// Processes.
    Process,
    /// Containers, by `auto`, `runc` or `crun`.
    Container {
        /// The runtime's name.
        runtime: String,
    },
    /// Micro VMs.
    Mvm {
        /// Live or parked.
        live: bool,
        /// Their image.
        image: String,
    },
    /// QEMUs.
    Qemu(QemuOptions),
    /// VMs that boot Linux, by this VMM.
    Linux(Vmm),
}

impl Kind {
    /// The program that makes its guests, where that is one of its own.
    #[must_use]
    pub fn program(&self) -> Option<&str> {
        match self {
            Self::Qemu(options) => Some(&options.program),
            Self::Linux(vmm) => Some(vmm.program()),
            Self::Thread | Self::Process | Self::Container { .. } | Self::Mvm { .. } => None,
        }
    }
}

/// A plan that was checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// What it wants to find out.
    pub description: String,
    /// Seed of the order of climbs.
    pub seed: u64,
    /// Climbs of each platform.
    pub repetitions: u32,
    /// How they are made.
    pub method: Method,
    /// What is climbed.
    pub variants: Vec<Variant>,
    /// Whether this is the quick profile.
    pub is_quick: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    #[serde(default)]
    description: String,
    #[serde(default = "one")]
    seed: u64,
    #[serde(default = "three")]
    repetitions: u32,
    density: Table,
    platform: Vec<Table>,
    #[serde(default)]
    quick: Table,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Climbing {
    intervals: u32,
    stop_percent: f64,
    reserve_percent: f64,
    probe_p99_ms: f64,
    samples: u32,
    sample_ms: u64,
    probes: u32,
    idle_seconds: f64,
    one_process: bool,
    /// Only in `[quick]`.
    repetitions: Option<u32>,
}

impl Default for Climbing {
    fn default() -> Self {
        Self {
            intervals: 20,
            stop_percent: 90.0,
            reserve_percent: 10.0,
            probe_p99_ms: 1000.0,
            samples: 5,
            sample_ms: 200,
            probes: 100,
            idle_seconds: 10.0,
            one_process: false,
            repetitions: None,
        }
    }
}

fn one() -> u64 {
    1
}

fn three() -> u32 {
    3
}

/// What a platform's table may hold besides [`COMMON_KEYS`] and [`HOST_KEYS`]: key, the texts
/// that it accepts (none: any), and the default, which comes first.
struct Parameters {
    kind: &'static str,
    maximum: u32,
    keys: &'static [(&'static str, &'static [&'static str], &'static str)],
}

/// Keys of every platform that are no factors.
const COMMON_KEYS: [&str; 4] = ["kind", "maximum", "quick_maximum", "if_present"];

const HOST_KEYS: [&str; 5] = [
    "host.ksm",
    "host.governor",
    "host.turbo",
    "host.smt",
    "host.thp",
];

const PLATFORMS: &[Parameters] = &[
    Parameters {
        kind: "mvm-parked",
        maximum: 1_000_000,
        keys: &[("image", &[], "web")],
    },
    Parameters {
        kind: "mvm-live",
        maximum: 40_000,
        keys: &[("image", &[], "web")],
    },
    Parameters {
        kind: "qemu",
        maximum: 1_500,
        keys: &[
            ("accel", &["tcg", "kvm"], "tcg"),
            ("machine", &["pc", "q35", "isapc"], "pc"),
            ("devices", &["off", "stock"], "off"),
            ("binary", &["x86_64", "i386"], "x86_64"),
            ("image", &[], "idle"),
        ],
    },
    Parameters {
        kind: "firecracker",
        maximum: 300,
        keys: &[],
    },
    Parameters {
        kind: "cloud-hypervisor",
        maximum: 300,
        keys: &[],
    },
    Parameters {
        kind: "container",
        maximum: 5_000,
        keys: &[("runtime", &["auto", "runc", "crun"], "auto")],
    },
    Parameters {
        kind: "process",
        maximum: 30_000,
        keys: &[],
    },
    Parameters {
        kind: "thread",
        maximum: 30_000,
        keys: &[],
    },
];

/// The platforms that a plan can name.
pub fn platforms() -> impl Iterator<Item = &'static str> {
    PLATFORMS.iter().map(|platform| platform.kind)
}

fn bad(what: impl Into<String>) -> HostError {
    HostError::Setting(what.into())
}

impl Plan {
    /// Reads a plan's text.
    ///
    /// # Errors
    /// What is wrong with it, and what it could say instead.
    pub fn parse(text: &str, is_quick: bool) -> Result<Self, HostError> {
        let file: File = toml::from_str(text)
            .map_err(|cause| bad(format!("the plan cannot be read: {cause}")))?;
        let mut table = file.density;
        if is_quick {
            table.extend(file.quick);
        }
        let climbing: Climbing = table
            .try_into()
            .map_err(|cause| bad(format!("[density] or [quick]: {cause}")))?;
        let within = |name: &str, value: f64, low: f64, high: f64| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                Err(bad(format!(
                    "{name} = {value} is not within {low} to {high}"
                )))
            }
        };
        within("intervals", f64::from(climbing.intervals), 2.0, 1000.0)?;
        within("stop_percent", climbing.stop_percent, 1.0, 100.0)?;
        within("reserve_percent", climbing.reserve_percent, 5.0, 99.0)?;
        within("probe_p99_ms", climbing.probe_p99_ms, 0.001, 1e6)?;
        within("samples", f64::from(climbing.samples), 1.0, 1000.0)?;
        #[allow(clippy::cast_precision_loss, reason = "checked right here")]
        within("sample_ms", climbing.sample_ms as f64, 10.0, 60_000.0)?;
        within("probes", f64::from(climbing.probes), 1.0, 1e6)?;
        within("idle_seconds", climbing.idle_seconds, 0.0, 3600.0)?;
        let repetitions = climbing.repetitions.unwrap_or(file.repetitions);
        within("repetitions", f64::from(repetitions), 1.0, 1000.0)?;
        let mut variants = Vec::new();
        for platform in &file.platform {
            variants.extend(variants_of(platform, is_quick)?);
        }
        if variants.is_empty() {
            return Err(bad("the plan names no [[platform]]"));
        }
        let mut labels: Vec<&str> = variants
            .iter()
            .map(|variant: &Variant| variant.treatment.label.as_str())
            .collect();
        labels.sort_unstable();
        if let Some(twice) = labels.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(bad(format!("{} is in the plan twice", twice[0])));
        }
        Ok(Self {
            name: file.name,
            description: file.description,
            seed: file.seed,
            repetitions,
            method: Method {
                intervals: climbing.intervals,
                limits: Limits {
                    stop_percent: climbing.stop_percent,
                    reserve_percent: climbing.reserve_percent,
                    probe_p99_ms: climbing.probe_p99_ms,
                },
                samples: climbing.samples,
                sample: Duration::from_millis(climbing.sample_ms),
                probes: climbing.probes,
                idle: Duration::from_secs_f64(climbing.idle_seconds),
                one_process: climbing.one_process,
            },
            variants,
            is_quick,
        })
    }

    /// Leaves out what is to be climbed only where its program is present. Returns these platforms.
    pub fn leave_out_absent(&mut self, roots: &Roots) -> Vec<String> {
        let absent = |variant: &Variant| {
            let program = variant.kind.program();
            variant.if_present && program.is_some_and(|name| roots.program(name).is_none())
        };
        let left_out = self.variants.iter().filter(|variant| absent(variant));
        let labels = left_out
            .map(|variant| variant.treatment.label.clone())
            .collect();
        self.variants.retain(|variant| !absent(variant));
        labels
    }

    /// The text of a plan that climbs these platforms as they are.
    #[must_use]
    pub fn of_platforms(platforms: &[String]) -> String {
        let mut text = "name = \"density\"\ndescription = \"How many guests this host holds\"\n\n[density]\n\n[quick]\nsamples = 3\nsample_ms = 100\nprobes = 40\nidle_seconds = 2\nrepetitions = 1\n".to_owned();
        for platform in platforms {
            text += &format!("\n[[platform]]\nkind = {:?}\n", platform);
        }
        text
    }
}

fn variants_of(table: &Table, is_quick: bool) -> Result<Vec<Variant>, HostError> {
    let kind = table
        .get("kind")
        .and_then(Value::as_str)
        .ok_or_else(|| bad("a [[platform]] has no kind"))?;
    let known = || platforms().collect::<Vec<_>>().join(", ");
    let parameters = PLATFORMS
        .iter()
        .find(|platform| platform.kind == kind)
        .ok_or_else(|| {
            bad(format!(
                "no platform is called {kind:?}; there are {}",
                known()
            ))
        })?;
    let number = |key: &str| -> Result<Option<u32>, HostError> {
        match table.get(key) {
            None => Ok(None),
            Some(value) => value
                .as_integer()
                .and_then(|n| u32::try_from(n).ok())
                .filter(|n| *n > 0)
                .map(Some)
                .ok_or_else(|| bad(format!("{kind}: {key} is a number of guests, not {value}"))),
        }
    };
    let maximum = number("maximum")?.unwrap_or(parameters.maximum);
    let quick = number("quick_maximum")?.unwrap_or_else(|| (maximum / 20).max(1));
    let maximum = if is_quick { quick } else { maximum };
    let if_present = match table.get("if_present") {
        None => false,
        Some(value) => value
            .as_bool()
            .ok_or_else(|| bad(format!("{kind}: if_present is true or false, not {value}")))?,
    };
    let mut levels: Vec<(String, Vec<Value>)> = Vec::new();
    for (key, value) in table {
        if COMMON_KEYS.contains(&key.as_str()) {
            continue;
        }
        let known = parameters.keys.iter().find(|(name, ..)| name == key);
        if known.is_none() && !HOST_KEYS.contains(&key.as_str()) {
            let mut keys: Vec<&str> = parameters.keys.iter().map(|(name, ..)| *name).collect();
            keys.extend(COMMON_KEYS.iter().skip(1));
            keys.extend(HOST_KEYS);
            return Err(bad(format!(
                "{kind} knows no {key:?}; it knows {}",
                keys.join(", ")
            )));
        }
        let values = match value {
            Value::Array(values) if !values.is_empty() => values.clone(),
            Value::Array(_) => return Err(bad(format!("{kind}: {key} has no levels"))),
            other => vec![other.clone()],
        };
        if let Some((_, choices, _)) = known {
            for value in &values {
                let text = value
                    .as_str()
                    .ok_or_else(|| bad(format!("{kind}: {key} is a text, not {value}")))?;
                if !choices.is_empty() && !choices.contains(&text) {
                    return Err(bad(format!(
                        "{kind}: {key} is one of {}, not {text:?}",
                        choices.join(", ")
                    )));
                }
            }
        }
        levels.push((key.clone(), values));
    }
    let mut combinations: Vec<BTreeMap<String, Value>> = vec![BTreeMap::new()];
    for (key, values) in &levels {
        combinations = combinations
            .iter()
            .flat_map(|combination| {
                values.iter().map(move |value| {
                    let mut with = combination.clone();
                    with.insert(key.clone(), value.clone());
                    with
                })
            })
            .collect();
    }
    let varied: Vec<&String> = levels
        .iter()
        .filter(|(_, values)| values.len() > 1)
        .map(|(key, _)| key)
        .collect();
    combinations
        .iter()
        .map(|levels| {
            let variant = variant(parameters, maximum, levels, &varied)?;
            Ok(Variant {
                if_present,
                ..variant
            })
        })
        .collect()
}

fn variant(
    parameters: &Parameters,
    maximum: u32,
    levels: &BTreeMap<String, Value>,
    varied: &[&String],
) -> Result<Variant, HostError> {
    let text = |key: &str| -> String {
        let default = parameters
            .keys
            .iter()
            .find(|(name, ..)| *name == key)
            .map_or("", |(.., default)| default);
        levels
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or(default)
            .to_owned()
    };
    let kind = match parameters.kind {
        "thread" => Kind::Thread,
        "process" => Kind::Process,
        "container" => Kind::Container {
            runtime: text("runtime"),
        },
        "qemu" => Kind::Qemu(QemuOptions {
            program: format!("qemu-system-{}", text("binary")),
            machine: text("machine"),
            accel: text("accel"),
            devices: if text("devices") == "stock" {
                Devices::Stock
            } else {
                Devices::Off
            },
            image: text("image"),
        }),
        "firecracker" => Kind::Linux(Vmm::Firecracker),
        "cloud-hypervisor" => Kind::Linux(Vmm::CloudHypervisor),
        other => Kind::Mvm {
            live: other == "mvm-live",
            image: text("image"),
        },
    };
    let mut host = Settings::default();
    for key in HOST_KEYS {
        let level = match levels.get(key) {
            None => continue,
            Some(Value::Boolean(on)) => Level::Bool(*on),
            Some(Value::String(text)) => Level::Text(text.clone()),
            Some(other) => return Err(bad(format!("{key} cannot be {other}"))),
        };
        host.0.insert(key.to_owned(), level);
    }
    let plain = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Boolean(true) => "on".to_owned(),
        Value::Boolean(false) => "off".to_owned(),
        other => other.to_string(),
    };
    let mut factors: BTreeMap<String, String> = parameters
        .keys
        .iter()
        .map(|(key, ..)| ((*key).to_owned(), text(key)))
        .collect();
    factors.extend(
        levels
            .iter()
            .map(|(key, value)| (key.clone(), plain(value))),
    );
    let shown: Vec<String> = varied
        .iter()
        .filter_map(|key| Some(format!("{key}={}", plain(levels.get(*key)?))))
        .collect();
    let label = [vec![parameters.kind.to_owned()], shown].concat().join(" ");
    Ok(Variant {
        treatment: Treatment {
            label,
            platform: parameters.kind.to_owned(),
            workload: WORKLOAD.to_owned(),
            factors,
            baseline: None,
            platform_kind: parameters.kind.to_owned(),
            workload_kind: WORKLOAD.to_owned(),
        },
        kind,
        maximum,
        host,
        if_present: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "name = \"x\"\n[density]\n";

    fn complaint(text: &str) -> String {
        Plan::parse(text, false).unwrap_err().to_string()
    }

    #[test]
    fn lists_are_factors_and_all_combinations_are_climbed() {
        let text = format!(
            "{HEAD}[[platform]]\nkind = \"qemu\"\nbinary = [\"i386\", \"x86_64\"]\nimage = [\"idle\", \"idle-pit\"]\n\"host.ksm\" = [true, false]\n"
        );
        let plan = Plan::parse(&text, false).unwrap();
        assert_eq!(plan.variants.len(), 8);
        let labels: Vec<&str> = plan
            .variants
            .iter()
            .map(|variant| variant.treatment.label.as_str())
            .collect();
        assert!(
            labels.contains(&"qemu binary=i386 host.ksm=off image=idle-pit"),
            "{labels:?}"
        );
        let first = &plan.variants[0];
        assert_eq!(first.treatment.factors.get("accel").unwrap(), "tcg");
        assert_eq!(first.host.0.len(), 1);
    }

    #[test]
    fn the_quick_profile_is_smaller_and_says_so() {
        let text = format!(
            "{HEAD}intervals = 10\n[quick]\nintervals = 4\nrepetitions = 1\n[[platform]]\nkind = \"thread\"\nmaximum = 1000\nquick_maximum = 70\n"
        );
        let full = Plan::parse(&text, false).unwrap();
        let quick = Plan::parse(&text, true).unwrap();
        assert_eq!((full.method.intervals, full.repetitions), (10, 3));
        assert_eq!((quick.method.intervals, quick.repetitions), (4, 1));
        assert_eq!(
            (full.variants[0].maximum, quick.variants[0].maximum),
            (1000, 70)
        );
    }

    #[test]
    fn complaints_name_the_mistake_and_the_choices() {
        let platform = |lines: &str| complaint(&format!("{HEAD}[[platform]]\n{lines}"));
        assert!(platform("kind = \"xen\"").contains("mvm-parked, mvm-live, qemu"));
        assert!(platform("kind = \"qemu\"\naccel = \"hvf\"").contains("tcg, kvm"));
        assert!(platform("kind = \"thread\"\nimage = \"web\"").contains("knows no \"image\""));
        assert!(platform("kind = \"thread\"\nmaximum = -3").contains("number of guests"));
        assert!(platform("kind = \"thread\"\n[[platform]]\nkind = \"thread\"").contains("twice"));
        assert!(
            complaint(
                "name = \"x\"\n[density]\nreserve_percent = 0\n[[platform]]\nkind = \"thread\""
            )
            .contains("within 5 to 99")
        );
        assert!(
            complaint(&format!(
                "{HEAD}colour = 1\n[[platform]]\nkind = \"thread\""
            ))
            .contains("colour")
        );
    }

    #[test]
    fn what_is_climbed_only_where_it_is_present_is_left_out_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::below(folder.path());
        let text = format!(
            "{HEAD}[[platform]]\nkind = \"firecracker\"\nif_present = true\n[[platform]]\nkind = \"qemu\"\n"
        );
        let mut plan = Plan::parse(&text, false).unwrap();
        assert_eq!(plan.leave_out_absent(&roots), ["firecracker"]);
        let left: Vec<&str> = plan
            .variants
            .iter()
            .map(|variant| variant.treatment.label.as_str())
            .collect();
        assert_eq!(left, ["qemu"]);
        let program = roots.path.first().unwrap().join("firecracker");
        std::fs::create_dir_all(program.parent().unwrap()).unwrap();
        std::fs::write(&program, "").unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, executable).unwrap();
        let mut plan = Plan::parse(&text, false).unwrap();
        assert!(plan.leave_out_absent(&roots).is_empty());
        let wrong = text.replace("if_present = true", "if_present = 3");
        assert!(complaint(&wrong).contains("true or false"));
    }

    #[test]
    fn every_platform_can_be_climbed_without_a_file() {
        let all: Vec<String> = platforms().map(str::to_owned).collect();
        let plan = Plan::parse(&Plan::of_platforms(&all), true).unwrap();
        assert_eq!(plan.variants.len(), all.len());
    }
}
