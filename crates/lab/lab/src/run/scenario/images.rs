// SPDX-License-Identifier: Apache-2.0
//! The images of a plan's guests that are above the shared ones: images of containers, and files of the plan.

use crate::LabError;
use crate::plan::{Catalogue, GuestRole};
use rustix::fs::{Access, access};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use vtax_guest::image::oci::{self, Source, Unpacked};
use vtax_guest::image::{GuestFiles, Recipe, user_files};
use vtax_host::HostError;
use vtax_host::settings::Settings;
use vtax_load::workload::{Workload, command};

/// The content that an image has above the shared image of a recipe.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    base: Recipe,
    content: Content,
}

/// The content, as the plan writes it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Content {
    Image(String),
    Files(Vec<String>),
    /// The files of this host, with a working directory, and files of the plan beside it.
    Host(PathBuf, Vec<String>),
}

impl Content {
    /// The files of the plan.
    fn files(&self) -> &[String] {
        match self {
            Self::Image(_) => &[],
            Self::Files(texts) | Self::Host(_, texts) => texts,
        }
    }
}

/// An image that guests boot with.
#[derive(Debug)]
struct Made {
    files: GuestFiles,
    digest: String,
    /// The image of a container; `None` for files of the plan.
    unpacked: Option<Unpacked>,
}

/// The images, by their content.
#[derive(Debug)]
pub(super) struct Images {
    /// The directory at which relative paths start.
    folder: PathBuf,
    made: BTreeMap<Key, Made>,
}

