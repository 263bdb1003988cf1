// SPDX-License-Identifier: Apache-2.0
//! A host in memory, for tests and benchmarks of the commands that read a ledger.

use crate::snapshot::{ChargedGuest, LedgerSnapshot};
use crate::{EnergyUse, GuestTotals, IrqAccounting, Ledger, Modelled, Row, Stage, Stages, Totals};
use crate::{Runner, Waits};
use jiff::Timestamp;
use std::collections::HashMap;
use vtax_core::{Joules, Nanoseconds, Source};
use vtax_inventory::Platform;
use vtax_meter::PowerModel;

/// The host. Every guest uses the same processor time in a pass, a tenth of it hidden, and a microjoule for each
/// nanosecond. The host itself uses as much as one guest, and half of that is unattributed.
#[derive(Debug, Default)]
pub struct Host {
    guests: Vec<(u32, String, Platform)>,
    totals: Totals,
    passes: i64,
    began: Option<Timestamp>,
    /// The time of guests that end within the next pass.
    departs: u64,
    /// The waits of guests, by number.
    waits: HashMap<u32, Waits>,
}

impl Host {
    /// Creates a host whose first pass begins at `began`.
    pub fn since(began: Timestamp) -> Self {
        Self {
            began: Some(began),
            ..Self::default()
        }
    }

    /// Starts a guest with a name made of its number.
    pub fn start(&mut self, number: u32) {
        self.start_named(number, &format!("guest-{number}"), Platform::Docker);
    }

    /// Starts a guest.
    pub fn start_named(&mut self, number: u32, name: &str, platform: Platform) {
        self.guests.push((number, name.to_owned(), platform));
    }

    /// Ends a guest, if it is present.
    pub fn end(&mut self, number: u32) {
        self.guests.retain(|(other, ..)| *other != number);
        if let Some(gone) = self.totals.guests.remove(&number) {
            self.totals.gone.merge(&gone);
        }
    }

    /// Lets guests that no pass sees use `time` nanoseconds within the next pass.
    pub fn depart(&mut self, time: u64) {
        self.departs = time;
    }

    /// Lets a guest wait in every pass from now on.
    pub fn wait(&mut self, number: u32, runner: Runner, time: u64) {
        let waits = self.waits.entry(number).or_default();
        waits.add(runner, Nanoseconds(time));
    }

    /// Takes a snapshot of one second in which every guest uses `time` nanoseconds. Times are modelled as by the
    /// counted method: the error is up to a hundredth of `time` in the guest's own, and a fiftieth in soft interrupts.
    pub fn pass(&mut self, time: u64) -> LedgerSnapshot {
        let energy = |time: u64| Joules(time as f64 * 1e-6);
        let mut stages = Stages::default();
        stages.add(Stage::Vcpu, Nanoseconds(time - time / 10));
        stages.add(Stage::Softirq, Nanoseconds(time / 10));
        let mut used = GuestTotals {
            stages,
            energy: energy(time),
            ..GuestTotals::default()
        };
        let modelled = Some(Modelled {
            own: Some(Nanoseconds(time / 100)),
            softirq: Nanoseconds(time / 50),
        });
        used.error = modelled
            .map(|modelled| modelled.total())
            .unwrap_or_default();
        used.exchanges.received = time;
        used.exchanges.sent = time * 2;
        let departs = std::mem::take(&mut self.departs);
        let mut departed = Row {
            energy: energy(departs),
            ..Row::default()
        };
        departed.stages.add(Stage::Vcpu, Nanoseconds(departs));
        let ledger = Ledger {
            departed,
            span: Nanoseconds(1_000_000_000),
            total: Nanoseconds(time * (self.guests.len() as u64 + 1) + time / 2 + departs),
            rows: self
                .guests
                .iter()
                .map(|(number, ..)| Row {
                    number: *number,
                    stages,
                    energy: used.energy,
                    modelled,
                    ..Row::default()
                })
                .collect(),
            host: Nanoseconds(time),
            host_energy: energy(time),
            unattributed: Nanoseconds(time / 2),
            unattributed_energy: energy(time / 2),
            modelled,
            unattributed_error: Some(Nanoseconds(time / 50)),
            ..Ledger::default()
        };
        let totals = &mut self.totals;
        totals.gone.stages.merge(&ledger.departed.stages);
        totals.gone.energy += ledger.departed.energy;
        totals.host += ledger.host;
        totals.host_energy += ledger.host_energy;
        totals.unattributed += ledger.unattributed;
        totals.unattributed_energy += ledger.unattributed_energy;
        totals.total += ledger.total;
        let mut guests = Vec::new();
        for (number, name, platform) in &self.guests {
            used.waits = self.waits.get(number).cloned();
            let total = totals.guests.entry(*number).or_default();
            total.merge(&used);
            guests.push(ChargedGuest {
                number: *number,
                platform: *platform,
                manager: None,
                name: name.clone(),
                called: name.clone(),
                uuid: None,
                pod: None,
                process: None,
                group: None,
                domain: None,
                used: used.clone(),
                total: total.clone(),
            });
        }
        self.passes += 1;
        let began = self.began.map_or(1_700_000_000, Timestamp::as_second);
        let at = |second: i64| Timestamp::from_second(began + second).unwrap_or_default();
        LedgerSnapshot {
            began: at(self.passes - 1),
            ended: at(self.passes),
            guests,
            energy: Some(EnergyUse {
                total: ledger.energy(),
                idle: Joules(0.0),
                source: Source::Modelled,
            }),
            energy_source: Some(("the whole machine".to_owned(), Source::Modelled)),
            energy_meters: Some("model host: the whole machine".to_owned()),
            power_model: Some(PowerModel {
                name: "another machine".to_owned(),
                date: Some("2011-04-06".to_owned()),
                file: None,
                fit: None,
            }),
            ledger,
            compared: Vec::new(),
            totals: self.totals.clone(),
            method: "counted",
            irq_accounting: IrqAccounting::Sampled,
            problems: Vec::new(),
            own_cpu: Nanoseconds(0),
            sampling_cpu: Nanoseconds(0),
        }
    }
}
