// SPDX-License-Identifier: Apache-2.0
//! From a plan to trials to a results directory: [`plan`] expands a plan into treatments, and [`run`] runs their
//! trials in a seeded random order. See `docs/why/design.md`.

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr)
)]

mod error;
mod external;
pub mod place;
pub mod plan;
pub mod reasons;
pub mod run;
pub mod suspect;

pub use error::{LabError, PathError};
