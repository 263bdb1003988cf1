// SPDX-License-Identifier: Apache-2.0
//! Tests of joules in reports: those of a model, and those above idle power.

use std::path::Path;
use vtax_report::analysis::{Analysis, Comparison, analyse};
use vtax_report::gate::{self, AcrossHosts};
use vtax_report::history::Of;
use vtax_results::stats::Verdict;
use vtax_results::{ResultsDir, power_model};
use vtax_testkit::results::Fake;

/// A run of two platforms with modelled joules.
fn run(folder: &Path) -> ResultsDir {
    let fake = Fake {
        platforms: vec!["native", "qemu"],
        blocks: 6,
        trouble: false,
        ..Fake::default()
    };
    fake.write(&folder.join("run"))
}

fn row<'a>(analysis: &'a Analysis, metric: &str) -> &'a Comparison {
    let mut all = analysis.comparisons.iter();
    all.find(|row| row.workload == "iperf3-receive" && row.metric == metric)
        .unwrap()
}

fn gated(analysis: &Analysis) -> (gate::GateOutcome, String) {
    let gate = "energy.per_work > 100x".parse().unwrap();
    let hosts = AcrossHosts::default();
    let judged = gate::judge(&[gate], Of::Tax, analysis, &[analysis], hosts).unwrap();
    (judged[0].outcome, judged[0].reason.clone())
}

#[test]
fn modelled_joules_are_in_no_family_and_have_no_verdict_of_a_meter() {
    let folder = tempfile::tempdir().unwrap();
    let results = run(folder.path());
    let analysis = analyse(&results).unwrap();
    let joules = row(&analysis, "energy.per_work");
    assert_eq!(joules.judgement.verdict, Verdict::Modelled);
    assert_eq!(joules.judgement.adjusted_p, None);
    let headlines = || analysis.comparisons.iter().filter(|row| row.headline);
    let measured = headlines().filter(|row| !row.judgement.by_model).count();
    assert!(measured < headlines().count());
    let cpu = row(&analysis, "cpu.per_work");
    assert_eq!(cpu.judgement.family, measured);
    let mut sentences = analysis.sentences.iter();
    let sentence = sentences
        .find(|one| one.metric == "energy.per_work" && one.workload == "iperf3-receive")
        .unwrap();
    let words = [
        " by the model, not by a meter (n = 6 pairs",
        "; nothing is known of the model’s error).",
    ];
    assert!(
        words.iter().all(|words| sentence.text.contains(words)),
        "{}",
        sentence.text
    );
    let (outcome, reason) = gated(&analysis);
    assert_eq!(outcome, gate::GateOutcome::Undecided);
    assert!(reason.contains("nothing is known of its error"), "{reason}");
}

#[test]
fn the_error_of_a_fitted_model_is_in_every_interval_of_its_joules() {
    let folder = tempfile::tempdir().unwrap();
    let results = run(folder.path());
    let before = analyse(&results).unwrap();
    for mut trial in results.trials().map(Result::unwrap) {
        let facts = &mut trial.environment;
        facts.insert(power_model::RESIDUAL_RMS_WATTS.to_owned(), "0.8".to_owned());
        results.rewrite_trial(&trial).unwrap();
    }
    let after = analyse(&results).unwrap();
    let mut errors = Vec::new();
    for (old, new) in before.treatments.iter().zip(&after.treatments) {
        let watts = new.metric("power.mean").unwrap().description.mean;
        for (old, new) in old.metrics.iter().zip(&new.metrics) {
            let (was, is) = (old.interval.unwrap(), new.interval.unwrap());
            let is_joules = new.name.starts_with("energy") || new.name.starts_with("power");
            if !is_joules {
                assert_eq!(was, is, "{}", new.name);
                continue;
            }
            let mean = new.description.mean;
            let half = 1.959_964 * 0.8 / watts * mean;
            let high = mean + (was.high - mean).hypot(half);
            assert!((is.high / high - 1.0).abs() < 1e-9, "{}", new.name);
            if new.name == "energy.per_work" {
                errors.push(half / mean);
            }
        }
    }
    let (old, new) = (
        row(&before, "energy.per_work"),
        row(&after, "energy.per_work"),
    );
    let error = errors[0].hypot(errors[1]);
    assert!((new.judgement.model_error.unwrap() / error - 1.0).abs() < 0.5);
    let width = |of: &Comparison| (of.interval().unwrap().high / of.ratio.unwrap()).ln();
    let expected = width(old).hypot(new.judgement.model_error.unwrap());
    assert!((width(new) / expected - 1.0).abs() < 1e-9);
    assert_eq!(gated(&after).0, gate::GateOutcome::Passed);
}
