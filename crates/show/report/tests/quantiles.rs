// SPDX-License-Identifier: Apache-2.0
//! Tests of the quantiles of generated runs, and of their intervals by simulation.

use hdrhistogram::Histogram;
use std::path::Path;
use vtax_report::analysis::{Analysis, Comparison, Shift, analyse, knee_in_words};
use vtax_report::figures::figures;
use vtax_report::html::{Provenance, render};
use vtax_report::{compare, export, gate, history, pipeline, survey, terminal};
use vtax_results::stats::{
    Random, SHIFT_QUANTILES, Verdict, confidence_of_each, quantile_interval, seed_of, shift_ratio,
};
use vtax_results::{HistogramRecord, ObjectiveOutcome, ResultsDir};
use vtax_testkit::results::{Fake, normal};

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
    assert_eq!(row.judgement.verdict, Verdict::Unsupported);
    assert_eq!(
        (row.judgement.adjusted_p, row.judgement.needed),
        (None, None)
    );
    assert!(row.note.as_ref().unwrap().contains(WHY), "{row:?}");
    let mut sentences = analysis.sentences.iter();
    let sentence = sentences.find(|one| one.metric == "latency.p99").unwrap();
    assert!(
        sentence
            .text
            .contains(&format!("nothing is claimed, since {WHY}"))
    );
    let page = render(&analysis, &Provenance::from_results(&results));
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
        p99(&compared.others[0].comparisons).judgement.verdict,
        Verdict::Unsupported
    );
    let table = compare::table(&compared, 100);
    assert!(
        table.contains(&format!("? nothing is claimed: {WHY}")),
        "{table}"
    );
    let gates = ["latency.p99 > 5%".parse().unwrap()];
    for of in [gate::Of::Cost, gate::Of::Tax] {
        let judged = gate::judge(
            &gates,
            of,
            &analysis,
            &[&other],
            gate::AcrossHosts::default(),
        )
        .unwrap();
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
    assert_eq!(
        p99(&analysis.comparisons).judgement.verdict,
        Verdict::Different
    );
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
    let page = render(&analysis, &Provenance::from_results(&results));
    assert!(page.contains(" within a trial"), "{page}");
    let mut csv = Vec::new();
    assert!(export::csv(&results, &mut csv).unwrap().is_empty());
    let csv = String::from_utf8(csv).unwrap();
    assert!(
        csv.lines()
            .next()
            .unwrap()
            .ends_with(",model,meter,unsupported,counts,value,low,high")
    );
    let mut p99 = csv.lines().filter(|line| line.contains("latency.p99"));
    assert!(p99.all(|line| !line.contains("requests do not") && !line.ends_with(',')));
}

#[test]
fn a_trial_whose_requests_all_failed_supports_no_quantile() {
    let (.., analysis) = run(0);
    let row = p99(&analysis.comparisons);
    assert_eq!(row.judgement.verdict, Verdict::Unsupported);
    assert_eq!(row.judgement.unsupported.unwrap().values, 0);
}

#[test]
fn an_objective_of_a_steady_load_holds_in_so_many_trials_and_in_none_that_is_shown_by_too_few_requests()
 {
    let words = |requests: u64| {
        let (_folder, results, _) = run(requests);
        for index in results.trial_indexes() {
            let mut trial = results.trial(index).unwrap();
            if trial.treatment.workload == "http-rate" {
                let broke = (trial.block == 1).then(|| "latency.p99 was 30 ms".to_owned());
                trial.objective = Some(ObjectiveOutcome {
                    text: "latency.p99 <= 20ms".to_owned(),
                    knee: None,
                    broke,
                    next: None,
                    late_from: None,
                    unsupported_from: None,
                });
                results.rewrite_trial(&trial).unwrap();
            }
        }
        let analysis = analyse(&results).unwrap();
        let found = analysis.treatments.iter().find_map(knee_in_words);
        found.unwrap()
    };
    let held = "latency.p99 <= 20ms held in 5 of 6 trials; broken by latency.p99 was 30 ms";
    assert!(words(2000).ends_with(held), "{}", words(2000));
    let nothing = format!("nothing is claimed of latency.p99 <= 20ms: {WHY}");
    assert!(words(300).ends_with(&nothing), "{}", words(300));
}

