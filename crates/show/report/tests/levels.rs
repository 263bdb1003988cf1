// SPDX-License-Identifier: Apache-2.0
//! Tests of load levels, knees and the curves over levels.

use crate::support::{figure, page, ramp_run};
use std::fs;
use std::path::Path;
use vtax_core::Quantity;
use vtax_report::analysis::{Analysis, Comparison, analyse, knee_in_words};
use vtax_report::html::write_report;
use vtax_report::{compare, figures, terminal};
use vtax_results::stats::Verdict;
use vtax_testkit::results::ramp;

#[test]
fn a_ramp_shows_its_levels_its_knees_and_what_broke() {
    let (_folder, results, analysis) = ramp_run();
    let alone = &analysis.treatments[0];
    assert_eq!((alone.levels.len(), alone.levels[0].trials), (8, 4));
    let knees: Vec<f64> = analysis
        .treatments
        .iter()
        .map(|one| one.metric("knee").unwrap().description.mean)
        .collect();
    assert!(knees[0] > knees[1] && knees[1] > knees[2], "{knees:?}");
    let figures = figures::figures(&analysis);
    let served = figure(&figures, "http-rate: what was served at each load");
    let layers = served.spec["layer"].as_array().unwrap();
    assert_eq!(layers[0]["mark"]["type"], "rect");
    assert_eq!(layers[1]["data"]["values"].as_array().unwrap().len(), 3);
    assert_eq!(layers[1]["data"]["values"][0]["knee"], knees[0]);
    assert!(
        served.caption.contains("kept latency.p99 <= 20ms (n = 4)")
            && served.caption.contains("broken by latency.p99 = "),
        "{}",
        served.caption
    );
    assert_eq!(served.spec["data"]["values"].as_array().unwrap().len(), 24);
    let latency = figure(&figures, "latency at each load");
    assert_eq!(latency.spec["data"]["values"].as_array().unwrap().len(), 48);
    for title in [
        "errors at each load",
        "99th percentile of latency against what was served",
        "power against what was served",
        "latency by percentile",
        "neighbours=pi: CPU by actor and stage over time",
        "power of the host over time",
    ] {
        figure(&figures, title);
    }
    let power = figure(&figures, "power against what was served");
    assert!(power.caption.contains("modelled"));
    let table = terminal::table(&analysis, 80, false);
    let flat = table.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        flat.contains("request/s kept latency.p99 <= 20ms (n = 4)"),
        "{table}"
    );
    assert!(table.lines().all(|line| line.chars().count() <= 80));
    assert!(
        flat.contains("A VM (QEMU, KVM) with neighbours = disk+net bears 0."),
        "{table}"
    );
    let html = page(&results, &analysis);
    assert!(html.contains("kept latency.p99 &lt;= 20ms (n = 4)"));
    assert!(html.contains("neighbours=disk+net, by actor"));
    assert!(!html.contains("neighbours=none, by actor"));
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report-ramp");
    let _ = fs::remove_dir_all(&path);
    let kept = ramp::write(&path);
    write_report(&kept, &analyse(&kept).unwrap()).unwrap();
}

#[test]
fn a_knee_that_is_a_bound_says_so() {
    let (_folder, results, _) = ramp_run();
    for index in results.trial_indexes() {
        let mut trial = results.trial(index).unwrap();
        let objective = trial.objective.as_mut().unwrap();
        match trial.treatment.factors["neighbours"].as_str() {
            "none" => {
                objective.broke = None;
                trial.phases.retain(|phase| phase.kept == Some(true));
            }
            "pi" => {}
            _ => {
                objective.knee = None;
                trial.metrics.remove("knee");
                for phase in &mut trial.phases {
                    phase.kept = Some(false);
                }
            }
        }
        results.rewrite_trial(&trial).unwrap();
    }
    let analysis = analyse(&results).unwrap();
    let knees: Vec<String> = analysis
        .treatments
        .iter()
        .map(|one| knee_in_words(one).unwrap())
        .collect();
    assert!(
        knees[0].contains(": at least 350 request/s kept"),
        "{}",
        knees[0]
    );
    assert!(knees[0].contains("in 4 of 4 trials the highest load kept it"));
    assert!(
        knees[2].contains("no load kept latency.p99") && knees[2].contains("lowest judged load")
    );
    let compared = |neighbours: &str| {
        let mut all = analysis.comparisons.iter();
        all.find(|one| one.metric == "knee" && one.treatment.ends_with(neighbours))
    };
    let note = compared("pi").unwrap().note.as_deref().unwrap();
    assert!(note.contains("the knee is a lower bound"), "{note}");
    assert!(compared("disk+net").is_none());
    assert!(analysis.treatments.iter().all(|one| one.steady.is_empty()));
}

