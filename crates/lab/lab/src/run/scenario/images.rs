// SPDX-License-Identifier: Apache-2.0
//! The images of a plan's guests that are above the shared ones: images of containers, and files of the plan.

use crate::LabError;
use crate::plan::{Catalogue, GuestRole};
use rustix::fs::{Access, access};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use vtax_core::counted;
use vtax_guest::image::closure::{self, Wanted};
use vtax_guest::image::oci::{self, Source, Unpacked};
use vtax_guest::image::{GuestFiles, Recipe, trace, user_files};
use vtax_guest::platform::{CommandLine, GuestKernel, Platform};
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
    /// The files of this host, with a working directory, and files of the plan beside it. A guest with a kernel of its own
    /// gets those that command lines use.
    Host(PathBuf, Vec<String>, Option<Vec<CommandLine>>),
}

impl Content {
    /// The files of the plan.
    fn files(&self) -> &[String] {
        match self {
            Self::Image(_) => &[],
            Self::Files(texts) | Self::Host(_, texts, _) => texts,
        }
    }
}

/// The time after which the dry run of a command, such as that of a service, is ended.
const DRY_RUN: Duration = Duration::from_secs(10);

/// The programs that vtax runs in a guest beside the plan's commands. In a dry run each reads its libraries.
const OWN_PROGRAMS: &str = "for program in bash cat chmod cp dd env ethtool head ip kill ln ls mkdir mkfifo mv ps rm sleep \
                            tail timeout true; do command -v $program && $program --version; done >/dev/null 2>&1 </dev/null; true";

