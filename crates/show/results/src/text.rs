// SPDX-License-Identifier: Apache-2.0
//! Text in tables: without control characters, and of a width in columns.

/// Text without control characters, so that no label can send terminal escapes.
pub fn clean(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// Display width of a text; the alphabets of tables have one column per character.
pub fn columns(text: &str) -> usize {
    text.chars().count()
}

/// Text filled with spaces up to a width.
pub fn pad(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(columns(text))))
}

/// Text of at most a width; a longer one ends with `…`.
pub fn cut(text: &str, width: usize) -> String {
    if columns(text) <= width {
        text.to_owned()
    } else {
        text.chars()
            .take(width.saturating_sub(1))
            .chain(['…'])
            .collect()
    }
}
