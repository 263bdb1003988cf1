// SPDX-License-Identifier: Apache-2.0
//! `vtax bill`: what the guests of a recording cost in money, and what they emit.
//!
//! [`made`] adds up a recording hour by hour. Quantities are integers: each is divided by [`apportion()`], so that parts sum to
//! the whole. An interval belongs to the minute and the hour in which it began.
//!
//! 1. The energy of each interval is divided as the ledger does: above idle by processor time, idle energy as recorded.
//! 2. Electricity costs the price of the interval's minute, and emits what the intensity of that time says.
//! 3. The price of an hour of the machine, and its embodied emissions, are divided by processor time in the hour.
//! 4. Each hour's whole is rounded once, to a millionth of the currency's smallest unit, and to a microgram.

pub mod apportion;
pub mod currency;
mod focus;
pub mod intensity;
mod sci;
mod table;
pub mod tariff;
#[cfg(test)]
mod tests;
pub mod week;

pub use focus::{FocusError, FocusRows};
pub use sci::{Per, PerError, Sci, SciError};
pub use table::{Document, table};

use crate::second::{Account, Identity};
use crate::store::{self, Facts, Read, StoreError};
use apportion::{apportion, rounded};
use intensity::Intensity;
use jiff::Timestamp;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use tariff::Tariff;
use vtax_core::{Nanoseconds, Source};

/// Milliseconds of an hour.
const HOUR: i64 = 3_600_000;
/// Microjoules of a kilowatt-hour, and nanoseconds of an hour.
const PER_KWH: u128 = 3_600_000_000_000;
/// The most microjoules of an interval: a megawatt for a day.
const MOST_MICROJOULES: u128 = 86_400_000_000_000_000;
/// Most names of guests; the use of further ones is one sum.
const MOST_NAMES: usize = 100_000;

/// Who is billed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Party {
    /// The guests of one name and platform, by their number in [`Bill::guests`].
    Guest(usize),
    /// Guests that ended within an interval, for the time that is in no guest's row.
    Departed,
    /// The host's own work.
    Host,
    /// No party that is known.
    Unattributed,
}

impl Party {
    /// The party in words, as in the report; `None` for a guest, which has a name.
    pub fn words(self) -> Option<&'static str> {
        match self {
            Self::Guest(_) => None,
            Self::Departed => Some("departed guests"),
            Self::Host => Some("the host itself"),
            Self::Unattributed => Some("unattributed"),
        }
    }
}

/// The guests of one given name and platform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The given name.
    pub name: String,
    /// The platform.
    pub platform: String,
}

/// What a party used and costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Charge {
    /// Processor time, in nanoseconds.
    pub cpu: u128,
    /// Whether a model computed some of it.
    pub is_cpu_modelled: bool,
    /// Energy, in microjoules.
    pub energy: u128,
    /// The source of the energy; `None` without a meter.
    pub energy_source: Option<Source>,
    /// The cost of electricity, in millionths of the currency's smallest unit.
    pub electricity: u128,
    /// The cost of the machine, likewise.
    pub machine: u128,
    /// Emissions of electricity, in micrograms of CO₂e.
    pub operational: u128,
    /// Emissions of the machine's making and end, in micrograms of CO₂e.
    pub embodied: u128,
}

impl Charge {
    fn add(&mut self, other: &Self) {
        let add = |into: &mut u128, more: u128| *into = into.saturating_add(more);
        add(&mut self.cpu, other.cpu);
        add(&mut self.energy, other.energy);
        add(&mut self.electricity, other.electricity);
        add(&mut self.machine, other.machine);
        add(&mut self.operational, other.operational);
        add(&mut self.embodied, other.embodied);
        self.is_cpu_modelled |= other.is_cpu_modelled;
        self.energy_source = self.energy_source.max(other.energy_source);
    }

    /// The whole cost, in millionths of the currency's smallest unit.
    pub fn cost(&self) -> u128 {
        self.electricity.saturating_add(self.machine)
    }

    /// The source of the processor time, and so of costs that are divided by it.
    pub fn cpu_source(&self) -> Source {
        if self.is_cpu_modelled {
            Source::Modelled
        } else {
            Source::Measured
        }
    }

    /// The source of the whole cost under a tariff.
    pub fn cost_source(&self, tariff: &Tariff) -> Source {
        let machine = tariff.machine.map(|_| self.cpu_source());
        let electricity = tariff.electricity.as_ref().and(self.energy_source);
        machine.max(electricity).unwrap_or(Source::Measured)
    }
}

/// An hour of a bill.
#[derive(Debug)]
pub struct Hour<'a> {
    /// Its start, by the wall clock.
    pub began: Timestamp,
    /// The recorded time in it.
    pub span: Nanoseconds,
    /// The guests, by number.
    pub guests: &'a [Named],
    /// The charges of those who have any.
    pub charges: &'a [(Party, Charge)],
    /// Their sum.
    pub whole: Charge,
}

