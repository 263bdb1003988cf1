// SPDX-License-Identifier: Apache-2.0
//! Metrics of a window's residency: time of processors in frequencies and idle states.

use std::collections::BTreeMap;
use vtax_core::metric::{self, Metric};
use vtax_core::owner::Owner;
use vtax_core::{Pattern, counter};
use vtax_observe::Snapshot;
use vtax_results::{IdleBin, IdleGaps};

/// A metric of a window. `part` is the member of a family; empty for a single metric.
#[derive(Debug, PartialEq)]
pub(super) struct ResidencyMetric {
    pub metric: &'static Metric,
    pub part: String,
    pub value: f64,
}

/// Returns the frequency in MHz in a metric's name `frequency.<MHz>_mhz.busy`; `None` for any other name.
pub fn busy_mhz(name: &str) -> Option<u64> {
    metric::FREQUENCY_BUSY.part(name)?.parse().ok()
}

/// Returns the residency metrics between two marks; empty on a host without such counters.
pub(super) fn between(begin: &Snapshot, end: &Snapshot, seconds: f64) -> Vec<ResidencyMetric> {
    let mut found = Vec::new();
    let mut add = |metric, part, value| {
        found.push(ResidencyMetric {
            metric,
            part,
            value,
        });
    };
    let set = processors(begin, end, seconds, counter::CPU_AT);
    for (mhz, value) in &set {
        add(metric::FREQUENCY_SET.metric(), mhz.to_string(), *value);
    }
    for (mhz, value) in processors(begin, end, seconds, counter::CPU_BUSY_AT) {
        add(metric::FREQUENCY_BUSY.metric(), mhz.to_string(), value);
    }
    let whole: f64 = set.values().sum();
    if whole > 0.0 {
        let sum: f64 = set.iter().map(|(mhz, value)| *mhz as f64 * value).sum();
        add(metric::FREQUENCY_MEAN, String::new(), sum / whole * 1e6);
    }
    for (state, value) in asleep(begin, end, seconds) {
        add(metric::IDLE_STATE.metric(), state, value);
    }
    found
}

/// Returns the idle gaps between two marks, by processor. An age is counted from the first gap that reaches it, so that it is 0
/// at a mark that lacks it.
pub(super) fn idle_gaps(begin: &Snapshot, end: &Snapshot) -> Vec<IdleGaps> {
    let mut found: BTreeMap<u32, BTreeMap<u64, IdleBin>> = BTreeMap::new();
    for (series, after) in end.iter().filter(|(series, _)| series.owner == Owner::Host) {
        let of = |family| Some((family, counter::idle_gap(family, &series.metric)?));
        let of = of(counter::CPU_IDLE_GAPS_TIME).or_else(|| of(counter::CPU_IDLE_GAPS));
        let Some((family, (processor, from_us))) = of else {
            continue;
        };
        let before = begin.get(&Owner::Host, &series.metric);
        let advance = after - before.map_or(0.0, |before| before.value);
        let bins = found.entry(processor).or_default();
        let bin = bins.entry(from_us).or_default();
        bin.from_us = from_us;
        if family == counter::CPU_IDLE_GAPS {
            bin.gaps = advance.max(0.0).round() as u64
        } else {
            bin.seconds = advance.max(0.0) / 1e9
        }
    }
    // A processor that was never idle between the marks has no bins: it was recorded.
    let of_processors = found.into_iter().map(|(processor, bins)| IdleGaps {
        processor,
        bins: bins
            .into_values()
            .filter(|bin| bin.gaps > 0 || bin.seconds > 0.0)
            .collect(),
    });
    of_processors.collect()
}

/// Returns the mean number of processors in each idle state.
fn asleep(begin: &Snapshot, end: &Snapshot, seconds: f64) -> BTreeMap<String, f64> {
    let mut asleep = BTreeMap::new();
    for (series, _) in end.iter().filter(|(series, _)| series.owner == Owner::Host) {
        let Some(state) = counter::idle_state(&series.metric) else {
            continue;
        };
        if let Some(advanced) = end.since(begin, &series.owner, &series.metric) {
            *asleep.entry(state.to_owned()).or_default() += advanced.value / 1e9 / seconds;
        }
    }
    asleep
}

