//! The host-state journal: before vtax changes anything that outlives its processes, the old
//! state is written and synced here, so that it can be restored on exit, on a signal, and at
//! the next start after `kill -9`.
//!
//! One JSON line an entry, in the state directory (`/var/lib/vtax`, or `$VTAX_STATE_DIR`).

use crate::LabError;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// One change to the host, recorded before it is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "change")]
pub enum Change {
    /// A kernel setting gets a new value.
    Setting {
        /// The file under `/sys` or `/proc`.
        path: PathBuf,
        /// What to write back.
        old: String,
    },
    /// A control group directory is created; processes in it are killed when it is undone.
    Cgroup {
        /// The directory.
        path: PathBuf,
    },
    /// A temporary directory is created; it is removed whole when it is undone.
    Directory {
        /// The directory.
        path: PathBuf,
    },
}

/// The journal of this process. Changes are undone in reverse order.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    changes: Vec<Change>,
}

impl Journal {
    /// Opens the journal of `state_dir`, with whatever an earlier process left in it.
    ///
    /// # Errors
    /// When the directory or file cannot be created or read.
    pub fn open(state_dir: &Path) -> Result<Self, LabError> {
        fs::create_dir_all(state_dir).map_err(LabError::file("create", state_dir))?;
        let path = state_dir.join("journal.jsonl");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(cause) => return Err(LabError::File { action: "read", path, cause }),
        };
        // A torn last line is an entry whose change was never made: it was not yet synced.
        let changes = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(LabError::file("write", &path))?;
        Ok(Self { path, file, changes })
    }

    /// What is recorded and not yet undone, oldest first.
    pub fn pending(&self) -> &[Change] {
        &self.changes
    }

    /// Records a change and syncs it; only after this returns may the change be made.
    ///
    /// # Errors
    /// When it cannot be stored, in which case the change must not be made.
    pub fn record(&mut self, change: Change) -> Result<(), LabError> {
        self.record_all(vec![change])
    }

    /// Records several changes with one sync; only after this returns may they be made.
    ///
    /// # Errors
    /// When they cannot be stored, in which case none of them must be made.
    pub fn record_all(&mut self, changes: Vec<Change>) -> Result<(), LabError> {
        // A torn line of an earlier crash must not swallow the first of these.
        let mut lines = String::from("\n");
        for change in &changes {
            lines += &serde_json::to_string(change).map_err(|cause| LabError::Other(cause.to_string()))?;
            lines.push('\n');
        }
        self.file
            .write_all(lines.as_bytes())
            .and_then(|()| self.file.sync_data())
            .map_err(LabError::file("write", &self.path))?;
        self.changes.extend(changes);
        Ok(())
    }
}
