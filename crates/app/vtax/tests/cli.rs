// SPDX-License-Identifier: Apache-2.0
//! The behaviour that all commands share: closed pipes, JSON, exit codes, numbers in words.

use crate::support::{can_run_trials, finish, in_order, vtax};
#[allow(dead_code, reason = "the state of the host is for tests of runs")]
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const PLAN: &str = r#"
name = "single"
description = "one trial"
repetitions = 1
idle = "0s"
warmup = "100ms"
duration = "300ms"
sample_hz = 10
meters = ["none"]

# Trials beside other work are suspect, and these tests count them.
[again]
share = 0

[[platform]]
kind = "native"
[[workload]]
kind = "idle"
"#;

const CLIMBS: &str = "name = \"climbs\"\nrepetitions = 2\n[density]\nsample_ms = 100\n\
    [[platform]]\nkind = \"thread\"\nmaximum = 1\n\
    [[platform]]\nkind = \"firecracker\"\nmaximum = 30\nif_present = true\n";

const SIGPIPE: i32 = 13;

/// A directory for state, with plans and an empty cache.
pub fn work() -> tempfile::TempDir {
    let work = tempfile::tempdir().unwrap();
    fs::write(work.path().join("plan.toml"), PLAN).unwrap();
    fs::write(work.path().join("climbs.toml"), CLIMBS).unwrap();
    let sector = [&[0xF4_u8; 510][..], &[0x55, 0xAA]].concat();
    fs::write(work.path().join("sector.img"), sector).unwrap();
    work
}

/// `vtax ARGUMENTS` in a work directory, with its cache.
pub fn command(work: &Path, arguments: &[&str]) -> Command {
    let mut command = vtax(&work.join("state"));
    command
        .args(arguments)
        .current_dir(work)
        .env("VTAX_CACHE_DIR", work.join("cache"));
    command
}

/// Runs a command with standard output, or also standard error, as a pipe without a reader.
fn unread(mut command: Command, also_stderr: bool) -> Output {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    command.stdout(writer.try_clone().unwrap());
    if also_stderr {
        command.stderr(writer);
    } else {
        command.stderr(Stdio::piped());
    }
    command.spawn().unwrap().wait_with_output().unwrap()
}

fn ended_quietly(output: &Output, what: &str) {
    let quiet = in_order(output.status) || output.status.signal() == Some(SIGPIPE);
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(
        quiet && !printed.contains("panicked") && !printed.contains("roken pipe"),
        "{what}: {}: {printed}",
        output.status
    );
}

/// How a command is tried with an output that takes nothing.
enum Trial {
    /// Command lines that print; RESULTS is a directory of results.
    Lines(&'static [&'static str]),
    /// The reason why the test does not run it.
    NotRun(&'static str),
}
use Trial::{Lines, NotRun};

