// SPDX-License-Identifier: Apache-2.0
//! The commands, one module for each.

pub mod accuracy;
pub mod actor;
pub mod advise;
pub mod atlas;
pub mod bill;
pub mod charge;
pub mod density;
pub mod doctor;
pub mod dry_run;
pub mod explain;
pub mod fleet;
pub mod generate;
pub mod image;
pub mod load;
pub mod meter;
pub mod next;
pub mod one_liner;
pub mod plan;
pub mod precision;
pub mod record;
pub mod report;
pub mod run;
pub mod testbed;

use crate::Outcome;
use vtax_core::counted;
use vtax_report::analysis::Analysis;
use vtax_report::gate::{self, GateOutcome, JudgedGate};

/// A run whose every trial is suspect, failed or damaged: it ended in order, and measured nothing that counts.
#[derive(Debug, thiserror::Error)]
#[error("none of {} counts; the report gives the reason of each", counted(self.planned, "trial"))]
pub struct NothingCounts {
    planned: usize,
}

impl NothingCounts {
    /// Checks that a trial of a run counts.
    ///
    /// # Errors
    /// When no trial does.
    pub fn check(analysis: &Analysis) -> Result<(), Self> {
        let counts = analysis.counts;
        if counts.counted > 0 || counts.planned == 0 {
            return Ok(());
        }
        Err(Self {
            planned: counts.planned,
        })
    }
}

/// Gates that are missed or undecided.
#[derive(Debug, thiserror::Error)]
#[error("{} of {}", self.count, counted(self.of, "gate"))]
pub struct GatesNotPassed {
    /// The worst outcome.
    pub worst: GateOutcome,
    count: String,
    of: usize,
}

impl GatesNotPassed {
    /// Checks that every gate is passed.
    ///
    /// # Errors
    /// When one is missed or undecided.
    pub fn check(judged: &[JudgedGate]) -> Result<(), Self> {
        let number = |outcome| judged.iter().filter(|one| one.outcome == outcome).count();
        let parts = [GateOutcome::Missed, GateOutcome::Undecided]
            .map(|outcome| (number(outcome), outcome))
            .into_iter()
            .filter(|(number, _)| *number > 0)
            .map(|(number, outcome)| format!("{number} {outcome}"));
        let count = parts.collect::<Vec<_>>().join(" and ");
        match gate::worst(judged) {
            _ if judged.is_empty() => Ok(()),
            GateOutcome::Passed => Ok(()),
            worst => Err(Self {
                worst,
                count,
                of: judged.len(),
            }),
        }
    }
}

/// Prints one JSON document.
fn json(value: &impl serde::Serialize) -> Outcome {
    Ok(crate::output::write_data(&serde_json::to_string_pretty(
        value,
    )?)?)
}
