// SPDX-License-Identifier: Apache-2.0
//! The faults of a plan, with their position and remedy.

use serde::Serialize;
use std::fmt;

/// A fault of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
    /// The fault, with the key.
    pub message: String,
    /// The remedy, such as the nearest valid key.
    pub help: Option<String>,
    /// The line itself.
    #[serde(skip)]
    source: String,
}

impl Diagnostic {
    /// A diagnostic at a byte offset of `text`; offsets beyond its end point at the end.
    pub fn at(text: &str, offset: usize, message: impl Into<String>) -> Self {
        let mut offset = offset.min(text.len());
        while !text.is_char_boundary(offset) {
            offset -= 1;
        }
        let (before, after) = text.split_at(offset);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = after
            .find('\n')
            .map_or(text.len(), |newline| offset + newline);
        Self {
            line: before.matches('\n').count() + 1,
            column: text
                .get(line_start..offset)
                .unwrap_or_default()
                .chars()
                .count()
                + 1,
            message: message.into(),
            help: None,
            source: text
                .get(line_start..line_end)
                .unwrap_or_default()
                .trim_end()
                .to_owned(),
        }
    }

    /// Sets the remedy.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Sets the remedy to the nearest of `valid`, or to all of `valid` when none is near. A key may be written without its group.
    #[must_use]
    pub fn nearest<'a>(self, found: &str, valid: impl IntoIterator<Item = &'a str>) -> Self {
        let mut valid: Vec<&str> = valid.into_iter().collect();
        valid.sort_unstable();
        valid.dedup();
        let best = valid
            .iter()
            .map(|candidate| {
                let last = candidate.rsplit('.').next().unwrap_or(candidate);
                let [whole, part] = [candidate, last].map(|name| strsim::jaro_winkler(found, name));
                (whole.max(part), *candidate)
            })
            .max_by(|a, b| a.0.total_cmp(&b.0));
        match best {
            Some((similarity, candidate)) if similarity > 0.75 => {
                self.help(format!("did you mean `{candidate}`?"))
            }
            Some(_) => self.help(format!("valid here: {}", valid.join(", "))),
            None => self,
        }
    }
}

/// The faults of a plan, in the order of lines; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostics {
    /// The file's name as the user gave it.
    pub file: String,
    /// The first faults.
    pub list: Vec<Diagnostic>,
    /// The number of further faults.
    pub more: usize,
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, found) in self.list.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            let Diagnostic {
                line,
                column,
                message,
                help,
                source,
            } = found;
            writeln!(f, "{}:{line}:{column}: {message}", self.file)?;
            let shown: String = source.chars().take(120).collect();
            let gutter = line.to_string();
            writeln!(f, "  {gutter} | {shown}")?;
            let indent: String = source
                .chars()
                .take(column.saturating_sub(1).min(120))
                .map(|c| if c == '\t' { '\t' } else { ' ' })
                .collect();
            write!(f, "  {} | {indent}^", " ".repeat(gutter.len()))?;
            if let Some(help) = help {
                write!(f, " {help}")?;
            }
        }
        if self.more > 0 {
            write!(f, "\n{}: and {} more mistakes", self.file, self.more)?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_become_lines_and_columns_in_characters() {
        let found = Diagnostic::at("a = 1\nµ = x\n", 6 + "µ = ".len(), "bad");
        assert_eq!((found.line, found.column), (2, 5));
        assert_eq!(found.source, "µ = x");
        let end = Diagnostic::at("ab", 99, "end");
        assert_eq!((end.line, end.column), (1, 3));
    }

    #[test]
    fn the_nearest_valid_word_is_suggested_and_a_far_one_lists_all() {
        let in_group = Diagnostic::at("", 0, "").nearest("mtuu", ["link.mtu", "seed"]);
        assert_eq!(in_group.help.as_deref(), Some("did you mean `link.mtu`?"));
        let near = Diagnostic::at("", 0, "").nearest("repetition", ["repetitions", "seed"]);
        assert_eq!(near.help.as_deref(), Some("did you mean `repetitions`?"));
        let far = Diagnostic::at("", 0, "").nearest("zzz", ["repetitions", "seed"]);
        assert_eq!(far.help.as_deref(), Some("valid here: repetitions, seed"));
    }
}
