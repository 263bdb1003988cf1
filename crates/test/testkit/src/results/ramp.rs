// SPDX-License-Identifier: Apache-2.0
//! Creates a results directory of a ramp with neighbours, with invented numbers, for tests.

use super::{Metrics, SECOND, latencies, normal, series};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use vtax_core::{Nanoseconds, SeriesKind, Source};
use vtax_results::stats::Random;
use vtax_results::{
    FORMAT, HistogramRecord, Metric, Phase, ResultsDir, RunInfo, Scheduled, Stage, Trial,
};

const LEVELS: [f64; 8] = [100.0, 150.0, 200.0, 250.0, 300.0, 350.0, 400.0, 450.0];
const OBJECTIVE: &str = "latency.p99 <= 20ms";
const PHASE_SECONDS: u64 = 20;
/// The series of the host's power.
const JOULES: &str = "energy.model.host_joules";
/// The start of the measured part, in ns.
const START: u64 = 5 * SECOND;
const STAGES: [(Stage, f64); 5] = [
    (Stage::Vcpu, 0.66),
    (Stage::Emulator, 0.1),
    (Stage::Vhost, 0.14),
    (Stage::Softirq, 0.1),
    (Stage::Client, 0.35),
];

/// A ramp of 3 treatments, 4 blocks and 8 levels.
pub fn write(path: &Path) -> ResultsDir {
    let run = run_info();
    let host = json!({"hostname": "example", "kernel": "6.18.0", "cpu": "Example CPU @ 2.6 GHz", "cores": 4});
    let results = ResultsDir::create(path, &run, "name = \"knee\"\n", &host).unwrap();
    for index in results.pending() {
        write_trial(&results, index);
    }
    results
}

pub fn run_info() -> RunInfo {
    let label = |level: &str| format!("qemu · http-rate · neighbours {level}");
    let treatments = ["none", "pi", "disk+net"].map(|level| {
        json!({
            "label": label(level), "platform": "vm", "workload": "http-rate", "factors": {"neighbours": level},
            "baseline": (level != "none").then(|| label("none")), "platform_kind": "qemu", "workload_kind": "http-rate",
        })
    });
    let trial = |index| json!({"treatment": (index % 3 + index / 3) % 3, "block": index / 3});
    let run = json!({
        "format": FORMAT, "name": "noisy-neighbours", "seed": 7, "profile": "full", "place": "local",
        "description": "How much load a VM bears before its tail latency breaks, alone and beside neighbours",
        "started": "2026-11-21T09:30:00+01:00", "plan_sha256": "a7c3".repeat(16), "treatments": treatments,
        "schedule": (0..12).map(trial).collect::<Vec<_>>(), "minimum_effect": 0.02,
    });
    serde_json::from_value(run).unwrap()
}

/// The metrics of a guest that can serve `capacity` requests a second, at a load level.
fn at_level(level: f64, capacity: f64, noise: f64) -> BTreeMap<String, Metric> {
    let mut metrics = Metrics::new("ramp", Source::Measured);
    let served = level.min(capacity) * noise;
    let busy = (level / capacity).min(0.985);
    let cores = 0.1 + served * 0.0021;
    metrics.add("throughput", served);
    metrics.add("rate", level);
    metrics.add("latency.p50", 0.0018 / (1.0 - 0.8 * busy) * noise);
    let p99 = 0.0042 / (1.0 - busy).powf(0.85) * noise * noise;
    metrics.add("latency.p99", p99);
    let errors = ((level - capacity) / level).max(0.0) * 100.0;
    metrics.add("errors", errors);
    metrics.add("cpu.cores", cores);
    metrics.add("power.mean", 14.0 + 9.0 * cores);
    metrics.add_stages(cores, STAGES);
    metrics.found
}

fn guests(neighbours: &str) -> impl Iterator<Item = &str> {
    neighbours.split('+').filter(|name| *name != "none")
}

