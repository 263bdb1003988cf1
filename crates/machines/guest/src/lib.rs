// SPDX-License-Identifier: Apache-2.0
//! The targets of workloads: a root file system ([`image`]) that every platform shares, and the platforms
//! ([`platform`]), which boot a target from it in a cell.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

pub mod image;
pub mod knobs;
pub mod platform;
