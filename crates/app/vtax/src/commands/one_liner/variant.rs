// SPDX-License-Identifier: Apache-2.0
//! The variants of a command line, `--variant NAME=VALUE`, and the texts that take their values.

use super::{CommandLineError, absolute};
use crate::cli::CommandArgs;
use std::path::Path;
use vtax_guest::image::oci::Source;
use vtax_guest::platform::host_root::shows;
use vtax_lab::plan::write::name_of;
use vtax_load::workload::command::words::{join, split};

/// The text that a variant's value takes the place of.
const PLACEHOLDER: &str = "{variant}";

/// Whether a text has a place for a variant's value.
pub(super) fn is_in(text: &str) -> bool {
    text.contains(PLACEHOLDER)
}

/// A variant of a command line.
#[derive(Debug)]
pub(super) struct Variant {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Whether the value is an image that no text takes.
    pub is_image: bool,
    /// Whether it is a file or directory of this host.
    pub is_file: bool,
}

impl Variant {
    /// Runs the file where it is, if the files of this host have it: its path is the command's own.
    pub fn keep_in_place(&mut self) {
        let file = Path::new(&self.value).canonicalize();
        self.is_file &= !file.is_ok_and(|file| shows(&file, Path::new(".")));
    }

    /// A command with the value in it; that of a file is its name in the directory of the files.
    pub fn in_command(&self, text: &str) -> String {
        let value = match Path::new(&self.value)
            .file_name()
            .and_then(|name| name.to_str())
        {
            Some(name) if self.is_file => format!("./{name}"),
            _ => self.value.clone(),
        };
        match split(text) {
            Ok(words) => {
                let words = words.iter().map(|word| word.replace(PLACEHOLDER, &value));
                join(&words.collect::<Vec<_>>())
            }
            // The reader of the plan says what is wrong with it.
            Err(_) => text.replace(PLACEHOLDER, &value),
        }
    }

    /// A text with the value in it.
    pub fn in_text(&self, text: &str) -> String {
        text.replace(PLACEHOLDER, &self.value)
    }

    /// An absolute path with the value in it.
    ///
    /// # Errors
    /// When no plan can contain it.
    pub fn in_path(&self, path: &Path) -> Result<String, CommandLineError> {
        let text = path
            .to_str()
            .ok_or_else(|| CommandLineError::Path(path.to_owned()))?;
        absolute(Path::new(&self.in_text(text)))
    }
}

/// Reads the variants.
///
/// # Errors
/// When one has no name or value, or nothing uses them.
pub(super) fn read(arguments: &CommandArgs) -> Result<Vec<Variant>, CommandLineError> {
    let lines = [
        &arguments.load,
        &arguments.serve,
        &arguments.prepare,
        &arguments.ready,
    ];
    let lines = lines
        .into_iter()
        .flatten()
        .chain(&arguments.words)
        .chain(&arguments.image);
    let paths = arguments.files.iter().chain(&arguments.input);
    let is_used =
        lines.map(String::as_str).any(is_in) || paths.filter_map(|path| path.to_str()).any(is_in);
    let read = |text: &String| {
        let pair = text
            .split_once('=')
            .filter(|(name, value)| !name.is_empty() && !value.is_empty());
        let (name, value) = pair.ok_or_else(|| CommandLineError::Variant(text.clone()))?;
        let is_path = value.starts_with("./") || value.starts_with("../");
        if is_path && !Path::new(value).exists() {
            return Err(CommandLineError::NoFile(text.clone()));
        }
        let is_image = !is_used && value.parse::<Source>().is_ok();
        if !is_used && !is_image {
            return Err(CommandLineError::Unused);
        }
        Ok(Variant {
            name: name.to_owned(),
            value: value.to_owned(),
            is_image,
            is_file: is_used && value.contains('/') && Path::new(value).exists(),
        })
    };
    arguments.variants.iter().map(read).collect()
}

/// The beginning that the names of variants share, `app` of `app-1.2` and `app-1.3`.
pub(super) fn common_name(names: &[String]) -> String {
    let Some((first, others)) = names.split_first() else {
        return "variants".to_owned();
    };
    if others.iter().all(|other| other == first) {
        return first.clone();
    }
    let is_shared = |end: &usize| others.iter().all(|other| other.starts_with(&first[..*end]));
    let ends = (1..=first.len()).filter(|end| first.is_char_boundary(*end));
    let end = ends.take_while(is_shared).last().unwrap_or(0);
    let shared = first[..end].trim_end_matches(|c: char| !c.is_ascii_alphabetic());
    name_of(shared, "variants")
}
