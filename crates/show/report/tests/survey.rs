// SPDX-License-Identifier: Apache-2.0
//! Tests of surveys: results of many machines, read as a stream, and their data set.

use crate::support::multiply_costs_of_vms;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use vtax_core::Quantity;
use vtax_report::analysis::analyse;
use vtax_report::export::Dataset;
use vtax_report::survey::{Survey, directories, survey, table};
use vtax_results::ResultsDir;
use vtax_testkit::results::Fake;

/// A run of one machine, on which a VM's cost is multiplied by `factor`.
fn run(path: &Path, boot: &str, kernel: &str, factor: f64) -> ResultsDir {
    let fake = Fake {
        blocks: 3,
        seconds: 1,
        trouble: false,
        ..Fake::default()
    };
    let results = fake.write(path);
    let host = json!({ "boot_id": boot, "hostname": boot, "kernel": kernel, "cpu": { "model": "Example" } });
    fs::write(path.join("host.json"), host.to_string()).unwrap();
    multiply_costs_of_vms(&results, factor);
    results
}

/// Three machines of one kind, one of another, the first one's results twice, and one that is damaged.
fn fleet(folder: &Path) {
    for (name, kernel, factor) in [
        ("a", "6.1.0", 1.0),
        ("b", "6.1.0", 1.2),
        ("c", "6.1.0", 1.4),
        ("d", "6.12.0", 9.0),
    ] {
        run(&folder.join("rack").join(name), name, kernel, factor);
    }
    run(&folder.join("again"), "a", "6.1.0", 1.0);
    fs::create_dir(folder.join("damaged")).unwrap();
    fs::write(folder.join("damaged/run.json"), "{").unwrap();
    fs::write(folder.join("rack/c/trials/0002/trial.json"), "{").unwrap();
}

fn read(folder: &Path, dataset: Option<&mut Dataset>) -> Survey {
    survey(&directories(folder).unwrap(), dataset).unwrap()
}

#[test]
fn machines_count_once_each_and_kinds_are_never_mixed() {
    let folder = tempfile::tempdir().unwrap();
    fleet(folder.path());
    let found = read(folder.path(), None);
    assert_eq!((found.results, found.twice, found.machines), (4, 1, 4));
    assert_eq!((found.trials, found.counted), (4 * 27 - 1, 4 * 27 - 1));
    assert_eq!(found.unreadable, 2, "{:?}", found.causes);
    let machines: Vec<usize> = found.kinds.iter().map(|kind| kind.machines).collect();
    assert_eq!(machines, [3, 1]);
    let vm = |kind: usize| {
        let mut findings = found.kinds[kind].findings.iter();
        let wanted = "qemu · http-rate";
        findings
            .find(|of| of.treatment == wanted && of.metric == "cpu.per_work")
            .unwrap()
    };
    let alone = |name: &str| {
        let results = ResultsDir::open(&folder.path().join("rack").join(name)).unwrap();
        let analysis = analyse(&results).unwrap();
        let mut all = analysis.comparisons.iter();
        let of = all.find(|of| of.treatment == "qemu · http-rate" && of.metric == "cpu.per_work");
        of.unwrap().ratio.unwrap()
    };
    let ratio = vm(0).ratio.unwrap();
    let mean = ["a", "b", "c"]
        .map(|name| alone(name).ln())
        .iter()
        .sum::<f64>()
        / 3.0;
    assert!((ratio.ratio.ln() - mean).abs() < 1e-9, "{ratio:?}");
    assert!(ratio.n == 3 && ratio.interval.contains(ratio.ratio));
    let width = |interval: vtax_results::stats::Interval| (interval.high / interval.low).ln();
    assert!(ratio.confidence > 0.95 && width(ratio.adjusted_interval) > width(ratio.interval));
    // The standard deviation of ln 1, ln 1.2 and ln 1.4 is 0.168.
    let factor = ratio.factor.unwrap();
    assert!((1.1..1.3).contains(&factor), "{factor}");
    assert!(vm(1).ratio.is_none() && vm(1).values.n == 1);
    let text = table(&found, 100);
    assert!(text.contains("4 runs on 4 machines"), "{text}");
    assert!(text.contains("kernel: 6.12.0"), "{text}");
    assert!(
        text.contains("intervals are adjusted for the number of ratios"),
        "{text}"
    );
    assert!(text.contains("run.json is corrupted"), "{text}");
}