/// Returns the advance of the host's counters of a family, in seconds per second, by frequency in MHz.
fn processors(
    begin: &Snapshot,
    end: &Snapshot,
    seconds: f64,
    family: Pattern,
) -> BTreeMap<u64, f64> {
    let counters = end.iter().filter_map(|(series, _)| {
        let khz = family.part(&series.metric)?;
        let advanced = end.since(begin, &series.owner, &series.metric)?.value;
        let mhz = khz.parse::<u64>().ok()? / 1000;
        (series.owner == Owner::Host).then_some((mhz, advanced / 1e9 / seconds))
    });
    counters.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_core::{Base, Nanoseconds, Series, SeriesKind, Source, Unit};
    use vtax_observe::Readings;

    fn snapshot(seconds: u64, counters: &[(String, f64)]) -> Snapshot {
        let mut readings = Readings::default();
        for (metric, value) in counters {
            let id = readings.register(Series {
                owner: Owner::Host,
                metric: metric.clone(),
                unit: Unit::from_base(Base::Nanosecond),
                kind: SeriesKind::Counter,
                source: Source::Measured,
            });
            readings.record(id, value * 1e9);
        }
        Snapshot::from_readings(Nanoseconds(seconds * 1_000_000_000), &readings)
    }

    #[test]
    fn times_become_processors_and_a_mean_frequency() {
        let at = |part| counter::CPU_AT.fill(part);
        let begin = snapshot(
            0,
            &[
                (at(2_000_000), 5.0),
                (at(1_000_000), 1.0),
                (counter::CPU_BUSY_AT.fill(1_000_000), 0.5),
            ],
        );
        let end = snapshot(
            4,
            &[
                (at(2_000_000), 6.0),
                (at(1_000_000), 4.0),
                (counter::CPU_BUSY_AT.fill(1_000_000), 2.5),
            ],
        );
        let found: BTreeMap<String, f64> = between(&begin, &end, 4.0)
            .into_iter()
            .map(|found| (Pattern(found.metric.name).fill(found.part), found.value))
            .collect();
        let expected = [
            ("frequency.1000_mhz", 0.75),
            ("frequency.1000_mhz.busy", 0.5),
            ("frequency.2000_mhz", 0.25),
            ("frequency.mean", 1.25e9),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value));
        assert_eq!(found, BTreeMap::from(expected));
    }

    #[test]
    fn times_in_idle_states_are_summed_over_processors() {
        let at = counter::cpu_idle_in;
        let begin = snapshot(
            0,
            &[(at(0, "C1"), 5.0), (at(1, "C1"), 1.0), (at(1, "C6"), 0.0)],
        );
        let end = snapshot(
            4,
            &[(at(0, "C1"), 6.0), (at(1, "C1"), 4.0), (at(1, "C6"), 2.0)],
        );
        let found: Vec<(String, f64)> = between(&begin, &end, 4.0)
            .into_iter()
            .map(|found| (Pattern(found.metric.name).fill(found.part), found.value))
            .collect();
        let expected = [("idle.C1".to_owned(), 1.0), ("idle.C6".to_owned(), 0.5)];
        assert_eq!(found, expected);
    }

    #[test]
    fn idle_gaps_of_each_processor_are_those_between_the_marks() {
        let time = |cpu, from| (counter::CPU_IDLE_GAPS_TIME.name(&[cpu, from]), 0.5);
        let count = |cpu, from, count: f64| {
            let name = counter::CPU_IDLE_GAPS.name(&[cpu, from]);
            // The helper multiplies each value.
            (name, count / 1e9)
        };
        let begin = [
            time("0", "64"),
            count("0", "64", 7.0),
            time("0", "1"),
            count("0", "1", 2.0),
            time("11", "1"),
            count("11", "1", 4.0),
        ];
        let begin = snapshot(0, &begin);
        let end = [
            (time("0", "64").0, 2.0),
            count("0", "64", 9.0),
            time("0", "1"),
            count("0", "1", 2.0),
            // The first gap of this age, and the first of this processor, come after the first mark.
            time("0", "128"),
            count("0", "128", 1.0),
            time("10", "0"),
            count("10", "0", 3.0),
            ("cpu.0.busy_ns".to_owned(), 1.0),
            // No gap after the first mark.
            time("11", "1"),
            count("11", "1", 4.0),
        ];
        let end = snapshot(4, &end);
        let bin = |from_us, gaps, seconds| IdleBin {
            from_us,
            gaps,
            seconds,
        };
        let of = |processor, bins| IdleGaps { processor, bins };
        assert_eq!(
            idle_gaps(&begin, &end),
            [
                of(0, vec![bin(64, 2, 1.5), bin(128, 1, 0.5)]),
                of(10, vec![bin(0, 3, 0.5)]),
                of(11, Vec::new())
            ]
        );
    }

    #[test]
    fn a_host_that_counts_no_frequencies_has_no_such_metrics() {
        let empty = snapshot(0, &[("cpu.idle_ns".to_owned(), 1.0)]);
        assert_eq!(between(&empty, &empty, 1.0), []);
    }

    #[test]
    fn the_name_of_a_metric_says_its_frequency() {
        assert_eq!(busy_mhz("frequency.1867_mhz.busy"), Some(1867));
        assert_eq!(busy_mhz("frequency.1867_mhz"), None);
        assert_eq!(busy_mhz("frequency.mean"), None);
    }
}
