// SPDX-License-Identifier: Apache-2.0
//! The integration tests of vtax-guest, in one program, which is also the tracer of dry runs.

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
mod trace;
mod vmm;

fn main() -> std::process::ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("trace") => trace::tracer(arguments),
        Some(trace::FILES_USED) => trace::files_used(arguments),
        _ => vtax_testkit::main(),
    }
}
