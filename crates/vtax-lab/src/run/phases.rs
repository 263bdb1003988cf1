//! The measured part of a trial: which loads run when, the marks between which everything is counted,
//! and whether the objective held.

mod course;

use super::Log;
use super::charging::{Charged, Charging};
use super::guest::Guest;
use super::observation::{Observation, Party};
use super::progress::Event;
use super::pulse::Pulse;
use crate::LabError;
use crate::plan::{Plan, PlannedTreatment, Profile, load_seed};
use crate::suspect::{HostReading, HostWatch};
use course::Course;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use vtax_core::{Nanoseconds, Quantity, Source};
use vtax_host::HostError;
use vtax_host::cell::TARGET;
use vtax_host::settings::{Domain, Level, Settings};
use vtax_host::signals::Signals;
use vtax_load::workload::{Extent, LOAD_SEED, Load, LoadLevel, Timing, Workload, WorkloadResult};
use vtax_observe::{Observer, Snapshot};
use vtax_report::results::{Metric, ObjectiveOutcome, PhaseTimes};

/// How often a load's end is looked for where that costs nothing (the client's own processes).
const POLL: Duration = Duration::from_millis(5);
/// Beyond its planned time, a load may take this long to finish and print.
const LOAD_GRACE: Duration = Duration::from_secs(30);
/// A load may end this much, or a tenth of the window, before the window does: it started first.
const END_TOLERANCE: Duration = Duration::from_millis(250);
/// A run-to-completion load that takes longer than this has failed.
const COMPLETION_LIMIT: Duration = Duration::from_secs(3600);
/// Loads begin at most this long one after the other: what a program learns at its start about the
/// clock it should not learn while another one starts.
const APART: Duration = Duration::from_secs(2);
/// Neighbours are loaded this long beyond the target's last window.
const TAIL: Duration = Duration::from_millis(100);
/// What whoever watches is told of a level, beside what leads.
const TOLD: [&str; 5] = ["cpu.cores", "errors", "latency.p99", "rate", "throughput"];
/// A level settles for at most this long before it is measured, and for a quarter of its time.
const SETTLE: Duration = Duration::from_secs(1);

/// A stretch of the measured part between two marks.
pub(super) struct Stretch {
    /// What it is called.
    pub name: String,
    /// The load level, where it varies.
    pub level: Option<Quantity>,
    pub begin: Snapshot,
    pub end: Snapshot,
    pub before: HostReading,
    pub after: HostReading,
    /// What each guest's load found in it, where it ran for this stretch.
    pub results: Vec<Option<WorkloadResult>>,
    /// What the guests were charged, where they are.
    pub charged: Option<Charged>,
    /// Whether the objective held.
    pub kept: Option<bool>,
}

/// How the measured part went.
pub(super) struct Driven {
    pub stretches: Vec<Stretch>,
    /// What the target's load generator printed, stretch by stretch.
    pub raw: Vec<u8>,
    /// What the loads of neighbours found that ran all the time.
    pub throughout: Vec<Option<WorkloadResult>>,
    pub objective: Option<ObjectiveOutcome>,
    /// The target's level, where it varies.
    pub level: Option<LoadLevel>,
}

/// What the measured part is driven with.
pub(super) struct Drive<'a, 'b, 'c> {
    pub plan: &'a Plan,
    pub planned: &'a PlannedTreatment,
    /// The trial's block.
    pub block: u32,
    pub signals: &'a Signals,
    pub observer: &'a Observer,
    pub watch: &'a HostWatch,
    pub guests: &'a mut [Guest<'b>],
    pub parties: &'a [Party],
    pub processors: usize,
    pub energy: &'a [(String, Source)],
    pub host: Source,
    pub charging: Option<Charging>,
    pub pulse: Option<Pulse>,
    pub log: &'a mut Log<'c>,
}

/// A load that was started.
struct Running {
    load: Box<dyn Load>,
    settings: Settings,
    timing: Timing,
    raw: Option<Vec<u8>>,
    /// Whether it has to last until it is told otherwise.
    is_throughout: bool,
}

/// The loads, by guest.
type Loads = Vec<Option<Running>>;

