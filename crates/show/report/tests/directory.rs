// SPDX-License-Identifier: Apache-2.0
//! Tests of the results directory: no lost data, no partial files, and a clear error for each kind of damage.

use parquet::basic::{Compression, Encoding};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::record::RowAccessor;
use parquet::schema::parser::parse_message_type;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use vtax_core::owner::Owner;
use vtax_core::{Nanoseconds, Series, SeriesKind, Source};
use vtax_files::Dir;
use vtax_results::{
    Aside, FORMAT, HistogramRecord, ResultsDir, ResultsError, SampleReader, SampleWriter,
};
use vtax_testkit::results::Fake;

fn small() -> Fake {
    Fake {
        blocks: 1,
        seconds: 3,
        trouble: false,
        ..Fake::default()
    }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_run_reads_back_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    let written = small().write(&path);
    let read = ResultsDir::open(&path).unwrap();
    assert_eq!(read.run(), written.run());
    assert!(read.plan_text().unwrap().contains("[platforms]"));
    assert_eq!(read.host().unwrap()["cores"], 2);
    let trials: Vec<_> = read.trials().collect::<Result<_, _>>().unwrap();
    assert_eq!(trials.len(), 9);
    assert_eq!(trials[3], small().trial(read.run(), 3));
    assert_eq!(
        names(&read.trial_path(3)),
        [
            "SHA256SUMS",
            "log",
            "samples.parquet",
            "trial.json",
            "workload.json"
        ]
    );
    assert!(read.pending().is_empty());
}

#[test]
fn what_is_not_run_yet_is_pending() {
    let folder = tempfile::tempdir().unwrap();
    let fake = small();
    let results = fake.create(&folder.path().join("run"));
    fake.write_trial(&results, 2);
    fake.write_trial(&results, 7);
    assert_eq!(
        ResultsDir::open(results.path()).unwrap().pending(),
        [0, 1, 3, 4, 5, 6, 8]
    );
}

#[test]
fn an_unfinished_trial_is_invisible_and_removed_by_resume_but_not_by_reading() {
    let folder = tempfile::tempdir().unwrap();
    let results = small().create(&folder.path().join("run"));
    let writer = results.trial_writer(0).unwrap();
    writer.write_workload_json(b"{}").unwrap();
    let mut samples = writer.samples().unwrap();
    let id = samples.register(&series("target", "cpu.total_ns"));
    samples.push(id, Nanoseconds(1), 1.0).unwrap();
    // Like kill -9: no destructor runs.
    std::mem::forget(samples);
    std::mem::forget(writer);
    let reader = ResultsDir::open(results.path()).unwrap();
    assert_eq!(reader.trials().count(), 0);
    let [in_flight] = &reader.in_flight()[..] else {
        panic!("one trial is being written");
    };
    assert_eq!((in_flight.index, in_flight.writer), (0, std::process::id()));
    let below = in_flight.below.join("workload.json");
    assert!(reader.dir().contains(below));
    assert_eq!(names(&results.path().join("trials")).len(), 1);
    let resumed = ResultsDir::resume(results.path()).unwrap();
    assert!(names(&results.path().join("trials")).is_empty());
    assert_eq!(resumed.pending().len(), 9);
    assert!(resumed.in_flight().is_empty());
}

#[test]
fn a_trial_given_up_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let results = small().create(&folder.path().join("run"));
    drop(results.trial_writer(0).unwrap());
    assert!(names(&results.path().join("trials")).is_empty());
}

#[test]
fn a_finished_trial_is_never_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let fake = small();
    let results = fake.create(&folder.path().join("run"));
    let (first, second) = (
        results.trial_writer(0).unwrap(),
        results.trial_writer(0).unwrap(),
    );
    first.finish(fake.trial(results.run(), 0)).unwrap();
    assert!(matches!(
        second.finish(fake.trial(results.run(), 0)),
        Err(ResultsError::TrialExists(_))
    ));
    assert!(matches!(
        results.trial_writer(0),
        Err(ResultsError::TrialExists(_))
    ));
    assert!(matches!(
        results.trial_writer(99),
        Err(ResultsError::NoSuchTrial {
            index: 99,
            planned: 9
        })
    ));
    assert_eq!(names(&results.path().join("trials")), ["0000"]);
}