/// Every visible command of the parser, with its cheapest arguments that print.
const COMMANDS: &[(&str, Trial)] = &[
    (
        "",
        Lines(&[
            "",
            "--help",
            "--version",
            "help exit-status",
            "help plan check",
        ]),
    ),
    ("doctor", Lines(&["doctor", "doctor --json"])),
    (
        "explain",
        Lines(&["explain cpu.per_work", "explain link.mtu --json"]),
    ),
    (
        "plan check",
        Lines(&[
            "plan check plan.toml",
            "plan check plan.toml --json",
            "plan check climbs.toml",
        ]),
    ),
    ("plan new", Lines(&["plan new --for command"])),
    ("plan list", Lines(&["plan list", "plan list --json"])),
    ("plan show", Lines(&["plan show network-tax"])),
    (
        "plan keys",
        Lines(&["plan keys", "plan keys mtu", "plan keys --json"]),
    ),
    (
        "run",
        Lines(&["run plan.toml --dry-run", "run plan.toml --dry-run --json"]),
    ),
    ("merge", Lines(&["merge RESULTS --results merged"])),
    (
        "image build",
        NotRun("it prints once the image is built, which takes minutes"),
    ),
    (
        "report",
        Lines(&[
            "report RESULTS",
            "report --json RESULTS",
            "report --figures svg RESULTS",
        ]),
    ),
    (
        "compare",
        Lines(&[
            "compare RESULTS RESULTS",
            "compare --json RESULTS RESULTS",
            "compare --format md RESULTS RESULTS",
        ]),
    ),
    (
        "history",
        Lines(&["history RESULTS RESULTS", "history --json RESULTS RESULTS"]),
    ),
    (
        "survey",
        Lines(&["survey RESULTS", "survey --json RESULTS"]),
    ),
    (
        "export",
        Lines(&[
            "export RESULTS",
            "export RESULTS samples",
            "export RESULTS comparisons",
        ]),
    ),
    ("atlas", Lines(&["atlas"])),
    (
        "top",
        Lines(&[
            "top --count 1 --method counted --interval 100ms",
            "top --count 1 --json --method counted --interval 100ms",
        ]),
    ),
    (
        "charge",
        Lines(&[
            "charge --json --method counted --interval 100ms --count 2",
            "charge --method counted --interval 100ms --count 2",
        ]),
    ),
    ("record", NotRun("it prints nothing")),
    (
        "advise",
        NotRun("it needs a recording, or lines of `vtax top`"),
    ),
    ("bill", NotRun("it needs a recording")),
    (
        "cap",
        NotRun("it prints a line for each guest, and this host may have none"),
    ),
    ("exporter", NotRun("it serves, and prints nothing")),
    ("share", NotRun("it prints in a guest")),
    ("web", NotRun("it serves; its address is on standard error")),
    ("meter list", Lines(&["meter list", "meter list --json"])),
    (
        "meter calibrate",
        NotRun("it prints once the model is fitted, which takes minutes"),
    ),
    (
        "testbed build",
        NotRun("it prints once the image is built, which takes minutes"),
    ),
    (
        "testbed shell",
        NotRun("its output is the console of a host"),
    ),
    (
        "testbed list",
        Lines(&["testbed list", "testbed list --json"]),
    ),
    ("testbed rm", Lines(&["testbed rm kvm"])),
    ("testbed cost", Lines(&["testbed cost --list"])),
    ("testbed guard", NotRun("it prints once its plan has run")),
    (
        "mvm build",
        Lines(&["mvm build sector.img --output out.img"]),
    ),
    (
        "mvm run",
        NotRun("it serves; its lines are lost where nobody reads them"),
    ),
    ("nic", Lines(&["nic --print-capabilities"])),
    ("nic ctl list", NotRun("it needs a running vtax nic")),
    ("nic ctl stats", NotRun("it needs a running vtax nic")),
    ("nic ctl watch", NotRun("it needs a running vtax nic")),
    ("nic ctl set", NotRun("it needs a running vtax nic")),
    (
        "nic ctl clear-override",
        NotRun("it needs a running vtax nic"),
    ),
    ("nic top", NotRun("it needs a running vtax nic")),
    ("density", NotRun("it prints once its climbs have ended")),
    ("accuracy run", NotRun("it prints once its study has ended")),
    ("accuracy table", NotRun("it prints the results of a study")),
    ("restore", Lines(&["restore", "restore --json"])),
];

/// The lines of a help below a heading, up to the next empty line.
fn names_below(help: &str, heading: impl Fn(&str) -> bool) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_below = false;
    for line in help.lines() {
        is_below = heading(line) || (is_below && !line.is_empty());
        let name = line
            .strip_prefix("  ")
            .filter(|rest| is_below && !rest.starts_with(' '));
        names.extend(
            name.and_then(|rest| rest.split_whitespace().next())
                .map(str::to_owned),
        );
    }
    names
}