impl Images {
    /// No images of a plan whose relative paths start at `folder`.
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            made: BTreeMap::new(),
        }
    }

    /// Makes the image of a guest, if it has one, above the files of the shared image.
    ///
    /// # Errors
    /// See [`oci::ensure`] and [`user_files::ensure`], and when the guest's service is the entry point that the image
    /// lacks.
    pub fn prepare(
        &mut self,
        guest: &GuestRole<'_>,
        catalogue: &Catalogue,
        files: &BTreeMap<Recipe, GuestFiles>,
        note: &mut dyn FnMut(String),
    ) -> Result<(), LabError> {
        let workload = catalogue.workload(guest.workload_kind);
        let key = workload.and_then(|workload| key(workload, guest.settings));
        let (Some(key), Some(workload)) = (key, workload) else {
            return Ok(());
        };
        let none = GuestFiles::default();
        let base = match &key.content {
            Content::Host(..) => Some(&none),
            _ => files.get(&key.base),
        };
        let Some(base) = base else {
            return Ok(());
        };
        if catalogue.is_external(guest.platform_kind, guest.settings) {
            return Ok(());
        }
        if !self.made.contains_key(&key) {
            let made = self.make(&key.content, base, &mut |line: &str| note(line.to_owned()))?;
            self.made.insert(key.clone(), made);
        }
        if let Content::Image(source) = &key.content
            && workload.kind() == command::KIND
            && let Some(unpacked) = self.made.get(&key).and_then(|made| made.unpacked.as_ref())
        {
            check_programs(source, unpacked, guest.settings)?;
        }
        Ok(())
    }

    /// Checks that an image can be made.
    ///
    /// # Errors
    /// When the image or one of the files is missing or not valid.
    pub fn check(&self, key: &Key) -> Result<(), HostError> {
        match &key.content {
            Content::Image(text) => oci::check(&self.source(text)?),
            Content::Files(texts) => user_files::check(&self.paths(texts)),
            Content::Host(directory, texts) => {
                let found = fs::metadata(directory).map_err(HostError::file("read", directory))?;
                if !found.is_dir() {
                    return Err(HostError::Setting(format!(
                        "the image host:{0}: {0} is no directory",
                        directory.display()
                    )));
                }
                if !texts.is_empty() && access(directory, Access::WRITE_OK).is_err() {
                    return Err(HostError::Setting(format!(
                        "{} is not yours to write to, and the plan's files are put into it in the guest: start vtax in a \
                         directory of your own",
                        directory.display()
                    )));
                }
                user_files::check(&self.paths(texts))
            }
        }
    }

    fn source(&self, text: &str) -> Result<Source, HostError> {
        Ok(text.parse::<Source>()?.below(&self.folder))
    }

    fn paths(&self, texts: &[String]) -> Vec<PathBuf> {
        texts.iter().map(|text| self.folder.join(text)).collect()
    }

    fn make(
        &self,
        content: &Content,
        base: &GuestFiles,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Made, HostError> {
        match content {
            Content::Image(text) => {
                let unpacked = oci::ensure(&self.source(text)?, base, progress)?;
                Ok(Made {
                    files: unpacked.files.clone(),
                    digest: unpacked.about.digest.clone(),
                    unpacked: Some(unpacked),
                })
            }
            Content::Host(directory, texts) => {
                let paths = self.paths(texts);
                let digest = user_files::digest(&paths)?;
                let files = if texts.is_empty() {
                    None
                } else {
                    Some(user_files::ensure_alone(&paths, &digest, progress)?)
                };
                Ok(Made {
                    files: GuestFiles::of_this_host(Some(directory.clone()), files),
                    digest,
                    unpacked: None,
                })
            }
            Content::Files(texts) => {
                let paths = self.paths(texts);
                let digest = user_files::digest(&paths)?;
                Ok(Made {
                    files: user_files::ensure(&paths, &digest, base, progress)?,
                    digest,
                    unpacked: None,
                })
            }
        }
    }

    /// The files of a guest with such an image; `None` where it has none.
    pub fn for_workload(
        &self,
        workload: &dyn Workload,
        settings: &Settings,
    ) -> Option<&GuestFiles> {
        Some(&self.made.get(&key(workload, settings)?)?.files)
    }

    /// The digests of the plan's files, one a line; empty without files.
    pub fn digests_of_files(&self) -> String {
        let made = self.made.iter();
        let files = made.filter(|(key, _)| !key.content.files().is_empty());
        let digests: BTreeSet<&str> = files.map(|(_, made)| made.digest.as_str()).collect();
        digests
            .into_iter()
            .flat_map(|digest| ["\n", digest])
            .collect()
    }

    /// The facts about a guest's image for the record of a trial.
    pub fn facts(&self, workload: &dyn Workload, settings: &Settings) -> Vec<(String, String)> {
        let key = key(workload, settings);
        let Some((key, made)) = key.and_then(|key| self.made.get_key_value(&key)) else {
            return Vec::new();
        };
        let digest = made.digest.clone();
        let mut facts = match &key.content {
            Content::Host(directory, _) => {
                let source = Source::Host(directory.clone());
                vec![("image.source", source.to_string())]
            }
            Content::Image(text) => vec![
                ("image.source", text.clone()),
                ("image.digest", digest.clone()),
            ],
            Content::Files(_) => Vec::new(),
        };
        let files = key.content.files();
        if !files.is_empty() {
            facts.push(("files.source", files.join(", ")));
            facts.push(("files.digest", digest));
        }
        let facts = facts.into_iter();
        facts
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }
}

/// Checks that an image has the programs of the commands that run in it, and an entry point where that is the service.
///
/// # Errors
/// What it lacks.
fn check_programs(source: &str, unpacked: &Unpacked, settings: &Settings) -> Result<(), HostError> {
    let entry_point = unpacked.about.entry_point.first();
    let serves = command::serves_entry_point(settings);
    if serves && entry_point.is_none() {
        return Err(HostError::NotInImage {
            image: source.to_owned(),
            problem: "it has no entry point; give the service as `serve`".to_owned(),
        });
    }
    let own = command::programs_in_target(settings);
    let entry_point = if serves { entry_point.cloned() } else { None };
    for program in own.into_iter().chain(entry_point) {
        unpacked.check_program(source, &program)?;
    }
    Ok(())
}

/// The key of a guest's image; `None` where it has the shared one.
pub(super) fn key(workload: &dyn Workload, settings: &Settings) -> Option<Key> {
    let image = oci::PARAMETER.given(settings);
    let host = oci::host_directory(settings);
    let content = match (image, command::files_of(settings)) {
        (Some(_), files) if host.is_some() => Content::Host(host?, files),
        (Some(image), _) => Content::Image(image.to_owned()),
        (None, files) if !files.is_empty() => Content::Files(files),
        (None, _) => return None,
    };
    Some(Key {
        base: Recipe::of_guest(&workload.packages(settings), settings),
        content,
    })
}
