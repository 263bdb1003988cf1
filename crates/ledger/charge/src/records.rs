// SPDX-License-Identifier: Apache-2.0
//! `vtax charge`: one record for each guest and stage of an interval, for the guests that ended in it, for the host and
//! for unattributed time. The
//! records of an interval add up to its measured total.

use crate::pace::Pace;
use crate::pods;
use crate::problems::Problems;
use crate::snapshot::{LedgerSnapshot, Watch};
use crate::{EnergyUse, Ledger, Modelled, Stage, Stages};
use jiff::Timestamp;
use serde::Serialize;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use vtax_core::csv::field;
use vtax_core::{Joules, Nanoseconds, Source};
use vtax_observe::ObserveError;

/// The format of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordFormat {
    /// One JSON object a line.
    Json,
    /// Comma-separated values (RFC 4180) with a header line.
    Csv,
}

/// The party that a record charges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Party {
    /// The guest that the record names.
    Guest,
    /// The guests that ended within the interval, whose time no guest's record has.
    Departed,
    /// The host's own work.
    Host,
    /// No party: time that no method could attribute.
    Unattributed,
}

/// The charge of one party for one stage in one interval.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Record<'a> {
    /// Start of the interval (RFC 3339, UTC).
    pub began: String,
    /// End of the interval (RFC 3339, UTC).
    pub ended: String,
    /// Length of the interval by the monotonic clock, which does not advance while the host sleeps.
    pub interval_seconds: f64,
    /// The charged party.
    pub party: Party,
    /// The guest's name; empty for other parties.
    pub guest: &'a str,
    /// The guest's platform; empty for other parties.
    pub platform: &'a str,
    /// The program that manages the guest; empty where it is unknown.
    pub manager: &'a str,
    /// The guest's UUID; empty where it has none.
    pub uuid: &'a str,
    /// The guest's number in this run, which distinguishes two successive guests of one name.
    pub number: Option<u32>,
    /// `vcpu`, `emulator`, `iothread`, `vhost`, `softirq`, `backend` of guests; `tasks` and `softirq` of the host;
    /// `idle` for energy that the rule for idle energy charges to the party.
    pub stage: &'static str,
    /// Processor time, in seconds.
    pub cpu_seconds: f64,
    /// Whether the time was measured or modelled. Counted soft interrupts are modelled, and so are the times that they
    /// are subtracted from.
    pub cpu_source: Source,
    /// Energy in joules, where a meter reports it.
    pub energy_joules: Option<f64>,
    /// Whether the energy was measured or modelled.
    pub energy_source: Option<Source>,
    /// The method that charges soft interrupts.
    pub method: &'a str,
    /// The measured processor time of the interval: the sum of all its records.
    pub interval_cpu_seconds: f64,
    /// The energy of the interval: the sum of all its records.
    pub interval_energy_joules: Option<f64>,
    /// The error of a modelled time: half the width of an interval that holds the true value in at least 9 of 10 cases.
    pub cpu_error_seconds: Option<f64>,
    /// The power model that computed the energy, with its date and its error; `None` where the energy is measured.
    pub energy_model: Option<String>,
    /// The domains of the meters that the energy is the sum of, and what they cover.
    pub energy_meter: Option<String>,
}

/// The names of the columns, in order.
const COLUMNS: &str = "began,ended,interval_seconds,party,guest,platform,manager,uuid,number,stage,cpu_seconds,cpu_source,energy_joules,energy_source,method,interval_cpu_seconds,interval_energy_joules,cpu_error_seconds,energy_model,energy_meter";

/// The parts of an interval that its ledger lacks.
#[derive(Debug, Clone, PartialEq)]
pub struct Interval<'a> {
    /// Start of the interval.
    pub began: Timestamp,
    /// End of the interval.
    pub ended: Timestamp,
    /// Its energy, where a meter reports it.
    pub energy: Option<EnergyUse>,
    /// The power model that computed the energy.
    pub energy_model: Option<String>,
    /// The domains of the meters that the energy is the sum of, and what they cover.
    pub energy_meter: Option<String>,
    /// The guests.
    pub guests: Vec<Charged<'a>>,
}

