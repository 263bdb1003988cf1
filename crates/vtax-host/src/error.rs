//! What can go wrong on a host, each said with what was tried, on what, why, and the remedy.

use std::io;
use std::path::PathBuf;

/// A failure on the host or in a guest.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A file could not be read, written, moved or removed.
    #[error("cannot {action} {path}: {cause}")]
    File {
        /// The verb: `read`, `write`, `create`, `remove`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// A program ended with an error.
    #[error("`{command}` failed ({status}){}", tail(.output))]
    Program {
        /// The command line.
        command: String,
        /// Its exit status in words.
        status: String,
        /// The end of what it printed.
        output: String,
    },
    /// A program or capability that this needs is missing.
    #[error("{what} is missing: {remedy}")]
    Missing {
        /// What is missing.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// Something did not happen in time.
    #[error("{what} did not happen within {seconds} s{}", tail(.evidence))]
    Timeout {
        /// What was waited for.
        what: String,
        /// For how long.
        seconds: u64,
        /// The last that was seen, such as the end of a guest's console.
        evidence: String,
    },
    /// A peer answered something that its protocol does not allow.
    #[error("{peer} answered unexpectedly: {detail}")]
    Protocol {
        /// Whom was talked to.
        peer: String,
        /// What was wrong.
        detail: String,
    },
    /// A plan sets what this host cannot be set to.
    #[error("{0}")]
    Setting(String),
    /// Anything else, in a sentence with its remedy.
    #[error("{0}")]
    Other(String),
    /// An instrument or the sampling thread failed.
    #[error(transparent)]
    Observe(#[from] vtax_observe::ObserveError),
    /// The user asked to stop (SIGINT, SIGTERM).
    #[error("interrupted")]
    Interrupted,
}

fn tail(text: &str) -> String {
    if text.trim().is_empty() {
        return String::new();
    }
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let shown = &lines[lines.len().saturating_sub(12)..];
    format!(":\n    {}", shown.join("\n    "))
}

impl HostError {
    /// For `map_err` on a file operation.
    pub fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |cause| Self::File {
            action,
            path,
            cause,
        }
    }
}
