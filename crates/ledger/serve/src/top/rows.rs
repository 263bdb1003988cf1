// SPDX-License-Identifier: Apache-2.0
//! A snapshot as rates, for the table and its JSON.

use serde::Serialize;
use std::cmp::Ordering;
use std::str::FromStr;
use vtax_charge::{ChargedGuest, LedgerSnapshot, softirq_source};
use vtax_charge::{Modelled, Stage, Stages, Waits};
use vtax_core::{Nanoseconds, Source};
use vtax_inventory::Platform;

/// The party of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Party {
    /// The whole host: the sum of all other rows.
    #[default]
    All,
    /// The host's own work.
    Host,
    /// Use that no party can be charged for.
    Unattributed,
    /// Guests that ended within the interval.
    Departed,
    /// A guest.
    Guest,
}

/// One row. Percentages of processor time are of one processor.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Row {
    /// The party.
    pub party: Party,
    /// The guest's name.
    pub name: String,
    /// The guest's platform; empty for other rows.
    pub platform: &'static str,
    /// The guest's number.
    pub number: Option<u32>,
    /// Processor time of all stages.
    pub cpu_percent: f64,
    /// The error of `cpu_percent`, where a part of it is modelled.
    pub cpu_error_percent: Option<f64>,
    /// Processor time by stage; empty for rows without stages.
    pub stage_cpu_percent: StagePercents,
    /// The share of its processor time that a guest does not see.
    pub hidden_percent: Option<f64>,
    /// Power, where a meter reports it.
    pub watts: Option<f64>,
    /// Received packets per second.
    pub received_packets_per_second: Option<f64>,
    /// Sent packets per second.
    pub sent_packets_per_second: Option<f64>,
    /// Block requests per second.
    pub block_requests_per_second: Option<f64>,
    /// VM exits per second, where the kernel shows them.
    pub exits_per_second: Option<f64>,
    /// The time in which its tasks waited for processors, in ms per second, where it is known.
    pub wait_ms_per_second: Option<f64>,
    /// What ran meanwhile, the longest wait first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waited_for: Vec<WaitedFor>,
}

/// A part of a guest's wait.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WaitedFor {
    /// What ran: a guest's name, `host`, `idle`, `interrupts`, `stolen`, `departed` or `others`.
    pub name: String,
    /// The guest's platform; empty where no guest ran.
    pub platform: &'static str,
    /// The wait, in ms per second.
    pub ms_per_second: f64,
}

/// Percent of one processor, by stage.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct StagePercents {
    /// The guest's own code.
    pub vcpu: Option<f64>,
    /// The monitor.
    pub emulator: Option<f64>,
    /// Its I/O threads.
    pub iothread: Option<f64>,
    /// vhost workers.
    pub vhost: Option<f64>,
    /// Soft interrupts.
    pub softirq: Option<f64>,
    /// Xen's backends.
    pub backend: Option<f64>,
}

impl StagePercents {
    /// The stages of a guest. Of a service only its own time is known.
    fn of_guest(guest: &ChargedGuest, span: Nanoseconds) -> Self {
        let all = Self::from_stages(&guest.used.stages, span);
        if guest.platform == Platform::Native {
            return Self {
                vcpu: all.vcpu,
                ..Self::default()
            };
        }
        all
    }

    fn from_stages(stages: &Stages, span: Nanoseconds) -> Self {
        let percent = |stage| Some(percent(stages.get(stage), span));
        Self {
            vcpu: percent(Stage::Vcpu),
            emulator: percent(Stage::Emulator),
            iothread: percent(Stage::Iothread),
            vhost: percent(Stage::Vhost),
            softirq: percent(Stage::Softirq),
            backend: percent(Stage::Backend),
        }
    }

    /// Returns the percentage of one stage.
    pub fn get(&self, stage: Stage) -> Option<f64> {
        match stage {
            Stage::Vcpu => self.vcpu,
            Stage::Emulator => self.emulator,
            Stage::Iothread => self.iothread,
            Stage::Vhost => self.vhost,
            Stage::Softirq => self.softirq,
            Stage::Backend => self.backend,
            _ => None,
        }
    }
}

