//! What can go wrong with a results directory, always with the file and the remedy.

use std::path::{Path, PathBuf};
use vtax_files::{FileError, Refusal};

/// A results directory could not be created, read or extended.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// An input or output operation failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, such as `create`.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The directory already holds a run.
    #[error("{} already holds a run: resume it, or choose another directory", .0.display())]
    AlreadyARun(PathBuf),
    /// The directory holds something that is not a run.
    #[error("{} is not empty and holds no run (there is `{found}`): choose another directory", path.display())]
    NotEmpty {
        /// The directory.
        path: PathBuf,
        /// One thing in it.
        found: String,
    },
    /// There is no run here.
    #[error("{} is not a results directory: it has no run.json", .0.display())]
    NotARun(PathBuf),
    /// A newer vtax wrote it.
    #[error("{} is written in results format {found}; this vtax reads up to {}: use a newer vtax", path.display(), super::FORMAT)]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Its format version.
        found: u64,
    },
    /// A file does not hold what it should.
    #[error("{} is corrupted: {why}. {remedy}", path.display())]
    Corrupted {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
        /// What to do.
        remedy: String,
    },
    /// A file is longer than any that vtax writes.
    #[error("{} is longer than {} MiB, more than vtax writes there, and is not read: restore it from a copy, or move it away", path.display(), most >> 20)]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The most that is read, in bytes.
        most: u64,
    },
    /// A record has more of something than any run needs.
    #[error("{} has {count} {what}, and at most {most} are read: split the plan into several", path.display())]
    TooMany {
        /// The file.
        path: PathBuf,
        /// Of what, such as `treatments`.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// The most that is read.
        most: usize,
    },
    /// The schedule has no such trial.
    #[error("the run has no trial {index}: its schedule has {planned} trials")]
    NoSuchTrial {
        /// The index that was asked for.
        index: u32,
        /// How many there are.
        planned: usize,
    },
    /// The trial is already there.
    #[error("{} exists already: a finished trial is never overwritten; move it away to run it again", .0.display())]
    TrialExists(PathBuf),
    /// Two directories do not belong to one run.
    #[error("{} and {} are not shards of one run: their {what} differ", first.display(), other.display())]
    NotOneRun {
        /// The first directory.
        first: PathBuf,
        /// The one that differs from it.
        other: PathBuf,
        /// In what they differ.
        what: String,
    },
    /// Two directories come from machines of different kinds.
    #[error("{} and {} ran on machines of different kinds ({differences}): a mean of both would describe neither. Report them apart, or compare them: vtax compare", first.display(), other.display())]
    NotOneKind {
        /// The first directory.
        first: PathBuf,
        /// The one that differs from it.
        other: PathBuf,
        /// In what the machines differ.
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
        Self::Io {
            action: error.action,
            path: error.path,
            source: error.cause,
        }
    }
}

impl ResultsError {
    /// An [`ResultsError::Io`] for use in `map_err`.
    pub(crate) fn io(
        action: &'static str,
        path: &Path,
    ) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}
