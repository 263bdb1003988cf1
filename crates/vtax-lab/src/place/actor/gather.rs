//! What an actor samples, kept there until the trial is over: the network is for the load.

use serde::{Deserialize, Serialize};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use vtax_observe::{Kind, Series, SeriesId, Sink};
use vtax_report::results::{SampleKind, SampleSeries};
use vtax_units::{Nanoseconds, Source, Unit};

/// The most values that are kept: 640 MB of memory, or two hours of 300 series at 10 Hz.
const MOST: usize = 40_000_000;

/// What was sampled.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Gathered {
    /// The series.
    pub columns: Vec<Column>,
    /// What could not be read: instrument, how often, and why at first.
    pub failures: Vec<(String, u64, String)>,
}

/// A series with its values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// Whose it is there: `host`, `client`, `vtax`.
    pub owner: String,
    /// What it is.
    pub metric: String,
    /// The unit of its values.
    pub unit: Unit,
    /// Whether it is a counter; else a gauge.
    pub is_counter: bool,
    /// Measured, modelled or emulated.
    pub source: Source,
    /// When, on the actor's clock.
    pub at: Vec<Nanoseconds>,
    /// The values.
    pub values: Vec<f64>,
}

impl Column {
    /// The series as ours: what the client does is the client's, all else is its host's.
    pub fn series(&self, client: &str) -> SampleSeries {
        let owner = match self.owner.as_str() {
            own if own == client => own.to_owned(),
            other => format!("{client}.{other}"),
        };
        SampleSeries {
            owner,
            metric: self.metric.clone(),
            unit: self.unit,
            kind: if self.is_counter {
                SampleKind::Counter
            } else {
                SampleKind::Gauge
            },
            source: self.source,
        }
    }
}

/// Keeps readings; clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Keeper {
    kept: Arc<Mutex<Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    /// By [`SeriesId`].
    columns: Vec<Option<Column>>,
    count: usize,
}

impl Keeper {
    /// What was kept.
    pub fn take(&self) -> Vec<Column> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *kept)
            .columns
            .into_iter()
            .flatten()
            .collect()
    }
}

impl Sink for Keeper {
    fn record(
        &mut self,
        id: SeriesId,
        series: &Series,
        at: Nanoseconds,
        value: f64,
    ) -> io::Result<()> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.count >= MOST {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        let index = id.0 as usize;
        if kept.columns.len() <= index {
            kept.columns.resize(index + 1, None);
        }
        // JSON knows no other numbers.
        if !value.is_finite() {
            return Ok(());
        }
        if let Some(slot) = kept.columns.get_mut(index) {
            let column = slot.get_or_insert_with(|| Column {
                owner: series.owner.clone(),
                metric: series.metric.clone(),
                unit: series.unit,
                is_counter: series.kind == Kind::Counter,
                source: series.source,
                at: Vec::new(),
                values: Vec::new(),
            });
            column.at.push(at);
            column.values.push(value);
            kept.count += 1;
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}