/// The rates of one interval.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rates {
    /// End of the interval (RFC 3339, UTC).
    pub at: String,
    /// Length of the interval.
    pub interval_seconds: f64,
    /// The method that charges soft interrupts.
    pub method: &'static str,
    /// Whether soft interrupt times are measured or modelled.
    pub softirq_source: Source,
    /// How the kernel accounts interrupts: `exact`, `native`, `sampled` or `unknown`.
    pub irq_accounting: &'static str,
    /// The coverage of the energy.
    pub energy_covers: Option<String>,
    /// Whether the energy is measured or modelled.
    pub energy_source: Option<Source>,
    /// The whole host, the host's own work, the unattributed use, the guests that ended within the interval where they
    /// used any time; then the guests.
    pub rows: Vec<Row>,
    /// Problems, each in one sentence.
    pub problems: Vec<String>,
}

fn percent(time: Nanoseconds, span: Nanoseconds) -> f64 {
    per_second(time.as_secs_f64(), span) * 100.0
}

fn per_second(amount: f64, span: Nanoseconds) -> f64 {
    if span.0 == 0 {
        0.0
    } else {
        amount / span.as_secs_f64()
    }
}

fn ms_per_second(time: Nanoseconds, span: Nanoseconds) -> f64 {
    per_second(time.as_secs_f64(), span) * 1000.0
}

/// The parts of a guest's wait, the longest first.
fn waited_for(snapshot: &LedgerSnapshot, waits: Option<&Waits>) -> Vec<WaitedFor> {
    let parts = waits.map(Waits::longest).unwrap_or_default();
    let part = |(runner, time)| {
        let (name, platform) = snapshot.runner(runner);
        WaitedFor {
            name: name.to_owned(),
            platform,
            ms_per_second: ms_per_second(time, snapshot.ledger.span),
        }
    };
    parts.into_iter().map(part).collect()
}

impl Rates {
    /// Computes the rates of a snapshot, with guests in the order of `sort`.
    pub fn from_snapshot(snapshot: &LedgerSnapshot, sort: Sort) -> Self {
        let ledger = &snapshot.ledger;
        let span = ledger.span;
        let watts = |joules: f64| snapshot.energy.map(|_| per_second(joules, span));
        let plain = |party: Party, name: &str, cpu: Nanoseconds, joules: f64| Row {
            party,
            name: name.to_owned(),
            cpu_percent: percent(cpu, span),
            watts: watts(joules),
            ..Row::default()
        };
        let mut all = plain(Party::All, "all", ledger.sum(), ledger.energy().0);
        let mut host = plain(
            Party::Host,
            "host",
            ledger.host + ledger.host_softirq,
            ledger.host_energy.0,
        );
        let error = |modelled: Option<Modelled>| Some(percent(modelled?.total(), span));
        host.cpu_error_percent = error(ledger.modelled);
        host.stage_cpu_percent.softirq = Some(percent(ledger.host_softirq, span));
        let mut nobody = plain(
            Party::Unattributed,
            "unattributed",
            ledger.unattributed,
            ledger.unattributed_energy.0,
        );
        nobody.cpu_error_percent = ledger.unattributed_error.map(|error| percent(error, span));
        let mut guests: Vec<Row> = snapshot
            .guests
            .iter()
            .map(|guest| {
                let stages = &guest.used.stages;
                let exchanged = guest.used.exchanges;
                // The packets of a service cannot be separated from the host's.
                let is_known = guest.platform != Platform::Native;
                let rate = |count: u64| is_known.then(|| per_second(count as f64, span));
                Row {
                    platform: guest.platform.name(),
                    number: Some(guest.number),
                    cpu_error_percent: error(ledger.row(guest.number).and_then(|row| row.modelled)),
                    stage_cpu_percent: StagePercents::of_guest(guest, span),
                    hidden_percent: guest.hidden().map(|hidden| hidden * 100.0),
                    received_packets_per_second: rate(exchanged.received),
                    sent_packets_per_second: rate(exchanged.sent),
                    block_requests_per_second: rate(exchanged.block_requests),
                    exits_per_second: exchanged.exits.and_then(rate),
                    wait_ms_per_second: (guest.used.waits.as_ref())
                        .map(|waits| ms_per_second(waits.total(), span)),
                    waited_for: waited_for(snapshot, guest.used.waits.as_ref()),
                    ..plain(
                        Party::Guest,
                        &guest.name,
                        stages.total(),
                        guest.used.energy.0,
                    )
                }
            })
            .collect();
        let mut stages = Stages::default();
        for guest in &snapshot.guests {
            stages.merge(&guest.used.stages);
        }
        stages.merge(&ledger.departed.stages);
        stages.add(Stage::Softirq, ledger.host_softirq);
        all.stage_cpu_percent = StagePercents::from_stages(&stages, span);
        sort.order(&mut guests);
        let mut rows = vec![all, host, nobody];
        let departed = &ledger.departed;
        if departed.stages.total().0 > 0 {
            rows.push(Row {
                stage_cpu_percent: StagePercents::from_stages(&departed.stages, span),
                ..plain(
                    Party::Departed,
                    "departed",
                    departed.stages.total(),
                    departed.energy.0,
                )
            });
        }
        rows.append(&mut guests);
        Self {
            at: snapshot.ended.to_string(),
            interval_seconds: span.as_secs_f64(),
            method: snapshot.method,
            softirq_source: softirq_source(snapshot.method),
            irq_accounting: snapshot.irq_accounting.name(),
            energy_covers: snapshot
                .energy_source
                .as_ref()
                .map(|(covers, _)| covers.clone()),
            energy_source: snapshot.energy_source.as_ref().map(|(_, source)| *source),
            rows,
            problems: snapshot.problems.clone(),
        }
    }
}

