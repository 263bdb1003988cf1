// SPDX-License-Identifier: Apache-2.0
//! One second of a recording as integers, and its conversion from and to a ledger.
//!
//! Times are in units of 100 µs, energies in millijoules and bytes in KiB. The recorder carries the remainder of each
//! value to the next second, so that sums are exact to one unit however long they are.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use vtax_charge::records::active_energy;
use vtax_charge::{ChargedGuest, LedgerSnapshot};
use vtax_charge::{EnergyUse, GuestExchanges, Ledger, Modelled, Row, Stage, Stages};
use vtax_core::{Joules, Nanoseconds, Source};

/// Nanoseconds in a unit of time.
pub(crate) const UNIT: u64 = 100_000;
/// Nanoseconds in the unit of an error.
const ERROR_UNIT: u64 = 1000;
/// Bytes in a unit of bytes.
const KIB: u64 = 1024;
/// Longest text of an identity, in bytes.
const LONGEST_TEXT: usize = 4096;
/// Microjoules in the unit of energy.
const MILLIJOULE: u64 = 1000;
/// The number of values of one guest in a second: times of [`Stage::CHARGED`], idle energy, packets received and sent,
/// bytes, block requests, exits, pages, and the errors of its own time and of its soft interrupts. One more than each
/// number from exits on, and 0 for an unknown one.
pub const OF_GUEST: usize = 15;
/// The number of values of the host in a second: those of [`Remainders::second`], in the order there.
pub const OF_HOST: usize = 15;

/// The identity of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Identity {
    /// Its number in the session, which is never reused.
    #[serde(rename = "n")]
    pub number: u32,
    /// A unique name among the guests of its platform at a time.
    pub name: String,
    /// The given name, which other guests may have too; empty where it is the unique one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    called: String,
    /// The platform.
    pub platform: String,
    /// Whether it is a VM.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub vm: bool,
    /// The program that manages it; empty where it is unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub manager: String,
    /// The UUID; empty where it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uuid: String,
}

impl Identity {
    /// The identity of a guest whose declaration is lost.
    pub fn unknown(number: u32) -> Self {
        Self {
            number,
            name: format!("guest {number} of unknown name"),
            ..Self::default()
        }
    }

    /// The identity of a guest of a snapshot.
    pub fn from_guest(guest: &ChargedGuest) -> Self {
        Self {
            number: guest.number,
            name: guest.name.clone(),
            called: if guest.called == guest.name {
                String::new()
            } else {
                guest.called.clone()
            },
            platform: guest.platform.name().to_owned(),
            vm: guest.platform.is_vm(),
            manager: guest.manager.unwrap_or_default().to_owned(),
            uuid: guest.uuid.clone().unwrap_or_default(),
        }
    }

    /// Whether its texts are as short as those of guests; longer ones would fill a reader's memory.
    pub fn is_short(&self) -> bool {
        let texts = [
            &self.name,
            &self.called,
            &self.platform,
            &self.manager,
            &self.uuid,
        ];
        texts.iter().all(|text| text.len() <= LONGEST_TEXT)
    }

    /// The given name.
    pub fn called(&self) -> &str {
        if self.called.is_empty() {
            &self.name
        } else {
            &self.called
        }
    }
}

/// One second, or one interval of another length.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Second {
    /// Its end by the wall clock, in milliseconds since 1970.
    pub ended: i64,
    /// The host's values.
    pub host: [u64; OF_HOST],
    /// The guests' values, by number, in ascending order.
    pub guests: Vec<(u32, [u64; OF_GUEST])>,
}

/// Remainders of the values that were rounded down.
#[derive(Debug, Default)]
pub struct Remainders {
    guests: HashMap<u32, [u64; OF_GUEST]>,
    host: [u64; OF_HOST],
}

/// Returns the whole units of each value and its remainder, and keeps the new remainders. Each value comes with its unit.
fn whole<const N: usize>(
    values: impl IntoIterator<Item = (u64, u64)>,
    remainders: &mut [u64; N],
) -> [u64; N] {
    let mut whole = [0; N];
    for ((into, rest), (value, unit)) in whole.iter_mut().zip(remainders).zip(values) {
        let sum = value.saturating_add(*rest);
        *rest = sum % unit;
        *into = sum / unit;
    }
    whole
}

