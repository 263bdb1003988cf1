// SPDX-License-Identifier: Apache-2.0
//! A price for each minute of the week, from windows of days and times.

use super::currency::Decimal;
use serde::Deserialize;
use serde::de::{self, Deserializer};
use std::fmt;
use std::str::FromStr;
use vtax_results::text::few;

/// The price of a kilowatt-hour, in millionths of the currency.
pub type Price = Decimal<6, 1000>;

const DAY: usize = 24 * 60;
const WEEK: usize = 7 * DAY;
const NAMES: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
/// The minute of the week in which 1970 began, a Thursday.
const EPOCH: i64 = 3 * 24 * 60;
/// Most times that an error names.
const NAMED: usize = 3;

/// A day of the week, from Monday as 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Day(usize);

impl<'de> Deserialize<'de> for Day {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let found = NAMES.iter().position(|name| *name == text);
        let wrong = || format!("`{text}` is no day: give {}", NAMES.join(", "));
        found.map(Self).ok_or_else(|| de::Error::custom(wrong()))
    }
}

/// A time of the day, in minutes from midnight to midnight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Clock(usize);

/// A text that is no [`Clock`].
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is no time of a day: give HH:MM from 00:00 to 24:00")]
pub struct NoClock(String);

/// Two digits.
fn two(text: &str) -> Option<usize> {
    let is_two = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    is_two.then(|| text.parse().ok()).flatten()
}

impl FromStr for Clock {
    type Err = NoClock;

    fn from_str(text: &str) -> Result<Self, NoClock> {
        let minutes = || {
            let (hours, minutes) = text.split_once(':')?;
            let minutes = two(minutes).filter(|minutes| *minutes < 60)?;
            let all = two(hours)? * 60 + minutes;
            (all <= DAY).then_some(Self(all))
        };
        minutes().ok_or_else(|| NoClock(text.to_owned()))
    }
}

impl<'de> Deserialize<'de> for Clock {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?
            .parse()
            .map_err(de::Error::custom)
    }
}

/// The difference of local time from UTC, in minutes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offset(i64);

/// A text that is no [`Offset`].
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is no offset from UTC: give UTC, or +HH:MM or -HH:MM up to 14 hours")]
pub struct NoOffset(String);

impl FromStr for Offset {
    type Err = NoOffset;

    fn from_str(text: &str) -> Result<Self, NoOffset> {
        if text == "UTC" {
            return Ok(Self(0));
        }
        let minutes = || {
            let (sign, rest) = match text.strip_prefix('+') {
                Some(rest) => (1, rest),
                None => (-1, text.strip_prefix('-')?),
            };
            let Clock(minutes) = rest.parse().ok()?;
            let minutes = i64::try_from(minutes).ok()?;
            (minutes <= 14 * 60).then_some(Self(sign * minutes))
        };
        minutes().ok_or_else(|| NoOffset(text.to_owned()))
    }
}

impl<'de> Deserialize<'de> for Offset {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?
            .parse()
            .map_err(de::Error::custom)
    }
}

/// A window with its price.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// The days on which it begins; every day without them.
    days: Option<Vec<Day>>,
    /// Its begin.
    from: Clock,
    /// Its end, on the next day where it is before the begin.
    to: Clock,
    /// The price of a kilowatt-hour.
    price: Price,
}

/// A fault of windows.
#[derive(Debug, PartialEq, Eq)]
pub enum WeekError {
    /// A window without a minute.
    Empty {
        /// The number of the window.
        window: usize,
    },
    /// Minutes in two windows.
    Twice {
        /// The number of the second window.
        window: usize,
        /// The minutes in words.
        when: String,
    },
    /// Minutes in no window.
    Gap {
        /// The number of the minutes.
        minutes: usize,
        /// The minutes in words.
        when: String,
    },
}

impl WeekError {
    /// The window that is at fault; `None` where no window is.
    pub fn window(&self) -> Option<usize> {
        match self {
            Self::Empty { window } | Self::Twice { window, .. } => Some(*window),
            Self::Gap { .. } => None,
        }
    }
}

