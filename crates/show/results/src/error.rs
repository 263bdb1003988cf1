// SPDX-License-Identifier: Apache-2.0
//! Errors of a results directory, each with the file and the remedy.

use std::path::{Path, PathBuf};
use vtax_files::{FileError, Refusal};

/// A results directory could not be created, read or extended.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// An operation on a file or directory failed.
    #[error(transparent)]
    File(FileError),
    /// The directory already holds a run.
    #[error("{} already holds a run: resume it, or choose another directory", .0.display())]
    AlreadyARun(PathBuf),
    /// The directory is not empty and is not a run.
    #[error("{} is not empty and holds no run (there is `{found}`): choose another directory", path.display())]
    NotEmpty {
        /// The directory.
        path: PathBuf,
        /// One of its entries.
        found: String,
    },
    /// The directory has no `run.json`.
    #[error("{} is not a results directory: it has no run.json", .0.display())]
    NotARun(PathBuf),
    /// The format is newer than this vtax.
    #[error("{} is written in results format {found}; this vtax reads up to {}: use a newer vtax", path.display(), super::FORMAT)]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Its format version.
        found: u64,
    },
    /// A file of the run's record was changed after the run began.
    #[error("{} was changed after the run began, by its digest in SHA256SUMS: restore it from a copy, or run the plan into another directory", .0.display())]
    Edited(PathBuf),
    /// The sums of the run lack a file of its record.
    #[error("{} has no digest in SHA256SUMS, so that it cannot be checked: an earlier vtax began the run, or the sums were changed; run the plan into another directory", .0.display())]
    NoSum(PathBuf),
    /// The content of a file is invalid.
    #[error("{} is corrupted: {why}. {remedy}", path.display())]
    Corrupted {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
        /// The remedy.
        remedy: String,
    },
    /// A file is longer than any that vtax writes.
    #[error("{} is longer than {} MiB, more than vtax writes there, and is not read: restore it from a copy, or move it away", path.display(), most >> 20)]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Longest file that is read, in bytes.
        most: u64,
    },
    /// A record has more items of one type than any run needs.
    #[error("{} has {count} {what}, and at most {most} are read: split the plan into several", path.display())]
    TooMany {
        /// The file.
        path: PathBuf,
        /// The type of item, such as `treatments`.
        what: &'static str,
        /// Number of items in the record.
        count: usize,
        /// Most items that are read.
        most: usize,
    },
    /// The schedule has no such trial.
    #[error("the run has no trial {index}: its schedule has {planned} trials")]
    NoSuchTrial {
        /// The requested index.
        index: u32,
        /// Number of trials in the schedule.
        planned: usize,
    },
    /// The trial already exists.
    #[error("{} exists already: a finished trial is never overwritten; move it away to run it again", .0.display())]
    TrialExists(PathBuf),
    /// Two directories do not belong to one run.
    #[error("{} and {} are not shards of one run: their {what} differ", first.display(), other.display())]
    NotOneRun {
        /// The first directory.
        first: PathBuf,
        /// The one that differs from it.
        other: PathBuf,
        /// The parts that differ.
        what: String,
    },
    /// Two directories come from machines of different kinds.
    #[error("{} and {} ran on machines of different kinds ({differences}): a mean of both would describe neither. Report them apart, or compare them: vtax compare", first.display(), other.display())]
    NotOneKind {
        /// The first directory.
        first: PathBuf,
        /// The one that differs from it.
        other: PathBuf,
        /// The facts that differ.
        differences: String,
    },
}

impl From<FileError> for ResultsError {
    fn from(error: FileError) -> Self {
        if let Some(Refusal::TooLong(most)) = error.refusal() {
            return Self::TooLong {
                most: *most,
                path: error.path,
            };
        }
        Self::File(error)
    }
}

impl ResultsError {
    /// For `map_err`: a failed `action` on `path`.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |cause| {
            Self::File(FileError {
                action,
                path,
                cause,
            })
        }
    }
}
