// SPDX-License-Identifier: Apache-2.0
//! From TOML to a validated [`Plan`], or to all of its faults.

mod command;
mod gate;
mod image;
mod scenario;
mod values;
mod variant;

pub use values::{Complaint, Reader, Value, document, flatten};

use super::{
    Baseline, Canary, Catalogue, Diagnostics, Entry, NEIGHBOURS, Neighbour, NeighbourKind, Order,
    Plan, Quick, StopRule, VARIANT, Variant, Variation, keys, treatments,
};
use std::collections::BTreeMap;
use toml::de::{DeTable, DeValue};
use values::{Own, table};
use vtax_host::cell::{CLIENT_PLACE, ELSEWHERE};
use vtax_host::settings::{Level, Parameter, Settings};
use vtax_load::workload::command::KIND;
use vtax_results::limit::{Until, is_of};

/// The names that `meters` accepts.
fn meter_names() -> impl Iterator<Item = &'static str> {
    ["auto", "none"].into_iter().chain(vtax_meter::NAMES)
}

pub(super) fn read(file: &str, text: &str, catalogue: &Catalogue) -> Result<Plan, Diagnostics> {
    document(file, text, catalogue, |reader, root| reader.plan(root))
}

/// The key as a workload's own table has it: without the group of the section.
fn short(key: &str) -> &str {
    key.strip_prefix("load.").unwrap_or(key)
}

