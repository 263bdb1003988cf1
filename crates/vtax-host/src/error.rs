//! What can go wrong on a host, each said with what was tried, on what, why, and the remedy.

use std::io;
use std::path::PathBuf;

/// A failure on the host or in a guest.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A file could not be read, written, moved or removed.
    #[error("cannot {action} {path}: {cause}{}", remedy(.cause))]
    File {
        /// The verb: `read`, `write`, `create`, `remove`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// A program could not be started or waited for.
    #[error("cannot {action} {program}: {cause}")]
    Process {
        /// The verb: `start`, `wait for`.
        action: &'static str,
        /// The program, or what it is to this host.
        program: String,
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
    /// A peer ended its connection.
    #[error("{peer} closed the connection{detail}")]
    Closed {
        /// Whom was talked to.
        peer: String,
        /// What had come until then, or how it broke.
        detail: String,
    },
    /// Something is used by somebody else; it may be free later.
    #[error("{what}: {remedy}")]
    Busy {
        /// What is in use, and by whom.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// A name, a file or a variable that the user gave says nothing that can be used.
    #[error("{what} is not valid: {problem}")]
    Invalid {
        /// What was given.
        what: String,
        /// What is wrong with it, or what would be right.
        problem: String,
    },
    /// A plan sets what this host cannot be set to.
    #[error("{0}")]
    Setting(String),
    /// Anything else that no caller could act on, in a sentence with its remedy.
    #[error("{0}")]
    Other(String),
    /// An instrument or the sampling thread failed.
    #[error(transparent)]
    Observe(#[from] vtax_observe::ObserveError),
    /// The user asked to stop (SIGINT, SIGTERM).
    #[error("interrupted")]
    Interrupted,
}

fn remedy(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::PermissionDenied => "; run vtax as root",
        io::ErrorKind::StorageFull => "; make room",
        _ => "",
    }
}

fn tail(text: &str) -> String {
    if text.trim().is_empty() {
        return String::new();
    }
    let lines: Vec<&str> = text.trim_end().trim_start_matches('\n').lines().collect();
    let shown = &lines[lines.len().saturating_sub(12)..];
    format!(":\n    {}", shown.join("\n    "))
}

impl HostError {
    /// For `map_err` on starting a program or waiting for it.
    pub fn process(
        action: &'static str,
        program: impl Into<String>,
    ) -> impl FnOnce(io::Error) -> Self {
        let program = program.into();
        move |cause| Self::Process {
            action,
            program,
            cause,
        }
    }

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
