//! Why a file of the kernel could not be read.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Why a file of the kernel could not be read.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The file could not be opened or read.
    #[error("cannot read {path}: {cause}{}", remedy(.cause))]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// The file did not hold what its interface promises.
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

    /// The error of content that is not what `detail` expects.
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
