// SPDX-License-Identifier: Apache-2.0
//! The result of one pass of the ledger, with the guests' names: the one input of every command here. A snapshot never
//! changes, so that a table or a scrape is of one interval.

use crate::pace::Pace;
use crate::{Charger, EnergyUse, GuestTotals, IrqAccounting, Ledger, Pass, Runner, Stage, Totals};
use jiff::Timestamp;
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use vtax_core::{Nanoseconds, Source};
use vtax_inventory::{Guest, Platform, pod_of};
use vtax_meter::PowerModel;
use vtax_observe::ObserveError;
use vtax_observe::clock::{SystemClock, thread_cpu};

/// A guest with its use in the interval and its use since charging began.
#[derive(Debug, Clone, PartialEq)]
pub struct ChargedGuest {
    /// The guest's number, which is never reused.
    pub number: u32,
    /// The platform that runs it.
    pub platform: Platform,
    /// The program that manages it, where it is known.
    pub manager: Option<&'static str>,
    /// A unique name among the present guests of its platform, on one line and without control characters.
    pub name: String,
    /// The given name, which other guests may have too.
    pub called: String,
    /// The UUID, where the guest has one.
    pub uuid: Option<String>,
    /// The UID of the Kubernetes pod that it is in or runs.
    pub pod: Option<String>,
    /// Its monitor's process, or one of the container's.
    pub process: Option<u32>,
    /// The control group that it is in (VMs) or that it is (containers), relative to the hierarchy.
    pub group: Option<PathBuf>,
    /// Its number as a Xen domain.
    pub domain: Option<u32>,
    /// Use in the interval.
    pub used: GuestTotals,
    /// Use since charging began.
    pub total: GuestTotals,
}

impl ChargedGuest {
    /// Returns the share of its processor time that neither it nor its owner sees, 0 to 1. `None` if it used none, or
    /// if it is a VM whose monitor does not name its threads: then its own code cannot be distinguished. `None` for a
    /// service, whose soft interrupts are not known.
    pub fn hidden(&self) -> Option<f64> {
        let stages = &self.used.stages;
        let is_known = match self.platform {
            Platform::Native => false,
            platform => stages.get(Stage::Vcpu).0 > 0 || !platform.is_vm(),
        };
        let total = stages.total().as_secs_f64();
        (total > 0.0 && is_known).then(|| stages.hidden().as_secs_f64() / total)
    }
}

/// One interval of the ledger.
#[derive(Debug, Clone)]
pub struct LedgerSnapshot {
    /// Start of the interval, by the wall clock.
    pub began: Timestamp,
    /// End of the interval, by the wall clock.
    pub ended: Timestamp,
    /// The guests at the end of the interval, by number.
    pub guests: Vec<ChargedGuest>,
    /// The ledger of the interval; all zero in the first snapshot, which only starts an interval.
    pub ledger: Ledger,
    /// The ledgers by other methods, to compare; empty unless both methods were asked for.
    pub compared: Vec<(&'static str, Ledger)>,
    /// The interval's energy, where a meter reports it.
    pub energy: Option<EnergyUse>,
    /// The coverage and the source of the energy.
    pub energy_source: Option<(String, Source)>,
    /// The model that computes the energy, where it is modelled.
    pub power_model: Option<PowerModel>,
    /// The domains of the meters that the energy is the sum of, and what they cover.
    pub energy_meters: Option<String>,
    /// Totals since charging began.
    pub totals: Totals,
    /// The method that charges soft interrupts.
    pub method: &'static str,
    /// How the kernel accounts interrupts.
    pub irq_accounting: IrqAccounting,
    /// Failures of this pass and limitations of this host, each in one sentence.
    pub problems: Vec<String>,
    /// This process's CPU time since charging began.
    pub own_cpu: Nanoseconds,
    /// The part of it that the pass's thread used.
    pub sampling_cpu: Nanoseconds,
}

impl LedgerSnapshot {
    /// The numbers of the guests.
    pub fn numbers(&self) -> HashSet<u32> {
        self.guests.iter().map(|guest| guest.number).collect()
    }

    /// The name and the platform of what ran while a guest waited; the platform is empty where it was no guest.
    pub fn runner(&self, runner: Runner) -> (&str, &'static str) {
        let Runner::Guest(number) = runner else {
            return (runner.name(), "");
        };
        let at = self
            .guests
            .binary_search_by_key(&number, |guest| guest.number);
        let guest = at.ok().and_then(|at| self.guests.get(at));
        guest.map_or((Runner::Departed.name(), ""), |guest| {
            (&guest.name, guest.platform.name())
        })
    }

