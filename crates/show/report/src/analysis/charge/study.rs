// SPDX-License-Identifier: Apache-2.0
//! A study of charge-back: the charges of each measurement, taken from the trials of a results directory. All other
//! numbers are computed from it, so different weights need no other run.

use super::METHODS;
use crate::analysis::distinct;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use vtax_core::metric::{self, Family};
use vtax_core::{Nanoseconds, Source};
use vtax_results::{CHARGE, NEIGHBOURS, NOT_TRACED};
use vtax_results::{Metric, ResultsDir, ResultsError, Stage, Treatment, Trial, TrialOutcome};

/// A study could not be read.
#[derive(Debug, thiserror::Error)]
pub enum StudyError {
    /// The results directory is not readable.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// The run has another purpose, or has no complete measurement yet.
    #[error("{} holds no study of charge-back: `vtax accuracy run PLAN` makes one, and goes on with one that was cut off", .0.display())]
    NoStudy(PathBuf),
}

/// A study of one or several platforms on one host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Study {
    /// The plan's name.
    pub name: String,
    /// Place of the run: `local`, `testbed:kvm`.
    pub place: String,
    /// The worst flag of its numbers.
    pub source: Source,
    /// The host's kernel.
    pub kernel: String,
    /// Number of the host's processors.
    pub processors: usize,
    /// Missing data, in words.
    pub notes: Vec<String>,
    /// Platforms, in the plan's order.
    pub platforms: Vec<PlatformStudy>,
}

/// The measurements of one platform.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlatformStudy {
    /// Name in the plan.
    pub name: String,
    /// The two loads that ran alone and together, by name.
    pub pair: [String; 2],
    /// Measurements, in the order of their execution.
    pub measurements: Vec<Measurement>,
    /// Cost of tracing; `None` where tracing is unavailable.
    pub monitor: Option<MonitorCost>,
}

/// The host's busy time under a load, without and with tracing, in nanoseconds per unit of work, one value per block.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MonitorCost {
    /// The load.
    pub load: String,
    /// Values without tracing.
    pub without: Vec<f64>,
    /// Values with tracing.
    pub with: Vec<f64>,
}

/// One interval under steady load.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measurement {
    /// The repetition.
    pub block: u32,
    /// The guests that were present, with or without load.
    pub guests: Vec<GuestCharge>,
    /// The interval's length.
    pub span: Nanoseconds,
    /// Busy time of all host processors.
    pub total: Nanoseconds,
    /// The kernel's own account of soft interrupts.
    pub softirq: Nanoseconds,
    /// Packets of no guest.
    pub host_packets: u64,
    /// Soft interrupt runs without I/O.
    pub other_softirqs: u64,
    /// Charge of the host itself by method: tasks, and soft interrupts.
    pub host: BTreeMap<String, [Nanoseconds; 2]>,
    /// Unattributed time by method.
    pub unattributed: BTreeMap<String, Nanoseconds>,
}

/// The charge of one guest in an interval.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GuestCharge {
    /// The guest's load.
    pub load: String,
    /// Units of work per second, as seen by the load generator; `None` without load.
    pub work: Option<f64>,
    /// Packets received by the guest.
    pub received: u64,
    /// Packets sent by the guest.
    pub sent: u64,
    /// Bytes in both directions.
    pub bytes: u64,
    /// Block requests.
    pub block_requests: u64,
    /// CPU time that the kernel books on the guest's threads and processes: the input of a division by processes.
    pub booked: Nanoseconds,
    /// Charge by method and stage.
    pub charged: BTreeMap<String, BTreeMap<String, Nanoseconds>>,
    /// Error bound that a method states for its charge, all stages together; no entry for a measured charge.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, Nanoseconds>,
}

impl GuestCharge {
    /// The guest's charge by one method, all stages together.
    pub fn total(&self, method: &str) -> Option<Nanoseconds> {
        let stages = self.charged.get(method)?;
        let times = stages.values().map(|time| time.0);
        Some(Nanoseconds(times.fold(0, u64::saturating_add)))
    }

    /// The guest's charge by one method in one stage.
    pub fn stage(&self, method: &str, stage: &str) -> Nanoseconds {
        let stages = self.charged.get(method);
        let time = stages.and_then(|stages| stages.get(stage)).copied();
        time.unwrap_or(Nanoseconds(0))
    }
}

impl Measurement {
    /// The guests under load.
    pub fn running(&self) -> impl Iterator<Item = &GuestCharge> {
        self.guests.iter().filter(|guest| guest.work.is_some())
    }

