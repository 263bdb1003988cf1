//! What is read during a trial, and where the readings go.

use crate::place::actor::RemoteSamples;
use crate::place::clocks::Alignment;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vtax_core::Nanoseconds;
use vtax_host::roots::Roots;
use vtax_observe::charge::SubjectSoftirqs;
use vtax_observe::counters::{self, Grants};
use vtax_observe::{Instrument, Kind, Series, SeriesId, Sink, Subject};
use vtax_report::results::{ResultsError, SampleKind, SampleSeries, SampleSeriesId, SampleWriter};

/// Every counter of the host and of the actors, and what is not to be had with why. Where guests
/// are charged, BPF looks on for that or not at all: twice would cost twice.
pub(super) fn all(
    roots: &Roots,
    actors: &[Subject],
    is_charged: bool,
) -> (Vec<Box<dyn Instrument>>, Vec<String>) {
    let (mut instruments, absent) = counters::for_host(&roots.proc, &roots.sys);
    for subject in actors {
        instruments.extend(counters::for_subject(subject, &roots.proc, &roots.sys));
    }
    let mut absent: Vec<String> = absent.iter().map(ToString::to_string).collect();
    if is_charged {
        return (instruments, absent);
    }
    let subjects: Vec<&Subject> = actors.iter().collect();
    match SubjectSoftirqs::open(&subjects, &roots.proc, &roots.sys) {
        Ok(traced) => instruments.push(Box::new(traced)),
        Err(error) => absent.push(error.to_string()),
    }
    match Grants::open(&subjects, &roots.sys).transpose() {
        Some(Ok(grants)) => instruments.push(Box::new(grants)),
        Some(Err(error)) => absent.push(error.to_string()),
        None => {}
    }
    (instruments, absent)
}

/// Carries readings from the sampling thread into `samples.parquet`. Clones are of the same file, and
/// the last one finishes it: an actor elsewhere adds its samples when the others are there.
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

    /// Adds what an actor elsewhere gathered for `client`, at these times on our clock.
    pub(super) fn add(
        &self,
        gathered: &RemoteSamples,
        client: &str,
        clocks: &Alignment,
    ) -> Result<(), ResultsError> {
        let mut writer = self.writer();
        for column in &gathered.columns {
            let id = writer.register(&column.series(client));
            for (at, value) in column.at.iter().zip(&column.values) {
                writer.push(id, clocks.ours(*at), *value)?;
            }
        }
        Ok(())
    }

    fn writer(&self) -> MutexGuard<'_, SampleWriter> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the file, where this is the last clone.
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
        let stored = *self.ids.entry(id).or_insert_with(|| {
            writer.register(&SampleSeries {
                owner: series.owner.clone(),
                metric: series.metric.clone(),
                unit: series.unit,
                kind: match series.kind {
                    Kind::Counter => SampleKind::Counter,
                    Kind::Gauge => SampleKind::Gauge,
                },
                source: series.source,
            })
        });
        writer.push(stored, at, value).map_err(io::Error::other)
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Nanoseconds of a counter's difference.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to what fits"
)]
pub(super) fn nanoseconds(value: f64) -> Nanoseconds {
    Nanoseconds(value.clamp(0.0, u64::MAX as f64) as u64)
}
