// SPDX-License-Identifier: Apache-2.0
//! A plan in a directory of its own, with the state and the results of its runs.

use super::{finish, in_order, run, the_host, vtax};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use vtax_results::{ResultsDir, Trial};

/// A directory with a plan.
pub struct Work {
    folder: tempfile::TempDir,
    _turn: Option<File>,
}

impl Work {
    /// A directory with a plan.
    pub fn of(plan: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("plan.toml"), plan).unwrap();
        Self {
            folder,
            _turn: None,
        }
    }

    /// A directory with a plan, and the lock of tests that need the host alone.
    pub fn alone(plan: &str) -> Self {
        Self {
            _turn: Some(the_host()),
            ..Self::of(plan)
        }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub fn plan(&self) -> PathBuf {
        self.at("plan.toml")
    }

    pub fn results(&self) -> PathBuf {
        self.at("results")
    }

    pub fn vtax(&self) -> Command {
        vtax(&self.at("state"))
    }

    /// `vtax run` of the plan.
    pub fn run(&self) -> Command {
        self.run_into("results")
    }

    /// `vtax run` of the plan into another directory of results.
    pub fn run_into(&self, results: &str) -> Command {
        run(&self.at("state"), &self.plan(), &self.at(results))
    }

    /// Runs the plan to its end.
    pub fn finish(&self) -> Output {
        finish(&mut self.run(), true)
    }

    /// A JSON file of the results.
    pub fn record(&self, file: &str) -> Value {
        json(&self.results().join(file))
    }

    /// The trials of the results.
    pub fn trials(&self) -> Vec<Trial> {
        trials(&self.results())
    }

    /// A program of this name on the path of [`Self::path_variable`], as a shell script.
    pub fn script(&self, name: &str, script: &str) -> PathBuf {
        let bin = self.at("bin");
        fs::create_dir_all(&bin).unwrap();
        executable(&bin.join(name), &format!("#!/bin/sh\n{script}\n"))
    }

    /// A value of `PATH` with the directory of scripts first.
    pub fn path_variable(&self) -> String {
        let path = std::env::var("PATH").unwrap();
        format!("{}:{path}", self.at("bin").display())
    }
}

/// Writes an executable file.
pub fn executable(file: &Path, text: &str) -> PathBuf {
    fs::write(file, text).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
    file.to_owned()
}

pub fn json(file: &Path) -> Value {
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

/// The trials of a results directory.
pub fn trials(results: &Path) -> Vec<Trial> {
    let results = ResultsDir::open(results).unwrap();
    results.trials().map(Result::unwrap).collect()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Both outputs.
pub fn shown(output: &Output) -> String {
    text(&output.stdout) + &text(&output.stderr)
}

/// Runs a command to its end in order; 3 trials that are suspect on a busy host are in order too.
pub fn run_in_order(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(in_order(output.status), "{}", shown(&output));
    output
}

/// Starts a command without its outputs.
pub fn start(command: &mut Command) -> Child {
    let command = command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// Runs a command for this time and kills it; panics with what it said if it ended by itself.
pub fn kill_after(delay: Duration, command: &mut Command) {
    let mut said = tempfile::tempfile().unwrap();
    let outputs = [said.try_clone().unwrap(), said.try_clone().unwrap()];
    let [stdout, stderr] = outputs.map(Stdio::from);
    let mut run = command.stdout(stdout).stderr(stderr).spawn().unwrap();
    std::thread::sleep(delay);
    if let Some(status) = run.try_wait().unwrap() {
        let mut text = String::new();
        said.rewind().unwrap();
        said.read_to_string(&mut text).unwrap();
        panic!("the run ended by itself within {delay:?}, {status}:\n{text}");
    }
    kill(&mut run);
}

/// Kills a process that was started.
pub fn kill(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Waits until something is found; panics with the text of `why` after this many seconds.
pub fn wait_for<T>(
    seconds: u64,
    why: impl Fn() -> String,
    mut found: impl FnMut() -> Option<T>,
) -> T {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < deadline, "{}", why());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until a condition holds while a run goes on.
pub fn wait_in(run: &mut Child, seconds: u64, mut holds: impl FnMut() -> bool) {
    let found = || {
        let found = holds();
        assert!(found || run.try_wait().unwrap().is_none(), "it has ended");
        found.then_some(())
    };
    wait_for(seconds, || "the run is too slow".to_owned(), found);
}
