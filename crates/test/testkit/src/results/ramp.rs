// SPDX-License-Identifier: Apache-2.0
//! Creates a results directory of a ramp with neighbours, with invented numbers, for tests.

use super::{Metrics, normal};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::path::Path;
use vtax_core::owner::Owner;
use vtax_core::{Nanoseconds, Quantity, Series, SeriesKind, Source};
use vtax_results::stats::Random;
use vtax_results::{
    Actor, Better, FORMAT, HistogramRecord, Metric, ObjectiveOutcome, ObservationCost, Phase,
    PhaseTimes, ResultsDir, Role, RunInfo, Scheduled, Stage, Treatment, Trial, TrialOutcome, Work,
};

pub const NEIGHBOURS: [&str; 3] = ["none", "pi", "disk+net"];
pub const LEVELS: [f64; 8] = [100.0, 150.0, 200.0, 250.0, 300.0, 350.0, 400.0, 450.0];
pub const OBJECTIVE: &str = "latency.p99 <= 20ms";
const PHASE_SECONDS: u64 = 20;
const SECOND: u64 = 1_000_000_000;
/// The series of the host's power.
const JOULES: &str = "energy.model.host_joules";
/// The start of the measured part, in ns.
const START: u64 = 5 * SECOND;

/// A ramp of 3 treatments, 4 blocks and 8 levels.
pub fn write(path: &Path) -> ResultsDir {
    let run = run_info();
    let host = serde_json::json!({"hostname": "example", "kernel": "6.18.0", "cpu": "Example CPU @ 2.6 GHz", "cores": 4});
    let results = ResultsDir::create(path, &run, "name = \"knee\"\n", &host).unwrap();
    for index in results.pending() {
        write_trial(&results, index);
    }
    results
}

pub fn run_info() -> RunInfo {
    let label = |level: &str| format!("qemu · http-rate · neighbours {level}");
    let treatments: Vec<Treatment> = NEIGHBOURS
        .iter()
        .map(|level| Treatment {
            label: label(level),
            platform: "vm".to_owned(),
            workload: "http-rate".to_owned(),
            factors: [("neighbours".to_owned(), (*level).to_owned())].into(),
            baseline: (*level != "none").then(|| label("none")),
            platform_kind: "qemu".to_owned(),
            workload_kind: "http-rate".to_owned(),
        })
        .collect();
    let schedule = (0..4)
        .flat_map(|block| {
            (0..3).map(move |place| Scheduled {
                treatment: (place + block as usize) % 3,
                block,
            })
        })
        .collect();
    RunInfo {
        format: FORMAT,
        name: "noisy-neighbours".to_owned(),
        description:
            "How much load a VM bears before its tail latency breaks, alone and beside neighbours"
                .to_owned(),
        seed: 7,
        profile: "full".to_owned(),
        place: "local".to_owned(),
        started: "2026-11-21T09:30:00+01:00".to_owned(),
        plan_sha256: "a7c3".repeat(16),
        treatments,
        schedule,
        minimum_effect: 0.02,
    }
}

fn metrics() -> Metrics {
    Metrics {
        found: BTreeMap::new(),
        source: Source::Measured,
        headlines: &["knee", "latency.p99", "cpu.per_work"],
    }
}

/// The metrics of a guest that can serve `capacity` requests a second, at a load level.
fn at_level(level: f64, capacity: f64, noise: f64) -> BTreeMap<String, Metric> {
    let mut metrics = metrics();
    let served = level.min(capacity) * noise;
    let busy = (level / capacity).min(0.985);
    let p50 = 0.0018 / (1.0 - 0.8 * busy) * noise;
    let p99 = 0.0042 / (1.0 - busy).powf(0.85) * noise * noise;
    let (lower, higher) = (Better::Lower, Better::Higher);
    metrics.add("throughput", served, "request/s", higher, "requests served");
    metrics.add("rate", level, "request/s", Better::Neither, "requests sent");
    metrics.add("latency.p50", p50, "s", lower, "median latency");
    metrics.add("latency.p99", p99, "s", lower, "99th percentile of latency");
    let errors = ((level - capacity) / level).max(0.0) * 100.0;
    metrics.add("errors", errors, "%", lower, "requests that failed");
    let cores = 0.1 + served * 0.0021;
    metrics.add(
        "cpu.cores",
        cores,
        "core",
        lower,
        "processors kept busy for the target",
    );
    metrics.add(
        "power.mean",
        14.0 + 9.0 * cores,
        "W",
        lower,
        "mean power of the host",
    );
    for (stage, share) in stages() {
        metrics.add(
            &stage.metric(),
            cores * share,
            "core",
            Better::Neither,
            stage.words(),
        );
    }
    metrics.found
}

