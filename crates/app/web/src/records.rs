// SPDX-License-Identifier: Apache-2.0
//! The records of runs that the page started or stopped, in the directory of vtax's state. Each results directory has a
//! folder with the plan, the run's standard output (`events`, JSON lines of `vtax run --json`), its standard error
//! (`messages`), and a record. A later server finds the runs of an earlier one there.

use crate::plans::PlanSummary;
use crate::process::Process;
use crate::testbed::Testbed;
use crate::text;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use vtax_files::{Dir, FileError};

const MAX_RECORDS: usize = 64;
const MAX_MESSAGE_LINES: usize = 12;

/// The last request of the page to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunRequest {
    /// To run.
    #[default]
    Run,
    /// To end once a present trial is over. Holds the number of finished trials at the request.
    Pause(usize),
    /// The trial was over, and the signal to end was sent.
    Paused,
    /// The signal to end was sent at once.
    Cancelled,
}

/// The record of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Its results directory, as [`crate::lab::canonical`] names it.
    pub results: PathBuf,
    /// `local`, `ssh:HOST`, `testbed:kvm`.
    pub place: String,
    /// Whether durations are shrunk.
    pub quick: bool,
    /// The settings of a run in a testbed.
    #[serde(default)]
    pub testbed: Testbed,
    /// The start of the run, RFC 3339.
    pub started: String,
    /// The trials of its plan and their time; none where the page did not start the run.
    pub plan: Option<PlanSummary>,
    /// The process that runs it.
    pub process: Option<Process>,
    /// The last request.
    pub asked: RunRequest,
}

impl Record {
    /// Whether its process still runs.
    pub fn is_alive(&self) -> bool {
        self.process.is_some_and(Process::is_alive)
    }
}

/// The folder of all records.
#[derive(Debug, Clone)]
pub struct Records {
    folder: PathBuf,
}

impl Records {
    /// The records below the directory of vtax's state.
    pub fn below(state: &Path) -> Self {
        Self {
            folder: state.join("web"),
        }
    }

    /// The folder of one run; created where it does not exist.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn make(&self, results: &Path) -> Result<Dir, FileError> {
        // Other users may not read plans and messages.
        Dir::private(&self.folder_of(results))
    }

    /// The folder of one run, which need not exist.
    pub fn folder_of(&self, results: &Path) -> PathBuf {
        let digest = Sha256::digest(results.as_os_str().as_encoded_bytes());
        let name: String = digest
            .iter()
            .take(12)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        self.folder.join(name)
    }

    /// The record of a run, if there is one.
    pub fn of_results(&self, results: &Path) -> Option<Record> {
        read(&self.folder_of(results)).filter(|record| record.results == results)
    }

    /// Every record, the newest first.
    pub fn all(&self) -> Vec<Record> {
        let folders = self.folders();
        folders.iter().filter_map(|folder| read(folder)).collect()
    }

    /// Writes a record.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep(&self, record: &Record) -> io::Result<()> {
        let folder = self.make(&record.results)?;
        folder.write("record.json", &serde_json::to_vec_pretty(record)?)?;
        self.remove_oldest();
        Ok(())
    }

    /// The last lines of a run's standard error.
    pub fn messages(&self, results: &Path) -> Vec<String> {
        let file = fs::File::open(self.folder_of(results).join("messages"));
        text::last_lines(file, MAX_MESSAGE_LINES)
    }

    fn folders(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut folders: Vec<_> = entries
            .map(|entry| {
                let at = fs::metadata(entry.path().join("record.json"));
                (at.and_then(|known| known.modified()).ok(), entry.path())
            })
            .collect();
        folders.sort();
        folders.reverse();
        folders.into_iter().map(|(_, path)| path).collect()
    }

    /// Removes the oldest records of runs that are over.
    fn remove_oldest(&self) {
        for folder in self.folders().into_iter().skip(MAX_RECORDS) {
            if !read(&folder).is_some_and(|record| record.is_alive()) {
                // A folder that cannot be removed stays; it takes a few kilobytes.
                let _ = vtax_files::remove_all(&folder);
            }
        }
    }
}

fn read(folder: &Path) -> Option<Record> {
    serde_json::from_slice(&fs::read(folder.join("record.json")).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_found_again_and_the_oldest_are_forgotten() {
        let state = tempfile::tempdir().unwrap();
        let records = Records::below(state.path());
        let record = |number: usize| Record {
            results: PathBuf::from(format!("/results/{number}")),
            place: "local".to_owned(),
            quick: false,
            testbed: Testbed::default(),
            started: String::new(),
            plan: None,
            process: if number == 0 {
                Process::from_id(std::process::id())
            } else {
                None
            },
            asked: RunRequest::Pause(number),
        };
        assert_eq!(records.of_results(Path::new("/results/0")), None);
        for number in 0..MAX_RECORDS + 9 {
            records.keep(&record(number)).unwrap();
        }
        let last = MAX_RECORDS + 8;
        assert_eq!(
            records.of_results(&record(last).results),
            Some(record(last))
        );
        assert_eq!(records.of_results(&record(1).results), None, "the oldest");
        assert_eq!(
            records.of_results(&record(0).results),
            Some(record(0)),
            "it runs"
        );
        assert!(records.all().len() <= MAX_RECORDS + 2);
        let folder = records.folder_of(&record(last).results);
        fs::write(folder.join("messages"), "one\n\x1b[2Jtwo\n").unwrap();
        assert_eq!(records.messages(&record(last).results), ["one", " [2Jtwo"]);
    }
}
