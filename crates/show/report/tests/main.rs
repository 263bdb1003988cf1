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

mod compared;
mod directory;
mod energy;
mod history;
mod large;
mod levels;
mod machines;
mod markup;
mod page;
mod quantiles;
mod report;
mod scenarios;
mod seeds;
mod support;
mod survey;
mod suspects;
mod variance;
mod variants;
mod verdicts;

fn main() {
    vtax_testkit::main();
}
