// SPDX-License-Identifier: Apache-2.0
//! Tests of reports with suspect trials, of which nothing is claimed.

use crate::support::{cpu, run, simulated};
use vtax_report::analysis::{Analysis, analyse};
use vtax_report::{compare, terminal};
use vtax_results::stats::Verdict;
use vtax_testkit::results::Fake;

/// A run with suspect trials: those of the VM, or all.
fn suspect(only_vms: bool) -> (tempfile::TempDir, Analysis) {
    let fake = Fake {
        blocks: 6,
        trouble: false,
        vm_cost: 6.2,
        ..Fake::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let results = fake.write(&folder.path().join("run"));
    for mut trial in results.trials().map(Result::unwrap) {
        if !only_vms || trial.treatment.platform == "qemu" {
            trial.suspect.push("steal 7 % of the window".to_owned());
            results.rewrite_trial(&trial).unwrap();
        }
    }
    let analysis = analyse(&results).unwrap();
    (folder, analysis)
}

#[test]
fn a_comparison_claims_nothing_of_suspect_trials_and_names_the_run_and_the_reason() {
    let (_one, _, before) = run(&Fake {
        blocks: 6,
        trouble: false,
        ..Fake::default()
    });
    for (only_vms, what) in [
        (true, "In B a treatment has only suspect trials"),
        (false, "In B every trial is suspect"),
    ] {
        let (_two, after) = suspect(only_vms);
        for (first, other) in [(&before, &after), (&after, &before)] {
            let compared = compare::compare(first, &[other]);
            let rows = &compared.others[0].comparisons;
            assert!(rows.len() > 10);
            let claimed = rows
                .iter()
                .filter(|row| row.judgement.verdict == Verdict::Different);
            assert_eq!(claimed.count(), 0);
            let table = compare::table(&compared, 120);
            assert!(!table.contains("] *"), "{table}");
            let what = if std::ptr::eq(first, &after) {
                what.replace("In B", "In A")
            } else {
                what.to_owned()
            };
            assert!(table.contains(&what), "{table}");
            assert!(table.contains("steal 7 % of the window"), "{table}");
        }
    }
    let table = compare::table(&compare::compare(&before, &[&before]), 100);
    assert!(!table.contains("suspect"), "{table}");
}

#[test]
fn a_sentence_about_suspect_trials_does_not_blame_their_number() {
    let (_folder, analysis) = suspect(true);
    let text = &analysis.sentences[0].text;
    assert!(text.contains("since the trials are suspect"), "{text}");
    assert!(text.contains("n = 6 pairs"), "{text}");
    assert!(
        !text.contains("too few") && !text.contains("at least 4"),
        "{text}"
    );
    let table = terminal::table(&analysis, 100, false);
    assert!(!table.contains("too few trials"), "{table}");
    assert!(table.contains("suspect trials"), "{table}");
}

#[test]
fn what_is_exact_but_suspect_is_not_claimed() {
    let (_folder, _, analysis) = simulated(2, |trial| trial.suspect.push("clock stepped".into()));
    assert!(analysis.provisional && analysis.comparisons.is_empty());
    let (_folder, _, analysis) = simulated(2, |trial| {
        if trial.treatment.platform == "qemu" {
            trial.suspect.push("clock stepped".into());
        }
    });
    assert_eq!(cpu(&analysis).judgement.verdict, Verdict::Suspect);
    let text = &analysis.sentences[0].text;
    assert!(
        text.contains("nothing is claimed, since the trials are suspect"),
        "{text}"
    );
    assert!(!text.contains("too few"), "{text}");
}
