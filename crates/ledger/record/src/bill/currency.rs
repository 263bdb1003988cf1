// SPDX-License-Identifier: Apache-2.0
//! Currencies by their codes and smallest units (ISO 4217), and decimal numbers of a tariff as integers.

use serde::de::{self, Deserialize, Deserializer, Visitor};
use std::fmt;
use std::str::FromStr;

/// The codes of currencies in circulation by the number of their decimals (ISO 4217, list one).
const CODES: [(u32, &str); 4] = [
    (
        0,
        "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
    ),
    (
        2,
        "AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BGN BMD BND BOB BOV BRL BSD BTN BWP BYN BZD CAD CDF CHE CHF CHW CNY \
         COP COU CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF IDR ILS \
         INR IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR \
         MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP \
         STN SVC SYP SZL THB TJS TMT TOP TRY TTD TWD TZS UAH USD USN UYU UZS VED VES WST XCD XCG YER ZAR ZMW ZWG",
    ),
    (3, "BHD IQD JOD KWD LYD OMR TND"),
    (4, "CLF UYW"),
];

/// A currency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Currency {
    code: &'static str,
    /// The decimals of its smallest unit.
    pub decimals: u32,
}

impl Currency {
    /// The code, such as EUR.
    pub fn code(&self) -> &'static str {
        self.code
    }
}

/// A text that is no currency.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is no currency: give a code of ISO 4217, such as EUR or USD")]
pub struct NoCurrency(String);

impl FromStr for Currency {
    type Err = NoCurrency;

    fn from_str(text: &str) -> Result<Self, NoCurrency> {
        let all = CODES.into_iter().flat_map(|(decimals, codes)| {
            let codes = codes.split_whitespace();
            codes.map(move |code| Self { code, decimals })
        });
        let mut all = all.filter(|currency| currency.code == text);
        all.next().ok_or_else(|| NoCurrency(text.to_owned()))
    }
}

impl<'de> Deserialize<'de> for Currency {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// A number from 0 to `MOST` with up to `DIGITS` decimals, as an integer of its last decimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Decimal<const DIGITS: u32, const MOST: u64>(pub u64);

/// A number that is no [`Decimal`].
#[derive(Debug, thiserror::Error)]
pub enum DecimalError {
    /// Not a number, or one out of range.
    #[error("`{text}` is no number from 0 to {most}")]
    Range {
        /// The text.
        text: String,
        /// The largest number.
        most: u64,
    },
    /// More decimals.
    #[error("`{text}` has more than {digits} decimals")]
    Digits {
        /// The text.
        text: String,
        /// The number of decimals.
        digits: u32,
    },
}

impl<const DIGITS: u32, const MOST: u64> FromStr for Decimal<DIGITS, MOST> {
    type Err = DecimalError;

    /// Digits, with a decimal point and more digits.
    fn from_str(text: &str) -> Result<Self, DecimalError> {
        let range = || DecimalError::Range {
            text: text.chars().take(40).collect(),
            most: MOST,
        };
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !is_number(whole) || !is_number(part) {
            return Err(range());
        }
        let part = part.trim_end_matches('0');
        let digits = DIGITS as usize;
        if part.len() > digits {
            return Err(DecimalError::Digits {
                text: text.chars().take(40).collect(),
                digits: DIGITS,
            });
        }
        let whole: u64 = whole.parse().map_err(|_| range())?;
        let part: u64 = format!("{part:0<digits$}").parse().unwrap_or(0);
        let scale = 10_u64.pow(DIGITS);
        let value = whole
            .checked_mul(scale)
            .and_then(|whole| whole.checked_add(part));
        let most = MOST.saturating_mul(scale);
        let value = value.filter(|value| *value <= most).ok_or_else(range)?;
        Ok(Self(value))
    }
}

impl<'de, const DIGITS: u32, const MOST: u64> Deserialize<'de> for Decimal<DIGITS, MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Number<const DIGITS: u32, const MOST: u64>;
        impl<const DIGITS: u32, const MOST: u64> Visitor<'_> for Number<DIGITS, MOST> {
            type Value = Decimal<DIGITS, MOST>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a number from 0 to {MOST}")
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
                value.to_string().parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
                value.to_string().parse().map_err(E::custom)
            }

            // The shortest text of a number is the one that was written, up to 15 digits.
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Self::Value, E> {
                value.to_string().parse().map_err(E::custom)
            }
        }
        from.deserialize_any(Number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn currencies_have_their_smallest_unit() {
        let decimals = |code: &str| code.parse::<Currency>().map(|one| one.decimals).ok();
        assert_eq!(
            ["EUR", "JPY", "KWD", "eur", "EURO", "XXX", ""].map(decimals),
            [Some(2), Some(0), Some(3), None, None, None, None]
        );
        let all = CODES
            .into_iter()
            .flat_map(|(_, codes)| codes.split_whitespace());
        let mut all: Vec<&str> = all.collect();
        assert!(all.len() > 150 && all.iter().all(|code| code.len() == 3));
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn numbers_are_read_exactly_or_refused() {
        type Price = Decimal<6, 1000>;
        let read = |text: &str| {
            text.parse::<Price>()
                .map(|price| price.0)
                .map_err(|why| why.to_string())
        };
        assert_eq!(read("0.284"), Ok(284_000));
        assert_eq!(read("1000"), Ok(1_000_000_000));
        assert_eq!(read("0.0000010"), Ok(1));
        for (text, words) in [
            ("0.0000001", "more than 6 decimals"),
            ("1000.1", "from 0 to 1000"),
            ("-1", "from 0 to 1000"),
            ("NaN", "from 0 to 1000"),
            ("inf", "from 0 to 1000"),
            ("99999999999999999999999999", "from 0 to 1000"),
            (".5", "from 0 to 1000"),
            ("", "from 0 to 1000"),
        ] {
            assert!(read(text).unwrap_err().contains(words), "{text}");
        }
    }
}
