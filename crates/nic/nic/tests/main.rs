// SPDX-License-Identifier: Apache-2.0
//! The integration tests of vtax-nic, in one program.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "in a test, a failure is a panic"
)]

#[macro_use]
extern crate vtax_testkit;

mod dpdk;
mod driver;
mod guest;
mod hostile;
mod limits;
mod operator;
mod sandbox;
mod support;
mod uml;

fn main() {
    vtax_testkit::main();
}
