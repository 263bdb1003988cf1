// SPDX-License-Identifier: Apache-2.0
//! Splitting of a command into words, by the quoting rules of the POSIX shell and without its expansions.

use vtax_host::command::quoted;

/// The reason why a command cannot be split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WordsError {
    /// It has no word.
    #[error("the command is empty")]
    Empty,
    /// A quote is not closed.
    #[error("the quote {0} is not closed")]
    Open(char),
    /// A character outside of quotes for which only a shell has a meaning.
    #[error("`{0}` means something to a shell only, and the command runs without one")]
    Shell(char),
    /// A NUL, which no argument can contain.
    #[error("the command contains a NUL")]
    Nul,
    /// It is longer than `MOST_BYTES`.
    #[error("the command is longer than {} KiB", MOST_BYTES >> 10)]
    Long,
}

/// The longest command, in bytes. Linux accepts 128 KiB in one argument (`MAX_ARG_STRLEN`).
const MOST_BYTES: usize = 64 << 10;

/// Splits a command at blanks and newlines outside of quotes. `*`, `?`, `[`, `~` and braces are ordinary characters.
///
/// # Errors
/// An open quote, and every character that a shell would expand or interpret.
pub fn split(text: &str) -> Result<Vec<String>, WordsError> {
    if text.len() > MOST_BYTES {
        return Err(WordsError::Long);
    }
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut rest = text.chars();
    while let Some(next) = rest.next() {
        match next {
            '\0' => return Err(WordsError::Nul),
            ' ' | '\t' | '\n' | '\r' => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next() {
                        Some('\'') => break,
                        Some('\0') => return Err(WordsError::Nul),
                        Some(inside) => word.push(inside),
                        None => return Err(WordsError::Open('\'')),
                    }
                }
            }
            '"' => double_quoted(&mut rest, word.get_or_insert_default())?,
            '\\' => match rest.next() {
                // A continued line.
                Some('\n') => {}
                Some('\0') => return Err(WordsError::Nul),
                Some(escaped) => word.get_or_insert_default().push(escaped),
                None => return Err(WordsError::Open('\\')),
            },
            '|' | '&' | ';' | '<' | '>' | '(' | ')' | '$' | '`' => {
                return Err(WordsError::Shell(next));
            }
            '#' if word.is_none() => return Err(WordsError::Shell(next)),
            _ => word.get_or_insert_default().push(next),
        }
    }
    words.extend(word);
    // A first word that is empty or assigns a variable is no program.
    match words.first() {
        None => Err(WordsError::Empty),
        Some(program) if program.is_empty() => Err(WordsError::Empty),
        Some(program) if program.contains('=') && !program.contains('/') => {
            Err(WordsError::Shell('='))
        }
        Some(_) => Ok(words),
    }
}

/// Reads up to the closing double quote.
fn double_quoted(rest: &mut std::str::Chars<'_>, word: &mut String) -> Result<(), WordsError> {
    loop {
        match rest.next() {
            Some('"') => return Ok(()),
            Some('\\') => match rest.next() {
                Some('\n') => {}
                Some(escaped @ ('"' | '\\' | '$' | '`')) => word.push(escaped),
                Some('\0') => return Err(WordsError::Nul),
                Some(other) => word.extend(['\\', other]),
                None => return Err(WordsError::Open('"')),
            },
            Some(found @ ('$' | '`')) => return Err(WordsError::Shell(found)),
            Some('\0') => return Err(WordsError::Nul),
            Some(inside) => word.push(inside),
            None => return Err(WordsError::Open('"')),
        }
    }
}

/// Joins words into a command that [`split`] splits into the same words.
pub fn join<S: AsRef<str>>(words: &[S]) -> String {
    let shown = words.iter().map(|word| {
        let word = word.as_ref();
        let is_plain = !word.is_empty()
            && word
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_./:=,+@%{}*?".contains(c));
        if is_plain {
            word.to_owned()
        } else {
            quoted(word)
        }
    });
    shown.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(text: &str) -> Vec<String> {
        split(text).unwrap()
    }

    #[test]
    fn quotes_blanks_and_newlines_are_as_in_a_shell() {
        assert_eq!(
            words("redis-server --port 6379 --save ''"),
            ["redis-server", "--port", "6379", "--save", ""]
        );
        assert_eq!(words("a 'b  c'd\"e \\\" f\""), ["a", "b  cde \" f"]);
        assert_eq!(words("a \\\n b\n\tc\\ d"), ["a", "b", "c d"]);
        assert_eq!(words("sh -c 'a | b\n> $c'"), ["sh", "-c", "a | b\n> $c"]);
        assert_eq!(words("a \"\\n\""), ["a", "\\n"]);
        assert_eq!(
            words("a b#c {level} *.txt"),
            ["a", "b#c", "{level}", "*.txt"]
        );
    }

    #[test]
    fn what_only_a_shell_understands_is_refused_and_not_passed_on() {
        for (text, found) in [
            ("a | b", '|'),
            ("a > b", '>'),
            ("a $HOME", '$'),
            ("a \"$HOME\"", '$'),
            ("a `b`", '`'),
            ("a; b", ';'),
            ("a # b", '#'),
            ("A=1 b", '='),
        ] {
            assert_eq!(split(text), Err(WordsError::Shell(found)), "{text}");
        }
        assert_eq!(split("a 'b"), Err(WordsError::Open('\'')));
        assert_eq!(split("a \"b\\"), Err(WordsError::Open('"')));
        assert_eq!(split("a \\"), Err(WordsError::Open('\\')));
        assert_eq!(split(" \n"), Err(WordsError::Empty));
        assert_eq!(split("''"), Err(WordsError::Empty));
        assert_eq!(split("a '\0'"), Err(WordsError::Nul));
        assert_eq!(split(&"a ".repeat(40_000)), Err(WordsError::Long));
    }

    proptest! {
        #[test]
        fn joined_words_are_split_into_the_same_words(
            program in "[a-z]{1,8}",
            rest in prop::collection::vec("[^\0]{0,12}", 0..6),
        ) {
            let all: Vec<String> = std::iter::once(program).chain(rest).collect();
            prop_assert_eq!(words(&join(&all)), all);
        }

        #[test]
        fn no_text_panics(text in ".{0,60}") {
            let _ = split(&text);
        }
    }
}
