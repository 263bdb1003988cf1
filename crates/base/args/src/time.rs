// SPDX-License-Identifier: Apache-2.0
//! Times with units, such as `500ms`, `10s` or `1h30m`.

use std::time::Duration;

/// A text that is no time of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    /// It is no number with a unit, or several of them.
    #[error("give a time with its unit, such as 50us, 500ms, 10s, 5m, 1h or 7d")]
    Unit,
    /// It is too short or too long.
    #[error("give a time from {0} to {1}")]
    Range(&'static str, &'static str),
    /// It is no multiple of a unit, or too long.
    #[error("give a whole number of {0}")]
    Whole(&'static str),
}

/// Parses a time.
///
/// # Errors
/// When the text is not one or more numbers with a unit each.
pub fn parse(text: &str) -> Result<Duration, TimeError> {
    let mut rest = text.trim();
    let mut sum = Duration::ZERO;
    if rest.is_empty() {
        return Err(TimeError::Unit);
    }
    while !rest.is_empty() {
        let is_number = |c: char| c.is_ascii_digit() || c == '.';
        let (number, after) = rest.split_at(rest.find(|c| !is_number(c)).unwrap_or(rest.len()));
        let (unit, after) = after.split_at(after.find(is_number).unwrap_or(after.len()));
        let number: f64 = number.parse().map_err(|_| TimeError::Unit)?;
        let scale = match unit.trim() {
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return Err(TimeError::Unit),
        };
        let part = Duration::try_from_secs_f64(number * scale).map_err(|_| TimeError::Unit)?;
        sum = sum.checked_add(part).ok_or(TimeError::Unit)?;
        rest = after;
    }
    Ok(sum)
}

/// Returns a parser of times between two times.
pub fn between(
    least: &'static str,
    most: &'static str,
) -> impl Fn(&str) -> Result<Duration, TimeError> + Clone + Send + Sync + 'static {
    move |text| {
        let time = parse(text)?;
        if (parse(least)?..=parse(most)?).contains(&time) {
            Ok(time)
        } else {
            Err(TimeError::Range(least, most))
        }
    }
}

/// Parses a time as seconds.
///
/// # Errors
/// As [`parse`].
pub fn seconds(text: &str) -> Result<f64, TimeError> {
    parse(text).map(|time| time.as_secs_f64())
}

/// Parses a time as a whole number of seconds.
///
/// # Errors
/// As [`parse`], and when it has a fraction or exceeds `u32`.
pub fn whole_seconds(text: &str) -> Result<u32, TimeError> {
    whole(text, Duration::from_secs(1), "seconds")
}

/// Parses a time as a whole number of milliseconds.
///
/// # Errors
/// As [`parse`], and when it has a fraction or exceeds `u32`.
pub fn whole_milliseconds(text: &str) -> Result<u32, TimeError> {
    whole(text, Duration::from_millis(1), "milliseconds")
}

/// Parses a time as a whole number of microseconds.
///
/// # Errors
/// As [`parse`], and when it has a fraction or exceeds `u32`.
pub fn whole_microseconds(text: &str) -> Result<u32, TimeError> {
    whole(text, Duration::from_micros(1), "microseconds")
}

fn whole(text: &str, unit: Duration, name: &'static str) -> Result<u32, TimeError> {
    let time = parse(text)?;
    let number = u32::try_from(time.as_nanos() / unit.as_nanos());
    let exact = number
        .ok()
        .filter(|number| unit.checked_mul(*number) == Some(time));
    exact.ok_or(TimeError::Whole(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_numbers_with_units() {
        for (text, millis) in [
            ("500ms", 500),
            ("1.5m", 90_000),
            ("1h", 3_600_000),
            ("1h30m", 5_400_000),
            ("2 min", 120_000),
            ("7d", 604_800_000),
            ("0s", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for wrong in [
            "",
            "10",
            "s",
            "-1s",
            "1e9s",
            "1.2.3s",
            "NaNs",
            "1h30",
            "infs",
            "9999999999999999999999h",
        ] {
            assert_eq!(parse(wrong), Err(TimeError::Unit), "{wrong}");
        }
    }

    #[test]
    fn a_time_outside_its_range_is_refused_with_the_range() {
        let interval = between("100ms", "24h");
        assert_eq!(interval("24h"), Ok(Duration::from_secs(86_400)));
        for wrong in ["0s", "1ms", "25h"] {
            assert_eq!(interval(wrong), Err(TimeError::Range("100ms", "24h")));
        }
    }

    #[test]
    fn whole_numbers_of_a_unit_have_no_fraction() {
        assert_eq!(whole_microseconds("50us"), Ok(50));
        assert_eq!(whole_microseconds("1.5ms"), Ok(1500));
        assert_eq!(whole_milliseconds("2s"), Ok(2000));
        assert_eq!(whole_seconds("1m"), Ok(60));
        assert_eq!(whole_seconds("1500ms"), Err(TimeError::Whole("seconds")));
        assert_eq!(
            whole_microseconds("2h"),
            Err(TimeError::Whole("microseconds"))
        );
    }
}
