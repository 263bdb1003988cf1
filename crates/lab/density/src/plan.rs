// SPDX-License-Identifier: Apache-2.0
//! A density plan: a TOML file of platforms, their factors, and the method of the climbs.

use crate::limits::Limits;
use crate::supervisor::{Guests, QemuOptions, Work};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;
use toml::de::DeTable;
use vtax_guest::platform::vmm::Vmm;
use vtax_host::settings::{Domain, Level, Parameter, Settings};
use vtax_host::{Roots, knobs};
use vtax_lab::LabError;
use vtax_lab::place::Hypervisor;
use vtax_lab::plan::read::{self, Value, flatten};
use vtax_lab::plan::{Diagnostics, combinations};
use vtax_mvm::image::Image;
use vtax_results::Treatment;

/// The workload of every trial of a density run.
pub const WORKLOAD: &str = "density";

/// The method of a climb.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Method {
    /// Steps to the expected maximum.
    pub intervals: u32,
    /// The limits at which it ends.
    pub limits: Limits,
    /// Samples in each interval.
    pub samples: u32,
    /// The time of one sample.
    pub sample: Duration,
    /// Requests in each interval.
    pub probes: u32,
    /// Time without probes at the top.
    pub idle: Duration,
    /// Time limit of the return of memory after the last guest: the kernel frees some of it later.
    pub memory_return: Duration,
    /// Whether one process holds all guests, on platforms whose guests are in the supervisor.
    pub one_process: bool,
    /// The share of guests with work, in percent, on platforms with a `work`.
    pub working_percent: u32,
    /// Guests that start and end at the top.
    pub churn: Churn,
}

/// Guests that start and end while the climb is at its top.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Churn {
    /// Its duration; zero: no churn.
    pub watched: Duration,
    /// Mean lifetime of a guest.
    pub life: Duration,
    /// Offered load: guests that would run if no arrival were turned away, in percent of the places.
    pub load_percent: f64,
}

/// A platform with one level of each of its factors.
#[derive(Debug, Clone, PartialEq)]
pub struct Variant {
    /// Its number in the plan, from 0.
    pub number: usize,
    /// Its name in trials and tables.
    pub treatment: Treatment,
    /// Its guests.
    pub guests: Guests,
    /// The work of some guests while the others are probed.
    pub work: Option<Work>,
    /// The expected maximum.
    pub maximum: u32,
    /// The host's settings during the climb.
    pub host: Settings,
    /// Whether a missing program leaves the platform out instead of failing the run.
    pub if_present: bool,
}

impl Guests {
    /// The reason why an emulated host cannot make such guests. It has the packages of its recipe and no file of this
    /// host; with Xen it has no KVM and no QEMU for guests of its own.
    fn absence(&self, hypervisor: Hypervisor) -> Option<String> {
        match self {
            Self::Thread | Self::Process => None,
            Self::Container { runtime } => (runtime == "crun")
                .then(|| "an emulated host has runc only: write runtime = \"runc\"".to_owned()),
            Self::Mvm { .. } | Self::Qemu(_) if hypervisor == Hypervisor::Xen => Some(
                "an emulated host with Xen has neither KVM nor this QEMU: use --place testbed:kvm"
                    .to_owned(),
            ),
            Self::Qemu(options) if options.program.contains('/') => Some(no_file(&options.program)),
            Self::Mvm { image, .. } | Self::Qemu(QemuOptions { image, .. }) => {
                Image::shipped(image).is_none().then(|| no_file(image))
            }
            Self::Linux(vmm) => Some(format!(
                "{} is not installed in an emulated host",
                vmm.program()
            )),
        }
    }
}

fn no_file(path: &str) -> String {
    format!("an emulated host does not have this host's file {path}")
}

/// A plan that was checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// Its purpose.
    pub description: String,
    /// Seed of the order of climbs.
    pub seed: u64,
    /// Climbs of each platform.
    pub repetitions: u32,
    /// The share of climbs that may be repeated because they failed or are suspect.
    pub again: f64,
    /// Their method.
    pub method: Method,
    /// The platforms, each with one level of its factors.
    pub variants: Vec<Variant>,
    /// Whether this is the quick profile.
    pub is_quick: bool,
}