    /// Busy time of all host processors per unit of work, in nanoseconds; `None` without work.
    pub fn host_cost_of_work(&self) -> Option<f64> {
        let rate: f64 = self.running().filter_map(|guest| guest.work).sum();
        let work = rate * self.span.as_secs_f64();
        (work > 0.0).then(|| self.total.0 as f64 / work)
    }

    /// The guest with this load.
    pub fn guest(&self, load: &str) -> Option<&GuestCharge> {
        self.guests.iter().find(|guest| guest.load == load)
    }
}

impl Study {
    /// Reads the study from a results directory.
    ///
    /// # Errors
    /// When there is no study, or it is damaged.
    pub fn read(directory: &Path) -> Result<Self, StudyError> {
        Self::from_results(&ResultsDir::open(directory)?)
    }

    /// Builds the study from the trials of a run.
    ///
    /// # Errors
    /// When a trial is damaged, or none of them was charged.
    pub fn from_results(results: &ResultsDir) -> Result<Self, StudyError> {
        let run = results.run();
        let host = results.host()?;
        let mut notes = Vec::new();
        let trials = counted(results, &mut notes)?;
        let metrics = || trials.iter().flat_map(|trial| trial.metrics.values());
        let names = distinct(run.treatments.iter().map(|of| of.platform.as_str())).into_iter();
        let platforms: Vec<PlatformStudy> = names
            .filter_map(|name| platform(name, &run.treatments, &trials))
            .collect();
        if platforms.is_empty() {
            return Err(StudyError::NoStudy(results.path().to_owned()));
        }
        let fact = |pointer: &str| host.pointer(pointer).cloned().unwrap_or_default();
        Ok(Self {
            name: run.name.clone(),
            place: run.place.clone(),
            source: metrics().fold(Source::Measured, |worst, of| worst.combine(of.source)),
            kernel: fact("/kernel").as_str().unwrap_or_default().to_owned(),
            processors: fact("/cpu/threads")
                .as_u64()
                .and_then(|count| usize::try_from(count).ok())
                .unwrap_or(0),
            notes,
            platforms,
        })
    }
}

/// The trials that count: those that are not suspect; for a treatment with none, all complete ones. Warnings about them
/// are added to `notes`.
fn counted(results: &ResultsDir, notes: &mut Vec<String>) -> Result<Vec<Trial>, ResultsError> {
    let mut trials: Vec<Trial> = results.trials().collect::<Result<_, _>>()?;
    let planned = results.run().schedule.len();
    trials.retain(|trial| trial.outcome == TrialOutcome::Complete);
    if trials.len() < planned {
        let missing = planned - trials.len();
        notes.push(format!(
            "{missing} of {planned} trials failed or have not run: the same command runs them"
        ));
    }
    let trusted = trials.iter().filter(|trial| trial.suspect.is_empty());
    let trusted: BTreeSet<String> = trusted.map(|trial| trial.treatment.label.clone()).collect();
    let mut doubted = BTreeSet::new();
    trials.retain(|trial| {
        let label = &trial.treatment.label;
        if !trusted.contains(label)
            && let Some(reason) = trial.suspect.first()
            && doubted.insert(label.clone())
        {
            notes.push(format!("{label} has only suspect trials: {reason}"));
        }
        trial.suspect.is_empty() || !trusted.contains(label)
    });
    let reason = |trial: &Trial| trial.environment.get(NOT_TRACED).cloned();
    let reasons: BTreeSet<String> = trials.iter().filter_map(reason).collect();
    let missing = |why: &String| format!("traced is missing: {why}");
    notes.extend(reasons.iter().map(missing));
    Ok(trials)
}

/// The study of one platform, from its trials; `None` without a measured pair.
fn platform(name: &str, treatments: &[Treatment], trials: &[Trial]) -> Option<PlatformStudy> {
    let beside = |treatment: &Treatment| treatment.factors.get(NEIGHBOURS).cloned();
    let of_platform = treatments.iter().filter(|of| of.platform == name);
    let pairs = of_platform.filter_map(|of| Some([of.workload.clone(), beside(of)?]));
    let mut pairs: BTreeSet<[String; 2]> = pairs.collect();
    let pair = pairs.pop_first()?;
    // A platform with more than one pair of loads is not a study.
    if !pairs.is_empty() {
        return None;
    }
    let mut measurements = Vec::new();
    let mut monitor: Option<MonitorCost> = None;
    for trial in trials.iter().filter(|of| of.treatment.platform == name) {
        let treatment = &trial.treatment;
        let Some(method) = treatment.factors.get(CHARGE) else {
            measurements.extend(of_trial(trial, beside(treatment).as_deref()));
            continue;
        };
        let cost = monitor.get_or_insert_with(|| MonitorCost {
            load: treatment.workload.clone(),
            without: Vec::new(),
            with: Vec::new(),
        });
        let costs = of_trial(trial, None)
            .into_iter()
            .filter_map(|measured| measured.host_cost_of_work());
        match method.as_str() {
            "counted" => cost.without.extend(costs),
            _ => cost.with.extend(costs),
        }
    }
    (!measurements.is_empty()).then(|| PlatformStudy {
        name: name.to_owned(),
        pair,
        measurements,
        monitor,
    })
}

