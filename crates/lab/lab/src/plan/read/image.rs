// SPDX-License-Identifier: Apache-2.0
//! The images of a plan's guests.

use super::{Reader, Value, flatten};
use crate::plan::Catalogue;
use toml::de::DeTable;
use vtax_guest::image::oci::{PARAMETER, Source};
use vtax_guest::platform::container::NO_IMAGE;
use vtax_host::settings::Settings;
use vtax_load::workload::command::KIND;

/// Returns the tables of a plan that can set the image of a guest.
fn tables<'v, 'i>(root: &'v DeTable<'i>) -> Vec<&'v DeTable<'i>> {
    let table = |value: Option<&'v Value<'i>>| value.and_then(|value| value.get_ref().as_table());
    let quick = table(root.get("quick")).and_then(|quick| table(quick.get("settings")));
    let single = [
        Some(root),
        table(root.get("settings")),
        table(root.get("factors")),
        quick,
    ];
    let sections = ["platform", "neighbour"].into_iter().filter_map(|section| {
        let sections = root.get(section)?.get_ref().as_array()?;
        Some(sections.iter().filter_map(|one| one.get_ref().as_table()))
    });
    single
        .into_iter()
        .flatten()
        .chain(sections.flatten())
        .collect()
}

/// Whether a guest of the plan may have an image.
pub(super) fn has_image(root: &DeTable<'_>) -> bool {
    tables(root)
        .iter()
        .any(|table| table.contains_key(PARAMETER.key))
}

impl Reader<'_, &Catalogue> {
    /// Reads the plan's own `image`, which is a setting of every trial.
    pub(super) fn image(&mut self, root: &DeTable<'_>, settings: &mut Settings) {
        if let Some(value) = root.get(PARAMETER.key)
            && let Some(level) = self.level(value, &PARAMETER)
        {
            settings.0.insert(PARAMETER.key.to_owned(), level);
        }
    }

    /// Refuses a runtime of containers that cannot run a guest with an image.
    fn runtimes(&mut self, root: &DeTable<'_>) {
        let values = tables(root).into_iter().flat_map(flatten);
        let values = values.filter(|(key, ..)| key == "container.runtime");
        let offset = values.into_iter().find_map(|(_, offset, value)| {
            let is_podman = |value: &Value<'_>| value.get_ref().as_str() == Some("podman");
            let levels = value.get_ref().as_array();
            let is_given = is_podman(value) || levels.is_some_and(|all| all.iter().any(is_podman));
            is_given.then_some(offset)
        });
        if let Some(offset) = offset {
            self.complain(offset, NO_IMAGE);
        }
    }

    /// Refuses a text that names no image, and a workload beside an image that does not run in one.
    pub(super) fn images(&mut self, root: &DeTable<'_>) {
        for value in tables(root)
            .into_iter()
            .filter_map(|table| table.get(PARAMETER.key))
        {
            let one = std::slice::from_ref(value);
            let values = match value.get_ref().as_array() {
                Some(levels) => levels.iter().collect::<Vec<_>>(),
                None => one.iter().collect(),
            };
            for value in values {
                if let Some(text) = value.get_ref().as_str()
                    && let Err(wrong) = text.parse::<Source>()
                {
                    self.refuse(value, wrong.to_string());
                }
            }
        }
        if !has_image(root) {
            return;
        }
        self.runtimes(root);
        for section in ["workload", "neighbour"] {
            let sections = root
                .get(section)
                .and_then(|value| value.get_ref().as_array());
            for value in sections.into_iter().flatten() {
                let kind = value
                    .get_ref()
                    .as_table()
                    .and_then(|table| table.get("kind"));
                let kind = kind.and_then(|kind| kind.get_ref().as_str());
                if let Some(kind) = kind
                    && kind != KIND
                {
                    self.refuse(value, format!("`{kind}` does not run in an image, and this plan has an `image`"),
                    )
                    .help_with("only `command` does: give its service and load, or measure the other workloads by another plan");
                }
            }
        }
    }
}
