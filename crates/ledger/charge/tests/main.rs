// SPDX-License-Identifier: Apache-2.0
//! The integration tests of vtax-charge, in one program.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "in a test, a failure is a panic"
)]

#[macro_use]
extern crate vtax_testkit;

mod charge;
mod descriptors;
mod waits;

fn main() {
    vtax_testkit::main();
}
