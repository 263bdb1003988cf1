// SPDX-License-Identifier: Apache-2.0
//! Charge-back as a reading of a trial: the charge of each guest between two marks.

use super::guest::Guest;
use crate::LabError;
use crate::plan::CHARGE;
use std::collections::BTreeMap;
use std::time::Duration;
use tracing::warn;
use vtax_charge::{Charger, ChargerOptions, MethodChoice, Pass, Roster, Stage};
use vtax_core::metric::{self, Family};
use vtax_core::{Base, Nanoseconds, Source, Unit};
use vtax_host::settings::Settings;
use vtax_observe::ObserveError;
use vtax_observe::clock::SystemClock;
use vtax_results::{Metric, Work};

/// The number of passes before the load, in which the methods find the guests' devices.
const PASSES_TO_SETTLE: u32 = 3;
/// The interval between two of these passes.
const SETTLE: Duration = Duration::from_millis(200);

/// Returns the charge-back methods of a trial; `None` without charge-back.
pub(super) fn chosen(settings: &Settings) -> Option<MethodChoice> {
    match settings.text(CHARGE)? {
        "counted" => Some(MethodChoice::Counted),
        "traced" => Some(MethodChoice::Traced),
        "both" => Some(MethodChoice::Both),
        _ => None,
    }
}

/// Returns the reason why soft interrupts cannot be traced on this host; `None` when they can.
pub fn why_not_traced() -> Option<String> {
    let failed = open(MethodChoice::Traced, Roster::Discovered).err();
    failed.map(|error| error.to_string())
}

fn open(method: MethodChoice, roster: Roster) -> Result<Charger, ObserveError> {
    Charger::open(ChargerOptions {
        roster,
        method,
        ..ChargerOptions::default()
    })
}

fn unreadable(error: ObserveError) -> LabError {
    LabError::other(format!("cannot charge on this host: {error}"))
}

/// Charge-back of the guests of a trial.
pub(super) struct Charging {
    charger: Charger,
    /// The charger's number of each guest.
    numbers: Vec<u32>,
    /// The reason why only the counted method charges, when both were chosen.
    pub not_traced: Option<String>,
}

impl Charging {
    /// Starts charge-back when the settings ask for it. The guests are booted, and have no load yet. With both
    /// methods, the traced method is left out when the host does not offer it.
    ///
    /// # Errors
    /// When this host cannot be charged, or charge-back does not see one of the guests.
    pub(super) fn begin(
        settings: &Settings,
        guests: &[Guest<'_>],
    ) -> Result<Option<Self>, LabError> {
        let Some(choice) = chosen(settings) else {
            return Ok(None);
        };
        let mut not_traced = None;
        let subjects = guests
            .iter()
            .map(|guest| guest.target.about().subject.clone());
        let roster = Roster::Given(subjects.collect());
        let opened = open(choice, roster.clone()).or_else(|error| {
            if choice != MethodChoice::Both {
                return Err(error);
            }
            warn!("soft interrupts are counted only, not traced: {error}");
            not_traced = Some(error.to_string());
            open(MethodChoice::Counted, roster)
        });
        let mut charger = opened.map_err(unreadable)?;
        for _ in 0..PASSES_TO_SETTLE {
            charger.pass(&SystemClock).map_err(unreadable)?;
            std::thread::sleep(SETTLE);
        }
        Ok(Some(Self {
            numbers: charger.numbers().map_err(unreadable)?,
            charger,
            not_traced,
        }))
    }

    /// Returns the charger. The trial's counters use its BPF programs as well.
    pub(super) fn charger(&self) -> &Charger {
        &self.charger
    }

    /// Ends an interval, returns its charges, and begins the next interval.
    ///
    /// # Errors
    /// When the host's processor time cannot be read.
    pub(super) fn pass(&mut self) -> Result<Charged, LabError> {
        Ok(Charged {
            pass: self.charger.pass(&SystemClock).map_err(unreadable)?,
            numbers: self.numbers.clone(),
        })
    }
}

/// The charges of an interval.
pub(super) struct Charged {
    pass: Pass,
    numbers: Vec<u32>,
}

impl Charged {
    /// Returns the metrics of one guest's charge, with the work that its load reports and the seconds
    /// between the trial's marks. The target's metrics include those of the host.
    pub(super) fn metrics(
        &self,
        guest: usize,
        work: Option<(&Work, f64)>,
        source: Source,
    ) -> BTreeMap<String, Metric> {
        let Some((ledger, number)) = self.pass.ledger().zip(self.numbers.get(guest)) else {
            return BTreeMap::new();
        };
        let mut rates = Rates {
            metrics: BTreeMap::new(),
            seconds: ledger.span.as_secs_f64(),
            source,
        };
        if let Some((work, seconds)) = work.filter(|(_, seconds)| *seconds > 0.0) {
            let unit = Unit::per(work.unit.base, Base::Second);
            rates.add(metric::CHARGE_WORK, work.amount / seconds, unit);
        }
        for (method, ledger) in &self.pass.ledgers {
            let Some(row) = ledger.row(*number) else {
                continue;
            };
            for stage in Stage::CHARGED {
                let name = metric::CHARGE_STAGE.name(&[method, stage.name()]);
                let about = format!("{} ({method})", stage.name());
                let time = row.stages.get(stage);
                rates.time_of(metric::CHARGE_STAGE, name, &about, time);
            }
            if let Some(modelled) = row.modelled {
                rates.method(metric::CHARGE_ERROR, method, modelled.total());
            }
            rates.time(metric::CHARGE_BOOKED, row.booked);
        }
        let exchanged = self.pass.exchanges.guests.get(number).copied();
        let exchanged = exchanged.unwrap_or_default();
        rates.count(metric::CHARGE_RECEIVED, exchanged.received);
        rates.count(metric::CHARGE_SENT, exchanged.sent);
        rates.count(metric::CHARGE_BYTES, exchanged.bytes);
        rates.count(metric::CHARGE_BLOCK_REQUESTS, exchanged.block_requests);
        if let Some(pages) = exchanged.pages {
            rates.count(metric::CHARGE_PAGES, pages);
        }
        if guest == 0 {
            self.add_host(&mut rates);
        }
        rates.metrics
    }