/// The measurements of a trial: one, or one per phase where guests took turns. `beside` is the load of the second
/// guest.
fn of_trial(trial: &Trial, beside: Option<&str>) -> Vec<Measurement> {
    let load = trial.treatment.workload.as_str();
    if trial.phases.is_empty() {
        let found = measurement(
            trial.block,
            trial.window,
            &trial.metrics,
            &[(load, &trial.metrics)],
        );
        return found.into_iter().collect();
    }
    let of_phases = trial.phases.iter().filter_map(|phase| {
        let mut guests = vec![(load, &phase.metrics)];
        guests.extend(beside.zip(phase.others.values().next()));
        measurement(trial.block, phase.window, &phase.metrics, &guests)
    });
    of_phases.collect()
}

type Metrics = BTreeMap<String, Metric>;

/// Converts the rates of a phase to totals; `None` without a charge.
fn measurement(
    block: u32,
    window: (Nanoseconds, Nanoseconds),
    host: &Metrics,
    guests: &[(&str, &Metrics)],
) -> Option<Measurement> {
    let span = window.1.saturating_since(window.0);
    let by_method = |family: &'static Family| {
        METHODS.into_iter().filter_map(move |method| {
            Some((
                method.to_owned(),
                time(host, &family.name_of(method), span)?,
            ))
        })
    };
    let softirqs: BTreeMap<String, Nanoseconds> = by_method(metric::CHARGE_HOST_SOFTIRQ).collect();
    Some(Measurement {
        block,
        guests: guests
            .iter()
            .map(|(load, metrics)| guest(load, metrics, span))
            .collect(),
        span,
        total: time(host, metric::CHARGE_TOTAL.name, span)?,
        softirq: time(host, metric::CHARGE_SOFTIRQ.name, span).unwrap_or_default(),
        host_packets: count(host, metric::CHARGE_HOST_PACKETS.name, span),
        other_softirqs: count(host, metric::CHARGE_OTHER_SOFTIRQS.name, span),
        host: by_method(metric::CHARGE_HOST)
            .map(|(method, tasks)| {
                let softirq = softirqs.get(&method).copied().unwrap_or_default();
                (method, [tasks, softirq])
            })
            .collect(),
        unattributed: by_method(metric::CHARGE_UNATTRIBUTED).collect(),
    })
}

fn guest(load: &str, metrics: &Metrics, span: Nanoseconds) -> GuestCharge {
    let charged = METHODS.into_iter().filter_map(|method| {
        let stages: BTreeMap<String, Nanoseconds> = Stage::CHARGED
            .into_iter()
            .map(Stage::name)
            .filter_map(|stage| {
                let spent = time(metrics, &metric::CHARGE_STAGE.name(&[method, stage]), span)?;
                Some((stage.to_owned(), spent))
            })
            .collect();
        (!stages.is_empty()).then(|| (method.to_owned(), stages))
    });
    let work = metrics.get(metric::CHARGE_WORK.name);
    GuestCharge {
        load: load.to_owned(),
        work: work.map(|work| work.quantity.value),
        received: count(metrics, metric::CHARGE_RECEIVED.name, span),
        sent: count(metrics, metric::CHARGE_SENT.name, span),
        bytes: count(metrics, metric::CHARGE_BYTES.name, span),
        block_requests: count(metrics, metric::CHARGE_BLOCK_REQUESTS.name, span),
        booked: time(metrics, metric::CHARGE_BOOKED.name, span).unwrap_or_default(),
        charged: charged.collect(),
        errors: METHODS
            .into_iter()
            .filter_map(|method| {
                let error = time(metrics, &metric::CHARGE_ERROR.name_of(method), span)?;
                Some((method.to_owned(), error))
            })
            .collect(),
    }
}

/// Total of a rate over `span`.
// A cast of a float saturates.
fn count(metrics: &Metrics, name: &str, span: Nanoseconds) -> u64 {
    let rate = metrics.get(name).map_or(0.0, |found| found.quantity.value);
    (rate * span.as_secs_f64()).round() as u64
}

