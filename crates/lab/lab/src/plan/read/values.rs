// SPDX-License-Identifier: Apache-2.0
//! The reader of plan documents, which checks values and collects complaints.

use crate::plan::{Diagnostic, Diagnostics, keys};
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use vtax_host::settings::{Domain, Level, Parameter, Settings};

/// A value of a document, with its position.
pub type Value<'i> = Spanned<DeValue<'i>>;

/// The most trials of a plan. A larger number is a mistake in the factors.
const MAXIMUM_TRIALS: u64 = 100_000;

/// The most complaints that are kept. Each one costs a search of the whole text.
const MAXIMUM_COMPLAINTS: usize = 100;
/// The most bytes of a plan.
const MAXIMUM_BYTES: usize = 1 << 20;

/// Reads a document with `plan`, which looks names up in `catalogue`. Messages contain `file` as its name.
///
/// # Errors
/// All faults of the document.
pub fn document<T, C>(
    file: &str,
    text: &str,
    catalogue: C,
    plan: impl FnOnce(&mut Reader<'_, C>, &DeTable<'_>) -> Option<T>,
) -> Result<T, Diagnostics> {
    let is_too_large = text.len() > MAXIMUM_BYTES;
    let text = if is_too_large { "" } else { text };
    let (document, syntax) = DeTable::parse_recoverable(text);
    let mut reader = Reader {
        text,
        catalogue,
        found: Vec::new(),
        more: 0,
    };
    if is_too_large {
        reader.complain(0, format!("a plan has at most {} KiB", MAXIMUM_BYTES >> 10));
    }
    for error in syntax {
        let offset = error.span().map_or(0, |span| span.start);
        reader.complain(offset, error.message());
    }
    // After a syntax error the rest of the document is unreliable, so only the syntax error is reported.
    let plan = if reader.found.is_empty() {
        plan(&mut reader, document.get_ref())
    } else {
        None
    };
    reader
        .found
        .sort_by_key(|diagnostic| (diagnostic.line, diagnostic.column));
    // A workload is read once for each variant.
    reader.found.dedup();
    match plan {
        Some(plan) if reader.found.is_empty() => Ok(plan),
        _ => Err(Diagnostics {
            file: file.to_owned(),
            list: reader.found,
            more: reader.more,
        }),
    }
}

/// The reader of one document. A method that returns `None` for a wrong value has added a complaint.
pub struct Reader<'a, C> {
    text: &'a str,
    /// The names that the plan may use.
    pub(super) catalogue: C,
    found: Vec<Diagnostic>,
    /// The number of complaints beyond [`MAXIMUM_COMPLAINTS`].
    more: usize,
}

