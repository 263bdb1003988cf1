// SPDX-License-Identifier: Apache-2.0
//! Runs with generated results, and their analysis, page and figures.

use std::collections::BTreeMap;
use vtax_core::Source;
use vtax_report::analysis::{Analysis, Comparison, analyse};
use vtax_report::figures;
use vtax_report::html::{Provenance, render};
use vtax_results::{ResultsDir, Trial};
use vtax_testkit::results::{Fake, ramp};

pub fn run(fake: &Fake) -> (tempfile::TempDir, ResultsDir, Analysis) {
    let folder = tempfile::tempdir().unwrap();
    let results = fake.write(&folder.path().join("run"));
    let analysis = analyse(&results).unwrap();
    (folder, results, analysis)
}

pub fn page(results: &ResultsDir, analysis: &Analysis) -> String {
    render(analysis, &Provenance::from_results(results))
}

pub fn figure<'a>(figures: &'a [figures::Figure], title: &str) -> &'a figures::Figure {
    let found = figures.iter().find(|figure| figure.title.contains(title));
    let titles: Vec<&str> = figures.iter().map(|figure| figure.title.as_str()).collect();
    found.unwrap_or_else(|| panic!("no `{title}` among {titles:#?}"))
}

/// Changes each trial of a run.
pub fn change_trials(results: &ResultsDir, change: impl Fn(&mut Trial)) {
    for mut trial in results.trials().map(Result::unwrap) {
        change(&mut trial);
        results.rewrite_trial(&trial).unwrap();
    }
}

/// Multiplies every number of the trials of VMs.
pub fn multiply_costs_of_vms(results: &ResultsDir, factor: f64) {
    change_trials(results, |trial| {
        if trial.treatment.platform == "qemu" {
            for metric in trial.metrics.values_mut() {
                metric.quantity.value *= factor;
            }
        }
    });
}

pub fn ramp_run() -> (tempfile::TempDir, ResultsDir, Analysis) {
    let folder = tempfile::tempdir().unwrap();
    let results = ramp::write(&folder.path().join("run"));
    let analysis = analyse(&results).unwrap();
    (folder, results, analysis)
}

/// A run in emulated hosts: every number depends only on the treatment and the seed. `change` modifies each trial, with
/// its seed among its facts, before its numbers are generated.
pub fn simulated(
    blocks: u32,
    change: impl Fn(&mut Trial),
) -> (tempfile::TempDir, ResultsDir, Analysis) {
    let fake = Fake {
        platforms: vec!["native", "qemu"],
        blocks,
        place: "testbed:kvm",
        trouble: false,
        ..Fake::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let results = fake.write(&folder.path().join("run"));
    let mut first = BTreeMap::new();
    for index in results.trial_indexes() {
        let mut trial = results.trial(index).unwrap();
        let facts = [("testbed.seed", "1"), ("testbed.instruction_ns", "1")];
        let facts = facts.map(|(key, value)| (key.to_owned(), value.to_owned()));
        trial.environment.extend(facts);
        change(&mut trial);
        let label = trial.treatment.label.clone();
        let metrics = first.entry(label.clone()).or_insert(trial.metrics.clone());
        let seed: u64 = trial.environment["testbed.seed"].parse().unwrap();
        for (name, metric) in &mut trial.metrics {
            let chance = 1.0 + 0.001 * (seed * label.len() as u64 % 7) as f64;
            metric.source = Source::Simulated;
            let noise = metric.quantity.value;
            metric.quantity.value = if trial.environment.contains_key("noise") {
                noise
            } else {
                metrics[name].quantity.value * chance
            };
        }
        results.rewrite_trial(&trial).unwrap();
    }
    let analysis = analyse(&results).unwrap();
    (folder, results, analysis)
}

pub fn cpu(analysis: &Analysis) -> &Comparison {
    let mut all = analysis.comparisons.iter();
    all.find(|one| one.workload == "iperf3-receive" && one.metric == "cpu.per_work")
        .unwrap()
}