fn stages() -> [(Stage, f64); 5] {
    [
        (Stage::Vcpu, 0.66),
        (Stage::Emulator, 0.1),
        (Stage::Vhost, 0.14),
        (Stage::Softirq, 0.1),
        (Stage::Client, 0.35),
    ]
}

fn guests(neighbours: &str) -> Vec<&str> {
    neighbours
        .split('+')
        .filter(|name| *name != "none")
        .collect()
}

pub fn trial(run: &RunInfo, index: u32) -> Trial {
    let Scheduled { treatment, block } = run.schedule[index as usize].clone();
    let treatment = run.treatments[treatment].clone();
    let mut random = Random::new(500 + u64::from(index));
    let neighbours = treatment.factors["neighbours"].clone();
    let capacity = match neighbours.as_str() {
        "none" => 430.0,
        "pi" => 360.0,
        _ => 270.0,
    } * (1.0 + 0.06 * normal(&mut random));
    let window = |place: u64| {
        let start = START + place * PHASE_SECONDS * SECOND;
        (
            Nanoseconds(start),
            Nanoseconds(start + PHASE_SECONDS * SECOND),
        )
    };
    let phases: Vec<Phase> = LEVELS
        .iter()
        .enumerate()
        .map(|(place, level)| {
            let metrics = at_level(*level, capacity, 1.0 + 0.02 * normal(&mut random));
            Phase {
                name: format!("{level} req/s"),
                level: Some(Quantity::new(*level, "request/s".parse().unwrap())),
                window: window(place as u64),
                work: None,
                kept: Some(metrics["latency.p99"].quantity.value <= 0.02),
                metrics,
                others: BTreeMap::new(),
            }
        })
        .collect();
    let kept = phases.iter().take_while(|phase| phase.kept == Some(true));
    let knee = kept.last().and_then(|phase| phase.level);
    let broke = phases.iter().find(|phase| phase.kept == Some(false));
    let broke = broke.map(|phase| {
        let p99 = phase.metrics["latency.p99"].quantity;
        format!("latency.p99 = {p99} at {}", phase.name)
    });
    let mut metrics = metrics();
    metrics.found = at_level(250.0, capacity, 1.0);
    if let Some(knee) = knee {
        let title = format!("highest load that kept {OBJECTIVE}");
        metrics.add("knee", knee.value, "request/s", Better::Higher, &title);
    }
    metrics.add(
        "cpu.per_work",
        0.0021,
        "s/request",
        Better::Lower,
        "CPU time to serve a request",
    );
    let actor = |name: &str, role, drives: Option<&str>, metrics| Actor {
        name: name.to_owned(),
        role,
        platform: (role != Role::Client).then(|| "qemu".to_owned()),
        workload: (role != Role::Client).then(|| "http-rate".to_owned()),
        drives: drives.map(str::to_owned),
        place: "local".to_owned(),
        metrics,
        environment: BTreeMap::new(),
    };
    let mut actors = vec![
        actor("target", Role::Target, None, BTreeMap::new()),
        actor("client", Role::Client, Some("target"), BTreeMap::new()),
    ];
    for guest in guests(&neighbours) {
        let mut own = self::metrics();
        let noise = 1.0 + 0.03 * normal(&mut random);
        own.add(
            "cpu.cores",
            0.8 * noise,
            "core",
            Better::Lower,
            "processors kept busy",
        );
        own.add(
            "throughput",
            120.0 * noise,
            "op/s",
            Better::Higher,
            "operations",
        );
        actors.push(actor(guest, Role::Neighbour, None, own.found));
        let client = format!("{guest}.client");
        actors.push(actor(&client, Role::Client, Some(guest), BTreeMap::new()));
    }
    let total = LEVELS.len() as u64 * PHASE_SECONDS * SECOND;
    Trial {
        format: FORMAT,
        index,
        block,
        treatment,
        started: format!("2026-11-21T09:{:02}:00+01:00", 30 + index),
        outcome: TrialOutcome::Complete,
        suspect: Vec::new(),
        disturbed: Vec::new(),
        times: PhaseTimes {
            measured: Nanoseconds(total),
            total: Nanoseconds(total + 20 * SECOND),
            ..PhaseTimes::default()
        },
        window: (Nanoseconds(START), Nanoseconds(START + total)),
        work: Some(Work {
            amount: 40_000.0,
            unit: "request".parse().unwrap(),
            phrase: "serve a request".to_owned(),
        }),
        metrics: metrics.found,
        environment: [("accel".to_owned(), "kvm".to_owned())].into(),
        observation: ObservationCost {
            energy: vec![JOULES.to_owned()],
            ..ObservationCost::default()
        },
        actors,
        phases,
        objective: Some(ObjectiveOutcome {
            text: OBJECTIVE.to_owned(),
            knee,
            broke,
            next: None,
            late_from: None,
            unsupported_from: None,
        }),
    }
}

