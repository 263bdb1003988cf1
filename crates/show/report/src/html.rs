// SPDX-License-Identifier: Apache-2.0
//! `report.html`: one self-contained file that works offline, on a phone and on paper.

mod files;
pub mod frame;
pub mod history;
mod provenance;
mod summary;
mod tables;

pub use files::{write_figures, write_page, write_report};
pub use frame::PALETTE;
pub use provenance::Provenance;

use crate::analysis::Analysis;
use crate::figures::{Figure, figures};
use maud::html;

/// Renders the report as HTML.
pub fn render(analysis: &Analysis, provenance: &Provenance) -> String {
    page(analysis, provenance, &figures(analysis))
}

fn page(analysis: &Analysis, provenance: &Provenance, figures: &[Figure]) -> String {
    frame::Page {
        kind: "vtax report",
        name: &analysis.name,
        lede: &analysis.description,
        head: summary::head(analysis),
        contents: frame::contents(),
        body: html! {
            (summary::found(analysis, figures.first()))
            (frame::more_drawn(figures.get(1..).unwrap_or_default()))
            (tables::tables(analysis))
            (provenance::provenance(analysis, provenance))
        },
        style: "",
        figures: Some(figures),
    }
    .render()
}
