// SPDX-License-Identifier: Apache-2.0
//! Draws: small random differences between the blocks of a plan with `draws`, which vary the timing where a seed does not.
//!
//! In a deterministic host the numbers of a native target or a container are the same with any seed, since nothing in
//! them is random. A draw changes the time at which a trial begins, the rate of the load and the memory of a guest, each
//! by less than a comparison should depend on.

use super::{Catalogue, PlannedTreatment};
use std::time::Duration;
use vtax_core::SplitMix64;
use vtax_host::settings::{Domain, Level, Settings};
use vtax_load::workload::RATES;

/// The longest wait before a guest boots: two and a half of the kernel's ticks of 4 ms.
const MOST_START: Duration = Duration::from_millis(10);
/// The most that a load's rate changes by, in either direction.
const MOST_RATE: f64 = 0.01;
/// The most memory that a guest has beyond the plan's.
const MOST_MEMORY_MIB: usize = 24;
const MEMORY: &str = "vm.memory_mib";

/// The variation between the blocks of a plan in a testbed, where repeated trials give the same numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Variation {
    /// None.
    #[default]
    None,
    /// Each block has a seed.
    Seeds,
    /// Each block has a seed and a draw.
    Draws {
        /// The number of the first block's draw.
        first: u32,
    },
}

impl Variation {
    /// Returns the draw of a block, which counts from 1, of a plan with this seed.
    pub fn draw(self, seed: u64, block: u32) -> Option<Draw> {
        match self {
            Self::None | Self::Seeds => None,
            Self::Draws { first } => Some(Draw::numbered(
                seed,
                first.saturating_add(block.saturating_sub(1)),
            )),
        }
    }
}

/// One draw. Treatments of a block share it, so that their trials are pairs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Draw {
    /// Its number, from 1.
    pub number: u32,
    /// The wait before the guests boot.
    pub start: Duration,
    /// The factor of the load's rate.
    pub rate: f64,
    /// The memory of a guest beyond the plan's.
    pub more_memory_mib: i64,
}

impl Draw {
    /// Returns the draw with this number. The generator is part of the format: a seed gives the same draws in every version.
    pub fn numbered(seed: u64, number: u32) -> Self {
        let mut random = SplitMix64::new(seed);
        let mut random = SplitMix64::new(random.bits() ^ u64::from(number));
        Self {
            number,
            start: MOST_START.mul_f64(random.uniform()),
            rate: 1.0 + MOST_RATE * (2.0 * random.uniform() - 1.0),
            more_memory_mib: i64::try_from(random.below(MOST_MEMORY_MIB + 1)).unwrap_or(0),
        }
    }

    /// Returns the treatment with the draw's rates and memory. A load without a rate, a load whose levels a profile sets,
    /// and a target without memory of its own stay as they are.
    pub fn applied(&self, planned: &PlannedTreatment, catalogue: &Catalogue) -> PlannedTreatment {
        let mut drawn = planned.clone();
        let record = &planned.record;
        let kinds = (record.platform_kind.as_str(), record.workload_kind.as_str());
        self.change(&mut drawn.settings, kinds, catalogue);
        for guest in &mut drawn.neighbours {
            let kinds = (guest.platform_kind.as_str(), guest.workload_kind.as_str());
            self.change(&mut guest.settings, kinds, catalogue);
        }
        drawn
    }

    fn change(
        &self,
        settings: &mut Settings,
        (platform, workload): (&str, &str),
        catalogue: &Catalogue,
    ) {
        if let Some(memory) = catalogue.parameter(platform, workload, MEMORY) {
            let mib = memory.integer(settings) + self.more_memory_mib;
            settings
                .0
                .insert(memory.key.to_owned(), Level::Integer(mib));
        }
        for key in RATES {
            let Some(rate) = catalogue.parameter(platform, workload, key) else {
                continue;
            };
            let drawn = rate.number(settings) * self.rate;
            if drawn <= 0.0 {
                continue;
            }
            let level = match rate.domain {
                Domain::Integer(low, high) => {
                    Level::Integer((drawn.round() as i64).clamp(low, high))
                }
                Domain::Number(low, high) => Level::Number(drawn.clamp(low, high)),
                _ => continue,
            };
            settings.0.insert(key.to_owned(), level);
        }
    }

