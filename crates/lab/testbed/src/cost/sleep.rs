// SPDX-License-Identifier: Apache-2.0
//! The idle power of a cost model: idle gaps charged by the target residencies and the watts of a package's idle states.
//!
//! A state's target residency is the length of a gap from which on the state saves energy, its entry and exit included. So a
//! gap costs the watts of the state whose target residency it has reached: those of an awake processor at first, those of the
//! deepest state at last. The states that a kernel would choose are not simulated.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::iter::once;
use vtax_core::metric;
use vtax_results::{IdleBin, Trial};

/// The idle states of a processor package.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sleep {
    /// The cores of the package. An emulated processor has the share of one core in the package's watts.
    cores: u32,
    /// The watts of the package with all cores awake, without those of their cycles.
    awake: f64,
    /// The idle states, the shallowest first.
    state: Vec<State>,
    /// The deepest state that processors enter, by kind of platform; all states where the kind is absent.
    #[serde(default)]
    deepest: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    name: String,
    /// The target residency in µs.
    residency_us: f64,
    /// The watts of the package with all cores in this state.
    watts: f64,
}

/// The power of the processors of a trial, without that of their cycles.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rest {
    pub watts: f64,
    /// The mean number of processors in each state, the first one awake.
    pub processors: Vec<(String, f64)>,
}

impl fmt::Display for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: f64 = self.processors.iter().map(|(_, share)| share).sum();
        for (number, (name, share)) in self.processors.iter().enumerate() {
            let comma = if number > 0 { ", " } else { "" };
            let percent = 100.0 * share / all;
            write!(f, "{comma}{name} {} %", (percent * 10.0).round() / 10.0)?;
        }
        Ok(())
    }
}

impl Sleep {
    /// The watts of the package with all cores awake, without those of their cycles.
    #[cfg(test)]
    pub fn awake(&self) -> f64 {
        self.awake
    }

    /// The names of its watts: `awake`, and those of the states.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        once("awake").chain(self.state.iter().map(|of| of.name.as_str()))
    }

    /// Multiplies the watts whose names `is_scaled` accepts.
    pub fn scale(&mut self, factor: f64, is_scaled: impl Fn(&str) -> bool) {
        if is_scaled("awake") {
            self.awake *= factor;
        }
        for state in self.state.iter_mut().filter(|of| is_scaled(&of.name)) {
            state.watts *= factor;
        }
    }

    /// Returns the reason why it is no table of idle states, if any.
    pub fn fault(&self) -> Option<String> {
        let is_cost = |value: f64| value.is_finite() && value >= 0.0;
        let costs = self.state.iter().flat_map(|of| [of.residency_us, of.watts]);
        if self.cores == 0 || self.state.is_empty() {
            return Some(
                "sleep: it needs `cores` of 1 or more, and a `[[sleep.state]]`".to_owned(),
            );
        }
        if let Some(wrong) = costs.chain([self.awake]).find(|value| !is_cost(*value)) {
            return Some(format!(
                "sleep: {wrong} is not a cost: it must be 0 or more"
            ));
        }
        let awake = (0.0, self.awake);
        let states = self.state.iter().map(|of| (of.residency_us, of.watts));
        let before = once(awake).chain(states);
        for (of, (residency, watts)) in self.state.iter().zip(before) {
            if of.residency_us <= residency || of.watts > watts {
                return Some(format!(
                    "sleep.state {}: a deeper state has a longer residency_us and no more watts than the one before it",
                    of.name
                ));
            }
        }
        let unknown = |name: &&String| self.state.iter().all(|of| of.name != **name);
        let unknown = self.deepest.values().find(unknown);
        unknown.map(|name| format!("sleep.deepest = \"{name}\" is none of its states"))
    }

    /// Charges the idle gaps of a trial; `None` where they were not recorded.
    pub fn rest(&self, trial: &Trial) -> Option<Rest> {
        let gaps = &trial.observation.idle_gaps;
        let (begin, end) = trial.window;
        let window = end.saturating_since(begin).as_secs_f64();
        if gaps.is_empty() || window <= 0.0 {
            return None;
        }
        let online = trial.observation.processors.unwrap_or(0).max(gaps.len()) as f64;
        let states = self.entered(trial.treatment.kind());
        let most = window * unused(trial, online);
        // The mean number of processors in each state, the first one awake.
        let mut shares = vec![0.0; states.len() + 1];
        for gap in gaps {
            let idle: f64 = gap.bins.iter().map(|bin| bin.seconds).sum();
            // Both are read a few instructions apart.
            let scale = if idle > most { most / idle } else { 1.0 };
            let mut begin = 0.0;
            for (number, share) in shares.iter_mut().enumerate() {
                let deeper = states.get(number);
                let end = deeper.map_or(idle, |state| before(&gap.bins, state.residency_us));
                *share += (end - begin).max(0.0) * scale / window;
                begin = end;
            }
        }
        let asleep: f64 = shares.iter().sum();
        if let Some(awake) = shares.first_mut() {
            *awake += (online - asleep).max(0.0);
        }
        let all = once(("awake", self.awake));
        let all = all.chain(
            states
                .iter()
                .map(|state| (state.name.as_str(), state.watts)),
        );
        let watts = all
            .clone()
            .zip(&shares)
            .map(|((_, watts), share)| watts * share);
        Some(Rest {
            watts: watts.sum::<f64>() / f64::from(self.cores),
            processors: all.map(|(name, _)| name.to_owned()).zip(shares).collect(),
        })
    }

    /// The states that processors enter under a kind of platform.
    fn entered(&self, kind: &str) -> &[State] {
        let deepest = self.deepest.get(kind);
        let deepest = deepest.and_then(|name| self.state.iter().position(|of| of.name == *name));
        let entered = deepest.and_then(|deepest| self.state.get(..=deepest));
        entered.unwrap_or(&self.state)
    }
}