impl<C> Reader<'_, C> {
    /// Reads the plan's name.
    pub fn title(&mut self, root: &DeTable<'_>) -> Option<String> {
        let Some(value) = root.get("name") else {
            self.complain(0, "`name` is missing")
                .help_with("add a line such as: name = \"network-tax\"");
            return None;
        };
        self.name(value)
    }

    /// Reads the share of all trials that may run again, written `again = { share = 0.5 }`.
    pub fn again(&mut self, root: &DeTable<'_>) -> f64 {
        self.own_section(root, "again", keys::AGAIN).number("share")
    }

    /// Reads the keys of a table that are declared as numbers, words or times. Wrong ones have their defaults.
    pub(super) fn own(&mut self, table: &DeTable<'_>, keys: &'static [Parameter]) -> Own {
        let is_read =
            |key: &&Parameter| key.default.is_some() || !matches!(key.domain, Domain::Text(_));
        let given = keys.iter().filter(is_read).filter_map(|key| {
            let level = self.level(table.get(key.key)?, key)?;
            Some((key.key, level))
        });
        let given = given.collect();
        Own { keys, given }
    }

    /// As [`Reader::own`], of a section with these keys alone. One that is absent has the defaults.
    pub(super) fn own_section(
        &mut self,
        root: &DeTable<'_>,
        section: &str,
        keys: &'static [Parameter],
    ) -> Own {
        let names = keys.iter().map(|key| key.key);
        match self.section(root, section, names) {
            Some(table) => self.own(table, keys),
            None => Own {
                keys,
                given: Settings::default(),
            },
        }
    }

    /// Checks the number of trials against `MAXIMUM_TRIALS`.
    pub fn accepts_size(&mut self, trials: u64, offset: usize) -> bool {
        let accepted = trials <= MAXIMUM_TRIALS;
        if !accepted {
            self.complain(
                offset,
                format!(
                    "the plan comes to {trials} trials; more than {MAXIMUM_TRIALS} are refused"
                ),
            )
            .help_with("vary fewer factors at once, or lower `repetitions`");
        }
        accepted
    }

    /// Returns every `[[section]]` of one of the `kinds`, with its offset and its kind.
    pub fn sections<'v, 'i>(
        &mut self,
        root: &'v DeTable<'i>,
        section: &str,
        kinds: &[&str],
    ) -> Vec<(usize, String, &'v DeTable<'i>)> {
        let mut sections = Vec::new();
        let Some(value) = root.get(section) else {
            self.complain(0, format!("the plan has no `[[{section}]]`"))
                .help_with(format!(
                    "add a section: [[{section}]] with kind = \"{}\"",
                    kinds.join("\" or \"")
                ));
            return sections;
        };
        let Some(array) = value.get_ref().as_array() else {
            self.refuse(value, format!("`{section}` must be a list of sections"))
                .help_with(format!("write [[{section}]] with two brackets"));
            return sections;
        };
        for item in array {
            let offset = item.span().start;
            let Some(table) = item.get_ref().as_table() else {
                self.complain(
                    offset,
                    format!("each `{section}` must be a section with `kind`"),
                );
                continue;
            };
            let Some(kind) = table.get("kind") else {
                self.complain(offset, format!("this `[[{section}]]` has no `kind`"))
                    .help_with(format!("one of: {}", kinds.join(", ")));
                continue;
            };
            let Some(name) = self.text_of(kind, "kind") else {
                continue;
            };
            if kinds.contains(&name.as_str()) {
                sections.push((offset, name, table));
            } else {
                self.unknown(
                    kind.span().start,
                    format!("there is no {section} `{name}`"),
                    &name,
                    kinds.iter().copied(),
                );
            }
        }
        if array.is_empty() {
            self.refuse(value, format!("the plan has no `[[{section}]]`"));
        }
        sections
    }

    /// Refuses every key except the `valid` ones. Messages contain `place` as the table's name.
    pub fn only<'a>(
        &mut self,
        table: &DeTable<'_>,
        valid: impl IntoIterator<Item = &'a str> + Clone,
        place: &str,
    ) {
        for key in table.keys() {
            let found: &str = key.get_ref();
            if !valid.clone().into_iter().any(|valid| valid == found) {
                self.unknown(
                    key.span().start,
                    format!("{place} has no key `{found}`"),
                    found,
                    valid.clone(),
                );
            }
        }
    }

    /// Reads a section. Refuses every key except the `valid` ones.
    pub fn section<'v, 'i, 'k>(
        &mut self,
        root: &'v DeTable<'i>,
        key: &str,
        valid: impl IntoIterator<Item = &'k str> + Clone,
    ) -> Option<&'v DeTable<'i>> {
        let table = self.table(root.get(key)?, key)?;
        self.only(table, valid, &format!("[{key}]"));
        Some(table)
    }

    /// Reads a value that must be a section.
    pub fn table<'v, 'i>(&mut self, value: &'v Value<'i>, key: &str) -> Option<&'v DeTable<'i>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.refuse(value, format!("`{key}` must be a section"))
                .help_with(format!("write [{key}] and one setting a line below it"));
        }
        table
    }

    /// Reads a whole number within bounds, both included. It must fit into an `N`.
    pub fn integer<N: TryFrom<i64>>(
        &mut self,
        table: &DeTable<'_>,
        key: &str,
        low: i64,
        high: i64,
    ) -> Option<N> {
        match self.within(table.get(key)?, key, Domain::Integer(low, high), "")? {
            Level::Integer(found) => N::try_from(found).ok(),
            _ => None,
        }
    }

    /// Reads a number within bounds, both included.
    pub fn number(&mut self, table: &DeTable<'_>, key: &str, low: f64, high: f64) -> Option<f64> {
        let value = table.get(key)?;
        self.within(value, key, Domain::Number(low, high), "")?;
        as_number(value.get_ref())
    }

    /// Reads `true` or `false`.
    pub fn switch(&mut self, table: &DeTable<'_>, key: &str) -> Option<bool> {
        let found = self.within(table.get(key)?, key, Domain::Bool, "")?;
        Some(found == Level::Bool(true))
    }

    /// Reads one of these words, each with its meaning. Another one is refused with `message`.
    pub(super) fn word<T: Copy>(
        &mut self,
        table: &DeTable<'_>,
        key: &str,
        words: &[(&str, T)],
        message: impl FnOnce(&str) -> String,
    ) -> Option<T> {
        let value = table.get(key)?;
        let text = self.text_of(value, key)?;
        let found = words.iter().find(|(word, _)| *word == text);
        if found.is_none() {
            let valid = words.iter().map(|(word, _)| *word);
            self.unknown(value.span().start, message(&text), &text, valid);
        }
        found.map(|(_, meaning)| *meaning)
    }

    /// Reads a time, written with its unit.
    pub fn time(&mut self, table: &DeTable<'_>, key: &str, rule: &'static str) -> Option<Duration> {
        match self.within(table.get(key)?, key, Domain::Text(rule), "")? {
            Level::Text(text) => keys::time(&text, Duration::ZERO),
            _ => None,
        }
    }

    /// Reads text under a key.
    pub fn string(&mut self, table: &DeTable<'_>, key: &str) -> Option<String> {
        let value = table.get(key)?;
        self.text_of(value, key)
    }

    /// Reads a value that must be text.
    pub fn text_of(&mut self, value: &Value<'_>, key: &str) -> Option<String> {
        let text = value.get_ref().as_str().map(str::to_owned);
        if text.is_none() {
            self.refuse(value, format!("`{key}` must be text"))
                .help_with("write it in double quotes");
        }
        text
    }

    /// Reads a name, which becomes part of labels and paths.
    pub fn name(&mut self, value: &Value<'_>) -> Option<String> {
        let name = self.text_of(value, "name")?;
        let fits = !name.is_empty()
            && name.len() <= 60
            && !name.starts_with(['-', '.'])
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_.+".contains(c));
        if !fits {
            self.refuse(
                value,
                "a name is up to 60 letters, digits and -_.+ and does not start with - or .",
            );
            return None;
        }
        Some(name)
    }

    /// Reads a value and checks it against the domain of its parameter.
    pub fn level(&mut self, value: &Value<'_>, parameter: &Parameter) -> Option<Level> {
        self.within(value, parameter.key, parameter.domain, parameter.help)
    }

    /// Reads the value of a key and checks it against a domain. `help` is the remedy for another one; empty: none.
    fn within(
        &mut self,
        value: &Value<'_>,
        key: &str,
        domain: Domain,
        help: &str,
    ) -> Option<Level> {
        let level = match value.get_ref() {
            DeValue::Boolean(value) => Some(Level::Bool(*value)),
            DeValue::Integer(_) => as_integer(value.get_ref()).map(Level::Integer),
            DeValue::Float(_) => as_number(value.get_ref()).map(Level::Number),
            DeValue::String(text) => Some(Level::Text(text.to_string())),
            _ => None,
        };
        if level.as_ref().is_some_and(|level| accepts(domain, level)) {
            return level;
        }
        let message = format!("`{key}` must be {}", describe(domain));
        match (&level, domain) {
            (Some(Level::Text(found)), Domain::Choice(choices)) => {
                self.unknown(value.span().start, message, found, choices.iter().copied());
            }
            (_, Domain::Text(rule)) if keys::shortest(rule).is_some() => {
                self.refuse(value, message).help_with(
                    "write it as text with a unit, such as \"10s\", \"500ms\" or \"1h30m\"",
                );
            }
            _ => {
                let complaint = self.refuse(value, message);
                if !help.is_empty() {
                    complaint.help_with(help);
                }
            }
        }
        None
    }

    /// Reads the levels of the factor `key`, a list of distinct values. Returns `None` without a complaint when the
    /// value is no list.
    pub fn levels(
        &mut self,
        value: &Value<'_>,
        key: &str,
        mut level: impl FnMut(&mut Self, &Value<'_>) -> Option<Level>,
    ) -> Option<Vec<Level>> {
        let array = value.get_ref().as_array()?;
        let mut levels = Vec::new();
        for item in array {
            let Some(level) = level(self, item) else {
                continue;
            };
            if levels.contains(&level) {
                self.refuse(
                    item,
                    format!("factor `{key}` has the level `{level}` twice"),
                );
            }
            levels.push(level);
        }
        if array.is_empty() {
            self.refuse(value, format!("factor `{key}` has no levels"));
        }
        Some(levels)
    }

    /// Adds a complaint about `found`, with the `valid` words as the remedy.
    pub fn unknown<'v>(
        &mut self,
        offset: usize,
        message: impl Into<String>,
        found: &str,
        valid: impl IntoIterator<Item = &'v str>,
    ) {
        if let Some(diagnostic) = self.complain(offset, message).0 {
            *diagnostic = diagnostic.clone().nearest(found, valid);
        }
    }

    /// Adds a complaint about a value.
    pub fn refuse(&mut self, value: &Value<'_>, message: impl Into<String>) -> Complaint<'_> {
        self.complain(value.span().start, message)
    }

    /// Adds a complaint about the text at a byte offset.
    pub fn complain(&mut self, offset: usize, message: impl Into<String>) -> Complaint<'_> {
        if self.found.len() >= MAXIMUM_COMPLAINTS {
            self.more += 1;
            return Complaint(None);
        }
        self.found.push(Diagnostic::at(self.text, offset, message));
        Complaint(self.found.last_mut())
    }
}

