// SPDX-License-Identifier: Apache-2.0
//! The text of a plan, for programs that write plans.

use std::fmt::{Display, Write};

/// The longest line of a comment, in characters.
const WIDTH: usize = 100;
/// The longest name that is made from another text.
const LONGEST_NAME: usize = 50;

/// The text of a plan under construction. Each key is a line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlanText {
    text: String,
}

impl PlanText {
    /// Appends a comment, each of its lines wrapped. Further lines of a list item are indented as its text is.
    pub fn comment(&mut self, text: &str) -> &mut Self {
        for line in text.lines() {
            let body = line.trim_start();
            let indent = line.len() - body.len() + if body.starts_with("- ") { 2 } else { 0 };
            let mut written = format!("#{}", " ".repeat(1 + line.len() - body.len()));
            let first = written.len();
            for word in body.split_whitespace() {
                let begins =
                    written.len() == first || written.trim_start_matches('#').trim().is_empty();
                if !begins && written.chars().count() + 1 + word.chars().count() > WIDTH {
                    self.line(&written);
                    written = format!("#{}", " ".repeat(1 + indent));
                } else if !begins {
                    written.push(' ');
                }
                written.push_str(word);
            }
            self.line(written.trim_end());
        }
        self
    }

    /// Appends an empty line.
    pub fn blank(&mut self) -> &mut Self {
        self.line("")
    }

    /// Begins a section that may repeat, such as `platform`.
    pub fn section(&mut self, name: &str) -> &mut Self {
        self.blank().line(&format!("[[{name}]]"))
    }

    /// Appends a key with a number or another value that needs no quotes.
    pub fn value(&mut self, key: &str, value: impl Display) -> &mut Self {
        self.line(&format!("{key} = {value}"))
    }

    /// Appends a key with a text.
    pub fn text(&mut self, key: &str, value: &str) -> &mut Self {
        self.value(key, quoted(value))
    }

    /// Appends a key with a list of texts.
    pub fn texts(&mut self, key: &str, values: &[String]) -> &mut Self {
        let values: Vec<String> = values.iter().map(|value| quoted(value)).collect();
        self.value(key, format!("[{}]", values.join(", ")))
    }

    /// Appends a key with a table of texts.
    pub fn table(&mut self, key: &str, entries: &[(&str, &str)]) -> &mut Self {
        let entries = entries
            .iter()
            .map(|(key, value)| format!("{key} = {}", quoted(value)));
        let entries: Vec<String> = entries.collect();
        self.value(key, format!("{{ {} }}", entries.join(", ")))
    }

    /// Appends an explanation to the last line.
    pub fn because(&mut self, text: &str) -> &mut Self {
        let line = self.text.trim_end_matches('\n').len();
        self.text.truncate(line);
        let column = self.text.len() - self.text.rfind('\n').map_or(0, |at| at + 1);
        let pad = 36_usize.saturating_sub(column).max(1);
        self.line(&format!("{}# {text}", " ".repeat(pad)))
    }

    /// Appends lines of a plan as comments, to be used by removing the signs.
    pub fn switched_off(&mut self, lines: &str) -> &mut Self {
        for line in lines.trim_matches('\n').lines() {
            self.line(format!("# {line}").trim_end());
        }
        self
    }

    /// Appends finished lines.
    pub fn append(&mut self, lines: &str) -> &mut Self {
        self.text.push_str(lines);
        self
    }

    /// Returns the text.
    pub fn finish(self) -> String {
        self.text
    }

    fn line(&mut self, line: &str) -> &mut Self {
        // Writing into a text cannot fail.
        let _ = writeln!(self.text, "{line}");
        self
    }
}

/// Returns a TOML string. Its escapes are those of JSON, and DEL.
pub fn quoted(value: &str) -> String {
    let json = serde_json::to_string(value).unwrap_or_default();
    json.replace('\u{7f}', "\\u007f")
}

/// Returns a name for a plan or workload, made of the characters of a text that names may have.
pub fn name_of(text: &str, fallback: &str) -> String {
    let valid = text
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || "-_.+".contains(*c));
    let name: String = valid.take(LONGEST_NAME).collect();
    match name.trim_start_matches(['-', '.']) {
        "" => fallback.to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_wrap_under_their_item_and_no_word_is_lost() {
        let mut plan = PlanText::default();
        let long = format!("- one {}", "word ".repeat(40).trim_end());
        plan.comment(&format!("Head\n\n{long}\n  indented"))
            .text("name", "a\"b\u{7f}\n");
        let text = plan.finish();
        assert!(
            text.lines().all(|line| line.chars().count() <= WIDTH),
            "{text}"
        );
        assert_eq!(text.matches("word").count(), 40);
        assert!(text.starts_with("# Head\n#\n# - one word"), "{text}");
        assert!(
            text.contains("\n#   word") && text.contains("\n#   indented\n"),
            "{text}"
        );
        let read: toml::Table = toml::from_str(&text).unwrap();
        assert_eq!(read["name"].as_str(), Some("a\"b\u{7f}\n"));
    }

    #[test]
    fn an_explanation_follows_its_line_and_switched_off_lines_are_comments() {
        let mut off = PlanText::default();
        off.section("platform").text("kind", "native");
        let mut plan = PlanText::default();
        plan.value("repetitions", 3)
            .because("blocks")
            .switched_off(&off.finish());
        let text = plan.finish();
        assert!(text.starts_with("repetitions = 3  "), "{text}");
        assert!(
            text.contains("# blocks\n# [[platform]]\n# kind = \"native\"\n"),
            "{text}"
        );
    }

    #[test]
    fn a_text_without_a_valid_character_gets_the_fallback() {
        assert_eq!(name_of("-.é", "command"), "command");
        assert_eq!(name_of("'a b'", "command"), "ab");
    }
}
