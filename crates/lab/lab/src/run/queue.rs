// SPDX-License-Identifier: Apache-2.0
//! The queue of trials that are still to run, in the order of the schedule. A trial that does not count runs again
//! at the end of its block, close to the trials of its pair, until the run's share of repeated trials is used up.

use super::Assignment;
use crate::LabError;
use crate::plan::Shard;
use std::collections::{BTreeMap, VecDeque};
use tracing::warn;
use vtax_results::{Aside, ResultsDir, Trial, TrialOutcome};

/// The most attempts of a trial.
const MOST_ATTEMPTS: u32 = 3;

/// The trials that are still to run.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: VecDeque<Assignment>,
    /// The reasons to run trials with a record again.
    reasons: BTreeMap<u32, String>,
    attempts: BTreeMap<u32, u32>,
    /// Trials whose record cannot be read, with the reason.
    damaged: BTreeMap<u32, String>,
    /// The number of further trials that may run again.
    budget: usize,
    already: usize,
}

impl Queue {
    /// Returns the trials of a shard that a results directory lacks, and those that do not count, up to `share` of
    /// all trials.
    pub(super) fn from_results(results: &ResultsDir, shard: Option<&Shard>, share: f64) -> Self {
        let ours = |block: u32| shard.is_none_or(|shard| shard.contains(block));
        let scheduled: Vec<Assignment> = (0..)
            .zip(&results.run().schedule)
            .filter(|(_, scheduled)| ours(scheduled.block))
            .map(|(index, scheduled)| Assignment {
                treatment: scheduled.treatment,
                index,
                block: scheduled.block,
            })
            .collect();
        let mut attempts: BTreeMap<u32, u32> = BTreeMap::new();
        for attempt in results.attempts() {
            *attempts.entry(attempt.index).or_default() += 1;
        }
        let used: u32 = attempts.values().sum();
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a count"
        )]
        let budget = (share * scheduled.len() as f64) as usize;
        let mut queue = Self {
            waiting: VecDeque::new(),
            reasons: BTreeMap::new(),
            damaged: results
                .damaged()
                .into_iter()
                .map(|(index, cause)| (index, format!("its record is damaged ({cause})")))
                .collect(),
            attempts,
            budget: budget.saturating_sub(usize::try_from(used).unwrap_or(usize::MAX)),
            already: 0,
        };
        let pending = results.pending();
        for assignment in scheduled {
            let missing = pending.binary_search(&assignment.index).is_ok();
            if missing || queue.wants_again(results, assignment) {
                queue.waiting.push_back(assignment);
            } else {
                queue.already += 1;
            }
        }
        queue
    }

    /// Returns the number of trials still to run.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of trials that were finished when the run began.
    pub(super) fn already(&self) -> usize {
        self.already
    }

    /// Returns the treatments of the trials still to run.
    pub(super) fn treatments(&self) -> impl Iterator<Item = usize> {
        self.waiting.iter().map(|assignment| assignment.treatment)
    }

    /// Removes and returns the next trial.
    pub(super) fn next(&mut self) -> Option<Assignment> {
        self.waiting.pop_front()
    }

    /// Moves the record of a trial that runs again aside, as evidence. Returns the reason why the record does not
    /// count; `None` for the first attempt.
    ///
    /// # Errors
    /// When the record cannot be moved.
    pub(super) fn set_aside(
        &mut self,
        results: &ResultsDir,
        index: u32,
    ) -> Result<Option<String>, LabError> {
        let Some(reason) = self.reasons.remove(&index) else {
            return Ok(None);
        };
        let aside = match results.trial(index) {
            Ok(trial) if trial.outcome != TrialOutcome::Complete => Aside::Failed,
            _ => Aside::Again,
        };
        results.set_aside(index, aside)?;
        Ok(Some(reason))
    }

    /// Puts a trial that does not count at the end of its block, if it may run again.
    pub(super) fn judge(&mut self, assignment: Assignment, trial: &Trial) {
        let Some(reason) = why_not_counted(trial) else {
            return;
        };
        if !self.take_from_budget(assignment.index) {
            warn!(
                "trial {:04} does not count and does not run again: it had its attempts, or the run its repeated trials",
                assignment.index
            );
            return;
        }
        self.reasons.insert(assignment.index, reason);
        let end = self
            .waiting
            .iter()
            .position(|other| other.block != assignment.block)
            .unwrap_or(self.waiting.len());
        self.waiting.insert(end, assignment);
    }

    fn wants_again(&mut self, results: &ResultsDir, assignment: Assignment) -> bool {
        let trial = results.trial(assignment.index);
        let reason = match &trial {
            Ok(trial) => self
                .damage(assignment.index)
                .or_else(|| why_not_counted(trial)),
            Err(cause) => Some(format!("its record is damaged ({cause})")),
        };
        let Some(reason) = reason else {
            return false;
        };
        if self.damage(assignment.index).is_some() || trial.is_err() {
            warn!("trial {:04}: {reason}", assignment.index);
        }
        // A trial that failed or whose record is damaged takes nothing from the budget: a user who runs a plan again has
        // removed the cause.
        let is_usable = self.damage(assignment.index).is_none()
            && trial.is_ok_and(|trial| trial.outcome == TrialOutcome::Complete);
        let is_again = !is_usable || self.take_from_budget(assignment.index);
        if is_again {
            self.reasons.insert(assignment.index, reason);
        }
        is_again
    }

    fn damage(&self, index: u32) -> Option<String> {
        self.damaged.get(&index).cloned()
    }

    fn take_from_budget(&mut self, index: u32) -> bool {
        let attempts = self.attempts.entry(index).or_default();
        if self.budget == 0 || *attempts + 1 >= MOST_ATTEMPTS {
            return false;
        }
        *attempts += 1;
        self.budget -= 1;
        true
    }
}

/// Returns the reason why a trial does not count; `None` when it counts.
fn why_not_counted(trial: &Trial) -> Option<String> {
    match &trial.outcome {
        TrialOutcome::Failed(reason) => Some(format!("it failed: {reason}")),
        TrialOutcome::Complete if trial.suspect.is_empty() => None,
        TrialOutcome::Complete => Some(trial.suspect.join("; ")),
    }
}
