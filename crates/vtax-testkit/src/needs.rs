//! What tests need of the machine that they run on, and how they keep out of each other's way.

use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// A requirement of a test, looked up on this machine.
#[derive(Debug, Default)]
pub struct Need {
    /// Why only `make test-all` runs the test, if so.
    pub(crate) for_test_all: Option<String>,
    /// What this machine lacks, if anything.
    pub(crate) missing: Option<String>,
    /// Whether the test is not there for this run.
    pub(crate) hidden: bool,
}

impl Need {
    /// A requirement of one test: met, or the reason why it is not.
    #[must_use]
    pub fn from(met: Result<(), String>) -> Self {
        Self {
            missing: met.err(),
            ..Self::default()
        }
    }

    /// Requirements as one: of what they lack, the first.
    #[must_use]
    pub fn all(needs: impl IntoIterator<Item = Self>) -> Self {
        needs.into_iter().fold(Self::default(), |all, need| Self {
            for_test_all: all.for_test_all.or(need.for_test_all),
            missing: all.missing.or(need.missing),
            hidden: all.hidden || need.hidden,
        })
    }
}

/// Root, for namespaces, mounts and control groups.
#[must_use]
pub fn root() -> Need {
    let met = geteuid().is_root();
    Need::from(met.then_some(()).ok_or_else(|| "needs root".to_owned()))
}

/// A /dev/kvm that opens.
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

/// What `make test-all` installs: a program by its name, or a file by its path. Other runs leave the test to it.
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

/// Where `scripts/setup test` puts Python modules.
#[must_use]
pub fn python_modules() -> PathBuf {
    let home = std::env::var_os("HOME").map_or_else(|| "/root".into(), PathBuf::from);
    home.join(".cache/vtax-tests/python")
}

/// Leaves the test to `make test-all`, with a reason such as the time that it takes.
#[must_use]
pub fn test_all(reason: &str) -> Need {
    Need {
        for_test_all: Some(format!("{reason}: make test-all")),
        ..Need::default()
    }
}

/// Hides the function from all runs but those that name it with `--exact`, and from [`crate::child_of_a_test`]: it is no
/// test of its own.
#[must_use]
pub fn by_name_only() -> Need {
    Need {
        hidden: !std::env::args().any(|argument| argument == "--exact"),
        ..Need::default()
    }
}

/// Where a program is: in `PATH`, or where Debian has those of the system's administrator.
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// Waits until no other test of this user has the same lock, and keeps it until the file is dropped: for tests that would
/// see what another does to the host.
#[must_use]
pub fn alone(name: &str) -> File {
    locked(name, FlockOperation::LockExclusive)
}

/// As [`alone`], but beside other tests that do not need to be alone.
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
