// SPDX-License-Identifier: Apache-2.0
//! Results with more treatments and metrics than a real run: the time grows with their number, not with its square, and
//! results beyond a limit are refused.

use std::fs;
use std::path::Path;
use vtax_report::analysis::{Analysis, analyse};
use vtax_report::html::{Provenance, render};
use vtax_report::{compare, terminal};
use vtax_results::{ResultsDir, ResultsError, RunInfo, Scheduled, Treatment, Trial};
use vtax_testkit::results::Fake;

/// A run of one block with `count` treatments, each of a workload, a platform and a level of its own, against the
/// first; `run` of them have a trial.
fn treatments(folder: &Path, count: usize, run: usize) -> ResultsDir {
    let fake = Fake::default();
    let results = fake.write(&folder.join("pattern"));
    let pattern = results.trial(0).unwrap();
    let label = |at: usize| format!("platform {at} · workload {at}");
    let treatments: Vec<Treatment> = (0..count)
        .map(|at| Treatment {
            label: label(at),
            platform: format!("platform {at}"),
            workload: format!("workload {}", at % (count / 2)),
            factors: [("link.mtu".to_owned(), at.to_string())].into(),
            baseline: (at > 0).then(|| label(0)),
            ..pattern.treatment.clone()
        })
        .collect();
    let info = RunInfo {
        schedule: (0..count)
            .map(|treatment| Scheduled {
                treatment,
                block: 0,
            })
            .collect(),
        treatments,
        ..results.run().clone()
    };
    let path = folder.join("run");
    let results = ResultsDir::create(&path, &info, "", &serde_json::json!({})).unwrap();
    for (at, treatment) in info.treatments.iter().take(run).enumerate() {
        let index = u32::try_from(at).unwrap();
        let trial = Trial {
            index,
            block: 0,
            treatment: treatment.clone(),
            suspect: Vec::new(),
            ..pattern.clone()
        };
        put(&path, &trial);
    }
    results
}

/// A run of one trial with `count` headline metrics.
fn metrics(folder: &Path, count: usize) -> ResultsDir {
    let results = treatments(folder, 2, 2);
    for index in [0, 1] {
        let mut trial = results.trial(index).unwrap();
        let (_, pattern) = trial.metrics.pop_first().unwrap();
        trial.metrics = (0..count)
            .map(|at| {
                let mut metric = pattern.clone();
                metric.headline = true;
                (format!("metric.{at}"), metric)
            })
            .collect();
        put(results.path(), &trial);
    }
    results
}

/// Writes a trial without the syncs of a finished trial, which a test does not need.
fn put(results: &Path, trial: &Trial) {
    let folder = results.join(format!("trials/{:04}", trial.index));
    fs::create_dir_all(&folder).unwrap();
    let text = serde_json::to_string(trial).unwrap();
    fs::write(folder.join("trial.json"), text).unwrap();
}

/// CPU time of the calling thread in nanoseconds, which excludes the rest of the machine's work.
fn processor_time() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let first = text.split_whitespace().next().unwrap();
    first.parse().unwrap()
}

/// CPU time of analysis, table, page and comparison of a run: the least of three measurements.
fn cost(results: &ResultsDir) -> u64 {
    let turn = || {
        let before = processor_time();
        let analysis: Analysis = analyse(results).unwrap();
        let table = terminal::table(&analysis, 100, false);
        let page = render(&analysis, &Provenance::from_results(results));
        let compared = compare::compare(&analysis, &[&analysis]);
        let beside = compare::table(&compared, 100);
        assert!(!table.is_empty() && page.len() > 1000 && !beside.is_empty());
        processor_time() - before
    };
    turn().min(turn()).min(turn())
}

/// Largest growth for ten times the input: ten, and three times that for caches of a busy machine. The square would be
/// 100.
const GROWTH: u64 = 30;

#[test(needs = [test_all("takes 9 s")])]
fn the_time_grows_with_the_number_of_treatments_not_with_its_square() {
    let folder = tempfile::tempdir().unwrap();
    let run = |count: usize, run: usize| {
        let folder = folder.path().join(format!("{count} {run}"));
        fs::create_dir(&folder).unwrap();
        cost(&treatments(&folder, count, run))
    };
    let (few, many) = (run(500, 0), run(5000, 0));
    eprintln!("{few} ns, {many} ns");
    assert!(many < GROWTH * few, "without trials: {few} ns, {many} ns");
    let (few, many) = (run(100, 100), run(1000, 1000));
    eprintln!("{few} ns, {many} ns");
    assert!(many < GROWTH * few, "with trials: {few} ns, {many} ns");
}

#[test(needs = [test_all("takes 5 s")])]
fn the_time_grows_with_the_number_of_headlines_not_with_its_square() {
    let folder = tempfile::tempdir().unwrap();
    let run = |count: usize| {
        let folder = folder.path().join(count.to_string());
        fs::create_dir(&folder).unwrap();
        cost(&metrics(&folder, count))
    };
    let (few, many) = (run(1000), run(10_000));
    eprintln!("{few} ns, {many} ns");
    assert!(many < GROWTH * few, "{few} ns, {many} ns");
}

#[test]
fn absurd_numbers_are_refused_with_the_file_and_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let results = treatments(folder.path(), 2, 2);
    let mut run = results.run().clone();
    let pattern = run.treatments[0].clone();
    run.treatments.resize(RunInfo::MOST_TREATMENTS + 1, pattern);
    let other = folder.path().join("other");
    let refused = ResultsDir::create(&other, &run, "", &serde_json::json!({}));
    assert!(matches!(refused, Err(ResultsError::TooMany { .. })));
    let file = results.path().join("run.json");
    fs::write(&file, serde_json::to_string(&run).unwrap()).unwrap();
    let text = ResultsDir::open(results.path()).unwrap_err().to_string();
    for part in ["run.json", "20001 treatments", "at most 20000"] {
        assert!(text.contains(part), "{text}");
    }

    let folder = tempfile::tempdir().unwrap();
    let results = metrics(folder.path(), Trial::MOST_METRICS + 1);
    let analysis = analyse(&results).unwrap();
    assert!(analysis.trials.is_empty());
    let text = &analysis.unreadable[0];
    for part in ["trials/0000/trial.json", "10001 metrics", "at most 10000"] {
        assert!(text.contains(part), "{text}");
    }
}