/// The part of the time of `online` processors that no guest uses. Under Xen the gaps are Dom0's, and guests run in them.
fn unused(trial: &Trial, online: f64) -> f64 {
    match trial.metrics.get(metric::CPU_MACHINE.name) {
        Some(busy) if trial.treatment.kind() == "xen" => {
            (1.0 - busy.quantity.value / online).clamp(0.0, 1.0)
        }
        _ => 1.0,
    }
}

/// The idle time in seconds that gaps had when their age was below `age` µs, where the time of a bin is spread evenly over its
/// ages. So a longer gap never adds more to it than to the idle time.
fn before(bins: &[IdleBin], age: f64) -> f64 {
    let parts = bins.iter().map(|bin| {
        let from = bin.from_us as f64;
        let width = from.max(1.0);
        bin.seconds * ((age - from) / width).clamp(0.0, 1.0)
    });
    parts.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::tests::trial;
    use proptest::prelude::*;
    use vtax_core::Nanoseconds;
    use vtax_results::IdleGaps;

    const WINDOW_US: f64 = 10e6;

    /// Four cores that draw 40 W awake, 20 W in a state from 20 µs on, and 8 W in one from 300 µs on.
    fn model() -> Sleep {
        let state = |name: &str, residency_us, watts| State {
            name: name.to_owned(),
            residency_us,
            watts,
        };
        Sleep {
            cores: 4,
            awake: 40.0,
            state: vec![state("C1", 20.0, 20.0), state("C6", 300.0, 8.0)],
            deepest: BTreeMap::from([("xen".to_owned(), "C1".to_owned())]),
        }
    }

    /// The bins of gaps of these lengths in µs.
    fn bins(lengths: &[f64]) -> Vec<IdleBin> {
        let edges = [0].into_iter().chain((0..21).map(|power| 1 << power));
        let bins = edges.map(|from_us: u64| {
            let from = from_us as f64;
            let width = match from_us {
                0 => 1.0,
                0x10_0000 => f64::MAX,
                _ => from,
            };
            let reached = lengths.iter().filter(|length| **length >= from);
            IdleBin {
                from_us,
                gaps: reached.clone().count() as u64,
                seconds: reached
                    .map(|length| (length - from).min(width))
                    .sum::<f64>()
                    / 1e6,
            }
        });
        bins.filter(|bin| bin.gaps > 0).collect()
    }

    /// A trial of 10 s on a host with these processors, with the lengths of their gaps.
    fn idle(processors: &[&[f64]]) -> Trial {
        let mut trial = trial("vm", &[]);
        trial.window = (Nanoseconds(0), Nanoseconds((WINDOW_US * 1e3) as u64));
        trial.observation.processors = Some(processors.len());
        let of = (0..).zip(processors).map(|(processor, lengths)| IdleGaps {
            processor,
            bins: bins(lengths),
        });
        trial.observation.idle_gaps = of.collect();
        trial
    }

    fn watts(processors: &[&[f64]]) -> f64 {
        model().rest(&idle(processors)).unwrap().watts
    }

    #[test]
    fn a_gap_costs_the_watts_of_the_state_whose_residency_it_has_reached() {
        // All gaps end at an edge of a bin or far above the last residency, where the charge is exact.
        let long = [1e6; 10];
        let rest = model().rest(&idle(&[&long])).unwrap();
        let expected = [("awake", 20e-6), ("C1", 280e-6), ("C6", 1.0 - 300e-6)];
        for ((name, share), (expected, exact)) in rest.processors.iter().zip(expected) {
            assert_eq!(name, expected);
            assert!((share - exact).abs() < 1e-9, "{name}: {share} for {exact}");
        }
        let short = [16.0; 10_000];
        assert!((watts(&[&short]) - 10.0).abs() < 1e-9, "as if awake");
    }

    #[test]
    fn a_processor_has_the_share_of_one_core_and_is_awake_where_it_has_no_gap() {
        let asleep = [WINDOW_US].as_slice();
        assert!((watts(&[asleep]) - 2.0).abs() < 0.01);
        assert!((watts(&[asleep, &[]]) - 12.0).abs() < 0.01);
        assert!((watts(&[asleep; 4]) - 8.0).abs() < 0.01);
    }

    #[test]
    fn a_stated_deepest_state_holds_for_its_kind_of_platform_alone() {
        let mut xen = idle(&[&[WINDOW_US]]);
        xen.treatment.platform_kind = "xen".to_owned();
        let rest = model().rest(&xen).unwrap();
        assert_eq!(rest.processors.len(), 2);
        assert!((rest.watts - 5.0).abs() < 0.01, "{}", rest.watts);
    }

    #[test]
    fn the_time_of_a_xen_guest_is_no_idle_time_of_dom0() {
        let mut xen = trial("vm", &[(metric::CPU_MACHINE.name, 0.5)]);
        let idle = idle(&[&[WINDOW_US]]);
        (xen.window, xen.observation) = (idle.window, idle.observation);
        xen.treatment.platform_kind = "xen".to_owned();
        // Half of the time awake, half in C1.
        let watts = model().rest(&xen).unwrap().watts;
        assert!((watts - (10.0 + 5.0) / 2.0).abs() < 0.01, "{watts}");
    }

    #[test]
    fn a_trial_without_recorded_gaps_has_no_idle_power() {
        assert_eq!(model().rest(&trial("vm", &[])), None);
        // One that was never idle has recorded none.
        assert_eq!(
            model().rest(&idle(&[&[]])).map(|rest| rest.watts),
            Some(10.0)
        );
    }

    #[test]
    fn a_table_that_is_none_is_refused_by_name() {
        assert_eq!(model().fault(), None);
        type Change = fn(&mut Sleep);
        let change: [(&str, Change); 6] = [
            ("cores", |of| of.cores = 0),
            ("[[sleep.state]]", |of| of.state.clear()),
            ("-1", |of| of.awake = -1.0),
            ("state C6", |of| of.state[1].residency_us = 20.0),
            ("state C1", |of| of.state[0].watts = 41.0),
            ("C7", |of| {
                of.deepest = BTreeMap::from([("xen".to_owned(), "C7".to_owned())])
            }),
        ];
        for (named, change) in change {
            let mut changed = model();
            change(&mut changed);
            let fault = changed.fault().unwrap();
            assert!(fault.contains(named), "{fault}");
        }
    }

    proptest! {
        #[test]
        fn states_take_all_of_the_time_and_no_energy_is_negative(
            lengths in prop::collection::vec(0.0..1e6f64, 0..12),
            others in prop::collection::vec(0.0..400.0f64, 1..40),
        ) {
            let rest = model().rest(&idle(&[&lengths, &others])).unwrap();
            let sum: f64 = rest.processors.iter().map(|(_, share)| share).sum();
            prop_assert!((sum - 2.0).abs() < 1e-9, "{sum}");
            prop_assert!(rest.processors.iter().all(|(_, share)| *share >= 0.0));
            prop_assert!(rest.watts >= 2.0 * 8.0 / 4.0 - 1e-9 && rest.watts <= 2.0 * 40.0 / 4.0 + 1e-9);
        }

        #[test]
        fn more_sleep_never_costs_more(
            lengths in prop::collection::vec(0.0..2000.0f64, 1..40),
            which in any::<prop::sample::Index>(), longer in 0.0..5000.0f64,
        ) {
            let before = watts(&[&lengths]);
            let mut after = lengths;
            *which.get_mut(&mut after) += longer;
            prop_assert!(watts(&[&after]) <= before + 1e-9);
        }

        #[test]
        fn times_before_an_age_grow_with_the_age_up_to_all(
            lengths in prop::collection::vec(0.0..3e6f64, 1..40),
            ages in prop::collection::vec(0.0..4e6f64, 2..9),
        ) {
            let bins = bins(&lengths);
            let all: f64 = bins.iter().map(|bin| bin.seconds).sum();
            let mut ages = ages;
            ages.sort_by(f64::total_cmp);
            let times: Vec<f64> = ages.iter().map(|age| super::before(&bins, *age)).collect();
            prop_assert!(times.is_sorted(), "{times:?}");
            prop_assert!(times.iter().all(|time| (0.0..=all + 1e-9).contains(time)));
        }
    }
}
