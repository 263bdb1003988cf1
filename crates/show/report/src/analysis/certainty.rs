// SPDX-License-Identifier: Apache-2.0
//! Certainty of a number: exact where a repeated trial gives the same value, otherwise limited by the variation between
//! repetitions.

use super::Read;
use serde::Serialize;
use std::collections::BTreeSet;
use vtax_results::stats::{REPEATS_WITHIN, extremes};
use vtax_results::{Trial, emulated};

/// The caveat for exact ratios.
pub(crate) const ONE_SEED: &str = "Exact means: for this host, image and seed, which give the same again. One seed \
     says nothing about chance in the timing; `draws = 8` in the plan would.";

/// The source of variation between repetitions of a number, and so the population of an interval over them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Certainty {
    /// None: a deterministic emulated host gives the same value again with the same seed.
    Exact {
        /// The seed.
        seed: u64,
    },
    /// The seed of a deterministic emulated host, which varies the timing.
    Seeds,
    /// Anything that varies on a host from trial to trial.
    Trials,
    /// Anything that varies on a host over time, in a recording; neighbouring minutes are alike.
    Minutes {
        /// Minutes in a block, within which they are dependent.
        block: usize,
    },
}

impl Certainty {
    /// Certainty of the numbers of these trials, from their environment facts.
    pub(super) fn from_trials(trials: &[&Trial]) -> Self {
        let seeds: Option<BTreeSet<u64>> = trials.iter().map(|trial| seed(trial)).collect();
        let mut seeds = seeds.unwrap_or_default().into_iter();
        match (seeds.next(), seeds.next()) {
            (Some(seed), None) => Self::Exact { seed },
            (Some(_), Some(_)) => Self::Seeds,
            (None, _) => Self::Trials,
        }
    }

    /// Certainty of a metric with these values: different values with one seed are a sample.
    pub(super) fn of_values(self, values: &[f64]) -> Self {
        let (low, high) = extremes(values.iter().copied());
        match self {
            Self::Exact { .. } if high - low > REPEATS_WITHIN * high.abs().max(low.abs()) => {
                Self::Trials
            }
            other => other,
        }
    }

    /// Certainty of a number computed from both.
    pub(super) fn with(self, other: Self) -> Self {
        match (self, other) {
            (Self::Exact { seed: mine }, Self::Exact { seed: theirs }) if mine == theirs => self,
            (Self::Trials | Self::Minutes { .. }, _) | (_, Self::Trials | Self::Minutes { .. }) => {
                Self::Trials
            }
            _ => Self::Seeds,
        }
    }

    /// The reason why two exact numbers have no exact ratio: different seeds.
    pub(super) fn apart(self, other: Self) -> Option<String> {
        match (self, other) {
            (Self::Exact { seed: mine }, Self::Exact { seed: theirs }) if mine != theirs => {
                Some(format!(
                    "its host had seed {mine}, the baseline's {theirs}: not exact against each other"
                ))
            }
            _ => None,
        }
    }

    /// Whether repetitions do not vary.
    pub fn is_exact(self) -> bool {
        matches!(self, Self::Exact { .. })
    }

    /// The noun for one repetition.
    pub(crate) fn repetition(self, paired: bool) -> &'static str {
        match self {
            Self::Exact { .. } | Self::Seeds if paired => "seed",
            Self::Minutes { .. } => "block",
            _ if paired => "pair",
            _ => "trial",
        }
    }
}

/// The seed of the trial's deterministic emulated host; `None` on any other host.
fn seed(trial: &Trial) -> Option<u64> {
    trial.environment.get(emulated::INSTRUCTION_NS)?;
    trial.environment.get(emulated::SEED)?.parse().ok()
}

