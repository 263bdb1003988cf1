// SPDX-License-Identifier: Apache-2.0
//! Tests of runs in emulated hosts, whose repetitions of one seed are exact.

use crate::support::{cpu, page, run, simulated};
use vtax_core::Source;
use vtax_report::analysis::Certainty;
use vtax_report::{compare, figures, terminal};
use vtax_results::Trial;
use vtax_results::stats::Verdict;
use vtax_testkit::results::Fake;

#[test]
fn repetitions_of_one_seed_are_exact() {
    for blocks in [1, 3] {
        let (_folder, results, analysis) = simulated(blocks, |_| {});
        let vm = cpu(&analysis);
        assert_eq!(vm.certainty, Certainty::Exact { seed: 1 });
        assert_eq!((vm.tax, vm.judgement.adjusted_p), (None, None));
        assert_eq!(vm.judgement.verdict, Verdict::Different);
        assert!(vm.ratio.unwrap() > 2.0, "{vm:?}");
        let metrics = analysis.treatments.iter().flat_map(|of| &of.metrics);
        assert!(metrics.clone().count() > 10);
        assert!(metrics.clone().all(|of| of.interval.is_none()));
        assert!(
            metrics
                .clone()
                .all(|of| of.description.n == blocks as usize)
        );
        let text = &analysis.sentences[0].text;
        assert!(
            text.contains(" costs exactly 3.") && text.contains("(n = 1 seed, simulated)"),
            "{text}"
        );
        for shown in [
            page(&results, &analysis),
            terminal::table(&analysis, 100, false),
        ] {
            // The script of the page is left out of the check.
            let shown = shown.split("<script>").next().unwrap();
            let rules = shown.find("How each number is made").unwrap_or(shown.len());
            let words: Vec<&str> = shown[..rules].split_whitespace().collect();
            let shown = words.join(" ");
            for wrong in ["too few", "95 %", "not shown", "none shown", "n = 1 pair"] {
                assert!(!shown.contains(wrong), "{wrong}");
            }
            assert!(shown.contains("says nothing about chance in the timing"));
        }
        let json = serde_json::json!(analysis)["comparisons"][0].clone();
        assert_eq!(json["certainty"]["exact"]["seed"], 1);
        assert!(json["tax"].is_null() && json["ratio"].is_number());
        let figures = figures::figures(&analysis);
        let tax = &figures[0];
        assert!(tax.caption.contains("exact") && !tax.caption.contains("bars"));
        let rows = tax.spec["data"]["values"].as_array().unwrap();
        let drawn = rows.iter().filter(|row| row["ratio"].is_number());
        assert!(drawn.clone().count() > 2);
        assert!(drawn.clone().all(|row| row["low"].is_null()));
        assert!(
            drawn
                .clone()
                .all(|row| row["text"].as_str().unwrap().contains("× exact"))
        );
    }
}

#[test]
fn an_old_record_of_an_emulated_host_is_shown_as_simulated_and_one_of_another_place_as_emulated() {
    for (place, flag) in [
        ("testbed:kvm", Source::Simulated),
        ("local", Source::Emulated),
    ] {
        // The numbers of its VMs are stored as `emulated`.
        let (_folder, results, analysis) = run(&Fake {
            place,
            ..Fake::default()
        });
        assert_eq!(analysis.source, Some(flag));
        let is_vm = |index: &u32| results.trial(*index).unwrap().treatment.platform == "qemu";
        let vm = results.trial_indexes().into_iter().find(is_vm).unwrap();
        let samples = results.samples(vm).unwrap().load(|_, _| true).unwrap();
        assert!(samples.iter().all(|one| one.series.source == flag));
        let evidence = format!("(n = 5 pairs, {flag})");
        let mut texts = analysis.sentences.iter().map(|of| &of.text);
        assert!(texts.any(|text| text.contains(&evidence)));
        let marks = match flag {
            Source::Simulated => ["s = simulated:", "S = simulated and modelled:"],
            _ => ["e = emulated:", "E = emulated and modelled:"],
        };
        let table = terminal::table(&analysis, 200, false);
        assert!(marks.iter().all(|mark| table.contains(mark)), "{table}");
        let banner = match flag {
            Source::Simulated => "<b>Simulated.</b>",
            _ => "<b>Emulated.</b>",
        };
        assert!(page(&results, &analysis).contains(banner));
    }
}

#[test]
fn a_seed_for_each_block_gives_an_interval_over_seeds() {
    let (_folder, results, analysis) = simulated(4, |trial| {
        let seed = (trial.block + 1).to_string();
        trial.environment.insert("testbed.seed".into(), seed);
    });
    let vm = cpu(&analysis);
    assert_eq!((vm.certainty, vm.tax.unwrap().n), (Certainty::Seeds, 4));
    assert_eq!(vm.judgement.verdict, Verdict::Different);
    let text = &analysis.sentences[0].text;
    assert!(text.contains("n = 4 seeds, simulated"), "{text}");
    assert!(page(&results, &analysis).contains("how much chance there is in the timing"));
    assert!(terminal::table(&analysis, 100, false).contains("[95 % CI over seeds]"));
    let caption = &figures::figures(&analysis)[0].caption;
    assert!(caption.contains("over seeds"), "{caption}");
}

#[test]
fn repetitions_of_one_seed_that_differ_are_a_sample() {
    let (_folder, _, analysis) = simulated(4, |trial| {
        trial.environment.insert("noise".into(), String::new());
    });
    let vm = cpu(&analysis);
    assert_eq!(vm.certainty, Certainty::Trials);
    assert!(vm.tax.unwrap().interval.is_some());
}

#[test]
fn a_trial_whose_host_got_stuck_is_no_repetition_of_the_others() {
    let stuck = |block| {
        move |trial: &mut Trial| {
            if trial.block == block && trial.treatment.platform == "qemu" {
                trial.environment.insert("testbed.stuck".into(), "1".into());
                trial.environment.insert("testbed.seed".into(), "9".into());
            }
        }
    };
    let (_folder, _, analysis) = simulated(3, stuck(2));
    assert_eq!(cpu(&analysis).certainty, Certainty::Exact { seed: 1 });
    assert_eq!(analysis.counts.suspect, 3);
    let reason = analysis.trials.iter().find_map(|row| row.suspect.first());
    assert!(reason.unwrap().contains("seed 9"), "{reason:?}");
    // With no other trial of its treatment it counts, with its own seed.
    let (_folder, _, analysis) = simulated(1, stuck(0));
    let vm = cpu(&analysis);
    assert_eq!(
        (vm.certainty, vm.judgement.verdict),
        (Certainty::Seeds, Verdict::TooFewTrials)
    );
    assert!(vm.note.as_deref().unwrap().contains("seed 9"), "{vm:?}");
    assert_eq!(analysis.counts.suspect, 0);
    assert!(analysis.sentences[0].text.contains("at least 4 seeds"));
}

#[test]
fn exact_runs_compare_exactly() {
    let (_folder, _, before) = simulated(1, |_| {});
    let (_other, _, after) = simulated(2, |_| {});
    let comparison = compare::compare(&before, &[&after]);
    let rows = &comparison.others[0].comparisons;
    assert!(rows.len() > 4);
    assert!(
        rows.iter()
            .all(|row| row.judgement.verdict == Verdict::Same)
    );
    let table = compare::table(&comparison, 100);
    assert!(
        table.contains("exactly 1.00×") && !table.contains("95 %"),
        "{table}"
    );
}
