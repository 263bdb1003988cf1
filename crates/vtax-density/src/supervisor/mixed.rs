//! A population of which some work while the others sleep and are asked.

use super::{Guard, Population, Tally};
use std::collections::BTreeMap;
use std::time::Duration;

/// Two populations that count as one.
pub(super) struct Mixed {
    pub(super) sleepers: Box<dyn Population>,
    pub(super) workers: Box<dyn Population>,
    /// Of all guests.
    pub(super) working_percent: u32,
}

/// How many of so many guests work: at least one is left to be asked.
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

    fn grow(&mut self, to: u32, guard: &mut Guard, tally: &mut Tally) -> Result<(), String> {
        let working = working(to, self.working_percent);
        self.sleepers.grow(to - working, guard, tally)?;
        // When a worker has booted cannot be told by an answer: their times are not the sleepers'.
        self.workers.grow(working, guard, &mut Tally::default())
    }

    fn shrink(&mut self, to: u32) -> Result<(), String> {
        let working = working(to, self.working_percent);
        self.workers.shrink(working)?;
        self.sleepers.shrink(to - working)
    }

    fn ask(&mut self) -> Result<Duration, String> {
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
