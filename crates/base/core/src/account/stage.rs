// SPDX-License-Identifier: Apache-2.0
//! The stages into which the host's CPU time is split, in metrics, tables and figures.

use crate::{Nanoseconds, metric};

/// One share of the CPU time of a window. The shares of a window sum to the host's busy time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// The service's own processes, where the target of a trial is not a VM.
    Service,
    /// Guest code: vCPU threads, or a Xen domain's virtual processors. In a ledger of guests also the
    /// processes of a container.
    Vcpu,
    /// The virtual machine monitor's other threads.
    Emulator,
    /// Dedicated I/O threads of the virtual machine monitor.
    Iothread,
    /// The kernel's vhost workers.
    Vhost,
    /// A Xen domain's backends in Dom0.
    Backend,
    /// Soft interrupts that worked for the target, where they are traced.
    Softirq,
    /// Processes of the switch itself, where the target is the only guest.
    Switch,
    /// The load generator of the target.
    Client,
    /// All guests beside the target, with their load generators.
    Neighbours,
    /// vtax's own sampling.
    Observer,
    /// Time without an owner. Where soft interrupts are not traced, it includes those of the target.
    Rest,
}

impl Stage {
    /// Every stage, the target's first, in the order in which figures stack them.
    pub const ALL: [Self; 12] = [
        Self::Service,
        Self::Vcpu,
        Self::Emulator,
        Self::Iothread,
        Self::Vhost,
        Self::Backend,
        Self::Softirq,
        Self::Switch,
        Self::Client,
        Self::Neighbours,
        Self::Observer,
        Self::Rest,
    ];

    /// The stages that a ledger charges to guests, in the order of its tables.
    pub const CHARGED: [Self; 6] = [
        Self::Vcpu,
        Self::Emulator,
        Self::Iothread,
        Self::Vhost,
        Self::Softirq,
        Self::Backend,
    ];

    /// Its name in metrics, a phrase for its owner that follows "by", and its colour in every figure.
    const fn looks(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Service => ("service", "the service's processes", "#0072B2"),
            Self::Vcpu => ("vcpu", "guest code (vCPU threads)", "#D55E00"),
            Self::Emulator => ("emulator", "the VMM's own threads", "#E69F00"),
            Self::Iothread => ("iothread", "I/O threads", "#F0E442"),
            Self::Vhost => ("vhost", "vhost workers", "#CC79A7"),
            Self::Backend => ("backend", "the domain's backends in Dom0", "#8C6BB1"),
            Self::Softirq => ("softirq", "soft interrupts for the target", "#56B4E9"),
            Self::Switch => ("switch", "the switch's own processes", "#332288"),
            Self::Client => ("client", "the client emulator", "#009E73"),
            Self::Neighbours => ("neighbours", "the neighbours", "#8C564B"),
            Self::Observer => ("observer", "vtax's sampling", "#BDBDBD"),
            Self::Rest => {
                let words = "the rest of the host (soft interrupts, kernel threads)";
                ("rest", words, "#7F7F7F")
            }
        }
    }

    /// Its name in metrics: `cpu.stage.NAME`.
    pub const fn name(self) -> &'static str {
        self.looks().0
    }

    /// Its metric, in cores.
    pub fn metric(self) -> String {
        metric::CPU_STAGE.name_of(self.name())
    }

    /// A phrase for its owner that follows "by".
    pub const fn words(self) -> &'static str {
        self.looks().1
    }

    /// Its colour in every figure.
    pub const fn color(self) -> &'static str {
        self.looks().2
    }

    /// Whether its time is always spent for the target. Where soft interrupts are not traced, some of [`Stage::Rest`]
    /// is as well.
    pub fn is_targets(self) -> bool {
        !matches!(
            self,
            Self::Client | Self::Neighbours | Self::Observer | Self::Rest
        )
    }
}

/// Time by stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stages([u64; Stage::ALL.len()]);

impl Stages {
    /// The time of one stage.
    pub fn get(&self, stage: Stage) -> Nanoseconds {
        Nanoseconds(self.0.get(stage as usize).copied().unwrap_or(0))
    }

    /// Adds to one stage.
    pub fn add(&mut self, stage: Stage, time: Nanoseconds) {
        if let Some(sum) = self.0.get_mut(stage as usize) {
            *sum = sum.saturating_add(time.0);
        }
    }

    /// Adds the stages of `other`.
    pub fn merge(&mut self, other: &Self) {
        for stage in Stage::ALL {
            self.add(stage, other.get(stage));
        }
    }

    /// The time of all stages.
    pub fn total(&self) -> Nanoseconds {
        Nanoseconds(self.0.iter().fold(0, |sum, time| sum.saturating_add(*time)))
    }

    /// The time that the guest cannot see: all stages except its own code.
    pub fn hidden(&self) -> Nanoseconds {
        self.total().saturating_since(self.get(Stage::Vcpu))
    }

    /// The stages that have any time, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (Stage, Nanoseconds)> {
        let times = Stage::ALL.into_iter().zip(self.0.map(Nanoseconds));
        times.filter(|(_, time)| time.0 > 0)
    }

    /// Subtracts `time` from the stages in proportion to each, limited to their total. Returns the time subtracted.
    pub fn take(&mut self, time: Nanoseconds) -> Nanoseconds {
        let (time, whole) = (time.0, self.total().0);
        if time >= whole {
            *self = Self::default();
            return Nanoseconds(whole);
        }
        let mut taken = 0;
        for stage in &mut self.0 {
            // At most `stage`, since time < whole.
            let share = super::proportion(*stage, time, whole).min(*stage);
            *stage -= share;
            taken += share;
        }
        // Rounding left a few nanoseconds to subtract.
        for stage in &mut self.0 {
            let rest = (time - taken).min(*stage);
            *stage -= rest;
            taken += rest;
        }
        Nanoseconds(taken)
    }
}

impl From<[u64; Stage::ALL.len()]> for Stages {
    /// Times in nanoseconds, in the order of [`Stage::ALL`].
    fn from(times: [u64; Stage::ALL.len()]) -> Self {
        Self(times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_stage_looks_like_no_other() {
        let mut looks = BTreeSet::new();
        for stage in Stage::ALL {
            let (name, words, color) = stage.looks();
            assert!(looks.insert(name) && looks.insert(color) && looks.insert(words));
        }
        let targets = Stage::ALL.iter().filter(|stage| stage.is_targets()).count();
        assert_eq!(targets, 8);
    }

    #[test]
    fn a_stage_is_at_its_own_place() {
        for (place, stage) in Stage::ALL.into_iter().enumerate() {
            assert_eq!(stage as usize, place);
        }
        assert!(Stage::CHARGED.into_iter().all(Stage::is_targets));
    }

    proptest! {
        #[test]
        fn taking_from_stages_takes_exactly_what_there_is(
            times in prop::array::uniform12(0u64..1_000_000_000),
            time in 0u64..20_000_000_000,
        ) {
            let stages = Stages::from(times);
            let mut after = stages;
            let taken = after.take(Nanoseconds(time));
            prop_assert_eq!(taken.0, time.min(stages.total().0));
            prop_assert_eq!(after.total().0 + taken.0, stages.total().0);
            prop_assert!(stages.iter().all(|(stage, time)| after.get(stage) <= time));
        }
    }
}