/// Microjoules, rounded.
fn microjoules(energy: f64) -> u64 {
    // A float that is out of range saturates.
    (energy.max(0.0) * 1e6).round() as u64
}

/// One more than the time of an error in units, rounded up to three significant bits.
fn error(time: Option<Nanoseconds>) -> u64 {
    let Some(Nanoseconds(time)) = time else {
        return 0;
    };
    let units = time.div_ceil(ERROR_UNIT);
    let drop = (u64::BITS - units.leading_zeros()).saturating_sub(3);
    (units.div_ceil(1 << drop) << drop).saturating_add(1)
}

fn time_of_error(value: u64) -> Option<Nanoseconds> {
    Some(Nanoseconds(
        value.checked_sub(1)?.saturating_mul(ERROR_UNIT),
    ))
}

fn known(value: Option<u64>) -> u64 {
    value.map_or(0, |value| value.saturating_add(1))
}

impl Remainders {
    /// Converts a snapshot.
    pub fn second(&mut self, snapshot: &LedgerSnapshot, own_cpu: Nanoseconds) -> Second {
        let ledger = &snapshot.ledger;
        let active = active_energy(snapshot.energy, ledger).unwrap_or(0.0);
        let own = ledger.host.0.saturating_add(ledger.host_softirq.0);
        let idle = |energy: Joules, time: u64| microjoules(energy.0 - active * time as f64);
        let energy = snapshot.energy;
        let source = match energy.map(|energy| energy.source) {
            None => 0,
            Some(Source::Measured) => 1,
            Some(_) => 2,
        };
        let modelled = ledger.modelled;
        let values = [
            (ledger.span.0, UNIT),
            (ledger.host.0, UNIT),
            (ledger.host_softirq.0, UNIT),
            (ledger.unattributed.0, UNIT),
            (ledger.excess.0, UNIT),
            (idle(ledger.host_energy, own), MILLIJOULE),
            (
                idle(ledger.unattributed_energy, ledger.unattributed.0),
                MILLIJOULE,
            ),
            (
                energy.map_or(0, |energy| microjoules(energy.total.0)),
                MILLIJOULE,
            ),
            (
                energy.map_or(0, |energy| microjoules(energy.idle.0)),
                MILLIJOULE,
            ),
            (source, 1),
            (error(modelled.and_then(|modelled| modelled.own)), 1),
            (error(modelled.map(|modelled| modelled.softirq)), 1),
            (error(ledger.unattributed_error), 1),
            (own_cpu.0, UNIT),
            // They have no idle energy.
            (ledger.departed.stages.total().0, UNIT),
        ];
        let host = whole(values, &mut self.host);
        let present = snapshot.numbers();
        self.guests.retain(|number, _| present.contains(number));
        let mut guests: Vec<(u32, [u64; OF_GUEST])> = snapshot
            .guests
            .iter()
            .map(|guest| (guest.number, self.guest(guest, ledger, active)))
            .collect();
        guests.sort_unstable_by_key(|(number, _)| *number);
        guests.dedup_by_key(|(number, _)| *number);
        Second {
            ended: snapshot.ended.as_millisecond(),
            host,
            guests,
        }
    }

    fn guest(&mut self, guest: &ChargedGuest, ledger: &Ledger, active: f64) -> [u64; OF_GUEST] {
        let used = &guest.used;
        let rests = self.guests.entry(guest.number).or_default();
        let idle = microjoules(used.energy.0 - active * used.stages.total().0 as f64);
        let exchanges = used.exchanges;
        let modelled = ledger.row(guest.number).and_then(|row| row.modelled);
        let times = Stage::CHARGED.map(|stage| (used.stages.get(stage).0, UNIT));
        let others = [
            (idle, MILLIJOULE),
            (exchanges.received, 1),
            (exchanges.sent, 1),
            (exchanges.bytes, KIB),
            (exchanges.block_requests, 1),
            (known(exchanges.exits), 1),
            (known(exchanges.pages), 1),
            (error(modelled.and_then(|modelled| modelled.own)), 1),
            (error(modelled.map(|modelled| modelled.softirq)), 1),
        ];
        whole(times.into_iter().chain(others), rests)
    }
}