#[test]
fn the_facts_of_an_emulated_host_are_a_part_of_the_record_and_a_run_goes_on_with_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    let results = small().write(&path);
    let facts = serde_json::json!({ "cores": 4 });
    results.replace_host(&facts).unwrap();
    assert_eq!(results.host().unwrap(), facts);
    ResultsDir::resume(&path).unwrap();
    let check = std::process::Command::new("sha256sum")
        .args(["--check", "--quiet", "SHA256SUMS"])
        .current_dir(&path)
        .status();
    assert!(check.unwrap().success());
    let plan = path.join("plan.toml");
    fs::write(&plan, "another").unwrap();
    let refused = results.replace_host(&facts).unwrap_err().to_string();
    assert!(refused.contains("plan.toml was changed"), "{refused}");
}

#[test]
fn a_trial_that_was_edited_by_hand_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let results = small().write(&folder.path().join("run"));
    let file = results.trial_path(3).join("trial.json");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replacen('1', "2", 1)).unwrap();
    let refused = results.trial(3).unwrap_err().to_string();
    assert!(
        refused.contains("it was changed after it was written"),
        "{refused}"
    );
    let damaged = results.damaged();
    assert_eq!(damaged.len(), 1);
    assert_eq!(damaged[0].0, 3);
}

#[test]
fn a_damaged_trial_is_named_with_a_remedy_and_the_others_load() {
    let folder = tempfile::tempdir().unwrap();
    let results = small().write(&folder.path().join("run"));
    let damage = |index: u32, text: &str| {
        fs::write(results.trial_path(index).join("trial.json"), text).unwrap()
    };
    damage(1, "");
    damage(2, "{\"format\": 1, \"index\": 2");
    damage(3, "[1, 2, 3]");
    let other = fs::read_to_string(results.trial_path(5).join("trial.json")).unwrap();
    damage(4, &other);
    fs::remove_file(results.trial_path(6).join("trial.json")).unwrap();
    let (good, bad): (Vec<_>, Vec<_>) = results.trials().partition(Result::is_ok);
    assert_eq!((good.len(), bad.len()), (4, 5));
    for (error, index) in bad.into_iter().map(Result::unwrap_err).zip([1, 2, 3, 4, 6]) {
        let message = error.to_string();
        assert!(
            message.contains(&format!("trials/000{index}/trial.json is corrupted")),
            "{message}"
        );
        assert!(
            message.contains("Move ") && message.contains("only that trial is repeated"),
            "{message}"
        );
    }
    // A damaged trial is not pending; it becomes so when its directory is moved away.
    assert!(results.pending().is_empty());
    fs::rename(results.trial_path(2), folder.path().join("away")).unwrap();
    assert_eq!(results.pending(), [2]);
}

#[test]
fn records_without_end_are_refused_and_pipes_are_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let results = small().write(&folder.path().join("run"));
    for name in [
        "trials/0000/trial.json",
        "plan.toml",
        "host.json",
        "run.json",
    ] {
        let file = fs::File::create(results.path().join(name)).unwrap();
        file.set_len((16 << 20) + 1).unwrap();
    }
    for error in [
        results.trial(0).unwrap_err(),
        results.plan_text().unwrap_err(),
        results.host().unwrap_err(),
        ResultsDir::open(results.path()).unwrap_err(),
    ] {
        let message = error.to_string();
        assert!(message.contains("longer than 16 MiB"), "{message}");
    }
    let trial = results.trial_path(1).join("trial.json");
    fs::remove_file(&trial).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&trial).status();
    assert!(made.unwrap().success());
    let message = results.trial(1).unwrap_err().to_string();
    assert!(message.contains("no regular file"), "{message}");
}

