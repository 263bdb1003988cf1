// SPDX-License-Identifier: Apache-2.0
//! Tests of the journal: undone changes, changes left in place, and crashes.

use super::*;

fn directory(base: &Path, name: &str) -> Change {
    let path = base.join(name);
    fs::create_dir_all(path.join("inner")).unwrap();
    Change::Directory { path }
}

#[test]
fn what_a_crashed_process_recorded_is_undone_at_the_next_start() {
    let state = tempfile::tempdir().unwrap();
    let setting = state.path().join("governor");
    fs::write(&setting, "powersave\n").unwrap();
    let mut journal = Journal::open(state.path()).unwrap();
    journal
        .record(Change::Setting {
            path: setting.clone(),
            old: "powersave".into(),
            written: None,
        })
        .unwrap();
    fs::write(&setting, "performance\n").unwrap();
    journal.record(directory(state.path(), "vtax-a")).unwrap();
    drop(journal);

    let mut journal = Journal::open(state.path()).unwrap();
    assert_eq!(journal.undo_all().unwrap(), 2);
    assert_eq!(fs::read_to_string(&setting).unwrap().trim(), "powersave");
    assert!(!state.path().join("vtax-a").exists());
    assert_eq!(fs::read(state.path().join("journal.jsonl")).unwrap(), b"");
    assert_eq!(Journal::open(state.path()).unwrap().pending().len(), 0);
}

#[test]
fn the_log_names_each_change_each_restore_and_what_is_left_at_its_level() {
    let state = tempfile::tempdir().unwrap();
    let made = vtax_log::testing::logged(|| {
        let (_, mut journal) = capped(state.path(), &["30000"]);
        let mark = journal.mark();
        journal.record(directory(state.path(), "vtax-a")).unwrap();
        journal.undo_to(mark).unwrap();
    });
    let limit = state.path().join("group/cpu.cfs_quota_us");
    let setting = format!("the setting {}, which was `50000`", limit.display());
    let of = |priority: u32, text: &str| format!("<{priority}>vtax_host::journal: {text}");
    let folder = format!("the directory {}", state.path().join("vtax-a").display());
    assert_eq!(
        made.lines().collect::<Vec<_>>(),
        [
            of(
                7,
                &format!("the journal has {setting}, and becomes `30000`")
            ),
            of(7, &format!("the journal has {folder}")),
            of(7, &format!("removed: {folder}")),
        ]
    );

    let undone = |value: &str| {
        fs::write(&limit, value).unwrap();
        vtax_log::testing::logged(|| drop(undone_anew(state.path())))
    };
    let restored = undone("30000\n");
    let cut_off = format!(
        "an earlier vtax was cut off: {} has 1 change of it",
        state.path().join(FILE).display()
    );
    assert_eq!(
        restored.lines().collect::<Vec<_>>(),
        [of(4, &cut_off), of(6, &format!("restored: {setting}"))]
    );
    drop(capped(state.path(), &["30000"]));
    let left = undone("60000\n");
    let why = "another program has set it to `60000` since";
    assert!(
        left.contains(&of(4, &format!("not restored: {setting}: {why}"))),
        "{left}"
    );
    let foreign = directory(state.path(), "foreign");
    let failed = vtax_log::testing::logged(|| {
        let mut journal = Journal::open(state.path()).unwrap();
        journal.record(foreign.clone()).unwrap();
        journal.undo_all().unwrap_err();
    });
    assert!(
        failed.contains(&of(3, "cannot restore the directory")),
        "{failed}"
    );
}

/// A limit of a group whose old value is 50000 and which vtax set to these values in turn.
fn capped(state: &Path, values: &[&str]) -> (PathBuf, Journal) {
    let group = state.join("group");
    fs::create_dir_all(&group).unwrap();
    let limit = group.join("cpu.cfs_quota_us");
    fs::write(&limit, "50000\n").unwrap();
    let mut journal = Journal::open(state).unwrap();
    let mut recorded = None;
    for value in values {
        match recorded {
            Some(recorded) => journal.rewrite(recorded, value).unwrap(),
            None => recorded = Some(journal.record_setting(&limit, "50000", value).unwrap()),
        }
        fs::write(&limit, format!("{value}\n")).unwrap();
    }
    (limit, journal)
}

fn undone_anew(state: &Path) -> Vec<String> {
    let mut journal = Journal::open(state).unwrap();
    assert_eq!(journal.undo_all().unwrap(), 1);
    assert_eq!(fs::read(state.join("journal.jsonl")).unwrap(), b"");
    let left = journal.take_left();
    left.iter().map(ToString::to_string).collect()
}