fn trial(run: &RunInfo, index: u32) -> Trial {
    let Scheduled { treatment, block } = run.schedule[index as usize].clone();
    let treatment = &run.treatments[treatment];
    let mut random = Random::new(500 + u64::from(index));
    let neighbours = treatment.factors["neighbours"].as_str();
    let capacity = match neighbours {
        "none" => 430.0,
        "pi" => 360.0,
        _ => 270.0,
    } * (1.0 + 0.06 * normal(&mut random));
    let phases = (0..).zip(LEVELS).map(|(place, level)| {
        let start = START + place * PHASE_SECONDS * SECOND;
        let metrics = at_level(level, capacity, 1.0 + 0.02 * normal(&mut random));
        let phase = json!({
            "name": format!("{level} req/s"), "level": {"value": level, "unit": "request/s"}, "work": null,
            "window": [start, start + PHASE_SECONDS * SECOND], "metrics": metrics,
            "kept": metrics["latency.p99"].quantity.value <= 0.02,
        });
        serde_json::from_value(phase).unwrap()
    });
    let phases: Vec<Phase> = phases.collect();
    let kept = phases.iter().take_while(|phase| phase.kept == Some(true));
    let knee = kept.last().and_then(|phase| phase.level);
    let broke = phases.iter().find(|phase| phase.kept == Some(false));
    let broke = broke.map(|phase| {
        let p99 = phase.metrics["latency.p99"].quantity;
        format!("latency.p99 = {p99} at {}", phase.name)
    });
    let mut metrics = Metrics::new("ramp", Source::Measured);
    metrics.found = at_level(250.0, capacity, 1.0);
    if let Some(knee) = knee {
        metrics.add("knee", knee.value);
    }
    metrics.add("cpu.per_work", 0.0021);
    let guest = |name, role, metrics: BTreeMap<String, Metric>| {
        json!({
            "name": name, "role": role, "platform": "qemu", "workload": "http-rate", "place": "local", "metrics": metrics,
        })
    };
    let client =
        |name, drives| json!({"name": name, "role": "client", "drives": drives, "place": "local"});
    let target = guest("target", "target", BTreeMap::new());
    let mut actors = vec![target, client("client".to_owned(), "target")];
    for name in guests(neighbours) {
        let mut own = Metrics::new("neighbour", Source::Measured);
        let noise = 1.0 + 0.03 * normal(&mut random);
        own.add("cpu.cores", 0.8 * noise);
        own.add("throughput", 120.0 * noise);
        actors.push(guest(name, "neighbour", own.found));
        actors.push(client(format!("{name}.client"), name));
    }
    let total = LEVELS.len() as u64 * PHASE_SECONDS * SECOND;
    let trial = json!({
        "format": FORMAT, "index": index, "block": block, "treatment": treatment,
        "started": format!("2026-11-21T09:{:02}:00+01:00", 30 + index), "outcome": "complete", "suspect": [],
        "times": {
            "boot": 0, "service": 0, "warmup": 0, "measured": total, "teardown": 0, "total": total + 20 * SECOND,
        },
        "window": [START, START + total],
        "work": {"amount": 40_000.0, "unit": "request", "phrase": "serve a request"},
        "metrics": metrics.found, "environment": {"accel": "kvm"},
        "observation": {"cpu": 0, "passes": 0, "missed": 0, "energy": [JOULES]},
        "actors": actors, "phases": phases,
        "objective": {"text": OBJECTIVE, "knee": knee, "broke": broke},
    });
    serde_json::from_value(trial).unwrap()
}

pub fn write_trial(results: &ResultsDir, index: u32) {
    let trial = trial(results.run(), index);
    let writer = results.trial_writer(index).unwrap();
    writer.write_histograms(&histograms(&trial)).unwrap();
    let mut samples = writer.samples().unwrap();
    let mut counter = |owner: &str, metric: &str, unit: &str| {
        let (kind, source) = (SeriesKind::Counter, Source::Measured);
        samples.register(&series(owner, metric, unit, kind, source))
    };
    // Counters, with the cores spent for one served request a second and at no load.
    let mut counters: Vec<_> = [
        ("target", "cpu.total_ns", 0.0021 * 0.9, 0.08),
        ("target", "cpu.vcpu_ns", 0.0021 * 0.66, 0.05),
        ("target", "cpu.vhost_ns", 0.0021 * 0.14, 0.01),
        ("target", "cpu.softirq_ns", 0.0021 * 0.1, 0.01),
        ("client", "cpu.total_ns", 0.0007, 0.05),
    ]
    .map(|(owner, metric, per_request, base)| (counter(owner, metric, "ns"), per_request, base))
    .into();
    for guest in guests(&trial.treatment.factors["neighbours"]) {
        let client = format!("{guest}.client");
        for (owner, base) in [(guest, 0.8), (client.as_str(), 0.15)] {
            counters.push((counter(owner, "cpu.total_ns", "ns"), 0.0, base));
        }
    }
    let joules = counter("host", JOULES, "J");
    let idle = counter("host", "energy.model.idle_joules", "J");
    let mut random = Random::new(u64::from(index) + 99);
    let mut totals = vec![0.0; counters.len()];
    let (mut energy, mut energy_idle) = (0.0, 0.0);
    let mean_power = trial.metrics["power.mean"].quantity.value;
    for tick in 0..(8 * PHASE_SECONDS + 8) * 2 {
        let at = 2 * SECOND + tick * SECOND / 2;
        let mut phases = trial.phases.iter();
        let phase = phases.find(|phase| (phase.window.0.0..phase.window.1.0).contains(&at));
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
    let phases = trial.phases.iter();
    phases
        .map(|phase| latencies(&phase.metrics, phase.window, 2000, &mut random))
        .collect()
}
