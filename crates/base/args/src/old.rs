// SPDX-License-Identifier: Apache-2.0
//! Old spellings of options: each is replaced by the one in use before the command line is parsed, with a note.

use std::ffi::{OsStr, OsString};

/// An old spelling of an option.
#[derive(Debug, Clone, Copy)]
pub struct Old {
    /// The words of the command.
    pub command: &'static [&'static str],
    /// The option, such as `--at`.
    pub old: &'static str,
    /// The option in use. With a `=`, it replaces a flag. Empty: the value is a positional argument.
    pub new: &'static str,
    /// The unit of a value without one; empty where values have none.
    pub unit: &'static str,
}

impl Old {
    /// An option with another name.
    pub const fn renamed(
        command: &'static [&'static str],
        old: &'static str,
        new: &'static str,
    ) -> Self {
        Self::with_unit(command, old, new, "")
    }

    /// An option with another name whose value needs a unit.
    pub const fn with_unit(
        command: &'static [&'static str],
        old: &'static str,
        new: &'static str,
        unit: &'static str,
    ) -> Self {
        Self {
            command,
            old,
            new,
            unit,
        }
    }

    fn is_flag(&self) -> bool {
        self.new.contains('=')
    }

    /// The replacement for the option, and the note.
    fn replacement(&self, value: Option<&str>) -> (Vec<OsString>, String) {
        let value = value.map(|value| match value.parse::<f64>() {
            Ok(_) if !self.unit.is_empty() => format!("{value}{}", self.unit),
            _ => value.to_owned(),
        });
        let words = match (self.new, value) {
            ("", value) => value.into_iter().collect(),
            (new, None) => vec![new.to_owned()],
            (new, Some(value)) => vec![format!("{new}={value}")],
        };
        let shown = words.join(" ");
        let note = format!("{} is an old spelling: use {shown}", self.old);
        (words.into_iter().map(OsString::from).collect(), note)
    }
}

/// The words of a command line with replaced old spellings, by each table with its prefix as for [`replace`]. Prints the notes to standard error, each with the program's name.
pub fn replaced(
    words: impl IntoIterator<Item = OsString>,
    tables: &[(&[&str], &[Old])],
    program: &str,
) -> Vec<OsString> {
    let mut notes = Vec::new();
    let mut words: Vec<OsString> = words.into_iter().collect();
    for (prefix, table) in tables {
        words = replace(words, prefix, table, &mut notes);
    }
    for note in notes {
        // Without a reader the notes are not needed.
        let _ = vtax_core::terminal::note(&format!("{program}: {note}"));
    }
    words
}

/// Replaces the old spellings in `words`, whose first is the program. `prefix` is what precedes the commands of `table`
/// on this command line: nothing for a program of its own, the program's name where another one includes it. Adds a
/// note for each.
pub fn replace(
    words: Vec<OsString>,
    prefix: &[&str],
    table: &[Old],
    notes: &mut Vec<String>,
) -> Vec<OsString> {
    let end = words.iter().position(|word| word == "--");
    let (head, tail) = words.split_at(end.unwrap_or(words.len()));
    let known: Vec<&Old> = table.iter().filter(|old| has(head, prefix, old)).collect();
    if known.is_empty() {
        return words;
    }
    let mut replaced = Vec::with_capacity(words.len());
    let mut rest = head.iter();
    while let Some(word) = rest.next() {
        let found = word.to_str().and_then(|word| {
            let (option, value) = match word.split_once('=') {
                Some((option, value)) => (option, Some(value)),
                None => (word, None),
            };
            let old = known.iter().find(|old| old.old == option)?;
            // An option with a unit may have the name that is in use.
            let is_current = |value: &str| old.old == old.new && value.parse::<f64>().is_err();
            let next = || rest.as_slice().first().and_then(|next| next.to_str());
            match value {
                Some(value) if !is_current(value) => Some((old, Some(value), false)),
                None if old.is_flag() => Some((old, None, false)),
                None => next()
                    .filter(|value| !is_current(value))
                    .map(|value| (old, Some(value), true)),
                Some(_) => None,
            }
        });
        let Some((old, value, is_next)) = found else {
            replaced.push(word.clone());
            continue;
        };
        let (new, note) = old.replacement(value);
        replaced.extend(new);
        notes.push(note);
        if is_next {
            rest.next();
        }
    }
    replaced.extend_from_slice(tail);
    replaced
}

/// Whether the words call the command of an old spelling: its first word is the first of them, and the others follow.
fn has(words: &[OsString], prefix: &[&str], old: &Old) -> bool {
    let mut rest = words.iter().skip(1);
    let command = prefix.iter().chain(old.command);
    command.enumerate().all(|(place, part)| match place {
        0 => rest.next().is_some_and(|word| word == OsStr::new(part)),
        _ => rest.any(|word| word == OsStr::new(part)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[Old] = &[
        Old::renamed(&["run"], "--at", "--place"),
        Old::renamed(&["top"], "--once", "--count=1"),
        Old::renamed(&["testbed", "guard"], "--plan", ""),
        Old::with_unit(&["calibrate"], "--seconds", "--step", "s"),
        Old::with_unit(&["load"], "--warmup", "--warmup", "s"),
    ];

    fn replaced(line: &str) -> (String, usize) {
        let words = line.split(' ').map(OsString::from).collect();
        let mut notes = Vec::new();
        let words = replace(words, &[], TABLE, &mut notes);
        let words: Vec<&str> = words.iter().map(|word| word.to_str().unwrap()).collect();
        (words.join(" "), notes.len())
    }

    #[test]
    fn old_spellings_are_replaced_with_a_note_each() {
        for (old, new) in [
            (
                "vtax run p.toml --at ssh:a",
                "vtax run p.toml --place=ssh:a",
            ),
            (
                "vtax run --at=local p.toml",
                "vtax run --place=local p.toml",
            ),
            ("vtax top --once --json", "vtax top --count=1 --json"),
            (
                "vtax testbed guard --plan a.toml",
                "vtax testbed guard a.toml",
            ),
            ("vtax calibrate --seconds 3", "vtax calibrate --step=3s"),
            (
                "vtax load http --warmup 0.5",
                "vtax load http --warmup=0.5s",
            ),
        ] {
            assert_eq!(replaced(old), (new.to_owned(), 1));
            assert_eq!(replaced(new), (new.to_owned(), 0), "it is in use");
        }
    }

    #[test]
    fn other_commands_and_the_words_after_two_dashes_stay_as_they_are() {
        for line in [
            "vtax web --at x",
            "vtax run --platform native -- cmd --at x",
            "vtax mvm run --at x",
            "vtax load http --warmup 2s",
            "vtax run --at",
            "vtax",
        ] {
            assert_eq!(replaced(line), (line.to_owned(), 0));
        }
    }

    #[test]
    fn a_table_of_an_included_program_has_its_name_before_it() {
        let words = ["vtax", "nic", "--hold-us", "50"].map(OsString::from);
        let table = [Old::with_unit(&[], "--hold-us", "--hold", "us")];
        let mut notes = Vec::new();
        let new = replace(words.to_vec(), &["nic"], &table, &mut notes);
        assert_eq!(new, ["vtax", "nic", "--hold=50us"]);
        assert_eq!(notes, ["--hold-us is an old spelling: use --hold=50us"]);
        let own = ["vtax-nic", "--hold-us=50"].map(OsString::from);
        let own = replace(own.to_vec(), &[], &table, &mut notes);
        assert_eq!(own, ["vtax-nic", "--hold=50us"]);
    }
}
