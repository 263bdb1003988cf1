// SPDX-License-Identifier: Apache-2.0
//! The integration tests of vtax-report, in one program.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "in a test, a failure is a panic"
)]

#[macro_use]
extern crate vtax_testkit;

mod directory;
mod history;
mod large;
mod machines;
mod markup;
mod quantiles;
mod report;
mod scipy;
mod simulations;
mod statistics;
mod survey;
mod variance;
mod verdicts;

fn main() {
    vtax_testkit::main();
}