#[test]
fn a_history_neither_follows_nor_judges_a_quantile_with_too_few_requests() {
    let folder = tempfile::tempdir().unwrap();
    let runs = |requests: &[u64]| -> Vec<Analysis> {
        let runs = (0..).zip(requests).map(|(day, requests)| {
            let path = folder.path().join(format!("{requests}-{day}"));
            analyse(&write(&path, *requests)).unwrap()
        });
        runs.collect()
    };
    let many = [2000, 2000, 2000, 2000];
    let mut runs = [runs(&many), runs(&[300])].concat();
    let gates = ["latency.p99 of qemu > +10%".parse().unwrap()];
    for of in [history::Of::Tax, history::Of::Cost] {
        let followed = history::history(&runs, of, &["latency.p99".to_owned()]);
        assert!(!followed.series.is_empty());
        for series in &followed.series {
            // By path, the run with too few requests is the last.
            let of_runs: Vec<usize> = series.points.iter().map(|point| point.run).collect();
            assert_eq!(of_runs, [0, 1, 2, 3], "{series:?}");
        }
        let table = history::table(&followed, 110);
        assert!(
            table.contains("latency.p99 of 1 of 5 runs is left out"),
            "{table}"
        );
        assert!(table.contains(WHY), "{table}");
        let judged = gate::judge_history(&gates, &followed, gate::AcrossHosts::default()).unwrap();
        assert_eq!(judged[0].outcome, gate::GateOutcome::Undecided);
        assert!(judged[0].reason.contains(WHY), "{}", judged[0].reason);
    }
    // Without a run that supports it there is no series, and the gate has the reason.
    runs.drain(..4);
    let none = history::history(&runs, history::Of::Tax, &[]);
    assert!(none.series.iter().all(|one| one.metric != "latency.p99"));
    let judged = gate::judge_history(&gates, &none, gate::AcrossHosts::default()).unwrap();
    assert_eq!(judged[0].outcome, gate::GateOutcome::Undecided);
    assert!(judged[0].reason.contains(WHY), "{}", judged[0].reason);
}

/// A run whose latencies are `latency` of the treatment's platform and a standard normal number, in seconds.
fn shifted(requests: u64, latency: impl Fn(&str, f64) -> f64) -> Analysis {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake {
        blocks: 6,
        trouble: false,
        ..Fake::default()
    };
    let results = fake.create(&folder.path().join("run"));
    for index in results.pending() {
        let writer = results.trial_writer(index).unwrap();
        let trial = fake.trial(results.run(), index);
        if trial.treatment.workload == "http-rate" {
            let mut random = Random::new(u64::from(index));
            let speed = 1.0 + 0.005 * normal(&mut random);
            let mut histogram = Histogram::new(3).unwrap();
            for _ in 0..requests {
                let value = latency(&trial.treatment.platform, normal(&mut random));
                histogram.record((speed * value * 1e9) as u64).unwrap();
            }
            let record = HistogramRecord {
                actor: "client".to_owned(),
                metric: "latency".to_owned(),
                window: trial.window,
                histogram,
            };
            writer.write_histograms(&[record]).unwrap();
        }
        writer.finish(trial).unwrap();
    }
    analyse(&results).unwrap()
}

fn of<'a>(analysis: &'a Analysis, platform: &str) -> &'a Shift {
    let mut all = analysis.shifts.iter();
    all.find(|shift| shift.treatment.starts_with(platform))
        .unwrap()
}

#[test]
fn a_slow_tail_beside_an_equal_median_is_a_sentence_and_a_figure() {
    let analysis = shifted(4000, |platform, z| {
        let tail = if platform == "qemu" && z > 1.2 {
            1.8
        } else {
            1.0
        };
        tail * 0.001 * (0.3 * z).exp()
    });
    assert_eq!(analysis.shifts.len(), 2, "container and qemu");
    let vm = of(&analysis, "qemu");
    assert_eq!(
        (vm.n, vm.points.len(), vm.verdict()),
        (6, 11, Verdict::Different)
    );
    assert!(
        vm.text.contains("the slowest tenth takes 1.8"),
        "{}",
        vm.text
    );
    assert!(
        vm.text.contains("the median is the same within 5 %"),
        "{}",
        vm.text
    );
    for point in &vm.points {
        let is_tail = point.quantile >= 0.9;
        assert_eq!(point.verdict == Verdict::Different, is_tail, "{point:?}");
        assert!(point.interval.low <= point.ratio && point.ratio <= point.interval.high);
    }
    let same = of(&analysis, "container");
    assert_eq!(same.verdict(), Verdict::NoDifferenceShown, "{}", same.text);
    assert!(
        same.text.contains("the median is the same within 5 %"),
        "{}",
        same.text
    );
    let mut sentences = analysis.sentences.iter();
    assert!(sentences.any(|one| one.text == vm.text && one.verdict == Verdict::Different));
    let figures = figures(&analysis);
    let shifts: Vec<_> = figures
        .iter()
        .filter(|one| one.id.ends_with("-shift"))
        .collect();
    let [figure] = shifts[..] else {
        panic!("one figure for the workload with latencies");
    };
    assert_eq!(figure.spec["data"]["values"].as_array().unwrap().len(), 22);
}