/// Processor time of a number of busy cores over `span`.
// A cast of a float saturates.
fn time(metrics: &Metrics, name: &str, span: Nanoseconds) -> Option<Nanoseconds> {
    let cores = metrics.get(name)?.quantity.value;
    Some(Nanoseconds(
        (cores * span.as_secs_f64() * 1e9).round() as u64
    ))
}

#[cfg(test)]
mod tests {
    use super::super::Method;
    use super::*;
    use vtax_core::{Base, Quantity, Unit};
    use vtax_results::{Better, FORMAT, ObservationCost, Phase, PhaseTimes, RunInfo, Scheduled};

    const SECOND: u64 = 1_000_000_000;

    fn metrics(values: &[(&str, f64)]) -> Metrics {
        let metric = |value: f64| Metric {
            quantity: Quantity::new(value, Unit::from_base(Base::One)),
            source: Source::Simulated,
            model: None,
            meter: None,
            better: Better::Neither,
            headline: false,
            title: String::new(),
        };
        let named = values.iter();
        named
            .map(|(name, value)| ((*name).to_owned(), metric(*value)))
            .collect()
    }

    /// A guest whose load does `work` units a second at 2 ms each, a quarter of it soft interrupts, on an otherwise
    /// idle host.
    fn charged(work: Option<f64>) -> Metrics {
        let rate = work.unwrap_or(0.0);
        let mut found = metrics(&[
            ("charge.traced.vcpu", rate * 0.0015),
            ("charge.traced.softirq", rate * 0.0005),
            ("charge.traced.host", 0.01),
            ("charge.traced.host_softirq", 0.02),
            ("charge.traced.unattributed", 0.03),
            (metric::CHARGE_BOOKED.name, rate * 0.0015),
            (metric::CHARGE_RECEIVED.name, rate * 3.0),
            (metric::CHARGE_SENT.name, rate * 2.0),
            (metric::CHARGE_TOTAL.name, rate * 0.002),
        ]);
        if let Some(work) = work {
            found.extend(metrics(&[(metric::CHARGE_WORK.name, work)]));
        }
        found
    }

    fn treatment(workload: &str, factor: Option<(&str, &str)>) -> Treatment {
        let factors: BTreeMap<String, String> = factor
            .into_iter()
            .map(|(key, level)| (key.to_owned(), level.to_owned()))
            .collect();
        Treatment {
            label: format!("container · {workload} {factors:?}"),
            platform: "container".to_owned(),
            workload: workload.to_owned(),
            factors,
            baseline: None,
            platform_kind: "container".to_owned(),
            workload_kind: "http-rate".to_owned(),
        }
    }

    fn trial(treatment: &Treatment, metrics: Metrics) -> Trial {
        Trial {
            format: FORMAT,
            index: 0,
            block: 0,
            treatment: treatment.clone(),
            started: String::new(),
            outcome: TrialOutcome::Complete,
            suspect: Vec::new(),
            disturbed: Vec::new(),
            times: PhaseTimes::default(),
            window: (Nanoseconds(SECOND), Nanoseconds(3 * SECOND)),
            work: None,
            metrics,
            environment: BTreeMap::new(),
            observation: ObservationCost::default(),
            actors: Vec::new(),
            phases: Vec::new(),
            objective: None,
        }
    }

    fn pair(small: f64, large: f64) -> Trial {
        let turns = [
            (Some(small), None),
            (None, Some(large)),
            (Some(small), Some(large)),
        ];
        let phases = turns.map(|(target, neighbour)| Phase {
            name: String::new(),
            level: None,
            window: (Nanoseconds(0), Nanoseconds(2 * SECOND)),
            work: None,
            metrics: charged(target),
            others: BTreeMap::from([("neighbour".to_owned(), charged(neighbour))]),
            kept: None,
        });
        let beside = treatment("small", Some((NEIGHBOURS, "large")));
        Trial {
            phases: phases.into(),
            ..trial(&beside, metrics(&[("cpu.cores", 0.1)]))
        }
    }

    fn monitored(method: &str, cores: f64) -> Trial {
        let mut found = charged(Some(50.0));
        found.extend(metrics(&[(metric::CHARGE_TOTAL.name, cores)]));
        let treatment = treatment("middle", Some((CHARGE, method)));
        trial(&treatment, found)
    }