#[test]
fn a_newer_format_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let results = small().write(&folder.path().join("run"));
    for file in [
        results.trial_path(0).join("trial.json"),
        results.path().join("run.json"),
    ] {
        let text = fs::read_to_string(&file).unwrap().replacen(
            &format!("\"format\": {FORMAT}"),
            "\"format\": 7",
            1,
        );
        fs::write(&file, text).unwrap();
    }
    let message = results.trial(0).unwrap_err().to_string();
    assert!(
        message.contains("results format 7") && message.contains("use a newer vtax"),
        "{message}"
    );
    assert!(matches!(
        ResultsDir::open(results.path()),
        Err(ResultsError::NewerFormat { found: 7, .. })
    ));
    // A trial in a newer format is not damaged.
    assert!(results.damaged().is_empty());
}

#[test]
fn a_directory_of_format_1_is_read_as_it_is() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/format-1");
    let results = ResultsDir::open(&path).unwrap();
    assert_eq!((results.run().format, results.pending()), (1, vec![]));
    let trials: Vec<_> = results.trials().collect::<Result<_, _>>().unwrap();
    assert_eq!(trials.len(), 4);
    for trial in &trials {
        assert_eq!(trial.format, 1);
        assert!(trial.actors.is_empty() && trial.phases.is_empty() && trial.objective.is_none());
        assert_eq!(trial.treatment.platform_kind, "");
        assert_eq!(trial.treatment.kind(), trial.treatment.platform);
        assert!(results.histograms(trial.index).unwrap().is_empty());
    }
    assert!(results.damaged().is_empty() && results.attempts().is_empty());
    let analysis = vtax_report::analysis::analyse(&results).unwrap();
    assert_eq!((analysis.counts.counted, analysis.unreadable.len()), (4, 0));
    assert_eq!(analysis.treatments[1].noun, "a VM (QEMU, TCG emulation)");
}

#[test]
fn a_directory_of_format_1_gives_the_report_that_it_always_gave() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let results = ResultsDir::open(&data.join("format-1")).unwrap();
    let analysis = vtax_report::analysis::analyse(&results).unwrap();
    let mut report = vtax_report::terminal::table(&analysis, 200, false).into_bytes();
    for sentence in &analysis.sentences {
        report.extend(format!("{}\n", sentence.text).bytes());
    }
    for summary in &analysis.treatments {
        let found = (&summary.steady, &summary.timeline);
        report.extend(format!("{found:#?}\n").bytes());
    }
    vtax_report::export::csv(&results, &mut report).unwrap();
    let report = String::from_utf8(report).unwrap();
    let expected = std::fs::read_to_string(data.join("format-1.txt")).unwrap();
    assert_eq!(
        report.replace(&data.display().to_string(), "DATA"),
        expected
    );
}

#[test]
fn an_attempt_that_is_set_aside_is_kept_and_its_trial_is_pending() {
    let folder = tempfile::tempdir().unwrap();
    let fake = small();
    let results = fake.write(&folder.path().join("run"));
    let kept = results.set_aside(3, Aside::Again).unwrap();
    assert!(kept.ends_with("trials/0003.again-1"));
    assert_eq!(results.pending(), [3]);
    fake.write_trial(&results, 3);
    let kept = results.set_aside(3, Aside::Again).unwrap();
    assert!(kept.ends_with("trials/0003.again-2"));
    fake.write_trial(&results, 3);
    let kept = results.set_aside(3, Aside::Failed).unwrap();
    assert!(kept.ends_with("trials/0003.failed-1"));
    assert!(results.set_aside(3, Aside::Failed).is_err(), "it is gone");
    fs::create_dir(results.path().join("trials/0004.copy-1")).unwrap();
    fs::write(kept.join("trial.json"), "{").unwrap();
    let attempts = results.attempts();
    let reported: Vec<_> = attempts
        .iter()
        .map(|one| (one.index, one.aside, one.number, one.trial.is_ok()))
        .collect();
    assert_eq!(
        reported,
        [
            (3, Aside::Again, 1, true),
            (3, Aside::Again, 2, true),
            (3, Aside::Failed, 1, false)
        ]
    );
    assert_eq!(results.trials().count(), 8, "attempts are no trials");
}

