// SPDX-License-Identifier: Apache-2.0
//! The integration tests of vtax, in one program.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "in a test, a failure is a panic"
)]

#[macro_use]
extern crate vtax_testkit;

mod advise;
mod alone;
mod bill;
mod bpf_objects;
mod cap;
mod charge_tools;
mod cli;
mod climb;
mod closing_line;
mod docs;
mod escapes;
mod files;
mod fleet;
mod gates;
mod guest;
mod host_files;
mod kill;
mod left;
mod libvirt;
mod misdeeds;
mod mutations;
mod one_liner;
mod package;
mod page_names;
mod places;
mod pool;
mod precision;
mod prometheus;
mod push;
mod record;
mod remote_machine;
mod rootless;
mod rootless_files;
mod rootless_hostile;
mod rootless_images;
mod run;
mod setup;
mod shapes;
mod support;
mod testbed;
mod threat_model;
mod variants;
mod vmm;
mod xenapi;

fn main() {
    vtax_testkit::main();
}
