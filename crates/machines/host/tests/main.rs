// SPDX-License-Identifier: Apache-2.0
//! The integration tests of vtax-host, in one program.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "in a test, a failure is a panic"
)]

#[macro_use]
extern crate vtax_testkit;

mod namespace;
mod uplink;

fn main() {
    vtax_testkit::main();
}