/// The energy of a second as it is recorded, in millijoules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Millijoules {
    /// All of it.
    pub total: u64,
    /// The part that the host would have used while idle.
    pub idle: u64,
    /// The idle energy that the host is charged.
    pub host_idle: u64,
    /// The idle energy of unattributed time.
    pub unattributed_idle: u64,
    /// The idle energy that each row of the ledger is charged, in its order.
    pub guests_idle: Vec<u64>,
}

/// One second as a ledger.
#[derive(Debug, Clone)]
pub struct Account {
    /// The times and energies.
    pub ledger: Ledger,
    /// The energy of the interval.
    pub energy: Option<EnergyUse>,
    /// The same energy in integers.
    pub millijoules: Option<Millijoules>,
    /// The exchanges of each row of the ledger, in its order.
    pub exchanges: Vec<GuestExchanges>,
    /// The recorder's own processor time.
    pub recorder: Nanoseconds,
}

impl Second {
    /// Converts it to a ledger, whose parts sum to its total.
    pub fn account(&self) -> Account {
        let time = |units: u64| Nanoseconds(units.saturating_mul(UNIT));
        let joules = |value: u64| Joules(value as f64 / 1e3);
        let [span, tasks, softirq, unattributed, excess, rest @ ..] = self.host;
        let [
            host_idle,
            unattributed_idle,
            total,
            idle,
            source,
            errors @ ..,
        ] = rest;
        let [own_error, softirq_error, unattributed_error, last @ ..] = errors;
        let [recorder, departed] = last;
        let mut ledger = Ledger {
            span: time(span),
            host: time(tasks),
            host_softirq: time(softirq),
            unattributed: time(unattributed),
            excess: time(excess),
            modelled: modelled(own_error, softirq_error),
            unattributed_error: time_of_error(unattributed_error),
            ..Ledger::default()
        };
        ledger.departed.stages.add(Stage::Vcpu, time(departed));
        let mut exchanges = Vec::with_capacity(self.guests.len());
        let mut idle_energy = Vec::with_capacity(self.guests.len());
        for (number, values) in &self.guests {
            let [_, _, _, _, _, _, idle, received, sent, others @ ..] = *values;
            let [kib, requests, exits, pages, own, softirq] = others;
            let mut stages = Stages::default();
            for (stage, units) in Stage::CHARGED.into_iter().zip(values) {
                stages.add(stage, time(*units));
            }
            ledger.rows.push(Row {
                number: *number,
                stages,
                modelled: modelled(own, softirq),
                ..Row::default()
            });
            idle_energy.push(idle);
            exchanges.push(GuestExchanges {
                received,
                sent,
                bytes: kib.saturating_mul(KIB),
                block_requests: requests,
                exits: exits.checked_sub(1),
                pages: pages.checked_sub(1),
            });
        }
        ledger.total = Nanoseconds(ledger.sum().0.saturating_sub(ledger.excess.0));
        let source = match source {
            0 => None,
            1 => Some(Source::Measured),
            _ => Some(Source::Modelled),
        };
        let energy = source.map(|source| EnergyUse {
            total: joules(total),
            idle: joules(idle),
            source,
        });
        if let Some(active) = active_energy(energy, &ledger) {
            let of = |time: Nanoseconds, idle: u64| Joules(active * time.0 as f64 + joules(idle).0);
            for (row, idle) in ledger.rows.iter_mut().zip(&idle_energy) {
                row.energy = of(row.stages.total(), *idle);
            }
            let own = Nanoseconds(ledger.host.0.saturating_add(ledger.host_softirq.0));
            ledger.departed.energy = of(time(departed), 0);
            ledger.host_energy = of(own, host_idle);
            ledger.unattributed_energy = of(ledger.unattributed, unattributed_idle);
        }
        let millijoules = energy.map(|_| Millijoules {
            total,
            idle,
            host_idle,
            unattributed_idle,
            guests_idle: idle_energy,
        });
        Account {
            ledger,
            energy,
            millijoules,
            exchanges,
            recorder: time(recorder),
        }
    }
}

fn modelled(own: u64, softirq: u64) -> Option<Modelled> {
    Some(Modelled {
        own: time_of_error(own),
        softirq: time_of_error(softirq)?,
    })
}
