// SPDX-License-Identifier: Apache-2.0
//! Errors of observation; each message includes the remedy where there is one.

use std::io;
use std::path::PathBuf;

/// An instrument could not be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// A kernel file could not be read.
    #[error("cannot read {path}: {cause}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: io::Error,
    },
    /// A kernel file did not hold what its interface promises.
    #[error("{path} does not look as expected: {detail}")]
    Format {
        /// The file.
        path: PathBuf,
        /// What was expected and what was found.
        detail: String,
    },
    /// A counter changed in a way that leaves some of it uncounted; everything else was read.
    #[error("{name} in {path} {what} ({numbers})")]
    Counter {
        /// The counter.
        name: String,
        /// The file or the device of the counter.
        path: PathBuf,
        /// The change.
        what: &'static str,
        /// The values before and after, or the amount.
        numbers: String,
    },
    /// The instrument exists but this process may not use it.
    #[error("no permission for {what}: {remedy}")]
    Permission {
        /// The instrument.
        what: String,
        /// The capability or setting that is missing.
        remedy: String,
    },
    /// The instrument does not exist on this host.
    #[error("cannot observe {what}: {reason}")]
    Unavailable {
        /// The instrument.
        what: String,
        /// The evidence.
        reason: String,
    },
    /// A program that the instrument needs failed.
    #[error("`{command}` failed: {detail}")]
    Program {
        /// The command line.
        command: String,
        /// Its exit status and the end of its output.
        detail: String,
    },
    /// The samples could not be stored.
    #[error("cannot store the samples: {cause}")]
    Sink {
        /// The cause.
        #[source]
        cause: io::Error,
    },
    /// The sampling thread ended early.
    #[error("the sampling thread stopped: {0}")]
    Stopped(String),
}

impl ObserveError {
    /// The file `path` could not be read.
    pub fn read(path: impl Into<PathBuf>, cause: impl Into<io::Error>) -> Self {
        Self::Read {
            path: path.into(),
            cause: cause.into(),
        }
    }

    /// The file or device `path` did not hold what its interface promises.
    pub fn format(path: impl Into<PathBuf>, detail: impl Into<String>) -> Self {
        Self::Format {
            path: path.into(),
            detail: detail.into(),
        }
    }

    /// The instrument `what` does not exist, or does not work, for this reason.
    pub fn unavailable(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Unavailable {
            what: what.into(),
            reason: reason.into(),
        }
    }

    /// The message without its numbers, equal for every repetition of one problem, so that a caller can report it once.
    pub fn without_numbers(&self) -> String {
        match self {
            Self::Counter {
                name, path, what, ..
            } => format!("{name} in {} {what}", path.display()),
            other => other.to_string(),
        }
    }
}

impl From<vtax_kernel::KernelError> for ObserveError {
    fn from(error: vtax_kernel::KernelError) -> Self {
        match error {
            vtax_kernel::KernelError::Read { path, cause } => Self::Read { path, cause },
            vtax_kernel::KernelError::Format { path, detail } => Self::Format { path, detail },
        }
    }
}