/// Where all trials have one seed except those of restarted stuck hosts, marks the latter suspect: they are another
/// sample. The only trials of a treatment stay unmarked.
pub(super) fn set_stuck_apart(trials: &mut [Read]) {
    let is_stuck = |read: &Read| read.trial.environment.contains_key(emulated::STUCK);
    let planned = || trials.iter().filter(|read| !is_stuck(read));
    let seeds: BTreeSet<Option<u64>> = planned().map(|read| seed(&read.trial)).collect();
    let mut seeds = seeds.into_iter();
    let (Some(Some(common)), None) = (seeds.next(), seeds.next()) else {
        return;
    };
    let counted: BTreeSet<String> = planned()
        .filter(|read| read.counts)
        .map(|read| read.trial.treatment.label.clone())
        .collect();
    for read in trials.iter_mut().filter(|read| is_stuck(read)) {
        let other = seed(&read.trial).filter(|seed| *seed != common);
        if let (Some(other), true) = (other, counted.contains(&read.trial.treatment.label)) {
            read.counts = false;
            read.trial.suspect.push(format!(
                "its host got stuck and was begun anew with seed {other}: no repetition of the trials with seed {common}"
            ));
        }
    }
}

/// The kinds of certainty in a table or figure, for its legend.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Kinds {
    pub exact: bool,
    pub seeds: bool,
    pub trials: bool,
}

impl FromIterator<Certainty> for Kinds {
    fn from_iter<T: IntoIterator<Item = Certainty>>(all: T) -> Self {
        let mut kinds = Self::default();
        for one in all {
            match one {
                Certainty::Exact { .. } => kinds.exact = true,
                Certainty::Seeds => kinds.seeds = true,
                Certainty::Trials | Certainty::Minutes { .. } => kinds.trials = true,
            }
        }
        kinds
    }
}

impl Kinds {
    /// Whether any number has an interval; true for an empty table or figure.
    pub fn has_intervals(self) -> bool {
        self.seeds || self.trials || !self.exact
    }

    /// The title of a number, with a note of its interval where one exists.
    pub fn titled(self, what: &str) -> String {
        let interval = if self.has_intervals() {
            " [95 % CI]"
        } else {
            ""
        };
        format!("{what}{interval}")
    }

    /// Describes the intervals.
    pub fn interval(self) -> &'static str {
        if self.seeds && !self.trials {
            "95 % confidence intervals over seeds, which say how much chance there is in the timing"
        } else {
            "95 % confidence intervals"
        }
    }

    /// The end of a caption: the meaning of `bars`, and the numbers without one.
    pub fn bars(self, bars: &str, cut: &str) -> String {
        let interval = self.interval();
        match (self.has_intervals(), self.exact) {
            (true, false) => format!("{bars} are {interval}{cut}."),
            (true, true) => format!("{bars} are {interval}{cut}; what is exact has none."),
            (false, _) => "All is exact for this host, image and seed.".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_one_seed_are_exact_where_they_agree() {
        let exact = Certainty::Exact { seed: 1 };
        assert_eq!(exact.of_values(&[3.0]), exact);
        assert_eq!(exact.of_values(&[0.0, 0.0]), exact);
        assert_eq!(exact.of_values(&[3.0, 3.0003]), exact);
        assert_eq!(exact.of_values(&[-3.0, -3.0003]), exact);
        assert_eq!(exact.of_values(&[3.0, 3.003]), Certainty::Trials);
        assert_eq!(Certainty::Seeds.of_values(&[3.0, 4.0]), Certainty::Seeds);
    }

    #[test]
    fn only_what_has_the_same_seed_is_exact_against_each_other() {
        let exact = |seed| Certainty::Exact { seed };
        assert_eq!(exact(1).with(exact(1)), exact(1));
        assert_eq!(exact(1).with(exact(2)), Certainty::Seeds);
        assert_eq!(exact(1).with(Certainty::Trials), Certainty::Trials);
        assert_eq!(Certainty::Seeds.with(exact(1)), Certainty::Seeds);
    }

    #[test]
    fn a_legend_speaks_of_intervals_only_where_there_are_some() {
        let kinds = |all: &[Certainty]| all.iter().copied().collect::<Kinds>();
        let exact = Certainty::Exact { seed: 1 };
        assert!(!kinds(&[exact]).bars("Bars", "").contains("Bars"));
        let both = kinds(&[exact, Certainty::Trials]).bars("Bars", "");
        assert_eq!(
            both,
            "Bars are 95 % confidence intervals; what is exact has none."
        );
        assert!(
            kinds(&[Certainty::Seeds])
                .bars("Bars", "")
                .contains("over seeds")
        );
        assert!(kinds(&[]).has_intervals());
    }
}
