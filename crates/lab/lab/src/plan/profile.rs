// SPDX-License-Identifier: Apache-2.0
//! Load profiles and objectives.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use vtax_core::{Base, Quantity, Unit, metric};
use vtax_results::Metric;

/// The most levels of one trial.
pub const MOST_LEVELS: usize = 1000;

/// How the load level changes in the measured part of a trial. Levels are values of one setting of the workload
/// (`load.rate` of `http-rate`).
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Profile {
    /// One level for the plan's duration.
    #[default]
    Steady,
    /// The given levels, in rising order. The levels after the one that breaks the objective run as well.
    Steps {
        /// The levels.
        levels: Vec<f64>,
        /// The duration of each level.
        every: Duration,
    },
    /// Rising levels, until some time after the objective is broken.
    Ramp {
        /// The first level.
        from: f64,
        /// The last level.
        to: f64,
        /// The step from one level to the next.
        step: Step,
        /// The duration of each level.
        every: Duration,
        /// The time that the ramp continues after the objective is broken.
        beyond: Duration,
    },
    /// A search for the highest level that keeps the objective.
    Search {
        /// The lowest level.
        from: f64,
        /// The highest level.
        to: f64,
        /// The relative precision of the result.
        within: f64,
        /// The duration of each level.
        every: Duration,
    },
    /// Each guest's load alone, then all loads together, each for the plan's duration.
    Turns,
}

/// The step from one level of a ramp to the next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Step {
    /// An addition.
    Plus(f64),
    /// A factor above 1.
    Times(f64),
}

impl Step {
    /// The level `steps` steps after `from`.
    fn after(self, from: f64, steps: usize) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "at most a thousand")]
        let steps = steps as f64;
        match self {
            Self::Plus(step) => from + step * steps,
            // Three digits are readable, and finer than any load can resolve.
            Self::Times(factor) => three_digits(from * factor.powf(steps)),
        }
    }
}

fn three_digits(value: f64) -> f64 {
    let unit = 10f64.powf(value.log10().floor() - 2.0);
    (value / unit).round() * unit
}

impl Profile {
    /// Returns the time of one window with its settling. A steady load is measured for `duration`.
    pub fn each(&self, duration: Duration) -> Duration {
        match self {
            Self::Steady | Self::Turns => duration,
            Self::Steps { every, .. } | Self::Ramp { every, .. } | Self::Search { every, .. } => {
                *every
            }
        }
    }

    /// Returns the longest time of the measured part of a trial with `guests` guests. A steady load is measured
    /// for `duration`.
    pub fn longest(&self, duration: Duration, guests: usize) -> Duration {
        match self {
            Self::Steady => duration,
            Self::Turns => duration * u32::try_from(guests + 1).unwrap_or(u32::MAX),
            Self::Steps { levels, every } => *every * count(levels.len()),
            Self::Ramp { every, .. } => *every * count(self.rising().len()),
            Self::Search {
                from,
                to,
                within,
                every,
            } => {
                // The level doubles until it breaks the objective, then the bracket is halved.
                let up = (to / from).log2().ceil().max(0.0) + 2.0;
                let down = (1.0 / within).log2().ceil().max(0.0) + 1.0;
                every.mul_f64(up + down)
            }
        }
    }

    /// Limits the time of a level to `duration`, for the quick profile.
    #[must_use]
    pub fn with_levels_of(mut self, duration: Duration) -> Self {
        match &mut self {
            Self::Steps { every, .. } | Self::Search { every, .. } => {
                *every = (*every).min(duration)
            }
            Self::Ramp { every, beyond, .. } => {
                *beyond = (*beyond).min(duration);
                *every = (*every).min(duration);
            }
            Self::Steady | Self::Turns => {}
        }
        self
    }

    /// Returns the levels that are known in advance, in order.
    pub fn rising(&self) -> Vec<f64> {
        match self {
            Self::Steps { levels, .. } => levels.clone(),
            Self::Ramp { from, to, step, .. } => {
                // A margin, so that rounding does not lose the last level.
                let last = to * (1.0 + 1e-9);
                (0..MOST_LEVELS)
                    .map(|steps| step.after(*from, steps))
                    .take_while(|level| *level <= last)
                    .collect()
            }
            Self::Steady | Self::Search { .. } | Self::Turns => Vec::new(),
        }
    }

    /// Returns the lowest level; `None` without levels.
    pub fn lowest(&self) -> Option<f64> {
        match self {
            Self::Search { from, .. } => Some(*from),
            _ => self.rising().into_iter().reduce(f64::min),
        }
    }

    /// Returns the highest level that the profile can reach; 0 without levels.
    pub fn highest(&self) -> f64 {
        match self {
            Self::Search { to, .. } => *to,
            _ => self.rising().into_iter().fold(0.0, f64::max),
        }
    }
}

fn count(levels: usize) -> u32 {
    u32::try_from(levels).unwrap_or(u32::MAX)
}

