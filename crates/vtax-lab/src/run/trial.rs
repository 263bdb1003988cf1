//! One trial, from an untouched host to an untouched host with one more directory of results.

use super::instruments::{self, SampleSink};
use super::measure::{Inner, Observation};
use super::progress::{Event, Progress};
use crate::LabError;
use crate::plan::{Catalogue, Plan, PlannedTreatment};
use crate::suspect::{self, HostWatch, OwnWork};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vtax_guest::platform::{GuestFiles, Platform, Target};
use vtax_host::HostError;
use vtax_host::cell::{Cell, CellConfig, Client};
use vtax_host::host_settings;
use vtax_host::journal::Journal;
use vtax_host::meters::Meters;
use vtax_host::roots::Roots;
use vtax_host::scratch;
use vtax_host::signals::Signals;
use vtax_load::workload::{Extent, Load, Service, Timing, Workload, WorkloadResult};
use vtax_observe::clock::SystemClock;
use vtax_observe::{Observer, ObserverConfig, ObserverReport, Snapshot, metric};
use vtax_report::results::{FORMAT, ObservationCost, PhaseTimes, Trial, TrialOutcome, TrialWriter};
use vtax_units::{Hertz, Nanoseconds, Source};

/// How often a load's end is looked for where that costs nothing (the client's own processes).
const POLL: Duration = Duration::from_millis(5);
/// Beyond its planned time, a load may take this long to finish and print.
const LOAD_GRACE: Duration = Duration::from_secs(30);
/// A load may end this much, or a tenth of the window, before the window does: it started first.
const END_TOLERANCE: Duration = Duration::from_millis(250);
/// A run-to-completion load that takes longer than this has failed.
const COMPLETION_LIMIT: Duration = Duration::from_secs(3600);

/// What all trials of a run share.
pub(super) struct Bench<'a> {
    pub plan: &'a Plan,
    pub catalogue: &'a Catalogue,
    pub guest: &'a GuestFiles,
    pub roots: &'a Roots,
    pub meters: &'a Meters,
    pub signals: &'a Signals,
    pub cache_dir: &'a Path,
    pub host: Source,
}

/// One trial to run.
pub(super) struct Assignment<'a> {
    pub treatment: &'a PlannedTreatment,
    pub index: u32,
    pub block: u32,
}

/// Runs a trial and stores its record, failed or not. The host is restored in either case.
///
/// # Errors
/// When the run cannot go on: interrupted, the record cannot be stored, or the host cannot be
/// restored. A trial that merely failed is a record.
pub(super) fn run(
    bench: &Bench<'_>,
    assignment: &Assignment<'_>,
    journal: &mut Journal,
    writer: TrialWriter,
    progress: &mut dyn Progress,
) -> Result<Trial, LabError> {
    let began = Instant::now();
    let mut log = Log {
        file: writer.log()?,
        began,
    };
    let started = jiff::Timestamp::now().to_string();
    let mark = journal.mark();
    let mut attempt = Attempt::default();
    let outcome = perform(
        bench,
        assignment,
        journal,
        &writer,
        progress,
        &mut log,
        &mut attempt,
    );
    let restored = journal.undo_to(mark);
    if let Err(cause) = &restored {
        log.line(&format!("could not restore the host: {cause}"));
    }
    let outcome = match outcome {
        Ok(()) => TrialOutcome::Complete,
        Err(cause) if cause.is_interrupt() => {
            restored?;
            return Err(cause);
        }
        Err(cause) => {
            log.line(&format!("failed: {cause}"));
            TrialOutcome::Failed(cause.to_string())
        }
    };
    attempt.times.total = began.elapsed().into();
    let spent = attempt.times;
    let known = [spent.boot, spent.service, spent.warmup, spent.measured];
    attempt.times.teardown = known
        .iter()
        .fold(spent.total, |rest, phase| rest.saturating_since(*phase));
    let trial = Trial {
        format: FORMAT,
        index: assignment.index,
        block: assignment.block,
        treatment: assignment.treatment.record.clone(),
        started,
        outcome,
        suspect: attempt.suspect,
        times: attempt.times,
        window: attempt.window,
        work: attempt.result.work,
        metrics: attempt.result.metrics,
        environment: attempt.environment,
        observation: attempt.observation,
        actors: Vec::new(),
        phases: Vec::new(),
        objective: None,
    };
    writer.finish(trial.clone())?;
    restored?;
    Ok(trial)
}

