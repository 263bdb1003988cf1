// SPDX-License-Identifier: Apache-2.0
//! Variants that do the same: an A/A run, which shows what the method finds where there is nothing to find.

use super::Plan;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;
use vtax_host::settings::{Level, Settings};
use vtax_load::workload::command::{FILES, files_of, words};

impl Plan {
    /// Returns a note for each variant that has the settings and files of the first one. Files count by their content.
    pub fn same_variants(&self, folder: &Path) -> Vec<String> {
        let what = |number: usize| {
            let own = self.variants.get(number).map(|one| &one.settings);
            let loads = self.workloads.iter();
            let loads = loads.filter_map(|load| load.variants.get(number));
            own.into_iter()
                .chain(loads)
                .map(|settings| by_content(settings, folder))
                .collect::<Vec<_>>()
        };
        let Some(first) = self.variants.first() else {
            return Vec::new();
        };
        let base = what(0);
        let others = self.variants.iter().enumerate().skip(1);
        others
            .filter(|(number, _)| what(*number) == base)
            .map(|(_, other)| {
                format!(
                    "variants {} and {} do the same: between them this is an A/A run, in which nothing should be found",
                    first.name, other.name
                )
            })
            .collect()
    }
}

/// The settings with the content of files in place of their names.
fn by_content(settings: &Settings, folder: &Path) -> BTreeMap<String, String> {
    let digests = files_of(settings).into_iter().filter_map(|file| {
        let path = folder.join(&file);
        let name = path.file_name()?.to_str()?.to_owned();
        Some((name, digest(&path).ok()?))
    });
    let digests: BTreeMap<String, String> = digests.collect();
    let shown = |key: &String, level: &Level| match level {
        Level::Text(_) if key == FILES.key => {
            let mut content: Vec<&str> = digests.values().map(String::as_str).collect();
            content.sort_unstable();
            content.join(" ")
        }
        Level::Text(text) => match words::split(text) {
            Ok(all) => {
                let named = |word: &String| {
                    let name = word.strip_prefix("./").unwrap_or(word);
                    digests.get(name).cloned().unwrap_or_else(|| word.clone())
                };
                words::join(&all.iter().map(named).collect::<Vec<_>>())
            }
            Err(_) => text.clone(),
        },
        other => other.to_string(),
    };
    let all = settings.0.iter();
    all.map(|(key, level)| (key.clone(), shown(key, level)))
        .collect()
}

/// The digest of a regular file's content.
fn digest(path: &Path) -> io::Result<String> {
    let is_file = path.symlink_metadata()?.is_file();
    if !is_file {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut content = Sha256::new();
    io::copy(&mut File::open(path)?, &mut content)?;
    Ok(format!("{:x}", content.finalize()))
}
