// SPDX-License-Identifier: Apache-2.0
//! Numbers in the output of a command: where each is, and its unit.

use super::super::Outcome;
use super::super::output::{garbage, number};
use regex_lite::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use vtax_core::metric::Better;
use vtax_core::{Base, Unit};

/// The most lines and characters of an output that an error quotes.
const QUOTED_LINES: usize = 12;
const QUOTED_CHARACTERS: usize = 2000;

/// The name of the command in errors.
pub const COMMAND: &str = "the command";

/// The place of a number in the output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// A JSON Pointer (RFC 6901) into the output, or into its last line that is JSON.
    Json(String),
    /// A column of a CSV table (RFC 4180) by its heading, in the first row, or in the row that begins with `row`.
    Csv {
        /// The heading.
        column: String,
        /// The first field of the row.
        row: Option<String>,
    },
    /// A regular expression, whose first group is the number. The last match in the output counts.
    Regex(String),
    /// A number that does not depend on the output.
    Count(f64),
}

/// A number that a plan reads from the output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Its place.
    pub place: Place,
    /// Its unit as the plan writes it: see [`unit()`].
    pub unit: String,
    /// The direction that is better.
    pub better: Better,
}

/// Units with a factor to one of the catalogue.
const SCALED: [(&str, Base, f64); 13] = [
    ("ms", Base::Second, 1e-3),
    ("us", Base::Second, 1e-6),
    ("min", Base::Second, 60.0),
    ("kB", Base::Byte, 1e3),
    ("MB", Base::Byte, 1e6),
    ("KiB", Base::Byte, 1024.0),
    ("MiB", Base::Byte, 1_048_576.0),
    ("GiB", Base::Byte, 1_073_741_824.0),
    ("kbit", Base::Bit, 1e3),
    ("Mbit", Base::Bit, 1e6),
    ("Gbit", Base::Bit, 1e9),
    ("mJ", Base::Joule, 1e-3),
    ("kJ", Base::Joule, 1e3),
];

/// A place that cannot hold a number, or an output without the number at its place.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum FigureError {
    /// No JSON Pointer.
    #[error("a JSON Pointer begins with `/`, such as /throughput")]
    Pointer,
    /// An expression that does not mark one part as the number.
    #[error("the expression needs one group, the number: such as `rate: ([0-9.]+)`")]
    Groups,
    /// An expression with a mistake.
    #[error("the expression is not valid: {0}")]
    Expression(String),
    /// A fixed count that is not positive.
    #[error("`count` must be a number above 0")]
    Count,
    /// A text in place of a number.
    #[error("{0:?} is not a number")]
    Text(String),
    /// An output that is no JSON.
    #[error("it did not print JSON")]
    Json,
    /// A JSON value of another type.
    #[error("the value at {0:?} of its JSON is no number")]
    Value(String),
    /// JSON without a value at the pointer.
    #[error("its JSON has nothing at {0:?}")]
    Nothing(String),
    /// A table without the column.
    #[error("no line has the heading {0:?}")]
    Heading(String),
    /// A table without the row.
    #[error("no row begins with {0:?}")]
    Row(String),
    /// A table of a heading only.
    #[error("its table has no row")]
    Empty,
    /// A row that is too short.
    #[error("the row has no field under {0:?}")]
    Field(String),
    /// An output without a match.
    #[error("nothing matches `{0}`")]
    Match(String),
}

/// Examples of units, for messages.
pub const UNITS: &str = "such as request, op, request/s, s, ms, us, B, MB/s, Mbit/s, GB, % or 1";

/// Reads a unit, and the factor by which a number in it is multiplied. `None` for an unknown one.
pub fn unit(text: &str) -> Option<(Unit, f64)> {
    let part = |text: &str| -> Option<(Base, f64)> {
        let scaled = SCALED.iter().find(|(name, ..)| *name == text);
        let scaled = scaled.map(|(_, base, factor)| (*base, *factor));
        scaled.or_else(|| Some((text.parse().ok()?, 1.0)))
    };
    match text.split_once('/') {
        None => part(text).map(|(base, factor)| (Unit::of(base), factor)),
        Some((base, per)) => {
            let ((base, factor), (per, divisor)) = (part(base)?, part(per)?);
            Some((Unit::per(base, per), factor / divisor))
        }
    }
}

