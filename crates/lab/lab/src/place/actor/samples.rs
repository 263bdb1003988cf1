// SPDX-License-Identifier: Apache-2.0
//! The samples of an actor. They stay on its host until the measured part ends, because the network is for the load.

use serde::{Deserialize, Serialize};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use vtax_core::owner::Owner;
use vtax_core::{Nanoseconds, Series};
use vtax_host::untrusted::shown;
use vtax_observe::{SeriesId, Sink};

/// The most values in a buffer: 640 MB of memory, or two hours of 300 series at 10 Hz.
pub(super) const MAX_VALUES: usize = 40_000_000;
/// The most series, and kinds of failures.
const MAX_SERIES: usize = 65_536;

/// Samples and failures of an actor.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RemoteSamples {
    /// The series.
    pub columns: Vec<Column>,
    /// Instruments that failed: name, number of failures, and the first reason.
    pub failures: Vec<(String, u64, String)>,
}

/// Samples beyond the limits.
#[derive(Debug, thiserror::Error)]
#[error("it sent more {0} than it can have sampled")]
pub(super) struct TooMuch(&'static str);

impl RemoteSamples {
    /// Returns the number of values.
    pub(super) fn count(&self) -> usize {
        self.columns.iter().map(|column| column.values.len()).sum()
    }

    /// Makes names printable, and cuts columns to as many times as values.
    pub(super) fn bounded(mut self) -> Self {
        self.columns.truncate(MAX_SERIES);
        for column in &mut self.columns {
            column.series.owner = shown(&column.series.owner.to_string()).into();
            column.series.metric = shown(&column.series.metric);
            let both = column.at.len().min(column.values.len());
            column.at.truncate(both);
            column.values.truncate(both);
        }
        self.failures.truncate(MAX_SERIES);
        for (instrument, _, why) in &mut self.failures {
            (*instrument, *why) = (shown(instrument), shown(why));
        }
        self
    }

    /// Appends the next part.
    ///
    /// # Errors
    /// When the sum has more values than `most`, or too many series.
    pub(super) fn append(&mut self, part: Self, most: usize) -> Result<(), TooMuch> {
        let too_much = |what| Err(TooMuch(what));
        if self.count().saturating_add(part.count()) > most {
            return too_much("values");
        }
        for column in part.columns {
            let same = |known: &&mut Column| {
                (&known.series.owner, &known.series.metric)
                    == (&column.series.owner, &column.series.metric)
            };
            // The parts of a column follow each other.
            match self.columns.last_mut().filter(same) {
                Some(known) => {
                    known.at.extend(column.at);
                    known.values.extend(column.values);
                }
                None => self.columns.push(column),
            }
        }
        self.failures.extend(part.failures);
        if self.columns.len() > MAX_SERIES || self.failures.len() > MAX_SERIES {
            return too_much("series");
        }
        Ok(())
    }

    /// Splits the samples into parts of at most `most` values. The last part has the failures.
    pub(super) fn parts(self, most: usize) -> (Vec<Self>, Self) {
        let mut parts = Vec::new();
        let mut part = Self::default();
        let mut room = most.max(1);
        for column in self.columns {
            let mut from = 0;
            while from < column.values.len() {
                if room == 0 {
                    parts.push(std::mem::take(&mut part));
                    room = most.max(1);
                }
                let to = column.values.len().min(from.saturating_add(room));
                part.columns.push(Column {
                    series: column.series.clone(),
                    at: column.at.get(from..to).unwrap_or_default().to_vec(),
                    values: column.values.get(from..to).unwrap_or_default().to_vec(),
                });
                room -= to - from;
                from = to;
            }
        }
        part.failures = self.failures;
        (parts, part)
    }
}

/// A series with its values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// The series. Its owner is one of the actor's host.
    pub series: Series,
    /// The times of the values, on the actor's clock.
    pub at: Vec<Nanoseconds>,
    /// The values.
    pub values: Vec<f64>,
}

