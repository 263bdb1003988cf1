// SPDX-License-Identifier: Apache-2.0
//! Creates results directories like those of real runs, with invented numbers, for tests.

#![allow(missing_docs, reason = "the names are those of results directories")]

pub mod ramp;

use hdrhistogram::Histogram;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use vtax_core::owner::Owner;
use vtax_core::{Nanoseconds, Quantity, Series, SeriesKind, Source};
use vtax_results::stats::Random;
use vtax_results::{
    Canary, FORMAT, HistogramRecord, Metric, ResultsDir, RunInfo, Scheduled, Speed, Stage,
    Treatment, Trial, TrialOutcome,
};

const SECOND: u64 = 1_000_000_000;

/// The metrics: the workload that has it, its name, unit and better direction, and its title; `!` for a headline.
const METRICS: &str = "\
iperf3-receive | cpu.per_work                | s/GB        | lower   | ! CPU time per GB received
iperf3-receive | throughput                  | bit/s       | higher  | ! Throughput
iperf3-receive | energy.per_work             | J/GB        | lower   | ! Energy per GB received
iperf3-receive | retransmits                 | 1           | lower   | TCP retransmissions
http-rate      | cpu.per_work                | s/request   | lower   | ! CPU time per request
http-rate      | latency.p50                 | s           | lower   | Median response time
http-rate      | latency.p99                 | s           | lower   | ! 99th percentile of response time
http-rate      | throughput                  | request/s   | higher  | Requests served
ramp           | throughput                  | request/s   | higher  | requests served
ramp           | rate                        | request/s   | neither | requests sent
ramp           | latency.p50                 | s           | lower   | median latency
ramp           | latency.p99                 | s           | lower   | ! 99th percentile of latency
ramp           | errors                      | %           | lower   | requests that failed
ramp           | cpu.cores                   | core        | lower   | processors kept busy for the target
ramp           | power.mean                  | W           | lower   | mean power of the host
ramp           | knee                        | request/s   | higher  | ! highest load that kept latency.p99 <= 20ms
ramp           | cpu.per_work                | s/request   | lower   | ! CPU time to serve a request
neighbour      | cpu.cores                   | core        | lower   | processors kept busy
neighbour      | throughput                  | op/s        | higher  | operations
all            | cpu.per_work                | s/op        | lower   | ! CPU time per operation
all            | cpu.cores                   | core        | lower   | Cores busy on its behalf
all            | cpu.stage                   | core        | neither | processors kept busy by
all            | exits.per_second            | exit/s      | neither | VM exits
all            | interrupts.per_second       | interrupt/s | lower   | Interrupts
all            | context_switches.per_second | 1/s         | lower   | Context switches
all            | power.mean                  | W           | lower   | Mean power
";

