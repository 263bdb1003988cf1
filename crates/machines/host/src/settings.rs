// SPDX-License-Identifier: Apache-2.0
//! Settings: the parameters of a plan, declared by the platform, workload or host code that uses them.

use crate::HostError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// A value in a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Level {
    /// `true`, `false`.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// Any other number.
    Number(f64),
    /// Text.
    Text(String),
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(true) => f.write_str("on"),
            Self::Bool(false) => f.write_str("off"),
            Self::Integer(value) => write!(f, "{value}"),
            Self::Number(value) => write!(f, "{value}"),
            Self::Text(value) => f.write_str(value),
        }
    }
}

/// The values that a parameter accepts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Domain {
    /// `true` or `false`.
    Bool,
    /// A whole number within bounds, both included.
    Integer(i64, i64),
    /// A number within bounds, both included.
    Number(f64, f64),
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Any text that the named rule accepts (`cpu list`, `path`), checked by its owner.
    Text(&'static str),
}

/// One parameter of a platform, a workload or the host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameter {
    /// Its full dotted key, such as `vm.vcpus`, `link.mtu` or `load.rate_mbit`.
    pub key: &'static str,
    /// The accepted values.
    pub domain: Domain,
    /// The default as written in a plan; `None`: unset.
    pub default: Option<&'static str>,
    /// A one-line description, with its unit.
    pub help: &'static str,
}

impl Parameter {
    /// A parameter with a default.
    pub const fn new(key: &'static str, domain: Domain, default: &'static str) -> Self {
        let mut with = Self::unset(key, domain);
        with.default = Some(default);
        with
    }

    /// A parameter without a default.
    pub const fn unset(key: &'static str, domain: Domain) -> Self {
        Self {
            key,
            domain,
            default: None,
            help: "",
        }
    }

    /// Sets the one-line description, with its unit.
    pub const fn help(mut self, help: &'static str) -> Self {
        self.help = help;
        self
    }

    /// The text that is set, if any.
    pub fn given<'a>(&self, settings: &'a Settings) -> Option<&'a str> {
        settings.text(self.key)
    }

    /// The whole number in force: the one that is set, else the default, else 0.
    pub fn integer(&self, settings: &Settings) -> i64 {
        settings.integer(self.key, self.parsed())
    }

    /// As [`Parameter::integer`], checked against the bounds.
    ///
    /// # Errors
    /// When the number is out of bounds.
    pub fn bounded(&self, settings: &Settings) -> Result<u32, HostError> {
        let (key, value) = (self.key, self.integer(settings));
        let (low, high) = match self.domain {
            Domain::Integer(low, high) => (low, high),
            _ => (0, u32::MAX.into()),
        };
        match u32::try_from(value) {
            Ok(within) if (low..=high).contains(&value) => Ok(within),
            _ => Err(HostError::Setting(format!(
                "{key} = {value} is not within {low} and {high}"
            ))),
        }
    }

    /// The error for a text that is not one of the parameter's words.
    pub fn unknown(&self, word: &str) -> HostError {
        let words = match self.domain {
            Domain::Choice(words) => words,
            _ => &[],
        };
        let known = match words {
            [others @ .., last] if !others.is_empty() => format!("{} or {last}", others.join(", ")),
            _ => words.concat(),
        };
        let key = self.key;
        HostError::Setting(format!("{key} = {word:?} is not known; it can be {known}"))
    }

    /// The number in force: the one that is set, else the default, else 0.
    pub fn number(&self, settings: &Settings) -> f64 {
        settings.number(self.key, self.parsed())
    }

    /// The boolean in force: the one that is set, else the default, else `false`.
    pub fn bool(&self, settings: &Settings) -> bool {
        settings.bool(self.key, self.parsed())
    }

    /// The text in force: the one that is set, else the default, else an empty one.
    pub fn text<'a>(&self, settings: &'a Settings) -> &'a str {
        self.given(settings).or(self.default).unwrap_or_default()
    }

    fn parsed<T: FromStr + Default>(&self) -> T {
        let default = self.default.and_then(|text| text.parse().ok());
        default.unwrap_or_default()
    }
}

/// The levels in force for one trial, by full dotted key. Validated against [`Parameter`]s
/// before any trial starts, so that the accessors only have to apply defaults.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings(pub BTreeMap<String, Level>);

impl<K: Into<String>> FromIterator<(K, Level)> for Settings {
    fn from_iter<I: IntoIterator<Item = (K, Level)>>(levels: I) -> Self {
        let levels = levels.into_iter();
        Self(levels.map(|(key, level)| (key.into(), level)).collect())
    }
}

impl Settings {
    /// A whole number, or `default` where unset.
    pub fn integer(&self, key: &str, default: i64) -> i64 {
        match self.0.get(key) {
            Some(Level::Integer(value)) => *value,
            _ => default,
        }
    }

    /// A number, or `default` where unset.
    pub fn number(&self, key: &str, default: f64) -> f64 {
        match self.0.get(key) {
            Some(Level::Number(value)) => *value,
            #[allow(clippy::cast_precision_loss, reason = "plan values are far below 2^53")]
            Some(Level::Integer(value)) => *value as f64,
            _ => default,
        }
    }

    /// Text, if set.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.0.get(key) {
            Some(Level::Text(value)) => Some(value),
            _ => None,
        }
    }

    /// A boolean, or `default` where unset.
    pub fn bool(&self, key: &str, default: bool) -> bool {
        match self.0.get(key) {
            Some(Level::Bool(value)) => *value,
            _ => default,
        }
    }
}
