// SPDX-License-Identifier: Apache-2.0
//! Tests of the verdicts in reports, comparisons of runs and surveys of generated runs: differences under drift,
//! equality, needed repetitions, outliers, machines, and the checks on the design.

use serde_json::json;
use std::fs;
use std::path::Path;
use vtax_core::Quantity;
use vtax_report::analysis::{Analysis, Comparison, analyse, analyse_shards};
use vtax_report::html::{Provenance, render};
use vtax_report::{compare, survey, terminal};
use vtax_results::numbers;
use vtax_results::stats::{Effect, Random, Verdict};
use vtax_results::{ResultsDir, Trial};
use vtax_testkit::results::{Fake, normal};

const BLOCKS: u32 = 8;

fn fake(blocks: u32) -> Fake {
    Fake {
        platforms: vec!["native", "qemu"],
        blocks,
        trouble: false,
        ..Fake::default()
    }
}

/// A run in which a trial of the workload `iperf3-receive` has the cost that `cost` returns.
fn write(path: &Path, blocks: u32, cost: impl Fn(&Trial) -> f64) -> ResultsDir {
    let results = fake(blocks).write(path);
    set(&results, cost);
    results
}

fn set(results: &ResultsDir, cost: impl Fn(&Trial) -> f64) {
    for index in results.trial_indexes() {
        let mut trial = results.trial(index).unwrap();
        if trial.treatment.workload == "iperf3-receive" {
            let value = cost(&trial);
            let metric = trial.metrics.get_mut("cpu.per_work").unwrap();
            metric.quantity = Quantity::new(value, metric.quantity.unit);
            results.rewrite_trial(&trial).unwrap();
        }
    }
}

fn run(blocks: u32, cost: impl Fn(&Trial) -> f64) -> (tempfile::TempDir, Analysis) {
    let folder = tempfile::tempdir().unwrap();
    let results = write(&folder.path().join("run"), blocks, cost);
    (folder, analyse(&results).unwrap())
}

fn is_vm(trial: &Trial) -> bool {
    trial.treatment.platform == "qemu"
}

/// Noise of this size, fixed for each trial.
fn noise(trial: &Trial, size: f64) -> f64 {
    (size * normal(&mut Random::new(u64::from(trial.index) + 1))).exp()
}

fn cpu(comparisons: &[Comparison]) -> &Comparison {
    let mut all = comparisons.iter();
    all.find(|one| one.workload == "iperf3-receive" && one.metric == "cpu.per_work")
        .unwrap()
}

fn sentence(analysis: &Analysis) -> &str {
    let mut all = analysis.sentences.iter();
    let found = all.find(|one| one.workload == "iperf3-receive" && one.metric == "cpu.per_work");
    &found.unwrap().text
}

#[test]
fn a_difference_in_every_block_is_a_sentence_however_the_host_drifts() {
    for blocks in 4..=7 {
        let (_folder, analysis) = run(blocks, |trial| {
            let drift = 1.0 + 0.1 * f64::from(trial.block);
            drift * if is_vm(trial) { 1.1 } else { 1.0 } * noise(trial, 0.001)
        });
        assert_eq!(
            cpu(&analysis.comparisons).judgement.verdict,
            Verdict::Different
        );
        let text = sentence(&analysis);
        assert!(text.contains(" costs 1."), "{blocks} blocks: {text}");
    }
}

#[test]
fn what_lies_within_the_minimum_effect_is_the_same_in_sentence_table_and_json() {
    let (_folder, analysis) = run(BLOCKS, |trial| noise(trial, 0.001));
    let of = cpu(&analysis.comparisons);
    assert_eq!(
        (of.judgement.verdict, of.judgement.needed),
        (Verdict::Same, None)
    );
    let text = sentence(&analysis);
    assert!(
        text.contains("the same CPU") && text.contains("within 2 %"),
        "{text}"
    );
    assert!(terminal::table(&analysis, 100, false).contains("the same"));
    assert_eq!(json!(of)["verdict"], "same");
}

