// SPDX-License-Identifier: Apache-2.0
//! The measured part of a trial: loads, the marks that bound its windows, and the objective's verdict.

mod course;

use super::charging::{Charged, Charging};
use super::left::Left;
use super::live::LiveSampler;
use super::load::{DrivenGuests, Role, TrialContext};
use super::metering::Metering;
use crate::LabError;
use crate::plan::{Objective, ObjectiveError, Profile, settling};
use crate::run::{Event, LiveSample, Log, SampledLevel};
use crate::suspect::{HostReading, HostWatch};
use course::Course;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use vtax_core::{Nanoseconds, Quantity, Source, metric};
use vtax_guest::platform::GuestKernel;
use vtax_host::cell::TARGET;
use vtax_host::signals::Signals;
use vtax_load::workload::{Launch, LoadLevel, Timing, WorkloadResult};
use vtax_observe::{Observer, Snapshot};
use vtax_results::stats;
use vtax_results::{Metric, ObjectiveOutcome, PhaseTimes, offered_load};

/// The interval between two checks whether a load has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The time beyond its planned time in which a load must finish and print.
const LOAD_GRACE: Duration = Duration::from_secs(30);
/// The time by which a load may end before its window, because it starts first. A tenth of the window applies when
/// that is longer.
const END_TOLERANCE: Duration = Duration::from_millis(250);
/// The longest time of a run-to-completion load.
const COMPLETION_LIMIT: Duration = Duration::from_secs(3600);
/// The longest interval between the starts of two loads, in which a program calibrates its clock undisturbed.
const START_INTERVAL: Duration = Duration::from_secs(2);
/// The time that neighbours are loaded beyond the target's last window.
const NEIGHBOURS_TAIL: Duration = Duration::from_millis(100);
/// The starts of a command that does nothing by which the cost of a start is measured, beyond the first.
const LAUNCHES: u32 = 2;
/// The share of a level's offered operations that must be answered in its window. Before that a queue grows: a few seconds
/// of waiting hide it from a latency, and from messages that are sent again.
const ANSWERED: f64 = 0.95;
/// The metrics of a level in events, in addition to the headlines.
const LEVEL_METRICS: [&metric::Metric; 5] = [
    metric::CPU_CORES,
    metric::ERRORS,
    metric::LATENCY_P99,
    metric::RATE,
    metric::THROUGHPUT,
];
/// A window of the measured part, between two marks.
pub(super) struct MeasuredWindow {
    pub name: String,
    /// The load level, if it varies.
    pub level: Option<Quantity>,
    pub begin: Snapshot,
    pub end: Snapshot,
    pub before: HostReading,
    pub after: HostReading,
    /// The results of the loads that ran for this window, by guest.
    pub results: BTreeMap<String, WorkloadResult>,
    /// The charges of the guests, if guests are charged.
    pub charged: Option<Charged>,
    /// Whether the window kept the objective.
    pub kept: Option<bool>,
    /// The processes of the guests in which a command ran to its end.
    pub left: BTreeMap<String, Left>,
}

impl MeasuredWindow {
    /// Returns the marks.
    pub fn marks(&self) -> (&Snapshot, &Snapshot) {
        (&self.begin, &self.end)
    }

    /// Returns the times of the marks.
    pub fn times(&self) -> (Nanoseconds, Nanoseconds) {
        (self.begin.at, self.end.at)
    }

    /// Returns the target's result, if its load ran for this window.
    pub fn of_target(&self) -> Option<&WorkloadResult> {
        self.results.get(TARGET)
    }
}

/// The outcome of the measured part.
#[derive(Default)]
pub(super) struct Measurement {
    pub windows: Vec<MeasuredWindow>,
    /// The output of the target's load generator, window by window.
    pub raw: Vec<u8>,
    /// The results of the neighbours' loads that ran throughout, by guest.
    pub throughout: BTreeMap<String, WorkloadResult>,
    pub objective: Option<ObjectiveOutcome>,
    /// The target's level, if it varies.
    pub level: Option<LoadLevel>,
}

