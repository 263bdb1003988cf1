//! The errors of the lab.

use vtax_host::HostError;
use vtax_observe::ObserveError;
use vtax_report::results::ResultsError;

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

    /// Whether the user asked to stop (SIGINT, SIGTERM).
    #[must_use]
    pub fn is_interrupt(&self) -> bool {
        matches!(self, Self::Host(HostError::Interrupted))
    }
}
