// SPDX-License-Identifier: Apache-2.0
//! The observation of one guest between two marks, with the CPU time by actor and stage.
//!
//! The window's CPU time is split by [`vtax_core::account`], so that the parts sum to the host's busy time:
//! busy = target (by stage) + client + vtax's own sampling + rest. With traced soft interrupts, the rest is shown
//! and charged to no actor, because it is mostly the rounding of idle time to ticks. Without tracing, the rest
//! contains the soft interrupts, and counts as a cost of a target without neighbours.

use super::instruments::nanoseconds;
use std::collections::BTreeMap;
use vtax_core::account::{Window, beside_target};
use vtax_core::owner::Owner;
use vtax_core::{Nanoseconds, Source, counter};
use vtax_observe::Snapshot;
use vtax_results::Stage;

/// A guest of a trial and its client, as their series name them.
#[derive(Debug, Clone)]
pub(super) struct ObservedGuest {
    /// The owner of the guest's series.
    pub owner: Owner,
    /// The owner of its client's series.
    pub client: Owner,
    /// Whether it is a VM, which has several stages; other guests have one.
    pub is_vm: bool,
    /// Whether it is on this host. The costs of a guest on another host are unknown.
    pub is_here: bool,
    /// `Emulated` when the processor does not run guest code itself.
    pub source: Source,
    /// Whether its load offers work at a fixed rate.
    pub is_paced: bool,
    /// Whether its costs are those of its own processes alone: without root the rest may be other programs'.
    pub is_own: bool,
}

/// The readings of one guest between two marks.
pub(super) struct Observation<'a> {
    /// The mark that opens the window.
    pub begin: &'a Snapshot,
    /// The mark that closes the window.
    pub end: &'a Snapshot,
    /// The number of the host's online processors.
    pub processors: usize,
    /// All guests of the trial, the target first.
    pub guests: &'a [ObservedGuest],
    /// The index of the observed guest.
    pub guest: usize,
    /// Series whose sum is the host's energy, with the flag of the meter.
    pub energy: &'a [(String, Source)],
    /// The power of the idle host, in watts, by the idle phases of the run.
    pub idle: Option<f64>,
    /// The guest's own counters around the window, if it has its own kernel.
    pub inner: Option<Inner<'a>>,
    /// `Simulated` when the host is an emulated one.
    pub host: Source,
}

/// Two readings of a guest's own counters.
#[derive(Clone, Copy)]
pub(super) struct Inner<'a> {
    pub before: &'a BTreeMap<String, f64>,
    pub after: &'a BTreeMap<String, f64>,
    /// Seconds between the two readings.
    pub between: f64,
}

/// The CPU seconds of a window, by stage.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CpuShares {
    /// The host's CPU time, in seconds.
    pub busy: f64,
    /// The CPU time by stage, in seconds; sums to `busy` up to clock granularity.
    pub stages: BTreeMap<Stage, f64>,
    /// Whether the rest is a cost of this guest: soft interrupts are not traced, so that the rest contains them, and
    /// the guest is alone.
    pub owns_rest: bool,
}

impl CpuShares {
    /// Returns the guest's share in seconds: its stages, and the rest when it is a cost of the guest.
    pub(super) fn for_target(&self) -> f64 {
        self.stages
            .iter()
            .filter(|(stage, _)| stage.is_targets() || **stage == Stage::Rest && self.owns_rest)
            .map(|(_, seconds)| seconds)
            .sum()
    }
}

impl Observation<'_> {
    /// Returns the length of the window in seconds.
    pub(super) fn seconds(&self) -> f64 {
        self.end.at.saturating_since(self.begin.at).as_secs_f64()
    }

    /// Returns the source flag of the guest's numbers.
    pub(super) fn source(&self) -> Source {
        self.guests
            .get(self.guest)
            .map_or(self.host, |guest| guest.source.combine(self.host))
    }

    /// Returns the increase of a counter in the window.
    pub(super) fn delta(&self, owner: &Owner, name: &str) -> Option<f64> {
        self.end
            .since(self.begin, owner, name)
            .map(|quantity| quantity.value)
    }

    /// Returns the CPU time of the window.
    pub(super) fn cpu(&self) -> Option<CpuShares> {
        let guest = self.guests.get(self.guest).filter(|guest| guest.is_here)?;
        let owner = &guest.owner;
        let neighbours = self.guests.iter().enumerate();
        let neighbours = neighbours.filter(|(index, _)| *index != self.guest);
        let neighbours = neighbours.flat_map(|(_, other)| [&other.owner, &other.client]);
        let has_switch = self.delta(&Owner::Switch, counter::CPU_TOTAL).is_some();
        let others = beside_target([&guest.client], neighbours, has_switch);
        let advance = |owner: &Owner, name: &str| self.delta(owner, name).map(nanoseconds);
        let window = Window {
            span: self.end.at.saturating_since(self.begin.at),
            processors: self.processors,
            target: owner,
            is_vm: guest.is_vm,
            others: &others,
            advance: &advance,
        };
        let parts = window.parts()?;

        let of_target = match (self.delta(owner, counter::CPU_DOMAIN), guest.is_vm) {
            (Some(domain), _) if domain > 0.0 => Stage::Backend,
            (_, true) => Stage::Emulator,
            (_, false) => Stage::Service,
        };
        let mut stages = BTreeMap::from([(of_target, 0.0)]);
        for part in &parts {
            *stages.entry(part.stage).or_insert(0.0) += part.time.as_secs_f64();
        }
        let busy = parts.iter().map(|part| part.time.0);
        let busy = Nanoseconds(busy.fold(0, u64::saturating_add));
        let is_traced = self.delta(owner, counter::CPU_SOFTIRQ).is_some();
        let is_charged = self.end.source(owner, counter::CPU_BACKEND).is_some();
        Some(CpuShares {
            // Control groups count nanoseconds, but idle time is rounded to ticks. In a short or nearly
            // idle window the parts may exceed the whole, and the parts are the better reading.
            busy: busy.as_secs_f64(),
            stages,
            owns_rest: !is_traced && !is_charged && !guest.is_own && self.guests.len() == 1,
        })
    }

    /// Returns the number of busy processors, by actor and stage. Their sum is the host's. Actors on other
    /// hosts are excluded.
    pub(super) fn actors(&self) -> BTreeMap<String, BTreeMap<String, f64>> {
        let mut actors: BTreeMap<String, BTreeMap<String, f64>> = BTreeMap::new();
        let seconds = self.seconds();
        if seconds <= 0.0 {
            return actors;
        }
        for (index, guest) in self.guests.iter().enumerate() {
            let one = Self {
                guest: index,
                ..*self
            };
            let Some(cpu) = one.cpu() else { continue };
            for (stage, spent) in cpu.stages {
                let actor = match stage {
                    Stage::Client => &guest.client,
                    Stage::Observer if index == 0 => &Owner::Observer,
                    Stage::Rest if index == 0 => &Owner::Host,
                    Stage::Observer | Stage::Rest | Stage::Neighbours => continue,
                    _ => &guest.owner,
                };
                if stage == Stage::Client && self.end.get(actor, counter::CPU_TOTAL).is_none() {
                    continue;
                }
                let stages = actors.entry(actor.to_string()).or_default();
                stages.insert(stage.name().to_owned(), spent / seconds);
            }
        }
        actors
    }
}

#[cfg(test)]
mod agreement_tests;
#[cfg(test)]
pub(super) mod tests;
