// SPDX-License-Identifier: Apache-2.0
//! The table of a comparison of runs, as `vtax compare` prints it.

use crate::analyses::Analyses;
use crate::error::RequestError;
use crate::results::Results;
use serde::Serialize;
use std::sync::Arc;
use vtax_report::analysis::Analysis;
use vtax_report::compare;
use vtax_results::stats::Verdict;

/// The largest number of runs in one comparison.
pub const MAX_COMPARED: usize = 8;

impl Analyses {
    /// Compares runs with the first of them: headline metrics and metrics that differ, or with `all` every metric.
    ///
    /// # Errors
    /// When there are too few or too many runs, or one cannot be read.
    pub fn compare(
        &self,
        results: &Results,
        dirs: &[String],
        all: bool,
    ) -> Result<ComparisonTable, RequestError> {
        let count = RequestError::RunCount {
            least: 2,
            most: MAX_COMPARED,
            action: "compare",
        };
        if !(2..=MAX_COMPARED).contains(&dirs.len()) {
            return Err(count);
        }
        let analyses: Vec<Arc<Analysis>> = dirs
            .iter()
            .map(|dir| Ok(self.of(&results.open(dir)?)?))
            .collect::<Result<_, RequestError>>()?;
        let (first, others) = analyses.split_first().ok_or(count)?;
        let others: Vec<&Analysis> = others.iter().map(AsRef::as_ref).collect();
        let compared = compare::compare(first, &others);
        let rows = compare::side_by_side(&compared.others, |row| all || row.is_shown());
        let rows = rows.into_iter().map(|(first, row)| ComparisonRow {
            treatment: first.treatment.clone(),
            metric: first.metric.clone(),
            title: first.title.clone(),
            cells: row.into_iter().map(|cell| cell.map(Cell::of)).collect(),
        });
        Ok(ComparisonTable {
            runs: dirs
                .iter()
                .zip(&analyses)
                .map(|(dir, run)| RunHeading {
                    dir: dir.clone(),
                    name: run.name.clone(),
                    started: run.started.clone(),
                })
                .collect(),
            rows: rows.collect(),
            only_first: (compared.others.iter())
                .map(|run| run.only_first.clone())
                .collect(),
            only_here: (compared.others.iter())
                .map(|run| run.only_here.clone())
                .collect(),
            cautions: compared.cautions,
        })
    }
}

/// Runs compared with the first.
#[derive(Debug, Serialize)]
pub struct ComparisonTable {
    /// The runs; the first is the one that the others are compared with.
    runs: Vec<RunHeading>,
    rows: Vec<ComparisonRow>,
    /// For each of the other runs, the treatments that it lacks.
    only_first: Vec<Vec<String>>,
    /// For each of the other runs, the treatments that the first run lacks.
    only_here: Vec<Vec<String>>,
    cautions: Vec<String>,
}

#[derive(Debug, Serialize)]
struct RunHeading {
    dir: String,
    name: String,
    started: String,
}

#[derive(Debug, Serialize)]
struct ComparisonRow {
    treatment: String,
    metric: String,
    title: String,
    /// One for each run but the first; none where the run lacks this row.
    cells: Vec<Option<Cell>>,
}

#[derive(Debug, Serialize)]
struct Cell {
    words: Option<String>,
    ratio: Option<f64>,
    interval: Option<(f64, f64)>,
    different: bool,
    verdict: &'static str,
    repetitions: Option<String>,
    source: String,
    note: Option<String>,
}

impl Cell {
    fn of(row: &vtax_report::analysis::Comparison) -> Self {
        let interval = row.interval();
        Self {
            words: row.ratio_in_words(),
            ratio: row.ratio,
            interval: interval.map(|interval| (interval.low, interval.high)),
            different: row.judgement.verdict == Verdict::Different,
            verdict: row.judgement.verdict.words(),
            repetitions: row.repetitions(),
            source: row.source.words(row.modelled),
            note: row.note.clone(),
        }
    }
}
