// SPDX-License-Identifier: Apache-2.0
//! Rows of the FinOps Open Cost and Usage Specification (FOCUS) 1.3, dataset Cost and Usage, as CSV.
//!
//! A charge of an hour, electricity or the machine, is split among the parties: one row each, with the allocation method. Rows
//! whose `AllocatedResourceId` is null are the part that is allocated to no guest, so that all rows of an hour sum to the
//! host's charge.

use super::apportion::{apportion, decimal, rounded};
use super::tariff::{Focus, Tariff};
use super::{Charge, Hour, PER_KWH, Party};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use serde_json::json;
use std::io::{self, Write};
use vtax_core::Source;
use vtax_core::csv::field;

/// The columns, in order; those that FOCUS does not define begin with `x_`.
const COLUMNS: [&str; 49] = [
    "BilledCost",
    "EffectiveCost",
    "ListCost",
    "ContractedCost",
    "BillingCurrency",
    "BillingAccountId",
    "BillingAccountName",
    "BillingPeriodStart",
    "BillingPeriodEnd",
    "ChargePeriodStart",
    "ChargePeriodEnd",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ConsumedQuantity",
    "ConsumedUnit",
    "PricingCategory",
    "PricingQuantity",
    "PricingUnit",
    "ListUnitPrice",
    "ContractedUnitPrice",
    "SkuId",
    "SkuPriceId",
    "ServiceName",
    "ServiceCategory",
    "ServiceSubcategory",
    "ServiceProviderName",
    "HostProviderName",
    "InvoiceIssuerName",
    "ProviderName",
    "PublisherName",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "AllocatedMethodId",
    "AllocatedMethodDetails",
    "AllocatedResourceId",
    "AllocatedResourceName",
    "AllocatedTags",
    "Tags",
    "x_Party",
    "x_Platform",
    "x_CpuSeconds",
    "x_CpuSource",
    "x_EnergySource",
    "x_CostSource",
    "x_OperationalGrams",
    "x_EmbodiedGrams",
];
/// Decimals of quantities and ratios.
const DIGITS: u32 = 9;

/// Writes rows of FOCUS.
#[derive(Debug)]
pub struct FocusRows<'a, W> {
    out: W,
    tariff: &'a Tariff,
    names: &'a Focus,
}

/// The reason that there are no rows.
#[derive(Debug, thiserror::Error)]
pub enum FocusError {
    /// The tariff does not name the account, the provider and the host.
    #[error(
        "rows of FOCUS name the account, the provider and the host: add [focus] with these keys to the tariff"
    )]
    Names,
    /// The tariff has no price.
    #[error("rows of FOCUS are costs: add [electricity] or [machine] to the tariff")]
    Price,
    /// The output cannot be written.
    #[error("cannot write the rows: {0}")]
    Write(#[from] io::Error),
}

/// A charge of an hour.
struct Kind {
    /// The identifier of what is sold.
    sku: &'static str,
    unit: &'static str,
    method: &'static str,
    usage: &'static str,
    /// The quantity that was sold, with [`DIGITS`] decimals.
    quantity: u128,
    cost: fn(&Charge) -> u128,
    /// What it is divided by.
    weight: fn(&Charge) -> u128,
    source: fn(&Charge) -> Source,
}

impl<'a, W: Write> FocusRows<'a, W> {
    /// Writes the header line.
    ///
    /// # Errors
    /// When the tariff lacks what rows need, or the line cannot be written.
    pub fn new(mut out: W, tariff: &'a Tariff) -> Result<Self, FocusError> {
        let names = tariff.focus.as_ref().ok_or(FocusError::Names)?;
        if !tariff.has_price() {
            return Err(FocusError::Price);
        }
        writeln!(out, "{}", COLUMNS.join(","))?;
        Ok(Self { out, tariff, names })
    }

