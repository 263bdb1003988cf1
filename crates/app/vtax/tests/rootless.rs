// SPDX-License-Identifier: Apache-2.0
//! Runs of an ordinary user, without root.

use crate::support::work::{executable, text, trials, wait_in};
use crate::support::{HostState, can_run_trials, in_order, the_host};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;
use vtax_testkit::needs::Need;
use vtax_testkit::skip_in_part;

/// A user of this host without a name, a home and groups: nobody.
pub const USER: u32 = 65534;

/// Whether an ordinary user may make user namespaces here.
pub fn without_root() -> Need {
    let made = as_user()
        .args(["unshare", "--user", "--net", "true"])
        .output();
    let met = made.map_err(|cause| cause.to_string()).and_then(|output| {
        if output.status.success() {
            Ok(())
        } else {
            Err(format!(
                "needs user namespaces of ordinary users: {}",
                text(&output.stderr)
            ))
        }
    });
    Need::all([can_run_trials(), Need::from(met)])
}

/// A command line of the user; its program follows.
pub fn as_user() -> Command {
    as_the(USER)
}

/// A command line of a user.
fn as_the(user: u32) -> Command {
    let mut command = Command::new("setpriv");
    let (user, group) = (format!("--reuid={user}"), format!("--regid={user}"));
    command.args([&user, &group, "--clear-groups", "--"]);
    command
}

/// The options of `vtax run` for one trial on each platform in the files of this host.
pub fn one_trial(platforms: &str) -> [&str; 6] {
    ["--platform", platforms, "--runs", "1", "--image", "host"]
}

/// The home of the user, with vtax: the build's directory may be closed to other users.
pub struct Home(tempfile::TempDir, u32);

impl Home {
    pub fn new() -> Self {
        Self::of(USER)
    }

