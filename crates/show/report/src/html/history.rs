// SPDX-License-Identifier: Apache-2.0
//! The page of a history: each change with its first run, and each series as a figure.

use super::frame::{DASH, FIGURES, Page, SUMMARY, TABLES, drawn, links, section, table};
use crate::figures::of_history;
use crate::history::{Change, History, Of, Series};
use maud::{Markup, html};
use vtax_core::counted;
use vtax_results::numbers::{percent, when};

/// Renders the page as HTML.
pub fn page(history: &History) -> String {
    let figures = of_history(history);
    let what = match history.of {
        Of::Tax => "Ratios to the baseline",
        Of::Cost => "Values",
    };
    Page {
        kind: "vtax history",
        name: &history.name,
        lede: &format!("{what} over {}.", counted(history.runs.len(), "run")),
        head: html! {},
        contents: links(&[SUMMARY, FIGURES, TABLES]),
        body: html! {
            (section(SUMMARY, &found(history)))
            (drawn(&figures))
            (section(TABLES, &runs(history)))
        },
        style: "",
        figures: Some(&figures),
    }
    .render()
}

fn found(history: &History) -> Markup {
    let steady = history.series.iter().filter(|one| one.changes.is_empty());
    let steady = steady.count();
    html! {
        ul.findings {
            @for (series, change) in changes(history) {
                li.different {
                    (series.heading()) ": " (series.in_words(change, directory(history, change.since)))
                    @for fact in &change.with { br; "with it: " (fact) }
                }
            }
            @if steady > 0 {
                li {
                    "No change of " (percent(history.minimum_effect)) " or more is shown in "
                    (steady) " series."
                }
            }
            @for caution in &history.cautions { li { (caution) } }
        }
    }
}

fn changes(history: &History) -> impl Iterator<Item = (&Series, &Change)> {
    let series = history.series.iter();
    series.flat_map(|one| one.changes.iter().map(move |change| (one, change)))
}

fn directory(history: &History, run: usize) -> &str {
    history
        .runs
        .get(run)
        .map_or(DASH, |run| run.directory.as_str())
}

fn runs(history: &History) -> Markup {
    let rows = html! {
        @for (number, run) in (1..).zip(&history.runs) {
            tr {
                td { (number) }
                td { (run.directory) }
                td { (when(&run.started)) }
                td { (run.left_out.as_deref().unwrap_or(DASH)) }
            }
        }
    };
    table(["run", "directory", "started", "left out because"], &rows)
}
