// SPDX-License-Identifier: Apache-2.0
//! The regression guard: compares the counts of a deterministic run with the committed ones.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use vtax_core::metric;
use vtax_host::HostError;
use vtax_lab::LabError;
use vtax_lab::plan::shipped;
use vtax_results::{ResultsDir, Trial, TrialOutcome};

/// The compared metrics: counts of the hypervisor, the kernel and the network. Metrics that another build of vtax alone
/// changes by more than the tolerance are left out: CPU time of single stages, which begin and end with vtax's own
/// readings; the guest's interrupts, whose window is that of the guest agent's answers; the host's interrupts, which
/// are timers (17 %); and acknowledgements, which are few.
const COUNTED: [&str; 4] = [
    metric::CONTEXT_SWITCHES_PER_SECOND.name,
    metric::KVM_EXITS_PER_SECOND.name,
    metric::NET_RX_PACKETS_PER_SECOND.name,
    metric::THROUGHPUT.name,
];

/// The largest relative change of a count. One build counts the same every time; other builds (profile, linker, debug
/// information) change counts at the ends of the window by less than this.
pub const TOLERANCE: f64 = 0.02;

/// The counts of a run: the median over the trials, each with its own seed, by treatment and metric.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    treatments: BTreeMap<String, BTreeMap<String, f64>>,
}

/// A count that differs from the committed one.
#[derive(Debug, Clone, PartialEq)]
pub struct CountChange {
    /// Its treatment.
    pub treatment: String,
    /// The metric.
    pub metric: String,
    /// The committed count, if there is one.
    pub before: Option<f64>,
    /// The new one, if there is one.
    pub after: Option<f64>,
}

impl fmt::Display for CountChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.metric, self.treatment)?;
        match (self.before, self.after) {
            (Some(before), Some(after)) if before != 0.0 => write!(
                f,
                " moved by {:+.2} %, from {before:.6} to {after:.6}",
                (after / before - 1.0) * 100.0
            ),
            (Some(before), Some(after)) => write!(f, " moved from {before} to {after:.6}"),
            (Some(before), None) => write!(f, " is no longer counted; it was {before:.6}"),
            (None, after) => write!(f, " is new: {:.6}", after.unwrap_or(0.0)),
        }
    }
}

impl Counts {
    /// The counts of a run.
    ///
    /// # Errors
    /// When its results cannot be read, or a trial of it failed.
    pub fn from_results(results: &ResultsDir) -> Result<Self, LabError> {
        let trials: Result<Vec<Trial>, _> = results.trials().collect();
        Ok(Self::of_trials(&trials?)?)
    }

    fn of_trials(trials: &[Trial]) -> Result<Self, HostError> {
        let mut seen: BTreeMap<String, BTreeMap<String, Vec<f64>>> = BTreeMap::new();
        for trial in trials {
            if let TrialOutcome::Failed(reason) = &trial.outcome {
                return Err(HostError::Other(format!(
                    "the guard's trial {} ({}) failed: {reason}",
                    trial.index, trial.treatment.label
                )));
            }
            let metrics = seen.entry(trial.treatment.label.clone()).or_default();
            for name in COUNTED {
                if let Some(metric) = trial.metrics.get(name) {
                    let values = metrics.entry(name.to_owned()).or_default();
                    values.push(metric.quantity.value);
                }
            }
        }
        let treatments = seen
            .into_iter()
            .map(|(treatment, metrics)| {
                let medians = metrics
                    .into_iter()
                    .map(|(name, values)| (name, median(values)))
                    .collect();
                (treatment, medians)
            })
            .collect();
        Ok(Self { treatments })
    }

    /// Reads committed counts, or where there is no such file, those of this name that are part of vtax.
    ///
    /// # Errors
    /// When they cannot be read or are not counts.
    pub fn read(path: &Path) -> Result<Self, HostError> {
        let text = shipped::read(path)?.text;
        toml::from_str(&text).map_err(|cause| HostError::Invalid {
            what: path.display().to_string(),
            problem: cause.to_string(),
        })
    }

