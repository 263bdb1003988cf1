// SPDX-License-Identifier: Apache-2.0
//! Tests of shards, of runs compared with the first, and of exports.

use crate::support::{change_trials, run};
use std::fs;
use vtax_report::analysis::{Analysis, BetweenRuns, analyse, analyse_shards};
use vtax_report::{compare, export};
use vtax_results::stats::Verdict;
use vtax_results::{ResultsDir, ResultsError};
use vtax_testkit::results::Fake;

#[test]
fn shards_are_read_together_and_strangers_refused() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    let shards: Vec<ResultsDir> = ["a", "b"]
        .iter()
        .map(|name| fake.create(&folder.path().join(name)))
        .collect();
    for index in shards[0].pending() {
        fake.write_trial(&shards[index as usize % 2], index);
    }
    let together = analyse_shards(&[&shards[0], &shards[1]]).unwrap();
    assert_eq!((together.counts.counted, together.counts.pending), (43, 0));
    let stranger = Fake {
        blocks: 2,
        ..Fake::default()
    }
    .create(&folder.path().join("stranger"));
    assert!(matches!(
        analyse_shards(&[&shards[0], &stranger]),
        Err(ResultsError::NotOneRun { .. })
    ));
}

#[test]
fn a_run_without_root_beside_one_with_root_differs_in_what_decides_costs() {
    let fake = Fake {
        trouble: false,
        ..Fake::default()
    };
    let (_one, _, with_root) = run(&fake);
    let (_two, results, _) = run(&fake);
    change_trials(&results, |trial| {
        let scope = ("scope".to_owned(), "measured without root".to_owned());
        trial.environment.extend([scope]);
    });
    let without = analyse(&ResultsDir::open(results.path()).unwrap()).unwrap();
    let is_stated = |run: &Analysis| {
        run.noise
            .iter()
            .any(|line| line == "Measured without root.")
    };
    assert_eq!([is_stated(&with_root), is_stated(&without)], [false, true]);
    let compared = compare::compare(&with_root, &[&with_root, &without]);
    let decides = |run: usize| {
        let mut hosts = compared.others[run].hosts.iter();
        hosts.any(|one| one.decides && one.fact.starts_with("scope of the costs"))
    };
    assert_eq!([decides(0), decides(1)], [false, true]);
    let compared = compare::compare(&without, &[&without]);
    assert!(compared.others[0].hosts.iter().all(|one| !one.decides));
}

#[test]
fn any_number_of_runs_are_compared_with_the_first_by_label() {
    let (_one, _, before) = run(&Fake {
        trouble: false,
        ..Fake::default()
    });
    let (_two, _, after) = run(&Fake {
        trouble: false,
        vm_cost: 2.0,
        ..Fake::default()
    });
    let (_three, _, less) = run(&Fake {
        platforms: vec!["native", "container"],
        ..Fake::default()
    });
    let comparison = compare::compare(&before, &[&before, &after, &less]);
    let [same, changed, fewer] = comparison.others.as_slice() else {
        panic!("three runs against one: {comparison:?}");
    };
    assert!(
        same.comparisons
            .iter()
            .all(|c| c.judgement.verdict != Verdict::Different)
    );
    let vm = changed
        .comparisons
        .iter()
        .find(|c| c.platform == "qemu" && c.metric == "cpu.per_work")
        .unwrap();
    assert_eq!(vm.judgement.verdict, Verdict::Different);
    assert!((vm.tax.unwrap().ratio - 2.0 / 3.1).abs() < 0.05);
    assert!(
        changed
            .comparisons
            .iter()
            .filter(|c| c.platform == "native")
            .all(|c| c.judgement.verdict != Verdict::Different)
    );
    assert_eq!((fewer.only_first.len(), fewer.only_here.len()), (3, 0));
    for width in [80, 120] {
        let table = compare::table(&comparison, width);
        assert!(table.contains("not in D: qemu · iperf3-receive"), "{table}");
        assert!(table.contains("were not interleaved"));
        for column in ["B / A", "C / A", "D / A"] {
            assert!(table.contains(column), "{table}");
        }
        let beside = table.lines().find(|line| line.contains("B / A")).unwrap();
        assert!(beside.contains("C / A") && beside.contains("D / A") == (width == 120));
        let vm = "    cpu.per_work     1.00×";
        assert!(table.contains(vm) && table.contains("] *"), "{table}");
        let mut lines = table.lines().filter(|line| !line.contains("not in"));
        assert!(
            lines.all(|line| line.chars().count() <= width),
            "{width}:\n{table}"
        );
    }
    assert!(
        serde_json::to_string(&comparison)
            .unwrap()
            .contains("\"verdict\":\"different\"")
    );
}