/// The identity of a guest in records; texts are empty where it is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Charged<'a> {
    /// The number in the ledger.
    pub number: u32,
    /// The name.
    pub name: &'a str,
    /// The platform.
    pub platform: &'a str,
    /// The program that manages it.
    pub manager: &'a str,
    /// The UUID.
    pub uuid: &'a str,
}

/// Returns the records of one interval, for each method where several are compared.
pub fn records(snapshot: &LedgerSnapshot) -> Vec<Record<'_>> {
    let guests = snapshot.guests.iter().map(|guest| Charged {
        number: guest.number,
        name: &guest.name,
        platform: guest.platform.name(),
        manager: guest.manager.unwrap_or(""),
        uuid: guest.uuid.as_deref().unwrap_or(""),
    });
    let interval = Interval {
        began: snapshot.began,
        ended: snapshot.ended,
        energy: snapshot.energy,
        energy_model: snapshot.power_model.as_ref().map(ToString::to_string),
        energy_meter: snapshot.energy_meters.clone(),
        guests: guests.collect(),
    };
    let of = |(method, ledger)| of_ledger(&interval, method, ledger);
    snapshot.ledgers().flat_map(of).collect()
}

/// Returns the records of the ledger of one interval.
pub fn of_ledger<'a>(interval: &Interval<'a>, method: &'a str, ledger: &Ledger) -> Vec<Record<'a>> {
    let energy = interval.energy;
    let (energy_model, energy_meter) = if energy.is_some() {
        (interval.energy_model.clone(), interval.energy_meter.clone())
    } else {
        (None, None)
    };
    let blank = Record {
        began: interval.began.to_string(),
        ended: interval.ended.to_string(),
        interval_seconds: ledger.span.as_secs_f64(),
        party: Party::Unattributed,
        guest: "",
        platform: "",
        manager: "",
        uuid: "",
        number: None,
        stage: "",
        cpu_seconds: 0.0,
        cpu_source: Source::Measured,
        energy_joules: None,
        energy_source: energy.map(|energy| energy.source),
        method,
        interval_cpu_seconds: ledger.total.as_secs_f64(),
        interval_energy_joules: energy.map(|energy| energy.total.0),
        cpu_error_seconds: None,
        energy_model,
        energy_meter,
    };
    let active = active_energy(energy, ledger);
    let mut records = Vec::new();
    for guest in &interval.guests {
        let whom = Record {
            party: Party::Guest,
            guest: guest.name,
            platform: guest.platform,
            manager: guest.manager,
            uuid: guest.uuid,
            number: Some(guest.number),
            ..blank.clone()
        };
        let row = ledger.row(guest.number).cloned().unwrap_or_default();
        split(
            &mut records,
            &whom,
            &stages(&row.stages, row.modelled),
            row.energy,
            active,
        );
    }
    let departed = &ledger.departed;
    if departed.stages.total().0 > 0 {
        let whom = Record {
            party: Party::Departed,
            ..blank.clone()
        };
        split(
            &mut records,
            &whom,
            &stages(&departed.stages, departed.modelled),
            departed.energy,
            active,
        );
    }
    let host = Record {
        party: Party::Host,
        ..blank.clone()
    };
    let modelled = ledger.modelled;
    let stages = [
        (
            "tasks",
            ledger.host,
            modelled.and_then(|modelled| modelled.own),
        ),
        (
            "softirq",
            ledger.host_softirq,
            modelled.map(|modelled| modelled.softirq),
        ),
    ];
    split(&mut records, &host, &stages, ledger.host_energy, active);
    records.push(Record {
        cpu_seconds: ledger.unattributed.as_secs_f64(),
        cpu_source: source(ledger.unattributed_error),
        cpu_error_seconds: ledger.unattributed_error.map(Nanoseconds::as_secs_f64),
        energy_joules: energy.map(|_| ledger.unattributed_energy.0),
        ..blank
    });
    records
}

/// Returns the active energy per nanosecond of processor time, in joules: active energy is charged by use. `None`
/// without a meter.
pub fn active_energy(energy: Option<EnergyUse>, ledger: &Ledger) -> Option<f64> {
    let sum = ledger.sum().0 as f64;
    energy.map(|energy| {
        let active = (energy.total.0 - energy.idle.0).max(0.0);
        if sum > 0.0 { active / sum } else { 0.0 }
    })
}

