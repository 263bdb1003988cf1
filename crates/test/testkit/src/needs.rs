// SPDX-License-Identifier: Apache-2.0
//! The requirements of tests on the machine, and locks between tests that would disturb each other.

use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// A requirement of a test, checked on this machine.
#[derive(Debug, Default)]
pub struct Need {
    /// The reason why only `make test-all` runs the test; `None` for tests that every run includes.
    pub(crate) for_test_all: Option<String>,
    /// The requirement that this machine lacks, if any.
    pub(crate) missing: Option<String>,
    /// Whether the test is hidden from this run.
    pub(crate) hidden: bool,
}

impl Need {
    /// A requirement of one test: met, or the reason why not.
    #[must_use]
    pub fn from(met: Result<(), String>) -> Self {
        Self {
            missing: met.err(),
            ..Self::default()
        }
    }

    /// Combines requirements into one; of several missing ones it keeps the first.
    #[must_use]
    pub fn all(needs: impl IntoIterator<Item = Self>) -> Self {
        needs.into_iter().fold(Self::default(), |all, need| Self {
            for_test_all: all.for_test_all.or(need.for_test_all),
            missing: all.missing.or(need.missing),
            hidden: all.hidden || need.hidden,
        })
    }
}

/// Root privileges, for namespaces, mounts and control groups.
#[must_use]
pub fn root() -> Need {
    let met = geteuid().is_root();
    Need::from(met.then_some(()).ok_or_else(|| "needs root".to_owned()))
}

/// A /dev/kvm that this process can open.
#[must_use]
pub fn kvm() -> Need {
    use rustix::fs::{Mode, OFlags, open};
    let opened = open("/dev/kvm", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    Need::from(
        opened
            .map(drop)
            .map_err(|error| format!("needs /dev/kvm: {error}")),
    )
}

/// A program that `make setup` installs.
#[must_use]
pub fn program(name: &str) -> Need {
    let found = find_program(name).map(drop);
    Need::from(found.ok_or_else(|| format!("needs the program {name}")))
}

/// A program (by name) or file (by path) that `make test-all` installs. Other runs skip the test.
#[must_use]
pub fn brought_by_test_all(name: &str) -> Need {
    let is_there = if name.starts_with('/') {
        Path::new(name).exists()
    } else {
        find_program(name).is_some()
    };
    Need {
        for_test_all: Some(format!("needs {name}: make test-all")),
        missing: (!is_there).then(|| format!("needs {name}")),
        ..Need::default()
    }
}

/// A Python module that `make test-all` installs into [`python_modules`].
#[must_use]
pub fn python_module(name: &str) -> Need {
    let is_there = python_modules().join(name).exists();
    Need {
        for_test_all: Some(format!("needs Python's {name}: make test-all")),
        missing: (!is_there).then(|| format!("needs Python's {name}")),
        ..Need::default()
    }
}

/// The directory into which `scripts/setup test` installs Python modules.
#[must_use]
pub fn python_modules() -> PathBuf {
    let home = std::env::var_os("HOME").map_or_else(|| "/root".into(), PathBuf::from);
    home.join(".cache/vtax-tests/python")
}

/// Restricts the test to `make test-all`, with a reason such as its duration.
#[must_use]
pub fn test_all(reason: &str) -> Need {
    Need {
        for_test_all: Some(format!("{reason}: make test-all")),
        ..Need::default()
    }
}

/// Hides the function from all runs except those that name it with `--exact`, and those of
/// [`crate::child_of_a_test`]: it is not a test by itself.
#[must_use]
pub fn by_name_only() -> Need {
    Need {
        hidden: !std::env::args().any(|argument| argument == "--exact"),
        ..Need::default()
    }
}

/// Finds a program in `PATH` or in Debian's directories for administration programs.
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// Waits until no other test of this user holds the same lock, and holds it until the file is dropped, for tests that
/// would measure each other's effects on the host.
#[must_use]
pub fn alone(name: &str) -> File {
    locked(name, FlockOperation::LockExclusive)
}

/// As [`alone`], but shared with other tests that call this function.
#[must_use]
pub fn beside_others(name: &str) -> File {
    locked(name, FlockOperation::LockShared)
}

fn locked(name: &str, how: FlockOperation) -> File {
    let folder = std::env::temp_dir().join(format!("vtax-tests-{}", geteuid().as_raw()));
    let _ = std::fs::create_dir(&folder);
    let file = folder.join(name);
    #[expect(
        clippy::disallowed_methods,
        reason = "a lock file in a folder of its own user"
    )]
    let file = File::options()
        .create(true)
        .append(true)
        .open(file)
        .unwrap();
    flock(file.as_fd(), how).unwrap();
    file
}
