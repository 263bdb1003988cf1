// SPDX-License-Identifier: Apache-2.0
//! The errors of this crate. Each has the failed operation, its object, the reason and the remedy.

use std::io;
use std::path::{Path, PathBuf};

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Every error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that is no valid boot sector.
    #[error("image {image}: {problem}; {remedy}")]
    Image {
        /// The image's name or path.
        image: String,
        /// The defect.
        problem: String,
        /// The remedy.
        remedy: String,
    },
    /// A program that this crate runs failed, or is not installed.
    #[error("run {program}: {problem}; {remedy}")]
    Program {
        /// The program's name.
        program: String,
        /// The reason, with the program's own message if there is one.
        problem: String,
        /// The remedy.
        remedy: String,
    },
    /// A file could not be read or written.
    #[error("{action} {path}: {cause}")]
    File {
        /// The failed operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        cause: io::Error,
    },
    /// Listening on an address failed.
    #[error(transparent)]
    Listen(#[from] vtax_http::ListenError),
    /// KVM cannot be used on this host.
    #[error("{tried}: {problem}; {remedy}")]
    Kvm {
        /// The failed operation.
        tried: String,
        /// The reason.
        problem: String,
        /// The remedy.
        remedy: String,
    },
    /// A resource of the host ran out.
    #[error("{tried}: {limit} is exhausted ({cause}); {remedy}")]
    Exhausted {
        /// The failed operation.
        tried: String,
        /// The exhausted limit.
        limit: &'static str,
        /// The kernel's reason.
        cause: io::Error,
        /// How to raise the limit or need less.
        remedy: String,
    },
    /// Another system call failed.
    #[error("{tried}: {cause}")]
    System {
        /// The failed operation.
        tried: String,
        /// The reason.
        cause: io::Error,
    },
    /// An invalid snapshot of a population.
    #[error("snapshot {path}: {problem}; nothing was loaded")]
    Snapshot {
        /// The snapshot file.
        path: PathBuf,
        /// The defect.
        problem: String,
    },
    /// An invalid stored state of a guest.
    #[error("stored guest state: {0}")]
    State(&'static str),
    /// A request that this configuration cannot serve.
    #[error("{asked}: {problem}")]
    Configuration {
        /// The request.
        asked: String,
        /// The reason, and the alternative.
        problem: String,
    },
}

impl Error {
    /// The error of a failed operation on a file.
    pub(crate) fn file(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Self + Copy {
        move |cause| Self::File {
            action,
            path: path.to_owned(),
            cause,
        }
    }

    /// The error of an image with a defect.
    pub(crate) fn image(image: &str, problem: impl Into<String>, remedy: &str) -> Self {
        Self::Image {
            image: image.to_owned(),
            problem: problem.into(),
            remedy: remedy.to_owned(),
        }
    }

    /// The error of a program that failed, or is not installed.
    pub(crate) fn program(
        program: impl Into<String>,
        problem: impl Into<String>,
        remedy: &str,
    ) -> Self {
        Self::Program {
            program: program.into(),
            problem: problem.into(),
            remedy: remedy.to_owned(),
        }
    }

    /// The error of a request that this configuration cannot serve.
    pub(crate) fn configuration(asked: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Configuration {
            asked: asked.into(),
            problem: problem.into(),
        }
    }

    /// The error where no temporary directory can be made.
    pub(crate) fn temporary_directory(cause: io::Error) -> Self {
        Self::System {
            tried: "make a temporary directory".to_owned(),
            cause,
        }
    }

    /// The error of a failed KVM or memory call: [`Error::Exhausted`] where the kernel's code shows the limit.
    pub fn of_limit(tried: impl Into<String>, cause: io::Error) -> Self {
        let tried = tried.into();
        let (limit, remedy) = match cause.raw_os_error() {
            Some(libc::EMFILE) => (
                "the process's file descriptor limit",
                "raise `ulimit -n` or ask for fewer guests",
            ),
            Some(libc::ENFILE) => (
                "the host's file descriptor limit",
                "raise fs.file-max or ask for fewer guests",
            ),
            Some(libc::ENOMEM) => (
                "memory or the process's mapping limit",
                "free memory, raise vm.max_map_count, or ask for fewer guests",
            ),
            Some(libc::EAGAIN) => (
                "the process or thread limit",
                "raise `ulimit -u` and kernel.pid_max, or ask for fewer guests",
            ),
            _ => return Self::System { tried, cause },
        };
        Self::Exhausted {
            tried,
            limit,
            cause,
            remedy: remedy.to_owned(),
        }
    }
}

/// Why a program did not start.
pub(crate) fn start_problem(cause: &io::Error) -> String {
    match cause.kind() {
        io::ErrorKind::NotFound => "it is not installed".to_owned(),
        _ => cause.to_string(),
    }
}
