//! A count with its noun, in the singular or the plural.

use std::fmt::Display;

/// A count with its noun: `1 trial`, `2 trials`.
///
/// ```
/// assert_eq!(vtax_core::counted(1, "climb"), "1 climb");
/// assert_eq!(vtax_core::counted(0, "climb"), "0 climbs");
/// ```
pub fn counted<N: Display + PartialEq + From<u8> + Copy>(count: N, singular: &str) -> String {
    format!("{count} {}", noun(count, singular))
}

/// The noun alone, for a count that is printed separately: `singular`, with an `s` appended in the plural.
pub fn noun<N: PartialEq + From<u8>>(count: N, singular: &str) -> String {
    let ending = if count == N::from(1) { "" } else { "s" };
    format!("{singular}{ending}")
}
