// SPDX-License-Identifier: Apache-2.0
//! The images of containers that a plan's guests have.

use crate::LabError;
use crate::plan::{Catalogue, GuestRole};
use std::collections::BTreeMap;
use vtax_guest::image::GuestFiles;
use vtax_guest::image::oci::{self, Source, Unpacked};
use vtax_host::HostError;
use vtax_host::settings::Settings;
use vtax_load::workload::{Workload, command};

/// The unpacked images, by the packages of the shared image below and the text of the plan.
#[derive(Debug, Default)]
pub(super) struct Images(BTreeMap<(Vec<String>, String), Unpacked>);

impl Images {
    /// Unpacks the image of a guest, if it has one, above the files of the shared image.
    ///
    /// # Errors
    /// See [`oci::ensure`], and when the guest's service is the entry point that the image lacks.
    pub fn prepare(
        &mut self,
        guest: &GuestRole<'_>,
        catalogue: &Catalogue,
        files: &BTreeMap<Vec<String>, GuestFiles>,
        note: &mut dyn FnMut(String),
    ) -> Result<(), LabError> {
        let platform = catalogue.platform(guest.platform_kind);
        let is_external = platform.is_some_and(|platform| platform.is_external(guest.settings));
        let workload = catalogue.workload(guest.workload_kind);
        let (Some(key), Some(workload)) = (key(workload, guest.settings), workload) else {
            return Ok(());
        };
        let Some(base) = files.get(&key.0).filter(|_| !is_external) else {
            return Ok(());
        };
        let source: Source = key.1.parse()?;
        if !self.0.contains_key(&key) {
            let unpacked = oci::ensure(&source, base, &mut |line: &str| note(line.to_owned()))?;
            self.0.insert(key.clone(), unpacked);
        }
        let has_entry_point = |image: &Unpacked| !image.about.entry_point.is_empty();
        if workload.kind() == command::KIND
            && command::serves_entry_point(guest.settings)
            && !self.0.get(&key).is_some_and(has_entry_point)
        {
            return Err(LabError::Host(HostError::Invalid {
                what: format!("the image {source} without `serve`"),
                problem: "it has no entry point; give the service as `serve`".to_owned(),
            }));
        }
        Ok(())
    }

    /// The image of a guest; `None` where it has none.
    pub fn of(&self, workload: &dyn Workload, settings: &Settings) -> Option<&Unpacked> {
        self.0.get(&key(Some(workload), settings)?)
    }

    /// The facts about a guest's image for the record of a trial.
    pub fn facts(&self, workload: &dyn Workload, settings: &Settings) -> Vec<(String, String)> {
        let Some(image) = self.of(workload, settings) else {
            return Vec::new();
        };
        let source = oci::PARAMETER.given(settings).unwrap_or_default();
        vec![
            ("image.source".to_owned(), source.to_owned()),
            ("image.digest".to_owned(), image.about.digest.clone()),
        ]
    }
}

fn key(workload: Option<&dyn Workload>, settings: &Settings) -> Option<(Vec<String>, String)> {
    let image = oci::PARAMETER.given(settings)?;
    Some((workload?.packages(settings), image.to_owned()))
}
