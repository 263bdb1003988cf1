// SPDX-License-Identifier: Apache-2.0
//! Tests of the knobs of the host on fake trees.

use super::host::{apply, check, readings};
use super::{Knob, Place, TABLE, changes};
use crate::fake_host::FakeHost;
use crate::journal::{Change, Journal};
use crate::kernel_file::{Restored, Written, restore};
use crate::settings::{Level, Settings};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn settings(levels: &[(&str, Level)]) -> Settings {
    levels.iter().cloned().collect()
}

fn text_level(value: &str) -> Level {
    Level::Text(value.to_owned())
}

fn journal(host: &FakeHost) -> Journal {
    crate::journal::Journal::open(&host.path("state")).unwrap()
}

fn undo(journal: &Journal) -> Vec<Restored> {
    let undone = journal.pending().iter().rev().map(|change| match change {
        Change::Setting { path, old, written } => restore(path, old, written.as_ref()).unwrap(),
        other => panic!("{other:?}"),
    });
    undone.collect()
}

#[test]
fn every_setting_is_journalled_written_and_undone_in_reverse() {
    let host = FakeHost::intel_server();
    let mut journal = journal(&host);
    let wanted = settings(&[
        ("host.governor", text_level("performance")),
        ("host.turbo", Level::Bool(false)),
        ("host.smt", Level::Bool(false)),
        ("host.ksm", Level::Bool(true)),
        ("host.thp", text_level("never")),
        ("vm.vcpus", Level::Integer(2)),
    ]);
    check(&wanted, &host.roots.sys).unwrap();
    assert!(journal.pending().is_empty(), "a check changes nothing");
    apply(&wanted, &host.roots.sys, &mut journal).unwrap();
    assert_eq!(
        host.read("sys/devices/system/cpu/cpufreq/policy7/scaling_governor"),
        "performance"
    );
    assert_eq!(
        host.read("sys/devices/system/cpu/intel_pstate/no_turbo"),
        "1"
    );
    assert_eq!(host.read("sys/devices/system/cpu/smt/control"), "off");
    assert_eq!(host.read("sys/kernel/mm/ksm/run"), "1");
    assert_eq!(
        host.read("sys/kernel/mm/transparent_hugepage/enabled"),
        "never"
    );
    let first = journal.pending().first().cloned().unwrap();
    assert_eq!(
        first,
        Change::Setting {
            path: host.path("sys/devices/system/cpu/smt/control"),
            old: "on".to_owned(),
            written: Some(Written::first(
                &host.path("sys/devices/system/cpu/smt/control"),
                "off"
            )),
        }
    );
    assert_eq!(journal.pending().len(), 8 + 4);

    assert!(
        undo(&journal)
            .iter()
            .all(|restored| *restored == Restored::Done)
    );
    assert_eq!(
        host.read("sys/devices/system/cpu/cpufreq/policy0/scaling_governor"),
        "powersave"
    );
    assert_eq!(
        host.read("sys/devices/system/cpu/intel_pstate/no_turbo"),
        "0"
    );
    assert_eq!(host.read("sys/devices/system/cpu/smt/control"), "on");
    assert_eq!(host.read("sys/kernel/mm/ksm/run"), "0");
    assert_eq!(
        host.read("sys/kernel/mm/transparent_hugepage/enabled"),
        "madvise"
    );
}

#[test]
fn a_value_already_in_force_is_neither_written_nor_journalled() {
    let host = FakeHost::intel_server();
    let mut journal = journal(&host);
    let wanted = settings(&[
        ("host.governor", text_level("powersave")),
        ("host.thp", text_level("madvise")),
        ("host.ksm", Level::Bool(false)),
    ]);
    apply(&wanted, &host.roots.sys, &mut journal).unwrap();
    assert!(journal.pending().is_empty());
    assert_eq!(
        host.read("sys/kernel/mm/transparent_hugepage/enabled"),
        "always [madvise] never\n"
    );
}