/// The bill of a host.
#[derive(Debug, Clone, Default)]
pub struct Bill {
    /// The guests, by number.
    pub guests: Vec<Named>,
    /// The charges: guests, those that cost most first, then others.
    pub charges: Vec<(Party, Charge)>,
    /// The sum of all charges.
    pub whole: Charge,
    /// Start of the first interval.
    pub began: Timestamp,
    /// End of the last one.
    pub ended: Timestamp,
    /// The recorded time.
    pub span: Nanoseconds,
    /// The recorded time without a meter, which has neither energy nor its costs.
    pub unmetered: Nanoseconds,
    /// The longest interval.
    pub longest: Nanoseconds,
    /// Intervals that are missing: lost to a full disk or to damage.
    pub missing: u64,
    /// Bytes that belong to no whole interval.
    pub damaged: u64,
    /// The facts of the last interval.
    pub facts: Facts,
}

/// The reason that there is no bill.
#[derive(Debug, thiserror::Error)]
pub enum BillError {
    /// The recording cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No energy, and nothing else to bill.
    #[error(
        "the recording has no energy, because its host had no meter: give a tariff with [machine] or [embodied], or record with a \
         power model (docs/howto/energy.md)"
    )]
    NoEnergy,
    /// An energy that no host has.
    #[error(
        "interval {number} has {joules} J, which no host uses in one: the recording is damaged"
    )]
    Energy {
        /// The number of the interval.
        number: u64,
        /// Its energy in joules.
        joules: u64,
    },
    /// A time without a carbon intensity.
    #[error(
        "the series of the carbon intensity has no value for {0}: give one that covers the recording"
    )]
    NoIntensity(Timestamp),
    /// An output of an hour failed.
    #[error("cannot write the rows: {0}")]
    Write(#[from] io::Error),
}

/// Makes the bill of a recording, and calls `each` for each hour, in order. `intensity` is that of the tariff.
///
/// # Errors
/// When the recording cannot be read, has nothing to bill, or is not covered by `intensity`; or when `each` fails.
pub fn made(
    path: &Path,
    tariff: &Tariff,
    intensity: Option<&Intensity>,
    each: &mut dyn FnMut(&Hour<'_>) -> io::Result<()>,
) -> Result<Bill, BillError> {
    let mut making = Making {
        tariff,
        intensity,
        each,
        numbers: HashMap::new(),
        hour: None,
        totals: BTreeMap::new(),
        bill: Bill::default(),
        last: None,
    };
    let mut outcome = Ok(());
    let end = store::read(path, |read| {
        if outcome.is_ok() {
            outcome = making.take(&read);
        }
    })?;
    outcome?;
    making.close()?;
    let mut bill = making.bill;
    if making.last.is_none() {
        return Err(StoreError::Empty(path.display().to_string()).into());
    }
    let needs_energy = tariff.machine.is_none() && tariff.embodied.is_none();
    if bill.whole.energy_source.is_none() && needs_energy {
        return Err(BillError::NoEnergy);
    }
    bill.damaged = end.damaged;
    bill.charges = making.totals.into_iter().collect();
    let guests = &bill.guests;
    let name = |party: Party| match party {
        Party::Guest(number) => guests
            .get(number)
            .map(|named| (&named.name, &named.platform)),
        _ => None,
    };
    bill.charges.sort_by(|(a, of_a), (b, of_b)| {
        let is_other = |party: &Party| !matches!(party, Party::Guest(_));
        match (is_other(a), is_other(b)) {
            (false, false) => {
                (of_b.cost(), of_b.cpu, name(*a)).cmp(&(of_a.cost(), of_a.cpu, name(*b)))
            }
            _ => a.cmp(b),
        }
    });
    Ok(bill)
}

/// Sums of a party in an hour.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    charge: Charge,
    /// Millionths of the currency for a kilowatt-hour, times microjoules.
    electricity: u128,
    /// Milligrams for a kilowatt-hour, times microjoules.
    operational: u128,
}

/// The hour that is being added up.
#[derive(Debug, Default)]
struct HourSums {
    /// Hours since 1970.
    number: i64,
    span: u64,
    parties: BTreeMap<Party, Sums>,
}

struct Making<'a> {
    tariff: &'a Tariff,
    intensity: Option<&'a Intensity>,
    each: &'a mut dyn FnMut(&Hour<'_>) -> io::Result<()>,
    /// The numbers of guests, by platform and name.
    numbers: HashMap<String, HashMap<String, usize>>,
    hour: Option<HourSums>,
    totals: BTreeMap<Party, Charge>,
    bill: Bill,
    /// The number of the last interval.
    last: Option<u64>,
}

