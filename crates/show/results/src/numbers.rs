// SPDX-License-Identifier: Apache-2.0
//! Formats estimates: as many digits as the interval supports, and one unit for the estimate and both ends.

use crate::stats::Interval;
use vtax_core::{Base, Quantity, Unit};

/// A formatted estimate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// The estimate.
    pub value: String,
    /// `[low–high]`, or empty without an interval.
    pub range: String,
    /// The unit with its prefix; empty for bare numbers.
    pub unit: String,
}

impl Shown {
    /// The estimate as one line, `0.62 [0.60–0.64] s/GB`, without empty parts.
    pub fn line(&self) -> String {
        [&self.value, &self.range, &self.unit]
            .into_iter()
            .filter(|part| !part.is_empty())
            .cloned()
            .collect::<Vec<_>>()
            .join(" ")
    }
}

/// The scale for the largest of `values`, so that one axis or column has one prefix.
pub fn common_scale(values: impl Iterator<Item = f64>, unit: Unit) -> (f64, String) {
    let largest = values
        .filter(|value| value.is_finite())
        .fold(0.0f64, |largest, value| largest.max(value.abs()));
    let (scale, prefix) = Quantity::new(largest, unit).scale();
    (scale, unit_name(unit, prefix))
}

/// The printed form of a unit: `ms/GB`, `/s`, or empty for a bare number.
pub fn unit_name(unit: Unit, prefix: &str) -> String {
    match (unit.base, unit.per) {
        (Base::One, None) => prefix.to_owned(),
        (Base::One, Some(per)) => format!("{prefix}/{}", per.symbol()),
        _ => format!("{prefix}{unit}"),
    }
}

/// Formats a mean with its interval, in the unit's best prefix.
pub fn estimate(mean: f64, interval: Option<Interval>, unit: Unit) -> Shown {
    let (scale, unit) = common_scale(std::iter::once(mean), unit);
    scaled(mean, interval, scale, unit)
}

/// Factor between estimate and bound above which the bound carries no information.
const VAGUE: f64 = 1000.0;

/// Formats a mean with its interval, divided by `scale`. An interval too wide to carry information, such as one of two
/// trials, is marked as such instead of printed.
pub fn scaled(mean: f64, interval: Option<Interval>, scale: f64, unit: String) -> Shown {
    let vague = interval.is_some_and(|interval| {
        let Interval { low, high } = interval;
        mean > 0.0 && (high > mean * VAGUE || (low > 0.0 && low < mean / VAGUE))
    });
    let interval = if vague { None } else { interval };
    let half = interval.map_or(0.0, |interval| (interval.high - interval.low) / scale / 2.0);
    let digits = digits(mean / scale, half);
    let range = interval.map(|interval| {
        format!(
            "[{}–{}]",
            number(interval.low / scale, digits),
            number(interval.high / scale, digits)
        )
    });
    Shown {
        value: number(mean / scale, digits),
        range: match range {
            Some(range) => range,
            None if vague => "[unknown]".to_owned(),
            None => String::new(),
        },
        unit,
    }
}

/// Formats a ratio, as `3.1×`, with its interval, as `[2.9–3.3]`. A value that is off 1 by more than rounding is never printed
/// as 1, because its side of 1 decides whether a difference is shown, and a positive one never as 0.
pub fn ratio(value: f64, interval: Option<Interval>) -> Shown {
    let shown = scaled(value, interval, 1.0, String::new());
    let digits = decimals(&shown.value);
    let range = match interval {
        Some(Interval { low, high }) if shown.range.contains('–') => {
            format!("[{}–{}]", sided(low, digits), sided(high, digits))
        }
        _ => shown.range,
    };
    Shown {
        value: sided(value, digits) + "×",
        range,
        unit: shown.unit,
    }
}

/// Number of digits after the decimal point of a printed number.
fn decimals(text: &str) -> usize {
    text.split_once('.').map_or(0, |(_, digits)| digits.len())
}