#[test]
fn a_governor_that_is_not_offered_is_refused_with_those_that_are() {
    let host = FakeHost::intel_server();
    let mut journal = journal(&host);
    let wanted = settings(&[("host.governor", text_level("schedutil"))]);
    for error in [
        check(&wanted, &host.roots.sys).unwrap_err(),
        apply(&wanted, &host.roots.sys, &mut journal).unwrap_err(),
    ] {
        assert!(
            error.to_string().contains("performance, powersave"),
            "{error}"
        );
    }
    assert!(journal.pending().is_empty());
    assert_eq!(
        host.read("sys/devices/system/cpu/cpufreq/policy0/scaling_governor"),
        "powersave\n"
    );
}

#[test]
fn a_write_that_does_not_stick_is_an_error_and_stays_in_the_journal() {
    let host = FakeHost::intel_server();
    // Accepts every write and keeps none, like a governor that the platform overrides.
    host.link(
        "sys/devices/system/cpu/intel_pstate/no_turbo",
        Path::new("/dev/null"),
    );
    let mut journal = journal(&host);
    let error = apply(
        &settings(&[("host.turbo", Level::Bool(false))]),
        &host.roots.sys,
        &mut journal,
    )
    .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("no_turbo was set to `1` but reads ``"),
        "{error}"
    );
    assert_eq!(journal.pending().len(), 1);
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_with_the_remedy() {
    let host = FakeHost::intel_server();
    host.link(
        "sys/devices/system/cpu/cpufreq/policy3/scaling_governor",
        Path::new("/proc/version"),
    );
    let mut journal = journal(&host);
    let error = apply(
        &settings(&[("host.governor", text_level("performance"))]),
        &host.roots.sys,
        &mut journal,
    )
    .unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("policy3/scaling_governor")
            && message.contains("host.governor = `performance`"),
        "{message}"
    );
    // The three earlier entries can be undone; a refused one is none.
    assert_eq!(journal.pending().len(), 3);
    assert_eq!(
        host.read("sys/devices/system/cpu/cpufreq/policy2/scaling_governor"),
        "performance"
    );
}

#[test]
fn a_cpu_that_vanishes_is_skipped_when_setting_and_when_restoring() {
    let host = FakeHost::intel_server();
    host.remove("sys/devices/system/cpu/cpufreq/policy5/scaling_governor");
    let mut journal = journal(&host);
    apply(
        &settings(&[("host.governor", text_level("performance"))]),
        &host.roots.sys,
        &mut journal,
    )
    .unwrap();
    assert_eq!(journal.pending().len(), 7);
    host.remove("sys/devices/system/cpu/cpufreq/policy7/scaling_governor");
    let undone = undo(&journal);
    assert_eq!(
        undone
            .iter()
            .filter(|restored| **restored == Restored::Gone)
            .count(),
        1
    );
    assert_eq!(
        undone
            .iter()
            .filter(|restored| **restored == Restored::Done)
            .count(),
        6
    );
}

#[test]
fn restoring_what_cannot_be_restored_is_an_error_that_says_how_to_do_it_by_hand() {
    let host = FakeHost::empty();
    host.link("sys/setting", Path::new("/proc/version"));
    let error = restore(&host.path("sys/setting"), "powersave", None).unwrap_err();
    assert!(error.to_string().contains("echo powersave >"), "{error}");
    host.link("sys/setting", Path::new("/dev/null"));
    let error = restore(&host.path("sys/setting"), "powersave", None).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("was set to `powersave` but reads"),
        "{error}"
    );
}

#[test]
fn settings_of_hardware_that_is_not_there_are_refused_by_name() {
    let host = FakeHost::cloud_vm();
    for (key, level) in [
        ("host.governor", text_level("performance")),
        ("host.turbo", Level::Bool(true)),
        ("host.smt", Level::Bool(true)),
    ] {
        let error = check(&settings(&[(key, level)]), &host.roots.sys).unwrap_err();
        assert!(error.to_string().contains(key), "{error}");
    }
    // A processor with one thread a core satisfies `off`.
    check(
        &settings(&[("host.smt", Level::Bool(false))]),
        &host.roots.sys,
    )
    .unwrap();
}