/// Checks a place before anything runs.
///
/// # Errors
/// The reason why nothing can be at such a place.
pub fn check(place: &Place) -> Result<(), FigureError> {
    match place {
        Place::Json(pointer) if !pointer.is_empty() && !pointer.starts_with('/') => {
            Err(FigureError::Pointer)
        }
        Place::Regex(pattern) => {
            let regex = regex(pattern)?;
            match regex.captures_len() {
                2 => Ok(()),
                _ => Err(FigureError::Groups),
            }
        }
        Place::Count(count) if !(count.is_finite() && *count > 0.0) => Err(FigureError::Count),
        _ => Ok(()),
    }
}

/// Compiles an expression, in 1 MiB at most.
///
/// # Errors
/// Its mistake.
pub fn regex(pattern: &str) -> Result<Regex, FigureError> {
    let built = RegexBuilder::new(pattern).size_limit(1 << 20).build();
    built.map_err(|cause| FigureError::Expression(cause.to_string()))
}

impl Figure {
    /// Reads the number from an output, in the catalogue's unit.
    ///
    /// # Errors
    /// When it is not there, no number, negative or not finite; with the last lines of the output.
    pub fn read(&self, name: &str, output: &str) -> Outcome<(f64, Unit)> {
        let (unit, factor) = unit(&self.unit)
            .ok_or_else(|| garbage(COMMAND, &format!("`{}` is not a unit", self.unit)))?;
        let value = match &self.place {
            Place::Count(count) => Ok(*count),
            Place::Json(pointer) => json(output, pointer),
            Place::Csv { column, row } => csv(output, column, row.as_deref()),
            Place::Regex(pattern) => matched(output, pattern),
        };
        let value = value.map_err(|cause| {
            let quoted = last_lines(output);
            garbage(
                COMMAND,
                &format!("`{name}` cannot be read: {cause}; its last lines:\n{quoted}"),
            )
        })?;
        Ok((number(COMMAND, name, Some(value * factor))?, unit))
    }
}

fn parsed(text: &str) -> Result<f64, FigureError> {
    // Some programs write 12,345.6.
    let plain = text.trim().replace(',', "");
    plain
        .parse()
        .map_err(|_| FigureError::Text(text.to_owned()))
}

fn json(output: &str, pointer: &str) -> Result<f64, FigureError> {
    let of_lines = || {
        let mut lines = output.lines().rev();
        lines.find_map(|line| serde_json::from_str::<Value>(line).ok())
    };
    let document = serde_json::from_str(output).ok().or_else(of_lines);
    let document = document.ok_or(FigureError::Json)?;
    match document.pointer(pointer) {
        Some(Value::Number(number)) => number
            .as_f64()
            .ok_or_else(|| FigureError::Text(number.to_string())),
        Some(Value::String(text)) => parsed(text),
        Some(_) => Err(FigureError::Value(pointer.to_owned())),
        None => Err(FigureError::Nothing(pointer.to_owned())),
    }
}

fn csv(output: &str, column: &str, row: Option<&str>) -> Result<f64, FigureError> {
    let mut lines = output.lines().map(fields);
    let place = lines
        .by_ref()
        .find_map(|heading| heading.iter().position(|field| field == column))
        .ok_or_else(|| FigureError::Heading(column.to_owned()))?;
    let found = lines
        .find(|fields| match row {
            Some(row) => fields.first().is_some_and(|first| first == row),
            None => fields.len() > place,
        })
        .ok_or_else(|| match row {
            Some(row) => FigureError::Row(row.to_owned()),
            None => FigureError::Empty,
        })?;
    let field = found.get(place);
    parsed(field.ok_or_else(|| FigureError::Field(column.to_owned()))?)
}

/// The fields of one line of CSV.
fn fields(line: &str) -> Vec<String> {
    let (mut all, mut field) = (Vec::new(), String::new());
    let (mut quoted, mut rest) = (false, line.chars().peekable());
    while let Some(next) = rest.next() {
        match next {
            '"' if quoted && rest.next_if_eq(&'"').is_some() => field.push('"'),
            '"' => quoted = !quoted,
            ',' if !quoted => all.push(std::mem::take(&mut field)),
            _ => field.push(next),
        }
    }
    all.push(field);
    all.iter().map(|field| field.trim().to_owned()).collect()
}

fn matched(output: &str, pattern: &str) -> Result<f64, FigureError> {
    let last = regex(pattern)?.captures_iter(output).last();
    let group = last.and_then(|captures| captures.get(1));
    let group = group.ok_or_else(|| FigureError::Match(pattern.to_owned()))?;
    parsed(group.as_str())
}

