// SPDX-License-Identifier: Apache-2.0
//! `vtax record` as a process: killed, without room, twice at a time; and what the other commands make of it.

use crate::support::vtax;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Ends what a failed test leaves.
pub struct Recorder(pub Child);

impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Recorder {
    /// Starts `vtax record`, ten intervals a second.
    pub fn start(state: &Path, into: &Path) -> Self {
        let mut command = vtax(state);
        command.args(["record", "--interval", "100ms", "-o"]);
        let child = command.arg(into).stderr(Stdio::piped()).spawn().unwrap();
        Self(child)
    }

    fn stop(&mut self) -> bool {
        let pid = i32::try_from(self.0.id()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.0.wait().unwrap().success()
    }
}

/// The report of a recording as JSON; `None` before its first interval.
fn report(state: &Path, recording: &Path) -> Option<serde_json::Value> {
    let output = vtax(state)
        .arg("report")
        .arg(recording)
        .arg("--json")
        .output()
        .unwrap();
    output
        .status
        .success()
        .then(|| serde_json::from_slice(&output.stdout).unwrap())
}

fn intervals(state: &Path, recording: &Path) -> u64 {
    report(state, recording).map_or(0, |report| report["intervals"].as_u64().unwrap())
}

/// Waits until a recording has this many intervals.
pub fn wait_for(state: &Path, recording: &Path, least: u64) -> u64 {
    let started = Instant::now();
    loop {
        let found = intervals(state, recording);
        if found >= least {
            return found;
        }
        assert!(
            started.elapsed() < Duration::from_secs(120),
            "{found} of {least} intervals"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_recorder_that_is_killed_loses_no_interval_before_and_goes_on_in_the_same_directory() {
    let folder = tempfile::tempdir().unwrap();
    let (state, into) = (folder.path().join("state"), folder.path().join("recording"));
    let mut had = 0;
    for least in [1, 7, 25] {
        let mut recorder = Recorder::start(&state, &into);
        let seen = wait_for(&state, &into, had + least);
        let second = vtax(&state)
            .args(["record", "-o"])
            .arg(&into)
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&second.stderr).into_owned();
        assert!(
            !second.status.success() && printed.contains("another `vtax record`"),
            "{printed}"
        );
        recorder.0.kill().unwrap();
        recorder.0.wait().unwrap();
        had = intervals(&state, &into);
        assert!(had >= seen, "{had} of {seen}");
    }
    let mut recorder = Recorder::start(&state, &into);
    wait_for(&state, &into, had + 2);
    assert!(recorder.stop(), "a recorder that is stopped ends in order");
    let report = report(&state, &into).unwrap();
    assert_eq!(
        (&report["sessions"], &report["missing_intervals"]),
        (&4.into(), &0.into())
    );
    assert!(
        report["busy_cpu_seconds"].as_f64().unwrap() > 0.0,
        "{report}"
    );
    let page = vtax(&state).arg("report").arg(&into).output().unwrap();
    assert!(page.status.success() && into.join("report.html").exists());
    let csv = vtax(&state).arg("export").arg(&into).output().unwrap();
    let csv = String::from_utf8(csv.stdout).unwrap();
    let of_host = csv
        .lines()
        .filter(|line| line.contains(",host,,,,,,tasks,"));
    assert_eq!(
        of_host.count() as u64,
        report["intervals"].as_u64().unwrap()
    );
    let same = vtax(&state)
        .arg("compare")
        .arg(&into)
        .arg(&into)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&same.stdout).into_owned();
    assert!(
        same.status.success() && printed.contains("different times"),
        "{printed}"
    );
}

/// A small file system in memory.
struct Tmpfs(PathBuf);

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test(needs = [root()])]
fn a_recorder_without_room_reports_it_keeps_what_was_there_and_goes_on_when_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let (state, place) = (folder.path().join("state"), folder.path().join("small"));
    fs::create_dir(&place).unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=256k", "small"]);
    if !mount
        .arg(&place)
        .status()
        .is_ok_and(|status| status.success())
    {
        skip!("cannot mount a file system in memory");
    }
    let place = Tmpfs(place);
    let into = place.0.join("recording");
    let mut recorder = Recorder::start(&state, &into);
    let mut printed = BufReader::new(recorder.0.stderr.take().unwrap()).lines();
    let mut wait_to_say = |what: &str| {
        let line = printed.find(|line| line.as_ref().is_ok_and(|line| line.contains(what)));
        line.unwrap_or_else(|| panic!("it ended without `{what}`"))
            .unwrap()
    };
    let before = wait_for(&state, &into, 3);
    let filler = place.0.join("filler");
    let mut file = File::create(&filler).unwrap();
    while file.write_all(&[0; 512]).is_ok() {}
    let why = wait_to_say("cannot write");
    assert!(why.contains("No space left"), "{why}");
    assert!(intervals(&state, &into) >= before);
    fs::remove_file(&filler).unwrap();
    drop(file);
    wait_to_say("writes again");
    assert!(recorder.stop());
    let report = report(&state, &into).unwrap();
    assert_eq!(
        (&report["missing_intervals"], &report["damaged_bytes"]),
        (&0.into(), &0.into())
    );
}
