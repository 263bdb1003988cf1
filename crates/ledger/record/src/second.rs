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
/// The number of values of one guest in a second.
pub const OF_GUEST: usize = 15;
/// The number of values of the host in a second.
pub const OF_HOST: usize = 15;

/// Places of a guest's values. Stages come first, in the order of [`Stage::CHARGED`].
const IDLE: usize = 6;
const RECEIVED: usize = 7;
const SENT: usize = 8;
const BYTES: usize = 9;
const BLOCK_REQUESTS: usize = 10;
/// One more than the number, and 0 for an unknown number; so are all values from here on.
const EXITS: usize = 11;
const PAGES: usize = 12;
const OWN_ERROR: usize = 13;
const SOFTIRQ_ERROR: usize = 14;

/// Places of the host's values.
const SPAN: usize = 0;
const TASKS: usize = 1;
const SOFTIRQ: usize = 2;
const UNATTRIBUTED: usize = 3;
const EXCESS: usize = 4;
const HOST_IDLE: usize = 5;
const UNATTRIBUTED_IDLE: usize = 6;
const TOTAL_ENERGY: usize = 7;
const IDLE_ENERGY: usize = 8;
const IS_MODELLED: usize = 9;
const HOST_OWN_ERROR: usize = 10;
const HOST_SOFTIRQ_ERROR: usize = 11;
const UNATTRIBUTED_ERROR: usize = 12;
const RECORDER: usize = 13;
/// Guests that ended within the second. They have no idle energy.
const DEPARTED: usize = 14;

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
    pub fn of(guest: &ChargedGuest) -> Self {
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
    guests: HashMap<u32, [u64; BYTES + 1]>,
    host: [u64; OF_HOST],
}

/// Adds the remainder, and returns the whole units.
fn whole(value: u64, unit: u64, remainder: &mut u64) -> u64 {
    let sum = value.saturating_add(*remainder);
    *remainder = sum % unit;
    sum / unit
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
        let mut host = [0; OF_HOST];
        let mut put = |place: usize, value: u64, unit: u64| {
            if let (Some(into), Some(rest)) = (host.get_mut(place), self.host.get_mut(place)) {
                *into = whole(value, unit, rest);
            }
        };
        let own = ledger.host.0.saturating_add(ledger.host_softirq.0);
        put(SPAN, ledger.span.0, UNIT);
        put(TASKS, ledger.host.0, UNIT);
        put(SOFTIRQ, ledger.host_softirq.0, UNIT);
        put(UNATTRIBUTED, ledger.unattributed.0, UNIT);
        put(EXCESS, ledger.excess.0, UNIT);
        put(RECORDER, own_cpu.0, UNIT);
        put(DEPARTED, ledger.departed.stages.total().0, UNIT);
        let idle = |energy: Joules, time: u64| microjoules(energy.0 - active * time as f64);
        put(HOST_IDLE, idle(ledger.host_energy, own), 1000);
        let rest = ledger.unattributed.0;
        put(
            UNATTRIBUTED_IDLE,
            idle(ledger.unattributed_energy, rest),
            1000,
        );
        if let Some(energy) = snapshot.energy {
            put(TOTAL_ENERGY, microjoules(energy.total.0), 1000);
            put(IDLE_ENERGY, microjoules(energy.idle.0), 1000);
        }
        let modelled = ledger.modelled;
        for (place, value) in [
            (
                TOTAL_ENERGY,
                snapshot
                    .energy
                    .map_or(0, |_| host[TOTAL_ENERGY].saturating_add(1)),
            ),
            (
                IS_MODELLED,
                u64::from(
                    snapshot
                        .energy
                        .is_some_and(|energy| energy.source != Source::Measured),
                ),
            ),
            (
                HOST_OWN_ERROR,
                error(modelled.and_then(|modelled| modelled.own)),
            ),
            (
                HOST_SOFTIRQ_ERROR,
                error(modelled.map(|modelled| modelled.softirq)),
            ),
            (UNATTRIBUTED_ERROR, error(ledger.unattributed_error)),
        ] {
            host[place] = value;
        }
        let present: std::collections::HashSet<u32> =
            snapshot.guests.iter().map(|guest| guest.number).collect();
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
        let mut values = [0; OF_GUEST];
        let idle = microjoules(used.energy.0 - active * used.stages.total().0 as f64);
        let exchanges = used.exchanges;
        let rounded = Stage::CHARGED.map(|stage| (used.stages.get(stage).0, UNIT));
        let packets = [exchanges.received, exchanges.sent].map(|packets| (packets, 1));
        let rounded = rounded
            .into_iter()
            .chain([(idle, 1000)])
            .chain(packets)
            .chain([(exchanges.bytes, KIB)]);
        for ((into, rest), (value, unit)) in values.iter_mut().zip(rests).zip(rounded) {
            *into = whole(value, unit, rest);
        }
        let modelled = ledger.row(guest.number).and_then(|row| row.modelled);
        for (place, value) in [
            (BLOCK_REQUESTS, exchanges.block_requests),
            (EXITS, known(exchanges.exits)),
            (PAGES, known(exchanges.pages)),
            (OWN_ERROR, error(modelled.and_then(|modelled| modelled.own))),
            (
                SOFTIRQ_ERROR,
                error(modelled.map(|modelled| modelled.softirq)),
            ),
        ] {
            values[place] = value;
        }
        values
    }
}

