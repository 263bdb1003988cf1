// SPDX-License-Identifier: Apache-2.0
//! Helpers for tests with cells: a small root file system, and the conditions to skip a test.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use vtax_guest::image::oci;
use vtax_guest::image::{self, Recipe};
use vtax_guest::platform::{Finished, GuestFiles, Target};
use vtax_host::cell::{Cell, CellConfig, SeatConfig, link::LinkConfig, requirements};
use vtax_host::journal::{Change, Journal};
use vtax_observe::Subject;
use vtax_testkit::needs::find_program;
use vtax_testkit::skip;

/// Skips the test where cells cannot be created.
pub fn need_cells() {
    if let Err(error) = requirements::check(&LinkConfig::default()) {
        skip!("{error}");
    }
}

/// A state directory, its journal, and a root file system of busybox.
pub struct Bench {
    pub folder: TempDir,
    pub journal: Journal,
    pub guest: GuestFiles,
}

impl Bench {
    /// Skips the test where cells cannot be created or busybox is missing.
    pub fn new() -> Self {
        need_cells();
        let Some(busybox) = find_program("busybox") else {
            skip!("needs the program busybox (Debian package busybox-static)");
        };
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root, with: odd\\name");
        busybox_root(&busybox, &root);
        let journal = Journal::open(&folder.path().join("state")).unwrap();
        let guest = GuestFiles {
            root,
            image: "/nowhere".into(),
            kernel: "/nowhere".into(),
            initrd: "/nowhere".into(),
            recipe: "busybox".to_owned(),
            directory: None,
            files: None,
        };
        Self {
            folder,
            journal,
            guest,
        }
    }

    pub fn cell(&mut self, config: CellConfig) -> Cell {
        Cell::create(config, &mut self.journal).unwrap()
    }
}

/// The standard image, built where it is missing. Skips the test where the image cannot be built or a cell cannot
/// be created.
pub fn image() -> GuestFiles {
    need_cells();
    image::ensure(&Recipe::standard(), &mut |step| eprintln!("{step}"))
        .unwrap_or_else(|error| skip!("no guest image: {error}"))
}

/// Runs a command in the image of a target.
pub fn inside(target: &mut dyn Target, words: &[&str]) -> Finished {
    let words: Vec<&str> = [oci::ENTER].iter().chain(words).copied().collect();
    target.run(&line(&words), Duration::from_secs(60)).unwrap()
}

/// What a command in the image of a target prints, which must succeed.
pub fn printed_inside(target: &mut dyn Target, words: &[&str]) -> String {
    let finished = inside(target, words);
    let shown = String::from_utf8_lossy(&finished.stderr);
    assert_eq!(finished.code, 0, "{words:?}: {shown}");
    String::from_utf8(finished.stdout).unwrap()
}

/// The control groups in a journal.
pub fn journalled(journal: &Journal) -> Vec<PathBuf> {
    let pending = journal.pending().iter();
    let groups = pending.filter_map(|change| match change {
        Change::Cgroup { path } => Some(path.clone()),
        _ => None,
    });
    groups.collect()
}

fn busybox_root(busybox: &Path, root: &Path) {
    for folder in [
        "bin", "dev", "etc", "mnt", "proc", "root", "run", "sbin", "sys", "tmp", "usr/bin",
        "usr/sbin", "var/log",
    ] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    fs::copy(busybox, root.join("bin/busybox")).unwrap();
    let list = Command::new(busybox).arg("--list").output().unwrap().stdout;
    for applet in String::from_utf8(list)
        .unwrap()
        .lines()
        .filter(|applet| *applet != "busybox")
    {
        symlink("/bin/busybox", root.join("bin").join(applet)).unwrap();
    }
    fs::write(root.join("etc/mark"), "the shared root\n").unwrap();
}

pub fn config(name: &str) -> CellConfig {
    CellConfig {
        name: name.to_owned(),
        ..CellConfig::default()
    }
}

/// As [`config`], with a scratch disk for the target.
pub fn with_scratch(name: &str, image: PathBuf) -> CellConfig {
    CellConfig {
        seats: vec![SeatConfig {
            scratch: Some(image),
            ..SeatConfig::default()
        }],
        ..config(name)
    }
}

pub fn line(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// Runs a shell script in a target and returns its standard output; panics when it fails.
pub fn shell(target: &mut dyn Target, script: &str) -> String {
    let finished = target
        .run(&line(&["sh", "-c", script]), Duration::from_secs(20))
        .unwrap();
    let errors = String::from_utf8_lossy(&finished.stderr);
    assert_eq!(finished.code, 0, "`{script}`: {errors}");
    String::from_utf8(finished.stdout).unwrap()
}

/// The CPU time of a subject's control groups, in µs.
pub fn cpu_micros(subject: &Subject) -> u64 {
    let read = |name: &str| {
        let mut folders = subject.cgroups.iter();
        folders.find_map(|folder| fs::read_to_string(folder.join(name)).ok())
    };
    let v1 = read("cpuacct.usage").map(|text| text.trim().parse::<u64>().unwrap() / 1000);
    let v2 = || {
        let text = read("cpu.stat")?;
        let mut lines = text.lines();
        let used = lines.find_map(|line| line.strip_prefix("usage_usec "))?;
        used.trim().parse::<u64>().ok()
    };
    v1.or_else(v2).unwrap()
}