/// Every visible command of the parser, by its help.
fn commands(work: &Path) -> BTreeSet<String> {
    fn add(work: &Path, path: &str, found: &mut BTreeSet<String>) {
        let words: Vec<&str> = path.split_whitespace().chain(["--help"]).collect();
        let output = finish(&mut command(work, &words), true);
        let help = String::from_utf8(output.stdout).unwrap();
        let below = match path {
            "" => names_below(&help, |line| {
                !line.is_empty()
                    && !line.starts_with(' ')
                    && !line.contains("  ")
                    && !line.starts_with("vtax ")
                    && !line.ends_with('.')
                    && !line.starts_with("Usage")
            }),
            _ => names_below(&help, |line| line == "Commands:"),
        };
        let mut usage = help.lines().filter(|line| line.starts_with("Usage: "));
        let needs_command = usage.any(|line| line.ends_with(" <COMMAND>"));
        let is_group = needs_command && !below.is_empty() && !path.is_empty();
        if !is_group {
            found.insert(path.to_owned());
        }
        for name in below {
            add(work, format!("{path} {name}").trim_start(), found);
        }
    }
    let mut found = BTreeSet::new();
    add(work, "", &mut found);
    found
}

#[test]
fn every_command_of_the_parser_is_tried_with_outputs_that_take_nothing() {
    let work = work();
    let listed: BTreeSet<String> = COMMANDS
        .iter()
        .map(|(path, _)| (*path).to_owned())
        .collect();
    assert_eq!(commands(work.path()), listed);
    let reasons = COMMANDS.iter().filter_map(|(_, trial)| match trial {
        Lines(_) => None,
        NotRun(reason) => Some(*reason),
    });
    assert!(reasons.into_iter().all(|reason| !reason.is_empty()));
}

/// The command lines of [`COMMANDS`], and the help of each command.
fn lines() -> Vec<String> {
    let mut all = Vec::new();
    for (path, trial) in COMMANDS {
        all.push(format!("{path} --help").trim_start().to_owned());
        if let Lines(lines) = trial {
            all.extend(lines.iter().map(|line| (*line).to_owned()));
        }
    }
    all
}

#[test]
fn commands_end_quietly_when_their_reader_goes() {
    let work = work();
    let results = finished_results(work.path());
    for line in lines() {
        let words: Vec<&str> = line
            .split_whitespace()
            .map(|word| if word == "RESULTS" { &results } else { word })
            .collect();
        ended_quietly(&unread(command(work.path(), &words), false), &line);
    }
}

/// A writable copy of committed results; returns its path.
pub fn finished_results(work: &Path) -> String {
    let kept = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../show/report/tests/data/format-1"
    );
    let results = work.join("finished");
    copy(Path::new(kept), &results);
    results.to_str().unwrap().to_owned()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(&from, &to).unwrap();
        }
    }
}

/// Runs a command with standard output on a device that accepts no data, as on a full disk.
fn full(mut command: Command) -> Output {
    let full = fs::OpenOptions::new().write(true).open("/dev/full");
    command.stdout(full.unwrap()).stderr(Stdio::piped());
    command.spawn().unwrap().wait_with_output().unwrap()
}

/// The deviation from the right end of a command whose output was refused; `None` where there is none.
fn unrefused(output: &Output) -> Option<String> {
    let printed = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = printed
        .lines()
        .filter(|line| line.contains("No space left"))
        .collect();
    // The error contains the failed operation, not the kernel's message alone.
    let is_told = matches!(lines.as_slice(), [line] if line.starts_with("vtax: ") && !line.starts_with("vtax: No space"));
    let ends = output.status.code() == Some(1) && !printed.contains("panicked");
    (!is_told || !ends).then(|| format!("{}: {printed}", output.status))
}