#[test]
fn a_difference_that_is_shown_is_told_with_what_is_known_of_the_minimum_effect() {
    let of = |ratio: f64, size: f64| {
        let (_folder, analysis) = run(BLOCKS, |trial| {
            noise(trial, size) * if is_vm(trial) { ratio } else { 1.0 }
        });
        let judgement = cpu(&analysis.comparisons).judgement;
        let text = sentence(&analysis).to_owned();
        (judgement.verdict, judgement.effect, text)
    };
    let (verdict, effect, text) = of(1.016, 0.008);
    assert_eq!(
        (verdict, effect),
        (Verdict::Different, Some(Effect::Open)),
        "{text}"
    );
    assert!(
        text.contains(" costs 1.01") && text.ends_with("; whether it is 2 % or more is open)."),
        "{text}"
    );
    let (verdict, effect, text) = of(1.01, 0.002);
    assert_eq!(
        (verdict, effect),
        (Verdict::Same, Some(Effect::Excluded)),
        "{text}"
    );
    assert!(
        text.contains(": the same CPU")
            && text.ends_with("; a difference is shown and is smaller)."),
        "{text}"
    );
    let (verdict, effect, text) = of(1.1, 0.008);
    assert_eq!(
        (verdict, effect),
        (Verdict::Different, Some(Effect::Shown)),
        "{text}"
    );
    assert!(text.ends_with("(n = 8 pairs, emulated)."), "{text}");
}

#[test]
fn where_nothing_is_shown_the_sentence_names_the_blocks_that_would_show_the_minimum_effect() {
    let (_folder, analysis) = run(BLOCKS, |trial| noise(trial, 0.03));
    let of = cpu(&analysis.comparisons);
    assert_eq!(of.judgement.verdict, Verdict::NoDifferenceShown);
    let needed = of.judgement.needed.unwrap();
    assert!(needed.n == needed.more + 8 && needed.more > 5, "{needed:?}");
    let text = sentence(&analysis);
    let expected = format!("; {} more blocks would show 2 %)", needed.more);
    assert!(text.contains(&expected), "{text}");
}

#[test]
fn an_outlier_is_named_with_a_ratio_that_it_does_not_move() {
    let (_folder, analysis) = run(BLOCKS, |trial| {
        let spike = if is_vm(trial) && trial.block == 3 {
            3.0
        } else {
            1.0
        };
        spike * noise(trial, 0.01)
    });
    let of = cpu(&analysis.comparisons);
    let note = of.note.as_deref().unwrap();
    assert!(
        note.contains("1 outlier of 8 pairs by Tukey's fences (block 3: "),
        "{note}"
    );
    let robust = of.judgement.robust_ratio.unwrap();
    assert!((0.98..1.03).contains(&robust), "{robust}");
    assert!(of.ratio.unwrap() > 1.1);
    let (_folder, quiet) = run(BLOCKS, |trial| 1.0 + 0.1 * f64::from(trial.block));
    assert_eq!(cpu(&quiet.comparisons).judgement.robust_ratio, None);
}

#[test]
fn drift_order_and_correlation_are_one_line_each_and_a_quiet_run_has_none() {
    let lines = |cost: &dyn Fn(&Trial) -> f64| run(12, cost).1.checks;
    assert_eq!(lines(&|trial| noise(trial, 0.02)), Vec::<String>::new());
    let drift = lines(&|trial| noise(trial, 0.01) * (1.0 + 0.05 * f64::from(trial.block)));
    assert!(
        drift.len() == 1 && drift[0].starts_with("Drift over the blocks: "),
        "{drift:?}"
    );
    assert!(
        drift[0].contains("by +") && drift[0].contains("of one block"),
        "{drift:?}"
    );
    // Six treatments per block, with a cost that rises with the place in the block.
    let order = lines(&|trial| noise(trial, 0.01) * (1.0 + 0.05 * f64::from(trial.index % 6)));
    assert!(
        order.len() == 1 && order[0].starts_with("Order within a block: "),
        "{order:?}"
    );
    let slow = |trial: &Trial| is_vm(trial) && trial.block % 12 < 6;
    let walk = lines(&|trial| noise(trial, 0.01) * if slow(trial) { 1.3 } else { 1.0 });
    let expected = "Correlation of consecutive blocks: ";
    assert!(
        walk.iter().any(|line| line.starts_with(expected)),
        "{walk:?}"
    );
}

