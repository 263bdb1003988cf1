// SPDX-License-Identifier: Apache-2.0
//! The parts of a command line that all vtax programs share: times with units, `--format` and `--json`.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        reason = "in a test, a failure is a panic"
    )
)]

mod format;
pub mod time;

pub use format::{FormatArgs, HasJson, TextOrJson};
