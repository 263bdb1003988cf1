// SPDX-License-Identifier: Apache-2.0
//! The events of a run. The command that receives them chooses their presentation.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use vtax_core::{Quantity, Source};
use vtax_host::untrusted::{shown, shown_lines};

/// An event of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    /// A line for the user, such as a change that was restored after a crash.
    Note {
        /// The line.
        message: String,
    },
    /// A run begins or continues.
    Started {
        /// The plan's name.
        plan: String,
        /// The results directory.
        results: String,
        /// The number of trials still to run.
        trials: usize,
        /// The number of trials that are finished already.
        finished: usize,
        /// A rough estimate of the time for the rest, in seconds.
        expected_seconds: f64,
    },
    /// A trial begins.
    TrialStarted {
        /// Position in the schedule.
        index: u32,
        /// Its treatment's label.
        treatment: String,
    },
    /// A trial enters a phase.
    Phase {
        /// `idle`, `boot`, `service`, `warm-up`, `measure`, `stop`.
        phase: String,
    },
    /// The objective of a trial.
    Objective {
        /// The objective as the plan writes it.
        text: String,
    },
    /// A trial has measured one level.
    Sampled(SampledLevel),
    /// A live sample of a trial under load, at most once a second; none in an emulated host.
    Metered(LiveSample),
    /// A trial ended.
    TrialFinished(FinishedTrial),
}

/// The readings of a trial at one load level.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampledLevel {
    /// The level.
    pub level: f64,
    /// The highest level.
    pub of: f64,
    /// The title of levels, with their unit.
    pub across: String,
    /// Readings by title, which contains the source flag when that is not `measured`.
    pub readings: BTreeMap<String, Quantity>,
    /// Whether the level kept the objective, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<bool>,
}

/// The processor time and the traffic of a trial in an interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LiveSample {
    /// The time of the sample, in seconds since the trial began.
    pub at: f64,
    /// The length of the interval before it, in seconds.
    pub seconds: f64,
    /// The number of busy processors, by actor and stage. Their sum is the host's.
    pub cpu: BTreeMap<String, BTreeMap<String, f64>>,
    /// Rates of the target's devices, by title.
    pub carried: BTreeMap<String, Quantity>,
    /// The source flag.
    pub source: Source,
}

/// The end of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FinishedTrial {
    /// Position in the schedule.
    pub index: u32,
    /// Its treatment's label.
    pub treatment: String,
    /// Its duration, in seconds.
    pub seconds: f64,
    /// The number of finished trials.
    pub done: usize,
    /// The number of all trials.
    pub of: usize,
    /// A rough estimate of the time for the rest, in seconds.
    pub remaining_seconds: f64,
    /// Its headline numbers, as text.
    pub headline: String,
    /// The reasons to suspect it.
    pub suspect: Vec<String>,
    /// The disturbances, with which it counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disturbed: Vec<String>,
    /// The reason of its failure, if it failed.
    pub failed: Option<String>,
}

/// The most seconds in an event of another machine: 30 years.
const MAX_SECONDS: f64 = 1e9;

impl Event {
    /// Makes an event of another machine safe to show, with printable text and times in bounds.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let text = |text: &mut String| *text = shown(text);
        let time = |seconds: &mut f64| *seconds = seconds.clamp(0.0, MAX_SECONDS);
        match &mut self {
            // The message of a failure may have several lines.
            Self::Note { message } => *message = shown_lines(message),
            Self::Started {
                plan,
                results,
                expected_seconds,
                ..
            } => {
                text(plan);
                text(results);
                time(expected_seconds);
            }
            Self::TrialStarted { treatment, .. } => text(treatment),
            Self::Phase { phase } => text(phase),
            Self::Objective { text: printed } => text(printed),
            Self::Sampled(sampled) => {
                text(&mut sampled.across);
                sampled.readings = named(&mut sampled.readings);
            }
            Self::Metered(sample) => {
                time(&mut sample.at);
                time(&mut sample.seconds);
                sample.cpu = named(&mut sample.cpu);
                let actors = sample.cpu.values_mut();
                actors.for_each(|stages| *stages = named(stages));
                sample.carried = named(&mut sample.carried);
            }
            Self::TrialFinished(over) => {
                text(&mut over.treatment);
                time(&mut over.seconds);
                time(&mut over.remaining_seconds);
                text(&mut over.headline);
                let reasons = over.suspect.iter_mut().chain(&mut over.disturbed);
                reasons.for_each(text);
                if let Some(reason) = &mut over.failed {
                    *reason = shown_lines(reason);
                }
            }
        }
        self
    }
}

fn named<T>(of: &mut BTreeMap<String, T>) -> BTreeMap<String, T> {
    let taken = std::mem::take(of).into_iter();
    taken.map(|(name, value)| (shown(&name), value)).collect()
}

/// Receives the events of a run.
pub trait Progress {
    /// Receives an event.
    fn event(&mut self, event: Event);
}

impl<F: FnMut(Event)> Progress for F {
    fn event(&mut self, event: Event) {
        self(event);
    }
}

