// SPDX-License-Identifier: Apache-2.0
//! Shared by the tests of the command: starting it, and comparing the state of the host.

pub mod work;

use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, waitpid};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::linux::fs::MetadataExt;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use vtax_testkit::alone;
use vtax_testkit::needs::{Need, program, root};

/// The command under test, with a state directory of its own.
pub fn vtax(state: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vtax"));
    command.env("VTAX_STATE_DIR", state);
    recorded(&mut command);
    command
}

/// `vtax run` of a plan into a results directory.
pub fn run(state: &Path, plan: &Path, results: &Path) -> Command {
    let mut command = vtax(state);
    command.arg("run").arg(plan).arg("--results").arg(results);
    command
}

/// Whether vtax ended in order. Status 3 is in order too: every trial is suspect, as on a busy host.
pub fn in_order(status: ExitStatus) -> bool {
    matches!(status.code(), Some(0 | 3))
}

/// Runs a command to its end; panics with its whole output where the exit status is not the expected one.
pub fn finish(command: &mut Command, success: bool) -> Output {
    let output = command.output().expect("vtax starts");
    assert_eq!(
        in_order(output.status),
        success,
        "{command:?}: {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// The needs of trials.
pub fn can_run_trials() -> Need {
    let programs = [
        "mmdebstrap",
        "mke2fs",
        "ip",
        "nsenter",
        "runc",
        "qemu-system-x86_64",
    ];
    Need::all([root()].into_iter().chain(programs.map(program)))
}

/// The lock of a test whose runs change the host, or that runs of other tests would disturb.
pub fn the_host() -> File {
    alone("host")
}

/// The processes and objects of vtax on the host, for a comparison. Of new ones only those of this test's runs count:
/// other users of this machine log in, run vtax and create networks at the same time.
#[derive(Debug)]
pub struct HostState(BTreeSet<String>);

/// The time limit in which ended processes and objects must disappear.
const GOING: Duration = Duration::from_secs(15);

impl HostState {
    pub fn read() -> Self {
        adopt_orphans();
        let own = descendants();
        let mut found = BTreeSet::new();
        let in_another_network = |pid: &u32| {
            let space =
                |pid: &str| fs::metadata(format!("/proc/{pid}/ns/net")).map(|it| it.st_ino());
            // A process that has ended has no network.
            space(&pid.to_string()).is_ok_and(|its| its != space("self").unwrap())
        };
        for pid in own.iter().filter(|pid| in_another_network(pid)) {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            found.insert(format!("process {pid} {command}"));
        }
        let groups = directories(Path::new("/sys/fs/cgroup")).into_iter();
        let groups = groups.map(|path| path.display().to_string());
        found.extend(groups.filter(|path| path.contains("/vtax-")));
        let names = |path: &str| -> Vec<String> {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
            names.collect()
        };
        // The name of a cell's port contains the PID of its holder.
        let links = names("/sys/class/net").into_iter().filter(|name| {
            let holder = name.strip_prefix("vtax").and_then(|rest| rest.parse().ok());
            holder.is_some_and(|holder: u32| {
                own.contains(&holder) || !Path::new(&format!("/proc/{holder}")).exists()
            })
        });
        found.extend(links);
        found.extend(
            names("/var/tmp")
                .into_iter()
                .filter(|name| name.starts_with("vtax-")),
        );
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mounts = mounts.lines().filter(|line| line.contains("vtax-"));
        found.extend(mounts.map(str::to_owned));
        Self(found)
    }

    /// The objects that runs of this test created since. An object that existed before belongs to an earlier process,
    /// even where a run of this test has the same PID.
    pub fn news(&self) -> Vec<String> {
        let now = Self::read().0;
        let came = now.difference(&self.0);
        // Processes and ports were selected among the descendants of this test.
        let is_found = |name: &str| !name.contains("vtax-") || name.starts_with("process ");
        let own = came.filter(|name| is_found(name) || is_own(name));
        own.cloned().collect()
    }

    /// Waits until no new process or object is left.
    pub fn assert_nothing_new(&self, when: &str) {
        let deadline = Instant::now() + GOING;
        loop {
            let new = self.news();
            if new.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "{when}, left: {new:#?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Makes orphans of a run children of this process rather than of the machine's init, and reaps daemons among these:
/// libvirt waits 40 s for each daemon that has ended and was not reaped.
fn adopt_orphans() {
    static REAPER: OnceLock<()> = OnceLock::new();
    REAPER.get_or_init(|| {
        set_child_subreaper(Some(getpid())).unwrap();
        std::thread::spawn(|| {
            loop {
                for daemon in ended_daemons() {
                    let _ = waitpid(Some(daemon), WaitOptions::NOHANG);
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
    });
}

/// Children of this process that have ended, in sessions of their own: children that a test started and waits for are
/// not among these.
fn ended_daemons() -> Vec<Pid> {
    let own = getpid().as_raw_nonzero().get();
    // 0 where the session began outside of this PID namespace, which getsid of rustix takes for impossible.
    let (.., session) = status(Path::new("/proc/self")).unwrap();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let ended = entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let (state, parent, its_session) = status(&entry.path())?;
        let is_daemon = state == "Z" && parent == own && its_session != session;
        is_daemon.then(|| Pid::from_raw(pid)).flatten()
    });
    ended.collect()
}

/// State, parent and session of a process, by its directory below /proc.
fn status(process: &Path) -> Option<(String, i32, i32)> {
    let stat = fs::read_to_string(process.join("stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let (state, parent) = (fields.next()?.to_owned(), fields.next()?.parse().ok()?);
    Some((state, parent, fields.nth(1)?.parse().ok()?))
}

/// The PIDs of the runs that [`recorded`] started.
pub fn record() -> &'static File {
    static RECORD: OnceLock<File> = OnceLock::new();
    RECORD.get_or_init(|| tempfile::tempfile().unwrap())
}

/// Appends a PID to a record in one write: processes share the offset.
pub fn note(record: &File, pid: Pid) -> std::io::Result<()> {
    rustix::io::write(record, &pid.as_raw_nonzero().get().to_ne_bytes())?;
    Ok(())
}

/// Records the PID of the process that this command starts: the objects of a run on the host have the PID in their
/// names.
pub fn recorded(command: &mut Command) -> &mut Command {
    let record = record();
    let note = move || note(record, getpid());
    // SAFETY: the closure makes two system calls and allocates nothing.
    unsafe { command.pre_exec(note) }
}

/// Whether a name contains the PID of a run of this test, as in `vtax-trial-PID-0`.
pub fn is_own(name: &str) -> bool {
    let length = record().metadata().unwrap().len();
    let mut bytes = vec![0; usize::try_from(length).unwrap()];
    record().read_exact_at(&mut bytes, 0).unwrap();
    let (pids, _) = bytes.as_chunks::<4>();
    let is_digit = |c: char| c.is_ascii_digit();
    name.split(|c| !is_digit(c))
        .filter_map(|number| number.parse().ok())
        .any(|number: i32| pids.iter().any(|pid| i32::from_ne_bytes(*pid) == number))
}

/// This process, and the processes below it.
fn descendants() -> BTreeSet<u32> {
    let parents: Vec<(u32, u32)> = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?;
            Some((parent.parse().ok()?, pid))
        })
        .collect();
    let mut found = BTreeSet::from([std::process::id()]);
    loop {
        let before = found.len();
        found.extend(
            parents
                .iter()
                .filter(|(parent, _)| found.contains(parent))
                .map(|(_, pid)| *pid)
                .collect::<Vec<_>>(),
        );
        if found.len() == before {
            return found;
        }
    }
}

/// Every directory below a directory.
pub fn directories(root: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(entry.path());
                found.insert(entry.path());
            }
        }
    }
    found
}