/// The parameters of an invented run.
#[derive(Debug, Clone)]
pub struct Fake {
    /// The platforms; the first one is the baseline.
    pub platforms: Vec<&'static str>,
    /// Repetitions.
    pub blocks: u32,
    /// Seconds of the measured window.
    pub seconds: u64,
    /// Samples per second.
    pub rate: u64,
    /// Levels of the factor `link.mtu`; none for a run without factors.
    pub mtu: Vec<u32>,
    /// Variants: the name, its cost, and its further cost in a VM, relative to the first; none for a run without variants.
    pub variants: Vec<(&'static str, f64, f64)>,
    /// `local`, `testbed:kvm`.
    pub place: &'static str,
    /// `full` or `quick`.
    pub profile: &'static str,
    /// The cost of a VM relative to bare metal.
    pub vm_cost: f64,
    /// Whether one trial fails and one is suspect.
    pub trouble: bool,
    /// Text in every label and reason, to test that it is escaped.
    pub spice: &'static str,
    /// The number of additional series per trial, for more samples than usual.
    pub extra_series: usize,
    /// The speed of the host by a canary beside each trial; none without one.
    pub canary: Option<f64>,
    /// The number of requests in the histogram of a trial of `http-rate`; without, it has no histogram.
    pub requests: Option<u64>,
}

impl Default for Fake {
    fn default() -> Self {
        Self {
            platforms: vec!["native", "container", "qemu"],
            blocks: 5,
            seconds: 20,
            rate: 2,
            mtu: Vec::new(),
            variants: Vec::new(),
            place: "local",
            profile: "full",
            vm_cost: 3.1,
            trouble: true,
            spice: "",
            extra_series: 0,
            canary: None,
            requests: None,
        }
    }
}

pub fn normal(random: &mut Random) -> f64 {
    (-2.0 * (1.0 - random.uniform()).ln()).sqrt()
        * (2.0 * std::f64::consts::PI * random.uniform()).cos()
}

/// The stages of CPU time, as shares of the CPU time spent for the target.
fn shares(vm: bool) -> impl Iterator<Item = (Stage, f64)> {
    let target: &[(Stage, f64)] = if vm {
        &[
            (Stage::Vcpu, 0.7),
            (Stage::Emulator, 0.12),
            (Stage::Vhost, 0.08),
        ]
    } else {
        &[(Stage::Service, 0.9)]
    };
    let others = [(Stage::Softirq, 0.1), (Stage::Client, 0.4)];
    let rest = [(Stage::Observer, 0.01), (Stage::Rest, 0.03)];
    target.iter().copied().chain(others).chain(rest)
}

/// The metrics of a workload in one trial; power and energy are modelled.
struct Metrics {
    workload: String,
    source: Source,
    found: BTreeMap<String, Metric>,
}

impl Metrics {
    fn new(workload: &str, source: Source) -> Self {
        Self {
            workload: workload.to_owned(),
            source,
            found: BTreeMap::new(),
        }
    }

    /// The metric of this name in [`METRICS`].
    fn metric(&self, name: &str, value: f64) -> Metric {
        let mut rows = METRICS.lines().map(|row| row.split('|').map(str::trim));
        let found = rows.find_map(|mut row| {
            let workload = row.next()?;
            let is_it = workload == self.workload || workload == "all";
            (row.next()? == name && is_it).then(|| row.collect::<Vec<_>>())
        });
        let [unit, better, title] = found.unwrap()[..] else {
            panic!("{name} has other columns");
        };
        let is_modelled = name.starts_with("power") || name.starts_with("energy");
        let model = is_modelled.then_some(Source::Modelled);
        Metric {
            quantity: Quantity::new(value, unit.parse().unwrap()),
            source: model.map_or(self.source, |model| self.source.combine(model)),
            model: model.map(|_| "a published curve".to_owned()),
            meter: None,
            better: serde_json::from_value(json!(better)).unwrap(),
            headline: title.starts_with('!'),
            title: title.trim_start_matches("! ").to_owned(),
        }
    }

    fn add(&mut self, name: &str, value: f64) {
        self.found.insert(name.to_owned(), self.metric(name, value));
    }

