// SPDX-License-Identifier: Apache-2.0
//! Names of runs: their directories below the root, and the reasons why a name is refused.

use std::path::PathBuf;
use vtax_files::FileError;

/// The largest number of directories between the root and a run.
pub const MAX_DEPTH: usize = 4;

/// A path that names no results directory.
#[derive(Debug, thiserror::Error)]
pub enum NameError {
    /// A NUL byte in the path.
    #[error("{0:?} contains a NUL byte, which no name has")]
    Nul(String),
    /// A path that leaves the root, or contains a hidden name.
    #[error(
        "{dir:?} is no name below {}: no .., and nothing that begins with a dot or a slash",
        root.display()
    )]
    Outside {
        /// The path.
        dir: String,
        /// The root.
        root: PathBuf,
    },
    /// A path of too many directories.
    #[error("{0:?} is more than {MAX_DEPTH} directories below the root")]
    TooDeep(String),
    /// A path that is not text.
    #[error("{} has a name that is no text", .0.display())]
    NoText(PathBuf),
    /// The path exists and is not a directory.
    #[error("{} is no directory", .0.display())]
    NoDirectory(PathBuf),
    /// A link is on the path.
    #[error(transparent)]
    File(#[from] FileError),
}

/// A name that a new run cannot have.
#[derive(Debug, thiserror::Error)]
pub enum NewRunError {
    /// No directory can have that name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The name is the one of the root.
    #[error("give the run a name: that of its directory")]
    NoName,
    /// The directory is below the results of another run.
    #[error("{} is within another run: {}", path.display(), run.display())]
    WithinRun {
        /// The directory.
        path: PathBuf,
        /// The directory of the other run.
        run: PathBuf,
    },
    /// The directory is not empty.
    #[error(
        "there is something in {} already: give the run another name, or go on with that one",
        .0.display()
    )]
    NotEmpty(PathBuf),
}