/// A stage's name, its time, and the error of a modelled time.
type StageTime = (&'static str, Nanoseconds, Option<Nanoseconds>);

/// Returns the guest's own code always, and every other stage whose time is not zero.
fn stages(stages: &Stages, modelled: Option<Modelled>) -> Vec<StageTime> {
    let own = stages.total().saturating_since(stages.get(Stage::Softirq));
    // Soft interrupts were subtracted from the stages in proportion to their times, and so is their error shared.
    let error = |stage: Stage, time: Nanoseconds| {
        let modelled = modelled?;
        if stage == Stage::Softirq {
            return Some(modelled.softirq);
        }
        let share = match own.0 {
            0 if stage == Stage::Vcpu => 1.0,
            0 => 0.0,
            own => time.0 as f64 / own as f64,
        };
        Some(Nanoseconds((modelled.own?.0 as f64 * share) as u64))
    };
    Stage::CHARGED
        .into_iter()
        .map(|stage| (stage, stages.get(stage)))
        .filter(|(stage, time)| *stage == Stage::Vcpu || time.0 > 0)
        .map(|(stage, time)| (stage.name(), time, error(stage, time)))
        .collect()
}

/// Returns the source of a time: a time with an error is modelled.
fn source(error: Option<Nanoseconds>) -> Source {
    error.map_or(Source::Measured, |_| Source::Modelled)
}

/// Appends one record for each stage. Energy beyond the stages' active energy is idle energy.
fn split<'a>(
    into: &mut Vec<Record<'a>>,
    whom: &Record<'a>,
    stages: &[StageTime],
    energy: Joules,
    active: Option<f64>,
) {
    let mut idle = energy.0;
    for (stage, time, error) in stages {
        // Limits the charge to the energy that is left, since times are rounded.
        let joules = active.map(|active| (active * time.0 as f64).min(idle));
        idle -= joules.unwrap_or(0.0);
        into.push(Record {
            stage,
            cpu_seconds: time.as_secs_f64(),
            cpu_source: source(*error),
            cpu_error_seconds: error.map(Nanoseconds::as_secs_f64),
            energy_joules: joules,
            ..whom.clone()
        });
    }
    // A remainder of rounding is not idle energy.
    if active.is_some() && idle > energy.0 * 1e-9 {
        into.push(Record {
            stage: "idle",
            energy_joules: Some(idle),
            ..whom.clone()
        });
    }
}

/// Writes the header line, where the format has one.
///
/// # Errors
/// When it cannot be written.
pub fn write_header(format: RecordFormat, out: &mut impl Write) -> io::Result<()> {
    match format {
        RecordFormat::Json => Ok(()),
        RecordFormat::Csv => writeln!(out, "{COLUMNS}"),
    }
}

/// Writes one record as one line. Names are sanitised, so a quoted name holds no line end.
///
/// # Errors
/// When it cannot be written.
pub fn write(record: &Record<'_>, format: RecordFormat, out: &mut impl Write) -> io::Result<()> {
    match format {
        RecordFormat::Json => {
            serde_json::to_writer(&mut *out, record)?;
            writeln!(out)
        }
        RecordFormat::Csv => {
            // The columns are the fields of the JSON object, in its order.
            let Record {
                began,
                ended,
                interval_seconds,
                party,
                guest,
                platform,
                manager,
                uuid,
                number,
                stage,
                cpu_seconds,
                cpu_source,
                energy_joules,
                energy_source,
                method,
                interval_cpu_seconds,
                interval_energy_joules,
                cpu_error_seconds,
                energy_model,
                energy_meter,
            } = record;
            let party = match party {
                Party::Guest => "guest",
                Party::Host => "host",
                Party::Departed => "departed",
                Party::Unattributed => "unattributed",
            };
            writeln!(
                out,
                "{began},{ended},{interval_seconds},{party},{},{},{},{},{},{stage},{cpu_seconds},{cpu_source},{},{},{},{interval_cpu_seconds},{},{},{},{}",
                field(guest),
                field(platform),
                field(manager),
                field(uuid),
                or_empty(*number),
                or_empty(*energy_joules),
                or_empty(*energy_source),
                field(method),
                or_empty(*interval_energy_joules),
                or_empty(*cpu_error_seconds),
                field(energy_model.as_deref().unwrap_or_default()),
                field(energy_meter.as_deref().unwrap_or_default()),
            )
        }
    }
}