/// A metric of the target and its limit, written `latency.p99 <= 20ms`.
#[derive(Debug, Clone, PartialEq)]
pub struct Objective {
    /// The metric's name, such as `latency.p99`.
    pub metric: String,
    /// Whether the limit is a minimum, not a maximum.
    pub at_least: bool,
    /// The limit.
    pub limit: Quantity,
    /// Whether the limit was written with a unit, which the metric must then have.
    pub has_unit: bool,
}

/// The percentage of requests that may fail under an objective on another metric.
const ALLOWED_ERRORS: f64 = 0.1;

/// Suffixes of a limit, with their factor and unit.
const SUFFIXES: [(&str, f64, Unit); 18] = [
    ("kbit/s", 1e3, Unit::per(Base::Bit, Base::Second)),
    ("Mbit/s", 1e6, Unit::per(Base::Bit, Base::Second)),
    ("Gbit/s", 1e9, Unit::per(Base::Bit, Base::Second)),
    ("bit/s", 1.0, Unit::per(Base::Bit, Base::Second)),
    ("kB/s", 1e3, Unit::per(Base::Byte, Base::Second)),
    ("MB/s", 1e6, Unit::per(Base::Byte, Base::Second)),
    ("GB/s", 1e9, Unit::per(Base::Byte, Base::Second)),
    ("B/s", 1.0, Unit::per(Base::Byte, Base::Second)),
    ("request/s", 1.0, Unit::per(Base::Request, Base::Second)),
    ("op/s", 1.0, Unit::per(Base::Operation, Base::Second)),
    ("ns", 1e-9, Unit::from_base(Base::Second)),
    ("us", 1e-6, Unit::from_base(Base::Second)),
    ("µs", 1e-6, Unit::from_base(Base::Second)),
    ("ms", 1e-3, Unit::from_base(Base::Second)),
    ("s", 1.0, Unit::from_base(Base::Second)),
    ("W", 1.0, Unit::from_base(Base::Watt)),
    ("J", 1.0, Unit::from_base(Base::Joule)),
    ("%", 1.0, Unit::from_base(Base::Percent)),
];

/// An objective that cannot be read, or not be judged.
#[derive(Debug, thiserror::Error)]
pub enum ObjectiveError {
    /// No relation between a metric and a limit.
    #[error(
        "`{0}` is no objective: write a metric, <= or >=, and a limit, such as \"latency.p99 <= 20ms\""
    )]
    Relation(String),
    /// No name of a metric.
    #[error("`{0}` is no metric's name, such as latency.p99, errors, rate, cpu.cores")]
    Metric(String),
    /// No limit.
    #[error("`{0}` is no limit: write a number and a unit, such as 20ms, 0.1% or 90Mbit/s")]
    Limit(String),
    /// The trial lacks the metric.
    #[error(
        "the objective `{objective}` asks for {}, which this trial does not have; it has: {}",
        objective.metric, names.join(", ")
    )]
    Lacks {
        /// The objective.
        objective: Objective,
        /// The metrics of the trial.
        names: Vec<String>,
    },
    /// The metric has another unit than the limit.
    #[error(
        "the objective `{objective}` has a limit in {}, but {} is in {found}",
        objective.limit.unit, objective.metric
    )]
    Unit {
        /// The objective.
        objective: Box<Objective>,
        /// The unit of the metric.
        found: Unit,
    },
}

impl Objective {
    /// Reads `METRIC <= LIMIT` or `METRIC >= LIMIT`.
    ///
    /// # Errors
    /// The fault, in a sentence.
    pub fn parse(text: &str) -> Result<Self, ObjectiveError> {
        let (metric, at_least, limit) = match (text.split_once("<="), text.split_once(">=")) {
            (Some((metric, limit)), None) => (metric, false, limit),
            (None, Some((metric, limit))) => (metric, true, limit),
            _ => return Err(ObjectiveError::Relation(text.to_owned())),
        };
        let (metric, limit) = (metric.trim(), limit.trim());
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
        if metric.is_empty() || !metric.chars().all(is_name) {
            return Err(ObjectiveError::Metric(metric.to_owned()));
        }
        let (number, scale, unit) = SUFFIXES
            .iter()
            .find_map(|(suffix, scale, unit)| {
                Some((limit.strip_suffix(suffix)?, *scale, Some(*unit)))
            })
            .unwrap_or((limit, 1.0, None));
        let value: f64 = number
            .trim()
            .parse()
            .ok()
            .filter(|value: &f64| value.is_finite())
            .ok_or_else(|| ObjectiveError::Limit(limit.to_owned()))?;
        Ok(Self {
            metric: metric.to_owned(),
            at_least,
            limit: Quantity::new(value * scale, unit.unwrap_or(Unit::from_base(Base::One))),
            has_unit: unit.is_some(),
        })
    }