impl fmt::Display for WeekError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty { .. } => f.write_str(
                "this window has no minute: give days, and `from` and `to` that differ (00:00 to 24:00 is a day)",
            ),
            Self::Twice { when, .. } => {
                write!(f, "this window and one before it both have a price for {when}")
            }
            Self::Gap { minutes, when } => {
                write!(f, "no window has a price for {minutes} minutes of the week: {when}")
            }
        }
    }
}

/// A price for each minute of the week.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Week {
    offset: Offset,
    prices: Vec<Price>,
}

impl Week {
    /// One price for all minutes.
    pub fn flat(price: Price) -> Self {
        Self {
            offset: Offset::default(),
            prices: vec![price; WEEK],
        }
    }

    /// The prices of windows in a local time.
    ///
    /// # Errors
    /// When a minute of the week is in no window or in two.
    pub fn of_windows<'a>(
        offset: Offset,
        windows: impl IntoIterator<Item = &'a Window>,
    ) -> Result<Self, WeekError> {
        let mut prices: Vec<Option<Price>> = vec![None; WEEK];
        for (number, window) in windows.into_iter().enumerate() {
            let every: Vec<Day> = (0..NAMES.len()).map(Day).collect();
            let days = window.days.as_ref().unwrap_or(&every);
            let (Clock(from), Clock(to)) = (window.from, window.to);
            let end = if to < from { to + DAY } else { to };
            let mut taken = Vec::new();
            let mut is_empty = true;
            for Day(day) in days {
                for minute in from..end {
                    is_empty = false;
                    let at = (day * DAY + minute) % WEEK;
                    match prices.get_mut(at) {
                        Some(price @ None) => *price = Some(window.price),
                        _ => taken.push(at),
                    }
                }
            }
            if is_empty {
                return Err(WeekError::Empty { window: number });
            }
            if !taken.is_empty() {
                taken.sort_unstable();
                taken.dedup();
                return Err(WeekError::Twice {
                    window: number,
                    when: words(&taken),
                });
            }
        }
        let gaps = prices
            .iter()
            .enumerate()
            .filter(|(_, price)| price.is_none());
        let gaps: Vec<usize> = gaps.map(|(at, _)| at).collect();
        if !gaps.is_empty() {
            return Err(WeekError::Gap {
                minutes: gaps.len(),
                when: words(&gaps),
            });
        }
        Ok(Self {
            offset,
            prices: prices.into_iter().flatten().collect(),
        })
    }

    /// The price at a time, in milliseconds since 1970.
    pub fn at(&self, milliseconds: i64) -> Price {
        let minute = milliseconds.div_euclid(60_000);
        let local = minute.saturating_add(EPOCH + self.offset.0);
        let local = usize::try_from(local.rem_euclid(7 * 24 * 60));
        let price = local.ok().and_then(|at| self.prices.get(at));
        price.copied().unwrap_or(Decimal(0))
    }
}

