// SPDX-License-Identifier: Apache-2.0
//! The integration tests of vtax-web, in one program.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "in a test, a failure is a panic"
)]

#[macro_use]
extern crate vtax_testkit;

mod fake;
mod vtax_browser;
mod vtax_machines;
mod vtax_results;
mod vtax_runs;
mod vtax_web;

fn main() {
    vtax_testkit::main();
}
