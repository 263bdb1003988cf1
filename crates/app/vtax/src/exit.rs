// SPDX-License-Identifier: Apache-2.0
//! The exit statuses of every command.

use crate::commands::one_liner::CommandLineError;
use crate::commands::{GatesNotPassed, NothingCounts};
use rustix::process::geteuid;
use std::error::Error;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use vtax_host::HostError;
use vtax_host::cell::requirements;
use vtax_lab::LabError;
use vtax_load::workload::command::words::join;
use vtax_report::compare::NothingShared;
use vtax_report::gate::{GateError, GateOutcome};

/// The exit status of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The command did what was asked.
    Done = 0,
    /// The command failed; standard error gives the reason.
    Failed = 1,
    /// The command line is wrong. A gate that does not fit the compared runs is part of it.
    Usage = 2,
    /// No trial counts, or the trials are too few to decide a gate.
    Inconclusive = 3,
    /// A gate was missed.
    GateMissed = 4,
    /// This host cannot do what was asked.
    CannotHere = 5,
    /// The user stopped the command: 128 + SIGINT.
    Interrupted = 130,
}

impl Exit {
    /// The status for a command's error.
    pub fn from_cause(cause: &(dyn Error + 'static)) -> Self {
        if let Some(gates) = cause.downcast_ref::<GatesNotPassed>() {
            return match gates.worst {
                GateOutcome::Missed => Self::GateMissed,
                GateOutcome::Undecided | GateOutcome::Passed => Self::Inconclusive,
            };
        }
        if cause.is::<NothingCounts>() {
            Self::Inconclusive
        } else if cause.is::<GateError>()
            || cause.is::<CommandLineError>()
            || cause.is::<NothingShared>()
        {
            Self::Usage
        } else if cause.is::<CannotHere>() || cause.is::<NeedsRoot>() || is_missing(cause) {
            Self::CannotHere
        } else if is_interrupt(cause) {
            Self::Interrupted
        } else {
            Self::Failed
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// What this host cannot do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CannotHere(pub &'static str);

/// A command that needs root, of another user.
#[derive(Debug, thiserror::Error)]
#[error("{command}   # {why}, which needs root")]
pub struct NeedsRoot {
    /// The command to type.
    command: String,
    /// What it does.
    why: &'static str,
}

impl NeedsRoot {
    /// Checks that this process is root's.
    ///
    /// # Errors
    /// When it is not; with this process's command line as root would type it.
    pub fn check(why: &'static str) -> Result<(), Self> {
        if geteuid().is_root() {
            Ok(())
        } else {
            Err(Self::for_arguments(std::env::args_os().skip(1), why))
        }
    }

    /// Checks that this process has the capabilities that trials need.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_capabilities(why: &'static str) -> Result<(), Self> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let lacking = requirements::lacking(&status);
        if lacking.iter().any(|capability| capability.needed) {
            Self::check(why)
        } else {
            Ok(())
        }
    }

    /// The error that names a command line of vtax. sudo does not look for programs where users install them.
    pub fn for_arguments(arguments: impl IntoIterator<Item = OsString>, why: &'static str) -> Self {
        let program = std::env::current_exe().ok();
        let is_found = |path: &PathBuf| {
            let folders = ["/usr/bin", "/usr/local/bin"].map(Path::new);
            path.parent()
                .is_some_and(|folder| folders.contains(&folder))
        };
        let program = program.filter(|path| !is_found(path));
        let program = program.map_or_else(|| "vtax".to_owned(), |path| path.display().to_string());
        let words = arguments.into_iter();
        let words = words.map(|word| word.to_string_lossy().into_owned());
        let words: Vec<String> = std::iter::once(program).chain(words).collect();
        let command = format!("sudo {}", join(&words));
        Self { command, why }
    }
}

/// Whether a program, device or kernel feature that the command needs is missing or does not work.
fn is_missing(cause: &(dyn Error + 'static)) -> bool {
    matches!(cause.downcast_ref(), Some(LabError::CannotHere(_)))
        || host_error(cause).is_some_and(|error| {
            matches!(
                error,
                HostError::Missing { .. }
                    | HostError::Unusable { .. }
                    | HostError::NotInImage { .. }
            )
        })
}

/// Whether a signal of the user ended the command.
pub fn is_interrupt(cause: &(dyn Error + 'static)) -> bool {
    host_error(cause).is_some_and(|error| matches!(error, HostError::Interrupted))
}

/// Whether an error of a file or pipe is of this kind.
pub fn is_io(cause: &(dyn Error + 'static), kind: io::ErrorKind) -> bool {
    let mut next = Some(cause);
    while let Some(cause) = next {
        let error = cause.downcast_ref::<io::Error>();
        if error.is_some_and(|error| error.kind() == kind) {
            return true;
        }
        next = cause.source();
    }
    false
}

/// The host's error in a command's error.
fn host_error<'a>(cause: &'a (dyn Error + 'static)) -> Option<&'a HostError> {
    match cause.downcast_ref::<LabError>() {
        Some(LabError::Host(error)) => Some(error),
        _ => cause.downcast_ref(),
    }
}
