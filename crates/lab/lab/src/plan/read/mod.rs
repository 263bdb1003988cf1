// SPDX-License-Identifier: Apache-2.0
//! From TOML to a validated [`Plan`], or to all of its faults.

mod command;
mod gate;
mod image;
mod scenario;
mod values;

pub use values::{Complaint, Reader, Value, document, flatten};

use super::{
    Baseline, Catalogue, Diagnostics, Entry, NEIGHBOURS, Neighbour, NeighbourKind, Order, Plan,
    Quick, StopRule, Variation,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use toml::de::{DeTable, DeValue};
use vtax_core::metric;
use vtax_host::cell::{CLIENT_PLACE, ELSEWHERE};
use vtax_host::settings::{Level, Parameter, Settings};
use vtax_load::workload::command::KIND;

/// The names that `meters` accepts.
fn meter_names() -> impl Iterator<Item = &'static str> {
    ["auto", "none"].into_iter().chain(vtax_meter::NAMES)
}

const PLAN_KEYS: [&str; 24] = [
    "name",
    "description",
    "seed",
    "repetitions",
    "seeds",
    "draws",
    "warmup",
    "duration",
    "order",
    "sample_hz",
    "idle",
    "meters",
    "minimum_effect",
    "baseline",
    "stop",
    "quick",
    "image",
    "settings",
    "factors",
    "platform",
    "neighbour",
    "again",
    "places",
    "gate",
];

pub(super) fn read(file: &str, text: &str, catalogue: &Catalogue) -> Result<Plan, Diagnostics> {
    document(file, text, catalogue, |reader, root| reader.plan(root))
}

