// SPDX-License-Identifier: Apache-2.0
//! A machine that runs a plan for this one and is under an attacker's control: its output reaches only the results, and
//! no terminal.

use crate::support::work::{Work, executable};
#[allow(dead_code, reason = "the state of the host is for tests of runs here")]
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use vtax_core::Nanoseconds;
use vtax_host::untrusted::archive::{entry, header};
use vtax_results::{
    FORMAT, ObservationCost, PhaseTimes, ResultsDir, RunInfo, Scheduled, Treatment, Trial,
    TrialOutcome,
};

const PLAN: &str = r#"
name = "small"
repetitions = 2
idle = "0s"
duration = "1s"
[[platform]]
kind = "native"
[[workload]]
kind = "idle"
"#;

/// A stand-in for ssh that responds with files of the test's directory, selected by the remote command.
const SSH: &str = r#"#!/bin/bash
cd "$(dirname "$0")/.."
printf '\033]0;TITLE\007complaint\n' >&2
line=${!#}
if [ "$line" = "exec sh -s" ]; then
    read -r mark
    eval "$mark"
    line=$(cat)
fi
case "${line#"exec sh -c '"}" in
    mktemp*) cat directory ;;
    "cat > "*) cat > /dev/null ;;
    cd*) bash said ;;
    tar*plan.toml*) cat head ;;
    tar*trials/0000*) cat trial-0 ;;
    tar*trials/0001*) cat trial-1 ;;
    tar*) cat all ;;
    "test -d"*) echo yes ;;
esac
"#;

/// A well-behaved machine that has run the plan, in a directory.
struct Machine {
    work: Work,
    victim: PathBuf,
}

impl Machine {
    fn new() -> Self {
        let work = Work::of(PLAN);
        let victim = work.at("victim");
        for folder in [&victim, &work.at("bin")] {
            fs::create_dir(folder).unwrap();
        }
        executable(&work.at("bin/ssh"), SSH);
        let machine = Self { work, victim };
        machine.answers("directory", b"/var/tmp/vtax-run-evil\n");
        let good = machine.path("good");
        record(&good);
        machine.says("");
        machine.packs("head", &packed(&good, ""));
        for index in 0..2 {
            let trial = good.join(format!("trials/000{index}"));
            machine.packs(&format!("trial-{index}"), &packed(&trial, ""));
        }
        machine.packs("all", &packed(&good, ""));
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.work.at(name)
    }

    fn answers(&self, file: &str, answer: &[u8]) {
        fs::write(self.path(file), answer).unwrap();
    }

    /// Sets the script that prints the output of the machine's vtax. The events of two finished trials follow.
    fn says(&self, script: &str) {
        let finished = |index: u32| {
            format!(
                r#"{{"event":"trial_finished","index":{index},"treatment":"native · idle","seconds":1.0,"done":1,"of":2,"remaining_seconds":1.0,"headline":"","suspect":[],"failed":null}}"#
            )
        };
        let script = format!(
            "{script}\ncat <<'END'\n{}\n{}\nEND\n",
            finished(0),
            finished(1)
        );
        self.answers("said", script.as_bytes());
    }

    fn packs(&self, file: &str, entries: &[u8]) {
        self.answers(file, &[entries, &[0; 1024]].concat());
    }

    /// Appends entries to an archive of the machine.
    fn adds(&self, file: &str, entries: &[u8]) {
        let mut archive = fs::read(self.path(file)).unwrap();
        archive.truncate(archive.len() - 1024);
        archive.extend_from_slice(entries);
        self.packs(file, &archive);
    }

    fn results(&self) -> PathBuf {
        self.path("results")
    }

    /// Executes `vtax run --place ssh:` of the plan on the machine, and asserts that only the results were touched.
    fn run(&self) -> Output {
        let mut run = self.work.run();
        run.args(["--place", "ssh:evil"]);
        run.env("PATH", self.work.path_variable());
        let output = run.output().unwrap();
        assert_eq!(fs::read_dir(&self.victim).unwrap().count(), 0, "outside");
        assert!(!self.path("stolen").exists());
        for path in files(&self.results()) {
            let found = fs::symlink_metadata(&path).unwrap();
            let mode = found.permissions().mode() & 0o7777;
            assert!(found.is_file(), "{}", path.display());
            assert_eq!(mode & 0o7113, 0, "{}: {mode:o}", path.display());
        }
        for printed in [&output.stdout, &output.stderr] {
            let text = String::from_utf8_lossy(printed);
            let steers = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
            let start: String = text.chars().take(2000).collect();
            assert!(!text.contains(steers), "{start:?}");
        }
        output
    }
}

fn shown(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The entries below a directory that are not directories.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()))
        } else {
            found.push(entry.path())
        }
    }
    found
}

/// The files below a directory as entries of an archive.
fn packed(directory: &Path, below: &str) -> Vec<u8> {
    let entries = files(directory).into_iter().map(|file| {
        let name = file.strip_prefix(directory).unwrap().to_str().unwrap();
        entry(&format!("./{below}{name}"), b'0', &fs::read(&file).unwrap())
    });
    entries.collect::<Vec<_>>().concat()
}