impl Method {
    /// The method by these settings, and the defaults of [`METHOD`].
    fn from_settings(settings: &Settings) -> Self {
        let parameter = |key: &str| METHOD.iter().find(|parameter| parameter.key == key);
        let number = |key| parameter(key).map_or(0.0, |parameter| parameter.number(settings));
        let whole = |key| number(key) as u32;
        let seconds = |key| Duration::from_secs_f64(number(key));
        Self {
            intervals: whole("intervals"),
            limits: Limits {
                stop_percent: number("stop_percent"),
                reserve_percent: number("reserve_percent"),
                probe_p99_ms: number("probe_p99_ms"),
            },
            samples: whole("samples"),
            sample: Duration::from_millis(whole("sample_ms").into()),
            probes: whole("probes"),
            idle: seconds("idle_seconds"),
            memory_return: seconds("return_seconds"),
            one_process: settings.bool("one_process", false),
            working_percent: whole("working_percent"),
            churn: Churn {
                watched: seconds("cloud_seconds"),
                life: seconds("cloud_life_seconds"),
                load_percent: number("cloud_load_percent"),
            },
        }
    }

    /// The time of a climb without that of making guests.
    #[must_use]
    pub fn least_time(&self) -> Duration {
        self.sample * self.samples * (1 + self.intervals) + self.idle + self.churn.watched
    }
}

/// A platform that a plan can name.
struct Platform {
    kind: &'static str,
    /// The default of the expected maximum.
    maximum: u32,
    /// The factors, without the host's settings.
    parameters: &'static [Parameter],
}

const fn platform(kind: &'static str, maximum: u32, parameters: &'static [Parameter]) -> Platform {
    Platform {
        kind,
        maximum,
        parameters,
    }
}

/// A parameter with one of `words`, of which the first is the default.
const fn choice(key: &'static str, words: &'static [&'static str]) -> Parameter {
    Parameter::new(key, Domain::Choice(words), words[0]).help("how its guests are made")
}

const fn image(default: &'static str) -> Parameter {
    let rule = "an image of micro VMs by name, or a file";
    Parameter::new("image", Domain::Text(rule), default).help("what boots")
}

const fn guests(key: &'static str, help: &'static str) -> Parameter {
    Parameter::unset(key, Domain::Integer(1, u32::MAX as i64)).help(help)
}

/// The keys of every platform that are not factors.
const COMMON: [Parameter; 3] = [
    guests("maximum", "guests expected at most"),
    guests("quick_maximum", "the same for a first look"),
    Parameter::unset("if_present", Domain::Bool).help("only where installed"),
];

/// The parameter for the work of some guests while the others are probed.
const fn work(words: &'static [&'static str]) -> Parameter {
    Parameter::unset("work", Domain::Choice(words)).help("what some of its guests do")
}

const PLATFORMS: [Platform; 8] = [
    platform("mvm-parked", 1_000_000, &[image("web")]),
    platform("mvm-live", 40_000, &[image("web"), work(&["none", "cpu"])]),
    platform("qemu", 1_500, &QEMU),
    platform("firecracker", 300, &[]),
    platform("cloud-hypervisor", 300, &[]),
    platform(
        "container",
        5_000,
        &[
            choice("runtime", &["auto", "runc", "crun"]),
            work(&Work::NAMES),
        ],
    ),
    platform("process", 30_000, &[work(&Work::NAMES)]),
    platform("thread", 30_000, &[]),
];

const BINARIES: &str = "x86_64, i386, or the path of a QEMU, such as one of another version";

const QEMU: [Parameter; 6] = [
    choice("accel", &["tcg", "kvm"]),
    choice("machine", &["pc", "q35", "isapc"]),
    choice("devices", &["off", "stock"]),
    Parameter::new("binary", Domain::Text(BINARIES), "x86_64").help("the QEMU to run"),
    image("idle"),
    work(&["none", "cpu"]),
];

/// The platforms that a plan can name.
pub fn platforms() -> impl Iterator<Item = &'static str> {
    PLATFORMS.iter().map(|platform| platform.kind)
}

impl Plan {
    /// Whether a document, valid or not, is intended as a density plan: it has a `density`.
    #[must_use]
    pub fn is_meant(text: &str) -> bool {
        let (document, _) = DeTable::parse_recoverable(text);
        document.get_ref().get("density").is_some()
    }

