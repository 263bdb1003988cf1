// SPDX-License-Identifier: Apache-2.0
//! The report for people: a line for each finding, grouped and aligned.

use super::{Answer, Finding, Summary, short, summarize};

/// The format of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Whether to colour the answers; only for terminals.
    pub color: bool,
    /// The largest width in columns.
    pub width: usize,
}

impl Style {
    /// The style for standard output: coloured on a terminal, with its width up to 100 columns, since longer lines are
    /// hard to read; plain in 80 columns elsewhere. Respects `NO_COLOR`.
    pub fn for_stdout() -> Self {
        let stdout = vtax_core::terminal::stdout();
        if !stdout.is_terminal() {
            return Self {
                color: false,
                width: 80,
            };
        }
        let columns =
            rustix::termios::tcgetwinsize(&stdout).map_or(0, |size| usize::from(size.ws_col));
        Self {
            color: stdout.has_styles(),
            width: if columns == 0 {
                80
            } else {
                columns.clamp(40, 100)
            },
        }
    }
}

/// Columns before the evidence: indent, answer, name.
const INDENT: &str = "  ";
const ANSWER_WIDTH: usize = 8;

/// Renders the whole report.
pub fn render(findings: &[Finding], style: Style) -> String {
    let summary = summarize(findings);
    let first = short::lines(findings, &summary);
    let names = findings.iter().map(|finding| finding.name.as_str());
    let name_width = names
        .chain(first.iter().map(|line| line.name))
        .map(|name| name.chars().count())
        .max()
        .unwrap_or(0)
        + 2;
    let mut page = Page {
        text: String::new(),
        style,
        name_width,
    };
    page.heading("In short");
    for line in &first {
        page.line(line.answer, line.name, &line.text);
    }
    page.install(&summary);
    let mut topic = None;
    for finding in findings {
        if topic != Some(finding.topic) {
            page.heading(finding.topic.title());
            topic = Some(finding.topic);
        }
        page.line(finding.answer, &finding.name, &finding.evidence);
        if finding.answer != Answer::Yes
            && let Some(remedy) = &finding.remedy
        {
            page.remedy(remedy);
        }
    }
    page.text
}

struct Page {
    text: String,
    style: Style,
    name_width: usize,
}

impl Page {
    fn heading(&mut self, title: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        let (on, off) = self.codes("1");
        self.text.push_str(&format!("{on}{title}{off}\n"));
    }

    fn line(&mut self, answer: Answer, name: &str, evidence: &str) {
        let (word, color) = match answer {
            Answer::Yes => ("yes", "32"),
            Answer::Partly => ("partly", "33"),
            Answer::No => ("no", "31"),
        };
        let (on, off) = self.codes(color);
        self.text.push_str(&format!(
            "{INDENT}{on}{word:<ANSWER_WIDTH$}{off}{name:<width$}",
            width = self.name_width
        ));
        self.wrapped(evidence, "");
    }

    fn remedy(&mut self, remedy: &str) {
        self.text.push_str(&" ".repeat(self.margin()));
        self.wrapped(remedy, "→ ");
    }

    fn install(&mut self, summary: &Summary) {
        if let Some(command) = &summary.install {
            self.text.push_str(&format!(
                "\nTo install what is missing:\n{INDENT}{command}\n"
            ));
        }
    }

    fn margin(&self) -> usize {
        INDENT.len() + ANSWER_WIDTH + self.name_width
    }

    /// Writes the rest of a line after its margin, with a hanging indent for further lines.
    fn wrapped(&mut self, text: &str, prefix: &str) {
        let hanging = self.margin() + prefix.chars().count();
        let room = self.style.width.saturating_sub(hanging).max(20);
        for (number, line) in wrap(text, room).iter().enumerate() {
            if number == 0 {
                self.text.push_str(prefix);
            } else {
                self.text.push_str(&" ".repeat(hanging));
            }
            self.text.push_str(line);
            self.text.push('\n');
        }
    }

    fn codes(&self, color: &str) -> (String, &'static str) {
        if self.style.color {
            (format!("\x1b[{color}m"), "\x1b[0m")
        } else {
            (String::new(), "")
        }
    }
}

/// Breaks text at white space. A word that is longer than a line gets its own line.
fn wrap(text: &str, room: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        if let Some(line) = lines.last_mut() {
            let used = line.chars().count();
            if used == 0 {
                line.push_str(word);
                continue;
            }
            if used + 1 + word.chars().count() <= room {
                line.push(' ');
                line.push_str(word);
                continue;
            }
        }
        lines.push(word.to_owned());
    }
    lines
}
