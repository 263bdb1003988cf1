// SPDX-License-Identifier: Apache-2.0
//! One output column of an instrument: its registration and, for counters, the guard that keeps the total from falling.

use super::counter::{Change, Counter, Rule};
use crate::{Readings, SeriesId};
use vtax_core::owner::Owner;
use vtax_core::{Series, SeriesKind, Source, counter};

/// A column of readings, registered with its first value.
#[derive(Debug)]
pub struct Column {
    series: Series,
    id: Option<SeriesId>,
}

impl Column {
    /// A column that never decreases.
    pub fn counter(owner: &Owner, metric: impl Into<String>) -> Self {
        Self::new(owner, metric.into(), SeriesKind::Counter)
    }

    /// A column of instantaneous values.
    pub fn gauge(owner: &Owner, metric: impl Into<String>) -> Self {
        Self::new(owner, metric.into(), SeriesKind::Gauge)
    }

    fn new(owner: &Owner, metric: String, kind: SeriesKind) -> Self {
        Self {
            series: Series {
                unit: counter::unit(&metric),
                owner: owner.clone(),
                metric,
                kind,
                source: Source::Measured,
            },
            id: None,
        }
    }

    /// Records this pass's value.
    pub fn record(&mut self, value: f64, into: &mut Readings) {
        let id = match self.id {
            Some(id) => id,
            None => *self.id.insert(into.register(self.series.clone())),
        };
        into.record(id, value);
    }

    /// Records an integer.
    pub fn record_count(&mut self, value: u64, into: &mut Readings) {
        self.record(value as f64, into);
    }
}

/// A column fed by a raw counter of the kernel.
#[derive(Debug)]
pub struct GuardedColumn {
    column: Column,
    counter: Counter,
}

impl GuardedColumn {
    /// `rule` lists the changes that the raw values of this source may make.
    pub fn new(owner: &Owner, metric: impl Into<String>, rule: Rule) -> Self {
        Self {
            column: Column::counter(owner, metric),
            counter: Counter::new(rule),
        }
    }

    /// The metric's name.
    pub fn metric(&self) -> &str {
        &self.column.series.metric
    }

    /// Takes a raw reading and records the total.
    pub fn record(&mut self, raw: u64, into: &mut Readings) -> Change {
        let change = self.advance_within(raw, u64::MAX);
        self.publish(into);
        change
    }

    /// Takes a raw reading of a source that can have grown by at most `most`.
    pub fn advance_within(&mut self, raw: u64, most: u64) -> Change {
        self.counter.advance_within(raw, most)
    }

    /// Records the total, if there was any reading.
    pub fn publish(&mut self, into: &mut Readings) {
        if self.counter.has_begun() {
            self.column.record_count(self.counter.total(), into);
        }
    }

    /// The first reading plus all gains since.
    pub fn total(&self) -> u64 {
        self.counter.total()
    }
}
