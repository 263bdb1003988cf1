// SPDX-License-Identifier: Apache-2.0
//! Plans run by the command: finished, resumed, sharded, on another host, twice at once, and with errors.

use crate::support::{HostState, can_run_trials, finish, recorded, run, the_host, vtax};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use vtax_results::{ResultsDir, TrialOutcome};

const PLAN: &str = r#"
name = "small"
repetitions = 2
warmup = "100ms"
duration = "300ms"
sample_hz = 10

# Trials beside other work are suspect, and these tests count them.
[again]
share = 0

[[platform]]
kind = "native"
[[platform]]
kind = "container"
[[workload]]
kind = "idle"
"#;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn trials(results: &Path) -> usize {
    let entries = fs::read_dir(results.join("trials"))
        .into_iter()
        .flatten()
        .flatten();
    entries
        .filter(|entry| entry.path().join("trial.json").exists())
        .count()
}

/// A directory with the plan, and the lock of tests that need the host alone.
fn prepared(plan: &str) -> (tempfile::TempDir, File) {
    let work = tempfile::tempdir().unwrap();
    fs::write(work.path().join("plan.toml"), plan).unwrap();
    (work, the_host())
}

#[test(needs = [test_all("takes 4 s"), can_run_trials()])]
fn a_finished_run_says_so_and_changes_nothing() {
    let (work, _host) = prepared(PLAN);
    let state = work.path().join("state");
    let results = work.path().join("results");
    let run = || run(&state, &work.path().join("plan.toml"), &results);
    let before = HostState::read();
    let first = finish(&mut run(), true);
    assert!(text(&first.stdout).contains("report.html"), "{first:?}");
    assert_eq!(trials(&results), 4);
    let record = fs::read(results.join("trials/0000/trial.json")).unwrap();
    let second = finish(&mut run(), true);
    assert!(text(&second.stderr).contains("finished"), "{second:?}");
    assert_eq!(
        fs::read(results.join("trials/0000/trial.json")).unwrap(),
        record
    );
    before.assert_nothing_new("after the run");
}

#[test(needs = [test_all("takes 14 s"), can_run_trials()])]
fn another_plan_is_refused_in_the_same_directory() {
    let (work, _host) = prepared(PLAN);
    let results = work.path().join("results");
    let state = work.path().join("state");
    let run = |plan: &Path, success| finish(&mut run(&state, plan, &results), success);
    run(&work.path().join("plan.toml"), true);
    let other = work.path().join("other.toml");
    fs::write(&other, PLAN.replace("repetitions = 2", "repetitions = 3")).unwrap();
    let refused = run(&other, false);
    assert!(
        text(&refused.stderr).contains("holds a run of another plan"),
        "{refused:?}"
    );
}

#[test(needs = [test_all("takes 7 s"), can_run_trials()])]
fn shards_fill_their_own_directories_and_are_reported_together() {
    let (work, _host) = prepared(PLAN);
    let state = work.path().join("state");
    let shard = |i: u32| {
        let results = work.path().join(format!("shard{i}"));
        let mut command = run(&state, &work.path().join("plan.toml"), &results);
        finish(command.args(["--shard", &format!("{i}/2")]), true);
        assert_eq!(trials(&results), 2);
        results
    };
    let (first, second) = (shard(1), shard(2));
    let both = finish(
        vtax(&state)
            .arg("report")
            .arg("--json")
            .arg(&first)
            .arg(&second),
        true,
    );
    let analysis: serde_json::Value = serde_json::from_slice(&both.stdout).unwrap();
    // Whether trials count depends on the other load of this host.
    for treatment in analysis["treatments"].as_array().unwrap() {
        let trials = ["counted", "suspect"].map(|kind| treatment["counts"][kind].as_u64().unwrap());
        assert_eq!(trials.iter().sum::<u64>(), 2, "{analysis}");
    }
}

