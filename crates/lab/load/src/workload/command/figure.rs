// SPDX-License-Identifier: Apache-2.0
//! Numbers in the output of a command: where each is, and its unit.

use super::super::Outcome;
use super::super::output::{garbage, number};
use regex_lite::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use vtax_core::csv::fields;
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
const SCALED: [(&str, Base, f64); 24] = [
    ("ms", Base::Second, 1e-3),
    ("us", Base::Second, 1e-6),
    ("\u{b5}s", Base::Second, 1e-6),
    ("\u{3bc}s", Base::Second, 1e-6),
    ("sec", Base::Second, 1.0),
    ("min", Base::Second, 60.0),
    ("h", Base::Second, 3600.0),
    ("KB", Base::Byte, 1e3),
    ("TB", Base::Byte, 1e12),
    ("Kbit", Base::Bit, 1e3),
    ("Kbits", Base::Bit, 1e3),
    ("Mbits", Base::Bit, 1e6),
    ("Gbits", Base::Bit, 1e9),
    ("bits", Base::Bit, 1.0),
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

/// Suffixes of a number that multiply it.
const SUFFIXES: [(&str, f64); 8] = [
    ("k", 1e3),
    ("K", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("Ki", 1024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
];

/// The unit that is read where the number stands.
pub const AUTO: &str = "auto";

/// A number that was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// The number, in the catalogue's unit.
    pub value: f64,
    /// Its unit.
    pub unit: Unit,
    /// The reason why it may be a part of another number, or in another unit.
    pub doubt: Option<String>,
}

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
    /// A number without a unit beside it, where the unit is `auto`.
    #[error("no unit that is known follows the number {0:?}, and `unit` is `auto`")]
    NoUnit(String),
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
        None => part(text).map(|(base, factor)| (Unit::from_base(base), factor)),
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
    pub fn read(&self, name: &str, output: &str) -> Outcome<Reading> {
        let found = match &self.place {
            Place::Count(count) => Ok(Found::from_value(*count)),
            Place::Json(pointer) => json(output, pointer),
            Place::Csv { column, row } => csv(output, column, row.as_deref()),
            Place::Regex(pattern) => matched(output, pattern),
        };
        let scaled = found.and_then(|found| {
            let (unit, factor) = match self.unit.as_str() {
                AUTO => known(&found.after)
                    .ok_or_else(|| FigureError::NoUnit(found.value.to_string()))?,
                text => unit(text).ok_or_else(|| FigureError::Text(text.to_owned()))?,
            };
            let doubt = found.doubt(&self.unit, unit, factor);
            Ok((found.value * factor, unit, doubt))
        });
        let (value, unit, doubt) = scaled.map_err(|cause| {
            let quoted = last_lines(output);
            garbage(
                COMMAND,
                &format!("`{name}` cannot be read: {cause}; its last lines:\n{quoted}"),
            )
        })?;
        Ok(Reading {
            value: number(COMMAND, name, Some(value))?,
            unit,
            doubt: doubt.map(|doubt| format!("`{name}` is {doubt}")),
        })
    }
}

/// A number as it stands in an output.
#[derive(Debug, Default)]
struct Found {
    value: f64,
    /// The text that follows the number up to the next blank, or the next word after a blank.
    after: String,
    /// Why it is a part of a longer number.
    part: Option<String>,
}

impl Found {
    fn from_value(value: f64) -> Self {
        Self {
            value,
            ..Self::default()
        }
    }

    /// A number in its own field, with a unit behind it or not.
    fn of_field(text: &str) -> Result<Self, FigureError> {
        let text = text.trim();
        let end = text.find(|c: char| !(c.is_ascii_digit() || ".,+-eE".contains(c)));
        let (number, after) = match end {
            // The letter of an exponent belongs to the number only if digits follow.
            Some(end) if parsed(&text[..end]).is_ok() => text.split_at(end),
            _ => (text, ""),
        };
        Ok(Self {
            value: parsed(number)?,
            after: after.trim().to_owned(),
            part: None,
        })
    }

    /// Why the number may be wrong in a plan's unit.
    fn doubt(&self, named: &str, unit: Unit, factor: f64) -> Option<String> {
        if let Some(part) = &self.part {
            return Some(part.clone());
        }
        let (other, other_factor) = known(&self.after)?;
        let is_count = other == Unit::from_base(Base::One) && other_factor != 1.0;
        let is_scaled = is_count || other == unit && other_factor != factor;
        let is_percent = self.after == "%" && unit != Unit::from_base(Base::Percent);
        (named != AUTO && (is_scaled || is_percent)).then(|| {
            format!(
                "read in {named}, and `{}` follows it: `unit = \"auto\"` reads the unit that stands there",
                self.after
            )
        })
    }
}

/// The unit of a word behind a number; `None` for a word that is none.
fn known(word: &str) -> Option<(Unit, f64)> {
    let suffix = SUFFIXES.iter().find(|(suffix, _)| *suffix == word);
    if let Some((_, factor)) = suffix {
        return Some((Unit::from_base(Base::One), *factor));
    }
    let (unit, factor) = unit(word)?;
    let is_named = |base: Base| matches!(base, Base::Item(_));
    (!is_named(unit.base) && !unit.per.is_some_and(is_named)).then_some((unit, factor))
}

fn parsed(text: &str) -> Result<f64, FigureError> {
    // Some programs write 12,345.6.
    let plain = text.trim().replace(',', "");
    plain
        .parse()
        .map_err(|_| FigureError::Text(text.to_owned()))
}

fn json(output: &str, pointer: &str) -> Result<Found, FigureError> {
    let of_lines = || {
        let mut lines = output.lines().rev();
        lines.find_map(|line| serde_json::from_str::<Value>(line).ok())
    };
    let document = serde_json::from_str(output).ok().or_else(of_lines);
    let document = document.ok_or(FigureError::Json)?;
    match document.pointer(pointer) {
        Some(Value::Number(number)) => number
            .as_f64()
            .map(Found::from_value)
            .ok_or_else(|| FigureError::Text(number.to_string())),
        Some(Value::String(text)) => Found::of_field(text),
        Some(_) => Err(FigureError::Value(pointer.to_owned())),
        None => Err(FigureError::Nothing(pointer.to_owned())),
    }
}

fn csv(output: &str, column: &str, row: Option<&str>) -> Result<Found, FigureError> {
    let trimmed = |line: &str| -> Vec<String> {
        let fields = fields(line).into_iter();
        fields.map(|field| field.trim().to_owned()).collect()
    };
    let mut lines = output.lines().map(trimmed);
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
    Found::of_field(field.ok_or_else(|| FigureError::Field(column.to_owned()))?)
}

fn matched(output: &str, pattern: &str) -> Result<Found, FigureError> {
    let last = regex(pattern)?.captures_iter(output).last();
    let missing = || FigureError::Match(pattern.to_owned());
    let captures = last.ok_or_else(missing)?;
    let (whole, group) = (captures.get(0), captures.get(1));
    let (whole, group) = whole.zip(group).ok_or_else(missing)?;
    let before = output.get(..group.start()).unwrap_or_default();
    let after = output.get(group.end()..).unwrap_or_default();
    // What the expression itself has beside the number is what the plan expects there.
    let goes_on = group.end() == whole.end() && continues(after);
    let began = group.start() == whole.start() && {
        let mut back = before.chars().rev();
        match back.next() {
            Some('.' | ',') => back.next().is_some_and(|c| c.is_ascii_digit()),
            Some(c) => c.is_ascii_digit(),
            None => false,
        }
    };
    let start = before.rfind(char::is_whitespace).map_or(0, |at| at + 1);
    let end = after.find(char::is_whitespace).unwrap_or(after.len());
    let longer = || output.get(start..group.end() + end).unwrap_or_default();
    let blank = after.strip_prefix(' ').unwrap_or(after);
    let word = blank.split(|c: char| c.is_whitespace() || ",;)]".contains(c));
    Ok(Found {
        value: parsed(group.as_str())?,
        after: if group.end() == whole.end() {
            word.into_iter().next().unwrap_or_default().to_owned()
        } else {
            String::new()
        },
        part: (goes_on || began).then(|| format!("{}, a part of `{}`", group.as_str(), longer())),
    })
}

/// Whether a number goes on in the text behind it.
fn continues(after: &str) -> bool {
    let mut rest = after.chars();
    let is_digit = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit());
    match rest.next() {
        Some('.' | ',') => is_digit(rest.next()),
        Some('e' | 'E') => match rest.next() {
            Some('+' | '-') => is_digit(rest.next()),
            other => is_digit(other),
        },
        other => is_digit(other),
    }
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

    fn reading(place: Place, unit: &str, output: &str) -> Outcome<Reading> {
        let figure = Figure {
            place,
            unit: unit.to_owned(),
            better: Better::Higher,
        };
        figure.read("rate", output)
    }

    fn read(place: Place, unit: &str, output: &str) -> Outcome<(f64, Unit)> {
        reading(place, unit, output).map(|read| (read.value, read.unit))
    }

    #[test]
    fn a_number_that_goes_on_and_a_unit_of_another_size_are_doubted() {
        let doubt = |pattern: &str, unit: &str, output: &str| {
            reading(Place::Regex(pattern.to_owned()), unit, output)
                .unwrap()
                .doubt
        };
        let plain = "([0-9.]+)";
        let units = doubt(plain, "ms", "Latency 980.00us").unwrap();
        assert!(units.contains("read in ms, and `us` follows it"), "{units}");
        assert!(doubt(plain, "ms", "Latency 980.00 us").is_some());
        assert!(
            doubt("rate: ([0-9]+)", "1", "rate: 12,345.6")
                .unwrap()
                .contains("12, a part of `12,345.6`")
        );
        assert!(
            doubt("rate: ([0-9.]+)", "1", "rate: 1.2e+04\n")
                .unwrap()
                .contains("1.2e+04")
        );
        assert!(doubt("rate: ([0-9.]+)", "request/s", "rate: 1.2k").is_some());
        assert!(doubt("rate: ([0-9.]+)", "1", "rate: 12%").is_some());
        assert!(doubt("([0-9]+)", "1", "12.5").is_some());
        for (pattern, unit, output) in [
            (plain, "us", "Latency 980.00us"),
            ("rate: ([0-9.]+)", "request", "rate: 12 requests in 3 s"),
            ("rate: ([0-9.]+)us", "us", "rate: 12us"),
            ("rate: ([0-9.,]+)", "1", "rate: 12,345.6 in all"),
            ("rate: ([0-9.]+)", "%", "rate: 12%"),
            ("took ([0-9.]+)", "s", "took 3 seconds, e.g."),
            ("took ([0-9]+)", "frame", "took 3. End"),
        ] {
            assert_eq!(doubt(pattern, unit, output), None, "{output}");
        }
    }

    #[test]
    fn an_automatic_unit_is_the_one_that_stands_there() {
        let auto = |output: &str| {
            let place = Place::Regex("is +([0-9.]+)".to_owned());
            let read = reading(place, AUTO, output).map_err(|error| error.to_string())?;
            assert_eq!(read.doubt, None, "{output}");
            Ok((read.value, read.unit.to_string()))
        };
        for (output, value, unit) in [
            ("is 980.00us", 980e-6, "s"),
            ("is 980 \u{b5}s", 980e-6, "s"),
            ("is 1.5ms", 1.5e-3, "s"),
            ("is 2.5 s", 2.5, "s"),
            ("is 12.5k", 12_500.0, "1"),
            ("is 2Ki", 2048.0, "1"),
            ("is 9.4 Gbits/sec", 9.4e9, "bit/s"),
            ("is 3 MB/s", 3e6, "B/s"),
        ] {
            let (found, of) = auto(output).unwrap();
            assert!((found / value - 1.0).abs() < 1e-12, "{output}: {found}");
            assert_eq!(of, unit, "{output}");
        }
        let refused: String = auto("is 12 requests").unwrap_err();
        assert!(refused.contains("`unit` is `auto`"), "{refused}");
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
        assert_eq!(unit("frame/s").unwrap().1, 1.0);
        assert_eq!(unit("two words"), None);
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
