// SPDX-License-Identifier: Apache-2.0
//! The integration tests of vtax-guest, in one program.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "in a test, a failure is a panic"
)]

#[macro_use]
extern crate vtax_testkit;

mod cell;
mod common;
mod hostile_image;
mod image;
mod kill;
mod layers;
mod open_vswitch;
mod qemu;
mod seats;
mod shared_kernel;
mod vmm;

fn main() {
    vtax_testkit::main();
}