/// The last lines of an output.
pub fn last_lines(output: &str) -> String {
    let lines: Vec<&str> = output.trim_end().lines().collect();
    let kept = lines.get(lines.len().saturating_sub(QUOTED_LINES)..);
    let text = kept.unwrap_or_default().join("\n");
    let skipped = text.chars().count().saturating_sub(QUOTED_CHARACTERS);
    text.chars().skip(skipped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(place: Place, unit: &str, output: &str) -> Outcome<(f64, Unit)> {
        let figure = Figure {
            place,
            unit: unit.to_owned(),
            better: Better::Higher,
        };
        figure.read("rate", output)
    }

    fn value(place: Place, output: &str) -> f64 {
        read(place, "1", output).unwrap().0
    }

    const REDIS: &str = "\"test\",\"rps\",\"avg_latency_ms\"\n\"SET\",\"1234.50\",\"0.4\"\n\"GET\",\"2000\",\"0.3\"\n";

    fn column(column: &str, row: Option<&str>) -> Place {
        Place::Csv {
            column: column.to_owned(),
            row: row.map(str::to_owned),
        }
    }

    #[test]
    fn a_number_is_read_from_json_csv_and_text() {
        let json = || Place::Json("/a/0/b".to_owned());
        assert_eq!(value(json(), r#"{"a":[{"b":1.5}]}"#), 1.5);
        assert_eq!(
            value(json(), "warming up\n{\"a\":[{\"b\":\"2\"}]}\nbye\n"),
            2.0
        );
        assert_eq!(value(column("rps", None), REDIS), 1234.5);
        assert_eq!(value(column("rps", Some("GET")), REDIS), 2000.0);
        assert_eq!(value(column("b,\"c", None), "a,\"b,\"\"c\"\n1, 2 \n"), 2.0);
        let regex = || Place::Regex(r"rate: +([0-9.,]+)".to_owned());
        assert_eq!(value(regex(), "rate: 1\nrate:  12,345.5 req\n"), 12_345.5);
    }

    #[test]
    fn a_number_has_its_unit_and_that_unit_s_factor() {
        let read = |unit| read(Place::Count(2.0), unit, "").unwrap();
        assert_eq!(read("request/s"), (2.0, "request/s".parse().unwrap()));
        assert_eq!(read("ms"), (0.002, "s".parse().unwrap()));
        assert_eq!(read("MB/s"), (2e6, "B/s".parse().unwrap()));
        assert_eq!(
            read("request/min"),
            (2.0 / 60.0, "request/s".parse().unwrap())
        );
        assert_eq!(unit("parsec"), None);
        assert_eq!(unit("/s"), None);
    }

    #[test]
    fn a_number_that_is_missing_is_an_error_with_the_last_lines() {
        let output: String = (0..100).map(|line| format!("line {line}\n")).collect();
        for (place, cause) in [
            (Place::Json("/a".to_owned()), "did not print JSON"),
            (column("rps", None), "no line has the heading"),
            (Place::Regex("rate (.)".to_owned()), "nothing matches"),
            (Place::Regex("(line) 99".to_owned()), "is not a number"),
        ] {
            let message = read(place, "1", &output).unwrap_err().to_string();
            assert!(message.contains(cause), "{message}");
            assert!(message.contains("line 99"), "{message}");
            assert!(!message.contains("line 50"), "{message}");
        }
        let missing = read(column("rps", Some("MSET")), "1", REDIS).unwrap_err();
        assert!(
            missing.to_string().contains("no row begins with"),
            "{missing}"
        );
        for wrong in ["-1", "NaN", "inf", "1e400"] {
            let output = format!("{{\"a\":\"{wrong}\"}}");
            assert!(
                read(Place::Json("/a".to_owned()), "1", &output).is_err(),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_place_that_cannot_be_is_refused_before_anything_runs() {
        assert!(check(&Place::Json("a".to_owned())).is_err());
        assert!(check(&Place::Regex("(".to_owned())).is_err());
        assert!(check(&Place::Regex("no group".to_owned())).is_err());
        assert!(
            check(&Place::Regex("(a{1000}){1000}".to_owned())).is_err(),
            "too large"
        );
        assert!(check(&Place::Count(0.0)).is_err());
        assert!(check(&Place::Regex("(a)".to_owned())).is_ok());
    }
}
