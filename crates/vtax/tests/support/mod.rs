//! What the command's tests share: running it, and seeing whether the host is as it was found.

use std::collections::BTreeSet;
use std::fs;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The command under test, with a state directory of its own.
pub fn vtax(state: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vtax"));
    command.env("VTAX_STATE_DIR", state);
    command
}

/// `vtax run` of a plan into a results directory.
#[allow(dead_code, reason = "not every test runs plans so")]
pub fn run(state: &Path, plan: &Path, results: &Path) -> Command {
    let mut command = vtax(state);
    command.arg("run").arg(plan).arg("--results").arg(results);
    command
}

/// Runs to the end; panics with everything that was printed where the exit is not as wanted.
pub fn finish(command: &mut Command, success: bool) -> Output {
    let output = command.output().expect("vtax starts");
    assert_eq!(
        output.status.success(),
        success,
        "{command:?}: {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Why trials cannot run on this machine, if they cannot.
pub fn cannot_run_trials() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("trials need root for namespaces and control groups".to_owned());
    }
    let needed = [
        "mmdebstrap",
        "mke2fs",
        "ip",
        "nsenter",
        "runc",
        "qemu-system-x86_64",
    ];
    let found = |program: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .chain(["/usr/sbin".into(), "/sbin".into()])
            .any(|dir| dir.join(program).exists())
    };
    let missing: Vec<&str> = needed
        .into_iter()
        .filter(|program| !found(program))
        .collect();
    (!missing.is_empty()).then(|| format!("programs are missing: {}", missing.join(", ")))
}

/// Everything of the host that a run touches, to compare before and after.
#[derive(Debug, PartialEq, Eq)]
pub struct HostState {
    links: BTreeSet<String>,
    named_namespaces: BTreeSet<String>,
    mounts: BTreeSet<String>,
    cgroups: BTreeSet<PathBuf>,
    loop_devices: BTreeSet<String>,
    settings: Vec<(String, String)>,
    programs: BTreeSet<String>,
}

impl HostState {
    /// Whether nothing runs in another network namespace than this test.
    #[allow(dead_code, reason = "not every test needs others to be gone")]
    pub fn is_alone(&self) -> bool {
        self.programs.is_empty()
    }

    pub fn read() -> Self {
        let names = |path: &str| -> BTreeSet<String> {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            entries
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect()
        };
        let backing =
            |name: &String| fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok();
        let settings = [
            "kernel/mm/transparent_hugepage/enabled",
            "kernel/mm/ksm/run",
        ];
        Self {
            links: names("/sys/class/net"),
            named_namespaces: names("/run/netns"),
            mounts: fs::read_to_string("/proc/self/mounts")
                .unwrap()
                .lines()
                .map(str::to_owned)
                .collect(),
            // Others' groups come and go; every one of ours is so named.
            cgroups: directories(Path::new("/sys/fs/cgroup"))
                .into_iter()
                .filter(|path| path.to_string_lossy().contains("/vtax-"))
                .collect(),
            loop_devices: names("/sys/block").iter().filter_map(backing).collect(),
            settings: settings
                .into_iter()
                .filter_map(|file| {
                    Some((
                        file.to_owned(),
                        fs::read_to_string(format!("/sys/{file}")).ok()?,
                    ))
                })
                .collect(),
            programs: programs_in_foreign_namespaces(),
        }
    }
}

/// Processes that live in another network namespace than this test, as a cell's do.
fn programs_in_foreign_namespaces() -> BTreeSet<String> {
    let own = fs::metadata("/proc/self/ns/net").unwrap().st_ino();
    let processes = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .map(|entry| entry.path());
    processes
        .filter(|process| {
            fs::metadata(process.join("ns/net")).is_ok_and(|space| space.st_ino() != own)
        })
        .filter_map(|process| {
            let command = fs::read(process.join("cmdline")).ok()?;
            let text = String::from_utf8_lossy(&command).replace('\0', " ");
            Some(format!("{} {text}", process.display()))
        })
        .collect()
}

/// Every directory below one.
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
