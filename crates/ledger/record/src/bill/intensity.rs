// SPDX-License-Identifier: Apache-2.0
//! Grams of CO₂e for a kilowatt-hour over time: a constant, or a series as CSV or JSON.

use super::currency::{Decimal, DecimalError};
use jiff::Timestamp;
use serde::Deserialize;
use vtax_core::csv::fields;

/// Grams of CO₂e for a kilowatt-hour, in milligrams.
pub type Grams = Decimal<3, 100_000>;

/// The most bytes of a series.
pub const MOST_BYTES: u64 = 32 << 20;

/// The columns of a series as CSV, and the keys of its entries as JSON.
const COLUMNS: [&str; 2] = ["time", "grams_per_kwh"];

/// The carbon intensity of electricity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Intensity {
    /// The same at all times.
    Fixed(Grams),
    /// Steps: each value holds from its time, in milliseconds since 1970, until the next. The last one holds as long as the one
    /// before it, and has no value.
    Series(Vec<(i64, Option<Grams>)>),
}

/// A fault of a series.
#[derive(Debug, thiserror::Error)]
pub enum SeriesError {
    /// Another header line.
    #[error(
        "line 1: give the columns time,grams_per_kwh, or a JSON array of objects with these keys"
    )]
    Header,
    /// Another number of fields.
    #[error("line {0}: give a time and a number")]
    Fields(usize),
    /// Not a time.
    #[error("entry {entry}: `{text}` is no time: give it as 2026-12-01T00:00:00Z")]
    Time {
        /// The number of the entry.
        entry: usize,
        /// The text.
        text: String,
    },
    /// Not a number.
    #[error("entry {entry}: {cause}")]
    Grams {
        /// The number of the entry.
        entry: usize,
        /// The fault.
        cause: DecimalError,
    },
    /// Times that do not rise.
    #[error("entry {0}: its time is not after the one before it")]
    Order(usize),
    /// Too few entries.
    #[error("it has fewer than two entries, so that how long one holds is not known")]
    Short,
    /// Not JSON of this shape.
    #[error("it is no JSON array of objects with time and grams_per_kwh: {0}")]
    Json(serde_json::Error),
    /// Not text.
    #[error("it is no text in UTF-8")]
    Text,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    time: String,
    grams_per_kwh: Grams,
}

impl Intensity {
    /// Reads a series, as JSON where its first character is a bracket, otherwise as CSV.
    ///
    /// # Errors
    /// A description of the first fault.
    pub fn series(bytes: &[u8]) -> Result<Self, SeriesError> {
        let text = std::str::from_utf8(bytes).map_err(|_| SeriesError::Text)?;
        let entries = if text.trim_start().starts_with(['[', '{']) {
            let entries: Vec<Entry> = serde_json::from_str(text).map_err(SeriesError::Json)?;
            let entries = entries.into_iter();
            entries
                .map(|entry| (entry.time, entry.grams_per_kwh))
                .collect()
        } else {
            csv(text)?
        };
        let mut steps: Vec<(i64, Option<Grams>)> = Vec::with_capacity(entries.len() + 1);
        for (at, (text, grams)) in (1..).zip(entries) {
            let time: Timestamp = text.parse().map_err(|_| SeriesError::Time {
                entry: at,
                text: text.chars().take(40).collect(),
            })?;
            let time = time.as_millisecond();
            if steps.last().is_some_and(|(before, _)| *before >= time) {
                return Err(SeriesError::Order(at));
            }
            steps.push((time, Some(grams)));
        }
        let [.., (before, _), (last, _)] = steps.as_slice() else {
            return Err(SeriesError::Short);
        };
        let end = last.saturating_add(last.saturating_sub(*before));
        steps.push((end, None));
        Ok(Self::Series(steps))
    }

    /// The intensity at a time, in milliseconds since 1970; `None` outside of the series.
    pub fn at(&self, milliseconds: i64) -> Option<Grams> {
        match self {
            Self::Fixed(grams) => Some(*grams),
            Self::Series(steps) => {
                let after = steps.partition_point(|(time, _)| *time <= milliseconds);
                steps.get(after.checked_sub(1)?)?.1
            }
        }
    }
}

fn csv(text: &str) -> Result<Vec<(String, Grams)>, SeriesError> {
    let mut lines = (1..).zip(text.lines());
    let header = lines.next().map(|(_, line)| fields(line));
    if header.is_none_or(|header| header != COLUMNS) {
        return Err(SeriesError::Header);
    }
    let lines = lines.filter(|(_, line)| !line.is_empty());
    let entry = |(number, line): (usize, &str)| match fields(line).as_slice() {
        [time, grams] => {
            let wrong = |cause| SeriesError::Grams {
                entry: number - 1,
                cause,
            };
            Ok((time.clone(), grams.parse().map_err(wrong)?))
        }
        _ => Err(SeriesError::Fields(number)),
    };
    lines.map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(series: &Intensity, time: &str) -> Option<u64> {
        let time: Timestamp = time.parse().unwrap();
        series.at(time.as_millisecond()).map(|grams| grams.0)
    }

    #[test]
    fn a_value_holds_until_the_next_and_the_last_one_as_long_as_the_one_before() {
        let csv = "time,grams_per_kwh\n2026-12-01T00:00:00Z,380\n2026-12-01T02:00:00+01:00,12.5\n";
        let json = r#"[{"time": "2026-12-01T00:00:00Z", "grams_per_kwh": 380},
            {"time": "2026-12-01T01:00:00Z", "grams_per_kwh": 12.5}]"#;
        for text in [csv, json, &csv.replace('\n', "\r\n")] {
            let series = Intensity::series(text.as_bytes()).unwrap();
            assert_eq!(at(&series, "2026-11-30T23:59:59Z"), None);
            assert_eq!(at(&series, "2026-12-01T00:00:00Z"), Some(380_000));
            assert_eq!(at(&series, "2026-12-01T01:59:59Z"), Some(12_500));
            assert_eq!(at(&series, "2026-12-01T02:00:00Z"), None);
        }
    }

    #[test]
    fn each_fault_is_named_with_its_place() {
        for (text, words) in [
            ("", "give the columns"),
            ("zeit,gramm\n", "give the columns"),
            (
                "time,grams_per_kwh\n2026-12-01T00:00:00Z,1\n",
                "fewer than two",
            ),
            ("time,grams_per_kwh\n1\n", "line 2"),
            ("time,grams_per_kwh\n1,1\n", "entry 1: `1` is no time"),
            (
                "time,grams_per_kwh\n2026-12-01T00:00:00Z,-1\n",
                "entry 1: `-1` is no number",
            ),
            (
                "time,grams_per_kwh\n2026-12-01T00:00:00Z,1\n2026-12-01T00:00:00Z,1\n",
                "entry 2: its time is not after",
            ),
            ("{}", "no JSON array"),
            ("[1]", "no JSON array"),
            (
                r#"[{"time": "", "grams_per_kwh": 1, "zone": "DE"}]"#,
                "unknown field `zone`",
            ),
            (
                r#"[{"time": "2026-12-01T00:00:00Z", "grams_per_kwh": 1e300}]"#,
                "no number from 0 to",
            ),
        ] {
            let why = Intensity::series(text.as_bytes()).unwrap_err().to_string();
            assert!(why.contains(words), "{text}: {why}");
        }
        assert!(Intensity::series(&[0xff]).is_err());
    }
}