/// Shards of `machines` machines, with four blocks each.
fn fleet(folder: &Path, machines: u32, cost: impl Fn(u32, &Trial) -> f64) -> Vec<ResultsDir> {
    let fake = fake(4 * machines);
    let shards = (0..machines).map(|at| {
        let results = fake.create(&folder.join(format!("m{at}")));
        let host = json!({ "boot_id": format!("boot{at}"), "kernel": "6.1.0", "vtax": "1", "cpu": { "model": "Example" } });
        fs::write(results.path().join("host.json"), host.to_string()).unwrap();
        for index in results.pending() {
            if results.block_of(index).unwrap() % machines == at {
                fake.write_trial(&results, index);
            }
        }
        set(&results, |trial| cost(at, trial));
        results
    });
    shards.collect()
}

#[test]
fn each_of_several_machines_counts_once_also_where_no_disagreement_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let shards = fleet(folder.path(), 2, |machine, trial| {
        let own = if machine == 1 { 1.035 } else { 1.03 };
        noise(trial, 0.012) * if is_vm(trial) { own } else { 1.0 }
    });
    let all = analyse_shards(&shards.iter().collect::<Vec<_>>()).unwrap();
    let of = cpu(&all.comparisons);
    assert!(!of.machines.unwrap().is_shown());
    assert_eq!((of.judgement.over_machines, of.tax.unwrap().n), (true, 2));
    assert_eq!(of.judgement.verdict, Verdict::NoDifferenceShown);
    let note = of.note.as_deref().unwrap();
    assert!(
        note.contains("over 2 machines") && note.contains("for these machines alone it is 1.0"),
        "{note}"
    );
    let text = sentence(&all);
    assert!(
        text.contains("n = 2 machines") && text.contains("more machines would show 2 %"),
        "{text}"
    );
}

#[test]
fn a_survey_says_what_differs_and_what_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let verdict = |name: &str, vm: f64| {
        let shards = fleet(&folder.path().join(name), 5, |_, trial| {
            noise(trial, 0.001) * if is_vm(trial) { vm } else { 1.0 }
        });
        let paths: Vec<_> = shards.iter().map(|shard| shard.path().to_owned()).collect();
        let found = survey::survey(&paths, None).unwrap();
        let ratio = found.kinds[0].findings.iter().find_map(|of| {
            let is_it =
                of.treatment.contains("qemu · iperf3-receive") && of.metric == "cpu.per_work";
            is_it.then_some(of.ratio).flatten()
        });
        (ratio.unwrap().verdict, survey::table(&found, 120))
    };
    let (different, table) = verdict("different", 1.2);
    assert_eq!(different, Verdict::Different);
    assert!(table.contains(", different"), "{table}");
    let (same, table) = verdict("same", 1.0);
    assert_eq!(same, Verdict::Same);
    assert!(table.contains("the same within 2 %"), "{table}");
}