/// Largest distance from 1 that the rounding of sums explains.
const ROUNDING: f64 = 1e-9;

/// Formats a ratio with this many digits after the decimal point, or as many more as distinguish it from 1 and from 0.
fn sided(value: f64, digits: usize) -> String {
    let mut texts = (digits..=10).map(|digits| number(value, digits));
    let is = |text: &String, other: f64| text.parse() == Ok(other);
    texts
        .find(|text| {
            let hides_side = is(text, 1.0) && (value - 1.0).abs() > ROUNDING;
            let hides_sign = is(text, 0.0) && value > 0.0;
            !hides_side && !hides_sign
        })
        .unwrap_or_else(|| number(value, digits))
}

/// Formats a value without interval, with three significant digits and its unit.
pub fn plain(value: f64, unit: Unit) -> String {
    estimate(value, None, unit).line()
}

/// Number of digits after the decimal point: down to the first significant digit of the half width, to the second where
/// the first is 1, and at least two significant digits of the value.
fn digits(value: f64, half: f64) -> usize {
    // The decimal logarithm of an f64 lies within ±400.
    let place = |number: f64| number.abs().log10().floor() as i32;
    let of_value = if value == 0.0 || !value.is_finite() {
        0
    } else {
        1 - place(value)
    };
    let wanted = if half > 0.0 && half.is_finite() {
        // A single first digit of 1 could be rounded by half of its value.
        let first = -place(half);
        let leads_with_one = half * 10_f64.powi(first) < 1.95;
        (first + i32::from(leads_with_one)).max(of_value.min(2))
    } else {
        of_value + 1
    };
    usize::try_from(wanted.clamp(0, 6)).unwrap_or(0)
}

fn number(value: f64, digits: usize) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return "–".to_owned();
    }
    if size >= 1e7 || (size > 0.0 && size < 1e-6) {
        return format!("{value:.2e}");
    }
    let text = format!("{value:.digits$}");
    // "-0.0" is printed as "0.0".
    if text
        .trim_start_matches('-')
        .chars()
        .all(|c| c == '0' || c == '.')
    {
        text.trim_start_matches('-').to_owned()
    } else {
        text.replace('-', "−")
    }
}

/// Formats a share as `2.5 %`, with at least two significant digits.
pub fn percent(share: f64) -> String {
    let scale = if share.abs() < 0.001 { 100.0 } else { 10.0 };
    format!("{} %", (share * 100.0 * scale).round() / scale)
}

/// Formats a confidence level as `99.17 %`: with two significant digits of what is left to 100 %.
pub fn level(confidence: f64) -> String {
    let rest = 100.0 * (1.0 - confidence);
    let digits = if rest > 0.0 && rest < 10.0 {
        1.0 - rest.log10().floor()
    } else {
        0.0
    };
    let scale = 10_f64.powf(digits.min(9.0));
    format!("{} %", (100.0 * confidence * scale).round() / scale)
}

