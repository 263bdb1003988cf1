// SPDX-License-Identifier: Apache-2.0
//! A meter's handle to one of its series, valid for any collection of readings.

use super::{joules_metric, watts_metric};
use vtax_core::owner::Owner;
use vtax_core::{Base, Joules, Series, SeriesKind, Source, Unit, Watts};
use vtax_observe::{Readings, SeriesId};

/// One series of a meter. Keeps its handle and checks it, because a meter may be read into one collection during a
/// probe and into another during a trial.
#[derive(Debug)]
pub(super) struct MeterSeries {
    series: Series,
    id: Option<SeriesId>,
}

impl MeterSeries {
    /// The series of a domain's cumulative joules.
    pub fn joules(meter: &str, domain: &str, source: Source) -> Self {
        Self::new(
            joules_metric(meter, domain),
            Base::Joule,
            SeriesKind::Counter,
            source,
        )
    }

    /// The series of a domain's instantaneous watts.
    pub fn watts(meter: &str, domain: &str, source: Source) -> Self {
        Self::new(
            watts_metric(meter, domain),
            Base::Watt,
            SeriesKind::Gauge,
            source,
        )
    }

    fn new(metric: String, base: Base, kind: SeriesKind, source: Source) -> Self {
        let series = Series {
            owner: Owner::Host,
            metric,
            unit: Unit::from_base(base),
            kind,
            source,
        };
        Self { series, id: None }
    }

    /// Records this pass's joules.
    pub fn record_joules(&mut self, into: &mut Readings, value: Joules) {
        self.record(into, value.0);
    }

    /// Records this pass's watts.
    pub fn record_watts(&mut self, into: &mut Readings, value: Watts) {
        self.record(into, value.0);
    }

    fn record(&mut self, into: &mut Readings, value: f64) {
        let known = self
            .id
            .filter(|id| into.series().get(id.0 as usize) == Some(&self.series));
        let id = known.unwrap_or_else(|| into.register(self.series.clone()));
        self.id = Some(id);
        into.record(id, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_finds_its_place_in_every_collection_it_is_recorded_into() {
        let mut other = MeterSeries::joules("a", "x", Source::Measured);
        let mut series = MeterSeries::joules("b", "y", Source::Measured);
        let (mut probe, mut trial) = (Readings::default(), Readings::default());
        series.record_joules(&mut probe, Joules(1.0));
        other.record_joules(&mut trial, Joules(7.0));
        series.record_joules(&mut trial, Joules(2.0));
        let values: Vec<f64> = trial.values().map(|(.., value)| value).collect();
        assert_eq!(values, [7.0, 2.0]);
    }
}
