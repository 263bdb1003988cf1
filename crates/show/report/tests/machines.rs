// SPDX-License-Identifier: Apache-2.0
//! Tests of results of several machines: identity, merge, and refusal.

use crate::support::multiply_costs_of_vms;
use serde_json::json;
use std::fs;
use std::path::Path;
use vtax_report::analysis::{analyse, analyse_shards};
use vtax_results::{ResultsDir, ResultsError, merge};
use vtax_testkit::results::Fake;

const KERNEL: &str = "6.1.0";

/// A results directory with the blocks for which `holds` is true, of a machine with this boot and kernel.
fn shard(
    fake: &Fake,
    path: &Path,
    boot: &str,
    kernel: &str,
    holds: impl Fn(u32) -> bool,
) -> ResultsDir {
    let results = fake.create(path);
    let host =
        json!({ "boot_id": boot, "kernel": kernel, "vtax": "1", "cpu": { "model": "Example" } });
    fs::write(path.join("host.json"), host.to_string()).unwrap();
    for index in results.pending() {
        if holds(results.block_of(index).unwrap()) {
            fake.write_trial(&results, index);
        }
    }
    results
}

fn fake() -> Fake {
    Fake {
        blocks: 12,
        trouble: false,
        ..Fake::default()
    }
}

#[test]
fn shards_of_four_machines_become_one_directory_that_says_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let fake = fake();
    let whole = fake.write(&folder.path().join("whole"));
    let shards: Vec<ResultsDir> = (0..4)
        .map(|at| {
            let path = folder.path().join(format!("shard{at}"));
            shard(&fake, &path, &format!("boot{at}"), KERNEL, |block| {
                block % 4 == at
            })
        })
        .collect();
    let into = folder.path().join("merged");
    assert_eq!(merge(&shards, &into).unwrap(), Vec::<String>::new());
    let (merged, alone) = (
        analyse(&ResultsDir::open(&into).unwrap()).unwrap(),
        analyse(&whole).unwrap(),
    );
    assert_eq!((merged.fleet.machines, alone.fleet.machines), (4, 1));
    assert_eq!(merged.counts, alone.counts);
    for (one, other) in merged.treatments.iter().zip(&alone.treatments) {
        assert_eq!(one.metrics, other.metrics);
    }
    let together = analyse_shards(&shards.iter().collect::<Vec<_>>()).unwrap();
    assert_eq!(together.comparisons, merged.comparisons);
    let printed = merged.fleet.sentences(&merged.comparisons).join("\n");
    assert!(printed.contains("4 machines of one kind"), "{printed}");
    assert!(alone.comparisons.iter().all(|of| of.machines.is_none()));
    // A second merge with one source given twice adds no duplicates and removes nothing.
    let twice = [
        shards,
        vec![ResultsDir::open(&folder.path().join("shard2")).unwrap()],
    ]
    .concat();
    let notes = merge(&twice, &into).unwrap();
    assert!(
        notes.iter().any(|note| note.contains("given twice")),
        "{notes:?}"
    );
    assert_eq!(ResultsDir::open(&into).unwrap().attempts().len(), 0);
    assert_eq!(
        analyse(&ResultsDir::open(&into).unwrap()).unwrap().counts,
        alone.counts
    );
}