/// An image that guests boot with.
#[derive(Debug)]
struct Made {
    files: GuestFiles,
    digest: String,
    /// The image of a container; `None` for files of the plan.
    unpacked: Option<Unpacked>,
    /// What is said about the files of this host in a VM.
    closure: Option<String>,
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
        let (Some(workload), Some(platform)) = (
            catalogue.workload(guest.workload_kind),
            catalogue.platform(guest.platform_kind),
        ) else {
            return Ok(());
        };
        let Some(key) = key(platform, workload, guest.settings)? else {
            return Ok(());
        };
        let none = GuestFiles::default();
        let base = match &key.content {
            Content::Host(_, _, None) => Some(&none),
            Content::Host(_, _, Some(_)) => {
                let whole = files.get(&key.base);
                whole.or_else(|| files.get(&key.base.parts()))
            }
            _ => files.get(&key.base),
        };
        let Some(base) = base else {
            return Ok(());
        };
        if catalogue.is_external(guest.platform_kind, guest.settings) {
            return Ok(());
        }
        if !self.made.contains_key(&key) {
            let made = self.make(&key, base, &mut |line: &str| note(line.to_owned()))?;
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
            Content::Host(directory, texts, _) => {
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
        key: &Key,
        base: &GuestFiles,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Made, HostError> {
        match &key.content {
            Content::Image(text) => {
                let unpacked = oci::ensure(&self.source(text)?, base, progress)?;
                Ok(Made {
                    files: unpacked.files.clone(),
                    digest: unpacked.about.digest.clone(),
                    unpacked: Some(unpacked),
                    closure: None,
                })
            }
            Content::Host(directory, texts, lines) => {
                let paths = self.paths(texts);
                let digest = user_files::digest(&paths)?;
                let files = if texts.is_empty() {
                    None
                } else {
                    Some(user_files::ensure_alone(&paths, &digest, progress)?)
                };
                let on_host = GuestFiles::of_this_host(Some(directory.clone()), files);
                let (files, closure) = match lines {
                    None => (on_host, None),
                    Some(lines) => {
                        let hosts_kernel = key.base.kernel.is_none();
                        let (files, about) = close(&on_host, lines, hosts_kernel, base, progress)?;
                        (files, Some(about))
                    }
                };
                Ok(Made {
                    files,
                    digest,
                    unpacked: None,
                    closure,
                })
            }
            Content::Files(texts) => {
                let paths = self.paths(texts);
                let digest = user_files::digest(&paths)?;
                Ok(Made {
                    files: user_files::ensure(&paths, &digest, base, progress)?,
                    digest,
                    unpacked: None,
                    closure: None,
                })
            }
        }
    }

    /// The files of a guest with such an image; `None` where it has none.
    pub fn for_guest(
        &self,
        platform: &dyn Platform,
        workload: &dyn Workload,
        settings: &Settings,
    ) -> Option<&GuestFiles> {
        let key = key(platform, workload, settings).ok()??;
        Some(&self.made.get(&key)?.files)
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
    pub fn facts(
        &self,
        platform: &dyn Platform,
        workload: &dyn Workload,
        settings: &Settings,
    ) -> Vec<(String, String)> {
        let key = key(platform, workload, settings).ok().flatten();
        let Some((key, made)) = key.and_then(|key| self.made.get_key_value(&key)) else {
            return Vec::new();
        };
        let digest = made.digest.clone();
        let mut facts = match &key.content {
            Content::Host(directory, ..) => {
                let source = Source::Host(directory.clone());
                vec![("image.source", source.to_string())]
            }
            Content::Image(text) => vec![
                ("image.source", text.clone()),
                ("image.digest", digest.clone()),
            ],
            Content::Files(_) => Vec::new(),
        };
        facts.extend(made.closure.clone().map(|about| ("image.closure", about)));
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

/// Makes the image of a VM with the files of this host that command lines use. Returns its files, and what is said about
/// them.
///
/// # Errors
/// When a dry run cannot be started, or the image cannot be made.
fn close(
    on_host: &GuestFiles,
    lines: &[CommandLine],
    hosts_kernel: bool,
    base: &GuestFiles,
    progress: &mut dyn FnMut(&str),
) -> Result<(GuestFiles, String), HostError> {
    // By the path of its interpreter in scripts.
    let own = ["/bin/sh", "-c", OWN_PROGRAMS].map(str::to_owned).to_vec();
    let all: Vec<CommandLine> = std::iter::once(own).chain(lines.iter().cloned()).collect();
    progress("one dry run of the command, to find the files that a VM needs");
    let used = trace::files_used(on_host, &all, DRY_RUN, progress)?;
    let wanted = Wanted {
        on_host,
        used: &used.files,
        hosts_kernel,
    };
    let closure = closure::ensure(&wanted, base, progress)?;
    let kernel = closure.kernel.map_or_else(
        || "the kernel of vtax's image".to_owned(),
        |release| format!("this host's kernel {release}"),
    );
    let about = format!(
        "{} of this host, {:.1} MiB, found in a dry run of {:.1} s; {kernel}",
        counted(closure.count, "file"),
        closure.bytes as f64 / f64::from(1 << 20),
        used.took.as_secs_f64(),
    );
    progress(&format!("a VM has {about}"));
    Ok((closure.files, about))
}

/// The key of a guest's image; `None` where it has the shared one.
///
/// # Errors
/// When a VM is to have files of this host, and its workload does not say which.
pub(super) fn key(
    platform: &dyn Platform,
    workload: &dyn Workload,
    settings: &Settings,
) -> Result<Option<Key>, HostError> {
    let image = oci::PARAMETER.given(settings);
    let content = match (image, command::files_of(settings)) {
        (Some(image), files) => match oci::host_directory(settings) {
            None => Content::Image(image.to_owned()),
            Some(directory) => {
                let lines = lines_in_vm(platform, workload, settings)?;
                Content::Host(directory, files, lines)
            }
        },
        (None, files) if !files.is_empty() => Content::Files(files),
        (None, _) => return Ok(None),
    };
    Ok(Some(Key {
        base: Recipe::of_guest(&workload.packages(settings), settings),
        content,
    }))
}

/// The command lines in a VM, of which the files of this host are found; `None` on this host's kernel.
fn lines_in_vm(
    platform: &dyn Platform,
    workload: &dyn Workload,
    settings: &Settings,
) -> Result<Option<Vec<CommandLine>>, HostError> {
    if platform.guest_kernel() == GuestKernel::Hosts {
        Ok(None)
    } else if workload.kind() == command::KIND {
        command::lines_in_target(settings).map(Some)
    } else {
        Err(HostError::Setting(format!(
            "{}: a VM gets the files of this host (`image = \"host\"`) that a command uses: give the workload as \
             `kind = \"command\"`, or take a platform on this host's kernel, such as native or container",
            workload.kind()
        )))
    }
}