#[test]
fn quantiles_that_a_trial_does_not_support_are_not_in_the_shift_function() {
    let latency = |_: &str, z: f64| 0.001 * (0.3 * z).exp();
    let analysis = shifted(50, latency);
    let vm = of(&analysis, "qemu");
    let quantiles: Vec<f64> = vm.points.iter().map(|point| point.quantile).collect();
    assert_eq!(quantiles, SHIFT_QUANTILES[..9]);
    let needed: Vec<u64> = vm.unsupported.iter().map(|one| one.needed).collect();
    assert_eq!(needed, [72, 368]);
    // Without a supported quantile there is nothing to say.
    assert!(shifted(5, latency).shifts.is_empty());
    assert!(shifted(0, latency).shifts.is_empty());
}

#[test]
fn shift_functions_are_exported_one_row_a_quantile_with_the_reason_for_those_that_are_not_supported()
 {
    let analysis = shifted(200, |_, z| 0.001 * (0.3 * z).exp());
    let csv = pipeline::shifts_csv("results/a, b", &analysis.shifts);
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 1 + 2 * SHIFT_QUANTILES.len());
    let names: Vec<&str> = lines[0].split(',').collect();
    let of = |line: &str, name: &str| -> String {
        let fields: Vec<&str> = line
            .strip_prefix("\"results/a, b\",")
            .unwrap()
            .split(',')
            .collect();
        let place = names.iter().position(|one| *one == name).unwrap();
        fields[place - 1].to_owned()
    };
    let vm: Vec<&&str> = lines[1..]
        .iter()
        .filter(|line| line.contains("qemu"))
        .collect();
    let point = &self::of(&analysis, "qemu").points[4];
    let median = vm
        .iter()
        .find(|line| of(line, "quantile") == "0.5")
        .unwrap();
    for (name, expected) in [
        ("ratio", point.ratio),
        ("low", point.interval.low),
        ("high", point.interval.high),
        ("treatment_seconds", point.treatment_seconds),
        ("baseline_seconds", point.baseline_seconds),
        ("n", 6.0),
    ] {
        assert_eq!(of(median, name).parse::<f64>().unwrap(), expected, "{name}");
    }
    assert_eq!(of(median, "certainty"), "trials");
    assert!(["same", "no-difference-shown"].contains(&of(median, "verdict").as_str()));
    assert_eq!(of(median, "unsupported"), "");
    let p99 = vm
        .iter()
        .find(|line| of(line, "quantile") == "0.99")
        .unwrap();
    assert_eq!(
        [of(p99, "ratio"), of(p99, "low"), of(p99, "verdict")],
        ["", "", ""]
    );
    assert_eq!(
        of(p99, "unsupported"),
        "200 requests do not support p99: at least 368 are needed"
    );
}

/// Draws a latency.
type Draw = fn(&mut Random) -> f64;

/// The distributions of the simulations.
const WORLDS: [(&str, Draw); 2] = [
    ("exponential", |random| -(1.0 - random.uniform()).ln()),
    ("lognormal", |random| normal(random).exp()),
];

/// The true quantile of a distribution of [`WORLDS`]; `z` is the standard normal quantile.
fn truth(world: &str, quantile: f64, z: f64) -> f64 {
    match world {
        "exponential" => -(1.0 - quantile).ln(),
        _ => z.exp(),
    }
}

/// Nanoseconds for a value of 1.
const UNIT: f64 = 1e7;