#[test]
fn a_full_output_device_is_an_error_of_every_command_that_prints() {
    let work = work();
    let results = finished_results(work.path());
    let mut wrong = Vec::new();
    for line in lines() {
        let words: Vec<&str> = line
            .split_whitespace()
            .map(|word| if word == "RESULTS" { &results } else { word })
            .collect();
        if let Some(how) = unrefused(&full(command(work.path(), &words))) {
            wrong.push(format!("{line}: {how}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_file_that_a_full_disk_refuses_is_named() {
    let work = work();
    let results = finished_results(work.path());
    for of in ["trials", "comparisons"] {
        let words = ["export", &results, of, "--output", "/dev/full"];
        let output = finish(&mut command(work.path(), &words), false);
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(printed.contains("cannot write /dev/full: "), "{printed}");
    }
}

#[test]
fn a_page_whose_named_directory_of_plans_is_missing_does_not_start() {
    let work = work();
    let words = ["web", "--listen", "0", "--plans", "/nonexistent"];
    let output = command(work.path(), &words).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(printed.contains("cannot read /nonexistent"), "{printed}");
}

#[test(needs = [root()])]
fn another_user_gets_at_once_the_command_to_type_where_only_root_can() {
    let home = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(home.path(), Some(65534), Some(65534)).unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let results_of_root = finished_results(home.path());
    // The build's directory may be closed to other users.
    let program = home.path().join("vtax");
    fs::copy(env!("CARGO_BIN_EXE_vtax"), &program).unwrap();
    let run = |line: &str| {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
            .arg(&program)
            .args(line.split(' '))
            .env("HOME", home.path())
            .env_remove("VTAX_STATE_DIR")
            .current_dir(home.path());
        let output = command.output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), printed, shown)
    };
    // Root's results: the findings are shown, and only the page is not written.
    let (status, printed, shown) = run(&format!("report {results_of_root}"));
    assert_eq!(status, Some(5), "{printed}");
    assert!(
        printed.contains("sudo ") && printed.lines().count() == 1,
        "{printed}"
    );
    assert!(shown.contains("trials count"), "{shown}");
    for line in ["cap --each 1", "plan new --for ssh:localhost"] {
        let (status, printed, _) = run(line);
        assert_eq!(status, Some(5), "{line}: {printed}");
        let wanted = format!("sudo {} {line}   # ", program.display());
        assert!(printed.starts_with(&wanted), "{printed}");
        assert_eq!(printed.lines().count(), 1, "{printed}");
    }
    for line in ["cap --each 1 --count 1 --dry-run", "testbed list"] {
        let (status, printed, _) = run(line);
        assert_eq!(status, Some(0), "{line}: {printed}");
    }
}

#[test]
fn a_wrong_plan_is_reported_also_where_nobody_reads_the_output() {
    let work = work();
    let output = unread(command(work.path(), &["plan", "check", "none.toml"]), false);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("none.toml: no such file"));
}

#[test(needs = [can_run_trials()])]
fn a_run_ends_in_order_when_its_reader_goes() {
    let work = work();
    let start = |arguments: &[&str]| {
        let mut command = vtax(&work.path().join("state"));
        command
            .args(["run", "plan.toml", "--results", "results"])
            .args(arguments)
            .current_dir(work.path());
        command
    };
    ended_quietly(&unread(start(&["--json"]), false), "run --json");
    ended_quietly(&unread(start(&[]), true), "run");
    let journal = fs::read_to_string(work.path().join("state/journal.jsonl")).unwrap();
    assert_eq!(journal, "");
    // The run continues there, and counts one trial in the singular.
    let output = finish(&mut start(&[]), true);
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(printed.contains("single: 1 trial to run,"), "{printed}");

    let results = work.path().join("results");
    let results = results.to_str().unwrap();
    for line in [
        vec!["report", results],
        vec!["report", "--json", results],
        vec!["compare", results, results],
        vec!["export", results],
        vec!["export", results, "samples"],
    ] {
        ended_quietly(&unread(command(work.path(), &line), false), &line.join(" "));
    }
}

#[test]
fn json_is_one_document() {
    let work = work();
    let read = |line: &str| -> Value {
        let words: Vec<&str> = line.split(' ').collect();
        let output = finish(&mut command(work.path(), &words), true);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|cause| panic!("{line}: {cause}"))
    };
    let plan = read("plan check plan.toml --json");
    assert_eq!(plan["trials"], 1);
    assert_eq!(plan["treatments"][0]["platform"], "native");
    assert!(plan["expected_seconds"].as_f64().unwrap() > 0.4);

    let keys = read("plan keys --json");
    assert!(
        keys["settings"]
            .as_array()
            .unwrap()
            .iter()
            .any(|parameter| parameter["key"] == "link.mtu" && parameter["values"].is_string())
    );
    assert!(!keys["workloads"].as_array().unwrap().is_empty());

    let meters = read("meter list --json");
    for meter in meters.as_array().unwrap() {
        assert!(meter["name"].is_string());
        assert!(meter["absent"].is_string() || meter["domains"].is_array());
    }
    // The cache that root fills for all users may have some, and the package of the emulator has one.
    for found in read("testbed list --json").as_array().unwrap() {
        let path = found["path"].as_str().or(found["qemu"].as_str()).unwrap();
        let elsewhere = [vtax_guest::image::SHARED, vtax_testbed::emulator::PACKAGED];
        assert!(elsewhere.iter().any(|at| path.starts_with(at)), "{path}");
    }
    assert_eq!(read("restore --json"), Value::Array(Vec::new()));
}

