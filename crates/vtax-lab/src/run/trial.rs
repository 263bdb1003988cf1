// SPDX-License-Identifier: Apache-2.0
//! The execution of one trial of any experiment, with its record and the restoration of the host.

use super::{Assignment, Event, Experiment, Progress};
use crate::LabError;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::time::Instant;
use vtax_core::Nanoseconds;
use vtax_host::journal::Journal;
use vtax_report::results::{
    Actor, FORMAT, Metric, ObjectiveOutcome, ObservationCost, Phase, PhaseTimes, Treatment, Trial,
    TrialOutcome, TrialWriter, Work,
};

/// The record of a trial so far; the fields are those of [`Trial`].
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "documented there")]
pub struct Attempt {
    /// The start time, if another process measured it and the trial's times; unset: the time of the call.
    pub started: Option<String>,
    pub times: PhaseTimes,
    pub window: (Nanoseconds, Nanoseconds),
    pub suspect: Vec<String>,
    pub disturbed: Vec<String>,
    pub environment: BTreeMap<String, String>,
    pub observation: ObservationCost,
    pub work: Option<Work>,
    pub metrics: BTreeMap<String, Metric>,
    pub actors: Vec<Actor>,
    pub phases: Vec<Phase>,
    pub objective: Option<ObjectiveOutcome>,
}

/// Runs a trial and stores its record, failed or not. The host is restored in either case.
///
/// # Errors
/// When the run cannot continue: it is interrupted, the record cannot be stored, or the host cannot be
/// restored. A failed trial is a record and no error, unless no further trial can run.
pub(super) fn run(
    experiment: &mut dyn Experiment,
    assignment: Assignment,
    treatment: &Treatment,
    journal: &mut Journal,
    writer: TrialWriter,
    watchers: Watchers<'_>,
) -> Result<Trial, LabError> {
    let began = Instant::now();
    let mut log = Log {
        file: writer.log()?,
        began,
        watchers,
    };
    let started = jiff::Timestamp::now().to_string();
    let mark = journal.mark();
    let mut attempt = Attempt::default();
    let outcome = experiment.perform(assignment, journal, &writer, &mut log, &mut attempt);
    let restored = journal.undo_to(mark);
    if let Err(cause) = &restored {
        log.line(&format!("could not restore the host: {cause}"));
    }
    for left in journal.take_left() {
        log.line(&left.to_string());
    }
    let mut end_of_run = None;
    let outcome = match outcome {
        Ok(()) => TrialOutcome::Complete,
        Err(cause) if cause.is_interrupt() => {
            restored?;
            return Err(cause);
        }
        Err(cause) => {
            log.line(&format!("failed: {cause}"));
            let failed = TrialOutcome::Failed(cause.to_string());
            end_of_run = Some(cause).filter(LabError::ends_run);
            failed
        }
    };
    let mut times = attempt.times;
    if attempt.started.is_none() {
        times.total = began.elapsed().into();
    }
    times.teardown = [
        times.idle,
        times.boot,
        times.service,
        times.warmup,
        times.measured,
    ]
    .iter()
    .fold(times.total, |rest, phase| rest.saturating_since(*phase));
    let trial = Trial {
        format: FORMAT,
        index: assignment.index,
        block: assignment.block,
        treatment: treatment.clone(),
        started: attempt.started.unwrap_or(started),
        outcome,
        suspect: attempt.suspect,
        disturbed: attempt.disturbed,
        times,
        window: attempt.window,
        work: attempt.work,
        metrics: attempt.metrics,
        environment: attempt.environment,
        observation: attempt.observation,
        actors: attempt.actors,
        phases: attempt.phases,
        objective: attempt.objective,
    };
    writer.finish(trial.clone())?;
    restored?;
    match end_of_run {
        Some(cause) => Err(cause),
        None => Ok(trial),
    }
}

/// The receivers of a trial's events: the run's progress, and the trial's file of events. An emulated host has no
/// such file, because no program could read it.
pub(super) struct Watchers<'a> {
    pub events: Option<File>,
    pub progress: &'a mut dyn Progress,
}

/// The trial's log, with times in seconds since the trial began, and the receivers of its events.
pub struct Log<'a> {
    pub(super) file: File,
    pub(super) began: Instant,
    pub(super) watchers: Watchers<'a>,
}

impl Log<'_> {
    /// Writes a line into the log.
    pub fn line(&mut self, text: &str) {
        let at = self.began.elapsed().as_secs_f64();
        // A failure to write the log does not fail the trial. Errors of the record itself are checked.
        let _ = writeln!(self.file, "{at:9.3} {text}");
    }

    /// Reports that the trial enters a phase, in the log and as an event.
    pub fn phase(&mut self, phase: &str) {
        self.line(phase);
        self.event(Event::Phase {
            phase: phase.to_owned(),
        });
    }

    /// Reports an event.
    pub fn event(&mut self, event: Event) {
        if let Some(file) = &mut self.watchers.events
            && let Ok(mut line) = serde_json::to_vec(&event)
        {
            line.push(b'\n');
            // As with the log, a failure to write does not fail the trial.
            let _ = file.write_all(&line);
        }
        self.watchers.progress.event(event);
    }
}
