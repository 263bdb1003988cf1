// SPDX-License-Identifier: Apache-2.0
//! Measures the cost of reading the results of many machines as a stream. `cargo bench -p vtax-report --bench survey --
//! RESULTS 10000` creates this many directories from a real one, beside it, each of another machine with links to its
//! trials' records, and reads them with and without a data set. Without arguments: 100 directories of a generated run.

#![allow(
    clippy::expect_used,
    reason = "a benchmark that cannot run should say so and stop"
)]

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;
use vtax_report::export::Dataset;
use vtax_report::survey::{directories, survey};
use vtax_results::ResultsDir;

fn main() {
    let mut words = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with("--"));
    let given = words.next().map(PathBuf::from);
    let machines: usize = words
        .next()
        .map_or(100, |word| word.parse().expect("a number"));
    // Hard links need the same file system.
    let beside = given.as_deref().and_then(Path::parent).map(Path::to_owned);
    let beside = beside.filter(|path| !path.as_os_str().is_empty());
    let folder = tempfile::tempdir_in(beside.unwrap_or_else(std::env::temp_dir));
    let folder = folder.expect("a temporary directory");
    let one = given.map_or_else(
        || {
            let fake = vtax_testkit::results::Fake {
                blocks: 4,
                ..vtax_testkit::results::Fake::default()
            };
            fake.write(&folder.path().join("one"))
        },
        |path| ResultsDir::open(&path).expect("results"),
    );
    let fleet = folder.path().join("fleet");
    for machine in 0..machines {
        let shelf = fleet.join((machine / 100).to_string());
        copy(&one, &shelf.join(machine.to_string()), machine);
    }
    println!(
        "{machines} directories of {} trials",
        one.trial_indexes().len()
    );
    let found = directories(&fleet).expect("directories");
    timed("survey", || {
        let survey = survey(&found, None).expect("a survey");
        assert_eq!((survey.results, survey.unreadable), (machines, 0));
    });
    let file = folder.path().join("fleet.parquet");
    timed("survey and data set", || {
        let mut dataset = Dataset::create(&file).expect("a file");
        survey(&found, Some(&mut dataset)).expect("a survey");
        dataset.finish().expect("a data set");
    });
    let bytes = fs::metadata(&file).map_or(0, |file| file.len());
    println!("{:.1} MB of data set", bytes as f64 / 1e6);
    if let Some(kept) = words.next() {
        fs::copy(&file, kept).expect("a copy of the data set");
    }
}

/// Copies a run as one of another machine.
fn copy(one: &ResultsDir, to: &Path, machine: usize) {
    let mut host = one.host().expect("host.json");
    host["boot_id"] = Value::from(format!("boot-{machine}"));
    host["hostname"] = Value::from(format!("host-{machine}"));
    fs::create_dir_all(to).expect("a directory");
    fs::write(to.join("host.json"), host.to_string()).expect("host.json");
    fs::hard_link(one.path().join("run.json"), to.join("run.json")).expect("a link");
    for index in one.trial_indexes() {
        let trial = one.trial_path(index);
        let here = to.join("trials").join(trial.file_name().expect("a name"));
        fs::create_dir_all(&here).expect("a directory");
        fs::hard_link(trial.join("trial.json"), here.join("trial.json")).expect("a link");
    }
}

fn timed(what: &str, work: impl FnOnce()) {
    let (began, before) = (Instant::now(), cpu());
    work();
    let status = fs::read_to_string("/proc/self/status").expect("a status");
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    println!(
        "{what}: {:.1} s, {:.1} s of processors, at most {}",
        began.elapsed().as_secs_f64(),
        cpu() - before,
        most.unwrap_or_default().trim()
    );
}

/// CPU time of this process, in seconds.
fn cpu() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("a stat");
    let fields = stat.rsplit(')').next().unwrap_or_default().split(' ');
    // User and system time, in hundredths of a second.
    let ticks = fields
        .skip(12)
        .take(2)
        .filter_map(|ticks| ticks.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}