/// Adds an idle state of a CPU, with its `disable` file.
fn idle_state(host: &FakeHost, cpu: u32, number: usize, name: &str, disable: &str) {
    let state = format!("sys/devices/system/cpu/cpu{cpu}/cpuidle/state{number}");
    host.file(&format!("{state}/name"), &format!("{name}\n"));
    host.file(&format!("{state}/disable"), disable);
}

#[test]
fn idle_states_deeper_than_the_named_one_are_off_until_undone() {
    let host = FakeHost::intel_server();
    for cpu in 0..8 {
        for (number, name) in ["POLL", "C1", "C1E", "C6"].into_iter().enumerate() {
            // The kernel itself disables C1 here.
            idle_state(
                &host,
                cpu,
                number,
                name,
                if name == "C1" { "1\n" } else { "0\n" },
            );
        }
    }
    let off = |cpu: u32| -> String {
        let file = |state| {
            host.read(&format!(
                "sys/devices/system/cpu/cpu{cpu}/cpuidle/state{state}/disable"
            ))
        };
        (0..4).map(|state| file(state).trim().to_owned()).collect()
    };
    for (deepest, expected) in [
        ("C1E", "0101"),
        ("2", "0101"),
        ("POLL", "0111"),
        ("3", "0100"),
    ] {
        let mut journal = journal(&host);
        let wanted = settings(&[("host.idle_max", text_level(deepest))]);
        check(&wanted, &host.roots.sys).unwrap();
        apply(&wanted, &host.roots.sys, &mut journal).unwrap();
        assert_eq!((off(0).as_str(), off(7).as_str()), (expected, expected));
        undo(&journal);
        assert_eq!((off(0).as_str(), off(7).as_str()), ("0100", "0100"));
        host.remove("state/journal.jsonl");
    }
}

#[test]
fn an_idle_state_that_is_not_there_is_refused_with_those_that_are() {
    let host = FakeHost::intel_server();
    let wanted = settings(&[("host.idle_max", text_level("C3"))]);
    let error = check(&wanted, &host.roots.sys).unwrap_err().to_string();
    assert!(
        error.contains("cpuidle/state* (for host.idle_max) is missing"),
        "{error}"
    );
    idle_state(&host, 0, 0, "POLL", "0\n");
    idle_state(&host, 0, 1, "C1", "0\n");
    let error = check(&wanted, &host.roots.sys).unwrap_err().to_string();
    assert!(
        error.contains("`C3` is no state of") && error.contains("POLL (0), C1 (1)"),
        "{error}"
    );
}

#[test]
fn amd_boost_is_set_where_amd_has_it() {
    let host = FakeHost::amd_desktop();
    let mut journal = journal(&host);
    apply(
        &settings(&[("host.turbo", Level::Bool(false))]),
        &host.roots.sys,
        &mut journal,
    )
    .unwrap();
    assert_eq!(host.read("sys/devices/system/cpu/cpufreq/boost"), "0");
}

#[test]
fn ksm_is_unmerged_when_switched_off_after_it_merged() {
    let host = FakeHost::intel_server();
    host.file("sys/kernel/mm/ksm/run", "0\n");
    host.file("sys/kernel/mm/ksm/pages_sharing", "12\n");
    let mut journal = journal(&host);
    apply(
        &settings(&[("host.ksm", Level::Bool(false))]),
        &host.roots.sys,
        &mut journal,
    )
    .unwrap();
    assert_eq!(host.read("sys/kernel/mm/ksm/run"), "2");
}

#[test]
fn unknown_keys_and_wrong_types_are_refused() {
    let host = FakeHost::intel_server();
    let error = check(
        &settings(&[("host.governer", text_level("performance"))]),
        &host.roots.sys,
    )
    .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("there are: host.smt, host.governor"),
        "{error}"
    );
    assert!(
        check(
            &settings(&[("host.smt", text_level("off"))]),
            &host.roots.sys
        )
        .is_err()
    );
    assert!(
        check(
            &settings(&[("host.thp", Level::Bool(true))]),
            &host.roots.sys
        )
        .is_err()
    );
}

