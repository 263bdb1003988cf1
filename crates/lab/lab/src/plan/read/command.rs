// SPDX-License-Identifier: Apache-2.0
//! The keys of a workload that is a command: what runs, when it is ready, and what is read from its output.

use super::Reader;
use crate::plan::{Catalogue, Plan};
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
const OWN: [&str; 9] = [
    "load", "serve", "ready", "prepare", "packages", "files", "stdin", "work", "metrics",
];
/// The keys of a number in the output.
const FIGURE: [&str; 6] = ["json", "csv", "row", "regex", "unit", "better"];
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
        has_image: bool,
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
            (None, Some(ready)) if !has_image => self
                .refuse(ready, "`ready` needs `serve`")
                .help_with("leave it out: it would do nothing; with an `image` its entry point is the service"),
            _ => {}
        }
        self.placeholders(table);
        let mut files = self.files(table, has_image);
        let stdin = self.stdin(table, has_image, &mut files);
        let definition = Definition {
            load: load.unwrap_or_default(),
            serve,
            ready,
            prepare: self.line(table, "prepare"),
            packages: self.packages(table, has_image),
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
            let Some((value, text)) = table
                .get(key)
                .and_then(|value| Some((value, value.get_ref().as_str()?)))
            else {
                continue;
            };
            let wrong = braced(text).find_map(|name| {
                let near = PLACEHOLDERS
                    .iter()
                    .map(|known| (strsim::jaro_winkler(name, known), *known));
                let (similarity, known) = near.max_by(|a, b| a.0.total_cmp(&b.0))?;
                (NEAR..1.0)
                    .contains(&similarity)
                    .then_some((name.to_owned(), known))
            });
            if let Some((name, known)) = wrong {
                self.refuse(value, format!("`{key}`: {{{name}}} is no placeholder"))
                    .help_with(format!("did you mean {{{known}}}?"));
            }
        }
        let has_service = table.contains_key("serve") || table.contains_key("ready");
        if !has_service
            && let Some(load) = table.get("load")
            && load
                .get_ref()
                .as_str()
                .is_some_and(|text| text.contains("{target}"))
        {
            self.refuse(
                load,
                "`load` has {target}, the address of a service, and there is no service",
            )
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

    fn packages(&mut self, table: &DeTable<'_>, has_image: bool) -> Vec<String> {
        let mut packages = Vec::new();
        for (name, offset) in self.list(table, "packages", has_image, "redis-server") {
            // Debian Policy 5.6.1.
            let is_name = name.len() >= 2
                && name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
                && name
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c));
            if is_name {
                packages.push(name)
            } else {
                self.complain(
                    offset,
                    format!("`{name}` is not the name of a Debian package"),
                )
                .help_with("names have small letters, digits and + - .")
            }
        }
        packages.sort();
        packages.dedup();
        packages
    }

    /// Reads the files of the image, each of which is put into one directory by its last name.
    fn files(&mut self, table: &DeTable<'_>, has_image: bool) -> Vec<String> {
        let mut files: Vec<String> = Vec::new();
        for (text, offset) in self.list(table, "files", has_image, "./app") {
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
        has_image: bool,
        files: &mut Vec<String>,
    ) -> Option<String> {
        let value = table.get("stdin")?;
        let path = self.text_of(value, "stdin")?;
        let name = |text: &str| {
            let name = Path::new(text).file_name()?.to_str()?;
            (!text.contains('\0')).then(|| name.to_owned())
        };
        let Some(own) = name(&path) else {
            self.refuse(
                value,
                format!("`{path}` does not end with the name of a file"),
            )
            .help_with("such as stdin = \"input.csv\"");
            return None;
        };
        if table.contains_key("serve") || table.contains_key("ready") || has_image {
            self.refuse(
                value,
                "`stdin` is for a command in the target, without a service or an image",
            )
            .help_with("let a shell read the file: sh -c 'command <file'");
            return None;
        }
        if !files.contains(&path) {
            if files
                .iter()
                .any(|other| name(other).as_deref() == Some(&own))
            {
                self.refuse(
                    value,
                    format!("`stdin` has the name of another of the `files`, {own}"),
                )
                .help_with("rename one: each is copied by its last name");
                return None;
            }
            files.push(path);
        }
        Some(own)
    }

    /// Reads a list of texts with their offsets, of what vtax's own image gets.
    fn list(
        &mut self,
        table: &DeTable<'_>,
        key: &str,
        has_image: bool,
        example: &str,
    ) -> Vec<(String, usize)> {
        let Some(value) = table.get(key) else {
            return Vec::new();
        };
        if has_image {
            self.refuse(value, format!("`{key}` are not added to an `image`"))
                .help_with("build an image that has them");
        }
        let array = value.get_ref().as_array();
        let Some(array) = array.filter(|array| array.len() <= MOST_ENTRIES) else {
            self.refuse(
                value,
                format!("`{key}` must be a list of at most {MOST_ENTRIES} texts"),
            )
            .help_with(format!("such as {key} = [\"{example}\"]"));
            return Vec::new();
        };
        array
            .iter()
            .filter_map(|item| Some((self.text_of(item, key)?, item.span().start)))
            .collect()
    }

    fn work(&mut self, table: &DeTable<'_>, offset: usize) -> Option<Figure> {
        let is_timed = table
            .get("extent")
            .and_then(|extent| extent.get_ref().as_str())
            == Some("duration");
        let Some(value) = table.get("work") else {
            if is_timed {
                self.complain(offset, "a command that runs for a time needs `work`")
                    .help_with("work per second, such as work = { regex = \"rate: ([0-9.]+)\", unit = \"request/s\" }");
            }
            return None;
        };
        let inner = self.table(value, "work")?;
        let place = value.span().start;
        let keys = FIGURE.into_iter().filter(|key| *key != "better");
        self.only(inner, keys.chain(["count"]), "`work`");
        let figure = self.figure(inner, place, "work")?;
        let Some((unit, _)) = unit(&figure.unit) else {
            // The output decides.
            return Some(figure);
        };
        match (is_timed, unit.per) {
            (true, Some(Base::Second)) | (false, None) => {}
            (true, _) => self
                .complain(
                    place,
                    "the work of a command that runs for a time is per second",
                )
                .help_with("such as unit = \"request/s\""),
            (false, Some(_)) => self
                .complain(
                    place,
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
            let is_name = name.len() <= LONGEST_NAME
                && name.starts_with(|c: char| c.is_ascii_lowercase())
                && name
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
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
            self.only(inner, FIGURE.into_iter(), &format!("the metric `{name}`"));
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
        let Some(text) = self.string(table, "unit") else {
            self.complain(offset, format!("`{name}` has no `unit`"))
                .help_with(UNITS);
            return None;
        };
        if text != AUTO && unit(&text).is_none() {
            self.complain(offset, format!("`{name}`: `{text}` is not a unit"))
                .help_with(UNITS);
            return None;
        }
        let better = match self.string(table, "better").as_deref() {
            Some("higher") => Better::Higher,
            Some("lower") => Better::Lower,
            None | Some("neither") => Better::Neither,
            Some(other) => {
                let message = format!("`{name}`: `better` cannot be `{other}`");
                self.unknown(offset, message, other, ["higher", "lower", "neither"]);
                Better::Neither
            }
        };
        Some(Figure {
            place: place.clone(),
            unit: text,
            better,
        })
    }

    /// Refuses files for a platform whose guests exist without vtax.
    pub(super) fn files_apply(&mut self, root: &DeTable<'_>, plan: &Plan) {
        let external = plan.platforms.iter().find(|entry| {
            let platform = self.catalogue.platform(&entry.kind);
            platform.is_some_and(|platform| platform.is_external(&entry.settings))
        });
        let workloads = root
            .get("workload")
            .and_then(|value| value.get_ref().as_array());
        let first = workloads.into_iter().flatten().find_map(|value| {
            let files = value.get_ref().as_table()?.get("files")?;
            Some(files.span().start)
        });
        if let (Some(entry), Some(offset)) = (external, first) {
            self.complain(
                offset,
                format!(
                    "`files` are not copied into the guests of `{}`, which vtax does not make",
                    entry.name
                ),
            )
            .help_with(
                "copy them there, give their absolute paths in the commands, and leave `files` out",
            );
        }
    }

    /// Refuses a level that no command contains.
    fn levels_of_command(&mut self, table: &DeTable<'_>, offset: usize) {
        let text = |key: &str| table.get(key).and_then(|value| value.get_ref().as_str());
        let uses = |key: &str| text(key).is_some_and(|text| text.contains("{level}"));
        let varies = table
            .get("profile")
            .is_some_and(|profile| profile.get_ref().is_table());
        if varies && !uses("load") {
            self.complain(
                offset,
                "`load` does not contain {level}, which the profile varies",
            )
            .help_with("write {level} where the command takes its rate or its number of clients");
        } else if table.contains_key("level") && !["load", "serve", "prepare"].into_iter().any(uses)
        {
            self.complain(offset, "no command contains {level}")
                .help_with("leave `level` out: it would do nothing");
        }
    }
}
