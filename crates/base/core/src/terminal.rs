// SPDX-License-Identifier: Apache-2.0
//! Standard output and standard error of every program: text of others (a plan, an image, a guest, another machine)
//! cannot steer the terminal that shows it.
//!
//! No other code opens the two: `clippy.toml` refuses it. [`Output`] replaces what steers a terminal where it writes, so
//! that no message has to remember it.

use std::fmt::Display;
use std::io::{self, IsTerminal, Stderr, Stdout, Write};
use std::os::fd::{AsFd, BorrowedFd};

/// The most characters of one line.
const MOST_CHARACTERS: usize = 2000;

/// The most characters of a text of several lines.
const LONGEST_TEXT: usize = 64_000;

/// The parameters of the control sequence SGR (ECMA-48, 8.3.117) that the programs themselves write: reset, bold, faint,
/// underlined, inverse, and the foreground's colours.
const STYLES: [&str; 9] = ["0", "1", "2", "4", "7", "31", "32", "33", "36"];

/// One line without control characters, cut at 2,000 characters: it cannot move a cursor, set a title or change the
/// direction of writing.
#[must_use]
pub fn shown(line: &str) -> String {
    let plain = |c| if steers(c) { ' ' } else { c };
    let mut characters = line.chars();
    let mut shown: String = characters
        .by_ref()
        .take(MOST_CHARACTERS)
        .map(plain)
        .collect();
    if characters.next().is_some() {
        shown.push('…');
    }
    shown
}

/// The first line of a message, as [`shown`]. Further lines of an error are what a guest or a program printed.
#[must_use]
pub fn first_line(message: &impl Display) -> String {
    let message = message.to_string();
    let first = message.lines().next().unwrap_or_default();
    shown(first.trim_end_matches(':'))
}

/// As [`shown`], for a text that may have several lines and tabs, cut at 64,000 characters.
#[must_use]
pub fn shown_lines(text: &str) -> String {
    let mut shown = String::new();
    let mut left = LONGEST_TEXT;
    for (number, line) in text.split('\n').enumerate() {
        if number > 0 {
            shown.push('\n');
        }
        if left == 0 {
            shown.push('…');
            break;
        }
        let mut characters = line.chars();
        let most = left.min(MOST_CHARACTERS);
        for c in characters.by_ref().take(most) {
            shown.push(if c == '\t' || !steers(c) { c } else { ' ' });
            left -= 1;
        }
        if characters.next().is_some() {
            shown.push('…');
        }
        left = left.saturating_sub(1);
    }
    shown
}

/// Whether a character steers a terminal: a control character (C0, C1, DEL), one that changes the direction of writing
/// (Unicode Annex 9), or one that separates lines (U+2028, U+2029).
#[must_use]
pub fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// What an [`Output`] lets through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeps {
    /// Text, line ends and tabs.
    Text,
    /// Also the programs' own styles.
    Styles,
    /// Every byte.
    All,
}

/// A writer whose text cannot steer a terminal: each character that does becomes a space, and each byte that is not
/// UTF-8 becomes U+FFFD.
#[derive(Debug)]
pub struct Output<W> {
    into: W,
    keeps: Keeps,
    /// The start of a character or of a style that the next write continues: at most 7 bytes.
    pending: Vec<u8>,
}

/// Standard output for people. Where it is a terminal, the programs' own styles have an effect.
#[must_use]
pub fn stdout() -> Output<Stdout> {
    #[expect(clippy::disallowed_methods, reason = "the one place")]
    let out = io::stdout();
    let styled = is_styled(&out);
    Output::new(out, if styled { Keeps::Styles } else { Keeps::Text })
}

/// Standard error for people, as [`stdout`].
#[must_use]
pub fn stderr() -> Output<Stderr> {
    #[expect(clippy::disallowed_methods, reason = "the one place")]
    let out = io::stderr();
    let styled = is_styled(&out);
    Output::new(out, if styled { Keeps::Styles } else { Keeps::Text })
}

/// Standard output for programs: JSON, CSV and protocols. Every byte is kept, except on a terminal, which shows it to
/// people.
#[must_use]
pub fn data() -> Output<Stdout> {
    #[expect(clippy::disallowed_methods, reason = "the one place")]
    let out = io::stdout();
    let keeps = if out.is_terminal() {
        Keeps::Text
    } else {
        Keeps::All
    };
    Output::new(out, keeps)
}

/// Writes a message of one or several lines to standard error. A line ends after 2,000 characters, a message after
/// 64,000.
///
/// # Errors
/// When standard error cannot be written.
pub fn note(message: &str) -> io::Result<()> {
    let line = format!("{}\n", shown_lines(message));
    stderr().write_all(line.as_bytes())
}

/// Whether text for this output has styles: it is a terminal, and the variable `NO_COLOR` is unset or empty.
fn is_styled(output: &impl IsTerminal) -> bool {
    output.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

impl<W> Output<W> {
    fn new(into: W, keeps: Keeps) -> Self {
        Self {
            into,
            keeps,
            pending: Vec::new(),
        }
    }

    /// A writer of text without styles.
    pub fn plain(into: W) -> Self {
        Self::new(into, Keeps::Text)
    }

    /// Whether styles have an effect.
    pub fn has_styles(&self) -> bool {
        self.keeps == Keeps::Styles
    }
}

impl<W: IsTerminal> Output<W> {
    /// Whether the output is a terminal.
    pub fn is_terminal(&self) -> bool {
        self.into.is_terminal()
    }
}

impl<W: AsFd> AsFd for Output<W> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.into.as_fd()
    }
}

