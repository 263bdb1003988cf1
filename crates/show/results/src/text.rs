// SPDX-License-Identifier: Apache-2.0
//! Text for people: without control characters, of a width in columns, and in tables.

use std::ops::Range;

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
    format!("{text:<width$}")
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

/// At most `most` lines: the first ones, and for the others what `rest` says of their number.
pub fn at_most(
    mut lines: Vec<String>,
    most: usize,
    rest: impl FnOnce(usize) -> String,
) -> Vec<String> {
    let more = lines.len().saturating_sub(most);
    lines.truncate(most);
    if more > 0 {
        lines.push(rest(more));
    }
    lines
}

/// The first of some items, and the number of the others: `a, b and 3 more`.
pub fn few<T: AsRef<str>>(items: &[T], most: usize, separator: &str) -> String {
    let shown: Vec<&str> = items.iter().take(most).map(AsRef::as_ref).collect();
    let more = match items.len().saturating_sub(most) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    shown.join(separator) + &more
}

/// Rows of cells below headings, and titles between them.
#[derive(Debug, Clone)]
pub struct Table {
    /// The columns with numbers, whose cells end at one place.
    right: Range<usize>,
    /// The headings, then the rows. A row of one cell is a title.
    rows: Vec<Vec<String>>,
}

/// Least width that the first column is cut to.
const LEAST_FIRST: usize = 16;

impl Table {
    /// A table without rows, with the headings of its columns and those of them that hold numbers.
    pub fn new<T: Into<String>>(
        headings: impl IntoIterator<Item = T>,
        right: Range<usize>,
    ) -> Self {
        let mut table = Self {
            right,
            rows: Vec::new(),
        };
        table.row(headings);
        table
    }

    /// Adds a row; one of a single cell is a title.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The lines for a terminal, without control characters. Columns are as wide as their cells; where these are wider
    /// than the terminal, the first column is cut.
    pub fn lines(&self, width: usize) -> Vec<String> {
        let has_titles = self.rows.iter().any(|row| row.len() == 1);
        let indent = if has_titles { 4 } else { 2 };
        let mut widths: Vec<usize> = Vec::new();
        for row in self.rows.iter().filter(|row| row.len() > 1) {
            widths.resize(widths.len().max(row.len()), 0);
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = columns(cell).max(*width);
            }
        }
        if let [first, others @ ..] = widths.as_mut_slice() {
            let taken = others.iter().map(|width| width + 2).sum::<usize>() + indent;
            *first = width.saturating_sub(taken).max(LEAST_FIRST).min(*first);
        }
        let cell = |(at, (cell, width)): (usize, (&String, &usize))| {
            let cell = cut(cell, *width);
            if self.right.contains(&at) {
                format!("{cell:>width$}")
            } else {
                pad(&cell, *width)
            }
        };
        let line = |row: &Vec<String>| match row.as_slice() {
            [title] => cut(&clean(&format!("  {title}")), width),
            cells => {
                let cells = cells.iter().zip(&widths).enumerate().map(cell);
                let line = " ".repeat(indent) + &cells.collect::<Vec<_>>().join("  ");
                clean(line.trim_end())
            }
        };
        self.rows.iter().map(line).collect()
    }

    /// The table in Markdown. Its cells are written as they are.
    pub fn markdown(&self) -> String {
        let line = |row: &Vec<String>| format!("| {} |\n", row.join(" | "));
        let mut lines: Vec<String> = self.rows.iter().map(line).collect();
        let mut rule = "|".to_owned();
        for at in 0..self.rows.first().map_or(0, Vec::len) {
            let end = if self.right.contains(&at) { ":" } else { "" };
            rule += &format!("---{end}|");
        }
        lines.insert(1, rule + "\n");
        lines.concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_of_a_list_is_counted() {
        let items = ["a", "b", "c"].map(str::to_owned);
        assert_eq!(few(&items, 3, ", "), "a, b, c");
        assert_eq!(few(&items, 1, ", "), "a and 2 more");
        let rest = |more| format!("{more} more");
        assert_eq!(at_most(items.to_vec(), 3, rest), items);
        assert_eq!(at_most(items.to_vec(), 1, rest), ["a", "2 more"]);
    }

    #[test]
    fn columns_are_as_wide_as_their_cells_and_the_first_is_cut_where_the_terminal_is_narrow() {
        let mut table = Table::new(["guest", "J"], 1..2);
        table.row(["a guest with a long name", "10"]);
        table.row(["b\u{1b}[1m", "7"]);
        assert_eq!(
            table.lines(80),
            [
                "  guest                      J",
                "  a guest with a long name  10",
                "  b [1m                      7"
            ]
        );
        assert_eq!(table.lines(24)[1], "  a guest with a lo…  10");
        assert!(
            table
                .markdown()
                .starts_with("| guest | J |\n|---|---:|\n| a guest")
        );
        table.row(["a title that is wider than the table"]);
        assert_eq!(table.lines(20)[3], "  a title that is w…");
        assert_eq!(table.lines(80)[0], "    guest                      J");
    }
}