#[test]
fn every_file_beside_the_plans_is_a_plan_or_distinguished() {
    let work = work();
    let plans = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../plans");
    let files = |folder: &Path| {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        let paths = entries.map(|entry| entry.path());
        let toml = paths.filter(|path| path.extension().is_some_and(|end| end == "toml"));
        toml.collect::<Vec<_>>()
    };
    let all = [files(&plans), files(&plans.join("papers"))].concat();
    assert!(all.len() > 20, "{all:?}");
    for path in all {
        let check = |quick: &[&str], works: bool| {
            let words = [&["plan", "check", path.to_str().unwrap()], quick].concat();
            finish(&mut command(work.path(), &words), works)
        };
        let other = match path.file_name().unwrap().to_str().unwrap() {
            "coarse-timers.toml"
            | "counted-cache.toml"
            | "hvm-host.toml"
            | "small-host.toml"
            | "two-processors-deterministic.toml"
            | "two-exact-processors.toml"
            | "xen-credit.toml"
            | "two-processors.toml" => Some("is no plan, it has the settings of a testbed"),
            "guard.counts.toml" => Some("is no plan, it has the counts that"),
            _ => None,
        };
        for quick in [&[][..], &["--quick"]] {
            let output = check(quick, other.is_none());
            let printed = String::from_utf8_lossy(&output.stderr);
            assert!(printed.contains(other.unwrap_or("")), "{printed}");
        }
        if other.is_none() {
            let json: Value = serde_json::from_slice(&check(&["--json"], true).stdout).unwrap();
            assert!(json["trials"].as_u64().unwrap() > 0, "{json}");
        }
    }
}

#[test]
fn the_plan_with_every_workload_has_every_workload() {
    let work = work();
    let kinds = |words: &[&str], list: &str, key: &str| -> BTreeSet<String> {
        let output = finish(&mut command(work.path(), words), true);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        let kinds = json[list].as_array().unwrap().iter();
        kinds
            .map(|item| item[key].as_str().unwrap().to_owned())
            .collect()
    };
    let plan = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../plans/every-workload.toml"
    );
    assert_eq!(
        kinds(
            &["plan", "check", plan, "--json"],
            "treatments",
            "workload_kind"
        ),
        kinds(&["plan", "keys", "--json"], "workloads", "kind")
    );
}

