// SPDX-License-Identifier: Apache-2.0
//! The test program of a crate's integration tests: a replacement for libtest with one process for each test.

use crate::needs::Need;
use crate::skipping::{Skip, left_out};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek, Write};
use std::os::linux::fs::MetadataExt;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio, exit};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A function that `#[test]` registered.
#[derive(Debug)]
pub struct Test {
    /// The crate, the modules and the function.
    pub path: &'static str,
    /// Looks up the test's requirements on this machine.
    pub needs: fn() -> Vec<Need>,
    /// The function.
    pub run: fn(),
}

inventory::collect!(Test);

/// The first argument of a process that runs one test. The test's name and the file for its skip reason follow.
const RUN_ONE: &str = "--run-one-test";
/// The first argument of a process that a test starts. The name of the function to run follows.
const AS_CHILD: &str = "--run-as-child";
/// The exit status of a process whose test was skipped, in whole or in part.
const SKIPPED: i32 = 77;
/// The exit status of a process whose test failed, the same as libtest's.
const FAILED: i32 = 101;
/// The duration after which a running test is reported as long.
const LONG: Duration = Duration::from_secs(60);

impl Test {
    /// The modules and the function.
    fn name(&self) -> &'static str {
        self.path
            .split_once("::")
            .map_or(self.path, |(_, name)| name)
    }
}

/// Runs the tests that the arguments select, and ends the process.
pub fn main() -> ! {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        [RUN_ONE, name, reason] => {
            end_with_parent();
            run_here(name, Path::new(reason));
        }
        [AS_CHILD, name] => run_here(name, Path::new("/dev/null")),
        _ => {}
    }
    let arguments = Arguments::from_args();
    let all = arguments.include_ignored || arguments.ignored;
    let show = arguments.show_output;
    let through = arguments.nocapture;
    let mut tests: Vec<&'static Test> = inventory::iter::<Test>().collect();
    tests.retain(|test| !Need::all((test.needs)()).hidden);
    tests.sort_by_key(|test| test.name());
    let tests = tests.into_iter().map(|test| {
        // The flag makes `--ignored` select the test; without `--ignored` the test itself reports the reason to skip.
        let flag = arguments.ignored && Need::all((test.needs)()).for_test_all.is_some();
        let run = move || match reason_not_to_run(test, all) {
            Some(reason) => Ok(Completion::ignored_with(reason)),
            None => run_apart(test, show, through),
        };
        Trial::ignorable_test(test.name(), run).with_ignored_flag(flag)
    });
    let tests = tests.collect();
    std::thread::spawn(name_long_ones);
    if !arguments.list && arguments.format.is_none() {
        // Cargo's name for each of these programs is `integration`.
        println!("\nintegration tests of {}", package());
    }
    let conclusion = libtest_mimic::run(&arguments, tests);
    // After libtest-mimic's output, so that the lines do not mix.
    for (name, printed) in SHOWN.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        println!("---- {name} stdout ----\n{printed}");
    }
    conclusion.exit()
}

/// The crate of these tests, from cargo's environment.
fn package() -> String {
    std::env::var("CARGO_PKG_NAME").unwrap_or_else(|_| "this program".to_owned())
}

/// The command that runs a test function of this program as a child process, for functions with `#[test(needs =
/// [by_name_only()])]`.
#[must_use]
pub fn child_of_a_test(name: &str) -> Command {
    let mut command = Command::new(this_program());
    command.args([AS_CHILD, name]);
    command
}

/// The path of this program, or `/proc/self/exe` where cargo has rebuilt the file since the start.
fn this_program() -> PathBuf {
    let link = Path::new("/proc/self/exe");
    let inode = |path: &Path| fs::metadata(path).map(|file| file.st_ino()).ok();
    let path = std::env::current_exe().unwrap();
    if inode(&path) == inode(link) {
        path
    } else {
        link.to_owned()
    }
}

fn reason_not_to_run(test: &Test, all: bool) -> Option<String> {
    let need = Need::all((test.needs)());
    if all {
        return need.missing;
    }
    need.for_test_all.or(need.missing)
}

