// SPDX-License-Identifier: Apache-2.0
//! What a load printed, and the figures that a workload's file reads from it.

use super::super::command::figure::regex;
use super::super::output::{figure, garbage, json, number, positive, text};
use super::super::{Lateness, Outcome};
use super::expression::{Scope, Value};
use super::report;
use crate::generator::report::Times;
use hdrhistogram::Histogram;
use serde::Deserialize;
use std::collections::BTreeMap;
use vtax_host::HostError;

/// The form of the output.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Format {
    /// Lines of text.
    #[default]
    Text,
    /// One JSON document.
    Json,
    /// The report of a load generator of vtax in open loop. Its numbers have names that begin with `report.`, and its
    /// latencies are `p50`, `p90`, `p99`, `p999`, `max` and `mean`.
    Open,
    /// The same, in closed loop.
    Closed,
}

/// The output of the load.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Output {
    format: Format,
    /// An expression whose first group is the part that counts; without a match the whole output does.
    part: Option<String>,
    /// The error where that part is missing.
    part_missing: Option<String>,
    /// The name of a report's histogram in results; none: it is left out.
    histogram: Option<String>,
    /// Whether the lateness of the generator counts.
    late: bool,
}

/// A figure of the output, or one that is computed from others. Exactly one of the first seven fields says how.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Figure {
    /// A JSON pointer (RFC 6901) with expressions in braces; `/[name=word]` is the element of an array whose member
    /// `name` is that word. A text is a text, as are `true` and `false`, and an array or an object is the number of its members.
    json: Option<String>,
    /// A regular expression whose first group is the number; the last match counts.
    regex: Option<String>,
    /// An expression.
    value: Option<String>,
    /// A text with expressions in braces.
    text: Option<String>,
    /// The error where `when` holds, in place of a figure.
    refuse: Option<String>,
    /// A JSON pointer to an array of rows.
    rows: Option<String>,
    /// A regular expression whose matches are rows, and whose named groups are their columns.
    matches: Option<String>,

    /// Its name in expressions.
    name: String,
    /// Its name in messages, where it is another.
    title: Option<String>,
    /// The condition for it.
    when: Option<String>,
    /// Whether it must be above 0, as a divisor.
    positive: bool,
    /// Whether it may be missing: then it is `none`.
    optional: bool,
    /// What the number is divided by, such as 1000 for milliseconds.
    divisor: Option<f64>,

    /// The columns of JSON rows: names and pointers.
    columns: Vec<[String; 2]>,
    /// The columns that are texts, and no numbers.
    texts: Vec<String>,
    /// The condition for a row.
    only: Option<String>,
    /// Sums of an expression over the rows, by name.
    sum: BTreeMap<String, String>,
    /// The largest value of an expression over the rows, by name; 0 without rows.
    max: BTreeMap<String, String>,
    /// A histogram of the rows: its name in results, the time in seconds, and how often it occurred. Its percentiles
    /// become `p50`, `p90`, `p99` and `p999`.
    histogram: Option<[String; 3]>,
}

/// What a load printed.
pub struct Printed<'a> {
    driver: &'a str,
    text: String,
    document: serde_json::Value,
    /// The lateness of a load generator of vtax.
    pub late: Option<Lateness>,
    /// Histograms by the name of their quantity.
    pub histograms: Vec<(String, Histogram<u64>)>,
}

impl<'a> Printed<'a> {
    fn new(driver: &'a str) -> Self {
        Self {
            driver,
            text: String::new(),
            document: serde_json::Value::Null,
            late: None,
            histograms: Vec::new(),
        }
    }

    /// An output that may be a text, and JSON from its first brace on.
    pub fn from_driver(driver: &'a str, text: &str) -> Self {
        let document = text.find('{').and_then(|from| text.get(from..));
        let document = document.and_then(|document| serde_json::from_str(document).ok());
        Self {
            text: text.to_owned(),
            document: document.unwrap_or_default(),
            ..Self::new(driver)
        }
    }