    /// Writes counts, to be committed.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), HostError> {
        let text = toml::to_string(self)
            .map_err(|cause| HostError::Other(format!("cannot write the counts: {cause}")))?;
        let head = "# What the guard's plan counts in testbed:kvm. `vtax testbed guard --accept-counts` writes it.\n\n";
        Ok(vtax_files::write(path, format!("{head}{text}").as_bytes())?)
    }

    /// The counts that differ by more than [`TOLERANCE`] from the committed ones, or that only one of both has.
    pub fn moved(&self, committed: &Self) -> Vec<CountChange> {
        let mut names: Vec<(&String, &String)> = [self, committed]
            .into_iter()
            .flat_map(|counts| &counts.treatments)
            .flat_map(|(treatment, metrics)| metrics.keys().map(move |name| (treatment, name)))
            .collect();
        names.sort();
        names.dedup();
        let value = |counts: &Self, treatment: &str, name: &str| {
            counts.treatments.get(treatment)?.get(name).copied()
        };
        names
            .into_iter()
            .map(|(treatment, name)| CountChange {
                treatment: treatment.clone(),
                metric: name.clone(),
                before: value(committed, treatment, name),
                after: value(self, treatment, name),
            })
            .filter(|moved| match (moved.before, moved.after) {
                (Some(before), Some(after)) => (after - before).abs() > TOLERANCE * before.abs(),
                _ => true,
            })
            .collect()
    }

    /// The number of counts.
    pub fn len(&self) -> usize {
        self.treatments.values().map(BTreeMap::len).sum()
    }

    /// Whether there are no counts.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The median; of an even number of values the upper one, and 0 without values.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use vtax_core::{Base, Nanoseconds, Quantity, Source, Unit};
    use vtax_results::{Better, FORMAT, Metric, ObservationCost, PhaseTimes, Treatment};

    /// A complete trial of one second with these metrics.
    pub(crate) fn trial(label: &str, metrics: &[(&str, f64)]) -> Trial {
        let metric = |value: f64| Metric {
            quantity: Quantity::new(value, Unit::from_base(Base::One)),
            source: Source::Simulated,
            model: None,
            meter: None,
            better: Better::Neither,
            headline: false,
            title: String::new(),
        };
        Trial {
            format: FORMAT,
            index: 0,
            block: 0,
            treatment: Treatment {
                label: label.to_owned(),
                platform: "qemu".into(),
                workload: "w".into(),
                factors: BTreeMap::new(),
                baseline: None,
                platform_kind: String::new(),
                workload_kind: String::new(),
            },
            started: String::new(),
            outcome: TrialOutcome::Complete,
            suspect: Vec::new(),
            disturbed: Vec::new(),
            times: PhaseTimes::default(),
            window: (Nanoseconds(0), Nanoseconds(1_000_000_000)),
            work: None,
            metrics: metrics
                .iter()
                .map(|(name, value)| ((*name).to_owned(), metric(*value)))
                .collect(),
            environment: BTreeMap::new(),
            observation: ObservationCost::default(),
            actors: Vec::new(),
            phases: Vec::new(),
            objective: None,
        }
    }

    fn counts(exits: f64, packets: f64) -> Counts {
        Counts::of_trials(&[trial(
            "vm",
            &[
                ("kvm.exits.per_second", exits),
                ("net.rx_packets_per_second", packets),
                ("cpu.machine", 0.5),
            ],
        )])
        .unwrap()
    }

    #[test]
    fn what_moves_by_less_than_the_tolerance_is_not_reported() {
        let committed = counts(1000.0, 100.0);
        assert_eq!(counts(1019.9, 98.1).moved(&committed), []);
        assert_eq!(committed.len(), 2);
    }

    #[test]
    fn what_moved_is_named_with_how_far() {
        let reported: Vec<String> = counts(1031.0, 100.0)
            .moved(&counts(1000.0, 100.0))
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            reported,
            ["kvm.exits.per_second of vm moved by +3.10 %, from 1000.000000 to 1031.000000"]
        );
    }

    #[test]
    fn a_count_that_comes_or_goes_or_leaves_zero_is_reported() {
        let none = Counts::default();
        let some = counts(5.0, 1.0);
        assert!(some.moved(&none)[0].to_string().contains("is new"));
        assert!(
            none.moved(&some)[0]
                .to_string()
                .contains("no longer counted")
        );
        let zero = counts(0.0, 1.0);
        assert_eq!(zero.moved(&zero), []);
        assert!(some.moved(&zero)[0].to_string().contains("from 0 to 5"));
    }

    #[test]
    fn a_seed_that_falls_apart_from_the_others_moves_nothing() {
        let trials = [3800.0, 2888.0, 3810.0, 3820.0, 3805.0]
            .map(|exits| trial("vm", &[("kvm.exits.per_second", exits)]));
        let counts = Counts::of_trials(&trials).unwrap();
        assert_eq!(counts.treatments["vm"]["kvm.exits.per_second"], 3805.0);
    }

    #[test]
    fn a_failed_trial_is_no_count() {
        let mut failed = trial("vm", &[]);
        failed.outcome = TrialOutcome::Failed("no KVM".into());
        let printed = Counts::of_trials(&[failed]).unwrap_err().to_string();
        assert!(printed.contains("no KVM"), "{printed}");
    }

    #[test]
    fn counts_survive_their_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let written = counts(1_234.567_891, 0.1);
        written.write(file.path()).unwrap();
        assert_eq!(Counts::read(file.path()).unwrap(), written);
    }
}