impl Making<'_> {
    fn take(&mut self, read: &Read<'_>) -> Result<(), BillError> {
        let second = read.second;
        let account = second.account();
        let span = account.ledger.span;
        let length = i64::try_from(span.0 / 1_000_000).unwrap_or(i64::MAX);
        let began = second.ended.saturating_sub(length);
        self.note(read, &account, began);
        let number = began.div_euclid(HOUR);
        if self.hour.as_ref().is_some_and(|hour| hour.number != number) {
            self.close()?;
        }
        let parties = self.parties(read, &account);
        let energies = energies(read.number, &account, &parties)?;
        let price = self.tariff.electricity.as_ref().map(|week| week.at(began));
        let grams = match self.intensity {
            Some(intensity) if energies.is_some() => {
                let at = Timestamp::from_millisecond(began).unwrap_or_default();
                Some(intensity.at(began).ok_or(BillError::NoIntensity(at))?)
            }
            _ => None,
        };
        let source = account.energy.map(|energy| energy.source);
        let energies = energies.unwrap_or_else(|| vec![0; parties.len()]);
        let hour = self.hour.get_or_insert_with(|| HourSums {
            number,
            ..HourSums::default()
        });
        hour.span = hour.span.saturating_add(span.0);
        for ((party, cpu, is_cpu_modelled), energy) in parties.into_iter().zip(energies) {
            let sums = hour.parties.entry(party).or_default();
            sums.charge.add(&Charge {
                cpu: u128::from(cpu.0),
                is_cpu_modelled,
                energy,
                energy_source: source,
                ..Charge::default()
            });
            let add = |into: &mut u128, each: Option<u64>| {
                let more = energy.saturating_mul(u128::from(each.unwrap_or(0)));
                *into = into.saturating_add(more);
            };
            add(&mut sums.electricity, price.map(|price| price.0));
            add(&mut sums.operational, grams.map(|grams| grams.0));
        }
        Ok(())
    }

    /// Notes what is said about a bill as a whole.
    fn note(&mut self, read: &Read<'_>, account: &Account, began: i64) {
        let bill = &mut self.bill;
        let at = |milliseconds| Timestamp::from_millisecond(milliseconds).unwrap_or_default();
        match self.last {
            None => bill.began = at(began),
            Some(last) => {
                let lost = read.number.saturating_sub(last.saturating_add(1));
                bill.missing = bill.missing.saturating_add(lost);
            }
        }
        self.last = Some(read.number);
        if bill.facts.number != read.facts.number || bill.facts.method.is_empty() {
            bill.facts = read.facts.clone();
        }
        bill.ended = at(read.second.ended);
        let span = account.ledger.span;
        let add = |into: &mut Nanoseconds| into.0 = into.0.saturating_add(span.0);
        add(&mut bill.span);
        bill.longest = Nanoseconds(bill.longest.0.max(span.0));
        if account.energy.is_none() {
            add(&mut bill.unmetered);
        }
    }

    /// The parties of an interval with their processor time, and whether a model computed it: the rows of the ledger in
    /// their order, then departed guests, the host and unattributed time.
    fn parties(&mut self, read: &Read<'_>, account: &Account) -> Vec<(Party, Nanoseconds, bool)> {
        let ledger = &account.ledger;
        let mut parties = Vec::with_capacity(ledger.rows.len() + 3);
        for row in &ledger.rows {
            let unknown;
            let identity = match read.guests.get(&row.number) {
                Some(identity) => identity,
                None => {
                    unknown = Identity::unknown(row.number);
                    &unknown
                }
            };
            let number = self.guest(identity.called(), &identity.platform);
            parties.push((
                Party::Guest(number),
                row.stages.total(),
                row.modelled.is_some(),
            ));
        }
        let departed = ledger.departed.stages.total();
        let host = Nanoseconds(ledger.host.0.saturating_add(ledger.host_softirq.0));
        parties.push((Party::Departed, departed, ledger.modelled.is_some()));
        parties.push((Party::Host, host, ledger.modelled.is_some()));
        let is_rest_modelled = ledger.unattributed_error.is_some();
        parties.push((Party::Unattributed, ledger.unattributed, is_rest_modelled));
        parties
    }

    fn guest(&mut self, name: &str, platform: &str) -> usize {
        let known = self.numbers.get(platform).and_then(|names| names.get(name));
        if let Some(number) = known {
            return *number;
        }
        let (name, platform) = match self.bill.guests.len() {
            count if count >= MOST_NAMES => ("further guests", ""),
            _ => (name, platform),
        };
        let next = self.bill.guests.len();
        let names = self.numbers.entry(platform.to_owned()).or_default();
        let number = *names.entry(name.to_owned()).or_insert(next);
        if number == next {
            self.bill.guests.push(Named {
                name: name.to_owned(),
                platform: platform.to_owned(),
            });
        }
        number
    }

    /// Ends the hour: rounds its whole, and divides it.
    fn close(&mut self) -> Result<(), BillError> {
        let Some(hour) = self.hour.take() else {
            return Ok(());
        };
        let scale = 10_u128.pow(self.tariff.currency.decimals);
        let sums: Vec<Sums> = hour.parties.values().copied().collect();
        let spare = hour
            .parties
            .keys()
            .position(|party| *party == Party::Unattributed);
        let spare = spare.unwrap_or(0);
        let divided = |total: u128, weight: &dyn Fn(&Sums) -> u128| {
            apportion(total, &sums.iter().map(weight).collect::<Vec<_>>(), spare)
        };
        let sum =
            |of: &dyn Fn(&Sums) -> u128| sums.iter().map(of).fold(0_u128, u128::saturating_add);
        // Millionths of the currency for a kWh times µJ: 10^-6 of its smallest unit, after its decimals.
        let electricity = rounded(sum(&|one| one.electricity).saturating_mul(scale), PER_KWH);
        let machine = self.tariff.machine.map_or(0, |price| u128::from(price.0));
        let machine = machine
            .saturating_mul(u128::from(hour.span))
            .saturating_mul(scale);
        let machine = rounded(machine, PER_KWH);
        // Milligrams to micrograms.
        let operational = rounded(sum(&|one| one.operational).saturating_mul(1000), PER_KWH);
        let embodied = self
            .tariff
            .embodied
            .map_or(0, |embodied| embodied.part(hour.span));
        let cpu = |one: &Sums| one.charge.cpu;
        let parts = [
            divided(electricity, &|one| one.electricity),
            divided(machine, &cpu),
            divided(operational, &|one| one.operational),
            divided(embodied, &cpu),
        ];
        let mut charges: Vec<(Party, Charge)> = Vec::with_capacity(sums.len());
        for (at, (party, sums)) in hour.parties.iter().enumerate() {
            let [electricity, machine, operational, embodied] = parts
                .each_ref()
                .map(|parts| parts.get(at).copied().unwrap_or(0));
            charges.push((
                *party,
                Charge {
                    electricity,
                    machine,
                    operational,
                    embodied,
                    ..sums.charge
                },
            ));
        }
        // Nobody departed in most hours.
        let is_empty = |charge: &Charge| charge.cpu == 0 && charge.energy == 0;
        charges.retain(|(party, charge)| *party != Party::Departed || !is_empty(charge));
        let mut whole = Charge::default();
        for (party, charge) in &charges {
            whole.add(charge);
            self.totals.entry(*party).or_default().add(charge);
        }
        self.bill.whole.add(&whole);
        (self.each)(&Hour {
            began: Timestamp::from_millisecond(hour.number.saturating_mul(HOUR))
                .unwrap_or_default(),
            span: Nanoseconds(hour.span),
            guests: &self.bill.guests,
            charges: &charges,
            whole,
        })?;
        Ok(())
    }
}