/// What a trial has gathered, complete or not.
#[derive(Default)]
struct Attempt {
    times: PhaseTimes,
    window: (Nanoseconds, Nanoseconds),
    suspect: Vec<String>,
    environment: BTreeMap<String, String>,
    observation: ObservationCost,
    result: Found,
}

#[derive(Default)]
struct Found {
    work: Option<vtax_report::results::Work>,
    metrics: BTreeMap<String, vtax_report::results::Metric>,
}

fn perform(
    bench: &Bench<'_>,
    assignment: &Assignment<'_>,
    journal: &mut Journal,
    writer: &TrialWriter,
    progress: &mut dyn Progress,
    log: &mut Log,
    attempt: &mut Attempt,
) -> Result<(), LabError> {
    let planned = assignment.treatment;
    let settings = &planned.settings;
    let (platform, workload) = kinds(bench.catalogue, planned)?;
    bench.signals.check()?;

    phase(progress, log, "boot");
    let clock = Instant::now();
    host_settings::apply(settings, &bench.roots.sys, journal)?;
    let name = format!("trial-{}-{}", std::process::id(), assignment.index);
    let mut config = CellConfig::from_settings(&name, settings)?;
    let scratch = workload.scratch_mib(settings);
    if scratch > 0 {
        config.scratch = Some(scratch::image(bench.cache_dir, scratch)?);
    }
    let cell = Cell::create(config, journal)?;
    let outlives = platform.outlives(&cell);
    if !outlives.is_empty() {
        journal.record_all(outlives)?;
    }
    let booted = platform.boot(&cell, bench.guest, settings);
    let mut target = match booted {
        Ok(target) => target,
        Err(cause) => return Ok(cell.destroy().and(Err(cause))?),
    };
    attempt.times.boot = clock.elapsed().into();
    attempt.environment = target.environment();

    let done = measure(
        bench,
        assignment,
        workload,
        &cell,
        target.as_mut(),
        writer,
        progress,
        log,
        attempt,
    );
    let console = target.console_tail();
    if !console.trim().is_empty() {
        log.line(&format!("console of the target:\n{console}"));
    }
    phase(progress, log, "stop");
    // Every step is taken even when one before it failed; the first failure is the one to tell.
    let stopped = target.stop();
    let destroyed = cell.destroy();
    done?;
    Ok(stopped.and(destroyed)?)
}

fn kinds(
    catalogue: &Catalogue,
    planned: &PlannedTreatment,
) -> Result<(&'static dyn Platform, &'static dyn Workload), LabError> {
    let platform = catalogue.platform(&planned.record.platform_kind);
    let workload = catalogue.workload(&planned.record.workload_kind);
    platform.zip(workload).ok_or_else(|| {
        LabError::Plan(format!(
            "{} names a platform or workload that does not exist",
            planned.record.label
        ))
    })
}