#[test]
fn boots_of_one_machine_are_one_and_give_no_interval_over_machines() {
    let folder = tempfile::tempdir().unwrap();
    for (boot, machine) in [("1", "a"), ("2", "a"), ("3", "a"), ("4", "a")] {
        let path = folder.path().join(boot);
        run(&path, boot, "6.1.0", 1.0);
        let host =
            json!({ "boot_id": boot, "kernel": "6.1.0", "machine": { "installation": machine } });
        fs::write(path.join("host.json"), host.to_string()).unwrap();
    }
    let found = read(folder.path(), None);
    assert_eq!((found.results, found.machines, found.boots), (4, 1, 4));
    let finding = vms_cpu(&found);
    assert!(finding.ratio.is_none() && finding.values.n == 1);
    let text = table(&found, 100);
    assert!(text.contains("4 boots of 1 machine: "), "{text}");
    assert!(!text.contains("do not identify their machine"), "{text}");
    // Of a record without an identity it is not known.
    run(&folder.path().join("old"), "5", "6.1.0", 1.2);
    run(&folder.path().join("older"), "6", "6.1.0", 1.2);
    let text = table(&read(folder.path(), None), 100);
    assert!(
        text.contains("the records of 2 boots do not identify their machine"),
        "{text}"
    );
}

/// The finding about a VM's CPU in the only kind of machines.
fn vms_cpu(found: &Survey) -> &vtax_report::survey::Finding {
    let mut findings = found.kinds[0].findings.iter();
    let wanted = "qemu · http-rate";
    findings
        .find(|of| of.treatment == wanted && of.metric == "cpu.per_work")
        .unwrap()
}

/// Sets another start, so that the run differs from the others.
fn started(results: &ResultsDir, at: u32) {
    let file = results.path().join("run.json");
    let text = fs::read_to_string(&file).unwrap();
    let mut run: serde_json::Value = serde_json::from_str(&text).unwrap();
    run["started"] = json!(format!("2026-01-01T00:00:{at:02}Z"));
    fs::write(file, run.to_string()).unwrap();
}

#[test]
fn a_machine_counts_once_however_many_runs_it_has() {
    let folder = tempfile::tempdir().unwrap();
    run(&folder.path().join("b"), "b", "6.1.0", 1.0);
    for at in 0..5 {
        let path = folder.path().join(format!("a{at}"));
        started(&run(&path, "a", "6.1.0", 1.2), at);
    }
    let found = read(folder.path(), None);
    assert_eq!((found.results, found.machines, found.twice), (6, 2, 0));
    let many = vms_cpu(&found);
    let few = tempfile::tempdir().unwrap();
    run(&few.path().join("b"), "b", "6.1.0", 1.0);
    run(&few.path().join("a"), "a", "6.1.0", 1.2);
    let found = read(few.path(), None);
    let once = vms_cpu(&found);
    let (many_ratio, once_ratio) = (many.ratio.unwrap(), once.ratio.unwrap());
    assert_eq!((many_ratio.n, once_ratio.n), (2, 2));
    assert!((many_ratio.ratio - once_ratio.ratio).abs() < 1e-9);
    let interval = many_ratio.interval;
    assert!((interval.low - once_ratio.interval.low).abs() < 1e-9);
    assert!(
        interval.high / interval.low > 5.0,
        "two machines show little"
    );
    assert_eq!(many.values.n, 2);
    assert!((many.values.mean - once.values.mean).abs() < 1e-9 * many.values.mean);
}

#[test]
fn a_pair_with_a_zero_leaves_no_ratio_and_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        run(&folder.path().join(name), name, "6.1.0", 1.2);
    }
    assert!(vms_cpu(&read(folder.path(), None)).ratio.is_some());
    let results = ResultsDir::open(&folder.path().join("b")).unwrap();
    let mut trials = results.trials().map(Result::unwrap);
    let mut trial = trials
        .find(|trial| trial.treatment.label == "qemu · http-rate")
        .unwrap();
    let metric = trial.metrics.get_mut("cpu.per_work").unwrap();
    metric.quantity = Quantity::new(0.0, metric.quantity.unit);
    results.rewrite_trial(&trial).unwrap();
    let found = read(folder.path(), None);
    let vm = vms_cpu(&found);
    assert!(vm.ratio.is_none() && vm.values.n == 3);
    let note = vm.note.as_deref().unwrap();
    assert_eq!(note, "no ratio: it is zero in at least one trial");
    let alone = analyse(&results).unwrap();
    let mut all = alone.comparisons.iter();
    let of = all.find(|of| of.treatment == vm.treatment && of.metric == vm.metric);
    assert_eq!(
        of.unwrap().note.as_deref(),
        Some(note),
        "as a report says it"
    );
    assert!(table(&found, 120).contains(note));
}