#[test(needs = [root(), brought_by_test_all("tcsh")])]
fn a_host_is_looked_at_whatever_its_login_shell_is_and_prints() {
    let work = tempfile::tempdir().unwrap();
    let bin = work.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let plan = |shell: &str| {
        let script = format!(
            "#!/bin/sh\ncase \" $* \" in *' -G '*) echo hostname 127.0.0.1; exit;; esac\n\
             while [ \"$1\" != -- ]; do shift; done\nshift 2\n\
             echo 'Welcome to \"there\"'\nexec {shell} \"$*\"\n"
        );
        fs::write(bin.join("ssh"), script).unwrap();
        fs::set_permissions(bin.join("ssh"), fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = vtax(&work.path().join("state"));
        command
            .args(["plan", "new", "--for", "ssh:there"])
            .env("PATH", &path);
        command.output().unwrap()
    };
    for shell in ["sh -c", "tcsh -fc"] {
        let output = plan(shell);
        assert!(output.status.success(), "{shell}: {}", text(&output.stderr));
        assert!(text(&output.stdout).contains("kind = \"ssh\""), "{shell}");
    }
    let output = plan("echo");
    let said = text(&output.stderr);
    assert!(
        !output.status.success() && said.contains("did not run sh"),
        "{said}"
    );
    assert!(said.lines().count() <= 4, "{said}");
}

#[test(needs = [test_all("takes 7 s"), can_run_trials()])]
fn the_same_plan_runs_on_another_host_through_ssh() {
    let (work, _host) = prepared(PLAN);
    // A stand-in for ssh that reaches this host: it drops the options and the host, and executes the line.
    let bin = work.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let script = "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\nshift 2\nexec sh -c \"$*\"\n";
    fs::write(bin.join("ssh"), script).unwrap();
    fs::set_permissions(bin.join("ssh"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());

    let results = work.path().join("results");
    let (state, plan) = (work.path().join("state"), work.path().join("plan.toml"));
    let mut command = run(&state, &plan, &results);
    finish(
        command.env("PATH", path).args(["--place", "ssh:elsewhere"]),
        true,
    );
    assert_eq!(trials(&results), 4);
    let run: serde_json::Value =
        serde_json::from_slice(&fs::read(results.join("run.json")).unwrap()).unwrap();
    assert_eq!(run["place"], "ssh:elsewhere");
    assert!(results.join("report.html").exists());
}

#[test(needs = [test_all("takes 4 s"), can_run_trials()])]
fn two_labs_at_once_are_refused_and_an_interrupt_restores_the_host() {
    let (work, _host) = prepared(&PLAN.replace("\"300ms\"", "\"20s\""));
    let state = work.path().join("state");
    let before = HostState::read();
    let plan = work.path().join("plan.toml");
    let start = |results: &str| run(&state, &plan, &work.path().join(results));
    let mut first = start("a")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    while !work.path().join("a/run.json").exists() {
        assert!(Instant::now() < deadline, "the first run did not start");
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_millis(500));
    let refused = finish(&mut start("b"), false);
    assert!(
        text(&refused.stderr).contains("another vtax run is on this host"),
        "{refused:?}"
    );

    let pid = rustix::process::Pid::from_child(&first);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(!first.wait().unwrap().success());
    before.assert_nothing_new("after the run");
}

#[test(needs = [can_run_trials(), brought_by_test_all("apache2")])]
fn a_target_that_answers_long_after_its_window_outlasts_its_neighbours() {
    let plan = r#"
name = "overloaded"
repetitions = 1
idle = "0s"
warmup = "200ms"
duration = "1s"
[again]
share = 0
[settings]
target.cpu_cap = 0.05
[[neighbour]]
name = "beside"
kind = "http-rate"
rate = 50
[[platform]]
kind = "native"
[[workload]]
kind = "http-rate"
arrival = "constant"
rate = 6000
"#;
    let (work, _host) = prepared(plan);
    let results = work.path().join("results");
    let mut command = vtax(&work.path().join("state"));
    command.arg("run").arg(work.path().join("plan.toml"));
    finish(command.arg("--results").arg(&results), true);
    let printed = fs::read(results.join("trials/0000/workload.json")).unwrap();
    let printed: serde_json::Value = serde_json::from_slice(&printed).unwrap();
    let last = printed["last_answer"].as_f64().unwrap();
    // The neighbour's load lasts for 1.12 s.
    assert!(last > 2.0, "it was no overload: {last} s");
    let results = ResultsDir::open(&results).unwrap();
    let trial = results.trials().next().unwrap().unwrap();
    assert_eq!(trial.outcome, TrialOutcome::Complete);
}

#[test(needs = [can_run_trials(), brought_by_test_all("apache2")])]
fn a_ramp_in_one_process_has_the_same_record_as_a_load_started_for_each_level() {
    // Alone, the generator of http-rate runs the ramp in one process; beside a twin, each level starts a process.
    let plan = r#"
name = "ramps"
repetitions = 1
idle = "0s"
warmup = "500ms"
sample_hz = 10

# Trials beside other work are suspect, and these tests count them.
[again]
share = 0

[[neighbour]]
name = "twin"
same_as = "target"
[factors]
neighbours = [[], ["twin"]]

[[platform]]
kind = "native"
[[workload]]
kind = "http-rate"
arrival = "constant"
profile = { ramp = { from = 50, to = 800, times = 2, every = "1s", beyond = "500ms" } }
objective = "throughput <= 1Mbit/s"
"#;
    let (work, _host) = prepared(plan);
    let before = HostState::read();
    let results = work.path().join("results");
    let mut command = vtax(&work.path().join("state"));
    command.arg("run").arg(work.path().join("plan.toml"));
    finish(command.arg("--results").arg(&results), true);
    before.assert_nothing_new("after the run");
    let phases = |trial: &str| {
        let path = results.join("trials").join(trial).join("trial.json");
        let record: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let mut ended = None;
        let phase = |phase: &serde_json::Value| {
            let [begin, end] = [0, 1].map(|mark| phase["window"][mark].as_u64().unwrap());
            // Each level is measured for three quarters of a second, after a quarter of a second to settle.
            assert!(
                (600..900).contains(&((end - begin) / 1_000_000)),
                "{phase:#}"
            );
            if let Some(ended) = ended.replace(end) {
                assert!(
                    (150..900).contains(&((begin - ended) / 1_000_000)),
                    "{phase:#}"
                );
            }
            let rate = phase["metrics"]["rate"]["value"].as_f64().unwrap();
            let level = phase["level"]["value"].as_f64().unwrap();
            assert!((rate - level).abs() < level / 10.0, "{phase:#}");
            (phase["name"].to_string(), phase["kept"].as_bool(), level)
        };
        let phases = record["phases"].as_array().unwrap().iter();
        let phases: Vec<_> = phases.map(phase).collect();
        // The knee is the load that was offered at the last level that kept the objective.
        let kept = phases.iter().filter(|(_, kept, _)| *kept == Some(true));
        let last = kept.map(|(.., level)| *level).next_back();
        let knee = record["objective"]["knee"]["value"].as_f64();
        assert_eq!(knee.is_some(), last.is_some());
        for (knee, level) in knee.iter().zip(last) {
            assert!((knee - level).abs() < level / 10.0, "{knee} at {level}");
        }
        phases
    };
    // 200 misses the objective and is repeated; 400 follows, as the miss was less than half a second ago.
    let expected = [
        ("\"50.0 request/s\"", true),
        ("\"100 request/s\"", true),
        ("\"200 request/s\"", false),
        ("\"200 request/s, again\"", false),
        ("\"400 request/s\"", false),
    ];
    for trial in ["0000", "0001"] {
        let found = phases(trial);
        let names: Vec<_> = found.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, expected.map(|(name, _)| name), "{trial}");
        for ((name, kept, _), (_, expected)) in found.iter().zip(expected) {
            // A level at which the generator was late, as on a busy machine, is not judged.
            assert!(kept.is_none_or(|kept| kept == expected), "{trial}: {name}");
        }
    }
}

#[test(needs = [can_run_trials()])]
fn what_runs_to_completion_is_measured_from_its_begin_to_its_end_and_no_warm_up_with_it() {
    let plan = r#"
name = "work"
repetitions = 1
warmup = "3s"
duration = "300ms"
meters = ["none"]
[again]
share = 0

[[platform]]
kind = "native"
[[workload]]
kind = "cpu"
extent = "completion"
operations = 20
"#;
    let (work, _host) = prepared(plan);
    let results = work.path().join("results");
    let mut command = vtax(&work.path().join("state"));
    command.arg("run").arg(work.path().join("plan.toml"));
    finish(command.arg("--results").arg(&results), true);
    let record = fs::read(results.join("trials/0000/trial.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let [begin, end] = [0, 1].map(|mark| record["window"][mark].as_u64().unwrap());
    let window = (end - begin) as f64 / 1e9;
    let elapsed = record["metrics"]["elapsed"]["value"].as_f64().unwrap();
    assert!(
        (elapsed..elapsed + 2.0).contains(&window),
        "{window} s for {elapsed} s of work"
    );
}

#[test]
fn a_wrong_plan_is_refused_before_anything_is_touched() {
    let work = tempfile::tempdir().unwrap();
    let plan = work.path().join("plan.toml");
    fs::write(&plan, PLAN.replace("kind = \"idle\"", "kind = \"idel\"")).unwrap();
    let state = work.path().join("state");
    let refused = finish(&mut run(&state, &plan, &work.path().join("r")), false);
    let shown = text(&refused.stderr);
    assert!(
        shown.contains("plan.toml:") && shown.contains("did you mean `idle`?"),
        "{shown}"
    );
    assert!(!work.path().join("r").exists() && !state.exists());
}

#[test(needs = [can_run_trials()])]
fn a_directory_with_something_else_in_it_is_never_touched() {
    let (work, _host) = prepared(PLAN);
    let precious = work.path().join("precious");
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("thesis.txt"), "years of work").unwrap();
    let (state, plan) = (work.path().join("state"), work.path().join("plan.toml"));
    let refused = finish(&mut run(&state, &plan, &precious), false);
    assert!(
        text(&refused.stderr).contains("holds no run of vtax"),
        "{refused:?}"
    );
    assert_eq!(fs::read_dir(&precious).unwrap().count(), 1);
}

#[test(needs = [test_all("takes 21 s"), can_run_trials()])]
fn a_vm_behind_our_own_nic_passes_traffic_and_its_notifications_are_counted() {
    let plan = r#"
name = "nic"
repetitions = 1
idle = "0s"
warmup = "200ms"
duration = "1s"
sample_hz = 5
baseline = { nic.hold_us = 0 }
[factors]
nic.hold_us = [0, 1000]

# Trials beside other work are suspect, and these tests count them.
[again]
share = 0

[[platform]]
kind = "qemu"
nic.backend = "vtax"
[[workload]]
kind = "iperf3-receive"
rate_mbit = 50
"#;
    let (work, _host) = prepared(plan);
    let before = HostState::read();
    let (state, plan) = (work.path().join("state"), work.path().join("plan.toml"));
    let results = work.path().join("results");
    finish(&mut run(&state, &plan, &results), true);
    for trial in ["0000", "0001"] {
        let path = results.join("trials").join(trial).join("trial.json");
        let record: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        for metric in ["nic.calls.per_second", "nic.kicks.per_second"] {
            let rate = record["metrics"][metric]["value"].as_f64();
            assert!(rate.is_some_and(|rate| rate > 1.0), "{metric}: {rate:?}");
        }
        let command_line = record["environment"]["vm.command_line"].to_string();
        assert!(command_line.contains("vhost-user"), "{command_line}");
    }
    before.assert_nothing_new("after the run");
}

/// Two loads of iperf3.
const CARRIED: &str = r#"
name = "claims"
repetitions = 1
warmup = "1s"
duration = "1s"
meters = ["none"]
[again]
share = 0

[[platform]]
kind = "native"
[[workload]]
kind = "iperf3-receive"
name = "tcp"
rate_mbit = 10
[[workload]]
kind = "iperf3-udp"
name = "udp"
rate_mbit = 10
"#;

/// A stand-in for iperf3 whose client reports ten times the bytes.
const MORE: &str = r#"#!/bin/sh
case " $* " in
*" --client "*) /mnt/iperf3 "$@" | sed -E 's/("bytes":[[:space:]]*[1-9][0-9]*)/\10/' ;;
*) exec /mnt/iperf3 "$@" ;;
esac
"#;

