// SPDX-License-Identifier: Apache-2.0
//! Values of options: numbers, shares, labels and addresses, with an error for each that is refused.

use clap::builder::{PathBufValueParser, PossibleValue, TypedValueParser};
use clap::{Arg, Command};
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use vtax_lab::place::Place;
use vtax_lab::plan::{Catalogue, shipped};
use vtax_serve::Address;

/// A parser of a value whose usual texts are known. It decides what is accepted; the texts are for help and completions.
#[derive(Debug, Clone)]
pub struct Known<P> {
    parser: P,
    texts: fn() -> Vec<&'static str>,
}

pub(super) fn known<P>(parser: P, texts: fn() -> Vec<&'static str>) -> Known<P> {
    Known { parser, texts }
}

impl<P: TypedValueParser> TypedValueParser for Known<P> {
    type Value = P::Value;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<P::Value, clap::Error> {
        self.parser.parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.texts)().into_iter().map(PossibleValue::new)))
    }
}

/// The places without a name of the user's.
const PLACES: [&str; 3] = ["local", "testbed:kvm", "testbed:xen"];

/// A place; `ssh:HOST` is one, too.
pub(super) fn place() -> impl TypedValueParser<Value = Place> {
    known(Place::from_str, || PLACES.to_vec())
}

/// A plan: a file, or the name of one that is part of vtax.
pub(super) fn plan() -> impl TypedValueParser<Value = PathBuf> {
    known(PathBufValueParser::new(), plans)
}

/// The names of the plans that are part of vtax, without those of other files beside them.
fn plans() -> Vec<&'static str> {
    let is_plan = |text: &str| {
        ["\n[[platform", "\n[platform"]
            .iter()
            .any(|has| text.contains(has))
    };
    let plans = shipped::ALL.iter().filter(|(_, text)| is_plan(text));
    plans.map(|(name, _)| *name).collect()
}

/// The names that `vtax plan show` takes.
pub(super) fn files_of_plans() -> Vec<&'static str> {
    shipped::ALL.iter().map(|(name, _)| *name).collect()
}

/// The kinds of platforms.
pub(super) fn platforms() -> Vec<&'static str> {
    let platforms = Catalogue::standard().platforms.iter();
    platforms.map(|platform| platform.kind()).collect()
}

/// A text that is no value of its option.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum ValueError {
    /// No TCP address.
    #[error("give ADDRESS:PORT or PORT")]
    Socket,
    /// No share.
    #[error("`{0}` is no share: give NAME=PROCESSORS, such as web-1=0.5")]
    Share(String),
    /// No number of processors, or one out of range.
    #[error(
        "`{0}` is no number of processors from 0.01 to 4096: with less than a hundredth no guest answers"
    )]
    Processors(String),
    /// No label.
    #[error("`{0}` is no label: give NAME=VALUE")]
    Label(String),
    /// A label with a name that Prometheus does not take.
    #[error("`{0}` is no name of a label: letters, digits and _")]
    LabelName(String),
    /// A label of the exporter.
    #[error("the exporter has a label `{0}` of its own")]
    LabelTaken(String),
    /// A label without a value, or with one of several lines.
    #[error("the label `{0}` needs a value of one line")]
    LabelValue(String),
    /// No power.
    #[error("give watts, such as 58.4")]
    Watts,
    /// No width in percent, or one out of range.
    #[error("a width is 0.01 to 1000 percent, such as 5")]
    Percent,
    /// No part of a testbed.
    #[error("{0}, or `qemu`")]
    TestbedPart(String),
}

pub(super) fn socket(text: &str) -> Result<SocketAddr, ValueError> {
    match text.parse() {
        Ok(Address::Tcp(address)) => Ok(address),
        _ => Err(ValueError::Socket),
    }
}

/// The names of the exporter's own labels.
const EXPORTER_LABELS: [&str; 16] = [
    "energy_covers",
    "energy_source",
    "guest",
    "irq_accounting",
    "kind",
    "manager",
    "method",
    "number",
    "platform",
    "reason",
    "softirq_source",
    "source",
    "stage",
    "to",
    "uuid",
    "version",
];

pub(super) fn share(text: &str) -> Result<(String, f64), ValueError> {
    let (name, value) = text
        .rsplit_once('=')
        .filter(|(name, _)| !name.is_empty())
        .ok_or_else(|| ValueError::Share(text.to_owned()))?;
    Ok((name.to_owned(), processors(value)?))
}

pub(super) fn processors(text: &str) -> Result<f64, ValueError> {
    match text.parse() {
        Ok(processors) if (0.01..=4096.0).contains(&processors) => Ok(processors),
        _ => Err(ValueError::Processors(text.to_owned())),
    }
}

pub(super) fn label(text: &str) -> Result<(String, String), ValueError> {
    let label = text.split_once('=');
    let (name, value) = label.ok_or_else(|| ValueError::Label(text.to_owned()))?;
    let named = name.to_owned();
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(is_word)
        && !name.starts_with("__");
    if !is_name {
        return Err(ValueError::LabelName(named));
    }
    if EXPORTER_LABELS.contains(&name) {
        return Err(ValueError::LabelTaken(named));
    }
    if value.is_empty() || value.chars().any(char::is_control) {
        return Err(ValueError::LabelValue(named));
    }
    Ok((named, value.to_owned()))
}

/// Parses a half width in percent as a share of 1.
pub(super) fn percent(text: &str) -> Result<f64, ValueError> {
    let number: Option<f64> = text.trim_end_matches([' ', '%']).parse().ok();
    let is_width = |percent: &f64| (0.01..=1000.0).contains(percent);
    let width = number.filter(is_width).map(|percent| percent / 100.0);
    width.ok_or(ValueError::Percent)
}

pub(super) fn watts(text: &str) -> Result<f64, ValueError> {
    match text.parse::<f64>() {
        Ok(watts) if (0.0..=1e5).contains(&watts) => Ok(watts),
        _ => Err(ValueError::Watts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_a_name_that_is_free_and_a_value() {
        let rack = ("rack".to_owned(), "a=1".to_owned());
        assert_eq!(label("rack=a=1"), Ok(rack));
        for wrong in [
            "rack",
            "=1",
            "9=1",
            "a-b=1",
            "__name__=1",
            "guest=1",
            "a=",
            "a=1\n",
        ] {
            assert!(label(wrong).is_err(), "{wrong}");
        }
    }
}