#[test]
fn the_data_set_holds_every_trial_and_metric_once() {
    let folder = tempfile::tempdir().unwrap();
    fleet(folder.path());
    let file = folder.path().join("fleet.parquet");
    let mut dataset = Dataset::create(&file).unwrap();
    read(folder.path(), Some(&mut dataset));
    dataset.finish().unwrap();
    let reader = SerializedFileReader::new(File::open(&file).unwrap()).unwrap();
    let mut machines: BTreeMap<String, usize> = BTreeMap::new();
    let mut rows = 0;
    for row in reader.get_row_iter(None).unwrap() {
        let row: BTreeMap<String, Field> = row.unwrap().into_columns().into_iter().collect();
        let text = |name: &str| match &row[name] {
            Field::Str(text) => text.clone(),
            other => panic!("{name}: {other:?}"),
        };
        let number = |name: &str| match &row[name] {
            Field::Long(number) => u32::try_from(*number).unwrap(),
            other => panic!("{name}: {other:?}"),
        };
        let results = ResultsDir::open(Path::new(&text("results"))).unwrap();
        assert_eq!(text("machine"), text("host"));
        let trial = results.trial(number("trial")).unwrap();
        assert_eq!(
            (trial.block, &trial.treatment.label),
            (number("block"), &text("treatment"))
        );
        let metric = &trial.metrics[&text("metric")];
        assert_eq!(row["value"], Field::Double(metric.quantity.value));
        assert_eq!(metric.quantity.unit.to_string(), text("unit"));
        *machines.entry(text("machine")).or_default() += 1;
        rows += 1;
    }
    let metrics = |name: &str| -> usize {
        let results = ResultsDir::open(&folder.path().join("rack").join(name)).unwrap();
        results
            .trials()
            .flatten()
            .map(|trial| trial.metrics.len())
            .sum()
    };
    let wanted = ["a", "b", "c", "d"].map(|name| (name.to_owned(), metrics(name)));
    assert_eq!(machines, BTreeMap::from(wanted));
    assert!(rows > 1000);
}

/// The query of a data set in docs/howto/many-machines.md, with the number of rows.
const QUERY: &str = "
import duckdb, sys
file = sys.argv[1]
print(duckdb.sql(f\"SELECT count(*) FROM '{file}'\").fetchall()[0][0])
for row in duckdb.sql(f\"\"\"SELECT machine, treatment, median(value) FROM '{file}'
                            WHERE counts AND metric = 'cpu.per_work' GROUP BY ALL ORDER BY ALL\"\"\").fetchall():
    print('|'.join(map(str, row)))
";

#[test(needs = [brought_by_test_all("python3"), python_module("duckdb")])]
fn duckdb_reads_the_data_set_as_the_documentation_says() {
    let modules = vtax_testkit::needs::python_modules();
    let python = |script: &str, file: &Path| {
        let mut python = Command::new("python3");
        let python = python.arg("-c").arg(script).arg(file);
        python.env("PYTHONPATH", &modules).output()
    };
    let folder = tempfile::tempdir().unwrap();
    fleet(folder.path());
    let file = folder.path().join("fleet.parquet");
    let mut dataset = Dataset::create(&file).unwrap();
    read(folder.path(), Some(&mut dataset));
    dataset.finish().unwrap();
    let output = python(QUERY, &file).unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    let mut lines = printed.lines();
    let reader = SerializedFileReader::new(File::open(&file).unwrap()).unwrap();
    let rows = reader.get_row_iter(None).unwrap().count();
    assert_eq!(lines.next(), Some(&*rows.to_string()));
    let mut medians = BTreeMap::new();
    for line in lines {
        let [machine, treatment, median] = *line.split('|').collect::<Vec<_>>() else {
            panic!("{line}");
        };
        medians.insert((machine, treatment), median.parse::<f64>().unwrap());
    }
    // Machine b's VM costs a fifth more than a's; their trials are equal otherwise.
    let of = |machine, treatment| medians[&(machine, treatment)];
    let vm = medians
        .keys()
        .find(|key| key.1.starts_with("qemu"))
        .unwrap()
        .1;
    assert!((of("b", vm) / of("a", vm) - 1.2).abs() < 1e-9, "{printed}");
    assert_eq!(
        medians
            .keys()
            .map(|key| key.0)
            .collect::<BTreeSet<_>>()
            .len(),
        4
    );
}