    /// Returns the facts of the draw, as a trial records them.
    pub fn facts(&self) -> [(String, String); 4] {
        [
            ("draw", self.number.to_string()),
            ("draw.start_us", self.start.as_micros().to_string()),
            ("draw.rate", format!("{:.5}", self.rate)),
            ("draw.more_memory_mib", self.more_memory_mib.to_string()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Plan, treatments};

    const PLAN: &str = "name = \"x\"\nseed = 7\ndraws = 8\n\
        [[platform]]\nkind = \"native\"\n\
        [[platform]]\nkind = \"qemu\"\nvm.memory_mib = 256\n\
        [[platform]]\nkind = \"xen\"\nvm.memory_mib = 256\n\
        [[workload]]\nkind = \"iperf3-send\"\nname = \"paced\"\nrate_mbit = 50\n\
        [[workload]]\nkind = \"iperf3-send\"\nname = \"fast\"\n\
        [[workload]]\nkind = \"sysbench-oltp\"\nname = \"whole\"\nrate = 1000\n";

    fn planned() -> (Plan, Vec<PlannedTreatment>, Catalogue) {
        let catalogue = Catalogue::standard();
        let plan = Plan::read("plan.toml", PLAN, &catalogue).unwrap();
        let all = treatments(&plan, &catalogue);
        (plan, all, catalogue)
    }

    #[test]
    fn one_seed_repeats_its_draws_and_two_draws_differ() {
        let (plan, ..) = planned();
        let drawn = |block| plan.variation.draw(plan.seed, block).unwrap();
        assert_eq!(drawn(1), drawn(1));
        assert_eq!(drawn(2), Draw::numbered(7, 2));
        let all: Vec<Draw> = (1..=plan.repetitions).map(drawn).collect();
        assert_eq!(all.len(), 8);
        for (place, one) in all.iter().enumerate() {
            for other in &all[..place] {
                assert!(one.start != other.start && one.rate != other.rate);
            }
        }
        assert_ne!(Draw::numbered(8, 2).start, Draw::numbered(7, 2).start);
        // The draw of a trial that runs alone is that of its block.
        let alone = Variation::Draws { first: 5 };
        assert_eq!(alone.draw(7, 1), Some(drawn(5)));
        assert_eq!(Variation::Seeds.draw(7, 1), None);
    }

    #[test]
    fn draws_keep_within_their_bounds_for_ever() {
        for number in 0..2000 {
            let draw = Draw::numbered(3, number);
            assert!(draw.start < MOST_START);
            assert!((0.99..=1.01).contains(&draw.rate), "{draw:?}");
            assert!((0..=24).contains(&draw.more_memory_mib));
        }
        assert!((0..100).any(|number| Draw::numbered(3, number).more_memory_mib == 24));
    }

    #[test]
    fn a_draw_changes_the_rate_of_a_paced_load_and_the_memory_of_a_guest() {
        let (plan, all, catalogue) = planned();
        let draw = Draw {
            number: 1,
            start: Duration::ZERO,
            rate: 1.01,
            more_memory_mib: 8,
        };
        assert_eq!(plan.repetitions, 8);
        for one in &all {
            let drawn = draw.applied(one, &catalogue);
            assert_eq!(drawn.record, one.record);
            let settings = &drawn.settings;
            let (rate, whole) = (
                settings.0.get("load.rate_mbit"),
                settings.0.get("load.rate"),
            );
            let label = &one.record.label;
            match one.record.workload.as_str() {
                "paced" => assert_eq!(rate, Some(&Level::Number(50.5)), "{label}"),
                "whole" => assert_eq!(whole, Some(&Level::Integer(1010)), "{label}"),
                _ => assert_eq!(rate, one.settings.0.get("load.rate_mbit"), "{label}"),
            }
            let has_memory = one.record.platform_kind != "native";
            let memory = has_memory.then_some(&Level::Integer(264));
            assert_eq!(settings.0.get(MEMORY), memory, "{label}");
        }
    }

    #[test]
    fn the_record_of_a_trial_has_all_of_its_draw() {
        let facts = Draw::numbered(7, 3).facts();
        assert_eq!(facts[0], ("draw".to_owned(), "3".to_owned()));
        assert_ne!(facts, Draw::numbered(7, 4).facts());
    }
}
