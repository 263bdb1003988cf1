// SPDX-License-Identifier: Apache-2.0
//! The integration tests of vtax-mvm, in one program.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "in a test, a failure is a panic"
)]

#[macro_use]
extern crate vtax_testkit;

mod command;
mod guests;
#[path = "../benches/population/load.rs"]
#[allow(dead_code, reason = "benches use the rest")]
mod load;
mod machine;
mod population;
mod qemu;

fn main() {
    vtax_testkit::main();
}