/// A new diagnostic, to which a remedy can be added.
pub struct Complaint<'a>(Option<&'a mut Diagnostic>);

impl Complaint<'_> {
    /// Adds the remedy.
    pub fn help_with(self, help: impl Into<String>) {
        if let Some(diagnostic) = self.0 {
            diagnostic.help = Some(help.into());
        }
    }
}

/// The values of a table's own keys.
pub(super) struct Own {
    keys: &'static [Parameter],
    given: Settings,
}

impl Own {
    fn key(&self, name: &str) -> &'static Parameter {
        const NONE: &Parameter = &Parameter::unset("", Domain::Bool);
        let mut keys = self.keys.iter();
        keys.find(|key| key.key == name).unwrap_or(NONE)
    }

    /// Whether the table has a valid value of the key.
    pub fn has(&self, name: &str) -> bool {
        self.given.0.contains_key(name)
    }

    /// The value of a key by `of`; `None` where the table lacks it.
    pub fn given<T>(&self, name: &str, of: fn(&Self, &str) -> T) -> Option<T> {
        self.has(name).then(|| of(self, name))
    }

    pub fn count<N: TryFrom<i64> + Default>(&self, name: &str) -> N {
        let count = self.key(name).integer(&self.given);
        N::try_from(count).unwrap_or_default()
    }

    pub fn number(&self, name: &str) -> f64 {
        self.key(name).number(&self.given)
    }

    pub fn text(&self, name: &str) -> &str {
        self.key(name).text(&self.given)
    }

    pub fn time(&self, name: &str) -> Duration {
        keys::time(self.text(name), Duration::ZERO).unwrap_or_default()
    }
}

