// SPDX-License-Identifier: Apache-2.0
//! A bill as a table for terminals, and as one document of JSON.

use super::apportion::{apportion, decimal, rounded, shown};
use super::sci::Sci;
use super::tariff::Tariff;
use super::{Bill, Charge, Party};
use crate::report::{count, length};
use serde::Serialize;
use vtax_core::{Nanoseconds, Source, counted};
use vtax_results::numbers::when;
use vtax_results::text::{Table, clean};

/// Guests of the table.
const SHOWN_GUESTS: usize = 30;
/// Digits that the largest number of a column has at least, where it has so many decimals.
const LEAST_DIGITS: usize = 4;
/// Decimals of millionths.
const MILLIONTHS: u32 = 6;
/// Decimals of energy in a table: nanokilowatt-hours, of 3.6 mJ.
const NANO: u32 = 9;

/// A bill as JSON. Costs are texts, since they are exact.
#[derive(Debug, Serialize)]
pub struct Document<'a> {
    /// Start of the first interval (RFC 3339, UTC).
    pub began: String,
    /// End of the last one.
    pub ended: String,
    /// The recorded time.
    pub recorded_seconds: f64,
    /// Recorded time without a meter, which has neither energy nor its costs.
    pub unmetered_seconds: f64,
    /// Intervals that are missing, and so not billed.
    pub missing_intervals: u64,
    /// The currency, by its code of ISO 4217.
    pub currency: &'static str,
    /// The parties: guests, those that cost most first, then others.
    pub parties: Vec<PartyDocument<'a>>,
    /// The sum of all parties: the bill of the host.
    pub whole: Numbers,
    /// The Software Carbon Intensity; `None` without functional units.
    pub sci: Option<Sci>,
}

/// A party of a bill as JSON.
#[derive(Debug, Serialize)]
pub struct PartyDocument<'a> {
    /// `guest`, `departed`, `host` or `unattributed`.
    pub party: &'static str,
    /// The guest's name; empty for other parties.
    pub guest: &'a str,
    /// The guest's platform; empty for other parties.
    pub platform: &'a str,
    /// What it used and costs.
    #[serde(flatten)]
    pub numbers: Numbers,
}

/// What a party used and costs, as JSON. `None` for what the tariff does not charge, or without a meter.
#[derive(Debug, Serialize)]
pub struct Numbers {
    /// Processor time.
    pub cpu_seconds: f64,
    /// Whether it was measured or modelled.
    pub cpu_source: Source,
    /// Energy in kilowatt-hours.
    pub energy_kwh: Option<f64>,
    /// Whether it was measured or modelled.
    pub energy_source: Option<Source>,
    /// The cost in the smallest unit of the currency. The parties sum to the whole.
    pub cost: Option<String>,
    /// The cost to a millionth of that unit. The parties sum to the whole.
    pub exact_cost: Option<String>,
    /// The part for electricity.
    pub electricity_cost: Option<String>,
    /// The part for the machine.
    pub machine_cost: Option<String>,
    /// Whether the numbers that the cost comes from were measured or modelled.
    pub cost_source: Option<Source>,
    /// Grams of CO₂e of electricity.
    pub operational_grams: Option<f64>,
    /// Embodied grams of CO₂e.
    pub embodied_grams: Option<f64>,
}

impl Numbers {
    fn new(charge: &Charge, units: u128, tariff: &Tariff) -> Self {
        let decimals = tariff.currency.decimals;
        let exact = |millionths| decimal(millionths, decimals + MILLIONTHS);
        let source = charge.energy_source;
        let grams = |micrograms: u128| micrograms as f64 / 1e6;
        let has_price = tariff.has_price();
        Self {
            cpu_seconds: charge.cpu as f64 / 1e9,
            cpu_source: charge.cpu_source(),
            energy_kwh: source.map(|_| charge.energy as f64 / 3.6e12),
            energy_source: source,
            cost: has_price.then(|| decimal(units, decimals)),
            exact_cost: has_price.then(|| exact(charge.cost())),
            electricity_cost: tariff
                .electricity
                .as_ref()
                .and(source)
                .map(|_| exact(charge.electricity)),
            machine_cost: tariff.machine.map(|_| exact(charge.machine)),
            cost_source: has_price.then(|| charge.cost_source(tariff)),
            operational_grams: tariff
                .carbon
                .as_ref()
                .and(source)
                .map(|_| grams(charge.operational)),
            embodied_grams: tariff.embodied.map(|_| grams(charge.embodied)),
        }
    }
}