pub fn write_trial(results: &ResultsDir, index: u32) {
    let trial = trial(results.run(), index);
    let writer = results.trial_writer(index).unwrap();
    writer.write_histograms(&histograms(&trial)).unwrap();
    let mut samples = writer.samples().unwrap();
    let mut series = |owner: &str, metric: &str, unit: &str| {
        samples.register(&Series {
            owner: Owner::named(owner),
            metric: metric.into(),
            unit: unit.parse().unwrap(),
            kind: SeriesKind::Counter,
            source: Source::Measured,
        })
    };
    let neighbours = trial.treatment.factors["neighbours"].clone();
    // Counters, with the cores spent for one served request a second and at no load.
    let mut counters = vec![
        (series("target", "cpu.total_ns", "ns"), 0.0021 * 0.9, 0.08),
        (series("target", "cpu.vcpu_ns", "ns"), 0.0021 * 0.66, 0.05),
        (series("target", "cpu.vhost_ns", "ns"), 0.0021 * 0.14, 0.01),
        (series("target", "cpu.softirq_ns", "ns"), 0.0021 * 0.1, 0.01),
        (series("client", "cpu.total_ns", "ns"), 0.0007, 0.05),
    ];
    for guest in guests(&neighbours) {
        counters.push((series(guest, "cpu.total_ns", "ns"), 0.0, 0.8));
        let client = format!("{guest}.client");
        counters.push((series(&client, "cpu.total_ns", "ns"), 0.0, 0.15));
    }
    let joules = series("host", JOULES, "J");
    let idle = series("host", "energy.model.idle_joules", "J");
    let mut random = Random::new(u64::from(index) + 99);
    let mut totals = vec![0.0; counters.len()];
    let (mut energy, mut energy_idle) = (0.0, 0.0);
    let mean_power = trial.metrics["power.mean"].quantity.value;
    for tick in 0..(8 * PHASE_SECONDS + 8) * 2 {
        let at = 2 * SECOND + tick * SECOND / 2;
        let phase = trial
            .phases
            .iter()
            .find(|phase| (phase.window.0.0..phase.window.1.0).contains(&at));
        let served = phase.map_or(50.0, |phase| phase.metrics["throughput"].quantity.value);
        for ((id, per_request, base), total) in counters.iter().zip(&mut totals) {
            let cores = (base + per_request * served) * (1.0 + 0.04 * normal(&mut random));
            *total += cores * 0.5e9;
            samples.push(*id, Nanoseconds(at), *total).unwrap();
        }
        // Varies around the trial's mean power.
        energy += 0.5 * mean_power * (1.0 + 0.3 * (served - 260.0) / 260.0);
        energy_idle += 0.5 * 11.0;
        samples.push(joules, Nanoseconds(at), energy).unwrap();
        samples.push(idle, Nanoseconds(at), energy_idle).unwrap();
    }
    samples.finish().unwrap();
    writer.finish(trial).unwrap();
}

fn histograms(trial: &Trial) -> Vec<HistogramRecord> {
    let mut random = Random::new(u64::from(trial.index) + 3000);
    trial
        .phases
        .iter()
        .map(|phase| latencies(&phase.metrics, phase.window, 2000, &mut random))
        .collect()
}

/// Lognormal latencies of the target's client with the median and the 99th percentile of `metrics`.
pub(super) fn latencies(
    metrics: &BTreeMap<String, Metric>,
    window: (Nanoseconds, Nanoseconds),
    requests: u64,
    random: &mut Random,
) -> HistogramRecord {
    let mut histogram = Histogram::new(3).unwrap();
    let p50 = metrics["latency.p50"].quantity.value * 1e9;
    let p99 = metrics["latency.p99"].quantity.value * 1e9;
    let spread = (p99 / p50).ln() / 2.326;
    for _ in 0..requests {
        let value = p50 * (spread * normal(random)).exp();
        histogram.record(value as u64).unwrap();
    }
    HistogramRecord {
        actor: "client".to_owned(),
        metric: "latency".to_owned(),
        window,
        histogram,
    }
}
