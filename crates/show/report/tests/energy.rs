// SPDX-License-Identifier: Apache-2.0
//! Tests of joules in reports: those of a model, and those above idle power.

use crate::support::change_trials;
use std::path::Path;
use vtax_core::{Base, Source, Unit, metric};
use vtax_report::analysis::{Analysis, Comparison, ErrorOf, MetricSummary, analyse};
use vtax_report::compare::compare_of;
use vtax_report::gate::{self, AcrossHosts};
use vtax_report::history::Of;
use vtax_results::stats::{Covariances, Verdict, ratio_of_means};
use vtax_results::{IdlePhase, Metric, ResultsDir, power_model};
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
    change_trials(&results, |trial| {
        let facts = &mut trial.environment;
        facts.insert(power_model::RESIDUAL_RMS_WATTS.to_owned(), "0.8".to_owned());
    });
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

/// The energy above idle per work of each block, of a VM and of bare metal.
type Above = [(f64, f64); 6];
const FAR: Above = [
    (7.4, 5.1),
    (7.9, 4.8),
    (7.2, 5.3),
    (7.6, 4.9),
    (7.7, 5.2),
    (7.1, 4.7),
];
/// Joules for a watt.
const PER_WATT: f64 = 10.0 / 4.0;

/// A run with a meter: trials of 10 s that do 4 units of work, the idle power of each block, and half of the energy the target's.
fn metered(folder: &Path, idle: [f64; 6], above: Above) -> Analysis {
    let results = run(folder);
    let first = results
        .trials()
        .map(|trial| trial.unwrap().block)
        .min()
        .unwrap();
    change_trials(&results, |trial| {
        let at = (trial.block - first) as usize;
        let own = if trial.treatment.platform == "qemu" {
            above[at].0
        } else {
            above[at].1
        };
        let watts = idle[at] + own / PER_WATT;
        for (declared, value) in [
            (metric::POWER_MEAN, watts),
            // The lab multiplies the watts of a phase by seconds and divides again.
            (
                metric::POWER_IDLE,
                idle[at] * (1.0 + 1e-16 * f64::from(trial.index)),
            ),
            (metric::ENERGY_TOTAL, watts * 10.0),
            (metric::ENERGY_PER_WORK, watts * PER_WATT),
            (metric::ENERGY_ABOVE_IDLE, own * 4.0),
            (metric::ENERGY_ABOVE_IDLE_PER_WORK, own),
            (metric::ENERGY_ABOVE_IDLE_OF_TARGET_PER_WORK, own / 2.0),
        ] {
            let unit = Unit::from_base(Base::Byte);
            let mut of = Metric::new(declared, "", unit, value, Source::Measured);
            of.headline = declared.name == metric::ENERGY_ABOVE_IDLE_PER_WORK.name;
            trial.metrics.insert(declared.name.to_owned(), of);
        }
        trial.observation.idle = Some(IdlePhase {
            started: format!("at {}", idle[at]),
            block: trial.block,
            seconds: 5.0,
            watts: Some(idle[at]),
            busy: Some(0.01),
            not_idle: None,
        });
    });
    analyse(&results).unwrap()
}

const EACH_ITS_OWN: [f64; 6] = [40.0, 40.4, 39.7, 40.1, 40.3, 39.9];
const TWO: [f64; 6] = [40.0, 40.0, 40.0, 40.05, 40.05, 40.05];

fn of_vm<'a>(analysis: &'a Analysis, name: &str) -> &'a MetricSummary {
    let mut all = analysis.treatments.iter();
    let of = |one: &&vtax_report::analysis::TreatmentSummary| {
        one.treatment.workload == "iperf3-receive" && one.treatment.platform == "qemu"
    };
    all.find(of).unwrap().metric(name).unwrap()
}

#[test]
fn energy_above_idle_is_compared_by_the_ratio_of_means_and_a_negative_value_leaves_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut above = FAR;
    above[2].1 = -0.1;
    let analysis = metered(folder.path(), EACH_ITS_OWN, above);
    let (own, other): (Vec<f64>, Vec<f64>) = above.into_iter().unzip();
    let expected = ratio_of_means(&own, &other, Covariances::default()).unwrap();
    for (name, scale) in [
        ("energy.above_idle", 4.0),
        ("energy.above_idle.per_work", 1.0),
        ("energy.above_idle.target.per_work", 0.5),
    ] {
        let tax = row(&analysis, name).tax.unwrap();
        assert!((tax.ratio / expected.ratio - 1.0).abs() < 1e-9, "{name}");
        let high = [tax, expected].map(|of| of.interval.unwrap().high);
        assert!((high[0] / high[1] - 1.0).abs() < 1e-9, "{name}: {high:?}");
        let mean = tax.means.unwrap().treatment;
        assert!((mean / scale - 7.4833).abs() < 1e-3, "{name}: {mean}");
        assert_eq!(of_vm(&analysis, name).common_error, None);
    }
    assert!(
        row(&analysis, "energy.per_work")
            .tax
            .unwrap()
            .means
            .is_none()
    );
}