    /// The home of another user.
    pub fn of(user: u32) -> Self {
        let home = tempfile::tempdir().unwrap();
        chown(home.path(), Some(user), Some(user)).unwrap();
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::copy(env!("CARGO_BIN_EXE_vtax"), home.path().join("vtax")).unwrap();
        Self(home, user)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The command that records a service.
    fn recorder(&self, pid: &str) -> Command {
        let mut command = self.vtax();
        let words = ["--interval", "200ms", "-o", "recording"];
        command.args(["record", "--pid", pid]).args(words);
        command
    }

    pub fn program(&self, name: &str, script: &str) -> PathBuf {
        executable(&self.path().join(name), script)
    }

    pub fn vtax(&self) -> Command {
        let mut command = as_the(self.1);
        command
            .arg(self.path().join("vtax"))
            .env("HOME", self.path())
            .env_remove("VTAX_STATE_DIR")
            .env_remove("XDG_STATE_HOME")
            .current_dir(self.path());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        let output = self.vtax().arg("run").args(arguments).output().unwrap();
        assert!(in_order(output.status), "{}", text(&output.stderr));
        output
    }
}

#[test(needs = [without_root()])]
fn an_ordinary_user_measures_a_program_of_their_own_in_the_files_of_this_host() {
    let _host = the_host();
    let home = Home::new();
    home.program(
        "my",
        "#!/usr/bin/env sh\ni=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done\necho x > written\ncat here\n",
    );
    fs::write(home.path().join("here"), "one file\n").unwrap();
    let before = HostState::read();
    let output = home.run(&[
        "--platform",
        "native,container",
        "--runs",
        "2",
        "--",
        "./my",
    ]);
    let message = text(&output.stderr);
    assert!(
        message.contains("measured without root: soft interrupts"),
        "{message}"
    );
    assert!(
        message.contains("the command sees the files of this host"),
        "{message}"
    );
    let found = trials(&home.path().join("results/my"));
    assert_eq!(found.len(), 4);
    for trial in &found {
        let label = &trial.treatment.label;
        assert!(
            trial.environment["scope"].contains("without root"),
            "{label}"
        );
        let source = format!("host:{}", home.path().display());
        assert_eq!(trial.environment["image.source"], source, "{label}");
        // The loop takes a tenth of a second and more.
        let cpu = trial.metrics["cpu.per_work"].quantity.value;
        assert!((0.02..10.0).contains(&cpu), "{label}: {cpu}");
    }
    assert!(
        !home.path().join("written").exists(),
        "it went to the trial's layer"
    );
    let owner = fs::metadata(home.path().join("results/my/plan.toml"))
        .unwrap()
        .uid();
    assert_eq!(owner, USER);
    before.assert_nothing_new("after a run");
}

#[test(needs = [without_root()])]
fn a_killed_run_of_an_ordinary_user_leaves_nothing_and_the_next_one_runs() {
    let _host = the_host();
    let home = Home::new();
    home.program("my", "#!/bin/sh\nexec sleep 2.71828\n");
    let before = HostState::read();
    let line = [&one_trial("native")[..], &["--", "./my"]].concat();
    let mut run = home.vtax().arg("run").args(&line).spawn().unwrap();
    wait_in(&mut run, 60, || {
        let record = fs::read_to_string(home.path().join("results/my/run.json"));
        record.is_ok() && has_process("2.71828")
    });
    let pid = Pid::from_raw(i32::try_from(run.id()).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    run.wait().unwrap();
    before.assert_nothing_new("after a kill");
    home.run(&line);
}

/// Whether a process of the user has this argument.
pub fn has_process(argument: &str) -> bool {
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.map(|entry| entry.path()).any(|path| {
        let is_users = fs::metadata(&path).is_ok_and(|found| found.uid() == USER);
        let line = fs::read(path.join("cmdline")).unwrap_or_default();
        is_users
            && line
                .split(|byte| *byte == 0)
                .any(|word| word == argument.as_bytes())
    })
}

#[test(needs = [without_root()])]
fn what_withholds_namespaces_is_named_with_the_command_that_allows_them() {
    let home = Home::new();
    // The quota of a user namespace holds for those below it.
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --ambient-caps=-all --inh-caps=-all \"$@\"";
    let output = Command::new("unshare")
        .args([
            "--user",
            "--map-user=1000",
            "--map-group=1000",
            "--keep-caps",
        ])
        .args(["sh", "-ec", script, "sh"])
        .arg(home.path().join("vtax"))
        .args(["run", "--platform", "native", "--", "true"])
        .env("HOME", home.path())
        .current_dir(home.path())
        .output()
        .unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{message}");
    assert!(
        message.contains("sudo sysctl user.max_user_namespaces=10000"),
        "{message}"
    );
}

#[test(needs = [without_root()])]
fn neither_secrets_nor_other_homes_are_in_the_files_of_this_host() {
    let _host = the_host();
    let home = Home::new();
    let script = "cat /etc/shadow; ls -A /root /home /tmp; echo $((1 + 1)) of them";
    let metric = ["--metric", "seen=([0-9]+) of them", "1"];
    let line = [&one_trial("native")[..], &metric].concat();
    let secret = tempfile::NamedTempFile::new().unwrap();
    let secret = secret.path().file_name().unwrap().to_str().unwrap();
    let check = format!(
        "! cat /etc/shadow 2>/dev/null && test -z \"$(ls -A /root)\" && ! ls /tmp | grep -q {secret} && {{ {script}; }} 2>/dev/null; true"
    );
    home.run(&[&line[..], &["--", "sh", "-c", &check]].concat());
    let found = trials(&home.path().join("results/sh"));
    let seen = found[0].metrics["own.seen"].quantity.value;
    assert_eq!(seen, 2.0, "all three conditions held");
}

/// A program of the user that is ended with the test.
struct Running(Child);

impl Running {
    fn start(home: &Home, script: &str) -> Self {
        let path = home.program("my-service", script);
        let mut command = as_user();
        command.arg(path).current_dir(home.path());
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        Self(child)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// CPU time of a shell and of the children that it waited for, as its `times` prints them, in seconds.
fn printed_times(text: &str) -> f64 {
    let seconds = |time: &str| {
        let (minutes, seconds) = time.trim_end_matches('s').split_once('m').unwrap();
        60.0 * minutes.parse::<f64>().unwrap() + seconds.parse::<f64>().unwrap()
    };
    text.split_whitespace().map(seconds).sum()
}

/// The use of the guest with this process's name in a recording, as `vtax report --json` has it.
fn guest_of(home: &Home, recording: &str) -> serde_json::Value {
    let output = home
        .vtax()
        .args(["report", recording, "--json"])
        .output()
        .unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let guests = report["guests"].as_array().unwrap();
    let found = guests.iter().find(|guest| guest["platform"] == "native");
    found.unwrap_or_else(|| panic!("{report}")).clone()
}

#[test(needs = [without_root()])]
fn a_service_that_runs_is_a_guest_with_the_time_of_all_that_it_starts() {
    let home = Home::new();
    let work = "i=0; while [ $i -lt 60000 ]; do i=$((i + 1)); done";
    let script = format!(
        "#!/bin/sh
while [ ! -e go ]; do sleep 0.1; done
for child in 1 2 3 4 5 6; do ( {work} ); ( {work}; {work} ) & wait; done
times > times
: > done
while :; do sleep 0.1; done
"
    );
    let running = Running::start(&home, &script);
    let pid = running.pid();
    let mut recorder = home.recorder(&pid);
    let mut recorder = Running(recorder.stderr(Stdio::piped()).spawn().unwrap());
    wait_in(&mut recorder.0, 60, || has_interval(&home));
    fs::write(home.path().join("go"), "").unwrap();
    wait_in(&mut recorder.0, 120, || home.path().join("done").exists());
    sleep(Duration::from_millis(500));
    let signalled = Pid::from_raw(i32::try_from(recorder.0.id()).unwrap()).unwrap();
    kill_process(signalled, Signal::TERM).unwrap();
    assert!(in_order(recorder.0.wait().unwrap()));
    let used = printed_times(&fs::read_to_string(home.path().join("times")).unwrap());
    let guest = guest_of(&home, "recording");
    let charged = guest["cpu_seconds"].as_f64().unwrap();
    let message = format!("{charged} of {used} s: {guest}");
    assert!(used > 0.4, "{message}");
    // Each of the shell's four times is cut to a tick, and so are its children's in the account. It goes on for a while. On
    // a busy host readings of processes are apart, and the account has an error.
    let error = guest["cpu_error_seconds"].as_f64().unwrap();
    let expected = used - 0.08 - error..used + 0.2 + error;
    assert!(expected.contains(&charged), "{message}");
    // What cannot be separated from the host's is absent, and no 0.
    for name in [
        "hidden_share",
        "hidden_cpu_seconds",
        "packets",
        "bytes",
        "block_requests",
        "exits",
    ] {
        assert_eq!(
            guest.get(name),
            Some(&serde_json::Value::Null),
            "{name}: {message}"
        );
    }
    assert_eq!(guest["stages"].as_object().unwrap().len(), 1, "{message}");
}

/// Whether a recording of the user has an interval.
fn has_interval(home: &Home) -> bool {
    let output = home
        .vtax()
        .args(["report", "recording", "--json"])
        .output()
        .unwrap();
    serde_json::from_slice::<serde_json::Value>(&output.stdout).is_ok()
}

#[test(needs = [without_root()])]
fn a_service_that_ends_is_reported_and_the_recording_goes_on() {
    let home = Home::new();
    let script = "#!/bin/sh\nwhile [ ! -e end ]; do sleep 0.1; done\n";
    let running = Running::start(&home, script);
    let pid = running.pid();
    let log = home.path().join("log");
    let errors = fs::File::create(&log).unwrap();
    let mut recorder = Running(home.recorder(&pid).stderr(errors).spawn().unwrap());
    wait_in(&mut recorder.0, 60, || has_interval(&home));
    fs::write(home.path().join("end"), "").unwrap();
    let message = || fs::read_to_string(&log).unwrap();
    let ended = format!("process {pid} (my-service) and those that it started have ended");
    wait_in(&mut recorder.0, 60, || message().contains(&ended));
    let signalled = Pid::from_raw(i32::try_from(recorder.0.id()).unwrap()).unwrap();
    kill_process(signalled, Signal::TERM).unwrap();
    assert!(in_order(recorder.0.wait().unwrap()), "{}", message());
    assert!(
        message().contains("soft interrupts and packets of a service are not charged to it"),
        "{}",
        message()
    );
}

#[test(needs = [without_root()])]
fn a_process_that_is_no_service_of_the_user_is_refused_with_the_reason() {
    let home = Home::new();
    let refused = |pid: &str, status: i32, reason: &str| {
        let output = home
            .vtax()
            .args(["top", "--count", "1", "--pid", pid])
            .output()
            .unwrap();
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{message}");
        assert!(message.contains(reason), "{message}");
    };
    let mut gone = as_user().arg("true").spawn().unwrap();
    gone.wait().unwrap();
    refused(&gone.id().to_string(), 1, "no process");
    refused(
        "1",
        5,
        "a process of --pid is another user's, which needs root",
    );
    refused("0", 2, "--pid");
    // In a PID namespace of its own the test sees no threads of the kernel.
    match fs::read_to_string("/proc/2/comm") {
        Ok(name) if name == "kthreadd\n" => refused("2", 1, "is a thread of the kernel"),
        other => skip_in_part(&format!("a thread of the kernel: process 2 is {other:?}")),
    }
}