#[test]
fn damage_is_found_in_each_file_and_ends_when_the_trial_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let results = small().write(&folder.path().join("run"));
    assert!(results.damaged().is_empty());
    fs::write(results.trial_path(1).join("trial.json"), "{").unwrap();
    fs::write(results.trial_path(4).join("samples.parquet"), "PAR1").unwrap();
    fs::write(results.trial_path(6).join("latencies.hlog"), "Tag=x\n").unwrap();
    let damaged = results.damaged();
    let indexes: Vec<u32> = damaged.iter().map(|(index, _)| *index).collect();
    assert_eq!(indexes, [1, 4, 6]);
    assert!(damaged[1].1.to_string().contains("samples.parquet"));
    assert!(results.pending().is_empty(), "damaged is not yet pending");
    for index in indexes {
        results.set_aside(index, Aside::Again).unwrap();
    }
    assert!(results.damaged().is_empty());
    assert_eq!(results.pending(), [1, 4, 6]);
}

#[test]
fn a_trial_without_distributions_has_no_file_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let results = small().create(&folder.path().join("run"));
    let writer = results.trial_writer(0).unwrap();
    writer.write_histograms(&[]).unwrap();
    writer.finish(small().trial(results.run(), 0)).unwrap();
    assert!(!results.trial_path(0).join("latencies.hlog").exists());
    assert!(results.histograms(0).unwrap().is_empty());
}

#[test]
fn histograms_are_part_of_the_trial() {
    let folder = tempfile::tempdir().unwrap();
    let fake = small();
    let results = fake.create(&folder.path().join("run"));
    let mut histogram = hdrhistogram::Histogram::new(3).unwrap();
    histogram.record_n(1_500_000, 40).unwrap();
    let record = HistogramRecord {
        actor: "client".to_owned(),
        metric: "latency".to_owned(),
        window: (Nanoseconds(3_000_000_000), Nanoseconds(6_000_000_000)),
        histogram,
    };
    let writer = results.trial_writer(0).unwrap();
    writer
        .write_histograms(std::slice::from_ref(&record))
        .unwrap();
    writer.finish(fake.trial(results.run(), 0)).unwrap();
    assert_eq!(results.histograms(0).unwrap(), [record]);
    assert!(results.histograms(1).unwrap().is_empty());
}

#[test]
fn a_directory_that_is_no_run_is_refused_and_an_interrupted_creation_is_completed() {
    let folder = tempfile::tempdir().unwrap();
    let fake = small();
    assert!(matches!(
        ResultsDir::open(folder.path()),
        Err(ResultsError::NotARun(_))
    ));
    let run = folder.path().join("run");
    fake.create(&run);
    let again = ResultsDir::create(&run, &fake.run_info(), "", &serde_json::Value::Null);
    assert!(matches!(again, Err(ResultsError::AlreadyARun(_))));
    fs::remove_file(run.join("run.json")).unwrap();
    fake.create(&run);
    let foreign = folder.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("thesis.txt"), "years of work").unwrap();
    let refused =
        ResultsDir::create(&foreign, &fake.run_info(), "", &serde_json::Value::Null).unwrap_err();
    assert!(refused.to_string().contains("thesis.txt"), "{refused}");
}

#[test]
fn a_metric_that_is_not_a_number_becomes_a_reason_for_suspicion() {
    let folder = tempfile::tempdir().unwrap();
    let fake = small();
    let results = fake.create(&folder.path().join("run"));
    let mut trial = fake.trial(results.run(), 0);
    trial.metrics.get_mut("cpu.cores").unwrap().quantity.value = f64::NAN;
    trial.work.as_mut().unwrap().amount = f64::INFINITY;
    results.trial_writer(0).unwrap().finish(trial).unwrap();
    let read = results.trial(0).unwrap();
    assert!(!read.metrics.contains_key("cpu.cores") && read.work.is_none());
    assert_eq!(read.suspect.len(), 2, "{:?}", read.suspect);
    assert!(read.suspect[0].contains("cpu.cores"));
}