impl Reader<'_, &Catalogue> {
    fn plan(&mut self, root: &DeTable<'_>) -> Option<Plan> {
        self.only(root, keys::PLAN.iter().map(|key| key.key), "a plan");
        let own = self.own(root, keys::PLAN);
        let platforms = self.entries(root, "platform");
        let workloads = self.entries(root, "workload");
        let neighbours = self.neighbours(root, &platforms);
        let mut settings = self.settings(root);
        self.image(root, &mut settings);
        self.images(root);
        let variants = self.variants(root, &platforms, &workloads);
        let mut factors = self.factors(root, &neighbours);
        if !variants.is_empty() {
            let levels = variants.iter().map(Variant::level);
            factors.insert(VARIANT.to_owned(), levels.collect());
        }
        let quick = self.quick(root);
        let of_quick = table(root, "quick").and_then(|quick| table(quick, "settings"));
        let all = [table(root, "settings"), table(root, "factors"), of_quick];
        for settings in all.into_iter().flatten() {
            self.meant(settings, &platforms, &workloads, &neighbours);
        }
        let baseline = self.baseline(root, &platforms, &neighbours, &factors);
        let (repetitions, variation) = self.blocks(root, &own);
        let stop = self.stop(root, repetitions);
        let name = self.title(root);
        let gates = self.gates(root, &platforms, &variants);
        let plan = Plan {
            name: name?,
            description: self.string(root, "description").unwrap_or_default(),
            seed: own.count("seed"),
            repetitions,
            variation,
            warmup: own.time("warmup"),
            duration: own.time("duration"),
            order: match own.text("order") {
                "sequential" => Order::Sequential,
                _ => Order::Interleaved,
            },
            stop: stop?,
            sample_hz: own.number("sample_hz"),
            idle: own.time("idle"),
            meters: self.meters(root),
            canary: match own.text("canary") {
                "on" => Canary::On,
                "off" => Canary::Off,
                _ => Canary::Auto,
            },
            minimum_effect: own.number("minimum_effect"),
            baseline,
            settings,
            factors,
            again: self.again(root),
            places: self.places(root),
            neighbours,
            platforms,
            workloads,
            variants,
            gates: gates.iter().map(|(_, gate)| gate.clone()).collect(),
            is_quick: false,
            quick,
        };
        self.size(root, &plan);
        self.place_of_clients(root, &plan);
        self.gates_apply(&gates, &plan);
        self.files_apply(root, &plan);
        self.variants_apply(root, &plan);
        self.until_applies(root, &plan);
        Some(plan)
    }

    /// Returns the number of blocks, and the variation between them, by the one key that is given.
    fn blocks(&mut self, root: &DeTable<'_>, own: &Own) -> (u32, Variation) {
        let mut found: Option<(&str, Variation)> = None;
        for (key, variation) in [
            ("repetitions", Variation::None),
            ("seeds", Variation::Seeds),
            ("draws", Variation::Draws { first: 1 }),
        ] {
            let (Some(value), true) = (root.get(key), own.has(key)) else {
                continue;
            };
            if let Some((other, _)) = found {
                self.refuse(value, format!("`{key}` and `{other}` are both given"))
                    .help_with(
                        "`seeds` gives each repetition a seed of its own, `draws` a seed and a draw: leave the others out",
                    );
            }
            found = Some((key, variation));
        }
        let (key, variation) = found.unwrap_or(("repetitions", Variation::None));
        (own.count(key), variation)
    }

    /// Reads platforms or workloads: `[[platform]]` tables with `kind`, optional `name`, and settings.
    fn entries(&mut self, root: &DeTable<'_>, section: &'static str) -> Vec<Entry> {
        let catalogue = self.catalogue;
        let kinds: Vec<&str> = match section {
            "platform" => catalogue.platforms.iter().map(|one| one.kind()).collect(),
            _ => catalogue.workloads.iter().map(|one| one.kind()).collect(),
        };
        let mut entries: Vec<Entry> = Vec::new();
        for (offset, kind, table) in self.sections(root, section, &kinds) {
            let name = table.get("name").and_then(|value| self.name(value));
            let name = name.unwrap_or_else(|| kind.clone());
            if entries.iter().any(|other| other.name == name) {
                self.complain(offset, format!("two {section}s are called `{name}`"))
                    .help_with("give each a `name` of its own");
            }
            let (profile, objective) = self.drive(table, section, &kind);
            let is_workload = section == "workload";
            let with = |variant| variant::with(catalogue, &kind, table, variant);
            let tables = if is_workload {
                variant::tables(root)
            } else {
                Vec::new()
            };
            let changed: Vec<Option<DeTable<'_>>> = tables.into_iter().map(with).collect();
            let is_changed = changed.iter().any(Option::is_some);
            let images = image::Images::of(root);
            let mut read = |table: &DeTable<'_>| {
                let mut settings = self.entry_settings(table, section, &kind);
                if is_workload && kind == KIND {
                    settings.0.extend(self.command(table, offset, images).0);
                }
                settings
            };
            let variants: Vec<Settings> = if is_changed {
                let own = changed.iter().map(|own| own.as_ref().unwrap_or(table));
                own.map(&mut read).collect()
            } else {
                Vec::new()
            };
            let settings = variants.first().cloned().unwrap_or_else(|| read(table));
            entries.push(Entry {
                name,
                kind,
                settings,
                variants,
                profile,
                objective,
            });
        }
        entries
    }

    /// Reads the settings of one entry. A workload's own keys are written without their `load.`.
    fn entry_settings(&mut self, table: &DeTable<'_>, section: &str, kind: &str) -> Settings {
        let catalogue = self.catalogue;
        let is_workload = section == "workload";
        // `("", kind)` would also accept every platform's keys, so only the entry's own parameters are searched.
        let [own, definition] = own_parameters(catalogue, section, kind);
        let shared = catalogue.shared_by(if is_workload { "" } else { kind });
        let mut settings = Settings::default();
        for (key, offset, value) in flatten(table) {
            let is_structure = ["kind", "name"].contains(&key.as_str())
                || is_workload
                    && (key == "objective"
                        || key.starts_with("profile")
                        || kind == KIND && command::is_own(&key));
            if is_structure {
                continue;
            }
            let full = if is_workload && !key.contains('.') {
                format!("load.{key}")
            } else {
                key.clone()
            };
            let mut known = own.iter().chain(shared.clone());
            if let Some(parameter) = known.find(|parameter| parameter.key == full) {
                let level = self.level(value, parameter);
                settings.0.extend(level.map(|level| (full, level)));
                continue;
            }
            let valid = own.iter().chain(definition).chain(shared.clone());
            let message = format!("{section} `{kind}` has no setting `{key}`");
            self.unknown(
                offset,
                message,
                short(&key),
                valid.map(|one| short(one.key)),
            );
        }
        settings
    }

    /// Reads the settings for all trials of a plan or of its quick profile.
    fn settings(&mut self, root: &DeTable<'_>) -> Settings {
        let table = root.get("settings");
        let table = table.and_then(|value| self.table(value, "settings"));
        let mut settings = Settings::default();
        for (key, offset, value) in table.into_iter().flat_map(flatten) {
            let parameter = self.parameter(&key, offset);
            let level = parameter.and_then(|parameter| self.level(value, &parameter));
            settings.0.extend(level.map(|level| (key, level)));
        }
        settings
    }

    fn factors(
        &mut self,
        root: &DeTable<'_>,
        neighbours: &[Neighbour],
    ) -> BTreeMap<String, Vec<Level>> {
        let table = root.get("factors");
        let table = table.and_then(|value| self.table(value, "factors"));
        let mut factors = BTreeMap::new();
        for (key, offset, value) in table.into_iter().flat_map(flatten) {
            if key == NEIGHBOURS {
                factors.insert(key, self.neighbour_levels(value, neighbours));
                continue;
            }
            let Some(parameter) = self.parameter(&key, offset) else {
                continue;
            };
            let level = |reader: &mut Self, item: &Value<'_>| reader.level(item, &parameter);
            if let Some(levels) = self.levels(value, &key, level) {
                factors.insert(key, levels);
                continue;
            }
            self.refuse(value, format!("factor `{key}` must list its levels"))
                .help_with(format!(
                    "write {key} = [first, second]; one fixed value belongs under [settings]"
                ));
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
        let catalogue = self.catalogue;
        let beside = neighbours.iter().filter_map(|beside| match &beside.kind {
            NeighbourKind::Guest { workload, .. } => Some(workload.as_str()),
            NeighbourKind::Twin => None,
        });
        let loads = workloads.iter().map(|load| load.kind.as_str());
        let loads: Vec<&str> = loads.chain(beside).collect();
        // A plan without a platform or a workload already has a complaint.
        if platforms.is_empty() || loads.is_empty() {
            return;
        }
        for (key, offset, _) in flatten(table) {
            let has = |kind: &str, load: &str| catalogue.parameter(kind, load, &key).is_some();
            let means = |platform: &Entry| loads.iter().any(|load| has(&platform.kind, load));
            if has("", "") && !platforms.iter().any(means) {
                let message =
                    format!("no platform or workload of this plan has the setting `{key}`");
                self.complain(offset, message)
                    .help_with("leave it out: it would do nothing");
            }
        }
    }

    fn parameter(&mut self, key: &str, offset: usize) -> Option<Parameter> {
        let catalogue = self.catalogue;
        let parameter = catalogue.parameter("", "", key);
        if parameter.is_none() {
            let message = format!("no platform or workload has a setting `{key}`");
            self.unknown(offset, message, key, catalogue.keys());
        }
        parameter
    }

    fn quick(&mut self, root: &DeTable<'_>) -> Quick {
        let own = self.own_section(root, "quick", keys::QUICK);
        let settings = table(root, "quick").map(|quick| self.settings(quick));
        Quick {
            repetitions: own.given("repetitions", Own::count),
            warmup: own.given("warmup", Own::time),
            duration: own.given("duration", Own::time),
            sample_hz: own.given("sample_hz", Own::number),
            settings: settings.unwrap_or_default(),
        }
    }

    fn stop(&mut self, root: &DeTable<'_>, repetitions: u32) -> Option<StopRule> {
        let Some(value) = root.get("stop") else {
            return Some(StopRule::Fixed);
        };
        let own = self.own_section(root, "stop", keys::STOP);
        let minimum = own.count("minimum");
        match own.text("rule") {
            "fixed" => Some(StopRule::Fixed),
            rule @ ("precision" | "until") => {
                if minimum > repetitions {
                    self.refuse(
                        value,
                        format!("`stop.minimum` ({minimum}) exceeds `repetitions` ({repetitions})"),
                    )
                    .help_with("under this rule `repetitions` is the most that may run");
                }
                if rule == "until" {
                    return Some(StopRule::Until {
                        until: self.until(value)?,
                        minimum,
                        time_cap: own.time("time_cap"),
                    });
                }
                Some(StopRule::Precision {
                    metric: own.text("metric").to_owned(),
                    width: own.number("width"),
                    minimum,
                    time_cap: own.time("time_cap"),
                })
            }
            _ => {
                if table(root, "stop").is_some_and(|stop| stop.get("rule").is_none()) {
                    let message = "`stop.rule` must be \"fixed\", \"precision\" or \"until\"";
                    self.unknown(
                        value.span().start,
                        message,
                        "",
                        ["fixed", "precision", "until"],
                    );
                }
                None
            }
        }
    }

    /// Reads `stop.until`.
    fn until(&mut self, stop: &Value<'_>) -> Option<Until> {
        let table = stop.get_ref().as_table()?;
        let Some(value) = table.get("until") else {
            self.refuse(stop, "the rule `until` has no `until`")
                .help_with(
                    "such as until = \"cpu.per_work ± 2%\", or \"decided: cpu.per_work > +5%\"",
                );
            return None;
        };
        match self.text_of(value, "stop.until")?.parse() {
            Ok(until) => Some(until),
            Err(wrong) => {
                self.refuse(value, wrong.to_string());
                None
            }
        }
    }

    /// Refuses an end of the run that no comparison of the plan could reach.
    fn until_applies(&mut self, root: &DeTable<'_>, plan: &Plan) {
        let (StopRule::Until { until, .. }, Some(place)) = (&plan.stop, root.get("stop")) else {
            return;
        };
        let all = treatments(plan, self.catalogue);
        let applies = all.iter().any(|one| {
            let record = &one.record;
            let variant = record.variant();
            record.baseline.is_some()
                && is_of(until.subject(), &record.label, &record.platform, variant)
        });
        if !applies {
            self.refuse(
                place,
                format!("`{until}`: no treatment of this name has a baseline"),
            )
            .help_with(
                "name a platform, variant or treatment that is compared with another, or none",
            );
        }
        if let Until::Decided(gate) = until
            && !gate.is_of_one_run
            && plan.variants.is_empty()
        {
            self.refuse(place, "a limit in percent is for the change between variants, and the plan has none")
                .help_with("limit the tax, such as \"decided: cpu.per_work of qemu > 2x\", or add [[variant]] sections");
        }
    }

    /// Reads `baseline = "native"`, or a table of a platform and factor levels. The default is the first variant on the
    /// same platform; without variants the platform of kind `native`, or without one the first level of every factor on
    /// the same platform.
    fn baseline(
        &mut self,
        root: &DeTable<'_>,
        platforms: &[Entry],
        neighbours: &[Neighbour],
        factors: &BTreeMap<String, Vec<Level>>,
    ) -> Baseline {
        let mut baseline = Baseline::default();
        let Some(value) = root.get("baseline") else {
            let has_variants = factors.contains_key(VARIANT);
            let native = platforms.iter().find(|entry| entry.kind == "native");
            let native = if has_variants { None } else { native };
            baseline.platform = native.map(|entry| entry.name.clone());
            if native.is_none() {
                let compared = factors
                    .iter()
                    .filter(|(key, _)| !has_variants || *key == VARIANT);
                let first = compared.filter_map(|(key, levels)| {
                    let first = levels.first()?;
                    Some((key.clone(), first.clone()))
                });
                baseline.levels = first.collect();
            }
            return baseline;
        };
        match value.get_ref() {
            DeValue::String(name) => {
                self.known_platform(name, value.span().start, platforms);
                baseline.platform = Some(name.to_string());
            }
            DeValue::Table(table) => {
                for (key, offset, value) in flatten(table) {
                    if key == "platform" {
                        baseline.platform = self.text_of(value, "baseline.platform");
                        if let Some(name) = &baseline.platform {
                            self.known_platform(name, value.span().start, platforms);
                        }
                        continue;
                    }
                    let level = match factors.get(&key) {
                        Some(_) if key == NEIGHBOURS => self.neighbour_level(value, neighbours),
                        Some(levels) if key == VARIANT => self.variant_level(value, levels),
                        Some(levels) => {
                            let parameter = self.parameter(&key, offset);
                            let level = parameter.and_then(|known| self.level(value, &known));
                            if let Some(level) = level.as_ref().filter(|it| !levels.contains(it)) {
                                let message = format!("`{level}` is not a level of factor `{key}`");
                                self.refuse(value, message);
                            }
                            level
                        }
                        None => {
                            let valid = factors.keys().map(String::as_str).chain(["platform"]);
                            let message = format!("`{key}` is not a factor of this plan");
                            self.unknown(offset, message, &key, valid);
                            None
                        }
                    };
                    baseline.levels.extend(level.map(|level| (key, level)));
                }
            }
            _ => {
                let message = "`baseline` must be a platform's name or a table of levels";
                self.refuse(value, message);
            }
        }
        baseline
    }

    fn known_platform(&mut self, name: &str, offset: usize, platforms: &[Entry]) {
        if !platforms.iter().any(|entry| entry.name == name) {
            let valid = platforms.iter().map(|entry| entry.name.as_str());
            let message = format!("the plan has no platform called `{name}`");
            self.unknown(offset, message, name, valid);
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
        let names = array.iter().filter_map(|item| {
            let name = self.text_of(item, "meters")?;
            if !meter_names().any(|known| known == name) {
                let message = format!("there is no meter `{name}`");
                self.unknown(item.span().start, message, &name, meter_names());
            }
            Some(name)
        });
        names.collect()
    }

    fn size(&mut self, root: &DeTable<'_>, plan: &Plan) {
        let levels = plan.factors.values().map(|levels| levels.len() as u64);
        let entries = [plan.platforms.len(), plan.workloads.len()].map(|number| number as u64);
        let trials = levels
            .chain(entries)
            .fold(u64::from(plan.repetitions), u64::saturating_mul);
        let place = root.get("factors").or(root.get("repetitions"));
        self.accepts_size(trials, place.map_or(0, |value| value.span().start));
    }

    /// Refuses a choice of the client's place in a plan without `[places]`.
    fn place_of_clients(&mut self, root: &DeTable<'_>, plan: &Plan) {
        let entries = plan.platforms.iter().chain(&plan.workloads);
        let mut settings = entries.map(|entry| &entry.settings).chain([&plan.settings]);
        let is_chosen = plan.factors.contains_key(CLIENT_PLACE)
            || settings.any(|settings| settings.text(CLIENT_PLACE) == Some(ELSEWHERE));
        if is_chosen && plan.places.client.is_none() && root.get("places").is_none() {
            let offset = root.get("factors").map_or(0, |value| value.span().start);
            self.complain(offset, format!("`{CLIENT_PLACE}` needs [places]"))
                .help_with("it says where elsewhere is: client = \"ssh:HOST\", bridge, target");
        }
    }
}

/// The parameters that a platform or workload of this kind has itself: of its settings, and of its definition.
fn own_parameters(catalogue: &Catalogue, section: &str, kind: &str) -> [&'static [Parameter]; 2] {
    let own = if section == "platform" {
        catalogue.platform(kind).map(|one| [one.parameters(), &[]])
    } else {
        let about = catalogue.workload(kind).map(|one| one.about());
        about.map(|about| [about.parameters, about.definition])
    };
    own.unwrap_or_default()
}
