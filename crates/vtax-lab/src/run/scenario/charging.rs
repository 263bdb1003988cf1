//! Charge-back as a reading of a trial: what each guest is charged between two marks.

use super::guest::Guest;
use crate::LabError;
use crate::plan::CHARGE;
use std::collections::BTreeMap;
use std::time::Duration;
use vtax_core::{Base, Nanoseconds, Quantity, Source, Unit};
use vtax_host::settings::Settings;
use vtax_observe::charge::{Charger, ChargerOptions, MethodChoice, Pass, Stage};
use vtax_observe::clock::SystemClock;
use vtax_observe::{ObserveError, Subject};
use vtax_report::analysis::charge::metric;
use vtax_report::results::{Better, Metric, Work};

/// Passes before the load: the methods learn of the guests' devices in them.
const PASSES_TO_SETTLE: u32 = 3;
/// Between two of them.
const SETTLE: Duration = Duration::from_millis(200);

/// Which methods a trial is charged by; `None` where it is not.
pub(super) fn chosen(settings: &Settings) -> Option<MethodChoice> {
    match settings.text(CHARGE)? {
        "counted" => Some(MethodChoice::Counted),
        "traced" => Some(MethodChoice::Traced),
        "both" => Some(MethodChoice::Both),
        _ => None,
    }
}

/// Why soft interrupts cannot be traced here, if they cannot.
pub fn why_not_traced() -> Option<String> {
    let failed = open(MethodChoice::Traced).err();
    failed.map(|error| error.to_string())
}

fn open(method: MethodChoice) -> Result<Charger, ObserveError> {
    Charger::open(ChargerOptions {
        method,
        ..ChargerOptions::default()
    })
}

fn unreadable(error: ObserveError) -> LabError {
    LabError::other(format!("cannot charge on this host: {error}"))
}

/// Charges the guests of a trial.
pub(super) struct Charging {
    charger: Charger,
    /// The charger's number of each guest.
    numbers: Vec<u32>,
    /// Why only one of both methods charges.
    pub not_traced: Option<String>,
}

impl Charging {
    /// Begins with it where the settings ask for it. The guests are up, and have no load yet. Of both
    /// methods, what the host does not offer is left out.
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
        let opened = open(choice).or_else(|error| {
            if choice != MethodChoice::Both {
                return Err(error);
            }
            not_traced = Some(error.to_string());
            open(MethodChoice::Counted)
        });
        let mut charger = opened.map_err(unreadable)?;
        for _ in 0..PASSES_TO_SETTLE {
            charger.pass(&SystemClock).map_err(unreadable)?;
            std::thread::sleep(SETTLE);
        }
        let numbers = guests.iter().map(|guest| number(&charger, guest));
        Ok(Some(Self {
            numbers: numbers.collect::<Result<_, _>>()?,
            charger,
            not_traced,
        }))
    }

    /// Ends an interval and begins the next.
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

/// The charger's number of a guest.
fn number(charger: &Charger, guest: &Guest<'_>) -> Result<u32, LabError> {
    let subject = guest.target.subject();
    let mut seen = charger.guests();
    let found = seen.find(|found| is_same(found, &subject));
    found.map(|found| found.number).ok_or_else(|| {
        let seen: Vec<&str> = charger.guests().map(|guest| guest.name.as_str()).collect();
        LabError::other(format!(
            "charge-back does not see the guest {} ({}); it sees: {}",
            guest.spec.name,
            guest.spec.platform.kind(),
            seen.join(", ")
        ))
    })
}

fn is_same(found: &vtax_observe::guests::Guest, subject: &Subject) -> bool {
    if let Some(domain) = subject.domain {
        return found.domain.is_some_and(|(id, _)| id == domain);
    }
    if subject.vmm.is_some() {
        return found.platform.is_vm() && found.process == subject.vmm;
    }
    // The container's own group is in the target's.
    let Some(group) = &found.group else {
        return false;
    };
    let mut parts = group
        .ancestors()
        .filter(|part| !part.as_os_str().is_empty());
    parts.any(|part| subject.cgroups.iter().any(|folder| folder.ends_with(part)))
}

/// What was charged in an interval.
pub(super) struct Charged {
    pass: Pass,
    numbers: Vec<u32>,
}

