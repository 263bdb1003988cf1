// SPDX-License-Identifier: Apache-2.0
//! The table of a comparison of runs, as `vtax compare` prints it.

use crate::analyses::Analyses;
use crate::curves::Panel;
use crate::error::RequestError;
use crate::notes::Note;
use crate::results::Results;
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;
use vtax_report::analysis::{Analysis, Comparison};
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
            .map(|dir| Ok(self.analysis(&results.open(dir)?)?))
            .collect::<Result<_, RequestError>>()?;
        let (first, others) = analyses.split_first().ok_or(count)?;
        let others: Vec<&Analysis> = others.iter().map(AsRef::as_ref).collect();
        let compared = compare::compare(first, &others);
        let rows = compare::side_by_side(&compared.others, |row| all || row.is_shown());
        let rows = rows.into_iter().map(|(first, row)| {
            let cells = row.into_iter().map(|row| row.map(cell));
            json!({
                "treatment": first.treatment,
                "metric": first.metric,
                "title": first.title,
                "cells": cells.collect::<Vec<_>>(),
            })
        });
        let runs = dirs.iter().zip(&analyses);
        let runs =
            runs.map(|(dir, run)| json!({ "dir": dir, "name": run.name, "started": run.started }));
        Ok(ComparisonTable {
            runs: runs.collect(),
            rows: rows.collect(),
            only_first: (compared.others.iter())
                .map(|run| run.only_first.clone())
                .collect(),
            only_here: (compared.others.iter())
                .map(|run| run.only_here.clone())
                .collect(),
            cautions: compared.cautions,
            notes: Vec::new(),
            panels: Vec::new(),
        })
    }
}

/// Runs compared with the first.
#[derive(Debug, Serialize)]
pub struct ComparisonTable {
    /// The runs; the first is the one that the others are compared with.
    runs: Vec<Value>,
    /// Each has a cell for each run but the first; none where the run lacks this row.
    rows: Vec<Value>,
    /// For each of the other runs, the treatments that it lacks.
    only_first: Vec<Vec<String>>,
    /// For each of the other runs, the treatments that the first run lacks.
    only_here: Vec<Vec<String>>,
    cautions: Vec<String>,
    /// The notes of each run.
    pub notes: Vec<Vec<Note>>,
    /// The curves of the runs.
    pub panels: Vec<Panel>,
}

fn cell(row: &Comparison) -> Value {
    let interval = row.interval();
    json!({
        "words": row.ratio_in_words(),
        "ratio": row.ratio,
        "interval": interval.map(|interval| (interval.low, interval.high)),
        "different": row.judgement.verdict == Verdict::Different,
        "verdict": row.judgement.verdict.words(),
        "repetitions": row.repetitions(),
        "source": row.source.words(row.modelled),
        "note": row.note,
    })
}
