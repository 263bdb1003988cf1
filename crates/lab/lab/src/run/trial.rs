// SPDX-License-Identifier: Apache-2.0
//! The execution of one trial of any experiment, with its record and the restoration of the host.

use super::canary::Canary;
use super::{Assignment, Event, Experiment, Progress};
use crate::LabError;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::time::Instant;
use vtax_core::Nanoseconds;
use vtax_host::journal::Journal;
use vtax_results::{
    FORMAT, ObservationCost, PhaseTimes, Treatment, Trial, TrialOutcome, TrialWriter,
};

/// Runs a trial and stores its record, failed or not. The host is restored in either case.
///
/// # Errors
/// When the run cannot continue: it is interrupted, the record cannot be stored, or the host cannot be
/// restored. A failed trial is a record and no error, unless no further trial can run.
pub(super) fn run(
    experiment: &mut dyn Experiment,
    assignment: Assignment,
    treatment: &Treatment,
    (journal, canary): (&mut Journal, &mut Canary),
    writer: TrialWriter,
    watchers: Watchers<'_>,
) -> Result<Trial, LabError> {
    canary.read_before(experiment.expected(assignment.treatment));
    let began = Instant::now();
    let mut log = Log {
        file: writer.log()?,
        began,
        watchers,
    };
    let mark = journal.mark();
    let mut trial = begun(assignment, treatment.clone());
    let outcome = experiment.perform(assignment, journal, &writer, &mut log, &mut trial);
    let restored = journal.undo_to(mark);
    if let Err(cause) = &restored {
        log.line(&format!("could not restore the host: {cause}"));
    }
    for left in journal.take_left() {
        log.line(&left.to_string());
    }
    let mut end_of_run = None;
    trial.outcome = match outcome {
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
    let times = &mut trial.times;
    // Another process may have measured the trial, and its times.
    if times.total == Nanoseconds(0) {
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
    // The host is restored, so that the canary does not see the trial's settings.
    trial.observation.canary = canary.read_after();
    writer.finish(trial.clone())?;
    restored?;
    match end_of_run {
        Some(cause) => Err(cause),
        None => Ok(trial),
    }
}

/// Returns the record of a trial that begins now.
pub(super) fn begun(assignment: Assignment, treatment: Treatment) -> Trial {
    Trial {
        format: FORMAT,
        index: assignment.index,
        block: assignment.block,
        treatment,
        started: jiff::Timestamp::now().to_string(),
        outcome: TrialOutcome::Complete,
        suspect: Vec::new(),
        disturbed: Vec::new(),
        times: PhaseTimes::default(),
        window: (Nanoseconds(0), Nanoseconds(0)),
        work: None,
        metrics: BTreeMap::new(),
        environment: BTreeMap::new(),
        observation: ObservationCost::default(),
        actors: Vec::new(),
        phases: Vec::new(),
        objective: None,
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