    /// Reads the output of a load.
    ///
    /// # Errors
    /// When it is not of that form.
    pub fn read(
        form: &Output,
        driver: &'a str,
        raw: &[u8],
        scope: &mut Scope,
    ) -> Outcome<Printed<'a>> {
        let mut printed = Printed::new(driver);
        let mode = match form.format {
            Format::Text => {
                let all = text(driver, raw)?;
                printed.text = part(form, driver, &all)?.unwrap_or(&all).to_owned();
                return Ok(printed);
            }
            Format::Json => {
                let all = String::from_utf8_lossy(raw);
                let part = part(form, driver, &all)?;
                printed.document = json(driver, part.map_or(raw, str::as_bytes))?;
                return Ok(printed);
            }
            Format::Open => "open",
            Format::Closed => "closed",
        };
        let (report, histogram) = report::read(driver, raw, mode)?;
        report::name(&report, scope);
        let named = histogram.zip(form.histogram.clone());
        printed
            .histograms
            .extend(named.map(|(all, name)| (name, all)));
        if form.late {
            printed.late = report::lateness(&report);
        }
        Ok(printed)
    }

    /// Reads a figure, and gives its name the value.
    ///
    /// # Errors
    /// When it is missing or impossible.
    pub fn figure(&mut self, figure: &Figure, scope: &mut Scope) -> Outcome<()> {
        if !scope.holds(figure.when.as_ref())? {
            let sums = figure.sum.keys().chain(figure.max.keys());
            for name in sums.chain([&figure.name]) {
                scope.miss(name);
            }
            return Ok(());
        }
        if let Some(refuse) = &figure.refuse {
            return Err(garbage(self.driver, &scope.text(refuse)?));
        }
        if figure.rows.is_some() || figure.matches.is_some() {
            return self.rows(figure, scope);
        }
        let found = if let Some(pointer) = &figure.json {
            at(&self.document, &scope.text(pointer)?).and_then(value)
        } else if let Some(pattern) = &figure.regex {
            self::regex_number(&self.text, pattern)?
        } else if let Some(expression) = &figure.value {
            Some(scope.value(expression)?)
        } else {
            Some(
                scope
                    .text(figure.text.as_deref().unwrap_or_default())?
                    .into(),
            )
        };
        let value = self.checked(figure, found)?;
        scope.set(&figure.name, value);
        Ok(())
    }

    /// A value that is there unless it may be missing, and possible if it is a number.
    fn checked(&self, figure: &Figure, found: Option<Value>) -> Outcome<Value> {
        let title = figure.title.as_ref().unwrap_or(&figure.name);
        let given = found.filter(|value| !value.number().is_ok_and(f64::is_nan));
        match given {
            None if figure.optional => Ok(f64::NAN.into()),
            None => Err(garbage(self.driver, &format!("`{title}` is missing"))),
            Some(Value::Text(text)) if figure.optional || figure.text.is_some() => Ok(text.into()),
            Some(value) => {
                let check = if figure.positive { positive } else { number };
                let number = check(self.driver, title, value.number().ok())?;
                Ok(figure
                    .divisor
                    .map_or(value, |divisor| (number / divisor).into()))
            }
        }
    }

    /// Reads the rows of a table, and gives the names of what they add up to their values.
    fn rows(&mut self, figure: &Figure, scope: &mut Scope) -> Outcome<()> {
        let rows = match &figure.rows {
            Some(pointer) => json_rows(&self.document, &scope.text(pointer)?, &figure.columns),
            None => text_rows(
                &self.text,
                figure.matches.as_deref().unwrap_or_default(),
                &figure.texts,
            )?,
        };
        let names = figure.sum.keys().chain(figure.max.keys());
        let mut totals: BTreeMap<&String, f64> = names.map(|name| (name, 0.0)).collect();
        let mut times = Times::new();
        for columns in rows {
            let mut row = scope.clone();
            for (name, cell) in &columns {
                row.set(name, cell.clone().unwrap_or(f64::NAN.into()));
            }
            if !row.holds(figure.only.as_ref())? {
                continue;
            }
            for (name, cell) in &columns {
                if let Some(Value::Number(value)) = cell {
                    number(self.driver, name, Some(*value))?;
                }
            }
            for (name, expression) in &figure.sum {
                *totals.entry(name).or_default() += row.number(expression)?;
            }
            for (name, expression) in &figure.max {
                let (most, one) = (totals.entry(name).or_default(), row.number(expression)?);
                // One that is missing is the largest.
                if one > *most || one.is_nan() {
                    *most = one;
                }
            }
            if let Some([name, seconds, count]) = &figure.histogram {
                let of = |part| number(self.driver, name, Some(row.number(part)?));
                times.record_n(of(seconds)?, of(count)? as u64);
            }
        }
        for (name, total) in totals {
            scope.set(name, number(self.driver, name, Some(total))?);
        }
        if let Some([name, ..]) = &figure.histogram {
            let summary = times.summary();
            report::name_latency(&summary, scope);
            self.histograms.push((name.clone(), times.0));
        }
        Ok(())
    }
}

