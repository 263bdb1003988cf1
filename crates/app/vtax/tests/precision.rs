// SPDX-License-Identifier: Apache-2.0
//! `vtax plan check --results`: the blocks that a wanted width needs, from results of the plan.

use crate::support::{finish, vtax};
use serde_json::Value;
use std::fs;
use std::path::Path;
use vtax_lab::plan::{Catalogue, Order, Plan, schedule, treatments};
use vtax_results::{ResultsDir, RunInfo};
use vtax_testkit::results::Fake;

const PLAN: &str = r#"
name = "two"
description = "two platforms"
repetitions = 6
duration = "20s"
baseline = "native"
meters = ["none"]

[[platform]]
kind = "native"
[[platform]]
kind = "native"
name = "copy"
[[workload]]
kind = "cpu"
name = "spin"
"#;

/// Writes `text` as a plan, and results of it with this many blocks.
fn results(work: &Path, name: &str, text: &str, blocks: u32) -> ResultsDir {
    let catalogue = Catalogue::standard();
    let plan = Plan::read(name, text, &catalogue).unwrap();
    let fake = Fake {
        blocks,
        trouble: false,
        ..Fake::default()
    };
    let planned = treatments(&plan, &catalogue);
    let run = RunInfo {
        name: plan.name.clone(),
        schedule: schedule(planned.len(), blocks, Order::Interleaved, 1),
        treatments: planned.into_iter().map(|one| one.record).collect(),
        ..fake.run_info()
    };
    fs::write(work.join("plan.toml"), PLAN).unwrap();
    let results = ResultsDir::create(&work.join(name), &run, text, &serde_json::json!({})).unwrap();
    for index in results.pending() {
        fake.write_trial(&results, index);
    }
    results
}

fn check(work: &Path, words: &[&str], success: bool) -> (String, String) {
    let mut command = vtax(&work.join("state"));
    command.args(["plan", "check", "plan.toml"]);
    let output = finish(command.args(words).current_dir(work), success);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

fn document(work: &Path, words: &[&str]) -> Value {
    let words = [words, &["--json"]].concat();
    serde_json::from_str(&check(work, &words, true).0).unwrap()
}

#[test]
fn a_check_with_results_has_the_present_width_and_the_blocks_and_time_of_the_wanted_one() {
    let work = tempfile::tempdir().unwrap();
    let work = work.path();
    results(work, "old", PLAN, 6);
    let (shown, _) = check(work, &["--results", "old", "--width", "2"], true);
    for part in [
        "copy · spin against native · spin",
        "with 6 blocks; needs ",
        "±2 % for all of them: ",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let needed = |width: &str| {
        let found = document(work, &["--results", "old", "--width", width]);
        let row = &found["precision"]["comparisons"][0];
        assert_eq!(row["metric"], "cpu.per_work", "{found}");
        assert_eq!(row["repetitions"], 6);
        (row["needed"].as_u64().unwrap(), found["precision"].clone())
    };
    let (_, at_five) = needed("5");
    let now = at_five["comparisons"][0]["width"].as_f64().unwrap();
    assert!((0.01..0.1).contains(&now), "{at_five}");
    assert_eq!(needed(&format!("{}", 100.01 * now)).0, 6);
    let (half, precision) = needed(&format!("{}", 50.0 * now));
    assert!((12..24).contains(&half), "{precision}");
    let block = precision["block_seconds"].as_f64().unwrap();
    assert!((precision["seconds"].as_f64().unwrap() - half as f64 * block).abs() < 1e-6);
    assert!(block > 40.0, "two trials with a window of 20 s: {block}");
    // Five percent is the default, and a check without results has no such part.
    let default = document(work, &["--results", "old"]);
    assert_eq!(default["precision"], at_five);
    assert_eq!(document(work, &[])["precision"], Value::Null);
}

#[test]
fn only_treatments_that_are_the_same_in_plan_and_results_are_estimated() {
    let work = tempfile::tempdir().unwrap();
    let work = work.path();
    // A third platform that the plan does not have, and a window that is shorter.
    let more = PLAN.replace(
        "[[workload]]",
        "[[platform]]\nkind = \"native\"\nname = \"third\"\n[[workload]]",
    );
    results(work, "more", &more.replace("20s", "5s"), 6);
    let found = document(work, &["--results", "more"]);
    assert_eq!(
        found["precision"]["comparisons"].as_array().unwrap().len(),
        1
    );
    assert!(
        found["precision"]["cautions"][0]
            .as_str()
            .unwrap()
            .contains("window of 5 s")
    );
    // The workload has other settings in the results, so nothing is common.
    results(work, "other", &format!("{PLAN}\nload.threads = 2\n"), 6);
    let (_, printed) = check(work, &["--results", "other"], false);
    assert!(
        printed.contains("has no treatment of plan.toml"),
        "{printed}"
    );
}

#[test]
fn results_that_cannot_be_used_are_refused_with_the_reason() {
    let work = tempfile::tempdir().unwrap();
    let work = work.path();
    let refused = |results: &str, why: &str| {
        let (_, printed) = check(work, &["--results", results], false);
        assert!(printed.contains(why), "{why}: {printed}");
    };
    results(work, "another", &PLAN.replace("\"two\"", "\"three\""), 4);
    refused(
        "another",
        "another has results of another plan, three: give results of two",
    );

    results(work, "one", PLAN, 1);
    refused("one", "cannot estimate the blocks from one");
    refused("one", "one block shows no scatter");

    let suspect = results(work, "suspect", PLAN, 4);
    for index in suspect.trial_indexes() {
        let mut trial = suspect.trial(index).unwrap();
        trial.suspect.push("the generator was late".to_owned());
        suspect.rewrite_trial(&trial).unwrap();
    }
    refused("suspect", "no trial of suspect counts");

    results(work, "damaged", PLAN, 4);
    fs::write(work.join("damaged/run.json"), "{").unwrap();
    refused("damaged", "run.json is corrupted");

    results(work, "planless", PLAN, 4);
    fs::write(work.join("planless/plan.toml"), "name = 3").unwrap();
    refused("planless", "cannot read the plan of the results");

    refused("none", "none is not a results directory");
    let (_, printed) = check(work, &["--width", "5"], false);
    assert!(printed.contains("--results"), "{printed}");
    let (_, printed) = check(work, &["--results", "one", "--width", "0"], false);
    assert!(printed.contains("0.01 to 1000"), "{printed}");
}

#[test]
fn damaged_trials_are_left_out_of_an_estimate_and_named() {
    let work = tempfile::tempdir().unwrap();
    let work = work.path();
    let old = results(work, "old", PLAN, 6);
    fs::write(old.trial_path(0).join("trial.json"), "{").unwrap();
    let found = document(work, &["--results", "old"]);
    assert_eq!(found["precision"]["comparisons"][0]["repetitions"], 5);
    let cautions = found["precision"]["cautions"].to_string();
    assert!(
        cautions.contains("left out: ") && cautions.contains("trial.json"),
        "{cautions}"
    );
}

#[test]
fn a_report_shows_the_variance_by_level_where_it_is_asked_for() {
    let work = tempfile::tempdir().unwrap();
    let work = work.path();
    results(work, "old", PLAN, 6);
    let report = |words: &[&str]| {
        let mut command = vtax(&work.join("state"));
        let output = finish(command.args(words).current_dir(work), true);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let heading = "Variance by level, and recommended repetitions";
    assert!(report(&["report", "old", "--variance"]).contains(heading));
    assert!(!report(&["report", "old"]).contains(heading));
}
