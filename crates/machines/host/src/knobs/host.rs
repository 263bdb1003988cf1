// SPDX-License-Identifier: Apache-2.0
//! The knobs of the host's kernel: checked, set under the journal, and read. Each old value is recorded in the journal
//! before a new one is written, and every write is read back.

use super::assignment::Assignment;
use super::{Place, TABLE, by_key};
use crate::facts::chosen;
use crate::journal::Journal;
use crate::roots::text;
use crate::settings::{Level, Parameter, Settings};
use crate::{HostError, Roots};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The host parameters of a plan.
pub fn parameters() -> impl Iterator<Item = &'static Parameter> + Clone {
    TABLE
        .iter()
        .filter(|knob| matches!(knob.place, Place::Host(_)))
        .map(|knob| &knob.parameter)
}

/// Checks, without changing anything, that this host supports these `host.*` settings.
///
/// # Errors
/// The first setting that this host does not support, with the values that it does.
pub fn check(settings: &Settings, sys: &Path) -> Result<(), HostError> {
    let mut keys = settings.0.keys();
    if let Some(key) = keys.find(|key| key.starts_with("host.") && by_key(key).is_none()) {
        let known: Vec<&str> = parameters().map(|parameter| parameter.key).collect();
        return Err(HostError::Setting(format!(
            "{key} is not a setting of the host; there are: {}",
            known.join(", ")
        )));
    }
    for (_, assignments) in assignments(settings, sys) {
        for assignment in assignments? {
            assignment.offered()?;
        }
    }
    Ok(())
}

/// Puts the `host.*` settings in force. Values that already are in force are not written.
///
/// # Errors
/// When this host does not offer the value, or the value does not stay. The writes before the error are in the
/// journal, which can undo them.
pub fn apply(settings: &Settings, sys: &Path, journal: &mut Journal) -> Result<(), HostError> {
    for (_, assignments) in assignments(settings, sys) {
        for assignment in assignments? {
            assignment.make(journal)?;
        }
    }
    Ok(())
}

/// Reads the files of the `host.*` settings: by key, each distinct value with the name of its file. Settings that need no
/// file on this host have no reading.
pub fn readings(settings: &Settings, sys: &Path) -> BTreeMap<String, String> {
    let read = assignments(settings, sys).filter_map(|(key, assignments)| {
        let values: BTreeSet<String> = assignments
            .ok()?
            .iter()
            .filter_map(|one| {
                let now = text(&one.path)?;
                let file = one.path.file_name()?.to_string_lossy();
                Some(format!("{} in {file}", chosen(&now)))
            })
            .collect();
        let values: Vec<String> = values.into_iter().collect();
        (!values.is_empty()).then(|| (key.to_owned(), values.join(", ")))
    });
    read.collect()
}

/// The assignments of each setting that is given, in the order of [`TABLE`].
fn assignments<'a>(
    settings: &'a Settings,
    sys: &Path,
) -> impl Iterator<Item = (&'static str, Result<Vec<Assignment>, HostError>)> + 'a {
    let roots = Roots {
        sys: sys.to_owned(),
        ..Roots::host()
    };
    TABLE.iter().filter_map(move |knob| {
        let Place::Host(files) = knob.place else {
            return None;
        };
        let key = knob.parameter.key;
        let level: &Level = settings.0.get(key)?;
        Some((key, files(key, level, &roots)))
    })
}

/// Whether the settings have a governor that lets the frequency follow the load. The effect of `powersave` depends on
/// the driver: with intel_pstate the frequency follows the load.
pub fn follows_load(settings: &Settings) -> bool {
    settings
        .text("host.governor")
        .is_some_and(|name| !["performance", "userspace"].contains(&name))
}