impl<'a> Document<'a> {
    /// Makes the document.
    pub fn new(bill: &'a Bill, tariff: &Tariff, sci: Option<Sci>) -> Self {
        let costs: Vec<u128> = bill
            .charges
            .iter()
            .map(|(_, charge)| charge.cost())
            .collect();
        let units = shown(&costs, MILLIONTHS, 0);
        let whole = rounded(bill.whole.cost(), 1_000_000);
        let parties = bill.charges.iter().zip(units);
        Self {
            began: bill.began.to_string(),
            ended: bill.ended.to_string(),
            recorded_seconds: bill.span.as_secs_f64(),
            unmetered_seconds: bill.unmetered.as_secs_f64(),
            missing_intervals: bill.missing,
            currency: tariff.currency.code(),
            parties: parties
                .map(|((party, charge), units)| {
                    let (word, named) = match party {
                        Party::Guest(number) => ("guest", bill.guests.get(*number)),
                        Party::Departed => ("departed", None),
                        Party::Host => ("host", None),
                        Party::Unattributed => ("unattributed", None),
                    };
                    PartyDocument {
                        party: word,
                        guest: named.map_or("", |named| &named.name),
                        platform: named.map_or("", |named| &named.platform),
                        numbers: Numbers::new(charge, units, tariff),
                    }
                })
                .collect(),
            whole: Numbers::new(&bill.whole, whole, tariff),
            sci,
        }
    }
}

/// A column of numbers that sum to their last one, with as few decimals as show the largest.
fn column(values: &[u128], digits: u32, fewest: u32) -> Vec<String> {
    let sum = values
        .iter()
        .fold(0_u128, |sum, value| sum.saturating_add(*value));
    let mut decimals = fewest;
    let is_short = |decimals: u32| {
        let value = rounded(sum, 10_u128.saturating_pow(digits - decimals));
        value.to_string().len() < LEAST_DIGITS
    };
    while decimals < digits && is_short(decimals) {
        decimals += 1;
    }
    let mut cells = shown(values, digits, decimals);
    cells.push(rounded(sum, 10_u128.saturating_pow(digits - decimals)));
    cells
        .into_iter()
        .map(|value| decimal(value, decimals))
        .collect()
}

/// Renders a bill as a table of a width.
pub fn table(
    bill: &Bill,
    tariff: &Tariff,
    sci: Option<&Sci>,
    recording: &str,
    width: usize,
) -> String {
    let head = format!(
        "{}  {}  {}",
        clean(recording),
        when(&bill.began.to_string()),
        length(bill.span.as_secs_f64())
    );
    let mut lines = vec![head, String::new()];
    let rows = rows(bill);
    let of = |of: &dyn Fn(&Charge) -> u128| -> Vec<u128> {
        rows.iter().map(|(_, row)| of(row)).collect()
    };
    let mark = |is_modelled: bool, cell: String| {
        if is_modelled {
            format!("~{cell}")
        } else {
            cell
        }
    };
    let all: Vec<Charge> = rows
        .iter()
        .map(|(_, row)| *row)
        .chain([bill.whole])
        .collect();
    let has_energy = bill.whole.energy_source.is_some();
    let is_energy_modelled = |charge: &Charge| {
        charge
            .energy_source
            .is_some_and(|source| source > Source::Measured)
    };
    let cells = |values: Vec<String>, is_modelled: &dyn Fn(&Charge) -> bool| -> Vec<String> {
        let values = values.into_iter().zip(&all);
        values
            .map(|(cell, charge)| mark(is_modelled(charge), cell))
            .collect()
    };
    let absent = || vec!["–".to_owned(); all.len()];
    let cpu = column(&of(&|row| row.cpu), 9, 1);
    let mut columns = vec![(
        "CPU s".to_owned(),
        cells(cpu, &|charge| charge.is_cpu_modelled),
    )];
    let kwh = if has_energy {
        // Microjoules do not divide into kilowatt-hours, so their sum is divided.
        let energies = of(&|row| row.energy);
        let whole = rounded(
            bill.whole.energy.saturating_mul(10_u128.pow(NANO)),
            super::PER_KWH,
        );
        cells(
            column(&apportion(whole, &energies, 0), NANO, 3),
            &is_energy_modelled,
        )
    } else {
        absent()
    };
    columns.push(("kWh".to_owned(), kwh));
    if tariff.has_price() {
        let decimals = tariff.currency.decimals;
        let costs = column(&of(&Charge::cost), decimals + MILLIONTHS, decimals);
        let is_modelled = |charge: &Charge| charge.cost_source(tariff) > Source::Measured;
        let is_known = has_energy || tariff.machine.is_some();
        let costs = if is_known {
            cells(costs, &is_modelled)
        } else {
            absent()
        };
        columns.push((tariff.currency.code().to_owned(), costs));
    }
    if tariff.carbon.is_some() {
        let grams = column(&of(&|row| row.operational), MILLIONTHS, 1);
        let grams = if has_energy {
            cells(grams, &is_energy_modelled)
        } else {
            absent()
        };
        columns.push(("op. g".to_owned(), grams));
    }
    if tariff.embodied.is_some() {
        let grams = column(&of(&|row| row.embodied), MILLIONTHS, 1);
        columns.push((
            "emb. g".to_owned(),
            cells(grams, &|charge| charge.is_cpu_modelled),
        ));
    }
    let headings = columns.iter().map(|(heading, _)| heading.as_str());
    let mut table = Table::new(["guest"].into_iter().chain(headings), 1..usize::MAX);
    let names = rows
        .iter()
        .map(|(name, _)| name.as_str())
        .chain(["the whole host"]);
    for (at, name) in names.enumerate() {
        let cells = columns
            .iter()
            .filter_map(|(_, cells)| cells.get(at).cloned());
        table.row([name.to_owned()].into_iter().chain(cells));
    }
    lines.extend(table.lines(width));
    lines.push(String::new());
    lines.extend(
        notes(bill, tariff, sci)
            .iter()
            .map(|line| format!("  {}", clean(line))),
    );
    lines.push(String::new());
    lines.join("\n")
}

