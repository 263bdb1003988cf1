// SPDX-License-Identifier: Apache-2.0
//! Runs the integration tests of a crate, each in a process of its own, and reports those that cannot run as ignored.
//!
//! `tests/main.rs` of a crate names its modules and is built without libtest (`harness = false`):
//!
//! ```no_run
//! #[macro_use]
//! extern crate vtax_testkit;
//!
//! mod machines {
//!     #[test(needs = [kvm(), program("nasm")])]
//!     fn a_machine_boots() {}
//! }
//!
//! fn main() {
//!     vtax_testkit::main();
//! }
//! ```
//!
//! A test that detects at run time that it cannot continue calls [`skip!`]. A test's output is shown when it fails,
//! or with `--show-output`.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what cannot be set up fails the test"
)]

#[cfg(feature = "containers")]
pub mod containers;
mod harness;
pub mod markup;
pub mod needs;
pub mod pages;
#[cfg(feature = "results")]
pub mod results;
mod skipping;
pub mod stand_in;
pub mod workspace;

pub use harness::{Test, child_of_a_test, main};
pub use inventory;
pub use needs::{alone, beside_others};
pub use skipping::{skip_in_part, skip_with};
pub use vtax_testkit_macros::test;

/// Ends the test as ignored, with a reason in the format of `format!`.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => { $crate::skip_with(&::std::format!($($reason)*)) };
}