#[allow(
    clippy::too_many_arguments,
    reason = "the trial's parts, each used once; a struct would only rename them"
)]
fn measure(
    bench: &Bench<'_>,
    assignment: &Assignment<'_>,
    workload: &dyn Workload,
    cell: &Cell,
    target: &mut dyn Target,
    writer: &TrialWriter,
    progress: &mut dyn Progress,
    log: &mut Log,
    attempt: &mut Attempt,
) -> Result<(), LabError> {
    let settings = &assignment.treatment.settings;
    let client = cell.client();
    let timing = Timing {
        warmup: bench.plan.warmup,
        duration: bench.plan.duration,
    };
    bench.signals.check()?;

    phase(progress, log, "service");
    let clock = Instant::now();
    let service = workload.serve(target, &client, settings)?;
    attempt.times.service = clock.elapsed().into();
    bench.signals.check()?;

    let inner_before = (target.inner_counters()?, Instant::now());
    let watch = HostWatch::new(bench.roots, writer.path());
    let (mut watched, absent) = instruments::all(bench.roots, &target.subject(), &client.subject());
    watched.extend(bench.meters.instruments());
    for reason in absent {
        log.line(&format!("not observed: {reason}"));
    }
    let sink = SampleSink::new(writer.samples()?);
    let rate = ObserverConfig {
        rate: Hertz(bench.plan.sample_hz),
    };
    let observer = Observer::start(rate, Arc::new(SystemClock), watched, Box::new(sink))?;

    let window = drive(
        bench, workload, service, target, &client, settings, timing, &observer, &watch, progress,
        log, attempt,
    );
    let report = observer.stop();
    let (window, raw) = window?;
    let report = report?;
    writer.write_workload_json(&raw)?;
    let inner_after = (target.inner_counters()?, Instant::now());
    for (instrument, count, first) in &report.failures {
        log.line(&format!(
            "{instrument} could not be read {count} times: {first}"
        ));
    }

    let result = workload.parse(&raw, settings, timing)?;
    conclude(
        bench,
        target,
        &window,
        &report,
        (&inner_before, &inner_after),
        &result,
        attempt,
    );
    Ok(())
}

/// The measured window: its two marks, and the host's own readings around them.
struct Window {
    begin: Snapshot,
    end: Snapshot,
    before: suspect::HostReading,
    after: suspect::HostReading,
}

#[allow(clippy::too_many_arguments, reason = "as in measure")]
fn drive(
    bench: &Bench<'_>,
    workload: &dyn Workload,
    service: Service,
    target: &mut dyn Target,
    client: &Client,
    settings: &vtax_host::settings::Settings,
    timing: Timing,
    observer: &Observer,
    watch: &HostWatch,
    progress: &mut dyn Progress,
    log: &mut Log,
    attempt: &mut Attempt,
) -> Result<(Window, Vec<u8>), LabError> {
    let to_completion = workload.extent(settings) == Extent::ToCompletion;
    phase(
        progress,
        log,
        if to_completion { "measure" } else { "warm-up" },
    );
    // A run to completion is measured from its first instruction to its last.
    let opening = to_completion.then(|| (watch.read(), observer.mark()));
    let began = Instant::now();
    let mut load = workload.drive(target, client, service, settings, timing)?;
    let (before, begin) = match opening {
        Some((before, mark)) => (before, mark?),
        None => {
            let ended = wait(bench, load.as_mut(), target, began + timing.warmup)?;
            refuse_early_end(ended.as_deref(), "warm-up")?;
            attempt.times.warmup = began.elapsed().into();
            phase(progress, log, "measure");
            (watch.read(), observer.mark()?)
        }
    };
    let opened = Instant::now();
    let raw = if to_completion {
        let raw = wait(bench, load.as_mut(), target, began + COMPLETION_LIMIT)?;
        Some(raw.ok_or_else(|| overdue("the load", COMPLETION_LIMIT))?)
    } else {
        // Loads may end a little before the window does, never long before.
        wait(bench, load.as_mut(), target, opened + timing.duration)?
    };
    if !to_completion && let Some(rest) = timing.duration.checked_sub(opened.elapsed()) {
        if rest > (timing.duration / 10).max(END_TOLERANCE) {
            refuse_early_end(raw.as_deref(), "measured window")?;
        }
        std::thread::sleep(rest);
    }
    let end = observer.mark()?;
    let after = watch.read();
    attempt.times.measured = opened.elapsed().into();
    let raw = match raw {
        Some(raw) => raw,
        None => {
            let limit = timing.warmup + timing.duration + LOAD_GRACE;
            wait(bench, load.as_mut(), target, began + limit)?
                .ok_or_else(|| overdue("the load", limit))?
        }
    };
    attempt.window = (begin.at, end.at);
    Ok((
        Window {
            begin,
            end,
            before,
            after,
        },
        raw,
    ))
}

/// Waits until the load ends or `until` comes; what the load printed, if it ended.
fn wait(
    bench: &Bench<'_>,
    load: &mut dyn Load,
    target: &mut dyn Target,
    until: Instant,
) -> Result<Option<Vec<u8>>, LabError> {
    loop {
        bench.signals.check()?;
        if let Some(raw) = load.poll(target)? {
            return Ok(Some(raw));
        }
        let now = Instant::now();
        if now >= until {
            return Ok(None);
        }
        std::thread::sleep(POLL.min(until - now));
    }
}