impl Drive<'_, '_, '_> {
    /// Drives the measured part from the first load's start to the last one's end.
    pub fn run(mut self, times: &mut PhaseTimes) -> Result<Driven, LabError> {
        let profile = &self.planned.profile;
        let mut loads: Loads = self.guests.iter().map(|_| None).collect();
        let target_level = self.guests.first().and_then(|guest| guest.workload.level());
        let level = target_level.filter(|_| !matches!(profile, Profile::Steady | Profile::Turns));
        let follows = |guest: &Guest<'_>| guest.name == TARGET || level.is_some() && guest.is_twin;
        let (set, throughout): (Vec<usize>, Vec<usize>) =
            (0..self.guests.len()).partition(|index| self.guests.get(*index).is_some_and(follows));
        let mut driven = Driven {
            stretches: Vec::new(),
            raw: Vec::new(),
            throughout: self.guests.iter().map(|_| None).collect(),
            objective: None,
            level,
        };
        if let Some(objective) = &self.planned.objective {
            let text = objective.to_string();
            self.log.event(Event::Objective { text });
        }
        let began = Instant::now();
        match profile {
            Profile::Turns => self.turns(&mut loads, &mut driven)?,
            Profile::Steady => {
                self.keep_busy(&throughout, &mut loads)?;
                let warmup = self.plan.warmup;
                let duration = self.plan.duration;
                let timing = Timing { warmup, duration };
                let stretch = self.stretch(&mut loads, &set, None, timing, &mut driven.raw)?;
                driven.stretches.push(stretch);
                self.judge_steady(&mut driven)?;
            }
            Profile::Steps { .. } | Profile::Ramp { .. } | Profile::Search { .. } => {
                self.keep_busy(&throughout, &mut loads)?;
                self.levels(&set, &mut loads, &mut driven)?;
            }
        }
        self.collect(&throughout, &mut loads, &mut driven)?;
        if let (Some(first), Some(last)) = (driven.stretches.first(), driven.stretches.last()) {
            let measured = last.end.at.saturating_since(first.begin.at);
            times.measured = measured;
            times.warmup = Nanoseconds::from(began.elapsed()).saturating_since(measured);
        }
        Ok(driven)
    }

    /// Starts the loads that run from before the warm-up until after the end, one after the other.
    fn keep_busy(&mut self, throughout: &[usize], loads: &mut Loads) -> Result<(), LabError> {
        let apart = self.apart();
        let mut left = apart * u32::try_from(throughout.len()).unwrap_or(u32::MAX);
        let to_completion = self.guests.first().is_some_and(|target| {
            target.workload.extent(target.settings) == Extent::ToCompletion
                && self.planned.profile == Profile::Steady
        });
        let longest = if to_completion {
            COMPLETION_LIMIT
        } else {
            let levels = self
                .planned
                .profile
                .longest(self.plan.duration, self.guests.len());
            // Between two levels one generator ends and the next one starts.
            match self.planned.profile {
                Profile::Steady => levels + levels / 50,
                _ => levels + levels / 10,
            }
        };
        for index in throughout {
            let timing = Timing {
                warmup: left + self.plan.warmup,
                duration: longest + TAIL,
            };
            self.start(*index, None, timing, true, loads)?;
            left -= apart;
            let until = Instant::now() + apart;
            self.wait(loads, &[], until)?;
        }
        Ok(())
    }

    fn apart(&self) -> Duration {
        APART.min(self.plan.warmup / 4)
    }

    /// What a guest's load is started with.
    fn settings(&self, index: usize, level: Option<f64>, is_throughout: bool) -> Option<Settings> {
        let guest = self.guests.get(index)?;
        let varies = self.planned.profile != Profile::Steady;
        let mut settings = guest.settings.clone();
        let known = |key: &str| {
            let mut parameters = guest.workload.parameters().iter();
            parameters.find(|parameter| parameter.key == key)
        };
        if (varies || is_throughout) && known("load.extent").is_some() {
            let extent = Level::Text("duration".to_owned());
            settings.0.insert("load.extent".to_owned(), extent);
        }
        if let Some((level, of)) = level.zip(guest.workload.level()) {
            let is_whole = known(of.key)
                .is_some_and(|parameter| matches!(parameter.domain, Domain::Integer(..)));
            #[allow(
                clippy::cast_possible_truncation,
                reason = "levels are bounded by the plan"
            )]
            let level = if is_whole {
                Level::Integer(level.round() as i64)
            } else {
                Level::Number(level)
            };
            settings.0.insert(of.key.to_owned(), level);
        }
        if let Some(seed) = self.load_seed(index) {
            settings
                .0
                .insert(LOAD_SEED.key.to_owned(), Level::Integer(seed));
        }
        Some(settings)
    }

    /// The seed of what a guest's load draws, where it has one of its block.
    pub fn load_seed(&self, index: usize) -> Option<i64> {
        let guest = self.guests.get(index)?;
        is_seeded_by_block(guest.workload, guest.settings, self.host)
            .then(|| load_seed(self.plan.seed, self.block, index))
    }

    fn start(
        &mut self,
        index: usize,
        level: Option<f64>,
        timing: Timing,
        is_throughout: bool,
        loads: &mut Loads,
    ) -> Result<(), LabError> {
        let Some(settings) = self.settings(index, level, is_throughout) else {
            return Ok(());
        };
        let (Some(guest), Some(place)) = (self.guests.get_mut(index), loads.get_mut(index)) else {
            return Ok(());
        };
        // Its generator has gone on to this level by itself.
        if let Some(running) = place {
            running.settings = settings;
            running.timing = timing;
            return Ok(());
        }
        let started = guest.workload.drive(
            guest.target.as_mut(),
            guest.client.as_ref(),
            guest.service,
            &settings,
            timing,
        );
        let load = started.map_err(|cause| guest.blame(cause))?;
        *place = Some(Running {
            load,
            settings,
            timing,
            raw: None,
            is_throughout,
        });
        Ok(())
    }

    /// Starts a generator that goes through these levels by itself, where the guest that follows the
    /// profile has one and it does not run yet. Several would part: each goes on when its own level
    /// has ended.
    fn start_ramp(
        &mut self,
        set: &[usize],
        levels: &[f64],
        first: Timing,
        settle: Duration,
        loads: &mut Loads,
    ) -> Result<(), LabError> {
        let [index] = *set else { return Ok(()) };
        let Some(place @ None) = loads.get_mut(index) else {
            return Ok(());
        };
        let at = |level: &f64| self.settings(index, Some(*level), false);
        let levels: Vec<Settings> = levels.iter().filter_map(at).collect();
        let (Some(guest), [settings, _, ..]) = (self.guests.get_mut(index), levels.as_slice())
        else {
            return Ok(());
        };
        let started = guest.workload.drive_ramp(
            guest.target.as_mut(),
            guest.client.as_ref(),
            guest.service,
            &levels,
            first,
            settle,
        );
        let started = started.map_err(|cause| guest.blame(cause))?;
        *place = started.map(|load| Running {
            load,
            settings: settings.clone(),
            timing: first,
            raw: None,
            is_throughout: false,
        });
        Ok(())
    }

    /// Waits until `until`, or until the loads of `set` have ended, if there are any.
    fn wait(&mut self, loads: &mut Loads, set: &[usize], until: Instant) -> Result<(), LabError> {
        loop {
            self.signals.check()?;
            for (running, guest) in loads.iter_mut().zip(self.guests.iter_mut()) {
                let Some(running) = running.as_mut().filter(|running| running.raw.is_none()) else {
                    continue;
                };
                let polled = running.load.poll(guest.target.as_mut());
                running.raw = polled.map_err(|cause| guest.blame(cause))?;
                if running.is_throughout && running.raw.is_some() {
                    refuse_early_end(guest.name, running.raw.as_deref(), "measured part")?;
                }
            }
            let ended = |index: &usize| {
                let running = loads.get(*index).and_then(Option::as_ref);
                running.is_none_or(|running| running.raw.is_some())
            };
            let now = Instant::now();
            if now >= until || !set.is_empty() && set.iter().all(ended) {
                return Ok(());
            }
            self.tell(until - now)?;
            let now = Instant::now().min(until);
            std::thread::sleep(POLL.min(until - now));
        }
    }

    /// Tells whoever watches what was sampled since it last did, where that is a second ago.
    fn tell(&mut self, left: Duration) -> Result<(), LabError> {
        let Some(pulse) = &mut self.pulse else {
            return Ok(());
        };
        if let Some((begin, end)) = pulse.beat(self.observer, left)? {
            let at = self.log.began.elapsed().as_secs_f64();
            let observation = self.observation(&begin, &end);
            let event = Event::Metered {
                at,
                seconds: observation.seconds(),
                cpu: observation.actors(),
                carried: observation.carried(),
                source: observation.source(),
            };
            self.log.event(event);
        }
        Ok(())
    }

    /// Tells whoever watches how a level was.
    fn tell_level(
        &mut self,
        of: LoadLevel,
        level: f64,
        stretch: Option<&Stretch>,
        kept: Option<bool>,
    ) {
        let metrics = stretch.map(|stretch| self.metrics(stretch));
        let metrics = metrics.into_iter().flatten();
        let told = metrics
            .filter(|(name, metric)| metric.headline || TOLD.contains(&name.as_str()))
            .map(|(_, metric)| {
                let name = match metric.source {
                    Source::Measured => metric.title,
                    other => format!("{}, {other}", metric.title),
                };
                (name, metric.quantity)
            });
        let event = Event::Sampled {
            level: level * of.scale,
            of: self.planned.profile.highest() * of.scale,
            across: format!("{}, {}", of.title, of.unit),
            readings: told.collect(),
            kept,
        };
        self.log.event(event);
    }

    /// Loads the guests of `set` once: warm-up, mark, window, mark, and what their generators found.
    fn stretch(
        &mut self,
        loads: &mut Loads,
        set: &[usize],
        level: Option<f64>,
        timing: Timing,
        printed: &mut Vec<u8>,
    ) -> Result<Stretch, LabError> {
        let target = set.first().and_then(|index| self.guests.get(*index));
        let of = target.and_then(|guest| guest.workload.level());
        let level_asked = level
            .zip(of)
            .map(|(level, of)| Quantity::new(level, of.unit));
        let name = level_asked.map_or_else(|| "steady".to_owned(), |level| level.to_string());
        let to_completion = self.planned.profile == Profile::Steady
            && target
                .is_some_and(|guest| guest.workload.extent(guest.settings) == Extent::ToCompletion);
        self.log.phase(&match (to_completion, level_asked) {
            (true, _) => "measure".to_owned(),
            (false, None) => "warm-up".to_owned(),
            (false, Some(level)) => format!("settle at {level}"),
        });
        // A run to completion is measured from its first instruction to its last, and so has no warm-up; what
        // already runs beside it has.
        let (opening, timing) = if to_completion {
            if loads.iter().any(Option::is_some) {
                self.wait(loads, &[], Instant::now() + timing.warmup)?;
            }
            let warmup = Duration::ZERO;
            (Some(self.open()?), Timing { warmup, ..timing })
        } else {
            (None, timing)
        };
        let goes_on = |index: &usize| loads.get(*index)?.as_ref()?.load.level_began();
        let went_on = set.first().and_then(goes_on);
        let began = went_on.unwrap_or_else(Instant::now);
        let opens = began + timing.warmup;
        let apart = if set.len() > 1 {
            self.apart()
        } else {
            Duration::ZERO
        };
        for (before, index) in (0..).zip(set) {
            self.wait(loads, &[], began + apart * before)?;
            let left = Timing {
                warmup: match before {
                    0 => timing.warmup,
                    _ => opens.saturating_duration_since(Instant::now()),
                },
                ..timing
            };
            self.start(*index, level, left, false, loads)?;
        }
        let (before, begin) = match opening {
            Some(opening) => opening,
            None => {
                self.wait(loads, set, opens)?;
                self.refuse_early_ends(loads, set, "warm-up")?;
                self.log.phase(&match level_asked {
                    None => "measure".to_owned(),
                    Some(level) => format!("measure at {level}"),
                });
                self.open()?
            }
        };
        // One that goes on by itself does so by its own clock, however long the reading took.
        let opened = went_on.map_or_else(Instant::now, |_| opens);
        if to_completion {
            self.wait(loads, set, began + COMPLETION_LIMIT)?;
            self.need_ends(loads, set, COMPLETION_LIMIT)?;
        } else {
            // Loads may end a little before the window does, never long before.
            self.wait(loads, set, opened + timing.duration)?;
            if let Some(rest) = timing.duration.checked_sub(opened.elapsed()) {
                if rest > (timing.duration / 10).max(END_TOLERANCE) {
                    self.refuse_early_ends(loads, set, "measured window")?;
                }
                self.wait(loads, &[], opened + timing.duration)?;
            }
        }
        let end = self.observer.mark()?;
        let charged = self.charging.as_mut().map(Charging::pass).transpose()?;
        let after = self.watch.read();
        // A target that was asked for too much goes on answering, and its neighbours need not.
        if self.planned.profile == Profile::Steady {
            let_end(loads);
        }
        let limit = timing.warmup + timing.duration + LOAD_GRACE;
        self.wait(loads, set, began + limit)?;
        self.need_ends(loads, set, limit)?;
        let mut results: Vec<Option<WorkloadResult>> = self.guests.iter().map(|_| None).collect();
        for index in set {
            let (Some(guest), Some(place), Some(result)) = (
                self.guests.get(*index),
                loads.get_mut(*index),
                results.get_mut(*index),
            ) else {
                continue;
            };
            let Some(mut running) = place.take() else {
                continue;
            };
            let raw = running.raw.take().unwrap_or_default();
            if guest.name == TARGET {
                if !printed.is_empty() {
                    printed.push(b'\n');
                }
                printed.extend_from_slice(&raw);
            }
            let parsed = guest
                .workload
                .parse(&raw, &running.settings, running.timing);
            *result = Some(parsed.map_err(|cause| guest.blame(cause))?);
            if went_on.is_some() {
                *place = Some(running);
            }
        }
        Ok(Stretch {
            name,
            level: level_asked,
            begin,
            end,
            before,
            after,
            results,
            charged,
            kept: None,
        })
    }

    /// Reads everything where a stretch begins.
    fn open(&mut self) -> Result<(HostReading, Snapshot), LabError> {
        let before = self.watch.read();
        if let Some(charging) = &mut self.charging {
            charging.pass()?;
        }
        Ok((before, self.observer.mark()?))
    }

    /// Each guest's load alone, then all of them.
    fn turns(&mut self, loads: &mut Loads, driven: &mut Driven) -> Result<(), LabError> {
        let timing = Timing {
            warmup: self.plan.warmup,
            duration: self.plan.duration,
        };
        let all: Vec<usize> = (0..self.guests.len()).collect();
        let mut sets: Vec<Vec<usize>> = all.iter().map(|index| vec![*index]).collect();
        if all.len() > 1 {
            sets.push(all);
        }
        for set in sets {
            let names: Vec<&str> = set
                .iter()
                .filter_map(|index| Some(self.guests.get(*index)?.name))
                .collect();
            let name = names.join("+");
            let mut stretch = self.stretch(loads, &set, None, timing, &mut driven.raw)?;
            stretch.name = name;
            driven.stretches.push(stretch);
        }
        Ok(())
    }

    /// Level after level, as the profile says.
    fn levels(
        &mut self,
        set: &[usize],
        loads: &mut Loads,
        driven: &mut Driven,
    ) -> Result<(), LabError> {
        let mut course = Course::of(&self.planned.profile);
        let mut broke: Option<(f64, String)> = None;
        let mut broke_at: Option<Instant> = None;
        let mut best: Option<f64> = None;
        while let Some(level) = course.next(broke_at.map(|at| at.elapsed())) {
            let is_first = driven.stretches.is_empty();
            let settle = SETTLE.min(course.every / 4);
            let timing = Timing {
                warmup: if is_first {
                    self.plan.warmup.max(settle)
                } else {
                    settle
                },
                duration: course.every - settle,
            };
            let levels: Vec<f64> = std::iter::once(level).chain(course.ahead()).collect();
            let stretch = self
                .start_ramp(set, &levels, timing, settle, loads)
                .and_then(|()| self.stretch(loads, set, Some(level), timing, &mut driven.raw));
            let judged = match stretch {
                Ok(mut stretch) => {
                    let judged = self.judge(&stretch);
                    if let Ok(Some((kept, _))) = &judged {
                        stretch.kept = Some(*kept);
                    }
                    if let Some(of) = driven.level {
                        self.tell_level(of, level, Some(&stretch), stretch.kept);
                    }
                    driven.stretches.push(stretch);
                    judged
                }
                // In overload a generator may find nothing to report, or give up: that is an answer.
                Err(cause) => {
                    let is_answer = self.planned.objective.is_some() && !cause.is_interrupt();
                    if is_first || !is_answer {
                        return Err(cause);
                    }
                    stop(set, loads);
                    self.log.line(&format!("no result at {level}: {cause}"));
                    if let Some(of) = driven.level {
                        self.tell_level(of, level, None, Some(false));
                    }
                    Ok(Some((false, format!("there was no result ({cause})"))))
                }
            };
            let kept = match judged {
                Ok(judged) => judged,
                Err(cause) if is_first => return Err(LabError::Plan(cause)),
                Err(cause) => Some((false, cause)),
            };
            let Some((kept, found)) = kept else {
                continue;
            };
            course.judged(level, kept);
            if kept {
                let is_before_the_break = broke.as_ref().is_none_or(|(at, _)| level < *at);
                if is_before_the_break {
                    best = Some(best.map_or(level, |best| best.max(level)));
                }
            } else {
                broke_at = broke_at.or_else(|| Some(Instant::now()));
                if broke.as_ref().is_none_or(|(at, _)| level < *at) {
                    broke = Some((level, found));
                    best = best.filter(|best| *best < level);
                }
            }
        }
        // A generator that goes on by itself does so beyond the last level.
        stop(set, loads);
        if let Some(objective) = &self.planned.objective {
            let of = driven.level;
            let quantity = |level: f64| of.map(|of| Quantity::new(level * of.scale, of.unit));
            driven.objective = Some(ObjectiveOutcome {
                text: objective.to_string(),
                knee: best.and_then(quantity),
                broke: broke.map(|(level, found)| match quantity(level) {
                    Some(level) => format!("{found} at {level}"),
                    None => found,
                }),
            });
        }
        Ok(())
    }

    fn judge_steady(&self, driven: &mut Driven) -> Result<(), LabError> {
        let Some(objective) = &self.planned.objective else {
            return Ok(());
        };
        let Some(stretch) = driven.stretches.first_mut() else {
            return Ok(());
        };
        let judged = self.judge(stretch).map_err(LabError::Plan)?;
        stretch.kept = judged.as_ref().map(|(kept, _)| *kept);
        driven.objective = Some(ObjectiveOutcome {
            text: objective.to_string(),
            knee: None,
            broke: judged.filter(|(kept, _)| !kept).map(|(_, found)| found),
        });
        Ok(())
    }

    /// Whether the objective held, and by which value it was judged; `None` where there is none.
    fn judge(&self, stretch: &Stretch) -> Result<Option<(bool, String)>, String> {
        let Some(objective) = &self.planned.objective else {
            return Ok(None);
        };
        let (kept, found) = objective.judge(&self.metrics(stretch))?;
        let found = format!("{} was {found}", objective.metric);
        let result = stretch.results.first().and_then(Option::as_ref);
        // What was not asked of the target it has not borne.
        Ok(Some(
            match result.and_then(|result| result.unreached.clone()) {
                Some(unreached) if kept => (false, unreached),
                _ => (kept, found),
            },
        ))
    }

    /// What the target showed in a stretch.
    fn metrics(&self, stretch: &Stretch) -> BTreeMap<String, Metric> {
        let nothing = WorkloadResult::default();
        let result = stretch.results.first().and_then(Option::as_ref);
        self.observation(&stretch.begin, &stretch.end)
            .metrics(result.unwrap_or(&nothing))
    }

    fn observation<'s>(&'s self, begin: &'s Snapshot, end: &'s Snapshot) -> Observation<'s> {
        Observation {
            begin,
            end,
            processors: self.processors,
            parties: self.parties,
            party: 0,
            energy: self.energy,
            inner: None,
            host: self.host,
        }
    }

    /// Waits for the loads of neighbours to end by their times, and reads what they found.
    fn collect(
        &mut self,
        throughout: &[usize],
        loads: &mut Loads,
        driven: &mut Driven,
    ) -> Result<(), LabError> {
        let_end(loads);
        let steady = self.planned.profile == Profile::Steady;
        let to_completion = self
            .guests
            .first()
            .is_some_and(|target| target.workload.extent(target.settings) == Extent::ToCompletion);
        // Only of a window of known length is it known when they end; otherwise they are cut off.
        if steady && !to_completion && !throughout.is_empty() {
            let limit = TAIL + self.plan.duration / 10 + LOAD_GRACE;
            self.wait(loads, throughout, Instant::now() + limit)?;
            self.need_ends(loads, throughout, limit)?;
        }
        for index in throughout {
            let running = loads.get_mut(*index).and_then(Option::take);
            let (Some(guest), Some(running), Some(found)) = (
                self.guests.get(*index),
                running,
                driven.throughout.get_mut(*index),
            ) else {
                continue;
            };
            if let Some(raw) = running.raw {
                let parsed = guest
                    .workload
                    .parse(&raw, &running.settings, running.timing);
                *found = Some(parsed.map_err(|cause| guest.blame(cause))?);
            }
        }
        Ok(())
    }

    fn refuse_early_ends(&self, loads: &Loads, set: &[usize], place: &str) -> Result<(), LabError> {
        for index in set {
            let running = loads.get(*index).and_then(Option::as_ref);
            let name = self.guests.get(*index).map_or("", |guest| guest.name);
            let raw = running.and_then(|running| running.raw.as_deref());
            refuse_early_end(name, raw, place)?;
        }
        Ok(())
    }

    fn need_ends(&self, loads: &Loads, set: &[usize], limit: Duration) -> Result<(), LabError> {
        for index in set {
            let running = loads.get(*index).and_then(Option::as_ref);
            if running.is_some_and(|running| running.raw.is_none()) {
                let guest = self.guests.get(*index);
                return Err(LabError::Host(HostError::Timeout {
                    what: format!(
                        "the end of the load of {}",
                        guest.map_or("", |guest| guest.name)
                    ),
                    seconds: limit.as_secs(),
                    evidence: guest
                        .map(|guest| guest.target.console_tail())
                        .unwrap_or_default(),
                }));
            }
        }
        Ok(())
    }
}