#[test]
fn a_density_plan_is_checked_by_its_own_reader() {
    let work = work();
    let path = work.path().join("climbs.toml");
    let text = CLIMBS;
    fs::write(&path, text).unwrap();
    let check = || command(work.path(), &["plan", "check", "climbs.toml"]);
    let output = finish(&mut check(), true);
    let printed = String::from_utf8_lossy(&output.stdout);
    for line in [
        "  thread   up to 1 guest\n",
        "  firecracker   up to 30 guests, where it is installed\n",
        // 21 times 5 samples and 10 s at the top, four times.
        "2 treatments, 4 climbs, at least 1 min 22 s",
    ] {
        assert!(printed.contains(line), "{printed}");
    }
    let run = ["run", "climbs.toml", "--results", "results"];
    let output = finish(&mut command(work.path(), &run), false);
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(
        printed.contains("climbs.toml is a plan of climbs: `vtax density FILE` runs it"),
        "{printed}"
    );
    fs::write(&path, text.replace("sample_ms", "sample")).unwrap();
    let output = finish(&mut check(), false);
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(
        printed.contains("climbs.toml:4:1: [density] has no key `sample`"),
        "{printed}"
    );
}

#[test]
fn a_restored_change_is_reported_in_words_and_as_json_and_logged_where_that_is_asked_for() {
    let work = work();
    let scratch = work.path().join("vtax-scratch");
    for arguments in [&["restore"][..], &["restore", "--json"], &["restore", "-v"]] {
        fs::create_dir(&scratch).unwrap();
        fs::create_dir_all(work.path().join("state")).unwrap();
        let entry = serde_json::json!({"boot": "another", "change": "directory", "path": scratch});
        fs::write(
            work.path().join("state/journal.jsonl"),
            format!("{entry}\n"),
        )
        .unwrap();
        let mut restore = command(work.path(), arguments);
        let output = finish(restore.env_remove("RUST_LOG"), true);
        let printed = String::from_utf8_lossy(&output.stdout);
        let change = format!("the directory {}", scratch.display());
        assert!(printed.contains(&change), "{printed}");
        assert_eq!(
            printed.contains('{'),
            arguments.contains(&"--json"),
            "{printed}"
        );
        assert!(!scratch.exists());
        let log = String::from_utf8_lossy(&output.stderr);
        if arguments.contains(&"-v") {
            let lines: Vec<&str> = log.lines().collect();
            assert_eq!(lines.len(), 2, "{log}");
            assert!(lines[0].contains(" WARN vtax_host::journal: an earlier vtax was cut off"));
            assert!(lines[1].ends_with(&format!(" INFO vtax_host::journal: restored: {change}")));
        } else {
            assert_eq!(log, "");
        }
    }
}

#[test]
fn exit_codes_are_those_of_the_help() {
    let work = work();
    let code = |arguments: &[&str]| {
        command(work.path(), arguments)
            .output()
            .unwrap()
            .status
            .code()
    };
    assert_eq!(code(&["plan", "check", "plan.toml"]), Some(0));
    assert_eq!(code(&["plan", "check", "none.toml"]), Some(1));
    assert_eq!(code(&["plan", "chekc", "plan.toml"]), Some(2));
    assert_eq!(code(&["export", "results", "--format", "parquet"]), Some(2));
    assert_eq!(code(&["density"]), Some(2));

    let results = finished_results(work.path());
    let merge = |into: &str| code(&["merge", &results, "--results", into]);
    assert_eq!(merge("merged"), Some(0));
    for trial in fs::read_dir(work.path().join("finished/trials")).unwrap() {
        let path = trial.unwrap().path().join("trial.json");
        let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        record["suspect"] = serde_json::json!(["the clock was set"]);
        fs::write(&path, record.to_string()).unwrap();
    }
    assert_eq!(merge("suspect"), Some(3));

    let topic = |name: &str| {
        let output = finish(&mut command(work.path(), &["help", name]), true);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let help = topic("exit-status");
    assert!(help.contains("Exit status:\n  0 "), "{help}");
    let help = topic("environment");
    for variable in [
        "VTAX_STATE_DIR",
        "VTAX_CACHE_DIR",
        vtax_host::meters::WALL_METER,
        vtax_host::meters::WALL_VOLTS,
        vtax_host::meters::POWER_MODEL,
    ] {
        assert!(help.contains(variable), "{variable} is not in the help");
    }
}

#[test]
fn without_a_command_the_next_steps_on_this_host_are_printed() {
    let work = work();
    let output = finish(&mut command(work.path(), &[]), true);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("\n  vtax top\n"), "{printed}");
}