    fn add_stages(&mut self, cores: f64, shares: impl IntoIterator<Item = (Stage, f64)>) {
        for (stage, share) in shares {
            let mut metric = self.metric("cpu.stage", cores * share);
            metric.title = format!("{} {}", metric.title, stage.words());
            self.found.insert(stage.metric(), metric);
        }
    }
}

/// A series of samples.
fn series(owner: &str, metric: &str, unit: &str, kind: SeriesKind, source: Source) -> Series {
    Series {
        owner: Owner::named(owner),
        metric: metric.into(),
        unit: unit.parse().unwrap(),
        kind,
        source,
    }
}

impl Fake {
    pub fn treatments(&self) -> Vec<Treatment> {
        let none = self.mtu.is_empty().then_some(None);
        let levels = || none.into_iter().chain(self.mtu.iter().copied().map(Some));
        let workloads = ["iperf3-receive", "http-rate", "cpu-control"].into_iter();
        let pairs = workloads.flat_map(|workload| levels().map(move |level| (workload, level)));
        let treatments = pairs.flat_map(|(workload, level)| {
            let label = move |platform: &str| {
                let level = level.map_or(String::new(), |mtu| format!(" · mtu {mtu}"));
                format!("{platform} · {workload}{level}{}", self.spice)
            };
            self.platforms.iter().map(move |platform| Treatment {
                label: label(platform),
                platform: (*platform).to_owned(),
                workload: workload.to_owned(),
                factors: (level
                    .iter()
                    .map(|mtu| ("link.mtu".to_owned(), mtu.to_string())))
                .collect(),
                baseline: (*platform != self.platforms[0]).then(|| label(self.platforms[0])),
                platform_kind: (*platform).to_owned(),
                workload_kind: workload.to_owned(),
            })
        });
        if self.variants.is_empty() {
            return treatments.collect();
        }
        let treatments = treatments.flat_map(|treatment| {
            let label = |variant: &str| format!("{} · variant={variant}", treatment.label);
            let of = |(number, (variant, ..)): (usize, &(&str, f64, f64))| {
                let mut own = treatment.clone();
                own.label = label(variant);
                own.baseline = (number > 0).then(|| label(self.variants[0].0));
                own.factors
                    .insert("variant".to_owned(), (*variant).to_owned());
                own
            };
            self.variants.iter().enumerate().map(of).collect::<Vec<_>>()
        });
        treatments.collect()
    }

    pub fn run_info(&self) -> RunInfo {
        let treatments = self.treatments();
        let mut random = Random::new(42);
        let mut schedule = Vec::new();
        for block in 0..self.blocks {
            let mut order: Vec<usize> = (0..treatments.len()).collect();
            for i in (1..order.len()).rev() {
                order.swap(i, random.below(i + 1));
            }
            let order = order.into_iter();
            schedule.extend(order.map(|treatment| Scheduled { treatment, block }));
        }
        let run = json!({
            "format": FORMAT, "name": "network-tax", "seed": 42, "profile": self.profile, "place": self.place,
            "description": "What it costs to move data through a container and a VM instead of bare metal",
            "started": "2026-11-20T14:03:00+01:00", "plan_sha256": "5f2b".repeat(16), "treatments": treatments,
            "schedule": schedule, "minimum_effect": 0.02,
        });
        serde_json::from_value(run).unwrap()
    }

    /// Creates the directory and all of its trials.
    pub fn write(&self, path: &Path) -> ResultsDir {
        let results = self.create(path);
        for index in results.pending() {
            self.write_trial(&results, index);
        }
        results
    }

    pub fn create(&self, path: &Path) -> ResultsDir {
        let plan = "name = \"network-tax\"\nseed = 42\nrepetitions = 5\n\n[platforms]\nnative = {}\ncontainer = {}\nqemu = {}\n";
        self.create_with_plan(path, plan)
    }

    pub fn create_with_plan(&self, path: &Path, plan: &str) -> ResultsDir {
        let host = json!({
            "hostname": "example", "kernel": "6.18.0", "cpu": "Example CPU @ 2.6 GHz", "cores": 2,
            "memory_bytes": 25_769_803_776u64, "clock_source": "tsc",
            "mitigations": {"spectre_v2": "Mitigation: Retpolines"},
            "accelerators": ["tcg"], "versions": {"qemu": "7.2.22", "runc": "1.1.5", "iperf3": "3.12"},
        });
        ResultsDir::create(path, &self.run_info(), plan, &host).unwrap()
    }

