// SPDX-License-Identifier: Apache-2.0
//! The lab that runs on this host, read from its lock file. The lock itself is not taken: a run that starts would then
//! fail.

use crate::process::Process;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A run in progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lab {
    /// The process that runs it.
    pub process: Process,
    /// Its results directory.
    pub results: PathBuf,
}

impl Lab {
    /// The lab whose lock is in a directory of state.
    pub fn in_state(state: &Path) -> Option<Self> {
        let lock = state.join("lock");
        let text = fs::read_to_string(&lock).ok()?;
        let (number, purpose) = text.trim_end().strip_prefix("process ")?.split_once(", ")?;
        // The file of an earlier lab may hold a process ID that another process has today.
        let process = Process::of_vtax(number.parse().ok()?)?;
        if !has_open(process.id, &lock) {
            return None;
        }
        let (_, into) = purpose.rsplit_once(" into ")?;
        let beside = fs::read_link(format!("/proc/{}/cwd", process.id)).unwrap_or_default();
        Some(Self {
            process,
            results: canonical(&beside.join(into)),
        })
    }
}

/// Whether a process has a file open.
fn has_open(process: u32, path: &Path) -> bool {
    let Ok(file) = fs::metadata(path) else {
        return false;
    };
    let open = fs::read_dir(format!("/proc/{process}/fd"));
    let mut open = open.into_iter().flatten().flatten();
    open.any(|one| {
        fs::metadata(one.path()).is_ok_and(|one| (one.dev(), one.ino()) == (file.dev(), file.ino()))
    })
}

/// The absolute path of a directory, with links resolved. The directory need not exist.
pub fn canonical(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let known = whole.ancestors().find_map(|above| {
        let rest = whole.strip_prefix(above).ok()?;
        Some(
            fs::canonicalize(above)
                .ok()?
                .components()
                .chain(rest.components())
                .collect(),
        )
    });
    known.unwrap_or(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_of_a_living_vtax_names_its_run_and_no_other_does() {
        let state = tempfile::tempdir().unwrap();
        let write = |text: String| fs::write(state.path().join("lock"), text).unwrap();
        assert_eq!(Lab::in_state(state.path()), None);
        // The name of the test program begins with `vtax`.
        let own = std::process::id();
        write(format!(
            "process {own}, running plan a into b into results/a\n"
        ));
        assert_eq!(
            Lab::in_state(state.path()),
            None,
            "it does not hold the lock"
        );
        let _held = fs::File::open(state.path().join("lock")).unwrap();
        let lab = Lab::in_state(state.path()).unwrap();
        assert_eq!(lab.process.id, own);
        assert_eq!(lab.results, canonical(Path::new("results/a")));
        for other in ["", "process 1, running plan a into b", "process x, y", "\0"] {
            write(other.to_owned());
            assert_eq!(Lab::in_state(state.path()), None, "{other:?}");
        }
    }

    #[test]
    fn a_directory_that_is_not_there_has_the_name_that_it_will_have() {
        let folder = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(folder.path()).unwrap().join("real");
        fs::create_dir(&real).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        for below in ["", "a", "a/b/c"] {
            assert_eq!(canonical(&link.join(below)), real.join(below), "{below:?}");
        }
        let later = canonical(&link.join("a/b"));
        fs::create_dir_all(real.join("a/b")).unwrap();
        assert_eq!(later.as_os_str(), canonical(&link.join("a/b")).as_os_str());
    }
}