    fn add_host(&self, rates: &mut Rates) {
        for (method, ledger) in &self.pass.ledgers {
            let host = ledger.host + ledger.departed.stages.total();
            rates.method(metric::CHARGE_HOST, method, host);
            rates.method(metric::CHARGE_HOST_SOFTIRQ, method, ledger.host_softirq);
            rates.method(metric::CHARGE_UNATTRIBUTED, method, ledger.unattributed);
            // The counted method distributes all soft interrupt time, by the kernel's account or by samples.
            if *method == "counted" {
                let of_guests: u64 = (ledger.rows.iter())
                    .map(|row| row.stages.get(Stage::Softirq).0)
                    .sum();
                let all = Nanoseconds(of_guests.saturating_add(ledger.host_softirq.0));
                rates.time(metric::CHARGE_SOFTIRQ, all);
            }
            rates.time(metric::CHARGE_TOTAL, ledger.total);
        }
        let exchanges = &self.pass.exchanges;
        rates.count(metric::CHARGE_HOST_PACKETS, exchanges.host_packets);
        rates.count(metric::CHARGE_OTHER_SOFTIRQS, exchanges.other_softirqs);
    }
}

/// Rates over an interval.
struct Rates {
    metrics: BTreeMap<String, Metric>,
    seconds: f64,
    source: Source,
}

impl Rates {
    fn time(&mut self, metric: &metric::Metric, time: Nanoseconds) {
        let cores = time.as_secs_f64() / self.seconds;
        self.add(metric, cores, Unit::from_base(Base::One));
    }

    fn method(&mut self, family: &Family, method: &str, time: Nanoseconds) {
        self.time_of(family, family.name_of(method), method, time);
    }

    /// Adds one metric of a family. `about` becomes a part of its title.
    fn time_of(&mut self, family: &Family, name: String, about: &str, time: Nanoseconds) {
        let cores = time.as_secs_f64() / self.seconds;
        if cores.is_finite() {
            let unit = Unit::from_base(Base::One);
            let found = Metric::new(family.metric(), about, unit, cores, self.source);
            self.metrics.insert(name, found);
        }
    }