/// The column that guests are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// All processor time.
    Cpu,
    /// One stage of it.
    Stage(Stage),
    /// The hidden share.
    Hidden,
    /// Power.
    Watts,
    /// Packets in both directions.
    Packets,
    /// VM exits.
    Exits,
    /// The wait for processors.
    Wait,
    /// The name.
    Name,
}

impl Key {
    /// Every key: its letter in the table, and its name on the command line.
    pub const ALL: [(char, &'static str, Self); 13] = [
        ('c', "cpu", Self::Cpu),
        ('v', "vcpu", Self::Stage(Stage::Vcpu)),
        ('e', "emulator", Self::Stage(Stage::Emulator)),
        ('i', "iothread", Self::Stage(Stage::Iothread)),
        ('o', "vhost", Self::Stage(Stage::Vhost)),
        ('s', "softirq", Self::Stage(Stage::Softirq)),
        ('b', "backend", Self::Stage(Stage::Backend)),
        ('h', "hidden", Self::Hidden),
        ('w', "watts", Self::Watts),
        ('p', "packets", Self::Packets),
        ('x', "exits", Self::Exits),
        ('t', "wait", Self::Wait),
        ('n', "name", Self::Name),
    ];
}

/// A text that names no [`Key`].
#[derive(Debug, thiserror::Error)]
#[error("`{text}` is nothing to sort by: give one of {}", Key::ALL.map(|(_, name, _)| name).join(", "))]
pub struct KeyError {
    /// The text.
    pub text: String,
}

impl FromStr for Key {
    type Err = KeyError;
    fn from_str(text: &str) -> Result<Self, KeyError> {
        let found = Self::ALL.into_iter().find(|(_, name, _)| *name == text);
        found.map(|(.., key)| key).ok_or_else(|| KeyError {
            text: text.to_owned(),
        })
    }
}

/// An order of guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sort {
    /// The key: the largest value first, names in ascending order.
    pub key: Key,
    /// Whether the order is reversed.
    pub reversed: bool,
}

impl Default for Sort {
    fn default() -> Self {
        Self {
            key: Key::Cpu,
            reversed: false,
        }
    }
}

impl Sort {
    fn order(self, rows: &mut [Row]) {
        // Rows without a value are last. Equal rows keep one order from interval to interval.
        rows.sort_by(|a, b| {
            let by_value = match (a.value(self.key), b.value(self.key)) {
                (Some(a), Some(b)) => b.total_cmp(&a),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => Ordering::Equal,
            };
            let order = by_value
                .then_with(|| a.name.cmp(&b.name))
                .then(a.number.cmp(&b.number));
            if self.reversed {
                order.reverse()
            } else {
                order
            }
        });
    }
}

