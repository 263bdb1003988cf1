// SPDX-License-Identifier: Apache-2.0
//! Errors of a host. Each message names the action, its object, the cause and the remedy.

use crate::untrusted::{shown, shown_lines};
use std::io;
use std::path::PathBuf;
use std::process::Output;

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
        /// The cause.
        #[source]
        cause: io::Error,
    },
    /// A program could not be started or waited for.
    #[error("cannot {action} {program}: {cause}")]
    Process {
        /// The verb: `start`, `wait for`.
        action: &'static str,
        /// The program, or its role on this host.
        program: String,
        /// The cause.
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
        /// The end of its output.
        output: String,
    },
    /// A required program or capability is missing.
    #[error("{} is missing: {remedy}", shown_lines(.what))]
    Missing {
        /// The missing program or capability.
        what: String,
        /// The remedy.
        remedy: String,
    },
    /// A program or capability is there and does not work.
    #[error("{} does not work on this host: {}; {remedy}", shown_lines(.what), shown_lines(.why))]
    Unusable {
        /// The program or capability.
        what: String,
        /// The reason.
        why: String,
        /// The remedy.
        remedy: String,
    },
    /// An event did not happen in time.
    #[error("{} did not happen within {seconds} s{}", shown_lines(.what), tail(.evidence))]
    Timeout {
        /// The event.
        what: String,
        /// The time limit.
        seconds: u64,
        /// The last evidence, such as the end of a guest's console.
        evidence: String,
    },
    /// A peer's response violates its protocol.
    #[error("{peer} answered unexpectedly: {}", shown_lines(.detail))]
    Protocol {
        /// The peer.
        peer: String,
        /// The violation.
        detail: String,
    },
    /// A peer ended its connection.
    #[error("{peer} closed the connection{}", shown_lines(.detail))]
    Closed {
        /// The peer.
        peer: String,
        /// The data received until then, or the cause of the end.
        detail: String,
    },
    /// An image lacks a program of the plan.
    #[error("the image {}: {}", shown_lines(.image), shown_lines(.problem))]
    NotInImage {
        /// The image, as the plan names it.
        image: String,
        /// What it lacks.
        problem: String,
    },
    /// A resource is in use by another process and may be free later.
    #[error("{}: {remedy}", shown_lines(.what))]
    Busy {
        /// The resource and its user.
        what: String,
        /// The remedy.
        remedy: String,
    },
    /// A name, file or variable from the user is not valid.
    #[error("{} is not valid: {}", shown_lines(.what), shown_lines(.problem))]
    Invalid {
        /// The name, file or variable.
        what: String,
        /// The defect, or a valid form.
        problem: String,
    },
    /// A plan sets a value that this host cannot have.
    #[error("{0}")]
    Setting(String),
    /// Any other failure, which no caller can act on: a sentence with its remedy.
    #[error("{}", shown_lines(.0))]
    Other(String),
    /// An instrument or the sampling thread failed.
    #[error(transparent)]
    Observe(#[from] vtax_observe::ObserveError),
    /// A file of the kernel could not be read.
    #[error(transparent)]
    Kernel(#[from] vtax_kernel::KernelError),
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
    let from = lines.len().saturating_sub(12);
    let last: Vec<String> = lines.iter().skip(from).map(|line| shown(line)).collect();
    format!(":\n    {}", last.join("\n    "))
}

impl From<vtax_files::FileError> for HostError {
    fn from(error: vtax_files::FileError) -> Self {
        Self::File {
            action: error.action,
            path: error.path,
            cause: error.cause,
        }
    }
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

    /// The error of a program that ended without success.
    #[must_use]
    pub fn program(command: impl Into<String>, output: &Output) -> Self {
        Self::Program {
            command: command.into(),
            status: output.status.to_string(),
            output: String::from_utf8_lossy(&output.stderr).into_owned(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_message_carries_what_steers_a_terminal() {
        let text = || "\x1b]0;x\x07\n\u{9b}2J".to_owned();
        let errors = [
            HostError::Program {
                command: "ssh".to_owned(),
                status: "1".to_owned(),
                output: text(),
            },
            HostError::Missing {
                what: text(),
                remedy: String::new(),
            },
            HostError::Timeout {
                what: text(),
                seconds: 1,
                evidence: text(),
            },
            HostError::Protocol {
                peer: "it".to_owned(),
                detail: text(),
            },
            HostError::Closed {
                peer: "it".to_owned(),
                detail: text(),
            },
            HostError::Busy {
                what: text(),
                remedy: String::new(),
            },
            HostError::Invalid {
                what: text(),
                problem: text(),
            },
            HostError::Other(text()),
        ];
        for error in errors {
            let message = error.to_string();
            let steers = |c: char| c.is_control() && c != '\n';
            assert!(!message.contains(steers), "{message:?}");
            assert!(message.contains("]0;x"), "{message:?}");
        }
    }
}
