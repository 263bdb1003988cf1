// SPDX-License-Identifier: Apache-2.0
//! The canary of a run: when it is read, and for how long.
//!
//! A reading is taken before the first trial and after each one, so that every trial lies between two. Its length is a
//! share of the mean time of a trial, so that all readings together take no more than that share of the run.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use vtax_host::canary;
use vtax_results::{self as results, Speed};

/// The longest reading.
const LONGEST: Duration = Duration::from_millis(500);
/// A shorter reading says nothing.
const SHORTEST: Duration = Duration::from_millis(20);
/// The share of a run's time that readings take: less than the promised 5 %, since a part ends with a whole call.
const SHARE: f64 = 0.04;
/// The age at which the reading after the last trial is no longer one before the next.
const FRESH: Duration = Duration::from_secs(2);

type Speeds = BTreeMap<String, Speed>;

/// The readings of a run.
#[derive(Debug)]
pub(super) struct Canary {
    is_on: bool,
    code: String,
    /// The time of all trials, and their number.
    trials: (Duration, u32),
    began: Instant,
    expected: Duration,
    last: Option<(Instant, Speeds)>,
}

impl Canary {
    /// The canary of a run that begins.
    pub fn new(is_on: bool) -> Self {
        let code = canary::digest();
        Self {
            is_on: is_on && code.is_some(),
            code: code.unwrap_or_default(),
            trials: (Duration::ZERO, 0),
            began: Instant::now(),
            expected: Duration::ZERO,
            last: None,
        }
    }

    /// Takes the reading before a trial that is expected to take a time, unless the last one is fresh.
    pub fn read_before(&mut self, expected: Duration) {
        self.expected = expected;
        let fresh = self.last.take_if(|(at, _)| at.elapsed() <= FRESH);
        self.last = fresh.or_else(|| self.read());
        self.began = Instant::now();
    }

    /// Takes the reading after a trial, and returns both.
    pub fn read_after(&mut self) -> Option<results::Canary> {
        self.trials.0 += self.began.elapsed();
        self.trials.1 += 1;
        let before = self.last.take();
        self.last = self.read();
        let (_, before) = before?;
        let (_, after) = self.last.clone()?;
        Some(results::Canary {
            code: self.code.clone(),
            before,
            after,
        })
    }

    fn read(&self) -> Option<(Instant, Speeds)> {
        let length = length(self.trials, self.expected)?;
        if !self.is_on {
            return None;
        }
        let parts = canary::read(length).into_iter();
        let speeds = parts.map(|part| (part.name.to_owned(), speed(part)));
        let speeds = speeds.collect();
        Some((Instant::now(), speeds))
    }
}

fn speed(part: canary::Part) -> Speed {
    let per = |time: Duration| part.rounds as f64 / time.as_secs_f64().max(1e-9);
    Speed {
        per_second: per(part.wall),
        per_cpu_second: per(part.cpu),
    }
}

/// The length of a reading, by the time and number of the trials so far, or by what the first is expected to take; `None`
/// where trials are too short for one.
fn length((time, trials): (Duration, u32), expected: Duration) -> Option<Duration> {
    let mean = time.checked_div(trials).unwrap_or(expected);
    let length = mean.mul_f64(SHARE).min(LONGEST);
    (length >= SHORTEST).then_some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_take_their_share_of_a_run_and_short_trials_have_none() {
        let seconds = Duration::from_secs_f64;
        assert_eq!(
            length((Duration::ZERO, 0), seconds(5.0)),
            Some(seconds(0.2))
        );
        assert_eq!(
            length((seconds(20.0), 4), seconds(60.0)),
            Some(seconds(0.2))
        );
        assert_eq!(length((seconds(600.0), 4), seconds(1.0)), Some(LONGEST));
        assert_eq!(length((seconds(0.4), 1), seconds(60.0)), None);
    }

    #[test]
    fn each_trial_lies_between_two_readings_and_none_is_taken_twice() {
        let mut on = Canary::new(true);
        // As of a run whose trials take a second.
        on.trials = (Duration::from_secs(1), 1);
        on.read_before(Duration::ZERO);
        on.trials = (Duration::from_secs(1), 1);
        let first = on.read_after().unwrap();
        assert_eq!(first.code.len(), 64);
        on.trials = (Duration::from_secs(2), 2);
        on.read_before(Duration::ZERO);
        let second = on.read_after().unwrap();
        assert_eq!(first.after, second.before);
        assert_ne!(second.before, second.after);
        for speed in second.after.values() {
            assert!(
                speed.per_second > 0.0 && speed.per_cpu_second > 0.0,
                "{speed:?}"
            );
        }
        let mut off = Canary::new(false);
        off.read_before(Duration::from_secs(9));
        assert_eq!(off.read_after(), None);
    }
}
