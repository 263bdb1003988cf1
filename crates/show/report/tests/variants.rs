// SPDX-License-Identifier: Apache-2.0
//! Runs that compare variants: the change on each platform, the change of its tax, and the gates for both.

use crate::support::run;
use vtax_report::analysis::Analysis;
use vtax_report::gate::{GateOutcome, judge_run};
use vtax_report::{html, terminal};
use vtax_results::stats::Verdict;
use vtax_testkit::results::Fake;

/// A new variant that costs 20 % more, and in a VM 10 % more on top, or nothing more.
fn compared(in_vm: f64) -> Analysis {
    let fake = Fake {
        trouble: false,
        blocks: 12,
        variants: vec![("old", 1.0, 1.0), ("new", 1.2, in_vm)],
        ..Fake::default()
    };
    run(&fake).2
}

fn verdict(analysis: &Analysis, platform: &str) -> Verdict {
    let change = analysis.tax_changes.iter().find(|one| {
        one.platform == platform && one.workload == "http-rate" && one.metric == "cpu.per_work"
    });
    change.unwrap().judgement.verdict
}

#[test]
fn a_variant_is_compared_on_each_platform_and_a_changed_tax_is_told() {
    let analysis = compared(1.1);
    assert!(analysis.has_variants());
    let rows: Vec<_> = (analysis.comparisons.iter())
        .filter(|row| row.metric == "cpu.per_work" && row.workload == "http-rate")
        .collect();
    assert_eq!(rows.len(), 3, "one for each platform");
    assert!(rows.iter().all(|row| row.variant.as_deref() == Some("new")));
    assert!(
        rows.iter()
            .all(|row| row.judgement.verdict == Verdict::Different)
    );
    assert_eq!(verdict(&analysis, "qemu"), Verdict::Different);
    assert_ne!(verdict(&analysis, "container"), Verdict::Different);
    assert!(
        analysis
            .tax_changes
            .iter()
            .all(|row| row.platform != "native")
    );
    let table = terminal::table(&analysis, 100, false);
    let table = table.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "Variant new costs 1.2",
        "the CPU of variant old to serve a request on bare metal",
        "changes with variant new: it is 1.1",
        "that of variant old (n = 12 pairs, emulated)",
        "native old ",
        "change is the ratio to the baseline",
    ] {
        assert!(table.contains(part), "{part}\n{table}");
    }
}

#[test]
fn a_summary_flags_what_is_not_measured() {
    let analysis = compared(1.1);
    let summary = vtax_report::pipeline::summary(&analysis, &[]);
    let lines: Vec<&str> = summary.lines().collect();
    let of = |parts: [&str; 2]| {
        let own = lines
            .iter()
            .filter(|line| parts.iter().all(|part| line.contains(part)));
        own.copied().collect::<Vec<&str>>()
    };
    for (parts, flag) in [
        (["| qemu", "cpu.per\\_work"], "emulated"),
        (["| native", "energy.per\\_work"], "modelled"),
        (["qemu · http-rate", "●"], "emulated"),
    ] {
        let found = of(parts);
        assert!(
            !found.is_empty() && found.iter().all(|line| line.contains(flag)),
            "{parts:?} {summary}"
        );
    }
    assert!(
        of(["| native", "cpu.per\\_work"])
            .iter()
            .all(|line| !line.contains("emulated"))
    );
}

#[test]
fn a_tax_that_stays_is_not_told_as_changed() {
    let analysis = compared(1.0);
    assert_ne!(verdict(&analysis, "qemu"), Verdict::Different);
}

#[test]
fn gates_in_percent_judge_variants_in_one_run_and_are_refused_without_them() {
    let analysis = compared(1.1);
    let outcomes = |gate: &str| -> Vec<(String, GateOutcome)> {
        let judged = judge_run(&analysis, &[gate.parse().unwrap()]).unwrap();
        judged
            .into_iter()
            .map(|one| (one.treatment, one.outcome))
            .collect()
    };
    let missed = outcomes("cpu.per_work of new > +3%");
    assert_eq!(missed.len(), 9, "{missed:?}");
    let of = |workload: &str| {
        let mut own = missed.iter().filter(|(label, _)| label.contains(workload));
        own.all(|(_, outcome)| *outcome == GateOutcome::Missed)
    };
    assert!(of("http-rate") && of("iperf3-receive"), "{missed:?}");
    let on_vm = outcomes("cpu.per_work of qemu > +60%");
    assert!(on_vm.iter().all(|(label, outcome)| {
        label.starts_with("qemu") && label.contains("new") && *outcome == GateOutcome::Passed
    }));
    assert!(judge_run(&analysis, &["cpu.per_work of old > +3%".parse().unwrap()]).is_err());
    let (_folder, _, plain) = run(&Fake::default());
    let refused = judge_run(&plain, &["cpu.per_work > +3%".parse().unwrap()]).unwrap_err();
    assert!(refused.to_string().contains("give variants"), "{refused}");
}

#[test]
fn the_page_has_the_changes_and_no_word_of_a_tax_of_variants() {
    let fake = Fake {
        trouble: false,
        blocks: 12,
        variants: vec![("old", 1.0, 1.0), ("new", 1.2, 1.1), ("newer", 1.3, 1.0)],
        ..Fake::default()
    };
    let (_folder, results, analysis) = run(&fake);
    let path = html::write_report(&results, &analysis).unwrap();
    let page = std::fs::read_to_string(path).unwrap();
    for part in [
        "against variant old",
        "The change from the first variant on each platform",
        "changes with variant new",
    ] {
        assert!(page.contains(part), "{part}");
    }
    // Two variants on two platforms beside bare metal, of each headline metric.
    let changes = analysis
        .tax_changes
        .iter()
        .filter(|row| row.metric == "cpu.per_work" && row.workload == "http-rate");
    assert_eq!(changes.count(), 4);
}

#[test]
fn a_run_to_which_blocks_were_added_has_wider_intervals_that_hold_at_every_look() {
    let fake = Fake {
        trouble: false,
        blocks: 12,
        variants: vec![("old", 1.0, 1.0), ("new", 1.2, 1.0)],
        ..Fake::default()
    };
    let (_folder, mut results, before) = run(&fake);
    assert!(!before.sequential);
    let treatments = results.run().treatments.len();
    let more: Vec<_> = (0..treatments)
        .map(|treatment| vtax_results::Scheduled {
            treatment,
            block: 99,
        })
        .collect();
    results.extend(&more).unwrap();
    let reopened = vtax_results::ResultsDir::open(results.path()).unwrap();
    assert_eq!(reopened.run().schedule.len(), 13 * treatments);
    let after = vtax_report::analysis::analyse(&reopened).unwrap();
    assert!(after.sequential);
    assert_eq!(after.counts.pending, treatments);
    for (one, other) in before.comparisons.iter().zip(&after.comparisons) {
        if let (Some(fixed), Some(looked)) =
            (one.tax.unwrap().interval, other.tax.unwrap().interval)
        {
            let width = |of: vtax_results::stats::Interval| (of.high / of.low).ln();
            assert!(
                width(looked) >= width(fixed),
                "{} {}",
                one.treatment,
                one.metric
            );
        }
    }
    let page = html::write_report(&reopened, &after).unwrap();
    let page = std::fs::read_to_string(page).unwrap();
    for part in [
        "How the intervals narrowed",
        "hold at every look",
        "Ended early.",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("at every \\ look"));
}
