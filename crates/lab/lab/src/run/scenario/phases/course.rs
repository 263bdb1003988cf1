// SPDX-License-Identifier: Apache-2.0
//! The order of load levels. A ramp or steps use their levels one after the other; a search chooses each level by
//! the judgements of earlier levels.

use crate::plan::Profile;
use std::time::Duration;

/// The levels of a profile, one by one.
pub(super) struct Course {
    kind: Kind,
    pub every: Duration,
}

enum Kind {
    /// Levels in rising order, and the time to continue after the objective is broken.
    Rising(std::vec::IntoIter<f64>, Option<Duration>),
    /// A search that doubles the level, then halves the bracket.
    Search {
        from: f64,
        to: f64,
        within: f64,
        kept: Option<f64>,
        broken: Option<f64>,
    },
}

impl Course {
    pub fn from_profile(profile: &Profile) -> Self {
        let (kind, every) = match profile {
            Profile::Search {
                from,
                to,
                within,
                every,
            } => (
                Kind::Search {
                    from: *from,
                    to: *to,
                    within: *within,
                    kept: None,
                    broken: None,
                },
                *every,
            ),
            Profile::Ramp { every, beyond, .. } => (
                Kind::Rising(profile.rising().into_iter(), Some(*beyond)),
                *every,
            ),
            Profile::Steps { every, .. } => {
                (Kind::Rising(profile.rising().into_iter(), None), *every)
            }
            Profile::Steady | Profile::Turns => {
                (Kind::Rising(Vec::new().into_iter(), None), Duration::ZERO)
            }
        };
        Self { kind, every }
    }

    /// Returns the next level. `broke` is the time since the objective was broken; `None` while it holds.
    pub fn next(&mut self, broke: Option<Duration>) -> Option<f64> {
        match &mut self.kind {
            Kind::Rising(levels, beyond) => {
                let is_over = beyond.zip(broke).is_some_and(|(beyond, ago)| ago >= beyond);
                if is_over { None } else { levels.next() }
            }
            Kind::Search {
                from,
                to,
                within,
                kept,
                broken,
            } => match (*kept, *broken) {
                (None, None) => Some(*from),
                // The lowest level broke the objective.
                (None, Some(_)) => None,
                (Some(kept), None) => (kept < *to).then(|| (kept * 2.0).min(*to)),
                (Some(kept), Some(broken)) => {
                    (broken > kept * (1.0 + *within)).then(|| (kept * broken).sqrt())
                }
            },
        }
    }

    /// Returns the levels that follow the present one, whatever its judgement.
    pub fn ahead(&self) -> impl Iterator<Item = f64> {
        let levels = match &self.kind {
            Kind::Rising(levels, _) => levels.as_slice(),
            Kind::Search { .. } => &[],
        };
        levels.iter().copied()
    }

    pub fn judged(&mut self, level: f64, held: bool) {
        if let Kind::Search { kept, broken, .. } = &mut self.kind {
            let side = if held { kept } else { broken };
            *side = Some(level);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Step;
    use proptest::prelude::*;

    fn search(from: f64, to: f64, within: f64, capacity: f64) -> (Option<f64>, usize) {
        let mut course = Course::from_profile(&Profile::Search {
            from,
            to,
            within,
            every: Duration::from_secs(1),
        });
        let (mut best, mut tried): (Option<f64>, usize) = (None, 0);
        while let Some(level) = course.next(None) {
            tried += 1;
            let kept = level <= capacity;
            if kept {
                best = Some(best.map_or(level, |best| best.max(level)));
            }
            course.judged(level, kept);
        }
        (best, tried)
    }

    #[test]
    fn a_search_that_never_breaks_ends_at_its_top_and_one_that_breaks_at_once_finds_nothing() {
        assert_eq!(search(10.0, 100.0, 0.05, 1e9), (Some(100.0), 5));
        assert_eq!(search(10.0, 100.0, 0.05, 5.0), (None, 1));
    }

    proptest! {
        #[test]
        fn a_search_comes_as_close_as_it_is_asked_to(
            capacity in 10.0..1e5f64, within in 0.005..0.5f64
        ) {
            let (best, tried) = search(10.0, 1e6, within, capacity);
            let best = best.unwrap();
            prop_assert!(best <= capacity && best * (1.0 + within) >= capacity * 0.999_999);
            prop_assert!(tried < 40, "{tried}");
        }
    }

    #[test]
    fn a_ramp_ends_a_given_time_after_its_objective_broke_and_steps_go_on() {
        let levels = |profile: &Profile, broke: Option<Duration>| {
            let mut course = Course::from_profile(profile);
            std::iter::from_fn(|| course.next(broke)).count()
        };
        let every = Duration::from_secs(1);
        let ramp = Profile::Ramp {
            from: 1.0,
            to: 5.0,
            step: Step::Plus(1.0),
            every,
            beyond: every * 2,
        };
        assert_eq!(levels(&ramp, None), 5);
        assert_eq!(levels(&ramp, Some(every)), 5);
        assert_eq!(levels(&ramp, Some(every * 2)), 0);
        let steps = Profile::Steps {
            levels: vec![1.0, 2.0],
            every,
        };
        assert_eq!(levels(&steps, Some(every * 9)), 2);
    }
}
