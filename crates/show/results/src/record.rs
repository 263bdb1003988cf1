// SPDX-License-Identifier: Apache-2.0
//! The file names of a run's record: the files that another machine may return after a run of the plan.

use super::attempts::Aside;
use super::checksums::SUMS;
use super::directory::trial_index;
use std::path::{Component, Path};

/// Files of the run.
const RUN: [&str; 5] = ["plan.toml", "host.json", "run.json", "more.json", SUMS];
/// Files of a trial; the last one is the log of an emulated host.
const TRIAL: [&str; 7] = [
    "trial.json",
    SUMS,
    "samples.parquet",
    "latencies.hlog",
    "workload.json",
    "log",
    "testbed.log",
];

/// Whether a path below a results directory is a file of the record. Derived files, such as `report.html`, and
/// unfinished files are not.
#[must_use]
pub fn is_record(below: &Path) -> bool {
    let mut names = below.components().map(|component| match component {
        Component::Normal(name) => name.to_str().unwrap_or_default(),
        _ => "",
    });
    match (names.next(), names.next(), names.next(), names.next()) {
        (Some(file), None, None, None) => RUN.contains(&file),
        (Some("trials"), Some(trial), Some(file), None) => {
            is_trial_or_attempt(trial) && TRIAL.contains(&file)
        }
        _ => false,
    }
}

/// Whether a name is that of a trial, `0007`, or of an attempt at it, `0007.failed-1`.
fn is_trial_or_attempt(name: &str) -> bool {
    let (index, attempt) = match name.split_once('.') {
        Some((index, attempt)) => (index, Some(attempt)),
        None => (name, None),
    };
    trial_index(index).is_some() && attempt.is_none_or(|attempt| Aside::parse(attempt).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_is_its_files_and_nothing_else() {
        for name in [
            "run.json",
            "more.json",
            "plan.toml",
            "host.json",
            "SHA256SUMS",
            "trials/0000/SHA256SUMS",
            "trials/0000/trial.json",
            "trials/12345/log",
            "trials/0007.failed-1/samples.parquet",
            "trials/0007.again-12/workload.json",
        ] {
            assert!(is_record(Path::new(name)), "{name}");
        }
        for name in [
            "",
            "report.html",
            "machines.json",
            "figures/a.vl.json",
            ".run.json.partial-1",
            "../run.json",
            "/run.json",
            "trials",
            "trials/0000",
            "trials/0000/suid",
            "trials/0000/x/trial.json",
            "trials/../trial.json",
            "trials/.0000.partial-7/trial.json",
            "trials/00000/trial.json",
            "trials/-1/trial.json",
            "trials/+001/trial.json",
            "trials/0007.failed/trial.json",
            "trials/0007.failed-x/trial.json",
            "trials/0007.other-1/trial.json",
            "others/0000/trial.json",
        ] {
            assert!(!is_record(Path::new(name)), "{name}");
        }
    }
}
