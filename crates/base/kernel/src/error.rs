// SPDX-License-Identifier: Apache-2.0
//! Errors of reading the kernel's files.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// An error of reading a file of the kernel.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The file could not be opened or read.
    #[error("cannot read {path}: {cause}{}", remedy(.cause))]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        cause: io::Error,
    },
    /// The content of the file does not match its interface.
    #[error("{path} does not look as expected: {detail}")]
    Format {
        /// The file.
        path: PathBuf,
        /// What was expected.
        detail: String,
    },
}

impl KernelError {
    /// The error of a read of `path`.
    pub fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |cause| Self::Read { path, cause }
    }

    /// The error of content that does not match `detail`.
    pub fn format(path: &Path, detail: impl Into<String>) -> Self {
        Self::Format {
            path: path.to_owned(),
            detail: detail.into(),
        }
    }
}

fn remedy(cause: &io::Error) -> &'static str {
    match cause.kind() {
        ErrorKind::PermissionDenied => "; run as root",
        ErrorKind::NotFound => {
            "; the process or group may have ended, or its file system is not mounted"
        }
        _ => "",
    }
}
