// SPDX-License-Identifier: Apache-2.0
//! Numbers in text: a count with its noun, and commas between thousands.

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

/// A number with commas between thousands.
///
/// ```
/// assert_eq!(vtax_core::thousands(3688), "3,688");
/// assert_eq!(vtax_core::thousands(1234.5678), "1,234.5678");
/// ```
pub fn thousands(number: impl Display) -> String {
    let text = number.to_string();
    let whole = text.find('.').unwrap_or(text.len());
    let comma = |at: usize| at > 0 && at < whole && (whole - at).is_multiple_of(3);
    let grouped = text.char_indices().flat_map(|(at, digit)| {
        let comma = comma(at).then_some(',');
        comma.into_iter().chain([digit])
    });
    grouped.collect()
}