/// The part of an output that counts, where the form names one.
fn part<'a>(form: &Output, driver: &str, all: &'a str) -> Outcome<Option<&'a str>> {
    let Some(pattern) = &form.part else {
        return Ok(None);
    };
    let found = compiled(pattern)?.captures(all);
    let part = found.and_then(|found| Some(found.get(1)?.as_str()));
    match (part, &form.part_missing) {
        (None, Some(missing)) => Err(garbage(driver, missing)),
        (part, _) => Ok(part),
    }
}

fn compiled(pattern: &str) -> Outcome<regex_lite::Regex> {
    regex(pattern).map_err(|cause| HostError::Setting(format!("`{pattern}`: {cause}")))
}

fn regex_number(text: &str, pattern: &str) -> Outcome<Option<Value>> {
    let found = compiled(pattern)?.captures_iter(text).last();
    let word = found.and_then(|found| Some(found.get(1)?.as_str()));
    Ok(word.and_then(figure).map(Value::Number))
}

/// The value at a pointer.
fn at<'a>(document: &'a serde_json::Value, pointer: &str) -> Option<&'a serde_json::Value> {
    let mut steps = pointer.split('/').skip(1);
    steps.try_fold(document, |value, step| {
        let member = step
            .strip_prefix('[')
            .and_then(|step| step.strip_suffix(']'));
        match member.and_then(|member| member.split_once('=')) {
            Some((name, word)) => {
                let mut elements = value.as_array()?.iter();
                elements.find(|one| one.get(name).is_some_and(|found| found == word))
            }
            None => value.pointer(&format!("/{step}")),
        }
    })
}

/// The value of an expression that a JSON value is; `None` for null.
fn value(json: &serde_json::Value) -> Option<Value> {
    match json {
        serde_json::Value::Null => None,
        serde_json::Value::Bool(is_true) => Some(is_true.to_string().into()),
        serde_json::Value::Number(number) => number.as_f64().map(Value::Number),
        serde_json::Value::String(text) => Some(text.trim().into()),
        serde_json::Value::Array(all) => Some((all.len() as f64).into()),
        serde_json::Value::Object(all) => Some((all.len() as f64).into()),
    }
}

/// A row: the names of its columns and their values.
type Row = Vec<(String, Option<Value>)>;

fn json_rows(document: &serde_json::Value, pointer: &str, columns: &[[String; 2]]) -> Vec<Row> {
    let rows = match at(document, pointer) {
        Some(serde_json::Value::Array(rows)) => rows.iter().collect(),
        Some(serde_json::Value::Object(rows)) => rows.values().collect(),
        _ => Vec::new(),
    };
    let rows = rows.into_iter().map(|row| {
        let cell = |pointer: &str| at(row, pointer).and_then(value);
        let cells = columns.iter();
        cells
            .map(|[name, pointer]| (name.clone(), cell(pointer)))
            .collect()
    });
    rows.collect()
}

fn text_rows(text: &str, pattern: &str, texts: &[String]) -> Outcome<Vec<Row>> {
    let regex = compiled(pattern)?;
    let rows = regex.captures_iter(text).map(|found| {
        let names = regex.capture_names().flatten().map(str::to_owned);
        names
            .map(|name| {
                let cell = found.name(&name).map(|cell| cell.as_str());
                let cell = match cell {
                    Some(cell) if texts.contains(&name) => Some(cell.into()),
                    cell => cell.and_then(figure).map(Value::Number),
                };
                (name, cell)
            })
            .collect()
    });
    Ok(rows.collect())
}