    #[allow(
        clippy::cast_precision_loss,
        reason = "an interval's counts are below 2^53"
    )]
    fn count(&mut self, metric: &metric::Metric, count: u64) {
        self.add(
            metric,
            count as f64 / self.seconds,
            Unit::from_base(Base::One),
        );
    }

    fn add(&mut self, metric: &metric::Metric, value: f64, given: Unit) {
        if value.is_finite() {
            let found = Metric::new(metric, "", given, value, self.source);
            self.metrics.insert(metric.name.to_owned(), found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use vtax_charge::{GuestExchanges, IntervalExchanges, Ledger, Row, Stages};

    const SECOND: u64 = 1_000_000_000;

    /// Returns the charges of two guests over two seconds. The first used half a processor for itself and a tenth
    /// in soft interrupts, the second nothing.
    fn charged() -> Charged {
        let mut stages = Stages::default();
        stages.add(Stage::Vcpu, Nanoseconds(SECOND));
        stages.add(Stage::Softirq, Nanoseconds(SECOND / 5));
        let row = |number, stages| Row {
            number,
            stages,
            booked: Nanoseconds(SECOND),
            ..Row::default()
        };
        let ledger = Ledger {
            span: Nanoseconds(2 * SECOND),
            total: Nanoseconds(3 * SECOND),
            rows: vec![row(4, stages), row(9, Stages::default())],
            host_softirq: Nanoseconds(SECOND / 5),
            ..Ledger::default()
        };
        let exchanged = GuestExchanges {
            received: 30,
            pages: Some(90),
            ..GuestExchanges::default()
        };
        Charged {
            pass: Pass {
                at: Nanoseconds(0),
                ledgers: vec![("traced", ledger.clone()), ("counted", ledger)],
                exchanges: IntervalExchanges {
                    guests: HashMap::from([(4, exchanged)]),
                    ..IntervalExchanges::default()
                },
                energy: None,
                waits: HashMap::new(),
                problems: Vec::new(),
            },
            numbers: vec![4, 9],
        }
    }

    #[test]
    fn charges_of_a_window_become_rates() {
        let work = Work {
            amount: 500.0,
            unit: Unit::from_base(Base::Request),
            phrase: "serve 1 request".to_owned(),
        };
        let found = charged().metrics(0, Some((&work, 2.5)), Source::Emulated);
        let value = |name: &str| found[name].quantity.value;
        assert!((value("charge.traced.vcpu") - 0.5).abs() < 1e-9);
        assert!(
            (value(metric::CHARGE_SOFTIRQ.name) - 0.2).abs() < 1e-9,
            "the guest's and the host's"
        );
        assert!((value(metric::CHARGE_TOTAL.name) - 1.5).abs() < 1e-9);
        assert!((value(metric::CHARGE_RECEIVED.name) - 15.0).abs() < 1e-9);
        assert_eq!(
            found[metric::CHARGE_PAGES.name].quantity.to_string(),
            "45.0 page/s"
        );
        // The rate of work is over the interval between the marks, which is the load generator's.
        assert_eq!(
            found[metric::CHARGE_WORK.name].quantity.to_string(),
            "200 request/s"
        );
        assert_eq!(found[metric::CHARGE_WORK.name].source, Source::Emulated);
    }

    #[test]
    fn a_guest_without_load_has_no_work_and_only_the_target_reports_the_host() {
        let found = charged().metrics(1, None, Source::Measured);
        assert_eq!(found["charge.counted.softirq"].quantity.value, 0.0);
        for absent in [
            metric::CHARGE_WORK.name,
            metric::CHARGE_TOTAL.name,
            metric::CHARGE_HOST_PACKETS.name,
            metric::CHARGE_PAGES.name,
        ] {
            assert!(!found.contains_key(absent), "{absent}");
        }
    }

    #[test]
    fn only_settings_that_ask_for_it_have_guests_charged() {
        let with = |text: &str| {
            let level = vtax_host::settings::Level::Text(text.to_owned());
            chosen(&Settings(BTreeMap::from([(CHARGE.to_owned(), level)])))
        };
        assert_eq!(with("both"), Some(MethodChoice::Both));
        assert_eq!((with("none"), chosen(&Settings::default())), (None, None));
    }
}