    fn stored(directory: &Path, trials: Vec<Trial>) -> ResultsDir {
        let treatments: Vec<Treatment> =
            trials.iter().map(|trial| trial.treatment.clone()).collect();
        let run = RunInfo {
            format: FORMAT,
            name: "pair".to_owned(),
            description: String::new(),
            seed: 1,
            profile: "full".to_owned(),
            place: "testbed:kvm".to_owned(),
            started: String::new(),
            plan_sha256: String::new(),
            schedule: (0..treatments.len())
                .map(|treatment| Scheduled {
                    treatment,
                    block: 0,
                })
                .collect(),
            treatments,
            minimum_effect: 0.02,
            extended: false,
        };
        let host = serde_json::json!({"kernel": "6.1.0", "cpu": {"threads": 2}});
        let results = ResultsDir::create(directory, &run, "", &host).unwrap();
        for (index, trial) in (0..).zip(trials) {
            results.trial_writer(index).unwrap().finish(trial).unwrap();
        }
        results
    }

    #[test]
    fn the_trials_of_a_run_are_a_study() {
        let directory = tempfile::tempdir().unwrap();
        let alone = trial(&treatment("middle", None), charged(Some(50.0)));
        let trials = vec![
            alone,
            pair(100.0, 10.0),
            monitored("counted", 0.1),
            monitored("traced", 0.102),
        ];
        stored(directory.path(), trials);
        let study = Study::read(directory.path()).unwrap();
        assert_eq!(study.kernel, "6.1.0");
        assert_eq!((study.processors, study.source), (2, Source::Simulated));
        assert!(study.notes.is_empty(), "{:?}", study.notes);

        let containers = &study.platforms[0];
        assert_eq!(containers.pair, ["small", "large"]);
        let running = |of: &Measurement| of.running().count();
        let ran: Vec<(usize, usize)> = (containers.measurements.iter())
            .map(|of| (of.guests.len(), running(of)))
            .collect();
        assert_eq!(ran, [(1, 1), (2, 1), (2, 1), (2, 2)]);
        let together = containers.measurements.last().unwrap();
        assert_eq!(together.span, Nanoseconds(2 * SECOND));
        assert_eq!(together.host["traced"][1], Nanoseconds(SECOND / 25));
        let large = together.guest("large").unwrap();
        assert_eq!(large.stage("traced", "softirq"), Nanoseconds(SECOND / 100));
        assert_eq!(
            (large.received, large.sent, large.work),
            (60, 40, Some(10.0))
        );
        assert_eq!(large.total("counted"), None, "it was not counted");

        let ratio = containers.compare("small", Method::Traced).ratio().unwrap();
        assert!((ratio - 1.0).abs() < 1e-9, "{ratio}");
        let alone = containers.compare("large", Method::Traced).alone;
        assert!((alone[0] - 2e6).abs() < 1.0, "2 ms each: {alone:?}");
        let monitor = containers.monitor.as_ref().unwrap();
        assert_eq!(monitor.load, "middle");
        assert!((monitor.with[0] / monitor.without[0] - 1.02).abs() < 1e-6);
        let table = super::super::markdown(&study);
        assert!(
            table.contains("(+2.00 %)") && table.contains("1 round of 2 s"),
            "{table}"
        );
    }

    #[test]
    fn suspect_and_failed_trials_are_left_out_or_reported() {
        let doubted = |mut trial: Trial| {
            trial.suspect = vec!["other programs".to_owned()];
            trial
        };
        let read = |trials: Vec<Trial>| {
            let directory = tempfile::tempdir().unwrap();
            Study::from_results(&stored(directory.path(), trials)).unwrap()
        };
        let good = read(vec![pair(100.0, 10.0), doubted(pair(900.0, 10.0))]);
        assert_eq!(good.platforms[0].measurements.len(), 3);
        assert!(good.notes.is_empty(), "{:?}", good.notes);

        let mut failed = pair(100.0, 10.0);
        failed.outcome = TrialOutcome::Failed("it broke".to_owned());
        let mut doubtful = doubted(pair(100.0, 10.0));
        let why = "no BTF".to_owned();
        doubtful.environment.insert(NOT_TRACED.to_owned(), why);
        let poor = read(vec![failed, doubtful]);
        assert_eq!(poor.platforms[0].measurements.len(), 3);
        for printed in ["1 of 2 trials", "other programs", "no BTF"] {
            assert!(
                poor.notes.iter().any(|note| note.contains(printed)),
                "{printed}"
            );
        }
    }

    #[test]
    fn a_run_for_something_else_is_no_study() {
        let directory = tempfile::tempdir().unwrap();
        let trials = vec![trial(&treatment("small", None), metrics(&[]))];
        stored(directory.path(), trials);
        let refused = Study::read(directory.path()).unwrap_err().to_string();
        assert!(refused.contains("vtax accuracy run"), "{refused}");
    }
}
