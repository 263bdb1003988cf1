// SPDX-License-Identifier: Apache-2.0
//! Series of the rows of `/proc/interrupts` and `/proc/softirqs`, and of their sum.

use super::counter::{Counter, Findings, Rule};
use super::series::Column;
use crate::{Instrument, ObserveError, Readings};
use std::path::{Path, PathBuf};
use vtax_core::Nanoseconds;
use vtax_core::owner::Owner;
use vtax_kernel::text;
use vtax_kernel::{CpuRow, KernelFile, cpu_columns, cpu_rows};

/// An upper bound for the interrupts that a processor takes in a microsecond.
const MOST_A_MICROSECOND: u64 = 10;

/// A table that is read repeatedly: a series for each row and one for their sum.
#[derive(Debug)]
pub struct CpuTable {
    name: &'static str,
    path: PathBuf,
    file: KernelFile,
    part: fn(&CpuRow<'_>) -> String,
    counts: fn(&CpuRow<'_>) -> bool,
    metric: fn(&str) -> String,
    total: (u64, Column),
    header: Vec<u8>,
    at: Nanoseconds,
    passes: u64,
    known: Vec<KnownRow>,
}

#[derive(Debug)]
struct KnownRow {
    label: Box<[u8]>,
    description: Box<[u8]>,
    counter: Counter,
    column: Column,
    metric: String,
}

impl CpuTable {
    /// Opens the table `name` below `proc`. `part` names a row, `counts` decides whether it belongs to the total, and
    /// `metric` converts its name to a metric.
    pub(super) fn open(
        proc: &Path,
        name: &'static str,
        total: &str,
        metric: fn(&str) -> String,
        part: fn(&CpuRow<'_>) -> String,
        counts: fn(&CpuRow<'_>) -> bool,
    ) -> Result<Self, ObserveError> {
        let path = proc.join(name);
        Ok(Self {
            name,
            file: KernelFile::open(&path)?,
            path,
            part,
            counts,
            metric,
            total: (0, Column::counter(&Owner::Host, total)),
            header: Vec::new(),
            at: Nanoseconds(0),
            passes: 0,
            known: Vec::new(),
        })
    }
}

impl Instrument for CpuTable {
    fn name(&self) -> &str {
        self.name
    }

    fn read(&mut self, now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        let path = self.path.as_path();
        let table = self.file.read()?;
        let header = text::lines(table).next().unwrap_or_default();
        let Some(columns) = cpu_columns(table) else {
            return Err(self
                .file
                .unexpected("expected a first line that names the CPUs")
                .into());
        };
        // A CPU that goes off- or online removes its counts from the sums or restores them; such a step is no sign of
        // interrupts.
        let rebase = header != self.header;
        if rebase {
            self.header.clear();
            self.header.extend_from_slice(header);
        }
        // Devices and processors come and go, so a plausibility limit on the count is the second guard.
        let span = now
            .saturating_since(self.at)
            .0
            .saturating_add(1_000_000_000);
        let most = (span / 1000).saturating_mul(MOST_A_MICROSECOND * columns as u64);
        self.at = now;
        let Self {
            part,
            counts,
            metric,
            total,
            passes,
            known,
            ..
        } = self;
        let mut findings = Findings::default();
        // Rows keep their order, so the row after the last one found is nearly always the next.
        let mut next = 0;
        for row in cpu_rows(table, columns) {
            let is_row = |known: &KnownRow| {
                *known.label == *row.label && *known.description == *row.description
            };
            let position = match known.get(next) {
                Some(candidate) if is_row(candidate) => next,
                _ => match known.iter().position(is_row) {
                    Some(position) => position,
                    None => {
                        let last_of_label = known.iter().any(|other| *other.label == *row.label);
                        let metric = distinct(metric(&part(&row)), row.label, known);
                        known.push(KnownRow {
                            label: row.label.into(),
                            description: row.description.into(),
                            counter: Counter::new(Rule::FROM_ZERO_IN_32_BITS),
                            column: Column::counter(&Owner::Host, metric.clone()),
                            metric,
                        });
                        // A reused number may carry the counts of its previous device.
                        if *passes > 0 && !last_of_label && counts(&row) {
                            total.0 = total.0.saturating_add(row.sum);
                        }
                        known.len() - 1
                    }
                },
            };
            next = position + 1;
            let Some(known) = known.get_mut(position) else {
                continue;
            };
            if rebase {
                known.counter.vanish();
            }
            let change = known.counter.advance_within(row.sum, most);
            findings.note(path, &known.metric, change);
            if counts(&row) {
                total.0 = total.0.saturating_add(change.gain());
            }
            if *passes == 0 && counts(&row) {
                total.0 = total.0.saturating_add(row.sum);
            }
        }
        // A removed row keeps its last value: totals never fall.
        for row in known {
            row.column.record_count(row.counter.total(), into);
        }
        total.1.record_count(total.0, into);
        *passes += 1;
        findings.end()
    }
}

/// Makes the names of two rows distinct by appending the later row's label.
fn distinct(metric: String, label: &[u8], known: &[KnownRow]) -> String {
    if known.iter().all(|other| other.metric != metric) {
        return metric;
    }
    let base = format!("{metric}.{}", metric_part(label));
    (0..=known.len())
        .map(|attempt| match attempt {
            0 => base.clone(),
            _ => format!("{base}.{attempt}"),
        })
        .find(|candidate| known.iter().all(|other| other.metric != *candidate))
        .unwrap_or(base)
}

/// A kernel name as one part of a metric's name: every character except letters, digits, `-`, `_` and `:` becomes `_`
/// (a dot would split the name), and at most 64 bytes are kept.
pub(crate) fn metric_part(name: &[u8]) -> String {
    name.trim_ascii()
        .iter()
        .take(64)
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b':' => char::from(*byte),
            _ => '_',
        })
        .collect()
}
