// SPDX-License-Identifier: Apache-2.0
//! The images of a plan's guests.

use super::values::{sections, table, text};
use super::{Reader, Value, flatten};
use crate::plan::Catalogue;
use toml::de::DeTable;
use vtax_guest::image::oci::{PARAMETER, Source};
use vtax_guest::platform::container::NO_IMAGE;
use vtax_host::settings::Settings;
use vtax_load::workload::command::KIND;

/// Returns the tables of a plan that can set the image of a guest.
fn tables<'v, 'i>(root: &'v DeTable<'i>) -> Vec<&'v DeTable<'i>> {
    let quick = table(root, "quick").and_then(|quick| table(quick, "settings"));
    let single = [table(root, "settings"), table(root, "factors"), quick];
    let sections = ["platform", "neighbour", "variant"].map(|name| sections(root, name));
    let sections = sections.into_iter().flatten().map(|(_, table)| table);
    let single = std::iter::once(root).chain(single.into_iter().flatten());
    single.chain(sections).collect()
}

/// The images of a plan's guests, as far as a command depends on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Images {
    /// No guest has one.
    None,
    /// All guests have the files of this host.
    Host,
    /// A guest may have one that commands enter.
    Some,
}

impl Images {
    /// Those of a plan.
    pub(super) fn of(root: &DeTable<'_>) -> Self {
        let tables = tables(root).into_iter();
        let texts: Vec<_> = tables
            .filter_map(|table| table.get(PARAMETER.key))
            .collect();
        let is_host = |value: &&Value<'_>| {
            let source = value.get_ref().as_str().and_then(|text| text.parse().ok());
            matches!(source, Some(Source::Host(_)))
        };
        match texts.as_slice() {
            [] => Self::None,
            // Its own key at the top is that of all guests.
            all if root.contains_key(PARAMETER.key) && all.iter().all(is_host) => Self::Host,
            _ => Self::Some,
        }
    }
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
        let given = tables(root).into_iter();
        for value in given.filter_map(|table| table.get(PARAMETER.key)) {
            let levels = value.get_ref().as_array().map(|levels| levels.iter());
            let levels: Vec<_> = levels.map_or_else(|| vec![value], Iterator::collect);
            for value in levels {
                if let Some(text) = value.get_ref().as_str()
                    && let Err(wrong) = text.parse::<Source>()
                {
                    self.refuse(value, wrong.to_string());
                }
            }
        }
        if Images::of(root) == Images::None {
            return;
        }
        self.runtimes(root);
        let all = ["workload", "neighbour"].map(|name| sections(root, name));
        for (value, section) in all.into_iter().flatten() {
            if let Some(kind) = text(section, "kind").filter(|kind| *kind != KIND) {
                let message =
                    format!("`{kind}` does not run in an image, and this plan has an `image`");
                self.refuse(value, message).help_with(
                    "only `command` does: give its service and load, or measure the other workloads by another plan",
                );
            }
        }
    }
}