impl Reader<'_, &Catalogue> {
    fn plan(&mut self, root: &DeTable<'_>) -> Option<Plan> {
        self.only(
            root,
            PLAN_KEYS.iter().copied().chain(["workload"]),
            "a plan",
        );
        let platforms = self.entries(root, "platform");
        let workloads = self.entries(root, "workload");
        let neighbours = self.neighbours(root, &platforms);
        let mut settings = root
            .get("settings")
            .map(|value| self.settings(value))
            .unwrap_or_default();
        self.image(root, &mut settings);
        self.images(root);
        let factors = root
            .get("factors")
            .map(|value| self.factors(value, &neighbours))
            .unwrap_or_default();
        let quick = self.quick(root);
        let in_quick = root
            .get("quick")
            .and_then(|value| value.get_ref().as_table());
        for table in [
            root.get("settings"),
            root.get("factors"),
            in_quick.and_then(|quick| quick.get("settings")),
        ] {
            let table = table.and_then(|value| value.get_ref().as_table());
            if let Some(table) = table {
                self.meant(table, &platforms, &workloads, &neighbours);
            }
        }
        let baseline = self.baseline(root, &platforms, &neighbours, &factors);
        let (repetitions, variation) = self.blocks(root);
        let stop = root
            .get("stop")
            .map_or(Some(StopRule::Fixed), |value| self.stop(value, repetitions));
        let name = self.title(root);
        let gates = self.gates(root, &platforms);
        let plan = Plan {
            name: name?,
            description: self.string(root, "description").unwrap_or_default(),
            seed: self.integer(root, "seed", 0, i64::MAX).unwrap_or(1),
            repetitions,
            variation,
            warmup: self
                .time(root, "warmup", Duration::ZERO)
                .unwrap_or(Duration::from_secs(2)),
            duration: self
                .time(root, "duration", Duration::from_millis(100))
                .unwrap_or(Duration::from_secs(10)),
            order: self.order(root),
            stop: stop?,
            sample_hz: self.number(root, "sample_hz", 0.1, 50.0).unwrap_or(1.0),
            idle: self
                .time(root, "idle", Duration::ZERO)
                .unwrap_or(Duration::from_secs(5)),
            meters: self.meters(root),
            minimum_effect: self
                .number(root, "minimum_effect", 0.0, 10.0)
                .unwrap_or(0.02),
            baseline,
            settings,
            factors,
            again: self.again(root),
            places: self.places(root),
            neighbours,
            platforms,
            workloads,
            gates: gates.iter().map(|(_, gate)| gate.clone()).collect(),
            is_quick: false,
            quick,
        };
        self.size(root, &plan);
        self.place_of_clients(root, &plan);
        self.gates_apply(&gates, &plan);
        self.files_apply(root, &plan);
        Some(plan)
    }

    /// Reads the number of blocks, and the variation between them, from the one key that is given.
    fn blocks(&mut self, root: &DeTable<'_>) -> (u32, Variation) {
        let mut found: Option<(&str, u32, Variation)> = None;
        for (key, variation) in [
            ("repetitions", Variation::None),
            ("seeds", Variation::Seeds),
            ("draws", Variation::Draws { first: 1 }),
        ] {
            let Some(value) = root.get(key) else {
                continue;
            };
            let Some(blocks) = self.integer(root, key, 1, 100_000) else {
                continue;
            };
            if let Some((other, ..)) = found {
                self.refuse(value, format!("`{key}` and `{other}` are both given"),
                )
                .help_with(
                    "`seeds` gives each repetition a seed of its own, `draws` a seed and a draw: leave the others out",
                );
            }
            found = Some((key, blocks, variation));
        }
        found.map_or((5, Variation::None), |(_, blocks, variation)| {
            (blocks, variation)
        })
    }

    /// Reads platforms or workloads: `[[platform]]` tables with `kind`, optional `name`, and settings.
    fn entries(&mut self, root: &DeTable<'_>, section: &'static str) -> Vec<Entry> {
        let kinds = self.kinds(section);
        let mut entries: Vec<Entry> = Vec::new();
        let mut names = BTreeSet::new();
        for (offset, kind, table) in self.sections(root, section, &kinds) {
            let name = table
                .get("name")
                .and_then(|value| self.name(value))
                .unwrap_or_else(|| kind.clone());
            if !names.insert(name.clone()) {
                self.complain(offset, format!("two {section}s are called `{name}`"))
                    .help_with("give each a `name` of its own");
            }
            let mut settings = self.entry_settings(table, section, &kind);
            if section == "workload" && kind == KIND {
                let has_image = image::has_image(root);
                settings.0.extend(self.command(table, offset, has_image).0);
            }
            let (profile, objective) = self.drive(table, section, &kind);
            entries.push(Entry {
                name,
                kind,
                settings,
                profile,
                objective,
            });
        }
        entries
    }

    fn kinds(&self, section: &str) -> Vec<&'static str> {
        match section {
            "platform" => self
                .catalogue
                .platforms
                .iter()
                .map(|platform| platform.kind())
                .collect(),
            _ => self
                .catalogue
                .workloads
                .iter()
                .map(|workload| workload.kind())
                .collect(),
        }
    }

    /// Reads the settings of one entry. A workload's own keys are written without their `load.`.
    fn entry_settings(&mut self, table: &DeTable<'_>, section: &str, kind: &str) -> Settings {
        let platform = if section == "platform" { kind } else { "" };
        let mut settings = Settings::default();
        for (key, offset, value) in flatten(table) {
            let is_structure = key == "kind"
                || key == "name"
                || section == "workload" && (key == "objective" || key.starts_with("profile"))
                || section == "workload" && kind == KIND && command::is_own(&key);
            if is_structure {
                continue;
            }
            let full = if section == "platform" || key.contains('.') {
                key.clone()
            } else {
                format!("load.{key}")
            };
            // `("", kind)` would also accept every platform's keys, so only the entry's own parameters are searched.
            let own = self.own_parameters(section, kind).iter();
            let mut known = own.chain(self.catalogue.shared_by(platform));
            let Some(parameter) = known.find(|parameter| parameter.key == full) else {
                let valid = self.own_keys(section, kind, platform);
                let valid: Vec<String> = valid.map(str::to_owned).collect();
                self.unknown(
                    offset,
                    format!("{section} `{kind}` has no setting `{key}`"),
                    // As `valid` has them: without the group of the section.
                    key.strip_prefix("load.").unwrap_or(&key),
                    valid.iter().map(String::as_str),
                );
                continue;
            };
            if let Some(level) = self.level(value, parameter) {
                settings.0.insert(full, level);
            }
        }
        settings
    }

    /// Returns the parameters that a platform or workload of this kind has itself.
    fn own_parameters(&self, section: &str, kind: &str) -> &'static [Parameter] {
        let own = match section {
            "platform" => self.catalogue.platform(kind).map(|one| one.parameters()),
            _ => (self.catalogue.workload(kind)).map(|one| one.about().parameters),
        };
        own.unwrap_or_default()
    }

    /// Returns the keys that an entry of this kind may have.
    fn own_keys(&self, section: &str, kind: &str, platform: &str) -> impl Iterator<Item = &str> {
        let definition = if section == "workload"
            && let Some(workload) = self.catalogue.workload(kind)
        {
            workload.about().definition
        } else {
            &[]
        };
        (self.own_parameters(section, kind).iter())
            .chain(definition)
            .chain(self.catalogue.shared_by(platform))
            .map(|parameter| parameter.key)
            .map(|key| key.strip_prefix("load.").unwrap_or(key))
    }

    fn settings(&mut self, value: &Value<'_>) -> Settings {
        let Some(table) = self.table(value, "settings") else {
            return Settings::default();
        };
        let mut settings = Settings::default();
        for (key, offset, value) in flatten(table) {
            if let Some(parameter) = self.parameter(&key, offset)
                && let Some(level) = self.level(value, &parameter)
            {
                settings.0.insert(key, level);
            }
        }
        settings
    }

    fn factors(
        &mut self,
        value: &Value<'_>,
        neighbours: &[Neighbour],
    ) -> BTreeMap<String, Vec<Level>> {
        let Some(table) = self.table(value, "factors") else {
            return BTreeMap::new();
        };
        let mut factors = BTreeMap::new();
        for (key, offset, value) in flatten(table) {
            if key == NEIGHBOURS {
                factors.insert(key, self.neighbour_levels(value, neighbours));
                continue;
            }
            let Some(parameter) = self.parameter(&key, offset) else {
                continue;
            };
            let level = |reader: &mut Self, item: &Value<'_>| reader.level(item, &parameter);
            let Some(levels) = self.levels(value, &key, level) else {
                self.refuse(value, format!("factor `{key}` must list its levels"))
                    .help_with(format!(
                        "write {key} = [first, second]; one fixed value belongs under [settings]"
                    ));
                continue;
            };
            factors.insert(key, levels);
        }
        factors
    }

    /// Refuses settings for all trials that apply to no platform or workload of the plan.
    fn meant(
        &mut self,
        table: &DeTable<'_>,
        platforms: &[Entry],
        workloads: &[Entry],
        neighbours: &[Neighbour],
    ) {
        let beside = neighbours.iter().filter_map(|beside| match &beside.kind {
            NeighbourKind::Guest { workload, .. } => Some(workload.as_str()),
            NeighbourKind::Twin => None,
        });
        let loads: Vec<&str> = (workloads.iter().map(|load| load.kind.as_str()))
            .chain(beside)
            .collect();
        let means = |key: &str| {
            platforms.iter().any(|platform| {
                let mut loads = loads.iter();
                loads.any(|load| {
                    self.catalogue
                        .parameter(&platform.kind, load, key)
                        .is_some()
                })
            })
        };
        let idle: Vec<(String, usize)> = flatten(table)
            .into_iter()
            .filter(|(key, ..)| self.catalogue.parameter("", "", key).is_some() && !means(key))
            .map(|(key, offset, _)| (key, offset))
            .collect();
        // A plan without a platform or a workload already has a complaint.
        if platforms.is_empty() || loads.is_empty() {
            return;
        }
        for (key, offset) in idle {
            self.complain(
                offset,
                format!("no platform or workload of this plan has the setting `{key}`"),
            )
            .help_with("leave it out: it would do nothing");
        }
    }

    fn parameter(&mut self, key: &str, offset: usize) -> Option<Parameter> {
        let parameter = self.catalogue.parameter("", "", key);
        if parameter.is_none() {
            self.unknown(
                offset,
                format!("no platform or workload has a setting `{key}`"),
                key,
                self.catalogue.keys(),
            );
        }
        parameter
    }

    fn quick(&mut self, root: &DeTable<'_>) -> Quick {
        let keys = ["repetitions", "warmup", "duration", "sample_hz", "settings"];
        let Some(table) = self.section(root, "quick", keys.into_iter()) else {
            return Quick::default();
        };
        Quick {
            repetitions: self.integer(table, "repetitions", 1, 100_000),
            warmup: self.time(table, "warmup", Duration::ZERO),
            duration: self.time(table, "duration", Duration::from_millis(100)),
            sample_hz: self.number(table, "sample_hz", 0.1, 50.0),
            settings: table
                .get("settings")
                .map(|value| self.settings(value))
                .unwrap_or_default(),
        }
    }

    fn stop(&mut self, value: &Value<'_>, repetitions: u32) -> Option<StopRule> {
        let table = self.table(value, "stop")?;
        self.only(
            table,
            ["rule", "metric", "width", "minimum", "time_cap"].into_iter(),
            "[stop]",
        );
        let rule = table
            .get("rule")
            .and_then(|rule| self.text_of(rule, "rule"));
        match rule.as_deref() {
            Some("fixed") => Some(StopRule::Fixed),
            Some("precision") => {
                let minimum = self.integer(table, "minimum", 2, 100_000).unwrap_or(5);
                if minimum > repetitions {
                    self.refuse(
                        value,
                        format!("`stop.minimum` ({minimum}) exceeds `repetitions` ({repetitions})"),
                    )
                    .help_with("under the precision rule `repetitions` is the most that may run");
                }
                Some(StopRule::Precision {
                    metric: self
                        .string(table, "metric")
                        .unwrap_or_else(|| metric::CPU_PER_WORK.name.to_owned()),
                    width: self.number(table, "width", 0.001, 1.0).unwrap_or(0.05),
                    minimum,
                    time_cap: self
                        .time(table, "time_cap", Duration::from_secs(1))
                        .unwrap_or(Duration::from_secs(24 * 3600)),
                })
            }
            found => {
                let offset = table
                    .get("rule")
                    .map_or(value.span().start, |rule| rule.span().start);
                let found = found.unwrap_or_default().to_owned();
                self.unknown(
                    offset,
                    "`stop.rule` must be \"fixed\" or \"precision\"",
                    &found,
                    ["fixed", "precision"],
                );
                None
            }
        }
    }

    /// Reads `baseline = "native"`, or a table of a platform and factor levels. The default is the platform of kind
    /// `native`, or without one the first level of every factor on the same platform.
    fn baseline(
        &mut self,
        root: &DeTable<'_>,
        platforms: &[Entry],
        neighbours: &[Neighbour],
        factors: &BTreeMap<String, Vec<Level>>,
    ) -> Baseline {
        let Some(value) = root.get("baseline") else {
            let native = platforms
                .iter()
                .find(|entry| entry.kind == "native")
                .map(|entry| entry.name.clone());
            let levels = match native {
                Some(_) => BTreeMap::new(),
                None => factors
                    .iter()
                    .filter_map(|(key, levels)| Some((key.clone(), levels.first()?.clone())))
                    .collect(),
            };
            return Baseline {
                platform: native,
                levels,
            };
        };
        let mut baseline = Baseline::default();
        match value.get_ref() {
            DeValue::String(name) => {
                self.known_platform(name, value.span().start, platforms);
                baseline.platform = Some(name.to_string());
            }
            DeValue::Table(table) => {
                for (key, offset, value) in flatten(table) {
                    if key == "platform" {
                        if let Some(name) = self.text_of(value, "baseline.platform") {
                            self.known_platform(&name, value.span().start, platforms);
                            baseline.platform = Some(name);
                        }
                    } else if key == NEIGHBOURS && factors.contains_key(NEIGHBOURS) {
                        if let Some(level) = self.neighbour_level(value, neighbours) {
                            baseline.levels.insert(key, level);
                        }
                    } else if let Some(levels) = factors.get(&key) {
                        let Some(parameter) = self.parameter(&key, offset) else {
                            continue;
                        };
                        let Some(level) = self.level(value, &parameter) else {
                            continue;
                        };
                        if !levels.contains(&level) {
                            self.refuse(
                                value,
                                format!("`{level}` is not a level of factor `{key}`"),
                            );
                        }
                        baseline.levels.insert(key, level);
                    } else {
                        self.unknown(
                            offset,
                            format!("`{key}` is not a factor of this plan"),
                            &key,
                            factors.keys().map(String::as_str).chain(["platform"]),
                        );
                    }
                }
            }
            _ => {
                self.refuse(
                    value,
                    "`baseline` must be a platform's name or a table of levels",
                );
            }
        }
        baseline
    }

    fn known_platform(&mut self, name: &str, offset: usize, platforms: &[Entry]) {
        if !platforms.iter().any(|entry| entry.name == name) {
            self.unknown(
                offset,
                format!("the plan has no platform called `{name}`"),
                name,
                platforms.iter().map(|entry| entry.name.as_str()),
            );
        }
    }

    fn meters(&mut self, root: &DeTable<'_>) -> Vec<String> {
        let Some(value) = root.get("meters") else {
            return vec!["auto".to_owned()];
        };
        let Some(array) = value.get_ref().as_array() else {
            self.refuse(value, "`meters` must be a list")
                .help_with("write meters = [\"auto\"]");
            return Vec::new();
        };
        let mut meters = Vec::new();
        for item in array {
            let Some(name) = self.text_of(item, "meters") else {
                continue;
            };
            if !meter_names().any(|known| known == name) {
                self.unknown(
                    item.span().start,
                    format!("there is no meter `{name}`"),
                    &name,
                    meter_names(),
                );
            }
            meters.push(name);
        }
        meters
    }

    fn order(&mut self, root: &DeTable<'_>) -> Order {
        let Some(value) = root.get("order") else {
            return Order::Interleaved;
        };
        match self.text_of(value, "order").as_deref() {
            Some("interleaved") => Order::Interleaved,
            Some("sequential") => Order::Sequential,
            Some(found) => {
                self.unknown(
                    value.span().start,
                    "`order` must be \"interleaved\" or \"sequential\"",
                    found,
                    ["interleaved", "sequential"],
                );
                Order::Interleaved
            }
            None => Order::Interleaved,
        }
    }

    fn size(&mut self, root: &DeTable<'_>, plan: &Plan) {
        let combinations = plan
            .factors
            .values()
            .map(|levels| levels.len() as u64)
            .fold(1, u64::saturating_mul);
        let trials = combinations
            .saturating_mul(plan.platforms.len() as u64)
            .saturating_mul(plan.workloads.len() as u64)
            .saturating_mul(u64::from(plan.repetitions));
        let offset = root
            .get("factors")
            .or(root.get("repetitions"))
            .map_or(0, |value| value.span().start);
        self.accepts_size(trials, offset);
    }

    /// Refuses a choice of the client's place in a plan without `[places]`.
    fn place_of_clients(&mut self, root: &DeTable<'_>, plan: &Plan) {
        let entries = plan.platforms.iter().chain(&plan.workloads);
        let chosen = plan.factors.contains_key(CLIENT_PLACE)
            || entries
                .map(|entry| &entry.settings)
                .chain([&plan.settings])
                .any(|settings| settings.text(CLIENT_PLACE) == Some(ELSEWHERE));
        if chosen && plan.places.client.is_none() && root.get("places").is_none() {
            let offset = root.get("factors").map_or(0, |value| value.span().start);
            self.complain(offset, format!("`{CLIENT_PLACE}` needs [places]"))
                .help_with("it says where elsewhere is: client = \"ssh:HOST\", bridge, target");
        }
    }
}