/// Ascending minutes of the week in words, such as `mon 06:00 to 07:30`.
fn words(minutes: &[usize]) -> String {
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for at in minutes {
        match spans.last_mut() {
            Some((_, end)) if *end == *at => *end += 1,
            _ => spans.push((*at, at + 1)),
        }
    }
    let time = |at: usize| format!("{:02}:{:02}", at / 60, at % 60);
    let words = spans.into_iter().map(|(from, to)| {
        let day = |at: usize| NAMES.get(at / DAY).copied().unwrap_or("");
        // Midnight is the end of the day that ends.
        let last = day(to - 1);
        let end = (to - 1) % DAY + 1;
        let end = if last == day(from) {
            time(end)
        } else {
            format!("{last} {}", time(end))
        };
        format!("{} {} to {end}", day(from), time(from % DAY))
    });
    few(&words.collect::<Vec<_>>(), NAMED, ", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(days: &[&str], from: &str, to: &str, price: u64) -> Window {
        let day = |name: &&str| Day(NAMES.iter().position(|other| other == name).unwrap());
        Window {
            days: (!days.is_empty()).then(|| days.iter().map(day).collect()),
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
            price: Decimal(price),
        }
    }

    fn week(windows: &[Window]) -> Result<Week, String> {
        Week::of_windows("+01:00".parse().unwrap(), windows).map_err(|why| why.to_string())
    }

    fn price(week: &Week, time: &str) -> u64 {
        week.at(time.parse::<jiff::Timestamp>().unwrap().as_millisecond())
            .0
    }

    #[test]
    fn a_window_that_passes_midnight_belongs_to_the_day_on_which_it_begins() {
        let days = ["mon", "tue", "wed", "thu", "fri"];
        let week = week(&[
            window(&days, "22:00", "06:00", 1),
            window(&days, "06:00", "22:00", 2),
            window(&["sat"], "06:00", "24:00", 3),
            window(&["sun"], "00:00", "24:00", 3),
            window(&["mon"], "00:00", "06:00", 4),
        ]);
        // Sunday's night ends at midnight, and Monday's first hours have a window of their own.
        let week = week.unwrap();
        assert_eq!(price(&week, "2026-11-30T04:59:59Z"), 4);
        assert_eq!(price(&week, "2026-11-30T05:00:00Z"), 2);
        assert_eq!(price(&week, "2026-11-30T20:59:59Z"), 2);
        assert_eq!(price(&week, "2026-11-30T21:00:00Z"), 1);
        assert_eq!(price(&week, "2026-12-05T04:59:00Z"), 1);
        assert_eq!(price(&week, "2026-12-05T05:00:00Z"), 3);
        assert_eq!(price(&week, "1969-12-31T23:00:00Z"), 1, "Thursday, 00:00");
    }

    #[test]
    fn uncovered_minutes_are_named() {
        let why = week(&[
            window(&[], "06:00", "22:00", 1),
            window(&["mon"], "22:00", "24:00", 1),
        ]);
        assert_eq!(
            why.unwrap_err(),
            "no window has a price for 3240 minutes of the week: mon 00:00 to 06:00, tue 00:00 to 06:00, tue 22:00 to \
             wed 06:00 and 5 more"
        );
        let why = week(&[
            window(&[], "00:00", "23:59", 1),
            window(&["mon"], "23:59", "24:00", 1),
        ]);
        assert!(
            why.unwrap_err()
                .contains("6 minutes of the week: tue 23:59 to 24:00, wed 23:59")
        );
    }

    #[test]
    fn minutes_of_two_windows_and_windows_without_a_minute_are_named() {
        let why = week(&[
            window(&[], "00:00", "24:00", 1),
            window(&["sun"], "23:30", "00:30", 1),
        ]);
        assert!(
            why.unwrap_err()
                .ends_with("for mon 00:00 to 00:30, sun 23:30 to 24:00")
        );
        let why = Week::of_windows(Offset(0), &[window(&[], "08:00", "08:00", 1)]);
        assert_eq!(why.unwrap_err(), WeekError::Empty { window: 0 });
        let why = week(&[window(&["mon", "mon"], "00:00", "24:00", 1)]);
        assert!(why.unwrap_err().contains("mon 00:00 to 24:00"));
    }

    #[test]
    fn offsets_and_times_are_read_or_refused() {
        let offset = |text: &str| text.parse::<Offset>().map(|Offset(minutes)| minutes).ok();
        assert_eq!(
            [
                "UTC", "+05:30", "-03:00", "+14:00", "+14:01", "1", "+1:00", "utc"
            ]
            .map(offset),
            [
                Some(0),
                Some(330),
                Some(-180),
                Some(840),
                None,
                None,
                None,
                None
            ]
        );
        let clock = |text: &str| text.parse::<Clock>().is_ok();
        assert_eq!(
            ["00:00", "24:00", "24:01", "12:60", "1:00", "+1:00", "aa:bb"].map(clock),
            [true, true, false, false, false, false, false]
        );
    }
}