/// Whether a load is seeded anew in each block: not where it draws nothing, where the plan sets the seed, and in an
/// emulated host, in which repetitions differ by the host's seed alone.
fn is_seeded_by_block(workload: &dyn Workload, settings: &Settings, host: Source) -> bool {
    let mut parameters = workload.parameters().iter();
    parameters.any(|parameter| parameter.key == LOAD_SEED.key)
        && !settings.0.contains_key(LOAD_SEED.key)
        && host != Source::Emulated
}

/// Kills what these loads still run.
fn stop(set: &[usize], loads: &mut Loads) {
    for index in set {
        if let Some(place) = loads.get_mut(*index) {
            *place = None;
        }
    }
}

/// From now on loads that ran throughout may end.
fn let_end(loads: &mut Loads) {
    for running in loads.iter_mut().flatten() {
        running.is_throughout = false;
    }
}

fn refuse_early_end(name: &str, raw: Option<&[u8]>, place: &str) -> Result<(), LabError> {
    let Some(raw) = raw else { return Ok(()) };
    let text = String::from_utf8_lossy(raw);
    let skipped = text.chars().count().saturating_sub(400);
    let end: String = text.chars().skip(skipped).collect();
    let who = match name {
        TARGET => "the load".to_owned(),
        name => format!("the load of the neighbour {name}"),
    };
    Err(LabError::other(format!(
        "{who} ended in its {place}; the end of what it printed: {end}"
    )))
}

#[cfg(test)]
mod ramp_tests;
