// SPDX-License-Identifier: Apache-2.0
//! The rates of guests in a recording, or in the lines of `vtax top --json`.

use super::GuestRates;
use crate::store::{self, StoreError};
use crate::summary::{Guest, Recording};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use vtax_charge::Stage;

/// The bytes of a file of lines that are read.
const MOST_BYTES: u64 = 1 << 30;

/// The reason why rates cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum AdviseError {
    /// A recording cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file cannot be read.
    #[error("cannot read {}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// A line is no output of `vtax top --json`.
    #[error(
        "{}, line {line}: {cause}; give a recording of `vtax record`, or lines of `vtax top --json`",
        path.display()
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// The cause.
        cause: serde_json::Error,
    },
}

/// A line of `vtax top --json`; further fields are ignored.
#[derive(Deserialize)]
struct Line {
    interval_seconds: f64,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    party: String,
    name: String,
    platform: String,
    cpu_percent: f64,
    #[serde(default)]
    stage_cpu_percent: BTreeMap<String, Option<f64>>,
    received_packets_per_second: Option<f64>,
    sent_packets_per_second: Option<f64>,
    exits_per_second: Option<f64>,
}

/// Reads the rates of each guest of a recording, or of a file with lines of `vtax top --json` (`-`: standard input), in the
/// order of their cost.
///
/// # Errors
/// When it cannot be read, or is neither.
pub fn read(path: &Path) -> Result<Vec<GuestRates>, AdviseError> {
    let mut rates = if store::is_recording(path) {
        Recording::read(path)?.guests.iter().map(of_guest).collect()
    } else {
        of_lines(path)?
    };
    rates.sort_by(|a, b| b.cpu.total_cmp(&a.cpu));
    Ok(rates)
}

fn of_guest(guest: &Guest) -> GuestRates {
    let used = &guest.total;
    let seconds = used.present.as_secs_f64();
    let rate = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
    let stage = |stage| rate(used.stages.get(stage).as_secs_f64());
    GuestRates {
        guest: guest.name.clone(),
        platform: guest.platform.clone(),
        seconds,
        cpu: rate(used.cpu().as_secs_f64()),
        vcpu: stage(Stage::Vcpu),
        emulator: stage(Stage::Emulator) + stage(Stage::Iothread),
        vhost: stage(Stage::Vhost),
        softirq: stage(Stage::Softirq),
        received: rate(used.exchanges.received as f64),
        sent: rate(used.exchanges.sent as f64),
        exits: used.exchanges.exits.map(|exits| rate(exits as f64)),
    }
}

fn of_lines(path: &Path) -> Result<Vec<GuestRates>, AdviseError> {
    let failed = |cause| AdviseError::Read {
        path: path.to_owned(),
        cause,
    };
    let input: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(std::fs::File::open(path).map_err(failed)?)
    };
    let mut guests: BTreeMap<(String, String), GuestRates> = BTreeMap::new();
    for (number, line) in BufReader::new(input.take(MOST_BYTES)).lines().enumerate() {
        let line = line.map_err(failed)?;
        if line.trim().is_empty() {
            continue;
        }
        let line: Line = serde_json::from_str(&line).map_err(|cause| AdviseError::Line {
            path: path.to_owned(),
            line: number + 1,
            cause,
        })?;
        for row in line.rows.into_iter().filter(|row| row.party == "guest") {
            let key = (row.name.clone(), row.platform.clone());
            let rates = of_row(row, line.interval_seconds.max(0.0));
            match guests.get_mut(&key) {
                Some(sum) => add(sum, &rates),
                None => drop(guests.insert(key, rates)),
            }
        }
    }
    Ok(guests.into_values().collect())
}

fn of_row(row: Row, seconds: f64) -> GuestRates {
    let stage = |stage: Stage| {
        let percent = row.stage_cpu_percent.get(stage.name());
        percent.copied().flatten().unwrap_or(0.0) / 100.0
    };
    GuestRates {
        seconds,
        cpu: row.cpu_percent / 100.0,
        vcpu: stage(Stage::Vcpu),
        emulator: stage(Stage::Emulator) + stage(Stage::Iothread),
        vhost: stage(Stage::Vhost),
        softirq: stage(Stage::Softirq),
        received: row.received_packets_per_second.unwrap_or(0.0),
        sent: row.sent_packets_per_second.unwrap_or(0.0),
        exits: row.exits_per_second,
        guest: row.name,
        platform: row.platform,
    }
}

/// Adds an interval: rates are means over time.
fn add(sum: &mut GuestRates, more: &GuestRates) {
    let total = sum.seconds + more.seconds;
    if total <= 0.0 {
        return;
    }
    let mean = |a: f64, b: f64| (a * sum.seconds + b * more.seconds) / total;
    let exits = sum.exits.zip(more.exits).map(|(a, b)| mean(a, b));
    *sum = GuestRates {
        seconds: total,
        cpu: mean(sum.cpu, more.cpu),
        vcpu: mean(sum.vcpu, more.vcpu),
        emulator: mean(sum.emulator, more.emulator),
        vhost: mean(sum.vhost, more.vhost),
        softirq: mean(sum.softirq, more.softirq),
        received: mean(sum.received, more.received),
        sent: mean(sum.sent, more.sent),
        exits,
        guest: sum.guest.clone(),
        platform: sum.platform.clone(),
    };
}
