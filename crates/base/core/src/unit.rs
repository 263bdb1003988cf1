// SPDX-License-Identifier: Apache-2.0
//! Units: a base, and optionally a second base that it is counted per.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

macro_rules! bases {
    ($($(#[$doc:meta])* $name:ident = $text:literal),* $(,)?) => {
        /// The quantity that is counted or measured.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Base {
            $($(#[$doc])* $name,)*
            /// Items of a workload that a plan names by a word.
            Item(Word),
        }

        impl Base {
            /// The symbol, as in `s` or `bit`.
            pub fn symbol(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                    Self::Item(word) => word.0,
                }
            }
        }

        impl FromStr for Base {
            type Err = ParseUnitError;
            fn from_str(text: &str) -> Result<Self, ParseUnitError> {
                match text {
                    $($text => Ok(Self::$name),)*
                    _ => Word::from_text(text).map(Self::Item).ok_or_else(|| ParseUnitError(text.to_owned())),
                }
            }
        }
    };
}

/// A word of ASCII letters that names items, such as `frame` or `row`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Word(&'static str);

/// The most letters of a word.
const LONGEST_WORD: usize = 24;
/// The most words of one process, which keeps each for its lifetime.
const MOST_WORDS: usize = 4096;

impl Word {
    /// A word; `None` for another text, and beyond the most words of a process.
    fn from_text(text: &str) -> Option<Self> {
        static WORDS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
        let is_word = (1..=LONGEST_WORD).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphabetic());
        if !is_word {
            return None;
        }
        // A poisoned set is whole, since each word is inserted at once.
        let mut words = WORDS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(word) = words.get(text) {
            return Some(Self(word));
        }
        if words.len() >= MOST_WORDS {
            return None;
        }
        let word: &'static str = Box::leak(text.to_owned().into_boxed_str());
        words.insert(word);
        Some(Self(word))
    }
}

bases! {
    /// A bare number, such as a ratio or a count; the metric's name names the items counted.
    One = "1",
    /// Percent; the metric's name names the whole.
    Percent = "%",
    /// Seconds.
    Second = "s",
    /// Nanoseconds.
    Nanosecond = "ns",
    /// Bits.
    Bit = "bit",
    /// Bytes.
    Byte = "B",
    /// 10^9 bytes.
    Gigabyte = "GB",
    /// Joules.
    Joule = "J",
    /// Watts.
    Watt = "W",
    /// Packets (frames).
    Packet = "packet",
    /// Requests.
    Request = "request",
    /// Operations of the workload.
    Operation = "op",
    /// Processors kept busy: CPU seconds per second.
    Core = "core",
    /// Processor cycles.
    Cycle = "cycle",
    /// Retired instructions.
    Instruction = "instruction",
    /// Cache references or misses.
    CacheEvent = "cache event",
    /// Interrupts.
    Interrupt = "interrupt",
    /// VM exits.
    Exit = "exit",
    /// Pages of memory.
    Page = "page",
}

/// A unit: a base, and optionally what it is counted per, written `base/per` (`bit/s`, `J/GB`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Unit {
    /// The quantity that is counted.
    pub base: Base,
    /// The quantity that it is counted per, if any.
    pub per: Option<Base>,
}

impl Unit {
    /// A plain unit.
    pub const fn from_base(base: Base) -> Self {
        Self { base, per: None }
    }

    /// `base` per `per`.
    pub const fn per(base: Base, per: Base) -> Self {
        Self {
            base,
            per: Some(per),
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.per {
            None => f.write_str(self.base.symbol()),
            Some(per) => write!(f, "{}/{}", self.base.symbol(), per.symbol()),
        }
    }
}

/// The text is not a known unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseUnitError(pub String);

impl fmt::Display for ParseUnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a unit", self.0)
    }
}

impl std::error::Error for ParseUnitError {}

impl FromStr for Unit {
    type Err = ParseUnitError;
    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        match text.split_once('/') {
            None => Ok(Self::from_base(text.parse()?)),
            Some((base, per)) => Ok(Self::per(base.parse()?, per.parse()?)),
        }
    }
}

impl Serialize for Unit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Unit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_word_of_letters_is_a_unit_and_stays_the_same_one() {
        let frame: Unit = "frame".parse().unwrap();
        assert_eq!(frame, "frame".parse().unwrap());
        assert_ne!(frame, "row".parse().unwrap());
        assert_eq!("row/s".parse::<Unit>().unwrap().to_string(), "row/s");
        let long = "x".repeat(25);
        for wrong in [
            "",
            "two words",
            "x1",
            "\u{1b}[31m",
            "a/",
            "/s",
            "a/b/c",
            "\u{202e}x",
            &long,
        ] {
            assert!(wrong.parse::<Unit>().is_err(), "{wrong:?}");
        }
    }
}
