// SPDX-License-Identifier: Apache-2.0
//! Writes the files of a report into the results directory, each atomically.

use super::{Provenance, page};
use crate::analysis::Analysis;
use crate::figures::{Figure, figures};
use serde_json::{Value, json};
use std::path::PathBuf;
use vtax_results::{ResultsDir, ResultsError};

/// Writes `report.html`, `analysis.json` and `figures/*.vl.json` into the results directory. Returns the path of the
/// report.
///
/// # Errors
/// When a file cannot be written.
pub fn write_report(results: &ResultsDir, analysis: &Analysis) -> Result<PathBuf, ResultsError> {
    let figures = figures(analysis);
    write_figures(results, &figures)?;
    let text = pretty(&json!(analysis));
    results.dir().write("analysis.json", text.as_bytes())?;
    write_page(
        results,
        &page(analysis, &Provenance::from_results(results), &figures),
    )
}

/// Writes `figures/*.vl.json` into the results directory and replaces the existing ones.
///
/// # Errors
/// When a file cannot be written.
pub fn write_figures(results: &ResultsDir, figures: &[Figure]) -> Result<(), ResultsError> {
    let folder = results.dir().create_dir("figures")?;
    // An old figure that this analysis lacks would look like one of its own.
    for entry in folder.list()? {
        if entry.name.to_string_lossy().ends_with(".vl.json") {
            folder.remove_file(&entry.name)?;
        }
    }
    for figure in figures {
        let mut spec = figure.spec.clone();
        if let Some(width) = spec.get_mut("width") {
            // A file has no container to take the width from.
            *width = json!(640);
        }
        folder.write(format!("{}.vl.json", figure.id), pretty(&spec).as_bytes())?;
    }
    Ok(())
}

/// Writes a page as `report.html` of the results directory. Returns its path.
///
/// # Errors
/// When the file cannot be written.
pub fn write_page(results: &ResultsDir, page: &str) -> Result<PathBuf, ResultsError> {
    results.dir().write("report.html", page.as_bytes())?;
    Ok(results.path().join("report.html"))
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}
