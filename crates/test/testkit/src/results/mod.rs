// SPDX-License-Identifier: Apache-2.0
//! Creates results directories like those of real runs, with invented numbers, for tests.

#![allow(missing_docs, reason = "the names are those of results directories")]

pub mod ramp;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use vtax_core::owner::Owner;
use vtax_core::{Nanoseconds, Quantity, Series, SeriesKind, Source};
use vtax_results::stats::Random;
use vtax_results::{
    Better, FORMAT, Metric, ObservationCost, PhaseTimes, ResultsDir, RunInfo, Scheduled, Stage,
    Treatment, Trial, TrialOutcome, Work,
};

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
            place: "local",
            profile: "full",
            vm_cost: 3.1,
            trouble: true,
            spice: "",
            extra_series: 0,
            requests: None,
        }
    }
}

pub fn normal(random: &mut Random) -> f64 {
    (-2.0 * (1.0 - random.uniform()).ln()).sqrt()
        * (2.0 * std::f64::consts::PI * random.uniform()).cos()
}

/// The stages of CPU time, as shares of the CPU time spent for the target.
fn shares(vm: bool) -> Vec<(Stage, f64)> {
    let mut shares = if vm {
        vec![
            (Stage::Vcpu, 0.7),
            (Stage::Emulator, 0.12),
            (Stage::Vhost, 0.08),
        ]
    } else {
        vec![(Stage::Service, 0.9)]
    };
    shares.extend([
        (Stage::Softirq, 0.1),
        (Stage::Client, 0.4),
        (Stage::Observer, 0.01),
        (Stage::Rest, 0.03),
    ]);
    shares
}

/// Metrics of one trial; power and energy are modelled.
pub struct Metrics {
    pub found: BTreeMap<String, Metric>,
    pub source: Source,
    pub headlines: &'static [&'static str],
}

impl Metrics {
    pub fn add(&mut self, name: &str, value: f64, unit: &str, better: Better, title: &str) {
        let is_modelled = name.starts_with("power") || name.starts_with("energy");
        let metric = Metric {
            quantity: Quantity::new(value, unit.parse().unwrap()),
            source: if is_modelled {
                self.source.combine(Source::Modelled)
            } else {
                self.source
            },
            model: is_modelled.then(|| "a published curve".to_owned()),
            meter: None,
            better,
            headline: self.headlines.contains(&name),
            title: title.to_owned(),
        };
        self.found.insert(name.to_owned(), metric);
    }
}

const WORKLOADS: [&str; 3] = ["iperf3-receive", "http-rate", "cpu-control"];

