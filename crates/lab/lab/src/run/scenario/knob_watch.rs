// SPDX-License-Identifier: Apache-2.0
//! The readings of knobs around a trial's load: facts of its record, and reasons to suspect it where another program
//! changed one meanwhile.

use super::guest::Guest;
use crate::LabError;
use std::collections::BTreeMap;
use std::path::Path;
use vtax_host::knobs;
use vtax_host::settings::Settings;

/// The readings of the host's knobs and of each guest's.
pub(super) struct KnobWatch {
    host: BTreeMap<String, String>,
    guests: Vec<BTreeMap<String, String>>,
}

impl KnobWatch {
    /// The readings before the load. Those of the guests are from when they were set.
    pub fn begin(guests: &[Guest<'_>], settings: &Settings, sys: &Path) -> Self {
        Self {
            host: knobs::host::readings(settings, sys),
            guests: guests.iter().map(|guest| guest.knobs.clone()).collect(),
        }
    }

    /// The facts of the host and the target.
    pub fn facts(&self) -> impl Iterator<Item = (String, String)> {
        let all = self
            .host
            .iter()
            .chain(self.guests.first().into_iter().flatten());
        all.map(|(key, reading)| (key.clone(), reading.clone()))
    }

    /// Reads all knobs again. Returns a sentence for each that changed.
    ///
    /// # Errors
    /// When a guest does not answer.
    pub fn end(
        &self,
        guests: &mut [Guest<'_>],
        settings: &Settings,
        sys: &Path,
    ) -> Result<Vec<String>, LabError> {
        let mut changes = knobs::changes(&self.host, &knobs::host::readings(settings, sys));
        for (before, guest) in self.guests.iter().zip(guests) {
            let after = vtax_guest::knobs::readings(guest.target.as_mut(), guest.spec.settings)?;
            let found = knobs::changes(before, &after).into_iter();
            changes.extend(found.map(|what| {
                if guest.spec.is_target() {
                    what
                } else {
                    format!("{}: {what}", guest.spec.name)
                }
            }));
        }
        Ok(changes)
    }
}
