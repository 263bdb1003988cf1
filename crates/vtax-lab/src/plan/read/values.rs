//! Values of a plan: what each must be, and what is said of one that is not.

use super::{Reader, Value};
use crate::plan::Diagnostic;
use std::time::Duration;
use toml::de::{DeTable, DeValue};
use vtax_host::settings::{Domain, Level};

impl Reader<'_> {
    pub(super) fn only<'a>(
        &mut self,
        table: &DeTable<'_>,
        valid: impl Iterator<Item = &'a str> + Clone,
        place: &str,
    ) {
        for key in table.keys() {
            let found: &str = key.get_ref();
            if !valid.clone().any(|candidate| candidate == found) {
                self.found.push(
                    Diagnostic::at(
                        self.text,
                        key.span().start,
                        format!("{place} has no key `{found}`"),
                    )
                    .nearest(found, valid.clone()),
                );
            }
        }
    }

    pub(super) fn table<'v, 'i>(
        &mut self,
        value: &'v Value<'i>,
        key: &str,
    ) -> Option<&'v DeTable<'i>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.complain(value.span().start, format!("`{key}` must be a section"))
                .help_with(format!("write [{key}] and one setting a line below it"));
        }
        table
    }

    pub(super) fn integer(
        &mut self,
        table: &DeTable<'_>,
        key: &str,
        low: i64,
        high: i64,
    ) -> Option<i64> {
        let value = table.get(key)?;
        let found = as_integer(value.get_ref()).filter(|found| (low..=high).contains(found));
        if found.is_none() {
            let bound = if high == i64::MAX {
                format!("of at least {low}")
            } else {
                format!("from {low} to {high}")
            };
            self.complain(
                value.span().start,
                format!("`{key}` must be a whole number {bound}"),
            );
        }
        found
    }

    pub(super) fn number(
        &mut self,
        table: &DeTable<'_>,
        key: &str,
        low: f64,
        high: f64,
    ) -> Option<f64> {
        let value = table.get(key)?;
        let found = as_number(value.get_ref()).filter(|found| (low..=high).contains(found));
        if found.is_none() {
            self.complain(
                value.span().start,
                format!("`{key}` must be a number from {low} to {high}"),
            );
        }
        found
    }

    pub(super) fn time(
        &mut self,
        table: &DeTable<'_>,
        key: &str,
        least: Duration,
    ) -> Option<Duration> {
        let value = table.get(key)?;
        let found = value
            .get_ref()
            .as_str()
            .and_then(|text| text.parse::<jiff::SignedDuration>().ok())
            .and_then(|span| Duration::try_from(span).ok())
            .filter(|span| *span >= least && *span <= Duration::from_secs(30 * 24 * 3600));
        if found.is_none() {
            self.complain(
                value.span().start,
                format!("`{key}` must be a time between {least:?} and 30 days"),
            )
            .help_with("write it as text with a unit, such as \"10s\", \"500ms\" or \"1h30m\"");
        }
        found
    }

    pub(super) fn string(&mut self, table: &DeTable<'_>, key: &str) -> Option<String> {
        let value = table.get(key)?;
        self.text_of(value, key)
    }

    pub(super) fn text_of(&mut self, value: &Value<'_>, key: &str) -> Option<String> {
        let text = value.get_ref().as_str().map(str::to_owned);
        if text.is_none() {
            self.complain(value.span().start, format!("`{key}` must be text"))
                .help_with("write it in double quotes");
        }
        text
    }

    /// A name: it becomes part of labels and paths.
    pub(super) fn name(&mut self, value: &Value<'_>) -> Option<String> {
        let name = self.text_of(value, "name")?;
        let fits = !name.is_empty()
            && name.len() <= 60
            && !name.starts_with(['-', '.'])
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_.+".contains(c));
        if !fits {
            self.complain(
                value.span().start,
                "a name is up to 60 letters, digits and -_.+ and does not start with - or .",
            );
            return None;
        }
        Some(name)
    }

    pub(super) fn complain(&mut self, offset: usize, message: impl Into<String>) -> Complaint<'_> {
        self.found.push(Diagnostic::at(self.text, offset, message));
        Complaint(self.found.last_mut())
    }
}

/// The diagnostic just made, to which a remedy can be added.
pub(super) struct Complaint<'a>(Option<&'a mut Diagnostic>);

impl Complaint<'_> {
    pub(super) fn help_with(self, help: impl Into<String>) {
        if let Some(diagnostic) = self.0 {
            diagnostic.help = Some(help.into());
        }
    }
}

/// `link.mtu = 1` and `[link] mtu = 1` are the same key: every leaf with its dotted key.
pub(super) fn flatten<'v, 'i>(table: &'v DeTable<'i>) -> Vec<(String, usize, &'v Value<'i>)> {
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

pub(super) fn accepts(domain: Domain, level: &Level) -> bool {
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
        (Domain::Text(_), Level::Text(text)) => !text.contains(['\0', '\n']),
        _ => false,
    }
}

pub(super) fn describe(domain: Domain) -> String {
    match domain {
        Domain::Bool => "true or false".to_owned(),
        Domain::Integer(low, high) => format!("a whole number from {low} to {high}"),
        Domain::Number(low, high) => format!("a number from {low} to {high}"),
        Domain::Choice(choices) => format!("one of \"{}\"", choices.join("\", \"")),
        Domain::Text(rule) => format!("text: {rule}"),
    }
}
