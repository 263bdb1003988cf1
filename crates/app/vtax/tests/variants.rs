// SPDX-License-Identifier: Apache-2.0
//! Variants in one run, from the command line and from the workflows of pipelines.

use crate::support::work::{executable, shown, text, trials};
use crate::support::{can_run_trials, the_host, vtax};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// A program that counts to a number of thousands, and prints its work.
fn program(thousands: u32) -> String {
    format!(
        "#!/bin/sh\ni=0; while [ $i -lt {thousands}000 ]; do i=$((i + 1)); done; echo \"served 1000\"\n"
    )
}

/// Compares two programs in one run and returns how it ended.
fn compare(work: &Path, old: &str, new: &str, more: &[&str]) -> Output {
    for (name, text) in [("app-1", old), ("app-2", new)] {
        executable(&work.join(name), text);
    }
    let mut command = vtax(&work.join("state"));
    command
        .current_dir(work)
        .args(["run", "--results", "results/app", "--runs", "5"]);
    command.args(["--platform", "native,container", "--variant", "old=./app-1"]);
    command.args([
        "--variant",
        "new=./app-2",
        "--work",
        "served ([0-9]+)",
        "request",
    ]);
    command
        .args(more)
        .args(["--", "{variant}"])
        .output()
        .unwrap()
}

#[test(needs = [can_run_trials()])]
fn a_build_of_twice_the_cost_misses_the_gate_in_the_command_that_measures_it() {
    let work = tempfile::tempdir().unwrap();
    let _host = the_host();
    let gate = [
        "--fail-on",
        "cpu.per_work of new > +20%",
        "--summary",
        "summary.md",
    ];
    let ended = compare(work.path(), &program(60), &program(150), &gate);
    assert_eq!(ended.status.code(), Some(4), "{}", shown(&ended));
    let printed = text(&ended.stdout);
    assert_eq!(printed.matches("\nmissed ").count(), 2, "{printed}");
    let summary = fs::read_to_string(work.path().join("summary.md")).unwrap();
    for part in ["Variant new costs", "| missed |", "●", "### vtax: app"] {
        assert!(summary.contains(part), "{part}: {summary}");
    }
    let trials = trials(&work.path().join("results/app"));
    assert_eq!(trials.len(), 20);
    for trial in &trials {
        let block: Vec<_> = trials
            .iter()
            .filter(|other| other.block == trial.block)
            .collect();
        assert_eq!(
            block.len(),
            4,
            "each variant on each platform in each block"
        );
    }
}

#[test(needs = [can_run_trials(), test_all("two runs, 15 s")])]
fn the_same_build_twice_is_told_as_an_a_a_run_and_one_that_fails_stops_the_run_by_name() {
    let work = tempfile::tempdir().unwrap();
    let _host = the_host();
    let same = compare(work.path(), &program(10), &program(10), &[]);
    let printed = shown(&same);
    assert!(
        printed.contains("variants old and new do the same"),
        "{printed}"
    );
    fs::remove_dir_all(work.path().join("results")).unwrap();
    let gate = ["--fail-on", "cpu.per_work of new > +20%"];
    let fails = compare(work.path(), &program(10), "#!/bin/sh\nexit 7\n", &gate);
    let printed = shown(&fails);
    assert_eq!(fails.status.code(), Some(1), "{printed}");
    assert!(
        printed.contains("variant=new failed 2 times in a row, so the run stops"),
        "{printed}"
    );
}

#[test(needs = [can_run_trials(), test_all("three runs, 30 s")])]
fn a_run_ends_when_its_gate_is_decided_and_takes_more_blocks_that_count_as_a_look() {
    let work = tempfile::tempdir().unwrap();
    let _host = the_host();
    let until = [
        "--until",
        "decided: cpu.per_work of new > +20%",
        "--at-most",
        "40",
    ];
    let ended = compare(work.path(), &program(60), &program(240), &until);
    let printed = shown(&ended);
    assert_eq!(ended.status.code(), Some(4), "{printed}");
    assert!(
        printed.contains("stopped before the last block"),
        "{printed}"
    );
    let results = work.path().join("results/app");
    let finished = trials(&results).len();
    assert!((20..120).contains(&finished), "{finished} of 160 trials");
    // The directory of a run with a fixed length takes more blocks, and its intervals become those of a run that was looked at.
    fs::remove_dir_all(work.path().join("results")).unwrap();
    let fixed = compare(work.path(), &program(10), &program(20), &[]);
    assert!(
        matches!(fixed.status.code(), Some(0 | 3)),
        "{}",
        shown(&fixed)
    );
    let more = |blocks: &str| {
        let mut command = vtax(&work.path().join("state"));
        command.current_dir(work.path()).args([
            "run",
            "--results",
            "results/app",
            "--more",
            blocks,
        ]);
        command.arg("results/app/plan.toml").output().unwrap()
    };
    let added = more("2");
    assert!(
        matches!(added.status.code(), Some(0 | 3)),
        "{}",
        shown(&added)
    );
    assert_eq!(trials(&results).len(), 28);
    let printed = text(&added.stdout);
    let printed: Vec<&str> = printed.split_whitespace().collect();
    assert!(
        printed.join(" ").contains("hold at every look"),
        "{printed:?}"
    );
}