impl Charged {
    /// What one guest was charged, with the work that its load saw done in the interval between the
    /// trial's marks, and of the target all that is the host's.
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
            rates.add(metric::WORK, work.amount / seconds, unit, "work done");
        }
        for (method, ledger) in &self.pass.ledgers {
            let Some(row) = ledger.row(*number) else {
                continue;
            };
            for stage in Stage::CHARGED {
                let name = metric::stage(method, stage.name());
                let title = format!("charged for {} ({method})", stage.name());
                rates.time(&name, row.stages.get(stage), &title);
            }
            if let Some(modelled) = row.modelled {
                let title = format!("how far that may be off ({method})");
                rates.time(&metric::error(method), modelled.total(), &title);
            }
            let title = "booked by the kernel on the guest's threads";
            rates.time(metric::BOOKED, row.booked, title);
        }
        let exchanged = self.pass.exchanges.guests.get(number).copied();
        let exchanged = exchanged.unwrap_or_default();
        for (name, count, base, title) in [
            (
                metric::RECEIVED,
                exchanged.received,
                Base::Packet,
                "packets received",
            ),
            (metric::SENT, exchanged.sent, Base::Packet, "packets sent"),
            (
                metric::BYTES,
                exchanged.bytes,
                Base::Byte,
                "bytes exchanged",
            ),
            (
                metric::BLOCK_REQUESTS,
                exchanged.block_requests,
                Base::Request,
                "block requests",
            ),
        ] {
            rates.count(name, count, base, title);
        }
        if let Some(pages) = exchanged.pages {
            rates.count(metric::PAGES, pages, Base::Page, "pages exchanged");
        }
        if guest == 0 {
            self.add_host(&mut rates);
        }
        rates.metrics
    }

    fn add_host(&self, rates: &mut Rates) {
        for (method, ledger) in &self.pass.ledgers {
            for (name, time, title) in [
                (metric::host(method), ledger.host, "the host's own tasks"),
                (
                    metric::host_softirq(method),
                    ledger.host_softirq,
                    "soft interrupts for no guest",
                ),
                (
                    metric::unattributed(method),
                    ledger.unattributed,
                    "unattributed",
                ),
            ] {
                rates.time(&name, time, &format!("{title} ({method})"));
            }
            // The counted method hands out all soft interrupt time there was, by the kernel's account or by samples.
            if *method == "counted" {
                let of_guests: u64 = (ledger.rows.iter())
                    .map(|row| row.stages.get(Stage::Softirq).0)
                    .sum();
                let all = Nanoseconds(of_guests.saturating_add(ledger.host_softirq.0));
                rates.time(
                    metric::SOFTIRQ,
                    all,
                    "soft interrupts by the kernel's account",
                );
            }
            rates.time(metric::TOTAL, ledger.total, "all that the processors did");
        }
        let exchanges = &self.pass.exchanges;
        let title = "packets of no guest";
        rates.count(
            metric::HOST_PACKETS,
            exchanges.host_packets,
            Base::Packet,
            title,
        );
        let title = "soft interrupts for no I/O";
        rates.count(
            metric::OTHER_SOFTIRQS,
            exchanges.other_softirqs,
            Base::One,
            title,
        );
    }
}

/// Rates over an interval.
struct Rates {
    metrics: BTreeMap<String, Metric>,
    seconds: f64,
    source: Source,
}

impl Rates {
    fn time(&mut self, name: &str, time: Nanoseconds, title: &str) {
        let cores = time.as_secs_f64() / self.seconds;
        self.add(name, cores, Unit::of(Base::Core), title);
    }

    #[allow(
        clippy::cast_precision_loss,
        reason = "an interval's counts are below 2^53"
    )]
    fn count(&mut self, name: &str, count: u64, of: Base, title: &str) {
        let rate = count as f64 / self.seconds;
        self.add(name, rate, Unit::per(of, Base::Second), title);
    }

    fn add(&mut self, name: &str, value: f64, unit: Unit, title: &str) {
        if !value.is_finite() {
            return;
        }
        let metric = Metric {
            quantity: Quantity::new(value, unit),
            source: self.source,
            model: None,
            better: Better::Neither,
            headline: false,
            title: title.to_owned(),
        };
        self.metrics.insert(name.to_owned(), metric);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use vtax_observe::charge::{GuestExchanges, IntervalExchanges, Ledger, Row, Stages};

    const SECOND: u64 = 1_000_000_000;

    /// Two guests in two seconds: the first used half a processor for itself and a tenth in soft
    /// interrupts, the second nothing.
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
                problems: Vec::new(),
            },
            numbers: vec![4, 9],
        }
    }

    #[test]
    fn what_was_charged_in_a_stretch_becomes_rates() {
        let work = Work {
            amount: 500.0,
            unit: Unit::of(Base::Request),
            phrase: "serve 1 request".to_owned(),
        };
        let found = charged().metrics(0, Some((&work, 2.5)), Source::Emulated);
        let value = |name: &str| found[name].quantity.value;
        assert!((value("charge.traced.vcpu") - 0.5).abs() < 1e-9);
        assert!(
            (value(metric::SOFTIRQ) - 0.2).abs() < 1e-9,
            "the guest's and the host's"
        );
        assert!((value(metric::TOTAL) - 1.5).abs() < 1e-9);
        assert!((value(metric::RECEIVED) - 15.0).abs() < 1e-9);
        assert_eq!(found[metric::PAGES].quantity.to_string(), "45.0 page/s");
        // Work is of the interval between the marks, which is the load generator's.
        assert_eq!(found[metric::WORK].quantity.to_string(), "200 request/s");
        assert_eq!(found[metric::WORK].source, Source::Emulated);
    }

    #[test]
    fn a_guest_without_load_has_no_work_and_only_the_target_tells_of_the_host() {
        let found = charged().metrics(1, None, Source::Measured);
        assert_eq!(found["charge.counted.softirq"].quantity.value, 0.0);
        for absent in [
            metric::WORK,
            metric::TOTAL,
            metric::HOST_PACKETS,
            metric::PAGES,
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
