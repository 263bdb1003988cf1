//! Tests of the quantiles of generated runs, and of their intervals by simulation.

use std::path::Path;
use vtax_report::analysis::{Analysis, Comparison, analyse};
use vtax_report::html::{Provenance, render};
use vtax_report::results::ResultsDir;
use vtax_report::stats::Verdict;
use vtax_report::{compare, export, gate, survey, terminal};
use vtax_testkit::results::Fake;

const WHY: &str = "300 requests do not support p99: at least 368 are needed";

fn write(path: &Path, requests: u64) -> ResultsDir {
    let fake = Fake {
        platforms: vec!["native", "qemu"],
        blocks: 6,
        trouble: false,
        requests: Some(requests),
        ..Fake::default()
    };
    fake.write(path)
}

fn run(requests: u64) -> (tempfile::TempDir, ResultsDir, Analysis) {
    let folder = tempfile::tempdir().unwrap();
    let results = write(&folder.path().join("run"), requests);
    let analysis = analyse(&results).unwrap();
    (folder, results, analysis)
}

fn p99(comparisons: &[Comparison]) -> &Comparison {
    let mut all = comparisons.iter();
    all.find(|one| one.metric == "latency.p99").unwrap()
}

#[test]
fn a_quantile_with_too_few_requests_is_marked_everywhere_and_nothing_is_claimed_of_it() {
    let (folder, results, analysis) = run(300);
    let row = p99(&analysis.comparisons);
    assert_eq!(row.verdict, Verdict::Unsupported);
    assert_eq!((row.adjusted_p, row.needed), (None, None));
    assert!(row.note.as_ref().unwrap().contains(WHY), "{row:?}");
    let mut sentences = analysis.sentences.iter();
    let sentence = sentences.find(|one| one.metric == "latency.p99").unwrap();
    assert!(
        sentence
            .text
            .contains(&format!("nothing is claimed, since {WHY}"))
    );
    let page = render(&analysis, &Provenance::of(&results));
    assert!(
        page.matches(WHY).count() >= 4,
        "both cells, the comparison, the line"
    );
    let text = terminal::table(&analysis, 100, false);
    assert!(text.contains("too few requests"), "{text}");

    let other = write(&folder.path().join("other"), 3000);
    let other = analyse(&other).unwrap();
    let compared = compare::compare(&analysis, &[&other]);
    assert_eq!(
        p99(&compared.others[0].comparisons).verdict,
        Verdict::Unsupported
    );
    let table = compare::table(&compared, 100);
    assert!(
        table.contains(&format!("? nothing is claimed: {WHY}")),
        "{table}"
    );
    let gates = ["latency.p99 > 5%".parse().unwrap()];
    for of in [gate::Of::Cost, gate::Of::Tax] {
        let judged = gate::judge(&gates, of, &analysis, &[&other]).unwrap();
        assert!(!judged.is_empty());
        for one in judged {
            assert_eq!(one.outcome, gate::GateOutcome::Undecided);
            assert!(one.reason.contains(WHY), "{}", one.reason);
        }
    }

    let mut csv = Vec::new();
    assert!(export::csv(&results, &mut csv).unwrap().is_empty());
    let csv = String::from_utf8(csv).unwrap();
    let mut p99 = csv.lines().filter(|line| line.contains("latency.p99"));
    assert!(p99.all(|line| line.contains(WHY) && line.ends_with(",,")));
    let surveyed = survey::survey(&[results.path().to_owned()], None).unwrap();
    let mut findings = surveyed.kinds.iter().flat_map(|kind| &kind.findings);
    let finding =
        findings.find(|one| one.metric == "latency.p99" && one.treatment.contains("qemu"));
    assert!(
        finding
            .unwrap()
            .note
            .as_ref()
            .unwrap()
            .contains("too few requests")
    );
}

#[test]
fn a_supported_quantile_has_an_interval_within_each_trial_and_is_compared() {
    let (_folder, results, analysis) = run(2000);
    assert_eq!(p99(&analysis.comparisons).verdict, Verdict::Different);
    let rows = analysis.trials.iter().flat_map(|row| &row.quantiles);
    let quantiles: Vec<_> = rows.collect();
    assert_eq!(
        quantiles.len(),
        6 * 2 * 2,
        "p50 and p99 of each trial of http-rate"
    );
    for one in quantiles {
        let ends = one.interval.unwrap();
        let (low, high) = (0.5e-3, 60e-3);
        assert!(
            low < ends.low && ends.low < ends.high && ends.high < high,
            "{one:?}"
        );
    }
    let page = render(&analysis, &Provenance::of(&results));
    assert!(page.contains(" within a trial"), "{page}");
    let mut csv = Vec::new();
    assert!(export::csv(&results, &mut csv).unwrap().is_empty());
    let csv = String::from_utf8(csv).unwrap();
    assert!(
        csv.lines()
            .next()
            .unwrap()
            .ends_with(",model,unsupported,counts,value,low,high")
    );
    let mut p99 = csv.lines().filter(|line| line.contains("latency.p99"));
    assert!(p99.all(|line| !line.contains("requests do not") && !line.ends_with(',')));
}

#[test]
fn a_trial_whose_requests_all_failed_supports_no_quantile() {
    let (.., analysis) = run(0);
    let row = p99(&analysis.comparisons);
    assert_eq!(row.verdict, Verdict::Unsupported);
    assert_eq!(row.unsupported.unwrap().values, 0);
}