#[test]
fn the_last_of_many_values_that_vtax_set_is_undone_by_the_next_process() {
    for values in [
        &["30000"][..],
        &["30000", "29999", "1000", "10000"],
        &["7", &"1".repeat(100), "6"],
    ] {
        let state = tempfile::tempdir().unwrap();
        let (limit, journal) = capped(state.path(), values);
        drop(journal);
        let mut journal = Journal::open(state.path()).unwrap();
        journal.undo_all().unwrap();
        assert_eq!(fs::read_to_string(&limit).unwrap(), "50000");
    }
}

#[test]
fn a_process_that_was_killed_before_it_set_what_it_had_recorded_is_undone() {
    let state = tempfile::tempdir().unwrap();
    let (limit, journal) = capped(state.path(), &["30000", "20000"]);
    // The value in force when the process was killed.
    fs::write(&limit, "30000\n").unwrap();
    drop(journal);
    assert_eq!(undone_anew(state.path()), [""; 0]);
    assert_eq!(fs::read_to_string(&limit).unwrap(), "50000");
}

#[test]
fn a_limit_that_another_program_set_meanwhile_stays_and_is_named() {
    let state = tempfile::tempdir().unwrap();
    let (limit, journal) = capped(state.path(), &["30000", "20000"]);
    fs::write(&limit, "60000\n").unwrap();
    drop(journal);
    let left = undone_anew(state.path()).join("\n");
    assert_eq!(fs::read_to_string(&limit).unwrap(), "60000\n");
    assert!(
        left.contains(&limit.display().to_string())
            && left.contains("50000")
            && left.contains("another program has set it to `60000`"),
        "{left}"
    );
}

#[test]
fn a_group_that_was_made_anew_at_the_path_keeps_its_limit_even_where_vtax_had_set_the_same() {
    for value in ["77000", "20000"] {
        let state = tempfile::tempdir().unwrap();
        let (limit, journal) = capped(state.path(), &["30000", "20000"]);
        // The old directory stays, so that its inode number is not used again.
        fs::rename(limit.parent().unwrap(), state.path().join("ended")).unwrap();
        fs::create_dir(limit.parent().unwrap()).unwrap();
        fs::write(&limit, value).unwrap();
        drop(journal);
        let left = undone_anew(state.path()).join("\n");
        assert_eq!(fs::read_to_string(&limit).unwrap(), value);
        assert!(left.contains("made anew"), "{left}");
    }
}

#[test]
fn a_journal_of_a_version_that_recorded_no_values_is_undone_as_it_was() {
    let state = tempfile::tempdir().unwrap();
    let (limit, mut journal) = capped(state.path(), &[]);
    fs::write(&limit, "1000\n").unwrap();
    let old = format!(
        "{{\"boot\":\"{}\",\"change\":\"setting\",\"path\":\"{}\",\"old\":\"50000\"}}\n",
        journal.boot,
        limit.display()
    );
    journal.file.write_all(old.as_bytes()).unwrap();
    drop(journal);
    assert_eq!(undone_anew(state.path()), [""; 0]);
    assert_eq!(fs::read_to_string(&limit).unwrap(), "50000");
}

#[test]
fn a_file_of_proc_has_no_identity_that_could_change() {
    let written = Written::first(Path::new("/proc/sys/kernel/ostype"), "1");
    assert_eq!(written.file, None);
}

#[test]
fn a_torn_line_is_ignored_and_does_not_swallow_the_next() {
    let state = tempfile::tempdir().unwrap();
    fs::write(
        state.path().join("journal.jsonl"),
        "\n{\"boot\":\"x\",\"chan",
    )
    .unwrap();
    let mut journal = Journal::open(state.path()).unwrap();
    assert_eq!(journal.pending().len(), 0);
    journal.record(directory(state.path(), "vtax-b")).unwrap();
    assert_eq!(Journal::open(state.path()).unwrap().pending().len(), 1);
}

#[test]
fn a_change_of_a_newer_version_is_kept_and_reported_until_it_is_forgotten() {
    let state = tempfile::tempdir().unwrap();
    let file = state.path().join("journal.jsonl");
    fs::write(&file, "{\"boot\":\"x\",\"change\":\"moon\",\"phase\":3}\n").unwrap();
    let mut journal = Journal::open(state.path()).unwrap();
    assert_eq!(journal.pending().len(), 1);
    let message = journal.undo_all().unwrap_err().to_string();
    assert!(
        message.contains("moon") && message.contains("--forget"),
        "{message}"
    );
    assert_eq!(Journal::open(state.path()).unwrap().pending().len(), 1);
    journal.forget_last().unwrap();
    assert_eq!(Journal::open(state.path()).unwrap().pending().len(), 0);
}