    /// The time of all climbs without that of making guests.
    #[must_use]
    pub fn least_time(&self) -> Duration {
        let climbs = u32::try_from(self.variants.len()).unwrap_or(u32::MAX);
        self.method
            .least_time()
            .saturating_mul(climbs.saturating_mul(self.repetitions))
    }

    /// Reads and validates a plan, or its quick profile. `file` is the plan's name in messages.
    ///
    /// # Errors
    /// All mistakes, each with line, column and, where one is similar, the valid spelling.
    pub fn read(file: &str, text: &str, is_quick: bool) -> Result<Self, Diagnostics> {
        read::document(file, text, (), |reader, root| plan(reader, root, is_quick))
    }

    /// Removes the optional platforms whose program is missing and returns them.
    pub fn leave_out_absent(&mut self, roots: &Roots) -> Vec<String> {
        self.leave_out(&|variant| {
            let program = variant.guests.program();
            program.is_some_and(|name| roots.program(name).is_none())
        })
    }

    /// Removes the optional platforms that are absent and returns them.
    fn leave_out(&mut self, is_absent: &dyn Fn(&Variant) -> bool) -> Vec<String> {
        let (absent, left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.variants)
            .into_iter()
            .partition(|variant| variant.if_present && is_absent(variant));
        self.variants = left;
        let labels = absent.into_iter().map(|variant| variant.treatment.label);
        labels.collect()
    }

    /// Prepares the plan for emulated hosts, which have no files but their own. Removes the optional platforms that they
    /// do not have and returns them.
    ///
    /// # Errors
    /// The other platforms that they do not have, each with the reason.
    pub fn for_testbed(&mut self, hypervisor: Hypervisor) -> Result<Vec<String>, LabError> {
        let labels = self.leave_out(&|variant| variant.guests.absence(hypervisor).is_some());
        let missing = self.variants.iter().filter_map(|variant| {
            let why = variant.guests.absence(hypervisor)?;
            Some(format!("{}: {why}", variant.treatment.label))
        });
        let missing: Vec<String> = missing.collect();
        if missing.is_empty() {
            return Ok(labels);
        }
        Err(LabError::Plan(format!(
            "testbed:{hypervisor} cannot run the plan:\n  {}",
            missing.join("\n  ")
        )))
    }

    /// Removes repetitions for a place where they give the same numbers. Returns the number of repetitions that it removed.
    pub fn without_repetitions(&mut self) -> u32 {
        std::mem::replace(&mut self.repetitions, 1) - 1
    }

    /// Reduces the plan to one climb of the platform with this number.
    ///
    /// # Errors
    /// When there is none.
    pub fn narrow(&mut self, number: usize) -> Result<(), LabError> {
        self.variants.retain(|variant| variant.number == number);
        (self.repetitions, self.again) = (1, 0.0);
        if self.variants.is_empty() {
            let none = format!("the plan has no treatment {number}");
            return Err(LabError::Plan(none));
        }
        Ok(())
    }

    /// The text of a plan of these platforms with their defaults.
    #[must_use]
    pub fn of_platforms(platforms: &[String]) -> String {
        let mut text = "name = \"density\"\ndescription = \"How many guests this host holds\"\n\n[density]\n\n[quick]\nsamples = 3\nsample_ms = 100\nprobes = 40\nidle_seconds = 2\nrepetitions = 1\n".to_owned();
        for platform in platforms {
            text += &format!("\n[[platform]]\nkind = {:?}\n", platform);
        }
        text
    }

    /// The text of a plan with another expected maximum of each platform.
    ///
    /// # Errors
    /// When the text is no TOML.
    pub fn with_maximum(text: &str, maximum: u32) -> Result<String, LabError> {
        let unreadable =
            |cause: &dyn Display| LabError::Plan(format!("the plan cannot be read: {cause}"));
        let mut table: toml::Table = toml::from_str(text).map_err(|cause| unreadable(&cause))?;
        let platforms = table
            .get_mut("platform")
            .and_then(toml::Value::as_array_mut);
        let platforms = platforms.into_iter().flatten();
        for platform in platforms.filter_map(toml::Value::as_table_mut) {
            for key in ["maximum", "quick_maximum"] {
                platform.insert(key.to_owned(), maximum.into());
            }
        }
        toml::to_string(&table).map_err(|cause| unreadable(&cause))
    }
}