fn series(owner: &str, metric: &str) -> Series {
    Series {
        owner: Owner::named(owner),
        metric: metric.into(),
        unit: "ns".parse().unwrap(),
        kind: SeriesKind::Counter,
        source: Source::Modelled,
    }
}

#[test]
fn stored_samples_keep_the_names_of_their_owners_when_read_and_written() {
    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/format-1/trials/0000");
    let read = |path: &Path| SampleReader::open(path).unwrap().load(|_, _| true).unwrap();
    let before = read(&stored.join("samples.parquet"));
    let owners: BTreeSet<Owner> = before.iter().map(|one| one.series.owner.clone()).collect();
    let expected = [Owner::Host, Owner::Target];
    assert_eq!(owners, expected.into());

    let folder = tempfile::tempdir().unwrap();
    let into = Dir::open(folder.path()).unwrap();
    let mut writer = SampleWriter::create(&into, "samples.parquet").unwrap();
    for samples in &before {
        let id = writer.register(&samples.series);
        for (at, value) in &samples.points {
            writer.push(id, *at, *value).unwrap();
        }
    }
    writer.finish().unwrap();
    let path = folder.path().join("samples.parquet");
    assert_eq!(read(&path), before);
    let names: BTreeSet<String> = column_of_owners(&path).into_iter().collect();
    assert_eq!(
        names,
        column_of_owners(&stored.join("samples.parquet"))
            .into_iter()
            .collect()
    );
    assert_eq!(names, ["host", "target"].map(String::from).into());
}

/// The text of the column `owner`, as the file holds it.
fn column_of_owners(path: &Path) -> Vec<String> {
    let reader = SerializedFileReader::new(fs::File::open(path).unwrap()).unwrap();
    let rows = reader.get_row_iter(None).unwrap();
    rows.map(|row| row.unwrap().get_string(1).unwrap().clone())
        .collect()
}

fn write_samples(path: &Path, count: u64) {
    let folder = Dir::open(path.parent().unwrap()).unwrap();
    let mut writer = SampleWriter::create(&folder, "samples.parquet").unwrap();
    let ids: Vec<_> = ["cpu.total_ns", "cpu.vcpu", "net.rx_bytes"]
        .map(|metric| writer.register(&series("target", metric)))
        .into();
    for number in 0..count {
        for (place, id) in ids.iter().enumerate() {
            writer
                .push(
                    *id,
                    Nanoseconds(number),
                    number as f64 + place as f64 / 10.0,
                )
                .unwrap();
        }
    }
    writer.finish().unwrap();
}

#[test]
fn samples_survive_many_row_groups_and_series_are_selected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("samples.parquet");
    write_samples(&path, 50_000);
    let reader = SampleReader::open(&path).unwrap();
    assert_eq!(reader.rows(), 150_000);
    let found = reader
        .load(|owner, metric| *owner == Owner::Target && metric == "cpu.vcpu")
        .unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].series, series("target", "cpu.vcpu"));
    assert_eq!(found[0].points.len(), 50_000);
    assert_eq!(found[0].points[49_999], (Nanoseconds(49_999), 49_999.1));
    assert!(reader.load(|_, _| false).unwrap().is_empty());
}

