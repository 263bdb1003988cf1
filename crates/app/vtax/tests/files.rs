// SPDX-License-Identifier: Apache-2.0
//! Directories of other users that vtax works in: files outside of them are not read, changed or removed.

use crate::support::{finish, vtax};
#[allow(dead_code, reason = "the state of the host is for tests of runs")]
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Results that any user may have written, and a private directory beside them.
struct Work {
    folder: TempDir,
    results: PathBuf,
    private: PathBuf,
}

impl Work {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let from = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../show/report/tests/data/format-1"
        );
        let results = folder.path().join("results");
        copy(Path::new(from), &results);
        let private = folder.path().join("private");
        fs::create_dir(&private).unwrap();
        for name in ["authorized_keys", "cpu.vl.json", "mine.vl.json"] {
            fs::write(private.join(name), "private").unwrap();
        }
        Self {
            folder,
            results,
            private,
        }
    }

    fn report(&self, success: bool) -> String {
        let mut command = vtax(&self.folder.path().join("state"));
        let output = finish(command.arg("report").arg(&self.results), success);
        String::from_utf8(output.stderr).unwrap()
    }

    fn assert_private_is_untouched(&self) {
        let found: BTreeMap<String, String> = fs::read_dir(&self.private)
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| {
                let text = fs::read_to_string(entry.path()).unwrap();
                (entry.file_name().into_string().unwrap(), text)
            })
            .collect();
        let names: Vec<&str> = found.keys().map(String::as_str).collect();
        assert_eq!(names, ["authorized_keys", "cpu.vl.json", "mine.vl.json"]);
        assert!(found.values().all(|text| text == "private"), "{found:?}");
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), &to).unwrap();
        }
    }
}

#[test]
fn links_that_wait_for_a_process_number_do_not_lead_a_report_elsewhere() {
    let work = Work::new();
    let key = work.private.join("authorized_keys");
    let last = fs::read_to_string("/proc/loadavg").unwrap();
    let last: u32 = last.split_whitespace().last().unwrap().parse().unwrap();
    let most = fs::read_to_string("/proc/sys/kernel/pid_max").unwrap();
    let most: u32 = most.trim().parse().unwrap();
    for next in 0..3000 {
        let number = (last + next) % most;
        for name in ["report.html", "analysis.json"] {
            let link = format!(".{name}.partial-{number}");
            symlink(&key, work.results.join(link)).unwrap();
        }
    }
    work.report(true);
    work.assert_private_is_untouched();
    for name in ["report.html", "analysis.json"] {
        let written = fs::symlink_metadata(work.results.join(name)).unwrap();
        assert!(written.is_file() && written.len() > 100, "{name}");
    }
}

#[test]
fn links_of_the_names_that_a_report_writes_are_replaced_and_not_followed() {
    let work = Work::new();
    let key = work.private.join("authorized_keys");
    for name in ["report.html", "analysis.json"] {
        let _absent = fs::remove_file(work.results.join(name));
        symlink(&key, work.results.join(name)).unwrap();
    }
    work.report(true);
    work.assert_private_is_untouched();
    for name in ["report.html", "analysis.json"] {
        assert!(
            fs::symlink_metadata(work.results.join(name))
                .unwrap()
                .is_file()
        );
    }
}

#[test]
fn figures_that_are_a_link_to_a_directory_are_refused_and_nothing_there_is_removed() {
    let work = Work::new();
    symlink(&work.private, work.results.join("figures")).unwrap();
    let printed = work.report(false);
    assert!(
        printed.contains("figures") && printed.contains("link"),
        "{printed}"
    );
    work.assert_private_is_untouched();
}

#[test]
fn figures_that_are_links_to_files_are_replaced_and_not_followed() {
    let work = Work::new();
    work.report(true);
    let figures = work.results.join("figures");
    let names: Vec<PathBuf> = fs::read_dir(&figures)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(!names.is_empty());
    for path in &names {
        fs::remove_file(path).unwrap();
        symlink(work.private.join("authorized_keys"), path).unwrap();
    }
    work.report(true);
    for path in &names {
        assert!(fs::symlink_metadata(path).unwrap().is_file());
    }
    work.assert_private_is_untouched();
}

#[test]
fn state_is_for_its_user_alone_whatever_the_umask_and_an_older_one_is_narrowed() {
    let work = tempfile::tempdir().unwrap();
    for (name, before) in [("new", None), ("old", Some((0o755, 0o644)))] {
        let state = work.path().join(name);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let set = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        let files = [state.join("lock"), state.join("journal.jsonl")];
        if let Some((directory, file)) = before {
            fs::create_dir(&state).unwrap();
            for path in &files {
                fs::write(path, "").unwrap();
                set(path, file);
            }
            set(&state, directory);
        }
        let mut command = Command::new("sh");
        command
            .args(["-c", "umask 000; exec \"$0\" restore"])
            .arg(env!("CARGO_BIN_EXE_vtax"))
            .env("VTAX_STATE_DIR", &state);
        finish(&mut command, true);
        assert_eq!(mode(&state), 0o700, "{name}");
        for path in &files {
            assert_eq!(mode(path), 0o600, "{}", path.display());
        }
    }
}

#[test]
fn who_holds_the_lock_is_named_and_not_the_lab_that_ended() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().join("lock");
    fs::write(&path, "process 4194304, running plan that ended\n").unwrap();
    let held = fs::File::open(&path).unwrap();
    held.lock().unwrap();
    let output = finish(vtax(state.path()).arg("restore"), false);
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(!printed.contains("that ended"), "{printed}");
    let own = format!("process {}", std::process::id());
    assert!(
        printed.contains(&own) || printed.contains("does not name"),
        "{printed}"
    );
}
