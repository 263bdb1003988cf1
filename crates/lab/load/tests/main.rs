// SPDX-License-Identifier: Apache-2.0
//! The integration tests of vtax-load, in one program, which is also the load generator that workloads start.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "in a test, a failure is a panic"
)]

#[macro_use]
extern crate vtax_testkit;

mod command;
mod generators;
mod host;
mod knee;
mod workloads;

use clap::Parser;
use vtax_load::{http, memcached};

/// The load generators, as `vtax load` has them.
#[derive(Parser)]
#[command(no_binary_name = true)]
enum LoadCommand {
    Http(http::Arguments),
    Memcached(memcached::Arguments),
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().is_none_or(|word| word != "load") {
        vtax_testkit::main();
    }
    let outcome = match LoadCommand::parse_from(arguments) {
        LoadCommand::Http(arguments) => http::main(&arguments),
        LoadCommand::Memcached(arguments) => memcached::main(&arguments),
    };
    if let Err(cause) = outcome {
        eprintln!("{cause}");
        std::process::exit(1);
    }
}
