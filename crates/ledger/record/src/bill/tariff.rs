// SPDX-License-Identifier: Apache-2.0
//! The tariff of a bill, a file in TOML: prices of electricity and of the machine, and what both emit.
//!
//! Its keys are described in `docs/howto/bill.md`.

use super::currency::{Currency, Decimal};
use super::intensity::{Grams, Intensity};
use super::week::{Offset, Price, Week, Window};
use serde::Deserialize;
use std::ops::Range;
use std::path::PathBuf;
use toml::Spanned;

/// The most bytes of a tariff.
pub const MOST_BYTES: u64 = 1 << 20;
/// The length of a year, in nanoseconds: 365.25 days.
const YEAR: u128 = 31_557_600_000_000_000;

/// A tariff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tariff {
    /// The currency of its prices.
    pub currency: Currency,
    /// The price of electricity; `None` where it is not charged.
    pub electricity: Option<Week>,
    /// The price of an hour of the machine.
    pub machine: Option<HourPrice>,
    /// The carbon intensity of electricity.
    pub carbon: Option<Carbon>,
    /// The emissions of the machine's making and end.
    pub embodied: Option<Embodied>,
    /// The names in rows of FOCUS.
    pub focus: Option<Focus>,
}

/// The price of an hour of the machine, in millionths of the currency.
pub type HourPrice = Decimal<6, 1_000_000>;

/// The source of the carbon intensity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Carbon {
    /// A constant.
    Fixed(Grams),
    /// A file with a series, relative to the tariff's.
    File(PathBuf),
    /// The URL of a series.
    Url(String),
}

/// The emissions of a machine that do not come from its electricity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Embodied {
    /// All of them, in micrograms of CO₂e.
    micrograms: u128,
    /// The time that they are divided by, in nanoseconds.
    life: u128,
}

impl Embodied {
    /// The part of a time, in micrograms of CO₂e.
    pub fn part(&self, nanoseconds: u64) -> u128 {
        let product = self.micrograms.saturating_mul(u128::from(nanoseconds));
        super::apportion::rounded(product, self.life)
    }
}

