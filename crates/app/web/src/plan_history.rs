// SPDX-License-Identifier: Apache-2.0
//! The history of a plan's runs, as the page of `vtax history`.

use crate::analyses::Analyses;
use crate::error::RequestError;
use crate::results::Results;
use std::sync::Arc;
use vtax_report::analysis::Analysis;
use vtax_report::history::{Of, history};
use vtax_report::html;

impl Analyses {
    /// The page over the last runs of the plan with this name: the ratios to the baselines, or the treatments' own
    /// values where the plan has no baseline.
    ///
    /// # Errors
    /// When the plan has no run, or one cannot be read.
    pub fn history(&self, results: &Results, plan: &str) -> Result<String, RequestError> {
        let runs = results.of_plan(plan);
        if runs.is_empty() {
            return Err(RequestError::NoPlanRun {
                plan: plan.to_owned(),
                root: results.root().to_owned(),
            });
        }
        let runs: Vec<Arc<Analysis>> = runs
            .iter()
            .map(|run| Ok(self.analysis(run)?))
            .collect::<Result<_, RequestError>>()?;
        let of = |of| history(runs.iter().map(AsRef::as_ref), of, &[]);
        let mut found = of(Of::Tax);
        if found.series.is_empty() {
            found = of(Of::Cost);
        }
        Ok(html::history::page(&found))
    }
}
