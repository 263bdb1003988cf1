// SPDX-License-Identifier: Apache-2.0
//! A population of guests with work and of sleeping guests, which answer the probes.

use super::error::Result;
use super::{Answer, Guard, Population};
use std::collections::BTreeMap;
use std::time::Duration;

/// Sleeping guests and guests with work as one population.
pub(super) struct Mixed {
    pub(super) sleepers: Box<dyn Population>,
    pub(super) workers: Box<dyn Population>,
    /// The share of guests with work.
    pub(super) working_percent: u32,
}

/// The number of guests with work; at least one guest is left for probes.
pub(super) fn working(guests: u32, percent: u32) -> u32 {
    let share = u64::from(guests) * u64::from(percent) / 100;
    u32::try_from(share)
        .unwrap_or(u32::MAX)
        .min(guests.saturating_sub(1))
}

impl Population for Mixed {
    fn count(&self) -> u32 {
        self.sleepers.count() + self.workers.count()
    }

    fn grow(&mut self, to: u32, guard: &mut Guard, answer: &mut Answer) -> Result<()> {
        let working = working(to, self.working_percent);
        self.sleepers.grow(to - working, guard, answer)?;
        // A guest with work answers no probe, so its boot time is measured differently and not reported.
        self.workers.grow(working, guard, &mut Answer::default())
    }

    fn shrink(&mut self, to: u32) -> Result<()> {
        let working = working(to, self.working_percent);
        self.workers.shrink(working)?;
        self.sleepers.shrink(to - working)
    }

    fn ask(&mut self) -> Result<Duration> {
        self.sleepers.ask()
    }

    fn facts(&self) -> BTreeMap<String, String> {
        let mut facts = self.sleepers.facts();
        facts.insert(
            "density.working_percent".to_owned(),
            self.working_percent.to_string(),
        );
        facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_works_and_one_is_left_to_ask() {
        assert_eq!(working(200, 10), 20);
        assert_eq!(working(9, 10), 0);
        assert_eq!(working(4, 99), 3);
        assert_eq!((working(1, 50), working(0, 50)), (0, 0));
    }
}