impl Measurement {
    /// Returns the marks of the whole measured part; `None` without a window.
    pub fn marks(&self) -> Option<(&Snapshot, &Snapshot)> {
        Some((&self.windows.first()?.begin, &self.windows.last()?.end))
    }
}

/// The instruments that the measured part reads.
pub(super) struct Instruments<'a> {
    pub observer: &'a Observer,
    pub watch: &'a HostWatch,
    pub metering: &'a Metering<'a>,
    pub charging: Option<Charging>,
    pub live: Option<LiveSampler>,
}

/// Drives the measured part of a trial.
pub(super) struct PhaseRunner<'a, 'b, 'c> {
    pub trial: TrialContext<'a>,
    pub signals: &'a Signals,
    pub guests: DrivenGuests<'a, 'b>,
    pub instruments: Instruments<'a>,
    pub log: &'a mut Log<'c>,
    pub measured: Measurement,
}

/// The verdict on an objective at one level.
struct Verdict {
    kept: bool,
    /// The value that decided.
    found: String,
    /// The load that was offered, in the unit of the level.
    load: f64,
    /// The reason why the verdict does not count.
    discounted: Option<Discounted>,
}

/// A reason why a verdict does not count.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Discounted {
    /// The load generator was late.
    Late,
    /// The requests are too few for the quantile of the objective.
    Unsupported,
}

impl Verdict {
    /// The verdict on a window of this length by its level, its metrics and the result of its load.
    fn new(
        objective: &Objective,
        level: Option<Quantity>,
        window: Nanoseconds,
        metrics: &BTreeMap<String, Metric>,
        result: Option<&WorkloadResult>,
    ) -> Result<Self, ObjectiveError> {
        let (kept, found) = objective.judge(metrics)?;
        let errors = objective.too_many_errors(metrics);
        let errors = errors.map(|errors| format!("{} were {errors}", metric::ERRORS.name));
        // Failed requests, and a level that the generator did not reach, break the objective however many were answered.
        let unreached = || result.and_then(|result| result.unreached.clone());
        let backlog = || unanswered(level?, window, metrics);
        let failed = errors.or_else(unreached).or_else(backlog);
        let unsupported = result.and_then(|result| unsupported(&objective.metric, result));
        let quantile = format!("{} was {found}", objective.metric);
        let is_discounted = failed.is_none() && unsupported.is_some();
        Ok(Self {
            kept: kept && failed.is_none(),
            found: match (failed, unsupported) {
                (Some(failed), _) if kept => failed,
                (_, Some(unsupported)) => format!("{quantile} ({unsupported})"),
                _ => quantile,
            },
            load: level.map_or(0.0, |level| offered_load(level, metrics)),
            discounted: is_discounted.then_some(Discounted::Unsupported),
        })
    }

    /// Whether the level kept the objective; `None` where the verdict does not count.
    fn counted(&self) -> Option<bool> {
        self.discounted.is_none().then_some(self.kept)
    }

    /// Whether higher levels are beyond the objective as well. Too few requests show nothing of these, which have more.
    fn ends_ramp(&self) -> bool {
        !self.kept && self.discounted != Some(Discounted::Unsupported)
    }
}