#[test]
fn what_a_run_could_not_judge_or_write_is_refused_before_it_begins() {
    let work = tempfile::tempdir().unwrap();
    for (more, part) in [
        (
            &["--fail-on", "cpu.per_work of newer > +3%"][..],
            "compared are: container, native, new",
        ),
        (
            &["--summary", "no/such/directory/s.md"],
            "no/such/directory",
        ),
        (
            &["--until", "cpu.per_work of newer ± 2%"],
            "no treatment of this name",
        ),
    ] {
        let ended = compare(work.path(), &program(1), &program(2), more);
        let printed = shown(&ended);
        assert!(
            !ended.status.success() && printed.contains(part),
            "{more:?}: {printed}"
        );
        assert!(!work.path().join("results").exists(), "{more:?}: {printed}");
    }
    let mut plain = vtax(&work.path().join("state"));
    plain
        .current_dir(work.path())
        .args(["run", "--platform", "native"]);
    let ended = plain
        .args(["--fail-on", "cpu.per_work > +3%", "--", "true"])
        .output()
        .unwrap();
    assert!(shown(&ended).contains("give variants"), "{}", shown(&ended));
    assert_eq!(ended.status.code(), Some(2), "{}", shown(&ended));
}

/// The shell lines of a workflow: the blocks and lists of `run` and `script`.
fn script(workflow: &str) -> String {
    let mut lines = Vec::new();
    let mut within: Option<usize> = None;
    for line in workflow.lines() {
        let indent = line.len() - line.trim_start().len();
        let line = line.trim_start();
        let key = line.trim_start_matches("- ");
        if let Some(command) = key.strip_prefix("run: ").filter(|rest| *rest != "|") {
            lines.push(command.to_owned());
            within = None;
        } else if key == "run: |" || key == "script:" {
            within = Some(indent);
        } else if within.is_some_and(|outer| indent > outer) {
            match line.strip_prefix("- ") {
                Some(command) => lines.push(command.to_owned()),
                // A list item of YAML goes on in the next line; a block of a shell ends its lines with a backslash.
                None if lines.last().is_some_and(|last| last.ends_with('\\'))
                    || workflow.contains("run: |") =>
                {
                    lines.push(line.to_owned())
                }
                None => {
                    let last = lines.pop().unwrap();
                    lines.push(format!("{last} {line}"));
                }
            }
        } else {
            within = None;
        }
    }
    lines.join("\n")
}

#[test(needs = [can_run_trials(), test_all("runs two pipelines, 30 s")])]
fn the_workflows_of_two_forges_compare_both_revisions_and_fail_for_the_dearer_one() {
    let work = tempfile::tempdir().unwrap();
    let _host = the_host();
    let project = work.path().join("project");
    fs::create_dir(&project).unwrap();
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command
            .current_dir(&project)
            .args(["-c", "user.name=a", "-c", "user.email=a@b"]);
        let ended = command.args(arguments).output().unwrap();
        assert!(ended.status.success(), "{}", shown(&ended));
        text(&ended.stdout).trim().to_owned()
    };
    git(&["init", "--quiet"]);
    fs::write(
        project.join("Makefile"),
        "app: app.sh\n\tcp app.sh app\n\tchmod +x app\n",
    )
    .unwrap();
    let mut revisions = Vec::new();
    for thousands in [60, 150] {
        fs::write(project.join("app.sh"), program(thousands)).unwrap();
        git(&["add", "."]);
        git(&["commit", "--quiet", "-m", "a version"]);
        revisions.push(git(&["rev-parse", "HEAD"]));
    }
    for (name, prepare) in [
        (
            "github.yml",
            "git clone --quiet project base; git -C base checkout --quiet $BASE; git clone --quiet project new; ",
        ),
        ("gitlab.yml", "cd project; "),
    ] {
        let file = vtax_testkit::workspace::root()
            .join("contrib/pipelines")
            .join(name);
        let script = script(&fs::read_to_string(file).unwrap());
        assert!(
            script.contains("--variant base=base/app --variant new="),
            "{script}"
        );
        // Fewer runs of a shorter program, and no set-user-ID program.
        let script = script.replace("--runs 20", "--runs 5").replace("sudo ", "");
        let path = Path::new(env!("CARGO_BIN_EXE_vtax")).parent().unwrap();
        let path = format!("{}:{}", path.display(), std::env::var("PATH").unwrap());
        let ended = Command::new("sh")
            .args(["-ec", &format!("{prepare}{script}")])
            .current_dir(work.path())
            .env("PATH", path)
            .env("BASE", &revisions[0])
            .env("CI_MERGE_REQUEST_DIFF_BASE_SHA", &revisions[0])
            .env("GITHUB_STEP_SUMMARY", work.path().join("project/cost.md"))
            .env("VTAX_STATE_DIR", work.path().join("state"))
            .output()
            .unwrap();
        assert_eq!(
            ended.status.code(),
            Some(4),
            "{name}: {script}\n{}",
            shown(&ended)
        );
        let summary = project.join("cost.md");
        assert!(
            fs::read_to_string(&summary).unwrap().contains("| missed |"),
            "{name}"
        );
        fs::remove_file(summary).unwrap();
    }
}