type Reader<'a> = read::Reader<'a, ()>;

const fn whole(key: &'static str, low: i64, high: i64, default: &'static str) -> Parameter {
    Parameter::new(key, Domain::Integer(low, high), default)
}

const fn number(key: &'static str, low: f64, high: f64, default: &'static str) -> Parameter {
    Parameter::new(key, Domain::Number(low, high), default)
}

/// The keys of `[density]` and `[quick]`.
const METHOD: [Parameter; 14] = [
    whole("intervals", 2, 1000, "20"),
    number("stop_percent", 1.0, 100.0, "90"),
    number("reserve_percent", 5.0, 99.0, "10"),
    number("probe_p99_ms", 0.001, 1e6, "1000"),
    whole("samples", 1, 1000, "5"),
    whole("sample_ms", 10, 60_000, "200"),
    whole("probes", 1, 1_000_000, "100"),
    number("idle_seconds", 0.0, 3600.0, "10"),
    number("return_seconds", 0.0, 3600.0, "15"),
    Parameter::new("one_process", Domain::Bool, "false"),
    whole("working_percent", 1, 99, "10"),
    number("cloud_seconds", 0.0, 3600.0, "0"),
    number("cloud_life_seconds", 0.1, 3600.0, "10"),
    number("cloud_load_percent", 1.0, 1000.0, "80"),
];

fn method_keys() -> impl Iterator<Item = &'static str> + Clone {
    METHOD.iter().map(|parameter| parameter.key)
}

fn plan(reader: &mut Reader<'_>, root: &DeTable<'_>, is_quick: bool) -> Option<Plan> {
    let keys = [
        "name",
        "description",
        "seed",
        "repetitions",
        "again",
        "density",
        "quick",
        "platform",
    ];
    reader.only(root, keys, "a density plan");
    let mut settings = Settings::default();
    let mut repetitions = repetitions(reader, root).unwrap_or(3);
    if root.get("density").is_none() {
        reader
            .complain(0, "`[density]` is missing")
            .help_with("add a section [density]; whatever it leaves out has a default");
    }
    if let Some(table) = reader.section(root, "density", method_keys()) {
        read_method(reader, table, &mut settings);
    }
    let of_quick = method_keys().chain(["repetitions"]);
    if let Some(table) = reader.section(root, "quick", of_quick) {
        let mut quick = settings.clone();
        read_method(reader, table, &mut quick);
        let fewer = self::repetitions(reader, table);
        if is_quick {
            (settings, repetitions) = (quick, fewer.unwrap_or(repetitions));
        }
    }
    let variants = read_variants(reader, root, repetitions, is_quick);
    Some(Plan {
        name: reader.title(root)?,
        description: reader.string(root, "description").unwrap_or_default(),
        seed: reader.integer(root, "seed", 0, i64::MAX).unwrap_or(1),
        repetitions,
        again: reader.again(root),
        method: Method::from_settings(&settings),
        variants,
        is_quick,
    })
}

fn repetitions(reader: &mut Reader<'_>, table: &DeTable<'_>) -> Option<u32> {
    reader.integer(table, "repetitions", 1, 1000)
}

/// Reads the settings of a section of the method.
fn read_method(reader: &mut Reader<'_>, table: &DeTable<'_>, settings: &mut Settings) {
    for Parameter { key, domain, .. } in METHOD {
        let level = match domain {
            Domain::Integer(low, high) => reader.integer(table, key, low, high).map(Level::Integer),
            Domain::Number(low, high) => reader.number(table, key, low, high).map(Level::Number),
            _ => reader.switch(table, key).map(Level::Bool),
        };
        settings
            .0
            .extend(level.map(|level| (key.to_owned(), level)));
    }
}

