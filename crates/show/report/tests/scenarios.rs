// SPDX-License-Identifier: Apache-2.0
//! Tests of figures over time, distributions, and trials that were run again.

use crate::support::{figure, page, ramp_run, run};
use std::fs;
use vtax_report::analysis::{Analysis, analyse};
use vtax_report::{export, figures};
use vtax_results::{Aside, Stage};
use vtax_testkit::results::Fake;

#[test]
fn steady_runs_have_no_figures_of_scenarios() {
    let (_folder, _, analysis) = run(&Fake::default());
    for figure in figures::figures(&analysis) {
        for title in [
            "each load",
            "percentile",
            "actor",
            "power of the host",
            "served",
        ] {
            let headline = figure.title.contains("99th percentile of response time");
            assert!(
                headline || !figure.title.contains(title),
                "{}",
                figure.title
            );
        }
    }
}

#[test]
fn time_series_can_be_zoomed_and_say_so() {
    let (_folder, _, analysis) = ramp_run();
    let all = figures::figures(&analysis);
    let over_time: Vec<_> = all
        .iter()
        .filter(|figure| {
            figure.title.contains("over time") || figure.title.contains("over the measured")
        })
        .collect();
    assert!(over_time.len() >= 5);
    for figure in over_time {
        let layers = figure.spec["layer"].as_array();
        let mut views: Vec<&serde_json::Value> = layers.into_iter().flatten().collect();
        views.push(&figure.spec);
        let bound = views
            .iter()
            .filter(|view| view["params"][0]["bind"] == "scales");
        assert_eq!(bound.count(), 1, "{}", figure.title);
        assert!(figure.caption.contains("double click to reset"));
    }
}

#[test]
fn distributions_add_up_over_trials_and_are_compared_where_all_kept_the_objective() {
    let (_folder, results, analysis) = ramp_run();
    let alone = &analysis.treatments[0];
    assert_eq!(alone.distributions.len(), 8);
    assert!(
        alone
            .distributions
            .iter()
            .all(|one| one.trials == 4 && one.histogram.len() == 8000)
    );
    let figures = figures::figures(&analysis);
    let curves = figure(&figures, "latency by percentile");
    let lowest_knee = analysis.treatments[2]
        .metric("knee")
        .unwrap()
        .description
        .min;
    assert!(
        curves.caption.contains(&format!("at {lowest_knee} req/s")),
        "{lowest_knee}: {}",
        curves.caption
    );
    let values = curves.spec["data"]["values"].as_array().unwrap();
    let p99 = |curve: &str| {
        let at = values.iter().find(|value| {
            value["curve"] == curve && (value["beyond"].as_f64().unwrap() - 100.0).abs() < 1e-6
        });
        at.unwrap()["value"].as_f64().unwrap()
    };
    assert!(p99("neighbours = disk+net") > p99("neighbours = none"));
    // A damaged file loses its distributions and is named.
    fs::write(results.trial_path(0).join("latencies.hlog"), "not a log\n").unwrap();
    let damaged = analyse(&results).unwrap();
    assert_eq!(damaged.counts.counted, 12);
    assert!(damaged.unreadable[0].contains("0000/latencies.hlog is corrupted"));
    assert_eq!(results.damaged()[0].0, 0);
}