#[test]
fn the_polling_of_kvm_is_set_and_undone_and_refused_without_kvm() {
    let host = FakeHost::intel_server();
    let wanted = settings(&[("host.halt_poll_ns", Level::Integer(0))]);
    let error = check(&wanted, &host.roots.sys).unwrap_err().to_string();
    assert!(
        error.contains("has no KVM") && error.contains("host.halt_poll_ns"),
        "{error}"
    );
    let file = "sys/module/kvm/parameters/halt_poll_ns";
    host.file(file, "200000\n");
    let (path, mode) = (host.path(file), std::fs::Permissions::from_mode);
    std::fs::set_permissions(&path, mode(0o444)).unwrap();
    let error = check(&wanted, &host.roots.sys).unwrap_err().to_string();
    assert!(error.contains("for reading only"), "{error}");
    std::fs::set_permissions(&path, mode(0o644)).unwrap();
    let mut journal = journal(&host);
    apply(&wanted, &host.roots.sys, &mut journal).unwrap();
    assert_eq!(host.read(file), "0");
    journal.undo_all().unwrap();
    assert_eq!(host.read(file).trim(), "200000");
}

#[test]
fn a_setting_that_another_program_changes_is_a_difference_of_readings() {
    let host = FakeHost::intel_server();
    let wanted = settings(&[
        ("host.thp", text_level("never")),
        ("host.governor", text_level("performance")),
    ]);
    apply(&wanted, &host.roots.sys, &mut journal(&host)).unwrap();
    let before = readings(&wanted, &host.roots.sys);
    assert_eq!(before["host.governor"], "performance in scaling_governor");
    assert_eq!(changes(&before, &before), Vec::<String>::new());
    host.file(
        "sys/devices/system/cpu/cpufreq/policy3/scaling_governor",
        "powersave\n",
    );
    let after = readings(&wanted, &host.roots.sys);
    assert_eq!(
        changes(&before, &after),
        [
            "another program changed host.governor during the trial: `performance in scaling_governor` at its begin, \
          `performance in scaling_governor, powersave in scaling_governor` at its end"
        ]
    );
    host.remove("sys/kernel/mm/transparent_hugepage/enabled");
    let after = readings(&wanted, &host.roots.sys);
    assert!(changes(&before, &after)[1].contains("`nothing` at its end"));
}

#[test]
fn each_knob_has_a_key_of_its_own_a_description_a_reading_and_a_page() {
    for (index, knob) in TABLE.iter().enumerate() {
        let key = knob.parameter.key;
        let others = TABLE.iter().skip(index + 1);
        assert!(
            others.clone().all(|other| other.parameter.key != key),
            "{key}"
        );
        for text in [knob.parameter.help, knob.reading, knob.page] {
            assert!(!text.is_empty(), "{key}");
        }
    }
}

/// The rows of the table of knobs in `docs`.
fn rows() -> String {
    let row = |knob: &Knob| {
        let place = match knob.place {
            Place::Host(_) => "the host's kernel",
            Place::Guest { on_veth: true, .. } => "the guest's kernel, a veth's too",
            Place::Guest { on_veth: false, .. } => "the guest's kernel",
            Place::Vmm => "QEMU's command line",
        };
        let since = knob.since.map(|(major, minor)| format!("{major}.{minor}"));
        format!(
            "| `{}` | {place} | {} | {} | {} |\n",
            knob.parameter.key,
            knob.reading,
            since.unwrap_or_default(),
            knob.page
        )
    };
    TABLE.iter().map(row).collect()
}

#[test]
fn the_table_of_the_pages_is_the_table_of_the_code() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs");
    let is_page = |path: &Path| path.extension().is_some_and(|end| end == "md");
    let (mut folders, mut found) = (vec![docs], 0);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if is_page(&path) {
                let text = std::fs::read_to_string(&path).unwrap();
                if let Some((_, table)) = text.split_once("| knob | set in | proved by |") {
                    let table = table.split_once("|---|\n").unwrap().1;
                    let end = table.find("\n\n").map_or(table.len(), |end| end + 1);
                    assert_eq!(&table[..end], rows(), "{}", path.display());
                    found += 1;
                }
            }
        }
    }
    assert_eq!(found, 1, "one page of docs has the table:\n{}", rows());
}