fn read_variants(
    reader: &mut Reader<'_>,
    root: &DeTable<'_>,
    repetitions: u32,
    is_quick: bool,
) -> Vec<Variant> {
    let kinds: Vec<&str> = platforms().collect();
    let mut climbs = 0u64;
    let mut variants: Vec<Variant> = Vec::new();
    for (offset, kind, table) in reader.sections(root, "platform", &kinds) {
        let Some(platform) = PLATFORMS.iter().find(|platform| platform.kind == kind) else {
            continue;
        };
        let (own, factors) = read_platform(reader, platform, table);
        climbs = factors
            .values()
            .map(|levels| levels.len() as u64)
            .fold(u64::from(repetitions), u64::saturating_mul)
            .saturating_add(climbs);
        if !reader.accepts_size(climbs, offset) {
            break;
        }
        for levels in combinations(factors.iter()) {
            let number = variants.len();
            let variant = variant(number, platform, &own, &factors, levels, is_quick);
            let label = &variant.treatment.label;
            if variants.iter().any(|other| other.treatment.label == *label) {
                reader
                    .complain(offset, format!("`{label}` is in the plan twice"))
                    .help_with(
                        "write what differs between them as a list of levels of one of them",
                    );
            }
            variants.push(variant);
        }
    }
    variants
}

/// The keys of a `[[platform]]` that are not factors, and its factors. A factor with a single level is not varied.
fn read_platform(
    reader: &mut Reader<'_>,
    platform: &Platform,
    table: &DeTable<'_>,
) -> (Settings, BTreeMap<String, Vec<Level>>) {
    let known = || {
        let varied = platform.parameters.iter().chain(knobs::host::parameters());
        COMMON.iter().chain(varied)
    };
    let mut own = Settings::default();
    let mut factors = BTreeMap::new();
    for (key, offset, value) in flatten(table) {
        if key == "kind" {
            continue;
        }
        let Some(parameter) = known().find(|parameter| parameter.key == key) else {
            let kind = platform.kind;
            reader.unknown(
                offset,
                format!("platform `{kind}` has no setting `{key}`"),
                &key,
                known().map(|parameter| parameter.key),
            );
            continue;
        };
        let level = |reader: &mut Reader<'_>, value: &Value<'_>| reader.level(value, parameter);
        if COMMON.iter().any(|common| common.key == key) {
            own.0.extend(level(reader, value).map(|level| (key, level)));
        } else if let Some(levels) = reader.levels(value, &key, level) {
            factors.insert(key, levels);
        } else if let Some(level) = level(reader, value) {
            factors.insert(key, vec![level]);
        }
    }
    (own, factors)
}

fn variant(
    number: usize,
    platform: &Platform,
    own: &Settings,
    factors: &BTreeMap<String, Vec<Level>>,
    levels: BTreeMap<String, Level>,
    is_quick: bool,
) -> Variant {
    let guests = |key: &str, default: u32| {
        u32::try_from(own.integer(key, default.into())).unwrap_or(default)
    };
    let full = guests("maximum", platform.maximum);
    let quick = guests("quick_maximum", (full / 20).max(1));
    let varied = levels
        .iter()
        .filter(|(key, _)| factors.get(*key).is_some_and(|levels| levels.len() > 1));
    let shown = varied.map(|(key, level)| format!(" {key}={level}"));
    let label = platform.kind.to_owned() + &shown.collect::<String>();
    let is_of_host = |key: &str| key.starts_with("host.");
    let (host, of_guests): (BTreeMap<_, _>, BTreeMap<_, _>) =
        levels.into_iter().partition(|(key, _)| is_of_host(key));
    let mut settings = Settings::default();
    for parameter in platform.parameters {
        if let Some(default) = parameter.default {
            let level = Level::Text(default.to_owned());
            settings.0.insert(parameter.key.to_owned(), level);
        }
    }
    settings.0.extend(of_guests);
    let written = settings.0.iter().chain(&host);
    Variant {
        number,
        treatment: Treatment {
            label,
            platform: platform.kind.to_owned(),
            workload: WORKLOAD.to_owned(),
            factors: written
                .map(|(key, level)| (key.clone(), level.to_string()))
                .collect(),
            baseline: None,
            platform_kind: platform.kind.to_owned(),
            workload_kind: WORKLOAD.to_owned(),
        },
        guests: guests_of(platform.kind, &settings),
        work: settings.text("work").and_then(Work::parse),
        maximum: if is_quick { quick } else { full },
        host: Settings(host),
        if_present: own.bool("if_present", false),
    }
}

