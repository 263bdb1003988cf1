//! Which lab runs on this host: what its lock says. The lock is only read; who tried to take it would
//! stand in the way of a run that starts.

use crate::process::Process;
use std::fs;
use std::path::{Path, PathBuf};

/// A run that goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lab {
    /// Who runs it.
    pub process: Process,
    /// Its results directory.
    pub results: PathBuf,
}

impl Lab {
    /// The one whose lock is in a directory of state.
    pub fn of(state: &Path) -> Option<Self> {
        let text = fs::read_to_string(state.join("lock")).ok()?;
        let (number, purpose) = text.trim_end().strip_prefix("process ")?.split_once(", ")?;
        // What an earlier one left in the file may name a number that another process has now.
        let process = Process::of_vtax(number.parse().ok()?)?;
        let (_, into) = purpose.rsplit_once(" into ")?;
        let beside = fs::read_link(format!("/proc/{}/cwd", process.id)).unwrap_or_default();
        Some(Self {
            process,
            results: same(&beside.join(into)),
        })
    }
}

/// One name for one directory, also for one that is not there yet.
pub fn same(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    fs::canonicalize(&whole).unwrap_or_else(|_| {
        let above = whole.parent().map(fs::canonicalize);
        match (above, whole.file_name()) {
            (Some(Ok(above)), Some(name)) => above.join(name),
            _ => whole.clone(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_of_a_living_vtax_names_its_run_and_no_other_does() {
        let state = tempfile::tempdir().unwrap();
        let tell = |text: String| fs::write(state.path().join("lock"), text).unwrap();
        assert_eq!(Lab::of(state.path()), None);
        // The test's own program is a vtax by its name.
        let own = std::process::id();
        tell(format!(
            "process {own}, running plan a into b into results/a\n"
        ));
        let lab = Lab::of(state.path()).unwrap();
        assert_eq!(lab.process.id, own);
        assert_eq!(lab.results, same(Path::new("results/a")));
        for other in ["", "process 1, running plan a into b", "process x, y", "\0"] {
            tell(other.to_owned());
            assert_eq!(Lab::of(state.path()), None, "{other:?}");
        }
    }
}