impl PhaseRunner<'_, '_, '_> {
    /// Drives the measured part from the first load's start to the last one's end.
    pub fn run(mut self, times: &mut PhaseTimes) -> Result<Measurement, LabError> {
        let profile = &self.trial.planned.profile;
        let level = match profile {
            Profile::Steady | Profile::Turns => None,
            Profile::Steps { .. } | Profile::Ramp { .. } | Profile::Search { .. } => {
                self.guests.target.guest.spec.workload.about().level
            }
        };
        self.measured.level = level;
        for driven in self.guests.iter_mut() {
            let spec = &driven.guest.spec;
            driven.role = if spec.is_target() || level.is_some() && spec.is_twin {
                Role::Window
            } else {
                Role::Throughout
            };
        }
        if let Some(objective) = &self.trial.planned.objective {
            let text = objective.to_string();
            self.log.event(Event::Objective { text });
        }
        let began = Instant::now();
        match profile {
            Profile::Turns => self.turns()?,
            Profile::Steady => {
                self.start_neighbours()?;
                let window = self.window(None, self.planned_timing())?;
                self.measured.windows.push(window);
                self.judge_steady()?;
            }
            Profile::Steps { .. } | Profile::Ramp { .. } | Profile::Search { .. } => {
                self.start_neighbours()?;
                self.levels()?;
            }
        }
        self.end_neighbours()?;
        if let Some((first, last)) = self.measured.marks() {
            let measured = last.at.saturating_since(first.at);
            times.measured = measured;
            times.warmup = Nanoseconds::from(began.elapsed()).saturating_since(measured);
        }
        Ok(self.measured)
    }

    fn planned_timing(&self) -> Timing {
        Timing {
            warmup: self.trial.plan.warmup,
            duration: self.trial.plan.duration,
        }
    }

    /// Whether the window ends when the target's work is done.
    fn is_to_completion(&self) -> bool {
        self.trial.is_steady() && self.guests.target.runs_to_completion()
    }

    /// Returns the interval between the starts of two loads.
    fn start_interval(&self) -> Duration {
        START_INTERVAL.min(self.trial.plan.warmup / 4)
    }

    /// Starts the loads that run from before the warm-up until after the end, one after the other.
    fn start_neighbours(&mut self) -> Result<(), LabError> {
        let trial = self.trial;
        let interval = self.start_interval();
        let count = self.guests.with_role(Role::Throughout).count();
        let mut left = interval * u32::try_from(count).unwrap_or(u32::MAX);
        let profile = &trial.planned.profile;
        let longest = if self.is_to_completion() {
            COMPLETION_LIMIT
        } else {
            let levels = profile.longest(trial.plan.duration, self.guests.iter().count());
            // The time between two levels, in which one generator ends and the next one starts.
            let between = levels / if trial.is_steady() { 50 } else { 10 };
            // A level that broke the objective is repeated.
            levels * if trial.is_steady() { 1 } else { 2 } + between
        };
        for number in 0..count {
            let timing = Timing {
                warmup: left + trial.plan.warmup,
                duration: longest + NEIGHBOURS_TAIL,
            };
            if let Some(driven) = self.guests.with_role_mut(Role::Throughout).nth(number) {
                driven.start(&trial, None, timing)?;
            }
            left -= interval;
            self.wait(Instant::now() + interval, None)?;
        }
        Ok(())
    }

    /// Waits until `until`, or until the loads of this role have ended.
    fn wait(&mut self, until: Instant, ends_of: Option<Role>) -> Result<(), LabError> {
        loop {
            self.signals.check()?;
            self.guests.poll()?;
            let now = Instant::now();
            if now >= until || ends_of.is_some_and(|role| self.guests.have_ended(role)) {
                return Ok(());
            }
            self.report_live(until - now)?;
            let now = Instant::now().min(until);
            std::thread::sleep(POLL_INTERVAL.min(until - now));
        }
    }

    /// Reports a live sample when one is due.
    fn report_live(&mut self, left: Duration) -> Result<(), LabError> {
        let Some(live) = &mut self.instruments.live else {
            return Ok(());
        };
        if let Some((begin, end)) = live.sample(self.instruments.observer, left)? {
            let at = self.log.began.elapsed().as_secs_f64();
            let observation = self.instruments.metering.observation((&begin, &end), 0);
            self.log.event(Event::Metered(LiveSample {
                at,
                seconds: observation.seconds(),
                cpu: observation.actors(),
                carried: observation.carried(),
                source: observation.source(),
            }));
        }
        Ok(())
    }

    /// Reports a level to the watchers.
    fn report_level(&mut self, level: f64, window: Option<&MeasuredWindow>, kept: Option<bool>) {
        let Some(of) = self.measured.level else {
            return;
        };
        let metrics = window.map(|window| self.metrics(window));
        let metrics = metrics.into_iter().flatten();
        let readings = metrics
            .filter(|(name, metric)| {
                metric.headline || LEVEL_METRICS.iter().any(|metric| metric.is(name))
            })
            .map(|(_, metric)| {
                let name = match metric.source {
                    Source::Measured => metric.title,
                    other => format!("{}, {other}", metric.title),
                };
                (name, metric.quantity)
            });
        let sampled = SampledLevel {
            level: of.quantity(level).value,
            of: of.quantity(self.trial.planned.profile.highest()).value,
            across: format!("{}, {}", of.title, of.unit),
            readings: readings.collect(),
            kept,
        };
        self.log.event(Event::Sampled(sampled));
    }

    /// Measures a window: starts its loads, waits for the warm-up, marks both ends, and takes the results.
    fn window(&mut self, level: Option<f64>, timing: Timing) -> Result<MeasuredWindow, LabError> {
        let of = self.guests.target.guest.spec.workload.about().level;
        let quantity = level.zip(of).map(|(level, of)| of.quantity(level));
        let to_completion = self.is_to_completion();
        self.log.phase(&match (to_completion, quantity) {
            (true, _) => "measure".to_owned(),
            (false, None) => "warm-up".to_owned(),
            (false, Some(level)) => format!("settle at {level}"),
        });
        // A run to completion is measured from its first instruction to its last, and so has no warm-up. Loads that
        // already run beside it have one.
        let mut left = BTreeMap::new();
        let mut launch = None;
        let (opening, timing) = if to_completion {
            launch = self.launch(timing)?;
            left = Left::before(&mut self.guests)?;
            if self.guests.iter().any(|driven| driven.is_loaded()) {
                self.wait(Instant::now() + timing.warmup, None)?;
            }
            let warmup = Duration::ZERO;
            (Some(self.open()?), Timing { warmup, ..timing })
        } else {
            (None, timing)
        };
        let went_on = self.guests.target.level_began();
        let began = went_on.unwrap_or_else(Instant::now);
        self.start_loads(level, timing, began)?;
        let opens = began + timing.warmup;
        let (before, begin) = match opening {
            Some(opening) => opening,
            None => {
                self.wait(opens, Some(Role::Window))?;
                self.guests.refuse_early_ends("warm-up")?;
                self.log.phase(&match quantity {
                    None => "measure".to_owned(),
                    Some(level) => format!("measure at {level}"),
                });
                self.open()?
            }
        };
        if to_completion {
            self.wait(began + COMPLETION_LIMIT, Some(Role::Window))?;
            self.guests.need_ends(Role::Window, COMPLETION_LIMIT)?;
        } else {
            // A generator that continues by itself follows its own clock, however long the reading took.
            self.wait_for_close(
                went_on.map_or_else(Instant::now, |_| opens),
                timing.duration,
            )?;
        }
        let end = self.instruments.observer.mark()?;
        let charging = self.instruments.charging.as_mut();
        let charged = charging.map(Charging::pass).transpose()?;
        let after = self.instruments.watch.read();
        // An overloaded target continues to answer after the window, when its neighbours may end.
        if self.trial.is_steady() {
            self.guests.let_end();
        }
        let limit = timing.warmup + timing.duration + LOAD_GRACE;
        self.wait(began + limit, Some(Role::Window))?;
        self.guests.need_ends(Role::Window, limit)?;
        let left = Left::after(left, &mut self.guests)?;
        let mut results = self.take_results(went_on.is_some())?;
        if let Some(result) = results.get_mut(TARGET) {
            let waited = left.get(TARGET).and_then(Left::waited);
            let rest = waited.map(|waited| Launch::Rest { waited });
            result.launch = launch.or(rest);
        }
        Ok(MeasuredWindow {
            name: quantity.map_or_else(|| "steady".to_owned(), |level| level.to_string()),
            level: quantity,
            begin,
            end,
            before,
            after,
            results,
            charged,
            kept: None,
            left,
        })
    }

    /// Measures what it costs to start a command in the target, where its load is one that runs to its end in it. `None` where
    /// the waiters of the command, in this kernel, report its time and that of its start.
    fn launch(&mut self, timing: Timing) -> Result<Option<Launch>, LabError> {
        let target = &mut self.guests.target;
        let Some(line) = target.launch(&self.trial, timing)? else {
            return Ok(None);
        };
        let of_waiters = target.guest.target.processes()?.are_descendants;
        let is_external = target.guest.spec.platform.guest_kernel() == GuestKernel::External;
        if of_waiters || is_external {
            return Ok(None);
        }
        let mut times = Vec::new();
        // The first start reads programs into memory.
        for run in 0..=LAUNCHES {
            let begin = self.instruments.observer.mark()?;
            let guest = &mut *self.guests.target.guest;
            let ended = guest.target.run(&line, LOAD_GRACE);
            let ended = ended.map_err(|cause| guest.blame(cause))?;
            let end = self.instruments.observer.mark()?;
            if ended.code != 0 {
                return Ok(None);
            }
            let observation = self.instruments.metering.observation((&begin, &end), 0);
            if run > 0
                && let Some(cpu) = observation.cpu()
            {
                times.push(cpu.for_target());
            }
        }
        let number = u32::try_from(times.len()).unwrap_or(u32::MAX);
        let mean = times.iter().sum::<f64>() / f64::from(number);
        let longest = times.iter().copied().fold(0.0, f64::max);
        let spread = longest - times.iter().copied().fold(longest, f64::min);
        Ok((number > 0).then_some(Launch::Measured { mean, spread }))
    }

    /// Starts the loads of the window, one after the other, so that all are warm when it opens.
    fn start_loads(
        &mut self,
        level: Option<f64>,
        timing: Timing,
        began: Instant,
    ) -> Result<(), LabError> {
        let trial = self.trial;
        let count = self.guests.with_role(Role::Window).count();
        let interval = match count {
            1 => Duration::ZERO,
            _ => self.start_interval(),
        };
        for number in 0..count {
            let delay = interval * u32::try_from(number).unwrap_or(u32::MAX);
            self.wait(began + delay, None)?;
            let warmup = match number {
                0 => timing.warmup,
                _ => (began + timing.warmup).saturating_duration_since(Instant::now()),
            };
            if let Some(driven) = self.guests.with_role_mut(Role::Window).nth(number) {
                driven.start(&trial, level, Timing { warmup, ..timing })?;
            }
        }
        Ok(())
    }

    /// Waits for the end of a window. Fails when a load ends long before it.
    fn wait_for_close(&mut self, opened: Instant, duration: Duration) -> Result<(), LabError> {
        self.wait(opened + duration, Some(Role::Window))?;
        if let Some(rest) = duration.checked_sub(opened.elapsed()) {
            if rest > (duration / 10).max(END_TOLERANCE) {
                self.guests.refuse_early_ends("measured window")?;
            }
            self.wait(opened + duration, None)?;
        }
        Ok(())
    }

    /// Takes the results of the window's loads, and the target's output.
    fn take_results(
        &mut self,
        goes_on: bool,
    ) -> Result<BTreeMap<String, WorkloadResult>, LabError> {
        let mut results = BTreeMap::new();
        for driven in self.guests.with_role_mut(Role::Window) {
            let Some(report) = driven.take_report(goes_on)? else {
                continue;
            };
            if driven.guest.spec.is_target() {
                let raw = &mut self.measured.raw;
                if !raw.is_empty() {
                    raw.push(b'\n');
                }
                raw.extend_from_slice(&report.output);
            }
            results.insert(driven.guest.spec.name.to_owned(), report.result);
        }
        Ok(results)
    }

    /// Reads all instruments at the start of a window.
    fn open(&mut self) -> Result<(HostReading, Snapshot), LabError> {
        let before = self.instruments.watch.read();
        if let Some(charging) = &mut self.instruments.charging {
            charging.pass()?;
        }
        Ok((before, self.instruments.observer.mark()?))
    }

    /// Measures each guest's load alone, then all loads together.
    fn turns(&mut self) -> Result<(), LabError> {
        let names: Vec<String> = (self.guests.iter())
            .map(|driven| driven.guest.spec.name.to_owned())
            .collect();
        let mut sets: Vec<&[String]> = names.chunks(1).collect();
        if names.len() > 1 {
            sets.push(&names);
        }
        for set in sets {
            for driven in self.guests.iter_mut() {
                let is_in = set.iter().any(|name| name == driven.guest.spec.name);
                driven.role = if is_in { Role::Window } else { Role::Idle };
            }
            let mut window = self.window(None, self.planned_timing())?;
            window.name = set.join("+");
            self.measured.windows.push(window);
        }
        Ok(())
    }

    /// Measures the levels of the profile, one after the other, and determines the knee.
    fn levels(&mut self) -> Result<(), LabError> {
        let mut course = Course::from_profile(&self.trial.planned.profile);
        let repeats = !matches!(self.trial.planned.profile, Profile::Steps { .. });
        let mut knee = Knee::default();
        while let Some(level) = course.next(knee.broke_at.map(|at| at.elapsed())) {
            let mut verdicts = Vec::from_iter(self.judged_level(level, &course)?);
            // A stall is no limit, so a level must break the objective twice.
            let is_broken = verdicts.first().is_some_and(Verdict::ends_ramp);
            if is_broken && repeats && knee.broke_at.is_none() {
                self.guests.stop();
                self.log
                    .line(&format!("broken at {level}: the level is repeated"));
                verdicts.extend(self.judged_level(level, &course)?);
            }
            if let Some(last) = verdicts.last() {
                course.judged(level, !last.ends_ramp());
                knee.judged(level, verdicts);
            }
        }
        // A generator that continues by itself does so beyond the last level.
        self.guests.stop();
        if let Some(objective) = &self.trial.planned.objective {
            let of = self.measured.level;
            let load = |load: f64| of.map(|of| Quantity::new(load, of.unit));
            let broke = knee.broke();
            self.measured.objective = Some(ObjectiveOutcome {
                text: objective.to_string(),
                knee: knee.best().and_then(load),
                broke: broke.map(|(_, level, found)| match of.map(|of| of.quantity(level)) {
                    Some(level) => format!("{found} at {level}"),
                    None => found.to_owned(),
                }),
                next: broke.and_then(|(next, ..)| load(next)),
                late_from: knee.hidden_from(Discounted::Late).and_then(load),
                unsupported_from: knee.hidden_from(Discounted::Unsupported).and_then(load),
            });
        }
        Ok(())
    }

    /// Returns a verdict of a level without a result.
    fn no_result(&self, level: f64, found: String) -> Verdict {
        let load = self.measured.level.map(|of| of.quantity(level).value);
        Verdict {
            kept: false,
            found,
            load: load.unwrap_or(level),
            discounted: None,
        }
    }

    /// Measures and judges one level. A level after the first that cannot be judged breaks the objective.
    fn judged_level(&mut self, level: f64, course: &Course) -> Result<Option<Verdict>, LabError> {
        let is_first = self.measured.windows.is_empty();
        match self.level(level, course)? {
            Ok(verdict) => Ok(verdict),
            Err(cause) if is_first => Err(LabError::Plan(cause.to_string())),
            Err(cause) => Ok(Some(self.no_result(level, cause.to_string()))),
        }
    }

    /// Measures one level. Returns the verdict, or the reason why the level cannot be judged.
    fn level(
        &mut self,
        level: f64,
        course: &Course,
    ) -> Result<Result<Option<Verdict>, ObjectiveError>, LabError> {
        let is_first = self.measured.windows.is_empty();
        let settle = settling(course.every);
        let timing = Timing {
            warmup: if is_first {
                self.trial.plan.warmup.max(settle)
            } else {
                settle
            },
            duration: course.every - settle,
        };
        let levels: Vec<f64> = std::iter::once(level).chain(course.ahead()).collect();
        let trial = self.trial;
        let window = self
            .guests
            .start_ramp(&trial, &levels, timing, settle)
            .and_then(|()| self.window(Some(level), timing));
        match window {
            Ok(mut window) => {
                let verdict = self.judge(&window);
                if let Ok(Some(verdict)) = &verdict {
                    window.kept = verdict.counted();
                    self.log
                        .line(&format!("{}: {}", window.name, verdict.found));
                }
                self.report_level(level, Some(&window), window.kept);
                let mut windows = self.measured.windows.iter();
                if windows.any(|earlier| earlier.name == window.name) {
                    window.name.push_str(", again");
                }
                self.measured.windows.push(window);
                Ok(verdict)
            }
            // In overload a generator may have nothing to report, or fail. Such a level breaks the objective.
            Err(cause) => {
                let is_answer = trial.planned.objective.is_some() && !cause.is_interrupt();
                if is_first || !is_answer {
                    return Err(cause);
                }
                self.guests.stop();
                self.log.line(&format!("no result at {level}: {cause}"));
                self.report_level(level, None, Some(false));
                let found = format!("there was no result ({cause})");
                Ok(Ok(Some(self.no_result(level, found))))
            }
        }
    }

    fn judge_steady(&mut self) -> Result<(), LabError> {
        let Some(objective) = &self.trial.planned.objective else {
            return Ok(());
        };
        let Some(window) = self.measured.windows.first() else {
            return Ok(());
        };
        let verdict = self.judge(window);
        let verdict = verdict.map_err(|cause| LabError::Plan(cause.to_string()))?;
        let kept = verdict.as_ref().and_then(Verdict::counted);
        self.measured.objective = Some(ObjectiveOutcome {
            text: objective.to_string(),
            knee: None,
            next: None,
            late_from: None,
            unsupported_from: None,
            broke: match verdict {
                Some(one) if kept == Some(false) => Some(one.found),
                _ => None,
            },
        });
        for window in &mut self.measured.windows {
            window.kept = kept;
        }
        Ok(())
    }

    /// Returns the verdict on a window; `None` without an objective.
    fn judge(&self, window: &MeasuredWindow) -> Result<Option<Verdict>, ObjectiveError> {
        let Some(objective) = &self.trial.planned.objective else {
            return Ok(None);
        };
        let metrics = self.metrics(window);
        let result = window.of_target();
        let length = window.end.at.saturating_since(window.begin.at);
        let mut verdict = Verdict::new(objective, window.level, length, &metrics, result)?;
        let late = result.and_then(|result| result.late.as_ref());
        if late.is_some_and(|late| self.instruments.metering.is_late(late)) {
            verdict.discounted = Some(Discounted::Late);
        }
        Ok(Some(verdict))
    }

    /// Returns the target's metrics in a window.
    fn metrics(&self, window: &MeasuredWindow) -> BTreeMap<String, Metric> {
        let nothing = WorkloadResult::default();
        let observation = self.instruments.metering.observation(window.marks(), 0);
        observation.metrics(window.of_target().unwrap_or(&nothing))
    }

    /// Waits for the neighbours' loads to end by their times, and takes their results.
    fn end_neighbours(&mut self) -> Result<(), LabError> {
        self.guests.let_end();
        // The end of these loads is known only for a window of known length. Otherwise the loads are cut off.
        if self.trial.is_steady() && !self.guests.target.runs_to_completion() {
            let limit = NEIGHBOURS_TAIL + self.trial.plan.duration / 10 + LOAD_GRACE;
            if self.guests.with_role(Role::Throughout).next().is_some() {
                self.wait(Instant::now() + limit, Some(Role::Throughout))?;
                self.guests.need_ends(Role::Throughout, limit)?;
            }
        }
        for driven in self.guests.with_role_mut(Role::Throughout) {
            if let Some(report) = driven.take_report(false)? {
                let name = driven.guest.spec.name.to_owned();
                self.measured.throughout.insert(name, report.result);
            }
        }
        Ok(())
    }
}

