// SPDX-License-Identifier: Apache-2.0
//! The sink that writes the samples of a trial.

use crate::place::actor::RemoteSamples;
use crate::place::clocks::Alignment;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vtax_core::owner::Owner;
use vtax_core::{Nanoseconds, Series};
use vtax_observe::{SeriesId, Sink};
use vtax_results::{ResultsError, SampleSeriesId, SampleWriter};

/// Writes samples into `samples.parquet`. Clones share the file, and the last clone finishes it, because samples
/// of a remote actor are added after the others.
#[derive(Clone)]
pub(super) struct SampleSink {
    writer: Arc<Mutex<SampleWriter>>,
    ids: HashMap<SeriesId, SampleSeriesId>,
}

impl SampleSink {
    pub(super) fn new(writer: SampleWriter) -> Self {
        Self {
            writer: Arc::new(Mutex::new(writer)),
            ids: HashMap::new(),
        }
    }

    /// Adds the samples of a remote actor, with their times converted to this host's clock.
    pub(super) fn add(
        &self,
        gathered: &RemoteSamples,
        actor: &Owner,
        clocks: &Alignment,
    ) -> Result<(), ResultsError> {
        let mut writer = self.writer();
        for column in &gathered.columns {
            let id = writer.register(&column.series(actor));
            for (at, value) in column.at.iter().zip(&column.values) {
                writer.push(id, clocks.ours(*at), *value)?;
            }
        }
        Ok(())
    }

    fn writer(&self) -> MutexGuard<'_, SampleWriter> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the file when this is the last clone.
    pub(super) fn close(self) -> Result<(), ResultsError> {
        match Arc::into_inner(self.writer) {
            Some(writer) => writer
                .into_inner()
                .unwrap_or_else(PoisonError::into_inner)
                .finish(),
            None => Ok(()),
        }
    }
}

impl Sink for SampleSink {
    fn record(
        &mut self,
        id: SeriesId,
        series: &Series,
        at: Nanoseconds,
        value: f64,
    ) -> io::Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let stored = *self
            .ids
            .entry(id)
            .or_insert_with(|| writer.register(series));
        writer.push(stored, at, value).map_err(io::Error::other)
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Converts a counter's difference to nanoseconds, clamped to the range of `u64`.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to what fits"
)]
pub(super) fn nanoseconds(value: f64) -> Nanoseconds {
    Nanoseconds(value.clamp(0.0, u64::MAX as f64) as u64)
}