#[test]
fn the_timeline_splits_the_cpu_by_actor_and_finds_the_watts() {
    let (_folder, _, analysis) = ramp_run();
    let crowded = analysis.treatments[2].timeline.as_ref().unwrap();
    let who: Vec<(&str, Stage)> = crowded
        .cpu
        .iter()
        .map(|layer| (layer.actor.as_str(), layer.stage))
        .collect();
    assert_eq!(
        who,
        [
            ("target", Stage::Vcpu),
            ("target", Stage::Emulator),
            ("target", Stage::Vhost),
            ("target", Stage::Softirq),
            ("client", Stage::Client),
            ("disk", Stage::Neighbours),
            ("disk.client", Stage::Neighbours),
            ("net", Stage::Neighbours),
            ("net.client", Stage::Neighbours),
        ]
    );
    let mean = |place: usize| {
        let cores = &crowded.cpu[place].cores;
        cores.iter().sum::<f64>() / cores.len() as f64
    };
    assert!((mean(5) - 0.8).abs() < 0.02, "{}", mean(5));
    assert_eq!(crowded.cpu[0].cores.len(), 160);
    // Not the idle part, and not the sum of both.
    let (watts, _) = crowded.watts.as_ref().unwrap();
    assert!(watts.iter().sum::<f64>() / watts.len() as f64 > 15.0);
    assert_eq!(crowded.phases.len(), 8);
    assert_eq!(
        (crowded.phases[1].start, crowded.phases[1].end),
        (20.0, 40.0)
    );
}

#[test]
fn what_was_run_again_is_shown_beside_its_replacement() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    let results = fake.write(&folder.path().join("run"));
    // Trial 4 is suspect, trial 11 failed; the second attempt at 4 counts, that at 11 has not run yet.
    results.set_aside(4, Aside::Again).unwrap();
    results.set_aside(11, Aside::Failed).unwrap();
    let quiet = Fake {
        trouble: false,
        ..fake
    };
    quiet.write_trial(&results, 4);
    let analysis = analyse(&results).unwrap();
    let rows: Vec<_> = analysis
        .attempts
        .iter()
        .map(|row| (row.index, row.attempt.as_str(), row.state, row.replacement))
        .collect();
    assert_eq!(
        rows,
        [
            (4, "again-1", "suspect", "counts"),
            (11, "failed-1", "failed", "not run yet")
        ]
    );
    assert_eq!((analysis.counts.counted, analysis.counts.pending), (44, 1));
    let html = page(&results, &analysis);
    assert!(html.contains("<td>0004.again-1</td>") && html.contains("run again: counts"));
    assert!(html.contains("foreign load: 0.31 cores"));
    let mut csv = Vec::new();
    export::csv(&results, &mut csv).unwrap();
    let text = String::from_utf8(csv).unwrap();
    assert!(!text.contains("foreign load"), "attempts are left out");
}

#[test]
fn an_attempt_that_was_repeated_for_a_disturbance_has_it_as_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let quiet = Fake {
        trouble: false,
        ..Fake::default()
    };
    let results = quiet.write(&folder.path().join("run"));
    let busy = "other programs used 1.95 s of CPU time, 97.3 % of the machine (limit 5.0 %)";
    let mut trial = results.trial(4).unwrap();
    trial.suspect = vec![busy.to_owned()];
    results.rewrite_trial(&trial).unwrap();
    results.set_aside(4, Aside::Again).unwrap();
    quiet.write_trial(&results, 4);
    let analysis = analyse(&results).unwrap();
    let row = &analysis.attempts[0];
    assert_eq!((row.state, row.reason.as_str()), ("disturbed", busy));
}

#[test]
fn a_figure_at_a_load_that_not_all_kept_does_not_claim_that_they_did() {
    let (_folder, results, before) = ramp_run();
    let captions = |analysis: &Analysis| {
        let mut all = figures::figures(analysis);
        all.retain(|one| one.id.ends_with("-shift") || one.id.contains("percentiles"));
        all.into_iter().map(|one| one.caption).collect::<Vec<_>>()
    };
    let kept = captions(&before);
    assert!(
        kept.len() >= 2
            && kept
                .iter()
                .all(|one| one.contains("the highest load that all kept")),
        "{kept:?}"
    );
    for index in results.trial_indexes() {
        let mut trial = results.trial(index).unwrap();
        for phase in &mut trial.phases {
            phase.kept = Some(false);
        }
        results.rewrite_trial(&trial).unwrap();
    }
    let broken = captions(&analyse(&results).unwrap());
    let lowest = "at 100 req/s, the lowest load, which not all kept";
    assert!(
        broken.len() == kept.len() && broken.iter().all(|one| one.contains(lowest)),
        "{broken:?}"
    );
}