impl Row {
    /// Returns the value of a column; `None` for the name.
    pub fn value(&self, key: Key) -> Option<f64> {
        match key {
            Key::Cpu => Some(self.cpu_percent),
            Key::Stage(stage) => self.stage_cpu_percent.get(stage),
            Key::Hidden => self.hidden_percent,
            Key::Watts => self.watts,
            Key::Packets => self.packets_per_second(),
            Key::Exits => self.exits_per_second,
            Key::Wait => self.wait_ms_per_second,
            Key::Name => None,
        }
    }

    /// Returns the packets per second in both directions.
    pub fn packets_per_second(&self) -> Option<f64> {
        match (
            self.received_packets_per_second,
            self.sent_packets_per_second,
        ) {
            (None, None) => None,
            (received, sent) => Some(received.unwrap_or(0.0) + sent.unwrap_or(0.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_charge::fake::Host;

    #[test]
    fn rows_add_up_and_are_rates() {
        let mut host = Host::default();
        host.start(1);
        host.start(2);
        host.depart(50_000_000);
        let rates = Rates::from_snapshot(&host.pass(200_000_000), Sort::default());
        let of = |party| rates.rows.iter().filter(move |row| row.party == party);
        let all = of(Party::All).next().unwrap();
        let departed = of(Party::Departed).next().unwrap();
        assert_eq!(departed.cpu_percent, 5.0);
        let parts: f64 = rates.rows.iter().skip(1).map(|row| row.cpu_percent).sum();
        assert!((all.cpu_percent - parts).abs() < 1e-9 && (all.cpu_percent - 75.0).abs() < 1e-9);
        let watts: f64 = rates.rows.iter().skip(1).filter_map(|row| row.watts).sum();
        assert!((all.watts.unwrap() - watts).abs() < 1e-9);
        let guest = of(Party::Guest).next().unwrap();
        assert_eq!(guest.cpu_percent, 20.0);
        assert_eq!(guest.stage_cpu_percent.softirq, Some(2.0));
        assert_eq!(guest.hidden_percent, Some(10.0));
    }

    #[test]
    fn a_service_has_its_own_time_and_no_value_for_what_is_not_known_of_it() {
        let mut host = Host::default();
        host.start_named(1, "redis-server", Platform::Native);
        let rates = Rates::from_snapshot(&host.pass(200_000_000), Sort::default());
        let row = rates.rows.iter().find(|row| row.party == Party::Guest);
        let row = row.unwrap();
        assert_eq!(row.stage_cpu_percent.vcpu, Some(18.0));
        assert_eq!(row.stage_cpu_percent.softirq, None);
        assert_eq!(
            (row.hidden_percent, row.sent_packets_per_second),
            (None, None)
        );
    }

    #[test]
    fn every_key_orders_and_what_has_no_value_is_last() {
        let mut host = Host::default();
        for number in 1..4 {
            host.start(number);
        }
        let mut snapshot = host.pass(1000);
        snapshot.guests[1].used.exchanges.exits = Some(7);
        snapshot.guests[2].used.exchanges.exits = Some(9);
        let names = |key, reversed| -> Vec<String> {
            let rates = Rates::from_snapshot(&snapshot, Sort { key, reversed });
            rates.rows.into_iter().skip(3).map(|row| row.name).collect()
        };
        assert_eq!(names(Key::Exits, false), ["guest-3", "guest-2", "guest-1"]);
        assert_eq!(names(Key::Name, false), ["guest-1", "guest-2", "guest-3"]);
        for (_, name, key) in Key::ALL {
            assert_eq!(name.parse::<Key>().unwrap(), key);
            let mut backward = names(key, true);
            backward.reverse();
            assert_eq!(names(key, false), backward);
        }
        assert!(
            "load"
                .parse::<Key>()
                .unwrap_err()
                .to_string()
                .contains("softirq")
        );
    }
}