#[test]
fn runs_side_by_side_show_what_is_the_same_and_what_would_show_more() {
    let folder = tempfile::tempdir().unwrap();
    let made = |name: &str, size: f64, salt: u32| {
        let results = write(&folder.path().join(name), BLOCKS, |trial| {
            let mut other = trial.clone();
            other.index += salt;
            noise(&other, size)
        });
        analyse(&results).unwrap()
    };
    let (a, b) = (made("a", 0.002, 0), made("b", 0.002, 1000));
    let compared = compare::compare(&a, &[&b]);
    assert_eq!(
        cpu(&compared.others[0].comparisons).judgement.verdict,
        Verdict::Same
    );
    let table = compare::table(&compared, 100);
    assert!(
        table.contains("] =") && table.contains("= the same within 2 %"),
        "{table}"
    );
    let (a, b) = (made("c", 0.1, 0), made("d", 0.1, 1000));
    let table = compare::table(&compare::compare(&a, &[&b]), 100);
    assert!(
        table.contains("not shown in B: ") && table.contains("of each would show 2 %"),
        "{table}"
    );
}

#[test]
fn a_level_has_the_load_that_was_offered_beside_its_name_where_chance_took_it_off() {
    let folder = tempfile::tempdir().unwrap();
    let results = vtax_testkit::results::ramp::write(&folder.path().join("run"));
    for index in results.trial_indexes() {
        let mut trial = results.trial(index).unwrap();
        for phase in &mut trial.phases {
            let asked = phase.level.unwrap();
            let offered = match asked.value {
                300.0 => 319.0,
                other => other * 1.001,
            };
            let mut metric = phase.metrics["rate"].clone();
            metric.quantity = Quantity::new(offered, asked.unit);
            phase.metrics.insert("offered".to_owned(), metric);
        }
        results.rewrite_trial(&trial).unwrap();
    }
    let page = render(
        &analyse(&results).unwrap(),
        &Provenance::from_results(&results),
    );
    assert!(page.contains(" (offered 319)<"));
    assert_eq!(page.matches("(offered ").count(), 3, "one a treatment");
}

#[test]
fn every_comparison_of_pairs_has_a_noise_floor_that_its_interval_holds() {
    let (_folder, analysis) = run(BLOCKS, |trial| noise(trial, 0.03));
    let of = cpu(&analysis.comparisons);
    let (floor, tax) = (of.judgement.noise_floor.unwrap(), of.tax.unwrap());
    let ends = tax.interval.unwrap();
    assert!(floor > 0.005 && floor < 0.2, "{floor}");
    assert!(ends.low <= tax.ratio / (1.0 + floor) * 1.000_001);
    assert!(ends.high >= tax.ratio * (1.0 + floor) * 0.999_999);
    assert_eq!(json!(of)["noise_floor"], json!(floor));
    let table = terminal::table(&analysis, 100, false);
    assert!(table.contains("Noise floor"), "{table}");
}

#[test]
fn the_foot_has_the_range_of_floors_of_treatments_that_scatter_differently() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake {
        platforms: vec!["native", "container", "qemu"],
        ..fake(BLOCKS)
    };
    let results = fake.write(&folder.path().join("run"));
    set(&results, |trial| {
        let host = (0.1 * f64::from(trial.block % 2)).exp();
        host * noise(trial, if is_vm(trial) { 0.1 } else { 0.002 })
    });
    let analysis = analyse(&results).unwrap();
    let all = analysis.comparisons.iter();
    let mut all =
        all.filter(|one| one.workload == "iperf3-receive" && one.metric == "cpu.per_work");
    let of = all.find(|one| one.treatment.contains("container")).unwrap();
    assert!(of.judgement.noise_floor.unwrap() < 0.01);
    let mut lines = analysis.noise.iter();
    let line = lines.find(|line| line.contains("Noise floor")).unwrap();
    let name = format!("{} in iperf3-receive", of.title);
    let cpu = line.split("; ").find(|part| part.contains(&name)).unwrap();
    let (least, _) = cpu.rsplit_once('±').unwrap();
    assert!(least.contains("±0.") && least.ends_with("% to "), "{line}");
}