    /// Returns the ledger of every method, the charging method first.
    pub fn ledgers(&self) -> impl Iterator<Item = (&'static str, &Ledger)> {
        let compared = self
            .compared
            .iter()
            .map(|(method, ledger)| (*method, ledger));
        std::iter::once((self.method, &self.ledger)).chain(compared)
    }
}

/// Returns the source of soft interrupt times: counted times come from a model with weights.
pub fn softirq_source(method: &str) -> Source {
    if method == "traced" {
        Source::Measured
    } else {
        Source::Modelled
    }
}

/// Takes snapshots.
pub struct Watch {
    charger: Charger,
    clock: SystemClock,
    last: Timestamp,
    /// This thread's CPU time before the first pass.
    cpu_before: Nanoseconds,
}

impl Watch {
    /// Reads nothing before the first [`Watch::pass`]. All passes belong on the calling thread, whose time is the
    /// cost of sampling.
    pub fn new(charger: Charger) -> Self {
        Self {
            charger,
            clock: SystemClock,
            last: Timestamp::now(),
            cpu_before: thread_cpu(),
        }
    }

    /// Limitations of this host with their reasons, each in one sentence.
    pub fn notes(&self) -> &[String] {
        self.charger.notes()
    }

    /// Returns the method that charges soft interrupts, and how the kernel accounts interrupts.
    pub fn method(&self) -> (&'static str, IrqAccounting) {
        (self.charger.method(), self.charger.irq_accounting())
    }

    /// Takes a snapshot at once and then every `interval`, until `stop` is set. `take` gets each snapshot, or the
    /// reason that there is none, and the duration of its pass.
    ///
    /// # Errors
    /// When the first pass fails: the host cannot be read at all.
    pub fn run(
        &mut self,
        interval: Duration,
        stop: &AtomicBool,
        mut take: impl FnMut(Result<LedgerSnapshot, ObserveError>, Duration),
    ) -> Result<(), ObserveError> {
        let mut pace = Pace::new(interval);
        let mut began = Instant::now();
        let first = self.pass()?;
        take(Ok(first), began.elapsed());
        while pace.wait(stop) {
            began = Instant::now();
            let snapshot = self.pass();
            take(snapshot, began.elapsed());
        }
        Ok(())
    }

    /// Ends an interval and begins the next.
    ///
    /// # Errors
    /// When the host's processor time cannot be read.
    pub fn pass(&mut self) -> Result<LedgerSnapshot, ObserveError> {
        let pass = self.charger.pass(&self.clock)?;
        let ended = Timestamp::now();
        let began = std::mem::replace(&mut self.last, ended);
        let ledger = pass.ledger().cloned().unwrap_or_default();
        let totals = self.charger.totals();
        let mut guests: Vec<ChargedGuest> = self
            .charger
            .guests()
            .map(|guest| guest_use(guest, &ledger, &pass, totals))
            .collect();
        guests.sort_unstable_by_key(|guest| guest.number);
        let energy_source = self.charger.energy_source();
        Ok(LedgerSnapshot {
            began,
            ended,
            guests,
            ledger,
            compared: pass.ledgers.into_iter().skip(1).collect(),
            energy: pass.energy,
            energy_source: energy_source.map(|(covers, source)| (covers.to_owned(), source)),
            power_model: self.charger.power_model().cloned(),
            energy_meters: self.charger.energy_meters(),
            totals: totals.clone(),
            method: self.charger.method(),
            irq_accounting: self.charger.irq_accounting(),
            problems: pass.problems,
            own_cpu: self.charger.cost(),
            sampling_cpu: thread_cpu().saturating_since(self.cpu_before),
        })
    }
}

fn guest_use(guest: &Guest, ledger: &Ledger, pass: &Pass, totals: &Totals) -> ChargedGuest {
    let row = ledger.row(guest.number);
    ChargedGuest {
        number: guest.number,
        platform: guest.platform,
        manager: guest.manager,
        name: guest.name.clone(),
        called: guest.called.clone(),
        uuid: guest.uuid.clone(),
        pod: guest.group.as_deref().and_then(pod_of),
        process: guest.process,
        group: guest.group.clone(),
        domain: guest.domain.map(|(id, _)| id),
        used: GuestTotals {
            stages: row.map(|row| row.stages).unwrap_or_default(),
            energy: row.map(|row| row.energy).unwrap_or_default(),
            exchanges: (pass.exchanges.guests.get(&guest.number))
                .copied()
                .unwrap_or_default(),
            error: row
                .and_then(|row| row.modelled)
                .map(|modelled| modelled.total())
                .unwrap_or_default(),
            waits: pass.waits.get(&guest.number).cloned(),
        },
        total: totals
            .guests
            .get(&guest.number)
            .cloned()
            .unwrap_or_default(),
    }
}