impl Fake {
    pub fn treatments(&self) -> Vec<Treatment> {
        let mut treatments = Vec::new();
        for workload in WORKLOADS {
            let levels: Vec<Option<u32>> = if self.mtu.is_empty() {
                vec![None]
            } else {
                self.mtu.iter().copied().map(Some).collect()
            };
            for level in levels {
                let label = |platform: &str| {
                    let level = level.map(|mtu| format!(" · mtu {mtu}")).unwrap_or_default();
                    format!("{platform} · {workload}{level}{}", self.spice)
                };
                for platform in &self.platforms {
                    treatments.push(Treatment {
                        label: label(platform),
                        platform: (*platform).to_owned(),
                        workload: workload.to_owned(),
                        factors: level
                            .map(|mtu| ("link.mtu".to_owned(), mtu.to_string()))
                            .into_iter()
                            .collect(),
                        baseline: self
                            .platforms
                            .first()
                            .filter(|first| *first != platform)
                            .map(|first| label(first)),
                        platform_kind: (*platform).to_owned(),
                        workload_kind: workload.to_owned(),
                    });
                }
            }
        }
        treatments
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
            schedule.extend(
                order
                    .into_iter()
                    .map(|treatment| Scheduled { treatment, block }),
            );
        }
        RunInfo {
            format: FORMAT,
            name: "network-tax".to_owned(),
            description:
                "What it costs to move data through a container and a VM instead of bare metal"
                    .to_owned(),
            seed: 42,
            profile: self.profile.to_owned(),
            place: self.place.to_owned(),
            started: "2026-11-20T14:03:00+01:00".to_owned(),
            plan_sha256: "5f2b".repeat(16),
            treatments,
            schedule,
            minimum_effect: 0.02,
        }
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
        let host = serde_json::json!({
            "hostname": "example", "kernel": "6.18.0", "cpu": "Example CPU @ 2.6 GHz", "cores": 2,
            "memory_bytes": 25_769_803_776u64, "clock_source": "tsc",
            "mitigations": {"spectre_v2": "Mitigation: Retpolines"},
            "accelerators": ["tcg"], "versions": {"qemu": "7.2.22", "runc": "1.1.5", "iperf3": "3.12"},
        });
        let plan = "name = \"network-tax\"\nseed = 42\nrepetitions = 5\n\n[platforms]\nnative = {}\ncontainer = {}\nqemu = {}\n";
        ResultsDir::create(path, &self.run_info(), plan, &host).unwrap()
    }

    pub fn write_trial(&self, results: &ResultsDir, index: u32) {
        let writer = results.trial_writer(index).unwrap();
        let trial = self.trial(results.run(), index);
        writeln!(
            writer.log().unwrap(),
            "boot {}\nservice up\nload started",
            trial.treatment.platform
        )
        .unwrap();
        writer.write_workload_json(b"{\"end\": {}}\n").unwrap();
        let mut samples = writer.samples().unwrap();
        let source = if trial.treatment.platform == "qemu" {
            Source::Emulated
        } else {
            Source::Measured
        };
        let mut series = |owner: &str, metric: &str, unit: &str, kind| {
            samples.register(&Series {
                owner: Owner::named(owner),
                metric: metric.into(),
                unit: unit.parse().unwrap(),
                kind,
                source,
            })
        };
        let cpu = series("target", "cpu.total_ns", "ns", SeriesKind::Counter);
        // The target receives the bytes that its host sends.
        let received = series("target", "net.tx_bytes", "B", SeriesKind::Counter);
        let power = series("host", "power", "W", SeriesKind::Gauge);
        let extra: Vec<_> = (0..self.extra_series)
            .map(|i| {
                series(
                    "host",
                    &format!("interrupts.source{i}"),
                    "interrupt",
                    SeriesKind::Counter,
                )
            })
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
            let at = Nanoseconds(1_000_000_000 + tick * 1_000_000_000 / self.rate);
            let slow_start = if trial.treatment.platform == "qemu" && tick < 7 * self.rate {
                1.2
            } else {
                1.0
            };
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
            let record = ramp::latencies(&trial.metrics, trial.window, requests, &mut random);
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
        let cost = match (treatment.platform.as_str(), treatment.workload.as_str()) {
            ("qemu", "cpu-control") => 1.01,
            ("qemu", _) => self.vm_cost,
            _ => 1.0,
        };
        let mtu: f64 = treatment
            .factors
            .get("link.mtu")
            .map_or(1500.0, |mtu| mtu.parse().unwrap());
        let cost = cost * (1500.0 / mtu).powf(0.4);
        let source = if vm {
            Source::Emulated
        } else {
            Source::Measured
        };
        let mut metrics = Metrics {
            found: BTreeMap::new(),
            source,
            headlines: match treatment.workload.as_str() {
                "http-rate" => &["cpu.per_work", "latency.p99"],
                _ => &["cpu.per_work", "throughput", "energy.per_work"],
            },
        };
        let mut add = |name: &str, value, unit: &str, better, title: &str| {
            metrics.add(name, value, unit, better, title);
        };
        let (lower, higher, neither) = (Better::Lower, Better::Higher, Better::Neither);
        let (work, cores) = match treatment.workload.as_str() {
            "iperf3-receive" => {
                let seconds_per_gigabyte = noisy(0.62 * cost);
                let rate = if vm { noisy(1.1e9) } else { noisy(3.6e9) };
                add(
                    "cpu.per_work",
                    seconds_per_gigabyte,
                    "s/GB",
                    lower,
                    "CPU time per GB received",
                );
                add("throughput", rate, "bit/s", higher, "Throughput");
                add(
                    "energy.per_work",
                    seconds_per_gigabyte * 9.5,
                    "J/GB",
                    lower,
                    "Energy per GB received",
                );
                add(
                    "retransmits",
                    noisy(12.0).round(),
                    "1",
                    lower,
                    "TCP retransmissions",
                );
                let amount = rate / 8e9 * self.seconds as f64;
                (
                    Work {
                        amount,
                        unit: "GB".parse().unwrap(),
                        phrase: "receive 1 GB".into(),
                    },
                    seconds_per_gigabyte * rate / 8e9,
                )
            }
            "http-rate" => {
                let per_request = noisy(0.00021 * cost);
                add(
                    "cpu.per_work",
                    per_request,
                    "s/request",
                    lower,
                    "CPU time per request",
                );
                add(
                    "latency.p50",
                    noisy(0.0011 * cost),
                    "s",
                    lower,
                    "Median response time",
                );
                add(
                    "latency.p99",
                    noisy(0.0042 * cost),
                    "s",
                    lower,
                    "99th percentile of response time",
                );
                add("throughput", 500.0, "request/s", higher, "Requests served");
                (
                    Work {
                        amount: 500.0 * self.seconds as f64,
                        unit: "request".parse().unwrap(),
                        phrase: "serve a request".into(),
                    },
                    per_request * 500.0,
                )
            }
            _ => {
                add(
                    "cpu.per_work",
                    noisy(0.0031 * cost),
                    "s/op",
                    lower,
                    "CPU time per operation",
                );
                (
                    Work {
                        amount: 300.0 * self.seconds as f64,
                        unit: "op".parse().unwrap(),
                        phrase: "compute one operation".into(),
                    },
                    noisy(1.0),
                )
            }
        };
        add(
            "cpu.cores",
            cores,
            "core",
            lower,
            "Cores busy on its behalf",
        );
        if vm {
            add(
                "exits.per_second",
                noisy(21_000.0),
                "exit/s",
                neither,
                "VM exits",
            );
        }
        for (stage, share) in shares(vm) {
            add(
                &stage.metric(),
                cores * share,
                "core",
                neither,
                &format!("processors kept busy by {}", stage.words()),
            );
        }
        add(
            "interrupts.per_second",
            noisy(if vm { 9_400.0 } else { 5_200.0 }),
            "interrupt/s",
            lower,
            "Interrupts",
        );
        add(
            "context_switches.per_second",
            noisy(if vm { 31_000.0 } else { 8_000.0 }),
            "1/s",
            lower,
            "Context switches",
        );
        add(
            "power.mean",
            noisy(12.0 + 8.0 * cores),
            "W",
            lower,
            "Mean power",
        );
        let second = 1_000_000_000;
        let suspect = if self.trouble && index == 4 {
            vec![
                format!("foreign load: 0.31 cores outside the cell{}", self.spice),
                "sampler gap of 2.4 s".to_owned(),
            ]
        } else {
            Vec::new()
        };
        let outcome = if self.trouble && index == 11 {
            TrialOutcome::Failed(format!(
                "the service did not answer within 20 s{}",
                self.spice
            ))
        } else {
            TrialOutcome::Complete
        };
        let environment = match treatment.platform.as_str() {
            "qemu" => [("accel", "tcg"), ("machine", "q35"), ("version", "7.2.22")]
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .into(),
            "container" => [("runtime".to_owned(), "crun 1.8".to_owned())].into(),
            _ => BTreeMap::new(),
        };
        let boot = if vm {
            11 * second + second / 3
        } else {
            second / 5
        };
        Trial {
            format: FORMAT,
            index,
            block,
            treatment,
            started: format!(
                "2026-11-20T14:{:02}:{:02}+01:00",
                3 + index / 2 % 57,
                index % 2 * 30
            ),
            outcome,
            suspect,
            disturbed: Vec::new(),
            times: PhaseTimes {
                idle: Nanoseconds(0),
                boot: Nanoseconds(boot),
                service: Nanoseconds(second / 4),
                warmup: Nanoseconds(2 * second),
                measured: Nanoseconds(self.seconds * second),
                teardown: Nanoseconds(second / 2),
                total: Nanoseconds(boot + (self.seconds + 3) * second),
            },
            window: (
                Nanoseconds(3 * second),
                Nanoseconds((3 + self.seconds) * second),
            ),
            work: Some(work),
            metrics: metrics.found,
            environment,
            actors: Vec::new(),
            phases: Vec::new(),
            objective: None,
            observation: ObservationCost {
                cpu: Nanoseconds(second / 50),
                passes: (self.seconds + 2) * self.rate,
                missed: u64::from(index.is_multiple_of(9)),
                energy: vec!["power".to_owned()],
                ..ObservationCost::default()
            },
        }
    }
}