/// Estimates the time for the rest of a run: what is expected of each trial, and by how much those that ended differed
/// from it.
#[derive(Debug, Default)]
pub(super) struct Estimate {
    /// The platform of each treatment.
    platforms: Vec<String>,
    /// By treatment: the seconds by which its trials exceeded what was expected, and their number.
    seen: BTreeMap<usize, (f64, u32)>,
}

impl Estimate {
    /// An estimate without a trial, of treatments on these platforms.
    pub(super) fn new(platforms: Vec<String>) -> Self {
        Self {
            platforms,
            ..Self::default()
        }
    }

    pub(super) fn saw(&mut self, treatment: usize, took: Duration, expected: Duration) {
        let (excess, count) = self.seen.entry(treatment).or_default();
        *excess += took.as_secs_f64() - expected.as_secs_f64();
        *count += 1;
    }

    /// Returns the time for `rest` (treatment indices), of which `expected` is known.
    pub(super) fn remaining(
        &self,
        rest: impl Iterator<Item = usize>,
        expected: &dyn Fn(usize) -> Duration,
    ) -> Duration {
        rest.map(|treatment| {
            let seconds = expected(treatment).as_secs_f64() + self.excess(treatment);
            Duration::try_from_secs_f64(seconds).unwrap_or_default()
        })
        .sum()
    }

    /// The mean excess of ended trials of the same treatment; without one, of the same platform; without one, of any: most
    /// platforms run the same load.
    fn excess(&self, treatment: usize) -> f64 {
        let platform = self.platforms.get(treatment);
        let mean = |is_like: &dyn Fn(usize) -> bool| {
            let like = self.seen.iter().filter(|(number, _)| is_like(**number));
            let (excess, count) =
                like.fold((0.0, 0), |sum, (_, one)| (sum.0 + one.0, sum.1 + one.1));
            (count > 0).then(|| excess / f64::from(count))
        };
        mean(&|number| number == treatment)
            .or_else(|| mean(&|number| self.platforms.get(number) == platform))
            .or_else(|| mean(&|_| true))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_bounded_event_steers_no_terminal_and_its_times_are_times() {
        let text = r#"{"event":"EVENT","message":"\u001b[2J","plan":"\u001b[2J","results":"\u001b[2J","trials":1,
            "finished":0,"expected_seconds":1e300,"index":1,"treatment":"\u001b[2J","phase":"\u001b[2J",
            "text":"\u001b[2J","level":1e300,"of":1,"across":"\u001b[2J","at":-1e300,"seconds":1e300,
            "readings":{"\u001b[2J":{"value":1,"unit":"s"}},"carried":{"\u001b[2J":{"value":1,"unit":"s"}},
            "cpu":{"\u001b[2J":{"\u001b[2J":1}},"source":"measured","done":1,"remaining_seconds":1e300,
            "headline":"\u001b[2J","suspect":["\u001b[2J"],"disturbed":["\u001b[2J"],"failed":"a\n\u001b[2J"}"#;
        for event in [
            "note",
            "started",
            "trial_started",
            "phase",
            "objective",
            "sampled",
            "metered",
            "trial_finished",
        ] {
            let event: Event = serde_json::from_str(&text.replace("EVENT", event)).unwrap();
            let steers = |text: &str| text.contains("\\u001b");
            assert!(steers(&serde_json::to_string(&event).unwrap()));
            let bounded = event.bounded();
            let shown = serde_json::to_string(&bounded).unwrap();
            assert!(!steers(&shown), "{shown}");
            if let Event::Started {
                expected_seconds: seconds,
                ..
            }
            | Event::Metered(LiveSample { seconds, .. })
            | Event::TrialFinished(FinishedTrial {
                remaining_seconds: seconds,
                ..
            }) = bounded
            {
                assert!(Duration::from_secs_f64(seconds) > Duration::ZERO);
            }
        }
    }

    #[test]
    fn the_rest_is_estimated_by_the_trials_of_a_treatment_then_of_its_platform_then_by_all() {
        let mut estimate = Estimate::new(["native", "native", "vm"].map(str::to_owned).into());
        let expected = |treatment: usize| Duration::from_secs([3, 13, 7][treatment]);
        let rest = |estimate: &Estimate, of: usize| {
            let rest = estimate.remaining(std::iter::once(of), &expected);
            (rest.as_secs_f64() * 10.0).round() / 10.0
        };
        assert_eq!([0, 1, 2].map(|of| rest(&estimate, of)), [3.0, 13.0, 7.0]);
        // A command of 20 s, of which nothing was known.
        estimate.saw(0, Duration::from_secs(20), expected(0));
        assert_eq!([0, 1, 2].map(|of| rest(&estimate, of)), [20.0, 30.0, 24.0]);
        estimate.saw(0, Duration::from_secs(22), expected(0));
        estimate.saw(2, Duration::from_secs(4), expected(2));
        assert_eq!([0, 1, 2].map(|of| rest(&estimate, of)), [21.0, 31.0, 4.0]);
        // Of a treatment that ends sooner than its platform, nothing is left rather than less.
        let mut fast = Estimate::new(["native", "native"].map(str::to_owned).into());
        fast.saw(1, Duration::ZERO, expected(1));
        assert_eq!(rest(&fast, 0), 0.0);
    }
}