/// The text under a key, if it is one.
pub(super) fn text<'v>(table: &'v DeTable<'_>, key: &str) -> Option<&'v str> {
    table.get(key)?.get_ref().as_str()
}

/// The table under a key, if it is one.
pub(super) fn table<'v, 'i>(table: &'v DeTable<'i>, key: &str) -> Option<&'v DeTable<'i>> {
    table.get(key)?.get_ref().as_table()
}

/// The sections of a name, each with its position.
pub(super) fn sections<'v, 'i>(
    root: &'v DeTable<'i>,
    name: &str,
) -> impl Iterator<Item = (&'v Value<'i>, &'v DeTable<'i>)> + use<'v, 'i> {
    let array = root.get(name).and_then(|value| value.get_ref().as_array());
    let all = array.into_iter().flatten();
    all.filter_map(|value| Some((value, value.get_ref().as_table()?)))
}

/// Returns every leaf with its dotted key and offset. `link.mtu = 1` and `[link] mtu = 1` have the same key.
pub fn flatten<'v, 'i>(table: &'v DeTable<'i>) -> Vec<(String, usize, &'v Value<'i>)> {
    let mut leaves = Vec::new();
    let mut open = vec![(String::new(), table)];
    while let Some((prefix, table)) = open.pop() {
        for (key, value) in table {
            let full = format!("{prefix}{}", key.get_ref());
            match value.get_ref() {
                DeValue::Table(inner) => open.push((format!("{full}."), inner)),
                _ => leaves.push((full, key.span().start, value)),
            }
        }
    }
    leaves
}

