// SPDX-License-Identifier: Apache-2.0
//! The errors of the lab.

use std::io;
use std::path::PathBuf;
use vtax_host::HostError;
use vtax_observe::ObserveError;
use vtax_results::ResultsError;

/// A failure of the lab.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The host, a guest or a load failed.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The results directory cannot be read or written.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// The plan cannot be run as written.
    #[error("{0}")]
    Plan(String),
    /// A file or image that the plan names is not where the plan runs.
    #[error(transparent)]
    Path(#[from] PathError),
    /// This host, or another machine of the plan, lacks something that the plan needs.
    #[error("{0}")]
    CannotHere(String),
    /// An external guest went away in a trial and did not come back: the run ends.
    #[error(
        "the guest {guest} does not answer, and did not come back within {seconds} s ({evidence}): {cause}; \
         finished trials are kept: start the guest and run the same command again"
    )]
    GuestGone {
        /// The guest, as ssh takes it.
        guest: String,
        /// The time limit.
        seconds: u64,
        /// The reason of the last failed login.
        evidence: String,
        /// The failure of the trial.
        cause: String,
    },
}

/// A plan whose files are not where it is to run.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// A relative path that does not exist here.
    #[error(
        "`{key}` has {text}, and {} cannot be read: {cause}; a relative path starts at the directory of the plan's file",
        path.display()
    )]
    Missing {
        /// The key.
        key: &'static str,
        /// The value.
        text: String,
        /// The path.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// A relative path, of a plan that runs on another machine.
    #[error(
        "`{key}` has {text}, a path relative to the plan's file, and {place} gets only the text of the plan: \
         give the absolute path that it has there, or run the plan by `vtax run` on this host"
    )]
    Relative {
        /// The key.
        key: &'static str,
        /// The value.
        text: String,
        /// The place.
        place: String,
    },
    /// Any file or image, of a plan that runs in an emulated host.
    #[error(
        "`{key}` has {text}, which is not copied into an emulated host: run the plan without --place {place}"
    )]
    Emulated {
        /// The key.
        key: &'static str,
        /// The value.
        text: String,
        /// The place.
        place: String,
    },
}

impl From<ObserveError> for LabError {
    fn from(error: ObserveError) -> Self {
        Self::Host(error.into())
    }
}

impl LabError {
    /// Any other failure, in a sentence with its remedy.
    pub fn other(message: impl Into<String>) -> Self {
        Self::Host(HostError::Other(message.into()))
    }

    /// Whether no further trial can run.
    #[must_use]
    pub fn ends_run(&self) -> bool {
        matches!(self, Self::GuestGone { .. })
    }

    /// Whether the user asked to stop (SIGINT, SIGTERM).
    #[must_use]
    pub fn is_interrupt(&self) -> bool {
        matches!(self, Self::Host(HostError::Interrupted))
    }
}
