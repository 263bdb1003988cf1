// SPDX-License-Identifier: Apache-2.0
//! The integration tests of vtax-density, in one program.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "in a test, a failure is a panic"
)]

#[macro_use]
extern crate vtax_testkit;

mod plans;
mod report;

fn main() {
    vtax_testkit::main();
}
