// SPDX-License-Identifier: Apache-2.0
//! The state of a run in progress, folded from its events.

use super::{Event, FinishedTrial, LiveSample, SampledLevel};
use std::collections::{BTreeMap, VecDeque};

/// The number of last notes that are kept.
const MAX_NOTES: usize = 20;
/// The number of last load levels that are kept.
pub const MAX_LEVELS: usize = 500;
/// The number of last live samples that are kept, one a second.
pub const MAX_SAMPLES: usize = 300;

/// The state of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunState {
    /// The last notes.
    pub notes: VecDeque<String>,
    /// The number of finished trials, and of all trials of this call.
    pub done: usize,
    /// The number of trials to run.
    pub of: usize,
    /// The estimate for the missing trials at the end of the last one, in seconds.
    pub remaining: Option<f64>,
    /// Trials in progress, by index.
    pub started: BTreeMap<u32, StartedTrial>,
    /// Finished trials, by index.
    pub finished: BTreeMap<u32, FinishedTrial>,
    /// The present trial.
    pub trial: RunningTrial,
}

/// A trial in progress.
#[derive(Debug, Clone, PartialEq)]
pub struct StartedTrial {
    /// Its treatment's label.
    pub treatment: String,
    /// When its start was read, in seconds.
    pub since: f64,
}

/// The state of the present trial.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunningTrial {
    /// Its phase.
    pub phase: String,
    /// Its objective; empty where it has none.
    pub objective: String,
    /// Its last load levels.
    pub levels: VecDeque<SampledLevel>,
    /// Its last live samples.
    pub samples: VecDeque<LiveSample>,
}

impl RunState {
    /// Adds an event that was received at this time, in seconds.
    pub fn add(&mut self, event: Event, at: f64) {
        match event {
            Event::Note { message } => keep(&mut self.notes, message, MAX_NOTES),
            Event::Started {
                trials,
                expected_seconds,
                ..
            } => (self.of, self.remaining) = (trials, Some(expected_seconds)),
            Event::TrialStarted { index, treatment } => {
                // A trial that runs again is not finished.
                self.finished.remove(&index);
                let since = at;
                let started = StartedTrial { treatment, since };
                self.started.insert(index, started);
                self.trial = RunningTrial::default();
            }
            Event::TrialFinished(over) => {
                self.started.remove(&over.index);
                self.remaining = Some(over.remaining_seconds);
                self.done = over.done;
                self.finished.insert(over.index, over);
            }
            of_trial => self.trial.add(of_trial),
        }
    }
}

impl RunningTrial {
    /// Adds an event of the trial.
    pub fn add(&mut self, event: Event) {
        match event {
            Event::Phase { phase } => self.phase = phase,
            Event::Objective { text } => self.objective = text,
            Event::Sampled(level) => keep(&mut self.levels, level, MAX_LEVELS),
            Event::Metered(sample) => keep(&mut self.samples, sample, MAX_SAMPLES),
            _ => {}
        }
    }
}

/// Adds an item, and drops the first where there would be more than `most`.
fn keep<T>(all: &mut VecDeque<T>, one: T, most: usize) {
    if all.len() >= most {
        all.pop_front();
    }
    all.push_back(one);
}
