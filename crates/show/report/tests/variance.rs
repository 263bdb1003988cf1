// SPDX-License-Identifier: Apache-2.0
//! Tests of the variance by level: in the analysis, the page and the terminal.

use std::fs;
use vtax_report::analysis::{MetricVariance, analyse, analyse_shards};
use vtax_report::html::{Provenance, render};
use vtax_report::terminal;
use vtax_results::ResultsDir;
use vtax_testkit::results::{Fake, ramp};

/// Blocks differ by 3 %, trials by 2 %, half seconds of traffic by 1 %.
fn fake() -> Fake {
    Fake {
        platforms: vec!["native", "container"],
        blocks: 40,
        trouble: false,
        ..Fake::default()
    }
}

fn sd(of: &MetricVariance, level: &str) -> Option<f64> {
    of.level(level).map(|level| level.sd)
}

#[test]
fn samples_and_trials_have_the_variance_that_the_run_was_made_with() {
    let folder = tempfile::tempdir().unwrap();
    let results = fake().write(&folder.path().join("run"));
    let analysis = analyse(&results).unwrap();
    let of = |treatment: &str, metric: &str| {
        let mut all = analysis.variance.iter();
        let found = all.find(|of| of.treatment == treatment && of.metric == metric);
        found.unwrap_or_else(|| panic!("{:#?}", analysis.variance))
    };
    let throughput = of("native · iperf3-receive", "throughput");
    let sample = sd(throughput, "sample").unwrap();
    assert!((0.006..0.008).contains(&sample), "{throughput:#?}");
    let trial = sd(throughput, "trial").unwrap();
    assert!((0.025..0.047).contains(&trial), "{throughput:#?}");
    let shares: f64 = throughput.levels.iter().map(|level| level.share).sum();
    assert!((shares - 1.0).abs() < 1e-9);
    // One machine, and one trial of a treatment in each block.
    assert_eq!(
        (sd(throughput, "machine"), sd(throughput, "block")),
        (None, None)
    );
    // CPU time per byte scatters by 2 % of CPU time and 1 % of traffic in half a second.
    let cpu = sd(of("native · iperf3-receive", "cpu.per_work"), "sample").unwrap();
    assert!((0.013..0.019).contains(&cpu), "{cpu}");
    // Requests per second are in no series, so CPU time per request has no samples.
    assert_eq!(sd(of("native · http-rate", "cpu.per_work"), "sample"), None);
    // A quantile is one number of a trial.
    let latency = of("container · http-rate", "latency.p99");
    assert_eq!(sd(latency, "sample"), None);
    assert!(sd(latency, "trial").is_some() && latency.window_in_words().is_none());
    // Each trial costs more time than a second of it, and samples scatter less than trials.
    let best = throughput.best_measured_seconds.unwrap();
    assert!((1.0..3.0).contains(&best), "{throughput:#?}");
    // A baseline has no ratio.
    assert_eq!(throughput.repetitions, None);
    let container = of("container · iperf3-receive", "throughput");
    let comparison = analysis.compared()[&("container · iperf3-receive", "throughput")];
    assert_eq!(
        container.repetitions,
        comparison.needed_for(0.05).map(|needed| needed.n)
    );
    assert!(container.repetitions.is_some());
}

#[test]
fn the_repetitions_needed_for_the_present_width_are_the_present_ones() {
    let folder = tempfile::tempdir().unwrap();
    let few = Fake {
        blocks: 6,
        ..fake()
    };
    let analysis = analyse(&few.write(&folder.path().join("run"))).unwrap();
    let mut seen = 0;
    for comparison in analysis.comparisons.iter().filter(|of| of.headline) {
        let now = comparison.half_width().unwrap();
        let n = |width: f64| comparison.needed_for(width).unwrap().n;
        assert_eq!(n(now * 1.0001), 6, "{comparison:#?}");
        assert_eq!(n(now * 0.9999), 7, "{comparison:#?}");
        // Student's quantile of six pairs is larger than of many, so fewer than four times as many halve the width.
        assert!((12..24).contains(&n(now / 2.0)), "{}", n(now / 2.0));
        seen += 1;
    }
    assert!(seen > 3);
}

