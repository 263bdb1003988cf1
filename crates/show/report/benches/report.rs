// SPDX-License-Identifier: Apache-2.0
//! Measures the time of a report over a million samples, and of writing and reading samples.

#![allow(
    clippy::expect_used,
    reason = "a benchmark that cannot run should say so and stop"
)]

use std::time::Instant;
use vtax_report::{analysis, html};

fn main() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    // 3 platforms × 3 workloads × 5 blocks, 23 s at 10 Hz, 97 series: 1,003,950 samples.
    let fake = vtax_testkit::results::Fake {
        rate: 10,
        extra_series: 94,
        ..vtax_testkit::results::Fake::default()
    };
    let start = Instant::now();
    let results = fake.write(&folder.path().join("run"));
    let writing = start.elapsed();
    let samples: u64 = results
        .trial_indexes()
        .into_iter()
        .filter_map(|index| Some(results.samples(index).ok()?.rows()))
        .sum();
    let start = Instant::now();
    let analysis = analysis::analyse(&results).expect("an analysis");
    let analysing = start.elapsed();
    let report = html::write_report(&results, &analysis).expect("a report");
    let total = start.elapsed();
    let size = std::fs::metadata(&report).map_or(0, |file| file.len());
    println!("samples                       {samples:>10}");
    println!(
        "writing the run               {:>10.3} s",
        writing.as_secs_f64()
    );
    println!(
        "reading and analysing         {:>10.3} s",
        analysing.as_secs_f64()
    );
    println!(
        "report, in all                {:>10.3} s   (target 2 s)",
        total.as_secs_f64()
    );
    println!(
        "report.html                   {:>10.2} MB",
        size as f64 / 1e6
    );
}
