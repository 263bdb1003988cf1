// SPDX-License-Identifier: Apache-2.0
//! Tests of reports with suspect trials, of which nothing is claimed.

use crate::support::{change_trials, cpu, run, simulated};
use vtax_core::Source;
use vtax_report::analysis::{Analysis, Sentence, analyse};
use vtax_report::gate::{self, AcrossHosts, GateOutcome};
use vtax_report::history::Of;
use vtax_report::{compare, terminal};
use vtax_results::Trial;
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
    change_trials(&results, |trial| {
        if !only_vms || trial.treatment.platform == "qemu" {
            trial.suspect.push("steal 7 % of the window".to_owned());
        }
    });
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

/// A run in which a VM costs nothing more but in the blocks `dear`, where it costs three times as much; its trials there are
/// suspect.
fn lost(blocks: u32, dear: std::ops::Range<u32>, vm_cost: f64) -> (tempfile::TempDir, Analysis) {
    let fake = Fake {
        blocks,
        trouble: false,
        vm_cost,
        platforms: vec!["native", "qemu"],
        ..Fake::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let results = fake.write(&folder.path().join("run"));
    change_trials(&results, |trial| {
        if trial.treatment.platform == "qemu" && dear.contains(&trial.block) {
            trial
                .suspect
                .push("the load generator sent late".to_owned());
        }
    });
    let analysis = analyse(&results).unwrap();
    (folder, analysis)
}

#[test]
fn trials_that_are_lost_by_treatment_end_every_claim_that_they_could_overturn() {
    // The VM's six slowest trials of ten do not count, and none of bare metal's.
    let (_folder, analysis) = lost(10, 0..6, 1.0);
    let row = cpu(&analysis);
    assert_eq!(row.judgement.verdict, Verdict::Withheld, "{row:?}");
    let sentence = analysis
        .sentences
        .iter()
        .find(|one| one.workload == "iperf3-receive" && one.metric == "cpu.per_work");
    let text = &sentence.unwrap().text;
    assert!(
        text.contains("nothing is claimed") && text.contains("6 of 10 trials of qemu"),
        "{text}"
    );
    // A difference that four pairs of ten show is not one where the six others may contradict it.
    let (_folder, analysis) = lost(10, 0..6, 3.0);
    assert_eq!(cpu(&analysis).judgement.verdict, Verdict::Withheld);
    // Of twenty pairs, the three that are lost cannot.
    let (_folder, analysis) = lost(20, 0..3, 3.0);
    assert_eq!(cpu(&analysis).judgement.verdict, Verdict::Different);
    // One of ten is no pattern.
    let (_folder, analysis) = lost(10, 0..1, 1.0);
    assert_ne!(cpu(&analysis).judgement.verdict, Verdict::Withheld);
    let is_of_cpu =
        |one: &&Sentence| one.workload == "iperf3-receive" && one.metric == "cpu.per_work";
    let sentence = analysis.sentences.iter().find(is_of_cpu).unwrap();
    assert!(
        sentence.text.contains("n = 9 pairs of 10"),
        "{}",
        sentence.text
    );
    let table = terminal::table(&analysis, 100, false);
    assert!(!table.contains("nothing claimed"), "{table}");
}

#[test]
fn the_energy_of_the_whole_host_has_no_verdict_beside_other_programs() {
    let fake = Fake {
        blocks: 8,
        trouble: false,
        platforms: vec!["native", "qemu"],
        ..Fake::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let results = fake.write(&folder.path().join("run"));
    let metered = |mut trial: Trial| {
        for metric in trial.metrics.values_mut() {
            if metric.model.take().is_some() {
                metric.source = Source::Measured;
            }
        }
        results.rewrite_trial(&trial).unwrap();
    };
    results.trials().map(Result::unwrap).for_each(metered);
    let verdicts = |analysis: &Analysis| {
        let rows = analysis.comparisons.iter();
        let of = |name: &str| {
            let own = rows.clone().filter(|row| row.metric == name);
            own.map(|row| row.judgement.verdict).collect::<Vec<_>>()
        };
        (of("energy.per_work"), of("cpu.per_work"))
    };
    let (energy, cpu) = verdicts(&analyse(&results).unwrap());
    assert!(energy.contains(&Verdict::Different), "{energy:?}");
    change_trials(&results, |trial| {
        trial
            .disturbed
            .push("other programs used 1.9 of 2 processors".to_owned());
    });
    let analysis = analyse(&results).unwrap();
    let (energy, beside) = verdicts(&analysis);
    assert!(
        energy.iter().all(|one| *one == Verdict::Withheld),
        "{energy:?}"
    );
    assert_eq!(beside, cpu);
    let gate = "energy.per_work > 100x".parse().unwrap();
    let judged = gate::judge(
        &[gate],
        Of::Tax,
        &analysis,
        &[&analysis],
        AcrossHosts::default(),
    )
    .unwrap();
    assert!(
        judged
            .iter()
            .all(|one| one.outcome == GateOutcome::Undecided),
        "{judged:?}"
    );
}
