// SPDX-License-Identifier: Apache-2.0
//! The keys of a workload that is a command: what runs, when it is ready, and what is read from its output.

use super::Reader;
use super::image::Images;
use super::values::{sections, text};
use crate::plan::{Catalogue, Entry, Plan};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use toml::de::DeTable;
use vtax_core::Base;
use vtax_core::metric::Better;
use vtax_host::settings::Settings;
use vtax_load::workload::command::figure::{AUTO, Figure, Place, UNITS, check, unit};
use vtax_load::workload::command::{Definition, Ready, words};

/// The keys that [`Reader::command`] reads.
pub(super) const OWN: [&str; 9] = [
    "load", "serve", "ready", "prepare", "packages", "files", "stdin", "work", "metrics",
];
/// The keys of a number in the output.
const FIGURE: [&str; 6] = ["json", "csv", "row", "regex", "unit", "better"];
/// The keys of the work.
const WORK: [&str; 6] = ["json", "csv", "row", "regex", "unit", "count"];
/// The most metrics, packages and files of a command.
const MOST_ENTRIES: usize = 32;
/// The longest name of a metric.
const LONGEST_NAME: usize = 40;

/// The words in braces that commands have their values put for.
const PLACEHOLDERS: [&str; 5] = ["target", "level", "warmup", "duration", "seconds"];
/// The similarity (Jaro–Winkler) from which a word in braces is taken for a mistyped placeholder.
const NEAR: f64 = 0.85;

/// The words of small letters in braces.
fn braced(text: &str) -> impl Iterator<Item = &str> {
    let parts = text.split('{').skip(1);
    parts.filter_map(|part| {
        let (name, _) = part.split_once('}')?;
        name.chars().all(|c| c.is_ascii_lowercase()).then_some(name)
    })
}

/// Whether the flattened key of a workload belongs to the definition of a command.
pub(super) fn is_own(key: &str) -> bool {
    let first = key.split('.').next();
    first.is_some_and(|first| OWN.contains(&first))
}