#[test]
fn the_page_the_terminal_and_the_document_have_the_levels_and_what_is_not_separable() {
    let folder = tempfile::tempdir().unwrap();
    let results = fake().write(&folder.path().join("run"));
    let analysis = analyse(&results).unwrap();
    let page = render(&analysis, &Provenance::from_results(&results));
    let shown = terminal::variance(&analysis, 100, false);
    for text in [&page, &shown] {
        for part in [
            "Variance by level, and recommended repetitions",
            "between samples",
            "between trials",
            "Trial, boot and block are not separable in this plan",
            "for a ratio ±5 %",
        ] {
            let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(joined.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("between machines"));
    }
    let document = serde_json::to_value(&analysis).unwrap();
    assert_eq!(document["variance"][0]["levels"][0]["level"], "sample");
    assert!(document["variance"][0]["levels"][1]["share"].is_number());
}

#[test]
fn machines_that_differ_are_a_level_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let shards: Vec<ResultsDir> = (0..4)
        .map(|at| {
            let path = folder.path().join(format!("shard{at}"));
            let fake = fake();
            let results = fake.create(&path);
            let host = serde_json::json!({ "boot_id": format!("boot{at}"), "kernel": "6.1.0", "vtax": "1" });
            fs::write(path.join("host.json"), host.to_string()).unwrap();
            for index in results.pending() {
                if results.block_of(index).unwrap() % 4 == at {
                    fake.write_trial(&results, index);
                    let mut trial = results.trial(index).unwrap();
                    for metric in trial.metrics.values_mut() {
                        metric.quantity.value *= 1.0 + 0.2 * f64::from(at);
                    }
                    results.rewrite_trial(&trial).unwrap();
                }
            }
            results
        })
        .collect();
    let analysis = analyse_shards(&shards.iter().collect::<Vec<_>>()).unwrap();
    for of in &analysis.variance {
        // Means of 1, 1.2, 1.4 and 1.6 have a standard deviation of 0.258, 20 % of their mean.
        let machine = sd(of, "machine").unwrap();
        assert!((0.17..0.23).contains(&machine), "{of:#?}");
        assert!(of.level("machine").unwrap().share > 0.8, "{of:#?}");
        assert_eq!(
            of.repetition == "machine",
            of.repetitions.is_some(),
            "{of:#?}"
        );
    }
    assert!(!analysis.variance.is_empty());
}

#[test]
fn one_block_a_ramp_and_suspect_trials_claim_no_variance_that_they_do_not_show() {
    let folder = tempfile::tempdir().unwrap();
    let one = Fake {
        blocks: 1,
        ..fake()
    };
    let analysis = analyse(&one.write(&folder.path().join("one"))).unwrap();
    assert_eq!(analysis.variance, []);
    assert!(terminal::variance(&analysis, 80, false).contains("no headline metric"));
    assert!(
        analysis
            .comparisons
            .iter()
            .all(|of| of.needed_for(0.05).is_none())
    );

    let analysis = analyse(&ramp::write(&folder.path().join("ramp"))).unwrap();
    assert!(!analysis.variance.is_empty());
    assert!(
        analysis
            .variance
            .iter()
            .all(|of| sd(of, "sample").is_none())
    );
    let mut knees = analysis.comparisons.iter().filter(|of| of.metric == "knee");
    assert!(knees.all(|of| of.needed_for(0.05).is_none()));

    let results = fake().write(&folder.path().join("suspect"));
    for index in results.trial_indexes() {
        let mut trial = results.trial(index).unwrap();
        trial.suspect.push("the generator was late".to_owned());
        results.rewrite_trial(&trial).unwrap();
    }
    assert_eq!(analyse(&results).unwrap().variance, []);
}
