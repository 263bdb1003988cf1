// SPDX-License-Identifier: Apache-2.0
//! The run-queue wait of a guest: the time in which its tasks could run and waited for a processor, by what ran on that
//! processor meanwhile.

use std::collections::{BTreeMap, HashSet};
use vtax_core::Nanoseconds;

/// What ran while a task waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Runner {
    /// A guest, by number: the one that waited, too.
    Guest(u32),
    /// A task of no guest.
    Host,
    /// Nothing: the processor was waking up, or the kernel did not let the task run, by a quota of its control group.
    Idle,
    /// Interrupts, where the kernel accounts them separately from tasks.
    Interrupts,
    /// Something else of a hypervisor below.
    Stolen,
    /// Guests that have ended.
    Departed,
    /// What found no room of its own: see [`MOST_NAMED`].
    Others,
}

impl Runner {
    /// The name of a runner that is no guest.
    pub fn name(self) -> &'static str {
        match self {
            Self::Guest(_) => "guest",
            Self::Host => "host",
            Self::Idle => "idle",
            Self::Interrupts => "interrupts",
            Self::Stolen => "stolen",
            Self::Departed => "departed",
            Self::Others => "others",
        }
    }
}

/// The most guests for which one guest's waits are kept apart. Waits for further ones are waits for [`Runner::Others`].
pub const MOST_NAMED: usize = 16;

/// The waits of one guest, of all its tasks together: two tasks that wait for a second wait two seconds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Waits(BTreeMap<Runner, Nanoseconds>);

impl Waits {
    /// Adds a wait.
    pub fn add(&mut self, runner: Runner, time: Nanoseconds) {
        let is_new = matches!(runner, Runner::Guest(_)) && !self.0.contains_key(&runner);
        let runner = if is_new && self.named() >= MOST_NAMED {
            Runner::Others
        } else {
            runner
        };
        let sum = self.0.entry(runner).or_default();
        *sum = Nanoseconds(sum.0.saturating_add(time.0));
    }

    /// Adds other waits, the longest first, so that these keep their names.
    pub fn merge(&mut self, other: &Self) {
        for (runner, time) in other.longest() {
            self.add(runner, time);
        }
    }

    /// Moves what was waited for guests that are not among `present` to [`Runner::Departed`].
    pub fn depart(&mut self, present: &HashSet<u32>) {
        let is_gone =
            |runner: &Runner| matches!(runner, Runner::Guest(number) if !present.contains(number));
        let gone: Vec<Runner> = self.0.keys().copied().filter(is_gone).collect();
        for runner in gone {
            let time = self.0.remove(&runner).unwrap_or_default();
            self.add(Runner::Departed, time);
        }
    }

    /// The whole wait.
    pub fn total(&self) -> Nanoseconds {
        let times = self.0.values();
        Nanoseconds(times.fold(0, |sum, time| sum.saturating_add(time.0)))
    }

    /// The wait for one runner.
    pub fn get(&self, runner: Runner) -> Nanoseconds {
        self.0.get(&runner).copied().unwrap_or_default()
    }

    /// Every runner with the wait for it, in a fixed order.
    pub fn iter(&self) -> impl Iterator<Item = (Runner, Nanoseconds)> {
        self.0.iter().map(|(runner, time)| (*runner, *time))
    }

    /// Every runner with the wait for it, the longest first.
    pub fn longest(&self) -> Vec<(Runner, Nanoseconds)> {
        let mut all: Vec<_> = self.iter().collect();
        all.sort_by_key(|(runner, time)| (std::cmp::Reverse(*time), *runner));
        all
    }

    fn named(&self) -> usize {
        let guests = self.0.keys();
        guests
            .filter(|runner| matches!(runner, Runner::Guest(_)))
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn waits(of: &[(Runner, u64)]) -> Waits {
        let mut waits = Waits::default();
        for (runner, time) in of {
            waits.add(*runner, Nanoseconds(*time));
        }
        waits
    }

    #[test]
    fn a_wait_for_a_guest_that_ended_stays_in_the_sum() {
        let mut all = waits(&[
            (Runner::Guest(1), 5),
            (Runner::Guest(2), 7),
            (Runner::Idle, 1),
        ]);
        all.depart(&HashSet::from([2]));
        assert_eq!(
            all,
            waits(&[
                (Runner::Guest(2), 7),
                (Runner::Idle, 1),
                (Runner::Departed, 5)
            ])
        );
    }

    proptest! {
        /// However many guests there are, the names are bounded and no wait is lost.
        #[test]
        fn no_wait_is_lost_and_the_number_of_names_is_bounded(
            of in prop::collection::vec((0u32..60, 0u64..1_000_000), 0..200), ended in 0u32..60,
        ) {
            let mut all = Waits::default();
            let mut sum = 0;
            for (number, time) in of {
                let mut interval = Waits::default();
                interval.add(Runner::Guest(number), Nanoseconds(time));
                interval.add(Runner::Host, Nanoseconds(1));
                all.merge(&interval);
                sum += time + 1;
            }
            all.depart(&(0..ended).collect());
            prop_assert_eq!(all.total().0, sum);
            prop_assert!(all.named() <= MOST_NAMED);
        }
    }
}