impl Column {
    /// Returns the series for the trial's samples. The owner `actor` keeps its name; other owners get it as a prefix.
    pub fn series(&self, actor: &Owner) -> Series {
        let owner = match &self.series.owner {
            own if own == actor => own.clone(),
            other => other.on_machine_of(actor),
        };
        Series {
            owner,
            ..self.series.clone()
        }
    }
}

/// A buffer of readings, which clones share.
#[derive(Debug, Clone, Default)]
pub(super) struct SampleBuffer {
    buffer: Arc<Mutex<Columns>>,
}

#[derive(Debug, Default)]
struct Columns {
    /// The columns, by [`SeriesId`].
    columns: Vec<Option<Column>>,
    count: usize,
}

impl SampleBuffer {
    /// Empties the buffer and returns its columns.
    pub fn take(&self) -> Vec<Column> {
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *buffer)
            .columns
            .into_iter()
            .flatten()
            .collect()
    }
}

impl Sink for SampleBuffer {
    fn record(
        &mut self,
        id: SeriesId,
        series: &Series,
        at: Nanoseconds,
        value: f64,
    ) -> io::Result<()> {
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        if buffer.count >= MAX_VALUES {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        let index = id.0 as usize;
        if buffer.columns.len() <= index {
            buffer.columns.resize(index + 1, None);
        }
        // JSON has no infinities and no NaN.
        if !value.is_finite() {
            return Ok(());
        }
        if let Some(slot) = buffer.columns.get_mut(index) {
            let column = slot.get_or_insert_with(|| Column {
                series: series.clone(),
                at: Vec::new(),
                values: Vec::new(),
            });
            column.at.push(at);
            column.values.push(value);
            buffer.count += 1;
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn column(metric: &str, count: usize) -> Column {
        let numbers = || 0..u32::try_from(count).unwrap();
        Column {
            series: Series {
                owner: Owner::Host,
                metric: metric.to_owned(),
                unit: vtax_core::Unit::from_base(vtax_core::Base::Second),
                kind: vtax_core::SeriesKind::Counter,
                source: vtax_core::Source::Measured,
            },
            at: numbers().map(|at| Nanoseconds(at.into())).collect(),
            values: numbers().map(f64::from).collect(),
        }
    }

    #[test]
    fn more_than_can_have_been_sampled_is_refused() {
        let part = || RemoteSamples {
            columns: vec![column("a", 10)],
            ..RemoteSamples::default()
        };
        let mut whole = RemoteSamples::default();
        whole.append(part(), 20).unwrap();
        whole.append(part(), 20).unwrap();
        let refused = whole.append(part(), 20).unwrap_err().to_string();
        assert!(refused.contains("more values"), "{refused}");
    }

    #[test]
    fn a_series_has_as_many_times_as_values_and_a_name_that_can_be_shown() {
        let mut odd = column("\x1b[2J", 3);
        odd.at.pop();
        let bounded = RemoteSamples {
            columns: vec![odd],
            failures: vec![("\x1b".to_owned(), 1, "\x07".to_owned())],
        }
        .bounded();
        assert_eq!(bounded.columns[0].values.len(), 2);
        assert_eq!(bounded.columns[0].series.metric, " [2J");
        assert_eq!(bounded.failures, [(" ".to_owned(), 1, " ".to_owned())]);
    }

    proptest! {
        #[test]
        fn parts_put_together_are_the_whole(counts in proptest::collection::vec(1usize..50, 0..6), most in 1usize..40) {
            let columns = (0..).zip(&counts).map(|(number, count)| column(&format!("m{number}"), *count));
            let whole = RemoteSamples {
                columns: columns.collect(),
                failures: vec![("meter".to_owned(), 2, "gone".to_owned())],
            };
            let (parts, last) = whole.clone().parts(most);
            let mut again = RemoteSamples::default();
            for part in parts.into_iter().chain([last]) {
                prop_assert!(part.count() <= most);
                again.append(part, MAX_VALUES).unwrap();
            }
            prop_assert_eq!(again, whole);
        }
    }
}