#[test]
fn a_difference_below_the_noise_floor_is_not_claimed_and_the_sentence_has_the_floor() {
    // Both rise and fall from block to block, the treatment a little more. Successive ratios are as far apart as
    // possible, so their mean square exceeds their variance.
    let (_folder, analysis) = run(BLOCKS, |trial| {
        let up = trial.block % 2 == 1;
        match (is_vm(trial), up) {
            (false, false) => 1.0,
            (false, true) => 1.1,
            (true, false) => 1.0015,
            (true, true) => 1.1 * 1.0925,
        }
    });
    let of = cpu(&analysis.comparisons);
    assert!(of.judgement.is_below_floor, "{of:?}");
    assert_eq!(of.judgement.verdict, Verdict::NoDifferenceShown);
    let text = sentence(&analysis);
    let floor = of.judgement.noise_floor.unwrap();
    let expected = format!(
        "this host resolves no difference below ±{} today",
        numbers::percent(floor)
    );
    assert!(text.contains(&expected), "{text}");
}

#[test]
fn disturbed_trials_count_and_the_sentence_the_table_and_the_record_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let results = fake(BLOCKS).write(&folder.path().join("run"));
    let old = "other programs used 3.20 s of CPU time, 41.0 % of the machine (limit 5.0 %)";
    for index in 0..u32::try_from(results.run().schedule.len()).unwrap() {
        let mut trial = results.trial(index).unwrap();
        // The form of records without a list of disturbances.
        trial.suspect.push(old.to_owned());
        results.rewrite_trial(&trial).unwrap();
        let read = results.trial(index).unwrap();
        assert_eq!(
            (read.suspect.len(), read.disturbed.as_slice()),
            (0, &[old.to_owned()][..])
        );
    }
    let analysis = analyse(&results).unwrap();
    let counts = analysis.counts;
    assert_eq!((counts.suspect, counts.counted), (0, counts.planned));
    assert_eq!(counts.disturbed, counts.counted);
    assert!(!analysis.provisional);
    assert!(
        sentence(&analysis).contains(", on a busy host"),
        "{}",
        sentence(&analysis)
    );
    let table = terminal::table(&analysis, 100, false);
    assert!(
        table.contains(&format!("{} disturbed", counts.counted)),
        "{table}"
    );
    assert!(table.contains("On a busy host"), "{table}");
}

#[test]
fn a_reason_that_is_no_disturbance_stays_a_suspicion() {
    let folder = tempfile::tempdir().unwrap();
    let results = fake(1).write(&folder.path().join("run"));
    let mut trial = results.trial(0).unwrap();
    trial.suspect = vec![
        "the load generator was late".to_owned(),
        "other programs used 7 % of the machine while guests slept".to_owned(),
        "the wall clock moved by 9.0 ms against the monotonic clock (limit 2.0 ms): it was set meanwhile".to_owned(),
    ];
    results.rewrite_trial(&trial).unwrap();
    let read = results.trial(0).unwrap();
    assert_eq!((read.suspect.len(), read.disturbed.len()), (3, 0));
}

#[test]
fn a_metric_that_a_platform_cannot_have_has_its_reason_in_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let results = write(&folder.path().join("run"), 2, |trial| noise(trial, 0.001));
    let lack = |fact: &str| {
        for index in results.trial_indexes() {
            let mut trial = results.trial(index).unwrap();
            if is_vm(&trial) {
                trial.metrics.remove("cpu.per_work");
                let fact = (!fact.is_empty()).then(|| ("host.guest".to_owned(), fact.to_owned()));
                trial.environment.extend(fact);
                results.rewrite_trial(&trial).unwrap();
            }
        }
        terminal::table(&analyse(&results).unwrap(), 100, false)
    };
    let table = lack("");
    assert!(
        table.contains("  0  not measured on this platform"),
        "{table}"
    );
    let table = lack("none: no guest of this host has its UUID or MAC address");
    assert!(
        table.contains(
            "  0  not measured:\n      no guest of this host has its UUID or MAC address\n"
        ),
        "{table}"
    );
    assert!(!table.contains("no trial that counts"), "{table}");
}