#[test]
fn an_idle_phase_of_several_blocks_widens_the_mean_and_the_ratio_of_energy_above_idle() {
    let folder = tempfile::tempdir().unwrap();
    let analysis = metered(folder.path(), TWO, FAR);
    // t of one degree, times the standard deviation of the two phases.
    let phase = 12.706_204_736 * 0.05 / 2f64.sqrt();
    // Two phases hold for half of the blocks each: (6 / 2 − 1) / 5 of the variance is not in the scatter.
    let shared = 0.4;
    for (name, per_watt) in [
        ("energy.above_idle", 10.0),
        ("energy.above_idle.per_work", PER_WATT),
        ("energy.above_idle.target.per_work", PER_WATT / 2.0),
    ] {
        let error = of_vm(&analysis, name).common_error.unwrap();
        let half = phase * per_watt * f64::sqrt(shared);
        assert_eq!(error.of, ErrorOf::IdlePower);
        let found = error.half.unwrap();
        assert!((found / half - 1.0).abs() < 1e-6, "{name}: {found} {half}");
        let (own, other): (Vec<f64>, Vec<f64>) = FAR.into_iter().unzip();
        let square = (phase * PER_WATT).powi(2) * shared;
        let common = Covariances {
            treatment: square,
            baseline: square,
            both: square,
        };
        let expected = ratio_of_means(&own, &other, common)
            .unwrap()
            .interval
            .unwrap();
        let interval = row(&analysis, name).tax.unwrap().interval.unwrap();
        assert!(
            (interval.low / expected.low - 1.0).abs() < 1e-6,
            "{interval:?}"
        );
        assert!((interval.high / expected.high - 1.0).abs() < 1e-6);
        let alone = ratio_of_means(&own, &other, Covariances::default()).unwrap();
        assert!(interval.high > alone.interval.unwrap().high);
    }
    let total = row(&analysis, "energy.per_work");
    assert_eq!(of_vm(&analysis, "energy.per_work").common_error, None);
    assert_ne!(total.judgement.verdict, Verdict::Withheld);
}

#[test]
fn a_single_idle_phase_of_several_blocks_has_no_known_error_and_no_verdict() {
    let folder = tempfile::tempdir().unwrap();
    let analysis = metered(folder.path(), [40.0; 6], FAR);
    let row = row(&analysis, "energy.above_idle.per_work");
    assert_eq!(row.judgement.verdict, Verdict::Withheld);
    let why = row.withheld.as_deref().unwrap();
    assert!(why.contains("share the only idle phase"), "{why}");
    let error = of_vm(&analysis, "energy.above_idle.per_work").common_error;
    assert_eq!(error.unwrap().half, None);
}

#[test]
fn a_ratio_that_is_not_bounded_has_words_in_place_of_an_interval() {
    let folder = tempfile::tempdir().unwrap();
    let mut above = FAR;
    for (at, (_, other)) in above.iter_mut().enumerate() {
        *other = [1.2, -0.9, 1.6, 0.1, 0.8, -0.5][at];
    }
    let analysis = metered(folder.path(), EACH_ITS_OWN, above);
    let row = row(&analysis, "energy.above_idle.per_work");
    let low = row.judgement.open.unwrap().low.unwrap();
    assert!(low > 1.0 && row.interval().is_none(), "{low}");
    assert_eq!(row.judgement.verdict, Verdict::Different);
    let note = row.note.as_deref().unwrap();
    assert!(
        note.contains("the ratio is not bounded: at least "),
        "{note}"
    );
    let shown = row.ratio_in_words().unwrap();
    assert!(shown.contains("× [at least "), "{shown}");
    let gate = |limit: &str| {
        let gate = limit.parse().unwrap();
        let hosts = AcrossHosts::default();
        gate::judge(&[gate], Of::Tax, &analysis, &[&analysis], hosts).unwrap()
    };
    for (limit, outcome) in [
        (
            "energy.above_idle.per_work > 1.1x",
            gate::GateOutcome::Missed,
        ),
        (
            "energy.above_idle.per_work > 10x",
            gate::GateOutcome::Undecided,
        ),
    ] {
        let judged = gate(limit);
        assert_eq!(judged[0].outcome, outcome, "{judged:?}");
    }
    let against_itself = compare_of(Of::Tax, &analysis, &[&analysis]);
    let mut rows = against_itself.others[0].comparisons.iter();
    let of = rows.find(|row| row.metric == "energy.above_idle.per_work");
    let note = of.unwrap().note.as_deref();
    assert_eq!(note, Some("no ratio: the ratio of one run is not bounded"));
}