impl Reader<'_, &Catalogue> {
    /// Reads the definition of a command as settings. With an image, its entry point may be the service.
    pub(super) fn command(
        &mut self,
        table: &DeTable<'_>,
        offset: usize,
        images: Images,
    ) -> Settings {
        let load = self.line(table, "load");
        if !table.contains_key("load") {
            self.complain(offset, "this command has no `load`")
                .help_with("add what is measured, such as: load = \"sysbench cpu run\"");
        }
        let serve = self.line(table, "serve");
        let ready = self.ready(table);
        match (table.get("serve"), table.get("ready")) {
            (Some(serve), None) => self
                .refuse(serve, "`serve` needs `ready`")
                .help_with("ready = \"tcp:PORT\", \"log:EXPRESSION\", or \"exit\" where it goes on by itself"),
            (None, Some(ready)) if images != Images::Some => self
                .refuse(ready, "`ready` needs `serve`")
                .help_with("leave it out: it would do nothing; with an `image` its entry point is the service"),
            _ => {}
        }
        self.placeholders(table);
        let mut files = self.files(table, images);
        let stdin = self.stdin(table, images, &mut files);
        let definition = Definition {
            load: load.unwrap_or_default(),
            serve,
            ready,
            prepare: self.line(table, "prepare"),
            packages: self.packages(table, images),
            files,
            stdin,
            work: self.work(table, offset),
            metrics: self.metrics(table),
        };
        self.levels_of_command(table, offset);
        definition.settings()
    }

    /// Reads a command and checks that it can be split into words.
    fn line(&mut self, table: &DeTable<'_>, key: &str) -> Option<String> {
        let value = table.get(key)?;
        let text = self.text_of(value, key)?;
        if let Err(cause) = words::split(&text) {
            self.refuse(value, format!("`{key}`: {cause}"))
                .help_with("quote it, or let a shell run it: sh -c '…'");
            return None;
        }
        Some(text)
    }

    /// Refuses a word in braces that is nearly a placeholder, and the target's address where no client needs it.
    fn placeholders(&mut self, table: &DeTable<'_>) {
        for key in ["load", "serve", "prepare"] {
            let Some((value, line)) = table.get(key).zip(text(table, key)) else {
                continue;
            };
            let wrong = braced(line).find_map(|name| {
                let near = PLACEHOLDERS.map(|known| (strsim::jaro_winkler(name, known), known));
                let near = near.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
                let (similarity, known) = near?;
                let is_near = (NEAR..1.0).contains(&similarity);
                is_near.then_some((name, known))
            });
            if let Some((name, known)) = wrong {
                self.refuse(value, format!("`{key}`: {{{name}}} is no placeholder"))
                    .help_with(format!("did you mean {{{known}}}?"));
            }
        }
        let has_service = table.contains_key("serve") || table.contains_key("ready");
        if !has_service
            && let Some(load) = table.get("load")
            && text(table, "load").is_some_and(|line| line.contains("{target}"))
        {
            let message = "`load` has {target}, the address of a service, and there is no service";
            self.refuse(load, message)
                .help_with("add `serve` and `ready`, or with an `image` `ready`: --ready tcp:PORT");
        }
    }

    fn ready(&mut self, table: &DeTable<'_>) -> Option<String> {
        let value = table.get("ready")?;
        let text = self.text_of(value, "ready")?;
        if let Err(cause) = text.parse::<Ready>() {
            self.refuse(value, cause.to_string())
                .help_with("such as \"tcp:6379\", \"log:Ready to accept\" or \"exit\"");
            return None;
        }
        Some(text)
    }

    fn packages(&mut self, table: &DeTable<'_>, images: Images) -> Vec<String> {
        let mut packages = Vec::new();
        for (name, offset) in self.list(table, "packages", images, "redis-server") {
            // Debian Policy 5.6.1.
            let is_name = name.len() >= 2
                && name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
                && name
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c));
            if is_name {
                packages.push(name);
                continue;
            }
            let message = format!("`{name}` is not the name of a Debian package");
            self.complain(offset, message)
                .help_with("names have small letters, digits and + - .");
        }
        packages.sort();
        packages.dedup();
        packages
    }

    /// Reads the files of the image, each of which is put into one directory by its last name.
    fn files(&mut self, table: &DeTable<'_>, images: Images) -> Vec<String> {
        let mut files: Vec<String> = Vec::new();
        for (text, offset) in self.list(table, "files", images, "./app") {
            let name = |text: &str| Path::new(text).file_name().map(OsStr::to_owned);
            let problem = match name(&text) {
                _ if text.contains('\0') => "a path cannot contain a NUL".to_owned(),
                None => format!("`{text}` does not end with the name of a file or directory"),
                own if files.iter().any(|other| name(other) == own) => {
                    format!("two `files` have the name of `{text}`, and both would be at one place")
                }
                _ => {
                    files.push(text);
                    continue;
                }
            };
            self.complain(offset, problem)
                .help_with("each is copied by its last name: ../target/release/app becomes ./app");
        }
        files
    }

    /// Reads the file of standard input, which is added to the files. Returns its name among them.
    fn stdin(
        &mut self,
        table: &DeTable<'_>,
        images: Images,
        files: &mut Vec<String>,
    ) -> Option<String> {
        let value = table.get("stdin")?;
        let path = self.text_of(value, "stdin")?;
        let name = |text: &str| {
            let name = Path::new(text).file_name()?.to_str()?;
            (!text.contains('\0')).then(|| name.to_owned())
        };
        let Some(own) = name(&path) else {
            let message = format!("`{path}` does not end with the name of a file");
            self.refuse(value, message)
                .help_with("such as stdin = \"input.csv\"");
            return None;
        };
        if table.contains_key("serve") || table.contains_key("ready") || images == Images::Some {
            let message = "`stdin` is for a command in the target, without a service or an image";
            self.refuse(value, message)
                .help_with("let a shell read the file: sh -c 'command <file'");
            return None;
        }
        if files.contains(&path) {
            return Some(own);
        }
        let mut names = files.iter().map(|other| name(other));
        if names.any(|other| other.as_ref() == Some(&own)) {
            let message = format!("`stdin` has the name of another of the `files`, {own}");
            self.refuse(value, message)
                .help_with("rename one: each is copied by its last name");
            return None;
        }
        files.push(path);
        Some(own)
    }

    /// Reads a list of texts with their offsets, of what vtax's own image gets.
    fn list(
        &mut self,
        table: &DeTable<'_>,
        key: &str,
        images: Images,
        example: &str,
    ) -> Vec<(String, usize)> {
        let Some(value) = table.get(key) else {
            return Vec::new();
        };
        match images {
            Images::Some => {
                self.refuse(value, format!("`{key}` are not added to an `image`"))
                    .help_with("build an image that has them");
            }
            Images::Host if key == "packages" => {
                self.refuse(value, "`packages` are not added to the files of this host")
                    .help_with("install them here, or leave out `image`");
            }
            Images::None | Images::Host => {}
        }
        let array = value.get_ref().as_array();
        let Some(array) = array.filter(|array| array.len() <= MOST_ENTRIES) else {
            let message = format!("`{key}` must be a list of at most {MOST_ENTRIES} texts");
            self.refuse(value, message)
                .help_with(format!("such as {key} = [\"{example}\"]"));
            return Vec::new();
        };
        let texts = array.iter();
        let texts = texts.filter_map(|item| Some((self.text_of(item, key)?, item.span().start)));
        texts.collect()
    }

    fn work(&mut self, table: &DeTable<'_>, offset: usize) -> Option<Figure> {
        let is_timed = text(table, "extent") == Some("duration");
        let Some(value) = table.get("work") else {
            if is_timed {
                self.complain(offset, "a command that runs for a time needs `work`")
                    .help_with("work per second, such as work = { regex = \"rate: ([0-9.]+)\", unit = \"request/s\" }");
            }
            return None;
        };
        let inner = self.table(value, "work")?;
        let place = value.span().start;
        self.only(inner, WORK, "`work`");
        let figure = self.figure(inner, place, "work")?;
        let Some((unit, _)) = unit(&figure.unit) else {
            // The output decides.
            return Some(figure);
        };
        match (is_timed, unit.per) {
            (true, Some(Base::Second)) | (false, None) => {}
            (true, _) => self
                .refuse(
                    value,
                    "the work of a command that runs for a time is per second",
                )
                .help_with("such as unit = \"request/s\""),
            (false, Some(_)) => self
                .refuse(
                    value,
                    "the work of a command that runs to its end is a total",
                )
                .help_with("such as unit = \"request\"; extent = \"duration\" measures a rate"),
        }
        Some(figure)
    }

    fn metrics(&mut self, table: &DeTable<'_>) -> BTreeMap<String, Figure> {
        let mut metrics = BTreeMap::new();
        let Some(value) = table.get("metrics") else {
            return metrics;
        };
        let Some(inner) = self.table(value, "workload.metrics") else {
            return metrics;
        };
        if inner.len() > MOST_ENTRIES {
            self.refuse(value, format!("more than {MOST_ENTRIES} metrics"));
            return metrics;
        }
        for (key, value) in inner {
            let (name, offset) = (key.get_ref().to_string(), key.span().start);
            let is_key = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            let is_name = name.len() <= LONGEST_NAME
                && name.starts_with(|c: char| c.is_ascii_lowercase())
                && name.chars().all(is_key);
            if !is_name {
                self.complain(offset, format!("`{name}` is not the name of a metric"))
                    .help_with(format!(
                        "names have up to {LONGEST_NAME} small letters, digits and _, and begin with a letter"
                    ));
                continue;
            }
            let Some(inner) = self.table(value, &format!("metrics.{name}")) else {
                continue;
            };
            self.only(inner, FIGURE, &format!("the metric `{name}`"));
            if let Some(figure) = self.figure(inner, offset, &name) {
                metrics.insert(name, figure);
            }
        }
        metrics
    }

    /// Reads the place, unit and direction of a number.
    fn figure(&mut self, table: &DeTable<'_>, offset: usize, name: &str) -> Option<Figure> {
        let mut places = Vec::new();
        places.extend(self.string(table, "json").map(Place::Json));
        let row = self.string(table, "row");
        if table.contains_key("row") && !table.contains_key("csv") {
            self.complain(offset, format!("`{name}`: `row` needs `csv`"));
        }
        let column = self.string(table, "csv");
        places.extend(column.map(|column| Place::Csv { column, row }));
        places.extend(self.string(table, "regex").map(Place::Regex));
        places.extend(self.number(table, "count", 1e-9, 1e18).map(Place::Count));
        let [place] = places.as_slice() else {
            self.complain(offset, format!("`{name}` needs one place of its number"))
                .help_with("json = \"/POINTER\", csv = \"HEADING\" or regex = \"…(NUMBER)…\"; `work` also count = NUMBER");
            return None;
        };
        if let Err(cause) = check(place) {
            self.complain(offset, format!("`{name}`: {cause}"));
            return None;
        }
        let Some(written) = self.string(table, "unit") else {
            self.complain(offset, format!("`{name}` has no `unit`"))
                .help_with(UNITS);
            return None;
        };
        if written != AUTO && unit(&written).is_none() {
            self.complain(offset, format!("`{name}`: `{written}` is not a unit"))
                .help_with(UNITS);
            return None;
        }
        let words = [
            ("higher", Better::Higher),
            ("lower", Better::Lower),
            ("neither", Better::Neither),
        ];
        let message = |other: &str| format!("`{name}`: `better` cannot be `{other}`");
        let better = self.word(table, "better", &words, message);
        Some(Figure {
            place: place.clone(),
            unit: written,
            better: better.unwrap_or(Better::Neither),
        })
    }

    /// Refuses files for a platform whose guests exist without vtax.
    pub(super) fn files_apply(&mut self, root: &DeTable<'_>, plan: &Plan) {
        let catalogue = self.catalogue;
        let is_external = |entry: &&Entry| catalogue.is_external(&entry.kind, &entry.settings);
        let external = plan.platforms.iter().find(is_external);
        let tables = ["workload", "variant"].map(|name| sections(root, name));
        let files = (tables.into_iter().flatten()).find_map(|(_, table)| table.get("files"));
        if let Some((entry, files)) = external.zip(files) {
            let name = &entry.name;
            let message = format!(
                "`files` are not copied into the guests of `{name}`, which vtax does not make"
            );
            self.refuse(files, message).help_with(
                "copy them there, give their absolute paths in the commands, and leave `files` out",
            );
        }
    }

    /// Refuses a level that no command contains.
    fn levels_of_command(&mut self, table: &DeTable<'_>, offset: usize) {
        let uses = |key: &str| text(table, key).is_some_and(|line| line.contains("{level}"));
        let varies = super::table(table, "profile").is_some();
        if varies && !uses("load") {
            let message = "`load` does not contain {level}, which the profile varies";
            self.complain(offset, message).help_with(
                "write {level} where the command takes its rate or its number of clients",
            );
        } else if table.contains_key("level") && !["load", "serve", "prepare"].into_iter().any(uses)
        {
            self.complain(offset, "no command contains {level}")
                .help_with("leave `level` out: it would do nothing");
        }
    }
}
