// SPDX-License-Identifier: Apache-2.0
//! Tests of histories: the first run with a changed number, over runs of one plan.

use crate::support::multiply_costs_of_vms;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use vtax_report::analysis::{Analysis, analyse};
use vtax_report::gate::{AcrossHosts, GateOutcome, judge_history};
use vtax_report::history::{History, Of, Series, history, table};
use vtax_results::stats::Random;
use vtax_results::{Accepted, ResultsDir};
use vtax_testkit::results::Fake;

/// The run of one day, on which a VM's cost is multiplied by `factor`.
fn run(folder: &Path, day: u32, kernel: &str, factor: f64) -> Analysis {
    let path = folder.join(format!("day-{day:02}"));
    let fake = Fake {
        blocks: 3,
        seconds: 1,
        trouble: false,
        platforms: vec!["native", "qemu"],
        ..Fake::default()
    };
    let results = fake.write(&path);
    let host = json!({ "boot_id": "one", "kernel": kernel, "cpu": { "model": "Example" } });
    fs::write(path.join("host.json"), host.to_string()).unwrap();
    let mut info: Value =
        serde_json::from_str(&fs::read_to_string(path.join("run.json")).unwrap()).unwrap();
    *info.get_mut("started").unwrap() = json!(format!("2026-11-{day:02}T03:00:00Z"));
    fs::write(path.join("run.json"), info.to_string()).unwrap();
    multiply_costs_of_vms(&results, factor);
    analyse(&ResultsDir::open(&path).unwrap()).unwrap()
}

/// Twelve days, the last five of which had another kernel and cost 15 % more.
fn twelve_days(folder: &Path) -> Vec<Analysis> {
    let mut random = Random::new(5);
    let mut runs: Vec<Analysis> = (1..=12)
        .map(|day| {
            let (kernel, level) = if day > 7 {
                ("6.12", 1.15)
            } else {
                ("6.1", 1.0)
            };
            let noise = 1.0 + 0.02 * (random.uniform() - 0.5);
            run(folder, day, kernel, level * noise)
        })
        .collect();
    // The order of the directories is not chronological.
    runs.reverse();
    runs
}

fn of<'a>(history: &'a History, metric: &str) -> &'a Series {
    let mut series = history.series.iter();
    series.find(|one| one.metric == metric).unwrap()
}

#[test(needs = [test_all("takes 10 s")])]
fn a_change_is_named_by_its_first_run_with_its_size_and_what_changed_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let history = history(&twelve_days(folder.path()), Of::Tax, &[]);
    let series = of(&history, "cpu.per_work");
    assert_eq!(series.changes.len(), 1, "{series:?}");
    let change = series.changes.first().unwrap();
    let since = history.runs.get(change.since).unwrap();
    assert!(since.directory.ends_with("day-08"), "{since:?}");
    assert_eq!(change.runs, (7, 5));
    let interval = change.interval.unwrap();
    assert!(interval.contains(1.15) && interval.low > 1.1, "{change:?}");
    assert!(change.worse);
    assert_eq!(change.with, ["kernel: 6.1 → 6.12"]);
    let text = table(&history, 100);
    assert!(
        text.contains("worse since ") && text.contains("day-08"),
        "{text}"
    );
    assert!(text.contains("kernel: 6.1 → 6.12"), "{text}");
}

#[test(needs = [test_all("takes 4 s")])]
fn what_does_not_change_is_listed_and_a_suspect_run_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::new(6);
    let mut runs: Vec<Analysis> = (1..=9)
        .map(|day| run(folder.path(), day, "6.1", 1.0 + 0.02 * random.uniform()))
        .collect();
    runs.get_mut(4).unwrap().provisional = true;
    let history = history(&runs, Of::Cost, &["cpu.per_work".to_owned()]);
    assert!(history.series.iter().all(|one| one.changes.is_empty()));
    assert!(history.series.iter().all(|one| one.points.len() == 8));
    let text = table(&history, 100);
    assert!(text.contains("no change"), "{text}");
    assert!(
        text.contains("left out: ") && text.contains("day-05"),
        "{text}"
    );
}

#[test]
fn few_runs_show_no_change_and_the_text_says_how_many_are_needed() {
    let folder = tempfile::tempdir().unwrap();
    let runs = [1, 2, 3].map(|day| run(folder.path(), day, "6.1", f64::from(day)));
    let history = history(&runs, Of::Tax, &[]);
    assert!(history.series.iter().all(|one| one.changes.is_empty()));
    assert!(table(&history, 80).contains("at least two runs before it and two after it"));
}

#[test(needs = [test_all("takes 8 s")])]
fn the_page_has_a_plot_of_each_series_and_names_the_change() {
    let folder = tempfile::tempdir().unwrap();
    let history = history(&twelve_days(folder.path()), Of::Tax, &[]);
    let page = vtax_report::html::history::page(&history);
    let plots = page.matches("class=\"plot\"").count();
    assert_eq!(plots, history.series.len());
    assert!(page.contains("worse since "), "no sentence");
    assert!(page.contains("kernel: 6.1 → 6.12"), "no fact");
}

