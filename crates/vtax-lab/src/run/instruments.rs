//! What is read during a trial, and where the readings go.

use crate::LabError;
use crate::roots::Roots;
use std::collections::HashMap;
use std::io;
use vtax_observe::{Instrument, Kind, Series, SeriesId, Sink, Subject, counters};
use vtax_report::results::{SampleKind, SampleSeries, SampleSeriesId, SampleWriter};
use vtax_units::{Nanoseconds, Source};

/// Every counter of the host, the target and the client, and what is not to be had with why.
pub(super) fn all(
    roots: &Roots,
    target: Subject,
    client: Subject,
    meters: &Meters,
) -> (Vec<Box<dyn Instrument>>, Vec<String>) {
    let (mut instruments, absent) = counters::for_host(&roots.proc, &roots.sys);
    let mut absent: Vec<String> = absent.iter().map(ToString::to_string).collect();
    for subject in [target, client] {
        instruments.extend(counters::for_subject(&subject, &roots.proc, &roots.sys));
    }
    for open in &meters.open {
        match open() {
            Ok(meter) => instruments.push(meter),
            Err(reason) => absent.push(reason),
        }
    }
    (instruments, absent)
}
