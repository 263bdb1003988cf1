// SPDX-License-Identifier: Apache-2.0
//! A value with its unit, and its format for printing.

use crate::{Base, Unit};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A value with its unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Quantity {
    /// The number, in `unit` without any prefix.
    pub value: f64,
    /// Its unit.
    pub unit: Unit,
}

impl Quantity {
    /// `value` in `unit`.
    pub const fn new(value: f64, unit: Unit) -> Self {
        Self { value, unit }
    }

    /// The scale (`1e3`) and prefix (`k`) that bring this value between 1 and 1000, where the unit takes prefixes.
    /// Separate from printing, because a table uses one scale for a whole column.
    pub fn scale(&self) -> (f64, &'static str) {
        const LARGE: [(f64, &str); 4] = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
        const SMALL: [(f64, &str); 4] = [(1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n")];
        let size = self.value.abs();
        if size == 0.0
            || !size.is_finite()
            || matches!(self.unit.base, Base::Percent | Base::Gigabyte)
        {
            return (1.0, "");
        }
        if size >= 1e3 && self.unit.base != Base::Second {
            return LARGE
                .into_iter()
                .find(|(scale, _)| size >= *scale)
                .unwrap_or((1.0, ""));
        }
        let takes_small = matches!(self.unit.base, Base::Second | Base::Joule | Base::Watt);
        if size < 1.0 && takes_small {
            return SMALL
                .into_iter()
                .find(|(scale, _)| size >= *scale)
                .unwrap_or((1e-9, "n"));
        }
        (1.0, "")
    }
}

impl fmt::Display for Quantity {
    /// Three significant digits with an SI prefix: `3.20 Gbit/s`, `12.0 ms`, `85 %`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scale, prefix) = self.scale();
        let value = self.value / scale;
        let digits = match value.abs() {
            size if size == 0.0 || !size.is_finite() => 0,
            size if size < 0.01 => 4,
            size if size < 10.0 => 2,
            size if size < 100.0 => 1,
            _ => 0,
        };
        if self.unit == Unit::from_base(Base::One) {
            return write!(f, "{value:.digits$}{prefix}");
        }
        let unit = match (self.unit.base, self.unit.per) {
            (Base::One, Some(per)) => format!("/{}", per.symbol()),
            _ => self.unit.to_string(),
        };
        write!(f, "{value:.digits$} {prefix}{unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantities_read_as_people_write_them() {
        let show = |value, unit: &str| Quantity::new(value, unit.parse().unwrap()).to_string();
        assert_eq!(show(0.0125, "s"), "12.5 ms");
        assert_eq!(show(5400.0, "s"), "5400 s");
        assert_eq!(show(941e6, "bit/s"), "941 Mbit/s");
        assert_eq!(show(0.62, "s/GB"), "620 ms/GB");
        assert_eq!(show(85.0, "%"), "85.0 %");
        assert_eq!(show(2600.0, "interrupt/s"), "2.60 kinterrupt/s");
        assert_eq!(show(0.0, "J"), "0 J");
        assert_eq!(show(f64::NAN, "J"), "NaN J");
    }

    proptest! {
        #[test]
        fn a_quantity_survives_json(value in -1e18f64..1e18) {
            let quantity = Quantity::new(value, Unit::per(Base::Joule, Base::Gigabyte));
            let text = serde_json::to_string(&quantity).unwrap();
            let back: Quantity = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(back.unit, quantity.unit);
            prop_assert!((back.value - value).abs() <= value.abs() * 1e-15);
        }

        #[test]
        fn no_text_panics_the_unit_parser(text in ".{0,40}") {
            let _ = text.parse::<Unit>();
        }
    }
}
