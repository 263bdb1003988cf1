// SPDX-License-Identifier: Apache-2.0
//! The restoration of a host after a run that was cut off.

use crate::LabError;
use serde::Serialize;
use std::fmt;
use std::path::Path;
use tracing::warn;
use vtax_host::cell::cgroup;
use vtax_host::journal::Journal;
use vtax_host::lock::Lock;

/// A change that a cut-off run left on this host, and whether it was undone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RestoredChange {
    /// The change, as text.
    pub change: String,
    /// The reason why it could not be undone and was removed from the journal; `None` for any other change.
    pub forgotten: Option<String>,
    /// The reason why the present value was left: vtax did not set it. `None`: vtax did set it.
    pub left: Option<String>,
}

impl fmt::Display for RestoredChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.forgotten, &self.left) {
            (None, None) => write!(f, "restored: {}", self.change),
            (None, Some(why)) => write!(f, "not restored: {}: {why}", self.change),
            (Some(cause), _) => write!(f, "forgotten, not restored: {} ({cause})", self.change),
        }
    }
}

/// Undoes the changes in the journal, the newest first.
///
/// # Errors
/// When a change cannot be undone; with `forget`, only when the journal itself cannot be written.
pub fn restore(state_dir: &Path, forget: bool) -> Result<Vec<RestoredChange>, LabError> {
    let _lock = Lock::acquire(state_dir, "restoring the host")?;
    let mut journal = Journal::open(state_dir)?;
    let mut restored: Vec<RestoredChange> = journal
        .pending()
        .iter()
        .map(|change| RestoredChange {
            change: change.to_string(),
            forgotten: None,
            left: None,
        })
        .collect();
    while let Err(cause) = journal.undo_all() {
        if !forget {
            return Err(cause.into());
        }
        // The newest change that is left is the one that could not be undone.
        let failed = journal.pending().len().checked_sub(1);
        if let Some(entry) = failed.and_then(|newest| restored.get_mut(newest)) {
            entry.forgotten = Some(cause.to_string());
            warn!("{entry}");
        }
        journal.forget_last()?;
    }
    for left in journal.take_left() {
        let change = left.change.to_string();
        let mut same = restored.iter_mut().filter(|entry| entry.change == change);
        if let Some(entry) = same.find(|entry| entry.left.is_none()) {
            entry.left = Some(left.why);
        }
    }
    // Probes are not in the journal. Their control groups remain only after a kill.
    cgroup::sweep_probes();
    restored.reverse();
    Ok(restored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use vtax_host::journal::Change;

    #[test]
    fn what_is_restored_and_what_is_given_up_are_distinguished_in_words() {
        let state = tempfile::tempdir().unwrap();
        let ours = state.path().join("vtax-scratch");
        fs::create_dir(&ours).unwrap();
        let foreign = state.path().join("foreign");
        fs::create_dir(&foreign).unwrap();
        let mut journal = Journal::open(state.path()).unwrap();
        for path in [&ours, &foreign] {
            let path = path.clone();
            journal.record(Change::Directory { path }).unwrap();
        }
        drop(journal);

        assert!(restore(state.path(), false).is_err());
        let restored = restore(state.path(), true).unwrap();
        let words: Vec<String> = restored.iter().map(ToString::to_string).collect();
        assert!(
            words[0].starts_with(&format!(
                "forgotten, not restored: the directory {}",
                foreign.display()
            )),
            "{words:?}"
        );
        assert_eq!(
            words[1],
            format!("restored: the directory {}", ours.display())
        );
        assert!(foreign.exists() && !ours.exists());
        assert_eq!(restore(state.path(), true).unwrap(), []);
    }
}
