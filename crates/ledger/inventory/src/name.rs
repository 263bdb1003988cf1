// SPDX-License-Identifier: Apache-2.0
//! Names of guests. The user who starts a guest chooses its name: any bytes, of any length.

/// The longest name that is kept, in characters; labels of metrics and columns of terminals need no more.
const MOST_CHARACTERS: usize = 128;

/// Returns a name that is safe in a terminal, a label or a log line: valid UTF-8, one line, no control or invisible
/// formatting characters (which would let one guest overwrite another's row), at most 128 characters, never empty.
pub fn sanitised(raw: &[u8]) -> String {
    // A character has at most four bytes, so the rest of a long name need not be decoded.
    let raw = raw.get(..MOST_CHARACTERS * 4).unwrap_or(raw);
    let name: String = String::from_utf8_lossy(raw)
        .trim()
        .chars()
        .map(|c| if is_harmless(c) { c } else { '\u{fffd}' })
        .take(MOST_CHARACTERS)
        .collect();
    if name.is_empty() {
        "?".to_owned()
    } else {
        name
    }
}

/// Returns `name`, or the first unused name of the form `name (mark)`: two guests with one name would be one series.
pub(super) fn distinct(
    name: &str,
    marks: impl Iterator<Item = String>,
    is_taken: impl Fn(&str) -> bool,
) -> String {
    let marked = marks.map(|mark| format!("{name} ({mark})"));
    let counted = (2_u32..).map(|count| format!("{name} #{count}"));
    let mut names = std::iter::once(name.to_owned())
        .chain(marked)
        .chain(counted);
    names
        .find(|name| !is_taken(name))
        .unwrap_or_else(|| name.to_owned())
}

fn is_harmless(c: char) -> bool {
    let formats = matches!(
        c,
        '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}' | '\u{300}'..='\u{36f}' | '\u{fe00}'..='\u{fe0f}'
    );
    !c.is_control() && !formats
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hostile_names_become_one_harmless_line() {
        assert_eq!(sanitised(b"web-1"), "web-1");
        assert_eq!(sanitised(b"a\nb\x1b[2Jc"), "a\u{fffd}b\u{fffd}[2Jc");
        assert_eq!(sanitised(b"\xff\xfe"), "\u{fffd}\u{fffd}");
        assert_eq!(sanitised(b""), "?");
        assert_eq!(sanitised(b" \n "), "?");
        assert_eq!(sanitised("\u{202e}evil".as_bytes()), "\u{fffd}evil");
        assert_eq!(sanitised(&[b'x'; 4096]).chars().count(), 128);
    }

    #[test]
    fn a_name_that_is_taken_gets_the_first_free_mark() {
        let taken = ["web", "web (108)", "web (pid 7)", "web #2"];
        let marks = || ["108", "pid 7"].map(str::to_owned).into_iter();
        assert_eq!(distinct("db", marks(), |name| taken.contains(&name)), "db");
        let one = distinct("web", marks(), |name| name == "web");
        assert_eq!(one, "web (108)");
        let last = distinct("web", marks(), |name| taken.contains(&name));
        assert_eq!(last, "web #3", "a guest may be called as others are marked");
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_short_printable_line(raw in prop::collection::vec(any::<u8>(), 0..5000)) {
            let name = sanitised(&raw);
            prop_assert!(!name.is_empty() && name.chars().count() <= 128);
            prop_assert!(name.chars().all(|c| !c.is_control()));
        }
    }
}