/// The guests of a platform with their options.
fn guests_of(kind: &str, settings: &Settings) -> Guests {
    let text = |key: &str| settings.text(key).unwrap_or_default().to_owned();
    match kind {
        "thread" => Guests::Thread,
        "process" => Guests::Process,
        "container" => Guests::Container {
            runtime: text("runtime"),
        },
        "qemu" => Guests::Qemu(QemuOptions {
            program: match text("binary") {
                path if path.contains('/') => path,
                architecture => format!("qemu-system-{architecture}"),
            },
            machine: text("machine"),
            accel: text("accel"),
            is_stock: settings.text("devices") == Some("stock"),
            image: text("image"),
        }),
        "firecracker" => Guests::Linux(Vmm::Firecracker),
        "cloud-hypervisor" => Guests::Linux(Vmm::CloudHypervisor),
        other => Guests::Mvm {
            live: other == "mvm-live",
            image: text("image"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEAD: &str = "name = \"x\"\n[density]\n";

    fn read(text: &str, is_quick: bool) -> Result<Plan, Diagnostics> {
        Plan::read("plan.toml", text, is_quick)
    }

    fn complaint(text: &str) -> String {
        read(text, false).unwrap_err().to_string()
    }

    #[test]
    fn lists_are_factors_and_all_combinations_are_climbed() {
        let text = format!(
            "{HEAD}[[platform]]\nkind = \"qemu\"\nbinary = [\"i386\", \"x86_64\"]\nimage = [\"idle\", \"idle-pit\"]\n\"host.ksm\" = [true, false]\n"
        );
        let plan = read(&text, false).unwrap();
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
    fn a_qemu_is_named_by_its_architecture_or_its_path() {
        let text = format!(
            "{HEAD}[[platform]]\nkind = \"qemu\"\nbinary = [\"i386\", \"/opt/qemu-10/bin/qemu-system-i386\"]\n"
        );
        let plan = read(&text, false).unwrap();
        let programs = plan.variants.iter().map(|variant| match &variant.guests {
            Guests::Qemu(options) => options.program.as_str(),
            other => panic!("{other:?}"),
        });
        let mut programs: Vec<&str> = programs.collect();
        programs.sort_unstable();
        let expected = ["/opt/qemu-10/bin/qemu-system-i386", "qemu-system-i386"];
        assert_eq!(programs, expected);
    }

    #[test]
    fn the_quick_profile_is_smaller_and_says_so() {
        let text = format!(
            "{HEAD}intervals = 10\n[quick]\nintervals = 4\nrepetitions = 1\n[[platform]]\nkind = \"thread\"\nmaximum = 1000\nquick_maximum = 70\n"
        );
        let full = read(&text, false).unwrap();
        let quick = read(&text, true).unwrap();
        assert_eq!((full.method.intervals, full.repetitions), (10, 3));
        assert_eq!((quick.method.intervals, quick.repetitions), (4, 1));
        assert_eq!(
            (full.variants[0].maximum, quick.variants[0].maximum),
            (1000, 70)
        );
    }

    #[test]
    fn complaints_point_at_the_mistake_and_name_the_choices() {
        let platform = |lines: &str| complaint(&format!("{HEAD}[[platform]]\n{lines}"));
        let kind = platform("kind = \"xen\"");
        assert!(
            kind.contains("plan.toml:4:8: there is no platform `xen`")
                && kind.contains("container, firecracker"),
            "{kind}"
        );
        let accel = platform("kind = \"qemu\"\naccel = [\"tcg\", \"kvn\"]");
        assert!(
            accel.contains("plan.toml:5:17: `accel` must be one of \"tcg\", \"kvm\"")
                && accel.contains("did you mean `kvm`?"),
            "{accel}"
        );
        let other = platform("kind = \"thread\"\nimage = \"web\"");
        assert!(
            other.contains("plan.toml:5:1: platform `thread` has no setting `image`"),
            "{other}"
        );
        let near = platform("kind = \"thread\"\nmaximun = 3");
        assert!(near.contains("did you mean `maximum`?"), "{near}");
        for guests in ["-3", "0", "[1, 2]", "\"many\""] {
            let printed = platform(&format!("kind = \"thread\"\nmaximum = {guests}"));
            assert!(
                printed.contains("plan.toml:5:11: `maximum` must be a whole number"),
                "{printed}"
            );
        }
        let twice = platform("kind = \"thread\"\n[[platform]]\nkind = \"thread\"");
        assert!(
            twice.contains("plan.toml:5:1: `thread` is in the plan twice"),
            "{twice}"
        );
        let levels = platform("kind = \"qemu\"\naccel = [\"tcg\", \"tcg\"]");
        assert!(levels.contains("has the level `tcg` twice"), "{levels}");
        let host = platform("kind = \"thread\"\nhost.governor = \"fast\"");
        assert!(
            host.contains("plan.toml:5:17: `host.governor` must be one of"),
            "{host}"
        );
    }

    #[test]
    fn complaints_of_sections_have_their_place_too_and_all_are_reported() {
        let thread = "[[platform]]\nkind = \"thread\"";
        let printed = complaint(&format!(
            "name = \"x\"\n[density]\nreserve_percent = 0\ninterval = 3\n[quick]\nsamples = 2.5\n{thread}"
        ));
        for part in [
            "plan.toml:3:19: `reserve_percent` must be a number from 5 to 99",
            "plan.toml:4:1: [density] has no key `interval`",
            "did you mean `intervals`?",
            "plan.toml:6:11: `samples` must be a whole number from 1 to 1000",
        ] {
            assert!(printed.contains(part), "{printed}");
        }
        let missing = complaint("");
        for part in [
            "`name` is missing",
            "`[density]` is missing",
            "no `[[platform]]`",
        ] {
            assert!(missing.contains(part), "{missing}");
        }
        let many = (0..9)
            .map(|index| format!("\"{index}\", "))
            .collect::<String>();
        let many = format!(
            "repetitions = 1000\n{HEAD}[[platform]]\nkind = \"mvm-live\"\nimage = [{many}]\n[[platform]]\nkind = \"qemu\"\nimage = [{many}]\nmachine = [\"pc\", \"q35\", \"isapc\"]\naccel = [\"tcg\", \"kvm\"]\nbinary = [\"i386\", \"x86_64\"]"
        );
        assert!(complaint(&many).contains("plan.toml:7:1: the plan comes to 117000 trials"));
    }

    #[test]
    fn climbs_are_made_again_up_to_the_share_that_the_plan_gives() {
        let thread = "[[platform]]\nkind = \"thread\"";
        assert_eq!(read(&format!("{HEAD}{thread}"), false).unwrap().again, 0.5);
        let text = format!("again.share = 0.2\n{HEAD}{thread}");
        assert_eq!(read(&text, false).unwrap().again, 0.2);
        let printed = complaint(&text.replace("0.2", "-1"));
        assert!(
            printed.contains("plan.toml:1:15: `share` must be a number"),
            "{printed}"
        );
    }

    #[test]
    fn what_is_climbed_only_where_it_is_present_is_left_out_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::below(folder.path());
        let text = format!(
            "{HEAD}[[platform]]\nkind = \"firecracker\"\nif_present = true\n[[platform]]\nkind = \"qemu\"\n"
        );
        let mut plan = read(&text, false).unwrap();
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
        let mut plan = read(&text, false).unwrap();
        assert!(plan.leave_out_absent(&roots).is_empty());
        let wrong = text.replace("if_present = true", "if_present = 3");
        assert!(complaint(&wrong).contains("plan.toml:5:14: `if_present` must be true or false"));
    }

    #[test]
    fn an_emulated_host_climbs_what_it_has_and_the_rest_is_refused_with_its_reason() {
        let text = format!(
            "{HEAD}[[platform]]\nkind = \"firecracker\"\nif_present = true\n\
             [[platform]]\nkind = \"qemu\"\naccel = [\"tcg\", \"kvm\"]\n\
             [[platform]]\nkind = \"mvm-live\"\n[[platform]]\nkind = \"thread\"\n"
        );
        let mut plan = read(&text, false).unwrap();
        assert_eq!(plan.for_testbed(Hypervisor::Kvm).unwrap(), ["firecracker"]);
        let numbers: Vec<usize> = plan.variants.iter().map(|variant| variant.number).collect();
        // The numbers of the whole plan, by which another vtax takes one of them.
        assert_eq!(numbers, [1, 2, 3, 4]);
        plan.narrow(2).unwrap();
        assert_eq!(plan.variants[0].treatment.label, "qemu accel=kvm");
        assert_eq!((plan.repetitions, plan.again), (1, 0.0));
        let none = plan.narrow(0).unwrap_err().to_string();
        assert!(none.contains("no treatment 0"), "{none}");

        let refused = |lines: &str, hypervisor| {
            let text = format!("{HEAD}[[platform]]\n{lines}");
            let mut plan = read(&text, false).unwrap();
            plan.for_testbed(hypervisor).unwrap_err().to_string()
        };
        for (lines, reason) in [
            (
                "kind = \"cloud-hypervisor\"",
                "not installed in an emulated host",
            ),
            ("kind = \"container\"\nruntime = \"crun\"", "runc only"),
            (
                "kind = \"qemu\"\nbinary = \"/opt/qemu\"",
                "this host's file /opt/qemu",
            ),
            (
                "kind = \"qemu\"\nimage = \"own.asm\"",
                "this host's file own.asm",
            ),
            (
                "kind = \"mvm-parked\"\nimage = \"own.bin\"",
                "this host's file own.bin",
            ),
        ] {
            let printed = refused(lines, Hypervisor::Kvm);
            assert!(
                printed.contains("testbed:kvm cannot run the plan"),
                "{printed}"
            );
            assert!(printed.contains(reason), "{printed}");
        }
        let printed = refused("kind = \"qemu\"", Hypervisor::Xen);
        assert!(printed.contains("use --place testbed:kvm"), "{printed}");
    }

    #[test]
    fn repetitions_are_left_out_where_they_give_the_same_numbers() {
        let text = format!("repetitions = 4\n{HEAD}[[platform]]\nkind = \"thread\"");
        let mut plan = read(&text, false).unwrap();
        assert_eq!(plan.without_repetitions(), 3);
        assert_eq!(plan.repetitions, 1);
    }

    #[test]
    fn the_maximum_of_the_command_line_stands_in_the_stored_plan() {
        let text = Plan::of_platforms(&["thread".to_owned(), "process".to_owned()]);
        let text = Plan::with_maximum(&text, 7).unwrap();
        for is_quick in [false, true] {
            let plan = read(&text, is_quick).unwrap();
            assert!(plan.variants.iter().all(|variant| variant.maximum == 7));
        }
    }

    #[test]
    fn every_platform_can_be_climbed_without_a_file() {
        let all: Vec<String> = platforms().map(str::to_owned).collect();
        let plan = read(&Plan::of_platforms(&all), true).unwrap();
        assert_eq!(plan.variants.len(), all.len());
    }

    /// Mutations of a valid plan: each replaces some characters at a position.
    fn mutated() -> impl Strategy<Value = String> {
        const GOOD: &str = include_str!("../../../../plans/papers/bratterud-tuning.toml");
        let edit = (
            any::<prop::sample::Index>(),
            0usize..40,
            "[\\x00-\\x7fµ·\"\\[\\]{}=.0-9a-z\\n-]{0,12}",
        );
        prop::collection::vec(edit, 1..6).prop_map(|edits| {
            let mut characters: Vec<char> = GOOD.chars().collect();
            for (place, length, text) in edits {
                let start = place.index(characters.len().max(1)).min(characters.len());
                let end = (start + length).min(characters.len());
                characters.splice(start..end, text.chars());
            }
            characters.into_iter().collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn mutated_plans_give_clear_errors_and_never_panic(text in mutated(), is_quick: bool) {
            match read(&text, is_quick) {
                Ok(plan) => prop_assert!(!plan.variants.is_empty()),
                Err(diagnostics) => {
                    prop_assert!(!diagnostics.list.is_empty());
                    let lines = text.lines().count() + 1;
                    for found in &diagnostics.list {
                        prop_assert!(!found.message.is_empty());
                        prop_assert!(found.line >= 1 && found.line <= lines, "line {} of {}", found.line, lines);
                    }
                    prop_assert!(diagnostics.to_string().contains("plan.toml:"));
                }
            }
        }
    }
}
