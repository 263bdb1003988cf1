//! How long processors were at which frequency and in which idle state in a window, as metrics.

use std::collections::BTreeMap;
use vtax_core::{Base, Unit};
use vtax_observe::{Snapshot, metric};

/// A metric of a window.
#[derive(Debug, PartialEq)]
pub(super) struct ResidencyMetric {
    pub name: String,
    pub title: String,
    pub value: f64,
    pub unit: Unit,
}

/// `frequency.<MHz>_mhz`: processors set to that frequency, at work or not.
fn set_to(mhz: u64) -> String {
    format!("frequency.{mhz}_mhz")
}

/// `frequency.<MHz>_mhz.busy`: processors at work at that frequency.
fn busy_at(mhz: u64) -> String {
    format!("{}.busy", set_to(mhz))
}

/// The frequency in MHz that a metric `frequency.<MHz>_mhz.busy` is about; `None` for any other.
pub fn busy_mhz(name: &str) -> Option<u64> {
    let rest = name.strip_prefix("frequency.")?;
    rest.strip_suffix("_mhz.busy")?.parse().ok()
}

/// What two marks say of frequencies: nothing on a host that does not count them.
pub(super) fn between(begin: &Snapshot, end: &Snapshot, seconds: f64) -> Vec<ResidencyMetric> {
    let cores = |name, title, value| ResidencyMetric {
        name,
        title,
        value,
        unit: Unit::of(Base::Core),
    };
    let set = processors(begin, end, seconds, metric::CPU_AT);
    let busy = processors(begin, end, seconds, metric::CPU_BUSY_AT);
    let mut found = Vec::new();
    for (mhz, value) in &set {
        let title = format!("processors set to {mhz} MHz");
        found.push(cores(set_to(*mhz), title, *value));
    }
    for (mhz, value) in &busy {
        let title = format!("processors kept busy at {mhz} MHz");
        found.push(cores(busy_at(*mhz), title, *value));
    }
    let whole: f64 = set.values().sum();
    if whole > 0.0 {
        let sum: f64 = set.iter().map(|(mhz, value)| *mhz as f64 * value).sum();
        found.push(ResidencyMetric {
            name: "frequency.mean".to_owned(),
            title: "mean frequency that processors were set to".to_owned(),
            value: sum / whole * 1e6,
            unit: Unit::per(Base::Cycle, Base::Second),
        });
    }
    for (state, value) in asleep(begin, end, seconds) {
        let title = format!("processors in the idle state {state}");
        found.push(cores(format!("idle.{state}"), title, value));
    }
    found
}

/// By idle state, how many processors were in it.
fn asleep(begin: &Snapshot, end: &Snapshot, seconds: f64) -> BTreeMap<String, f64> {
    let mut asleep = BTreeMap::new();
    for (series, _) in end.iter().filter(|(series, _)| series.owner == "host") {
        let Some(state) = metric::idle_state(&series.metric) else {
            continue;
        };
        if let Some(advanced) = end.since(begin, &series.owner, &series.metric) {
            *asleep.entry(state.to_owned()).or_default() += advanced.value / 1e9 / seconds;
        }
    }
    asleep
}

/// By frequency in MHz, what the host's counters with this prefix advanced by for each second.
fn processors(begin: &Snapshot, end: &Snapshot, seconds: f64, prefix: &str) -> BTreeMap<u64, f64> {
    let counters = end.iter().filter_map(|(series, _)| {
        let khz = series.metric.strip_prefix(prefix)?.strip_suffix("_ns")?;
        let advanced = end.since(begin, &series.owner, &series.metric)?.value;
        let mhz = khz.parse::<u64>().ok()? / 1000;
        (series.owner == "host").then_some((mhz, advanced / 1e9 / seconds))
    });
    counters.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_core::{Nanoseconds, Source};
    use vtax_observe::{Kind, Readings, Series};

    fn snapshot(seconds: u64, counters: &[(String, f64)]) -> Snapshot {
        let mut readings = Readings::default();
        for (metric, value) in counters {
            let id = readings.register(Series {
                owner: "host".to_owned(),
                metric: metric.clone(),
                unit: Unit::of(Base::Nanosecond),
                kind: Kind::Counter,
                source: Source::Measured,
            });
            readings.record(id, value * 1e9);
        }
        Snapshot::of(Nanoseconds(seconds * 1_000_000_000), &readings)
    }

    #[test]
    fn times_become_processors_and_a_mean_frequency() {
        let at = metric::cpu_at;
        let begin = snapshot(
            0,
            &[
                (at(2_000_000), 5.0),
                (at(1_000_000), 1.0),
                (metric::cpu_busy_at(1_000_000), 0.5),
            ],
        );
        let end = snapshot(
            4,
            &[
                (at(2_000_000), 6.0),
                (at(1_000_000), 4.0),
                (metric::cpu_busy_at(1_000_000), 2.5),
            ],
        );
        let found: BTreeMap<String, f64> = between(&begin, &end, 4.0)
            .into_iter()
            .map(|found| (found.name, found.value))
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
        let at = metric::cpu_idle_in;
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
            .map(|found| (found.name, found.value))
            .collect();
        let expected = [("idle.C1".to_owned(), 1.0), ("idle.C6".to_owned(), 0.5)];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_host_that_counts_no_frequencies_has_no_such_metrics() {
        let empty = snapshot(0, &[("cpu.idle_ns".to_owned(), 1.0)]);
        assert_eq!(between(&empty, &empty, 1.0), []);
    }

    #[test]
    fn the_name_of_a_metric_says_its_frequency() {
        assert_eq!(busy_mhz(&busy_at(1867)), Some(1867));
        assert_eq!(busy_mhz(&set_to(1867)), None);
        assert_eq!(busy_mhz("frequency.mean"), None);
    }
}