fn refuse_early_end(raw: Option<&[u8]>, place: &str) -> Result<(), LabError> {
    let Some(raw) = raw else { return Ok(()) };
    let text = String::from_utf8_lossy(raw);
    let end: String = text
        .chars()
        .rev()
        .take(400)
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
        .collect();
    Err(LabError::other(format!(
        "the load ended in its {place}; the end of what it printed: {end}"
    )))
}

fn overdue(what: &str, limit: Duration) -> LabError {
    LabError::Host(HostError::Timeout {
        what: format!("the end of {what}"),
        seconds: limit.as_secs(),
        evidence: String::new(),
    })
}

/// The guest's own counters, and when they were read.
type InnerReading = (BTreeMap<String, f64>, Instant);

fn conclude(
    bench: &Bench<'_>,
    target: &dyn Target,
    window: &Window,
    report: &ObserverReport,
    (inner_before, inner_after): (&InnerReading, &InnerReading),
    result: &WorkloadResult,
    attempt: &mut Attempt,
) {
    let between = inner_after.1.duration_since(inner_before.1).as_secs_f64();
    let has_inner = !inner_before.0.is_empty() && !inner_after.0.is_empty();
    let span = window.end.at.saturating_since(window.begin.at);
    let sampled = Nanoseconds::from(inner_after.1.duration_since(inner_before.1));
    let observer = share_of(report.cpu, span, sampled);
    let observation = Observation {
        begin: &window.begin,
        end: &window.end,
        processors: online_processors(bench.roots),
        is_vm: target.subject().vmm.is_some(),
        observer,
        energy: &bench.meters.energy,
        inner: has_inner.then_some(Inner {
            before: &inner_before.0,
            after: &inner_after.0,
            between,
        }),
        platform: target.source().combine(bench.host),
    };
    let owned = |owner: &str| {
        let spent = window.end.since(&window.begin, owner, metric::CPU_TOTAL);
        instruments::nanoseconds(spent.map_or(0.0, |quantity| quantity.value))
    };
    let own = OwnWork {
        target: owned("target"),
        client: owned("client"),
        vtax: observer,
        period: Nanoseconds::from(Duration::from_secs_f64(1.0 / bench.plan.sample_hz)),
        observer: report.clone(),
    };
    attempt.suspect = suspect::reasons(&window.before, &window.after, &own);
    attempt.suspect.extend(result.suspect.iter().cloned());
    attempt.observation = ObservationCost {
        cpu: report.cpu,
        passes: report.passes,
        missed: report.missed,
    };
    attempt.result = Found {
        work: observation.work(result),
        metrics: observation.metrics(result),
    };
}

/// Processors that `/proc/stat` counts; an affinity of our own must not lower the number.
fn online_processors(roots: &Roots) -> usize {
    let stat = roots.proc_text("stat").unwrap_or_default();
    let is_processor = |line: &&str| {
        line.strip_prefix("cpu")
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    stat.lines().filter(is_processor).count().max(1)
}

/// The part of `total`, spent evenly over `whole`, that falls into `span`.
fn share_of(total: Nanoseconds, span: Nanoseconds, whole: Nanoseconds) -> Nanoseconds {
    if whole.0 == 0 {
        return total;
    }
    let part = u128::from(total.0) * u128::from(span.0) / u128::from(whole.0);
    Nanoseconds(u64::try_from(part).unwrap_or(u64::MAX).min(total.0))
}

fn phase(progress: &mut dyn Progress, log: &mut Log, phase: &'static str) {
    log.line(phase);
    progress.event(Event::Phase {
        phase: phase.to_owned(),
    });
}

/// The trial's log, stamped in seconds since the trial began.
struct Log {
    file: File,
    began: Instant,
}

impl Log {
    fn line(&mut self, text: &str) {
        let at = self.began.elapsed().as_secs_f64();
        // A log that cannot be written must not cost the trial; the record itself is checked.
        let _ = writeln!(self.file, "{at:9.3} {text}");
    }
}
