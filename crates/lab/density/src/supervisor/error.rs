// SPDX-License-Identifier: Apache-2.0
//! Failures to make, boot, probe and end guests.

use std::io;
use std::process::ExitStatus;
use vtax_host::HostError;

/// A failure of one guest or of its population.
#[derive(Debug, thiserror::Error)]
pub(super) enum GuestError {
    /// A file, a program or another supervisor failed.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The monitor of micro VMs failed.
    #[error(transparent)]
    Monitor(#[from] vtax_mvm::Error),
    /// The kernel started no process or thread.
    #[error("cannot start {what}: {cause}; {remedy}")]
    Start {
        /// The process or thread.
        what: String,
        /// The kernel's reason.
        cause: io::Error,
        /// The limits or packages to check.
        remedy: &'static str,
    },
    /// A program that makes, runs or removes a guest ended with an error.
    #[error("`{command}` ended ({status}): {reason}")]
    Program {
        /// The command.
        command: String,
        /// Its exit status.
        status: ExitStatus,
        /// The end of its output.
        reason: String,
    },
    /// A guest did not boot.
    #[error("{what}: {reason}; {remedy}")]
    Boot {
        /// The guest, and whether its VMM ended or the time was over.
        what: String,
        /// The last line of its console or its VMM.
        reason: String,
        /// The remedy.
        remedy: String,
    },
    /// Guests of the monitor of micro VMs died.
    #[error("{} died while booting; see the kernel log for KVM's errors", vtax_core::counted(*.0, "guest"))]
    Died(u32),
    /// A guest or a monitor did not answer.
    #[error("{peer} gave no answer: {cause}")]
    NoAnswer {
        /// The guest or monitor.
        peer: String,
        /// The failure of its connection.
        cause: io::Error,
    },
    /// A guest sent an answer that is not the expected one.
    #[error("{peer} answered {answer}")]
    WrongAnswer {
        /// The guest.
        peer: String,
        /// Its answer, free of control characters.
        answer: String,
    },
    /// Another supervisor reported this failure.
    #[error("{0}")]
    Reported(String),
    /// A guest's thread panicked.
    #[error("the thread of a guest panicked")]
    Panicked,
    /// Guests with work have no connection for probes.
    #[error("a guest with work cannot be probed: probes go to the guests without work")]
    NotProbed,
    /// The population is empty.
    #[error("cannot probe a guest: the population is empty")]
    Empty,
    /// The monitor of micro VMs has stopped.
    #[error("cannot make guests: their monitor has stopped")]
    Stopped,
}

/// A result of this module.
pub(super) type Result<T> = std::result::Result<T, GuestError>;

impl GuestError {
    /// Returns a function for `map_err` on a connection to `peer`.
    pub(super) fn no_answer(peer: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let peer = peer.into();
        move |cause| Self::NoAnswer { peer, cause }
    }
}

/// The last line of `text` that is not blank, free of control characters.
pub(super) fn last_line(text: &str) -> String {
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty());
    vtax_host::untrusted::shown(line.unwrap_or("no reason given"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_free_of_control_characters_and_never_empty() {
        let line = last_line("one\n two \x1b[2J\n\n");
        assert!(line.starts_with("two") && !line.contains("\x1b"), "{line}");
        assert_eq!(last_line(" \n"), "no reason given");
    }

    #[test]
    fn an_error_names_what_was_tried_on_what_why_and_the_remedy() {
        let start = GuestError::Start {
            what: "a process".to_owned(),
            cause: io::ErrorKind::WouldBlock.into(),
            remedy: "check kernel.pid_max",
        };
        assert_eq!(
            start.to_string(),
            "cannot start a process: operation would block; check kernel.pid_max"
        );
        let silent = GuestError::no_answer("guest 7")(io::ErrorKind::TimedOut.into());
        assert_eq!(silent.to_string(), "guest 7 gave no answer: timed out");
        assert!(GuestError::Died(2).to_string().starts_with("2 guests died"));
    }
}