/// Replaces iperf3 by `$1` for the command that follows, and for no other process of this machine.
const REPLACED: &str = r#"
real=$(command -v iperf3) && mount -t tmpfs tmpfs /mnt && cp "$real" /mnt/iperf3 &&
mount --bind "$1" "$real" && shift && exec "$@"
"#;

#[test(needs = [test_all("takes 14 s"), can_run_trials(), program("iperf3")])]
fn a_trial_whose_generator_claims_more_bytes_than_the_device_carried_is_suspect() {
    let (work, _host) = prepared(CARRIED);
    let at = |name: &str| work.path().join(name);
    for (name, script) in [
        ("honest", "#!/bin/sh\nexec /mnt/iperf3 \"$@\"\n"),
        ("more", MORE),
    ] {
        fs::write(at(name), script).unwrap();
        fs::set_permissions(at(name), fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", REPLACED, "sh"])
            .arg(at(name));
        command
            .arg(env!("CARGO_BIN_EXE_vtax"))
            .arg("run")
            .arg(at("plan.toml"));
        let results = at(&format!("{name}.results"));
        command.arg("--results").arg(&results);
        command.env("VTAX_STATE_DIR", at("state"));
        // The test ignores whether a trial counts: other programs on this machine make trials suspect too.
        let shown = text(&recorded(&mut command).output().unwrap().stderr);
        for trial in ["0000", "0001"] {
            let record = results.join("trials").join(trial).join("trial.json");
            let record = fs::read(record).expect(&shown);
            let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
            let reasons = record["suspect"].to_string();
            let contradicts = reasons.contains("the target's network device was handed");
            assert_eq!(contradicts, name == "more", "{name}: {reasons}");
        }
    }
}

/// A service of the image with its client, and a command in the target, as workloads.
const COMMANDS: &str = r#"
name = "commands"
repetitions = 1
warmup = "0s"
meters = ["none"]

[again]
share = 0

[[platform]]
kind = "container"
[[platform]]
kind = "qemu"
name = "vm"
vm.accel = "tcg"
vm.memory_mib = 256

[[workload]]
kind = "command"
name = "service"
serve = "iperf3 -s -p 5999"
ready = "tcp:5999"
load = "iperf3 -c {target} -p 5999 -t 1 -J"
work = { json = "/end/sum_received/bytes", unit = "B" }
[workload.metrics]
rate = { json = "/end/sum_received/bits_per_second", unit = "bit/s", better = "higher" }

[[workload]]
kind = "command"
name = "alone"
load = """sh -c 'printf "%s\n" "counted \\\"7\\\" of
8"'"""
work = { regex = 'counted "([0-9]+)"', unit = "op" }

[[workload]]
kind = "command"
name = "own"
load = "./own/count.sh 2"
files = ["./own"]
work = { regex = 'counted ([0-9]+)', unit = "op" }
"#;

/// Writes a directory with a script that counts the lines of a file beside it.
fn write_own_files(folder: &Path, lines: &str) {
    let own = folder.join("own");
    fs::create_dir_all(&own).unwrap();
    fs::write(own.join("lines"), lines).unwrap();
    let script = own.join("count.sh");
    let text = "#!/bin/sh\necho counted $(($1 + $(wc -l < own/lines)))\n";
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test(needs = [test_all("takes 40 s"), can_run_trials(), program("iperf3"), program("qemu-system-x86_64")])]
fn commands_run_in_a_container_and_in_an_emulated_vm() {
    let (work, _host) = prepared(COMMANDS);
    write_own_files(work.path(), "a\nb\nc\n");
    let results = work.path().join("results");
    let plan = work.path().join("plan.toml");
    let output = run(&work.path().join("state"), &plan, &results)
        .output()
        .unwrap();
    // On a busy host every trial may be suspect, which is a status of its own.
    assert!(matches!(output.status.code(), Some(0 | 3)), "{output:?}");
    let results = ResultsDir::open(&results).unwrap();
    let trials: Vec<_> = results.trials().map(Result::unwrap).collect();
    assert_eq!(trials.len(), 6);
    for trial in trials {
        let label = &trial.treatment.label;
        assert_eq!(trial.outcome, TrialOutcome::Complete, "{label}");
        let value = |name: &str| trial.metrics[name].quantity.value;
        match trial.treatment.workload.as_str() {
            "service" => assert!(value("own.rate") > 1e6, "{label}"),
            "own" => assert_eq!(trial.work.as_ref().unwrap().amount, 5.0, "{label}"),
            _ => assert_eq!(trial.work.as_ref().unwrap().amount, 7.0, "{label}"),
        }
    }
}

#[test(needs = [test_all("makes an image"), can_run_trials()])]
fn files_beside_a_plan_run_natively_and_in_a_container_and_their_content_is_part_of_the_plan() {
    let (work, _host) = prepared(
        "name = \"own\"\nrepetitions = 1\nwarmup = \"0s\"\nmeters = [\"none\"]\n[again]\nshare = 0\n\
         [[platform]]\nkind = \"native\"\n[[platform]]\nkind = \"container\"\n[[workload]]\nkind = \"command\"\n\
         load = \"./own/count.sh 2\"\nfiles = [\"own\"]\nwork = { regex = 'counted ([0-9]+)', unit = \"op\" }\n",
    );
    write_own_files(work.path(), "a\nb\nc\n");
    let results = work.path().join("results");
    let go = || {
        let (state, plan) = (work.path().join("state"), work.path().join("plan.toml"));
        run(&state, &plan, &results).output().unwrap()
    };
    let output = go();
    assert!(matches!(output.status.code(), Some(0 | 3)), "{output:?}");
    let digests: Vec<_> = ResultsDir::open(&results)
        .unwrap()
        .trials()
        .map(|trial| {
            let trial = trial.unwrap();
            assert_eq!(
                trial.outcome,
                TrialOutcome::Complete,
                "{}",
                trial.treatment.label
            );
            assert_eq!(trial.work.as_ref().unwrap().amount, 5.0);
            trial.environment["files.digest"].clone()
        })
        .collect();
    assert_eq!(digests.len(), 2);
    assert_eq!(digests[0], digests[1]);

    write_own_files(work.path(), "a\n");
    let changed = go();
    assert_eq!(changed.status.code(), Some(1), "{changed:?}");
    let err = text(&changed.stderr);
    assert!(err.contains("with the files that it had"), "{err}");

    fs::remove_dir_all(work.path().join("own")).unwrap();
    let missing = go();
    let err = text(&missing.stderr);
    assert!(
        err.contains("`files` has own") && err.contains("No such file"),
        "{err}"
    );
    assert_eq!(missing.status.code(), Some(1), "{missing:?}");
}

#[test(needs = [test_all("builds an image"), can_run_trials()])]
fn a_command_that_the_image_lacks_is_refused_before_the_first_trial_with_the_key_of_packages() {
    let plan = "name = \"lacks\"\n[[platform]]\nkind = \"native\"\n[[workload]]\nkind = \"command\"\n\
                name = \"mine\"\nload = \"no-such-program -x\"\n";
    let (work, _host) = prepared(plan);
    let results = work.path().join("results");
    let plan = work.path().join("plan.toml");
    let output = run(&work.path().join("state"), &plan, &results)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    let err = text(&output.stderr);
    assert!(
        err.contains("mine: the program `no-such-program` in the image of native"),
        "{err}"
    );
    assert!(err.contains("`packages`"), "{err}");
    assert_eq!(trials(&results), 0);
}