/// The operations that a level lacks, in words, where fewer than [`ANSWERED`] of those offered were answered in its window.
/// `None` for a load that is not counted in the level's unit. Two operations may lie on the window's edges.
fn unanswered(
    level: Quantity,
    window: Nanoseconds,
    metrics: &BTreeMap<String, Metric>,
) -> Option<String> {
    let rate = metrics.get(metric::RATE.name)?.quantity;
    let offered = offered_load(level, metrics);
    let edges = 2.0 / window.as_secs_f64();
    let is_answered = rate.value + edges >= ANSWERED * offered;
    let lacks = rate.unit == level.unit && !is_answered;
    lacks.then(|| {
        format!(
            "{rate} of {} were answered",
            Quantity::new(offered, level.unit)
        )
    })
}

/// The reason why a load's requests do not support the quantile that an objective limits.
fn unsupported(metric: &str, result: &WorkloadResult) -> Option<stats::Unsupported> {
    let (of, quantile) = metric::quantile(metric)?;
    let mut histograms = result.histograms.iter();
    let (_, histogram) = histograms.find(|(name, _)| name == of)?;
    stats::supports(histogram.len(), quantile).err()
}

/// All judged runs of all levels, by the load that was offered.
#[derive(Default)]
struct Knee {
    runs: Vec<(f64, bool)>,
    /// The values that broke the objective, each with its load and its level.
    broken: Vec<(f64, f64, String)>,
    /// The loads whose verdicts do not count, each with the reason.
    discounted: Vec<(f64, Discounted)>,
    /// The time of the first level whose last run broke the objective.
    broke_at: Option<Instant>,
}