fn coverage_within_a_trial(sets: usize, sizes: &[usize]) {
    let quantiles = [
        (0.5, 0.0),
        (0.9, 1.281_552),
        (0.99, 2.326_348),
        (0.999, 3.090_232),
    ];
    for (world, draw) in WORLDS {
        for n in sizes {
            let mut random = Random::new(seed_of(&["within", world]) + *n as u64);
            let mut covered = [0_u32; 4];
            let mut has = [false; 4];
            for _ in 0..sets {
                let mut histogram = Histogram::<u64>::new(3).unwrap();
                for _ in 0..*n {
                    histogram.record((UNIT * draw(&mut random)) as u64).unwrap();
                }
                for (at, (quantile, z)) in quantiles.iter().enumerate() {
                    if let Ok(interval) = quantile_interval(&histogram, *quantile) {
                        has[at] = true;
                        let truth = UNIT * truth(world, *quantile, *z);
                        covered[at] += u32::from(interval.contains(truth));
                    }
                }
            }
            let shares: Vec<String> = (0..4)
                .map(|at| {
                    let share = f64::from(covered[at]) / sets as f64;
                    let slack = 3.0 * (0.05 * 0.95 / sets as f64).sqrt() - 0.0146;
                    assert!(
                        !has[at] || share >= 0.93 - slack,
                        "{world} {n} {at}: {share}"
                    );
                    if has[at] {
                        format!("{:.1}", 100.0 * share)
                    } else {
                        "–".to_owned()
                    }
                })
                .collect();
            eprintln!("| {world} | {n} | {} |", shares.join(" | "));
        }
    }
}

#[test]
fn the_interval_within_a_trial_covers_the_true_quantile() {
    coverage_within_a_trial(100, &[20, 400]);
}

#[test(needs = [test_all("takes 6 s: a table of docs/why/method.md")])]
fn of_2000_samples_the_intervals_within_a_trial_cover_the_true_quantiles() {
    coverage_within_a_trial(2000, &[20, 100, 400, 1000, 4000, 10_000]);
}

/// Share of shift functions of identical treatments in which some interval excludes 1. Trials and blocks scatter by 5 %
/// and 20 %, and the tail of a trial by another 10 %.
fn false_shifts(sets: usize, n: usize, draw: Draw, seed: u64) -> f64 {
    const REQUESTS: usize = 400;
    let confidence = confidence_of_each(SHIFT_QUANTILES.len());
    let mut random = Random::new(seed);
    let mut trial = |block: f64| -> [f64; 11] {
        let speed = block * (0.05 * normal(&mut random)).exp();
        let tail = (0.1 * normal(&mut random)).exp();
        let mut values: Vec<f64> = (0..REQUESTS).map(|_| draw(&mut random)).collect();
        values.sort_unstable_by(f64::total_cmp);
        SHIFT_QUANTILES.map(|quantile| {
            let value = values[(quantile * REQUESTS as f64).ceil() as usize - 1];
            let tail = if quantile > 0.85 { tail } else { 1.0 };
            (speed * tail * value).ln()
        })
    };
    let mut blocks = Random::new(seed + 1);
    let mut claimed = 0;
    for _ in 0..sets {
        let mut ratios = [const { Vec::new() }; 11];
        for _ in 0..n {
            let block = (0.2 * normal(&mut blocks)).exp();
            let (own, other) = (trial(block), trial(block));
            for at in 0..11 {
                ratios[at].push(own[at] - other[at]);
            }
        }
        let excludes = |one: &Vec<f64>| !shift_ratio(one, confidence).unwrap().1.contains(1.0);
        claimed += usize::from(ratios.iter().any(excludes));
    }
    claimed as f64 / sets as f64
}

fn false_shifts_are_few(sets: usize, sizes: &[usize]) {
    for (world, draw) in WORLDS {
        let shares = sizes.iter().map(|n| {
            let seed = seed_of(&["shift", world]) + *n as u64;
            let share = false_shifts(sets, *n, draw, seed);
            assert!(
                share <= 0.05 + 3.0 * (0.05 * 0.95 / sets as f64).sqrt(),
                "{world} {n}: {share}"
            );
            format!("{:.1}", 100.0 * share)
        });
        eprintln!("| {world} | {} |", shares.collect::<Vec<_>>().join(" | "));
    }
}

#[test]
fn few_shift_functions_of_identical_treatments_claim_a_difference() {
    false_shifts_are_few(60, &[5]);
}

#[test(needs = [test_all("takes 8 s: a table of docs/why/method.md")])]
fn of_2000_shift_functions_of_identical_treatments_at_most_5_percent_claim_a_difference() {
    false_shifts_are_few(2000, &[4, 5, 6, 8, 10]);
}