/// The names of rows of FOCUS.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Focus {
    /// The account that is billed.
    pub account: String,
    /// Who provides the host and issues the bill.
    pub provider: String,
    /// The host.
    pub host: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    currency: Currency,
    electricity: Option<Spanned<ElectricityKeys>>,
    machine: Option<MachineKeys>,
    carbon: Option<Spanned<CarbonKeys>>,
    embodied: Option<Spanned<EmbodiedKeys>>,
    focus: Option<Spanned<Focus>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ElectricityKeys {
    price: Option<Price>,
    offset: Option<Spanned<Offset>>,
    #[serde(default)]
    window: Vec<Spanned<Window>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MachineKeys {
    price: HourPrice,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CarbonKeys {
    grams_per_kwh: Option<Grams>,
    series: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EmbodiedKeys {
    /// To the gram.
    kilograms: Decimal<3, 1_000_000>,
    years: Decimal<3, 100>,
}

/// A fault of a tariff.
#[derive(Debug, thiserror::Error)]
#[error("line {line}, column {column}: {what}")]
pub struct TariffError {
    /// Line, counted from 1.
    line: usize,
    /// Column in characters, counted from 1.
    column: usize,
    what: String,
}

impl TariffError {
    fn at(text: &str, place: Option<Range<usize>>, what: impl Into<String>) -> Self {
        let start = place.map_or(0, |place| place.start).min(text.len());
        let before = text.get(..start).unwrap_or_default();
        let line = before.rsplit('\n').next().unwrap_or_default();
        Self {
            line: before.matches('\n').count() + 1,
            column: line.chars().count() + 1,
            what: what.into(),
        }
    }
}

impl Tariff {
    /// Reads a tariff from TOML.
    ///
    /// # Errors
    /// The first fault, with its line and column.
    pub fn parse(text: &str) -> Result<Self, TariffError> {
        if text.len() as u64 > MOST_BYTES {
            let what = format!("a tariff has at most {} KiB", MOST_BYTES >> 10);
            return Err(TariffError::at(text, None, what));
        }
        let file: File = toml::from_str(text)
            .map_err(|cause| TariffError::at(text, cause.span(), cause.message().trim_end()))?;
        let tariff = Self {
            currency: file.currency,
            electricity: file.electricity.map(|keys| week(text, keys)).transpose()?,
            machine: file.machine.map(|keys| keys.price),
            carbon: file.carbon.map(|keys| carbon(text, keys)).transpose()?,
            embodied: file.embodied.map(|keys| embodied(text, keys)).transpose()?,
            focus: file.focus.map(|keys| focus(text, keys)).transpose()?,
        };
        let charges_nothing = tariff.electricity.is_none()
            && tariff.machine.is_none()
            && tariff.carbon.is_none()
            && tariff.embodied.is_none();
        if charges_nothing {
            let what = "it charges nothing: give [electricity], [machine], [carbon] or [embodied]";
            return Err(TariffError::at(text, None, what));
        }
        Ok(tariff)
    }

    /// Whether it has a price.
    pub fn has_price(&self) -> bool {
        self.electricity.is_some() || self.machine.is_some()
    }

    /// The intensity, where it is a constant.
    pub fn fixed(&self) -> Option<Intensity> {
        match &self.carbon {
            Some(Carbon::Fixed(grams)) => Some(Intensity::Fixed(*grams)),
            _ => None,
        }
    }
}

fn week(text: &str, keys: Spanned<ElectricityKeys>) -> Result<Week, TariffError> {
    let place = keys.span();
    let keys = keys.into_inner();
    match (keys.price, keys.window.as_slice()) {
        (Some(price), []) => match keys.offset {
            None => Ok(Week::flat(price)),
            Some(offset) => {
                let what = "one price at all times needs no offset: leave it out";
                Err(TariffError::at(text, Some(offset.span()), what))
            }
        },
        (None, []) => {
            let what = "give `price`, or windows as [[electricity.window]]";
            Err(TariffError::at(text, Some(place), what))
        }
        (Some(_), [window, ..]) => {
            let what = "`price` is for all times, and a window for some: give one of them";
            Err(TariffError::at(text, Some(window.span()), what))
        }
        (None, windows) => {
            let Some(offset) = keys.offset else {
                let what =
                    "windows are in local time: give `offset`, such as \"+01:00\" or \"UTC\"";
                return Err(TariffError::at(text, Some(place), what));
            };
            let all = windows.iter().map(Spanned::get_ref);
            Week::of_windows(offset.into_inner(), all).map_err(|why| {
                let window = why.window().and_then(|number| windows.get(number));
                let place = window.map_or(place, Spanned::span);
                TariffError::at(text, Some(place), why.to_string())
            })
        }
    }
}

fn carbon(text: &str, keys: Spanned<CarbonKeys>) -> Result<Carbon, TariffError> {
    let place = keys.span();
    let is_url = |series: &String| series.starts_with("http://") || series.starts_with("https://");
    match keys.into_inner() {
        CarbonKeys {
            grams_per_kwh: Some(grams),
            series: None,
        } => Ok(Carbon::Fixed(grams)),
        CarbonKeys {
            grams_per_kwh: None,
            series: Some(series),
        } if !series.is_empty() => Ok(if is_url(&series) {
            Carbon::Url(series)
        } else {
            Carbon::File(series.into())
        }),
        _ => {
            let what = "give `grams_per_kwh`, or the file or URL of a `series`, and not both";
            Err(TariffError::at(text, Some(place), what))
        }
    }
}

fn embodied(text: &str, keys: Spanned<EmbodiedKeys>) -> Result<Embodied, TariffError> {
    let place = keys.span();
    let keys = keys.into_inner();
    // Both have three decimals.
    let life = u128::from(keys.years.0) * YEAR / 1000;
    if life == 0 {
        let what = "`years` must be above 0";
        return Err(TariffError::at(text, Some(place), what));
    }
    Ok(Embodied {
        micrograms: u128::from(keys.kilograms.0) * 1_000_000,
        life,
    })
}

fn focus(text: &str, keys: Spanned<Focus>) -> Result<Focus, TariffError> {
    let place = keys.span();
    let focus = keys.into_inner();
    let all = [&focus.account, &focus.provider, &focus.host];
    if all.into_iter().any(|name| name.trim().is_empty()) {
        let what = "`account`, `provider` and `host` must not be empty";
        return Err(TariffError::at(text, Some(place), what));
    }
    Ok(focus)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WHOLE: &str = r#"
currency = "EUR"
[electricity]
offset = "+01:00"
[[electricity.window]]
from = "06:00"
to = "22:00"
price = 0.32
[[electricity.window]]
from = "22:00"
to = "06:00"
price = 0.24
[machine]
price = 0.115
[carbon]
grams_per_kwh = 363
[embodied]
kilograms = 1300
years = 5
[focus]
account = "4711"
provider = "Example"
host = "rack-1-host-7"
"#;

    #[test]
    fn a_whole_tariff_is_read() {
        let tariff = Tariff::parse(WHOLE).unwrap();
        let price = |time: &str| {
            let time: jiff::Timestamp = time.parse().unwrap();
            tariff
                .electricity
                .as_ref()
                .unwrap()
                .at(time.as_millisecond())
                .0
        };
        assert_eq!(price("2026-12-01T05:00:00Z"), 320_000);
        assert_eq!(price("2026-12-01T04:59:00Z"), 240_000);
        assert_eq!(tariff.machine, Some(Decimal(115_000)));
        // 1300 kg over five years of 31,557,600 s: 8.24 µg of each microsecond, 29.66 g of each hour.
        assert_eq!(tariff.embodied.unwrap().part(3_600_000_000_000), 29_660_050);
    }

    #[test]
    fn each_fault_is_named_with_its_line_and_column() {
        let changed = |from: &str, to: &str| {
            assert!(WHOLE.contains(from), "{from}");
            Tariff::parse(&WHOLE.replacen(from, to, 1))
                .unwrap_err()
                .to_string()
        };
        for (from, to, words) in [
            (
                "\"EUR\"",
                "\"EURO\"",
                "line 2, column 12: `EURO` is no currency",
            ),
            ("currency = \"EUR\"", "", "missing field `currency`"),
            (
                "[machine]\nprice",
                "[machine]\nprise",
                "line 14, column 1: unknown field `prise`",
            ),
            (
                "0.115",
                "-0.115",
                "line 14, column 9: `-0.115` is no number from 0 to 1000000",
            ),
            (
                "0.115",
                "\"0.115\"",
                "line 14, column 9: invalid type: string",
            ),
            ("0.115", "nan", "line 14, column 9: `NaN` is no number"),
            ("0.115", "0.00000001", "has more than 6 decimals"),
            (
                "\"+01:00\"",
                "\"CET\"",
                "line 4, column 10: `CET` is no offset",
            ),
            ("offset = \"+01:00\"", "", "windows are in local time"),
            (
                "to = \"22:00\"",
                "to = \"21:00\"",
                "no window has a price for 420 minutes of the week: mon 21:00 to 22:00",
            ),
            (
                "to = \"06:00\"",
                "to = \"07:00\"",
                "line 9, column 1: this window and one before it",
            ),
            (
                "to = \"06:00\"",
                "to = \"6\"",
                "line 11, column 6: `6` is no time",
            ),
            (
                "from = \"06:00\"",
                "days = [\"monday\"]\nfrom = \"06:00\"",
                "line 6, column 8: `monday` is no day",
            ),
            ("price = 0.32", "", "missing field `price`"),
            (
                "offset =",
                "price = 0.1\noffset =",
                "`price` is for all times",
            ),
            ("grams_per_kwh = 363", "", "give `grams_per_kwh`"),
            (
                "grams_per_kwh = 363",
                "grams_per_kwh = 363\nseries = \"a.csv\"",
                "and not both",
            ),
            ("years = 5", "years = 0", "`years` must be above 0"),
            ("\"4711\"", "\" \"", "must not be empty"),
            ("[machine]", "[machine", "line 13"),
        ] {
            let why = changed(from, to);
            assert!(why.contains(words), "{to}: {why}");
        }
        let why = Tariff::parse("currency = \"EUR\"\n")
            .unwrap_err()
            .to_string();
        assert!(why.contains("charges nothing"), "{why}");
        let why = Tariff::parse(&"#".repeat((1 << 20) + 1))
            .unwrap_err()
            .to_string();
        assert!(why.contains("1024 KiB"), "{why}");
    }

    #[test]
    fn a_series_is_a_file_or_a_url() {
        let carbon = |series: &str| {
            let text = format!("currency = \"EUR\"\n[carbon]\nseries = \"{series}\"\n");
            Tariff::parse(&text).unwrap().carbon.unwrap()
        };
        assert_eq!(carbon("grid.csv"), Carbon::File("grid.csv".into()));
        let url = "http://127.0.0.1:8080/grid.json";
        assert_eq!(carbon(url), Carbon::Url(url.to_owned()));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = Tariff::parse(&text);
        }

        #[test]
        fn no_change_of_a_tariff_panics(at in 0usize..400, by in "\\PC{0,3}") {
            let at = at.min(WHOLE.len());
            let text = format!("{}{by}{}", &WHOLE[..at], &WHOLE[at..]);
            let _ = Tariff::parse(&text);
        }
    }
}
