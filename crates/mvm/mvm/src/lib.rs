// SPDX-License-Identifier: Apache-2.0
//! Micro VMs: guests that are one 512-byte boot sector, and a monitor that holds a million of them.
//!
//! An [`image::Image`] is the whole guest. [`machine::run`] runs one on KVM, with interrupt controller, timer and
//! serial port in this process, so that a halted guest needs no thread. A [`population::Population`] holds many:
//! parked ones as some hundred bytes each, live ones with their KVM objects, and [`population::worker::Workers`] run
//! them and serve their addresses.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

pub mod cli;
pub mod error;
pub mod front;
pub mod image;
pub mod jail;
pub mod machine;
pub mod population;
pub mod shard;
pub mod tcg;

pub use error::{Error, Result};

use std::path::Path;

/// The folder of a file.
pub(crate) fn folder(path: &Path) -> &Path {
    let folder = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}