fn or_empty(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// Options of `vtax charge`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordOptions {
    /// Length of the interval of one set of records.
    pub interval: Duration,
    /// Number of sets; `None` runs until stopped.
    pub count: Option<u64>,
    /// The format of the records.
    pub format: RecordFormat,
    /// The unit that the records charge.
    pub by: By,
}

/// The unit that records charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum By {
    /// Each guest.
    #[default]
    Guest,
    /// The guests of a Kubernetes pod together; every other guest alone.
    Pod,
}

/// The reason that a run failed.
#[derive(Debug, thiserror::Error)]
pub enum RecordsError {
    /// The output cannot be written.
    #[error("cannot write the records: {0}")]
    Write(#[from] io::Error),
    /// The host cannot be read.
    #[error(transparent)]
    Observe(#[from] ObserveError),
}

/// Writes the records of one interval after the other. When `stop` is set, the interval in progress is written at its
/// present length, so that only the time between two runs is lost.
///
/// # Errors
/// When the host cannot be read in the first pass, or the output fails. A closed pipe is not an error.
pub fn run(
    mut watch: Watch,
    options: &RecordOptions,
    stop: &AtomicBool,
    out: &mut impl Write,
    say: &mut dyn FnMut(&str),
) -> Result<(), RecordsError> {
    for note in watch.notes() {
        say(note);
    }
    if let ("counted", accounting) = watch.method() {
        say(&format!(
            "soft interrupts are counted, which this kernel has {accounting}"
        ));
    }
    watch.pass()?;
    let mut pace = Pace::new(options.interval);
    let mut left = options.count;
    let mut problems = Problems::default();
    let outcome = (|| {
        write_header(options.format, out)?;
        out.flush()?;
        while left != Some(0) && !stop.load(Ordering::SeqCst) {
            pace.wait(stop);
            match watch.pass() {
                Ok(snapshot) => {
                    problems.report_new(&snapshot.problems, say);
                    let snapshot = match options.by {
                        By::Guest => snapshot,
                        By::Pod => {
                            for overhead in pods::overheads(&snapshot, Path::new("/proc")) {
                                say(&overhead.to_string());
                            }
                            pods::by_pod(snapshot)
                        }
                    };
                    for record in records(&snapshot) {
                        write(&record, options.format, out)?;
                    }
                    out.flush()?;
                }
                // The next pass covers this one's time too.
                Err(error) => say(&error.to_string()),
            }
            left = left.map(|left| left - 1);
        }
        Ok(())
    })();
    match outcome {
        Err(cause) if io::Error::kind(&cause) == ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(RecordsError::Write),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IdleRule;
    use crate::fake::Host;
    use vtax_inventory::Platform;

    fn lines(snapshot: &LedgerSnapshot, format: RecordFormat) -> Vec<String> {
        let mut out = Vec::new();
        for record in records(snapshot) {
            write(&record, format, &mut out).unwrap();
        }
        let text = String::from_utf8(out).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_records_of_an_interval_add_up_to_the_measured_total_whichever_party_pays_for_idle() {
        let mut host = Host::default();
        for number in 1..20 {
            host.start(number);
        }
        for rule in [IdleRule::Host, IdleRule::Equal, IdleRule::Reservation] {
            host.depart(7_000_000);
            let mut snapshot = host.pass(12_345_678);
            let energy = EnergyUse {
                total: Joules(100.0),
                idle: Joules(30.0),
                source: Source::Modelled,
            };
            snapshot
                .ledger
                .charge_energy(energy, rule, &|number| Some(number));
            snapshot.energy = Some(energy);
            let records = records(&snapshot);
            let cpu: f64 = records.iter().map(|record| record.cpu_seconds).sum();
            assert!(
                (cpu - records[0].interval_cpu_seconds).abs() < 1e-9,
                "{cpu}"
            );
            let joules: f64 = records
                .iter()
                .filter_map(|record| record.energy_joules)
                .sum();
            assert!((joules - 100.0).abs() < 1e-6, "{joules}");
            let departed = records.iter().find(|of| of.party == Party::Departed);
            assert_eq!(departed.map(|of| of.cpu_seconds), Some(0.007));
            let idle = records.iter().filter(|record| record.stage == "idle");
            let idle: f64 = idle.filter_map(|record| record.energy_joules).sum();
            assert!((idle - 30.0).abs() < 1e-6, "{rule:?}: {idle}");
        }
    }

    #[test]
    fn counted_soft_interrupts_what_they_were_taken_off_and_modelled_energy_are_flagged() {
        let mut host = Host::default();
        host.start(1);
        let mut snapshot = host.pass(1000);
        let records = records(&snapshot);
        let softirq = records
            .iter()
            .find(|record| record.stage == "softirq")
            .unwrap();
        assert_eq!(softirq.cpu_source, Source::Modelled);
        assert_eq!(softirq.cpu_error_seconds, Some(2e-8));
        let own = records
            .iter()
            .find(|record| record.stage == "vcpu")
            .unwrap();
        assert_eq!(
            (own.cpu_source, own.cpu_error_seconds, own.energy_source),
            (Source::Modelled, Some(1e-8), Some(Source::Modelled))
        );
        // Where the kernel accounts soft interrupts separately, nothing is subtracted.
        for row in &mut snapshot.ledger.rows {
            row.modelled = row.modelled.map(|modelled| Modelled {
                own: None,
                ..modelled
            });
        }
        let records = super::records(&snapshot);
        assert_eq!(records[0].stage, "vcpu");
        assert_eq!(
            (records[0].cpu_source, records[0].cpu_error_seconds),
            (Source::Measured, None)
        );
    }

    #[test]
    fn methods_that_are_compared_each_have_a_whole_set_of_records() {
        let mut host = Host::default();
        host.start(1);
        let mut snapshot = host.pass(1000);
        let mut ledger = snapshot.ledger.clone();
        (ledger.modelled, ledger.unattributed_error) = (None, None);
        ledger.rows.iter_mut().for_each(|row| row.modelled = None);
        snapshot.compared = vec![("traced", ledger)];
        let records = records(&snapshot);
        let (counted, traced): (Vec<_>, Vec<_>) = records
            .iter()
            .partition(|record| record.method == "counted");
        assert_eq!((counted.len(), traced.len()), (5, 5));
        assert!(
            traced
                .iter()
                .all(|record| record.cpu_source == Source::Measured)
        );
    }

    #[test]
    fn both_formats_have_the_same_columns_and_hostile_names_stay_in_theirs() {
        let mut host = Host::default();
        host.start_named(1, "a,\"b\"\u{fffd}c", Platform::Qemu);
        let snapshot = host.pass(1000);
        let json = lines(&snapshot, RecordFormat::Json);
        let object: serde_json::Value = serde_json::from_str(&json[0]).unwrap();
        assert_eq!(object["guest"], "a,\"b\"\u{fffd}c");
        // serde_json sorts an object's names.
        let mut columns: Vec<&str> = COLUMNS.split(',').collect();
        columns.sort_unstable();
        let names: Vec<&String> = object.as_object().unwrap().keys().collect();
        assert_eq!(names, columns);
        let csv = lines(&snapshot, RecordFormat::Csv);
        assert!(
            csv[0].contains(",guest,\"a,\"\"b\"\"\u{fffd}c\",qemu,"),
            "{}",
            csv[0]
        );
        let mut is_quoted = false;
        let between = csv[2].chars().filter(|c| {
            is_quoted ^= *c == '"';
            *c == ',' && !is_quoted
        });
        assert_eq!(between.count() + 1, columns.len(), "{}", csv[2]);
    }

    #[test]
    fn energy_carries_its_model_and_its_meters_in_every_record() {
        let mut host = Host::default();
        host.start_named(1, "a", Platform::Qemu);
        let mut snapshot = host.pass(1000);
        let model = "another machine, of 2011-04-06, a published curve of another machine";
        for record in records(&snapshot) {
            assert_eq!(record.energy_model.as_deref(), Some(model));
        }
        let csv = lines(&snapshot, RecordFormat::Csv);
        let meter = "model host: the whole machine";
        let end = format!(",\"{model}\",{meter}");
        assert!(csv[0].ends_with(&end), "{}", csv[0]);
        snapshot.power_model = None;
        for record in records(&snapshot) {
            assert_eq!(record.energy_model, None);
            assert_eq!(record.energy_meter.as_deref(), Some(meter));
        }
    }
}