    pub fn write_trial(&self, results: &ResultsDir, index: u32) {
        let writer = results.trial_writer(index).unwrap();
        let trial = self.trial(results.run(), index);
        let platform = trial.treatment.platform.as_str();
        let log = format!("boot {platform}\nservice up\nload started\n");
        writer.log().unwrap().write_all(log.as_bytes()).unwrap();
        writer.write_workload_json(b"{\"end\": {}}\n").unwrap();
        let mut samples = writer.samples().unwrap();
        let source = source(platform);
        let mut add = |owner, metric: &str, unit, kind| {
            samples.register(&series(owner, metric, unit, kind, source))
        };
        let cpu = add("target", "cpu.total_ns", "ns", SeriesKind::Counter);
        // The target receives the bytes that its host sends.
        let received = add("target", "net.tx_bytes", "B", SeriesKind::Counter);
        let power = add("host", "power", "W", SeriesKind::Gauge);
        let names = (0..self.extra_series).map(|i| format!("interrupts.source{i}"));
        let extra: Vec<_> = names
            .map(|name| add("host", &name, "interrupt", SeriesKind::Counter))
            .collect();
        let mut random = Random::new(u64::from(index) + 7);
        let cores = trial.metrics["cpu.cores"].quantity.value;
        let bytes = if trial.treatment.workload == "iperf3-receive" {
            trial.metrics["throughput"].quantity.value / 8.0
        } else {
            0.0
        };
        let (mut cpu_total, mut received_total) = (5e9, 0.0);
        // Two seconds of warm-up before the window and one after it.
        for tick in 0..(self.seconds + 3) * self.rate {
            let at = Nanoseconds(SECOND + tick * SECOND / self.rate);
            let is_slow = platform == "qemu" && tick < 7 * self.rate;
            let slow_start = if is_slow { 1.2 } else { 1.0 };
            cpu_total +=
                cores * 1e9 / self.rate as f64 * slow_start * (1.0 + 0.02 * normal(&mut random));
            received_total += bytes / self.rate as f64 * (1.0 + 0.01 * normal(&mut random));
            samples.push(cpu, at, cpu_total).unwrap();
            samples.push(received, at, received_total).unwrap();
            samples.push(power, at, 12.0 + 8.0 * cores).unwrap();
            for id in &extra {
                samples.push(*id, at, tick as f64 * 100.0).unwrap();
            }
        }
        samples.finish().unwrap();
        if let (Some(requests), "http-rate") = (self.requests, &*trial.treatment.workload) {
            let record = latencies(&trial.metrics, trial.window, requests, &mut random);
            writer.write_histograms(&[record]).unwrap();
        }
        writer.finish(trial).unwrap();
    }