/// Divides the energy of an interval among its parties, in microjoules; `None` without a meter. They sum to its energy.
fn energies(
    number: u64,
    account: &Account,
    parties: &[(Party, Nanoseconds, bool)],
) -> Result<Option<Vec<u128>>, BillError> {
    let Some(energy) = &account.millijoules else {
        return Ok(None);
    };
    let total = u128::from(energy.total) * 1000;
    if total > MOST_MICROJOULES {
        return Err(BillError::Energy {
            number,
            joules: energy.total / 1000,
        });
    }
    let idle = total.min(u128::from(energy.idle) * 1000);
    // Without any processor time, energy above idle is unattributed.
    let spare = parties.len().saturating_sub(1);
    let times: Vec<u128> = parties
        .iter()
        .map(|(_, time, _)| u128::from(time.0))
        .collect();
    let active = apportion(total - idle, &times, spare);
    let guests = energy.guests_idle.iter().copied();
    let others = [0, energy.host_idle, energy.unattributed_idle];
    let mut weights: Vec<u128> = guests.chain(others).map(u128::from).collect();
    let given: u128 = weights.iter().sum();
    let slack = u128::from(energy.idle).saturating_sub(given);
    // Each value is rounded down to a millijoule. What is missing beyond that was charged to nobody.
    if slack > weights.len() as u128
        && let Some(unattributed) = weights.last_mut()
    {
        *unattributed += slack;
    }
    let idle = apportion(idle, &weights, spare);
    let sums = active.into_iter().zip(idle);
    Ok(Some(sums.map(|(active, idle)| active + idle).collect()))
}