/// One second as a ledger.
#[derive(Debug, Clone)]
pub struct Account {
    /// The times and energies.
    pub ledger: Ledger,
    /// The energy of the interval.
    pub energy: Option<EnergyUse>,
    /// The exchanges of each row of the ledger, in its order.
    pub exchanges: Vec<GuestExchanges>,
    /// The recorder's own processor time.
    pub recorder: Nanoseconds,
}

impl Second {
    /// Its length by the monotonic clock.
    pub fn span(&self) -> Nanoseconds {
        Nanoseconds(self.host[SPAN].saturating_mul(UNIT))
    }

    /// Converts it to a ledger, whose parts sum to its total.
    pub fn account(&self) -> Account {
        let time = |place: usize| Nanoseconds(self.host[place].saturating_mul(UNIT));
        let joules = |value: u64| Joules(value as f64 / 1e3);
        let own = self.host[HOST_OWN_ERROR];
        let mut ledger = Ledger {
            span: self.span(),
            host: time(TASKS),
            host_softirq: time(SOFTIRQ),
            unattributed: time(UNATTRIBUTED),
            excess: time(EXCESS),
            modelled: modelled(own, self.host[HOST_SOFTIRQ_ERROR]),
            unattributed_error: time_of_error(self.host[UNATTRIBUTED_ERROR]),
            ..Ledger::default()
        };
        let departed = time(DEPARTED);
        ledger.departed.stages.add(Stage::Vcpu, departed);
        let mut exchanges = Vec::with_capacity(self.guests.len());
        for (number, values) in &self.guests {
            let mut stages = Stages::default();
            for (stage, units) in Stage::CHARGED.into_iter().zip(values) {
                stages.add(stage, Nanoseconds(units.saturating_mul(UNIT)));
            }
            ledger.rows.push(Row {
                number: *number,
                stages,
                modelled: modelled(values[OWN_ERROR], values[SOFTIRQ_ERROR]),
                ..Row::default()
            });
            exchanges.push(GuestExchanges {
                received: values[RECEIVED],
                sent: values[SENT],
                bytes: values[BYTES].saturating_mul(KIB),
                block_requests: values[BLOCK_REQUESTS],
                exits: values[EXITS].checked_sub(1),
                pages: values[PAGES].checked_sub(1),
            });
        }
        ledger.total = Nanoseconds(ledger.sum().0.saturating_sub(ledger.excess.0));
        let energy = self.host[TOTAL_ENERGY]
            .checked_sub(1)
            .map(|total| EnergyUse {
                total: joules(total),
                idle: joules(self.host[IDLE_ENERGY]),
                source: match self.host[IS_MODELLED] {
                    0 => Source::Measured,
                    _ => Source::Modelled,
                },
            });
        if let Some(active) = active_energy(energy, &ledger) {
            let of =
                |nanoseconds: u64, idle: u64| Joules(active * nanoseconds as f64 + joules(idle).0);
            for (row, (_, values)) in ledger.rows.iter_mut().zip(&self.guests) {
                row.energy = of(row.stages.total().0, values[IDLE]);
            }
            let own = ledger.host.0.saturating_add(ledger.host_softirq.0);
            ledger.departed.energy = of(departed.0, 0);
            ledger.host_energy = of(own, self.host[HOST_IDLE]);
            ledger.unattributed_energy = of(ledger.unattributed.0, self.host[UNATTRIBUTED_IDLE]);
        }
        Account {
            ledger,
            energy,
            exchanges,
            recorder: time(RECORDER),
        }
    }
}

fn modelled(own: u64, softirq: u64) -> Option<Modelled> {
    Some(Modelled {
        own: time_of_error(own),
        softirq: time_of_error(softirq)?,
    })
}