pub(super) fn as_integer(value: &DeValue<'_>) -> Option<i64> {
    let integer = value.as_integer()?;
    i64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

pub(super) fn as_number(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Float(float) => float
            .as_str()
            .parse()
            .ok()
            .filter(|number: &f64| number.is_finite()),
        #[allow(
            clippy::cast_precision_loss,
            reason = "bounds in plans are far below 2^53"
        )]
        other => as_integer(other).map(|integer| integer as f64),
    }
}

fn accepts(domain: Domain, level: &Level) -> bool {
    match (domain, level) {
        (Domain::Bool, Level::Bool(_)) => true,
        (Domain::Integer(low, high), Level::Integer(value)) => (low..=high).contains(value),
        (Domain::Number(low, high), Level::Number(value)) => (low..=high).contains(value),
        #[allow(
            clippy::cast_precision_loss,
            reason = "bounds in plans are far below 2^53"
        )]
        (Domain::Number(low, high), Level::Integer(value)) => {
            (low..=high).contains(&(*value as f64))
        }
        (Domain::Choice(choices), Level::Text(text)) => choices.contains(&text.as_str()),
        (Domain::Text(rule), Level::Text(text)) => match keys::shortest(rule) {
            Some(least) => keys::time(text, least).is_some(),
            None => !text.contains(['\0', '\n']),
        },
        _ => false,
    }
}

fn describe(domain: Domain) -> String {
    match domain {
        Domain::Bool => "true or false".to_owned(),
        Domain::Integer(low, i64::MAX) => format!("a whole number of at least {low}"),
        Domain::Integer(low, high) => format!("a whole number from {low} to {high}"),
        Domain::Number(low, high) => format!("a number from {low} to {high}"),
        Domain::Choice(choices) => format!("one of \"{}\"", choices.join("\", \"")),
        Domain::Text(rule) if keys::shortest(rule).is_some() => rule.to_owned(),
        Domain::Text(rule) => format!("text: {rule}"),
    }
}
