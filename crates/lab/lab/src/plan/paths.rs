// SPDX-License-Identifier: Apache-2.0
//! The files of a host that a plan names: images of guests, and files that an image gets. Relative paths start at the
//! directory of the plan's file.

use super::{NeighbourKind, Plan};
use crate::error::PathError;
use crate::place::name::Place;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use vtax_guest::image::oci::{PARAMETER as IMAGE, Source};
use vtax_host::settings::{Level, Settings};
use vtax_load::workload::command::files_of;

/// A file or image that a plan names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlanPath {
    /// The key: `files` or `image`.
    pub key: &'static str,
    /// The value as the plan writes it.
    pub text: String,
    /// Its path; `None` for an image of podman or docker.
    pub path: Option<PathBuf>,
}

impl Plan {
    /// Returns the files and images that the plan names.
    pub fn paths(&self) -> BTreeSet<PlanPath> {
        let neighbours = self.neighbours.iter().filter_map(|one| match &one.kind {
            NeighbourKind::Guest { settings, .. } => Some(settings),
            NeighbourKind::Twin => None,
        });
        let entries = self.platforms.iter().chain(&self.workloads);
        let settings: Vec<&Settings> = entries
            .flat_map(|entry| std::iter::once(&entry.settings).chain(&entry.variants))
            .chain(self.variants.iter().map(|variant| &variant.settings))
            .chain([&self.settings, &self.quick.settings])
            .chain(neighbours)
            .collect();
        let given = settings.iter().filter_map(|one| IMAGE.given(one));
        let levels = self.factors.get(IMAGE.key).into_iter().flatten();
        let levels = levels.filter_map(|level| match level {
            Level::Text(text) => Some(text.as_str()),
            _ => None,
        });
        let images = given.chain(levels).map(|text| PlanPath {
            key: IMAGE.key,
            text: text.to_owned(),
            path: match text.parse() {
                Ok(Source::Oci(path) | Source::Directory(path)) => Some(path),
                Ok(Source::Podman(_) | Source::Host(_)) | Err(_) => None,
            },
        });
        let files = settings.iter().flat_map(|one| files_of(one));
        let files = files.map(|text| PlanPath {
            key: "files",
            path: Some(PathBuf::from(&text)),
            text,
        });
        images.chain(files).collect()
    }

    /// Checks that the relative paths of the plan exist below `folder`, the directory of its file.
    ///
    /// # Errors
    /// The first path that does not.
    pub fn check_folder(&self, folder: &Path) -> Result<(), PathError> {
        for PlanPath { key, text, path } in self.paths() {
            let Some(path) = path.filter(|path| path.is_relative()) else {
                continue;
            };
            let path = folder.join(path);
            if let Err(cause) = fs::symlink_metadata(&path) {
                return Err(PathError::Missing {
                    key,
                    text,
                    path,
                    cause,
                });
            }
        }
        Ok(())
    }

    /// Checks that the files and images of the plan can be used at a place.
    ///
    /// # Errors
    /// A relative path for another machine, and any for an emulated host.
    pub fn check_place(&self, place: &Place) -> Result<(), PathError> {
        match place {
            Place::Local => Ok(()),
            Place::Ssh(_) => self.check_elsewhere(&place.to_string()),
            Place::Testbed(_) => match self.paths().pop_first() {
                None => Ok(()),
                Some(PlanPath { key, text, .. }) => Err(PathError::Emulated {
                    key,
                    text,
                    place: place.to_string(),
                }),
            },
        }
    }

    /// Checks that no path of the plan is relative, since the plan's file is read elsewhere.
    ///
    /// # Errors
    /// The first relative path.
    pub fn check_elsewhere(&self, place: &str) -> Result<(), PathError> {
        let is_relative =
            |path: &PlanPath| path.path.as_ref().is_some_and(|path| path.is_relative());
        match self.paths().into_iter().find(is_relative) {
            None => Ok(()),
            Some(PlanPath { key, text, .. }) => Err(PathError::Relative {
                key,
                text,
                place: place.to_owned(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::name::Hypervisor;
    use crate::plan::Catalogue;

    fn plan(image: &str, files: &str) -> Plan {
        let text = format!(
            "name = \"x\"\n{image}\n[[platform]]\nkind = \"native\"\n[[workload]]\nkind = \"command\"\n\
             load = \"./app\"\n{files}\n"
        );
        Plan::read("plan.toml", &text, &Catalogue::standard()).unwrap()
    }

    #[test]
    fn relative_paths_start_at_the_plan_s_file_and_a_missing_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("app")).unwrap();
        for (image, files, missing) in [
            ("", "files = [\"app\", \"/no/such/file\"]", None),
            ("", "files = [\"app\", \"lib\"]", Some("`files` has lib")),
            ("image = \"dir:app\"", "", None),
            ("image = \"podman:none\"", "", None),
            (
                "factors = { image = [\"dir:app\", \"oci:b.tar\"] }",
                "",
                Some("`image` has oci:b.tar"),
            ),
        ] {
            let checked = plan(image, files).check_folder(folder.path());
            let message = checked
                .err()
                .map(|wrong| wrong.to_string())
                .unwrap_or_default();
            match missing {
                None => assert_eq!(message, ""),
                Some(what) => assert!(
                    message.contains(what) && message.contains("No such file"),
                    "{message}"
                ),
            }
        }
    }

    #[test]
    fn another_machine_accepts_absolute_paths_only_and_an_emulated_host_none() {
        let (ssh, testbed) = (Place::Ssh("h".to_owned()), Place::Testbed(Hypervisor::Kvm));
        for (image, files, at_ssh, in_testbed) in [
            ("", "", true, true),
            ("", "files = [\"./app\"]", false, false),
            ("", "files = [\"/opt/app\"]", true, false),
            ("image = \"oci:app.tar\"", "", false, false),
            ("image = \"podman:app\"", "", true, false),
        ] {
            let plan = plan(image, files);
            assert!(plan.check_place(&Place::Local).is_ok());
            assert_eq!(plan.check_place(&ssh).is_ok(), at_ssh, "{image}{files}");
            assert_eq!(
                plan.check_place(&testbed).is_ok(),
                in_testbed,
                "{image}{files}"
            );
        }
        let refused = plan("", "files = [\"./app\"]")
            .check_place(&ssh)
            .unwrap_err()
            .to_string();
        assert!(
            refused.contains("./app") && refused.contains("ssh:h"),
            "{refused}"
        );
    }
}