/// Writes a file with the columns of samples: `rows` rows with this owner, in an encoding that vtax does not use.
fn write_strangely(path: &Path, rows: usize, owner: &str, of_owner: WriterPropertiesBuilder) {
    let schema = "message samples { required int64 t_ns; required binary owner (UTF8); required binary metric (UTF8); required binary unit (UTF8); required binary kind (UTF8); required binary source (UTF8); required double value; }";
    let properties = of_owner
        .set_compression(Compression::SNAPPY)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_data_page_size_limit(64 << 20)
        .build();
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let file = fs::File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let texts = ["", owner, "metric", "B", "gauge", "measured"];
    let mut column = 0;
    while let Some(mut next) = group.next_column().unwrap() {
        match column {
            0 => next
                .typed::<Int64Type>()
                .write_batch(&vec![0; rows], None, None)
                .unwrap(),
            6 => next
                .typed::<DoubleType>()
                .write_batch(&vec![0.0; rows], None, None)
                .unwrap(),
            _ => {
                let values = vec![ByteArray::from(texts[column]); rows];
                let column = next.typed::<ByteArrayType>();
                column.write_batch(&values, None, None).unwrap()
            }
        };
        next.close().unwrap();
        column += 1;
    }
    group.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn samples_that_would_take_memory_without_end_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("samples.parquet");
    let long = "x".repeat(40_000);
    let delta = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_column_encoding("owner".into(), Encoding::DELTA_BYTE_ARRAY);
    let plain = WriterProperties::builder().set_dictionary_enabled(false);
    let usual = WriterProperties::builder;
    for (rows, owner, properties, why) in [
        (
            (1 << 20) + 1,
            "target",
            usual(),
            "a row group of 1048577 rows",
        ),
        (1000, long.as_str(), plain, "a page of 40"),
        (1000, long.as_str(), delta, "encoded in a way"),
        (10, long.as_str(), usual(), "longer names"),
    ] {
        write_strangely(&path, rows, owner, properties);
        let found = SampleReader::open(&path).and_then(|reader| reader.load(|_, _| true));
        let refused = found.unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    write_strangely(&path, 10, "target", usual());
    let found = SampleReader::open(&path)
        .unwrap()
        .load(|_, _| true)
        .unwrap();
    assert_eq!(found[0].points.len(), 10);
}

#[test]
fn what_a_link_leads_to_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let results = small().write(&folder.path().join("run"));
    let trial = results.trial_path(0);
    for name in ["trial.json", "samples.parquet"] {
        let (file, moved) = (trial.join(name), trial.join(format!("{name}.moved")));
        fs::rename(&file, &moved).unwrap();
        std::os::unix::fs::symlink(format!("{name}.moved"), &file).unwrap();
        let refused = match name {
            "trial.json" => results.trial(0).unwrap_err().to_string(),
            _ => results.samples(0).unwrap_err().to_string(),
        };
        assert!(
            refused.contains("a symbolic link is on the path"),
            "{refused}"
        );
        fs::rename(&moved, &file).unwrap();
    }
    let outside = folder.path().join("outside");
    fs::rename(&trial, &outside).unwrap();
    std::os::unix::fs::symlink(&outside, &trial).unwrap();
    let refused = [
        results.trial(0).unwrap_err().to_string(),
        results.samples(0).unwrap_err().to_string(),
    ];
    for refused in refused {
        assert!(
            refused.contains("a symbolic link is on the path"),
            "{refused}"
        );
    }
    let run = results.path().join("run.json");
    fs::rename(&run, folder.path().join("run.json")).unwrap();
    std::os::unix::fs::symlink("../run.json", &run).unwrap();
    let refused = ResultsDir::open(results.path()).unwrap_err().to_string();
    assert!(
        refused.contains("a symbolic link is on the path"),
        "{refused}"
    );
}

#[test]
fn a_series_is_registered_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer =
        SampleWriter::create(&Dir::open(folder.path()).unwrap(), "samples.parquet").unwrap();
    assert_eq!(
        writer.register(&series("a", "b")),
        writer.register(&series("a", "b"))
    );
    assert_ne!(
        writer.register(&series("a", "b")),
        writer.register(&series("b", "b"))
    );
}

#[test]
fn samples_without_their_footer_are_an_error_that_says_what_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("samples.parquet");
    write_samples(&path, 1000);
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let message = SampleReader::open(&path).unwrap_err().to_string();
    assert!(
        message.contains("samples.parquet is corrupted")
            && message.contains("only its time series is lost"),
        "{message}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_damage_to_samples_panics(place in 0usize..1 << 20, value: u8, cut in proptest::bool::weighted(0.2)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("samples.parquet");
        write_samples(&path, 40);
        let mut bytes = fs::read(&path).unwrap();
        let place = place % bytes.len();
        if cut { bytes.truncate(place) } else { bytes[place] ^= value }
        fs::write(&path, bytes).unwrap();
        let _ = SampleReader::open(&path).and_then(|reader| reader.load(|_, _| true));
    }
}
