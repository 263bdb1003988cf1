//! `vtax charge`: one record for each guest and interval, for billing scripts.
//!
//! The last records of an interval are the host's own, and what nobody can be charged for, so
//! that a script can check that the sum is the machine's time.

use serde::Serialize;
use std::io::{self, Write};
use vtax_observe::charge::{Charger, Ledger, Pass, Stage};
use vtax_units::{Nanoseconds, Source};

/// How records are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordFormat {
    /// One JSON object a line.
    Json,
    /// CSV with a heading.
    Csv,
}

/// One account in one interval.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Record {
    /// The interval's end, in seconds since 1970.
    pub time: f64,
    /// Its length in seconds.
    pub seconds: f64,
    /// How soft interrupts were charged.
    pub method: &'static str,
    /// `guest`, `host` or `unattributed`.
    pub account: &'static str,
    /// The guest's name.
    pub guest: String,
    /// What runs it.
    pub platform: &'static str,
    /// Its UUID.
    pub uuid: String,
    /// CPU seconds in all.
    pub cpu_seconds: f64,
    /// CPU seconds by stage, in the order of `Stage::ALL`.
    pub vcpu_seconds: f64,
    /// The monitor's device emulation.
    pub emulator_seconds: f64,
    /// Its I/O threads.
    pub iothread_seconds: f64,
    /// vhost workers.
    pub vhost_seconds: f64,
    /// Soft interrupts.
    pub softirq_seconds: f64,
    /// Xen's backends.
    pub backend_seconds: f64,
    /// Energy, where a meter tells it.
    pub joules: Option<f64>,
    /// Whether that is measured or modelled.
    pub joules_source: Option<Source>,
    /// Packets received and sent.
    pub packets: u64,
    /// Block requests.
    pub block_requests: u64,
}

/// The records of a pass; none for the first, which only begins an interval.
pub fn records(charger: &Charger, pass: &Pass, wall: Nanoseconds) -> Vec<Record> {
    let mut records = Vec::new();
    for (method, ledger) in &pass.ledgers {
        records.extend(of_ledger(charger, pass, method, ledger, wall));
    }
    records
}

fn of_ledger(
    charger: &Charger,
    pass: &Pass,
    method: &'static str,
    ledger: &Ledger,
    wall: Nanoseconds,
) -> Vec<Record> {
    let source = pass.energy.map(|energy| energy.source);
    let blank = |account, joules: f64, cpu: Nanoseconds| Record {
        time: wall.as_secs_f64(),
        seconds: ledger.span.as_secs_f64(),
        method,
        account,
        guest: String::new(),
        platform: "",
        uuid: String::new(),
        cpu_seconds: cpu.as_secs_f64(),
        vcpu_seconds: 0.0,
        emulator_seconds: 0.0,
        iothread_seconds: 0.0,
        vhost_seconds: 0.0,
        softirq_seconds: 0.0,
        backend_seconds: 0.0,
        joules: source.map(|_| joules),
        joules_source: source,
        packets: 0,
        block_requests: 0,
    };
    let mut records = Vec::with_capacity(ledger.rows.len() + 2);
    for row in &ledger.rows {
        let Some(guest) = charger.guests().find(|guest| guest.number == row.number) else {
            continue;
        };
        let stage = |stage| row.stages.get(stage).as_secs_f64();
        let exchanged = pass
            .exchanges
            .guests
            .get(&row.number)
            .copied()
            .unwrap_or_default();
        records.push(Record {
            guest: guest.name.clone(),
            platform: guest.platform.name(),
            uuid: guest.uuid.clone().unwrap_or_default(),
            vcpu_seconds: stage(Stage::Vcpu),
            emulator_seconds: stage(Stage::Emulator),
            iothread_seconds: stage(Stage::Iothread),
            vhost_seconds: stage(Stage::Vhost),
            softirq_seconds: stage(Stage::Softirq),
            backend_seconds: stage(Stage::Backend),
            packets: exchanged.received + exchanged.sent,
            block_requests: exchanged.block_requests,
            ..blank("guest", row.energy.0, row.stages.total())
        });
    }
    records.push(Record {
        softirq_seconds: ledger.host_softirq.as_secs_f64(),
        ..blank(
            "host",
            ledger.host_energy.0,
            ledger.host + ledger.host_softirq,
        )
    });
    records.push(blank(
        "unattributed",
        ledger.unattributed_energy.0,
        ledger.unattributed,
    ));
    records
}

/// The heading of CSV records.
///
/// # Errors
/// When it cannot be written.
pub fn write_heading(to: &mut dyn Write) -> io::Result<()> {
    writeln!(
        to,
        "time,seconds,method,account,guest,platform,uuid,cpu_seconds,vcpu_seconds,\
         emulator_seconds,iothread_seconds,vhost_seconds,softirq_seconds,backend_seconds,joules,\
         joules_source,packets,block_requests"
    )
}

/// Writes one record.
///
/// # Errors
/// When it cannot be written.
pub fn write(record: &Record, format: RecordFormat, to: &mut dyn Write) -> io::Result<()> {
    if format == RecordFormat::Json {
        serde_json::to_writer(&mut *to, record)?;
        return writeln!(to);
    }
    let joules = record
        .joules
        .map_or(String::new(), |joules| format!("{joules:.6}"));
    let source = record
        .joules_source
        .map_or(String::new(), |source| source.to_string());
    let Record {
        time,
        seconds,
        method,
        account,
        platform,
        uuid,
        packets,
        block_requests,
        ..
    } = record;
    let guest = quoted(&record.guest);
    write!(
        to,
        "{time:.3},{seconds:.6},{method},{account},{guest},{platform},{uuid}"
    )?;
    for value in [
        record.cpu_seconds,
        record.vcpu_seconds,
        record.emulator_seconds,
        record.iothread_seconds,
        record.vhost_seconds,
        record.softirq_seconds,
        record.backend_seconds,
    ] {
        write!(to, ",{value:.9}")?;
    }
    writeln!(to, ",{joules},{source},{packets},{block_requests}")
}

/// A field as RFC 4180 has it. A leading sign would make a spreadsheet run a guest's name as a
/// formula.
fn quoted(text: &str) -> String {
    let text = if text.starts_with(['=', '+', '-', '@']) {
        format!("'{text}")
    } else {
        text.to_owned()
    };
    if text.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_stay_one_field() {
        assert_eq!(quoted("web"), "web");
        assert_eq!(quoted("a,b"), "\"a,b\"");
        assert_eq!(quoted("a\"b"), "\"a\"\"b\"");
        assert_eq!(quoted("=cmd()"), "'=cmd()");
    }
}