    /// Writes the rows of an hour.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn hour(&mut self, hour: &Hour<'_>) -> io::Result<()> {
        let scale = 10_u128.pow(DIGITS);
        let electricity = Kind {
            sku: "electricity",
            unit: "kWh",
            method: "vtax-energy",
            usage: "kWh",
            quantity: rounded(hour.whole.energy.saturating_mul(scale), PER_KWH),
            cost: |charge| charge.electricity,
            weight: |charge| charge.energy,
            source: |charge| charge.energy_source.unwrap_or(Source::Measured),
        };
        let machine = Kind {
            sku: "machine",
            unit: "Hours",
            method: "vtax-cpu-time",
            usage: "CPU-Seconds",
            quantity: rounded(u128::from(hour.span.0).saturating_mul(scale), PER_KWH),
            cost: |charge| charge.machine,
            weight: |charge| charge.cpu,
            source: |charge| charge.cpu_source(),
        };
        let is_metered = hour.whole.energy_source.is_some();
        let electricity = (self.tariff.electricity.is_some() && is_metered).then_some(electricity);
        let machine = self.tariff.machine.map(|_| machine);
        let kinds = electricity.into_iter().chain(machine);
        for (at, kind) in kinds.enumerate() {
            // Emissions are of a party and an hour: they are in the row of the first charge.
            self.charge(hour, &kind, at == 0)?;
        }
        Ok(())
    }

    /// Writes the rows of a charge.
    fn charge(&mut self, hour: &Hour<'_>, kind: &Kind, emits: bool) -> io::Result<()> {
        let spare = hour.charges.len().saturating_sub(1);
        let weights: Vec<u128> = hour
            .charges
            .iter()
            .map(|(_, charge)| (kind.weight)(charge))
            .collect();
        let quantities = apportion(kind.quantity, &weights, spare);
        let ratios = apportion(10_u128.pow(DIGITS), &weights, spare);
        let parts = quantities.into_iter().zip(ratios);
        for ((party, charge), (quantity, ratio)) in hour.charges.iter().zip(parts) {
            let fields = self.row(hour, kind, (*party, charge), (quantity, ratio), emits);
            let fields = fields.each_ref().map(|text| field(text));
            writeln!(self.out, "{}", fields.join(","))?;
        }
        Ok(())
    }

    /// The fields of a row, in the order of [`COLUMNS`]. A null is an empty field.
    fn row(
        &self,
        hour: &Hour<'_>,
        kind: &Kind,
        (party, charge): (Party, &Charge),
        (quantity, ratio): (u128, u128),
        emits: bool,
    ) -> [String; COLUMNS.len()] {
        let cost = decimal((kind.cost)(charge), self.tariff.currency.decimals + 6);
        let quantity = decimal(quantity, DIGITS);
        let named = match party {
            Party::Guest(number) => hour.guests.get(number),
            _ => None,
        };
        let (name, platform) = named.map_or(("", ""), |named| (&named.name, &named.platform));
        let whom = party
            .words()
            .map_or_else(|| format!("guest {name} ({platform})"), str::to_owned);
        let id = named.map_or_else(String::new, |_| format!("{platform}/{name}"));
        let used = (kind.weight)(charge) as f64;
        let used = match kind.usage {
            "kWh" => used / PER_KWH as f64,
            _ => used / 1e9,
        };
        let details = json!({"Elements": [{
            "AllocatedRatio": ratio as f64 / 1e9,
            "UsageUnit": kind.usage,
            "UsageQuantity": used,
        }]});
        let tags = match named {
            Some(_) => json!({"platform": platform}).to_string(),
            None => String::new(),
        };
        let (first, next) = month(hour.began);
        let end = hour.began.checked_add(1.hour()).unwrap_or(hour.began);
        let names = self.names;
        let energy_source = charge.energy_source.map(|source| source.to_string());
        let [operational, embodied] = if emits {
            let is_known = self.tariff.carbon.is_some() && charge.energy_source.is_some();
            [
                (is_known, charge.operational),
                (self.tariff.embodied.is_some(), charge.embodied),
            ]
        } else {
            [(false, 0); 2]
        };
        let grams = |(is_known, micrograms): (bool, u128)| {
            if is_known {
                decimal(micrograms, 6)
            } else {
                String::new()
            }
        };
        [
            cost.clone(),
            cost.clone(),
            cost.clone(),
            cost,
            self.tariff.currency.code().to_owned(),
            names.account.clone(),
            String::new(),
            first,
            next,
            hour.began.to_string(),
            end.to_string(),
            "Usage".to_owned(),
            String::new(),
            format!("{} of {}: {whom}", kind.sku, names.host),
            "Usage-Based".to_owned(),
            quantity.clone(),
            kind.unit.to_owned(),
            "Standard".to_owned(),
            quantity,
            kind.unit.to_owned(),
            String::new(),
            String::new(),
            kind.sku.to_owned(),
            kind.sku.to_owned(),
            "Virtualization host".to_owned(),
            "Compute".to_owned(),
            "Other (Compute)".to_owned(),
            names.provider.clone(),
            names.provider.clone(),
            names.provider.clone(),
            names.provider.clone(),
            names.provider.clone(),
            names.host.clone(),
            names.host.clone(),
            "Host".to_owned(),
            kind.method.to_owned(),
            details.to_string(),
            id,
            name.to_owned(),
            tags,
            String::new(),
            match party {
                Party::Guest(_) => "guest",
                Party::Departed => "departed",
                Party::Host => "host",
                Party::Unattributed => "unattributed",
            }
            .to_owned(),
            platform.to_owned(),
            decimal(charge.cpu, DIGITS),
            charge.cpu_source().to_string(),
            energy_source.unwrap_or_default(),
            (kind.source)(charge).to_string(),
            grams(operational),
            grams(embodied),
        ]
    }

    /// Ends the output.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// When the month of a time and the month after it begin, in UTC.
fn month(time: Timestamp) -> (String, String) {
    let first = time.to_zoned(TimeZone::UTC).date().first_of_month();
    let next = first.checked_add(1.month()).unwrap_or(first);
    let text = |date: Date| format!("{date}T00:00:00Z");
    (text(first), text(next))
}
