// SPDX-License-Identifier: Apache-2.0
//! Runs of an ordinary user, without root.

use crate::support::work::{executable, text, trials, wait_in};
use crate::support::{HostState, can_run_trials, in_order, the_host};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use vtax_testkit::needs::Need;

/// A user of this host without a name, a home and groups: nobody.
const USER: u32 = 65534;

/// Whether an ordinary user may make user namespaces here.
fn without_root() -> Need {
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
fn as_user() -> Command {
    let mut command = Command::new("setpriv");
    let (user, group) = (format!("--reuid={USER}"), format!("--regid={USER}"));
    command.args([&user, &group, "--clear-groups", "--"]);
    command
}

/// The home of the user, with vtax: the build's directory may be closed to other users.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        chown(home.path(), Some(USER), Some(USER)).unwrap();
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::copy(env!("CARGO_BIN_EXE_vtax"), home.path().join("vtax")).unwrap();
        Self(home)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn program(&self, name: &str, script: &str) -> PathBuf {
        executable(&self.path().join(name), script)
    }

    fn vtax(&self) -> Command {
        let mut command = as_user();
        command
            .arg(self.path().join("vtax"))
            .env("HOME", self.path())
            .env_remove("VTAX_STATE_DIR")
            .env_remove("XDG_STATE_HOME")
            .current_dir(self.path());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
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
    let told = text(&output.stderr);
    assert!(
        told.contains("measured without root: soft interrupts"),
        "{told}"
    );
    assert!(
        told.contains("the command sees the files of this host"),
        "{told}"
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
    let line = [
        "--platform",
        "native",
        "--runs",
        "1",
        "--image",
        "host",
        "--",
        "./my",
    ];
    let mut run = home.vtax().arg("run").args(line).spawn().unwrap();
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
fn has_process(argument: &str) -> bool {
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
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{told}");
    assert!(
        told.contains("sudo sysctl user.max_user_namespaces=10000"),
        "{told}"
    );
}

#[test(needs = [without_root()])]
fn neither_secrets_nor_other_homes_are_in_the_files_of_this_host() {
    let _host = the_host();
    let home = Home::new();
    let script = "cat /etc/shadow; ls -A /root /home /tmp; echo $((1 + 1)) of them";
    let line = [
        "--platform",
        "native",
        "--runs",
        "1",
        "--image",
        "host",
        "--metric",
        "seen=([0-9]+) of them",
        "1",
    ];
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