    /// Returns whether the objective holds, and the value that decided.
    ///
    /// # Errors
    /// When the workload has no such metric, or the metric has another unit.
    pub fn judge(
        &self,
        metrics: &BTreeMap<String, Metric>,
    ) -> Result<(bool, Quantity), ObjectiveError> {
        let metric = metrics
            .get(&self.metric)
            .ok_or_else(|| ObjectiveError::Lacks {
                objective: self.clone(),
                names: metrics.keys().cloned().collect(),
            })?;
        let found = metric.quantity;
        if self.has_unit && found.unit != self.limit.unit {
            return Err(ObjectiveError::Unit {
                objective: Box::new(self.clone()),
                found: found.unit,
            });
        }
        let holds = if self.at_least {
            found.value >= self.limit.value
        } else {
            found.value <= self.limit.value
        };
        Ok((holds, found))
    }

    /// Returns the share of failed requests when it exceeds the share that an objective on another metric allows. The
    /// latency of a refused request does not count.
    pub fn too_many_errors(&self, metrics: &BTreeMap<String, Metric>) -> Option<Quantity> {
        let errors = metrics.get(metric::ERRORS.name)?.quantity;
        let is_too_many =
            errors.value > ALLOWED_ERRORS && errors.unit == Unit::from_base(Base::Percent);
        (is_too_many && !metric::ERRORS.is(&self.metric)).then_some(errors)
    }
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let relation = if self.at_least { ">=" } else { "<=" };
        write!(f, "{} {relation} {}", self.metric, self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use vtax_core::Source;
    use vtax_results::Better;

    fn metric(value: f64, base: Base) -> BTreeMap<String, Metric> {
        let metric = Metric {
            quantity: Quantity::new(value, Unit::from_base(base)),
            source: Source::Measured,
            model: None,
            meter: None,
            better: Better::Lower,
            headline: false,
            title: "x".to_owned(),
        };
        BTreeMap::from([("latency.p99".to_owned(), metric)])
    }

    #[test]
    fn an_objective_is_judged_in_the_unit_of_its_metric() {
        let objective = Objective::parse("latency.p99 <= 20ms").unwrap();
        let holds = |seconds| objective.judge(&metric(seconds, Base::Second)).unwrap().0;
        assert!(holds(0.02) && !holds(0.0201));
        let other = objective
            .judge(&metric(1.0, Base::Byte))
            .unwrap_err()
            .to_string();
        assert!(other.contains("limit in s"), "{other}");
        let at_least = Objective::parse("latency.p99>=5").unwrap();
        assert!(at_least.judge(&metric(5.0, Base::Byte)).unwrap().0);
    }

    #[test]
    fn refused_requests_break_an_objective_on_latency_however_fast_they_were() {
        let with = |percent: f64| {
            let mut metrics = metric(0.001, Base::Second);
            let errors = metric(percent, Base::Percent)
                .remove("latency.p99")
                .unwrap();
            metrics.insert("errors".to_owned(), errors);
            metrics
        };
        let latency = Objective::parse("latency.p99 <= 20ms").unwrap();
        assert!(latency.judge(&with(5.0)).unwrap().0);
        assert_eq!(latency.too_many_errors(&with(5.0)).unwrap().value, 5.0);
        assert_eq!(latency.too_many_errors(&with(0.1)), None);
        let own = Objective::parse("errors <= 10%").unwrap();
        assert_eq!(own.too_many_errors(&with(5.0)), None);
    }

    #[test]
    fn a_metric_that_is_not_there_is_an_error_that_lists_what_is() {
        let objective = Objective::parse("errors <= 0.1%").unwrap();
        let message = objective
            .judge(&metric(1.0, Base::Second))
            .unwrap_err()
            .to_string();
        assert!(message.contains("latency.p99"), "{message}");
    }

    #[test]
    fn what_is_no_objective_says_how_to_write_one() {
        for text in [
            "",
            "latency",
            "a < 3",
            "a <= b",
            "a <= 3 apples",
            "<= 3",
            "a b <= 3",
            "a <= inf",
        ] {
            assert!(Objective::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_ramp_has_its_first_and_its_last_level() {
        let ramp = |from, to, step| {
            Profile::Ramp {
                from,
                to,
                step: Step::Plus(step),
                every: Duration::from_secs(1),
                beyond: Duration::ZERO,
            }
            .rising()
        };
        assert_eq!(ramp(100.0, 300.0, 100.0), [100.0, 200.0, 300.0]);
        assert_eq!(ramp(0.1, 0.3, 0.1).len(), 3);
        assert_eq!(ramp(5.0, 5.0, 1.0), [5.0]);
        let doubling = Profile::Ramp {
            from: 100.0,
            to: 1000.0,
            step: Step::Times(1.5),
            every: Duration::from_secs(1),
            beyond: Duration::ZERO,
        };
        assert_eq!(
            doubling.rising(),
            [100.0, 150.0, 225.0, 338.0, 506.0, 759.0]
        );
    }

    proptest! {
        #[test]
        fn no_text_panics_the_reader_of_objectives(text in ".{0,40}") {
            let _ = Objective::parse(&text);
        }
    }
}