/// Two trials of one treatment, in the form of a finished run.
fn record(path: &Path) {
    let treatment = Treatment {
        label: "native · idle".to_owned(),
        platform: "native".to_owned(),
        workload: "idle".to_owned(),
        factors: BTreeMap::new(),
        baseline: None,
        platform_kind: "native".to_owned(),
        workload_kind: "idle".to_owned(),
    };
    let scheduled = |block| Scheduled {
        treatment: 0,
        block,
    };
    let run = RunInfo {
        format: FORMAT,
        name: "small".to_owned(),
        description: String::new(),
        seed: 1,
        profile: "full".to_owned(),
        place: "ssh:evil".to_owned(),
        started: "2026-01-01T00:00:00Z".to_owned(),
        plan_sha256: String::new(),
        treatments: vec![treatment],
        schedule: vec![scheduled(1), scheduled(2)],
        minimum_effect: 0.01,
        extended: false,
    };
    let results = ResultsDir::create(path, &run, PLAN, &serde_json::json!({})).unwrap();
    for (index, scheduled) in (0..).zip(&run.schedule) {
        let trial = Trial {
            format: FORMAT,
            index,
            treatment: run.treatments[scheduled.treatment].clone(),
            block: scheduled.block,
            outcome: TrialOutcome::Complete,
            started: "2026-01-01T00:00:00Z".to_owned(),
            times: PhaseTimes::default(),
            window: (Nanoseconds(0), Nanoseconds(1_000_000_000)),
            suspect: Vec::new(),
            disturbed: Vec::new(),
            environment: BTreeMap::new(),
            observation: ObservationCost::default(),
            work: None,
            metrics: BTreeMap::new(),
            actors: Vec::new(),
            phases: Vec::new(),
            objective: None,
        };
        let writer = results.trial_writer(index).unwrap();
        writer.finish(trial).unwrap();
    }
}

#[test]
fn a_machine_that_does_as_it_should_hands_its_trials_back() {
    let machine = Machine::new();
    let output = machine.run();
    let results = ResultsDir::open(&machine.results()).unwrap();
    assert_eq!(results.trial_indexes(), [0, 1], "{}", shown(&output));
    assert!(results.trials().all(|trial| trial.is_ok()));
    assert_eq!(results.attempts().len(), 0);
}

#[test]
fn a_link_of_one_archive_is_not_what_the_next_one_writes_through() {
    let machine = Machine::new();
    let victim = machine.victim.display().to_string();
    machine.adds("trial-0", &header("./x", b'2', 0, 0o777, &victim));
    machine.adds("all", &entry("./trials/0000/x/pwned", b'0', b"x"));
    machine.run();
    let machine = Machine::new();
    let victim = machine.victim.display().to_string();
    machine.adds("all", &header("./x", b'2', 0, 0o777, &victim));
    machine.adds("all", &entry("./x/pwned", b'0', b"x"));
    assert!(!machine.run().status.success());
    let machine = Machine::new();
    machine.adds("head", &entry("../stolen", b'0', b"x"));
    machine.run();
}

#[test]
fn neither_the_mode_nor_a_strange_name_of_a_file_there_is_taken_over() {
    let machine = Machine::new();
    for name in ["trial-0", "all"] {
        machine.adds(name, &header("./suid", b'0', 0, 0o4755, ""));
    }
    machine.adds("trial-1", &header("./log", b'0', 0, 0o6777, ""));
    machine.adds("all", &entry("./report.html", b'0', b"<script>evil()"));
    machine.run();
    let names: Vec<PathBuf> = files(&machine.results());
    assert!(
        !names.iter().any(|name| name.ends_with("suid")),
        "{names:?}"
    );
    assert!(names.contains(&machine.results().join("trials/0001/log")));
    let report = fs::read_to_string(machine.results().join("report.html")).unwrap_or_default();
    assert!(!report.contains("evil()"));
}

#[test]
fn what_it_prints_steers_no_terminal() {
    let machine = Machine::new();
    machine.says(
        r#"printf '\033]0;OWNED\007a line\n\302\2332J\n'
           printf '%s\n' '{"event":"note","message":"\u001b]0;OWNED\u0007 a note"}'
           printf '%s\n' '{"event":"phase","phase":"\u001b[2J"}'"#,
    );
    let output = machine.run();
    let shown = shown(&output);
    assert!(
        shown.contains("a line") && shown.contains("a note"),
        "{shown}"
    );
    let machine = Machine::new();
    machine.answers("directory", b"/tmp/\x1b]0;OWNED\x07\n");
    let output = machine.run();
    assert!(!output.status.success());
}

#[test]
fn its_numbers_end_no_run() {
    let machine = Machine::new();
    machine.says(
        r#"printf '%s\n' '{"event":"started","plan":"p","results":"r","trials":1,"finished":0,"expected_seconds":1e300}'
           printf '%s\n' '{"event":"trial_finished","index":4294967295,"treatment":"t","seconds":1e300,"done":9,"of":2,"remaining_seconds":1e300,"headline":"","suspect":[],"failed":null}'"#,
    );
    let output = machine.run();
    assert!(!shown(&output).contains("panicked"), "{}", shown(&output));
    let trials = ResultsDir::open(&machine.results())
        .unwrap()
        .trial_indexes();
    assert_eq!(trials, [0, 1]);
}

#[test]
fn a_line_without_an_end_ends_the_run_and_not_this_machines_memory() {
    let machine = Machine::new();
    machine.says("head -c 64000000 /dev/zero | tr '\\0' x");
    let output = machine.run();
    assert!(!output.status.success());
    assert!(shown(&output).contains("more than"), "{}", shown(&output));
    assert!(shown(&output).len() < 100_000);
    let machine = Machine::new();
    machine.answers("directory", &vec![b'x'; 8_000_000]);
    let output = machine.run();
    assert!(shown(&output).contains("more than"), "{}", shown(&output));
    assert!(shown(&output).len() < 100_000);
}