impl<W: Write> Output<W> {
    /// Erases the line of the cursor (`EL`, ECMA-48, 8.3.41) and writes `text` from its start.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn over_line(&mut self, text: &str) -> io::Result<()> {
        self.over("\r\x1b[K", text)
    }

    /// Erases the screen (`ED`, ECMA-48, 8.3.39) and writes `text` from its top.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn over_screen(&mut self, text: &str) -> io::Result<()> {
        self.over("\x1b[H\x1b[2J", text)
    }

    fn over(&mut self, erase: &str, text: &str) -> io::Result<()> {
        self.pending.clear();
        self.into.write_all(erase.as_bytes())?;
        self.write_all(text.as_bytes())?;
        self.flush()
    }
}

impl<W: Write> Write for Output<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.keeps == Keeps::All {
            return self.into.write(bytes);
        }
        self.pending.extend_from_slice(bytes);
        let (text, rest) = filtered(&self.pending, self.keeps == Keeps::Styles);
        self.pending.drain(..self.pending.len() - rest);
        self.into.write_all(text.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.into.flush()
    }
}

/// The text of `bytes` without what steers a terminal, and the number of last bytes that only the next ones complete.
fn filtered(bytes: &[u8], styles: bool) -> (String, usize) {
    let mut text = String::with_capacity(bytes.len());
    let mut left = bytes.len();
    for chunk in bytes.utf8_chunks() {
        let mut valid = chunk.valid();
        let is_last = left == valid.len();
        while let Some(c) = valid.chars().next() {
            let mut length = c.len_utf8();
            if c == '\x1b' && styles {
                let sequences = STYLES.map(|style| format!("\x1b[{style}m"));
                if let Some(own) = sequences.iter().find(|own| valid.starts_with(*own)) {
                    text.push_str(own);
                    length = own.len();
                } else if is_last && sequences.iter().any(|own| own.starts_with(valid)) {
                    return (text, valid.len());
                } else {
                    text.push(' ');
                }
            } else {
                text.push(if matches!(c, '\n' | '\t') || !steers(c) {
                    c
                } else {
                    ' '
                });
            }
            valid = valid.get(length..).unwrap_or_default();
            left -= length;
        }
        let invalid = chunk.invalid();
        if invalid.is_empty() {
            continue;
        }
        let is_incomplete = left == invalid.len()
            && std::str::from_utf8(invalid).is_err_and(|cause| cause.error_len().is_none());
        if is_incomplete {
            return (text, left);
        }
        text.push(char::REPLACEMENT_CHARACTER);
        left -= invalid.len();
    }
    (text, left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(parts: &[&[u8]], keeps: Keeps) -> String {
        let mut output = Output::new(Vec::new(), keeps);
        for part in parts {
            output.write_all(part).unwrap();
        }
        String::from_utf8(output.into).unwrap()
    }

    #[test]
    fn an_escape_sequence_and_a_change_of_direction_lose_their_effect_and_words_stay() {
        assert_eq!(shown("\x1b]0;OWNED\x07 Zürich"), " ]0;OWNED  Zürich");
        assert_eq!(shown("a\u{9b}2Jb\u{202e}c\nd\te"), "a 2Jb c d e");
        assert_eq!(shown_lines("a\x1b[2J\nb\tc\r"), "a [2J\nb\tc ");
        assert_eq!(
            first_line(&"it did not boot:\n    console: \x1b[2J"),
            "it did not boot"
        );
        assert_eq!(
            written(
                &["a\x1b[2J\u{9b}\nb\tc\x1a\u{202e}ü\x7f".as_bytes()],
                Keeps::Text
            ),
            "a [2J \nb\tc  ü "
        );
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
        let line = shown_lines(&"x".repeat(30_000_000));
        assert_eq!(line.chars().count(), MOST_CHARACTERS + 1);
        let lines = shown_lines(&"line\n".repeat(1_000_000));
        assert!(lines.len() < LONGEST_TEXT + 10 && lines.ends_with('…'));
    }

    #[test]
    fn own_styles_have_an_effect_on_a_terminal_alone_and_nothing_else_has() {
        let text = "\x1b[1mbold\x1b[0m \x1b[8mhidden\x1b[0m \x1b]8;;http://a\x1b\\link";
        assert_eq!(
            written(&[text.as_bytes()], Keeps::Styles),
            "\x1b[1mbold\x1b[0m  [8mhidden\x1b[0m  ]8;;http://a \\link"
        );
        assert_eq!(
            written(&[b"\x1b[1mbold\x1b[0m"], Keeps::Text),
            " [1mbold [0m"
        );
        assert_eq!(written(&[b"\x1b[2J"], Keeps::All), "\x1b[2J");
    }

    proptest! {
        #[test]
        fn no_text_keeps_a_character_that_steers(text in any::<String>()) {
            prop_assert!(!shown(&text).chars().any(steers));
            prop_assert!(shown_lines(&text).chars().all(|c| c == '\n' || c == '\t' || !steers(c)));
        }

        #[test]
        fn what_is_written_in_parts_is_as_safe_and_as_whole_as_at_once(
            bytes in proptest::collection::vec(
                prop_oneof![any::<u8>(), Just(0x1b), Just(b'['), Just(b'1'), Just(b'm'), Just(0xc2), Just(0x9b)],
                0..60,
            ),
            cut in 0_usize..60,
            styles in any::<bool>(),
        ) {
            let keeps = if styles { Keeps::Styles } else { Keeps::Text };
            let (first, second) = bytes.split_at(cut.min(bytes.len()));
            let parts = written(&[first, second], keeps);
            prop_assert_eq!(&parts, &written(&[&bytes], keeps));
            let text = STYLES.iter().fold(parts, |text, style| if styles { text.replace(&format!("\x1b[{style}m"), "") } else { text });
            prop_assert!(text.chars().all(|c| c == '\n' || c == '\t' || !steers(c)), "{text:?}");
        }
    }
}