#[test]
fn settings_of_an_earlier_boot_are_not_written_back() {
    let state = tempfile::tempdir().unwrap();
    let setting = state.path().join("governor");
    fs::write(&setting, "chosen since\n").unwrap();
    let mut journal = Journal::open_in_boot(state.path(), "first").unwrap();
    journal
        .record(Change::Setting {
            path: setting.clone(),
            old: "old".into(),
            written: None,
        })
        .unwrap();
    drop(journal);
    let mut journal = Journal::open_in_boot(state.path(), "second").unwrap();
    journal.undo_all().unwrap();
    assert_eq!(fs::read_to_string(&setting).unwrap(), "chosen since\n");
    assert_eq!(journal.pending().len(), 0);
}

#[test]
fn undoing_to_a_mark_keeps_what_is_older() {
    let state = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(state.path()).unwrap();
    journal.record(directory(state.path(), "vtax-old")).unwrap();
    let mark = journal.mark();
    journal.record(directory(state.path(), "vtax-new")).unwrap();
    journal.undo_to(mark).unwrap();
    assert!(state.path().join("vtax-old").exists());
    assert!(!state.path().join("vtax-new").exists());
    assert_eq!(Journal::open(state.path()).unwrap().pending().len(), 1);
}

#[test]
fn a_domain_is_recorded_by_name_and_one_that_does_not_end_stays_recorded() {
    let state = tempfile::tempdir().unwrap();
    let domain = |name: &str, scratch: Option<&str>| Change::Domain {
        name: name.to_owned(),
        scratch: scratch.map(PathBuf::from),
    };
    let changes = vec![
        domain("vtax-trial-1", Some("/cache/scratch.ext4")),
        domain("Domain-0", None),
    ];
    let mut journal = Journal::open(state.path()).unwrap();
    journal.record_all(changes.clone()).unwrap();
    drop(journal);
    let mut journal = Journal::open(state.path()).unwrap();
    assert_eq!(journal.pending(), changes);
    let message = journal.undo_all().unwrap_err().to_string();
    assert!(message.contains("Domain-0"), "{message}");
    assert_eq!(journal.pending(), changes);
}

#[test]
fn a_domain_of_an_earlier_boot_went_with_it() {
    let state = tempfile::tempdir().unwrap();
    let mut journal = Journal::open_in_boot(state.path(), "first").unwrap();
    journal
        .record(Change::Domain {
            name: "vtax-trial-1".to_owned(),
            scratch: None,
        })
        .unwrap();
    drop(journal);
    let mut journal = Journal::open_in_boot(state.path(), "second").unwrap();
    // Xen may be absent at this point.
    assert_eq!(journal.undo_all().unwrap(), 1);
    assert_eq!(journal.pending().len(), 0);
}

#[test]
fn a_vm_of_a_pool_is_still_there_after_a_boot_and_stays_recorded_until_it_is_removed() {
    let state = tempfile::tempdir().unwrap();
    let made = Change::PoolVm {
        pool: Access {
            host: "pool.invalid".to_owned(),
            authorities: None,
            fingerprint: None,
            login: Some(state.path().join("nowhere")),
        },
        name: "vtax-trial-1".to_owned(),
    };
    let mut journal = Journal::open_in_boot(state.path(), "first").unwrap();
    journal.record(made.clone()).unwrap();
    let mut journal = Journal::open_in_boot(state.path(), "second").unwrap();
    let message = journal.undo_all().unwrap_err().to_string();
    assert!(message.contains("nowhere"), "{message}");
    assert_eq!(journal.pending(), [made]);
}

#[test]
fn a_directory_that_is_not_ours_is_never_removed() {
    let state = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(state.path()).unwrap();
    let foreign = state.path().join("precious");
    fs::create_dir(&foreign).unwrap();
    journal
        .record(Change::Directory {
            path: foreign.clone(),
        })
        .unwrap();
    assert!(journal.undo_all().is_err());
    assert!(foreign.exists());
    assert_eq!(
        journal.pending().len(),
        1,
        "what could not be undone stays recorded"
    );
    journal.forget_last().unwrap();
    assert_eq!(Journal::open(state.path()).unwrap().pending().len(), 0);
}