#[test]
fn a_knee_that_a_late_generator_hides_is_at_least_the_load_that_was_judged() {
    let (_folder, results, before) = ramp_run();
    for index in results.trial_indexes() {
        let mut trial = results.trial(index).unwrap();
        if trial.treatment.factors["neighbours"] != "none" {
            continue;
        }
        let objective = trial.objective.as_mut().unwrap();
        objective.broke = None;
        for phase in &mut trial.phases {
            if phase.kept == Some(false) {
                phase.kept = None;
                objective.late_from = objective.late_from.or(phase.level);
            }
        }
        results.rewrite_trial(&trial).unwrap();
    }
    let analysis = analyse(&results).unwrap();
    let knee = knee_in_words(&analysis.treatments[0]).unwrap();
    let (low, from) = (
        ": at least 350 request/s kept",
        "was late from 400 request/s on",
    );
    let late = format!("in 4 of 4 trials the load generator {from}");
    assert!(knee.contains(low) && knee.contains(&late), "{knee}");
    assert!(!knee.contains("the highest load kept it"), "{knee}");
    let table = terminal::table(&analysis, 200, false);
    let flat = table.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains(from), "{table}");
    assert!(page(&results, &analysis).contains(from));
    let data = serde_json::to_value(&analysis.treatments[0].objective).unwrap();
    assert_eq!(data["late"], 4);
    assert!(data["knees"][0][1]["high"].is_null());
    let paired = |one: &&Comparison| one.metric == "knee" && one.treatment.ends_with("pi");
    let paired = analysis.comparisons.iter().find(paired).unwrap();
    let note = paired.note.as_deref().unwrap();
    assert!(
        note.contains("is a lower bound: the load generator was late"),
        "{note}"
    );
    let compared = compare::compare(&before, &[&analysis]);
    let rows = &compared.others[0].comparisons;
    let own = rows.iter().find(|one| one.metric == "knee").unwrap();
    let note = own.note.as_deref().unwrap();
    assert!(note.contains("the load generator was late"), "{note}");
}

#[test]
fn a_knee_below_levels_with_too_few_requests_for_its_quantile_is_at_least_the_load_that_was_judged()
{
    let (_folder, results, _) = ramp_run();
    for index in results.trial_indexes() {
        let mut trial = results.trial(index).unwrap();
        let objective = trial.objective.as_mut().unwrap();
        objective.broke = None;
        let shows_none = trial.treatment.factors["neighbours"] == "pi";
        for phase in &mut trial.phases {
            if shows_none || phase.kept == Some(false) {
                phase.kept = None;
                objective.unsupported_from = objective.unsupported_from.or(phase.level);
            }
        }
        if shows_none {
            objective.knee = None;
            trial.metrics.remove("knee");
        }
        results.rewrite_trial(&trial).unwrap();
    }
    let analysis = analyse(&results).unwrap();
    let of = |neighbours: &str| {
        let mut all = analysis.treatments.iter();
        all.find(|one| one.treatment.label.ends_with(neighbours))
            .unwrap()
    };
    let some = knee_in_words(of("none")).unwrap();
    let low = ": at least 350 request/s kept";
    let few = "in 4 of 4 trials requests are too few for its quantile from 400 request/s on";
    assert!(some.contains(low) && some.ends_with(few), "{some}");
    let none = knee_in_words(of("pi")).unwrap();
    let (shown, lowest) = (
        ": no load is shown to keep",
        "quantile from 100 request/s on",
    );
    assert!(none.contains(shown) && none.ends_with(lowest), "{none}");
    let knees = of("none").objective.as_ref().unwrap();
    assert_eq!((knees.unsupported, knees.held_to_last), (4, 0));
    assert!(knees.knees.iter().all(|(_, knee)| knee.high.is_none()));
    let mut all = analysis.comparisons.iter();
    let disk = all.find(|one| one.metric == "knee" && one.treatment.ends_with("disk+net"));
    assert_ne!(disk.unwrap().judgement.verdict, Verdict::Different);
    let note = disk.unwrap().note.as_deref().unwrap();
    assert!(
        note.contains("requests are too few for its quantile"),
        "{note}"
    );
}

#[test]
fn figures_of_one_level_are_of_the_highest_that_was_judged_in_all_treatments() {
    let (_folder, results, before) = ramp_run();
    let levels = |analysis: &Analysis| -> Vec<String> {
        let shifts = analysis.shifts.iter();
        shifts.filter_map(|shift| shift.level.clone()).collect()
    };
    assert!(!levels(&before).is_empty());
    for index in results.trial_indexes() {
        let mut trial = results.trial(index).unwrap();
        for phase in &mut trial.phases {
            if phase.level.unwrap().value > 150.0 {
                phase.kept = None;
            }
        }
        results.rewrite_trial(&trial).unwrap();
    }
    let levels = levels(&analyse(&results).unwrap());
    assert!(
        levels.iter().all(|level| level == "150 req/s"),
        "{levels:?}"
    );
    assert!(!levels.is_empty());
}

#[test]
fn the_interval_of_a_knee_is_of_offered_loads() {
    let (_folder, results, _) = ramp_run();
    let capacity = 333.0;
    let mut expected = Vec::new();
    for index in results.trial_indexes() {
        let mut trial = results.trial(index).unwrap();
        let (mut low, mut high) = (0.0, f64::INFINITY);
        for (number, phase) in (1..).zip(&mut trial.phases) {
            let asked = phase.level.unwrap();
            let off = f64::from((7919 * index + 104_729 * number) % 201) / 1000.0 - 0.1;
            let load = asked.value * (1.0 + off);
            let mut offered = phase.metrics["rate"].clone();
            offered.quantity = Quantity::new(load, asked.unit);
            phase.metrics.insert("offered".to_owned(), offered);
            phase.kept = Some(load <= capacity);
            if load <= capacity {
                low = load.max(low)
            } else {
                high = load.min(high)
            }
        }
        expected.push((index, low, high));
        results.rewrite_trial(&trial).unwrap();
    }
    let analysis = analyse(&results).unwrap();
    let objectives = analysis.treatments.iter().flat_map(|one| &one.objective);
    let found = objectives.flat_map(|one| &one.knees);
    let mut found: Vec<_> = found
        .map(|(index, knee)| (*index, knee.low, knee.high.unwrap()))
        .collect();
    found.sort_by_key(|one| one.0);
    assert_eq!(found, expected);
}