/// Formats an RFC 3339 time as `2026-11-20 14:03:00 +01:00`.
pub fn when(rfc3339: &str) -> String {
    match rfc3339.split_once('T') {
        Some((date, time)) => {
            let cut = time.find(['Z', '+', '-']).unwrap_or(time.len());
            let (clock, zone) = time.split_at(cut);
            let clock = clock.split('.').next().unwrap_or(clock);
            format!("{date} {clock} {}", if zone == "Z" { "UTC" } else { zone })
                .trim_end()
                .to_owned()
        }
        None => rfc3339.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_always_shows_on_which_side_of_1_it_and_its_interval_end() {
        let shown = |value, low, high| ratio(value, Some(Interval { low, high })).line();
        assert_eq!(shown(1.5, 1.012, 2.2), "1.5× [1.01–2.2]");
        assert_eq!(shown(1.5, 0.968, 2.2), "1.5× [0.97–2.2]");
        assert_eq!(shown(0.7, 0.4, 1.0), "0.70× [0.40–1.00]");
        assert_eq!(shown(0.7, 0.4, 0.9999), "0.70× [0.40–0.9999]");
        assert_eq!(ratio(1.0, None).line(), "1.00×");
        assert_eq!(ratio(1.0001, None).line(), "1.0001×");
        assert_eq!(ratio(0.9999999, None).line(), "0.9999999×");
        assert_eq!(shown(250.0, 200.0, 300.0), "250× [200–300]");
    }

    #[test]
    fn no_end_of_the_interval_of_a_ratio_is_printed_as_0() {
        let shown = |value, low, high| ratio(value, Some(Interval { low, high })).line();
        assert_eq!(shown(1.1, 0.016, 74.1), "1.1× [0.02–74.1]");
        assert_eq!(shown(0.5, 0.0, 2.0), "0.50× [0.00–2.00]");
    }

    #[test]
    fn a_ratio_that_is_off_1_by_the_rounding_of_its_sums_is_1() {
        assert_eq!(ratio(1.0 + 1e-14, None).line(), "1.00×");
        assert_eq!(ratio(1.000_001, None).line(), "1.000001×");
    }

    #[test]
    fn a_confidence_level_has_two_digits_of_its_rest() {
        let of = |count: f64| level(1.0 - 0.05 / count);
        let shown = [1.0, 2.0, 6.0, 18.0, 300.0, 20_000.0].map(of);
        assert_eq!(
            shown,
            [
                "95 %",
                "97.5 %",
                "99.17 %",
                "99.72 %",
                "99.983 %",
                "99.99975 %"
            ]
        );
    }

    #[test]
    fn an_interval_has_as_many_digits_as_tell_its_ends_from_the_estimate() {
        let shown = |value, low, high| ratio(value, Some(Interval { low, high })).line();
        assert_eq!(shown(1.05, 0.93, 1.17), "1.05× [0.93–1.17]");
        assert_eq!(shown(1.05, 0.9, 1.2), "1.05× [0.90–1.20]");
        assert_eq!(shown(1.05, 0.75, 1.35), "1.1× [0.8–1.4]");
        assert_eq!(shown(1.05, 1.04, 1.06), "1.050× [1.040–1.060]");
        assert_eq!(percent(0.0002), "0.02 %");
        assert_eq!(
            (percent(0.025), percent(0.02)),
            ("2.5 %".into(), "2 %".into())
        );
    }

    #[test]
    fn estimates_carry_the_digits_that_their_interval_supports() {
        let interval = |low, high| Some(Interval { low, high });
        let unit = |text: &str| text.parse().unwrap();
        assert_eq!(ratio(3.1122, interval(2.9, 3.3)).line(), "3.1× [2.9–3.3]");
        assert_eq!(
            ratio(1.0112, interval(0.97, 1.05)).line(),
            "1.01× [0.97–1.05]"
        );
        assert_eq!(
            ratio(0.0614, interval(4.34e-17, 9.58e13)).line(),
            "0.0614× [unknown]"
        );
        assert_eq!(
            estimate(0.014, interval(1e-6, 190.0), unit("s")).line(),
            "14.0 [unknown] ms"
        );
        assert_eq!(
            estimate(2.0, interval(0.0, 9.0), unit("s")).line(),
            "2.0 [0.0–9.0] s"
        );
        assert_eq!(ratio(0.31415, None).line(), "0.314×");
        assert_eq!(
            estimate(0.6204, interval(0.598, 0.641), unit("s/GB")).line(),
            "620 [598–641] ms/GB"
        );
        assert_eq!(
            estimate(941e6, interval(931e6, 951e6), unit("bit/s")).line(),
            "941 [931–951] Mbit/s"
        );
        assert_eq!(
            estimate(0.0, None, unit("interrupt/s")).line(),
            "0.0 interrupt/s"
        );
        assert_eq!(estimate(-0.001, None, unit("1")).line(), "−0.00100");
        assert_eq!(estimate(f64::NAN, None, unit("J")).line(), "– J");
        assert_eq!(plain(1e200, unit("J")), "1.00e188 TJ");
    }
}