    pub fn trial(&self, run: &RunInfo, index: u32) -> Trial {
        let Scheduled { treatment, block } = run.schedule[index as usize].clone();
        let treatment = run.treatments[treatment].clone();
        let mut random = Random::new(1000 + u64::from(index));
        // A block effect that paired trials share, and noise of each value's own.
        let level = 1.0 + 0.03 * normal(&mut Random::new(u64::from(block)));
        let mut noisy = |value: f64| value * level * (1.0 + 0.02 * normal(&mut random));
        let vm = treatment.platform == "qemu";
        let cost = match (vm, treatment.workload.as_str()) {
            (true, "cpu-control") => 1.01,
            (true, _) => self.vm_cost,
            (false, _) => 1.0,
        };
        let mut variants = self.variants.iter();
        let variant = variants.find(|(name, ..)| treatment.variant() == Some(*name));
        let of_variant = variant.map_or(
            1.0,
            |(_, cost, in_vm)| if vm { cost * in_vm } else { *cost },
        );
        let cost = cost * of_variant;
        let mtu = treatment.factors.get("link.mtu");
        let mtu: f64 = mtu.map_or(1500.0, |mtu| mtu.parse().unwrap());
        let cost = cost * (1500.0 / mtu).powf(0.4);
        let mut metrics = Metrics::new(&treatment.workload, source(&treatment.platform));
        let seconds = self.seconds as f64;
        let (amount, unit, phrase, cores) = match treatment.workload.as_str() {
            "iperf3-receive" => {
                let per_gigabyte = noisy(0.62 * cost);
                let rate = noisy(if vm { 1.1e9 } else { 3.6e9 });
                metrics.add("cpu.per_work", per_gigabyte);
                metrics.add("throughput", rate);
                metrics.add("energy.per_work", per_gigabyte * 9.5);
                metrics.add("retransmits", noisy(12.0).round());
                let amount = rate / 8e9 * seconds;
                (amount, "GB", "receive 1 GB", per_gigabyte * rate / 8e9)
            }
            "http-rate" => {
                let per_request = noisy(0.00021 * cost);
                metrics.add("cpu.per_work", per_request);
                metrics.add("latency.p50", noisy(0.0011 * cost));
                metrics.add("latency.p99", noisy(0.0042 * cost));
                metrics.add("throughput", 500.0);
                let cores = per_request * 500.0;
                (500.0 * seconds, "request", "serve a request", cores)
            }
            _ => {
                metrics.add("cpu.per_work", noisy(0.0031 * cost));
                (300.0 * seconds, "op", "compute one operation", noisy(1.0))
            }
        };
        metrics.add("cpu.cores", cores);
        if vm {
            metrics.add("exits.per_second", noisy(21_000.0));
        }
        metrics.add_stages(cores, shares(vm));
        let interrupts = noisy(if vm { 9_400.0 } else { 5_200.0 });
        metrics.add("interrupts.per_second", interrupts);
        let switches = noisy(if vm { 31_000.0 } else { 8_000.0 });
        metrics.add("context_switches.per_second", switches);
        metrics.add("power.mean", noisy(12.0 + 8.0 * cores));
        let environment = match treatment.platform.as_str() {
            "qemu" => json!({"accel": "tcg", "machine": "q35", "version": "7.2.22"}),
            "container" => json!({"runtime": "crun 1.8"}),
            _ => json!({}),
        };
        let boot = if vm {
            11 * SECOND + SECOND / 3
        } else {
            SECOND / 5
        };
        let trial = json!({
            "format": FORMAT, "index": index, "block": block, "treatment": treatment,
            "started": format!("2026-11-20T14:{:02}:{:02}+01:00", 3 + index / 2 % 57, index % 2 * 30),
            "outcome": "complete", "suspect": [],
            "times": {
                "boot": boot, "service": SECOND / 4, "warmup": 2 * SECOND, "measured": self.seconds * SECOND,
                "teardown": SECOND / 2, "total": boot + (self.seconds + 3) * SECOND,
            },
            "window": [3 * SECOND, (3 + self.seconds) * SECOND],
            "work": {"amount": amount, "unit": unit, "phrase": phrase},
            "metrics": {}, "environment": environment,
            "observation": {
                "cpu": SECOND / 50, "passes": (self.seconds + 2) * self.rate,
                "missed": u64::from(index.is_multiple_of(9)), "energy": ["power"],
            },
        });
        let mut trial: Trial = serde_json::from_value(trial).unwrap();
        trial.metrics = metrics.found;
        trial.observation.canary = self.canary.map(|speed| {
            let mut reading = || {
                let speed = speed * (1.0 + 0.01 * normal(&mut random));
                let part = |name: &str, rounds: f64| {
                    let speed = Speed {
                        per_second: 0.98 * rounds * speed,
                        per_cpu_second: rounds * speed,
                    };
                    (name.to_owned(), speed)
                };
                BTreeMap::from([
                    part("integer", 3e8),
                    part("memory", 5e8),
                    part("calls", 6e6),
                    part("pipe", 2e5),
                    part("packets", 2e5),
                ])
            };
            Canary {
                code: "6f".repeat(32),
                before: reading(),
                after: reading(),
            }
        });
        let spice = self.spice;
        if self.trouble && index == 4 {
            let foreign = format!("foreign load: 0.31 cores outside the cell{spice}");
            trial.suspect = vec![foreign, "sampler gap of 2.4 s".to_owned()];
        }
        if self.trouble && index == 11 {
            let reason = format!("the service did not answer within 20 s{spice}");
            trial.outcome = TrialOutcome::Failed(reason);
        }
        trial
    }
}

/// The flag of numbers of a platform.
fn source(platform: &str) -> Source {
    if platform == "qemu" {
        Source::Emulated
    } else {
        Source::Measured
    }
}

/// Lognormal latencies of the target's client with the median and the 99th percentile of `metrics`.
fn latencies(
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
