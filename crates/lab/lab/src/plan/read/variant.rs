// SPDX-License-Identifier: Apache-2.0
//! The `[[variant]]` tables of a plan: versions of a program, images, or sets of settings that are compared in one run.

use super::values::{sections, text};
use super::{Reader, Value, command, flatten, own_parameters};
use crate::plan::{Catalogue, Entry, Plan, VARIANT, Variant};
use toml::de::DeTable;
use vtax_guest::image::oci::PARAMETER as IMAGE;
use vtax_host::settings::{Level, Settings};
use vtax_load::workload::command::KIND;

/// The most variants of a plan.
const MOST_VARIANTS: usize = 20;

/// Whether a variant's key belongs to the table of a workload of this kind.
fn is_of_workload(catalogue: &Catalogue, kind: &str, key: &str) -> bool {
    if kind == KIND && command::is_own(key) {
        return true;
    }
    let [own, _] = own_parameters(catalogue, "workload", kind);
    let full = format!("load.{key}");
    own.iter().any(|parameter| parameter.key == full)
}

/// The table of a workload with the keys of a variant in place of its own; `None` where the variant has none for it.
pub(super) fn with<'i>(
    catalogue: &Catalogue,
    kind: &str,
    workload: &DeTable<'i>,
    variant: &DeTable<'i>,
) -> Option<DeTable<'i>> {
    let mut own = workload.clone();
    let mut is_changed = false;
    for (key, value) in variant {
        if key.get_ref() != "name" && is_of_workload(catalogue, kind, key.get_ref()) {
            own.insert(key.clone(), value.clone());
            is_changed = true;
        }
    }
    is_changed.then_some(own)
}

impl Reader<'_, &Catalogue> {
    /// Reads the variants: their names, and their settings of platforms. Those of workloads are read with the workloads.
    pub(super) fn variants(
        &mut self,
        root: &DeTable<'_>,
        platforms: &[Entry],
        workloads: &[Entry],
    ) -> Vec<Variant> {
        let Some(value) = root.get("variant") else {
            return Vec::new();
        };
        let given = value.get_ref().as_array().map_or(0, |all| all.len());
        if !(2..=MOST_VARIANTS).contains(&given) {
            let message = format!("`variant` must be a list of 2 to {MOST_VARIANTS} sections");
            self.refuse(value, message)
                .help_with("write [[variant]] with two brackets, first the one that the others are compared with");
            return Vec::new();
        }
        let mut variants: Vec<Variant> = Vec::new();
        for (value, table) in sections(root, "variant") {
            let Some(name) = table.get("name") else {
                self.refuse(value, "this variant has no `name`")
                    .help_with("such as name = \"old\"");
                continue;
            };
            let offset = name.span().start;
            let Some(name) = self.name(name) else {
                continue;
            };
            let is_platform = platforms.iter().any(|entry| entry.name == name);
            if is_platform || variants.iter().any(|other| other.name == name) {
                let whose = if is_platform {
                    "a platform"
                } else {
                    "another variant"
                };
                self.complain(offset, format!("`{name}` is also the name of {whose}"))
                    .help_with("give each variant a name of its own, by which gates can name it");
            }
            let settings = self.variant_settings(table, platforms, workloads);
            variants.push(Variant { name, settings });
        }
        variants
    }

    fn variant_settings(
        &mut self,
        table: &DeTable<'_>,
        platforms: &[Entry],
        workloads: &[Entry],
    ) -> Settings {
        let catalogue = self.catalogue;
        let mut settings = Settings::default();
        for (key, offset, value) in flatten(table) {
            let first = key.split('.').next().unwrap_or(&key);
            let mut kinds = workloads.iter().map(|load| load.kind.as_str());
            if key == "name" || kinds.any(|kind| is_of_workload(catalogue, kind, first)) {
                continue;
            }
            let pairs = platforms
                .iter()
                .flat_map(|platform| workloads.iter().map(move |load| (platform, load)));
            let mut found = pairs.filter_map(|(platform, load)| {
                catalogue.parameter(&platform.kind, &load.kind, &key)
            });
            if let Some(parameter) = found.next() {
                let level = self.level(value, &parameter);
                settings.0.extend(level.map(|level| (key, level)));
                continue;
            }
            let valid = catalogue.keys().map(super::short).chain([IMAGE.key]);
            let message = format!("no platform or workload of this plan has the setting `{key}`");
            self.unknown(offset, message, &key, valid.chain(command::OWN));
        }
        settings
    }

    /// Reads the name of a variant.
    pub(super) fn variant_level(&mut self, value: &Value<'_>, levels: &[Level]) -> Option<Level> {
        let level = Level::Text(self.text_of(value, VARIANT)?);
        if levels.contains(&level) {
            return Some(level);
        }
        let names: Vec<String> = levels.iter().map(Level::to_string).collect();
        let valid = names.iter().map(String::as_str);
        let message = format!("the plan has no variant called `{level}`");
        self.unknown(value.span().start, message, &level.to_string(), valid);
        None
    }

    /// Refuses variants that change nothing.
    pub(super) fn variants_apply(&mut self, root: &DeTable<'_>, plan: &Plan) {
        let is_changed = plan.variants.iter().any(|one| !one.settings.0.is_empty())
            || plan.workloads.iter().any(|load| !load.variants.is_empty());
        if let (Some(value), false) = (root.get("variant"), is_changed || plan.variants.is_empty())
        {
            self.refuse(value, "the variants change no setting of any platform or workload")
                .help_with(
                    "give each what is its own, such as load = \"./app-1.2\" and files = [\"app-1.2\"], or image = \"oci:old.tar\"",
                );
        }
    }
}

/// The tables of the variants.
pub(super) fn tables<'v, 'i>(root: &'v DeTable<'i>) -> Vec<&'v DeTable<'i>> {
    let named = sections(root, "variant").map(|(_, table)| table);
    named
        .filter(|table| text(table, "name").is_some())
        .collect()
}