impl Knee {
    fn judged(&mut self, level: f64, verdicts: Vec<Verdict>) {
        if verdicts.last().is_some_and(Verdict::ends_ramp) {
            self.broke_at = self.broke_at.or_else(|| Some(Instant::now()));
        }
        for verdict in verdicts {
            if let Some(reason) = verdict.discounted {
                self.discounted.push((verdict.load, reason));
                continue;
            }
            self.runs.push((verdict.load, verdict.kept));
            if !verdict.kept {
                self.broken.push((verdict.load, level, verdict.found));
            }
        }
    }

    fn best(&self) -> Option<f64> {
        let low = stats::knee(&self.runs)?.low;
        (low > 0.0).then_some(low)
    }

    /// Returns the next load above the knee, and the level and the value that broke the objective.
    fn broke(&self) -> Option<(f64, f64, &str)> {
        let high = stats::knee(&self.runs)?.high?;
        let above = self.broken.iter().filter(|(load, ..)| *load >= high);
        let lowest = above.min_by(|one, other| one.0.total_cmp(&other.0))?;
        Some((high, lowest.1, &lowest.2))
    }

    /// Returns the lowest load above the knee that is not judged for this reason; `None` where a judged load ends the knee,
    /// or the lowest is not judged for another reason.
    fn hidden_from(&self, reason: Discounted) -> Option<f64> {
        let knee = stats::knee(&self.runs);
        if knee.is_some_and(|knee| knee.high.is_some()) {
            return None;
        }
        let low = knee.map_or(0.0, |knee| knee.low);
        let above = self.discounted.iter().filter(|(load, _)| *load > low);
        let lowest = above.min_by(|one, other| one.0.total_cmp(&other.0))?;
        (lowest.1 == reason).then_some(lowest.0)
    }
}

#[cfg(test)]
mod ramp_tests;