#[test]
fn keys_are_filtered_by_a_text() {
    let work = work();
    let output = finish(&mut command(work.path(), &["plan", "keys", "mtu"]), true);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        printed.contains("link.mtu") && printed.lines().count() < 30,
        "{printed}"
    );
    let output = finish(
        &mut command(work.path(), &["plan", "keys", "no-such-key"]),
        false,
    );
    assert!(String::from_utf8_lossy(&output.stderr).contains("`no-such-key`"));
}

/// The stored numbers, those of other cost models too, are computed again from the archived trials.
#[test]
fn the_numbers_of_the_atlas_follow_from_the_archived_trials() {
    let (work, root) = (
        work(),
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.."),
    );
    let path = |below: &str| root.join(below).display().to_string();
    let (runs, plans) = (path("papers/runs"), path("plans"));
    let words = [
        "atlas",
        "--results-root",
        &runs,
        "--plans",
        &plans,
        "--keep",
        "again",
    ];
    let made = command(work.path(), &words).output().unwrap();
    let reported = String::from_utf8(made.stderr).unwrap();
    assert!(made.status.success(), "{reported}");
    assert!(!reported.contains("left out"), "{reported}");
    for file in fs::read_dir(root.join("papers/ours")).unwrap() {
        let file = file.unwrap();
        let again = work.path().join("again/ours").join(file.file_name());
        let (stored, again) = (fs::read(file.path()).unwrap(), fs::read(again).unwrap());
        assert!(stored == again, "{} differs", file.path().display());
    }
}

#[test]
fn an_atlas_whose_plans_fail_names_them_and_shows_the_rest() {
    let work = work();
    let atlas = |arguments: &[&str]| {
        let all: Vec<&str> = ["atlas"].iter().chain(arguments).copied().collect();
        command(work.path(), &all).output().unwrap()
    };
    // A file goes before the plan of vtax with its path, and these are no plans.
    let plans = work.path().join("plans/papers");
    fs::create_dir_all(&plans).unwrap();
    for name in ["accuracy-kvm", "accuracy-xen", "guests-xen"] {
        fs::write(plans.join(format!("cherkasova-{name}.toml")), "no plan").unwrap();
    }
    let made = atlas(&["cherkasova/fig-3", "--run"]);
    assert_eq!(made.status.code(), Some(1));
    let reported = String::from_utf8(made.stderr).unwrap();
    assert!(
        reported.contains("3 plans did not run to the end"),
        "{reported}"
    );
    for plan in ["cherkasova-accuracy-kvm", "cherkasova-accuracy-xen"] {
        assert!(
            reported.contains(&format!("vtax accuracy run plans/papers/{plan}.toml")),
            "{reported}"
        );
    }
    let page = fs::read_to_string(work.path().join("atlas.html")).unwrap();
    assert!(page.contains("id=\"cherkasova-fig-3\"") && !page.contains("id=\"shea-fig-1\""));

    let made = atlas(&["--output", "all.html"]);
    assert!(made.status.success());
    let printed = String::from_utf8(made.stdout).unwrap();
    assert!(
        printed.contains("that we could judge") && printed.contains("| not shown |"),
        "{printed}"
    );
    assert!(!work.path().join("atlas-results").exists());

    let unknown = atlas(&["shae"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("there are shea, rossi"));
}
