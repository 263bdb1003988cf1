// SPDX-License-Identifier: Apache-2.0
//! The matrix of all figures at the top of the page: a sign and a colour for each verdict.

use crate::Entry;
use crate::catalogue::Paper;
use crate::verdict::FigureVerdict;
use maud::{Markup, html};

/// The badge of an effect whose size is the published one.
pub(crate) const SAME_SIZE: &str = "same size";

/// The sign of a verdict and the class of its colour. The sign alone identifies the verdict.
pub(crate) fn sign(verdict: Option<FigureVerdict>) -> (&'static str, &'static str) {
    match verdict {
        Some(FigureVerdict::SameDirection) => ("✓", "yes"),
        Some(FigureVerdict::Partly) => ("◐", "open"),
        Some(FigureVerdict::NotShown) => ("○", "open"),
        Some(FigureVerdict::Contradicts) => ("✕", "no"),
        Some(FigureVerdict::Unknown) => ("?", "open"),
        None => ("–", "open"),
    }
}

/// The name of a verdict; of a figure without vote, the lack of it.
pub(crate) fn name(verdict: Option<FigureVerdict>) -> &'static str {
    verdict.map_or("not counted", FigureVerdict::name)
}

/// The verdict on a figure in words, with its size where that is the same.
fn in_words(entry: &Entry<'_>) -> String {
    let name = name(entry.verdict());
    if entry.same_size() {
        format!("{name}, {SAME_SIZE}")
    } else {
        name.to_owned()
    }
}

/// One row for each paper, one cell for each figure, and the legend with counts.
pub(crate) fn matrix(papers: &[(&Paper, Vec<&Entry<'_>>)]) -> Markup {
    let kinds = FigureVerdict::ALL.map(Some).into_iter().chain([None]);
    let entries = || papers.iter().flat_map(|(_, own)| own);
    html! {
        dl.matrix {
            @for (paper, own) in papers {
                dt { a href={ "#" (paper.key) } { (paper.authors) } }
                dd { @for entry in own { (cell(entry)) } }
            }
        }
        ul.facts {
            @for verdict in kinds {
                @let number = entries().filter(|entry| entry.verdict() == verdict).count();
                @let sized = entries().filter(|entry| entry.verdict() == verdict && entry.same_size()).count();
                li {
                    b { (sign(verdict).0) } " " (name(verdict)) " " b { (number) }
                    @if sized > 0 { ", " (SAME_SIZE) " " b { (sized) } }
                }
            }
        }
    }
}

/// The cell of a figure: the sign of its verdict and its number, as a link to it.
fn cell(entry: &Entry<'_>) -> Markup {
    let verdict = entry.verdict();
    let (sign, class) = sign(verdict);
    html! {
        a.cell.(class) href={ "#" (entry.anchor()) } title={ (entry.figure.title) ": " (in_words(entry)) } {
            b { (sign) } " " (short(&entry.figure.number))
        }
    }
}

/// The number of a figure without the word.
fn short(number: &str) -> &str {
    let prefixes = ["Figures ", "Figure "];
    let mut found = prefixes
        .iter()
        .filter_map(|prefix| number.strip_prefix(prefix));
    found.next().unwrap_or(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_verdict_has_a_sign_of_its_own() {
        let all = FigureVerdict::ALL.map(Some).into_iter().chain([None]);
        let signs: HashSet<&str> = all.map(|verdict| sign(verdict).0).collect();
        assert_eq!(signs.len(), FigureVerdict::ALL.len() + 1);
    }

    #[test]
    fn a_cell_has_the_number_of_its_figure() {
        assert_eq!(short("Figure 7"), "7");
        assert_eq!(short("Figures 6 to 12"), "6 to 12");
        assert_eq!(short("Table I"), "Table I");
    }
}
