// SPDX-License-Identifier: Apache-2.0
//! The data model of observation: instruments produce readings, readings belong to series.

use crate::ObserveError;
use std::collections::HashMap;
use std::io;
use vtax_core::owner::Owner;
use vtax_core::{Nanoseconds, Quantity, Series, Source};

/// A handle to a series within one [`Readings`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeriesId(pub u32);

/// Collects the readings of one pass over the instruments. Instruments register each series
/// once, keep the [`SeriesId`], and afterwards record without allocating.
#[derive(Debug, Default)]
pub struct Readings {
    series: Vec<Series>,
    ids: HashMap<(Owner, String), SeriesId>,
    values: Vec<Option<f64>>,
}

impl Readings {
    /// Returns the handle of `series` and registers it at first use. Owner and metric identify a series; the unit, kind
    /// and source of the first registration are kept.
    pub fn register(&mut self, series: Series) -> SeriesId {
        let key = (series.owner.clone(), series.metric.clone());
        if let Some(id) = self.ids.get(&key) {
            return *id;
        }
        let id = SeriesId(u32::try_from(self.series.len()).unwrap_or(u32::MAX));
        self.series.push(series);
        self.values.push(None);
        self.ids.insert(key, id);
        id
    }

    /// Records this pass's value of a series; an unknown handle is ignored.
    pub fn record(&mut self, id: SeriesId, value: f64) {
        if let Some(slot) = self.values.get_mut(id.0 as usize) {
            *slot = Some(value);
        }
    }

    /// Every registered series, in order of its handle.
    pub fn series(&self) -> &[Series] {
        &self.series
    }

    /// The values recorded in this pass.
    pub fn values(&self) -> impl Iterator<Item = (SeriesId, &Series, f64)> + '_ {
        let series = (0..).map(SeriesId).zip(&self.series);
        series
            .zip(&self.values)
            .filter_map(|((id, series), value)| Some((id, series, (*value)?)))
    }

    /// Clears the values and keeps the registrations, for the next pass.
    pub fn clear_values(&mut self) {
        self.values.fill(None);
    }
}

/// A source that can be read: a counter source or a meter.
pub trait Instrument: Send {
    /// A short name for messages, such as `cgroup target` or `powercap`.
    fn name(&self) -> &str;

    /// Reads everything once at `now` and records it.
    ///
    /// # Errors
    /// When the source is gone or unreadable. The observer counts the failure, keeps the first message for the report
    /// and continues with the other instruments.
    fn read(&mut self, now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError>;
}

/// Receives every reading, in time order, on the sampling thread.
pub trait Sink: Send {
    /// One reading of one series.
    ///
    /// # Errors
    /// When it cannot be stored; sampling stops and [`crate::Observer::stop`] returns the error.
    fn record(
        &mut self,
        id: SeriesId,
        series: &Series,
        at: Nanoseconds,
        value: f64,
    ) -> io::Result<()>;

    /// Called after the last reading.
    ///
    /// # Errors
    /// When buffered readings cannot be stored.
    fn finish(&mut self) -> io::Result<()>;
}

/// All values that were read in one pass.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// The time of the pass, on the trial's clock.
    pub at: Nanoseconds,
    values: HashMap<(Owner, String), (f64, Series)>,
}

impl Snapshot {
    /// The current values of `readings`, taken at `at`.
    pub fn from_readings(at: Nanoseconds, readings: &Readings) -> Self {
        let values = readings
            .values()
            .map(|(_, series, value)| {
                let key = (series.owner.clone(), series.metric.clone());
                (key, (value, series.clone()))
            })
            .collect();
        Self { at, values }
    }

    /// The value of a series, with its unit.
    pub fn get(&self, owner: &Owner, metric: &str) -> Option<Quantity> {
        let (value, series) = self.values.get(&(owner.clone(), metric.to_owned()))?;
        Some(Quantity::new(*value, series.unit))
    }

    /// The advance of a counter since `earlier`; `None` where either snapshot lacks it.
    pub fn since(&self, earlier: &Self, owner: &Owner, metric: &str) -> Option<Quantity> {
        let after = self.get(owner, metric)?;
        let before = earlier.get(owner, metric)?;
        Some(Quantity::new(after.value - before.value, after.unit))
    }

    /// The source flag of a value.
    pub fn source(&self, owner: &Owner, metric: &str) -> Option<Source> {
        let (_, series) = self.values.get(&(owner.clone(), metric.to_owned()))?;
        Some(series.source)
    }

    /// Every series with its value, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&Series, f64)> + '_ {
        self.values.values().map(|(value, series)| (series, *value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_core::{Base, SeriesKind, Unit};

    fn series(metric: &str) -> Series {
        Series {
            owner: Owner::Target,
            metric: metric.to_owned(),
            unit: Unit::from_base(Base::Nanosecond),
            kind: SeriesKind::Counter,
            source: Source::Measured,
        }
    }

    #[test]
    fn a_counter_that_appears_after_the_first_mark_gives_no_step_instead_of_a_spike() {
        let mut readings = Readings::default();
        let old = readings.register(series("old"));
        readings.record(old, 1.0);
        let before = Snapshot::from_readings(Nanoseconds(1), &readings);
        let new = readings.register(series("new"));
        readings.record(old, 3.0);
        readings.record(new, 1e12);
        let after = Snapshot::from_readings(Nanoseconds(2), &readings);
        assert_eq!(after.since(&before, &Owner::Target, "new"), None);
        let step = after.since(&before, &Owner::Target, "old");
        assert_eq!(
            step,
            Some(Quantity::new(2.0, Unit::from_base(Base::Nanosecond)))
        );
    }

    #[test]
    fn a_value_that_was_not_read_in_a_pass_is_missing_and_not_the_last_one() {
        let mut readings = Readings::default();
        let id = readings.register(series("x"));
        readings.record(id, 1.0);
        readings.clear_values();
        assert_eq!(readings.values().count(), 0);
        assert_eq!(readings.register(series("x")), id, "registered once");
        readings.record(SeriesId(99), 1.0);
        assert_eq!(readings.values().count(), 0);
    }
}