/// The rows of a table, whose charges sum to the whole.
fn rows(bill: &Bill) -> Vec<(String, Charge)> {
    let mut rows = Vec::new();
    let mut left = (0, Charge::default());
    for (party, charge) in &bill.charges {
        let name = match party {
            Party::Guest(_) if rows.len() >= SHOWN_GUESTS => {
                left.0 += 1;
                left.1.add(charge);
                continue;
            }
            Party::Guest(number) => {
                let named = bill.guests.get(*number);
                named.map(|named| format!("{} ({})", named.name, named.platform))
            }
            other => {
                if left.0 > 0 {
                    rows.push((counted(left.0, "more guest"), left.1));
                    left.0 = 0;
                }
                other.words().map(str::to_owned)
            }
        };
        rows.push((name.unwrap_or_default(), *charge));
    }
    rows
}

/// Sentences below a table.
fn notes(bill: &Bill, tariff: &Tariff, sci: Option<&Sci>) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(sci) = sci {
        let whose = sci.guest.as_deref().unwrap_or("the whole host");
        lines.push(format!(
            "SCI of {whose}: {} g of CO₂e for each {} ({})",
            significant(sci.grams_per_unit),
            sci.unit,
            sci.source
        ));
        lines.push(format!(
            "  ({} g operational + {} g embodied) / {} {}",
            significant(sci.operational_grams),
            significant(sci.embodied_grams),
            sci.units,
            sci.unit
        ));
    }
    let is_modelled = bill.whole.is_cpu_modelled
        || bill
            .whole
            .energy_source
            .is_some_and(|source| source > Source::Measured);
    let legend = if is_modelled {
        "~ is modelled; other numbers are measured"
    } else {
        "all numbers are measured"
    };
    lines.push(legend.to_owned());
    let facts = &bill.facts;
    let covers = facts.energy_covers.as_deref().unwrap_or("the host");
    lines.push(match (bill.whole.energy_source, &facts.energy_model) {
        (None, _) => {
            "no meter: no energy, and nothing that comes from it, is in the bill".to_owned()
        }
        (Some(source), Some(model)) => format!("energy is {source} by {model} ({covers})"),
        (Some(source), None) => format!("energy is {source} by {covers}"),
    });
    if tariff.carbon.is_some() || tariff.embodied.is_some() {
        lines.push(
            "op. g: CO₂e of electricity; emb. g: of the machine's making, by CPU time".to_owned(),
        );
    }
    if bill.unmetered.0 > 0 && bill.whole.energy_source.is_some() {
        let time = length(bill.unmetered.as_secs_f64());
        lines.push(format!(
            "{time} had no meter: their electricity is not in the bill"
        ));
    }
    if bill.missing > 0 {
        let missing = count(bill.missing, "interval");
        lines.push(format!("{missing} are missing: they are not in the bill"));
    }
    if bill.longest > Nanoseconds(60_000_000_000) && tariff.electricity.is_some() {
        let time = length(bill.longest.as_secs_f64());
        lines.push(format!(
            "intervals take up to {time}: each has the price of its first minute"
        ));
    }
    lines
}

/// A number with four significant digits.
fn significant(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return "0".to_owned();
    }
    let magnitude = value.abs().log10().floor();
    let decimals = (3.0 - magnitude).clamp(0.0, 12.0) as usize;
    format!("{value:.decimals$}")
}
