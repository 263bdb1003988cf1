//! How estimates are printed: as many digits as their interval supports, one unit for the three.

use crate::stats::Interval;
use vtax_units::{Base, Quantity, Unit};

/// An estimate in words and digits.
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
    /// `0.62 [0.60–0.64] s/GB`, leaving out what is empty.
    pub fn line(&self) -> String {
        [&self.value, &self.range, &self.unit]
            .into_iter()
            .filter(|part| !part.is_empty())
            .cloned()
            .collect::<Vec<_>>()
            .join(" ")
    }
}

/// The scale that suits the largest of `values`, so that one axis or column has one prefix.
pub fn common_scale(values: impl Iterator<Item = f64>, unit: Unit) -> (f64, String) {
    let largest = values
        .filter(|value| value.is_finite())
        .fold(0.0f64, |largest, value| largest.max(value.abs()));
    let (scale, prefix) = Quantity::new(largest, unit).scale();
    (scale, unit_name(unit, prefix))
}

/// A unit as people write it: `ms/GB`, `/s`, or nothing for a bare number.
pub fn unit_name(unit: Unit, prefix: &str) -> String {
    match (unit.base, unit.per) {
        (Base::One, None) => prefix.to_owned(),
        (Base::One, Some(per)) => format!("{prefix}/{}", per.symbol()),
        _ => format!("{prefix}{unit}"),
    }
}

/// A mean with its interval, in the unit's best prefix.
pub fn estimate(mean: f64, interval: Option<Interval>, unit: Unit) -> Shown {
    let (scale, unit) = common_scale(std::iter::once(mean), unit);
    scaled(mean, interval, scale, unit)
}

/// Beyond this factor from the estimate itself a bound says only that nothing is known.
const VAGUE: f64 = 1000.0;

/// A mean with its interval, divided by `scale`. An interval so wide that it says nothing (two
/// trials give such) is shown as that, not by its digits.
pub fn scaled(mean: f64, interval: Option<Interval>, scale: f64, unit: String) -> Shown {
    let vague = interval.is_some_and(|interval| {
        let Interval { low, high } = interval;
        mean > 0.0 && (high > mean * VAGUE || (low > 0.0 && low < mean / VAGUE))
    });
    let interval = interval.filter(|_| !vague);
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

/// A ratio, as `3.1×`, with its interval, as `[2.9–3.3]`.
pub fn ratio(value: f64, interval: Option<Interval>) -> Shown {
    let mut shown = scaled(value, interval, 1.0, String::new());
    shown.value.push('×');
    shown
}

/// A value without interval, three significant digits, with its unit.
pub fn plain(value: f64, unit: Unit) -> String {
    estimate(value, None, unit).line()
}

/// Digits after the point: down to the first significant digit of the half width, and at least
/// two significant digits of the value.
fn digits(value: f64, half: f64) -> usize {
    // A logarithm of an f64 lies within ±400.
    let place = |number: f64| number.abs().log10().floor() as i32;
    let of_value = if value == 0.0 || !value.is_finite() {
        0
    } else {
        1 - place(value)
    };
    let wanted = if half > 0.0 && half.is_finite() {
        (-place(half)).max(of_value.min(2))
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
    // "-0.0" says nothing that "0.0" does not.
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

/// A share as `2.5 %`.
pub fn percent(share: f64) -> String {
    format!("{} %", (share * 1000.0).round() / 10.0)
}

/// `1 trial`, `2 trials`.
pub fn count(n: usize, noun: &str) -> String {
    if n == 1 {
        format!("1 {noun}")
    } else {
        format!("{n} {noun}s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