#[test]
fn a_block_that_two_machines_ran_is_one_machines_and_the_fuller_one() {
    let folder = tempfile::tempdir().unwrap();
    let fake = fake();
    let died = shard(&fake, &folder.path().join("died"), "a", KERNEL, |block| {
        block < 6
    });
    // A run killed in the middle of block 5.
    let last = *died.trial_indexes().last().unwrap();
    fs::remove_dir_all(died.trial_path(last)).unwrap();
    let into = folder.path().join("merged");
    merge(std::slice::from_ref(&died), &into).unwrap();
    let half = ResultsDir::open(&into).unwrap();
    assert_eq!(half.machines().unwrap().of_block(5).unwrap().name(), "a");
    let rest = shard(&fake, &folder.path().join("rest"), "b", KERNEL, |block| {
        block >= 5
    });
    let notes = merge(&[died, rest], &into).unwrap();
    assert!(
        notes.iter().any(|note| note.contains("block 5 ")),
        "{notes:?}"
    );
    let merged = ResultsDir::open(&into).unwrap();
    assert_eq!(merged.pending(), Vec::<u32>::new());
    let machines = merged.machines().unwrap();
    assert_eq!(machines.of_block(4).unwrap().name(), "a");
    assert_eq!(machines.of_block(5).unwrap().name(), "b");
    // The other machine's trials of that block are kept.
    assert!(!merged.attempts().is_empty());
}

#[test]
fn machines_that_differ_in_kind_plan_version_or_profile_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let fake = fake();
    let make = |name: &str, fake: &Fake, kernel: &str| {
        shard(fake, &folder.path().join(name), name, kernel, |block| {
            block < 1
        })
    };
    let first = make("first", &fake, KERNEL);
    let refused = |other: ResultsDir| {
        let into = folder.path().join("into");
        let printed = merge(&[first.clone(), other], &into).unwrap_err();
        assert!(!into.exists());
        printed.to_string()
    };
    let kernel = refused(make("kernel", &fake, "6.12.0"));
    assert!(
        kernel.contains("different kinds (kernel: 6.1.0, 6.12.0)"),
        "{kernel}"
    );
    let quick = refused(make(
        "quick",
        &Fake {
            profile: "quick",
            ..fake.clone()
        },
        KERNEL,
    ));
    assert!(quick.contains("profiles (full, quick)"), "{quick}");
    let schedule = refused(make(
        "short",
        &Fake {
            blocks: 3,
            ..fake.clone()
        },
        KERNEL,
    ));
    assert!(schedule.contains("schedules differ"), "{schedule}");
    let version = make("version", &fake, KERNEL);
    let host = folder.path().join("version/host.json");
    let text = fs::read_to_string(&host).unwrap();
    fs::write(&host, text.replace("\"vtax\":\"1\"", "\"vtax\":\"2\"")).unwrap();
    let version = refused(version);
    assert!(version.contains("versions of vtax (1, 2)"), "{version}");
    assert!(matches!(
        merge(&[make("a", &fake, KERNEL)], first.path()),
        Err(ResultsError::AlreadyARun(_))
    ));
}

#[test]
fn machines_that_disagree_are_reported_and_widen_the_interval() {
    let folder = tempfile::tempdir().unwrap();
    let fake = fake();
    let shards: Vec<ResultsDir> = (0..4u32)
        .map(|at| {
            let path = folder.path().join(format!("shard{at}"));
            let results = shard(&fake, &path, &format!("boot{at}"), KERNEL, |block| {
                block % 4 == at
            });
            // On this machine a VM costs more.
            multiply_costs_of_vms(&results, 1.0 + 0.3 * f64::from(at));
            results
        })
        .collect();
    let all = analyse_shards(&shards.iter().collect::<Vec<_>>()).unwrap();
    let of = |platform: &str| {
        let mut comparisons = all.comparisons.iter();
        let wanted = |c: &&vtax_report::analysis::Comparison| {
            c.platform == platform && c.metric == "cpu.per_work"
        };
        comparisons.find(wanted).unwrap().clone()
    };
    let (vm, container) = (of("qemu"), of("container"));
    let disagreement = vm.machines.unwrap();
    assert!(disagreement.is_shown(), "{disagreement:?}");
    assert!(disagreement.interval.low <= 1.27 && 1.27 <= disagreement.interval.high);
    assert!(!container.machines.unwrap().is_shown());
    let interval = vm.tax.unwrap().interval.unwrap();
    assert!(interval.high / interval.low > 1.5, "{interval:?}");
    assert!(vm.note.unwrap().contains("machines disagree"));
}