#[test]
fn exports_hold_every_trial_and_metric() {
    let (folder, results, _) = run(&Fake {
        spice: ",\"x\"\n",
        ..Fake::default()
    });
    let mut csv = Vec::new();
    assert!(export::csv(&results, &mut csv).unwrap().is_empty());
    let text = String::from_utf8(csv).unwrap();
    assert!(text.starts_with("trial,block,treatment,platform,workload,"));
    let metrics: usize = results
        .trials()
        .map(|trial| trial.unwrap().metrics.len())
        .sum();
    // The spice puts a line break into the label of every row, and one more into two reasons.
    assert!(text.contains("\"native · iperf3-receive,\"\"x\"\"\n\""));
    assert_eq!(
        text.matches("\n").count() - 1 - text.matches("\"x\"\"\n").count(),
        metrics
    );
    let parquet = folder.path().join("trials.parquet");
    assert!(export::parquet(&results, &parquet).unwrap().is_empty());
    use parquet::file::reader::{FileReader, SerializedFileReader};
    let reader = SerializedFileReader::new(fs::File::open(&parquet).unwrap()).unwrap();
    assert_eq!(
        reader.metadata().file_metadata().num_rows() as usize,
        metrics
    );
    let mut samples = Vec::new();
    assert!(
        export::csv_samples(&results, &mut samples)
            .unwrap()
            .is_empty()
    );
    let rows: u64 = results
        .trial_indexes()
        .into_iter()
        .map(|index| results.samples(index).unwrap().rows())
        .sum();
    assert_eq!(
        samples.iter().filter(|byte| **byte == b'\n').count() as u64,
        rows + 1
    );
}

#[test]
fn an_exported_trial_that_was_disturbed_is_marked_and_counts() {
    let (_folder, results, _) = run(&Fake::default());
    let mut trial = results.trial(0).unwrap();
    trial.disturbed = vec!["other programs used 9 %".to_owned()];
    results.rewrite_trial(&trial).unwrap();
    let mut csv = Vec::new();
    assert!(export::csv(&results, &mut csv).unwrap().is_empty());
    let text = String::from_utf8(csv).unwrap();
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap().split(',').collect();
    let disturbed = names.iter().position(|name| *name == "disturbed").unwrap();
    let counts = names.iter().position(|name| *name == "counts").unwrap();
    for row in lines {
        let cells: Vec<&str> = row.split(',').collect();
        let marked = cells[disturbed] == "other programs used 9 %";
        assert_eq!(marked, cells[0] == "0", "{row}");
        assert!(!marked || cells[counts] == "true", "{row}");
    }
}

#[test]
fn compared_runs_are_called_by_the_directories_that_were_given() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake {
        trouble: false,
        ..Fake::default()
    };
    let analyses = ["before", "after"].map(|name| {
        let results = fake.write(&folder.path().join(name));
        analyse(&results).unwrap()
    });
    let compared = compare::compare(&analyses[0], &[&analyses[1]]);
    let table = compare::table(&compared, 120);
    let called = |letter: &str, name: &str| {
        let path = folder.path().join(name);
        let mut lines = table.lines();
        lines.any(|line| line.starts_with(&format!("{letter}  {} (", path.display())))
    };
    assert!(called("A", "before") && called("B", "after"), "{table}");
}

#[test]
fn costs_of_two_runs_are_compared_at_equal_speeds_of_their_hosts() {
    let at_speed = |speed: f64| {
        run(&Fake {
            trouble: false,
            blocks: 8,
            canary: Some(speed),
            ..Fake::default()
        })
    };
    let (_one, _, before) = at_speed(1.0);
    let (_two, faster, _) = at_speed(1.3);
    // The faster host needs less time for the same, and does more in a second.
    change_trials(&faster, |trial| {
        for (name, metric) in &mut trial.metrics {
            match name.as_str() {
                "cpu.per_work" => metric.quantity.value /= 1.3,
                "throughput" => metric.quantity.value *= 1.3,
                _ => {}
            }
        }
    });
    let after = analyse(&faster).unwrap();
    let compared = compare::compare(&before, &[&after]);
    let of = |name: &str| {
        let rows = compared.others[0].comparisons.iter();
        let mut own = rows.filter(|row| row.metric == name && row.workload == "iperf3-receive");
        own.next().unwrap()
    };
    for name in ["cpu.per_work", "throughput"] {
        let row = of(name);
        let Some(BetweenRuns::ByCanary { speed }) = row.judgement.between_runs else {
            panic!("{row:?}");
        };
        assert!((speed - 1.3).abs() < 0.02, "{speed}");
        assert!((row.ratio.unwrap() - 1.0).abs() < 0.02, "{row:?}");
        // How much of so large a difference is in the metric is not known well.
        let interval = row.tax.unwrap().interval.unwrap();
        assert!(interval.low < 0.9 && interval.high > 1.1, "{interval:?}");
        assert_ne!(row.judgement.verdict, Verdict::Different);
    }
    // A number of events is the same on a faster host.
    let events = of("retransmits");
    assert!((events.ratio.unwrap() - 1.0).abs() < 0.1, "{events:?}");
    let table = compare::table(&compared, 100);
    assert!(table.contains("at equal speeds of the host"), "{table}");
    assert!(table.contains("1.30× as fast in B as in A"), "{table}");
}