/// Makes the kernel kill this process when the harness ends.
fn end_with_parent() {
    let parent = getppid();
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    if getppid() != parent {
        exit(FAILED);
    }
}

/// Runs a test in this process.
fn run_here(name: &str, reason: &Path) -> ! {
    let Some(test) = inventory::iter::<Test>().find(|test| test.name() == name) else {
        eprintln!("there is no test {name}");
        exit(FAILED);
    };
    let run = test.run;
    // The thread has the test's name, which a panic's message contains.
    let thread = std::thread::Builder::new().name(name.to_owned());
    let ended = thread.spawn(move || catch_unwind(run)).unwrap().join();
    let skipped = match ended.unwrap() {
        Ok(()) => left_out().map(|parts| format!("in part: {parts}")),
        Err(panic) => match panic.downcast::<Skip>() {
            Ok(skip) => Some(skip.0),
            Err(_) => exit(FAILED),
        },
    };
    let Some(skipped) = skipped else { exit(0) };
    #[expect(clippy::disallowed_methods, reason = "the harness made the file")]
    let written = fs::write(reason, skipped);
    written.unwrap();
    exit(SKIPPED)
}

/// The running tests and their start times.
static RUNNING: Mutex<BTreeMap<&'static str, Instant>> = Mutex::new(BTreeMap::new());

/// The output of passed tests, for `--show-output`.
static SHOWN: Mutex<BTreeMap<&'static str, String>> = Mutex::new(BTreeMap::new());

/// Runs a test in a process of its own, so that no other test shares its umask, descriptors and children.
fn run_apart(test: &'static Test, show: bool, through: bool) -> Result<Completion, Failed> {
    let reason = tempfile::NamedTempFile::new()?;
    let mut output = tempfile::tempfile()?;
    let mut command = Command::new(this_program());
    command.args([RUN_ONE, test.name()]).arg(reason.path());
    command.stdin(Stdio::null());
    if !through {
        command
            .stdout(output.try_clone()?)
            .stderr(output.try_clone()?);
    }
    let running = || RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let begin = Instant::now();
    running().insert(test.name(), begin);
    let status = command.status();
    running().remove(test.name());
    record_time(test, begin.elapsed());
    let status = status?;
    let mut printed = Vec::new();
    output.rewind()?;
    output.read_to_end(&mut printed)?;
    let printed = String::from_utf8_lossy(&printed);
    if show && status.success() {
        let mut shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
        shown.insert(test.name(), printed.to_string());
    }
    match status.code() {
        Some(0) => Ok(Completion::Completed),
        Some(SKIPPED) => {
            let reason = fs::read_to_string(reason.path())?;
            Ok(Completion::ignored_with(reason.replace('\n', " ")))
        }
        Some(FAILED) => match lack_of_space(&printed) {
            Some(line) => Ok(Completion::ignored_with(format!(
                "this disk is too full: {line}"
            ))),
            None => Err(printed.into()),
        },
        _ => Err(format!("{printed}\nthe test's process ended: {status}").into()),
    }
}

/// The line of a failed test's output that says how much space an image lacks: the machine's fault, not the test's.
fn lack_of_space(printed: &str) -> Option<&str> {
    let mut lines = printed.lines();
    lines.find(|line| {
        [
            "space for the guest image in ",
            " MiB free, ",
            " MiB needed)",
        ]
        .iter()
        .all(|part| line.contains(part))
    })
}

/// Reports each long test once, as libtest does.
fn name_long_ones() {
    let mut named = BTreeMap::new();
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, since) in running.iter() {
            if since.elapsed() > LONG && named.insert(*name, *since) != Some(*since) {
                eprintln!("test {name} has been running for over 60 seconds");
            }
        }
    }
}

/// Adds a line, seconds and name, to the file that `VTAX_TEST_TIMES` names.
fn record_time(test: &Test, took: Duration) {
    let Some(path) = std::env::var_os("VTAX_TEST_TIMES") else {
        return;
    };
    #[expect(clippy::disallowed_methods, reason = "a file that the developer names")]
    let file = fs::File::options().create(true).append(true).open(path);
    let line = format!("{:.2} {} {}\n", took.as_secs_f64(), package(), test.name());
    let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
}