#[test]
fn a_gate_judges_the_last_run_by_the_best_level_until_a_worse_one_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let mut runs = twelve_days(folder.path());
    let gates = ["cpu.per_work of qemu > +10%".parse().unwrap()];
    let judge = |runs: &[Analysis]| {
        let metrics = ["cpu.per_work".to_owned()];
        let judged = judge_history(
            &gates,
            &history(runs, Of::Tax, &metrics),
            AcrossHosts::default(),
        )
        .unwrap();
        assert!(!judged.is_empty());
        (judged[0].outcome, judged[0].reason.clone())
    };
    // The new level is five days old, and nobody accepted it.
    let (outcome, reason) = judge(&runs);
    assert_eq!(outcome, GateOutcome::Missed, "{reason}");
    assert!(
        reason.contains("of 7 runs before it; 4 runs since ") && reason.contains("day-08 --why"),
        "{reason}"
    );
    let accepted = runs.iter_mut().find(|run| run.path.ends_with("day-08"));
    accepted.unwrap().accepted = Some(Accepted {
        by: "ann".to_owned(),
        at: "2026-11-12T09:00:00Z".to_owned(),
        why: "the new kernel".to_owned(),
    });
    let (outcome, reason) = judge(&runs);
    assert_eq!(outcome, GateOutcome::Passed, "{reason}");
    assert!(reason.contains("of 4 runs before it"), "{reason}");

    runs.push(run(folder.path(), 13, "6.12", 1.6));
    let (outcome, reason) = judge(&runs);
    assert_eq!(outcome, GateOutcome::Missed, "{reason}");
    assert!(reason.contains("of 5 runs before it"), "{reason}");
    let last = runs.last_mut().unwrap();
    last.accepted = Some(Accepted {
        by: "bob".to_owned(),
        at: "2026-11-13T09:00:00Z".to_owned(),
        why: "a better cipher".to_owned(),
    });
    let (outcome, reason) = judge(&runs);
    assert_eq!(outcome, GateOutcome::Passed, "{reason}");
    assert_eq!(reason, "accepted by bob: a better cipher");

    let few: Vec<Analysis> = (1..=3)
        .map(|day| run(&folder.path().join("few"), day, "6.1", 1.0))
        .collect();
    let (outcome, reason) = judge(&few);
    assert_eq!(outcome, GateOutcome::Undecided, "{reason}");

    let unknown = ["none > +5%".parse().unwrap()];
    let none = judge_history(
        &unknown,
        &history(&runs, Of::Tax, &[]),
        AcrossHosts::default(),
    );
    assert!(
        none.unwrap_err()
            .to_string()
            .contains("no run that counts has this metric")
    );
}

/// CPU seconds of eight runs of one command, `dd` of zeros, five times each. Two trials of the last run ran beside other
/// programs.
const ONE_COMMAND: [[f64; 5]; 8] = [
    [0.1559, 0.1522, 0.1546, 0.1543, 0.1687],
    [0.1734, 0.1574, 0.1596, 0.161, 0.1553],
    [0.1656, 0.1533, 0.1547, 0.1511, 0.1734],
    [0.1551, 0.1617, 0.1532, 0.1518, 0.154],
    [0.1579, 0.1563, 0.1604, 0.166, 0.1573],
    [0.1534, 0.1554, 0.1587, 0.166, 0.152],
    [0.1579, 0.1545, 0.1754, 0.1558, 0.1609],
    [0.1583, 0.2181, 0.1618, 0.1554, 0.2079],
];

#[test]
fn a_run_that_scatters_by_itself_does_not_miss_a_gate_by_the_scatter_of_quiet_runs() {
    let folder = tempfile::tempdir().unwrap();
    let runs = (1..).zip(ONE_COMMAND).map(|(day, values): (u32, _)| {
        let fake = Fake {
            blocks: 5,
            seconds: 1,
            trouble: false,
            platforms: vec!["native"],
            ..Fake::default()
        };
        let results = fake.write(&folder.path().join(format!("run-{day}")));
        let mut values = values.into_iter();
        for index in results.trial_indexes() {
            let mut trial = results.trial(index).unwrap();
            if trial.treatment.workload == "cpu-control" {
                let value = values.next().unwrap();
                let metric = trial.metrics.get_mut("cpu.per_work").unwrap();
                metric.quantity.value = value;
                results.rewrite_trial(&trial).unwrap();
            }
        }
        assert_eq!(values.next(), None);
        let mut run = analyse(&results).unwrap();
        run.started = format!("2026-11-{day:02}T03:00:00Z");
        run
    });
    let runs: Vec<Analysis> = runs.collect();
    let history = history(&runs, Of::Cost, &["cpu.per_work".to_owned()]);
    let gates = ["cpu.per_work of native · cpu-control > +5%"
        .parse()
        .unwrap()];
    let judged = judge_history(&gates, &history, AcrossHosts::default()).unwrap();
    let [judged] = judged.as_slice() else {
        panic!("{judged:?}");
    };
    assert_eq!(judged.outcome, GateOutcome::Undecided, "{}", judged.reason);
    assert!(judged.reason.starts_with("1.1"), "{}", judged.reason);
}
