// SPDX-License-Identifier: Apache-2.0
//! Text from other machines and guests, cleaned for a terminal, a log or an error message.

/// The most characters of one line.
const MOST_CHARACTERS: usize = 4000;

/// The most characters of a text of several lines.
const LONGEST_TEXT: usize = 64_000;

/// One line without control characters: it cannot move a cursor, set a title or change the direction of writing.
#[must_use]
pub fn shown(line: &str) -> String {
    clean(line, MOST_CHARACTERS, |_| false)
}

/// As [`shown`], for a text that may have several lines and tabs.
#[must_use]
pub fn shown_lines(text: &str) -> String {
    clean(text, LONGEST_TEXT, |c| matches!(c, '\n' | '\t'))
}

fn clean(text: &str, most: usize, may_stay: impl Fn(char) -> bool) -> String {
    let mut shown: String = text
        .chars()
        .take(most)
        .map(|c| if may_stay(c) || !steers(c) { c } else { ' ' })
        .collect();
    if text.chars().nth(most).is_some() {
        shown.push('…');
    }
    shown
}

/// Whether a character controls the terminal: a control character (C0, C1, DEL) or one that changes the direction of
/// writing (Unicode Annex 9).
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_escape_sequence_and_a_change_of_direction_lose_their_effect_and_words_stay() {
        assert_eq!(shown("\x1b]0;OWNED\x07 Zürich"), " ]0;OWNED  Zürich");
        assert_eq!(shown("a\u{9b}2Jb\u{202e}c\nd\te"), "a 2Jb c d e");
        assert_eq!(shown_lines("a\x1b[2J\nb\tc\r"), "a [2J\nb\tc ");
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        let long = shown(&"ä".repeat(MOST_CHARACTERS + 1));
        assert_eq!(long.chars().count(), MOST_CHARACTERS + 1);
        assert!(long.ends_with("ä…"));
        assert_eq!(
            shown(&"ä".repeat(MOST_CHARACTERS)),
            "ä".repeat(MOST_CHARACTERS)
        );
    }

    proptest! {
        #[test]
        fn no_text_keeps_a_control_character(text in any::<String>()) {
            prop_assert!(!shown(&text).chars().any(steers));
            prop_assert!(shown_lines(&text).chars().all(|c| c == '\n' || c == '\t' || !steers(c)));
        }
    }
}
